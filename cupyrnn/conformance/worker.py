"""Runs a runtime in its own process, so that a crash or a hang does not end the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import files, report
from .apart import Apart
from .files import Stored
from .runtimes import runtime_of


def start(name: str, gradients: str | None, seconds: float) -> Apart:
    """
    Return the process of a runtime; it is restarted after a crash.

    Its first message is `about` (the runtime with its version) and whether it has `gradients`.
    """
    return Apart(_begin, [name, gradients or ""], seconds, name)


def outcome(process: Apart, case: Stored, *, gradients: bool) -> report.Outcome:
    """Run a case, or its gradient, in the process."""
    verdict, why = process.ask((str(case.path.parent), gradients))
    verdict = verdict or (report.CRASHED, f"its process {why}")
    return report.Outcome(case.name, case.size, case.features, *verdict)


def _begin(name: str, gradients_of: str) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    run, back, about = runtime_of(name, gradients_of or None)

    def answer(question: Any) -> tuple[str, str]:
        (place, gradients), functions = question, (run, back)
        function: Any = functions[gradients]
        return report.verdict_on(files.read_case(Path(place)), function, gradients=gradients)

    return {"about": about, "gradients": back is not None}, answer
