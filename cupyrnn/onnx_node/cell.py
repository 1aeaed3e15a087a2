"""Shared by lstm, gru and rnn: the weights of one direction, and the results of a step."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from .._typing import Array, Arrays
from ..driver.pages import products_of
from ..weights.activations import Activation
from .activations import activate


class NodeCell(NamedTuple):
    """One direction of a node. The gates are stacked, in ONNX's order."""

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


class NodeStep(NamedTuple):
    """The results of a step."""

    states: Arrays  # [B, H]: h, and c of an LSTM
    multiplied: Arrays  # [B, H]: the factor of each gate's recurrent matrix
    saved: tuple[Any, ...]  # for `step_back`


class Deltas(NamedTuple):
    """The gradients of a step: of the terms that are added before the activations."""

    states: Arrays  # [B, H]: of the states before the step
    input: Array  # [B, G*H]: of X @ W.T and the biases of W
    recurrent: Array  # [B, G*H]: of the product with R and its biases
    peepholes: Array | None = None  # [B, 3*H]: of P
