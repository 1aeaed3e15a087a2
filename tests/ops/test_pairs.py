"""Covering arrays: any two values of two factors are together in one case."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from problems.pairs import pairs
from problems.table import TABLE

FACTORS: list[dict[str, Any]] = [
    {"a": [0, 1], "b": ["x", "y"]},
    {"a": [1], "b": [2, None], "c": range(5), "d": "uvw"},
    {f"of {n}": range(n) for n in (2, 7, 3, 4, 2, 5)},
    *(op.factors for op in TABLE.values()),
]


@pytest.mark.parametrize("factors", FACTORS)
def test_every_pair_is_there(factors: dict[str, Any]) -> None:
    found = pairs(factors)
    for one, other in itertools.combinations(factors, 2):
        due = {*itertools.product(map(str, factors[one]), map(str, factors[other]))}
        assert {(str(case[one]), str(case[other])) for case in found} == due
    assert found == pairs(factors)
    largest = sorted(len([*values]) for values in factors.values())[-2:]
    assert len(found) <= 1.6 * largest[0] * largest[1]


def test_a_factor_alone_and_none() -> None:
    assert pairs({}) == []
    assert pairs({"a": [1, 2]}) == []
