"""The tolerances of the tests allow rounding errors and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checks import TERMS, TOLERANCES, assert_close, tolerance

COUNTS = [1, TERMS, 365, 2000, 20_000]


def in_order(terms: Any) -> Any:
    """Return the sums of terms [n, ·] in float32, one term after the other."""
    return np.cumsum(terms, 0, dtype=np.float32)[-1]


def as_tf32(a: Any) -> Any:
    """Return float32 numbers with the 10 bits of fraction that TF32 has."""
    return (a.view(np.int32) & ~0x1FFF).view(np.float32)


def factors(n: int) -> tuple[Any, Any]:
    """Return inputs of 400 units and weights of the scale that nets have."""
    rng = np.random.default_rng(n)
    x, w = (rng.standard_normal((n, 400)).astype(np.float32) for _ in "xw")
    return x, w / np.float32(n**0.5)


@pytest.mark.parametrize("n", COUNTS)
def test_the_order_of_a_sum_is_allowed(n: int) -> None:
    x, w = factors(n)
    exact = (x.astype(np.float64) * w).sum(0)
    forward, backward = in_order(x * w), in_order((x * w)[::-1])
    for found, expected in ((forward, exact), (backward, exact), (forward, backward)):
        assert_close(found, expected, "float32", "a sum", at_least=1.0, terms=n)


ERRORS: dict[str, Callable[[Any, Any], Any]] = {
    "the last term is left out": lambda x, w: in_order(x[:-1] * w[:-1]) if len(x) > 1 else 0 * x[0],
    "factors are rounded to TF32": lambda x, w: in_order(as_tf32(x) * as_tf32(w)),
    "the sum is in halves": lambda x, w: np.cumsum((x * w).astype(np.float16), 0)[-1],
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("n", COUNTS)
def test_an_error_is_not_allowed(error: str, n: int) -> None:
    x, w = factors(n)
    found, exact = ERRORS[error](x, w), (x.astype(np.float64) * w).sum(0)
    with pytest.raises(AssertionError, match="off by"):
        assert_close(found, exact, "float32", "a sum", at_least=1.0, terms=n)


def test_it_grows_with_the_root_of_the_terms() -> None:
    for dtype, least in TOLERANCES.items():
        assert tolerance(dtype) == tolerance(dtype, TERMS) == least
    for dtype in ("float32", "float64"):
        np.testing.assert_allclose(tolerance(dtype, 9 * TERMS), 3 * TOLERANCES[dtype])
    # Halves are rounded once, at the end.
    added = tolerance("float16", 9 * TERMS) - TOLERANCES["float16"]
    np.testing.assert_allclose(added, 2 * TOLERANCES["float32"])
