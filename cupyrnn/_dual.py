"""
Dual numbers: complex arrays whose real part is a value and whose imaginary part is a tangent.

The tangent is so small that its square vanishes beside the value. Then sums and products are those
of complex numbers, and every function is its value and its slope, made of real ones: that is exact
for a tangent, and cannot overflow where the real function does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _transposed

if TYPE_CHECKING:
    from ._arrays import Array

# Multiplications below which one complex product is faster than three real ones.
_SMALL = 32768

# Rows of a large product that are taken apart at once: what is made of them stays in the cache.
_ROWS = 256

# Bytes of memory for products that a thread keeps: fresh memory costs more than filling it.
_KEPT = 1 << 24


class Arithmetic(NamedTuple):
    """What the cells compute with where real and dual numbers differ, called as NumPy's."""

    dot: Callable[..., Any]
    gate: tuple[Callable[..., Any], Any, Callable[..., Any]]  # as _gates.gate_of returns it
    tanh: Callable[..., Any]
    negative: Callable[..., Any]
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


class _Memory(threading.local):
    """Memory of a thread for what a product writes anew; the call before loses its own."""

    def __init__(self) -> None:
        self._kept: dict[str, Array] = {}

    def __call__(self, dtype: np.dtype[Any], *shapes: tuple[int, int]) -> list[Array]:
        """Return arrays of these shapes, with anything in them."""
        total = sum(n * m for n, m in shapes)
        memory = self._kept.get(dtype.char)
        if memory is None or memory.size < total:
            memory = np.empty(total, dtype)
            if memory.nbytes <= _KEPT:
                self._kept[dtype.char] = memory
        arrays, start = [], 0
        for n, m in shapes:
            arrays.append(memory[start : start + n * m].reshape(n, m))
            start += n * m
        return arrays


_memory = _Memory()
_LARGEST = {char: np.finfo(char).max for char in "fd"}


def planes(w: Array, order: str = "K") -> Planes:
    """Return a matrix of dual numbers as its planes, in this memory order."""
    if order == "K":
        order = "F" if w.strides[0] < w.strides[1] else "C"
    dtype = real_dtype(w.dtype)
    value, tangent = (np.empty(w.shape, dtype, order) for _ in range(2))  # type: ignore[call-overload]
    # By bands that the caches hold: a plain copy into another order misses them at every element.
    for k in range(0, len(w), 64):
        value[k : k + 64] = w[k : k + 64].real
        tangent[k : k + 64] = w[k : k + 64].imag
    return Planes(value, tangent if tangent.any() else None)


def factor(w: Array, rows: int, steps: int) -> Array | Planes:
    """Return what is the fastest for a product of as many rows with w in each of these steps."""
    if rows * w.size < _SMALL:
        return w
    return planes(w, "K" if steps < 16 else "C")


def dot(a: Array, b: Array | Planes, out: Array) -> Array:
    """Compute out = a @ b in two or three real products where these are faster."""
    if isinstance(b, Planes):
        _few_rows(a, b, out)
    elif len(a) * b.size < _SMALL:
        np.matmul(a, b, out)
    elif len(a) < b.shape[1]:
        _many_rows(b.T, a.T, out.T)
    else:
        _many_rows(a, b, out)
    return out


def _few_rows(a: Array, b: Planes, out: Array) -> None:
    """Compute out = a @ b, with the values of a above its tangents: one product with b's values."""
    (M, K), N = a.shape, b.value.shape[1]
    left, both, more = _memory(b.value.dtype, (2 * M, K), (2 * M, N), (M, N))
    left[:M] = a.real
    left[M:] = a.imag
    np.dot(left, b.value, both)
    out.real = both[:M]
    if b.tangent is None:
        out.imag = both[M:]
    else:
        np.dot(left[:M], b.tangent, more)
        np.add(both[M:], more, out.imag)


def _many_rows(a: Array, b: Array, out: Array) -> None:
    """Compute out = a @ b, the tangents as [tangents | values of a] @ [values / tangents of b]."""
    (M, K), N, rows = a.shape, b.shape[1], min(len(a), _ROWS)
    memory = _memory(real_dtype(out.dtype), (2 * K, N), (rows, 2 * K), (rows, N))
    right, left, product = map(_ordered, memory, (b, a, out))
    right[:K] = b.real
    right[K:] = b.imag
    b_moves = right[K:].any()
    for row in range(0, M, rows):
        into = out[row : row + rows]
        part, product = left[: len(into)], product[: len(into)]
        part[:, K:] = a[row : row + rows].real
        part[:, :K] = a[row : row + rows].imag
        np.matmul(part[:, K:], right[:K], product)
        into.real = product
        a_moves = part[:, :K].any()
        if a_moves and b_moves:
            np.matmul(part, right, product)
        elif a_moves:
            np.matmul(part[:, :K], right[:K], product)
        elif b_moves:
            np.matmul(part[:, K:], right[K:], product)
        into.imag = product if a_moves or b_moves else 0


def _ordered(memory: Array, like: Array) -> Array:
    """Return memory of a shape in C order in the memory order of another array."""
    if like.strides[0] < like.strides[1]:
        return memory.reshape(memory.shape[::-1]).T
    return memory


def _sigmoid(z: Array, out: Array) -> Array:
    """Compute the sigmoid of pre-activations held negated."""
    # Copies: NumPy's functions are slow over every other number.
    e = z.real.copy()
    np.exp(e, e)
    value = e + 1
    np.reciprocal(value, value)
    # The slope is -e*value². Infinity, whose gate is zero, would make NaN of it.
    np.minimum(e, _LARGEST[e.dtype.char], out=e)
    np.multiply(e, value, e)
    np.multiply(e, value, e)
    np.multiply(e, z.imag, e)
    np.negative(e, out.imag)
    out.real = value
    return out


def _tanh(z: Array, out: Array) -> Array:
    value = z.real.copy()
    np.tanh(value, value)
    slope = value * value
    np.subtract(1, slope, slope)
    np.multiply(slope, z.imag, out.imag)
    out.real = value
    return out


def _negative(z: Array, out: Array) -> Array:
    # NumPy's own takes complex numbers one by one.
    return np.subtract(0, z, out)


def _copy(a: Array, out: Array) -> None:
    np.copyto(out, a)


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


_REAL = Arithmetic(
    _transposed.dot, (np.exp, 1, np.reciprocal), np.tanh, np.negative, np.ndarray.clip, np.maximum
)
_DUAL = Arithmetic(dot, (_sigmoid, 0, _copy), _tanh, _negative, _clip, _maximum)
