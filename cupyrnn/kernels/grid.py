"""
Recurrences that one launch takes through all time steps, with the matrix spread over blocks.

A block has all columns of a few units, and each of its warps a slice of their rows. A row of the
grid, a group of blocks, computes a few sequences. Blocks exchange numbers through the memory of the
device. A word there shows whether it has been written, and a warp waits only for the words that it
multiplies. Blocks that wait must all run at once, so the launch is cooperative, and never larger
than the driver says can run together. More sequences need several launches.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..checks.arrays import compute_dtype
from . import parts, rows

SOURCE = (
    parts.SOURCE
    + r"""
// What blocks exchange in a launch.
struct Exchanged {
    void* numbers;      // [steps * products + 1, B, stride], all ones at the start; or null: it is
                        // in shared memory
    long long stride;   // numbers of a vector, whole lines
    long long first;    // the first sequence of the launch
    long long patient;  // whether to look at one place before all others
    unsigned* over;     // null, except in a trial: see ``gives_up``
};

// The thread of a unit and a sequence, of UNITS units and ROWS sequences of a block.
template <int UNITS, int ROWS> struct LaneTile {
    int own, slot;   // of the block's units, and of its sequences
    int first, row;  // the first sequence of the block, and the thread's
    int unit, units;
    __device__ __forceinline__ LaneTile(int H, int begin)
        : own(threadIdx.x % UNITS), slot(threadIdx.x / UNITS), first(begin + blockIdx.y * ROWS),
          row(first + slot), unit(blockIdx.x * UNITS + own), units(slot < ROWS && unit < H) {}
};

// The products of blocks that exchange numbers.
template <typename Exchange, typename D, typename Part, typename TileOf> struct OverBlocks : Part {
    typedef typename D::C C;
    typedef typename Part::A A;
    typedef typename Part::E E;
    typedef typename Part::W W;
    typedef TileOf Tile;
    static const bool LATE = Exchange::SUMS;
    static const int OF_SLICE =  // of the sums of a product
        Part::ROWS * Part::row_of(larger_of(Part::width(0), Part::width(C::PRODUCTS - 1)));
    static const int SIZE = Part::WARPS * OF_SLICE;
    static const int MEMORY = 2 * SIZE * sizeof(A) + Part::MEMORY;
    const Tile& me;
    A* sums;  // [2][WARPS][OF_SLICE], in shared memory
    char* numbers;  // of the first product and sequence
    long long of_a_row, of_a_turn;  // bytes
    int H, sent;  // `sent`: how many sequences sent the numbers of the next product
    Exchange exchange;

    __device__ __forceinline__ OverBlocks(
        const Exchanged& all, const Steps& at, const Tile& tile, uint4* memory)
        : Part(memory + 2 * SIZE * sizeof(A) / 16, all.patient, all.over), me(tile),
          sums(reinterpret_cast<A*>(memory)),
          numbers(reinterpret_cast<char*>(memory) + MEMORY + Exchange::MEMORY),
          of_a_row(all.stride * sizeof(E)),
          of_a_turn((Exchange::SHARED ? Part::ROWS : at.B) * of_a_row), H(int(at.H)),
          sent(rows_of(at.B)),
          exchange(numbers - Exchange::MEMORY, (H + Part::UNITS - 1) / Part::UNITS, all.over)
    {
        if (!Exchange::SHARED) numbers = static_cast<char*>(all.numbers) + me.first * of_a_row;
    }
    __device__ __forceinline__ int rows_of(long long rows) const
    {
        const int of_block = int(rows) - me.first;
        return of_block < Part::ROWS ? of_block : Part::ROWS;
    }
    // The beginning of the vector of a sequence.
    __device__ __forceinline__ auto row() const
    {
        char* const first = numbers
            + (Exchange::SHARED ? exchange.turns % 2 : exchange.turns) * of_a_turn;
        return [=](int slot) { return first + slot * of_a_row; };
    }
    template <typename Value> __device__ __forceinline__ void load(Value value)
    {
        // The second matrix first, as in rows.
        if constexpr (C::PRODUCTS == 2) Part::load(Product<1>(), value);
        Part::load(Product<0>(), value);
    }
    __device__ __forceinline__ void begin() const
    {
        if constexpr (Exchange::SHARED) {
            clear(sums, 2 * SIZE);
            clear(reinterpret_cast<float*>(numbers), int(2 * of_a_turn / 4));
            exchange.begin();
        }
    }
    __device__ __forceinline__ void sync() const { if (Exchange::SUMS) __syncthreads(); }
    template <int COUNT, typename Product>
    __device__ __forceinline__ void store_numbers(Product product, int turn, const A* v) const
    {
        // The turn determines the next product, whose slices the vector must have.
        if constexpr (!D::BACK && C::PRODUCTS == 2)
            if (turn == 1) return store_numbers_for<COUNT>(::Product<1>(), v);
        store_numbers_for<COUNT>(product, v);
    }
    template <int COUNT, typename Product>
    __device__ __forceinline__ void store_numbers_for(Product product, const A* v) const
    {
        const int words = this->template send_unit<COUNT>(
            exchange, product, row(), me.slot, me.unit, H, v);
        // Zeros after the last unit, to the end of the words that are loaded together.
        const int AT_ONCE = 16 / sizeof(W);
        if constexpr (!Exchange::SHARED)
            if (words)
                for (int n = words; n % AT_ONCE; ++n)
                    exchange.send(reinterpret_cast<W*>(row()(me.slot)) + n, W(0), 0);
    }
    // Waits for the numbers of the warp's slice, from all sequences that have sent some.
    template <typename Product> __device__ __forceinline__ void wait(Product product) const
    {
        const int slice = this->slice, left = H - slice * this->of_slice(product);
        const int count = left < this->of_slice(product) ? left : this->of_slice(product);
        const int bytes = count > 0 ? count * int(sizeof(E)) + Part::MESSAGE - 1 : 0;
        const int sent_bytes = bytes / Part::MESSAGE * Part::MESSAGE * sent;
        exchange.wait(slice, sent_bytes, threadIdx.x % 32 == 0);
    }
    // Numbers that are sent after the last product must arrive before a block ends.
    __device__ __forceinline__ void end() const
    {
        if constexpr (Exchange::SHARED && !Exchange::SUMS) wait(Product<0>());
    }
    template <typename Product, int WIDTH>
    __device__ __forceinline__ void multiply(
        Product product, int, long long rows, A (&)[WIDTH])
    {
        const int NUMBERS = D::BACK ? Part::numbers(C::width(Product::NUMBER)) : 1;
        const int ROW = Part::row_of(WIDTH), OF_WARP = Part::ROWS * ROW;
        A* const all = sums + exchange.turns % 2 * SIZE;
        if constexpr (Exchange::SHARED && !Exchange::SUMS) wait(product);
        if (!Exchange::SUMS || this->owner * Part::UNITS < H)
            Part::template multiply<WIDTH>(
                exchange, product, row(), int(rows) - me.first, NUMBERS * H,
                all + this->sum(Part::WARPS) * OF_WARP);
        sent = rows_of(rows);
    }
    template <typename Product, int WIDTH>
    __device__ __forceinline__ void finish(Product, A (&own)[WIDTH])
    {
        const int ROW = Part::row_of(WIDTH), OF_WARP = Part::ROWS * ROW;
        const A* const all = sums + exchange.turns % 2 * SIZE;
        if constexpr (Exchange::SUMS) {
            const int of_block = Part::WARPS / Exchange::BLOCKS * Part::ROWS * Part::UNITS;
            exchange.wait(0, exchange.blocks * of_block * int(sizeof(A)), threadIdx.x == 0);
        } else __syncthreads();  // before the sums of all warps
        ++exchange.turns;
        const A* const mine = all + me.slot % Part::ROWS * ROW + me.own * WIDTH;
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
            own[c] = mine[c];
#pragma unroll
            for (int w = 1; w < Part::WARPS; ++w) own[c] += mine[w * OF_WARP + c];
        }
    }
};


template <bool TENSOR_CORES> struct Multiplying {
    template <typename Exchange, typename C, typename T, bool BACK, int... SIZES>
    using Part = ByNumbers<Exchange, C, T, BACK, SIZES...>;
};
#ifdef MMA_TYPE
template <> struct Multiplying<true> {
    template <typename Exchange, typename C, typename T, bool BACK, int... SIZES>
    using Part = ByTensorCores<Exchange, C, T, BACK, SIZES...>;
};
#endif

template <
    typename Exchange, typename D, typename T, bool TENSOR_CORES, int UNITS, int ROWS, int... PARTS>
using ProductsOf = OverBlocks<
    Exchange, D,
    typename Multiplying<TENSOR_CORES>::template Part<
        Exchange, typename D::C, T, D::BACK, UNITS, ROWS, PARTS...>,
    LaneTile<UNITS, ROWS>>;

template <
    typename Products, bool PADDED, template <template <typename> class, typename> class Direction,
    template <typename> class Cell, typename T>
__device__ __forceinline__ void steps_over_blocks(
    const Cell<typename Acc<T>::type>& cell, const Direction<Cell, T>& arrays, const Steps& at,
    const Exchanged& exchanged)
{
    typedef Direction<Cell, T> D;
    const typename Products::Tile me(int(at.H), int(exchanged.first));
    Products products(exchanged, at, me, reinterpret_cast<uint4*>(shared_packs<float>()));
    at.write_zeros();
    Coming<typename D::Number, D::NUMBERS, 1, 0, 1> coming(nullptr, 0, 0);
    all_steps<false, PADDED, false>(cell, arrays, at, me, products, coming);
    products.end();
}

template <
    template <template <typename> class, typename> class Direction,
    template <typename> class Cell, typename T, bool PADDED, bool TENSOR_CORES, int UNITS, int ROWS,
    int THREADS, int... PARTS>
__global__ void __launch_bounds__(THREADS, 1) steps_by_grid(
    const Cell<typename Acc<T>::type> cell, const Direction<Cell, T> arrays, const Steps at,
    const Exchanged exchanged)
{
    typedef ProductsOf<
        InMemory, Direction<Cell, T>, T, TENSOR_CORES, UNITS, ROWS, THREADS, PARTS...> Products;
    steps_over_blocks<Products, PADDED>(cell, arrays, at, exchanged);
}
"""
)

# Warps of a block: each has a slice of the rows of the matrix.
WARPS = 8
# Units of a block, and its sequences. The fewer units, the more blocks wait for each other.
UNITS = {"numbers": (16, 8, 4), "tensor cores": (16, 32)}
SEQUENCES = {"numbers": (1, 2, 4, 8, 16), "tensor cores": (8,)}
# The first architecture with these tensor cores, and the bytes of a half format.
_TENSOR_CORES_FROM, _HALF = 80, 2
# Rows of a chunk, and bytes of shared memory through which a warp loads matrices.
_CHUNK, _TO_LOAD = 32, 4096


# The most registers of a thread for its part of the matrices, if registers hold all of it, or else
# besides shared memory. The other registers: tests/benchmarks/results/registers.md.
_REGISTERS = dict.fromkeys(("float16", "bfloat16", "float32"), (128, 96))
_REGISTERS |= {"float64": (128, 80), "complex64": (112, 64), "complex128": (48, 24)}
# With more blocks than this, it is faster to look at one place before all others.
_MANY_BLOCKS = 64


class GridLayout(NamedTuple):
    """
    How a kernel is laid out over blocks.

    Attributes
    ----------
    tensor_cores
        Whether tensor cores multiply.
    units, sequences
        Of a block.
    blocks
        The blocks of a group, and the number of groups.
    launches
        How many launches all sequences need.
    parts
        How many rows of each matrix a lane has, and how many of them in registers; with tensor
        cores, how many chunks of 32 rows a warp has.
    shared
        Bytes of dynamic shared memory.
    stride
        The distance between the first numbers of two vectors, in numbers.
    cluster
        The blocks of a cluster; 0 where there are none.
    """

    tensor_cores: bool
    units: int
    sequences: int
    blocks: tuple[int, int]
    launches: int
    parts: tuple[int, ...]
    shared: int
    stride: int
    cluster: int = 0


@cache
def layout_of(
    size: rows.Size, shape: tuple[int, int], dtype: np.dtype[Any], device: tuple[int, int, int]
) -> GridLayout | None:
    """
    Return a layout for states of `shape` = (B, H), or None where there is none.

    `device` has the number of multiprocessors, the architecture, and the bytes of shared memory
    that a block may have. All blocks of a launch run at once, one on each multiprocessor. A block
    has as many units as fit into registers, and then as few sequences and launches as possible.
    """
    (B, H), (processors, architecture, available) = shape, device
    tensor_cores = dtype.itemsize == _HALF and architecture >= _TENSOR_CORES_FROM
    how = "tensor cores" if tensor_cores else "numbers"
    vectors = tuple((n * H, WARPS) for n in numbers_of(size, tensor_cores=tensor_cores))
    together = 16 // (dtype if tensor_cores else compute_dtype(dtype)).itemsize
    stride = rows.up(max(n for n, _ in vectors), together)
    found: list[tuple[Any, ...]] = []
    for units, sequences in product(UNITS[how], SEQUENCES[how]):
        blocks = -(-H // units)
        if blocks > processors or units * sequences > 32 * WARPS:
            continue
        fit = fit_of(size.columns, vectors, (units, sequences), dtype, tensor_cores=tensor_cores)
        if fit is None:
            continue
        shared = fit.shared + (0 if tensor_cores else WARPS * sequences * fit.vector)
        if shared > available:
            continue
        groups, launches = groups_of(B, sequences, processors // blocks)
        layout = GridLayout(
            *(tensor_cores, units, sequences, (blocks, groups), launches),
            *(fit.parts, shared, stride),
        )
        # Without tensor cores sums depend on the units of a block. So these must not depend on B.
        preferred = 0 if tensor_cores else UNITS[how].index(units)
        found.append((fit.beside, preferred, launches, len(found), layout))
    return min(found)[-1] if found else None


def groups_of(B: int, sequences: int, at_once: int) -> tuple[int, int]:
    """Return the groups of a launch and the launches for B sequences, `sequences` in a group."""
    groups = -(-B // sequences)
    launches = -(-groups // at_once)
    return -(-groups // launches), launches


def numbers_of(size: rows.Size, *, tensor_cores: bool) -> list[int]:
    """Return how many numbers of a unit each vector has: whole words with tensor cores."""
    return [4 if tensor_cores and n == 3 else n for n in size.vectors]


class Fit(NamedTuple):
    """How the matrices fit into a block; sizes are in bytes."""

    parts: tuple[int, ...]
    shared: int  # memory, without vectors
    vector: int  # a slice of a vector in shared memory
    beside: int  # matrices in shared memory


def fit_of(
    columns: tuple[int, ...],
    vectors: tuple[tuple[int, int], ...],
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    *,
    tensor_cores: bool,
) -> Fit | None:
    """
    Return how the matrices fit into a block, None where they do not.

    By matrix, `columns` has the columns of a unit, and `vectors` the numbers and the slices of a
    vector. `shape` has the units and the sequences of a block.
    """
    (units, sequences), compute, (most, left) = shape, compute_dtype(dtype), _REGISTERS[dtype.name]
    sums = 2 * WARPS * sequences * (max(columns) * units * compute.itemsize + 16)
    if tensor_cores:
        chunks = tuple(-(-n // (_CHUNK * slices)) for n, slices in vectors)
        # A chunk of sixteen rows is eight registers.
        pieces = zip(columns, chunks, strict=True)
        if sum(units * n // 16 * chunk * 8 for n, chunk in pieces) > most:
            return None
        return Fit(chunks, sums + WARPS * _TO_LOAD, max(chunks) * _CHUNK * dtype.itemsize, 0)
    # Without enough registers, the rest of the matrices is in shared memory.
    pack, split = 16 // compute.itemsize, 32 // units
    demands, vector, beside = [], 0, 0  # by matrix: its rows, and registers of a row
    for n, (numbers, slices) in zip(columns, vectors, strict=True):
        lanes = split * (4 if n == 1 else 2)
        count = rows.up(-(-numbers // (slices * lanes)), pack)
        demands.append((count, lanes // split * n * compute.itemsize // 4))
        # The parts of lanes are an odd number of packs apart.
        vector = max(vector, 16 * lanes * (count // pack | 1))
    if sum(count * row for count, row in demands) <= most:
        left = most
    kept = {}
    for m in sorted(range(len(demands)), key=lambda m: demands[m][0] * demands[m][1]):
        count, row = demands[m]
        kept[m] = min(count, left // row)
        left -= kept[m] * row
        beside += 16 * 32 * WARPS * -(-(count - kept[m]) * row // 4)
    parts = tuple(n for m, (count, _) in enumerate(demands) for n in (count, kept[m]))
    return Fit(parts, sums + beside, vector, beside)


def template_of(kernel: rows.Kernel, layout: GridLayout, *, padded: bool = False) -> str:
    """Return the name of a kernel, with its storage type open: see `rows.template_of`."""
    kinds = f"{padded}, {layout.tensor_cores}".lower()
    name = kernel.name.replace("grid", "turns") if layout.cluster else kernel.name
    of_cluster = (layout.cluster,) if layout.cluster else ()
    numbers = *of_cluster, layout.units, layout.sequences, 32 * WARPS, *layout.parts
    return f"{name}<{kernel.types}, {{T}}, {kinds}, {', '.join(map(str, numbers))}>"


def exchanged(
    layout: GridLayout, vectors: int, dtype: np.dtype[Any]
) -> tuple[list[tuple[int, ...]], int]:
    """Return the words of ``Exchanged`` after the memory, by launch, and the memory's bytes."""
    itemsize = dtype.itemsize if layout.tensor_cores else compute_dtype(dtype).itemsize
    (blocks, groups), stride = layout.blocks, layout.stride
    patient = int(blocks * groups > _MANY_BLOCKS)
    first = (number * groups * layout.sequences for number in range(layout.launches))
    return [(stride, row, patient, 0) for row in first], vectors * stride * itemsize
