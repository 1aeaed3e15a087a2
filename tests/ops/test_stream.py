"""Prepared steps beyond the tests of the table: on a device, errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from checks import assert_close

import cupyrnn


def net(mode: Any, L: int) -> cupyrnn.PackedParams:
    sizes: Any = {"num_layers": L, "num_units": 5, "input_size": 3, "dtype": "float64"}
    return cupyrnn.init_params(rnn_mode=mode, scheme="torch", **sizes)


def test_later_changes_of_the_parameters_are_not_seen(rng: np.random.Generator) -> None:
    packed = net("gru", 2)
    step = cupyrnn.prepare_step(packed)
    x, (h, _) = rng.standard_normal((2, 3)), packed.zero_state(2)
    before = step(x, h)
    packed.params[...] = 0
    np.testing.assert_array_equal(step(x, h).output, before.output)


def test_a_relu_of_nan_is_nan() -> None:
    packed = net("rnn_relu", 1)
    x = np.full((1, 3), np.nan)
    assert np.isnan(cupyrnn.prepare_step(packed)(x, *packed.zero_state(1)).output).all()


@pytest.mark.cuda_on_cpu
def test_a_step_runs_on_the_device_of_its_parameters(
    cupy_on_cpu: Any, rng: np.random.Generator
) -> None:
    packed = net("lstm", 2)
    x, (h, c) = rng.standard_normal((3, packed.input_size)), packed.zero_state(3)
    expected = cupyrnn.prepare_step(packed)(x, h, c)
    with cupy_on_cpu.cuda.Device(1):
        step = cupyrnn.prepare_step(packed._replace(params=cupy_on_cpu.asarray(packed.params)))
        arrays = [cupy_on_cpu.asarray(a) for a in (x, h, c)]
    for a, e in zip(step(*arrays), expected, strict=True):
        assert a.device.id == 1
        assert_close(cupy_on_cpu.asnumpy(a), e, "float64", "a step")


LSTM = net("lstm", 1)


# ruff: noqa: E501 - a case a line
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cupyrnn.prepare_step(cupyrnn.init_params(num_layers=1, num_units=2, input_size=3, direction="bidirectional")), ValueError, "params is of a bidirectional net, expected one direction: the other one begins at the end of a sequence"),
        (lambda: cupyrnn.prepare_step(cupyrnn.init_block_lstm(num_units=2, input_size=3)), TypeError, "params is a cupyrnn.BlockLSTMParams, expected a PackedParams; for one step with block weights use lstm_block_cell or gru_block_cell"),
        (lambda: cupyrnn.prepare_step(np.zeros(3), 1, 2, 3), ValueError, "params has shape (3,), expected (params_size,) = (56,) for lstm with L = 1, D = 1, H = 2, I = 3"),
        (lambda: cupyrnn.prepare_step(LSTM)(np.zeros((1, 4)), *LSTM.zero_state(1)), ValueError, "x has shape (1, 4), expected (B, I) = (1, 3)"),
        (lambda: cupyrnn.prepare_step(LSTM)(np.zeros((1, 1, 3)), *LSTM.zero_state(1)), ValueError, "x has shape (1, 1, 3), expected (B, I)"),
        (lambda: cupyrnn.prepare_step(LSTM)(np.zeros((2, 3)), *LSTM.zero_state(1)), ValueError, "h has shape (1, 1, 5), expected (L, B, P) = (1, 2, 5)"),
        (lambda: cupyrnn.prepare_step(LSTM)(np.zeros((2, 3)), np.zeros((1, 2, 5)), np.zeros((1, 1, 5))), ValueError, "c has shape (1, 1, 5), expected (L, B, H) = (1, 2, 5)"),
        (lambda: cupyrnn.prepare_step(net("gru", 1))(np.zeros((1, 3)), LSTM.zero_state(1)[0], 0), TypeError, "c is an int, expected None for gru"),
        (lambda: cupyrnn.prepare_step(LSTM)(np.zeros((1, 3), np.float32), *LSTM.zero_state(1)), TypeError, "x has dtype float32, expected float64 like params"),
    ],
)  # fmt: skip
def test_errors(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(f'prepare_step: {message}')}$"):
        call()
