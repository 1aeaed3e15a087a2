"""
CudnnRNN's rnn_tanh and rnn_relu.

::

    h  = tanh(z) or max(z, 0)             z = x @ w_x + h_prev @ w_h + b
    dz = dh * (1-h²) or dh * (h > 0)
    dh = dz @ w_h.T
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .._typing import Array, NamedTuple
from ..arithmetic.dual import arithmetic_of, dot_with
from ..arithmetic.gates import unity_of
from .contract import BackwardRun, BackwardStep, ForwardRun, States, Weight


class SimpleRNNOutputs(NamedTuple):
    """The results of a sequence of steps, [t, B, H]."""

    h: Array


class SimpleRNN(NamedTuple):
    """The weights and the nonlinearity."""

    inputs: tuple[Weight, ...]
    recurrent: tuple[Weight, ...]
    widths: tuple[int, ...]
    b: Array  # [H]
    relu: bool  # max(z, 0) instead of tanh(z)

    @property
    def Saved(self) -> type[SimpleRNNOutputs]:
        """The NamedTuple of the results of a step."""
        return SimpleRNNOutputs

    def states(self, saved: SimpleRNNOutputs) -> States:
        """h."""
        return States(saved.h)


def drawn(some: Callable[..., Array], H: int, gate: object) -> SimpleRNN:
    """Return a cell without matrices of numbers from `some`; with a hard gate all its options."""
    return SimpleRNN((), (), (H,), some(H), bool(gate))


def forward_steps(cell: SimpleRNN, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    (z,), (w_h,), h_prev = run.xw, run.w, run.carried.h
    np.add(z, cell.b, z)
    # An array of zeros: with a number np.maximum takes four times as long.
    zeros = np.zeros(h_prev.shape, z.dtype)
    _, _, tanh, *_, maximum = arithmetic_of(z.dtype)
    dot = dot_with(z.dtype, run.w)
    for z_t, h in zip(z, run.saved.h, strict=True):
        dot(h_prev, w_h, h)
        np.add(h, z_t, h)
        if cell.relu:
            maximum(h, zeros, out=h)
        else:
            tanh(h, h)
        h_prev = h
    run.carried.h[...] = h_prev


def backward_steps(cell: SimpleRNN, run: BackwardRun) -> None:
    """The recurrence over t steps, backward."""
    (dz,), (w_h,), dh, h = run.deltas, run.w, run.carried.h, run.saved.h
    h_grad = run.cotangents.h
    if cell.relu:
        np.greater(h.real, 0, out=dz)
    else:
        np.multiply(h, h, dz)
        np.subtract(1, dz, dz)
    dot = dot_with(dz.dtype, run.w)
    for s in range(len(dz) - 1, -1, -1):
        if h_grad is not None:
            np.add(dh, h_grad[s], dh)
        np.multiply(dz[s], dh, dz[s])
        dot(dz[s], w_h, dh)


def forward_step(cell: SimpleRNN, x: Array, first: States, saved: SimpleRNNOutputs) -> None:
    """One step with its products, in as few calls as possible."""
    (w_x,), (w_h,), h = cell.inputs, cell.recurrent, saved.h
    x.dot(w_x.w, h)
    h += first.h.dot(w_h.w)
    h += cell.b
    if cell.relu:
        np.maximum(h, np.zeros((), h.dtype), out=h)
    else:
        np.tanh(h, h)


def backward_step(cell: SimpleRNN, step: BackwardStep) -> None:
    """One step backward, in as few calls as possible."""
    (dz,), dh, h = step.deltas, step.carried.h, step.saved.h
    (w_x,), (w_h,) = cell.inputs, cell.recurrent
    if cell.relu:
        np.greater(h, 0, out=dz)
    else:
        np.multiply(h, h, dz)
        np.subtract(unity_of(dz.dtype), dz, dz)
    dz *= dh
    dz.dot(w_h.w.T, dh)
    if step.x is not None:
        dz.dot(w_x.w.T, step.x)


def prepared_step(cell: SimpleRNN) -> Callable[..., tuple[Array]]:
    """Return a function of x and h_prev that computes h, for real numbers."""
    (w_x,), (w_h,), b = cell.inputs, cell.recurrent, cell.b
    x_matrix, h_matrix = (np.ascontiguousarray(weight.w) for weight in (w_x, w_h))
    relu, zero = cell.relu, np.array(0, b.dtype)

    def step(x: Array, h_prev: Array) -> tuple[Array]:
        h = x.dot(x_matrix)
        h += h_prev.dot(h_matrix)
        h += b
        return (np.maximum(h, zero, out=h) if relu else np.tanh(h, h),)

    return step
