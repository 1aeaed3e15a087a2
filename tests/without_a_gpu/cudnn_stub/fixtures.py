"""The stubs in the place of the real libraries."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cupyrnn.cudnn import eight, engine, library, nine
from without_a_gpu.cudnn_stub import Stub, install, with_streams
from without_a_gpu.cudnn_stub.eight import Legacy


@pytest.fixture
def fresh_search(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look for the libraries anew, with no settings of the user's."""
    monkeypatch.delenv("CUPYRNN_CUDNN", raising=False)
    monkeypatch.delenv("CUPYRNN_ENGINE", raising=False)
    monkeypatch.delenv("CUPY_TF32", raising=False)
    forget()
    yield
    forget()


def forget() -> None:
    """Drop the libraries, and with them all handles and descriptors."""
    for cached in (library._attempt, nine.handles, eight.module, eight.handles):
        cached.cache_clear()
    engine._warned.clear()


@pytest.fixture
def stub(
    cupy_on_cpu: Any, fresh_search: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Stub]:
    """The library that records is cuDNN, beside the stand-in for CuPy."""
    with_streams(cupy_on_cpu, monkeypatch)
    path = install(tmp_path / "cudnn")
    monkeypatch.setenv("CUPYRNN_CUDNN", str(path))
    loaded = Stub(path)
    yield loaded
    forget()
    assert loaded.dll.stub_alive() == 0, "descriptors were left"


@pytest.fixture
def nowhere(fresh_search: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no cuDNN in any place."""
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(library, "SONAME", "libcudnn-of-the-test.so.9")


@pytest.fixture
def legacy(
    cupy_on_cpu: Any, nowhere: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], Legacy]]:
    """CuPy 13 with cuDNN 8, and no cuDNN 9."""
    with_streams(cupy_on_cpu, monkeypatch)
    monkeypatch.setattr(library, "missing_sublibrary", lambda folder, names: None)
    monkeypatch.setattr(
        cupy_on_cpu.cuda.Device, "compute_capability", property(lambda _: "75"), raising=False
    )

    modules = []

    def installed(params_size: int) -> Legacy:
        forget()
        modules.append(Legacy(8 * params_size))
        monkeypatch.setitem(sys.modules, "cupy.cuda.cudnn", modules[-1])
        return modules[-1]

    yield installed
    forget()
    assert not any(module.alive for module in modules), "descriptors were left"
