"""The attributes of an ONNX node that weights depend on: its activations."""

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
# alpha and beta of those that have them, where they are left out: those of ONNX's operators of the
# same names. There is no operator Affine or ScaledTanh any more: Affine had 1 and 0, and ScaledTanh
# none; with 1 and 1 it is Tanh.
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
    """A function by the lower-case name of the standard, with its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


def text(value: object) -> object:
    """Return a string; the package onnx has bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def check_flag(op: str, name: str, value: object) -> bool:
    """Return an attribute that is 0 or 1."""
    number = check_integer(op, name, value)
    if number not in (0, 1):
        raise ValueError(f"{op}: {name} is {shown(number)}, expected 0 or 1")
    return bool(number)


def activations_of(
    op: str, cell: str, default: Sequence[str], D: int, given: Mapping[str, Any]
) -> tuple[tuple[Activation, ...], ...]:
    """Return the activations of each direction with their parameters."""
    count = len(default) * D
    names = _listed(op, "activations", given, "strings") or (*default,) * D
    lower = [_name(op, n, name) for n, name in enumerate(names)]
    if count == 1 and lower == ["tanh", "tanh"]:
        lower = ["tanh"]  # the schema's own default of an RNN, whatever the direction
    expected = f"{count} for {cell} with D = {D}"
    check_count(op, "activations", names, len(lower) == count, expected)
    alphas, betas = (_parameters(op, n, lower, given) for n in range(2))
    every = [Activation(*item) for item in zip(lower, alphas, betas, strict=True)]
    n = len(default)
    return tuple(tuple(every[d * n : (d + 1) * n]) for d in range(D))


def _listed(op: str, name: str, given: Mapping[str, Any], what: str) -> Sequence[Any]:
    """Return an attribute that is a list, empty where it is left out."""
    value = () if given[name] is None else given[name]
    check_list(op, name, value, what)
    values: Sequence[Any] = value
    return values


def _name(op: str, n: int, name: Any) -> str:
    """Return the name of an activation in lower case."""
    name = text(name)
    if not isinstance(name, str) or name.lower() not in map(str.lower, _NAMES):
        raise ValueError(
            f"{op}: activations[{n}] is {shown(name)}, expected one of {', '.join(_NAMES)}"
        )
    return name.lower()


def _parameters(op: str, which: int, functions: list[str], given: Mapping[str, Any]) -> list[float]:
    """
    Return alpha (0) or beta (1) of each function.

    The values are consumed by the functions that have such a parameter, in their order; where
    they come to an end, it has its default. A list with a value for every function is taken too,
    where it says the same.
    """
    name = ("alpha", "beta")[which]
    argument = f"activation_{name}"
    listed = _listed(op, argument, given, "real numbers")
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


def gate_of(function: Activation, within: float) -> RecurrentActivation | None:
    """Return the name that the ops have for the activation of gates, None where they have none."""
    if function.name == "sigmoid":
        return "sigmoid"
    if function.name == "hardsigmoid" and abs(function.beta - 0.5) <= within:
        for name, slope in SLOPES.items():
            if abs(function.alpha - slope) <= within:
                return name
    return None
