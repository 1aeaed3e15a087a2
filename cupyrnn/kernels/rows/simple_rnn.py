"""The simple RNN's recurrence in one launch."""

from __future__ import annotations

from . import common

KERNELS = r"""
template <typename T> struct SimpleRNNForwardRows {
    typedef typename Acc<T>::type A;
    struct Next { A z; };
    const A* z;
    T* h;
    int unit, H;
    bool relu;
    A bias;

    __device__ __forceinline__ int column(int) const { return 0; }
    __device__ __forceinline__ Next fetch(long long n) const { return {z[n * H + unit]}; }
    __device__ __forceinline__ A step(const Next& next, const A (&sums)[1], long long n)
    {
        const A value = simple_rnn_output(next.z + sums[0] + bias, relu);
        store(h + n * H + unit, value);
        return value;
    }
};

template <typename T, int SPLIT, int SLICE, int KEPT, int ROWS, int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
simple_rnn_forward_rows(
    const T* w, long long w_row, long long w_column,  // w_h [H, H], read, and its strides
    const typename Acc<T>::type* z,    // [n, H], read: x @ w_x
    const typename Acc<T>::type* b,    // [H], read
    typename Acc<T>::type* carried,    // [B, H], updated: h
    T* h,                              // [n, H], written
    const long long* starts,           // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    bool relu)
{
    typedef typename Acc<T>::type A;
    const Seat<SPLIT, 4, ROWS> me(B, H);
    SimpleRNNForwardRows<T> cell = {z, h, me.unit, int(H), relu, A(0)};
    if (me.unit < H) cell.bias = b[me.unit];
    forward_rows<T, SPLIT, SLICE, KEPT, 4, 1, ROWS, THREADS>(
        cell, me, w, w_row, w_column, carried, Starts{starts, B}, steps, H);
}

template <typename T> struct SimpleRNNBackwardRows {
    typedef typename Acc<T>::type A;
    const T *h, *h_grad;
    T* dz;
    int unit, H;
    bool relu;
    A given, saved, slope;

    __device__ __forceinline__ int column(int) const { return 0; }
    __device__ __forceinline__ void fetch(long long n)
    {
        saved = wide(h[n * H + unit]);
        given = h_grad ? wide(h_grad[n * H + unit]) : A(0);
    }
    __device__ __forceinline__ void factors() { slope = simple_rnn_gradient<A>(saved, A(1), relu); }
    __device__ __forceinline__ A deltas(A dh, A (&d)[1], long long n)
    {
        d[0] = slope * (dh + given);
        store(dz + n * H + unit, d[0]);
        return A(0);
    }
};

template <typename T, int SPLIT, int SLICE, int KEPT, int ROWS, int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
simple_rnn_backward_rows(
    const T* w, long long w_row, long long w_column,  // w_h [H, H], read, and its strides
    const T* h,                        // [n, H], read
    const T* h_grad,                   // [n, H], read; null: zeros
    typename Acc<T>::type* dh,         // [B, H], updated: the gradient of h from the next step
    T* dz,                             // [n, H], written
    const long long* starts,           // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    bool relu)
{
    const Seat<SPLIT, 4, ROWS> me(B, H);
    SimpleRNNBackwardRows<T> cell = {h, h_grad, dz, me.unit, int(H), relu};
    backward_rows<T, SPLIT, SLICE, KEPT, 1, ROWS, THREADS>(
        cell, me, w, w_row, w_column, dh, Starts{starts, B}, steps, H);
}
"""

FORWARD = common.Size(units=4, vectors=(1,), columns=(1,))
BACKWARD = common.Size(units=4, vectors=(1,), columns=(1,))
