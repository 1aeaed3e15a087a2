"""
Which kernel takes a device through the time steps, decided in one place.

``loop`` is a product and a kernel in every step, and does everything. ``rows`` and ``tiles`` are
one launch, for what fits into the registers of a block: see their ``__init__.py``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._arrays import compute_dtype
from .blas import address
from .launch import launch
from .rows import common as rows
from .tiles import common as tiles

if TYPE_CHECKING:
    from .._arrays import Array

_MODES = ("auto", "loop", "rows", "tiles")

# Registers that a thread needs beside its part of the matrices, by the bytes of a number, so that
# ptxas spills none on any architecture: tests/benchmarks/results/registers.md.
_BESIDE = {2: 96, 4: 64, 8: 112, 16: 192}
# The most that a thread may have, and those of a multiprocessor, which gives them out to four warps
# at a time.
_MOST, _ALL, _AT_ONCE = 255, 65536, 128
_MOST_THREADS = 1024
# The first architecture with the tiles of ``tiles``, and what they may be of.
_TILES_FROM, _HALVES = 80, ("float16", "bfloat16")


class Kernels(NamedTuple):
    """The kernels over all steps that a cell has for one direction."""

    rows: rows.Kernel
    tiles: tiles.Kernel | None = None


class Device(NamedTuple):
    """What the choice depends on: how many multiprocessors, and 90 for compute capability 9.0."""

    processors: int
    architecture: int


class Timed(NamedTuple):
    """What was the fastest, for sizes up to H and B that no entry before it has room for."""

    H: int
    B: int
    kernel: str  # as in `KernelChoice`, as the next one
    sequences: int


# What "auto" takes, by architecture, kernel and dtype, as tests/benchmarks/gpu.py prints it; the
# loop where it has no entry. Nothing was timed on a GPU so far.
TIMED: dict[tuple[int, str, str], tuple[Timed, ...]] = {}


class KernelChoice(NamedTuple):
    """
    What takes a device through the time steps of a call.

    Attributes
    ----------
    kernel : {"loop", "rows", "tiles"}
        Products and kernels in every step, or one launch for all steps, with the matrix in
        registers by rows or, for tensor cores, by tiles.
    sequences : int
        How many sequences a block takes; 0 for "loop".
    reason : str
        Why this one, and not another.
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
    kernels: Kernels, dtype: np.dtype[Any], shape: tuple[int, int], steps: int, device: Device
) -> KernelChoice:
    """Return what takes this many steps with states of `shape` = (B, H)."""
    asked, (B, H) = _asked(), shape
    if asked == "loop":
        return KernelChoice("loop", 0, "CUPYRNN_PERSISTENT is 'loop'")
    timed = None
    if asked == "auto":
        timed = _timed(kernels, dtype, B, H, device)
        if timed is None:
            why = "'auto' takes what was timed on a GPU, and neither rows nor tiles was"
            return KernelChoice("loop", 0, f"{why}: CUPYRNN_PERSISTENT=rows or tiles asks for one")
        asked = timed.kernel
        if asked == "loop":
            why = f"the loop was the fastest up to H = {timed.H} and B = {timed.B}"
            return KernelChoice("loop", 0, why)
    if steps < 2 or not B or not H:
        return KernelChoice("loop", 0, f"{asked} needs two steps at least, and B and H above 0")
    if asked == "tiles":
        return _by_tiles(kernels.tiles, dtype, H, device)
    choice = _by_rows(kernels.rows, dtype, B, H, device)
    if timed is not None and choice.kernel == "rows":
        return choice._replace(sequences=timed.sequences)
    return choice


def _timed(kernels: Kernels, dtype: np.dtype[Any], B: int, H: int, device: Device) -> Timed | None:
    """Return what was the fastest at a size, None where nothing of it was timed."""
    key = device.architecture, kernels.rows.name.removesuffix("_rows"), dtype.name
    return next((t for t in TIMED.get(key, ()) if H <= t.H and B <= t.B), None)


def _by_rows(
    kernel: rows.Kernel, dtype: np.dtype[Any], B: int, H: int, device: Device
) -> KernelChoice:
    """Return rows if they fit, else the loop."""
    compute = compute_dtype(dtype)
    threads, matrix = rows.threads_of(kernel.size, H), rows.registers_of(kernel.size, H, compute)
    if threads > _MOST_THREADS:
        why = f"rows needs {threads} threads for H = {H}, and a block has {_MOST_THREADS} at most"
        return KernelChoice("loop", 0, why)
    most = min(_MOST, _ALL // (-(-threads // _AT_ONCE) * _AT_ONCE) // 8 * 8)
    beside = _BESIDE[dtype.itemsize]
    if matrix + beside > most:
        why = f"rows needs {matrix} registers a thread for the matrix and {beside} beside"
        return KernelChoice("loop", 0, f"{why} for H = {H}, and {threads} threads have {most} each")
    sequences = next((n for n in (1, 2) if -(-B // n) <= device.processors), 4)
    return KernelChoice("rows", sequences, f"{matrix} registers a thread hold the matrix")


def _by_tiles(
    kernel: tiles.Kernel | None, dtype: np.dtype[Any], H: int, device: Device
) -> KernelChoice:
    """Return tiles if they fit, else the loop."""
    why = None
    if kernel is None:
        why = "tiles has only the LSTM and the GRU that resets after the product"
    elif dtype.name not in _HALVES:
        why = f"tiles multiplies {' and '.join(_HALVES)}, and the dtype is {dtype.name}"
    elif device.architecture < _TILES_FROM:
        why = f"tiles needs sm_{_TILES_FROM} or later, and the GPU is sm_{device.architecture}"
    elif H > tiles.MOST_UNITS:
        why = f"tiles takes H up to {tiles.MOST_UNITS}, and H is {H}"
    if why is not None:
        return KernelChoice("loop", 0, why)
    why = f"the registers of {tiles.threads_of(H)} threads hold the matrix"
    return KernelChoice("tiles", tiles.SEQUENCES, why)


def current_device() -> Device:
    """Return what the current device is."""
    import cupy

    return _device(cupy.cuda.runtime.getDevice())


@cache
def _device(number: int) -> Device:
    import cupy

    device: Any = cupy.cuda.Device(number)
    # CuPy asks the driver for every attribute that there is, which are not quite all of CUDA's.
    return Device(device.attributes["MultiProcessorCount"], int(device.compute_capability))


def _starts(batches: Sequence[int]) -> Array | None:
    """Return the first row of each step on the device, None where all have as many rows."""
    import cupy

    if batches[0] == batches[-1]:
        return None
    starts: Array = cupy.asarray(np.array([0, *accumulate(batches)], np.int64))
    return starts


def run(
    kernels: Kernels,
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
    kernels
        Those that there are.
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
    asked = _asked()
    if asked == "loop" or (asked == "auto" and not TIMED):
        return False
    dtype, (B, H) = weights[0].dtype, state.shape
    choice = choose(kernels, dtype, (B, H), len(batches), current_device())
    if choice.kernel == "loop":
        return False
    args: list[Any] = []
    for w in weights:
        args += [w, *(np.int64(n // w.itemsize) for n in w.strides)]
    args += [*arrays, _starts(batches), np.int64(len(batches)), np.int64(B), *attributes]
    kernel: rows.Kernel | tiles.Kernel = kernels.rows
    if choice.kernel == "tiles":
        assert kernels.tiles is not None
        kernel, threads = kernels.tiles, tiles.threads_of(H)
        # Two numbers are read at once where all arrays begin at a multiple of two.
        pairs = all(a is None or address(a) % (2 * a.itemsize) == 0 for a in arrays)
        name = tiles.template_of(kernel, H, pairs and H % 2 == 0)
    else:
        threads = rows.threads_of(kernels.rows.size, H)
        name = rows.template_of(kernels.rows, H, choice.sequences, compute_dtype(dtype))
    grid, block = (-(-B // choice.sequences), 1), (threads, 1)
    launch(kernel.source, (name,), name, dtype, grid, args, block)
    return True
