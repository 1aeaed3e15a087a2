"""The attributes of an ONNX LSTM, GRU or RNN, checked, and what they say of each direction."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..checks.attributes import check_choice, check_real
from ..weights.activations import DEFAULTS, Activation, activations_of, check_flag, text

DIRECTIONS = ("forward", "reverse", "bidirectional")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class Attributes(NamedTuple):
    """The attributes of a node. Those of its own op_type and direction are what they may be."""

    direction: str
    batch_first: bool  # layout
    activations: tuple[tuple[Activation, ...], ...]  # of each direction: f, and g and h
    clip: float | None
    input_forget: bool
    linear_before_reset: bool

    @property
    def D(self) -> int:
        """The number of directions."""
        return len(self.activations)


def check_attributes(op: str, op_type: str, given: dict[str, Any]) -> Attributes:
    """Return a node's attributes, all of them by their names."""
    direction = check_choice(op, "direction", text(given["direction"]), DIRECTIONS)
    D = 1 + (direction == "bidirectional")
    flags = {
        n: check_flag(op, n, given[n]) for n in ("linear_before_reset", "input_forget", "layout")
    }
    for name, only in (("linear_before_reset", "GRU"), ("input_forget", "LSTM")):
        if flags[name] and op_type != only:
            raise ValueError(f"{op}: {name} is 1, expected 0 for {op_type}")
    clip = given["clip"]
    if clip is not None:
        clip = check_real(op, "clip", clip)
        if not clip >= 0:
            raise ValueError(f"{op}: clip is {clip}, expected at least 0")
    return Attributes(
        direction,
        flags["layout"],
        activations_of(op, op_type, DEFAULTS[op_type], D, given),
        clip,
        flags["input_forget"],
        flags["linear_before_reset"],
    )
