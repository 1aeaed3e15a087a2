"""
Launches over all time steps: one launch, or several, of the kernel that ``choice`` takes.

A launch is tried before "auto" uses it for the first time on a device: `one_launch` raises a
`FirstUse`, and ``driver.trial``, which catches it, computes a few steps by that launch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array
from . import choice, cluster, grid, rows, step, timed, turns
from .cell import CudaCell, weights_of, words
from .fit import Candidate, Kernels, Recurrence, template_of
from .launch import BlockShape, blocks_at_once, launch

# Statuses with which the driver refuses a launch, before anything runs: out of memory, out of
# resources, cooperative launch too large, not supported, invalid cluster size.
_REFUSALS = frozenset({2, 701, 720, 801, 912})
# Statuses of a device after a kernel has failed: illegal address, launch failed.
_FAILURES = frozenset({700, 719})
# Distances between rows have to fit into 32 bits, as kernels multiply them by B there.
_MOST_APART = 2**31


def kernels_of(cell: CudaCell) -> tuple[Kernels, Kernels]:
    """Return the kernels of a cell, forwards and backwards."""
    loop, modes = step.module(cell), {"rows": rows, "grid": turns, "cluster": cluster}

    def of(direction: str) -> Kernels:
        kernels = (rows.kernel(cell, direction, mode, modes[mode].SOURCE) for mode in modes)
        return Kernels(f"{cell.name}_{direction}", cell, loop, *kernels)

    return of("forward"), of("backward")


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
        What identifies it in this process, from the device to the kernel.
    """

    kernel: rows.Kernel
    name: str
    places: tuple[int, int]
    block: BlockShape
    exchanged: list[tuple[Any, ...]]
    memory: int = 0
    of: tuple[Any, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether blocks wait for each other."""
        return bool(self.exchanged[0])

    @property
    def described(self) -> str:
        """The kernel in words."""
        _, name, dtype, *_, kernel = self.of
        return f"{name} for {dtype.name} by {kernel}"


class Trial(NamedTuple):
    """
    What computes the steps of this thread's calls in a trial.

    Attributes
    ----------
    launch
        The launch; None for the loop.
    lengths
        The lengths of padded sequences, on the device.
    over
        The word of the device that a wait in vain sets; None if such a wait traps.
    """

    launch: OneLaunch | None
    lengths: Array | None = None
    over: Array | None = None


class _OfThread(threading.local):
    trial: Trial | None = None


_here = _OfThread()


@contextmanager
def trying(trial: Trial) -> Iterator[None]:
    """Let this launch, or the loop, compute the steps of this thread's calls."""
    before, _here.trial = _here.trial, trial
    try:
        yield
    finally:
        _here.trial = before


# What identifies the launches that were refused in this process. Others compute their calls.
_refused: set[tuple[Any, ...]] = set()
# What "auto" took in this process.
_taken: dict[tuple[Any, ...], OneLaunch | None] = {}


def is_refused(error: Exception) -> bool:
    """Return whether the driver refused a launch, so that nothing ran."""
    # Another process may use multiprocessors, and a part of a GPU may be too small for a cluster.
    return getattr(error, "status", None) in _REFUSALS


def refuse(launches: Iterable[OneLaunch], error: Exception) -> None:
    """Compute the calls of these launches otherwise from now on, in this process."""
    for one in launches:
        if one.of not in _refused:
            _refused.add(one.of)
            why = f"{type(error).__name__}: {error}"
            timed.warn(f"cupyrnn computes {one.described} otherwise, as its launch failed: {why}")
    timed.CHANGES[0] += 1  # recorded calls are recorded anew


def note_failure(error: Exception, launches: Iterable[OneLaunch] = ()) -> None:
    """Name the kernels whose wait may have been in vain, if a kernel has failed before `error`."""
    if getattr(error, "status", None) in _FAILURES and hasattr(error, "add_note"):
        kernels = {one.described for one in (*_taken.values(), *launches) if one and one.waits}
        if kernels:
            error.add_note(f"cupyrnn has used kernels that wait: {', '.join(sorted(kernels))}")


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

    Raises
    ------
    FirstUse
        The launch has to be tried first.
    """
    if _here.trial is not None:
        return _here.trial.launch
    mode = choice.asked()
    if mode == "loop" or shape[0] * row >= _MOST_APART:
        return None
    device = choice.current_device()
    of = Recurrence(kernels, dtype, shape, steps, device, plain, padded)
    if mode != "auto":
        return _first(mode, of)
    key = device, kernels.name, dtype, shape, steps, plain, padded, timed.CHANGES[0]
    if key not in _taken:
        _taken[key] = _first(mode, of)
    return _taken[key]


def _first(mode: str, of: Recurrence) -> OneLaunch | None:
    """Return the best launch that is possible and, for "auto", right."""
    for candidate in choice.candidates(mode, of):
        found = launch_of(of, candidate)
        if found is None or found.of in _refused:
            continue
        if mode == "auto":
            verdict = choice.verdict(of, candidate)
            if verdict is None and of.device.own is not None:
                raise choice.FirstUse(of, candidate)
            if verdict:
                continue
        return found
    if mode == "auto":
        choice.expect_right(of)
    return None


def launch_of(of: Recurrence, candidate: Candidate) -> OneLaunch | None:
    """Return the launch of a kernel; None for the loop, or where blocks could not run at once."""
    kernels, dtype, shape, steps, device, *_ = of
    (kernel_name, sequences, _), layout = candidate
    if layout is None:
        return None
    name, sizes = template_of(of, candidate), (shape, steps, of.plain, of.padded)
    key = device.number, kernels.name, dtype, *sizes, kernel_name
    if isinstance(layout, rows.ThreadLayout):
        block, places = BlockShape((layout.threads, 1), layout.shared), -(-shape[0] // sequences)
        return OneLaunch(kernels.rows, name, (places, 1), block, [()], of=key)
    kernel: rows.Kernel = getattr(kernels, kernel_name)
    block = BlockShape((32 * grid.WARPS, 1), layout.shared, kernel_name == "grid")
    if not block.cooperative:
        return OneLaunch(kernel, name, layout.blocks, block, [(layout.stride, 0, 0, 0)], of=key)
    # If a block did not run, the others would wait for it forever.
    at_once = blocks_at_once(kernel.source, name, dtype, block)
    if math.prod(layout.blocks) > at_once * device.processors:
        return None
    # The operand of each product has a place of its own, and so have the last states.
    vectors = (len(kernel.size.vectors) * steps + 1) * shape[0]
    exchanged = grid.exchanged(layout, vectors, dtype)
    return OneLaunch(kernel, name, layout.blocks, block, *exchanged, key)


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
    """
    dtype, (B, H) = weights[0].dtype, state.shape
    plain = batches[0] == batches[-1] and kernels.cell.is_plain(cell)
    found = one_launch(kernels, dtype, (B, H), len(batches), plain=plain)
    if found is None:
        return False
    starts = _starts(batches)
    args = [cell, words(*weights_of(weights), *arrays)]
    trial = _here.trial or Trial(None)
    args.append(words(starts, len(batches), B, H, 0, None, trial.lengths, None))
    import cupy

    try:
        memory = all_ones(found.memory)
    except cupy.cuda.memory.OutOfMemoryError as error:
        refuse([found], error)
        return False
    for number, exchanged in enumerate(found.exchanged):
        if trial.over is not None and exchanged:
            exchanged = (*exchanged[:-1], trial.over)
        of_launch = [*args, words(memory, *exchanged)] if exchanged else args
        try:
            launch(
                *(found.kernel.source, (found.name,), found.name, dtype),
                *(found.places, of_launch, found.block),
            )
        except cupy.cuda.driver.CUDADriverError as error:
            note_failure(error)
            if not is_refused(error):
                raise
            refuse([found], error)
            if number:  # The states have changed, so the loop cannot start over.
                raise
            return False
    return True
