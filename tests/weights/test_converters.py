"""What holds of every function that converts parameters, from whatever to whatever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import Ops
from problems.converters import CONVERSIONS, conversions

from cupyrnn.derivatives.tree import leaves_by_name, tree_map

each = pytest.mark.parametrize("name", CONVERSIONS)


class Named(np.ndarray[Any, Any]):
    """A plain subclass, as a memory map is one."""


def arrays(tree: Any) -> dict[str, Any]:
    """Return the arrays in a structure by the names of their places."""
    return {n: a for n, a in leaves_by_name("a", tree) if getattr(a, "ndim", 0)}


@each
def test_nothing_is_a_view(name: str, rng: np.random.Generator) -> None:
    """What is returned shares no memory with what was given."""
    function, given = conversions(rng)[name]
    returned = arrays(function(given))
    assert returned
    for a in arrays(given).values():
        assert not any(np.shares_memory(a, b) for b in returned.values())


@each
def test_no_subclass_is_returned(name: str, rng: np.random.Generator) -> None:
    function, given = conversions(rng)[name]
    named = tree_map(lambda a: a.view(Named) if isinstance(a, np.ndarray) else a, given)
    found = arrays(function(named))
    assert {type(a) for a in found.values()} == {np.ndarray}
    for n, a in arrays(function(given)).items():
        np.testing.assert_array_equal(found[n], a)


@pytest.mark.cuda_on_cpu
@each
def test_arrays_stay_on_their_device(name: str, cupy_on_cpu: Any, rng: np.random.Generator) -> None:
    function, given = conversions(rng)[name]
    found = arrays(function(Ops(cupy_on_cpu).to_device(given)))
    for n, e in arrays(function(given)).items():
        assert type(found[n]) is cupy_on_cpu.ndarray
        np.testing.assert_array_equal(cupy_on_cpu.asnumpy(found[n]), e)
