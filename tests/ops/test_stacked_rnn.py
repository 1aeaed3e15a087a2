"""stacked_rnn beyond the tests of the table: different entries, sizes, errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from checks import Ops, assert_close
from problems.properties import assert_same_bits
from problems.table import Case, call_of

import cupyrnn
from cupyrnn import BlockGRUParams, BlockLSTMParams, PeepholeLSTMParams

BI = "bidirectional"
T, B, I = 5, 4, 3  # of layers of different H


def test_peepholes_in_some_of_the_cells(ops: Any, rng: np.random.Generator) -> None:
    """Entries with and without peepholes may be mixed; only the first have their gradients."""
    call = call_of(Case("stacked_rnn-LSTM", layers=2), rng)
    first, (w, b, *_) = call.inputs["weights"]
    found = []
    for second in (PeepholeLSTMParams(w, b), PeepholeLSTMParams(w, b, *np.zeros((3, 5)))):
        one = call._replace(inputs=call.inputs | {"weights": [first, second]})
        out = one.forward(ops)
        found += [out, one.gradient(ops, out, call.cotangents(np.random.default_rng(0), out))]
    out, g, expected, of_zeros = found
    assert_close(out.output, expected.output, "float64", "output")
    assert g.weights_backprop[1][2:] == (None, None, None, None)
    assert_close(g.weights_backprop[0].wco, of_zeros.weights_backprop[0].wco, "float64", "wco")


@pytest.mark.parametrize("zero", [None, 0, 0.0])
def test_a_gru_takes_a_plain_zero_for_its_cell_states(zero: Any, rng: np.random.Generator) -> None:
    """Its own output_c is a zero too."""
    x, h = rng.standard_normal((4, 2, 3)), rng.standard_normal((1, 2, 5))
    one = [cupyrnn.init_block_gru(num_units=5, input_size=3, dtype="float64")]
    out = cupyrnn.stacked_rnn(x, h, zero, one)
    assert out.output_c.shape == ()
    for other in (5.0, True, 1):
        with pytest.raises(TypeError, match=r"^stacked_rnn: input_c is "):
            cupyrnn.stacked_rnn(x, h, other, one)
    dy = out.output
    grads = cupyrnn.stacked_rnn_backprop(
        x, h, zero, one, *out[:3], dy, None, None, out.reserve_space
    )
    assert grads.input_c_backprop.shape == ()


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_layers_of_one_size_may_have_lists_too(
    ops: Ops, name: str, rng: np.random.Generator
) -> None:
    """Lists give the same bits as arrays; each state is returned in the form that was passed."""
    case = Case(f"stacked_rnn-{name}", (T, B, I, 4), "float64", "lengths+resets", "both", 2)
    call = call_of(case._replace(dropout=0.4), rng)
    out = call.forward(ops)
    given = call.cotangents(rng, out)
    states = {n: a for n, a in (call.inputs | given).items() if "_h" in n or "_c" in n}
    lists = {n: a if a is None else [a[:2], a[2:]] for n, a in states.items()}
    listed = call._replace(inputs={n: lists.get(n, a) for n, a in call.inputs.items()})
    of_lists = listed.forward(ops)
    found = listed.gradient(ops, of_lists, {n: lists.get(n, a) for n, a in given.items()})
    assert_same_bits(joined(of_lists), out)
    assert_same_bits(joined(found), call.gradient(ops, out, given))
    if name == "LSTM":
        mixed = call._replace(inputs=call.inputs | {"input_c": lists["input_c"]}).forward(ops)
        assert isinstance(mixed.output_c, tuple)
        assert_same_bits(joined(mixed), out)


def joined(result: Any) -> Any:
    """Return a tuple with an array for each layer as one array."""
    return result._make(np.concatenate(a) if type(a) is tuple else a for a in result)


def test_one_p_and_different_h(ops: Ops, rng: np.random.Generator) -> None:
    """With projections to one size, h may be one array."""
    weights, K, P = [], I, 2
    for H in (6, 3):
        shapes = {"w": (K + P, 4 * H), "b": (4 * H,), "w_p": (H, P)}
        weights.append(PeepholeLSTMParams(**{n: rng.standard_normal(s) for n, s in shapes.items()}))
        K = P
    x, h = rng.standard_normal((T, B, I)), rng.standard_normal((2, B, P))
    c = [rng.standard_normal((1, B, H)) for H in (6, 3)]
    out = ops.stacked_rnn(x, [h[:1], h[1:]], c, weights)
    assert_same_bits(ops.stacked_rnn(x, h, c, weights)._replace(output_c=None),
                     joined(out._replace(output_c=None)))  # fmt: skip
    message = (
        "stacked_rnn: input_c is a numpy.ndarray, expected a list of L = 2 arrays (D, B, H), one for"
        " each layer, as H is 3 and 6"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cupyrnn.stacked_rnn(x, h, np.zeros((2, B, 6)), weights)


def test_onnx_nodes_of_different_h_are_one_net(rng: np.random.Generator) -> None:
    """Weights of packed parameters, or of the block op if there are peepholes."""
    nodes, K = [], I
    for H in (6, 2):
        shapes = ((1, 4 * H, K), (1, 4 * H, H), (1, 8 * H), (1, 3 * H))
        nodes.append([0.5 * rng.standard_normal(s) for s in shapes])
        K = H
    x = rng.standard_normal((T, B, I))
    states = [np.zeros((1, B, 6)), np.zeros((1, B, 2))]
    ways: list[tuple[int, Any]] = [
        (
            3,
            lambda node: [
                cupyrnn.weights.params_to_block_lstm(cupyrnn.weights.params_from_onnx(*node))
            ],
        ),
        (4, lambda node: cupyrnn.weights.block_lstm_from_onnx(*node)),
    ]
    for count, weights_of_node in ways:
        weights = [entry for node in nodes for entry in weights_of_node(node[:count])]
        same: dict[str, Any] = {"forget_bias": 0, "cell_clip": 0}
        out = cupyrnn.stacked_rnn(x, states, states, weights, **same)
        below = x
        for layer, (W, R, b, P) in enumerate(nodes):
            inputs = [below, W, R, b, None, None, None, P if count == 4 else None]
            node = cupyrnn.run_onnx_node("LSTM", inputs)
            assert_close(out.output_c[layer], node.Y_c, "float64", "Y_c")
            below = node.Y[:, 0]
        assert_close(out.output, below, "float64", "Y")


def small(kind: Any = BlockLSTMParams, **changed: Any) -> dict[str, Any]:
    """Return arguments with T, B, I, H, L, D = 2, 1, 3, 4, 2, 1."""
    name = "GRU" if kind is BlockGRUParams else "LSTM"
    peephole = kind is PeepholeLSTMParams
    case = Case(f"stacked_rnn-{name}", (2, 1, 3, 4), layers=2, peephole=peephole)
    return call_of(case, np.random.default_rng(0)).inputs | changed


def weights(kind: Any = BlockLSTMParams, n: int = 0, **changed: Any) -> list[Any]:
    entries = list(small(kind)["weights"])
    entries[n] = entries[n]._replace(**changed)
    return entries


ERRORS: list[Any] = [
    ({"weights": None}, TypeError, "weights is None, expected a list of weight tuples"),
    ({"weights": []}, ValueError, "weights has 0 entries, expected L*D, at least 1"),
    ({"input_h": []}, ValueError, "input_h has 0 entries, expected L = 2, an array (D, B, H) for each layer"),
    ({"weights": cupyrnn.init_params(num_layers=1, num_units=1, input_size=1)}, TypeError, "weights is a cupyrnn.PackedParams, expected a list of weight tuples; cudnn_rnn takes it"),
    ({"weights": [*map(tuple, small()["weights"])]}, TypeError, "weights[0] is a tuple, expected a BlockLSTMParams or PeepholeLSTMParams or BlockGRUParams"),
    ({"weights": [*small()["weights"], *small(BlockGRUParams)["weights"]]}, TypeError, "weights[2] is a cupyrnn.BlockGRUParams, expected the weights of an LSTM like weights[0]"),
    ({"weights": weights(w=None)}, TypeError, "weights[0].w is None, expected a numpy.ndarray like input"),
    ({"weights": weights(n=1, w=np.zeros((7, 16)))}, ValueError, "weights[1].w has shape (7, 16), expected (D*H+H, 4*H) = (8, 16)"),
    ({"weights": weights(n=0, w=np.zeros((8, 16)))}, ValueError, "weights[0].w has shape (8, 16), expected (I+H, 4*H) = (7, 16)"),
    ({"weights": weights(b=np.zeros(4))}, ValueError, "weights[0].b has shape (4,), expected (4*H,) = (16,)"),
    ({"weights": weights(b=np.zeros(16, "f4"))}, TypeError, "weights[0].b has dtype float32, expected float64 like input"),
    ({"weights": weights(PeepholeLSTMParams, 1, wcf=None)}, TypeError, "weights[1].wcf is None, expected an array of shape (H,) = (4,) like weights[1].wci"),
    ({"weights": weights(PeepholeLSTMParams, 1, wcf=np.zeros(5))}, ValueError, "weights[1].wcf has shape (5,), expected (H,) = (4,)"),
    ({"weights": weights(BlockGRUParams, 1, w_c=np.zeros((8, 5))), "input_c": None}, ValueError, "weights[1].w_c has shape (8, 5), expected (D*H+H, H) = (8, 4)"),
    ({"weights": small()["weights"][:1]}, ValueError, "input_h has shape (2, 1, 4), expected (L*D, B, H) = (1, 1, 4)"),
    ({"weights": small()["weights"] * 2 + small()["weights"][:1], "direction": BI}, ValueError, "weights has 5 entries, expected L*D with D = 2: bidirectional"),
    ({"input": np.zeros((2, 3))}, ValueError, "input has shape (2, 3), expected (T, B, I)"),
    ({"input_h": np.zeros((2, 2, 4))}, ValueError, "input_h has shape (2, 2, 4), expected (L*D, B, H) = (2, 1, 4); input is [T, B, I], time first, unless time_major=False"),
    ({"direction": "both"}, ValueError, "direction is 'both', expected one of unidirectional, bidirectional"),
    ({"dropout": 1.5}, ValueError, "dropout is 1.5, expected in [0, 1]"),
    ({"gate_order": "ifgo"}, ValueError, "gate_order is 'ifgo', expected one of icfo, ifco"),
    ({"cell_clip": "x"}, TypeError, "cell_clip is 'x', expected a real number"),
    ({"proj_clip": "x"}, TypeError, "proj_clip is 'x', expected a real number"),
    ({"proj_clip": 3}, ValueError, "proj_clip is 3, expected None without a projection: weights[0] has no w_p"),
    ({**small(BlockGRUParams), "proj_clip": 3}, ValueError, "proj_clip is 3, expected None for a GRU"),
    ({**small(BlockGRUParams), "cell_clip": 3}, ValueError, "cell_clip is 3, expected None for a GRU"),
    ({"recurrent_activation": "tanh"}, ValueError, "recurrent_activation is 'tanh', expected one of sigmoid, hard_sigmoid_0.2, hard_sigmoid_1/6"),
    ({"sequence_lengths": [3]}, ValueError, "sequence_lengths[0] is 3, expected in [0, T] = [0, 2]"),
    ({"resets": [[True]]}, ValueError, "resets has shape (1, 1), expected (T, B) = (2, 1)"),
    ({"time_major": 1}, TypeError, "time_major is 1, expected a bool"),
]  # fmt: skip


def tapered() -> dict[str, Any]:
    """Return arguments of two layers with H = 4 and 2 in one direction."""
    case = Case("stacked_rnn-LSTM", (T, B, I, 4), layers=2, tapered=True, peephole=False)
    return call_of(case, np.random.default_rng(0)).inputs


H_4 = np.zeros((2, B, 4))
OF_SIZES: list[Any] = [
    ({"input_h": H_4, "input_c": H_4}, ValueError, "input_h is an array, and the layers have H = 2 and 4: pass input_h and input_c as lists of an array (D, B, H) for each layer"),
    ({"input_c": H_4}, ValueError, "input_c is a numpy.ndarray, expected a list of L = 2 arrays (D, B, H), one for each layer, as H is 2 and 4"),
    ({"input_h": tapered()["input_h"][:1]}, ValueError, "input_h has 1 entry, expected L = 2, an array (D, B, H) for each layer"),
    ({"input_c": tapered()["input_c"][::-1]}, ValueError, "input_c[0] has shape (1, 4, 2), expected (D, B, H) = (1, 4, 4)"),
    ({"input_h": [a[0] for a in tapered()["input_h"]]}, ValueError, "input_h[0] has shape (4, 4), expected (D, B, H)"),
    ({"input_h": [tapered()["input_h"][0], None]}, TypeError, "input_h[1] is None, expected a numpy.ndarray like input"),
    ({"input_h": [tapered()["input_h"][0], np.zeros((1, B, 2), "f4")]}, TypeError, "input_h[1] has dtype float32, expected float64 like input"),
    ({"input_h": [tapered()["input_h"][0], np.zeros((1, B, 3))], "input_c": [tapered()["input_c"][0], np.zeros((1, B, 3))]}, ValueError, "weights[1].w has shape (6, 8), expected (K+H, 4*H) = (7, 12) with K = 4, the output size of layer 0, and H = 3"),
    ({"weights": [tapered()["weights"][0]._replace(b=np.zeros(8)), tapered()["weights"][1]]}, ValueError, "weights[0].b has shape (8,), expected (4*H,) = (16,)"),
]  # fmt: skip
# ruff: noqa: E501 - a case a line


@pytest.mark.parametrize(
    ("arguments", "changed", "error", "message"),
    [*((small, *case) for case in ERRORS), *((tapered, *case) for case in OF_SIZES)],
)
def test_errors(arguments: Any, changed: dict[str, Any], error: Any, message: str) -> None:
    given = arguments() | changed
    gradients = dict.fromkeys(("output", "output_h", "output_c"))
    gradients |= dict.fromkeys(("output_backprop", "output_h_backprop", "output_c_backprop"))
    gradients["reserve_space"] = cupyrnn.stacked_rnn(**arguments()).reserve_space
    for _ in range(2):  # the checks of a right call are cached
        with pytest.raises(error, match=f"^{re.escape(f'stacked_rnn: {message}')}$"):
            cupyrnn.stacked_rnn(**given)
        cupyrnn.stacked_rnn(**arguments())
    with pytest.raises(error, match=f"^{re.escape(f'stacked_rnn_backprop: {message}')}$"):
        cupyrnn.stacked_rnn_backprop(**gradients | given)


def test_errors_of_one_direction() -> None:
    message = "stacked_rnn: forget_bias is 1.0, expected None for a GRU"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cupyrnn.stacked_rnn(**small(BlockGRUParams), forget_bias=1.0)


@pytest.mark.parametrize(
    ("arguments", "change", "message"),
    [
        (small, lambda out: {"reserve_space": out.reserve_space[1:]}, "reserve_space has shape (111,), expected (112,), as stacked_rnn returns it for these arguments with is_training=True"),
        (small, lambda out: {"output_backprop": out.output[1:]}, "output_backprop has shape (1, 1, 4), expected (T, B, D*H) = (2, 1, 4)"),
        (small, lambda out: {"output_backprop": out.output[0]}, "output_backprop has shape (1, 4), expected (T, B, D*H) = (2, 1, 4)"),
        (tapered, lambda out: {"output_backprop": np.zeros((T, B, 4))}, "output_backprop has shape (5, 4, 4), expected (T, B, D*H) = (5, 4, 2)"),
        (tapered, lambda out: {"output": np.zeros((T, B, 4))}, "output has shape (5, 4, 4), expected (T, B, D*H) = (5, 4, 2)"),
        (tapered, lambda out: {"output_c_backprop": out.output_c[:1]}, "output_c_backprop has 1 entry, expected L = 2, an array (D, B, H) for each layer"),
        (tapered, lambda out: {"output_h_backprop": H_4}, "output_h_backprop is a numpy.ndarray, expected a list of L = 2 arrays (D, B, H), one for each layer, as H is 2 and 4"),
        (tapered, lambda out: {"output_h": out.output_h[::-1]}, "output_h[0] has shape (1, 4, 2), expected (D, B, H) = (1, 4, 4)"),
        *((tapered, lambda out, n=n: {n: [out.output_h[0], None]}, f"{n}[1] is None, expected a numpy.ndarray like input") for n in ("output_h", "output_c", "output_h_backprop", "output_c_backprop")),
    ],
)  # fmt: skip
def test_errors_of_the_gradient(arguments: Any, change: Any, message: str) -> None:
    given = arguments()
    out = cupyrnn.stacked_rnn(**given)
    given |= {**out._asdict(), "output_backprop": out.output, **change(out)}
    given = dict.fromkeys(("output_h_backprop", "output_c_backprop")) | given
    with pytest.raises(
        (TypeError, ValueError), match=f"^{re.escape(f'stacked_rnn_backprop: {message}')}$"
    ):
        cupyrnn.stacked_rnn_backprop(**given)
