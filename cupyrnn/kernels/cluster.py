"""
Recurrences in one launch, with the matrix spread over the blocks of a cluster.

The blocks compute like those of ``grid``, but exchange numbers through their shared memory: a block
stores into the memory of others, and a barrier there counts the bytes that have arrived. If a unit
has several columns, h goes to all blocks. If it has one, as in all gradients, a block multiplies
the numbers of its own units, and sends a sum for each other unit to the unit's owner. All blocks of
a cluster run at once, and clusters are independent, so the launch is an ordinary one with any
number of clusters. Clusters need sm_90 or later.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from ..checks.arrays import compute_dtype
from . import grid, rows

# An exchange in a cluster. A place is used again two products later: the sender of its next number
# has received a number that this block sent after reading the place. A barrier counts the bytes
# that arrive for each slice and turn. Its phase ends when the reader has announced their number and
# all have arrived.
SOURCE = (
    grid.SOURCE
    + r"""
typedef unsigned long long Barrier;

#ifndef CUDA_ON_CPU
__device__ __forceinline__ void sync_cluster(int)
{
    asm volatile("barrier.cluster.arrive;" ::: "memory");
    asm volatile("barrier.cluster.wait;" ::: "memory");
}
__device__ __forceinline__ void begin_barrier(Barrier* barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(in_shared(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void expect(Barrier* barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(in_shared(barrier)), "r"(bytes) : "memory");
}
// Waits for at most a microsecond.
__device__ __forceinline__ bool has_come(Barrier* barrier, unsigned parity)
{
    unsigned come;
    asm volatile("{ .reg .pred %%come; "
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %%come, [%1], %2, %3; "
                 "selp.u32 %0, 1, 0, %%come; }"
                 : "=r"(come) : "r"(in_shared(barrier)), "r"(parity), "r"(1000) : "memory");
    return come;
}
__device__ __forceinline__ unsigned at_block(void* here, int block)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(in_shared(here)), "r"(block));
    return there;
}
// Stores a value in the shared memory of another block, at the same place as here.
#define STORE_ASYNC "st.async.shared::cluster.mbarrier::complete_tx::bytes"
template <typename V>
__device__ __forceinline__ void store_async(V* to, V v, Barrier* barrier, int block, int)
{
    const unsigned there = at_block(to, block), counter = at_block(barrier, block);
    if constexpr (sizeof(V) == 4)
        asm volatile(STORE_ASYNC ".b32 [%0], %1, [%2];"
                     :: "r"(there), "r"(*array_of<unsigned>(v)), "r"(counter) : "memory");
    else {
        const unsigned long long* const n = array_of<unsigned long long>(v);
        if constexpr (sizeof(V) == 8)
            asm volatile(STORE_ASYNC ".b64 [%0], %1, [%2];"
                         :: "r"(there), "l"(n[0]), "r"(counter) : "memory");
        else
            asm volatile(STORE_ASYNC ".v2.b64 [%0], {%1, %2}, [%3];"
                         :: "r"(there), "l"(n[0]), "l"(n[1]), "r"(counter) : "memory");
    }
}
#endif

// Waits until so many bytes have come in the phase of this parity. One thread is the first.
__device__ __forceinline__ void wait_for_bytes(
    Barrier* barrier, unsigned parity, int bytes, bool first, unsigned* over)
{
    if (is_over(over)) return;
    if (first) expect(barrier, bytes);
    unsigned looks = 0;
    while (!has_come(barrier, parity) && !gives_up(looks, over)) {}
}

template <int CLUSTER, int WARPS, bool OF_SUMS> struct InCluster {
    static const bool SHARED = true, SUMS = OF_SUMS;
    static const int BLOCKS = CLUSTER, MEMORY = 2 * WARPS * 8;
    static_assert(WARPS % CLUSTER == 0, "a warp for the sums of each block");
    Barrier* barriers;  // [2][WARPS]
    int blocks;         // that have units
    unsigned* over;
    unsigned turns = 0;
    __device__ __forceinline__ InCluster(void* memory, int with_units, unsigned* in_a_trial)
        : barriers(static_cast<Barrier*>(memory)), blocks(with_units), over(in_a_trial) {}
    __device__ __forceinline__ void begin() const
    {
        if (threadIdx.x < 2 * WARPS) begin_barrier(barriers + threadIdx.x);
        sync_cluster(CLUSTER);
    }
    __device__ __forceinline__ Barrier* barrier(int slice) const
    {
        return barriers + turns % 2 * WARPS + slice;
    }
    template <typename W>
    __device__ __forceinline__ void send(
        W* to, W word, int slice, int first = 0, int step = 1) const
    {
        auto send_from = [&](int block) {
#pragma unroll
            for (int n = 0; n < CLUSTER / 2; ++n, block += 2)
                if (block < blocks) store_async(to, word, barrier(slice), block, CLUSTER);
        };
        if (SUMS) *to = word;
        else send_from(first);
        if (!SUMS && step == 1) send_from(1 - first);
    }
    template <typename V> __device__ __forceinline__ void store_sum(V* to, V v) const
    {
        if (SUMS) store_async(to, v, barrier(0), threadIdx.x / 32 % CLUSTER, CLUSTER);
        else *to = v;
    }
    __device__ __forceinline__ void wait(int slice, int bytes, bool first) const
    {
        wait_for_bytes(barrier(slice), turns / 2 % 2, bytes, first, over);
    }
};

#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 900
template <
    template <template <typename> class, typename> class Direction,
    template <typename> class Cell, typename T, bool PADDED, bool TENSOR_CORES, int CLUSTER,
    int UNITS, int ROWS, int THREADS, int... PARTS>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) steps_by_cluster(
    const Cell<typename Acc<T>::type> cell, const Direction<Cell, T> arrays, const Steps at,
    const Exchanged exchanged)
{
    typedef Cell<typename Acc<T>::type> C;
    const int WIDTH = larger_of(C::width(0), C::width(C::PRODUCTS - 1));
    const bool SUMS = Direction<Cell, T>::BACK || WIDTH == 1;
    typedef InCluster<CLUSTER, THREADS / 32, SUMS> Exchange;
    typedef ProductsOf<
        Exchange, Direction<Cell, T>, T, TENSOR_CORES, UNITS, ROWS, THREADS, PARTS...> Products;
    // No block sends numbers to a block without a unit.
    if (blockIdx.x * UNITS < at.H)
        steps_over_blocks<Products, PADDED>(cell, arrays, at, exchanged);
    else sync_cluster(CLUSTER);
    // After a wait in vain, another block may still send numbers to this one.
    if (exchanged.over) sync_cluster(CLUSTER);
}
#endif
"""
)

# Blocks of a cluster, the units of a block, and its sequences.
BLOCKS, UNITS = (2, 4, 8), (16, 32)
SEQUENCES = {"numbers": (1, 2, 3, 4, 8), "tensor cores": (8,)}
FROM = 90  # the first architecture that has clusters
_MOST_CLUSTERS = 65535  # of a launch
_LINE = 128  # the bytes of one row of shared memory's banks


def at_once(blocks: int, processors: int) -> int:
    """Return the number of clusters that run at once, with one block on each multiprocessor."""
    # As measured on an H200, whose parts have 16 or 18 multiprocessors: pairs are on all of them.
    return (processors if blocks == 2 else processors * 10 // 11) // blocks


def layout_of(
    size: rows.Size, shape: tuple[int, int], dtype: np.dtype[Any], device: tuple[int, int, int]
) -> grid.GridLayout | str:
    """Return a layout, from the arguments of ``grid.layout_of``, or why there is none."""
    (B, H), (processors, architecture, available) = shape, device
    if architecture < FROM:
        return f"cluster needs sm_{FROM} or later, and the GPU is sm_{architecture}"
    if BLOCKS[-1] * UNITS[-1] < H:
        return f"cluster takes H up to {BLOCKS[-1] * UNITS[-1]}, and H is {H}"
    halves = dtype.itemsize == 2
    itemsize = dtype.itemsize if halves else compute_dtype(dtype).itemsize
    numbers = grid.numbers_of(size, tensor_cores=halves)
    sums = max(size.columns) == 1
    why = f"the registers of {BLOCKS[-1]} blocks do not hold the matrix for H = {H}"
    for blocks, units in product(BLOCKS, UNITS):
        if blocks * units < H:
            continue
        slices = grid.WARPS // blocks if sums else grid.WARPS
        vectors = tuple((n * (units if sums else H), slices) for n in numbers)
        layout = None
        for sequences in SEQUENCES["tensor cores" if halves else "numbers"]:
            if sequences * units > 32 * grid.WARPS or (sequences == 3 and units < 32):
                continue
            fit = grid.fit_of(size.columns, vectors, (units, sequences), dtype, tensor_cores=halves)
            if fit is None:
                continue
            stride = slices * fit.vector
            if halves:  # so that vectors that are read together use no bank twice
                stride = rows.up(stride, _LINE) + _LINE // 2
            shared = fit.shared + 2 * sequences * stride + 16 * grid.WARPS
            if shared > available:
                why = f"cluster needs {shared} bytes of shared memory, and there are {available}"
                break
            clusters = -(-B // sequences)
            layout = grid.GridLayout(
                *(halves, units, sequences, (blocks, clusters), 1),
                *(fit.parts, shared, stride // itemsize, blocks),
            )
            # The fewest sequences with which all clusters run at once.
            if clusters <= at_once(blocks, processors):
                break
        if layout is not None:
            most = _MOST_CLUSTERS * layout.sequences
            return layout if most >= B else f"cluster takes B up to {most}, and B is {B}"
    return why
