"""The recurrence of the GRU that resets after the product, in one launch."""

from __future__ import annotations

from . import common

KERNELS = r"""
template <typename T> struct GRUResetAfterForwardRows {
    typedef typename Acc<T>::type A;
    struct Next { A z[3]; };
    const Gate<A> gate;
    const A* z;
    T *r, *u, *c, *hc, *h;
    int unit, H;
    A bias[3], b_hc, carried;

    // Columns hc, r, u.
    __device__ __forceinline__ int column(int k) const { return k; }
    __device__ __forceinline__ Next fetch(long long n) const
    {
        Next next;
#pragma unroll
        for (int k = 0; k < 3; ++k) next.z[k] = (z + n * (3 * H) + unit)[k * H];
        return next;
    }
    __device__ __forceinline__ A step(const Next& next, const A (&sums)[3], long long n)
    {
        const GRUResetAfterGates<A> g = gru_reset_after_gates<A>(
            gate, next.z[0] + sums[1] + bias[0], next.z[1] + sums[2] + bias[1],
            next.z[2] + bias[2], sums[0] + b_hc, carried);
        const long long at = n * H + unit;
        carried = g.h;
        store(r + at, g.r);
        store(u + at, g.u);
        store(c + at, g.c);
        store(hc + at, g.hc);
        store(h + at, g.h);
        return g.h;
    }
};

template <typename T, int SPLIT, int SLICE, int KEPT, int ROWS, int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
gru_reset_after_forward_rows(
    const T* w, long long w_row, long long w_column,  // w_h [H, 3*H], read, columns hc, r, u
    const typename Acc<T>::type* z,    // [n, 3*H], read: x @ w_x, columns r, u, c
    const typename Acc<T>::type* b,    // [3*H], read
    const typename Acc<T>::type* b_hc, // [H], read
    typename Acc<T>::type* carried,    // [B, H], updated: the state, not rounded
    T* r, T* u, T* c, T* hc, T* h,     // [n, H], written
    const long long* starts,           // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    bool hard, typename Acc<T>::real slope, typename Acc<T>::real offset)
{
    typedef typename Acc<T>::type A;
    const Seat<SPLIT, 1, ROWS> me(B, H);
    GRUResetAfterForwardRows<T> cell = {
        {hard, slope, offset}, z, r, u, c, hc, h, me.unit, int(H), {A(0), A(0), A(0)}, A(0), A(0)};
    if (me.unit < H) {
#pragma unroll
        for (int k = 0; k < 3; ++k) cell.bias[k] = b[k * H + me.unit];
        cell.b_hc = b_hc[me.unit];
    }
    if (me.owner) cell.carried = carried[me.row * H + me.unit];
    forward_rows<T, SPLIT, SLICE, KEPT, 1, 3, ROWS, THREADS>(
        cell, me, w, w_row, w_column, carried, Starts{starts, B}, steps, H);
}

template <typename T> struct GRUResetAfterBackwardRows {
    typedef typename Acc<T>::type A;
    const Gate<A> gate;
    const T *r, *u, *c, *hc, *h_prev, *h_grad;
    T* dz;
    int unit, H;
    A given, kept, saved[5];
    GRUResetAfterGateGradients<A> k;  // of a gradient of one

    __device__ __forceinline__ int column(int n) const { return n; }
    __device__ __forceinline__ void fetch(long long n)
    {
        const long long e = n * H + unit;
        saved[0] = wide(r[e]), saved[1] = wide(u[e]), saved[2] = wide(c[e]);
        saved[3] = wide(hc[e]), saved[4] = wide(h_prev[e]);
        given = h_grad ? wide(h_grad[e]) : A(0);
    }
    __device__ __forceinline__ void factors()
    {
        k = gru_reset_after_gate_gradients<A>(
            gate, saved[0], saved[1], saved[2], saved[3], saved[4], A(1));
        kept = saved[1];
    }
    __device__ __forceinline__ A deltas(A dh, A (&d)[3], long long n)
    {
        const A total = dh + given;
        d[0] = total * k.dhc, d[1] = total * k.dr, d[2] = total * k.du;
        T* const to = dz + n * (4 * H) + unit;
#pragma unroll
        for (int m = 0; m < 3; ++m) store(to + m * H, d[m]);
        store(to + 3 * H, total * k.dc);
        return total * kept;
    }
};

template <typename T, int SPLIT, int SLICE, int KEPT, int ROWS, int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
gru_reset_after_backward_rows(
    const T* w, long long w_row, long long w_column,  // w_h [H, 3*H], read, columns hc, r, u
    const T* r, const T* u, const T* c, const T* hc,  // [n, H], read
    const T* h_prev,                   // [n, H], read: the state before each step
    const T* h_grad,                   // [n, H], read; null: zeros
    typename Acc<T>::type* dh,         // [B, H], updated: the gradient of h from the next step
    T* dz,                             // [n, 4*H], written: columns hc, r, u, c
    const long long* starts,           // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    bool hard, typename Acc<T>::real slope, typename Acc<T>::real offset)
{
    const Seat<SPLIT, 4, ROWS> me(B, H);
    GRUResetAfterBackwardRows<T> cell = {
        {hard, slope, offset}, r, u, c, hc, h_prev, h_grad, dz, me.unit, int(H)};
    backward_rows<T, SPLIT, SLICE, KEPT, 3, ROWS, THREADS>(
        cell, me, w, w_row, w_column, dh, Starts{starts, B}, steps, H);
}
"""

FORWARD = common.Size(units=1, vectors=(1,), columns=(3,))
BACKWARD = common.Size(units=4, vectors=(3,), columns=(1,))
