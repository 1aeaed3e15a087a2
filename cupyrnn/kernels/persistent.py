"""
Which kernel takes a device through the time steps, decided in one place.

``loop`` is a product and a kernel in every step, and does everything. ``rows`` is one launch, for
what fits into the registers of a block: see ``rows/__init__.py``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._arrays import compute_dtype
from .launch import launch
from .rows.common import Kernel, registers_of, template_of, threads_of

if TYPE_CHECKING:
    from .._arrays import Array

_MODES = ("auto", "loop", "rows")

# Registers that a thread needs beside its part of the matrices, by the bytes of a number, so that
# ptxas spills none on any architecture: tests/benchmarks/results/registers.md.
_BESIDE = {2: 96, 4: 64, 8: 112, 16: 192}
# The most that a thread may have, and those of a multiprocessor, which gives them out to four warps
# at a time.
_MOST, _ALL, _AT_ONCE = 255, 65536, 128
_MOST_THREADS = 1024


class KernelChoice(NamedTuple):
    """
    What takes a device through the time steps of a call.

    Attributes
    ----------
    kernel : {"loop", "rows"}
        Products and kernels in every step, or one launch for all steps.
    sequences : int
        How many sequences a block takes; 0 for "loop".
    reason : str
        Why this one, and not the other.
    """

    kernel: str
    sequences: int
    reason: str


def _asked() -> str:
    """Return what the user asks for."""
    asked = os.environ.get("CUPYRNN_PERSISTENT", "auto")
    if asked not in _MODES:
        raise ValueError(f"CUPYRNN_PERSISTENT is {asked!r}, expected one of {', '.join(_MODES)}")
    return asked


def choose(
    kernel: Kernel, dtype: np.dtype[Any], shape: tuple[int, int], steps: int, processors: int
) -> KernelChoice:
    """Return what takes this many steps with states of `shape` = (B, H)."""
    asked, (B, H), compute = _asked(), shape, compute_dtype(dtype)
    if asked == "loop":
        return KernelChoice("loop", 0, "CUPYRNN_PERSISTENT is 'loop'")
    if asked == "auto":
        why = "'auto' takes what was timed on a GPU, and rows was not: CUPYRNN_PERSISTENT=rows asks"
        return KernelChoice("loop", 0, f"{why} for it")
    if steps < 2 or not B or not H:
        return KernelChoice("loop", 0, "rows needs two steps at least, and B and H above 0")
    threads, matrix = threads_of(kernel.size, H), registers_of(kernel.size, H, compute)
    if threads > _MOST_THREADS:
        why = f"rows needs {threads} threads for H = {H}, and a block has {_MOST_THREADS} at most"
        return KernelChoice("loop", 0, why)
    most = min(_MOST, _ALL // (-(-threads // _AT_ONCE) * _AT_ONCE) // 8 * 8)
    beside = _BESIDE[dtype.itemsize]
    if matrix + beside > most:
        why = f"rows needs {matrix} registers a thread for the matrix and {beside} beside"
        return KernelChoice("loop", 0, f"{why} for H = {H}, and {threads} threads have {most} each")
    sequences = next((n for n in (1, 2) if -(-B // n) <= processors), 4)
    return KernelChoice("rows", sequences, f"{matrix} registers a thread hold the matrix")


def processors_of_device() -> int:
    """Return how many multiprocessors the current device has."""
    import cupy

    attributes: dict[str, int] = cupy.cuda.Device().attributes
    return attributes["MultiProcessorCount"]


def _starts(batches: Sequence[int]) -> Array | None:
    """Return the first row of each step on the device, None where all have as many rows."""
    import cupy

    if batches[0] == batches[-1]:
        return None
    starts: Array = cupy.asarray(np.array([0, *accumulate(batches)], np.int64))
    return starts


def run(
    kernel: Kernel,
    batches: Sequence[int],
    state: Array,
    weights: Sequence[Array],
    arrays: Sequence[Array | None],
    attributes: Sequence[Any],
) -> bool:
    """
    Take all steps in one launch, on the current stream; return False if the loop is to take them.

    Parameters
    ----------
    batches
        The rows of each step.
    state : [B, H]
        One of the states, in the dtype of the computation.
    weights
        The recurrent matrices, each [H, ·].
    arrays
        What else the kernel takes.
    attributes
        Its last arguments: H first.
    """
    if _asked() != "rows":
        return False
    dtype, (B, H) = weights[0].dtype, state.shape
    choice = choose(kernel, dtype, (B, H), len(batches), processors_of_device())
    if choice.kernel == "loop":
        return False
    args: list[Any] = []
    for w in weights:
        args += [w, *(np.int64(n // w.itemsize) for n in w.strides)]
    args += [*arrays, _starts(batches), np.int64(len(batches)), np.int64(B), *attributes]
    name = template_of(kernel, H, choice.sequences, compute_dtype(dtype))
    grid, block = (-(-B // choice.sequences), 1), (threads_of(kernel.size, H), 1)
    launch(kernel.source, (name,), name, dtype, grid, args, block)
    return True
