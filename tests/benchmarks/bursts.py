"""
Two threads in a hot loop and in bursts after pauses: an LSTM forward and backward.

`cpu.py --bursts` has this table. Each library has a process of its own, this file, and they take
turns: of each turn's bursts of 12 calls the median, beside the median of as many calls without a
pause. On a busy machine only the ratio of two lines of one turn says something.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# The checkout that this file lies in is what is measured, whatever else is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

import cases
import numpy as np
import timing
from processes import environment

CASE = cases.Case(f"{cases.CUDNN}lstm", "float32", (50, 16, 128, 128))
CALLS, TURNS = 12, 5


def _measure(library: str, bursts: int, pause: float, threads: int) -> dict[str, float]:
    """Return milliseconds a call."""
    if library == "torch":
        cases.torch().set_num_threads(threads)
        (contestant,) = cases.peers(CASE)
    else:
        contestant = cases.plain(CASE)

    def timed() -> list[float]:
        return [sum(timing.repetition(contestant)) for _ in range(CALLS)]

    timed()
    hot = np.concatenate([timed() for _ in range(bursts)])
    found = []
    for _ in range(bursts):
        time.sleep(pause)
        found.append(np.median(timed()))
    return {"hot": 1e3 * np.median(hot), "bursts": 1e3 * np.median(found)}


def _turn(*given: Any) -> dict[str, float]:
    """Return what a process of its own measures of a library: bursts, pause, threads."""
    command = [sys.executable, __file__, json.dumps(given)]
    variables = environment(given[-1])
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
    lines = [f"| LSTM, (T, B, I, H) = {CASE.shape} | PyTorch, ms | cupyrnn, ms | ratio |"]
    lines.append("|---|--:|--:|--:|")
    names = {"hot": "hot loop", "bursts": f"bursts of {CALLS} calls after pauses of {pause:g} s"}
    for key, what in names.items():
        pairs = [(a[key], b[key]) for a, b in zip(*found.values(), strict=True)]
        theirs, ours, ratio = (
            statistics.median(v) for v in zip(*((a, b, a / b) for a, b in pairs), strict=True)
        )
        lines.append(f"| {what} | {theirs:.2f} | {ours:.2f} | {ratio:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(json.dumps(_measure(*json.loads(sys.argv[1]))))
