"""Values of compiled vectors: accuracy, NaN and infinity, subnormal numbers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest
from problems.properties import assert_reaches_the_same, numbers
from problems.table import Case, call_of

import cupyrnn

# The largest error over all numbers drawn, in units in the last place: the series of expm1 and the
# division each contribute one or two.
ULPS = {"expm1": 2.5, "sigmoid": 2.5, "tanh": 3.5}


def exact(name: str, x: Any) -> Any:
    """Return a function that computes in a wider dtype."""
    wide = x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)
    if name == "sigmoid":
        return 1 / (1 + np.exp(-wide))
    return {"expm1": np.expm1, "tanh": np.tanh}[name](wide)


@pytest.fixture(scope="module")
def functions() -> Callable[[str, Any], Any]:
    """Functions that apply a formula of the vectors to an array."""
    numba = needs.module("numba")
    simd = importlib.import_module("cupyrnn.compiled.simd")

    def routine_of(name: str) -> Any:
        formula = getattr(simd, name)

        def emit(c: Any, _: int, u: Any, a: Any, to: Any) -> None:
            offset = u * simd.VECTOR_BYTES
            c.store(formula(c.load(a + offset)), to + offset)

        emit.__name__ = f"apply_{name}"
        return simd.routine(simd.over_units(1, emit))

    def loop_of(name: str) -> Any:
        routine = routine_of(name)

        @numba.njit
        def loop(one: Any, vectors: int, H: int, a: int, to: int) -> None:
            routine(one, (0, vectors, H, 0, a, to))

        return loop

    loops = {name: loop_of(name) for name in ULPS}

    def apply(name: str, x: Any) -> Any:
        out = np.empty_like(x)
        vectors = -(-x.nbytes // simd.VECTOR_BYTES)
        loops[name](x.dtype.type(1), vectors, x.size, x.ctypes.data, out.ctypes.data)
        return out

    return apply


@pytest.mark.parametrize("name", ["expm1", "sigmoid", "tanh"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_accuracy_in_units_in_the_last_place(
    functions: Callable[[str, Any], Any], name: str, dtype: str
) -> None:
    rng = np.random.default_rng(0)
    kind = np.finfo(dtype)
    # All magnitudes down to the smallest number, and the range where the value changes.
    lowest = np.log10(float(kind.smallest_subnormal))
    sizes = 10.0 ** rng.uniform(max(lowest, -320), 1.9, 20_000)
    x = np.concatenate([sizes, -sizes, rng.uniform(-40, 40, 20_003)]).astype(dtype)
    got, expected = functions(name, x), exact(name, x)
    unit = np.maximum(np.spacing(np.abs(expected).astype(dtype)), kind.smallest_subnormal)
    # Just below the overflow expm1 may be off by a digit, and a subnormal sigmoid is zero in NumPy.
    inside = (x < 88) & ((np.abs(expected) > kind.tiny) | (name != "sigmoid"))
    errors = np.abs(got.astype(expected.dtype) - expected)[inside] / unit[inside]
    assert errors.max() <= ULPS[name]
    assert np.abs(got[~inside & (x < 0)]).max(initial=0) <= 2 * kind.tiny


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_limits(functions: Callable[[str, Any], Any], dtype: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30], dtype)
    tiny = float(np.finfo(dtype).tiny)
    np.testing.assert_array_equal(functions("tanh", x), np.array([np.nan, 1, -1, 0, 1, -1], dtype))
    sigmoid = functions("sigmoid", x)
    assert np.isnan(sigmoid[0])
    np.testing.assert_allclose(sigmoid[1:], [1, 0, 0.5, 1, 0], rtol=0, atol=tiny)
    for name in ("expm1",):
        found = functions(name, x)
        assert np.isnan(found[0])
        assert found[1] > 1e38
        np.testing.assert_array_equal(found[[2, 3, 5]], np.array([-1, 0, -1], dtype))


GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


H, UNIT = 19, 17
# Ops and their arguments, with a block of H for each gate, in which one unit is NaN or infinite.
BLOCKS = {
    "block_gru": {"b_ru": 2, "b_c": 1, "x": 1, "h_prev": 1},
    "block_lstm": {"b": 4, "wci": 1, "wcf": 1, "wco": 1, "cs_prev": 1},
}
PLACES: list[tuple[str, str, int, bool]] = [
    (op, name, gate * H + UNIT, False)
    for op, arguments in BLOCKS.items()
    for name, gates in arguments.items()
    for gate in range(gates)
]
PLACES += [
    (f"cudnn_rnn-{mode}", "params", (gate - 2 * gates) * H + UNIT, projected)
    for mode, gates in GATES.items()
    for gate in range(gates)
    for projected in ([False, True] if mode == "lstm" else [False])
]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize(("op", "name", "at", "projected"), PLACES)
def test_a_value_that_is_no_number_in_each_gate(
    compiled_loops: ModuleType,
    op: str,
    name: str,
    at: int,
    projected: bool,
    T: int,
    value: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NaN or infinity in one unit spreads as in NumPy, forward and backward, also in one step."""
    if T == 1 and op in BLOCKS:
        op = op.removeprefix("block_") + "_block_cell"
    call = call_of(Case(op, (T, 2, UNIT + 1, H), projected=projected), np.random.default_rng(0))
    call.inputs[name][..., at] = value
    assert_reaches_the_same(lambda: [*numbers(call).values()], monkeypatch)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_smallest_numbers_stay(compiled_loops: ModuleType, dtype: str) -> None:
    """Subnormal states do not become zeros, in the layer or after it."""
    smallest = np.finfo(dtype).tiny / 8
    c = np.full((1, 2, 19), smallest, dtype)
    zeros = np.zeros((1, 2, 19), dtype)
    params = np.zeros(cupyrnn.cudnn_rnn_params_size(1, 19, 19), dtype)
    out = cupyrnn.cudnn_rnn(np.zeros((2, 2, 19), dtype), zeros, c, params)
    # All gates are 1/2, so f*c is computed twice.
    np.testing.assert_array_equal(out.output_c, c / 4)
    assert (c * np.ones_like(c)).all()
