"""Each benchmark script runs, what it compares computes the same, and its statistics are right."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import cases
import cpu
import gpu
import needs
import numpy as np
import pages
import pytest
import timing
from cases import Case
from checks import TF_FLOAT16_TOLERANCE, assert_close
from on_gpu import first_contact
from on_gpu.experiments import EXPERIMENTS
from on_gpu.log import Log
from timing import BACKWARD, BOTH, FORWARD, PASSES, Timing
from without_a_gpu.all_steps import FRAMES
from without_a_gpu.cuda_on_cpu import nvrtc

from cupyrnn.driver.timing import SPIN
from cupyrnn.kernels import compile, lstm

ONE_CASE = ["--quick", "--threads", "1", "--only", r"^GRUBlockCell float32 \(1, 32, 32\)$"]


def run(script: Any, *arguments: str | Path, ends_with: int = 0) -> str:
    """Run a script and return what it prints."""
    command = [sys.executable, Path(script.__file__), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ends_with, done.stderr
    return done.stdout


def test_cpu(tmp_path: Path) -> None:
    out = tmp_path / "cpu.md"
    printed = run(cpu, *ONE_CASE, "--out", out)
    assert printed == out.read_text() + "\n"
    assert f"NumPy {np.__version__}" in printed
    assert pages.processor() in printed
    rows = [line for line in printed.splitlines() if "| (1, 32, 32) |" in line]
    assert [row.split(" | ")[2] for row in rows] == [*PASSES]


def test_gpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs NumPy and CuPy alone, and says what is missing."""
    missing = ("pytest", "hypothesis", "ml_dtypes", "numba", "torch", "cupy")
    lines = f"import sys; sys.modules |= dict.fromkeys({missing}); import gpu; print(gpu.main([]))"
    command = [sys.executable, "-c", lines]
    folder = Path(gpu.__file__).parent
    printed = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True).stdout
    assert "gpu.py: nothing to run on: CuPy cannot be imported" in printed
    assert printed.endswith("\n2\n")


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_the_old_texts_of_experiments_are_there_once(experiment: Any) -> None:
    for kernels in (lstm.FORWARD_KERNELS, lstm.BACKWARD_KERNELS):
        source = getattr(kernels, FRAMES[experiment.frame].mode).source
        changed = experiment.changed(source)
        assert all(new in changed for _, _, new in experiment.texts)
        with pytest.raises(ValueError, match="is there 2 times, not once"):
            experiment.changed(2 * source)


def test_first_contact_sees_errors(
    cupy_on_gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An experiment with other values, and a kernel whose bits change beside another one."""
    bound, log = first_contact.Bound(True, 0, 0), Log(tmp_path / "log", "Log", {"device": 1})
    (case, *_) = first_contact.compared(EXPERIMENTS[0], dry=True)
    right = EXPERIMENTS[0]._replace(name="right", texts=(("lstm", "tanh_(zci)", "(tanh_(zci))"),))
    wrong = right._replace(name="wrong", texts=(("lstm", "tanh_(zci)", "tanh_(2 * zci)"),))
    first_contact.experiment_at(log, right, case, dry=True)
    first_contact.repeat(log, case, math.inf, 2)
    assert not log.failed
    first_contact.guarded(
        log, "wrong", lambda: first_contact.experiment_at(log, wrong, case, dry=True)
    )
    assert "WRONG: a result is off by" in log.page.read_text()
    run_once, calls = first_contact.OnDevice.run, []

    def other(*args: Any, **more: Any) -> Any:
        results = run_once(*args, **more)
        calls.append(results)
        results[0][0, 0] *= 1 + 1e-6 * (len(calls) > 2)
        return results

    monkeypatch.setattr(first_contact.OnDevice, "run", other)
    first_contact.repeat(log, case, math.inf, 3)
    assert "| 3 | WRONG: other bits |" in log.page.read_text()
    assert log.failed
    assert bound.left("tests") < 0


def test_the_wait_of_gpu_compiles() -> None:
    needs.tool(nvrtc.have_nvrtc())
    cubin = nvrtc.compile_cubin(SPIN, ("spin",), "sm_90", compile.OPTIONS)
    assert "spin" in cubin.kernels


@pytest.mark.parametrize("case", [c for c in cases.all_cases() if cases.smallest(c)], ids=str)
def test_peers_compute_the_same(case: Case) -> None:
    """TensorFlow, PyTorch and this package are given the same problem."""
    if case.sequence:
        case = case._replace(shape=(10, *case.shape[1:]))  # rounding adds up over the steps
    mine = cases.ours(case)
    outputs = mine.forward()
    ours = mine.results(outputs, mine.backward(outputs))
    try:
        peers = cases.peers(case)
    except ImportError:
        pytest.skip(f"needs {case.peer}: pip install '.[oracle]'")
    for other in peers:
        outputs = other.forward()
        theirs = other.results(outputs, other.backward(outputs))
        assert theirs.keys() <= ours.keys()
        assert any("grad" in name or "backprop" in name or "d_" in name for name in theirs)
        for name, expected in theirs.items():
            a = np.asarray(ours[name], np.float64)
            if case.dtype == "float16":
                error, most = (np.max(np.abs(v)) for v in (a - expected, expected))
                assert error <= TF_FLOAT16_TOLERANCE * most, name
            else:
                assert_close(a, expected, case.dtype, f"{other.name} {name}")


def test_ratios_are_taken_within_rounds() -> None:
    """A slow spell of the machine, which hits both, changes no ratio."""

    def timings(*forward: float) -> Timing:
        return Timing({FORWARD: [*forward], BACKWARD: [*forward], BOTH: [*forward]}, 12)

    mine, other = timings(1, 1, 10, 1, 1, 1), timings(2, 2, 20, 2, 2, 3)
    assert timing.ratio(other, mine, FORWARD) == (2.0, 2.0, 3.0, 6)


@pytest.mark.parametrize(("n", "left_out"), [(5, 0), (8, 0), (9, 1), (25, 7), (60, 21)])
def test_intervals_are_those_of_the_sign_test(n: int, left_out: int) -> None:
    values = [float(v) for v in np.random.default_rng(n).permutation(n)]
    assert timing.median_interval(values) == (left_out, n - 1 - left_out)
