"""The kernels that take all steps in one launch: values, orders, batches, errors, registers."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from problems import nets
from problems.nets import BI, Case

import cupyrnn
from cupyrnn.kernels import common, compile, persistent, rows
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

# By the multiprocessors of a device: one, two or four sequences a block, for B = 9.
PROCESSORS = {1: 100, 2: 5, 4: 1}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bool]]:
    """Whether each cell's kernels took the steps they were asked to take."""
    return taken_by(monkeypatch, "rows")


@pytest.mark.parametrize(
    ("dtype", "sequences"),
    [
        ("float32", 2), ("float32", 4), ("float16", 2), ("bfloat16", 1), ("complex64", 4),
        *(pytest.param(*more, marks=pytest.mark.slow)
          for more in (("float32", 1), ("float64", 4), ("complex128", 2))),
    ],
)  # fmt: skip
@pytest.mark.cuda_on_cpu
def test_rows_agree_with_numpy(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    sequences: int,
) -> None:
    has_device(monkeypatch, PROCESSORS[sequences])
    rows_agree_with_numpy(cupy_on_cpu, taken, dtype)


@pytest.mark.parametrize(
    ("dtype", "sequences"),
    [("float32", 2), ("float64", 4), ("float16", 2), ("bfloat16", 1), ("complex64", 4)],
)
@pytest.mark.gpu
def test_rows_on_a_gpu_agree_with_numpy(
    cupy_on_gpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    sequences: int,
) -> None:
    has_device(monkeypatch, PROCESSORS[sequences])
    rows_agree_with_numpy(cupy_on_gpu, taken, dtype)


def rows_agree_with_numpy(cupy: Any, taken: dict[str, list[bool]], dtype: str) -> None:
    """Peepholes, clip, hard gates, both directions, lengths, two layers, dropout."""
    H = 9 if dtype == "complex128" else 33  # what fits
    agrees_with_numpy(cupy, dtype, (4, 9, 3, H), 3)
    for mode in nets.MODES:
        lengths = (4, 1, 0, 2, 3, 4, 2, 1, 4)
        rnn_agrees_with_numpy(cupy, Case(mode, 4, 9, 2, 5, 2, BI, lengths=lengths), dtype)
    assert len(taken) == 2 * len(CELLS)
    # Where a step is alone, the loop has no more launches.
    assert all(any(found) for found in taken.values())


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


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("complex64", marks=pytest.mark.slow)])
@pytest.mark.cuda_on_cpu
def test_the_bits_of_a_sequence_do_not_depend_on_the_others(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    dtype: str,
) -> None:
    """One, two and four sequences a block, alone, and in another order."""
    function, ((x, *others), weights) = calls(4, 7, 17, dtype)[cell]
    # The product with x is not made by these kernels, and may depend on the batch.
    call = function, ((np.zeros_like(x), *others), weights)
    has_device(monkeypatch, 100)
    expected = on(cupy_on_cpu, call)
    order = np.array([3, 0, 6, 5, 1, 4, 2])
    for count in (4, 1):
        has_device(monkeypatch, count)
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
@pytest.mark.cuda_on_cpu
def test_nor_do_they_where_lengths_differ(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
) -> None:
    """In another order, and beside fewer: each sequence is then in another block and row."""
    lengths = np.array([3, 4, 2, 4, 1, 3, 2])
    function, ((x, *others), weights) = calls(4, 7, 17, lengths=tuple(lengths))[cell]
    sequences = np.zeros_like(x), *others
    has_device(monkeypatch, 4)
    expected = on(cupy_on_cpu, (function, (sequences, weights)))
    for part in (np.array([3, 0, 6, 5, 1, 4, 2]), np.array([4, 1]), np.array([5])):
        some, _ = calls(4, 7, 17, lengths=tuple(lengths[part]))[cell]
        found = on(cupy_on_cpu, (some, (sequences, weights)), part)
        for a, e in zip(found, expected, strict=True):
            if a.shape[2] != 3:
                np.testing.assert_array_equal(a, e[:, part])
    assert all(all(found) for found in taken.values())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_the_order_of_threads_does_not_matter(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
) -> None:
    """In reverse, and in twenty random orders of warps and blocks."""
    call = calls(4, 5, 17)[cell]
    has_device(monkeypatch, 3)
    expected = on(cupy_on_cpu, call)
    for order in ("reverse", *range(20)):
        use_order(monkeypatch, order)
        for a, e in zip(on(cupy_on_cpu, call), expected, strict=True):
            np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_as_many_launches_whatever_the_number_of_steps(
    cupy_on_cpu: Any, taken: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
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


@pytest.mark.parametrize(
    "tool",
    [
        ORDERS,
        pytest.param(INTERPRETER, marks=pytest.mark.slow),
        pytest.param(SANITIZER, marks=pytest.mark.slow),
    ],
)
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
    needs_tool(tool)
    cell, old, new, tools = PLANTED[name]
    has_device(monkeypatch, 2)
    call = calls(4, 3, 17, lengths=(2, 4, 3))[cell]
    expected = on(cupy_on_cpu, call)
    plant(monkeypatch, cell, "rows", old, without_barriers(old) if new is None else new)
    assert caught_by(tool, cupy_on_cpu, monkeypatch, call, expected) == (tool in tools)


def test_every_barrier_is_left_out_once() -> None:
    places = {old for _, old, new, _ in PLANTED.values() if new is None}
    # That of a meeting stands in the source once.
    assert len(places) == rows.SOURCE.count(BARRIER) - 1 + rows.SOURCE.count(MEETING)
    assert all(rows.SOURCE.count(old) == 1 for old in places)


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
) -> None:
    needs_tool(tool)
    has_device(monkeypatch, 2)
    call = calls(4, 3, 17, lengths=(2, 4, 3))[cell]
    expected = on(cupy_on_cpu, call)
    assert not caught_by(tool, cupy_on_cpu, monkeypatch, call, expected)
    assert all(all(found) for found in taken.values())


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
        name = compile.instance(template_of(kernel, layout, 4), dtype)
        source = common.source(dtype, kernel.source)
        cubin = nvrtc.compile_cubin(source, (name,), arch, compile.OPTIONS)
        usage, (steps, *_) = cubin.kernels[name], nvdisasm.loops(cubin)[name]
        assert usage.spill_stores == usage.spill_loads == usage.stack == 0
        assert steps["BAR"] > 0
        assert steps["LDL"] == steps["STL"] == 0
        assert usage.registers * -(-layout.threads // 128) * 128 <= 65536


# One of each; what is left is slow.
QUICK = {
    ("lstm", "compute_75"), ("gru", "compute_80"), ("gru_reset_after", "compute_90"),
    ("lstm", "compute_100"), ("simple_rnn", "compute_120"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "arch"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in itertools.product(CELLS, ARCHITECTURES)
    ],
)
@pytest.mark.parametrize("order", ["together", "backward"])
@pytest.mark.cuda_on_cpu
def test_the_ptx_agrees(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    arch: str,
    order: str,
) -> None:
    """NVRTC's code, interpreted, every address and race looked at."""
    has_device(monkeypatch, 2)
    interpreted(cupy_on_cpu, monkeypatch, calls(3, 3, 9, lengths=(1, 3, 2))[cell], arch, order)
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
