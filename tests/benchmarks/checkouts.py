"""
Two checkouts of cupyrnn against each other, for `cpu.py --against`.

Each has a process of its own, with NumPy alone and, where it is installed, another with Numba. The
two take turns: a pair is a block of calls of one and then of the other, and who begins changes from
pair to pair. So what slows the machine for a while slows both. All of that is done several times,
each with new processes, as where the memory of one happens to lie can make a few percent for as
long as it runs.

    python tests/benchmarks/checkouts.py CHECKOUT

is one of these processes. It reads a line of JSON for everything it is to do and answers with one.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    # Before `cases` imports it.
    sys.path.insert(0, sys.argv[1])

import cases
import pages
import processes
import timing
from cases import Case
from timing import ENOUGH, PASSES, Ratio, median_interval

import cupyrnn

NUMPY, NUMBA = "NumPy", "Numba"
# Shorter than cpu.py's: more pairs say more than longer ones.
BLOCK_SECONDS = 0.005


class Limits(NamedTuple):
    """What bounds the measurement of a case: so many processes, in each pairs while time lasts."""

    starts: int
    seconds: float
    most_pairs: int


# Of seven values, the least and the largest enclose the median in 98% of all cases.
FULL = Limits(starts=7, seconds=0.5, most_pairs=25)
QUICK = Limits(starts=7, seconds=0.1, most_pairs=25)

NOTES = """\
* A time of a pair is the median of a block of calls, as many as take 5 ms, after one that is not
  timed; or a single call. A process's value is the median over its pairs; a row's is the median
  over the processes.
* this / other: this checkout's time over the other's in each pair, above 1 this one is slower; in
  brackets the 95% interval of that median by the order of the processes' values, whatever their
  distribution. **slower**, faster: all of it lies above 1, below 1. Of 100 rows without a
  difference up to five may.
* A repetition is forward, then backward on what it returned; forward+backward is their sum."""


# Seconds of forward and backward in a block; a block of this checkout with one of the other.
Block = list[tuple[float, float]]
Pair = tuple[Block, Block]


class Row(NamedTuple):
    """One pass of a case: seconds by this checkout and by the other, and their ratio."""

    what: str
    this: float
    other: float
    ratio: Ratio

    @property
    def verdict(self) -> str:
        if self.ratio.rounds < ENOUGH:
            return ""
        return "**slower**" if self.ratio.low > 1 else "faster" if self.ratio.high < 1 else ""


def compare(starts: list[list[Pair]]) -> list[Row]:
    """Return a row for each pass, from the pairs of each start."""
    rows = []
    for what in PASSES:
        values = [_medians(pairs, what) for pairs in starts]
        this, other, ratio = (statistics.median(v) for v in zip(*values, strict=True))
        interval = median_interval([ratio for *_, ratio in values])
        rows.append(Row(what, this, other, Ratio(ratio, *interval, len(starts))))
    return rows


def _medians(pairs: list[Pair], what: str) -> list[float]:
    """Return the medians of both times and of their ratio."""
    times = [[timing.block_medians(block)[what] for block in pair] for pair in pairs]
    columns = zip(*((a, b, a / b) for a, b in times), strict=True)
    return [statistics.median(column) for column in columns]


Measured = dict[tuple[str, int, Case], list[list[Pair]]]  # by the way, threads and case


def report(header: list[str], measured: Measured) -> str:
    """Return everything that was measured, as markdown, what is slower first."""
    rows = [(*key, row) for key, starts in measured.items() for row in compare(starts)]
    rows.sort(key=lambda found: (found[-1].verdict != "**slower**", -found[-1].ratio.value))
    lines = [
        [str(case), room, str(threads), row.what, f"{1e3 * row.this:.4g}", f"{1e3 * row.other:.4g}",
         str(row.ratio), row.verdict]
        for room, threads, case, row in rows
    ]  # fmt: skip
    slower = sum("slower" in line[-1] for line in lines)
    parts = ["# Two checkouts of cupyrnn on a CPU", "\n".join(header), NOTES]
    parts.append(f"Rows: {len(lines)}, of them slower than the other: {slower}.")
    titles = ["case", "with", "threads", "pass", "this, ms", "other, ms", "this / other", ""]
    return "\n\n".join([*parts, pages.markdown(titles, lines)]) + "\n"


class Worker:
    """A process that runs the cases of one checkout."""

    def __init__(self, checkout: Path, room: str, threads: int) -> None:
        variables = {"CUPYRNN_NUMBA": "1" if room == NUMBA else "0"}
        arguments = [__file__, str(checkout.resolve()), "--threads", str(threads)]
        self.process = processes.start(arguments, threads, variables, listens=True)

    def ask(self, **question: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """End the process, which ends by itself when nothing more can be asked."""
        self.process.communicate()


def serve(checkout: str, threads: int) -> None:
    """Be one of the workers: prepare the case that is asked for, or time a block of it."""
    package = Path(cupyrnn.__file__).resolve()
    if Path(checkout).resolve() not in package.parents:
        raise SystemExit(f"{package} is not of the checkout {checkout}")
    contestant: Any = None
    gc.disable()
    for line in sys.stdin:
        question = json.loads(line)
        if "case" in question:
            op, dtype, shape, variant = question["case"]
            case = Case(op, dtype, tuple(shape), variant)
            contestant = None
            small = cases.plain(cases.tiny(case))
            small.backward(small.forward())  # where Numba compiles
            contestant = cases.plain(case)
            gc.collect()
            answer: Any = sum(timing.repetition(contestant))
            if answer < timing.LONG_CALL:
                answer = sum(timing.repetition(contestant))
        else:
            answer = timing.block(contestant, question["repetitions"], threads)
        print(json.dumps(answer), flush=True)


def measure(case: Case, this: Worker, other: Worker, limits: Limits) -> list[Pair]:
    """Return the pairs of blocks of one start."""
    slowest = max(worker.ask(case=case) for worker in (this, other))
    question = {"repetitions": max(1, min(300, int(BLOCK_SECONDS / slowest)))}
    times: list[Pair] = []
    end = time.perf_counter() + limits.seconds
    while not times or (len(times) < limits.most_pairs and time.perf_counter() < end):
        if len(times) % 2:
            theirs = other.ask(**question)
            times.append((this.ask(**question), theirs))
        else:
            times.append((this.ask(**question), other.ask(**question)))
    return times


def described(checkout: Path) -> str:
    """Return the path of a checkout and its commit."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return str(checkout)
    return f"{checkout} at {asked.stdout.strip()}"


class Run(pages.Run):
    """The whole comparison."""

    def __init__(self, args: argparse.Namespace, selected: list[Case]) -> None:
        super().__init__(args, pages.header(args.threads))
        self.selected = selected
        self.checkouts = Path(__file__).parents[2], args.against
        self.limits = QUICK if args.quick else FULL
        if args.starts is not None:
            self.limits = self.limits._replace(starts=args.starts)
        self.measured: Measured = {}
        this, other = map(described, self.checkouts)
        found = f"\nThis: {this}; other: {other}. Processes of each: {self.limits.starts}"
        self.header.append(found)

    def once(self, threads: int, room: str) -> None:
        """Have every case measured by a process of each checkout."""
        workers = [Worker(checkout, room, threads) for checkout in self.checkouts]
        try:
            for case in self.selected:
                if room == NUMBA and not cases.may_compile(case):
                    continue
                pairs = measure(case, *workers, self.limits)
                self.measured.setdefault((room, threads, case), []).append(pairs)
                ratios = " ".join(str(row.ratio) for row in compare([pairs]))
                self.say(f"{threads} threads, {room}, {case}: {ratios}")
                self.save()
        finally:
            for worker in workers:
                worker.close()

    def text(self) -> str:
        return report(self.header, self.measured)

    def measure(self) -> None:
        rooms = [NUMPY] * (not self.args.layers) + [NUMBA] * pages.installed("numba")
        for threads in self.args.threads:
            for room in rooms:
                for _ in range(self.limits.starts):
                    try:
                        self.once(threads, room)
                    except (OSError, ValueError):  # an answer is missing
                        self.fail(room)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout")
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    serve(given.checkout, given.threads)
