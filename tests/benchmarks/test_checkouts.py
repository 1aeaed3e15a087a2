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
from timing import BACKWARD, BOTH, FORWARD, PASSES

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


def test_compare() -> None:
    """A slow spell hits both of a pair; a single slow call of a block does not count."""
    quiet = ([(0.002, 0.006)] * 3, [(0.001, 0.006)] * 3)
    loud = ([(0.02, 0.06), (0.02, 0.06), (9.0, 9.0)], [(0.01, 0.06)] * 3)
    rows = checkouts.compare(CASE, checkouts.NUMPY, 1, [[quiet, loud, quiet]] * 7)
    found = {row.what: row for row in rows}
    assert list(found) == [*PASSES]
    assert found[FORWARD].ratio == pytest.approx(2)
    assert found[FORWARD].low == pytest.approx(2)
    assert found[FORWARD].verdict == "**slower**"
    assert found[FORWARD].more == pytest.approx(0.001)
    assert found[BACKWARD].ratio == pytest.approx(1)
    assert found[BACKWARD].verdict == ""
    assert found[BOTH].ratio == pytest.approx(8 / 7)
    # Where one process of seven differs, that is no difference.
    other = checkouts.compare(CASE, checkouts.NUMPY, 1, [[quiet]] * 6 + [[quiet[::-1]]])
    assert other[0].ratio == pytest.approx(2)
    assert other[0].verdict == ""
    # Fewer than six say nothing for sure.
    assert checkouts.compare(CASE, checkouts.NUMPY, 1, [[quiet]] * 5)[0].verdict == ""
    (swapped,) = (
        row.verdict
        for row in checkouts.compare(CASE, checkouts.NUMPY, 1, [[quiet[::-1]]] * 8)
        if row.what == FORWARD
    )
    assert swapped == "faster"


def test_report_has_what_is_slower_first() -> None:
    pairs = [[([(0.002, 0.006)], [(0.001, 0.006)])]] * 6
    text = checkouts.report(["the machine"], checkouts.compare(CASE, checkouts.NUMBA, 2, pairs))
    slower, every = text.split("## All rows")
    assert "the machine" in slower
    assert "Rows: 3, of them slower than the other: 2." in slower
    row = f"| {CASE} | Numba | 2 | forward | 2 | 1 | 2.000 | 2.000–2.000 | **slower** | +1000.0 |"
    assert row in slower
    assert row in every
    assert every.count(str(CASE)) == 3


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
    every = done.stdout.split("## All rows")[1]
    rows = [line for line in every.splitlines() if line.startswith(f"| {CASE} | NumPy")]
    assert [row.split(" | ")[3] for row in rows] == [*PASSES]
    assert " faster " in rows[0]
    assert float(rows[0].split(" | ")[5]) > 20  # ms of the other
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
