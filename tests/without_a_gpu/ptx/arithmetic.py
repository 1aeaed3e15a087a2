"""
The arithmetic of PTX that NumPy does not have, on arrays of lanes.

All of it is exact, which is to say rounded once as IEEE 754 has it, but for the reciprocal of an
upper word. Of ``.approx`` the manual allows other last places, and a GPU has them.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from without_a_gpu.cuda_on_cpu import runner

Lanes = Any
"""A NumPy array with one element per thread, or a NumPy scalar."""

_TINY32, _TINY64 = np.float32(2.0**-126), np.float64(2.0**-1022)
_HIGH_WORD = np.uint64(0xFFFFFFFF00000000)


def flush(a: Lanes) -> Lanes:
    """Replace subnormal float32 numbers by zeros of the same sign."""
    return a * (np.abs(a) >= _TINY32)


_FUSED = r"""
#include <cfenv>
#include <cmath>

template <typename T>
static void fused(long n, const long* steps, const T* a, const T* b, const T* c, T* out)
{
    for (long i = 0; i < n; ++i)
        out[i] = std::fma(a[i * steps[0]], b[i * steps[1]], c[i * steps[2]]);
}
extern "C" void fma32(long n, const long* steps, const float* a, const float* b, const float* c,
                      float* out, int rounding)
{
    std::fesetround(rounding ? FE_DOWNWARD : FE_TONEAREST);
    fused(n, steps, a, b, c, out);
    std::fesetround(FE_TONEAREST);
}
extern "C" void fma64(long n, const long* steps, const double* a, const double* b, const double* c,
                      double* out)
{
    fused(n, steps, a, b, c, out);
}
"""


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the processor's fused products over arrays, else the C library's."""
    options = ("-O3", "-march=native", "-frounding-math", "-shared", "-fPIC", "-x", "c++")
    command = ["g++", *options, "-"]
    path = runner.compiled(runner.kept(".so", _FUSED, command), command, _FUSED)
    return ctypes.CDLL(str(path))


def fma(a: Lanes, b: Lanes, c: Lanes, down: bool = False) -> Lanes:
    """Return a*b + c, rounded once, to nearest or, in float32, down."""
    given = [np.ascontiguousarray(x) for x in (a, b, c)]
    out = np.empty_like(max(given, key=len))
    steps = (ctypes.c_long * 3)(*(len(x) > 1 for x in given))
    places = (ctypes.c_void_p(x.ctypes.data) for x in (*given, out))
    function = _library().fma32 if out.dtype == np.float32 else _library().fma64
    function(ctypes.c_long(out.size), steps, *places, down)
    return out


def high_product(a: Lanes, b: Lanes) -> Lanes:
    """Return the upper 64 bits of a product of two uint64."""
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    al, ah, bl, bh = a & mask, a >> half, b & mask, b >> half
    middle = ah * bl + ((al * bl) >> half)
    other = al * bh + (middle & mask)
    return ah * bh + (middle >> half) + (other >> half)


def divide(a: Lanes, b: Lanes) -> Lanes:
    """Return the quotient of integers, rounded toward zero."""
    if np.any(b == 0):
        raise ZeroDivisionError("a division by zero, whose result PTX does not say")
    if a.dtype.kind == "u":
        return a // b
    return (a - np.fmod(a, b)) // b


def remainder(a: Lanes, b: Lanes) -> Lanes:
    """Return the remainder of integers, with the dividend's sign."""
    if np.any(b == 0):
        raise ZeroDivisionError("a division by zero, whose result PTX does not say")
    return np.fmod(a, b)


def shift_left(a: Lanes, n: Lanes) -> Lanes:
    """Shift by a uint32; a shift by all bits or more gives zero."""
    bits = 8 * a.dtype.itemsize
    if isinstance(n, np.generic) and n < bits:
        return a << a.dtype.type(n)
    return np.where(n < bits, a << np.minimum(n, bits - 1).astype(a.dtype), a.dtype.type(0))


def shift_right(a: Lanes, n: Lanes) -> Lanes:
    """Shift by a uint32; a shift by all bits or more gives the sign or zero."""
    bits = 8 * a.dtype.itemsize
    if isinstance(n, np.generic) and n < bits:
        return a >> a.dtype.type(n)
    shifted = a >> np.minimum(n, bits - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(n < bits, shifted, a.dtype.type(0))


def to_half(a: Lanes) -> Lanes:
    """Round float32 to float16; there is one NaN."""
    return np.where(np.isnan(a), np.uint16(0x7FFF), a.astype(np.float16).view(np.uint16))


def from_half(bits: Lanes) -> Lanes:
    """Return the float32 of the bits of float16."""
    return bits.view(np.float16).astype(np.float32)


def to_bfloat16(a: Lanes) -> Lanes:
    """Round float32 to the bits of bfloat16; there is one NaN."""
    bits = a.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(a), np.uint16(0x7FFF), rounded.astype(np.uint16))


def from_bfloat16(bits: Lanes) -> Lanes:
    """Return the float32 of the bits of bfloat16."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def saturate(a: Lanes) -> Lanes:
    """Clamp to [0, 1]; NaN becomes 0, and so does -0."""
    return np.where(a > 0, np.minimum(a, np.float32(1)), np.float32(0))


def least(a: Lanes, b: Lanes) -> Lanes:
    """Return the smaller float; of a number and a NaN the number, and -0 is below 0."""
    return np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))


def greatest(a: Lanes, b: Lanes) -> Lanes:
    """Return the larger float; of a number and a NaN the number, and 0 is above -0."""
    return np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(a, b))


def exp2(a: Lanes) -> Lanes:
    """``ex2.approx.ftz.f32``, before its result is flushed, rounded once."""
    return np.exp2(a.astype(np.float64)).astype(np.float32)


def reciprocal_of_upper_word(a: Lanes) -> Lanes:
    """``rcp.approx.ftz.f64``: of the upper word, and the lower word of the result is zero."""
    upper = (a.view(np.uint64) & _HIGH_WORD).view(np.float64)
    exact = np.float64(1) / (upper * (np.abs(upper) >= _TINY64))
    result = (exact.view(np.uint64) & _HIGH_WORD).view(np.float64)
    return result * (np.abs(result) >= _TINY64)
