"""The CUDA twin of ``cells/gru.py``: the gates, the kernels of one step, their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import persistent
from .cell import Cell, gate_members
from .launch import Loop, gate_arguments

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

STRUCT = r"""
template <typename A> struct GRU {
    static const int PRODUCTS = 2, SAVED = 4, READ = 4, STATES = 2, CARRIED = 1;
    static const int GRADIENTS = 1, GIVEN = 1;
    static __device__ constexpr int width(int p) { return p ? 1 : 2; }
    static __device__ constexpr int deltas(int p) { return width(p); }
    static __device__ constexpr int saved_before(int p) { return 2 * p; }
    struct Unit { A b_r, b_u, b_c; };
    struct State { A h, u; };
    struct Saved { A r, u, c, h; };
    struct Read { A r, u, c, h_prev; };
    struct Factors { A d_c, d_u, d_r, r, u; };
    struct Gradients { A h; };

    const A* b_ru;  // [2*H]; null backwards, as the next
    const A* b_c;   // [H]
    Gate<A> gate;

    __device__ __forceinline__ int column(int k) const { return k; }
    __device__ __forceinline__ Unit unit(int u, int H) const
    {
        Unit v = {};
        if (b_ru) v.b_r = b_ru[u], v.b_u = b_ru[H + u], v.b_c = b_c[u];
        return v;
    }
    __device__ __forceinline__ A forward(
        Product<0>, const Unit& v, const A* z, const A* sums, State& state, Saved& saved) const
    {
        saved.r = gate_of(gate, z[0] + sums[0] + v.b_r);
        state.u = saved.u = gate_of(gate, z[1] + sums[1] + v.b_u);
        return saved.r * state.h;
    }
    __device__ __forceinline__ A forward(
        Product<1>, const Unit& v, const A* z, const A* sums, State& state, Saved& saved) const
    {
        saved.c = tanh_(z[0] + sums[0] + v.b_c);
        return state.h = saved.h = gru_output(state.u, saved.c, state.h);
    }
    __device__ __forceinline__ Factors factors(const Unit&, const Read& s) const
    {
        const GRUGateGradients<A> of_one = gru_gate_gradients<A>(gate, s.u, s.c, s.h_prev, A(1));
        return {of_one.d_c, of_one.d_u, gru_reset_gradient<A>(gate, s.r, s.h_prev, A(1)), s.r, s.u};
    }
    // Between the two, the gradient of h is that of this step.
    __device__ __forceinline__ A backward(
        Product<1>, const Factors& k, A dh, const A*, Gradients& gradients, A* d) const
    {
        gradients.h = dh;
        d[0] = dh * k.d_c;
        return A(0);
    }
    __device__ __forceinline__ A backward(
        Product<0>, const Factors& k, A d_hr, const A*, Gradients& gradients, A* d) const
    {
        d[0] = d_hr * k.d_r, d[1] = gradients.h * k.d_u;
        return gradients.h * k.u + d_hr * k.r;
    }
};
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
CELL = Cell(
    "gru", "GRU", GATES + STRUCT, {"b_ru": "pointer", "b_c": "pointer", "gate": "gate"}, (2, 1)
)
FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)


def _struct(cell: GRU, compute: np.dtype[Any]) -> np.void:
    """Return the cell as C++ has it."""
    return CELL.record(compute, cell.b_ru, cell.b_c, gate_members(cell.gate))


def forward_steps(cell: GRU, run: ForwardRun) -> None:
    """The recurrence over t steps: two products and two kernels each."""
    import cupy

    (z_ru, z_c), (w_ru, w_c), (r, u, c, h), state = run.xw, run.w, run.saved, run.carried.h
    H, gate = np.int64(state.shape[1]), gate_arguments(cell.gate, state.dtype)
    once = (z_ru, z_c, state, None, *run.saved)
    if persistent.run(FORWARD_KERNELS, run.batches, _struct(cell, state.dtype), run.w, once, state):
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
    output, matrices = (u, c, h_prev, run.given.h, dh, d_ru, d_c), (w_ru.T, w_c.T)
    once = (r, *output)
    if persistent.run(BACKWARD_KERNELS, run.batches, _struct(cell, dh.dtype), matrices, once, dh):
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
