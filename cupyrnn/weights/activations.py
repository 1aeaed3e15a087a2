"""The activations of an ONNX node: names, parameters and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..arithmetic.gates import RecurrentActivation
from ..checks.attributes import check_count, check_integer, check_list, check_real, shown

DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_NAMES = (
    *("Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh"),
    *("HardSigmoid", "Elu", "Softsign", "Softplus"),
)
# The default alpha and beta of each activation, None if it has no such parameter. They are the
# defaults of ONNX's operators of the same names. ONNX has dropped two of these: Affine had 1 and 0.
# ScaledTanh had no defaults; with 1 and 1 it is Tanh.
PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
}
SLOPES: dict[RecurrentActivation, float] = {"hard_sigmoid_0.2": 0.2, "hard_sigmoid_1/6": 1 / 6}


class Activation(NamedTuple):
    """An activation: its ONNX name in lower case, and its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


def text(value: object) -> object:
    """Decode bytes, which the package onnx uses for strings; return other values unchanged."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def check_flag(op: str, name: str, value: object) -> bool:
    """Return an attribute that is 0 or 1."""
    number = check_integer(op, name, value)
    if number not in (0, 1):
        raise ValueError(f"{op}: {name} is {shown(number)}, expected 0 or 1")
    return bool(number)


def activations_of(
    op: str, cell: str, default: Sequence[str], D: int, attributes: Mapping[str, Any]
) -> tuple[tuple[Activation, ...], ...]:
    """Return the activations of each direction with their parameters."""
    count = len(default) * D
    names = _listed(op, "activations", attributes, "strings") or (*default,) * D
    lower = [_name(op, n, name) for n, name in enumerate(names)]
    if count == 1 and lower == ["tanh", "tanh"]:
        lower = ["tanh"]  # the schema's default of an RNN has two entries for any direction
    expected = f"{count} for {cell} with D = {D}"
    check_count(op, "activations", names, len(lower) == count, expected)
    alphas, betas = (_parameters(op, n, lower, attributes) for n in range(2))
    activations = [Activation(*item) for item in zip(lower, alphas, betas, strict=True)]
    n = len(default)
    return tuple(tuple(activations[d * n : (d + 1) * n]) for d in range(D))


def _listed(op: str, name: str, attributes: Mapping[str, Any], items: str) -> Sequence[Any]:
    """Return an attribute that is a list; empty if it is None."""
    values: Sequence[Any] = () if attributes[name] is None else attributes[name]
    check_list(op, name, values, items)
    return values


def _name(op: str, n: int, name: object) -> str:
    """Return the name of an activation in lower case."""
    name = text(name)
    if not isinstance(name, str) or name.lower() not in map(str.lower, _NAMES):
        raise ValueError(
            f"{op}: activations[{n}] is {shown(name)}, expected one of {', '.join(_NAMES)}"
        )
    return name.lower()


def _parameters(
    op: str, which: int, functions: list[str], attributes: Mapping[str, Any]
) -> list[float]:
    """
    Return alpha (0) or beta (1) of each function.

    The functions that have the parameter consume the values in order. Those left without a value
    have the default. A list with one value for every function is accepted too, if it says the same.
    """
    name = ("alpha", "beta")[which]
    argument = f"activation_{name}"
    listed = _listed(op, argument, attributes, "real numbers")
    values = [check_real(op, f"{argument}[{n}]", value) for n, value in enumerate(listed)]
    defaults = [PARAMETERS.get(function, (None, None))[which] for function in functions]
    takers = [n for n, default in enumerate(defaults) if default is not None]
    consumed = values[: len(takers)]
    if takers and len(values) > len(takers):
        by_place = [values[n] for n in takers] if len(values) == len(functions) else None
        expected = f"at most {len(takers)}, one for each activation that has {name}:"
        expected += f" {', '.join(functions[n] for n in takers)}"
        check_count(op, argument, values, by_place == consumed, expected)
    result = [default or 0.0 for default in defaults]
    for n, value in zip(takers, consumed, strict=False):
        result[n] = value
    return result


def gate_of(function: Activation, tolerance: float) -> RecurrentActivation | None:
    """Return the `recurrent_activation` that computes this function, None if there is none."""
    if function.name == "sigmoid":
        return "sigmoid"
    if function.name == "hardsigmoid" and abs(function.beta - 0.5) <= tolerance:
        for name, slope in SLOPES.items():
            if abs(function.alpha - slope) <= tolerance:
                return name
    return None
