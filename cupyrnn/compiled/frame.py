"""
What the compiled layers of all cells share: memory, threads, and the products around the steps.

A layer is one compiled call. In it the steps are taken in parts whose pre-activations, forward, or
deltas, backwards, stay in a core's cache from the products that make them to those that use them.
A thread has rows of the batch of its own and meets the others only where weights are packed and
where their gradients are summed; or, of few rows, units of its own, and meets them after each step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np

from . import threads
from .products import (
    PANEL_BYTES,
    memory_of_transposed,
    multiply,
    multiply_transposed,
    pack,
    unpack,
    vectors_of,
)
from .simd import (
    I64,
    OPTIONS,
    VECTOR_BYTES,
    VECTORS,
    Code,
    Word,
    add_columns,
    alloca,
    meet,
    over_units,
    part,
    read_fields,
    read_word,
    row_of_numbers,
    size_of,
)

if TYPE_CHECKING:
    from .._arrays import Array


class Matrix(NamedTuple):
    """A matrix w[K, G*H] of a layer, its products and its gradient: addresses and sizes."""

    table: int  # of each gate its address and its stride, as `pack` reads them
    gates: int  # G
    H: int
    K: int
    transposed: int
    packed: int
    panels: int  # of a row of z
    z: int  # pre-activations or deltas of some steps, by row
    z_stride: int  # from the memory of one thread to that of the next
    a: int  # backwards: what it multiplied, of the rows of all steps or of these
    rs_a: int
    dw: int  # [K, panels], summed
    dw_table: int  # where it goes; 0 where it is not wanted
    dw_transposed: int
    sums: int  # of the rows of z; 0 where they are not wanted


class Frame(NamedTuple):
    """The memory of one call: addresses, sizes in bytes or numbers. cs_prev may be missing."""

    starts: int  # [T+1], the first row of each step
    T: int
    rows: int  # of z: the steps of a part have no more
    packs: int  # whether the weights are still to be packed
    finishes: int  # whether the gradients of the weights are to be written
    adds: int  # whether to what was summed before
    splits: int  # [threads+1], the first row of each thread, or the first 4 vectors of units
    by_units: int
    meeting: int
    x: int
    I: int
    h: int  # of each step
    P: int
    H: int
    # Before the first step; forward overwritten with those after each sequence's last.
    first_h: int
    first_c: int
    table: int  # of what the cell's formulas look up
    dx: int
    dh: int  # [S, dh_row bytes], the gradients that are carried
    dh_row: int
    dc: int
    given_h: int
    given_c: int
    given_row: int  # bytes from row to row of given_h and given_c; 0 for zeros
    given_c_row: int
    before: int  # h before each step of a part
    work: int
    work_stride: int  # from the memory of one thread to that of the next
    zeros: int  # as many as a row has
    variant: int
    clips: int  # whether the gradient of the clip is the true one
    totals: int  # of the gradients of peepholes; 0 without


def sum_of_gates(c: Code, _: int, u: Word, z: Word, gates: Word, to: Word) -> None:
    """The sum of all gates of one vector of units."""
    total = alloca(c.builder, c.vector)
    c.store_all(c.zero(), Word(c.builder, c.builder.ptrtoint(total, I64)))
    with c.loop(c.word(0), gates) as g:
        place = Word(c.builder, c.builder.ptrtoint(total, I64))
        c.store_all(c.load_all(place) + c.load(z + (u * gates + g) * VECTOR_BYTES), place)
    c.store(c.load_all(Word(c.builder, c.builder.ptrtoint(total, I64))), to + u * VECTOR_BYTES)


_sum_of_gates = over_units(1, sum_of_gates)
read_frame, read_matrix = read_fields(Frame), read_fields(Matrix)
FRAME_BYTES, MATRIX_BYTES = 8 * len(Frame._fields), 8 * len(Matrix._fields)


@part
def own_rows(tid: int, f: Frame) -> tuple[int, int]:
    """Return the rows of each step that a thread computes, up to as many as the step has."""
    if f.by_units:
        return 0, read_word(f.starts + 8)
    return read_word(f.splits + 8 * tid), read_word(f.splits + 8 * tid + 8)


@part
def own_units(one: Any, tid: int, f: Frame) -> tuple[int, int]:
    """Return the vectors of units that a thread computes, from a multiple of 4 on."""
    units = vectors_of(one, f.H)
    if f.by_units:
        first, last = read_word(f.splits + 8 * tid), read_word(f.splits + 8 * tid + 8)
        return min(units, first * VECTORS), min(units, last * VECTORS)
    return 0, units


@part
def own_panels(u0: int, u1: int, gates: int) -> tuple[int, int]:
    """Return the panels of a matrix of so many gates that belong to these vectors of units."""
    return u0 * gates // VECTORS, (u1 * gates + VECTORS - 1) // VECTORS


@part
def finished(f: Frame, t: int, r0: int) -> int:
    """Return how many rows from r0 on have a step after t."""
    if t + 1 == f.T:
        return 0
    return read_word(f.starts + 8 * t + 16) - read_word(f.starts + 8 * t + 8) - r0


@part
def pack_all(tid: int, n: int, one: Any, f: Frame, matrices: Any, backward: int) -> None:
    """Pack a thread's part of the weights."""
    for m in matrices:
        if f.packs and m.table:
            pack(one, m.table, m.gates, m.H, m.K, m.transposed, backward, m.packed, tid, n)


@part
def part_end(f: Frame, t0: int) -> int:
    """Return the step after the last of the part that begins with t0."""
    t1 = t0 + 1
    last = read_word(f.starts + 8 * t0) + f.rows
    while t1 < f.T and read_word(f.starts + 8 * t1 + 8) <= last:
        t1 += 1
    return t1


@part
def part_start(f: Frame, t1: int) -> int:
    """Return the first step of the part that ends before t1."""
    t0 = t1 - 1
    first = read_word(f.starts + 8 * t1) - f.rows
    while t0 > 0 and read_word(f.starts + 8 * t0 - 8) >= first:
        t0 -= 1
    return t0


@part
def input_products(tid: int, one: Any, f: Frame, inputs: Any, t0: int, t1: int) -> None:
    """Compute z = x @ w of a thread's rows and units, of the steps t0..t1-1."""
    size = size_of(one)
    r0, r1 = own_rows(tid, f)
    u0, u1 = own_units(one, tid, f)
    start = read_word(f.starts + 8 * t0)
    whole = r0 == 0 and r1 == read_word(f.starts + 8)
    # All rows of all steps are one matrix; a thread's own are one for each step.
    pieces = 1 if whole else t1 - t0
    for m in inputs:
        rs_c = m.panels * PANEL_BYTES
        z = m.z + tid * m.z_stride
        p0, p1 = own_panels(u0, u1, m.gates)
        for piece in range(pieces):
            first = read_word(f.starts + 8 * (t0 + piece))
            rows = read_word(f.starts + 8 * t1) - first
            if not whole:
                rows = min(r1, read_word(f.starts + 8 * (t0 + piece) + 8) - first) - r0
                first += r0
            if rows <= 0:
                continue
            a, c = f.x + first * f.I * size, z + (first - start) * rs_c
            if m.table:
                multiply(one, rows, a, f.I * size, f.I, m.packed, p0, p1, c, rs_c, rs_c // size, 0)
            else:  # x for every gate
                for r in range(rows):
                    for j in range(u0 * m.gates, u1 * m.gates):
                        u = j // m.gates * VECTOR_BYTES
                        source = a + r * f.I * size + u
                        count = min(VECTOR_BYTES, f.H * size - u) // size
                        row_of_numbers(one, (source, count, c + r * rs_c + j * VECTOR_BYTES))


@part
def weight_products(
    tid: int, n: int, one: Any, f: Frame, inputs: Any, recurrent: Any, t0: int, t1: int, turn: int
) -> int:
    """
    Sum the gradients of the weights and biases over the steps t0..t1-1, and write those of x.

    All threads have made their deltas; when it returns they are no longer needed.
    """
    size = size_of(one)
    start = read_word(f.starts + 8 * t0)
    rows = read_word(f.starts + 8 * t1) - start
    add = 1 if f.adds or t1 < f.T else 0
    memory = f.work + tid * f.work_stride
    m0, m1 = rows * tid // n, rows * (tid + 1) // n
    plus = 0
    for m in inputs:
        if m.table:
            depth = vectors_of(one, m.H) * m.gates * VECTOR_BYTES // size
            rs = m.panels * PANEL_BYTES
            panels = (vectors_of(one, m.K) + VECTORS - 1) // VECTORS
            multiply(
                one, m1 - m0, m.z + m0 * rs, rs, depth, m.packed, 0, panels,
                f.dx + (start + m0) * f.I * size, f.I * size, f.I, plus,
            )  # fmt: skip
            plus = 1
        else:  # x is part of every gate
            for r in range(m0, m1):
                to = f.dx + (start + r) * f.I * size
                _sum_of_gates(
                    one,
                    (
                        0,
                        vectors_of(one, m.H),
                        m.H,
                        0,
                        m.z + r * m.panels * PANEL_BYTES,
                        m.gates,
                        to,
                    ),
                )
    for k in range(len(inputs) + len(recurrent)):
        # One call of each for both, as each call is compiled anew.
        m = inputs[k] if k < len(inputs) else recurrent[k - len(inputs)]
        rs = m.panels * PANEL_BYTES
        p0, p1 = m.panels * tid // n, m.panels * (tid + 1) // n
        if m.sums:
            add_columns(one, (rows, m.z, rs, p0 * VECTORS, p1 * VECTORS, m.sums))
        if m.dw_table:
            a = m.a
            if k < len(inputs):
                a += start * m.rs_a
            multiply_transposed(one, rows, a, m.rs_a, m.K, m.z, rs, m.dw, rs, p0, p1, add, memory)
            if t0 == 0 and f.finishes:
                unpack(
                    one, m.dw, rs, m.dw_table, m.gates, m.H, m.K, m.dw_transposed,
                    p0 * VECTORS, p1 * VECTORS,
                )  # fmt: skip
    return meet(f.meeting, n, turn)


# ---- what stands around a compiled call, in Python


@functools.cache
def stamp() -> str:
    """Return what tells these files from those of another version."""
    try:
        return f"{max(p.stat().st_mtime_ns for p in Path(__file__).parent.glob('*.py')):x}"
    except (OSError, ValueError):  # They are in an archive.
        return "0"


@functools.cache
def compiled(loop: Callable[..., None], char: str) -> Any:
    """Return loop(tid, n, one, address) compiled for a dtype; None where Numba does not work."""
    if getattr(numba.config, "DISABLE_JIT", False):  # Not compiled it would be of no use.
        return None
    one = numba.from_dtype(np.dtype(char))
    # A name of its own: processes that compile for two dtypes at once would mix up their files, and
    # what was compiled with other functions of these files is not to be taken.
    name = f"{loop.__name__}_{char}_{stamp()}"
    named = FunctionType(loop.__code__, loop.__globals__, name)
    named.__qualname__ = named.__name__
    try:
        signature = numba.void(numba.int64, numba.int64, one, numba.int64)
        try:
            return numba.njit(signature, cache=True, **OPTIONS)(named)
        except Exception:  # no folder to keep it in, no room, or what lies there is damaged
            return numba.njit(signature, **OPTIONS)(named)
    except Exception:
        return None


def address_of(a: Array) -> int:
    """Return where an array lies."""
    address: int = a.__array_interface__["data"][0]
    return address


class Memory:
    """Memory of one call, taken in one piece: sizes first, then addresses."""

    def __init__(self) -> None:
        self.bytes = 0
        self.base = 0

    def take(self, count: int) -> int:
        """Return where so many bytes will be, counted from `base`."""
        start = self.bytes
        # A vector's more: a block that is copied in whole vectors may end behind the last number.
        self.bytes = start + (count + 2 * VECTOR_BYTES - 1) // VECTOR_BYTES * VECTOR_BYTES
        return start

    def allocate(self) -> Array:
        """Take the memory; its owner has to be kept."""
        memory = np.empty(self.bytes + VECTOR_BYTES, np.uint8)
        self.base = -(-address_of(memory) // VECTOR_BYTES) * VECTOR_BYTES
        return memory


class Share(NamedTuple):
    """What each thread computes."""

    threads: int
    by_units: bool
    splits: list[int]


# A call of less work, in multiplications, is not worth a second thread; with fewer rows than this
# for each, units are shared instead; a matrix of so many bytes does not fit the cache of a core.
_LEAST_WORK, _LEAST_ROWS, _LARGE_MATRIX = 2_000_000, 2, 3 << 20


def share(
    batches: Any, H: int, recurrent_bytes: int, work: int, size: int, whole: bool, most: int
) -> Share:
    """
    Return how the rows or the units of a layer are shared among threads.

    Parameters
    ----------
    batches
        The rows of each step.
    recurrent_bytes, work
        Of the matrix of each step; in all, in multiplications.
    whole
        Whether each thread has to have all units of its rows.
    most
        The threads there are.
    """
    B, groups = int(batches[0]), -(-H * size // PANEL_BYTES)
    n = most if work >= _LEAST_WORK else 1
    by_rows = min(n, B // _LEAST_ROWS) if B >= 2 * _LEAST_ROWS else 1
    by_units = 1 if whole else min(n, groups)
    if by_units > 1 and (by_units > by_rows or recurrent_bytes >= _LARGE_MATRIX):
        return Share(by_units, True, [groups * k // by_units for k in range(by_units + 1)])
    n = max(by_rows, 1)
    if n == 1 or batches[-1] == B:
        return Share(n, False, [B * k // n for k in range(n + 1)])
    # Row r has a step wherever a batch is larger: as many of these for each.
    steps = np.cumsum(np.searchsorted(-np.asarray(batches), -np.arange(B), side="left"))
    splits = np.searchsorted(steps, steps[-1] * np.arange(n + 1) / n, side="left").tolist()
    return Share(n, False, [0, *splits[1:-1], B])


def oriented(w: Array, dtype: np.dtype[Any]) -> tuple[Array, bool, int]:
    """Return a matrix, whether it is transposed in memory, and the bytes from row to row there."""
    if w.dtype == dtype and w.flags.aligned:
        rows, columns = w.strides
        if (columns == w.itemsize or w.shape[1] == 1) and rows >= 0:
            return w, False, rows
        if (rows == w.itemsize or w.shape[0] == 1) and columns >= 0:
            return w, True, columns
    copy = np.ascontiguousarray(w, dtype)
    return copy, False, copy.strides[0]


def plain(a: Array, dtype: np.dtype[Any]) -> Array:
    """Return an array in C order, aligned and of this dtype."""
    a = np.asarray(a, dtype)
    flags = a.flags
    return a if flags.c_contiguous and flags.aligned else a.copy()


def panels_of(columns: int, size: int) -> int:
    """Return how many panels so many numbers fill."""
    return -(-columns * size // PANEL_BYTES)


def padded(H: int, size: int) -> int:
    """Return H, filled up to whole vectors."""
    lanes = VECTOR_BYTES // size
    return -(-H // lanes) * lanes


NOTHING = Matrix(*[0] * len(Matrix._fields))


class Columns(NamedTuple):
    """The columns of a matrix: those of each gate are H from where it starts."""

    starts: Sequence[int]
    H: int
    of: int = -1  # the input whose deltas are this matrix's too; -1 for none


class Spec(NamedTuple):
    """What the frame has to know of a cell."""

    loops: tuple[Callable[..., None], Callable[..., None]]  # forward and backward
    H: int
    inputs: Sequence[Columns]
    recurrent: Sequence[Columns]  # as many as the loops read, whether the cell has them or not
    variant: int
    table: Callable[[Any], Sequence[int]]  # what the formulas look up, of what is saved
    # For each of the deltas the matrix, the gate and the first column of what is summed.
    sums: Sequence[Sequence[tuple[int, int, int]]]
    whole: bool = False  # whether each thread has to have all units of its rows
    clips: bool = False


class Back(NamedTuple):
    """What the gradient of a layer takes besides."""

    first: Any  # the states before the first step
    given: Any  # the gradients of each step's states
    grads: Any  # a Gradients: written, but x, which is here of the dtype of the computation


# Bytes of what the products of a part leave for its steps, forward and backwards; rows that sums
# over a part have at least.
_FORWARD_PART, _BACKWARD_PART, _LEAST_PART = 1 << 19, 1 << 20, 256


def run_layer(
    spec: Spec, cell: Any, x: Array, carried: Any, starts: Any, saved: Any, back: Back | None = None
) -> None:
    """
    Compute all steps of a layer, or with `back` their gradient.

    Parameters
    ----------
    x : [N, K]
        In C order, as everything here.
    carried
        The states before the first step, overwritten with those after the last of each sequence;
        or the gradients of these, overwritten with those of the first.
    starts : [T+1]
        The first row of each step.
    saved
        The cell's Saved, [N, ·] each.
    """
    # What the threads compute is settled for as many as there are.
    with threads.claimed() as most:
        _run_layer(spec, cell, x, carried, starts, saved, back, most)


def _run_layer(
    spec: Spec, cell: Any, x: Array, carried: Any, starts: Any, saved: Any, back: Back | None,
    most: int,
) -> None:  # fmt: skip
    (rows, I), dtype, H = x.shape, x.dtype, spec.H
    size, T = dtype.itemsize, len(starts) - 1
    batches = starts[1:] - starts[:-1]
    B, P = int(batches[0]), saved.h.shape[1]
    weights = [*cell.inputs, *cell.recurrent]
    columns = [*spec.inputs, *spec.recurrent]
    depths = [I] * len(spec.inputs) + [P, *([H] * (len(spec.recurrent) - 1))]
    gated = [len(c.starts) * padded(c.H, size) for c in columns]
    panels = [panels_of(width, size) for width in gated]
    row_bytes = [n * PANEL_BYTES for n in panels]
    work = sum(rows * K * width for K, width in zip(depths, gated, strict=True))
    recurrent = len(spec.inputs)
    parts = share(batches, H, P * gated[recurrent] * size, work, size, spec.whole, most)
    n = parts.threads
    part_bytes = sum(row_bytes[:recurrent])
    if back is None:
        part = max(B, min(rows, _FORWARD_PART * n // part_bytes))
    else:
        part = max(B, min(rows, max(_BACKWARD_PART // part_bytes, _LEAST_PART)))

    memory, kept = Memory(), []
    at_packed = [
        memory.take(width * panels_of(K, size) * VECTORS * VECTOR_BYTES if back else K * across)
        for K, width, across in zip(depths, gated, row_bytes, strict=True)
    ]
    work_bytes = B * max(row_bytes)
    if back is not None:
        work_bytes = max(work_bytes, memory_of_transposed(size, max(depths)))
    at_work = memory.take(n * (work_bytes := -(-work_bytes // 4096) * 4096 + 128))
    z_bytes = [part * across for across in row_bytes]
    at_z = [memory.take(count * (1 if back else n)) for count in z_bytes]
    at_before = memory.take(part * P * size if back else 0)
    at_a = [memory.take(part * H * size if back else 0) for _ in spec.recurrent[1:]]
    at_dw = [
        memory.take(K * across) if back else 0 for K, across in zip(depths, row_bytes, strict=True)
    ]
    zeroed = memory.bytes
    at_sums = [memory.take(across if back else 0) for across in row_bytes]
    at_zeros = memory.take(max(H, P, I) * size)
    dh_row = panels_of(padded(P, size), size) * PANEL_BYTES
    at_dh = memory.take(len(carried.h) * dh_row if back else 0)
    owner = memory.allocate()
    offset = memory.base - address_of(owner)
    owner[offset + zeroed :] = 0
    if back is not None and any(c.H * size % VECTOR_BYTES for c in columns):
        for place, count in zip(at_z, z_bytes, strict=True):  # what no unit writes
            owner[offset + place : offset + place + count] = 0

    words: list[int] = []
    block = np.empty(len(Frame._fields) + 40 * len(columns) + 64 + n, np.int64)
    base = address_of(block)

    def put(values: Sequence[int]) -> int:
        words.extend(values)
        return base + 8 * (len(words) - len(values))

    # Frame and matrices stand first: what they refer to comes after them.
    words.extend([0] * (len(Frame._fields) + len(columns) * len(Matrix._fields)))
    matrices: list[int] = []
    summed = {k for gates in spec.sums for k, _, _ in gates}
    written: list[tuple[Array, Array]] = []
    for k, (c, K) in enumerate(zip(columns, depths, strict=True)):
        weight = weights[k] if k < len(weights) else None
        table = transposed = dw_table = dw_transposed = 0
        if weight is not None and weight.w is not None:
            w, transposed, stride = oriented(weight.w, dtype)
            kept.append(w)
            step = stride if transposed else size
            table = put([v for s in c.starts for v in (address_of(w) + s * step, stride)])
        if back is not None and weight is not None and back.grads.weights[k] is not None:
            grad = back.grads.weights[k]
            to, dw_transposed, stride = oriented(grad, dtype)
            if to is not grad:
                written.append((grad, to))
            step = stride if dw_transposed else size
            dw_table = put([v for s in c.starts for v in (address_of(to) + s * step, stride)])
        z = memory.base + at_z[c.of if c.of >= 0 else k]
        a, rs_a = address_of(x), I * size
        if k == recurrent:
            a, rs_a = memory.base + at_before, P * size
        elif k > recurrent:
            a, rs_a = memory.base + at_a[k - recurrent - 1], H * size
        sums = memory.base + at_sums[k] if back is not None and k in summed else 0
        matrices += Matrix(
            table, len(c.starts), c.H, K, transposed, memory.base + at_packed[k], panels[k],
            z, 0 if back else z_bytes[k], a, rs_a,
            memory.base + at_dw[k], dw_table, dw_transposed, sums,
        )  # fmt: skip
    states = carried if back is None else back.first
    first_h, first_c = address_of(states.h), 0
    dh = dc = dx = totals = 0
    given_h = given_c = memory.base + at_zeros
    given_row = given_c_row = 0
    if len(states) > 1 and states.c is not None:
        first_c = address_of(states.c)
    if back is not None:
        dh, dx = memory.base + at_dh, address_of(back.grads.x)
        dh_array = owner[offset + at_dh : offset + at_dh + len(carried.h) * dh_row]
        dh_array = dh_array.view(dtype).reshape(len(carried.h), dh_row // size)[:, :P]
        dh_array[...] = carried.h
        if first_c:
            dc = address_of(carried.c)
        if back.given.h is not None:
            given_h, given_row = address_of(back.given.h), P * size
        if first_c and back.given.c is not None:
            given_c, given_c_row = address_of(back.given.c), H * size
        if back.grads.vectors is not None:
            totals = address_of(back.grads.vectors)
    frame = Frame(
        address_of(starts), T, part, 1, 1, 0, put(parts.splits), parts.by_units, put([0]),
        address_of(x), I, address_of(saved.h), P, H, first_h, first_c, put(spec.table(saved)),
        dx, dh, dh_row, dc, given_h, given_c, given_row, given_c_row,
        memory.base + at_before, memory.base + at_work, work_bytes, memory.base + at_zeros,
        spec.variant, spec.clips, totals,
    )  # fmt: skip
    words[: len(frame) + len(matrices)] = [*frame, *matrices]
    block[: len(words)] = words
    meeting = block[(frame.meeting - base) // 8 :][:1]
    loop = compiled(spec.loops[back is not None], dtype.char)
    threads.run(n, loop, meeting, dtype.type(1), base)
    if back is None:
        return
    carried.h[...] = dh_array
    for grad, to in written:
        grad[...] = to
    for gates, total in zip(spec.sums, back.grads.sums, strict=False):
        for k, gate, start in gates:
            c, place = columns[k], offset + at_sums[k]
            found = owner[place : place + gated[k] * size].view(dtype)
            by_gate = found.reshape(-1, len(c.starts), VECTOR_BYTES // size)
            total[start : start + c.H] += by_gate[:, gate].reshape(-1)[: c.H]
