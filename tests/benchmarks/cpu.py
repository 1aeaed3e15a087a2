"""
Every op on a CPU beside TensorFlow or PyTorch and beside its bare matmuls, in one table.

    python tests/benchmarks/cpu.py                       # what has a peer, under 10 minutes
    python tests/benchmarks/cpu.py --all                 # every case, most of an hour
    python tests/benchmarks/cpu.py --only 'BlockLSTM float32' --threads 1
    python tests/benchmarks/cpu.py --quick --out cpu.md  # the small shapes, a minute or two
    python tests/benchmarks/cpu.py --against ../before   # this checkout's times over another's
    python tests/benchmarks/cpu.py --against ../before --layers --threads 1 2  # compiled layers'

needs the `oracle` extra for the peers, and Linux to bind threads to processors; what is missing
is left out. Exit code: 0 if everything ran, 1 if a process failed.
Whether an aim was reached does not enter.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

# The checkout that this file lies in is what is measured, whatever else is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

import cases
import checkouts
import pages
import processes
import timing
from cases import CUPYRNN, FLOOR, NUMBA, Case
from timing import BACKWARD, PASSES, Ratio, Timing

PEER = "other"  # the fastest one of the other libraries

NOTES = """\
* Each number of threads has its own processes, bound to as many processors: one for the ops beside
  TensorFlow, one for those beside PyTorch, one for the rest. NumPy's OpenBLAS, OpenMP, TensorFlow's
  two pools and PyTorch are all given that number of threads. OPENBLAS_CORETYPE and
  OPENBLAS_L2_SIZE, which some machines set for an older OpenBLAS, are unset.
* The implementations take turns; a round is a block of each, and the first one changes. A block is
  as many repetitions as take 30 ms, or one. With more than one thread each first waits until the
  process has used no processor for 10 ms: OpenBLAS's threads spin for 0.1 s after their last
  product, OpenMP's for a few ms, and would take a processor from the next one. Short calls get one
  untimed repetition then.
* A repetition is forward, then backward on what it returned; forward+backward is their sum. A block
  counts by its median, an implementation by the median of its blocks, in ms. What a call returns is
  freed outside the time. `n`: repetitions of cupyrnn. What takes over 6 s is timed once.
* ratio: the other library's time divided by cupyrnn's; above 1, cupyrnn is faster. It is the median
  over seven rounds, six where a round takes over a second, with its 95% interval by their order,
  whatever their distribution. Another start of the same process, with its memory in other places,
  can lie outside this interval.
* The other libraries get the same numbers and give the gradient of the same inputs. TensorFlow:
  the op of tf.raw_ops, eager and as a tf.function, the better one in each row; only eager where
  that takes over 0.1 s. PyTorch: torch.nn.LSTM, GRU or RNN with gradients on, then
  torch.autograd.grad with retain_graph; packed sequences are packed and padded inside the time.
  TensorFlow has no float64 LSTM: PyTorch's counts there, which has no peepholes. A dash: no other
  library computes the same.
* cupyrnn is NumPy alone. "with Numba" is the same call where Numba is installed and compiles a loop
  of it; its first call, which compiles, is not timed.
* target, in float32: for sequences of the block ops, forward with Numba 1.3 up to H = 128 and 1
  above, the gradient 3 with Numba and 2 in NumPy alone (1.1 at the smallest shape); for single
  steps 1 with Numba and 0.6 in NumPy alone; for cudnn_rnn with Numba, forward and backward, 1.8,
  1.1, 1.2, 1.1 and 0.95 for LSTMs of the first five shapes, 1.1 for the other cells. With two
  threads some are a little lower. **short**: all of the interval lies below; "within the spread":
  its median does, but not all of it.
* floor: the products alone with np.dot on contiguous arrays, in float32 for float16; measured in
  turn with the rest where there is a target, else once for all cases with the same products. The
  target of single steps of cudnn_rnn is on their time over the floor and 25 µs.
* of peak: the operations of the products in a second, by cupyrnn with Numba or alone, whichever is
  faster, over those of np.dot of two square matrices of 1536 rows, the best of seven, measured by
  the same process with as many threads; the gates' own operations do not count.
* MiB: the most that NumPy holds at once during the call beyond before, results included
  (tracemalloc).
* BlockLSTMV2 is BlockLSTM with the gates in another order.
* lstm_block_cell and gru_block_cell: backward is `..._backward`, the gradient of every input.
* "lengths" go evenly from T down to T/2, "projection" is to H/2."""


class Aim(NamedTuple):
    """A bound, what was measured and between what it may lie."""

    of: str
    bound: float
    value: Ratio
    at_least: bool

    @property
    def reached(self) -> bool:
        # As printed: 1.696 is 1.70.
        value = round(self.value.value, 2)
        return value >= self.bound if self.at_least else value <= self.bound

    @property
    def verdict(self) -> str:
        if self.reached:
            return "reached"
        far = self.value.high < self.bound if self.at_least else self.value.low > self.bound
        return "**short**" if far else "short within the spread"

    @property
    def lack(self) -> float:
        """How much is missing, as a factor."""
        found = self.value.value / self.bound
        return found if self.at_least else 1 / found

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.verdict}"


class Row(NamedTuple):
    """One pass of a case: seconds, ratios to the peer's and aims by name, of who has any."""

    what: str
    timings: dict[str, Timing]
    ratios: dict[str, Ratio]  # of CUPYRNN and NUMBA
    aims: dict[str, Aim]  # of these, and of FLOOR
    memory: float | None
    of_peak: float | None  # of what is faster, with Numba or without

    def milliseconds(self, name: str) -> str:
        found = self.timings.get(name)
        return pages.digits(found and 1e3 * found.seconds(self.what))

    def beside_the_peer(self, name: str) -> list[str]:
        """Return three cells: the time, its ratio to the peer's, and whether that is enough."""
        return [self.milliseconds(name), str(self.ratios.get(name, "–")), self.aim(name)]

    def aim(self, name: str) -> str:
        return str(self.aims.get(name, ""))


def rows(case: Case, result: dict[str, Any], threads: int) -> list[Row]:
    """Return the rows of a case, from what `measure_case` found with so many threads."""
    timings = {name: Timing(*found) for name, found in result["timings"].items() if found}
    return [_row(case, what, timings, result, threads) for what in PASSES]


def _row(
    case: Case, what: str, found: dict[str, Timing], result: dict[str, Any], threads: int
) -> Row:
    timings = {name: found[name] for name in (CUPYRNN, NUMBA, FLOOR) if name in found}
    if not has_floor(case, what):
        timings.pop(FLOOR, None)
    others = [found[name] for name in found.keys() - {CUPYRNN, NUMBA, FLOOR}]
    if others:
        timings[PEER] = min(others, key=lambda of: of.seconds(what))
    own = [name for name in (CUPYRNN, NUMBA) if name in timings]
    ratios = {n: timing.ratio(timings[PEER], timings[n], what) for n in own if others}
    aims = {}
    for name, ratio in ratios.items():
        bound = cases.ratio_aim(case, what, name, threads)
        if bound is not None:
            of = "ratio" if name == CUPYRNN else "ratio with Numba"
            aims[name] = Aim(of, bound, ratio, True)
    bound = cases.step_aim(case, what)
    if FLOOR in timings and bound is not None:
        floor = timings[FLOOR]
        lowest = {what: [s + cases.STEP_SECONDS for s in floor.rounds[what]]}
        over = timing.ratio(timings[CUPYRNN], Timing(lowest, floor.repetitions), what)
        aims[FLOOR] = Aim("over floor + 25 µs", bound, over, False)
    of_peak, operations = None, cases.operations(case, what)
    if result.get("peak") is not None and operations:
        seconds = min(timings[name].seconds(what) for name in own)
        of_peak = operations / seconds / result["peak"]
    return Row(what, timings, ratios, aims, result["memory"].get(what), of_peak)


def has_floor(case: Case, what: str) -> bool:
    forward, backward = cases.products(case)
    return bool(backward) if what == BACKWARD else bool(forward)


def case_table(peer: str | None, found: list[tuple[Case, list[Row]]]) -> str:
    """Return the table of the cases of one op, dtype and number of threads."""
    sizes = "(T, B, I, H)" if found[0][0].sequence else "(B, I, H)"
    columns = [sizes, "", "pass", peer or "other", "cupyrnn", "ratio", "target"]
    compiled = any(NUMBA in row.timings for _, case_rows in found for row in case_rows)
    columns += ["with Numba", "ratio", "target"] * compiled
    columns += ["floor", "over floor", "target", "of peak", "MiB", "n"]
    lines = []
    for case, case_rows in found:
        for row in case_rows:
            ours, floor = row.timings[CUPYRNN], row.timings.get(FLOOR)
            over = floor and ours.seconds(row.what) / floor.seconds(row.what)
            lines.append(
                [
                    *(str(case.shape), case.variant, row.what, row.milliseconds(PEER)),
                    *row.beside_the_peer(CUPYRNN),
                    *(row.beside_the_peer(NUMBA) if compiled else ()),
                    *(row.milliseconds(FLOOR), f"{over:.2f}" if over else "–", row.aim(FLOOR)),
                    "" if row.of_peak is None else f"{row.of_peak:.2f}",
                    "" if row.memory is None else pages.digits(row.memory),
                    str(ours.repetitions),
                ]
            )
    return pages.markdown(columns, lines)


Results = dict[int, dict[Case, dict[str, Any]]]  # by threads


def short_lines(results: Results) -> tuple[int, list[list[str]]]:
    """Return how many aims the timed rows have, and a line for each not reached, worst first."""
    aims = [
        (threads, case, row, aim)
        for threads, found in results.items()
        for case, result in found.items()
        for row in rows(case, result, threads)
        for aim in row.aims.values()
    ]
    short = sorted((found for found in aims if not found[3].reached), key=lambda f: f[3].lack)
    lines = [
        [str(threads), str(case), row.what, aim.of, str(aim.value), str(aim)]
        for threads, case, row, aim in short
    ]
    return len(aims), lines


def report(header: list[str], results: Results, selected: list[Case]) -> str:
    """Return everything that was measured, as markdown."""
    count, short = short_lines(results)
    parts = ["# cupyrnn on a CPU", "\n".join(header)]
    parts.append("What the columns mean, and how the times were taken, is said at the end.")
    for threads, found in results.items():
        parts.append(f"## {threads} thread{'s' * (threads > 1)}")
        ordered = [case for case in selected if case in found]
        for op, dtype in dict.fromkeys((case.op, case.dtype) for case in ordered):
            group = [
                (case, rows(case, found[case], threads))
                for case in ordered
                if (case.op, case.dtype) == (op, dtype)
            ]
            peer = next((case.peer for case, _ in group if case.peer), None)
            mode = group[0][0].mode
            names = cases.BLOCK_OPS[op] if mode is None else ("cudnn_rnn", "cudnn_rnn_backprop")
            title = " and ".join(names) + (f", {mode}" if mode else "")
            parts += [f"### {title}, {dtype}", case_table(peer, group)]
    parts.append("## Missed targets")
    parts.append(f"{len(short)} of {count} rows with a target miss it.")
    if short:
        columns = ["threads", "case", "pass", "of", "measured", "target"]
        parts.append(pages.markdown(columns, short))
    parts += ["## How this was measured", NOTES]
    return "\n\n".join(parts) + "\n"


def measure_case(
    case: Case, threads: int, limits: timing.Limits, floors: dict[Any, Any], once: bool
) -> dict[str, Any]:
    """Return the timings, and where `once` what does not depend on the threads."""
    mine, others = cases.ours(case), []
    if case.peer is not None and pages.installed(pages.MODULES[case.peer]):
        others = cases.peers(case)
    compiled = cases.with_numba(case)
    contestants = [mine, *([compiled] if compiled is not None else []), *others]
    dtype = "float32" if case.dtype == "float16" else case.dtype
    key = str((dtype, cases.products(case)))
    if key not in floors or any(cases.step_aim(case, what) for what in PASSES):
        contestants.append(cases.floor(case))
    timings = timing.measure(contestants, limits, threads)
    floors[key] = timings.setdefault(FLOOR, floors.get(key))
    if dtype not in floors:
        floors[dtype] = cases.peak(dtype, threads)
    return {
        "timings": timings,
        "peak": floors[dtype],
        "memory": timing.traced_peaks(mine) if once else {},
    }


def work(task: dict[str, Any]) -> None:
    """Be one of the processes that measure: print a line of JSON for every case."""
    chosen = [Case(*fields[:2], tuple(fields[2]), fields[3]) for fields in task["cases"]]
    threads, floors = task["threads"], {}
    if task["peer"] == pages.TENSORFLOW:
        threading = cases.tensorflow().config.threading
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
    elif task["peer"] == pages.PYTORCH:
        cases.torch().set_num_threads(threads)
    for case in chosen:
        limits = timing.QUICK if task["quick"] else timing.FULL
        print(json.dumps(measure_case(case, threads, limits, floors, task["once"])), flush=True)


# What has all libraries compute as on a processor without AVX-512, but TensorFlow's own kernels.
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+sse4.2,+popcnt,+cx16",
    "OPENBLAS_CORETYPE": "Haswell",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def selected(args: argparse.Namespace) -> list[Case]:
    """Return the cases that the arguments ask for."""
    if args.layers:
        return [case for case in cases.layer_cases() if re.search(args.only, str(case))]
    return [
        case
        for case in cases.all_cases()
        if re.search(args.only, str(case))
        and (args.all or args.against is not None or not cases.rare(case))
        and (case.shape in cases.SMALL_SHAPES or not args.quick)
    ]


class Run(pages.Run):
    """The whole measurement."""

    def __init__(self, args: argparse.Namespace, selected: list[Case]) -> None:
        super().__init__(args, pages.header(args.threads))
        self.selected = selected
        if args.avx2:
            self.header[0] = self.header[0].replace(", ", ", held to AVX2, ", 1)
        self.results: Results = {threads: {} for threads in args.threads}

    def time(self, threads: int, peer: str | None, chosen: list[Case]) -> None:
        """Have the cases of one peer measured."""
        task = {"threads": threads, "peer": peer, "cases": chosen, "quick": self.args.quick}
        task["once"] = threads == max(self.args.threads)
        arguments = [__file__, "--task", json.dumps(task)]
        with processes.start(arguments, threads, AVX2 if self.args.avx2 else {}) as process:
            assert process.stdout is not None
            begin = time.perf_counter()
            for case, line in zip(chosen, process.stdout, strict=False):
                self.results[threads][case] = json.loads(line)
                now = time.perf_counter()
                self.say(f"{threads} threads, {case}: {now - begin:.1f} s")
                begin = now
        if process.returncode:
            self.fail(f"{threads} threads, {peer or 'no peer'}")

    def text(self) -> str:
        return report(self.header, self.results, self.selected)

    def measure(self) -> None:
        for threads in self.args.threads:
            for peer in (pages.TENSORFLOW, pages.PYTORCH, None):
                chosen = [case for case in self.selected if case.peer == peer]
                if chosen:
                    self.time(threads, peer, chosen)
                    self.save()


def main(argv: list[str] | None = None) -> int:
    parser = pages.parser(__doc__)
    parser.add_argument("--all", action="store_true", help="what has no peer or no aim too")
    parser.add_argument("--avx2", action="store_true", help="as on a processor without AVX-512")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="compare with another checkout of cupyrnn instead; threads: 1 unless given",
    )
    parser.add_argument(
        "--layers", action="store_true", help="with --against: the compiled layers of every cell"
    )
    parser.add_argument(
        "--starts", type=int, metavar="N", help="with --against: processes of each; default 7"
    )
    args = parser.parse_args(argv)
    if args.task is not None:
        work(args.task)
        return 0
    pages.check_threads(parser, args, most=1 if args.against else 2)
    if args.against is not None and not (args.against / "cupyrnn" / "__init__.py").is_file():
        parser.error(f"--against {args.against}: no checkout of cupyrnn")
    chosen = selected(args)
    if not chosen:
        parser.error(f"--only {args.only}: no case of that name")
    if args.list:
        print(*chosen, sep="\n")
        return 0
    return (Run if args.against is None else checkouts.Run)(args, chosen).run()


if __name__ == "__main__":
    sys.exit(main())
