"""
The IndRNN of Li et al., "Independently Recurrent Neural Network", CVPR 2018, with tanh.

A vector replaces the recurrent matrix: each unit sees only its own past.

Forward::

    h  = tanh(z)                          z = x @ w_x + u*h_prev + b

Backward, with dh the gradient of h, later steps included::

    dz = dh * (1-h²)
    dh = dz * u
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from cupyrnn.cells.contract import BackwardRun, Form, ForwardRun, Gradients, States, Weight

if TYPE_CHECKING:
    from cupyrnn._typing import Array


class IndRNNOutputs(NamedTuple):
    """The results of a sequence of steps, [t, B, H]."""

    h: Array


class IndRNN(NamedTuple):
    """The weights, in the dtype of the computation except for the matrix."""

    inputs: tuple[Weight, ...]  # w_x [I, H]
    widths: tuple[int, ...]
    u: Array  # [H]
    b: Array  # [H]

    kernels = "new_cells.kernels.indrnn"  # their CUDA twins

    @property
    def Saved(self) -> type[IndRNNOutputs]:
        """The results of each step."""
        return IndRNNOutputs

    @property
    def recurrent(self) -> tuple[Weight, ...]:
        """No matrix."""
        return ()

    def states(self, saved: IndRNNOutputs) -> States:
        """h."""
        return States(saved.h)

    def terms(self, saved: IndRNNOutputs, before: States, deltas: list[Array]) -> list[Array]:
        """dz*h_prev."""
        return [deltas[0] * before.h]


def forward_steps(cell: IndRNN, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    (z,), h_prev = run.xw, run.carried.h
    np.add(z, cell.b, z)
    for z_t, h in zip(z, run.saved.h, strict=True):
        np.multiply(h_prev, cell.u, h)
        np.add(h, z_t, h)
        np.tanh(h, h)
        h_prev = h
    run.carried.h[...] = h_prev


def backward_steps(cell: IndRNN, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    (dz,), dh, h_grad, h = run.deltas, run.carried.h, run.cotangents.h, run.saved.h
    np.multiply(h, h, dz)
    np.subtract(1, dz, dz)
    for s in range(len(dz) - 1, -1, -1):
        if h_grad is not None:
            np.add(dh, h_grad[s], dh)
        np.multiply(dz[s], dh, dz[s])
        np.multiply(dz[s], cell.u, dh)


def add_sums(cell: IndRNN, run: BackwardRun, totals: Array) -> None:
    """Add the sums over time and batch of dz*h_prev to totals[H]."""
    totals += (run.deltas[0] * run.before.h).sum((0, 1))


class IndRNNForm(Form):
    """The form of the weights, for `stacked_rnn`."""

    name, States, Saved = "an IndRNN", States, IndRNNOutputs
    shapes: ClassVar = {"w_x": "K, H", "u": "H", "b": "H"}

    def cell(self, xp: Any, weights: Any, attributes: None) -> IndRNN:
        """Return the cell."""
        w_x, u, b = weights
        return IndRNN((Weight(w_x, len(u)),), (len(u),), u, b)

    def gradients(self, xp: Any, grads: Any) -> Gradients:
        """Return all three unchanged."""
        w_x, u, b = grads
        return Gradients(None, (w_x,), (b,), u)


FORM = IndRNNForm()


class IndRNNParams(NamedTuple):
    """The weights: w_x [K, H], and u and b [H]."""

    w_x: Any
    u: Any
    b: Any

    @property
    def form(self) -> Form:
        """Makes a cell of the weights."""
        return FORM
