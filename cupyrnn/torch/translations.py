"""The functions as nodes of ONNX, for torch.onnx.export."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

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
from .ops import Op, all_of

# The nodes, and their gates by the names in the packed vector.
_NODES = {
    mode: (mode.upper() if gates[1:] else "RNN", gates)
    for mode, gates in GATE_ORDERS["onnx"].items()
}


def _refuse(function: str, problem: str, why: str) -> None:
    raise NotImplementedError(f"{function}: {problem}, {why}")


# The weights of a layer with input size K; each direction has W [G*H, K], R [G*H, H], B [2*G*H]
# and, with peepholes, P [3*H].
_Weights = Callable[[int, int], Sequence[Sequence[Any]]]


class _Writer:
    """Writes the nodes of a call of a net, with the ops of an opset."""

    def __init__(self, op: Any, function: str, call: SimpleNamespace) -> None:
        """Refuse what no node of ONNX can express; `call` has the arguments by name."""
        self.op, self.call, self.D = op, call, 1 + (call.direction == "bidirectional")
        if call.resets is not None:
            _refuse(function, "resets is not None", "but no node of ONNX has resets")
        if call.dropout > 0:
            _refuse(function, f"dropout is {call.dropout}", "export the module after eval()")

    def ints(self, *values: int) -> Any:
        return self.op.Constant(value_ints=list(values))

    def part(self, t: Any, start: int, end: int, axis: int = 0) -> Any:
        return self.op.Slice(t, self.ints(start), self.ints(end), self.ints(axis))

    def stacked(self, parts: Sequence[Any]) -> Any:
        """Return arrays along a new axis in front."""
        return self.op.Concat(*[self.op.Unsqueeze(p, self.ints(0)) for p in parts], axis=0)

    def attributes(self, mode: str) -> dict[str, Any]:
        """Return the attributes of every node, except hidden_size."""
        names, gate, D = [*DEFAULTS[_NODES[mode][0]]], self.call.recurrent_activation, self.D
        parameters: dict[str, Any] = {}
        if mode == "rnn_relu":
            names = ["Relu"]
        elif len(names) > 1 and gate != "sigmoid":
            names[0] = "HardSigmoid"
            parameters["activation_alpha"] = [SLOPES[gate]] * D
            parameters["activation_beta"] = [0.5] * D
        word = "reverse" if self.call.reverse else "forward"
        word = "bidirectional" if D == 2 else word
        return {"direction": word, "activations": names * D, **parameters}

    def net(self, mode: str, L: int, H: int, weights: _Weights, **more: Any) -> Sequence[Any]:
        """Write the nodes of all layers; return the op's results, without a reserve_space."""
        op, call, D, lengths = self.op, self.call, self.D, None
        x, *states = (call.input, call.input_h, call.input_c)[: 3 if mode == "lstm" else 2]
        K, attributes = x.shape[2], self.attributes(mode) | more
        if call.sequence_lengths is not None:
            lengths = op.Cast(call.sequence_lengths, to=6)  # int32
        if not call.time_major:
            x, *states = (s if s is None else op.Transpose(s, perm=[1, 0, 2]) for s in (x, *states))
        node: Any = getattr(op, _NODES[mode][0])
        lasts: list[list[Any]] = [[] for _ in states]
        for n in range(L):
            first = [s if s is None else self.part(s, n * D, (n + 1) * D) for s in states]
            W, R, B, *P = map(self.stacked, zip(*weights(n, K), strict=True))
            Y, *last = node(x, W, R, B, lengths, *first, *P, hidden_size=H, **attributes)
            x, K = op.Reshape(op.Transpose(Y, perm=[0, 2, 1, 3]), self.ints(0, 0, -1)), D * H
            for found, state in zip(lasts, last, strict=True):
                found.append(state)
        results = [x, *(s[0] if len(s) == 1 else op.Concat(*s, axis=0) for s in lasts)]
        if not call.time_major:
            results = [op.Transpose(s, perm=[1, 0, 2]) for s in results]
        zero = op.CastLike(op.Constant(value_float=0.0), x)
        return *results, *[zero] * (4 - len(results))


def _cudnn_rnn(op: Any, call: SimpleNamespace) -> Any:
    """Write the nodes of cudnn_rnn."""
    name, mode, L, H = "cudnn_rnn", call.rnn_mode, call.num_layers, call.num_units
    write = _Writer(op, name, call)
    if call.num_proj:
        why = "but no node of ONNX projects: expected 0"
        _refuse(name, f"num_proj is {call.num_proj}", why)
    if not L:
        L, H = call.input_h.shape[0 if call.time_major else 1] // write.D, call.input_h.shape[2]
    net = check_net(name, L, H, call.input.shape[2], mode, call.input_mode, call.direction, 0)
    if net.skip:
        why = "but a node of ONNX has input matrices"
        _refuse(name, f"input_mode is {call.input_mode!r}", why)
    flat = [op.Reshape(piece, write.ints(-1)) for piece in call.params]
    whole = op.Concat(*flat, axis=0) if len(flat) > 1 else call.params[0]
    pieces: dict[Any, Any] = {p[:4]: p for p in layout(net)}

    def joined(n: int, d: int, *kinds: str) -> Any:
        """Return all gates of a layer and direction, flat."""
        found = [pieces[kind, n, d, g] for kind in kinds for g in _NODES[mode][1]]
        parts = [write.part(whole, p.offset, p.offset + p.size) for p in found]
        return op.Concat(*parts, axis=0)

    def weights(n: int, K: int) -> Sequence[Sequence[Any]]:
        return [
            (
                op.Reshape(joined(n, d, "input"), write.ints(-1, K)),
                op.Reshape(joined(n, d, "recurrent"), write.ints(-1, H)),
                joined(n, d, "input_bias", "recurrent_bias"),
            )
            for d in range(write.D)
        ]

    return write.net(mode, L, H, weights, **{"linear_before_reset": 1} if mode == "gru" else {})


def _block_direction(write: _Writer, entry: dict[str, Any], K: int, H: int) -> Sequence[Any]:
    """Return the weights of a direction as the inputs of a node."""
    op, bias = write.op, write.call.forget_bias
    if "w" in entry:
        gates, names = _NODES["lstm"][1], GATE_ORDERS[write.call.gate_order]["lstm"]
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


def _stacked_rnn(op: Any, call: SimpleNamespace) -> Any:
    """Write the nodes of stacked_rnn."""
    name, (kind, fields), clip = "stacked_rnn", kind_of(call.names), call.cell_clip or 0.0
    if kind.form is not GRU_FORM and kind.form is not LSTM_FORM:
        _refuse(name, f"weights are of {kind.form.name}", "but no node of ONNX computes it")
    write = _Writer(op, name, call)
    if clip > 0:
        why = "but ONNX's clip bounds the inputs of activations, not cs: expected 0"
        _refuse(name, f"cell_clip is {clip}", why)
    if "w_p" in fields:
        _refuse(name, "w_p is not None", "but no node of ONNX projects")
    entries = [
        {field: t for field, t in entry._asdict().items() if t is not None}
        for entry in block_weights(call.weights, call.names)
    ]
    D, H = write.D, units_of(kind.form, entries[0])

    def of_layer(n: int, K: int) -> Sequence[Sequence[Any]]:
        return [_block_direction(write, entry, K, H) for entry in entries[n * D : (n + 1) * D]]

    return write.net("gru" if kind.form is GRU_FORM else "lstm", len(entries) // D, H, of_layer)


def _gates(name: str, _: SimpleNamespace) -> Any:
    """Refuse a function without a node."""
    raise NotImplementedError(
        f"{name}: a node of ONNX does not return the gates and states of every step; export"
        " stacked_rnn, PeepholeLSTM or BlockGRU"
    )


def _translation(op: Op, write: Callable[..., Any]) -> Callable[..., Any]:
    """Return the translation of an op, whose arguments go to `write`."""
    names = ["tensors", "given", *op.attributes]

    def call(*args: Any, **kwargs: Any) -> Any:
        rest = dict(zip(names, args, strict=False)) | kwargs
        tensors = all_of(rest.pop("tensors"), rest.pop("given"))
        end = len(tensors) - len(op.extras)
        extras = zip(op.extras, tensors[end:], strict=True)
        return write(SimpleNamespace(**op.by_name("p", tensors[:end]), **dict(extras), **rest))

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
