"""The CUDA twin of ``cells/gru_reset_after.py``: the gates, and the cell for the frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import persistent
from .cell import Cell, gate_members
from .run import backward, forward

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
    static const bool APART = true;
    static __device__ constexpr int reads(int) { return 1; }
    static __device__ constexpr int writes(int) { return 1; }
    static __device__ constexpr int updates(int) { return 1; }
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

CELL = Cell(
    name="gru_reset_after",
    struct="GRUResetAfter",
    source=GATES + STRUCT,
    fields={"b": "pointer", "b_hc": "pointer", "gate": "gate"},
    widths=(3,),
    apart=True,
    carries_h=True,
)
FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)
SOURCE, KERNELS = FORWARD_KERNELS.loop


def _struct(cell: GRUResetAfter, compute: np.dtype[Any]) -> np.void:
    """Return the cell as C++ has it."""
    return CELL.record(compute, cell.b, cell.b_hc, gate_members(cell.gate))


def forward_steps(cell: GRUResetAfter, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    forward(FORWARD_KERNELS, _struct(cell, run.xw[0].dtype), run)


def backward_steps(cell: GRUResetAfter, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    read = (*run.saved[:4], run.before.h)
    backward(BACKWARD_KERNELS, _struct(cell, run.carried[0].dtype), run, read)
