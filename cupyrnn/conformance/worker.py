"""A process of its own for a runtime, which may crash or hang there without ending the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..device.apart import Apart
from . import files, report
from .files import Stored
from .runtimes import runtime_of

_OUTPUTS, _GRADIENTS = "outputs", "gradients"


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
        self._apart = Apart(_begin, [name, gradients or ""], seconds, name)
        self.about: str = self._apart.told["about"]
        self.has_gradients: bool = self._apart.told["gradients"]

    def _ask(self, case: Stored, what: str) -> tuple[str, str]:
        told, why = self._apart.ask([str(case.path.parent), what])
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
        self._apart.close()


def _begin(name: str, gradients_of: str) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    run, gradients, about = runtime_of(name, gradients_of or None)

    def answer(question: Any) -> tuple[str, str]:
        place, what = question
        case = files.read_case(Path(place))
        if what == _OUTPUTS:
            return report.of_outputs(case, run)
        assert gradients is not None
        return report.of_gradients(case, gradients)

    return {"about": about, "gradients": gradients is not None}, answer
