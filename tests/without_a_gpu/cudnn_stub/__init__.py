"""
A libcudnn.so.9 that records its calls.

`cudnn.cc` is the library, `cases` makes calls of it, and `fixtures` makes the package load it as
cuDNN.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import needs
import pytest

from cupyrnn.cudnn import library
from without_a_gpu.cuda_on_cpu import runner

SOURCE = (Path(__file__).parent / "cudnn.cc").read_text(encoding="utf-8")


def compiled(source: str) -> bytes:
    """Return a shared library."""
    command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-x", "c++", "-"]
    return runner.compiled(runner.kept(".so", source, command), command, source).read_bytes()


def install(folder: Path) -> Path:
    """Write a library as libcudnn.so.9, and its parts beside it."""
    needs.tool(runner.have_gxx())
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / "libcudnn.so.9"
    path.write_bytes(compiled(SOURCE))
    for part in library._SUBLIBRARIES:
        (folder / part).write_bytes(compiled(f"int {part.split('.')[0]};"))
    return path


class Stub:
    """The loaded library that records calls."""

    def __init__(self, path: Path) -> None:
        self.dll = ctypes.CDLL(str(path))
        self.dll.stub_calls.restype = ctypes.c_char_p

    def calls(self) -> list[dict[str, Any]]:
        return json.loads(self.dll.stub_calls())

    def names(self) -> list[str]:
        return [c["call"] for c in self.calls()]

    def last(self, name: str) -> dict[str, Any]:
        """Return the arguments of the last call of a function."""
        found = [c for c in self.calls() if c["call"] == name]
        assert found, f"{name} was not called"
        return {n: v for n, v in found[-1].items() if n != "call"}


def with_a_stream(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this the current stream of the stand-in for CuPy."""
    stream = types.SimpleNamespace(ptr=0x57, is_capturing=lambda: False)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: stream)


def in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python without a visible device, in a process that may crash."""
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=os.environ | hidden, capture_output=True, text=True)
