"""The CUDA twin of ``cupyrnn.cudnn_gru``: the gates, the kernels of one step, their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .blas import prepare
from .compile import kernel
from .launch import BLOCK, step_grid

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cudnn_gru import CudnnGRUOutputs

GATES = r"""
template <typename A> struct CudnnGRUGates { A r, u, c, hc, h; };

// z*: x @ w_x + b, with h_prev @ w_h too for r and u; hc = h_prev @ w_h of c + b_hc.
template <typename A>
__device__ __forceinline__ CudnnGRUGates<A> cudnn_gru_gates(A zr, A zu, A zc, A hc, A h_prev)
{
    CudnnGRUGates<A> g;
    g.r = sigmoid(zr);
    g.u = sigmoid(zu);
    g.hc = hc;
    g.c = tanh_(zc + g.r * hc);
    g.h = g.u * (h_prev - g.c) + g.c;
    return g;
}

template <typename A> struct CudnnGRUGateGradients { A dhc, dr, du, dc; };

template <typename A>
__device__ __forceinline__ CudnnGRUGateGradients<A> cudnn_gru_gate_gradients(
    A r, A u, A c, A hc, A h_prev, A dh)
{
    CudnnGRUGateGradients<A> g;
    g.dc = dh * (A(1) - u) * (A(1) - c * c);
    g.dhc = g.dc * r;
    g.dr = g.dhc * hc * (A(1) - r);
    g.du = dh * (h_prev - c) * u * (A(1) - u);
    return g;
}
"""

STEP = r"""
template <typename T>
__global__ void cudnn_gru_forward_step(
    const typename Acc<T>::type* xw,   // [steps, B, 3*H], read: x @ w_x
    const typename Acc<T>::type* hw,   // [B, 3*H], read: h_prev @ w_h
    const typename Acc<T>::type* b,    // [3*H], read
    const typename Acc<T>::type* b_hc, // [H], read
    typename Acc<T>::type* carried,    // [B, H], updated: the state, not rounded
    T* r, T* u, T* c, T* hc, T* h,     // [steps, B, H], written
    long long step, long long B, long long H)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long in_step = row * H + column;
        const long long at = step * B * H + in_step;
        const A* xr = xw + (step * B + row) * 3 * H + column;
        const A* hr = hw + row * 3 * H + column;
        const A* br = b + column;
        const CudnnGRUGates<A> g = cudnn_gru_gates<A>(
            xr[0] + hr[0] + br[0], xr[H] + hr[H] + br[H], xr[2 * H] + br[2 * H],
            hr[2 * H] + b_hc[column], carried[in_step]);
        carried[in_step] = g.h;
        store(r + at, g.r);
        store(u + at, g.u);
        store(c + at, g.c);
        store(hc + at, g.hc);
        store(h + at, g.h);
    }
}

template <typename T>
__global__ void cudnn_gru_backward_step(
    const T* r, const T* u, const T* c, const T* hc, const T* h,  // [steps, B, H], read
    const T* h_first,                  // [B, H], read: the state before step 0
    const T* h_grad,                   // [steps, B, H], read; null: zeros
    typename Acc<T>::type* dh,         // [B, H], updated: its part that goes past the products
    T* dgates,                         // [steps, B, 4*H], written
    long long step, long long B, long long H)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long in_step = row * H + column;
        const long long at = step * B * H + in_step;
        const A before = wide(step ? h[at - B * H] : h_first[in_step]);
        const A u_ = wide(u[at]);
        const A total = dh[in_step] + (h_grad ? wide(h_grad[at]) : A(0));
        const CudnnGRUGateGradients<A> g = cudnn_gru_gate_gradients<A>(
            wide(r[at]), u_, wide(c[at]), wide(hc[at]), before, total);
        T* to = dgates + (step * B + row) * 4 * H + column;
        store(to, g.dhc);
        store(to + H, g.dr);
        store(to + 2 * H, g.du);
        store(to + 3 * H, g.dc);
        dh[in_step] = total * u_;
    }
}
"""

SOURCE = GATES + STEP
_FORWARD, _BACKWARD = "cudnn_gru_forward_step<{T}>", "cudnn_gru_backward_step<{T}>"
KERNELS = (_FORWARD, _BACKWARD)


def forward_steps(
    xw: Array, w_h: Array, b: Array, b_hc: Array, h_prev: Array, outputs: CudnnGRUOutputs
) -> Array:
    """The recurrence over t steps: one product and one kernel each."""
    import cupy

    t, B, _ = xw.shape
    H, h = h_prev.shape[1], outputs.h
    carried = h_prev.astype(xw.dtype, order="C")
    # Apart from x @ w_x: the reset comes between the two.
    hw = cupy.empty((B, 3 * H), xw.dtype)
    launch = kernel(SOURCE, KERNELS, h.dtype.name, _FORWARD)
    grid = step_grid(B, H)
    first = prepare(h_prev.astype(h.dtype, copy=False), w_h, hw, accumulate=False)
    later = prepare(h[0], w_h, hw, accumulate=False)
    arrays, sizes = (xw, hw, b, b_hc, carried, *outputs), (np.int64(B), np.int64(H))
    for step in range(t):
        if step:
            later((step - 1) * h.strides[0], 0, 0)
        else:
            first(0, 0, 0)
        if grid is not None:
            launch(grid, BLOCK, (*arrays, np.int64(step), *sizes))
    return carried


def backward_steps(
    saved: CudnnGRUOutputs,
    h_first: Array,
    h_grad: Array | None,
    w_h: Array,
    dh: Array,
    dgates: Array,
) -> None:
    """The recurrence over t steps, backwards: one kernel and one product each."""
    t, B, _ = dgates.shape
    H = dh.shape[1]
    launch = kernel(SOURCE, KERNELS, dgates.dtype.name, _BACKWARD)
    grid = step_grid(B, H)
    carry = prepare(dgates[0, :, : 3 * H], w_h, dh, accumulate=True)
    arrays, sizes = (*saved, h_first, h_grad, dh, dgates), (np.int64(B), np.int64(H))
    for step in range(t - 1, -1, -1):
        if grid is not None:
            launch(grid, BLOCK, (*arrays, np.int64(step), *sizes))
        carry(step * dgates.strides[0], 0, 0)
