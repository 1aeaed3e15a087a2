"""The steps of ``cells/simple_rnn.py``, compiled by Numba, name by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic.transposed import dot
from . import common
from .common import compile_loop, expm1, nothing, plain

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.simple_rnn import SimpleRNN


def _simple_rnn_forward(
    lo: int,
    hi: int,
    z: Array,
    b: Array,
    w_h: Array,
    product: Array,
    relu: bool,
    h_prev: Array,
    h: Array,
    e: Array,
) -> None:
    """
    The steps lo..hi-1, z holding x @ w_x.

    Without w_h, `product` is h_prev @ w_h; else it is memory to work in, as is e[H].
    """
    B, H = h_prev.shape
    zero, two, highest = z.dtype.type(0), z.dtype.type(2), z.dtype.type(60)
    for s in range(lo, hi):
        for n in range(B):
            z_n, p, before, h_n = z[s, n], product[n], h_prev[n], h[s, n]
            if s > 0:
                before = h[s - 1, n]
            if w_h.size > 0:
                p[:] = zero
                for k in range(H):
                    h_k = before[k]
                    for j in range(H):
                        p[j] += h_k * w_h[k, j]
            if relu:
                for j in range(H):
                    z_ = z_n[j] + b[j] + p[j]
                    h_n[j] = zero if z_ < zero else z_  # NaN stays NaN
            else:
                for j in range(H):
                    e[j] = min(two * (z_n[j] + b[j] + p[j]), highest)
                expm1(e)
                for j in range(H):
                    h_n[j] = e[j] / (two + e[j])


def _simple_rnn_backward(
    lo: int, hi: int, h: Array, h_grad: Array, w_h: Array, relu: bool, dh: Array, dz: Array
) -> None:
    """The steps from hi-1 down to lo. Without w_h, dh is left for the caller to make."""
    B, H = dh.shape
    zero, one = h.dtype.type(0), h.dtype.type(1)
    has_h_grad = h_grad.size > 0
    for s in range(hi - 1, lo - 1, -1):
        for n in range(B):
            g, dh_n, h_n = dz[s, n], dh[n], h[s, n]
            if has_h_grad:
                for j in range(H):
                    dh_n[j] += h_grad[s, n, j]
            if relu:
                for j in range(H):
                    g[j] = dh_n[j] * (one if h_n[j] > zero else zero)
            else:
                for j in range(H):
                    g[j] = (one - h_n[j] * h_n[j]) * dh_n[j]
            if w_h.size > 0:
                dh_n[:] = zero
                for k in range(H):
                    for j in range(H):
                        dh_n[j] += g[k] * w_h[k, j]


class _Loops:
    """The compiled loops of one dtype, float32 or float64."""

    def __init__(self, char: str) -> None:
        self.forward = compile_loop(_simple_rnn_forward, "n n r3 r1 r2 w2 b r2 w3 w1", char)
        self.backward = compile_loop(_simple_rnn_backward, "n n r3 r3 r2 b w2 w3", char)


_loops = common.working(_Loops)


def takes(cell: SimpleRNN, dtype: np.dtype[Any], way: str = "") -> bool:
    """Return whether a cell's steps are compiled for a dtype."""
    return _loops(dtype.char) is not None


def forward_steps(cell: SimpleRNN, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    (z,), (w_h,), h_prev, h = run.xw, run.w, run.carried.h, run.saved.h
    (t, B, H), dtype = z.shape, z.dtype
    loops, product = _loops(dtype.char), np.empty((B, H), dtype)
    whole = t > 1 and B * H * H <= common.PRODUCT_LARGEST
    matrix = plain(w_h)[0] if whole else nothing(dtype.char)[1]
    args = z, *plain(cell.b), matrix, product, cell.relu, *plain(h_prev), h, np.empty(H, dtype)
    if whole:
        loops.forward(0, t, *args)
    else:
        for s in range(t):
            dot(h[s - 1] if s else h_prev, w_h, product)
            loops.forward(s, s + 1, *args)
    run.carried.h[...] = h[-1]


def backward_steps(cell: SimpleRNN, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    (dz,), (w_h,), dh = run.deltas, run.w, run.carried.h
    (t, B, H), char = dz.shape, dz.dtype.char
    loops, (_, none, no_grad) = _loops(char), nothing(char)
    whole = t > 1 and B * H * H <= common.PRODUCT_LARGEST
    h_grad = no_grad if run.given.h is None else run.given.h
    args = *plain(run.saved.h, h_grad, w_h if whole else none), cell.relu, dh, dz
    if whole:
        loops.backward(0, t, *args)
        return
    for s in range(t - 1, -1, -1):
        loops.backward(s, s + 1, *args)
        dot(dz[s], w_h, dh)
