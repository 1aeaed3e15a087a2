"""
One direction of a node over its time steps, forward and backward.

After its end a sequence keeps its state, and its Y is zero. A backward direction runs forward over
reversed sequences; each is reversed within its own length.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._typing import Array, Arrays
from . import gru, lstm, rnn
from .cell import NodeCell, NodeStep

_EQUATIONS = {"LSTM": lstm, "GRU": gru, "RNN": rnn}


class Sequences(NamedTuple):
    """X [T, B, I] in the order of a direction's steps, and masks of these steps."""

    X: Array
    lengths: NDArray[np.int32] | None
    backwards: bool
    masks: Array | None  # [T, B, 1] booleans


class Forward(NamedTuple):
    """The result of `forward`."""

    Y: Array  # [T, B, H]
    states: Arrays  # [B, H]: h, and c of an LSTM
    steps: list[NodeStep]  # empty without `keep`


class LayerGradients(NamedTuple):
    """The gradients of one direction."""

    X: Array  # [T, B, I]
    W: Array  # [G*H, I]
    R: Array  # [G*H, H]
    B: Array  # [2*G*H]
    states: Arrays  # [B, H]: of the initial h, and c of an LSTM
    P: Array | None  # [3*H]


def reversed_sequences(xp: ModuleType, a: Array, lengths: NDArray[np.int32] | None) -> Array:
    """Reverse every sequence of [T, B, ...] within its own length."""
    if lengths is None:
        return a[::-1]
    t = np.arange(len(a))[:, None]
    order = np.where(t < lengths, lengths - 1 - t, t)
    return a[xp.asarray(order), xp.asarray(np.arange(a.shape[1]))]


def sequences(
    xp: ModuleType, X: Array, lengths: NDArray[np.int32] | None, backwards: bool
) -> Sequences:
    """Return X in the order of a direction's steps, with zeros after each sequence's end."""
    masks = None
    if lengths is not None:
        masks = xp.asarray(np.arange(len(X))[:, None, None] < lengths[:, None])
        X = xp.where(masks, X, X.dtype.type(0))
    if backwards:
        X = reversed_sequences(xp, X, lengths)
    return Sequences(X, lengths, backwards, masks)


def _selected(xp: ModuleType, mask: Array | None, a: Array, b: Array | None = None) -> Array:
    """Return a in the rows of sequences that have this step, and b (or zero) in the others."""
    if mask is None:
        return a
    return xp.where(mask, a, a.dtype.type(0) if b is None else b)


def forward(
    op_type: str, cell: NodeCell, x: Sequences, states: Arrays, *, keep: bool = False
) -> Forward:
    """Run the steps; with `keep` return their results for the gradient, too."""
    equations, xp = _EQUATIONS[op_type], cell.xp
    T, B, I = x.X.shape
    xw = cell.product(x.X.reshape(T * B, I), cell.W.T).reshape(T, B, len(cell.W))
    Y: Array = xp.empty((T, B, cell.R.shape[1]), xw.dtype)
    steps = []
    for t in range(T):
        mask = None if x.masks is None else x.masks[t]
        done = equations.step(cell, xw[t] + cell.W_bias, states)
        states = tuple(
            _selected(xp, mask, new, old) for new, old in zip(done.states, states, strict=True)
        )
        Y[t] = _selected(xp, mask, states[0])
        if keep:
            steps.append(done)
    if x.backwards:
        Y = reversed_sequences(xp, Y, x.lengths)
    return Forward(Y, states, steps)


def backward(
    op_type: str,
    cell: NodeCell,
    x: Sequences,
    steps: list[NodeStep],
    Y_grad: Array,
    states_grad: Arrays,
) -> LayerGradients:
    """Return the gradients, from the gradients of Y [T, B, H] and of the last states."""
    equations, xp = _EQUATIONS[op_type], cell.xp
    T, B, I = x.X.shape
    GH, H = cell.R.shape
    dtype = x.X.dtype
    if x.backwards:
        Y_grad = reversed_sequences(xp, Y_grad, x.lengths)
    input_deltas, recurrent_deltas = (xp.empty((T, B, GH), dtype) for _ in range(2))
    P_grad = None if cell.P is None else xp.zeros(3 * H, dtype)
    for t in range(T - 1, -1, -1):
        mask = None if x.masks is None else x.masks[t]
        dh, *others = (_selected(xp, mask, a) for a in states_grad)
        dh = dh + _selected(xp, mask, Y_grad[t])
        deltas = equations.step_back(cell, steps[t].saved, (dh, *others))
        states_grad = tuple(
            _selected(xp, mask, new, old)
            for new, old in zip(deltas.states, states_grad, strict=True)
        )
        input_deltas[t], recurrent_deltas[t] = deltas.input, deltas.recurrent
        if deltas.peepholes is not None:
            P_grad = P_grad + deltas.peepholes.sum(axis=0)
    rows = input_deltas.reshape(T * B, GH), recurrent_deltas.reshape(T * B, GH)
    R_grad: Array = xp.zeros((GH, H), dtype)
    for n in range(len(steps[0].multiplied) if T else 0):
        gate = slice(n * H, (n + 1) * H)
        multiplied = xp.concatenate([step.multiplied[n] for step in steps])
        R_grad[gate] = cell.product(rows[1][:, gate].T, multiplied)
    W_grad = cell.product(rows[0].T, x.X.reshape(T * B, I))
    B_grad: Array = xp.concatenate([a.sum(axis=0) for a in rows])
    X_grad = cell.product(rows[0], cell.W).reshape(T, B, I)
    if x.backwards:
        X_grad = reversed_sequences(xp, X_grad, x.lengths)
    return LayerGradients(X_grad, W_grad, R_grad, B_grad, states_grad, P_grad)
