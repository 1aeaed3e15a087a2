"""
The steps of ``cells/lstm.py``, compiled by Numba: imported only where that is installed.

A step passes over the memory once, where NumPy takes 15 to 20 calls, each of which costs half a
microsecond however little it computes. The equations are those of ``cells/lstm.py``, name by name.
Products of larger steps are left to NumPy, whose BLAS is faster than a loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from .._transposed import dot

if TYPE_CHECKING:
    from .._arrays import Array
    from .._products import Scratch
    from ..cells.contract import Span, States
    from ..cells.lstm import LSTM, LSTMOutputs

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
    written, d1 a float64 one, x a number of the dtype, n an integer and b a bool.
    """
    dtype = numba.from_dtype(np.dtype(char))
    types: dict[str, Any] = {"x": dtype, "n": numba.intp, "b": numba.boolean}
    types["d1"] = numba.float64[::1]
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


@_part
def _hard_gate(u: Array, slope: Any, offset: Any) -> None:
    """
    Overwrite u, pre-activations held negated, so that 1/(2 + u) is clip(offset - slope*u, 0, 1).

    As with expm1(u) it is the sigmoid, one loop serves both, and the sigmoid pays for nothing.
    """
    zero, one, two = u.dtype.type(0), u.dtype.type(1), u.dtype.type(2)
    for j in range(u.size):
        g = offset - slope * u[j]
        if g > one:
            g = one
        if g < zero:
            g = zero
        u[j] = one / g - two


@_part
def _slope(g: Any, hard: bool, slope: Any) -> Any:
    """Return the slope of a gate where it is g."""
    zero, one = type(g)(0), type(g)(1)
    if not hard:
        return g * (one - g)
    return slope if zero < g < one else zero


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
                _hard_gate(u_i, slope, offset)
                _hard_gate(u_f, slope, offset)
                _expm1(u_ci)
            else:
                _expm1(u[: 3 * H])
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
            _expm1(u_ci)
            if hard:
                _hard_gate(u_o, slope, offset)
            else:
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
                k_o = _slope(o_, hard, slope) * co_
                k_d = (one - co_ * co_) * o_
                k_i = _slope(i_, hard, slope) * ci_
                k_ci = (one - ci_ * ci_) * i_
                k_f = _slope(f_, hard, slope) * cs_prev[s, r, j]
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


def _plain(*arrays: Array) -> list[Array]:
    """Return the arrays as the loops are compiled for: no subclass, C order, aligned."""
    plain = []
    for a in arrays:
        a = np.asarray(a)
        flags = a.flags
        plain.append(a if flags.c_contiguous and flags.aligned else a.copy())
    return plain


@functools.cache
def _nothing(char: str) -> list[Array]:
    """Return an empty array of each rank from 1 to 3, which stands for one that is not given."""
    return [np.empty((0,) * rank, char) for rank in (1, 2, 3)]


def _shared(cell: LSTM, H: int, dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return what both loops take: wci to wco, cell_clip, the gate, where i, ci, f, o begin."""
    vectors = _nothing(dtype.char)[:1] * 3 if cell.peephole is None else _plain(*cell.peephole)
    clip = dtype.type(-1 if cell.cell_clip is None else cell.cell_clip)
    slope, offset = cell.gate or (0, 0)
    gate = cell.gate is not None, dtype.type(slope), dtype.type(offset)
    return (*vectors, clip, *gate, *[H * column for column in cell.columns])


class _Loops:
    """The compiled loops of one dtype, float32 or float64."""

    def __init__(self, char: str) -> None:
        vectors, at, state = "r1 r1 r1", "b x x n n n n", " r3" * 9
        self.forward = _compile(
            _lstm_forward, f"n n w3 r2 r2 {vectors} x {at} r2 r2{' w3' * 7} w1", char
        )
        self.backward = _compile(_lstm_backward, f"n n{state} r2 {vectors} x {at} w2 w2 w3", char)
        self.sums = _compile(_peephole_sums, "r3 r3 r3 n n n d1 d1 d1", char)


@functools.cache
def _loops(char: str) -> _Loops | None:
    """Return the loops for a dtype of the computation, None where they cannot be had."""
    # Not compiled they would be far slower than NumPy's.
    if getattr(numba.config, "DISABLE_JIT", False):
        return None
    try:
        return _Loops(char)
    except Exception:  # Numba does not work here.
        return None


def takes(cell: LSTM, dtype: np.dtype[Any]) -> bool:
    """Return whether a cell's steps are compiled for a dtype: all but those of a projection."""
    return len(cell.recurrent) < 2 and _loops(dtype.char) is not None


def forward_steps(
    cell: LSTM,
    w: Sequence[Array],
    xw: Sequence[Array],
    carried: States,
    saved: LSTMOutputs,
    batches: Sequence[int],
) -> None:
    """The recurrence over t steps."""
    (z,), (w_h,), (h_prev, cs_prev) = xw, w, carried
    (t, B, _), H, dtype = z.shape, cs_prev.shape[1], z.dtype
    loops: Any = _loops(dtype.char)
    np.subtract(-cell.b, z, z)
    whole = t > 1 and B * H * H <= _PRODUCT_LARGEST
    none = _nothing(dtype.char)[1]
    product = none if whole else np.empty((B, 4 * H), dtype)
    args = (
        z,
        *_plain(w_h if whole else none, product),
        *_shared(cell, H, dtype),
        *_plain(cs_prev, h_prev),
        *saved,
        np.empty(4 * H, dtype),
    )
    if whole:
        loops.forward(0, t, *args)
    else:
        for s in range(t):
            dot(saved.h[s - 1] if s else h_prev, w_h, product)
            loops.forward(s, s + 1, *args)
    carried.h[...], carried.c[...] = saved.h[-1], saved.cs[-1]


def backward_steps(
    cell: LSTM,
    w: Sequence[Array],
    span: Span,
    given: States,
    carried: States,
    deltas: Sequence[Array],
    work: Scratch,
) -> None:
    """The recurrence over t steps, backwards."""
    (dz,), (dh, dcs) = deltas, carried
    (t, B, H), dtype = span.saved.i.shape, dcs.dtype
    loops: Any = _loops(dtype.char)
    _, none, no_grad = _nothing(dtype.char)
    grads = [no_grad if a is None else a for a in (given.c, given.h)]
    whole = len(w) > 0 and t > 1 and B * H * H <= _PRODUCT_LARGEST
    args = (
        *_plain(*span.saved[:6], span.before.c, *grads, w[0] if whole else none),
        *_shared(cell, H, dtype),
        dcs,
        dh,
        dz,
    )
    if whole or not w:
        loops.backward(0, t, *args)
        return
    for s in range(t - 1, -1, -1):
        loops.backward(s, s + 1, *args)
        dot(dz[s], w[0], dh)


def add_sums(cell: LSTM, span: Span, deltas: Sequence[Array], totals: Array) -> None:
    """Add the sums over time and batch of di*cs_prev, df*cs_prev and do*cs to totals[3, H]."""
    loops: Any = _loops(totals.dtype.char)
    H = totals.shape[1]
    sums = np.zeros((3, H))
    at_i, _, at_f, at_o = (H * column for column in cell.columns)
    loops.sums(*_plain(deltas[0], span.before.c, span.saved.cs), at_i, at_f, at_o, *sums)
    totals += sums
