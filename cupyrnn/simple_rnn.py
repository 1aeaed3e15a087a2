"""CudnnRNN's rnn_tanh and rnn_relu: h = tanh(z) or max(z, 0), z = x@w_x + h_prev@w_h + b."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ._arrays import cast

if TYPE_CHECKING:
    from ._arrays import Array


def forward_steps(
    xw: Array, w_h: Array, b: Array, h_prev: Array, relu: bool, outputs: Array
) -> Array:
    """
    The recurrence over t steps.

    Parameters
    ----------
    xw : [t, B, H]
        x @ w_x; overwritten.
    w_h : [H, H]
        The recurrent weights, C-contiguous.
    b : [H]
        The bias.
    h_prev : [B, H]
        The state before the first step.
    relu
        max(z, 0) in place of tanh(z).
    outputs : [t, B, H]
        Written: h of each step.

    Returns
    -------
    h : [B, H]
        The last state, not rounded to half precision.
    """
    xw += b
    h_prev = h_prev.astype(xw.dtype, order="C")
    wide = outputs if outputs.dtype == xw.dtype else np.empty(outputs.shape, xw.dtype)
    # An array: with a number np.maximum takes four times as long.
    zeros = np.zeros(h_prev.shape, xw.dtype)
    for xw_t, h in zip(xw, wide, strict=True):
        np.dot(h_prev, w_h, h)
        np.add(h, xw_t, h)
        if relu:
            np.maximum(h, zeros, out=h)
        else:
            np.tanh(h, h)
        h_prev = h
    if wide is not outputs:
        outputs[...] = wide
    return h_prev


def backward_steps(
    h: Array,
    h_grad: Array | None,
    w_h: Array,
    relu: bool,
    dh: Array,
    dgates: Array,
) -> None:
    """
    The recurrence over t steps, backwards.

    Parameters
    ----------
    h : [t, B, H]
        The outputs of the forward pass.
    h_grad : [t, B, H] or None
        The gradient of each step's h.
    w_h : [H, H]
        The recurrent weights transposed, C-contiguous.
    dh : [B, H]
        The gradient carried into the last of the steps; overwritten with that carried out of the
        first.
    dgates : [t, B, H]
        Written: the gradient of z.
    """
    saved = cast(h, dh.dtype)
    if relu:
        np.greater(saved, 0, out=dgates)
    else:
        np.multiply(saved, saved, out=dgates)
        np.subtract(1, dgates, out=dgates)
    given = None if h_grad is None else cast(h_grad, dh.dtype)
    for s in range(len(dgates) - 1, -1, -1):
        if given is not None:
            np.add(dh, given[s], dh)
        dz = dgates[s]
        np.multiply(dz, dh, dz)
        np.dot(dz, w_h, dh)
