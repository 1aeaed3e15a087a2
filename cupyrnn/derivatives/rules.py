"""
The tangents of NumPy's ufuncs. The ufunc computes the value, a rule computes the tangent.

The arguments of a rule are the values of the operands, the value of the result and the operands'
tangents (None if an operand has none). It returns the tangent of the result, which may still have
another shape or dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from .._typing import Array
from .duals import dual

Values: TypeAlias = Sequence[Array]
Tangents: TypeAlias = Sequence[Any]  # arrays, or None for a value without a tangent
Rule: TypeAlias = Callable[[Values, Array, Tangents], "Array | None"]


class Pair:
    """A value and its tangent in a call of jvp: real arrays or numbers of one shape and dtype."""

    __slots__ = ("call", "tangent", "value")

    def __init__(self, value: Array, tangent: Array, call: Any) -> None:
        self.value, self.tangent, self.call = value, tangent, call


def value_of(a: object) -> Any:
    """Return the value of a pair; other objects unchanged."""
    return a.value if isinstance(a, Pair) else a


def tangent_of(a: object) -> Array | None:
    """Return the tangent of a pair; None of other objects."""
    return a.tangent if isinstance(a, Pair) else None


def refusal(function: str) -> TypeError:
    """Return the error of a function without a rule."""
    return TypeError(f"jvp: {function} is not supported: it has no rule for tangents")


def fitted(tangent: Array, value: Array) -> Array:
    """Return a tangent in the dtype, shape and memory order of its value."""
    if not isinstance(value, np.generic) and (
        tangent.__class__ is not value.__class__
        or tangent.dtype != value.dtype
        or tangent.shape != value.shape
        or tangent.strides != value.strides
    ):
        # So a function returns views of both, or copies of both.
        like = value.copy(order="K")
        like[...] = tangent
        return like
    return value.dtype.type(tangent) if isinstance(value, np.generic) else tangent


def added(parts: Tangents) -> Array:
    """Return the sum of the parts of a tangent that are not None."""
    present = [p for p in parts if p is not None]
    total = present[0]
    for p in present[1:]:
        total = total + p
    return total


def _times(a: Array, t: Array | None) -> Array | None:
    return None if t is None else a * t


# The slope of a function at x; y is its value there.
SLOPES: dict[np.ufunc, Callable[[Array, Array], Array]] = {
    np.exp: lambda x, y: y,
    np.exp2: lambda x, y: y * math.log(2),
    np.expm1: lambda x, y: y + 1,
    np.log: lambda x, y: 1 / x,
    np.log2: lambda x, y: 1 / (x * math.log(2)),
    np.log10: lambda x, y: 1 / (x * math.log(10)),
    np.log1p: lambda x, y: 1 / (1 + x),
    np.sqrt: lambda x, y: 0.5 / y,
    np.cbrt: lambda x, y: 1 / (3 * y * y),
    np.square: lambda x, y: 2 * x,
    np.reciprocal: lambda x, y: -y * y,
    np.sin: lambda x, y: np.cos(x),
    np.cos: lambda x, y: -np.sin(x),
    np.tan: lambda x, y: 1 + y * y,
    np.sinh: lambda x, y: np.cosh(x),
    np.cosh: lambda x, y: np.sinh(x),
    np.tanh: lambda x, y: 1 - y * y,
    np.arcsin: lambda x, y: 1 / np.sqrt(1 - x * x),
    np.arccos: lambda x, y: -1 / np.sqrt(1 - x * x),
    np.arctan: lambda x, y: 1 / (1 + x * x),
    np.arcsinh: lambda x, y: 1 / np.sqrt(x * x + 1),
    np.arccosh: lambda x, y: 1 / np.sqrt(x * x - 1),
    np.arctanh: lambda x, y: 1 / (1 - x * x),
    np.negative: lambda x, y: -1,
    **dict.fromkeys((np.absolute, np.fabs), lambda x, y: np.sign(x)),
    **dict.fromkeys((np.positive, np.conjugate), lambda x, y: 1),
    **dict.fromkeys((np.degrees, np.rad2deg), lambda x, y: 180 / math.pi),
    **dict.fromkeys((np.radians, np.deg2rad), lambda x, y: math.pi / 180),
}

# Functions that depend on values only: their results have no tangent.
FLAT = {np.sign, np.floor, np.ceil, np.trunc, np.rint, np.floor_divide}
FLAT |= {np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal}
FLAT |= {np.isnan, np.isinf, np.isfinite, np.signbit}
FLAT |= {np.logical_and, np.logical_or, np.logical_not, np.logical_xor}


def _power(x: Values, y: Array, t: Tangents) -> Array:
    a, b = x
    along_a = along_b = None
    if t[0] is not None:
        # If the exponent is zero, the power is one for any base.
        along_a = np.where(np.equal(b, 0), 0, b * np.power(a, b - 1)) * t[0]
    if t[1] is not None:
        along_b = np.where(np.equal(y, 0), 0, y * np.log(a)) * t[1]
    return added([along_a, along_b])


def _copysign(x: Values, y: Array, t: Tangents) -> Array:
    slope = np.copysign(1, x[0]) * np.copysign(1, x[1])
    return slope * (0 if t[0] is None else t[0])


def _chosen_by(is_chosen: Callable[[Array, Array], Array]) -> Rule:
    """Return the rule of the maximum or the minimum; for equal values, the mean of both."""

    def rule(x: Values, y: Array, t: Tangents) -> Array:
        (a, b), (ta, tb) = x, (0 if u is None else u for u in t)
        mean = 0.5 * (ta + tb)
        return np.where(is_chosen(a, b), ta, np.where(is_chosen(b, a), tb, mean))

    return rule


def multilinear(function: Callable[..., Array]) -> Rule:
    """Return the rule of a product: the sum of one term for each factor that has a tangent."""
    return lambda x, y, t: added(
        [function(*x[:n], u, *x[n + 1 :]) for n, u in enumerate(t) if u is not None]
    )


def _of_each(slope: Callable[[Array, Array], Array]) -> Rule:
    """Return the rule of a function that has the same slope formula for each operand."""
    return lambda x, y, t: added([_times(slope(a, y), u) for a, u in zip(x, t, strict=True)])


# The tangent of a function of operands x with value y, from their tangents t; None for none.
_RULES: dict[np.ufunc, Rule] = {
    np.add: lambda x, y, t: added(t),
    np.subtract: lambda x, y, t: added([t[0], _times(-1, t[1])]),
    np.multiply: multilinear(np.multiply),
    np.divide: lambda x, y, t: added([t[0], _times(-y, t[1])]) / x[1],
    np.power: _power,
    np.float_power: _power,
    np.arctan2: lambda x, y, t: (
        added([_times(x[1], t[0]), _times(-x[0], t[1])]) / (x[0] * x[0] + x[1] * x[1])
    ),
    np.hypot: _of_each(lambda a, y: a / y),
    np.logaddexp: _of_each(lambda a, y: np.exp(a - y)),
    np.logaddexp2: _of_each(lambda a, y: np.exp2(a - y)),
    np.fmod: lambda x, y, t: added([t[0], _times(-np.trunc(x[0] / x[1]), t[1])]),
    np.remainder: lambda x, y, t: added([t[0], _times(-np.floor_divide(x[0], x[1]), t[1])]),
    np.copysign: _copysign,
    np.ldexp: lambda x, y, t: np.ldexp(t[0], x[1]),
    np.maximum: _chosen_by(np.greater),
    np.minimum: _chosen_by(np.less),
}
# Products of vectors and matrices, if this release of NumPy has them.
for _name in ("matmul", "vecdot", "matvec", "vecmat"):
    if _ufunc := getattr(np, _name, None):
        _RULES[_ufunc] = multilinear(_ufunc)
_RULES |= {f: _of_each(slope) for f, slope in SLOPES.items()}
_RULES |= dict.fromkeys(FLAT, lambda x, y, t: None)


def _refused(ufunc: np.ufunc, method: str, kwargs: dict[str, Any]) -> TypeError:
    name = ufunc.__name__
    known = getattr(np, name, None) is ufunc or name == "clip"
    name = f"numpy.{name}" if known else f"the ufunc {name}"
    name += "" if method == "__call__" else f".{method}"
    return refusal(name + (f" with {', '.join(kwargs)}" if kwargs else ""))


def extreme(
    op: str, a: object, axis: Any = None, keepdims: bool = False, **others: Any
) -> tuple[Array, Array | None]:
    """
    Return the largest or the smallest value along axes and its tangent.

    For equal values the tangent is the mean of their tangents.
    """
    used = [n for n, value in others.items() if value is not None and value is not True]
    if used or not isinstance(a, Pair):
        raise refusal(f"numpy.{op}" + (f" with {', '.join(used)}" if used else ""))
    x, t, method = a.value, a.tangent, "max" if "max" in op else "min"
    value, largest = getattr(x, method)(axis), getattr(x, method)(axis, keepdims=True)
    with np.errstate(all="ignore"):
        which = x == largest
        tangent = np.where(which, t, 0).sum(axis, keepdims=keepdims)
        tangent = tangent / which.sum(axis, keepdims=keepdims)
    return largest if keepdims else value, tangent


def _reduced(
    ufunc: np.ufunc, method: str, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Array, Array | None]:
    """Return the result of a reduction of a ufunc, and its tangent."""
    (a, *rest), run = inputs, getattr(ufunc, method)
    if ufunc in (np.maximum, np.minimum) and method == "reduce":
        return extreme(f"{ufunc.__name__}.reduce", a, *(rest or (kwargs.pop("axis", 0),)), **kwargs)
    if not isinstance(a, Pair) or any(isinstance(k, Pair) for k in (*rest, *kwargs.values())):
        raise _refused(ufunc, method, {})
    if ufunc in FLAT and method == "reduce":
        return run(a.value, *rest, **kwargs), None
    complex_ = ufunc is np.multiply and method != "reduceat" and kwargs.get("dtype") is None
    if not (ufunc is np.add or complex_):
        raise _refused(ufunc, method, {})
    value = run(a.value, *rest, **kwargs)
    with np.errstate(all="ignore"):
        if complex_:
            # Products of complex numbers are products of dual numbers, even if some are zero.
            return value, run(dual(a.value, a.tangent), *rest, **kwargs).imag
        kwargs = {name: k for name, k in kwargs.items() if name != "initial"}
        return value, run(a.tangent, *rest, **kwargs)


def apply(
    ufunc: np.ufunc, method: str, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Array, Array | None]:
    """Return the result of a ufunc and its tangent, None if it has none."""
    x = [np.asarray(a) if isinstance(a, (list, tuple)) else value_of(a) for a in inputs]
    t = [tangent_of(a) for a in inputs]
    if method in ("reduce", "accumulate", "reduceat"):
        return _reduced(ufunc, method, inputs, kwargs)
    if method not in ("__call__", "outer") or kwargs or ufunc.nout > 1:
        raise _refused(ufunc, method, kwargs)
    if ufunc.__name__ == "clip":
        found: Any = np.clip(*inputs)
        return found.value, found.tangent
    if ufunc not in _RULES:
        raise _refused(ufunc, method, kwargs)
    value = getattr(ufunc, method)(*x)
    if method == "outer":
        # Give the first operand an axis of size 1 for each axis of the second.
        ones = (1,) * np.ndim(x[1])
        x, t = ([None if a is None else np.reshape(a, np.shape(a) + o) for a, o in
                 zip(both, (ones, ()), strict=True)] for both in (x, t))  # fmt: skip
    with np.errstate(all="ignore"):
        tangent: Any = _RULES[ufunc](x, value, t)
    # Two arrays must not share memory for their tangents.
    return value, tangent.copy() if any(tangent is u for u in t if u is not None) else tangent
