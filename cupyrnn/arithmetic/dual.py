"""
Dual numbers in NumPy: complex arrays with values as real parts and tangents as imaginary parts.

Tangents are so small that their squares vanish beside the values. So dual numbers are added and
multiplied like complex numbers. Every other function computes its value and its slope in real
numbers: tangents are exact then, and nothing overflows where the real function does not. On a
device the type Dual of ``kernels/common.py`` does the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._typing import Array, Arrays, NamedTuple
from . import transposed as _transposed

# Multiplications below which one complex product is faster than three real ones.
_SMALL = 32768

# Matrices with fewer elements are not split into planes: that would cost more than it saves.
SMALL_MATRIX = 4096

# Up to so many rows, one product of values and tangents is faster than two. From so many steps on,
# a copy of the matrix in C order pays off.
_FEW_ROWS, _FEW_STEPS = 64, 16

# Up to so many multiplications OpenBLAS has faster kernels, which do not copy their operands.
_SMALL_KERNEL = 10**6

# Elements copied at a time while a matrix is split into planes.
_CHUNK = 16384

# Rows of a large product computed at a time: they stay in the cache until they are joined.
_ROWS = 512

# The most bytes that a thread keeps for products: new memory costs more than filling it.
_KEPT = 1 << 24


class Arithmetic(NamedTuple):
    """The functions that differ between real and dual numbers, with NumPy's signatures."""

    dot: Callable[..., Any]
    gate: tuple[Callable[..., Any], Any, Callable[..., Any]]  # as returned by gates.gate_of
    tanh: Callable[..., Any]
    negative: Callable[..., Any]
    clip: Callable[..., Any]
    maximum: Callable[..., Any]


class Planes:
    """A matrix of dual numbers as two real matrices, for several products with it."""

    def __init__(self, value: Array, tangent: Array | None) -> None:
        self.value, self.tangent = value, tangent  # a tangent of None is zeros
        self.shape = value.shape
        self._work: Arrays = ()

    def __getitem__(self, index: Any) -> Planes:
        return Planes(self.value[index], None if self.tangent is None else self.tangent[index])

    @property
    def T(self) -> Planes:
        """The transposed matrix."""
        return Planes(self.value.T, None if self.tangent is None else self.tangent.T)

    def work(self, rows: int) -> Arrays:
        """Return scratch memory and its views for products of so many rows with this matrix."""
        if not self._work or len(self._work[1]) != rows:
            (K, N), dtype = self.shape, self.value.dtype
            stacked, both = np.empty((2 * rows, K), dtype), np.empty((2 * rows, N), dtype)
            views = stacked[:rows], stacked[rows:], both[:rows], both[rows:]
            self._work = (stacked, *views, both, np.empty((rows, N), dtype))
        return self._work


def arithmetic_of(dtype: np.dtype[Any]) -> Arithmetic:
    """
    Return the functions with which a cell computes arrays of a dtype.

    Parameters
    ----------
    dtype : numpy.dtype
        A real dtype, or a complex one whose imaginary parts are tangents.

    Returns
    -------
    Arithmetic
        `dot`, `tanh`, `clip`, `maximum` and others, each with an `out`.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn.cells import arithmetic_of
    >>> z = np.array([0.5 + 1e-20j])
    >>> arithmetic_of(z.dtype).tanh(z, z).imag / 1e-20  # the derivative of tanh
    array([0.78644773])
    """
    return _DUAL if dtype.kind == "c" else _REAL


def dot_with(dtype: np.dtype[Any], matrices: Sequence[Any]) -> Callable[..., Any]:
    """Return the `dot` of a dtype for products with these results of `products.factor`."""
    is_plain = dtype.kind == "f" and {*map(type, matrices)} == {np.ndarray}
    # The method: np.dot looks for other types of arrays first.
    return np.ndarray.dot if is_plain else arithmetic_of(dtype).dot


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the values of an array of real or dual numbers."""
    return np.dtype(dtype.char.lower()) if dtype.kind == "c" else dtype


@functools.cache
def _of_threads() -> Any:
    """Return an object whose attributes are local to each thread."""
    # Imported here because it is slow and only tangents need it.
    import threading

    return threading.local()


def _memory(dtype: np.dtype[Any], *shapes: tuple[int, int]) -> list[Array]:
    """Return uninitialized arrays of these shapes, in this thread's memory; the last are lost."""
    kept, total = vars(_of_threads()), sum(n * m for n, m in shapes)
    memory = kept.get(dtype.char)
    if memory is None or memory.size < total:
        memory = np.empty(total, dtype)
        if memory.nbytes <= _KEPT:
            kept[dtype.char] = memory
    arrays, start = [], 0
    for n, m in shapes:
        arrays.append(memory[start : start + n * m].reshape(n, m))
        start += n * m
    return arrays


_LARGEST = {char: np.finfo(char).max for char in "fd"}


def planes(w: Array, value: Array, tangent: Array) -> Planes:
    """Split a matrix of dual numbers into planes: write them into `value` and `tangent`."""
    # Copied in bands that fit the caches: a plain copy into another order misses them everywhere.
    bands = len(w) if (w.strides[0] < w.strides[1]) == (value.strides[0] < value.strides[1]) else 64
    for k in range(0, len(w), max(bands, 1)):
        value[k : k + bands] = w[k : k + bands].real
        tangent[k : k + bands] = w[k : k + bands].imag
    return Planes(value, tangent if tangent.any() else None)


def take_apart(a: Array) -> Planes:
    """Split a matrix into planes in place: the planes are side by side in its memory."""
    M, N = a.shape
    parts = a.view(real_dtype(a.dtype))
    rows = max(1, _CHUNK // N)
    for row in range(0, M, rows):
        copy = a[row : row + rows].copy()
        parts[row : row + rows, :N] = copy.real
        parts[row : row + rows, N:] = copy.imag
    value, tangent = parts[:, :N], parts[:, N:]
    return Planes(value, tangent if tangent.any() else None)


def factor(w: Array, rows: int, steps: int) -> Array | Planes:
    """Return w in the form that is fastest for products of so many rows, one in each step."""
    if rows * w.size < _SMALL:
        return w
    memory = np.empty((2, *w.shape), real_dtype(w.dtype))
    value, tangent = memory if steps >= _FEW_STEPS else (_ordered(a, w) for a in memory)
    return planes(w, value, tangent)


def dot(a: Array | Planes, b: Array | Planes, out: Array) -> Array:
    """Compute out = a @ b, in two or three real products if that is faster."""
    (M, K), N = a.shape, b.shape[1]
    if isinstance(a, np.ndarray) and isinstance(b, Planes) and M <= _FEW_ROWS:
        _few_rows(a, b, out)
    elif isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and M * K * N < _SMALL:
        np.matmul(a, b, out)
    else:
        _many_rows(a, b, out)
    return out


def _few_rows(a: Array, b: Planes, out: Array) -> None:
    """Compute out = a @ b. Values and tangents of a are stacked for one product with b's values."""
    stacked, values, tangents, value, tangent, both, more = b.work(len(a))
    values[...] = a.real
    tangents[...] = a.imag
    if len(a) * b.value.size <= _SMALL_KERNEL < 2 * len(a) * b.value.size:
        np.dot(values, b.value, value)
        np.dot(tangents, b.value, tangent)
    else:
        np.dot(stacked, b.value, both)
    out.real = value
    if b.tangent is None:
        out.imag = tangent
    else:
        np.dot(values, b.tangent, more)
        np.add(tangent, more, out.imag)


def _many_rows(a: Array | Planes, b: Array | Planes, out: Array) -> None:
    """Compute out = a @ b by blocks of rows."""
    M, N = out.shape
    rows = min(M, _ROWS)
    shapes = [(rows, N)] * 2
    shapes += [m.shape for m in (a, b) if isinstance(m, np.ndarray) for _ in range(2)]
    product, more, *memory = _memory(real_dtype(out.dtype), *shapes)
    product, more = _ordered(product, out), _ordered(more, out)
    if isinstance(a, np.ndarray):
        a = planes(a, *(_ordered(memory.pop(0), a) for _ in range(2)))
    if isinstance(b, np.ndarray):
        b = planes(b, *(_ordered(memory.pop(0), b) for _ in range(2)))
    for row in range(0, M, max(rows, 1)):
        part, into = a[row : row + rows], out[row : row + rows]
        p, q = product[: len(into)], more[: len(into)]
        np.matmul(part.value, b.value, p)
        into.real = p
        if part.tangent is not None:
            np.matmul(part.tangent, b.value, p)
        if b.tangent is not None:
            np.matmul(part.value, b.tangent, p if part.tangent is None else q)
        if part.tangent is not None and b.tangent is not None:
            np.add(p, q, into.imag)
        else:
            into.imag = 0 if part.tangent is b.tangent else p


def column_sums(g: Planes) -> Array:
    """Return the sums of the columns of a matrix."""
    ones = np.ones(g.shape[0], g.value.dtype)
    sums: Array = np.zeros(g.shape[1], np.result_type(ones.dtype, np.complex64))
    sums.real = ones @ g.value
    if g.tangent is not None:
        sums.imag = ones @ g.tangent
    return sums


def _ordered(memory: Array, like: Array) -> Array:
    """Return memory in the memory order of another array."""
    if like.strides[0] < like.strides[1]:
        return memory.reshape(memory.shape[::-1]).T
    return memory


def _sigmoid(z: Array, out: Array) -> Array:
    """Compute the sigmoid of negated pre-activations."""
    # Copies, because NumPy's functions are slow over every other number.
    e = z.real.copy()
    np.exp(e, e)
    value = e + 1
    np.reciprocal(value, value)
    # The slope is -e*value². An infinite e, where the gate is zero, would make it NaN.
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
    # np.negative is slow for complex numbers.
    return np.subtract(0, z, out)


def _copy(a: Array, out: Array) -> None:
    np.copyto(out, a)


def _clip(z: Array, low: Array, high: Array, out: Array) -> Array:
    """Clip; the slope is zero where the value reached a bound."""
    value = z.real.copy()
    out.imag = z.imag * ((value > low.real) & (value < high.real))
    out.real = value.clip(low.real, high.real, value)
    return out


def _maximum(z: Array, zeros: Array, out: Array) -> Array:
    """Compute max(z, 0); the slope is zero where the value is not positive."""
    value = np.maximum(z.real, zeros.real)
    out.imag = z.imag * (value > 0)
    out.real = value
    return out


_REAL = Arithmetic(
    _transposed.dot, (np.exp, 1, np.reciprocal), np.tanh, np.negative, np.ndarray.clip, np.maximum
)
_DUAL = Arithmetic(dot, (_sigmoid, 0, _copy), _tanh, _negative, _clip, _maximum)
