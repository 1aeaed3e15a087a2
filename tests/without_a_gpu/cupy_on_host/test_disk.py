"""Kernels are compiled once, not once in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from without_a_gpu.cupy_on_host.host import CACHE_VARIABLE

pytestmark = pytest.mark.gpu

SCRIPT = """
from without_a_gpu.cupy_on_host import programs
import cupy
from without_a_gpu.cupy_on_host.calls import calls
calls(cupy, (2, 2, 2, 2))["block_lstm"]()
print(sum(bool(p.names) for p in programs.compiled))
"""


@pytest.fixture
def modules_compiled(cupy: Any, tmp_path: Path) -> Any:
    """Count the modules of the package that a new process compiles."""
    import cupyrnn

    here = Path(__file__).parent
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    roots = (str(Path(cupyrnn.__file__).parents[1]), str(here.parents[1]))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    environment[CACHE_VARIABLE] = str(tmp_path / "cache")

    def run() -> int:
        command = [sys.executable, str(here), str(script)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.splitlines()[-1])

    return run


def test_kernels_are_kept_on_the_disk(cupy: Any, modules_compiled: Any) -> None:
    if tuple(map(int, cupy.__version__.split(".")[:2])) < (14, 2):
        pytest.skip("needs CuPy 14.2: earlier ones do not keep such kernels")
    assert modules_compiled() > 0
    assert modules_compiled() == 0
