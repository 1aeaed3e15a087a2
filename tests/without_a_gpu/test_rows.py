"""Rows, and hybrids with a part in shared memory: what is taken and why, limits, full size."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from problems.nets import Case

from cupyrnn.driver import on_device
from cupyrnn.kernels import choice, common, fit, launch, lstm, persistent
from cupyrnn.kernels.rows import ThreadLayout
from without_a_gpu import all_steps
from without_a_gpu.agreement import agrees_with_numpy, rnn_agrees_with_numpy
from without_a_gpu.cuda_on_cpu import fake_cupy


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What of shared memory the launches ask for that take all steps, in bytes."""
    all_steps.taken_by(monkeypatch, "rows")
    found: list[int] = []

    def noted(*args: Any) -> None:
        found.append(args[-1].shared)
        launch.launch(*args)

    def noted_in_place(*args: Any) -> int:
        found.append(args[-1].shared)
        return launch.function_of(*args)

    monkeypatch.setattr(persistent, "launch", noted)
    monkeypatch.setattr(on_device, "function_of", noted_in_place)
    return found


def agrees_at_full_size(cupy: Any, asked: list[int], dtype: str, H: int) -> None:
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
@pytest.mark.slow
def test_at_full_size(
    cupy_on_cpu: ModuleType,
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    H: int,
    arch: int,
) -> None:
    all_steps.has_device(monkeypatch, 2, arch)
    agrees_at_full_size(cupy_on_cpu, asked, dtype, H)


def test_at_full_size_on_a_gpu(
    cupy_on_gpu: ModuleType, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = choice.current_device()
    if device.available < 96 * 1024:
        pytest.skip("needs a GPU whose blocks may have 96 KB of shared memory")
    monkeypatch.setattr(choice, "current_device", lambda: device._replace(processors=2))
    agrees_at_full_size(cupy_on_gpu, asked, "float32", 128)


@pytest.mark.slow
@pytest.mark.parametrize("cell", all_steps.CELLS)
def test_the_ptx_agrees_at_full_size(
    cupy_on_cpu: ModuleType, asked: list[int], monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    all_steps.has_device(monkeypatch, 2, 90)
    call = all_steps.calls(2, 2, 200 if cell == "simple_rnn" else 128)[cell]
    all_steps.interpreted(cupy_on_cpu, monkeypatch, call, "compute_90", tolerances=(1e-3, 1e-4))
    assert all(asked)


def test_a_launch_asks_for_more_than_it_has_unasked(
    cupy_on_cpu: ModuleType, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is planted: the limit of what a launch has is left as it is."""
    all_steps.has_device(monkeypatch, 2)
    all_steps.share(monkeypatch, 0)
    call = all_steps.calls(2, 2, 5)["simple_rnn"]
    monkeypatch.setattr(fake_cupy.RawKernel, "max_dynamic_shared_size_bytes", 256)
    all_steps.forget()
    all_steps.on(cupy_on_cpu, call)
    assert min(asked) > 256
    unheard = property(lambda _: 256, lambda *_: None)
    monkeypatch.setattr(fake_cupy.RawKernel, "max_dynamic_shared_size_bytes", unheard)
    all_steps.forget()
    with pytest.raises(AssertionError, match="bytes of shared memory; at most 256 are possible"):
        all_steps.on(cupy_on_cpu, call)


LIMITS = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99, 60: 48}


@pytest.mark.parametrize(("arch", "kilobytes"), LIMITS.items())
def test_no_block_has_more_than_there_is(arch: int, kilobytes: int) -> None:
    for cell, direction, dtype in itertools.product(
        all_steps.CELLS, all_steps.DIRECTIONS, common.TYPES
    ):
        size = getattr(all_steps.CELLS[cell], direction).rows.size
        for _, layout in all_steps.largest(size, dtype, arch).values():
            assert layout.shared + layout.vectors <= 1024 * kilobytes
            assert layout.threads <= 1024


def test_shared_memory_at_its_limit() -> None:
    """What fits to the byte is taken, and what is one byte larger is not."""
    given = lstm.FORWARD_KERNELS.rows.size, 128, np.dtype(np.float32)
    found = fit.layout_for(*given, 2**18)
    assert isinstance(found, ThreadLayout)
    needed = found.shared + found.vectors
    assert fit.layout_for(*given, needed) == found
    assert isinstance(fit.layout_for(*given, needed - 1), str)


def test_what_would_be_taken_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(cell: Any, H: int, B: int = 300, arch: int = 90, **changed: Any) -> Any:
        return all_steps.choices(cell, num_units=H, batch_size=B, architecture=arch, **changed)

    def both(*asked: Any, **changed: Any) -> Any:
        """Return what takes either direction, the same, and for how many sequences."""
        forward, backward = (choice[:2] for choice in ask(*asked, **changed))
        assert forward[0] == backward[0]
        return forward

    monkeypatch.delenv("CUPYRNN_PERSISTENT", raising=False)
    # Until something is timed.
    sizes = ((64, 75, "loop"), (64, 80, "rows"), (96, 120, "rows"), (97, 80, "loop"))
    for H, arch, expected in sizes:
        assert both("lstm", H, arch=arch)[0] == expected, (H, arch)
        why = "the default up to H = 96" if expected == "rows" else f"was not timed near H = {H}"
        assert why in ask("lstm", H, arch=arch).forward.reason
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")
    assert ask("gru", 64).backward == ("loop", 0, "CUPYRNN_PERSISTENT is 'loop'")
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    for cell in ("lstm", "gru", "rnn_tanh", "rnn_relu", "block_gru"):
        assert both(cell, 64) == ("rows", 2)
        assert both(cell, 700) == ("loop", 0)
    # Up to which H each architecture has room, in float32.
    limits = {75: 112, 80: 128, 86: 128, 89: 128, 90: 136, 100: 136, 120: 128}
    for arch, most in limits.items():
        for H, kernel in ((96, "rows"), (97, "hybrid"), (most, "hybrid"), (most + 1, "loop")):
            assert both("lstm", H, arch=arch)[0] == kernel
    for cell, arch in itertools.product(("gru", "block_gru"), (75, 80, 90, 120)):
        assert both(cell, 128, arch=arch)[0] == "hybrid"
    assert both("rnn_tanh", 192, arch=75)[0] == "hybrid"
    for H, dtype, arch, kernel in (
        *((80, "float64", 90, "hybrid"), (96, "float64", 90, "hybrid")),
        *((96, "float64", 80, "loop"), (64, "float16", 90, "rows")),
    ):
        assert ask("lstm", H, arch=arch, dtype=dtype).forward.kernel == kernel
    # No more sequences of a block than keep all processors busy, nor than lanes share a unit.
    for H, B, taken in (
        *((32, 528, ("rows", 1)), (32, 529, ("rows", 2)), (64, 264, ("rows", 1))),
        *((64, 265, ("rows", 2)), (80, 132, ("rows", 1)), (80, 133, ("rows", 2))),
        *((64, 900, ("rows", 4)), (128, 132, ("hybrid", 1)), (128, 900, ("hybrid", 2))),
    ):
        assert both("lstm", H, B) == taken
    why = "168 registers a thread and 90112 bytes of shared memory hold the matrix"
    assert ask("lstm", 128).forward == ("hybrid", 2, why)
    refused = ask("lstm", 128, arch=75).forward.reason
    assert refused.startswith("rows needs 92288 bytes of shared memory beside 168 registers of ")
    assert refused.endswith("each of 256 threads for H = 128, and there are 65536")
    # As many threads as a block may have, and more; what an unknown card has.
    for H, arch, part in (
        *((256, 90, "shared memory"), (512, 90, "shared memory"), (513, 90, "threads")),
        (128, 150, "there are 49152"),
    ):
        assert part in ask("lstm", H, arch=arch).forward.reason
    assert "two steps" in ask("lstm", 64, num_steps=1).forward.reason
    assert ask("lstm", 64, 2**22).forward.kernel == "rows"
    assert "B*H up to" in ask("lstm", 64, 2**22 + 1).forward.reason


def test_questions_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, changed, message in (
        (ValueError, {"cell": "sru"}, "cell is 'sru', expected one of lstm, gru, "),
        (ValueError, {"batch_size": -1}, "batch_size is -1, expected at least 0"),
        (ValueError, {"processors": 0}, "processors is 0, expected at least 1"),
        (ValueError, {"architecture": 0}, "architecture is 0, expected at least 1"),
        (ValueError, {"processors": None}, "processors is None, expected an integer, as there is"),
        (ValueError, {"architecture": None}, "architecture is None, expected an integer, as there"),
        (TypeError, {"dtype": "int8"}, "dtype is 'int8', expected one of"),
        (TypeError, {"dtype": None}, "dtype is None, expected one of"),
    ):
        monkeypatch.setitem(sys.modules, "cupy", None)
        with pytest.raises(error, match=f"^recurrence_kernels: {message}"):
            all_steps.choices(**changed)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "columns")
    with pytest.raises(ValueError, match="CUPYRNN_PERSISTENT is 'columns', expected one of auto, "):
        all_steps.choices()
