"""
Two threads in a hot loop and in bursts after pauses: an LSTM forward and backward.

    python tests/benchmarks/bursts.py [--bursts N] [--pause S] [--threads N] [cupyrnn] [torch]

Each library has a process of its own, and they take turns: of each turn's bursts of 12 calls the
median, beside the median of as many calls without a pause. On a busy machine only the ratio of two
lines of one turn says something. `left` is how often a thread left the caller's core.
"""

from __future__ import annotations

import argparse
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


def _measure(library: str, bursts: int, pause: float, threads: int) -> str:
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
    ms = [1e3 * value for value in (np.median(hot), np.median(found), np.quantile(found, 0.9))]
    return "hot {:6.2f} ms, bursts {:6.2f} ms, 90 % of them {:6.2f} ms, left {}".format(
        *ms, _left() - left
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", default=["cupyrnn"])
    parser.add_argument("--bursts", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(_measure(options.libraries[0], options.bursts, options.pause, options.threads))
        return
    given = [f"--{name}={getattr(options, name)}" for name in ("bursts", "pause", "threads")]
    for _ in range(TURNS):
        for library in options.libraries:
            command = [sys.executable, __file__, "--one", *given, library]
            done = subprocess.run(
                command,
                env=environment(options.threads),
                capture_output=True,
                text=True,
                check=True,
            )
            print(f"{library:8} {done.stdout}", end="", flush=True)


if __name__ == "__main__":
    main()
