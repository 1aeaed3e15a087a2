"""
The CPU time of small calls, in another tree and in this one, by turns.

    git worktree add ../before COMMIT
    python tests/benchmarks/small_calls.py ../before          # in NumPy alone
    python tests/benchmarks/small_calls.py ../before --numba

Every time is the shortest of 200, because other programs only make calls slower.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT, ROUNDS, REPETITIONS, CALLS = Path(__file__).parents[2], 4, 50, 5
T, B, H = 20, 4, 32
LENGTHS = np.array([20, 7, 13, 20], np.int32)
# Arguments of calls, and of their gradients, beside the plain ones.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "": ({}, {}),
    "lengths": ({"sequence_lengths": LENGTHS}, {}),
    "resets": ({"resets": np.arange(T * B).reshape(T, B) % 11 == 5}, {}),
    "save=4": ({"save": 4}, {}),
    "by example": ({}, {"weight_gradients": "examples"}),
    "float16": ({}, {}),
}


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls and their names, T = 20, B = 4 and I = H = 32; a cell has one sequence."""
    import cupyrnn

    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32) * np.float32(0.3)

    cells = {"lstm_block_cell": (4,), "gru_block_cell": (2, 1)}
    ops = {"block_lstm": (4,), "block_gru": (2, 1)}
    of_ops: list[tuple[str, Any, list[Any], dict[str, Any]]] = []
    for name, widths in (cells | ops).items():
        lead, rows = ((1,), 1) if name in cells else ((T, B), B)
        states = [draw(rows, H) for _ in range(3 - len(widths))]
        weights = [draw(2 * H, n * H) for n in widths] + [draw(n * H) for n in widths]
        of_ops.append((name, getattr(cupyrnn, name), [draw(*lead, H), *states, *weights], {}))
    for mode in ("lstm", "gru", "rnn_tanh"):
        net: dict[str, Any] = {"rnn_mode": mode, "direction": "bidirectional"}
        size = cupyrnn.cudnn_rnn_params_size(num_layers=2, num_units=H, input_size=H, **net)
        states = [draw(4, B, H), draw(4, B, H) if mode == "lstm" else None]
        arrays = [draw(T, B, H), *states, draw(size)]
        of_ops.append((f"cudnn_rnn, {mode}, L = D = 2", cupyrnn.cudnn_rnn, arrays, net))
    for name, op, arrays, more in of_ops:
        for way, (forward, backward) in WAYS.items() if "lstm" in name else [("", WAYS[""])]:
            if name in cells and way:
                continue
            named = f"{name}, {way}" if way else name
            if way == "float16":
                arrays = [a if a is None else a.astype(np.float16) for a in arrays]
            out, pullback = cupyrnn.vjp(op, *arrays, **more, **forward)
            saves = "save" in forward and "cudnn" not in name  # block ops keep states in vjp
            if not saves and not backward:
                yield named, partial(op, *arrays, **more, **forward)
            of = "h" if "h" in out._fields else "output_backprop"
            like = out.h if of == "h" else out.output
            yield (
                f"{named}, gradient",
                partial(pullback, **{of: draw(*like.shape).astype(like.dtype)}, **backward),
            )


def shortest(call: Callable[[], Any]) -> float:
    """Return the shortest time of a call in microseconds."""
    times = []
    for _ in range(REPETITIONS + 1):  # the first one is not counted
        start = time.thread_time_ns()
        for _ in range(CALLS):
            call()
        times.append((time.thread_time_ns() - start) / CALLS / 1e3)
    return min(times[1:])


def measure(tree: Path, numba: bool) -> dict[str, float]:
    """Return the times of a tree, measured in a process of its own."""
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    env["CUPYRNN_NUMBA"] = str(int(numba))
    command = [sys.executable, __file__]
    printed = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE).stdout
    times: dict[str, float] = json.loads(printed)
    return times


def plain_of(name: str) -> str:
    """Return the name of the plain call of a way."""
    parts = name.split(", ")
    return ", ".join(part for part in parts if part not in WAYS)


def main(before: Path, numba: bool) -> None:
    """Print the table."""
    found = [(measure(before, numba), measure(ROOT, numba)) for _ in range(ROUNDS)]
    sides = zip(*found, strict=True)
    old, new = ({n: min(times[n] for times in side) for n in side[0]} for side in sides)
    print("| call | before | now | ratio | times the plain call |\n|---|--:|--:|--:|--:|")
    for name in old:
        plain = plain_of(name)
        times = "" if plain == name else f"{new[name] / new[plain]:.2f}"
        row = f"{old[name]:.1f} | {new[name]:.1f} | {new[name] / old[name]:.2f} | {times}"
        print(f"| {name} | {row} |")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("before", type=Path, help="the other tree")
        parser.add_argument("--numba", action="store_true", help="with Numba")
        options = parser.parse_args()
        main(options.before.resolve(), options.numba)
    else:
        print(json.dumps({name: shortest(call) for name, call in calls()}))
