"""Prepared steps beyond the tests of the table: compiled, on a device, errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from checks import assert_close
from problems.properties import assert_same_bits

import cupyrnn

NETS = [
    ("lstm", {}),
    ("lstm", {"num_proj": 2}),
    ("lstm", {"input_mode": "skip_input"}),
    ("gru", {}),
    ("gru", {"recurrent_activation": "hard_sigmoid_1/6"}),
    ("gru", {"input_mode": "skip_input"}),
    ("rnn_tanh", {}),
    ("rnn_relu", {}),
    ("rnn_relu", {"input_mode": "skip_input"}),
]


def net(mode: str, more: Any, L: int, dtype: str = "float64") -> cupyrnn.PackedParams:
    I = 5 if more.get("input_mode") else 3
    options: Any = {"rnn_mode": mode, **more, "scheme": "torch", "dtype": dtype}
    gates = options.pop("recurrent_activation", "sigmoid")
    return cupyrnn.init_params(num_layers=L, num_units=5, input_size=I, **options)._replace(
        recurrent_activation=gates
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("L", [1, 3])
@pytest.mark.parametrize(("mode", "more"), NETS)
@pytest.mark.usefixtures("compiled_loops")
def test_compiled_steps_are_the_steps_of_numpy(
    mode: str, more: Any, L: int, dtype: str, rng: np.random.Generator, monkeypatch: Any
) -> None:
    packed = net(mode, more, L, dtype)
    expected, step = cupyrnn.prepare_step(packed), cupyrnn.prepare_step(packed)
    if "input_mode" not in more:
        monkeypatch.setattr(step, "_run", lambda *_: pytest.fail("it is not recorded"))
    monkeypatch.setattr(expected, "_record", lambda by_name, _: by_name)
    for B in (1, 3):
        x = rng.standard_normal((B, packed.input_size)).astype(dtype)
        states = [None if s is None else s + 0.5 for s in packed.zero_state(B)]
        for given in (states, (), states):
            for found, due in zip(step(x, *given), expected(x, *given), strict=True):
                assert (found is None) == (due is None)
                if found is not None:
                    assert_close(found, due, dtype, "step")


def test_later_changes_of_the_parameters_are_not_seen(rng: np.random.Generator) -> None:
    packed = net("gru", {}, 2)
    step = cupyrnn.prepare_step(packed)
    x, (h, _) = rng.standard_normal((2, 3)), packed.zero_state(2)
    before = step(x, h)
    packed.params[...] = 0
    np.testing.assert_array_equal(step(x, h).output, before.output)


def test_a_relu_of_nan_is_nan() -> None:
    packed = net("rnn_relu", {}, 1)
    x = np.full((1, 3), np.nan)
    assert np.isnan(cupyrnn.prepare_step(packed)(x, *packed.zero_state(1)).output).all()


@pytest.mark.cuda_on_cpu
def test_a_step_runs_on_the_device_of_its_parameters(
    cupy_on_cpu: Any, rng: np.random.Generator
) -> None:
    packed = net("lstm", {}, 2)
    x, (h, c) = rng.standard_normal((3, packed.input_size)), packed.zero_state(3)
    expected = cupyrnn.prepare_step(packed)(x, h, c)
    with cupy_on_cpu.cuda.Device(1):
        step = cupyrnn.prepare_step(packed._replace(params=cupy_on_cpu.asarray(packed.params)))
        arrays = [cupy_on_cpu.asarray(a) for a in (x, h, c)]
    for a, e in zip(step(*arrays), expected, strict=True):
        assert a.device.id == 1
        assert_close(cupy_on_cpu.asnumpy(a), e, "float64", "a step")


@pytest.mark.parametrize(("mode", "more"), NETS)
def test_steps_on_a_device_are_recorded(
    mode: str, more: Any, cupy_on_gpu: Any, rng: np.random.Generator, monkeypatch: Any
) -> None:
    packed, cupy = net(mode, more, 2), cupy_on_gpu
    packed = packed._replace(params=cupy.asarray(packed.params))
    expected, step = cupyrnn.prepare_step(packed), cupyrnn.prepare_step(packed)
    if not {"input_mode", "num_proj"} & {*more}:
        monkeypatch.setattr(step, "_run", lambda *_: pytest.fail("it is not recorded"))
    monkeypatch.setattr(expected, "_record", lambda by_name, _: by_name)
    x = cupy.asarray(rng.standard_normal((3, packed.input_size)))
    states = [None if s is None else s + 0.5 for s in packed.zero_state(3)]
    for passed in (states, (), states):
        found, due = ([a for a in of(x, *passed) if a is not None] for of in (step, expected))
        assert_same_bits([*map(cupy.asnumpy, found)], [*map(cupy.asnumpy, due)])


LSTM = net("lstm", {}, 1)


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
        (lambda: cupyrnn.prepare_step(net("gru", {}, 1))(np.zeros((1, 3)), LSTM.zero_state(1)[0], 0), TypeError, "c is an int, expected None for gru"),
        (lambda: cupyrnn.prepare_step(LSTM)(np.zeros((1, 3), np.float32), *LSTM.zero_state(1)), TypeError, "x has dtype float32, expected float64 like params"),
    ],
)  # fmt: skip
def test_errors(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(f'prepare_step: {message}')}$"):
        call()
