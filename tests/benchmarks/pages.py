"""What the scripts have in common: tables, and what is installed."""

from __future__ import annotations

import importlib.util
import platform
import re
from collections.abc import Iterable
from pathlib import Path

TENSORFLOW, PYTORCH = "TensorFlow", "PyTorch"
MODULES = {TENSORFLOW: "tensorflow", PYTORCH: "torch"}


def markdown(titles: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a table."""
    titles = [*titles]
    rule = ["---"] * len(titles)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rule, *lines))


def digits(value: float | None) -> str:
    """Return three digits, or all before the point."""
    if value is None:
        return "–"
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def processor() -> str:
    """Return the name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
