"""
The tables of tests/README.md: the ops with their array types, and the tests that every op has.

From the folder tests, `python -m problems.page` writes them into the page.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .table import TABLE

PAGE = Path(__file__).parents[1] / "README.md"
# The tests of all ops, or of all ops of a kind.
PROPERTIES = ("plain_loops", "properties")
LETTERS = {"numpy": "N", "numba": "C", "cuda_on_cpu": "S", "cupy": "G"}
# In the order of the columns.
KINDS = ("cells", "block ops", "cudnn_rnn", "stacked_rnn")


def kind_of(name: str) -> str:
    """Return the column of an op."""
    op = TABLE[name]
    return "cells" if op.is_cell else op.schema.name if op.is_net else "block ops"


def letters(places: set[str]) -> str:
    """Return the letters of array types."""
    return "".join(letter for place, letter in LETTERS.items() if place in places)


def of_ops() -> Iterator[str]:
    """Yield the rows of the ops."""
    yield "| op | array types | its cases vary |"
    yield "|---|---|---|"
    shared = set.intersection(*(set(op.factors) for op in TABLE.values()))
    for name, op in TABLE.items():
        factors = ", ".join(f"`{factor}`" for factor in op.factors if factor not in shared)
        yield f"| `{name}` | {letters(set(op.places))} | {factors} |"


def tests_of(module: str) -> Iterator[tuple[str, Any]]:
    """Yield the tests of a module that run over the table, with their cases."""
    for name, function in vars(importlib.import_module(f"ops.test_{module}")).items():
        for mark in getattr(function, "pytestmark", ()):
            if inspect.isfunction(function) and mark.args[:1] == (("ops", "case"),):
                yield name, mark.args[1]


def of_properties() -> Iterator[str]:
    """Yield the rows of the tests of every op."""
    yield f"| test | {' | '.join(KINDS)} |"
    yield "|---" * (1 + len(KINDS)) + "|"
    for module in PROPERTIES:
        for name, cases in tests_of(module):
            places: dict[str, set[str]] = {kind: set() for kind in KINDS}
            for place, case in (case.values for case in cases):
                places[kind_of(case.name)].add(place)
            cells = " | ".join(letters(places[kind]) for kind in KINDS)
            yield f"| `{module}::{name.removeprefix('test_')}` | {cells} |"


def filled(page: str) -> str:
    """Return a page with new tables."""
    for title, rows in (("ops", of_ops()), ("properties", of_properties())):
        begin, end = f"<!-- {title} -->\n", f"<!-- end of {title} -->"
        before, rest = page.split(begin)
        page = before + begin + "\n".join(rows) + "\n" + end + rest.split(end)[1]
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
