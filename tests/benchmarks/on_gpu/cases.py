"""What is timed: the cases, and their arguments."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from cupyrnn import cudnn_rnn_params_size
from cupyrnn._ops import BLOCK_GRU, BLOCK_LSTM, CUDNN_RNN, Schema
from cupyrnn.device.cli import DTYPES, dtype_of

# What is timed beside plain sequences of one layer.
LENGTHS, RESETS, NET, GENERAL = VARIANTS = ("lengths", "resets 3 %", "L=2 D=2", "general")
RESET_RATE = 0.03
# The cells by the names of `rnn_mode`, and the block ops: the LSTM only for what nets have not.
NETS, BLOCKS = ("lstm", "gru", "rnn_tanh"), ("block_lstm", "block_gru")
CELLS = (*NETS, *BLOCKS)


class Case(NamedTuple):
    """A call of an op and of its gradient; I is H."""

    cell: str  # of CELLS
    T: int
    B: int
    H: int
    dtype: str
    variant: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """The first cells of its rows."""
        return self.cell, f"({self.T}, {self.B}, {self.H})", self.dtype, self.variant

    @property
    def sizes(self) -> dict[str, Any]:
        """The layers and directions of a net."""
        L, D = (2, 2) if self.variant == NET else (1, 1)
        return {"num_layers": L, "direction": ("unidirectional", "bidirectional")[D - 1]}


def cases() -> list[Case]:
    """Return all cases, what decides most first: time may end before they do."""
    first = [(1000, 16, 64), *((100, B, 128) for B in (1, 16, 128, 1024))]
    small = [(100, 512, 64), (100, 1024, 64), (100, 512, 32)]
    large = [(512, 32, 256), (100, 64, 512), (256, 16, 1024), (100, 1, 256), (512, 256, 512)]
    two = DTYPES[:2]
    found = [Case("lstm", *shape, dtype) for dtype in two for shape in (*first, *large)]
    found += [Case("lstm", 1000, 16, 64, "float32", variant) for variant in VARIANTS[:3]]
    found.append(Case("block_lstm", 1000, 16, 64, "float32", GENERAL))
    found += [Case("lstm", 100, 64, 128, "float16", variant) for variant in VARIANTS[:3]]
    for cell in ("gru", "block_gru", "rnn_tanh"):
        found += [Case(cell, *shape, dtype) for dtype in two for shape in (first[0], first[2])]
    found += [Case("lstm", *shape, dtype) for dtype in two for shape in small]
    return found + [Case("lstm", *shape, dtype) for dtype in DTYPES[2:] for shape in first[:3]]


def dry_cases() -> list[Case]:
    """Return tiny ones of every cell and variant, to see that everything runs."""
    found = [Case("lstm", 4, 3, 16, "float32", variant) for variant in ("", *VARIANTS[:3])]
    found.append(Case("block_lstm", 4, 3, 16, "float16", GENERAL))
    return found + [Case(cell, 4, 3, 16, "float32") for cell in ("gru", "rnn_tanh", "block_gru")]


@functools.cache
def noise() -> Any:
    """Return normal numbers. Drawing all that is needed would take longer than the rest."""
    return np.random.default_rng(0).standard_normal(2**20, np.float32)


def lengths_of(case: Case) -> Any:
    """Return lengths from T down to half of it; as they descend, PyTorch need not sort."""
    if case.variant not in (LENGTHS, GENERAL):
        return None
    return [case.T - round(case.T * b / (2 * case.B)) for b in range(case.B)]


def resets_of(case: Case) -> Any:
    """Return which steps no state passes into, None where that is none."""
    if case.variant != RESETS:
        return None
    return np.random.default_rng(7).random((case.T, case.B)) < RESET_RATE


def arguments_of(case: Case) -> tuple[Schema, dict[str, Any], dict[str, Any]]:
    """Return an op, its arguments, and the gradients of its outputs, in NumPy."""
    rng, (cell, T, B, H, dtype, variant) = np.random.default_rng(case.H), case
    rows = 4 if variant == NET else 1

    def some(*sizes: int, scale: float = 0.7) -> Any:
        size, start = math.prod(sizes), int(rng.integers(noise().size // 2))
        part = np.resize(noise()[start : start + size] * np.float32(scale), sizes)
        return part.astype(dtype_of(dtype))

    def weights(*sizes: int) -> Any:
        return some(*sizes, scale=(2 * H) ** -0.5)

    given: dict[str, Any] = {"sequence_lengths": lengths_of(case), "resets": resets_of(case)}
    if cell in BLOCKS:
        given |= {"x": some(T, B, H), "h_prev": some(B, H)}
    if cell == "block_gru":
        given |= {"w_ru": weights(2 * H, 2 * H), "w_c": weights(2 * H, H)}
        return BLOCK_GRU, given | {"b_ru": some(2 * H), "b_c": some(H)}, {"h": some(T, B, H)}
    if cell == "block_lstm":
        given |= {"cs_prev": some(B, H), "w": weights(2 * H, 4 * H), "b": some(4 * H)}
        if variant == GENERAL:
            given |= {name: some(H) for name in ("wci", "wcf", "wco")} | {"cell_clip": 0.6}
        return BLOCK_LSTM, given, {"h": some(T, B, H), "cs": some(T, B, H)}
    kind: Any = {"rnn_mode": cell, "direction": case.sizes["direction"]}
    given |= kind | {
        "input": some(T, B, H),
        "input_h": some(rows, B, H),
        "input_c": some(rows, B, H) if cell == "lstm" else None,
        "params": weights(cudnn_rnn_params_size(case.sizes["num_layers"], H, H, **kind)),
    }
    return CUDNN_RNN, given, {"output": some(T, B, 2 * H if rows > 1 else H)}
