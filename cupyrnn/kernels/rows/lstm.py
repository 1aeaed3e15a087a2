"""The LSTM's recurrence in one launch; its gates are those of ``kernels/lstm.py``."""

from __future__ import annotations

from . import common

KERNELS = r"""
template <typename T> struct LSTMForwardRows {
    typedef typename Acc<T>::type A;
    struct Next { A z[4]; };
    const Gate<A> gate;
    const A* z;
    T *i, *cs, *f, *o, *ci, *co, *h;
    int at[4], unit, H;  // which quarter of z belongs to each gate
    bool peephole, clipped;
    typename Acc<T>::real cell_clip;
    A bias[4], wci, wcf, wco, c;

    __device__ __forceinline__ int column(int k) const { return at[k]; }
    __device__ __forceinline__ Next fetch(long long n) const
    {
        Next next;
#pragma unroll
        for (int k = 0; k < 4; ++k) next.z[k] = (z + n * (4 * H) + unit)[at[k] * H];
        return next;
    }
    __device__ __forceinline__ A step(const Next& next, const A (&sums)[4], long long n)
    {
        const LSTMGates<A> g = lstm_gates<A>(
            gate, next.z[0] + bias[0] + sums[0], next.z[1] + bias[1] + sums[1],
            next.z[2] + bias[2] + sums[2], next.z[3] + bias[3] + sums[3], c,
            peephole, wci, wcf, wco, clipped, cell_clip);
        const long long at_n = n * H + unit;
        c = g.cs;
        store(i + at_n, g.i);
        store(cs + at_n, g.cs);
        store(f + at_n, g.f);
        store(o + at_n, g.o);
        store(ci + at_n, g.ci);
        store(co + at_n, g.co);
        store(h + at_n, g.h);
        return g.h;
    }
};

template <typename T, int SPLIT, int SLICE, int KEPT, int ROWS, int THREADS>
__global__ void __launch_bounds__(THREADS, 1) lstm_forward_rows(
    const T* w, long long w_row, long long w_column,  // w_h [H, 4*H], read, and its strides
    const typename Acc<T>::type* z,    // [n, 4*H], read: x @ w_x
    const typename Acc<T>::type* b,    // [4*H], read: the bias, forget_bias included
    const typename Acc<T>::type* wci,  // [H], read, as the next two; all three null: no peepholes
    const typename Acc<T>::type* wcf,
    const typename Acc<T>::type* wco,
    typename Acc<T>::type* carried,    // [B, H], updated: h
    typename Acc<T>::type* c,          // [B, H], updated: the cell state, not rounded
    T* i, T* cs, T* f, T* o, T* ci, T* co, T* h,  // [n, H], written
    const long long* starts,           // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    int at_i, int at_ci, int at_f, int at_o,      // which quarter of z belongs to each gate
    bool clipped, typename Acc<T>::real cell_clip,
    bool hard, typename Acc<T>::real slope, typename Acc<T>::real offset)
{
    typedef typename Acc<T>::type A;
    const Seat<SPLIT, 1, ROWS> me(B, H);
    const bool peephole = wci != nullptr, real_unit = me.unit < H;
    LSTMForwardRows<T> cell = {
        {hard, slope, offset}, z, i, cs, f, o, ci, co, h, {at_i, at_ci, at_f, at_o}, me.unit,
        int(H), peephole, clipped, cell_clip, {A(0), A(0), A(0), A(0)}, A(0), A(0), A(0), A(0)};
#pragma unroll
    for (int k = 0; k < 4; ++k) if (real_unit) cell.bias[k] = b[cell.at[k] * H + me.unit];
    if (peephole && real_unit)
        cell.wci = wci[me.unit], cell.wcf = wcf[me.unit], cell.wco = wco[me.unit];
    if (me.owner) cell.c = c[me.row * H + me.unit];
    forward_rows<T, SPLIT, SLICE, KEPT, 1, 4, ROWS, THREADS>(
        cell, me, w, w_row, w_column, carried, Starts{starts, B}, steps, H);
    if (me.owner) c[me.row * H + me.unit] = cell.c;
}

template <typename T> struct LSTMBackwardRows {
    typedef typename Acc<T>::type A;
    const Gate<A> gate;
    const T *i, *cs, *f, *o, *ci, *co, *cs_prev, *cs_grad, *h_grad;
    T* dz;
    int at[4], unit, H;  // which quarter of z belongs to each gate
    bool peephole, clipped;
    typename Acc<T>::real cell_clip;
    A wci, wcf, wco, dcs, given_c, given_h, saved[7];
    LSTMFactors<A> k;

    // An index that is known only when it runs would have all of this struct in slow memory.
    __device__ __forceinline__ int column(int c) const
    {
        return c == 0 ? at[0] : c == 1 ? at[1] : c == 2 ? at[2] : at[3];
    }
    __device__ __forceinline__ void fetch(long long n)
    {
        const long long e = n * H + unit;
        saved[0] = wide(i[e]), saved[1] = wide(cs[e]), saved[2] = wide(f[e]), saved[3] = wide(o[e]);
        saved[4] = wide(ci[e]), saved[5] = wide(co[e]), saved[6] = wide(cs_prev[e]);
        given_c = cs_grad ? wide(cs_grad[e]) : A(0);
        given_h = h_grad ? wide(h_grad[e]) : A(0);
    }
    __device__ __forceinline__ void factors()
    {
        k = lstm_factors<A>(
            gate, saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6],
            peephole, wci, wcf, wco, clipped, cell_clip);
    }
    __device__ __forceinline__ A deltas(A dh, A (&d)[4], long long n)
    {
        const LSTMGateGradients<A> g = lstm_gate_gradients<A>(k, dcs, given_c, dh + given_h);
        dcs = g.dcs;
        d[0] = g.di, d[1] = g.dci, d[2] = g.df, d[3] = g.d_o;
#pragma unroll
        for (int c = 0; c < 4; ++c) store(dz + n * (4 * H) + unit + at[c] * H, d[c]);
        return A(0);
    }
};

template <typename T, int SPLIT, int SLICE, int KEPT, int ROWS, int THREADS>
__global__ void __launch_bounds__(THREADS, 1) lstm_backward_rows(
    const T* w, long long w_row, long long w_column,  // w_h [H, 4*H], read, and its strides
    const T* i, const T* cs, const T* f, const T* o, const T* ci, const T* co,  // [n, H], read
    const T* cs_prev,                  // [n, H], read: the cell state before each step
    const T* cs_grad, const T* h_grad, // [n, H], read; null: zeros
    const typename Acc<T>::type* wci,  // [H], read, as the next two; all three null: no peepholes
    const typename Acc<T>::type* wcf,
    const typename Acc<T>::type* wco,
    typename Acc<T>::type* dh,         // [B, H], updated: the gradient of h from the next step
    typename Acc<T>::type* dcs,        // [B, H], updated: the gradient of cs from the next step
    T* dz,                             // [n, 4*H], written
    const long long* starts,           // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    int at_i, int at_ci, int at_f, int at_o,
    bool clipped, typename Acc<T>::real cell_clip,
    bool hard, typename Acc<T>::real slope, typename Acc<T>::real offset)
{
    typedef typename Acc<T>::type A;
    const Seat<SPLIT, 4, ROWS> me(B, H);
    const bool peephole = wci != nullptr;
    LSTMBackwardRows<T> cell = {
        {hard, slope, offset}, i, cs, f, o, ci, co, cs_prev, cs_grad, h_grad, dz,
        {at_i, at_ci, at_f, at_o}, me.unit, int(H), peephole, clipped, cell_clip};
    if (peephole && me.unit < H)
        cell.wci = wci[me.unit], cell.wcf = wcf[me.unit], cell.wco = wco[me.unit];
    if (me.owner) cell.dcs = dcs[me.row * H + me.unit];
    backward_rows<T, SPLIT, SLICE, KEPT, 4, ROWS, THREADS>(
        cell, me, w, w_row, w_column, dh, Starts{starts, B}, steps, H);
    if (me.owner) dcs[me.row * H + me.unit] = cell.dcs;
}
"""

FORWARD = common.Size(units=1, vectors=(1,), columns=(4,))
BACKWARD = common.Size(units=4, vectors=(4,), columns=(1,))
