"""
Chooses the kernel that runs the time steps.

``loop`` launches a product and a kernel in every step, and supports everything. ``rows`` is one
launch for all steps, with the recurrent matrix in the registers of a block. ``hybrid`` is ``rows``
with a part of the matrix in shared memory. ``grid`` spreads the matrix over blocks that wait for
each other, and ``cluster`` over the blocks of a cluster.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array
from ..checks.arrays import compute_dtype
from . import cluster, grid, rows, step, timed, turns
from .cell import CudaCell, weights_of, words
from .launch import BlockShape, blocks_at_once, launch

_MODES = ("auto", *timed.MODES)

# Registers that a thread needs besides its part of the matrices, by the bytes of a number. With
# these ptxas spills none on any architecture: tests/benchmarks/results/registers.md.
_REGISTERS_BESIDE_MATRIX = {2: 96, 4: 64, 8: 112, 16: 192}
# The same if a part of the matrices is in shared memory.
_REGISTERS_BESIDE_PART = {2: 112, 4: 86, 8: 136, 16: 208}
# The same if two lanes share a unit and the whole matrices are in registers. Not used for half
# formats, where numbers that wait for their conversion would be spilled.
_REGISTERS_BESIDE_HALF = {2: 256, 4: 92, 8: 128, 16: 208}
# The additional registers that a second matrix needs: a part of both in shared memory, or none.
_OF_A_SECOND_PART, _OF_A_SECOND = 6, 24
# The least numbers of the matrix in a thread's registers; the others pass through them.
_LEAST_IN_SHARED = 32
# The most registers of a thread, and the registers of a multiprocessor, which allocates them to
# four warps at a time, one for each of its schedulers.
_MOST, _ALL, _AT_ONCE = 255, 65536, 128
_MOST_THREADS = 1024
# The most numbers of a state: the distance between two steps has to fit into 32 bits.
_MOST_NUMBERS = 2**28
# The shared memory that a block may have, in KB, by architecture, if there is no GPU to ask: CUDA
# C++ Programming Guide, "Technical Specifications per Compute Capability". Unknown architectures
# get the amount that all have.
_SHARED = {
    70: 96, 72: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227,
    100: 227, 103: 227, 110: 227, 120: 99, 121: 99,
}  # fmt: skip
_LEAST_SHARED = 48
# Pairs: the largest H, and how many blocks a multiprocessor runs at once up to it. Two sequences in
# one block are slower, as measured on an H200 with prototypes of these kernels.
_BLOCKS = ((32, 4), (64, 2))
# Statuses with which the driver refuses a launch, before anything runs: out of memory, out of
# resources, cooperative launch too large, not supported, invalid cluster size.
_REFUSALS = frozenset({2, 701, 720, 801, 912})
# Distances between rows have to fit into 32 bits, as kernels multiply them by B there.
_MOST_APART = 2**31


class Kernels(NamedTuple):
    """The kernels of a cell for one direction."""

    name: str  # of the cell and the direction
    cell: CudaCell
    loop: step.Module
    rows: rows.Kernel
    grid: rows.Kernel
    cluster: rows.Kernel


def kernels_of(cell: CudaCell) -> tuple[Kernels, Kernels]:
    """Return the kernels of a cell, forwards and backwards."""
    loop, modes = step.module(cell), {"rows": rows, "grid": turns, "cluster": cluster}

    def of(direction: str) -> Kernels:
        kernels = (rows.kernel(cell, direction, mode, modes[mode].SOURCE) for mode in modes)
        return Kernels(f"{cell.name}_{direction}", cell, loop, *kernels)

    return of("forward"), of("backward")


class Device(NamedTuple):
    """The properties of a device that the choice depends on."""

    processors: int  # multiprocessors
    architecture: int  # 90 for compute capability 9.0
    shared: int | None = None  # bytes that a block may have, None if there is no GPU to ask
    kept: Sequence[timed.Measurements] = ()  # times measured on it or on its architecture
    cooperative: bool = True  # whether blocks may wait for each other
    number: int = 0

    @property
    def available(self) -> int:
        """The bytes of shared memory that a block may have."""
        return self.shared or 1024 * _SHARED.get(self.architecture, _LEAST_SHARED)


class KernelChoice(NamedTuple):
    """
    The kernel that computes the time steps of a call.

    Attributes
    ----------
    kernel : {"loop", "rows", "hybrid", "grid", "cluster"}
        "loop" launches products and kernels in every step. The others are one launch for all steps,
        with the matrix in the registers of a block, in its registers and shared memory, spread
        over many blocks, or over the blocks of a cluster.
    sequences : int
        The number of sequences of a block; 0 for "loop".
    reason : str
        Why this kernel was chosen.
    """

    kernel: str
    sequences: int
    reason: str


class Recurrence(NamedTuple):
    """A recurrence to compute: its kernels, its sizes and its device."""

    kernels: Kernels
    dtype: np.dtype[Any]
    shape: tuple[int, int]  # (B, H) of the states
    steps: int
    device: Device


def _asked() -> str:
    """Return the kernel that the user asks for with CUPYRNN_PERSISTENT."""
    asked = os.environ.get("CUPYRNN_PERSISTENT", "auto")
    if asked not in _MODES:
        raise ValueError(f"CUPYRNN_PERSISTENT is {asked!r}, expected one of {', '.join(_MODES)}")
    return asked


class LaidOut(NamedTuple):
    """A choice and the layout of its kernel; the loop has none."""

    choice: KernelChoice
    layout: rows.ThreadLayout | grid.GridLayout | None = None


def _loop(reason: str) -> LaidOut:
    return LaidOut(KernelChoice("loop", 0, reason))


def choose(of: Recurrence) -> KernelChoice:
    """Return the kernel for the steps of a recurrence."""
    return _choose(_asked(), of).choice


def _choose(asked: str, of: Recurrence) -> LaidOut:
    """Return the kernel that `asked`, a value of CUPYRNN_PERSISTENT, stands for."""
    if asked == "auto":
        return _by_times(of)
    if asked == "loop":
        return _loop("CUPYRNN_PERSISTENT is 'loop'")
    return _by_mode(asked, of)


def fastest_engine(of: Recurrence, call: str) -> str | None:
    """Return the engine that was fastest in a call near this size; None if none was timed."""
    name, (B, H) = f"{of.kernels.cell.name}_{call} {of.dtype.name}", of.shape
    if _asked() != "auto" or of.steps < 2:
        return None
    for kept in of.device.kept:
        for near in kept.near(name, H, B)[:1]:
            return None if near.mode in kept.refused.get(name, {}) else near.mode
    return None


def _by_times(of: Recurrence) -> LaidOut:
    """Return the fastest kernel near this size, of those that support it and are right."""
    kernels, dtype, (B, H), _, device = of
    if not device.kept:
        why = "'auto' takes what was timed on this GPU or one like it, and nothing was"
        return _loop(f"{why}: python -m cupyrnn.device times all kernels")
    name = f"{kernels.name} {dtype.name}"
    refused = {k: (s, kept) for kept in device.kept for k, s in kept.refused.get(name, {}).items()}
    left_out: dict[str, None] = {}
    for kept, near in ((k, near) for k in device.kept for near in k.near(name, H, B)):
        where = near.where or f"on {kept.card}"
        source = f"the fastest at H = {near.H} and B = {near.B} {where}: {kept.path}"
        if near.mode == "loop":
            return _loop("; ".join([*left_out, source]))
        choice, layout = _by_mode(near.mode, of)
        if choice.kernel in refused:
            seen, record = refused[choice.kernel]
            left_out[f"{choice.kernel} is wrong on {record.card}, {seen}: {record.path}"] = None
        elif layout is None:
            left_out[choice.reason] = None
        elif _rounds(near.mode, layout, device) > _rounds_there(near.mode, of, kept):
            why = f"{choice.kernel} needs more launches, one after the other, on this GPU's"
            left_out[f"{why} {device.processors} multiprocessors than on {kept.card}"] = None
        else:
            return LaidOut(choice._replace(reason=f"{choice.reason}; {source}"), layout)
    untimed = f"{name} was not timed near H = {H} and B = {B}: {device.kept[0].path}"
    return _loop("; ".join(left_out) or untimed)


def _rounds(mode: str, layout: Any, device: Device) -> float:
    """Return how many times blocks that exchange numbers fill a device, one after the other."""
    if not isinstance(layout, grid.GridLayout):
        return 1
    if mode == "grid":
        return layout.launches
    blocks, clusters = layout.blocks
    at_once = cluster.at_once(blocks, device.processors)
    return -(-clusters // at_once) if at_once else math.inf


def _rounds_there(mode: str, of: Recurrence, kept: timed.Measurements) -> float:
    """Return `_rounds` of the card of some measurements; any number if it is not known."""
    if not kept.processors:
        return math.inf
    device = of.device._replace(processors=kept.processors)
    return _rounds(mode, _by_mode(mode, of._replace(device=device)).layout, device)


def _by_mode(mode: str, of: Recurrence) -> LaidOut:
    """Return the named kernel if it supports this recurrence, else the loop."""
    if of.steps < 2 or not all(of.shape):
        return _loop(f"{mode} needs two steps at least, and B and H above 0")
    if math.prod(of.shape) > _MOST_NUMBERS:
        return _loop(f"{mode} takes B*H up to {_MOST_NUMBERS}")
    return _by_rows(of) if mode == "rows" else _by_blocks(mode, of)


def _by_rows(of: Recurrence) -> LaidOut:
    """Return "rows", or "hybrid" if that needs shared memory; the loop if neither fits."""
    kernels, dtype, (B, H), _, device = of
    sequences = sequences_of(B, H, device)
    layout = layout_for(kernels.rows.size, H, dtype, device.available, sequences)
    if isinstance(layout, str):
        return _loop(layout)
    sequences = min(sequences, layout.split)
    why = f"{layout.registers} registers a thread"
    if layout.shared:
        why = f"{why} and {layout.shared} bytes of shared memory"
    kernel = "hybrid" if layout.shared else "rows"
    return LaidOut(KernelChoice(kernel, sequences, f"{why} hold the matrix"), layout)


def sequences_of(B: int, H: int, device: Device) -> int:
    """Return the sequences per block: the fewest for which all blocks run at once, if any."""
    at_once = device.processors * next((n for most, n in _BLOCKS if most >= H), 1)
    return next((n for n in (1, 2) if -(-B // n) <= at_once), 4)


@cache
def layout_for(
    size: rows.Size, H: int, dtype: np.dtype[Any], available: int, sequences: int = 4
) -> rows.ThreadLayout | str:
    """
    Return how the matrices fit, in registers alone if they do, or why they do not at all.

    `available` is the shared memory that a block may have, in bytes. `sequences` is the number of
    sequences in a block, if as many lanes share a unit.
    """
    whole, parts, compute = [], [], compute_dtype(dtype)
    for split in rows.SPLITS:
        layout = rows.layout_of(size, H, compute, split)
        if layout.threads > _MOST_THREADS:
            continue
        most = min(_MOST, _ALL // rows.up(layout.threads, _AT_ONCE) // 8 * 8)
        beside = _REGISTERS_BESIDE_MATRIX[dtype.itemsize]
        if split < max(rows.SPLITS):
            beside = _REGISTERS_BESIDE_HALF[dtype.itemsize]
            beside += _OF_A_SECOND * (len(size.vectors) - 1)
        if layout.registers + beside <= most:
            whole.append(layout)
        # In shared memory, at least _LEAST_IN_SHARED numbers; the other numbers in registers.
        all_of_it = rows.layout_of(size, H, compute, split, _ALL).registers
        all_but_least = all_of_it - _LEAST_IN_SHARED * compute.itemsize // 4
        beside = _REGISTERS_BESIDE_PART[dtype.itemsize]
        beside += _OF_A_SECOND_PART * (len(size.vectors) - 1)
        registers = min(most - beside, all_but_least)
        parts.append(rows.layout_of(size, H, compute, split, registers))
    if whole:
        # As few lanes as the sequences allow. The sums are the same for any number of lanes.
        return whole[-1] if sequences <= whole[-1].split else whole[0]
    if not parts:
        threads = rows.layout_of(size, H, compute, min(rows.SPLITS)).threads
        return f"rows needs {threads} threads for H = {H}, and a block has {_MOST_THREADS} at most"
    least = min(parts, key=lambda layout: layout.shared)
    if least.shared + least.vectors <= available:
        return least
    why = f"{least.registers} registers of each of {least.threads} threads for H = {H}"
    needed = f"{least.shared + least.vectors} bytes of shared memory"
    return f"rows needs {needed} beside {why}, and there are {available}"


def blocks_for(
    kernel: rows.Kernel, dtype: np.dtype[Any], shape: tuple[int, int], device: Device
) -> grid.GridLayout | str:
    """Return how the matrices fit into blocks of the grid or of a cluster, or why they do not."""
    of = device.processors, device.architecture, device.available
    if kernel.name == "steps_by_cluster":
        return cluster.layout_of(kernel.size, shape, dtype, of)
    if not device.cooperative:
        return "grid needs cooperative launches, which this GPU refuses"
    arguments = kernel.size, shape, dtype, of
    layout = turns.layout_of(*arguments) or grid.layout_of(*arguments)
    size = f"H = {shape[1]} in {dtype.name}"
    return layout or f"grid needs more than {device.processors} multiprocessors for {size}"


def _by_blocks(mode: str, of: Recurrence) -> LaidOut:
    """Return the grid or clusters if their blocks hold the matrix, else the loop."""
    layout = blocks_for(getattr(of.kernels, mode), of.dtype, of.shape, of.device)
    if isinstance(layout, str):
        return _loop(layout)
    if mode == "cluster":
        why = f"the {layout.blocks[0]} blocks of a cluster hold the matrix"
    else:
        blocks, groups = layout.blocks
        why = f"{blocks} blocks hold the matrix, for {layout.sequences} sequences, {groups} times"
        if layout.launches > 1:
            why = f"{why}, in {layout.launches} launches"
    return LaidOut(KernelChoice(mode, layout.sequences, why), layout)


def _expect_right(kernels: Kernels, dtype: np.dtype[Any], device: Device) -> None:
    """Raise an error if the loop, the only kernel left, was wrong on this GPU."""
    for kept in device.kept:
        seen = kept.refused.get(f"{kernels.name} {dtype.name}", {}).get("loop")
        if seen is not None:
            what = f"{kernels.name} for {dtype.name}: the loop is wrong on {kept.card}, {seen}"
            remedy = "CUPYRNN_PERSISTENT=loop takes it all the same"
            raise RuntimeError(f"{what} ({kept.path}); {remedy}")


def current_device() -> Device:
    """Return the properties of the current device."""
    import cupy

    number = cupy.cuda.runtime.getDevice()
    device = _device(number)
    return device._replace(kept=timed.of(number, device.architecture))


@cache
def _device(number: int) -> Device:
    import cupy

    device: Any = cupy.cuda.Device(number)
    # CuPy's names of attributes do not include all of CUDA's.
    found = device.attributes
    return Device(
        found["MultiProcessorCount"],
        int(device.compute_capability),
        found.get("MaxSharedMemoryPerBlockOptin"),
        cooperative=bool(found.get("CooperativeLaunch")),
        number=number,
    )


def _starts(batches: Sequence[int]) -> Array | None:
    """Return the first row of each step on the device; None if all steps have as many rows."""
    import cupy

    if batches[0] == batches[-1]:
        return None
    starts: Array = cupy.asarray(np.array([0, *accumulate(batches)], np.int64))
    return starts


class OneLaunch(NamedTuple):
    """
    A kernel for all steps, in one launch or, by the grid, in several.

    Attributes
    ----------
    kernel
        The kernel.
    name
        Its template.
    places
        The blocks of a launch.
    block
        The threads and shared memory of each block.
    exchanged
        The words of ``Exchanged`` after the memory, by launch; empty if blocks exchange nothing.
    memory
        The bytes through which blocks exchange numbers. All have to be 0xFF before the launches.
    of
        What identifies it in this process, from the device to the number of steps.
    """

    kernel: rows.Kernel
    name: str
    places: tuple[int, int]
    block: BlockShape
    exchanged: list[tuple[int, ...]]
    memory: int = 0
    of: tuple[Any, ...] = ()


# What identifies the launches that were refused in this process. The loop computes their calls.
_refused: set[tuple[Any, ...]] = set()


def is_refused(error: Exception) -> bool:
    """Return whether the driver refused a launch, so that nothing ran."""
    # Another process may use multiprocessors, and a part of a GPU may be too small for a cluster.
    return getattr(error, "status", None) in _REFUSALS


def refuse(launches: Iterable[OneLaunch]) -> None:
    """Let the loop compute the calls of these launches from now on, in this process."""
    _refused.update(launch.of for launch in launches)
    timed.CHANGES[0] += 1  # calls that are laid out are laid out anew


def one_launch(
    kernels: Kernels,
    dtype: np.dtype[Any],
    shape: tuple[int, int],
    steps: int,
    *,
    plain: bool,
    padded: bool = False,
    row: int = 0,
) -> OneLaunch | None:
    """
    Return the launch of all steps on the current device; None if the loop computes them.

    `plain` says whether all sequences have all steps and no optional member of the cell is set,
    `padded` whether they have the lengths and resets of ``Steps``. `row` is the distance between
    the rows of the output, or of its gradient.
    """
    asked = _asked()
    if asked == "loop" or shape[0] * row >= _MOST_APART:
        return None
    device = current_device()
    of = device.number, kernels.name, dtype, shape, steps, plain, padded
    if of in _refused or (asked == "auto" and not device.kept):
        return None
    choice, layout = _choose(asked, Recurrence(kernels, dtype, shape, steps, device))
    if layout is None:
        if asked == "auto":
            _expect_right(kernels, dtype, device)
        return None
    if isinstance(layout, rows.ThreadLayout):
        block = BlockShape((layout.threads, 1), layout.shared)
        name = rows.template_of(kernels.rows, layout, choice.sequences, plain, padded)
        places = -(-shape[0] // choice.sequences), 1
        return OneLaunch(kernels.rows, name, places, block, [()], of=of)
    kernel: rows.Kernel = getattr(kernels, choice.kernel)
    name = grid.template_of(kernel, layout, padded=padded)
    block = BlockShape((32 * grid.WARPS, 1), layout.shared, choice.kernel == "grid")
    if not block.cooperative:
        return OneLaunch(kernel, name, layout.blocks, block, [(layout.stride, 0, 0)], of=of)
    # If a block did not run, the others would wait for it forever.
    at_once = blocks_at_once(kernel.source, name, dtype, block)
    if math.prod(layout.blocks) > at_once * device.processors:
        return None
    # The operand of each product has a place of its own, and so have the last states.
    vectors = (len(kernel.size.vectors) * steps + 1) * shape[0]
    exchanged = grid.exchanged(layout, vectors, dtype)
    return OneLaunch(kernel, name, layout.blocks, block, *exchanged, of)


def all_ones(size: int) -> Any:
    """Return memory whose bytes are all 0xFF on the current stream, None for no bytes."""
    if size == 0:
        return None
    import cupy

    memory = cupy.empty(size, np.uint8)
    memory.data.memset_async(0xFF, size)
    return memory


def run(
    kernels: Kernels,
    batches: Sequence[int],
    cell: np.void,
    weights: Sequence[Array],
    arrays: Sequence[Array | int | None],
    state: Array,
    *,
    back: bool = False,
) -> bool:
    """
    Compute all steps in one launch, on the current stream; return False if the loop must do it.

    Parameters
    ----------
    kernels
        The kernels of the cell for the direction.
    batches
        The rows of each step.
    cell
        The struct of the cell.
    weights
        The recurrent matrices, each [H, ·].
    arrays
        The arrays of ``Forward`` or ``Backward`` in C++ that follow the matrices.
    state : [B, H]
        One of the states, in the dtype of the computation.
    back
        Whether time runs backwards: step 0 has the last rows. All steps have as many rows then.
    """
    dtype, (B, H) = weights[0].dtype, state.shape
    plain = batches[0] == batches[-1] and kernels.cell.is_plain(cell)
    found = one_launch(kernels, dtype, (B, H), len(batches), plain=plain)
    if found is None:
        return False
    starts = _starts(batches)
    args = [cell, words(*weights_of(weights), *arrays)]
    args.append(words(starts, len(batches), B, H, int(back), None, None, None))
    import cupy

    try:
        memory = all_ones(found.memory)
    except cupy.cuda.memory.OutOfMemoryError:
        refuse([found])
        return False
    for number, exchanged in enumerate(found.exchanged):
        of_launch = [*args, words(memory, *exchanged)] if exchanged else args
        try:
            launch(
                *(found.kernel.source, (found.name,), found.name, dtype),
                *(found.places, of_launch, found.block),
            )
        except cupy.cuda.driver.CUDADriverError as error:
            if not is_refused(error):
                raise
            refuse([found])
            if number:  # The states have changed, so the loop cannot start over.
                raise
            return False
    return True
