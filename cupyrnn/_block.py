"""The cells of the block ops, made of weights [I+H, ·], and what an LSTM asks of its arguments."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ._arrays import (
    aligned,
    cast,
    check_arrays,
    check_bool,
    check_choice,
    check_real,
    compute_dtype,
    contiguous,
    expect_rank,
    expect_shape,
    on_device,
)
from .arithmetic.dual import real_dtype
from .arithmetic.gates import check_gate
from .cells.contract import Weight
from .cells.gru import GRU
from .cells.lstm import LSTM

if TYPE_CHECKING:
    from ._arrays import Array
    from .arithmetic.gates import HardSigmoid, RecurrentActivation

GateOrder: TypeAlias = Literal["icfo", "ifco"]

# Which quarter of the columns of w, b and the gate gradients belongs to i, ci, f and o.
COLUMNS = {"icfo": (0, 1, 2, 3), "ifco": (0, 2, 1, 3)}

# TensorFlow's defaults of (forget_bias, cell_clip): BlockLSTM's and BlockLSTMV2's.
_DEFAULTS = {"icfo": (1.0, 3.0), "ifco": (0.0, 0.0)}


class LSTMAttributes(NamedTuple):
    """The attributes of a call as they are given."""

    cell_clip: float | None
    use_peephole: bool | None
    gate_order: GateOrder
    recurrent_activation: RecurrentActivation


class LSTMCall(NamedTuple):
    """The attributes of a call after their checks."""

    peephole: tuple[Array, Array, Array] | None  # in the dtype of the computation, where used
    cell_clip: float | None
    gate_order: GateOrder
    gate: HardSigmoid | None
    dtype: np.dtype[Any]


def lstm_cell(w: Array, b: Array | None, H: int, call: LSTMCall) -> LSTM:
    """Return the cell of weights [I+H, 4*H] in the dtype of an operand."""
    I = len(w) - H
    inputs, recurrent = (Weight(w[:I], 4 * H),), (Weight(w[I:], 4 * H),)
    columns, attributes = COLUMNS[call.gate_order], (call.peephole, call.cell_clip, call.gate)
    return LSTM(inputs, recurrent, (4 * H,), b, columns, *attributes)


def gru_cell(
    w_ru: Array,
    w_c: Array,
    H: int,
    gate: HardSigmoid | None,
    biases: tuple[Array | None, Array | None] = (None, None),
) -> GRU:
    """Return the cell of weights [I+H, ·] in the dtype of an operand."""
    I = len(w_c) - H
    inputs = Weight(w_ru[:I], 2 * H), Weight(w_c[:I], H, 1)
    recurrent = Weight(w_ru[I:], 2 * H), Weight(w_c[I:], H, 1)
    return GRU(inputs, recurrent, (2 * H, H), *biases, gate)


_PEEPHOLES = ("wci", "wcf", "wco")
_INPUTS = ("x", "cs_prev", "h_prev", "w", "b", *_PEEPHOLES)


def check_lstm(
    op: str,
    lead: str,
    required: dict[str, Array],
    optional: dict[str, Array | None],
    attributes: LSTMAttributes,
) -> tuple[ModuleType, LSTMCall]:
    """
    Check every array and attribute of an LSTM call; return its module and attributes.

    `lead` names the axes x begins with: "B" for one step, "T, B" for a sequence. What is not an
    input of the forward op is a state of shape (lead, H).
    """
    forward = "i" not in required
    xp, dtype = check_arrays(op, required, optional)
    cell_clip, use_peephole, gate_order, activation = attributes
    check_choice(op, "gate_order", gate_order, tuple(COLUMNS))
    gate = check_gate(op, activation)
    arrays = {**required, **{name: a for name, a in optional.items() if a is not None}}

    x, w, cs_prev = arrays.get("x"), arrays.get("w"), arrays["cs_prev"]
    H = expect_rank(op, "cs_prev", cs_prev, "(B, H)")[1]
    leading, I = cs_prev.shape[:1], 0
    if w is not None:
        I = max(expect_rank(op, "w", w, "(I+H, 4*H)")[0] - H, 0)
    if x is not None:
        *leading_sizes, I = expect_rank(op, "x", x, f"({lead}, I)")
        leading = tuple(leading_sizes)
    expect_shape(op, "cs_prev", cs_prev, "(B, H)", (leading[-1], H))
    expect_shape(op, "h_prev", arrays.get("h_prev"), "(B, H)", (leading[-1], H))
    expect_shape(op, "w", w, "(I+H, 4*H)", (I + H, 4 * H))
    expect_shape(op, "b", arrays.get("b"), "(4*H,)", (4 * H,))
    for name in _PEEPHOLES:
        expect_shape(op, name, arrays.get(name), "(H,)", (H,))
    state, state_shape = f"({lead}, H)", (*leading, H)
    for name, a in arrays.items():
        if name not in _INPUTS:
            expect_shape(op, name, a, state, state_shape)

    given = [name for name in _PEEPHOLES if name in arrays]
    wanted = bool(given)
    if use_peephole is not None:
        wanted = check_bool(op, "use_peephole", use_peephole)
    if (given and len(given) < 3) or (wanted and not given):
        missing = next(name for name in _PEEPHOLES if name not in arrays)
        why = f"like {given[0]}" if given else "as use_peephole is True"
        raise TypeError(f"{op}: {missing} is None, expected an array of shape (H,) = ({H},) {why}")
    clip = check_clip(op, cell_clip, gate_order, dtype, forward=forward)
    if not wanted:
        return xp, LSTMCall(None, clip, gate_order, gate, dtype)
    compute = compute_dtype(dtype)
    with on_device(xp, cs_prev):
        wci, wcf, wco = (
            contiguous(xp, cast(aligned(xp, arrays[name]), compute)) for name in _PEEPHOLES
        )
    return xp, LSTMCall((wci, wcf, wco), clip, gate_order, gate, dtype)


def check_forget_bias(op: str, forget_bias: float | None, gate_order: GateOrder) -> float:
    """Return forget_bias, or TensorFlow's default."""
    if forget_bias is None:
        return _DEFAULTS[gate_order][0]
    return check_real(op, "forget_bias", forget_bias)


def default_clip(gate_order: GateOrder) -> float:
    """Return TensorFlow's default of a forward op's cell_clip, 0 for none."""
    return _DEFAULTS[gate_order][1]


def check_clip(
    op: str,
    cell_clip: float | None,
    gate_order: GateOrder,
    dtype: np.dtype[Any],
    *,
    forward: bool,
) -> float | None:
    """
    Return the clip as the dtype can hold it, so that a saved cs compares equal to it.

    Left out, it is forward TensorFlow's default, and backward none.
    """
    if cell_clip is None:
        cell_clip = default_clip(gate_order) if forward else 0.0
    clip = check_real(op, "cell_clip", cell_clip)
    with np.errstate(over="ignore", under="ignore"):
        if real_dtype(dtype).itemsize < 8:
            clip = float(np.float32(clip))  # which TensorFlow's attribute is
        return float(dtype.type(clip).real) if clip > 0 else None
