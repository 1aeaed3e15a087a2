"""ONNX's LSTM, GRU and RNN: a node's outputs from its inputs and attributes, as the standard says.

Symbols: T time steps, B batch, I input size, H hidden_size, D directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ._arrays import (
    check_choice,
    check_integer,
    check_lengths,
    check_list,
    check_real,
    expect_rank,
    expect_shape,
    on_device,
    shown,
)
from .cudnn_rnn import cudnn_rnn
from .derivatives.traced import traceable
from .gru import block_gru
from .lstm import block_lstm
from .weights.forms import as_arrays
from .weights.onnx import block_gru_from_onnx, block_lstm_from_onnx, params_from_onnx

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._arrays import Array

OpType: TypeAlias = Literal["LSTM", "GRU", "RNN"]

_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_DIRECTIONS = ("forward", "reverse", "bidirectional")
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# For each operator its rnn_mode, its activations if they are left out, and the only other one that
# is computed, in place of the first of them.
_MATH: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "LSTM": ("lstm", ("Sigmoid", "Tanh", "Tanh"), "HardSigmoid"),
    "GRU": ("gru", ("Sigmoid", "Tanh"), "HardSigmoid"),
    "RNN": ("rnn_tanh", ("Tanh",), "Relu"),
}


class _Math(NamedTuple):
    """What a node computes, in the words of `cudnn_rnn`."""

    rnn_mode: Any
    recurrent_activation: Any = "sigmoid"


class OnnxOutputs(NamedTuple):
    """
    What a node returns, in ONNX's order.

    Attributes
    ----------
    Y : [T, D, B, H] or, with layout 1, [B, T, D, H]
        The output of every step.
    Y_h : [D, B, H] or, with layout 1, [B, D, H]
        The states after the last step.
    Y_c : [D, B, H] or, with layout 1, [B, D, H], or None
        The cell states of an LSTM after the last step.
    """

    Y: Array
    Y_h: Array
    Y_c: Array | None


class _Call(NamedTuple):
    """A node after its checks, with the time axis first."""

    xp: ModuleType
    tensors: dict[str, Array]
    lengths: NDArray[np.int32] | None
    direction: str

    @property
    def weights(self) -> list[Array | None]:
        """W, R and B."""
        return [self.tensors.get(name) for name in ("W", "R", "B")]


@traceable
def run_onnx_node(
    op_type: OpType,
    inputs: Sequence[Any],
    *,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: int = 0,
) -> OnnxOutputs:
    """
    Return the outputs of an ONNX LSTM, GRU or RNN node.

    The attributes are those of the node, by their names; what it does not have is left out. With
    the package ``onnx``, where `arrays` are the tensors by their names::

        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        inputs = [arrays.get(name) for name in node.input]
        outputs = cupyrnn.run_onnx_node(node.op_type, inputs, **attributes)

    Parameters
    ----------
    op_type : {"LSTM", "GRU", "RNN"}
        The operator.
    inputs : sequence of arrays or None
        In ONNX's order, None for what the node does not have, and short of what would be None at
        the end: X [T, B, I], W [D, G*H, I], R [D, G*H, H], B [D, 2*G*H], sequence_lens, B
        integers on the host, initial_h [D, B, H], and of an LSTM initial_c [D, B, H] and
        P [D, 3*H].
    direction : {"forward", "reverse", "bidirectional"}
        D is 2 for "bidirectional" and 1 for the others.
    hidden_size : int, optional
        H, which the shape of R tells as well.
    layout : int
        With 1 the batch is first: X [B, T, I], Y [B, T, D, H], all states [B, D, H].
    linear_before_reset : int
        Whether a GRU resets after the product with R (1) or before it (0).
    activations : sequence of str, optional
        Those of all directions. Computed are ONNX's defaults, Sigmoid, Tanh, Tanh for an LSTM,
        Sigmoid, Tanh for a GRU and Tanh for an RNN; HardSigmoid in place of Sigmoid, and Relu in
        place of an RNN's Tanh.
    activation_alpha, activation_beta : sequence of float, optional
        Slope and offset of the HardSigmoid of each direction: 0.2, as if left out, or 1/6, and
        0.5. The other activations have no parameters.
    clip : float, optional
        Refused if given: a bound for what goes into the activations is not computed.
    input_forget : int
        Refused if not 0: coupled input and forget gates are not computed.

    Returns
    -------
    OnnxOutputs
        Y [T, D, B, H], Y_h [D, B, H], the states after each sequence's last step, and Y_c
        [D, B, H] or None, of the widest of the dtypes. Y is zero past a sequence's end. The
        states of a sequence of length 0 are those it was given, where ONNX Runtime has zeros.

    Raises
    ------
    TypeError
        An input is no array, or they are not of floating dtypes or not on one device, or an
        attribute is of a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range or asks for what is not
        computed.

    See Also
    --------
    params_from_onnx, block_lstm_from_onnx, block_gru_from_onnx : The weights alone, to train on.

    Notes
    -----
    Some exporters write a wrong ``linear_before_reset`` without a word: ``torch.onnx.export`` with
    ``dynamo=True`` has left it out [2]_ [3]_, which says 0, though torch.nn.GRU resets after the
    product. No check of the file can find that, as all shapes are the same. The outputs look
    plausible and are off by some hundredths to tenths; from states of zero the first step is
    still right if the recurrent bias of the last gate is zero. So compare several steps with the
    outputs of the original model; where they agree better with ``linear_before_reset=1`` given
    in place of the node's own, the file is wrong. Without the original's outputs, do not believe
    a 0 in a file whose ``producer_name`` is "pytorch".

    References
    ----------
    .. [1] ONNX, Operator Schemas: LSTM, GRU and RNN.
    .. [2] https://github.com/pytorch/pytorch/issues/189225
    .. [3] https://github.com/microsoft/onnxscript/issues/2852

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> rng = np.random.default_rng(0)
    >>> inputs = [rng.normal(size=shape) for shape in ((4, 1, 2), (1, 9, 2), (1, 9, 3))]
    >>> for linear_before_reset in (0, 1):
    ...     out = cupyrnn.run_onnx_node("GRU", inputs, linear_before_reset=linear_before_reset)
    ...     print(out.Y[:, 0, 0, 0].round(4))
    [-0.0933  0.0298  0.3971  0.866 ]
    [-0.0933  0.0163  0.4057  0.7961]
    """
    op = "run_onnx_node"
    check_choice(op, "op_type", op_type, tuple(_GATES))
    way = check_choice(op, "direction", _text(direction), _DIRECTIONS)
    D = 1 + (way == "bidirectional")
    math = _activations(op, op_type, D, activations, activation_alpha, activation_beta)
    after = _flag(op, "linear_before_reset", linear_before_reset)
    if after and op_type != "GRU":
        raise ValueError(f"{op}: linear_before_reset is 1, expected 0 for {op_type}")
    if _flag(op, "input_forget", input_forget):
        raise ValueError(f"{op}: input_forget is 1, expected 0: coupled gates are not computed")
    if clip is not None:
        raise ValueError(
            f"{op}: clip is {shown(clip)}, expected none: a bound for what goes into the"
            " activations is not computed"
        )
    batch_first = bool(_flag(op, "layout", layout))
    call = _check(op, op_type, inputs, way, hidden_size, batch_first)
    with on_device(call.xp, call.tensors["X"]):
        if op_type == "LSTM" and "P" in call.tensors:
            outputs = _peephole_lstm(call, math)
        elif op_type == "GRU" and not after:
            outputs = _reset_before_gru(call, math)
        else:
            outputs = _packed(call, math)
        if not batch_first:
            return outputs
        Y, Y_h, Y_c = outputs
        return OnnxOutputs(
            call.xp.ascontiguousarray(Y.transpose(2, 0, 1, 3)),
            _exchanged(call.xp, Y_h),
            None if Y_c is None else _exchanged(call.xp, Y_c),
        )


def _text(value: object) -> object:
    """Return a string; the package onnx has bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _flag(op: str, name: str, value: object) -> int:
    number = check_integer(op, name, value)
    if number not in (0, 1):
        raise ValueError(f"{op}: {name} is {shown(number)}, expected 0 or 1")
    return number


def _activations(op: str, op_type: str, D: int, given: Any, alpha: Any, beta: Any) -> _Math:
    """Return what op_type and the activations of all directions stand for."""
    mode, default, instead = _MATH[op_type]
    if given is None:
        return _Math(mode)
    check_list(op, "activations", given)
    if len(given) != len(default) * D:
        raise ValueError(
            f"{op}: activations has {len(given)} entries, expected {len(default) * D} for"
            f" {op_type} in {D} direction(s)"
        )
    names = [_text(name) for name in given]
    other = isinstance(names[0], str) and names[0].lower() == instead.lower()
    expected = (instead if other else default[0], *default[1:]) * D
    for n, (name, e) in enumerate(zip(names, expected, strict=True)):
        if not isinstance(name, str) or name.lower() != e.lower():
            either = "" if n else f" or {instead}"
            raise ValueError(
                f"{op}: activations[{n}] is {shown(name)}, expected {e}{either}: no others are"
                " computed, and all directions alike"
            )
    if not other:
        return _Math(mode)
    if op_type == "RNN":
        return _Math("rnn_relu")
    slopes = _parameters(op, "activation_alpha", alpha, 0.2, D)
    offsets = _parameters(op, "activation_beta", beta, 0.5, D)
    for name, gate in (("hard_sigmoid_0.2", 0.2), ("hard_sigmoid_1/6", 1 / 6)):
        # The attributes are float32.
        if np.allclose(slopes, gate, 0, 1e-6) and np.allclose(offsets, 0.5, 0, 1e-6):
            return _Math(mode, name)
    raise ValueError(
        f"{op}: HardSigmoid has activation_alpha = {slopes} and activation_beta = {offsets},"
        " expected 0.2 or 1/6, and 0.5"
    )


def _parameters(op: str, name: str, given: Any, default: float, D: int) -> list[float]:
    """Return a parameter of the HardSigmoid of each direction."""
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return [default] * D
    check_list(op, name, given)
    if len(given) != D:
        raise ValueError(
            f"{op}: {name} has {len(given)} entries, expected {D}, one for each HardSigmoid"
        )
    return [check_real(op, f"{name}[{n}]", value) for n, value in enumerate(given)]


def _check(
    op: str, op_type: str, inputs: Any, direction: str, hidden_size: object, batch_first: bool
) -> _Call:
    """Check the inputs of a node."""
    check_list(op, "inputs", inputs)
    names = _INPUTS if op_type == "LSTM" else _INPUTS[:6]
    if not 3 <= len(inputs) <= len(names):
        raise ValueError(
            f"{op}: inputs has {len(inputs)} entries, expected 3 to {len(names)} for {op_type}:"
            f" {', '.join(names)}"
        )
    given = dict(zip(names, inputs, strict=False))
    sequence_lens = given.pop("sequence_lens", None)
    xp, tensors = as_arrays(
        op, {name: a for name, a in given.items() if a is not None or name in "XWR"}
    )
    D, G = 1 + (direction == "bidirectional"), _GATES[op_type]
    gates = f"{G}*H" if G > 1 else "H"
    steps, states = ("B, T", "B, D") if batch_first else ("T, B", "D, B")
    *sizes, I = expect_rank(op, "X", tensors["X"], f"({steps}, I)")
    T, B = sizes[::-1] if batch_first else sizes
    H = expect_rank(op, "R", tensors["R"], f"(D, {gates}, H)")[2]
    if hidden_size is not None and check_integer(op, "hidden_size", hidden_size) != H:
        raise ValueError(
            f"{op}: R has shape {tensors['R'].shape}, expected (D, {gates}, H) with H ="
            f" hidden_size = {shown(hidden_size)}"
        )
    leading = (B, D) if batch_first else (D, B)
    for name, symbols, shape in (
        ("R", f"(D, {gates}, H)", (D, G * H, H)),
        ("W", f"(D, {gates}, I)", (D, G * H, I)),
        ("B", f"(D, {2 * G}*H)", (D, 2 * G * H)),
        ("initial_h", f"({states}, H)", (*leading, H)),
        ("initial_c", f"({states}, H)", (*leading, H)),
        ("P", "(D, 3*H)", (D, 3 * H)),
    ):
        expect_shape(op, name, tensors.get(name), symbols, shape)
    lengths = check_lengths(op, sequence_lens, T, B)
    with on_device(xp, tensors["X"]):
        for name in ("initial_h", "initial_c"):
            if name not in tensors:
                tensors[name] = xp.zeros((D, B, H), tensors["X"].dtype)
            elif batch_first:
                tensors[name] = _exchanged(xp, tensors[name])
        if batch_first:
            tensors["X"] = _exchanged(xp, tensors["X"])
    return _Call(xp, tensors, lengths, direction)


def _exchanged(xp: ModuleType, a: Array) -> Array:
    """Return an array with its first two axes exchanged."""
    result: Array = xp.ascontiguousarray(a.swapaxes(0, 1))
    return result


def _packed(call: _Call, math: _Math) -> OnnxOutputs:
    """Run a node whose math is CudnnRNN's."""
    W, R, B = call.weights
    packed: Any = params_from_onnx(W, R, B, rnn_mode=math.rnn_mode, linear_before_reset=1)
    packed = packed._replace(recurrent_activation=math.recurrent_activation)
    x, h, c = (call.tensors[name] for name in ("X", "initial_h", "initial_c"))
    if call.direction == "reverse":
        x = _reversed(call, x)
    out = cudnn_rnn(x, h, c, packed, sequence_lengths=call.lengths, is_training=False)
    T, size = x.shape[:2]
    y = out.output.reshape(T, size, len(h), h.shape[2])
    if call.direction == "reverse":
        y = _reversed(call, y)
    Y = call.xp.ascontiguousarray(y.transpose(0, 2, 1, 3))
    return OnnxOutputs(Y, out.output_h, out.output_c if math.rnn_mode == "lstm" else None)


def _reversed(call: _Call, a: Array) -> Array:
    """Return every sequence of [T, B, ...] from its own last step to its first."""
    if call.lengths is None:
        return a[::-1]
    t = np.arange(len(a))[:, None]
    order = np.where(t < call.lengths, call.lengths - 1 - t, t)
    result: Array = a[call.xp.asarray(order), call.xp.asarray(np.arange(a.shape[1]))]
    return result


def _peephole_lstm(call: _Call, math: _Math) -> OnnxOutputs:
    """Run an LSTM with peepholes, direction by direction."""
    W, R, B = call.weights
    x, h, c = (call.tensors[name] for name in ("X", "initial_h", "initial_c"))
    outputs = []
    weights = block_lstm_from_onnx(W, R, B, call.tensors["P"])
    for d, of in enumerate(weights):
        back = d == 1 or call.direction == "reverse"
        out = block_lstm(
            x,
            c[d],
            h[d],
            **of._asdict(),
            forget_bias=0,
            cell_clip=0,
            sequence_lengths=call.lengths,
            reverse=back,
            recurrent_activation=math.recurrent_activation,
        )
        outputs.append((out.h, _last(call, out.h, h[d], back), _last(call, out.cs, c[d], back)))
    return OnnxOutputs(*_stacked(call.xp, outputs))


def _reset_before_gru(call: _Call, math: _Math) -> OnnxOutputs:
    """Run a GRU with linear_before_reset=0, direction by direction."""
    W, R, B = call.weights
    x, h = call.tensors["X"], call.tensors["initial_h"]
    outputs = []
    for d, of in enumerate(block_gru_from_onnx(W, R, B)):
        back = d == 1 or call.direction == "reverse"
        out = block_gru(
            x,
            h[d],
            *of,
            sequence_lengths=call.lengths,
            reverse=back,
            recurrent_activation=math.recurrent_activation,
        )
        outputs.append((out.h, _last(call, out.h, h[d], back)))
    Y, Y_h = _stacked(call.xp, outputs)
    return OnnxOutputs(Y, Y_h, None)


def _last(call: _Call, a: Array, first: Array, back: bool) -> Array:
    """Return what [T, B, H] is after each sequence's last step, or `first` where it has none."""
    T, xp = len(a), call.xp
    if call.lengths is None:
        return (a[0] if back else a[-1]) if T else first
    result: Array = first.copy()
    some = np.flatnonzero(call.lengths)
    rows = xp.asarray(some)
    steps = xp.asarray(np.zeros_like(some) if back else call.lengths[some] - 1)
    if len(some):
        result[rows] = a[steps, rows]
    return result


def _stacked(xp: ModuleType, outputs: Sequence[tuple[Array, ...]]) -> list[Array]:
    """Return Y [T, D, B, H] and the states [D, B, H] of all directions."""
    y, *states = zip(*outputs, strict=True)
    arrays = [xp.concatenate([a[:, None] for a in y], axis=1)]
    return arrays + [xp.concatenate([a[None] for a in state]) for state in states]
