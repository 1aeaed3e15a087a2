"""
The minimal gated unit of Zhou et al., "Minimal Gated Unit for Recurrent Neural Networks", 2016.

Forward::

    f  = sigmoid(zf)                      zf = [x, h_prev] @ w_f + b_f
    c  = tanh(zc)                         zc = [x, f*h_prev] @ w_c + b_c
    h  = (1-f)*h_prev + f*c

Backward, with dh the gradient of h, later steps included, and w_fh, w_ch the rows of w_f
and w_c for h::

    dzc = dh * f*(1-c²)
    dfh = dzc @ w_ch.T
    dzf = (dh*(c-h_prev) + dfh*h_prev) * f*(1-f)
    dh  = dh*(1-f) + dfh*f + dzf @ w_fh.T
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from cupyrnn.cells import BackwardRun, Form, ForwardRun, Gradients, States, Weight, arithmetic_of


class Saved(NamedTuple):
    """The results of each step, [·, H]."""

    f: Any
    c: Any
    h: Any


class MGU(NamedTuple):
    """The weights of a call. The deltas are dzf and dzc."""

    inputs: tuple[Weight, ...]  # the rows of x
    recurrent: tuple[Weight, ...]  # the rows of h
    widths: tuple[int, ...]
    b_f: Any
    b_c: Any

    Saved = Saved

    def states(self, saved: Saved) -> States:
        """h."""
        return States(saved.h)

    def operands(self, saved: Saved, h_before: Any) -> list[Any]:
        """The factors of the two recurrent matrices."""
        return [h_before, saved.f * h_before]

    def forward_steps(self, run: ForwardRun) -> None:
        """The recurrence over t steps."""
        (zf, zc), (w_f, w_c), (h,) = run.xw, run.w, run.carried
        dot, product = arithmetic_of(h.dtype).dot, np.empty_like(h)
        for t in range(len(zf)):
            dot(h, w_f, product)
            f = 0.5 + 0.5 * np.tanh(0.5 * (zf[t] + product + self.b_f))
            dot(f * h, w_c, product)
            c = np.tanh(zc[t] + product + self.b_c)
            h[...] = (1 - f) * h + f * c
            run.saved.f[t], run.saved.c[t], run.saved.h[t] = f, c, h

    def backward_steps(self, run: BackwardRun) -> None:
        """The recurrence over t steps, backwards."""
        (dzf, dzc), (w_f, w_c), (dh,) = run.deltas, run.w, run.carried
        dot, dfh, product = arithmetic_of(dh.dtype).dot, np.empty_like(dh), np.empty_like(dh)
        for t in reversed(range(len(dzf))):
            if run.cotangents.h is not None:
                dh += run.cotangents.h[t]
            f, c, h_prev = run.saved.f[t], run.saved.c[t], run.before.h[t]
            dzc[t] = dh * f * (1 - c * c)
            dot(dzc[t], w_c, dfh)
            dzf[t] = (dh * (c - h_prev) + dfh * h_prev) * f * (1 - f)
            dot(dzf[t], w_f, product)
            dh[...] = dh * (1 - f) + dfh * f + product


class MGUForm(Form):
    """The form of the weights, for `stacked_rnn`."""

    name, States, Saved = "an MGU", States, Saved
    shapes: ClassVar = {"w_f": "K+H, H", "w_c": "K+H, H", "b_f": "H", "b_c": "H"}

    def cell(self, xp: Any, weights: Any, attributes: None) -> MGU:
        """Return the cell."""
        w_f, w_c, b_f, b_c = weights
        H = w_c.shape[1]
        inputs = Weight(w_f[:-H], H), Weight(w_c[:-H], H, delta=1)
        recurrent = Weight(w_f[-H:], H), Weight(w_c[-H:], H, delta=1)
        return MGU(inputs, recurrent, (H, H), b_f, b_c)

    def gradients(self, xp: Any, grads: Any) -> Gradients:
        """Return views of all four; they may have a leading axis."""
        w_f, w_c, *biases = grads
        K = w_c.shape[-2] - w_c.shape[-1]
        inputs, recurrent = (w_f[..., :K, :], w_c[..., :K, :]), (w_f[..., K:, :], w_c[..., K:, :])
        return Gradients(None, (*inputs, *recurrent), biases)


FORM = MGUForm()


class MGUParams(NamedTuple):
    """The weights: w_f, w_c [K+H, H], rows for x above rows for h, and b_f, b_c [H]."""

    w_f: Any
    w_c: Any
    b_f: Any
    b_c: Any

    @property
    def form(self) -> Form:
        """Makes a cell of the weights."""
        return FORM
