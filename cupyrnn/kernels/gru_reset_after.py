"""The CUDA twin of ``cells/gru_reset_after.py``: the cell for the frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import persistent
from .cell import CudaCell, DeviceCell, gate_members
from .recurrence import backward, forward

if TYPE_CHECKING:
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.gru_reset_after import GRUResetAfter

STRUCT = r"""
// The columns of z are r, u, c. Those of w_h are hc, r, u and the deltas hc, r, u, c; if packed, as
// cuDNN has weights, r, u, hc and r, u, c, hc.
template <typename A> struct GRUResetAfter : CellDefaults {
    static const int PRODUCTS = 1, SAVED = 5, READ = 5, STATES = 1, CARRIED = 1;
    static const int GRADIENTS = 1, BEFORE = 1;
    static __device__ constexpr int width(int) { return 3; }
    static __device__ constexpr int deltas(int) { return 4; }
    static __device__ constexpr int saved_before(int p) { return p ? SAVED : 0; }
    static const bool APART = true;
    static __device__ constexpr int reads(int) { return 1; }
    static __device__ constexpr int writes(int) { return 1; }
    static __device__ constexpr int updates(int) { return 1; }
    struct Unit { A b[3], b_hc; };
    struct State { A h; };
    struct Saved { A r, u, c, hc, h; };
    struct Read { A r, u, c, hc, h_prev; };
    struct Factors { A hc, r, u, c, past; };
    struct Gradients { A h; };

    const A* b;     // [3*H]; null backwards, as the next
    const A* b_hc;  // [H]; packed: [3*H], what is added to h_prev @ w_h
    Gate<A> gate;
    bool packed;
    bool stored;  // whether vectors are in the storage type

    __device__ __forceinline__ int weight(int k) const { return packed ? (k + 2) % 3 : k; }
    __device__ __forceinline__ int place(int k) const
    {
        return !packed ? k : k == 0 ? 3 : k == 3 ? 2 : k - 1;
    }
    __device__ __forceinline__ void plain() { gate.hard = false; }
    __device__ __forceinline__ Unit unit(int u, int H) const
    {
        Unit v = {};
        if (!b) return v;
#pragma unroll
        for (int k = 0; k < 3; ++k) v.b[k] = number_of(b, stored, k * H + u);
#pragma unroll
        for (int k = 0; k < 2; ++k) if (packed) v.b[k] += number_of(b_hc, stored, k * H + u);
        v.b_hc = number_of(b_hc, stored, packed ? 2 * H + u : u);
        return v;
    }
    __device__ __forceinline__ A forward(
        Product<0>, const Unit& v, const A* z, const A* sums, State& state, Saved& saved) const
    {
        saved.r = gate_of(gate, z[0] + sums[1] + v.b[0]);
        saved.u = gate_of(gate, z[1] + sums[2] + v.b[1]);
        saved.hc = sums[0] + v.b_hc;
        saved.c = tanh_(z[2] + v.b[2] + saved.r * saved.hc);
        return state.h = saved.h = saved.u * (state.h - saved.c) + saved.c;
    }
    __device__ __forceinline__ Factors factors(const Unit&, const Read& s) const
    {
        const A k_c = (A(1) - s.u) * (A(1) - s.c * s.c);
        const A k_r = k_c * s.hc * slope_of(gate, s.r);
        const A k_u = (s.h_prev - s.c) * slope_of(gate, s.u);
        return {k_c * s.r, k_r, k_u, k_c, s.u};
    }
    __device__ __forceinline__ A backward(
        Product<0>, const Factors& k, A dh, const A*, Gradients&, A* d) const
    {
        d[0] = dh * k.hc, d[1] = dh * k.r, d[2] = dh * k.u, d[3] = dh * k.c;
        return dh * k.past;
    }
};
"""

CELL = CudaCell(
    name="gru_reset_after",
    struct="GRUResetAfter",
    source=STRUCT,
    fields={"b": "pointer", "b_hc": "pointer", "gate": "gate", "packed": "?", "stored": "?"},
    widths=(3,),
    apart=True,
    carries_h=True,
    optional=("gate",),
)
FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)
SOURCE, KERNELS = FORWARD_KERNELS.loop


def _of(cell: GRUResetAfter) -> tuple[DeviceCell, list[Any]]:
    """Return the cell with its attributes, and its vectors."""
    return in_place(cell.gate, packed=False), [cell.b, cell.b_hc]


def forward_steps(cell: GRUResetAfter, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    forward(*_of(cell), run)


def backward_steps(cell: GRUResetAfter, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    backward(*_of(cell), run)


def in_place(gate: Any, packed: bool = True) -> DeviceCell:
    """Return the cell with this activation, its weights packed or as `CELL` has them."""
    kernels = FORWARD_KERNELS, BACKWARD_KERNELS
    return DeviceCell(kernels, (gate_members(gate), packed), ("b", "b_more"), (0, 1, 2, 3, 4), 0)
