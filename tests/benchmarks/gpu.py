"""
The recurrent ops on a GPU, timed by every kernel there is, and beside their peers.

    python tests/benchmarks/gpu.py              # everything, in thirteen minutes at most
    python tests/benchmarks/gpu.py --minutes 9 --cells lstm
    python tests/benchmarks/gpu.py --sizes small --minutes 4   # every cell up to H = 256
    python tests/benchmarks/gpu.py --sizes blocks --minutes 4  # every cell from H = 160 to 1,024
    python tests/benchmarks/gpu.py --first-contact --minutes 4  # the first thing on a new GPU
    python tests/benchmarks/gpu.py --dry        # tiny shapes, to see that everything runs: no times

needs CuPy, and for the cuDNN columns PyTorch with CUDA; what is missing is said and left out. The
results are written after every row as gpu-<device>.json and .md. Exit code: 0 if all went well, 1
if a row failed, 2 if there is nothing to run on.

Ops and their gradients are timed by the loop, by every kernel that takes all steps in one launch,
by each algorithm of cuDNN through this package, and by PyTorch; what differs from NumPy is an
error. What no time is left for is printed at the end.

With --sizes the tests of the kernels run first, for a third of the time at most; the first failure
ends the run. Then all kernels are checked and timed, and the fastest are written to the package's
choices for this architecture, cupyrnn/kernels/sm_90.json on an H100.

With --first-contact four parts share the time: the tests marked gpu; every kernel over all steps
1,000 times behind a kernel that disturbs it, bits compared; trials and times; and experiments,
which change the source of a kernel. They write first-contact-<device>.jsonl and .md row by row.
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

# The checkout of this file is measured, whatever else is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from on_gpu import cases, choices, first_contact, pytorch
from on_gpu.contest import Bench, Contest
from on_gpu.problems import DTYPES, dtype_of
from on_gpu.report import Report, by_reason, times_table
from on_gpu.timing import FULL, ONCE, SHORT, Timer, describe
from on_gpu.worker import be_strict

import cupyrnn
from cupyrnn.kernels import persistent

MINUTES = 13.0
# The part of them that rows begin in; what has begun ends in the rest.
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
        "NVRTC": attempt(lambda: "{}.{}".format(*cupy.cuda.nvrtc.getVersion())),
        "CuPy": attempt(lambda: cupy.__version__),
        "NumPy": np.__version__,
        "Python": platform.python_version(),
        "PyTorch": torch_problem or attempt(lambda: torch.__version__),
        "cuDNN (PyTorch's)": torch_problem or attempt(torch.backends.cudnn.version),
        "cupyrnn": cupyrnn.__version__,
        "date": now.strftime("%Y-%m-%d %H:%M UTC"),
    }
    return found


def unknown(dtype: str) -> str | None:
    """Return why arrays cannot have a dtype, None if they can."""
    try:
        dtype_of(dtype)
    except ImportError as error:
        return describe(error)
    return None


def arguments(argv: list[str] | None) -> argparse.Namespace:
    title = (__doc__ or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser("gpu.py", description=title)
    parser.add_argument("--dry", action="store_true", help="tiny shapes, everything once, no times")
    what = "kernels alone: 'small', H from 16 to 256; 'blocks', H from 160 to 1,024"
    parser.add_argument("--sizes", choices=choices.SIZES, help=what)
    what = "tests, repeated launches, times and experiments on a new GPU"
    parser.add_argument("--first-contact", action="store_true", help=what)
    known = (*first_contact.PARTS,)
    parser.add_argument("--parts", nargs="+", choices=known, default=known, help="of these")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    for name, known in (("cells", cases.CELLS), ("dtypes", DTYPES)):
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=known)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="in all; default 13")
    return parser.parse_args(argv)


def run_times(bench: Bench, wanted: list[cases.Case]) -> None:
    """Time all cases; those for which no time is left are rows that say so."""
    for case in wanted:
        why = "skipped: out of time" if bench.timer.limits.over() else unknown(case.dtype)
        if why is None:
            try:
                Contest(bench, case).everybody()
            except Exception as error:  # not even the arguments could be made
                why = f"failed: {describe(error)}"
        if why is not None:
            row = {"pass": "both", "who": "everybody", "status": why}
            bench.report.add({**case.key, **row})


def run_sizes(args: argparse.Namespace, timer: Timer, torch: Any, found: dict[str, Any]) -> bool:
    """Test the kernels, time them at some sizes, and return whether all passed."""
    sizes = choices.SIZES[args.sizes]
    if not choices.tests_pass(sizes, 20 * args.minutes, only_found=args.dry):
        return False
    name = f"sm_{found['compute capability'].replace('.', '')}.json"
    folder = args.out if args.dry else Path(persistent.__file__).parent
    of = choices.dry(sizes) if args.dry else sizes
    page, right = choices.time_kernels(of, timer, torch, folder / name, found)
    stem = f"gpu-{args.sizes}-{name_of(found)}{'-dry' if args.dry else ''}.md"
    (args.out / stem).write_text(page, encoding="utf-8")
    print(f"written: {args.out / stem} and {folder / name}")
    return right


def name_of(found: dict[str, Any]) -> str:
    """Return the device as a part of the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", found["device"].lower()).strip("-")


def main(argv: list[str] | None = None) -> int:
    begin = time.perf_counter()
    args = arguments(argv)
    cupy, missing = import_cupy()
    if cupy is None:
        print(f"gpu.py: nothing to run on: {missing}")
        return 2
    be_strict()
    torch, no_torch = pytorch.import_torch()
    found = environment(cupy, torch, no_torch)
    for name, value in found.items():
        print(f"{name}: {value}")
    seconds = math.inf if args.dry else 60 * PART * args.minutes
    limits = ONCE if args.dry else SHORT if args.sizes else FULL
    timer = Timer(cupy, limits._replace(deadline=begin + seconds))
    if args.first_contact:
        name = f"first-contact-{name_of(found)}{'-dry' if args.dry else ''}"
        bound = first_contact.Bound(args.dry, begin, seconds)
        return int(not first_contact.run(args.out / name, found, args.parts, bound))
    if args.sizes is not None:
        return int(not run_sizes(args, timer, torch, found))
    stem = args.out / f"gpu-{name_of(found)}{'-dry' if args.dry else ''}"
    report = Report(stem, found, timed=not args.dry)
    every = cases.dry_cases() if args.dry else cases.cases()
    wanted = [case for case in every if case.cell in args.cells and case.dtype in args.dtypes]
    run_times(Bench(report, timer, torch, no_torch), wanted)
    found["seconds"] = f"{time.perf_counter() - begin:.0f}"
    report.data["finished"] = True
    report.save()
    if not args.dry:
        print("", times_table(report.data["rows"]), sep="\n")
    left = by_reason(report.data, "skipped")
    print("", *(["no time was left for", *left, ""] if left else []), sep="\n")
    print(
        f"written: {stem}.json and .md; {'something FAILED' if report.failed else 'all went well'}"
    )
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
