"""The ops in float64 beside PyTorch's LSTM and beside autodiff of the equations written out."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checks import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import grus, lstms
from problems.lstms import PEEPHOLES

import cupyrnn

# (T, B, I, H)
SHAPES = [(1, 1, 1, 1), (33, 3, 1, 3), (3, 33, 3, 1), (7, 3, 33, 33)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids="T{0[0]} B{0[1]} I{0[2]} H{0[3]}".format)
random_shapes = st.tuples(*(st.integers(1, 9) for _ in range(4)))
seeds = st.integers(0, 2**32)

GATES = {"icfo": ("i", "ci", "f", "o"), "ifco": ("i", "f", "ci", "o")}


def lstm_problem(seed: int, shape: tuple[int, ...], peephole: bool) -> tuple[Any, Any]:
    """Return the inputs of block_lstm, and gradients of cs and h."""
    rng, (T, B, _, H) = np.random.default_rng(seed), shape
    inputs = lstms.problem(rng, shape, peephole)
    return inputs, {name: rng.standard_normal((T, B, H)) for name in ("cs_grad", "h_grad")}


def gru_problem(seed: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the inputs of block_gru, and a gradient of h."""
    rng, (T, B, _, H) = np.random.default_rng(seed), shape
    return grus.problem(rng, shape), rng.standard_normal((T, B, H))


def leaves(torch: ModuleType, inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(a, requires_grad=True) for name, a in inputs.items()}


def autodiff(torch: ModuleType, loss: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the gradients by name, zeros for what does not enter."""
    grads = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
    return {
        name: np.zeros(a.shape) if g is None else g.numpy()
        for (name, a), g in zip(inputs.items(), grads, strict=True)
    }


def written_out_lstm(
    torch: ModuleType,
    inputs: dict[str, Any],
    *,
    steps: int,
    gate_order: str = "icfo",
    forget_bias: float = 0,
    clip: float = 0,
    straight_through: bool = False,
) -> dict[str, Any]:
    x, cs, h, w, b = (inputs[name] for name in ("x", "cs_prev", "h_prev", "w", "b"))
    wci, wcf, wco = (inputs.get(name, 0) for name in PEEPHOLES)
    sequence = []
    for x_t in x[:steps]:
        z = torch.cat([x_t, h], 1) @ w + b
        z = dict(zip(GATES[gate_order], z.chunk(4, 1), strict=True))
        i = torch.sigmoid(z["i"] + cs * wci)
        f = torch.sigmoid(z["f"] + forget_bias + cs * wcf)
        ci = torch.tanh(z["ci"])
        cs = i * ci + f * cs
        if clip > 0:
            clipped = torch.clamp(cs, -clip, clip)
            cs = cs + (clipped - cs).detach() if straight_through else clipped
        o = torch.sigmoid(z["o"] + cs * wco)
        co = torch.tanh(cs)
        h = o * co
        sequence.append({"i": i, "cs": cs, "f": f, "o": o, "ci": ci, "co": co, "h": h})
    return {name: torch.stack([step[name] for step in sequence]) for name in sequence[0]}


def written_out_gru(torch: ModuleType, inputs: dict[str, Any], steps: int) -> dict[str, Any]:
    x, h, w_ru, w_c, b_ru, b_c = inputs.values()
    sequence = []
    for x_t in x[:steps]:
        r, u = torch.sigmoid(torch.cat([x_t, h], 1) @ w_ru + b_ru).chunk(2, 1)
        c = torch.tanh(torch.cat([x_t, h * r], 1) @ w_c + b_c)
        h = u * h + (1 - u) * c
        sequence.append({"r": r, "u": u, "c": c, "h": h})
    return {name: torch.stack([step[name] for step in sequence]) for name in sequence[0]}


def assert_all_close(ours: dict[str, Any], theirs: dict[str, Any], what: str) -> None:
    """Compare as one vector: of a random shape a single array may cancel to almost nothing."""
    assert ours.keys() == theirs.keys()
    for name, a in ours.items():
        assert a.shape == theirs[name].shape, name
    a, b = (np.concatenate([v[name].ravel() for name in ours]) for v in (ours, theirs))
    assert_close(a, b, "float64", what)


def assert_outputs(outputs: Any, expected: dict[str, Any], steps: int | None = None) -> None:
    """Compare with what PyTorch computed for the first steps, and the rest with zeros."""
    ours = {name: a[:steps] for name, a in outputs._asdict().items()}
    assert_all_close(ours, {name: a.detach().numpy() for name, a in expected.items()}, "outputs")
    if steps is not None:
        assert not any(a[steps:].any() for a in outputs)


@shapes
def test_torch_lstm(torch: ModuleType, shape: tuple[int, ...]) -> None:
    """torch.nn.LSTM: weights transposed, gates i, f, g, o, two biases, states of the last step."""
    T, _, I, H = shape
    inputs, cotangents = lstm_problem(0, shape, peephole=False)
    options = {"gate_order": "ifco", "forget_bias": 0}
    outputs = cupyrnn.block_lstm(**inputs, **options)
    # PyTorch returns cs of the last step only.
    cotangents["cs_grad"][:-1] = 0
    grads = cupyrnn.block_lstm_grad(**inputs, **outputs._asdict(), **cotangents, gate_order="ifco")

    lstm = torch.nn.LSTM(I, H, dtype=torch.float64)
    leaf = leaves(torch, {name: inputs[name] for name in ("x", "cs_prev", "h_prev")})
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(torch.tensor(inputs["w"][:I].T))
        lstm.weight_hh_l0.copy_(torch.tensor(inputs["w"][I:].T))
        lstm.bias_hh_l0.copy_(torch.tensor(inputs["b"]) - lstm.bias_ih_l0)
    h, (_, last_cs) = lstm(leaf["x"], (leaf["h_prev"][None], leaf["cs_prev"][None]))
    assert_close(outputs.h, h.detach().numpy(), "float64", "h")
    assert_close(outputs.cs[T - 1], last_cs[0].detach().numpy(), "float64", "cs")

    cs_grad, h_grad = (torch.tensor(a) for a in cotangents.values())
    theirs = autodiff(
        torch,
        (h * h_grad).sum() + (last_cs[0] * cs_grad[-1]).sum(),
        leaf | dict(lstm.named_parameters()),
    )
    w = np.concatenate([theirs["weight_ih_l0"], theirs["weight_hh_l0"]], axis=1).T
    assert_close(grads.w_grad, w, "float64", "w")
    for bias in ("bias_ih_l0", "bias_hh_l0"):
        assert_close(grads.b_grad, theirs[bias], "float64", bias)
    for name in leaf:
        assert_close(getattr(grads, f"{name}_grad"), theirs[name], "float64", name)


def check_lstm(
    torch: ModuleType,
    seed: int,
    shape: tuple[int, ...],
    steps: int,
    peephole: bool,
    clip: float,
    straight_through: bool,
    forget_bias: float,
    gate_order: str,
) -> Any:
    """Compare block_lstm and its gradient with autodiff of the equations; return the outputs."""
    inputs, cotangents = lstm_problem(seed, shape, peephole)
    leaf = leaves(torch, inputs)
    options = {"forget_bias": forget_bias, "gate_order": gate_order}
    expected = written_out_lstm(
        torch, leaf, steps=steps, clip=clip, straight_through=straight_through, **options
    )
    cs_grad, h_grad = (torch.tensor(a[:steps]) for a in cotangents.values())
    loss = (expected["cs"] * cs_grad).sum() + (expected["h"] * h_grad).sum()
    theirs = autodiff(torch, loss, leaf)

    outputs = cupyrnn.block_lstm(**inputs, seq_len_max=steps, cell_clip=clip, **options)
    assert_outputs(outputs, expected, steps)
    grads = cupyrnn.block_lstm_grad(
        **inputs,
        **outputs._asdict(),
        **cotangents,
        seq_len_max=steps,
        cell_clip=None if straight_through else clip,
        gate_order=gate_order,
    )
    assert_all_close({name: getattr(grads, f"{name}_grad") for name in inputs}, theirs, "gradients")
    return outputs


@shapes
@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("straight_through", [False, True])
@pytest.mark.parametrize("gate_order", ["icfo", "ifco"])
def test_clipped_lstm(
    torch: ModuleType,
    shape: tuple[int, ...],
    peephole: bool,
    straight_through: bool,
    gate_order: str,
) -> None:
    """With an active clip the gradient is the true one if told of the clip, else TensorFlow's."""
    clip = 0.1
    outputs = check_lstm(
        torch, 0, shape, shape[0], peephole, clip, straight_through, 0.75, gate_order
    )
    assert (np.abs(outputs.cs) == clip).any()


@settings(max_examples=40, deadline=None)
@given(
    seed=seeds,
    shape=random_shapes,
    data=st.data(),
    peephole=st.booleans(),
    clip=st.sampled_from([0, 0.3, 1]),
    straight_through=st.booleans(),
    forget_bias=st.sampled_from([-1, 0, 2.5]),
    gate_order=st.sampled_from(sorted(GATES)),
)
def test_random_lstm(
    torch: ModuleType, shape: tuple[int, ...], data: st.DataObject, **options: Any
) -> None:
    check_lstm(torch, shape=shape, steps=data.draw(st.integers(1, shape[0])), **options)


@settings(max_examples=30, deadline=None)
@given(
    seed=seeds,
    shape=random_shapes,
    peephole=st.booleans(),
    true_gradient=st.booleans(),
    gate_order=st.sampled_from(sorted(GATES)),
)
def test_lstm_cell_gradients(
    torch: ModuleType,
    seed: int,
    shape: tuple[int, ...],
    peephole: bool,
    true_gradient: bool,
    gate_order: str,
) -> None:
    clip = 0.3
    inputs, cotangents = lstm_problem(seed, (1, *shape[1:]), peephole)
    leaf = leaves(torch, inputs)
    expected = written_out_lstm(
        torch, leaf, steps=1, clip=clip, straight_through=not true_gradient, gate_order=gate_order
    )
    loss = sum((expected[name[:-5]] * torch.tensor(a)).sum() for name, a in cotangents.items())
    theirs = autodiff(torch, loss, leaf)

    step = inputs | {"x": inputs["x"][0]}
    outputs = cupyrnn.lstm_block_cell(**step, forget_bias=0, cell_clip=clip, gate_order=gate_order)
    assert_outputs(outputs, {name: a[0] for name, a in expected.items()})
    saved = {name: a for name, a in outputs._asdict().items() if name != "h"}
    given_grads = {name: a[0] for name, a in cotangents.items()}
    options = {"gate_order": gate_order, "cell_clip": clip if true_gradient else None}
    whole = cupyrnn.lstm_block_cell_backward(**step, **saved, **given_grads, **options)
    ours = {name: getattr(whole, f"{name}_grad") for name in inputs}
    theirs["x"] = theirs["x"][0]
    assert_all_close(ours, theirs, "lstm_block_cell_backward")

    part = cupyrnn.lstm_block_cell_grad(**step, **saved, **given_grads, **options)
    w = np.concatenate([step["x"], step["h_prev"]], axis=1).T @ part.dicfo
    ours = {"cs_prev": part.cs_prev_grad, "w": w, "b": part.dicfo.sum(0)}
    if peephole:
        ours |= {name: getattr(part, f"{name}_grad") for name in PEEPHOLES}
    assert_all_close(ours, {name: theirs[name] for name in ours}, "lstm_block_cell_grad")


def check_gru(torch: ModuleType, seed: int, shape: tuple[int, ...], steps: int) -> None:
    inputs, d_h = gru_problem(seed, shape)
    leaf = leaves(torch, inputs)
    expected = written_out_gru(torch, leaf, steps)
    theirs = autodiff(torch, (expected["h"] * torch.tensor(d_h[:steps])).sum(), leaf)
    outputs = cupyrnn.block_gru(**inputs, seq_len_max=steps)
    assert_outputs(outputs, expected, steps)
    grads = cupyrnn.block_gru_grad(**inputs, **outputs._asdict(), d_h=d_h, seq_len_max=steps)
    assert_all_close({name: getattr(grads, f"d_{name}") for name in inputs}, theirs, "gradients")


@shapes
def test_gru(torch: ModuleType, shape: tuple[int, ...]) -> None:
    check_gru(torch, 0, shape, shape[0])


@settings(max_examples=30, deadline=None)
@given(seed=seeds, shape=random_shapes, data=st.data())
def test_random_gru(
    torch: ModuleType, seed: int, shape: tuple[int, ...], data: st.DataObject
) -> None:
    check_gru(torch, seed, shape, data.draw(st.integers(1, shape[0])))


@settings(max_examples=30, deadline=None)
@given(seed=seeds, shape=random_shapes)
def test_gru_cell_gradients(torch: ModuleType, seed: int, shape: tuple[int, ...]) -> None:
    inputs, d_h = gru_problem(seed, (1, *shape[1:]))
    leaf = leaves(torch, inputs)
    expected = written_out_gru(torch, leaf, 1)
    theirs = autodiff(torch, (expected["h"] * torch.tensor(d_h)).sum(), leaf)
    theirs["x"] = theirs["x"][0]

    step = inputs | {"x": inputs["x"][0]}
    outputs = cupyrnn.gru_block_cell(**step)
    assert_outputs(outputs, {name: a[0] for name, a in expected.items()})
    saved = {"r": outputs.r, "u": outputs.u, "c": outputs.c, "d_h": d_h[0]}
    whole = cupyrnn.gru_block_cell_backward(**step, **saved)
    assert_all_close(
        {name: getattr(whole, f"d_{name}") for name in inputs}, theirs, "gru_block_cell_backward"
    )

    part = cupyrnn.gru_block_cell_grad(**step, **saved)
    x, h_prev = step["x"], step["h_prev"]
    ours = {
        "x": part.d_x,
        "h_prev": part.d_h_prev,
        "w_ru": np.concatenate([x, h_prev], axis=1).T @ part.d_r_bar_u_bar,
        "w_c": np.concatenate([x, h_prev * outputs.r], axis=1).T @ part.d_c_bar,
        "b_ru": part.d_r_bar_u_bar.sum(0),
        "b_c": part.d_c_bar.sum(0),
    }
    assert_all_close(ours, theirs, "gru_block_cell_grad")
