"""What the cells share: a warp's product, its part of a matrix, the two loops over the steps."""

from __future__ import annotations

from typing import NamedTuple

from ..rows.common import STEPS

SOURCE = (
    STEPS
    + r"""
// Two neighbouring numbers, and what a lane reads of a vector at once.
template <typename V> struct alignas(2 * sizeof(V)) Two { V v[2]; };
template <typename T> struct alignas(16) Eight { Two<T> v[4]; };

template <typename T> __device__ __forceinline__ unsigned bits_of(const Two<T>& two)
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

// Whose values a lane has: those of two neighbouring units, which are rows g and g + 8 of a
// product, and of two neighbouring sequences, its columns.
struct Place {
    int g, q, unit, first, row;  // first: the first sequence of the block
    int units, sequences;        // how many of the lane's two there are
    __device__ __forceinline__ Place(long long B, int H)
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

// Two neighbouring units of a row, where the second one may not exist: at once if PAIRS, for which
// H is even and the array begins at a multiple of two numbers.
template <bool PAIRS, typename V>
__device__ __forceinline__ Two<V> get(const V* from, const Place& me)
{
    if (PAIRS) return *reinterpret_cast<const Two<V>*>(from);
    return {{from[0], me.units > 1 ? from[1] : V(0.f)}};
}

template <bool PAIRS, typename V>
__device__ __forceinline__ Two<V> put(V* to, float first, float second, const Place& me)
{
    Two<V> two;
    store(&two.v[0], first);
    store(&two.v[1], PAIRS || me.units > 1 ? second : 0.f);
    if (PAIRS) {
        *reinterpret_cast<Two<V>*>(to) = two;
    } else {
        to[0] = two.v[0];
        if (me.units > 1) to[1] = two.v[1];
    }
    return two;
}

// The states of a lane, from [B, H] and back.
template <typename State>
__device__ __forceinline__ void each_state(float (&v)[2][2], const Place& me, int H, State state)
{
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int u = 0; u < 2; ++u)
            if (r < me.sequences && u < me.units)
                state(v[r][u], (me.row + r) * (long long)H + me.unit + u);
}
__device__ __forceinline__ void read_states(
    float (&v)[2][2], const float* a, const Place& me, int H)
{
    each_state(v, me, H, [=](float& value, long long at) { value = a[at]; });
}
__device__ __forceinline__ void write_states(
    float (&v)[2][2], float* a, const Place& me, int H)
{
    each_state(v, me, H, [=](float& value, long long at) { a[at] = value; });
}

// What belongs to the lane's units, of an array [·, H]: zeros where there is no such unit.
__device__ __forceinline__ void read_units(float (&v)[2], const float* a, const Place& me)
{
#pragma unroll
    for (int u = 0; u < 2; ++u) v[u] = u < me.units ? a[me.unit + u] : 0.f;
}

// A warp's part of a matrix: pieces of sixteen rows, those of its units, and 32 columns. Which
// columns are a lane's is free, as long as vectors have the same order: here eight neighbouring
// ones, so that a lane reads 16 bytes of a vector at once.
template <typename T, int PIECES> struct Matrix {
    static const int AT_ONCE = 4, LENGTH = 64 * AT_ONCE;  // of the memory to load them, by warp
    unsigned a[PIECES][2][4];

    // value(p, u, k): what stands in column k of the row of the warp's unit u, of piece p.
    template <typename Value>
    __device__ __forceinline__ void load(Eight<T>* memory, const Place& me, Value value)
    {
        // By way of shared memory and in a loop: a lane that had the addresses of all its numbers
        // at once would run out of registers.
        Eight<T>* const mine = memory + threadIdx.x / 32 * LENGTH;
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
                    const Eight<T> x = mine[(16 * (p - first) + 2 * me.g + u) * 4 + me.q];
#pragma unroll
                    for (int n = 0; n < 4; ++n) a[p][n / 2][n % 2 * 2 + u] = bits_of(x.v[n]);
                }
            __syncthreads();
        }
    }

    // Adds piece p times 32 numbers of each of eight vectors, of which x are the lane's: half of it
    // to `sums`, half to `more`.
    __device__ __forceinline__ void multiply(
        int p, const Eight<T>& x, float (&sums)[4], float (&more)[4]) const
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

__device__ constexpr int larger_of(int a, int b) { return a > b ? a : b; }

// All steps of a cell, forwards; w has WIDTH columns of each unit. A cell has
//   Next fetch(long long n)                   what is read of row n before its turn comes
//   Two<T> step(int r, Next, sums, long long n)  writes row n of the lane's sequence r, returns h
//   float state[2][2]                         h of sequences and units, not rounded
//   int column(int c)                         where column c begins in w, in units of H
template <typename T, int SLICES, int WIDTH, int WARPS, typename Cell>
__device__ __forceinline__ void forward_tiles(
    Cell& cell, const Place& me,
    const T* w, long long w_row, long long w_column,  // [H, ·], read, and its strides
    float* h,  // [B, H], updated: h before the first step, and after the last
    const Starts& starts, int steps, int H)
{
    typedef Matrix<T, WIDTH * SLICES> Recurrent;
    typedef Vectors<SLICES, 1> States;
    const int SIZE = States::SIZE;
    __shared__ Eight<T> memory[larger_of(2 * SIZE / 8, WARPS * Recurrent::LENGTH)];
    // [2][8][STRIDE]: h of the step before, and of this one.
    T* const vectors = reinterpret_cast<T*>(memory);

    Recurrent matrix;
    matrix.load(memory, me, [&](int p, int u, int k) -> T {
        const int row = p / WIDTH * 32 + k, unit = threadIdx.x / 32 * 16 + u;
        if (row >= H || unit >= H) return T(0.f);
        return w[row * w_row + (cell.column(p % WIDTH) * H + unit) * w_column];
    });
    clear(vectors, 2 * SIZE);
    __syncthreads();
    read_states(cell.state, h, me, H);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int u = 0; u < 2; ++u)
            if (r < me.sequences && u < me.units)
                store(vectors + States::written(2 * me.q + r, me.unit) + u, cell.state[r][u]);
    long long from = starts[0], to = starts[1];
    int active = me.active(to - from);
    typename Cell::Next next[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) if (r < active) next[r] = cell.fetch(from + me.row + r);
    __syncthreads();
    // The block is done when its first sequence, the longest, is.
    for (int s = 0; s < steps && from + me.first < to; ++s) {
        const int now = active;
        const long long n = from + me.row;
        const typename Cell::Next current[2] = {next[0], next[1]};
        if (s + 1 < steps) {  // What comes next is on its way while this step is computed.
            from = to;
            to = starts[s + 2];
            active = me.active(to - from);
#pragma unroll
            for (int r = 0; r < 2; ++r) if (r < active) next[r] = cell.fetch(from + me.row + r);
        }
        float sums[WIDTH][4];
#pragma unroll
        for (int c = 0; c < WIDTH; ++c)
#pragma unroll
            for (int k = 0; k < 4; ++k) sums[c][k] = 0.f;
        const Eight<T>* const mine = memory + ((s & 1) * SIZE + States::read(me.g, me.q, 0)) / 8;
#pragma unroll
        for (int k = 0; k < SLICES; ++k)
#pragma unroll
            for (int c = 0; c < WIDTH; ++c)
                matrix.multiply(WIDTH * k + c, mine[4 * k], sums[c], sums[c]);
        T* const after = vectors + ((s + 1) & 1) * SIZE + States::written(2 * me.q, me.unit);
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (r < now) {
                float of_units[2][WIDTH];
#pragma unroll
                for (int c = 0; c < WIDTH; ++c)
                    of_units[0][c] = sums[c][r], of_units[1][c] = sums[c][2 + r];
                const Two<T> h_ = cell.step(r, current[r], of_units, n + r);
                *reinterpret_cast<Two<T>*>(after + r * States::STRIDE) = h_;
            }
        __syncthreads();
    }
    write_states(cell.state, h, me, H);
}

// All steps of a cell, backwards. Vectors have the WIDTH deltas of a unit together. A cell has
//   void fetch(int r, long long n)   reads what of row n of sequence r does not depend on gradients
//   void factors(int r)              what is made of it
//   void deltas(int r, dh, d, past, long long n)  writes row n, d[2][WIDTH] of the units, and in
//                                    past[2] the part of dh past the product
//   int column(int c)                as above
template <typename T, int SLICES, int WIDTH, int WARPS, typename Cell>
__device__ __forceinline__ void backward_tiles(
    Cell& cell, const Place& me,
    const T* w, long long w_row, long long w_column,  // [H, ·], read, and its strides
    float* dh,  // [B, H], updated: the gradient of h after the last step
    const Starts& starts, int steps, int H)
{
    typedef Matrix<T, SLICES> Recurrent;
    // The deltas of two units: they lie together, and are written at once.
    struct alignas(WIDTH % 4 ? 4 : 16) Deltas { Two<T> v[WIDTH]; };
    typedef Vectors<SLICES, WIDTH> Places;
    const int SIZE = Places::SIZE;
    __shared__ Eight<T> memory[larger_of(2 * SIZE / 8, WARPS * Recurrent::LENGTH)];
    T* const vectors = reinterpret_cast<T*>(memory);  // [2][8][STRIDE], by turns

    Recurrent matrix;
    matrix.load(memory, me, [&](int p, int u, int k) -> T {
        const int unit = threadIdx.x / 32 * 16 + u, n = 32 * p + k, column = n / WIDTH;
        if (column >= H || unit >= H) return T(0.f);
        return w[unit * w_row + (cell.column(n % WIDTH) * H + column) * w_column];
    });
    clear(vectors, 2 * SIZE);
    float grad[2][2] = {};
    read_states(grad, dh, me, H);
    long long to = starts[steps], from = starts[steps - 1];
    int active = me.active(to - from);
#pragma unroll
    for (int r = 0; r < 2; ++r)
        if (r < active) {
            cell.fetch(r, from + me.row + r);
            cell.factors(r);
        }
    __syncthreads();
    for (int s = steps - 1; s >= 0; --s) {
        const int now = active;
        const bool any = from + me.first < to;  // of the block's sequences
        float past[2][2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (r < now) {
                float d[2][WIDTH];
                cell.deltas(r, grad[r], d, past[r], from + me.row + r);
                Deltas both;
#pragma unroll
                for (int k = 0; k < 2 * WIDTH; ++k)
                    store(&both.v[k / 2].v[k % 2],
                          k < WIDTH || me.units > 1 ? d[k / WIDTH][k % WIDTH] : 0.f);
                T* const here = vectors + (s & 1) * SIZE;
                *reinterpret_cast<Deltas*>(here + Places::written(2 * me.q + r, me.unit)) = both;
            }
        if (s > 0) {
            to = from;
            from = starts[s - 1];
            active = me.active(to - from);
#pragma unroll
            for (int r = 0; r < 2; ++r) if (r < active) cell.fetch(r, from + me.row + r);
        }
        if (any) {
            __syncthreads();
            // Four sums of each, so that products do not wait for each other.
            float part[4][4];
#pragma unroll
            for (int k = 0; k < 16; ++k) part[k / 4][k % 4] = 0.f;
            const Eight<T>* const mine =
                memory + ((s & 1) * SIZE + Places::read(me.g, me.q, 0)) / 8;
#pragma unroll
            for (int k = 0; k < SLICES; ++k)
                matrix.multiply(k, mine[4 * k], part[k % 2 * 2], part[k % 2 * 2 + 1]);
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    const int k = 2 * u + r;
                    if (r < now)
                        grad[r][u] = past[r][u]
                            + ((part[0][k] + part[1][k]) + (part[2][k] + part[3][k]));
                }
        }
        // Behind the product, off the way from step to step.
#pragma unroll
        for (int r = 0; r < 2; ++r) if (r < active) cell.factors(r);
    }
    write_states(grad, dh, me, H);
}
"""
)

# Units of a warp and of a lane, sequences of a block, and the most units whose matrix fits into
# registers.
UNITS, UNITS_OF_A_LANE, SEQUENCES, MOST_UNITS = 16, 2, 8, 128


class Kernel(NamedTuple):
    """A kernel over all steps: the source of its cell, its template, its vectors."""

    source: str
    name: str
    vectors: int  # how many numbers of a unit stand in a vector that is multiplied


def threads_of(H: int) -> int:
    """Return the threads of a block."""
    return -(-H // UNITS) * 32


def template_of(kernel: Kernel, H: int, pairs: bool) -> str:
    """Return the name of a kernel, with its storage type open; with `pairs` two units at once."""
    # A lane writes two units at a time, the last one too where H is odd.
    slices = -(-kernel.vectors * (H + H % UNITS_OF_A_LANE) // 32)
    return f"{kernel.name}<{{T}}, {slices}, {threads_of(H)}, {str(pairs).lower()}>"
