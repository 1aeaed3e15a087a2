"""A single step of ``cells/gru.py`` in one compiled call, its products included."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .call import line_of
from .formulas import DELTAS_TO_C, DELTAS_TO_R, GATES_OF_GRU, STATE_OF_GRU
from .meeting import meet
from .products import vectors_of
from .simd import VECTOR_BYTES, size_of
from .single import (
    at,
    compiled_ways,
    lying,
    memory_of_step,
    multiply_back,
    multiply_columns,
    nothing,
    own_vectors,
    plain,
    product_memory,
    put,
    run,
    vectors_in,
)

if TYPE_CHECKING:
    from .._arrays import Array
    from ..arithmetic.gates import HardSigmoid
    from ..cells.contract import BackwardStep, States
    from ..cells.gru import GRU, GRUOutputs


def gru_forward(
    tid: int, n: int, work: Array, table: Array,
    x: Array, w_ru: Array, ru_turned: int, w_c: Array, c_turned: int,
    h_prev: Array, u_ru: Array, u_ru_turned: int, u_c: Array, u_c_turned: int, b_ru: Array,
    b_c: Array, numbers: Array, hard: int, meeting: int, r: Array, u: Array, c: Array, h: Array,
    z_ru: Array, z_c: Array, h_reset: Array,
) -> None:  # fmt: skip
    """One step of a thread's units; `numbers` are slope and offset, z and h_reset memory."""
    one = z_c.dtype.type(1)
    size = size_of(one)
    (B, H), I = h_prev.shape, x.shape[1]
    to, row = product_memory(work, tid), H * size
    u0, u1 = own_vectors(one, tid, n, H)
    put(table, 0, (at(r), at(u), at(c), at(h), row, VECTOR_BYTES))
    put(table, 6, (at(b_ru), at(b_ru) + row, at(b_c)))
    put(table, 9, (at(numbers), at(numbers) + size))
    place = at(table)
    # One call for all four, as each is compiled anew.
    for which in range(4):
        a, rs_a, K, w, turned, gates = at(x), I * size, I, at(w_ru), ru_turned, 2
        z = at(z_ru)
        if which == 1:
            a, rs_a, K, w, turned = at(h_prev), row, H, at(u_ru), u_ru_turned
        elif which == 2:
            w, turned, gates, z = at(w_c), c_turned, 1, at(z_c)
        elif which == 3:
            for k in range(B):
                GATES_OF_GRU(one, (
                    u0, u1, H, hard, at(z_ru) + 2 * k * row, at(h_prev) + k * row, k * row,
                    at(h_reset) + k * row, place,
                ))  # fmt: skip
            if n > 1:
                meet(meeting, n, 1)
            a, rs_a, K, w, turned, gates = at(h_reset), row, H, at(u_c), u_c_turned, 1
            z = at(z_c)
        multiply_columns(one, n, u0, u1, gates, H, B, a, rs_a, K, w, turned, z, which % 2, to)
    for k in range(B):
        STATE_OF_GRU(one, (
            u0, u1, H, 0, at(z_c) + k * row, at(h_prev) + k * row, k * row, place
        ))  # fmt: skip


def gru_backward(
    work: Array, table: Array,
    r: Array, u: Array, c: Array, h_prev: Array, dh: Array, numbers: Array, hard: int,
    u_ru: Array, u_ru_turned: int, u_c: Array, u_c_turned: int, w_ru: Array, ru_turned: int,
    w_c: Array, c_turned: int, d_ru: Array, d_c: Array, dx: Array, d_hr: Array,
) -> None:  # fmt: skip
    """One step backwards; a dx without a number is not wanted. d_hr is memory."""
    one = d_c.dtype.type(1)
    size = size_of(one)
    (B, H), I = h_prev.shape, dx.shape[1]
    to, row, units = product_memory(work, 0), H * size, vectors_of(one, H)
    _, zeros, unused = vectors_in(work, H)
    zeros[:] = 0
    put(table, 0, (at(r), at(u), at(c), 0, row, VECTOR_BYTES))
    put(table, 6, (0, 0, 0))
    put(table, 9, (at(numbers), at(numbers) + size))
    place = at(table)
    for k in range(B):
        DELTAS_TO_C(one, (
            0, units, H, hard, at(d_ru) + 2 * k * row, at(d_c) + k * row, at(h_prev) + k * row,
            k * row, at(dh) + k * row, at(zeros), place,
        ))  # fmt: skip
    # One call for all four, as each is compiled anew.
    for which in range(4 if dx.size > 0 else 2):
        a, K, w, turned, width, into, add = at(d_c), H, at(u_c), u_c_turned, H, at(d_hr), 0
        if which == 1:
            for k in range(B):
                DELTAS_TO_R(one, (
                    0, units, H, hard, at(d_ru) + 2 * k * row, at(h_prev) + k * row, k * row,
                    at(dh) + k * row, at(d_hr) + k * row, at(unused), place,
                ))  # fmt: skip
            a, K, w, turned, into, add = at(d_ru), 2 * H, at(u_ru), u_ru_turned, at(dh), 1
        elif which == 2:
            a, K, w, turned, width, into = at(d_ru), 2 * H, at(w_ru), ru_turned, I, at(dx)
        elif which == 3:
            w, turned, width, into, add = at(w_c), c_turned, I, at(dx), 1
        multiply_back(one, B, a, K * size, K, w, turned, width, into, add, to)


_forward, _backward, takes = compiled_ways(
    (gru_forward, f"n n w1 t r2 r2 n r2 n r2 r2 n r2 n r1 r1 r1 n n{' w2' * 7}"),
    (gru_backward, "w1 t r2 r2 r2 r2 w2 r1 n r2 n r2 n r2 n r2 n w2 w2 w2 w2"),
)


def forward_step(cell: GRU, x: Array, first: States, saved: GRUOutputs) -> None:
    """One step with all its products."""
    (w_ru, w_c), (u_ru, u_c), dtype = cell.inputs, cell.recurrent, x.dtype
    h_prev = plain(first.h)
    B, H = h_prev.shape
    run(
        _forward(dtype.char), x.shape[1] + H, 3 * H, B, H,
        (
            plain(x), *lying(w_ru.w), *lying(w_c.w), h_prev, *lying(u_ru.w), *lying(u_c.w),
            plain(cell.b_ru), plain(cell.b_c), line_of(cell.gate, dtype),
            cell.gate is not None,
        ),
        (
            *saved, np.empty((B, 2 * H), dtype), np.empty((B, H), dtype), np.empty((B, H), dtype),
        ),
    )  # fmt: skip


def backward_step(cell: GRU, step: BackwardStep) -> None:
    """One step backwards."""
    dh, (u_ru, u_c) = step.carried.h, cell.recurrent
    dtype = dh.dtype
    dx = none = nothing(dtype.char)
    w_ru = w_c = none, 0
    if step.x is not None:
        dx, (w_ru, w_c) = step.x, (lying(weight.w) for weight in cell.inputs)
    _backward(dtype.char)(
        *memory_of_step(1, dh.shape[1], dtype.char),
        *map(plain, step.saved[:3]), plain(step.before.h), dh, line_of(cell.gate, dtype),
        cell.gate is not None, *lying(u_ru.w), *lying(u_c.w), *w_ru, *w_c, *step.deltas, dx,
        np.empty(dh.shape, dtype),
    )  # fmt: skip


@functools.cache
def cell_forward(char: str) -> Any:
    """Return `gru_block_cell` after its checks for a dtype, None where it is not compiled."""
    step = _forward(char)
    if step is None:
        return None

    def forward(
        x: Array, h_prev: Array, weights: Sequence[Array], gate: HardSigmoid | None
    ) -> list[Array]:
        (B, I), H, (w_ru, w_c, b_ru, b_c) = x.shape, h_prev.shape[1], weights
        # In one piece, fresh memory costs fewer page faults. h is often kept without the others.
        saved = [*np.empty((3, B, H), char), np.empty((B, H), char)]
        run(
            step, I + H, 3 * H, B, H,
            (
                plain(x), *lying(w_ru[:I]), *lying(w_c[:I]), plain(h_prev), *lying(w_ru[I:]),
                *lying(w_c[I:]), plain(b_ru), plain(b_c), line_of(gate, np.dtype(char)),
                gate is not None,
            ),
            (
                *saved, np.empty((B, 2 * H), char), np.empty((B, H), char), np.empty((B, H), char),
            ),
        )  # fmt: skip
        return saved

    return forward


@functools.cache
def cell_grad(char: str) -> Any:
    """Return `gru_block_cell_grad` after its checks for a dtype, None where it is not compiled."""
    step = _backward(char)
    if step is None:
        return None

    def grad(
        h_prev: Array, weights: Sequence[Array], saved: GRUOutputs, d_h: Array,
        gate: HardSigmoid | None,
    ) -> list[Array]:  # fmt: skip
        (B, H), (w_ru, w_c, *_) = h_prev.shape, weights
        I, dh = len(w_c) - H, d_h.copy(order="C")
        d_ru, d_c, d_x = np.empty((B, 2 * H), char), np.empty((B, H), char), np.empty((B, I), char)
        step(
            *memory_of_step(1, H, char),
            *map(plain, saved[:3]), plain(h_prev), dh, line_of(gate, np.dtype(char)),
            gate is not None,
            *lying(w_ru[I:]), *lying(w_c[I:]), *lying(w_ru[:I]), *lying(w_c[:I]), d_ru, d_c, d_x,
            np.empty((B, H), char),
        )  # fmt: skip
        return [d_x, dh, d_c, d_ru]

    return grad
