"""
Recomputation: keep some states only, and compute the rest again for the gradient.

A layer is computed in pieces of whole steps, each as a layer of its own. Forward, a piece keeps the
requested states. Backward, from the last piece to the first, the arrays that its steps saved are
computed again, as in the forward pass, from the state before the piece. If the states of every step
are kept and no compiled layer is faster, all steps are recomputed at once. Saved arrays are in
memory for one piece at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array, NamedTuple
from ..cells.contract import OfCell, each
from ..checks.arrays import compute_dtype
from ..checks.extent import Extent
from .layer import Layer, LayerGradient
from .packing import Packing, Rows
from .pages import products_of

# The number of blocks of rows in a piece that is one compiled call, because each call packs.
_BLOCKS = 4
# The elements [n, H] that are recomputed at once: their results fit a core's cache.
_CHUNK = 65536


class Checkpoints(NamedTuple):
    """The states that a layer keeps: of every step, or before every k-th but the first."""

    every: int  # k
    states: OfCell  # the cell's States, [n, ·] each
    columns: Sequence[int]  # the width of each array of the cell's Saved
    h: Array  # of every step; the kept h if all states are kept


class Pieced(NamedTuple):
    """What computes the pieces of a layer."""

    Saved: Any  # the cell's
    states: Callable[[OfCell], OfCell]  # returns the saved arrays that are states
    # Computes a Layer and returns the states after its last step, perhaps in the memory of its
    # first ones.
    forward: Callable[[Layer], OfCell]
    is_loop: bool  # whether all steps of a piece are one compiled call


class _Piece(NamedTuple):
    """Consecutive steps: their rows, and the rows of the states that they keep."""

    steps: slice
    rows: slice
    kept: slice


def count_kept(rows: Rows, every: int) -> int:
    """Return how many rows of states are kept."""
    if every == 1:
        return rows.rows
    if rows.alike:
        return rows.sequences * ((max(rows.steps, 1) - 1) // every)
    starts = rows.starts
    return int((starts[1:] - starts[:-1])[every::every].sum())


def is_one_piece(rows: int) -> bool:
    """Return whether so many rows are one piece of compiled loops."""
    return bool(rows <= products_of(np).ROWS * _BLOCKS)


def _pieces(xp: ModuleType, rows: Rows, every: int, is_loop: bool) -> Iterator[_Piece]:
    """Yield the pieces in order. All but the last have a multiple of `every` as their steps."""
    batches, kept = rows.starts[1:] - rows.starts[:-1], 0
    most = products_of(xp).ROWS * (_BLOCKS if is_loop else 1)
    for steps, places in rows.pieces(most, every):
        n = places.stop - places.start
        if every > 1:
            n = int(batches[steps.start + every : steps.stop + 1 : every].sum())
        yield _Piece(steps, places, slice(kept, kept + n))
        kept += n


def _taken(arrays: OfCell, rows: slice) -> OfCell:
    """Return some rows of states, or of what steps save."""
    return each(arrays, lambda a: a[rows])


def kept_rows(rows: Rows, steps: slice, every: int) -> Any:
    """Return the indices of the rows of some steps whose states are kept."""
    if every == 1:
        return slice(None)
    starts, t0, end = rows.starts, steps.start, steps.stop + 1
    next_steps = range(t0 + every, min(end, rows.steps), every)
    parts = [np.arange(starts[t + 1] - starts[t]) + starts[t - 1] - starts[t0] for t in next_steps]
    return np.concatenate([np.zeros(0, np.intp), *parts])


@functools.lru_cache(maxsize=16)
def kept_of_all(rows: Rows, every: int) -> Any:
    """Return the indices of all rows whose states are kept, of calls of one piece."""
    return kept_rows(rows, slice(0, rows.steps), every)


def keep(xp: ModuleType, states: OfCell, extent: Extent, every: int) -> Checkpoints:
    """Return every k-th of the states [T, B, ·] that `forward` wrote, for the gradient."""
    T, B, _ = states.h.shape
    packing, reverse = Packing(xp, T, B, extent.lengths, extent.resets), extent.reverse
    kept = kept_rows(packing, slice(0, packing.steps), every)

    def rows(a: Array) -> Array:
        packed = padded = a.reshape(T * B, a.shape[2])
        if reverse or not packing.alike:
            packed = xp.empty((packing.rows, a.shape[2]), a.dtype)
            packing.move(padded, None, packed, int(reverse))
        if every > 1:
            return packed[xp.asarray(kept)]
        # h has its own memory, and most callers keep it. The others share theirs.
        return packed.copy() if packed is padded and a is not states.h else packed

    kept_states = each(states, rows)
    return Checkpoints(every, kept_states, (), kept_states.h)


def _memory(
    xp: ModuleType, pieces: Sequence[_Piece], columns: Sequence[int], dtype: np.dtype[Any]
) -> list[Array]:
    """Return memory for saved arrays with these columns of the largest piece."""
    most = max((p.rows.stop - p.rows.start for p in pieces), default=0)
    return [xp.empty((most, width), dtype) for width in columns]


def forward(xp: ModuleType, computes: Pieced, layer: Layer) -> OfCell:
    """
    Run a cell over all sequences.

    Parameters
    ----------
    layer
        Its `saved` is a Checkpoints, whose states and h are written.

    Returns
    -------
    NamedTuple
        The states after the last step of each sequence.
    """
    x, first, rows, (every, kept, columns, h) = layer
    pieces = [*_pieces(xp, rows, every, computes.is_loop)]
    memory = _memory(xp, pieces, columns[:-1], x.dtype)
    last = each(first, lambda s: s.astype(compute_dtype(x.dtype), order="C"))
    for piece in pieces:
        part = rows.part(piece.steps.start, piece.steps.stop)
        saved = computes.Saved(*(a[: part.rows] for a in memory), h[piece.rows])
        running = _taken(last, slice(part.sequences))
        after = computes.forward(Layer(x[piece.rows], running, part, saved))
        for to, state in zip(running, after, strict=True):
            if to is not state:
                to[...] = state
        places = kept_rows(rows, piece.steps, every)
        for to, state in zip(kept, computes.states(saved), strict=True):
            if to is not None and to is not h and piece.kept.stop > piece.kept.start:
                to[piece.kept] = state[places if every == 1 else xp.asarray(places)]
    return last


def backward(xp: ModuleType, computes: Pieced, cut: LayerGradient) -> Iterator[LayerGradient]:
    """
    Yield the pieces of a layer from last to first, each as an argument of `layer.backward`.

    Parameters
    ----------
    computes
        What computes the forward pass again.
    cut
        The gradient of the layer, which `forward` has run.
    """
    layer, cotangents, carried, grads = cut
    x, first, rows, kept = layer
    pieces = [*_pieces(xp, rows, kept.every, computes.is_loop)]
    at_once = grads.weight_gradients in ("examples", "norms")
    if at_once and pieces:
        memory = [xp.empty((len(x), width), x.dtype) for width in kept.columns]
    else:
        memory = _memory(xp, pieces, kept.columns, x.dtype)
    saved = computes.Saved(*memory)
    for piece in reversed(pieces):
        part = rows.part(piece.steps.start, piece.steps.stop)
        entering = _entering(rows, piece, kept, first, part.sequences)
        here = piece.rows if at_once else slice(0, part.rows)
        of_piece = Layer(x[piece.rows], entering, part, _taken(saved, here))
        if kept.every == 1 and not computes.is_loop:
            _all_at_once(xp, computes, of_piece, _taken(kept.states, piece.rows))
        else:
            computes.forward(of_piece)
        if at_once:
            continue
        into = None if grads.x is None else grads.x[piece.rows]
        yield LayerGradient(
            of_piece,
            _taken(cotangents, piece.rows),
            _taken(carried, slice(part.sequences)),
            grads._replace(x=into, adds=grads.adds or piece is not pieces[-1]),
        )
    if at_once or not pieces:
        yield LayerGradient(layer._replace(saved=saved), cotangents, carried, grads)


def _entering(rows: Rows, piece: _Piece, saved: Checkpoints, first: OfCell, n: int) -> OfCell:
    """Return the states before the first step of a piece, of its n sequences."""
    t0, states, start = piece.steps.start, saved.states, piece.kept.start - n
    if t0 == 0:
        states, start = first, 0
    elif saved.every == 1:
        start = int(rows.starts[t0 - 1])
    return _taken(states, slice(start, start + n))


def _all_at_once(xp: ModuleType, computes: Pieced, layer: Layer, after: OfCell) -> None:
    """Compute the saved arrays from the states after each step, all rows as if in one step."""
    x, first, rows, saved = layer
    compute = compute_dtype(x.dtype)
    states = zip(first, after, strict=True)
    before = type(first)._make(
        [s if s is None else rows.before(0, rows.rows, s, a, compute) for s, a in states]
    )
    most = max(1, _CHUNK // max(1, saved[0].shape[1])) if xp is np else max(1, len(x))
    for start in range(0, len(x), most):
        some = slice(start, start + most)
        step_x = x[some]
        rows = Rows(xp, 1, len(step_x))
        step = Layer(step_x, _taken(before, some), rows, _taken(saved, some))
        computes.forward(step)
