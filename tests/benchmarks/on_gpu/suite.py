"""The package's own command for a GPU, and the tests that need one, as programs with an end."""

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
_ALONE = re.compile(rf"^(?!\[gw|___|===|{_SAID})(\S.*?) ({_SAID})\b", re.MULTILINE)
_OF_SEVERAL = re.compile(rf"^\[gw\d+\] \[ *\d+%\] ({_SAID}) (\S.*?) *$", re.MULTILINE)
_COLLECTED = re.compile(r"^.*\btests? collected\b.*$|^.*/\d+ tests collected.*$", re.MULTILINE)
# More have no more to do, and each has a part of the device's memory.
PROCESSES = 8
# What the tests import beside the package: all of them, or none is collected.
NEEDED = ("pytest", "hypothesis")
# What the command is given: sizes at which every kernel is taken.
SIZES = ("--units", "33", "128", "512", "--batches", "1", "63")
DRY = ("--cells", "lstm", "--dtypes", "float32", "--units", "9", "--batches", "3")


class Outcome(NamedTuple):
    """What became of the tests: in a sentence, and the problem if there is one."""

    text: str
    problem: str | None


def _run(command: list[str], seconds: float, **variables: str) -> tuple[str, int | None]:
    """Return what a program prints, and its exit code, None where it was stopped."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **variables},
        )
        try:
            status: int | None = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and the processes that it began
            process.wait()
            status = None
        log.seek(0)
        return log.read(), status


def command(seconds: float, *, dry: bool) -> Outcome:
    """Compare all kernels with NumPy by the package's own command, which keeps the fastest."""
    if dry:
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        given = {"CUPYRNN_CACHE_DIR": "", "PYTHONPATH": path}
        output, status = _run(["cupyrnn.device", *DRY], seconds, **given)
    else:
        output, status = _run(["cupyrnn.device", *SIZES], seconds)
    lines = output.strip().splitlines() or ["no output"]
    text = f"{sum(line.endswith(' right') for line in lines)} lines right"
    wrong = [line for line in lines if line.startswith("WRONG")]
    if status is None:
        text = f"stopped after {seconds:.0f} s: {text}"
    elif status and not wrong:
        wrong = lines[-1:]
    return Outcome(text, "; ".join(wrong) or None)


def run(seconds: float, *, collect_only: bool) -> Outcome:
    """Run the tests that need a GPU, and stop them when their time is over."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return Outcome(f"not run, needs {', '.join(missing)}: pip install '.[test]'", None)
    command = ["pytest", "-m", "gpu", "-p", "no:cacheprovider", "--tb=line"]
    command += ["--collect-only", "-q"] if collect_only else ["-v"]
    command += ["--continue-on-collection-errors"]
    if not collect_only and importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(min(PROCESSES, os.cpu_count() or 1))]
    return outcome(*_run(command, seconds), seconds)


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
