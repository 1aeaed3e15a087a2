"""
The cases of cpu.py through pytest-benchmark, and cpu.py itself.

    python -m pytest tests/benchmarks/test_cpu.py --benchmark-enable -s [-k 'BlockLSTM and float32']

times every row on all processors the process may run on: `taskset -c 0 python -m pytest ...` times
one thread. `env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE` lets OpenBLAS choose its kernel. Not
enabled, each op runs once at its smallest shape. Needs the `oracle` extra.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cases
import cpu
import numpy as np
import processes
import pytest
from cases import (
    BACKWARD,
    BOTH,
    CUPYRNN,
    EAGER,
    FLOOR,
    FORWARD,
    FUNCTION,
    PASSES,
    Case,
    Contestant,
    Timing,
)
from checks import TF_FLOAT16_TOLERANCE, assert_close

THREADS = len(cases.processors())
SMALLEST = [case for case in cases.all_cases() if cases.smallest(case)]
SECONDS_PER_ROW = 2.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is test_row:
        enabled = metafunc.config.getoption("benchmark_enable", default=False)
        metafunc.parametrize("case", cases.all_cases() if enabled else SMALLEST, ids=str)
        metafunc.parametrize("what", PASSES if enabled else [BOTH])


def peers(case: Case) -> list[Contestant]:
    try:
        return cases.peers(case)
    except ImportError:
        pytest.skip(f"needs {case.peer}: pip install 'cupyrnn[oracle]'")


def test_row(benchmark: Any, case: Case, what: str) -> None:
    """A round is a block of each peer and then one call, after one that is not timed."""
    mine, others = cases.ours(case), peers(case)
    sizes, rounds = dict.fromkeys((c.name for c in others), 1), 1
    if not benchmark.disabled:
        found = cases.measure([mine, *others], cases.QUICK, THREADS)
        seconds = {name: timing.seconds[BOTH] for name, timing in found.items()}
        others = [c for c in others if c.name in seconds]
        sizes = {c.name: cases.block_size(seconds[c.name]) for c in others}
        one_round = sum(max(s, cases.BLOCK_SECONDS) for s in seconds.values())
        rounds = max(cases.FULL.rounds, int(SECONDS_PER_ROW / one_round))
    times: dict[str, list[tuple[float, float]]] = {c.name: [] for c in others}

    def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
        for c in others:
            times[c.name] += cases.block(c, sizes[c.name], THREADS)
        cases.block(mine, 1, THREADS)
        return (mine.forward(),) if what == BACKWARD else (), {}

    calls = {FORWARD: mine.forward, BACKWARD: mine.backward}
    call = calls.get(what, lambda: mine.backward(mine.forward()))
    benchmark.pedantic(call, setup=setup, rounds=rounds)
    if not benchmark.disabled:
        median = benchmark.stats.stats.median
        text = f"\n{case}, {what}, {THREADS} threads: cupyrnn {cpu.digits(1e3 * median)} ms"
        if times:
            peer = min(cases.medians(t).seconds[what] for t in times.values())
            benchmark.extra_info |= {"peer_median_s": peer, "ratio": peer / median}
            text += f", {case.peer} {cpu.digits(1e3 * peer)} ms, ratio {peer / median:.2f}"
        print(text)


@pytest.mark.parametrize("case", [case for case in SMALLEST if case.peer], ids=str)
def test_peers_compute_the_same(case: Case) -> None:
    if case.sequence:
        # Rounding adds up over more steps, on both sides.
        case = case._replace(shape=(10, *case.shape[1:]))
    mine, *others = cases.ours(case), *peers(case)
    outputs = mine.forward()
    ours = mine.results(outputs, mine.backward(outputs))
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


def timing(forward: float, backward: float) -> Timing:
    return cases.medians([(forward, backward)] * 3)


def lines_of(text: str, *parts: str) -> list[str]:
    return [line for line in text.splitlines() if all(part in line for part in parts)]


def test_report() -> None:
    """The better of TensorFlow's two counts, and every row says whether it reached its aim."""
    case = Case("BlockLSTM", "float32", (100, 64, 512, 512))
    half = Case("BlockLSTM", "float16", (100, 1, 32, 32), cases.PEEPHOLE)
    timings = {CUPYRNN: timing(0.010, 0.020), EAGER: timing(0.009, 0.070)}
    timings |= {FUNCTION: timing(0.011, 0.048), FLOOR: timing(0.0080, 0.0195)}
    memory = dict.fromkeys(PASSES, 12.3)
    slow = {CUPYRNN: timing(0.02, 0.02), EAGER: timing(0.03, 0.05), FLOOR: timing(0.01, 0.01)}
    results = {
        1: {case: {"timings": timings, "memory": memory, "errors": {}}},
        2: {half: {"timings": slow, "memory": {}, "errors": {CUPYRNN: 4e-4, EAGER: 5e-3}}},
    }
    peaks = {(case, CUPYRNN): 41.0, (case, cases.TENSORFLOW): 30.0}
    text = cpu.report(["the machine"], results, peaks, [half, case])
    assert "the machine" in text
    assert "Rows with an aim: 7, of them short of it: 3." in text
    one, two = text.split("## 2 threads")
    one = one[one.index("## 1 thread\n") :]
    assert lines_of(
        one, "| forward |", "| 10 | 9 | 0.90 | ≥ 0.9 reached | 8 | 1.25 | ≤ 1.1 **short**"
    )
    assert lines_of(one, "| backward |", "| 20 | 48 | 2.40 | ≥ 2.4 reached | 19.5 | 1.03 |", "12.3")
    assert lines_of(one, "| forward+backward |", "| 30 | 59 | 1.97 | ≥ 2 **short**", "| 3 |")
    assert lines_of(
        two, "peephole", "| backward |", "| 20 | 50 | 2.50 | ≥ 3 **short** | 10 | 2.00 |"
    )
    assert lines_of(two, "BlockLSTMGrad", "| 4.0e-04 | 5.0e-03 | reached |")
    assert lines_of(two, "| 41 | 30 (TensorFlow) | ≤ 40 **short** |")
    assert len(lines_of(text, "**short**")) == 3 + 3 + 1


@pytest.mark.parametrize(
    ("case", "what", "aim"),
    [
        (Case("BlockLSTM", "float32", (100, 1, 32, 32)), BACKWARD, 1.7),
        (Case("BlockLSTM", "float32", (50, 16, 128, 128), "peephole"), BACKWARD, 2.16),
        (Case("BlockLSTM", "float32", (1000, 8, 64, 64)), FORWARD, 0.6),
        (Case("BlockLSTM", "float32", (100, 1, 32, 32)), BOTH, 0.9),
        (Case("BlockLSTM", "float16", (100, 1, 32, 32)), BACKWARD, 3.0),
        (Case("BlockLSTM", "float64", (100, 1, 32, 32)), FORWARD, 1.2),
        (Case("BlockLSTM", "float64", (100, 1, 32, 32), "peephole"), FORWARD, None),
        (Case("LSTMBlockCell", "float32", (1, 32, 32)), BACKWARD, None),
        (Case("LSTMBlockCell", "float32", (1, 32, 32), "peephole"), BACKWARD, 1.0),
        (Case("GRUBlockCell", "float32", (1, 32, 32)), BACKWARD, 1.2),
        (Case("cudnn_rnn gru", "float32", (100, 1, 32, 32)), BACKWARD, 1.0),
        (Case("cudnn_rnn lstm", "float32", (100, 1, 32, 32)), BACKWARD, 1.0),
        (Case("cudnn_rnn lstm", "float32", (50, 16, 128, 128)), BACKWARD, 0.85),
        (Case("cudnn_rnn lstm", "float32", (50, 16, 128, 128)), BOTH, 0.8),
        (Case("cudnn_rnn lstm", "float32", (50, 16, 128, 128), "lengths"), BOTH, 1.0),
        (Case("cudnn_rnn rnn_tanh", "float64", (100, 1, 32, 32)), BOTH, 1.2),
        (Case("block_gru", "float32", (100, 1, 32, 32)), BOTH, None),
    ],
    ids=str,
)
def test_aims(case: Case, what: str, aim: float | None) -> None:
    assert case in cases.all_cases()
    assert cases.ratio_aim(case, what) == aim


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
        np.zeros(3 * cases.MIB, np.int8)
        return np.zeros(cases.MIB, np.int8)

    c = Contestant("", lambda: np.zeros(2 * cases.MIB, np.int8), backward, lambda *_: {})
    peaks = cases.traced_peaks(c)
    assert peaks[FORWARD] == pytest.approx(2, abs=0.1)
    assert peaks[BACKWARD] == pytest.approx(3, abs=0.1)
    assert peaks[BOTH] == pytest.approx(5, abs=0.1)


def test_command(tmp_path: Path) -> None:
    out = tmp_path / "cpu.md"
    command = [sys.executable, Path(cpu.__file__), "--quick", "--threads", "1", "--out", out]
    command += ["--only", r"gru_block_cell float32 \(1,"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    text = out.read_text()
    assert done.stdout == text + "\n"
    assert cpu.processor() in text
    assert f"NumPy {np.__version__}" in text
    assert f"its kernel {processes.blas_kernel()}" in text
    rows = lines_of(text, "| (1, 32, 32) |")
    assert [row.split(" | ")[2] for row in rows] == [*PASSES]
    assert all(re.search(r"\| [\d.]+ \| – \| – \|", row) for row in rows)
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
