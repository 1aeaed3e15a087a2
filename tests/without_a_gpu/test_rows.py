"""
The kernels that take all steps in one launch: values, orders, batches, errors, registers.

``rows``, where a block has the whole matrix, and ``grid``, where blocks share it.
"""

from __future__ import annotations

import datetime
import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checks import assert_close
from problems import nets
from problems.nets import BI, Case

import cupyrnn
from cupyrnn.kernels import common, compile, grid, lstm, persistent, rows
from cupyrnn.kernels.rows import SPLITS, template_of
from without_a_gpu.agreement import agrees_with_numpy, numpy_dtype, rnn_agrees_with_numpy
from without_a_gpu.all_steps import (
    ALL,
    BARRIER,
    CELLS,
    DIRECTIONS,
    INTERPRETER,
    MEETING,
    ORDERS,
    SANITIZER,
    calls,
    caught_by,
    has_device,
    interpreted,
    launches,
    needs_tool,
    on,
    plant,
    taken_by,
    use_order,
    without_barriers,
)
from without_a_gpu.cuda_on_cpu import nvdisasm, nvrtc
from without_a_gpu.ptx.compiler import ARCHITECTURES

# A grid of small blocks, so that a small matrix has many: two warps, two units each at the most.
WARPS, UNITS = 2, (2, 1)
both_ways = pytest.mark.parametrize("way", ["rows", "grid"])


@pytest.fixture
def way() -> str:
    return "rows"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch, way: str) -> Iterator[dict[str, list[bool]]]:
    """Whether each cell's kernels took the steps they were asked to take."""
    monkeypatch.setattr(grid, "WARPS", WARPS)
    monkeypatch.setattr(grid, "UNITS", UNITS)
    grid.layout_of.cache_clear()
    yield taken_by(monkeypatch, way)
    grid.layout_of.cache_clear()


def takes(monkeypatch: pytest.MonkeyPatch, way: str, sequences: int, B: int, H: int) -> None:
    """Have a device for which a block has so many of B sequences."""
    groups = -(-B // sequences)
    if way == "rows":
        has_device(monkeypatch, 1 if sequences == 4 else groups)
    else:
        has_device(monkeypatch, groups * -(-H // (grid.WARPS * grid.UNITS[0])))


@pytest.mark.parametrize(
    ("dtype", "sequences"),
    [
        ("float32", 2), ("float32", 4), ("float16", 2), ("bfloat16", 1), ("complex64", 4),
        *(pytest.param(*more, marks=pytest.mark.slow)
          for more in (("float32", 1), ("float64", 4), ("complex128", 2))),
    ],
)  # fmt: skip
@both_ways
@pytest.mark.cuda_on_cpu
def test_one_launch_agrees_with_numpy(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    sequences: int,
    way: str,
) -> None:
    one_launch_agrees_with_numpy(cupy_on_cpu, taken, monkeypatch, dtype, sequences, way)


@pytest.mark.parametrize(
    ("dtype", "sequences"),
    [("float32", 2), ("float64", 4), ("float16", 2), ("bfloat16", 1), ("complex64", 4)],
)
@both_ways
@pytest.mark.gpu
def test_one_launch_on_a_gpu_agrees_with_numpy(
    cupy_on_gpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    sequences: int,
    way: str,
) -> None:
    one_launch_agrees_with_numpy(cupy_on_gpu, taken, monkeypatch, dtype, sequences, way)


def one_launch_agrees_with_numpy(
    cupy: Any, taken: dict[str, list[bool]], monkeypatch: Any, dtype: str, sequences: int, way: str
) -> None:
    """Peepholes, clip, hard gates, both directions, lengths, two layers, dropout."""
    H = 33
    if dtype == "complex128":  # of which less fits into a thread
        H = 9
        monkeypatch.setattr(grid, "UNITS", (1,))
    takes(monkeypatch, way, sequences, 9, H)
    agrees_with_numpy(cupy, dtype, (4, 9, 3, H), 3)
    for mode in nets.MODES:
        lengths = (4, 1, 0, 2, 3, 4, 2, 1, 4)
        rnn_agrees_with_numpy(cupy, Case(mode, 4, 9, 2, 5, 2, BI, lengths=lengths), dtype)
    assert len(taken) == 2 * len(CELLS)
    # Where a step is alone, the loop has no more launches.
    assert all(any(found) for found in taken.values())


@both_ways
@pytest.mark.cuda_on_cpu
def test_what_does_not_fit_is_the_loops(
    cupy_on_cpu: ModuleType, taken: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projection, one step, no sequences, a matrix that is too large."""
    has_device(monkeypatch, 4, 75)
    rnn_agrees_with_numpy(cupy_on_cpu, Case("lstm", 3, 4, 2, 9, num_proj=3), "float32")
    agrees_with_numpy(cupy_on_cpu, "float32", (1, 4, 3, 9))
    agrees_with_numpy(cupy_on_cpu, "float32", (3, 0, 3, 9))
    agrees_with_numpy(cupy_on_cpu, "float64", (2, 2, 2, 97))
    assert not any(itertools.chain(*taken.values()))
    assert taken


@both_ways
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("complex64", marks=pytest.mark.slow)])
@pytest.mark.cuda_on_cpu
def test_the_bits_of_a_sequence_do_not_depend_on_the_others(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    dtype: str,
    way: str,
) -> None:
    """One, two and four sequences a block, alone, and in another order."""
    function, ((x, *others), weights) = calls(4, 7, 33, dtype)[cell]
    # The product with x is not made by these kernels, and may depend on the batch.
    call = function, ((np.zeros_like(x), *others), weights)
    takes(monkeypatch, way, 1, 7, 33)
    expected = on(cupy_on_cpu, call)
    order = np.array([3, 0, 6, 5, 1, 4, 2])
    for sequences in (2, 4):
        takes(monkeypatch, way, sequences, 7, 33)
        for a, e in zip(on(cupy_on_cpu, call), expected, strict=True):
            np.testing.assert_array_equal(a, e)
        for a, e in zip(on(cupy_on_cpu, call, order), expected, strict=True):
            # Of x alone the product over all rows is cuBLAS's.
            if a.shape[2] != 3:
                np.testing.assert_array_equal(a, e[:, order])
    for a, e in zip(on(cupy_on_cpu, call, slice(4, 5)), expected, strict=True):
        if a.shape[2] != 3:
            np.testing.assert_array_equal(a, e[:, 4:5])
    assert all(all(found) for found in taken.values())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("way", ["grid"])
@pytest.mark.cuda_on_cpu
def test_nor_on_how_many_units_a_warp_has_and_where_the_matrix_is(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
) -> None:
    call = calls(4, 3, 33)[cell]
    has_device(monkeypatch, 200)
    expected = on(cupy_on_cpu, call)
    for registers in (128, 9):
        monkeypatch.setitem(grid._ROOM, "float32", grid.Room(registers, registers))
        for units in (4, 1):
            monkeypatch.setattr(grid, "UNITS", (units,))
            grid.layout_of.cache_clear()
            for a, e in zip(on(cupy_on_cpu, call), expected, strict=True):
                np.testing.assert_array_equal(a, e)
    assert all(all(found) for found in taken.values())


@both_ways
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_nor_do_they_where_lengths_differ(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    way: str,
) -> None:
    """In another order, and beside fewer: each sequence is then in another block and row."""
    lengths = np.array([3, 4, 2, 4, 1, 3, 2])
    function, ((x, *others), weights) = calls(4, 7, 33, lengths=tuple(lengths))[cell]
    sequences = np.zeros_like(x), *others
    takes(monkeypatch, way, 2, 7, 33)
    expected = on(cupy_on_cpu, (function, (sequences, weights)))
    for part in (np.array([3, 0, 6, 5, 1, 4, 2]), np.array([4, 1]), np.array([5])):
        some, _ = calls(4, 7, 33, lengths=tuple(lengths[part]))[cell]
        found = on(cupy_on_cpu, (some, (sequences, weights)), part)
        for a, e in zip(found, expected, strict=True):
            if a.shape[2] != 3:
                np.testing.assert_array_equal(a, e[:, part])
    assert all(all(found) for found in taken.values())


@both_ways
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_the_order_of_threads_does_not_matter(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    way: str,
) -> None:
    """In reverse, and in twenty random orders of warps and blocks."""
    call = calls(4, 5, 17)[cell]
    takes(monkeypatch, way, 2, 5, 17)
    expected = on(cupy_on_cpu, call)
    for order in ("reverse", *range(20)):
        use_order(monkeypatch, order)
        for a, e in zip(on(cupy_on_cpu, call), expected, strict=True):
            np.testing.assert_array_equal(a, e)


@both_ways
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_as_many_launches_whatever_the_number_of_steps(
    cupy_on_cpu: Any,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    way: str,
) -> None:
    takes(monkeypatch, way, 2, 2, 5)
    found = [launches(cupy_on_cpu, monkeypatch, calls(T, 2, 5)[cell]) for T in (2, 3, 20)]
    assert found[0] == found[1] == found[2]
    assert "gemmEx" in found[0]


# By the name of an error: the cell, the source before it and after, and what catches it. Without a
# new source, the barrier in the old one is left out.
PLANTED: dict[str, tuple[str, str, str | None, set[str]]] = {
    "no barrier between zeros and the first state": (
        "lstm", f"begin();\n    {BARRIER}", None, ALL,
    ),
    "no barrier before the first step": ("gru", f"fetch();\n    {MEETING}", None, ALL),
    "no barrier after a step": (
        "lstm", f"saved)[k]);\n            }}\n            {MEETING}", None, ALL,
    ),
    "no barrier between zeros and the first deltas": (
        "lstm", f"cell.factors(unit, read);\n    }}\n    {BARRIER}", None, ALL,
    ),
    "no barrier in a step back": ("lstm", f"if (any) {{\n            {MEETING}", None, ALL),
    "no barrier between the products of a step back": (
        "gru", f"first, sum[0]);\n                {MEETING}", None, ALL,
    ),
    "no barrier after a product": (
        "gru", f"saved)[k]);\n            }}\n            {MEETING}", None, ALL,
    ),
    "one place for two states": (
        "lstm", "M::turn(p, s) ^ 1", "M::turn(p, s)", ALL,
    ),
    "one place for two deltas": ("lstm", "p : s & 1", "p : 0", ALL),
    "a wrong lane": (
        "simple_rnn", "even_item : odd_item, d)", "even_item : odd_item, 1)", {ORDERS},
    ),
    "a wrong slice": (
        "gru_reset_after", "lane * SLICE + k, n /", "lane * SLICE + k + 1, n /", {ORDERS},
    ),
    "another sequence": ("gru_reset_after", "vectors + r * LENGTH", "vectors", {ORDERS}),
    "a step too early": ("simple_rnn", "to = at[s + 2];", "to = at[s + 1];", {ORDERS}),
}  # fmt: skip


# The counter, as the CPU's source and NVRTC's have it.
RELEASE, ACQUIRE = "red.release.gpu", "ld.acquire.gpu"
TO_OTHERS = "2 * ROWS * all.stride"
# The same for what blocks tell each other, where each pair is an old source and a new one.
IN_GRID: dict[str, tuple[str, tuple[tuple[str, str], ...], set[str]]] = {
    "no barrier before an arrival": (
        "lstm", (("__syncthreads();  // before the arrival", ""),), ALL,
    ),
    "no barrier after a wait": ("lstm", (("__syncthreads();  // after the wait", ""),), ALL),
    "no barrier before a product": (
        "gru", (("__syncthreads();  // before the product", ""),), ALL,
    ),
    # This and the one counter are wrong only where a block comes late.
    "a target one too low": ("gru", (("+= gridDim.x;", "+= gridDim.x - 1;"),), {ORDERS}),
    "a target one too high": ("lstm", (("+= gridDim.x;", "+= gridDim.x + 1;"),), ALL),
    "one counter for all groups": (
        "lstm", (("all.counters + blockIdx.y * all.APART", "all.counters"),), {ORDERS},
    ),
    "one place for all groups": (
        "lstm", ((f"blockIdx.y * ({TO_OTHERS})", "0"),), ALL,
    ),
    "an arrival without release": (
        "gru_reset_after",
        (("cuda_on_cpu::add_release(", "atomicAdd("), (RELEASE, "red.relaxed.gpu")),
        {INTERPRETER, SANITIZER},
    ),
    "a wait without acquire": (
        "gru_reset_after",
        (("load_acquire(", "load_relaxed("), (ACQUIRE, "ld.relaxed.gpu")),
        {INTERPRETER, SANITIZER},
    ),
    "no wait": (
        "simple_rnn", (("while (int(arrived(counter) - target) < 0) { }", ""),), ALL,
    ),
    "no arrival": ("simple_rnn", (("arrive(counter);", ""),), ALL),
    "no meeting before the first step": ("gru", ((f"fetch();\n    {MEETING}", "fetch();"),), ALL),
    "no meeting after a step": (
        "lstm", ((f"saved)[k]);\n            }}\n            {MEETING}", "saved)[k]);}"),), ALL,
    ),
    "no meeting in a step back": (
        "lstm", ((f"if (any) {{\n            {MEETING}", "if (any) {"),), ALL,
    ),
    "no meeting between the products of a step back": (
        "gru", ((f"first, sum[0]);\n                {MEETING}", "first, sum[0]);"),), ALL,
    ),
    "one place for two vectors": (
        "lstm", (("M::turn(p, s) ^ 1", "M::turn(p, s)"), ("p : s & 1", "p : 0")),
        {ORDERS, INTERPRETER},
    ),
    "the vector of the other turn": (
        "simple_rnn", (("numbers + (turn * ROWS", "numbers + ((turn ^ 1) * ROWS"),),
        {ORDERS, INTERPRETER},
    ),
    "the sequences of another group": (
        "lstm", (("(THREADS / 32), blockIdx.y);", "(THREADS / 32), blockIdx.y / 2);"),), ALL,
    ),
    "the units of another block": (
        "lstm", (("blockIdx.x * (THREADS / 32)", "blockIdx.x / 2 * (THREADS / 32)"),), ALL,
    ),
    "not the last numbers of a vector": (
        "simple_rnn", (("(count + P - 1) / P", "count / P"),), {ORDERS},
    ),
    "numbers by the path that sees no writes": (
        "simple_rnn",
        (("*reinterpret_cast<Pack<A>*>(here", "*reinterpret_cast<float4*>(here"),
         ("*reinterpret_cast<const Pack<A>*>(numbers + (turn * ROWS + slot) * stride + k)",
          "__ldg(reinterpret_cast<const float4*>(numbers + (turn * ROWS + slot) * stride + k))")),
        {INTERPRETER},
    ),
}  # fmt: skip


every_tool = pytest.mark.parametrize(
    "tool",
    [
        ORDERS,
        pytest.param(INTERPRETER, marks=pytest.mark.slow),
        pytest.param(SANITIZER, marks=pytest.mark.slow),
    ],
)


@every_tool
@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.cuda_on_cpu
def test_a_planted_error_is_caught(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    tool: str,
) -> None:
    """By each of the tools that stand beside it, and by no other."""
    cell, old, new, tools = PLANTED[name]
    replaced = old, without_barriers(old) if new is None else new
    assert is_caught(cupy_on_cpu, monkeypatch, "rows", cell, (replaced,), tool) == (tool in tools)


@every_tool
@pytest.mark.parametrize("way", ["grid"])
@pytest.mark.parametrize("name", IN_GRID)
@pytest.mark.cuda_on_cpu
def test_a_planted_error_among_blocks_is_caught(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    tool: str,
) -> None:
    cell, replaced, tools = IN_GRID[name]
    assert is_caught(cupy_on_cpu, monkeypatch, "grid", cell, replaced, tool) == (tool in tools)


def test_the_page_has_the_same_table() -> None:
    """Of the errors among blocks, and of what catches each; by one tool at least."""
    lines = [
        "| planted error | orders | interpreter of PTX | thread sanitizer |",
        "|---|---|---|---|",
    ]
    for name, (_, _, tools) in IN_GRID.items():
        marks = ["yes" if tool in tools else "–" for tool in (ORDERS, INTERPRETER, SANITIZER)]
        assert "yes" in marks
        lines.append(f"| {name} | {' | '.join(marks)} |")
    page = Path(__file__).parents[2] / "docs" / "how" / "proof.md"
    assert "\n".join(lines) in page.read_text(encoding="utf-8")


def is_caught(cupy: Any, monkeypatch: Any, way: str, cell: str, replaced: Any, tool: str) -> bool:
    """Return whether a tool finds something where a part of the source is replaced."""
    needs_tool(tool)
    takes(monkeypatch, way, 2, 3, 17)
    call = calls(4, 3, 17, lengths=(2, 4, 3))[cell]
    expected = on(cupy, call)
    plant(monkeypatch, cell, way, *replaced)
    return caught_by(tool, cupy, monkeypatch, call, expected)


def test_every_barrier_is_left_out_once() -> None:
    places = {old for _, old, new, _ in PLANTED.values() if new is None}
    # That of a meeting stands in the source once.
    assert len(places) == rows.SOURCE.count(BARRIER) - 1 + rows.SOURCE.count(MEETING)
    assert all(rows.SOURCE.count(old) == 1 for old in places)
    removed = [
        old for _, replaced, _ in IN_GRID.values() for old, new in replaced
        if old.count(BARRIER) + old.count(MEETING) > new.count(BARRIER) + new.count(MEETING)
    ]  # fmt: skip
    of_grid = grid.SOURCE.count(BARRIER) - rows.SOURCE.count(BARRIER)
    assert len(removed) == of_grid + rows.SOURCE.count(MEETING)
    assert all(grid.SOURCE.count(old) == 1 for old in removed)


@both_ways
@pytest.mark.parametrize(
    "tool", [ORDERS, INTERPRETER, pytest.param(SANITIZER, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_nothing_is_caught_where_nothing_is_wrong(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    tool: str,
    way: str,
) -> None:
    needs_tool(tool)
    takes(monkeypatch, way, 2, 3, 17)
    call = calls(4, 3, 17, lengths=(2, 4, 3))[cell]
    expected = on(cupy_on_cpu, call)
    assert not caught_by(tool, cupy_on_cpu, monkeypatch, call, expected)
    assert all(all(found) for found in taken.values())


@pytest.mark.parametrize(
    ("dtype", "cell", "B", "H"),
    [("float32", "lstm", 2, 512), ("float16", "lstm", 3, 256), ("float64", "gru", 1, 512)],
)
@pytest.mark.slow
@pytest.mark.cuda_on_cpu
def test_the_grid_at_full_size(
    cupy_on_cpu: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: str, cell: str, B: int, H: int
) -> None:
    """On an H100's 132 multiprocessors."""
    found = taken_by(monkeypatch, "grid")
    has_device(monkeypatch, 132)
    function, (sequences, weights) = calls(2, B, H, dtype)[cell]
    call = function, (sequences, [w / np.asarray(H**0.5, w.dtype) for w in weights])
    for a, e in zip(on(cupy_on_cpu, call), function(*call[1]), strict=True):
        assert_close(a, e, dtype, cell)
    assert all(all(taken) for taken in found.values())


@pytest.mark.parametrize("way", ["grid"])
@pytest.mark.cuda_on_cpu
def test_a_grid_that_could_not_end_does_not_start(
    cupy_on_cpu: ModuleType, taken: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that has room for no block, and a device with one multiprocessor too few."""
    started: list[Any] = []
    driver = cupy_on_cpu.cuda.driver
    function = driver.launchCooperativeKernel
    monkeypatch.setattr(
        driver, "launchCooperativeKernel", lambda *args: started.append(args) or function(*args)
    )
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
    wide = persistent.grid_for(lstm.FORWARD_KERNELS.grid, np.dtype("f4"), (3, 17), has(blocks))
    assert wide.blocks == (5, 2)
    monkeypatch.setattr(persistent, "grid_for", lambda *_: wide)
    has_device(monkeypatch, blocks - 1)
    on(cupy_on_cpu, call)
    assert not started


@pytest.mark.parametrize("way", ["grid"])
@pytest.mark.cuda_on_cpu
def test_nor_does_one_where_blocks_may_not_wait_for_each_other(
    cupy_on_cpu: Any, taken: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU that is lent out in parts."""
    call = calls(4, 3, 17)["lstm"]
    for may in (1, 0):
        attributes = {"MultiProcessorCount": 132, "CooperativeLaunch": may}
        monkeypatch.setattr(cupy_on_cpu.cuda.Device, "attributes", attributes)
        persistent._device.cache_clear()
        on(cupy_on_cpu, call)
        assert [found[-1] for found in taken.values()] == [bool(may)] * 2
    sizes = {"batch_size": 3, "num_units": 17, "num_steps": 4}
    reason = cupyrnn.recurrence_kernels("lstm", **sizes).forward.reason
    assert reason == "grid needs cooperative launches, which this GPU refuses"
    persistent._device.cache_clear()


def has(processors: int) -> persistent.Device:
    return persistent.Device(processors, 90)


@pytest.mark.parametrize("way", ["grid"])
@pytest.mark.cuda_on_cpu
def test_each_launch_has_counters_of_its_own_that_are_zero(
    cupy_on_cpu: ModuleType, taken: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that two calls at once, on two streams, cannot wait for each other."""
    made: list[Any] = []
    exchanged = grid.exchanged

    def noted(*args: Any) -> Any:
        made.append(exchanged(*args))
        assert not any(np.asarray(a.view(np.ndarray)).any() for a in made[-1][:2])
        return made[-1]

    monkeypatch.setattr(grid, "exchanged", noted)
    takes(monkeypatch, "grid", 2, 3, 17)
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


def largest(size: Any, dtype: str) -> tuple[int, Any]:
    """Return the largest H that needs no shared memory, and its layout."""
    layouts = (
        persistent.layout_for(size, H, numpy_dtype(dtype), 65536, SPLITS)
        for H in itertools.count(1)
    )
    *_, last = enumerate(
        itertools.takewhile(lambda found: not isinstance(found, str) and not found.shared, layouts)
    )
    return last[0] + 1, last[1]


# The oldest architecture, and the one with most threads; the rest stands in results/registers.md.
@pytest.mark.parametrize(
    ("dtype", "arch"),
    [
        pytest.param("float32", "sm_75", marks=pytest.mark.slow),
        ("float32", "sm_120"),
        pytest.param("float64", "sm_90", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("cell", CELLS)
def test_what_is_taken_fits_into_the_registers(
    monkeypatch: pytest.MonkeyPatch, cell: str, dtype: str, arch: str
) -> None:
    """No register is spilled, and so none read again within the loop over the steps."""
    reason = nvrtc.have_nvrtc() or nvdisasm.have_nvdisasm()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    for direction in DIRECTIONS:
        kernels = getattr(CELLS[cell], direction)
        kernel = kernels.rows
        H, layout = largest(kernel.size, dtype)
        assert (96 if dtype == "float32" else 64) <= H
        name = compile.instance(template_of(kernel, layout, layout.split), dtype)
        source = common.source(dtype, kernel.source)
        cubin = nvrtc.compile_cubin(source, (name,), arch, compile.OPTIONS)
        usage, (steps, *_) = cubin.kernels[name], nvdisasm.loops(cubin)[name]
        assert usage.spill_stores == usage.spill_loads == usage.stack == 0
        assert steps["BAR"] > 0
        assert steps["LDL"] == steps["STL"] == 0
        assert usage.registers * -(-layout.threads // 128) * 128 <= 65536


def test_nor_does_a_grid_that_is_drawn_today_spill() -> None:
    """Any cell, dtype, size and card: others every day, with the day in the failure."""
    if reason := nvrtc.have_nvrtc():
        pytest.skip(reason)
    day = datetime.date.today().toordinal()
    draw, done = random.Random(day), 0
    while done < 6:
        cell, direction, arch = (draw.choice([*of]) for of in (CELLS, DIRECTIONS, ARCHITECTURES))
        kernel = getattr(CELLS[cell], direction).grid
        dtype, number = draw.choice([*common.TYPES]), arch.removeprefix("compute_")
        device = persistent.Device(draw.randint(20, 180), int(number))
        shape = draw.choice((1, 2, 8, 32)), draw.randint(1, 1200)
        over = persistent.grid_for(kernel, numpy_dtype(dtype), shape, device)
        if over is None:
            continue
        name = compile.instance(template_of(kernel, over.matrices, over.sequences), dtype)
        source = common.source(dtype, kernel.source)
        usage = nvrtc.compile_cubin(source, (name,), f"sm_{number}", compile.OPTIONS).kernels[name]
        assert usage.spill_stores == usage.spill_loads == usage.stack == 0, (day, name, arch)
        done += 1


# One of each; what is left is slow.
QUICK = {
    ("lstm", "compute_75"), ("gru", "compute_80"), ("gru_reset_after", "compute_90"),
    ("lstm", "compute_100"), ("simple_rnn", "compute_120"),
}  # fmt: skip
QUICK_IN_FLOAT64 = {("gru", "rows"), ("simple_rnn", "grid")}


@pytest.mark.parametrize(
    ("cell", "arch"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in itertools.product(CELLS, ARCHITECTURES)
    ],
)
@pytest.mark.parametrize("order", ["together", "backward"])
@both_ways
@pytest.mark.cuda_on_cpu
def test_the_ptx_agrees(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    arch: str,
    order: str,
    way: str,
) -> None:
    """NVRTC's code, interpreted, every address and race looked at."""
    takes(monkeypatch, way, 2, 3, 9)
    interpreted(cupy_on_cpu, monkeypatch, calls(3, 3, 9, lengths=(1, 3, 2))[cell], arch, order)
    assert all(all(found) for found in taken.values())


@pytest.mark.parametrize(
    ("cell", "way"),
    [
        pytest.param(*pair, marks=() if pair in QUICK_IN_FLOAT64 else pytest.mark.slow)
        for pair in itertools.product(CELLS, ("rows", "grid"))
    ],
)
@pytest.mark.cuda_on_cpu
def test_the_ptx_agrees_in_float64(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    way: str,
) -> None:
    """Of a number that lanes exchange, each half goes by itself."""
    takes(monkeypatch, way, 2, 3, 9)
    call = calls(3, 3, 9, "float64", (1, 3, 2))[cell]
    interpreted(cupy_on_cpu, monkeypatch, call, "compute_75", tolerances=(1e-12, 1e-13))
    assert all(all(found) for found in taken.values())


def test_what_would_be_taken_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"batch_size": 300, "num_steps": 10, "processors": 132, "architecture": 90}

    def ask(cell: Any, H: int, **changed: Any) -> Any:
        return cupyrnn.recurrence_kernels(cell, num_units=H, **{**sizes, **changed})

    monkeypatch.delenv("CUPYRNN_PERSISTENT", raising=False)
    assert ask("lstm", 64).forward.kernel == "loop"
    assert "timed on this GPU, and nothing was" in ask("lstm", 64).forward.reason
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")
    assert ask("gru", 64).backward == ("loop", 0, "CUPYRNN_PERSISTENT is 'loop'")
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    for cell in ("lstm", "gru", "rnn_tanh", "rnn_relu", "block_gru"):
        assert [choice[:2] for choice in ask(cell, 64)] == [("rows", 4)] * 2
        assert [choice.kernel for choice in ask(cell, 700)] == ["loop"] * 2
    assert ask("lstm", 64, batch_size=132).forward.sequences == 1
    assert ask("lstm", 64, batch_size=133).forward.sequences == 2
    assert "two steps" in ask("lstm", 64, num_steps=1).forward.reason
    assert "shared memory" in ask("lstm", 256).forward.reason
    # As many threads as a block may have, and more.
    assert "shared memory" in ask("lstm", 512).forward.reason
    assert "threads" in ask("lstm", 513).forward.reason
    assert ask("lstm", 96).forward.kernel == "rows"
    assert ask("lstm", 96, dtype="float64").forward.kernel == "hybrid"
    assert ask("lstm", 96, dtype="float64", architecture=80).forward.kernel == "loop"
    assert ask("lstm", 64, dtype="float16").forward.kernel == "rows"
    for changed, message in (
        ({"cell": "sru"}, "recurrence_kernels: cell is 'sru', expected one of lstm, gru, "),
        ({"batch_size": -1}, "recurrence_kernels: batch_size is -1, expected at least 0"),
        ({"processors": 0}, "recurrence_kernels: processors is 0, expected at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            ask(**{"cell": "lstm", "H": 4, **changed})
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ValueError, match="processors is None, expected an integer, as there is no"):
        ask("lstm", 4, processors=None)
    with pytest.raises(ValueError, match="architecture is None, expected an integer, as there is"):
        ask("lstm", 4, architecture=None)
    with pytest.raises(TypeError, match="recurrence_kernels: dtype is 'int8', expected one of"):
        ask("lstm", 4, dtype="int8")
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "columns")
    with pytest.raises(ValueError, match="CUPYRNN_PERSISTENT is 'columns', expected one of auto, "):
        ask("lstm", 4)
