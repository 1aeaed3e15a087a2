"""Sequences of different lengths as one array without padding.

The sequences are ordered by falling length, and the rows of a step, one for each sequence that is
still running, follow those of the step before. So every step is a block of rows, its states are
the first rows of the states before it, and steps with equally many rows form an ordinary array
[t, b, ·]: a recurrence written for sequences of one length serves for all.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._products import block_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._arrays import Array


class Run(NamedTuple):
    """Steps with equally many rows."""

    row: int  # the first
    steps: int
    batch: int
    before: int  # the first row of the step before, -1 if there is none

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.row + self.steps * self.batch


class Block(NamedTuple):
    """Runs whose rows are taken together in the matmuls over many steps."""

    row: int
    end: int
    runs: list[Run]


def count_rows(T: int, B: int, lengths: NDArray[Any] | None) -> int:
    """Return N, the number of steps of all sequences."""
    return T * B if lengths is None else int(lengths.sum(dtype=np.int64))


class Packing:
    """The way from padded arrays [T, B, ·] to packed rows [N, ·] and back."""

    def __init__(self, xp: ModuleType, T: int, B: int, lengths: NDArray[Any] | None) -> None:
        self._xp, self._T, self._B = xp, T, B
        self.rows = count_rows(T, B, lengths)
        # Arrays of the module, or None where rows are taken as they are.
        self._order = self._inverse = self._padded_rows = self._mirrored = None
        if lengths is None or self.rows == T * B:
            self._batches = np.full(T if B else 0, B)
            return
        order = np.argsort(-lengths, kind="stable")
        lengths = lengths[order]
        longest = int(lengths[0])
        # Step t has a row for each of the sequences longer than t.
        self._batches = np.searchsorted(-lengths, -np.arange(longest), side="left")
        starts = np.concatenate([[0], np.cumsum(self._batches)])
        t = np.repeat(np.arange(longest), self._batches)
        b = np.arange(self.rows) - starts[t]
        if (order != np.arange(B)).any():
            self._order, self._inverse = xp.asarray(order), xp.asarray(np.argsort(order))
        self._padded_rows = xp.asarray(t * B + order[b])
        self._mirrored = xp.asarray(starts[lengths[b] - 1 - t] + b)

    def blocks(self) -> list[Block]:
        """Return all blocks in order."""
        most = block_rows(self._xp)
        changes = np.flatnonzero(np.diff(self._batches)) + 1
        blocks: list[Block] = []
        runs: list[Run] = []
        first = row = t = 0
        before = -1
        for end in [*changes.tolist(), len(self._batches)]:
            while t < end:
                batch = int(self._batches[t])
                steps = min(end - t, -(-(most - (row - first)) // batch))
                runs.append(Run(row, steps, batch, before))
                row, t = runs[-1].end, t + steps
                before = row - batch
                if row - first >= most or row == self.rows:
                    blocks.append(Block(first, row, runs))
                    first, runs = row, []
        return blocks

    def pack(self, a: Array) -> Array:
        """Return the rows [N, K] of a[T, B, K], a view where it can be."""
        flat = a.reshape(self._T * self._B, a.shape[2])
        return flat if self._padded_rows is None else flat.take(self._padded_rows, 0)

    def unpack(self, a: Array, dtype: np.dtype[Any]) -> Array:
        """Return the rows a[N, K] as a new array [T, B, K], zero in the padding."""
        shape = (self._T, self._B, a.shape[1])
        if self._padded_rows is None:
            return a.astype(dtype).reshape(shape)
        padded: Array = self._xp.zeros((self._T * self._B, a.shape[1]), dtype)
        padded[self._padded_rows] = a
        return padded.reshape(shape)

    def reverse(self, a: Array) -> Array:
        """Return the rows a[N, K] of every sequence in the order of time reversed, contiguous."""
        backwards: Array
        if self._mirrored is not None:
            backwards = a.take(self._mirrored, 0)
            return backwards
        backwards = self._xp.ascontiguousarray(a.reshape(self._T, self._B, a.shape[1])[::-1])
        return backwards.reshape(a.shape)

    def order(self, states: Array) -> Array:
        """Return states[..., B, K] by falling length."""
        return states if self._order is None else states.take(self._order, -2)

    def restore(self, states: Array) -> Array:
        """Return ordered states[..., B, K] in the order of the sequences."""
        return states if self._inverse is None else states.take(self._inverse, -2)
