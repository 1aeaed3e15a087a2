"""The CUDA twin of ``layer_norm_lstm.py``: 32 threads a row, which add up its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cupyrnn.kernels.launch import SUMS, Loop, add_column_sums

if TYPE_CHECKING:
    from cupyrnn._typing import Array
    from cupyrnn.cells.contract import BackwardRun, ForwardRun

    from ..layer_norm_lstm import LayerNormLSTM

GATES = r"""
__device__ __forceinline__ float square_root(float v) { return sqrtf(v); }
__device__ __forceinline__ double square_root(double v) { return sqrt(v); }

const int ROWS = 8, LANES = 32;

// The sum over the threads of a row, in a fixed order. All threads of the block call it together.
template <typename A>
__device__ A row_sum(A value, A (*shared)[LANES])
{
    __syncthreads();
    shared[threadIdx.y][threadIdx.x] = value;
    __syncthreads();
    A sum = A(0);
    for (int k = 0; k < LANES; ++k) sum += shared[threadIdx.y][k];
    return sum;
}

// The mean of a row, and r of it.
template <typename A> struct Norm { A mean, r; };

template <typename A>
__device__ Norm<A> norm_of(const A* row, long long columns, bool valid, A (*shared)[LANES])
{
    Norm<A> norm;
    A sum = A(0);
    if (valid) for (long long j = threadIdx.x; j < columns; j += LANES) sum += row[j];
    norm.mean = row_sum(sum, shared) / A(columns);
    A squares = A(0);
    if (valid)
        for (long long j = threadIdx.x; j < columns; j += LANES)
            squares += (row[j] - norm.mean) * (row[j] - norm.mean);
    norm.r = A(1) / square_root(row_sum(squares, shared) / A(columns) + A(1e-5));
    return norm;
}
"""

STEP = r"""
template <typename T>
__global__ void layer_norm_lstm_forward_step(
    const typename Acc<T>::type* z,    // [n, 4*H], read: x @ w_x
    const typename Acc<T>::type* hw,   // [B, 4*H], read: h_prev @ w_h
    const typename Acc<T>::type* b,    // [4*H], read
    const typename Acc<T>::type* b_c,  // [H], read
    const typename Acc<T>::type* g_x,  // [4*H], read, as the next
    const typename Acc<T>::type* g_h,
    const typename Acc<T>::type* g_c,  // [H], read
    typename Acc<T>::type* state,      // [B, H], updated: c, not rounded
    T* i, T* f, T* cz, T* o, T* c,     // [n, H], written
    T* xn, T* hn,                      // [n, 4*H], written
    T* cn,                             // [n, H], written
    T* r,                              // [n, 3], written
    T* h,                              // [n, H], written
    long long first, long long B,      // the first row of the step, and its rows
    long long lanes, long long H)
{
    typedef typename Acc<T>::type A;
    __shared__ A shared[ROWS][LANES];
    const long long rows = (long long)gridDim.y * ROWS;
    for (long long top = (long long)blockIdx.y * ROWS; top < B; top += rows) {
        const long long row = top + threadIdx.y;
        const bool valid = row < B;
        const long long at = (first + row) * H;
        const A* zr = z + 4 * at;
        const A* hr = hw + row * 4 * H;
        A* cr = state + row * H;
        const Norm<A> x = norm_of(zr, 4 * H, valid, shared);
        const Norm<A> p = norm_of(hr, 4 * H, valid, shared);
        if (valid) for (long long j = threadIdx.x; j < H; j += LANES) {
            A a[4];
            for (int k = 0; k < 4; ++k) {
                const long long q = k * H + j;
                const A x_n = (zr[q] - x.mean) * x.r, h_n = (hr[q] - p.mean) * p.r;
                a[k] = x_n * g_x[q] + h_n * g_h[q] + b[q];
                store(xn + 4 * at + q, x_n);
                store(hn + 4 * at + q, h_n);
            }
            const A i_ = sigmoid(a[0]), f_ = sigmoid(a[1]), cz_ = tanh_(a[2]), o_ = sigmoid(a[3]);
            cr[j] = f_ * cr[j] + i_ * cz_;
            store(i + at + j, i_);
            store(f + at + j, f_);
            store(cz + at + j, cz_);
            store(o + at + j, o_);
            store(c + at + j, cr[j]);
        }
        const Norm<A> s = norm_of(cr, H, valid, shared);
        if (valid) for (long long j = threadIdx.x; j < H; j += LANES) {
            const A c_n = (cr[j] - s.mean) * s.r;
            store(cn + at + j, c_n);
            store(h + at + j, wide(o[at + j]) * tanh_(c_n * g_c[j] + b_c[j]));
        }
        if (valid && threadIdx.x == 0) {
            T* to = r + (first + row) * 3;
            store(to, x.r);
            store(to + 1, p.r);
            store(to + 2, s.r);
        }
    }
}

template <typename T>
__global__ void layer_norm_lstm_backward_step(
    const T* i, const T* f, const T* cz, const T* o,  // [n, H], read
    const T* xn, const T* hn,          // [n, 4*H], read
    const T* cn,                       // [n, H], read
    const T* r,                        // [n, 3], read
    const T* c_prev,                   // [n, H], read: the state before each step
    const T* h_grad, const T* c_grad,  // [n, H], read; null: zeros
    const typename Acc<T>::type* b_c,  // [H], read
    const typename Acc<T>::type* g_x,  // [4*H], read, as the next
    const typename Acc<T>::type* g_h,
    const typename Acc<T>::type* g_c,  // [H], read
    const typename Acc<T>::type* dh,   // [B, H], read: the gradient of h from the next step
    typename Acc<T>::type* dc,         // [B, H], updated
    T* dx, T* dr, T* da,               // [n, 4*H], written
    T* du,                             // [n, H], written
    long long first, long long B,      // the first row of the step, and its rows
    long long lanes, long long H)
{
    typedef typename Acc<T>::type A;
    __shared__ A shared[ROWS][LANES];
    const long long rows = (long long)gridDim.y * ROWS;
    for (long long top = (long long)blockIdx.y * ROWS; top < B; top += rows) {
        const long long row = top + threadIdx.y;
        const bool valid = row < B;
        const long long at = (first + row) * H, state = row * H;
        const T* rs = r + (first + row) * 3;
        A sum = A(0), along = A(0);
        if (valid) for (long long j = threadIdx.x; j < H; j += LANES) {
            const A u = tanh_(wide(cn[at + j]) * g_c[j] + b_c[j]);
            const A total = dh[state + j] + (h_grad ? wide(h_grad[at + j]) : A(0));
            const A o_ = wide(o[at + j]), d = total * o_ * (A(1) - u * u);
            store(du + at + j, d);
            store(da + 4 * at + 3 * H + j, total * u * o_ * (A(1) - o_));
            sum += d * g_c[j];
            along += d * g_c[j] * wide(cn[at + j]);
        }
        sum = row_sum(sum, shared) / A(H);
        along = row_sum(along, shared) / A(H);
        if (valid) for (long long j = threadIdx.x; j < H; j += LANES) {
            const A i_ = wide(i[at + j]), f_ = wide(f[at + j]), cz_ = wide(cz[at + j]);
            const A d = wide(du[at + j]) * g_c[j];
            const A c_ = dc[state + j] + (c_grad ? wide(c_grad[at + j]) : A(0))
                         + wide(rs[2]) * (d - sum - wide(cn[at + j]) * along);
            store(da + 4 * at + j, c_ * cz_ * i_ * (A(1) - i_));
            store(da + 4 * at + H + j, c_ * wide(c_prev[at + j]) * f_ * (A(1) - f_));
            store(da + 4 * at + 2 * H + j, c_ * i_ * (A(1) - cz_ * cz_));
            dc[state + j] = c_ * f_;
        }
        // Each thread reads what it has written itself.
        A sums[4] = {A(0), A(0), A(0), A(0)};
        if (valid) for (long long j = threadIdx.x; j < H; j += LANES)
            for (int k = 0; k < 4; ++k) {
                const long long q = k * H + j;
                const A d_x = wide(da[4 * at + q]) * g_x[q], d_h = wide(da[4 * at + q]) * g_h[q];
                sums[0] += d_x;
                sums[1] += d_x * wide(xn[4 * at + q]);
                sums[2] += d_h;
                sums[3] += d_h * wide(hn[4 * at + q]);
            }
        for (int k = 0; k < 4; ++k) sums[k] = row_sum(sums[k], shared) / A(4 * H);
        if (valid) for (long long j = threadIdx.x; j < H; j += LANES)
            for (int k = 0; k < 4; ++k) {
                const long long q = k * H + j;
                const A d_x = wide(da[4 * at + q]) * g_x[q], d_h = wide(da[4 * at + q]) * g_h[q];
                store(dx + 4 * at + q,
                      wide(rs[0]) * (d_x - sums[0] - wide(xn[4 * at + q]) * sums[1]));
                store(dr + 4 * at + q,
                      wide(rs[1]) * (d_h - sums[2] - wide(hn[4 * at + q]) * sums[3]));
            }
    }
}
"""

_FORWARD, _BACKWARD = (f"layer_norm_lstm_{way}_step<{{T}}>" for way in ("forward", "backward"))
SOURCE = GATES + STEP
KERNELS = (_FORWARD, _BACKWARD, *SUMS)
_LANES = np.int64(32)


def forward_steps(cell: LayerNormLSTM, run: ForwardRun) -> None:
    """The recurrence over t steps: one product and one kernel each."""
    import cupy

    (z,), (w_h,), (h_state, c_state) = run.xw, run.w, run.carried
    h, loop = run.saved.h, Loop(run.batches, SOURCE, KERNELS)
    (B, H) = c_state.shape
    hw = cupy.empty((B, 4 * H), z.dtype)  # apart from x @ w_x, as each has its own norm
    arrays = (z, hw, *cell[3:], c_state, *run.saved)
    loop.run(
        loop.product(h, w_h, hw, before=h_state),
        loop.pointwise(_FORWARD, h.dtype, arrays, _LANES, np.int64(H)),
    )
    loop.keep_last(h, h_state)


def backward_steps(cell: LayerNormLSTM, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards: one kernel and one product each."""
    (_, dr, *_), (w_h,), (dh, dc), saved = run.deltas, run.w, run.carried, run.saved
    loop, H = Loop(run.batches, SOURCE, KERNELS), np.int64(dc.shape[1])
    read = (*saved[:4], *saved[5:9], run.before.c, *run.cotangents, *cell[4:])
    arrays = (*read, dh, dc, *run.deltas)
    loop.run(
        loop.pointwise(_BACKWARD, dr.dtype, arrays, _LANES, H),
        loop.product(dr, w_h, dh),
        backwards=True,
    )


def add_sums(cell: LayerNormLSTM, run: BackwardRun, totals: Array) -> None:
    """Add the sums over time and batch of da*xn, da*hn and du*cn to totals[9*H]."""
    (_, _, da, du), saved, H = run.deltas, run.saved, len(totals) // 9
    parts = (totals[: 4 * H], totals[4 * H : 8 * H], totals[8 * H :])
    for total, d, n in zip(parts, (da, da, du), (saved.xn, saved.hn, saved.cn), strict=True):
        add_column_sums(d.astype(totals.dtype) * n, total)
