"""Layers in one or both directions with dropout between them, over cells of any kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .._arrays import cast, cast_all, compute_dtype, contiguous
from ..cells.contract import columns_of, each
from . import layer as _layer
from .dropout import keep_mask
from .layer import Layer

if TYPE_CHECKING:
    import numpy as np

    from .._arrays import Array
    from ..cells.contract import Cell, Gradients
    from .packing import Packing


class Layers(Protocol):
    """The sizes of a net: layers and directions, and H and P of each layer."""

    @property
    def L(self) -> int: ...
    @property
    def D(self) -> int: ...
    @property
    def widths(self) -> Sequence[tuple[int, int]]: ...


class Sizes(NamedTuple):
    """The sizes of a call, and what it drops."""

    T: int
    B: int
    is_training: bool
    dropout: float
    seed: int
    seed2: int

    def drops(self, net: Layers) -> bool:
        """Return whether values are dropped between layers."""
        return self.is_training and self.dropout > 0 and net.L > 1


class Stack(NamedTuple):
    """The cells of a net by layer and direction, and the sequences they run over."""

    net: Layers
    sizes: Sizes
    cells: Sequence[Cell]
    packing: Packing


class _Reserve(NamedTuple):
    """What a layer leaves for the backward pass: views of reserve_space."""

    mask: Array | None  # [N, D*P], of its input, where there is dropout
    saved: list[Any]  # by direction, the cell's Saved


def _reserve_layout(
    net: Layers, sizes: Sizes, kind: Any, rows: int
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the layer and the shape of every part of reserve_space."""
    below = 0
    for layer, (H, P) in enumerate(net.widths):
        if layer and sizes.drops(net):
            yield layer, (rows, net.D * below)
        for _ in range(net.D):
            yield from ((layer, (rows, width)) for width in columns_of(kind, H, P))
        below = P


def reserve_size(net: Layers, sizes: Sizes, kind: Any, rows: int) -> int:
    """Return the number of elements of reserve_space for cells that leave a `kind` by row."""
    return sum(n * columns for _, (n, columns) in _reserve_layout(net, sizes, kind, rows))


def _reserves(reserve_space: Array, stack: Stack) -> list[_Reserve]:
    """Return the parts of reserve_space by layer."""
    net, sizes, kind, rows = stack.net, stack.sizes, stack.cells[0].Saved, stack.packing.rows
    parts: list[list[Array]] = [[] for _ in range(net.L)]
    start = 0
    for layer, shape in _reserve_layout(net, sizes, kind, rows):
        end = start + shape[0] * shape[1]
        parts[layer].append(reserve_space[start:end].reshape(shape))
        start = end
    n, result = len(kind._fields), []
    for layer, arrays in enumerate(parts):
        mask = arrays.pop(0) if layer and sizes.drops(net) else None
        saved = [kind._make(arrays[d * n : (d + 1) * n]) for d in range(net.D)]
        result.append(_Reserve(mask, saved))
    return result


def _draw_mask(xp: ModuleType, sizes: Sizes, packing: Packing, layer: int, mask: Array) -> None:
    """Fill the mask of a layer's input. What it is for a value does not depend on the lengths."""
    T, B, _, rate, *seeds = sizes
    columns = mask.shape[1]
    drawn = keep_mask(xp, (T * B, columns), mask.dtype, rate, seeds[0], seeds[1], layer)
    mask[...] = packing.pack(drawn.reshape(T, B, columns))


def _drop(values: Array, mask: Array, sizes: Sizes) -> Array:
    """Return the values that the mask keeps, scaled, in the dtype of the mask."""
    scale = 1 / (1 - sizes.dropout) if sizes.dropout < 1 else 0.0
    compute = compute_dtype(mask.dtype)
    return cast(cast(values, compute) * cast(mask, compute) * scale, mask.dtype)


def _like(xp: ModuleType, state: Any, dtype: Any) -> Any:
    """Return memory for a state of all pseudo-layers."""
    if isinstance(state, list):
        return [xp.empty(a.shape, dtype) for a in state]
    return xp.empty(state.shape, dtype)


def _enter(xp: ModuleType, packing: Packing, states: Any, pl: int, d: int) -> Any:
    """Return the first states of a pseudo-layer, of those of all."""
    return each(states, lambda s: packing.enter(contiguous(xp, s[pl]), d == 1))


def _inputs(xp: ModuleType, packing: Packing, below: list[Any]) -> Array:
    """Return the input of a layer: what the directions below left, side by side."""
    h = [packing.reverse(saved.h) if d else saved.h for d, saved in enumerate(below)]
    values: Array = h[0] if len(h) == 1 else xp.concatenate(h, axis=1)
    return values


def forward(xp: ModuleType, stack: Stack, input: Array, first: Any) -> tuple[Array, Any, Array]:
    """
    Run a net.

    Parameters
    ----------
    input : [T, B, I]
        Time-major.
    first : [L*D, B, ·], or lists of L*D arrays [B, ·]
        The states before the first step.

    Returns
    -------
    output : [T, B, D*P]
    last : like first
        The states after the last step.
    reserve_space
        What `backward` needs; a scalar in inference.
    """
    net, sizes, cells, packing = stack
    dtype, kind = input.dtype, cells[0].Saved
    last = each(first, lambda s: _like(xp, s, dtype))
    reserves: list[_Reserve] = []
    if sizes.is_training:
        reserve_space = xp.empty(reserve_size(net, sizes, kind, packing.rows), dtype)
        reserves = _reserves(reserve_space, stack)
    else:
        reserve_space = xp.zeros((), dtype)
        most = max((block.end - block.row for block in packing.blocks()), default=0)
        scratch: dict[tuple[int, int], list[Array]] = {}  # by H and P, for all layers in turn
    values = packing.pack(contiguous(xp, input))
    for layer, widths in enumerate(net.widths):
        mask = reserves[layer].mask if reserves else None
        if mask is not None:
            _draw_mask(xp, sizes, packing, layer, mask)
            values = _drop(values, mask, sizes)
        if reserves:
            saved = reserves[layer].saved
        else:
            if widths not in scratch:
                others = columns_of(kind, *widths)[:-1]
                scratch[widths] = [xp.empty((most, width), dtype) for width in others]
            saved = [
                kind(*scratch[widths], xp.empty((packing.rows, widths[1]), dtype))
                for _ in range(net.D)
            ]
        for d in range(net.D):
            pl = layer * net.D + d
            x = packing.reverse(values) if d else values
            entered = _enter(xp, packing, first, pl, d)
            states = _layer.forward(xp, cells[pl], Layer(x, entered, packing, saved[d]))
            for to, state in zip(last, states, strict=True):
                if to is not None:
                    to[pl][...] = packing.leave(state, d == 1)
        values = _inputs(xp, packing, saved)
    output = xp.empty((sizes.T, sizes.B, values.shape[1]), dtype)
    packing.unpack(values, output)
    return output, last, reserve_space


def backward(
    xp: ModuleType,
    stack: Stack,
    inputs: tuple[Array, Any],
    output_grad: Array | None,
    last_grad: Any,
    reserve_space: Array,
    grads: Sequence[Gradients],
) -> tuple[Array, Any]:
    """
    Return the gradients of input and of the first states.

    Parameters
    ----------
    inputs
        input and first of the forward pass.
    output_grad, last_grad
        The gradients of what it returned; each may be None.
    grads
        Of each of the cells: written, but x.
    """
    net, sizes, cells, packing = stack
    input, first = inputs
    dtype, D = input.dtype, net.D
    compute = compute_dtype(dtype)
    (reserve_space,) = cast_all(dtype, reserve_space)
    reserves = _reserves(contiguous(xp, reserve_space), stack)
    first_grad = each(first, lambda s: _like(xp, s, compute))
    nothing = [None] * (len(first) - 1)
    values_grad: Any = None
    if output_grad is not None:
        values_grad = packing.pack(contiguous(xp, output_grad))
    input_grad = xp.empty(input.shape, dtype)
    for layer, (_, P) in reversed([*enumerate(net.widths)]):
        mask, saved = reserves[layer]
        if layer:
            values = _inputs(xp, packing, reserves[layer - 1].saved)
            if mask is not None:
                values = _drop(values, mask, sizes)
        else:
            values = packing.pack(contiguous(xp, input))
        # What two directions give is added, and what is dropped scaled, before it is rounded.
        wide = compute if D > 1 or mask is not None else dtype
        # Of the input it is made where it is returned, if it can be.
        in_place = layer == 0 and wide == dtype and not packing.moves()
        total: Any = None
        for d in range(D):
            pl = layer * D + d
            given = None
            if values_grad is not None:
                given = values_grad[:, d * P : (d + 1) * P]
                given = packing.reverse(given) if d else xp.ascontiguousarray(given)
            x = packing.reverse(values) if d else values
            entered = _enter(xp, packing, first, pl, d)
            carried = first._make(
                [
                    None
                    if s is None
                    else _carried(xp, packing, s, None if g is None else g[pl], d == 1, compute)
                    for s, g in zip(entered, last_grad, strict=True)
                ]
            )
            into_result = in_place and d == 0
            part = packing.pack(input_grad) if into_result else xp.empty(values.shape, wide)
            _layer.backward(
                xp,
                cells[pl],
                Layer(x, entered, packing, saved[d]),
                first._make([given, *nothing]),
                carried,
                grads[pl]._replace(x=part),
            )
            for to, state in zip(first_grad, carried, strict=True):
                if to is not None:
                    to[pl][...] = packing.enter_grad(state, d == 1)
            del given, x  # not to have these of both directions at once
            if d:
                packing.add_reversed(part, total)
            else:
                total = part
        values_grad = cast(total if mask is None else _drop(total, mask, sizes), dtype)
    if not in_place:
        packing.unpack(values_grad, input_grad)
    return input_grad, each(first_grad, lambda s: _rounded(s, dtype))


def _rounded(state: Any, dtype: Any) -> Any:
    return [cast(a, dtype) for a in state] if isinstance(state, list) else cast(state, dtype)


def _carried(
    xp: ModuleType,
    packing: Packing,
    first: Array,
    given: Array | None,
    reverse: bool,
    compute: Any,
) -> Array:
    """Return new memory with the gradients of the last states, zeros where none are given."""
    if given is None:
        zeros: Array = xp.zeros(first.shape, compute)
        return zeros
    return packing.leave_grad(contiguous(xp, given), reverse).astype(compute, order="C")


def time_major_of(
    xp: ModuleType, dtype: np.dtype[Any], major: bool, arrays: Sequence[Array | None]
) -> list[Any]:
    """
    Return arrays that are [T, B, ·] or [L*D, B, ·], or have these axes exchanged, as these.

    Those without a tangent have one of zero if the dtype is complex.
    """
    given = cast_all(dtype, *arrays)
    return [a if major or a is None else contiguous(xp, a.transpose(1, 0, 2)) for a in given]


def as_given(xp: ModuleType, a: Array | None, major: bool, dtype: np.dtype[Any]) -> Any:
    """Return a time-major result as the caller has its axes; a scalar zero for None."""
    if a is None:
        result: Array = xp.zeros((), dtype)
        return result
    return a if major else xp.ascontiguousarray(a.transpose(1, 0, 2))
