"""
The multiplicative LSTM of Krause, Lu, Murray and Renals, 2016, arXiv:1609.07959.

Forward::

    m  = xm*hm                            xm = x @ w_mx, hm = h_prev @ w_mh
    a  = x @ w_x + m @ w_h + b
    i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o)
    cz = tanh(a_c)
    c  = f*c_prev + i*cz
    h  = o*tanh(c)

Backward, with dh and dc the gradients of the states, later steps included::

    da_o = dh * tanh(c)*o*(1-o)
    dc  += dh * o*(1-tanh(c)²)
    da_i, da_f, da_c = dc * cz*i*(1-i), dc * c_prev*f*(1-f), dc * i*(1-cz²)
    dm   = da @ w_h.T
    dxm, dhm = dm*hm, dm*xm
    dc   = dc * f
    dh   = dhm @ w_mh.T
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..._typing import NamedTuple
from ...arithmetic.dual import arithmetic_of
from ..contract import BackwardRun, Form, ForwardRun, Gradients, Weight


class MultiplicativeLSTMStates(NamedTuple):
    """The states, or their gradients."""

    h: Any
    c: Any


class MultiplicativeLSTMOutputs(NamedTuple):
    """The results of a sequence of steps, [t, B, H] each."""

    i: Any
    f: Any
    cz: Any
    o: Any
    c: Any
    xm: Any
    hm: Any
    h: Any


class MultiplicativeLSTM(NamedTuple):
    """The weights. The deltas are dxm, dhm and da."""

    inputs: tuple[Weight, ...]  # w_mx [K, H], w_x [K, 4*H]
    recurrent: tuple[Weight, ...]  # w_mh [H, H], w_h [H, 4*H]
    widths: tuple[int, ...]
    b: Any  # [4*H], i, f, c, o

    @property
    def Saved(self) -> type[MultiplicativeLSTMOutputs]:
        """The NamedTuple of the results of a step."""
        return MultiplicativeLSTMOutputs

    def states(self, saved: MultiplicativeLSTMOutputs) -> MultiplicativeLSTMStates:
        """h and c."""
        return MultiplicativeLSTMStates(saved.h, saved.c)

    def operands(self, saved: MultiplicativeLSTMOutputs, h_before: Any) -> list[Any]:
        """The factors of the two recurrent matrices."""
        return [h_before, saved.xm * saved.hm]

    def forward_steps(self, run: ForwardRun) -> None:
        """The recurrence over t steps."""
        (xm, z), (w_mh, w_h), (h, c) = run.xw, run.w, run.carried
        dot = arithmetic_of(z.dtype).dot
        hm, zm = np.empty(xm.shape[1:], z.dtype), np.empty(z.shape[1:], z.dtype)
        for s in range(len(z)):
            dot(h, w_mh, hm)
            dot(xm[s] * hm, w_h, zm)
            a_i, a_f, a_c, a_o = np.split(z[s] + zm + self.b, 4, axis=1)
            i, f, cz, o = _sigmoid(a_i), _sigmoid(a_f), np.tanh(a_c), _sigmoid(a_o)
            c = f * c + i * cz
            h = o * np.tanh(c)
            for to, value in zip(run.saved, (i, f, cz, o, c, xm[s], hm, h), strict=True):
                to[s] = value
        run.carried.h[...], run.carried.c[...] = h, c

    def backward_steps(self, run: BackwardRun) -> None:
        """The recurrence over t steps, backwards."""
        (dxm, dhm, da), (w_mh, w_h), (dh, dc) = run.deltas, run.w, run.carried
        dot, dm = arithmetic_of(da.dtype).dot, np.empty_like(dh)
        for s in range(len(da) - 1, -1, -1):
            for state, grad in zip(run.carried, run.cotangents, strict=True):
                if grad is not None:
                    np.add(state, grad[s], state)
            i, f, cz, o, c, xm, hm, _ = (a[s] for a in run.saved)
            co = np.tanh(c)
            dc += dh * o * (1 - co * co)
            da_i, da_f, da_c, da_o = np.split(da[s], 4, axis=1)
            da_i[...] = dc * cz * i * (1 - i)
            da_f[...] = dc * run.before.c[s] * f * (1 - f)
            da_c[...] = dc * i * (1 - cz * cz)
            da_o[...] = dh * co * o * (1 - o)
            dot(da[s], w_h, dm)
            dxm[s], dhm[s] = dm * hm, dm * xm
            dc *= f
            dot(dhm[s], w_mh, dh)


def _sigmoid(z: Any) -> Any:
    return 0.5 + 0.5 * np.tanh(0.5 * z)


class MultiplicativeLSTMForm(Form):
    """The form of the weights, for `stacked_rnn`."""

    name, States = "a multiplicative LSTM", MultiplicativeLSTMStates
    Saved = MultiplicativeLSTMOutputs
    shapes: ClassVar = {"w": "K+H, 4*H", "w_m": "K+H, H", "b": "4*H"}

    def cell(self, xp: Any, weights: Any, attributes: None) -> MultiplicativeLSTM:
        """Return the cell."""
        w, w_m, b = weights
        H = w_m.shape[1]
        inputs = Weight(w_m[:-H], H), Weight(w[:-H], 4 * H, delta=2)
        recurrent = Weight(w_m[-H:], H, delta=1), Weight(w[-H:], 4 * H, delta=2)
        return MultiplicativeLSTM(inputs, recurrent, (H, H, 4 * H), b)

    def gradients(self, xp: Any, grads: Any) -> Gradients:
        """Return views of all three; they may have a leading axis."""
        w, w_m, b = grads
        K = w_m.shape[-2] - w_m.shape[-1]
        inputs, recurrent = (w_m[..., :K, :], w[..., :K, :]), (w_m[..., K:, :], w[..., K:, :])
        return Gradients(None, (*inputs, *recurrent), (None, None, b))


_FORM = MultiplicativeLSTMForm()


class MultiplicativeLSTMParams(NamedTuple):
    """
    The weights of a multiplicative LSTM (Krause et al., 2016), for `stacked_rnn`.

    ::

        m  = (x @ w_mx) * (h_prev @ w_mh)
        a  = x @ w_x + m @ w_h + b
        i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o)
        c  = f*c_prev + i*tanh(a_c)
        h  = o*tanh(c)

    Steps in NumPy only: CuPy arrays are refused.

    Attributes
    ----------
    w : [K+H, 4*H]
        The matrices of the gates: rows for x above rows for m, columns i, f, c, o.
    w_m : [K+H, H]
        The matrices of m: rows for x above rows for h.
    b : [4*H]
        The bias of the gates.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> w, b = cupyrnn.init_block_lstm(num_units=3, input_size=2, gate_order="ifco")
    >>> weights = cupyrnn.cells.MultiplicativeLSTMParams(w, w[:, :3].copy(), b)
    >>> cupyrnn.stacked_rnn(np.ones((4, 1, 2), w.dtype), weights=[weights]).output.shape
    (4, 1, 3)
    """

    w: Any
    w_m: Any
    b: Any

    @property
    def form(self) -> Form:
        """Makes a cell of the weights."""
        return _FORM
