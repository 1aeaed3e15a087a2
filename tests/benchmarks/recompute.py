"""
What `save` costs on a CPU: time, and memory at its peak, beside those of all that is saved.

    python tests/benchmarks/recompute.py --out tests/benchmarks/results/recompute.md
    python tests/benchmarks/recompute.py --quick

takes five minutes, and Numba where it is installed. One thread each for OpenBLAS and for layers.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
# The checkout that this file lies in is what is measured, whatever else is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

import cupyrnn

# (T, B, I, H) and what is kept beside all
CASES: list[tuple[tuple[int, int, int, int], Any]] = [
    ((1000, 16, 128, 128), "states"),
    ((2000, 64, 256, 256), "states"),
    ((20000, 8, 128, 128), 32),
]
HEAD = """\
# Keeping states only

`tests/benchmarks/recompute.py`, {}. Forward and gradient of `cudnn_rnn`, one layer in one
direction, float32, one thread. Kept is the size of `reserve_space`. The peak is that of forward and
gradient in bytes as NumPy allocates them: first beside `output` and `input_backprop`, which every
call returns, then with them; the arguments are in neither. All are parts of what `save="all"`
takes.

| T, B, I, H | cell | save | ms, all | ms | time | kept | peak | peak with results |
|---|---|---|---:|---:|---:|---:|---:|---:|
"""


def calls(shape: tuple[int, int, int, int], mode: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return a function of `save` that computes outputs and gradients."""
    T, B, I, H = shape
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((T, B, n), np.float32) for n in (I, H))
    h = np.zeros((1, B, H), np.float32)
    size = cupyrnn.cudnn_rnn_params_size(1, H, I, rnn_mode=mode)
    params = rng.standard_normal(size, np.float32) / np.float32(H**0.5)

    def run(save: Any) -> tuple[Any, Any]:
        out = cupyrnn.cudnn_rnn(x, h, h, params, rnn_mode=mode, save=save)
        grads = cupyrnn.cudnn_rnn_backprop(
            x, h, h, params, None, None, None, dy, None, None, out.reserve_space, rnn_mode=mode
        )
        return out, grads

    return run


def row(shape: tuple[int, int, int, int], mode: str, save: Any, rounds: int) -> str:
    """Return what is measured, as a row of the table."""
    run, kept, peaks, wholes = calls(shape, mode), [], [], []
    times: dict[Any, list[float]] = {"all": [], save: []}
    for n in range(rounds + 1):
        for how, found in times.items():
            start = time.perf_counter()
            run(how)
            if n:  # The first is not timed.
                found.append(time.perf_counter() - start)
    for how in times:
        tracemalloc.start()
        out, grads = run(how)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        kept.append(out.reserve_space.nbytes)
        wholes.append(peak)
        peaks.append(peak - out.output.nbytes - grads.input_backprop.nbytes)
        del out, grads
    whole, some = (min(found) * 1e3 for found in times.values())
    parts = [f"{b / a:.1%}" for a, b in (kept, peaks, wholes)]
    sizes = ", ".join(map(str, shape))
    columns = [sizes, mode, save, f"{whole:.0f}", f"{some:.0f}", f"{some / whole:.2f}", *parts]
    return f"| {' | '.join(map(str, columns))} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="short sequences, once each")
    parser.add_argument("--out", type=Path, help="the file to write")
    given = parser.parse_args()
    rows = []
    for (T, *others), save in CASES:
        shape: Any = (T // 20 if given.quick else T, *others)
        for mode in ("lstm", "gru"):
            rows.append(row(shape, mode, save, 1 if given.quick else 5 if T < 2000 else 2))
            print(rows[-1], flush=True)
    way = "with Numba" if os.environ.get("CUPYRNN_NUMBA") != "0" else "NumPy alone"
    if given.out is not None:
        given.out.write_text(HEAD.format(way) + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
