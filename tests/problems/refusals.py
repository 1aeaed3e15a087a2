"""Right arguments of every op, and calls with one wrong argument, which are refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from checks import ON_HOST

import cupyrnn

from .table import right_calls

T, B, I, H = 6, 3, 4, 5


def _calls() -> dict[str, dict[str, Any]]:
    """Return right arguments of the ops and their gradients, all of them, by name."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("block_lstm", "lstm_block_cell", "block_gru", "gru_block_cell"):
        found |= right_calls(name, size=(T, B, I, H))
    for cell in ("lstm_block_cell", "gru_block_cell"):
        found[f"{cell}_grad"] = found[f"{cell}_backward"]
    net = {"layers": 2, "direction": "both", "extent": "lengths"}
    return found | right_calls("cudnn_rnn-lstm", size=(T, B, I, H), **net)


CALLS = _calls()
BLOCKS = [op for op in CALLS if not op.startswith("cudnn_rnn")]
SEQUENCES = [op for op in CALLS if op.startswith("block_")]
NETS = [op for op in CALLS if op.startswith("cudnn_rnn")]
# The arrays that must be on the same device.
ARGUMENTS = [
    (op, name)
    for op, args in CALLS.items()
    for name, a in args.items()
    if isinstance(a, np.ndarray) and name not in ON_HOST
]


def call(op: str, **changed: Any) -> Any:
    """Call a function with right arguments, except for the changed ones."""
    return getattr(cupyrnn, op)(**{**CALLS[op], **changed})


# Equal to a wrong value if a number is compared with a bool.
RIGHT: dict[str, Any] = {"forget_bias": 1.0, "cell_clip": 1.0, "use_peephole": True}
RIGHT |= {"is_training": True, "time_major": True, "dropout": 0.0, "seed": 0, "reverse": False}
RIGHT |= {"seed2": 1, "gate_order": "icfo", "recurrent_activation": "sigmoid"}


def _beside(op: str, changed: dict[str, Any]) -> dict[str, Any]:
    """Return right arguments whose signature is as close to that of wrong ones as it can be."""
    right = {n: RIGHT[n] for n in changed if n in RIGHT}
    for name, of in (("sequence_lengths", np.full(B, 2)), ("resets", np.zeros((T, B), bool))):
        wrong = changed.get(name)
        if wrong is not None and name not in CALLS[op]:
            if isinstance(wrong, np.ndarray) and wrong.dtype.kind == of.dtype.kind:
                of = of.astype(wrong.dtype)
            right[name] = of.tolist() if isinstance(wrong, list) else of
    return right


def raises(op: str, error: type[Exception], message: str, **changed: Any) -> None:
    """
    Check that a call fails with exactly this message, and that no argument is written.

    It fails as the first call of its signature, and after a right one, whose checks are cached.
    """
    args = {**CALLS[op], **changed}
    before = {n: a.copy() for n, a in args.items() if isinstance(a, np.ndarray)}
    for _ in range(2):
        with pytest.raises(error, match=f"^{re.escape(f'{op}: {message}')}$"):
            getattr(cupyrnn, op)(**args)
        call(op, **_beside(op, changed))
    for n, a in before.items():
        np.testing.assert_array_equal(np.asarray(args[n]), np.asarray(a))


def on_device(cupy: Any, op: str, **changed: Any) -> dict[str, Any]:
    """Return right arguments on a device, except for the changed ones."""
    args = {**CALLS[op], **changed}
    args |= {n: cupy.asarray(args[n]) for o, n in ARGUMENTS if o == op}
    if op == "cudnn_rnn_backprop":  # with different lengths a device keeps other rows
        out = cupyrnn.cudnn_rnn(**on_device(cupy, "cudnn_rnn"), engine="cupy")
        args |= {"reserve_space": out.reserve_space, "host_reserved": out.host_reserved} | changed
    return args
