"""
The LSTM with layer normalization of Ba, Kiros and Hinton, 2016, section 3.1.

norm(a) = (a - mean(a)) * r(a) over the columns of a row, with r(a) = 1/sqrt(var(a) + 1e-5).

Forward::

    a  = norm(x @ w_x)*g_x + norm(h_prev @ w_h)*g_h + b
    i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o)
    cz = tanh(a_c)
    c  = f*c_prev + i*cz
    u  = tanh(norm(c)*g_c + b_c)
    h  = o*u

Backward, with dh and dc the gradients of the states, later steps included, and
back(d, n, r) = r*(d - mean(d) - n*mean(d*n)) the gradient through n = norm(a)::

    du   = dh * o*(1-u²)
    dc  += back(du*g_c, norm(c), r(c))
    da_i, da_f = dc * cz*i*(1-i), dc * c_prev*f*(1-f)
    da_c, da_o = dc * i*(1-cz²), dh * u*o*(1-o)
    dx   = back(da*g_x, norm(x @ w_x), r(x @ w_x))
    dr   = back(da*g_h, norm(h_prev @ w_h), r(h_prev @ w_h))
    dc   = dc * f
    dh   = dr @ w_h.T
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..._typing import NamedTuple
from ...arithmetic.dual import arithmetic_of
from ..contract import BackwardRun, Form, ForwardRun, Gradients, Weight

EPSILON = 1e-5


class LayerNormLSTMStates(NamedTuple):
    """The states, or their gradients."""

    h: Any
    c: Any


class LayerNormLSTMOutputs(NamedTuple):
    """The results of a sequence of steps, [t, B, ·] each."""

    i: Any
    f: Any
    cz: Any
    o: Any
    c: Any
    xn: Any  # norm(x @ w_x)
    hn: Any  # norm(h_prev @ w_h)
    cn: Any  # norm(c)
    r: Any  # of these three
    h: Any

    @staticmethod
    def columns(H: int, P: int) -> list[int]:
        """Return the width of each."""
        return [H] * 5 + [4 * H, 4 * H, H, 3, P]


class LayerNormLSTM(NamedTuple):
    """The weights. The deltas are dx, dr, da and du."""

    inputs: tuple[Weight, ...]  # w_x [K, 4*H], columns i, f, cz, o
    recurrent: tuple[Weight, ...]  # w_h [H, 4*H]
    widths: tuple[int, ...]
    b: Any  # [4*H]
    b_c: Any  # [H]
    g_x: Any  # [4*H], as the next
    g_h: Any
    g_c: Any  # [H]

    @property
    def Saved(self) -> type[LayerNormLSTMOutputs]:
        """The NamedTuple of the results of a step."""
        return LayerNormLSTMOutputs

    def states(self, saved: LayerNormLSTMOutputs) -> LayerNormLSTMStates:
        """h and c."""
        return LayerNormLSTMStates(saved.h, saved.c)

    def terms(
        self, saved: LayerNormLSTMOutputs, before: LayerNormLSTMStates, deltas: list[Any]
    ) -> list[Any]:
        """da*xn, da*hn and du*cn."""
        _, _, da, du = deltas
        return [da * saved.xn, da * saved.hn, du * saved.cn]

    def forward_steps(self, run: ForwardRun) -> None:
        """The recurrence over t steps."""
        (z,), (w_h,), (h, c) = run.xw, run.w, run.carried
        xn, r_x = _norm(z)  # for all steps at once
        zh, dot = np.empty(z.shape[1:], z.dtype), arithmetic_of(z.dtype).dot
        for s in range(len(z)):
            dot(h, w_h, zh)
            hn, r_h = _norm(zh)
            a_i, a_f, a_c, a_o = np.split(xn[s] * self.g_x + hn * self.g_h + self.b, 4, axis=1)
            i, f, cz, o = _sigmoid(a_i), _sigmoid(a_f), np.tanh(a_c), _sigmoid(a_o)
            c = f * c + i * cz
            cn, r_c = _norm(c)
            h = o * np.tanh(cn * self.g_c + self.b_c)
            r = np.concatenate([r_x[s], r_h, r_c], 1)
            for to, value in zip(run.saved, (i, f, cz, o, c, xn[s], hn, cn, r, h), strict=True):
                to[s] = value
        run.carried.h[...], run.carried.c[...] = h, c

    def backward_steps(self, run: BackwardRun) -> None:
        """The recurrence over t steps, backwards."""
        (dx, dr, da, du), (w_h,), (dh, dc) = run.deltas, run.w, run.carried
        dot = arithmetic_of(dx.dtype).dot
        for s in range(len(dx) - 1, -1, -1):
            for state, grad in zip(run.carried, run.cotangents, strict=True):
                if grad is not None:
                    np.add(state, grad[s], state)
            i, f, cz, o, _, xn, hn, cn, r, _ = (a[s] for a in run.saved)
            r_x, r_h, r_c = np.split(r, 3, axis=1)
            u = np.tanh(cn * self.g_c + self.b_c)
            du[s] = dh * o * (1 - u * u)
            dc += _back(du[s] * self.g_c, cn, r_c)
            da_i, da_f, da_c, da_o = np.split(da[s], 4, axis=1)
            da_i[...] = dc * cz * i * (1 - i)
            da_f[...] = dc * run.before.c[s] * f * (1 - f)
            da_c[...] = dc * i * (1 - cz * cz)
            da_o[...] = dh * u * o * (1 - o)
            dx[s] = _back(da[s] * self.g_x, xn, r_x)
            dr[s] = _back(da[s] * self.g_h, hn, r_h)
            dc *= f
            dot(dr[s], w_h, dh)

    def add_sums(self, run: BackwardRun, totals: Any) -> None:
        """Add the sums over time and batch of da*xn, da*hn and du*cn to totals[9*H]."""
        (_, _, da, du), saved, H = run.deltas, run.saved, len(totals) // 9
        parts = np.split(totals, [4 * H, 8 * H])
        for total, d, n in zip(parts, (da, da, du), (saved.xn, saved.hn, saved.cn), strict=True):
            total += (d * n).sum((0, 1))


def _mean(a: Any) -> Any:
    return a.sum(-1, keepdims=True) / a.shape[-1]


def _norm(a: Any) -> tuple[Any, Any]:
    """Return norm(a) and r(a)."""
    centered = a - _mean(a)
    r = 1 / np.sqrt(_mean(centered * centered) + EPSILON)
    return centered * r, r


def _back(d: Any, n: Any, r: Any) -> Any:
    grad: Any = r * (d - _mean(d) - n * _mean(d * n))
    return grad


def _sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


class LayerNormLSTMForm(Form):
    """The form of the weights, for `stacked_rnn`."""

    name, States, Saved = (
        "an LSTM with layer normalization",
        LayerNormLSTMStates,
        LayerNormLSTMOutputs,
    )
    shapes: ClassVar = {
        **{"w": "K+H, 4*H", "b": "4*H", "b_c": "H"},
        **{"g_x": "4*H", "g_h": "4*H", "g_c": "H"},
    }

    def cell(self, xp: Any, weights: Any, attributes: None) -> LayerNormLSTM:
        """Return the cell."""
        w, *vectors = weights
        H = w.shape[1] // 4
        K = len(w) - H
        inputs, recurrent = (Weight(w[:K], 4 * H),), (Weight(w[K:], 4 * H, delta=1),)
        return LayerNormLSTM(inputs, recurrent, (4 * H, 4 * H, 4 * H, H), *vectors)

    def gradients(self, xp: Any, grads: Any) -> Gradients:
        """Return views of w, b and b_c, and memory for the others."""
        w, b, b_c, *_ = grads
        *axes, H = b_c.shape
        K, unused = w.shape[-2] - H, xp.zeros((*axes, 4 * H), w.dtype)  # the sums of dx and dr
        vectors = xp.zeros((*axes, 9 * H), w.dtype)
        parts = w[..., :K, :], w[..., K:, :]
        return Gradients(None, parts, (unused, unused, b, b_c), vectors)

    def finished(self, grads: Any, written: Gradients) -> Any:
        """Return the gradients with the gradients of g_x, g_h and g_c."""
        H, v = grads.b_c.shape[-1], written.vectors
        g_x, g_h, g_c = v[..., : 4 * H], v[..., 4 * H : 8 * H], v[..., 8 * H :]
        return grads._replace(g_x=g_x, g_h=g_h, g_c=g_c)


_FORM = LayerNormLSTMForm()


class LayerNormLSTMParams(NamedTuple):
    """
    The weights of an LSTM with layer normalization (Ba, Kiros and Hinton, 2016), for `stacked_rnn`.

    ::

        a  = norm(x @ w_x)*g_x + norm(h_prev @ w_h)*g_h + b
        i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o)
        c  = f*c_prev + i*tanh(a_c)
        h  = o*tanh(norm(c)*g_c + b_c)

    norm(a) is (a - mean(a)) / sqrt(var(a) + 1e-5) over a row. Steps in NumPy only: CuPy arrays are
    refused.

    Attributes
    ----------
    w : [K+H, 4*H]
        The matrices: rows for x above rows for h, columns i, f, c, o.
    b, b_c : [4*H], [H]
        The biases of the gates and of the normalized c.
    g_x, g_h, g_c : [4*H], [4*H], [H]
        The scales, which begin as ones.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> w, b = cupyrnn.init_block_lstm(num_units=3, input_size=2, gate_order="ifco")
    >>> ones = [np.ones(n, w.dtype) for n in (12, 12, 3)]
    >>> weights = cupyrnn.cells.LayerNormLSTMParams(w, b, np.zeros(3, w.dtype), *ones)
    >>> cupyrnn.stacked_rnn(np.ones((4, 1, 2), w.dtype), weights=[weights]).output.shape
    (4, 1, 3)
    """

    w: Any
    b: Any
    b_c: Any
    g_x: Any
    g_h: Any
    g_c: Any

    @property
    def form(self) -> Form:
        """Makes a cell of the weights."""
        return _FORM
