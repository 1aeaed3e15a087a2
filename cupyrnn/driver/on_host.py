"""
A call on the host as a list of operations on arrays at fixed places.

A layer is one operation: its cell's steps, with all products. On the host a new array is cheaper
than a view, so every new place is an array of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from .._typing import Array, Arrays, NamedTuple
from ..arithmetic.dropout import scale, threshold
from ..cells.block_forms import prepared
from ..cells.contract import Cell, Form, Gradients
from ..cells.entries import OfNet
from ..cells.gradients import OfWeights
from ..checks.arrays import NotRecordable, cast, compute_dtype, contiguous
from . import layer as _layer
from . import recompute
from .host_call import HostCall, HostTable, data_of, order_of
from .layer import Layer, LayerGradient
from .net import NO_WEIGHTS, Examples, GradientPlaces, Kept, LayerPlaces, Weights
from .packing import Packing, Rows
from .pages import dropout_of, products_of
from .places import Place
from .recompute import Checkpoints
from .reserve import NOTE_SIZE, note_numbers
from .signatures import Arguments

# Up to this number of steps their rows are kept for later calls.
_MOST_KEPT = 4096


class OnHost:
    """
    The operations of a call in NumPy.

    `in_time` says that the saved arrays of all layers are in the order of time, in block ops, not
    in the order of the layer's steps. The rows of a place are in the order of time (None), or of
    the steps of direction 0 or 1.
    """

    def __init__(
        self, table: HostTable, net: Any, steps: tuple[int, int], *, in_time: bool, saves: str
    ) -> None:
        xp = self._xp = table.xp
        self._table, self._net, (T, B) = table, net, steps
        # On a device masks and all saved arrays but kept states are in the order of time, because
        # kernels can run backwards.
        self._masks_in_time, self._keeps = xp is not np, saves == "states"
        self._in_time = in_time or (self._masks_in_time and not self._keeps)
        self._T, self._B = table.length, B
        self._packs = table.sequences is not None
        # One step of longer arrays is computed as many steps are.
        whole = self._T == T
        lengths = None if whole else np.full(B, self._T, np.int32)
        self._new_rows = functools.partial(Rows, xp, self._T, B, lengths)
        self._rows = self._new_rows()
        self._is_step = in_time and T == self._T == 1 and not self._packs
        self.operations: list[Callable[[Arrays], Any]] = []
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
        resets = self._packs and self._table.arguments.get("resets") is not None
        return rows if resets else min(rows, products_of(self._xp).ROWS + self._B)

    def clear(self, a: Place) -> None:
        """Initialize the new array of a place with zeros."""
        self._table.begin(a, None)

    def round(self, a: Place, to: Place) -> None:
        """Add an operation that converts computed numbers to the storage type."""
        order, to_order = self._order(a), self._order(to)
        if self._packs and order != to_order:
            self._move(a, order, to, to_order)
            return
        self._compute(_assign, a, to)

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

        def move(arrays: Arrays) -> None:
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

        def draw(arrays: Any) -> None:
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

    def _moved(self, move: Callable[..., Array], a: Place, back: bool) -> Place:
        """Add an operation that moves states between sequences and rows; return their place."""
        to, read = self._table.hold(a.shape[1]), self._table.view(a)

        def moved(arrays: Any) -> None:
            states = read(arrays)
            found = move(order_of(arrays), states, back)
            arrays[to.array] = found.copy() if found is states else found

        self.operations.append(moved)
        return to

    def _left(self, move: Callable[..., Array], a: Place, to: Place, back: bool) -> None:
        """Add an operation that moves states of rows to those of sequences."""
        read, write = self._table.view(a), self._table.view(to)

        def left(arrays: Any) -> None:
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

    def forward_layer(self, layer: LayerPlaces) -> None:
        """Add the operations of a layer."""
        back, to, last = int(layer.back), self._read(layer, layer.last), layer.last
        to = to._replace(saved=self._saved(layer))
        if self._packs:  # the states after the last step take the place of the first ones
            last = tuple(a and held for a, held in zip(last, to.first, strict=True))
        self._forward(to._replace(last=last))
        if self._in_time:
            for a, place in zip(to.saved, layer.saved, strict=True):
                # In inference all but h may have the rows of the largest block.
                if a is not place and a.shape[0] == to.saved[-1].shape[0]:
                    self._move(a, back, place, None)
        if layer.output is not None:
            self._move(to.saved[-1], back, layer.output, None)
        for held, to_last in zip(last, layer.last, strict=True):
            if self._packs and held is not None and to_last is not None:
                self._left(Packing.leave, held, to_last, layer.back)

    def backward_layer(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the operations of the gradient of a layer."""
        back, reuse = int(layer.back), self._table.reuse
        to, saved = self._read(layer, grads.first), self._saved(layer)
        for a, place in zip(saved, layer.saved, strict=True):
            if a is not place:
                self._move(place, None, a, back)
        states = [
            None if g is None else self._in_order(f"g{k}", g, self._order(g), back)
            for k, g in enumerate(grads.states)
        ]
        first = self._begin(grads, layer.back)
        x, moves_x = grads.x, False
        if x is not None:
            moves_x = grads.adds_x or self._moves(back, self._order(x))
            x = reuse("dx", x.shape, x.dtype) if moves_x else x
        self._backward(
            to._replace(saved=saved), grads._replace(states=tuple(states), x=x, first=first)
        )
        if moves_x:
            self._move(x, back, grads.x, self._order(grads.x), adds=grads.adds_x)
        if self._packs:
            for a, place in zip(first, grads.first, strict=True):
                self._left(Packing.enter_grad, a, place, layer.back)

    def _begin(self, grads: GradientPlaces, back: bool) -> tuple[Place, ...]:
        """Return the places of the carried gradients, which are those of the last states."""
        if self._packs:
            found = []
            for last, to in zip(grads.last, grads.first, strict=True):
                if last is None:
                    last = self._table.reuse("zeros", to.shape)
                    self._table.begin(last, None)
                found.append(self._moved(Packing.leave_grad, last, back))
            return tuple(found)
        for to, last, state in zip(grads.first, grads.last, grads.states, strict=True):
            if self._is_step and state is not None:  # a block op's step carries its gradient
                self._copy(state, to)
            else:
                self._table.begin(to, last)
        return grads.first

    def _reader(self, *groups: _Group) -> Callable[[Arrays], list[Any]]:
        """
        Return a function that makes groups of views.

        A call with shorter sequences has fewer rows.
        """
        xp, view, packs, ends = self._xp, self._table.view, self._packs, [0]
        ends += accumulate([len(group.places) for group in groups])
        parts = [(group.make, slice(*p)) for group, p in zip(groups, pairwise(ends), strict=True)]
        places = [a for group in groups for a in group.places]
        views = [None if a is None else view(a) for a in places]
        in_rows = [group.of_rows for group in groups for _ in group.places]
        cuts = packs or (xp is not np and not all(a is None or a.is_whole for a in places))

        def read(arrays: Arrays) -> list[Any]:
            found = [None if view is None else view(arrays) for view in views]
            if cuts:
                n = order_of(arrays).rows if packs else None
                found = [
                    contiguous(xp, a[:n]) if is_cut and a is not None else a
                    for a, is_cut in zip(found, in_rows, strict=True)
                ]
            return [make(found[part]) for make, part in parts]

        return read

    def _kept(self, layer: LayerPlaces, kept: Kept) -> Callable[[Arrays], Checkpoints]:
        """Return what makes the Checkpoints of a layer that keeps states."""
        *states, h = map(self._table.view, layer.saved)
        States, rows_of = self._net.form().States, self._rows_and_form()
        is_shared = layer.saved[0] is layer.saved[-1]

        def checkpoints(arrays: Arrays) -> Checkpoints:
            rows, _ = rows_of(arrays)
            n = recompute.count_kept(rows, kept.every)
            found = States._make([view(arrays)[:n] for view in states])
            of_h = found.h if is_shared else h(arrays)[: rows.rows]
            return Checkpoints(kept.every, found, None, kept.columns, of_h)

        return checkpoints

    def write_note(self, reserve: Place, size: int, note_of: Any) -> None:
        """Add an operation that writes the note of kept states behind `size` numbers."""
        view, note = self._table.view(reserve), self._note(note_of)

        def write(arrays: Arrays) -> None:
            space = view(arrays)
            space[size:] = 0  # in some sizes one number more than the note
            space[-NOTE_SIZE:] = note(arrays)

        self.operations.append(write)

    def expect_note(self, reserve: Place, note_of: Any) -> None:
        """Add an operation that looks for the note of kept states."""
        view, note = self._table.view(reserve), self._note(note_of)

        def expect(arrays: Arrays) -> None:
            if not (view(arrays)[-NOTE_SIZE:] == note(arrays)).all():
                raise NotRecordable("reserve_space is of another call")

        self.operations.append(expect)

    def _note(self, note_of: Any) -> Callable[[Arrays], Array]:
        """Return what returns the numbers of the note of a call."""
        xp, dtype = self._xp, self._table.dtype

        def numbers(*sequences: Any) -> Array:
            return xp.asarray(note_numbers(note_of(*sequences)).astype(dtype))

        read = self._table.lengths_and_resets
        if read is None:
            known = numbers()
            return lambda _: known
        return lambda arrays: numbers(*read(data_of(arrays)))

    def _rows_and_form(self) -> Callable[[Arrays], tuple[Any, Any]]:
        """Return what returns a layer's rows and the form of its weights."""
        form_of, whole = self._net.form, not self._keeps
        if self._packs:
            return lambda arrays: (rows := order_of(arrays), form_of(whole and rows.single))
        rows = self._rows
        form = form_of(whole and rows.single and not self._is_step)
        if rows.steps > _MOST_KEPT:
            return lambda _: (self._new_rows(), form)
        return lambda _: (rows, form)

    def _choice(self, direction: str) -> Callable[[Cell, Layer], Callable[..., Any]]:
        """Return what chooses the code of a layer: once, if all calls have as many rows."""
        whole = not self._is_step
        choose = functools.partial(_layer.choice, self._xp, direction=direction, whole=whole)
        if self._packs:
            return choose
        chosen: list[Callable[..., Any]] = []

        def once(cell: Cell, layer: Layer) -> Callable[..., Any]:
            if not chosen:
                chosen.append(choose(cell, layer))
            return chosen[0]

        return once

    def _entry(self, weights: Weights) -> _Group:
        """Return the weights of a layer, as its form has them."""
        self._in_numpy = True
        if weights.entry is None:
            raise NotRecordable("its weights are not those of an op")
        return _Group(type(weights.entry)._make, weights.entry)

    def _prepared(self, entry: Any) -> Any:
        """Return weights in the dtypes that their form needs."""
        dtype, xp = self._table.dtype, self._xp
        return prepared(xp, entry, dtype) if dtype.itemsize == 2 or xp is not np else entry

    def start_examples(self, make: Callable[..., OfNet], like: Any, weight_gradients: str) -> Place:
        """
        Add an operation that takes memory for gradients by example, or for norms.

        `make` is `OfPacked` or `of_entries`, of parameters or of weights with the shapes of `like`.
        """
        to, rows_and_form = self._table.hold(1), self._rows_and_form()
        args = self._table.storage, like, weight_gradients, self._B

        def start(arrays: Any) -> None:
            _, form = rows_and_form(arrays)
            arrays[to.array] = make(self._xp, form, *args)

        self.operations.append(start)
        return to

    def finish_examples(self, memory: Place, returned: Sequence[Place | None]) -> None:
        """Add an operation that converts gradients by example, or norms, to results."""
        numbers = [None if a is None else a.array for a in returned]

        def finish(arrays: Any) -> None:
            found = arrays[memory.array].finished()
            results = chain(*found) if isinstance(found, list) else [found]
            for n, a in zip(numbers, results, strict=True):
                if a is not None:
                    arrays[n] = a

        self._in_numpy = True
        self.operations.append(finish)

    def _written(self, weights: Weights | Examples) -> tuple[list[_Group], Callable[..., Any]]:
        """
        Return the places of the gradients of weights, and a function of their views.

        The function returns where gradients are written, and a function to call afterwards.
        """
        if isinstance(weights, Examples):
            memory, n = weights
            return [], lambda arrays, _: (arrays[memory.array].written[n], _do_nothing)
        if weights == NO_WEIGHTS:
            return [], lambda *_: (_NO_GRADIENTS, _do_nothing)
        sums, group = weights.vectors.get("sums"), self._entry(weights)
        if sums is not None and sums.size > weights.w_h[0].shape[1]:
            self._table.begin(sums, None)  # unused peepholes
        xp, dtype, B = self._xp, self._table.dtype, self._B

        def written(_: Any, form: Form, entry: Any) -> Any:
            into = _Written(entry)
            grads = OfWeights(xp, form, dtype, into.arrays, "sum", B, into.arrays)
            for total in grads.written.sums or ():
                if total is not None:
                    total[...] = 0
            return grads.written, lambda: into.write(grads.values())

        return [group], written

    def _layer_of(
        self, layer: LayerPlaces, *groups: _Group, back: bool = False
    ) -> Callable[[Any], Any]:
        """Return a function that makes the form and the cell of a layer, the layer, and groups."""
        form, kept, rows_and_form = self._net.form(), layer.kept, self._rows_and_form()
        x, first = _Group(tuple, layer.x, True), _Group(form.States._make, layer.first)
        saved = _Group(form.Saved._make, layer.saved, True)
        if kept is not None:
            saved, checkpoints_of = _Group(tuple, ()), self._kept(layer, kept)
        read = self._reader(self._entry(layer.weights), x, first, saved, *groups)
        xp, attributes = self._xp, self._net.attributes

        def layer_of(arrays: Any) -> tuple[Form, Cell, Layer, list[Any]]:
            rows, form = rows_and_form(arrays)
            entry, (x,), first, saved, *more = read(arrays)
            entry = self._prepared(entry)
            if kept is not None:
                again = form.cell(xp, entry, kept.attributes) if back else None
                saved = checkpoints_of(arrays)._replace(cell=again)
            cell = form.cell(xp, entry, attributes)
            return form, cell, Layer(x, first, rows, saved), more

        return layer_of

    def _forward(self, layer: LayerPlaces) -> None:
        """Add the steps of a layer."""
        packs, layer_of, xp, kept = self._packs, self._layer_of(layer), self._xp, layer.kept
        choose = self._choice("forward")
        last = [(k, a.array, self._table.view(a)) for k, a in enumerate(layer.last) if a]

        def forward(arrays: Any) -> None:
            _, cell, steps, _ = layer_of(arrays)
            if kept is None:
                states = choose(cell, steps)(cell, steps)
            else:
                states = recompute.forward(xp, cell, steps, steps.saved.h)
            for k, n, view in last:
                if packs:
                    arrays[n] = states[k]
                else:
                    view(arrays)[...] = states[k]

        self.operations.append(forward)

    def _backward(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the gradient of the steps of a layer."""
        is_step, make, xp = self._is_step, self._net.form().States._make, self._xp
        groups, written_of = self._written(grads.weights)
        dx, carried = _Group(tuple, [grads.x], True), _Group(make, grads.first)
        states = _Group(tuple, ()) if is_step else _Group(make, grads.states, True)
        layer_of = self._layer_of(layer, states, carried, dx, *groups, back=True)
        choose, kept = self._choice("backward"), layer.kept

        def backward(arrays: Any) -> None:
            form, cell, steps, (cotangents, carried, (dx,), *into) = layer_of(arrays)
            of_states, (written, write) = _Written(carried), written_of(arrays, form, *into)
            to, cotangents = written._replace(x=dx), None if is_step else cotangents
            cut = LayerGradient(steps, cotangents, of_states.arrays, to)
            if kept is None:
                choose(cell, steps)(cell, cut)
            else:
                for piece in recompute.backward(xp, cell, cut):
                    _layer.backward(xp, cell, piece)
            write()
            of_states.write(of_states.arrays)

        self.operations.append(backward)

    def backward_gates(
        self, layer: LayerPlaces, grads: GradientPlaces, deltas: Sequence[Place] = ()
    ) -> Any:
        """
        Add the gradient of a single step up to its gates, and of x if it is wanted.

        `deltas` are written: the gradients of the products.
        """
        net, xp, terms = self._net, self._xp, grads.weights.vectors.get("terms")
        choose = self._choice("backward")
        H = layer.saved[0].shape[1]
        first = [self._first(a, H) for a in layer.first]
        for to, state in zip(grads.first, grads.states, strict=True):
            self._table.begin(to, state)
        form = net.form()
        read = self._reader(
            self._entry(layer.weights),
            _Group(form.States._make, first),
            _Group(form.Saved._make, layer.saved),
            _Group(form.States._make, grads.first),
            _Group(_OfGates._make, [*[*deltas, None][:2], grads.x, terms]),
        )

        def backward(arrays: Any) -> None:
            entry, first, saved, carried, of_gates = read(arrays)
            cell = net.cell_to_gates(self._prepared(entry), H)
            of_states = _Written(carried)
            # On a device the operands of products are halves.
            written = _Written(of_gates, 0 if xp is np else len(deltas))
            *found, x, vectors = written.arrays
            if vectors is not None:
                vectors[...] = 0
            to = Gradients(x, found[: len(deltas)], None, vectors, "deltas")
            step = Layer(first[-1], first, self._rows, saved)
            cut = LayerGradient(step, None, of_states.arrays, to)
            choose(cell, step)(cell, cut)
            written.write(written.arrays)
            of_states.write(of_states.arrays)

        self.operations.append(backward)

    def _compute(self, function: Callable[..., Any], *places: Place) -> None:
        """Add a function of arrays that writes to the last one."""
        self._in_numpy = True
        self._add(function, *places)

    def _copy(self, a: Place, to: Place) -> None:
        """Add a copy, which warns of nothing."""
        self._add(_assign, a, to)

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


def _assign(a: Array, to: Array) -> None:
    to[...] = a


def _add_to(a: Array, to: Array) -> None:
    to += a


# Where the gradients of weights that nobody wants are written.
_NO_GRADIENTS = Gradients(None, (), (), weight_gradients="none")


def _do_nothing() -> None:
    """Write no results: they are written with those of all layers."""


class _Group(NamedTuple):
    """Places of arrays, and a function that makes one argument of a layer of them."""

    make: Callable[[Any], Any]  # of a list of views
    places: Sequence[Place | None]
    of_rows: bool = False  # whether they have a row for each step of each sequence


class _OfGates(NamedTuple):
    """What the gradient of a step up to its gates writes."""

    delta: Array
    second: Array | None
    x: Array | None
    vectors: Array | None


class _Written:
    """Arrays of results that are computed in another dtype and rounded once, but the first ones."""

    def __init__(self, results: Any, first: int = 0) -> None:
        self._results = results
        self.arrays = results
        if [a for a in results if a is not None and a.dtype.itemsize == 2]:
            self.arrays = results._make([
                a if a is None or n < first else cast(a, compute_dtype(a.dtype))
                for n, a in enumerate(results)
            ])  # fmt: skip

    def write(self, found: Any) -> None:
        """Write the results, where they are other arrays."""
        for to, a in zip(self._results, found, strict=True):
            if a is not to and to is not None:
                to[...] = a


def start(
    arguments: Arguments, net: Any, matrices: set[int], *, in_time: bool, saves: str
) -> tuple[HostTable, OnHost]:
    """
    Return the table of a call, and the machine that makes its operations.

    Parameters
    ----------
    net
        The layer of a block op, or a net.
    matrices
        The numbers of the arrays that may be in Fortran order.
    in_time
        Whether the saved arrays are in the order of time.
    saves
        "all" if the caller gets all saved arrays, "states" for some of these, "h" for h alone.
    """
    table = HostTable(arguments, matrices)
    return table, OnHost(table, net, arguments.steps, in_time=in_time, saves=saves)
