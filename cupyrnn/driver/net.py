"""
The loops over the layers of a net whose arrays are places: one forward, one backward.

A loop passes each layer, as places by name, to a machine, which turns it into its own operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

from .._typing import NamedTuple
from ..checks.arrays import compute_dtype
from .places import Place, Table


class Weights(NamedTuple):
    """The weights of a layer, or their gradients."""

    w_x: tuple[Place, ...]  # [K, ·], of each product of a step
    w_h: tuple[Place, ...]  # [H, ·]
    vectors: dict[str, Place | None]  # by the names that the cell has for them


class LayerPlaces(NamedTuple):
    """The inputs and outputs of one direction of a layer; N = T*B rows in the order of time."""

    x: tuple[Place, ...]  # [N, K], or the parts of it that are side by side
    back: bool  # whether its steps run backwards in time
    weights: Weights
    first: tuple[Place | None, ...]  # the states before the first step, [B, H]; None: zeros
    saved: tuple[Place, ...]  # the saved arrays, [N, H]; h is the last
    last: tuple[Place | None, ...]  # the states after the last step, written forwards
    output: Place | None = None  # [N, H], where h is written a second time


class GradientPlaces(NamedTuple):
    """The gradients of one direction of a layer."""

    states: tuple[Place | None, ...]  # of each step's states, [N, H], h first
    last: tuple[Place | None, ...]  # of the states after the last step, [B, H]
    first: tuple[Place, ...]  # written: of the states before the first step
    x: Place | None  # written, [N, K], of all parts of x side by side
    weights: Weights  # written
    adds_x: bool = False  # whether the gradient of x is added to its place


class Cells(NamedTuple):
    """The cells of a machine, as functions of their attributes."""

    lstm: Callable[..., Any]  # of columns, cell_clip, gate and forget_bias
    gru: Callable[..., Any]  # of gate
    gru_reset_after: Callable[..., Any]  # of gate
    simple_rnn: Callable[..., Any]  # of relu


class Machine(Protocol):
    """Computes layers."""

    def forward_layer(self, layer: LayerPlaces) -> None:
        """Add the operations of one direction of a layer."""

    def backward_layer(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the operations of the gradient of one direction of a layer."""

    def backward_gates(self, layer: LayerPlaces, grads: GradientPlaces, deltas: Any) -> Any:
        """Add the gradient of a single step up to its gates, written to `deltas`."""

    def round(self, a: Place, to: Place) -> None:
        """Add an operation that converts computed numbers to the storage type."""

    def clear(self, a: Place) -> None:
        """Add that memory of results is zeros."""

    def exchange(self, a: Place, to: Place) -> None:
        """Add an operation that writes `a` with its first two axes exchanged to `to`."""


def forward(machine: Machine, layers: Sequence[Sequence[LayerPlaces]]) -> None:
    """
    Add the operations of a net, by layer and direction.

    Each layer but the first reads h of all directions of the layer below.
    """
    for directions in with_inputs(layers):
        for layer in directions:
            machine.forward_layer(layer)


def with_inputs(layers: Sequence[Sequence[LayerPlaces]]) -> list[list[LayerPlaces]]:
    """Return the layers, each with its input."""
    found = [list(layers[0])]
    for below, directions in pairwise(layers):
        x = tuple(layer.saved[-1] for layer in below)
        found.append([layer._replace(x=x) for layer in directions])
    return found


def backward(
    machine: Machine,
    table: Table,
    layers: Sequence[Sequence[LayerPlaces]],
    grads: Sequence[Sequence[GradientPlaces]],
) -> None:
    """
    Add the operations of the gradient of a net, by layer and direction.

    The last layer has gradients of states, the first one a place for the gradient of its input.
    """
    states = [grad.states for grad in grads[-1]]
    for n, directions in reversed(list(enumerate(with_inputs(layers)))):
        read, x = directions[0].x, grads[n][0].x
        ends = [0, *accumulate(part.shape[1] for part in read)]
        if n:
            x = table.reuse(f"x{n % 2}", (read[0].shape[0], ends[-1]))
        # The sum of several directions is rounded once.
        into, compute = x, compute_dtype(table.dtype)
        if x is not None and len(directions) > 1 and compute != table.dtype:
            into = table.reuse("sum", x.shape, compute)
        for d, layer in enumerate(directions):
            grad = grads[n][d]._replace(states=states[d], x=into, adds_x=d > 0)
            machine.backward_layer(layer, grad)
        if x is not None and into is not None and into is not x:
            machine.round(into, x)
        if n and x is not None:
            others = (None,) * (len(directions[0].first) - 1)
            states = [(x.part(*columns, 1), *others) for columns in pairwise(ends)]
