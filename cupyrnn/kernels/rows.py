"""
All time steps in one launch, with a few sequences in each block.

Sequences are independent, so no block waits for another one. The launch is an ordinary one, and
every architecture supports it. The recurrent matrices stay in the registers of a block, or in its
registers and its shared memory, during all steps. A step costs one barrier of the block for each
product. ``kernels/persistent.py`` chooses these kernels.

The order of the sums of a sequence does not depend on the number of sequences of a block. So the
bits of a sequence do not depend on the sequences beside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import all_steps, cell

SOURCE = (
    all_steps.SOURCE
    + r"""
// The shared memory that a launch asks for, in addition to the source's own.
template <typename A> __device__ __forceinline__ Pack<A>* shared_packs()
{
    extern __shared__ uint4 memory[];  // 16 bytes each, as a pack
    return reinterpret_cast<Pack<A>*>(memory);
}

// A number rounded to the storage type.
template <typename T>
__device__ __forceinline__ typename Acc<T>::type rounded(typename Acc<T>::type v)
{
    T t;
    store(&t, v);
    return wide(t);
}

// Sums ITEMS times WIDTH values over LANES neighboring lanes; lane l gets the sums of item
// l % ITEMS. Each lane first gives away half of its items, then half of the rest, and so on.
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

// The unit and the sequence that a thread owns. SPLIT * UNITS neighboring lanes share UNITS units;
// each lane owns one of these units in one of the ROWS sequences of the block.
template <int SPLIT, int UNITS, int ROWS> struct Tile {
    static const int LANES = SPLIT * UNITS;
    int lane, group, unit, slot;
    int first, row;  // the first sequence of the block, and the thread's own
    int units;       // whether the unit exists and no other lane owns it in this sequence
    __device__ __forceinline__ explicit Tile(int H)
        : lane(threadIdx.x % LANES), group(threadIdx.x / LANES),
          unit(group * UNITS + lane % UNITS), slot(lane / UNITS % ROWS), first(blockIdx.x * ROWS),
          row(first + slot), units(lane < UNITS * ROWS && unit < H) {}
};

// The most lanes that share a unit in a block of ``rows``.
const int MOST_SPLIT = 4;

// The part of a matrix that a thread has: SLICE of its rows, and the WIDTH columns of each of the
// UNITS units of its lanes. The first KEPT of these rows are in its registers, the others in shared
// memory that no other thread reads. The sum is computed in PARTS parts.
template <
    typename A, int SPLIT, int SLICE, int KEPT, int UNITS, int WIDTH, int THREADS, int PARTS = 1>
struct Matrix {
    static const int LANES = SPLIT * UNITS, COLUMNS = UNITS * WIDTH, P = 16 / sizeof(A);
    static const int PART = (SLICE / P + PARTS - 1) / PARTS * P;
    // A vector is in shared memory slice by slice. The slices are an odd number of 16 bytes apart,
    // so lanes that read 16 bytes of their slices use no bank twice.
    static const int STRIDE = SLICE / P % 2 ? SLICE : SLICE + P;
    static const int LENGTH = LANES * STRIDE;
    // The same holds for the matrix: the 16 bytes that each thread reads next are side by side.
    static const int PACKS = ((SLICE - KEPT) * COLUMNS + P - 1) / P, SHARED = PACKS * THREADS;
    static_assert(SLICE % P == 0, "slices are read 16 bytes at a time");
    A w[KEPT > 0 ? KEPT : 1][COLUMNS];
    Pack<A>* rest;

    static __device__ __forceinline__ int place(int k) { return k / SLICE * STRIDE + k % SLICE; }

    // value(k, u, c) is the number in row k and column c of unit u of the lanes. `shared` has room
    // for SHARED packs.
    template <typename Value>
    __device__ __forceinline__ void load(int lane, Pack<A>* shared, Value value)
    {
        rest = shared + threadIdx.x;
        // Through the shared memory if there is some: with the addresses of all its numbers at once
        // a thread would run out of registers.
        const int AT_ONCE = SLICE > KEPT ? SLICE - KEPT : SLICE;
#pragma unroll
        for (int first = 0; first < KEPT; first += AT_ONCE) {
            if (SLICE > KEPT) load_shared(lane * SLICE + first, value);
#pragma unroll
            for (int k = first; k < KEPT && k < first + AT_ONCE; ++k) {
                // Only a few loads at once, for the same reason.
                if (k % (2 * P) == 0) __syncwarp();
#pragma unroll
                for (int n = 0; n < COLUMNS; ++n) {
                    const int e = (k - first) * COLUMNS + n;
                    w[k][n] = SLICE > KEPT ? rest[e / P * THREADS].v[e % P]
                                           : value(lane * SLICE + k, n / WIDTH, n % WIDTH);
                }
            }
        }
        if (SLICE > KEPT) load_shared(lane * SLICE + KEPT, value);
    }

    // Fills the thread's shared memory with rows, from `first` on.
    template <typename Value> __device__ __forceinline__ void load_shared(int first, Value value)
    {
#pragma unroll 4
        for (int k = 0; k < SLICE - KEPT; ++k)
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) {
                const int e = k * COLUMNS + n;
                rest[e / P * THREADS].v[e % P] = value(first + k, n / WIDTH, n % WIDTH);
            }
    }

    // sums[c] is the product for the thread's own sequence, unit and column c. `slices` is the
    // thread's slice of the first sequence's vector.
    template <int ROWS>
    __device__ __forceinline__ void product(const A* slices, A (&sums)[WIDTH]) const
    {
        A all[ROWS * UNITS][WIDTH], part[ROWS * UNITS][WIDTH];
        Pack<A> more;
#pragma unroll
        for (int k = 0; k < SLICE; k += P) {
            Pack<A> p[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                p[r] = *reinterpret_cast<const Pack<A>*>(slices + r * LENGTH + k);
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

// What a block has for each product: operator[] takes the product.
template <typename First, typename Second> struct OfProducts {
    First first;
    Second second;
    __device__ __forceinline__ First& operator[](Product<0>) { return first; }
    __device__ __forceinline__ Second& operator[](Product<1>) { return second; }
    __device__ __forceinline__ const First& operator[](Product<0>) const { return first; }
    __device__ __forceinline__ const Second& operator[](Product<1>) const { return second; }
};

// The matrices of the products of a step; a missing second one has no rows. If a lane has one
// column of a unit, UNITS units share lanes.
template <
    template <typename> class Cell, typename A, bool BACK, int SPLIT, int UNITS, int THREADS,
    int SLICE, int KEPT, int SLICE_2 = 0, int KEPT_2 = 0>
struct Matrices {
    typedef Cell<A> C;
    static const int LAST = C::PRODUCTS - 1, OF_UNIT = UNITS;
    // Backwards the vectors have the deltas of a unit together, so that a lane has the whole
    // gradient of one unit and sequence.
    // If everything is in registers, fewer lanes than MOST_SPLIT sum their rows in the parts that
    // MOST_SPLIT lanes would have: the sums must not depend on the number of sequences.
    static const bool WHOLE = KEPT == SLICE && KEPT_2 == SLICE_2;
    static const int REGISTERS = UNITS * (KEPT * (BACK ? 1 : C::width(0))
        + KEPT_2 * (BACK ? 1 : C::width(LAST)));
    static const int PARTS = WHOLE && SPLIT < MOST_SPLIT ? MOST_SPLIT / SPLIT : 1;
    // The numbers of a unit in a vector.
    static __device__ constexpr int count(int p) { return BACK ? C::width(p) : 1; }
    static const int WIDTH = BACK ? 1 : C::width(0), WIDTH_2 = BACK ? 1 : C::width(LAST);
    typedef Matrix<A, SPLIT, SLICE, KEPT, UNITS, WIDTH, THREADS, PARTS> First;
    typedef Matrix<A, SPLIT, SLICE_2, KEPT_2, UNITS, WIDTH_2, THREADS, PARTS> Second;
    static_assert(LAST == 0 ? SLICE_2 == 0 : LAST == 1 && SLICE_2 > 0, "a matrix a product");
    static_assert(LAST == 0 || BACK || SLICE == SLICE_2, "forwards both multiply a unit's number");
};

// The products of a thread's matrices with vectors in the shared memory of a block.
template <typename T, typename M, int ROWS, typename Tile> struct ByRows {
    typedef typename Acc<T>::type A;
    typedef A N;
    static const bool LATE = false;
    static const int SIZE = ROWS * M::First::LENGTH;
    static const int IN_ALL = SIZE + (M::LAST == 1 ? ROWS * M::Second::LENGTH : SIZE);
    A* vectors;
    const Tile& me;
    Pack<A>* shared;  // the numbers that are not in registers
    OfProducts<typename M::First, typename M::Second> matrices;
    Place slices[2], places[2][4];  // in each product's vector: where it reads, where it writes

    __device__ __forceinline__ ByRows(A* memory, const Tile& tile, Pack<A>* packs)
        : vectors(memory), me(tile), shared(packs) {}
    template <typename V> static __device__ __forceinline__ A to_operand(V v) { return wide(v); }
    template <typename Value> __device__ __forceinline__ void load(Value value)
    {
        auto part = [&](auto product, Pack<A>* packs) {
            constexpr int P = decltype(product)::NUMBER, COUNT = M::count(P);
            auto& m = matrices[product];
            m.load(me.lane, packs, [&](int k, int u, int c) -> A {
                return value(product, k, me.group * M::OF_UNIT + u, c);
            });
            slices[P] = in_shared(vectors + me.lane * m.STRIDE);
            A* const vector = vectors + me.slot * m.LENGTH;
#pragma unroll
            for (int k = 0; k < COUNT; ++k)
                places[P][k] = in_shared(vector + m.place(COUNT * me.unit + k));
        };
        // The second matrix first, because it is smaller: later loads go through shared memory.
        if constexpr (M::LAST == 1) part(Product<1>(), shared + M::First::SHARED);
        part(Product<0>(), shared);
    }
    // Zeros, also after the vectors, where the matrix has zeros too.
    __device__ __forceinline__ void begin() const { clear(vectors, IN_ALL); }
    // Waits until all threads have stored their numbers.
    __device__ __forceinline__ void sync() const { __syncthreads(); }
    // Stores the numbers of the thread's own unit and sequence.
    template <int COUNT, typename Product>
    __device__ __forceinline__ void store_numbers(Product product, int turn, const A* v) const
    {
        const int behind = turn * SIZE * int(sizeof(A));
        const Place* const at = places[product.NUMBER];
        if constexpr (M::First::P % COUNT == 0) {  // side by side in one slice
            struct alignas(COUNT * sizeof(A)) Some { A v[COUNT]; } all;
#pragma unroll
            for (int k = 0; k < COUNT; ++k) all.v[k] = rounded<T>(v[k]);
            *at_place<Some>(at[0] + behind) = all;
        } else {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) *at_place<A>(at[k] + behind) = rounded<T>(v[k]);
        }
    }
    template <typename Product, int WIDTH>
    __device__ __forceinline__ void multiply(
        Product product, int turn, long long, A (&sums)[WIDTH])
    {
        const Place at = slices[product.NUMBER] + turn * SIZE * int(sizeof(A));
        matrices[product].template product<ROWS>(at_place<A>(at), sums);
    }
    template <typename Product> __device__ __forceinline__ void finish(Product, A*) const {}
};

// The registers that a thread may have. A multiprocessor allocates them to four warps at a time.
__device__ constexpr int registers_of(int threads)
{
    return threads <= 256 ? 255 : 65536 / ((threads + 127) / 128 * 128) / 8 * 8;
}

// How many steps of `bytes` fit into the shared memory that every block may use, after `used`
// bytes. One means that nothing is copied there.
__device__ constexpr int slots_of(int number, int bytes, int used)
{
#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 800
    for (int slots = 8; number >= 4 && slots > 2; slots /= 2)
        if (slots * bytes + used <= 40960) return slots;
#endif
    return 1;
}

// Direction is Forward or Backward.
template <
    template <template <typename> class, typename> class Direction,
    template <typename> class Cell, typename T, bool PLAIN, bool PADDED, int SPLIT, int ROWS,
    int THREADS, int... PARTS>
__global__ void __launch_bounds__(THREADS, 1) steps_by_rows(
    const Cell<typename Acc<T>::type> cell, const Direction<Cell, T> arrays, const Steps at)
{
    typedef typename Acc<T>::type A;
    const bool BACK = Direction<Cell, T>::BACK;
    const int UNITS = BACK || Cell<A>::width(0) == 1 ? 4 : 1;
    typedef Matrices<Cell, A, BACK, SPLIT, UNITS, THREADS, PARTS...> M;
    typedef Tile<SPLIT, UNITS, ROWS> Mine;
    typedef ByRows<T, M, ROWS, Mine> Products;
    __shared__ Pack<A> memory[Products::IN_ALL / M::First::P];
    const Mine me(int(at.H));
    Products products(memory[0].v, me, shared_packs<A>());
    at.write_zeros();
    Steps steps = at;
    if (PLAIN || PADDED) steps.starts = nullptr;
    const bool ROOM = M::WHOLE && sizeof(A) == 4
        && M::REGISTERS + (PLAIN ? 88 : 98) + 16 * M::LAST <= registers_of(THREADS);
    typedef typename Direction<Cell, T>::Number Number;
    const int NUMBERS = Direction<Cell, T>::NUMBERS, OWNERS = THREADS / SPLIT * ROWS;
    const int SLOTS = ROOM ? slots_of(
        sizeof(Number), (NUMBERS * sizeof(Number) + 15) / 16 * 16 * OWNERS, sizeof(memory)) : 1;
    // A thread that loads to registers needs no helpers.
    typedef Coming<Number, NUMBERS, SLOTS, OWNERS, SLOTS == 1 ? 1 : SPLIT / ROWS> Ahead;
    __shared__ Pack<Number> ring[Ahead::LENGTH];
    const int OF_GROUP = UNITS * ROWS;
    Ahead coming(ring, me.group * OF_GROUP + me.lane % OF_GROUP, me.lane / OF_GROUP);
    all_steps<PLAIN, PADDED, ROOM>(cell, arrays, steps, me, products, coming);
}
"""
)

# The lanes that share a unit, which is also the most sequences of a block. With two, a block has
# half as many threads, so each has more registers for the matrix.
SPLITS = (4, 2)


class Size(NamedTuple):
    """The sizes of a kernel's products, and their layout over the threads of a block."""

    units: int  # shared by neighboring lanes; in a grid the layout has this number
    vectors: tuple[int, ...]  # for each matrix, the numbers of a unit that it multiplies,
    columns: tuple[int, ...]  # and the number of its columns that belong to a unit


class Kernel(NamedTuple):
    """A kernel over all steps: its source, its template and their arguments, its size."""

    source: str
    name: str
    types: str  # the first arguments of its template: the direction, and the struct of the cell
    size: Size


def kernel(of: cell.CudaCell, direction: str, mode: str, source: str) -> Kernel:
    """Return the kernel of a cell for one direction, from the source of rows or grid."""
    once = (1,) * len(of.widths)
    if direction == "backward":
        size = Size(4, of.widths, once)
    else:
        size = Size(4 if of.widths[0] == 1 else 1, once, of.widths)
    types = f"{direction.capitalize()}, {of.struct}"
    return Kernel(source + of.source, f"steps_by_{mode}", types, size)


class ThreadLayout(NamedTuple):
    """
    How the matrices are spread over the threads of a block.

    Attributes
    ----------
    split
        One of SPLITS.
    threads
        The threads of a block, whole warps.
    slices, kept
        The number of rows of each matrix that a thread has, and how many of these in registers.
    registers
        The registers of a thread for these.
    shared
        Bytes of shared memory for the other rows.
    vectors
        Bytes of shared memory for the operands of the most sequences that a block may have.
    """

    split: int
    threads: int
    slices: tuple[int, ...]
    kept: tuple[int, ...]
    registers: int
    shared: int
    vectors: int


def up(n: int, to: int) -> int:
    return -(-n // to) * to


def layout_of(
    size: Size, H: int, compute: np.dtype[Any], split: int, registers: int | None = None
) -> ThreadLayout:
    """Return the layout with at most `registers` registers per thread, or with all in registers."""
    pack = 16 // compute.itemsize
    threads = up(split * up(H, size.units), 32)
    # If everything is in registers, slices are as for the most lanes, so that sums are the same.
    lanes = split if registers is not None else max(split, SPLITS[0])
    slices = [
        lanes // split * max(pack, up(-(-n * H // (lanes * size.units)), pack))
        for n in size.vectors
    ]
    of_a_row = [size.units * n * compute.itemsize // 4 for n in size.columns]
    kept, used, packs = slices.copy(), 0, 0
    # The smaller matrix first, as a kernel loads it first: later loads go through shared memory.
    for m in sorted(range(len(slices)), key=lambda m: slices[m] * of_a_row[m]):
        if registers is not None:
            kept[m] = max(0, min(slices[m], (registers - used) // of_a_row[m]))
        used += kept[m] * of_a_row[m]
        packs += -(-(slices[m] - kept[m]) * size.units * size.columns[m] // pack)
    # The slices of a vector are an odd number of packs apart; there are two vectors, used in turns.
    lengths = [split * size.units * ((rows // pack) | 1) * pack for rows in slices]
    vectors = split * sum(lengths) * (2 // len(lengths)) * compute.itemsize
    return ThreadLayout(
        split, threads, tuple(slices), tuple(kept), used, 16 * packs * threads, vectors
    )


def template_of(
    kernel: Kernel, layout: ThreadLayout, sequences: int, plain: bool = False, padded: bool = False
) -> str:
    """
    Return the name of a kernel for a number of sequences a block, with its storage type open.

    `plain` is whether all sequences have all steps and the cell uses no optional member. `padded`
    is whether they have lengths and resets. Both have their own compiled kernels.
    """
    matrices = zip(layout.slices, layout.kept, strict=True)
    numbers = [layout.split, sequences, layout.threads, *(n for pair in matrices for n in pair)]
    kind = f"{plain}, {padded}".lower()
    return f"{kernel.name}<{kernel.types}, {{T}}, {kind}, {', '.join(map(str, numbers))}>"
