"""A killed training continues, and ends with the same numbers as an uninterrupted one."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

from cupyrnn import demo
from cupyrnn.demo import cli, training
from cupyrnn.demo import text as texts

needs.module("tqdm")
needs.module("matplotlib")

SMALL = ["--backend", "numpy", "--hidden", "6", "--batch", "4", "--seq", "12", "--seed", "3"]


@pytest.fixture(autouse=True)
def short_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = texts.read_text()[:20_000]
    monkeypatch.setattr(texts, "read_text", lambda: text)


def end(output: str) -> str:
    """Return the output after the training, without its time."""
    return re.sub(r"(?s:\d+ s; figure:.*)|seconds .*", "", output[output.index("\nsample") :])


@pytest.mark.usefixtures("ctrl_c")
def test_after_ctrl_c_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def options(name: str) -> list[str]:
        paths = ["--out", str(tmp_path / f"{name}.png"), "--checkpoint", str(tmp_path / name)]
        return [*SMALL, "--steps", "40", *paths]

    assert demo.main(options("whole")) == 0
    expected = capsys.readouterr().out
    update = training.Adam.update

    def pressing(self: training.Adam, *arguments: Any) -> None:
        update(self, *arguments)
        if self.step == 16:  # just where the held-out text is scored
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(training.Adam, "update", pressing)
    assert demo.main(options("stopped")) == 130
    stopped = capsys.readouterr().out
    assert "stopped by Ctrl-C after 16 of 40 steps\n  the same command resumes from" in stopped
    for marks in (["24", "32", "40"], ["40"]):  # the second time, there is nothing left to train
        assert demo.main(options("stopped")) == 0
        output = capsys.readouterr().out
        assert end(output) == end(expected)
        assert re.findall(r"  step +(\d+) ", output) == marks
    assert (tmp_path / "stopped").read_bytes() == (tmp_path / "whole").read_bytes()


SAVED: list[bytes] = []  # by the first test that asks


@pytest.fixture
def saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The checkpoint of a run of three steps."""
    path = tmp_path / "x.npz"
    if not SAVED:
        out = str(tmp_path / "x.png")
        options = [*SMALL, "--steps", "3", "--out", out, "--checkpoint", str(path)]
        assert demo.main(options) == 0
        SAVED.append(path.read_bytes())
        capsys.readouterr()
    path.write_bytes(SAVED[0])
    return path


def refused(path: Path, capsys: pytest.CaptureFixture[str], *other: str) -> str:
    """Run with the checkpoint; return the error. The file must be unchanged."""
    before, out = path.read_bytes(), path.with_name("y.png")
    options = ["--steps", "3", "--out", str(out), "--checkpoint", str(path)]
    with pytest.raises(SystemExit) as error:
        demo.main([*SMALL, *options, *other])
    assert error.value.code == 2
    assert path.read_bytes() == before
    assert not out.exists()
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("option", cli.CONFIGURATION)
def test_another_configuration(
    option: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration = {"cell": "lstm", "steps": 3, "hidden": 6, "batch": 4, "seq": 12, "seed": 3}
    was: Any = configuration[option]
    value = "gru" if option == "cell" else was + 1
    message = refused(saved, capsys, f"--{option}", str(value))
    assert message == (
        f"python -m cupyrnn: error: argument --checkpoint: {str(saved)!r} is the checkpoint of a"
        f" run with --{option} {was}, not {value}"
    )


def test_every_option_that_counts_is_compared() -> None:
    """Every option either changes numbers and is compared, or is named here."""
    options = {name for action in cli.parser()._actions for name in [action.dest]}
    free = {"help", "version", "backend", "out", "checkpoint", "every", "threads", "timeout"}
    assert options - free == set(cli.CONFIGURATION)


def test_another_text(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = texts.read_text()
    monkeypatch.setattr(texts, "read_text", lambda: text[:-1] + "~")
    assert "a run with another text" in refused(saved, capsys)


@pytest.mark.parametrize("content", [b"", b"no zip file", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_another_file(content: bytes, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved.write_bytes(content)
    assert "is damaged or no checkpoint" in refused(saved, capsys)


def test_a_full_disk_ends_the_run_and_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.npz"
    fsync, calls = os.fsync, []

    def full(fd: int) -> None:
        calls.append(fd)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        fsync(fd)

    monkeypatch.setattr(training.os, "fsync", full)
    out = ["--out", str(tmp_path / "x.png"), "--checkpoint", str(path), "--every", "2"]
    with pytest.raises(OSError, match="No space left on device"):
        demo.main([*SMALL, "--steps", "9", *out])
    monkeypatch.undo()
    with np.load(path) as file:
        assert len(json.loads(str(file["about"]))["training"]) == 4
