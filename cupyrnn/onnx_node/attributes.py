"""The attributes of an ONNX LSTM, GRU or RNN, checked, and what they say of each direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._arrays import check_choice, check_integer, check_real, counted, shown
from .activations import FUNCTIONS, Activation

DIRECTIONS = ("forward", "reverse", "bidirectional")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
_NAMES = "Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign"
_NAMES += " Softplus"


class Attributes(NamedTuple):
    """The attributes of a node. Those of its own op_type and direction are what they may be."""

    direction: str
    batch_first: bool  # layout
    activations: tuple[tuple[Activation, ...], ...]  # of each direction: f, and g and h
    clip: float | None
    input_forget: bool
    linear_before_reset: bool

    @property
    def D(self) -> int:
        """The number of directions."""
        return len(self.activations)


def check_attributes(op: str, op_type: str, given: dict[str, Any]) -> Attributes:
    """Return a node's attributes, all of them by their names."""
    direction = check_choice(op, "direction", text(given["direction"]), DIRECTIONS)
    flags = {n: _flag(op, n, given[n]) for n in ("linear_before_reset", "input_forget", "layout")}
    for name, only in (("linear_before_reset", "GRU"), ("input_forget", "LSTM")):
        if flags[name] and op_type != only:
            raise ValueError(f"{op}: {name} is 1, expected 0 for {op_type}")
    clip = given["clip"]
    if clip is not None:
        clip = check_real(op, "clip", clip)
        if not clip >= 0:
            raise ValueError(f"{op}: clip is {clip}, expected at least 0")
    return Attributes(
        direction,
        flags["layout"],
        _activations(op, op_type, 1 + (direction == "bidirectional"), given),
        clip,
        flags["input_forget"],
        flags["linear_before_reset"],
    )


def text(value: object) -> object:
    """Return a string; the package onnx has bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _flag(op: str, name: str, value: object) -> bool:
    number = check_integer(op, name, value)
    if number not in (0, 1):
        raise ValueError(f"{op}: {name} is {shown(number)}, expected 0 or 1")
    return bool(number)


def _listed(op: str, name: str, given: dict[str, Any], what: str) -> Sequence[Any]:
    """Return an attribute that is a list, empty where it is left out."""
    value = given[name]
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{op}: {name} is {shown(value)}, expected a list of {what}")
    return value


def _activations(
    op: str, op_type: str, D: int, given: dict[str, Any]
) -> tuple[tuple[Activation, ...], ...]:
    """Return the activations of each direction with their parameters."""
    default = _DEFAULTS[op_type]
    names = _listed(op, "activations", given, "strings") or default * D
    lower = [_name(op, n, name) for n, name in enumerate(names)]
    if op_type == "RNN" and D == 1 and lower == ["tanh", "tanh"]:
        lower = ["tanh"]  # the schema's own default, whatever the direction
    if len(lower) != len(default) * D:
        raise ValueError(
            f"{op}: activations has {counted(len(names), 'entry')}, expected {len(default) * D} for"
            f" {op_type} with D = {D}"
        )
    alphas, betas = (_parameters(op, name, lower, given) for name in ("alpha", "beta"))
    every = [Activation(*item) for item in zip(lower, alphas, betas, strict=True)]
    n = len(default)
    return tuple(tuple(every[d * n : (d + 1) * n]) for d in range(D))


def _name(op: str, n: int, name: Any) -> str:
    """Return the name of an activation in lower case."""
    name = text(name)
    if not isinstance(name, str) or name.lower() not in FUNCTIONS:
        raise ValueError(
            f"{op}: activations[{n}] is {shown(name)}, expected one of {', '.join(_NAMES.split())}"
        )
    return name.lower()


def _parameters(
    op: str, name: str, functions: list[str], attributes: dict[str, Any]
) -> list[float]:
    """
    Return alpha or beta of each function.

    The values are consumed by the functions that have such a parameter, in their order; where
    they come to an end, it has its default. A list with a value for every function is taken too,
    where it says the same.
    """
    argument = f"activation_{name}"
    given = _listed(op, argument, attributes, "real numbers")
    values = [check_real(op, f"{argument}[{n}]", value) for n, value in enumerate(given)]
    defaults = [getattr(FUNCTIONS[function], name) for function in functions]
    takers = [n for n, default in enumerate(defaults) if default is not None]
    consumed = values[: len(takers)]
    if takers and len(values) > len(takers):
        by_place = [values[n] for n in takers] if len(values) == len(functions) else None
        if by_place != consumed:
            raise ValueError(
                f"{op}: {argument} has {counted(len(values), 'entry')}, expected at most"
                f" {len(takers)}, one"
                f" for each activation that has {name}: {', '.join(functions[n] for n in takers)}"
            )
    result = [0.0 if default is None else default for default in defaults]
    for n, value in zip(takers, consumed, strict=False):
        result[n] = value
    return result


def rounds_to(value: float, number: float) -> bool:
    """Whether an attribute is a number, as a float32 has it."""
    return value == number or value == float(np.float32(number))
