"""python -m cupyrnn with closed, full or too large files, and interrupted: real processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import needs
import pytest
from checks import PATIENCE

from cupyrnn.demo import files

needs.module("tqdm")
needs.module("matplotlib")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals, links and pipes")

COMMAND = [sys.executable, "-W", "error", "-m", "cupyrnn", "--backend", "numpy"]
SMALL = ["--hidden", "4", "--batch", "8", "--seq", "16", "--steps", "5"]
PNG = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str, folder: Path, shell: str = "", **options: Any) -> Any:
    """Run the command in the folder and return its content too; `shell` has redirections."""
    # Numba would be imported, and compile its loops, in each of these processes.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "CUPYRNN_NUMBA": "0"}
    environment |= options.pop("env", {})
    command = [*COMMAND, *SMALL, *arguments]
    if shell:
        command = ["sh", "-c", f'exec "$@" {shell}', "sh", *command]
    root = Path(__file__).parents[2]
    environment["PYTHONPATH"] = os.pathsep.join(
        [*filter(None, [environment.get("PYTHONPATH")]), str(root)]
    )
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(
        command, text=True, env=environment, timeout=PATIENCE, check=False, cwd=folder, **options
    )


def test_the_figure_of_a_dangling_link_is_made_where_it_points(tmp_path: Path) -> None:
    link = tmp_path / "link.png"
    link.symlink_to("later.png")
    refused = run("--out", "link.png", "--batch", "0", folder=tmp_path)
    assert refused.returncode == 2
    assert os.listdir(tmp_path) == ["link.png"]
    done = run("--out", "link.png", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["later.png", "link.png"]
    assert (tmp_path / "later.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_a_pipe_is_refused_at_once(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    if kind == "fifo":
        os.mkfifo("x.png")
    else:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind("x.png")
    before = os.stat("x.png")
    done = run("--out", "x.png", folder=tmp_path)
    assert done.returncode == 2
    assert "cannot write 'x.png': It is a pipe or a socket" in done.stderr
    assert os.stat("x.png").st_ino == before.st_ino


def test_a_figure_that_is_there_keeps_its_mode_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "x.png"
    out.write_bytes(b"old")
    out.chmod(0o640)
    files.write(out, b"new")
    assert out.read_bytes() == b"new"
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["x.png"]


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    """But no file that another process has locked, and no file of another name."""
    out = tmp_path / "x.npz"
    left = tmp_path / f".x.npz.{'0' * 16}.part"
    names = {f".x.npz.{'g' * 16}.part", ".x.npz.part", f".y.npz.{'0' * 16}.part"}
    for path in (left, *(tmp_path / name for name in names)):
        path.write_bytes(b"part")
    with files._part(out) as (held, _):
        files.write(out, b"new")
        assert held.exists()
        held.unlink()
    assert {*os.listdir(tmp_path)} == {"x.npz", *names}


SLOW = pytest.mark.slow
CANNOT = "python -m cupyrnn: cannot write to standard output: "
FULL = CANNOT + "No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "shell", "status", "stdout", "stderr"),
    [
        ("--out x.png", ">&-", 1, "", CANNOT + "Bad file descriptor\n"),
        ("--out x.png --steps 20", "2>&-", 0, r".*\n  model .*", ""),
        pytest.param(
            *("--out x.png --steps 20", "2>/dev/null", 0, r".*\n  model .*", ""), marks=SLOW
        ),
        # A reader that stops reading; the status is its own.
        ("--out x.png --steps 9999", "| head -n 1", 0, r"cupyrnn .*", CANNOT + "Broken pipe\n"),
        ("--out x.png", ">/dev/full", 1, "", FULL),
        ("--help", ">/dev/full", 1, "", FULL),
        ("--version", ">/dev/full", 1, "", FULL),
        ("--out x.png", ">/dev/full 2>&1", 1, "", ""),
    ],
)  # fmt: skip
def test_where_nothing_can_be_written(
    arguments: str, shell: str, status: int, stdout: str, stderr: str, tmp_path: Path
) -> None:
    if "full" in shell and not Path("/dev/full").exists():
        pytest.skip("there is no file that is always full")
    done = run(*arguments.split(), folder=tmp_path, shell=shell, env={"PYTHONUNBUFFERED": ""})
    assert (done.returncode, done.stderr) == (status, stderr)
    assert re.fullmatch(stdout, done.stdout, re.DOTALL)
    assert os.listdir(tmp_path) == (["x.png"] if shell.startswith("2>") else [])


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("module", ["matplotlib", "tqdm", "argparse", "pydoc_data.topics"])
def test_ctrl_c_while_a_module_is_imported(module: str, tmp_path: Path) -> None:
    folder = tmp_path / "modules"
    *packages, name = module.split(".")
    where = folder.joinpath(*packages)
    where.mkdir(parents=True)
    for k in range(len(packages)):
        folder.joinpath(*packages[: k + 1], "__init__.py").touch()
    (where / f"{name}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = run("--out", "x.png", folder=tmp_path, env={"PYTHONPATH": str(folder)})
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "\ninterrupted\n")
    assert os.listdir(tmp_path) == ["modules"]
