"""Products over many time steps at once; their CUDA twins are in ``kernels/products.py``."""

from __future__ import annotations

import numpy as np

from .._typing import Array
from . import dual, transposed
from .dual import Planes
from .scratch import Scratch
from .transposed import Blocks, Transposed

# Rows of one whole-sequence matmul. Fewer and the sum over blocks begins to cost as much as the
# matmul; more and the gate gradients, held for one block at a time, leave the cache.
ROWS = 1024
# Largest number of bytes of the gradients of some examples computed at once.
BYTES = 1 << 20


def factor(w: Array, rows: int, steps: int) -> Array | Planes | Blocks | Transposed:
    """
    Return w[K, N] for a product of as many rows with it in each of these steps.

    A product with a transposed view may be slower than with a copy in C order, which has
    to be made first.
    """
    if w.dtype.kind == "c":
        return dual.factor(w, rows, steps)
    if transposed.blocks_pay(w, rows, steps):
        return Blocks(w, rows)
    if transposed.pays(w, rows, steps):
        return Transposed(w, rows)
    if w.flags.f_contiguous and (rows == 1 or steps < 16):
        return w
    return transposed.c_ordered(w)


def for_products(a: Array) -> Array | Planes:
    """Return a matrix, whose memory may be lost, for several products with it."""
    if a.dtype.kind != "c" or a.size < dual.SMALL_MATRIX:
        return a
    return dual.take_apart(a)


def matmul(a: Array | Planes, b: Array | Planes, out: Array) -> None:
    """Compute out = a @ b; `out` may be of another dtype and is 2-D like the operands."""
    if isinstance(a, dual.Planes) or isinstance(b, dual.Planes) or out.dtype.kind == "c":
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


def add_matmul(a: Array | Planes, b: Array | Planes, out: Array, scratch: Scratch) -> None:
    """Compute out += a @ b; `scratch` is of the dtype of out."""
    product = scratch(*out.shape)
    matmul(a, b, product)
    out += product


def matmul_each(a: Array, b: Array, out: Array) -> None:
    """Compute out[n] = a[n] @ b[n]; a and b are of one dtype, out may be of a wider one."""
    if out.dtype.kind == "c":
        # Of dual numbers: as the tangents are small, three real products are exact.
        planes = [[np.ascontiguousarray(p) for p in (x.real, x.imag)] for x in (a, b)]
        (value, tangent), (other, its) = planes
        out.real = value @ other
        out.imag = value @ its + tangent @ other
    elif out.size:
        np.matmul(a, b, out=out)


def add_column_sums(g: Array | Planes, sums: Array) -> None:
    """Add the sums of the columns of g[N, M] to sums[M], which is of the computation's dtype."""
    if isinstance(g, dual.Planes):
        sums += dual.column_sums(g)
    else:
        # A matmul, faster than a sum.
        sums += g[0] if g.shape[0] == 1 else np.ones(g.shape[0], g.dtype) @ g
