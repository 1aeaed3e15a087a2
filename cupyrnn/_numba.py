"""
The time loops of lstm.py, compiled by Numba: imported only where that is installed.

A step passes over the memory once, where NumPy takes 15 to 20 calls, each of which costs half a
microsecond however little it computes. The equations are those of lstm.py, name by name. Products
of larger steps are left to NumPy, whose BLAS is faster than a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

if TYPE_CHECKING:
    from ._arrays import Array

# Multiplications per gate of a step's product, up to where a compiled product was faster than
# NumPy's, measured.
_PRODUCT_LARGEST = 8192

# expm1(r) for abs(r) <= ln(2)/2 by its Taylor series, from the last coefficient to that of r²; what
# is left out is less than half a unit in the last place.
_SERIES_32 = tuple(1 / np.prod(np.arange(1.0, k + 1)) for k in range(7, 1, -1))
_SERIES_64 = tuple(1 / np.prod(np.arange(1.0, k + 1)) for k in range(13, 1, -1))

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


def _part(function: Callable[..., Any]) -> Any:
    """Have a function compiled as part of the loops that call it."""
    return numba.njit(function, **_OPTIONS)


def _compile(loop: Callable[..., None], arguments: str, char: str) -> Any:
    """
    Return a loop compiled for a dtype, from the disk where it was compiled before.

    `arguments` tells them apart: r2 is an array of rank 2 that is only read, w2 one that is
    written, d1 a float64 one, x a number of the dtype and n an integer.
    """
    dtype = numba.from_dtype(np.dtype(char))
    types: dict[str, Any] = {"x": dtype, "n": numba.intp, "d1": numba.float64[::1]}
    for rank in (1, 2, 3):
        types[f"r{rank}"] = numba.types.Array(dtype, rank, "C", readonly=True)
        types[f"w{rank}"] = numba.types.Array(dtype, rank, "C")
    signature = numba.void(*(types[a] for a in arguments.split()))
    # A name of its own: processes that compile for two dtypes at once would mix up their files.
    named = FunctionType(loop.__code__, loop.__globals__, f"{loop.__name__}_{char}")
    named.__qualname__ = named.__name__
    try:
        return numba.njit(signature, cache=True, **_OPTIONS)(named)
    except Exception:  # There is no folder to keep it in, no room, or what lies there is damaged.
        return numba.njit(signature, **_OPTIONS)(loop)


@_part
def _expm1_32(u: Array) -> None:
    """
    Overwrite u with expm1(u), to a relative 1.2e-7: math.expm1 would not be vectorized.

    u = n*ln(2) + r, expm1(u) = 2**n * expm1(r) + 2**n - 1. The two parts of ln(2) are those of
    Cephes: n times the first is exact. Above 88, where 2**n would overflow, the series is used past
    its range and loses a digit.
    """
    for j in range(u.size):
        x = min(max(u[j], np.float32(-87)), np.float32(89))
        n = min(np.rint(x * np.float32(1.4426950408889634)), np.float32(127))
        r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
        p = np.float32(0)
        for c in _SERIES_32:
            p = p * r + np.float32(c)
        p = p * r * r + r
        scale = np.int32((np.int32(n) + 127) << 23).view(np.float32)
        u[j] = scale * p + (scale - np.float32(1))


@_part
def _expm1_64(u: Array) -> None:
    """_expm1_32 in float64, to a relative 2.7e-16 up to 709.4."""
    for j in range(u.size):
        x = min(max(u[j], -708.0), 710.0)
        n = min(np.rint(x * 1.4426950408889634), 1023.0)
        r = (x - n * 0.693145751953125) - n * 1.42860682030941723212e-6
        p = 0.0
        for c in _SERIES_64:
            p = p * r + c
        p = p * r * r + r
        scale = np.int64((np.int64(n) + 1023) << 52).view(np.float64)
        u[j] = scale * p + (scale - 1.0)


@_part
def _expm1(u: Array) -> None:
    """Overwrite u with expm1(u)."""
    if u.itemsize == 4:
        _expm1_32(u)
    else:
        _expm1_64(u)


def _lstm_forward(
    lo: int,
    hi: int,
    xw: Array,
    w_h: Array,
    product: Array,
    wci: Array,
    wcf: Array,
    wco: Array,
    cell_clip: Any,
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
    The loop of lstm._forward_loop over the steps lo..hi-1. A negative cell_clip is none.

    Without w_h, `product` is h_prev @ w_h. u[4*H] is memory to work in.
    """
    B, H = cs_prev.shape
    one, two = xw.dtype.type(1), xw.dtype.type(2)
    highest = xw.dtype.type(60)  # tanh is 1 long before; expm1 is not to overflow
    peephole = wci.size > 0
    # As slices: an index that might be negative could not be vectorized.
    u_i, u_ci, u_f, u_o = u[:H], u[H : 2 * H], u[2 * H : 3 * H], u[3 * H :]
    for s in range(lo, hi):
        for r in range(B):
            z, before, h_before = xw[s, r], cs_prev[r], h_prev[r]
            if s > 0:
                before, h_before = cs[s - 1, r], h[s - 1, r]
            if w_h.size > 0:
                for k in range(H):
                    h_k = h_before[k]
                    for column in range(4 * H):
                        z[column] -= h_k * w_h[k, column]
            else:
                for column in range(4 * H):
                    z[column] -= product[r, column]
            z_i, z_ci = z[at_i : at_i + H], z[at_ci : at_ci + H]
            z_f, z_o = z[at_f : at_f + H], z[at_o : at_o + H]
            for j in range(H):
                u_i[j], u_f[j], u_ci[j] = z_i[j], z_f[j], min(-two * z_ci[j], highest)
            if peephole:
                for j in range(H):
                    u_i[j] -= before[j] * wci[j]
                    u_f[j] -= before[j] * wcf[j]
            _expm1(u[: 3 * H])
            for j in range(H):
                # sigmoid(-x) = 1/(1 + exp(x)), tanh(x/2) = expm1(x)/(expm1(x) + 2)
                i_, f_, ci_ = one / (two + u_i[j]), one / (two + u_f[j]), u_ci[j] / (two + u_ci[j])
                new = f_ * before[j] + i_ * ci_
                if cell_clip >= 0:
                    if new > cell_clip:
                        new = cell_clip
                    if new < -cell_clip:
                        new = -cell_clip
                i[s, r, j], f[s, r, j], ci[s, r, j], cs[s, r, j] = i_, f_, ci_, new
                u_ci[j], u_o[j] = min(two * new, highest), z_o[j]
            if peephole:
                for j in range(H):
                    u_o[j] -= cs[s, r, j] * wco[j]
            _expm1(u_ci)
            _expm1(u_o)
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
    at_i: int,
    at_ci: int,
    at_f: int,
    at_o: int,
    dcs: Array,
    dh: Array,
    dgates: Array,
) -> None:
    """
    The loop of lstm.backward_steps and its factors over the steps from hi-1 down to lo.

    cs_prev is that of each step. Without w_h, dh is left for the caller to make.
    """
    _, B, H = i.shape
    one, zero = i.dtype.type(1), i.dtype.type(0)
    has_cs_grad, has_h_grad, peephole = cs_grad.size > 0, h_grad.size > 0, wci.size > 0
    for s in range(hi - 1, lo - 1, -1):
        for r in range(B):
            g, d = dgates[s, r], dh[r]
            di, dci = g[at_i : at_i + H], g[at_ci : at_ci + H]
            df, do = g[at_f : at_f + H], g[at_o : at_o + H]
            if has_h_grad:
                for j in range(H):
                    d[j] += h_grad[s, r, j]
            for j in range(H):
                i_, f_, o_, ci_, co_ = i[s, r, j], f[s, r, j], o[s, r, j], ci[s, r, j], co[s, r, j]
                do[j] = o_ * (one - o_) * co_ * d[j]
                new = dcs[r, j] + (one - co_ * co_) * o_ * d[j]
                if peephole:
                    new += do[j] * wco[j]
                if has_cs_grad:
                    new += cs_grad[s, r, j]
                if cell_clip >= 0 and not abs(cs[s, r, j]) < cell_clip:
                    new *= zero
                di[j] = i_ * (one - i_) * ci_ * new
                df[j] = f_ * (one - f_) * cs_prev[s, r, j] * new
                dci[j] = (one - ci_ * ci_) * i_ * new
                new *= f_
                if peephole:
                    new += di[j] * wci[j] + df[j] * wcf[j]
                dcs[r, j] = new
            if w_h.size == 0:
                continue
            d[:] = zero
            for k in range(H):
                # Four rows at once: d is read and written a quarter as often.
                g_0, g_1, g_2, g_3 = g[k], g[H + k], g[2 * H + k], g[3 * H + k]
                w_0, w_1, w_2, w_3 = w_h[k], w_h[H + k], w_h[2 * H + k], w_h[3 * H + k]
                for j in range(H):
                    d[j] += g_0 * w_0[j] + g_1 * w_1[j] + g_2 * w_2[j] + g_3 * w_3[j]


def _peephole_sums(
    dgates: Array,
    before: Array,
    after: Array,
    at_i: int,
    at_f: int,
    at_o: int,
    wci_grad: Array,
    wcf_grad: Array,
    wco_grad: Array,
) -> None:
    """Add the sums over the rows of dgates[N, 4*H] times cs[N, H], which are float64."""
    N, H = before.shape
    for r in range(N):
        g = dgates[r]
        di, df, do = g[at_i : at_i + H], g[at_f : at_f + H], g[at_o : at_o + H]
        for j in range(H):
            wci_grad[j] += di[j] * before[r, j]
            wcf_grad[j] += df[j] * before[r, j]
            wco_grad[j] += do[j] * after[r, j]


def _plain(*arrays: Array) -> Iterator[Array]:
    """Yield the arrays as the loops are compiled for: no subclass, C order, aligned."""
    for a in arrays:
        base = np.asarray(a)
        yield base if base.flags.c_contiguous and base.flags.aligned else base.copy()


def _shared(
    peephole: tuple[Array, ...] | None,
    cell_clip: float | None,
    columns: tuple[int, ...],
    H: int,
    dtype: np.dtype[Any],
) -> tuple[Any, ...]:
    """Return what both loops take: wci, wcf, wco, cell_clip and where i, ci, f and o begin."""
    vectors = peephole or (np.empty(0, dtype),) * 3
    clip = dtype.type(-1 if cell_clip is None else cell_clip)
    return (*_plain(*vectors), clip, *(H * column for column in columns))


class Loops:
    """The compiled loops of one dtype, float32 or float64."""

    def __init__(self, char: str) -> None:
        vectors, at, state = "r1 r1 r1", "n n n n", " r3" * 9
        self._forward = _compile(
            _lstm_forward, f"n n w3 r2 r2 {vectors} x {at} r2 r2{' w3' * 7} w1", char
        )
        self._backward = _compile(_lstm_backward, f"n n{state} r2 {vectors} x {at} w2 w2 w3", char)
        self._sums = _compile(_peephole_sums, "r2 r2 r2 n n n d1 d1 d1", char)

    def forward(
        self,
        xw: Array,
        w_h: Array,
        cs_prev: Array,
        h_prev: Array,
        peephole: tuple[Array, ...] | None,
        cell_clip: float | None,
        columns: tuple[int, ...],
        outputs: Sequence[Array],
    ) -> None:
        """Do what lstm._forward_loop does."""
        t, B, _ = xw.shape
        H, dtype = cs_prev.shape[1], xw.dtype
        none, product = np.empty((0, 0), dtype), np.empty((B, 4 * H), dtype)
        whole = t > 1 and B * H * H <= _PRODUCT_LARGEST
        args = (
            xw,
            *_plain(w_h if whole else none, product),
            *_shared(peephole, cell_clip, columns, H, dtype),
            *_plain(cs_prev, h_prev),
            *outputs,
            np.empty(4 * H, dtype),
        )
        if whole:
            self._forward(0, t, *args)
            return
        for s in range(t):
            np.dot(outputs[-1][s - 1] if s else h_prev, w_h, product)
            self._forward(s, s + 1, *args)

    def backward(
        self,
        saved: Sequence[Array],
        cs_prev: Array,
        cs_grad: Array | None,
        h_grad: Array | None,
        w_h: Array | None,
        peephole: tuple[Array, ...] | None,
        cell_clip: float | None,
        columns: tuple[int, ...],
        dcs: Array,
        dh: Array,
        dgates: Array,
    ) -> None:
        """Do what lstm._backward_loop does."""
        t, B, H = cs_prev.shape
        dtype = cs_prev.dtype
        none = np.empty((0, 0, 0), dtype)
        grads = (none if a is None else a for a in (cs_grad, h_grad))
        whole = w_h is not None and t > 1 and B * H * H <= _PRODUCT_LARGEST
        w = w_h if whole and w_h is not None else none.reshape(0, 0)
        args = (
            *_plain(*saved[:6], cs_prev, *grads, w),
            *_shared(peephole, cell_clip, columns, H, dtype),
            dcs,
            dh,
            dgates,
        )
        if whole or w_h is None:
            self._backward(0, t, *args)
            return
        for s in range(t - 1, -1, -1):
            self._backward(s, s + 1, *args)
            np.dot(dgates[s], w_h, dh)

    def add_peephole_sums(
        self, dgates: Array, before: Array, after: Array, columns: tuple[int, ...], totals: Array
    ) -> None:
        """Do what lstm._add_peephole_sums does."""
        H = before.shape[1]
        sums = np.zeros((3, H))
        at_i, _, at_f, at_o = (H * column for column in columns)
        self._sums(*_plain(dgates, before, after), at_i, at_f, at_o, *sums)
        totals += sums
