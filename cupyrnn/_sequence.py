"""What all cells do over many time steps at once, written for any array module."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ._arrays import cast

if TYPE_CHECKING:
    import numpy as np

    from ._arrays import Array

# Rows of one whole-sequence matmul. Fewer and the sum over blocks begins to cost as much as the
# matmul; more and the gate gradients, held for one block at a time, no longer fit in the cache.
_ROWS = 1024


def time_blocks(T: int, B: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the blocks of time steps that are taken together, in order."""
    n = max(1, -(-_ROWS // max(B, 1)))
    return ((lo, min(lo + n, T)) for lo in range(0, T, n))


def previous(xp: ModuleType, first: Array, seq: Array, lo: int, hi: int, dtype: Any) -> Array:
    """
    Return the states before the steps lo..hi-1.

    Parameters
    ----------
    first : [B, H]
        The state before step 0.
    seq : [T, B, H]
        The state after each step.

    Returns
    -------
    [hi-lo, B, H]
        A new array of the given dtype.
    """
    out: Array = xp.empty((hi - lo, *first.shape), dtype)
    out[0] = seq[lo - 1] if lo else first
    out[1:] = seq[lo : hi - 1]
    return out


def rows(a: Array, dtype: np.dtype[Any]) -> Array:
    """Return a[t, B, N] as [t*B, N] in the dtype of the computation, a view where it can be."""
    return cast(a, dtype).reshape(a.shape[0] * a.shape[1], a.shape[2])


def column_sums(xp: ModuleType, g: Array) -> Array:
    """Return the sums of the columns of g[N, M], as a matmul, which is faster than a sum."""
    sums: Array = xp.ones(g.shape[0], g.dtype) @ g
    return sums
