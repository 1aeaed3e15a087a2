"""torch_overhead.py: all sides of a row compute the same numbers."""

from __future__ import annotations

import warnings
from typing import Any

import needs
import numpy as np
import pytest


@pytest.fixture
def overhead() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        needs.module("torch")
        import torch_overhead
    return torch_overhead


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_modules(overhead: Any, kind: str) -> None:
    for way in overhead.WAYS:
        ours, theirs, grads, expected = (
            c() for c in overhead.module_calls(kind, (3, 2, 4, 5), way)
        )
        for a, e in zip((ours, *grads), (theirs, *expected), strict=True):
            if way.startswith("packed") and a is ours:
                assert len(a.batch_sizes) == 3
                a, e = a.data, e.data
            np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_calls(overhead: Any) -> None:
    for name in ("tensorflow", "onnx", "onnxruntime"):
        needs.module(name)
    for op in overhead.OPS:
        T = 1 if overhead.one_step(op) else 3
        libraries = set()
        for by_library in overhead.contestants(op.removeprefix("raw_ops."), T).values():
            found = {n: [np.squeeze(c()) for c in calls] for n, calls in by_library.items()}
            libraries |= found.keys()
            for n, arrays in found.items():
                for a in arrays:
                    np.testing.assert_allclose(
                        a, found["cupyrnn"][0], rtol=1e-4, atol=1e-5, err_msg=f"{op}, {n}"
                    )
        assert len(libraries) > 1, op
