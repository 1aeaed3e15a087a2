"""A single step of ``cells/gru.py`` in one compiled call, its products included."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .addresses import At
from .call import compiled, line_of
from .meeting import meet
from .products import vectors_of
from .simd import VECTOR_BYTES, read_fields, size_of
from .single import (
    Layout,
    Step,
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
    product_memory_at,
    put,
    run,
    vectors_in,
)
from .single_formulas import DELTAS_TO_C, DELTAS_TO_R, GATES_OF_GRU, STATE_OF_GRU, GRUTable

if TYPE_CHECKING:
    from .._arrays import Array
    from ..arithmetic.gates import HardSigmoid
    from ..cells.contract import BackwardStep, States
    from ..cells.gru import GRU, GRUOutputs


class _Words(NamedTuple):
    """What a step's loop reads; z_ru, z_c and h_reset are memory."""

    met: int  # how many threads have met
    B: int
    I: int
    H: int
    x: int
    w_ru: int
    ru_turned: int
    w_c: int
    c_turned: int
    h_prev: int
    u_ru: int
    u_ru_turned: int
    u_c: int
    u_c_turned: int
    hard: int
    z_ru: int
    z_c: int
    h_reset: int
    memory: int


_read, _TABLE = read_fields(_Words), 8 * len(_Words._fields)


def _lay_out(size: int, B: int, I: int, H: int, hard: int, *turned: int) -> Layout:
    """Arrange what `run` is given: x, w_ru, w_c, h_prev, u_ru, u_c, biases, numbers, ..."""
    memory, _, x, w_ru, w_c, h_prev, u_ru, u_c, b_ru, b_c, *rest = map(At, range(18))
    numbers, r, u, c, h, z_ru, z_c, h_reset = rest
    ru_turned, c_turned, u_ru_turned, u_c_turned = turned
    row = H * size
    words = _Words._make([
        0, B, I, H, x, w_ru, ru_turned, w_c, c_turned, h_prev,
        u_ru, u_ru_turned, u_c, u_c_turned, hard, z_ru, z_c, h_reset,
        memory
    ])  # fmt: skip
    table = GRUTable._make([
        r, u, c, h, row, VECTOR_BYTES, b_ru, b_ru._replace(offset=row), b_c, numbers,
        numbers._replace(offset=size)
    ])  # fmt: skip
    return Layout([*words, *table])


def gru_step_forward(tid: int, n: int, one: Any, address: int) -> None:
    """One step of a thread's units."""
    s = _read(address)
    B, I, H = s.B, s.I, s.H
    to, row = product_memory_at(s.memory, tid), H * size_of(one)
    u0, u1 = own_vectors(one, tid, n, H)
    # One call for all four, as each is compiled anew.
    for which in range(4):
        a, rs_a, K, w, turned, gates = s.x, I * size_of(one), I, s.w_ru, s.ru_turned, 2
        z = s.z_ru
        if which == 1:
            a, rs_a, K, w, turned = s.h_prev, row, H, s.u_ru, s.u_ru_turned
        elif which == 2:
            w, turned, gates, z = s.w_c, s.c_turned, 1, s.z_c
        elif which == 3:
            for k in range(B):
                GATES_OF_GRU(one, (
                    u0, u1, H, s.hard, s.z_ru + 2 * k * row, s.h_prev + k * row, k * row,
                    s.h_reset + k * row, address + _TABLE,
                ))  # fmt: skip
            meet(address, n, 1)
            a, rs_a, K, w, turned, gates = s.h_reset, row, H, s.u_c, s.u_c_turned, 1
            z = s.z_c
        multiply_columns(one, n, u0, u1, gates, H, B, a, rs_a, K, w, turned, z, which % 2, to)
    for k in range(B):
        STATE_OF_GRU(one, (
            u0, u1, H, 0, s.z_c + k * row, s.h_prev + k * row, k * row, address + _TABLE
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


_forward = Step(gru_step_forward, _lay_out)
_backward, takes = compiled_ways(
    _forward,
    (gru_backward, "w1 t r2 r2 r2 r2 w2 r1 n r2 n r2 n r2 n r2 n w2 w2 w2 w2"),
)


def _run(
    x: Array, h_prev: Array, weights: Sequence[Array], b_ru: Array, b_c: Array,
    gate: HardSigmoid | None, saved: Sequence[Array],
) -> None:  # fmt: skip
    """One step of the matrices of x, for r and u and for c, then of those of h."""
    (B, I), H, dtype = x.shape, h_prev.shape[1], x.dtype
    (w_ru, ru_turned), (w_c, c_turned), (u_ru, u_ru_turned), (u_c, u_c_turned) = map(lying, weights)
    run(
        _forward, dtype.char, B * (I + H) * 3 * H, H,
        (B, I, H, gate is not None, ru_turned, c_turned, u_ru_turned, u_c_turned),
        (
            plain(x), w_ru, w_c, plain(h_prev), u_ru, u_c, plain(b_ru), plain(b_c),
            line_of(gate, dtype), *saved, np.empty((B, 2 * H), dtype), np.empty((B, H), dtype),
            np.empty((B, H), dtype),
        ),
    )  # fmt: skip


def forward_step(cell: GRU, x: Array, first: States, saved: GRUOutputs) -> None:
    """One step with all its products."""
    weights = [weight.w for weight in (*cell.inputs, *cell.recurrent)]
    _run(x, first.h, weights, cell.b_ru, cell.b_c, cell.gate, saved)


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
    if compiled(_forward.loop, char) is None:
        return None

    def forward(
        x: Array, h_prev: Array, weights: Sequence[Array], gate: HardSigmoid | None
    ) -> list[Array]:
        (B, I), H, (w_ru, w_c, b_ru, b_c) = x.shape, h_prev.shape[1], weights
        # In one piece, fresh memory costs fewer page faults. h is often kept without the others.
        saved = [*np.empty((3, B, H), char), np.empty((B, H), char)]
        _run(x, h_prev, (w_ru[:I], w_c[:I], w_ru[I:], w_c[I:]), b_ru, b_c, gate, saved)
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
