"""
The LSTM of TensorFlow's block ops and of cuDNN.

Forward::

    i  = sigmoid(zi + cs_prev*wci)        z = x @ w_x + h_prev @ w_h + b
    f  = sigmoid(zf + cs_prev*wcf)
    ci = tanh(zci)
    cs = clip(i*ci + f*cs_prev)
    co = tanh(cs)
    o  = sigmoid(zo + cs*wco)
    h  = o*co                             clip((o*co) @ w_p) with a projection

With a hard sigmoid its slope replaces i*(1-i), f*(1-f) and o*(1-o): see
``arithmetic/gates.py``.

Backward, with dh and dcs the gradients of h and cs, later steps included. The left column is the
whole recurrence; the factors k depend on saved values only::

    do   = dh * k_o                       k_o    = o*(1-o)*co
    dcs += dh * k_d                       k_d    = (1-co²)*o + k_o*wco
    di   = dcs * k_i                      k_i    = i*(1-i)*ci
    dci  = dcs * k_ci                     k_ci   = (1-ci²)*i
    df   = dcs * k_f                      k_f    = f*(1-f)*cs_prev
    dcs  = dcs * k_next                   k_next = f + k_i*wci + k_f*wcf

With the true gradient of a clip, k_i, k_ci, k_f and k_next are zero where abs(cs) reached it, and
dh is zero where abs(h) reached the clip of a projection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Generic

import numpy as np

from .._typing import Array, ArrayT, NamedTuple
from ..arithmetic.dual import arithmetic_of, dot_with
from ..arithmetic.gates import (
    HardSigmoid,
    bounds_of,
    gate_of,
    sigmoid_of,
    slope_of,
    unity_of,
    with_negated,
)
from ..arithmetic.products import ones
from ..arithmetic.scratch import are_small, product
from .contract import BackwardRun, BackwardStep, ForwardRun, Weight


class LSTMOutputs(NamedTuple, Generic[ArrayT]):
    """
    What an LSTM step [B, H] or sequence [T, B, H] returns, in TensorFlow's order.

    Attributes
    ----------
    i, cs, f, o, ci, co : [B, H] or [T, B, H]
        The input gate, the cell state, the forget and output gates, the new cell value, tanh(cs).
    h : [B, H] or [T, B, H]
        The output.
    """

    i: ArrayT
    cs: ArrayT
    f: ArrayT
    o: ArrayT
    ci: ArrayT
    co: ArrayT
    h: ArrayT


class LSTMStates(NamedTuple):
    """The states of an LSTM, or their gradients; None for a state that is not wanted."""

    h: Any  # [B, P]
    c: Any  # [B, H]


class LSTM(NamedTuple):
    """The weights and attributes of an LSTM."""

    inputs: tuple[Weight, ...]  # w_x
    recurrent: tuple[Weight, ...]  # w_h [P, 4*H] and, with a projection, w_p [H, P]
    widths: tuple[int, ...]
    b: Any  # [4*H], forget_bias included; None backward
    columns: tuple[int, ...]  # which quarter belongs to i, ci, f and o; i, f and o in that order
    peephole: tuple[Array, Array, Array] | None = None  # wci, wcf, wco [H]
    cell_clip: float | None = None
    gate: HardSigmoid | None = None  # None for the sigmoid
    proj_clip: float | None = None

    @property
    def Saved(self) -> type[LSTMOutputs]:
        """The NamedTuple of the results of a step."""
        return LSTMOutputs

    def states(self, saved: LSTMOutputs) -> LSTMStates:
        """h and cs."""
        return LSTMStates(saved.h, saved.cs)

    @property
    def operands(self) -> Callable[[LSTMOutputs, Array], list[Array]] | None:
        """A function that returns the left factors of w_h and w_p; None without a projection."""
        return _operands if len(self.recurrent) > 1 else None

    def terms(self, saved: LSTMOutputs, before: LSTMStates, deltas: list[Array]) -> list[Array]:
        """di*cs_prev, df*cs_prev and do*cs."""
        gates = deltas[0].reshape(len(saved.cs), 4, saved.cs.shape[1])
        di, _, df, do = (gates[:, column] for column in self.columns)
        return [di * before.c, df * before.c, do * saved.cs]


def _operands(saved: LSTMOutputs, h_before: Array) -> list[Array]:
    """Return the left factors of w_h and w_p."""
    return [h_before, product(saved.o, saved.co, h_before.dtype)]


def _forward_views(
    new: Callable[..., Array], t: int, B: int, H: int, columns: Sequence[int]
) -> tuple[Any, ...]:
    """Return scratch memory, and of each step the planes of all gates and of i, ci, f and o."""
    zh, tmp, planes = new(B, 4 * H), new(B, H), new(t, 4, B, H)
    z_h = zh.reshape(4, B, H) if B == 1 else new(4, B, H)
    of_gates = [[*planes], *([*planes[:, column]] for column in columns)]
    gates = [planes[:, columns[k]] for k in (0, 2, 3)]
    return zh, zh.reshape(B, 4, H).transpose(1, 0, 2), z_h, tmp, planes, of_gates, gates


def drawn(some: Callable[..., Array], H: int, gate: HardSigmoid | None) -> LSTM:
    """Return a cell without matrices of numbers from `some`; with a hard gate all its options."""
    peephole = (some(H), some(H), some(H)) if gate else None
    clip = 0.6 if gate else None
    return LSTM((), (), (4 * H,), some(4 * H), (0, 1, 2, 3), peephole, clip, gate)


def forward_steps(cell: LSTM, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    (z,), (w_h, *w_p), saved, (h_prev, cs_prev) = run.xw, run.w, run.saved, run.carried
    (t, B, H), dtype, peephole = saved.cs.shape, z.dtype, cell.peephole
    # One plane [B, H] per gate: ufuncs are several times faster over contiguous memory than over a
    # quarter of each row. Small steps have planes of their own, which are copied to the results
    # together. Larger steps share planes, which stay in the cache, and write results at once.
    is_small = are_small(t, B * H, dtype)
    zh, by_gate, z_h, tmp, planes, of_gates, gates = run.work.views(
        _forward_views, t if is_small else 1, B, H, cell.columns
    )
    results = saved.i, saved.f, saved.o
    into: Any = repeat(None)
    # All pre-activations are stored negated, for the sigmoid 1/(exp(z) + 1).
    if is_small:
        of_gate = z.reshape(t, B, 4, H).transpose(0, 2, 1, 3)
        np.subtract(-cell.b.reshape(4, 1, H), of_gate, planes)
        z = of_gates[0]
    else:
        np.subtract(-cell.b, z, z)
        z, into = z.reshape(t, B, 4, H).transpose(0, 2, 1, 3), zip(*results, strict=True)
        of_gates = [repeat(a[0], t) for a in of_gates]
    # Arrays instead of Python numbers: ufuncs are faster with them.
    (inner, shift, outer), arithmetic = gate_of(cell.gate, dtype), arithmetic_of(dtype)
    _, _, tanh, negative, clip, _ = arithmetic
    dot = dot_with(dtype, run.w)
    if peephole is not None:
        wci, wcf, wco = (v[None].repeat(B, 0) for v in peephole)
    if cell.cell_clip is not None:
        low, high = bounds_of(cell.cell_clip, dtype)
    if cell.proj_clip is not None:
        bounds = bounds_of(cell.proj_clip, dtype)
    at_f = cell.columns[2]
    of_steps = z, saved.cs, saved.ci, saved.co, saved.h, *of_gates, into
    for z_t, cs, ci, co, h, planes_t, zi, zci, zf, zo, written in zip(*of_steps, strict=False):
        i, f, o = written or (zi, zf, zo)
        dot(h_prev, w_h, zh)
        if is_small:  # quicker than one call over strided memory
            if B > 1:
                z_h[...] = by_gate
            np.subtract(z_t, z_h, planes_t)
        else:
            np.subtract(z_t, by_gate, planes_t)
        tanh(zci, ci)  # -ci
        if peephole is not None:
            np.subtract(zi, np.multiply(cs_prev, wci, tmp), zi)
            np.subtract(zf, np.multiply(cs_prev, wcf, tmp), zf)
        if is_small:
            early = planes_t if peephole is None else planes_t[: at_f + 1 : at_f]  # i and f
            inner(early, early)
            np.add(early, shift, early)
            outer(early, early)
            np.multiply(f, cs_prev, cs)
            np.subtract(cs, np.multiply(i, ci, tmp), cs)  # cs = i*ci + f*cs_prev
        else:
            negative(ci, ci)
            for a, gate in ((zi, i), (zf, f), (zo, o))[: 3 if peephole is None else 2]:
                inner(a, a)
                np.add(a, shift, a)
                outer(a, gate)
            np.multiply(f, cs_prev, cs)
            np.add(cs, np.multiply(i, ci, tmp), cs)
        if cell.cell_clip is not None:
            clip(cs, low, high, cs)
        tanh(cs, co)  # co = tanh(cs)
        if peephole is not None:
            np.subtract(zo, np.multiply(cs, wco, tmp), zo)
            inner(zo, zo)
            np.add(zo, shift, zo)
            outer(zo, o)  # o = sigmoid(zo + cs*wco)
        if not w_p:
            np.multiply(o, co, h)  # h = o*co
        else:
            dot(np.multiply(o, co, tmp), w_p[0], h)
            if cell.proj_clip is not None:
                clip(h, *bounds, h)
        h_prev, cs_prev = h, cs
    if is_small:
        negative(saved.ci, saved.ci)
        for a, gate in zip(results, gates, strict=True):
            a[...] = gate
    run.carried.h[...], run.carried.c[...] = h_prev, cs_prev


def _factors(cell: LSTM, saved: LSTMOutputs, cs_prev: Array, memory: Array) -> None:
    """Write the factors of the gradient of t steps that do not depend on carried gradients."""
    (i, cs, f, o, ci, co, _), dtype = saved, memory.dtype
    k_i, k_ci, k_f, k_o, k_d, k_next, tmp = memory
    unity, slope = unity_of(dtype), slope_of(cell.gate, dtype)
    np.subtract(unity, i, tmp)
    slope(i, tmp, tmp)
    np.multiply(tmp, ci, k_i)  # k_i = i*(1-i)*ci
    np.multiply(ci, ci, tmp)
    np.subtract(unity, tmp, tmp)
    np.multiply(tmp, i, k_ci)  # k_ci = (1-ci²)*i
    np.subtract(unity, f, tmp)
    slope(f, tmp, tmp)
    np.multiply(tmp, cs_prev, k_f)  # k_f = f*(1-f)*cs_prev
    np.subtract(unity, o, tmp)
    slope(o, tmp, tmp)
    np.multiply(tmp, co, k_o)  # k_o = o*(1-o)*co
    np.multiply(co, co, tmp)
    np.subtract(unity, tmp, tmp)
    np.multiply(tmp, o, k_d)  # k_d = (1-co²)*o
    k_next[...] = f  # k_next = f
    if cell.peephole is not None:
        wci, wcf, wco = cell.peephole
        np.add(k_d, np.multiply(k_o, wco, tmp), k_d)
        np.add(k_next, np.multiply(k_i, wci, tmp), k_next)
        np.add(k_next, np.multiply(k_f, wcf, tmp), k_next)
    if cell.cell_clip is not None:
        real = tmp.real
        kept = np.less(np.abs(cs.real, real), cell.cell_clip, real)  # faster than of bool
        for k in (k_i, k_ci, k_f, k_next):
            np.multiply(k, kept, k)


def _backward_views(new: Callable[..., Array], t: int, B: int, H: int) -> tuple[Any, ...]:
    """Return factors, scratch memory, and of each step, from the last on, the factors."""
    factors, planes = new(7, t, B, H), new(4, B, H)
    return factors, [[*a[::-1]] for a in factors[:6]], planes, [*planes], new(B, H)


def backward_steps(cell: LSTM, run: BackwardRun) -> None:
    """The recurrence over t steps, backward."""
    (dz, *dh_steps), (dh, dcs), (h_grad, cs_grad) = run.deltas, run.carried, run.cotangents
    (t, B, _), H, dtype = dz.shape, dcs.shape[1], dcs.dtype
    w_h, w_p = (*run.w, None, None)[:2]
    dot = dot_with(dtype, run.w)
    factors, of_steps, planes, gates, u = run.work.views(_backward_views, t, B, H)
    _factors(cell, run.saved, run.before.c, factors)
    dm = dh if w_p is None else np.empty((B, H), dtype)  # of o*co
    if cell.proj_clip is not None:
        kept = np.abs(run.saved.h.real) < cell.proj_clip
    is_small = are_small(t, B * H, dtype)
    by_gate = dz.reshape(t, B, 4, H).transpose(0, 2, 1, 3)
    # Small steps are computed in planes and copied, because ufuncs are slow over strided memory.
    into = [repeat(gates[k]) if is_small else by_gate[::-1, k] for k in cell.columns]
    # Iterating over arrays makes the views of a step faster than indexing does.
    nothing = repeat(None)
    cotangents = [nothing if a is None else a[::-1] for a in (h_grad, cs_grad)]
    arrays = *of_steps, dz[::-1], by_gate[::-1], *into, *cotangents
    for s, k_i, k_ci, k_f, k_o, k_d, k_next, dz_s, gates_s, di, dci, df, do, dh_s, dcs_s in zip(
        range(t - 1, -1, -1), *arrays, strict=False
    ):
        if dh_s is not None:
            np.add(dh, dh_s, dh)
        if cell.proj_clip is not None:
            np.multiply(dh, kept[s], dh)
        if w_p is not None:
            dh_steps[0][s] = dh
            dot(dh, w_p, dm)
        np.multiply(dm, k_o, do)
        np.multiply(dm, k_d, u)
        np.add(dcs, u, dcs)
        if dcs_s is not None:
            np.add(dcs, dcs_s, dcs)
        np.multiply(dcs, k_i, di)
        np.multiply(dcs, k_ci, dci)
        np.multiply(dcs, k_f, df)
        np.multiply(dcs, k_next, dcs)
        if is_small:
            gates_s[...] = planes
        if w_h is not None:
            dot(dz_s, w_h, dh)


def forward_step(cell: LSTM, x: Array, first: LSTMStates, saved: LSTMOutputs) -> None:
    """One step with its products, in as few calls as possible."""
    (w_x,), (w_h, *w_p) = cell.inputs, cell.recurrent
    (h_prev, cs_prev), (i, cs, f, o, ci, co, h) = first, saved
    H = cs_prev.shape[1]
    inner, shift, outer = gate_of(cell.gate, x.dtype)
    z = x.dot(w_x.w)
    z += h_prev.dot(w_h.w)
    z += cell.b
    zi, zci, zf, zo = [z[:, column * H : (column + 1) * H] for column in cell.columns]
    np.tanh(zci, ci)  # ci = tanh(zci)
    early = z
    if cell.peephole is not None:
        wci, wcf, wco = cell.peephole
        zi += cs_prev * wci
        zf += cs_prev * wcf
        early = z[:, : 3 * H]  # o comes last
    np.negative(early, early)
    inner(early, early)
    early += shift
    outer(zi, i)  # i = sigmoid(zi + cs_prev*wci)
    outer(zf, f)  # f = sigmoid(zf + cs_prev*wcf)
    np.multiply(f, cs_prev, cs)
    cs += np.multiply(i, ci, co)  # cs = i*ci + f*cs_prev
    if cell.cell_clip is not None:
        low, high = bounds_of(cell.cell_clip, x.dtype)
        np.minimum(cs, high, out=cs)
        np.maximum(cs, low, out=cs)
    np.tanh(cs, co)  # co = tanh(cs)
    if cell.peephole is not None:
        zo += cs * wco
        # Not np.negative: NumPy 2.4's is wrong in place over every fourth number of float32.
        zo *= -1
        inner(zo, zo)
        zo += shift
    outer(zo, o)  # o = sigmoid(zo + cs*wco)
    if not w_p:
        np.multiply(o, co, h)  # h = o*co
    else:
        (o * co).dot(w_p[0].w, h)
        if cell.proj_clip is not None:
            low, high = bounds_of(cell.proj_clip, x.dtype)
            np.minimum(h, high, out=h)
            np.maximum(h, low, out=h)


def backward_step(cell: LSTM, step: BackwardStep) -> None:
    """One step backward, in as few calls as possible."""
    (i, cs, f, o, ci, co, h), cs_prev, (dh, dcs) = step.saved, step.before.c, step.carried
    (dz, *dh_step), (w_h, w_p) = step.deltas, (*cell.recurrent, None, None)[:2]
    H, dtype = dcs.shape[1], dcs.dtype
    unity, slope = unity_of(dtype), slope_of(cell.gate, dtype)
    gates = by_gate = dz.reshape(len(dz), 4, H).transpose(1, 0, 2)
    if cell.peephole is not None and len(dz) > 1:  # read again: faster if contiguous
        gates = np.empty(by_gate.shape, dtype)
    di, dci, df, do = (gates[column] for column in cell.columns)
    dm = dh  # of o*co
    if cell.proj_clip is not None:
        dh *= np.abs(h) < cell.proj_clip
    if w_p is not None:
        dh_step[0][...] = dh
        dm = dh.dot(w_p.w.T)
    k = unity - o
    slope(o, k, k)
    k *= co
    np.multiply(dm, k, do)  # do = dh*co * o*(1-o)
    np.multiply(co, co, k)
    np.subtract(unity, k, k)
    k *= o
    k *= dm
    dcs += k  # dcs += dh*o * (1-co²)
    if cell.peephole is not None:
        wci, wcf, wco = cell.peephole
        dcs += np.multiply(do, wco, k)
    if cell.cell_clip is not None:
        dcs *= np.abs(cs) < cell.cell_clip
    np.subtract(unity, i, k)
    slope(i, k, k)
    k *= ci
    np.multiply(dcs, k, di)  # di = dcs*ci * i*(1-i)
    np.multiply(ci, ci, k)
    np.subtract(unity, k, k)
    k *= i
    np.multiply(dcs, k, dci)  # dci = dcs*i * (1-ci²)
    np.subtract(unity, f, k)
    slope(f, k, k)
    k *= cs_prev
    np.multiply(dcs, k, df)  # df = dcs*cs_prev * f*(1-f)
    dcs *= f
    if cell.peephole is not None:
        dcs += np.multiply(di, wci, k)
        dcs += np.multiply(df, wcf, k)
        if step.totals is not None:
            terms = np.empty((3, *dcs.shape), dtype)
            at_f = cell.columns[2]
            np.multiply(gates[: at_f + 1 : at_f], cs_prev, terms[:2])  # di and df
            np.multiply(do, cs, terms[2])
            sums = step.totals
            sums += terms[:, 0] if len(dcs) == 1 else np.matmul(ones(len(dcs), dtype), terms)
    if gates is not by_gate:
        by_gate[...] = gates
    if w_h is not None:
        dz.dot(w_h.w.T, dh)
    if step.x is not None:
        dz.dot(cell.inputs[0].w.T, step.x)


def add_sums(cell: LSTM, run: BackwardRun, totals: Array) -> None:
    """Add the sums over time and batch of di*cs_prev, df*cs_prev and do*cs to totals[3, H]."""
    (t, B, H), before, after = run.saved.cs.shape, run.before.c, run.saved.cs
    di, _, df, do = (run.deltas[0].reshape(t, B, 4, H)[:, :, column] for column in cell.columns)
    one, tmp = ones(t * B, totals.dtype), run.work(t, B, H)
    for total, dgate, cs in zip(totals, (di, df, do), (before, before, after), strict=True):
        np.multiply(dgate, cs, tmp)
        # Matmul sums several times more accurately than einsum.
        total += one.dot(tmp.reshape(t * B, H))


def prepared_step(cell: LSTM) -> Callable[..., tuple[Array, Array]]:
    """Return a function of x, h_prev and cs_prev that computes h and cs, for real numbers."""
    i, ci, f, o = cell.columns
    (w_x,), (w_h, *projection) = cell.inputs, cell.recurrent
    x_matrix, h_matrix, b = (with_negated(a, (i, f, o, ci), 3) for a in (w_x.w, w_h.w, cell.b))
    w_p = [np.ascontiguousarray(weight.w) for weight in projection]
    H, sigmoid = len(b) // 4, sigmoid_of(cell.gate, b.dtype)

    def step(x: Array, h_prev: Array, cs_prev: Array) -> tuple[Array, Array]:
        z = x.dot(x_matrix)
        z += h_prev.dot(h_matrix)
        z += b
        gates, ci = sigmoid(z[:, : 3 * H]), np.tanh(z[:, 3 * H :])
        cs = gates[:, H : 2 * H] * cs_prev
        ci *= gates[:, :H]
        cs += ci  # cs = i*ci + f*cs_prev
        h = np.tanh(cs)
        h *= gates[:, 2 * H :]  # h = o*tanh(cs)
        return (h.dot(w_p[0]) if w_p else h), cs

    return step
