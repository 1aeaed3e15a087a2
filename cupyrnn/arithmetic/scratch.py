"""Scratch memory, reused for every block of a sequence, and products rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import numpy as np

from .._typing import Array
from ..checks.arrays import cast, compute_dtype

_Views = TypeVar("_Views")

# Elements [t, B, H] whose gradients NumPy computes at a time: their planes stay in a core's cache.
CHUNK = 32768

# Elements of small steps: of one, and of all together. A call of a ufunc costs as much as its
# arithmetic there, and memory for all steps stays in the cache.
SMALL_STEP, _SMALL_STEPS = 4096, 1 << 16

# The GNU C library returns freed memory to the system when it exceeds twice the size of the largest
# array returned so far. A call just above this limit pays a page fault for every 4 kB of its next
# results. This array of 32 MB, which is never touched, raises the limit to 64 MB.
np.empty((32 << 20) - (64 << 10), np.uint8)


def are_small(steps: int, size: int, dtype: np.dtype[Any]) -> bool:
    """Return whether steps of `size` elements of real numbers are small."""
    return dtype.kind == "f" and size < SMALL_STEP and steps * size <= _SMALL_STEPS


# The memories that are kept for later calls, and the most bytes of each.
_KEPT, _MOST_BYTES = 4, 1 << 24
# About what the views of a step need.
_VIEWS_OF_STEP = 2048


class Scratch:
    """
    Memory for an array that each block of a sequence overwrites.

    New memory costs a page fault every few kB, which may take longer than filling it.
    """

    def __init__(self, xp: ModuleType, dtype: np.dtype[Any]) -> None:
        self._xp, self._dtype = xp, dtype
        self._memory: Array | None = None
        self._views: dict[Any, Any] = {}
        self.nbytes = 0

    def __call__(self, *shape: int) -> Array:
        """Return an uninitialized array of this shape; the array before is overwritten."""
        size = math.prod(shape)
        if self._memory is None or self._memory.size < size:
            self._memory = self._new(size)
        return self._memory[:size].reshape(shape)

    def _new(self, *shape: int) -> Array:
        array: Array = self._xp.empty(shape, self._dtype)
        self.nbytes += array.nbytes
        return array

    def views(self, make: Callable[..., _Views], t: int, *sizes: Any) -> _Views:
        """
        Return make(new, t, *sizes): arrays of t steps and their views, made once.

        `new` returns an uninitialized array of a shape. All views are of such arrays.
        """
        key = make, t, *sizes
        found: _Views | None = self._views.get(key)
        if found is None:
            found = self._views[key] = make(self._new, t, *sizes)
            self.nbytes += t * _VIEWS_OF_STEP
        return found


class Memory(dict[tuple[Any, Any], Scratch]):
    """
    The scratch memory of an operation, by name, or by the number of a product, and dtype.

    In NumPy later operations use it again, one at a time: a thread, or a signal handler inside a
    call, takes memory of its own. After an error it is not used again.
    """

    _free: ClassVar[list[Memory]] = []

    def __init__(self, xp: ModuleType) -> None:
        self._xp = xp

    def __missing__(self, key: tuple[Any, Any]) -> Scratch:
        found = self[key] = Scratch(self._xp, key[1])
        return found

    @classmethod
    def take(cls, xp: ModuleType) -> Memory:
        """Return memory that nobody uses."""
        try:
            return cls._free.pop() if xp is np else cls(xp)
        except IndexError:
            return cls(xp)

    def give_back(self) -> None:
        """Keep the memory for later operations, if it is not large."""
        nbytes = sum([scratch.nbytes for scratch in self.values()])
        if self._xp is np and nbytes <= _MOST_BYTES and len(self._free) < _KEPT:
            self._free.append(self)


def product(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    """Return a*b in this dtype, rounded once."""
    compute = compute_dtype(dtype)
    return cast(cast(a, compute) * cast(b, compute), dtype)
