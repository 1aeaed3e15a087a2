"""
The steps of ``cells/lstm.py``, compiled by Numba: imported only where that is installed.

The equations are those of ``cells/lstm.py``, name by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic.transposed import dot
from . import common
from .common import compile_loop, expm1, gate_arguments, hard_gate, nothing, plain, slope_at

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.lstm import LSTM


def _lstm_forward(
    lo: int,
    hi: int,
    z: Array,
    w_h: Array,
    product: Array,
    wci: Array,
    wcf: Array,
    wco: Array,
    cell_clip: Any,
    hard: bool,
    slope: Any,
    offset: Any,
    at_i: int,
    at_ci: int,
    at_f: int,
    at_o: int,
    cs_prev: Array,
    h_prev: Array,
    i: Array,
    cs: Array,
    f: Array,
    o: Array,
    ci: Array,
    co: Array,
    h: Array,
    u: Array,
) -> None:
    """
    The steps lo..hi-1, z holding -(x @ w_x + b). A negative cell_clip is none.

    Without w_h, `product` is h_prev @ w_h. u[4*H] is memory to work in.
    """
    B, H = cs_prev.shape
    one, two = z.dtype.type(1), z.dtype.type(2)
    highest = z.dtype.type(60)  # tanh is 1 long before; expm1 is not to overflow
    peephole = wci.size > 0
    # As slices: an index that might be negative could not be vectorized.
    u_i, u_ci, u_f, u_o = u[:H], u[H : 2 * H], u[2 * H : 3 * H], u[3 * H :]
    for s in range(lo, hi):
        for r in range(B):
            z_r, before, h_before = z[s, r], cs_prev[r], h_prev[r]
            if s > 0:
                before, h_before = cs[s - 1, r], h[s - 1, r]
            if w_h.size > 0:
                for k in range(H):
                    h_k = h_before[k]
                    for column in range(4 * H):
                        z_r[column] -= h_k * w_h[k, column]
            else:
                for column in range(4 * H):
                    z_r[column] -= product[r, column]
            zi, zci = z_r[at_i : at_i + H], z_r[at_ci : at_ci + H]
            zf, zo = z_r[at_f : at_f + H], z_r[at_o : at_o + H]
            for j in range(H):
                u_i[j], u_f[j], u_ci[j] = zi[j], zf[j], min(-two * zci[j], highest)
            if peephole:
                for j in range(H):
                    u_i[j] -= before[j] * wci[j]
                    u_f[j] -= before[j] * wcf[j]
            if hard:
                hard_gate(u_i, slope, offset)
                hard_gate(u_f, slope, offset)
                expm1(u_ci)
            else:
                expm1(u[: 3 * H])
            for j in range(H):
                # sigmoid(-x) = 1/(1 + exp(x)), tanh(x/2) = expm1(x)/(expm1(x) + 2)
                i_, f_, ci_ = one / (two + u_i[j]), one / (two + u_f[j]), u_ci[j] / (two + u_ci[j])
                cs_ = i_ * ci_ + f_ * before[j]
                if cell_clip >= 0:
                    if cs_ > cell_clip:
                        cs_ = cell_clip
                    if cs_ < -cell_clip:
                        cs_ = -cell_clip
                i[s, r, j], f[s, r, j], ci[s, r, j], cs[s, r, j] = i_, f_, ci_, cs_
                u_ci[j], u_o[j] = min(two * cs_, highest), zo[j]
            if peephole:
                for j in range(H):
                    u_o[j] -= cs[s, r, j] * wco[j]
            expm1(u_ci)
            if hard:
                hard_gate(u_o, slope, offset)
            else:
                expm1(u_o)
            for j in range(H):
                co_, o_ = u_ci[j] / (two + u_ci[j]), one / (two + u_o[j])
                co[s, r, j], o[s, r, j], h[s, r, j] = co_, o_, o_ * co_


def _lstm_backward(
    lo: int,
    hi: int,
    i: Array,
    cs: Array,
    f: Array,
    o: Array,
    ci: Array,
    co: Array,
    cs_prev: Array,
    cs_grad: Array,
    h_grad: Array,
    w_h: Array,
    wci: Array,
    wcf: Array,
    wco: Array,
    cell_clip: Any,
    hard: bool,
    slope: Any,
    offset: Any,
    at_i: int,
    at_ci: int,
    at_f: int,
    at_o: int,
    dcs: Array,
    dh: Array,
    dz: Array,
) -> None:
    """
    The steps from hi-1 down to lo and their factors, in the form of ``cells/lstm.py``.

    Without w_h, dh is left for the caller to make.
    """
    _, B, H = i.shape
    one, zero = i.dtype.type(1), i.dtype.type(0)
    has_cs_grad, has_h_grad, peephole = cs_grad.size > 0, h_grad.size > 0, wci.size > 0
    for s in range(hi - 1, lo - 1, -1):
        for r in range(B):
            g, dh_r = dz[s, r], dh[r]
            di, dci = g[at_i : at_i + H], g[at_ci : at_ci + H]
            df, do = g[at_f : at_f + H], g[at_o : at_o + H]
            if has_h_grad:
                for j in range(H):
                    dh_r[j] += h_grad[s, r, j]
            for j in range(H):
                i_, f_, o_, ci_, co_ = i[s, r, j], f[s, r, j], o[s, r, j], ci[s, r, j], co[s, r, j]
                k_o = slope_at(o_, hard, slope) * co_
                k_d = (one - co_ * co_) * o_
                k_i = slope_at(i_, hard, slope) * ci_
                k_ci = (one - ci_ * ci_) * i_
                k_f = slope_at(f_, hard, slope) * cs_prev[s, r, j]
                k_next = f_
                if peephole:
                    k_d += k_o * wco[j]
                    k_next += k_i * wci[j] + k_f * wcf[j]
                dcs_ = dcs[r, j] + dh_r[j] * k_d
                if has_cs_grad:
                    dcs_ += cs_grad[s, r, j]
                do[j] = dh_r[j] * k_o
                if cell_clip >= 0 and not abs(cs[s, r, j]) < cell_clip:
                    k_i, k_ci, k_f, k_next = zero, zero, zero, zero
                di[j] = dcs_ * k_i
                dci[j] = dcs_ * k_ci
                df[j] = dcs_ * k_f
                dcs[r, j] = dcs_ * k_next
            if w_h.size == 0:
                continue
            dh_r[:] = zero
            for k in range(H):
                # Four rows at once: dh is read and written a quarter as often.
                g_0, g_1, g_2, g_3 = g[k], g[H + k], g[2 * H + k], g[3 * H + k]
                w_0, w_1, w_2, w_3 = w_h[k], w_h[H + k], w_h[2 * H + k], w_h[3 * H + k]
                for j in range(H):
                    dh_r[j] += g_0 * w_0[j] + g_1 * w_1[j] + g_2 * w_2[j] + g_3 * w_3[j]


def _peephole_sums(
    dz: Array,
    cs_prev: Array,
    cs: Array,
    at_i: int,
    at_f: int,
    at_o: int,
    wci_grad: Array,
    wcf_grad: Array,
    wco_grad: Array,
) -> None:
    """Add the sums over the steps and rows of dz[t, B, 4*H] times cs to sums in float64."""
    t, B, H = cs.shape
    for s in range(t):
        for r in range(B):
            g = dz[s, r]
            di, df, do = g[at_i : at_i + H], g[at_f : at_f + H], g[at_o : at_o + H]
            for j in range(H):
                wci_grad[j] += di[j] * cs_prev[s, r, j]
                wcf_grad[j] += df[j] * cs_prev[s, r, j]
                wco_grad[j] += do[j] * cs[s, r, j]


def _shared(cell: LSTM, H: int, dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return what both loops take: wci to wco, cell_clip, the gate, where i, ci, f, o begin."""
    vectors = nothing(dtype.char)[:1] * 3 if cell.peephole is None else plain(*cell.peephole)
    clip = dtype.type(-1 if cell.cell_clip is None else cell.cell_clip)
    at = [H * column for column in cell.columns]
    return (*vectors, clip, *gate_arguments(cell.gate, dtype), *at)


class _Loops:
    """The compiled loops of one dtype, float32 or float64."""

    def __init__(self, char: str) -> None:
        vectors, at, state = "r1 r1 r1", "b x x n n n n", " r3" * 9
        self.forward = compile_loop(
            _lstm_forward, f"n n w3 r2 r2 {vectors} x {at} r2 r2{' w3' * 7} w1", char
        )
        self.backward = compile_loop(
            _lstm_backward, f"n n{state} r2 {vectors} x {at} w2 w2 w3", char
        )
        self.sums = compile_loop(_peephole_sums, "r3 r3 r3 n n n d1 d1 d1", char)


_loops = common.working(_Loops)


def takes(cell: LSTM, dtype: np.dtype[Any]) -> bool:
    """Return whether a cell's steps are compiled for a dtype: all but those of a projection."""
    return len(cell.recurrent) < 2 and _loops(dtype.char) is not None


def forward_steps(cell: LSTM, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    (z,), (w_h,), (h_prev, cs_prev) = run.xw, run.w, run.carried
    (t, B, _), H, dtype = z.shape, cs_prev.shape[1], z.dtype
    loops = _loops(dtype.char)
    np.subtract(-cell.b, z, z)
    whole = t > 1 and B * H * H <= common.PRODUCT_LARGEST
    none = nothing(dtype.char)[1]
    product = none if whole else np.empty((B, 4 * H), dtype)
    args = (
        z,
        *plain(w_h if whole else none, product),
        *_shared(cell, H, dtype),
        *plain(cs_prev, h_prev),
        *run.saved,
        np.empty(4 * H, dtype),
    )
    if whole:
        loops.forward(0, t, *args)
    else:
        for s in range(t):
            dot(run.saved.h[s - 1] if s else h_prev, w_h, product)
            loops.forward(s, s + 1, *args)
    run.carried.h[...], run.carried.c[...] = run.saved.h[-1], run.saved.cs[-1]


def backward_steps(cell: LSTM, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    (dz,), (dh, dcs) = run.deltas, run.carried
    (t, B, H), dtype = run.saved.i.shape, dcs.dtype
    loops = _loops(dtype.char)
    _, none, no_grad = nothing(dtype.char)
    grads = [no_grad if a is None else a for a in (run.given.c, run.given.h)]
    whole = len(run.w) > 0 and t > 1 and B * H * H <= common.PRODUCT_LARGEST
    args = (
        *plain(*run.saved[:6], run.before.c, *grads, run.w[0] if whole else none),
        *_shared(cell, H, dtype),
        dcs,
        dh,
        dz,
    )
    if whole or not run.w:
        loops.backward(0, t, *args)
        return
    for s in range(t - 1, -1, -1):
        loops.backward(s, s + 1, *args)
        dot(dz[s], run.w[0], dh)


def add_sums(cell: LSTM, run: BackwardRun, totals: Array) -> None:
    """Add the sums over time and batch of di*cs_prev, df*cs_prev and do*cs to totals[3, H]."""
    loops = _loops(totals.dtype.char)
    H = totals.shape[1]
    sums = np.zeros((3, H))
    at_i, _, at_f, at_o = (H * column for column in cell.columns)
    loops.sums(*plain(run.deltas[0], run.before.c, run.saved.cs), at_i, at_f, at_o, *sums)
    totals += sums
