"""Errors in kernels over all steps, and which tools catch each: the list in wrong_steps.txt."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

from without_a_gpu.all_steps import BOUNDS, INTERPRETER, ORDERS

TOOLS = {"orders": ORDERS, "races": INTERPRETER, "bounds": BOUNDS}


class Wrong(NamedTuple):
    """An error: its cell, pairs of a part of the source and the wrong one, what catches it."""

    cell: str
    replaced: list[tuple[str, str]]
    tools: set[str]


def _errors() -> dict[str, dict[str, Wrong]]:
    """Return the errors of each frame by their names."""
    found: dict[str, dict[str, Wrong]] = {}
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for entry in text.split("\n\n")[1:]:
        title, *lines, last = entry.splitlines()
        frame, name = title.split(": ", 1)
        cell, tools = last.split(": ")
        parts = [
            "\n".join(line[2:] for line in part)
            for _, part in itertools.groupby(lines, lambda line: line[0])
        ]
        replaced = [*zip(parts[::2], parts[1::2], strict=True)]
        wrong = Wrong(cell.strip(), replaced, {TOOLS[tool] for tool in tools.split(", ")})
        found.setdefault(frame, {})[name] = wrong
    return found


WRONG = _errors()
