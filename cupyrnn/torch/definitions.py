"""The functions of `cupyrnn.torch` as PyTorch ops: their names, shapes and calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from .. import _ops
from .._net import reserve_layout
from .._ops import Record
from ..cells.block_forms import GRU_FORM, LSTM_FORM, PEEPHOLES
from ..cells.block_weights import BlockGRUParams, PeepholeLSTMParams
from ..cells.gru import GRUOutputs
from ..cells.lstm import LSTMOutputs
from ..cells.packed import Net
from ..checks.arrays import module_of
from ..driver.packing import Rows
from ..driver.reserve import NOTE_SIZE, ReserveLayout, Sizes
from .ops import Named, Op


class _BlockOp(Op):
    """The op of a block op with these results, all of the shape of h."""

    def __init__(self, record: Record, fields: tuple[str, ...]) -> None:
        results = (*record.outputs, *(n for n in fields if n not in record.outputs))
        steps = int(bool(record.extras))
        axes = dict.fromkeys(("x", *results), steps)
        axes |= {"cs_prev": 0, "h_prev": 0, "sequence_lengths": 0, "resets": 1}
        super().__init__(record, results, results, record.extras, record.attributes, axes)

    def arguments(self, inputs: Named, rest: Named) -> Named:
        return {**dict.fromkeys(self.inputs), **inputs, **rest}

    def gradient_arguments(
        self, inputs: Named, results: Named, cotangents: Named, rest: Named
    ) -> Named:
        if not cotangents:  # a GRU's gradient requires one
            cotangents = {"h": results["h"] * 0}
        return self.record.gradient_call(self.arguments(inputs, rest), results, cotangents)

    def shapes(self, inputs: Named, rest: Named) -> dict[str, tuple[int, ...]]:
        shape = *inputs["x"].shape[:-1], inputs["h_prev"].shape[-1]
        return dict.fromkeys(self.results, shape)


LSTM_BLOCK_CELL = _BlockOp(_ops.LSTM_BLOCK_CELL, LSTMOutputs._fields)
BLOCK_LSTM = _BlockOp(_ops.BLOCK_LSTM, LSTMOutputs._fields)
GRU_BLOCK_CELL = _BlockOp(_ops.GRU_BLOCK_CELL, GRUOutputs._fields)
BLOCK_GRU = _BlockOp(_ops.BLOCK_GRU, GRUOutputs._fields)


def _sizes(inputs: Named, rest: Named) -> tuple[int, int, int, int]:
    """Return L, D, H and P."""
    D = 1 + (rest["direction"] == "bidirectional")
    state = inputs["input_h"].shape
    H = inputs["input_c"].shape[2] if "input_c" in inputs else state[2]
    return state[0 if rest["time_major"] else 1] // D, D, H, state[2]


def _reserve_size(inputs: Named, rest: Named) -> Any:
    """Return the size of reserve_space, which the compiler asks for; it may be symbolic."""
    (T, B), major, every = inputs["input"].shape[:2], rest["time_major"], rest["save"] or None
    T, B = (T, B) if major else (B, T)
    L, D, H, P = _sizes(inputs, rest)
    # The size of the input does not matter.
    net = Net(rest.get("rnn_mode", "lstm"), False, L, H, 0, D, P)
    sizes, rows = Sizes(T, B, True, rest["dropout"], 0, 0), Rows(np, T, B)
    if "rnn_mode" in rest:
        layout = reserve_layout(net, sizes, rows, every)
    else:
        form = LSTM_FORM if "input_c" in inputs else GRU_FORM
        layout = ReserveLayout(net, sizes, form.Saved, form.States, rows, every)
    if every is None:
        return layout.size
    size = layout.size + NOTE_SIZE  # as reserve.reserve_size has it
    return torch.sym_ite(size == layout.with_every(None).size, size + 1, size)


# The weights of stacked_rnn are one vector: layer 0 forward, layer 0 backward and so on. Each part
# has the weights that the attribute `names` lists, in this order.


def block_shapes(names: Sequence[str], K: int, H: int, P: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a layer whose input has width K."""
    shapes = {
        **{"w": (K + P, 4 * H), "b": (4 * H,), "w_p": (H, P)},
        **dict.fromkeys(PEEPHOLES, (H,)),
        **{"w_ru": (K + H, 2 * H), "w_c": (K + H, H), "b_ru": (2 * H,), "b_c": (H,)},
    }
    return {name: shapes[name] for name in names}


def _block_weights(inputs: Named, rest: Named) -> list[Any]:
    """Return the weights of all layers and directions: the pieces, or views of the vector."""
    L, D, H, P = _sizes(inputs, rest)
    kind: Any = PeepholeLSTMParams if "input_c" in inputs else BlockGRUParams
    whole, start, entries = inputs["weights"], 0, []
    pieces = iter(whole) if isinstance(whole, tuple) else None
    for n in range(L * D):
        K = D * P if n >= D else inputs["input"].shape[2]
        parts = {}
        for name, shape in block_shapes(rest["names"].split(), K, H, P).items():
            if pieces is not None:
                parts[name] = next(pieces)
                continue
            end = start + math.prod(shape)
            parts[name], start = whole[start:end].reshape(shape), end
        entries.append(kind(**parts))
    return entries


def _joined(arrays: Sequence[Any]) -> Any:
    """Return arrays flattened and joined."""
    # By NumPy: after PyTorch's own op its threads seem to spin on the cores that ours need.
    return module_of(arrays[0]).concatenate([a.reshape(-1) for a in arrays])


def _arguments(inputs: Named, rest: Named) -> Named:
    """Return the arguments of a net; on a device it uses this package's kernels, never cuDNN."""
    found = {"input_c": None, **inputs, **rest, "save": rest["save"] or "all"}
    seeds = found.pop("seeds")
    found["seed"], found["seed2"] = (0, 0) if seeds is None else seeds.tolist()
    if "params" in inputs:
        if isinstance(inputs["params"], tuple):
            found["params"] = _joined(inputs["params"])
        found["engine"] = "auto" if isinstance(inputs["input"], np.ndarray) else "cupy"
        return found
    found["weights"] = _block_weights(inputs, rest)
    del found["names"]
    if "input_c" not in inputs:
        found |= {"forget_bias": None, "cell_clip": None}
    return found


class _NetOp(Op):
    """The op of a net; save is k, or 0 for all."""

    def __init__(self, record: Record, first: str = "") -> None:
        results, saved = (*record.outputs, "reserve_space"), ("reserve_space",)
        attributes = f"{first}{record.attributes}, bool is_training, int save"
        super().__init__(record, results, saved, (*record.extras, "seeds"), attributes)
        self.shown = len(record.outputs)

    def arguments(self, inputs: Named, rest: Named) -> Named:
        return _arguments(inputs, rest)

    def gradient_arguments(
        self, inputs: Named, results: Named, cotangents: Named, rest: Named
    ) -> Named:
        if "input_c" not in inputs:
            cotangents = {n: a for n, a in cotangents.items() if n != "output_c"}
        return self.record.gradient_call(_arguments(inputs, rest), results, cotangents)

    def gradients_of(self, found: Any, inputs: Named, rest: Named) -> Named:
        grads = super().gradients_of(found, inputs, rest)
        if "weights" in grads:
            names = rest["names"].split()
            grads["weights"] = [getattr(e, name) for e in grads["weights"] for name in names]
        return grads

    def gradients(self, inputs: Named, results: Named, cotangents: Named, rest: Named) -> Named:
        grads, name = super().gradients(inputs, results, cotangents, rest), self.inputs[-1]
        grad, of = grads[name], inputs[name]
        if isinstance(grad, list) and not isinstance(of, tuple):
            grads[name] = _joined(grad)
        elif isinstance(of, tuple) and not isinstance(grad, list):
            ends = accumulate((a.size for a in of), initial=0)
            parts = zip(pairwise(ends), of, strict=True)
            grads[name] = [grad[start:end].reshape(a.shape) for (start, end), a in parts]
        return grads

    def shapes(self, inputs: Named, rest: Named) -> dict[str, tuple[Any, ...]]:
        tensors = {n: t for n, t in inputs.items() if t is not None}
        x, h = inputs["input"].shape, inputs["input_h"].shape
        D = 1 + (rest["direction"] == "bidirectional")
        return {
            "output": (*x[:2], D * h[2]),
            "output_h": tuple(h),
            "output_c": tuple(tensors["input_c"].shape) if "input_c" in tensors else (),
            "reserve_space": (_reserve_size(tensors, rest),) if rest["is_training"] else (),
        }


CUDNN_RNN = _NetOp(_ops.CUDNN_RNN)
CUDNN_RNN.without_input = {"input_gradient": False}
STACKED_RNN = _NetOp(_ops.STACKED_RNN, "str names, ")
