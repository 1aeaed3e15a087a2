"""A script over NumPy arrays as a user writes it, for mypy and pyright; it runs, too."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import cupyrnn
from cupyrnn import raw_ops

if TYPE_CHECKING:
    from typing_extensions import assert_type

T, B, I, H = 4, 3, 2, 5
rng = np.random.default_rng(0)
x: NDArray[np.float32] = rng.standard_normal((T, B, I)).astype(np.float32)
x_0 = np.ones((B, I), np.float32)
state, dy = np.zeros((B, H), np.float32), np.ones((T, B, H), np.float32)
w, b = np.full((I + H, 4 * H), 0.1, "float32"), np.zeros(4 * H, np.float32)
peephole = np.tanh(np.ones(H, np.float32)) / 2


def mean(out: cupyrnn.typing.LSTMOutputs) -> float:
    """A function with type hints."""
    return float(out.h.mean())


def lstm() -> NDArray[np.floating[Any]]:
    out = cupyrnn.block_lstm(
        x, state, state, w, b, wci=peephole, wcf=peephole, wco=peephole, sequence_lengths=[4, 2, 0]
    )
    mean(out)
    i, *_, h = out
    (i + h).sum()
    grads = cupyrnn.block_lstm_grad(x, state, state, w, *out, None, dy)
    cell = cupyrnn.lstm_block_cell(x_0, state, state, w, b)
    step = cupyrnn.lstm_block_cell_grad(state, *cell[:6], None, dy[0])
    if TYPE_CHECKING:
        assert_type(out, cupyrnn.typing.LSTMOutputs[NDArray[Any]])
        assert_type(out.h, NDArray[Any])
        assert_type(h, NDArray[Any])
        assert_type(grads.w_grad, NDArray[Any])
        assert_type(cell.cs, NDArray[Any])
        assert_type(step.dicfo, NDArray[Any])
        out.h.get()  # type: ignore[attr-defined]
        out.hidden  # type: ignore[attr-defined] # noqa: B018
        cupyrnn.block_lstm([[[1.0]]], state, state, w, b)  # type: ignore[type-var]
        cupyrnn.block_lstm(x, state, state, [[1.0]], b)  # type: ignore[arg-type]
    out, pullback = cupyrnn.vjp(cupyrnn.block_lstm, x, w=w, b=b, cell_clip=0)
    true = pullback(h_grad=dy)
    kept, by_states = cupyrnn.vjp(cupyrnn.block_lstm, x, state, state, w, b, save="states")
    if TYPE_CHECKING:
        assert_type(out.h, NDArray[Any])
        assert_type(true, cupyrnn.typing.LSTMGrads[NDArray[Any]])
        assert_type(kept.h, NDArray[Any])
        assert_type(by_states(h_grad=dy), cupyrnn.typing.LSTMGrads[NDArray[Any]])
        cupyrnn.vjp(cupyrnn.block_lstm, x, state, state, w, 3)  # type: ignore[call-overload]
    return w - 0.1 * grads.w_grad - 0.1 * true.w_grad


def gru() -> tuple[int, ...]:
    w_ru, w_c, d_h = w[:, : 2 * H], w[:, 2 * H : 3 * H], dy
    biases = b[: 2 * H], b[:H]
    out = cupyrnn.block_gru(x, state, w_ru, w_c, *biases, reverse=True)
    grads = cupyrnn.block_gru_grad(x, state, w_ru, w_c, *out, d_h, reverse=True)
    cell = cupyrnn.gru_block_cell(x_0, state, w_ru, w_c, *biases)
    if TYPE_CHECKING:
        assert_type(out.h, NDArray[Any])
        assert_type(grads, cupyrnn.typing.GRUGrads[NDArray[Any]])
        assert_type(cell.u, NDArray[Any])
    return grads.d_x.shape


def net() -> None:
    size = cupyrnn.cudnn_rnn_params_size(1, H, I)
    params = rng.standard_normal(size).astype(np.float32)
    first = np.zeros((1, B, H), np.float32)
    out = cupyrnn.cudnn_rnn(x, first, first, params)
    grads = cupyrnn.cudnn_rnn_backprop(
        x, first, first, params, *out[:3], dy, None, None, out.reserve_space
    )
    step = cupyrnn.prepare_step(params, 1, H, I)(x_0, first, first)
    layers = [cupyrnn.init_block_gru(num_units=H, input_size=I, dtype=np.float32)]
    stack = cupyrnn.stacked_rnn(x, first, None, layers)
    parts = cupyrnn.cudnn_rnn_params_to_canonical(1, H, I, params)
    packed = cupyrnn.cudnn_rnn_canonical_to_params(1, H, I, parts.weights, parts.biases)
    if TYPE_CHECKING:
        assert_type(out.output, NDArray[Any])
        assert_type(out.host_reserved, NDArray[np.int8])
        assert_type(grads.params_backprop, NDArray[Any])
        assert_type(parts.weights, list[NDArray[Any]])
        assert_type(packed, NDArray[Any])
        assert_type(step.output_h, NDArray[Any])
        assert_type(stack.output, NDArray[Any])


def tensorflows_names() -> None:
    out = raw_ops.BlockLSTM(
        seq_len_max=T,
        x=x,
        cs_prev=state,
        h_prev=state,
        w=w,
        wci=peephole,
        wcf=peephole,
        wco=peephole,
        b=b,
    )
    if TYPE_CHECKING:
        assert_type(out.co, NDArray[Any])


if __name__ == "__main__":
    lstm()
    gru()
    net()
    tensorflows_names()
