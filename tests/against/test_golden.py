"""
The ops against stored results of TensorFlow; data/make_golden.py says how they were made.

The calls use TensorFlow's names; ops/test_raw_ops.py shows that these pass everything on.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from checks import TF_FLOAT16_TOLERANCE, assert_close
from data import make_golden as golden

from cupyrnn import raw_ops

with np.load(golden.PATH) as stored:
    STORED = dict(stored)
INDEX = json.loads(str(STORED.pop("index")))

# The allowed error of float32 gradients, in units of TensorFlow's error; forward ops are better.
# TensorFlow adds the gradient of w step by step; here a matmul sums up to 1024 rows, with the
# rounding of its BLAS: 1.11 times TensorFlow's error with OpenBLAS's AVX kernels, 1.39 with its SSE
# kernels. The other gradients differ by chance, either way.
GRADIENT_ALLOWANCE = 1.5

each_case = pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in INDEX["cases"]])
each_accuracy_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            c, id="-".join([c["op"], c["dtype"], *(f"{k}{n}" for k, n in c["sizes"].items())])
        )
        for c in INDEX["accuracy"]
    ],
)


def load(case: dict[str, Any]) -> golden.Arrays:
    """Return the arrays of a case by name, sequences padded with zeros to their full length."""
    prefix = case["name"] + "/"
    arrays = {k.removeprefix(prefix): a for k, a in STORED.items() if k.startswith(prefix)}
    if "T" in case["sizes"]:
        for name in (*case["outputs"], "x_grad"):
            short = case["sizes"]["T"] - len(arrays[name])
            arrays[name] = np.pad(arrays[name], [(0, short), (0, 0), (0, 0)])
    return arrays


def poison_past_the_end(case: dict[str, Any], arrays: golden.Arrays) -> golden.Arrays:
    """Return the arrays with NaN past seq_len_max, which no op may read."""
    if "seq_len_max" not in case:
        return arrays
    op = golden.OPS[case["op"]]
    poisoned = {name: arrays[name].copy() for name in ("x", *op.outputs, *op.cotangents)}
    for a in poisoned.values():
        a[case["seq_len_max"] :] = np.nan
    return arrays | poisoned


def assert_golden(
    case: dict[str, Any],
    result: Any,
    fields: list[str],
    arrays: golden.Arrays,
    exact: golden.Arrays,
) -> None:
    """
    Compare a result with TensorFlow's and, in float16, with the equations in float64.

    In float16 TensorFlow sums in float16 and has the larger error, so the tolerance of that
    comparison depends on TensorFlow's error.
    """
    assert list(result._fields) == fields
    dtype = case["dtype"]
    for name, a in zip(fields, result, strict=True):
        assert a.dtype == dtype, name
        if dtype == "float16":
            assert a.shape == arrays[name].shape
            assert golden.relative_error(a, arrays[name].astype(np.float64)) <= TF_FLOAT16_TOLERANCE
            assert_close(a[: len(exact[name])], exact[name], dtype, name)
        else:
            assert_close(a, arrays[name], dtype, name)


@each_case
def test_outputs(case: dict[str, Any]) -> None:
    arrays = load(case)
    given = golden.forward_arguments(case, poison_past_the_end(case, arrays))
    result = getattr(raw_ops, case["op"])(**given)
    exact = golden.reference_forward(case, arrays)
    assert_golden(case, result, case["outputs"], arrays, exact)
    for name, a in result._asdict().items():
        assert not a[len(exact[name]) :].any(), f"{name} is not zero past seq_len_max"


@each_case
def test_gradients(case: dict[str, Any]) -> None:
    arrays = load(case)
    given = golden.gradient_arguments(case, poison_past_the_end(case, arrays))
    result = getattr(raw_ops, golden.OPS[case["op"]].gradient)(**given)
    exact = golden.reference_gradient(case, arrays)
    assert_golden(case, result, case["gradients"], arrays, exact)
    if "seq_len_max" in case:
        assert not result.x_grad[case["seq_len_max"] :].any()


@each_accuracy_case
def test_accuracy_against_float64(case: dict[str, Any]) -> None:
    assert golden.checksum(golden.draw(case, case["seeds"][0])) == case["checksum"]
    found = golden.measure(case, lambda op, kw: getattr(raw_ops, op)(**kw)._asdict())
    expected = case["errors"], case["gradient_errors"]
    if case["dtype"] == "float32":
        for errors, theirs, allowance in zip(found, expected, (1, GRADIENT_ALLOWANCE), strict=True):
            assert max(errors.values()) <= allowance * max(theirs.values())
        return
    for errors, theirs in zip(found, expected, strict=True):
        for name, error in errors.items():
            # Without peepholes their gradients are zeros in both.
            assert error < theirs[name] or error == theirs[name] == 0, name
