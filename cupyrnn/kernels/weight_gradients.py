"""Gradients of weights, after the steps: sums for an LSTM, operands for a GRU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .._typing import Array
from .launch import add_slices, launch, sum_grid
from .step import Module

if TYPE_CHECKING:
    from ..cells.contract import BackwardRun
    from ..cells.lstm import LSTM

LSTM_SUMS = Module(
    r"""
// The sums over time and batch of dz and, if sums are 7*H wide, of di*cs_prev, df*cs_prev and
// do*cs, by slices of the rows.
template <typename T, typename S>
__global__ void lstm_sums(
    const T* dz,                    // [n, 4*H], read
    const T* cs, const T* first,    // [n, H], after each step, and [B, H], before the first one;
                                    // null: the terms are zero
    S* sums,                        // [gridDim.y, width], written
    S* more,                        // [4*H], written: the sums of dz, again; or null
    long long n, long long H, long long B,
    long long back,                 // 1: time runs backwards
    long long width,                // 4*H or 7*H
    int at_i, int at_f, int at_o)
{
    typedef typename Acc<T>::type A;
    __shared__ A shared[ROW_THREADS][COLUMN_THREADS];
    const long long column = (long long)blockIdx.x * COLUMN_THREADS + threadIdx.x;
    const long long gate = column / H, unit = column % H;
    const int term = gate == at_i ? 0 : gate == at_f ? 1 : gate == at_o ? 2 : 3;
    const bool inside = column < 4 * H, has_term = inside && width > 4 * H && term < 3;
    // The place of the state before a row; in the first step's rows, its place in `first`.
    const long long off = term == 2 ? 0 : back ? B : -B, off_first = back ? B - n : 0;
    A sum = A(0), of_term = A(0);
    if (inside)
        for (long long row = (long long)blockIdx.y * ROW_THREADS + threadIdx.y; row < n;
             row += (long long)gridDim.y * ROW_THREADS) {
            const A d = wide(dz[row * 4 * H + column]);
            sum += d;
            if (has_term && first) {
                const long long state = row + off;
                of_term += d * wide(state >= 0 && state < n ? cs[state * H + unit]
                                                            : first[(row + off_first) * H + unit]);
            }
        }
    sum = block_sum(sum, shared);
    of_term = block_sum(of_term, shared);
    if (threadIdx.y > 0 || !inside) return;
    S* const slice = sums + blockIdx.y * width;
    store(slice + column, sum);
    if (more) store(more + column, sum);
    if (has_term) store(slice + (4 + term) * H + unit, of_term);
}
""",
    ("lstm_sums<{T}, {A}>", "lstm_sums<{T}, {T}>"),
)


def add_lstm_sums(cell: LSTM, run: BackwardRun, totals: Array) -> None:
    """Add the sums over time and batch of di*cs_prev, df*cs_prev and do*cs to totals[3, H]."""
    import cupy

    (dz, *_), n, H = run.deltas, len(run.deltas[0]), totals.shape[1]
    if n == 0 or H == 0:
        return
    grid = sum_grid(n, 4 * H)
    slices = cupy.empty((grid[1], 7 * H), totals.dtype)
    # The states before all steps, as those before one step of n rows.
    sizes = (np.int64(k) for k in (n, H, n, 0, 7 * H))
    at_i, _, at_f, at_o = (np.int32(k) for k in cell.columns)
    args = (dz, run.saved.cs, run.before.c, slices, None, *sizes, at_i, at_f, at_o)
    launch(*LSTM_SUMS, LSTM_SUMS.kernels[0], dz.dtype, grid, args)
    add_slices(dz.dtype, slices[:, 4 * H :].copy(), totals.reshape(3 * H))


OPERANDS = Module(
    r"""
// The operands of the matrices, side by side: x, x_more and the state before each step; then, if r
// is not null, x, x_more and r * state.
template <typename T>
__global__ void operands(
    const T* x, const T* x_more,             // [n, K] and [n, K_more], read
    const T* r, const T* h, const T* first,  // [n, H] twice, and [B, H], before the first step, or
                                             // null: zeros
    T* out,                                  // [n, K + K_more + H] or twice as wide, written
    long long n, long long K, long long K_more, long long H, long long B,
    long long back)                          // 1: time runs backwards
{
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long inputs = K + K_more, half = inputs + H, width = r ? 2 * half : half;
    if (column >= width) return;
    const long long k = column % half, unit = k - inputs;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < n;
         row += (long long)gridDim.y * blockDim.y) {
        T* const to = out + row * width + column;
        if (k < K) *to = x[row * K + k];
        else if (k < inputs) *to = x_more[row * K_more + k - K];
        else {
            const long long state = row + (back ? B : -B);
            const T* h_prev = state >= 0 && state < n ? h + state * H
                            : first ? first + (row + (back ? B - n : 0)) * H : nullptr;
            typename Acc<T>::type v = 0.f;
            if (h_prev) v = wide(h_prev[unit]);
            store(to, column < half ? v : wide(r[row * H + unit]) * v);
        }
    }
}
""",
    ("operands<{T}>",),
)
