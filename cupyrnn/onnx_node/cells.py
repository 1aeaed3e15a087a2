"""
Nodes that no op computes as cells of the contract, over NumPy and CuPy, in the standard's names.

LSTM::

    i = f(Xt @ Wi.T + Ht-1 @ Ri.T + Pi*Ct-1 + Wbi + Rbi)
    f = f(Xt @ Wf.T + Ht-1 @ Rf.T + Pf*Ct-1 + Wbf + Rbf), or 1 - i with input_forget
    c = g(Xt @ Wc.T + Ht-1 @ Rc.T + Wbc + Rbc)
    C = f*Ct-1 + i*c
    o = f(Xt @ Wo.T + Ht-1 @ Ro.T + Po*C + Wbo + Rbo)
    H = o*h(C)

GRU::

    z = f(Xt @ Wz.T + Ht-1 @ Rz.T + Wbz + Rbz)
    r = f(Xt @ Wr.T + Ht-1 @ Rr.T + Wbr + Rbr)
    h = g(Xt @ Wh.T + (r*Ht-1) @ Rh.T + Rbh + Wbh)      with linear_before_reset = 0
    h = g(Xt @ Wh.T + r*(Ht-1 @ Rh.T + Rbh) + Wbh)      with linear_before_reset = 1
    H = (1 - z)*h + z*Ht-1

RNN::

    H = f(Xt @ Wi.T + Ht-1 @ Ri.T + Wbi + Rbi)

`clip` bounds the argument of each activation; C itself is not clipped. A step saves these arguments
for its gradient. Below, q of a GRU is what R_h multiplies, or with linear_before_reset that product
and its bias.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array, Arrays
from ..arithmetic.dual import arithmetic_of
from ..cells.contract import BackwardRun, Form, ForwardRun, Gradients, States, Weight
from ..cells.lstm import LSTMStates
from ..driver.pages import products_of
from ..weights.activations import Activation
from .activations import activate
from .attributes import GATES, NodeAttributes


class NodeWeights(NamedTuple):
    """The weights of one direction. The gates are stacked, in ONNX's order."""

    W: Any  # [G*H, I]
    R: Any  # [G*H, H]
    B: Any  # [2*G*H]
    P: Any  # [3*H]: i, o, f; None for zeros


class NodeCell(NamedTuple):
    """One direction of a node. Its deltas are one array."""

    xp: ModuleType
    form: NodeForm
    activations: tuple[Activation, ...]
    inputs: tuple[Weight, ...]
    recurrent: tuple[Weight, ...]  # the rows of z and r, and those of h, in a GRU
    widths: tuple[int, ...]
    bias: Array  # [G*H]
    q_bias: Array | None  # [H], with linear_before_reset
    P: Any  # [3, H], or zeros
    Saved: Any

    def states(self, saved: Any) -> Any:
        """The saved arrays that are states."""
        return self.form.States(*(getattr(saved, name) for name in self.form.States._fields))

    @property
    def operands(self) -> Callable[[Any, Array], list[Array]] | None:
        """A function that returns the left factors of the parts of R; None if all are Ht-1."""
        is_product = self.Saved is GRUSaved and self.q_bias is None
        return (lambda saved, h_before: [h_before, saved.q]) if is_product else None

    def activate(self, n: int, z: Array) -> tuple[Array, Array]:
        """Return the value and the slope of the n-th of f, g, h at z."""
        return activate(self.xp, self.activations[n], self.form.clip, z)

    def product(self, a: Array, w: Any, columns: int) -> Array:
        """Return a @ w."""
        out: Array = self.xp.empty((len(a), columns), a.dtype)
        dot = arithmetic_of(a.dtype).dot if self.xp is np else products_of(self.xp).matmul
        dot(a, w, out)
        return out


# On a device the functions of this file compute, too.
NodeCell.kernels = __name__  # type: ignore[attr-defined]


class NodeForm(Form):
    """The form of the weights of a node."""

    name, together = "an ONNX node", ("P",)

    def __init__(self, op_type: str, attributes: NodeAttributes) -> None:
        G, (self.States, self.Saved, self.step, self.back) = GATES[op_type], _EQUATIONS[op_type]
        self.shapes = {"W": f"{G}*H, K", "R": f"{G}*H, H", "B": f"{2 * G}*H", "P": "3*H"}
        self.of_directions, self.clip = attributes.activations, attributes.clip
        self.input_forget, self.q_apart = attributes.input_forget, attributes.linear_before_reset

    def _parts(self, R: Any) -> list[tuple[slice, slice]]:
        """Return the rows of each part of R, and the columns of its deltas."""
        GH, H = R.shape
        if self.Saved is not GRUSaved:
            return [(slice(0, GH), slice(0, GH))]
        width = GH + H * self.q_apart
        return [(slice(0, 2 * H), slice(0, 2 * H)), (slice(2 * H, GH), slice(width - H, width))]

    def cell(self, xp: ModuleType, weights: Any, attributes: None) -> NodeCell:
        """Return the cell."""
        W, R, B, P = weights
        (GH, H), parts, q_bias = R.shape, self._parts(R), None
        bias = B[:GH] + B[GH:]
        if self.q_apart:
            bias[2 * H :], q_bias = B[2 * H : GH], B[GH + 2 * H :]
        return NodeCell(
            xp, self, self.of_directions[weights.d], (Weight(W.T, GH, 0, slice(GH)),),
            tuple(Weight(R[rows].T, len(R[rows]), 0, columns) for rows, columns in parts),
            (parts[-1][1].stop,), bias, q_bias, (0, 0, 0) if P is None else P.reshape(3, H),
            self.Saved,
        )  # fmt: skip

    def gradients(self, xp: ModuleType, grads: NodeWeights) -> Gradients:
        """Return views of all but the second half of B."""
        parts = self._parts(grads.R)
        matrices = (grads.W.T, *(grads.R[rows].T for rows, _ in parts))
        return Gradients(None, matrices, (grads.B[: parts[-1][1].stop],), grads.P)

    def finished(self, grads: NodeWeights, written: Gradients) -> NodeWeights:
        """Return the gradients, with the second half of B: the same sums, except for q."""
        B, (GH, H) = grads.B, grads.R.shape
        same = 2 * H if self.q_apart else GH
        B[GH + same :] = B[GH : 2 * GH - same]
        B[GH : GH + same] = B[:same]
        return grads


@functools.lru_cache(maxsize=64)
def kinds(op_type: str, attributes: NodeAttributes) -> list[Any]:
    """Return the class of the weights of each direction, which says the node and the direction."""
    of_class = {"form": NodeForm(op_type, attributes), "__module__": __name__}
    return [type("NodeWeights", (NodeWeights,), of_class | {"d": d}) for d in range(attributes.D)]


def _by_step(arrays: Sequence[Any], batches: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return the rows of each step of several arrays, [t, B, ·] or [n, ·]; None stays None."""
    ends = [*zip(batches, accumulate(batches), strict=True)]
    by_array = (
        [None] * len(ends) if a is None
        else a if a.ndim == 3
        else [a[end - n : end] for n, end in ends]
        for a in arrays
    )  # fmt: skip
    return [*zip(*by_array, strict=True)]


def forward_steps(cell: NodeCell, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    steps = _by_step((*run.xw, *run.saved), run.batches)
    for n, (xw, *saved) in zip(run.batches, steps, strict=True):
        states = [state[:n] for state in run.carried]
        xw += cell.bias
        done = cell.form.step(cell, run.w, xw, states)
        for a, value in zip((*saved, *states), (*done, *cell.states(done)), strict=True):
            a[...] = value


def backward_steps(cell: NodeCell, run: BackwardRun) -> None:
    """The recurrence over t steps, backward."""
    steps = _by_step((*run.deltas, *run.saved, *run.before, *run.cotangents), run.batches)
    for n, (deltas, *of_step) in zip(run.batches[::-1], steps[::-1], strict=True):
        gradients = [a[:n] for a in run.carried]
        for a, gradient in zip(gradients, of_step[-len(gradients) :], strict=True):
            if gradient is not None:
                a += gradient
        done = cell.form.back(cell, run.w, of_step, gradients, deltas)
        for a, gradient in zip(gradients, done, strict=True):
            a[...] = gradient


def add_sums(cell: NodeCell, run: BackwardRun, totals: Array) -> None:
    """Add the sums over time and batch of the gradients of Pi, Po and Pf to totals[3*H]."""
    d_i, d_o, d_f, _ = _gates(run.deltas[0], 4)
    terms = d_i * run.before.c, d_o * run.saved.c, d_f * run.before.c
    totals += cell.xp.concatenate([a.sum(axis=tuple(range(a.ndim - 1))) for a in terms])


def _gates(a: Array, G: int) -> list[Any]:
    """Return the columns of each gate."""
    H = a.shape[-1] // G
    return [a[..., n * H : (n + 1) * H] for n in range(G)]


# The equations of a step: a function of X @ W.T with the biases, which it may overwrite, and of the
# states before. Its gradient reads what was saved and the states before (`of`), writes the deltas,
# and returns the gradients of the states before.


class LSTMSaved(NamedTuple):
    """The results of a step of an LSTM."""

    z: Any  # [·, 4*H]: i, o, f and c before their activations
    c: Any  # C
    h: Any

    @staticmethod
    def columns(H: int, P: int) -> list[int]:
        """Return the width of each."""
        return [4 * H, H, P]


def _gates_of_lstm(cell: NodeCell, z: Array) -> Arrays:
    """Return the values and the slopes of i, f and c."""
    z_i, _, z_f, z_c = _gates(z, 4)
    (i, i_slope), c = cell.activate(0, z_i), cell.activate(1, z_c)
    f = (1 - i, 0 * i) if cell.form.input_forget else cell.activate(0, z_f)
    return i, i_slope, *f, *c


def _lstm(cell: NodeCell, w: Any, z: Array, states: Arrays) -> LSTMSaved:
    h_prev, C_prev = states
    z += cell.product(h_prev, w[0], z.shape[1])
    z_i, z_o, z_f, _ = _gates(z, 4)
    p_i, p_o, p_f = cell.P
    z_i += p_i * C_prev
    z_f += p_f * C_prev
    i, _, f, _, c, _ = _gates_of_lstm(cell, z)
    C = f * C_prev + i * c
    z_o += p_o * C
    return LSTMSaved(z, C, cell.activate(0, z_o)[0] * cell.activate(2, C)[0])


def _lstm_back(cell: NodeCell, w: Any, of: Any, gradients: Arrays, deltas: Array) -> Arrays:
    (z, C, _, _, C_prev, *_), (dh, dC), (p_i, p_o, p_f) = of, gradients, cell.P
    i, i_slope, f, f_slope, c, c_slope = _gates_of_lstm(cell, z)
    (o, o_slope), (k, k_slope) = cell.activate(0, _gates(z, 4)[1]), cell.activate(2, C)
    d_i, d_o, d_f, d_c = _gates(deltas, 4)
    d_o[...] = dh * k * o_slope
    dC = dC + dh * o * k_slope + d_o * p_o
    d_i[...] = dC * (c - C_prev if cell.form.input_forget else c) * i_slope
    d_f[...] = dC * C_prev * f_slope
    d_c[...] = dC * i * c_slope
    return cell.product(deltas, w[0], dh.shape[1]), dC * f + d_i * p_i + d_f * p_f


class GRUSaved(NamedTuple):
    """The results of a step of a GRU."""

    z: Any  # [·, 3*H]: z, r and h before their activations
    q: Any
    h: Any

    @staticmethod
    def columns(H: int, P: int) -> list[int]:
        """Return the width of each."""
        return [3 * H, H, P]


def _gru(cell: NodeCell, w: Any, a: Array, states: Arrays) -> GRUSaved:
    (h_prev,) = states
    a_z, a_r, a_h = _gates(a, 3)
    H = h_prev.shape[1]
    a[:, : 2 * H] += cell.product(h_prev, w[0], 2 * H)
    z, r = cell.activate(0, a_z)[0], cell.activate(0, a_r)[0]
    if cell.q_bias is None:
        q = r * h_prev
        a_h += cell.product(q, w[1], H)
    else:
        q = cell.product(h_prev, w[1], H) + cell.q_bias
        a_h += r * q
    return GRUSaved(a, q, (1 - z) * cell.activate(1, a_h)[0] + z * h_prev)


def _gru_back(cell: NodeCell, w: Any, of: Any, gradients: Arrays, deltas: Array) -> Arrays:
    (a, q, _, h_prev, _), (dH,) = of, gradients
    (z, z_slope), (r, r_slope), (h, h_slope) = map(cell.activate, (0, 0, 1), _gates(a, 3))
    H = dH.shape[1]
    d_z, d_r, d_h, d_q = (deltas[:, n * H : (n + 1) * H] for n in range(4))
    d_z[...] = dH * (h_prev - h) * z_slope
    d_h[...] = dH * (1 - z) * h_slope
    if cell.q_bias is None:
        through = cell.product(d_h, w[1], H)
        d_r[...] = through * h_prev * r_slope
        through *= r
    else:
        d_r[...], d_q[...] = d_h * q * r_slope, d_h * r
        through = cell.product(d_q, w[1], H)
    return (dH * z + through + cell.product(deltas[:, : 2 * H], w[0], H),)


class RNNSaved(NamedTuple):
    """The results of a step of an RNN."""

    z: Any  # h before its activation
    h: Any


def _rnn(cell: NodeCell, w: Any, z: Array, states: Arrays) -> RNNSaved:
    z += cell.product(states[0], w[0], z.shape[1])
    return RNNSaved(z, cell.activate(0, z)[0])


def _rnn_back(cell: NodeCell, w: Any, of: Any, gradients: Arrays, deltas: Array) -> Arrays:
    deltas[...] = gradients[0] * cell.activate(0, of[0])[1]
    return (cell.product(deltas, w[0], deltas.shape[1]),)


_EQUATIONS: dict[str, Any] = {
    "LSTM": (LSTMStates, LSTMSaved, _lstm, _lstm_back),
    "GRU": (States, GRUSaved, _gru, _gru_back),
    "RNN": (States, RNNSaved, _rnn, _rnn_back),
}
