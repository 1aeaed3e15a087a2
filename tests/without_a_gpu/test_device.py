"""python -m cupyrnn.device: its checks, its output and its measurements."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from cupyrnn.device import cli, timing, worker
from cupyrnn.device.problems import Problem, draw
from cupyrnn.kernels import timed
from cupyrnn.kernels.timed import Measurements, Timed
from without_a_gpu.cupy_on_host import host

RULE = ["--cells", "lstm", "--dtypes", "float32", "--units", "9", "--batches", "3"]


class Process:
    """Replaces the separate process: its answers, and the questions it got."""

    engines: ClassVar[dict[str, dict[str, str]]] = {"inference": {"cupy": "cupy"}, "training": {}}

    def __init__(self, path: Path | None, answers: Callable[..., Any]) -> None:
        self.facts = {"card": "A card", "path": None if path is None else str(path)}
        self.answers, self.asked, self.closed = answers, [], 0  # type: ignore[var-annotated]

    def ask(self, question: list[Any]) -> tuple[Any, str]:
        what, problem, *given = question
        if what == "kernels" and problem.net:
            return self.engines, ""
        if what == "kernels":
            modes = {"loop": "loop", "rows": "hybrid" if problem.H > 64 else "rows"}
            return {"forward": modes, "backward": {"loop": "loop"}}, ""
        asked = what, problem.H, problem.general, *given
        self.asked.append(asked)
        found = self.answers(*asked)
        return found if isinstance(found, tuple) else (found, "")

    def close(self) -> None:
        self.closed += 1


def answers(**changed: Any) -> Callable[..., Any]:
    """Return right answers, except for the changed ones; rows needs half of the time."""

    def answer(what: str, H: int, general: bool, direction: str, modes: Any) -> Any:
        if what == "times":
            times = changed.get("times", {"loop": 4.8, "rows": 2.4})
            return times if isinstance(times, tuple) else [times[mode] for mode in modes]
        return changed.get(f"{modes}_{direction}_{H}", "")

    return answer


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A function that runs the command on answers; it returns the status and the measurements."""
    path = tmp_path / "here" / "gpu-a.json"

    def call(given: Callable[..., Any], *arguments: str, keeps: bool = True) -> Any:
        process = Process(path if keeps else None, given)
        monkeypatch.setattr(cli, "Apart", lambda *_: process)
        status = cli.main([*RULE, *arguments])
        return status, timed.read(path), process

    return call


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_the_table_and_what_is_kept(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, kept, process = run(answers(), "--units", "9", "100")
    assert status == 0
    assert kept.fastest == {
        "lstm_forward float32": [Timed(9, 3, "rows"), Timed(100, 3, "rows")],
        "lstm_backward float32": [Timed(9, 3, "loop"), Timed(100, 3, "loop")],
    }
    assert kept.refused == {"lstm_forward float32": {}, "lstm_backward float32": {}}
    found = [re.split(r"  +", line) for line in lines(capsys)]
    none = ["–"] * len(timed.KERNELS)
    assert found == [
        ["A card"],
        ["device time of a step, in us", "H", "B", *timed.KERNELS, "taken", "values"],
        ["lstm_forward float32", "9", "3", "50.00", "25.00", *none[2:], "rows", "right"],
        ["lstm_backward float32", "9", "3", "50.00", *none[1:], "loop", "right"],
        ["lstm_forward float32", "100", "3", "50.00", "–", "25.00", *none[3:], "hybrid", "right"],
        ["lstm_backward float32", "100", "3", "50.00", *none[1:], "loop", "right"],
        [f"kept in {kept.path}"],
    ]  # fmt: skip
    # Without lengths and with them, and the values before the times.
    forward = [(a[0], a[2], a[4]) for a in process.asked if a[1] == 9 and a[3] == "forward"]
    assert forward == [
        *(("wrong", general, mode) for general in (False, True) for mode in ("loop", "rows")),
        *(("times", general, ["loop", "rows"]) for general in (False, True)),
    ]


def test_engines_of_a_call(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Engines come after kernels, without lengths; "cupy" wins if another is hardly faster."""
    engines = {call: {"cupy": "cupy", "cudnn": "cudnn"} for call in timed.CALLS}
    monkeypatch.setattr(Process, "engines", engines)
    times = {"loop": 4.8, "rows": 2.4, "cupy": 4.8, "cudnn": 2.4}
    _, kept, process = run(answers(times=times, cudnn_inference_9="output is off by 3"))
    assert kept.fastest["lstm_training float32"] == [Timed(9, 3, "cudnn")]
    assert kept.fastest["lstm_inference float32"] == [Timed(9, 3, "cupy")]
    assert kept.refused["lstm_inference float32"] == {"cudnn": "output is off by 3 at H = 9, B = 3"}
    general = [asked[2] for asked in process.asked if asked[3] in timed.CALLS]
    assert general == [False] * 6
    found = [line for line in lines(capsys) if line.startswith("lstm_training")]
    assert found == [f"{'lstm_training float32':<36}9     3  cupy 50.00, cudnn 25.00: cudnn, right"]
    times["cudnn"] = 4.7
    _, kept, _ = run(answers(times=times))
    assert kept.fastest["lstm_training float32"] == [Timed(9, 3, "cupy")]


def test_what_is_hardly_faster_is_left_to_the_loop(run: Any) -> None:
    for rows, taken in ((4.7, "loop"), (4.6, "rows")):
        _, kept, _ = run(answers(times={"loop": 4.8, "rows": rows}))
        assert kept.fastest["lstm_forward float32"] == [Timed(9, 3, taken)]


def test_a_wrong_kernel_is_never_taken(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not run again, also at sizes where it was right; other kernels are."""
    wrong = answers(rows_forward_64="h is off by 1 of 0.5")
    status, kept, process = run(wrong, "--units", "9", "64", "95", "33")
    assert status == 1
    assert kept.refused["lstm_forward float32"] == {"rows": "h is off by 1 of 0.5 at H = 64, B = 3"}
    assert [one.mode for one in kept.fastest["lstm_forward float32"]] == [*("rows", "loop") * 2]
    assert process.closed == 2  # once at the end
    assert not [a for a in process.asked if a[1] == 33 and "rows" in a[4]]
    *_, said, _ = lines(capsys)
    assert said == (
        "WRONG, never taken: rows of lstm_forward float32: h is off by 1 of 0.5 at H = 64, B = 3"
    )
    # It stays refused, because another run may not see the error.
    status, kept, _ = run(answers(), "--units", "33", "100")
    assert status == 0
    assert [*kept.refused["lstm_forward float32"]] == ["rows"]
    sizes = [(one.H, one.mode) for one in kept.fastest["lstm_forward float32"]]
    assert sizes == [(9, "rows"), (64, "loop"), (95, "rows"), (33, "rows"), (100, "rows")]


def test_a_kernel_that_ends_the_process(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    crash = None, "ended by SIGSEGV"
    status, kept, _ = run(answers(rows_forward_9=crash))
    assert status == 1
    found = {"rows": "its process ended by SIGSEGV at H = 9, B = 3"}
    assert kept.refused["lstm_forward float32"] == found
    status, kept, _ = run(answers(times=(None, "gave no answer within 300 s")))
    assert status == 1
    assert [*kept.refused["lstm_forward float32"]] == ["rows"]
    assert [*kept.refused["lstm_backward float32"]] == ["loop"]
    assert kept.fastest["lstm_forward float32"] == [Timed(9, 3, "loop")]


def test_what_is_no_number_or_comes_out_otherwise_again_is_wrong(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results that change happen if blocks do not wait: rarely, and with small errors."""
    found = worker.OpOnDevice("float32", *draw(Problem("lstm", "float32", 3, 2, 5, True)))
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    for direction in worker.DIRECTIONS:
        assert found.wrong(direction) == ""
    right, calls = found.run, [0]

    def other(direction: str) -> Any:
        calls[0] += 1
        results = right(direction)
        results["h"][0, 0, 0] *= 1 + 1e-6 * calls[0]
        return results

    monkeypatch.setattr(found, "run", other)
    assert found.wrong("forward") == "h has other bits when it is computed again"
    calls[0] = 10**9
    assert found.wrong("forward").startswith("h is off by ")
    calls[0] = np.nan  # type: ignore[call-overload]
    assert found.wrong("forward").startswith("h is off by nan of ")


def test_every_size_in_between_is_near_one_that_is_timed() -> None:
    for sizes, name in ((cli.UNITS, "H"), (cli.BATCHES, "B")):
        for size in range(sizes[0], 2 * sizes[-1] + 1):
            given = [Timed(**{"H": 9, "B": 9, name: n}, mode="rows") for n in sizes]
            near = Measurements(Path(), "", {"a": given}, {}).near(
                "a", **{"H": 9, "B": 9, name: size}
            )
            assert near, (name, size)


def test_nothing_is_kept_where_nothing_is_to_be(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(answers(), keeps=False)[:2] == (0, None)
    assert lines(capsys)[-1] == "kept nowhere, as CUPYRNN_CACHE_DIR is empty"


def test_a_folder_that_cannot_be_made(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.joinpath("here").touch()
    assert run(answers())[0] == 2
    assert "here" in capsys.readouterr().err


def test_without_a_gpu_it_says_so_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "cupyrnn.device"]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(command, capture_output=True, text=True, env=hidden, check=False)
    assert found.returncode == 2
    install = r'; in a clone: pip install "\.\[cuda12x\]" or "\.\[cuda13x\]"'
    missing = install if importlib.util.find_spec("cupy") is None else ""
    assert re.fullmatch(rf"cupyrnn\.device: no GPU that CuPy can use: .*{missing}\n", found.stderr)
    assert found.stdout == ""


def test_forget(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUPYRNN_CACHE_DIR", str(tmp_path / "here"))
    _, kept, _ = run(answers())
    lines(capsys)
    for said in (kept.path, "nothing, as nothing was kept"):
        assert cli.main(["--forget"]) == 0
        assert lines(capsys) == [f"forgotten: {said}"]


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


PLANT = """
from cupyrnn.kernels import lstm, rows
kernels = lstm.FORWARD_KERNELS
kernel = kernels.rows
{planted}
"""
# A gate that is computed wrongly; a kernel that ends its process.
PLANTED = {
    "wrong": """
assert {old!r} in kernel.source
kernel = kernel._replace(source=kernel.source.replace({old!r}, {new!r}))
lstm.FORWARD_KERNELS = kernels._replace(rows=kernel)
""",
    "crash": """
import os, signal
template_of = rows.template_of
def planted(kernel, *args):
    if kernel is lstm.FORWARD_KERNELS.rows:
        os.kill(os.getpid(), signal.SIGKILL)
    return template_of(kernel, *args)
rows.template_of = planted
""",
}
ON_HOST = """
from without_a_gpu.cupy_on_host import host
host.install()
# The fibers of whole clusters take minutes here; test_all_steps.py has small ones.
from cupyrnn.kernels import timed
timed.MODES = tuple(mode for mode in timed.MODES if mode != "cluster")
"""


class Clocks:
    """A CuPy whose device and host have separate clocks, in seconds."""

    def __init__(self, host: dict[str, float], device: dict[str, float]) -> None:
        self.host_needs, self.device_needs = host, device
        self.now = self.busy_until = 0.0
        self.of_an_event = 0.0  # seconds of the host
        self.done: list[str] = []
        clocks = self

        class Event:
            def record(self) -> None:
                clocks.now += clocks.of_an_event
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

    def call(self, direction: str) -> None:
        """Ten launches."""
        mode = os.environ["CUPYRNN_PERSISTENT"]
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
    for module in (worker, timing):
        monkeypatch.setattr(module, "perf_counter", lambda: clocks.now)
    calls = worker.OpOnDevice.__new__(worker.OpOnDevice)
    monkeypatch.setattr(calls, "run", clocks.call)
    for modes in ([*host], [*host][::-1]):
        found = calls.times("forward", modes)
        assert found == pytest.approx([1e3 * device[mode] for mode in modes], rel=1e-6)
    # If the host is so slow that the device waits for it, a bound is better than nothing.
    host["rows"] = 1.0
    assert calls.times("forward", ["rows"]) == pytest.approx([850], rel=0.1)


def test_kernels_are_checked_in_strict_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = {"CUPYRNN_ENGINE": "cupy", "CUPY_TF32": "0", "CUPYRNN_NUMBA": "0"}
    for name in strict:
        monkeypatch.setenv(name, "1")
    worker.be_strict()
    assert {name: os.environ[name] for name in strict} == strict


def test_a_host_that_is_late_before_the_call_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device then waits, though the call itself is queued in no time."""
    clocks = Clocks({"rows": 0.0}, {"rows": 1e-3})
    monkeypatch.setitem(sys.modules, "cupy", clocks)  # type: ignore[arg-type]
    monkeypatch.setattr(timing, "perf_counter", lambda: clocks.now)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    timer = timing.DeviceTimer()
    timer.measure(lambda: clocks.call("forward"), 0.1)  # it compiles
    for late, queued in ((0.01, True), (0.2, False)):
        clocks.of_an_event = late
        assert timer.measure(lambda: clocks.call("forward"), 0.1).all_queued == queued


def test_large_sizes_are_timed_over_fewer_steps() -> None:
    """They need no more memory than other sizes, also with 512 and 1,024 sequences."""
    asked = []

    class Answers(Process):
        def ask(self, question: list[Any]) -> tuple[Any, str]:
            if question[0] == "times":
                asked.append(question[1])
            return super().ask(question)

    trial = cli.Trial(Answers(None, answers()))  # type: ignore[arg-type]
    rows = [*trial.rows("lstm", "float32", [(64, 1024), (512, 512), (512, 1024)])]
    assert {p.T for p in asked} == {96, 64, 32}
    assert all(p.T * p.B * p.H <= cli.LARGEST for p in asked)
    assert f"{1e3 * 2.4 / 32:.2f}" in rows[-2].text
    assert {512, 1024} <= {*cli.BATCHES}


def on_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, planted: str, *arguments: str
) -> tuple[int, dict[str, Any]]:
    """Run the command, with code that its separate process runs first."""
    text = (ON_HOST if host.installed() else "") + planted
    tmp_path.joinpath("sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("CUPYRNN_CACHE_DIR", str(tmp_path / "here"))
    status = cli.main([*RULE, *arguments])
    (path,) = (tmp_path / "here").iterdir()
    return status, json.loads(path.read_text())


@pytest.mark.usefixtures("cupy_on_gpu")
def test_every_cell_is_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    every = ["--cells", "lstm", "gru", "rnn_tanh", "block_gru", "--dtypes", "float32", "float16"]
    status, kept = on_gpu(monkeypatch, tmp_path, "", *every)
    assert status == 0
    assert len(kept["fastest"]) == len(kept["refused"]) == 16


@pytest.mark.usefixtures("cupy_on_gpu")
@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_error_is_refused_by_name(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = PLANTED[kind]
    if kind == "wrong":
        planted = planted.format(old="tanh_(zci)", new="tanh_(2 * zci)")
    status, kept = on_gpu(monkeypatch, tmp_path, PLANT.format(planted=planted))
    assert status == 1
    refused = {name: [*seen] for name, seen in kept["refused"].items()}
    assert refused == {"lstm_forward float32": ["rows"], "lstm_backward float32": []}
    (seen,) = kept["refused"]["lstm_forward float32"].values()
    assert ("is off by" if kind == "wrong" else "its process ended by SIGKILL") in seen
    said = capsys.readouterr().out
    assert f"WRONG, never taken: rows of lstm_forward float32: {seen}" in said
