"""What the tests of this folder need."""

from __future__ import annotations

from typing import Any

import pytest

from without_a_gpu.cupy_on_host import host as host_module


@pytest.fixture
def host() -> Any:
    """CuPy over memory of the host, where this process has it."""
    if not host_module.installed():
        pytest.skip(
            "needs CuPy over memory of the host: python tests/without_a_gpu/cupy_on_host -m pytest"
        )
    return host_module


@pytest.fixture
def cupy(host: Any, cupy_on_gpu: Any) -> Any:
    """The real one."""
    return cupy_on_gpu
