"""Comparisons with the installed TensorFlow: results, signatures and errors."""

from __future__ import annotations

import inspect
from types import ModuleType

import numpy as np
import pytest

import cupyrnn
from cupyrnn import raw_ops


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
