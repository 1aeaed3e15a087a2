"""Memory that is written anew for every block of a sequence, and products rounded once."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array
from ..checks.arrays import cast, compute_dtype

# Elements [t, B, H] whose gradients NumPy makes at once: their planes stay in a core's cache.
CHUNK = 32768

# The GNU C library gives freed memory back to the system once it is twice as much as the largest
# array it ever gave back: a call that frees a little more pays a page fault for every 4 kB of its
# next results. After an array of 32 MB, which nobody touches, up to 64 MB stay with the process.
np.empty((32 << 20) - (64 << 10), np.uint8)


class Scratch:
    """
    Memory for an array that each block of a sequence writes anew.

    Fresh memory costs a page fault every few kB, which may take longer than filling it.
    """

    def __init__(self, xp: ModuleType, dtype: np.dtype[Any]) -> None:
        self._xp, self._dtype = xp, dtype
        self._memory: Array | None = None

    def __call__(self, *shape: int) -> Array:
        """Return an array of this shape, with anything in it; the one before is lost."""
        size = math.prod(shape)
        if self._memory is None or self._memory.size < size:
            self._memory = self._xp.empty(size, self._dtype)
        return self._memory[:size].reshape(shape)


def product(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    """Return a*b in this dtype, rounded once."""
    compute = compute_dtype(dtype)
    return cast(cast(a, compute) * cast(b, compute), dtype)
