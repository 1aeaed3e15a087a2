"""The grid and clusters, whose blocks share a matrix: when they start, what blocks exchange."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close

import cupyrnn
from cupyrnn.kernels import choice, cluster, fit, grid, lstm, persistent
from without_a_gpu.agreement import numpy_dtype
from without_a_gpu.all_steps import (
    CELLS,
    DIRECTIONS,
    FRAMES,
    calls,
    choices,
    has_device,
    on,
    plant,
    same,
    taken_by,
    use_interpreter,
)
from without_a_gpu.cuda_on_cpu import nvrtc, runner
from without_a_gpu.ptx.parser import PtxError


@pytest.mark.parametrize(
    ("mode", "dtype", "cell", "B", "H"),
    [
        ("grid", "float32", "lstm", 2, 448),
        ("grid", "float16", "lstm", 3, 256),
        ("grid", "float16", "lstm", 9, 272),
        ("grid", "float64", "gru", 1, 512),
        ("cluster", "float32", "lstm", 40, 256),
        ("cluster", "float16", "gru_reset_after", 9, 160),
        ("cluster", "float64", "gru", 2, 128),
    ],
)
@pytest.mark.slow
def test_the_grid_at_full_size(
    cupy_on_cpu: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    dtype: str,
    cell: str,
    B: int,
    H: int,
) -> None:
    """On an H100's 132 multiprocessors, with almost as many threads as a process may have."""
    monkeypatch.setattr(runner, "_MOST_LIBRARIES", 1)  # none of the kernels before keeps its own
    found = taken_by(monkeypatch, mode)
    has_device(monkeypatch, 132)
    function, (sequences, weights) = calls(2, B, H, dtype)[cell]
    call = function, (sequences, [w / np.asarray(H**0.5, w.dtype) for w in weights])
    for a, e in zip(on(cupy_on_cpu, call), function(*call[1]), strict=True):
        assert_close(a, e, dtype, cell)
    assert all(all(taken) for taken in found.values())


@pytest.fixture
def started(cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of launches of blocks that wait for each other."""
    found: list[Any] = []
    driver = cupy_on_cpu.cuda.driver
    function = driver.launchCooperativeKernel
    monkeypatch.setattr(
        driver, "launchCooperativeKernel", lambda *args: found.append(args) or function(*args)
    )
    return found


def test_a_grid_that_could_not_end_does_not_start(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    """A driver that has room for no block, and a device with one multiprocessor too few."""
    FRAMES["grid"].ask(monkeypatch)
    call = calls(4, 3, 17)["lstm"]
    blocks = 2 * 2
    has_device(monkeypatch, blocks)
    expected = on(cupy_on_cpu, call)
    assert [args[1] * args[2] for args in started] == [blocks, blocks]
    name = "occupancyMaxActiveBlocksPerMultiprocessor"
    for at_once, processors in ((0, blocks), (1, 1)):
        started.clear()
        monkeypatch.setattr(cupy_on_cpu.cuda.driver, name, lambda *_, n=at_once: n)
        has_device(monkeypatch, processors)
        for a, e in zip(on(cupy_on_cpu, call), expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)
        assert not started
    # A layout for more than what the driver has room for.
    has_device(monkeypatch, blocks)
    monkeypatch.setattr(cupy_on_cpu.cuda.driver, name, lambda *_: 1)
    given = lstm.FORWARD_KERNELS.grid, np.dtype("f4"), (3, 17)
    wide = fit.blocks_for(*given, fit.Device(blocks, 90))
    assert wide.blocks == (2, 2)
    monkeypatch.setattr(fit, "blocks_for", lambda *_: wide)
    has_device(monkeypatch, blocks - 1)
    on(cupy_on_cpu, call)
    assert not started


def test_rows_that_are_too_far_apart_for_32_bits_are_the_loops(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels multiply the distance between two rows of the output by B."""
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    has_device(monkeypatch, 132)
    given = lstm.FORWARD_KERNELS, np.dtype("f4"), (8, 16), 9
    for row, taken in ((0, True), (2**28 - 1, True), (2**28, False), (2**40, False)):
        assert (persistent.one_launch(*given, plain=True, row=row) is not None) == taken, row


def test_nor_does_one_where_blocks_may_not_wait_for_each_other(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU that is lent out in parts."""
    taken = FRAMES["grid"].ask(monkeypatch)
    call = calls(4, 3, 17)["lstm"]
    for may in (1, 0):
        attributes = {"MultiProcessorCount": 132, "CooperativeLaunch": may}
        monkeypatch.setattr(cupy_on_cpu.cuda.Device, "attributes", attributes)
        choice._device.cache_clear()
        on(cupy_on_cpu, call)
        assert [found[-1] for found in taken.values()] == [bool(may)] * 2
    sizes = {"batch_size": 3, "num_units": 17, "num_steps": 4}
    reason = cupyrnn.device.recurrence_kernels("lstm", **sizes).forward.reason
    assert reason == "grid needs cooperative launches, which this GPU refuses"
    choice._device.cache_clear()


def kept_memory(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Return a list of the memory through which blocks exchange numbers."""
    made: list[Any] = []
    all_ones = persistent.all_ones

    def noted(*args: Any) -> Any:
        memory = all_ones(*args)
        assert (memory.view(np.ndarray) == 0xFF).all()
        made.append(memory)
        return memory

    monkeypatch.setattr(persistent, "all_ones", noted)
    return made


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("name", ["grid", "tensor cores"])
def test_each_call_has_memory_of_its_own(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, cell: str, name: str
) -> None:
    """All ones at the start, so that two calls at once, on two streams, tell each other nothing."""
    made = kept_memory(monkeypatch)
    _, call = FRAMES[name].call_of_few(monkeypatch, cell)
    for _ in range(2):
        on(cupy_on_cpu, call)
    assert len({a.ctypes.data for a in made}) == len(made) == 4
    # Every step writes there.
    rows = [(a.view(np.ndarray) != 0xFF).any() for a in made]
    assert all(rows)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *itertools.product(["grid"], ["float32", "float64", "complex64", "float16"]),
        *itertools.product(["cluster"], ["float32", "float16"]),
    ],
)
@pytest.mark.parametrize("cell", CELLS)
def test_a_nan_of_all_ones_passes(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, cell: str, name: str, dtype: str
) -> None:
    """And infinities: nobody waits for ever, and the other sequences are as they were."""
    frame = FRAMES[name]._replace(dtype=dtype)
    taken = frame.ask(monkeypatch)
    frame.has(monkeypatch, 2, 3, 17)
    function, ((x, c, h, grad), weights) = calls(4, 3, 17, dtype)[cell]
    expected = on(cupy_on_cpu, (function, ((x, c, h, grad), weights)))
    strange, strange_grad = h.copy(), grad.copy()
    strange[:, 1].view(np.uint8)[:] = 0xFF
    strange_grad[2, 1, 3:].view(np.uint8)[:] = 0xFF
    strange_grad[1, 1, 2] = np.inf
    found = on(cupy_on_cpu, (function, ((x, c, strange, strange_grad), weights)))
    for a, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a[:, ::2], e[:, ::2])
    assert np.isnan(found[0][:, 1] if cell != "lstm" else found[6][:, 1]).all()
    assert all(all(found) for found in taken.values())


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("grid", "exchange.send(to + n, word_of"),
        ("cluster", "exchange.send(to + n, word_of"),
        ("tensor cores", "exchange.send(to + own / 2, word"),
        ("turns", "store_async(\n                reinterpret_cast<Pack<float>*>(to"),
    ],
)
def test_a_wait_that_is_in_vain_ends(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, lost: str
) -> None:
    """A number or sum that nobody sends: the kernel traps after eight looks instead of hanging."""
    needs.tool(nvrtc.have_nvrtc())
    _, call = FRAMES[name].call_of_few(monkeypatch, "lstm")
    plant(monkeypatch, "lstm", FRAMES[name].mode, ("1u << 22", "8"), (lost, f"if (unit) {lost}"))
    use_interpreter(monkeypatch, "compute_90")
    with pytest.raises(PtxError, match="the kernel traps"):
        on(cupy_on_cpu, call)


@pytest.mark.parametrize(("name", "B"), [("grid", 7), ("tensor cores", 19)])
def test_more_sequences_than_run_at_once(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, started: list[Any], name: str, B: int
) -> None:
    """Several launches; each has its own sequences."""
    frame = FRAMES[name]
    frame.ask(monkeypatch)
    monkeypatch.setattr(grid, "SEQUENCES", {"numbers": (2,), "tensor cores": (8,)})
    call = calls(4, B, 17, frame.dtype, tuple(np.resize([2, 4, 1, 3], B).tolist()))["lstm"]
    blocks = -(-17 // frame.units)
    has_device(monkeypatch, blocks)
    expected = on(cupy_on_cpu, call)
    launches = -(-B // (2 if name == "grid" else 8))
    assert [args[1:3] for args in started] == [(blocks, 1)] * (2 * launches)
    has_device(monkeypatch, 132)
    assert same(on(cupy_on_cpu, call), expected)
    grid.layout_of.cache_clear()


SIZES = (160, 192, 256, 384, 512, 700, 768, 1000, 1024)


@pytest.mark.parametrize(
    ("processors", "architecture"), [(40, 75), (108, 80), (132, 90), (148, 100), (170, 120)]
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_fits(dtype: str, processors: int, architecture: int) -> None:
    """All blocks of a launch at once, all sequences in some launch, memory that there is."""
    device = fit.Device(processors, architecture)
    kinds = [getattr(CELLS[cell], direction).grid for cell in CELLS for direction in DIRECTIONS]
    for H, B, kernel in itertools.product(SIZES, (1, 16, 32, 64, 256), kinds):
        layout = fit.blocks_for(kernel, numpy_dtype(dtype), (B, H), device)
        if processors >= 132 and H <= 512 and dtype != "float64":
            assert not isinstance(layout, str)
        if isinstance(layout, str):
            continue
        blocks, groups = layout.blocks
        assert blocks * groups <= processors
        if layout.cluster:
            together = cluster.at_once(layout.cluster, processors)
            assert blocks // layout.cluster * groups <= together
        assert blocks * layout.units >= H
        assert (layout.launches - 1) * groups * layout.sequences < B
        assert layout.launches * groups * layout.sequences >= B
        assert layout.shared <= device.available
        assert layout.units * layout.sequences <= 32 * grid.WARPS
        assert layout.tensor_cores == (dtype.endswith("float16") and architecture >= 80)
        # A sequence's sums have one order whatever its batch is.
        alone = fit.blocks_for(kernel, numpy_dtype(dtype), (1, H), device)
        assert not isinstance(alone, str)
        assert layout.tensor_cores or alone[1] == layout[1]
        assert alone.parts[::2] == layout.parts[::2]


def test_what_runs_by_turns() -> None:
    """Half formats with one matrix from sm_90 on, where a block would read much; any B alike."""
    found = {
        (cell, H): fit.blocks_for(
            CELLS[cell].BACKWARD_KERNELS.grid, np.dtype("f2"), (B, H), fit.Device(132, arch)
        ).cluster
        for cell, H, B, arch in (
            *itertools.product(("lstm",), (256, 257, 512, 513, 1024), (1, 16, 64), (90,)),
            *(("lstm", 1000, 16, 80), ("gru", 1024, 16, 90), ("simple_rnn", 1024, 16, 90)),
        )
    }
    assert found == {
        **{("lstm", 256): 0, ("lstm", 257): 2, ("lstm", 512): 2, ("lstm", 513): 4},
        **{("lstm", 1024): 4, ("lstm", 1000): 0, ("gru", 1024): 0, ("simple_rnn", 1024): 0},
    }


def cluster_reason(**changed: Any) -> str:
    choice = choices(num_units=changed.pop("H", 64), batch_size=32, **changed).forward
    assert (choice.kernel == "cluster") == choice.reason.endswith(
        "blocks of a cluster hold the matrix"
    )
    return choice.reason


def test_what_clusters_take_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "cluster")
    for (H, blocks), dtype in itertools.product(
        ((1, 2), (64, 2), (65, 4), (128, 4), (129, 8), (256, 8)), ("float32", "float16")
    ):
        reason = cluster_reason(dtype=dtype, H=H)
        assert reason == f"the {blocks} blocks of a cluster hold the matrix"
    for dtype, H in (("c8", 256), ("float64", 256), ("c16", 128)):
        assert cluster_reason(dtype=dtype, H=H) == "the 8 blocks of a cluster hold the matrix"
    assert "H up to 256, and H is 257" in cluster_reason(H=257)
    assert "sm_90 or later, and the GPU is sm_89" in cluster_reason(architecture=89)
    assert "shared memory, and there are" in cluster_reason(dtype="c16", H=256)
    assert "shared memory, and there are" in cluster_reason(
        dtype="float16", architecture=120, H=256
    )
    # As few sequences as leave every cluster a place on the device.
    found = [
        choices(num_units=256, batch_size=B).forward.sequences for B in (1, 15, 16, 60, 61, 500)
    ]
    assert found == [1, 1, 2, 4, 8, 8]
    assert choices(num_units=256, batch_size=32).forward.sequences == 3
    reason = choices(num_units=16, batch_size=10**6).forward.reason
    assert reason == "cluster takes B up to 524280, and B is 1000000"
