"""
A process of its own for a runtime, which may crash or hang there without ending the report.

The process is given a line for each case and answers with a line. What the runtime itself prints
goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from . import files, report
from .files import Stored
from .runtimes import runtime_of

_OUTPUTS, _GRADIENTS = "outputs", "gradients"
_START = 60.0  # seconds that the import of a runtime may take


class Worker:
    """
    A runtime in another process, which is started anew after a crash.

    Attributes
    ----------
    about : str
        The runtime with its version.
    has_gradients : bool
        Whether it has gradients.
    """

    def __init__(self, name: str, gradients: str | None, seconds: float) -> None:
        self._command = [sys.executable, "-m", __name__, name, gradients or ""]
        self._seconds = seconds
        self._start()

    def _start(self) -> None:
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path},
        )
        told, why = self._answer(max(self._seconds, _START))
        if told is None:
            raise ValueError(f"{self._command[-2]} is imported by a process that {why}")
        if "error" in told:
            self.close()
            raise ValueError(told["error"])
        self.about, self.has_gradients = told["about"], told["gradients"]

    def _answer(self, seconds: float) -> tuple[Any, str]:
        """Return the next answer, or None and what has become of the process."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        timer.cancel()
        if line.endswith("\n"):
            return json.loads(line), ""
        status = self._process.wait()
        self.close()
        if late.is_set():
            return None, f"gave no answer within {seconds:g} s"
        if status < 0:
            return None, f"ended by {signal.Signals(-status).name}"
        return None, f"ended with status {status}"

    def _ask(self, case: Stored, what: str) -> tuple[str, str]:
        if self._process.poll() is not None:
            self._start()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has just ended, as `_answer` finds out
            self._process.stdin.write(json.dumps([str(case.path.parent), what]) + "\n")
            self._process.stdin.flush()
        told, why = self._answer(self._seconds)
        if told is None:
            return report.CRASHED, f"its process {why}"
        verdict, why = told
        return verdict, why

    def outputs(self, case: Stored) -> tuple[str, str]:
        """Return a verdict on the outputs of a case, and why."""
        return self._ask(case, _OUTPUTS)

    def gradients(self, case: Stored) -> tuple[str, str]:
        """Return a verdict on the gradients of a case, and why."""
        return self._ask(case, _GRADIENTS)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def main() -> None:
    """Be the other process."""
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def answer(told: Any) -> None:
        answers.write(json.dumps(told) + "\n")
        answers.flush()

    try:
        run, gradients, about = runtime_of(sys.argv[1], sys.argv[2] or None)
    except ValueError as error:
        answer({"error": str(error)})
        return
    answer({"about": about, "gradients": gradients is not None})
    try:
        for line in questions:
            place, what = json.loads(line)
            case = files.read_case(Path(place))
            if what == _OUTPUTS:
                answer(report.of_outputs(case, run))
            elif gradients is not None:
                answer(report.of_gradients(case, gradients))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
