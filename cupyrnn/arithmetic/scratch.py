"""Scratch memory, reused for every block of a sequence, and products rounded once."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array
from ..checks.arrays import cast, compute_dtype

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


class Scratch:
    """
    Memory for an array that each block of a sequence overwrites.

    New memory costs a page fault every few kB, which may take longer than filling it.
    """

    def __init__(self, xp: ModuleType, dtype: np.dtype[Any]) -> None:
        self._xp, self._dtype = xp, dtype
        self._memory: Array | None = None

    def __call__(self, *shape: int) -> Array:
        """Return an uninitialized array of this shape; the array before is overwritten."""
        size = math.prod(shape)
        if self._memory is None or self._memory.size < size:
            self._memory = self._xp.empty(size, self._dtype)
        return self._memory[:size].reshape(shape)


def product(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    """Return a*b in this dtype, rounded once."""
    compute = compute_dtype(dtype)
    return cast(cast(a, compute) * cast(b, compute), dtype)
