"""
The CPU time of small calls in NumPy alone, in another tree and in this one, by turns.

    git worktree add ../before COMMIT
    python tests/benchmarks/numpy_alone.py ../before

Every time is the shortest of 200, because other programs only make calls slower.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT, ROUNDS, REPETITIONS, CALLS = Path(__file__).parents[2], 4, 50, 5


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls and their names, T = 20, B = 4 and I = H = 32; a cell has one sequence."""
    import numpy as np

    import cupyrnn

    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32) * np.float32(0.3)

    T, B, H = 20, 4, 32
    cells = {"lstm_block_cell": (4,), "gru_block_cell": (2, 1)}
    ops = {"block_lstm": (4,), "block_gru": (2, 1)}
    for name, widths in (cells | ops).items():
        lead, rows = ((1,), 1) if name in cells else ((T, B), B)
        states = [draw(rows, H) for _ in range(3 - len(widths))]
        weights = [draw(2 * H, n * H) for n in widths] + [draw(n * H) for n in widths]
        x, op = draw(*lead, H), getattr(cupyrnn, name)
        arguments = x, *states, *weights
        yield name, partial(op, *arguments)
        out, pullback = cupyrnn.vjp(op, *arguments)
        yield f"{name}, gradient", partial(pullback, h=draw(*out.h.shape))
    for mode in ("lstm", "gru", "rnn_tanh"):
        net: dict[str, Any] = {"rnn_mode": mode, "direction": "bidirectional"}
        size = cupyrnn.cudnn_rnn_params_size(num_layers=2, num_units=H, input_size=H, **net)
        inputs = [draw(T, B, H), draw(4, B, H), draw(4, B, H) if mode == "lstm" else None]
        inputs.append(draw(size))
        name = f"cudnn_rnn, {mode}, L = D = 2"
        yield name, partial(cupyrnn.cudnn_rnn, *inputs, **net)
        out, pullback = cupyrnn.vjp(cupyrnn.cudnn_rnn, *inputs, **net)
        yield f"{name}, gradient", partial(pullback, output_backprop=draw(*out.output.shape))


def shortest(call: Callable[[], Any]) -> float:
    """Return the shortest time of a call in microseconds."""
    times = []
    for _ in range(REPETITIONS + 1):  # the first one is not counted
        start = time.thread_time_ns()
        for _ in range(CALLS):
            call()
        times.append((time.thread_time_ns() - start) / CALLS / 1e3)
    return min(times[1:])


def measure(tree: Path) -> dict[str, float]:
    """Return the times of a tree, measured in a process of its own."""
    env = os.environ | {"CUPYRNN_NUMBA": "0", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    command = [sys.executable, __file__]
    printed = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE).stdout
    times: dict[str, float] = json.loads(printed)
    return times


def main(before: Path) -> None:
    """Print the table."""
    found = [(measure(before), measure(ROOT)) for _ in range(ROUNDS)]
    print("| call | before | now | ratio |\n|---|--:|--:|--:|")
    for name in found[0][0]:
        old, new = (min(times[name] for times in side) for side in zip(*found, strict=True))
        print(f"| {name} | {old:.1f} | {new:.1f} | {new / old:.2f} |")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).resolve())
    else:
        print(json.dumps({name: shortest(call) for name, call in calls()}))
