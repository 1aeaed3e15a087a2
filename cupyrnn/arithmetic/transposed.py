"""
Products of few rows with a large matrix, in the form that OpenBLAS is fastest with.

That is by blocks of its columns, where it has kernels for small products, or by its transpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._typing import Array
from . import blas

# OpenBLAS has kernels for small products, of up to as many multiplications, that read a matrix as
# it lies; for larger ones it copies the matrix in each product. Measured on AVX-512 with one
# thread, beside what is fastest otherwise, in whole calls: by blocks of columns LSTMs of up to 8
# rows are 1.1 to 1.8 times as fast, those of 16 with matrices of up to 256k elements 1.03 to 1.1
# times, with more rows or larger matrices slower. A block has one thread: beside products in two
# only those of up to 4 rows with the smaller matrices gain, 1.3 times.
#
# By the transpose, measured in float32 beside the plain product in whole calls: up to 16 rows 1.0
# to 1.7 times as fast forward, 1.1 to 1.3 backward; up to 32 with the larger matrices 1.06 to 1.13;
# with more rows, with matrices of 64k elements, or in float64, slower.
_SMALL_PRODUCT = 1_000_000
_FEW_ROWS, _LARGE_MATRIX = 16, 1 << 17
_MORE_ROWS, _LARGER_MATRIX = 32, 1 << 18
# Steps from which on the transpose is worth a copy.
_ENOUGH_STEPS = 16


_ROWS_OF_BLOCKS, _MORE_ROWS_OF_BLOCKS, _ROWS_BESIDE_TWO, _MATRIX_OF_BLOCKS = 8, 16, 4, 1 << 18


class Blocks:
    """w[K, N] for products a[B, K] @ w of up to as many rows as are said, block by block."""

    def __init__(self, w: Array, rows: int) -> None:
        K, N = self.shape = w.shape
        count = -(-rows * K * N // _SMALL_PRODUCT)
        width = -(-N // (16 * count)) * 16  # whole vectors
        while width > 16 and rows * K * width > _SMALL_PRODUCT:
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
    """Return whether products with w by blocks take less time, of that many rows."""
    if not 1 < rows <= _MORE_ROWS_OF_BLOCKS or rows * w.size <= _SMALL_PRODUCT:
        return False
    if w.dtype.kind != "f" or steps < _ENOUGH_STEPS or not blas.has_small_kernels():
        return False
    threads, small = blas.count(), w.size <= _MATRIX_OF_BLOCKS
    if threads == 1:
        return small or rows <= _ROWS_OF_BLOCKS
    return threads == 2 and small and rows <= _ROWS_BESIDE_TWO


class Transposed:
    """w[K, N] for products a[B, K] @ w = (w.T @ a.T).T of up to as many rows as are said."""

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
    """Return whether products with w by its transpose take less time, of that many rows."""
    few = _MORE_ROWS if w.size >= _LARGER_MATRIX else _FEW_ROWS
    return (
        w.dtype == np.float32
        and 1 < rows <= few
        and w.size >= _LARGE_MATRIX
        and rows * w.size > _SMALL_PRODUCT
        and (w.flags.f_contiguous or steps >= _ENOUGH_STEPS)
    )


# The small kernels take a product with a transpose if its result has at most so many elements.
# Measured with matrices of 16k to 1M elements, by blocks of columns with so few elements: products
# of 2 to 12 rows are 1.05 to 6.7 times as fast in float32, in one and two threads, and 0.97 to 3.9
# in float64; of 16 rows, from K = 128 on, 1.3 to 1.9 in float32 in one thread and 1.0 in two, and
# 1.0 to 1.35 in float64. Where K is smaller, a block is not worth its call.
_SMALL_RESULT = 1200
_ROWS_BY_LEAST_K = ((64, 12), (128, 16))


def small_results_pay(a: Array, w: Array) -> bool:
    """Return whether `dot_by_small_results` is faster for one product a[B, K] @ w[K, N]."""
    rows, K = a.shape
    return (
        rows > 1
        and any(least <= K and rows <= most for least, most in _ROWS_BY_LEAST_K)
        and (rows * w.shape[1] > _SMALL_RESULT or rows * w.size > _SMALL_PRODUCT)
        and w.flags.f_contiguous
        and w.dtype.kind == "f"
        and blas.has_small_kernels()
    )


def dot_by_small_results(a: Array, w: Array, out: Array) -> None:
    """Compute out = a @ w by blocks of columns, w in Fortran order."""
    rows, K = a.shape
    width = min(_SMALL_RESULT // rows, _SMALL_PRODUCT // (rows * K))
    width = max(width // 16, 1) * 16  # whole vectors
    for start in range(0, w.shape[1], width):
        columns = slice(start, start + width)
        np.matmul(a, w[:, columns], out[:, columns])


def c_ordered(a: Array) -> Array:
    """Return a matrix in C order, itself where it is."""
    if a.flags.c_contiguous:
        return a
    out = np.empty(a.shape, a.dtype)
    # By bands that the caches hold: a plain copy misses them at every element.
    for k in range(0, len(a), 64):
        out[k : k + 64] = a[k : k + 64]
    return out


def dot(a: Array, w: Any, out: Array) -> None:
    """Compute out = a @ w, w[K, N] as `products.factor` returns it for real ones."""
    if isinstance(w, (Blocks, Transposed)):
        w.dot(a, out)
    else:
        np.dot(a, w, out)
