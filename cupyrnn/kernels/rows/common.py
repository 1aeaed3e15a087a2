"""What the cells share: a matrix in registers, sums over lanes, the two loops over the steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# For the kernels of ``tiles`` too.
STEPS = r"""
// The first row of each step, and after the last one: as given or, if null, B rows each.
struct Starts {
    const long long* starts;
    long long B;
    __device__ __forceinline__ long long operator[](int s) const
    {
        return starts ? starts[s] : s * B;
    }
};

template <typename A> __device__ __forceinline__ void clear(A* memory, int count)
{
    for (int n = threadIdx.x; n < count; n += blockDim.x) memory[n] = A(0.f);
}
"""

SOURCE = (
    STEPS
    + r"""
template <typename A> struct alignas(16) Pack { A v[16 / sizeof(A)]; };

// The shared memory that a launch asks for beside what stands in the source.
template <typename A> __device__ __forceinline__ Pack<A>* shared_packs()
{
    extern __shared__ uint4 memory[];  // 16 bytes each, as a pack
    return reinterpret_cast<Pack<A>*>(memory);
}

// A number as its storage type holds it.
template <typename T>
__device__ __forceinline__ typename Acc<T>::type rounded(typename Acc<T>::type v)
{
    T t;
    store(&t, v);
    return wide(t);
}

// The sums over LANES neighbouring lanes of ITEMS times WIDTH values; lane l is left with those of
// item l % ITEMS. Each lane first gives away half of its items, then half of those that are left.
template <int LANES, int ITEMS, int WIDTH, typename A>
__device__ __forceinline__ void sum_lanes(A (&v)[ITEMS][WIDTH])
{
    static_assert(ITEMS <= LANES && LANES <= 32, "an item is no lane's");
    const int lane = threadIdx.x % LANES;
#pragma unroll
    for (int d = 1; d < ITEMS; d *= 2) {
        const bool odd = lane & d;
#pragma unroll
        for (int n = 0; n < ITEMS / (2 * d); ++n)
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                const A even_item = v[2 * n][k], odd_item = v[2 * n + 1][k];
                v[n][k] = (odd ? odd_item : even_item) + from_lane(odd ? even_item : odd_item, d);
            }
    }
#pragma unroll
    for (int d = ITEMS; d < LANES; d *= 2)
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) v[0][k] += from_lane(v[0][k], d);
}

// Whose values a thread has. SPLIT * UNITS neighbouring lanes share UNITS units; of the ROWS
// sequences of the block one is a lane's own, with one of these units.
template <int SPLIT, int UNITS, int ROWS> struct Seat {
    static const int LANES = SPLIT * UNITS;
    int lane, group, unit, slot;
    int first, row;  // the first sequence of the block, and the thread's own
    bool owner;            // whether there is such a sequence and unit, and no other lane has it
    __device__ __forceinline__ Seat(long long B, int H)
        : lane(threadIdx.x % LANES), group(threadIdx.x / LANES), unit(group * UNITS + lane % UNITS),
          slot(lane / UNITS % ROWS), first(blockIdx.x * ROWS), row(first + slot),
          owner(lane < UNITS * ROWS && unit < H && row < B) {}
};

// The part of a matrix that a thread has: SLICE of its rows, and the WIDTH columns of each of the
// UNITS units of its lanes. The first KEPT of these rows are in its registers, the others in shared
// memory, where nobody else reads them. Sums have one order wherever the rows are.
template <typename A, int SPLIT, int SLICE, int KEPT, int UNITS, int WIDTH, int THREADS>
struct Matrix {
    static const int LANES = SPLIT * UNITS, COLUMNS = UNITS * WIDTH, P = 16 / sizeof(A);
    // A vector to be multiplied lies in shared memory slice by slice, 16 bytes times an odd number
    // apart: the lanes, which read 16 bytes of a slice each, meet no bank twice.
    static const int STRIDE = SLICE / P % 2 ? SLICE : SLICE + P;
    static const int LENGTH = LANES * STRIDE;
    // Nor do they in the matrix: those 16 bytes of each thread that it reads next lie side by side.
    static const int PACKS = ((SLICE - KEPT) * COLUMNS + P - 1) / P, SHARED = PACKS * THREADS;
    static_assert(SLICE % P == 0, "slices are read 16 bytes at a time");
    A w[KEPT > 0 ? KEPT : 1][COLUMNS];
    Pack<A>* rest;

    static __device__ __forceinline__ int place(int k) { return k / SLICE * STRIDE + k % SLICE; }

    // value(k, u, c): what stands in row k and column c of unit u of the lanes. `shared` has room
    // for SHARED packs.
    template <typename Value>
    __device__ __forceinline__ void load(int lane, Pack<A>* shared, Value value)
    {
        rest = shared + threadIdx.x;
        // By way of that memory where there is some: a thread that had the addresses of all its
        // numbers at once would run out of registers.
        const int AT_ONCE = SLICE > KEPT ? SLICE - KEPT : SLICE;
#pragma unroll
        for (int first = 0; first < KEPT; first += AT_ONCE) {
            if (SLICE > KEPT) put(lane * SLICE + first, value);
#pragma unroll
            for (int k = first; k < KEPT && k < first + AT_ONCE; ++k)
#pragma unroll
                for (int n = 0; n < COLUMNS; ++n) {
                    const int e = (k - first) * COLUMNS + n;
                    w[k][n] = SLICE > KEPT ? rest[e / P * THREADS].v[e % P]
                                           : value(lane * SLICE + k, n / WIDTH, n % WIDTH);
                }
        }
        if (SLICE > KEPT) put(lane * SLICE + KEPT, value);
    }

    // As many rows, from the first one on, as the thread's shared memory has room for.
    template <typename Value> __device__ __forceinline__ void put(int first, Value value)
    {
#pragma unroll 4
        for (int k = 0; k < SLICE - KEPT; ++k)
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) {
                const int e = k * COLUMNS + n;
                rest[e / P * THREADS].v[e % P] = value(first + k, n / WIDTH, n % WIDTH);
            }
    }

    // sums[c]: that of the product of the thread's own sequence, unit and column c.
    template <int ROWS>
    __device__ __forceinline__ void product(const A* vectors, int lane, A (&sums)[WIDTH]) const
    {
        A all[ROWS * UNITS][WIDTH];
#pragma unroll
        for (int n = 0; n < ROWS * UNITS; ++n)
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) all[n][c] = A(0);
        Pack<A> more;
#pragma unroll
        for (int k = 0; k < SLICE; k += P) {
            Pack<A> p[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                p[r] = *reinterpret_cast<const Pack<A>*>(
                    vectors + r * LENGTH + lane * STRIDE + k);
#pragma unroll
            for (int m = 0; m < P; ++m)
#pragma unroll
                for (int n = 0; n < COLUMNS; ++n) {
                    const int e = (k + m - KEPT) * COLUMNS + n;
                    if (e >= 0 && e % P == 0) more = rest[e / P * THREADS];
                    const A weight = e < 0 ? w[e < 0 ? k + m : 0][n] : more.v[e < 0 ? 0 : e % P];
#pragma unroll
                    for (int r = 0; r < ROWS; ++r)
                        add_product(all[r * UNITS + n / WIDTH][n % WIDTH], p[r].v[m], weight);
                }
        }
        sum_lanes<LANES, ROWS * UNITS, WIDTH>(all);
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) sums[c] = all[0][c];
    }
};

// All steps of a cell with one product, forwards. A cell has
//   Next fetch(long long n)          what is read of row n before its turn comes
//   A step(Next, sums, long long n)  writes row n, returns h
//   int column(int c)                where column c of the product begins in w, in units of H
template <
    typename T, int SPLIT, int SLICE, int KEPT, int UNITS, int WIDTH, int ROWS, int THREADS,
    typename Cell>
__device__ __forceinline__ void forward_rows(
    Cell& cell, const Seat<SPLIT, UNITS, ROWS>& me,
    const T* w, long long w_row, long long w_column,  // [H, ·], read, and its strides
    typename Acc<T>::type* h,  // [B, H], updated: h before the first step, and after the last
    const Starts& starts, int steps, int H)
{
    typedef typename Acc<T>::type A;
    typedef Matrix<A, SPLIT, SLICE, KEPT, UNITS, WIDTH, THREADS> Recurrent;
    const int SIZE = ROWS * Recurrent::LENGTH;
    __shared__ Pack<A> memory[2 * SIZE / Recurrent::P];
    A* const state = memory[0].v;  // [2][ROWS][LENGTH]: h of the step before, and of this one

    Recurrent matrix;
    matrix.load(me.lane, shared_packs<A>(), [&](int k, int u, int c) -> A {
        const int unit = me.group * UNITS + u;
        if (k >= H || unit >= H) return A(0);
        return wide(w[k * w_row + (cell.column(c) * H + unit) * w_column]);
    });
    clear(state, 2 * SIZE);
    __syncthreads();
    A last = A(0);
    if (me.owner) {
        last = h[me.row * (long long)H + me.unit];
        state[me.slot * Recurrent::LENGTH + Recurrent::place(me.unit)] = rounded<T>(last);
    }
    long long from = starts[0], to = starts[1];
    bool active = me.owner && from + me.row < to;
    typename Cell::Next next = {};
    if (active) next = cell.fetch(from + me.row);
    __syncthreads();
    // The block is done when its first sequence, the longest, is.
    for (int s = 0; s < steps && from + me.first < to; ++s) {
        const bool now = active;
        const long long n = from + me.row;
        const typename Cell::Next current = next;
        if (s + 1 < steps) {  // What comes next is on its way while this step is computed.
            from = to;
            to = starts[s + 2];
            active = me.owner && from + me.row < to;
            if (active) next = cell.fetch(from + me.row);
        }
        A sums[WIDTH];
        matrix.template product<ROWS>(state + (s & 1) * SIZE, me.lane, sums);
        if (now) {
            last = cell.step(current, sums, n);
            state[((s + 1) & 1) * SIZE + me.slot * Recurrent::LENGTH + Recurrent::place(me.unit)] =
                rounded<T>(last);
        }
        __syncthreads();
    }
    if (me.owner) h[me.row * (long long)H + me.unit] = last;
}

// All steps of a cell with one product, backwards. Its vector has the WIDTH deltas of a unit
// together, so that a lane has the whole gradient of one unit and sequence. A cell has
//   void fetch(long long n)          reads what of row n does not depend on gradients
//   void factors()                   what is made of it
//   A deltas(A dh, d, long long n)   writes row n and d, returns the part of dh past the product
//   int column(int c)                as above
template <
    typename T, int SPLIT, int SLICE, int KEPT, int WIDTH, int ROWS, int THREADS, typename Cell>
__device__ __forceinline__ void backward_rows(
    Cell& cell, const Seat<SPLIT, 4, ROWS>& me,
    const T* w, long long w_row, long long w_column,  // [H, ·], read, and its strides
    typename Acc<T>::type* dh,  // [B, H], updated: the gradient of h after the last step
    const Starts& starts, int steps, int H)
{
    typedef typename Acc<T>::type A;
    typedef Matrix<A, SPLIT, SLICE, KEPT, 4, 1, THREADS> Recurrent;
    const int SIZE = ROWS * Recurrent::LENGTH;
    __shared__ Pack<A> memory[2 * SIZE / Recurrent::P];
    A* const deltas = memory[0].v;  // [2][ROWS][LENGTH], by turns

    Recurrent matrix;
    matrix.load(me.lane, shared_packs<A>(), [&](int k, int u, int) -> A {
        const int unit = me.group * 4 + u, column = k / WIDTH;
        if (column >= H || unit >= H) return A(0);
        return wide(w[unit * w_row + (cell.column(k % WIDTH) * H + column) * w_column]);
    });
    clear(deltas, 2 * SIZE);
    A grad = me.owner ? dh[me.row * (long long)H + me.unit] : A(0);
    long long to = starts[steps], from = starts[steps - 1];
    bool active = me.owner && from + me.row < to;
    if (active) {
        cell.fetch(from + me.row);
        cell.factors();
    }
    __syncthreads();
    for (int s = steps - 1; s >= 0; --s) {
        const bool now = active, any = from + me.first < to;  // of the block's sequences
        A* const here = deltas + (s & 1) * SIZE;
        A past = A(0);
        if (now) {
            A d[WIDTH];
            past = cell.deltas(grad, d, from + me.row);
#pragma unroll
            for (int c = 0; c < WIDTH; ++c)
                here[me.slot * Recurrent::LENGTH + Recurrent::place(WIDTH * me.unit + c)] =
                    rounded<T>(d[c]);
        }
        if (s > 0) {
            to = from;
            from = starts[s - 1];
            active = me.owner && from + me.row < to;
            if (active) cell.fetch(from + me.row);
        }
        if (any) {
            __syncthreads();
            A sums[1];
            matrix.template product<ROWS>(here, me.lane, sums);
            if (now) grad = past + sums[0];
        }
        // Behind the product, off the way from step to step.
        if (active) cell.factors();
    }
    if (me.owner) dh[me.row * (long long)H + me.unit] = grad;
}
"""
)

# Lanes that share a unit, which is also how many sequences a block may have. With two a block has
# half as many threads, and so more registers of each for the matrix.
SPLITS = (4, 2)


class Size(NamedTuple):
    """How a kernel is laid out over the threads of a block."""

    units: int  # that neighbouring lanes share
    vectors: tuple[int, ...]  # for each matrix how many numbers of a unit it multiplies,
    columns: tuple[int, ...]  # and how many of its columns belong to a unit


class Kernel(NamedTuple):
    """A kernel over all steps: the source of its cell, its template, its size."""

    source: str
    name: str
    size: Size


class Layout(NamedTuple):
    """
    Where a block has its matrices.

    Attributes
    ----------
    split
        One of SPLITS.
    threads
        Of a block, whole warps.
    slices, kept
        How many rows of each matrix a thread has, and how many of these in registers.
    registers
        Of a thread, for these.
    shared
        Bytes of shared memory for the other rows.
    vectors
        Bytes of shared memory for what is multiplied, of as many sequences as there may be.
    """

    split: int
    threads: int
    slices: tuple[int, ...]
    kept: tuple[int, ...]
    registers: int
    shared: int
    vectors: int


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def layout_of(
    size: Size, H: int, compute: np.dtype[Any], split: int, registers: int | None = None
) -> Layout:
    """Return the layout with at most so many registers of a thread, or all in registers."""
    pack = 16 // compute.itemsize
    threads = _up(split * _up(H, size.units), 32)
    slices = [max(pack, _up(-(-n * H // (split * size.units)), pack)) for n in size.vectors]
    of_a_row = [size.units * n * compute.itemsize // 4 for n in size.columns]
    kept, used, packs = slices.copy(), 0, 0
    # The smaller matrix first, as a kernel loads it first: what is loaded late needs the way by
    # shared memory.
    for m in sorted(range(len(slices)), key=lambda m: slices[m] * of_a_row[m]):
        if registers is not None:
            kept[m] = max(0, min(slices[m], (registers - used) // of_a_row[m]))
        used += kept[m] * of_a_row[m]
        packs += -(-(slices[m] - kept[m]) * size.units * size.columns[m] // pack)
    # Of a vector, slices that are an odd number of packs apart; two vectors by turns.
    lengths = [split * size.units * ((rows // pack) | 1) * pack for rows in slices]
    vectors = split * sum(lengths) * (2 // len(lengths)) * compute.itemsize
    return Layout(split, threads, tuple(slices), tuple(kept), used, 16 * packs * threads, vectors)


def template_of(kernel: Kernel, layout: Layout, sequences: int) -> str:
    """Return the name of a kernel for a number of sequences a block, with its storage type open."""
    matrices = zip(layout.slices, layout.kept, strict=True)
    numbers = [layout.split, *(n for pair in matrices for n in pair), sequences, layout.threads]
    return f"{kernel.name}<{{T}}, {', '.join(map(str, numbers))}>"
