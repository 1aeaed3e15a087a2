"""The tests with a user's plugins of pytest, and with their own options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOOKS = ("configure", "sessionstart", "collection_modifyitems", "sessionfinish", "terminal_summary")
PLUGIN = "import warnings\n" + "".join(
    f"def pytest_{hook}(): warnings.warn('of a plugin', stacklevel=2)\n" for hook in HOOKS
)
TESTS = """
import warnings
import pytest

def test_warns():
    warnings.warn("of a test", stacklevel=2)

@pytest.mark.filterwarnings("ignore:of a test")
def test_may_warn():
    test_warns()
"""
WARNS_AT_IMPORT = 'import warnings\nwarnings.warn("of an import", stacklevel=2)'


def run(folder: Path, *options: str, **files: str) -> str:
    """Run files of tests with this project's conftest.py, and return what pytest prints."""
    for name, text in files.items():
        folder.joinpath(f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "conftest"]
    command += ["-p", "no:cacheprovider", "--noconftest", *options, folder]
    folders = os.pathsep.join(map(str, (folder, ROOT / "tests", ROOT)))
    environment = {**os.environ, "PYTHONPATH": folders}
    found = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    return found.stdout + found.stderr


def test_warnings_of_plugins_are_no_errors(tmp_path: Path) -> None:
    options = ("-p", "plugin", "-p", "no:xdist", "--continue-on-collection-errors")
    said = run(tmp_path, *options, plugin=PLUGIN, test_a=TESTS, test_b=WARNS_AT_IMPORT)
    assert "1 failed, 1 passed" in said, said
    assert "1 error" in said, said
    assert "UserWarning: of a test" in said
    assert "UserWarning: of an import" in said
    assert "INTERNALERROR" not in said


@pytest.mark.parametrize("workers", ["0", "2"])
def test_some_cases_of_each_test(workers: str, tmp_path: Path) -> None:
    case = '@pytest.mark.parametrize("n", range(9))\ndef test_{0}(n): assert n in (0, 4, 8)\n'
    tests = "import pytest\n" + case.format("a") + case.format("b")
    said = run(tmp_path, "-n", workers, "--cases", "3", test_a=tests)
    assert "6 passed" in said, said
