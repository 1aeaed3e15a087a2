"""Every public op that works on a device, as calls that are ready to be made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

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
    T, B, I, H = shape
    rng = np.random.default_rng(0)

    def array(*sizes: int) -> Any:
        return xp.asarray((0.3 * rng.standard_normal(sizes)).astype(dtype))

    def saved(op: str, **inputs: Any) -> dict[str, Any]:
        return getattr(cupyrnn, op)(**inputs)._asdict()  # type: ignore[no-any-return]

    names = ("wci", "wcf", "wco") if peephole else ()
    lstm = {
        **{"x": array(T, B, I), "cs_prev": array(B, H), "h_prev": array(B, H)},
        **{"w": array(I + H, 4 * H), "b": array(4 * H), **{n: array(H) for n in names}},
    }
    lstm_grads = {"cs_grad": array(T, B, H), "h_grad": array(T, B, H)}
    gru = {
        **{"x": array(T, B, I), "h_prev": array(B, H), "w_ru": array(I + H, 2 * H)},
        **{"w_c": array(I + H, H), "b_ru": array(2 * H), "b_c": array(H)},
    }
    d_h = array(T, B, H)
    lstm_cell, gru_cell = {**lstm, "x": lstm["x"][0]}, {**gru, "x": gru["x"][0]}
    step_grads = {n: a[0] for n, a in lstm_grads.items()}
    lstm_saved = saved("lstm_block_cell", **lstm_cell)
    del lstm_saved["h"]
    gru_saved = {n: a for n, a in saved("gru_block_cell", **gru_cell).items() if n != "h"}
    found: dict[str, dict[str, Any]] = {
        "block_lstm": lstm,
        "block_lstm_grad": {**lstm, **saved("block_lstm", **lstm), **lstm_grads},
        "lstm_block_cell": lstm_cell,
        "lstm_block_cell_grad": {**lstm_cell, **lstm_saved, **step_grads},
        "block_gru": gru,
        "block_gru_grad": {**gru, **saved("block_gru", **gru), "d_h": d_h},
        "gru_block_cell": gru_cell,
        "gru_block_cell_grad": {**gru_cell, **gru_saved, "d_h": d_h[0]},
    }
    result: dict[str, Call] = {n: partial(getattr(cupyrnn, n), **a) for n, a in found.items()}
    for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        forward, backward = rnn_calls(xp, shape, dtype, mode)
        result |= {f"cudnn_rnn {mode}": forward, f"cudnn_rnn_backprop {mode}": backward}
    return result


def rnn_calls(
    xp: Any,
    shape: tuple[int, int, int, int],
    dtype: str = "float32",
    mode: str = "lstm",
    lengths: Any = None,
) -> tuple[Call, Call]:
    """Return a call of cudnn_rnn with engine "cupy", and of its backprop."""
    T, B, I, H = shape
    rng = np.random.default_rng(0)

    def array(*sizes: int) -> Any:
        return xp.asarray((0.3 * rng.standard_normal(sizes)).astype(dtype))

    attributes = {"rnn_mode": mode, "engine": "cupy", "sequence_lengths": lengths}
    size = cupyrnn.cudnn_rnn_params_size(num_layers=1, num_units=H, input_size=I, rnn_mode=mode)
    inputs = {"input": array(T, B, I), "input_h": array(1, B, H), "params": array(size)}
    inputs["input_c"] = array(1, B, H) if mode == "lstm" else None
    out = cupyrnn.cudnn_rnn(**inputs, **attributes)
    cotangents = {"output_backprop": array(T, B, H), "output_h_backprop": array(1, B, H)}
    cotangents["output_c_backprop"] = array(1, B, H) if mode == "lstm" else None
    forward = partial(cupyrnn.cudnn_rnn, **inputs, **attributes)
    given = {**inputs, **out._asdict(), **cotangents, **attributes}
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
