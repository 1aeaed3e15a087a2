"""Check and time the kernels of every cell at many sizes, and keep the fastest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pages
from torch_nets import TorchNet

from cupyrnn.device import cli
from cupyrnn.driver.trial import TIMED_STEPS
from cupyrnn.kernels import choice, timed

from .cases import Case, arguments_of
from .problems import CELLS as CELLS_IN_TURN
from .problems import NETS, Problem
from .pytorch import DEVICE
from .timing import Run, Timer
from .worker import be_strict

TESTS = Path(__file__).parents[2] / "without_a_gpu"


class Sizes(NamedTuple):
    """The sizes to time, the most important first."""

    tests: tuple[str, ...]  # the files of the kernels' tests, then an expression for pytest -k
    dtypes: tuple[str, ...]
    units: tuple[int, ...]
    batches: tuple[int, ...]

    def problems(self) -> Iterator[Problem]:
        """Yield the problems, each with the T of the calls that check values."""
        every = product(CELLS_IN_TURN, self.units, self.batches, self.dtypes)
        for cell, H, B, dtype in every:
            yield Problem(cell, dtype, TIMED_STEPS, B, H, general=False)


SIZES = {
    "small": Sizes(
        ("test_rows.py", "test_all_steps.py", "rows or hybrid or cluster"),
        ("float32",),
        (64, 128, 32, 16, 48, 96, 192, 256),
        (16, 1, 528, 132, 64),
    ),
    "blocks": Sizes(
        ("test_grid.py", "test_all_steps.py", "grid or cluster"),
        ("float16", "float32"),
        (256, 512, 1024, 384, 192, 768, 160, 1000),
        (16, 32, 64, 1, 256),
    ),
}


def dry(sizes: Sizes) -> Sizes:
    """Return tiny sizes."""
    return sizes._replace(dtypes=sizes.dtypes[:1], units=(16,), batches=(3,))


def tests_pass(sizes: Sizes, seconds: float, *, only_found: bool) -> bool:
    """Run the tests of the kernels on the GPU. Stop at the first failure or at the time limit."""
    *files, names = sizes.tests
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-x", "-k", names]
    command += ["--collect-only"] * only_found + [str(TESTS / file) for file in files]
    try:
        return subprocess.run(command, timeout=seconds, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"no test of the kernels failed within {seconds:.0f} s; not all of them ran")
        return True


def torch_us(timer: Timer, torch: Any, problem: Problem, what: str) -> float | None:
    """Return PyTorch's device time of a step in microseconds, None if it has no such op."""
    if torch is None or problem.cell not in NETS:
        return None
    T = TIMED_STEPS
    case = Case(problem.cell, T, problem.B, problem.H, problem.dtype)
    _, arguments, cotangents = arguments_of(case)
    net = TorchNet(torch, arguments, cotangents["output"], packed=False, device=DEVICE)
    run = Run(lambda _: net.forward())
    if what != "forward":
        run = Run(net.backward, net.forward)
    timer.warm_up(run)
    return 1e3 * timer.queued(run, timer.eager(run)["host_ms"])["queued_ms"] / T


def markdown(environment: dict[str, Any], rows: list[list[str]], left: list[str]) -> str:
    """Return the results as a page."""
    lines = [f"# Kernels on {environment['device']}", ""]
    lines += [f"* {name}: {value}" for name, value in environment.items()]
    lines += ["", "Device time of a step in microseconds, products over whole sequences included."]
    titles = ["kernel", "H", "B", *timed.KERNELS, "PyTorch", "taken", "PyTorch / taken", "values"]
    lines += ["", pages.markdown(titles, rows)]
    lines += ["", "## No time was left for", "", *left] if left else []
    return "\n".join(lines) + "\n"


def time_kernels(
    sizes: Sizes, timer: Timer, torch: Any, choices: Path, environment: dict[str, Any]
) -> tuple[str, bool]:
    """Try and time all sizes, write the choices, and return the page and whether all are right."""
    be_strict()
    rows, left, right, taken = [], [], True, {}
    for problem in sizes.problems():
        if timer.limits.over():
            left.append(f"* {problem.cell} {problem.dtype}, {problem.like}")
            continue
        for row in cli.rows(problem.cell, problem.dtype, problem.H, problem.B):
            what = row.name.partition(" ")[0].rpartition("_")[2]
            rows.append(cells_of(row, torch_us(timer, torch, problem, what)))
            taken[row.name, row.H, row.B] = row.mode
            right &= not row.wrong
            print(*rows[-1], flush=True)
    own = choice.current_device().own
    assert own is not None
    before = timed.read(choices)
    where = "" if before is None or before.card == own.card else f"on an {own.card}"
    found = before or replace(own, fastest={}, verdicts={})
    for (name, H, B), mode in taken.items():
        found = found.with_more({}, {name: timed.Timed(H, B, mode, where)})
    timed.keep(found, choices)
    return markdown(environment, rows, left), right


def cells_of(row: cli.Row, torch_us: float | None) -> list[str]:
    """Return the line of the table."""
    times = [*map(row.times.get, timed.KERNELS), torch_us]
    taken = row.times.get(row.taken)
    ratio = f"{torch_us / taken:.2f}" if torch_us and taken else "–"
    numbers = [pages.digits(us) for us in times]
    values = f"wrong: {', '.join(row.wrong)}" if row.wrong else "right"
    return [row.name, str(row.H), str(row.B), *numbers, row.taken, ratio, values]
