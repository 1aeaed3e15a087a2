"""What all cells do over many time steps at once, written once for both array modules."""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _dual, _transposed
from ._arrays import cast, compute_dtype
from ._transposed import Transposed

if TYPE_CHECKING:
    from ._arrays import Array
    from ._dual import Planes

# Rows of one whole-sequence matmul. On a CPU, fewer and the sum over blocks begins to cost as much
# as the matmul; more and the gate gradients, held for one block at a time, leave the cache. On a
# GPU the block only bounds the memory.
_CPU_ROWS, _GPU_ROWS = 1024, 16384

# Elements [t, B, H] whose gradients NumPy makes at once: their planes stay in a core's cache.
CHUNK = 32768


def block_rows(xp: ModuleType) -> int:
    """Return the number of rows that one whole-sequence matmul takes at least."""
    return _CPU_ROWS if xp is np else _GPU_ROWS


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


def factor(xp: ModuleType, w: Array, rows: int, steps: int) -> Array | Planes | Transposed:
    """
    Return w[K, N] for a product of as many rows with it in each of these steps.

    On a CPU a product with a transposed view may be slower than with a copy in C order, which has
    to be made first.
    """
    if xp is not np:
        return w
    if w.dtype.kind == "c":
        return _dual.factor(w, rows, steps)
    if _transposed.pays(w, rows, steps):
        return Transposed(w, rows)
    if w.flags.f_contiguous and (rows == 1 or steps < 16):
        return w
    return _transposed.c_ordered(w)


def product(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    """Return a*b in this dtype, rounded once."""
    compute = compute_dtype(dtype)
    return cast(cast(a, compute) * cast(b, compute), dtype)


def for_products(xp: ModuleType, a: Array) -> Array | Planes:
    """Return a matrix, whose memory may be lost, for several products with it."""
    if xp is not np or a.dtype.kind != "c" or a.size < _dual.SMALL_MATRIX:
        return a
    return _dual.take_apart(a)


def matmul(xp: ModuleType, a: Array | Planes, b: Array | Planes, out: Array) -> None:
    """Compute out = a @ b; `out` may be of another dtype and is 2-D like the operands."""
    if xp is not np:
        from .kernels.blas import gemm

        gemm(a, b, out)
    elif isinstance(a, _dual.Planes) or isinstance(b, _dual.Planes) or out.dtype.kind == "c":
        _dual.dot(a, b, out)
    elif out.dtype == a.dtype:
        np.matmul(a, b, out=out)
    else:
        out[...] = a @ b


def add_matmul(
    xp: ModuleType, a: Array | Planes, b: Array | Planes, out: Array, scratch: Scratch
) -> None:
    """Compute out += a @ b; `scratch` is of the dtype of out."""
    if xp is not np:
        from .kernels.blas import gemm

        gemm(a, b, out, accumulate=True)
    else:
        product = scratch(*out.shape)
        matmul(np, a, b, product)
        out += product


def column_sums(g: Array | Planes) -> Array:
    """Return, for NumPy, the sums of the columns of g[N, M]: as a matmul, faster than a sum."""
    if isinstance(g, _dual.Planes):
        return _dual.column_sums(g)
    sums: Array = np.ones(g.shape[0], g.dtype) @ g
    return sums


def add_column_sums(xp: ModuleType, g: Array | Planes, sums: Array) -> None:
    """Add the sums of the columns of g[N, M] to sums[M], which is of the computation's dtype."""
    if xp is np:
        sums += column_sums(g)
    else:
        from .kernels import launch

        launch.add_column_sums(g, sums)
