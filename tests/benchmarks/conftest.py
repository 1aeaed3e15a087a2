"""Fixtures of the benchmarks."""

from __future__ import annotations

import time
import types
import warnings
from collections.abc import Iterator
from typing import Any

import needs
import numpy as np
import pytest
from on_gpu import pytorch


@pytest.fixture(autouse=True)
def poisoned_empty() -> None:
    """Leave numpy.empty alone: filling it would be timed too."""


class Clock:
    """The device's clock: the host's, and ahead of it by the waits that were enqueued."""

    ahead = 0.0

    def now(self) -> float:
        return time.perf_counter() + self.ahead


class Pool:
    def free_all_blocks(self) -> None: ...


@pytest.fixture
def cupy(cupy_on_cpu: Any) -> Any:
    """The stand-in for CuPy with what only gpu.py uses of it."""
    clock = Clock()

    class Event:
        at = 0.0

        def record(self) -> None:
            self.at = clock.now()

        def synchronize(self) -> None: ...

    class RawKernel:
        def __init__(self, code: str, name: str) -> None:
            assert name in code

        def __call__(self, grid: Any, block: Any, args: Any) -> None:
            (cycles,) = args
            assert type(cycles) is np.int64
            clock.ahead += cycles / 2e9

    properties = {
        "name": b"A CPU",
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 132,
        "totalGlobalMem": 2**30,
        "l2CacheSize": 2**10,
    }
    cupy_on_cpu.__version__ = "0"
    cupy_on_cpu.RawKernel = RawKernel
    cupy_on_cpu.get_default_memory_pool = Pool
    cuda = cupy_on_cpu.cuda
    cuda.Event = Event
    cuda.get_elapsed_time = lambda start, stop: 1e3 * (stop.at - start.at)
    cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=0)
    cuda.cublas.getVersion = lambda handle: 130000
    vars(cuda.runtime).update(
        getDeviceCount=lambda: 1,
        getDevice=lambda: 0,
        getDeviceProperties=lambda device: properties,
        driverGetVersion=lambda: 13010,
        runtimeGetVersion=lambda: 12090,
        deviceSynchronize=lambda: None,
    )
    return cupy_on_cpu


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """PyTorch on the CPU as if it were on a GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch: Any = needs.module("torch")
    monkeypatch.setattr(pytorch, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    stream = types.SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(pytorch, "import_torch", lambda: (torch, None))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # many only wait for each other here
    yield torch
    torch.set_num_threads(threads)
