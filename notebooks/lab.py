"""What the notebooks of this folder share: the array module, where they ran, the look of plots."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import numpy as np
import threadpoolctl

import cupyrnn

matplotlib.rcParams |= {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "font.size": 9.5,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
}


def array_module() -> ModuleType:
    """Return cupy where there is a GPU, else numpy."""
    with contextlib.suppress(ImportError):
        cupy = importlib.import_module("cupy")
        if cupy.is_available():
            return cupy
    return np


def to_host(a: Any) -> Any:
    """Return a NumPy array or scalar of an array of either module."""
    return a.get() if hasattr(a, "get") else a


def device(xp: ModuleType = np) -> str:
    """Return the name of the processor that computes arrays of `xp`."""
    if xp is not np:
        return xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)["name"].decode()
    name, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.exists() and (match := re.search(r"model name\s*: (.*)", info.read_text())):
        name = " ".join(re.sub(r"\((R|TM)\)|\b(CPU|Processor)\b", " ", match[1]).split())
    affinity = getattr(os, "sched_getaffinity", None)
    return f"{name}, {len(affinity(0)) if affinity else os.cpu_count()} cores"


def one_thread() -> None:
    """Let BLAS use one thread, which is the fastest for small matrices on a busy machine."""
    threadpoolctl.threadpool_limits(1)


def report(xp: ModuleType) -> None:
    """Print what a notebook runs with and on."""
    print(f"array module: {xp.__name__} {xp.__version__}")
    print(f"device:       {device(xp)}")
    print(
        f"versions:     cupyrnn {cupyrnn.__version__}, Python {platform.python_version()},", end=""
    )
    print(f" NumPy {np.__version__}, Matplotlib {matplotlib.__version__}")


def caption(figure: Any, xp: ModuleType, *more: str) -> None:
    """Write below a figure where its numbers come from."""
    text = "; ".join([f"{xp.__name__} {xp.__version__} on {device(xp)}", *more])
    figure.supxlabel(text, x=0.99, ha="right", fontsize=7.5, color="0.45")
