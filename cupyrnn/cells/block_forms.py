"""The forms of the block ops' weights [I+H, ·], and the checks of their attributes."""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np

from .._typing import NamedTuple
from ..arithmetic.dual import real_dtype
from ..arithmetic.gates import HardSigmoid, check_gate
from ..checks.arrays import cast, compute_dtype, contiguous, operand_dtype
from ..checks.attributes import check_choice, check_real, shown
from .contract import Attributes, Form, Gradients, States, Weight, each
from .gru import GRU, GRUOutputs
from .lstm import LSTM, LSTMOutputs, LSTMStates
from .packed import gate_places

GateOrder: TypeAlias = Literal["icfo", "ifco"]

# Which quarter of the columns of w, b and the gate gradients belongs to i, ci, f and o.
COLUMNS = {
    order: (*gate_places(order, "lstm", ("i", "ci", "f", "o")),) for order in get_args(GateOrder)
}
PEEPHOLES = ("wci", "wcf", "wco")

# TensorFlow's defaults of (forget_bias, cell_clip): BlockLSTM's and BlockLSTMV2's.
_DEFAULTS = {"icfo": (1.0, 3.0), "ifco": (0.0, 0.0)}


class LSTMAttributes(NamedTuple):
    """The attributes of an LSTM after their checks."""

    cell_clip: float | None
    gate_order: GateOrder
    gate: HardSigmoid | None
    forget_bias: float = 0.0
    proj_clip: float | None = None


class LSTMForm(Form):
    """
    The weights of `block_lstm`, with optional peepholes and an optional projection.

    In w the rows for x lie above the rows for h. With a projection h is (o*co) @ w_p.
    """

    name, States, Saved = "an LSTM", LSTMStates, LSTMOutputs
    shapes: ClassVar = {"w": "K+P, 4*H", "b": "4*H", **dict.fromkeys(PEEPHOLES, "H"), "w_p": "H, P"}
    together, apart, projection = PEEPHOLES, PEEPHOLES, "w_p"

    def attributes(
        self, op: str, attributes: Attributes, dtype: np.dtype[Any], *, forward: bool
    ) -> LSTMAttributes:
        """Check them all. Backward, cell_clip None means no clip, and forget_bias is ignored."""
        bias, clip, order, activation, proj_clip = attributes
        check_choice(op, "gate_order", order, tuple(COLUMNS))
        return LSTMAttributes(
            check_clip(op, clip, order, dtype, forward=forward),
            order,
            check_gate(op, activation),
            check_forget_bias(op, bias, order) if forward else 0.0,
            check_bound(op, "proj_clip", 0 if proj_clip is None else proj_clip, dtype),
        )

    def cell(self, xp: ModuleType, weights: Any, attributes: LSTMAttributes) -> LSTM:
        """Return the cell. Backward, b may be None."""
        clip, order, gate, forget_bias, proj_clip = attributes
        w, b, *others = weights
        wci, wcf, wco, w_p = (*others, None, None, None, None)[:4]
        H = w.shape[1] // 4
        if b is not None and forget_bias != 0:
            start, b = COLUMNS[order][2] * H, b.copy()
            of_f = b[start : start + H]
            of_f += forget_bias
        P = H if w_p is None else w_p.shape[1]
        K, width = len(w) - P, 4 * H
        inputs: tuple[Weight, ...] = (Weight(w[:K], width),)
        recurrent: tuple[Weight, ...] = (Weight(w[K:], width),)
        widths: tuple[int, ...] = (width,)
        if w_p is not None:
            recurrent, widths = (*recurrent, Weight(w_p, P, delta=1)), (width, P)
        peephole = None if wci is None else (wci, wcf, wco)
        return LSTM(inputs, recurrent, widths, b, COLUMNS[order], peephole, clip, gate, proj_clip)

    def gradients(self, xp: ModuleType, grads: Any) -> Gradients:
        """Return views of w, b and w_p, and zeros for the peepholes."""
        w, b, *others = grads
        wci, _, _, w_p = (*others, None, None, None, None)[:4]
        *axes, rows, width = w.shape
        H = width // 4
        K = rows - (H if w_p is None else w_p.shape[-1])
        vectors = None if wci is None else xp.zeros((*axes, 3, H), w.dtype)
        parts = (w[..., :K, :], w[..., K:, :]) if axes else (w[:K], w[K:])
        if w_p is None:
            return Gradients(None, parts, (b,), vectors)
        unused = xp.zeros((*axes, w_p.shape[-1]), b.dtype)  # the sum of the gradients of h
        return Gradients(None, (*parts, w_p), (b, unused), vectors)

    def finished(self, grads: Any, written: Gradients) -> Any:
        """Return `grads` with the gradients of the peepholes in it."""
        if written.vectors is None:
            return grads
        vectors = written.vectors
        if vectors.ndim > 2:  # by example
            vectors = vectors.swapaxes(0, 1)
        return grads._replace(**dict(zip(PEEPHOLES, vectors, strict=True)))


class GRUForm(Form):
    """The weights of `block_gru`: of r and u together, and of c."""

    name, States, Saved = "a GRU", States, GRUOutputs
    shapes: ClassVar = {"w_ru": "K+H, 2*H", "w_c": "K+H, H", "b_ru": "2*H", "b_c": "H"}

    def attributes(
        self, op: str, attributes: Attributes, dtype: np.dtype[Any], *, forward: bool
    ) -> HardSigmoid | None:
        """Return the gates' activation; refuse forget_bias and the clips."""
        for name in ("forget_bias", "cell_clip", "proj_clip"):
            if (value := getattr(attributes, name)) is not None:
                raise ValueError(f"{op}: {name} is {shown(value)}, expected None for a GRU")
        check_choice(op, "gate_order", attributes.gate_order, tuple(COLUMNS))
        return check_gate(op, attributes.recurrent_activation)

    def cell(self, xp: ModuleType, weights: Any, attributes: HardSigmoid | None) -> GRU:
        """Return the cell. Backward, the biases may be None."""
        w_ru, w_c, b_ru, b_c = weights
        H = w_c.shape[1]
        K = len(w_c) - H
        inputs = Weight(w_ru[:K], 2 * H), Weight(w_c[:K], H, 1)
        recurrent = Weight(w_ru[K:], 2 * H), Weight(w_c[K:], H, 1)
        return GRU(inputs, recurrent, (2 * H, H), b_ru, b_c, attributes)

    def gradients(self, xp: ModuleType, grads: Any) -> Gradients:
        """Return views of all four."""
        w_ru, w_c, *sums = grads
        K = w_c.shape[-2] - w_c.shape[-1]
        inputs, recurrent = (
            [w[rows] if w.ndim == 2 else w[..., rows, :] for w in (w_ru, w_c)]
            for rows in (slice(K), slice(K, None))
        )
        return Gradients(None, (*inputs, *recurrent), sums)


LSTM_FORM, GRU_FORM = LSTMForm(), GRUForm()


def prepared(xp: ModuleType, weights: Any, dtype: np.dtype[Any]) -> Any:
    """Return weights in the layout and dtypes that `Form.cell` needs for a call of this dtype."""
    compute, operand = compute_dtype(dtype), operand_dtype(xp, dtype)
    return each(weights, lambda a: cast(contiguous(xp, a), operand if a.ndim == 2 else compute))


def check_forget_bias(op: str, forget_bias: float | None, gate_order: GateOrder) -> float:
    """Return forget_bias, or TensorFlow's default."""
    if forget_bias is None:
        return _DEFAULTS[gate_order][0]
    return check_real(op, "forget_bias", forget_bias)


def default_clip(op: str, gate_order: GateOrder) -> float:
    """Return TensorFlow's default cell_clip of a forward op; 0 means no clip."""
    check_choice(op, "gate_order", gate_order, tuple(_DEFAULTS))
    return _DEFAULTS[gate_order][1]


def check_clip(
    op: str, cell_clip: float | None, gate_order: GateOrder, dtype: np.dtype[Any], *, forward: bool
) -> float | None:
    """
    Return the clip rounded to the dtype, so that a clipped and saved cs compares equal to it.

    By default it is TensorFlow's default forward, and no clip backward.
    """
    if cell_clip is None:
        cell_clip = default_clip(op, gate_order) if forward else 0.0
    return check_bound(op, "cell_clip", cell_clip, dtype)


def check_bound(op: str, name: str, value: object, dtype: np.dtype[Any]) -> float | None:
    """Return a clip rounded to the dtype; None for 0, a negative number and NaN: no clip."""
    clip = check_real(op, name, value)
    with np.errstate(over="ignore", under="ignore"):
        if real_dtype(dtype).itemsize < 8:
            clip = float(np.float32(clip))  # TensorFlow's attribute is a float32
        return float(dtype.type(clip).real) if clip > 0 else None
