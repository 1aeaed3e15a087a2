"""
Time of the ops on the host: of Python, CuPy and the package, measured without a GPU.

    python tests/benchmarks/host_cost.py            # the table
    python tests/benchmarks/host_cost.py --quick    # fewer steps and repetitions

runs real CuPy in host memory, without products and kernels (see tests/without_a_gpu/cupy_on_host).
The remaining time is the time to put the work into a device's queue. The device's own time is not
measured. CuPy's memory pool is on, as it is for users.

us/step is the time of one more step: the slope between a short sequence and a long one. us/call is
the rest, the time that a call needs once. "in one launch" are the kernels that compute all steps,
selected by CUPYRNN_PERSISTENT=rows. In the rows with equal and with different lengths us/call is
the whole call. Times are CPU times of the calling
thread, medians of calls that take turns. One call on the long sequence is counted:
kernels, products, memsets, copies to the device and on it, copies to the host and synchronizations,
allocations from CUDA itself.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import timing
from without_a_gpu.cupy_on_host import host

OPS = ("block_lstm", "block_lstm_grad", "block_gru", "block_gru_grad")
RNN = ("cudnn_rnn lstm", "cudnn_rnn_backprop lstm")
B, I, H = 16, 64, 64
RAGGED = (200, 64, 64)  # T, B, H
LENGTHS = 50  # different ones

seconds = functools.partial(timing.in_turns, clock=time.thread_time)

COLUMNS = ("op", "us/step", "us/call", "kernels", "products", "memsets", "copies",
           "to host, syncs", "allocations")  # fmt: skip


def counted(call: Any) -> str:
    """Return the columns of counts of one call."""
    before = host.counts()
    call()
    n = host.counts() - before
    copies = n.copies_to_device + n.copies_on_device
    outward = n.copies_to_host + n.synchronizations
    return " | ".join(map(str, (n.launches, n.products, n.memsets, copies, outward, n.allocations)))


def equal_lengths(T: int, repetitions: int) -> list[str]:
    """Return the rows of the ops on T steps, by the loop and in one launch."""
    import cupy
    from without_a_gpu.cupy_on_host.calls import calls

    short, long = (calls(cupy, (t, B, I, H)) for t in (T // 10, T))
    rows = []
    for kernel, suffix in (("loop", ""), ("rows", ", in one launch")):
        os.environ["CUPYRNN_PERSISTENT"] = kernel
        for name in (*OPS, *RNN):
            few, many = seconds([short[name], long[name]], repetitions)
            step = (many - few) / (T - T // 10)
            once = (many - step * T) * 1e6
            slope = f"{round(step * 1e6, 2) + 0:.2f}"  # no minus in front of 0.00
            rows.append(f"| {name}{suffix} | {slope} | {once:.0f} | {counted(long[name])} |")
    os.environ["CUPYRNN_PERSISTENT"] = "loop"
    return rows


def different_lengths(repetitions: int) -> list[str]:
    """Return the rows of sequences of many lengths beside equal ones."""
    import cupy
    from without_a_gpu.cupy_on_host.calls import calls_of

    T, rows, units = RAGGED
    rng = np.random.default_rng(0)
    some = rng.choice(np.arange(1, T + 1), LENGTHS, replace=False)
    lengths = np.concatenate([some, rng.choice(some, rows - LENGTHS)])
    lengths[np.argmax(lengths)] = T
    result = []
    shape = (T, rows, units, units)
    pairs = zip(
        *(calls_of(cupy, "cudnn_rnn-lstm", shape, lengths=n) for n in (None, lengths)), strict=True
    )
    for name, (equal, ragged) in zip(RNN, pairs, strict=True):
        times = seconds([equal, ragged], repetitions)
        whats = ("equal", f"{len(set(lengths))} different")
        for what, t, call in zip(whats, times, (equal, ragged), strict=True):
            ratio = f"{t / times[0]:.2f} times" if call is ragged else ""
            result.append(f"| {name}, {what} lengths | {ratio} | {t * 1e6:.0f} | {counted(call)} |")
    return result


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].strip())
    parser.add_argument("--quick", action="store_true", help="fewer steps and repetitions")
    quick = parser.parse_args(arguments).quick
    host.install(pool=True)
    os.environ["CUPYRNN_PERSISTENT"] = "loop"  # a trial of kernels that do not run finds them wrong
    import cupy

    T, repetitions = (100, 3) if quick else (1000, 15)
    print(
        f"CuPy {cupy.__version__}, CUDA {cupy.cuda.runtime.runtimeGetVersion()}, NumPy"
        f" {np.__version__}, Python {platform.python_version()}"
        f"\n\nfloat32, T={T}, B={B}, I={I}, H={H}; different lengths: T, B, H ="
        f" {', '.join(map(str, RAGGED))}. The host's share, on no GPU.\n"
    )
    print(f"| {' | '.join(COLUMNS)} |\n|---|" + "--:|" * (len(COLUMNS) - 1))
    with host.not_executed():
        for row in equal_lengths(T, repetitions):
            print(row, flush=True)
        for row in different_lengths(3 if quick else 7):
            print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
