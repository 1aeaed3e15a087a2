"""Hard sigmoids: the ends of their line, and a comparison with Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems.refusals import CALLS, call, raises

from cupyrnn.arithmetic.gates import HardSigmoid, gate_of, slope_of

HARD = ("hard_sigmoid_0.2", "hard_sigmoid_1/6")
each_activation = pytest.mark.parametrize("activation", HARD)


@each_activation
def test_at_the_ends_and_beyond(ops: Any, activation: Any) -> None:
    """Gates are exactly 0 and 1 outside the line and 1/2 at 0; NaN stays NaN."""
    z = np.array([-np.inf, -1e30, -3.5, 0.0, 3.5, 1e30, np.inf, np.nan])
    x, h = z[:, None], np.full((len(z), 1), 0.5)
    weights = np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [0.7]])
    attributes: dict[str, Any] = {"recurrent_activation": activation}
    with np.errstate(invalid="ignore"):  # infinity times 0
        out = ops.gru_block_cell(x, h, *weights, np.zeros(2), np.full(1, 0.2), **attributes)
    expected = [0, 0, 0, 0.5, 1, 1, 1, np.nan]
    assert np.array_equal(out.r[:, 0], expected, equal_nan=True)
    assert np.array_equal(out.u[:, 0], expected, equal_nan=True)
    g = ops.gru_block_cell_backward(x, h, *weights, *out[:3], np.ones_like(h), **attributes)
    assert np.array_equal(g.d_x[1:6, 0] != 0, [False, False, True, False, False])


def test_the_sigmoid_is_the_default_and_no_slower_a_way() -> None:
    """The sigmoid consists of NumPy's own functions, without a wrapper."""
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        inner, shift, outer = gate_of(None, dtype)
        assert (inner, float(shift), outer) == (np.exp, 1.0, np.reciprocal)
        assert slope_of(None, dtype) is np.multiply
        assert shift.dtype == dtype
    inner, shift, outer = gate_of(HardSigmoid(0.25, 0.75), np.dtype(np.float64))
    z, out = np.array([0.5, 3.0, -3.0]), np.empty(3)
    inner(z, out)
    outer(out + shift, out)
    assert out.tolist() == [0.625, 0.0, 1.0]


CHOICES = "expected one of sigmoid, hard_sigmoid_0.2, hard_sigmoid_1/6"
TWO = (
    "recurrent_activation is 'hard_sigmoid', which has two meanings, expected hard_sigmoid_0.2"
    " (Keras 1 and 2, TensorFlow 1, ONNX) or hard_sigmoid_1/6 (Keras 3, PyTorch)"
)


@pytest.mark.parametrize("op", [*CALLS, "cudnn_rnn_engine"])
def test_names(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLS, "cudnn_rnn_engine", CALLS["cudnn_rnn"])
    # This one supports the attribute.
    reserved = {"host_reserved": None} if op == "cudnn_rnn_backprop" else {}
    for name in ("sigmoid", *HARD):
        call(op, recurrent_activation=name, **reserved)
    for name, message in (
        ("hard_sigmoid", TWO),
        ("Sigmoid", f"recurrent_activation is 'Sigmoid', {CHOICES}"),
        (0.2, f"recurrent_activation is 0.2, {CHOICES}"),
        (None, f"recurrent_activation is None, {CHOICES}"),
    ):
        if name is not None or not op.startswith("cudnn"):  # there it is left out
            raises(op, ValueError, message, recurrent_activation=name, **reserved)
