"""
Gradients of half formats in one launch: two groups of sequences by turns, over a grid of clusters.

As in ``grid``, blocks exchange numbers through the memory of the device. But a block reads only a
part of each vector. A cluster has the columns of all units of its blocks, and each block has a part
of the rows. The blocks of a cluster send each other sums. While one group of eight sequences waits
for sums and numbers, the other group computes. Clusters wait for each other, so the launch is
cooperative. Clusters need sm_90 or later.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import cluster, grid, rows

# Product number n of a block belongs to group n % 2, in the group's turn n / 2. A thread has a unit
# of a sequence of one group. In each turn it computes all products up to its own group's, and waits
# for the sums of its unit. Before that wait it loads the numbers of the next product.
#
# The places of sums are used again two turns later. By then they have been read: new sums depend on
# numbers of the turn between, and the block with that place computes these from the old sums.
SOURCE = (
    cluster.SOURCE
    + r"""
#if defined(MMA_TYPE) && (defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 900)
template <typename Over, int CLUSTER> struct ByTurns : Over {
    typedef typename Over::C C;
    static const bool LATE = true;
    static_assert(C::PRODUCTS == 1 && Over::width(0) == 1, "one sum a unit");
    static const int UNITS = Over::UNITS / CLUSTER, CHUNKS = Over::of_slice(Product<0>()) / 32;
    static const int OF_GROUP = Over::ROWS, ROW = Over::row_of(1), OF_WARP = OF_GROUP * ROW;
    static const int SENT = OF_GROUP * UNITS;  // sums, to each block of the cluster
    // Barriers and sums are in the memory through which the matrix was loaded.
    static_assert((4 * CLUSTER * SENT + 8) * 4 <= ByTurns::WARPS * Over::First::LENGTH * 16, "");
    Barrier* barriers;    // [2][2], by group and turn
    float* come;          // [2][2][CLUSTER][OF_GROUP][UNITS]
    int B, steps, group;  // `group`: of the thread
    int count;            // numbers of a vector
    int done = 0;         // products, also of a group without sequences
    int computed = 0;     // products, which use two places for partial sums by turns
    int rows = 0;         // sequences of the block in the step
    Words<unsigned> found[CHUNKS] = {};

    __device__ __forceinline__ ByTurns(
        const Exchanged& all, const Steps& at, const typename Over::Tile& tile, uint4* memory)
        : Over(all, at, tile, memory), barriers(reinterpret_cast<Barrier*>(this->memory)),
          come(reinterpret_cast<float*>(barriers + 4)), B(int(at.B)), steps(at.length(tile.first)),
          group(tile.slot / OF_GROUP),
          count(Over::ByTensorCores::numbers(C::width(0)) * this->H)
    {
        this->slice += blockIdx.x % CLUSTER * this->WARPS;
        this->owner = blockIdx.x / CLUSTER;
    }
    __device__ __forceinline__ void begin()
    {
        look_at(0);
        if (threadIdx.x < 4) begin_barrier(barriers + threadIdx.x);
        sync_cluster(CLUSTER);
    }
    __device__ __forceinline__ auto row(int of, int turn) const
    {
        char* const first = this->numbers + turn * this->of_a_turn
            + of * OF_GROUP * this->of_a_row;
        const long long apart = this->of_a_row;
        return [=](int slot) { return first + slot * apart; };
    }
    // Loads the numbers for a product, of all sequences: more may have sent some by then.
    __device__ __forceinline__ void look_at(int number)
    {
        const int of = number % 2, sequences = B - this->me.first - of * OF_GROUP;
        look(found, this->places(::Product<0>(), row(of, number / 2)),
             this->wanted(::Product<0>(), sequences, count));
    }
    // The place for the sums that a block of the cluster sends in a turn of a group.
    __device__ __forceinline__ float* sums_from(int block, int of, int turn) const
    {
        return come + ((2 * of + turn % 2) * CLUSTER + block) * SENT;
    }
    // Computes the next product, for a group with so many sequences.
    template <typename Product>
    __device__ __forceinline__ void multiply_next(Product product, int of, int turn, int rows)
    {
        if (int(threadIdx.x % 32 / 4) >= rows)
#pragma unroll
            for (int n = 0; n < CHUNKS; ++n) found[n] = {};
        wait_for(found, this->places(product, row(of, turn)), this->over);
        float* const all = this->sums + computed++ % 2 * Over::SIZE;
        this->template sums_of<1>(
            this->exchange, product, found, all + threadIdx.x / 32 * OF_WARP);
        __syncthreads();  // before a block's sums are sent
        // Four sums at once.
        const int PACKS = CLUSTER * UNITS / 4;
        if (threadIdx.x < OF_GROUP * PACKS) {
            const int slot = threadIdx.x / PACKS, unit = threadIdx.x % PACKS * 4;
            const float* const mine = all + slot * ROW + unit;
            Pack<float> sum = *reinterpret_cast<const Pack<float>*>(mine);
#pragma unroll
            for (int w = 1; w < this->WARPS; ++w) {
                const Pack<float> one = *reinterpret_cast<const Pack<float>*>(mine + w * OF_WARP);
#pragma unroll
                for (int n = 0; n < 4; ++n) sum.v[n] += one.v[n];
            }
            float* const to = sums_from(blockIdx.x % CLUSTER, of, turn);
            store_async(
                reinterpret_cast<Pack<float>*>(to + slot * UNITS + unit % UNITS), sum,
                barriers + 2 * of + turn % 2, unit / UNITS, CLUSTER);
        }
    }
    template <typename Product, int WIDTH>
    __device__ __forceinline__ void multiply(
        Product product, int, long long all_rows, float (&)[WIDTH])
    {
        const int mine = this->exchange.turns;
        const int previous = rows;
        rows = int(all_rows) - this->me.first;
        // In the last turn each thread computes the rest.
        const int last = 2 * mine + (mine + 1 == steps ? 1 : group);
#pragma unroll 1
        for (; done <= last; ++done) {
            const int of = done % 2, turn = done / 2;
            if (this->me.first + of * OF_GROUP >= B) continue;  // no sequences
            multiply_next(product, of, turn, (turn == mine ? rows : previous) - of * OF_GROUP);
            const int next = this->me.first + OF_GROUP < B ? done + 1 : done + 2;
            look_at(next);
        }
    }
    template <typename Product> __device__ __forceinline__ void finish(Product, float (&own)[1])
    {
        const int mine = this->exchange.turns++;
        own[0] = 0;
        if (this->me.first + group * OF_GROUP < B) {
            wait_for_bytes(
                barriers + 2 * group + mine % 2, mine / 2 % 2, CLUSTER * SENT * 4,
                threadIdx.x % SENT == 0, this->over);
            // A thread that sent no number reads no sum: another block may already replace it.
            if (this->me.units && this->me.slot < rows)
#pragma unroll
                for (int block = 0; block < CLUSTER; ++block)
                    own[0] += sums_from(block, group, mine)[threadIdx.x % SENT];
        }
    }
};

template <
    template <template <typename> class, typename> class Direction,
    template <typename> class Cell, typename T, bool PADDED, bool TENSOR_CORES, int CLUSTER,
    int UNITS, int ROWS, int THREADS, int CHUNKS>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) steps_by_turns(
    const Cell<typename Acc<T>::type> cell, const Direction<Cell, T> arrays, const Steps at,
    const Exchanged exchanged)
{
    typedef Direction<Cell, T> D;
    typedef ByTensorCores<
        InMemory, typename D::C, T, D::BACK, CLUSTER * UNITS, ROWS / 2, THREADS, CHUNKS> Part;
    typedef OverBlocks<InMemory, D, Part, LaneTile<UNITS, ROWS>> Over;
    steps_over_blocks<ByTurns<Over, CLUSTER>, PADDED>(cell, arrays, at, exchanged);
    if (exchanged.over) sync_cluster(CLUSTER);  // as in ``cluster``
}
#endif
"""
)

# Up to the first number of numbers in a vector the grid is faster; up to the second, clusters are
# pairs: measured on an H200 with prototypes.
ABOVE, _IN_PAIRS = 1024, 2048
UNITS, GROUP = 16, 8  # of a block, and the sequences of a group


def layout_of(
    size: rows.Size, shape: tuple[int, int], dtype: np.dtype[Any], device: tuple[int, int, int]
) -> grid.GridLayout | None:
    """Return a layout, from the arguments of ``grid.layout_of``, or None if there is none."""
    (B, H), (processors, architecture, available) = shape, device
    if size.columns != (1,) or dtype.itemsize != 2 or architecture < cluster.FROM:
        return None
    numbers = grid.numbers_of(size, tensor_cores=True)[0] * H
    if numbers <= ABOVE:
        return None
    blocks = 2 if numbers <= _IN_PAIRS else 4
    vectors = ((numbers, grid.WARPS * blocks),)
    fit = grid.fit_of(size.columns, vectors, (blocks * UNITS, GROUP), dtype, tensor_cores=True)
    clusters = -(-H // (blocks * UNITS))  # that have all units
    at_once = cluster.at_once(blocks, processors) // clusters
    if fit is None or not at_once or fit.shared > available:
        return None
    groups, launches = grid.groups_of(B, 2 * GROUP, at_once)
    return grid.GridLayout(
        *(True, UNITS, 2 * GROUP, (clusters * blocks, groups), launches),
        *(fit.parts, fit.shared, rows.up(numbers, 8), blocks),
    )
