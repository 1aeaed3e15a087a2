"""
A call on the host as a list of operations on arrays at fixed places.

A layer is one operation: its cell's steps, with all products.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from .._typing import Array, NamedTuple
from ..cells.block_forms import prepared
from ..cells.contract import Cell, Form, Gradients, OfCell
from ..cells.entries import OfNet
from ..cells.gradients import OfWeights
from ..checks.arrays import NotRecordable, cast, compute_dtype, contiguous
from . import layer as _layer
from . import recompute
from .host_call import NO_ARRAY, Bound, HostTable, order_of
from .host_rows import HostRows
from .layer import Layer, LayerGradient, Steps
from .net import NO_WEIGHTS, Examples, GradientPlaces, Kept, LayerPlaces, Weights
from .packing import Packing
from .pages import products_of
from .places import Place
from .recompute import Checkpoints, Pieced
from .signatures import Arguments

# Up to this number of steps their rows are kept for later calls.
_MOST_KEPT = 4096


class OnHost(HostRows):
    """The operations of a call in NumPy, or of one of CuPy by its cells' steps in CUDA."""

    def forward_layer(self, layer: LayerPlaces) -> None:
        """Add the operations of a layer."""
        back, to, last = int(layer.back), self._read(layer, layer.last), layer.last
        to = to._replace(saved=self._saved(layer))
        if self._packs:  # the states after the last step take the place of the first ones
            last = tuple(a and held for a, held in zip(last, to.first, strict=True))
        self._forward(to._replace(last=last, output=None))
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

    def _reader(self, *groups: _Group) -> Callable[[Bound], list[OfCell]]:
        """
        Return a function that makes groups of views.

        A call with shorter sequences has fewer rows.
        """
        xp, packs = self._xp, self._packs
        places = [a for group in groups for a in group.places]
        ends = [0, *accumulate([len(group.places) for group in groups])]
        makes = [(g.make, slice(*part)) for g, part in zip(groups, pairwise(ends), strict=True)]
        # Whole arrays are read at once. One more number, because of a single one is no tuple.
        whole = operator.itemgetter(*[NO_ARRAY if a is None else a.array for a in places], 0)
        views = [(n, self._table.view(a)) for n, a in enumerate(places) if a is not None]
        views = [(n, view) for n, view in views if not isinstance(view, operator.itemgetter)]
        cut = []
        if packs or (xp is not np and not all(a is None or a.is_whole for a in places)):
            in_rows = [group.of_rows for group in groups for _ in group.places]
            cut = [n for n, a in enumerate(places) if in_rows[n] and a is not None]

        def read(arrays: Bound) -> list[OfCell]:
            found = [*whole(arrays)]
            for n, view in views:
                found[n] = view(arrays)
            rows = order_of(arrays).rows if packs else None
            for n in cut:
                a = found[n][:rows]
                found[n] = a if xp is np else contiguous(xp, a)
            return [make(found[part]) for make, part in makes]

        return read

    def _by_run(self, layer: LayerPlaces, places: Sequence[Place | None]) -> list[Place | None]:
        """Return rows of a layer as the steps of a run [T, B, ·], if NumPy computes all at once."""
        rows, size = self._T * self._B, self._B * layer.saved[0].shape[1]
        is_run = self._xp is np and not self._packs and not self._keeps and self._rows.alike
        at_once = 0 < rows <= products_of(np).ROWS and _layer.steps_at_once(size) >= self._T
        if not (is_run and at_once and self._T > 1):
            return [*places]
        return [None if a is None else self._by_step(a, False) for a in places]

    def _kept(self, layer: LayerPlaces, kept: Kept) -> Callable[[Bound], Checkpoints]:
        """Return what makes the Checkpoints of a layer that keeps states."""
        *states, h = map(self._table.view, layer.saved)
        States, rows_of = self._net.form().States, self._rows_and_form()
        is_shared = layer.saved[0] is layer.saved[-1]

        def checkpoints(arrays: Bound) -> Checkpoints:
            rows, _ = rows_of(arrays)
            n = recompute.count_kept(rows, kept.every)
            found = States._make([view(arrays)[:n] for view in states])
            of_h = found.h if is_shared else h(arrays)[: rows.rows]
            return Checkpoints(kept.every, found, kept.columns, of_h)

        return checkpoints

    def _rows_and_form(self) -> Callable[[Bound], tuple[Any, Any]]:
        """Return what returns a layer's rows and the form of its weights."""
        form_of, whole = self._net.form, not self._keeps
        if self._packs:
            forms = form_of(), form_of(whole)
            return lambda arrays: (rows := order_of(arrays), forms[rows.single])
        rows = self._rows
        form = form_of(whole and rows.single and not self._is_step)
        if rows.steps > _MOST_KEPT:
            return lambda _: (self._new_rows(), form)
        return lambda _: (rows, form)

    def _choice(self, direction: str) -> Callable[[Cell, Layer], Steps]:
        """Return what chooses the code of a layer: once, if all calls have as many rows."""
        choose = functools.partial(_layer.choice, self._xp, direction=direction)
        if self._packs:
            return choose
        chosen: list[Steps] = []

        def once(cell: Cell, layer: Layer) -> Steps:
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

    def start_examples(self, make: Callable[..., OfNet], like: Any, weight_gradients: str) -> Place:
        """
        Add an operation that takes memory for gradients by example, or for norms.

        `make` is `OfPacked` or `of_entries`, of parameters or of weights with the shapes of `like`.
        """
        to, rows_and_form = self._table.hold(1), self._rows_and_form()
        args = self._table.storage, like, weight_gradients, self._B

        def start(arrays: Bound) -> None:
            _, form = rows_and_form(arrays)
            arrays[to.array] = make(self._xp, form, *args)

        self.operations.append(start)
        return to

    def finish_examples(self, memory: Place, returned: Sequence[Place | None]) -> None:
        """Add an operation that converts gradients by example, or norms, to results."""
        numbers = [None if a is None else a.array for a in returned]

        def finish(arrays: Bound) -> None:
            found = arrays[memory.array].finished()
            results = chain(*found) if isinstance(found, list) else [found]
            for n, a in zip(numbers, results, strict=True):
                if n is not None and a is not None:
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
        xp, dtype, B, rounds = self._xp, self._table.dtype, self._B, self._rounds

        def written(_: Bound, form: Form, entry: OfCell) -> Any:
            into = _Written(entry, rounds=rounds)
            grads = OfWeights(xp, form, dtype, into.arrays, "sum", B, into.arrays)
            for total in grads.written.sums or ():
                if total is not None:
                    total[...] = 0
            return grads.written, lambda: into.write(grads.values())

        return [group], written

    def _steps_of(
        self, layer: LayerPlaces, *groups: _Group
    ) -> Callable[[Bound], tuple[Form, Layer, list[OfCell]]]:
        """Return a function that makes the form of a layer, the layer, and groups."""
        form, kept, rows_and_form = self._net.form(), layer.kept, self._rows_and_form()
        x, first = _Group(tuple, layer.x, True), _Group(form.States._make, layer.first)
        saved = _Group(form.Saved._make, self._by_run(layer, layer.saved), True)
        if kept is not None:
            saved, checkpoints_of = _NOTHING, self._kept(layer, kept)
        read = self._reader(x, first, saved, *groups)

        def steps_of(arrays: Bound) -> tuple[Form, Layer, list[OfCell]]:
            rows, form = rows_and_form(arrays)
            (x,), first, saved, *more = read(arrays)
            if kept is not None:
                saved = checkpoints_of(arrays)
            return form, Layer(x, first, rows, saved), more

        return steps_of

    def _cell_of(self) -> Callable[[OfCell, Form, Any], Cell]:
        """Return a function that makes the cell of weights, of a form and attributes."""
        xp, dtype = self._xp, self._table.dtype
        prepares = self._rounds or xp is not np

        def cell_of(entry: OfCell, form: Form, attributes: Any) -> Cell:
            return form.cell(xp, prepared(xp, entry, dtype) if prepares else entry, attributes)

        return cell_of

    def _pieced(self, layer: LayerPlaces, kept: Kept, *, back: bool) -> Callable[[Bound], Pieced]:
        """
        Return a function that makes what computes the pieces of a layer that keeps states.

        With `back` it computes them again.
        """
        form, cell_of, xp = self._net.form(), self._cell_of(), self._xp
        attributes = kept.attributes if back else self._net.attributes
        read = self._reader(self._entry(layer.weights))

        def pieced(arrays: Bound) -> Pieced:
            (entry,) = read(arrays)
            cell = cell_of(entry, form, attributes)
            forward = functools.partial(_layer.forward, xp, cell)
            return Pieced(cell.Saved, cell.states, forward, False)

        return pieced

    def _keep_states(self, layer: LayerPlaces, kept: Kept) -> None:
        """Add the steps of a layer that keeps states."""
        steps_of, xp = self._steps_of(layer), self._xp
        pieced = self._pieced(layer, kept, back=False)
        last = [(k, self._table.view(a)) for k, a in enumerate(layer.last) if a]

        def forward(arrays: Bound) -> None:
            _, steps, _ = steps_of(arrays)
            states = recompute.forward(xp, pieced(arrays), steps)
            for k, view in last:
                view(arrays)[...] = states[k]

        self.operations.append(forward)

    def _forward(self, layer: LayerPlaces) -> None:
        """Add the steps of a layer."""
        if layer.kept is not None:
            self._keep_states(layer, layer.kept)
            return
        steps_of, cell_of = self._steps_of(layer, self._entry(layer.weights)), self._cell_of()
        attributes, choose = self._net.attributes, self._choice("forward")
        last = [(k, self._table.view(a)) for k, a in enumerate(layer.last) if a]

        def forward(arrays: Bound) -> None:
            form, steps, (entry,) = steps_of(arrays)
            cell = cell_of(entry, form, attributes)
            states = choose(cell, steps)(cell, steps)
            for k, view in last:
                view(arrays)[...] = states[k]

        self.operations.append(forward)

    def _backward(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the gradient of the steps of a layer."""
        is_step, make, xp = self._is_step, self._net.form().States._make, self._xp
        groups, written_of = self._written(grads.weights)
        dx, carried = _Group(tuple, [grads.x], True), _Group(make, grads.first)
        states = _NOTHING if is_step else _Group(make, self._by_run(layer, grads.states), True)
        steps_of = self._steps_of(layer, self._entry(layer.weights), states, carried, dx, *groups)
        cell_of, attributes = self._cell_of(), self._net.attributes
        choose, kept, rounds = self._choice("backward"), layer.kept, self._rounds
        pieced = None if kept is None else self._pieced(layer, kept, back=True)

        def backward(arrays: Bound) -> None:
            form, steps, (entry, cotangents, carried, (dx,), *into) = steps_of(arrays)
            cell = cell_of(entry, form, attributes)
            of_states = _Written(carried, rounds=rounds)
            written, write = written_of(arrays, form, *into)
            to, cotangents = written._replace(x=dx), None if is_step else cotangents
            cut = LayerGradient(steps, cotangents, of_states.arrays, to)
            if pieced is None:
                choose(cell, steps)(cell, cut)
            else:
                for piece in recompute.backward(xp, pieced(arrays), cut):
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
        form, rounds = net.form(), self._rounds
        read = self._reader(
            self._entry(layer.weights),
            _Group(form.States._make, first),
            _Group(form.Saved._make, layer.saved),
            _Group(form.States._make, grads.first),
            _Group(_OfGates._make, [*[*deltas, None][:2], grads.x, terms]),
        )

        def backward(arrays: Bound) -> None:
            entry, first, saved, carried, of_gates = read(arrays)
            cell = net.cell_to_gates(prepared(xp, entry, self._table.dtype), H)
            of_states = _Written(carried, rounds=rounds)
            # On a device the operands of products are halves.
            written = _Written(of_gates, 0 if xp is np else len(deltas), rounds=rounds)
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


# Where the gradients of weights that nobody wants are written.
_NO_GRADIENTS = Gradients(None, (), (), weight_gradients="none")


def _do_nothing() -> None:
    """Write no results: they are written with those of all layers."""


class _Group(NamedTuple):
    """Places of arrays, and a function that makes one argument of a layer of them."""

    make: Callable[[Any], OfCell]  # of a list of views
    places: Sequence[Place | None]
    of_rows: bool = False  # whether they have a row for each step of each sequence


_NOTHING = _Group(tuple, ())


class _OfGates(NamedTuple):
    """What the gradient of a step up to its gates writes."""

    delta: Array
    second: Array | None
    x: Array | None
    vectors: Array | None


class _Written:
    """Arrays of results that are computed in another dtype and rounded once, but the first ones."""

    def __init__(self, results: OfCell, first: int = 0, *, rounds: bool) -> None:
        self._results = results
        self.arrays = results
        if rounds:
            self.arrays = results._make([
                a if a is None or n < first else cast(a, compute_dtype(a.dtype))
                for n, a in enumerate(results)
            ])  # fmt: skip

    def write(self, found: OfCell) -> None:
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
