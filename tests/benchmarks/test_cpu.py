"""cpu.py: its cases at their smallest shapes, its aims, and what it makes of what it measured."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import cases
import cpu
import numpy as np
import pages
import processes
import pytest
import timing
from cases import CUPYRNN, EAGER, FLOOR, FUNCTION, NUMBA, Case
from checks import TF_FLOAT16_TOLERANCE, assert_close
from timing import BACKWARD, BOTH, FORWARD, PASSES, Contestant, Timing

SMALLEST = [case for case in cases.all_cases() if cases.smallest(case)]


def peers(case: Case) -> list[Contestant]:
    try:
        return cases.peers(case)
    except ImportError:
        pytest.skip(f"needs {case.peer}: pip install '.[oracle]'")


@pytest.mark.parametrize("case", SMALLEST, ids=str)
def test_peers_compute_the_same(case: Case) -> None:
    """Or that it runs, where there is no peer."""
    if case.sequence:
        # Rounding adds up over more steps, on both sides.
        case = case._replace(shape=(10, *case.shape[1:]))
    mine = cases.ours(case)
    outputs = mine.forward()
    ours = mine.results(outputs, mine.backward(outputs))
    others = peers(case)
    for other in others:
        outputs = other.forward()
        theirs = other.results(outputs, other.backward(outputs))
        assert theirs.keys() <= ours.keys()
        assert any("grad" in name or "backprop" in name or "d_" in name for name in theirs)
        for name, expected in theirs.items():
            a = np.asarray(ours[name], np.float64)
            if case.dtype == "float16":
                assert cases.relative_error(a, expected) <= TF_FLOAT16_TOLERANCE, name
            else:
                assert_close(a, expected, case.dtype, f"{other.name} {name}")


def took(forward: float, backward: float, *others: tuple[float, float]) -> Timing:
    """Return a timing of six rounds: these seconds, and of the last ones what else is given."""
    blocks = [[(forward, backward)]] * (6 - len(others)) + [[other] for other in others]
    found = [timing.block_medians(times) for times in blocks]
    return Timing({what: [entry[what] for entry in found] for what in PASSES}, 12)


def lines_of(text: str, *parts: str) -> list[str]:
    return [line for line in text.splitlines() if all(part in line for part in parts)]


def test_report() -> None:
    """The better of TensorFlow's two counts, and every row says whether it reached its aims."""
    case = Case("BlockLSTM", "float32", (100, 64, 512, 512))
    half = Case("BlockLSTM", "float16", (100, 1, 32, 32), cases.PEEPHOLE)
    small = Case("BlockLSTM", "float32", (100, 1, 32, 32))
    timings = {CUPYRNN: took(0.010, 0.020), EAGER: took(0.009, 0.070)}
    timings |= {FUNCTION: took(0.011, 0.048), FLOOR: took(0.0080, 0.0195)}
    timings[NUMBA] = took(0.009, 0.021, (0.009, 0.010))
    memory = dict.fromkeys(PASSES, 12.3)
    slow = {CUPYRNN: took(0.02, 0.05), EAGER: took(0.03, 0.04), FLOOR: took(0.01, 0.01)}
    results = {
        1: {case: {"timings": timings, "memory": memory}},
        2: {
            half: {"timings": slow, "memory": {}},
            small: {"timings": slow, "memory": {}},
        },
    }
    text = cpu.report(["the machine"], results, [small, half, case])
    assert "the machine" in text
    assert "2 of 4 rows with a target miss it." in text
    # What lacks most comes first.
    first, second = lines_of(text, "| backward | ratio")
    assert "| ratio with Numba | 2.29 (2.29–4.80) | ≥ 3 short within the spread |" in first
    assert "| 2 | BlockLSTM float32 (100, 1, 32, 32) | backward | ratio |" in second
    assert "| 0.80 (0.80–0.80) | ≥ 1 **short** |" in second
    one, two = text.split("## 2 threads")
    one = one[one.index("## 1 thread\n") :]
    assert lines_of(one, "| forward |", "| 9 | 10 | 0.90 (0.90–0.90) |  | 9 | 1.00", "| 8 | 1.25 |")
    assert lines_of(
        one, "| backward |", "| 48 | 20 | 2.40", "| ≥ 2 reached | 21 | 2.29", "| 12.3 |"
    )
    assert lines_of(one, "| forward+backward |", "| 59 | 30 | 1.97 (1.97–1.97) |  |", "| 12 |")
    assert lines_of(two, "| backward |", "| 40 | 50 | 0.80", "| ≥ 1 **short** | 10 |")


def test_ratio() -> None:
    """It is taken within rounds: what slows both says nothing, and one that ran once is told."""
    quiet, loud = took(2.0, 1.0, (20.0, 10.0)), took(1.0, 1.0, (10.0, 10.0))
    assert timing.ratio(quiet, loud, FORWARD) == (2.0, 2.0, 2.0, 6)
    found = timing.ratio(took(2.0, 1.0, (3.0, 1.0), (5.0, 1.0)), took(1.0, 1.0), FORWARD)
    assert str(found) == "2.00 (2.00–5.00)"
    once = Timing({FORWARD: [3.0]}, 1)
    assert str(timing.ratio(once, took(1.0, 1.0), FORWARD)) == "3.00 (once)"


def test_step_aim() -> None:
    """25 µs are added to the products of a single step."""
    case = Case("cudnn_rnn lstm", "float32", (1, 1, 128, 128))
    timings = {CUPYRNN: took(100e-6, 100e-6), FLOOR: took(5e-6, 0.0)}
    forward, backward, both = cpu.rows(case, {"timings": timings, "memory": {}}, 1)
    assert forward.aims[FLOOR].value.value == pytest.approx(100 / 30)
    assert forward.aims[FLOOR].reached
    larger = case._replace(shape=(1, 1, 512, 512))
    assert not cpu.rows(larger, {"timings": timings, "memory": {}}, 1)[0].aims[FLOOR].reached
    assert backward.aims[FLOOR].bound == 4
    assert FLOOR not in both.aims


def test_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contestants begin in turn; nobody is timed whose kernels a long one has too."""
    # Not by the time that a call takes: that of a busy machine differs from call to call.
    monkeypatch.setattr(timing, "block_size", lambda _: 3)
    order: list[str] = []

    def contestant(name: str, seconds: float = 0.0) -> Contestant:
        def forward() -> None:
            order.append(name)
            time.sleep(seconds)

        return Contestant(name, forward, str, lambda *_: {}, "a" if name == "b" else "")

    found = timing.measure([contestant("a"), contestant("b")], timing.Limits(0.0, 4), 1)
    assert found.keys() == {"a", "b"}
    assert all(len(found["a"].rounds[what]) == 4 for what in PASSES)
    assert found["a"].repetitions == found["b"].repetitions == 4 * 3
    turns = [name for name, _ in itertools.groupby(order)]
    assert "".join(turns) == "ab" + "abab" + "a"
    long = contestant("a", 1.1 * timing.LONG_CALL)
    assert timing.measure([long, contestant("b")], timing.Limits(0.0, 1), 1).keys() == {"a"}


def test_a_long_first_call_does_not_make_blocks_short() -> None:
    """PyTorch's first call takes 0.2 s, those after it less than a ms: cold ones took three."""
    calls: list[float] = []

    def forward() -> None:
        calls.append(0.0 if calls else 1.1 * timing.LONG_CALL)
        time.sleep(calls[-1])

    contestant = Contestant("a", forward, str, lambda *_: {})
    found = timing.measure([contestant], timing.Limits(0.0, 2), 1)
    assert found["a"].repetitions > 2 * 100


@pytest.mark.parametrize(
    ("case", "what", "name", "aim", "with_two"),
    [
        (Case("BlockLSTM", "float32", (100, 1, 32, 32)), BACKWARD, CUPYRNN, 1.1, 1.0),
        (Case("BlockLSTM", "float32", (50, 16, 128, 128), "peephole"), BACKWARD, NUMBA, 3.0, 3.0),
        (Case("BlockLSTM", "float32", (1000, 8, 64, 64)), FORWARD, NUMBA, 1.3, 1.2),
        (Case("BlockLSTM", "float32", (100, 32, 256, 256)), FORWARD, NUMBA, 1.0, 0.95),
        (Case("BlockLSTM", "float32", (1000, 8, 64, 64)), FORWARD, CUPYRNN, None, None),
        (Case("BlockLSTM", "float32", (50, 16, 128, 128)), BOTH, NUMBA, None, None),
        (Case("BlockLSTM", "float64", (100, 1, 32, 32)), BACKWARD, CUPYRNN, None, None),
        (Case("LSTMBlockCell", "float32", (1, 32, 32)), FORWARD, NUMBA, 1.0, 1.0),
        (Case("GRUBlockCell", "float32", (1, 32, 32)), BACKWARD, CUPYRNN, 0.6, 0.6),
        (Case("cudnn_rnn lstm", "float32", (100, 1, 32, 32)), BOTH, NUMBA, 1.8, 1.8),
        (Case("cudnn_rnn lstm", "float32", (100, 32, 256, 256)), BOTH, NUMBA, 1.1, 1.0),
        (Case("cudnn_rnn gru", "float32", (100, 32, 256, 256)), BOTH, NUMBA, 1.1, 1.05),
        (Case("cudnn_rnn lstm", "float32", (100, 1, 32, 32)), BACKWARD, NUMBA, None, None),
        (Case("cudnn_rnn lstm", "float32", (100, 1, 32, 32)), BOTH, CUPYRNN, None, None),
    ],
    ids=str,
)
def test_aims(case: Case, what: str, name: str, aim: float | None, with_two: float | None) -> None:
    assert case in cases.all_cases()
    assert [cases.ratio_aim(case, what, name, threads) for threads in (1, 2)] == [aim, with_two]


def test_what_has_an_aim_is_timed_unless_asked_otherwise() -> None:
    """But float16 and the very largest shape, which take TensorFlow seconds."""
    left_out = [
        case
        for case in cases.all_cases()
        if cases.rare(case) and cases.ratio_aim(case, BACKWARD, CUPYRNN, 1) is not None
    ]
    assert all(
        case.dtype == "float16" or case.op == "BlockLSTMV2" or case.shape == cases.SEQUENCES[-1]
        for case in left_out
    )


def test_products_of_full_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written step by step or all at once, one layer has the same products."""
    case = Case("cudnn_rnn lstm", "float32", (5, 3, 4, 6))
    T, B, I, H = case.shape
    forward, backward = cases.products(case)
    assert forward == [(1, T * B, I, 4 * H), (T, B, H, 4 * H)]
    assert backward[0] == (T, B, 4 * H, H)
    assert sum(n * m * k * j for n, m, k, j in backward) == 2 * T * B * 4 * H * (I + H)
    assert cases.products(case._replace(op="BlockLSTM")) == (forward, backward)
    monkeypatch.setattr(cases, "lengths", lambda case: [T] * B)
    assert cases.products(case) == (forward, backward)


def test_traced_peaks() -> None:
    """Results count, and scratch memory that is gone by the end."""

    def backward(_: Any) -> Any:
        np.zeros(3 * timing.MIB, np.int8)
        return np.zeros(timing.MIB, np.int8)

    c = Contestant("", lambda: np.zeros(2 * timing.MIB, np.int8), backward, lambda *_: {})
    peaks = timing.traced_peaks(c)
    assert peaks[FORWARD] == pytest.approx(2, abs=0.1)
    assert peaks[BACKWARD] == pytest.approx(3, abs=0.1)
    assert peaks[BOTH] == pytest.approx(5, abs=0.1)


def test_command(tmp_path: Path) -> None:
    out = tmp_path / "cpu.md"
    command = [sys.executable, Path(cpu.__file__), "--quick", "--threads", "1", "--out", out]
    command += ["--all", "--only", r"gru_block_cell float32 \(1,"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    text = out.read_text()
    assert done.stdout == text + "\n"
    assert pages.processor() in text
    assert f"NumPy {np.__version__}" in text
    assert f"its kernel {processes.blas_kernel()}" in text
    rows = lines_of(text, "| (1, 32, 32) |")
    assert [row.split(" | ")[2] for row in rows] == [*PASSES]
    assert all(re.search(r"\| – \| [\d.]+ \| – \|", row) for row in rows)
    assert "1 threads, gru_block_cell float32 (1, 32, 32)" in done.stderr


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in processes.OPENBLAS_VARIABLES:
        monkeypatch.setenv(name, "Nehalem")
    found = processes.environment(3)
    assert not found.keys() & {*processes.OPENBLAS_VARIABLES}
    assert {found[name] for name in processes.THREAD_VARIABLES} == {"3"}
    assert found["PATH"] == os.environ["PATH"]


def test_blas_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one that OpenBLAS chooses, whatever the machine sets."""
    chosen = processes.blas_kernel()
    assert re.fullmatch(r"\w+|unknown.*", chosen)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    assert processes.blas_kernel() == chosen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "no case"),
        (["--threads", "4096"], "processors to run on"),
        (["--against", "nowhere"], "no checkout of cupyrnn"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cpu.main(arguments)
    assert message in capsys.readouterr().err


def test_a_block_begins_when_the_threads_of_the_one_before_sleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OpenBLAS's threads spin for 0.1 s after a product, and took a processor from the next."""

    class Clock:
        """A process one of whose threads works until a time."""

        now, works_until = 0.0, 0.0

        def perf_counter(self) -> float:
            return self.now

        def process_time(self) -> float:
            return min(self.now, self.works_until)

        def sleep(self, seconds: float) -> None:
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    for threads, works_until, begins in [(1, 0.1, 0), (2, 0.0, 0), (2, 0.1, 0.1), (2, 1e9, 2)]:
        clock.now, clock.works_until = 0.0, works_until
        timing.settle(threads)
        assert begins <= clock.now <= begins + 3 * timing.IDLE_SECONDS


def test_numba_has_columns_where_it_is_installed(
    compiled_loops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "_driver", cases._driver.__wrapped__)
    found = cases.with_numba(Case("lstm_block_cell", "float32", (1, 2, 3)))
    assert found is not None
    assert found.name == NUMBA
