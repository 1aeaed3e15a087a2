"""What "auto" takes once kernels were timed on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import lstms

import cupyrnn
from cupyrnn.kernels import persistent
from cupyrnn.kernels.persistent import Timed

H200: dict[str, int] = {"processors": 132, "architecture": 90}
TABLE = {
    (90, "lstm_forward", "float32"): (
        Timed(64, 16, "rows", 2),
        Timed(64, 512, "loop", 0),
        Timed(96, 1024, "rows", 4),
        Timed(512, 1024, "rows", 4),
    ),
    (90, "lstm_backward", "float16"): (Timed(128, 1024, "tiles", 8),),
}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUPYRNN_PERSISTENT", raising=False)
    monkeypatch.setattr(persistent, "TIMED", TABLE)


def taken(B: int, H: int, dtype: str = "float32", **device: int) -> list[tuple[str, int]]:
    """Return the kernels and the sequences of a block, forward and backward."""
    given: dict[str, Any] = {"batch_size": B, "num_units": H, "num_steps": 9, "dtype": dtype}
    found = cupyrnn.recurrence_kernels("lstm", **given, **{**H200, **device})
    return [(choice.kernel, choice.sequences) for choice in found]


def test_nothing_was_timed() -> None:
    """This one fails with the first results of a GPU; the guide says then what they are."""
    assert persistent.TIMED == {}
    assert taken(16, 64) == [("loop", 0)] * 2


@pytest.mark.usefixtures("timed")
def test_auto_takes_the_first_entry_with_room() -> None:
    loop = ("loop", 0)
    assert taken(16, 64) == taken(1, 3) == [("rows", 1), loop]
    assert taken(16, 64, processors=8) == [("rows", 2), loop]
    assert taken(17, 64) == [loop, loop]
    assert taken(513, 64) == taken(513, 96) == [("rows", 4), loop]
    assert taken(1, 96) == [("rows", 1), loop]
    # It was timed, but does not fit: a table that was changed by hand.
    assert taken(1, 512) == [loop, loop]
    # Beyond what was timed; of another dtype, on another architecture.
    assert taken(1, 513) == taken(1025, 64) == taken(16, 64, "float64") == [loop, loop]
    assert taken(16, 64, architecture=80) == [loop, loop]
    assert taken(16, 64, "float16") == [loop, ("tiles", 8)]


@pytest.mark.usefixtures("timed")
def test_the_reason_is_the_size_that_was_timed() -> None:
    given: dict[str, Any] = {"batch_size": 17, "num_units": 64, "num_steps": 9}
    reason = cupyrnn.recurrence_kernels("lstm", **given, **H200).forward.reason
    assert reason == "the loop was the fastest up to H = 64 and B = 512"


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("asked", ["loop", "rows"])
def test_what_is_asked_for_goes_before(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", asked)
    assert {kernel for kernel, _ in taken(17, 64)} == {asked}


@pytest.mark.cuda_on_cpu
@pytest.mark.usefixtures("timed")
def test_an_op_does_as_the_table_says(
    cupy_on_cpu: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch where it says rows, with the bits that rows has, and the loop elsewhere."""
    start, counts = cupy_on_cpu.cuda.driver.launchKernel, []

    def counting(*args: Any) -> Any:
        counts.append(args[0])
        return start(*args)

    monkeypatch.setattr(cupy_on_cpu.cuda.driver, "launchKernel", counting)
    monkeypatch.setattr(persistent, "current_device", lambda: persistent.Device(132, 90))
    results = {}
    for B in (3, 17):
        inputs = lstms.problem(rng, (6, B, 4, 5), True, np.dtype("float32"))
        there = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()}
        for asked in ("auto", "rows", "loop"):
            monkeypatch.setenv("CUPYRNN_PERSISTENT", asked)
            counts.clear()
            out = cupyrnn.block_lstm(**there)
            results[B, asked] = len(counts), cupy_on_cpu.asnumpy(out.h).tobytes()
    assert results[3, "auto"] == results[3, "rows"]
    assert results[17, "auto"] == results[17, "loop"]
    assert results[3, "rows"][0] < results[3, "loop"][0]
