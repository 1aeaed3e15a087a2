"""
Every op on a CPU beside TensorFlow or PyTorch, in one table.

    python tests/benchmarks/cpu.py                       # about a quarter of an hour
    python tests/benchmarks/cpu.py --only 'BlockLSTM float32' --threads 1
    python tests/benchmarks/cpu.py --quick --out cpu.md  # the small shapes, a minute or two

needs the `oracle` extra for the peers, and Linux to bind threads to processors; what is missing
is left out. Exit code: 0 if everything ran, 1 if a process failed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# The checkout of this file is measured, whatever else is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

import cases
import numpy as np
import pages
import timing
from cases import CUPYRNN, NUMBA, Case
from timing import PASSES, Timing

import cupyrnn

NOTES = """\
* Each number of threads has two processes, bound to as many processors: one for cupyrnn and
  TensorFlow, one for cupyrnn and PyTorch. NumPy's OpenBLAS, OpenMP, TensorFlow's two pools and
  PyTorch all use that number of threads. OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE, which some
  machines set for an older OpenBLAS, are unset.
* The implementations take turns. A round is one block of each, and another one begins each round.
  A block repeats the call for 30 ms, or runs it once. With more than one thread, each block starts
  when the process has used no processor for 10 ms: OpenBLAS's threads spin for 0.1 s after their
  last product, OpenMP's for a few ms, and would slow down the next block. Short calls then get one
  untimed repetition.
* A repetition is forward, then backward on its results; forward+backward is their sum. The time of
  a block is its median, and the time of an implementation the median of its blocks, in ms. Results
  are freed outside the time. `n`: repetitions of cupyrnn.
* ratio: the other library's time divided by cupyrnn's; above 1, cupyrnn is faster. It is the median
  of seven rounds, or of six if a round is longer than a second, with a 95% interval from their
  order, which holds for any distribution. A second start of the same process, with other memory
  addresses, can be outside this interval.
* The other libraries get the same numbers and compute the gradient of the same inputs. TensorFlow:
  the op of tf.raw_ops, eager or in a tf.function, whichever is faster; only eager if that is longer
  than 0.1 s. PyTorch: torch.nn.LSTM, GRU or RNN with gradients on, then torch.autograd.grad with
  retain_graph. The time of packed sequences includes packing and padding.
* cupyrnn is NumPy alone. "with Numba" is the same call with Numba, if it compiles a loop of the
  call; the first call, which compiles, is not timed.
* lengths: evenly spaced from T down to T/2. projection: to H/2."""


THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
# With these a machine chooses OpenBLAS's kernel, often one that is slower than its own choice.
OPENBLAS_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
ASK_FOR_KERNEL = """\
import numpy, threadpoolctl
print(*[of["architecture"] for of in threadpoolctl.threadpool_info() if of["user_api"] == "blas"])
"""


def start(arguments: list[str], threads: int, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start Python bound to as many processors as it has threads."""
    allowed = timing.processors()
    kept = {name: text for name, text in os.environ.items() if name not in OPENBLAS_VARIABLES}
    environment = kept | dict.fromkeys(THREAD_VARIABLES, str(threads)) | variables
    bind = getattr(os, "sched_setaffinity", lambda *_: None)
    bind(0, allowed[:threads])
    try:
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    finally:
        bind(0, allowed)


def header(threads: list[int]) -> list[str]:
    """Return the machine, the versions, and what else runs on it: three lines."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    kernel, _ = start(["-c", ASK_FOR_KERNEL], 1, {}).communicate()
    versions = [f"Python {platform.python_version()}", f"NumPy {np.__version__}"]
    if pages.installed("numba"):
        versions.append(f"Numba {importlib.metadata.version('numba')}")
    blas_kernel = kernel.strip() or "unknown"
    versions.append(f"BLAS {blas['name']} {blas['version']}, its kernel {blas_kernel}")
    versions.append(f"cupyrnn {cupyrnn.__version__}")
    for peer, module in pages.MODULES.items():
        if pages.installed(module):
            name = importlib.metadata.packages_distributions()[module][0]
            versions.append(f"{peer} {importlib.metadata.version(name)}")
        else:
            versions.append(f"{peer}: not installed, left out")
    versions += sorted(f"{n}={text}" for n, text in os.environ.items() if n.startswith("MALLOC_"))
    return [
        f"{pages.processor()}, {len(timing.processors())} processors, {platform.platform()}  ",
        ", ".join(versions) + "  ",
        f"Threads: {', '.join(map(str, threads))}. {datetime.date.today()}, load before the run"
        f" {os.getloadavg()[0]:.2f}",
    ]


def row(what: str, found: dict[str, Timing], compiled: bool) -> list[str]:
    """Return the cells of a pass: ms of each, and ratios to the fastest of the others."""

    def ms(one: Timing | None) -> str:
        return pages.digits(one and 1e3 * one.seconds(what))

    others = [found[name] for name in found.keys() - {CUPYRNN, NUMBA}]
    peer = min(others, key=lambda of: of.seconds(what), default=None)
    cells = [ms(peer)]
    for own in map(found.get, (CUPYRNN, NUMBA)[: 1 + compiled]):
        cells += [ms(own), str(timing.ratio(peer, own, what)) if peer and own else "–"]
    return [*cells, str(found[CUPYRNN].repetitions)]


def case_table(peer: str, found: list[tuple[Case, dict[str, Timing]]]) -> str:
    """Return the table of the cases of one op, dtype and number of threads."""
    sizes = "(T, B, I, H)" if found[0][0].sequence else "(B, I, H)"
    compiled = any(NUMBA in timings for _, timings in found)
    columns = [sizes, "", "pass", peer, "cupyrnn", "ratio", *["with Numba", "ratio"] * compiled]
    lines = (
        [str(case.shape), case.variant, what, *row(what, timings, compiled)]
        for case, timings in found
        for what in PASSES
    )
    return pages.markdown([*columns, "n"], lines)


Results = dict[int, dict[Case, dict[str, Timing]]]  # by threads


def report(header: list[str], results: Results, selected: list[Case]) -> str:
    """Return all measurements as Markdown."""
    parts = ["# cupyrnn on a CPU", "\n".join(header)]
    parts.append("The end of this page explains the columns and the measurement.")
    for threads, found in results.items():
        parts.append(f"## {threads} thread{'s' * (threads > 1)}")
        ordered = [case for case in selected if case in found]
        for op, dtype in dict.fromkeys((case.op, case.dtype) for case in ordered):
            group = [(c, found[c]) for c in ordered if (c.op, c.dtype) == (op, dtype)]
            first = group[0][0]
            title = " and ".join(first.functions) + (f", {first.mode}" if first.mode else "")
            parts += [f"### {title}, {dtype}", case_table(first.peer, group)]
    parts += ["## How this was measured", NOTES]
    return "\n\n".join(parts) + "\n"


def measure_case(case: Case, threads: int, limits: timing.Limits) -> dict[str, Timing]:
    """Return the timings by name."""
    mine, others = cases.ours(case), []
    if pages.installed(pages.MODULES[case.peer]):
        others = cases.peers(case)
    compiled = cases.with_numba(case)
    contestants = [mine, *([compiled] if compiled is not None else []), *others]
    return timing.measure(contestants, limits, threads)


def work(task: dict[str, Any]) -> None:
    """Run as one of the measuring processes: print a line of JSON for every case."""
    chosen = [Case(*fields[:2], tuple(fields[2]), fields[3]) for fields in task["cases"]]
    threads = task["threads"]
    has_peer = pages.installed(pages.MODULES[task["peer"]])
    if has_peer and task["peer"] == pages.TENSORFLOW:
        threading = cases.tensorflow().config.threading
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
    elif has_peer:
        cases.torch().set_num_threads(threads)
    for case in chosen:
        limits = timing.QUICK if task["quick"] else timing.FULL
        print(json.dumps(measure_case(case, threads, limits)), flush=True)


# Settings for all libraries except TensorFlow's own kernels: no AVX-512.
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+sse4.2,+popcnt,+cx16",
    "OPENBLAS_CORETYPE": "Haswell",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def run(args: argparse.Namespace, selected: list[Case]) -> int:
    """Measure, print the page, which is kept as far as it got, and return the exit code."""
    begin, head, failed = time.perf_counter(), header(args.threads), False
    if args.avx2:
        head[0] = head[0].replace(", ", ", held to AVX2, ", 1)
    results: Results = {threads: {} for threads in args.threads}
    for threads, peer in itertools.product(args.threads, pages.MODULES):
        chosen = [case for case in selected if case.peer == peer]
        if not chosen:
            continue
        task = {"threads": threads, "peer": peer, "cases": chosen, "quick": args.quick}
        command = [__file__, "--task", json.dumps(task)]
        with start(command, threads, AVX2 if args.avx2 else {}) as process:
            assert process.stdout is not None
            for case, line in zip(chosen, process.stdout, strict=False):
                timings = {name: Timing(*one) for name, one in json.loads(line).items()}
                results[threads][case] = timings
                seconds = time.perf_counter() - begin
                print(f"{threads} threads, {case}: after {seconds:.0f} s", file=sys.stderr)
        if process.returncode:
            failed = True
            head.append(f"\n**A process failed, rows are missing: {threads} threads, {peer}**")
            print(head[-1], file=sys.stderr)
        if args.out is not None:
            args.out.write_text(report(head, results, selected))
    minutes = (time.perf_counter() - begin) / 60
    head[2] += f", after it {os.getloadavg()[0]:.2f}; it took {minutes:.1f} minutes"
    if args.out is not None:
        args.out.write_text(report(head, results, selected))
    print(report(head, results, selected))
    return int(failed)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    parser.add_argument("--threads", type=int, nargs="+", metavar="N", help="default: 1 2")
    parser.add_argument("--quick", action="store_true", help="few repetitions, small shapes")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the page here too")
    parser.add_argument("--avx2", action="store_true", help="as on a processor without AVX-512")
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.task is not None:
        work(args.task)
        return 0
    available = len(timing.processors())
    args.threads = args.threads or [*range(1, min(2, available) + 1)]
    if not all(1 <= threads <= available for threads in args.threads):
        parser.error(f"--threads {args.threads}: there are {available} processors to run on")
    chosen = [
        case
        for case in cases.all_cases()
        if re.search(args.only, str(case)) and (case.shape in cases.SMALL_SHAPES or not args.quick)
    ]
    if not chosen:
        parser.error(f"--only {args.only}: no case of that name")
    return run(args, chosen)


if __name__ == "__main__":
    sys.exit(main())
