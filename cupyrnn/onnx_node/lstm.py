"""
ONNX's LSTM, in the standard's names.

::

    i = f(Xt @ Wi.T + Ht-1 @ Ri.T + Pi*Ct-1 + Wbi + Rbi)
    f = f(Xt @ Wf.T + Ht-1 @ Rf.T + Pf*Ct-1 + Wbf + Rbf), or 1 - i with input_forget
    c = g(Xt @ Wc.T + Ht-1 @ Rc.T + Wbc + Rbc)
    C = f*Ct-1 + i*c
    o = f(Xt @ Wo.T + Ht-1 @ Ro.T + Po*C + Wbo + Rbo)
    H = o*h(C)

`clip` bounds the input of each activation; C itself is not clipped.
"""

from __future__ import annotations

from typing import Any

from .._typing import Array, Arrays
from .cell import Deltas, NodeCell, NodeStep

F, G, H = range(3)  # the activations


def step(cell: NodeCell, xw: Array, states: Arrays) -> NodeStep:
    """One step; `xw` is X @ W.T with the biases of W."""
    h_prev, C_prev = states
    z_i, z_o, z_f, z_c = cell.gates(xw + cell.product(h_prev, cell.R.T) + cell.R_bias, 4)
    p_i, p_o, p_f = (None, None, None) if cell.P is None else cell.P
    i, i_slope = cell.activate(F, z_i if p_i is None else z_i + p_i * C_prev)
    if cell.input_forget:
        f, f_slope = 1 - i, None
    else:
        f, f_slope = cell.activate(F, z_f if p_f is None else z_f + p_f * C_prev)
    c, c_slope = cell.activate(G, z_c)
    C = f * C_prev + i * c
    o, o_slope = cell.activate(F, z_o if p_o is None else z_o + p_o * C)
    k, k_slope = cell.activate(H, C)
    saved = (C_prev, i, f, c, C, o, k), (i_slope, f_slope, c_slope, o_slope, k_slope)
    return NodeStep((o * k, C), (h_prev,) * 4, saved)


def step_back(cell: NodeCell, saved: tuple[Any, ...], gradients: Arrays) -> Deltas:
    """The gradients of one step, from the gradients of its states."""
    dh, dC = gradients
    (C_prev, i, f, c, C, o, k), (i_slope, f_slope, c_slope, o_slope, k_slope) = saved
    p_i, p_o, p_f = (0, 0, 0) if cell.P is None else cell.P
    dz_o = dh * k * o_slope
    dC = dC + dh * o * k_slope + dz_o * p_o
    dz_c = dC * i * c_slope
    if cell.input_forget:
        dz_i = dC * (c - C_prev) * i_slope
        dz_f = 0 * dz_i
    else:
        dz_i, dz_f = dC * c * i_slope, dC * C_prev * f_slope
    dz = cell.joined(dz_i, dz_o, dz_f, dz_c)
    dC_prev = dC * f + dz_i * p_i + dz_f * p_f
    dP = None if cell.P is None else cell.joined(dz_i * C_prev, dz_o * C, dz_f * C_prev)
    return Deltas((cell.product(dz, cell.R), dC_prev), dz, dz, dP)
