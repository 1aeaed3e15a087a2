"""The definitions alone: dtypes, tangents, no steps, one sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import assert_close

from cupyrnn import reference

T, B, K, H, P = 5, 3, 2, 4, 3
ARGUMENTS: dict[str, Any] = {
    "lstm": [(B, H), (B, P), (K + P, 4 * H), (4 * H,), (H,), (H,), (H,), (H, P)],
    "gru": [(B, H), (K + H, 2 * H), (K + H, H), (2 * H,), (H,)],
    "gru_reset_after": [(B, H), (K, 3 * H), (H, 3 * H), (3 * H,), (3 * H,)],
    "simple_rnn": [(B, H), (K, H), (H, H), (H,)],
}
ATTRIBUTES: dict[str, list[dict[str, Any]]] = {
    "lstm": [{}, {"cell_clip": 0.5, "recurrent_activation": "hard_sigmoid_1/6"}],
    "simple_rnn": [{}, {"relu": True}],
}
CASES = [(name, more) for name in ARGUMENTS for more in ATTRIBUTES.get(name, [{}])]
each_case = pytest.mark.parametrize(("name", "more"), CASES)


def arguments(name: str, rng: np.random.Generator) -> list[Any]:
    return [0.7 * rng.standard_normal(s) for s in [(T, B, K), *ARGUMENTS[name]]]


@each_case
def test_no_steps_one_sequence_and_long_double(
    name: str, more: dict[str, Any], rng: np.random.Generator
) -> None:
    (x, *others), function = arguments(name, rng), getattr(reference, name)
    states = 2 if name == "lstm" else 1
    for a, e in zip(function(x[:0], *others, **more), function(x, *others, **more), strict=True):
        assert a.shape == (0, *e.shape[1:])
    wide = function(x.astype(np.longdouble), *others, **more)
    assert {a.dtype for a in wide} == {np.dtype(np.longdouble)}
    one = [s[1] for s in others[:states]]
    alone = function(x[:, 1], *one, *others[states:], **more)
    for a, e in zip(alone, function(x, *others, **more), strict=True):
        assert_close(a, e[:, 1], "float64", name)
