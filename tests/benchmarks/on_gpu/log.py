"""The results of a run, written as they come."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pages


class Log:
    """Writes each result at once, as a line of JSON and as one of a page, and prints it."""

    def __init__(self, stem: Path, title: str, environment: dict[str, Any]) -> None:
        stem.parent.mkdir(parents=True, exist_ok=True)
        self.page, self.lines = (stem.with_name(f"{stem.name}.{end}") for end in ("md", "jsonl"))
        self.lines.write_text(json.dumps(environment) + "\n", encoding="utf-8")
        about = (f"* {name}: {value}\n" for name, value in environment.items())
        self.page.write_text(f"# {title}\n\n{''.join(about)}", encoding="utf-8")
        self.failed, self.part = False, ""
        self.titles: list[str] = []

    def begin(self, part: str, titles: Iterable[str], notes: str = "") -> None:
        self.part, self.titles = part, [*titles]
        parts = f"## {part.capitalize()}", notes, pages.markdown(self.titles, ())
        self._write("\n" + "\n\n".join(filter(None, parts)) + "\n")

    def add(self, *cells: Any, wrong: bool = False) -> None:
        """Write a row: a cell for each title, where the last one is a remark, or fewer."""
        self.failed |= wrong
        cells = (*cells[:-1], *[""] * (len(self.titles) - len(cells)), cells[-1])
        row = {"part": self.part, "cells": [*map(str, cells)], "wrong": wrong}
        with self.lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._write(f"| {' | '.join(map(str, cells))} |\n")

    def _write(self, text: str) -> None:
        with self.page.open("a", encoding="utf-8") as file:
            file.write(text)
        print(text, end="", flush=True)
