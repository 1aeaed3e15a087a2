"""Comparisons with the installed TensorFlow: results, signatures and errors."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checks import TF_FLOAT16_TOLERANCE, assert_close
from data import make_golden as golden
from data.make_golden import run
from hypothesis import given, settings
from hypothesis import strategies as st

import cupyrnn
from cupyrnn import raw_ops

LSTM_OPS = [golden.CELL, golden.V1, golden.V2]


def run_ours(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = getattr(raw_ops, op)(**arguments)._asdict()
    return result


def assert_same(
    ours: dict[str, Any], theirs: dict[str, Any], dtype: str, what: str, steps: int | None = None
) -> None:
    """
    Compare results by name and order, shape, dtype and value, the first `steps` of sequences.

    All results count as one vector: a random gradient of one element may cancel to almost zero,
    so its own magnitude says nothing about its error.
    """
    assert list(ours) == list(theirs), what
    for name, a in ours.items():
        assert (a.shape, a.dtype) == (theirs[name].shape, theirs[name].dtype), f"{what} {name}"
    a, b = (
        np.concatenate([v[:steps].astype(np.float64).ravel() for v in results.values()])
        for results in (ours, theirs)
    )
    if dtype == "float16":
        assert golden.relative_error(a, b) <= TF_FLOAT16_TOLERANCE, what
    else:
        assert_close(a, b, dtype, what)


@pytest.mark.parametrize("op", raw_ops.__all__)
def test_signature(tf: ModuleType, op: str) -> None:
    """Keyword arguments in TensorFlow's order with its defaults; results in its order."""
    ours, theirs = getattr(raw_ops, op), getattr(tf.raw_ops, op)
    # TensorFlow's wrapper shows the wrapped signature but accepts no positional arguments.
    for function, message in ((ours, "by position, expected none"), (theirs, "positional|keyword")):
        with pytest.raises(TypeError, match=message):
            function(np.zeros(1, np.float32))
    our_parameters, their_parameters = (inspect.signature(f).parameters for f in (ours, theirs))
    assert {p.kind for p in our_parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert [(p.name, p.default) for p in our_parameters.values()] == [
        (p.name, p.default) for p in their_parameters.values()
    ]
    results = inspect.unwrap(theirs).__globals__.get(f"_{op}Output")
    name = ours.__annotations__["return"].partition("[")[0].split(".")[-1]
    kind = getattr(cupyrnn.typing, name, None) or inspect.unwrap(ours).__globals__.get(name)
    assert getattr(kind, "_fields", None) == getattr(results, "_fields", None)


# No empty batch and no empty state: TensorFlow leaves sums over them uninitialized.
@st.composite
def cases(draw: st.DrawFn, op: str, dtype: str) -> dict[str, Any]:
    sizes = {"B": draw(st.integers(1, 9)), "I": draw(st.integers(0, 9))}
    sizes["H"] = draw(st.integers(1, 9))
    case = {"op": op, "dtype": dtype, "sizes": sizes, "seed": draw(st.integers(0, 2**32))}
    case["state"] = draw(st.sampled_from([1.0, 8.0]))
    if op == golden.GRU:
        return case
    if golden.OPS[op].sequence:
        sizes["T"] = draw(st.integers(0, 9))
        case["seq_len_max"] = draw(st.integers(0, sizes["T"]))
    attributes = {"cell_clip": [-1, 0, 0.3, 3, float("nan")], "use_peephole": [False, True]}
    if op != golden.V2:
        attributes["forget_bias"] = [-1, 0, 0.5]
    for name, values in attributes.items():
        if draw(st.booleans()):
            case[name] = draw(st.sampled_from(values))
    return case


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, d) for op in LSTM_OPS for d in golden.ROUNDING] + [(golden.GRU, "float32")],
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_cases(tf: ModuleType, op: str, dtype: str, data: st.DataObject) -> None:
    case = data.draw(cases(op, dtype))
    inputs, steps = golden.draw(case, case["seed"]), case.get("seq_len_max")
    arguments = golden.forward_arguments(case, inputs)
    ours, theirs = run_ours(op, arguments), run(tf, op, arguments)
    assert_same(ours, theirs, dtype, op, steps)
    if steps is not None:
        # Only these two are defined past seq_len_max in TensorFlow.
        for name in ("cs", "h"):
            assert not theirs[name][steps:].any()
        for name, a in ours.items():
            assert not a[steps:].any(), f"{name} is not zero past seq_len_max"

    gradient = golden.OPS[op].gradient
    arguments = golden.gradient_arguments(case, inputs | ours)
    assert_same(run_ours(gradient, arguments), run(tf, gradient, arguments), dtype, gradient)
