"""gpu.py without a GPU: its contestants, timer and tables on the stand-in for CuPy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gpu
import needs
import numpy as np
import pytest
from on_gpu import cases, pytorch, timing
from on_gpu.cases import Case
from torch_nets import TorchNet
from without_a_gpu.cuda_on_cpu import nvrtc

from cupyrnn.device import worker
from cupyrnn.device.worker import DIRECTIONS, Calls
from cupyrnn.kernels import compile

LSTM = Case("lstm", 3, 2, 5, "float32")
OWN = {"loop", "rows", "grid"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few repetitions, and no settings."""
    monkeypatch.setattr(gpu, "FULL", timing.Limits(2, 0.01, 2, 0.01, 0.0, 0.0))
    for name in ("CUPYRNN_ENGINE", "CUPY_TF32", "CUPYRNN_NUMBA"):  # which a run settles
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch, "import_torch", lambda: (None, "torch not installed"))


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wanted: list[Case], *more: str
) -> tuple[int, Any, str]:
    """Run some cases: the exit code, the results and the page."""
    monkeypatch.setattr(cases, "cases", lambda: wanted)
    monkeypatch.setattr(cases, "dry_cases", lambda: wanted)
    code = gpu.main(["--out", str(folder), *more])
    (data,), (page,) = folder.glob("gpu-a-cpu*.json"), folder.glob("gpu-a-cpu*.md")
    assert not list(folder.glob("*.part"))
    return code, json.loads(data.read_text()), page.read_text()


def timed(data: Any) -> dict[tuple[str, str], Any]:
    return {(r["who"], r["pass"]): r for r in data["rows"] if "eager_ms" in r}


@pytest.mark.parametrize(
    "case",
    [
        *(LSTM._replace(variant=variant) for variant in ("", *cases.VARIANTS[:3])),
        *(LSTM._replace(cell=cell) for cell in ("gru", "rnn_tanh", "block_gru")),
        Case("block_lstm", 3, 2, 5, "bfloat16", cases.GENERAL),
    ],
)
def test_a_case_by_everybody(
    cupy: Any, torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    monkeypatch.setattr(cases, "RESET_RATE", 0.5)
    code, data, page = run(tmp_path, monkeypatch, [case])
    assert code == 0, [r.get("status") for r in data["rows"]]
    packed, arrays = {"PyTorch, packed"}, {"PyTorch, arrays"}
    is_net = case.cell not in cases.BLOCKS
    peers = {"lengths": packed, "resets 3 %": set()}.get(case.variant, packed | arrays)
    whose = OWN | ({"tiles"} if case.dtype == "bfloat16" else set()) | (peers if is_net else set())
    found = timed(data)
    assert set(found) == {(who, what) for who in whose for what in DIRECTIONS}
    for (who, _), row in found.items():
        assert ("step_us" in row) == ("PyTorch" not in who)
        assert row["queued_ms"] > 0
    start = f"| {case.cell} | (3, 2, 5) | {case.dtype} | {case.variant} |"
    assert len([line for line in page.splitlines() if line.startswith(start)]) == len(whose)
    # Without a device there is no cuDNN.
    assert ("not cuDNN but" in page) == bool(is_net and peers)
    assert ("libcudnn.so.9 was not found" in page) == (is_net and case.variant != "resets 3 %")
    assert data["finished"]
    assert data["environment"]["CUDA driver"] == "13.1"


@pytest.mark.usefixtures("without_torch")
def test_what_differs_from_numpy_is_not_timed_and_stops_nobody(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Calls.run

    def off(calls: Calls, direction: str) -> Any:
        found = right(calls, direction)
        if worker.os.environ["CUPYRNN_PERSISTENT"] == "rows" and direction == "backward":
            found["params"][1] += 1
        return found

    monkeypatch.setattr(Calls, "run", off)
    code, data, page = run(tmp_path, monkeypatch, [LSTM])
    assert code == 1
    status = {(row["who"], row["pass"]): row.get("status", "") for row in data["rows"]}
    assert status["rows", "backward"].startswith("failed: AssertionError: params is off by 1")
    assert {who for who in OWN if status[who, "forward"] == ""} == OWN
    assert status["grid", "backward"] == status["loop", "backward"] == ""
    assert "## Failed\n\n* lstm (3, 2, 5) float32, rows: failed: AssertionError: params" in page


def test_a_peer_that_computes_something_else_is_noticed(
    cupy: Any, torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backward = TorchNet.backward

    def off(net: Any, y: Any) -> Any:
        return [2 * a for a in backward(net, y)]

    monkeypatch.setattr(TorchNet, "backward", off)
    code, data, _ = run(tmp_path, monkeypatch, [LSTM])
    assert code == 1
    status = {row["who"]: row.get("status", "") for row in data["rows"]}
    for who in ("PyTorch, arrays", "PyTorch, packed"):
        assert status[who].startswith("failed: AssertionError: gradient of input: off by")


@pytest.mark.usefixtures("without_torch")
def test_what_there_is_no_time_for_is_said(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [LSTM, LSTM._replace(B=1)]
    assert run(tmp_path, monkeypatch, wanted, "--minutes", "0")[0] == 0
    printed = capsys.readouterr().out
    assert "no time was left for" in printed
    assert "* lstm (3, 1, 5) float32, everybody: skipped: out of time" in printed
    # In the middle of a case.
    ends = iter([0.0, *[np.inf] * 100])
    monkeypatch.setattr(timing.Limits, "over", lambda _: time.perf_counter() < next(ends))
    _, data, page = run(tmp_path, monkeypatch, [LSTM])
    assert {r["who"] for r in data["rows"] if r.get("status") == "skipped: out of time"} >= OWN
    assert "## No time was left for" in page


@pytest.mark.usefixtures("without_torch")
def test_a_dry_run_has_no_times(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, data, page = run(tmp_path, monkeypatch, [LSTM], "--dry")
    assert code == 0
    ran = [row for row in data["rows"] if row["status"] == "ran, not timed"]
    assert {row["who"] for row in ran} == OWN
    assert not any(name.endswith(("_ms", "_us")) for row in ran for name in row)
    assert not re.search(r"\d ms\b|\| \d+\.\d+", page + capsys.readouterr().out)


@pytest.mark.usefixtures("without_torch")
def test_a_failure_of_the_queue_keeps_the_time(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("out of\nluck | today")

    monkeypatch.setattr(timing.Timer, "queued", broken)
    code, data, page = run(tmp_path, monkeypatch, [LSTM])
    assert code == 1
    assert timed(data)["loop", "forward"]["errors"] == ["queued: RuntimeError: out of luck | today"]
    assert "failed: queued: RuntimeError: out of luck \\| today |" in page
    code, data, _ = run(tmp_path / "dry", monkeypatch, [LSTM], "--dry")
    assert code == 1


@pytest.mark.usefixtures("without_torch")
def test_without_torch_and_ml_dtypes(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    wanted = [LSTM._replace(dtype=dtype) for dtype in ("bfloat16", "float64")]
    code, data, _ = run(tmp_path, monkeypatch, wanted)
    assert code == 0
    status = {(r["dtype"], r["who"]): r.get("status", "") for r in data["rows"]}
    assert "ml_dtypes" in status["bfloat16", "everybody"]
    assert status["float64", "PyTorch, arrays"] == "torch not installed"
    assert status["float64", "loop"] == ""


def test_the_cases() -> None:
    found = cases.cases()
    assert len(found) == len(set(found))
    assert {case.variant for case in found} == {"", *cases.VARIANTS}
    assert {case.cell for case in found} == {*cases.CELLS}
    assert {case.dtype for case in found} == {*cases.DTYPES}
    assert {case.cell for case in cases.dry_cases()} == {*cases.CELLS}
    assert cases.lengths_of(Case("lstm", 8, 4, 1, "float32", "lengths")) == [8, 7, 6, 5]


def test_the_timer(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of its own, which goes on by what is slept, and a little at each look."""
    now = [0.0]

    def pass_by(seconds: float) -> float:
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(time, "sleep", pass_by)
    monkeypatch.setattr(time, "perf_counter", lambda: pass_by(1e-6))
    timer = timing.Timer(cupy, timing.Limits(6, 0.01, 6, 0.01, 0.0, 0.0))
    slept: list[int] = []

    def sleep(state: int) -> None:
        slept.append(state)
        time.sleep(2e-3)

    job = timing.Run(sleep, lambda: 7)
    row = timer.measure(job)
    assert set(slept) == {7}
    for name in ("eager_ms", "host_ms", "queued_ms"):
        assert row[name] == pytest.approx(2, rel=0.01)
    assert row["repetitions"] == 5
    assert not row["queued_is_bound"]

    # A device that is free at once is not ahead of the host.
    timer.spin = lambda *_: None
    assert timer.queued(job, 2.0)["queued_is_bound"]

    timer.spin = None
    (error,) = timer.measure(job)["errors"]
    assert error.startswith("queued: TypeError")


def test_the_spin_compiles_for_a_gpu() -> None:
    needs.tool(nvrtc.have_nvrtc())
    cubin = nvrtc.compile_cubin(timing.SPIN, ("spin",), "sm_90", compile.OPTIONS)
    assert "spin" in cubin.kernels


def test_nothing_but_numpy_and_cupy_is_needed() -> None:
    """On the machine with the GPU, where the tests' packages may be missing."""
    missing = ("pytest", "hypothesis", "ml_dtypes", "numba", "torch", "cupy")
    lines = (
        f"import sys\nsys.modules |= dict.fromkeys({missing})\nimport gpu\nsys.exit(gpu.main([]))"
    )
    command = [sys.executable, "-c", lines]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(gpu.__file__).parent, check=False
    )
    assert (done.returncode, done.stderr) == (2, "")
    assert "gpu.py: nothing to run on: CuPy cannot be imported" in done.stdout


def test_nothing_to_run_on(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_driver() -> int:
        raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", no_driver)
    assert gpu.main([]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert "no GPU" in line
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gpu.main([]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert "CuPy cannot be imported" in line
    assert "cuda13x" in line
