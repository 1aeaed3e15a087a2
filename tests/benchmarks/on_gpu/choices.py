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

from .cases import NETS, Case, arguments_of
from .log import Log
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

    def cases(self) -> Iterator[Case]:
        """Yield the calls to time."""
        every = product(cli.CELLS_IN_TURN, self.units, self.batches, self.dtypes)
        for cell, H, B, dtype in every:
            yield Case(cell, TIMED_STEPS, B, H, dtype)


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


def torch_us(timer: Timer, torch: Any, case: Case, what: str) -> float | None:
    """Return PyTorch's device time of a step in microseconds, None if it has no such op."""
    if torch is None or case.cell not in NETS:
        return None
    _, arguments, cotangents = arguments_of(case)
    net = TorchNet(torch, arguments, cotangents["output"], packed=False, device=DEVICE)
    run = Run(lambda _: net.forward())
    if what != "forward":
        run = Run(net.backward, net.forward)
    timer.warm_up(run)
    return 1e3 * timer.queued(run, timer.eager(run)["host_ms"])["queued_ms"] / case.T


TITLES = ("us of a step", "H", "B", *timed.KERNELS, "PyTorch", "taken", "PyTorch / taken", "values")


def add_row(log: Log, row: cli.Row, torch_us: float | None = None) -> None:
    """Add the line of the table."""
    times = [*map(row.times.get, timed.KERNELS), torch_us]
    taken = row.times.get(row.taken)
    ratio = f"{torch_us / taken:.2f}" if torch_us and taken else "–"
    values = f"WRONG: {row.wrong}" if row.wrong else "right"
    numbers = map(pages.digits, times)
    log.add(row.name, row.H, row.B, *numbers, row.taken, ratio, values, wrong=bool(row.wrong))


def time_kernels(sizes: Sizes, timer: Timer, torch: Any, choices: Path, log: Log) -> None:
    """Try and time all sizes, and write the choices."""
    be_strict()
    taken = {}
    log.begin("kernels", TITLES)
    for case in sizes.cases():
        if timer.limits.over():
            log.add(*case.key, "no time was left")
            continue
        for row in cli.rows(case.cell, case.dtype, case.H, case.B):
            what = row.name.partition(" ")[0].rpartition("_")[2]
            add_row(log, row, torch_us(timer, torch, case, what))
            taken[row.name, row.H, row.B] = row.mode
    own = choice.current_device().own
    assert own is not None
    before = timed.read(choices)
    where = "" if before is None or before.card == own.card else f"on an {own.card}"
    found = before or replace(own, fastest={}, verdicts={})
    for (name, H, B), mode in taken.items():
        found = found.with_more({}, {name: timed.Timed(H, B, mode, where)})
    timed.keep(found, choices)
