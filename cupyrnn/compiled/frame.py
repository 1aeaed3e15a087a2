"""
All steps of a layer, of any cell, forward and backward: memory, threads, products and formulas.

A layer is one compiled call. It splits the steps into parts. A part is small enough that its
pre-activations (forward) or deltas (backward) stay in a core's cache until they are used. Each
thread computes its own rows of the batch, and waits for the others only when weights are packed
and when their gradients are summed. If there are few rows, each thread computes its own units, and
waits for the others after each step.

In a forward step, each recurrent matrix means a product, then a formula of the cell; backward, the
formula, then the product. The first matrix multiplies h of the step before. A second one multiplies
the result of the first formula. The last product of a projection is h.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .addresses import Address
from .barrier import arrive_and_wait
from .products import multiply, multiply_transposed, pack, unpack, vectors_of
from .simd import (
    SUMMED_ROWS,
    VECTOR_BYTES,
    VECTORS,
    Code,
    Word,
    add_columns,
    call,
    call_of,
    copy,
    fill,
    over_units,
    part,
    read_fields,
    read_word,
    routine,
    size_of,
)

# Values of `Matrix.adds_to`, besides the number of an input: the product is added to nothing, or
# the product is h.
APART, MAKES_H = -1, -2


class Matrix(NamedTuple):
    """A matrix w[K, G*H] of a layer, its products and its gradient: addresses and sizes."""

    table: Address  # the address and the stride of each gate, as `pack` reads them
    gates: int  # G
    H: int
    K: int
    transposed: int
    packed: Address
    panels: int  # of a row of z
    z: Address  # pre-activations or deltas of some steps, by row
    z_stride: int  # from one thread's memory to the next thread's
    rs_z: int
    adds_to: int  # the number of the input whose product this one is added to
    a: Address  # backward: the operand of the product, for all steps or for this part
    rs_a: int
    dw: Address  # the gradient [K, panels], summed
    dw_table: Address  # the places of the gradient's gates; 0 if it is not wanted
    dw_transposed: int
    sums: Address  # the sums of the rows of z; 0 if they are not wanted
    sums_table: Address  # two places of each gate's sums; 0 where there is none
    variant: int  # of the formula of a recurrent matrix


class Frame(NamedTuple):
    """The memory of one call: addresses, and sizes in bytes or numbers. Cells without c have 0."""

    starts: Address  # [T+1], the first row of each step
    T: int
    rows: int  # the most rows of z in a part
    splits: Address  # [threads+1], the first row of each thread, or the first 4 vectors of units
    by_units: int
    barrier: Address  # the counter of the barrier
    x: Address
    I: int
    h: Address  # of each step
    P: int
    H: int
    first_h: Address  # before the first step
    first_c: Address
    last_h: Address  # written after the last step of each sequence; 0 if they are not wanted
    last_c: Address
    biases: int  # the number of gates that add two biases
    b_x: Address
    b_h: Address
    b: Address  # their sum, computed here
    output: Address  # a second copy of h of each step; 0 if it is not wanted
    output_row: int  # from row to row
    # Whether output and h_grad have their steps in reverse order. All sequences then have one
    # length.
    is_reversed: int
    back: int  # whether step 0 has the last rows of all arrays
    formulas: Address  # the code of the cell's rows
    table: Address  # the table that this code reads
    dx: Address  # 0 if it is not wanted
    dh: Address  # the gradients that are carried
    dc: Address
    h_grad: Address  # of each step, or zeros
    c_grad: Address
    h_grad_row: int  # from row to row; 0 for zeros
    c_grad_row: int
    before: Address  # h before each step of a part
    work: Address
    work_stride: int  # from one thread's memory to the next thread's
    zeros: Address  # one row of zeros
    terms: Address  # the code of the terms of the gradients of the cell's own vectors
    totals: Address  # these gradients; 0 if there are none
    vectors: int  # the number of these vectors
    writes_deltas: int  # whether deltas are written instead of the gradients of the weights
    inputs: int  # the number of matrices of x; the recurrent ones follow them
    stages: int  # the number of recurrent matrices
    adds_to_dh: int  # whether the last product backwards is added to dh
    c: Address  # of each step
    zeroed: Address  # memory that has to be zero, and its bytes
    zeroed_bytes: int


def sum_of_gates(c: Code, _: int, u: Word, z: Word, gates: Word, to: Word) -> None:
    """Store the sum of all gates of one vector of units."""
    sums = c.sum(c.word(0), gates, z + u * gates * VECTOR_BYTES, VECTOR_BYTES)
    c.store(sums, to + u * VECTOR_BYTES)


def sum_of_two(c: Code, _: int, u: Word, a: Word, b: Word, to: Word) -> None:
    """Store one vector of a + b."""
    offset = u * VECTOR_BYTES
    c.store(c.load(a + offset) + c.load(b + offset), to + offset)


_sum_of_gates = routine(over_units(1, sum_of_gates))
add_rows = routine(over_units(1, sum_of_two))
read_frame, read_matrix = read_fields(Frame), read_fields(Matrix)
FRAME_BYTES, MATRIX_BYTES = 8 * len(Frame._fields), 8 * len(Matrix._fields)


@part
def own_rows(tid: int, f: Frame) -> tuple[int, int]:
    """Return the rows of each step that a thread computes; a step may have fewer."""
    if f.by_units:
        return 0, read_word(f.starts + 8)
    return read_word(f.splits + 8 * tid), read_word(f.splits + 8 * tid + 8)


@part
def rows_of(f: Frame, t0: int, t1: int) -> int:
    """Return the number of rows of the steps t0..t1-1."""
    return read_word(f.starts + 8 * t1) - read_word(f.starts + 8 * t0)


@part
def first_row(f: Frame, t0: int, t1: int) -> int:
    """Return the first row in memory of the steps t0..t1-1."""
    return rows_of(f, t1, f.T) if f.back else read_word(f.starts + 8 * t0)


@part
def row_in_time(f: Frame, first: int) -> int:
    """Return the first row of a step in output and h_grad, from its first row elsewhere."""
    if f.is_reversed:
        return read_word(f.starts + 8 * f.T) - first - read_word(f.starts + 8)
    return first


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
    """Return the panels of a matrix of `gates` gates that belong to these vectors of units."""
    return u0 * gates // VECTORS, (u1 * gates + VECTORS - 1) // VECTORS


@part
def matrix(address: int, k: int) -> Matrix:
    """Return matrix k of a layer: first the matrices of x, then the recurrent ones."""
    return read_matrix(address + FRAME_BYTES + k * MATRIX_BYTES)


@part
def pack_all(tid: int, n: int, one: Any, f: Frame, address: int, backward: int) -> None:
    """Pack a thread's part of the weights."""
    for k in range(f.inputs + f.stages):
        m = matrix(address, k)
        if m.table and (f.dx or not backward or k >= f.inputs):
            pack(one, m.table, m.gates, m.H, m.K, m.transposed, backward, m.packed, tid, n)


@part
def part_end(f: Frame, t0: int) -> int:
    """Return the end of the part that begins with step t0 (exclusive)."""
    t1 = t0 + 1
    last = read_word(f.starts + 8 * t0) + f.rows
    while t1 < f.T and read_word(f.starts + 8 * t1 + 8) <= last:
        t1 += 1
    return t1


@part
def part_start(f: Frame, t1: int) -> int:
    """Return the first step of the part that ends before step t1."""
    t0 = t1 - 1
    first = read_word(f.starts + 8 * t1) - f.rows
    while t0 > 0 and read_word(f.starts + 8 * t0 - 8) >= first:
        t0 -= 1
    return t0


@part
def input_products(tid: int, one: Any, f: Frame, address: int, t0: int, t1: int) -> None:
    """Compute z = x @ w for a thread's rows and units, for the steps t0..t1-1."""
    size = size_of(one)
    r0, r1 = own_rows(tid, f)
    u0, u1 = own_units(one, tid, f)
    start = first_row(f, t0, t1)
    all_rows = r0 == 0 and r1 >= read_word(f.starts + 8)
    # All rows of all steps are one matrix; a thread's own rows are one matrix for each step.
    pieces = 1 if all_rows else t1 - t0
    for k in range(f.inputs):
        m = matrix(address, k)
        z = m.z + tid * m.z_stride
        p0, p1 = own_panels(u0, u1, m.gates)
        for piece in range(pieces):
            t, first, rows = t0 + piece, start, rows_of(f, t0, t1)
            if not all_rows:
                first, rows = first_row(f, t, t + 1) + r0, min(r1, rows_of(f, t, t + 1)) - r0
            if rows <= 0:
                continue
            a, c = f.x + first * f.I * size, z + (first - start) * m.rs_z
            if m.table:
                columns = m.rs_z // size
                multiply(one, rows, a, f.I * size, f.I, m.packed, p0, p1, c, m.rs_z, columns, 0, 0)
            else:  # x for every gate
                for r in range(rows):
                    for j in range(u0 * m.gates, u1 * m.gates):
                        u = j // m.gates * VECTOR_BYTES
                        source = a + r * f.I * size + u
                        count = min(VECTOR_BYTES, f.H * size - u)
                        copy(c + r * m.rs_z + j * VECTOR_BYTES, source, count)


@part
def multiply_back(
    one: Any, m: Matrix, rows: int, z: int, p0: int, p1: int, to: int, rs: int, columns: int,
    add: int,
) -> None:  # fmt: skip
    """Compute some panels of to[rows, columns] (+)= z @ w.T."""
    depth = vectors_of(one, m.H) * m.gates * VECTOR_BYTES // size_of(one)
    multiply(one, rows, z, m.rs_z, depth, m.packed, p0, p1, to, rs, columns, add, 1)


@part
def store_sums(one: Any, m: Matrix, first: int, last: int) -> None:
    """Write the vectors first..last-1 of the sums of a matrix's gates to their places."""
    for j in range(first, min(last, vectors_of(one, m.H) * m.gates)):
        u, g = j // m.gates * VECTOR_BYTES, j % m.gates
        for n in range(2):
            to = read_word(m.sums_table + 16 * g + 8 * n)
            if to:
                count = min(VECTOR_BYTES, m.H * size_of(one) - u)
                copy(to + u, m.sums + j * VECTOR_BYTES, count)


@part
def weight_products(
    tid: int, n: int, one: Any, f: Frame, address: int, t0: int, t1: int, turn: int
) -> int:
    """
    Sum the gradients of weights and biases over the steps t0..t1-1, and write the gradient of x.

    The deltas of all threads must be complete. They are no longer needed afterwards.
    """
    size = size_of(one)
    start, rows = first_row(f, t0, t1), rows_of(f, t0, t1)
    add = 1 if t1 < f.T else 0
    memory = f.work + tid * f.work_stride
    m0, m1 = rows * tid // n, rows * (tid + 1) // n
    to, rs = f.dx + (start + m0) * f.I * size, f.I * size
    for k in range(f.inputs if f.dx else 0):
        m = matrix(address, k)
        z = m.z + m0 * m.rs_z
        if m.table:
            panels = (vectors_of(one, m.K) + VECTORS - 1) // VECTORS
            multiply_back(one, m, m1 - m0, z, 0, panels, to, rs, f.I, min(k, 1))
        else:  # x is part of every gate
            for r in range(m1 - m0):
                units = vectors_of(one, m.H)
                _sum_of_gates(one, (0, units, m.H, 0, z + r * m.rs_z, m.gates, to + r * rs))
    for k in range(f.inputs + f.stages):
        m = matrix(address, k)
        p0, p1 = m.panels * tid // n, m.panels * (tid + 1) // n
        if m.sums:
            add_columns(one, (rows, m.z, m.rs_z, p0 * VECTORS, p1 * VECTORS, m.sums))
            if t0 == 0:
                store_sums(one, m, p0 * VECTORS, p1 * VECTORS)
        if m.dw_table:
            a, source, depth, skip = m.a, m.z, rows, start
            if not f.writes_deltas:
                if k < f.inputs:
                    a += start * m.rs_a
                multiply_transposed(
                    one, rows, a, m.rs_a, m.K, m.z, m.rs_z, m.dw, m.rs_z, p0, p1, add, memory
                )
                source, depth, skip = m.dw, m.K, 0
            if f.writes_deltas or t0 == 0:
                unpack(
                    one, source, m.rs_z, m.dw_table, m.gates, m.H, depth, m.dw_transposed,
                    p0 * VECTORS, p1 * VECTORS, skip,
                )  # fmt: skip
    return arrive_and_wait(f.barrier, n, turn)


def all_steps(one: Any, words: int) -> None:
    """Compute all steps for a thread's rows and units: a function for `compiled`."""
    tid, n, address = call_of(words)
    f = read_frame(address)
    of_x, last = matrix(address, 0), matrix(address, f.inputs + f.stages - 1)
    size = size_of(one)
    r0, r1 = own_rows(tid, f)
    u0, u1 = own_units(one, tid, f)
    row, h_row = f.H * size, f.P * size
    pack_all(tid, n, one, f, address, 0)
    for g in range(f.biases if tid == 0 else 0):
        offset = g * row
        b = f.b_x + offset, f.b_h + offset, f.b + offset
        add_rows(one, (0, vectors_of(one, f.H), f.H, 0, *b))
    turn = arrive_and_wait(f.barrier, n, 1)
    # Operands of all units. If the threads share the units, they also share this memory.
    work = f.work if f.by_units else f.work + tid * f.work_stride
    h_prev, c_prev, t0 = f.first_h, f.first_c, 0
    while t0 < f.T:
        t1 = part_end(f, t0)
        start = first_row(f, t0, t1)
        input_products(tid, one, f, address, t0, t1)
        for t in range(t0, t1):
            first, batch = first_row(f, t, t + 1), rows_of(f, t, t + 1)
            rows = min(r1, batch) - r0
            at, in_part = first + r0, first + r0 - start
            z, h = of_x.z + tid * of_x.z_stride + in_part * of_x.rs_z, f.h + at * h_row
            zh, to, to_row = work, h, h_row  # results of the last product and the first formula
            if last.adds_to >= 0:
                m = matrix(address, last.adds_to)
                zh = m.z + tid * m.z_stride + in_part * m.rs_z
            a, rs_a = h_prev + r0 * h_row, h_row
            if f.stages > 1:
                to, to_row = work, row
            for k in range(f.stages):
                m = matrix(address, f.inputs + k)
                into, rs, columns, add = z, m.rs_z, m.rs_z // size, 1
                p0, p1 = own_panels(u0, u1, m.gates)
                if m.adds_to == MAKES_H:
                    into, rs, columns, add, p0, p1 = h, h_row, f.P, 0, 0, m.panels
                elif m.adds_to == APART:
                    into, add = zh, 0
                elif m.adds_to > 0:
                    into = zh
                multiply(one, rows, a, rs_a, m.K, m.packed, p0, p1, into, rs, columns, add, 0)
                if m.adds_to == MAKES_H:
                    break
                call(f.formulas, one, (
                    rows, u0, u1, f.H, m.variant,
                    f.table, z, zh, h_prev + r0 * h_row, c_prev + r0 * row, at * row, to,
                    0, of_x.rs_z, last.rs_z, h_row, row, row, to_row,
                ))  # fmt: skip
                if f.by_units:
                    turn = arrive_and_wait(f.barrier, n, turn)
                a, rs_a = work, row
            h_prev, c_prev = f.h + first * h_row, f.c + first * row
            if tid == 0 or not f.by_units:
                to_row, to = f.output_row, f.output + (row_in_time(f, first) + r0) * f.output_row
                for r in range(rows if f.output else 0):
                    copy(to + r * to_row, h + r * h_row, h_row)
                done = max(r0, rows_of(f, t + 1, t + 2) if t + 1 < f.T else 0)
                ended = min(r1, batch) - done
                if ended > 0 and f.last_h:
                    copy(f.last_h + done * h_row, h_prev + done * h_row, ended * h_row)
                    if f.last_c:
                        copy(f.last_c + done * row, c_prev + done * row, ended * row)
        t0 = t1


@part
def add_sums(one: Any, f: Frame, u0: int, u1: int, sums: int) -> None:
    """Add some units of sums to the gradients of a cell's own vectors."""
    row = f.H * size_of(one)
    for k in range(f.vectors):
        to = f.totals + k * row
        add_rows(one, (u0, u1, f.H, 0, sums + k * row, to, to))


@part
def sum_terms(tid: int, n: int, one: Any, f: Frame, address: int, t0: int, t1: int) -> None:
    """Add the gradients of a cell's own vectors over the steps t0..t1-1, for a thread's units."""
    z, row = matrix(address, 0), f.H * size_of(one)
    units, sums, summed = vectors_of(one, f.H), f.work + tid * f.work_stride, 0
    u0, u1 = units * tid // n, units * (tid + 1) // n
    start = first_row(f, t0, t1)
    for t in range(t0, t1):
        first, rows = first_row(f, t, t + 1), rows_of(f, t, t + 1)
        c_prev = f.first_c if t == 0 else f.c + first_row(f, t - 1, t) * row
        for r in range(rows):
            call(f.terms, one, (
                u0, u1, f.H, min(summed, 1), sums, row, f.table,
                z.z + (first - start + r) * z.rs_z, c_prev + r * row, (first + r) * row,
            ))  # fmt: skip
            summed += 1
            # The sums of groups of rows are added, because one long sum loses more digits.
            if summed == SUMMED_ROWS:
                add_sums(one, f, u0, u1, sums)
                summed = 0
    if summed > 0:  # the last steps may have no rows
        add_sums(one, f, u0, u1, sums)


def all_steps_back(one: Any, words: int) -> None:
    """Compute the gradient of all steps for a thread's rows and units, and its share of sums."""
    tid, n, address = call_of(words)
    f = read_frame(address)
    of_x, last = matrix(address, 0), matrix(address, f.inputs + f.stages - 1)
    size = size_of(one)
    r0, r1 = own_rows(tid, f)
    u0, u1 = own_units(one, tid, f)
    row, h_row = f.H * size, f.P * size
    pack_all(tid, n, one, f, address, 1)
    if tid == 0:
        fill(f.zeroed, 0, f.zeroed_bytes)
    turn = arrive_and_wait(f.barrier, n, 1)
    work, t1 = f.work + tid * f.work_stride, f.T
    while t1 > 0:
        t0 = part_start(f, t1)
        start = first_row(f, t0, t1)
        for t in range(t1 - 1, t0 - 1, -1):
            first = first_row(f, t, t + 1)
            rows = min(r1, rows_of(f, t, t + 1)) - r0
            at, in_part = first + r0, first + r0 - start
            h_prev, c_prev = f.first_h, f.first_c
            if t > 0:
                before = first_row(f, t - 1, t)
                h_prev, c_prev = f.h + before * h_row, f.c + before * row
            if rows > 0 and (tid == 0 or not f.by_units):
                copy(f.before + in_part * h_row, h_prev + r0 * h_row, rows * h_row)
            h_grad_row, c_grad_row = f.h_grad_row, f.c_grad_row
            dh, h_grad = f.dh + r0 * h_row, f.h_grad + (row_in_time(f, first) + r0) * h_grad_row
            through, through_row = dh, h_row
            z, zh = of_x.z + in_part * of_x.rs_z, last.z + in_part * last.rs_z
            for k in range(f.stages - 1, -1, -1):
                m = matrix(address, f.inputs + k)
                if m.adds_to == MAKES_H:  # the output gradient [P] passes through w_p
                    for r in range(rows):
                        add_rows(one, (
                            0, m.panels * VECTORS, f.P, 0, dh + r * h_row,
                            h_grad + r * h_grad_row, zh + r * last.rs_z,
                        ))  # fmt: skip
                    h_grad, h_grad_row = f.zeros, 0
                call(f.formulas, one, (
                    rows, u0, u1, f.H, m.variant,
                    f.table, z, zh, h_prev + r0 * h_row, c_prev + r0 * row, at * row,
                    last.a + in_part * row, dh, through, f.dc + r0 * row, h_grad,
                    f.c_grad + at * c_grad_row,
                    0, of_x.rs_z, last.rs_z, h_row, row, row, row, h_row, through_row, row,
                    h_grad_row, c_grad_row,
                ))  # fmt: skip
                if f.by_units:
                    turn = arrive_and_wait(f.barrier, n, turn)
                deltas, into, rs, add = z, dh, h_row, f.adds_to_dh
                p0, p1 = own_panels(u0, u1, 1)
                if k == f.stages - 1:
                    deltas = zh
                if k > 0:
                    into, rs, add = work, row, 0
                    through, through_row = into, rs
                elif last.adds_to == MAKES_H:
                    p0, p1 = 0, (vectors_of(one, f.P) + VECTORS - 1) // VECTORS
                multiply_back(one, m, rows, deltas, p0, p1, into, rs, rs // size, add)
        turn = arrive_and_wait(f.barrier, n, turn)
        if f.totals:
            sum_terms(tid, n, one, f, address, t0, t1)
        turn = weight_products(tid, n, one, f, address, t0, t1, turn)
        t1 = t0
