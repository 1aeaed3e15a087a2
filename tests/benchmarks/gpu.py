"""
The recurrent ops on a GPU, timed by every kernel there is, and beside their peers.

    python tests/benchmarks/gpu.py              # everything, in thirteen minutes at most
    python tests/benchmarks/gpu.py --minutes 9 --cells lstm
    python tests/benchmarks/gpu.py --first-contact --minutes 4  # the first thing on a new GPU
    python tests/benchmarks/gpu.py --dry        # tiny shapes, to see that everything runs: no times

needs CuPy, and for the cuDNN columns PyTorch with CUDA; what is missing is said and left out. The
results are written after every row as gpu-<device>.jsonl and .md. Exit code: 0 if all went well, 1
if a row failed, 2 if there is nothing to run on.

Ops and their gradients are timed by the loop, by every kernel that takes all steps in one launch,
by each algorithm of cuDNN through this package, and by PyTorch; what differs from NumPy is an
error. What no time is left for is a row that says so.

With --first-contact four parts share the time: the tests marked gpu; every kernel over all steps
1,000 times behind a kernel that disturbs it, bits compared; trials and times; and experiments,
which change the source of a kernel. They write first-contact-<device>.jsonl and .md.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import math
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The checkout of this file is measured, whatever else is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from on_gpu import cases, first_contact, pytorch
from on_gpu.contest import NOTES, TITLES, Bench, Contest
from on_gpu.log import Log
from on_gpu.timing import FULL, ONCE, Timer, describe
from on_gpu.worker import be_strict

import cupyrnn
from cupyrnn.device.cli import DTYPES

MINUTES = 13.0
# The part of them that rows begin in; what has begun ends in the rest.
PART = 0.95
# What the numbers depend on, of CuPy's list.
VERSIONS = "Python|CuPy|NumPy|CUDA Driver|CUDA Runtime|cuBLAS|NVRTC"


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


def attempt(get: Callable[[], Any]) -> str:
    """Return what describes the machine; that it cannot be found out stops nothing."""
    try:
        return str(get())
    except Exception as error:
        return f"unknown ({describe(error)})"


def environment(cupy: Any, torch: Any, torch_problem: str | None) -> dict[str, Any]:
    """Return what the numbers depend on."""
    device = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    info = attempt(importlib.import_module("cupyx").get_runtime_info)
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "device": device["name"].decode(),
        "compute capability": cupy.cuda.Device().compute_capability,
        "multiprocessors": device["multiProcessorCount"],
        "memory": f"{device['totalGlobalMem'] / 2**30:.0f} GiB",
        "L2 cache": attempt(lambda: f"{device['l2CacheSize'] / 2**20:.0f} MiB"),
        **dict(re.findall(rf"^({VERSIONS}) Version\s*: (.*)$", info, re.MULTILINE)),
        "PyTorch": torch_problem or attempt(lambda: torch.__version__),
        "cuDNN (PyTorch's)": torch_problem or attempt(torch.backends.cudnn.version),
        "cupyrnn": cupyrnn.__version__,
        "date": now.strftime("%Y-%m-%d %H:%M UTC"),
    }


def arguments(argv: list[str] | None) -> argparse.Namespace:
    title = (__doc__ or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser("gpu.py", description=title)
    parser.add_argument("--dry", action="store_true", help="tiny shapes, everything once, no times")
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
    bench.log.begin("times in ms", TITLES, NOTES)
    for case in wanted:
        try:
            if bench.timer.limits.over():
                bench.log.add(*case.key, "no time was left")
            else:
                Contest(bench, case).everybody()
        except ImportError as error:  # of bfloat16
            bench.log.add(*case.key, describe(error))
        except Exception as error:  # not even the arguments could be made
            bench.log.add(*case.key, f"FAILED: {describe(error)}", wrong=True)


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
    timer = Timer(cupy, (ONCE if args.dry else FULL)._replace(deadline=begin + seconds))
    what = "first-contact" if args.first_contact else "gpu"
    device = re.sub(r"[^a-z0-9]+", "-", found["device"].lower()).strip("-")
    stem = args.out / f"{what}-{device}{'-dry' if args.dry else ''}"
    log = Log(stem, f"Recurrent ops on {found['device']}", found)
    if args.first_contact:
        first_contact.run(log, args.parts, first_contact.Bound(args.dry, begin, seconds))
    else:
        every = cases.dry_cases() if args.dry else cases.cases()
        wanted = [case for case in every if case.cell in args.cells and case.dtype in args.dtypes]
        run_times(Bench(log, timer, torch, no_torch, args.dry), wanted)
    ended = "something FAILED" if log.failed else "all went well"
    print(f"written: {log.page} and {log.lines}; {ended} in {time.perf_counter() - begin:.0f} s")
    return int(log.failed)


if __name__ == "__main__":
    sys.exit(main())
