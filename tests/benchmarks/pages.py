"""What the scripts have in common: their command line, and a page that is kept as far as it got."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import processes
import timing

import cupyrnn

TENSORFLOW, PYTORCH = "TensorFlow", "PyTorch"
MODULES = {TENSORFLOW: "tensorflow", PYTORCH: "torch"}


def markdown(titles: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a table."""
    titles = [*titles]
    rule = ["---"] * len(titles)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rule, *lines))


def digits(value: float | None) -> str:
    """Return three digits, or all before the point."""
    if value is None:
        return "–"
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def processor() -> str:
    """Return the name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def header(threads: list[int]) -> list[str]:
    """Return the machine, the versions, and what else runs on it: three lines."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    versions = [f"Python {platform.python_version()}", f"NumPy {np.__version__}"]
    if installed("numba"):
        versions.append(f"Numba {importlib.metadata.version('numba')}")
    kernel = processes.blas_kernel()
    versions.append(f"BLAS {blas['name']} {blas['version']}, its kernel {kernel}")
    versions.append(f"cupyrnn {cupyrnn.__version__}")
    for peer, module in MODULES.items():
        if installed(module):
            name = importlib.metadata.packages_distributions()[module][0]
            versions.append(f"{peer} {importlib.metadata.version(name)}")
        else:
            versions.append(f"{peer}: not installed, left out")
    malloc = [f"{name}={text}" for name, text in os.environ.items() if name.startswith("MALLOC_")]
    versions += sorted(malloc)
    return [
        f"{processor()}, {len(timing.processors())} processors, {platform.platform()}  ",
        ", ".join(versions) + "  ",
        f"Threads: {', '.join(map(str, threads))}. {datetime.date.today()}, load before the run"
        f" {os.getloadavg()[0]:.2f}",
    ]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of what all take who measure in processes of their own."""
    found = argparse.ArgumentParser(description=(doc or "").strip().splitlines()[0])
    found.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    found.add_argument("--threads", type=int, nargs="+", metavar="N", help="default: 1 2")
    found.add_argument("--quick", action="store_true", help="few repetitions, perhaps small shapes")
    found.add_argument("--out", type=Path, metavar="FILE.md", help="write the page here too")
    return found


def check_threads(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Choose the numbers of threads where none is given, and refuse what no processor is for."""
    available = len(timing.processors())
    if args.threads is None:
        args.threads = [*range(1, min(2, available) + 1)]
    if not all(1 <= threads <= available for threads in args.threads):
        parser.error(f"--threads {args.threads}: there are {available} processors to run on")
