"""The functions as nodes of ONNX, for torch.onnx.export."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..cells.block_forms import GRU_FORM, LSTM_FORM
from ..cells.packed import GATE_ORDERS
from ..weights.activations import DEFAULTS, SLOPES
from ..weights.params import check_net, layout
from .definitions import (
    BLOCK_GRU,
    BLOCK_LSTM,
    CUDNN_RNN,
    GRU_BLOCK_CELL,
    LSTM_BLOCK_CELL,
    STACKED_RNN,
    block_weights,
    kind_of,
    units_of,
)
from .ops import Op

# The nodes, and their gates by the names in the packed vector.
_NODES = {
    mode: (mode.upper() if gates[1:] else "RNN", gates)
    for mode, gates in GATE_ORDERS["onnx"].items()
}


def _refuse(function: str, problem: str, why: str) -> None:
    raise NotImplementedError(f"{function}: {problem}, {why}")


def _check(function: str, resets: Any, dropout: float = 0.0, cell_clip: float = 0.0) -> None:
    """Refuse what ONNX nodes cannot express."""
    if resets is not None:
        _refuse(function, "resets is not None", "but no node of ONNX has resets")
    if dropout > 0:
        _refuse(function, f"dropout is {dropout}", "export the module after eval()")
    if cell_clip > 0:
        why = "but ONNX's clip bounds the inputs of activations, not cs: expected 0"
        _refuse(function, f"cell_clip is {cell_clip}", why)


class _NetSettings(NamedTuple):
    """How the layers of a net run."""

    mode: str
    sizes: tuple[int, int, int]  # L, D and H
    sequence_lengths: Any
    reverse: bool
    recurrent_activation: str
    time_major: bool

    @property
    def D(self) -> int:
        """The number of directions."""
        return self.sizes[1]

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that every node has, except hidden_size."""
        names, gate = [*DEFAULTS[_NODES[self.mode][0]]], self.recurrent_activation
        parameters: dict[str, Any] = {}
        if self.mode == "rnn_relu":
            names = ["Relu"]
        elif len(names) > 1 and gate != "sigmoid":
            names[0] = "HardSigmoid"
            parameters["activation_alpha"] = [SLOPES[gate]] * self.D  # type: ignore[index]
            parameters["activation_beta"] = [0.5] * self.D
        word = "reverse" if self.reverse else "forward"
        word = "bidirectional" if self.D == 2 else word
        return {"direction": word, "activations": names * self.D, **parameters}


# The weights of a layer with input size K; each direction has W [G*H, K], R [G*H, H], B [2*G*H]
# and, with peepholes, P [3*H].
_Weights = Callable[[int, int], Sequence[Sequence[Any]]]


class _Writer:
    """Writes the nodes of one call, with the ops of an opset."""

    def __init__(self, op: Any) -> None:
        self.op = op

    def ints(self, *values: int) -> Any:
        return self.op.Constant(value_ints=list(values))

    def part(self, t: Any, start: int, end: int, axis: int = 0) -> Any:
        return self.op.Slice(t, self.ints(start), self.ints(end), self.ints(axis))

    def stacked(self, parts: Sequence[Any]) -> Any:
        """Return arrays along a new axis in front."""
        return self.op.Concat(*[self.op.Unsqueeze(p, self.ints(0)) for p in parts], axis=0)

    def net(
        self, run: _NetSettings, inputs: Sequence[Any], weights: _Weights, **more: Any
    ) -> Sequence[Any]:
        """Write the nodes of all layers; return the op's results, without a reserve_space."""
        op, lengths, (L, D, H) = self.op, None, run.sizes
        x, *states = inputs if run.mode == "lstm" else inputs[:2]
        K = x.shape[2]
        if run.sequence_lengths is not None:
            lengths = op.Cast(run.sequence_lengths, to=6)  # int32
        if not run.time_major:
            x, *states = (s if s is None else op.Transpose(s, perm=[1, 0, 2]) for s in (x, *states))
        node: Any = getattr(op, _NODES[run.mode][0])
        lasts: list[list[Any]] = [[] for _ in states]
        for n in range(L):
            first = [s if s is None else self.part(s, n * D, (n + 1) * D) for s in states]
            W, R, B, *P = map(self.stacked, zip(*weights(n, K), strict=True))
            Y, *last = node(
                x, W, R, B, lengths, *first, *P, hidden_size=H, **run.attributes, **more
            )
            x, K = op.Reshape(op.Transpose(Y, perm=[0, 2, 1, 3]), self.ints(0, 0, -1)), D * H
            for found, state in zip(lasts, last, strict=True):
                found.append(state)
        results = [x, *(s[0] if len(s) == 1 else op.Concat(*s, axis=0) for s in lasts)]
        if not run.time_major:
            results = [op.Transpose(s, perm=[1, 0, 2]) for s in results]
        zero = op.CastLike(op.Constant(value_float=0.0), x)
        return *results, *[zero] * (4 - len(results))


def _cudnn_rnn(
    op: Any, input: Any, input_h: Any, input_c: Any, params: Any, sequence_lengths: Any,
    resets: Any, rnn_mode: str, input_mode: str, direction: str, dropout: float, num_proj: int,
    recurrent_activation: str, time_major: bool, reverse: bool, num_layers: int, num_units: int,
    **_: Any,
) -> Any:  # fmt: skip
    """Write the nodes of cudnn_rnn."""
    name = "cudnn_rnn"
    _check(name, resets, dropout)
    if num_proj:
        _refuse(name, f"num_proj is {num_proj}", "but no node of ONNX projects: expected 0")
    L, D, H = num_layers, 1 + (direction == "bidirectional"), num_units
    if not L:
        L, H = input_h.shape[0 if time_major else 1] // D, input_h.shape[2]
    run = _NetSettings(
        rnn_mode, (L, D, H), sequence_lengths, reverse, recurrent_activation, time_major
    )
    net = check_net(name, L, H, input.shape[2], rnn_mode, input_mode, direction, 0)
    if net.skip:
        _refuse(name, f"input_mode is {input_mode!r}", "but a node of ONNX has input matrices")
    write = _Writer(op)
    flat = [op.Reshape(piece, write.ints(-1)) for piece in params]
    whole = op.Concat(*flat, axis=0) if len(flat) > 1 else params[0]
    pieces: dict[Any, Any] = {p[:4]: p for p in layout(net)}

    def joined(n: int, d: int, *kinds: str) -> Any:
        """Return all gates of a layer and direction, flat."""
        found = [pieces[kind, n, d, g] for kind in kinds for g in _NODES[rnn_mode][1]]
        parts = [write.part(whole, p.offset, p.offset + p.size) for p in found]
        return op.Concat(*parts, axis=0)

    def weights(n: int, K: int) -> Sequence[Sequence[Any]]:
        return [
            (
                op.Reshape(joined(n, d, "input"), write.ints(-1, K)),
                op.Reshape(joined(n, d, "recurrent"), write.ints(-1, H)),
                joined(n, d, "input_bias", "recurrent_bias"),
            )
            for d in range(run.D)
        ]

    more = {"linear_before_reset": 1} if rnn_mode == "gru" else {}
    return write.net(run, (input, input_h, input_c), weights, **more)


def _block_direction(
    write: _Writer, entry: dict[str, Any], K: int, H: int, order: str, bias: float
) -> Sequence[Any]:
    """Return the weights of a direction as the inputs of a node."""
    op = write.op
    if "w" in entry:
        gates, names = _NODES["lstm"][1], GATE_ORDERS[order]["lstm"]
        columns = {g: (entry["w"], n * H) for n, g in enumerate(names)}
        sums = {g: write.part(entry["b"], n * H, (n + 1) * H) for n, g in enumerate(names)}
        if bias:
            forget = op.CastLike(op.Constant(value_float=bias), entry["b"])
            sums["f"] = op.Add(sums["f"], forget)
    else:
        gates, b_ru = _NODES["gru"][1], entry["b_ru"]
        columns = {"r": (entry["w_ru"], 0), "u": (entry["w_ru"], H), "c": (entry["w_c"], 0)}
        sums = {"r": write.part(b_ru, 0, H), "u": write.part(b_ru, H, 2 * H), "c": entry["b_c"]}
    parts = [write.part(w, start, start + H, 1) for w, start in (columns[g] for g in gates)]
    whole = op.Transpose(op.Concat(*parts, axis=1), perm=[1, 0])  # [G*H, K+H]
    b = op.Concat(*[sums[gate] for gate in gates], axis=0)
    weights = [write.part(whole, 0, K, 1), write.part(whole, K, K + H, 1)]
    weights.append(op.Concat(b, op.Sub(b, b), axis=0))
    if "wci" in entry:
        weights.append(op.Concat(*[entry[n] for n in ("wci", "wco", "wcf")], axis=0))
    return weights


def _stacked_rnn(
    op: Any, input: Any, input_h: Any, input_c: Any, weights: Any, sequence_lengths: Any,
    resets: Any, names: str, direction: str, dropout: float, forget_bias: float,
    cell_clip: float, gate_order: str, recurrent_activation: str, time_major: bool,
    reverse: bool, **_: Any,
) -> Any:  # fmt: skip
    """Write the nodes of stacked_rnn."""
    name, (kind, fields) = "stacked_rnn", kind_of(names)
    mode, D = "gru" if kind.form is GRU_FORM else "lstm", 1 + (direction == "bidirectional")
    if kind.form is not GRU_FORM and kind.form is not LSTM_FORM:
        _refuse(name, f"weights are of {kind.form.name}", "but no node of ONNX computes it")
    _check(name, resets, dropout, cell_clip or 0.0)
    if "w_p" in fields:
        _refuse(name, "w_p is not None", "but no node of ONNX projects")
    entries = [
        {field: t for field, t in entry._asdict().items() if t is not None}
        for entry in block_weights(weights, names)
    ]
    H = units_of(kind.form, entries[0])
    run = _NetSettings(
        mode, (len(entries) // D, D, H), sequence_lengths, reverse, recurrent_activation,
        time_major,
    )  # fmt: skip
    write = _Writer(op)

    def of_layer(n: int, K: int) -> Sequence[Sequence[Any]]:
        return [
            _block_direction(write, entry, K, H, gate_order, forget_bias)
            for entry in entries[n * D : (n + 1) * D]
        ]

    return write.net(run, (input, input_h, input_c), of_layer)


def _gates(name: str, *_: Any, **__: Any) -> Any:
    """Refuse a function without a node."""
    raise NotImplementedError(
        f"{name}: a node of ONNX does not return the gates and states of every step; export"
        " stacked_rnn, PeepholeLSTM or BlockGRU"
    )


def _translation(op: Op, write: Callable[..., Any]) -> Callable[..., Any]:
    """Return the translation of an op, whose arguments by name go to `write`."""
    names = ["tensors", *op.attributes]

    def call(*args: Any, **kwargs: Any) -> Any:
        rest = dict(zip(names, args, strict=False)) | kwargs
        tensors = rest.pop("tensors")
        end = len(tensors) - len(op.extras)
        extras = zip(op.extras, tensors[end:], strict=True)
        return write(**op.by_name("p", tensors[:end]), **dict(extras), **rest)

    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = dict.fromkeys(names, Any)
    return call


def onnx_translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """
    Return the table with which `torch.onnx.export` writes the functions and modules as ONNX nodes.

    Nets become LSTM, GRU and RNN nodes, one for each layer, with dynamic T and B where the export
    has them, with lengths, both directions, peepholes and hard sigmoids. A GRU of `cudnn_rnn` has
    linear_before_reset = 1, one of `stacked_rnn` 0. The standard cannot express a projection,
    resets, a clip of the cell state (``cell_clip=0`` means none), dropout, skip_input and the
    outputs of the single block ops: with these, the export ends with an error that names them.

    Returns
    -------
    dict
        The argument custom_translation_table of `torch.onnx.export`, with ``dynamo=True``.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> table = cupyrnn.torch.onnx_translations()
    >>> torch.ops.cupyrnn.cudnn_rnn.default in table
    True

    ``torch.onnx.export(net.eval(), (x,), "net.onnx", dynamo=True,
    custom_translation_table=table)`` writes the file; it needs onnxscript.
    """
    try:
        from onnxscript import opset18
    except ImportError:
        raise ImportError(
            "onnx_translations: needs onnxscript, as torch.onnx.export does"
        ) from None
    Op.translated = True
    writers: dict[Op, Any] = {
        CUDNN_RNN: partial(_cudnn_rnn, opset18),
        STACKED_RNN: partial(_stacked_rnn, opset18),
    }
    for op in (LSTM_BLOCK_CELL, BLOCK_LSTM, GRU_BLOCK_CELL, BLOCK_GRU):
        writers[op] = partial(_gates, op.name)
    return {op.library["forward"]: _translation(op, write) for op, write in writers.items()}
