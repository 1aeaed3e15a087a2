"""
The rows of a call on the host: their places, their order, and operations that move them.

On the host a new array is cheaper than a view, so every new place is an array of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from .._typing import Array
from ..arithmetic.dropout import scale, threshold
from ..checks.arrays import NotRecordable, cast, compute_dtype
from .host_call import Bound, HostCall, HostTable, Operation, data_of, order_of
from .net import LayerPlaces
from .packing import Packing, Rows
from .pages import dropout_of, products_of
from .places import Place
from .reserve import NOTE_SIZE, note_numbers


class HostRows:
    """
    The arrays of a call, and operations that change the order of their rows.

    `in_time` says that the saved arrays of all layers are in the order of time, in block ops, not
    in the order of the layer's steps. The rows of a place are in the order of time (None), or of
    the steps of direction 0 or 1.
    """

    def __init__(
        self, table: HostTable, net: Any, steps: tuple[int, int], *, in_time: bool, saves: str
    ) -> None:
        xp = self._xp = table.xp
        self._table, self._net, (T, B) = table, net, steps
        self._rounds = table.dtype.itemsize == 2
        # On a device masks and all saved arrays but kept states are in the order of time, because
        # kernels can run backwards.
        self._masks_in_time, self._keeps = xp is not np, saves == "states"
        self._in_time = in_time or (self._masks_in_time and not self._keeps)
        self._T, self._B = table.length, B
        self._packs = table.sequences is not None
        self._has_resets = self._packs and table.arguments.get("resets") is not None
        # Without resets one operation moves the states of all layers and directions. The first has
        # the place of moved states by function and array. The second has, for the array of a
        # result, the numbers of the arrays that were moved to it.
        self._moved_states: dict[tuple[Callable[..., Array], int], Place] = {}
        self._left_states: dict[int, set[int]] = {}
        # One step of longer arrays is computed as many steps are.
        whole = self._T == T
        lengths = None if whole else np.full(B, self._T, np.int32)
        self._new_rows = functools.partial(Rows, xp, self._T, B, lengths)
        self._rows = self._new_rows()
        self._is_step = in_time and T == self._T == 1 and not self._packs
        self.operations: list[Operation] = []
        self._in_numpy = False  # whether NumPy computes: its warnings are off then

    def zeros(self, count: int) -> list[Place]:
        """Return the places of scalars that are zero."""
        places = [self._table.take("zeros", ()) for _ in range(count)]
        for place in places:
            self._table.begin(place, None)
        return places

    def rows_at_once(self, rows: int) -> int:
        """Return for how many of the rows inference needs memory for what its steps save."""
        # A block of rows ends with a step; after resets a step may have any number of rows.
        return rows if self._has_resets else min(rows, products_of(self._xp).ROWS + self._B)

    def clear(self, a: Place) -> None:
        """Initialize the new array of a place with zeros."""
        self._table.begin(a, None)

    def round(self, a: Place, to: Place) -> None:
        """Add an operation that converts computed numbers to the storage type."""
        order, to_order = self._order(a), self._order(to)
        if self._packs and order != to_order:
            self._move(a, order, to, to_order)
            return
        self._compute(assign, a, to)

    def exchange(self, a: Place, to: Place) -> None:
        """Add an operation that writes `a` with its first two axes exchanged to `to`."""
        n = to.array - self._table.inputs
        if a.array < self._table.inputs:  # an argument is copied when the new array is made
            new = self._table.new[n]
            assert new is not None, to
            self._table.new[n] = new._replace(copied=a.array, exchanged=True)
            return
        shape, strides = ((n[1], n[0], n[2]) for n in (a.shape, a.strides))
        self._copy(a._replace(shape=shape, strides=strides), to)

    def _by_step(self, rows: Place, backwards: bool) -> Place:
        """Return rows [T*B, K] as [T, B, K], with the steps in reverse order if `backwards`."""
        (row, column), T = rows.strides, rows.shape[0] // (self._B or 1)
        backwards = backwards and T > 1
        step = self._B * row
        shape, strides = (T, self._B, rows.shape[1]), (-step if backwards else step, row, column)
        offset = rows.offset + (T - 1) * step if backwards else rows.offset
        return rows._replace(offset=offset, shape=shape, strides=strides)

    def _moves(self, order: int | None, to: int | None) -> bool:
        """Return whether rows in two orders are in different places."""
        return order != to if self._packs else self._T > 1 and (order or 0) != (to or 0)

    def _move(
        self, a: Place, order: int | None, to: Place, to_order: int | None, *, adds: bool = False
    ) -> None:
        """Add an operation that writes rows in another order, or adds them."""
        if not self._packs:
            is_reversed = (order or 0) != (to_order or 0)
            a, to = self._by_step(a, is_reversed), self._by_step(to, False)
            if adds:
                self._compute(_add_to, a, to)
            else:
                self._copy(a, to)
            return
        read, write = self._table.view(a), self._table.view(to)

        def move(arrays: Bound) -> None:
            order_of(arrays).move(read(arrays), order, write(arrays), to_order, adds=adds)

        self.operations.append(move)

    def _in_order(self, name: str, a: Place, order: int | None, to: int) -> Place:
        """Return rows in another order: a place that operations with this name share."""
        if not self._moves(order, to):
            return a
        found = self._table.reuse(name, a.shape, a.dtype)
        self._move(a, order, found, to)
        return found

    def _order(self, a: Place) -> int | None:
        """Return the order of rows between layers: of an argument's or a result's None."""
        return 0 if a.array in self._table.scratch else None

    def _orders_of_input(self, layer: LayerPlaces) -> list[int | None]:
        """Return the order of each part of a layer's input."""
        source: Any = self._table.arguments.get("x", self._table.arguments.get("input"))
        if layer.x[0].array == source.array:
            return [None]
        if self._in_time:
            return [None] * len(layer.x)
        return [int(layer.back)] if len(layer.x) == 1 else [0, 1]

    def _input_of(self, layer: LayerPlaces, to: int) -> Place:
        """Return the input of a layer, its rows in an order."""
        orders = self._orders_of_input(layer)
        if layer.mask is None and len(orders) == 1:
            return self._in_order("x", layer.x[0], orders[0], to)
        ends = [0, *accumulate(part.shape[1] for part in layer.x)]
        x = self._table.reuse("x", (layer.x[0].shape[0], ends[-1]))
        for part, order, columns in zip(layer.x, orders, pairwise(ends), strict=True):
            self._move(part, order, x.part(*columns, 1), to)
        if layer.mask is not None:
            self._keep(x, x, to, layer)
        return x

    def draw(self, mask: Place, layer: int, rate: float, *, reverse: bool) -> None:
        """Add an operation that draws the mask of a layer's input, in the order of steps."""
        (N, K), below, keep_mask = mask.shape, threshold(rate), dropout_of(self._xp).keep_mask
        in_time = self._masks_in_time
        moves, reverse = self._packs and not in_time, reverse and not in_time
        by_step = mask if moves else self._by_step(mask, reverse)
        write = self._table.view(by_step)

        def draw(arrays: Bound) -> None:
            drawn, to = keep_mask((N, K), mask.dtype, below, arrays[-1], layer), write(arrays)
            if moves:
                order_of(arrays).move(drawn, None, to, int(reverse))
            else:
                to[...] = drawn.reshape(by_step.shape)

        self.operations.append(draw)
        self._table.draws = True

    def drop(self, a: Place, layer: LayerPlaces, to: Place) -> None:
        """Add an operation that writes the gradient of a masked input to `to`."""
        self._keep(a, to, 0, layer)

    def _keep(self, rows: Place, to: Place, order: int, layer: LayerPlaces) -> None:
        """Add an operation that keeps the scaled values of a mask, rounded once."""
        xp, factor, mask = self._xp, scale(layer.rate), layer.mask
        of_mask = None if self._masks_in_time else int(layer.back) if len(layer.x) == 1 else 0
        if self._packs:
            mask = self._in_order("mask", mask, of_mask, order)
        else:
            mask = self._by_step(mask, (of_mask or 0) != order)
            rows, to = self._by_step(rows, False), self._by_step(to, False)
        compute = compute_dtype(mask.dtype)

        def keep(mask: Array, values: Array, to: Array) -> None:
            if xp is np and to.dtype == compute:
                np.multiply(values, mask, to)
                np.multiply(to, factor, to)
            else:
                to[...] = cast(values, compute) * cast(mask, compute) * factor

        self._compute(keep, mask, rows, to)

    def _first(self, place: Place | None, H: int) -> Place:
        """Return a state before the first step."""
        if place is None:
            place = self._table.reuse("zeros", (self._B, H))
            self._table.begin(place, None)
        return place

    def _entering(self, states: Sequence[Place], back: bool) -> list[Place]:
        """Return the states before the first step of the rows of a layer."""
        if not self._packs:
            return [*states]
        return [self._moved(Packing.enter, a, back) for a in states]

    def _all_states(self, a: Place) -> tuple[Place, int] | None:
        """Return the states of all layers and directions, and the number of `a` among them."""
        shape = self._table.shape_of(a.array)
        if self._has_resets or shape is None or len(shape) < 3 or len(a.shape) != 2 or not a.size:
            return None
        whole = self._table.whole(a.array, shape)
        n = a.offset // whole.strides[0]
        return (whole, n) if whole.at(n) == a else None

    def _moved(self, move: Callable[..., Array], a: Place, back: bool) -> Place:
        """Return the place of states that are moved between sequences and rows."""
        if not self._has_resets and self._table.is_zero(a):
            to = self._table.take("work", a.shape)
            self._table.begin(to, None)
            return to
        # Without resets all layers and directions have one order of sequences.
        if (found := self._all_states(a)) is None:
            return self._move_states(move, a, back)
        whole, n = found
        if (move, whole.array) not in self._moved_states:
            number = self._move_states(move, whole, back).array
            self._moved_states[move, whole.array] = self._table.whole(number, whole.shape)
        return self._moved_states[move, whole.array].at(n)

    def _move_states(self, move: Callable[..., Array], a: Place, back: bool) -> Place:
        """Add an operation that moves states between sequences and rows; return their place."""
        to, read = self._table.hold(a.shape[1]), self._table.view(a)

        def moved(arrays: Bound) -> None:
            states = read(arrays)
            found = move(order_of(arrays), states, back)
            arrays[to.array] = found.copy() if found is states else found

        self.operations.append(moved)
        return to

    def _left(self, move: Callable[..., Array], a: Place, to: Place, back: bool) -> None:
        """Add an operation that moves states of rows to those of sequences."""
        source = next((p for p in self._moved_states.values() if p.array == a.array), None)
        found = self._all_states(to)
        if source is not None and found is not None and source.shape == found[0].shape:
            # They leave together, after the last layer.
            numbers = self._left_states.setdefault(to.array, set())
            numbers.add(found[1])
            assert source.at(found[1]) == a, (source, a)
            if len(numbers) < source.shape[0]:
                return
            a, to = source, found[0]
        self._leave(move, a, to, back)

    def _leave(self, move: Callable[..., Array], a: Place, to: Place, back: bool) -> None:
        """Add the operation of `_left`."""
        read, write = self._table.view(a), self._table.view(to)

        def left(arrays: Bound) -> None:
            write(arrays)[...] = move(order_of(arrays), read(arrays), back)

        self.operations.append(left)

    def _read(self, layer: LayerPlaces, like: Sequence[Place | None]) -> LayerPlaces:
        """
        Return a layer whose input and first states are in the order of its steps.

        Missing states are `like` other places; without them, like h and the first saved array.
        """
        back, others = int(layer.back), [layer.saved[0]] * (len(like) - 1)
        places = zip(like, [layer.saved[-1], *others], strict=True)
        widths = [(a or b).shape[1] for a, b in places]
        first = [self._first(a, n) for a, n in zip(layer.first, widths, strict=True)]
        x = (self._input_of(layer, back),) if layer.x else ()
        return layer._replace(x=x, first=tuple(self._entering(first, layer.back)))

    def _saved(self, layer: LayerPlaces) -> list[Place]:
        """Return places for saved arrays in the order of the layer's steps."""
        if not (self._in_time and self._moves(None, int(layer.back))):
            return [*layer.saved]
        reuse = self._table.reuse
        return [reuse(f"s{k}", a.shape, a.dtype) for k, a in enumerate(layer.saved)]

    def write_note(self, reserve: Place, size: int, note_of: Any) -> None:
        """Add an operation that writes the note of kept states behind `size` numbers."""
        view, note = self._table.view(reserve), self._note(note_of)

        def write(arrays: Bound) -> None:
            space = view(arrays)
            space[size:] = 0  # in some sizes one number more than the note
            space[-NOTE_SIZE:] = note(arrays)

        self.operations.append(write)

    def expect_note(self, reserve: Place, note_of: Any) -> None:
        """Add an operation that looks for the note of kept states."""
        view, note = self._table.view(reserve), self._note(note_of)

        def expect(arrays: Bound) -> None:
            if not (view(arrays)[-NOTE_SIZE:] == note(arrays)).all():
                raise NotRecordable("reserve_space is of another call")

        self.operations.append(expect)

    def _note(self, note_of: Any) -> Callable[[Bound], Array]:
        """Return what returns the numbers of the note of a call."""
        xp, dtype = self._xp, self._table.dtype

        def numbers(*sequences: Any) -> Array:
            return xp.asarray(note_numbers(note_of(*sequences)).astype(dtype))

        read = self._table.lengths_and_resets
        if read is None:
            known = numbers()
            return lambda _: known
        return lambda arrays: numbers(*read(data_of(arrays)))

    def _compute(self, function: Callable[..., Any], *places: Place) -> None:
        """Add a function of arrays that writes to the last one."""
        self._in_numpy = True
        self._add(function, *places)

    def _copy(self, a: Place, to: Place) -> None:
        """Add a copy, which warns of nothing."""
        self._add(assign, a, to)

    def _add(self, function: Callable[..., Any], *places: Place) -> None:
        views = [self._table.view(place) for place in places]
        if len(views) == 2:  # a list of them takes longer
            read, write = views
            self.operations.append(lambda arrays: function(read(arrays), write(arrays)))
            return
        self.operations.append(lambda arrays: function(*[view(arrays) for view in views]))

    def finish(self, returned: Sequence[Place | None], kind: Any, *more: Any) -> HostCall:
        """Return an object that runs these calls; its result is a `kind` of arrays and `more`."""
        results = list(returned), kind, more
        in_numpy = self._in_numpy and self._xp is np
        return HostCall(self._table, self.operations, results, in_numpy=in_numpy)


def assign(a: Array, to: Array) -> None:
    """Copy an array, converted."""
    to[...] = a


def _add_to(a: Array, to: Array) -> None:
    to += a
