"""The CUDA twin of ``cells/simple_rnn.py``: the gate, the kernels of one step, their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import persistent
from .cell import Cell
from .launch import Loop

if TYPE_CHECKING:
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.simple_rnn import SimpleRNN

GATES = r"""
template <typename A>
__device__ __forceinline__ A simple_rnn_output(A z, bool relu)
{
    // A comparison as in gate_of.
    return relu ? (z <= A(0) ? A(0) : z) : tanh_(z);
}

template <typename A>
__device__ __forceinline__ A simple_rnn_gradient(A h, A dh, bool relu)
{
    return (relu ? A(h > A(0)) : A(1) - h * h) * dh;
}
"""

STRUCT = r"""
template <typename A> struct SimpleRNN {
    static const int PRODUCTS = 1, SAVED = 1, READ = 1, STATES = 1, CARRIED = 1;
    static const int GRADIENTS = 1, GIVEN = 1;
    static __device__ constexpr int width(int) { return 1; }
    static __device__ constexpr int deltas(int) { return 1; }
    static __device__ constexpr int saved_before(int p) { return p; }
    struct Unit { A b; };
    struct State { A h; };
    struct Saved { A h; };
    struct Read { A h; };
    struct Factors { A slope; };
    struct Gradients { A h; };

    const A* b;  // [H]
    bool relu;

    __device__ __forceinline__ int column(int) const { return 0; }
    __device__ __forceinline__ Unit unit(int u, int) const { return {b[u]}; }
    __device__ __forceinline__ A forward(
        Product<0>, const Unit& v, const A* z, const A* sums, State& state, Saved& saved) const
    {
        return state.h = saved.h = simple_rnn_output(z[0] + sums[0] + v.b, relu);
    }
    __device__ __forceinline__ Factors factors(const Unit&, const Read& s) const
    {
        return {simple_rnn_gradient<A>(s.h, A(1), relu)};
    }
    __device__ __forceinline__ A backward(
        Product<0>, const Factors& k, A dh, const A*, Gradients&, A* d) const
    {
        d[0] = k.slope * dh;
        return A(0);
    }
};
"""

STEP = r"""
template <typename T>
__global__ void simple_rnn_forward_step(
    const typename Acc<T>::type* z,    // [n, H], read: x @ w_x + h_prev @ w_h
    const typename Acc<T>::type* b,    // [H], read
    T* h,                              // [n, H], written
    long long first, long long B,      // the first row of the step, and its rows
    long long H,
    bool relu)
{
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long at = (first + row) * H + column;
        store(h + at, simple_rnn_output(z[at] + b[column], relu));
    }
}

template <typename T>
__global__ void simple_rnn_backward_step(
    const T* h,                        // [n, H], read
    const T* h_grad,                   // [n, H], read; null: zeros
    const typename Acc<T>::type* dh,   // [B, H], read: the gradient of h from the next step
    T* dz,                             // [n, H], written
    long long first, long long B,      // the first row of the step, and its rows
    long long H,
    bool relu)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long state = row * H + column;
        const long long at = first * H + state;
        const A total = dh[state] + (h_grad ? wide(h_grad[at]) : A(0));
        store(dz + at, simple_rnn_gradient<A>(wide(h[at]), total, relu));
    }
}
"""

_FORWARD, _BACKWARD = KERNELS = "simple_rnn_forward_step<{T}>", "simple_rnn_backward_step<{T}>"
SOURCE = GATES + STEP
CELL = Cell("simple_rnn", "SimpleRNN", GATES + STRUCT, {"b": "pointer", "relu": "?"}, (1,))
FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)


def _struct(cell: SimpleRNN, compute: np.dtype[Any]) -> np.void:
    """Return the cell as C++ has it."""
    return CELL.record(compute, cell.b, cell.relu)


def forward_steps(cell: SimpleRNN, run: ForwardRun) -> None:
    """The recurrence over t steps: one product and one kernel each."""
    (z,), (w_h,), h, state = run.xw, run.w, run.saved.h, run.carried.h
    attributes, struct = (np.int64(h.shape[1]), np.bool_(cell.relu)), _struct(cell, state.dtype)
    if persistent.run(FORWARD_KERNELS, run.batches, struct, run.w, (z, state, h), state):
        return
    loop = Loop(run.batches, SOURCE, KERNELS)
    loop.run(
        loop.product(h, w_h, z, accumulate=True, before=state),
        loop.pointwise(_FORWARD, h.dtype, (z, cell.b, h), *attributes),
    )
    loop.keep_last(h, state)


def backward_steps(cell: SimpleRNN, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards: one kernel and one product each."""
    (dz,), (w_h,), dh, h = run.deltas, run.w, run.carried.h, run.saved.h
    attributes, arrays = (np.int64(h.shape[1]), np.bool_(cell.relu)), (h, run.given.h, dh, dz)
    struct = _struct(cell, dh.dtype)
    if persistent.run(BACKWARD_KERNELS, run.batches, struct, [w_h.T], arrays, dh):
        return
    loop = Loop(run.batches, SOURCE, KERNELS)
    loop.run(
        loop.pointwise(_BACKWARD, dz.dtype, arrays, *attributes),
        loop.product(dz, w_h, dh),
        backwards=True,
    )
