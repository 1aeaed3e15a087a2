"""Weights by gate, joined and split nets, quantized weights, compared with the definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import assert_close

import cupyrnn
from cupyrnn import reference
from cupyrnn.weights import Gate

T, B, I, H = 5, 3, 5, 2
GATES = {
    "lstm": ("i", "f", "ci", "o"),
    "gru": ("r", "u", "c"),
    "rnn_tanh": ("h",),
    "rnn_relu": ("h",),
}


def gates_of(rng: np.random.Generator, mode: str, L: int, D: int, P: int = H) -> list[Any]:
    return [
        {
            name: Gate(
                rng.standard_normal((H, I if n < D else D * P)),
                rng.standard_normal((H, P)),
                *rng.standard_normal((2, H)),
            )
            for name in GATES[mode]
        }
        for n in range(L * D)
    ]


def columns(gates: dict[str, Gate], field: str) -> Any:
    """Return a field of all gates; each unit is a column."""
    return np.concatenate([getattr(gate, field).T for gate in gates.values()], axis=-1)


def plain(gates: dict[str, Gate], mode: str, x: Any, projection: Any = None) -> Any:
    """Run one layer in one direction by the definitions."""
    w_x, w_h, b_x, b_h = (columns(gates, field) for field in Gate._fields[:4])
    h, c = np.zeros((B, len(w_h))), np.zeros((B, H))
    if mode == "gru":
        return reference.gru_reset_after(x, h, w_x, w_h, b_x, b_h).h
    if mode != "lstm":
        return reference.simple_rnn(x, h, w_x, w_h, b_x + b_h, relu=mode == "rnn_relu").h
    w_p = None if projection is None else projection.T
    peepholes = [p for n in "ifo" if (p := gates[n].peephole) is not None]
    w = np.concatenate([w_x, w_h])
    return reference.lstm(x, c, h, w, b_x + b_h, *peepholes, w_p=w_p, gate_order="ifco").h


def output(packed: cupyrnn.PackedParams, x: Any) -> Any:
    return cupyrnn.cudnn_rnn(x, *packed.zero_state(x.shape[1]), packed).output


@pytest.mark.parametrize("D", [1, 2])
@pytest.mark.parametrize("mode", GATES)
def test_nets_by_gate(mode: Any, D: int, rng: np.random.Generator) -> None:
    gates = gates_of(rng, mode, 2, D)
    rnn_mode = mode if mode.startswith("rnn") else None
    direction: Any = ("unidirectional", "bidirectional")[D - 1]
    options: Any = {"rnn_mode": rnn_mode, "direction": direction}
    options["reset_after"] = True if mode == "gru" else None
    packed = cupyrnn.weights.params_from_gates(gates, **options)
    assert packed[1:7] == (2, H, I, mode, direction, 0)
    x = expected = rng.standard_normal((T, B, I))
    for layer in range(2):
        ways = [plain(gates[layer * D], mode, expected)]
        if D == 2:
            ways.append(plain(gates[layer * D + 1], mode, expected[::-1])[::-1])
        expected = np.concatenate(ways, axis=2)
    assert_close(output(packed, x), expected, "float64", "output")
    for back, given in zip(cupyrnn.weights.params_to_gates(packed), gates, strict=True):
        for name, gate in back.items():
            np.testing.assert_equal(gate[:4], given[name][:4])
    turned = [{n: (g[0].T, g[1].T, *g[2:4]) for n, g in of.items()} for of in gates]
    again = cupyrnn.weights.params_from_gates(turned, **options, transposed=True)
    np.testing.assert_array_equal(again.params, packed.params)


def test_a_projection_by_gate(rng: np.random.Generator) -> None:
    (gates,), projection = gates_of(rng, "lstm", 1, 1, P=1), rng.standard_normal((1, H))
    packed = cupyrnn.weights.params_from_gates([gates], projections=[projection])
    x = rng.standard_normal((T, B, I))
    assert_close(output(packed, x), plain(gates, "lstm", x, projection), "float64", "output")


def test_peepholes_by_gate(rng: np.random.Generator) -> None:
    (gates,) = gates_of(rng, "lstm", 1, 1)
    gates = {n: g._replace(peephole=rng.standard_normal(H)) for n, g in gates.items()}
    gates["ci"] = gates["ci"]._replace(peephole=None)
    weights = cupyrnn.weights.block_lstm_from_gates(gates)
    x, c, h = rng.standard_normal((T, B, I)), *np.zeros((2, B, H))
    out = cupyrnn.block_lstm(x, c, h, **weights.arguments, forget_bias=0, cell_clip=0)
    assert_close(out.h, plain(gates, "lstm", x), "float64", "h")
    again = cupyrnn.weights.block_lstm_from_gates(
        cupyrnn.weights.block_lstm_to_gates(**weights.arguments)
    )
    np.testing.assert_equal(again, weights)


def test_a_gru_that_resets_before_the_product_by_gate(rng: np.random.Generator) -> None:
    """Also with madmom's opposite update gate."""
    (gates,) = gates_of(rng, "gru", 1, 1)
    (weights,) = cupyrnn.weights.params_from_gates([gates], reset_after=False)
    transposed = {
        name: gate._replace(input=gate.input.T, recurrent=gate.recurrent.T)
        for name, gate in gates.items()
    }
    again = cupyrnn.weights.params_from_gates([transposed], transposed=True, reset_after=False)
    np.testing.assert_equal(again, [weights])
    x, h = rng.standard_normal((T, B, I)), rng.standard_normal((B, H))
    w_x, w_h, b_x, b_h = (columns(gates, field) for field in Gate._fields[:4])
    w, b = np.concatenate([w_x, w_h]), b_x + b_h
    expected = reference.gru(x, h, *np.split(w, [2 * H], 1), *np.split(b, [2 * H]))
    assert_close(cupyrnn.block_gru(x, h, *weights).h, expected.h, "float64", "h")
    before = [a.copy() for a in weights]
    turned = cupyrnn.gru_block_cell(x[0], h, *cupyrnn.weights.reverse_update_gate(weights))
    np.testing.assert_equal(weights, before)
    u, c = expected.u[0], expected.c[0]
    assert_close(turned.h, (1 - u) * h + u * c, "float64", "h")
    twice = cupyrnn.weights.reverse_update_gate(cupyrnn.weights.reverse_update_gate(weights))
    np.testing.assert_equal(twice, weights)


@pytest.mark.parametrize("activation", ["sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"])
def test_the_update_gate_of_a_net(activation: Any, rng: np.random.Generator) -> None:
    """1 - gate(z) is gate(-z) for every activation: the step is h = (1-u)*h + u*c."""
    (gates,) = gates_of(rng, "gru", 1, 1)
    packed = cupyrnn.weights.params_from_gates(
        [gates], recurrent_activation=activation, reset_after=True
    )
    x, h = rng.standard_normal((1, B, I)), rng.standard_normal((1, B, H))
    turned = cupyrnn.cudnn_rnn(x, h, None, cupyrnn.weights.reverse_update_gate(packed)).output[0]
    kept = cupyrnn.cudnn_rnn(x, h, None, packed).output[0]
    of_gates = (columns(gates, field) for field in Gate._fields[:4])
    expected = reference.gru_reset_after(x, h[0], *of_gates, recurrent_activation=activation)
    assert_close(kept, expected.h[0], "float64", "h")
    u, c = expected.u[0], expected.c[0]
    assert_close(turned, (1 - u) * h[0] + u * c, "float64", "h")


def test_layers_of_an_auto_select_that_is_linear_have_input_matrices() -> None:
    """A layer above the first has K = H, which auto_select would read as skip_input."""
    packed = cupyrnn.init_params(num_layers=3, num_units=3, input_size=2, rnn_mode="gru")
    parts = cupyrnn.weights.split_params(packed._replace(input_mode="auto_select"))
    assert [part.input_mode for part in parts] == ["linear_input"] * 3
    joined = cupyrnn.weights.join_params(parts)
    np.testing.assert_array_equal(joined.params, packed.params)
    for part in parts:  # each is a net of its own
        output(part, np.ones((T, B, part.input_size), np.float32))


def test_directions_are_joined(rng: np.random.Generator) -> None:
    """Two forward and two reverse nodes of ONNX become one net."""
    nodes = [
        (
            rng.standard_normal((1, 4 * H, K)),
            rng.standard_normal((1, 4 * H, H)),
            rng.standard_normal((1, 8 * H)),
        )
        for K in (I, I, 2 * H, 2 * H)
    ]
    packed = cupyrnn.weights.join_params(
        [cupyrnn.weights.params_from_onnx(*node) for node in nodes], direction="bidirectional"
    )
    x = expected = rng.standard_normal((T, B, I))
    for k in (0, 2):
        both = [
            cupyrnn.run_onnx_node(
                "LSTM", [expected, *nodes[k + d]], direction=("forward", "reverse")[d]
            ).Y[:, 0]
            for d in range(2)
        ]
        expected = np.concatenate(both, axis=2)
    assert_close(output(packed, x), expected, "float64", "output")


def test_quantized_nodes(rng: np.random.Generator) -> None:
    """DequantizeLinear's equation; DynamicQuantizeLSTM's layout, in both directions."""
    D = 2
    for dtype in (np.int8, np.uint8):
        info = np.iinfo(dtype)
        W, R = (rng.integers(info.min, info.max + 1, (D, n, 4 * H)).astype(dtype) for n in (I, H))
        b = rng.standard_normal((D, 8 * H)).astype(np.float32)
        for shape in ((D,), (D, 4 * H)):
            scales = rng.uniform(0.001, 0.02, (2, *shape)).astype(np.float32)
            zeros = rng.integers(info.min, info.max + 1, (2, *shape)).astype(dtype)
            packed = cupyrnn.weights.params_from_quantized_onnx(
                W, R, b, scales[0], zeros[0], scales[1], zeros[1]
            )
            floats = [
                ((q.astype(np.float64) - z.reshape(D, 1, -1)) * s.reshape(D, 1, -1))
                .transpose(0, 2, 1)
                .astype(np.float32)
                for q, s, z in zip((W, R), scales, zeros, strict=True)
            ]
            expected = cupyrnn.weights.params_from_onnx(*floats, b)
            assert packed[1:] == expected[1:]
            assert_close(packed.params, expected.params, "float32", "params")
    q = rng.integers(-128, 128, (3, 4)).astype(np.int8)
    scale, zero = rng.uniform(0.1, 1, 3).astype(np.float32), np.int8([1, 0, -1])
    by_row = cupyrnn.weights.dequantize(q, scale, zero, axis=0)
    np.testing.assert_array_equal(by_row, (q.astype("f4") - zero[:, None]) * scale[:, None])
    np.testing.assert_array_equal(cupyrnn.weights.dequantize(q.T, scale, zero, axis=-1), by_row.T)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.parametrize("merge_mode", ["sum", "ave"])
def test_directions_merged_by_keras(mode: Any, merge_mode: Any, rng: np.random.Generator) -> None:
    """A layer reads the sum of both directions below: separate layers, and all in one net."""
    G = {"lstm": 4, "gru": 3}[mode]
    bias = (4 * H,) if mode == "lstm" else (2, 3 * H)
    weights = [
        rng.standard_normal(shape)
        for K in (I, H, H)
        for _ in range(2)
        for shape in ((K, G * H), (H, G * H), bias)
    ]
    packed = cupyrnn.weights.params_from_keras(
        weights, direction="bidirectional", merge_mode=merge_mode, use_bias=True
    )
    scale = 0.5 if merge_mode == "ave" else 1
    x = expected = rng.standard_normal((T, B, I))
    for n in range(0, 18, 6):
        layer = cupyrnn.weights.params_from_keras(
            weights[n : n + 6], direction="bidirectional", use_bias=True
        )
        both = output(layer, expected)
        expected = scale * (both[..., :H] + both[..., H:])
    both = output(packed, x)
    assert_close(scale * (both[..., :H] + both[..., H:]), expected, "float64", "output")
    np.testing.assert_equal(cupyrnn.weights.params_to_keras(packed, merge_mode=merge_mode), weights)
    g = packed._replace(params=rng.standard_normal(packed.params.shape))
    grads = cupyrnn.weights.params_to_keras(g, merge_mode=merge_mode, gradient=True)
    total = sum(float(np.sum(a * w)) for a, w in zip(grads, weights, strict=True))
    assert_close(total, float(g.params @ packed.params), "float64", "product of both")
    other = packed._replace(params=packed.params.copy())
    other.params[2 * G * H * (I + H)] += 1
    with pytest.raises(
        ValueError,
        match="in layer 1 of params the input matrices for the two directions below differ",
    ):
        cupyrnn.weights.params_to_keras(other, merge_mode=merge_mode)
