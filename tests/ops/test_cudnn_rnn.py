"""CudnnRNN: outputs and gradients of every mode, lengths, dropout, dtypes, layouts and errors."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from checks import Ops
from problems import nets, table
from problems.properties import assert_all_close, assert_same_bits
from problems.refusals import CALLS, NETS, call, on_device, raises

import cupyrnn


@pytest.mark.parametrize("mode", nets.MODES[1:])
def test_the_cell_state_of_other_modes_is_nothing(
    ops: Any, mode: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    # cuDNN does not write a part of its reserve_space, so its bits differ from call to call.
    monkeypatch.setenv("CUPYRNN_ENGINE", "cupy")
    case = nets.Case(mode, 4, 3, 2, 5, 2)
    inputs, cotangents = (
        nets.problem(rng, case, np.float32),
        nets.cotangents_of(rng, case, np.float32),
    )
    out = nets.forward(ops, case, inputs)
    g = nets.backward(ops, case, inputs, out, cotangents)
    for a in (out.output_c, g.input_c_backprop):
        assert a.shape == ()
        assert a.dtype == np.float32
        assert a == 0
    # Keras gives CudnnRNN input_c=0 for a GRU.
    for unused in (0, np.full((2, 3, 5), np.nan, np.float32), np.full(7, np.nan, np.float32)):
        ignored = {**inputs, "input_c": unused}
        assert_same_bits(nets.forward(ops, case, ignored), out)
        assert_same_bits(nets.backward(ops, case, ignored, out, cotangents), g)
    scalar = ops.xp.zeros((), np.float32)
    ignored = {**inputs, "input_c": scalar}
    assert_same_bits(nets.forward(ops, case, ignored), out)
    given = {"output_c": scalar, "output_c_backprop": scalar}
    assert_same_bits(nets.backward(ops, case, ignored, out, cotangents, **given), g)


def host(a: Any) -> Any:
    return a if type(a) is np.ndarray else a.get() if hasattr(a, "get") else a.view(np.ndarray)


@pytest.mark.parametrize("p", [np.float32(0.5), np.float64(0.5), 0.5])
def test_attributes_may_be_numpys(p: Any) -> None:
    numbers = {"seed": np.int32(1), "seed2": np.int64(2), "num_proj": np.int64(0)}
    truths = {"is_training": np.True_, "time_major": np.True_}
    expected = call("cudnn_rnn", dropout=0.5, seed=1, seed2=2)
    assert_same_bits(call("cudnn_rnn", dropout=p, **numbers, **truths), expected)


def test_the_engine_of_numpy_arrays_is_numpy(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = nets.Case("gru", 3, 2, 2, 4, 2, nets.BI, lengths=(1, 3))
    inputs = {"input_c": None} | nets.problem(rng, case) | case.attributes
    assert cupyrnn.cudnn_rnn_engine(**inputs) == "numpy"
    packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=2, dtype="float64")
    assert cupyrnn.cudnn_rnn_engine(inputs["input"], None, None, packed) == "numpy"
    for name in ("auto", "cupy", "cudnn"):
        monkeypatch.setenv("CUPYRNN_ENGINE", name)
        assert cupyrnn.cudnn_rnn_engine(**inputs) == "numpy"
    packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=2, dtype="float64")
    assert cupyrnn.cudnn_rnn_engine(inputs["input"], None, None, packed) == "numpy"
    for name in ("cupy", "cudnn"):
        message = f"engine is {name!r}, but input is a numpy.ndarray, expected a cupy.ndarray"
        for op in (cupyrnn.cudnn_rnn, cupyrnn.cudnn_rnn_engine):
            with pytest.raises(TypeError, match=f"^{op.__name__}: {message}$"):
                op(**inputs, engine=name)


# ruff: noqa: E501 - a case a line
@pytest.mark.parametrize("op", NETS)
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"rnn_mode": "LSTM"}, ValueError, "rnn_mode is 'LSTM', expected one of rnn_relu, rnn_tanh, lstm, gru"),
        ({"input_mode": ""}, ValueError, "input_mode is '', expected one of linear_input, skip_input, auto_select"),
        ({"input_mode": nets.SKIP}, ValueError, "input_size is 4, expected H = num_units = 5 with skip_input, which adds the input to the gates without a matrix"),
        ({"direction": "both"}, ValueError, "direction is 'both', expected one of unidirectional, bidirectional"),
        ({"dropout": -0.1}, ValueError, "dropout is -0.1, expected in [0, 1]"),
        ({"dropout": "0.5"}, TypeError, "dropout is '0.5', expected a real number"),
        ({"dropout": 10**400}, ValueError, "dropout is an integer of 1329 bits, expected a number that a float can hold"),
        ({"seed": 1.5}, TypeError, "seed is 1.5, expected an integer"),
        ({"seed": True}, TypeError, "seed is True, expected an integer"),
        ({"num_proj": -1}, ValueError, "num_proj is -1, expected at least 0"),
        ({"num_proj": 6}, ValueError, "num_proj is 6, expected at most H = num_units = 5"),
        ({"num_proj": 2}, ValueError, "input_h has shape (4, 3, 5), expected (L*D, B, P) = (4, 3, 2)"),
        ({"num_proj": 2, "rnn_mode": "gru"}, ValueError, "num_proj is 2, expected 0 for gru: only lstm projects"),
        ({"num_proj": 5}, ValueError, "params has shape (1120,), expected (params_size,) = (1220,) for lstm with L = 2, D = 2, H = 5, I = 4, P = 5; or pass a PackedParams, which has these sizes"),
        ({"rnn_mode": "gru"}, ValueError, "params has shape (1120,), expected (params_size,) = (840,) for gru with L = 2, D = 2, H = 5, I = 4; or pass a PackedParams, which has these sizes"),
        ({"direction": nets.UNI}, ValueError, "params has shape (1120,), expected (params_size,) = (940,) for lstm with L = 4, D = 1, H = 5, I = 4; or pass a PackedParams, which has these sizes"),
        *(({"rnn_mode": mode, "recurrent_activation": "hard_sigmoid_0.2"}, ValueError, f"recurrent_activation is 'hard_sigmoid_0.2', expected sigmoid for {mode}, which has no gates") for mode in nets.MODES[2:]),
        ({"input": np.zeros((6, 3))}, ValueError, "input has shape (6, 3), expected (T, B, I)"),
        ({"input_h": np.zeros((4, 3))}, ValueError, "input_h has shape (4, 3), expected (L*D, B, P)"),
        ({"input_c": np.zeros((1, 4, 3, 5))}, ValueError, "input_c has shape (1, 4, 3, 5), expected (L*D, B, H)"),
        ({"time_major": 1}, TypeError, "time_major is 1, expected a bool"),
        ({"time_major": False}, ValueError, "input_h has shape (4, 3, 5), expected (B, L*D, P) with D = 2: bidirectional"),
        ({"engine": "gpu"}, ValueError, "engine is 'gpu', expected one of auto, cudnn, cupy, cudnn_small_h, cudnn_persist_dynamic, cudnn_persist_static"),
        ({"engine": "cudnn"}, TypeError, "engine is 'cudnn', but input is a numpy.ndarray, expected a cupy.ndarray"),
        ({"sequence_lengths": [2, 6]}, ValueError, "sequence_lengths has shape (2,), expected (B,) = (3,)"),
        ({"sequence_lengths": [2, -1, 7]}, ValueError, "sequence_lengths[1] is -1, expected in [0, T] = [0, 6]"),
        ({"sequence_lengths": [2.0, 6.0, 0.0]}, TypeError, "sequence_lengths has dtype float64, expected integers"),
        ({"sequence_lengths": [[1], [2, 3], 0]}, TypeError, "sequence_lengths is [[1], [2, 3], 0], expected a numpy.ndarray or a list of integers"),
    ],
)  # fmt: skip
def test_attributes(op: str, changed: dict[str, Any], error: Any, message: str) -> None:
    raises(op, error, message, **changed)


RESERVED = "as a forward call with is_training=True returns it"


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"output": np.zeros((6, 3))}, ValueError, "output has shape (6, 3), expected (T, B, D*P) = (6, 3, 10)"),
        ({"output_c_backprop": np.zeros((4, 3))}, ValueError, "output_c_backprop has shape (4, 3), expected (L*D, B, H) = (4, 3, 5)"),
        ({"reserve_space": np.zeros((9, 1))}, ValueError, f"reserve_space has shape (9, 1), expected {CALLS['cudnn_rnn_backprop']['reserve_space'].shape}, as cudnn_rnn returns it for these arguments with is_training=True"),
        ({"host_reserved": [0, 0]}, TypeError, "host_reserved is [0, 0], expected a numpy.ndarray, int8"),
        *(
            ({"host_reserved": a}, TypeError, f"host_reserved is {a!r}, expected a numpy.ndarray, int8")
            for a in (np.zeros(5, d) for d in (np.uint8, np.int64, np.float32, bool, ">i2"))
        ),
        ({"host_reserved": np.zeros((), np.int8)}, ValueError, f"host_reserved has shape (), expected (5,), {RESERVED}"),
        ({"host_reserved": np.array([1, 0, 0, 0, 0], np.int8)}, ValueError, "host_reserved begins with 1, which no engine for numpy arrays has"),
        ({"host_reserved": np.array([-1, 0, 0, 0, 0], np.int8)}, ValueError, "host_reserved begins with -1, which no engine for numpy arrays has"),
    ],
)  # fmt: skip
def test_what_the_gradient_alone_is_given(
    changed: dict[str, Any], error: Any, message: str
) -> None:
    raises("cudnn_rnn_backprop", error, message, **changed)


RESERVED_CALL = {
    **{"rnn_mode": "lstm", "direction": nets.BI, "dropout": 0.5, "sequence_lengths": (4, 2, 3)},
    **{"input_mode": nets.LINEAR, "resets": np.eye(4, 3, dtype=bool), "num_proj": 0, "seed": 1},
}
T_B_I_H = (4, 3, 5, 5)


def reserved(dtype: Any = np.float64, **changed: Any) -> Any:
    """Return the arguments and the outputs of a call of two layers."""
    T, B, I, H = T_B_I_H
    attributes = {**RESERVED_CALL, **changed}
    kind = {n: attributes[n] for n in ("rnn_mode", "direction", "input_mode", "num_proj")}
    rows, P = 4 if kind["direction"] == nets.BI else 2, kind["num_proj"] or H
    params = np.zeros(cupyrnn.cudnn_rnn_params_size(2, H, I, **kind), dtype)
    arrays = (
        np.zeros((T, B, I), dtype),
        np.zeros((rows, B, P), dtype),
        np.zeros((rows, B, H), dtype),
    )
    return (*arrays, params), attributes, cupyrnn.cudnn_rnn(*arrays, params, **attributes)


@pytest.mark.parametrize(
    "changed",
    [
        {"dropout": 0.25},
        {"sequence_lengths": (2, 4, 3)},
        {"sequence_lengths": (3, 3, 3)},
        {"sequence_lengths": None},
        {"resets": np.eye(4, 3, 1, dtype=bool)},
        {"resets": None},
        {"rnn_mode": "gru"},
        {"input_mode": nets.SKIP},
        {"num_proj": 2},
        {"direction": nets.UNI},
        {"recurrent_activation": "hard_sigmoid_0.2"},
        {"dtype": np.float32},
    ],
    ids=str,
)
def test_host_reserved_of_another_call(changed: dict[str, Any]) -> None:
    """It is noticed even if reserve_space has the same size."""
    inputs, attributes, out = reserved()
    _, _, other = reserved(**changed)
    given = (*inputs, *out[:3], None, None, None, out.reserve_space)
    message = "reserve_space is of a call with other sizes, attributes, lengths or resets$"
    with pytest.raises(ValueError, match=message):
        cupyrnn.cudnn_rnn_backprop(*given, host_reserved=other.host_reserved, **attributes)
    cupyrnn.cudnn_rnn_backprop(*given, host_reserved=out.host_reserved, **attributes)
    cupyrnn.cudnn_rnn_backprop(*given, host_reserved=None, **attributes)


def test_host_reserved_of_the_same_call_in_other_words() -> None:
    """Seeds and arguments without effect are not part of it; another process computes the same."""
    inputs, attributes, out = reserved()
    given = (*inputs, *out[:3], None, None, None, out.reserve_space)
    cupyrnn.cudnn_rnn_backprop(*given, host_reserved=out.host_reserved, **attributes | {"seed": 9})
    plain = reserved(sequence_lengths=None, resets=None, dropout=0.0)[2].host_reserved
    said = {"sequence_lengths": (4, 4, 4), "resets": np.zeros((4, 3), bool), "dropout": 0}
    said["rnn_mode"] = np.str_("lstm")
    np.testing.assert_array_equal(reserved(**said)[2].host_reserved, plain)
    np.testing.assert_array_equal(plain, np.array([0, -117, 39, -92, 8], np.int8))
    wrong = out.host_reserved.copy()
    wrong[1] ^= 77
    with pytest.raises(ValueError, match="reserve_space is of a call with other sizes"):
        cupyrnn.cudnn_rnn_backprop(*given, host_reserved=wrong, **attributes)


def test_sizes_that_are_read_off_the_states() -> None:
    x, h, params = np.zeros((6, 3, 4)), np.zeros((3, 3, 5)), np.zeros(1)
    for changed, message in (
        ({}, "input_h has shape (3, 3, 5), expected (L*D, B, P) with D = 2: bidirectional"),
        ({"input_h": h[:0]}, "num_layers is 0, expected at least 1"),
        ({"input_h": h[:2, :, :0]}, "num_units is 0, expected at least 1"),
        ({"input_h": h[:2], "input": x[..., :0]}, "input_size is 0, expected at least 1"),
        (
            {"input_h": h[:2, :2]},
            "input_h has shape (2, 2, 5), expected (L*D, B, P) = (2, 3, 5);"
            " input is [T, B, I], time first, unless time_major=False",
        ),
    ):
        args = {"input": x, "input_h": h, "input_c": None, "params": params} | changed
        with pytest.raises(ValueError, match=f"^{re.escape(f'cudnn_rnn: {message}')}$"):
            cupyrnn.cudnn_rnn(**args, rnn_mode="gru", direction=nets.BI)  # type: ignore[arg-type]
    raises("cudnn_rnn", TypeError, "is_training is 1, expected a bool", is_training=1)
    packed = cupyrnn.init_params(num_layers=1, num_units=5, input_size=4, num_proj=2, seed=0)
    for name, symbol, size in (("input_h", "P", 2), ("input_c", "H", 5)):
        args = dict(zip(("input_h", "input_c"), packed.zero_state(3), strict=True))
        args |= {"input": x.astype("f"), "params": packed, name: h[0].astype("f")}
        message = f"{name} has shape (3, 5), expected (L*D, B, {symbol}) = (1, 3, {size})"
        with pytest.raises(ValueError, match=f"^{re.escape(f'cudnn_rnn: {message}')},"):
            cupyrnn.cudnn_rnn(**args)


@pytest.mark.cuda_on_cpu
def test_the_engine_of_cupy_arrays(cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    args = on_device(cupy_on_cpu, "cudnn_rnn")
    assert cupyrnn.cudnn_rnn_engine(**args, engine="cupy") == "cupy"
    monkeypatch.setenv("CUPYRNN_ENGINE", "cupy")
    assert cupyrnn.cudnn_rnn_engine(**args) == "cupy"
    monkeypatch.setenv("CUPYRNN_ENGINE", "gpu")
    message = (
        "the environment variable CUPYRNN_ENGINE is 'gpu', expected one of auto, cudnn, cupy,"
        " cudnn_small_h, cudnn_persist_dynamic, cudnn_persist_static"
    )
    for op in NETS:
        arguments = on_device(cupy_on_cpu, op)
        arguments.pop("host_reserved", None)  # which would name the engine
        with pytest.raises(ValueError, match=f"^{op}: {message}$"):
            getattr(cupyrnn, op)(**arguments)


@pytest.mark.cuda_on_cpu
def test_the_reserve_of_one_module_is_that_of_the_other(cupy_on_cpu: Any) -> None:
    """
    The device can use the reserve_space of NumPy, and NumPy can use the device's.

    This holds for equal lengths and one direction. Otherwise the device keeps more rows, in another
    order.
    """
    rng, net = np.random.default_rng(0), {"dropout": 0.5, "seed": 3}
    params = rng.standard_normal(cupyrnn.cudnn_rnn_params_size(2, 4, 3))
    x, h, c, dy = (rng.standard_normal(n) for n in ((5, 2, 3), (2, 2, 4), (2, 2, 4), (5, 2, 4)))
    out = cupyrnn.cudnn_rnn(x, h, c, params, **net)
    arrays = [cupy_on_cpu.asarray(a) for a in (x, h, c, params)]
    there = cupyrnn.cudnn_rnn(*arrays, **net, engine="cupy")
    nothing = (None,) * 3
    expected = cupyrnn.cudnn_rnn_backprop(
        x, h, c, params, *nothing, dy, None, None, out.reserve_space,
        host_reserved=there.host_reserved, **net,
    )  # fmt: skip
    for result in (out, there):
        more = cupy_on_cpu.asarray(dy), None, None, cupy_on_cpu.asarray(host(result.reserve_space))
        g = cupyrnn.cudnn_rnn_backprop(
            *arrays, *nothing, *more, host_reserved=result.host_reserved, **net, engine="cupy"
        )
        assert_all_close(
            expected._make(map(host, g)), expected, table.Case("cudnn_rnn-lstm"), "gradient"
        )


@pytest.mark.compiled
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_gradient_takes_little_more_memory_than_it_returns(mode: str) -> None:
    """The gradient of the input is computed in the memory of the result."""
    T, B, H = 4000, 8, 32
    params = np.full(cupyrnn.cudnn_rnn_params_size(1, H, H, rnn_mode=mode), 0.1, np.float32)
    x, h = np.ones((T, B, H), np.float32), np.zeros((1, B, H), np.float32)
    out = cupyrnn.cudnn_rnn(x, h, h, params, rnn_mode=mode)
    args = (x, h, h, params, None, None, None, x, None, None, out.reserve_space)
    cupyrnn.cudnn_rnn_backprop(*args, rnn_mode=mode)
    peaks = []
    for _ in range(3):  # other threads may allocate, too
        tracemalloc.start()
        try:
            cupyrnn.cudnn_rnn_backprop(*args, rnn_mode=mode)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert min(peaks) < 1.5 * x.nbytes


def test_what_two_directions_give_is_rounded_once(ops: Any) -> None:
    """The two gradients of the input nearly cancel: float16 would lose the difference."""
    half, I, H = np.float16, 3, 4
    w_to = np.linspace(0.4, 0.9, H * I).astype(half).reshape(H, I)
    w_back = np.nextafter(w_to, half(0), dtype=half)
    zeros = [np.zeros((H, H), half)] * 2
    matrices = zip((w_to, w_back), zeros, strict=True)
    params = np.concatenate(
        [a.ravel() for pair in matrices for a in pair] + [np.zeros(4 * H, half)]
    )
    attributes = {"rnn_mode": "rnn_relu", "direction": "bidirectional", "engine": nets.own(ops)}
    inputs = np.ones((2, 1, I), half), np.zeros((2, 1, H), half), None, params
    out = ops.cudnn_rnn(*inputs, **attributes)
    dy = np.repeat(np.array([1, -1], half), H) * np.ones((2, 1, 1), half)
    grads = ops.cudnn_rnn_backprop(
        *inputs, *out[:3], dy, None, None, out.reserve_space, **attributes
    )
    expected = (w_to.astype(float) - w_back).sum(0)
    assert (expected > 0).all()
    np.testing.assert_array_equal(grads.input_backprop, np.tile(expected.astype(half), (2, 1, 1)))


def test_reverse_is_checked(cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    case, both = (nets.Case("gru", 3, 2, 4, 5, direction=d) for d in (nets.UNI, nets.BI))
    inputs, given = nets.problem(rng, case), nets.cotangents_of(rng, case)
    with pytest.raises(TypeError, match=r"^cudnn_rnn: reverse is 1, expected a bool"):
        nets.forward(cupyrnn, case, inputs, reverse=1)
    with pytest.raises(ValueError, match="reverse is True, expected False with direction"):
        nets.forward(cupyrnn, both, nets.problem(rng, both), reverse=True)
    out = nets.forward(cupyrnn, case, inputs, reverse=True)
    with pytest.raises(ValueError, match="host_reserved"):
        nets.backward(cupyrnn, case, inputs, out, given)
    with pytest.raises(RuntimeError, match="cuDNN does not run one direction in reverse"):
        nets.forward(Ops(cupy_on_cpu), case, inputs, reverse=True, engine="cudnn")
