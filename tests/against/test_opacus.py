"""Gradients of each example compared with Opacus's, stored in tests/data/opacus.npz."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import Ops, assert_close

import cupyrnn

STORED = Path(__file__).parents[1] / "data" / "opacus.npz"


@pytest.fixture(params=["one", "two"])
def stored(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the arrays of two layers in one or both directions."""
    with np.load(STORED) as file:
        start = f"{request.param}_"
        return {n.removeprefix(start): a for n, a in file.items() if n.startswith(start)}


def of(stored: dict[str, Any], kind: str) -> dict[str, Any]:
    return {n.removeprefix(kind): a for n, a in stored.items() if n.startswith(kind)}


@pytest.mark.compiled
def test_lstm(ops: Ops, stored: dict[str, Any]) -> None:
    packed = cupyrnn.weights.params_from_torch(of(stored, "weight_"))
    x, B = stored["input"], stored["input"].shape[1]
    D = 1 + ("ih_l0_reverse" in " ".join(stored))
    h = np.zeros((2 * D, B, stored["output"].shape[2] // D))
    given = {"direction": "bidirectional" if D == 2 else "unidirectional"}
    if ops.xp is not np:
        given["engine"] = "cupy"
    out = ops.cudnn_rnn(x, h, h, packed.params, **given)
    assert_close(out.output, stored["output"], "float64", "output")

    def backprop(way: str) -> Any:
        arguments = (x, h, h, packed.params, *out[:3], stored["output_grad"], None, None)
        found = ops.cudnn_rnn_backprop(*arguments, out.reserve_space, **given, weight_gradients=way)
        return found.params_backprop

    expected = of(stored, "grad_")
    for b, gradient in enumerate(backprop("examples")):
        for name, a in cupyrnn.weights.params_to_torch(
            packed._replace(params=gradient), gradient=True
        ).items():
            assert_close(a, expected[name][b], "float64", f"{name}, example {b}", at_least=1.0)
    squares = sum((a.reshape(B, -1) ** 2).sum(1) for a in expected.values())
    assert_close(backprop("norms"), np.sqrt(squares), "float64", "norms")
