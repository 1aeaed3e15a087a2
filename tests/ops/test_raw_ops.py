"""TensorFlow's names: exactly the op's arguments reach the function behind it."""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cupyrnn
from cupyrnn import raw_ops

NET = {"num_layers": 1, "num_units": 2, "input_size": 3}

# Additional arguments of the function behind an op, and arguments that do not reach it.
GIVEN = {"BlockLSTMV2": {"gate_order": "ifco"}, "BlockLSTMGradV2": {"gate_order": "ifco"}}
NOT_GIVEN = {
    "CudnnRNNParamsSize": {"T", "S", "dropout", "seed", "seed2"},
    "CudnnRNNParamsToCanonical": {"num_params", "dropout", "seed", "seed2"},
    "CudnnRNNParamsToCanonicalV2": {
        "num_params_weights",
        "num_params_biases",
        "dropout",
        "seed",
        "seed2",
    },
    "CudnnRNNCanonicalToParams": {"dropout", "seed", "seed2"},
    "CudnnRNNCanonicalToParamsV2": {"dropout", "seed", "seed2"},
}

# Arguments that an op checks itself; every other one is a unique object.
LOOKED_AT = {"T": np.float32, "S": np.int32, "dropout": 0.25, "seed": 3, "seed2": 4}
LOOKED_AT |= {"num_params": 5, "num_params_weights": 5, "num_params_biases": 6}


class Stop(Exception):
    """Raised by the recorder, which replaces the function behind an op."""


def behind(op: str) -> str:
    """Return the name of the function behind an op, from its docstring."""
    return re.findall(r"`cupyrnn\.(\w+)`", getattr(raw_ops, op).__doc__)[0]


def record(op: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Call an op with a recorder instead of the function behind it; return the recorded arguments."""
    given: dict[str, Any] = {}
    signature = inspect.signature(getattr(cupyrnn, behind(op)))

    def recorder(*args: Any, **kwargs: Any) -> Any:
        given.update(signature.bind(*args, **kwargs).arguments)
        raise Stop

    for place in (raw_ops, sys.modules["cupyrnn.weights.params"]):
        if behind(op) in vars(place):
            monkeypatch.setattr(place, behind(op), recorder)
    call = getattr(raw_ops, op)
    cells = dict(zip(call.__code__.co_freevars, call.__closure__, strict=True))
    monkeypatch.setattr(cells["function"], "cell_contents", recorder)
    with pytest.raises(Stop):
        call(**arguments)
    return given


@pytest.mark.parametrize("op", raw_ops.__all__)
@pytest.mark.parametrize("peephole", [False, True])
def test_every_argument_is_passed_on(
    op: str, peephole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = inspect.signature(getattr(raw_ops, op)).parameters
    arguments = {name: LOOKED_AT.get(name, object()) for name in parameters}
    if "use_peephole" in parameters:
        arguments["use_peephole"] = peephole
    given = record(op, arguments, monkeypatch)
    expected = arguments | GIVEN.get(op, {})
    for name in {"name", *NOT_GIVEN.get(op, ())}:
        del expected[name]
    assert given.keys() == expected.keys()
    for name, value in expected.items():
        assert given[name] is value, name


@pytest.mark.parametrize("op", raw_ops.__all__)
def test_every_default_is_passed_on(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults are TensorFlow's; the functions of the package have others."""
    parameters = inspect.signature(getattr(raw_ops, op)).parameters
    required = [name for name, p in parameters.items() if p.default is p.empty]
    arguments = {name: LOOKED_AT.get(name, object()) for name in required}
    if "use_peephole" in arguments:
        arguments["use_peephole"] = False
    given = record(op, arguments, monkeypatch)
    for name, p in parameters.items():
        if name not in {"name", *required, *NOT_GIVEN.get(op, ())}:
            assert given[name] is p.default, name


@pytest.mark.parametrize("op", [op for op in raw_ops.__all__ if "LSTM" in op])
def test_use_peephole_of_none(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In TensorFlow None is the default; the gradients have no default."""
    arguments: dict[str, Any] = {
        name: object() for name in inspect.signature(getattr(raw_ops, op)).parameters
    }
    arguments["use_peephole"] = None
    if "Grad" not in op:
        assert record(op, arguments, monkeypatch)["use_peephole"] is False
        return
    with pytest.raises(TypeError, match=f"^{op}: use_peephole is None, expected a bool$"):
        getattr(raw_ops, op)(**arguments)


def test_nothing_else_looks_public() -> None:
    assert dir(raw_ops) == sorted(raw_ops.__all__)
    assert all(inspect.isfunction(getattr(raw_ops, op)) for op in raw_ops.__all__)
    modules = [n for n in dir(cupyrnn) if inspect.ismodule(getattr(cupyrnn, n, None))]
    assert [n for n in cupyrnn.__all__ if n in modules] == []
    assert dir(cupyrnn) == sorted([*cupyrnn.__all__, "__version__", *{*modules, "jax", "torch"}])
    assert inspect.isfunction(cupyrnn.cudnn_rnn)
    assert dir(cupyrnn.parallel) == sorted(cupyrnn.parallel.__all__)


def test_a_gru_takes_a_scalar_cell_state() -> None:
    """As in TensorFlow. The first version has no host_reserved."""
    x, h, net = np.ones((2, 1, 3)), np.zeros((1, 1, 2)), NET | {"rnn_mode": "gru"}
    params = np.ones(cupyrnn.cudnn_rnn_params_size(**net))
    out = raw_ops.CudnnRNN(input=x, input_h=h, input_c=np.zeros(()), params=params, rnn_mode="gru")
    expected = cupyrnn.cudnn_rnn(x, h, None, params, rnn_mode="gru")
    assert out._fields == expected._fields[:4]
    for a, e in zip(out, expected, strict=False):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("dtype", ["int32", np.int32, np.dtype("int64")])
def test_size_in_the_dtype_asked_for(dtype: Any) -> None:
    size = raw_ops.CudnnRNNParamsSize(**NET, T="bfloat16", S=dtype)
    assert size.dtype == dtype
    assert size.tolist() == [56]


OPS = [op for op in raw_ops.__all__ if "Params" in op]
ARRAY = np.zeros(2)
BIG = 10**5000  # with more digits than Python writes


# ruff: noqa: E501 - a case a line
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"dropout": 1.5}, ValueError, "dropout is 1.5, expected in [0, 1]"),
        ({"dropout": "0"}, TypeError, "dropout is '0', expected a real number"),
        ({"seed": 1.5}, TypeError, "seed is 1.5, expected an integer"),
        ({"num_layers": BIG}, ValueError, "num_layers is an integer of 16610 bits, expected less than 2**63"),
        ({"input_size": -BIG}, ValueError, "input_size is an integer of 16610 bits, expected at least 1"),
        ({"rnn_mode": ARRAY}, ValueError, "rnn_mode is array([0., 0.]), expected one of rnn_relu, rnn_tanh, lstm, gru"),
        ({"direction": ARRAY}, ValueError, "direction is array([0., 0.]), expected one of unidirectional, bidirectional"),
    ],
)  # fmt: skip
def test_attributes_of_parameters(
    op: str, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    parts = cupyrnn.cudnn_rnn_params_to_canonical(**NET, params=np.zeros(56))
    arguments = {**NET, "T": "float32", "S": "int32", **parts._asdict(), "params": np.zeros(56)}
    arguments |= dict.fromkeys(("num_params", "num_params_weights", "num_params_biases"), 8)
    function = getattr(raw_ops, op)
    right = {n: a for n, a in arguments.items() if n in inspect.signature(function).parameters}
    function(**right)
    with pytest.raises(error, match=f"^{re.escape(f'{op}: {message}')}$"):
        function(**{**right, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"S": np.int16}, "S is 'int16', expected one of int32, int64"),
        ({"S": np.dtype(">i4")}, "S is '>i4', expected one of int32, int64"),
        ({"S": None}, "S is None, expected one of int32, int64"),
        ({"T": np.int32}, "T is 'int32', expected one of float16, bfloat16, float32, float64"),
        ({"T": [4]}, "T is [4], expected one of float16, bfloat16, float32, float64"),
        ({"num_layers": 2**29}, "the size is 25769803784, expected one that fits S = int32"),
        ({"num_units": 2**31, "S": np.int64}, "the size is 18446744116659224576, expected one that fits S = int64"),
    ],
)  # fmt: skip
def test_dtypes_and_sizes(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'CudnnRNNParamsSize: {message}')}$"):
        raw_ops.CudnnRNNParamsSize(**{**NET, "T": np.float32, "S": np.int32, **changed})


def test_the_numbers_of_parameters() -> None:
    params = np.zeros(56)
    for wrong, error in ((7, ValueError), (True, TypeError), (np.zeros(3), TypeError)):
        with pytest.raises(error, match=r"^CudnnRNNParamsToCanonical: num_params is "):
            raw_ops.CudnnRNNParamsToCanonical(**NET, params=params, num_params=wrong)
        for name in ("weights", "biases"):
            counts = {"num_params_weights": 8, "num_params_biases": 8, f"num_params_{name}": wrong}
            message = f"^CudnnRNNParamsToCanonicalV2: num_params_{name} is "
            with pytest.raises(error, match=message):
                raw_ops.CudnnRNNParamsToCanonicalV2(**NET, params=params, **counts)


@pytest.mark.parametrize("op", raw_ops.__all__)
def test_errors_name_the_op(op: str) -> None:
    """Each message begins with the op and names no other function."""
    parameters = inspect.signature(getattr(raw_ops, op)).parameters
    with pytest.raises((TypeError, ValueError), match=f"^{op}: ") as caught:
        getattr(raw_ops, op)(**dict.fromkeys(parameters, "wrong"))
    assert f"{behind(op)}: " not in str(caught.value)


def test_a_call_by_position_names_the_op() -> None:
    with pytest.raises(
        TypeError,
        match=r"^BlockLSTM: \d+ arguments? by position, expected none: by name seq_len_max, x, ",
    ):
        raw_ops.BlockLSTM(3)  # type: ignore[misc, call-arg]


def test_the_stub_has_the_signatures_of_the_table() -> None:
    script = runpy.run_path(str(Path(__file__).parents[1] / "data/make_raw_ops_stub.py"))
    assert script["STUB"].read_text(encoding="utf-8") == script["stub"]()
