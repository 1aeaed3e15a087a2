"""
Dual numbers: a value and a tangent in one complex array, which every op of the package takes.

The imaginary part is the tangent times a power of two, so small that its square vanishes beside
the value. `jvp` and `cupyrnn.torch` make and take apart their arrays here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import copy_context
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array
from ..checks.arrays import module_of
from ..checks.calls import own_tangents

# The exponent of the largest tangent that an op is given. The product of two such vanishes
# beside a value, also when both have grown by 2**36 (float32) or 2**270 (float64), and what is
# smaller by 2**-78 or 2**-722 is no denormal number yet.
_EXPONENT = {"f": -48, "d": -300}


def largest_of(tangent: Array) -> Any:
    """Return the largest magnitude in an array that is not empty, NaN where there is one."""
    # Without memory for all magnitudes, and of what is broadcast once.
    tangent = tangent[tuple(0 if s == 0 else slice(None) for s in tangent.strides)]
    return np.maximum(tangent.max(), -tangent.min())


def exponent_of(largest: Any, dtypes: Sequence[np.dtype[Any]]) -> Any:
    """
    Return the power of two that the tangents of a call are scaled by.

    Parameters
    ----------
    largest
        The largest magnitude among them, a number or on its device.
    dtypes
        Theirs; the narrowest decides.
    """
    least: str = min((t.char for t in dtypes), key="fd".index)
    return _EXPONENT[least] - module_of(largest).frexp(largest)[1]


def scaled(a: Array, exponent: Any) -> Array:
    """Return a * 2**exponent, of an exponent on the host or beside the array."""
    limits = np.finfo(a.dtype)
    if isinstance(exponent, int) and limits.minexp <= exponent < limits.maxexp:
        # Where the power is a number of the dtype, a product is as exact, and much faster.
        return a * a.dtype.type(2.0**exponent)
    ldexp = np.ldexp if isinstance(exponent, int) else module_of(a).ldexp
    return ldexp(a, exponent)


def dual(value: Array, tangent: Array) -> Array:
    """Return dual numbers of their parts."""
    out: Array = module_of(value).empty(value.shape, value.dtype.char.upper())
    out.real, out.imag = value, tangent
    return out


def along(
    call: Callable[..., Sequence[Array | None]],
    values: Sequence[Array | None],
    tangents: Sequence[Array | None],
) -> tuple[list[Array | None], list[Array | None]]:
    """
    Return what a call returns, and its derivative along a direction.

    As `jvp`, for ops alone and for either array module, without a word to the host: what is not
    finite comes out as such.

    Parameters
    ----------
    call
        Made of the ops of the package.
    values, tangents
        Its arguments and the direction, None where it has no part.
    """
    xp = module_of(values[0])
    exponent = _exponent_beside(xp, [t for t in tangents if t is not None])
    with np.errstate(all="ignore"):
        given = [
            v if v is None or t is None else dual(v, scaled(t, exponent))
            for v, t in zip(values, tangents, strict=True)
        ]
        context = copy_context()  # so that an interrupt leaves nothing behind
        context.run(own_tangents.set, True)
        found = context.run(call, *given)
        tangents = [None if a is None else _tangent(xp, a, exponent) for a in found]
    return [None if a is None else _value(a) for a in found], list(tangents)


def _exponent_beside(xp: ModuleType, tangents: Sequence[Array]) -> Array:
    """Return the exponent as an array beside the tangents, 0 where they are not finite."""
    given = [largest_of(t) for t in tangents if t.size]
    if not given:
        return xp.zeros((), np.int32)
    largest = functools.reduce(xp.maximum, given)
    exponent = exponent_of(largest, [t.dtype for t in tangents])
    return xp.where(xp.isfinite(largest), exponent, 0).astype(np.int32)


def _value(a: Array) -> Array:
    return a.real.copy() if a.dtype.kind == "c" else a


def _tangent(xp: ModuleType, a: Array, exponent: Any) -> Array:
    return scaled(a.imag, -exponent) if a.dtype.kind == "c" else xp.zeros_like(a)
