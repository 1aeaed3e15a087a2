"""A process of its own for a runtime, which may crash or hang there without ending the report."""

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
    Return the process of a runtime, which is started anew after a crash.

    What it says first is `about`, the runtime with its version, and whether it has `gradients`.
    """
    return Apart(_begin, [name, gradients or ""], seconds, name)


def judge_in(process: Apart, what: str) -> report.Judge:
    """Return what has a process run a case, and gives the verdict on its outputs or gradients."""

    def judge(case: Stored) -> tuple[str, str]:
        verdict: tuple[str, str] | None
        verdict, why = process.ask([str(case.path.parent), what])
        return verdict or (report.CRASHED, f"its process {why}")

    return judge


def _begin(name: str, gradients_of: str) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    run, gradients, about = runtime_of(name, gradients_of or None)

    def answer(question: Any) -> tuple[str, str]:
        place, what = question
        case = files.read_case(Path(place))
        if what == OUTPUTS:
            return report.of_outputs(case, run)
        assert gradients is not None
        return report.of_gradients(case, gradients)

    return {"about": about, "gradients": gradients is not None}, answer
