"""
One step of CudnnRNN's cells in NumPy, forward only.

The equations are those of ``cells/``. What is known beforehand lets a step be fewer calls, which at
a small batch are most of its time: the columns of the weights stand in an order in which all gates
of a sigmoid are one array, held negated as there, and nothing is kept for a gradient.

Symbols: B batch, K size of the input, H num_units, P size of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from .._typing import Array
from ..arithmetic.gates import HardSigmoid, gate_of
from ..cells.contract import Cell
from ..cells.gru_reset_after import GRUResetAfter
from ..cells.lstm import LSTM
from ..cells.simple_rnn import SimpleRNN

# Of x[B, K], h[B, P] and, in an LSTM, c[B, H], in the dtype of the computation, makes h and c.
Step: TypeAlias = "Callable[..., tuple[Array, Array | None]]"


def steps_of(cells: Sequence[Cell]) -> list[Step]:
    """
    Return the steps of cells, none where one of them has no faster step than its own.

    All of their inputs have a matrix, and their weights are real.
    """
    known: dict[Any, Callable[[Any], Step]] = {
        LSTM: _lstm,
        GRUResetAfter: _gru,
        SimpleRNN: _simple_rnn,
    }
    made = [known.get(type(cell)) for cell in cells]
    return [make(cell) for make, cell in zip(made, cells, strict=True) if make] if all(made) else []


def _ordered(w: Array, order: Sequence[int], negated: int) -> Array:
    """Return the columns of w by gate in this order, those of the first gates negated."""
    gates = w.reshape(*w.shape[:-1], len(order), -1)[..., order, :]
    gates[..., :negated, :] *= -1
    return np.ascontiguousarray(gates.reshape(w.shape))


def _sigmoid(gate: HardSigmoid | None, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """Return what overwrites pre-activations, held negated, with the gates."""
    inner, shift, outer = gate_of(gate, dtype)

    def sigmoid(z: Array) -> Array:
        inner(z, z)
        np.add(z, shift, z)
        outer(z, z)
        return z

    return sigmoid


def _lstm(cell: LSTM) -> Step:
    i, ci, f, o = cell.columns
    (w_x,), (w_h, *projection) = cell.inputs, cell.recurrent
    x_matrix, h_matrix, b = (_ordered(a, (i, f, o, ci), 3) for a in (w_x.w, w_h.w, cell.b))
    w_p = [np.ascontiguousarray(weight.w) for weight in projection]
    H, sigmoid = len(b) // 4, _sigmoid(cell.gate, b.dtype)

    def step(x: Array, h_prev: Array, cs_prev: Array) -> tuple[Array, Array]:
        z = np.dot(x, x_matrix)
        z += np.dot(h_prev, h_matrix)
        z += b
        gates, ci = sigmoid(z[:, : 3 * H]), np.tanh(z[:, 3 * H :])
        cs = gates[:, H : 2 * H] * cs_prev
        ci *= gates[:, :H]
        cs += ci  # cs = i*ci + f*cs_prev
        h = np.tanh(cs)
        h *= gates[:, 2 * H :]  # h = o*tanh(cs)
        return (np.dot(h, w_p[0]) if w_p else h), cs

    return step


def _gru(cell: GRUResetAfter) -> Step:
    (w_x,), (w_h,) = cell.inputs, cell.recurrent
    x_matrix, b = _ordered(w_x.w, (0, 1, 2), 2), _ordered(cell.b, (0, 1, 2), 2)
    h_matrix, b_hc = _ordered(w_h.w, (1, 2, 0), 2), cell.b_hc
    H, sigmoid = len(b_hc), _sigmoid(cell.gate, b.dtype)

    def step(x: Array, h_prev: Array) -> tuple[Array, None]:
        z = np.dot(x, x_matrix)
        z += b
        product = np.dot(h_prev, h_matrix)
        product[:, : 2 * H] += z[:, : 2 * H]
        gates, c = sigmoid(product[:, : 2 * H]), product[:, 2 * H :]
        c += b_hc
        c *= gates[:, :H]
        c += z[:, 2 * H :]
        np.tanh(c, c)  # c = tanh(zc + r*hc)
        h = h_prev - c
        h *= gates[:, H:]
        h += c  # h = u*(h_prev - c) + c
        return h, None

    return step


def _simple_rnn(cell: SimpleRNN) -> Step:
    (w_x,), (w_h,), b = cell.inputs, cell.recurrent, cell.b
    x_matrix, h_matrix = (np.ascontiguousarray(weight.w) for weight in (w_x, w_h))
    relu, zero = cell.relu, np.array(0, b.dtype)

    def step(x: Array, h_prev: Array) -> tuple[Array, None]:
        h = np.dot(x, x_matrix)
        h += np.dot(h_prev, h_matrix)
        h += b
        return (np.maximum(h, zero, out=h) if relu else np.tanh(h, h)), None

    return step
