"""The functions of `cupyrnn.torch` as PyTorch ops: their names, shapes and calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from .. import _ops
from .._ops import Schema
from .._typing import NamedTuple
from ..cells.block_forms import GRU_FORM, LSTM_FORM
from ..cells.block_weights import BlockGRUParams, PeepholeLSTMParams
from ..cells.contract import Form
from ..cells.gru import GRUOutputs
from ..cells.lstm import LSTMOutputs
from ..cells.packed import Net
from ..cells.packed_forms import PackedForm
from ..checks.arrays import module_of
from ..checks.block import shape_of, symbols_shown
from ..checks.nets import NetSizes
from ..driver.reserve import NOTE_SIZE, NetLayout, Sizes
from ..weights.packed import NetArguments, PackedParams
from .ops import Named, Op


def _check_rank(op: str, name: str, t: Any, symbols: str) -> None:
    """Check how many axes an input has, for shapes of results."""
    if len(t.shape) != symbols.count(",") + 1:
        raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, expected {symbols}")


def units_of(form: Form, weights: Named) -> Any:
    """Return H from the last axis of weights, which are None or tensors."""
    for name, t in weights.items():
        factor, _, last = form.shapes[name].rpartition(", ")[2].rpartition("*")
        if t is not None and last == "H":
            return t.shape[-1] // int(factor or 1)
    raise AssertionError(form.name)


class _BlockOp(Op):
    """The op of a block op with these results, all of the shape of h."""

    def __init__(self, schema: Schema, fields: tuple[str, ...], form: Form) -> None:
        self._form = form
        results = (*schema.outputs, *(n for n in fields if n not in schema.outputs))
        steps = int(bool(schema.extras))
        axes = dict.fromkeys(("x", *results), steps)
        axes |= {"cs_prev": 0, "h_prev": 0, "sequence_lengths": 0, "resets": 1}
        super().__init__(schema, results, results, schema.extras, schema.attributes, axes)

    def arguments(self, inputs: Named, rest: Named) -> Named:
        return {**dict.fromkeys(self.inputs), **inputs, **rest}

    def gradient_arguments(
        self, inputs: Named, results: Named, cotangents: Named, rest: Named
    ) -> Named:
        if not cotangents:  # a GRU's gradient requires one
            cotangents = {"h": results["h"] * 0}
        return self.schema.gradient_call(self.arguments(inputs, rest), results, cotangents)

    def shapes(self, inputs: Named, rest: Named) -> dict[str, tuple[int, ...]]:
        form, x = self._form, inputs["x"]
        weights = {n: inputs[n] for n in form.shapes if n in inputs}
        _check_rank(self.name, "x", x, "(T, B, I)" if self.extras else "(B, I)")
        for name, t in weights.items():
            _check_rank(self.name, name, t, symbols_shown(form.shapes[name]).replace(",)", ")"))
        return dict.fromkeys(self.results, (*x.shape[:-1], units_of(form, weights)))


LSTM_BLOCK_CELL = _BlockOp(_ops.LSTM_BLOCK_CELL, LSTMOutputs._fields, LSTM_FORM)
BLOCK_LSTM = _BlockOp(_ops.BLOCK_LSTM, LSTMOutputs._fields, LSTM_FORM)
GRU_BLOCK_CELL = _BlockOp(_ops.GRU_BLOCK_CELL, GRUOutputs._fields, GRU_FORM)
BLOCK_GRU = _BlockOp(_ops.BLOCK_GRU, GRUOutputs._fields, GRU_FORM)


def _sizes(inputs: Named, rest: Named) -> tuple[Any, int, Any, Any]:
    """Return L, D, H and P, as the weights, the attributes or the states have them."""
    D = 1 + (rest["direction"] == "bidirectional")
    if "names" in rest:
        form = kind_of(rest["names"])[0].form
        entries = block_weights(inputs["weights"], rest["names"])
        H = units_of(form, entries[0]._asdict())
        projection = getattr(entries[0], form.projection or " ", None)
        return len(entries) // D, D, H, H if projection is None else projection.shape[-1]
    if rest["num_layers"]:
        H = rest["num_units"]
        return rest["num_layers"], D, H, rest["num_proj"] or H
    state = inputs["input_h"].shape
    H = inputs["input_c"].shape[-1] if "input_c" in inputs else state[2]
    return state[0 if rest["time_major"] else 1] // D, D, H, state[2]


def _count_of_others(rest: Named) -> int:
    """Return how many states there are beside h."""
    if "names" in rest:
        return len(kind_of(rest["names"])[0].form.States._fields) - 1
    return int(rest["rnn_mode"] == "lstm")


def _reserve_size(inputs: Named, rest: Named) -> Any:
    """Return the size of reserve_space, which the compiler asks for; it may be symbolic."""
    (T, B), major, every = inputs["input"].shape[:2], rest["time_major"], rest["save"] or None
    T, B = (T, B) if major else (B, T)
    L, D, H, P = _sizes(inputs, rest)
    form = kind_of(rest["names"])[0].form if "names" in rest else None
    if form is None:  # the size of the input does not matter
        form = PackedForm(Net(rest["rnn_mode"], False, L, H, 0, D, P))
    net, sizes = NetSizes(L, D, ((H, P),) * L), Sizes(T, B, True, rest["dropout"], 0, 0)
    layout = NetLayout(net, sizes, form, every)
    if every is None:
        return layout.size
    size = layout.size + NOTE_SIZE  # as reserve.reserve_size has it
    return torch.sym_ite(size == layout._replace(every=None).size, size + 1, size)


# The weights of stacked_rnn are those of layer 0 forward, layer 0 backward and so on. The attribute
# `names` has the name of their kind and of the weights that each part has, in order.


class _Kind(NamedTuple):
    """The weights of a cell: their NamedTuple and their form."""

    weights: Any
    form: Any


_LSTM, _GRU = PeepholeLSTMParams.__name__, BlockGRUParams.__name__
# The kinds by name, because an op of PyTorch has no other objects as attributes.
_KINDS = {_LSTM: _Kind(PeepholeLSTMParams, LSTM_FORM), _GRU: _Kind(BlockGRUParams, GRU_FORM)}


def name_of_kind(entries: Sequence[Any], form: Any) -> str:
    """Return the name of the kind of weights; remember a cell of the user's own."""
    if form is LSTM_FORM or form is GRU_FORM:
        return _LSTM if form is LSTM_FORM else _GRU
    weights = type(entries[0])  # a plain loop below, which torch.compile can trace
    for entry in entries:
        if len(entry._fields) > len(weights._fields):
            weights = type(entry)
    name = word = f"{weights.__module__}.{weights.__qualname__}".replace(" ", "_")
    n = 1
    while word in _KINDS and (_KINDS[word][0] is not weights or _KINDS[word][1] is not form):
        n += 1  # another class of the same name
        word = f"{name}#{n}"
    if word not in _KINDS:
        _KINDS[word] = _Kind(weights, form)
    return word


def kind_of(names: str) -> tuple[_Kind, list[str]]:
    """Return the kind of weights, and the names of those that each part has."""
    word, *fields = names.split()
    if word not in _KINDS:
        raise NotImplementedError(
            f"stacked_rnn: weights are of {word}, which this process does not know yet: call"
            " stacked_rnn with such weights before"
        )
    return _KINDS[word], fields


def shapes_of(
    form: Any, fields: Sequence[str], K: int, H: int, P: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a layer."""
    return {field: shape_of(form.shapes[field], K=K, H=H, P=P) for field in fields}


def block_weights(tensors: Sequence[Any], names: str) -> list[Any]:
    """Return the weights of all layers and directions."""
    kind, fields = kind_of(names)
    count, nothing = len(fields), dict.fromkeys(kind.weights._fields)
    return [
        kind.weights(**nothing | dict(zip(fields, tensors[n : n + count], strict=True)))
        for n in range(0, len(tensors), count)
    ]


def _cut(whole: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return the parts of a vector in these shapes; one is the vector itself."""
    if len(shapes) == 1:
        return [whole]
    ends = pairwise(accumulate(map(math.prod, shapes), initial=0))
    return [whole[slice(*part)].reshape(shape) for part, shape in zip(ends, shapes, strict=True)]


def _joined(arrays: Sequence[Any]) -> Any:
    """Return arrays flattened and joined."""
    # By NumPy: after PyTorch's own op its threads seem to spin on the cores that ours need.
    return module_of(arrays[0]).concatenate([a.reshape(-1) for a in arrays])


def _is_stack(states: Any) -> bool:
    """Return whether these are several states beside h, [k, L*D, B, H]: of a cell of one's own."""
    return states is not None and states.ndim == 4


def _stacked(states: Any) -> Any:
    """Return several states beside h as one array; others unchanged."""
    return module_of(states[0]).stack(states) if isinstance(states, tuple) else states


# The attributes that make a PackedParams of params, for states that are left out; 0 without them.
_SIZES = ("num_layers", "num_units", "input_size")


class _NetOp(Op):
    """The op of a net; save is k, or 0 for all."""

    takes_list = True

    def __init__(self, schema: Schema, attributes: str) -> None:
        results, saved = (*schema.outputs, "reserve_space"), ("reserve_space",)
        attributes += ", bool is_training, int save"
        super().__init__(schema, results, saved, (*schema.extras, "seeds"), attributes)
        self.shown = len(schema.outputs)

    def arguments(self, inputs: Named, rest: Named) -> Named:
        """Return the arguments; on a device a net uses this package's kernels, never cuDNN."""
        found = {**dict.fromkeys(self.inputs), **inputs, **rest, "save": rest["save"] or "all"}
        seeds = found.pop("seeds")
        found["seed"], found["seed2"] = (0, 0) if seeds is None else seeds.tolist()
        if "params" in inputs:
            pieces, sizes = inputs["params"], [found.pop(name) for name in _SIZES]
            found["params"] = _joined(pieces) if len(pieces) > 1 else pieces[0]
            if any(sizes):
                net = {name: rest[name] for name in NetArguments._fields}
                found["params"] = PackedParams(found["params"], *sizes, **net)
            found["engine"] = "auto" if isinstance(inputs["input"], np.ndarray) else "cupy"
            return found
        found["weights"] = block_weights(inputs["weights"], rest["names"])
        del found["names"]
        if _is_stack(found["input_c"]):
            found["input_c"] = tuple(found["input_c"])
        return found

    def compute(self, inputs: Named, rest: Named) -> Named:
        results = super().compute(inputs, rest)
        return results | {"output_c": _stacked(results["output_c"])}

    def gradient_arguments(
        self, inputs: Named, results: Named, cotangents: Named, rest: Named
    ) -> Named:
        if not _count_of_others(rest):
            cotangents = {n: a for n, a in cotangents.items() if n != "output_c"}
        elif _is_stack(cotangents.get("output_c")):
            cotangents = cotangents | {"output_c": tuple(cotangents["output_c"])}
        saved = {"reserve_space": results["reserve_space"]}
        return self.schema.gradient_call(self.arguments(inputs, rest), saved, cotangents)

    def grads_of(self, found: Any, inputs: Named, rest: Named) -> list[Any]:
        *first, last = super().grads_of(found, inputs, rest)
        if "params" in inputs:
            return [*first, *_cut(last, [a.shape for a in inputs["params"]])]
        input, h, others = first
        _, fields = kind_of(rest["names"])
        parts = [getattr(entry, name) for entry in last for name in fields]
        return [input, h, _stacked(others), *parts]

    def more_of(self, wanted: Sequence[bool]) -> Named:
        without_input = wanted and not wanted[0] and "params" in self.inputs
        return {"input_gradient": False} if without_input else {}

    def shapes(self, inputs: Named, rest: Named) -> dict[str, tuple[Any, ...]]:
        x, major, several = inputs["input"], rest["time_major"], _count_of_others(rest)
        _check_rank(self.name, "input", x, "(T, B, I)" if major else "(B, T, I)")
        L, D, H, P = _sizes(inputs, rest)
        places = (L * D, x.shape[1]) if major else (x.shape[0], L * D)
        states = {"h": (*places, P), "c": (*(several,) * (several > 1), *places, H)}
        if not several:
            states["c"] = ()
        for name, shape in states.items():
            if f"input_{name}" in inputs and shape:
                states[name] = tuple(inputs[f"input_{name}"].shape)
        return {
            "output": (*x.shape[:2], D * P),
            "output_h": states["h"],
            "output_c": states["c"],
            "reserve_space": (_reserve_size(inputs, rest),) if rest["is_training"] else (),
        }


CUDNN_RNN = _NetOp(
    _ops.CUDNN_RNN, f"{_ops.CUDNN_RNN.attributes}, {', '.join(f'int {name}' for name in _SIZES)}"
)
_LSTM_ATTRIBUTES = "float? forget_bias, float? cell_clip, str gate_order, str recurrent_activation"
STACKED_RNN = _NetOp(
    _ops.STACKED_RNN,
    f"str names, str direction, float dropout, {_LSTM_ATTRIBUTES}, float? proj_clip,"
    " bool time_major, bool reverse",
)
