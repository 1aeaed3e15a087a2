"""The CUDA twin of ``cupyrnn.lstm``: the gates, the kernels of one step, and their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import compute_dtype
from .blas import prepare
from .compile import kernel
from .launch import BLOCK, SUMS, add_column_sums, add_slices, step_grid, sum_grid

if TYPE_CHECKING:
    from .._arrays import Array
    from ..lstm import LSTMOutputs, Peephole

GATES = r"""
template <typename A> struct LSTMGates { A i, cs, f, o, ci, co, h; };

// z = x @ w_x + h_prev @ w_h + b of each gate, forget_bias included.
template <typename A>
__device__ __forceinline__ LSTMGates<A> lstm_gates(
    A zi, A zci, A zf, A zo, A cs_prev,
    bool peephole, A wci, A wcf, A wco, bool clipped, A cell_clip)
{
    LSTMGates<A> g;
    if (peephole) {
        zi += cs_prev * wci;
        zf += cs_prev * wcf;
    }
    g.i = sigmoid(zi);
    g.f = sigmoid(zf);
    g.ci = tanh_(zci);
    g.cs = g.i * g.ci + g.f * cs_prev;
    // Comparisons, not fmin and fmax, which lose a NaN.
    if (clipped) g.cs = g.cs > cell_clip ? cell_clip : g.cs < -cell_clip ? -cell_clip : g.cs;
    g.co = tanh_(g.cs);
    if (peephole) zo += g.cs * wco;
    g.o = sigmoid(zo);
    g.h = g.o * g.co;
    return g;
}

template <typename A> struct LSTMGateGradients { A di, dci, df, d_o, cs_prev_grad; };

// dcs and dh: the gradients of cs and h, those carried from the next step included.
template <typename A>
__device__ __forceinline__ LSTMGateGradients<A> lstm_gate_gradients(
    A i, A cs, A f, A o, A ci, A co, A cs_prev, A dcs, A dh,
    bool peephole, A wci, A wcf, A wco, bool clipped, A cell_clip)
{
    LSTMGateGradients<A> g;
    g.d_o = o * (A(1) - o) * co * dh;
    dcs += (A(1) - co * co) * o * dh;
    if (peephole) dcs += g.d_o * wco;
    // The true gradient: where the clip was active, cs does not depend on what it clipped.
    if (clipped) dcs *= A((cs < A(0) ? -cs : cs) < cell_clip);
    g.di = i * (A(1) - i) * ci * dcs;
    g.dci = (A(1) - ci * ci) * i * dcs;
    g.df = f * (A(1) - f) * cs_prev * dcs;
    g.cs_prev_grad = dcs * f;
    if (peephole) g.cs_prev_grad += g.di * wci + g.df * wcf;
    return g;
}
"""

STEP = r"""
template <typename T>
__global__ void lstm_forward_step(
    const typename Acc<T>::type* z,    // [steps, B, 4*H], read: x @ w_x + h_prev @ w_h
    const typename Acc<T>::type* b,    // [4*H], read: the bias, forget_bias included
    const typename Acc<T>::type* wci,  // [H], read, as the next two; all three null: no peepholes
    const typename Acc<T>::type* wcf,
    const typename Acc<T>::type* wco,
    typename Acc<T>::type* c,          // [B, H], updated: the cell state, not rounded
    T* i, T* cs, T* f, T* o, T* ci, T* co, T* h,  // [steps, B, H], written
    long long step,
    long long live,                    // rows of the step that are computed; B, or 0 past the end
    long long rows,                    // rows from the step on that are written, the others zero
    long long H,
    int at_i, int at_ci, int at_f, int at_o,      // which quarter of z belongs to each gate
    bool clipped, typename Acc<T>::type cell_clip)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    const bool peephole = wci != nullptr;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < rows;
         row += (long long)gridDim.y * blockDim.y) {
        LSTMGates<A> g = {A(0), A(0), A(0), A(0), A(0), A(0), A(0)};
        if (row < live) {
            const A* zr = z + (step * live + row) * 4 * H + column;
            const A* br = b + column;
            g = lstm_gates<A>(
                zr[at_i * H] + br[at_i * H], zr[at_ci * H] + br[at_ci * H],
                zr[at_f * H] + br[at_f * H], zr[at_o * H] + br[at_o * H], c[row * H + column],
                peephole, peephole ? wci[column] : A(0), peephole ? wcf[column] : A(0),
                peephole ? wco[column] : A(0), clipped, cell_clip);
            c[row * H + column] = g.cs;
        }
        const long long at = (step * live + row) * H + column;
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
    const T* i, const T* cs, const T* f, const T* o, const T* ci, const T* co,  // [T, B, H], read
    const T* cs_first,                 // [B, H], read: the cell state before step 0
    const T* cs_grad, const T* h_grad, // [T, B, H], read; null: zeros
    const typename Acc<T>::type* wci,  // [H], read, as the next two; all three null: no peepholes
    const typename Acc<T>::type* wcf,
    const typename Acc<T>::type* wco,
    const typename Acc<T>::type* dh,   // [B, H], read: the gradient of h from the next step
    typename Acc<T>::type* dcs,        // [B, H], updated: the gradient of cs from the next step
    T* dgates,                         // [steps, B, 4*H], written
    long long step,                    // of the T steps
    long long block_step,              // of the steps of dgates
    long long B, long long H,
    int at_i, int at_ci, int at_f, int at_o,
    bool clipped, typename Acc<T>::type cell_clip)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    const bool peephole = wci != nullptr;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long in_step = row * H + column;
        const long long at = step * B * H + in_step;
        const A before = wide(step ? cs[at - B * H] : cs_first[in_step]);
        const A given_cs = cs_grad ? wide(cs_grad[at]) : A(0);
        const A given_h = h_grad ? wide(h_grad[at]) : A(0);
        const LSTMGateGradients<A> g = lstm_gate_gradients<A>(
            wide(i[at]), wide(cs[at]), wide(f[at]), wide(o[at]), wide(ci[at]), wide(co[at]), before,
            dcs[in_step] + given_cs, dh[in_step] + given_h,
            peephole, peephole ? wci[column] : A(0), peephole ? wcf[column] : A(0),
            peephole ? wco[column] : A(0), clipped, cell_clip);
        T* to = dgates + (block_step * B + row) * 4 * H + column;
        store(to + at_i * H, g.di);
        store(to + at_ci * H, g.dci);
        store(to + at_f * H, g.df);
        store(to + at_o * H, g.d_o);
        dcs[in_step] = g.cs_prev_grad;
    }
}

// The sums over time and batch of di*cs_prev, df*cs_prev and do*cs, by slices of the rows.
template <typename T>
__global__ void lstm_peephole_sums(
    const T* dgates,                   // [steps, B, 4*H], read
    const T* cs,                       // [T, B, H], read
    const T* cs_first,                 // [B, H], read: the cell state before step 0
    typename Acc<T>::type* sums,       // [gridDim.y, 3, H], written
    long long first_step,              // of the T steps, the first of dgates
    long long steps, long long B, long long H,
    int at_i, int at_f, int at_o)
{
    typedef typename Acc<T>::type A;
    __shared__ A shared[ROW_THREADS][COLUMN_THREADS];
    const long long column = (long long)blockIdx.x * COLUMN_THREADS + threadIdx.x;
    A sum[3] = {A(0), A(0), A(0)};
    if (column < H)
        for (long long row = (long long)blockIdx.y * ROW_THREADS + threadIdx.y; row < steps * B;
             row += (long long)gridDim.y * ROW_THREADS) {
            const T* d = dgates + row * 4 * H + column;
            const long long absolute = first_step * B + row;
            const A after = wide(cs[absolute * H + column]);
            const A before = absolute < B ? wide(cs_first[absolute * H + column])
                                          : wide(cs[(absolute - B) * H + column]);
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

SOURCE = GATES + STEP
_FORWARD, _BACKWARD, _PEEPHOLE = (
    "lstm_forward_step<{T}>",
    "lstm_backward_step<{T}>",
    "lstm_peephole_sums<{T}>",
)
KERNELS = (_FORWARD, _BACKWARD, _PEEPHOLE, *SUMS)


def _vectors(peephole: Peephole) -> tuple[Any, ...]:
    return (None, None, None) if peephole is None else peephole


def _clip_arguments(cell_clip: float | None, compute: np.dtype[Any]) -> tuple[Any, ...]:
    return np.bool_(cell_clip is not None), compute.type(cell_clip or 0)


def forward_steps(
    xw: Array,
    w_h: Array,
    b: Array,
    cs_prev: Array,
    h_prev: Array,
    peephole: Peephole,
    cell_clip: float | None,
    columns: tuple[int, ...],
    outputs: LSTMOutputs,
    w_p: Array | None = None,
) -> tuple[Array, Array]:
    """
    The recurrence over t steps: one product and one kernel each. `xw` is overwritten.

    With a projection the kernel leaves o*co, and a second product makes h of it.
    """
    import cupy

    t, B, _ = xw.shape
    H = cs_prev.shape[1]
    c, h_prev = cs_prev.astype(xw.dtype, order="C"), h_prev.astype(outputs.h.dtype, copy=False)
    launch = kernel(SOURCE, KERNELS, outputs.h.dtype.name, _FORWARD)
    grid = step_grid(B, H)
    first = prepare(h_prev, w_h, xw[0], accumulate=True)
    later = prepare(outputs.h[0], w_h, xw[0], accumulate=True)
    h_bytes, z_bytes = outputs.h.strides[0], xw.strides[0]
    constant = (np.int64(B), np.int64(B), np.int64(H), *(np.int32(n) for n in columns))
    constant += _clip_arguments(cell_clip, xw.dtype)
    arrays = (xw, b, *_vectors(peephole), c, *outputs)
    project, m_bytes = None, 0
    if w_p is not None:
        before_projection = cupy.empty((t, B, H), outputs.h.dtype)
        arrays = (*arrays[:-1], before_projection)
        project = prepare(before_projection[0], w_p, outputs.h[0], accumulate=False)
        m_bytes = before_projection.strides[0]
    for step in range(t):
        if step:
            later((step - 1) * h_bytes, 0, step * z_bytes)
        else:
            first(0, 0, 0)
        if grid is not None:
            launch(grid, BLOCK, (*arrays, np.int64(step), *constant))
        if project is not None:
            project(step * m_bytes, 0, step * h_bytes)
    return c, outputs.h[-1]


def zero_past(outputs: LSTMOutputs) -> None:
    """Zero all seven outputs, which are those past seq_len_max, by one launch of the step."""
    t, B, H = outputs.h.shape
    grid = step_grid(t * B, H)
    if grid is not None:
        unused = (None,) * 6
        none = (np.int64(0), np.int64(0), np.int64(t * B), np.int64(H), *(np.int32(0),) * 4)
        compute = compute_dtype(outputs.h.dtype)
        launch = kernel(SOURCE, KERNELS, outputs.h.dtype.name, _FORWARD)
        launch(grid, BLOCK, (*unused, *outputs, *none, *_clip_arguments(None, compute)))


def backward_steps(
    saved: LSTMOutputs,
    cs_prev: Array,
    cs_grad: Array | None,
    h_grad: Array | None,
    w_h: Array | None,
    peephole: Peephole,
    cell_clip: float | None,
    columns: tuple[int, ...],
    dcs: Array,
    dh: Array,
    dgates: Array,
    lo: int,
    w_p: Array | None = None,
    dh_steps: Array | None = None,
) -> None:
    """
    The recurrence over the t steps from `lo` on, backwards: one kernel and one product each.

    With a projection another product goes before each kernel, and what the step after passes back
    is added up in `dh_steps`.
    """
    import cupy

    t, B, _ = dgates.shape
    H = cs_prev.shape[1]
    launch = kernel(SOURCE, KERNELS, dgates.dtype.name, _BACKWARD)
    grid = step_grid(B, H)
    carry = None if w_h is None else prepare(dgates[0], w_h, dh, accumulate=False)
    project = add = None
    dm, dh_bytes = dh, 0
    if w_p is not None and w_h is not None and dh_steps is not None:
        dh_steps[...] = 0 if h_grad is None else h_grad[lo : lo + t]
        dh_steps[-1] = (dh_steps[-1].astype(dh.dtype) + dh).astype(dh_steps.dtype)
        h_grad, dh_bytes = None, dh_steps.strides[0]
        dm = cupy.empty((B, H), dh.dtype)
        project = prepare(dh_steps[0], w_p, dm, accumulate=False)
        add = prepare(dgates[0], w_h, dh_steps[0], accumulate=True)
    arrays = (*saved[:6], cs_prev, cs_grad, h_grad, *_vectors(peephole), dm, dcs, dgates)
    constant = (np.int64(B), np.int64(H), *(np.int32(n) for n in columns))
    constant += _clip_arguments(cell_clip, dh.dtype)
    for step in range(t - 1, -1, -1):
        if project is not None:
            project(step * dh_bytes, 0, 0)
        if grid is not None:
            launch(grid, BLOCK, (*arrays, np.int64(lo + step), np.int64(step), *constant))
        if add is not None and step:
            add(step * dgates.strides[0], 0, (step - 1) * dh_bytes)
        elif carry is not None:
            carry(step * dgates.strides[0], 0, 0)


def add_gate_sums(
    dgates: Array,
    saved: LSTMOutputs,
    cs_prev: Array,
    peephole: Peephole,
    columns: tuple[int, ...],
    lo: int,
    b_grad: Array | None,
    peephole_grads: Array,
) -> None:
    """Add the sums over time and batch to b_grad[4*H], if wanted, and peephole_grads[3, H]."""
    import cupy

    t, B, _ = dgates.shape
    H = cs_prev.shape[1]
    if b_grad is not None:
        add_column_sums(SOURCE, KERNELS, dgates.reshape(t * B, 4 * H), b_grad)
    grid = sum_grid(t * B, H)
    if peephole is not None and grid is not None:
        slices = cupy.empty((grid[1], 3 * H), peephole_grads.dtype)
        at_i, _, at_f, at_o = (np.int32(n) for n in columns)
        sizes = (np.int64(lo), np.int64(t), np.int64(B), np.int64(H))
        launch = kernel(SOURCE, KERNELS, dgates.dtype.name, _PEEPHOLE)
        launch(grid, BLOCK, (dgates, saved.cs, cs_prev, slices, *sizes, at_i, at_f, at_o))
        add_slices(SOURCE, KERNELS, dgates.dtype.name, slices, peephole_grads.reshape(3 * H))
