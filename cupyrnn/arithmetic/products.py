"""Products over many time steps at once; ``kernels/products.py`` has the same in CUDA."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .._typing import Array
from . import dual, transposed
from .dual import Planes
from .scratch import Scratch
from .transposed import Blocks, Transposed

# Rows of one whole-sequence matmul. With fewer rows, the sum over blocks costs as much as the
# matmul. With more, the gate gradients of a block do not fit into the cache.
ROWS = 1024
# The most bytes of gradients of single examples computed at a time.
BYTES = 1 << 20


def factor(w: Array, rows: int, steps: int) -> Array | Planes | Blocks | Transposed:
    """
    Return w[K, N] in the form that is fastest for products of so many rows, one in each step.

    Products with a transposed view may be slower than with a copy in C order; the copy has to pay
    off.
    """
    if w.dtype.kind == "c":
        return dual.factor(w, rows, steps)
    if rows * w.size > transposed.SMALL_PRODUCT:
        if transposed.blocks_pay(w, rows, steps):
            return Blocks(w, rows)
        if transposed.pays(w, rows, steps):
            return Transposed(w, rows)
    flags = w.flags
    if flags.c_contiguous or (flags.f_contiguous and (rows == 1 or steps < 16)):
        return w
    return transposed.c_ordered(w)


def for_products(a: Array) -> Array | Planes:
    """Return a matrix in the form for several products with it; its memory may be overwritten."""
    if a.dtype.kind != "c" or a.size < dual.SMALL_MATRIX:
        return a
    return dual.take_apart(a)


def matmul(a: Array | Planes, b: Array | Planes, out: Array) -> None:
    """Compute out = a @ b, all 2-D; `out` may have another dtype."""
    if isinstance(a, dual.Planes) or isinstance(b, dual.Planes) or out.dtype.kind == "c":
        dual.dot(a, b, out)
    elif out.dtype == a.dtype:
        if a.shape[1] == 1:  # an outer product
            np.multiply(a, b, out)
        elif a.shape[0] <= transposed.MOST_ROWS and transposed.small_results_pay(a, b):
            transposed.dot_by_small_results(a, b, out)
        else:
            np.matmul(a, b, out)
    else:
        out[...] = a @ b


def add_matmul(a: Array | Planes, b: Array | Planes, out: Array, scratch: Scratch) -> None:
    """Compute out += a @ b; `scratch` has the dtype of out."""
    product = scratch(*out.shape)
    matmul(a, b, product)
    out += product


def matmul_each(a: Array, b: Array, out: Array) -> None:
    """Compute out[n] = a[n] @ b[n]; a and b have one dtype, and out may have a wider one."""
    if out.dtype.kind == "c":
        # Dual numbers: because tangents are small, three real products are exact.
        planes = [[np.ascontiguousarray(p) for p in (x.real, x.imag)] for x in (a, b)]
        (a_value, a_tangent), (b_value, b_tangent) = planes
        out.real = a_value @ b_value
        out.imag = a_value @ b_tangent + a_tangent @ b_value
    elif out.size:
        np.matmul(a, b, out=out)


@functools.lru_cache(maxsize=16)
def _small_ones(n: int, dtype: np.dtype[Any]) -> Array:
    return np.ones(n, dtype)


def ones(n: int, dtype: np.dtype[Any]) -> Array:
    """Return ones, not to be written to: a product with them is a sum."""
    return _small_ones(n, dtype) if n <= ROWS else np.ones(n, dtype)


def add_column_sums(g: Array | Planes, sums: Array) -> None:
    """Add the sums of the columns of g[N, M] to sums[M], which has the computation's dtype."""
    if isinstance(g, dual.Planes):
        sums += dual.column_sums(g)
    else:
        # A matmul is faster than sum().
        sums += g[0] if g.shape[0] == 1 else ones(g.shape[0], g.dtype) @ g
