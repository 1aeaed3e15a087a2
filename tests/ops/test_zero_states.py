"""None for a state before the first step means zeros, beyond the tests of the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems.properties import assert_same_bits

import cupyrnn

T, B, I, H = 5, 3, 4, 6
LSTM: Any = cupyrnn.init_block_lstm(num_units=H, input_size=I, seed=0, dtype="float64")
STATE = np.zeros((B, H))


def net(mode: Any, **more: Any) -> Any:
    sizes = {"num_layers": 2, "num_units": H, "input_size": I, "seed": 3, "dtype": "float64"}
    return cupyrnn.init_params(rnn_mode=mode, direction="bidirectional", **sizes, **more)


X = np.random.default_rng(0).standard_normal((T, B, I))


def test_a_prepared_step() -> None:
    packed = cupyrnn.init_params(num_layers=2, num_units=H, input_size=I, num_proj=2, seed=0)
    step, x = cupyrnn.prepare_step(packed), X[0].astype("f4")
    h, c = packed.zero_state(B)
    for given in ((), (None, c), (h, None), (h,)):
        assert_same_bits(step(x, *given), step(x, h, c))


def test_along_a_direction() -> None:
    def loss(x: Any, *given: Any) -> Any:
        return cupyrnn.block_lstm(x, *given, *LSTM).h.sum()

    v = np.ones_like(X)
    expected = cupyrnn.jvp(lambda x: loss(x, STATE, STATE), (X,), (v,))
    assert cupyrnn.jvp(lambda x: loss(x, None, None), (X,), (v,)) == expected


def test_input_c_of_a_vector_has_the_shape_of_input_h() -> None:
    packed = net("lstm")
    h, c = packed.zero_state(B)
    options: Any = {"direction": "bidirectional"}
    expected = cupyrnn.cudnn_rnn(X, h, c, packed.params, **options)
    assert_same_bits(cupyrnn.cudnn_rnn(X, h, None, packed.params, **options)[:3], expected[:3])


ERRORS: list[tuple[Any, Any, str]] = [
    (lambda: cupyrnn.cudnn_rnn(X, np.zeros((4, B, 2)), None, net("lstm", num_proj=2).params, num_proj=2, direction="bidirectional"), TypeError, "cudnn_rnn: input_c is None, expected a numpy.ndarray like input"),
    (lambda: cupyrnn.cudnn_rnn(None, None, None, net("lstm")), TypeError, "cudnn_rnn: input is None"),
    (lambda: cupyrnn.cudnn_rnn(X[0], None, None, net("gru")), ValueError, r"cudnn_rnn: input has shape \(3, 4\), expected \(T, B, I\)"),
    (lambda: cupyrnn.block_lstm([1], None, None, *LSTM), TypeError, "block_lstm: x is a list"),
    (lambda: cupyrnn.block_lstm(X, None, None, None, LSTM.b), TypeError, "block_lstm: w is None"),
    (lambda: cupyrnn.block_lstm(X[0, 0], None, None, *LSTM), ValueError, r"block_lstm: x has shape \(4,\)"),
    (lambda: cupyrnn.stacked_rnn(X, None, None, [3]), TypeError, r"stacked_rnn: weights\[0\] is an int"),
    (lambda: cupyrnn.stacked_rnn(X, None, None, [LSTM._replace(w=[1])]), TypeError, r"stacked_rnn: weights\[0\].w is a list"),
    (lambda: cupyrnn.stacked_rnn(X[0], None, None, [LSTM]), ValueError, r"stacked_rnn: input has shape \(3, 4\)"),
    (lambda: cupyrnn.stacked_rnn(X, None, None, [LSTM], direction=np.ones(2)), ValueError, r"stacked_rnn: direction is array\(\[1., 1.\]\), expected one of"),
]  # fmt: skip
# ruff: noqa: E501 - a case a line


@pytest.mark.parametrize(("call", "error", "message"), ERRORS)
def test_errors(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()
