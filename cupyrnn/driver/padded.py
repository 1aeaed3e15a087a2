"""One layer over padded arrays [T, B, ·], as the block ops have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array, NamedTuple
from ..cells.contract import Cell, Gradients, columns_of, each
from ..checks.arrays import cast_all, compute_dtype, contiguous
from ..checks.attributes import check_bool, check_seq_len
from ..checks.calls import check_lengths, check_resets
from . import layer as _layer
from . import recompute
from .layer import Cut, Layer
from .packing import Packing
from .recompute import Kept

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Extent(NamedTuple):
    """The steps of [T, B, ·] to compute, and their order."""

    steps: int
    lengths: NDArray[np.int32] | None = None
    resets: NDArray[np.bool_] | None = None
    reverse: bool = False

    def packing(self, xp: ModuleType, B: int) -> Packing:
        """Return the sequences without padding."""
        return Packing(xp, self.steps, B, self.lengths, self.resets, self.reverse)


class Recomputed(NamedTuple):
    """Stands for `saved` when recomputing: the kept states, and the forward pass's cell."""

    cell: Cell  # of the forward pass
    kept: Kept  # by rows


class Padded(NamedTuple):
    """The inputs and outputs of a layer; without an extent, of one step: [B, ·]."""

    x: Array  # [T, B, I]
    first: Any  # the states before the first step, [B, ·]
    saved: Any  # the cell's Saved, [T, B, ·] each; for a gradient it may be a Recomputed
    extent: Extent | None = None


def ready(xp: ModuleType, dtype: np.dtype[Any], given: Any, cotangents: Any) -> tuple[Any, Any]:
    """
    Return the arguments of a gradient in the dtype of the call, those of a step in C order.

    Only some may have tangents. `given` is a Padded, or the Layer of a step.
    """
    (x, first, saved), again = (given.x, given.first, given.saved), None
    if isinstance(saved, Recomputed):
        again, saved = saved, saved.kept.states

    def change(a: Array) -> Array:
        (a,) = cast_all(dtype, a)
        return contiguous(xp, a) if x.ndim == 2 else a

    first, saved, cotangents = (each(arrays, change) for arrays in (first, saved, cotangents))
    if again is not None:
        saved = again._replace(kept=again.kept._replace(states=saved))
    return given._replace(x=change(x), first=first, saved=saved), cotangents


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


class Steps(NamedTuple):
    """The attributes of a block op that say which steps it computes."""

    op: str
    seq_len_max: Any
    reverse: Any

    def extent(self, arrays: Mapping[str, Any]) -> Extent:
        """Check these attributes, the lengths and the resets of a call; return its extent."""
        x, lengths, resets = arrays["x"], arrays["sequence_lengths"], arrays["resets"]
        return check_extent(self.op, x, self.seq_len_max, lengths, self.reverse, resets)

    def check(self, x: Array, lengths: object, resets: object) -> Steps:
        """Check the same; return these attributes."""
        self.extent({"x": x, "sequence_lengths": lengths, "resets": resets})
        return self


def _layer_of(
    xp: ModuleType, padded: Padded, extent: Extent, packing: Packing, saved: Any
) -> Layer:
    first = each(padded.first, lambda s: packing.enter(contiguous(xp, s)))
    x = packing.pack(contiguous(xp, padded.x[: extent.steps]))
    return Layer(x, first, packing, saved)


def forward(xp: ModuleType, cell: Cell, padded: Padded) -> None:
    """Run a cell; write padded.saved, new arrays in C order, with zeros in the padding."""
    x, _, outputs, extent = padded
    assert extent is not None
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
    """Return every k-th of the states [T, B, ·] that `forward` wrote, for the gradient."""
    packing, steps = extent.packing(xp, states.h.shape[1]), extent.steps
    kept = recompute.kept_rows(packing, slice(0, packing.steps), every)

    def rows(a: Array) -> Array:
        packed = packing.pack(a[:steps])
        if every > 1:
            return packed[xp.asarray(kept)]
        # h has its own memory, and most callers keep it. The others share theirs.
        return packed if a is states.h or packing.reorders else packed.copy()

    return Kept(every, each(states, rows))


def backward_step(
    xp: ModuleType, cell: Cell, layer: Layer, cotangents: Any, grads: Gradients
) -> Any:
    """
    Return the gradients of the states before a single step, [B, H] each; all arrays are in order.

    `grads` are written: see `layer.backward`.
    """
    compute, shape = compute_dtype(layer.x.dtype), layer.saved[0].shape
    # One array less: the carried gradients begin as those of the states after the step.
    given = [xp.zeros(shape, compute) if g is None else g.astype(compute, "C") for g in cotangents]
    carried = cotangents._make(given)
    _layer.backward(xp, cell, Cut(layer, None, carried, grads))
    return carried


def backward(
    xp: ModuleType, cell: Cell, padded: Padded, cotangents: Any, grads: Gradients
) -> tuple[Array, Any]:
    """
    Return the gradients of x and of the first states, which are of the computation's dtype.

    Parameters
    ----------
    padded
        The inputs and results of `forward`, or a Recomputed with the result of `keep`.
    cotangents : [T, B, ·]
        The gradients of each step's states; each may be None.
    grads
        Written, but x.
    """
    x, first, outputs, extent = padded
    dtype, compute = x.dtype, compute_dtype(x.dtype)
    if extent is None:
        grads = Gradients(xp.empty(x.shape, dtype), *grads[1:])
        layer = Layer(x, first, None, outputs)
        return grads.x, backward_step(xp, cell, layer, cotangents, grads)
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
