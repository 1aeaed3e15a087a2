"""
The recurrent ops on a GPU: tested, timed by every kernel there is, and beside their peers.

    python tests/benchmarks/gpu.py            # everything, in twenty minutes at most
    python tests/benchmarks/gpu.py --minutes 9 --sections tests,recurrence
    python tests/benchmarks/gpu.py --quick    # the two small shapes, at most a minute and a half
    python tests/benchmarks/gpu.py --dry      # tiny shapes, to see that everything runs: no times

needs CuPy, and for the cuDNN columns PyTorch with CUDA; what is missing is said and left out. The
results are written after every row as gpu-<device>.json and .md. Exit code: 0 if all went well, 1
if a test, a check or a row failed, 2 if there is nothing to run on.

Four sections, each with a share of the time; what one does not use the next one has, and what no
time is left for is printed at the end:

tests         python -m cupyrnn.device, which keeps the fastest kernels, at a few sizes, and
              python -m pytest -m gpu, which needs ".[test]".
recurrence    the time steps of every cell by the loop, by rows (1, 2 and 4 sequences a block; 2 and
              4 lanes a unit), by rows with a part of the matrix in shared memory ("hybrid"), by
              tiles, by each algorithm of cuDNN, through this package and through PyTorch, and by
              TorchRL's kernel in Triton; what differs from the loop is an error. Of these follow
              whether what was estimated was right.
block_lstm    block_lstm and its gradient beside cuDNN and TensorFlow's way.
cudnn_rnn     nets by both engines, beside PyTorch's.

In the last two, the contestants compute the same function of the same numbers, gates in the order
ifco, no forget bias and no clip:

cupyrnn     block_lstm and block_lstm_grad.
cuDNN       torch.nn.LSTM, one layer. It has no peepholes.
TF-style    BlockLSTM and BlockLSTMGrad as TensorFlow launches them on a GPU: see TFStyle.
GEMMs       the matrix products of cupyrnn alone, which no other work per step can undercut.

And for nets of one and two layers, in one direction and both, with equal and unequal lengths,
cudnn_rnn and cudnn_rnn_backprop with engine "cupy" (this package's kernels) and "cudnn", beside
torch.nn.LSTM and GRU, which are PyTorch's cuDNN.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import math
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# The checkout that this file lies in is what is measured, whatever else is installed.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from on_gpu import nets, problem, pytorch, recurrence, rows, suite
from on_gpu.checks import Checks, Refused
from on_gpu.problem import (
    BLOCK_LSTM,
    CUDNN_RNN,
    CUPYRNN,
    MODES,
    OPS,
    RECURRENCE,
    SECTIONS,
    TESTS,
    numpy_dtype,
)
from on_gpu.report import (
    NOTES,
    Report,
    costs_table,
    lstm_table,
    nets_table,
    recurrence_page,
    skipped,
)
from on_gpu.timing import FULL, ONCE, QUICK, Limits, Timer, describe

import cupyrnn

# The seconds of each section in the twenty minutes of a whole run, and in a quick one.
SECONDS = {TESTS: 270, RECURRENCE: 540, BLOCK_LSTM: 210, CUDNN_RNN: 120}
QUICK_SECONDS = {TESTS: 0, RECURRENCE: 20, BLOCK_LSTM: 45, CUDNN_RNN: 25}
MINUTES = 20.0
# The part of them that sections begin rows in; what has begun ends in the rest.
PART = 0.95


def import_cupy() -> tuple[Any, str | None]:
    """Return CuPy and None, or None and what is missing."""
    extras = "pip install '.[cuda13x]' (CUDA 13) or '.[cuda12x]' (CUDA 12)"
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        return None, f"CuPy cannot be imported ({describe(error)}): {extras}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return None, f"no GPU that CuPy can use ({describe(error)}); for CuPy itself: {extras}"
    return (cupy, None) if count else (None, f"no GPU; for CuPy itself: {extras}")


def dotted(version: int, factor: int) -> str:
    return f"{version // factor}.{version % factor // (factor // 100)}"


def attempt(get: Callable[[], Any]) -> str:
    """Return what describes the machine; that it cannot be found out stops nothing."""
    try:
        return str(get())
    except Exception as error:
        return f"unknown ({describe(error)})"


def environment(cupy: Any, torch: Any, torch_problem: str | None) -> dict[str, Any]:
    """Return what the numbers depend on."""
    runtime = cupy.cuda.runtime

    def device() -> Any:
        return runtime.getDeviceProperties(runtime.getDevice())

    def cublas() -> int:
        return int(cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle()))

    now = datetime.datetime.now(datetime.timezone.utc)
    found = {
        "device": attempt(lambda: device()["name"].decode()),
        "compute capability": attempt(lambda: f"{device()['major']}.{device()['minor']}"),
        "multiprocessors": attempt(lambda: device()["multiProcessorCount"]),
        "memory": attempt(lambda: f"{device()['totalGlobalMem'] / 2**30:.0f} GiB"),
        "L2 cache": attempt(lambda: f"{device()['l2CacheSize'] / 2**20:.0f} MiB"),
        "CUDA driver": attempt(lambda: dotted(runtime.driverGetVersion(), 1000)),
        "CUDA runtime": attempt(lambda: dotted(runtime.runtimeGetVersion(), 1000)),
        "cuBLAS": attempt(cublas),
        "CuPy": attempt(lambda: cupy.__version__),
        "NumPy": np.__version__,
        "Python": platform.python_version(),
        "PyTorch": torch_problem or attempt(lambda: torch.__version__),
        "cuDNN (PyTorch's)": torch_problem or attempt(torch.backends.cudnn.version),
        "cupyrnn": cupyrnn.__version__,
        "float32": "strict, except in the rows named TF32",
        "date": now.strftime("%Y-%m-%d %H:%M UTC"),
    }
    return found


def available(report: Report, args: argparse.Namespace) -> list[str]:
    """Return the modes that can run here; the others get a row that says why not."""
    kept = []
    for mode in args.dtypes:
        try:
            numpy_dtype(mode)
        except ImportError:
            for op in [op for op in OPS if op in args.sections]:
                key = {"op": op, "shape": "", "T": 0, "mode": mode, "variant": "", "pass": "all"}
                report.add({**key, "who": CUPYRNN, "status": "ml_dtypes not installed"})
        else:
            kept.append(mode)
    return kept


def names(allowed: Any) -> Callable[[str], list[str]]:
    """Return a parser of names with commas between them."""

    def parse(text: str) -> list[str]:
        chosen = [name for name in text.split(",") if name]
        for name in chosen:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(allowed)}")
        return chosen

    return parse


def arguments(argv: list[str] | None) -> argparse.Namespace:
    title = (__doc__ or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser("gpu.py", description=title)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="small shapes, few repetitions")
    how.add_argument("--dry", action="store_true", help="a tiny shape, everything once, no times")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument(
        "--sections",
        type=names(SECTIONS),
        help=f"{','.join(SECTIONS)}; default: all of them, quick: all but {TESTS}",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help="for the sections of a whole run, if they are all there are; default 20",
    )
    shapes = ",".join(problem.SHAPES)
    parser.add_argument(
        "--shapes",
        type=names(problem.SHAPES),
        help=f"of {shapes}; default: A to D for block_lstm and B for cudnn_rnn, quick: A,B and A",
    )
    parser.add_argument("--dtypes", type=names(MODES), default=list(MODES), help=",".join(MODES))
    parser.add_argument(
        "--cells", type=names(nets.CELLS), default=["lstm"], help="of cudnn_rnn; default lstm"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="of each section in place of its share: start no row of it later than that",
    )
    parser.add_argument("--force", action="store_true", help="time also what failed its check")
    args = parser.parse_args(argv)
    if args.sections is None:
        args.sections = [name for name in SECTIONS if name != TESTS or not args.quick]
    return args


class Budget:
    """When each section has to be at its end; what one leaves over is the next one's."""

    def __init__(self, args: argparse.Namespace) -> None:
        shares = QUICK_SECONDS if args.quick else SECONDS
        whole = sum(shares[name] for name in args.sections)
        self.factor = 1.0 if args.quick else min(1.0, 60 * PART * args.minutes / max(whole, 1))
        self.shares, self.seconds, self.endless = shares, args.seconds, args.dry
        self.over = time.perf_counter()

    def end(self, section: str) -> float:
        """Return the time, as time.perf_counter() tells it, at which a section is to end."""
        if self.endless:
            return math.inf
        if self.seconds is not None:
            return time.perf_counter() + self.seconds
        self.over += self.factor * self.shares[section]
        return self.over


def run_tests(report: Report, end: float, dry: bool) -> None:
    """Compare all kernels with NumPy, and run the tests that need a GPU in the time left."""
    seconds = 600.0 if dry else end - time.perf_counter()
    found = suite.command(seconds / 2, dry=dry)
    report.check(f"python -m cupyrnn.device: {found.text}", found.problem)
    seconds = 300.0 if dry else end - time.perf_counter()
    found = suite.run(seconds, collect_only=dry)
    report.check(f"pytest -m gpu: {found.text}", found.problem)


def run(args: argparse.Namespace, report: Report, cupy: Any, found_torch: Any) -> None:
    """Check everything, then time everything."""
    torch, no_torch = found_torch
    limits = ONCE if args.dry else QUICK if args.quick else FULL
    lstm_shapes, net_shapes = list(problem.TIMED), ["B"]
    if args.quick:
        lstm_shapes, net_shapes = ["A", "B"], ["A"]
    if args.dry:
        lstm_shapes = net_shapes = ["dry"]
    modes = available(report, args)
    refused: Refused = set()
    budget = Budget(args)

    def bench(end: float, limits: Limits) -> rows.Bench:
        timer = Timer(cupy, limits._replace(deadline=end))
        return rows.Bench(report, timer, torch, no_torch, set() if args.force else refused)

    if TESTS in args.sections:
        run_tests(report, budget.end(TESTS), args.dry)
    if RECURRENCE in args.sections:
        every = recurrence.dry_cases() if args.dry else recurrence.cases()
        wanted = [case for case in every if case.mode in (*args.dtypes, "float64")]
        steps = bench(budget.end(RECURRENCE), recurrence.limits_of_steps(limits))
        recurrence.time_recurrences(steps, wanted)
    checks = Checks(report, cupy, torch, args.quick or args.dry)
    if BLOCK_LSTM in args.sections:
        checks.end = end = budget.end(BLOCK_LSTM)
        print("checks of block_lstm", flush=True)
        checks.lstm(modes)
        refused |= checks.refused
        rows.time_lstm(bench(end, limits), args.shapes or lstm_shapes, modes)
    if CUDNN_RNN in args.sections:
        checks.end = end = budget.end(CUDNN_RNN)
        no_cudnn = nets.no_cudnn(cupy)
        print(f"checks of cudnn_rnn; engine cudnn: {no_cudnn or 'found'}", flush=True)
        checks.nets(modes, args.cells, no_cudnn)
        refused |= checks.refused
        shapes = args.shapes or net_shapes
        nets_bench = bench(end, rows.limits_of_nets(limits))
        rows.time_nets(nets_bench, shapes, modes, args.cells, no_cudnn)


def main(argv: list[str] | None = None) -> int:
    begin = time.perf_counter()
    args = arguments(argv)
    cupy, missing = import_cupy()
    if cupy is None:
        print(f"gpu.py: nothing to run on: {missing}")
        return 2
    found_torch = pytorch.import_torch()
    found = environment(cupy, *found_torch)
    for name, value in found.items():
        print(f"{name}: {value}")
    device = re.sub(r"[^a-z0-9]+", "-", found["device"].lower()).strip("-")
    stem = args.out / f"gpu-{device}{'-quick' if args.quick else '-dry' if args.dry else ''}"
    report = Report(stem, found, timed=not args.dry)
    run(args, report, cupy, found_torch)
    found["seconds"] = f"{time.perf_counter() - begin:.0f}"
    report.data["finished"] = True
    report.save()
    results = report.data["rows"]
    if not args.dry:
        print("", lstm_table(results), nets_table(results), costs_table(results), sep="\n\n")
        print("", NOTES, *recurrence_page(report.data), sep="\n")
    left = skipped(report.data)
    print("", *(["no time was left for", *left, ""] if left else []), sep="\n")
    print(
        f"written: {stem}.json and .md; {'something FAILED' if report.failed else 'all went well'}"
    )
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
