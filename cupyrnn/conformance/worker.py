"""Runs a runtime in its own process, so that a crash or a hang does not end the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..device.apart import Apart
from . import files, report
from .files import Stored
from .runtimes import runtime_of

OUTPUTS, GRADIENTS = "outputs", "gradients"


def start(name: str, gradients: str | None, seconds: float) -> Apart:
    """
    Return the process of a runtime; it is restarted after a crash.

    Its first message is `about` (the runtime with its version) and whether it has `gradients`.
    """
    return Apart(_begin, [name, gradients or ""], seconds, name)


def judge_in(process: Apart, kind: str) -> report.Judge:
    """Return a function that runs a case in the process and returns the verdict on it."""

    def judge(case: Stored) -> tuple[str, str]:
        verdict: tuple[str, str] | None
        verdict, why = process.ask([str(case.path.parent), kind])
        return verdict or (report.CRASHED, f"its process {why}")

    return judge


def _begin(name: str, gradients_of: str) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    run, gradients, about = runtime_of(name, gradients_of or None)

    def answer(question: Any) -> tuple[str, str]:
        place, kind = question
        case = files.read_case(Path(place))
        if kind == OUTPUTS:
            return report.of_outputs(case, run)
        assert gradients is not None
        return report.of_gradients(case, gradients)

    return {"about": about, "gradients": gradients is not None}, answer
