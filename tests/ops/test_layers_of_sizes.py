"""stacked_rnn with layers of different H: what the table of the ops does not ask."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from checks import Ops, assert_close
from problems.properties import assert_same_bits
from problems.table import Call, Case, call_of

import cupyrnn
from cupyrnn import PeepholeLSTMParams

T, B, I = 5, 4, 3


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_layers_of_one_size_may_have_lists_too(
    ops: Ops, name: str, rng: np.random.Generator
) -> None:
    """With the same bits as arrays have, and each state as it was given."""
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
    """Return what is a tuple of an array for each layer as one array."""
    return result._make(np.concatenate(a) if type(a) is tuple else a for a in result)


def test_one_p_and_different_h(ops: Ops, rng: np.random.Generator) -> None:
    """Then h may be an array: with projections to one size."""
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
    """By the packed parameters, or as the block op has them where there are peepholes."""
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


def two_layers() -> Call:
    """Return a call of two layers with H = 4 and 2 in one direction."""
    case = Case("stacked_rnn-LSTM", (T, B, I, 4), layers=2, tapered=True, peephole=False)
    return call_of(case, np.random.default_rng(0))


def small(**changed: Any) -> dict[str, Any]:
    return two_layers().inputs | changed


def entry(n: int, **changed: Any) -> list[Any]:
    entries = list(small()["weights"])
    entries[n] = entries[n]._replace(**changed)
    return entries


H_4 = np.zeros((2, B, 4))
ERRORS: list[Any] = [
    ({"input_h": H_4, "input_c": H_4}, ValueError, "input_h is an array, and the layers have H = 2 and 4: pass input_h and input_c as lists of an array (D, B, H) for each layer"),
    ({"input_c": H_4}, ValueError, "input_c is a numpy.ndarray, expected a list of L = 2 arrays (D, B, H), one for each layer, as H is 2 and 4"),
    ({"input_h": small()["input_h"][:1]}, ValueError, "input_h has 1 entry, expected L = 2, an array (D, B, H) for each layer"),
    ({"input_c": small()["input_c"][::-1]}, ValueError, "input_c[0] has shape (1, 4, 2), expected (D, B, H) = (1, 4, 4)"),
    ({"input_h": [a[0] for a in small()["input_h"]]}, ValueError, "input_h[0] has shape (4, 4), expected (D, B, H)"),
    ({"input_h": [small()["input_h"][0], None]}, TypeError, "input_h[1] is None, expected a numpy.ndarray like input"),
    ({"input_h": [small()["input_h"][0], np.zeros((1, B, 2), "f4")]}, TypeError, "input_h[1] has dtype float32, expected float64 like input"),
    ({"input_h": [small()["input_h"][0], np.zeros((1, B, 3))], "input_c": [small()["input_c"][0], np.zeros((1, B, 3))]}, ValueError, "weights[1].w has shape (6, 8), expected (K+H, 4*H) = (7, 12) with K = 4, the output size of layer 0, and H = 3"),
    ({"weights": entry(0, b=np.zeros(8))}, ValueError, "weights[0].b has shape (8,), expected (4*H,) = (16,)"),
]  # fmt: skip
# ruff: noqa: E501 - a case a line


@pytest.mark.parametrize(("changed", "error", "message"), ERRORS)
def test_errors(changed: dict[str, Any], error: Any, message: str) -> None:
    out = cupyrnn.stacked_rnn(**small())
    with pytest.raises(error, match=f"^{re.escape(f'stacked_rnn: {message}')}"):
        cupyrnn.stacked_rnn(**small(**changed))
    given = dict.fromkeys(out._fields) | {"reserve_space": out.reserve_space}
    given |= dict.fromkeys(("output_backprop", "output_h_backprop", "output_c_backprop"))
    with pytest.raises(error, match=f"^{re.escape(f'stacked_rnn_backprop: {message}')}"):
        cupyrnn.stacked_rnn_backprop(**small(**changed), **given)


def test_errors_of_the_gradient() -> None:
    out = cupyrnn.stacked_rnn(**small())
    given = {**small(), **out._asdict(), "output_backprop": out.output}
    given |= {"output_h_backprop": None, "output_c_backprop": None}
    for changed, message in (
        ({"output_backprop": np.zeros((T, B, 4))}, "output_backprop has shape (5, 4, 4), expected (T, B, D*H) = (5, 4, 2)"),
        ({"output": np.zeros((T, B, 4))}, "output has shape (5, 4, 4), expected (T, B, D*H) = (5, 4, 2)"),
        ({"output_c_backprop": out.output_c[:1]}, "output_c_backprop has 1 entry, expected L = 2, an array (D, B, H) for each layer"),
        ({"output_h_backprop": H_4}, "output_h_backprop is a numpy.ndarray, expected a list of L = 2 arrays (D, B, H), one for each layer, as H is 2 and 4"),
        ({"output_h": out.output_h[::-1]}, "output_h[0] has shape (1, 4, 2), expected (D, B, H) = (1, 4, 4)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{re.escape(f'stacked_rnn_backprop: {message}')}$"):
            cupyrnn.stacked_rnn_backprop(**{**given, **changed})


@pytest.mark.parametrize("name", ["output_h", "output_c", "output_h_backprop", "output_c_backprop"])
def test_a_layer_without_its_array(name: str) -> None:
    """Of what may be None as a whole."""
    out = cupyrnn.stacked_rnn(**small())
    given = {**small(), **out._asdict(), "output_backprop": out.output}
    given |= {"output_h_backprop": out.output_h, "output_c_backprop": out.output_c}
    given[name] = [given[name][0], None]
    message = rf"^stacked_rnn_backprop: {name}\[1\] is None, expected a numpy.ndarray like input$"
    with pytest.raises(TypeError, match=message):
        cupyrnn.stacked_rnn_backprop(**given)
