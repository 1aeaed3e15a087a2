"""
The GRU of ``cells/gru_reset_after.py`` in compiled loops of vectors, name by name.

A row of z holds for each vector of units the vectors of r, u and c; one of what the recurrent
matrix gives, zh, those of hc, r and u.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from . import call as _call
from . import gru_reset_after_single as _single
from . import gru_reset_after_step as _step
from .call import At, Back, Columns, LayerCall, Spec, compiled, line_of, plain, run_layer
from .formulas import DELTAS_OF_RESET_AFTER as _deltas
from .formulas import STATE_OF_RESET_AFTER as _state
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
    from ..cells.gru_reset_after import GRUResetAfter, GRUResetAfterOutputs


_GATES = 3


def forward_loop(tid: int, n: int, one: Any, address: int) -> None:
    """All steps of a thread's rows and units."""
    f = read_frame(address)
    w_x, w_h = read_matrix(address + FRAME_BYTES), read_matrix(address + FRAME_BYTES + MATRIX_BYTES)
    rs_z = w_x.panels * PANEL_BYTES
    size = size_of(one)
    r0, r1 = own_rows(tid, f)
    u0, u1 = own_units(one, tid, f)
    row = f.H * size
    pack_all(tid, n, one, f, (w_x, w_h), 0)
    turn = meet(f.meeting, n, 1)
    h_prev, t0 = f.first_h, 0
    while t0 < f.T:
        t1 = part_end(f, t0)
        start = read_word(f.starts + 8 * t0)
        input_products(tid, one, f, (w_x,), t0, t1)
        for t in range(t0, t1):
            first = read_word(f.starts + 8 * t)
            rows = min(r1, read_word(f.starts + 8 * t + 8) - first) - r0
            before, at = h_prev + r0 * row, first + r0
            z = w_x.z + tid * w_x.z_stride + (at - start) * rs_z
            zh = f.work + tid * f.work_stride
            p0, p1 = own_panels(u0, u1, _GATES)
            multiply(one, rows, before, row, f.H, w_h.packed, p0, p1, zh, rs_z, rs_z // size, 0)
            for r in range(rows):
                _state(one, (
                    u0, u1, f.H, f.variant, z + r * rs_z, zh + r * rs_z, before + r * row,
                    (at + r) * row, f.table,
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
    w_x, w_h = read_matrix(address + FRAME_BYTES), read_matrix(address + FRAME_BYTES + MATRIX_BYTES)
    rs_z = w_x.panels * PANEL_BYTES
    size = size_of(one)
    r0, r1 = own_rows(tid, f)
    u0, u1 = own_units(one, tid, f)
    row = f.H * size
    q0, q1 = own_panels(u0, u1, 1)
    pack_all(tid, n, one, f, (w_x, w_h), 1)
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
            z, zh = w_x.z + (at - start) * rs_z, w_h.z + (at - start) * rs_z
            for r in range(rows):
                _deltas(one, (
                    u0, u1, f.H, f.variant, z + r * rs_z, zh + r * rs_z, before + r * row,
                    (at + r) * row, dh + r * f.dh_row, given + r * f.given_row, f.table,
                ))  # fmt: skip
            if f.by_units:
                turn = meet(f.meeting, n, turn)
            depth = vectors_of(one, f.H) * _GATES * VECTOR_BYTES // size
            # dh = dh*u + [dhc, dr, du] @ w_h.T
            multiply(
                one, rows, zh, rs_z, depth, w_h.packed, q0, q1, dh, f.dh_row, f.dh_row // size, 1
            )
        turn = meet(f.meeting, n, turn)
        turn = weight_products(tid, n, one, f, (w_x,), (w_h,), t0, t1, turn)
        t1 = t0


_LOOPS = {"forward_layer": forward_loop, "backward_layer": backward_loop}


def takes(cell: GRUResetAfter, dtype: np.dtype[Any], way: str = "forward_steps") -> bool:
    """Return whether this way through a cell is compiled for a dtype."""
    if way in _LOOPS:
        return compiled(_LOOPS[way], dtype.char) is not None
    if way in ("forward_step", "backward_step"):
        return _single.takes(cell, dtype, way)
    return _step.takes(cell, dtype)


@functools.lru_cache(maxsize=64)
def _spec(hard: bool, H: int, dtype: np.dtype[Any]) -> Spec:
    size, starts = dtype.itemsize, [0, H, 2 * H]
    # What is saved is r, u, c, hc and h.
    numbers, b, b_hc = range(5, 8)
    in_z = [n * VECTOR_BYTES for n in (1, 2, 0, 1, 2, _GATES)]
    biases = [*(At(b, start * size) for start in starts), At(b_hc)]
    return Spec(
        (forward_loop, backward_loop),
        dtype,
        H,
        [Columns(starts, H)],
        [Columns(starts, H)],
        hard,
        [*map(At, range(5)), *in_z, *biases, At(numbers), At(numbers, size)],
        [[(1, 0, 0), (0, 0, H), (0, 1, 2 * H), (0, 2, 3 * H)]],
    )


def layer_call(
    cell: GRUResetAfter, x: Array, carried: States, starts: Array, saved: GRUResetAfterOutputs,
    back: Back | None = None,
) -> LayerCall:  # fmt: skip
    """Return the call of a layer: see `call.layer_call`."""
    dtype = x.dtype
    vectors = [line_of(cell.gate, dtype), plain(cell.b, dtype), plain(cell.b_hc, dtype)]
    spec = _spec(cell.gate is not None, saved.h.shape[1], dtype)
    return _call.layer_call(spec, vectors, cell, x, carried, starts, saved, back)


def forward_layer(
    cell: GRUResetAfter, x: Array, carried: States, starts: Array, saved: GRUResetAfterOutputs
) -> None:
    """All steps of a layer: see `call.run_layer`."""
    run_layer(layer_call(cell, x, carried, starts, saved))


def backward_layer(
    cell: GRUResetAfter,
    x: Array,
    first: States,
    starts: Array,
    saved: GRUResetAfterOutputs,
    given: States,
    carried: States,
    grads: Gradients,
) -> None:
    """The gradient of a layer: see `call.run_layer`."""
    run_layer(layer_call(cell, x, carried, starts, saved, Back(first, given, grads)))


forward_steps, backward_steps = _step.forward_steps, _step.backward_steps
forward_step, backward_step = _single.forward_step, _single.backward_step
