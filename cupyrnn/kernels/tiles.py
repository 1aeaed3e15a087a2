"""
Recurrences in one launch, by tensor cores: a block has eight sequences in a half format.

As in ``rows``, no block waits for another one and the recurrent matrices stay in registers. Here
the products are those of ``mma.sync`` with 16 rows, 16 columns and eight sequences, which devices
from sm_80 on have. Sums and states are in float32.

A warp has sixteen units: forwards their columns of each gate, backwards their rows, over the deltas
of all gates. So a lane is left with whole sums of two units and two sequences, no warp needs what
another one has added up, and a step costs one barrier for each product.
"""

from __future__ import annotations

from . import all_steps, rows

# The product of a warp, and its part of a matrix.
FRAGMENTS = r"""
// Two neighboring numbers, and what a lane reads of a vector at once.
template <typename V> using Pair = Numbers<V, 2>;
template <typename T> struct alignas(16) Chunk { Pair<T> v[4]; };

template <typename T> __device__ __forceinline__ unsigned bits_of(const Pair<T>& two)
{
    return *reinterpret_cast<const unsigned*>(&two);
}

// d[16, 8] += a[16, 16] @ b[16, 8], by all lanes of a warp. With g = lane / 4 and q = lane % 4 a
// lane has, two numbers to a register,
//   a: rows g, g + 8, g, g + 8; columns 2q, 2q, 2q + 8, 2q + 8 and the next
//   b: rows 2q, 2q + 8 and the next; column g
//   d: rows g, g, g + 8, g + 8; columns 2q, 2q + 1, 2q, 2q + 1
#ifndef CUDA_ON_CPU
template <typename T>
__device__ __forceinline__ void mma(
    float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile(  // volatile, so that it stays where all lanes are
        "mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// A warp's part of a matrix: pieces of sixteen rows, those of its units, and 32 columns. Which
// columns are a lane's is free, as long as vectors have the same order: here eight neighboring
// ones, so that a lane reads 16 bytes of a vector at once.
template <typename T, int PIECES> struct Fragments {
    static const int COUNT = PIECES;
    static const int AT_ONCE = 4, LENGTH = 64 * AT_ONCE;  // of the memory to load them, by warp
    unsigned a[PIECES][2][4];

    // value(p, u, k): what stands in column k of the row of the warp's unit u, of piece p.
    template <typename Value>
    __device__ __forceinline__ void load(Chunk<T>* memory, int g, int q, Value value)
    {
        // By way of shared memory and in a loop: a lane that had the addresses of all its numbers
        // at once would run out of registers.
        Chunk<T>* const mine = memory + threadIdx.x / 32 * LENGTH;
        T* const numbers = reinterpret_cast<T*>(mine);
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int first = 0; first < PIECES; first += AT_ONCE) {
#pragma unroll 1
            for (int p = first; p < PIECES && p < first + AT_ONCE; ++p)
#pragma unroll
                for (int n = 0; n < 16; ++n) {
                    const int u = lane % 16, k = 2 * n + lane / 16;
                    numbers[(16 * (p - first) + u) * 32 + k] = value(p, u, k);
                }
            __syncthreads();
#pragma unroll
            for (int p = first; p < PIECES && p < first + AT_ONCE; ++p)
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    const Chunk<T> x = mine[(16 * (p - first) + 2 * g + u) * 4 + q];
#pragma unroll
                    for (int n = 0; n < 4; ++n) a[p][n / 2][n % 2 * 2 + u] = bits_of(x.v[n]);
                }
            __syncthreads();
        }
    }

    // Adds piece p times 32 numbers of each of eight vectors, of which x are the lane's: half of it
    // to `sums`, half to `more`.
    __device__ __forceinline__ void multiply(
        int p, const Chunk<T>& x, float (&sums)[4], float (&more)[4]) const
    {
        mma<T>(sums, a[p][0], bits_of(x.v[0]), bits_of(x.v[1]));
        mma<T>(more, a[p][1], bits_of(x.v[2]), bits_of(x.v[3]));
    }
};
"""

SOURCE = (
    all_steps.SOURCE
    + FRAGMENTS
    + r"""
// Whose values a lane has: those of two neighboring units, which are rows g and g + 8 of a
// product, and of two neighboring sequences, its columns. Both units are read and written at once
// if PAIRS, for which H is even and arrays begin at a multiple of two numbers.
template <bool PAIRS> struct Seat {
    static const int OWN_ROWS = 2, OWN_UNITS = 2;
    static const bool BRANCHES = false;
    int g, q, unit, first, row;  // first: the first sequence of the block
    int units;                   // how many of the lane's two there are
    __device__ __forceinline__ Seat(int H)
        : g(threadIdx.x % 32 / 4), q(threadIdx.x % 4), unit(threadIdx.x / 32 * 16 + 2 * g),
          first(blockIdx.x * 8), row(first + 2 * q), units(up_to_two(H - unit)) {}
    static __device__ __forceinline__ int up_to_two(long long n) { return n > 1 ? 2 : n == 1; }
    __device__ __forceinline__ int active(long long from, long long to) const
    {
        return units ? up_to_two(to - from - row) : 0;
    }
    template <typename V> __device__ __forceinline__ Pair<V> get(const V* from) const
    {
        if (PAIRS) return *reinterpret_cast<const Pair<V>*>(from);
        return {{from[0], units > 1 ? from[1] : V(0.f)}};
    }
    template <typename V>
    __device__ __forceinline__ void put(V* to, const Pair<float>& v) const
    {
        Pair<V> pair;
        store(&pair.v[0], v.v[0]);
        store(&pair.v[1], v.v[1]);
        if (PAIRS) {
            *reinterpret_cast<Pair<V>*>(to) = pair;
        } else {
            to[0] = pair.v[0];
            if (units > 1) to[1] = pair.v[1];
        }
    }
};

// Vectors of WIDTH numbers a unit, in shared memory. They are an odd number of 64 bytes apart, so
// that the eight lanes that read together, of two of them, meet no bank twice.
template <int SLICES, int WIDTH> struct Vectors {
    static const int STRIDE = 32 * (SLICES | 1), SIZE = 8 * STRIDE;
    // Where a lane writes the numbers of two units, the second of which may not exist,
    static __device__ __forceinline__ int written(int sequence, int unit)
    {
        return sequence * STRIDE + WIDTH * unit;
    }
    // and where it reads eight numbers.
    static __device__ __forceinline__ int read(int g, int q, int slice)
    {
        return g * STRIDE + 8 * (q + 4 * slice);
    }
};

// The numbers of two units of a vector: they lie together, and are written at once.
template <typename T, int WIDTH> struct alignas(WIDTH % 4 ? 4 : 16) Both { Pair<T> v[WIDTH]; };

// The products of a warp's part of the matrices. SLICES_2: of the second one, where there is one.
template <typename C, typename T, bool BACK, int THREADS, bool PAIRS, int SLICES, int SLICES_2 = 0>
struct ByTiles {
    static const int LAST = C::PRODUCTS - 1;
    static_assert(
        LAST == 0 ? SLICES_2 == 0 : BACK ? SLICES_2 > 0 : SLICES_2 == SLICES, "slices a product");
    typedef Fragments<T, (BACK ? 1 : C::width(0)) * SLICES> First;
    typedef Fragments<T, (BACK ? 1 : C::width(LAST)) * larger_of(SLICES_2, 1)> Second;
    typedef Vectors<SLICES, BACK ? C::width(0) : 1> Places;
    typedef Vectors<SLICES_2, BACK ? C::width(LAST) : 1> Places2;
    // Of two vectors [8][STRIDE]: by turns where there is one product, else of the two.
    static const int SIZE = Places::SIZE, IN_ALL = SIZE + (LAST == 1 ? Places2::SIZE : SIZE);
    static const int LENGTH = larger_of(IN_ALL / 8, THREADS / 32 * First::LENGTH);
    typedef T N;
    Chunk<T>* memory;  // [LENGTH], shared
    const Seat<PAIRS>& me;
    First first;
    Second second;

    __device__ __forceinline__ ByTiles(Chunk<T>* chunks, const Seat<PAIRS>& seat)
        : memory(chunks), me(seat) {}
    static __device__ __forceinline__ T held(T v) { return v; }
    __device__ __forceinline__ T* vector(int turn) const
    {
        return reinterpret_cast<T*>(memory) + turn * SIZE;
    }
    template <typename Value> __device__ __forceinline__ void load(Value value)
    {
        auto part = [&](auto product, auto& matrix) {
            constexpr int WIDTH = BACK ? 1 : C::width(decltype(product)::NUMBER);
            matrix.load(memory, me.g, me.q, [&](int p, int u, int k) -> T {
                const int unit = threadIdx.x / 32 * 16 + u;
                return value(product, p / WIDTH * 32 + k, unit, p % WIDTH);
            });
        };
        part(Product<0>(), first);
        if constexpr (LAST == 1) part(Product<1>(), second);
    }
    __device__ __forceinline__ void begin() { clear(vector(0), IN_ALL); }
    __device__ __forceinline__ void meet() { __syncthreads(); }
    template <int COUNT, int P, int ALL>
    __device__ __forceinline__ void put(Product<P>, int turn, int r, const float (&v)[2][ALL]) const
    {
        const bool both = PAIRS || me.units > 1;
        Both<T, COUNT> all;
#pragma unroll
        for (int k = 0; k < 2 * COUNT; ++k)
            store(&all.v[k / 2].v[k % 2], k < COUNT || both ? v[k / COUNT][k % COUNT] : 0.f);
        const int sequence = 2 * me.q + r;
        const int place = P == 0 ? Places::written(sequence, me.unit)
                                 : Places2::written(sequence, me.unit);
        *reinterpret_cast<Both<T, COUNT>*>(vector(turn) + place) = all;
    }
    template <int P, int WIDTH>
    __device__ __forceinline__ void multiply(
        Product<P>, int turn, long long, float (&sums)[WIDTH][4]) const
    {
        if constexpr (P == 0) multiply_by(first, Places::read(me.g, me.q, 0), turn, sums);
        else multiply_by(second, Places2::read(me.g, me.q, 0), turn, sums);
    }
    template <typename Matrix, int WIDTH>
    __device__ __forceinline__ void multiply_by(
        const Matrix& matrix, int place, int turn, float (&sums)[WIDTH][4]) const
    {
        // A sum in four parts if it is the only one, so that products do not wait for each other.
        const int PARTS = BACK ? 4 : 1;
        float part[WIDTH * PARTS][4] = {};
        const Chunk<T>* const mine = memory + (turn * SIZE + place) / 8;
#pragma unroll
        for (int k = 0; k < matrix.COUNT; ++k) {
            const int sum = BACK ? k % 2 * 2 : k % WIDTH;
            matrix.multiply(k, mine[4 * (k / WIDTH)], part[sum], part[sum + PARTS / 4]);
        }
#pragma unroll
        for (int c = 0; c < WIDTH; ++c)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if constexpr (BACK)
                    sums[c][k] = (part[0][k] + part[1][k]) + (part[2][k] + part[3][k]);
                else sums[c][k] = part[c][k];
    }
};

template <
    template <template <typename> class, typename> class Direction,
    template <typename> class Cell, typename T, int THREADS, bool PAIRS, int... SLICES>
__global__ void __launch_bounds__(THREADS, 1) steps_by_tiles(
    const Cell<float> cell, const Direction<Cell, T> arrays, const Steps at)
{
    const bool BACK = Direction<Cell, T>::BACK;
    typedef ByTiles<Cell<float>, T, BACK, THREADS, PAIRS, SLICES...> Products;
    __shared__ Chunk<T> memory[Products::LENGTH];
    const Seat<PAIRS> me(int(at.H));
    Products products(memory, me);
    all_steps(cell, arrays, at, me, products);
}
"""
)

# Units of a warp and of a lane, sequences of a block, and the most units whose matrix fits into
# registers.
UNITS, UNITS_OF_A_LANE, SEQUENCES, MOST_UNITS = 16, 2, 8, 128


def threads_of(H: int) -> int:
    """Return the threads of a block."""
    return -(-H // UNITS) * 32


def slices_of(vectors: int, H: int) -> int:
    """Return how many times 32 numbers a vector has, of so many of each unit."""
    # A lane writes two units at a time, the last one too where H is odd.
    return -(-vectors * (H + H % UNITS_OF_A_LANE) // 32)


def template_of(kernel: rows.Kernel, H: int, pairs: bool) -> str:
    """Return the name of a kernel, with its storage type open; with `pairs` two units at once."""
    slices = ", ".join(str(slices_of(n, H)) for n in kernel.size.vectors)
    return f"{kernel.name}<{kernel.types}, {{T}}, {threads_of(H)}, {str(pairs).lower()}, {slices}>"
