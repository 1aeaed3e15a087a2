"""scaling.py: that it runs, and that its model is the one it names."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import needs
import pytest
import scaling

FOLDERS = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.skipif(
    shutil.which("mpiexec", path=FOLDERS) is None or importlib.util.find_spec("mpi4py") is None,
    reason=needs.REASONS["mpi4py"],
)
def test_workers() -> None:
    run = scaling.processes(2, "steps", 4, 8, 3)
    assert len(run["step"]) == len(run["waiting"]) == 3
    assert all(0 < w < s for w, s in zip(run["waiting"], run["step"], strict=True))
    assert run["bytes"] == scaling.processes(1, "steps", 4, 8, 1)["bytes"]
    assert {len(times) for times in scaling.processes(2, "overlap", 5).values()} == {3}


def test_model() -> None:
    """Two ranks exchange half each way, twice; many send each byte nearly twice."""
    bandwidth, latency = scaling.NETWORKS["10 Gb/s"]
    assert scaling.all_reduce(2, 10**9, "10 Gb/s") == pytest.approx(2 * latency + 1e9 / bandwidth)
    many = scaling.all_reduce(1024, 10**9, "10 Gb/s")
    assert many == pytest.approx(20 * latency + 2 * 1023 / 1024 * 1e9 / bandwidth)


def test_tables_and_plot(tmp_path: Path) -> None:
    needs.module("matplotlib")
    found = {
        (kind, ranks): {"step": [0.1 if kind == "weak" else 0.1 / ranks], "waiting": [0.01]}
        for kind in ("strong", "weak")
        for ranks in scaling.RANKS
    }
    lines = scaling.measured_table(found)
    assert all("| 100% |" in line for line in lines[2:])  # as fast as it can be
    assert lines[4].endswith("| 40% |")  # strong, 4 ranks: 10 of 25 ms
    model = scaling.modeled_table(18_000_000, 1.0)
    assert len(model) == 2 + len(scaling.MODEL_RANKS)
    assert {line.count("|") for line in model} == {8}
    scaling.draw(tmp_path / "x.png", found, 18_000_000, 1.0)
    assert (tmp_path / "x.png").stat().st_size > 10_000
