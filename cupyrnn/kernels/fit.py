"""
How the kernels of one launch fit a device.

``rows`` is one launch for all steps, with the recurrent matrix in the registers of a block.
``hybrid`` is ``rows`` with a part of the matrix in shared memory. ``grid`` spreads the matrix over
blocks that wait for each other, and ``cluster`` over the blocks of a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..checks.arrays import compute_dtype
from . import cluster, grid, rows, step, timed, turns
from .cell import CudaCell

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

# Whether a kernel is for plain calls, and whether for padded ones: each kind is compiled apart.
KINDS = ((True, False), (False, False), (False, True))


class Kernels(NamedTuple):
    """The kernels of a cell for one direction."""

    name: str  # of the cell and the direction
    cell: CudaCell
    loop: step.Module
    rows: rows.Kernel
    grid: rows.Kernel
    cluster: rows.Kernel


class Device(NamedTuple):
    """The properties of a device that the choice depends on."""

    processors: int  # multiprocessors
    architecture: int  # 90 for compute capability 9.0
    shared: int | None = None  # bytes that a block may have, None if there is no GPU to ask
    kept: Sequence[timed.Measurements] = ()  # times measured on it or on its architecture
    own: timed.Measurements | None = None  # of this device alone; None if there is no GPU to ask
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
    plain: bool = False  # whether all sequences have all steps, and nothing optional is set
    padded: bool = False  # whether they have the lengths and resets of ``Steps``


class Candidate(NamedTuple):
    """A choice and the layout of its kernel; the loop has none."""

    choice: KernelChoice
    layout: rows.ThreadLayout | grid.GridLayout | None = None


def the_loop(reason: str) -> Candidate:
    return Candidate(KernelChoice("loop", 0, reason))


def rounds_of(mode: str, layout: Any, device: Device) -> float:
    """Return how many times blocks that exchange numbers fill a device, one after the other."""
    if not isinstance(layout, grid.GridLayout):
        return 1
    if mode == "grid":
        return layout.launches
    blocks, clusters = layout.blocks
    at_once = cluster.at_once(blocks, device.processors)
    return -(-clusters // at_once) if at_once else math.inf


def by_mode(mode: str, of: Recurrence) -> Candidate:
    """Return the named kernel if it supports this recurrence, else the loop."""
    if of.steps < 2 or not all(of.shape):
        return the_loop(f"{mode} needs two steps at least, and B and H above 0")
    if math.prod(of.shape) > _MOST_NUMBERS:
        return the_loop(f"{mode} takes B*H up to {_MOST_NUMBERS}")
    return _by_rows(of) if mode == "rows" else _by_blocks(mode, of)


def _by_rows(of: Recurrence) -> Candidate:
    """Return "rows", or "hybrid" if that needs shared memory; the loop if neither fits."""
    kernels, dtype, (B, H), _, device, *_ = of
    sequences = sequences_of(B, H, device)
    layout = layout_for(kernels.rows.size, H, dtype, device.available, sequences)
    if isinstance(layout, str):
        return the_loop(layout)
    sequences = min(sequences, layout.split)
    why = f"{layout.registers} registers a thread"
    if layout.shared:
        why = f"{why} and {layout.shared} bytes of shared memory"
    kernel = "hybrid" if layout.shared else "rows"
    return Candidate(KernelChoice(kernel, sequences, f"{why} hold the matrix"), layout)


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


def _by_blocks(mode: str, of: Recurrence) -> Candidate:
    """Return the grid or clusters if their blocks hold the matrix, else the loop."""
    layout = blocks_for(getattr(of.kernels, mode), of.dtype, of.shape, of.device)
    if isinstance(layout, str):
        return the_loop(layout)
    if mode == "cluster":
        why = f"the {layout.blocks[0]} blocks of a cluster hold the matrix"
    else:
        blocks, groups = layout.blocks
        why = f"{blocks} blocks hold the matrix, for {layout.sequences} sequences, {groups} times"
        if layout.launches > 1:
            why = f"{why}, in {layout.launches} launches"
    return Candidate(KernelChoice(mode, layout.sequences, why), layout)


def template_of(of: Recurrence, candidate: Candidate) -> str:
    """Return the name of a kernel of one launch, with its storage type open."""
    kernel, layout = candidate.choice.kernel, candidate.layout
    if isinstance(layout, rows.ThreadLayout):
        sequences = candidate.choice.sequences
        return rows.template_of(of.kernels.rows, layout, sequences, of.plain, of.padded)
    assert layout is not None, kernel
    return grid.template_of(getattr(of.kernels, kernel), layout, padded=of.padded)
