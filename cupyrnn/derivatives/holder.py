"""
`Traced`: the object that a user's function gets instead of an array with a tangent.

It holds two real arrays, values and tangents, but is not an array. Only ufuncs, functions and
methods with a rule accept it, and it cannot be converted to a plain array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..checks.arrays import array_kind, module_of, on_device
from . import functions as _functions
from . import rules as _rules
from .duals import dual
from .rules import Pair, fitted, refusal, value_of
from .tree import tree_map

# Methods that are applied to values and to tangents, methods that call NumPy's function of the same
# name, and attributes that are read from the values.
_LINEAR = {"copy", "diagonal", "flatten", "ravel", "repeat", "reshape", "squeeze", "swapaxes"}
_LINEAR |= {"transpose"}
_AS_FUNCTIONS = {"all", "any", "argmax", "argmin", "argpartition", "argsort", "clip", "cumprod"}
_AS_FUNCTIONS |= {"cumsum", "dot", "max", "mean", "min", "nonzero", "prod", "ptp", "round"}
_AS_FUNCTIONS |= {"searchsorted", "std", "sum", "take", "trace", "var"}
_ATTRIBUTES = {"device", "dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides"}

# The position of the argument out of functions.
_OUT_AT = {
    **dict.fromkeys(("all", "any", "argmax", "argmin", "around", "choose", "concat"), 2),
    **dict.fromkeys(("concatenate", "dot", "max", "min", "amax", "amin", "outer", "ptp"), 2),
    **dict.fromkeys(("round",), 2),
    **dict.fromkeys(("clip", "compress", "cumprod", "cumsum", "mean", "prod", "std", "sum"), 3),
    **dict.fromkeys(("take", "var"), 3),
    "trace": 5,
}


class JvpCall:
    """A call of `jvp`. Arrays of different calls cannot be mixed."""

    def __init__(self, dtypes: str) -> None:
        # The characters of the dtypes that can hold the scaled tangents.
        self.dtypes = dtypes


class TangentLost(TypeError):
    """A conversion or a write would lose a tangent."""


def _plain(*_: Any, **__: Any) -> NoReturn:
    raise TangentLost(
        "jvp: function converts an array with a tangent to a plain array or number (numpy.asarray,"
        " numpy.array, float, item, tolist, a function that is not NumPy's), or writes it into a"
        " plain array: the tangent would be lost. Use numpy.stack to join arrays, and"
        " numpy.zeros_like for an array to write into"
    )


def _in_place(ufunc: Any) -> Callable[[Any, Any], Any]:
    """Return the operator that writes into its first operand; a number is replaced by a new one."""

    def operator(self: Traced, other: Any) -> Any:
        if isinstance(self.value, np.generic):
            return ufunc(self, other)
        return ufunc(self, other, out=(self,))

    return operator


class Traced(Pair, NDArrayOperatorsMixin):
    """
    An array, or a number of NumPy, and its tangent.

    Ops of the package get both as one complex array and return complex arrays. The value and the
    tangent of a result are views of it, so that nothing is copied from op to op.
    """

    __slots__ = ("_dual",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any, tangent: Any, call: JvpCall, whole: Any = None) -> None:
        if value.dtype.char not in call.dtypes or not value.dtype.isnative:
            raise TypeError(
                f"jvp: function converts an array with a tangent to {value.dtype}, expected one of"
                f" {', '.join(np.dtype(c).name for c in call.dtypes)}"
            )
        super().__init__(value, tangent, call)
        self._dual = whole

    @property
    def whole(self) -> Any:
        """The dual numbers."""
        if self._dual is not None:
            return self._dual
        with on_device(module_of(self.value), self.value):
            return dual(self.value, self.tangent)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out, *more = kwargs.pop("out", (None,))
        if more:
            raise refusal(f"numpy.{ufunc.__name__}")
        self._check(inputs, kwargs, out)
        return self._result(*_rules.apply(ufunc, method, inputs, kwargs), out)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in _WRITERS:
            return _WRITERS[func](*args, **kwargs)
        if func in _MAKERS:  # with like=
            value = getattr(module_of(self.value), func.__name__)(*args, **kwargs)
            return self._result(value, np.zeros_like(value))
        out, at = kwargs.get("out"), _OUT_AT.get(func.__name__, len(args))
        if at < len(args):
            out, args = args[at], (*args[:at], None, *args[at + 1 :])
        kwargs = {n: a for n, a in kwargs.items() if n != "out"}
        self._check(args, kwargs, out)
        return self._result(*_functions.apply(func, args, kwargs), out)

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        name = kernel.name.removeprefix("cupy_")
        function = getattr(np, name, None)
        if function is None:
            raise refusal(f"cupy.{name}")
        return function(*args, **kwargs)

    def _check(self, *arguments: Any) -> None:
        """Refuse arrays of another call of jvp, and writing into plain arrays."""

        def check(a: Any) -> None:
            if isinstance(a, Pair) and a.call is not self.call:
                raise TypeError(
                    "jvp: function uses an array of another call of jvp, finished or enclosing:"
                    " there is no jvp of jvp"
                )

        tree_map(check, arguments)
        if arguments[-1] is not None and not isinstance(arguments[-1], Traced):
            _plain()

    def _result(self, value: Any, tangent: Any, out: Any = None) -> Any:
        """Return a function's result with its tangent, written into `out` if there is one."""
        if out is not None:
            out.value[...] = value
            out.tangent[...] = 0 if tangent is None else tangent
            return out
        return tree_map(self._pair, value, value if tangent is None else tangent)

    def _pair(self, value: Any, tangent: Any) -> Any:
        is_float = getattr(getattr(value, "dtype", None), "kind", None) in ("f", "c", "V")
        if tangent is None or tangent is value or not is_float:
            return value
        return Traced(value, fitted(tangent, value), self.call)

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES:
            return getattr(self.value, name)
        if name in _LINEAR:
            return functools.partial(self._linear, name)
        if name in _AS_FUNCTIONS:
            return functools.partial(getattr(np, name), self)
        # Array protocols must raise AttributeError, so that NumPy does not use them.
        if not name.startswith("__") and hasattr(type(self.value), name):
            raise refusal(f"{array_kind(self.value) or 'numpy'}.ndarray.{name}")
        raise AttributeError(f"jvp: an array with a tangent has no attribute {name}")

    def _linear(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the value and of the tangent."""
        args, kwargs = tree_map(value_of, (args, kwargs))
        return self._result(
            *(getattr(a, name)(*args, **kwargs) for a in (self.value, self.tangent))
        )

    @property
    def T(self) -> Any:
        """The transpose."""
        return self._result(self.value.T, self.tangent.T)

    @property
    def mT(self) -> Any:
        """The matrices transposed."""
        return self.swapaxes(-1, -2)

    @property
    def real(self) -> Any:
        """The array itself: the numbers are real."""
        return self

    def conj(self) -> Any:
        """Return the same numbers."""
        return np.conjugate(self)

    conjugate = conj

    def astype(self, dtype: Any, **kwargs: Any) -> Any:
        """Return the numbers in another dtype; integers have no tangent."""
        value = self.value.astype(dtype, **kwargs)
        return self._result(value, self.tangent.astype(dtype) if value.dtype.kind == "f" else None)

    def fill(self, value: Any) -> None:
        """Write a number everywhere."""
        self[...] = value

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return (self[n] for n in range(len(self)))

    def __contains__(self, item: Any) -> bool:
        return value_of(item) in self.value

    def __getitem__(self, index: Any) -> Any:
        index = tree_map(value_of, index)
        if self._dual is not None:
            part = self._dual[index]
            if not isinstance(part, np.generic):
                return Traced(part.real, part.imag, self.call, part)
        return self._result(self.value[index], self.tangent[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check(value, None)
        index = tree_map(value_of, index)
        self.value[index] = value_of(value)
        self.tangent[index] = value.tangent if isinstance(value, Pair) else 0

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        return f"Traced({self.value!r})"

    def __format__(self, spec: str) -> str:
        # For f-strings that show a loss.
        return format(self.value, spec)

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, _: Any) -> Any:
        return self.copy()

    __iadd__, __isub__, __imul__ = map(_in_place, (np.add, np.subtract, np.multiply))
    __itruediv__, __ipow__ = map(_in_place, (np.divide, np.power))
    __ifloordiv__, __imod__ = map(_in_place, (np.floor_divide, np.remainder))
    __imatmul__ = _in_place(np.matmul)

    # These would lose the tangent.
    __array__ = __float__ = __int__ = __complex__ = __index__ = __reduce_ex__ = _plain
    __dlpack__ = __dlpack_device__ = item = tolist = tobytes = get = _plain
    flat = view = data = imag = property(_plain)


def _both(write: Callable[..., Any], source: str, names: str) -> Callable[..., None]:
    """Return a function that writes the argument `source` into values and into tangents."""

    def writer(to: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(to, Traced):
            _plain()
        to._check(args, kwargs, None)
        arguments = dict(zip(names.split(), args, strict=False)) | kwargs
        values = tree_map(value_of, arguments)
        write(to.value, **values)
        write(to.tangent, **values | {source: _functions.tangent_or_zero(arguments[source])})

    return writer


_WRITERS = {
    np.copyto: _both(np.copyto, "src", "src casting where"),
    np.fill_diagonal: _both(np.fill_diagonal, "val", "val wrap"),
    np.put_along_axis: _both(np.put_along_axis, "values", "indices values axis"),
}
_MAKERS = {np.zeros, np.ones, np.full, np.empty}
