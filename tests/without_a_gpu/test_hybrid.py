"""Rows with a part of the matrix in shared memory: values, bits, errors, registers, limits."""

from __future__ import annotations

import datetime
import itertools
import random
import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from problems import nets
from problems.nets import BI, Case

import cupyrnn
from cupyrnn.kernels import common, compile, launch, lstm, persistent, rows
from cupyrnn.kernels.rows import SPLITS, Layout, template_of
from without_a_gpu.agreement import agrees_with_numpy, numpy_dtype, rnn_agrees_with_numpy
from without_a_gpu.all_steps import (
    ALL,
    BOUNDS,
    CELLS,
    DIRECTIONS,
    INTERPRETER,
    ORDERS,
    SANITIZER,
    calls,
    caught_by,
    forget,
    has_device,
    interpreted,
    needs_tool,
    on,
    plant,
    same,
    share,
    taken_by,
    use_order,
)
from without_a_gpu.cuda_on_cpu import fake_cupy, nvdisasm, nvrtc, runner
from without_a_gpu.ptx.compiler import ARCHITECTURES

slow = pytest.mark.slow
# The bytes that launches asked for.
Asked = list[int]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What of shared memory the launches ask for that take all steps, in bytes."""
    taken_by(monkeypatch, "rows")
    found: Asked = []

    def noted(*args: Any) -> None:
        *_, block = args
        found.append(block.shared)
        launch.launch(*args)

    monkeypatch.setattr(persistent, "launch", noted)
    return found


def agrees(cupy: Any, dtype: str, H: int) -> None:
    """Peepholes, clip, hard gates, both directions, lengths, two layers, dropout."""
    agrees_with_numpy(cupy, dtype, (4, 5, 3, H), 3)
    for mode in nets.MODES:
        rnn_agrees_with_numpy(cupy, Case(mode, 4, 5, 2, 5, 2, BI, lengths=(4, 1, 0, 2, 3)), dtype)


@pytest.mark.parametrize(
    ("dtype", "part", "split"),
    [
        ("float32", 0.5, 2),
        *(pytest.param(*more, marks=slow)
          for more in (("float64", 0.5, 4), ("float16", 0.7, 2), ("bfloat16", 0, 2),
                       ("complex64", 0.3, 2), ("complex128", 0.5, 4), ("float32", 0.9, 4))),
    ],
)  # fmt: skip
@pytest.mark.cuda_on_cpu
def test_hybrids_agree_with_numpy(
    cupy_on_cpu: ModuleType,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    part: float,
    split: int,
) -> None:
    share(monkeypatch, part, split)
    has_device(monkeypatch, 1)  # as many sequences a block as there may be
    agrees(cupy_on_cpu, dtype, 9 if dtype == "float32" and split == 2 else 33)
    assert asked
    assert all(asked)


@pytest.mark.parametrize(("dtype", "part"), [("float32", 0.5), ("float64", 0.6)])
@pytest.mark.gpu
def test_hybrids_on_a_gpu_agree_with_numpy(
    cupy_on_gpu: ModuleType, asked: Asked, monkeypatch: pytest.MonkeyPatch, dtype: str, part: float
) -> None:
    share(monkeypatch, part)
    has_device(monkeypatch, 1)
    agrees(cupy_on_gpu, dtype, 9)
    assert all(asked)


def agrees_at_full_size(cupy: Any, asked: Asked, dtype: str, H: int) -> None:
    agrees_with_numpy(cupy, dtype, (2, 3, 2, H))
    lengths = (3, 1, 2)
    for mode in ("gru", "rnn_tanh"):
        rnn_agrees_with_numpy(cupy, Case(mode, 3, 3, 2, H, 1, lengths=lengths), dtype)
    # The simple RNN's matrix is small enough for registers.
    assert max(asked) > 64 * 1024


# More than the 48 KB that a launch has without asking, the LSTM on every architecture but sm_75.
@pytest.mark.parametrize(
    ("dtype", "H", "arch"),
    [("float32", 128, 90), ("float32", 128, 120), ("float64", 80, 90), ("float16", 128, 80)],
)
@slow
@pytest.mark.cuda_on_cpu
def test_at_full_size(
    cupy_on_cpu: ModuleType,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    H: int,
    arch: int,
) -> None:
    has_device(monkeypatch, 2, arch)
    agrees_at_full_size(cupy_on_cpu, asked, dtype, H)


@pytest.mark.gpu
def test_at_full_size_on_a_gpu(
    cupy_on_gpu: ModuleType, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = persistent.current_device()
    if device.available < 96 * 1024:
        pytest.skip("needs a GPU whose blocks may have 96 KB of shared memory")
    monkeypatch.setattr(persistent, "current_device", lambda: device._replace(processors=2))
    agrees_at_full_size(cupy_on_gpu, asked, "float32", 128)


@pytest.mark.parametrize(
    ("cell", "dtype", "split", "orders"),
    [
        ("gru", "float32", 2, ()),
        *(pytest.param(cell, *more, ("reverse", *range(20)), marks=slow)
          for cell in CELLS for more in (("float32", 2), ("float32", 4), ("complex64", 2))),
    ],
)  # fmt: skip
@pytest.mark.cuda_on_cpu
def test_no_bit_depends_on_the_share_the_order_or_the_batch(
    cupy_on_cpu: ModuleType,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    dtype: str,
    split: int,
    orders: tuple[str | int, ...],
) -> None:
    """
    Some in shared memory, all; in reverse and at random; one, two or four a block.

    Nothing of it, too, where as many lanes share a unit as there may be: fewer then add up as many
    sums as these.
    """
    function, ((x, *others), weights) = calls(4, 5, 17, dtype)[cell]
    call = function, ((np.zeros_like(x), *others), weights)  # the product with x may depend on B
    has_device(monkeypatch, 3)
    share(monkeypatch, 1 if split == max(SPLITS) else 0.3, split)
    expected = on(cupy_on_cpu, call)
    assert any(asked) == (split < max(SPLITS))
    for part, processors in ((0.5, 3), (0, 1), (0.8, 100)):
        share(monkeypatch, part, split)
        has_device(monkeypatch, processors)
        asked.clear()
        assert same(on(cupy_on_cpu, call), expected)
        assert all(asked)
        for order in orders if part == 0.5 else ():
            use_order(monkeypatch, order)
            assert same(on(cupy_on_cpu, call), expected)


@pytest.mark.parametrize(
    ("cell", "arch", "order"),
    [
        *itertools.product(CELLS, ARCHITECTURES, ["together"]),
        *itertools.product(CELLS, ["compute_90"], ["backward"]),
    ],
)
@slow
@pytest.mark.cuda_on_cpu
def test_the_ptx_agrees(
    cupy_on_cpu: ModuleType,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    arch: str,
    order: str,
) -> None:
    """NVRTC's code, interpreted, every address and race looked at; the share changes no bit."""
    has_device(monkeypatch, 2)
    call = calls(3, 3, 9, lengths=(1, 3, 2))[cell]
    share(monkeypatch, 0.5)
    found = interpreted(cupy_on_cpu, monkeypatch, call, arch, order)
    assert all(asked)
    share(monkeypatch, 0)
    assert same(on(cupy_on_cpu, call), found)


@slow
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_the_ptx_agrees_at_full_size(
    cupy_on_cpu: ModuleType, asked: Asked, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    has_device(monkeypatch, 2, 90)
    call = calls(2, 2, 200 if cell == "simple_rnn" else 128)[cell]
    interpreted(cupy_on_cpu, monkeypatch, call, "compute_90", tolerances=(1e-3, 1e-4))
    assert all(asked)


# By the name of an error: the cell, the source before it and after, and what catches it.
PLANTED: dict[str, tuple[str, str, str, set[str]]] = {
    "one place for two threads": (
        "lstm", "rest = shared + threadIdx.x", "rest = shared + threadIdx.x / 2", ALL,
    ),
    "the part of another thread": (
        "gru_reset_after", "more = rest[e / P * THREADS]",
        "more = (rest - threadIdx.x + (threadIdx.x ^ 1))[e / P * THREADS]", {ORDERS},
    ),
    "the packs of a thread side by side": (
        "simple_rnn", "more = rest[e / P * THREADS]", "more = rest[e / P]", {ORDERS},
    ),
    "a row too late": (
        "lstm", "const int e = (k + m - KEPT) * COLUMNS + n;",
        "const int e = (k + m - KEPT + 1) * COLUMNS + n;", {ORDERS, BOUNDS},
    ),
    "a row of the slice left out": (
        "lstm", "put(lane * SLICE + KEPT, value)", "put(lane * SLICE + KEPT + 1, value)", {ORDERS},
    ),
    "registers from a later part of the slice": (
        "gru_reset_after", "put(lane * SLICE + first, value)", "put(lane * SLICE, value)", {ORDERS},
    ),
    "one matrix over the other": ("gru", "shared + M::First::SHARED", "shared",
        {ORDERS},
    ),
    "and backwards": ("gru", "? M::Second::SHARED : 0", "? 0 : 0", {ORDERS}),
    "shared memory behind what was asked for": (
        "gru_reset_after", "rest = shared + threadIdx.x", "rest = shared + threadIdx.x + THREADS",
        {ORDERS, BOUNDS},
    ),
}  # fmt: skip
# Both matrices of a GRU have a part in shared memory, those of others more in registers.
PARTS = {"lstm": 0.6, "gru": 0.2, "gru_reset_after": 0.6, "simple_rnn": 0.6}
# Each barrier left out; the last one stands between two products.
_barriers = [
    b.span() for b in re.finditer(r"^ +(__syncthreads\(\)|exchange\.meet\(\));$", rows.SOURCE, re.M)
]
for _cell, _left_out in (("lstm", _barriers[:-1]), ("gru", _barriers)):
    for _n, (_begin, _end) in enumerate(_left_out, 1):
        _without = rows.SOURCE[:_begin] + rows.SOURCE[_end:]
        PLANTED[f"barrier {_n} of the {_cell}"] = _cell, rows.SOURCE, _without, ALL
TOOLS = (ORDERS, INTERPRETER, SANITIZER, BOUNDS)


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        pytest.param(*pair, marks=() if pair == ("a row too late", ORDERS) else slow)
        for pair in itertools.product(PLANTED, TOOLS)
    ],
)
@pytest.mark.cuda_on_cpu
def test_a_planted_error_is_caught(
    cupy_on_cpu: ModuleType, asked: Asked, monkeypatch: pytest.MonkeyPatch, name: str, tool: str
) -> None:
    """By each of the tools that stand beside it, and by no other."""
    needs_tool(tool)
    cell, old, new, tools = PLANTED[name]
    has_device(monkeypatch, 2)
    share(monkeypatch, PARTS[cell])
    call = calls(4, 3, 17, lengths=(2, 4, 3))[cell]
    expected = on(cupy_on_cpu, call)
    assert all(asked)
    plant(monkeypatch, cell, "rows", (old, new))
    assert caught_by(tool, cupy_on_cpu, monkeypatch, call, expected) == (tool in tools)


@slow
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_nothing_is_caught_where_nothing_is_wrong(
    cupy_on_cpu: ModuleType, asked: Asked, monkeypatch: pytest.MonkeyPatch, cell: str, tool: str
) -> None:
    needs_tool(tool)
    has_device(monkeypatch, 2)
    share(monkeypatch, PARTS[cell])
    call = calls(4, 3, 17, lengths=(2, 4, 3))[cell]
    expected = on(cupy_on_cpu, call)
    assert not caught_by(tool, cupy_on_cpu, monkeypatch, call, expected)


@pytest.mark.cuda_on_cpu
def test_a_launch_asks_for_more_than_it_has_unasked(
    cupy_on_cpu: ModuleType, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is planted: the limit of what a launch has is left as it is."""
    has_device(monkeypatch, 2)
    share(monkeypatch, 0)
    call = calls(2, 2, 5)["simple_rnn"]
    monkeypatch.setattr(runner, "_DEFAULT_SHARED_BYTES", 256)
    forget()
    on(cupy_on_cpu, call)
    assert min(asked) > 256
    monkeypatch.setattr(fake_cupy.RawKernel, "max_dynamic_shared_size_bytes", 256)
    forget()
    with pytest.raises(ValueError, match="bytes of shared memory; at most 256 are possible"):
        on(cupy_on_cpu, call)


LIMITS = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99, 60: 48}
DTYPES = ("float32", "float64", "float16", "complex64", "complex128")


def layouts(cell: str, dtype: str, arch: int) -> dict[str, dict[int, tuple[int, Layout]]]:
    """Return, by direction, what has a part in shared memory: the largest H by lanes of a unit."""
    found: dict[str, dict[int, tuple[int, Layout]]] = {}
    for direction in DIRECTIONS:
        size = getattr(CELLS[cell], direction).rows.size
        available = persistent.Device(1, arch).available
        at = found[direction] = {}
        for H in range(1, 300):
            layout = persistent.layout_for(size, H, numpy_dtype(dtype), available, SPLITS)
            if isinstance(layout, Layout) and layout.shared:
                at[layout.split] = H, layout
    return found


@pytest.mark.parametrize(("arch", "kilobytes"), LIMITS.items())
def test_no_block_has_more_than_there_is(arch: int, kilobytes: int) -> None:
    for cell, dtype in itertools.product(CELLS, DTYPES):
        for at in layouts(cell, dtype, arch).values():
            for _, layout in at.values():
                assert layout.shared + layout.vectors <= 1024 * kilobytes
                assert layout.threads <= 1024


def test_shared_memory_at_its_limit() -> None:
    """What fits to the byte is taken, and what is one byte larger is not."""
    given = lstm.FORWARD_KERNELS.rows.size, 128, np.dtype(np.float32)
    found = persistent.layout_for(*given, 2**18, SPLITS)
    assert isinstance(found, Layout)
    needed = found.shared + found.vectors
    assert persistent.layout_for(*given, needed, SPLITS) == found
    assert isinstance(persistent.layout_for(*given, needed - 1, SPLITS), str)


def test_what_would_be_taken_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")

    def ask(cell: Any, H: int, arch: int = 90, B: int = 300, dtype: Any = "float32") -> Any:
        sizes = {"batch_size": B, "num_units": H, "num_steps": 10, "processors": 132}
        return cupyrnn.recurrence_kernels(cell, **sizes, dtype=dtype, architecture=arch)

    # Up to which H each architecture has room, in float32.
    limits = {75: 112, 80: 128, 86: 128, 89: 128, 90: 136, 100: 136, 120: 128}
    for arch, most in limits.items():
        for H, kernel in ((96, "rows"), (97, "hybrid"), (most, "hybrid"), (most + 1, "loop")):
            assert [choice.kernel for choice in ask("lstm", H, arch)] == [kernel] * 2
    for cell, arch in itertools.product(("gru", "block_gru"), (75, 80, 90, 120)):
        assert [choice.kernel for choice in ask(cell, 128, arch)] == ["hybrid"] * 2
    assert [choice.kernel for choice in ask("rnn_tanh", 192, 75)] == ["hybrid"] * 2
    assert ask("lstm", 80, dtype="float64").forward.kernel == "hybrid"
    forward = ask("lstm", 128).forward
    why = "168 registers a thread and 90112 bytes of shared memory hold the matrix"
    assert forward == ("hybrid", 2, why)
    assert ask("lstm", 128, B=132).forward.sequences == 1
    refused = ask("lstm", 128, 75).forward.reason
    assert refused.startswith("rows needs 92288 bytes of shared memory beside 168 registers of ")
    assert refused.endswith("each of 256 threads for H = 128, and there are 65536")
    assert "there are 49152" in ask("lstm", 128, 150).forward.reason
    # No more sequences of a block than keep all processors busy.
    assert ask("lstm", 64, B=900).forward[:2] == ("rows", 4)
    assert ask("lstm", 64, B=133).forward[:2] == ("rows", 2)
    assert ask("lstm", 64, B=1).forward[:2] == ("rows", 1)
    # Nor more than lanes share a unit.
    assert ask("lstm", 128, B=900).forward[:2] == ("hybrid", 2)


@pytest.mark.parametrize(
    ("cell", "dtype", "arch"),
    [
        *itertools.product(CELLS, ["float32"], [75, 80, 90, 100, 120]),
        *itertools.product(CELLS, ["float64", "float16", "complex64"], [90]),
    ],
)
@slow
def test_what_is_taken_fits_into_the_registers(cell: str, dtype: str, arch: int) -> None:
    """No register is spilled or read again within the loop; shared memory is what is counted."""
    reason = nvrtc.have_nvrtc() or nvdisasm.have_nvdisasm()
    if reason is not None:
        pytest.skip(reason)
    for direction, at in layouts(cell, dtype, arch).items():
        kernel = getattr(CELLS[cell], direction).rows
        assert at
        for _, layout in at.values():
            name = compile.instance(template_of(kernel, layout, layout.split), dtype)
            source = common.source(dtype, kernel.source)
            cubin = nvrtc.compile_cubin(source, (name,), f"sm_{arch}", compile.OPTIONS)
            usage, found = cubin.kernels[name], nvdisasm.loops(cubin)[name]
            # The loop that loads the matrix may be the longer one.
            steps = next(loop for loop in found if loop["BAR"])
            assert usage.spill_stores == usage.spill_loads == usage.stack == 0
            assert steps["LDL"] == steps["STL"] == 0
            assert usage.registers * -(-layout.threads // 128) * 128 <= 65536
            assert usage.shared == layout.vectors


def test_a_sample_of_the_day_spills_no_register() -> None:
    """Of all layouts that are chosen, on any architecture; other ones tomorrow."""
    reason = nvrtc.have_nvrtc()
    if reason is not None:
        pytest.skip(reason)
    day = datetime.date.today().toordinal()
    draw, done = random.Random(day), 0
    while done < 16:
        cell, direction, arch = (draw.choice([*of]) for of in (CELLS, DIRECTIONS, LIMITS))
        dtype, H = draw.choice(DTYPES), draw.randint(1, 256)
        kernel, available = getattr(CELLS[cell], direction).rows, 1024 * LIMITS[arch]
        given, sequences = (numpy_dtype(dtype), available, SPLITS), draw.choice((1, 2, 4))
        layout = persistent.layout_for(kernel.size, H, *given, sequences)
        if arch < 75 or isinstance(layout, str):  # NVRTC 13 knows no earlier ones
            continue
        template = template_of(kernel, layout, min(sequences, layout.split))
        name = compile.instance(template, dtype)
        source = common.source(dtype, kernel.source)
        cubin = nvrtc.compile_cubin(source, (name,), f"sm_{arch}", compile.OPTIONS)
        usage = cubin.kernels[name]
        assert usage.spill_stores == usage.spill_loads == usage.stack == 0, (day, name, arch)
        done += 1
