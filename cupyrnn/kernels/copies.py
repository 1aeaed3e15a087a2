"""Kernels that copy arrays: rounded, with two axes exchanged, or without padding."""

from __future__ import annotations

from . import cell
from .step import Module

COPIES = Module(
    r"""
template <typename A, typename T>
__global__ void rounded(const A* from, T* to, long long n)
{
    const long long threads = (long long)gridDim.x * blockDim.x * blockDim.y;
    const long long first = ((long long)blockIdx.x * blockDim.y + threadIdx.y) * blockDim.x;
    for (long long k = first + threadIdx.x; k < n; k += threads) store(to + k, from[k]);
}

// to[N, M, K] = from[M, N, K].
template <typename T>
__global__ void exchanged(const T* from, T* to, long long M, long long N, long long K)
{
    const long long threads = (long long)gridDim.x * blockDim.x * blockDim.y;
    const long long first = ((long long)blockIdx.x * blockDim.y + threadIdx.y) * blockDim.x;
    for (long long n = first + threadIdx.x; n < M * N * K; n += threads) {
        const long long row = n / K;
        to[n] = from[(row % M * N + row / M) * K + n % K];
    }
}
""",
    ("rounded<{A}, {T}>", "exchanged<{T}>"),
)

# Copies rows, with zeros past the end of each sequence.
MASKED = Module(
    cell.SOURCE
    + r"""
template <typename T> struct Masked {
    const T* from;            // [steps, B, width]
    const T* first;           // [B, width], null: zeros
    T* to;
    // 1: of each step what is before it, in the first one `first`; 2: `first` of all sequences
    long long width, before;
};
template <typename T> struct AllMasked { Masked<T> of[5]; };
template <typename T> __global__ void masked(const AllMasked<T> all, const Steps at)
{
    const Masked<T> of = all.of[blockIdx.y];
    const long long threads = (long long)gridDim.x * blockDim.x * blockDim.y;
    const long long begin = ((long long)blockIdx.x * blockDim.y + threadIdx.y) * blockDim.x;
    for (long long n = begin + threadIdx.x; n < at.steps * at.B * of.width; n += threads) {
        const long long row = n / of.width, b = row % at.B, t = row / at.B;
        const long long ends = at.lengths ? at.lengths[b] : at.steps;
        const long long past = at.back ? t + 1 : t - 1, later = t + at.back;
        const bool is_cut = later < ends && at.resets && at.resets[later * at.B + b];
        T v;
        store(&v, typename Acc<T>::type(0.f));
        if (t < ends && !of.before) v = of.from[n];
        else if ((t < ends || of.before == 2) && !is_cut) {
            if (past >= 0 && past < ends) v = of.from[n + (past - t) * at.B * of.width];
            else if (of.first) v = of.first[b * of.width + n % of.width];
        }
        of.to[n] = v;
    }
}
""",
    ("masked<{T}>",),
)
MOST_WORDS = 25  # of ``AllMasked``
