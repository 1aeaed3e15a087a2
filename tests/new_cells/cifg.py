"""
The LSTM with coupled gates (CIFG) of Greff et al., "LSTM: A Search Space Odyssey", 2017.

Forward::

    f  = sigmoid(zf)                      z = [x, h_prev] @ w
    g  = tanh(zg)
    o  = sigmoid(zo)
    c  = f*c_prev + (1-f)*g
    h  = o*tanh(c)

Backward, with dh and dc the gradients of h and c, later steps included::

    dzo = dh * tanh(c)*o*(1-o)
    dc += dh * o*(1-tanh(c)²)
    dzf = dc * (c_prev-g)*f*(1-f)
    dzg = dc * (1-f)*(1-g²)
    dc  = dc * f
    dh  = dz @ w_h.T

There is no bias.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from cupyrnn.cells import BackwardRun, Form, ForwardRun, Gradients, Weight, arithmetic_of


class CIFGStates(NamedTuple):
    """The states, or their gradients."""

    h: Any
    c: Any


class CIFGOutputs(NamedTuple):
    """The results of each step, [·, H]."""

    f: Any
    g: Any
    o: Any
    c: Any
    h: Any


class CIFG(NamedTuple):
    """The weights of one call."""

    inputs: tuple[Weight, ...]
    recurrent: tuple[Weight, ...]
    widths: tuple[int, ...]

    Saved = CIFGOutputs
    compiled = "new_cells.compiled.cifg"  # a layer in vectors

    def states(self, saved: CIFGOutputs) -> CIFGStates:
        """h and c."""
        return CIFGStates(saved.h, saved.c)

    def forward_steps(self, run: ForwardRun) -> None:
        """The recurrence over t steps."""
        (zx,), (w,), (h, c) = run.xw, run.w, run.carried
        dot = arithmetic_of(h.dtype).dot
        for t, z in enumerate(zx):
            zh = np.empty_like(z)
            dot(h, w, zh)
            zf, zg, zo = np.split(z + zh, 3, axis=1)
            f, g, o = 0.5 + 0.5 * np.tanh(0.5 * zf), np.tanh(zg), 0.5 + 0.5 * np.tanh(0.5 * zo)
            c[...] = f * c + (1 - f) * g
            h[...] = o * np.tanh(c)
            for to, value in zip(run.saved, (f, g, o, c, h), strict=True):
                to[t] = value

    def backward_steps(self, run: BackwardRun) -> None:
        """The recurrence over t steps, backwards."""
        (dz,), (w,), (dh, dc) = run.deltas, run.w, run.carried
        dot = arithmetic_of(dh.dtype).dot
        for t in reversed(range(len(dz))):
            for state, grad in zip(run.carried, run.cotangents, strict=True):
                if grad is not None:
                    state += grad[t]
            f, g, o, c, _ = (a[t] for a in run.saved)
            dzf, dzg, dzo = np.split(dz[t], 3, axis=1)
            co = np.tanh(c)
            dzo[...] = dh * co * o * (1 - o)
            dc += dh * o * (1 - co * co)
            dzf[...] = dc * (run.before.c[t] - g) * f * (1 - f)
            dzg[...] = dc * (1 - f) * (1 - g * g)
            dc *= f
            dot(dz[t], w, dh)


class CIFGForm(Form):
    """The form of the weights, for `stacked_rnn`."""

    name, States, Saved = "a CIFG LSTM", CIFGStates, CIFGOutputs
    shapes: ClassVar = {"w": "K+H, 3*H"}

    def cell(self, xp: Any, weights: Any, attributes: None) -> CIFG:
        """Return the cell."""
        (w,) = weights
        H = w.shape[1] // 3
        return CIFG((Weight(w[:-H], 3 * H),), (Weight(w[-H:], 3 * H),), (3 * H,))

    def gradients(self, xp: Any, grads: Any) -> Gradients:
        """Return views of w; there is no bias."""
        (w,) = grads
        K = w.shape[-2] - w.shape[-1] // 3
        return Gradients(None, (w[..., :K, :], w[..., K:, :]), None)


FORM = CIFGForm()


class CIFGParams(NamedTuple):
    """The weights: w [K+H, 3*H], rows for x above rows for h, columns f, g, o."""

    w: Any

    @property
    def form(self) -> Form:
        """Makes a cell of the weights."""
        return FORM
