"""The functions as nodes of ONNX, for torch.onnx.export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..cells.block_forms import GRU_FORM, LSTM_FORM
from ..cells.packed import GATE_ORDERS
from ..weights.activations import DEFAULTS, SLOPES
from ..weights.params import check_net, layout
from .definitions import kind_of, shapes_of
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
    sequence_lengths: Any
    direction: str
    reverse: bool
    recurrent_activation: str
    time_major: bool

    @property
    def D(self) -> int:
        """The number of directions."""
        return 1 + (self.direction == "bidirectional")

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
        op, lengths, D = self.op, None, run.D
        x, *states = [s for s in inputs if s is not None]
        K, H, L = x.shape[2], states[0].shape[2], states[0].shape[0 if run.time_major else 1] // D
        if run.sequence_lengths is not None:
            lengths = op.Cast(run.sequence_lengths, to=6)  # int32
        if not run.time_major:
            x, *states = (op.Transpose(s, perm=[1, 0, 2]) for s in (x, *states))
        node: Any = getattr(op, _NODES[run.mode][0])
        lasts: list[list[Any]] = [[] for _ in states]
        for n in range(L):
            first = [self.part(s, n * D, (n + 1) * D) for s in states]
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


def _cudnn_rnn(op: Any) -> Callable[..., Any]:
    def cudnn_rnn(
        input: Any, input_h: Any, input_c: Any, params: Any, sequence_lengths: Any, resets: Any,
        seeds: Any, rnn_mode: str, input_mode: str, direction: str, dropout: float, num_proj: int,
        recurrent_activation: str, time_major: bool, reverse: bool, is_training: bool, save: int,
    ) -> Any:  # fmt: skip
        name = "cudnn_rnn"
        _check(name, resets, dropout)
        if num_proj:
            _refuse(name, f"num_proj is {num_proj}", "but no node of ONNX projects: expected 0")
        run = _NetSettings(
            rnn_mode, sequence_lengths, direction, reverse, recurrent_activation, time_major
        )
        I, H, L = input.shape[2], input_h.shape[2], input_h.shape[0 if time_major else 1] // run.D
        net = check_net(name, L, H, I, rnn_mode, input_mode, direction, 0)
        if net.skip:
            _refuse(name, f"input_mode is {input_mode!r}", "but a node of ONNX has input matrices")
        write = _Writer(op)
        pieces: dict[Any, Any] = {p[:4]: p for p in layout(net)}

        def joined(n: int, d: int, *kinds: str) -> Any:
            """Return all gates of a layer and direction, flat."""
            found = [pieces[kind, n, d, g] for kind in kinds for g in _NODES[rnn_mode][1]]
            parts = [write.part(params, p.offset, p.offset + p.size) for p in found]
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

    return cudnn_rnn


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


def _stacked_rnn(op: Any) -> Callable[..., Any]:
    def stacked_rnn(
        input: Any, input_h: Any, input_c: Any, weights: Any, sequence_lengths: Any, resets: Any,
        seeds: Any, names: str, direction: str, dropout: float, forget_bias: float,
        cell_clip: float, gate_order: str, recurrent_activation: str, proj_clip: float,
        time_major: bool, reverse: bool, is_training: bool, save: int,
    ) -> Any:  # fmt: skip
        name, (kind, fields) = "stacked_rnn", kind_of(names)
        mode, H = "gru" if kind.form is GRU_FORM else "lstm", input_h.shape[2]
        if kind.form is not GRU_FORM and kind.form is not LSTM_FORM:
            _refuse(name, f"weights are of {kind.form.name}", "but no node of ONNX computes it")
        _check(name, resets, dropout, cell_clip or 0.0)
        if "w_p" in fields:
            _refuse(name, "w_p is not None", "but no node of ONNX projects")
        run = _NetSettings(
            mode, sequence_lengths, direction, reverse, recurrent_activation, time_major
        )
        write, start = _Writer(op), 0

        def of_layer(n: int, K: int) -> Sequence[Sequence[Any]]:
            nonlocal start
            entries: list[dict[str, Any]] = [{} for _ in range(run.D)]
            for entry in entries:
                for field, shape in shapes_of(kind.form, fields, K, H, H).items():
                    end = start + torch.Size(shape).numel()
                    entry[field] = op.Reshape(write.part(weights, start, end), write.ints(*shape))
                    start = end
            return [_block_direction(write, e, K, H, gate_order, forget_bias) for e in entries]

        return write.net(run, (input, input_h, input_c), of_layer)

    return stacked_rnn


def _gates(name: str) -> Callable[..., Any]:
    """Return the translation of a function without a node: it raises an error."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{name}: a node of ONNX does not return the gates and states of every step; export"
            " stacked_rnn, PeepholeLSTM or BlockGRU"
        )

    return refuse


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
    ops: Any = torch.ops.cupyrnn
    return {
        ops.cudnn_rnn.default: _cudnn_rnn(opset18),
        ops.stacked_rnn.default: _stacked_rnn(opset18),
        **{
            getattr(ops, name).default: _gates(name)
            for name in ("block_lstm", "block_gru", "lstm_block_cell", "gru_block_cell")
        },
    }
