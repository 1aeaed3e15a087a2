"""The CUDA twin of ``cells/lstm.py``: the gates, the kernels of one step, their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic.dual import real_dtype
from . import persistent
from .cell import Cell, gate_members
from .launch import SUMS, Loop, add_slices, gate_arguments, launch, sum_grid

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

STEP = r"""
// Blocks that a multiprocessor is to hold, so many that ptxas spills nothing on any architecture.
// Left alone it takes more registers for this kernel; for those of the other steps it does not.
const int STEP_THREADS = COLUMN_THREADS * ROW_THREADS;
template <typename T>
constexpr int STEP_BLOCKS =
    sizeof(T) == 2 ? 6 : sizeof(typename Acc<T>::real) == 4 ? 4 : sizeof(T) == 8 ? 3 : 2;

template <typename T>
__global__ void __launch_bounds__(STEP_THREADS, STEP_BLOCKS<T>) lstm_forward_step(
    const typename Acc<T>::type* z,    // [n, 4*H], read: x @ w_x + h_prev @ w_h
    const typename Acc<T>::type* b,    // [4*H], read: the bias, forget_bias included
    const typename Acc<T>::type* wci,  // [H], read, as the next two; all three null: no peepholes
    const typename Acc<T>::type* wcf,
    const typename Acc<T>::type* wco,
    typename Acc<T>::type* c,          // [B, H], updated: the cell state, not rounded
    T* i, T* cs, T* f, T* o, T* ci, T* co, T* h,  // [n, H], written
    long long first, long long B,      // the first row of the step, and its rows
    long long H,
    int at_i, int at_ci, int at_f, int at_o,      // which quarter of z belongs to each gate
    bool clipped, typename Acc<T>::real cell_clip,
    bool hard, typename Acc<T>::real slope, typename Acc<T>::real offset)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    const bool peephole = wci != nullptr;
    const Gate<A> gate = {hard, slope, offset};
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long state = row * H + column;
        const long long at = first * H + state;
        const A* zr = z + (first + row) * 4 * H + column;
        const A* br = b + column;
        const LSTMGates<A> g = lstm_gates<A>(
            gate, zr[at_i * H] + br[at_i * H], zr[at_ci * H] + br[at_ci * H],
            zr[at_f * H] + br[at_f * H], zr[at_o * H] + br[at_o * H], c[state],
            peephole, peephole ? wci[column] : A(0), peephole ? wcf[column] : A(0),
            peephole ? wco[column] : A(0), clipped, cell_clip);
        c[state] = g.cs;
        store(i + at, g.i);
        store(cs + at, g.cs);
        store(f + at, g.f);
        store(o + at, g.o);
        store(ci + at, g.ci);
        store(co + at, g.co);
        store(h + at, g.h);
    }
}

template <typename T>
__global__ void lstm_backward_step(
    const T* i, const T* cs, const T* f, const T* o, const T* ci, const T* co,  // [n, H], read
    const T* cs_prev,                  // [n, H], read: the cell state before each step
    const T* cs_grad, const T* h_grad, // [n, H], read; null: zeros
    const typename Acc<T>::type* wci,  // [H], read, as the next two; all three null: no peepholes
    const typename Acc<T>::type* wcf,
    const typename Acc<T>::type* wco,
    const typename Acc<T>::type* dh,   // [B, H], read: the gradient of h from the next step
    typename Acc<T>::type* dcs,        // [B, H], updated: the gradient of cs from the next step
    T* dz,                             // [n, 4*H], written
    long long first, long long B,      // the first row of the step, and its rows
    long long H,
    int at_i, int at_ci, int at_f, int at_o,
    bool clipped, typename Acc<T>::real cell_clip,
    bool hard, typename Acc<T>::real slope, typename Acc<T>::real offset)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    const bool peephole = wci != nullptr;
    const Gate<A> gate = {hard, slope, offset};
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long state = row * H + column;
        const long long at = first * H + state;
        const LSTMFactors<A> k = lstm_factors<A>(
            gate, wide(i[at]), wide(cs[at]), wide(f[at]), wide(o[at]), wide(ci[at]),
            wide(co[at]), wide(cs_prev[at]),
            peephole, peephole ? wci[column] : A(0), peephole ? wcf[column] : A(0),
            peephole ? wco[column] : A(0), clipped, cell_clip);
        const LSTMGateGradients<A> g = lstm_gate_gradients<A>(
            k, dcs[state], cs_grad ? wide(cs_grad[at]) : A(0),
            dh[state] + (h_grad ? wide(h_grad[at]) : A(0)));
        T* to = dz + (first + row) * 4 * H + column;
        store(to + at_i * H, g.di);
        store(to + at_ci * H, g.dci);
        store(to + at_f * H, g.df);
        store(to + at_o * H, g.d_o);
        dcs[state] = g.dcs;
    }
}

// The gradient of each step's h, what comes from the next step included: for the projection.
template <typename T>
__global__ void lstm_h_gradient(
    const typename Acc<T>::type* dh,   // [B, P], read: the gradient of h from the next step
    const T* h_grad,                   // [n, P], read; null: zeros
    T* total,                          // [n, P], written
    long long first, long long B,      // the first row of the step, and its rows
    long long P)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= P) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long state = row * P + column;
        const long long at = first * P + state;
        store(total + at, dh[state] + (h_grad ? wide(h_grad[at]) : A(0)));
    }
}

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

_FORWARD, _BACKWARD, _H_GRADIENT, _PEEPHOLE = (
    "lstm_forward_step<{T}>",
    "lstm_backward_step<{T}>",
    "lstm_h_gradient<{T}>",
    "lstm_peephole_sums<{T}>",
)
SOURCE = GATES + STEP
CELL = Cell(
    "lstm",
    "LSTM",
    GATES + STRUCT,
    {"b": "pointer", "wci": "pointer", "wcf": "pointer", "wco": "pointer"}
    | {
        "cell_clip": "real",
        "gate": "gate",
        "at": ("i4", 4),
        "clipped": "?",
    },
    (4,),
)
FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)
KERNELS = (_FORWARD, _BACKWARD, _H_GRADIENT, _PEEPHOLE, *SUMS)


def _attributes(cell: LSTM, H: int, compute: np.dtype[Any]) -> tuple[Any, ...]:
    """Return the last arguments of both steps: H, where the gates are, the clip, the gate."""
    clip = np.bool_(cell.cell_clip is not None), real_dtype(compute).type(cell.cell_clip or 0)
    columns = (np.int32(n) for n in cell.columns)
    return (np.int64(H), *columns, *clip, *gate_arguments(cell.gate, compute))


def _struct(cell: LSTM, compute: np.dtype[Any]) -> np.void:
    """Return the cell as C++ has it."""
    clip, vectors = cell.cell_clip, (cell.b, *(cell.peephole or (None,) * 3))
    gate = gate_members(cell.gate)
    return CELL.record(compute, *vectors, clip or 0, gate, cell.columns, clip is not None)


def forward_steps(cell: LSTM, run: ForwardRun) -> None:
    """
    The recurrence over t steps: one product and one kernel each.

    With a projection the kernel leaves o*co, and a second product makes h of it.
    """
    import cupy

    (z,), (w_h, *w_p), (h, c) = run.xw, run.w, run.carried
    H, read = c.shape[1], (z, cell.b, *(cell.peephole or (None,) * 3))
    attributes = _attributes(cell, H, z.dtype)
    arrays: tuple[Any, ...] = (z, h, c, *run.saved)
    struct = _struct(cell, z.dtype)
    if not w_p and persistent.run(FORWARD_KERNELS, run.batches, struct, run.w, arrays, c):
        return
    h, loop = run.saved.h, Loop(run.batches, SOURCE, KERNELS)
    o_co = cupy.empty((len(h), H), h.dtype) if w_p else h
    arrays = (*read, c, *run.saved[:6], o_co)
    loop.run(
        loop.product(h, w_h, z, accumulate=True, before=run.carried.h),
        loop.pointwise(_FORWARD, h.dtype, arrays, *attributes),
        *(loop.product(o_co, w_k, h) for w_k in w_p),
    )
    loop.keep_last(h, run.carried.h)


def backward_steps(cell: LSTM, run: BackwardRun) -> None:
    """
    The recurrence over t steps, backwards: one kernel and one product each.

    With a projection the gradient of h is written down, rounded, before each step, and a second
    product makes of it that of o*co.
    """
    import cupy

    (dz, *dh_steps), (dh, dcs), (w_h, *w_p) = run.deltas, run.carried, run.w or (None,)
    H, h_grad, peephole = dcs.shape[1], run.given.h, cell.peephole or (None,) * 3
    read, attributes = (*run.saved[:6], run.before.c, run.given.c), _attributes(cell, H, dcs.dtype)
    arrays: tuple[Any, ...] = (*read[:7], h_grad, read[7], dh, dcs, dz)
    once, struct = [w.T for w in run.w] if len(run.w) == 1 else [], _struct(cell, dcs.dtype)
    if once and persistent.run(BACKWARD_KERNELS, run.batches, struct, once, arrays, dcs):
        return
    loop, dm, stages = Loop(run.batches, SOURCE, KERNELS), dh, []
    if w_p:
        dm = cupy.empty(dcs.shape, dcs.dtype)
        arrays = (dh, h_grad, dh_steps[0])
        P, h_grad = np.int64(dh.shape[1]), None
        stages.append(loop.pointwise(_H_GRADIENT, dz.dtype, arrays, P))
        stages.append(loop.product(dh_steps[0], w_p[0], dm))
    arrays = (*read, h_grad, *peephole, dm, dcs, dz)
    stages.append(loop.pointwise(_BACKWARD, dz.dtype, arrays, *attributes))
    if w_h is not None:
        stages.append(loop.product(dz, w_h, dh))
    loop.run(*stages, backwards=True)


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
