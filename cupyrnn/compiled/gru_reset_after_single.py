"""A single step of ``cells/gru_reset_after.py`` in one compiled call, its products included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .call import line_of
from .formulas import DELTAS_OF_RESET_AFTER, STATE_OF_RESET_AFTER
from .products import vectors_of
from .simd import VECTOR_BYTES, part, size_of
from .single import (
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
    put,
    run,
    vectors_in,
)

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import BackwardStep, States
    from ..cells.gru_reset_after import GRUResetAfter, GRUResetAfterOutputs


@part
def _lay_out(
    table: Array, r: Array, u: Array, c: Array, hc: Array, numbers: Array, row: int, size: int,
    hc_last: int,
) -> None:  # fmt: skip
    """Write what both ways look up, for z and zh of a gate after the other."""
    put(table, 0, (at(r), at(u), at(c), at(hc)))
    put(table, 5, (row, 2 * row))
    # The columns of zh are those of hc, r and u, or of r, u and hc.
    put(table, 7, (hc_last * 2 * row, (1 - hc_last) * row, (2 - hc_last) * row))
    table[10] = VECTOR_BYTES
    put(table, 15, (at(numbers), at(numbers) + size))


def gru_reset_after_forward(
    tid: int, n: int, work: Array, table: Array,
    x: Array, w_x: Array, x_turned: int, h_prev: Array, w_h: Array, h_turned: int, b: Array,
    b_hc: Array, numbers: Array, hard: int, hc_last: int, r: Array, u: Array, c: Array, hc: Array,
    h: Array, z: Array, zh: Array,
) -> None:  # fmt: skip
    """One step of a thread's units; `numbers` are slope and offset, z and zh memory."""
    one = z.dtype.type(1)
    size = size_of(one)
    (B, H), I = h_prev.shape, x.shape[1]
    to, row = product_memory(work, tid), H * size
    u0, u1 = own_vectors(one, tid, n, H)
    _lay_out(table, r, u, c, hc, numbers, row, size, hc_last)
    table[4] = at(h)
    put(table, 11, (at(b), at(b) + row, at(b) + 2 * row, at(b_hc)))
    # One call for both, as each is compiled anew.
    for which in range(2):
        a, rs_a, K, w, turned, into = at(x), I * size, I, at(w_x), x_turned, at(z)
        if which == 1:
            a, rs_a, K, w, turned, into = at(h_prev), row, H, at(w_h), h_turned, at(zh)
        multiply_columns(one, n, u0, u1, 3, H, B, a, rs_a, K, w, turned, into, 0, to)
    for k in range(B):
        STATE_OF_RESET_AFTER(one, (
            u0, u1, H, hard, at(z) + 3 * k * row, at(zh) + 3 * k * row, at(h_prev) + k * row,
            k * row, at(table),
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


_forward, _backward, takes = compiled_ways(
    (gru_reset_after_forward, f"n n w1 t r2 r2 n r2 r2 n r1 r1 r1 n n{' w2' * 7}"),
    (gru_reset_after_backward, f"w1 t{' r2' * 5} w2 r1 n n r2 n r2 n w2 n w2 n w2"),
)


def forward_step(cell: GRUResetAfter, x: Array, first: States, saved: GRUResetAfterOutputs) -> None:
    """One step with all its products."""
    (w_x,), (w_h,), h_prev, dtype = cell.inputs, cell.recurrent, plain(first.h), x.dtype
    B, H = h_prev.shape
    run(
        _forward(dtype.char), x.shape[1] + H, 3 * H, B, H,
        (
            plain(x), *lying(w_x.w), h_prev, *lying(w_h.w), plain(cell.b), plain(cell.b_hc),
            line_of(cell.gate, dtype), cell.gate is not None, cell.hc_last, *saved,
            *np.empty((2, B, 3 * H), dtype),
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
