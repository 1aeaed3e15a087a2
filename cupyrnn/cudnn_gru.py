"""CudnnRNN's GRU, which resets after the product where GRUBlockCell does before.

::

    r  = sigmoid(x@w_r + h_prev@r_r + b)
    u  = sigmoid(x@w_u + h_prev@r_u + b)
    hc = h_prev@r_c + b_hc
    c  = tanh(x@w_c + r*hc + b)
    h  = (1-u)*c + u*h_prev
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ._arrays import cast
from ._math import one_plus_exp_neg
from ._sequence import previous

if TYPE_CHECKING:
    from ._arrays import Array


class CudnnGRUOutputs(NamedTuple):
    """What a sequence of steps leaves, each [t, B, H]."""

    r: Array
    u: Array
    c: Array
    hc: Array
    h: Array


def forward_steps(
    xw: Array, w_h: Array, b: Array, b_hc: Array, h_prev: Array, outputs: CudnnGRUOutputs
) -> Array:
    """
    The recurrence over t steps.

    Parameters
    ----------
    xw : [t, B, 3*H]
        x @ w_x, columns r, u, c; overwritten.
    w_h : [H, 3*H]
        The recurrent weights, in the same order, C-contiguous.
    b : [3*H]
        The bias outside the reset.
    b_hc : [H]
        The bias that is reset.
    h_prev : [B, H]
        The state before the first step.
    outputs : five times [t, B, H]
        Written.

    Returns
    -------
    h : [B, H]
        The last state, not rounded to half precision.
    """
    t, B, _ = xw.shape
    H = h_prev.shape[1]
    xw += b
    h_prev = h_prev.astype(xw.dtype, order="C")
    wide = outputs
    if outputs.h.dtype != xw.dtype:
        wide = CudnnGRUOutputs(*(np.empty(a.shape, xw.dtype) for a in outputs))
    product = np.empty((B, 3 * H), xw.dtype)
    z = np.empty((2, B, H), xw.dtype)
    z_rows = z.transpose(1, 0, 2)
    by_gate = product.reshape(B, 3, H)
    product_ru, product_c = by_gate[:, :2], by_gate[:, 2]
    xw_gates = xw.reshape(t, B, 3, H)
    with np.errstate(over="ignore"):
        for xw_t, r, u, c, hc, h in zip(xw_gates, *wide, strict=True):
            np.dot(h_prev, w_h, out=product)
            np.add(product_ru, xw_t[:, :2], out=z_rows)
            one_plus_exp_neg(z)
            np.reciprocal(z[0], out=r)
            np.reciprocal(z[1], out=u)
            np.add(product_c, b_hc, out=hc)
            np.multiply(r, hc, out=c)
            c += xw_t[:, 2]
            np.tanh(c, out=c)
            np.subtract(h_prev, c, out=h)
            h *= u
            h += c
            h_prev = h
    if wide is not outputs:
        for a, value in zip(outputs, wide, strict=True):
            a[...] = value
    return h_prev


# Elements of one plane of factors: the five planes of a chunk stay in a core's cache.
_CHUNK = 32768


def backward_steps(
    saved: CudnnGRUOutputs,
    h_first: Array,
    h_grad: Array | None,
    w_h: Array,
    dh: Array,
    dgates: Array,
) -> None:
    """
    The recurrence over t steps, backwards.

    Parameters
    ----------
    saved : five times [t, B, H]
        The outputs of the forward pass.
    h_first : [B, H]
        The state before the first step.
    h_grad : [t, B, H] or None
        The gradient of each step's h.
    w_h : [3*H, H]
        The recurrent weights transposed, rows c, r, u, C-contiguous.
    dh : [B, H]
        The gradient carried into the last of the steps; overwritten with that carried out of the
        first.
    dgates : [t, B, 4*H]
        Written: the gradients of hc and of the sums inside r, u and c. The first three belong to
        the recurrent weights, the last three to those of the input.
    """
    t, B, _ = dgates.shape
    H, compute = dh.shape[1], dh.dtype
    n = max(1, min(t, _CHUNK // max(B * H, 1)))
    factors, tmp = np.empty((n, 4, B, H), compute), np.empty((n, B, H), compute)
    carried = np.empty((B, H), compute)
    by_gate = dgates.reshape(t, B, 4, H).transpose(0, 2, 1, 3)
    recurrent = dgates[:, :, : 3 * H]
    for start in range((t - 1) // n * n, -1, -n):
        steps = slice(start, min(start + n, t))
        size = steps.stop - start
        before = previous(h_first, saved.h, start, steps.stop, compute)
        r, u, c, hc, _ = (cast(a[steps], compute) for a in saved)
        k_hc, k_r, k_u, k_c = (factors[:size, gate] for gate in range(4))
        # With dh the gradient of h: dhc, dr, du and dc are dh times these.
        np.multiply(c, c, out=k_hc)
        np.subtract(1, k_hc, out=k_hc)
        np.subtract(1, u, out=k_u)
        np.multiply(k_hc, k_u, out=k_c)  # (1-u)*(1-c²)
        np.subtract(before, c, out=tmp[:size])
        tmp[:size] *= u
        k_u *= tmp[:size]  # (h_prev-c)*u*(1-u)
        np.multiply(k_c, r, out=k_hc)  # (1-u)*(1-c²)*r
        np.subtract(1, r, out=k_r)
        k_r *= k_hc
        k_r *= hc  # (1-u)*(1-c²)*hc*r*(1-r)
        given = None if h_grad is None else cast(h_grad[steps], compute)
        for s in range(size - 1, -1, -1):
            if given is not None:
                dh += given[s]
            np.multiply(dh, factors[s], out=by_gate[start + s])
            np.multiply(dh, u[s], out=carried)
            np.dot(recurrent[start + s], w_h, out=dh)
            dh += carried
