"""Fixtures of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cupyrnn.kernels import grid
from without_a_gpu.cupy_on_host import host as host_module


@pytest.fixture
def host() -> Any:
    """CuPy over host memory, if this process has it."""
    if not host_module.installed():
        pytest.skip(
            "needs CuPy over memory of the host: python tests/without_a_gpu/cupy_on_host -m pytest"
        )
    return host_module


@pytest.fixture
def cupy(host: Any, cupy_on_gpu: Any) -> Any:
    """The real CuPy."""
    return cupy_on_gpu


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of a grid with few units and threads, so that a small matrix has three of them."""
    monkeypatch.setattr(grid, "WARPS", 2)
    monkeypatch.setattr(grid, "UNITS", {"numbers": (4,), "tensor cores": (16,)})
    grid.layout_of.cache_clear()
    yield
    grid.layout_of.cache_clear()
