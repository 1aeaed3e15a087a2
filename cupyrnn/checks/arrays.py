"""Arrays of NumPy and CuPy: their modules, devices, dtypes and layouts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array

FLOATS = ("float16", "bfloat16", "float32", "float64")

# Subclasses of numpy.ndarray with another arithmetic (matrices, masked arrays, units) override one
# of these.
_ARITHMETIC = ["__array_ufunc__", "__array_function__", "__add__", "__sub__", "__mul__"]
_ARITHMETIC += ["__truediv__", "__pow__", "__matmul__"]


class NotRecordable(Exception):
    """A call cannot be a fixed list of operations over the arrays of a caller."""


def array_kind(a: object) -> str | None:
    """Return "numpy" or "cupy", None for other objects. Never imports CuPy."""
    if type(a) is np.ndarray:
        return "numpy"
    cupy = sys.modules.get("cupy")
    if isinstance(a, getattr(cupy, "ndarray", ())):
        return "cupy"
    if isinstance(a, np.ndarray) and all(
        getattr(type(a), name) is getattr(np.ndarray, name) for name in _ARITHMETIC
    ):
        return "numpy"
    return None


def module_of(a: Array) -> ModuleType:
    """Return the module of an array; NumPy for numbers."""
    return sys.modules["cupy"] if array_kind(a) == "cupy" else np


def plain(a: Array) -> Array:
    """
    Return an array that `check_arrays` accepts as a plain array, without a copy.

    Memory maps and other subclasses with ndarray's arithmetic become plain arrays.
    """
    return np.asarray(a) if isinstance(a, np.ndarray) else a


def on_device(xp: ModuleType, a: Array) -> AbstractContextManager[Any]:
    """
    Return the context in which a call computes.

    New CuPy arrays are made on the device of `a`. NumPy does not warn or raise, whatever the caller
    has set with np.seterr: a closed gate is not an error, and inf and NaN are results.
    """
    if xp is np:
        return np.errstate(all="ignore")
    array: Any = a
    device: AbstractContextManager[Any] = array.device
    return device


def operand_dtype(xp: ModuleType, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """
    Return the dtype of the operands of a matmul.

    Half formats are widened in NumPy, which would accumulate in half precision. They are kept in
    CuPy: cuBLAS uses tensor cores and accumulates in float32.
    """
    return compute_dtype(dtype) if xp is np else dtype


def tf32_allowed() -> bool:
    """Return whether CUPY_TF32 allows TF32: as in CuPy, if it is an integer above 0."""
    try:
        return int(os.environ.get("CUPY_TF32", "0")) > 0
    except ValueError:
        return False


def aligned(xp: ModuleType, a: Array) -> Array:
    """Return `a`, or an aligned copy: a GPU faults at items that are not."""
    array: Any = a
    if xp is np or not any(n % a.itemsize for n in (array.data.ptr, *a.strides)):
        return a
    # The copy is by bytes, because a GPU cannot read the items.
    return a[..., None].view(np.uint8).copy().view(a.dtype)[..., 0]


def contiguous(xp: ModuleType, a: Array) -> Array:
    """Return `a` aligned and in C order for kernels; unchanged in NumPy, which takes any layout."""
    return np.asarray(a) if xp is np else xp.ascontiguousarray(aligned(xp, a))


def contiguous_all(xp: ModuleType, arrays: Sequence[Array | None]) -> list[Any]:
    """Return arrays in C order, None for None."""
    return [None if a is None else contiguous(xp, a) for a in arrays]


def address(a: Array | None) -> int:
    """
    Return the address of an array in C order on its device, 0 (null) for None.

    Kernels and libraries that get only an address read the array in C order. With another layout
    they would read foreign memory, so such an array is refused here.
    """
    if a is None:
        return 0
    array: Any = a
    if not array.flags.c_contiguous:
        raise RuntimeError(
            f"an array with shape {a.shape} and strides {a.strides} reached a kernel, which reads"
            " arrays in C order; this is a bug in cupyrnn, please report it"
        )
    pointer: int = array.data.ptr
    return pointer


def strided_address(a: Array) -> int:
    """Return the address of an array on its device, for code that gets its strides too."""
    array: Any = a
    pointer: int = array.data.ptr
    return pointer


def cast(a: Array, dtype: np.dtype[Any]) -> Array:
    """Return `a` in this dtype, without a copy if it has it."""
    return a if a.dtype == dtype else a.astype(dtype)


def cast_all(dtype: np.dtype[Any], *arrays: Array | None) -> list[Any]:
    """Return the arrays of a call in its dtype; a real array gets tangents of zero."""
    return [
        a if a is None or a.dtype == dtype else aligned(module_of(a), a).astype(dtype)
        for a in arrays
    ]


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the computation: float32 for the two half formats."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def time_major_of(
    xp: ModuleType, dtype: np.dtype[Any], major: bool, arrays: Sequence[Array | None]
) -> list[Any]:
    """
    Return arrays in time-major order, [T, B, ·] or [L*D, B, ·].

    In a complex dtype, arrays without a tangent get one of zero.
    """
    of_dtype = cast_all(dtype, *arrays)
    return [a if major or a is None else contiguous(xp, a.transpose(1, 0, 2)) for a in of_dtype]


def in_axes_of_caller(xp: ModuleType, a: Array | None, major: bool, dtype: np.dtype[Any]) -> Any:
    """Return a time-major result in the caller's order of axes; a scalar zero for None."""
    if a is None:
        return xp.zeros((), dtype)
    return a if major else xp.ascontiguousarray(a.transpose(1, 0, 2))
