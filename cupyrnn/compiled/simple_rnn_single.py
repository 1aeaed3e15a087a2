"""A single step of ``cells/simple_rnn.py`` in one compiled call, its products included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .formulas import DELTAS_OF_SIMPLE, RELU, STATE_OF_SIMPLE, TANH
from .products import vectors_of
from .simd import size_of
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
    from ..cells.simple_rnn import SimpleRNN, SimpleRNNOutputs


def simple_rnn_forward(
    tid: int, n: int, work: Array, table: Array,
    x: Array, w_x: Array, x_turned: int, h_prev: Array, w_h: Array, h_turned: int, b: Array,
    variant: int, h: Array,
) -> None:  # fmt: skip
    """One step of a thread's units."""
    one = h.dtype.type(1)
    size = size_of(one)
    (B, H), I = h_prev.shape, x.shape[1]
    to, row = product_memory(work, tid), H * size
    u0, u1 = own_vectors(one, tid, n, H)
    put(table, 0, (at(h), at(b)))
    # One call for both, as each is compiled anew.
    for which in range(2):
        a, rs_a, K, w, turned = at(x), I * size, I, at(w_x), x_turned
        if which == 1:
            a, rs_a, K, w, turned = at(h_prev), row, H, at(w_h), h_turned
        multiply_columns(one, n, u0, u1, 1, H, B, a, rs_a, K, w, turned, at(h), which, to)
    for k in range(B):
        STATE_OF_SIMPLE(one, (u0, u1, H, variant, at(h) + k * row, k * row, at(table)))


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


_forward, _backward, takes = compiled_ways(
    (simple_rnn_forward, "n n w1 t r2 r2 n r2 r2 n r1 n w2"),
    (simple_rnn_backward, "w1 t r2 w2 n r2 n r2 n w2 w2"),
)


def forward_step(cell: SimpleRNN, x: Array, first: States, saved: SimpleRNNOutputs) -> None:
    """One step with all its products."""
    (w_x,), (w_h,), h_prev, char = cell.inputs, cell.recurrent, plain(first.h), x.dtype.char
    B, H = h_prev.shape
    run(
        _forward(char), x.shape[1] + H, H, B, H,
        (
            plain(x), *lying(w_x.w), h_prev, *lying(w_h.w), plain(cell.b),
            RELU if cell.relu else TANH, saved.h,
        ),
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
