"""
What the compiled steps of all cells share: how loops are compiled, and the functions in them.

A step passes over the memory once, where NumPy takes up to 20 calls, each of which costs half a
microsecond however little it computes. Products of larger steps are left to NumPy, whose BLAS is
faster than a loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from .cache import compiled_function
from .simd import OPTIONS, part

if TYPE_CHECKING:
    from .._arrays import Array
    from ..arithmetic.gates import HardSigmoid

# Multiplications per gate of a step's product, up to where a compiled product was faster than
# NumPy's, measured.
PRODUCT_LARGEST = 8192

# expm1(r) for abs(r) <= ln(2)/2 by its Taylor series, from the last coefficient to that of r²; what
# is left out is less than half a unit in the last place.
_SERIES_32 = tuple(1 / np.prod(np.arange(1.0, k + 1)) for k in range(7, 1, -1))
_SERIES_64 = tuple(1 / np.prod(np.arange(1.0, k + 1)) for k in range(13, 1, -1))


def compile_loop(loop: Callable[..., None], arguments: str, char: str) -> Any:
    """
    Return a loop compiled for a dtype, from the disk where it was compiled before.

    `arguments` tells them apart: r2 is an array of rank 2 that is only read, w2 one that is
    written, d1 a float64 one, x a number of the dtype, n an integer and b a bool.
    """
    dtype = numba.from_dtype(np.dtype(char))
    types: dict[str, Any] = {"x": dtype, "n": numba.intp, "b": numba.boolean}
    types["d1"] = numba.float64[::1]
    for rank in (1, 2, 3):
        types[f"r{rank}"] = numba.types.Array(dtype, rank, "C", readonly=True)
        types[f"w{rank}"] = numba.types.Array(dtype, rank, "C")
    signature = numba.void(*(types[a] for a in arguments.split()))
    return compiled_function(loop, signature, OPTIONS)


@part
def _expm1_32(u: Array) -> None:
    """
    Overwrite u with expm1(u), to a relative 1.2e-7: math.expm1 would not be vectorized.

    u = n*ln(2) + r, expm1(u) = 2**n * expm1(r) + 2**n - 1. The two parts of ln(2) are those of
    Cephes: n times the first is exact. Above 88, where 2**n would overflow, the series is used past
    its range and loses a digit.
    """
    for j in range(u.size):
        x = min(max(u[j], np.float32(-87)), np.float32(89))
        n = min(np.rint(x * np.float32(1.4426950408889634)), np.float32(127))
        r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
        p = np.float32(0)
        for c in _SERIES_32:
            p = p * r + np.float32(c)
        p = p * r * r + r
        scale = np.int32((np.int32(n) + 127) << 23).view(np.float32)
        u[j] = scale * p + (scale - np.float32(1))


@part
def _expm1_64(u: Array) -> None:
    """_expm1_32 in float64, to a relative 2.7e-16 up to 709.4."""
    for j in range(u.size):
        x = min(max(u[j], -708.0), 710.0)
        n = min(np.rint(x * 1.4426950408889634), 1023.0)
        r = (x - n * 0.693145751953125) - n * 1.42860682030941723212e-6
        p = 0.0
        for c in _SERIES_64:
            p = p * r + c
        p = p * r * r + r
        scale = np.int64((np.int64(n) + 1023) << 52).view(np.float64)
        u[j] = scale * p + (scale - 1.0)


@part
def expm1(u: Array) -> None:
    """Overwrite u with expm1(u)."""
    if u.itemsize == 4:
        _expm1_32(u)
    else:
        _expm1_64(u)


@part
def hard_gate(u: Array, slope: Any, offset: Any) -> None:
    """
    Overwrite u, pre-activations held negated, so that 1/(2 + u) is clip(offset - slope*u, 0, 1).

    As with expm1(u) it is the sigmoid, one loop serves both, and the sigmoid pays for nothing.
    """
    zero, one, two = u.dtype.type(0), u.dtype.type(1), u.dtype.type(2)
    for j in range(u.size):
        g = offset - slope * u[j]
        if g > one:
            g = one
        if g < zero:
            g = zero
        u[j] = one / g - two


@part
def slope_at(g: Any, hard: bool, slope: Any) -> Any:
    """Return the slope of a gate where it is g."""
    zero, one = type(g)(0), type(g)(1)
    if not hard:
        return g * (one - g)
    return slope if zero < g < one else zero


def plain(*arrays: Array) -> list[Array]:
    """Return the arrays as the loops are compiled for: no subclass, C order, aligned."""
    plain = []
    for a in arrays:
        a = np.asarray(a)
        flags = a.flags
        plain.append(a if flags.c_contiguous and flags.aligned else a.copy())
    return plain


@functools.cache
def nothing(char: str) -> list[Array]:
    """Return an empty array of each rank from 1 to 3, which stands for one that is not given."""
    return [np.empty((0,) * rank, char) for rank in (1, 2, 3)]


def gate_arguments(gate: HardSigmoid | None, dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return whether the gates are hard, their slope and their offset, "b x x" of `loop`."""
    slope, offset = gate or (0, 0)
    return gate is not None, dtype.type(slope), dtype.type(offset)


def working(loops: Callable[[str], Any]) -> Callable[[str], Any]:
    """Have a function that compiles loops for a dtype return None where they cannot be had."""

    @functools.cache
    def found(char: str) -> Any:
        # Not compiled they would be far slower than NumPy's.
        if getattr(numba.config, "DISABLE_JIT", False):
            return None
        try:
            return loops(char)
        except Exception:  # Numba does not work here.
            return None

    return found
