"""The grid, where blocks share a matrix and wait for each other: when it starts, its counters."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checks import assert_close

import cupyrnn
from cupyrnn.kernels import grid, lstm, persistent
from without_a_gpu.all_steps import FRAMES, calls, has_device, on, taken_by
from without_a_gpu.cuda_on_cpu import runner


@pytest.mark.parametrize(
    ("dtype", "cell", "B", "H"),
    [("float32", "lstm", 2, 448), ("float16", "lstm", 3, 256), ("float64", "gru", 1, 512)],
)
@pytest.mark.slow
def test_the_grid_at_full_size(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: str, cell: str, B: int, H: int
) -> None:
    """On an H100's 132 multiprocessors, with almost as many threads as a process may have."""
    monkeypatch.setattr(runner, "_MOST_LIBRARIES", 1)  # none of the kernels before keeps its own
    found = taken_by(monkeypatch, "grid")
    has_device(monkeypatch, 132)
    function, (sequences, weights) = calls(2, B, H, dtype)[cell]
    call = function, (sequences, [w / np.asarray(H**0.5, w.dtype) for w in weights])
    for a, e in zip(on(cupy_on_cpu, call), function(*call[1]), strict=True):
        assert_close(a, e, dtype, cell)
    assert all(all(taken) for taken in found.values())


def test_a_grid_that_could_not_end_does_not_start(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that has room for no block, and a device with one multiprocessor too few."""
    started: list[Any] = []
    driver = cupy_on_cpu.cuda.driver
    function = driver.launchCooperativeKernel
    monkeypatch.setattr(
        driver, "launchCooperativeKernel", lambda *args: started.append(args) or function(*args)
    )
    FRAMES["grid"].ask(monkeypatch)
    call = calls(4, 3, 17)["lstm"]
    blocks = 2 * 5
    has_device(monkeypatch, blocks)
    expected = on(cupy_on_cpu, call)
    assert [args[1] * args[2] for args in started] == [blocks, blocks]
    name = "occupancyMaxActiveBlocksPerMultiprocessor"
    for at_once, processors in ((0, blocks), (1, 4)):
        started.clear()
        monkeypatch.setattr(driver, name, lambda *_, at_once=at_once: at_once)
        has_device(monkeypatch, processors)
        for a, e in zip(on(cupy_on_cpu, call), expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)
        assert not started
    # A layout for more than what the driver has room for.
    has_device(monkeypatch, blocks)
    monkeypatch.setattr(driver, name, lambda *_: 1)
    given = lstm.FORWARD_KERNELS.grid, np.dtype("f4"), (3, 17)
    wide = persistent.grid_for(*given, persistent.Device(blocks, 90))
    assert wide.blocks == (5, 2)
    monkeypatch.setattr(persistent, "grid_for", lambda *_: wide)
    has_device(monkeypatch, blocks - 1)
    on(cupy_on_cpu, call)
    assert not started


def test_nor_does_one_where_blocks_may_not_wait_for_each_other(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU that is lent out in parts."""
    taken = FRAMES["grid"].ask(monkeypatch)
    call = calls(4, 3, 17)["lstm"]
    for may in (1, 0):
        attributes = {"MultiProcessorCount": 132, "CooperativeLaunch": may}
        monkeypatch.setattr(cupy_on_cpu.cuda.Device, "attributes", attributes)
        persistent._device.cache_clear()
        on(cupy_on_cpu, call)
        assert [found[-1] for found in taken.values()] == [bool(may)] * 2
    sizes = {"batch_size": 3, "num_units": 17, "num_steps": 4}
    reason = cupyrnn.device.recurrence_kernels("lstm", **sizes).forward.reason
    assert reason == "grid needs cooperative launches, which this GPU refuses"
    persistent._device.cache_clear()


def test_each_launch_has_counters_of_its_own_that_are_zero(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that two calls at once, on two streams, cannot wait for each other."""
    made: list[Any] = []
    exchanged = grid.exchanged

    def noted(*args: Any) -> Any:
        made.append(exchanged(*args))
        assert not any(np.asarray(a.view(np.ndarray)).any() for a in made[-1][:2])
        return made[-1]

    monkeypatch.setattr(grid, "exchanged", noted)
    FRAMES["grid"].ask(monkeypatch)
    FRAMES["grid"].has(monkeypatch, 2, 3, 17)
    for _ in range(2):
        on(cupy_on_cpu, calls(4, 3, 17)["gru"])
    # A counter for each of two groups; five blocks have come once for each product.
    assert len({a.ctypes.data for _, a, _ in made}) == len(made) == 4
    for _, counters, _ in made:
        met = counters.view(np.ndarray)
        assert met.shape == (2, 32)
        assert (met[:, 0] > 0).all()
        assert (met[:, 0] % 5 == 0).all()
        assert not met[:, 1:].any()
