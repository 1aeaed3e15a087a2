"""
The arithmetic of PTX that NumPy does not have, on arrays of lanes.

All of it is exact, which is to say rounded once as IEEE 754 has it, but for the two kinds of
``.approx``: see :class:`Approximation`.
"""

from __future__ import annotations

import enum
from fractions import Fraction
from typing import Any

import numpy as np

Lanes = Any
"""A NumPy array with one element per thread, or a NumPy scalar."""

_TINY32, _TINY64 = np.float32(2.0**-126), np.float64(2.0**-1022)
_HIGH_WORD = np.uint64(0xFFFFFFFF00000000)


class Approximation(enum.IntEnum):
    """
    Where the result of ``.approx`` lies in the interval that the manual allows.

    The manual bounds the error of ``ex2.approx.ftz.f32`` by 2 units in the last place and that of
    ``rcp.approx.ftz.f32`` by 1; ``rcp.approx.ftz.f64`` reads and writes only the upper words and
    has the accuracy of the latter. NEAREST rounds once; BELOW and ABOVE are moved by the whole
    bound. What a GPU gives lies between them. ``ex2`` of an integer is exact in all three: the
    manual doesn't say so, but CUDA's own tanh of a double rests on it.
    """

    BELOW = -1
    NEAREST = 0
    ABOVE = 1


def flush(a: Lanes) -> Lanes:
    """Make zeros of their sign of subnormal float32."""
    return a * (np.abs(a) >= _TINY32)


def fma32(a: Lanes, b: Lanes, c: Lanes, down: bool = False) -> Lanes:
    """Return a*b + c in float32, rounded once, to nearest or down."""
    product = a.astype(np.float64) * b.astype(np.float64)  # exact
    wide = product + c
    nearest = wide.astype(np.float32)
    # Rounding twice is wrong only where the first lands on a tie of the second.
    tie = (wide.view(np.uint64) & np.uint64(0x1FFFFFFF)) == 0x10000000
    tie |= (np.abs(wide) < _TINY32) & (wide != 0)
    if tie.any() or down:
        error = np.where(np.isfinite(wide), _two_sum(product, c.astype(np.float64))[1], 0.0)
        if not down:
            return _to_odd(wide, error).astype(np.float32)
        back = nearest.astype(np.float64)
        above = (back > wide) | ((back == wide) & (error < 0))
        lower = np.where(above, np.nextafter(nearest, np.float32(-np.inf)), nearest)
        # Rounded down, a sum of zero is -0 unless both terms are 0.
        canceled = (wide == 0) & (error == 0) & ~((c == 0) & ~np.signbit(c) & ~np.signbit(product))
        return np.where(canceled, np.float32(-0.0), lower)
    return nearest


def fma64(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """
    Return a*b + c in float64, rounded once.

    The algorithm of S. Boldo and G. Melquiond (Emulation of a FMA and correctly rounded sums,
    2008) where nothing can overflow or underflow on the way, else exact integers.
    """
    product = a * b
    low = _product_error(a, b, product)
    th, tl = _two_sum(c, low)
    vh, vl = _two_sum(product, th)
    s, error = _two_sum(tl, vl)
    result = vh + _to_odd(s, error)
    plain = product + c
    result = np.where((product == 0) | ~np.isfinite(plain), plain, result)
    finite = np.isfinite(a) & np.isfinite(b)
    # A product that overflows by itself is no infinity.
    result = np.where(finite & np.isinf(c), c, result)
    size = np.abs(product)
    risky = (size < 2.0**-900) & (a != 0) & (b != 0)
    for part in (a, b, c, product):
        risky = risky | (np.abs(part) > 2.0**900)
    risky &= finite & np.isfinite(c)
    if risky.any():
        a, b, c = np.broadcast_arrays(a, b, c)
        for n in np.flatnonzero(risky):
            exact = Fraction(float(a[n])) * Fraction(float(b[n])) + Fraction(float(c[n]))
            if exact:
                result[n] = _nearest(exact)
            elif a[n] != 0 and b[n] != 0:
                result[n] = 0.0
    return result


def _nearest(exact: Fraction) -> float:
    try:
        return exact.numerator / exact.denominator  # rounded once
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def _two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Return the rounded sum and its error, exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _product_error(a: Lanes, b: Lanes, product: Lanes) -> Lanes:
    """Return a*b - product, exactly: T. J. Dekker's product."""

    def halves(x: Lanes) -> tuple[Lanes, Lanes]:
        t = np.float64(2**27 + 1) * x
        high = t - (t - x)
        return high, x - high

    (ah, al), (bh, bl) = halves(a), halves(b)
    return ((ah * bh - product) + ah * bl + al * bh) + al * bl


def _to_odd(rounded: Lanes, error: Lanes) -> Lanes:
    """Of the two neighbors of an inexact sum, return the one whose last bit is set."""
    even = (rounded.view(np.uint64) & np.uint64(1)) == 0
    move = (error != 0) & even & np.isfinite(rounded)
    return np.where(move, np.nextafter(rounded, np.copysign(np.inf, error)), rounded)


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
    """Return the remainder of integers, of the dividend's sign."""
    if np.any(b == 0):
        raise ZeroDivisionError("a division by zero, whose result PTX does not say")
    return np.fmod(a, b)


def shift_left(a: Lanes, n: Lanes) -> Lanes:
    """Shift by a uint32; a shift by all bits or more leaves nothing."""
    bits = 8 * a.dtype.itemsize
    if isinstance(n, np.generic) and n < bits:
        return a << a.dtype.type(n)
    return np.where(n < bits, a << np.minimum(n, bits - 1).astype(a.dtype), a.dtype.type(0))


def shift_right(a: Lanes, n: Lanes) -> Lanes:
    """Shift by a uint32; a shift by all bits or more leaves the sign, or nothing."""
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


def exp2_approx(a: Lanes, how: Approximation) -> Lanes:
    """``ex2.approx.ftz.f32``, before its result is flushed."""
    exact = np.exp2(a.astype(np.float64)).astype(np.float32)
    return np.where(a == np.rint(a), exact, _moved(exact, 2 * how)) if how else exact


def reciprocal_approx32(a: Lanes, how: Approximation) -> Lanes:
    """``rcp.approx.ftz.f32``, before its result is flushed."""
    return _moved(np.float32(1) / a, how)


def reciprocal_approx64(a: Lanes, how: Approximation) -> Lanes:
    """``rcp.approx.ftz.f64``: of the upper word, and the lower word of the result is zero."""
    upper = (a.view(np.uint64) & _HIGH_WORD).view(np.float64)
    upper = upper * (np.abs(upper) >= _TINY64)
    exact = np.float64(1) / upper
    bits = (exact.view(np.uint64) & _HIGH_WORD) + np.uint64((int(how) << 32) % 2**64)
    regular = np.isfinite(exact) & (exact != 0)
    result = np.where(regular, bits.view(np.float64), exact)
    return result * (np.abs(result) >= _TINY64)


def _moved(a: Lanes, places: int) -> Lanes:
    """Move positive and negative numbers by units in the last place, away from 0 if positive."""
    if places == 0:
        return a
    regular = np.isfinite(a) & (np.abs(a) > _TINY32 * np.float32(2))
    return np.where(regular, (a.view(np.int32) + np.int32(places)).view(np.float32), a)
