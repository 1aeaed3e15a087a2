"""The first use of a kernel of one launch: it is tried, and kernels are timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from checks import assert_close

import cupyrnn
from cupyrnn.driver import trial
from cupyrnn.kernels import choice, fit, gru_reset_after, lstm, persistent, simple_rnn, timed
from cupyrnn.kernels import gru as gru_page
from without_a_gpu.all_steps import FRAMES, plant
from without_a_gpu.cuda_on_cpu import fake_cupy
from without_a_gpu.new_process import forget

T, B, I, H = 7, 5, 3, 17
LSTM, GRU = (lstm.FORWARD_KERNELS, lstm.BACKWARD_KERNELS), gru_page.FORWARD_KERNELS


class Card(NamedTuple):
    """What a driver says of a card."""

    name: str
    processors: int
    architecture: str
    shared: int  # KB that a block may have


CARDS = {
    "H100": Card("NVIDIA H100 80GB HBM3", 132, "90", 227),
    "H20": Card("NVIDIA H20", 78, "90", 227),
    "A100": Card("NVIDIA A100-SXM4-40GB", 108, "80", 163),
    "A10": Card("NVIDIA A10", 72, "86", 99),
    "RTX 4090": Card("NVIDIA GeForce RTX 4090", 128, "89", 99),
    "RTX 5090": Card("NVIDIA GeForce RTX 5090", 170, "120", 99),
    "T4": Card("Tesla T4", 40, "75", 64),
    "MIG slice": Card("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, "90", 227),
}


@pytest.fixture
def use_card(
    cupy_on_cpu: Any, new_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], None]:
    """A function that replaces the card; this process has not called anything yet."""
    monkeypatch.delenv("CUPYRNN_PERSISTENT")
    monkeypatch.setenv("CUPYRNN_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("CUPYRNN_TUNE", "0")
    monkeypatch.setattr(cupy_on_cpu.ndarray, "repeats", True)

    def use(name: str) -> None:
        card = CARDS[name]
        attributes = {"MultiProcessorCount": card.processors, "CooperativeLaunch": 1}
        attributes["MaxSharedMemoryPerBlockOptin"] = 1024 * card.shared
        monkeypatch.setattr(cupy_on_cpu.cuda.Device, "attributes", attributes)
        monkeypatch.setattr(cupy_on_cpu.cuda.Device, "compute_capability", card.architecture)
        properties = {"name": card.name.encode()}
        monkeypatch.setattr(cupy_on_cpu.cuda.runtime, "getDeviceProperties", lambda _: properties)
        forget()

    use("H100")
    return use


class Calls:
    """A call of an LSTM and of its gradient, and NumPy's results."""

    def __init__(self, cupy: Any, B: int = B, H: int = H, dtype: str = "float32") -> None:
        rng = np.random.default_rng(0)

        def draw(*shape: int) -> Any:
            return (rng.standard_normal(shape) / 2).astype(dtype)

        self.cupy, self.dtype = cupy, dtype
        given = draw(T, B, I), draw(B, H), draw(B, H), draw(I + H, 4 * H)
        self.given, self.b, self.dh = given, draw(4 * H), draw(T, B, H)
        self.expected = self.results(lambda a: a)

    def results(self, there: Callable[[Any], Any], **more: Any) -> list[Any]:
        given = [there(a) for a in self.given]
        out = cupyrnn.block_lstm(*given, there(self.b), **more)
        grads = cupyrnn.block_lstm_grad(*given, *out, None, there(self.dh), **more)
        return [*out, *grads]

    def are_right(self) -> list[bytes]:
        found = [self.cupy.asnumpy(a) for a in self.results(self.cupy.asarray)]
        for a, e in zip(found, self.expected, strict=True):
            assert_close(a, e, self.dtype, "result")
        return [a.tobytes() for a in found]

    def warn_once(self, message: str) -> list[bytes]:
        """Call three times; only the first time there is a warning, and only one."""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = [self.are_right() for _ in range(3)]
        texts = [str(w.message) for w in seen]
        assert len(texts) == 1, texts
        assert message in texts[0]
        assert seen[0].filename == __file__
        assert found[1] == found[2]
        return found[0]


def kept(path: Path) -> Any:
    (file,) = path.glob("kept/gpu-*.json")
    return json.loads(file.read_text())


def taken() -> list[str]:
    """Return the kernels of what this process has taken, the loop's too."""
    return ["loop" if one is None else one.of[-1] for one in persistent._taken.values()]


@pytest.mark.parametrize("name", CARDS)
def test_the_right_kernel_is_taken(
    use_card: Any, cupy_on_cpu: Any, tmp_path: Path, name: str
) -> None:
    """Nothing has to run first, and nobody says anything."""
    use_card(name)
    calls = Calls(cupy_on_cpu)
    bits = calls.are_right()
    expected = "loop" if name == "T4" else "rows"
    assert taken() == [expected] * 2
    if name == "T4":
        return
    found = kept(tmp_path)
    assert found["card"] == CARDS[name].name
    assert found["processors"] == CARDS[name].processors
    assert [*found["verdicts"].values()] == ["", ""]
    # The next process tries nothing.
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "try_kernel", None)
        assert calls.are_right() == bits


@pytest.mark.parametrize("how", ["loop", "rows"])
def test_what_is_asked_for_is_not_tried(
    use_card: Any, cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", how)
    monkeypatch.setattr(trial, "settle", None)
    Calls(cupy_on_cpu).are_right()


def test_a_wrong_number(
    use_card: Any, cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel is not used, in this process and in the next one."""
    plant(monkeypatch, "lstm", "rows", ("tanh_(zci)", "tanh_(2 * zci)"))
    calls = Calls(cupy_on_cpu)
    message = "does not use a kernel that is wrong on NVIDIA H100 80GB HBM3: steps_by_rows<Forward,"
    bits = calls.warn_once(message)
    assert sorted(taken()) == ["loop", "rows"]
    seen = [text for text in kept(tmp_path)["verdicts"].values() if text]
    assert len(seen) == 1
    assert "is off by" in seen[0]
    forget()
    assert calls.are_right() == bits
    device = choice.current_device()
    of = fit.Recurrence(lstm.FORWARD_KERNELS, np.dtype("f4"), (B, H), T, device, True)
    assert "rows is wrong on this GPU: a result is off by" in choice.choose(of).reason


LOST = {
    "grid": ("grid", "float32", "exchange.send(to + n, word_of"),
    "tensor cores": ("grid", "float16", "exchange.send(to + own / 2, word"),
    "cluster": ("cluster", "float32", "exchange.send(\n                reinterpret_cast"),
}


@pytest.mark.parametrize("frame", LOST)
def test_a_wait_in_vain(
    use_card: Any, cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, frame: str
) -> None:
    """All waits of the trial end, and the device goes on."""
    mode, dtype, lost = LOST[frame]
    FRAMES[frame].ask(monkeypatch)
    monkeypatch.delenv("CUPYRNN_PERSISTENT")
    of = fit.Recurrence(LSTM[0], np.dtype(dtype), (9, 33), T, choice.current_device(), True)
    candidate = fit.by_mode(mode, of)
    plant(monkeypatch, "lstm", mode, (lost, f"if (unit / 2) {lost}"))
    of = of._replace(kernels=lstm.FORWARD_KERNELS)
    # A stand-in for clusters sees that a block ends without numbers that others sent.
    message = "a block waits in vain" if mode == "grid" else "ends before numbers have come"
    with pytest.warns(RuntimeWarning, match=f"{message}.*; please report it"):
        assert message in trial.try_kernel(of, candidate)
    (seen,) = kept(tmp_path)["verdicts"].values()
    assert message in seen


def change_a_bit(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a block had not waited: small errors that come and go."""
    run, launches = trial._OnDevice.run, []

    def other(self: Any) -> Any:
        found = run(self)
        launches.append(persistent._here.trial.launch)
        if launches[-1] is not None and launches.count(launches[-1]) > 1:
            found[0][0, 0] *= 1 + 1e-6
        return found

    monkeypatch.setattr(trial._OnDevice, "run", other)


def fill_the_memory(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(*_: Any, **__: Any) -> Any:
        raise cupy.cuda.memory.OutOfMemoryError("all is in use")

    monkeypatch.setattr(trial, "_OnDevice", is_full)


def raise_status(status: int) -> Callable[[Any, pytest.MonkeyPatch], list[int]]:
    """Return a function that makes launches of kernels over all steps raise an error."""

    def change(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        driver, started = cupy.cuda.driver, []
        launch = driver.launchKernel

        def start(function: int, *args: Any) -> None:
            if "steps_by" in fake_cupy._functions[function].launched.name:
                started.append(function)
                error = driver.CUDADriverError(f"status {status}")
                error.status = status
                raise error
            launch(function, *args)

        monkeypatch.setattr(driver, "launchKernel", start)
        return started

    return change


# What goes wrong, the warning, and whether it is kept: a launch that is refused says nothing of the
# kernel, and the next process tries it again.
FAULTS: dict[str, tuple[Any, str, bool]] = {
    "another bit": (change_a_bit, "its results have other bits beside a busy kernel", True),
    "an error": (raise_status(1), "status 1; please report it", True),
    "an error of the device": (raise_status(719), "status 719; please report", True),
    "refused": (raise_status(720), "otherwise, as its launch failed: .*720", False),
    "no memory": (fill_the_memory, "its launch failed: OutOfMemoryError", False),
}


@pytest.mark.parametrize(("change", "message", "is_kept"), FAULTS.values(), ids=FAULTS)
def test_a_fault(
    use_card: Any, cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    change: Any, message: str, is_kept: bool,
) -> None:  # fmt: skip
    """The loop computes the call; forward and backward warn once, and try nothing again."""
    started = change(cupy_on_cpu, monkeypatch)
    calls = Calls(cupy_on_cpu)
    with pytest.warns(RuntimeWarning, match=message) as seen:
        calls.are_right()
    calls.are_right()
    assert len(seen) == 2
    assert started is None or len(started) == 2
    assert {*taken()} == {"loop"}
    assert bool(list(tmp_path.glob("kept/*"))) == is_kept


def test_a_damaged_file(use_card: Any, cupy_on_cpu: Any, tmp_path: Path) -> None:
    calls = Calls(cupy_on_cpu)
    bits = calls.are_right()
    (path,) = tmp_path.glob("kept/gpu-*.json")
    path.write_text('{"card": ')
    forget()
    assert calls.warn_once("tries its kernels anew") == bits
    assert len(kept(tmp_path)["verdicts"]) == 2


def test_a_file_that_cannot_be_written(
    use_card: Any, cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is timed then, so that two runs have the same bits."""
    monkeypatch.setenv("CUPYRNN_TUNE", "1")
    choice._tune.cache_clear()
    (tmp_path / "kept").touch()
    monkeypatch.setattr(trial, "times_of", None)
    Calls(cupy_on_cpu).warn_once("cannot keep what it found out about its kernels")


def test_nothing_is_tried_in_a_capture(
    use_card: Any, cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stream = SimpleNamespace(ptr=0, is_capturing=lambda: True)
    with monkeypatch.context() as patch:
        patch.setattr(cupy_on_cpu.cuda, "get_current_stream", lambda: stream)
        patch.setattr(trial, "try_kernel", None)
        Calls(cupy_on_cpu).are_right()
    assert not taken()
    assert not list(tmp_path.glob("kept/*"))


def test_eight_threads_at_a_first_call(
    use_card: Any, cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them tries a kernel, and the others wait for its verdict."""
    tried, try_kernel = [], trial.try_kernel

    def counted(of: Any, candidate: Any) -> str:
        tried.append(of.kernels.name)
        return try_kernel(of, candidate)

    monkeypatch.setattr(trial, "try_kernel", counted)
    calls, found = Calls(cupy_on_cpu), []
    threads = [threading.Thread(target=lambda: found.append(calls.are_right())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(bits == found[0] for bits in found)
    assert sorted(tried) == ["lstm_backward", "lstm_forward"]


PROCESS = """
import sys
from without_a_gpu.cuda_on_cpu import fake_cupy
from without_a_gpu.new_process import forget
sys.modules["cupy"] = cupy = fake_cupy.module()
import numpy as np
import cupyrnn
from cupyrnn.kernels import persistent, timed
a = [cupy.asarray(np.full(shape, 0.1, "f4")) for shape in ((7, 5, 3), (5, 17), (5, 17), (20, 68))]
out = cupyrnn.block_lstm(*a, cupy.asarray(np.zeros(68, "f4")))
print(cupy.asnumpy(out.h).tobytes().hex(), [one.of[-1] for one in persistent._taken.values()])
"""


def test_two_processes_at_a_first_call(use_card: Any, tmp_path: Path) -> None:
    """Both may try the kernel; what they keep is whole."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("CUPYRNN_PERSISTENT", None)
    command = [sys.executable, "-W", "error", "-c", PROCESS]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert printed[0] == printed[1]
    assert printed[0].endswith("['rows']\n")
    assert [*kept(tmp_path)["verdicts"].values()] == [""]
    assert len(list((tmp_path / "kept").iterdir())) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_fork_during_a_trial(use_card: Any, cupy_on_cpu: Any) -> None:
    """A lock that another thread of the parent holds is not held in the child."""
    calls = Calls(cupy_on_cpu)
    holds, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with timed.alone():
            holds.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: there are threads
        child = os.fork()
    if child == 0:
        try:
            calls.are_right()
            os._exit(0)
        finally:
            os._exit(1)
    go_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture
def timing(use_card: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that sets the milliseconds of kernels, by direction and kernel."""
    monkeypatch.setenv("CUPYRNN_TUNE", "")
    choice._tune.cache_clear()
    timed_sizes: list[Any] = []

    def use(**ms: float) -> list[Any]:
        def times_of(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
            for call in calls.values():
                call()
            timed_sizes.append([*calls])
            return {way: ms.get(way, 5.0) for way in calls}

        monkeypatch.setattr(trial, "times_of", times_of)
        return timed_sizes

    return use


def test_kernels_are_timed_on_a_card_without_a_table(
    use_card: Any, timing: Any, cupy_on_cpu: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each size, where B is rounded up to a power of two."""
    use_card("T4")
    seen = timing(loop=4.0, rows=1.0, grid=2.0)
    calls = Calls(cupy_on_cpu)
    with caplog.at_level("INFO", "cupyrnn"):
        bits = calls.are_right()
    assert seen == [["loop", "rows", "grid"]] * 2
    assert taken() == ["rows"] * 2
    assert "lstm_forward float32 few, H = 17, B = 8: rows" in caplog.text
    assert kept(tmp_path)["fastest"] == {
        f"lstm_{direction} float32 few": [[H, 8, "rows", ""]]
        for direction in ("forward", "backward")
    }
    assert calls.are_right() == bits
    Calls(cupy_on_cpu, B=7).are_right()
    assert len(seen) == 2
    Calls(cupy_on_cpu, B=9).are_right()
    assert len(seen) == 4
    forget()
    assert calls.are_right() == bits
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("name", "tune", "times"), [("H100", "", 0), ("H100", "1", 2), ("H20", "", 2), ("A10", "0", 0)]
)
def test_who_is_timed(
    use_card: Any, timing: Any, cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch,
    name: str, tune: str, times: int,
) -> None:  # fmt: skip
    """By default cards without a table. A loop that is as fast is taken."""
    monkeypatch.setenv("CUPYRNN_TUNE", tune)
    use_card(name)
    seen = timing(loop=2.0, rows=1.99, cluster=9.0, grid=9.0)
    Calls(cupy_on_cpu).are_right()
    assert len(seen) == times
    assert taken() == ["loop" if times else "rows"] * 2


def test_a_value_of_the_variable_that_is_refused(
    use_card: Any, cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPYRNN_TUNE", "yes")
    choice._tune.cache_clear()
    with pytest.raises(ValueError, match=r"^CUPYRNN_TUNE is 'yes', expected 0 or 1$"):
        Calls(cupy_on_cpu).are_right()


@pytest.mark.parametrize("mode", ["rows", "grid", "cluster"])
@pytest.mark.parametrize("page", [lstm, gru_page, gru_reset_after, simple_rnn])
def test_every_kernel_passes_its_trial(use_card: Any, mode: str, page: Any) -> None:
    """Plain calls, calls with options and calls with lengths, forward and backward."""
    for kernels in (page.FORWARD_KERNELS, page.BACKWARD_KERNELS):
        for plain, padded in fit.KINDS:
            given = kernels, np.dtype("f4"), (B, H), T, choice.current_device(), plain, padded
            of = fit.Recurrence(*given)
            assert trial.try_kernel(of, fit.by_mode(mode, of)) == ""
