"""
Recurrences that one launch takes through all time steps, with the matrix spread over blocks.

The products are those of ``rows``. Here a warp has a few units of a few
sequences, and a group of blocks, one row of the grid, has all units of these. What a step makes of
them goes through the memory of the device: the blocks of a group wait for each other once for each
product, and for blocks of another group never. Blocks that wait must all be there at once, so the
launch is cooperative, and never larger than what the driver says can run together.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..checks.arrays import compute_dtype
from . import rows

SOURCE = (
    rows.SOURCE
    + r"""
// What the blocks of a group leave for each other. All of it is zero at the start.
template <typename A> struct Exchanged {
    A* numbers;          // [groups, 2, ROWS, stride]
    unsigned* counters;  // [groups, APART]: the first of each, on a cache line of its own
    long long stride;    // numbers of a vector, whole packs
    static const int APART = 32;
};

// What this block wrote is seen by those that see this.
__device__ __forceinline__ void arrive(unsigned* counter)
{
#ifdef CUDA_ON_CPU
    cuda_on_cpu::add_release(counter, 1u);
#else
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" :: "l"(counter), "r"(1u) : "memory");
#endif
}

// How many have arrived; what they wrote before is seen from now on.
__device__ __forceinline__ unsigned arrived(const unsigned* counter)
{
#ifdef CUDA_ON_CPU
    __nanosleep(0);
    return cuda_on_cpu::load_acquire(counter);
#else
    unsigned n;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(counter) : "memory");
    return n;
#endif
}

// How numbers get from the lanes that make them to those that multiply them: by way of memory.
template <typename T, typename M, int ROWS, bool BACK> struct OverGrid {
    typedef typename Acc<T>::type A;
    static const int P = M::First::P, SIZE = ROWS * M::First::LENGTH;
    static const int IN_ALL = SIZE + (M::LAST == 1 ? ROWS * M::Second::LENGTH : 0);
    A* vectors;  // in shared memory: what this block multiplies, product by product
    A* numbers;  // of the group, as the next two
    unsigned* counter;
    int stride, H;
    unsigned target;  // how many have arrived when all have

    __device__ __forceinline__ OverGrid(
        const Exchanged<A>& all, Pack<A>* shared, long long units)
        : vectors(shared[0].v), numbers(all.numbers + blockIdx.y * (2 * ROWS * all.stride)),
          counter(all.counters + blockIdx.y * all.APART), stride(int(all.stride)),
          H(int(units)), target(0) {}
    template <int COUNT, typename Matrix>
    __device__ __forceinline__ void leave(
        const Matrix&, int turn, int slot, int unit, const A* v) const
    {
#pragma unroll
        for (int k = 0; k < COUNT; ++k)
            numbers[(turn * ROWS + slot) * stride + COUNT * unit + k] = rounded<T>(v[k]);
    }
    __device__ __forceinline__ void begin() const { clear(vectors, IN_ALL); }
    // All blocks of the group have put theirs. Counters only rise, and may come round.
    __device__ __forceinline__ void meet()
    {
        target += gridDim.x;
        __syncthreads();  // before the arrival
        if (threadIdx.x == 0) {
            arrive(counter);
            while (int(arrived(counter) - target) < 0) { }
        }
        __syncthreads();  // after the wait
    }
    template <typename Matrix, int WIDTH>
    __device__ __forceinline__ void product(
        const Matrix& matrix, int turn, int lane, A (&sums)[WIDTH][1]) const
    {
        const int p = M::LAST == 1 ? turn : 0, count = H * (BACK ? M::C::width(p) : 1);
        const int packs = (count + P - 1) / P;
        A* const here = vectors + p * SIZE;
        for (int n = threadIdx.x; n < ROWS * packs; n += blockDim.x) {
            const int slot = n / packs, k = n % packs * P;
            *reinterpret_cast<Pack<A>*>(here + slot * Matrix::LENGTH + Matrix::place(k)) =
                *reinterpret_cast<const Pack<A>*>(numbers + (turn * ROWS + slot) * stride + k);
        }
        __syncthreads();  // before the product
        matrix.template product<ROWS>(here, lane, sums);
    }
};

template <
    template <template <typename> class, typename> class Direction,
    template <typename> class Cell, typename T, int SPLIT, int ROWS, int THREADS, int... PARTS>
__global__ void __launch_bounds__(THREADS, 1) steps_by_grid(
    const Cell<typename Acc<T>::type> cell, const Direction<Cell, T> arrays, const Steps at,
    const Exchanged<typename Acc<T>::type> exchanged)
{
    typedef typename Acc<T>::type A;
    const bool BACK = Direction<Cell, T>::BACK;
    const int UNITS = 32 / SPLIT;
    typedef Matrices<Cell, A, BACK, SPLIT, UNITS, THREADS, PARTS...> M;
    typedef OverGrid<T, M, ROWS, BACK> Exchange;
    Pack<A>* const shared = shared_packs<A>();
    const Seat<SPLIT, UNITS, ROWS> me(int(at.H), blockIdx.x * (THREADS / 32), blockIdx.y);
    ByRows<M, Exchange, Seat<SPLIT, UNITS, ROWS>> products(
        Exchange(exchanged, shared, at.H), me, shared + Exchange::IN_ALL / Exchange::P);
    all_steps(cell, arrays, at, me, products);
}
"""
)

# Warps of a block, and the units that a warp may have: the more, the fewer blocks have to meet.
WARPS = 8
UNITS = (4, 2, 1)
# Sequences of a block.
_SEQUENCES = (1, 2, 4, 8)


class Room(NamedTuple):
    """What fits into the registers of a thread."""

    registers: int  # for its part of the matrices, if they hold all of it,
    of_a_part: int  # or else for what is not in shared memory
    sums: int = 8  # a number each: units of a warp times sequences


# As many fewer registers where a warp has several units, which have a place each.
_MORE_UNITS = 16
# By dtype. What a thread needs beside them: tests/benchmarks/results/registers.md.
_ROOM = {
    "float16": Room(112, 96),
    "bfloat16": Room(112, 96),
    "float32": Room(128, 96),
    "float64": Room(128, 80),
    "complex64": Room(112, 64),
    "complex128": Room(48, 24, 2),
}
# Whole cache lines of counters, of four bytes.
_COUNTERS_APART = 32


class Layout(NamedTuple):
    """
    How a kernel is laid out over blocks.

    Attributes
    ----------
    matrices
        Where a block has its part of them.
    sequences
        Of a group of blocks.
    blocks
        Of a group, and how many groups: the grid.
    shared
        Bytes of shared memory that the launch asks for.
    stride
        Numbers of a vector that blocks exchange.
    """

    matrices: rows.Layout
    sequences: int
    blocks: tuple[int, int]
    shared: int
    stride: int


@cache
def layout_of(
    size: rows.Size, shape: tuple[int, int], dtype: np.dtype[Any], most: int, available: int
) -> Layout | None:
    """
    Return a layout for states of `shape` = (B, H), or None where there is none.

    All its blocks, one a multiprocessor, are `most` at the most, and have this much shared memory.
    It is one with all matrices in registers, if any, the fewest sequences, and then the fewest
    blocks, of a group.
    """
    (B, H), room, compute, found = shape, _ROOM[dtype.name], compute_dtype(dtype), []
    pack = 16 // compute.itemsize
    stride = -(-max(size.vectors) * H // pack) * pack
    for sequences, units in product(_SEQUENCES, UNITS):
        if units * sequences > room.sums:
            continue
        of_a_warp = size._replace(units=units), H, compute, 32 // units
        matrices = rows.layout_of(*of_a_warp, threads=32 * WARPS)
        if matrices.registers > room.registers - _MORE_UNITS * (units > 1):
            matrices = rows.layout_of(*of_a_warp, room.of_a_part, 32 * WARPS)
        blocks = -(-H // (units * WARPS)), -(-B // sequences)
        # Of a vector, slices that are an odd number of packs apart.
        vectors = sum(
            32 * 16 * ((rows_of_a_lane // pack) | 1) for rows_of_a_lane in matrices.slices
        )
        shared = sequences * vectors + matrices.shared
        if blocks[0] * blocks[1] <= most and shared <= available:
            found.append(Layout(matrices, sequences, blocks, shared, stride))
    return min(found, key=lambda layout: layout.matrices.shared > 0, default=None)


def exchanged(layout: Layout, compute: np.dtype[Any]) -> tuple[Any, Any, int]:
    """Return the members of ``Exchanged`` for a launch, zeros on the current stream."""
    import cupy

    groups = layout.blocks[1]
    numbers = cupy.zeros((groups, 2, layout.sequences, layout.stride), compute)
    counters = cupy.zeros((groups, _COUNTERS_APART), np.uint32)
    return numbers, counters, layout.stride
