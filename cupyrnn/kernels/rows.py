"""
Recurrences that one launch takes through all time steps: a block has a few sequences.

Sequences do not depend on each other, so no block waits for another one: there is nothing
cooperative about the launch, and every architecture can do it. The recurrent matrices stay in the
registers of a block for the whole time, or in its registers and its shared memory, and a step
costs one barrier of the block for each product. ``kernels/persistent.py`` says when these kernels
are taken.

The sums of a sequence are made in one order whatever the number of sequences of a block: its bits
do not depend on the sequences beside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import cell

SOURCE = (
    cell.SOURCE
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

// The sums over LANES neighboring lanes of ITEMS times WIDTH values; lane l is left with those of
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

// Whose values a thread has. SPLIT * UNITS neighboring lanes share UNITS units; of the ROWS
// sequences of the block one is a lane's own, with one of these units.
template <int SPLIT, int UNITS, int ROWS> struct Seat {
    static const int LANES = SPLIT * UNITS;
    int lane, group, unit, slot;
    int first, row;  // the first sequence of the block, and the thread's own
    bool owner;            // whether there is such a sequence and unit, and no other lane has it
    // `groups` of lanes have the units of the blocks before this one, `blocks` their sequences.
    __device__ __forceinline__ Seat(long long B, int H, int groups, int blocks)
        : lane(threadIdx.x % LANES), group(groups + threadIdx.x / LANES),
          unit(group * UNITS + lane % UNITS), slot(lane / UNITS % ROWS), first(blocks * ROWS),
          row(first + slot), owner(lane < UNITS * ROWS && unit < H && row < B) {}
};

// The most lanes that share a unit in a block of ``rows``.
const int MOST_SPLIT = 4;

// The part of a matrix that a thread has: SLICE of its rows, and the WIDTH columns of each of the
// UNITS units of its lanes. The first KEPT of these rows are in its registers, the others in shared
// memory, where nobody else reads them. They are added up in so many PARTS.
template <
    typename A, int SPLIT, int SLICE, int KEPT, int UNITS, int WIDTH, int THREADS, int PARTS = 1>
struct Matrix {
    static const int LANES = SPLIT * UNITS, COLUMNS = UNITS * WIDTH, P = 16 / sizeof(A);
    static const int PART = (SLICE / P + PARTS - 1) / PARTS * P;
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
            for (int k = first; k < KEPT && k < first + AT_ONCE; ++k) {
                // Nor with more than a few at once.
                if (k % (2 * P) == 0) __syncwarp();
#pragma unroll
                for (int n = 0; n < COLUMNS; ++n) {
                    const int e = (k - first) * COLUMNS + n;
                    w[k][n] = SLICE > KEPT ? rest[e / P * THREADS].v[e % P]
                                           : value(lane * SLICE + k, n / WIDTH, n % WIDTH);
                }
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
        A all[ROWS * UNITS][WIDTH], part[ROWS * UNITS][WIDTH];
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
                    for (int r = 0; r < ROWS; ++r) {
                        A& sum = part[r * UNITS + n / WIDTH][n % WIDTH];
                        sum = ((k + m) % PART ? sum : A(0)) + p[r].v[m] * weight;
                    }
                }
            if ((k + P) % PART == 0 || k + P == SLICE)
#pragma unroll
                for (int n = 0; n < ROWS * UNITS; ++n)
#pragma unroll
                    for (int c = 0; c < WIDTH; ++c)
                        all[n][c] = k < PART ? part[n][c] : all[n][c] + part[n][c];
        }
        sum_lanes<LANES, ROWS * UNITS, WIDTH>(all);
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) sums[c] = all[0][c];
    }
};

// The matrices of the products of a step: the second one has no rows where there is none. UNITS
// share lanes where a lane has one column of a unit.
template <
    template <typename> class Cell, typename A, bool BACK, int SPLIT, int UNITS, int THREADS,
    int SLICE, int KEPT, int SLICE_2, int KEPT_2>
struct Matrices {
    typedef Cell<A> C;
    static const int LAST = C::PRODUCTS - 1, OF_UNIT = UNITS;
    // Backwards the vectors have the deltas of a unit together, so that a lane has the whole
    // gradient of one unit and sequence.
    // Where all is in registers, fewer lanes sum their rows up part by part, as MOST_SPLIT would:
    // how many lanes share a unit then depends on how many sequences there are.
    static const int PARTS = KEPT == SLICE && KEPT_2 == SLICE_2 && SPLIT < MOST_SPLIT
        ? MOST_SPLIT / SPLIT : 1;
    static const int WIDTH = BACK ? 1 : C::width(0), WIDTH_2 = BACK ? 1 : C::width(LAST);
    typedef Matrix<A, SPLIT, SLICE, KEPT, UNITS, WIDTH, THREADS, PARTS> First;
    typedef Matrix<A, SPLIT, SLICE_2, KEPT_2, UNITS, WIDTH_2, THREADS, PARTS> Second;
    static_assert(LAST == 0 ? SLICE_2 == 0 : LAST == 1 && SLICE_2 > 0, "a matrix a product");
    static_assert(LAST == 0 || BACK || SLICE == SLICE_2, "forwards both multiply a unit's number");
    // Which of two vectors a product multiplies: they take turns where there is one product.
    static __device__ __forceinline__ int turn(int p, int s) { return LAST == 1 ? p : s & 1; }
};

// How numbers get from the lanes that make them to those that multiply them: within a block.
template <typename T, typename M, int ROWS> struct InBlock {
    typedef typename Acc<T>::type A;
    static const int SIZE = ROWS * M::First::LENGTH;
    static const int IN_ALL = SIZE + (M::LAST == 1 ? ROWS * M::Second::LENGTH : SIZE);
    A* vectors;
    // The numbers of a unit in a sequence's vector, which `matrix` multiplies.
    template <typename Matrix, int COUNT>
    __device__ __forceinline__ void put(
        const Matrix& matrix, int turn, int slot, int unit, const A (&v)[COUNT]) const
    {
        A* const to = vectors + turn * SIZE + slot * matrix.LENGTH;
        if constexpr (Matrix::P % COUNT == 0) {  // side by side in one slice
            struct alignas(COUNT * sizeof(A)) { A v[COUNT]; } all;
#pragma unroll
            for (int k = 0; k < COUNT; ++k) all.v[k] = rounded<T>(v[k]);
            *reinterpret_cast<decltype(all)*>(to + matrix.place(COUNT * unit)) = all;
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; ++k)
                to[matrix.place(COUNT * unit + k)] = rounded<T>(v[k]);
        }
    }
    // Zeros, also behind the vectors, where the matrix has zeros too.
    __device__ __forceinline__ void begin() const { clear(vectors, IN_ALL); }
    // All have put theirs.
    __device__ __forceinline__ void meet() const { __syncthreads(); }
    template <typename Matrix, int WIDTH>
    __device__ __forceinline__ void product(
        const Matrix& matrix, int turn, int lane, A (&sums)[WIDTH]) const
    {
        matrix.template product<ROWS>(vectors + turn * SIZE, lane, sums);
    }
};

template <typename M, template <typename> class Cell, typename T, typename Seat, typename Exchange>
__device__ __forceinline__ void forward_steps(
    const Cell<typename Acc<T>::type>& cell, const Forward<Cell, T>& arrays, const Steps& at,
    const Seat& me, Exchange& exchange, Pack<typename Acc<T>::type>* shared)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    const int H = int(at.H), steps = int(at.steps);
    auto load = [&](auto product, auto& matrix, Pack<A>* shared) {
        const Weights<T> w = arrays.w[product.NUMBER];
        matrix.load(me.lane, shared, [&](int k, int u, int c) -> A {
            const int unit = me.group * M::OF_UNIT + u;
            if (k >= H || unit >= H) return A(0);
            return wide(w.w[k * w.row + (cell.column(c) * H + unit) * w.column]);
        });
    };
    // The second before the first, as it is smaller: what comes late needs shared memory.
    typename M::Second second;
    if constexpr (M::LAST == 1) load(Product<1>(), second, shared + M::First::SHARED);
    typename M::First first;
    load(Product<0>(), first, shared);
    typename C::Unit unit = {};
    if (me.unit < H) unit = cell.unit(me.unit, H);
    exchange.begin();
    __syncthreads();
    typename C::State state = {};
    if (me.owner) {
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            array_of<A>(state)[k] = arrays.states[k][me.row * (long long)H + me.unit];
        const A made[] = {state.h};
        exchange.put(first, 0, me.slot, me.unit, made);
    }
    long long from = at[0], to = at[1];
    bool active = me.owner && from + me.row < to;
    struct Next { A z[C::width(0) + (M::LAST == 1 ? C::width(1) : 0)]; } next = {};
    auto fetch = [&]() {
        const long long n = from + me.row;
#pragma unroll
        for (int p = 0; p < C::PRODUCTS; ++p)
#pragma unroll
            for (int k = 0; k < C::width(p); ++k)
                next.z[p * C::width(0) + k] =
                    (arrays.z[p] + n * (C::width(p) * H) + me.unit)[cell.column(k) * H];
    };
    if (active) fetch();
    exchange.meet();
    // All is done when the first sequence, the longest, is.
    for (int s = 0; s < steps && from + me.first < to; ++s) {
        const bool now = active;
        const long long n = (from + me.row) * H + me.unit;
        const Next current = next;
        if (s + 1 < steps) {  // What comes next is on its way while this step is computed.
            from = to;
            to = at[s + 2];
            active = me.owner && from + me.row < to;
            if (active) fetch();
        }
        typename C::Saved saved;
        auto behind = [&](auto product, const auto& matrix) {
            constexpr int p = decltype(product)::NUMBER;
            A sums[C::width(p)];
            exchange.product(matrix, M::turn(p, s), me.lane, sums);
            if (now) {
                const A made[] = {cell.forward(
                    product, unit, current.z + p * C::width(0), sums, state, saved)};
                exchange.put(first, M::turn(p, s) ^ 1, me.slot, me.unit, made);
#pragma unroll
                for (int k = C::saved_before(p); k < C::saved_before(p + 1); ++k)
                    store(arrays.saved[k] + n, array_of<A>(saved)[k]);
            }
            exchange.meet();
        };
        behind(Product<0>(), first);
        if constexpr (M::LAST == 1) behind(Product<1>(), second);
    }
    if (me.owner)
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            arrays.states[k][me.row * (long long)H + me.unit] = array_of<A>(state)[k];
}

template <typename M, template <typename> class Cell, typename T, typename Seat, typename Exchange>
__device__ __forceinline__ void backward_steps(
    const Cell<typename Acc<T>::type>& cell, const Backward<Cell, T>& arrays, const Steps& at,
    const Seat& me, Exchange& exchange, Pack<typename Acc<T>::type>* shared)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    const int H = int(at.H), steps = int(at.steps);
    auto load = [&](auto product, auto& matrix, Pack<A>* shared) {
        constexpr int WIDTH = C::width(decltype(product)::NUMBER);
        const Weights<T> w = arrays.w[product.NUMBER];
        matrix.load(me.lane, shared, [&](int k, int u, int) -> A {
            const int unit = me.group * M::OF_UNIT + u, column = k / WIDTH;
            if (column >= H || unit >= H) return A(0);
            return wide(w.w[unit * w.row + (cell.column(k % WIDTH) * H + column) * w.column]);
        });
    };
    typename M::Second second;
    if constexpr (M::LAST == 1) load(Product<1>(), second, shared);
    typename M::First first;
    load(Product<0>(), first, shared + (M::LAST == 1 ? M::Second::SHARED : 0));
    typename C::Unit unit = {};
    if (me.unit < H) unit = cell.unit(me.unit, H);
    exchange.begin();
    typename C::Gradients gradients = {};
    if (me.owner)
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            array_of<A>(gradients)[k] = arrays.gradients[k][me.row * (long long)H + me.unit];
    long long to = at[steps], from = at[steps - 1];
    bool active = me.owner && from + me.row < to;
    typename C::Read read = {};
    typename C::Factors factors = {};
    A given[C::GIVEN] = {};
    auto fetch = [&]() {
        const long long e = (from + me.row) * H + me.unit;
#pragma unroll
        for (int k = 0; k < C::READ; ++k) array_of<A>(read)[k] = wide(arrays.read[k][e]);
#pragma unroll
        for (int k = 0; k < C::GIVEN; ++k)
            given[k] = arrays.given[k] ? wide(arrays.given[k][e]) : A(0);
    };
    if (active) {
        fetch();
        factors = cell.factors(unit, read);
    }
    __syncthreads();
    for (int s = steps - 1; s >= 0; --s) {
        const bool now = active, any = from + me.first < to;  // of the sequences that meet
        const long long n = from + me.row;
        auto before = [&](auto product, const auto& matrix, A dh) -> A {
            constexpr int p = decltype(product)::NUMBER;
            A d[C::deltas(p)];
            const A past = cell.backward(product, factors, dh, given, gradients, d);
#pragma unroll
            for (int k = 0; k < C::deltas(p); ++k)
                store(arrays.deltas[p] + n * (C::deltas(p) * H) + me.unit + cell.column(k) * H,
                      d[k]);
            A of_unit[C::width(p)];
#pragma unroll
            for (int k = 0; k < C::width(p); ++k) of_unit[k] = d[k];
            exchange.put(matrix, M::turn(p, s), me.slot, me.unit, of_unit);
            return past;
        };
        A past = A(0), sum[1];
        if (now) {
            if constexpr (M::LAST == 0) past = before(Product<0>(), first, gradients.h + given[0]);
            else before(Product<1>(), second, gradients.h + given[0]);
        }
        if (s > 0) {
            to = from;
            from = at[s - 1];
            active = me.owner && from + me.row < to;
            if (active) fetch();
        }
        if (any) {
            exchange.meet();
            if constexpr (M::LAST == 1) {
                exchange.product(second, M::turn(1, s), me.lane, sum);
                if (now) past = before(Product<0>(), first, sum[0]);
                exchange.meet();
            }
            exchange.product(first, M::turn(0, s), me.lane, sum);
            if (now) gradients.h = past + sum[0];
        }
        // Behind the product, off the way from step to step.
        if (active) factors = cell.factors(unit, read);
    }
    if (me.owner)
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            arrays.gradients[k][me.row * (long long)H + me.unit] = array_of<A>(gradients)[k];
}

template <
    template <typename> class Cell, typename T, int SPLIT, int ROWS, int THREADS, int SLICE,
    int KEPT, int SLICE_2 = 0, int KEPT_2 = 0>
__global__ void __launch_bounds__(THREADS, 1) forward_rows(
    const Cell<typename Acc<T>::type> cell, const Forward<Cell, T> arrays, const Steps at)
{
    typedef typename Acc<T>::type A;
    const int UNITS = Cell<A>::width(0) == 1 ? 4 : 1;
    typedef Matrices<Cell, A, false, SPLIT, UNITS, THREADS, SLICE, KEPT, SLICE_2, KEPT_2> M;
    typedef InBlock<T, M, ROWS> Exchange;
    __shared__ Pack<A> memory[Exchange::IN_ALL / M::First::P];
    Exchange exchange = {memory[0].v};
    const Seat<SPLIT, UNITS, ROWS> me(at.B, int(at.H), 0, blockIdx.x);
    forward_steps<M>(cell, arrays, at, me, exchange, shared_packs<A>());
}

template <
    template <typename> class Cell, typename T, int SPLIT, int ROWS, int THREADS, int SLICE,
    int KEPT, int SLICE_2 = 0, int KEPT_2 = 0>
__global__ void __launch_bounds__(THREADS, 1) backward_rows(
    const Cell<typename Acc<T>::type> cell, const Backward<Cell, T> arrays, const Steps at)
{
    typedef typename Acc<T>::type A;
    typedef Matrices<Cell, A, true, SPLIT, 4, THREADS, SLICE, KEPT, SLICE_2, KEPT_2> M;
    typedef InBlock<T, M, ROWS> Exchange;
    __shared__ Pack<A> memory[Exchange::IN_ALL / M::First::P];
    Exchange exchange = {memory[0].v};
    const Seat<SPLIT, 4, ROWS> me(at.B, int(at.H), 0, blockIdx.x);
    backward_steps<M>(cell, arrays, at, me, exchange, shared_packs<A>());
}
"""
)

# Lanes that share a unit, which is also how many sequences a block may have. With two a block has
# half as many threads, and so more registers of each for the matrix.
SPLITS = (4, 2)


class Size(NamedTuple):
    """How a kernel is laid out over the threads of a block."""

    units: int  # that neighboring lanes share
    vectors: tuple[int, ...]  # for each matrix how many numbers of a unit it multiplies,
    columns: tuple[int, ...]  # and how many of its columns belong to a unit


class Kernel(NamedTuple):
    """A kernel over all steps: its source, its template, the struct of its cell, its size."""

    source: str
    name: str
    struct: str
    size: Size


def kernel(of: cell.Cell, direction: str) -> Kernel:
    """Return the kernel of a cell for one direction."""
    once = (1,) * len(of.widths)
    if direction == "backward":
        size = Size(4, of.widths, once)
    else:
        size = Size(4 if of.widths[0] == 1 else 1, once, of.widths)
    return Kernel(SOURCE + of.source, f"{direction}_rows", of.struct, size)


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
    size: Size,
    H: int,
    compute: np.dtype[Any],
    split: int,
    registers: int | None = None,
    threads: int | None = None,
) -> Layout:
    """
    Return the layout with at most so many registers of a thread, or all in registers.

    A block has the threads of all units, or as many as there are of it.
    """
    pack = 16 // compute.itemsize
    threads = threads or _up(split * _up(H, size.units), 32)
    # All in registers, whole slices of the most lanes that there may be: these have the same sums.
    lanes = split if registers is not None else max(split, SPLITS[0])
    slices = [
        lanes // split * max(pack, _up(-(-n * H // (lanes * size.units)), pack))
        for n in size.vectors
    ]
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
    numbers = [layout.split, sequences, layout.threads, *(n for pair in matrices for n in pair)]
    return f"{kernel.name}<{kernel.struct}, {{T}}, {', '.join(map(str, numbers))}>"
