"""A single step of ``cells/lstm.py`` in one compiled call, its products included."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from llvmlite import ir

from .addresses import At
from .call import compiled
from .meeting import meet
from .products import vectors_of
from .simd import I64, VECTOR_BYTES, Code, Word, copy, read_fields, routine, size_of
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
    nothing,
    own_vectors,
    plain,
    product_memory,
    product_memory_at,
    put,
    run,
    vectors_in,
)
from .single_formulas import DELTAS_OF_LSTM, GATES_OF_LSTM, HARD, PEEPHOLE, LSTMTable

if TYPE_CHECKING:
    from .._arrays import Array
    from ..arithmetic.gates import HardSigmoid
    from ..cells.contract import BackwardStep
    from ..cells.lstm import LSTM, LSTMOutputs, LSTMStates


@routine
def _add_number(c: Code, count: Word, source: Word, number: Word, to: Word) -> None:
    """Write so many numbers, to each of which one is added."""
    plus = c.everywhere(number)
    whole = Word(c.builder, c.builder.sdiv(count.value, ir.Constant(I64, c.lanes)))
    with c.loop(c.word(0), whole) as n:
        c.store(c.load(source + n * VECTOR_BYTES) + plus, to + n * VECTOR_BYTES)
    c.mask, end = c.first_lanes(count - whole * c.lanes), whole * VECTOR_BYTES
    c.store(c.load(source + end) + plus, to + end)
    c.mask = None


class _Words(NamedTuple):
    """What a step's loop reads; z and m, which is h where nothing is projected, are memory."""

    met: int  # how many threads have met
    B: int
    I: int
    P: int
    H: int
    x: int
    w_x: int
    x_turned: int
    h_prev: int
    w_h: int
    h_turned: int
    w_p: int
    p_turned: int
    projects: int
    cs_prev: int
    b: int
    f: int  # where the bias of f begins, in bytes
    plus: int  # what is added to it
    bias: int  # that sum
    variant: int
    h: int
    z: int
    m: int
    memory: int


_read, _TABLE = read_fields(_Words), 8 * len(_Words._fields)


def _lay_out(
    size: int, B: int, I: int, P: int, H: int, x_turned: int, h_turned: int, p_turned: int,
    projects: int, variant: int, to_ci: int, to_f: int, to_o: int,
) -> Layout:  # fmt: skip
    """Arrange what `run` is given: x, h_prev, cs_prev, w_x, w_h, w_p, b, peepholes, ..."""
    memory, _, x, h_prev, cs_prev, w_x, w_h, w_p, b, *vectors = map(At, range(24))
    wci, wcf, wco, numbers, i, cs, f, o, ci, co, h, z, m = vectors[:13]
    row = H * size
    words = _Words._make([
        0, B, I, P, H, x, w_x, x_turned, h_prev, w_h, h_turned,
        w_p, p_turned, projects, cs_prev, b, to_f * row, numbers._replace(offset=3 * size), memory,
        variant, h, z, m, At(0, 4 * row)
    ])  # fmt: skip
    columns = to_ci * row, to_f * row, to_o * row
    table = LSTMTable._make([
        i, cs, f, o, ci, co, *columns, VECTOR_BYTES, memory, *columns, wci, wcf, wco,
        numbers, numbers._replace(offset=size), numbers._replace(offset=2 * size)
    ])  # fmt: skip
    return Layout([*words, *table], 4 * H)


def lstm_step_forward(tid: int, n: int, one: Any, address: int) -> None:
    """One step of a thread's units."""
    s = _read(address)
    size, B, I, P, H = size_of(one), s.B, s.I, s.P, s.H
    to = product_memory_at(s.memory, tid)
    rs_z, row = 4 * H * size, H * size
    u0, u1 = own_vectors(one, tid, n, H)
    # Every thread writes all of these, each number once and the same.
    copy(one, (s.f // size, s.b, s.bias))
    _add_number(one, (H, s.b + s.f, s.plus, s.bias + s.f))
    end = s.f + row
    copy(one, (4 * H - end // size, s.b + end, s.bias + end))
    # One call for all products, as each is compiled anew.
    for which in range(3 if s.projects else 2):
        a, rs_a, K, w, turned, gates, width, c = s.x, I * size, I, s.w_x, s.x_turned, 4, H, s.z
        if which == 1:
            a, rs_a, K, w, turned = s.h_prev, P * size, P, s.w_h, s.h_turned
        elif which == 2:  # h = (o*co) @ w_p
            meet(address, n, 1)
            a, rs_a, K, w, turned, gates, width, c = s.m, row, H, s.w_p, s.p_turned, 1, P, s.h
            u0, u1 = own_vectors(one, tid, n, P)
        multiply_columns(one, n, u0, u1, gates, width, B, a, rs_a, K, w, turned, c, which % 2, to)
        if which == 1:
            for r in range(B):
                GATES_OF_LSTM(one, (
                    u0, u1, H, s.variant, s.z + r * rs_z, s.cs_prev + r * row, r * row,
                    s.m + r * row, address + _TABLE,
                ))  # fmt: skip


def lstm_backward(
    work: Array, table: Array,
    i: Array, cs: Array, f: Array, o: Array, ci: Array, co: Array, cs_prev: Array, dh: Array,
    dcs: Array, wci: Array, wcf: Array, wco: Array, numbers: Array, variant: int, clips: int,
    to_ci: int, to_f: int, to_o: int, w_h: Array, h_turned: int, w_p: Array, p_turned: int,
    w_x: Array, x_turned: int, dz: Array, dm: Array, dx: Array, totals: Array,
) -> None:  # fmt: skip
    """
    One step backwards; what has no number, of w_h, dx and totals, is not wanted.

    dm, of o*co, is memory; where nothing is projected it is dh.
    """
    one = dz.dtype.type(1)
    size = size_of(one)
    (B, H), P = cs_prev.shape, dh.shape[1]
    rs_z, row = 4 * H * size, H * size
    _, zeros, _ = vectors_in(work, H)
    zeros[:] = 0
    units = vectors_of(one, H)
    put(table, 0, (at(i), at(cs), at(f), at(o), at(ci), at(co)))
    put(table, 6, (to_ci * row, to_f * row, to_o * row, VECTOR_BYTES))
    put(table, 10, (0, 0, 0, 0))
    put(table, 14, (at(wci), at(wcf), at(wco)))
    put(table, 17, (at(numbers), at(numbers) + size, at(numbers) + 2 * size))
    none, to = at(zeros), product_memory(work, 0)
    # One call for all products, as each is compiled anew.
    for which in range(3):
        a, rs_a, K, w, turned, width, into = at(dz), rs_z, 4 * H, at(w_h), h_turned, P, at(dh)
        wanted = w_h.size > 0
        if which == 0:  # dm = dh @ w_p.T
            a, rs_a, K, w, turned, width, into = at(dh), P * size, P, at(w_p), p_turned, H, at(dm)
            wanted = w_p.size > 0
        elif which == 2:
            w, turned, width, into, wanted = at(w_x), x_turned, dx.shape[1], at(dx), dx.size > 0
        if wanted:
            multiply_back(one, B, a, rs_a, K, w, turned, width, into, 0, to)
        if which == 0:
            for r in range(B):
                DELTAS_OF_LSTM(one, (
                    0, units, H, variant, at(dz) + r * rs_z, at(cs_prev) + r * row, r * row,
                    at(dm) + r * row, at(dcs) + r * row, none, none, clips, at(table),
                ))  # fmt: skip
    if totals.size > 0:
        sums = np.zeros((3, H))
        for r in range(B):
            di, df, do = dz[r, :H], dz[r, to_f * H : (to_f + 1) * H], dz[r, to_o * H :]
            before, after = cs_prev[r], cs[r]
            for j in range(H):
                sums[0, j] += di[j] * before[j]
                sums[1, j] += df[j] * before[j]
                sums[2, j] += do[j] * after[j]
        for k in range(3):
            for j in range(H):
                totals[k, j] += sums[k, j]


_forward = Step(lstm_step_forward, _lay_out)
_backward, takes = compiled_ways(
    _forward,
    (lstm_backward, f"w1 t {'r2 ' * 7}w2 w2 r1 r1 r1 r1{' n' * 5}{' r2 n' * 3}{' w2' * 4}"),
)


@functools.lru_cache(maxsize=64)
def _numbers(clip: float | None, gate: HardSigmoid | None, forget_bias: float, char: str) -> Array:
    """Return cell_clip, slope, offset and forget_bias, to be read."""
    with np.errstate(all="ignore"):  # a number too large for the dtype is inf
        return np.array([np.inf if clip is None else clip, *(gate or (0, 0)), forget_bias], char)


def _shared(
    peephole: tuple[Array, Array, Array] | tuple[None, None, None] | None,
    numbers: Array,
    gate: HardSigmoid | None,
) -> tuple[Any, ...]:
    """Return what both ways take: peepholes, numbers, the variant."""
    variant = 0 if gate is None else HARD
    if peephole is None or peephole[0] is None:
        return numbers, numbers, numbers, numbers, variant
    return (*map(plain, peephole), numbers, variant | PEEPHOLE)


def _shared_of(cell: LSTM, char: str) -> tuple[Any, ...]:
    return _shared(cell.peephole, _numbers(cell.cell_clip, cell.gate, 0.0, char), cell.gate)


def _run(
    x: Array, first: LSTMStates, weights: Sequence[Array], b: Array, shared: tuple[Any, ...],
    columns: tuple[int, ...], saved: Sequence[Array],
) -> None:  # fmt: skip
    """One step of w_x, w_h and maybe w_p."""
    (w_x, x_turned), (w_h, h_turned), *projection = map(lying, weights)
    h_prev, cs_prev, char = plain(first.h), plain(first.c), x.dtype.char
    (B, I), P, H = x.shape, h_prev.shape[1], cs_prev.shape[1]
    (w_p, p_turned), m = (None, 0), saved[-1]
    if projection:
        (w_p, p_turned), m = projection[0], np.empty((B, H), char)
    *vectors, variant = shared
    run(
        _forward, char, B * (I + H) * 4 * H, H,
        (
            B, I, P, H, x_turned, h_turned, p_turned, len(projection), variant, *columns[1:],
        ),
        (
            plain(x), h_prev, cs_prev, w_x, w_h, w_p, plain(b), *vectors, *saved,
            np.empty((B, 4 * H), char), m,
        ),
    )  # fmt: skip


def forward_step(cell: LSTM, x: Array, first: LSTMStates, saved: LSTMOutputs) -> None:
    """One step with all its products."""
    weights = [weight.w for weight in (*cell.inputs, *cell.recurrent)]
    _run(x, first, weights, cell.b, _shared_of(cell, x.dtype.char), cell.columns, saved)


def backward_step(cell: LSTM, step: BackwardStep) -> None:
    """One step backwards."""
    (dz, *dh_step), (dh, dcs), dtype = step.deltas, step.carried, step.carried.c.dtype
    none, dm = nothing(dtype.char), dh
    w_h = w_p = none, 0
    if cell.recurrent:
        w_h = lying(cell.recurrent[0].w)
    if dh_step:
        dh_step[0][...] = dh
        w_p, dm = lying(cell.recurrent[1].w), np.empty(dcs.shape, dtype)
    w_x, dx = input_or_nothing(cell, step)
    _backward(dtype.char)(
        *memory_of_step(1, dcs.shape[1], dtype.char),
        *map(plain, step.saved[:6]), plain(step.before.c), dh, dcs, *_shared_of(cell, dtype.char),
        cell.cell_clip is not None, *cell.columns[1:], *w_h, *w_p, *w_x, dz, dm, dx,
        none if step.totals is None else step.totals,
    )  # fmt: skip


@functools.cache
def cell_forward(char: str) -> Any:
    """
    Return `lstm_block_cell` after its checks for a dtype, None where it is not compiled.

    What it is called with last is the LSTMCall that the checks return.
    """
    if compiled(_forward.loop, char) is None:
        return None

    def forward(
        x: Array, first: LSTMStates, w: Array, b: Array, columns: tuple[int, ...], call: Any
    ) -> list[Array]:
        (B, I), H, (clip, _, gate, forget_bias) = x.shape, first.c.shape[1], call.attributes
        # In one piece, fresh memory costs fewer page faults. h is often kept without the others.
        saved = [*np.empty((6, B, H), char), np.empty((B, H), char)]
        shared = _shared(call.peephole, _numbers(clip, gate, forget_bias, char), gate)
        _run(x, first, (w[:I], w[I:]), b, shared, columns, saved)
        return saved

    return forward


@functools.cache
def cell_grad(char: str) -> Any:
    """
    Return `lstm_block_cell_grad` after its checks for a dtype, None where it is not compiled.

    What it is called with last is the LSTMCall that the checks return.
    """
    step, none = _backward(char), nothing(char)
    if step is None:
        return None

    def grad(
        saved: LSTMOutputs, cs_prev: Array, given: LSTMStates, columns: tuple[int, ...],
        call: Any,
    ) -> list[Array]:  # fmt: skip
        (B, H), (clip, _, gate, _) = cs_prev.shape, call.attributes
        dh, dcs = (np.zeros((B, H), char) if a is None else a.copy(order="C") for a in given)
        dz, totals = np.empty((B, 4 * H), char), np.zeros((3, H), char)
        shared = _shared(call.peephole, _numbers(clip, gate, 0.0, char), gate)
        step(
            *memory_of_step(1, H, char),
            *map(plain, saved[:6]), plain(cs_prev), dh, dcs, *shared, clip is not None,
            *columns[1:], none, 0, none, 0, none, 0, dz, dh, none,
            none if call.peephole[0] is None else totals,
        )  # fmt: skip
        return [dcs, dz, *totals]

    return grad
