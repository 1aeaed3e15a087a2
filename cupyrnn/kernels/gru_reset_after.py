"""The CUDA twin of ``cells/gru_reset_after.py``: gates, kernels of one step, launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import persistent
from .launch import Loop, gate_arguments
from .rows import gru_reset_after as rows
from .rows.common import SOURCE as ROWS
from .rows.common import Kernel
from .tiles import gru_reset_after as tiles
from .tiles.common import SOURCE as TILES
from .tiles.common import Kernel as TileKernel

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
_BY_ROWS = GATES + ROWS + rows.KERNELS
_BY_TILES = GATES + TILES + tiles.KERNELS
FORWARD_KERNELS = persistent.Kernels(
    Kernel(_BY_ROWS, "gru_reset_after_forward_rows", rows.FORWARD),
    TileKernel(_BY_TILES, "gru_reset_after_forward_tiles", vectors=1),
)
BACKWARD_KERNELS = persistent.Kernels(
    Kernel(_BY_ROWS, "gru_reset_after_backward_rows", rows.BACKWARD),
    TileKernel(_BY_TILES, "gru_reset_after_backward_tiles", vectors=3),
)


def forward_steps(cell: GRUResetAfter, run: ForwardRun) -> None:
    """The recurrence over t steps: one product and one kernel each."""
    import cupy

    (z,), (w_h,), h, state = run.xw, run.w, run.saved.h, run.carried.h
    (B, H), gate = state.shape, gate_arguments(cell.gate, z.dtype)
    arrays = (z, cell.b, cell.b_hc, state, *run.saved)
    attributes = np.int64(H), *gate
    if persistent.run(FORWARD_KERNELS, run.batches, state, run.w, arrays, attributes):
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
    if persistent.run(BACKWARD_KERNELS, run.batches, dh, [w_h.T], arrays, attributes):
        return
    loop = Loop(run.batches, SOURCE, KERNELS)
    loop.run(
        loop.pointwise(_BACKWARD, dz.dtype, arrays, *attributes),
        loop.product(dz[:, : 3 * H], w_h, dh, accumulate=True),
        backwards=True,
    )
