"""
Cases of TensorFlow's recurrent ops. The loops of `cupyrnn.reference` are the correct results.

Gradients are complex-step derivatives of these loops, one for each element of the inputs. In `_RUN`
all arrays have a leading axis, for several tangents at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import reference
from ..weights.params import cudnn_rnn_params_layout, cudnn_rnn_params_size
from .cases import DRAWS, ROUNDING, Case, matters, numbers, tolerances
from .truth import Arrays, gradient, in_front, sensitivity

# TensorFlow's names of peepholes, and the default of cell_clip.
_PEEPHOLES, _CLIP = ("wci", "wcf", "wco"), {"BlockLSTMV2": 0.0}
_SIZES = [(1, 1, 1, 1), (1, 3, 2, 5), (4, 1, 3, 2), (3, 2, 6, 7), (2, 3, 3, 33), (13, 2, 2, 3)]


class Gradient(NamedTuple):
    """The gradient of an op: its op, and whose gradient each of its results and inputs is."""

    op: str
    results: dict[str, str]
    cotangents: dict[str, str]
    # Biases whose gradient is of each example: of the sums before the activations.
    by_example: tuple[str, ...] = ()


_LSTM = Gradient(
    "BlockLSTMGrad",
    {f"{n}_grad": n for n in ("x", "cs_prev", "h_prev", "w", *_PEEPHOLES, "b")},
    {"cs_grad": "cs", "h_grad": "h"},
)
_OF_CELL = {"cs_prev_grad": "cs_prev", "dicfo": "b", **{f"{n}_grad": n for n in _PEEPHOLES}}
_OF_GRU = {"d_x": "x", "d_h_prev": "h_prev", "d_c_bar": "b_c", "d_r_bar_u_bar": "b_ru"}
_OF_NET = {f"{n}_backprop": n for n in ("input", "input_h", "input_c", "params")}
_OF_OUTPUTS = {f"{n}_backprop": n for n in ("output", "output_h", "output_c")}
OPS = {
    "BlockLSTM": _LSTM,
    "BlockLSTMV2": _LSTM._replace(op="BlockLSTMGradV2"),
    "LSTMBlockCell": Gradient("LSTMBlockCellGrad", _OF_CELL, _LSTM.cotangents, ("b",)),
    "GRUBlockCell": Gradient("GRUBlockCellGrad", _OF_GRU, {"d_h": "h"}, ("b_c", "b_ru")),
    "CudnnRNN": Gradient("CudnnRNNBackpropV3", _OF_NET, _OF_OUTPUTS),
}


class OpPlan(NamedTuple):
    """A case before its numbers are drawn."""

    op: str
    attributes: dict[str, Any] = {}  # noqa: RUF012 - never written
    sizes: tuple[int, int, int, int] = (4, 3, 3, 5)  # T, B, I, H
    dtype: str = "float32"
    shorter: bool = False  # seq_len_max, or the length of a sequence, is less than T
    L: int = 1


def plans(op: str) -> Iterator[OpPlan]:
    """Yield the plans of all cases of an op."""
    if op == "CudnnRNN":
        yield from _plans_of_nets()
        return
    dtypes = ("float32", "float64", "float16")
    choices: list[dict[str, Any]] = [{}]
    if "LSTM" in op:
        biases: list[dict[str, Any]] = [{}, {"forget_bias": 0.0}, {"forget_bias": -0.5}]
        clips: list[dict[str, Any]] = [{}, {"cell_clip": 0.0}, {"cell_clip": 0.375}]
        given = biases[: 1 if op == "BlockLSTMV2" else 3], clips, [{}, {"use_peephole": True}]
        choices = [a | b | c for a, b, c in itertools.product(*given)]
    shorter = (False, True) if op.startswith("Block") else (False,)
    for attributes, is_shorter, dtype in itertools.product(choices, shorter, dtypes):
        yield OpPlan(op, attributes, dtype=dtype, shorter=is_shorter)
    for attributes, sizes in itertools.product((choices[0], choices[-1]), _SIZES):
        yield OpPlan(op, attributes, sizes)


def _plans_of_nets() -> Iterator[OpPlan]:
    modes, directions = ("lstm", "gru", "rnn_tanh", "rnn_relu"), ("unidirectional", "bidirectional")
    for mode, direction, L in itertools.product(modes, directions, (1, 2)):
        net = {"rnn_mode": mode, "direction": direction}
        for shorter, dtype in itertools.product((False, True), ("float32", "float64", "float16")):
            yield OpPlan("CudnnRNN", net, (4, 3, 3, 4), dtype, shorter, L)
        yield OpPlan("CudnnRNN", net | {"input_mode": "skip_input"}, (3, 2, 4, 4), L=L)
        yield OpPlan("CudnnRNN", net | {"time_major": False}, (3, 2, 3, 4), shorter=True, L=L)
        if mode == "lstm":
            yield OpPlan("CudnnRNN", net | {"num_proj": 2}, (3, 2, 3, 4), shorter=True, L=L)
        yield from (OpPlan("CudnnRNN", net, sizes, L=L) for sizes in _SIZES[:2])


def cases(op: str) -> Iterator[Case]:
    """Yield the cases of an op. They are the same in every run."""
    drawn = (draw(n, plan) for n, plan in enumerate(plans(op)))
    return (case for case in drawn if case is not None)


def draw(n: int, plan: OpPlan) -> Case | None:
    """Return the n-th case of an op, drawn until every attribute matters; None if none does."""
    rounding, (op, attributes, *_) = ROUNDING[plan.dtype], plan
    for attempt in range(DRAWS):
        rng = np.random.default_rng([len(op), n, attempt])
        inputs = _inputs(plan, rng)
        outputs = run(op, inputs, attributes)
        changes = sensitivity(lambda arrays: _RUN[op](arrays, attributes), inputs, rng)
        tolerance = tolerances(rounding, outputs, changes)
        if matters(outputs, tolerance, _ignoring(plan, inputs)):
            break
    else:
        return None
    cotangents, gradients = {}, {}
    # TensorFlow's gradient does not know the clip.
    clipped = attributes.get("cell_clip", _CLIP.get(op, 3.0 * ("LSTM" in op)))
    if not clipped or float(np.abs(outputs["cs"]).max()) < clipped:
        of = OPS[op]
        cotangents = {
            k: numbers(rng, 64, *outputs[a].shape) for k, a in of.cotangents.items() if a in outputs
        }
        for name, of_input in of.results.items():
            if of_input in inputs and (of_input not in _PEEPHOLES or "use_peephole" in attributes):
                gradients[name] = _derivative(plan, inputs, cotangents, of_input)
    allowed = tolerances(4 * rounding * (1 + max(changes.values())), gradients)
    T, B, *_ = plan.sizes
    has = {
        op: True, plan.dtype: plan.dtype != "float32",
        **{f"{k}={v}": True for k, v in attributes.items()},
        **{"shorter than T": plan.shorter, "T=1": T == 1, "B=1": B == 1, f"L={plan.L}": plan.L > 1},
    }  # fmt: skip
    return Case(
        f"{op.lower()}_{n:04d}", plan, tuple(name for name, there in has.items() if there),
        inputs, outputs, tolerance, cotangents, gradients, allowed,
    )  # fmt: skip


def _inputs(plan: OpPlan, rng: np.random.Generator) -> Arrays:
    """Draw the inputs of an op by TensorFlow's names."""
    (T, B, I, H), a, op = plan.sizes, plan.attributes, plan.op
    weights = int(96 / (max(I, H) / 4 + 1) ** 0.5)
    if op == "CudnnRNN":
        D, P = 1 + (a["direction"] == "bidirectional"), a.get("num_proj", 0) or H
        sizes = plan.L, H, I
        net = {k: v for k, v in a.items() if k != "time_major"}
        axes, places = (
            ((T, B), (plan.L * D, B)) if a.get("time_major", True) else ((B, T), (B, plan.L * D))
        )
        inputs = {"input": numbers(rng, 96, *axes, I), "input_h": numbers(rng, 64, *places, P)}
        if a["rnn_mode"] == "lstm":
            inputs["input_c"] = numbers(rng, 64, *places, H)
        inputs["params"] = numbers(rng, weights, cudnn_rnn_params_size(*sizes, **net))
        lengths = rng.integers(0, T + 1, B) if plan.shorter else np.full(B, T)
        return inputs | {"sequence_lengths": lengths.astype(np.int32)}
    steps = (T, B) if op.startswith("Block") else (B,)
    inputs = {"x": numbers(rng, 96, *steps, I), "h_prev": numbers(rng, 64, B, H)}
    if op == "GRUBlockCell":
        for name, columns in (("ru", 2 * H), ("c", H)):
            inputs |= {f"w_{name}": numbers(rng, weights, I + H, columns)}
            inputs |= {f"b_{name}": numbers(rng, 64, columns)}
        return inputs
    inputs |= {"cs_prev": numbers(rng, 64, B, H), "w": numbers(rng, weights, I + H, 4 * H)}
    inputs |= {name: numbers(rng, 64, H) for name in _PEEPHOLES} | {"b": numbers(rng, 64, 4 * H)}
    if op.startswith("Block"):
        inputs["seq_len_max"] = np.array(T - (T > 1 and plan.shorter))
    return inputs


def _ignoring(plan: OpPlan, inputs: Arrays) -> Iterator[Arrays]:
    """Yield the outputs of implementations that each ignore one thing."""
    op, a, (T, *_), *_ = plan
    for name in ("forget_bias", "cell_clip", "use_peephole"):
        if a.get(name) or (name in a and name == "forget_bias"):
            without = {k: v for k, v in a.items() if k != name}
            yield run(op, inputs, without | ({"cell_clip": 0.0} if name == "cell_clip" else {}))
    if plan.shorter and T > 1:
        name = "sequence_lengths" if op == "CudnnRNN" else "seq_len_max"
        yield run(op, inputs | {name: np.full_like(inputs[name], T)}, a)


def run(op: str, inputs: Arrays, attributes: dict[str, Any]) -> Arrays:
    """Return the outputs of an op, from inputs without the leading axis."""
    return {k: a[0] for k, a in _RUN[op](in_front(inputs, 1), attributes).items()}


def _derivative(plan: OpPlan, inputs: Arrays, cotangents: Arrays, name: str) -> Any:
    """Return the gradient of sum(outputs * cotangents) of an input, by complex step."""
    of = OPS[plan.op]
    if name in of.by_example:
        inputs = inputs | {name: np.repeat(inputs[name][None], plan.sizes[1], 0)}
    by_output = {of.cotangents[k]: g for k, g in cotangents.items()}
    return gradient(lambda a: _RUN[plan.op](a, plan.attributes), inputs, name, by_output)


def _lstm(op: str) -> Callable[[Arrays, dict[str, Any]], Arrays]:
    """Return the loop of one of the block LSTMs."""
    order, is_block = "ifco" if op == "BlockLSTMV2" else "icfo", op.startswith("Block")

    def outputs(arrays: Arrays, a: dict[str, Any]) -> Arrays:
        x = np.moveaxis(arrays["x"], 1, 0) if is_block else arrays["x"][None]
        steps = int(arrays.get("seq_len_max", len(x)))
        peepholes = [arrays[n][:, None] if a.get("use_peephole") else 0 for n in _PEEPHOLES]
        clip = a.get("cell_clip", _CLIP.get(op, 3.0))
        cs_prev, h_prev, w, b = (arrays[n] for n in ("cs_prev", "h_prev", "w", "b"))
        wci, wcf, wco = peepholes
        results = reference.lstm(
            x[:steps], cs_prev, h_prev, w, _rows(b), wci, wcf, wco,
            forget_bias=0 if op == "BlockLSTMV2" else a.get("forget_bias", 1.0),
            cell_clip=clip if clip > 0 else None, gate_order=order,
        )  # fmt: skip
        return _named(results, len(x), is_block)

    return outputs


def _gru(arrays: Arrays, attributes: dict[str, Any]) -> Arrays:
    matrices = (arrays[n] for n in ("h_prev", "w_ru", "w_c"))
    biases = (_rows(arrays[n]) for n in ("b_ru", "b_c"))
    return _named(reference.gru(arrays["x"][None], *matrices, *biases), 1, False)


def _rows(b: Any) -> Any:
    """Return biases [N, ·], or of each example [N, B, ·], as they are added to rows [N, B, ·]."""
    return b if b.ndim == 3 else b[:, None]


def _named(outputs: Any, T: int, is_block: bool) -> Arrays:
    """Return outputs [N, T, B, H], with zeros after the last step, or [N, B, H] of one step."""
    if not is_block:
        return {k: a[0] for k, a in outputs._asdict().items()}
    padding = [(0, T - len(outputs.h)), (0, 0), (0, 0), (0, 0)]
    return {k: np.moveaxis(np.pad(a, padding), 0, 1) for k, a in outputs._asdict().items()}


def _net(arrays: Arrays, a: dict[str, Any]) -> Arrays:
    """CudnnRNN: each sequence, layer and direction by itself."""
    major, mode = a.get("time_major", True), a["rnn_mode"]
    x, h, c = (
        arrays.get(n) if major or n not in arrays else arrays[n].swapaxes(1, 2)
        for n in ("input", "input_h", "input_c")
    )
    assert x is not None and h is not None  # noqa: PT018
    D, (N, LD, B, P) = 1 + (a["direction"] == "bidirectional"), h.shape
    H = P if c is None else c.shape[3]
    net = {k: v for k, v in a.items() if k != "time_major"}
    pieces = cudnn_rnn_params_layout(LD // D, H, x.shape[3], **net)

    def of(n: int, kind: str) -> Any:
        """Return the parts of one layer and direction side by side, [N, K, ·] or [N, 1, ·]."""
        parts = [
            arrays["params"][:, p.offset : p.offset + p.size].reshape(N, -1, p.shape[-1])
            for p in pieces
            if (p.layer * D + p.direction, p.kind) == (n, kind) and p.size
        ]
        if not parts:
            return None
        is_bias = kind.endswith("bias")
        return np.concatenate(parts if is_bias else [p.swapaxes(1, 2) for p in parts], -1)

    below, last_h = np.moveaxis(x, 1, 0), np.array(h)  # [T, N, B, ·]
    last_c = None if c is None else np.array(c)
    for layer in range(LD // D):
        dtype = np.result_type(below, arrays["params"], h)
        output = np.zeros((*below.shape[:3], D * P), dtype)
        last_h = last_h.astype(dtype)
        last_c = None if last_c is None else last_c.astype(dtype)
        for d, b in itertools.product(range(D), range(B)):
            n, steps = layer * D + d, int(arrays["sequence_lengths"][b])
            if not steps:
                continue
            rows = below[:steps, :, b : b + 1][:: -1 if d else 1]
            w_h, b_x, b_h = (of(n, k) for k in ("recurrent", "input_bias", "recurrent_bias"))
            w_x = of(n, "input")
            if w_x is None:  # skip_input
                w_x = np.repeat(np.tile(np.eye(rows.shape[3]), w_h.shape[2] // H)[None], N, 0)
            first = h[:, n, b : b + 1]
            outputs: Any
            if last_c is not None and c is not None:
                w = np.concatenate([w_x, w_h], 1)
                args = rows, c[:, n, b : b + 1], first, w, b_x + b_h
                outputs = reference.lstm(*args, w_p=of(n, "projection"), gate_order="ifco")
                last_c[:, n, b] = outputs.cs[-1][:, 0]
            elif mode == "gru":
                outputs = reference.gru_reset_after(rows, first, w_x, w_h, b_x, b_h)
            else:
                outputs = reference.simple_rnn(
                    rows, first, w_x, w_h, b_x + b_h, relu=mode == "rnn_relu"
                )
            output[:steps, :, b, d * P : (d + 1) * P] = outputs.h[:: -1 if d else 1][:, :, 0]
            last_h[:, n, b] = outputs.h[-1][:, 0]
        below = output
    results = {"output": np.moveaxis(below, 0, 1), "output_h": last_h}
    results |= {} if last_c is None else {"output_c": last_c}
    return results if major else {k: a.swapaxes(1, 2) for k, a in results.items()}


_RUN: dict[str, Callable[[Arrays, dict[str, Any]], Arrays]] = {
    **{op: _lstm(op) for op in ("BlockLSTM", "BlockLSTMV2", "LSTMBlockCell")},
    "GRUBlockCell": _gru,
    "CudnnRNN": _net,
}
