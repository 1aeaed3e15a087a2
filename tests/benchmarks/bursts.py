"""
Two threads in a hot loop and in bursts after pauses: an LSTM forward and backward.

    python tests/benchmarks/bursts.py [--bursts N] [--pause S] [--threads N] [cupyrnn] [torch]

Each library has a process of its own, and they take turns: of each turn's bursts of 12 calls the
median, beside the median of as many calls without a pause. On a busy machine only the ratio of two
lines of one turn says something. `left` is how often a thread left the caller's core. `cpu.py
--bursts` has the medians over the turns in its tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from processes import environment

SHAPE = 50, 16, 128, 128  # T, B, I, H
CALLS, TURNS = 12, 5


def _numbers(*shape: int) -> Any:
    return (np.random.default_rng(0).standard_normal(shape) * 0.1).astype(np.float32)


def _of_torch(threads: int) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(threads)
    T, B, I, H = SHAPE
    module, given = torch.nn.LSTM(I, H), torch.from_numpy(_numbers(T, B, H))
    x = torch.from_numpy(_numbers(T, B, I)).requires_grad_(True)

    def call() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        module(x)[0].backward(given)

    return call


def _of_cupyrnn(threads: int) -> Callable[[], Any]:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import cupyrnn
    from cupyrnn.compiled import threads as crew

    crew.count = lambda: threads
    T, B, I, H = SHAPE
    params = _numbers(cupyrnn.cudnn_rnn_params_size(1, H, I))
    args = _numbers(T, B, I), _numbers(1, B, H), _numbers(1, B, H), params
    given = _numbers(T, B, H)

    def call() -> Any:
        out = cupyrnn.cudnn_rnn(*args)
        rest = (given, None, None, out.reserve_space)
        return cupyrnn.cudnn_rnn_backprop(*args, *out[:3], *rest)

    return call


def _left() -> int:
    """Return how often the second thread left the caller's core."""
    crew = sys.modules.get("cupyrnn.compiled.threads")
    return 0 if crew is None else crew._word(crew._OWN + crew._LEFT)


def _measure(library: str, bursts: int, pause: float, threads: int) -> dict[str, float]:
    """Return milliseconds, and how often a thread left the caller's core."""
    call = (_of_torch if library == "torch" else _of_cupyrnn)(threads)

    def timed() -> list[float]:
        times = []
        for _ in range(CALLS):
            times.append(-time.perf_counter())
            call()
            times[-1] += time.perf_counter()
        return times

    timed()
    hot = np.concatenate([timed() for _ in range(bursts)])
    found, left = [], _left()
    for _ in range(bursts):
        time.sleep(pause)
        found.append(np.median(timed()))
    values = np.median(hot), np.median(found), np.quantile(found, 0.9)
    ms = dict(zip(("hot", "bursts", "90 % of them"), (1e3 * v for v in values), strict=True))
    return {**ms, "left": _left() - left}


def _turn(library: str, bursts: int, pause: float, threads: int) -> dict[str, float]:
    """Return what a process of its own measures."""
    given = [f"--bursts={bursts}", f"--pause={pause}", f"--threads={threads}"]
    command = [sys.executable, __file__, "--one", *given, library]
    variables = environment(threads)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def table(turns: int = TURNS, bursts: int = 20, pause: float = 0.2, threads: int = 2) -> str:
    """Return a table of both libraries, the medians over the turns."""
    libraries = ("torch", "cupyrnn")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in libraries}
    for _ in range(turns):
        for name in libraries:
            found[name].append(_turn(name, bursts, pause, threads))
    lines = ["| LSTM, (T, B, I, H) = (50, 16, 128, 128) | PyTorch, ms | cupyrnn, ms | ratio |"]
    lines.append("|---|--:|--:|--:|")
    names = {"hot": "hot loop", "bursts": f"bursts of {CALLS} calls after pauses of {pause:g} s"}
    for key, what in names.items():
        pairs = [(a[key], b[key]) for a, b in zip(*found.values(), strict=True)]
        theirs, ours, ratio = (
            statistics.median(v) for v in zip(*((a, b, a / b) for a, b in pairs), strict=True)
        )
        lines.append(f"| {what} | {theirs:.2f} | {ours:.2f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", default=["cupyrnn"])
    parser.add_argument("--bursts", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    given = options.bursts, options.pause, options.threads
    if options.one:
        print(json.dumps(_measure(options.libraries[0], *given)))
        return
    for _ in range(TURNS):
        for library in options.libraries:
            found = _turn(library, *given).items()
            print(f"{library:8}", *(f"{name} {value:.4g}" for name, value in found), flush=True)


if __name__ == "__main__":
    main()
