"""
The GRU of ``cells/gru.py`` in compiled loops of vectors, name by name.

It has two recurrent products in each step, the second with what the first leads to. A row of z_ru
holds for each vector of units the vectors of r and u. w_ru and w_c are the rows for x of the
matrices, u_ru and u_c those for h.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from . import call as _call
from . import gru_single as _single
from . import gru_step as _step
from .call import At, Back, Columns, LayerCall, Spec, compiled, line_of, plain, run_layer
from .formulas import DELTAS_TO_C as _deltas_to_c
from .formulas import DELTAS_TO_R as _deltas_to_r
from .formulas import GATES_OF_GRU as _gates
from .formulas import STATE_OF_GRU as _state
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
from .simd import VECTOR_BYTES, copy, read_word, size_of

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import Gradients, States
    from ..cells.gru import GRU, GRUOutputs


_GATES = 2


def forward_loop(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a thread's rows and units."""
    f = read_frame(address)
    w_ru, w_c, u_ru, u_c = (
        read_matrix(address + FRAME_BYTES),
        read_matrix(address + FRAME_BYTES + MATRIX_BYTES),
        read_matrix(address + FRAME_BYTES + 2 * MATRIX_BYTES),
        read_matrix(address + FRAME_BYTES + 3 * MATRIX_BYTES),
    )
    rs_ru, rs_c = w_ru.panels * PANEL_BYTES, w_c.panels * PANEL_BYTES
    size = size_of(one)
    r0, r1 = own_rows(tid, f)
    u0, u1 = own_units(one, tid, f)
    row = f.H * size
    pack_all(tid, n, one, f, (w_ru, w_c, u_ru, u_c), 0)
    turn = meet(f.meeting, n, 1)
    h_prev, t0 = f.first_h, 0
    while t0 < f.T:
        t1 = part_end(f, t0)
        start = read_word(f.starts + 8 * t0)
        input_products(tid, one, f, (w_ru, w_c), t0, t1)
        for t in range(t0, t1):
            first = read_word(f.starts + 8 * t)
            rows = min(r1, read_word(f.starts + 8 * t + 8) - first) - r0
            before, at = h_prev + r0 * row, first + r0
            z_ru = w_ru.z + tid * w_ru.z_stride + (at - start) * rs_ru
            z_c = w_c.z + tid * w_c.z_stride + (at - start) * rs_c
            # Of all units, which are multiplied: with shared units it is the threads' together.
            h_reset = f.work if f.by_units else f.work + tid * f.work_stride
            p0, p1 = own_panels(u0, u1, _GATES)
            multiply(
                one, rows, before, row, f.H, u_ru.packed, p0, p1, z_ru, rs_ru, rs_ru // size, 1
            )
            for r in range(rows):
                _gates(one, (
                    u0, u1, f.H, f.variant, z_ru + r * rs_ru, before + r * row, (at + r) * row,
                    h_reset + r * row, f.table,
                ))  # fmt: skip
            if f.by_units:
                turn = meet(f.meeting, n, turn)
            p0, p1 = own_panels(u0, u1, 1)
            multiply(one, rows, h_reset, row, f.H, u_c.packed, p0, p1, z_c, rs_c, rs_c // size, 1)
            for r in range(rows):
                _state(one, (
                    u0, u1, f.H, 0, z_c + r * rs_c, before + r * row, (at + r) * row, f.table
                ))  # fmt: skip
            h_prev = f.h + first * row
            if f.by_units:
                turn = meet(f.meeting, n, turn)
            if tid == 0 or not f.by_units:
                done = r0 + max(0, finished(f, t, r0))
                ended = min(r1, read_word(f.starts + 8 * t + 8) - first) - done
                if ended > 0:
                    copy(one, (ended * f.H, h_prev + done * row, f.first_h + done * row))
        t0 = t1


def backward_loop(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a thread's rows and units from the last to the first, and its share of sums."""
    f = read_frame(address)
    w_ru, w_c, u_ru, u_c = (
        read_matrix(address + FRAME_BYTES),
        read_matrix(address + FRAME_BYTES + MATRIX_BYTES),
        read_matrix(address + FRAME_BYTES + 2 * MATRIX_BYTES),
        read_matrix(address + FRAME_BYTES + 3 * MATRIX_BYTES),
    )
    rs_ru, rs_c = w_ru.panels * PANEL_BYTES, w_c.panels * PANEL_BYTES
    size = size_of(one)
    r0, r1 = own_rows(tid, f)
    u0, u1 = own_units(one, tid, f)
    row = f.H * size
    q0, q1 = own_panels(u0, u1, 1)
    pack_all(tid, n, one, f, (w_ru, w_c, u_ru, u_c), 1)
    turn = meet(f.meeting, n, 1)
    t1 = f.T
    while t1 > 0:
        t0 = part_start(f, t1)
        start = read_word(f.starts + 8 * t0)
        for t in range(t1 - 1, t0 - 1, -1):
            first = read_word(f.starts + 8 * t)
            rows = min(r1, read_word(f.starts + 8 * t + 8) - first) - r0
            at = first + r0
            h_prev = f.first_h
            if t > 0:
                h_prev = f.h + read_word(f.starts + 8 * t - 8) * row
            before, dh = h_prev + r0 * row, f.dh + r0 * f.dh_row
            given = f.given_h + at * f.given_row
            if rows > 0 and (tid == 0 or not f.by_units):
                copy(one, (rows * f.H, before, f.before + (at - start) * row))
            z_ru, z_c = u_ru.z + (at - start) * rs_ru, u_c.z + (at - start) * rs_c
            for r in range(rows):
                _deltas_to_c(one, (
                    u0, u1, f.H, f.variant, z_ru + r * rs_ru, z_c + r * rs_c, before + r * row,
                    (at + r) * row, dh + r * f.dh_row, given + r * f.given_row, f.table,
                ))  # fmt: skip
            if f.by_units:
                turn = meet(f.meeting, n, turn)
            # d_hr = d_c @ u_c.T
            depth, d_hr = vectors_of(one, f.H) * VECTOR_BYTES // size, f.work + tid * f.work_stride
            multiply(one, rows, z_c, rs_c, depth, u_c.packed, q0, q1, d_hr, rs_c, rs_c // size, 0)
            for r in range(rows):
                _deltas_to_r(one, (
                    u0, u1, f.H, f.variant, z_ru + r * rs_ru, before + r * row, (at + r) * row,
                    dh + r * f.dh_row, d_hr + r * rs_c, u_c.a + (at - start + r) * row, f.table,
                ))  # fmt: skip
            if f.by_units:
                turn = meet(f.meeting, n, turn)
            # dh = dh*u + d_hr*r + d_ru @ u_ru.T
            multiply(
                one, rows, z_ru, rs_ru, depth * _GATES, u_ru.packed, q0, q1, dh, f.dh_row,
                f.dh_row // size, 1,
            )  # fmt: skip
        turn = meet(f.meeting, n, turn)
        turn = weight_products(tid, n, one, f, (w_ru, w_c), (u_ru, u_c), t0, t1, turn)
        t1 = t0


_LOOPS = {"forward_layer": forward_loop, "backward_layer": backward_loop}


def takes(cell: GRU, dtype: np.dtype[Any], way: str = "forward_steps") -> bool:
    """Return whether this way through a cell is compiled for a dtype."""
    if way in _LOOPS:
        return compiled(_LOOPS[way], dtype.char) is not None
    if way in ("forward_step", "backward_step"):
        return _single.takes(cell, dtype, way)
    return _step.takes(cell, dtype)


@functools.lru_cache(maxsize=64)
def _spec(hard: bool, H: int, dtype: np.dtype[Any]) -> Spec:
    size = dtype.itemsize
    # What is saved is r, u, c and h.
    numbers, b_ru, b_c = range(4, 7)
    in_z = [VECTOR_BYTES, _GATES * VECTOR_BYTES]
    biases = [At(b_ru), At(b_ru, H * size), At(b_c)]
    return Spec(
        (forward_loop, backward_loop),
        dtype,
        H,
        [Columns([0, H], H), Columns([0], H)],
        [Columns([0, H], H, of=0), Columns([0], H, of=1)],
        hard,
        [*map(At, range(4)), *in_z, *biases, At(numbers), At(numbers, size)],
        [[(0, 0, 0), (0, 1, H)], [(1, 0, 0)]],
    )


def layer_call(
    cell: GRU, x: Array, carried: States, starts: Array, saved: GRUOutputs, back: Back | None = None
) -> LayerCall:
    """Return the call of a layer: see `call.layer_call`."""
    dtype = x.dtype
    numbers = line_of(cell.gate, dtype)
    biases = [numbers if b is None else plain(b, dtype) for b in (cell.b_ru, cell.b_c)]
    spec = _spec(cell.gate is not None, saved.h.shape[1], dtype)
    return _call.layer_call(spec, [numbers, *biases], cell, x, carried, starts, saved, back)


def forward_layer(cell: GRU, x: Array, carried: States, starts: Array, saved: GRUOutputs) -> None:
    """All steps of a layer: see `call.run_layer`."""
    run_layer(layer_call(cell, x, carried, starts, saved))


def backward_layer(
    cell: GRU,
    x: Array,
    first: States,
    starts: Array,
    saved: GRUOutputs,
    given: States,
    carried: States,
    grads: Gradients,
) -> None:
    """The gradient of a layer: see `call.run_layer`."""
    run_layer(layer_call(cell, x, carried, starts, saved, Back(first, given, grads)))


forward_steps, backward_steps = _step.forward_steps, _step.backward_steps
forward_step, backward_step = _single.forward_step, _single.backward_step
cell_forward, cell_grad = _single.cell_forward, _single.cell_grad
