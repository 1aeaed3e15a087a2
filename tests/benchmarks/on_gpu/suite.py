"""The tests that need a GPU, run as one program with an end."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
# What pytest says of a test with -v, alone and of one of several processes; and of all of them with
# --collect-only.
_SAID = "PASSED|FAILED|ERROR|SKIPPED|XFAIL"
_ALONE = re.compile(rf"^(?!\[gw|{_SAID})(\S.*?) ({_SAID})\b", re.MULTILINE)
_OF_SEVERAL = re.compile(rf"^\[gw\d+\] \[ *\d+%\] ({_SAID}) (\S.*?) *$", re.MULTILINE)
_COLLECTED = re.compile(r"^.*\btests? collected\b.*$|^.*/\d+ tests collected.*$", re.MULTILINE)
# More have no more to do, and each has a part of the device's memory.
PROCESSES = 8


class Outcome(NamedTuple):
    """What became of the tests: in a sentence, and the problem if there is one."""

    text: str
    problem: str | None


def run(seconds: float, *, collect_only: bool) -> Outcome:
    """Run the tests that need a GPU, and stop them when their time is over."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "--tb=line"]
    command += ["--collect-only", "-q"] if collect_only else ["-v"]
    if not collect_only and importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(min(PROCESSES, os.cpu_count() or 1))]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and the processes that it began
            process.wait()
            status = None
        log.seek(0)
        return outcome(log.read(), status, seconds)


def outcome(output: str, status: int | None, seconds: float) -> Outcome:
    """
    Return what pytest's output means.

    Parameters
    ----------
    output
        All that it printed.
    status
        Its exit code, None where it was stopped.
    seconds
        The time that it had.
    """
    collected = _COLLECTED.search(output)
    if collected and status == 0:
        return Outcome(f"not run, as this is no GPU: {collected[0].strip(' =')}", None)
    found = _ALONE.findall(output) + [(name, said) for said, name in _OF_SEVERAL.findall(output)]
    counts: dict[str, int] = {}
    for _, said in found:
        counts[said] = counts.get(said, 0) + 1
    text = ", ".join(f"{n} {said.lower()}" for said, n in sorted(counts.items())) or "no test ran"
    failed = [name for name, said in found if said in ("FAILED", "ERROR")]
    if status is None:
        text = f"stopped after {seconds:.0f} s: {text}"
    last = (output.strip().splitlines() or ["no output"])[-1]
    if failed:
        return Outcome(text, f"{text}; {', '.join(failed[:10])}")
    if status not in (0, None):
        return Outcome(text, f"{text}; pytest ended with {status}: {last}")
    return Outcome(text, None)
