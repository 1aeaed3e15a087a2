"""Sequences of different lengths as one array without padding.

The sequences are ordered by length, the longest first. A step has one row for each sequence that is
still running, and the rows of a step follow those of the step before. So every step is a block of
rows, and its states are the first rows of the states before it. A recurrence for sequences of one
length therefore works for all. A sequence with resets is cut into shorter ones, which run side by
side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array, NamedTuple, cached_property
from .pages import products_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StepRun(NamedTuple):
    """Consecutive steps that one call of `forward_steps` or `backward_steps` computes."""

    row: int  # the first row
    end: int  # the row after the last
    batches: list[int]  # the rows of each step
    # (t, B, -1), in which NumPy's arrays are; on a device they are [n, ·].
    shape: tuple[int, ...] | None

    def parts(self, most: int) -> Sequence[StepRun]:
        """Return the run from its end in parts: in NumPy of at most `most` steps."""
        steps, batch = len(self.batches), self.batches[0]
        if steps <= most or self.shape is None:
            return (self,)
        bounds = [(max(0, stop - most), stop) for stop in range(steps, 0, -most)]
        return [_alike(self.row + a * batch, self.batches[a:b]) for a, b in bounds]

    def of(self, arrays: Sequence[Array | None], start: int) -> list[Any]:
        """Return its rows of arrays [·, ·] that are just these, or that begin at row `start`."""
        n, shape, rows = self.end - self.row, self.shape, slice(self.row - start, self.end - start)
        if shape is None:
            return [a if a is None or len(a) == n else a[rows] for a in arrays]
        return [
            a if a is None or a.ndim == 3 else (a if len(a) == n else a[rows]).reshape(shape)
            for a in arrays
        ]

    def running(self, states: Any) -> Any:
        """Return the states of the sequences that are not empty."""
        n = self.batches[0]
        if n == len(states.h):
            return states
        return states._make([s if s is None else s[:n] for s in states])


def _alike(row: int, batches: list[int]) -> StepRun:
    """Return a run of steps that all have as many rows."""
    t, B = len(batches), batches[0]
    return StepRun(row, row + t * B, batches, (t, B, -1))


class RowBlock(NamedTuple):
    """Consecutive runs, whose rows share the products over many steps."""

    row: int
    end: int
    runs: list[StepRun]

    def of(self, arrays: Sequence[Array | None], rows: int) -> Sequence[Array | None]:
        """Return its rows of arrays that have all rows, or those of the largest block."""
        n, here = self.end - self.row, slice(self.row, self.end)
        if n == rows:
            return arrays
        return [
            a if a is None or len(a) == n else a[here] if len(a) == rows else a[:n] for a in arrays
        ]


def count_rows(T: int, B: int, lengths: NDArray[Any] | None) -> int:
    """Return N, the number of steps of all sequences."""
    return T * B if lengths is None else int(lengths.sum(dtype=np.int64))


class _Segments(NamedTuple):
    """The segments that resets cut the sequences into, the longest first."""

    sequence: NDArray[np.intp]  # the sequence of each segment
    start: NDArray[np.intp]
    length: NDArray[np.intp]
    first: NDArray[np.intp]  # the first and the last segment of each sequence
    last: NDArray[np.intp]


def _cut(T: int, B: int, lengths: NDArray[Any], resets: NDArray[np.bool_] | None) -> _Segments:
    """Cut sequences of these lengths before their marked steps."""
    if resets is None:
        whole = lengths.astype(np.intp)
        order, place = np.argsort(-whole, kind="stable"), np.empty(B, np.intp)
        place[order] = np.arange(B)
        return _Segments(order, np.zeros(B, np.intp), whole[order], place, place)
    begins = np.zeros((B, max(T, 1)), np.bool_)
    begins[:, 0] = True
    begins[:, :T] |= resets.T & (np.arange(T) < lengths[:, None])
    sequence, start = np.nonzero(begins)
    end = lengths[sequence].astype(np.intp)
    same = sequence[1:] == sequence[:-1]
    end[:-1][same] = start[1:][same]
    length = end - start
    order = np.argsort(-length, kind="stable")
    place = np.argsort(order)
    first = np.searchsorted(sequence, np.arange(B), side="left")
    last = np.searchsorted(sequence, np.arange(B), side="right") - 1
    return _Segments(sequence[order], start[order], length[order], place[first], place[last])


class Rows:
    """
    The rows of consecutive steps: in each step one for each sequence that is still running.

    Parameters
    ----------
    xp
        The array module.
    steps, sequences
        The steps of the longest, and how many run side by side.
    lengths
        The length of each, not rising; None if all are `steps`.
    """

    def __init__(
        self, xp: ModuleType, steps: int, sequences: int, lengths: NDArray[Any] | None = None
    ) -> None:
        self._xp, self._lengths = xp, lengths
        self._blocks: tuple[int, list[RowBlock]] = 0, []  # rows of a block, and the blocks
        self._starts_of = np.zeros(0, np.int64)
        self.steps, self.sequences, self.rows = steps, sequences, steps * sequences
        if lengths is not None:
            # Step t has a row for each of the sequences longer than t.
            batches = np.searchsorted(-lengths, -np.arange(steps), side="left")
            self._batches: list[int] = batches.tolist()
            self._starts = np.concatenate([[0], np.cumsum(batches)])
            self.rows = int(self._starts[-1])

    def part(self, start: int, end: int) -> Rows:
        """Return the rows of the steps start..end-1, counted from the first of them."""
        lengths, steps = self._lengths, end - start
        if lengths is None:
            return Rows(self._xp, steps, self.sequences)
        lengths = np.minimum(lengths[: self._batches[start]] - start, steps)
        return Rows(self._xp, steps, len(lengths), None if lengths[-1] == steps else lengths)

    def padded(self, rows: Array) -> Array:
        """Return rows [N, K] as [T, B, K], if all sequences have all steps."""
        assert self.rows == self.steps * self.sequences
        return rows.reshape(self.steps, self.sequences, rows.shape[1])

    @property
    def alike(self) -> bool:
        """Whether all sequences have the same length."""
        return self._lengths is None

    @property
    def single(self) -> bool:
        """Whether there is just one step of all sequences."""
        return self.steps == 1 and self._lengths is None

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each step, and the end of the last."""
        if self._lengths is None:
            return np.arange(self.steps + 1, dtype=np.int64) * self.sequences
        return self._starts.astype(np.int64)

    def starts_of(self, T: int) -> NDArray[np.int64]:
        """Return the first row of each of T steps, and the end; later steps have no rows."""
        starts = self._starts_of
        if len(starts) != T + 1:
            starts = np.full(T + 1, self.rows, np.int64)
            starts[: self.steps + 1] = self.starts
            self._starts_of = starts
        return starts

    @cached_property
    def _places(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The step and the sequence of each row."""
        # A mask of steps by segments would be huge for one long document among many short ones.
        t = np.repeat(np.arange(self.steps), self._batches)
        return t, np.arange(self.rows) - self._starts[t]

    @cached_property
    def _before(self) -> Array:
        """The row before each row, itself at the first step."""
        t, s = self._places
        return self._index(self._starts[np.maximum(t - 1, 0)] + s)

    @cached_property
    def _last(self) -> Array:
        """The last row of each sequence but the empty ones."""
        assert self._lengths is not None
        running = self._batches[0] if self._batches else 0
        return self._index(self._starts[self._lengths[:running] - 1] + np.arange(running))

    def _index(self, places: NDArray[np.intp]) -> Array:
        """Return places among rows as an array of the module."""
        return self._xp.asarray(places)

    def pieces(self, most: int, every: int = 1) -> Iterator[tuple[slice, slice]]:
        """
        Yield the steps and the rows of pieces of about `most` rows; the last has fewer.

        The number of steps of a piece is a multiple of `every`, except in the last one.
        """
        if 0 < self.rows <= most:
            yield slice(0, self.steps), slice(0, self.rows)
            return
        starts, t0 = self.starts, 0
        while t0 < self.steps:
            enough = int(np.searchsorted(starts, starts[t0] + most))
            t1 = min(self.steps, t0 + max(1, -(-(enough - t0) // every)) * every)
            yield slice(t0, t1), slice(int(starts[t0]), int(starts[t1]))
            t0 = t1

    def blocks(self) -> list[RowBlock]:
        """Return all blocks in order."""
        most, (of, found) = products_of(self._xp).ROWS, self._blocks
        if of != most:
            pieces = self.pieces(most) if self.rows else ()
            found = [RowBlock(r.start, r.stop, self._runs(steps, r)) for steps, r in pieces]
            self._blocks = most, found
        return found

    def _runs(self, steps: slice, rows: slice) -> list[StepRun]:
        """Return the runs of some steps, of equally many rows each in NumPy."""
        if self._lengths is None:
            batches = [self.sequences] * (steps.stop - steps.start)
        else:
            batches = self._batches[steps]
        if self._xp is np:
            return list(_equal(rows.start, batches))
        return [StepRun(rows.start, rows.stop, batches, None)]

    def before(self, row: int, end: int, first: Array, after: Array, dtype: np.dtype[Any]) -> Array:
        """
        Return the states before the rows row..end-1 of whole steps, as a view if possible.

        Parameters
        ----------
        first : [S, K]
            Before the first step.
        after : [N, K] or [steps, S, K]
            After each row.
        dtype
            Of the result.
        """
        B, xp = self.sequences, self._xp
        if self._lengths is None and row > 0:
            return after[row - B : end - B].astype(dtype, copy=False)
        if self._lengths is None and end == B:
            return first.astype(dtype, copy=False)
        out: Array = xp.empty((end - row, after.shape[-1]), dtype)
        if self._lengths is None:
            out[:B], out[B:] = first, after.reshape(self.rows, after.shape[-1])[: end - B]
            return out
        out[...] = after.take(self._before[row:end], 0)
        if row == 0:
            out[: len(self._last)] = first[: len(self._last)]
        return out

    def last(self, first: Array, after: Array) -> Array:
        """Return the states after the last row of each sequence; arguments as in `before`."""
        if self._lengths is None:
            return after[self.rows - self.sequences :] if self.rows else first
        last = first.astype(after.dtype)
        last[: len(self._last)] = after.take(self._last, 0)
        return last


class Packing(Rows):
    """
    Converts padded arrays [T, B, ·] to packed rows [N, ·] and back.

    Parameters
    ----------
    xp
        The array module.
    T, B
        The sizes of the padded arrays.
    lengths
        The length of each sequence; None if all are T.
    resets : [T, B], optional
        The steps before which a sequence is cut: no state passes from the step before to a marked
        one, in either direction.
    """

    def __init__(
        self,
        xp: ModuleType,
        T: int,
        B: int,
        lengths: NDArray[Any] | None = None,
        resets: NDArray[np.bool_] | None = None,
    ) -> None:
        self._T, self._B = T, B
        self._segments: _Segments | None = None
        self._of_states: dict[tuple[bool, bool, bool], tuple[Array, Any]] = {}
        self._orders: dict[int, Array] = {}
        self._of_time: dict[int, Array] = {}
        self._indices: dict[tuple[Any, ...], Array] = {}
        if resets is not None and not resets.any():
            resets = None
        if (lengths is None or count_rows(T, B, lengths) == T * B) and resets is None:
            super().__init__(xp, T, B)
            return
        full = np.full(B, T) if lengths is None else lengths
        segments = self._segments = _cut(T, B, full, resets)
        longest = int(segments.length.max(initial=0))
        super().__init__(xp, longest, len(segments.length), segments.length)
        # States that enter at a marked step are lost.
        lost = np.zeros(B, np.bool_) if resets is None or not T else resets[0] & (full > 0)
        self._lost = lost if lost.any() else None

    @cached_property
    def _cuts(self) -> _Segments:
        assert self._segments is not None
        return self._segments

    # The indices are computed when they are first used: most calls need only some of them.

    @cached_property
    def _padded(self) -> Array:
        """The index of each row among the rows of the padded array."""
        t, s = self._places
        start = self._cuts.start * self._B + self._cuts.sequence
        return self._index(t * self._B + start[s])

    @cached_property
    def _mirrored(self) -> Array:
        """The index of each row if time runs backwards."""
        t, s = self._places
        return self._index(self._starts[self._cuts.length[s] - 1 - t] + s)

    def _moved(self, states: Array, reverse: bool, *, enter: bool, back: bool) -> Array:
        """
        Return states [..., S, K] of the segments, of those [..., B, K] of sequences, or `back`.

        Parameters
        ----------
        reverse
            Whether time is.
        enter
            Whether the states are those before the first step, not those after the last.
        """
        if self._segments is None:
            return states
        key = reverse, enter, back
        if key not in self._of_states:
            self._of_states[key] = self._places_of_states(*key)
        index, missing = self._of_states[key]
        taken: Array = states.take(index, -2)
        if missing is not None:
            taken[..., missing, :] = 0
        return taken

    def _places_of_states(self, reverse: bool, enter: bool, back: bool) -> tuple[Array, Any]:
        """Return where the states that `_moved` returns are, and which of them are zero."""
        cuts = self._cuts
        if cuts.first is cuts.last and self._lost is None:  # a segment is a sequence
            return self._index(cuts.first if back else cuts.sequence), None
        index = self._cuts.last if enter == reverse else self._cuts.first
        if enter and not reverse and self._lost is not None:
            index = np.where(self._lost, -1, index)
        if not back:
            of_sequence, index = index, np.full(self.sequences, -1)
            index[of_sequence[of_sequence >= 0]] = np.flatnonzero(of_sequence >= 0)
        missing = np.flatnonzero(index < 0)
        zero = self._index(missing) if missing.size else None
        return self._index(np.maximum(index, 0)), zero

    def padded(self, rows: Array) -> Array:
        """Return rows [N, K] as [T, B, K], each with its sequence, zeros where there is none."""
        if self._segments is None:
            return super().padded(rows)
        out: Array = self._xp.zeros((self._T * self._B, rows.shape[1]), rows.dtype)
        out[self._padded] = rows
        return out.reshape(self._T, self._B, rows.shape[1])

    def move(
        self, a: Array, order: int | None, out: Array, to: int | None, *, adds: bool = False
    ) -> None:
        """
        Write rows in another order, or add them.

        Parameters
        ----------
        order, to
            0 or 1: the order of the steps of that direction; None: padded rows, in time.
        """
        n, in_numpy = self.rows, self._xp is np
        if to is None and adds:
            out[self._order(order or 0)] += a[:n]
            return
        if to is None and not in_numpy and order is not None:
            out[...] = 0
            out[self._order(order)] = a[:n]
            return
        out = out if to is None else out[:n]
        if order == to:
            values = a[:n]
        elif to is None:
            if n < len(a):  # a row of zeros, for the padding
                a[n] = 0
            index = self._rows_of_time(order or 0)
        else:
            index = self._order(to) if order is None else self._reversed
        takes = in_numpy and order != to and not adds
        if takes and out.flags.c_contiguous and out.dtype == a.dtype:
            a.take(index, 0, out, "clip")
            return
        if order != to:
            values = a.take(index, 0)
        out[...] = out + values if adds else values

    @cached_property
    def _reversed(self) -> Array:
        """The index of each row among rows with time reversed in every segment."""
        if self._segments is not None:
            return self._mirrored
        by_step = np.arange(self.rows).reshape(self._T, self._B)
        return self._index(by_step[::-1].reshape(-1))

    def _order(self, d: int) -> Array:
        """Return the index of each row of a direction among the rows of the padded array."""
        if self._segments is not None and not d:
            return self._padded
        if d not in self._orders:
            found = self._reversed if d else self._index(np.arange(self.rows))
            self._orders[d] = found if self._segments is None else self._padded[found]
        return self._orders[d]

    def _rows_of_time(self, d: int) -> Array:
        """Return the index of each row of the padded array among those of a direction, or N."""
        if d not in self._of_time:
            index = np.full(self._T * self._B, self.rows, np.intp)
            index[self._order(d)] = np.arange(self.rows)
            self._of_time[d] = self._index(index)
        return self._of_time[d]

    def index(self, *of: Any) -> Array:
        """Return how many rows `move` or `_moved` writes, and which it copies; -1 for zeros."""
        if of not in self._indices:
            found = self._index_of_rows(*of) if len(of) == 2 else self._index_of_states(*of)
            self._indices[of] = np.concatenate([[len(found)], found])
        return self._indices[of]

    def _index_of_rows(self, order: int | None, to: int | None) -> Array:
        if order == to:
            return np.arange(self._T * self._B if to is None else self.rows)
        if to is None:
            index = np.full(self._T * self._B, -1)
            index[self._order(order or 0)] = np.arange(self.rows)
            return index
        return self._order(to) if order is None else self._reversed

    def _index_of_states(self, reverse: bool, enter: bool, back: bool) -> Array:
        if self._segments is None:
            return np.arange(self._B)
        index, missing = self._places_of_states(reverse, enter, back)
        if missing is not None:
            index[missing] = -1  # it is new
        return index

    def enter(self, states: Array, reverse: bool = False) -> Array:
        """Return the first states [..., S, K] of segments, from those [..., B, K] of sequences."""
        return self._moved(states, reverse, enter=True, back=False)

    def enter_grad(self, grads: Array, reverse: bool = False) -> Array:
        """Return the gradient of the argument of `enter`, from the gradient of its result."""
        return self._moved(grads, reverse, enter=True, back=True)

    def leave(self, states: Array, reverse: bool = False) -> Array:
        """Return the last states [..., B, K] of sequences, from those [..., S, K] of segments."""
        return self._moved(states, reverse, enter=False, back=True)

    def leave_grad(self, grads: Array, reverse: bool = False) -> Array:
        """Return the gradient of the argument of `leave`, from the gradient of its result."""
        return self._moved(grads, reverse, enter=False, back=False)


def _equal(row: int, batches: list[int]) -> Iterator[StepRun]:
    """Yield runs of steps with the same number of rows."""
    start = 0
    for t in range(1, len(batches) + 1):
        if t == len(batches) or batches[t] != batches[start]:
            run = _alike(row, batches[start:t])
            yield run
            row, start = run.end, t
