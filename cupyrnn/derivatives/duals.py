"""
Dual numbers: a value and a tangent in one complex array. Every op of the package accepts them.

The imaginary part is the tangent times a power of two, so small that its square vanishes beside
the value. `jvp`, `cupyrnn.torch` and `cupyrnn.jax` make and split dual numbers here.
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

# The largest tangent of a call is scaled to 2**exponent. The product of two such tangents vanishes
# beside a value, even if both grow by 2**36 (float32) or 2**270 (float64). Tangents smaller by
# 2**-78 or 2**-722 are not subnormal yet.
_EXPONENT = {"f": -48, "d": -300}


def largest_of(tangent: Array) -> Any:
    """Return the largest magnitude in an array that is not empty; NaN if there is one."""
    # Needs no memory for all magnitudes, and reads broadcast elements once.
    tangent = tangent[tuple(0 if s == 0 else slice(None) for s in tangent.strides)]
    return np.maximum(tangent.max(), -tangent.min())


def exponent_of(largest: Any, dtypes: Sequence[np.dtype[Any]]) -> Any:
    """
    Return the power of two that the tangents of a call are scaled by.

    Parameters
    ----------
    largest
        The largest magnitude of the tangents: a number, or an array on their device.
    dtypes
        The dtypes of the tangents; the narrowest decides.
    """
    least: str = min((t.char for t in dtypes), key="fd".index)
    return _EXPONENT[least] - module_of(largest).frexp(largest)[1]


def scaled(a: Array, exponent: Any) -> Array:
    """Return a * 2**exponent; the exponent is an integer or an array on the device of `a`."""
    limits = np.finfo(a.dtype)
    if isinstance(exponent, int) and limits.minexp <= exponent < limits.maxexp:
        # If the dtype can hold the power, a product is exact, too, and much faster.
        return a * a.dtype.type(2.0**exponent)
    ldexp = np.ldexp if isinstance(exponent, int) else module_of(a).ldexp
    return ldexp(a, exponent)


def dual(value: Array, tangent: Array) -> Array:
    """Return dual numbers from values and tangents."""
    out: Array = module_of(value).empty(value.shape, value.dtype.char.upper())
    out.real, out.imag = value, tangent
    return out


def along(
    call: Callable[..., Sequence[Array | None]],
    values: Sequence[Array | None],
    tangents: Sequence[Array | None],
) -> tuple[list[Array | None], list[Array | None]]:
    """
    Return the results of a call, and their derivatives along a direction.

    Like `jvp`, but only for calls of ops. The host does not wait for the device, so tangents that
    are not finite are not refused.

    Parameters
    ----------
    call
        A function that calls ops of the package only.
    values, tangents
        Its arguments and the direction; None for an argument without a tangent.
    """
    xp = module_of(values[0])
    exponent = _exponent_beside(xp, [t for t in tangents if t is not None])
    with np.errstate(all="ignore"):
        arguments = [
            v if v is None or t is None else dual(v, scaled(t, exponent))
            for v, t in zip(values, tangents, strict=True)
        ]
        context = copy_context()  # an interrupt cannot leave the flag set
        context.run(own_tangents.set, True)
        found = context.run(call, *arguments)
        tangents = [None if a is None else _tangent(xp, a, exponent) for a in found]
    return [None if a is None else _value(a) for a in found], list(tangents)


def _exponent_beside(xp: ModuleType, tangents: Sequence[Array]) -> Array:
    """Return the exponent as an array on the tangents' device; 0 if they are not finite."""
    arguments = [largest_of(t) for t in tangents if t.size]
    if not arguments:
        return xp.zeros((), np.int32)
    largest = functools.reduce(xp.maximum, arguments)
    exponent = exponent_of(largest, [t.dtype for t in tangents])
    return xp.where(xp.isfinite(largest), exponent, 0).astype(np.int32)


def _value(a: Array) -> Array:
    return a.real.copy() if a.dtype.kind == "c" else a


def _tangent(xp: ModuleType, a: Array, exponent: Any) -> Array:
    return scaled(a.imag, -exponent) if a.dtype.kind == "c" else xp.zeros_like(a)
