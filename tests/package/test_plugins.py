"""Plugins of pytest that a user has do not break the tests, and warnings in tests are errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN = """
import warnings

def warn(*_, **__):
    warnings.warn("of a plugin", stacklevel=2)

def pytest_configure(config):
    warn()

def pytest_sessionstart(session):
    warn()

def pytest_collection_modifyitems(items):
    warn()

def pytest_sessionfinish(session):
    warn()

def pytest_terminal_summary(terminalreporter):
    warn()
"""
TESTS = """
import warnings
import pytest

def test_right():
    pass

def test_warns():
    warnings.warn("of a test", stacklevel=2)

@pytest.mark.filterwarnings("ignore:of a test")
def test_may_warn():
    warnings.warn("of a test", stacklevel=2)
"""
WARNS_AT_IMPORT = 'import warnings\nwarnings.warn("of an import", stacklevel=2)'


def test_warnings_of_plugins_are_no_errors(tmp_path: Path) -> None:
    files = {"plugin": PLUGIN, "test_a": TESTS, "test_b": WARNS_AT_IMPORT}
    for name, text in files.items():
        tmp_path.joinpath(f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml"]
    command += ["-p", "conftest", "-p", "plugin", "-p", "no:xdist", tmp_path]
    command += ["-p", "no:cacheprovider", "--continue-on-collection-errors", "--noconftest"]
    folders = os.pathsep.join(map(str, (tmp_path, ROOT / "tests", ROOT)))
    environment = {**os.environ, "PYTHONPATH": folders}
    found = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    said = found.stdout + found.stderr
    assert "1 failed, 2 passed" in said, said
    assert "1 error" in said, said
    assert "UserWarning: of a test" in said
    assert "UserWarning: of an import" in said
    assert "INTERNALERROR" not in said
