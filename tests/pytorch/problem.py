"""Calls of functions of tensors, and of the functions of arrays that they are."""

from __future__ import annotations

import warnings
from typing import Any

import needs
import numpy as np
import pytest
from problems import grus, lstms, nets
from problems.nets import BI, MODES, UNI, Case

import cupyrnn

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
        from cupyrnn.torch import definitions
except ImportError:
    torch = ct = definitions = None
utils: Any = torch and torch.nn.utils
rnn: Any = torch and utils.rnn

MARKS = [
    pytest.mark.skipif(torch is None, reason=needs.REASONS["torch"]),
    # What torch's own code warns of, which is not ours to mend.
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}Warning")
        for kind in ("Deprecation", "Future", "User")
    ),
]

LENGTHS = {"sequence_lengths": [3, 0, 4]}
RESETS = {"resets": [[True, False, False], [False, True, False], [False] * 3, [True] * 3]}
NAMES = [
    "lstm_block_cell",
    "lstm_block_cell, clip and peepholes",
    "block_lstm",
    "block_lstm, clip and peepholes",
    "block_lstm, lengths",
    "gru_block_cell",
    "block_gru",
    "block_gru, hard gates",
    *(f"cudnn_rnn, {mode}" for mode in MODES),
    "cudnn_rnn, projection",
    "cudnn_rnn, batch first",
    "cudnn_rnn, reverse",
    "stacked_rnn, peepholes",
    "stacked_rnn, reverse",
    "stacked_rnn, gru",
]
# Calls that keep some of the states.
SAVES = {
    "cudnn_rnn, lstm, states": "states",
    "cudnn_rnn, gru, 2": 2,
    "cudnn_rnn, projection, 3": 3,
    "stacked_rnn, peepholes, 2": 2,
    "stacked_rnn, gru, states": "states",
}


def build(kind: str, *args: Any, **kwargs: Any) -> Any:
    """Return a module none of whose weights is zero."""
    torch.manual_seed(0)
    net = getattr(ct, kind)(*args, **kwargs)
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(0, 0.5)
    return net


def stacked_inputs(rng: Any, kind: str, sizes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays and attributes of a block op's cell in four layers and directions."""
    T, B, I, H = sizes
    attributes: dict[str, Any] = {"direction": BI, **LENGTHS, **RESETS, "dropout": 0.3}
    D = 2
    if kind == "reverse":
        D, attributes["direction"], attributes["reverse"] = 1, UNI, True
    shapes = {"input": (T, B, I), "input_h": (4, B, H), "input_c": (4, B, H)}
    if kind == "gru":
        del shapes["input_c"]
    else:
        attributes |= {"cell_clip": 0.5, "gate_order": "ifco"}
    for n in range(4):
        K = I if n < D else D * H
        fields = {"w": (K + H, 4 * H), "b": (4 * H,), "wci": (H,), "wcf": (H,), "wco": (H,)}
        if kind == "gru":
            fields = {"w_ru": (K + H, 2 * H), "w_c": (K + H, H), "b_ru": (2 * H,), "b_c": (H,)}
        shapes |= {f"{n}.{name}": shape for name, shape in fields.items()}
    return {name: 0.5 * rng.standard_normal(shape) for name, shape in shapes.items()}, attributes


class Problem:
    """A call: a function of tensors, its inputs, and the function of arrays that it is."""

    def __init__(self, name: str, dtype: str = "float64") -> None:
        rng = np.random.default_rng(list(name.encode()))
        save = SAVES.get(name)
        op, _, kind = (name.rpartition(", ")[0] if save else name).partition(", ")
        T, B, I, H = 4, 3, 2, 5
        attributes: dict[str, Any] = {}
        if op == "stacked_rnn":
            inputs, attributes = stacked_inputs(rng, kind, (T, B, I, H))
            self.fields = ("output", "output_h", "output_c")[: 2 if kind == "gru" else 3]
        elif "lstm" in op:
            inputs = lstms.problem(rng, (T, B, I, H), "peepholes" in kind)
            attributes = {"cell_clip": 0.5 if "clip" in kind else 0, "gate_order": "ifco"}
            if kind == "lengths":
                attributes |= {**LENGTHS, "reverse": True, **RESETS}
            self.fields = ("cs", "h")
        elif "gru" in op:
            inputs = grus.problem(rng, (T, B, I, H))
            attributes = {"recurrent_activation": "hard_sigmoid_1/6"} if kind else {}
            self.fields = ("h",)
        else:
            mode = kind if kind in MODES else "lstm"
            way, P = UNI if kind == "reverse" else BI, 3 * (kind == "projection")
            inputs = nets.problem(rng, Case(mode, T, B, I, H, L=2, direction=way, num_proj=P))
            attributes = {"rnn_mode": mode, "direction": way, "num_proj": P}
            attributes["reverse"] = kind == "reverse"
            attributes |= {**LENGTHS, "dropout": 0.3, "time_major": kind != "batch first"}
            if kind == "batch first":
                for n in ("input", "input_h", "input_c"):
                    inputs[n] = inputs[n].transpose(1, 0, 2)
            self.fields = ("output", "output_h", "output_c")[: 3 if mode == "lstm" else 2]
        if op.endswith("cell"):
            inputs["x"] = inputs["x"][0]
        if save is not None:
            attributes["save"] = save
        self._set(op, inputs, attributes, dtype)

    @classmethod
    def of(cls, op: str, inputs: dict[str, Any], attributes: dict[str, Any]) -> Problem:
        """Return a call of these in float64."""
        self = cls.__new__(cls)
        self.fields = ("cs", "h") if "lstm" in op else ("h",)
        if op == "cudnn_rnn":
            self.fields = ("output", "output_h", "output_c")[: 2 + ("input_c" in inputs)]
        self._set(op, inputs, attributes, "float64")
        return self

    def _set(self, op: str, inputs: dict[str, Any], attributes: dict[str, Any], dtype: str) -> None:
        self.op, self.attributes = op, attributes
        self.names = [n for n, a in inputs.items() if a is not None]
        self.arrays = [inputs[n].astype(dtype) for n in self.names]
        self.missing = {"input_c": None} if op in ("cudnn_rnn", "stacked_rnn") else {}

    def tensors(self, requires_grad: bool = True) -> list[Any]:
        return [torch.tensor(a, requires_grad=requires_grad) for a in self.arrays]

    def given(self, values: Any) -> dict[str, Any]:
        """Return arguments by name; what is named "0.w" is of the weights of stacked_rnn."""
        named = {**self.missing, **dict(zip(self.names, values, strict=True))}
        entries: dict[str, Any] = {}
        for name in [n for n in named if "." in n]:
            place, _, field = name.partition(".")
            entries.setdefault(place, {})[field] = named.pop(name)
        if entries:
            kind: Any = (
                cupyrnn.PeepholeLSTMParams if "w" in entries["0"] else cupyrnn.BlockGRUParams
            )
            named["weights"] = [kind(**entry) for entry in entries.values()]
        return named

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        given = self.given(tensors)
        out = getattr(ct, self.op)(**given, **self.attributes)
        return tuple(getattr(out, n) for n in self.fields)

    def plain(self) -> tuple[Any, ...]:
        given = self.given(self.arrays)
        attributes = {n: np.array(a) if n == "resets" else a for n, a in self.attributes.items()}
        seeds = attributes.pop("seeds", None)
        if seeds is not None:
            attributes |= dict(zip(("seed", "seed2"), seeds.tolist(), strict=True))
        out = getattr(cupyrnn, self.op)(**given, **attributes)
        return tuple(getattr(out, n) for n in self.fields)
