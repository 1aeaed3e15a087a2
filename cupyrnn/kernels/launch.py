"""How the kernels are laid out over a grid, and the sums that all cells launch alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .compile import kernel

if TYPE_CHECKING:
    from .._arrays import Array

# Columns of H by rows of B. The sums have the same shape: COLUMN_THREADS and ROW_THREADS.
BLOCK = (32, 8)
_LARGEST_GRID_Y = 65535
_SLICES = 64


def step_grid(rows: int, columns: int) -> tuple[int, int] | None:
    """Return the grid that covers rows x columns, a thread each; None if there are none."""
    if rows == 0 or columns == 0:
        return None
    # Rows past the largest grid are taken by the loop inside the kernel.
    return -(-columns // BLOCK[0]), min(-(-rows // BLOCK[1]), _LARGEST_GRID_Y)


def sum_grid(rows: int, columns: int) -> tuple[int, int] | None:
    """Return the grid of a sum over the rows, in slices that do not depend on the device."""
    if rows == 0 or columns == 0:
        return None
    return -(-columns // BLOCK[0]), max(1, min(_SLICES, rows // (8 * BLOCK[1])))


# The templates of the sums that every cell's module lists among its kernels.
SUMS = ("column_sums<{T}, {A}>", "column_sums<{A}, {A}>")


def add_column_sums(cell: str, kernels: tuple[str, ...], g: Array, sums: Array) -> None:
    """Add the sums of the columns of g[rows, columns] to sums[columns]."""
    import cupy

    rows, columns = g.shape
    grid = sum_grid(rows, columns)
    if grid is None:
        return
    slices = cupy.empty((grid[1], columns), sums.dtype)
    launch = kernel(cell, kernels, g.dtype.name, SUMS[0])
    launch(grid, BLOCK, (g, slices, np.int64(rows), np.int64(columns)))
    add_slices(cell, kernels, g.dtype.name, slices, sums)


def add_slices(
    cell: str, kernels: tuple[str, ...], dtype_name: str, slices: Array, sums: Array
) -> None:
    """Add the sums over the slices, slices[S, columns], to sums[columns]."""
    import cupy

    rows, columns = slices.shape
    total = cupy.empty((1, columns), sums.dtype)
    launch = kernel(cell, kernels, dtype_name, SUMS[1])
    grid = (-(-columns // BLOCK[0]), 1)
    launch(grid, BLOCK, (slices, total, np.int64(rows), np.int64(columns)))
    sums += total[0]
