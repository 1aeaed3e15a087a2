"""
A machine that computes a whole layer at once, for calls that are not laid out.

Its places are arrays. Their rows may be in the order of a direction's steps, or padded. Cells may
be of any kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array, NamedTuple
from ..arithmetic.dropout import key_words, scale, threshold
from ..cells.contract import Cell, Gradients, columns_of, each
from ..checks.arrays import cast, cast_all, compute_dtype, contiguous
from ..checks.extent import Extent
from . import layer as _layer
from . import net as _walk
from . import recompute
from .layer import Layer, LayerGradient
from .net import GradientPlaces, LayerPlaces
from .packing import Packing, flat
from .pages import dropout_of, products_of
from .recompute import Checkpoints, LazyRows
from .reserve import Note, Reserved, ReserveLayout, reserve_size, write_note


class Ordered(NamedTuple):
    """The rows of all steps, and their order."""

    array: Array  # [N, ·], or padded [T*B, ·]
    direction: int | None  # 0 or 1: in the order of its steps; None: padded, in time

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.array.shape

    def part(self, start: int, stop: int, axis: int) -> Ordered:
        """Return columns start to stop - 1."""
        assert axis == 1, axis
        return Ordered(self.array[:, start:stop], self.direction)


class ByLayers:
    """
    Computes layers, each at once.

    Parameters
    ----------
    packing
        The rows of all steps.
    dtype
        Of the call.
    D
        The number of directions.
    """

    def __init__(self, xp: ModuleType, packing: Packing, dtype: np.dtype[Any], D: int = 1) -> None:
        self.xp, self.dtype = xp, dtype
        self._packing, self._all = packing, slice(0, packing.rows)
        self._moves = D > 1 or packing.reorders
        self._reused: dict[Any, Ordered] = {}
        self._values: tuple[Any, Any] = None, None  # places that a layer reads, and their values

    def reuse(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> Ordered:
        """Return memory for the rows of all steps, which layers share, by name and columns."""
        key = name, shape[1], dtype
        if key not in self._reused:
            shape = self._packing.rows, shape[1]
            self._reused[key] = self.xp.empty(shape, dtype or self.dtype)
        return Ordered(self._reused[key], 0)

    def memory(self, rows: int, columns: Sequence[int]) -> list[Array]:
        """Return memory for the saved arrays of some rows; layers share memory of one size."""
        keys = [(k, rows, width) for k, width in enumerate(columns)]
        for key in keys:
            if key not in self._reused:
                self._reused[key] = self.xp.empty(key[1:], self.dtype)
        return [self._reused[key] for key in keys]

    def _of_a_piece(self, cell: Cell, kept: Checkpoints, columns: Sequence[int]) -> list[Array]:
        """Return memory for the saved arrays of the largest piece."""
        most = recompute.largest(self.xp, cell, self._packing, kept.every, self.dtype)
        return self.memory(most, columns)

    def padded(self, a: Array) -> Ordered:
        """Return [T, B, ·] as rows."""
        return Ordered(flat(contiguous(self.xp, a)), None if self._packing.reorders else 0)

    def input_gradient(self, x: Array) -> Array:
        """Return a new array like the input of the net, with zeros in the padding."""
        grad: Array = self.xp.empty(x.shape, self.dtype)
        if self._packing.rows < x.shape[0] * x.shape[1]:
            grad[...] = 0
        return grad

    def _places(self, a: Ordered, back: bool, rows: slice) -> Any:
        """Return the indices of the rows of some whole steps of a direction."""
        is_padded, reverse = a.direction is None, back != bool(a.direction)
        return self._packing.places(rows, reverse, padded=is_padded)

    def _take(self, a: Ordered, back: bool, rows: slice) -> Array:
        """Return the rows of some whole steps of a direction, in their order."""
        if rows is not self._all:
            return contiguous(self.xp, a.array[self._places(a, back, rows)])
        found = a.array if a.direction is not None else self._packing.from_time(a.array, back)
        found = contiguous(self.xp, found)
        return found if a.direction in (None, back) else self._packing.reverse(found)

    def _write(self, rows: Array, back: bool, to: Ordered) -> None:
        """Write the rows of all steps of a direction."""
        if to.direction is None:
            self._packing.to_time(rows, back, to.array)
        else:
            to.array[...] = rows if to.direction == back else self._packing.reverse(rows)

    def _input(self, layer: LayerPlaces, back: bool, rows: slice) -> Array:
        """Return the input of some whole steps of a direction."""
        parts = [self._take(part, back, rows) for part in layer.x]
        values = parts[0] if len(parts) == 1 else self.xp.concatenate(parts, axis=1)
        if layer.mask is not None:
            values = self._dropped(values, self._take(layer.mask, back, rows), layer.rate)
        return values

    def _dropped(self, values: Array, mask: Array, rate: float) -> Array:
        """Return the values that the mask keeps, scaled, in the dtype of the mask."""
        compute = compute_dtype(mask.dtype)
        return cast(cast(values, compute) * cast(mask, compute) * scale(rate), mask.dtype)

    def _first(self, layer: LayerPlaces) -> Any:
        """Return the states before the first step of each sequence."""
        enter = self._packing.enter
        return each(layer.first, lambda s: enter(contiguous(self.xp, s), layer.back))

    def forward_layer(self, layer: LayerPlaces) -> None:
        """Compute one direction of a layer."""
        xp, packing, back, saved = self.xp, self._packing, layer.back, layer.saved
        if layer.x is not self._values[0]:
            self._values = layer.x, self._input(layer, False, self._all)
        x = packing.reverse(self._values[1]) if back else self._values[1]
        first, cell, (*others, h) = self._first(layer), layer.weights, saved
        keeps = isinstance(saved, Checkpoints)
        arrays = [h.array] if keeps else [*others, h.array]
        found, is_in_order = arrays, h.direction == back
        if not is_in_order:
            found = [xp.empty((packing.rows, a.shape[1]), self.dtype) for a in arrays]
        if keeps:
            memory = self._of_a_piece(cell, saved, saved.columns[:-1])
            states = recompute.forward(xp, cell, Layer(x, first, packing, saved), memory, found[0])
        else:
            states = _layer.forward(xp, cell, Layer(x, first, packing, saved._make(found)))
        if not is_in_order:
            for rows, a in zip(found, arrays, strict=True):
                packing.to_time(rows, back, a)
        if layer.output is not None:
            self._write(found[-1], back, layer.output)
        for to, state in zip(layer.last, states, strict=True):
            if to is not None:
                to[...] = packing.leave(state, back)

    def backward_layer(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """
        Compute the gradient of one direction of a layer.

        If rows move, and there are enough of them, the pieces are computed one by one, so that only
        one piece's copy of the moved rows is in memory.
        """
        xp, packing, back, saved = self.xp, self._packing, layer.back, layer.saved
        (of_output, *others), of_x, n = grads.states, grads.x, packing.rows
        whole = (
            grads.weights.weight_gradients in ("examples", "norms")
            or not self._moves
            or n <= products_of(xp).ROWS
        )
        x: Any
        dy: Any = of_output
        if whole:
            x, dx = self._input(layer, back, self._all), self._space(grads, back, self._all)
            if dy is not None:
                dy = self._take(of_output, back, self._all)
        else:
            store = partial(self._store, grads, back)
            x = LazyRows(partial(self._input, layer, back), self.dtype, n)
            dx = LazyRows(partial(self._space, grads, back), of_x.array.dtype, n, store)
            if dy is not None:
                dy = LazyRows(partial(self._take, of_output, back), self.dtype, n)
        first = self._first(layer)
        states = [None if g is None else self._take(g, back, self._all) for g in others]
        if not isinstance(saved, Checkpoints):
            saved = self._in_order(saved, back)
        carried = self._carried(first, grads.last, back)
        cut = LayerGradient(
            Layer(x, first, packing, saved),
            first._make([dy, *states]),
            carried,
            grads.weights._replace(x=dx),
        )
        cuts: Iterable[LayerGradient] = [cut]
        if isinstance(saved, Checkpoints):
            memory = self._of_a_piece(layer.weights, saved, saved.columns)
            cuts = recompute.backward(xp, layer.weights, cut, memory)
        elif not whole:
            cuts = recompute.backward(xp, layer.weights, cut)
        for cut in cuts:
            _layer.backward(xp, layer.weights, cut)
        if whole:
            self._store(grads, back, self._all, dx)
        for to, state in zip(grads.first, carried, strict=True):
            if to is not None:
                to[...] = packing.enter_grad(state, back)

    def _in_order(self, saved: Any, back: bool) -> Any:
        """Return saved arrays in the order of a direction's steps."""
        *others, h = saved
        arrays = [*others, h.array]
        if h.direction != back:
            arrays = [self._packing.from_time(a, back) for a in arrays]
        return saved._make(arrays)

    def _space(self, grads: GradientPlaces, back: bool, rows: slice) -> Array:
        """Return memory for the gradient of the input of some whole steps."""
        to, places = grads.x, self._places(grads.x, back, rows)
        if isinstance(places, slice) and not grads.adds_x:
            return to.array[places]
        return self.xp.empty((rows.stop - rows.start, to.shape[1]), to.array.dtype)

    def _store(self, grads: GradientPlaces, back: bool, rows: slice, values: Array) -> None:
        """Store the gradient of the input, or add it."""
        to, places = grads.x, self._places(grads.x, back, rows)
        if grads.adds_x:
            to.array[places] += values
        elif not isinstance(places, slice):  # else it is already there: see `_space`
            to.array[places] = values

    def _carried(self, first: Any, last: Sequence[Any], back: bool) -> Any:
        """Return copies of the gradients of the last states, to be overwritten."""

        def of_state(s: Array | None, g: Any) -> Any:
            if s is None or g is None:
                return s if s is None else self.xp.zeros(s.shape, compute_dtype(s.dtype))
            g = self._packing.leave_grad(contiguous(self.xp, g), back)
            return g.astype(compute_dtype(s.dtype), order="C")

        return first._make(map(of_state, first, last))

    def round(self, a: Ordered, to: Ordered) -> None:
        """Convert computed numbers to the storage type."""
        self._write(cast(a.array, self.dtype), False, to)

    def drop(self, a: Ordered, layer: LayerPlaces, to: Ordered) -> None:
        """Write the gradient of a masked input."""
        kept = self._take(layer.mask, False, self._all)
        to.array[...] = self._dropped(a.array, kept, layer.rate)


def _like(xp: ModuleType, state: Any, dtype: np.dtype[Any]) -> Any:
    """Return memory for a state of all pseudo-layers."""
    if isinstance(state, list):
        return [xp.empty(a.shape, dtype) for a in state]
    return xp.empty(state.shape, dtype)


def _rounded(state: Any, dtype: np.dtype[Any]) -> Any:
    return [cast(a, dtype) for a in state] if isinstance(state, list) else cast(state, dtype)


def _at(states: Any, n: int) -> Any:
    """Return the states of pseudo-layer n."""
    return states._make([None if s is None else s[n] for s in states])


class Stack(NamedTuple):
    """The cells of a net by layer and direction, and the parts of its reserve_space."""

    cells: Sequence[Cell]
    layout: ReserveLayout
    note: Note | None = None  # forward, if the steps leave states only
    again: Sequence[Cell] = ()  # backward, if they left states only: the forward pass's cells

    def _machine(self, xp: ModuleType, dtype: np.dtype[Any]) -> ByLayers:
        """Return the machine that computes the layers."""
        return ByLayers(xp, self.layout.rows, dtype, self.layout.net.D)

    def _saved(self, machine: ByLayers, n: int, saved: Any, output: Ordered | None) -> Any:
        """Return the places of the saved arrays; h may be in the output of the net."""
        (net, _, kind, _, rows, every), d = self.layout, n % self.layout.net.D
        if saved is not None and every is None:
            *others, h = saved
            return kind(*others, Ordered(h, None if rows.saved_in_time(d) else d))
        widths, h = net.widths[n // net.D], output
        if saved is not None and saved.h is not None:
            h = Ordered(saved.h, d)
        elif (h is None or net.D > 1 or h.direction is None) and not self.again:
            h = Ordered(machine.xp.empty((rows.rows, widths[1]), machine.dtype), d)
        if saved is not None:
            return saved._replace(cell=self.again[n] if self.again else None, h=h)
        most = max((block.end - block.row for block in rows.blocks()), default=0)
        return kind(*machine.memory(most, columns_of(kind, *widths)[:-1]), h)

    def _layers(
        self,
        machine: ByLayers,
        inputs: tuple[Array, Any],
        reserves: Sequence[Reserved],
        output: Ordered | None = None,
        last: Any = None,
    ) -> Iterator[list[LayerPlaces]]:
        """Yield the layers; forward, with the places of the output and the last states."""
        (input, first), net, rows = inputs, self.layout.net, self.layout.rows
        rate = self.layout.sizes.dropout
        x, nothing = (machine.padded(input),), (None,) * len(first)
        for layer, reserved in enumerate(reserves):
            mask, P, directions = reserved.mask, net.widths[layer][1], []
            if mask is not None:
                mask = Ordered(mask, None if rows.saved_in_time(0) else 0)
            for d in range(net.D):
                n, to = layer * net.D + d, None
                if output is not None and layer == net.L - 1:
                    to = output.part(d * P, (d + 1) * P, 1)
                saved = self._saved(machine, n, reserved.saved[d], to)
                entered, left = _at(first, n), nothing if last is None else _at(last, n)
                again = None if saved.h is to else to
                directions.append(
                    LayerPlaces(x, d == 1, self.cells[n], entered, saved, left, again, mask, rate)
                )
            yield directions

    def _draw_masks(self, xp: ModuleType, reserves: Sequence[Reserved]) -> None:
        """Fill the masks. Whether a value is dropped does not depend on the lengths."""
        (T, B, _, rate, *seeds), rows = self.layout.sizes, self.layout.rows
        for layer, (mask, _) in enumerate(reserves):
            if mask is not None:
                draw, columns = dropout_of(xp).keep_mask, mask.shape[1]
                keys = key_words(*seeds)
                drawn = draw((T * B, columns), mask.dtype, threshold(rate), keys, layer)
                if not rows.saved_in_time(0):
                    drawn = rows.pack(drawn.reshape(T, B, columns))
                mask[...] = drawn

    def forward(self, xp: ModuleType, input: Array, first: Any) -> tuple[Array, Any, Array]:
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
        layout, note, dtype = self.layout, self.note, input.dtype
        net, sizes = layout.net, layout.sizes
        last = each(first, lambda s: _like(xp, s, dtype))
        output = xp.empty((sizes.T, sizes.B, net.D * net.widths[-1][1]), dtype)
        reserve_space = xp.zeros((), dtype)
        reserves = [Reserved(None, [None] * net.D)] * net.L
        if sizes.is_training:
            # Rows that are not used contain zeros, not what was there before.
            used = layout.rows.saved_rows if layout.every is None else layout.rows.rows
            make = xp.empty if used == sizes.T * sizes.B else xp.zeros
            reserve_space = make(reserve_size(layout), dtype)
            reserves = layout.parts(reserve_space)
            if note is not None:
                reserve_space[layout.size :] = 0  # in some sizes one number more than the note
                write_note(xp, reserve_space, note)
            self._draw_masks(xp, reserves)
        machine = self._machine(xp, dtype)
        to = machine.padded(output)
        _walk.forward(machine, self._layers(machine, (input, first), reserves, to, last))
        return output, last, reserve_space

    def backward(
        self,
        xp: ModuleType,
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
        (input, first), layout, dtype = inputs, self.layout, inputs[0].dtype
        D, P = layout.net.D, layout.net.widths[-1][1]
        (reserve_space,) = cast_all(dtype, reserve_space)
        machine, reserves = self._machine(xp, dtype), layout.parts(contiguous(xp, reserve_space))
        input_grad = machine.input_gradient(input)
        of_first = each(first, lambda s: _like(xp, s, compute_dtype(dtype)))
        of_output = None if output_grad is None else machine.padded(output_grad)
        x, nothing, places = machine.padded(input_grad), (None,) * (len(first) - 1), []
        for n, grad in enumerate(grads):
            d = n % D
            h = of_output and of_output.part(d * P, (d + 1) * P, 1)
            states, last, entering = (h, *nothing), _at(last_grad, n), _at(of_first, n)
            places.append(GradientPlaces(states, last, entering, x, grad))
        layers = list(self._layers(machine, inputs, reserves))
        by_layer = [places[n : n + D] for n in range(0, len(places), D)]
        _walk.backward(machine, machine, layers, by_layer)
        return input_grad, each(of_first, lambda s: _rounded(s, dtype))


class Padded(NamedTuple):
    """The inputs of a block op, and the states that a gradient reads."""

    x: Array  # [T, B, I]
    first: Any  # the states before the first step, [B, ·]
    saved: Checkpoints  # with the forward pass's cell
    extent: Extent


def ready(xp: ModuleType, dtype: np.dtype[Any], inputs: Padded, cotangents: Any) -> tuple[Any, Any]:
    """
    Return the arguments of a gradient in the dtype of the call and in C order.

    Arrays without a tangent get one of zero.
    """

    def change(a: Array) -> Array:
        return contiguous(xp, *cast_all(dtype, a))

    x, first, saved, _ = inputs
    saved = saved._replace(states=each(saved.states, change))
    inputs = inputs._replace(x=change(x), first=each(first, change), saved=saved)
    return inputs, each(cotangents, change)


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


def backward(
    xp: ModuleType, cell: Cell, padded: Padded, cotangents: Any, grads: Gradients
) -> tuple[Array, Any]:
    """
    Return the gradients of x and of the first states of a block op, from its states.

    Parameters
    ----------
    cotangents : [T, B, ·]
        The gradients of each step's states; each may be None.
    grads
        Written, but x.
    """
    x, first, saved, extent = padded
    dtype, compute = x.dtype, compute_dtype(x.dtype)
    T, B, _ = x.shape
    machine, H = ByLayers(xp, Packing(xp, T, B, *extent), dtype), first.h.shape[1]
    saved = saved._replace(columns=columns_of(cell.Saved, H, H))
    x_grad = machine.input_gradient(x)
    of_first = each(first, lambda s: xp.empty(s.shape, compute))
    states = each(cotangents, machine.padded)
    of_x = machine.padded(x_grad)
    places = GradientPlaces(states, (None,) * len(first), of_first, of_x, grads)
    layer = LayerPlaces((machine.padded(x),), False, cell, first, saved, (None,) * len(first))
    _walk.backward(machine, machine, [[layer]], [[places]])
    return x_grad, each(of_first, lambda s: cast(s, dtype))
