"""ONNX's nodes: the inputs of a node, random nodes with all features, and their results."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import needs
import numpy as np

from cupyrnn.conformance import truth

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
OUTPUTS = ("Y", "Y_h", "Y_c")
DIRECTIONS = ("forward", "reverse", "bidirectional")
NAMES = [
    *["Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh"],
    *["HardSigmoid", "Elu", "Softsign", "Softplus"],
]
# Parameters of each activation, other than the defaults.
OTHERS = {
    "affine": (0.6, 0.1),
    "leakyrelu": (0.15, None),
    "thresholdedrelu": (0.25, None),
    "scaledtanh": (1.2, 0.7),
    "hardsigmoid": (0.3, 0.4),
    "elu": (0.8, None),
}
_SIXTH = {"activation_alpha": [1 / 6], "activation_beta": [0.5]}
_HARD, _HARD_GRU = ({"activations": ["HardSigmoid", *["Tanh"] * n]} for n in (2, 1))
# Attributes of one direction that a fast cell supports.
FAST: dict[str, list[dict[str, Any]]] = {
    "LSTM": [{}, _HARD, _HARD | _SIXTH],
    "GRU": [
        {"linear_before_reset": n} | kind
        for n in (0, 1)
        for kind in ({}, _HARD_GRU, _HARD_GRU | _SIXTH)
    ],
    "RNN": [{}, {"activations": ["Relu"]}],
}
KINDS = [(op_type, kind) for op_type, kinds in FAST.items() for kind in kinds]
SIZES = [(4, 3, 3, 5), (3, 1, 1, 1), (1, 3, 3, 3), (12, 3, 1, 2)]
SIZES += [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)]


def node_tests() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Yield the tests of LSTM, GRU and RNN in the package onnx."""
    onnx = needs.module("onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Making the tests of all nodes takes 15 s, of these three almost nothing.
        made = importlib.import_module("onnx.backend.test.case.node")
        for name in ("lstm", "gru", "rnn"):
            importlib.import_module(f"onnx.backend.test.case.node.{name}")
    for case in made._NodeTestCases:
        (one,) = case.model.graph.node
        if one.op_type in GATES:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in one.attribute}
            for given, expected in case.data_sets:
                arrays = dict(zip((n for n in one.input if n), given, strict=True))
                inputs = {s: arrays[n] for s, n in zip(INPUTS, one.input, strict=False) if n}
                results = (n for n, name in zip(OUTPUTS, one.output, strict=False) if name)
                yield (
                    case.name,
                    one.op_type,
                    attributes,
                    inputs,
                    dict(zip(results, expected, strict=True)),
                )


def node(
    rng: np.random.Generator, op_type: str, D: int, *sizes: int, scale: float = 0.7
) -> list[Any]:
    """Return all inputs of a node in float64, without the lengths."""
    (T, B, I, H), G = sizes or (5, 3, 4, 3), GATES[op_type]
    shapes: list[Any] = [(T, B, I), (D, G * H, I), (D, G * H, H), (D, 2 * G * H)]
    shapes += [(D, B, H)] * (2 if op_type == "LSTM" else 1)
    shapes += [(D, 3 * H)] if op_type == "LSTM" else []
    arrays: list[Any] = [scale * rng.standard_normal(shape) for shape in shapes]
    return [*arrays[:4], None, *arrays[4:]]


def of_directions(attributes: dict[str, Any], D: int) -> dict[str, Any]:
    """Return the attributes of one direction for this many directions."""
    return {n: a * D if isinstance(a, list) else a for n, a in attributes.items()}


def _any_activations(rng: np.random.Generator, op_type: str, D: int) -> dict[str, Any]:
    names = [str(name) for name in rng.choice(NAMES, ACTIVATIONS[op_type] * D)]
    attributes: dict[str, Any] = {"linear_before_reset": int(rng.integers(1 + (op_type == "GRU")))}
    attributes["activations"] = [n.upper() if rng.random() < 0.2 else n for n in names]
    for place, name in enumerate(("activation_alpha", "activation_beta")):
        takers = [n for n in names if OTHERS.get(n.lower(), (None, None))[place] is not None]
        values = [OTHERS[n.lower()][place] for n in takers]
        attributes[name] = values[: int(rng.integers(len(values) + 1))]
    return attributes


def drawn(rng: np.random.Generator, op_type: str) -> tuple[list[Any], dict[str, Any]]:
    """
    Return the inputs and the attributes of a random node of the standard.

    Many are of a fast cell. Past the end of a sequence X is NaN.
    """
    direction = str(rng.choice(DIRECTIONS))
    D = 1 + (direction == "bidirectional")
    T, B, _, H = sizes = SIZES[rng.choice(len(SIZES), p=[0.2] * 3 + [0.08] * 5)]
    if T > 4 or rng.random() < 0.5:  # over many steps unbounded values become too large
        attributes = of_directions(FAST[op_type][rng.integers(len(FAST[op_type]))], D)
    else:
        attributes = _any_activations(rng, op_type, D)
    if rng.random() < 0.2:
        attributes["clip"] = float(rng.choice([0.2, 0.5, 3.0, 0.0]))
    if op_type == "LSTM" and rng.random() < 0.3:
        attributes["input_forget"] = 1
    attributes |= {"direction": direction, "layout": int(rng.integers(2))}
    attributes |= {"hidden_size": H} if rng.random() < 0.5 else {}
    inputs = node(rng, op_type, D, *sizes)
    if rng.random() < 0.5:
        inputs[4] = rng.integers(0, T + 1, B).astype(np.int32)
        inputs[0][np.arange(T)[:, None] >= inputs[4]] = np.nan
    for n in range(3, len(inputs)):
        if rng.random() < 0.3:
            inputs[n] = None
    if inputs[4] is None:
        inputs[0] = np.nan_to_num(inputs[0], nan=0.3)
    if attributes["layout"]:
        inputs = [
            a.swapaxes(0, 1) if n in (0, 5, 6) and a is not None else a
            for n, a in enumerate(inputs)
        ]
    return inputs, attributes


def by_the_text(op_type: str, inputs: list[Any], **attributes: Any) -> list[Any]:
    """Return Y, Y_h and Y_c of a node by the loops of the conformance kit; Y_c may be None."""
    given = {n: a for n, a in zip(INPUTS, inputs, strict=False) if a is not None}
    dtype = np.result_type(np.float64, *(a for n, a in given.items() if n != "sequence_lens"))
    outputs = truth.run(op_type, truth.in_front(given, 1, dtype), attributes).outputs
    return [outputs[n][0] if n in outputs else None for n in OUTPUTS]
