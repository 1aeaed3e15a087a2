"""A separate process for code that may crash or hang without harm to its caller."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

_START = 60.0  # seconds that its imports may take
# A fresh interpreter, because the CUDA state of this process is useless in another one.
_FRESH = multiprocessing.get_context("spawn")


class Apart:
    """
    Answers questions in another process, which is started again after a crash.

    Parameters
    ----------
    begin, arguments
        A function of a module, which that process calls. It returns a first message, and a function
        that answers questions. If it cannot, it raises a ValueError of one line.
    seconds
        The longest time of an answer.
    name
        The module that the process imports, for errors.

    Attributes
    ----------
    facts : dict
        The first message: facts about the process.
    """

    def __init__(
        self, begin: Callable[..., Any], arguments: Sequence[str], seconds: float, name: str
    ) -> None:
        self._begin, self._arguments, self._seconds, self._name = begin, arguments, seconds, name
        self._start()

    def _start(self) -> None:
        self._end, there = _FRESH.Pipe()
        of_process = there, os.getcwd(), self._begin, self._arguments
        self._process = _FRESH.Process(target=_serve, args=of_process, daemon=True)
        self._process.start()
        there.close()
        facts, why = self._answer(max(self._seconds, _START))
        if facts is None:
            raise ValueError(f"the process that imports {self._name} {why}")
        if "error" in facts:
            self.close()
            raise ValueError(facts["error"])
        self.facts = facts

    def _answer(self, seconds: float) -> tuple[Any, str]:
        """Return the next answer, or None and what happened to the process."""
        why = f"gave no answer within {seconds:g} s"
        try:
            if self._end.poll(seconds):
                return self._end.recv(), ""
        except (EOFError, OSError):
            self._process.join()
            status = self._process.exitcode or 0
            why = f"ended with status {status}"
            if status < 0:
                why = f"ended by {signal.Signals(-status).name}"
        self.close()
        return None, why

    def ask(self, question: Any) -> tuple[Any, str]:
        """Return the answer to a question, or None and what happened to the process."""
        if not self._process.is_alive():
            self._start()
        with contextlib.suppress(OSError):  # it has just ended; `_answer` reports this
            self._end.send(question)
        return self._answer(self._seconds)

    def close(self) -> None:
        """End the process, until the next question."""
        self._process.kill()
        self._process.join()
        self._end.close()


def _serve(
    end: Connection, folder: str, begin: Callable[..., Any], arguments: Sequence[str]
) -> None:
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.dup2(2, 1)  # its output is kept apart from its caller's
    try:
        facts, answer = begin(*arguments)
    except ValueError as error:
        end.send({"error": str(error)})
        return
    end.send(facts)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            end.send(answer(end.recv()))
