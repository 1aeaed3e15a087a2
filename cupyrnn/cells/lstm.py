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

import functools
from collections.abc import Callable
from typing import Any, Generic

import numpy as np

from .._typing import Array, ArrayT, NamedTuple
from ..arithmetic.dual import arithmetic_of
from ..arithmetic.gates import HardSigmoid, gate_of, sigmoid_of, slope_of, unity_of, with_negated
from ..arithmetic.scratch import Scratch, product
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


def forward_steps(cell: LSTM, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    (z,), (w_h, *w_p) = run.xw, run.w
    h_prev, cs_prev = run.carried
    (B, H), dtype, at_ci = cs_prev.shape, z.dtype, cell.columns[1]
    # All pre-activations are stored negated, for the sigmoid 1/(exp(z) + 1).
    np.subtract(-cell.b, z, z)
    zh, tmp = np.empty((B, 4 * H), dtype), np.empty((B, H), dtype)
    # One plane [B, H] per gate: ufuncs are several times faster over contiguous memory than over a
    # quarter of each row. The planes of i, f and o are to the left and right of ci's plane.
    planes, by_gate = np.empty((4, B, H), dtype), zh.reshape(B, 4, H).transpose(1, 0, 2)
    z = z.reshape(len(z), B, 4, H).transpose(0, 2, 1, 3)
    zi, zci, zf, zo = (planes[column] for column in cell.columns)
    e_i, e_f, e_o = e = np.empty((3, B, H), dtype)
    left, e_left, right, e_right = planes[:at_ci], e[:at_ci], planes[at_ci + 1 :], e[at_ci:]
    # Arrays instead of Python numbers: ufuncs are faster with them.
    (inner, shift, outer), arithmetic = gate_of(cell.gate, dtype), arithmetic_of(dtype)
    dot, _, tanh, negative, clip, _ = arithmetic
    if cell.peephole is not None:
        wci, wcf, wco = (v[None].repeat(B, 0) for v in cell.peephole)
    if cell.cell_clip is not None:
        low, high = np.array(-cell.cell_clip, dtype), np.array(cell.cell_clip, dtype)
    if cell.proj_clip is not None:
        bounds = np.array(-cell.proj_clip, dtype), np.array(cell.proj_clip, dtype)
    for z_t, i, cs, f, o, ci, co, h in zip(z, *run.saved, strict=True):
        dot(h_prev, w_h, zh)
        np.subtract(z_t, by_gate, planes)
        if cell.peephole is None:
            inner(left, e_left)
            inner(right, e_right)
            np.add(e, shift, e)
        else:
            np.subtract(zi, np.multiply(cs_prev, wci, tmp), e_i)
            np.subtract(zf, np.multiply(cs_prev, wcf, tmp), e_f)
            inner(e[:2], e[:2])
            np.add(e[:2], shift, e[:2])
        outer(e_i, i)  # i = sigmoid(zi + cs_prev*wci)
        outer(e_f, f)  # f = sigmoid(zf + cs_prev*wcf)
        tanh(zci, ci)
        negative(ci, ci)  # ci = tanh(zci)
        np.multiply(f, cs_prev, cs)
        np.multiply(i, ci, tmp)
        np.add(cs, tmp, cs)  # cs = i*ci + f*cs_prev
        if cell.cell_clip is not None:
            clip(cs, low, high, cs)
        tanh(cs, co)  # co = tanh(cs)
        if cell.peephole is not None:
            np.subtract(zo, np.multiply(cs, wco, tmp), e_o)
            inner(e_o, e_o)
            np.add(e_o, shift, e_o)
        outer(e_o, o)  # o = sigmoid(zo + cs*wco)
        if not w_p:
            np.multiply(o, co, h)  # h = o*co
        else:
            dot(np.multiply(o, co, tmp), w_p[0], h)
            if cell.proj_clip is not None:
                clip(h, *bounds, h)
        h_prev, cs_prev = h, cs
    run.carried.h[...], run.carried.c[...] = h_prev, cs_prev


class _Factors(NamedTuple):
    """The factors of t steps, [t, B, H] each, except `gates`."""

    gates: Array  # [t, 3, B, H]: k_i, k_ci and k_f in the order of the columns
    o: Array
    d: Array
    next: Array


def _factors(cell: LSTM, saved: LSTMOutputs, cs_prev: Array, work: Scratch) -> _Factors:
    """Return the factors of the gradient of t steps that do not depend on carried gradients."""
    i, cs, f, o, ci, co, _ = saved
    (t, B, H), dtype = i.shape, i.dtype
    memory = work(7, t, B, H)
    k = _Factors(memory[:3].reshape(t, 3, B, H), *memory[3:6])
    tmp, unity, slope = memory[6], unity_of(dtype), slope_of(cell.gate, dtype)
    k_i, k_ci, k_f = (k.gates[:, column] for column in cell.columns[:3])
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
    np.multiply(tmp, co, k.o)  # k_o = o*(1-o)*co
    np.multiply(co, co, tmp)
    np.subtract(unity, tmp, tmp)
    np.multiply(tmp, o, k.d)  # k_d = (1-co²)*o
    np.copyto(k.next, f)  # k_next = f
    if cell.peephole is not None:
        wci, wcf, wco = cell.peephole
        np.add(k.d, np.multiply(k.o, wco, tmp), k.d)
        np.add(k.next, np.multiply(k_i, wci, tmp), k.next)
        np.add(k.next, np.multiply(k_f, wcf, tmp), k.next)
    if cell.cell_clip is not None:
        kept = np.less(np.abs(cs.real, tmp.real), cell.cell_clip)
        np.multiply(k.gates, kept[:, None], k.gates)
        np.multiply(k.next, kept, k.next)
    return k


def backward_steps(cell: LSTM, run: BackwardRun) -> None:
    """The recurrence over t steps, backward."""
    (dz, *dh_steps), (dh, dcs), (h_grad, cs_grad) = run.deltas, run.carried, run.cotangents
    (t, B, _), H, dtype = dz.shape, dcs.shape[1], dcs.dtype
    w_h, w_p = (*run.w, None, None)[:2]
    dot = arithmetic_of(dtype).dot
    k = _factors(cell, run.saved, run.before.c, run.work)
    dm = dh if w_p is None else np.empty((B, H), dtype)  # of o*co
    if cell.proj_clip is not None:
        kept = np.abs(run.saved.h.real) < cell.proj_clip
    u = np.empty((B, H), dtype)
    gates = dz.reshape(t, B, 4, H).transpose(0, 2, 1, 3)
    # Iterating over arrays makes the views of a step faster than indexing does.
    arrays = (*k, gates[:, :3], gates[:, 3], dz)
    for s, k_gates, k_o, k_d, k_next, di_dci_df, do, dz_s in zip(
        range(t - 1, -1, -1), *(a[::-1] for a in arrays), strict=True
    ):
        if h_grad is not None:
            np.add(dh, h_grad[s], dh)
        if cell.proj_clip is not None:
            np.multiply(dh, kept[s], dh)
        if w_p is not None:
            dh_steps[0][s] = dh
            dot(dh, w_p, dm)
        np.multiply(dm, k_o, do)
        np.multiply(dm, k_d, u)
        np.add(dcs, u, dcs)
        if cs_grad is not None:
            np.add(dcs, cs_grad[s], dcs)
        np.multiply(dcs, k_gates, di_dci_df)
        np.multiply(dcs, k_next, dcs)
        if w_h is not None:
            dot(dz_s, w_h, dh)


def forward_step(cell: LSTM, x: Array, first: LSTMStates, saved: LSTMOutputs) -> None:
    """One step with its products, in as few calls as possible."""
    (w_x,), (w_h, *w_p) = cell.inputs, cell.recurrent
    (h_prev, cs_prev), (i, cs, f, o, ci, co, h) = first, saved
    H = cs_prev.shape[1]
    inner, shift, outer = gate_of(cell.gate, x.dtype)
    z = np.dot(x, w_x.w)
    z += np.dot(h_prev, w_h.w)
    z += cell.b
    zi, zci, zf, zo = (z[:, column * H : (column + 1) * H] for column in cell.columns)
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
        np.minimum(cs, cell.cell_clip, out=cs)
        np.maximum(cs, -cell.cell_clip, out=cs)
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
        np.dot(o * co, w_p[0].w, h)
        if cell.proj_clip is not None:
            np.minimum(h, cell.proj_clip, out=h)
            np.maximum(h, -cell.proj_clip, out=h)


@functools.lru_cache(maxsize=16)
def _ones(n: int, dtype: np.dtype[Any]) -> Array:
    """Return cached ones, not to be written to: a product with them is a sum."""
    return np.ones(n, dtype)


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
        dm = np.dot(dh, w_p.w.T)
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
            sums += terms[:, 0] if len(dcs) == 1 else np.matmul(_ones(len(dcs), dtype), terms)
    if gates is not by_gate:
        by_gate[...] = gates
    if w_h is not None:
        np.dot(dz, w_h.w.T, dh)
    if step.x is not None:
        np.dot(dz, cell.inputs[0].w.T, step.x)


def add_sums(cell: LSTM, run: BackwardRun, totals: Array) -> None:
    """Add the sums over time and batch of di*cs_prev, df*cs_prev and do*cs to totals[3, H]."""
    (t, B, H), before, after = run.saved.cs.shape, run.before.c, run.saved.cs
    di, _, df, do = (run.deltas[0].reshape(t, B, 4, H)[:, :, column] for column in cell.columns)
    ones, tmp = np.ones(t * B, totals.dtype), run.work(t, B, H)
    for total, dgate, cs in zip(totals, (di, df, do), (before, before, after), strict=True):
        np.multiply(dgate, cs, tmp)
        # Matmul sums several times more accurately than einsum.
        total += np.dot(ones, tmp.reshape(t * B, H))


def prepared_step(cell: LSTM) -> Callable[..., tuple[Array, Array]]:
    """Return a function of x, h_prev and cs_prev that computes h and cs, for real numbers."""
    i, ci, f, o = cell.columns
    (w_x,), (w_h, *projection) = cell.inputs, cell.recurrent
    x_matrix, h_matrix, b = (with_negated(a, (i, f, o, ci), 3) for a in (w_x.w, w_h.w, cell.b))
    w_p = [np.ascontiguousarray(weight.w) for weight in projection]
    H, sigmoid = len(b) // 4, sigmoid_of(cell.gate, b.dtype)

    def step(x: Array, h_prev: Array, cs_prev: Array) -> tuple[Array, Array]:
        z = np.dot(x, x_matrix)
        z += np.dot(h_prev, h_matrix)
        z += b
        gates, ci = sigmoid(z[:, : 3 * H]), np.tanh(z[:, 3 * H :])
        cs = gates[:, H : 2 * H] * cs_prev
        ci *= gates[:, :H]
        cs += ci  # cs = i*ci + f*cs_prev
        h = np.tanh(cs)
        h *= gates[:, 2 * H :]  # h = o*tanh(cs)
        return (np.dot(h, w_p[0]) if w_p else h), cs

    return step
