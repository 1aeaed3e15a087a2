"""What all cells do over many time steps at once, written once for both array modules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arrays import cast

if TYPE_CHECKING:
    from ._arrays import Array

# Rows of one whole-sequence matmul. On a CPU, fewer and the sum over blocks begins to cost as much
# as the matmul; more and the gate gradients, held for one block at a time, leave the cache. On a
# GPU the block only bounds the memory.
_CPU_ROWS, _GPU_ROWS = 1024, 16384

# Elements [t, B, H] whose gradients' factors NumPy makes at once: their planes stay in a core's
# cache.
CHUNK = 32768


def block_rows(xp: ModuleType) -> int:
    """Return the number of rows that one whole-sequence matmul takes at least."""
    return _CPU_ROWS if xp is np else _GPU_ROWS


def time_blocks(xp: ModuleType, T: int, B: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the blocks of time steps that are taken together, in order."""
    n = max(1, -(-block_rows(xp) // max(B, 1)))
    return ((lo, min(lo + n, T)) for lo in range(0, T, n))


class Scratch:
    """
    Memory for an array that each block of a sequence writes anew.

    Fresh memory costs a page fault every few kB, which may take longer than filling it.
    """

    def __init__(self, xp: ModuleType, dtype: np.dtype[Any]) -> None:
        self._xp = xp
        self._memory: Array = xp.empty(0, dtype)

    def __call__(self, *shape: int) -> Array:
        """Return an array of this shape, with anything in it; the one before is lost."""
        size = math.prod(shape)
        if self._memory.size < size:
            self._memory = self._xp.empty(size, self._memory.dtype)
        return self._memory[:size].reshape(shape)


def exp_of(dtype: np.dtype[Any]) -> Any:
    """
    Return np.exp for a sigmoid 1/(1 + exp(z)).

    Where exp overflows the sigmoid is 0, as 1/inf is; but a complex exp gives inf+inf*j, whose
    reciprocal is NaN. There it ends at exp(700).
    """
    if dtype.kind != "c":
        return np.exp
    return lambda z, out: np.exp(np.minimum(z.real, 700) + 1j * z.imag, out)


def rows(a: Array, dtype: np.dtype[Any]) -> Array:
    """Return a[t, B, N] as [t*B, N] in the dtype of an operand, a view where it can be."""
    return cast(a, dtype).reshape(a.shape[0] * a.shape[1], a.shape[2])


def transposed(xp: ModuleType, w: Array, steps: int) -> Array:
    """
    Return w.T for a product in each of these steps.

    With a view each is up to twice as slow as with a copy in C order, but for a single step the
    copy takes longer. The kernels want it in any case.
    """
    return w.T if xp is np and steps == 1 else xp.ascontiguousarray(w.T)


def matmul(xp: ModuleType, a: Array, b: Array, out: Array) -> None:
    """Compute out = a @ b; `out` may be of another dtype and is 2-D like the operands."""
    if xp is not np:
        from .kernels.blas import gemm

        gemm(a, b, out)
    elif out.dtype == a.dtype:
        np.matmul(a, b, out=out)
    else:
        out[...] = a @ b


def add_matmul(xp: ModuleType, a: Array, b: Array, out: Array, scratch: Scratch) -> None:
    """Compute out += a @ b; `scratch` is of the dtype of out."""
    if xp is not np:
        from .kernels.blas import gemm

        gemm(a, b, out, accumulate=True)
    else:
        product = scratch(*out.shape)
        np.matmul(a, b, out=product)
        out += product


def add_state_matmul(
    xp: ModuleType,
    first: Array,
    states: Array,
    lo: int,
    g: Array,
    out: Array,
    scratch: Scratch,
) -> None:
    """
    Compute out += states_before.T @ g over t time steps, without a copy of the states.

    Parameters
    ----------
    first : [B, H]
        The state before step 0.
    states : [T, B, H]
        The state after each step.
    lo
        The step that g begins with.
    g : [t, B, N]
        The gradients at the steps lo..lo+t-1.
    out : [H, N]
        Updated.
    scratch
        Of the dtype of out.
    """
    if lo == 0:
        add_matmul(xp, cast(first, g.dtype).T, g[0], out, scratch)
        g = g[1:]
    start = max(lo - 1, 0)
    if len(g):
        before = rows(states[start : start + len(g)], g.dtype)
        add_matmul(xp, before.T, rows(g, g.dtype), out, scratch)


def previous(first: Array, states: Array, lo: int, hi: int, dtype: np.dtype[Any]) -> Array:
    """Return, for NumPy, the states before the steps lo..hi-1, a view where it can be."""
    if lo:
        return cast(states[lo - 1 : hi - 1], dtype)
    if hi == 1:
        return cast(first, dtype)[None]
    out = np.empty((hi, *first.shape), dtype)
    out[0] = first
    out[1:] = states[: hi - 1]
    return out


def column_sums(g: Array) -> Array:
    """Return, for NumPy, the sums of the columns of g[N, M]: as a matmul, faster than a sum."""
    sums: Array = np.ones(g.shape[0], g.dtype) @ g
    return sums


def add_column_sums(xp: ModuleType, g: Array, sums: Array) -> None:
    """Add the sums of the columns of g[N, M] to sums[M], which is of the computation's dtype."""
    if xp is np:
        sums += column_sums(g)
    else:
        from .kernels import launch

        launch.add_column_sums("", launch.SUMS, g, sums)
