"""A script over CuPy arrays as a user writes it, for mypy and pyright."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

import cupyrnn
from cupyrnn import raw_ops

T, B, I, H = 4, 3, 2, 5
x, dy = cupy.asarray(np.ones((T, B, I))), cupy.asarray(np.ones((T, B, H)))
state, w = cupy.asarray(np.zeros((B, H))), cupy.asarray(np.ones((I + H, 4 * H)))
b = cupy.asarray(np.zeros(4 * H))


def lstm() -> NDArray[Any]:
    out = cupyrnn.block_lstm(x, state, state, w, b, sequence_lengths=[4, 2, 0])
    h: NDArray[np.float64] = out.h.get()
    grads = cupyrnn.block_lstm_grad(x, state, state, w, *out, None, dy)
    step = cupyrnn.lstm_block_cell(x, state, state, w, b)
    last: NDArray[Any] = step.h.get()
    on_host = [a.get() for a in (*out, *grads)]
    return np.concatenate([h, last, *on_host])


def gru(w_ru: "cupy.ndarray", w_c: "cupy.ndarray") -> NDArray[Any]:
    out = cupyrnn.block_gru(x, state, w_ru, w_c, b, b)
    d_x: NDArray[Any] = cupyrnn.block_gru_grad(x, state, w_ru, w_c, *out, dy).d_x.get()
    u: NDArray[Any] = cupyrnn.gru_block_cell(x, state, w_ru, w_c, b, b).u.get()
    return np.concatenate([d_x, u])


def net(params: "cupy.ndarray") -> NDArray[Any]:
    out = cupyrnn.cudnn_rnn(x, state, state, params)
    grads = cupyrnn.cudnn_rnn_backprop(
        x, state, state, params, *out[:3], dy, None, None, out.reserve_space
    )
    state_of_step: NDArray[Any] = cupyrnn.prepare_step(params)(x, state, state).output_h.get()
    weights, _ = cupyrnn.cudnn_rnn_params_to_canonical(1, H, I, params)
    first: NDArray[Any] = weights[0].get()
    params_backprop: NDArray[Any] = grads.params_backprop.get()
    return np.concatenate([first, params_backprop, state_of_step, out.host_reserved])


def tensorflows_names() -> NDArray[Any]:
    out = raw_ops.GRUBlockCell(x=x, h_prev=state, w_ru=w, w_c=w, b_ru=b, b_c=b)
    h: NDArray[Any] = out.h.get()
    return h
