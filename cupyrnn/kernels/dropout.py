"""
The CUDA twin of ``cupyrnn.arithmetic.dropout``: NumPy's generator Philox4x64-10, bit for bit.

And the values that a mask keeps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._typing import Array
from .launch import BLOCK, launch

SOURCE = r"""
typedef unsigned long long u64;

// Ten rounds: four words of 64 bits from a counter and a key.
__device__ __forceinline__ void philox(u64 counter[4], u64 key0, u64 key1)
{
    const u64 m0 = 0xD2E7470EE14C6C93ULL, m1 = 0xCA5A826395121157ULL;
    for (int round = 0; round < 10; ++round) {
        const u64 low0 = m0 * counter[0], high0 = __umul64hi(m0, counter[0]);
        const u64 low1 = m1 * counter[2], high1 = __umul64hi(m1, counter[2]);
        counter[0] = high1 ^ counter[1] ^ key0;
        counter[1] = low1;
        counter[2] = high0 ^ counter[3] ^ key1;
        counter[3] = low0;
        key0 += 0x9E3779B97F4A7C15ULL;
        key1 += 0xBB67AE8584CAA73BULL;
    }
}

const int DRAWS = 8;  // of 32 bits, from four words

template <typename T>
__device__ __forceinline__ void keep_draws(
    T* mask, long long first, long long size, u64 key0, u64 key1, u64 layer, unsigned threshold)
{
    typedef typename Acc<T>::type A;
    // NumPy adds one to the counter before it draws.
    u64 words[4] = {u64(first / DRAWS) + 1, 0, layer, 0};
    philox(words, key0, key1);
#pragma unroll  // so that the words stay in registers
    for (int k = 0; k < DRAWS; ++k) {
        const unsigned draw = unsigned(words[k / 2] >> (k % 2 * 32));
        if (first + k < size) store(mask + first + k, A(draw < threshold));
    }
}

template <typename T>
__global__ void dropout_mask(
    T* mask,                           // [size], written: ones, and zeros where values are dropped
    long long size,
    u64 key0, u64 key1,
    u64 layer,
    unsigned threshold)                // draws below it keep their value
{
    const long long stride = (long long)gridDim.x * blockDim.x * blockDim.y * DRAWS;
    const long long thread = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    for (long long first = (thread * blockDim.x + threadIdx.x) * DRAWS; first < size;
         first += stride)
        keep_draws(mask, first, size, key0, key1, layer, threshold);
}

// The values that a mask keeps, scaled: n numbers in rows of K.
template <typename F, typename T>
__global__ void kept(
    const F* from, T* to, const T* mask,
    long long n, long long K,
    long long from_row, long long row,  // from one row to the next, of `from` and of the others
    double scale)
{
    typedef typename Acc<T>::type A;
    const long long threads = (long long)gridDim.x * blockDim.x * blockDim.y;
    const long long first = ((long long)blockIdx.x * blockDim.y + threadIdx.y) * blockDim.x;
    for (long long k = first + threadIdx.x; k < n; k += threads) {
        const long long at = k / K * row + k % K;
        store(to + at, wide(from[k / K * from_row + k % K]) * wide(mask[at]) * A(scale));
    }
}
"""
_MASK = "dropout_mask<{T}>"
KERNELS = _MASK, "kept<{T}, {T}>", "kept<{A}, {T}>"

_DRAWS = 8
_LARGEST_GRID = 2**31 - 1


def grid_of(size: int) -> tuple[int, int]:
    """Return the grid of `dropout_mask`."""
    return min(-(-size // (BLOCK[0] * BLOCK[1] * _DRAWS)), _LARGEST_GRID), 1


def keep_mask(
    shape: tuple[int, int], dtype: np.dtype[Any], threshold: int, keys: tuple[int, int], layer: int
) -> Array:
    """Return the mask of a layer's input: ones where a draw of 32 bits is below `threshold`."""
    import cupy

    mask: Array = cupy.empty(shape, dtype)
    if mask.size:
        words = (*(np.uint64(key) for key in keys), np.uint64(layer), np.uint32(threshold))
        args = (mask, np.int64(mask.size), *words)
        launch(SOURCE, KERNELS, _MASK, mask.dtype, grid_of(mask.size), args)
    return mask
