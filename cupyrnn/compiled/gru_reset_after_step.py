"""The steps of ``cells/gru_reset_after.py``, compiled by Numba, name by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic.transposed import dot
from . import common
from .common import compile_loop, expm1, gate_arguments, hard_gate, nothing, plain, slope_at

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.gru_reset_after import GRUResetAfter


def _gru_reset_after_forward(
    lo: int,
    hi: int,
    z: Array,
    b: Array,
    b_hc: Array,
    w_h: Array,
    product: Array,
    hard: bool,
    slope: Any,
    offset: Any,
    h_prev: Array,
    r: Array,
    u: Array,
    c: Array,
    hc: Array,
    h: Array,
    e: Array,
) -> None:
    """
    The steps lo..hi-1, z holding x @ w_x.

    Without w_h, `product` is h_prev @ w_h; else it is memory to work in, as is e[3*H].
    """
    B, H = h_prev.shape
    zero, one, two, highest = z.dtype.type(0), z.dtype.type(1), z.dtype.type(2), z.dtype.type(60)
    b_r, b_u, b_c = b[:H], b[H : 2 * H], b[2 * H :]
    e_r, e_u, e_c = e[:H], e[H : 2 * H], e[2 * H :]
    for s in range(lo, hi):
        for n in range(B):
            p, before = product[n], h_prev[n]
            if s > 0:
                before = h[s - 1, n]
            if w_h.size > 0:
                p[:] = zero
                for k in range(H):
                    h_k = before[k]
                    for column in range(3 * H):
                        p[column] += h_k * w_h[k, column]
            zr, zu, zc = z[s, n, :H], z[s, n, H : 2 * H], z[s, n, 2 * H :]
            p_hc, p_r, p_u = p[:H], p[H : 2 * H], p[2 * H :]
            # sigmoid(x) = 1/(2 + expm1(-x)), tanh(x) = expm1(2*x)/(expm1(2*x) + 2)
            for j in range(H):
                e_r[j], e_u[j] = -(zr[j] + b_r[j] + p_r[j]), -(zu[j] + b_u[j] + p_u[j])
            if hard:
                hard_gate(e[: 2 * H], slope, offset)
            else:
                expm1(e[: 2 * H])
            for j in range(H):
                hc_, r_ = p_hc[j] + b_hc[j], one / (two + e_r[j])
                e_c[j] = min(two * (zc[j] + b_c[j] + r_ * hc_), highest)
                hc[s, n, j], r[s, n, j] = hc_, r_
            expm1(e_c)
            for j in range(H):
                u_, c_ = one / (two + e_u[j]), e_c[j] / (two + e_c[j])
                u[s, n, j], c[s, n, j] = u_, c_
                h[s, n, j] = u_ * (before[j] - c_) + c_


def _gru_reset_after_backward(
    lo: int,
    hi: int,
    r: Array,
    u: Array,
    c: Array,
    hc: Array,
    h_prev: Array,
    h_grad: Array,
    w_h: Array,
    hard: bool,
    slope: Any,
    dh: Array,
    dz: Array,
) -> None:
    """
    The steps from hi-1 down to lo and their factors.

    Without w_h, dh*u is left in dh, to which the caller adds the product.
    """
    _, B, H = r.shape
    one, has_h_grad = r.dtype.type(1), h_grad.size > 0
    for s in range(hi - 1, lo - 1, -1):
        for n in range(B):
            g, dh_n = dz[s, n], dh[n]
            dhc, dr, du, dc = g[:H], g[H : 2 * H], g[2 * H : 3 * H], g[3 * H :]
            if has_h_grad:
                for j in range(H):
                    dh_n[j] += h_grad[s, n, j]
            for j in range(H):
                r_, u_, c_ = r[s, n, j], u[s, n, j], c[s, n, j]
                k_c = (one - u_) * (one - c_ * c_)
                k_u = (h_prev[s, n, j] - c_) * slope_at(u_, hard, slope)
                k_r = k_c * slope_at(r_, hard, slope) * hc[s, n, j]
                dhc[j] = dh_n[j] * (k_c * r_)
                dr[j] = dh_n[j] * k_r
                du[j] = dh_n[j] * k_u
                dc[j] = dh_n[j] * k_c
                dh_n[j] = dh_n[j] * u_
            if w_h.size == 0:
                continue
            for k in range(H):
                # Three rows at once: dh is read and written a third as often.
                g_0, g_1, g_2 = g[k], g[H + k], g[2 * H + k]
                w_0, w_1, w_2 = w_h[k], w_h[H + k], w_h[2 * H + k]
                for j in range(H):
                    dh_n[j] += g_0 * w_0[j] + g_1 * w_1[j] + g_2 * w_2[j]


class _Loops:
    """The compiled loops of one dtype, float32 or float64."""

    def __init__(self, char: str) -> None:
        self.forward = compile_loop(
            _gru_reset_after_forward, f"n n r3 r1 r1 r2 w2 b x x r2{' w3' * 5} w1", char
        )
        self.backward = compile_loop(
            _gru_reset_after_backward, f"n n{' r3' * 6} r2 b x w2 w3", char
        )


_loops = common.working(_Loops)


def takes(cell: GRUResetAfter, dtype: np.dtype[Any], way: str = "") -> bool:
    """Return whether a cell's steps are compiled for a dtype."""
    return _loops(dtype.char) is not None


def forward_steps(cell: GRUResetAfter, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    (z,), (w_h,), h_prev, h = run.xw, run.w, run.carried.h, run.saved.h
    (t, B, _), H, dtype = z.shape, h_prev.shape[1], z.dtype
    loops, product = _loops(dtype.char), np.empty((B, 3 * H), dtype)
    whole = t > 1 and B * H * H <= common.PRODUCT_LARGEST
    args = (
        z,
        *plain(cell.b, cell.b_hc, w_h if whole else nothing(dtype.char)[1]),
        product,
        *gate_arguments(cell.gate, dtype),
        *plain(h_prev),
        *run.saved,
        np.empty(3 * H, dtype),
    )
    if whole:
        loops.forward(0, t, *args)
    else:
        for s in range(t):
            dot(h[s - 1] if s else h_prev, w_h, product)
            loops.forward(s, s + 1, *args)
    run.carried.h[...] = h[-1]


def backward_steps(cell: GRUResetAfter, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    (dz,), (w_h,), dh = run.deltas, run.w, run.carried.h
    (t, B, _), H, dtype = dz.shape, dh.shape[1], dh.dtype
    loops, (_, none, no_grad) = _loops(dtype.char), nothing(dtype.char)
    whole = t > 1 and B * H * H <= common.PRODUCT_LARGEST
    h_grad = no_grad if run.given.h is None else run.given.h
    args = (
        *plain(*run.saved[:4], run.before.h, h_grad, w_h if whole else none),
        *gate_arguments(cell.gate, dtype)[:2],
        dh,
        dz,
    )
    if whole:
        loops.backward(0, t, *args)
        return
    through, recurrent = np.empty((B, H), dtype), dz[:, :, : 3 * H]
    for s in range(t - 1, -1, -1):
        loops.backward(s, s + 1, *args)
        dot(recurrent[s], w_h, through)
        np.add(dh, through, dh)  # dh = dh*u + [dhc, dr, du] @ w_h.T
