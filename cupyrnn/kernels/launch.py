"""Grids of kernels, the time loop on a device, and the sums of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import isqrt
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .._typing import Array
from ..checks.arrays import address
from .blas import Product, without_rounding
from .compile import kernel

# Runs one stage of step s.
Stage: TypeAlias = Callable[[int], object]

# Columns of H by rows of B. The sums have the same shape: COLUMN_THREADS and ROW_THREADS.
BLOCK = (32, 8)
_LARGEST_GRID_Y = 65535


class BlockShape(NamedTuple):
    """The threads and the shared memory of a block of a launch."""

    threads: tuple[int, int] = BLOCK
    shared: int = 0  # bytes of shared memory, in addition to the source's own
    cooperative: bool = False  # whether blocks wait for each other


OF_A_STEP = BlockShape()


# The slices of a sum over rows, and the number of blocks that keeps a large device busy.
_SLICES = 64
_BUSY = 512


def step_grid(rows: int, columns: int) -> tuple[int, int]:
    """Return the grid that covers rows x columns, a thread each."""
    # The loop inside the kernel computes rows beyond the largest grid.
    return -(-columns // BLOCK[0]), min(-(-rows // BLOCK[1]), _LARGEST_GRID_Y)


def sum_grid(rows: int, columns: int) -> tuple[int, int]:
    """Return the grid of a sum over rows, in slices that do not depend on the device."""
    blocks = -(-columns // BLOCK[0])
    # Fewer columns get more slices, until adding the slices takes as long as one slice.
    slices = max(_SLICES, min(_BUSY // max(blocks, 1), isqrt(rows)))
    return blocks, max(1, min(slices, rows // (8 * BLOCK[1])))


def _addresses(values: Sequence[Any]) -> tuple[Any, Any]:
    """Return memory for a kernel's arguments, one word each, and the addresses of these words."""
    words = [-(-v.nbytes // 8) if isinstance(v, np.void) else 1 for v in values]
    places, at = np.zeros(sum(words), np.uint64), [0, *accumulate(words)][:-1]
    for n, value in zip(at, values, strict=True):
        if isinstance(value, np.void):
            places[n:].view(np.uint8)[: value.nbytes] = np.frombuffer(value.tobytes(), np.uint8)
        elif isinstance(value, np.generic):
            places[n : n + 1].view(value.dtype)[0] = value
        else:
            places[n] = address(value)
    return places, places.ctypes.data + 8 * np.array(at, np.uint64)


def make_context_current() -> None:
    """Make the current device's context current in this thread; driver calls need one."""
    import cupy

    # A thread has none before its first call of the CUDA runtime, which CuPy's pool may avoid.
    cupy.cuda.runtime.setDevice(cupy.cuda.runtime.getDevice())


def launch(
    cell: str,
    kernels: tuple[str, ...],
    name: str,
    dtype: np.dtype[Any],
    grid: tuple[int, int],
    args: Sequence[Any],
    block: BlockShape = OF_A_STEP,
) -> None:
    """Launch a kernel once, on the current stream; for the first four see `kernel`."""
    import cupy

    make_context_current()
    kept, addresses = _addresses(args)
    function = function_of(cell, kernels, name, dtype, block)
    stream = cupy.cuda.get_current_stream().ptr
    of_grid = function, *grid, 1, *block.threads, 1, block.shared, stream, addresses.ctypes.data
    if block.cooperative:
        cupy.cuda.driver.launchCooperativeKernel(*of_grid)
    else:
        cupy.cuda.driver.launchKernel(*of_grid, 0)
    del kept


def function_of(
    cell: str, kernels: tuple[str, ...], name: str, dtype: np.dtype[Any], block: BlockShape
) -> int:
    """Return the driver's handle of a kernel, prepared for launches with these blocks."""
    function = kernel(cell, kernels, dtype.name, name)
    if block.shared:  # Without this the driver refuses more than 48 KB.
        function.max_dynamic_shared_size_bytes = block.shared
    handle: int = function.kernel.ptr
    return handle


def blocks_at_once(cell: str, name: str, dtype: np.dtype[Any], block: BlockShape) -> int:
    """Ask the driver how many blocks of a kernel a multiprocessor can run at once."""
    import cupy

    make_context_current()
    function = function_of(cell, (name,), name, dtype, block)
    threads = block.threads[0] * block.threads[1]
    count: int = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
        function, threads, block.shared
    )
    return count


class StepLauncher:
    """
    The time loop on a device: the stages of every step in order, on the current stream.

    Arrays are rows [n, ·], where the rows of a step follow those of the step before, or states
    [B, ·]. A step uses the first rows of the states. Everything that is equal in all steps is
    prepared once.

    Parameters
    ----------
    batches
        The rows of each step.
    cell, kernels
        The source of the kernels and their templates: see `kernel`.
    """

    def __init__(self, batches: Sequence[int], cell: str, kernels: tuple[str, ...]) -> None:
        import cupy

        self._module = cell, kernels

        self._driver = cupy.cuda.driver
        make_context_current()
        self._stream = cupy.cuda.get_current_stream().ptr
        self._batches = batches
        self._starts = [0, *accumulate(batches)]
        self._kept: list[Any] = []  # keeps the memory behind the addresses alive
        self._rounds = False  # whether a product's result is of a half format

    def _offsets(self, a: Array, before: int = 0) -> list[int]:
        """Return the bytes from `a` to its part of each step, or of the step before it."""
        starts = self._starts[:-1]
        if len(a) != self._starts[-1] or len(starts) == 1:
            return [0] * len(starts)
        step: int = a.strides[0]
        return [start * step for start in starts[:1] * before + starts[: len(starts) - before]]

    def product(
        self,
        a: Array,
        w: Array,
        out: Array,
        *,
        accumulate: bool = False,
        before: Array | None = None,
    ) -> Stage:
        """
        Return the stage out = a @ w, or +=.

        With `before`, a state, each step multiplies the rows of the step before it, and the
        first step multiplies `before`.
        """
        product = Product(a, w, out, accumulate=accumulate)
        self._rounds |= product.rounds
        self._kept.append(product)
        lefts = [product.a + offset for offset in self._offsets(a, int(before is not None))]
        if before is not None:
            before = before.astype(a.dtype, order="C", copy=False)
            self._kept.append(before)
            lefts[0] = address(before)
        outs = [product.out + offset for offset in self._offsets(out)]
        run = product.run
        calls = list(zip(self._batches, lefts, outs, strict=True))
        return lambda s: run(*calls[s])

    def pointwise(
        self, name: str, dtype: np.dtype[Any], arrays: Sequence[Any], *more: Any
    ) -> Stage:
        """
        Return the stage that launches a kernel over the rows of a step and the columns of H.

        Parameters
        ----------
        arrays
            Its first arguments; None for a null pointer.
        more
            The arguments after a step's first row and number of rows: H first.
        """
        columns = int(more[0])
        if columns == 0:
            return lambda s: None
        function = kernel(*self._module, dtype.name, name).kernel.ptr
        unset = np.int64(0)
        places, addresses = _addresses((*arrays, unset, unset, *more))
        changing = np.array([self._starts[:-1], self._batches], np.int64)
        # For each step a row with the addresses of the kernel's arguments, for the driver.
        table = np.repeat(addresses[None], len(self._batches), axis=0)
        table[:, len(arrays) : len(arrays) + 2] = (
            (changing.ctypes.data + 8 * np.arange(changing.size, dtype=np.uint64))
            .reshape(changing.shape)
            .T
        )
        self._kept += [arrays, places, changing, table]
        grids = [step_grid(batch, columns) for batch in self._batches]
        first, size = table.ctypes.data, table.strides[0]
        calls = [
            (function, x, y, 1, *BLOCK, 1, 0, self._stream, first + s * size, 0)
            for s, (x, y) in enumerate(grids)
        ]
        start = self._driver.launchKernel
        return lambda s: start(*calls[s])

    def run(self, *stages: Stage, backwards: bool = False) -> None:
        """Run the stages of every step."""
        steps = range(len(self._batches))
        with without_rounding(self._rounds):
            for s in reversed(steps) if backwards else steps:
                for stage in stages:
                    stage(s)


# Sums of columns: first of slices of the rows, then of these sums, or of all rows at once.
SUMS = (
    "column_sums<{T}, {A}>",
    "column_sums<{A}, {A}>",
    "column_sums<{A}, {T}>",
    "column_sums<{T}, {T}>",
)


def add_column_sums(g: Array, sums: Array) -> None:
    """Add the sums of the columns of g[rows, columns] to sums[columns]."""
    import cupy

    rows, columns = g.shape
    if g.size == 0:
        return
    grid = sum_grid(rows, columns)
    slices = cupy.empty((grid[1], columns), sums.dtype)
    _launch_sums(SUMS[0], g.dtype, grid, g, slices)
    add_slices(g.dtype, slices, sums)


def add_slices(dtype: np.dtype[Any], slices: Array, sums: Array) -> None:
    """Add the sums over the slices, slices[S, columns], to sums[columns]."""
    import cupy

    total = cupy.empty((1, sums.size), sums.dtype)
    _launch_sums(SUMS[1], dtype, sum_grid(1, sums.size), slices, total)
    sums += total[0]


def _launch_sums(
    name: str, dtype: np.dtype[Any], grid: tuple[int, int], rows: Array, sums: Array
) -> None:
    columns = rows.shape[1]
    sizes = (np.int64(n) for n in (len(rows), columns, 0, columns, 0, 0))
    launch("", SUMS, name, dtype, grid, (rows, None, sums, None, *sizes))
