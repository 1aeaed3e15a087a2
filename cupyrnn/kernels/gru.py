"""The CUDA twin of ``cells/gru.py``: the gates, the kernels of one step, their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import persistent
from .launch import Loop, gate_arguments
from .rows import gru as rows
from .rows.common import SOURCE as ROWS
from .rows.common import Kernel

if TYPE_CHECKING:
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.gru import GRU

GATES = r"""
// h = (1-u)*c + u*h_prev
template <typename A>
__device__ __forceinline__ A gru_output(A u, A c, A h_prev) { return u * (h_prev - c) + c; }

template <typename A> struct GRUGateGradients { A d_c, d_u; };

template <typename A>
__device__ __forceinline__ GRUGateGradients<A> gru_gate_gradients(
    const Gate<A>& gate, A u, A c, A h_prev, A dh)
{
    const A k_c = (A(1) - u) * (A(1) - c * c);
    const A k_u = (h_prev - c) * slope_of(gate, u);
    GRUGateGradients<A> g;
    g.d_c = dh * k_c;
    g.d_u = dh * k_u;
    return g;
}

template <typename A>
__device__ __forceinline__ A gru_reset_gradient(const Gate<A>& gate, A r, A h_prev, A d_hr)
{
    const A k_r = h_prev * slope_of(gate, r);
    return d_hr * k_r;
}
"""

# A step needs two kernels: the reset comes before the second product.
STEP = r"""
template <typename T>
__global__ void gru_forward_gates(
    const typename Acc<T>::type* z,    // [n, 2*H], read: x @ w_ru + h_prev @ w_ru
    const typename Acc<T>::type* b,    // [2*H], read
    const typename Acc<T>::type* carried,  // [B, H], read: the state before the step, not rounded
    T* r, T* u,                        // [n, H], written
    typename Acc<T>::type* update,     // [B, H], written: u, not rounded
    T* h_reset,                        // [B, H], written: h_prev*r
    long long first, long long B,      // the first row of the step, and its rows
    long long H,
    bool hard, typename Acc<T>::real slope, typename Acc<T>::real offset)
{
    typedef typename Acc<T>::type A;
    const Gate<A> gate = {hard, slope, offset};
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long state = row * H + column;
        const long long at = first * H + state;
        const A* zr = z + (first + row) * 2 * H + column;
        const A r_ = gate_of(gate, zr[0] + b[column]);
        const A u_ = gate_of(gate, zr[H] + b[H + column]);
        store(r + at, r_);
        store(u + at, u_);
        update[state] = u_;
        store(h_reset + state, r_ * carried[state]);
    }
}

template <typename T>
__global__ void gru_forward_output(
    const typename Acc<T>::type* z,    // [n, H], read: x @ w_c + (h_prev*r) @ w_c
    const typename Acc<T>::type* b,    // [H], read
    const typename Acc<T>::type* update,  // [B, H], read: u, not rounded
    T* c, T* h,                        // [n, H], written
    typename Acc<T>::type* carried,    // [B, H], updated: the state, not rounded
    long long first, long long B,      // the first row of the step, and its rows
    long long H)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long state = row * H + column;
        const long long at = first * H + state;
        const A c_ = tanh_(z[at] + b[column]);
        const A h_ = gru_output(update[state], c_, carried[state]);
        store(c + at, c_);
        store(h + at, h_);
        carried[state] = h_;
    }
}

template <typename T>
__global__ void gru_backward_output(
    const T* u, const T* c,            // [n, H], read
    const T* h_prev,                   // [n, H], read: the state before each step
    const T* d_h,                      // [n, H], read; null: zeros
    typename Acc<T>::type* dh,         // [B, H], updated: the given gradient is added
    T* d_ru,                           // [n, 2*H], its half for u written
    T* d_c,                            // [n, H], written
    long long first, long long B,      // the first row of the step, and its rows
    long long H,
    bool hard, typename Acc<T>::real slope, typename Acc<T>::real offset)
{
    typedef typename Acc<T>::type A;
    const Gate<A> gate = {hard, slope, offset};
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long state = row * H + column;
        const long long at = first * H + state;
        const A total = dh[state] + (d_h ? wide(d_h[at]) : A(0));
        const GRUGateGradients<A> g = gru_gate_gradients<A>(
            gate, wide(u[at]), wide(c[at]), wide(h_prev[at]), total);
        dh[state] = total;
        store(d_ru + (first + row) * 2 * H + H + column, g.d_u);
        store(d_c + at, g.d_c);
    }
}

template <typename T>
__global__ void gru_backward_reset(
    const T* r, const T* u,            // [n, H], read
    const T* h_prev,                   // [n, H], read: the state before each step
    const typename Acc<T>::type* d_hr, // [B, H], read: d_c @ w_c.T
    typename Acc<T>::type* dh,         // [B, H], updated: dh*u + d_hr*r
    T* d_ru,                           // [n, 2*H], its half for r written
    long long first, long long B,      // the first row of the step, and its rows
    long long H,
    bool hard, typename Acc<T>::real slope, typename Acc<T>::real offset)
{
    typedef typename Acc<T>::type A;
    const Gate<A> gate = {hard, slope, offset};
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long state = row * H + column;
        const long long at = first * H + state;
        const A r_ = wide(r[at]);
        const A through = d_hr[state];
        store(d_ru + (first + row) * 2 * H + column,
              gru_reset_gradient(gate, r_, wide(h_prev[at]), through));
        dh[state] = dh[state] * wide(u[at]) + through * r_;
    }
}
"""

_FORWARD_GATES, _FORWARD_OUTPUT, _BACKWARD_OUTPUT, _BACKWARD_RESET = KERNELS = (
    "gru_forward_gates<{T}>",
    "gru_forward_output<{T}>",
    "gru_backward_output<{T}>",
    "gru_backward_reset<{T}>",
)
SOURCE = GATES + STEP
_BY_ROWS = GATES + ROWS + rows.KERNELS
FORWARD_KERNELS = persistent.Kernels(Kernel(_BY_ROWS, "gru_forward_rows", rows.FORWARD))
BACKWARD_KERNELS = persistent.Kernels(Kernel(_BY_ROWS, "gru_backward_rows", rows.BACKWARD))


def forward_steps(cell: GRU, run: ForwardRun) -> None:
    """The recurrence over t steps: two products and two kernels each."""
    import cupy

    (z_ru, z_c), (w_ru, w_c), (r, u, c, h), state = run.xw, run.w, run.saved, run.carried.h
    attributes = (H := np.int64(state.shape[1]), *(gate := gate_arguments(cell.gate, state.dtype)))
    arrays = (z_ru, z_c, cell.b_ru, cell.b_c, state, *run.saved)
    if persistent.run(FORWARD_KERNELS, run.batches, state, run.w, arrays, attributes):
        return
    loop = Loop(run.batches, SOURCE, KERNELS)
    update, h_reset = cupy.empty(state.shape, state.dtype), cupy.empty(state.shape, h.dtype)
    gates = (z_ru, cell.b_ru, state, r, u, update, h_reset)
    output = (z_c, cell.b_c, update, c, h, state)
    loop.run(
        loop.product(h, w_ru, z_ru, accumulate=True, before=state),
        loop.pointwise(_FORWARD_GATES, h.dtype, gates, H, *gate),
        loop.product(h_reset, w_c, z_c, accumulate=True),
        loop.pointwise(_FORWARD_OUTPUT, h.dtype, output, H),
    )


def backward_steps(cell: GRU, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards: two kernels and two products each."""
    import cupy

    (d_ru, d_c), (w_ru, w_c), (r, u, c, _), dh = run.deltas, run.w, run.saved, run.carried.h
    H, gate, h_prev = np.int64(dh.shape[1]), gate_arguments(cell.gate, dh.dtype), run.before.h
    output, matrices = (u, c, h_prev, run.given.h, dh, d_ru, d_c), (w_c.T, w_ru.T)
    if persistent.run(BACKWARD_KERNELS, run.batches, dh, matrices, (r, *output), (H, *gate)):
        return
    loop, d_hr = Loop(run.batches, SOURCE, KERNELS), cupy.empty(dh.shape, dh.dtype)
    reset = (r, u, h_prev, d_hr, dh, d_ru)
    loop.run(
        loop.pointwise(_BACKWARD_OUTPUT, d_c.dtype, output, H, *gate),
        loop.product(d_c, w_c, d_hr),
        loop.pointwise(_BACKWARD_RESET, d_c.dtype, reset, H, *gate),
        loop.product(d_ru, w_ru, dh, accumulate=True),
        backwards=True,
    )
