"""The packed parameters: cuDNN's layout, canonical lists, PyTorch, Keras and BlockLSTM."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from checks import assert_close
from problems import nets

import cupyrnn
from cupyrnn.cells.packed import GATES

CONFIGURATIONS = [
    {
        "num_layers": L,
        "num_units": H,
        "input_size": I,
        "rnn_mode": mode,
        "direction": direction,
        "num_proj": P,
        "input_mode": input_mode,
    }
    for L, (H, I), mode, direction, P, input_mode in itertools.product(
        (1, 2, 3),
        ((1, 1), (4, 3), (3, 33), (5, 5)),
        GATES,
        ("unidirectional", "bidirectional"),
        (0, 1, 3),
        ("linear_input", "skip_input", "auto_select"),
    )
    if not (P and (mode != "lstm" or P > H)) and (input_mode != "skip_input" or I == H)
]


def size_by_formula(c: dict[str, Any]) -> int:
    """Σ_l D·[G·H·(K_l+P) + (P·H if projected)] + 2·G·H·L·D."""
    L, H, I, G = c["num_layers"], c["num_units"], c["input_size"], len(GATES[c["rnn_mode"]])
    D, P = (2 if c["direction"] == "bidirectional" else 1), c["num_proj"] or c["num_units"]
    skip = c["input_mode"] == "skip_input" or (c["input_mode"] == "auto_select" and I == H)
    inputs = [0 if skip else I] + [D * P] * (L - 1)
    projection = P * H if c["num_proj"] else 0
    return sum(D * (G * H * (K + P) + projection) for K in inputs) + 2 * G * H * L * D


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_layout_has_no_gaps_and_round_trips(dtype: str) -> None:
    assert len(CONFIGURATIONS) > 200
    for c in CONFIGURATIONS:
        pieces = cupyrnn.cudnn_rnn_params_layout(**c)
        end = 0
        for p in pieces:
            assert p.offset == end
            end += int(np.prod(p.shape))
        assert end == size_by_formula(c) == cupyrnn.cudnn_rnn_params_size(**c)
        G, D = len(GATES[c["rnn_mode"]]), 1 + (c["direction"] == "bidirectional")
        params = np.arange(end).astype(dtype)
        parts = cupyrnn.cudnn_rnn_params_to_canonical(**c, params=params)
        per_layer = D * (2 * G + bool(c["num_proj"]))
        assert len(parts.weights) == c["num_layers"] * per_layer
        assert len(parts.biases) == c["num_layers"] * D * 2 * G
        for p, a in zip(pieces, (*parts.weights, *parts.biases), strict=True):
            assert a.shape == p.shape
            assert not np.may_share_memory(a, params)
        back = cupyrnn.cudnn_rnn_canonical_to_params(**c, **parts._asdict())
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, params)


def test_layout_written_out() -> None:
    """Two bidirectional GRU layers of one unit, element by element as cuDNN has them."""
    names = [
        f"{kind}{layer}{side}.{gate}"
        for kinds in (("W", "R"), ("bW", "bR"))
        for layer in (0, 1)
        for side in ("f", "b")
        for kind in kinds
        for gate in "ruc"
        for _ in range(2 if kind == "W" else 1)
    ]
    short = {"input": "W", "recurrent": "R", "input_bias": "bW", "recurrent_bias": "bR"}
    pieces = cupyrnn.cudnn_rnn_params_layout(2, 1, 2, rnn_mode="gru", direction="bidirectional")
    found = [
        f"{short[p.kind]}{p.layer}{'fb'[p.direction]}.{p.gate}"
        for p in pieces
        for _ in range(int(np.prod(p.shape)))
    ]
    assert found == names


def test_torch_without_biases() -> None:
    state = {"weight_ih_l0": np.ones((3, 2)), "weight_hh_l0": np.ones((3, 1))}
    packed = cupyrnn.weights.params_from_torch(state, rnn_mode="gru")
    np.testing.assert_array_equal(packed.params, [1.0] * 9 + [0.0] * 6)


@pytest.mark.parametrize("gate_order", ["icfo", "ifco"])
def test_block_lstm_round_trip(gate_order: Any, rng: np.random.Generator) -> None:
    I, H = 3, 5
    w, b = rng.standard_normal((I + H, 4 * H)), rng.standard_normal(4 * H)
    packed = cupyrnn.weights.params_from_block_lstm(
        w, b, forget_bias=0.7, cell_clip=0, gate_order=gate_order
    )
    back = cupyrnn.weights.params_to_block_lstm(packed, gate_order=gate_order)
    np.testing.assert_array_equal(back.w, w)
    other = "icfo" if gate_order == "ifco" else "ifco"
    again = cupyrnn.weights.params_to_block_lstm(packed, gate_order=gate_order, forget_bias=0.7)
    assert_close(again.b, b, "float64", "b")
    swapped = cupyrnn.weights.params_to_block_lstm(packed, gate_order=other)
    x, cs, h = rng.standard_normal((6, 2, I)), *rng.standard_normal((2, 2, H))
    expected = cupyrnn.block_lstm(
        x, cs, h, w, b, forget_bias=0.7, cell_clip=0, gate_order=gate_order
    )
    for (w2, b2), order in ((back, gate_order), (swapped, other)):
        out = cupyrnn.block_lstm(x, cs, h, w2, b2, forget_bias=0, cell_clip=0, gate_order=order)
        assert_close(out.h, expected.h, "float64", order)


def as_numpy(module: Any) -> dict[str, Any]:
    return {k: v.numpy() for k, v in module.state_dict().items()}


NETS = [
    (mode, layers, bidirectional, P)
    for mode, layers, bidirectional, P in itertools.product(GATES, (1, 3), (False, True), (0, 1, 4))
    if mode == "lstm" or not P
]


@pytest.mark.parametrize("lengths", [None, [2, 7, 1, 7]], ids=["padded", "packed"])
@pytest.mark.parametrize(("mode", "layers", "bidirectional", "P"), NETS)
def test_a_real_torch_net_gives_the_same_and_its_gradients(
    torch: Any,
    mode: str,
    layers: int,
    bidirectional: bool,
    P: int,
    lengths: Any,
    rng: np.random.Generator,
) -> None:
    """A model with PyTorch's initial values; its gradients are packed like its parameters."""
    T, B, I, H = 7, 4, 3, 5
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(mode, torch.nn.RNN)
    more = {"nonlinearity": mode.removeprefix("rnn_")} if kind is torch.nn.RNN else {}
    if P:
        more["proj_size"] = P
    torch.manual_seed(int(rng.integers(2**31)))
    module = kind(I, H, layers, bidirectional=bidirectional, dtype=torch.float64, **more)
    rnn_mode: Any = mode
    state = as_numpy(module)
    packed = cupyrnn.weights.params_from_torch(state, rnn_mode=rnn_mode)
    direction = "bidirectional" if bidirectional else "unidirectional"
    assert packed[1:] == (layers, H, I, mode, direction, P, "linear_input", "sigmoid")
    back = cupyrnn.weights.params_to_torch(packed)
    np.testing.assert_equal(back, state)
    np.testing.assert_equal(cupyrnn.weights.params_to_torch(packed, gradient=True), state)
    assert [*back] == [*state]
    case = nets.Case(mode, T, B, I, H, layers, direction, P, lengths=lengths)
    inputs, cotangents = nets.problem(rng, case), nets.cotangents_of(rng, case)
    inputs["params"] = packed.params
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in inputs.items() if n != "params"}
    x, *first = tensors.values()
    if lengths:
        x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    y, last = module(x, tuple(first) if mode == "lstm" else first[0])
    if lengths:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=T)
    outputs = [y, *last] if mode == "lstm" else [y, last]
    torch.autograd.backward(outputs, [torch.from_numpy(a) for a in cotangents.values()])
    out = nets.forward(cupyrnn, case, inputs)
    g = nets.backward(cupyrnn, case, inputs, out, cotangents)
    for name, a, t in zip(out._fields, out, outputs, strict=False):
        assert_close(a, t.detach().numpy(), "float64", name)
    for name, t in tensors.items():
        assert_close(getattr(g, f"{name}_backprop"), t.grad.numpy(), "float64", name)
    grads = {n: p.grad.numpy() for n, p in module.named_parameters()}
    expected = cupyrnn.weights.params_from_torch(grads, rnn_mode=rnn_mode).params
    assert_close(g.params_backprop, expected, "float64", "params_backprop")


# ruff: noqa: E501 - a case a line
LAYOUT = ("cudnn_rnn_params_layout", (2, 3, 4))


@pytest.mark.parametrize(
    ("call", "changed", "error", "message"),
    [
        (LAYOUT, {"rnn_mode": "LSTM"}, ValueError, "rnn_mode is 'LSTM', expected one of rnn_relu, rnn_tanh, lstm, gru"),
        (LAYOUT, {"direction": "both"}, ValueError, "direction is 'both', expected one of unidirectional, bidirectional"),
        (LAYOUT, {"input_mode": None}, ValueError, "input_mode is None, expected one of linear_input, skip_input, auto_select"),
        (LAYOUT, {"num_proj": 1, "rnn_mode": "gru"}, ValueError, "num_proj is 1, expected 0 for gru: only lstm projects"),
        (LAYOUT, {"num_proj": 4}, ValueError, "num_proj is 4, expected at most H = num_units = 3"),
        (LAYOUT, {"num_proj": -1}, ValueError, "num_proj is -1, expected at least 0"),
        (LAYOUT, {"num_proj": 1.0}, TypeError, "num_proj is 1.0, expected an integer"),
        (LAYOUT, {"input_mode": "skip_input"}, ValueError, "input_size is 4, expected H = num_units = 3 with skip_input, which adds the input to the gates without a matrix"),
        (("cudnn_rnn_params_layout", (10**6, 1, 1)), {}, ValueError, "num_layers is 1000000, expected at most 100000 for a list of pieces"),
        (("cudnn_rnn_params_to_canonical", (1, 2, 3, np.zeros(55))), {}, ValueError, "params has shape (55,), expected (params_size,) = (56,) for lstm with L = 1, D = 1, H = 2, I = 3"),
        (("cudnn_rnn_params_to_canonical", (1, 2, 3, [0.0] * 56)), {}, TypeError, "params is a list, expected a numpy.ndarray or cupy.ndarray"),
        (("cudnn_rnn_canonical_to_params", (1, 2, 3, [], [])), {}, ValueError, "weights has 0 arrays, expected 8"),
        (("cudnn_rnn_canonical_to_params", (1, 2, 3, [np.zeros((2, 2))] * 8, [np.zeros(2)] * 8)), {}, ValueError, "weights[0] has shape (2, 2), expected (H, K) = (2, 3)"),
        (("cudnn_rnn_canonical_to_params", (1, 2, 3, None, [])), {}, TypeError, "weights is None, expected a list of arrays"),
    ],
)  # fmt: skip
def test_errors(call: Any, changed: Any, error: Any, message: str) -> None:
    op, args = call
    with pytest.raises(error, match=f"^{re.escape(f'{op}: {message}')}$"):
        getattr(cupyrnn if op in dir(cupyrnn) else cupyrnn.weights, op)(*args, **changed)
