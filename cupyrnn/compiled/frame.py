"""
What the compiled layers of all cells share: memory, threads, and the products around the steps.

A layer is one compiled call. In it the steps are taken in parts whose pre-activations, forward, or
deltas, backwards, stay in a core's cache from the products that make them to those that use them.
A thread has rows of the batch of its own and meets the others only where weights are packed and
where their gradients are summed; or, of few rows, units of its own, and meets them after each step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .meeting import meet
from .products import (
    PANEL_BYTES,
    multiply,
    multiply_transposed,
    pack,
    unpack,
    vectors_of,
)
from .simd import (
    I64,
    VECTOR_BYTES,
    VECTORS,
    Code,
    Word,
    add_columns,
    alloca,
    over_units,
    part,
    read_fields,
    read_word,
    row_of_numbers,
    size_of,
)


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
    keeps: int  # whether the deltas are written, where else the gradients of the weights are


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
        if m.sums and not f.keeps:
            add_columns(one, (rows, m.z, rs, p0 * VECTORS, p1 * VECTORS, m.sums))
        if m.dw_table:
            a, made, depth, skip = m.a, m.z, rows, start
            if not f.keeps:
                if k < len(inputs):
                    a += start * m.rs_a
                multiply_transposed(
                    one, rows, a, m.rs_a, m.K, m.z, rs, m.dw, rs, p0, p1, add, memory
                )
                made, depth, skip = m.dw, m.K, 0
            if f.keeps or (t0 == 0 and f.finishes):
                unpack(
                    one, made, rs, m.dw_table, m.gates, m.H, depth, m.dw_transposed,
                    p0 * VECTORS, p1 * VECTORS, skip,
                )  # fmt: skip
    return meet(f.meeting, n, turn)
