"""Initializers have the distributions of Keras and PyTorch."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close

import cupyrnn
from cupyrnn.cells.packed import GATES, layers
from cupyrnn.weights.params import check_net

CONFIGURATIONS = [
    {"rnn_mode": mode, "direction": direction, "input_mode": input_mode, "num_proj": P}
    for mode, direction, input_mode, P in itertools.product(
        GATES, ("unidirectional", "bidirectional"), ("linear_input", "skip_input"), (0, 3)
    )
    if mode == "lstm" or not P
]


@pytest.mark.parametrize("c", CONFIGURATIONS, ids=lambda c: "-".join(map(str, c.values())))
def test_keras_scheme(c: Any) -> None:
    L, H = 2, 8
    packed = cupyrnn.init_params(
        num_layers=L, num_units=H, input_size=H, **c, seed=3, dtype="float64"
    )
    net = check_net("", L, H, H, **c)
    assert packed[1:] == (L, H, H, *(c[n] for n in packed._fields[4:-1]), "sigmoid")
    for layer in layers(packed.params, net):
        G, _, K = layer.input.shape
        if K:
            bound = np.sqrt(6 / (K + G * H))
            assert 0.85 * bound < np.abs(layer.input).max() <= bound
        side = layer.recurrent.reshape(G * H, -1)
        assert_close(side.T @ side, np.eye(net.P), "float64", "recurrent.T @ recurrent")
        biases = layer.input_bias + layer.recurrent_bias
        expected = np.zeros((G, H))
        if c["rnn_mode"] == "lstm":
            expected[1] = 1
        np.testing.assert_array_equal(biases, expected)


@pytest.mark.parametrize("c", CONFIGURATIONS, ids=lambda c: "-".join(map(str, c.values())))
def test_torch_scheme(c: Any) -> None:
    packed = cupyrnn.init_params(
        num_layers=2, num_units=8, input_size=8, **c, scheme="torch", seed=3, dtype="float64"
    )
    bound = 1 / np.sqrt(8)
    assert np.abs(packed.params).max() <= bound
    assert abs(packed.params.mean()) < 5 * bound / np.sqrt(3 * packed.params.size)
    assert abs(packed.params.std() / (bound / np.sqrt(3)) - 1) < 0.1


@pytest.mark.parametrize("scheme", ["keras", "torch"])
def test_the_forget_bias(scheme: Any) -> None:
    packed = cupyrnn.init_params(
        num_layers=2, num_units=4, input_size=3, forget_bias=2.5, scheme=scheme
    )
    net = check_net("", 2, 4, 3, "lstm", "linear_input", "unidirectional", 0)
    for layer in layers(packed.params, net):
        assert (layer.input_bias[1] == 0).all()
        assert (layer.recurrent_bias[1] == 2.5).all()


def test_the_signs_of_orthogonal_matrices() -> None:
    """QR decompositions fix signs; here all signs must be equally likely."""
    for make in (
        lambda s: cupyrnn.init_params(num_layers=1, num_units=4, input_size=3, seed=s).params[48],
        lambda s: cupyrnn.init_block_gru(num_units=4, input_size=3, seed=s).w_ru[3, 0],
    ):
        share = np.mean([make(seed) < 0 for seed in range(200)])
        assert 0.3 < share < 0.7


def test_seeds() -> None:
    """The same seed gives the same values in every dtype; a generator continues."""
    first, again, other = (
        cupyrnn.init_params(num_layers=1, num_units=4, input_size=3, seed=s).params
        for s in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert first.dtype == np.float32
    double = cupyrnn.init_params(
        num_layers=1, num_units=4, input_size=3, seed=5, dtype=np.float64
    ).params
    np.testing.assert_array_equal(double.astype(np.float32), first)
    rng = np.random.default_rng(5)
    np.testing.assert_array_equal(
        cupyrnn.init_params(num_layers=1, num_units=4, input_size=3, seed=rng).params, first
    )
    assert (
        cupyrnn.init_params(num_layers=1, num_units=4, input_size=3, seed=rng).params != first
    ).any()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_arrays_of_cupy(cupy_on_gpu: Any, dtype: str) -> None:
    cupy = cupy_on_gpu
    sizes: Any = {"num_units": 3, "input_size": 2, "dtype": dtype}
    packed = cupyrnn.init_params(num_layers=2, **sizes, xp=cupy)
    assert isinstance(packed.zero_state(4).input_h, cupy.ndarray)
    pairs = [(packed.params, cupyrnn.init_params(num_layers=2, **sizes).params)]
    for function in (cupyrnn.init_block_lstm, cupyrnn.init_block_gru):
        pairs += zip(function(**sizes, xp=cupy), function(**sizes), strict=True)  # type: ignore[operator]
    for found, due in pairs:
        assert isinstance(found, cupy.ndarray)
        np.testing.assert_array_equal(found.get(), due)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half(dtype: str) -> None:
    needs.module("ml_dtypes")
    for arrays in (
        [cupyrnn.init_params(num_layers=1, num_units=4, input_size=3, dtype=dtype).params],
        cupyrnn.init_block_lstm(num_units=4, input_size=3, dtype=dtype),
        cupyrnn.init_block_gru(num_units=4, input_size=3, dtype=dtype),
    ):
        assert {a.dtype.name for a in arrays} == {dtype}


def test_bfloat16_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that has not imported ml_dtypes, and without ml_dtypes."""
    needs.module("ml_dtypes")
    call = "cupyrnn.init_params(num_layers=1, num_units=4, input_size=3, dtype='bfloat16')"
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(
        TypeError, match=r"^init_params: dtype is 'bfloat16', which needs ml_dtypes$"
    ):
        eval(call)
    command = [sys.executable, "-c", f"import cupyrnn; print({call}.params.dtype)"]
    assert subprocess.check_output(command, text=True).strip() == "bfloat16"


@pytest.mark.parametrize(
    ("options", "forget"),
    [
        ({"gate_order": "icfo"}, 0),
        ({"gate_order": "ifco"}, 1),
        ({"gate_order": "icfo", "forget_bias": 3}, 3),
        ({"gate_order": "ifco", "forget_bias": 3, "scheme": "torch"}, 3),
    ],
)
def test_block_lstm(options: Any, forget: float) -> None:
    w, b = cupyrnn.init_block_lstm(num_units=4, input_size=3, **options, dtype="float64")
    assert (w.shape, b.shape) == ((7, 16), (16,))
    column = 2 if options["gate_order"] == "icfo" else 1
    own = b.reshape(4, 4)
    assert (own[column] == forget).all()
    if options.get("scheme") != "torch":
        assert_close(w[3:] @ w[3:].T, np.eye(4), "float64", "recurrent")
        assert not np.delete(own, column, 0).any()


def test_block_lstm_is_the_packed_one() -> None:
    """One seed gives the same net, and with block_lstm's defaults of "icfo" the same function."""
    packed = cupyrnn.init_params(num_layers=1, num_units=4, input_size=3, seed=7, dtype="float64")
    x, zeros = np.ones((5, 2, 3)), np.zeros((2, 4))
    expected = cupyrnn.cudnn_rnn(x, *packed.zero_state(2), packed.params).output
    for order in ("icfo", "ifco"):
        gate_order: Any = order
        w, b = cupyrnn.init_block_lstm(
            num_units=4, input_size=3, gate_order=gate_order, seed=7, dtype="float64"
        )
        h = cupyrnn.block_lstm(x, zeros, zeros, w, b, gate_order=gate_order, cell_clip=0).h
        assert_close(h, expected, "float64", order)


@pytest.mark.parametrize("scheme", ["keras", "torch"])
def test_block_gru(scheme: Any) -> None:
    w_ru, w_c, b_ru, b_c = cupyrnn.init_block_gru(
        num_units=40, input_size=3, scheme=scheme, dtype="float64"
    )
    both = np.concatenate([w_ru, w_c], 1)
    if scheme == "keras":
        assert_close(both[3:] @ both[3:].T, np.eye(40), "float64", "recurrent")
        assert np.abs(both[:3]).max() <= np.sqrt(6 / 123)
        assert not b_ru.any()
        assert not b_c.any()
    else:
        assert np.abs(both).max() <= 1 / np.sqrt(40)
        assert 1 / np.sqrt(40) < np.abs(b_ru).max() <= 2 / np.sqrt(40)


# ruff: noqa: E501 - a case a line
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cupyrnn.init_params(num_layers=1, num_units=2, input_size=3, xp="cupy"), TypeError, "init_params: xp is 'cupy', expected the module numpy or cupy"),
        (lambda: cupyrnn.init_params(num_layers=0, num_units=2, input_size=3), ValueError, "init_params: num_layers is 0, expected at least 1"),
        (lambda: cupyrnn.init_params(num_layers=1, num_units=2, input_size=3, scheme="he"), ValueError, "init_params: scheme is 'he', expected one of keras, torch"),
        (lambda: cupyrnn.init_params(num_layers=1, num_units=2, input_size=3, dtype=int), TypeError, "init_params: dtype is <class 'int'>, expected one of float16, bfloat16, float32, float64"),
        (lambda: cupyrnn.init_params(num_layers=1, num_units=2, input_size=3, seed=None), TypeError, "init_params: seed is None, expected an integer"),
        (lambda: cupyrnn.init_params(num_layers=1, num_units=2, input_size=3, rnn_mode="gru", forget_bias=1), ValueError, "init_params: forget_bias is 1, expected None for gru: only lstm has a forget gate"),
        (lambda: cupyrnn.init_block_lstm(num_units=2, input_size=3, forget_bias="1"), TypeError, "init_block_lstm: forget_bias is '1', expected a real number"),
        (lambda: cupyrnn.init_block_lstm(num_units=2, input_size=3, gate_order="oifc"), ValueError, "init_block_lstm: gate_order is 'oifc', expected one of icfo, ifco"),
        *((lambda d=d: cupyrnn.init_params(num_layers=1, num_units=2, input_size=3, dtype=d), TypeError, f"init_params: dtype is {d!r}, expected one of float16, bfloat16, float32, float64") for d in (">f4", None, np.float32(1), 3, np.dtype(">f8"))),
        (lambda: cupyrnn.init_params(num_layers=1, num_units=10**6, input_size=1), ValueError, "init_params: num_layers, num_units and input_size are 1, 1000000 and 1: params has 4000012000000 elements, expected fewer than 10**12"),
    ],
)  # fmt: skip
def test_errors(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()
