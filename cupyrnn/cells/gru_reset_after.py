"""
CudnnRNN's GRU. It resets after the product; GRUBlockCell resets before it.

Forward::

    r, u = sigmoid(x @ w_ru + h_prev @ w_ru + b)
    hc = h_prev @ w_hc + b_hc
    c = tanh(x @ w_c + b + r*hc)
    h = u*(h_prev - c) + c

With a hard sigmoid its slope replaces r*(1-r) and u*(1-u): ``arithmetic/gates.py``.

Backward, with dh the gradient of h, later steps included. The factors k depend on saved values
only::

    dhc = dh * k_hc                       k_hc = k_c*r
    dr  = dh * k_r                        k_r  = k_c*hc*r*(1-r)
    du  = dh * k_u                        k_u  = (h_prev-c)*u*(1-u)
    dc  = dh * k_c                        k_c  = (1-u)*(1-c²)
    dh  = dh*u + [dhc, dr, du] @ [w_hc, w_ru].T
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .._typing import Array, NamedTuple
from ..arithmetic.dual import arithmetic_of, dot_with
from ..arithmetic.gates import HardSigmoid, gate_of, sigmoid_of, slope_of, unity_of, with_negated
from ..arithmetic.scratch import are_small
from .contract import BackwardRun, BackwardStep, ForwardRun, States, Weight


class GRUResetAfterOutputs(NamedTuple):
    """The results of a sequence of steps, each [t, B, H]."""

    r: Array
    u: Array
    c: Array
    hc: Array
    h: Array


class GRUResetAfter(NamedTuple):
    """
    The weights of the GRU. Its deltas are one array, with the columns hc, r, u and c.

    For a single step with `hc_last`, the columns keep the packed order, because reordering them
    takes longer than the products. Then there are two arrays of deltas: r, u, c and r, u, hc.
    Compiled loops have these deltas, too.
    """

    inputs: tuple[Weight, ...]  # columns r, u, c
    recurrent: tuple[Weight, ...]  # columns hc, r, u
    widths: tuple[int, ...]
    b: Array  # [3*H]: r, u, c; not multiplied by r
    b_hc: Array  # [H]; multiplied by r
    gate: HardSigmoid | None = None  # None for the sigmoid
    # Whether the recurrent columns are r, u, hc: of single real steps, and of compiled loops.
    hc_last: bool = False

    @property
    def Saved(self) -> type[GRUResetAfterOutputs]:
        """The NamedTuple of the results of a step."""
        return GRUResetAfterOutputs

    def states(self, saved: GRUResetAfterOutputs) -> States:
        """h."""
        return States(saved.h)


def drawn(some: Callable[..., Array], H: int, gate: HardSigmoid | None) -> GRUResetAfter:
    """Return a cell without matrices of numbers from `some`; with a hard gate all its options."""
    return GRUResetAfter((), (), (4 * H,), some(3 * H), some(H), gate)


def forward_steps(cell: GRUResetAfter, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    (z,), (w_h,), h_prev = run.xw, run.w, run.carried.h
    (t, B, _), H, dtype = z.shape, h_prev.shape[1], z.dtype
    # The pre-activations of the sigmoids are stored negated, as in lstm.py.
    np.subtract(-cell.b[: 2 * H], z[:, :, : 2 * H], z[:, :, : 2 * H])
    np.add(z[:, :, 2 * H :], cell.b[2 * H :], z[:, :, 2 * H :])
    product, b_hc = np.empty((B, 3 * H), dtype), cell.b_hc[None].repeat(B, 0)
    z = z.reshape(t, B, 3, H).transpose(0, 2, 1, 3)
    by_gate = planes = product.reshape(B, 3, H).transpose(1, 0, 2)
    # Small steps are copied to planes [B, H]: ufuncs are slow over strided memory.
    is_small = are_small(t, B * H, dtype)
    if is_small:
        z, planes = z.copy("C"), np.empty((3, B, H), dtype)
    product_hc, product_ru = planes[0], planes[1:]
    e_r, e_u = e = np.empty((2, B, H), dtype)
    (inner, shift, outer), arithmetic = gate_of(cell.gate, dtype), arithmetic_of(dtype)
    dot, tanh = dot_with(dtype, run.w), arithmetic.tanh
    for z_ru_t, z_c_t, r, u, c, hc, h in zip(z[:, :2], z[:, 2], *run.saved, strict=True):
        dot(h_prev, w_h, product)
        if is_small:
            planes[...] = by_gate
        np.subtract(z_ru_t, product_ru, e)
        inner(e, e)
        np.add(e, shift, e)
        outer(e_r, r)  # r = sigmoid(zr)
        outer(e_u, u)  # u = sigmoid(zu)
        np.add(product_hc, b_hc, hc)
        np.multiply(r, hc, c)
        np.add(c, z_c_t, c)
        tanh(c, c)  # c = tanh(zc + r*hc)
        np.subtract(h_prev, c, h)
        np.multiply(h, u, h)
        np.add(h, c, h)  # h = u*(h_prev - c) + c
        h_prev = h
    run.carried.h[...] = h_prev


def backward_steps(cell: GRUResetAfter, run: BackwardRun) -> None:
    """The recurrence over t steps, backward."""
    (dz,), (w_h,), dh, h_grad = run.deltas, run.w, run.carried.h, run.cotangents.h
    (t, B, _), H, dtype = dz.shape, dh.shape[1], dh.dtype
    r, u, c, hc, _ = run.saved
    h_prev, unity, slope = run.before.h, unity_of(dtype), slope_of(cell.gate, dtype)
    memory = run.work(5, t, B, H)
    k, tmp = memory[:4].reshape(t, 4, B, H), memory[4]
    k_hc, k_r, k_u, k_c = (k[:, gate] for gate in range(4))
    np.multiply(c, c, k_hc)
    np.subtract(unity, k_hc, k_hc)
    np.subtract(unity, u, k_u)
    np.multiply(k_hc, k_u, k_c)  # k_c = (1-u)*(1-c²)
    np.subtract(h_prev, c, tmp)
    slope(u, k_u, k_u)
    np.multiply(k_u, tmp, k_u)  # k_u = (h_prev-c)*u*(1-u)
    np.multiply(k_c, r, k_hc)  # k_hc = k_c*r
    np.subtract(unity, r, k_r)
    if cell.gate is None:
        np.multiply(k_r, k_hc, k_r)
    else:
        slope(r, k_r, k_r)
        np.multiply(k_r, k_c, k_r)
    np.multiply(k_r, hc, k_r)  # k_r = k_c*hc*r*(1-r)
    dot = dot_with(dtype, run.w)
    past = np.empty((B, H), dtype)
    gates, recurrent = dz.reshape(t, B, 4, H).transpose(0, 2, 1, 3), dz[:, :, : 3 * H]
    # Iterating over arrays makes the views of a step faster than indexing does.
    arrays = (k, u, gates, recurrent)
    for s, k_s, u_s, gates_s, recurrent_s in zip(
        range(t - 1, -1, -1), *(a[::-1] for a in arrays), strict=True
    ):
        if h_grad is not None:
            np.add(dh, h_grad[s], dh)
        np.multiply(dh, k_s, gates_s)
        np.multiply(dh, u_s, past)
        dot(recurrent_s, w_h, dh)
        np.add(dh, past, dh)  # dh = dh*u + [dhc, dr, du] @ w_h.T


def _parts(cell: GRUResetAfter, a: Array, H: int) -> tuple[Array, Array]:
    """Return the columns of hc, and the columns of r and u, of the recurrent product."""
    return (a[:, 2 * H :], a[:, : 2 * H]) if cell.hc_last else (a[:, :H], a[:, H:])


def forward_step(cell: GRUResetAfter, x: Array, first: States, saved: GRUResetAfterOutputs) -> None:
    """One step with its products, in as few calls as possible."""
    (w_x,), (w_h,), h_prev, (r, u, c, hc, h) = cell.inputs, cell.recurrent, first.h, saved
    H = h_prev.shape[1]
    inner, shift, outer = gate_of(cell.gate, x.dtype)
    z = x.dot(w_x.w)
    z += cell.b
    product_hc, product_ru = _parts(cell, h_prev.dot(w_h.w), H)
    e = z[:, : 2 * H] + product_ru
    np.negative(e, e)
    inner(e, e)
    e += shift
    outer(e[:, :H], r)  # r = sigmoid(zr)
    outer(e[:, H:], u)  # u = sigmoid(zu)
    np.add(product_hc, cell.b_hc, hc)
    np.multiply(r, hc, c)
    c += z[:, 2 * H :]
    np.tanh(c, c)  # c = tanh(zc + r*hc)
    np.subtract(h_prev, c, h)
    h *= u
    h += c  # h = u*(h_prev - c) + c


def backward_step(cell: GRUResetAfter, step: BackwardStep) -> None:
    """One step backward, in as few calls as possible."""
    (r, u, c, hc, _), h_prev, dh = step.saved, step.before.h, step.carried.h
    (w_x,), (w_h,) = cell.inputs, cell.recurrent
    H, dtype = dh.shape[1], dh.dtype
    unity, slope = unity_of(dtype), slope_of(cell.gate, dtype)
    d_x, d_h = (step.deltas[w.delta][:, w.columns] for w in (w_x, w_h))
    dr, du, dc = d_x[:, :H], d_x[:, H : 2 * H], d_x[:, 2 * H :]
    dhc, dru = _parts(cell, d_h, H)
    not_u, k = unity - u, c * c
    np.subtract(unity, k, k)
    k *= not_u
    np.multiply(dh, k, dc)  # dc = dh * (1-u)*(1-c²)
    np.multiply(dc, r, dhc)
    slope(u, not_u, not_u)
    not_u *= dh
    np.subtract(h_prev, c, k)
    np.multiply(k, not_u, du)  # du = dh * (h_prev-c)*u*(1-u)
    np.subtract(unity, r, k)
    slope(r, k, k)
    k *= hc
    np.multiply(dc, k, dr)  # dr = dc * hc*r*(1-r)
    if w_x.delta != w_h.delta:
        dru[...] = d_x[:, : 2 * H]
    np.multiply(dh, u, k)
    d_h.dot(w_h.w.T, dh)
    dh += k  # dh = dh*u + [dhc, dr, du] @ w_h.T
    if step.x is not None:
        d_x.dot(w_x.w.T, step.x)


def prepared_step(cell: GRUResetAfter) -> Callable[..., tuple[Array]]:
    """Return a function of x and h_prev that computes h, for real numbers."""
    (w_x,), (w_h,), order = cell.inputs, cell.recurrent, (0, 1, 2) if cell.hc_last else (1, 2, 0)
    x_matrix, b = with_negated(w_x.w, (0, 1, 2), 2), with_negated(cell.b, (0, 1, 2), 2)
    h_matrix, b_hc = with_negated(w_h.w, order, 2), cell.b_hc
    H, sigmoid = len(b_hc), sigmoid_of(cell.gate, b.dtype)

    def step(x: Array, h_prev: Array) -> tuple[Array]:
        z = x.dot(x_matrix)
        z += b
        product = h_prev.dot(h_matrix)
        product[:, : 2 * H] += z[:, : 2 * H]
        gates, c = sigmoid(product[:, : 2 * H]), product[:, 2 * H :]
        c += b_hc
        c *= gates[:, :H]
        c += z[:, 2 * H :]
        np.tanh(c, c)  # c = tanh(zc + r*hc)
        h = h_prev - c
        h *= gates[:, H:]
        h += c  # u*(h_prev - c) + c
        return (h,)

    return step
