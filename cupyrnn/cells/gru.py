"""
The GRU of TensorFlow's GRUBlockCell. It resets before the product.

Forward::

    r, u = sigmoid(x @ w_ru + h_prev @ w_ru + b_ru)
    c = tanh(x @ w_c + (h_prev*r) @ w_c + b_c)
    h = u*(h_prev - c) + c

With a hard sigmoid its slope replaces r*(1-r) and u*(1-u): ``arithmetic/gates.py``.

Backward, with dh the gradient of h, later steps included. The factors k depend on saved values
only::

    d_c  = dh * k_c                       k_c = (1-u)*(1-c²)
    d_u  = dh * k_u                       k_u = (h_prev-c)*u*(1-u)
    d_hr = d_c @ w_c.T
    d_r  = d_hr * k_r                     k_r = h_prev*r*(1-r)
    dh   = dh*u + d_hr*r + [d_r, d_u] @ w_ru.T
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

import numpy as np

from .._typing import Array, ArrayT, NamedTuple
from ..arithmetic.dual import arithmetic_of, dot_with
from ..arithmetic.gates import HardSigmoid, gate_of, slope_of, unity_of
from ..arithmetic.scratch import product
from .contract import BackwardRun, BackwardStep, ForwardRun, States, Weight


class GRUOutputs(NamedTuple, Generic[ArrayT]):
    """
    What a GRU step [B, H] or sequence [T, B, H] returns, in TensorFlow's order.

    Attributes
    ----------
    r, u, c : [B, H] or [T, B, H]
        The reset and update gates and the new value.
    h : [B, H] or [T, B, H]
        The output.
    """

    r: ArrayT
    u: ArrayT
    c: ArrayT
    h: ArrayT


class GRU(NamedTuple):
    """The weights of a GRU: for r and u together, and for c."""

    inputs: tuple[Weight, ...]
    recurrent: tuple[Weight, ...]
    widths: tuple[int, ...]
    b_ru: Any = None  # [2*H]; None backward
    b_c: Any = None  # [H]; None backward
    gate: HardSigmoid | None = None  # None for the sigmoid

    @property
    def Saved(self) -> type[GRUOutputs]:
        """The NamedTuple of the results of a step."""
        return GRUOutputs

    def states(self, saved: GRUOutputs) -> States:
        """h."""
        return States(saved.h)

    def operands(self, saved: GRUOutputs, h_before: Array) -> list[Array]:
        """Return the left factors of w_ru and w_c."""
        return [h_before, product(h_before, saved.r, h_before.dtype)]


def drawn(some: Callable[..., Array], H: int, gate: HardSigmoid | None) -> GRU:
    """Return a cell without matrices of numbers from `some`; with a hard gate all its options."""
    return GRU((), (), (2 * H, H), some(2 * H), some(H), gate)


def forward_steps(cell: GRU, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    (z_ru, z_c), (w_ru, w_c), h_prev = run.xw, run.w, run.carried.h
    (B, H), dtype = h_prev.shape, z_c.dtype
    # The pre-activations of the sigmoids are stored negated, as in lstm.py.
    np.subtract(-cell.b_ru, z_ru, z_ru)
    np.add(z_c, cell.b_c, z_c)
    zh, zh_c, h_reset = (np.empty((B, n * H), dtype) for n in (2, 1, 1))
    # One plane [B, H] per gate: a ufunc over contiguous memory is several times cheaper than
    # one over half of each row.
    planes = zh.reshape(B, 2, H).transpose(1, 0, 2)
    e_r, e_u = e = np.empty((2, B, H), dtype)
    (inner, shift, outer), arithmetic = gate_of(cell.gate, dtype), arithmetic_of(dtype)
    dot, tanh = dot_with(dtype, run.w), arithmetic.tanh
    for z_ru_t, z_c_t, r, u, c, h in zip(z_ru, z_c, *run.saved, strict=True):
        dot(h_prev, w_ru, zh)
        np.subtract(z_ru_t, zh, zh)
        inner(planes, e)
        np.add(e, shift, e)
        outer(e_r, r)  # r = sigmoid(zr)
        outer(e_u, u)  # u = sigmoid(zu)
        dot(np.multiply(h_prev, r, h_reset), w_c, zh_c)
        np.add(zh_c, z_c_t, zh_c)
        tanh(zh_c, c)  # c = tanh(zc)
        np.subtract(h_prev, c, h)
        np.multiply(h, u, h)
        np.add(h, c, h)  # h = u*(h_prev - c) + c
        h_prev = h
    run.carried.h[...] = h_prev


def backward_steps(cell: GRU, run: BackwardRun) -> None:
    """The recurrence over t steps, backward."""
    (d_ru, d_c), (w_ru, w_c), dh, h_grad = run.deltas, run.w, run.carried.h, run.cotangents.h
    (t, B, H), dtype = d_c.shape, dh.dtype
    r, u, c, _ = run.saved
    h_prev, unity, slope = run.before.h, unity_of(dtype), slope_of(cell.gate, dtype)
    k_r, k_u, k_c, tmp = run.work(4, t, B, H)
    np.subtract(unity, u, tmp)
    np.multiply(c, c, k_c)
    np.subtract(unity, k_c, k_c)
    np.multiply(k_c, tmp, k_c)  # k_c = (1-u)*(1-c²)
    slope(u, tmp, tmp)
    np.subtract(h_prev, c, k_u)
    np.multiply(k_u, tmp, k_u)  # k_u = (h_prev-c)*u*(1-u)
    np.subtract(unity, r, k_r)
    slope(r, k_r, k_r)
    np.multiply(h_prev, k_r, k_r)  # k_r = h_prev*r*(1-r)
    dot = dot_with(dtype, run.w)
    d_hr, through = np.empty((B, H), dtype), np.empty((B, H), dtype)
    gates = d_ru.reshape(t, B, 2, H)
    # Iterating over arrays makes the views of a step faster than indexing does.
    arrays = (k_r, k_u, k_c, r, u, d_ru, d_c, gates[:, :, 0], gates[:, :, 1])
    for s, k_r_s, k_u_s, k_c_s, r_s, u_s, d_ru_s, d_c_s, d_r, d_u in zip(
        range(t - 1, -1, -1), *(a[::-1] for a in arrays), strict=True
    ):
        if h_grad is not None:
            np.add(dh, h_grad[s], dh)
        np.multiply(dh, k_u_s, d_u)
        np.multiply(dh, k_c_s, d_c_s)
        dot(d_c_s, w_c, d_hr)
        np.multiply(d_hr, k_r_s, d_r)
        dot(d_ru_s, w_ru, through)
        np.multiply(dh, u_s, dh)
        np.multiply(d_hr, r_s, d_hr)
        np.add(dh, d_hr, dh)
        np.add(dh, through, dh)  # dh = dh*u + d_hr*r + d_ru @ w_ru.T


def forward_step(cell: GRU, x: Array, first: States, saved: GRUOutputs) -> None:
    """One step with its products, in as few calls as possible."""
    (w_ru, w_c), (u_ru, u_c), h_prev, (r, u, c, h) = cell.inputs, cell.recurrent, first.h, saved
    H = h_prev.shape[1]
    inner, shift, outer = gate_of(cell.gate, x.dtype)
    z = x.dot(w_ru.w)
    z += h_prev.dot(u_ru.w)
    z += cell.b_ru
    np.negative(z, z)
    inner(z, z)
    z += shift
    outer(z[:, :H], r)  # r = sigmoid(zr)
    outer(z[:, H:], u)  # u = sigmoid(zu)
    z = x.dot(w_c.w)
    z += (h_prev * r).dot(u_c.w)
    z += cell.b_c
    np.tanh(z, c)  # c = tanh(zc)
    np.subtract(h_prev, c, h)
    h *= u
    h += c  # h = u*(h_prev - c) + c


def backward_step(cell: GRU, step: BackwardStep) -> None:
    """One step backward, in as few calls as possible."""
    (r, u, c, _), h_prev, dh, (d_ru, d_c) = step.saved, step.before.h, step.carried.h, step.deltas
    u_ru, u_c = cell.recurrent
    H, dtype = dh.shape[1], dh.dtype
    unity, slope = unity_of(dtype), slope_of(cell.gate, dtype)
    d_r, d_u = d_ru[:, :H], d_ru[:, H:]
    not_u = unity - u
    np.multiply(c, c, d_c)
    np.subtract(unity, d_c, d_c)
    d_c *= not_u
    d_c *= dh  # d_c = dh*(1-u) * (1-c²)
    slope(u, not_u, not_u)
    not_u *= dh
    np.subtract(h_prev, c, d_u)
    d_u *= not_u  # d_u = dh*(h_prev-c) * u*(1-u)
    d_hr = d_c.dot(u_c.w.T)
    k = unity - r
    slope(r, k, k)
    k *= h_prev
    np.multiply(d_hr, k, d_r)  # d_r = d_hr*h_prev * r*(1-r)
    dh *= u
    d_hr *= r
    dh += d_hr
    dh += d_ru.dot(u_ru.w.T)  # dh = dh*u + d_hr*r + d_ru @ w_ru.T
    if step.x is not None:
        (w_ru, w_c), dx = cell.inputs, step.x
        d_ru.dot(w_ru.w.T, dx)
        dx += d_c.dot(w_c.w.T)
