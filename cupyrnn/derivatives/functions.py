"""
The tangents of NumPy's functions of arrays. NumPy computes the value, a rule computes the tangent.

A function is linear in some of its arguments, or a product, or analytic, or depends on values only;
a few have their own rule. All others are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ..checks.arrays import array_kind, module_of
from .duals import dual
from .rules import Pair, extreme, multilinear, refusal, tangent_of, value_of
from .tree import tree_map

Function: TypeAlias = Callable[..., Any]
Args: TypeAlias = tuple[object, ...]
Kwargs: TypeAlias = dict[str, Any]


def _named(names: str) -> dict[Function, str]:
    """Return functions of NumPy with their names, if this release has them."""
    parts = [name.rpartition(".") for name in names.split()]
    found: dict[Any, str] = {
        getattr(np.linalg if m else np, name, None): name for m, _, name in parts
    }
    found.pop(None, None)
    return found


# Linear functions, by the arguments in which they are linear, in order; "_" stands for another
# argument, "*" for all arguments. The tangent is the function of these arguments' tangents.
_LINEAR: dict[Function, list[str]] = {
    function: arguments.split()
    for arguments, names in {
        "a": "copy cumsum diagonal expand_dims mean moveaxis permute_dims ravel repeat reshape"
        " resize roll rollaxis squeeze swapaxes take trace transpose",
        "a _ _ _ _ initial": "sum",
        "a _ _ prepend append": "diff",
        "*": "atleast_1d atleast_2d atleast_3d broadcast_arrays meshgrid",
        "_ a": "compress",
        "_ choices": "choose",
        "_ choicelist default": "select",
        "_ x y": "where",
        "_ arr": "extract",
        "arr": "delete take_along_axis",
        "arr values": "append",
        "arr _ values": "insert",
        "array": "broadcast_to",
        "array _ _ constant_values end_values": "pad",
        "arrays": "block concat concatenate stack",
        "ary": "array_split dsplit hsplit split vsplit",
        "ary to_end to_begin": "ediff1d",
        "A": "tile",
        "m": "flip fliplr flipud rot90 tril triu",
        "tup": "column_stack dstack hstack row_stack vstack",
        "v": "diag diagflat",
        "val": "real real_if_close",
        "x": "cumulative_sum linalg.diagonal linalg.matrix_transpose linalg.trace matrix_transpose"
        " unstack",
    }.items()
    for function in _named(names)
}
_LINEAR[np.lib.stride_tricks.sliding_window_view] = ["x"]

# Products: linear in each of their arguments.
_PRODUCTS = _named(
    "convolve correlate cross dot einsum inner kron outer tensordot vdot linalg.cross linalg.matmul"
    " linalg.outer linalg.tensordot linalg.vecdot"
)
# Functions whose complex arithmetic is also dual arithmetic.
_ANALYTIC = _named(
    "average cumprod cumulative_prod gradient prod trapezoid trapz vander linalg.det linalg.inv"
    " linalg.matrix_power linalg.multi_dot linalg.solve"
)
# Functions whose results depend on values only.
_FLAT = _named(
    "all allclose any argmax argmin argpartition argsort argwhere around array2string array_equal"
    " array_equiv array_repr array_str can_cast common_type count_nonzero digitize fix flatnonzero"
    " imag in1d isclose iscomplex iscomplexobj isin isneginf isposinf isreal isrealobj lexsort"
    " linalg.matrix_rank may_share_memory min_scalar_type ndim nonzero result_type round round_"
    " searchsorted shape shares_memory size"
)
_EXTREMES = _named("amax amin max min")

# The modes in which numpy.pad is linear.
_PAD_MODES = ("constant", "edge", "linear_ramp", "mean", "reflect", "symmetric", "wrap")


def _zero_of(a: object) -> Any:
    """Return zeros of the dtype of `a`: the tangent of an object without one."""
    if isinstance(a, np.ndarray | np.generic):
        return np.zeros(a.shape, a.dtype)[()] if isinstance(a, np.generic) else np.zeros_like(a)
    if array_kind(a) == "cupy":
        return module_of(a).zeros_like(a)
    return type(a)(0) if isinstance(a, int | float) else a


def tangent_or_zero(a: object) -> Any:
    return a.tangent if isinstance(a, Pair) else _zero_of(a)


def _linear(func: Function, names: list[str], args: Args, kwargs: Kwargs) -> Any:
    """Return the tangent of a function that is linear in these arguments."""

    def part(name: str, a: object) -> Any:
        return tree_map(tangent_or_zero if name in names else value_of, a)

    if names == ["*"]:
        return func(*tree_map(tangent_or_zero, args), **tree_map(value_of, kwargs))
    padded = [*names, *"_" * len(args)]
    parts = [part("" if n == "_" else n, a) for n, a in zip(padded, args, strict=False)]
    return func(*parts, **{n: part(n, a) for n, a in kwargs.items()})


def _product(func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Return the tangent of a product."""
    leaves: list[Any] = []
    structure = tree_map(leaves.append, (args, kwargs))

    def product(*factors: Any) -> Any:
        rest = iter(factors)
        args, kwargs = tree_map(lambda _: next(rest), structure)
        return func(*args, **kwargs)

    values, tangents = ([part(a) for a in leaves] for part in (value_of, tangent_of))
    return multilinear(product)(values, None, tangents)


def _dual_or_plain(a: object) -> Any:
    return dual(a.value, a.tangent) if isinstance(a, Pair) else a


def _imaginary(a: Any) -> Any:
    return a.imag if getattr(a, "dtype", np.dtype(bool)).kind == "c" else None


def _analytic(func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Return the tangent of an analytic function."""
    found = func(*tree_map(_dual_or_plain, args), **tree_map(_dual_or_plain, kwargs))
    return tree_map(_imaginary, found)


def _only(func: str, kwargs: Kwargs, *names: str) -> None:
    """Refuse arguments without a rule."""
    used = [n for n, a in kwargs.items() if n not in names and a is not None]
    if used:
        raise refusal(f"numpy.{func} with {', '.join(used)}")


def _clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, **kwargs: Any) -> Any:
    low, high = kwargs.pop("min", a_min), kwargs.pop("max", a_max)
    _only("clip", kwargs)
    a = np.positive(a) if low is None else np.maximum(a, low)
    return a if high is None else np.minimum(a, high)


def _ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    keepdims = keepdims is True
    return np.max(a, axis, keepdims=keepdims) - np.min(a, axis, keepdims=keepdims)


def _std(a: Any, *args: Any, **kwargs: Any) -> Any:
    return np.sqrt(np.var(a, *args, **kwargs))


def _var(a: Any, axis: Any = None, **kwargs: Any) -> tuple[Any, Any]:
    _only("var", kwargs, "ddof", "keepdims")
    kwargs = {n: k for n, k in kwargs.items() if n == "ddof" or k is True}
    v, t = a.value, a.tangent
    value = np.var(v, axis=axis, **kwargs)
    with np.errstate(all="ignore"):
        mean = v.mean(axis=axis, keepdims=True)
        count = v.size // mean.size - kwargs.pop("ddof", 0)
        return value, 2 / count * ((v - mean) * t).sum(axis=axis, **kwargs)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> tuple[Any, Any]:
    """The Euclidean norm of a vector, along an axis, or of all elements."""
    is_vector = isinstance(axis, int) or (axis is None and x.value.ndim == 1)
    if not (ord is None or (ord == 2 and is_vector) or (ord == "fro" and not is_vector)):
        raise refusal(f"numpy.linalg.norm with ord={ord!r}")
    value = np.linalg.norm(x.value, ord, axis, keepdims)
    with np.errstate(all="ignore"):
        return value, (x.value * x.tangent).sum(axis=axis, keepdims=keepdims) / value


def _nan_to_num(x: Any, copy: bool = True, **kwargs: Any) -> Any:
    if not copy:
        raise refusal("numpy.nan_to_num with copy")
    return np.where(np.isfinite(x), x, np.nan_to_num(x.value, **kwargs))


def _sort(a: Any, axis: Any = -1, **kwargs: Any) -> Any:
    _only("sort", kwargs, "kind", "stable")
    a, axis = (a.ravel(), -1) if axis is None else (a, axis)
    return np.take_along_axis(a, np.argsort(a.value, axis, kind="stable"), axis)


def _like(func: Function) -> Callable[..., Any]:
    """Return the rule of a function such as zeros_like."""

    def rule(a: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        value = func(value_of(a), *tree_map(value_of, args), **tree_map(value_of, kwargs))
        tangent = np.zeros_like(value)
        fill = kwargs.get("fill_value", args[0] if args else None)
        if func is np.full_like and isinstance(fill, Pair):
            tangent[...] = fill.tangent
        return value, tangent

    return rule


# Functions with rules of their own. They return a value and its tangent, or compute with pairs.
_OWN: dict[Function, Function] = {
    np.clip: _clip,
    np.ptp: _ptp,
    np.var: _var,
    np.std: _std,
    np.linalg.norm: _norm,
    np.nan_to_num: _nan_to_num,
    np.sort: _sort,
    **{f: _like(f) for f in (np.zeros_like, np.ones_like, np.empty_like, np.full_like)},
}


def _check(func: Function, args: Args, kwargs: Kwargs) -> None:
    """Refuse modes and dtypes in which a function is not linear or analytic."""
    if func is np.pad:
        mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
        if not isinstance(mode, str) or mode not in _PAD_MODES:
            raise refusal(f"numpy.pad with mode={mode!r}")
    if func in _ANALYTIC and kwargs.get("dtype") is not None:
        raise refusal(f"numpy.{func.__name__} with dtype")


def apply(func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, Any]:
    """
    Return the result of a function of NumPy and its tangent.

    The tangent has the same structure, with None for parts that have no tangent.
    """
    if func in _OWN:
        first = (*args, *kwargs.values())[0]
        if not (isinstance(first, Pair) or func in (np.clip, np.full_like)):
            raise refusal(f"numpy.{func.__name__} of these arguments")
        found = _OWN[func](*args, **kwargs)
        return (found.value, found.tangent) if isinstance(found, Pair) else found
    if func in _EXTREMES:
        names = ("a", "axis", "out", "keepdims", "initial", "where")
        arguments: Kwargs = dict(zip(names, args, strict=False)) | kwargs
        arguments["keepdims"] = arguments.get("keepdims", False) is True
        return extreme(func.__name__, **arguments)
    if not (func in _FLAT or func in _LINEAR or func in _PRODUCTS or func in _ANALYTIC):
        module = getattr(func, "__module__", "numpy").removesuffix("._linalg")
        raise refusal(f"{module}.{func.__name__}")
    _check(func, args, kwargs)
    value = func(*tree_map(value_of, args), **tree_map(value_of, kwargs))
    if func in _FLAT:
        return value, tree_map(lambda _: None, value)
    with np.errstate(all="ignore"):
        if func in _LINEAR:
            return value, _linear(func, _LINEAR[func], args, kwargs)
        return value, (_product if func in _PRODUCTS else _analytic)(func, args, kwargs)
