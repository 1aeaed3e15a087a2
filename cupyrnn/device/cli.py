"""The command line: check and time each kernel on a GPU, and choose the one that "auto" uses."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ..kernels import timed
from ..kernels.timed import ENGINES, KERNELS, Measurements, Timed
from . import CELLS
from .apart import Apart
from .problems import CELLS as CELLS_IN_TURN
from .problems import DTYPES, NETS, Problem, dtype_of
from .worker import begin

UNITS, BATCHES = (9, 16, 33, 64, 95, 128, 255, 512), (1, 3, 9, 33, 128, 512, 1024)
# T of the compared calls and of the timed ones; the largest B*H*T of the timed ones, for memory.
STEPS, TIMED_STEPS, LARGEST = 24, 96, 2**24
USUAL = DTYPES[:2]  # dtypes
SECONDS = 300.0  # the most seconds for an answer, compilation included
# A kernel that is faster by less than this is not chosen; the loop or "cupy" supports everything.
LEAST_GAIN = 1.03


class Row(NamedTuple):
    """The results for the kernels of a direction, or the engines of a call, at one size."""

    name: str  # with the dtype
    timed: Timed
    times: dict[str, float]  # microseconds a step, by kernel
    kernel: str  # of the kernel that "auto" will use
    wrong: list[str]  # kernels

    @property
    def text(self) -> str:
        """The line of the table."""
        H, B, *_ = self.timed
        values = f"wrong: {', '.join(self.wrong)}" if self.wrong else "right"
        if self.timed.mode in ENGINES:
            times = ", ".join(f"{engine} {us:.2f}" for engine, us in self.times.items())
            return f"{self.name:<33}{H:>4}{B:>6}  {times}: {self.kernel}, {values}"
        times = "".join(f"{f'{self.times[k]:.2f}' if k in self.times else '–':>9}" for k in KERNELS)
        return f"{self.name:<33}{H:>4}{B:>6}{times}  {self.kernel:<8}{values}"


TITLES = f"{'device time of a step, in us':<33}{'H':>4}{'B':>6}"
TITLES += "".join(f"{kernel:>9}" for kernel in KERNELS) + f"  {'taken':<8}values"


def timed_steps(B: int, H: int) -> int:
    """Return T of the timed calls."""
    return max(STEPS, min(TIMED_STEPS, LARGEST // (B * H)))


class Trial:
    """Checks and times kernels in a separate process; wrong ones are not run again."""

    def __init__(self, process: Apart) -> None:
        self._process = process
        self.refused: dict[str, dict[str, str]] = {}  # by name and kernel, what was seen

    def rows(
        self,
        cell: str,
        dtype: str,
        sizes: Iterable[tuple[int, int]],
        *,
        net: bool = False,
        general: Iterable[bool] = (False, True),
    ) -> Iterator[Row]:
        """
        Yield the results at each (H, B), without lengths and peepholes and with them.

        With `net`, yield results of the engines of `cudnn_rnn`, without lengths.
        """
        for H, B in sizes:
            of = (False,) if net else general
            problems = [Problem(cell, dtype, STEPS, B, H, more, net) for more in of]
            found, why = self._process.ask(("kernels", problems[0]))
            if found is None:
                raise ValueError(f"the process that runs the kernels {why}")
            for direction, kernels in found.items():
                if net and len(kernels) < 2:
                    continue
                name = f"{CELLS[cell]}_{direction} {dtype}"
                yield self._row(name, direction, kernels, problems)

    def _row(
        self, name: str, direction: str, kernels: dict[str, str], problems: list[Problem]
    ) -> Row:
        refused = self.refused.setdefault(name, {})
        for problem, (mode, kernel) in product(problems, kernels.items()):
            if kernel not in refused:
                seen, why = self._process.ask(("wrong", problem, direction, mode))
                if seen != "":
                    refused[kernel] = f"{seen or f'its process {why}'} at {problem.like}"
                    self._process.close()  # its device may refuse all later calls
        usual = next(iter(kernels))  # the loop, or "cupy"
        right = [mode for mode, kernel in kernels.items() if kernel not in refused]
        times = dict.fromkeys(right, 0.0)
        for problem in problems if right else ():
            longer = problem._replace(T=timed_steps(problem.B, problem.H))
            found, why = self._process.ask(("times", longer, direction, right))
            if found is None:
                blamed = [mode for mode in right if mode != usual] or right  # the likely ones
                refused |= {kernels[w]: f"its process {why} when it was timed" for w in blamed}
                times = {}
                break
            for mode, ms in zip(right, found, strict=True):
                times[mode] += 1e3 * ms / longer.T / len(problems)
        best = min(times, key=lambda mode: times[mode], default=usual)
        if usual in times and times[usual] < LEAST_GAIN * times[best]:
            best = usual
        wrong = [kernel for kernel in kernels.values() if kernel in refused]
        by_kernel = {kernels[mode]: us for mode, us in times.items()}
        size = Timed(problems[0].H, problems[0].B, best)
        return Row(name, size, by_kernel, kernels[best], wrong)


def _size(text: str) -> int:
    """Return an integer above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer above 0")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m cupyrnn.device",
        description="Compare every kernel of the time steps on this GPU with NumPy, and time it."
        " From then on the ops use the fastest kernel that was right. Exit status: 0, all kernels"
        " are right; 1, some are wrong and will not be used; 2, no GPU or a package is missing.",
    )
    for name, known, default in (
        ("cells", CELLS_IN_TURN, CELLS_IN_TURN),
        ("dtypes", DTYPES, USUAL),
    ):
        text = f"default {' '.join(default)}"
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=default, help=text)
    for name, what, sizes in (("units", "H", UNITS), ("batches", "B", BATCHES)):
        text = f"default {' '.join(map(str, sizes))}"
        how: Any = {"nargs": "+", "type": _size, "metavar": what}
        parser.add_argument(f"--{name}", default=sizes, help=text, **how)
    parser.add_argument("--forget", action="store_true", help="delete the measurements, and exit")
    return parser


def keep(path: Path, card: str, rows: Iterable[Row], refused: dict[str, dict[str, str]]) -> None:
    """Add to the stored measurements; a refused kernel stays refused until `forget_kernels`."""
    before = timed.read(path) or Measurements(path, card, {}, {})
    fastest = {name: {t[:2]: t for t in sizes} for name, sizes in before.fastest.items()}
    for row in rows:
        fastest.setdefault(row.name, {})[row.timed[:2]] = row.timed
    wrong = {n: {**before.refused.get(n, {}), **seen} for n, seen in refused.items()}
    sizes = {name: [*of.values()] for name, of in fastest.items()}
    timed.keep(Measurements(path, card, sizes, {**before.refused, **wrong}))


def _run(options: argparse.Namespace) -> int:
    process = Apart(begin, [], SECONDS, "CuPy")
    facts, trial = process.facts, Trial(process)
    print(facts["card"], TITLES, sep="\n", flush=True)
    where = facts["path"]
    try:
        for cell, dtype, net in product(options.cells, options.dtypes, (False, True)):
            if net and cell not in NETS:
                continue
            rows = []
            for row in trial.rows(cell, dtype, product(options.units, options.batches), net=net):
                print(row.text, flush=True)
                rows.append(row)
            if where is not None:
                keep(Path(where), facts["card"], rows, trial.refused)
    finally:
        process.close()
        wrong = [(name, k, seen) for name, of in trial.refused.items() for k, seen in of.items()]
        for name, kernel, seen in wrong:
            print(f"WRONG, never taken: {kernel} of {name}: {seen}")
    print(f"kept in {where}" if where else "kept nowhere, as CUPYRNN_CACHE_DIR is empty")
    return int(bool(wrong))


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    if options.forget:
        forgotten = [str(path) for path in timed.forget()]
        print("forgotten:", *forgotten if forgotten else ["nothing, as nothing was kept"])
        return 0
    try:
        for dtype in options.dtypes:
            dtype_of(dtype)
        return _run(options)
    except (ValueError, ImportError, OSError) as error:
        print(f"cupyrnn.device: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what is complete is kept", file=sys.stderr)
        return 128 + signal.SIGINT
