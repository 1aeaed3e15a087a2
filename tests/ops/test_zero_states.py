"""None for a state before the first step is zeros, in every op, gradient and front."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems.properties import assert_same_bits

import cupyrnn
from cupyrnn.derivatives.tree import tree_map

T, B, I, H = 5, 3, 4, 6
LSTM: Any = cupyrnn.init_block_lstm(num_units=H, input_size=I, seed=0, dtype="float64")
SECOND: Any = cupyrnn.init_block_lstm(num_units=2, input_size=H, seed=1, dtype="float64")
GRU: Any = cupyrnn.init_block_gru(num_units=H, input_size=I, seed=2, dtype="float64")
STATE = np.zeros((B, H))


def net(mode: Any, **more: Any) -> Any:
    sizes = {"num_layers": 2, "num_units": H, "input_size": I, "seed": 3, "dtype": "float64"}
    return cupyrnn.init_params(rnn_mode=mode, direction="bidirectional", **sizes, **more)


def states(packed: Any, major: bool = True) -> Any:
    return packed.zero_state(B, time_major=major)


X = np.random.default_rng(0).standard_normal((T, B, I))
OF_SIZES = [np.zeros((1, B, H)), np.zeros((1, B, 2))]
# A call by name: the op, the states as zeros, the other arguments, and the options.
CALLS: dict[str, Any] = {
    "block_lstm": (cupyrnn.block_lstm, (X,), (STATE, STATE), LSTM, {}),
    "block_lstm, states": (cupyrnn.block_lstm, (X,), (STATE, STATE), LSTM, {"save": "states"}),
    "block_gru": (cupyrnn.block_gru, (X,), (STATE,), GRU, {}),
    "block_gru, k": (cupyrnn.block_gru, (X,), (STATE,), GRU, {"save": 2, "reverse": True}),
    "lstm_block_cell": (cupyrnn.lstm_block_cell, (X[0],), (STATE, STATE), LSTM, {}),
    "gru_block_cell": (cupyrnn.gru_block_cell, (X[0],), (STATE,), GRU, {}),
    "stacked LSTM": (cupyrnn.stacked_rnn, (X,), (STATE[None], STATE[None]), ([LSTM],), {}),
    "stacked GRU": (cupyrnn.stacked_rnn, (X,), (STATE[None], None), ([GRU],), {}),
    "stacked of sizes": (cupyrnn.stacked_rnn, (X,), (OF_SIZES, OF_SIZES), ([LSTM, SECOND],), {}),
}
for _mode, _more in (("lstm", {}), ("lstm", {"num_proj": 2}), ("gru", {}), ("rnn_tanh", {})):
    for _major in (True, False):
        _net, _x = net(_mode, **_more), X if _major else X.swapaxes(0, 1)
        CALLS[f"cudnn_rnn {_mode} {_more} {_major}"] = (
            *(cupyrnn.cudnn_rnn, (_x,), states(_net, _major), (_net,)),
            {"time_major": _major},
        )


def same(found: Any, expected: Any) -> None:
    tree_map(lambda a, e: assert_same_bits(a, e), found, expected)


def gradients_of(call: Any, given: Any, rng: np.random.Generator) -> Any:
    """Return the outputs and the gradients of a call with these states."""
    op, x, _, rest, options = call
    out, pullback = cupyrnn.vjp(op, *x, *given, *rest, **options)
    first = next(n for n in ("output", "h") if hasattr(out, n))
    name = {"output": "output_backprop"}.get(first, pullback.names[-1])
    return out, pullback(**{name: rng.standard_normal(getattr(out, first).shape)})


@pytest.mark.parametrize("name", CALLS)
def test_outputs_and_gradients_are_those_of_zeros(name: str) -> None:
    call = CALLS[name]
    zeros = call[2]
    expected = gradients_of(call, zeros, np.random.default_rng(1))
    for n in range(len(zeros)):
        given = [None if n == k else a for k, a in enumerate(zeros)]
        same(gradients_of(call, given, np.random.default_rng(1)), expected)
    same(gradients_of(call, [None] * len(zeros), np.random.default_rng(1)), expected)


def test_the_gradients_up_to_the_gates() -> None:
    out, gru = cupyrnn.lstm_block_cell(X[0], None, None, *LSTM), GRU[:2]
    one = np.ones((B, H))
    expected = cupyrnn.lstm_block_cell_grad(STATE, *out[:6], None, one)
    same(cupyrnn.lstm_block_cell_grad(None, *out[:6], None, one), expected)
    r, u, c, _ = cupyrnn.gru_block_cell(X[0], None, *GRU)
    expected = cupyrnn.gru_block_cell_grad(STATE, *gru, r, u, c, one)
    same(cupyrnn.gru_block_cell_grad(None, *gru, r, u, c, one), expected)


def test_a_prepared_step() -> None:
    packed = cupyrnn.init_params(num_layers=2, num_units=H, input_size=I, num_proj=2, seed=0)
    step, x = cupyrnn.prepare_step(packed), X[0].astype("f4")
    h, c = packed.zero_state(B)
    for given in ((), (None, c), (h, None), (h,)):
        same(step(x, *given), step(x, h, c))


def test_along_a_direction() -> None:
    def loss(x: Any, *given: Any) -> Any:
        return cupyrnn.block_lstm(x, *given, *LSTM).h.sum()

    v = np.ones_like(X)
    expected = cupyrnn.jvp(lambda x: loss(x, STATE, STATE), (X,), (v,))
    assert cupyrnn.jvp(lambda x: loss(x, None, None), (X,), (v,)) == expected


def test_input_c_of_a_vector_has_the_shape_of_input_h() -> None:
    packed = net("lstm")
    h, c = states(packed)
    options: Any = {"direction": "bidirectional"}
    expected = cupyrnn.cudnn_rnn(X, h, c, packed.params, **options)
    same(cupyrnn.cudnn_rnn(X, h, None, packed.params, **options)[:3], expected[:3])


VECTOR = net("lstm").params
ERRORS: list[tuple[Any, Any, str]] = [
    (lambda: cupyrnn.cudnn_rnn(X, None, None, VECTOR), TypeError, "cudnn_rnn: input_h is None, .*; params has no sizes: pass zeros of .*, or params as PackedParams"),
    (lambda: cupyrnn.cudnn_rnn(X, None, STATE, VECTOR), TypeError, "cudnn_rnn: input_h is None"),
    (lambda: cupyrnn.cudnn_rnn(None, None, None, net("lstm")), TypeError, "cudnn_rnn: input is None"),
    (lambda: cupyrnn.cudnn_rnn(X[0], None, None, net("gru")), ValueError, r"cudnn_rnn: input has shape \(3, 4\), expected \(T, B, I\)"),
    (lambda: cupyrnn.block_lstm([1], None, None, *LSTM), TypeError, "block_lstm: x is a list"),
    (lambda: cupyrnn.block_lstm(X, None, None, None, LSTM.b), TypeError, "block_lstm: w is None"),
    (lambda: cupyrnn.block_lstm(X[0, 0], None, None, *LSTM), ValueError, r"block_lstm: x has shape \(4,\)"),
    (lambda: cupyrnn.stacked_rnn(X, None, None, [3]), TypeError, r"stacked_rnn: weights\[0\] is an int"),
    (lambda: cupyrnn.stacked_rnn(X, None, None, [LSTM._replace(w=[1])]), TypeError, r"stacked_rnn: weights\[0\].w is a list"),
    (lambda: cupyrnn.stacked_rnn(X[0], None, None, [LSTM]), ValueError, r"stacked_rnn: input has shape \(3, 4\)"),
]  # fmt: skip
# ruff: noqa: E501 - a case a line


@pytest.mark.parametrize(("call", "error", "message"), ERRORS)
def test_errors(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()
