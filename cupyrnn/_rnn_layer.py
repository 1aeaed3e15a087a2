"""One direction of one layer of CudnnRNN, forward and backward, for all its cells."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import cudnn_gru, lstm, simple_rnn
from ._arrays import cast, compute_dtype, operand_dtype
from ._products import Scratch, add_column_sums, add_matmul, matmul
from .cudnn_gru import CudnnGRUOutputs
from .lstm import LSTMOutputs

if TYPE_CHECKING:
    from ._arrays import Array
    from ._packing import Block, Run


class Weights(NamedTuple):
    """The parameters of one direction of one layer, or their gradients: views of the packed."""

    w_x: Array | None  # [G*H, K], None with skip_input
    w_h: Array  # [G*H, P]
    w_p: Array | None  # [P, H]
    b_x: Array  # [G*H]
    b_h: Array  # [G*H]


class States(NamedTuple):
    """The states of all sequences, or their gradients."""

    h: Array  # [B, P]
    c: Array | None  # [B, H], LSTM only


# Arrays that a direction leaves for the backward pass, h the last.
SAVED = {"lstm": len(LSTMOutputs._fields), "gru": len(CudnnGRUOutputs._fields)}
SAVED |= {"rnn_tanh": 1, "rnn_relu": 1}

# Which quarter of the rows of the packed LSTM weights belongs to i, ci, f and o.
_LSTM_ORDER = (0, 2, 1, 3)


def _room(xp: ModuleType, rnn_mode: str) -> Any:
    """Return where the recurrence is for an array module: here, or in its CUDA twin."""
    if xp is np:
        return {"lstm": lstm, "gru": cudnn_gru}.get(rnn_mode, simple_rnn)
    from .kernels import cudnn_gru as gru_twin
    from .kernels import lstm as lstm_twin
    from .kernels import simple_rnn as simple_rnn_twin

    return {"lstm": lstm_twin, "gru": gru_twin}.get(rnn_mode, simple_rnn_twin)


def _steps(a: Array, start: int, run: Run) -> Array:
    """Return the rows of a run, which begin at a[start], as [steps, batch, ·]."""
    return a[start : start + run.steps * run.batch].reshape(run.steps, run.batch, a.shape[1])


def _biases(w: Weights, rnn_mode: str, compute: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the bias of the sum with the input, and that of the product with h alone."""
    b_x, b_h = cast(w.b_x, compute), cast(w.b_h, compute)
    if rnn_mode != "gru":
        return b_x + b_h, b_h[:0]
    ru = len(b_x) // 3 * 2
    b = b_x.copy()
    b[:ru] += b_h[:ru]
    return b, b_h[ru:]


def forward(
    xp: ModuleType,
    rnn_mode: str,
    w: Weights,
    values: Array,
    first: States,
    blocks: list[Block],
    saved: list[Array],
    last: States,
) -> None:
    """
    Run a direction over all sequences.

    Parameters
    ----------
    values : [N, K]
        The input of the layer, in the order of this direction.
    first
        The states before the first step.
    saved
        Written: [N, H] each, but h, the last, is [N, P]. All but h may have the rows of the
        largest block only.
    last
        Written: the states after each sequence's last step.
    """
    compute, operand = compute_dtype(values.dtype), operand_dtype(xp, values.dtype)
    room, gates = _room(xp, rnn_mode), len(w.w_h)
    # A product with a transposed view is up to twice as slow.
    w_h = xp.ascontiguousarray(w.w_h.T)
    w_p = None if w.w_p is None else xp.ascontiguousarray(w.w_p.T)
    b, b_hc = _biases(w, rnn_mode, compute)
    h, c = first
    xw_memory = Scratch(xp, compute)
    last.h[...] = h
    if last.c is not None:
        last.c[...] = c
    for block in blocks:
        block_values = values[block.row : block.end]
        xw = xw_memory(len(block_values), gates)
        if w.w_x is None:
            by_gate = xw.reshape(len(xw), -1, values.shape[1])
            by_gate[...] = cast(block_values, compute)[:, None]
        else:
            matmul(xp, cast(block_values, operand), w.w_x.T, xw)
        for run in block.runs:
            at_xw = run.row - block.row
            xw_run = _steps(xw, at_xw, run)
            outputs = [_steps(a, run.row if len(a) == len(values) else at_xw, run) for a in saved]
            h = h[: run.batch]
            if c is not None:
                c, h = room.forward_steps(
                    xw_run,
                    w_h,
                    b,
                    c[: run.batch],
                    h,
                    None,
                    None,
                    _LSTM_ORDER,
                    LSTMOutputs(*outputs),
                    w_p,
                )
            elif rnn_mode == "gru":
                h = room.forward_steps(xw_run, w_h, b, b_hc, h, CudnnGRUOutputs(*outputs))
            else:
                h = room.forward_steps(xw_run, w_h, b, h, rnn_mode == "rnn_relu", *outputs)
            last.h[: run.batch] = h
            if last.c is not None:
                last.c[: run.batch] = c


def _before(run: Run, first: Array, after: Array) -> Array:
    """Return the state before a run, [batch, ·], of after[N, ·], the states after each row."""
    start = max(run.before, 0)
    return (first if run.before < 0 else after[start : start + run.batch])[: run.batch]


def _all_before(xp: ModuleType, block: Block, first: Array, after: Array) -> Array:
    """Return the states before each row of a block, a view where it can be."""
    run = block.runs[0]
    if len(block.runs) == 1 and 0 <= run.before == run.row - run.batch:
        return after[run.before : run.end - run.batch]
    result: Array = xp.empty((block.end - block.row, after.shape[1]), after.dtype)
    for run in block.runs:
        part = result[run.row - block.row : run.end - block.row]
        part[: run.batch] = _before(run, first, after)
        part[run.batch :] = after[run.row : run.end - run.batch]
    return result


def backward(
    xp: ModuleType,
    rnn_mode: str,
    w: Weights,
    values: Array,
    first: States,
    blocks: list[Block],
    saved: list[Array],
    h_grad: Array | None,
    carried: States,
    grads: Weights,
) -> Array:
    """
    The gradient of a direction.

    Parameters
    ----------
    values, first, saved
        As in `forward`.
    h_grad : [N, P] or None
        The gradient of each step's h.
    carried
        The gradients of the last states; overwritten with those of the first.
    grads
        Zeros in the dtype of the computation; overwritten with the gradients of the parameters.

    Returns
    -------
    values_grad : [N, K], in the dtype of the computation
    """
    compute, operand = compute_dtype(values.dtype), operand_dtype(xp, values.dtype)
    room, gates = _room(xp, rnn_mode), len(w.w_h)
    # A GRU resets between the product with h and the sum with that of the input. Its gate
    # gradients are those of hc, r, u and c: the first three belong to the recurrent weights, the
    # last three to those of the input. For the other cells all belong to both.
    extra = gates // 3 if rnn_mode == "gru" else 0
    w_h = xp.roll(w.w_h, extra, axis=0) if extra else w.w_h
    w_h_grad = xp.zeros(w_h.shape, compute)
    sums = xp.zeros(gates + extra, compute)
    values_grad: Array = xp.empty(values.shape, compute)
    dgates_memory, dh_memory = Scratch(xp, operand), Scratch(xp, operand)
    product = Scratch(xp, compute)
    for block in reversed(blocks):
        rows = slice(block.row, block.end)
        dgates = dgates_memory(block.end - block.row, gates + extra)
        dh_rows = None if w.w_p is None else dh_memory(len(dgates), len(w.w_p))
        for run in reversed(block.runs):
            outputs = [_steps(a, run.row, run) for a in saved]
            given = None if h_grad is None else _steps(h_grad, run.row, run)
            dgates_run = _steps(dgates, run.row - block.row, run)
            dh = carried.h[: run.batch]
            if first.c is not None and carried.c is not None:
                room.backward_steps(
                    LSTMOutputs(*outputs),
                    _before(run, first.c, saved[LSTMOutputs._fields.index("cs")]),
                    None,
                    given,
                    w_h,
                    None,
                    None,
                    _LSTM_ORDER,
                    carried.c[: run.batch],
                    dh,
                    dgates_run,
                    0,
                    w.w_p,
                    None if dh_rows is None else _steps(dh_rows, run.row - block.row, run),
                )
            elif rnn_mode == "gru":
                h_first = _before(run, first.h, saved[-1])
                room.backward_steps(CudnnGRUOutputs(*outputs), h_first, given, w_h, dh, dgates_run)
            else:
                relu = rnn_mode == "rnn_relu"
                room.backward_steps(*outputs, given, w_h, relu, dh, dgates_run)
        block_values = cast(values[rows], operand)
        h_before = cast(_all_before(xp, block, first.h, saved[-1]), operand)
        of_input, of_state = dgates[:, extra:], dgates[:, :gates]
        add_matmul(xp, of_state.T, h_before, w_h_grad, product)
        add_column_sums(xp, dgates, sums)
        if w.w_x is None or grads.w_x is None:
            by_gate = cast(of_input, compute).reshape(len(dgates), -1, values.shape[1])
            values_grad[rows] = by_gate.sum(1)
        else:
            add_matmul(xp, of_input.T, block_values, grads.w_x, product)
            matmul(xp, of_input, w.w_x, values_grad[rows])
        if dh_rows is not None and grads.w_p is not None:
            out = LSTMOutputs(*(a[rows] for a in saved))
            o_co = cast(cast(out.o, compute) * cast(out.co, compute), operand)
            add_matmul(xp, dh_rows.T, o_co, grads.w_p, product)
    grads.w_h[...] = xp.roll(w_h_grad, -extra, axis=0)
    grads.b_x[...] = sums[extra:]
    grads.b_h[...] = xp.roll(sums[:gates], -extra)
    return values_grad
