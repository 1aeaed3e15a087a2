"""One layer over padded arrays [T, B, ·], as the block ops have them."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _layer
from ._arrays import (
    check_bool,
    check_lengths,
    check_resets,
    check_seq_len,
    compute_dtype,
    contiguous,
)
from ._layer import Gradients, Layer
from ._packing import Packing
from .cells.contract import States

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._arrays import Array
    from .cells.contract import Cell


class Extent(NamedTuple):
    """Which steps of [T, B, ·] are computed, and in which order."""

    steps: int
    lengths: NDArray[np.int32] | None = None
    resets: NDArray[np.bool_] | None = None
    reverse: bool = False


class Padded(NamedTuple):
    """What a layer reads and what it leaves."""

    x: Array  # [T, B, I]
    first: States  # [B, ·]
    saved: Any  # the cell's Saved, [T, B, ·] each
    extent: Extent


def check_extent(
    op: str,
    x: Array,
    seq_len_max: object,
    sequence_lengths: object,
    reverse: object,
    resets: object,
) -> Extent:
    """Return the extent of a call with x[T, B, I]."""
    T, B, _ = x.shape
    if seq_len_max is not None and sequence_lengths is not None:
        raise ValueError(f"{op}: seq_len_max and sequence_lengths are given, expected one of them")
    steps = check_seq_len(op, seq_len_max, T)
    marks = check_resets(op, resets, T, B)
    return Extent(
        steps,
        check_lengths(op, sequence_lengths, T, B),
        None if marks is None else marks[:steps],
        check_bool(op, "reverse", reverse),
    )


def _packing(xp: ModuleType, padded: Padded) -> Packing:
    steps, lengths, resets, _ = padded.extent
    return Packing(xp, steps, padded.x.shape[1], lengths, resets)


def _layer_of(xp: ModuleType, padded: Padded, packing: Packing, saved: Any) -> Layer:
    steps, reverse = padded.extent.steps, padded.extent.reverse
    first = [None if s is None else contiguous(xp, packing.enter(s, reverse)) for s in padded.first]
    x = packing.pack(contiguous(xp, padded.x[:steps]), reverse)
    return Layer(x, States(*first), packing, saved)


def forward(xp: ModuleType, cell: Cell, padded: Padded) -> None:
    """Run a cell; padded.saved, new arrays in C order, is written, zeros where nothing is."""
    packing = _packing(xp, padded)
    steps, reverse = padded.extent.steps, padded.extent.reverse
    outputs = padded.saved
    if steps < len(padded.x):
        for a in outputs:
            a[steps:] = 0
        outputs = type(outputs)._make([a[:steps] for a in outputs])
    saved = type(outputs)._make([packing.like(a, reverse) for a in outputs])
    _layer.forward(xp, cell, _layer_of(xp, padded, packing, saved))
    if packing.moves(reverse):
        for a, rows in zip(outputs, saved, strict=True):
            packing.unpack(rows, a, reverse)


def backward(
    xp: ModuleType,
    cell: Cell,
    padded: Padded,
    given: States,
    weights: Sequence[Array],
    sums: Sequence[Array],
    vectors: Array | None = None,
) -> tuple[Array, States]:
    """
    Return the gradients of x and of the first states, which are of the computation's dtype.

    Parameters
    ----------
    padded
        What `forward` read and left.
    given : [T, B, ·]
        The gradients of each step's states; each may be None.
    weights, sums, vectors
        As in `Gradients`.
    """
    packing = _packing(xp, padded)
    steps, reverse = padded.extent.steps, padded.extent.reverse
    x, dtype = padded.x, padded.x.dtype

    def packed(a: Array | None) -> Array | None:
        return None if a is None else packing.pack(contiguous(xp, a[:steps]), reverse)

    saved = type(padded.saved)._make([packed(a) for a in padded.saved])
    layer = _layer_of(xp, padded, packing, saved)
    S, compute = packing.sequences, compute_dtype(dtype)
    carried = States(
        *[None if s is None else xp.zeros((S, s.shape[1]), compute) for s in padded.first]
    )
    x_grad = xp.empty(x.shape, dtype)
    x_grad[steps:] = 0
    rows = packing.like(x_grad[:steps], reverse)
    grads = Gradients(rows, weights, sums, vectors)
    _layer.backward(xp, cell, layer, States(*[packed(a) for a in given]), carried, grads)
    if packing.moves(reverse):
        packing.unpack(rows, x_grad[:steps], reverse)
    first_grad = [None if s is None else packing.enter_grad(s, reverse) for s in carried]
    return x_grad, States(*first_grad)
