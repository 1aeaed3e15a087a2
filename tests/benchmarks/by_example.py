"""
What the gradients of weights by example cost, beside their sum.

    OPENBLAS_NUM_THREADS=1 python tests/benchmarks/by_example.py

block_lstm_grad and cudnn_rnn_backprop in float32 with one thread, by every weight_gradients. Calls
take turns; times are medians in milliseconds. "less what writing takes" is without the time to fill
memory of the size of what "examples" returns. Memory is what NumPy holds at most during a call, its
arguments included, over that of the sum. `CUPYRNN_NUMBA=0` measures NumPy alone.
"""

from __future__ import annotations

import functools
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pages
import timing
from problems.table import Case, call_of

import cupyrnn

SHAPES = ((50, 16, 128, 128), (100, 32, 256, 256))
WAYS = ("sum", "examples", "norms", "none")
SECONDS, LEAST = 6.0, 7


def gradient(name: str, shape: tuple[int, ...]) -> tuple[Callable[[str], Any], int]:
    """Return the gradient of an op of the table, and the bytes of its arguments."""
    case = Case(name, shape, "float32", peephole=False)
    rng = np.random.default_rng(0)
    call = call_of(case, rng)
    out = call.forward(cupyrnn)
    like, key = (out.h, "h_grad") if hasattr(out, "h") else (out.output, "output_backprop")
    dy = {key: rng.standard_normal(like.shape, np.float32)}
    record = case.op.record
    told = (
        dict.fromkeys(record.cotangents)
        | record.gradient_arguments(call.arguments(cupyrnn), out._asdict())
        | dy
    )
    arrays = [a for a in told.values() if isinstance(a, np.ndarray)]
    return functools.partial(_by, record.gradient, told), sum(a.nbytes for a in arrays)


def _by(function: Any, told: dict[str, Any], way: str) -> Any:
    return function(**told, weight_gradients=way)


def peak_of(call: Callable[[], Any]) -> int:
    """Return the most bytes that NumPy holds during a call beyond before."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def rows() -> list[list[str]]:
    """Return the rows of the table."""
    found = []
    for name, op in (("block_lstm_grad", "block_lstm"), ("cudnn_rnn_backprop", "cudnn_rnn-lstm")):
        for shape in SHAPES:
            call, arguments = gradient(op, shape)
            weights = sum(shape[2:]) * 4 * shape[3] * shape[1]

            def write(weights: int = weights) -> None:
                np.empty(weights, np.float32).fill(1)

            calls = [*(functools.partial(call, way) for way in WAYS), write]
            start = time.perf_counter()
            for c in calls:
                c()
            rounds = max(LEAST, int(SECONDS / (time.perf_counter() - start)))
            whole, *others, written = timing.in_turns(calls, rounds)
            peaks = [peak_of(c) + arguments for c in calls[:-1]]
            ratios = [t / whole for t in others]
            beyond = (others[0] - written) / whole
            numbers = 1e3 * whole, ratios[0], beyond, *ratios[1:], peaks[2] / peaks[0]
            found.append([f"{name} {shape}", *(f"{value:.2f}" for value in numbers)])
    return found


def main() -> None:
    """Print the table and, with a path, write it there."""
    titles = ["(T, B, I, H)", "sum, ms", "examples / sum", "less what writing takes"]
    titles += ["norms / sum", "none / sum", "memory, norms / sum"]
    text = pages.markdown(titles, rows())
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n")


if __name__ == "__main__":
    main()
