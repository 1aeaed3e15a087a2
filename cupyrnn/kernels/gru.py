"""The CUDA twin of ``cupyrnn.gru``: the gates, the kernels of one step, and their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .blas import prepare
from .compile import kernel
from .launch import BLOCK, SUMS, add_column_sums, step_grid

if TYPE_CHECKING:
    from .._arrays import Array
    from ..gru import GRUOutputs

GATES = r"""
// h = (1-u)*c + u*h_prev
template <typename A>
__device__ __forceinline__ A gru_output(A u, A c, A h_prev) { return u * (h_prev - c) + c; }

template <typename A> struct GRUGateGradients { A d_c, d_u; };

template <typename A>
__device__ __forceinline__ GRUGateGradients<A> gru_gate_gradients(A u, A c, A h_prev, A dh)
{
    GRUGateGradients<A> g;
    g.d_c = dh * (A(1) - u) * (A(1) - c * c);
    g.d_u = dh * (h_prev - c) * u * (A(1) - u);
    return g;
}

template <typename A>
__device__ __forceinline__ A gru_reset_gradient(A r, A h_prev, A d_hr)
{
    return d_hr * h_prev * r * (A(1) - r);
}
"""

# A step needs two kernels: the reset comes before the second product.
STEP = r"""
template <typename T>
__global__ void gru_forward_gates(
    const typename Acc<T>::type* z,    // [steps, B, 2*H], read: x @ w_ru + h_prev @ w_ru
    const typename Acc<T>::type* b,    // [2*H], read
    const typename Acc<T>::type* carried,  // [B, H], read: the state before the step, not rounded
    T* r, T* u,                        // [steps, B, H], written
    T* h_reset,                        // [B, H], written: h_prev*r
    long long step, long long B, long long H)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long in_step = row * H + column;
        const long long at = step * B * H + in_step;
        const A* zr = z + (step * B + row) * 2 * H + column;
        const A r_ = sigmoid(zr[0] + b[column]);
        const A u_ = sigmoid(zr[H] + b[H + column]);
        store(r + at, r_);
        store(u + at, u_);
        store(h_reset + in_step, r_ * carried[in_step]);
    }
}

template <typename T>
__global__ void gru_forward_output(
    const typename Acc<T>::type* z,    // [steps, B, H], read: x @ w_c + (h_prev*r) @ w_c
    const typename Acc<T>::type* b,    // [H], read
    const T* u,                        // [steps, B, H], read
    T* c, T* h,                        // [steps, B, H], written
    typename Acc<T>::type* carried,    // [B, H], updated: the state, not rounded
    long long step,
    long long live,                    // rows of the step that are computed; B, or 0 past the end
    long long rows,                    // rows from the step on that are written, the others zero
    long long H,
    T* r_past, T* u_past)              // [steps, B, H], zeroed past the end; else null
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < rows;
         row += (long long)gridDim.y * blockDim.y) {
        const long long at = (step * live + row) * H + column;
        A c_ = A(0), h_ = A(0);
        if (row < live) {
            c_ = tanh_(z[at] + b[column]);
            h_ = gru_output(wide(u[at]), c_, carried[row * H + column]);
            carried[row * H + column] = h_;
        } else {
            store(r_past + at, A(0));
            store(u_past + at, A(0));
        }
        store(c + at, c_);
        store(h + at, h_);
    }
}

template <typename T>
__global__ void gru_backward_output(
    const T* u, const T* c, const T* h,  // [T, B, H], read
    const T* h_first,                  // [B, H], read: the state before step 0
    const T* d_h,                      // [T, B, H], read
    typename Acc<T>::type* dh,         // [B, H], updated: the given gradient is added
    T* d_ru,                           // [steps, B, 2*H], its half for u written
    T* d_c,                            // [steps, B, H], written
    long long step,                    // of the T steps
    long long block_step,              // of the steps of d_ru and d_c
    long long B, long long H)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long in_step = row * H + column;
        const long long at = step * B * H + in_step;
        const A before = wide(step ? h[at - B * H] : h_first[in_step]);
        const A total = dh[in_step] + wide(d_h[at]);
        const GRUGateGradients<A> g =
            gru_gate_gradients<A>(wide(u[at]), wide(c[at]), before, total);
        dh[in_step] = total;
        store(d_ru + (block_step * B + row) * 2 * H + H + column, g.d_u);
        store(d_c + block_step * B * H + in_step, g.d_c);
    }
}

template <typename T>
__global__ void gru_backward_reset(
    const T* r, const T* u, const T* h,  // [T, B, H], read
    const T* h_first,                  // [B, H], read: the state before step 0
    const typename Acc<T>::type* d_hr, // [B, H], read: d_c @ w_c.T
    typename Acc<T>::type* dh,         // [B, H], updated: dh*u + d_hr*r
    T* d_ru,                           // [steps, B, 2*H], its half for r written
    T* h_reset,                        // [steps, B, H], written: h_prev*r
    long long step,                    // of the T steps
    long long block_step,              // of the steps of d_ru and h_reset
    long long B, long long H)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long in_step = row * H + column;
        const long long at = step * B * H + in_step;
        const A before = wide(step ? h[at - B * H] : h_first[in_step]);
        const A r_ = wide(r[at]);
        const A through = d_hr[in_step];
        store(d_ru + (block_step * B + row) * 2 * H + column,
              gru_reset_gradient(r_, before, through));
        store(h_reset + block_step * B * H + in_step, before * r_);
        dh[in_step] = dh[in_step] * wide(u[at]) + through * r_;
    }
}
"""

SOURCE = GATES + STEP
_FORWARD_GATES, _FORWARD_OUTPUT, _BACKWARD_OUTPUT, _BACKWARD_RESET = (
    "gru_forward_gates<{T}>",
    "gru_forward_output<{T}>",
    "gru_backward_output<{T}>",
    "gru_backward_reset<{T}>",
)
KERNELS = (_FORWARD_GATES, _FORWARD_OUTPUT, _BACKWARD_OUTPUT, _BACKWARD_RESET, *SUMS)


def forward_steps(
    xw_ru: Array,
    xw_c: Array,
    w_ru: Array,
    w_c: Array,
    b_ru: Array,
    b_c: Array,
    h_prev: Array,
    outputs: GRUOutputs,
) -> Array:
    """The recurrence over t steps: two products and two kernels each. xw_* are overwritten."""
    import cupy

    t, B, H = xw_c.shape
    r, u, c, h = outputs
    carried = h_prev.astype(xw_c.dtype, order="C")
    h_reset = cupy.empty((B, H), h.dtype)
    grid = step_grid(B, H)
    gates, output = (
        kernel(SOURCE, KERNELS, h.dtype.name, name) for name in (_FORWARD_GATES, _FORWARD_OUTPUT)
    )
    first = prepare(h_prev.astype(h.dtype, copy=False), w_ru, xw_ru[0], accumulate=True)
    later = prepare(h[0], w_ru, xw_ru[0], accumulate=True)
    reset = prepare(h_reset, w_c, xw_c[0], accumulate=True)
    live, size = np.int64(B), np.int64(H)
    for step in range(t):
        at = np.int64(step)
        if step:
            later((step - 1) * h.strides[0], 0, step * xw_ru.strides[0])
        else:
            first(0, 0, 0)
        if grid is not None:
            gates(grid, BLOCK, (xw_ru, b_ru, carried, r, u, h_reset, at, live, size))
        reset(0, 0, step * xw_c.strides[0])
        if grid is not None:
            args = (xw_c, b_c, u, c, h, carried, at, live, live, size, None, None)
            output(grid, BLOCK, args)
    return carried


def zero_past(outputs: GRUOutputs) -> None:
    """Zero all four outputs, which are those past seq_len_max, by one launch of the step."""
    r, u, c, h = outputs
    t, B, H = h.shape
    grid = step_grid(t * B, H)
    if grid is not None:
        none = (np.int64(0), np.int64(0), np.int64(t * B), np.int64(H))
        launch = kernel(SOURCE, KERNELS, h.dtype.name, _FORWARD_OUTPUT)
        launch(grid, BLOCK, (None, None, None, c, h, None, *none, r, u))


def backward_steps(
    saved: GRUOutputs,
    h_prev: Array,
    d_h: Array,
    w_ru: Array,
    w_c: Array,
    dh: Array,
    d_ru: Array,
    d_c: Array,
    h_reset: Array,
    lo: int,
) -> None:
    """The recurrence over the t steps from `lo` on, backwards: two kernels and products each."""
    import cupy

    r, u, c, h = saved
    t, B, H = d_c.shape
    d_hr = cupy.empty((B, H), dh.dtype)
    grid = step_grid(B, H)
    output, reset = (
        kernel(SOURCE, KERNELS, d_c.dtype.name, name)
        for name in (_BACKWARD_OUTPUT, _BACKWARD_RESET)
    )
    through_c = prepare(d_c[0], w_c, d_hr, accumulate=False)
    through_ru = prepare(d_ru[0], w_ru, dh, accumulate=True)
    sizes = (np.int64(B), np.int64(H))
    for step in range(t - 1, -1, -1):
        at = (np.int64(lo + step), np.int64(step))
        if grid is not None:
            output(grid, BLOCK, (u, c, h, h_prev, d_h, dh, d_ru, d_c, *at, *sizes))
        through_c(step * d_c.strides[0], 0, 0)
        if grid is not None:
            reset(grid, BLOCK, (r, u, h, h_prev, d_hr, dh, d_ru, h_reset, *at, *sizes))
        through_ru(step * d_ru.strides[0], 0, 0)


def add_gate_sums(d_ru: Array, d_c: Array, d_b_ru: Array, d_b_c: Array) -> None:
    """Add the sums over time and batch to d_b_ru[2*H] and d_b_c[H]."""
    for g, sums in ((d_ru, d_b_ru), (d_c, d_b_c)):
        add_column_sums(SOURCE, KERNELS, g.reshape(g.shape[0] * g.shape[1], g.shape[2]), sums)
