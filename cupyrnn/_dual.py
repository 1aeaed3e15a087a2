"""
Dual numbers in NumPy: complex arrays, values as real parts and tangents as imaginary ones.

The tangent is so small that its square vanishes beside the value. Then sums and products are those
of complex numbers, and every function is its value and its slope, made of real ones: that is exact
for a tangent, and cannot overflow where the real function does not. On a device the same is the
type Dual of ``kernels/common.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _transposed

if TYPE_CHECKING:
    from ._arrays import Array

# Multiplications below which one complex product is faster than three real ones.
_SMALL = 32768


class Arithmetic(NamedTuple):
    """What the cells compute with where real and dual numbers differ, called as NumPy's."""

    dot: Callable[..., Any]
    exp: Callable[..., Any]
    tanh: Callable[..., Any]
    reciprocal: Callable[..., Any]
    clip: Callable[..., Any]
    maximum: Callable[..., Any]


class Planes(NamedTuple):
    """A matrix of dual numbers as two of real ones, for many products with it."""

    value: Array
    tangent: Array | None  # None: zeros


def arithmetic_of(dtype: np.dtype[Any]) -> Arithmetic:
    """Return what computes with arrays of this dtype."""
    return _DUAL if dtype.kind == "c" else _REAL


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the values of an array that may be of dual numbers."""
    return np.dtype(dtype.char.lower()) if dtype.kind == "c" else dtype


def planes(w: Array) -> Planes:
    """Return a matrix of dual numbers as its planes, in its own memory order."""
    return Planes(w.real.copy("K"), w.imag.copy("K") if w.imag.any() else None)


def factor(w: Array, rows: int) -> Array | Planes:
    """Return what is the fastest for many products of as many rows with w."""
    return w if rows * w.size < _SMALL else planes(w)


def dot(a: Array, b: Array | Planes, out: Array) -> Array:
    """Compute out = a @ b in two or three real products where these are faster."""
    if isinstance(b, np.ndarray):
        if len(a) * b.size < _SMALL:
            np.matmul(a, b, out)
            return out
        b = planes(b)
    (M, K), N = a.shape, b.value.shape[1]
    # Value above tangent in one array: its product with b's value is one.
    order: Any = "F" if a.strides[0] < a.strides[1] else "C"
    left = np.empty((2 * M, K), b.value.dtype, order)
    left[:M], left[M:] = a.real, a.imag
    both = np.matmul(left, b.value)
    if b.tangent is not None:
        both[M:] += np.matmul(left[:M], b.tangent)
    out.real, out.imag = both.reshape(2, M, N)
    return out


def _exp(z: Array, out: Array) -> Array:
    # Copies: NumPy's functions are slow over every other number.
    value = z.real.copy()
    np.exp(value, value)
    # Infinity is right for a value, but no tangent, and its product with one of zero is NaN.
    largest = np.finfo(value.dtype).max
    tangent = np.minimum(value, largest) * z.imag
    out.imag = tangent.clip(-largest, largest, tangent)
    out.real = value
    return out


def _tanh(z: Array, out: Array) -> Array:
    value = z.real.copy()
    np.tanh(value, value)
    slope = value * value
    out.imag = np.subtract(1, slope, slope) * z.imag
    out.real = value
    return out


def _reciprocal(z: Array, out: Array) -> Array:
    value = z.real.copy()
    np.reciprocal(value, value)
    # In this order, as the square of the value may underflow.
    out.imag = -value * z.imag * value
    out.real = value
    return out


def _clip(z: Array, low: Array, high: Array, out: Array) -> Array:
    """The slope is zero where the value reached a bound."""
    value = z.real.copy()
    out.imag = z.imag * ((value > low.real) & (value < high.real))
    out.real = value.clip(low.real, high.real, value)
    return out


def _maximum(z: Array, zeros: Array, out: Array) -> Array:
    """The maximum of z and zeros; the slope is zero where the value is not above."""
    value = np.maximum(z.real, zeros.real)
    out.imag = z.imag * (value > 0)
    out.real = value
    return out


_REAL = Arithmetic(_transposed.dot, np.exp, np.tanh, np.reciprocal, np.ndarray.clip, np.maximum)
_DUAL = Arithmetic(dot, _exp, _tanh, _reciprocal, _clip, _maximum)
