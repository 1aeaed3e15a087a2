"""CudnnRNN against stored results of PyTorch; data/make_golden_cudnn.py says how they were made."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from checks import assert_close
from data import make_golden_cudnn as golden

with np.load(golden.PATH) as stored:
    STORED = dict(stored)
CASES = json.loads(str(STORED.pop("index")))["cases"]


def case_id(case: dict[str, Any]) -> str:
    sizes = [f"{n}{size}" for n, size in case["sizes"].items() if size]
    given = [n for n in ("bidirectional", "lengths", "dropout") if case[n]]
    return "-".join([case["rnn_mode"], *sizes, *given])


each_case = pytest.mark.parametrize("case", [pytest.param(c, id=case_id(c)) for c in CASES])


def load(case: dict[str, Any]) -> golden.Arrays:
    """Return the arrays of a case by name; inputs have NaN in the padding."""
    prefix = case["name"] + "/"
    arrays = {k.removeprefix(prefix): a for k, a in STORED.items() if k.startswith(prefix)}
    for b, length in enumerate(case["lengths"] or ()):
        for name in ("input", "output_backprop"):
            arrays[name][length:, b] = np.nan
    return arrays


def attributes(case: dict[str, Any]) -> dict[str, Any]:
    return {
        "rnn_mode": case["rnn_mode"],
        "direction": "bidirectional" if case["bidirectional"] else "unidirectional",
        "dropout": case["dropout"],
        "num_proj": case["sizes"]["P"],
    }


def assert_golden(result: Any, arrays: golden.Arrays, dtype: str) -> None:
    for name, a in result._asdict().items():
        if name in ("reserve_space", "host_reserved"):
            continue
        assert a.dtype == dtype
        # Modes without a cell state have a scalar in its place.
        assert_close(a, arrays.get(name, np.zeros(())), dtype, name, at_least=1.0)


@each_case
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outputs_and_gradients(ops: Any, dtype: str, case: dict[str, Any]) -> None:
    arrays = load(case)
    inputs, cotangents = (
        {n: arrays[n].astype(dtype) if n in arrays else None for n in names}
        for names in (golden.INPUTS, golden.COTANGENTS)
    )
    given = attributes(case) | {"sequence_lengths": case["lengths"]}
    out = ops.cudnn_rnn(**inputs, **given)
    assert_golden(out, arrays, dtype)
    saved = out._asdict() | ({} if "output_c" in arrays else {"output_c": None})
    g = ops.cudnn_rnn_backprop(**inputs, **saved, **cotangents, **given)
    assert_golden(g, arrays, dtype)
