"""The CUDA twin of ``cells/gru_reset_after.py``: gates, kernels of one step, launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import persistent
from .cell import Cell, gate_members
from .launch import Loop, gate_arguments

if TYPE_CHECKING:
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.gru_reset_after import GRUResetAfter

GATES = r"""
template <typename A> struct GRUResetAfterGates { A r, u, c, hc, h; };

// z*: x @ w_x + b, with h_prev @ w_h too for r and u; hc = h_prev @ w_h of c + b_hc.
template <typename A>
__device__ __forceinline__ GRUResetAfterGates<A> gru_reset_after_gates(
    const Gate<A>& gate, A zr, A zu, A zc, A hc, A h_prev)
{
    GRUResetAfterGates<A> g;
    g.r = gate_of(gate, zr);
    g.u = gate_of(gate, zu);
    g.hc = hc;
    g.c = tanh_(zc + g.r * hc);
    g.h = g.u * (h_prev - g.c) + g.c;
    return g;
}

template <typename A> struct GRUResetAfterGateGradients { A dhc, dr, du, dc; };

template <typename A>
__device__ __forceinline__ GRUResetAfterGateGradients<A> gru_reset_after_gate_gradients(
    const Gate<A>& gate, A r, A u, A c, A hc, A h_prev, A dh)
{
    const A k_c = (A(1) - u) * (A(1) - c * c);
    const A k_hc = k_c * r;
    const A k_r = k_c * hc * slope_of(gate, r);
    const A k_u = (h_prev - c) * slope_of(gate, u);
    GRUResetAfterGateGradients<A> g;
    g.dhc = dh * k_hc;
    g.dr = dh * k_r;
    g.du = dh * k_u;
    g.dc = dh * k_c;
    return g;
}
"""

STRUCT = r"""
// The columns of w_h and of the deltas are hc, r, u, those of z are r, u, c.
template <typename A> struct GRUResetAfter {
    static const int PRODUCTS = 1, SAVED = 5, READ = 5, STATES = 1, CARRIED = 1;
    static const int GRADIENTS = 1, GIVEN = 1;
    static __device__ constexpr int width(int) { return 3; }
    static __device__ constexpr int deltas(int) { return 4; }
    static __device__ constexpr int saved_before(int p) { return p ? SAVED : 0; }
    struct Unit { A b[3], b_hc; };
    struct State { A h; };
    typedef GRUResetAfterGates<A> Saved;
    struct Read { A r, u, c, hc, h_prev; };
    struct Factors { GRUResetAfterGateGradients<A> of_one; A u; };
    struct Gradients { A h; };

    const A* b;     // [3*H]
    const A* b_hc;  // [H]
    Gate<A> gate;

    __device__ __forceinline__ int column(int k) const { return k; }
    __device__ __forceinline__ Unit unit(int u, int H) const
    {
        return {{b[u], b[H + u], b[2 * H + u]}, b_hc[u]};
    }
    __device__ __forceinline__ A forward(
        Product<0>, const Unit& v, const A* z, const A* sums, State& state, Saved& saved) const
    {
        saved = gru_reset_after_gates<A>(
            gate, z[0] + sums[1] + v.b[0], z[1] + sums[2] + v.b[1], z[2] + v.b[2],
            sums[0] + v.b_hc, state.h);
        return state.h = saved.h;
    }
    __device__ __forceinline__ Factors factors(const Unit&, const Read& s) const
    {
        return {gru_reset_after_gate_gradients<A>(gate, s.r, s.u, s.c, s.hc, s.h_prev, A(1)), s.u};
    }
    __device__ __forceinline__ A backward(
        Product<0>, const Factors& k, A dh, const A*, Gradients&, A* d) const
    {
        d[0] = dh * k.of_one.dhc, d[1] = dh * k.of_one.dr;
        d[2] = dh * k.of_one.du, d[3] = dh * k.of_one.dc;
        return dh * k.u;
    }
};
"""

STEP = r"""
template <typename T>
__global__ void gru_reset_after_forward_step(
    const typename Acc<T>::type* z,    // [n, 3*H], read: x @ w_x, columns r, u, c
    const typename Acc<T>::type* hw,   // [B, 3*H], read: h_prev @ w_h, columns hc, r, u
    const typename Acc<T>::type* b,    // [3*H], read
    const typename Acc<T>::type* b_hc, // [H], read
    typename Acc<T>::type* carried,    // [B, H], updated: the state, not rounded
    T* r, T* u, T* c, T* hc, T* h,     // [n, H], written
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
        const A* zr = z + (first + row) * 3 * H + column;
        const A* hr = hw + row * 3 * H + column;
        const A* br = b + column;
        const GRUResetAfterGates<A> g = gru_reset_after_gates<A>(
            gate, zr[0] + hr[H] + br[0], zr[H] + hr[2 * H] + br[H], zr[2 * H] + br[2 * H],
            hr[0] + b_hc[column], carried[state]);
        carried[state] = g.h;
        store(r + at, g.r);
        store(u + at, g.u);
        store(c + at, g.c);
        store(hc + at, g.hc);
        store(h + at, g.h);
    }
}

template <typename T>
__global__ void gru_reset_after_backward_step(
    const T* r, const T* u, const T* c, const T* hc,  // [n, H], read
    const T* h_prev,                   // [n, H], read: the state before each step
    const T* h_grad,                   // [n, H], read; null: zeros
    typename Acc<T>::type* dh,         // [B, H], updated: its part that goes past the products
    T* dz,                             // [n, 4*H], written: columns hc, r, u, c
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
        const A u_ = wide(u[at]);
        const A total = dh[state] + (h_grad ? wide(h_grad[at]) : A(0));
        const GRUResetAfterGateGradients<A> g = gru_reset_after_gate_gradients<A>(
            gate, wide(r[at]), u_, wide(c[at]), wide(hc[at]), wide(h_prev[at]), total);
        T* to = dz + (first + row) * 4 * H + column;
        store(to, g.dhc);
        store(to + H, g.dr);
        store(to + 2 * H, g.du);
        store(to + 3 * H, g.dc);
        dh[state] = total * u_;
    }
}
"""

KERNELS = "gru_reset_after_forward_step<{T}>", "gru_reset_after_backward_step<{T}>"
_FORWARD, _BACKWARD = KERNELS
SOURCE = GATES + STEP
CELL = Cell(
    "gru_reset_after",
    "GRUResetAfter",
    GATES + STRUCT,
    {"b": "pointer", "b_hc": "pointer", "gate": "gate"},
    (3,),
)
FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)


def _struct(cell: GRUResetAfter, compute: np.dtype[Any]) -> np.void:
    """Return the cell as C++ has it."""
    return CELL.record(compute, cell.b, cell.b_hc, gate_members(cell.gate))


def forward_steps(cell: GRUResetAfter, run: ForwardRun) -> None:
    """The recurrence over t steps: one product and one kernel each."""
    import cupy

    (z,), (w_h,), h, state = run.xw, run.w, run.saved.h, run.carried.h
    (B, H), gate = state.shape, gate_arguments(cell.gate, z.dtype)
    attributes, once = (np.int64(H), *gate), (z, state, *run.saved)
    if persistent.run(FORWARD_KERNELS, run.batches, _struct(cell, z.dtype), run.w, once, state):
        return
    loop = Loop(run.batches, SOURCE, KERNELS)
    # Apart from x @ w_x: the reset comes between the two.
    hw = cupy.empty((B, 3 * H), z.dtype)
    arrays = (z, hw, cell.b, cell.b_hc, state, *run.saved)
    loop.run(
        loop.product(h, w_h, hw, before=state),
        loop.pointwise(_FORWARD, h.dtype, arrays, *attributes),
    )


def backward_steps(cell: GRUResetAfter, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards: one kernel and one product each."""
    (dz,), (w_h,), dh = run.deltas, run.w, run.carried.h
    H, gate = dh.shape[1], gate_arguments(cell.gate, dh.dtype)
    arrays = (*run.saved[:4], run.before.h, run.given.h, dh, dz)
    attributes = np.int64(H), *gate
    struct = _struct(cell, dh.dtype)
    if persistent.run(BACKWARD_KERNELS, run.batches, struct, [w_h.T], arrays, dh):
        return
    loop = Loop(run.batches, SOURCE, KERNELS)
    loop.run(
        loop.pointwise(_BACKWARD, dz.dtype, arrays, *attributes),
        loop.product(dz[:, : 3 * H], w_h, dh, accumulate=True),
        backwards=True,
    )
