"""The processes that measure: their threads, processors and environment."""

from __future__ import annotations

import os
import subprocess
import sys

import timing

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
# With these a machine chooses OpenBLAS's kernel, often one that is slower than its own choice.
OPENBLAS_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")

_ASK_FOR_KERNEL = """\
import numpy
try:
    import threadpoolctl
except ImportError:
    print("unknown (threadpoolctl is not installed)")
else:
    found = threadpoolctl.threadpool_info()
    kernels = [entry.get("architecture") for entry in found if entry["user_api"] == "blas"]
    print(*[kernel or "unknown" for kernel in kernels] or ["unknown"])
"""


def environment(threads: int) -> dict[str, str]:
    """Return the environment of all who measure with that number of threads."""
    kept = {name: text for name, text in os.environ.items() if name not in OPENBLAS_VARIABLES}
    return kept | dict.fromkeys(THREAD_VARIABLES, str(threads))


def start(arguments: list[str], threads: int, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start Python bound to as many processors as it has threads."""
    allowed = timing.processors()
    bind = getattr(os, "sched_setaffinity", lambda *_: None)
    bind(0, allowed[:threads])
    try:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=environment(threads) | variables,
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        bind(0, allowed)


def blas_kernel() -> str:
    """Return which of its kernels NumPy's BLAS takes on this processor in such an environment."""
    command = [sys.executable, "-c", _ASK_FOR_KERNEL]
    asked = subprocess.run(command, env=environment(1), capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"
