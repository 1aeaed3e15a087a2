"""All of ONNX's LSTM, GRU and RNN: every attribute, and the gradients, by the text of the standard."""

from __future__ import annotations

import itertools
import re
from typing import Any

import needs
import numpy as np
import onnx_by_the_text
import pytest
from checks import TANGENT, assert_close, assert_gradients

import cupyrnn
from cupyrnn import onnx_node
from cupyrnn.onnx_node.activations import FUNCTIONS, activate
from cupyrnn.weights.activations import PARAMETERS, Activation

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
NAMES = [
    "Relu",
    "Tanh",
    "Sigmoid",
    "Affine",
    "LeakyRelu",
    "ThresholdedRelu",
    "ScaledTanh",
    "HardSigmoid",
    "Elu",
    "Softsign",
    "Softplus",
]
# Of the parameters that each has, others than the defaults.
OTHERS = {
    "affine": (0.6, 0.1),
    "leakyrelu": (0.15, None),
    "thresholdedrelu": (0.25, None),
    "scaledtanh": (1.2, 0.7),
    "hardsigmoid": (0.3, 0.4),
    "elu": (0.8, None),
}


def node(
    rng: np.random.Generator, op_type: str, D: int, *sizes: int, scale: float = 0.7
) -> list[Any]:
    """Return all inputs of a node but the lengths, in float64."""
    (T, B, I, H), G = sizes or (5, 3, 4, 3), GATES[op_type]
    shapes: list[Any] = [(T, B, I), (D, G * H, I), (D, G * H, H), (D, 2 * G * H)]
    shapes += [(D, B, H)] * (2 if op_type == "LSTM" else 1)
    shapes += [(D, 3 * H)] if op_type == "LSTM" else []
    arrays: list[Any] = [scale * rng.standard_normal(shape) for shape in shapes]
    return [*arrays[:4], None, *arrays[4:]]


def drawn(rng: np.random.Generator, op_type: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the inputs and the attributes of a node with anything that the standard has."""
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    D = 1 + (direction == "bidirectional")
    attributes: dict[str, Any] = {"direction": direction, "layout": int(rng.integers(2))}
    if rng.random() < 0.8:
        names = [str(name) for name in rng.choice(NAMES, ACTIVATIONS[op_type] * D)]
        attributes["activations"] = names
        for place, name in enumerate(("activation_alpha", "activation_beta")):
            takers = [n for n in names if OTHERS.get(n.lower(), (None, None))[place] is not None]
            values = [OTHERS[n.lower()][place] for n in takers]
            attributes[name] = values[: int(rng.integers(len(values) + 1))]
    if rng.random() < 0.4:
        attributes["clip"] = float(rng.choice([0.2, 0.5, 3.0, 0.0]))
    if op_type == "GRU":
        attributes["linear_before_reset"] = int(rng.integers(2))
    if op_type == "LSTM":
        attributes["input_forget"] = int(rng.integers(2))
    T, B = int(rng.choice([1, 3, 4])), int(rng.choice([1, 3]))
    inputs = node(rng, op_type, D, T, B, int(rng.choice([1, 3])), int(rng.choice([1, 3, 5])))
    if rng.random() < 0.5:
        inputs[4] = rng.integers(0, T + 1, B).astype(np.int32)
    for n in range(3, len(inputs)):
        if rng.random() < 0.3:
            inputs[n] = None
    if attributes["layout"]:
        inputs = [
            a.swapaxes(0, 1) if n in (0, 5, 6) and a is not None else a
            for n, a in enumerate(inputs)
        ]
    return inputs, attributes


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("op_type", GATES)
def test_any_node_by_the_text(op_type: Any, seed: int) -> None:
    rng = np.random.default_rng([seed, len(op_type), GATES[op_type]])
    inputs, attributes = drawn(rng, op_type)
    before = [None if a is None else a.copy() for a in inputs]
    out = cupyrnn.run_onnx_node(op_type, inputs, **attributes)
    for a, e in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(a, e)
    expected = onnx_by_the_text.run(op_type, inputs, **attributes)
    for name, a, e in zip(out._fields, out, expected, strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            assert a.flags.c_contiguous
            assert_close(a, e, "float64", name)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op_type", GATES)
def test_each_activation_in_each_place(
    op_type: Any, name: str, place: int, given: bool, rng: np.random.Generator
) -> None:
    """With its parameters, and with their defaults."""
    if place >= ACTIVATIONS[op_type]:
        return
    names = ["Sigmoid", "Tanh", "Tanh"][: ACTIVATIONS[op_type]]
    names[place] = name.upper()
    attributes: dict[str, Any] = {"activations": names}
    alpha, beta = OTHERS.get(name.lower(), (None, None))
    if given and alpha is not None:
        attributes["activation_alpha"] = [alpha]
    if given and beta is not None:
        attributes["activation_beta"] = [beta]
    inputs = node(rng, op_type, 1)
    out = cupyrnn.run_onnx_node(op_type, inputs, **attributes)
    expected = onnx_by_the_text.run(op_type, inputs, **attributes)
    for a, e in zip(out, expected, strict=True):
        if a is not None:
            assert_close(a, e, "float64", name)


def test_alpha_and_beta_are_consumed_in_order(rng: np.random.Generator) -> None:
    """By those that have them, and then by their defaults; a value for every function is read so."""
    inputs = node(rng, "LSTM", 2)
    names = ["HardSigmoid", "Tanh", "Elu", "Sigmoid", "LeakyRelu", "Affine"]
    shared: dict[str, Any] = {"direction": "bidirectional", "activations": names}
    out = cupyrnn.run_onnx_node("LSTM", inputs, **shared, activation_alpha=[0.3, 0.7])
    full: dict[str, Any] = {"activation_alpha": [0.3, 0.7, 0.01, 1], "activation_beta": [0.5, 0]}
    expected = cupyrnn.run_onnx_node("LSTM", inputs, **shared, **full)
    for a, e in zip(out, expected, strict=True):
        np.testing.assert_array_equal(a, e)
    names = ["HardSigmoid", "Tanh", "Tanh"]
    inputs = node(rng, "LSTM", 1)
    of_each = cupyrnn.run_onnx_node(
        "LSTM", inputs, activations=names, activation_alpha=[0.3, 0, 0], activation_beta=[0.4, 0, 0]
    )
    expected = cupyrnn.run_onnx_node(
        "LSTM", inputs, activations=names, activation_alpha=[0.3], activation_beta=[0.4]
    )
    np.testing.assert_array_equal(of_each.Y, expected.Y)


def test_a_fast_cell_runs_where_it_fits(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it computes is what the general one does."""
    general = onnx_node._general
    hard: dict[str, Any] = {"activations": ["HardSigmoid", "Tanh", "Tanh"]}
    sixth = {"activation_alpha": [1 / 6], "activation_beta": [0.5]}
    single = {"activation_alpha": [float(np.float32(0.2))]}
    for op_type, attributes in (
        ("LSTM", {}), ("LSTM", hard), ("LSTM", hard | sixth), ("GRU", {}),
        ("GRU", {"linear_before_reset": 1}), ("RNN", {}), ("RNN", {"activations": ["relu"]}),
        ("RNN", {"activations": ["Tanh", "Tanh"]}),
    ):  # fmt: skip
        inputs = node(rng, op_type, 1)
        with monkeypatch.context() as patch:
            patch.setattr(onnx_node, "_general", None)
            out = cupyrnn.run_onnx_node(op_type, inputs, **attributes)
        monkeypatch.setattr(onnx_node, "_fast", lambda call: None)
        expected = cupyrnn.run_onnx_node(op_type, inputs, **attributes)
        monkeypatch.undo()
        for a, e in zip(out, expected, strict=True):
            if a is not None:
                assert_close(a, e, "float64", f"{op_type} {attributes}")
    calls = []
    monkeypatch.setattr(onnx_node, "_general", lambda call: calls.append(1) or general(call))
    inputs = node(rng, "LSTM", 1)
    # In float64 the float32 of 0.2 is another number.
    cupyrnn.run_onnx_node("LSTM", inputs, **hard, **single)
    assert len(calls) == 1
    half = [a if a is None else a.astype(np.float32) for a in inputs]
    cupyrnn.run_onnx_node("LSTM", half, **hard, **single)
    assert len(calls) == 1
    for beta in (0.4, 0.5000001):  # which no fast cell has
        out = cupyrnn.run_onnx_node("LSTM", inputs, **hard, activation_beta=[beta])
        expected = onnx_by_the_text.run("LSTM", inputs, **hard, activation_beta=[beta])
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
    """Of any node, through the loop of the text: nothing of the package but the gradient."""
    inputs, attributes = drawn(np.random.default_rng([seed, 7, GATES[op_type]]), op_type)
    names = ["X", "W", "R", "B", "lengths", "initial_h", "initial_c", "P"][: len(inputs)]
    given = {n: a for n, a in zip(names, inputs, strict=True) if a is not None}
    lengths = given.pop("lengths", None)
    out = [a for a in cupyrnn.run_onnx_node(op_type, inputs, **attributes) if a is not None]
    cotangents = [rng.standard_normal(a.shape) for a in out]

    def forward(**arrays: Any) -> Any:
        arrays["lengths"] = lengths
        outputs = onnx_by_the_text.run(op_type, [arrays.get(n) for n in names], **attributes)
        return [a for a in outputs if a is not None]

    grads = onnx_node.onnx_node_gradients(op_type, inputs, *cotangents, **attributes)._asdict()
    found = {n.removesuffix("_grad"): a for n, a in grads.items() if a is not None}
    assert found.keys() == given.keys()
    for name, a in found.items():
        assert a.shape == given[name].shape
    assert_gradients(forward, given, cotangents, found, rng)


def test_gradients_of_some_outputs(rng: np.random.Generator) -> None:
    """What is left out is zero."""
    inputs = node(rng, "LSTM", 2)
    attributes: dict[str, Any] = {"direction": "bidirectional", "input_forget": 1}
    out = cupyrnn.run_onnx_node("LSTM", inputs, **attributes)
    zeros = [np.zeros_like(a) for a in out if a is not None]
    for n, name in enumerate(("Y_grad", "Y_h_grad", "Y_c_grad")):
        some: Any = {name: np.ones_like(zeros[n])}
        every: list[Any] = [*zeros[:n], some[name], *zeros[n + 1 :]]
        a = onnx_node.onnx_node_gradients("LSTM", inputs, **some, **attributes)
        e = onnx_node.onnx_node_gradients("LSTM", inputs, *every, **attributes)
        for x, y in zip(a, e, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("op_type", GATES)
def test_jvp_of_nodes_and_of_their_gradients(op_type: Any, seed: int) -> None:
    """Along X and all weights: complex step through the loop, and central differences."""
    rng = np.random.default_rng([seed, 11, GATES[op_type]])
    inputs, attributes = drawn(rng, op_type)
    lengths = inputs[4]
    places = [n for n, a in enumerate(inputs) if a is not None and n != 4]
    primals = tuple(inputs[n] for n in places)
    tangents = tuple(rng.standard_normal(a.shape) for a in primals)

    def placed(arrays: Any) -> list[Any]:
        every = dict(zip(places, arrays, strict=True)) | {4: lengths}
        return [every.get(n) for n in range(len(inputs))]

    def run(*arrays: Any) -> Any:
        return cupyrnn.run_onnx_node(op_type, placed(arrays), **attributes)

    values, along = cupyrnn.jvp(run, primals, tangents)
    moved = [a + 1e-100j * t for a, t in zip(primals, tangents, strict=True)]
    expected = onnx_by_the_text.run(op_type, placed(moved), **attributes)
    for value, tangent, e in zip(values, along, expected, strict=True):
        if e is not None:
            assert_close(value, e.real, "float64", "value")
            assert_close(tangent, e.imag / 1e-100, "float64", "tangent", at_least=1)
    ones = np.ones(values.Y.shape)

    def gradient(*arrays: Any) -> Any:
        return onnx_node.onnx_node_gradients(op_type, placed(arrays), ones, **attributes)

    _, along = cupyrnn.jvp(gradient, primals, tangents)
    step = 1e-6
    sides = (
        gradient(*(a + s * step * t for a, t in zip(primals, tangents, strict=True)))
        for s in (1, -1)
    )
    for plus, minus, tangent in zip(*sides, along, strict=True):
        if plus is not None:
            slope = (plus - minus) / (2 * step)
            # Where a corner lies within the step, the two sides differ.
            close = np.abs(tangent - slope) <= 1e-6 * (1 + np.abs(slope).max(initial=0))
            assert close.mean() > 0.97 if close.size else True


def test_parameters_that_no_activation_has(rng: np.random.Generator) -> None:
    """They are ignored, as by ONNX Runtime: exporters write them."""
    inputs = node(rng, "RNN", 1)
    given = cupyrnn.run_onnx_node("RNN", inputs, activation_alpha=[0.3, 0.2], activation_beta=[1.0])
    np.testing.assert_array_equal(given.Y, cupyrnn.run_onnx_node("RNN", inputs).Y)


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
    if clip is not None:  # the slope is the one of what is clipped
        assert not activate(np, a, clip, np.array([-clip, clip]))[1].any()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_far_values_and_nan(name: str) -> None:
    """No overflow where the value has none, and NaN stays."""
    a = with_defaults(name)
    x = np.array([-1e4, 1e4, np.nan, -np.inf, np.inf])
    with np.errstate(all="ignore"):
        value, slope = activate(np, a, None, x)
    assert np.isfinite(value[:2]).all()
    assert np.isfinite(slope[:2]).all()
    assert np.isnan(value[2])
    with np.errstate(all="ignore"):
        bounded, _ = activate(np, a, 2.0, x)
        expected, _ = activate(np, a, None, np.array([-2.0, 2.0]))
    np.testing.assert_array_equal(bounded[[0, 1, 3, 4]], expected[[0, 1, 0, 1]])
    assert np.isnan(bounded[2])


@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)])
@pytest.mark.parametrize("more", [{}, {"clip": 1.0}])
@pytest.mark.parametrize("op_type", GATES)
def test_sizes_of_zero(op_type: Any, more: Any, sizes: Any, rng: np.random.Generator) -> None:
    inputs = node(rng, op_type, 1, *sizes)
    out = cupyrnn.run_onnx_node(op_type, inputs, **more)
    expected = onnx_by_the_text.run(op_type, inputs, **more)
    grads = onnx_node.onnx_node_gradients(op_type, inputs, out.Y, **more)
    for a, e in zip(out, expected, strict=True):
        if a is not None:
            assert_close(a, e, "float64", "outputs")
    for n, a in zip((0, 1, 2, 3, 5, 6, 7), grads, strict=True):
        assert a is None if n >= len(inputs) else a.shape == inputs[n].shape


@pytest.mark.parametrize("op_type", GATES)
def test_what_is_past_the_end_is_not_read(op_type: Any, rng: np.random.Generator) -> None:
    inputs = node(rng, op_type, 2)
    inputs[4] = np.array([2, 0, 5])
    attributes: dict[str, Any] = {"direction": "bidirectional", "clip": 0.8}
    ones = np.ones((5, 2, 3, 3))
    expected = onnx_node.onnx_node_gradients(op_type, inputs, ones, **attributes)
    outputs = cupyrnn.run_onnx_node(op_type, inputs, **attributes)
    inputs[0] = inputs[0].copy()
    inputs[0][2:, 0] = inputs[0][:, 1] = np.nan
    grads = onnx_node.onnx_node_gradients(op_type, inputs, ones, **attributes)
    again = cupyrnn.run_onnx_node(op_type, inputs, **attributes)
    for a, e in zip(grads + again, expected + outputs, strict=True):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize(
    "fixture",
    [
        pytest.param("cupy_on_cpu", marks=pytest.mark.cuda_on_cpu),
        pytest.param("cupy_on_gpu", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("op_type", GATES)
def test_on_a_device(request: pytest.FixtureRequest, fixture: str, op_type: Any) -> None:
    cupy = request.getfixturevalue(fixture)
    for seed in range(12):
        inputs, attributes = drawn(np.random.default_rng([seed, 5, GATES[op_type]]), op_type)
        device = [a if a is None or n == 4 else cupy.asarray(a) for n, a in enumerate(inputs)]
        out = cupyrnn.run_onnx_node(op_type, device, **attributes)
        expected = cupyrnn.run_onnx_node(op_type, inputs, **attributes)
        given = [a for a in out if a is not None]
        grads = onnx_node.onnx_node_gradients(op_type, device, *given, **attributes)
        given = [a for a in expected if a is not None]
        exact = onnx_node.onnx_node_gradients(op_type, inputs, *given, **attributes)
        for a, e in itertools.chain(
            zip(out, expected, strict=True), zip(grads, exact, strict=True)
        ):
            if a is not None:
                assert type(a) is cupy.ndarray
                assert_close(cupy.asnumpy(a), e, "float64", f"{attributes}", at_least=1)


# ruff: noqa: E501 - a case a line
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"Y_grad": np.zeros((5, 1, 3, 2))}, ValueError, "Y_grad has shape (5, 1, 3, 2), expected (T, D, B, H) = (5, 1, 3, 3)"),
        ({"Y_h_grad": np.zeros((3, 1, 2))}, ValueError, "Y_h_grad has shape (3, 1, 2), expected (D, B, H) = (1, 3, 3)"),
        ({"Y_c_grad": np.zeros((1, 3, 3))}, ValueError, "Y_c_grad is given, expected None: GRU has no Y_c"),
        ({"Y_grad": [1.0]}, TypeError, "Y_grad is a list, expected a numpy.ndarray like X"),
        ({"Y_grad": np.zeros((5, 1, 3, 3), np.float32)}, TypeError, "Y_grad has dtype float32, expected float64 like X"),
    ],
)  # fmt: skip
def test_errors_of_gradients(
    given: Any, error: Any, message: str, rng: np.random.Generator
) -> None:
    with pytest.raises(error, match=f"^{re.escape(f'run_onnx_node: {message}')}$"):
        onnx_node.onnx_node_gradients("GRU", node(rng, "GRU", 1), **given)
