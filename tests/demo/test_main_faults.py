"""python -m cupyrnn with closed, full or too large files, and interrupted: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import needs
import pytest
from checks import PATIENCE

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
