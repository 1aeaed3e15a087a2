"""The CUDA twin of ``cells/lstm.py``: the cell for the frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import persistent, step, weight_gradients
from .cell import CudaCell, DeviceCell, gate_members
from .recurrence import backward, forward

if TYPE_CHECKING:
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.lstm import LSTM

STRUCT = r"""
template <typename A> struct LSTM : CellDefaults {
    static const int PRODUCTS = 1, SAVED = 7, READ = 7, STATES = 2, CARRIED = 2;
    static const int GRADIENTS = 2, COTANGENTS = 2, BEFORE = 1;
    static __device__ constexpr int width(int) { return 4; }
    static __device__ constexpr int deltas(int) { return 4; }
    static __device__ constexpr int saved_before(int p) { return p ? SAVED : 0; }
    static __device__ constexpr int reads(int) { return 2; }
    static __device__ constexpr int writes(int) { return 2; }
    static __device__ constexpr int updates(int) { return 2; }
    struct Unit { A b[4], wci, wcf, wco; };
    struct State { A h, c; };
    struct Saved { A i, cs, f, o, ci, co, h; };
    struct Read { A i, cs, f, o, ci, co, cs_prev; };
    struct Factors { A o, d, i, ci, f, next; };
    struct Gradients { A h, cs; };

    const A *b, *b_more;  // [4*H]: the bias, and what is added to it; null: zeros
    const A *wci, *wcf, *wco;  // [H]; all three null: no peepholes
    typename Acc<A>::real cell_clip;
    Gate<A> gate;
    int at[4];  // which quarter of z belongs to each gate: i, ci, f, o
    bool clipped;
    typename Acc<A>::real forget_bias;
    bool stored;  // whether vectors are in the storage type

    // An index that is known only when it runs would have all of this struct in slow memory.
    __device__ __forceinline__ int column(int k) const
    {
        return k == 0 ? at[0] : k == 1 ? at[1] : k == 2 ? at[2] : at[3];
    }
    __device__ __forceinline__ int weight(int k) const { return column(k); }
    __device__ __forceinline__ int place(int k) const { return column(k); }
    __device__ __forceinline__ void plain() { wci = nullptr, clipped = false, gate.hard = false; }
    __device__ __forceinline__ Unit unit(int u, int H) const
    {
        Unit v = {};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int n = column(k) * H + u;
            if (b) v.b[k] = number_of(b, stored, n);
            if (b_more) v.b[k] += number_of(b_more, stored, n);
        }
        if (forget_bias) v.b[2] += A(forget_bias);
        if (wci) {
            v.wci = number_of(wci, stored, u);
            v.wcf = number_of(wcf, stored, u);
            v.wco = number_of(wco, stored, u);
        }
        return v;
    }
    __device__ __forceinline__ A forward(
        Product<0>, const Unit& v, const A* z, const A* sums, State& state, Saved& saved) const
    {
        const A cs_prev = state.c, most = cell_clip;
        A zi = z[0] + v.b[0] + sums[0], zci = z[1] + v.b[1] + sums[1];
        A zf = z[2] + v.b[2] + sums[2], zo = z[3] + v.b[3] + sums[3];
        // Peepholes of zeros would not do: an infinite state times zero is NaN.
        if (wci) {
            zi += cs_prev * v.wci;
            zf += cs_prev * v.wcf;
        }
        saved.i = gate_of(gate, zi);
        saved.f = gate_of(gate, zf);
        saved.ci = tanh_(zci);
        A cs = saved.i * saved.ci + saved.f * cs_prev;
        // Comparisons as in gate_of.
        if (clipped) cs = cs >= most ? most : cs <= -most ? -most : cs;
        saved.co = tanh_(cs);
        if (wci) zo += cs * v.wco;
        saved.o = gate_of(gate, zo);
        state.c = saved.cs = cs;
        return state.h = saved.h = saved.o * saved.co;
    }
    __device__ __forceinline__ Factors factors(const Unit& v, const Read& s) const
    {
        Factors k;
        k.o = slope_of(gate, s.o) * s.co;
        k.d = (A(1) - s.co * s.co) * s.o;
        k.i = slope_of(gate, s.i) * s.ci;
        k.ci = (A(1) - s.ci * s.ci) * s.i;
        k.f = slope_of(gate, s.f) * s.cs_prev;
        k.next = s.f;
        if (wci) {
            k.d += k.o * v.wco;
            k.next += k.i * v.wci + k.f * v.wcf;
        }
        // The true gradient: where the clip was active, cs does not depend on what it clipped.
        if (clipped) {
            const A kept = A((s.cs < A(0) ? -s.cs : s.cs) < cell_clip);
            k.i *= kept;
            k.ci *= kept;
            k.f *= kept;
            k.next *= kept;
        }
        return k;
    }
    __device__ __forceinline__ A backward(
        Product<0>, const Factors& k, A dh, const A* cotangents, Gradients& gradients, A* d) const
    {
        A dcs = gradients.cs + dh * k.d;
        dcs += cotangents[1];
        d[0] = dcs * k.i, d[1] = dcs * k.ci, d[2] = dcs * k.f, d[3] = dh * k.o;
        gradients.cs = dcs * k.next;
        return A(0);
    }
};
"""

CELL = CudaCell(
    name="lstm",
    struct="LSTM",
    source=STRUCT,
    fields={
        **dict.fromkeys(("b", "b_more", "wci", "wcf", "wco"), "pointer"),
        **{"cell_clip": "real", "gate": "gate", "at": "4i4", "clipped": "?"},
        **{"forget_bias": "real", "stored": "?"},
    },
    widths=(4,),
    more=(step.TOTAL, step.CLIP),
    optional=("wci", "clipped", "gate"),
)
FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)
SOURCE, KERNELS = FORWARD_KERNELS.loop


def _of(cell: LSTM) -> tuple[DeviceCell, list[Any]]:
    """Return the cell with its attributes, and its vectors."""
    of = in_place(cell.columns, cell.cell_clip, cell.gate, 0)
    return of, [cell.b, None, *(cell.peephole or (None,) * 3)]


def forward_steps(cell: LSTM, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    forward(*_of(cell), run, cell.proj_clip)


def backward_steps(cell: LSTM, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    backward(*_of(cell), run, cell.proj_clip)


add_sums = weight_gradients.add_lstm_sums


def in_place(
    columns: tuple[int, ...], clip: float | None, gate: Any, forget_bias: float
) -> DeviceCell:
    """Return the cell with these attributes, for arrays of a caller."""
    attributes = clip or 0, gate_members(gate), columns, clip is not None, forget_bias
    vectors = "b", "b_more", "wci", "wcf", "wco"
    kernels = FORWARD_KERNELS, BACKWARD_KERNELS
    return DeviceCell(kernels, attributes, vectors, (0, 1, 2, 3, 4, 5, 1), 1)
