"""
The LSTM of ``cells/lstm.py`` in compiled loops of vectors, name by name.

A row of z holds for each vector of units the vectors of i, ci, f and o, in this order.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from . import call as _call
from . import lstm_single as _single
from . import lstm_step as _step
from .call import At, Back, Columns, LayerCall, Spec, compiled, plain, run_layer
from .formulas import DELTAS_OF_LSTM as _deltas
from .formulas import GATES_OF_LSTM as _gates
from .formulas import HARD, PEEPHOLE
from .frame import (
    FRAME_BYTES,
    MATRIX_BYTES,
    finished,
    input_products,
    own_panels,
    own_rows,
    own_units,
    pack_all,
    part_end,
    part_start,
    read_frame,
    read_matrix,
    weight_products,
)
from .meeting import meet
from .products import PANEL_BYTES, multiply, vectors_of
from .simd import (
    SUMMED_ROWS,
    VECTOR_BYTES,
    VECTORS,
    Code,
    Word,
    copy,
    over_units,
    read_word,
    size_of,
)

if TYPE_CHECKING:
    from .._arrays import Array
    from ..arithmetic.gates import HardSigmoid
    from ..cells.contract import Gradients
    from ..cells.lstm import LSTM, LSTMOutputs, LSTMStates

_GATES = 4


def peephole_terms(
    c: Code, more: int, u: Word, z: Word, cs_prev: Word, cs: Word, sums: Word, H_bytes: Word
) -> None:
    """Have di*cs_prev, df*cs_prev and do*cs of one vector of units of a row, or add them."""
    offset = u * VECTOR_BYTES
    di, _dci, df, do = (c.load(z + offset * _GATES + g * VECTOR_BYTES) for g in range(_GATES))
    before, after = c.load(cs_prev + offset), c.load(cs + offset)
    for n, (delta, state) in enumerate(((di, before), (df, before), (do, after))):
        place = sums + H_bytes * n + offset
        c.store(delta.times_plus(state, c.load(place)) if more else delta * state, place)


def add_peepholes(c: Code, _: int, u: Word, sums: Word, totals: Word, H_bytes: Word) -> None:
    """Add one vector of units of the three sums."""
    for n in range(3):
        offset = H_bytes * n + u * VECTOR_BYTES
        c.store(c.load(totals + offset) + c.load(sums + offset), totals + offset)


_peephole_terms, _add_peepholes = over_units(2, peephole_terms), over_units(1, add_peepholes)


def product(c: Code, _: int, u: Word, a: Word, b: Word, to: Word) -> None:
    """A vector of a*b."""
    offset = u * VECTOR_BYTES
    c.store(c.load(a + offset) * c.load(b + offset), to + offset)


def total(c: Code, _: int, u: Word, a: Word, b: Word, to: Word) -> None:
    """A vector of a + b, with zeros after the last number."""
    offset = u * VECTOR_BYTES
    c.store_all(c.load(a + offset) + c.load(b + offset), to + offset)


_product, _total = over_units(1, product), over_units(1, total)


def forward_loop(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a thread's rows and units."""
    f = read_frame(address)
    inputs = (read_matrix(address + FRAME_BYTES),)
    w_h = read_matrix(address + FRAME_BYTES + MATRIX_BYTES)
    w_p = read_matrix(address + FRAME_BYTES + 2 * MATRIX_BYTES)
    size = size_of(one)
    r0, r1 = own_rows(tid, f)
    u0, u1 = own_units(one, tid, f)
    row, h_row = f.H * size, f.P * size
    rs_z = w_h.panels * PANEL_BYTES
    p0, p1 = own_panels(u0, u1, _GATES)
    pack_all(tid, n, one, f, (inputs[0], w_h, w_p), 0)
    turn = meet(f.meeting, n, 1)
    cs = read_word(f.table + 8)
    h_prev, cs_prev, t0 = f.first_h, f.first_c, 0
    while t0 < f.T:
        t1 = part_end(f, t0)
        start = read_word(f.starts + 8 * t0)
        input_products(tid, one, f, inputs, t0, t1)
        for t in range(t0, t1):
            first = read_word(f.starts + 8 * t)
            rows = min(r1, read_word(f.starts + 8 * t + 8) - first) - r0
            z = inputs[0].z + tid * inputs[0].z_stride + (first - start + r0) * rs_z
            h = f.h + (first + r0) * h_row
            multiply(
                one, rows, h_prev + r0 * h_row, h_row, f.P, w_h.packed, p0, p1,
                z, rs_z, rs_z // size, 1,
            )  # fmt: skip
            to_h = f.work + tid * f.work_stride if w_p.table else h
            for r in range(rows):
                _gates(one, (
                    u0, u1, f.H, f.variant, z + r * rs_z, cs_prev + (r0 + r) * row,
                    (first + r0 + r) * row, to_h + r * row, f.table,
                ))  # fmt: skip
            if w_p.table:  # h = (o*co) @ w_p
                multiply(one, rows, to_h, row, f.H, w_p.packed, 0, w_p.panels, h, h_row, f.P, 0)
            h_prev, cs_prev = f.h + first * h_row, cs + first * row
            if f.by_units:
                turn = meet(f.meeting, n, turn)
            if tid == 0 or not f.by_units:
                done = r0 + max(0, finished(f, t, r0))
                ended = min(r1, read_word(f.starts + 8 * t + 8) - first) - done
                if ended > 0:
                    copy(one, (ended * f.P, h_prev + done * h_row, f.first_h + done * h_row))
                    copy(one, (ended * f.H, cs_prev + done * row, f.first_c + done * row))
        t0 = t1


def backward_loop(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a thread's rows and units from the last to the first, and its share of sums."""
    f = read_frame(address)
    inputs = (read_matrix(address + FRAME_BYTES),)
    w_h = read_matrix(address + FRAME_BYTES + MATRIX_BYTES)
    w_p = read_matrix(address + FRAME_BYTES + 2 * MATRIX_BYTES)
    size = size_of(one)
    r0, r1 = own_rows(tid, f)
    u0, u1 = own_units(one, tid, f)
    units = vectors_of(one, f.H)
    row, h_row = f.H * size, f.P * size
    rs_z, rs_p = w_h.panels * PANEL_BYTES, w_p.panels * PANEL_BYTES
    q0, q1 = own_panels(u0, u1, 1)
    if w_p.table:
        q1 = (vectors_of(one, f.P) + VECTORS - 1) // VECTORS
    pack_all(tid, n, one, f, (inputs[0], w_h, w_p), 1)
    turn = meet(f.meeting, n, 1)
    cs = read_word(f.table + 8)
    o, co = read_word(f.table + 24), read_word(f.table + 40)
    t1 = f.T
    while t1 > 0:
        t0 = part_start(f, t1)
        start = read_word(f.starts + 8 * t0)
        for t in range(t1 - 1, t0 - 1, -1):
            first = read_word(f.starts + 8 * t)
            rows = min(r1, read_word(f.starts + 8 * t + 8) - first) - r0
            at = first + r0
            h_prev, cs_prev = f.first_h, f.first_c
            if t > 0:
                before = read_word(f.starts + 8 * t - 8)
                h_prev, cs_prev = f.h + before * h_row, cs + before * row
            z = w_h.z + (at - start) * rs_z
            dm, dm_row = f.dh + r0 * f.dh_row, f.dh_row
            given, given_row = f.given_h + at * f.given_row, f.given_row
            if w_p.table:
                # dm, of o*co, is dh @ w_p.T
                dh = w_p.z + (at - start) * rs_p
                for r in range(rows):
                    dh_r, given_r = dm + r * dm_row, given + r * given_row
                    _total(one, (
                        0, w_p.panels * VECTORS, f.P, 0, dh_r, given_r, dh + r * rs_p
                    ))  # fmt: skip
                    o_co = w_p.a + (at - start + r) * row
                    at_r = (at + r) * row
                    _product(one, (0, units, f.H, 0, o + at_r, co + at_r, o_co))
                dm, dm_row = f.work + tid * f.work_stride, w_h.panels * PANEL_BYTES
                given, given_row = f.zeros, 0
                depth = vectors_of(one, f.P) * VECTOR_BYTES // size
                multiply(
                    one, rows, dh, rs_p, depth, w_p.packed, 0, (units + VECTORS - 1) // VECTORS,
                    dm, dm_row, dm_row // size, 0,
                )  # fmt: skip
            for r in range(rows):
                _deltas(one, (
                    u0, u1, f.H, f.variant, z + r * rs_z, cs_prev + (r0 + r) * row,
                    (at + r) * row, dm + r * dm_row, f.dc + (r0 + r) * row, given + r * given_row,
                    f.given_c + (at + r) * f.given_c_row, f.clips, f.table,
                ))  # fmt: skip
            if rows > 0 and (tid == 0 or not f.by_units):
                copy(one, (rows * f.P, h_prev + r0 * h_row, f.before + (at - start) * h_row))
            if f.by_units:
                turn = meet(f.meeting, n, turn)
            multiply(
                one, rows, z, rs_z, units * _GATES * VECTOR_BYTES // size, w_h.packed, q0, q1,
                f.dh + r0 * f.dh_row, f.dh_row, f.dh_row // size, 0,
            )  # fmt: skip
        turn = meet(f.meeting, n, turn)
        if f.totals:
            g0, g1 = units * tid // n, units * (tid + 1) // n
            sums, summed = f.work + tid * f.work_stride, 0
            for t in range(t0, t1):
                first, last = read_word(f.starts + 8 * t), read_word(f.starts + 8 * t + 8)
                cs_prev = f.first_c if t == 0 else cs + read_word(f.starts + 8 * t - 8) * row
                for r in range(last - first):
                    _peephole_terms(one, (
                        g0, g1, f.H, min(summed, 1), w_h.z + (first - start + r) * rs_z,
                        cs_prev + r * row, cs + (first + r) * row, sums, row,
                    ))  # fmt: skip
                    summed += 1
                    if summed == SUMMED_ROWS or (t == t1 - 1 and r == last - first - 1):
                        _add_peepholes(one, (g0, g1, f.H, 0, sums, f.totals, row))
                        summed = 0
        turn = weight_products(tid, n, one, f, inputs, (w_h, w_p), t0, t1, turn)
        t1 = t0


_LOOPS = {"forward_layer": forward_loop, "backward_layer": backward_loop}


def takes(cell: LSTM, dtype: np.dtype[Any], way: str = "forward_steps") -> bool:
    """Return whether this way through a cell is compiled for a dtype."""
    if way in _LOOPS:
        return compiled(_LOOPS[way], dtype.char) is not None
    if way in ("forward_step", "backward_step"):
        return _single.takes(cell, dtype, way)
    return _step.takes(cell, dtype)


def _vectors(cell: LSTM, dtype: np.dtype[Any]) -> list[Array]:
    """Return cell_clip, slope and offset; b; wci, wcf and wco."""
    numbers = _numbers(cell.cell_clip, cell.gate, dtype)
    return [
        numbers,
        *(
            plain(a, dtype)
            for a in (numbers if cell.b is None else cell.b, *(cell.peephole or [numbers] * 3))
        ),
    ]


@functools.lru_cache(maxsize=64)
def _numbers(cell_clip: float | None, gate: HardSigmoid | None, dtype: np.dtype[Any]) -> Array:
    return np.array([np.inf if cell_clip is None else cell_clip, *(gate or (0, 0))], dtype)


@functools.lru_cache(maxsize=64)
def _spec(
    columns: tuple[int, ...], variant: int, projects: bool, clips: bool, H: int, P: int,
    dtype: np.dtype[Any],
) -> Spec:  # fmt: skip
    size, quarters = dtype.itemsize, [column * H for column in columns]
    in_z = [n * VECTOR_BYTES for n in (1, 2, 3, 4)]
    # What is saved is i, cs, f, o, ci, co and h.
    numbers, b, *peepholes = range(7, 12)
    table: list[int | At] = [
        *map(At, range(6)), *in_z, At(b), *(quarter * size for quarter in quarters[1:]),
        *map(At, peepholes), *(At(numbers, n * size) for n in range(3)),
    ]  # fmt: skip
    return Spec(
        (forward_loop, backward_loop),
        dtype,
        H,
        [Columns(quarters, H)],
        [Columns(quarters, H, of=0), Columns([0], P)],
        variant,
        table,
        [[(0, gate, start) for gate, start in enumerate(quarters)]],
        whole=projects,
        clips=clips,
    )


def layer_call(
    cell: LSTM, x: Array, carried: LSTMStates, starts: Array, saved: LSTMOutputs,
    back: Back | None = None,
) -> LayerCall:  # fmt: skip
    """Return the call of a layer: see `call.layer_call`."""
    variant = (PEEPHOLE if cell.peephole is not None else 0) | (
        HARD if cell.gate is not None else 0
    )
    projects, clips = len(cell.recurrent) > 1, cell.cell_clip is not None
    H, P = saved.cs.shape[1], saved.h.shape[1]
    spec = _spec(tuple(cell.columns), variant, projects, clips, H, P, x.dtype)
    return _call.layer_call(spec, _vectors(cell, x.dtype), cell, x, carried, starts, saved, back)


def forward_layer(
    cell: LSTM, x: Array, carried: LSTMStates, starts: Array, saved: LSTMOutputs
) -> None:
    """All steps of a layer: see `call.run_layer`."""
    run_layer(layer_call(cell, x, carried, starts, saved))


def backward_layer(
    cell: LSTM,
    x: Array,
    first: LSTMStates,
    starts: Array,
    saved: LSTMOutputs,
    given: LSTMStates,
    carried: LSTMStates,
    grads: Gradients,
) -> None:
    """The gradient of a layer: see `call.run_layer`."""
    run_layer(layer_call(cell, x, carried, starts, saved, Back(first, given, grads)))


forward_steps, backward_steps, add_sums = (
    _step.forward_steps,
    _step.backward_steps,
    _step.add_sums,
)
forward_step, backward_step = _single.forward_step, _single.backward_step
cell_forward, cell_grad = _single.cell_forward, _single.cell_grad
