"""The cells of the model: initial parameters, forward and backward pass.

`seed` is the seed of a window's dropout; None means no dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import cupyrnn

from .._typing import Array
from ..cells.packed import RNNMode

Shapes: TypeAlias = "dict[str, tuple[int, ...]]"
Parameters: TypeAlias = "dict[str, Array]"
State: TypeAlias = "tuple[Array, ...]"

# Bounds the cell states of an LSTM. Without it some would grow for ever, because the state passes
# through many more steps than the gradient.
CELL_CLIP = 3.0
LAYERS, DROPOUT = 2, 0.1  # of the cells of cudnn_rnn


class Pass(NamedTuple):
    """The results of a cell for a window of the text."""

    h: Array  # [T, B, H]
    state: State  # the initial state of the next window
    shown: dict[str, Array]  # [T, B, H] each, to draw
    backward: Callable[[Array], tuple[Array, Parameters]]  # gradient of h -> gradients of x and p


def normal(rng: np.random.Generator, shapes: Shapes) -> Parameters:
    """Return matrices, normal with variance 1 / rows, and vectors of zeros."""
    draws = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return {n: a * (0 if a.ndim == 1 else a.shape[0] ** -0.5) for n, a in draws.items()}


def lstm_shapes(I: int, H: int) -> Shapes:
    peepholes = dict.fromkeys(("wci", "wcf", "wco"), (H,))
    return {"w": (I + H, 4 * H), "b": (4 * H,), **peepholes}


def lstm_forward(p: Parameters, x: Array, state: State, seed: int | None) -> Pass:
    weights: dict[str, Any] = {name: p[name] for name in lstm_shapes(0, 0)}
    # The gradient is the true one: it is zero at clipped states.
    out, pullback = cupyrnn.vjp(cupyrnn.block_lstm, x, *state, **weights, cell_clip=CELL_CLIP)

    def backward(h_grad: Array) -> tuple[Array, Parameters]:
        g = pullback(h_grad=h_grad)
        return g.x_grad, {name: getattr(g, f"{name}_grad") for name in weights}

    gates = {"input gate i": out.i, "forget gate f": out.f, "output gate o": out.o}
    return Pass(out.h, (out.cs[-1], out.h[-1]), gates, backward)


def gru_shapes(I: int, H: int) -> Shapes:
    return {"w_ru": (I + H, 2 * H), "w_c": (I + H, H), "b_ru": (2 * H,), "b_c": (H,)}


def gru_forward(p: Parameters, x: Array, state: State, seed: int | None) -> Pass:
    weights: dict[str, Any] = {name: p[name] for name in gru_shapes(0, 0)}
    out, pullback = cupyrnn.vjp(cupyrnn.block_gru, x, *state, **weights)

    def backward(d_h: Array) -> tuple[Array, Parameters]:
        g = pullback(d_h=d_h)
        return g.d_x, {name: getattr(g, f"d_{name}") for name in weights}

    return Pass(out.h, (out.h[-1],), {"reset gate r": out.r, "update gate u": out.u}, backward)


def cudnn_shapes(rnn_mode: RNNMode, I: int, H: int) -> Shapes:
    return {"params": (cupyrnn.cudnn_rnn_params_size(LAYERS, H, I, rnn_mode=rnn_mode),)}


def cudnn_initial(rnn_mode: RNNMode, rng: np.random.Generator, I: int, H: int) -> Parameters:
    """Matrices: normal, variance 1 / columns of W and R. Biases: zero, but 1 for a forget gate."""
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
    h: Any
    c: Any
    h, c = (*state, None)[:2]
    rate = 0.0 if seed is None else DROPOUT
    out, pullback = cupyrnn.vjp(
        cupyrnn.cudnn_rnn, x, h, c, p["params"], rnn_mode=rnn_mode, dropout=rate, seed=seed or 0
    )

    def backward(output_backprop: Array) -> tuple[Array, Parameters]:
        g = pullback(output_backprop=output_backprop)
        return g.input_backprop, {"params": g.params_backprop}

    shown = {f"output h of layer {LAYERS}": out.output}
    return Pass(out.output, (out.output_h, out.output_c)[: len(state)], shown, backward)


class DemoCell(NamedTuple):
    """A recurrent cell as the model uses it."""

    title: str
    states: int
    layers: int | None  # a state is [layers, B, H], or [B, H]
    limits: tuple[int, int]  # of the values drawn
    legend: str
    shapes: Callable[[int, int], Shapes]  # of I and H
    initial: Callable[[np.random.Generator, int, int], Parameters]
    forward: Callable[[Parameters, Array, State, int | None], Pass]


def _block(
    title: str, states: int, shapes: Callable[[int, int], Shapes], forward: Callable[..., Pass]
) -> DemoCell:
    def initial(rng: np.random.Generator, I: int, H: int) -> Parameters:
        return normal(rng, shapes(I, H))

    legend = "activation (0 closed, 1 open)"
    return DemoCell(title, states, None, (0, 1), legend, shapes, initial, forward)


def _cudnn(title: str, states: int, rnn_mode: RNNMode) -> DemoCell:
    functions: Any = [partial(f, rnn_mode) for f in (cudnn_shapes, cudnn_initial, cudnn_forward)]
    return DemoCell(title, states, LAYERS, (-1, 1), "output", *functions)


CELLS = {
    "lstm": _block("peephole LSTM (block_lstm)", 2, lstm_shapes, lstm_forward),
    "gru": _block("GRU (block_gru)", 1, gru_shapes, gru_forward),
    "cudnn_lstm": _cudnn("two-layer LSTM with dropout (cudnn_rnn)", 2, "lstm"),
    "cudnn_gru": _cudnn("two-layer GRU with dropout (cudnn_rnn)", 1, "gru"),
}
