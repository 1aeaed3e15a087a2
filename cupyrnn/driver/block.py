"""The layer of a block op: a net of one layer that saves padded arrays [T, B, ·]."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .._typing import Array, NamedTuple
from ..cells.contract import Cell, Gradients, each
from ..checks.arrays import cast_all, compute_dtype, contiguous
from ..checks.extent import Extent
from . import layer as _layer
from . import recompute
from . import stack as _stack
from .layer import Layer, LayerGradient
from .packing import Packing, flat
from .recompute import Checkpoints
from .reserve import Reserved, ReserveLayout, Sizes


class Recomputed(NamedTuple):
    """Replaces `saved` if the gradient recomputes: the kept states, and the forward pass's cell."""

    cell: Cell  # of the forward pass
    kept: Checkpoints  # by rows


class Padded(NamedTuple):
    """The inputs and outputs of a layer; without an extent, of one step: [B, ·]."""

    x: Array  # [T, B, I]
    first: Any  # the states before the first step, [B, ·]
    saved: Any  # the cell's Saved, [T, B, ·] each; for a gradient it may be a Recomputed
    extent: Extent | None = None

    @property
    def single(self) -> bool:
        """Whether it is one step of all sequences."""
        return self.extent is not None and self.extent.complete and len(self.x) == 1


class _Widths(NamedTuple):
    """The sizes of one layer."""

    L: int
    D: int
    widths: tuple[tuple[int, int], ...]


def _of_net(states: Any) -> Any:
    """Return states [B, ·] of one layer as states [1, B, ·] of a net."""
    return states._make([s[None] for s in states])


def ready(xp: ModuleType, dtype: Any, inputs: Any, cotangents: Any) -> tuple[Any, Any]:
    """
    Return the arguments of a gradient in the dtype of the call; for a single step in C order.

    Arrays without a tangent get one of zero. `inputs` is a Padded, or the Layer of a step.
    """
    (x, first, saved), again = (inputs.x, inputs.first, inputs.saved), None
    if isinstance(saved, Recomputed):
        again, saved = saved, saved.kept.states

    def change(a: Array) -> Array:
        (a,) = cast_all(dtype, a)
        return contiguous(xp, a) if x.ndim == 2 else a

    first, saved, cotangents = (each(arrays, change) for arrays in (first, saved, cotangents))
    if again is not None:
        saved = again._replace(kept=again.kept._replace(states=saved))
    return inputs._replace(x=change(x), first=first, saved=saved), cotangents


def _leaves(xp: ModuleType, cell: Cell, padded: Padded, every: int | None = None) -> ReserveLayout:
    """Return the parts that the steps save."""
    (x, first, _, extent), H = padded, padded.first.h.shape[1]
    assert extent is not None
    T, B, _ = x.shape
    net, sizes = _Widths(1, 1, ((H, H),)), Sizes(T, B, True, 0.0, 0, 0)
    return ReserveLayout(net, sizes, cell.Saved, type(first), Packing(xp, T, B, *extent), every)


def forward(xp: ModuleType, cell: Cell, padded: Padded) -> None:
    """Run a cell; write padded.saved, new arrays in C order, with zeros in the padding."""
    x, first, outputs, _ = padded
    if padded.single:  # packing takes longer
        first, saved = each(first, lambda s: contiguous(xp, s)), each(outputs, lambda a: a[0])
        _layer.forward(xp, cell, Layer(contiguous(xp, x[0]), first, None, saved))
        return
    leaves = _leaves(xp, cell, padded)
    packing = leaves.rows
    # If rows are saved in the order of time, the loop over layers writes padded arrays itself.
    moves = packing.reorders and not packing.saved_in_time(0)
    saved = type(outputs)._make([packing.like(a) if moves else flat(a) for a in outputs])
    of_layer, nothing = Reserved(None, [saved], [saved.h]), first._make([None] * len(first))
    _stack.run(xp, _stack.Stack([cell], leaves), x, _of_net(first), [of_layer], nothing)
    if moves:
        for a, rows in zip(outputs, saved, strict=True):
            packing.unpack(rows, a)


def keep(xp: ModuleType, states: Any, extent: Extent, every: int) -> Checkpoints:
    """Return every k-th of the states [T, B, ·] that `forward` wrote, for the gradient."""
    T, B, _ = states.h.shape
    packing = Packing(xp, T, B, *extent)
    kept = recompute.kept_rows(packing, slice(0, packing.steps), every)

    def rows(a: Array) -> Array:
        packed = packing.pack(a)
        if every > 1:
            return packed[xp.asarray(kept)]
        # h has its own memory, and most callers keep it. The others share theirs.
        return packed if a is states.h or packing.reorders else packed.copy()

    return Checkpoints(every, each(states, rows))


def backward_step(
    xp: ModuleType, cell: Cell, layer: Layer, cotangents: Any, grads: Gradients
) -> Any:
    """
    Return the gradients of the states before a single step, [B, H] each; all arrays are in order.

    `grads` are written: see `layer.backward`.
    """
    compute, shape = compute_dtype(layer.x.dtype), layer.saved[0].shape
    # Saves an array: the carried gradients start as the gradients of the states after the step.
    copies = [xp.zeros(shape, compute) if g is None else g.astype(compute, "C") for g in cotangents]
    carried = cotangents._make(copies)
    _layer.backward(xp, cell, LayerGradient(layer, None, carried, grads))
    return carried


def backward(
    xp: ModuleType, cell: Cell, padded: Padded, cotangents: Any, grads: Gradients
) -> tuple[Array, Any]:
    """
    Return the gradients of x and of the first states.

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
    if extent is None:
        grads = Gradients(xp.empty(x.shape, x.dtype), *grads[1:])
        layer = Layer(x, first, None, outputs)
        return grads.x, backward_step(xp, cell, layer, cotangents, grads)
    if padded.single and not isinstance(outputs, Recomputed):
        first = each(first, lambda s: contiguous(xp, s))
        x, *others = (contiguous(xp, a[0]) for a in (x, *outputs))
        of_step = each(cotangents, lambda g: contiguous(xp, g[0]))
        step = Padded(x, first, outputs._make(others))
        x_grad, of_first = backward(xp, cell, step, of_step, grads)
        return x_grad[None], of_first
    nothing = first._make([None] * len(first))
    if isinstance(outputs, Recomputed):
        leaves = _leaves(xp, cell, padded, outputs.kept.every)
        reserved, again = Reserved(None, [outputs.kept], []), [outputs.cell]
    else:
        leaves, again = _leaves(xp, cell, padded), []
        saved = outputs._make([contiguous(xp, a) for a in outputs])
        if leaves.rows.reorders:
            saved = each(saved, leaves.rows.pack)
        reserved = Reserved(None, [saved], [saved.h])
    stack = _stack.Stack([cell], leaves, None, again)
    x_grad, of_first = _stack.run_back(
        xp, stack, (x, _of_net(first)), (cotangents, nothing), [reserved], [grads]
    )
    return x_grad, first._make([s[0] for s in of_first])
