"""
A call on the host whose layers are compiled.

A layer is one call of a compiled loop, where that is faster than NumPy's steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from .._typing import Array
from ..arithmetic import products as _products
from ..cells.contract import each
from ..checks.arrays import NotRecordable, compute_dtype
from . import recompute, weight_gradients
from .host_call import Bound, HostTable, order_of
from .host_rows import assign
from .layer import Layer
from .loops import Loops
from .net import Examples, GradientPlaces, Kept, LayerPlaces
from .on_host import OnHost
from .places import Place
from .signatures import Arguments

# The most pieces of a layer that keeps states.
_MOST_PIECES = 64


# A cell, its deltas, and the part of each product in these.
_Deltas: TypeAlias = "tuple[Any, list[Place], list[Place | None]]"
_NO_DELTAS: _Deltas = None, [], []


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
        whole, vectors, saved = (
            self._in_one_loop(layer, "forward"),
            layer.weights.vectors,
            layer.saved,
        )
        is_step = self._T == 1 and layer.weights.w_x and layer.kept is None
        pieces = self._pieces(layer.kept) if whole else []
        if self._packs or not (pieces or is_step):
            self._expect_no_halves(layer)
            super().forward_layer(layer)
            return
        layer = self._input(layer)
        if layer.kept is not None:
            self._keep_states(layer, layer.kept, pieces)
            return
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

    def _pieces(self, kept: Kept | None) -> list[slice]:
        """Return the steps of the pieces of a layer; none if they are too many."""
        if kept is None:
            return [slice(0, self._T)]
        pieces = recompute.compiled_pieces(self._rows, kept.every)
        return pieces if len(pieces) <= _MOST_PIECES else []

    def _steps(self, a: Any, steps: slice, *, back: bool = False) -> Any:
        """Return the rows of some steps; with `back`, of rows in the reverse order of steps."""
        if a is None:
            return None
        start, stop = (self._T - steps.stop, self._T - steps.start) if back else (
            steps.start, steps.stop
        )  # fmt: skip
        return a.part(start * self._B, stop * self._B)

    def _piece(self, layer: LayerPlaces, kept: Kept, pieces: Sequence[slice], n: int) -> Any:
        """Return a piece of a layer that keeps states, which saves arrays in shared memory."""
        steps, most, B = pieces[n], pieces[0].stop * self._B, self._B
        saved = [
            self._table.reuse(f"saved{k}", (most, width)).part(0, (steps.stop - steps.start) * B)
            for k, width in enumerate(kept.columns)
        ]
        first, row = layer.first, (steps.start // kept.every - 1) * B
        if steps.start > 0:
            first = tuple(a.part(row, row + B) for a in layer.saved[:-1])
        return layer._replace(
            x=(self._steps(layer.x[0], steps),), first=first, saved=tuple(saved),
            output=self._steps(layer.output, steps, back=layer.back),
        )  # fmt: skip

    def _keep_states(self, layer: LayerPlaces, kept: Kept, pieces: Sequence[slice]) -> None:
        """Add the compiled calls of the pieces of a layer, and copies of the states to keep."""
        *states, h = layer.saved
        formulas = self._cell.spec_of({}, kept.columns[0], self._table.dtype)[0].formulas
        places = [-1, *([formulas.saved.index(formulas.c)] if formulas.c else [])]
        for n, steps in enumerate(pieces):
            piece = self._piece(layer, kept, pieces, n)
            saved = [*piece.saved[:-1], self._steps(h, steps)]
            if kept.every == 1:
                for k, to in zip(places, states, strict=True):
                    saved[k] = self._steps(to, steps)
            last = layer.last if steps.stop == self._T else (None,) * len(states)
            piece = piece._replace(saved=tuple(saved), last=last)
            self.operations.append(self._layer(piece, layer.weights.vectors))
            if kept.every > 1:
                self._copy_states(kept.every, steps, [saved[k] for k in places], states)

    def _copy_states(
        self, every: int, steps: slice, states: Sequence[Place], to: Sequence[Place]
    ) -> None:
        """Add an operation that copies the states before every k-th step after `steps.start`."""
        B, first = self._B, steps.start // every
        n = (min(steps.stop, self._T - 1) - steps.start) // every
        copies = []
        for a, kept in zip(states, to, strict=True):
            row, column = a.strides
            taken = a._replace(
                offset=a.offset + (every - 1) * B * row, shape=(n, B, a.shape[1]),
                strides=(every * B * row, row, column),
            )  # fmt: skip
            into = self._by_step(kept.part(first * B, (first + n) * B), False)
            copies.append((self._table.view(taken), self._table.view(into)))

        def copy(arrays: Bound) -> None:
            for read, write in copies:
                write(arrays)[...] = read(arrays)

        if n > 0:
            self.operations.append(copy)

    def _forward(self, layer: LayerPlaces) -> None:
        """Add the steps of a layer, whose rows are in their order."""
        if layer.kept is not None or not self._in_one_loop(layer, "forward"):
            super()._forward(layer)
            return
        self.operations.append(self._layer(layer, layer.weights.vectors))

    def _backward(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the gradient of the steps of a layer, whose rows are in their order."""
        to = grads.weights
        cell, deltas, products = self._deltas_of(layer) if isinstance(to, Examples) else _NO_DELTAS
        loops = layer.kept is None and self._in_one_loop(layer, "backward")
        if not loops or (isinstance(to, Examples) and not deltas):
            super()._backward(layer, grads)
            return
        self._loop_back(layer._replace(back=False), grads, grads.x, products)
        if deltas:
            self._take_examples(layer, to, cell, deltas)

    def _deltas_of(self, layer: LayerPlaces) -> _Deltas:
        """
        Return a cell of zeros, memory for the gradients of the products, and the part of each.

        There is no memory if a loop is not faster, or if its products are in another order.
        """
        is_step = self._T == 1 and (self._in_time or self._packs)
        if is_step or layer.kept is not None or not self._in_one_loop(layer, "backward"):
            return _NO_DELTAS
        (N, _), H, dtype = layer.x[0].shape, layer.saved[0].shape[1], self._table.dtype
        form, zero = self._net.form(self._rows.single), np.zeros((), dtype)
        like = each(layer.weights.entry, lambda a: np.broadcast_to(zero, a.shape))
        cell = form.cell(np, like, self._net.attributes)
        widths, of_sums = [*cell.widths], self._cell.spec_of({}, H, dtype)[0].widths
        if of_sums != widths[: len(of_sums)]:
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
        projects = len(cell.recurrent) > len(cell.inputs)
        if projects or any(layer.weights.vectors.get(name) for name in self._cell.read):
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
        adds: bool = False,
    ) -> None:
        """
        Add the compiled gradient of a layer.

        `x` is where the gradient of its input goes, `products` are those of the gradients of its
        products, if they are wanted instead of those of its weights. With `adds` the gradients of
        its weights are added to their places.
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
            layer, vectors, back, of_products, sums, writes_deltas=bool(products)
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
        whole = self._in_one_loop(layer, "backward")
        (w_x, w_h, *_) = layer.weights
        is_step = self._T == 1 and w_x and len(w_x) == len(w_h)
        pieces = self._pieces(layer.kept) if whole else []
        if layer.kept is not None and not self._in_one_loop(layer, "forward"):
            is_step, pieces = False, []
        in_order = self._packs or isinstance(grads.weights, Examples)
        # Halves are summed in the order of steps.
        in_order |= bool(pieces) and self._rounds and self._in_time and layer.back
        if in_order or not (pieces or is_step):
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
        if layer.kept is None:
            self._loop_back(layer, grads, x)
        else:
            self._recompute(layer, grads, x, pieces)
        if grads.x is not None and x is not None and x is not grads.x:
            self._move(x, int(layer.back), grads.x, 0, adds=grads.adds_x)

    def _recompute(
        self, layer: LayerPlaces, grads: GradientPlaces, x: Place | None, pieces: Sequence[slice]
    ) -> None:
        """Add the gradient of a layer that kept states: its pieces, each computed again first."""
        assert layer.kept is not None, layer
        h, *others = grads.states
        back = layer.back
        # The loops read the gradients of h in the order of time.
        others = [
            None if g is None else self._in_order(f"g{k}", g, self._order(g), int(back))
            for k, g in enumerate(others)
        ]
        for n, steps in reversed([*enumerate(pieces)]):
            piece = self._piece(layer, layer.kept, pieces, n)
            self.operations.append(self._layer(piece, layer.weights.vectors))
            self._round_in_place(*piece.saved)
            states = self._steps(h, steps, back=back), *(self._steps(g, steps) for g in others)
            self._loop_back(
                piece._replace(kept=None), grads._replace(states=states), self._steps(x, steps),
                adds=n < len(pieces) - 1,
            )  # fmt: skip

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
        for delta, places in zip(deltas, self._sums(layer, weights.vectors), strict=True):
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


def _sum_rows(rows: Array, sums: Array) -> None:
    rows.sum(0, out=sums)


def _sum_by_product(rows: Array, sums: Array) -> None:
    """Write sums in the order in which halves have always been summed."""
    sums[...] = 0
    _products.add_column_sums(rows, sums)
