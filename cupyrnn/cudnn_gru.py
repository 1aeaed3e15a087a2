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
from ._products import CHUNK, exp_of, previous

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
    B, H = h_prev.shape
    compute = xw.dtype
    # The pre-activations of the sigmoids are held negated, as in lstm.py: z is
    # -(x @ w_x + h_prev @ w_h + b).
    xw_ru, xw_c = xw[:, :, : 2 * H], xw[:, :, 2 * H :]
    np.subtract(-b[: 2 * H], xw_ru, xw_ru)
    xw_c += b[2 * H :]
    h_prev = h_prev.astype(compute, order="C")
    wide = outputs
    if outputs.h.dtype != compute:
        wide = CudnnGRUOutputs(*(np.empty(a.shape, compute) for a in outputs))
    product, z = np.empty((B, 3 * H), compute), np.empty((B, 2 * H), compute)
    product_ru, product_c = product[:, : 2 * H], product[:, 2 * H :]
    z_planes = z.reshape(B, 2, H).transpose(1, 0, 2)
    e_r, e_u = e = np.empty((2, B, H), compute)
    one, exp = np.array(1, compute), exp_of(compute)
    with np.errstate(over="ignore", under="ignore"):
        for xw_ru_t, xw_c_t, r, u, c, hc, h in zip(xw_ru, xw_c, *wide, strict=True):
            np.dot(h_prev, w_h, product)
            np.subtract(xw_ru_t, product_ru, z)
            exp(z_planes, e)
            np.add(e, one, e)
            np.reciprocal(e_r, r)  # r = sigmoid(zr)
            np.reciprocal(e_u, u)  # u = sigmoid(zu)
            np.add(product_c, b_hc, hc)
            np.multiply(r, hc, c)
            np.add(c, xw_c_t, c)
            np.tanh(c, c)  # c = tanh(xc + r*hc)
            np.subtract(h_prev, c, h)
            np.multiply(h, u, h)
            np.add(h, c, h)  # h = u*(h_prev-c) + c
            h_prev = h
    if wide is not outputs:
        for a, value in zip(outputs, wide, strict=True):
            a[...] = value
    return h_prev


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
    n = max(1, min(t, CHUNK // max(B * H, 1)))
    factors, tmp = np.empty((n, 4, B, H), compute), np.empty((n, B, H), compute)
    carried, one = np.empty((B, H), compute), np.array(1, compute)
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
        np.subtract(one, k_hc, k_hc)
        np.subtract(one, u, k_u)
        np.multiply(k_hc, k_u, out=k_c)  # (1-u)*(1-c²)
        np.subtract(before, c, out=tmp[:size])
        tmp[:size] *= u
        k_u *= tmp[:size]  # (h_prev-c)*u*(1-u)
        np.multiply(k_c, r, out=k_hc)  # (1-u)*(1-c²)*r
        np.subtract(one, r, k_r)
        k_r *= k_hc
        k_r *= hc  # (1-u)*(1-c²)*hc*r*(1-r)
        given = None if h_grad is None else cast(h_grad[steps], compute)
        # Iterating over arrays makes the views of a step faster than indexing them does.
        arrays = (factors[:size], u, by_gate[steps], recurrent[steps])
        for s, factors_s, u_s, by_gate_s, recurrent_s in zip(
            range(size - 1, -1, -1), *(a[::-1] for a in arrays), strict=True
        ):
            if given is not None:
                np.add(dh, given[s], dh)
            np.multiply(dh, factors_s, by_gate_s)
            np.multiply(dh, u_s, carried)
            np.dot(recurrent_s, w_h, dh)
            np.add(dh, carried, dh)
