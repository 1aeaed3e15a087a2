"""cpu.py --against: the statistics, and the processes."""

from __future__ import annotations

import itertools
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import cases
import checkouts
import cpu
import numpy as np
import pytest
import timing
from cases import Case
from timing import FORWARD, PASSES

ROOT = Path(cpu.__file__).parents[2]
CASE = Case("lstm_block_cell", "float32", (1, 32, 32))


@pytest.mark.parametrize(("n", "left_out"), [(6, 0), (7, 0), (8, 0), (9, 1), (25, 7), (60, 21)])
def test_median_interval(n: int, left_out: int) -> None:
    """So many of the ordered values lie outside on either side, as tables of the sign test say."""
    values = [float(v) for v in np.random.default_rng(n).permutation(n)]
    assert timing.median_interval(values) == (left_out, n - 1 - left_out)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_median_interval_of_too_few(n: int) -> None:
    assert timing.median_interval([float(v) for v in range(n)]) == (0, n - 1)


def test_median_interval_covers() -> None:
    """All 2**7 ways that seven values lie beside the true median: 98.4% of them are covered."""
    found = [timing.median_interval(list(v)) for v in itertools.product([-1.0, 1.0], repeat=7)]
    assert statistics.mean(low <= 0 <= high for low, high in found) == 126 / 128


QUIET = ([(0.002, 0.006)] * 3, [(0.001, 0.006)] * 3)


def test_compare() -> None:
    """A slow spell hits both of a pair; a single slow call of a block does not count."""
    loud = ([(0.02, 0.06), (0.02, 0.06), (9.0, 9.0)], [(0.01, 0.06)] * 3)
    forward, backward, both = checkouts.compare([[QUIET, loud, QUIET]] * 7)
    assert (forward.what, backward.what, both.what) == PASSES
    assert forward.ratio == pytest.approx((2, 2, 2, 7))
    assert (forward.this, forward.other) == (0.002, 0.001)
    assert (forward.verdict, backward.verdict) == ("**slower**", "")
    assert backward.ratio.value == pytest.approx(1)
    assert both.ratio.value == pytest.approx(8 / 7)
    # Where one process of seven differs, that is no difference; fewer than six say nothing.
    for starts in ([[QUIET]] * 6 + [[QUIET[::-1]]], [[QUIET]] * 5):
        assert checkouts.compare(starts)[0].ratio.value == pytest.approx(2)
        assert checkouts.compare(starts)[0].verdict == ""
    assert checkouts.compare([[QUIET[::-1]]] * 8)[0].verdict == "faster"


def test_report_has_what_is_slower_first() -> None:
    keys = [(checkouts.NUMBA, 2, CASE), (checkouts.NUMPY, 1, CASE)]
    measured = dict(zip(keys, ([[QUIET[::-1]]] * 6, [[QUIET]] * 6), strict=True))
    text = checkouts.report(["the machine"], measured)
    assert "the machine" in text
    assert "Rows: 6, of them slower than the other: 2." in text
    first, *others = (line for line in text.splitlines() if str(CASE) in line)
    end = "2.00 (2.00–2.00) | **slower** |"
    assert first == f"| {CASE} | NumPy | 1 | forward | 2 | 1 | {end}"
    assert others[0].endswith("| **slower** |")
    assert others[-1] == f"| {CASE} | Numba | 2 | forward | 1 | 2 | 0.50 (0.50–0.50) | faster |"


def command(other: Path, *more: str | Path) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, cpu.__file__, "--against", other, "--quick"]
    only = ["--only", r"^lstm_block_cell float32 \(1, 32, 32\)$"]
    return subprocess.run([*script, *only, *more], capture_output=True, text=True)


SLOWER = """
import time
_as_fast = lstm_block_cell

def lstm_block_cell(*args, **kwargs):
    time.sleep(0.02)
    return _as_fast(*args, **kwargs)
"""


@pytest.mark.slow
def test_command(tmp_path: Path) -> None:
    """Another checkout is measured by its own code: here one whose calls take twice as long."""
    slow = tmp_path / "slow"
    # Its own copy, lest Numba compile anew what it kept for functions of this name.
    shutil.copytree(ROOT / "cupyrnn", slow / "cupyrnn")
    with (slow / "cupyrnn" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write(SLOWER)
    out = tmp_path / "checkouts.md"
    done = command(slow, "--out", out, "--starts", "6")
    assert done.returncode == 0, done.stderr
    assert done.stdout == out.read_text() + "\n"
    rows = [line for line in done.stdout.splitlines() if line.startswith(f"| {CASE} | NumPy")]
    cells = {row.split(" | ")[3]: row.split(" | ") for row in rows}
    assert {*cells} == {*PASSES}
    assert cells[FORWARD][-1] == "faster |"
    assert float(cells[FORWARD][5]) > 20  # ms of the other
    assert f"other: {slow}" in done.stdout


def test_a_checkout_that_does_not_work(tmp_path: Path) -> None:
    (tmp_path / "cupyrnn").mkdir()
    (tmp_path / "cupyrnn" / "__init__.py").write_text("raise ImportError('broken')")
    done = command(tmp_path, "--starts", "1")
    assert done.returncode == 1
    assert "**A process failed, rows are missing: NumPy**" in done.stdout
    assert "broken" in done.stderr


def test_all_cases_are_compared() -> None:
    done = subprocess.run(
        [sys.executable, cpu.__file__, "--against", ROOT, "--list"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [str(case) for case in cases.all_cases()]
    assert "cudnn_rnn gru float32 (1, 1, 512, 512)" in done.stdout
