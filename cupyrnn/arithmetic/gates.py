"""
The activation of the gates: the sigmoid, or a hard sigmoid (a line clipped to [0, 1]).

::

    gate = sigmoid(z)                      its slope = gate*(1-gate)
    gate = clip(slope*z + offset, 0, 1)    its slope = slope where 0 < gate < 1, else 0

So both slopes follow from the saved gates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from .._typing import Array, NamedTuple
from ..checks.attributes import check_choice
from .dual import arithmetic_of

RecurrentActivation: TypeAlias = Literal["sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"]


class HardSigmoid(NamedTuple):
    """clip(slope*z + offset, 0, 1)."""

    slope: float
    offset: float


_ACTIVATIONS = {
    "sigmoid": None,
    "hard_sigmoid_0.2": HardSigmoid(0.2, 0.5),
    "hard_sigmoid_1/6": HardSigmoid(1 / 6, 0.5),
}


def check_gate(op: str, recurrent_activation: object) -> HardSigmoid | None:
    """Return the activation of the gates by its name, None for the sigmoid."""
    if isinstance(recurrent_activation, str) and recurrent_activation == "hard_sigmoid":
        raise ValueError(
            f"{op}: recurrent_activation is 'hard_sigmoid', which has two meanings, expected"
            " hard_sigmoid_0.2 (Keras 1 and 2, TensorFlow 1, ONNX) or hard_sigmoid_1/6 (Keras 3,"
            " PyTorch)"
        )
    choices = tuple(_ACTIVATIONS)
    return _ACTIVATIONS[check_choice(op, "recurrent_activation", recurrent_activation, choices)]


@functools.lru_cache(maxsize=64)
def unity_of(dtype: np.dtype[Any]) -> Array:
    """Return 1 as a cached array: ufuncs are faster with it than with a Python number."""
    return np.array(1, dtype)


@functools.lru_cache(maxsize=64)
def bounds_of(clip: float, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return -clip and clip as cached arrays."""
    return np.array(-clip, dtype), np.array(clip, dtype)


@functools.lru_cache(maxsize=64)
def gate_of(
    gate: HardSigmoid | None, dtype: np.dtype[Any]
) -> tuple[Callable[..., Any], Array, Callable[..., Any]]:
    """
    Return (inner, shift, outer): a gate is outer(inner(z) + shift), z its negated pre-activation.

    The sigmoid is 1/(exp(z) + 1). Unlike the form with tanh it keeps its relative accuracy near 0.
    If exp overflows, the gate is 0, as it should be.
    """
    arithmetic = arithmetic_of(dtype)
    if gate is None:
        inner, shift, outer = arithmetic.gate
        return inner, np.array(shift, dtype), outer
    zero, one, slope = (np.array(a, dtype) for a in (0, 1, -gate.slope))
    return (
        lambda z, out: np.multiply(z, slope, out),
        np.array(gate.offset, dtype),
        lambda a, out: arithmetic.clip(a, zero, one, out),
    )


@functools.lru_cache(maxsize=64)
def slope_of(gate: HardSigmoid | None, dtype: np.dtype[Any]) -> Callable[..., Any]:
    """Return a function (g, 1-g, out) that computes the slope of the activation at gates g."""
    if gate is None:
        return np.multiply
    slope = np.array(gate.slope, dtype)

    def between(g: Array, _: Array, out: Array) -> None:
        value = g.real
        np.multiply((value > 0) & (value < 1), slope, out)

    return between


def with_negated(w: Array, order: Sequence[int], negated: int) -> Array:
    """Return the columns of w by gate in this order, with the first gates' columns negated."""
    gates = w.reshape(*w.shape[:-1], len(order), -1)[..., order, :]
    gates[..., :negated, :] *= -1
    return np.ascontiguousarray(gates.reshape(w.shape))


def sigmoid_of(gate: HardSigmoid | None, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """Return a function that overwrites negated pre-activations with gates and returns these."""
    inner, shift, outer = gate_of(gate, dtype)

    def sigmoid(z: Array) -> Array:
        inner(z, z)
        np.add(z, shift, z)
        outer(z, z)
        return z

    return sigmoid
