"""Masks and lists of sequences: there and back, in arrays and tensors, and in ops."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest
from problems.properties import assert_same_bits

import cupyrnn
from cupyrnn import reference

# Steps that count, by sequence: all, a hole, padding at the start, padding at the end, none.
MARKS = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], bool).T
T, B = MARKS.shape
RNG = np.random.default_rng(0)
X = np.where(MARKS[:, :, None], RNG.standard_normal((T, B, 3)), np.nan)
W: Any = cupyrnn.init_block_lstm(num_units=2, input_size=3, dtype="float64", seed=1)


def one_by_one(x: Any) -> Any:
    """Return h of each sequence without the steps that do not count, at its own steps."""
    h = np.zeros((T, B, 2))
    for b in range(B):
        steps = np.flatnonzero(MARKS[:, b])
        zeros = np.zeros((1, 2))
        alone = reference.lstm(x[steps, b][:, None], zeros, zeros, *W[:2], forget_bias=1.0)
        h[steps, b] = alone.h[:, 0]
    return h


@pytest.mark.parametrize("major", [True, False])
@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int64", "float16", "float32", "list"])
def test_an_op_passes_over_the_steps_that_do_not_count(kind: str, major: bool) -> None:
    marks: Any = MARKS if major else MARKS.T
    mask = cupyrnn.Mask(marks.tolist() if kind == "list" else marks.astype(kind), time_major=major)
    assert_same_bits(mask.lengths, MARKS.sum(0, dtype=np.int32))
    net = {"weights": [W], "time_major": major, "cell_clip": 0, "sequence_lengths": mask.lengths}
    x, expected = (a if major else a.swapaxes(0, 1) for a in (X, one_by_one(X)))
    out, pullback = cupyrnn.vjp(cupyrnn.stacked_rnn, mask.gather(x), **net)
    h = mask.scatter(out.output)
    np.testing.assert_allclose(h, expected, rtol=0, atol=1e-14)
    # The gradient: `gather` and `scatter` are each other's.
    d_h = np.where((marks[..., None]), RNG.standard_normal(h.shape), np.nan)
    dx = mask.scatter(pullback(output=mask.gather(d_h)).input_backprop)
    v = RNG.standard_normal(x.shape)
    _, along = cupyrnn.jvp(
        lambda x: mask.scatter(cupyrnn.stacked_rnn(mask.gather(x), **net).output), [x], [v]
    )
    assert_same_bits(dx == 0, np.broadcast_to(~marks[..., None], dx.shape))
    np.testing.assert_allclose((dx * v).sum(), np.nansum(d_h * along), rtol=1e-12)


def test_repeated_outputs_and_their_gradient() -> None:
    mask, a = cupyrnn.Mask(MARKS), RNG.standard_normal((T, B, 2))
    shown, last = mask.scatter(a, repeat=True), np.zeros((B, 2))
    front = mask.scatter(a)
    for t in range(T):
        last = np.where(MARKS[t][:, None], front[t], last)
        assert_same_bits(shown[t], last)
    d = RNG.standard_normal(a.shape)
    read = np.arange(T)[:, None, None] < mask.lengths[:, None]
    back = np.where(read, mask.gather(d, repeated=True), 0)
    np.testing.assert_allclose((shown * d).sum(), (a * back).sum(), rtol=1e-13)


def test_gather_and_scatter_are_inverse() -> None:
    mask = cupyrnn.Mask(MARKS)
    assert_same_bits(mask.scatter(mask.gather(X)), np.nan_to_num(X))
    tokens = np.arange(T * B).reshape(T, B)
    assert_same_bits(mask.scatter(mask.gather(tokens)), np.where(MARKS, tokens, 0))
    assert repr(mask) == "Mask(T=4, B=5, lengths=[4, 3, 2, 2, 0])"
    for shape in ((0, 3), (3, 0)):
        empty = cupyrnn.Mask(np.ones(shape))
        assert empty.scatter(empty.gather(np.ones((*shape, 2)), repeated=True)).shape == (*shape, 2)


@pytest.mark.parametrize("major", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_lists_there_and_back(dtype: str, major: bool) -> None:
    sequences = [RNG.standard_normal((n, 3)).astype(dtype) for n in (2, 0, 5)]
    for more, steps in (({}, 5), ({"num_steps": 7}, 7)):
        x, lengths = cupyrnn.pad_sequences(sequences, time_major=major, **more)
        assert x.shape == ((steps, 3, 3) if major else (3, steps, 3))
        assert_same_bits(lengths, np.array([2, 0, 5], np.int32))
        parts = cupyrnn.unpad_sequences(x, lengths, time_major=major)
        assert_same_bits(parts, sequences)
        assert not any(np.shares_memory(a, x) for a in parts)
        assert x.astype(float).sum() == pytest.approx(sum(a.sum(dtype=float) for a in sequences))


@pytest.mark.gpu
def test_on_a_device() -> None:
    cupy = needs.module("cupy")

    mask = cupyrnn.Mask(cupy.asarray(MARKS))
    assert type(mask.lengths) is np.ndarray
    host = cupyrnn.Mask(MARKS)
    for name, options in (("gather", {}), ("gather", {"repeated": True}), ("scatter", {}),
                          ("scatter", {"repeat": True})):  # fmt: skip
        found = getattr(mask, name)(cupy.asarray(X), **options)
        assert_same_bits(found.get(), getattr(host, name)(X, **options))
    x, lengths = cupyrnn.pad_sequences([cupy.ones((2, 3)), cupy.ones((1, 3))])
    assert [type(a) for a in cupyrnn.unpad_sequences(x, lengths)] == [cupy.ndarray] * 2


ERRORS: list[tuple[Any, Any, str]] = [
    (lambda: cupyrnn.Mask(MARKS[0]), ValueError, r"Mask: mask has shape \(5,\), expected \(T, B\)$"),
    (lambda: cupyrnn.Mask(MARKS[0], time_major=False), ValueError, r"Mask: mask has shape \(5,\), expected \(B, T\)$"),
    (lambda: cupyrnn.Mask(2 * MARKS), ValueError, "Mask: mask has the number 2, expected 0 and 1 only$"),
    (lambda: cupyrnn.Mask([[np.nan]]), ValueError, "Mask: mask has the number nan, expected 0 and 1 only$"),
    (lambda: cupyrnn.Mask("no"), TypeError, "Mask: mask is a str of dtype <U2, expected booleans or numbers"),
    (lambda: cupyrnn.Mask([[1], [1, 2]]), TypeError, "Mask: mask is a list of dtype object"),
    (lambda: cupyrnn.Mask(None), TypeError, "Mask: mask is None, expected booleans or numbers"),
    (lambda: cupyrnn.Mask(MARKS, time_major=1), TypeError, "Mask: time_major is 1, expected a bool"),
    (lambda: cupyrnn.Mask(MARKS).gather(X.swapaxes(0, 1)), ValueError, r"gather: a has shape \(5, 4, 3\), expected \(T, B, \.\.\.\) = \(4, 5\) and further axes, like the mask$"),
    (lambda: cupyrnn.Mask(MARKS).scatter([1]), TypeError, "scatter: a is a list, expected a numpy.ndarray, cupy.ndarray or torch.Tensor$"),
    (lambda: cupyrnn.Mask(MARKS).gather(memoryview(X)), TypeError, "gather: a is a memoryview, expected a numpy.ndarray, cupy.ndarray or torch.Tensor$"),
    (lambda: cupyrnn.pad_sequences([]), ValueError, "pad_sequences: sequences has 0 entries, expected at least 1$"),
    (lambda: cupyrnn.pad_sequences(X), TypeError, "pad_sequences: sequences is a numpy.ndarray, expected a list of arrays"),
    (lambda: cupyrnn.pad_sequences([X, [1]]), TypeError, r"pad_sequences: sequences\[1\] is a list, expected a numpy"),
    (lambda: cupyrnn.pad_sequences([X.astype(object)]), TypeError, r"pad_sequences: sequences\[0\] has dtype object, expected bool, integers or one of float16"),
    (lambda: cupyrnn.pad_sequences([X, X.astype("f4")]), TypeError, r"pad_sequences: sequences\[1\] has dtype float32, expected float64 like sequences\[0\]$"),
    (lambda: cupyrnn.pad_sequences([X, X[..., :1]]), ValueError, r"pad_sequences: sequences\[1\] has shape \(4, 5, 1\), expected \(T, 5, 3\)$"),
    (lambda: cupyrnn.pad_sequences([X[0, 0], X[0]]), ValueError, r"pad_sequences: sequences\[1\] has shape \(5, 3\), expected \(T,\)$"),
    (lambda: cupyrnn.pad_sequences([np.array(1.0)]), ValueError, r"pad_sequences: sequences\[0\] has shape \(\), expected \(T, \.\.\.\)$"),
    (lambda: cupyrnn.pad_sequences([X, X[:2]], num_steps=3), ValueError, r"pad_sequences: num_steps is 3, expected at least 4, the length of sequences\[0\]$"),
    (lambda: cupyrnn.unpad_sequences(X, [5] * 5), ValueError, r"unpad_sequences: sequence_lengths\[0\] is 5, expected in \[0, T\]"),
    (lambda: cupyrnn.unpad_sequences(X, None), TypeError, "unpad_sequences: sequence_lengths is None, expected 5 integers$"),
    (lambda: cupyrnn.unpad_sequences(X[0, 0], [1]), ValueError, r"unpad_sequences: padded has shape \(3,\), expected \(T, B, ...\)$"),
]  # fmt: skip
# ruff: noqa: E501 - a case a line


@pytest.mark.parametrize(("call", "error", "message"), ERRORS)
def test_errors(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()
