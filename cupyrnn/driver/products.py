"""What all cells do over many time steps at once, written once for both array modules."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..arithmetic import dual, transposed
from ..arithmetic.transposed import Blocks, Transposed

if TYPE_CHECKING:
    from .._arrays import Array
    from ..arithmetic.dual import Planes
    from ..arithmetic.scratch import Scratch

_T = TypeVar("_T")

# Rows of one whole-sequence matmul. On a CPU, fewer and the sum over blocks begins to cost as much
# as the matmul; more and the gate gradients, held for one block at a time, leave the cache. On a
# GPU the block only bounds the memory.
_CPU_ROWS, _GPU_ROWS = 1024, 16384


def block_rows(xp: ModuleType) -> int:
    """Return the number of rows that one whole-sequence matmul takes at least."""
    return _CPU_ROWS if xp is np else _GPU_ROWS


def factor(xp: ModuleType, w: Array, rows: int, steps: int) -> Array | Planes | Blocks | Transposed:
    """
    Return w[K, N] for a product of as many rows with it in each of these steps.

    On a CPU a product with a transposed view may be slower than with a copy in C order, which has
    to be made first.
    """
    if xp is not np:
        return w
    if w.dtype.kind == "c":
        return dual.factor(w, rows, steps)
    if transposed.blocks_pay(w, rows, steps):
        return Blocks(w, rows)
    if transposed.pays(w, rows, steps):
        return Transposed(w, rows)
    if w.flags.f_contiguous and (rows == 1 or steps < 16):
        return w
    return transposed.c_ordered(w)


def for_products(xp: ModuleType, a: Array) -> Array | Planes:
    """Return a matrix, whose memory may be lost, for several products with it."""
    if xp is not np or a.dtype.kind != "c" or a.size < dual.SMALL_MATRIX:
        return a
    return dual.take_apart(a)


def matmul(xp: ModuleType, a: Array | Planes, b: Array | Planes, out: Array) -> None:
    """Compute out = a @ b; `out` may be of another dtype and is 2-D like the operands."""
    if xp is not np:
        from ..kernels.blas import gemm

        gemm(a, b, out)
    elif isinstance(a, dual.Planes) or isinstance(b, dual.Planes) or out.dtype.kind == "c":
        dual.dot(a, b, out)
    elif out.dtype == a.dtype:
        if a.shape[1] == 1:  # an outer product
            np.multiply(a, b, out)
        elif transposed.small_results_pay(a, b):
            transposed.dot_by_small_results(a, b, out)
        else:
            np.matmul(a, b, out)
    else:
        out[...] = a @ b


def add_matmul(
    xp: ModuleType, a: Array | Planes, b: Array | Planes, out: Array, scratch: Scratch
) -> None:
    """Compute out += a @ b; `scratch` is of the dtype of out."""
    if xp is not np:
        from ..kernels.blas import gemm

        gemm(a, b, out, accumulate=True)
    else:
        product = scratch(*out.shape)
        matmul(np, a, b, product)
        out += product


def column_sums(g: Array | Planes) -> Array:
    """Return, for NumPy, the sums of the columns of g[N, M]: as a matmul, faster than a sum."""
    if isinstance(g, dual.Planes):
        return dual.column_sums(g)
    if g.shape[0] == 1:
        return g[0]
    sums: Array = np.ones(g.shape[0], g.dtype) @ g
    return sums


def wanted(deltas: Sequence[_T], sums: Sequence[Array | None] | None) -> list[tuple[_T, Array]]:
    """Return each of the deltas whose sums are wanted with where these go."""
    if sums is None:
        return []
    return [(d, a) for d, a in zip(deltas, sums, strict=True) if a is not None]


def add_column_sums(xp: ModuleType, g: Array | Planes, sums: Array) -> None:
    """Add the sums of the columns of g[N, M] to sums[M], which is of the computation's dtype."""
    if xp is np:
        sums += column_sums(g)
    else:
        from ..kernels import launch

        launch.add_column_sums(g, sums)
