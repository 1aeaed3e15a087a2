"""Every public op that works on a device, as calls that are ready to be made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
from problems import grus, lstms, nets

import cupyrnn

Call = Callable[[], Any]


def calls(
    xp: Any, shape: tuple[int, int, int, int], dtype: str = "float32", *, peephole: bool = True
) -> dict[str, Call]:
    """
    Return calls of the ops by name, on arrays of `xp` that are made here.

    Parameters
    ----------
    xp
        The array module.
    shape
        T, B, I and H.
    dtype
        The dtype of all arrays.
    peephole
        Give the LSTM peepholes.
    """
    rng, (T, B, _, H) = np.random.default_rng(0), shape
    sums = {n: 0.3 * rng.standard_normal((T, B, H)) for n in ("cs_grad", "h_grad", "d_h")}
    grads = there(xp, {n: a.astype(dtype) for n, a in sums.items()})
    lstm, gru = lstms.problem(rng, shape, peephole, dtype), grus.problem(rng, shape, dtype)
    result: dict[str, Call] = {}
    for block, cell, arrays, names in (
        ("block_lstm", "lstm_block_cell", lstm, ("cs_grad", "h_grad")),
        ("block_gru", "gru_block_cell", gru, ("d_h",)),
    ):
        inputs = there(xp, arrays)
        one = {**inputs, "x": inputs["x"][0]}
        for op, given, steps in ((block, inputs, slice(None)), (cell, one, 0)):
            forward = partial(getattr(cupyrnn, op), **given)
            saved = forward()._asdict()
            if op == cell:
                del saved["h"]
            more = saved | {n: grads[n][steps] for n in names}
            result[op] = forward
            result[f"{op}_grad"] = partial(getattr(cupyrnn, f"{op}_grad"), **given, **more)
    for mode in nets.MODES:
        forward, backward = rnn_calls(xp, shape, dtype, mode)
        result |= {f"cudnn_rnn {mode}": forward, f"cudnn_rnn_backprop {mode}": backward}
    return result


def there(xp: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    return {n: xp.asarray(a) for n, a in arrays.items()}


def rnn_calls(
    xp: Any,
    shape: tuple[int, int, int, int],
    dtype: str = "float32",
    mode: str = "lstm",
    lengths: Any = None,
) -> tuple[Call, Call]:
    """Return a call of cudnn_rnn with engine "cupy", and of its backprop."""
    rng, case = np.random.default_rng(0), nets.Case(mode, *shape)
    attributes = {"rnn_mode": mode, "engine": "cupy", "sequence_lengths": lengths}
    inputs = {"input_c": None, **there(xp, nets.problem(rng, case, dtype))}
    forward = partial(cupyrnn.cudnn_rnn, **inputs, **attributes)
    cotangents = dict.fromkeys(nets.COTANGENTS) | there(xp, nets.cotangents_of(rng, case, dtype))
    given = {**inputs, **forward()._asdict(), **cotangents, **attributes}
    return forward, partial(cupyrnn.cudnn_rnn_backprop, **given)


def calls_made(call: Any) -> int:
    """Return how many functions of Python and C are called: the host's work, but no time."""
    made = 0

    def see(_: FrameType, event: str, __: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    return made
