"""
The sLSTM of Beck et al., "xLSTM: Extended Long Short-Term Memory", 2024, with one head.

Its input and forget gates are exponentials. m prevents overflow: c and n are the paper's
c and n times exp(-m).

Forward::

    p  = zf + m_prev                      z = x @ w_x + h_prev @ w_h + b
    m  = max(zi, p)
    i  = exp(zi - m)
    f  = exp(p - m)
    cz = tanh(zc)
    o  = sigmoid(zo)
    c  = f*c_prev + i*cz
    n  = f*n_prev + i
    h  = o*c/n

Backward, with dh, dc, dn and dm the gradients of the states, later steps included::

    do  = dh * c/n*o*(1-o)
    dc += dh * o/n
    dn -= dh * o*c/n²
    dcz = dc * i*(1-cz²)
    di  = (dc*cz + dn) * i
    df  = (dc*c_prev + dn*n_prev) * f
    dm -= di + df
    di += dm where zi > p
    df += dm elsewhere
    dc, dn, dm = dc*f, dn*f, df
    dh  = [di, df, dcz, do] @ w_h.T
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from cupyrnn.cells import BackwardRun, Form, ForwardRun, Gradients, Weight, arithmetic_of


class SLSTMStates(NamedTuple):
    """The states, or their gradients."""

    h: Any
    c: Any
    n: Any
    m: Any


class SLSTMOutputs(NamedTuple):
    """The results of a sequence of steps, [t, B, H] each."""

    i: Any
    f: Any
    cz: Any
    o: Any
    c: Any
    n: Any
    m: Any
    h: Any


class SLSTM(NamedTuple):
    """The weights, in the dtype of the computation except for the matrices."""

    inputs: tuple[Weight, ...]  # w_x [K, 4*H], columns i, f, cz, o
    recurrent: tuple[Weight, ...]  # w_h [H, 4*H]
    widths: tuple[int, ...]
    b: Any  # [4*H]

    Saved = SLSTMOutputs

    def states(self, saved: SLSTMOutputs) -> SLSTMStates:
        """All four."""
        return SLSTMStates(saved.h, saved.c, saved.n, saved.m)

    def forward_steps(self, run: ForwardRun) -> None:
        """The recurrence over t steps."""
        (z,), (w_h,), (h_prev, c_prev, n_prev, m_prev) = run.xw, run.w, run.carried
        np.add(z, self.b, z)
        zh, dot = np.empty(z.shape[1:], z.dtype), arithmetic_of(z.dtype).dot
        for z_t, i, f, cz, o, c, n, m, h in zip(z, *run.saved, strict=True):
            dot(h_prev, w_h, zh)
            zi, zf, zc, zo = np.split(z_t + zh, 4, axis=1)
            p = zf + m_prev
            m[...] = np.where(zi.real > p.real, zi, p)
            np.exp(zi - m, i)
            np.exp(p - m, f)
            np.tanh(zc, cz)
            o[...] = 1 / (1 + np.exp(-zo))
            c[...] = f * c_prev + i * cz
            n[...] = f * n_prev + i
            h[...] = o * c / n
            h_prev, c_prev, n_prev, m_prev = h, c, n, m
        for state, last in zip(run.carried, (h_prev, c_prev, n_prev, m_prev), strict=True):
            state[...] = last

    def backward_steps(self, run: BackwardRun) -> None:
        """The recurrence over t steps, backwards."""
        (dz,), (w_h,), (dh, dc, dn, dm) = run.deltas, run.w, run.carried
        _, c_before, n_before, _ = run.before
        dot = arithmetic_of(dz.dtype).dot
        for s in range(len(dz) - 1, -1, -1):
            for state, grad in zip(run.carried, run.cotangents, strict=True):
                if grad is not None:
                    np.add(state, grad[s], state)
            i, f, cz, o, c, n, _, _ = (a[s] for a in run.saved)
            di, df, dcz, do = np.split(dz[s], 4, axis=1)
            do[...] = dh * c / n * o * (1 - o)
            dc += dh * o / n
            dn -= dh * o * c / (n * n)
            dcz[...] = dc * i * (1 - cz * cz)
            di[...] = (dc * cz + dn) * i
            df[...] = (dc * c_before[s] + dn * n_before[s]) * f
            dm -= di + df
            larger = f.real < 1  # zi > p
            di += np.where(larger, dm, 0)
            df += np.where(larger, 0, dm)
            dc *= f
            dn *= f
            dm[...] = df
            dot(dz[s], w_h, dh)


class SLSTMForm(Form):
    """The form of the weights, for `stacked_rnn`."""

    name, States, Saved = "an sLSTM", SLSTMStates, SLSTMOutputs
    shapes: ClassVar = {"w": "K+H, 4*H", "b": "4*H"}

    def cell(self, xp: Any, weights: Any, attributes: None) -> SLSTM:
        """Return the cell."""
        (w, b), H = weights, weights.w.shape[1] // 4
        K = len(w) - H
        return SLSTM((Weight(w[:K], 4 * H),), (Weight(w[K:], 4 * H),), (4 * H,), b)

    def gradients(self, xp: Any, grads: Any) -> Gradients:
        """Return views of both."""
        (w, b), K = grads, grads.w.shape[-2] - grads.w.shape[-1] // 4
        return Gradients(None, (w[..., :K, :], w[..., K:, :]), (b,))


_FORM = SLSTMForm()


class SLSTMParams(NamedTuple):
    """The weights of an sLSTM: w [K+H, 4*H], rows for x above rows for h, and b [4*H]."""

    w: Any
    b: Any

    @property
    def form(self) -> Form:
        """Makes a cell of the weights."""
        return _FORM
