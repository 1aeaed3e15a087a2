"""
ONNX's GRU, in the standard's names.

::

    z = f(Xt @ Wz.T + Ht-1 @ Rz.T + Wbz + Rbz)
    r = f(Xt @ Wr.T + Ht-1 @ Rr.T + Wbr + Rbr)
    h = g(Xt @ Wh.T + (r*Ht-1) @ Rh.T + Rbh + Wbh)      with linear_before_reset = 0
    h = g(Xt @ Wh.T + r*(Ht-1 @ Rh.T + Rbh) + Wbh)      with linear_before_reset = 1
    H = (1 - z)*h + z*Ht-1
"""

from __future__ import annotations

from typing import Any

from .._typing import Array, Arrays
from .cell import Deltas, NodeCell, NodeStep

F, G = range(2)  # the activations


def step(cell: NodeCell, xw: Array, states: Arrays) -> NodeStep:
    """One step; `xw` is X @ W.T with the biases of W."""
    (h_prev,) = states
    size = h_prev.shape[1]
    R_zr, R_h, bias = cell.R[: 2 * size], cell.R[2 * size :], cell.R_bias[2 * size :]
    x_z, x_r, x_h = cell.gates(xw, 3)
    h_z, h_r = cell.gates(cell.product(h_prev, R_zr.T) + cell.R_bias[: 2 * size], 2)
    z, z_slope = cell.activate(F, x_z + h_z)
    r, r_slope = cell.activate(F, x_r + h_r)
    if cell.linear_before_reset:
        multiplied = h_prev
        q = cell.product(h_prev, R_h.T) + bias
        h, h_slope = cell.activate(G, x_h + r * q)
    else:
        multiplied = q = r * h_prev
        h, h_slope = cell.activate(G, x_h + cell.product(q, R_h.T) + bias)
    saved = (h_prev, z, r, h, q), (z_slope, r_slope, h_slope)
    return NodeStep(((1 - z) * h + z * h_prev,), (h_prev, h_prev, multiplied), saved)


def step_back(cell: NodeCell, saved: tuple[Any, ...], gradients: Arrays) -> Deltas:
    """The gradients of one step, from the gradient of its state."""
    (dH,) = gradients
    (h_prev, z, r, h, q), (z_slope, r_slope, h_slope) = saved
    size = h_prev.shape[1]
    R_zr, R_h = cell.R[: 2 * size], cell.R[2 * size :]
    dz_z = dH * (h_prev - h) * z_slope
    dz_h = dH * (1 - z) * h_slope
    if cell.linear_before_reset:
        dz_r, dq = dz_h * q * r_slope, dz_h * r
        through = cell.product(dq, R_h)
    else:
        d_rh = cell.product(dz_h, R_h)
        dz_r, dq = d_rh * h_prev * r_slope, dz_h
        through = d_rh * r
    dh_prev = dH * z + through + cell.product(cell.joined(dz_z, dz_r), R_zr)
    return Deltas((dh_prev,), cell.joined(dz_z, dz_r, dz_h), cell.joined(dz_z, dz_r, dq))
