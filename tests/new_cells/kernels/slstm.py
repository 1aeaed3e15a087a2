"""The CUDA twin of ``slstm.py``: the gates, the kernels of one step, their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cupyrnn.kernels.launch import Loop

if TYPE_CHECKING:
    from cupyrnn.cells.contract import BackwardRun, ForwardRun

    from ..slstm import SLSTM

GATES = r"""
template <typename A> struct SLSTMGates { A i, f, cz, o, c, n, m, h; };

template <typename A>
__device__ __forceinline__ SLSTMGates<A> slstm_gates(
    A zi, A zf, A zc, A zo, A c_prev, A n_prev, A m_prev)
{
    SLSTMGates<A> g;
    const A p = zf + m_prev;
    g.m = zi > p ? zi : p;
    g.i = exp_(zi - g.m);
    g.f = exp_(p - g.m);
    g.cz = tanh_(zc);
    g.o = sigmoid(zo);
    g.c = g.f * c_prev + g.i * g.cz;
    g.n = g.f * n_prev + g.i;
    g.h = g.o * g.c / g.n;
    return g;
}

template <typename A> struct SLSTMGateGradients { A di, df, dcz, do_, dc, dn; };

template <typename A>
__device__ __forceinline__ SLSTMGateGradients<A> slstm_gate_gradients(
    A i, A f, A cz, A o, A c, A n, A c_prev, A n_prev, A dh, A dc, A dn, A dm)
{
    SLSTMGateGradients<A> g;
    g.do_ = dh * c / n * o * (A(1) - o);
    dc += dh * o / n;
    dn = dn - dh * o * c / (n * n);
    g.dcz = dc * i * (A(1) - cz * cz);
    g.di = (dc * cz + dn) * i;
    g.df = (dc * c_prev + dn * n_prev) * f;
    dm = dm - (g.di + g.df);
    if (f < A(1)) g.di += dm;  // zi > p
    else g.df += dm;
    g.dc = dc * f;
    g.dn = dn * f;
    return g;
}
"""

STEP = r"""
template <typename T>
__global__ void slstm_forward_step(
    const typename Acc<T>::type* z,    // [n, 4*H], read: x @ w_x + h_prev @ w_h
    const typename Acc<T>::type* b,    // [4*H], read
    typename Acc<T>::type* c_state,    // [B, H], updated, as the next two: the states, not rounded
    typename Acc<T>::type* n_state,
    typename Acc<T>::type* m_state,
    T* i, T* f, T* cz, T* o, T* c, T* n, T* m, T* h,  // [n, H], written
    long long first, long long B,      // the first row of the step, and its rows
    long long H)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long state = row * H + column;
        const long long at = first * H + state;
        const A* zr = z + (first + row) * 4 * H + column;
        const A* br = b + column;
        const SLSTMGates<A> g = slstm_gates<A>(
            zr[0] + br[0], zr[H] + br[H], zr[2 * H] + br[2 * H], zr[3 * H] + br[3 * H],
            c_state[state], n_state[state], m_state[state]);
        c_state[state] = g.c;
        n_state[state] = g.n;
        m_state[state] = g.m;
        store(i + at, g.i);
        store(f + at, g.f);
        store(cz + at, g.cz);
        store(o + at, g.o);
        store(c + at, g.c);
        store(n + at, g.n);
        store(m + at, g.m);
        store(h + at, g.h);
    }
}

template <typename T>
__global__ void slstm_backward_step(
    const T* i, const T* f, const T* cz, const T* o, const T* c, const T* n,  // [n, H], read
    const T* c_prev, const T* n_prev,  // [n, H], read: the states before each step
    const T* h_grad, const T* c_grad,  // [n, H], read; null: zeros
    const T* n_grad, const T* m_grad,
    const typename Acc<T>::type* dh,   // [B, H], read: the gradient of h from the next step
    typename Acc<T>::type* dc,         // [B, H], updated, as the next two
    typename Acc<T>::type* dn,
    typename Acc<T>::type* dm,
    T* dz,                             // [n, 4*H], written
    long long first, long long B,      // the first row of the step, and its rows
    long long H)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long state = row * H + column;
        const long long at = first * H + state;
        const SLSTMGateGradients<A> g = slstm_gate_gradients<A>(
            wide(i[at]), wide(f[at]), wide(cz[at]), wide(o[at]), wide(c[at]), wide(n[at]),
            wide(c_prev[at]), wide(n_prev[at]),
            dh[state] + (h_grad ? wide(h_grad[at]) : A(0)),
            dc[state] + (c_grad ? wide(c_grad[at]) : A(0)),
            dn[state] + (n_grad ? wide(n_grad[at]) : A(0)),
            dm[state] + (m_grad ? wide(m_grad[at]) : A(0)));
        T* to = dz + (first + row) * 4 * H + column;
        store(to, g.di);
        store(to + H, g.df);
        store(to + 2 * H, g.dcz);
        store(to + 3 * H, g.do_);
        dc[state] = g.dc;
        dn[state] = g.dn;
        dm[state] = g.df;
    }
}
"""

_FORWARD, _BACKWARD = KERNELS = "slstm_forward_step<{T}>", "slstm_backward_step<{T}>"
SOURCE = GATES + STEP


def forward_steps(cell: SLSTM, run: ForwardRun) -> None:
    """The recurrence over t steps: one product and one kernel each."""
    (z,), (w_h,), (h_state, *states) = run.xw, run.w, run.carried
    h, loop = run.saved.h, Loop(run.batches, SOURCE, KERNELS)
    arrays = (z, cell.b, *states, *run.saved)
    loop.run(
        loop.product(h, w_h, z, accumulate=True, before=h_state),
        loop.pointwise(_FORWARD, h.dtype, arrays, np.int64(h.shape[1])),
    )
    loop.keep_last(h, h_state)


def backward_steps(cell: SLSTM, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards: one kernel and one product each."""
    (dz,), (w_h,), (dh, *states) = run.deltas, run.w, run.carried
    loop, (_, c_before, n_before, _) = Loop(run.batches, SOURCE, KERNELS), run.before
    arrays = (*run.saved[:6], c_before, n_before, *run.cotangents, dh, *states, dz)
    loop.run(
        loop.pointwise(_BACKWARD, dz.dtype, arrays, np.int64(dh.shape[1])),
        loop.product(dz, w_h, dh),
        backwards=True,
    )
