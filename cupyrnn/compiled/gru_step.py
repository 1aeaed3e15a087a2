"""
The steps of ``cells/gru.py``, compiled by Numba, name by name.

A step has two products, the second with what the first leads to: so it has two parts each way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic.transposed import dot
from . import common
from .common import compile_loop, expm1, gate_arguments, hard_gate, nothing, plain, slope_at
from .simd import part

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.gru import GRU


@part
def _add_product(a: Array, w: Array, out: Array) -> None:
    """Add a[K] @ w[K, N] to out[N]."""
    for k in range(a.size):
        a_k = a[k]
        for column in range(out.size):
            out[column] += a_k * w[k, column]


def _gru_gates(
    s: int,
    z_ru: Array,
    b_ru: Array,
    product: Array,
    hard: bool,
    slope: Any,
    offset: Any,
    h_prev: Array,
    r: Array,
    u: Array,
    h: Array,
    h_reset: Array,
    e: Array,
) -> None:
    """r, u and h_prev*r of step s; z_ru holds x @ w, `product` h_prev @ w_ru, e[2*H] memory."""
    B, H = h_prev.shape
    one, two = z_ru.dtype.type(1), z_ru.dtype.type(2)
    for n in range(B):
        z, p, before = z_ru[s, n], product[n], h_prev[n]
        if s > 0:
            before = h[s - 1, n]
        # sigmoid(x) = 1/(2 + expm1(-x))
        for j in range(2 * H):
            e[j] = -(z[j] + b_ru[j] + p[j])
        if hard:
            hard_gate(e, slope, offset)
        else:
            expm1(e)
        e_r, e_u = e[:H], e[H:]
        for j in range(H):
            r_ = one / (two + e_r[j])
            r[s, n, j], u[s, n, j] = r_, one / (two + e_u[j])
            h_reset[n, j] = before[j] * r_


def _gru_state(
    s: int,
    z_c: Array,
    b_c: Array,
    product: Array,
    h_prev: Array,
    u: Array,
    c: Array,
    h: Array,
    e: Array,
) -> None:
    """c and h of step s; z_c holds x @ w, `product` (h_prev*r) @ w_c, e[2*H] is memory."""
    B, H = h_prev.shape
    two, highest = z_c.dtype.type(2), z_c.dtype.type(60)
    e_c = e[:H]
    for n in range(B):
        z, p, before = z_c[s, n], product[n], h_prev[n]
        if s > 0:
            before = h[s - 1, n]
        # tanh(x) = expm1(2*x)/(expm1(2*x) + 2)
        for j in range(H):
            e_c[j] = min(two * (z[j] + b_c[j] + p[j]), highest)
        expm1(e_c)
        for j in range(H):
            c_ = e_c[j] / (two + e_c[j])
            c[s, n, j] = c_
            h[s, n, j] = u[s, n, j] * (before[j] - c_) + c_


_gates, _state = part(_gru_gates), part(_gru_state)


def _gru_forward(
    t: int,
    z_ru: Array,
    z_c: Array,
    b_ru: Array,
    b_c: Array,
    w_ru: Array,
    w_c: Array,
    hard: bool,
    slope: Any,
    offset: Any,
    h_prev: Array,
    r: Array,
    u: Array,
    c: Array,
    h: Array,
    product_ru: Array,
    product_c: Array,
    h_reset: Array,
    e: Array,
) -> None:
    """All t steps, their products included."""
    B, zero = len(h_prev), z_c.dtype.type(0)
    for s in range(t):
        product_ru[:], product_c[:] = zero, zero
        for n in range(B):
            before = h_prev[n]
            if s > 0:
                before = h[s - 1, n]
            _add_product(before, w_ru, product_ru[n])
        _gates(s, z_ru, b_ru, product_ru, hard, slope, offset, h_prev, r, u, h, h_reset, e)
        for n in range(B):
            _add_product(h_reset[n], w_c, product_c[n])
        _state(s, z_c, b_c, product_c, h_prev, u, c, h, e)


def _gru_back_to_c(
    s: int,
    u: Array,
    c: Array,
    h_prev: Array,
    h_grad: Array,
    hard: bool,
    slope: Any,
    dh: Array,
    d_ru: Array,
    d_c: Array,
) -> None:
    """d_u and d_c of step s; dh becomes dh*u."""
    _, B, H = u.shape
    one = u.dtype.type(1)
    for n in range(B):
        dh_n, d_u = dh[n], d_ru[s, n, H:]
        if h_grad.size > 0:
            for j in range(H):
                dh_n[j] += h_grad[s, n, j]
        for j in range(H):
            u_, c_ = u[s, n, j], c[s, n, j]
            k_u = (h_prev[s, n, j] - c_) * slope_at(u_, hard, slope)
            k_c = (one - u_) * (one - c_ * c_)
            d_u[j] = dh_n[j] * k_u
            d_c[s, n, j] = dh_n[j] * k_c
            dh_n[j] = dh_n[j] * u_


def _gru_back_to_r(
    s: int,
    r: Array,
    h_prev: Array,
    hard: bool,
    slope: Any,
    d_hr: Array,
    dh: Array,
    d_ru: Array,
) -> None:
    """d_r of step s, from the gradient of h_prev*r; dh is given what goes through that."""
    _, B, H = r.shape
    for n in range(B):
        d_r, dh_n, d_hr_n = d_ru[s, n, :H], dh[n], d_hr[n]
        for j in range(H):
            r_ = r[s, n, j]
            d_r[j] = d_hr_n[j] * (h_prev[s, n, j] * slope_at(r_, hard, slope))
            dh_n[j] += d_hr_n[j] * r_


_back_to_c, _back_to_r = part(_gru_back_to_c), part(_gru_back_to_r)


def _gru_backward(
    t: int,
    r: Array,
    u: Array,
    c: Array,
    h_prev: Array,
    h_grad: Array,
    w_ru: Array,
    w_c: Array,
    hard: bool,
    slope: Any,
    dh: Array,
    d_ru: Array,
    d_c: Array,
    d_hr: Array,
) -> None:
    """All t steps from the last on, their products included."""
    B = len(dh)
    for s in range(t - 1, -1, -1):
        _back_to_c(s, u, c, h_prev, h_grad, hard, slope, dh, d_ru, d_c)
        d_hr[:] = d_c.dtype.type(0)
        for n in range(B):
            _add_product(d_c[s, n], w_c, d_hr[n])
        _back_to_r(s, r, h_prev, hard, slope, d_hr, dh, d_ru)
        for n in range(B):
            _add_product(d_ru[s, n], w_ru, dh[n])


class _Loops:
    """The compiled loops of one dtype, float32 or float64."""

    def __init__(self, char: str) -> None:
        self.gates = compile_loop(_gru_gates, "n r3 r1 r2 b x x r2 w3 w3 r3 w2 w1", char)
        self.state = compile_loop(_gru_state, "n r3 r1 r2 r2 r3 w3 w3 w1", char)
        self.forward = compile_loop(
            _gru_forward, f"n r3 r3 r1 r1 r2 r2 b x x r2{' w3' * 4} w2 w2 w2 w1", char
        )
        self.back_to_c = compile_loop(_gru_back_to_c, "n r3 r3 r3 r3 b x w2 w3 w3", char)
        self.back_to_r = compile_loop(_gru_back_to_r, "n r3 r3 b x r2 w2 w3", char)
        self.backward = compile_loop(_gru_backward, "n r3 r3 r3 r3 r3 r2 r2 b x w2 w3 w3 w2", char)


_loops = common.working(_Loops)


def takes(cell: GRU, dtype: np.dtype[Any], way: str = "") -> bool:
    """Return whether a cell's steps are compiled for a dtype."""
    return _loops(dtype.char) is not None


def forward_steps(cell: GRU, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    (z_ru, z_c), (w_ru, w_c), (r, u, c, h) = run.xw, run.w, run.saved
    (t, B, H), dtype, loops = z_c.shape, z_c.dtype, _loops(z_c.dtype.char)
    b_ru, b_c, h_prev = plain(cell.b_ru, cell.b_c, run.carried.h)
    product_ru, product_c, h_reset = (np.empty((B, n * H), dtype) for n in (2, 1, 1))
    gate, e = gate_arguments(cell.gate, dtype), np.empty(2 * H, dtype)
    if t > 1 and B * H * H <= common.PRODUCT_LARGEST:
        matrices, memory = plain(w_ru, w_c), (product_ru, product_c, h_reset, e)
        loops.forward(t, z_ru, z_c, b_ru, b_c, *matrices, *gate, h_prev, *run.saved, *memory)
    else:
        for s in range(t):
            dot(h[s - 1] if s else h_prev, w_ru, product_ru)
            loops.gates(s, z_ru, b_ru, product_ru, *gate, h_prev, r, u, h, h_reset, e)
            dot(h_reset, w_c, product_c)
            loops.state(s, z_c, b_c, product_c, h_prev, u, c, h, e)
    run.carried.h[...] = h[-1]


def backward_steps(cell: GRU, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    (d_ru, d_c), (w_ru, w_c), dh = run.deltas, run.w, run.carried.h
    (t, B, H), dtype, loops = d_c.shape, dh.dtype, _loops(dh.dtype.char)
    h_grad = nothing(dtype.char)[2] if run.given.h is None else run.given.h
    r, u, c, h_prev, h_grad = plain(*run.saved[:3], run.before.h, h_grad)
    gate, d_hr = gate_arguments(cell.gate, dtype)[:2], np.empty((B, H), dtype)
    if t > 1 and B * H * H <= common.PRODUCT_LARGEST:
        matrices = plain(w_ru, w_c)
        loops.backward(t, r, u, c, h_prev, h_grad, *matrices, *gate, dh, d_ru, d_c, d_hr)
        return
    through = np.empty((B, H), dtype)
    for s in range(t - 1, -1, -1):
        loops.back_to_c(s, u, c, h_prev, h_grad, *gate, dh, d_ru, d_c)
        dot(d_c[s], w_c, d_hr)
        loops.back_to_r(s, r, h_prev, *gate, d_hr, dh, d_ru)
        dot(d_ru[s], w_ru, through)
        np.add(dh, through, dh)  # dh = dh*u + d_hr*r + d_ru @ w_ru.T
