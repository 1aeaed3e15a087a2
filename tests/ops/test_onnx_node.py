"""ONNX's nodes: onnx's own tests, the equations, ONNX Runtime, and conversions of weights."""

from __future__ import annotations

import re
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close
from problems.onnx_nodes import (
    DIRECTIONS,
    INPUTS,
    KINDS,
    node,
    node_tests,
    of_directions,
)

import cupyrnn


def test_onnxs_own_node_tests() -> None:
    cases = [*node_tests()]
    assert len(cases) >= 12
    for name, op_type, attributes, given, expected in cases:
        last = max(n for n, s in enumerate(INPUTS) if s in given)
        inputs = [given.get(s) for s in INPUTS[: last + 1]]
        outputs = cupyrnn.run_onnx_node(op_type, inputs, **attributes)._asdict()
        for n, e in expected.items():
            assert outputs[n].dtype == e.dtype
            assert_close(outputs[n], e, "float32", name)


def test_what_may_be_left_out(rng: np.random.Generator) -> None:
    """Biases, lengths and states; bytes for strings; the widest dtype."""
    inputs = node(rng, "LSTM", 2, 5, 2, 3, 4)
    inputs = [a if a is None else a.astype(np.float32) for a in inputs]
    zeros = [np.zeros_like(inputs[n]) for n in (3, 5, 6, 7)]
    full = [*inputs[:3], zeros[0], np.array([5, 5]), *zeros[1:]]
    expected = cupyrnn.run_onnx_node("LSTM", full, direction="bidirectional")
    names: Any = [b"sigmoid", b"TANH", b"Tanh"] * 2
    direction: Any = b"bidirectional"
    for short in (inputs[:3], [*inputs[:3], None, None, None, None, None]):
        out = cupyrnn.run_onnx_node(
            "LSTM", short, direction=direction, activations=names, activation_alpha=[0.0]
        )
        for a, e in zip(out, expected, strict=True):
            assert a is not None
            assert a.dtype == np.float32
            assert_close(a, e, "float32", "outputs")
    wide = [inputs[0].astype(np.float64), *inputs[1:3]]
    assert cupyrnn.run_onnx_node("LSTM", wide, direction=direction).Y.dtype == np.float64


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("op_type", "more"), KINDS)
def test_the_real_runtime(
    op_type: Any, more: Any, direction: str, rng: np.random.Generator
) -> None:
    """ONNX Runtime in float32, also with lengths; it pads with zeros too."""
    runtime = needs.module("onnxruntime")
    onnx = needs.module("onnx")
    D = 1 + (direction == "bidirectional")
    inputs = node(rng, op_type, D, 6, 4, 3, 5, scale=0.5)
    given = [a if a is None else a.astype(np.float32) for a in inputs]
    given[4] = np.array([2, 6, 1, 5], np.int32)
    if direction == "reverse":
        given = given[:7]  # without peepholes
    attributes = of_directions(more, D) | {"direction": direction, "hidden_size": 5}
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"][: len(given)]
    results = ["Y", "Y_h", "Y_c"][: 3 if op_type == "LSTM" else 2]
    kind, helper = onnx.TensorProto, onnx.helper

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(
            name, kind.INT32 if name == "sequence_lens" else kind.FLOAT, None
        )

    graph = helper.make_graph(
        [helper.make_node(op_type, names, results, **attributes)],
        "one",
        [value(name) for name in names],
        [value(name) for name in results],
    )
    opset = [helper.make_opsetid("", 14)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, dict(zip(names, given, strict=True)))
    out = cupyrnn.run_onnx_node(op_type, given, **attributes)
    for name, a, e in zip(results, out, expected, strict=False):
        assert_close(a, e, "float32", name)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize(("op_type", "more"), [kind for kind in KINDS if "activations" in kind[1]])
def test_packed_weights_say_the_activations(
    op_type: Any, more: Any, direction: str, rng: np.random.Generator
) -> None:
    """The net computes the same as the node, also with hard sigmoids and without B."""
    D = 1 + (direction == "bidirectional")
    more = more | {"linear_before_reset": 1} if op_type == "GRU" else more
    x, W, R, B, *_ = node(rng, op_type, D, 6, 4, 3, 5, scale=1.0)
    attributes = of_directions(more, D)
    for b in (B, None):
        packed = cupyrnn.weights.params_from_onnx(W, R, b, **attributes)
        out = cupyrnn.cudnn_rnn(x, *packed.zero_state(4), packed)
        expected = cupyrnn.run_onnx_node(op_type, [x, W, R, b], direction=direction, **attributes)
        y = np.concatenate(list(expected.Y.transpose(1, 0, 2, 3)), axis=-1)
        assert_close(out.output, y, "float64", "output")
    if packed.rnn_mode in ("lstm", "gru"):
        assert packed.recurrent_activation.startswith("hard_sigmoid")


def zeros(*shapes: tuple[int, ...]) -> list[Any]:
    return [np.zeros(shape) for shape in shapes]


GRU = zeros((4, 2, 3), (1, 6, 3), (1, 6, 2))


def lstm(*more: Any, **attributes: Any) -> Any:
    """Run an LSTM with T, B, I, H = 4, 2, 3, 5."""
    inputs = zeros((4, 2, 3), (1, 20, 3), (1, 20, 5))
    return cupyrnn.run_onnx_node("LSTM", [*inputs, *more], **attributes)


# ruff: noqa: E501 - a case a line
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cupyrnn.run_onnx_node("Elman", []), ValueError, "op_type is 'Elman', expected one of LSTM, GRU, RNN"),
        (lambda: cupyrnn.run_onnx_node("GRU", zeros((1,)) * 7), ValueError, "inputs has 7 entries, expected 3 to 6 for GRU: X, W, R, B, sequence_lens, initial_h"),
        (lambda: cupyrnn.run_onnx_node("GRU", [None] * 3), TypeError, "X is None, expected a numpy.ndarray or cupy.ndarray"),
        (lambda: cupyrnn.run_onnx_node("GRU", np.zeros((3, 3))), TypeError, "inputs is a numpy.ndarray, expected a list of arrays"),
        (lambda: lstm(direction="both"), ValueError, "direction is 'both', expected one of forward, reverse, bidirectional"),
        (lambda: lstm(direction="bidirectional"), ValueError, "R has shape (1, 20, 5), expected (D, 4*H, H) = (2, 20, 5)"),
        (lambda: lstm(hidden_size=4), ValueError, "R has shape (1, 20, 5), expected (D, 4*H, H) with H = hidden_size = 4"),
        (lambda: lstm(layout=2), ValueError, "layout is 2, expected 0 or 1"),
        (lambda: lstm(layout="batch"), TypeError, "layout is 'batch', expected an integer"),
        (lambda: lstm(linear_before_reset=1), ValueError, "linear_before_reset is 1, expected 0 for LSTM"),
        (lambda: lstm(clip=-3.0), ValueError, "clip is -3.0, expected at least 0"),
        (lambda: lstm(clip="3"), TypeError, "clip is '3', expected a real number"),
        (lambda: cupyrnn.run_onnx_node("GRU", GRU, input_forget=1), ValueError, "input_forget is 1, expected 0 for GRU"),
        (lambda: lstm(activations=["HardSigmoid", "Tanh", "Tanh"], activation_alpha=[0.2, 0.2]), ValueError, "activation_alpha has 2 entries, expected at most 1, one for each activation that has alpha: hardsigmoid"),
        (lambda: lstm(activations=["Tanh", "Elu", "Tanh"], activation_alpha=[0.2, 0.3, 0.2]), ValueError, "activation_alpha has 3 entries, expected at most 1, one for each activation that has alpha: elu"),
        (lambda: lstm(activation_alpha="junk"), TypeError, "activation_alpha is a str, expected a list of real numbers"),
        (lambda: lstm(activations="Tanh"), TypeError, "activations is a str, expected a list of strings"),
        (lambda: lstm(activations=["Sigmoid"]), ValueError, "activations has 1 entry, expected 3 for LSTM with D = 1"),
        (lambda: lstm(activations=["Sigmoid", "Tanh", 3]), ValueError, "activations[2] is 3, expected one of Relu, Tanh, Sigmoid, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh, HardSigmoid, Elu, Softsign, Softplus"),
        (lambda: lstm(np.zeros((1, 20))), ValueError, "B has shape (1, 20), expected (D, 8*H) = (1, 40)"),
        (lambda: lstm(None, [4, 5]), ValueError, "sequence_lens[1] is 5, expected in [0, T] = [0, 4]"),
        (lambda: lstm(None, None, np.zeros((2, 1, 5))), ValueError, "initial_h has shape (2, 1, 5), expected (D, B, H) = (1, 2, 5)"),
    ],
)  # fmt: skip
def test_errors_of_nodes(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(f'run_onnx_node: {message}')}$"):
        call()


def test_an_ordinary_nodes_gradient_is_the_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell of any node, which is several times slower, is not used."""
    monkeypatch.setattr(cupyrnn.onnx_node, "kinds", None)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4, 2, 3))
    nodes: tuple[tuple[Any, int, dict[str, Any]], ...] = (
        ("LSTM", 4, {}),
        ("GRU", 3, {"linear_before_reset": 1}),
        ("RNN", 1, {}),
    )
    for op_type, G, attributes in nodes:
        W, R = (rng.standard_normal((1, G * 5, K)) for K in (3, 5))
        out, pullback = cupyrnn.vjp(cupyrnn.run_onnx_node, op_type, [X, W, R], **attributes)
        grads = pullback(Y_grad=np.ones_like(out.Y))
        assert (grads.X_grad.shape, grads.W_grad.shape) == (X.shape, W.shape)
        assert grads.B_grad is grads.initial_h_grad is None
