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

from typing import NamedTuple

from . import cell

SOURCE = (
    cell.SOURCE
    + r"""
// Pair neighboring numbers, and what a lane reads of a vector at once.
template <typename V> struct alignas(2 * sizeof(V)) Pair { V v[2]; };
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

// Whose values a lane has: those of two neighboring units, which are rows g and g + 8 of a
// product, and of two neighboring sequences, its columns.
struct Seat {
    int g, q, unit, first, row;  // first: the first sequence of the block
    int units, sequences;        // how many of the lane's two there are
    __device__ __forceinline__ Seat(long long B, int H)
        : g(threadIdx.x % 32 / 4), q(threadIdx.x % 4), unit(threadIdx.x / 32 * 16 + 2 * g),
          first(blockIdx.x * 8), row(first + 2 * q), units(up_to_two(H - unit)),
          sequences(active(B)) {}
    static __device__ __forceinline__ int up_to_two(long long n) { return n > 1 ? 2 : n == 1; }
    // How many of the lane's sequences are among this many.
    __device__ __forceinline__ int active(long long rows) const
    {
        return units ? up_to_two(rows - row) : 0;
    }
};

// Pair neighboring units of a row, where the second one may not exist: at once if PAIRS, for which
// H is even and the array begins at a multiple of two numbers.
template <bool PAIRS, typename V>
__device__ __forceinline__ Pair<V> get(const V* from, const Seat& me)
{
    if (PAIRS) return *reinterpret_cast<const Pair<V>*>(from);
    return {{from[0], me.units > 1 ? from[1] : V(0.f)}};
}

template <typename V>
__device__ __forceinline__ Pair<V> pair_of(float first, float second, bool both)
{
    Pair<V> pair;
    store(&pair.v[0], first);
    store(&pair.v[1], both ? second : 0.f);
    return pair;
}

template <bool PAIRS, typename V>
__device__ __forceinline__ void put(V* to, const Pair<V>& pair, const Seat& me)
{
    if (PAIRS) {
        *reinterpret_cast<Pair<V>*>(to) = pair;
    } else {
        to[0] = pair.v[0];
        if (me.units > 1) to[1] = pair.v[1];
    }
}

// A warp's part of a matrix: pieces of sixteen rows, those of its units, and 32 columns. Which
// columns are a lane's is free, as long as vectors have the same order: here eight neighboring
// ones, so that a lane reads 16 bytes of a vector at once.
template <typename T, int PIECES> struct Matrix {
    static const int COUNT = PIECES;
    static const int AT_ONCE = 4, LENGTH = 64 * AT_ONCE;  // of the memory to load them, by warp
    unsigned a[PIECES][2][4];

    // value(p, u, k): what stands in column k of the row of the warp's unit u, of piece p.
    template <typename Value>
    __device__ __forceinline__ void load(Chunk<T>* memory, const Seat& me, Value value)
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
                    const Chunk<T> x = mine[(16 * (p - first) + 2 * me.g + u) * 4 + me.q];
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

// Once for each of a lane's sequences below `count` and its units: does `something`.
template <typename Something>
__device__ __forceinline__ void each_of(int count, const Seat& me, Something something)
{
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int u = 0; u < 2; ++u)
            if (r < count && u < me.units) something(r, u);
}

// SLICES_2: of the second product of a step, where there is one.
template <
    template <typename> class Cell, typename T, int THREADS, bool PAIRS, int SLICES,
    int SLICES_2 = 0>
__global__ void __launch_bounds__(THREADS, 1) forward_tiles(
    const Cell<float> cell, const Forward<Cell, T> arrays, const Steps at)
{
    typedef Cell<float> C;
    const int LAST = C::PRODUCTS - 1, WARPS = THREADS / 32;
    static_assert(LAST == 0 ? SLICES_2 == 0 : SLICES_2 == SLICES, "both multiply a unit's number");
    typedef Matrix<T, C::width(0) * SLICES> First;
    typedef Matrix<T, C::width(LAST) * larger_of(SLICES_2, 1)> Second;
    typedef Vectors<SLICES, 1> Places;
    const int SIZE = Places::SIZE, H = int(at.H), steps = int(at.steps);
    __shared__ Chunk<T> memory[larger_of(2 * SIZE / 8, WARPS * First::LENGTH)];
    // [2][8][STRIDE]: of a product, and of the next one.
    T* const vectors = reinterpret_cast<T*>(memory);
    const Seat me(at.B, H);

    auto load = [&](auto product, auto& matrix) {
        constexpr int WIDTH = C::width(decltype(product)::NUMBER);
        const Weights<T> w = arrays.w[product.NUMBER];
        matrix.load(memory, me, [&](int p, int u, int k) -> T {
            const int row = p / WIDTH * 32 + k, unit = threadIdx.x / 32 * 16 + u;
            if (row >= H || unit >= H) return T(0.f);
            return w.w[row * w.row + (cell.column(p % WIDTH) * H + unit) * w.column];
        });
    };
    First first;
    load(Product<0>(), first);
    Second second;
    if constexpr (LAST == 1) load(Product<1>(), second);
    typename C::Unit units[2] = {};
#pragma unroll
    for (int u = 0; u < 2; ++u) if (u < me.units) units[u] = cell.unit(me.unit + u, H);
    clear(vectors, 2 * SIZE);
    __syncthreads();
    typename C::State states[2][2] = {};
    each_of(me.sequences, me, [&](int r, int u) {
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            array_of<float>(states[r][u])[k] =
                arrays.states[k][(me.row + r) * (long long)H + me.unit + u];
        store(vectors + Places::written(2 * me.q + r, me.unit) + u, states[r][u].h);
    });
    long long from = at[0], to = at[1];
    int active = me.active(to - from);
    struct Next { Pair<float> z[C::width(0) + (LAST == 1 ? C::width(1) : 0)]; } next[2] = {};
    auto fetch = [&]() {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (r < active)
#pragma unroll
                for (int p = 0; p < C::PRODUCTS; ++p)
#pragma unroll
                    for (int k = 0; k < C::width(p); ++k)
                        next[r].z[p * C::width(0) + k] = get<PAIRS>(
                            arrays.z[p] + (from + me.row + r) * (C::width(p) * H)
                                + cell.column(k) * H + me.unit,
                            me);
    };
    fetch();
    __syncthreads();
    // The block is done when its first sequence, the longest, is.
    for (int s = 0; s < steps && from + me.first < to; ++s) {
        const int now = active;
        const long long n = from + me.row;
        const Next current[2] = {next[0], next[1]};
        if (s + 1 < steps) {  // What comes next is on its way while this step is computed.
            from = to;
            to = at[s + 2];
            active = me.active(to - from);
            fetch();
        }
        typename C::Saved saved[2][2];
        auto behind = [&](auto product, const auto& matrix) {
            constexpr int p = decltype(product)::NUMBER, WIDTH = C::width(p);
            const int turn = LAST == 1 ? p : s & 1;
            float sums[WIDTH][4];
#pragma unroll
            for (int c = 0; c < WIDTH; ++c)
#pragma unroll
                for (int k = 0; k < 4; ++k) sums[c][k] = 0.f;
            const Chunk<T>* const mine = memory + (turn * SIZE + Places::read(me.g, me.q, 0)) / 8;
#pragma unroll
            for (int k = 0; k < SLICES; ++k)
#pragma unroll
                for (int c = 0; c < WIDTH; ++c)
                    matrix.multiply(WIDTH * k + c, mine[4 * k], sums[c], sums[c]);
            T* const after = vectors + (turn ^ 1) * SIZE;
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (r < now) {
                    float made[2];
#pragma unroll
                    for (int u = 0; u < 2; ++u) {
                        float z[WIDTH], of_unit[WIDTH];
#pragma unroll
                        for (int c = 0; c < WIDTH; ++c)
                            z[c] = current[r].z[p * C::width(0) + c].v[u],
                            of_unit[c] = sums[c][2 * u + r];
                        made[u] = cell.forward(
                            product, units[u], z, of_unit, states[r][u], saved[r][u]);
                    }
                    const bool both = PAIRS || me.units > 1;
#pragma unroll
                    for (int k = C::saved_before(p); k < C::saved_before(p + 1); ++k)
                        put<PAIRS>(
                            arrays.saved[k] + (n + r) * H + me.unit,
                            pair_of<T>(array_of<float>(saved[r][0])[k],
                                       array_of<float>(saved[r][1])[k], both),
                            me);
                    *reinterpret_cast<Pair<T>*>(after + Places::written(2 * me.q + r, me.unit)) =
                        pair_of<T>(made[0], made[1], both);
                }
            __syncthreads();
        };
        behind(Product<0>(), first);
        if constexpr (LAST == 1) behind(Product<1>(), second);
    }
    each_of(me.sequences, me, [&](int r, int u) {
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            arrays.states[k][(me.row + r) * (long long)H + me.unit + u] =
                array_of<float>(states[r][u])[k];
    });
}

// The deltas of two units: they lie together, and are written at once.
template <typename T, int WIDTH> struct alignas(WIDTH % 4 ? 4 : 16) Deltas { Pair<T> v[WIDTH]; };

template <
    template <typename> class Cell, typename T, int THREADS, bool PAIRS, int SLICES,
    int SLICES_2 = 0>
__global__ void __launch_bounds__(THREADS, 1) backward_tiles(
    const Cell<float> cell, const Backward<Cell, T> arrays, const Steps at)
{
    typedef Cell<float> C;
    const int LAST = C::PRODUCTS - 1, WARPS = THREADS / 32;
    static_assert(LAST == 0 ? SLICES_2 == 0 : LAST == 1 && SLICES_2 > 0, "slices a product");
    typedef Matrix<T, SLICES> First;
    typedef Matrix<T, larger_of(SLICES_2, 1)> Second;
    typedef Vectors<SLICES, C::width(0)> Places;
    typedef Vectors<SLICES_2, C::width(LAST)> Places2;
    // By turns where there is one product, else of the two.
    const int SIZE = Places::SIZE, IN_ALL = SIZE + (LAST == 1 ? Places2::SIZE : SIZE);
    const int H = int(at.H), steps = int(at.steps);
    __shared__ Chunk<T> memory[larger_of(IN_ALL / 8, WARPS * First::LENGTH)];
    T* const vectors = reinterpret_cast<T*>(memory);  // [8][STRIDE] each
    const Seat me(at.B, H);

    auto load = [&](auto product, auto& matrix) {
        constexpr int WIDTH = C::width(decltype(product)::NUMBER);
        const Weights<T> w = arrays.w[product.NUMBER];
        matrix.load(memory, me, [&](int p, int u, int k) -> T {
            const int unit = threadIdx.x / 32 * 16 + u, n = 32 * p + k, column = n / WIDTH;
            if (column >= H || unit >= H) return T(0.f);
            return w.w[unit * w.row + (cell.column(n % WIDTH) * H + column) * w.column];
        });
    };
    First first;
    load(Product<0>(), first);
    Second second;
    if constexpr (LAST == 1) load(Product<1>(), second);
    typename C::Unit units[2] = {};
#pragma unroll
    for (int u = 0; u < 2; ++u) if (u < me.units) units[u] = cell.unit(me.unit + u, H);
    clear(vectors, IN_ALL);
    typename C::Gradients gradients[2][2] = {};
    each_of(me.sequences, me, [&](int r, int u) {
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            array_of<float>(gradients[r][u])[k] =
                arrays.gradients[k][(me.row + r) * (long long)H + me.unit + u];
    });
    long long to = at[steps], from = at[steps - 1];
    int active = me.active(to - from);
    Pair<T> read[2][C::READ] = {}, given[2][C::GIVEN];
    typename C::Factors factors[2][2];
    auto fetch = [&]() {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (r < active) {
                const long long e = (from + me.row + r) * H + me.unit;
#pragma unroll
                for (int k = 0; k < C::READ; ++k) read[r][k] = get<PAIRS>(arrays.read[k] + e, me);
                // Something is read in any case: a branch for each would take more time.
#pragma unroll
                for (int k = 0; k < C::GIVEN; ++k)
                    given[r][k] = get<PAIRS>(
                        (arrays.given[k] ? arrays.given[k] : arrays.read[0]) + e, me);
            }
    };
    // Of a sequence that is not active too, for nobody: a branch would take registers.
    auto make_factors = [&]() {
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                typename C::Read of_unit;
#pragma unroll
                for (int k = 0; k < C::READ; ++k)
                    array_of<float>(of_unit)[k] = wide(read[r][k].v[u]);
                factors[r][u] = cell.factors(units[u], of_unit);
            }
    };
    fetch();
    make_factors();
    __syncthreads();
    for (int s = steps - 1; s >= 0; --s) {
        const int now = active;
        const bool any = from + me.first < to;  // of the block's sequences
        const long long n = from + me.row;
        float past[2][2];
        // dh: the gradient of what the next product made, without what is given.
        auto before = [&](auto product, auto places, T* vector, auto dh) {
            constexpr int p = decltype(product)::NUMBER, WIDTH = C::width(p);
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (r < now) {
                    float d[2][C::deltas(p)];
#pragma unroll
                    for (int u = 0; u < 2; ++u) {
                        float of_unit[C::GIVEN];
#pragma unroll
                        for (int k = 0; k < C::GIVEN; ++k)
                            of_unit[k] = arrays.given[k] ? wide(given[r][k].v[u]) : 0.f;
                        past[r][u] = cell.backward(
                            product, factors[r][u], dh(r, u) + (p == LAST ? of_unit[0] : 0.f),
                            of_unit, gradients[r][u], d[u]);
                    }
                    const bool both = PAIRS || me.units > 1;
#pragma unroll
                    for (int k = 0; k < C::deltas(p); ++k)
                        put<PAIRS>(
                            arrays.deltas[p] + (n + r) * (C::deltas(p) * H) + cell.column(k) * H
                                + me.unit,
                            pair_of<T>(d[0][k], d[1][k], both), me);
                    Deltas<T, WIDTH> both_units;
#pragma unroll
                    for (int k = 0; k < 2 * WIDTH; ++k)
                        store(&both_units.v[k / 2].v[k % 2],
                              k < WIDTH || me.units > 1 ? d[k / WIDTH][k % WIDTH] : 0.f);
                    *reinterpret_cast<Deltas<T, WIDTH>*>(
                        vector + places.written(2 * me.q + r, me.unit)) = both_units;
                }
        };
        // The sums of a product, in four parts, so that products do not wait for each other.
        auto multiply = [&](const auto& matrix, auto places, const T* vector, float (&sums)[4]) {
            float part[4][4] = {};
            const Chunk<T>* const mine = reinterpret_cast<const Chunk<T>*>(
                vector + places.read(me.g, me.q, 0));
#pragma unroll
            for (int k = 0; k < matrix.COUNT; ++k)
                matrix.multiply(k, mine[4 * k], part[k % 2 * 2], part[k % 2 * 2 + 1]);
#pragma unroll
            for (int k = 0; k < 4; ++k)
                sums[k] = (part[0][k] + part[1][k]) + (part[2][k] + part[3][k]);
        };
        T *const here = vectors + (LAST == 0 ? (s & 1) * SIZE : 0), *const other = here + SIZE;
        auto of_h = [&](int r, int u) { return gradients[r][u].h; };
        if constexpr (LAST == 0) before(Product<0>(), Places(), here, of_h);
        else before(Product<1>(), Places2(), other, of_h);
        if (s > 0) {
            to = from;
            from = at[s - 1];
            active = me.active(to - from);
            fetch();
        }
        if (any) {
            __syncthreads();
            float sums[4];
            if constexpr (LAST == 1) {
                multiply(second, Places2(), other, sums);
                before(Product<0>(), Places(), here, [&](int r, int u) { return sums[2 * u + r]; });
                __syncthreads();
            }
            multiply(first, Places(), here, sums);
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int u = 0; u < 2; ++u)
                    if (r < now) gradients[r][u].h = past[r][u] + sums[2 * u + r];
        }
        // Behind the product, off the way from step to step.
        make_factors();
    }
    each_of(me.sequences, me, [&](int r, int u) {
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            arrays.gradients[k][(me.row + r) * (long long)H + me.unit + u] =
                array_of<float>(gradients[r][u])[k];
    });
}
"""
)

# Units of a warp and of a lane, sequences of a block, and the most units whose matrix fits into
# registers.
UNITS, UNITS_OF_A_LANE, SEQUENCES, MOST_UNITS = 16, 2, 8, 128


class Kernel(NamedTuple):
    """A kernel over all steps: its source, its template, the struct of its cell, its vectors."""

    source: str
    name: str
    struct: str
    vectors: tuple[int, ...]  # how many numbers of a unit each product multiplies


def kernel(of: cell.Cell, direction: str) -> Kernel:
    """Return the kernel of a cell for one direction."""
    vectors = of.widths if direction == "backward" else (1,) * len(of.widths)
    return Kernel(SOURCE + of.source, f"{direction}_tiles", of.struct, vectors)


def threads_of(H: int) -> int:
    """Return the threads of a block."""
    return -(-H // UNITS) * 32


def slices_of(vectors: int, H: int) -> int:
    """Return how many times 32 numbers a vector has, of so many of each unit."""
    # A lane writes two units at a time, the last one too where H is odd.
    return -(-vectors * (H + H % UNITS_OF_A_LANE) // 32)


def template_of(kernel: Kernel, H: int, pairs: bool) -> str:
    """Return the name of a kernel, with its storage type open; with `pairs` two units at once."""
    slices = ", ".join(str(slices_of(n, H)) for n in kernel.vectors)
    return f"{kernel.name}<{kernel.struct}, {{T}}, {threads_of(H)}, {str(pairs).lower()}, {slices}>"
