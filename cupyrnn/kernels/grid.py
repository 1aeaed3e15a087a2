"""
Recurrences that one launch takes through all time steps, with the matrix spread over blocks.

A block has all columns of a few units, and each of its warps a slice of their rows. A row of the
grid, a group of blocks, takes a few sequences. What a step makes of them goes through the memory
of the device, as words that say by themselves whether they are there. A warp waits only for the
words that it multiplies. Blocks that wait must all run at once, so the launch is cooperative, and
never larger than the driver says can run together. More sequences take several launches.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..checks.arrays import compute_dtype
from . import rows, tiles
from .cell import words

SOURCE = (
    rows.SOURCE
    + tiles.FRAGMENTS
    + r"""
// How blocks tell each other numbers, and why no fence is needed: each number is written once, by a
// relaxed store, to a place that held all ones before the launch. A reader repeats a relaxed load
// until no word is all ones. What it has read is what it needed, and it concludes nothing about
// other memory. Loads and stores have words of one size, which the device reads and writes whole.
// No number is all ones: a word is a number, or two of a half format, and a NaN is the one of
// arithmetic, with a sign bit of zero. No place is used twice in a launch.
template <typename R> struct WordOf { typedef unsigned type; };
template <> struct WordOf<double> { typedef unsigned long long type; };

// Some neighboring words that are read together.
template <typename W> struct alignas(16) Words {
    W w[16 / sizeof(W)];
    __device__ __forceinline__ bool missing() const
    {
        bool any = false;
#pragma unroll
        for (int n = 0; n < 16 / int(sizeof(W)); ++n) any |= w[n] == ~W(0);
        return any;
    }
};

__device__ __forceinline__ void tell(unsigned* place, unsigned word)
{
#ifdef CUDA_ON_CPU
    cuda_on_cpu::tell(place, word);
#else
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(place), "r"(word) : "memory");
#endif
}
__device__ __forceinline__ void tell(unsigned long long* place, unsigned long long word)
{
#ifdef CUDA_ON_CPU
    cuda_on_cpu::tell(place, word);
#else
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(place), "l"(word) : "memory");
#endif
}
__device__ __forceinline__ Words<unsigned> look(const Words<unsigned>* place)
{
    Words<unsigned> v;
#ifdef CUDA_ON_CPU
    for (int n = 0; n < 4; ++n) v.w[n] = cuda_on_cpu::load_relaxed(place->w + n);
#else
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(place) : "memory");
#endif
    return v;
}
__device__ __forceinline__ Words<unsigned long long> look(const Words<unsigned long long>* place)
{
    Words<unsigned long long> v;
#ifdef CUDA_ON_CPU
    for (int n = 0; n < 2; ++n) v.w[n] = cuda_on_cpu::load_relaxed(place->w + n);
#else
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(v.w[0]), "=l"(v.w[1]) : "l"(place) : "memory");
#endif
    return v;
}
// A wait ends after a second or more. The launch fails then, and the next call that waits for the
// device says so.
__device__ __forceinline__ void count_looks(unsigned& looks)
{
#ifdef CUDA_ON_CPU
    __nanosleep(0);
#else
    if (++looks == 1u << 22) asm volatile("trap;");
#endif
}


// Numbers as words.
__device__ __forceinline__ float not_all_ones(float v)
{
    return v == v ? v : __int_as_float(0x7fffffff);
}
__device__ __forceinline__ unsigned word_of(float v)
{
    return __float_as_uint(not_all_ones(v));
}
__device__ __forceinline__ unsigned long long word_of(double v)
{
    return v == v ? __double_as_longlong(v) : 0x7fffffffffffffff;
}
// Half of a word.
template <typename T> __device__ __forceinline__ unsigned half_word_of(float v)
{
    T t;
    store(&t, not_all_ones(v));
    return *reinterpret_cast<const unsigned short*>(&t);
}

// What blocks tell each other in a launch.
struct Exchanged {
    void* numbers;      // [steps * products + 1, B, stride], all ones at the start
    long long stride;   // numbers of a vector, whole lines
    long long first;    // the first sequence of the launch
    long long patient;  // whether a look at one place comes before those at all places
};

// The thread of a unit and a sequence, of UNITS units and ROWS sequences of a block.
template <int UNITS, int ROWS> struct SeatOfOne {
    static const int OWN_ROWS = 1, OWN_UNITS = 1;
    static const bool BRANCHES = true;
    int own, slot;   // of the block's units, and of its sequences
    int first, row;  // the first sequence of the block, and the thread's
    int unit, units;
    __device__ __forceinline__ SeatOfOne(int H, int begin)
        : own(threadIdx.x % UNITS), slot(threadIdx.x / UNITS), first(begin + blockIdx.y * ROWS),
          row(first + slot), unit(blockIdx.x * UNITS + own), units(slot < ROWS && unit < H) {}
    __device__ __forceinline__ int active(long long from, long long to) const
    {
        return units && from + row < to;
    }
    template <typename V> __device__ __forceinline__ Numbers<V, 1> get(const V* from) const
    {
        return {{*from}};
    }
    template <typename V, typename A>
    __device__ __forceinline__ void put(V* to, const Numbers<A, 1>& v) const
    {
        store(to, v.v[0]);
    }
};


// Looks at places until no word is missing in any. Where nothing is wanted there are zeros.
template <int COUNT, typename W, typename Place>
__device__ __forceinline__ void wait_for(Words<W> (&found)[COUNT], Place place, unsigned wanted)
{
#pragma unroll
    for (int n = 0; n < COUNT; ++n) {
        found[n] = {};
        if (wanted >> n & 1) found[n] = look(place(n));
    }
    for (unsigned looks = 0;; count_looks(looks)) {
        bool missing = false;
#pragma unroll
        for (int n = 0; n < COUNT; ++n)
            if (found[n].missing()) {
                found[n] = look(place(n));
                missing = true;
            }
        if (!missing) break;
    }
}

// How a block multiplies by its part of the matrices. Such a struct has
//
//   E, W                        the types of exchanged numbers and of their words
//   A, N                        of sums, and what the matrices are held in
//   UNITS, ROWS, WARPS          of the block
//   MEMORY                      bytes of shared memory
//   numbers(width)              how many numbers of a unit a vector has, of which `width` count
//   load(product, value)        the matrix of a product
//   tell_unit<COUNT>(to, unit, H, v)
//                               tells the numbers of a unit; returns how many words a vector has
//                               up to here where this unit is the last one, else 0
//   multiply<WIDTH>(product, vectors, rows, count, sums)
//                               leaves the sums of a warp in sums[ROWS][row_of(WIDTH)] of shared
//                               memory: in `rows` of vectors there are `count` numbers
//
// By numbers of the type that is computed with. A matrix is that of `rows`, of a slice of K.
template <
    typename C, typename T, bool BACK, int OF_BLOCK, int SEQUENCES, int THREADS,
    int SLICE, int KEPT, int SLICE_2 = 0, int KEPT_2 = 0>
struct ByNumbers {
    typedef typename Acc<T>::type A;
    typedef typename Acc<T>::real R;
    typedef typename WordOf<R>::type W;
    typedef A E;
    typedef A N;
    static const int UNITS = OF_BLOCK, ROWS = SEQUENCES, WARPS = THREADS / 32;
    static const int P = 16 / sizeof(A), SPLIT = 32 / UNITS, AT_ONCE = ROWS < SPLIT ? ROWS : SPLIT;
    static const int LAST = C::PRODUCTS - 1;
    static __device__ constexpr int width(int p) { return BACK ? 1 : C::width(p); }
    static __device__ constexpr int shared_by(int width) { return width == 1 ? 4 : 2; }
    static __device__ constexpr int numbers(int width) { return width; }
    static __device__ constexpr int row_of(int width) { return width * UNITS + P; }
    typedef Matrix<A, SPLIT, SLICE, KEPT, shared_by(width(0)), width(0), THREADS> First;
    typedef Matrix<A, SPLIT, SLICE_2, KEPT_2, shared_by(width(LAST)), width(LAST), THREADS> Second;
    static const int LENGTH = ROWS * larger_of(First::LENGTH, LAST == 1 ? Second::LENGTH : 0);
    static const int MEMORY =
        (LENGTH * WARPS / P + First::SHARED + (LAST == 1 ? Second::SHARED : 0)) * 16;
    // What a lane looks at together.
    static const int LOOKS = 4;
    First first;
    Second second;
    A* vectors;  // of the warp
    Pack<A>* rest;

    __device__ __forceinline__ ByNumbers(uint4* memory, bool)
        : vectors(reinterpret_cast<A*>(memory) + threadIdx.x / 32 * LENGTH),
          rest(reinterpret_cast<Pack<A>*>(memory) + WARPS * LENGTH / P) {}
    template <typename V> static __device__ __forceinline__ N held(V v) { return wide(v); }
    template <int NUMBER> __device__ __forceinline__ auto& matrix(Product<NUMBER>)
    {
        if constexpr (NUMBER == 0) return first;
        else return second;
    }
    template <typename Product, typename Value>
    __device__ __forceinline__ void load(Product product, Value value)
    {
        auto& m = matrix(product);
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int unit = blockIdx.x * UNITS + lane / m.LANES * (m.LANES / SPLIT);
        m.load(
            lane % m.LANES, rest + (Product::NUMBER ? First::SHARED : 0),
            [&](int k, int u, int c) -> A {
                return value(product, warp * (m.LANES * slice(product)) + k, unit + u, c);
            });
    }
    template <int NUMBER> static __device__ constexpr int slice(Product<NUMBER>)
    {
        return NUMBER ? SLICE_2 : SLICE;
    }
    template <int COUNT>
    __device__ __forceinline__ int tell_unit(W* to, int unit, int H, const A* v) const
    {
        const int OF_NUMBER = sizeof(A) / sizeof(R);
        to += COUNT * OF_NUMBER * unit;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            A number = rounded<T>(v[k]);
#pragma unroll
            for (int n = 0; n < OF_NUMBER; ++n)
                tell(to + k * OF_NUMBER + n, word_of(array_of<R>(number)[n]));
        }
        return unit + 1 == H ? COUNT * OF_NUMBER * H : 0;
    }
    template <int WIDTH, typename Product, typename Row>
    __device__ __forceinline__ void multiply(
        Product product, Row row, int rows, int count, A* sums) const
    {
        const auto& m = const_cast<ByNumbers*>(this)->matrix(product);
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int PACKS = m.LANES * slice(product) / P, ALL = ROWS * PACKS;
        const int begin = warp * PACKS * P;
#pragma unroll 1
        for (int n = lane; n < ALL; n += 32 * LOOKS) {
            Words<W> found[LOOKS];
            unsigned wanted = 0;
#pragma unroll
            for (int i = 0; i < LOOKS; ++i) {
                const int at = n + 32 * i, slot = at / PACKS, k = begin + at % PACKS * P;
                wanted |= (unsigned)(at < ALL && slot < rows && k < count) << i;
            }
            wait_for(found, [&](int i) {
                const int at = n + 32 * i;
                return reinterpret_cast<const Words<W>*>(
                    row(at / PACKS) + (begin + at % PACKS * P) * int(sizeof(A)));
            }, wanted);
#pragma unroll
            for (int i = 0; i < LOOKS; ++i) {
                const int at = n + 32 * i;
                if (at < ALL)
                    *reinterpret_cast<Words<W>*>(
                        vectors + at / PACKS * m.LENGTH + m.place(at % PACKS * P)) = found[i];
            }
        }
        __syncwarp();  // before the product
        const int SHARE = m.LANES / SPLIT, item = lane % m.LANES;
        A* const to = sums + (item / SHARE) * row_of(WIDTH)
            + (lane / m.LANES * SHARE + item % SHARE) * WIDTH;
#pragma unroll 1
        for (int slot = 0; slot < ROWS; slot += AT_ONCE) {
            A of_item[WIDTH][1];
            m.template product<AT_ONCE>(vectors + slot * m.LENGTH, lane % m.LANES, of_item);
            if (item < AT_ONCE * SHARE)
#pragma unroll
                for (int c = 0; c < WIDTH; ++c) to[slot * row_of(WIDTH) + c] = of_item[c][0];
        }
    }
};

#ifdef MMA_TYPE
// By tensor cores. Rows of a product are columns of the matrix, unit by unit; its columns are eight
// sequences. CHUNKS: of 32 numbers of a vector that a warp multiplies.
template <
    typename C, typename T, bool BACK, int OF_BLOCK, int SEQUENCES, int THREADS,
    int CHUNKS, int CHUNKS_2 = 0>
struct ByTensorCores {
    typedef float A;
    typedef T N;
    typedef T E;
    typedef unsigned W;
    static const int UNITS = OF_BLOCK, ROWS = SEQUENCES, WARPS = THREADS / 32;
    static_assert(ROWS == 8 && UNITS % 16 == 0, "the size of a product");
    static const int LAST = C::PRODUCTS - 1;
    static __device__ constexpr int width(int p) { return BACK ? 1 : C::width(p); }
    // Whole words.
    static __device__ constexpr int numbers(int width) { return width == 3 ? 4 : width; }
    static __device__ constexpr int row_of(int width) { return width * UNITS + 4; }
    static __device__ constexpr int tiles(int p) { return width(p) * UNITS / 16; }
    typedef Fragments<T, tiles(0) * CHUNKS> First;
    typedef Fragments<T, tiles(LAST) * larger_of(CHUNKS_2, 1)> Second;
    static const int MEMORY = WARPS * First::LENGTH * 16;  // while the matrices are loaded
    First first;
    Second second;
    Chunk<T>* memory;
    bool patient;

    __device__ __forceinline__ ByTensorCores(uint4* shared, bool is_patient)
        : memory(reinterpret_cast<Chunk<T>*>(shared)), patient(is_patient) {}
    static __device__ __forceinline__ T held(T v) { return v; }
    template <int NUMBER> __device__ __forceinline__ auto& matrix(Product<NUMBER>)
    {
        if constexpr (NUMBER == 0) return first;
        else return second;
    }
    template <typename Product, typename Value>
    __device__ __forceinline__ void load(Product product, Value value)
    {
        constexpr int NUMBER = Product::NUMBER, WIDTH = width(NUMBER), COUNT = C::width(NUMBER);
        const int first_chunk = threadIdx.x / 32 * (NUMBER ? CHUNKS_2 : CHUNKS);
        const int lane = threadIdx.x % 32;
        matrix(product).load(memory, lane / 4, lane % 4, [&](int p, int row, int k) -> T {
            row += p % tiles(NUMBER) * 16;
            k += (first_chunk + p / tiles(NUMBER)) * 32;
            const int unit = blockIdx.x * UNITS + row / WIDTH;
            if (!BACK) return value(product, k, unit, row % WIDTH);
            const int column = k % numbers(COUNT);
            if (column >= COUNT) return T(0.f);
            return value(product, k / numbers(COUNT) * COUNT + column, unit, 0);
        });
    }
    template <int COUNT>
    __device__ __forceinline__ int tell_unit(unsigned* to, int unit, int H, const float* v) const
    {
        if constexpr (COUNT == 1) {
            // The lanes of two neighboring units make a word, if there are both.
            const int lane = threadIdx.x % 32;
            unsigned word = half_word_of<T>(v[0]), next = 0;
            if ((unit | 1) < H) next = __shfl_xor_sync(3u << (lane & ~1), word, 1);
            if (unit % 2 == 1) return 0;
            tell(to + unit / 2, word | next << 16);
            return unit + 2 >= H ? unit / 2 + 1 : 0;
        } else {
            const int OF_UNIT = numbers(COUNT) / 2;
#pragma unroll
            for (int n = 0; n < OF_UNIT; ++n)
                tell(to + OF_UNIT * unit + n,
                     half_word_of<T>(v[2 * n])
                         | (2 * n + 1 < COUNT ? half_word_of<T>(v[(2 * n + 1) % COUNT]) : 0) << 16);
            return unit + 1 == H ? OF_UNIT * H : 0;
        }
    }
    template <int WIDTH, typename Product, typename Row>
    __device__ __forceinline__ void multiply(
        Product product, Row row, int rows, int count, float* sums) const
    {
        const int COUNT = Product::NUMBER ? CHUNKS_2 : CHUNKS, TILES = tiles(Product::NUMBER);
        // Two sums where there are few, so that products do not wait for each other.
        const int PARTS = WIDTH < 4 ? 2 : 1;
        const auto& m = const_cast<ByTensorCores*>(this)->matrix(product);
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
        const int begin = threadIdx.x / 32 * COUNT * 32 + 8 * q;
        const char* const here = row(g);
        auto place = [&](int n) {
            return reinterpret_cast<const Words<unsigned>*>(here + (begin + 32 * n) * 2);
        };
        Words<unsigned> found[COUNT];
        unsigned wanted = 0;
#pragma unroll
        for (int n = 0; n < COUNT; ++n)
            wanted |= (unsigned)(g < rows && begin + 32 * n < count) << n;
        if (patient) {
            Words<unsigned> one[1];
            wait_for(one, [&](int) { return place(0); }, wanted & 1);
        }
        wait_for(found, place, wanted);
        __syncwarp();  // before the product
        float part[TILES * PARTS][4] = {};
#pragma unroll
        for (int n = 0; n < COUNT; ++n)
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                const auto& a = m.a[n * TILES + t];
                mma<T>(part[t * PARTS], a[0], found[n].w[0], found[n].w[1]);
                mma<T>(part[t * PARTS + PARTS - 1], a[1], found[n].w[2], found[n].w[3]);
            }
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float both[2];
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    both[u] = part[t * PARTS][2 * u + r];
                    if (PARTS == 2) both[u] += part[t * PARTS + 1][2 * u + r];
                }
                *reinterpret_cast<float2*>(sums + (2 * q + r) * row_of(WIDTH) + 16 * t + 2 * g) =
                    make_float2(both[0], both[1]);
            }
    }
};
#endif

// The products of blocks that tell each other what they multiply.
template <typename C, bool BACK, typename Part> struct OverGrid : Part {
    typedef typename Part::A A;
    typedef typename Part::W W;
    typedef SeatOfOne<Part::UNITS, Part::ROWS> Seat;
    static const int SIZE =  // of the sums of a product
        Part::WARPS * Part::ROWS
        * Part::row_of(larger_of(Part::width(0), Part::width(C::PRODUCTS - 1)));
    static const int MEMORY = 2 * SIZE * sizeof(A) + Part::MEMORY;
    const Seat& me;
    A* sums;  // [2][SIZE], in shared memory
    char* numbers;
    long long of_a_row, of_a_turn;  // bytes
    int H;
    unsigned turns;  // how many products were made

    __device__ __forceinline__ OverGrid(
        const Exchanged& all, const Steps& at, const Seat& seat, uint4* memory)
        : Part(memory + 2 * SIZE * sizeof(A) / 16, all.patient), me(seat),
          sums(reinterpret_cast<A*>(memory)), numbers(static_cast<char*>(all.numbers)),
          of_a_row(all.stride * sizeof(typename Part::E)), of_a_turn(at.B * of_a_row),
          H(int(at.H)), turns(0) {}
    __device__ __forceinline__ char* place(int sequence) const
    {
        return numbers + turns * of_a_turn + sequence * of_a_row;
    }
    template <typename Value> __device__ __forceinline__ void load(Value value)
    {
        // The second before the first, as in rows.
        if constexpr (C::PRODUCTS == 2) Part::load(Product<1>(), value);
        Part::load(Product<0>(), value);
    }
    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ void meet() const {}
    template <int COUNT, typename Product, int ALL>
    __device__ __forceinline__ void put(Product, int, int, const A (&v)[1][ALL]) const
    {
        W* const to = reinterpret_cast<W*>(place(me.row));
        const int words = this->template tell_unit<COUNT>(to, me.unit, H, v[0]);
        // Zeros behind the last unit, up to what is looked at together.
        const int AT_ONCE = 16 / sizeof(W);
        if (words) for (int n = words; n % AT_ONCE; ++n) tell(to + n, W(0));
    }
    template <typename Product, int WIDTH>
    __device__ __forceinline__ void multiply(
        Product product, int, long long rows, A (&own)[WIDTH][1])
    {
        const int NUMBERS = BACK ? Part::numbers(C::width(Product::NUMBER)) : 1;
        const int ROW = Part::row_of(WIDTH), OF_WARP = Part::ROWS * ROW;
        A* const all = sums + turns % 2 * SIZE;
        Part::template multiply<WIDTH>(
            product, [&](int slot) { return place(me.first + slot); }, int(rows) - me.first,
            NUMBERS * H, all + threadIdx.x / 32 * OF_WARP);
        ++turns;
        __syncthreads();  // before the sums of all warps
        const A* const mine = all + me.slot % Part::ROWS * ROW + me.own * WIDTH;
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
            own[c][0] = mine[c];
#pragma unroll
            for (int w = 1; w < Part::WARPS; ++w) own[c][0] += mine[w * OF_WARP + c];
        }
    }
};


template <bool TENSOR_CORES> struct Multiplying {
    template <typename C, typename T, bool BACK, int... SIZES>
    using Part = ByNumbers<C, T, BACK, SIZES...>;
};
#ifdef MMA_TYPE
template <> struct Multiplying<true> {
    template <typename C, typename T, bool BACK, int... SIZES>
    using Part = ByTensorCores<C, T, BACK, SIZES...>;
};
#endif

template <
    template <template <typename> class, typename> class Direction,
    template <typename> class Cell, typename T, bool TENSOR_CORES, int UNITS, int ROWS, int THREADS,
    int... PARTS>
__global__ void __launch_bounds__(THREADS, 1) steps_by_grid(
    const Cell<typename Acc<T>::type> cell, const Direction<Cell, T> arrays, const Steps at,
    const Exchanged exchanged)
{
    typedef Cell<typename Acc<T>::type> C;
    const bool BACK = Direction<Cell, T>::BACK;
    typedef typename Multiplying<TENSOR_CORES>::template Part<
        C, T, BACK, UNITS, ROWS, THREADS, PARTS...> Part;
    const SeatOfOne<UNITS, ROWS> me(int(at.H), int(exchanged.first));
    OverGrid<C, BACK, Part> products(
        exchanged, at, me, reinterpret_cast<uint4*>(shared_packs<float>()));
    all_steps(cell, arrays, at, me, products);
}
"""
)

# Warps of a block: each has a slice of the rows of the matrix.
WARPS = 8
# Units of a block, and its sequences. The fewer units, the more blocks have to meet.
UNITS = {"numbers": (16, 8, 4), "tensor cores": (16, 32)}
SEQUENCES = {"numbers": (1, 2, 4, 8, 16), "tensor cores": (8,)}
# The first architecture with these tensor cores, and the bytes of a half format.
_TENSOR_CORES_FROM, _HALF = 80, 2
# 32 numbers of a vector, and 4 KB of shared memory of a warp to load the matrices by.
_CHUNK, _TO_LOAD = 32, 4096


class Room(NamedTuple):
    """How many registers of a thread its part of the matrices may have."""

    all: int  # if they have all of it,
    part: int  # or else beside what is in shared memory


# By dtype. What a thread needs beside them: tests/benchmarks/results/registers.md.
_ROOM = {
    "float16": Room(128, 96),
    "bfloat16": Room(128, 96),
    "float32": Room(128, 96),
    "float64": Room(128, 80),
    "complex64": Room(112, 64),
    "complex128": Room(48, 24),
}
# With more blocks than these a look at one place before all others is worth it.
_MANY_BLOCKS = 64


class Layout(NamedTuple):
    """
    How a kernel is laid out over blocks.

    Attributes
    ----------
    tensor_cores
        Whether they multiply.
    units, sequences
        Of a block.
    blocks
        Of a group, and how many groups: the grid.
    launches
        How many launches take all sequences.
    parts
        Of each matrix: what a thread or a warp has of it.
    shared
        Bytes of shared memory that a launch asks for.
    stride
        Numbers of a vector that blocks exchange.
    """

    tensor_cores: bool
    units: int
    sequences: int
    blocks: tuple[int, int]
    launches: int
    parts: tuple[int, ...]
    shared: int
    stride: int


@cache
def layout_of(
    size: rows.Size, shape: tuple[int, int], dtype: np.dtype[Any], device: tuple[int, int, int]
) -> Layout | None:
    """
    Return a layout for states of `shape` = (B, H), or None where there is none.

    `device` has so many multiprocessors, this architecture, and so many bytes of shared memory for
    a block. All blocks of a launch, one a multiprocessor, run at once. A layout has as many units a
    block as fit into registers, and then as few sequences a block and launches as there may be.
    """
    (B, H), (processors, architecture, available) = shape, device
    tensor_cores = dtype.itemsize == _HALF and architecture >= _TENSOR_CORES_FROM
    how = "tensor cores" if tensor_cores else "numbers"
    found: list[tuple[Any, ...]] = []
    for units, sequences in product(UNITS[how], SEQUENCES[how]):
        blocks = -(-H // units)
        if blocks > processors or units * sequences > 32 * WARPS:
            continue
        if tensor_cores:
            fit = _by_tensor_cores(size, H, units, sequences, _ROOM[dtype.name].all)
        else:
            fit = _by_numbers(size, H, units, sequences, dtype)
        if fit is None or fit.shared > available:
            continue
        groups = -(-B // sequences)
        launches = -(-groups // (processors // blocks))
        layout = Layout(
            *(tensor_cores, units, sequences, (blocks, -(-groups // launches)), launches),
            *(fit.parts, fit.shared, fit.stride),
        )
        # The sums by numbers depend on the units of a block: these do not depend on B.
        preferred = 0 if tensor_cores else UNITS[how].index(units)
        found.append((fit.beside, preferred, launches, len(found), layout))
    return min(found)[-1] if found else None


class _Fit(NamedTuple):
    parts: tuple[int, ...]
    shared: int
    stride: int
    beside: int  # bytes of the matrices in shared memory


def _by_tensor_cores(
    size: rows.Size, H: int, units: int, sequences: int, registers: int
) -> _Fit | None:
    """Return how the matrices fit into the registers, as fragments."""
    numbers = [H * (n + (n == 3)) for n in size.vectors]
    chunks = tuple(-(-n // (_CHUNK * WARPS)) for n in numbers)
    # A chunk of sixteen rows is eight registers.
    held = zip(size.columns, chunks, strict=True)
    if sum(units * columns // 16 * n * 8 for columns, n in held) > registers:
        return None
    row = max(size.columns) * units + 4
    shared = 2 * WARPS * sequences * row * 4 + WARPS * _TO_LOAD
    return _Fit(chunks, shared, _up(max(numbers), 8), 0)


def _by_numbers(size: rows.Size, H: int, units: int, sequences: int, dtype: np.dtype[Any]) -> _Fit:
    """Return how the matrices fit, with a part in shared memory where registers are too few."""
    compute, room = compute_dtype(dtype), _ROOM[dtype.name]
    pack, split = 16 // compute.itemsize, 32 // units
    share = [4 if columns == 1 else 2 for columns in size.columns]
    lanes = [split * n for n in share]
    slices = [
        _up(-(-n * H // (WARPS * of_lanes)), pack)
        for n, of_lanes in zip(size.vectors, lanes, strict=True)
    ]
    of_a_row = [a * b * compute.itemsize // 4 for a, b in zip(share, size.columns, strict=True)]
    kept = slices.copy()
    if sum(a * b for a, b in zip(slices, of_a_row, strict=True)) > room.all:
        left = room.part
        for m in sorted(range(len(slices)), key=lambda m: slices[m] * of_a_row[m]):
            kept[m] = min(slices[m], left // of_a_row[m])
            left -= kept[m] * of_a_row[m]
    packs = [
        -(-(a - b) * 4 * registers // 16)
        for a, b, registers in zip(slices, kept, of_a_row, strict=True)
    ]
    beside = 16 * 32 * WARPS * sum(packs)
    # Of a vector, slices that are an odd number of packs apart.
    vector = 16 * max(n * ((a // pack) | 1) for n, a in zip(lanes, slices, strict=True))
    row = max(size.columns) * units * compute.itemsize + 16
    shared = WARPS * sequences * (2 * row + vector) + beside
    parts = tuple(n for pair in zip(slices, kept, strict=True) for n in pair)
    stride = _up(max(size.vectors) * H, pack)
    return _Fit(parts, shared, stride, beside)


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def template_of(kernel: rows.Kernel, layout: Layout) -> str:
    """Return the name of a kernel, with its storage type open."""
    tensor_cores = str(layout.tensor_cores).lower()
    numbers = layout.units, layout.sequences, 32 * WARPS, *layout.parts
    return f"{kernel.name}<{kernel.types}, {{T}}, {tensor_cores}, {', '.join(map(str, numbers))}>"


def told(layout: Layout, products: int, dtype: np.dtype[Any]) -> Any:
    """Return the memory of what blocks tell each other: all ones, on the current stream."""
    import cupy

    itemsize = dtype.itemsize if layout.tensor_cores else compute_dtype(dtype).itemsize
    memory = cupy.empty(products * layout.stride * itemsize, np.uint8)
    memory.data.memset_async(0xFF, memory.nbytes)
    return memory


def exchanged(layout: Layout, memory: Any, number: int) -> np.void:
    """Return ``Exchanged`` of a launch, one of several."""
    first = number * layout.blocks[1] * layout.sequences
    patient = layout.blocks[0] * layout.blocks[1] > _MANY_BLOCKS
    return words(memory, layout.stride, first, int(patient))
