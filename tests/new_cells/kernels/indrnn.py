"""The CUDA twin of ``cells/indrnn.py``: the gate, the kernels of one step, their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cupyrnn.kernels.launch import StepLauncher, add_column_sums

if TYPE_CHECKING:
    from cupyrnn._typing import Array
    from cupyrnn.cells.contract import BackwardRun, ForwardRun

    from ..cells.indrnn import IndRNN

GATES = r"""
template <typename A>
__device__ __forceinline__ A indrnn_output(A z, A h_prev, A u)
{
    return tanh_(z + u * h_prev);
}

template <typename A>
__device__ __forceinline__ A indrnn_gradient(A h, A dh)
{
    return dh * (A(1) - h * h);
}
"""

STEP = r"""
template <typename T>
__global__ void indrnn_forward_step(
    const typename Acc<T>::type* z,    // [n, H], read: x @ w_x
    const typename Acc<T>::type* b,    // [H], read, as the next
    const typename Acc<T>::type* u,
    typename Acc<T>::type* state,      // [B, H], updated: h, not rounded
    T* h,                              // [n, H], written
    long long first, long long B,      // the first row of the step, and its rows
    long long H)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        A* h_prev = state + row * H + column;
        const long long at = (first + row) * H + column;
        *h_prev = indrnn_output<A>(z[at] + b[column], *h_prev, u[column]);
        store(h + at, *h_prev);
    }
}

template <typename T>
__global__ void indrnn_backward_step(
    const T* h,                        // [n, H], read
    const T* h_grad,                   // [n, H], read; null: zeros
    const typename Acc<T>::type* u,    // [H], read
    typename Acc<T>::type* dh,         // [B, H], updated: the gradient of h from the next step
    T* dz,                             // [n, H], written
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
        const A total = dh[state] + (h_grad ? wide(h_grad[at]) : A(0));
        const A d = indrnn_gradient<A>(wide(h[at]), total);
        store(dz + at, d);
        dh[state] = d * u[column];
    }
}
"""

_FORWARD, _BACKWARD = "indrnn_forward_step<{T}>", "indrnn_backward_step<{T}>"
SOURCE = GATES + STEP
KERNELS = (_FORWARD, _BACKWARD)


def forward_steps(cell: IndRNN, run: ForwardRun) -> None:
    """The recurrence over t steps: one kernel each."""
    (z,), h = run.xw, run.saved.h
    loop = StepLauncher(run.batches, SOURCE, KERNELS)
    arrays = z, cell.b, cell.u, run.carried.h, h
    loop.run(loop.pointwise(_FORWARD, h.dtype, arrays, np.int64(h.shape[1])))


def backward_steps(cell: IndRNN, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards: one kernel each."""
    (dz,), h = run.deltas, run.saved.h
    loop = StepLauncher(run.batches, SOURCE, KERNELS)
    arrays = h, run.cotangents.h, cell.u, run.carried.h, dz
    loop.run(loop.pointwise(_BACKWARD, dz.dtype, arrays, np.int64(h.shape[1])), backwards=True)


def add_sums(cell: IndRNN, run: BackwardRun, totals: Array) -> None:
    """Add the sums over time and batch of dz*h_prev to totals[H]."""
    (dz,) = run.deltas
    add_column_sums(dz.astype(totals.dtype) * run.before.h, totals)
