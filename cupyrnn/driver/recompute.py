"""
Recomputation: keep some states only, and compute the rest again for the gradient.

A layer is computed in pieces of whole steps, each as a layer of its own. Forward, a piece keeps the
requested states. Backward, from the last piece to the first, the arrays that its steps saved are
computed again, as in the forward pass, from the state before the piece. If the states of every step
are kept and no compiled layer is faster, all steps are recomputed at once. Saved arrays are in
memory for one piece at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array, NamedTuple
from ..cells.contract import Cell, each
from ..checks.arrays import compute_dtype
from ..checks.extent import Extent
from . import layer as _layer
from .layer import Layer, LayerGradient, implementation
from .packing import Packing, Rows
from .pages import products_of

# The number of blocks of rows in a piece that is one compiled call, because each call packs.
_BLOCKS = 4
# The elements [n, H] that are recomputed at once: their results fit a core's cache.
_CHUNK = 65536


class Checkpoints(NamedTuple):
    """The states that a layer keeps: of every step, or before every k-th but the first."""

    every: int  # k
    states: Any  # the cell's States, [n, ·] each
    cell: Any = None  # the forward pass's cell; the gradient's may have other attributes
    columns: Sequence[int] = ()  # the width of each array of the cell's Saved
    h: Array | None = None  # of every step; the kept h if all states are kept


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


def largest(xp: ModuleType, cell: Cell, rows: Rows, every: int, dtype: np.dtype[Any]) -> int:
    """Return the rows of the largest piece, for which `forward` and `backward` need memory."""
    pieces = _pieces(xp, cell, rows, every, dtype)
    return max((p.rows.stop - p.rows.start for p in pieces), default=0)


def compiled_pieces(rows: Rows, every: int) -> list[slice]:
    """Return the steps of pieces of a layer that are one compiled call each."""
    return [steps for steps, _ in rows.pieces(products_of(np).ROWS * _BLOCKS, every)]


def _pieces(
    xp: ModuleType, cell: Cell, rows: Rows, every: int, dtype: np.dtype[Any]
) -> Iterator[_Piece]:
    """Yield the pieces in order. All but the last have a multiple of `every` as their steps."""
    most, batches, kept = products_of(xp).ROWS, rows.starts[1:] - rows.starts[:-1], 0
    if implementation(xp, cell, min(rows.rows, most), dtype, "forward", whole=True).kind == "layer":
        most *= _BLOCKS
    for steps, places in rows.pieces(most, every):
        n = places.stop - places.start
        if every > 1:
            n = int(batches[steps.start + every : steps.stop + 1 : every].sum())
        yield _Piece(steps, places, slice(kept, kept + n))
        kept += n


def _taken(arrays: Any, rows: slice) -> Any:
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


def keep(xp: ModuleType, states: Any, extent: Extent, every: int) -> Checkpoints:
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

    return Checkpoints(every, each(states, rows))


def _memory(
    xp: ModuleType, cell: Cell, layer: Layer, kept: Checkpoints, columns: Sequence[int]
) -> list[Array]:
    """Return memory for saved arrays with these columns of the largest piece."""
    rows, dtype = layer.packing, layer.x.dtype
    most = largest(xp, cell, rows, kept.every, dtype)
    return [xp.empty((most, width), dtype) for width in columns]


def forward(xp: ModuleType, cell: Cell, layer: Layer, h: Array) -> Any:
    """
    Run a cell over all sequences.

    Parameters
    ----------
    layer
        Its `saved` is a Checkpoints, whose states are written.
    h : [N, P]
        Written: h of every step. If the states of every step are kept, it is theirs.

    Returns
    -------
    NamedTuple
        The states after the last step of each sequence.
    """
    x, first, rows, (every, kept, _, columns, _) = layer
    memory = _memory(xp, cell, layer, layer.saved, columns[:-1])
    last = each(first, lambda s: s.astype(compute_dtype(x.dtype), order="C"))
    for piece in _pieces(xp, cell, rows, every, x.dtype):
        part = rows.part(piece.steps.start, piece.steps.stop)
        saved = cell.Saved(*(a[: part.rows] for a in memory), h[piece.rows])
        running = _taken(last, slice(part.sequences))
        after = _layer.forward(xp, cell, Layer(x[piece.rows], running, part, saved))
        for to, state in zip(running, after, strict=True):
            if to is not None:
                to[...] = state
        places = kept_rows(rows, piece.steps, every)
        for to, state in zip(kept, cell.states(saved), strict=True):
            if to is not None and to is not h and piece.kept.stop > piece.kept.start:
                to[piece.kept] = state[places if every == 1 else xp.asarray(places)]
    return last


def backward(xp: ModuleType, cell: Cell, cut: LayerGradient) -> Iterator[LayerGradient]:
    """
    Yield the pieces of a layer from last to first, each as an argument of `layer.backward`.

    Parameters
    ----------
    cut
        The gradient of the layer. `forward` has run it, or `layer.forward`, which saves everything.
    """
    layer, cotangents, carried, grads = cut
    x, first, rows, kept = layer
    computes = isinstance(kept, Checkpoints)
    if not computes:
        kept = Checkpoints(1, cell.states(layer.saved))
    memory = _memory(xp, cell, layer, kept, kept.columns)
    pieces = list(_pieces(xp, cell, rows, kept.every, x.dtype))
    at_once = computes and grads.weight_gradients in ("examples", "norms")
    if at_once and pieces:
        memory = [xp.empty((len(x), a.shape[1]), a.dtype) for a in memory]
    saved = cell.Saved(*memory) if computes else layer.saved
    for piece in reversed(pieces):
        part = rows.part(piece.steps.start, piece.steps.stop)
        here = piece.rows if at_once or not computes else slice(0, part.rows)
        entering = _entering(rows, piece, kept, first, part.sequences)
        of_piece = Layer(x[piece.rows], entering, part, _taken(saved, here))
        if computes:
            _compute_again(xp, of_piece, kept, piece)
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


def _compute_again(xp: ModuleType, layer: Layer, kept: Checkpoints, piece: _Piece) -> None:
    """Compute the saved arrays of a piece again."""
    part, cell = layer.packing, kept.cell
    kind = implementation(xp, cell, part.rows, layer.x.dtype, "forward", whole=True).kind
    if kept.every == 1 and kind != "layer":
        _all_at_once(xp, cell, layer, _taken(kept.states, piece.rows))
    else:
        _layer.forward(xp, cell, layer)


def _entering(rows: Rows, piece: _Piece, saved: Checkpoints, first: Any, n: int) -> Any:
    """Return the states before the first step of a piece, of its n sequences."""
    t0, states, start = piece.steps.start, saved.states, piece.kept.start - n
    if t0 == 0:
        states, start = first, 0
    elif saved.every == 1:
        start = int(rows.starts[t0 - 1])
    return _taken(states, slice(start, start + n))


def _all_at_once(xp: ModuleType, cell: Cell, layer: Layer, after: Any) -> None:
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
        _layer.forward(xp, cell, step, whole=False)
