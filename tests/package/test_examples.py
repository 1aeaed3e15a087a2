"""The programs of the guide run and learn."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "docs/examples"


def run(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argument: str | None = None,
) -> str:
    """Run a program with fewer epochs; return what it prints."""
    source = (EXAMPLES / name).read_text(encoding="utf-8")
    path = tmp_path / name
    path.write_text(re.sub(r"EPOCHS(.*) = (.*)15|EPOCHS, LENGTH = (.*)12, 200", shorter, source))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name, *([argument] if argument else [])])
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out


def shorter(match: re.Match[str]) -> str:
    return match[0].replace("15", "4").replace("12, 200", "3, 20")


def test_forecasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run("forecast.py", tmp_path, monkeypatch, capsys)
    losses = [float(x) for x in re.findall(r"training (\S+)", output)]
    assert len(losses) == 5  # the last one after it resumed
    assert losses[-1] < losses[0] / 4
    assert len(output.partition("next values:")[2].strip(" []\n").split()) == 20
    again = run("forecast.py", tmp_path, monkeypatch, capsys, "series.csv")  # a file of one's own
    assert len(re.findall("training", again)) == 5


def test_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 400)
    output = run("characters.py", tmp_path, monkeypatch, capsys, "text.txt")
    bits = [float(x) for x in re.findall(r"(\S+) bits", output)]
    assert bits[-1] < 0.8 * bits[0]
    assert len(output.splitlines()[-1]) == 21
    assert np.isfinite(bits).all()
