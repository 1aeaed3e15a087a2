"""
The walks over the layers of a net whose arrays are places: one forwards, one backwards.

A walk hands each layer, as places by name, to a machine, which makes its own operations of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .._typing import NamedTuple
from .places import Place, Table


class Weights(NamedTuple):
    """The weights of a layer, or their gradients."""

    w_x: tuple[Place, ...]  # [K, ·], of each product of a step
    w_h: tuple[Place, ...]  # [H, ·]
    vectors: dict[str, Place | None]  # by the names that the cell has for them


class LayerPlaces(NamedTuple):
    """What a layer reads and writes; N = T*B rows."""

    x: Place  # [N, K]
    weights: Weights
    first: tuple[Place, ...]  # the states before the first step, [B, H]
    saved: tuple[Place, ...]  # what the steps save, [N, H], h the last
    last: tuple[Place | None, ...]  # the states after the last step, written forwards
    output: Place | None = None  # [N, H], where h is written a second time


class GradientPlaces(NamedTuple):
    """The gradients of a layer."""

    states: tuple[Place | None, ...]  # those of the states of each step, [N, H], h first
    last: tuple[Place | None, ...]  # those of the states after the last step, [B, H]
    first: tuple[Place, ...]  # written: those of the states before the first step
    x: Place | None  # written, [N, K]
    weights: Weights  # written


class Machine(Protocol):
    """What computes layers."""

    def forward_layer(self, layer: LayerPlaces) -> None:
        """Add the operations of a layer."""

    def backward_layer(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the operations of the gradient of a layer."""


def forward(machine: Machine, layers: Sequence[LayerPlaces]) -> None:
    """Add the operations of a net: each layer reads h of the one below."""
    for n, layer in enumerate(layers):
        machine.forward_layer(layer._replace(x=layers[n - 1].saved[-1]) if n else layer)


def backward(
    machine: Machine,
    table: Table,
    layers: Sequence[LayerPlaces],
    grads: Sequence[GradientPlaces],
) -> None:
    """Add the operations of the gradient of a net, whose last layer has gradients of states."""
    states = grads[-1].states
    for n in reversed(range(len(layers))):
        layer, grad = layers[n], grads[n]._replace(states=states)
        if n:
            below = layers[n - 1].saved[-1]
            layer, grad = (
                layer._replace(x=below),
                grad._replace(x=table.reuse(f"x{n % 2}", below.shape)),
            )
            states = (grad.x, *[None] * (len(layer.first) - 1))
        machine.backward_layer(layer, grad)
