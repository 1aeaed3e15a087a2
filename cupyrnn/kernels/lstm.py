"""The CUDA twin of ``cells/lstm.py``: the gates, and the cell for the frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import persistent, step
from .cell import Cell, gate_members
from .launch import SUMS, add_slices, launch, sum_grid
from .run import backward, forward

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.lstm import LSTM

GATES = r"""
template <typename A> struct LSTMGates { A i, cs, f, o, ci, co, h; };

// z = x @ w_x + h_prev @ w_h + b of each gate, forget_bias included.
template <typename A>
__device__ __forceinline__ LSTMGates<A> lstm_gates(
    const Gate<A>& gate, A zi, A zci, A zf, A zo, A cs_prev,
    bool peephole, A wci, A wcf, A wco, bool clipped, A cell_clip)
{
    LSTMGates<A> g;
    // Not with zeros in place of peepholes, which an infinite state would make NaN.
    if (peephole) {
        zi += cs_prev * wci;
        zf += cs_prev * wcf;
    }
    g.i = gate_of(gate, zi);
    g.f = gate_of(gate, zf);
    g.ci = tanh_(zci);
    g.cs = g.i * g.ci + g.f * cs_prev;
    // Comparisons as in gate_of.
    if (clipped) g.cs = g.cs >= cell_clip ? cell_clip : g.cs <= -cell_clip ? -cell_clip : g.cs;
    g.co = tanh_(g.cs);
    if (peephole) zo += g.cs * wco;
    g.o = gate_of(gate, zo);
    g.h = g.o * g.co;
    return g;
}

// What of a step's gradient depends on saved values only.
template <typename A> struct LSTMFactors { A o, d, i, ci, f, next; };

template <typename A>
__device__ __forceinline__ LSTMFactors<A> lstm_factors(
    const Gate<A>& gate, A i, A cs, A f, A o, A ci, A co, A cs_prev,
    bool peephole, A wci, A wcf, A wco, bool clipped, A cell_clip)
{
    LSTMFactors<A> k;
    k.o = slope_of(gate, o) * co;
    k.d = (A(1) - co * co) * o;
    k.i = slope_of(gate, i) * ci;
    k.ci = (A(1) - ci * ci) * i;
    k.f = slope_of(gate, f) * cs_prev;
    k.next = f;
    if (peephole) {
        k.d += k.o * wco;
        k.next += k.i * wci + k.f * wcf;
    }
    // The true gradient: where the clip was active, cs does not depend on what it clipped.
    if (clipped) {
        const A kept = A((cs < A(0) ? -cs : cs) < cell_clip);
        k.i *= kept;
        k.ci *= kept;
        k.f *= kept;
        k.next *= kept;
    }
    return k;
}

template <typename A> struct LSTMGateGradients { A di, dci, df, d_o, dcs; };

// dcs: the gradient of cs from the next step; given_cs: that of this step's cs; dh: that of h, what
// comes from the next step included.
template <typename A>
__device__ __forceinline__ LSTMGateGradients<A> lstm_gate_gradients(
    const LSTMFactors<A>& k, A dcs, A given_cs, A dh)
{
    LSTMGateGradients<A> g;
    g.d_o = dh * k.o;
    dcs += dh * k.d;
    dcs += given_cs;
    g.di = dcs * k.i;
    g.dci = dcs * k.ci;
    g.df = dcs * k.f;
    g.dcs = dcs * k.next;
    return g;
}
"""

STRUCT = r"""
template <typename A> struct LSTM {
    static const int PRODUCTS = 1, SAVED = 7, READ = 7, STATES = 2, CARRIED = 2;
    static const int GRADIENTS = 2, GIVEN = 2;
    static __device__ constexpr int width(int) { return 4; }
    static __device__ constexpr int deltas(int) { return 4; }
    static __device__ constexpr int saved_before(int p) { return p ? SAVED : 0; }
    static const bool APART = false;
    static __device__ constexpr int reads(int) { return 2; }
    static __device__ constexpr int writes(int) { return 2; }
    static __device__ constexpr int updates(int) { return 2; }
    struct Unit { A b[4], wci, wcf, wco; };
    struct State { A h, c; };
    typedef LSTMGates<A> Saved;
    struct Read { A i, cs, f, o, ci, co, cs_prev; };
    typedef LSTMFactors<A> Factors;
    struct Gradients { A h, cs; };

    const A* b;  // [4*H]: the bias, forget_bias included
    const A *wci, *wcf, *wco;  // [H]; all three null: no peepholes
    typename Acc<A>::real cell_clip;
    Gate<A> gate;
    int at[4];  // which quarter of z belongs to each gate: i, ci, f, o
    bool clipped;

    // An index that is known only when it runs would have all of this struct in slow memory.
    __device__ __forceinline__ int column(int k) const
    {
        return k == 0 ? at[0] : k == 1 ? at[1] : k == 2 ? at[2] : at[3];
    }
    __device__ __forceinline__ Unit unit(int u, int H) const
    {
        Unit v = {};
#pragma unroll
        for (int k = 0; k < 4; ++k) if (b) v.b[k] = b[column(k) * H + u];
        if (wci) v.wci = wci[u], v.wcf = wcf[u], v.wco = wco[u];
        return v;
    }
    __device__ __forceinline__ A forward(
        Product<0>, const Unit& v, const A* z, const A* sums, State& state, Saved& saved) const
    {
        saved = lstm_gates<A>(
            gate, z[0] + v.b[0] + sums[0], z[1] + v.b[1] + sums[1], z[2] + v.b[2] + sums[2],
            z[3] + v.b[3] + sums[3], state.c, wci != nullptr, v.wci, v.wcf, v.wco, clipped,
            cell_clip);
        state.c = saved.cs;
        return state.h = saved.h;
    }
    __device__ __forceinline__ Factors factors(const Unit& v, const Read& s) const
    {
        return lstm_factors<A>(
            gate, s.i, s.cs, s.f, s.o, s.ci, s.co, s.cs_prev, wci != nullptr, v.wci, v.wcf, v.wco,
            clipped, cell_clip);
    }
    __device__ __forceinline__ A backward(
        Product<0>, const Factors& k, A dh, const A* given, Gradients& gradients, A* d) const
    {
        const LSTMGateGradients<A> g = lstm_gate_gradients<A>(k, gradients.cs, given[1], dh);
        gradients.cs = g.dcs;
        d[0] = g.di, d[1] = g.dci, d[2] = g.df, d[3] = g.d_o;
        return A(0);
    }
};
"""

PEEPHOLE_SUMS = r"""
// The sums over time and batch of di*cs_prev, df*cs_prev and do*cs, by slices of the rows.
template <typename T>
__global__ void lstm_peephole_sums(
    const T* dz,                       // [n, 4*H], read
    const T* cs, const T* cs_prev,     // [n, H], read
    typename Acc<T>::type* sums,       // [gridDim.y, 3, H], written
    long long n, long long H,
    int at_i, int at_f, int at_o)
{
    typedef typename Acc<T>::type A;
    __shared__ A shared[ROW_THREADS][COLUMN_THREADS];
    const long long column = (long long)blockIdx.x * COLUMN_THREADS + threadIdx.x;
    A sum[3] = {A(0), A(0), A(0)};
    if (column < H)
        for (long long row = (long long)blockIdx.y * ROW_THREADS + threadIdx.y; row < n;
             row += (long long)gridDim.y * ROW_THREADS) {
            const T* d = dz + row * 4 * H + column;
            const A after = wide(cs[row * H + column]);
            const A before = wide(cs_prev[row * H + column]);
            sum[0] += wide(d[at_i * H]) * before;
            sum[1] += wide(d[at_f * H]) * before;
            sum[2] += wide(d[at_o * H]) * after;
        }
    for (int k = 0; k < 3; ++k) {
        const A total = block_sum(sum[k], shared);
        if (threadIdx.y == 0 && column < H) sums[(blockIdx.y * 3 + k) * H + column] = total;
    }
}
"""

_PEEPHOLE = "lstm_peephole_sums<{T}>"
CELL = Cell(
    name="lstm",
    struct="LSTM",
    source=GATES + STRUCT + PEEPHOLE_SUMS,
    fields={
        **dict.fromkeys(("b", "wci", "wcf", "wco"), "pointer"),
        **{"cell_clip": "real", "gate": "gate", "at": ("i4", 4), "clipped": "?"},
    },
    widths=(4,),
    more=(step.TOTAL, _PEEPHOLE, *SUMS),
)
FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)
SOURCE, KERNELS = FORWARD_KERNELS.loop


def _struct(cell: LSTM, compute: np.dtype[Any]) -> np.void:
    """Return the cell as C++ has it."""
    clip, vectors = cell.cell_clip, (cell.b, *(cell.peephole or (None,) * 3))
    gate = gate_members(cell.gate)
    return CELL.record(compute, *vectors, clip or 0, gate, cell.columns, clip is not None)


def forward_steps(cell: LSTM, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    forward(FORWARD_KERNELS, _struct(cell, run.xw[0].dtype), run)


def backward_steps(cell: LSTM, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    read = (*run.saved[:6], run.before.c)
    backward(BACKWARD_KERNELS, _struct(cell, run.carried[0].dtype), run, read)


def add_sums(cell: LSTM, run: BackwardRun, totals: Array) -> None:
    """Add the sums over time and batch of di*cs_prev, df*cs_prev and do*cs to totals[3, H]."""
    import cupy

    (dz, *_), n, H = run.deltas, len(run.deltas[0]), totals.shape[1]
    if n == 0 or H == 0:
        return
    grid = sum_grid(n, H)
    slices = cupy.empty((grid[1], 3 * H), totals.dtype)
    at_i, _, at_f, at_o = (np.int32(k) for k in cell.columns)
    sizes = (np.int64(n), np.int64(H), at_i, at_f, at_o)
    args = (dz, run.saved.cs, run.before.c, slices, *sizes)
    launch(SOURCE, KERNELS, _PEEPHOLE, dz.dtype, grid, args)
    add_slices(SOURCE, KERNELS, dz.dtype, slices, totals.reshape(3 * H))
