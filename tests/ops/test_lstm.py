"""LSTMBlockCell and BlockLSTM: outputs, gradients, dtypes, layouts, lengths and edge cases."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from checks import assert_close
from problems.lstms import grads, problem
from problems.properties import assert_same_bits, numbers
from problems.table import Case, call_of

import cupyrnn
from cupyrnn import reference
from cupyrnn.cells import lstm
from cupyrnn.driver import pages

pytestmark = pytest.mark.compiled


def test_defaults_are_those_of_the_op_with_that_gate_order(
    ops: Any, rng: np.random.Generator
) -> None:
    inputs = problem(rng, (4, 3, 2, 5), False)
    inputs["cs_prev"] *= 10
    for gate_order, forget_bias, clip in (("icfo", 1.0, 3.0), ("ifco", 0.0, None)):
        out = ops.block_lstm(**inputs, gate_order=gate_order)  # type: ignore[arg-type]
        expected = reference.lstm(
            **inputs, forget_bias=forget_bias, cell_clip=clip, gate_order=gate_order
        )
        assert_close(out.cs, expected.cs, "float64", gate_order)
        assert (np.abs(out.cs).max() > 3) == (clip is None)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_mask_of_the_true_gradient_at_a_clip_the_dtype_cannot_hold(ops: Any, dtype: str) -> None:
    """0.1 is not exact in binary: a saved cs at the clip must still count as clipped."""
    one = np.ones((1, 1), dtype)
    w, b = np.zeros((2, 4), dtype), np.zeros(4, dtype)
    for sign in (1, -1):
        out = ops.lstm_block_cell(one, sign * 5 * one, one, w, b, cell_clip=0.1)
        assert abs(out.cs.item()) == np.dtype(dtype).type(0.1)
        args = (sign * 5 * one, *out[:6], one, one)
        assert ops.lstm_block_cell_grad(*args, cell_clip=0.1).cs_prev_grad == 0
        assert ops.lstm_block_cell_grad(*args).cs_prev_grad != 0
        assert ops.lstm_block_cell_grad(*args, cell_clip=0.0).cs_prev_grad != 0


def test_a_clip_below_the_smallest_half_still_clips(ops: Any) -> None:
    one = np.ones((1, 1), np.float16)
    w, b = np.zeros((2, 4), np.float16), np.zeros(4, np.float16)
    assert ops.lstm_block_cell(one, one, one, w, b, cell_clip=1e-9).cs == 0
    assert ops.lstm_block_cell(one, one, one, w, b, cell_clip=1e9).cs > 0.5


@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan])
def test_no_clip(ops: Any, clip: float, rng: np.random.Generator) -> None:
    inputs = problem(rng, (3, 2, 2, 3), False)
    inputs["cs_prev"] *= 100
    out = ops.block_lstm(**inputs, cell_clip=clip, forget_bias=0)
    assert_close(out.cs, reference.lstm(**inputs).cs, "float64", "cs")


def test_clip_bounds_infinities_and_keeps_nan(ops: Any) -> None:
    w, b = np.zeros((2, 4)), np.zeros(4)
    cs_prev = np.array([[np.inf], [-np.inf], [np.nan]])
    x = np.zeros((3, 1))
    out = ops.lstm_block_cell(x, cs_prev, x, w, b, cell_clip=2.0)
    np.testing.assert_array_equal(out.cs, [[2.0], [-2.0], [np.nan]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gates_keep_relative_accuracy_in_the_tails(ops: Any, dtype: str) -> None:
    x = np.zeros((1, 0), dtype)
    zero, w = np.zeros((1, 1), dtype), np.zeros((1, 4), dtype)
    for z in (-80.0, -30.0, -5.0, 0.0, 5.0, 80.0):
        b = np.full(4, z, dtype)
        out = ops.lstm_block_cell(x, zero, zero, w, b, forget_bias=0)
        expected = 1 / (1 + np.exp(-np.longdouble(z)))
        for gate in (out.i, out.f, out.o):
            assert abs(gate.item() / expected - 1) < 4 * np.finfo(dtype).eps
    extreme = ops.lstm_block_cell(x, zero, zero, w, np.array([-1e9, 0, 1e9, 0], dtype))
    assert extreme.i == 0
    assert extreme.f == 1


def test_a_clip_that_tensorflows_float_cannot_hold_is_none(ops: Any) -> None:
    one, w, b = np.ones((1, 1), np.float32), np.zeros((2, 4), np.float32), np.zeros(4, np.float32)
    clipped = ops.lstm_block_cell(one, one, one, w, b, cell_clip=1e-60)
    np.testing.assert_array_equal(clipped.cs, ops.lstm_block_cell(one, one, one, w, b).cs)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("block_lstm", r"i has shape \(20,\), .*; b is not passed by position$"),
        ("lstm_block_cell", r"i has shape \(20,\), .*; b is not passed by position$"),
        ("block_gru", r"r has shape .*; b_ru and b_c are not passed by position$"),
    ],
)
def test_biases_by_position_before_the_saved_arrays(
    name: str, message: str, rng: np.random.Generator
) -> None:
    call = call_of(Case(name, (1, 3, 2, 5), peephole=False), rng)
    record, out = call.case.op.schema, call.forward(cupyrnn)
    names = inspect.signature(record.forward).parameters
    given = [a for n in names if (a := call.inputs.get(n)) is not None]
    with pytest.raises(ValueError, match=message):
        record.gradient(*given, *out[:-1])


@pytest.mark.parametrize("by_numpy", [False, True])
def test_zeros_for_cs_grad_are_as_none(
    rng: np.random.Generator, by_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros need not be added; anything else must be."""
    if by_numpy:
        monkeypatch.setattr(pages, "compiled_page", lambda _: None)
    inputs = problem(rng, (6, 3, 4, 5), True)
    out = cupyrnn.block_lstm(**inputs)
    h_grad, none = rng.standard_normal(out.h.shape), np.zeros(out.h.shape)
    expected = grads(cupyrnn, inputs, out, None, h_grad)
    assert_same_bits(grads(cupyrnn, inputs, out, none, h_grad), expected)
    for value in (1e-300, np.nan, np.inf):
        some = none.copy()
        some[4, 1, 2] = value
        found = grads(cupyrnn, inputs, out, some, h_grad)
        reached = np.zeros((6, 3), bool)
        reached[:5, 1] = True  # by the clip, in the gradient of x
        finite = np.isfinite(found.x_grad).all(-1)
        np.testing.assert_array_equal(finite, ~reached | bool(np.isfinite(value)))
    doubled = grads(cupyrnn, inputs, out, np.full(out.h.shape, 0.5), 0 * h_grad)
    assert all(np.abs(a).max() > 0 for a in doubled[:3])


def test_calls_inside_calls_have_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may call an op inside a call of it; and other sizes have other views."""
    monkeypatch.setattr(pages, "compiled_page", lambda _: None)
    cases = [Case("block_lstm", sizes, "float32") for sizes in ((6, 3, 2, 9), (6, 2, 2, 8))]
    calls = [call_of(case, np.random.default_rng(n)) for case in cases for n in (1, 2)]
    expected = [[*numbers(call).values()] for call in calls]
    depth = inner = 0

    def inside(kept: Any) -> Any:
        def called(*args: Any) -> Any:
            nonlocal depth, inner
            depth += 1
            if depth == 1:
                found = [[*numbers(call).values()] for call in calls]
                assert_same_bits(found, expected)
                inner += 1
            depth -= 1
            return kept(*args)

        return called

    for name in ("gate_of", "are_small"):
        monkeypatch.setattr(lstm, name, inside(getattr(lstm, name)))
    assert_same_bits([[*numbers(call).values()] for call in calls], expected)
    assert inner >= 2 * len(calls)
