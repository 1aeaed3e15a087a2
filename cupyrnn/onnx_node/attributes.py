"""The attributes of an ONNX LSTM, GRU or RNN: checks, and the activations of each direction."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..checks.attributes import check_choice, check_integer, check_real
from ..weights.activations import DEFAULTS, Activation, activations_of, check_flag, text

DIRECTIONS = ("forward", "reverse", "bidirectional")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class NodeAttributes(NamedTuple):
    """The checked attributes of a node."""

    direction: str
    batch_first: bool  # layout
    activations: tuple[tuple[Activation, ...], ...]  # for each direction f, g and h, or fewer
    clip: float | None
    input_forget: bool
    linear_before_reset: bool

    @property
    def D(self) -> int:
        """The number of directions."""
        return len(self.activations)


def check_attributes(op: str, op_type: str, attributes: dict[str, Any]) -> NodeAttributes:
    """Check all attributes of a node, by name."""
    direction = check_choice(op, "direction", text(attributes["direction"]), DIRECTIONS)
    D = 1 + (direction == "bidirectional")
    if attributes["hidden_size"] is not None:
        check_integer(op, "hidden_size", attributes["hidden_size"])
    names = ("linear_before_reset", "input_forget", "layout")
    before_reset, forget, batch_first = flags = [check_flag(op, n, attributes[n]) for n in names]
    for name, flag, only in zip(names, flags, ("GRU", "LSTM"), strict=False):
        if flag and op_type != only:
            raise ValueError(f"{op}: {name} is 1, expected 0 for {op_type}")
    clip = attributes["clip"]
    if clip is not None:
        clip = check_real(op, "clip", clip)
        if not clip >= 0:
            raise ValueError(f"{op}: clip is {clip}, expected at least 0")
    activations = activations_of(op, op_type, DEFAULTS[op_type], D, attributes)
    return NodeAttributes(direction, batch_first, activations, clip, forget, before_reset)
