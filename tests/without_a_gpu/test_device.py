"""python -m cupyrnn.device: its output, what it keeps, and the times."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cupyrnn.device import cli
from cupyrnn.driver import timing, trial
from cupyrnn.kernels import timed
from without_a_gpu.all_steps import plant

RULE = ["--cells", "lstm", "--dtypes", "float32", "--units", "9", "--batches", "3"]


@pytest.fixture
def card(
    cupy_on_cpu: Any, new_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A card whose kernels of one launch need half of the loop's time."""
    monkeypatch.delenv("CUPYRNN_PERSISTENT")
    monkeypatch.setenv("CUPYRNN_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(trial, "times_of", lambda calls: {w: 1 + (w == "loop") for w in calls})
    # Clusters and grids at full size take long here; test_first_use.py has small ones.
    monkeypatch.setattr(timed, "MODES", ("loop", "rows"))


def test_the_table_and_what_is_kept(
    card: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*RULE, "--batches", "3", "4"]) == 0
    (path,) = tmp_path.glob("kept/*.json")
    printed = capsys.readouterr()
    lines = [re.split(r"  +", line) for line in printed.out.splitlines()]
    none = ["–"] * 3
    rows = [
        [f"lstm_{direction} float32", "9", B, "20.83", "10.42", *none, "rows", "right"]
        for B in ("3", "4")
        for direction in ("forward", "backward")
    ]
    titles = ["device time of a step, in us", "H", "B", *timed.KERNELS, "taken", "values"]
    assert lines == [["simulated"], titles, *rows, [f"kept in {path}"]]
    assert "2: lstm float32, H = 9, B = 4" in printed.err
    found = json.loads(path.read_text())
    assert found["fastest"] == {
        f"lstm_{direction} float32": [[9, 4, "rows", ""]] for direction in ("forward", "backward")
    }
    assert [*found["verdicts"].values()] == [""] * 6, "of each direction, by kind"
    assert (found["card"], found["processors"]) == ("simulated", 4)


def test_a_wrong_kernel_is_named(
    card: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, "lstm", "rows", ("tanh_(zci)", "tanh_(2 * zci)"))
    with pytest.warns(RuntimeWarning, match="does not use a kernel that is wrong on simulated"):
        assert cli.main(RULE) == 1
    printed = capsys.readouterr().out
    assert "WRONG, never taken: rows of lstm_forward float32: a result is off by" in printed
    assert re.search(r"lstm_forward float32 .* loop +wrong: rows", printed)
    assert re.search(r"lstm_backward float32 .* rows +right", printed)


def test_nothing_is_kept_where_nothing_is_to_be(
    card: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUPYRNN_CACHE_DIR", "")
    timed.read_anew()
    assert cli.main(RULE) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "kept nowhere: see CUPYRNN_CACHE_DIR"


def test_forget(card: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(RULE)
    (path,) = tmp_path.glob("kept/*.json")
    capsys.readouterr()
    for said in (path, "nothing, as nothing was kept"):
        assert cli.main(["--forget"]) == 0
        assert capsys.readouterr().out == f"forgotten: {said}\n"


def test_without_a_gpu_it_says_so_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "cupyrnn.device"]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(command, capture_output=True, text=True, env=hidden, check=False)
    assert found.returncode == 2
    install = r'; in a clone: pip install "\.\[cuda12x\]" or "\.\[cuda13x\]"'
    missing = install if importlib.util.find_spec("cupy") is None else ""
    assert re.fullmatch(rf"cupyrnn\.device: no GPU that CuPy can use: .*{missing}\n", found.stderr)
    assert found.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [["--cells", "sru"], ["--dtypes", "int8"], ["--units", "0"], ["--batches", "3,1"]],
    ids=" ".join,
)
def test_arguments_that_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert repr(arguments[1]) in capsys.readouterr().err


class Clocks:
    """A CuPy whose device and host have separate clocks, in seconds."""

    def __init__(self, host: dict[str, float], device: dict[str, float]) -> None:
        self.host_needs, self.device_needs = host, device
        self.now = self.busy_until = 0.0
        self.late: list[float] = []  # seconds that the host needs for the next events
        self.done: list[str] = []
        clocks = self

        class Event:
            def record(self) -> None:
                clocks.now += clocks.late.pop(0) if clocks.late else 0.0
                self.at = max(clocks.now, clocks.busy_until)

            def synchronize(self) -> None:
                clocks.now = max(clocks.now, self.at)

        def elapsed(start: Event, stop: Event) -> float:
            return 1e3 * (stop.at - start.at)

        runtime = SimpleNamespace(deviceSynchronize=self.synchronize)
        self.cuda = SimpleNamespace(Event=Event, runtime=runtime, get_elapsed_time=elapsed)

    def RawKernel(self, source: str, name: str) -> Any:
        return lambda _grid, _block, cycles: self.launch(float(cycles[0]) / 2e9)

    def synchronize(self) -> None:
        self.now = max(self.now, self.busy_until)

    def launch(self, seconds: float) -> None:
        self.busy_until = max(self.now, self.busy_until) + seconds

    def call(self, mode: str) -> None:
        """Ten launches."""
        first = mode not in self.done
        self.done.append(mode)
        self.now += first * 1.0  # it compiles
        # Two of three calls need longer than the last one suggested.
        slower = 3 ** (self.done.count(mode) % 3)
        for _ in range(10):
            self.now += self.host_needs[mode] * slower / 10
            self.launch(self.device_needs[mode] / 10)


def test_times_are_those_of_the_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slower kernel is recognized, though the host needs less time to launch it."""
    host = {"loop": 5e-3, "rows": 2e-3, "grid": 1e-3}
    device = {"loop": 9e-4, "rows": 1e-4, "grid": 3e-4}
    clocks = Clocks(host, device)
    monkeypatch.setitem(sys.modules, "cupy", clocks)  # type: ignore[arg-type]
    for module in (trial, timing):
        monkeypatch.setattr(module, "perf_counter", lambda: clocks.now)
    for modes in ([*host], [*host][::-1]):
        found = trial.times_of({mode: partial(clocks.call, mode) for mode in modes})
        assert found == pytest.approx({mode: 1e3 * device[mode] for mode in modes}, rel=1e-6)
    # If the host is so slow that the device waits for it, a bound is better than nothing.
    host["rows"] = 1.0
    assert trial.times_of({"rows": partial(clocks.call, "rows")})["rows"] > 100


def test_a_host_that_is_late_before_the_call_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device then waits, though the call itself is queued in a moment."""
    clocks = Clocks({"rows": 1e-3}, {"rows": 1e-3})
    monkeypatch.setitem(sys.modules, "cupy", clocks)  # type: ignore[arg-type]
    monkeypatch.setattr(timing, "perf_counter", lambda: clocks.now)
    timer = timing.DeviceTimer()
    timer.measure(lambda: clocks.call("rows"), 0.1)  # it compiles
    for late, queued in ((0.01, True), (0.2, False)):
        clocks.late = [0.0, late]
        assert timer.measure(lambda: clocks.call("rows"), 0.1).all_queued == queued


def test_large_sizes_are_timed_over_fewer_steps() -> None:
    """They need no more memory than other sizes."""
    for B, H, T, expected in ((64, 64, 500, 96), (512, 512, 500, 32), (4, 64, 9, 16)):
        of: Any = SimpleNamespace(shape=(B, H), steps=T)
        assert trial.steps_of(of) == expected
