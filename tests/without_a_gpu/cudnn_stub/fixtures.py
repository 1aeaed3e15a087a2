"""The stubs instead of the real libraries."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cupyrnn.cudnn import engine, library, nine
from without_a_gpu.cudnn_stub import Stub, install, with_streams


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
    for cached in (library._attempt, nine.handles):
        cached.cache_clear()
    engine._warned.clear()


@pytest.fixture
def stub(
    cupy_on_cpu: Any, fresh_search: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Stub]:
    """The recording library as cuDNN, with the stand-in for CuPy."""
    with_streams(cupy_on_cpu, monkeypatch)
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
