"""
Recurrences in one launch, with the matrix spread over the eight blocks of a cluster.

The blocks compute as those of ``grid`` do, but exchange numbers through their shared memory. A
cluster runs as a whole and waits for nobody else, so the launch is an ordinary one with any number
of clusters. Devices have clusters from sm_90 on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..checks.arrays import compute_dtype
from . import grid, rows

SOURCE = (
    grid.SOURCE
    + r"""
// The shared memory of all blocks of a cluster, as where they exchange numbers: a word is told to
// every block, and each looks at its own. Here a place is used again, two products later. The
// reader puts all ones back before the barrier that follows its product. Who tells the next word
// has the numbers that this block told behind that barrier.
const int CLUSTER = 8;
struct InCluster {
    static const bool SHARED = true;
    static __device__ __forceinline__ void meet()
    {
#ifdef CUDA_ON_CPU
        cuda_on_cpu::meet_cluster(CLUSTER);
#else
        asm volatile("barrier.cluster.arrive;" ::: "memory");
        asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
    }
    static __device__ __forceinline__ void begin(Words<unsigned>* places, int count)
    {
        for (int n = threadIdx.x; n < count; n += blockDim.x) took(places + n);
        meet();
    }
    static __device__ __forceinline__ void tell(unsigned* place, unsigned word)
    {
#ifdef CUDA_ON_CPU
        for (int block = 0; block < CLUSTER; ++block)
            cuda_on_cpu::tell(cuda_on_cpu::of_block(place, block, CLUSTER), word);
#else
        const unsigned here = __cvta_generic_to_shared(place);
#pragma unroll
        for (int block = 0; block < CLUSTER; ++block) {
            unsigned there;
            asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
            asm volatile("st.relaxed.cluster.shared::cluster.u32 [%0], %1;"
                         :: "r"(there), "r"(word) : "memory");
        }
#endif
    }
    static __device__ __forceinline__ Words<unsigned> look(const Words<unsigned>* place)
    {
#ifdef CUDA_ON_CPU
        return InMemory::look(place);
#else
        Words<unsigned> v;
        asm volatile(
            "ld.relaxed.cluster.shared::cta.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
            : "r"((unsigned)__cvta_generic_to_shared(place)) : "memory");
        return v;
#endif
    }
    static __device__ __forceinline__ void took(Words<unsigned>* place)
    {
#ifdef CUDA_ON_CPU
        *place = {{~0u, ~0u, ~0u, ~0u}};
#else
        asm volatile(
            "st.relaxed.cluster.shared::cta.v4.u32 [%0], {%1, %1, %1, %1};"
            :: "r"((unsigned)__cvta_generic_to_shared(place)), "r"(~0u) : "memory");
#endif
    }
};

#if defined(CUDA_ON_CPU) || __CUDA_ARCH__ >= 900
template <
    template <template <typename> class, typename> class Direction,
    template <typename> class Cell, typename T, bool PADDED, bool TENSOR_CORES, int UNITS, int ROWS,
    int THREADS, int... PARTS>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) steps_by_cluster(
    const Cell<typename Acc<T>::type> cell, const Direction<Cell, T> arrays, const Steps at,
    const Exchanged exchanged)
{
    // A block without a unit is told numbers, and waits for none.
    if (blockIdx.x * UNITS < at.H)
        steps_over_blocks<InCluster, PADDED, TENSOR_CORES, UNITS, ROWS, THREADS, PARTS...>(
            cell, arrays, at, exchanged);
    else InCluster::meet();
    InCluster::meet();  // before a block ends
}
#endif
"""
)

# Blocks of a cluster, and the units of a block.
BLOCKS, UNITS = 8, (16, 32)
_FROM = 90  # the first architecture that has them
_LINE = 128  # bytes that all banks of shared memory have side by side


def layout_of(
    size: rows.Size, shape: tuple[int, int], dtype: np.dtype[Any], device: tuple[int, int, int]
) -> grid.Layout | str:
    """Return a layout, of arguments as ``grid.layout_of`` has them, or why there is none."""
    (B, H), (processors, architecture, available) = shape, device
    units = next((n for n in UNITS if BLOCKS * n >= H), None)
    if architecture < _FROM:
        return f"cluster needs sm_{_FROM} or later, and the GPU is sm_{architecture}"
    if np.finfo(compute_dtype(dtype)).bits != 32:
        return f"cluster exchanges numbers of 32 bits, and the dtype is {dtype.name}"
    if units is None:
        return f"cluster takes H up to {BLOCKS * UNITS[-1]}, and H is {H}"
    # As few sequences as keep all clusters on the device at once.
    at_once, halves = max(1, processors // BLOCKS - 1), dtype.itemsize == 2
    counts = grid.SEQUENCES["tensor cores" if halves else "numbers"]
    fitting = [n for n in counts if n * units <= 32 * grid.WARPS]
    sequences = next((n for n in fitting if -(-B // n) <= at_once), fitting[-1])
    fit = grid.fit_of(size, H, units, sequences, dtype, halves)
    if fit is None:
        return f"the registers of {BLOCKS} blocks do not hold the matrix for H = {H}"
    itemsize = dtype.itemsize if halves else compute_dtype(dtype).itemsize
    # Vectors that are read together meet no bank twice.
    stride = -(-fit.stride * itemsize // _LINE) * _LINE + _LINE // 2
    shared = fit.shared + 2 * sequences * stride
    if shared > available:
        return f"cluster needs {shared} bytes of shared memory, and there are {available}"
    places = BLOCKS, -(-B // sequences)
    return grid.Layout(halves, units, sequences, places, 1, fit.parts, shared, stride // itemsize)
