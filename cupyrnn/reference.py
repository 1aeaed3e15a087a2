"""
The definitions: each cell over a sequence, as a plain loop of its equations.

The arguments are NumPy arrays of any dtype, long double included. The imaginary parts of a complex
array are tangents, as in `cupyrnn.jvp`; where a function has cases, the real parts decide. The
functions check nothing and are slow. They define what the ops compute, and the tests compare the
ops with them.

T time steps, B batch, K size of the input, H hidden size, P size of h (H without a projection).
Arrays without the axis B are of one sequence.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .cells.gru import GRUOutputs
from .cells.gru_reset_after import GRUResetAfterOutputs
from .cells.lstm import LSTMOutputs, LSTMStates
from .cells.simple_rnn import SimpleRNNOutputs

__all__ = ["gru", "gru_reset_after", "layer_norm_lstm", "lstm", "multiplicative_lstm", "simple_rnn"]

_GATES = {"icfo": ("i", "ci", "f", "o"), "ifco": ("i", "f", "ci", "o")}


def _sigmoid(z: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-z))


def _between(low: float, z: Any, high: float) -> Any:
    """Return z clipped to the bounds; its real part decides."""
    return np.where(z.real <= low, low, np.where(z.real >= high, high, z))


_ACTIVATIONS: dict[str, Any] = {
    "sigmoid": _sigmoid,
    "hard_sigmoid_0.2": lambda z: _between(0, z / 5 + 0.5, 1),
    "hard_sigmoid_1/6": lambda z: _between(0, z / 6 + 0.5, 1),
}


def _memory(kind: Any, x: Any, arrays: tuple[Any, ...], *states: Any) -> Any:
    """Return zeros [T, ...] for outputs: the last one in h's shape, the others in the cell's."""
    dtype = np.result_type(x, *(a for a in (*arrays, *states) if a is not None))
    shapes = [states[-1].shape] * (len(kind._fields) - 1) + [states[0].shape]
    return kind(*(np.zeros((len(x), *shape), dtype) for shape in shapes))


def lstm(
    x: Any,
    cs_prev: Any,
    h_prev: Any,
    w: Any,
    b: Any,
    wci: Any = 0,
    wcf: Any = 0,
    wco: Any = 0,
    w_p: Any = None,
    *,
    forget_bias: float = 0,
    cell_clip: float | None = None,
    gate_order: str = "icfo",
    recurrent_activation: str = "sigmoid",
    proj_clip: float | None = None,
) -> LSTMOutputs[Any]:
    """
    Return an LSTM's i, cs, f, o, ci, co and h [T, B, H].

    It has the arguments of `cupyrnn.block_lstm`. By default forget_bias is 0 and there is no
    clip. With a projection w_p [H, P], w is [K+P, 4*H] and h [T, B, P], clipped to the bounds of
    proj_clip. CudnnRNN's LSTM is this one
    with the gate order "ifco" and the sum of its two biases.
    """
    sigmoid, names = _ACTIVATIONS[recurrent_activation], _GATES[gate_order]
    out: LSTMOutputs[Any] = _memory(LSTMOutputs, x, (w, b, wci, wcf, wco, w_p), h_prev, cs_prev)
    for t, x_t in enumerate(x):
        gates = np.split(np.concatenate([x_t, h_prev], -1) @ w + b, 4, -1)
        z = dict(zip(names, gates, strict=True))
        i = sigmoid(z["i"] + cs_prev * wci)
        f = sigmoid(z["f"] + cs_prev * wcf + forget_bias)
        ci = np.tanh(z["ci"])
        cs = i * ci + f * cs_prev
        if cell_clip:
            cs = _between(-cell_clip, cs, cell_clip)
        o = sigmoid(z["o"] + cs * wco)
        co = np.tanh(cs)
        h = o * co if w_p is None else (o * co) @ w_p
        if w_p is not None and proj_clip:
            h = _between(-proj_clip, h, proj_clip)
        for to, value in zip(out, (i, cs, f, o, ci, co, h), strict=True):
            to[t] = value
        cs_prev, h_prev = cs, h
    return out


def gru(
    x: Any,
    h_prev: Any,
    w_ru: Any,
    w_c: Any,
    b_ru: Any,
    b_c: Any,
    *,
    recurrent_activation: str = "sigmoid",
) -> GRUOutputs[Any]:
    """Return r, u, c and h [T, B, H] of the GRU of `cupyrnn.block_gru`, with its arguments."""
    sigmoid = _ACTIVATIONS[recurrent_activation]
    out: GRUOutputs[Any] = _memory(GRUOutputs, x, (w_ru, w_c, b_ru, b_c), h_prev)
    for t, x_t in enumerate(x):
        r, u = np.split(sigmoid(np.concatenate([x_t, h_prev], -1) @ w_ru + b_ru), 2, -1)
        c = np.tanh(np.concatenate([x_t, r * h_prev], -1) @ w_c + b_c)
        h_prev = (1 - u) * c + u * h_prev
        for to, value in zip(out, (r, u, c, h_prev), strict=True):
            to[t] = value
    return out


def gru_reset_after(
    x: Any,
    h_prev: Any,
    w_x: Any,
    w_h: Any,
    b_x: Any,
    b_h: Any,
    *,
    recurrent_activation: str = "sigmoid",
) -> GRUResetAfterOutputs:
    """
    Return r, u, c, hc = h_prev @ w_hc + b_hc and h [T, B, H] of CudnnRNN's GRU.

    w_x [K, 3*H], w_h [H, 3*H] and their biases [3*H] have the columns of r, u and c, in this order.
    """
    sigmoid = _ACTIVATIONS[recurrent_activation]
    out: GRUResetAfterOutputs = _memory(GRUResetAfterOutputs, x, (w_x, w_h, b_x, b_h), h_prev)
    for t, x_t in enumerate(x):
        xr, xu, xc = np.split(x_t @ w_x + b_x, 3, -1)
        hr, hu, hc = np.split(h_prev @ w_h + b_h, 3, -1)
        r, u = sigmoid(xr + hr), sigmoid(xu + hu)
        c = np.tanh(xc + r * hc)
        h_prev = (1 - u) * c + u * h_prev
        for to, value in zip(out, (r, u, c, hc, h_prev), strict=True):
            to[t] = value
    return out


def simple_rnn(
    x: Any, h_prev: Any, w_x: Any, w_h: Any, b: Any, *, relu: bool = False
) -> SimpleRNNOutputs:
    """Return h [T, B, H] of CudnnRNN's rnn_tanh, or of rnn_relu: w_x [K, H], w_h [H, H], b [H]."""
    out: SimpleRNNOutputs = _memory(SimpleRNNOutputs, x, (w_x, w_h, b), h_prev)
    for t, x_t in enumerate(x):
        z = x_t @ w_x + h_prev @ w_h + b
        h_prev = np.where(z.real > 0, z, 0) if relu else np.tanh(z)
        out.h[t] = h_prev
    return out


def _of_gates(a: Any, c_prev: Any) -> tuple[Any, Any]:
    """Return o and c of the sums of the gates, columns i, f, c, o."""
    a_i, a_f, a_c, a_o = np.split(a, 4, -1)
    return _sigmoid(a_o), _sigmoid(a_f) * c_prev + _sigmoid(a_i) * np.tanh(a_c)


def _norm(a: Any) -> Any:
    a = a - a.mean(-1, keepdims=True)
    return a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5)


def layer_norm_lstm(
    x: Any, c_prev: Any, h_prev: Any, w: Any, b: Any, b_c: Any, g_x: Any, g_h: Any, g_c: Any
) -> LSTMStates:
    """
    Return h and c [T, B, H] of an LSTM with layer normalization.

    The weights are those of `cupyrnn.cells.LayerNormLSTMParams`.
    """
    K = x.shape[-1]
    arrays = w, b, b_c, g_x, g_h, g_c
    out: LSTMStates = _memory(LSTMStates, x, arrays, c_prev, h_prev)
    for t, x_t in enumerate(x):
        a = _norm(x_t @ w[:K]) * g_x + _norm(h_prev @ w[K:]) * g_h + b
        o, c_prev = _of_gates(a, c_prev)
        h_prev = o * np.tanh(_norm(c_prev) * g_c + b_c)
        out.h[t], out.c[t] = h_prev, c_prev
    return out


def multiplicative_lstm(x: Any, c_prev: Any, h_prev: Any, w: Any, w_m: Any, b: Any) -> LSTMStates:
    """
    Return h and c [T, B, H] of a multiplicative LSTM.

    The weights are those of `cupyrnn.cells.MultiplicativeLSTMParams`.
    """
    K = x.shape[-1]
    out: LSTMStates = _memory(LSTMStates, x, (w, w_m, b), c_prev, h_prev)
    for t, x_t in enumerate(x):
        m = (x_t @ w_m[:K]) * (h_prev @ w_m[K:])
        o, c_prev = _of_gates(x_t @ w[:K] + m @ w[K:] + b, c_prev)
        h_prev = o * np.tanh(c_prev)
        out.h[t], out.c[t] = h_prev, c_prev
    return out
