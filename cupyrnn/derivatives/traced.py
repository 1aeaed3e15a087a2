"""
Arrays of dual numbers in the hands of a user's function.

`jvp` calls a function with them. What NumPy and CuPy do to them has its derivative, to first order
and with the value of the real function, or is refused by name: a function that NumPy defines for
complex numbers otherwise than a derivative wants, as abs, would lose the tangent without a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from .._arrays import array_kind, module_of

_F = TypeVar("_F", bound=Callable[..., Any])

# How many calls of `jvp` are under way: only then can an op be given a traced array.
_under_way = 0

# Sums and products, which complex arithmetic has to first order as it is.
_EXACT = {np.add, np.subtract, np.negative, np.positive, np.multiply, np.divide, np.matmul}
_EXACT |= {np.square}
_EXACT_METHODS = {"__call__", "reduce", "accumulate", "reduceat", "outer"}

# The slope of a function of x, whose value there is y.
_SLOPES: dict[Any, Callable[[Any, Any], Any]] = {
    np.exp: lambda x, y: y,
    np.exp2: lambda x, y: y * np.log(2),
    np.expm1: lambda x, y: y + 1,
    np.log: lambda x, y: 1 / x,
    np.log2: lambda x, y: 1 / (x * np.log(2)),
    np.log10: lambda x, y: 1 / (x * np.log(10)),
    np.log1p: lambda x, y: 1 / (1 + x),
    np.sqrt: lambda x, y: 0.5 / y,
    np.cbrt: lambda x, y: 1 / (3 * y * y),
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
    np.absolute: lambda x, y: np.sign(x),
    np.fabs: lambda x, y: np.sign(x),
}

# What depends on values alone and has no tangent.
_FLAT = {np.sign, np.floor, np.ceil, np.trunc, np.rint, np.floor_divide}
_FLAT |= {np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal}
_FLAT |= {np.isnan, np.isinf, np.isfinite, np.signbit}
_FLAT |= {np.logical_and, np.logical_or, np.logical_not, np.logical_xor}

_LARGER = {np.maximum: np.greater, np.minimum: np.less}


def _functions(names: str) -> set[Any]:
    """Return functions of NumPy by name, those that this release has."""
    parts = [name.rpartition(".") for name in names.split()]
    found = (getattr(np.linalg if of else np, name, None) for of, _, name in parts)
    return {f for f in found if f is not None}


# Functions that place, sum and multiply, or are analytic: complex arithmetic has them as they are.
_EXACT_FUNCTIONS = _functions(
    "append array_split atleast_1d atleast_2d atleast_3d average block broadcast_arrays"
    " broadcast_to choose column_stack compress concatenate concat convolve copy copyto cross"
    " cumprod cumsum cumulative_prod cumulative_sum delete diag diagflat diagonal diff dot dsplit"
    " dstack einsum empty_like expand_dims extract flip fliplr flipud full_like gradient hsplit"
    " hstack inner insert kron matrix_transpose mean moveaxis ndim ones_like outer pad permute_dims"
    " prod put_along_axis ravel repeat reshape resize roll rollaxis rot90 select shape size split"
    " squeeze stack sum swapaxes take take_along_axis tensordot tile trace transpose trapezoid"
    " trapz tril triu unstack vander vsplit vstack where zeros_like linalg.det linalg.inv"
    " linalg.matmul linalg.matrix_power linalg.multi_dot linalg.outer linalg.solve"
    " linalg.tensordot linalg.trace linalg.diagonal linalg.cross"
)
# Functions whose results depend on values alone.
_FLAT_FUNCTIONS = _functions(
    "all allclose any argmax argmin argsort argwhere array2string array_equal array_equiv"
    " array_repr array_str count_nonzero digitize flatnonzero isclose iscomplexobj isrealobj"
    " may_share_memory nonzero result_type searchsorted shares_memory can_cast"
)
# Functions that NumPy makes of those above.
_THROUGH_FUNCTIONS = _functions("amax amin clip max min ptp")

# Of the methods of arrays those that are as these functions, those that depend on values alone, and
# what is not of the numbers at all.
_EXACT_ARRAY_METHODS = {"copy", "cumprod", "cumsum", "diagonal", "dot", "flatten", "mean", "prod"}
_EXACT_ARRAY_METHODS |= {"ravel", "repeat", "reshape", "squeeze", "sum", "swapaxes", "take"}
_EXACT_ARRAY_METHODS |= {"trace", "transpose"}
_FLAT_ARRAY_METHODS = {"all", "any", "argmax", "argmin", "argsort", "nonzero"}
_ATTRIBUTES = {"device", "dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides"}


class Traced(np.ndarray[Any, Any]):
    """A NumPy array of dual numbers."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in _THROUGH_FUNCTIONS:
            return super().__array_function__(func, types, args, kwargs)
        return _call_function(func, args, kwargs)

    def __getitem__(self, index: Any) -> Any:
        return traced(self.view(np.ndarray)[tree_map(value_of, index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.view(np.ndarray)[tree_map(value_of, index)] = untraced(value)

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "jvp: function takes a complex number to pieces (.real, .imag, .conj), which a"
            " derivative cannot follow"
        )

    real: Any = property(_refused, _refused)
    imag: Any = property(_refused, _refused)
    conj = conjugate = var = std = sort = partition = __complex__ = _refused

    def __array_finalize__(self, obj: Any) -> None:
        """Nothing is carried along but the numbers."""


class TracedOnDevice(NDArrayOperatorsMixin):
    """
    A CuPy array of dual numbers.

    It holds the array and is none: the functions of CuPy that would lose a tangent, or return
    what is no longer traced, do not take it. Those of NumPy, which find CuPy's, do.
    """

    def __init__(self, a: Any) -> None:
        self.dual = a

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in _THROUGH_FUNCTIONS and isinstance(args[0], TracedOnDevice):
            name = {"amax": "max", "amin": "min"}.get(func.__name__, func.__name__)
            return getattr(args[0], name)(*args[1:], **kwargs)
        return _call_function(func, args, kwargs)

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        name = kernel.name.removeprefix("cupy_")
        function = getattr(np, name, None)
        if function is None:
            raise TypeError(f"jvp: cupy.{name} is not among the functions it can follow")
        return function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES:
            return getattr(self.dual, name)
        if name in _EXACT_ARRAY_METHODS:
            return functools.partial(_call_method, getattr(self.dual, name), untraced)
        if name in _FLAT_ARRAY_METHODS:
            return functools.partial(_call_method, getattr(self.dual.real, name), value_of)
        raise AttributeError(f"jvp: cupy.ndarray.{name} is not among what it can follow")

    @property
    def T(self) -> Any:
        """The transpose."""
        return traced(self.dual.T)

    def max(self, axis: Any = None, keepdims: bool = False, **others: Any) -> Any:
        """The largest along axes."""
        return traced(_extreme(np.maximum, self.dual, axis, keepdims, **others))

    def min(self, axis: Any = None, keepdims: bool = False, **others: Any) -> Any:
        """The smallest along axes."""
        return traced(_extreme(np.minimum, self.dual, axis, keepdims, **others))

    def ptp(self, axis: Any = None, keepdims: bool = False) -> Any:
        """The largest less the smallest."""
        return self.max(axis, keepdims) - self.min(axis, keepdims)

    def clip(self, a_min: Any = None, a_max: Any = None) -> Any:
        """The values between bounds."""
        low = self if a_min is None else np.maximum(self, a_min)
        return low if a_max is None else np.minimum(low, a_max)

    def __len__(self) -> int:
        return len(self.dual)

    def __iter__(self) -> Iterator[Any]:
        return (self[n] for n in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        return traced(self.dual[tree_map(value_of, index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.dual[tree_map(value_of, index)] = untraced(value)

    def __bool__(self) -> bool:
        return bool(self.dual.real)

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "jvp: function takes a complex number to pieces (.real, .imag, .conj) or makes"
            " something else of an array (.astype, .get, numpy.asarray), which a derivative cannot"
            " follow"
        )

    real: Any = property(_refused, _refused)
    imag: Any = property(_refused, _refused)
    astype = conj = conjugate = get = item = tolist = var = std = sort = partition = _refused
    __array__ = __complex__ = __float__ = _refused


def _call_method(method: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a method of an array with what is in traced ones."""
    return traced(method(*tree_map(given, args), **tree_map(given, kwargs)))


def _call_ufunc(ufunc: Any, method: str, inputs: Any, kwargs: dict[str, Any]) -> Any:
    """What __array_ufunc__ does, of both kinds of traced arrays."""
    out = kwargs.pop("out", None)
    given = [untraced(a) for a in inputs]
    with np.errstate(all="ignore"):
        result = _apply(ufunc, method, given, kwargs)
    if out is None:
        return traced(result)
    (to,) = out
    if _is_array(result):
        _write(ufunc, untraced(to), result)
    return to


def _call_function(func: Any, args: Any, kwargs: Any) -> Any:
    """What __array_function__ does, of both kinds of traced arrays."""
    if func in _FLAT_FUNCTIONS:
        return func(*tree_map(value_of, args), **tree_map(value_of, kwargs))
    if func in _EXACT_FUNCTIONS:
        return traced(func(*tree_map(untraced, args), **tree_map(untraced, kwargs)))
    module = func.__module__.removesuffix("._linalg")
    raise TypeError(f"jvp: {module}.{func.__name__} is not among the functions it can follow")


def _is_array(a: Any) -> bool:
    """Whether this is an array, or a number of NumPy's."""
    return isinstance(a, np.ndarray | np.generic) or array_kind(a) == "cupy"


def is_dual(a: Any) -> bool:
    """Whether this is an array of dual numbers, or one of them."""
    return _is_array(a) and a.dtype.kind == "c"


def _apply(ufunc: Any, method: str, given: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return the dual numbers that a ufunc makes of dual and real ones."""
    if ufunc in _EXACT and method in _EXACT_METHODS:
        return getattr(ufunc, method)(*given, **kwargs)
    values = [value_of(a) for a in given]
    if ufunc in _FLAT and method in ("__call__", "reduce"):
        return getattr(ufunc, method)(*values, **kwargs)
    if method == "reduce" and ufunc in _LARGER:
        return _extreme(ufunc, given[0], **kwargs)
    if method == "__call__" and not kwargs:
        if ufunc in _SLOPES:
            value = ufunc(*values)
            return dual(value, _SLOPES[ufunc](values[0], value) * given[0].imag)
        if ufunc in _LARGER:
            return _larger(ufunc, *given)
        if ufunc in (np.power, np.float_power):
            return _power(*given)
        if ufunc.__name__ == "clip":
            return _larger(np.minimum, _larger(np.maximum, *given[:2]), given[2])
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    with_ = f" with {', '.join(kwargs)}" if kwargs else ""
    raise TypeError(f"jvp: numpy.{name}{with_} is not among the functions it can follow")


def dual(value: Any, tangent: Any) -> Any:
    """Return dual numbers of their parts."""
    xp = module_of(value)
    value = xp.asarray(value)
    shape = np.broadcast_shapes(value.shape, getattr(tangent, "shape", ()))
    out = xp.empty(shape, np.result_type(value.dtype, np.complex64))
    out.real, out.imag = value, tangent
    return out


def _tangent(a: Any) -> Any:
    return a.imag if is_dual(a) else np.imag(a) if isinstance(a, complex) else 0


def _larger(ufunc: Any, a: Any, b: Any) -> Any:
    """The maximum or the minimum; where both are equal, the mean of their tangents."""
    x, y = value_of(a), value_of(b)
    first, second = _LARGER[ufunc](x, y), _LARGER[ufunc](y, x)
    mean = (_tangent(a) + _tangent(b)) / 2
    return dual(ufunc(x, y), np.where(first, _tangent(a), np.where(second, _tangent(b), mean)))


def _extreme(ufunc: Any, a: Any, axis: Any = 0, keepdims: bool = False, **others: Any) -> Any:
    """The largest or the smallest along axes; the mean of the tangents of those that are."""
    used = [n for n, a in others.items() if a is not None and a is not True]
    if used:
        raise TypeError(
            f"jvp: numpy.{ufunc.__name__}.reduce with {', '.join(used)} is not among the functions"
            " it can follow"
        )
    x = value_of(a)
    value = (x.max if ufunc is np.maximum else x.min)(axis, keepdims=True)
    which = x == value
    tangent = (which * _tangent(a)).sum(axis, keepdims=True) / which.sum(axis, keepdims=True)
    out = dual(value, tangent)
    return out if keepdims else out.squeeze(axis)


def _power(a: Any, b: Any) -> Any:
    x, y = value_of(a), value_of(b)
    value = np.power(x, y)
    tangent = y * np.power(x, y - 1) * _tangent(a)
    if is_dual(b):
        tangent = tangent + value * np.log(x) * _tangent(b)
    return dual(value, tangent)


def _write(ufunc: Any, to: Any, result: Any) -> None:
    if result.dtype.kind == "c" and to.dtype.kind != "c":
        raise TypeError(
            f"jvp: numpy.{ufunc.__name__} writes what has a tangent into an array of dtype"
            f" {to.dtype}, which cannot hold it: make that array of the dtype of an argument"
        )
    to[...] = result


def untraced(a: Any) -> Any:
    """Return a plain array in place of a traced one."""
    if type(a) is Traced:
        return a.view(np.ndarray)
    return a.dual if type(a) is TracedOnDevice else a


def value_of(a: Any) -> Any:
    """Return the values of what may be of dual numbers."""
    a = untraced(a)
    return a.real if is_dual(a) else a


def traced(result: Any) -> Any:
    """Return what a function returned with all arrays of dual numbers traced."""
    return tree_map(_trace, result)


def _trace(a: Any) -> Any:
    if not is_dual(a):
        return a
    return TracedOnDevice(a) if array_kind(a) == "cupy" else np.asarray(a).view(Traced)


def tree_map(f: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return a structure of tuples, named tuples, lists and dicts with f of each leaf."""
    if isinstance(tree, dict):
        return type(tree)((k, tree_map(f, a, *(o[k] for o in others))) for k, a in tree.items())
    if isinstance(tree, tuple | list):
        parts = [tree_map(f, *leaves) for leaves in zip(tree, *others, strict=True)]
        return tree._make(parts) if hasattr(tree, "_make") else type(tree)(parts)
    return f(tree, *others)


class tracing:
    """The context of a call of `jvp`."""

    def __enter__(self) -> None:
        global _under_way
        _under_way += 1

    def __exit__(self, *_: object) -> None:
        global _under_way
        _under_way -= 1


def traceable(op: _F) -> _F:
    """Have a function of arrays take and return traced ones too."""

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _under_way:
            return op(*args, **kwargs)
        seen: list[bool] = []
        tree_map(lambda a: seen.append(type(a) in (Traced, TracedOnDevice)), (args, kwargs))
        result = op(*tree_map(untraced, args), **tree_map(untraced, kwargs))
        return traced(result) if any(seen) else result

    return call  # type: ignore[return-value]
