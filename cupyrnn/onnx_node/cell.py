"""What the pages of equations share: the weights of one direction, and what a step leaves."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from .._typing import Array, Arrays
from ..driver.pages import products_of
from ..weights.activations import Activation
from .activations import activate


class Cell(NamedTuple):
    """One direction of a node. The gates are above each other, in ONNX's order."""

    xp: ModuleType
    W: Array  # [G*H, I]
    R: Array  # [G*H, H]
    W_bias: Array  # [G*H]
    R_bias: Array  # [G*H]
    P: Array | None  # [3, H]: i, o, f
    activations: tuple[Activation, ...]
    clip: float | None
    input_forget: bool
    linear_before_reset: bool

    def activate(self, n: int, z: Array) -> tuple[Array, Array]:
        """Return the value and the slope of the n-th of f, g, h at z."""
        return activate(self.xp, self.activations[n], self.clip, z)

    def product(self, a: Array, b: Array) -> Array:
        """Return a @ b."""
        out: Array = self.xp.empty((a.shape[0], b.shape[1]), a.dtype)
        products_of(self.xp).matmul(a, b, out)
        return out

    def gates(self, z: Array, G: int) -> list[Any]:
        """Return the columns of each of the G gates of z[B, G*H]."""
        H = self.R.shape[1]
        return [z[:, n * H : (n + 1) * H] for n in range(G)]

    def joined(self, *gates: Array) -> Array:
        """Return the columns of gates side by side."""
        return self.xp.concatenate(gates, axis=1)


class Step(NamedTuple):
    """What a step leaves."""

    states: Arrays  # [B, H]: h, and c of an LSTM
    multiplied: Arrays  # [B, H]: what the recurrent matrix of each gate multiplied
    saved: tuple[Any, ...]  # what `step_back` needs


class Deltas(NamedTuple):
    """The gradients that a step leaves, of what is added up before the activations."""

    states: Arrays  # [B, H]: of the states before the step
    input: Array  # [B, G*H]: of X's share and the biases of W
    recurrent: Array  # [B, G*H]: of the states' share and the biases of R
    peepholes: Array | None = None  # [B, 3*H]: of P
