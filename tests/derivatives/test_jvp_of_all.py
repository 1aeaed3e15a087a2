"""jvp through every public function that takes floating-point numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import DIFFERENCE_TOLERANCE, FINITE_DIFFERENCE_STEP, assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import grus, lstms

import cupyrnn
from cupyrnn import raw_ops
from cupyrnn.derivatives.tree import tree_map

# Functions of sizes, names and integers.
NO_FLOATS = {
    "cudnn_rnn_engine",
    "cudnn_rnn_params_layout",
    "cudnn_rnn_params_size",
    "forget_kernels",
    "init_block_gru",
    "init_block_lstm",
    "init_params",
    "jvp",
    "recurrence_kernels",
    # Of integers: their scales are constants.
    "dequantize",
    "params_from_quantized_onnx",
    "vjp",  # tests/ops/test_vjp.py
}


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the arrays of floating-point numbers in what a function takes or returns."""
    found: list[Any] = []
    tree_map(found.append, tree)
    yield from (a for a in found if isinstance(a, np.ndarray) and a.dtype.kind == "f")


def direction_of(tree: Any, rng: np.random.Generator) -> Any:
    """Return a direction of what has floating-point numbers, None for the rest."""

    def one(a: Any) -> Any:
        is_float = isinstance(a, np.ndarray) and a.dtype.kind == "f"
        return rng.standard_normal(a.shape).astype(a.dtype) if is_float else None

    return tree_map(one, tree)


def moved(tree: Any, direction: Any, step: float) -> Any:
    return tree_map(lambda a, t: a if t is None else a + step * t, tree, direction)


def alone(direction: Any, n: int) -> Any:
    """Return what leaves a tangent to the nth array alone."""
    count = iter(range(10**6))
    return tree_map(lambda t: None if t is None or next(count) != n else t, direction)


def assert_jvp(
    function: Callable[..., Any], primals: Any, rng: np.random.Generator, only: int | None = None
) -> Any:
    """
    Check values against the function's own, tangents against central differences.

    With `only`, the array of this number has a tangent, and no other.
    """
    v = direction_of(primals, rng)
    v = v if only is None else alone(v, only)
    value, along = cupyrnn.jvp(function, primals, v)
    expected = list(leaves(function(*primals)))
    found, tangents = list(leaves(value)), list(leaves(along))
    step = FINITE_DIFFERENCE_STEP
    plus, minus = (list(leaves(function(*moved(primals, v, s)))) for s in (step, -step))
    assert len(found) == len(tangents) == len(expected)
    for n, (a, e, t, p, m) in enumerate(zip(found, expected, tangents, plus, minus, strict=True)):
        assert a.dtype == t.dtype == e.dtype
        assert_close(a, e, "float64", f"value {n}", at_least=1.0)
        scale = 1 + np.abs(p).max(initial=0) + np.abs(t).max(initial=0)
        assert np.abs(t - (p - m) / (2 * step)).max(initial=0) <= DIFFERENCE_TOLERANCE * scale, n
    if only is None:
        assert_data_refused(function, primals)
    return along


def assert_data_refused(function: Callable[..., Any], primals: Any) -> None:
    """Any array may have imaginary parts that are tangents, and none that are data."""

    def with_imaginary(n: int, size: float) -> Any:
        count = iter(range(10**6))

        def change(a: Any) -> Any:
            if not (isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.size):
                return a
            return a + size * 1j if next(count) == n else a

        return tree_map(change, primals)

    for n in range(sum(bool(a.size) for a in leaves(primals))):
        function(*with_imaginary(n, 1e-30))
        with pytest.raises(ValueError, match=r"imaginary parts up to 0\.1, expected"):
            function(*with_imaginary(n, 0.1))


def random(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape)


def packed(rng: np.random.Generator, L: int = 1, I: int = 3, **net: Any) -> Any:
    params = cupyrnn.init_params(num_layers=L, num_units=4, input_size=I, dtype="float64", **net)
    return params._replace(params=random(rng, params.params.size))


def block_weights(rng: np.random.Generator, kind: str, K: int, H: int) -> Any:
    if kind == "gru":
        a = grus.problem(rng, (1, 1, K, H))
        return cupyrnn.BlockGRUParams(*(a[n] for n in ("w_ru", "w_c", "b_ru", "b_c")))
    a = lstms.problem(rng, (1, 1, K, H), True)
    if kind == "lstm":
        return cupyrnn.BlockLSTMParams(a["w"], a["b"])
    return cupyrnn.PeepholeLSTMParams(*(a[n] for n in ("w", "b", *lstms.PEEPHOLES)))


def lstm_to_block(p: Any) -> Any:
    return cupyrnn.params_to_block_lstm(p)


def lstm_from_block(p: Any) -> Any:
    return cupyrnn.params_from_block_lstm(*p, forget_bias=1.0, cell_clip=0.0)


BI = {"direction": "bidirectional"}


def conversions(rng: np.random.Generator) -> dict[str, tuple[Callable[..., Any], Any]]:
    """Return for each name a function and its argument: what it converts, with all it has."""
    gru, lstm = block_weights(rng, "gru", 3, 4), block_weights(rng, "peephole", 3, 4)
    keras = cupyrnn.params_to_keras(packed(rng, **BI))
    state = cupyrnn.params_to_torch(packed(rng, 2, rnn_mode="gru", **BI))
    node = cupyrnn.params_to_onnx(packed(rng, rnn_mode="gru", **BI))
    lstm_node = cupyrnn.block_lstm_to_onnx([lstm, lstm])
    gru_node = cupyrnn.block_gru_to_onnx([gru])
    variables = cupyrnn.params_to_tf1(packed(rng, 2))
    one = packed(rng)
    canonical = cupyrnn.cudnn_rnn_params_to_canonical(1, 4, 3, one.params)
    return {
        "params_to_keras": (cupyrnn.params_to_keras, packed(rng, **BI)),
        "params_from_keras": (lambda a: cupyrnn.params_from_keras(a, **BI), keras),
        "params_to_torch": (cupyrnn.params_to_torch, packed(rng, 2, rnn_mode="gru", **BI)),
        "params_from_torch": (cupyrnn.params_from_torch, state),
        "params_to_onnx": (cupyrnn.params_to_onnx, packed(rng, rnn_mode="gru", **BI)),
        "params_from_onnx": (
            lambda a: cupyrnn.params_from_onnx(a.W, a.R, a.B, linear_before_reset=1),
            node,
        ),
        "params_to_tf1": (cupyrnn.params_to_tf1, packed(rng, 2)),
        "params_from_tf1": (cupyrnn.params_from_tf1, variables),
        "params_to_block_lstm": (lstm_to_block, one),
        "params_from_block_lstm": (lstm_from_block, cupyrnn.params_to_block_lstm(one)),
        "block_gru_to_keras": (lambda a: cupyrnn.block_gru_to_keras(*a), gru),
        "block_gru_from_keras": (cupyrnn.block_gru_from_keras, cupyrnn.block_gru_to_keras(*gru)),
        "block_gru_to_onnx": (cupyrnn.block_gru_to_onnx, [gru]),
        "block_gru_from_onnx": (
            lambda a: cupyrnn.block_gru_from_onnx(a.W, a.R, a.B),
            gru_node,
        ),
        "block_gru_to_tf1": (lambda a: cupyrnn.block_gru_to_tf1(*a), gru),
        "block_gru_from_tf1": (cupyrnn.block_gru_from_tf1, cupyrnn.block_gru_to_tf1(*gru)),
        "block_lstm_to_onnx": (cupyrnn.block_lstm_to_onnx, [lstm, lstm]),
        "block_lstm_from_onnx": (
            lambda a: cupyrnn.block_lstm_from_onnx(a.W, a.R, a.B, a.P),
            lstm_node,
        ),
        "block_lstm_to_tf1": (lambda a: cupyrnn.block_lstm_to_tf1(*a), lstm),
        "block_lstm_from_tf1": (cupyrnn.block_lstm_from_tf1, cupyrnn.block_lstm_to_tf1(*lstm)),
        "cudnn_rnn_params_to_canonical": (
            lambda p: cupyrnn.cudnn_rnn_params_to_canonical(1, 4, 3, p),
            one.params,
        ),
        "block_gru_from_gates": (cupyrnn.block_gru_from_gates, cupyrnn.block_gru_to_gates(*gru)),
        "block_gru_to_gates": (lambda a: cupyrnn.block_gru_to_gates(*a), gru),
        "block_lstm_from_gates": (
            cupyrnn.block_lstm_from_gates,
            cupyrnn.block_lstm_to_gates(*lstm[:5]),
        ),
        "block_lstm_to_gates": (lambda a: cupyrnn.block_lstm_to_gates(*a[:5]), lstm),
        **{
            name: (partial(getattr(cupyrnn, name), one), random(rng, one.params.size))
            for name in ("gradient_to_block_lstm", "gradient_to_keras", "gradient_to_torch")
        },
        "join_params": (cupyrnn.join_params, cupyrnn.split_params(packed(rng, 2, I=4))),
        "split_params": (cupyrnn.split_params, packed(rng, 2)),
        "params_from_dynet": (cupyrnn.params_from_dynet, cupyrnn.params_to_dynet(one)),
        "params_to_dynet": (cupyrnn.params_to_dynet, one),
        "params_from_gates": (cupyrnn.params_from_gates, cupyrnn.params_to_gates(one)),
        "params_to_gates": (cupyrnn.params_to_gates, packed(rng, 2, rnn_mode="gru", **BI)),
        "reverse_update_gate": (cupyrnn.reverse_update_gate, gru),
        "cudnn_rnn_canonical_to_params": (
            lambda a: cupyrnn.cudnn_rnn_canonical_to_params(1, 4, 3, a.weights, a.biases),
            canonical,
        ),
    }


CONVERSIONS = sorted(conversions(np.random.default_rng(0)))


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions(name: str, rng: np.random.Generator) -> None:
    """They are linear but for constants: a tangent is the difference of two values."""
    function, primal = conversions(rng)[name]
    along = assert_jvp(function, (primal,), rng)
    assert any(np.abs(t).max(initial=0) > 0 for t in leaves(along))
    arrays = list(leaves(primal))
    for n in range(len(arrays)) if len(arrays) > 1 else ():
        assert_jvp(function, (primal,), rng, only=n)


def onnx_node(rng: np.random.Generator, op: str, D: int, peephole: bool = False) -> list[Any]:
    (T, B, I, H), G = (4, 3, 2, 5), {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    inputs = [random(rng, T, B, I), random(rng, D, G * H, I), random(rng, D, G * H, H) / 2]
    inputs += [random(rng, D, 2 * G * H), np.array([4, 0, 2]), random(rng, D, B, H)]
    if op == "LSTM":
        inputs += [random(rng, D, B, H), random(rng, D, 3 * H) if peephole else None]
    return inputs


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("LSTM", {}),
        ("LSTM", {"peephole": True}),
        ("GRU", {"linear_before_reset": 0}),
        ("GRU", {"linear_before_reset": 1}),
        ("RNN", {}),
    ],
    ids=str,
)
def test_run_onnx_node(
    op: str, attributes: dict[str, Any], direction: str, rng: np.random.Generator
) -> None:
    attributes = attributes.copy()
    D = 1 + (direction == "bidirectional")
    inputs = onnx_node(rng, op, D, attributes.pop("peephole", False))

    def node(inputs: Any) -> Any:
        return cupyrnn.run_onnx_node(op, inputs, direction=direction, **attributes)

    assert_jvp(node, (inputs,), rng)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("L", [1, 2])
def test_prepare_step(mode: str, L: int, rng: np.random.Generator) -> None:
    """Two steps of a prepared net."""
    net = packed(rng, L, rnn_mode=mode)
    x, h, c = random(rng, 2, 3, 3), random(rng, L, 3, 4), random(rng, L, 3, 4)
    c = c if mode == "lstm" else None

    def steps(net: Any, x: Any, h: Any, c: Any) -> Any:
        step = cupyrnn.prepare_step(net)
        first = step(x[0], h, c)
        return tuple(first), tuple(step(x[1], first.output_h, first.output_c))

    assert_jvp(steps, (net, x, h, c), rng)


def test_a_step_of_another_jvp(rng: np.random.Generator) -> None:
    """Its parameters have tangents of that call, scaled as they were there."""
    net, x = packed(rng, 1, rnn_mode="gru"), random(rng, 3, 3)
    h, kept = random(rng, 1, 3, 4), []

    def first(net: Any) -> Any:
        kept.append(cupyrnn.prepare_step(net))
        return kept[0](x, h).output

    along = net._replace(params=random(rng, *net.params.shape))
    _, tangent = cupyrnn.jvp(first, (net,), (along,))
    assert tangent.any()
    with pytest.raises(TypeError, match=r"prepare_step: .* of another call of jvp"):
        cupyrnn.jvp(lambda x: kept[0](x, h).output, (x,), (1e6 * x,))
    with pytest.raises(TypeError, match=r"prepare_step: .* of another call of jvp"):
        kept[0](x, h)


RAW_LSTM = ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")


@pytest.mark.parametrize(
    ("forward", "backward"), [("BlockLSTM", "BlockLSTMGrad"), ("BlockLSTMV2", "BlockLSTMGradV2")]
)
def test_raw_block_lstm(forward: str, backward: str, rng: np.random.Generator) -> None:
    inputs = lstms.problem(rng, (4, 3, 2, 5), True)
    other = {"seq_len_max": np.array(3), "use_peephole": True}

    def both(a: Any, cs_grad: Any, h_grad: Any) -> Any:
        out = getattr(raw_ops, forward)(**a, **other, cell_clip=0.0)
        return out, getattr(raw_ops, backward)(
            **a, **out._asdict(), cs_grad=cs_grad, h_grad=h_grad, **other
        )

    a = {n: inputs[n] for n in RAW_LSTM}
    assert_jvp(both, (a, random(rng, 4, 3, 5), random(rng, 4, 3, 5)), rng)


def test_raw_lstm_block_cell(rng: np.random.Generator) -> None:
    inputs = lstms.problem(rng, (1, 3, 2, 5), True)
    inputs["x"] = inputs["x"][0]

    def both(a: Any, cs_grad: Any, h_grad: Any) -> Any:
        out = raw_ops.LSTMBlockCell(**a, cell_clip=0.5, use_peephole=True)
        saved = {n: v for n, v in out._asdict().items() if n != "h"}
        return out, raw_ops.LSTMBlockCellGrad(
            **a, **saved, cs_grad=cs_grad, h_grad=h_grad, use_peephole=True
        )

    assert_jvp(both, ({n: inputs[n] for n in RAW_LSTM}, random(rng, 3, 5), random(rng, 3, 5)), rng)


def test_raw_gru_block_cell(rng: np.random.Generator) -> None:
    inputs = grus.problem(rng, (1, 3, 2, 5))
    inputs["x"] = inputs["x"][0]

    def both(a: Any, d_h: Any) -> Any:
        out = raw_ops.GRUBlockCell(**a)
        saved = {n: v for n, v in out._asdict().items() if n != "h"}
        return out, raw_ops.GRUBlockCellGrad(**a, **saved, d_h=d_h)

    assert_jvp(both, (inputs, random(rng, 3, 5)), rng)


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("CudnnRNN", "CudnnRNNBackprop"),
        ("CudnnRNNV2", "CudnnRNNBackpropV2"),
        ("CudnnRNNV3", "CudnnRNNBackpropV3"),
    ],
)
def test_raw_cudnn_rnn(forward: str, backward: str, rng: np.random.Generator) -> None:
    net = packed(rng, 2, I=2, **BI)
    a: Any = {"input": random(rng, 4, 3, 2), "input_h": random(rng, 4, 3, 4)}
    a |= {"input_c": random(rng, 4, 3, 4), "params": net.params}
    grads = {f"{n}_backprop": random(rng, *s) for n, s in (
        ("output", (4, 3, 8)), ("output_h", (4, 3, 4)), ("output_c", (4, 3, 4)),
    )}  # fmt: skip
    other: Any = dict(BI)
    if forward == "CudnnRNNV3":
        other |= {"num_proj": 0, "time_major": True, "sequence_lengths": np.array([4, 1, 2], "i")}

    def both(a: Any, grads: Any) -> Any:
        out = getattr(raw_ops, forward)(**a, **other, is_training=True)
        names = ("output", "output_h", "output_c", "reserve_space")
        given = {n: getattr(out, n) for n in names}
        if forward != "CudnnRNN":
            given["host_reserved"] = out.host_reserved
        back = getattr(raw_ops, backward)(**a, **given, **grads, **other)
        return [getattr(out, n) for n in names[:3]], back

    assert_jvp(both, (a, grads), rng)


def test_raw_conversions(rng: np.random.Generator) -> None:
    """With a projection V2 has one matrix more in each layer."""
    params = packed(rng, I=3).params
    net = {"num_layers": 1, "num_units": 4, "input_size": 3}
    projected = packed(rng, I=3, num_proj=2).params
    p = {**net, "num_proj": 2}

    def there(params: Any, projected: Any) -> Any:
        one = raw_ops.CudnnRNNParamsToCanonical(**net, params=params, num_params=8)
        two = raw_ops.CudnnRNNParamsToCanonicalV2(
            **p, params=projected, num_params_weights=9, num_params_biases=8
        )
        return one, two

    def back(one: Any, two: Any) -> Any:
        return (
            raw_ops.CudnnRNNCanonicalToParams(**net, weights=one.weights, biases=one.biases),
            raw_ops.CudnnRNNCanonicalToParamsV2(**p, weights=two.weights, biases=two.biases),
        )

    assert_jvp(there, (params, projected), rng)
    assert_jvp(back, there(params, projected), rng)


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(["lstm", "peephole", "gru"]),
    sizes=st.tuples(*[st.integers(0, 4)] * 3, st.integers(1, 4)),
    L=st.integers(1, 2),
    both_ways=st.booleans(),
    lengths=st.booleans(),
    clip=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_stacked_rnn(
    kind: str, sizes: Any, L: int, both_ways: bool, lengths: bool, clip: float, seed: int
) -> None:
    (T, B, I, H), D, rng = sizes, 1 + both_ways, np.random.default_rng(seed)
    weights = [
        block_weights(rng, kind, I if layer == 0 else D * H, H)
        for layer in range(L)
        for _ in range(D)
    ]
    same: Any = {"direction": "bidirectional" if both_ways else "unidirectional"}
    if kind != "gru":
        same["cell_clip"] = clip
    if lengths:
        same["sequence_lengths"] = rng.integers(0, T + 1, B)
    states = [random(rng, L * D, B, H), random(rng, L * D, B, H)]
    grads = [random(rng, T, B, D * H), random(rng, L * D, B, H), random(rng, L * D, B, H)]
    if kind == "gru":
        states[1] = grads[2] = None

    def both(x: Any, states: Any, weights: Any, grads: Any) -> Any:
        out = cupyrnn.stacked_rnn(x, *states, weights, **same, dropout=0.3, seed=1)
        back = cupyrnn.stacked_rnn_backprop(
            x, *states, weights, *out[:3], *grads, out.reserve_space, **same, dropout=0.3
        )
        return out[: 2 if kind == "gru" else 3], back

    assert_jvp(both, (random(rng, T, B, I), states, weights, grads), rng)


def hessian_product(function: Any, primals: Any, direction: Any) -> Any:
    return cupyrnn.jvp(function, primals, direction)[1]


@pytest.mark.parametrize("variant", ["projection", "lengths"])
def test_torchs_double_backward_of_variants(
    torch: Any,
    variant: str,
    rng: np.random.Generator,
) -> None:
    """A projection; sequences of different length, the last of which is one step long."""
    T, B, I, H, P = 5, 3, 4, 6, 2 if variant == "projection" else 0
    lengths = [5, 3, 1] if variant == "lengths" else None
    net = torch.nn.LSTM(I, H, bidirectional=True, proj_size=P, dtype=torch.float64)
    x, weight = random(rng, T, B, I), random(rng, T, B, 2 * (P or H))
    state = {n: p.detach().numpy() for n, p in net.state_dict().items()}
    direction = {n: random(rng, *a.shape) for n, a in state.items()}
    given = torch.tensor(x)
    if lengths is not None:
        y = torch.nn.utils.rnn.pack_padded_sequence(given, lengths)
        y = torch.nn.utils.rnn.pad_packed_sequence(net(y)[0])[0]
    else:
        y = net(given)[0]
    leaves = dict(net.named_parameters())
    loss = (torch.tensor(weight) * y).sum() + (y**2).sum() / 2
    grads = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
    along = [torch.tensor(direction[n]) for n in leaves]
    expected = torch.autograd.grad(grads, list(leaves.values()), along)

    h, c = np.zeros((2, B, P or H)), np.zeros((2, B, H))
    same: Any = {**BI, "num_proj": P, "sequence_lengths": lengths}

    def gradient(state: Any) -> Any:
        params = cupyrnn.params_from_torch(state).params
        out = cupyrnn.cudnn_rnn(x, h, c, params, **same)
        g = cupyrnn.cudnn_rnn_backprop(
            x, h, c, params, *out[:3], weight + out.output, None, None, out.reserve_space,
            host_reserved=out.host_reserved, **same,
        )  # fmt: skip
        return cupyrnn.params_to_torch(g.params_backprop, 1, H, I, num_proj=P, **BI)

    found = hessian_product(gradient, (state,), (direction,))
    for n, e in zip(leaves, expected, strict=True):
        assert_close(found[n], e.numpy(), "float64", n, at_least=1.0)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
def test_torchs_double_backward_of_cells(
    torch: Any,
    kind: str,
    rng: np.random.Generator,
) -> None:
    """torch.nn.LSTMCell is block_lstm over the steps; its GRUCell is a prepared step."""
    T, B, I, H = 3, 2, 4, 5
    net = getattr(torch.nn, kind)(I, H, dtype=torch.float64)
    x, v = random(rng, T, B, I), random(rng, T, B, I)
    leaf, states = torch.tensor(x, requires_grad=True), torch.zeros(B, H, dtype=torch.float64)
    outputs, carried = [], (states, states) if kind == "LSTMCell" else states
    for x_t in leaf:
        carried = net(x_t, carried)
        outputs.append(carried[0] if kind == "LSTMCell" else carried)
    loss = sum((h**3).sum() for h in outputs)
    (grad,) = torch.autograd.grad(loss, [leaf], create_graph=True)
    (expected,) = torch.autograd.grad(grad, [leaf], torch.tensor(v))

    state = {n: p.detach().numpy() for n, p in net.state_dict().items()}
    params = cupyrnn.params_from_torch(state)
    zeros = np.zeros((B, H))

    def gradient(x: Any) -> Any:
        if kind == "GRUCell":
            h = zeros[None]
            out = cupyrnn.cudnn_rnn(x, h, None, params)
            return cupyrnn.cudnn_rnn_backprop(
                x, h, None, params, *out[:3], 3 * out.output**2, None, None, out.reserve_space
            ).input_backprop
        w, b = cupyrnn.params_to_block_lstm(params)
        out = cupyrnn.block_lstm(x, zeros, zeros, w, b, forget_bias=0, cell_clip=0)
        return cupyrnn.block_lstm_grad(
            x, zeros, zeros, w, *out, cs_grad=None, h_grad=3 * out.h**2
        ).x_grad

    found = hessian_product(gradient, (x,), (v,))
    assert_close(found, expected.numpy(), "float64", kind, at_least=1.0)


def test_nothing_is_left_out() -> None:
    """Every public function is called in one of these two files, or takes no numbers."""
    text = Path(__file__).read_text() + Path(__file__).with_name("test_jvp.py").read_text()
    functions = {
        n for n in cupyrnn.__all__ if inspect.isfunction(getattr(cupyrnn, n)) and n != "jvp"
    }
    for name in functions - NO_FLOATS:
        assert f"cupyrnn.{name}(" in text or name in CONVERSIONS, name
    for name in {*raw_ops.__all__} - {"CudnnRNNParamsSize"}:
        assert f"raw_ops.{name}(" in text or f'"{name}"' in text, name
