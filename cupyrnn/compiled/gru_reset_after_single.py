"""A single step of ``cells/gru_reset_after.py`` in one compiled call, its products included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .addresses import At
from .call import line_of
from .products import vectors_of
from .simd import VECTOR_BYTES, part, read_fields, size_of
from .single import (
    Layout,
    Step,
    at,
    compiled_ways,
    input_or_nothing,
    lying,
    memory_of_step,
    multiply_back,
    multiply_columns,
    own_vectors,
    plain,
    product_memory,
    product_memory_at,
    put,
    run,
    vectors_in,
)
from .single_formulas import DELTAS_OF_RESET_AFTER, STATE_OF_RESET_AFTER, ResetAfterTable

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import BackwardStep, States
    from ..cells.gru_reset_after import GRUResetAfter, GRUResetAfterOutputs


@part
def _lay_out(
    table: Array, r: Array, u: Array, c: Array, hc: Array, numbers: Array, row: int, size: int,
    hc_last: int,
) -> None:  # fmt: skip
    """Write what the formula looks up, for z and zh of a gate after the other."""
    put(table, 0, (at(r), at(u), at(c), at(hc)))
    put(table, 5, (row, 2 * row))
    # The columns of zh are those of hc, r and u, or of r, u and hc.
    put(table, 7, (hc_last * 2 * row, (1 - hc_last) * row, (2 - hc_last) * row))
    table[10] = VECTOR_BYTES
    put(table, 15, (at(numbers), at(numbers) + size))


class _Words(NamedTuple):
    """What a step's loop reads; z and zh are memory."""

    B: int
    I: int
    H: int
    x: int
    w_x: int
    x_turned: int
    h_prev: int
    w_h: int
    h_turned: int
    hard: int
    z: int
    zh: int
    memory: int


_read, _TABLE = read_fields(_Words), 8 * len(_Words._fields)


def _arrange(
    size: int, B: int, I: int, H: int, hard: int, hc_last: int, x_turned: int, h_turned: int
) -> Layout:
    """Arrange what `run` is given: x, h_prev, w_x, w_h, biases, numbers, r, u, c, hc, h, z, zh."""
    memory, _, x, h_prev, w_x, w_h, b, b_hc, numbers, r, u, c, hc, h, z, zh = map(At, range(16))
    row = H * size
    words = _Words._make([
        B, I, H, x, w_x, x_turned, h_prev, w_h, h_turned, hard, z,
        zh, memory
    ])  # fmt: skip
    # The columns of zh are those of hc, r and u, or of r, u and hc.
    of_zh = hc_last * 2 * row, (1 - hc_last) * row, (2 - hc_last) * row
    table = ResetAfterTable._make([
        r, u, c, hc, h, row, 2 * row, *of_zh, VECTOR_BYTES, b, b._replace(offset=row),
        b._replace(offset=2 * row), b_hc, numbers, numbers._replace(offset=size)
    ])  # fmt: skip
    return Layout([*words, *table])


def gru_reset_after_step_forward(tid: int, n: int, one: Any, address: int) -> None:
    """One step of a thread's units."""
    s = _read(address)
    B, I, H = s.B, s.I, s.H
    to, row = product_memory_at(s.memory, tid), H * size_of(one)
    u0, u1 = own_vectors(one, tid, n, H)
    # One call for both, as each is compiled anew.
    for which in range(2):
        a, rs_a, K, w, turned, into = s.x, I * size_of(one), I, s.w_x, s.x_turned, s.z
        if which == 1:
            a, rs_a, K, w, turned, into = s.h_prev, row, H, s.w_h, s.h_turned, s.zh
        multiply_columns(one, n, u0, u1, 3, H, B, a, rs_a, K, w, turned, into, 0, to)
    for k in range(B):
        STATE_OF_RESET_AFTER(one, (
            u0, u1, H, s.hard, s.z + 3 * k * row, s.zh + 3 * k * row, s.h_prev + k * row,
            k * row, address + _TABLE,
        ))  # fmt: skip


def gru_reset_after_backward(
    work: Array, table: Array,
    r: Array, u: Array, c: Array, hc: Array, h_prev: Array, dh: Array, numbers: Array, hard: int,
    hc_last: int, w_h: Array, h_turned: int, w_x: Array, x_turned: int, dz: Array, dz_start: int,
    dzh: Array, dzh_start: int, dx: Array,
) -> None:  # fmt: skip
    """
    One step backwards; a dx without a number is not wanted.

    From these columns on dz and dzh, which may be the same array, have the deltas of r, u and c and
    of what w_h gives.
    """
    one = dz.dtype.type(1)
    size = size_of(one)
    (B, H), I = h_prev.shape, dx.shape[1]
    to, row = product_memory(work, 0), H * size
    _, zeros, _ = vectors_in(work, H)
    zeros[:] = 0
    _lay_out(table, r, u, c, hc, numbers, row, size, hc_last)
    rs_z, rs_zh = dz.shape[1] * size, dzh.shape[1] * size
    z, zh = at(dz) + dz_start * size, at(dzh) + dzh_start * size
    for k in range(B):
        DELTAS_OF_RESET_AFTER(one, (
            0, vectors_of(one, H), H, hard, z + k * rs_z, zh + k * rs_zh, at(h_prev) + k * row,
            k * row, at(dh) + k * row, at(zeros), at(table),
        ))  # fmt: skip
    # One call for both, as each is compiled anew.
    for which in range(2 if dx.size > 0 else 1):
        # dh = dh*u + dzh @ w_h.T
        a, rs_a, w, turned, width, into, add = zh, rs_zh, at(w_h), h_turned, H, at(dh), 1
        if which == 1:
            a, rs_a, w, turned, width, into, add = z, rs_z, at(w_x), x_turned, I, at(dx), 0
        multiply_back(one, B, a, rs_a, 3 * H, w, turned, width, into, add, to)


_forward = Step(gru_reset_after_step_forward, _arrange)
_backward, takes = compiled_ways(
    _forward,
    (gru_reset_after_backward, f"w1 t{' r2' * 5} w2 r1 n n r2 n r2 n w2 n w2 n w2"),
)


def forward_step(cell: GRUResetAfter, x: Array, first: States, saved: GRUResetAfterOutputs) -> None:
    """One step with all its products."""
    (w_x, x_turned), (w_h, h_turned) = lying(cell.inputs[0].w), lying(cell.recurrent[0].w)
    (B, I), h_prev, dtype = x.shape, plain(first.h), x.dtype
    H = h_prev.shape[1]
    run(
        _forward, dtype.char, B * (I + H) * 3 * H, H,
        (B, I, H, cell.gate is not None, cell.hc_last, x_turned, h_turned),
        (
            plain(x), h_prev, w_x, w_h, plain(cell.b), plain(cell.b_hc), line_of(cell.gate, dtype),
            *saved, *np.empty((2, B, 3 * H), dtype),
        ),
    )  # fmt: skip


def backward_step(cell: GRUResetAfter, step: BackwardStep) -> None:
    """One step backwards."""
    dh, (of_x,), (w_h,) = step.carried.h, cell.inputs, cell.recurrent
    dtype = dh.dtype
    w_x, dx = input_or_nothing(cell, step)
    _backward(dtype.char)(
        *memory_of_step(1, dh.shape[1], dtype.char),
        *map(plain, step.saved[:4]), plain(step.before.h), dh, line_of(cell.gate, dtype),
        cell.gate is not None, cell.hc_last, *lying(w_h.w), *w_x,
        step.deltas[of_x.of], of_x.columns.start or 0,
        step.deltas[w_h.of], w_h.columns.start or 0, dx,
    )  # fmt: skip
