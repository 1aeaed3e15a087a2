"""The CUDA twin of ``cells/lstm.py``: the cell for the frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array
from . import persistent, step
from .cell import Cell, gate_members
from .launch import SUMS, add_slices, launch, sum_grid
from .run import backward, forward

if TYPE_CHECKING:
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.lstm import LSTM

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
    struct Saved { A i, cs, f, o, ci, co, h; };
    struct Read { A i, cs, f, o, ci, co, cs_prev; };
    struct Factors { A o, d, i, ci, f, next; };
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
        const A cs_prev = state.c, most = cell_clip;
        A zi = z[0] + v.b[0] + sums[0], zci = z[1] + v.b[1] + sums[1];
        A zf = z[2] + v.b[2] + sums[2], zo = z[3] + v.b[3] + sums[3];
        // Not with zeros in place of peepholes, which an infinite state would make NaN.
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
        Product<0>, const Factors& k, A dh, const A* given, Gradients& gradients, A* d) const
    {
        A dcs = gradients.cs + dh * k.d;
        dcs += given[1];
        d[0] = dcs * k.i, d[1] = dcs * k.ci, d[2] = dcs * k.f, d[3] = dh * k.o;
        gradients.cs = dcs * k.next;
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
    source=STRUCT + PEEPHOLE_SUMS,
    fields={
        **dict.fromkeys(("b", "wci", "wcf", "wco"), "pointer"),
        **{"cell_clip": "real", "gate": "gate", "at": "4i4", "clipped": "?"},
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
