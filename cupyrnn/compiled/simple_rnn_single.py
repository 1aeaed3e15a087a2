"""A single step of ``cells/simple_rnn.py`` in one compiled call, its products included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .addresses import At
from .products import vectors_of
from .simd import read_fields, size_of
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
from .single_formulas import DELTAS_OF_SIMPLE, RELU, STATE_OF_SIMPLE, TANH, SimpleTable

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import BackwardStep, States
    from ..cells.simple_rnn import SimpleRNN, SimpleRNNOutputs


class _Words(NamedTuple):
    """What a step's loop reads."""

    B: int
    I: int
    H: int
    x: int
    w_x: int
    x_turned: int
    h_prev: int
    w_h: int
    h_turned: int
    variant: int
    h: int
    memory: int


_read, _TABLE = read_fields(_Words), 8 * len(_Words._fields)


def _lay_out(
    size: int, B: int, I: int, H: int, x_turned: int, h_turned: int, variant: int
) -> Layout:
    """Arrange what `run` is given: x, h_prev, w_x, w_h, b, h."""
    memory, _, x, h_prev, w_x, w_h, b, h = map(At, range(8))
    words = _Words._make([B, I, H, x, w_x, x_turned, h_prev, w_h, h_turned, variant, h, memory])
    return Layout([*words, *SimpleTable(h, b)])


def simple_rnn_step_forward(tid: int, n: int, one: Any, address: int) -> None:
    """One step of a thread's units."""
    s = _read(address)
    I, H = s.I, s.H
    to, row = product_memory_at(s.memory, tid), H * size_of(one)
    u0, u1 = own_vectors(one, tid, n, H)
    # One call for both, as each is compiled anew.
    for which in range(2):
        a, rs_a, K, w, turned = s.x, I * size_of(one), I, s.w_x, s.x_turned
        if which == 1:
            a, rs_a, K, w, turned = s.h_prev, row, H, s.w_h, s.h_turned
        multiply_columns(one, n, u0, u1, 1, H, s.B, a, rs_a, K, w, turned, s.h, which, to)
    for k in range(s.B):
        STATE_OF_SIMPLE(one, (u0, u1, H, s.variant, s.h + k * row, k * row, address + _TABLE))


def simple_rnn_backward(
    work: Array, table: Array,
    h: Array, dh: Array, variant: int, w_h: Array, h_turned: int, w_x: Array, x_turned: int,
    dz: Array, dx: Array,
) -> None:  # fmt: skip
    """One step backwards; a dx without a number is not wanted."""
    one = dz.dtype.type(1)
    size = size_of(one)
    (B, H), I = h.shape, dx.shape[1]
    to, row = product_memory(work, 0), H * size
    _, zeros, _ = vectors_in(work, H)
    zeros[:] = 0
    put(table, 0, (at(h), 0))
    for k in range(B):
        DELTAS_OF_SIMPLE(one, (
            0, vectors_of(one, H), H, variant, at(dz) + k * row, k * row, at(dh) + k * row,
            at(zeros), at(table),
        ))  # fmt: skip
    # One call for both, as each is compiled anew.
    for which in range(2 if dx.size > 0 else 1):
        w, turned, width, into = at(w_h), h_turned, H, at(dh)
        if which == 1:
            w, turned, width, into = at(w_x), x_turned, I, at(dx)
        multiply_back(one, B, at(dz), row, H, w, turned, width, into, 0, to)


_forward = Step(simple_rnn_step_forward, _lay_out)
_backward, takes = compiled_ways(
    _forward,
    (simple_rnn_backward, "w1 t r2 w2 n r2 n r2 n w2 w2"),
)


def forward_step(cell: SimpleRNN, x: Array, first: States, saved: SimpleRNNOutputs) -> None:
    """One step with all its products."""
    (w_x, x_turned), (w_h, h_turned) = lying(cell.inputs[0].w), lying(cell.recurrent[0].w)
    (B, I), h_prev = x.shape, plain(first.h)
    H = h_prev.shape[1]
    run(
        _forward, x.dtype.char, B * (I + H) * H, H,
        (B, I, H, x_turned, h_turned, RELU if cell.relu else TANH),
        (plain(x), h_prev, w_x, w_h, plain(cell.b), saved.h),
    )  # fmt: skip


def backward_step(cell: SimpleRNN, step: BackwardStep) -> None:
    """One step backwards."""
    dh, (w_h,) = step.carried.h, cell.recurrent
    char = dh.dtype.char
    w_x, dx = input_or_nothing(cell, step)
    _backward(char)(
        *memory_of_step(1, dh.shape[1], char),
        plain(step.saved.h), dh, RELU if cell.relu else TANH, *lying(w_h.w), *w_x, *step.deltas,
        dx,
    )  # fmt: skip
