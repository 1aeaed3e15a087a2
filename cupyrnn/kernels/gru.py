"""The CUDA twin of ``cells/gru.py``: the cell for the frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import persistent
from .cell import CudaCell, DeviceCell, gate_members
from .recurrence import backward, forward

if TYPE_CHECKING:
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.gru import GRU

STRUCT = r"""
template <typename A> struct GRU : CellDefaults {
    static const int PRODUCTS = 2, SAVED = 4, READ = 4, STATES = 2, CARRIED = 1;
    static const int GRADIENTS = 1, BEFORE = 1;
    static __device__ constexpr int width(int p) { return p ? 1 : 2; }
    static __device__ constexpr int deltas(int p) { return width(p); }
    static __device__ constexpr int saved_before(int p) { return 2 * p; }
    static __device__ constexpr int reads(int p) { return p ? 3 : 1; }
    static __device__ constexpr int writes(int p) { return p ? 1 : 2; }
    static __device__ constexpr int updates(int) { return 1; }
    struct Unit { A b_r, b_u, b_c; };
    struct State { A h, u; };
    struct Saved { A r, u, c, h; };
    struct Read { A r, u, c, h_prev; };
    struct Factors { A d_c, d_u, d_r, r, u; };
    struct Gradients { A h; };

    const A* b_ru;  // [2*H]; null backwards, as the next
    const A* b_c;   // [H]
    Gate<A> gate;
    bool stored;  // whether vectors are in the storage type

    __device__ __forceinline__ void plain() { gate.hard = false; }
    __device__ __forceinline__ Unit unit(int u, int H) const
    {
        Unit v = {};
        if (b_ru) {
            v.b_r = number_of(b_ru, stored, u);
            v.b_u = number_of(b_ru, stored, H + u);
            v.b_c = number_of(b_c, stored, u);
        }
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
        return state.h = saved.h = state.u * (state.h - saved.c) + saved.c;
    }
    __device__ __forceinline__ Factors factors(const Unit&, const Read& s) const
    {
        const A k_c = (A(1) - s.u) * (A(1) - s.c * s.c);
        const A k_u = (s.h_prev - s.c) * slope_of(gate, s.u);
        const A k_r = s.h_prev * slope_of(gate, s.r);
        return {k_c, k_u, k_r, s.r, s.u};
    }
    // Between the two products, the gradient of h belongs to this step.
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

CELL = CudaCell(
    name="gru",
    struct="GRU",
    source=STRUCT,
    fields={"b_ru": "pointer", "b_c": "pointer", "gate": "gate", "stored": "?"},
    widths=(2, 1),
    carries_h=True,
    within=1,
    optional=("gate",),
)
FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)
SOURCE, KERNELS = FORWARD_KERNELS.loop


def _of(cell: GRU) -> tuple[DeviceCell, list[Any]]:
    """Return the cell with its attributes, and its vectors."""
    return in_place(cell.gate), [cell.b_ru, cell.b_c]


def forward_steps(cell: GRU, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    forward(*_of(cell), run)


def backward_steps(cell: GRU, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    backward(*_of(cell), run)


def in_place(gate: Any) -> DeviceCell:
    """Return the cell with this activation, for arrays of a caller."""
    kernels = FORWARD_KERNELS, BACKWARD_KERNELS
    return DeviceCell(kernels, (gate_members(gate),), ("b_ru", "b_c"), (0, 1, 2, 3), 0)
