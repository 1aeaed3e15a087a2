"""Fixtures of the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests that only take times, unless the command line names them."""
    named = any(collection_path.name in argument for argument in config.args)
    return True if collection_path.name == "test_speed.py" and not named else None


@pytest.fixture(autouse=True)
def poisoned_empty() -> None:
    """Leave numpy.empty alone: filling it would be timed too."""
