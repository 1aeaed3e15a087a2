"""The scripts of the page "Faults found elsewhere" still show these faults."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import needs
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guide/faults_elsewhere.md").read_text(encoding="utf-8")
_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_SCRIPT = re.compile(r"^```py\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
# Title, script and its output, which is empty for the scripts that need a GPU.
SCRIPTS = [
    (title, *found)
    for title, section in _SECTION.findall(PAGE)
    for found in _SCRIPT.findall(section)
]
MEMORY = "TensorFlow: memory that nobody wrote"


def cases(*, printed: bool, memory: bool = False) -> list[object]:
    """Return pytest's parameters for the scripts with, or without, a shown output."""
    found: list[object] = []
    for title, script, expected in SCRIPTS:
        if bool(expected) == printed and (title == MEMORY) == memory:
            libraries = re.findall(
                r"^(?:import|from) (tensorflow|onnxruntime|torch|thinc)\b", script, re.MULTILINE
            )
            assert libraries, title
            marks = [needs.without(name) for name in {*libraries}]
            found.append(pytest.param(script, expected, id=title, marks=marks))
    return found


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a separate process, because some faults end it."""
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )


def test_all_scripts_are_found() -> None:
    assert len(SCRIPTS) == len(re.findall("^```py$", PAGE, re.MULTILINE)) >= 8


@pytest.mark.parametrize(("script", "expected"), cases(printed=True))
def test_a_script_prints_what_the_page_shows(script: str, expected: str) -> None:
    ended = run(script)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == expected


@pytest.mark.parametrize(("script", "expected"), cases(printed=True, memory=True))
def test_memory_that_nobody_wrote(script: str, expected: str) -> None:
    """Only `cs` and `h` are always zero. Old memory may contain zeros by chance."""
    for _ in range(5):
        ended = run(script)
        assert ended.returncode == 0, ended.stderr
        largest = ast.literal_eval(ended.stdout.replace("nan", "1e99").replace("inf", "1e99"))
        assert largest.keys() == ast.literal_eval(expected).keys()
        assert largest["cs"] == largest["h"] == 0
        if any(largest.values()):
            break
    else:
        pytest.fail("all outputs were zeros in five runs")

    ((message, length),) = re.findall(r"`(Check failed: .*? \((\d+) vs\. \d+\))`", PAGE)
    ended = run(script.replace("tf.constant(2,", f"tf.constant({length},"))
    assert ended.returncode != 0
    assert message in ended.stderr


@pytest.mark.parametrize(("script", "expected"), cases(printed=False))
@pytest.mark.filterwarnings("error")
def test_a_script_for_a_gpu_is_right_on_a_cpu(script: str, expected: str) -> None:
    """The fault is the GPU's: on a CPU the same lines print the error of a right result."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(script.replace(".cuda()", "").replace(', device="cuda"', ""), {})
    errors = [float(line.split()[-1]) for line in printed.getvalue().splitlines()]
    assert errors
    assert max(errors) < 2e-3
