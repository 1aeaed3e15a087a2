"""The functions as nodes of ONNX, for torch.onnx.export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..weights.params import GATES, check_net, layout
from .definitions import block_shapes

# The gates in the order of ONNX's nodes, by the names of the packed vector.
_ORDER = {"lstm": ("i", "o", "f", "ci"), "gru": ("u", "r", "c"), "rnn_tanh": ("h",)}
_ORDER["rnn_relu"] = _ORDER["rnn_tanh"]
_BLOCK_LSTM = {"icfo": ("i", "ci", "f", "o"), "ifco": ("i", "f", "ci", "o")}
_SLOPES = {"hard_sigmoid_0.2": 0.2, "hard_sigmoid_1/6": 1 / 6}
_NODES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


def _refuse(function: str, argument: str, value: object, why: str) -> None:
    raise NotImplementedError(f"{function}: {argument} is {value!r}, {why}")


class _Writer:
    """Writes the nodes of one call, with the ops of an opset."""

    def __init__(self, op: Any) -> None:
        self.op = op

    def ints(self, *values: int) -> Any:
        return self.op.Constant(value_ints=list(values))

    def part(self, t: Any, start: int, end: int, axis: int = 0) -> Any:
        return self.op.Slice(t, self.ints(start), self.ints(end), self.ints(axis))

    def matrices(self, parts: Sequence[Any], K: int) -> Any:
        """Return gates [H, K], of all directions in turn, as [1, G*H, K]."""
        whole = self.op.Concat(*parts, axis=0)
        return self.op.Reshape(whole, self.ints(1, -1, K))

    def layer(
        self, mode: str, x: Any, weights: Sequence[Any], states: Sequence[Any], H: int,
        attributes: dict[str, Any], lengths: Any = None, peepholes: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Write the node of a layer over x [T, B, K]; return its output and its last states."""
        gate, D = attributes.pop("recurrent_activation"), attributes.pop("D")
        lstm = mode == "lstm"
        inner = ["Tanh"] * (1 + lstm) if mode != "rnn_relu" else ["Relu"]
        outer = [] if mode.startswith("rnn") else ["Sigmoid"]
        if outer and gate != "sigmoid":
            outer = ["HardSigmoid"]
            attributes |= {"activation_alpha": [_SLOPES[gate]] * D, "activation_beta": [0.5] * D}
        attributes |= {"activations": [*outer, *inner] * D, "hidden_size": H}
        more = [peepholes] if peepholes is not None else []
        node: Any = getattr(self.op, _NODES[mode])
        Y, *last = node(x, *weights, lengths, *states, *more, **attributes)
        output = self.op.Reshape(self.op.Transpose(Y, perm=[0, 2, 1, 3]), self.ints(0, 0, -1))
        return output, *last

    def net(
        self,
        layers: Sequence[tuple[Sequence[Any], Any]],
        mode: str,
        given: tuple[Any, Any, Any],
        H: int,
        attributes: dict[str, Any],
        *,
        sequence_lengths: Any,
        time_major: bool,
    ) -> tuple[Any, ...]:
        """Write the nodes of all layers; return what the op does, without a reserve_space."""
        op, lengths, D = self.op, None, attributes["D"]
        if sequence_lengths is not None:
            lengths = op.Cast(sequence_lengths, to=6)  # int32
        x, *states = [s for s in given if s is not None]
        if not time_major:
            x, *states = (op.Transpose(s, perm=[1, 0, 2]) for s in (x, *states))
        lasts: list[list[Any]] = [[] for _ in states]
        for n, (weights, peepholes) in enumerate(layers):
            first = [self.part(s, n * D, (n + 1) * D) for s in states]
            x, *last = self.layer(
                mode, x, weights, first, H, dict(attributes), lengths, peepholes
            )  # fmt: skip
            for found, state in zip(lasts, last, strict=True):
                found.append(state)
        results = [x, *(s[0] if len(s) == 1 else op.Concat(*s, axis=0) for s in lasts)]
        if not time_major:
            results = [op.Transpose(s, perm=[1, 0, 2]) for s in results]
        zero = op.CastLike(op.Constant(value_float=0.0), x)
        return *results, *[zero] * (4 - len(results))


def _direction(direction: str, reverse: bool) -> tuple[str, int]:
    if direction == "bidirectional":
        return "bidirectional", 2
    return "reverse" if reverse else "forward", 1


def _check(function: str, resets: Any, dropout: float = 0.0, cell_clip: float = 0.0) -> None:
    """Refuse what no node says."""
    if resets is not None:
        _refuse(function, "resets", "given", "which no node of ONNX has")
    if dropout > 0:
        _refuse(function, "dropout", dropout, "export the module after eval()")
    if cell_clip > 0:
        why = "but ONNX's clip bounds what the activations are of, not cs: expected 0"
        _refuse(function, "cell_clip", cell_clip, why)


def _cudnn_rnn(op: Any) -> Callable[..., Any]:
    def cudnn_rnn(
        input: Any, input_h: Any, input_c: Any, params: Any, sequence_lengths: Any, resets: Any,
        seeds: Any, rnn_mode: str, input_mode: str, direction: str, dropout: float, num_proj: int,
        recurrent_activation: str, time_major: bool, reverse: bool, is_training: bool, save: int,
    ) -> Any:  # fmt: skip
        name = "cudnn_rnn"
        _check(name, resets, dropout)
        if num_proj:
            _refuse(name, "num_proj", num_proj, "but no node of ONNX projects: expected 0")
        I, H = input.shape[2], input_h.shape[2]
        word, D = _direction(direction, reverse)
        L = input_h.shape[0 if time_major else 1] // D
        net = check_net(name, L, H, I, rnn_mode, input_mode, direction, 0)
        if net.skip:
            _refuse(name, "input_mode", input_mode, "but a node of ONNX has input matrices")
        write = _Writer(op)
        pieces: dict[tuple[str, int, int, str], Any] = {}
        for p in layout(net):
            pieces[p.kind, p.layer, p.direction, p.gate] = p

        def gates(kind: str, n: int, d: int) -> list[Any]:
            found = [pieces[kind, n, d, gate] for gate in _ORDER[rnn_mode]]
            return [write.part(params, p.offset, p.offset + p.size) for p in found]

        layers = []
        for n in range(L):
            K = D * H if n else I
            W, R = (
                op.Concat(*[write.matrices(gates(kind, n, d), size) for d in range(D)], axis=0)
                for kind, size in (("input", K), ("recurrent", H))
            )
            biases = [
                write.matrices([*gates("input_bias", n, d), *gates("recurrent_bias", n, d)], 1)
                for d in range(D)
            ]
            B = op.Reshape(op.Concat(*biases, axis=0), write.ints(D, 2 * len(GATES[rnn_mode]) * H))
            layers.append(((W, R, B), None))
        attributes = {"direction": word, "D": D, "recurrent_activation": recurrent_activation}
        if rnn_mode == "gru":
            attributes["linear_before_reset"] = 1
        return write.net(
            layers, rnn_mode, (input, input_h, input_c), H, attributes,
            sequence_lengths=sequence_lengths, time_major=time_major,
        )  # fmt: skip

    return cudnn_rnn


def _block_layer(
    write: _Writer, entries: Sequence[dict[str, Any]], K: int, H: int, order: str, bias: float
) -> tuple[Sequence[Any], Any]:
    """Return the weights of a layer as a node has them, and its peepholes."""
    op, W, R, B, P = write.op, [], [], [], []
    for entry in entries:
        if "w" in entry:
            names = _BLOCK_LSTM[order]
            columns = {g: (entry["w"], n * H) for n, g in enumerate(names)}
            sums = {g: write.part(entry["b"], n * H, (n + 1) * H) for n, g in enumerate(names)}
            if bias:
                given = op.CastLike(op.Constant(value_float=bias), entry["b"])
                sums["f"] = op.Add(sums["f"], given)
            if "wci" in entry:
                P.append(op.Concat(*[entry[n] for n in ("wci", "wco", "wcf")], axis=0))
            gates = _ORDER["lstm"]
        else:
            columns = {"r": (entry["w_ru"], 0), "u": (entry["w_ru"], H), "c": (entry["w_c"], 0)}
            b_ru = entry["b_ru"]
            sums = {"r": write.part(b_ru, 0, H), "u": write.part(b_ru, H, 2 * H)}
            sums["c"], gates = entry["b_c"], _ORDER["gru"]
        parts = []
        for gate in gates:
            matrix, start = columns[gate]
            parts.append(op.Transpose(write.part(matrix, start, start + H, 1), perm=[1, 0]))
        whole = op.Concat(*parts, axis=0)  # [G*H, K+H]
        W.append(op.Unsqueeze(write.part(whole, 0, K, 1), write.ints(0)))
        R.append(op.Unsqueeze(write.part(whole, K, K + H, 1), write.ints(0)))
        b = op.Concat(*[sums[gate] for gate in gates], axis=0)
        zeros = op.Sub(b, b)
        B.append(op.Unsqueeze(op.Concat(b, zeros, axis=0), write.ints(0)))
    joined = [op.Concat(*parts, axis=0) for parts in (W, R, B)]
    peepholes = op.Concat(*[op.Unsqueeze(p, write.ints(0)) for p in P], axis=0) if P else None
    return joined, peepholes


def _stacked_rnn(op: Any) -> Callable[..., Any]:
    def stacked_rnn(
        input: Any, input_h: Any, input_c: Any, weights: Any, sequence_lengths: Any, resets: Any,
        seeds: Any, names: str, direction: str, dropout: float, forget_bias: float,
        cell_clip: float, gate_order: str, recurrent_activation: str, time_major: bool,
        reverse: bool, is_training: bool, save: int,
    ) -> Any:  # fmt: skip
        name, mode = "stacked_rnn", "gru" if input_c is None else "lstm"
        _check(name, resets, dropout, cell_clip if mode == "lstm" else 0)
        fields = names.split()
        if "w_p" in fields:
            _refuse(name, "w_p", "given", "but no node of ONNX projects")
        I, H = input.shape[2], input_h.shape[2]
        word, D = _direction(direction, reverse)
        write, start, layers = _Writer(op), 0, []
        for n in range(input_h.shape[0 if time_major else 1] // D):
            K, entries = D * H if n else I, []
            for _ in range(D):
                entry = {}
                for field, shape in block_shapes(fields, K, H, H).items():
                    end = start + torch.Size(shape).numel()
                    entry[field] = op.Reshape(write.part(weights, start, end), write.ints(*shape))
                    start = end
                entries.append(entry)
            layers.append(_block_layer(write, entries, K, H, gate_order, forget_bias))
        attributes = {"direction": word, "D": D, "recurrent_activation": recurrent_activation}
        return write.net(
            layers, mode, (input, input_h, input_c), H, attributes,
            sequence_lengths=sequence_lengths, time_major=time_major,
        )  # fmt: skip

    return stacked_rnn


def _gates(name: str) -> Callable[..., Any]:
    """Return the translation of a function that no node is: one that says so."""

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
    ops: Any = torch.ops.cupyrnn
    return {
        ops.cudnn_rnn.default: _cudnn_rnn(opset18),
        ops.stacked_rnn.default: _stacked_rnn(opset18),
        **{
            getattr(ops, name).default: _gates(name)
            for name in ("block_lstm", "block_gru", "lstm_block_cell", "gru_block_cell")
        },
    }
