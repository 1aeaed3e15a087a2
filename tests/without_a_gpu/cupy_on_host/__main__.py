"""Run a module or a script as Python does, with CuPy over memory of the host."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    # Instead of this file's folder: the caller's folder, as usual, and tests.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.path.insert(0, "")
    from without_a_gpu.cupy_on_host import host, torch_device

    host.install()
    torch_device.load()
    # New processes inherit this from the environment.
    sys.path.append(str(Path(__file__).with_name("children")))
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    arguments = sys.argv[1:]
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments:
        os.environ.setdefault("CUPYRNN_PERSISTENT", "loop")  # some scripts leave kernels out
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        sys.exit(f"usage: python {Path(sys.argv[0]).name} [-m module | script] arguments")


main()
