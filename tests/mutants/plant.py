"""
Plant one wrong line at a time in a copy of the tree, and see whether the tests notice.

    python tests/mutants/plant.py                    # all of planted.txt, about an hour
    python tests/mutants/plant.py 12 30-40 weights   # by number, or by a part of the file's name

The list, planted.txt beside this file, has the right line, the wrong one, and the tests that should
notice it. Each error has its own process, which ends at the first failure. If all its tests are
skipped, for example without a framework, the result is open.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT, LIST = Path(__file__).parents[2], Path(__file__).with_name("planted.txt")
# Before the tests of an entry: they run on real CuPy over memory of the host.
ON_HOST = "on_host"
SECONDS = 600  # the most for the tests of one error, which may make them hang


class Planted(NamedTuple):
    """One wrong line."""

    number: int
    file: str  # of the package
    before: str
    after: str
    tests: tuple[str, ...]

    def in_text(self, text: str) -> str:
        """Return the text of the file with the wrong line."""
        lines = text.split("\n")
        places = [n for n, line in enumerate(lines) if line.strip() == self.before]
        if len(places) != 1:
            raise ValueError(
                f"{self.number}, {self.file}: the line is there {len(places)} times, expected once:"
                f" {self.before}"
            )
        line = lines[places[0]]
        lines[places[0]] = line[: len(line) - len(line.lstrip())] + self.after
        return "\n".join(lines)


def planted() -> list[Planted]:
    """Return the list."""
    text = LIST.read_text(encoding="utf-8")
    found = re.findall(r"^(\S+)\n- (.+)\n\+ (.+)\n((?:  .+\n)+)", text, re.MULTILINE)
    return [
        Planted(n, file, before, after, tuple(tests.split()))
        for n, (file, before, after, tests) in enumerate(found, 1)
    ]


def wanted(entry: Planted, chosen: list[str]) -> bool:
    """Whether the command line selects an entry, by its number or a part of its file's name."""
    for choice in chosen:
        numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", choice)
        if numbers is None:
            if choice in entry.file:
                return True
        elif int(numbers[1]) <= entry.number <= int(numbers[2] or numbers[1]):
            return True
    return not chosen


def verdict(tree: Path, tests: tuple[str, ...]) -> str:
    """Run tests in a tree; return caught, missed, or why it is open."""
    pytest = ["-m", "pytest", "-x", "-n0", "-q", "-p", "no:cacheprovider", "--no-header"]
    if tests[0] == ON_HOST:
        if importlib.util.find_spec("cupy") is None:
            return "not run: needs CuPy"
        pytest = ["tests/without_a_gpu/cupy_on_host", *pytest, "-m", "gpu"]
    paths = [test for test in tests if test != ON_HOST]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    try:
        run = subprocess.run(
            [sys.executable, *pytest, *paths],
            cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "caught: no end"
    if run.returncode == 0:
        return "missed" if " passed" in run.stdout else "not run: every test is skipped"
    if run.returncode == 1:
        failed = re.search(r"^(?:FAILED|ERROR) (?:\S*/)?(\S+)", run.stdout, re.MULTILINE)
        return f"caught: {failed[1]}" if failed else "caught"
    # A module that cannot be imported is an error while pytest collects, a crash a signal.
    return f"caught: pytest ends with {run.returncode}"


def main() -> None:
    """Plant the selected errors, and count."""
    parser = argparse.ArgumentParser(description="Plant errors and see whether the tests notice.")
    parser.add_argument("chosen", nargs="*", help="numbers, as 12 or 30-40, or parts of file names")
    chosen = [entry for entry in planted() if wanted(entry, parser.parse_args().chosen)]
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        leave = shutil.ignore_patterns(".git", "__pycache__", "_build", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, tree, ignore=leave, symlinks=True)
        for entry in chosen:
            path = tree / "cupyrnn" / entry.file
            text = path.read_text(encoding="utf-8")
            path.write_text(entry.in_text(text), encoding="utf-8")
            # Compiled code is kept by whole seconds and the size: a time that no other has had.
            os.utime(path, (2 * entry.number, 2 * entry.number))
            begin = time.monotonic()
            said = verdict(tree, entry.tests)
            path.write_text(text, encoding="utf-8")
            os.utime(path, (1, 1))
            kind = said.partition(":")[0]
            counts[kind] = counts.get(kind, 0) + 1
            seconds = time.monotonic() - begin
            print(f"{entry.number:3} {entry.file}: {said} ({seconds:.0f} s)", flush=True)
            if kind != "caught":
                print(f"    - {entry.before}\n    + {entry.after}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
