"""Lengths, direction and resets: as which types they are given, memory, and what is refused."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from checks import ON_HOST
from problems.properties import assert_same_bits
from problems.table import Case, call_of, right_calls

import cupyrnn

each_direction = pytest.mark.parametrize("reverse", [False, True])


@each_direction
def test_resets_take_memory_by_steps(reverse: bool) -> None:
    """One document of 5,000 steps and 5,000 of one step: not the product of the two."""
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
    turned = np.asfortranarray(call.resets)[::-1][::-1]
    assert_same_bits(call.forward(ops, resets=turned, reverse=reverse)[:3], expected[:3])


CALLS = {
    op: arguments
    for name in ("block_lstm", "block_gru", "cudnn_rnn-gru")
    for op, arguments in right_calls(name, size=(6, 3, 4, 5)).items()
}


def raises(op: str, error: type[Exception], message: str, **changed: Any) -> None:
    with pytest.raises(error, match=f"^{op}: {message}"):
        getattr(cupyrnn, op)(**{**CALLS[op], **changed})


@pytest.mark.parametrize("op", CALLS)
def test_resets_must_be_booleans_by_step_and_sequence(op: str) -> None:
    marks = np.zeros((6, 3), bool)
    getattr(cupyrnn, op)(**CALLS[op], resets=marks)
    for wrong in (marks.T, marks[:5], marks[:, 0], marks[..., None], np.bool_(True)):
        message = re.escape(f"resets has shape {np.shape(wrong)}, expected (T, B) = (6, 3)")
        raises(op, ValueError, f"{message}$", resets=wrong)
    for dtype in ("int8", "uint8", "float32", "object"):
        raises(
            op, TypeError, f"resets has dtype {dtype}, expected bool$", resets=marks.astype(dtype)
        )
    ragged = [[True], [True, False]]
    for wrong in (ragged, np.ma.masked_array(marks)):
        raises(op, TypeError, "resets is .*, expected .*booleans", resets=wrong)


def test_resets_of_batch_major_calls_are_batch_major() -> None:
    args = CALLS["cudnn_rnn"] | {"time_major": False}
    args["input"], args["input_h"] = (args[n].swapaxes(0, 1) for n in ("input", "input_h"))
    cupyrnn.cudnn_rnn(**args, resets=np.zeros((3, 6), bool))
    message = re.escape("cudnn_rnn: resets has shape (6, 3), expected (B, T) = (3, 6)")
    with pytest.raises(ValueError, match=f"^{message}$"):
        cupyrnn.cudnn_rnn(**args, resets=np.zeros((6, 3), bool))


BLOCK_CALLS = [op for op in CALLS if op.startswith("block_")]


@pytest.mark.parametrize("op", BLOCK_CALLS)
def test_reverse_must_be_a_bool(op: str) -> None:
    for wrong in (0, 1, None, "True", np.ones(1, bool)):
        shown = re.escape(repr(wrong))
        raises(op, TypeError, f"reverse is {shown}, expected a bool$", reverse=wrong)


@pytest.mark.parametrize("op", BLOCK_CALLS)
def test_one_way_to_say_how_long(op: str) -> None:
    message = "seq_len_max and sequence_lengths are given, expected one of them$"
    raises(op, ValueError, message, seq_len_max=6, sequence_lengths=[6, 6, 6])


@pytest.mark.parametrize("op", BLOCK_CALLS)
def test_sequence_lengths_must_be_integers_by_sequence(op: str) -> None:
    getattr(cupyrnn, op)(**CALLS[op], sequence_lengths=[0, 6, 3])
    for wrong in ([6, 6], [6] * 4, np.full((3, 1), 6)):
        message = re.escape(f"sequence_lengths has shape {np.shape(wrong)}, expected (B,) = (3,)")
        raises(op, ValueError, f"{message}$", sequence_lengths=wrong)
    for wrong in (-1, 7):
        message = re.escape(f"sequence_lengths[1] is {wrong}, expected in [0, T] = [0, 6]")
        raises(op, ValueError, f"{message}$", sequence_lengths=[6, wrong, 6])


def on_device(cupy: Any, op: str) -> dict[str, Any]:
    """Return right arguments in device memory."""
    return {
        n: cupy.asarray(a) if isinstance(a, np.ndarray) and n not in ON_HOST else a
        for n, a in CALLS[op].items()
    }


@pytest.mark.parametrize("op", CALLS)
def test_what_the_host_must_know_is_not_taken_from_a_device(op: str, cupy_on_cpu: Any) -> None:
    args = on_device(cupy_on_cpu, op)
    marks, lengths = np.zeros((6, 3), bool), np.full(3, 6)
    for name, a, what in (("resets", marks, "booleans"), ("sequence_lengths", lengths, "integers")):
        getattr(cupyrnn, op)(**args, **{name: a})
        message = f"^{op}: {name} is a cupy.ndarray, expected {what} on the host: a numpy.ndarray"
        with pytest.raises(TypeError, match=message):
            getattr(cupyrnn, op)(**args, **{name: cupy_on_cpu.asarray(a)})


def test_cudnn_does_not_take_resets(cupy_on_cpu: Any) -> None:
    args = on_device(cupy_on_cpu, "cudnn_rnn")
    message = r"^cudnn_rnn: engine is 'cudnn', but cuDNN does not take resets$"
    with pytest.raises(RuntimeError, match=message):
        cupyrnn.cudnn_rnn(**args, resets=np.zeros((6, 3), bool), engine="cudnn")
