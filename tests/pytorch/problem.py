"""Calls of functions of tensors, and of the same functions of arrays."""

from __future__ import annotations

import warnings
from typing import Any

import needs
import numpy as np
import pytest
from problems.table import TABLE, Case, call_of

import cupyrnn
from cupyrnn.derivatives.tree import leaves_by_name, tree_map

torch: Any
ct: Any
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import torch._dynamo
        import torch.nn.utils._per_sample_grad
        import torch.nn.utils.prune

        import cupyrnn.torch as ct
        from cupyrnn.torch import definitions, ops
except ModuleNotFoundError:  # another error in cupyrnn.torch is a failure
    torch = ct = definitions = ops = None
utils: Any = torch and torch.nn.utils
rnn: Any = torch and utils.rnn

MARKS = [
    pytest.mark.skipif(torch is None, reason=needs.REASONS["torch"]),
    # Warnings of PyTorch's own code.
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}Warning")
        for kind in ("Deprecation", "Future", "User")
    ),
]

SIZES = (4, 3, 2, 5)


def _case(name: str, said: dict[str, Any] | None = None, **fields: Any) -> Case:
    """Return a case of an op of the table, with two layers if it has layers."""
    layers = 2 if TABLE[name].is_net else 1
    return Case(name, SIZES, layers=layers, **fields, attributes=tuple((said or {}).items()))


BOTH = {"direction": "both", "dropout": 0.3}
MARKED = {"extent": "lengths+resets"}
IFCO = {"gate_order": "ifco"}
PLAIN, CLIPPED = IFCO | {"cell_clip": 0.0}, IFCO | {"cell_clip": 0.5}
CASES = {
    "lstm_block_cell": _case("lstm_block_cell", PLAIN, peephole=False),
    "lstm_block_cell, clip and peepholes": _case("lstm_block_cell", CLIPPED),
    "block_lstm": _case("block_lstm", PLAIN, peephole=False),
    "block_lstm, clip and peepholes": _case("block_lstm", CLIPPED),
    "block_lstm, lengths": _case(
        "block_lstm", PLAIN, direction="reverse", peephole=False, **MARKED
    ),
    "gru_block_cell": _case("gru_block_cell"),
    "block_gru": _case("block_gru"),
    "block_gru, hard gates": _case("block_gru", {"recurrent_activation": "hard_sigmoid_1/6"}),
    **{
        f"cudnn_rnn, {mode}": _case(f"cudnn_rnn-{mode}", extent="lengths", **BOTH)
        for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    },
    "cudnn_rnn, projection": _case("cudnn_rnn-lstm", extent="lengths", projected=True, **BOTH),
    "cudnn_rnn, batch first": _case("cudnn_rnn-lstm", time_major=False, **MARKED, **BOTH),
    "cudnn_rnn, reverse": _case("cudnn_rnn-lstm", extent="lengths", direction="reverse"),
    "stacked_rnn, peepholes": _case("stacked_rnn-LSTM", CLIPPED, **MARKED, **BOTH),
    "stacked_rnn, reverse": _case("stacked_rnn-LSTM", CLIPPED, direction="reverse", **MARKED),
    "stacked_rnn, gru": _case("stacked_rnn-GRU", **MARKED, **BOTH),
}
NAMES = [*CASES]
# Calls with `save`.
SAVING = {
    f"{name}, {save}": CASES[name]._replace(save=save)
    for name, save in (
        ("cudnn_rnn, lstm", "states"),
        ("cudnn_rnn, gru", 2),
        ("cudnn_rnn, projection", 3),
        ("stacked_rnn, peepholes", 2),
        ("stacked_rnn, gru", "states"),
    )
}


def build(kind: str, *args: Any, **kwargs: Any) -> Any:
    """Return a module none of whose weights is zero."""
    torch.manual_seed(0)
    net = getattr(ct, kind)(*args, **kwargs)
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(0, 0.5)
    return net


def flat(out: Any) -> list[Any]:
    """Return all tensors of what a module takes or returns."""
    if isinstance(out, rnn.PackedSequence):
        return [out.data]
    return [out] if isinstance(out, torch.Tensor) else [t for part in out for t in flat(part)]


class Problem:
    """A call of the table: a function of tensors, its inputs, and the same function of arrays."""

    def __init__(self, said: str | Case, dtype: str = "float64") -> None:
        case = (CASES | SAVING)[said] if isinstance(said, str) else said
        rng = np.random.default_rng(list(str(case).encode()))
        call = call_of(case._replace(dtype=dtype), rng)
        record, inputs = case.op.schema, tree_map(_finite, call.swap_if_batch_first(call.inputs))
        self.op, self.attributes = record.name, call.kwargs
        if self.attributes.get("sequence_lengths") is not None:
            self.attributes["sequence_lengths"] = self.attributes["sequence_lengths"].tolist()
        if "resets" in self.attributes:
            self.attributes["resets"] = torch.tensor(self.attributes["resets"])
        seeds = [self.attributes.pop(n, 0) for n in ("seed", "seed2")]
        if any(seeds):
            self.attributes["seeds"] = torch.tensor(seeds)
        self.fields = tuple(n for n in record.outputs if n != "output_c" or case.op.states > 1)
        self.inputs = {n: inputs[n] for n in record.inputs if n in inputs}
        known = [(n, a) for n, tree in self.inputs.items() for _, a in leaves_by_name(n, tree)]
        self.names = [n for n, a in known if a is not None]
        self.arrays = [a for _, a in known if a is not None]

    def tensors(self, requires_grad: bool = True) -> list[Any]:
        return [torch.tensor(a, requires_grad=requires_grad) for a in self.arrays]

    def given(self, values: Any) -> dict[str, Any]:
        """Return the arguments by name, with these arrays or tensors."""
        left = iter(values)
        given: dict[str, Any] = tree_map(lambda a: None if a is None else next(left), self.inputs)
        assert not [*left]
        return given

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        out = getattr(ct, self.op)(**self.given(tensors), **self.attributes)
        return tuple(getattr(out, n) for n in self.fields)

    def of_arrays(self, arrays: Any) -> tuple[Any, ...]:
        """Return the results of the function of arrays."""
        kwargs = dict(self.attributes)
        if kwargs.get("seeds") is not None:
            kwargs |= dict(zip(("seed", "seed2"), kwargs["seeds"].tolist(), strict=True))
        kwargs.pop("seeds", None)
        if kwargs.get("resets") is not None:
            kwargs["resets"] = np.array(kwargs["resets"])
        out = getattr(cupyrnn, self.op)(**self.given(arrays), **kwargs)
        return tuple(getattr(out, n) for n in self.fields)

    def plain(self) -> tuple[Any, ...]:
        return self.of_arrays(self.arrays)


def _finite(a: Any) -> Any:
    """Return inputs without NaN in the padding: PyTorch's checks add to all numbers."""
    return None if a is None else np.nan_to_num(a)
