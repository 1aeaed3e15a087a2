"""
What the compiled single steps of all cells share: products with matrices as they lie in memory.

A layer packs its matrices once for many steps. A single step uses each of them once: of few rows it
reads a matrix in place; of more it packs a panel, which then stays in a core's cache for all rows.
A step is one compiled call: forward of words, as a layer, so that threads can share it, and
backwards of arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir

from . import threads
from .addresses import At, relocated, words_of
from .cache import compiled_function
from .call import compiled
from .plan import panels_of
from .products import PANEL_BYTES, vectors_of
from .simd import (
    I32,
    OPTIONS,
    ROWS,
    VECTOR_BYTES,
    VECTORS,
    Code,
    Vector,
    Word,
    alloca,
    block,
    part,
    routine,
    size_of,
    tile,
)

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import BackwardStep

# Rows of a panel, as in products.py; rows of A up to which B is read in place.
_DEPTH, _IN_PLACE = 256, 2 * ROWS
# Bytes that a product needs to pack a panel in.
PRODUCT_BYTES = _DEPTH * PANEL_BYTES + VECTOR_BYTES
# Rows of A up to which products with a transposed matrix are sums along its rows.
_FEW_ROWS = 4
# Rows of a transposed matrix whose sums are made at once.
_TOGETHER = 4


@routine
def pack_panel(c: Code, rows: Word, source: Word, rs: Word, columns: Word, to: Word) -> None:
    """Copy so many rows of a panel; the columns that are missing become zero."""
    masks = [c.first_lanes(columns - j * c.lanes) for j in range(VECTORS)]
    with c.builder.if_else(columns.compare(">=", VECTORS * c.lanes)) as (whole, some):
        for branch, masked in ((whole, False), (some, True)):
            with branch, c.loop(c.word(0), rows) as k:
                for j in range(VECTORS):
                    c.mask = masks[j] if masked else None
                    row = c.load(source + rs * k + j * VECTOR_BYTES)
                    c.store_all(row, to + k * PANEL_BYTES + j * VECTOR_BYTES)
    c.mask = None


def _sum_of_lanes(c: Code, vector: Vector) -> Any:
    """Return the sum of a vector's numbers, halves first."""
    value, lanes = vector.value, c.lanes
    while lanes > 1:
        lanes //= 2
        low, high = (
            c.builder.shuffle_vector(
                value,
                value,
                ir.Constant(ir.VectorType(I32, lanes), [start + n for n in range(lanes)]),
            )
            for start in (0, lanes)
        )
        value = c.builder.fadd(low, high)
    return c.builder.extract_element(value, ir.Constant(I32, 0))


@routine
def sums_along_rows(
    c: Code, a: Word, K: Word, b: Word, rs_b: Word, first: Word, last: Word, to: Word, add: Word
) -> None:
    """Compute c[first:last] (+)= a[K] @ B[first:last, K].T."""
    builder = c.builder

    def sums(row: Word, count: int) -> None:
        totals = [alloca(builder, c.vector) for _ in range(count)]
        for total in totals:
            builder.store(ir.Constant(c.vector, None), total)
        places = [b + rs_b * (row + n) for n in range(count)]

        def more(offset: Word) -> None:
            values = c.load(a + offset)
            for place, total in zip(places, totals, strict=True):
                old = Vector(builder, builder.load(total, typ=c.vector))
                builder.store(c.load(place + offset).times_plus(values, old).value, total)

        whole = Word(builder, builder.sdiv(K.value, ir.Constant(K.value.type, c.lanes)))
        with c.loop(c.word(0), whole) as k:
            more(k * VECTOR_BYTES)
        with builder.if_then((K - whole * c.lanes).compare(">", 0)):
            c.mask = c.first_lanes(K - whole * c.lanes)
            more(whole * VECTOR_BYTES)
            c.mask = None
        for n, total in enumerate(totals):
            found = _sum_of_lanes(c, Vector(builder, builder.load(total, typ=c.vector)))
            place = c.pointer(to + (row + n) * c.size)
            before = builder.load(place, align=c.size, typ=c.real)
            plus = builder.fadd(found, before)
            builder.store(builder.select(add.compare("!=", 0), plus, found), place, align=c.size)

    groups = Word(builder, builder.sdiv((last - first).value, ir.Constant(K.value.type, _TOGETHER)))
    with c.loop(c.word(0), groups) as group:
        sums(first + group * _TOGETHER, _TOGETHER)
    with c.loop(first + groups * _TOGETHER, last) as row:
        sums(row, 1)


@part
def multiply_in_place(
    one: Any, M: int, a: int, rs_a: int, K: int, b: int, transposed: int, rs_b: int,
    first: int, last: int, c: int, rs_c: int, add: int, memory: int,
) -> None:  # fmt: skip
    """
    Compute C[M, first:last] (+)= A[M, K] @ B[K, first:last], or with the rows of B[last, K].

    `rs_b` is from row to row of B as it lies, `memory` has PRODUCT_BYTES.
    """
    size = size_of(one)
    if transposed and M <= _FEW_ROWS:
        for i in range(M):
            sums_along_rows(one, (a + i * rs_a, K, b, rs_b, first, last, c + i * rs_c, add))
        return
    lanes, width = VECTOR_BYTES // size, PANEL_BYTES // size
    tiles = (M + ROWS - 1) // ROWS
    for k in range(0, max(K, 1), _DEPTH):
        depth = min(_DEPTH, K - k)
        more = add if k == 0 else 1
        for p in range(first, last, width):
            columns = min(width, last - p)
            panel, rs_panel = memory, PANEL_BYTES
            if transposed:
                for j in range(VECTORS):
                    for d in range(0, depth, lanes):
                        block(one, (
                            1, b + (p + j * lanes) * rs_b + (k + d) * size, rs_b,
                            min(lanes, columns - j * lanes), min(lanes, depth - d),
                            memory + d * PANEL_BYTES + j * VECTOR_BYTES, PANEL_BYTES,
                            min(lanes, depth - d), lanes,
                        ))  # fmt: skip
            elif M > _IN_PLACE or columns < width:
                pack_panel(one, (depth, b + k * rs_b + p * size, rs_b, columns, memory))
            else:
                panel, rs_panel = b + k * rs_b + p * size, rs_b
            i = 0
            for n in range(tiles, 0, -1):  # of nearly the same height
                m = (M - i + n - 1) // n
                tile(one, (
                    m, a + i * rs_a + k * size, rs_a, size, panel, rs_panel, VECTOR_BYTES, depth,
                    c + i * rs_c + p * size, rs_c, columns, more,
                ))  # fmt: skip
                i += m


@part
def at(a: Array) -> Any:
    """Return where an array lies."""
    return np.int64(a.ctypes.data)


@part
def own_vectors(one: Any, tid: int, n: int, H: int) -> tuple[int, int]:
    """Return the vectors of units that a thread computes, whole panels of them but the last."""
    units = vectors_of(one, H)
    panels = (units + VECTORS - 1) // VECTORS
    return panels * tid // n * VECTORS, min(units, panels * (tid + 1) // n * VECTORS)


@part
def multiply_columns(
    one: Any, n: int, u0: int, u1: int, gates: int, H: int, M: int, a: int, rs_a: int, K: int,
    w: int, turned: int, c: int, add: int, memory: int,
) -> None:  # fmt: skip
    """Compute C[M, gates*H] (+)= A[M, K] @ w, in each gate the vectors u0..u1-1 of units."""
    size = size_of(one)
    row = gates * H * size
    rs_w = K * size if turned else row
    pieces = 1 if n == 1 else gates
    for g in range(pieces):
        first, last = 0, gates * H
        if n > 1:
            lanes = VECTOR_BYTES // size
            first, last = g * H + u0 * lanes, g * H + min(H, u1 * lanes)
        multiply_in_place(one, M, a, rs_a, K, w, turned, rs_w, first, last, c, row, add, memory)


@part
def multiply_back(
    one: Any, M: int, a: int, rs_a: int, K: int, w: int, turned: int, width: int, c: int, add: int,
    memory: int,
) -> None:  # fmt: skip
    """Compute C[M, width] (+)= A[M, K] @ w.T for w[width, K], which may lie turned."""
    size = size_of(one)
    row = width * size
    rs_w = row if turned else K * size
    multiply_in_place(one, M, a, rs_a, K, w, 1 - turned, rs_w, 0, width, c, row, add, memory)


@part
def product_memory_at(address: int, tid: int) -> Any:
    """Return where a thread may pack what its products need, from an address on."""
    return (address + VECTOR_BYTES - 1) // VECTOR_BYTES * VECTOR_BYTES + tid * PRODUCT_BYTES


@part
def product_memory(work: Array, tid: int) -> Any:
    """Return where a thread may pack what its products need."""
    return product_memory_at(np.int64(work.ctypes.data), tid)


@part
def put(table: Array, first: int, values: Any) -> None:
    """
    Write integers to a table from `first` on.

    Of a slice Numba would compile the message of its error too, in 1.5 s.
    """
    for k in range(len(values)):
        table[first + k] = values[k]


@part
def vectors_in(work: Array, H: int) -> Any:
    """Return memory for 4*H, H and H numbers, behind that of the products."""
    end = work.size
    return work[end - 6 * H : end - 2 * H], work[end - 2 * H : end - H], work[end - H :]


def memory_of_step(n: int, H: int, char: str) -> tuple[Array, Array]:
    """
    Return the memory of a step, numbers and integers.

    Compiled code has addresses of it, which do not keep it: it is to be Python's.
    """
    size = 4 if char == "f" else 8
    return np.empty((n + 1) * PRODUCT_BYTES // size + 6 * H, char), np.empty(20, np.int64)


# Multiplications from which on a step is worth a second thread.
_LEAST_WORK = 2_000_000


class Layout(NamedTuple):
    """How a step's loop is told what it computes: its words, and numbers it needs memory for."""

    words: Sequence[int | At]  # array 0 is memory, 1 these words, the others follow
    memory: int = 0  # numbers of this dtype, at the beginning of the memory


class Step(NamedTuple):
    """A compiled step that threads share."""

    loop: Callable[..., None]  # compiled as (tid, n, one, address of the words)
    lay_out: Callable[..., Layout]  # of the size of a number and what `run` is given


@functools.lru_cache(maxsize=256)
def _laid_out(step: Step, size: int, sizes: tuple[int, ...]) -> tuple[Array, Array, int]:
    """Return the words of a step but for addresses, which words have these, and its memory."""
    words, memory = step.lay_out(size, *sizes)
    return *words_of(words), memory * size


def run(
    step: Step, char: str, work: int, H: int, sizes: tuple[int, ...], arrays: tuple[Any, ...]
) -> None:
    """
    Compute a step by as many threads as it is worth.

    Parameters
    ----------
    work
        Multiplications.
    H
        Units that threads share.
    sizes
        All that its layout depends on.
    arrays
        In C order and aligned; what is None is not looked up.
    """
    size = 4 if char == "f" else 8
    kept, relocations, memory_bytes = _laid_out(step, size, sizes)
    loop = compiled(step.loop, char).address
    most = 1 if work < _LEAST_WORK else threads.most()
    while True:
        n = min(most, panels_of(H, size))
        memory, block = np.empty(memory_bytes + (n + 1) * PRODUCT_BYTES, np.uint8), kept.copy()
        argument = relocated(block, relocations, (memory, block, *arrays))
        if threads.run(n, loop, char == "d", argument):
            return
        most = 1


@functools.cache
def nothing(char: str) -> Array:
    """Return an array that stands for one that is not wanted."""
    return np.empty((0, 0), char)


@functools.cache
def compiled_step(function: Callable[..., None], arguments: str, char: str) -> Any:
    """
    Return a function compiled for a dtype by its character, None where Numba does not work.

    `arguments` are the kinds of its arguments: r2 is an array of rank 2 that is only read, w2 one
    that is written, n an integer.
    """
    if getattr(numba.config, "DISABLE_JIT", False):  # Not compiled it would be of no use.
        return None
    dtype = numba.from_dtype(np.dtype(char))
    types: dict[str, Any] = {"n": numba.int64, "t": numba.types.Array(numba.int64, 1, "C")}
    for rank in (1, 2):
        types[f"r{rank}"] = numba.types.Array(dtype, rank, "C", readonly=True)
        types[f"w{rank}"] = numba.types.Array(dtype, rank, "C")
    signature = numba.void(*(types[a] for a in arguments.split()))
    try:
        return compiled_function(function, signature, OPTIONS)
    except Exception:
        return None


def compiled_ways(
    forward: Step, backward: tuple[Callable[..., None], str]
) -> tuple[Callable[[str], Any], Callable[..., bool]]:
    """
    Return what gives the function of a cell's step backwards for a dtype, and the cell's `takes`.

    That way is a function and the kinds of its arguments, as in `compiled_step`.
    """
    back = functools.cache(functools.partial(compiled_step, *backward))

    def takes(cell: Any, dtype: np.dtype[Any], way: str) -> bool:
        """Return whether a cell's single step is compiled."""
        if way == "forward_step":
            return compiled(forward.loop, dtype.char) is not None
        return back(dtype.char) is not None

    return back, takes


def input_or_nothing(cell: Any, step: BackwardStep) -> tuple[tuple[Array, int], Array]:
    """Return the matrix of the input as it lies and where its gradient goes, if it is wanted."""
    if step.x is None:
        none = nothing(step.carried.h.dtype.char)
        return (none, 0), none
    return lying(cell.inputs[0].w), step.x


def lying(w: Array) -> tuple[Array, int]:
    """Return a matrix in C order, itself or transposed where it can be, and whether it is that."""
    flags = w.flags
    if flags.c_contiguous and flags.aligned:
        return w, 0
    if flags.f_contiguous and flags.aligned:
        return w.T, 1
    return w.copy(order="C"), 0


def plain(a: Array) -> Array:
    """Return an array in C order and aligned."""
    flags = a.flags
    return a if flags.c_contiguous and flags.aligned else a.copy(order="C")
