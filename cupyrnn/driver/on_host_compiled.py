"""
A call on the host whose layers are compiled.

A layer is one call of a compiled loop, where that is faster than NumPy's steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from .._typing import Array
from ..arithmetic import products as _products
from ..cells.contract import Gradients, each
from ..checks.arrays import NotRecordable, compute_dtype
from . import pages, recompute, weight_gradients
from .host_call import Bound, HostTable, Operation, order_of
from .host_rows import assign
from .layer import Layer, LayerGradient
from .loops import Loops
from .net import Examples, GradientPlaces, Kept, LayerPlaces
from .on_host import OnHost, _Group
from .packing import Rows
from .places import Place
from .recompute import Pieced
from .signatures import Arguments

# A cell, its deltas, and the part of each product in these.
_Deltas: TypeAlias = "tuple[Any, list[Place], list[Place | None]]"
_NO_DELTAS: _Deltas = None, [], []
# Instead of the arrays of a call that has no padding.
_NO_ARRAYS: Bound = [None, None, None]


class OnHostCompiled(Loops):
    """The operations of a call in compiled loops, and in NumPy."""

    def _input(self, layer: LayerPlaces) -> LayerPlaces:
        """Return a layer whose input a loop can read: of a block op in the order of time."""
        x = layer.x[0] if self._in_time else self._input_of(layer, int(layer.back))
        return layer._replace(x=(x,))

    def _round_in_place(self, *places: Place) -> None:
        """Add operations that round what the next layer reads, as in memory of the storage type."""
        storage = self._table.storage
        for a in places if self._rounds else ():
            self._compute(lambda rows, to: assign(rows.astype(storage), to), a, a)

    def _input_of(self, layer: LayerPlaces, to: int) -> Place:
        x = super()._input_of(layer, to)
        if layer.mask is not None:
            self._round_in_place(x)
        return x

    def forward_layer(self, layer: LayerPlaces) -> None:
        """Add the operations of a layer."""
        self._add_layer(layer)
        if not self._in_time and layer.output is None:
            self._round_in_place(layer.saved[-1])

    def _expect_no_halves(self, layer: LayerPlaces) -> None:
        """Refuse to recompute halves in NumPy, which rounds what it computes again."""
        if self._rounds and layer.kept is not None:
            raise NotRecordable("the computed arrays are rounded")

    def _add_layer(self, layer: LayerPlaces) -> None:
        whole, vectors = self._in_one_loop(layer, "forward"), layer.weights.vectors
        saved, keeps = layer.saved, layer.kept is not None
        if self._packs or keeps or not (whole or (self._T == 1 and layer.weights.w_x)):
            if not whole:
                self._expect_no_halves(layer)
            super().forward_layer(layer)
            return
        layer = self._input(layer)
        if whole:
            self.operations.append(self._layer(layer, vectors))
            return
        H, b, more = saved[0].shape[1], vectors.get("b"), vectors.get("b_more")
        spec, arrays = self._spec(vectors, H, "forward_step")
        if more is not None and b is not None:
            n = self._cell.both * H
            total = self._table.reuse("b", (n,))
            self._compute(np.add, b.part(0, n), more.part(0, n), total)
            arrays = [total if a is b else a for a in arrays]
        self._step(layer, spec, arrays, layer.x[0])
        sources = [saved[-1], saved[-1]]
        if spec.formulas.c:
            sources.append(saved[spec.formulas.saved.index(spec.formulas.c)])
        for place, to in zip(sources, (layer.output, *layer.last), strict=True):
            if to is not None:
                self._move(place, 0, to, 0)

    def _saved_again(self, kept: Kept, h: Place | None = None) -> list[Place]:
        """Return memory for the saved arrays of a layer that keeps states, but perhaps h."""
        rows, columns = self._T * self._B, kept.columns
        found = [
            self._table.reuse(f"saved{k}", (rows, width)) for k, width in enumerate(columns[:-1])
        ]
        return [*found, h or self._table.reuse("saved h", (rows, columns[-1]))]

    def _places_of_states(self, kept: Kept) -> list[int]:
        """Return the numbers of the saved arrays that are states."""
        formulas = self._cell.spec_of({}, kept.columns[0], self._table.dtype)[0].formulas
        return [-1, *([formulas.saved.index(formulas.c)] if formulas.c else [])]

    def _keep_states(self, layer: LayerPlaces, kept: Kept) -> None:
        in_one_loop = self._in_one_loop(layer, "forward")
        if not (in_one_loop and recompute.is_one_piece(self._T * self._B)):
            super()._keep_states(layer, kept)
            return
        (*states, h), numbers = layer.saved, self._places_of_states(kept)
        saved = self._saved_again(kept, h)
        if kept.every == 1:
            for k, to in zip(numbers, states, strict=True):
                saved[k] = to
        whole = layer._replace(back=False, saved=saved, kept=None)
        self.operations.append(self._layer(whole, layer.weights.vectors))
        if kept.every == 1:
            return
        pairs = [
            (self._table.view(saved[k]), self._table.view(to))
            for k, to in zip(numbers, states, strict=True)
        ]
        rows_of, every = self._rows_and_form(), kept.every

        def copy(arrays: Bound) -> None:
            places = recompute.kept_of_all(rows_of(arrays)[0], every)
            for read, write in pairs:
                write(arrays)[: len(places)] = read(arrays)[places]

        self.operations.append(copy)

    def _held(self, a: Any) -> Any:
        """Return the place of an array like `a` that an operation makes; None for None."""
        if a is None:
            return None
        return self._table.whole(self._table.hold(1).array, a.shape)._replace(strides=a.strides)

    def _piece(self, layer: LayerPlaces, kept: Kept) -> tuple[LayerPlaces, list[Place]]:
        """Return a piece of a layer, and the places of its input, first states and saved arrays."""
        rows, table = self._T * self._B, self._table
        x, *first = map(self._held, (layer.x[0], *layer.first))
        saved = [table.whole(table.hold(1).array, (rows, width)) for width in kept.columns]
        piece = layer._replace(
            x=(x,), back=False, first=tuple(first), saved=saved, last=(None,) * len(first)
        )  # fmt: skip
        return piece, [x, *first, *saved]

    def _pieced(self, layer: LayerPlaces, kept: Kept, *, back: bool) -> Callable[[Bound], Pieced]:
        if not self._in_one_loop(layer, "forward"):
            return super()._pieced(layer, kept, back=back)
        form, (piece, places) = self._net.form(), self._piece(layer, kept)
        if not back:  # what is computed again begins with kept states, which are not overwritten
            piece = piece._replace(last=piece.first)
        loop = self._layer(piece, layer.weights.vectors, in_pieces=True)
        of_states = self._places_of_states(kept)
        storage = self._table.storage if self._rounds and back else None

        def pieced(arrays: Bound) -> Pieced:
            def forward(steps: Layer) -> Any:
                values = steps.x, *steps.first, *steps.saved
                loop(_bound(arrays, places, values, steps.packing))
                for a in steps.saved if storage is not None else ():
                    assign(a.astype(storage), a)
                return steps.first

            def states(saved: Any) -> Any:
                return form.States._make([saved[k] for k in of_states])

            return Pieced(form.Saved, states, forward, True)

        return pieced

    def _recompute(self, layer: LayerPlaces, grads: GradientPlaces, kept: Kept) -> None:
        """Add the gradient of a layer that kept states: its pieces, each computed again first."""
        if recompute.is_one_piece(self._T * self._B):
            saved, last = self._saved_again(kept), (None,) * len(layer.first)
            whole = layer._replace(back=False, saved=saved, last=last)
            self.operations.append(self._layer(whole, layer.weights.vectors))
            self._round_in_place(*saved)
            self._backward(whole._replace(kept=None), grads)
            return
        by_example, form = isinstance(grads.weights, Examples), self._net.form()
        piece, places = self._piece(layer, kept)
        states, first = [*map(self._held, grads.states)], [*map(self._held, grads.first)]
        places += [*states, *first, dx := self._held(grads.x)]
        to = grads._replace(states=tuple(states), first=tuple(first), x=dx)
        if self._packs:
            self._first_rows()  # which the loops of other layers read, too
        loops: list[list[Operation]] = []
        # The last piece writes the gradients of weights, to which the others add theirs.
        for adds in (False, True):
            before, self.operations = self.operations, []
            if not by_example:
                self._loop_back(piece, to, dx, adds=adds)
            elif not adds:  # all pieces have one gradient
                self._backward(piece._replace(kept=None), to)
            loops.append(self.operations)
            self.operations = before
        pieced = self._pieced(layer, kept, back=True)
        steps_of = self._steps_of(
            layer, _Group(form.States._make, grads.states, True),
            _Group(form.States._make, grads.first), _Group(tuple, [grads.x], True),
        )  # fmt: skip
        mode = "examples" if by_example else "sum"

        def backward(arrays: Bound) -> None:
            _, steps, (cotangents, carried, (x_grad,)) = steps_of(arrays)
            to = Gradients(x_grad, (), (), weight_gradients=mode)
            cut = LayerGradient(steps, cotangents, carried, to)
            for (x, first, rows, saved), of_states, carried, to in recompute.backward(
                np, pieced(arrays), cut
            ):
                values = x, *first, *saved, *of_states, *carried, to.x
                here = _bound(arrays, places, values, rows)
                for operation in loops[to.adds]:
                    operation(here)

        self.operations.append(backward)

    def _forward(self, layer: LayerPlaces) -> None:
        """Add the steps of a layer, whose rows are in their order."""
        if layer.kept is None and self._in_one_loop(layer, "forward"):
            self.operations.append(self._layer(layer, layer.weights.vectors))
        else:
            super()._forward(layer)

    def _backward(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the gradient of the steps of a layer, whose rows are in their order."""
        to = grads.weights
        cell, deltas, products = self._deltas_of(layer) if isinstance(to, Examples) else _NO_DELTAS
        loops = self._is_whole(layer)
        if not loops or (isinstance(to, Examples) and not deltas):
            super()._backward(layer, grads)
            return
        if layer.kept is not None:
            self._recompute(layer, grads, layer.kept)
            return
        self._loop_back(layer._replace(back=False), grads, grads.x, products)
        if deltas:
            self._take_examples(layer, to, cell, deltas)

    def _is_whole(self, layer: LayerPlaces) -> bool:
        """Return whether the gradient of a layer is compiled and, if needed, its steps again."""
        directions = ("backward",) if layer.kept is None else ("forward", "backward")
        return all(self._in_one_loop(layer, direction) for direction in directions)

    def _rows_and_form(self) -> Callable[[Bound], tuple[Any, Any]]:
        rows_and_form = super()._rows_and_form()
        are_loops = self._T > 1 and pages.always_pays(self._T * self._B, "backward")
        if not (are_loops or self._packs):
            return rows_and_form
        form = self._net.form_of_loops() if are_loops else self._net.form()
        if self._packs:
            return lambda arrays: (order_of(arrays), form)
        return lambda arrays: (rows_and_form(arrays)[0], form)

    def _deltas_of(self, layer: LayerPlaces) -> _Deltas:
        """
        Return a cell of zeros, memory for the gradients of the products, and the part of each.

        There is no memory if a loop is not faster, or if its products are in another order.
        """
        is_step = self._T == 1 and (self._in_time or self._packs)
        if is_step or not self._is_whole(layer):
            return _NO_DELTAS
        (N, _), kept, dtype = layer.x[0].shape, layer.kept, self._table.dtype
        H = layer.saved[0].shape[1] if kept is None else kept.columns[0]
        (_, form), zero = self._rows_and_form()(_NO_ARRAYS), np.zeros((), dtype)
        like = each(layer.weights.entry, lambda a: np.broadcast_to(zero, a.shape))
        cell = form.cell(np, like, self._net.attributes)
        widths, of_loop = [*cell.widths], self._cell.spec_of({}, H, dtype)[0].widths
        if of_loop != widths[: len(of_loop)]:
            return _NO_DELTAS
        deltas = [self._table.reuse(f"deltas{n}", (N, width)) for n, width in enumerate(widths)]
        # Several matrices may have the same: those are written once.
        parts: list[Place] = []
        for weight in (*cell.inputs, *cell.recurrent):
            start, stop, _ = weight.columns.indices(widths[weight.delta])
            parts.append(deltas[weight.delta].part(start, stop, 1))
        return cell, deltas, [None if a in parts[:n] else a for n, a in enumerate(parts)]

    def _take_examples(
        self, layer: LayerPlaces, to: Examples, cell: Any, deltas: Sequence[Place]
    ) -> None:
        """
        Add an operation that computes the gradients of weights by example.

        It reads no weights, and only those saved arrays that multiply a gradient.
        """
        (memory, n), form, view, packs = to, self._net.form(), self._table.view, self._packs
        saved: list[Place | None] = [None] * len(layer.saved)
        has_operands = getattr(cell, "operands", None) is not None and self._cell.reset is None
        if has_operands or any(layer.weights.vectors.get(name) for name in self._cell.read):
            saved = [*layer.saved]
        for k in (-1, self._cell.reset):
            if k is not None:
                saved[k] = layer.saved[k]
        first, rows = [view(a) for a in layer.first if a is not None], self._rows
        views = [None if a is None else view(a) for a in (layer.x[0], *saved, *deltas)]

        def take(arrays: Bound) -> None:
            here = order_of(arrays) if packs else rows
            x, *of_rows = [view and view(arrays)[: here.rows] for view in views]
            before = form.States._make([view(arrays) for view in first])
            after = form.Saved._make(of_rows[: len(saved)])
            step = Layer(x, before, here, after)
            written = arrays[memory.array].written[n]
            weight_gradients.take_rows(np, cell, step, of_rows[len(saved) :], written)

        self.operations.append(take)

    def _loop_back(
        self,
        layer: LayerPlaces,
        grads: GradientPlaces,
        x: Place | None,
        products: Sequence[Place | None] = (),
        *,
        adds: bool | None = None,
    ) -> None:
        """
        Add the compiled gradient of a layer.

        `x` is where the gradient of its input goes, `products` are those of the gradients of its
        products, if they are wanted instead of those of its weights. `adds` says whether the
        gradients of the weights of a piece are added to their places; None if it is no piece.
        """
        weights, carried, states = grads.weights, (*grads.first, None), (*grads.states, None)
        vectors = {name: layer.weights.vectors.get(name) for name in self._cell.read}
        of_vectors = {} if products else weights.vectors
        back = x, *carried[:2], *states[:2], of_vectors.get("terms")
        sums = self._sums(layer, of_vectors)
        matrices = [] if products else [*weights.w_x, *weights.w_h]
        pairs: list[tuple[Place, Place]] = []
        if adds:
            totals = [*matrices, *chain(*sums)]
            matrices = [self._like(f"dw{n}", w) for n, w in enumerate(matrices)]
            sums = [[self._table.reuse(f"sum{n}", a[0].shape)] * len(a) for n, a in enumerate(sums)]
            pairs = list(zip(totals, [*matrices, *chain(*sums)], strict=True))
        of_products = products or [*self._skips(layer), *matrices]
        self.operations.append(self._layer(
            layer, vectors, back, of_products, sums, writes_deltas=bool(products),
            in_pieces=adds is not None,
        ))  # fmt: skip
        for total, part in pairs:
            self._compute(np.add, total, part, total)

    def _like(self, name: str, a: Place) -> Place:
        """Return memory for a matrix, in the order of another one."""
        if a.strides[0] < a.strides[1]:
            return self._table.reuse(name, a.T.shape).T
        return self._table.reuse(name, a.shape)

    def backward_layer(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the operations of the gradient of a layer."""
        self._round_in_place(*[g for g in grads.states if g and g.array in self._table.scratch])
        whole, keeps, (w_x, w_h, *_) = self._is_whole(layer), layer.kept is not None, layer.weights
        is_step = self._T == 1 and w_x and len(w_x) == len(w_h)
        in_order = self._packs or keeps or isinstance(grads.weights, Examples)
        # Halves are summed in the order of steps.
        in_order |= whole and self._rounds and self._in_time and layer.back
        if in_order or not (whole or is_step):
            if not whole:
                self._expect_no_halves(layer)
            super().backward_layer(layer, grads)
            return
        layer = self._input(layer)
        if not whole:
            self._backward_step(layer, grads)
            return
        for place, last in zip(grads.first, grads.last, strict=True):
            self._table.begin(place, last)
        x = grads.x
        if x is not None and (grads.adds_x or (layer.back and not self._in_time)):
            x = self._table.reuse("dx", x.shape)
        self._loop_back(layer, grads, x)
        if grads.x is not None and x is not None and x is not grads.x:
            self._move(x, int(layer.back), grads.x, 0, adds=grads.adds_x)

    def _sums(self, layer: LayerPlaces, vectors: dict[str, Place | None]) -> list[list[Place]]:
        """Return the places for the sums of each of the deltas, if any are wanted."""
        if not vectors:
            return []
        spec, _ = self._cell.spec_of({}, layer.saved[0].shape[1], self._table.dtype)
        found = []
        for names, n in zip(self._cell.sums, spec.widths, strict=True):
            places = [a for name in names if (a := vectors.get(name)) is not None]
            for to in places:
                if to.size > n:  # peephole weights: the loop adds to their gradients
                    self._table.begin(to, None)
            found.append([to.part(0, n) for to in places])
        return found

    def backward_gates(
        self, layer: LayerPlaces, grads: GradientPlaces, deltas: Sequence[Place] = ()
    ) -> list[Place]:
        """
        Add the gradient of a single step up to its gates, and of x if it is wanted.

        Parameters
        ----------
        deltas
            Written: the gradients of the products. Memory to work in by default.

        Returns
        -------
        list of Place
            The deltas.
        """
        H, vectors = layer.saved[-1].shape[1], grads.weights.vectors
        for to, last, cotangent in zip(grads.first, grads.last, grads.states, strict=True):
            if last is not None or cotangent is None:
                self._table.begin(to, last)
            if cotangent is not None:
                self._move(cotangent, 0, to, 0, adds=last is not None)
        read = {name: layer.weights.vectors.get(name) for name in self._cell.read}
        spec, arrays = self._spec(read, H, "backward_step")
        results = [*deltas] or [
            self._table.reuse(f"deltas{n}", (self._B, width)) for n, width in enumerate(spec.widths)
        ]
        x = grads.x
        if x is not None and grads.adds_x:
            x = self._table.reuse("dx", x.shape)
        back = *(*grads.first, None)[:2], vectors.get("terms")
        self._step(layer, spec, arrays, x, back, results)
        if x is not None and grads.x is not None and x is not grads.x:
            self._move(x, 0, grads.x, 0, adds=True)
        return results

    def _backward_step(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the gradient of a single step: up to its gates, then of its weights."""
        deltas, weights = self.backward_gates(layer, grads), grads.weights
        if not weights.w_x:
            return
        x, h = layer.x[0], self._first(layer.first[0], layer.saved[-1].shape[1])
        lefts = [*(x for _ in weights.w_x), *(h for _ in weights.w_h)]
        if self._cell.reset is not None:
            lefts[-1] = self._table.reuse("operand", h.shape)
            self._compute(np.multiply, layer.saved[self._cell.reset], h, lefts[-1])
        for n, (left, to) in enumerate(zip(lefts, (*weights.w_x, *weights.w_h), strict=True)):
            a, b = left.T, deltas[n % len(deltas)]
            if to.strides[0] < to.strides[1]:
                a, b, to = b.T, a.T, to.T
            self._compute(_products.matmul, a, b, to)
        sums = self._sums(layer, weights.vectors)  # none without biases
        for delta, places in zip(deltas, sums, strict=False):
            for to in places:
                self._compute(_sum_by_product if self._rounds else _sum_rows, delta, to)


def start(
    arguments: Arguments, net: Any, matrices: set[int], *, in_time: bool, saves: str
) -> tuple[HostTable, OnHost]:
    """Return the table of a call, and the machine that makes its operations: see `on_host`."""
    arrays = arguments.arrays
    if (
        compute_dtype(arrays[0].dtype).char not in "fd"
        or arguments.length == 0
        or not all(a.size for a in arrays)
    ):
        raise NotRecordable("no loop computes it")
    table = HostTable(arguments, matrices, widens=True)
    return table, OnHostCompiled(table, net, arguments.steps, in_time=in_time, saves=saves)


def _bound(
    arrays: Bound, places: Sequence[Place | None], values: Sequence[Any], rows: Rows
) -> Bound:
    """Return the arrays of a call with those of a piece, whose rows are in their order."""
    found = [*arrays]
    for place, a in zip(places, values, strict=True):
        if place is not None:
            found[place.array] = a
    found[-2] = rows
    return found


def _sum_rows(rows: Array, sums: Array) -> None:
    rows.sum(0, out=sums)


def _sum_by_product(rows: Array, sums: Array) -> None:
    """Write sums in the order in which halves have always been summed."""
    sums[...] = 0
    _products.add_column_sums(rows, sums)
