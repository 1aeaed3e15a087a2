"""
Products of few rows with a large matrix, in the form that is fastest with OpenBLAS.

These are products with blocks of columns (if OpenBLAS has kernels for small products), or products
with the transposed matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._typing import Array
from . import blas

# OpenBLAS has kernels for products of up to this many multiplications. They read the matrix in
# place; larger products copy it each time. Measured in whole LSTM calls on AVX-512 with one thread,
# relative to the fastest other form: blocks of columns are 1.1 to 1.8 times as fast with up to 8
# rows, 1.03 to 1.1 times with 16 rows and matrices of up to 256k elements, and slower with more
# rows or larger matrices. A block uses one thread: with two threads only calls of up to 4 rows with
# the smaller matrices gain, 1.3 times.
#
# The transpose, measured in float32 in whole calls relative to the plain product: 1.0 to 1.7 times
# as fast forward and 1.1 to 1.3 backward with up to 16 rows; 1.06 to 1.13 with up to 32 rows and
# the larger matrices; slower with more rows, with matrices of 64k elements, and in float64.
SMALL_PRODUCT = 1_000_000
_FEW_ROWS, _LARGE_MATRIX = 16, 1 << 17
_MORE_ROWS, _LARGER_MATRIX = 32, 1 << 18
# From so many steps on, a copy for the transpose pays off.
_ENOUGH_STEPS = 16


_ROWS_OF_BLOCKS, _MORE_ROWS_OF_BLOCKS, _ROWS_BESIDE_TWO, _MATRIX_OF_BLOCKS = 8, 16, 4, 1 << 18


class Blocks:
    """w[K, N] in blocks of columns, for products a[B, K] @ w of up to `rows` rows."""

    def __init__(self, w: Array, rows: int) -> None:
        K, N = self.shape = w.shape
        count = -(-rows * K * N // SMALL_PRODUCT)
        width = -(-N // (16 * count)) * 16  # whole vectors
        while width > 16 and rows * K * width > SMALL_PRODUCT:
            width -= 16
        self._blocks = []
        for start in range(0, N, width):
            block = w[:, start : start + width].copy()
            self._blocks.append((start, block, np.empty((rows, block.shape[1]), w.dtype)))

    def dot(self, a: Array, out: Array) -> None:
        """Compute out = a @ w."""
        for start, block, memory in self._blocks:
            product = memory[: len(a)]
            np.dot(a, block, product)
            out[:, start : start + block.shape[1]] = product


def blocks_pay(w: Array, rows: int, steps: int) -> bool:
    """Return whether products of so many rows, which are not small, are faster with blocks of w."""
    if not 1 < rows <= _MORE_ROWS_OF_BLOCKS:
        return False
    if w.dtype.kind != "f" or steps < _ENOUGH_STEPS or not blas.has_small_kernels():
        return False
    threads, small = blas.count(), w.size <= _MATRIX_OF_BLOCKS
    if threads == 1:
        return small or rows <= _ROWS_OF_BLOCKS
    return threads == 2 and small and rows <= _ROWS_BESIDE_TWO


class Transposed:
    """w[K, N] for products a[B, K] @ w = (w.T @ a.T).T of up to `rows` rows."""

    def __init__(self, w: Array, rows: int) -> None:
        self.shape = w.shape
        self._w_t = c_ordered(w.T)
        self._memory = np.empty(rows * w.shape[1], w.dtype)
        self._product = self._memory.reshape(w.shape[1], rows)

    def dot(self, a: Array, out: Array) -> None:
        """Compute out = a @ w."""
        product = self._product
        if product.shape[1] != len(a):
            N = len(product)
            self._product = product = self._memory[: N * len(a)].reshape(N, len(a))
        np.dot(self._w_t, a.T, product)
        np.copyto(out, product.T)


def pays(w: Array, rows: int, steps: int) -> bool:
    """Return whether products of so many rows, which are not small, are faster by the transpose."""
    few = _MORE_ROWS if w.size >= _LARGER_MATRIX else _FEW_ROWS
    return (
        w.dtype == np.float32
        and 1 < rows <= few
        and w.size >= _LARGE_MATRIX
        and (w.flags.f_contiguous or steps >= _ENOUGH_STEPS)
    )


# The small kernels compute a product with a transpose if its result has at most so many elements.
# Measured with matrices of 16k to 1M elements and blocks of columns of that size: products of 2 to
# 12 rows are 1.05 to 6.7 times as fast in float32 (one and two threads) and 0.97 to 3.9 times in
# float64. Products of 16 rows, from K = 128 on, are 1.3 to 1.9 times as fast in float32 with one
# thread, 1.0 times with two, and 1.0 to 1.35 times in float64. Blocks do not pay off for smaller K.
_SMALL_RESULT = 1200
_ROWS_BY_LEAST_K, MOST_ROWS = ((64, 12), (128, 16)), 16


def small_results_pay(a: Array, w: Array) -> bool:
    """Return whether `dot_by_small_results` is faster for the product a[B, K] @ w[K, N]."""
    rows, K = a.shape
    return (
        1 < rows <= MOST_ROWS
        and any(least <= K and rows <= most for least, most in _ROWS_BY_LEAST_K)
        and (rows * w.shape[1] > _SMALL_RESULT or rows * w.size > SMALL_PRODUCT)
        and w.flags.f_contiguous
        and w.dtype.kind == "f"
        and blas.has_small_kernels()
    )


def dot_by_small_results(a: Array, w: Array, out: Array) -> None:
    """Compute out = a @ w by blocks of columns, w in Fortran order."""
    rows, K = a.shape
    width = min(_SMALL_RESULT // rows, SMALL_PRODUCT // (rows * K))
    width = max(width // 16, 1) * 16  # whole vectors
    for start in range(0, w.shape[1], width):
        columns = slice(start, start + width)
        np.matmul(a, w[:, columns], out[:, columns])


# A matrix of so many elements stays in a core's first cache while it is copied.
_IN_CACHE = 4096


def c_ordered(a: Array) -> Array:
    """Return a matrix in C order, without a copy if it is."""
    if a.flags.c_contiguous:
        return a
    if a.size <= _IN_CACHE:
        return a.copy()
    out = np.empty(a.shape, a.dtype)
    # In bands that fit the caches: a plain copy misses them at every element.
    for k in range(0, len(a), 64):
        out[k : k + 64] = a[k : k + 64]
    return out


def dot(a: Array, w: Any, out: Array) -> None:
    """Compute out = a @ w for real numbers; w[K, N] is a result of `products.factor`."""
    if isinstance(w, (Blocks, Transposed)):
        w.dot(a, out)
    else:
        np.dot(a, w, out)
