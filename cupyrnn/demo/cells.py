"""The cells: their first parameters and their two passes, as the model calls them.

`seed` is that of a window's dropout, None for no dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

import cupyrnn

if TYPE_CHECKING:
    from .._arrays import Array
    from ..weights.params import RNNMode

Shapes: TypeAlias = "dict[str, tuple[int, ...]]"
Parameters: TypeAlias = "dict[str, Array]"
State: TypeAlias = "tuple[Array, ...]"

# Bounds the cell states of an LSTM. Without it some would count up for ever: the state is carried
# through many more steps than a gradient sees.
CELL_CLIP = 3.0
LAYERS, DROPOUT = 2, 0.1  # of the cells that have them


class Pass(NamedTuple):
    """What a cell makes of a window of the text."""

    h: Array  # [T, B, H]
    state: State  # to begin the next window with
    shown: dict[str, Array]  # [T, B, H] each, to draw
    saved: Any  # for the backward pass


def normal(rng: np.random.Generator, shapes: Shapes) -> Parameters:
    """Return matrices, normal with variance 1 / rows, and vectors of zeros."""
    draws = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return {n: a * (0 if a.ndim == 1 else a.shape[0] ** -0.5) for n, a in draws.items()}


def lstm_shapes(I: int, H: int) -> Shapes:
    peepholes = dict.fromkeys(("wci", "wcf", "wco"), (H,))
    return {"w": (I + H, 4 * H), "b": (4 * H,), **peepholes}


def lstm_initial(rng: np.random.Generator, I: int, H: int) -> Parameters:
    return normal(rng, lstm_shapes(I, H))


def lstm_forward(p: Parameters, x: Array, state: State, seed: int | None) -> Pass:
    cs, h = state
    out = cupyrnn.block_lstm(
        x, cs, h, p["w"], p["b"], wci=p["wci"], wcf=p["wcf"], wco=p["wco"], cell_clip=CELL_CLIP
    )
    gates = {"input gate i": out.i, "forget gate f": out.f, "output gate o": out.o}
    return Pass(out.h, (out.cs[-1], out.h[-1]), gates, out)


def lstm_backward(
    p: Parameters, x: Array, state: State, out: Pass, h_grad: Array, seed: int | None
) -> tuple[Array, Parameters]:
    cs, h = state
    saved: cupyrnn.LSTMOutputs = out.saved
    g = cupyrnn.block_lstm_grad(
        x,
        cs,
        h,
        p["w"],
        *saved,
        None,
        h_grad,
        wci=p["wci"],
        wcf=p["wcf"],
        wco=p["wco"],
        cell_clip=CELL_CLIP,  # given, the gradient is the true one: none passes a clipped state
    )
    peepholes = {"wci": g.wci_grad, "wcf": g.wcf_grad, "wco": g.wco_grad}
    return g.x_grad, {"w": g.w_grad, "b": g.b_grad, **peepholes}


def gru_shapes(I: int, H: int) -> Shapes:
    return {"w_ru": (I + H, 2 * H), "w_c": (I + H, H), "b_ru": (2 * H,), "b_c": (H,)}


def gru_initial(rng: np.random.Generator, I: int, H: int) -> Parameters:
    return normal(rng, gru_shapes(I, H))


def gru_forward(p: Parameters, x: Array, state: State, seed: int | None) -> Pass:
    (h,) = state
    out = cupyrnn.block_gru(x, h, p["w_ru"], p["w_c"], p["b_ru"], p["b_c"])
    return Pass(out.h, (out.h[-1],), {"reset gate r": out.r, "update gate u": out.u}, out)


def gru_backward(
    p: Parameters, x: Array, state: State, out: Pass, d_h: Array, seed: int | None
) -> tuple[Array, Parameters]:
    (h,) = state
    saved: cupyrnn.GRUOutputs = out.saved
    g = cupyrnn.block_gru_grad(x, h, p["w_ru"], p["w_c"], *saved, d_h)
    return g.d_x, {"w_ru": g.d_w_ru, "w_c": g.d_w_c, "b_ru": g.d_b_ru, "b_c": g.d_b_c}


def cudnn_shapes(rnn_mode: RNNMode, I: int, H: int) -> Shapes:
    return {"params": (cupyrnn.cudnn_rnn_params_size(LAYERS, H, I, rnn_mode=rnn_mode),)}


def cudnn_initial(rnn_mode: RNNMode, rng: np.random.Generator, I: int, H: int) -> Parameters:
    """Matrices normal with variance 1 / columns of W and R, a forget gate open, zero biases."""
    pieces = cupyrnn.cudnn_rnn_params_layout(LAYERS, H, I, rnn_mode=rnn_mode)
    params = np.zeros(pieces[-1].offset + pieces[-1].size)
    for piece in pieces:
        part = params[piece.offset : piece.offset + piece.size]
        if len(piece.shape) == 2:
            columns = H + (H if piece.layer else I)
            part[:] = columns**-0.5 * rng.standard_normal(piece.size)
        elif (piece.kind, piece.gate) == ("input_bias", "f"):
            part[:] = 1
    return {"params": params}


def cudnn_forward(
    rnn_mode: RNNMode, p: Parameters, x: Array, state: State, seed: int | None
) -> Pass:
    h, *c = state
    out = cupyrnn.cudnn_rnn(
        x,
        h,
        c[0] if c else None,
        p["params"],
        rnn_mode=rnn_mode,
        dropout=0 if seed is None else DROPOUT,
        seed=seed or 0,
    )
    after = (out.output_h, out.output_c)[: len(state)]
    shown = {f"output h of layer {LAYERS}": out.output}
    return Pass(out.output, after, shown, (*out[:3], out.reserve_space))


def cudnn_backward(
    rnn_mode: RNNMode,
    p: Parameters,
    x: Array,
    state: State,
    out: Pass,
    output_backprop: Array,
    seed: int | None,
) -> tuple[Array, Parameters]:
    h, *c = state
    output, output_h, output_c, reserve_space = out.saved
    g = cupyrnn.cudnn_rnn_backprop(
        x,
        h,
        c[0] if c else None,
        p["params"],
        output,
        output_h,
        output_c,
        output_backprop,
        None,
        None,
        reserve_space,
        rnn_mode=rnn_mode,
        dropout=0 if seed is None else DROPOUT,
        seed=seed or 0,
    )
    return g.input_backprop, {"params": g.params_backprop}


class Cell(NamedTuple):
    """What the model asks of a recurrent cell."""

    title: str
    states: int
    layers: int | None  # a state is [layers, B, H], or [B, H]
    limits: tuple[int, int]  # of what is drawn
    legend: str
    shapes: Callable[[int, int], Shapes]  # of I and H
    initial: Callable[[np.random.Generator, int, int], Parameters]
    forward: Callable[[Parameters, Array, State, int | None], Pass]
    backward: Callable[..., tuple[Array, Parameters]]


_GATES = ((0, 1), "activation (0 closed, 1 open)")
_OUTPUT = ((-1, 1), "output")
CELLS = {
    "lstm": Cell(
        "peephole LSTM (block_lstm)",
        2,
        None,
        *_GATES,
        lstm_shapes,
        lstm_initial,
        lstm_forward,
        lstm_backward,
    ),
    "gru": Cell(
        "GRU (block_gru)", 1, None, *_GATES, gru_shapes, gru_initial, gru_forward, gru_backward
    ),
    "cudnn_lstm": Cell(
        "two-layer LSTM with dropout (cudnn_rnn)",
        2,
        LAYERS,
        *_OUTPUT,
        partial(cudnn_shapes, "lstm"),
        partial(cudnn_initial, "lstm"),
        partial(cudnn_forward, "lstm"),
        partial(cudnn_backward, "lstm"),
    ),
    "cudnn_gru": Cell(
        "two-layer GRU with dropout (cudnn_rnn)",
        1,
        LAYERS,
        *_OUTPUT,
        partial(cudnn_shapes, "gru"),
        partial(cudnn_initial, "gru"),
        partial(cudnn_forward, "gru"),
        partial(cudnn_backward, "gru"),
    ),
}
