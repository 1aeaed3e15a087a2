"""Lengths, direction and resets: accepted types, memory, and errors."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from problems.properties import assert_same_bits
from problems.refusals import CALLS, NETS, SEQUENCES, call, on_device, raises
from problems.table import Case, call_of

import cupyrnn
from cupyrnn.driver import signatures
from cupyrnn.driver.packing import Packing

each_direction = pytest.mark.parametrize("reverse", [False, True])


@each_direction
def test_resets_take_memory_by_steps(reverse: bool) -> None:
    """One document of 5,000 steps and 5,000 of one step do not need memory for their product."""
    T = 10_000
    resets = np.arange(T)[:, None] >= T // 2
    x, h, w = np.zeros((T, 1, 1)), np.zeros((1, 1)), np.zeros((2, 3))
    tracemalloc.start()
    try:
        args = (x, h, w[:, :2], w[:, 2:])
        cupyrnn.block_gru(*args, np.zeros(2), np.zeros(1), resets=resets, reverse=reverse)
        assert tracemalloc.get_traced_memory()[1] < 1000 * T
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reverse", [np.False_, np.True_])
@pytest.mark.parametrize("name", ["block_lstm", "block_gru", "cudnn_rnn-gru"])
def test_lists_of_numbers_and_of_truths(
    ops: Any, name: str, reverse: np.bool_, rng: np.random.Generator
) -> None:
    direction = "reverse" if reverse else "forward"
    call = call_of(Case(name, extent="lengths+resets", direction=direction), rng)
    expected = call.forward(ops)
    as_lists = {"sequence_lengths": call.lengths.tolist(), "resets": call.resets.tolist()}
    assert_same_bits(call.forward(ops, **as_lists)[:3], expected[:3])
    others = call.lengths[::-1].copy()  # in a second call of the signature, and in its first
    found = call.forward(ops, sequence_lengths=others)
    signatures.CALLS.clear()
    assert_same_bits(call.forward(ops, sequence_lengths=others)[:3], found[:3])
    turned = np.asfortranarray(call.resets)[::-1][::-1]
    assert_same_bits(call.forward(ops, resets=turned, reverse=reverse)[:3], expected[:3])


@pytest.mark.parametrize("op", [*SEQUENCES, *NETS])
def test_resets_must_be_booleans_by_step_and_sequence(op: str) -> None:
    marks = np.zeros((6, 3), bool)
    call(op, resets=marks)
    for wrong in (marks.T, marks[:5], marks[:, 0], marks[..., None], np.bool_(True)):
        message = f"resets has shape {np.shape(wrong)}, expected (T, B) = (6, 3)"
        raises(op, ValueError, message, resets=wrong)
    for dtype in ("int8", "uint8", "float32", "object"):
        message = f"resets has dtype {dtype}, expected bool"
        raises(op, TypeError, message, resets=marks.astype(dtype))
    ragged = [[True], [True, False]]
    for wrong in (ragged, np.ma.masked_array(marks)):
        with pytest.raises(TypeError, match=rf"^{op}: resets is .*, expected .*booleans"):
            call(op, resets=wrong)


def test_resets_of_batch_major_calls_are_batch_major() -> None:
    turned = {n: CALLS["cudnn_rnn"][n].swapaxes(0, 1) for n in ("input", "input_h", "input_c")}
    turned["time_major"] = False
    call("cudnn_rnn", **turned, resets=np.zeros((3, 6), bool))
    message = "resets has shape (6, 3), expected (B, T) = (3, 6)"
    raises("cudnn_rnn", ValueError, message, **turned, resets=np.zeros((6, 3), bool))


@pytest.mark.parametrize("op", SEQUENCES)
def test_reverse_must_be_a_bool(op: str) -> None:
    for wrong in (0, 1, None, "True", np.ones(1, bool)):
        raises(op, TypeError, f"reverse is {wrong!r}, expected a bool", reverse=wrong)


@pytest.mark.parametrize("op", SEQUENCES)
def test_one_way_to_say_how_long(op: str) -> None:
    message = "seq_len_max and sequence_lengths are passed, expected one of them"
    raises(op, ValueError, message, seq_len_max=6, sequence_lengths=[6, 6, 6])


@pytest.mark.parametrize("op", SEQUENCES)
def test_sequence_lengths_must_be_integers_by_sequence(op: str) -> None:
    call(op, sequence_lengths=[0, 6, 3])
    for wrong in ([6, 6], [6] * 4, np.full((3, 1), 6), np.full(4, 2), np.full(1, 2, np.int32)):
        message = f"sequence_lengths has shape {np.shape(wrong)}, expected (B,) = (3,)"
        raises(op, ValueError, message, sequence_lengths=wrong)
    for wrong in (-1, 7):
        message = f"sequence_lengths[1] is {wrong}, expected in [0, T] = [0, 6]"
        raises(op, ValueError, message, sequence_lengths=[6, wrong, 6])


def test_cudnn_does_not_take_resets(cupy_on_cpu: Any) -> None:
    args = on_device(cupy_on_cpu, "cudnn_rnn")
    message = r"^cudnn_rnn: engine is 'cudnn', but cuDNN does not support resets$"
    with pytest.raises(RuntimeError, match=message):
        cupyrnn.cudnn_rnn(**args, resets=np.zeros((6, 3), bool), engine="cudnn")


def test_first_rows_of_more_steps_than_there_are() -> None:
    """Calls of one signature ask for as many steps as their arrays have, or as the longest has."""
    packing = Packing(np, 5, 3, np.array([3, 1, 2]))
    for steps in (3, 5, 4, 5):
        assert packing.starts_of(steps).tolist() == [0, 3, 5, 6, 6, 6][: steps + 1]
