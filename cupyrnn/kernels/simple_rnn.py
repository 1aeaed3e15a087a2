"""The CUDA twin of ``cupyrnn.simple_rnn``: the gate, the kernels of one step, their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .blas import prepare
from .compile import kernel
from .launch import BLOCK, step_grid

if TYPE_CHECKING:
    from .._arrays import Array

GATES = r"""
template <typename A>
__device__ __forceinline__ A simple_rnn_output(A z, bool relu)
{
    // A comparison, not fmax, which loses a NaN.
    return relu ? (z < A(0) ? A(0) : z) : tanh_(z);
}

template <typename A>
__device__ __forceinline__ A simple_rnn_gradient(A h, A dh, bool relu)
{
    return (relu ? A(h > A(0)) : A(1) - h * h) * dh;
}
"""

STEP = r"""
template <typename T>
__global__ void simple_rnn_forward_step(
    const typename Acc<T>::type* z,    // [steps, B, H], read: x @ w_x + h_prev @ w_h
    const typename Acc<T>::type* b,    // [H], read
    T* h,                              // [steps, B, H], written
    long long step, long long B, long long H,
    bool relu)
{
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long at = (step * B + row) * H + column;
        store(h + at, simple_rnn_output(z[at] + b[column], relu));
    }
}

template <typename T>
__global__ void simple_rnn_backward_step(
    const T* h,                        // [steps, B, H], read
    const T* h_grad,                   // [steps, B, H], read; null: zeros
    const typename Acc<T>::type* dh,   // [B, H], read: the gradient of h from the next step
    T* dgates,                         // [steps, B, H], written
    long long step, long long B, long long H,
    bool relu)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long in_step = row * H + column;
        const long long at = step * B * H + in_step;
        const A given = h_grad ? wide(h_grad[at]) : A(0);
        store(dgates + at, simple_rnn_gradient<A>(wide(h[at]), dh[in_step] + given, relu));
    }
}
"""

SOURCE = GATES + STEP
_FORWARD, _BACKWARD = "simple_rnn_forward_step<{T}>", "simple_rnn_backward_step<{T}>"
KERNELS = (_FORWARD, _BACKWARD)


def forward_steps(
    xw: Array, w_h: Array, b: Array, h_prev: Array, relu: bool, outputs: Array
) -> Array:
    """The recurrence over t steps: one product and one kernel each. `xw` is overwritten."""
    t, B, H = xw.shape
    launch = kernel(SOURCE, KERNELS, outputs.dtype.name, _FORWARD)
    grid = step_grid(B, H)
    first = prepare(h_prev.astype(outputs.dtype, copy=False), w_h, xw[0], accumulate=True)
    later = prepare(outputs[0], w_h, xw[0], accumulate=True)
    constant = (np.int64(B), np.int64(H), np.bool_(relu))
    for step in range(t):
        if step:
            later((step - 1) * outputs.strides[0], 0, step * xw.strides[0])
        else:
            first(0, 0, 0)
        if grid is not None:
            launch(grid, BLOCK, (xw, b, outputs, np.int64(step), *constant))
    last: Array = outputs[-1]
    return last


def backward_steps(
    h: Array,
    h_grad: Array | None,
    w_h: Array,
    relu: bool,
    dh: Array,
    dgates: Array,
) -> None:
    """The recurrence over t steps, backwards: one kernel and one product each."""
    t, B, H = dgates.shape
    launch = kernel(SOURCE, KERNELS, dgates.dtype.name, _BACKWARD)
    grid = step_grid(B, H)
    carry = prepare(dgates[0], w_h, dh, accumulate=False)
    constant = (np.int64(B), np.int64(H), np.bool_(relu))
    for step in range(t - 1, -1, -1):
        if grid is not None:
            launch(grid, BLOCK, (h, h_grad, dh, dgates, np.int64(step), *constant))
        carry(step * dgates.strides[0], 0, 0)
