"""Layers in one or both directions with dropout between them, over cells of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array, NamedTuple
from ..arithmetic.dropout import key_words, threshold
from ..cells.contract import Cell, Gradients, columns_of, each
from ..checks.arrays import cast, cast_all, compute_dtype, contiguous
from . import layer as _layer
from . import recompute
from .layer import Layer, LayerGradient
from .packing import Packing, flat
from .pages import products_of, twin_of
from .recompute import LazyRows
from .reserve import Note, Reserved, ReserveLayout, Sizes, reserve_size, write_note


class Stack(NamedTuple):
    """The cells of a net by layer and direction, and the parts of its reserve_space."""

    cells: Sequence[Cell]
    leaves: ReserveLayout
    note: Note | None = None  # forward, if the steps leave states only
    again: Sequence[Cell] = ()  # backward, if they left states only: the forward pass's cells


class _Memory:
    """Memory for saved arrays, shared by all layers of the same H and P."""

    def __init__(self, xp: ModuleType, stack: Stack, dtype: Any, *, with_h: bool) -> None:
        self._xp, self._stack, self._dtype = xp, stack, dtype
        self._last = None if with_h else -1
        self._arrays: dict[tuple[int, ...], list[Array]] = {}

    def __call__(self, pl: int) -> list[Array]:
        """Return the arrays that the steps of one direction of a layer save."""
        leaves = self._stack.leaves
        packing, every, D = leaves.rows, leaves.every, leaves.net.D
        widths = leaves.net.widths[pl // D]
        if every is None:
            most = max((block.end - block.row for block in packing.blocks()), default=0)
        else:
            cell = self._stack.cells[pl]
            most = recompute.largest(self._xp, cell, packing, every, self._dtype)
        key = most, *widths
        if key not in self._arrays:
            columns = columns_of(leaves.saved, *widths)[: self._last]
            self._arrays[key] = [self._xp.empty((most, n), self._dtype) for n in columns]
        return self._arrays[key]


def _draw_mask(xp: ModuleType, sizes: Sizes, packing: Packing, layer: int, mask: Array) -> Array:
    """
    Fill the mask of a layer's input; return the rows of it that are computed.

    Whether a value is dropped does not depend on the lengths.
    """
    T, B, _, rate, *seeds = sizes
    columns = mask.shape[1]
    keys = key_words(*seeds)
    draw = twin_of(xp, "dropout").keep_mask
    drawn = draw((T * B, columns), mask.dtype, threshold(rate), keys, layer)
    rows = packing.pack(drawn.reshape(T, B, columns))
    mask[...] = drawn if packing.saved_in_time(0) else rows
    return rows


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
    """Return the first states of one pseudo-layer."""
    return each(states, lambda s: packing.enter(contiguous(xp, s[pl]), d == 1))


def _inputs(xp: ModuleType, packing: Packing, below: Sequence[Array]) -> Array:
    """Return the input of a layer: h of the directions below, side by side."""
    h = [packing.reverse(a) if d else a for d, a in enumerate(below)]
    return h[0] if len(h) == 1 else xp.concatenate(h, axis=1)


def _in_order_of_steps(packing: Packing, reserved: Reserved) -> Reserved:
    """Return the saved arrays of a layer, for each direction in the order of its steps."""
    saved = [
        a._make(packing.from_time(rows, d) for rows in a) if packing.saved_in_time(d) else a
        for d, a in enumerate(reserved.saved)
    ]
    return reserved._replace(saved=saved, h=[a.h for a in saved])


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
    leaves, note, dtype = stack.leaves, stack.note, input.dtype
    net, sizes, packing = leaves.net, leaves.sizes, leaves.rows
    last = each(first, lambda s: _like(xp, s, dtype))
    reserves = [Reserved(None, [], [])] * net.L
    reserve_space = xp.zeros((), dtype)
    if sizes.is_training:
        reserve_space = xp.empty(reserve_size(leaves), dtype)
        reserves = leaves.parts(reserve_space)
        if note is not None:
            reserve_space[leaves.size :] = 0  # in some sizes one number more than the note
            write_note(xp, reserve_space, note)
    output = xp.empty((sizes.T, sizes.B, net.D * net.widths[-1][1]), dtype)
    # h of the last layer is computed in the returned array, if possible.
    made = not reserves[-1].h and net.D == 1 and not packing.reorders
    if made:
        reserves[-1] = reserves[-1]._replace(h=[packing.pack(output)])
    values = run(xp, stack, input, first, reserves, last)
    if not made:
        packing.unpack(values, output)
    return output, last, reserve_space


def run(
    xp: ModuleType, stack: Stack, input: Array, first: Any, reserves: Sequence[Reserved], last: Any
) -> Array:
    """
    Run the layers of a net forwards; return h of the last one, by rows.

    Parameters
    ----------
    reserves
        Written, by layer: what it saves, as in reserve_space.
    last
        Written: the states after the last step; each may be None.
    """
    cells, leaves, *_ = stack
    net, sizes, packing, every = leaves.net, leaves.sizes, leaves.rows, leaves.every
    dtype, memory = input.dtype, _Memory(xp, stack, input.dtype, with_h=False)
    values = packing.pack(contiguous(xp, input))
    for layer, (widths, (mask, saved, h)) in enumerate(zip(net.widths, reserves, strict=True)):
        if mask is not None:
            values = _drop(values, _draw_mask(xp, sizes, packing, layer, mask), sizes)
        h = h or [xp.empty((packing.rows, widths[1]), dtype) for _ in range(net.D)]
        for d in range(net.D):
            pl = layer * net.D + d
            x = packing.reverse(values) if d else values
            entered = _enter(xp, packing, first, pl, d)
            if saved and every is not None:
                of_layer = Layer(x, entered, packing, saved[d])
                states = recompute.forward(xp, cells[pl], of_layer, memory(pl), h[d])
            else:
                into = saved[d] if saved else leaves.saved(*memory(pl), h[d])
                in_time = bool(saved) and packing.saved_in_time(d)
                if in_time:
                    shapes = [(packing.rows, a.shape[1]) for a in into]
                    into = into._make(xp.empty(shape, dtype) for shape in shapes)
                    h[d] = into.h
                states = _layer.forward(xp, cells[pl], Layer(x, entered, packing, into))
                for rows, a in zip(into, saved[d], strict=True) if in_time else ():
                    packing.to_time(rows, d, a)
            for to, state in zip(last, states, strict=True):
                if to is not None:
                    to[pl][...] = packing.leave(state, d == 1)
        values = _inputs(xp, packing, h)
    return values


class _Direction(NamedTuple):
    """
    The gradient of one direction of a layer, and the arrays that both directions share.

    Shared arrays are rows [N, ·] of all steps. A direction uses slices of whole steps, in its own
    order.
    """

    xp: ModuleType
    stack: Stack
    memory: _Memory
    read: Sequence[Array]  # the input, or h of each direction of the layer below
    mask: Array | None  # the dropout mask of these
    output_grad: Array | None  # the gradient of the layer's output
    others: Sequence[Array | None]  # of each step's states except h, in its own order
    made: Array  # written: the gradient of the layer's input
    # Whether rows are in the order of the padded array; else in the order of `pack`.
    read_padded: bool
    given_padded: bool
    made_padded: bool
    n: int = 0  # the pseudo-layer

    @property
    def d(self) -> int:
        """Which direction it is."""
        return self.n % self.stack.leaves.net.D

    def _places(self, rows: slice, padded: bool, d: int = 0) -> Any:
        """Return the indices of rows in the order of time or of a direction."""
        return self.stack.leaves.rows.places(rows, self.d != d, padded=padded)

    def x(self, rows: slice) -> Array:
        """Return the input of the direction."""
        parts = [h[self._places(rows, self.read_padded, d)] for d, h in enumerate(self.read)]
        values = parts[0] if len(parts) == 1 else self.xp.concatenate(parts, axis=1)
        if self.mask is not None:
            values = _drop(values, self.mask[self._places(rows, False)], self.stack.leaves.sizes)
        return values

    def output_gradient(self, rows: slice) -> Array:
        """Return the gradient of the direction's output."""
        of_output: Any = self.output_grad
        P = of_output.shape[1] // self.stack.leaves.net.D
        some: Array = of_output[:, self.d * P : (self.d + 1) * P]
        return self.xp.ascontiguousarray(some[self._places(rows, self.given_padded)])

    def space(self, rows: slice) -> Array:
        """Return memory for the gradient of the direction's input."""
        made, places = self.made, self._places(rows, self.made_padded)
        if self.d == 0 and isinstance(places, slice):
            return made[places]
        return self.xp.empty((rows.stop - rows.start, made.shape[1]), made.dtype)

    def put(self, rows: slice, values: Array) -> None:
        """Store the gradient of the input; the second direction adds to the first one's."""
        made, places = self.made, self._places(rows, self.made_padded)
        if self.d:
            made[places] += values
        elif not isinstance(places, slice):  # else it is already there: see `space`
            made[places] = values

    def backward(self, first: Any, saved: Any, carried: Any, grads: Gradients) -> None:
        """
        Compute the gradient of this direction as `layer.backward` does, except for x of `grads`.

        If rows move, and there are enough of them, the pieces are computed one by one, so that only
        one piece's copy of the moved rows is in memory.
        """
        xp, (cells, leaves, _, again) = self.xp, self.stack
        packing, n = leaves.rows, leaves.rows.rows
        dtype, cell, rows = self.read[0].dtype, cells[self.n], slice(0, n)
        x: Any
        of_output: Any = None
        into: Any
        reorders = leaves.net.D > 1 or packing.reorders
        whole = (
            grads.weight_gradients in ("examples", "norms")
            or not reorders
            or n <= products_of(xp).ROWS
        )
        if whole:
            x, into = self.x(rows), self.space(rows)
            if self.output_grad is not None:
                of_output = self.output_gradient(rows)
        else:
            x, into = LazyRows(self.x, dtype, n), LazyRows(self.space, self.made.dtype, n, self.put)
            if self.output_grad is not None:
                of_output = LazyRows(self.output_gradient, dtype, n)
        layer, grads = Layer(x, first, packing, saved), grads._replace(x=into)
        states = first._make([of_output, *self.others])
        every = leaves.every
        cut = LayerGradient(layer, states, carried, grads)
        cuts: Iterable[LayerGradient] = [cut]
        if not whole or every is not None:
            both = cell, cell if every is None else again[self.n]
            steps = [] if every is None else self.memory(self.n)
            cuts = recompute.backward(xp, both, cut, steps)
        for cut in cuts:
            _layer.backward(xp, cell, cut)
        if whole:
            self.put(rows, into)


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
        The gradients of its results; each may be None.
    grads
        Of each of the cells: written, but x.
    """
    packing, (input, first) = stack.leaves.rows, inputs
    (reserve_space,) = cast_all(input.dtype, reserve_space)
    reserves = stack.leaves.parts(contiguous(xp, reserve_space))
    if stack.leaves.every is None:
        reserves = [_in_order_of_steps(packing, reserved) for reserved in reserves]
    states = first._make([output_grad, *[None] * (len(first) - 1)])
    return run_back(xp, stack, inputs, (states, last_grad), reserves, grads)


def run_back(
    xp: ModuleType,
    stack: Stack,
    inputs: tuple[Array, Any],
    cotangents: tuple[Any, Any],
    reserves: Sequence[Reserved],
    grads: Sequence[Gradients],
) -> tuple[Array, Any]:
    """
    Compute `backward`; the layers' saved arrays are in the order of their steps.

    `cotangents` are the gradients of the states of each step of the last layer, [T, B, ·], and of
    the last states.
    """
    net, sizes, packing = stack.leaves.net, stack.leaves.sizes, stack.leaves.rows
    (input, first), ((output_grad, *others), last_grad) = inputs, cotangents
    others = [None if g is None else packing.pack(contiguous(xp, g)) for g in others]
    dtype, D = input.dtype, net.D
    compute = compute_dtype(dtype)
    memory = _Memory(xp, stack, dtype, with_h=True)
    first_grad = each(first, lambda s: _like(xp, s, compute))
    of_output = None if output_grad is None else flat(contiguous(xp, output_grad))
    in_place = True  # whether `of_output` has the rows of the padded array
    input_grad = xp.empty(input.shape, dtype)
    for layer in reversed(range(net.L)):
        mask, saved, _ = reserves[layer]
        if mask is not None and packing.saved_in_time(0):
            mask = packing.from_time(mask, 0)
        read = reserves[layer - 1].h if layer else [flat(contiguous(xp, input))]
        # The gradients of two directions are added, and dropped values scaled, before rounding.
        wide = compute if D > 1 or mask is not None else dtype
        # The gradient of the net's input is computed in the returned array, if possible.
        given_padded, in_place = in_place, layer == 0 and wide == dtype
        if in_place and packing.rows < sizes.T * sizes.B:
            input_grad[...] = 0
        columns = sum(a.shape[1] for a in read)
        made = flat(input_grad) if in_place else xp.empty((packing.rows, columns), wide)
        places = layer == 0, given_padded, in_place
        for d in range(D):
            pl = layer * D + d
            direction = _Direction(
                xp, stack, memory, read, mask, of_output, others, made, *places, pl
            )
            entered = _enter(xp, packing, first, pl, d)
            carried = _carried(xp, packing, entered, last_grad, pl, d == 1)
            direction.backward(entered, saved[d], carried, grads[pl])
            for to, state in zip(first_grad, carried, strict=True):
                if to is not None:
                    to[pl][...] = packing.enter_grad(state, d == 1)
        of_output, others = made, [None] * len(others)
        if not in_place:
            of_output = cast(made if mask is None else _drop(made, mask, sizes), dtype)
    if not in_place:
        packing.unpack(of_output, input_grad)
    return input_grad, each(first_grad, lambda s: _rounded(s, dtype))


def _rounded(state: Any, dtype: Any) -> Any:
    return [cast(a, dtype) for a in state] if isinstance(state, list) else cast(state, dtype)


def _carried(
    xp: ModuleType, packing: Packing, first: Any, last_grad: Any, pl: int, reverse: bool
) -> Any:
    """Return copies of the gradients of one pseudo-layer's last states, to be overwritten."""

    def of_state(s: Array | None, last: Any) -> Any:
        if s is None or last is None:
            return s if s is None else xp.zeros(s.shape, compute_dtype(s.dtype))
        g = packing.leave_grad(contiguous(xp, last[pl]), reverse)
        return g.astype(compute_dtype(s.dtype), order="C")

    return first._make(map(of_state, first, last_grad))


def time_major_of(
    xp: ModuleType, dtype: np.dtype[Any], major: bool, arrays: Sequence[Array | None]
) -> list[Any]:
    """
    Return arrays in time-major order, [T, B, ·] or [L*D, B, ·].

    In a complex dtype, arrays without a tangent get one of zero.
    """
    of_dtype = cast_all(dtype, *arrays)
    return [a if major or a is None else contiguous(xp, a.transpose(1, 0, 2)) for a in of_dtype]


def as_given(xp: ModuleType, a: Array | None, major: bool, dtype: np.dtype[Any]) -> Any:
    """Return a time-major result in the caller's order of axes; a scalar zero for None."""
    if a is None:
        return xp.zeros((), dtype)
    return a if major else xp.ascontiguousarray(a.transpose(1, 0, 2))
