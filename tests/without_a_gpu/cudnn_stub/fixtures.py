"""The stubs instead of the real libraries."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cupyrnn.cudnn import eight, engine, handles, library
from without_a_gpu.cudnn_stub import Stub, install, with_a_stream
from without_a_gpu.cudnn_stub.eight import CupyCudnn


@pytest.fixture
def fresh_search(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Search for the libraries again, without the user's settings."""
    monkeypatch.delenv("CUPYRNN_CUDNN", raising=False)
    monkeypatch.delenv("CUPYRNN_ENGINE", raising=False)
    monkeypatch.delenv("CUPY_TF32", raising=False)
    forget()
    yield
    forget()


def forget() -> None:
    """Drop the libraries, and with them all handles and descriptors."""
    for cached in (library._attempt, handles.handles, eight.find):
        cached.cache_clear()
    engine._warned.clear()


@pytest.fixture
def stub(
    cupy_on_cpu: Any, fresh_search: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Stub]:
    """The recording library as cuDNN, with the stand-in for CuPy."""
    with_a_stream(cupy_on_cpu, monkeypatch)
    path = install(tmp_path / "cudnn")
    monkeypatch.setenv("CUPYRNN_CUDNN", str(path))
    loaded = Stub(path)
    yield loaded
    forget()
    assert loaded.dll.stub_alive() == 0, "descriptors were left"


@pytest.fixture
def nowhere(fresh_search: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without cuDNN."""
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(library, "SONAME", "libcudnn-of-the-test.so.9")


@pytest.fixture
def cupy_cudnn(
    cupy_on_cpu: Any, nowhere: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], CupyCudnn]]:
    """A function that installs CuPy 13's module, for nets of so many bytes of parameters."""
    with_a_stream(cupy_on_cpu, monkeypatch)
    monkeypatch.setattr(library, "missing_sublibrary", lambda folder, names: None)
    monkeypatch.setattr(cupy_on_cpu.cuda.Device, "compute_capability", "75", raising=False)
    made = []

    def install(params_bytes: int) -> CupyCudnn:
        forget()
        made.append(CupyCudnn(params_bytes))
        monkeypatch.setitem(sys.modules, "cupy.cuda.cudnn", made[-1])
        return made[-1]

    yield install
    forget()
    assert not any(module.texts for module in made), "descriptors were left"
