"""Fixtures of the benchmarks."""

import pytest


@pytest.fixture(autouse=True)
def poisoned_empty() -> None:
    """Leave numpy.empty alone: filling it would be timed too."""
