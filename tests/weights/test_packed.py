"""PackedParams: a packed vector that knows its net."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import cupyrnn
from cupyrnn.weights.packed import InitialState

# ruff: noqa: E501 - a case a line
GRU = cupyrnn.PackedParams(np.arange(126.0), 1, 3, 2, "gru", "bidirectional", 0)


def lstm(rng: np.random.Generator, **sizes: Any) -> cupyrnn.PackedParams:
    net: Any = {"num_layers": 1, "num_units": 3, "input_size": 2, "rnn_mode": "lstm"}
    net |= {"direction": "unidirectional", "num_proj": 0} | sizes
    return cupyrnn.PackedParams(rng.standard_normal(cupyrnn.cudnn_rnn_params_size(**net)), **net)


def test_it_is_shown_without_its_numbers() -> None:
    packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    assert repr(packed) == (
        "PackedParams(params=<(56,), float32>, num_layers=1, num_units=2, input_size=3,"
        " rnn_mode='lstm', direction='unidirectional', num_proj=0, input_mode='linear_input',"
        " recurrent_activation='sigmoid')"
    )
    assert repr(packed._replace(params=None)).startswith("PackedParams(params=None, num_layers=1,")


def test_zero_state(rng: np.random.Generator) -> None:
    h, c = GRU.zero_state(4)
    assert (h.shape, h.dtype, c) == ((2, 4, 3), np.float64, None)
    packed = lstm(rng, num_layers=3, num_proj=1)
    packed = packed._replace(params=packed.params.astype(np.float16))
    state = packed.zero_state(0, time_major=False)
    assert isinstance(state, InitialState)
    assert (state.input_h.shape, state.input_c.shape) == ((0, 3, 1), (0, 3, 3))
    assert state.input_h.dtype == state.input_c.dtype == np.float16
    for B, error in ((-1, ValueError), (2.0, TypeError), (None, TypeError)):
        with pytest.raises(error, match=r"^zero_state: batch_size is "):
            packed.zero_state(B)
    with pytest.raises(ValueError, match=r"^zero_state: params has shape"):
        packed._replace(params=packed.params[1:]).zero_state(1)


def test_the_hint_for_a_plain_vector_works() -> None:
    """The error names a call; the call converts."""
    params, num_layers, num_units, input_size = GRU[:4]
    rnn_mode, direction = GRU[4:6]
    for op in ("torch", "keras", "onnx", "tf1", "gates", "block_lstm"):
        with pytest.raises(TypeError, match="expected a PackedParams") as raised:
            getattr(cupyrnn.weights, f"params_to_{op}")(params)
        hint = str(raised.value).partition("; pass ")[2]
        assert eval(hint) == GRU, (num_layers, num_units, input_size, rnn_mode, direction)


SKIP = cupyrnn.PackedParams(
    np.zeros(cupyrnn.cudnn_rnn_params_size(1, 3, 3, input_mode="skip_input")),
    1, 3, 3, "lstm", "unidirectional", 0, "auto_select",
)  # fmt: skip


def run(**changed: Any) -> Any:
    given: dict[str, Any] = {"input": np.zeros((5, 1, 2)), "input_h": np.zeros((2, 1, 3))}
    return cupyrnn.cudnn_rnn(**{**given, "input_c": None, "params": GRU, **changed})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: GRU.zero_state(10**12), ValueError, "zero_state: batch_size is 1000000000000, expected less, for states [L*D, B, H] of fewer than 10**12 elements"),
        (lambda: run(rnn_mode="lstm"), ValueError, "cudnn_rnn: rnn_mode is 'lstm', but params is of a net with 'gru'"),
        (lambda: run(direction="unidirectional"), ValueError, "cudnn_rnn: direction is 'unidirectional', but params is of a net with 'bidirectional'"),
        (lambda: run(num_proj=1), ValueError, "cudnn_rnn: num_proj is 1, expected 0 for gru: only lstm projects"),
        (lambda: run(input_mode="skip_input"), ValueError, "cudnn_rnn: input_size is 2, expected H = num_units = 3 with skip_input, which adds the input to the gates without a matrix"),
        (lambda: run(recurrent_activation="hard_sigmoid_0.2"), ValueError, "cudnn_rnn: recurrent_activation is 'hard_sigmoid_0.2', but params is of a net with 'sigmoid'"),
        (lambda: run(params=GRU._replace(recurrent_activation="x")), ValueError, "cudnn_rnn: recurrent_activation is 'x', expected one of sigmoid, hard_sigmoid_0.2, hard_sigmoid_1/6"),
        (lambda: run(input=np.zeros((5, 1, 4))), ValueError, "cudnn_rnn: input has shape (5, 1, 4), expected (T, B, I) with I = 2 as in params"),
        (lambda: run(input_h=np.zeros((1, 1, 3))), ValueError, "cudnn_rnn: input_h has shape (1, 1, 3), expected (L*D, B, P) = (2, 1, 3)"),
        *((lambda n=n, h=h: run(params=GRU._replace(num_layers=n), **h), ValueError, f"cudnn_rnn: params has shape (126,), expected (params_size,) = ({126 + (n - 1) * 2 * 99},) for gru with L = {n}, D = 2, H = 3, I = 2") for n in (2**31, 2**62) for h in ({}, {"input_h": None})),
        (lambda: run(params=GRU._replace(params=None)), TypeError, "cudnn_rnn: params is None, expected a numpy.ndarray like input; pass a PackedParams, such as init_params returns, or a vector"),
    ],
)  # fmt: skip
def test_errors(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_zero_states_of_block_weights(dtype: str) -> None:
    lstm_ = cupyrnn.init_block_lstm(num_units=3, input_size=2, dtype=dtype)
    gru = cupyrnn.init_block_gru(num_units=3, input_size=2, dtype=dtype)
    peepholes = cupyrnn.PeepholeLSTMParams(*lstm_, w_p=np.zeros((3, 2), dtype))
    x = np.ones((4, 5, 2), dtype)
    assert cupyrnn.block_lstm(x, *lstm_.zero_state(5), *lstm_).h.shape == (4, 5, 3)
    assert cupyrnn.block_gru(x, gru.zero_state(5), *gru).h.dtype == dtype
    assert [a.shape for a in peepholes.zero_state(0)] == [(0, 3), (0, 2)]
    for weights in (lstm_, gru, peepholes):
        for size, error in ((-1, ValueError), (2.0, TypeError), (10**12, ValueError)):
            with pytest.raises(error, match=r"^zero_state: batch_size is "):
                weights.zero_state(size)


@pytest.mark.parametrize("left_out", ["wci", "wcf", "wco"])
def test_peepholes_come_together(left_out: str) -> None:
    weights = cupyrnn.init_block_lstm(num_units=3, input_size=2)
    peepholes = {name: np.ones(3, np.float32) for name in ("wci", "wcf", "wco") if name != left_out}
    x = np.ones((4, 5, 2), np.float32)
    with pytest.raises(TypeError, match=rf"^block_lstm: {left_out} is None, expected an array of"):
        cupyrnn.block_lstm(x, *weights.zero_state(5), *weights, **peepholes)


def test_a_net_knows_its_layout() -> None:
    for packed in (GRU, SKIP):
        pieces = packed.params_layout()
        assert sum(piece.size for piece in pieces) == len(packed.params)
    sizes = {"num_layers": 1, "num_units": 3, "input_size": 2, "rnn_mode": "gru"}
    assert GRU.params_layout() == cupyrnn.cudnn_rnn_params_layout(
        **sizes, direction="bidirectional"
    )
    with pytest.raises(ValueError, match=r"^params_layout: rnn_mode is 'x', expected one of"):
        GRU._replace(rnn_mode="x").params_layout()
