"""
A process of its own for what may crash or hang there without ending its caller.

It is given a line for each question and answers with a line, both JSON. What else it prints goes to
standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

_START = 60.0  # seconds that its imports may take


class Apart:
    """
    A module that calls `serve`, run in another process, which is started anew after a crash.

    Parameters
    ----------
    module, arguments
        What is run.
    seconds
        What an answer may take.

    Attributes
    ----------
    told : dict
        What it said first.
    """

    def __init__(self, module: str, arguments: Sequence[str], seconds: float) -> None:
        self._command, self._seconds = [sys.executable, "-m", module, *arguments], seconds
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
            what = self._command[min(3, len(self._command) - 1)]
            raise ValueError(f"{what} is imported by a process that {why}")
        if "error" in told:
            self.close()
            raise ValueError(told["error"])
        self.told = told

    def _answer(self, seconds: float) -> tuple[Any, str]:
        """Return the next answer, or None and what has become of the process."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        assert self._process.stdout is not None
        try:
            line = self._process.stdout.readline()
        finally:
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

    def ask(self, question: Any) -> tuple[Any, str]:
        """Return the answer, or None and what has become of the process."""
        if self._process.poll() is not None:
            self._start()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has just ended, as `_answer` finds out
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return self._answer(self._seconds)

    def close(self) -> None:
        """End the process, until the next question."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def serve(begin: Callable[[], tuple[dict[str, Any], Callable[[Any], Any]]]) -> None:
    """
    Be the other process.

    `begin` returns what is said first and what answers a question. Its ValueError says in one line
    why it cannot.
    """
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def tell(what: Any) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    try:
        told, answer = begin()
    except ValueError as error:
        tell({"error": str(error)})
        return
    tell(told)
    with contextlib.suppress(KeyboardInterrupt):
        for line in questions:
            tell(answer(json.loads(line)))
