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

import numpy as np
import timing

import cupyrnn

SHAPES = ((50, 16, 128, 128), (100, 32, 256, 256))
WAYS = ("sum", "examples", "norms", "none")
SECONDS, LEAST = 6.0, 7


def lstm(shape: tuple[int, ...]) -> tuple[Callable[[str], Any], int]:
    """Return the gradient of block_lstm, and the bytes of its arguments."""
    T, B, I, H = shape
    rng = np.random.default_rng(0)
    sizes = ((T, B, I), (B, H), (B, H), (I + H, 4 * H), (4 * H,))
    x, cs, h, w, b = (0.1 * rng.standard_normal(s, np.float32) for s in sizes)
    out = cupyrnn.block_lstm(x, cs, h, w, b)
    dy = rng.standard_normal(out.h.shape, np.float32)

    def call(way: str) -> Any:
        return cupyrnn.block_lstm_grad(
            x,
            cs,
            h,
            w,
            *out,
            None,
            dy,
            weight_gradients=way,  # type: ignore[arg-type]
        )

    return call, sum(a.nbytes for a in (x, cs, h, w, *out, dy))


def net(shape: tuple[int, ...]) -> tuple[Callable[[str], Any], int]:
    """Return the gradient of cudnn_rnn, an LSTM, and the bytes of its arguments."""
    T, B, I, H = shape
    rng = np.random.default_rng(0)
    x = 0.1 * rng.standard_normal((T, B, I), np.float32)
    h = np.zeros((1, B, H), np.float32)
    size = cupyrnn.cudnn_rnn_params_size(1, H, I)
    params = 0.1 * rng.standard_normal(size, np.float32)
    out = cupyrnn.cudnn_rnn(x, h, h, params)
    dy = rng.standard_normal(out.output.shape, np.float32)

    def call(way: str) -> Any:
        return cupyrnn.cudnn_rnn_backprop(
            *(x, h, h, params, *out[:3], dy, None, None, out.reserve_space),
            weight_gradients=way,  # type: ignore[arg-type]
        )

    return call, sum(a.nbytes for a in (x, h, h, params, *out[:3], dy, out.reserve_space))


def peak_of(call: Callable[[], Any]) -> int:
    """Return the most bytes that NumPy holds during a call beyond before."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def rows() -> list[str]:
    """Return the rows of the table."""
    found = []
    for name, made in (("block_lstm_grad", lstm), ("cudnn_rnn_backprop", net)):
        for shape in SHAPES:
            call, arguments = made(shape)
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
            found.append(
                f"| {name} {shape} | {1e3 * whole:.2f} | {ratios[0]:.2f} | {beyond:.2f} |"
                f" {ratios[1]:.2f} | {ratios[2]:.2f} | {peaks[2] / peaks[0]:.2f} |"
            )
    return found


def main() -> None:
    """Print the table and, with a path, write it there."""
    text = "\n".join(
        [
            "| (T, B, I, H) | sum, ms | examples / sum | less what writing takes | norms / sum |"
            " none / sum | memory, norms / sum |",
            "|---|---|---|---|---|---|---|",
            *rows(),
        ]
    )
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n")


if __name__ == "__main__":
    main()
