"""
ONNX's RNN, in the standard's names.

::

    H = f(Xt @ Wi.T + Ht-1 @ Ri.T + Wbi + Rbi)
"""

from __future__ import annotations

from typing import Any

from .._typing import Array, Arrays
from .cell import Deltas, NodeCell, NodeStep


def step(cell: NodeCell, xw: Array, states: Arrays) -> NodeStep:
    """One step; `xw` is X @ W.T with the biases of W."""
    (h_prev,) = states
    h, slope = cell.activate(0, xw + cell.product(h_prev, cell.R.T) + cell.R_bias)
    return NodeStep((h,), (h_prev,), (slope,))


def step_back(cell: NodeCell, saved: tuple[Any, ...], gradients: Arrays) -> Deltas:
    """The gradients of one step, from the gradient of its state."""
    (dh,), (slope,) = gradients, saved
    dz = dh * slope
    return Deltas((cell.product(dz, cell.R),), dz, dz)
