"""ONNX's LSTM, GRU and RNN: every attribute and the gradients, as the standard says."""

from __future__ import annotations

import re
from typing import Any

import needs
import numpy as np
import pytest
from checks import TANGENT, assert_close, assert_gradients
from problems.onnx_nodes import (
    ACTIVATIONS,
    GATES,
    INPUTS,
    KINDS,
    OTHERS,
    by_the_text,
    drawn,
    node,
)
from problems.properties import assert_same_bits

import cupyrnn
from cupyrnn import onnx_node
from cupyrnn.onnx_node.activations import FUNCTIONS, activate
from cupyrnn.weights.activations import PARAMETERS, Activation


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("op_type", GATES)
def test_any_node_by_the_text(op_type: Any, seed: int) -> None:
    rng = np.random.default_rng([seed, len(op_type), GATES[op_type]])
    inputs, attributes = drawn(rng, op_type)
    before = [None if a is None else a.copy() for a in inputs]
    out = cupyrnn.run_onnx_node(op_type, inputs, **attributes)
    assert_same_bits(inputs, before)
    expected = by_the_text(op_type, inputs, **attributes)
    for name, a, e in zip(out._fields, out, expected, strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            assert a.flags.c_contiguous
            assert_close(a, e, "float64", name)


def test_a_fast_cell_runs_where_it_fits(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results equal those of the cell of any node."""
    kinds = onnx_node.kinds
    hard: dict[str, Any] = {"activations": ["HardSigmoid", "Tanh", "Tanh"]}
    single = {"activation_alpha": [float(np.float32(0.2))]}
    for op_type, attributes in (*KINDS, ("RNN", {"activations": ["Tanh", "Tanh"]})):
        inputs = node(rng, op_type, 1)
        with monkeypatch.context() as patch:
            patch.setattr(onnx_node, "kinds", None)
            out = cupyrnn.run_onnx_node(op_type, inputs, **attributes)
        monkeypatch.setattr(onnx_node, "_fast", lambda call: None)
        expected = cupyrnn.run_onnx_node(op_type, inputs, **attributes)
        monkeypatch.undo()
        for a, e in zip(out, expected, strict=True):
            if a is not None:
                assert_close(a, e, "float64", f"{op_type} {attributes}")
    calls = []
    monkeypatch.setattr(onnx_node, "kinds", lambda *of: calls.append(1) or kinds(*of))
    inputs = node(rng, "LSTM", 1)
    # The float32 number 0.2 is another number in float64.
    cupyrnn.run_onnx_node("LSTM", inputs, **hard, **single)
    assert len(calls) == 1
    half = [a if a is None else a.astype(np.float32) for a in inputs]
    cupyrnn.run_onnx_node("LSTM", half, **hard, **single)
    assert len(calls) == 1
    for beta in (0.4, 0.5000001):  # no fast cell supports it
        out = cupyrnn.run_onnx_node("LSTM", inputs, **hard, activation_beta=[beta])
        expected = by_the_text("LSTM", inputs, **hard, activation_beta=[beta])
        assert_close(out.Y, expected[0], "float64", "Y")
    assert len(calls) == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op_type", GATES)
def test_other_dtypes(op_type: Any, dtype: str, rng: np.random.Generator) -> None:
    """Same dtype out; the halves are computed in float32."""
    if dtype == "bfloat16":
        kind: Any = needs.module("ml_dtypes").bfloat16
    else:
        kind = np.dtype(dtype)
    names = ["HardSigmoid", "Elu", "Softsign"][: ACTIVATIONS[op_type]]
    attributes: dict[str, Any] = {"activations": names, "clip": 1.5}
    inputs = [a if a is None else a.astype(kind) for a in node(rng, op_type, 1)]
    out = cupyrnn.run_onnx_node(op_type, inputs, **attributes)
    wide = [a if a is None else a.astype(np.float64) for a in inputs]
    expected = cupyrnn.run_onnx_node(op_type, wide, **attributes)
    ones = np.ones_like(out.Y)
    grads = onnx_node.onnx_node_gradients(op_type, inputs, ones, **attributes)
    exact = onnx_node.onnx_node_gradients(op_type, wide, np.ones(ones.shape), **attributes)
    for name, a, e in zip(out._fields + grads._fields, out + grads, expected + exact, strict=True):
        if a is not None:
            assert a.dtype == kind
            # Gradients of float32 are sums of many terms.
            assert_close(a, e, dtype, name, at_least=1)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("op_type", GATES)
def test_gradients_by_complex_step(op_type: Any, seed: int, rng: np.random.Generator) -> None:
    """Any node, by complex step through the kit's loop; only the gradient is the package's."""
    inputs, attributes = drawn(np.random.default_rng([seed, 7, GATES[op_type]]), op_type)
    names = INPUTS[: len(inputs)]
    given = {n: a for n, a in zip(names, inputs, strict=True) if a is not None}
    lengths = given.pop("sequence_lens", None)
    out = [a for a in cupyrnn.run_onnx_node(op_type, inputs, **attributes) if a is not None]
    cotangents = [rng.standard_normal(a.shape) for a in out]

    def forward(**arrays: Any) -> Any:
        arrays["sequence_lens"] = lengths
        outputs = by_the_text(op_type, [arrays.get(n) for n in names], **attributes)
        return [a for a in outputs if a is not None]

    grads = onnx_node.onnx_node_gradients(op_type, inputs, *cotangents, **attributes)._asdict()
    found = {n.removesuffix("_grad"): a for n, a in grads.items() if a is not None}
    assert found.keys() == given.keys()
    for name, a in found.items():
        assert a.shape == given[name].shape
    assert_gradients(forward, given, cotangents, found, rng)


def with_defaults(name: str) -> Activation:
    alpha, beta = PARAMETERS.get(name, (None, None))
    return Activation(name, alpha or 0.0, beta or 0.0)


def with_others(name: str) -> Activation:
    alpha, beta = OTHERS.get(name, (None, None))
    return Activation(name, alpha or 0.0, beta or 0.0)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("a", [f(name) for f in (with_defaults, with_others) for name in FUNCTIONS])
def test_slopes_and_curvatures(a: Activation, clip: float | None) -> None:
    x = np.array([-30.0, -2.6, -1.3, -0.51, -0.2, -1e-9, 1e-9, 0.2, 0.49, 0.51, 1.7, 2.6, 30.0])
    with np.errstate(all="ignore"):
        value, slope = activate(np, a, clip, x + 1j * TANGENT)
        real = activate(np, a, clip, x)
        step = 1e-6
        sides = [activate(np, a, clip, x + s * step) for s in (1, -1)]
    np.testing.assert_array_equal(value.real, real[0])
    np.testing.assert_array_equal(slope.real, real[1])
    (up, slope_up), (down, slope_down) = sides
    safe = np.abs(x) > 1e-6  # away from the corner
    for tangent, difference in ((value, up - down), (slope, slope_up - slope_down)):
        expected = difference / (2 * step)
        np.testing.assert_allclose(tangent.imag[safe] / TANGENT, expected[safe], atol=2e-8)
    if clip is not None:  # the slope belongs to the clipped value
        assert not activate(np, a, clip, np.array([-clip, clip]))[1].any()


# The stand-in for a GPU computes in NumPy, which warns if a number is too large.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("op_type", GATES)
def test_on_a_device(each_cupy: Any, op_type: Any) -> None:
    lengths, names = np.array([1, 5, 3], np.int32), ["Tanh", "Softsign", "Elu"]
    more: dict[str, Any] = {"linear_before_reset": 1} if op_type == "GRU" else {}
    ragged = node(np.random.default_rng(0), op_type, 1)
    ragged[4] = lengths
    nodes = [(ragged, {"activations": names[: ACTIVATIONS[op_type]]} | more)]
    for seed in range(20):
        nodes.append(drawn(np.random.default_rng([seed, 5, GATES[op_type]]), op_type))
    for inputs, attributes in nodes:
        device = [a if a is None or n == 4 else each_cupy.asarray(a) for n, a in enumerate(inputs)]
        found = []
        for given in (device, inputs):
            out = cupyrnn.run_onnx_node(op_type, given, **attributes)
            outputs = [a for a in out if a is not None]
            grads = onnx_node.onnx_node_gradients(op_type, given, *outputs, **attributes)
            found.append((*out, *grads))
        for a, e in zip(*found, strict=True):
            if a is not None:
                assert type(a) is each_cupy.ndarray
                assert_close(each_cupy.asnumpy(a), e, "float64", f"{attributes}", at_least=1)


# ruff: noqa: E501 - a case a line
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"Y_grad": np.zeros((5, 1, 3, 2))}, ValueError, "Y_grad has shape (5, 1, 3, 2), expected (T, D, B, H) = (5, 1, 3, 3)"),
        ({"Y_h_grad": np.zeros((3, 1, 2))}, ValueError, "Y_h_grad has shape (3, 1, 2), expected (D, B, H) = (1, 3, 3)"),
        ({"Y_c_grad": np.zeros((1, 3, 3))}, ValueError, "Y_c_grad is an array, expected None: GRU has no Y_c"),
        ({"Y_grad": [1.0]}, TypeError, "Y_grad is a list, expected a numpy.ndarray like X"),
        ({"Y_grad": np.zeros((5, 1, 3, 3), np.float32)}, TypeError, "Y_grad has dtype float32, expected float64 like X"),
    ],
)  # fmt: skip
def test_errors_of_gradients(
    given: Any, error: Any, message: str, rng: np.random.Generator
) -> None:
    with pytest.raises(error, match=f"^{re.escape(f'run_onnx_node: {message}')}$"):
        onnx_node.onnx_node_gradients("GRU", node(rng, "GRU", 1), **given)
