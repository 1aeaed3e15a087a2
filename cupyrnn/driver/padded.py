"""One layer over padded arrays [T, B, ·], as the block ops have them."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arrays import (
    cast_all,
    check_bool,
    check_lengths,
    check_resets,
    check_seq_len,
    compute_dtype,
    contiguous,
)
from .._typing import NamedTuple
from ..cells.contract import Gradients, columns_of, each
from . import layer as _layer
from . import recompute
from .layer import Cut, Layer
from .packing import Packing
from .recompute import Kept

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._arrays import Array
    from ..cells.contract import Cell


class Extent(NamedTuple):
    """Which steps of [T, B, ·] are computed, and in which order."""

    steps: int
    lengths: NDArray[np.int32] | None = None
    resets: NDArray[np.bool_] | None = None
    reverse: bool = False

    def whole(self, T: int) -> bool:
        """Return whether all steps are computed, in their order."""
        marked = self.lengths is not None or self.resets is not None
        return self.steps == T and not (marked or self.reverse)

    def packing(self, xp: ModuleType, B: int) -> Packing:
        """Return the sequences without padding."""
        return Packing(xp, self.steps, B, self.lengths, self.resets, self.reverse)


class Recomputed(NamedTuple):
    """In place of what the steps save: some of their states, and the cell that makes the rest."""

    cell: Cell  # of the forward pass
    kept: Kept  # by rows


class Padded(NamedTuple):
    """What a layer reads and what it leaves; without an extent one step, [B, ·] all."""

    x: Array  # [T, B, I]
    first: Any  # the states before the first step, [B, ·]
    saved: Any  # the cell's Saved, [T, B, ·] each; for a gradient it may be a Recomputed
    extent: Extent | None = None


def of_dtype(dtype: np.dtype[Any], padded: Padded) -> Padded:
    """Return what is given in the dtype of a call, where some may have a tangent and some not."""
    if dtype.kind != "c":
        return padded
    x, first, saved, extent = padded
    (x,) = cast_all(dtype, x)
    first = first._make(cast_all(dtype, *first))
    if isinstance(saved, Recomputed):
        every, states = saved.kept
        kept = Kept(every, states._make(cast_all(dtype, *states)))
        return Padded(x, first, saved._replace(kept=kept), extent)
    return Padded(x, first, saved._make(cast_all(dtype, *saved)), extent)


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
    if seq_len_max is sequence_lengths is resets is None and reverse is False:
        return Extent(T)
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


def _for_kernels(xp: ModuleType, states: Any) -> Any:
    """Return states as the kernels need them."""
    return each(states, np.asarray if xp is np else lambda s: contiguous(xp, s))


def _layer_of(
    xp: ModuleType, padded: Padded, extent: Extent, packing: Packing, saved: Any
) -> Layer:
    first = each(_for_kernels(xp, padded.first), packing.enter)
    x = packing.pack(contiguous(xp, padded.x[: extent.steps]))
    return Layer(x, first, packing, saved)


def forward(xp: ModuleType, cell: Cell, padded: Padded) -> None:
    """Run a cell; padded.saved, new arrays in C order, is written, zeros where nothing is."""
    x, first, outputs, extent = padded
    if extent is None:
        _layer.forward_step(xp, cell, contiguous(xp, x), _for_kernels(xp, first), outputs)
        return
    packing, steps = extent.packing(xp, x.shape[1]), extent.steps
    if steps < len(x):
        for a in outputs:
            a[steps:] = 0
        outputs = type(outputs)._make([a[:steps] for a in outputs])
    if not packing.reorders:
        _layer.forward(xp, cell, _layer_of(xp, padded, extent, packing, outputs))
        return
    saved = type(outputs)._make([packing.like(a) for a in outputs])
    _layer.forward(xp, cell, _layer_of(xp, padded, extent, packing, saved))
    for a, rows in zip(outputs, saved, strict=True):
        packing.unpack(rows, a)


def keep(xp: ModuleType, states: Any, extent: Extent, every: int) -> Kept:
    """Return every k-th of the states [T, B, ·] that `forward` left, for the gradient."""
    packing, steps = extent.packing(xp, states.h.shape[1]), extent.steps
    kept = recompute.kept_rows(packing, every)

    def rows(a: Array) -> Array:
        packed = packing.pack(a[:steps])
        if every > 1:
            return packed[xp.asarray(kept)]
        # h has memory of its own, and the caller mostly keeps it. The others share theirs.
        return packed if a is states.h or packing.reorders else packed.copy()

    return Kept(every, each(states, rows))


def after_step(
    xp: ModuleType, cotangents: Any, first: Any, compute: np.dtype[Any]
) -> tuple[Any, Any]:
    """Return the gradients of the states of a single step, and new memory for those carried in."""
    if xp is not np:
        return cotangents, each(first, lambda s: xp.zeros(s.shape, compute))
    # One array less: what is carried in begins as what is given.
    carried = [
        np.zeros(s.shape, compute) if g is None else np.array(g, compute, order="C")
        for s, g in zip(first, cotangents, strict=True)
    ]
    return type(first)._make([None] * len(first)), type(first)._make(carried)


def backward(
    xp: ModuleType,
    cell: Cell,
    padded: Padded,
    cotangents: Any,
    grads: Gradients,
) -> tuple[Array, Any]:
    """
    Return the gradients of x and of the first states, which are of the computation's dtype.

    Parameters
    ----------
    padded
        What `forward` read and left, or in its place a Recomputed with what `keep` returned.
    cotangents : [T, B, ·]
        The gradients of each step's states; each may be None.
    grads
        Written, but x.
    """
    x, first, outputs, extent = padded
    dtype, compute = x.dtype, compute_dtype(x.dtype)
    if extent is None:
        cotangents, carried = after_step(xp, cotangents, first, compute)
        first, outputs, cotangents = (_for_kernels(xp, a) for a in (first, outputs, cotangents))
        grads = Gradients(xp.empty(x.shape, dtype), *grads[1:])
        layer = Layer(contiguous(xp, x), first, None, outputs)
        _layer.backward_step(xp, cell, Cut(layer, cotangents, carried, grads))
        return grads.x, carried
    packing, steps = extent.packing(xp, x.shape[1]), extent.steps
    reorders, again = packing.reorders, isinstance(outputs, Recomputed)

    def packed(a: Array) -> Array:
        a = contiguous(xp, a if steps == len(x) else a[:steps])
        return packing.pack(a) if reorders or again else a

    saved = outputs.kept if again else each(outputs, packed)
    layer = _layer_of(xp, padded, extent, packing, saved)
    carried = each(first, lambda s: xp.zeros((packing.sequences, s.shape[1]), compute))
    x_grad = xp.empty(x.shape, dtype)
    x_grad[steps:] = 0
    rows = packing.like(x_grad[:steps])
    rows = rows if reorders else packing.pack(rows)
    cut = Cut(layer, each(cotangents, packed), carried, grads._replace(x=rows))
    cuts: Iterable[Cut] = [cut]
    if again:
        n, H = recompute.largest(xp, cell, packing, outputs.kept.every, dtype), first.h.shape[1]
        memory = [xp.empty((n, k), dtype) for k in columns_of(cell.Saved, H, H)]
        cuts = recompute.backward(xp, (cell, outputs.cell), cut, memory)
    for cut in cuts:
        _layer.backward(xp, cell, cut)
    if reorders:
        packing.unpack(rows, x_grad[:steps])
        carried = each(carried, packing.enter_grad)
    return x_grad, carried
