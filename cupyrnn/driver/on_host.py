"""
A call on the host as a list of operations of NumPy and compiled loops, over arrays at fixed places.

A layer is one call of a compiled loop. On the host a new array is cheaper than a view, so every new
place is an array of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from .._typing import Array, Arrays, NamedTuple
from ..arithmetic.dropout import keep_mask, scale, threshold
from ..arithmetic.products import matmul
from ..checks.arrays import NotInPlace
from ..compiled import gru, gru_reset_after, lstm, simple_rnn
from ..compiled.addresses import At
from ..compiled.call import compute
from ..compiled.plan import HostCell, Plan, Shapes, Spec
from ..compiled.single import CompiledStep, StepSizes
from . import layer as _layer
from .net import Cells, GradientPlaces, LayerPlaces
from .places import Place, Table
from .signatures import Arguments

CELLS = Cells(lstm.in_place, gru.in_place, gru_reset_after.in_place, simple_rnn.in_place)

# The most steps of a call that is laid out. In longer calls a layout saves too little.
_MOST_STEPS = 4096
# The most rows for which inference has memory for all saved arrays.
_MOST_ROWS = 1024


class New(NamedTuple):
    """A new array of a call."""

    shape: tuple[int, ...]
    zeros: bool
    copied: int | None = None  # the number of the array that it is a copy of
    exchanged: bool = False  # whether the copy exchanges the first two axes


class HostTable(Table):
    """
    The arrays of a call on the host.

    Weights may be matrices in Fortran order. Of other arrays that are not in C order, or not
    aligned, a call makes copies.
    """

    def __init__(self, arguments: Arguments, matrices: set[int]) -> None:
        self._matrices = matrices
        self.copied: list[int] = []
        self.new: list[New] = []
        super().__init__(arguments)

    def _argument(self, n: int, a: Array) -> Place:
        flags = a.flags
        in_order = flags.c_contiguous or (flags.f_contiguous and n in self._matrices)
        if in_order and flags.aligned:
            return super()._argument(n, a)
        self.copied.append(n)
        return self._whole(n, a.shape, self.dtype)

    def take(
        self, allocation: str, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None
    ) -> Place:
        """Return the place of a new array."""
        self.new.append(New(shape, zeros=False))
        return self._whole(self.inputs + len(self.new) - 1, shape, self.dtype)

    def begin(self, place: Place, value: Place | None) -> None:
        n = place.array - self.inputs
        if value is None:
            self.new[n] = self.new[n]._replace(zeros=True)
        else:
            assert value.offset == place.offset, (value, place)
            self.new[n] = self.new[n]._replace(copied=value.array)


class OnHost:
    """
    The operations of a call in NumPy and in compiled loops.

    `in_time` says that the saved arrays of a layer that runs backwards are in the order of time.
    """

    def __init__(
        self, table: HostTable, cell: HostCell, steps: tuple[int, int], *, in_time: bool
    ) -> None:
        self._table, self._cell, (T, B), self._in_time = table, cell, steps, in_time
        self._T, self._B = T, B
        self._starts = (np.arange(T + 1, dtype=np.int64) * B).tobytes()
        self.operations: list[Callable[[Arrays], Any]] = []

    def zeros(self, count: int) -> list[Place]:
        """Return the places of scalars that are zero."""
        places = [self._table.take("zeros", ()) for _ in range(count)]
        for place in places:
            self._table.begin(place, None)
        return places

    def clear(self, a: Place) -> None:
        """Initialize the new array of a place with zeros."""
        self._table.begin(a, None)

    def exchange(self, a: Place, to: Place) -> None:
        """Add an operation that writes `a` with its first two axes exchanged to `to`."""
        n = to.array - self._table.inputs
        if a.array < self._table.inputs:  # an argument is copied when the new array is made
            new = self._table.new[n]
            self._table.new[n] = new._replace(copied=a.array, exchanged=True)
            return
        shape, strides = ((n[1], n[0], n[2]) for n in (a.shape, a.strides))
        read, write = view_of(a._replace(shape=shape, strides=strides)), view_of(to)
        self.operations.append(lambda arrays: np.copyto(write(arrays), read(arrays)))

    def _copy(self, a: Place, to: Place, *, backwards: bool, adds: bool = False) -> None:
        """Add to = a, or to += a; the steps of either may be in reverse order."""
        read, write = view_of(self._by_step(a, backwards)), view_of(self._by_step(to, False))

        def copy(arrays: Arrays) -> None:
            np.copyto(write(arrays), read(arrays))

        def add(arrays: Arrays) -> None:
            found = write(arrays)
            with np.errstate(all="ignore"):
                np.add(found, read(arrays), found)

        self.operations.append(add if adds else copy)

    def _by_step(self, rows: Place, backwards: bool) -> Place:
        """Return rows [T*B, K] as [T, B, K], with the steps in reverse order if `backwards`."""
        (row, column), T = rows.strides, self._T
        step = self._B * row
        shape, strides = (T, self._B, rows.shape[1]), (-step if backwards else step, row, column)
        offset = rows.offset + (T - 1) * step if backwards else rows.offset
        return rows._replace(offset=offset, shape=shape, strides=strides)

    def _is_reversed(self, layer: LayerPlaces) -> bool:
        """Return whether a layer reads its input, and saves arrays, in reverse order."""
        return layer.back and not self._in_time

    def _input_of(self, layer: LayerPlaces) -> Place:
        """Return the input of a layer, in the order of its steps."""
        # Saved arrays are in the order of the steps.
        backwards = [layer.back] if len(layer.x) == 1 else [False, True]
        part: Place = layer.x[0]
        source: Any = self._table.arguments.get("x", self._table.arguments.get("input"))
        if part.array == source.array:
            backwards = [False]
        in_order = self._T == 1 and len(backwards) == 1
        if layer.mask is None and (in_order or backwards == [self._is_reversed(layer)]):
            return part
        ends = [0, *accumulate(part.shape[1] for part in layer.x)]
        x = self._table.reuse("x", (part.shape[0], ends[-1]))
        for part, is_reversed, columns in zip(layer.x, backwards, pairwise(ends), strict=True):
            self._copy(part, x.part(*columns, 1), backwards=is_reversed != layer.back)
        if layer.mask is not None:  # in the order of the first direction's steps
            self._keep(x, layer, backwards=layer.back and len(backwards) > 1)
        return x

    def draw(self, mask: Place, layer: int, rate: float, *, reverse: bool) -> None:
        """Add an operation that draws the mask of a layer's input, in the order of steps."""
        by_step, (N, K), below = self._by_step(mask, reverse), mask.shape, threshold(rate)
        write = view_of(by_step)

        def draw(arrays: Any) -> None:
            drawn = keep_mask((N, K), mask.dtype, below, arrays[-1], layer)
            np.copyto(write(arrays), drawn.reshape(by_step.shape))

        self.operations.append(draw)
        self._table.draws = True

    def drop(self, a: Place, layer: LayerPlaces, to: Place) -> None:
        """Add an operation that writes the gradient of a masked input to `to`."""
        assert a is to, (a, to)  # no dtype here is rounded
        self._keep(to, layer, backwards=layer.back)

    def _keep(self, rows: Place, layer: LayerPlaces, *, backwards: bool) -> None:
        """Add an operation that keeps the scaled values of a mask, whose steps may be reversed."""
        factor = scale(layer.rate)

        def keep(mask: Array, values: Array) -> None:
            np.multiply(values, mask, values)
            np.multiply(values, factor, values)

        self._compute(keep, self._by_step(layer.mask, backwards), self._by_step(rows, False))

    def _first(self, place: Place | None, H: int) -> Place:
        """Return a state before the first step."""
        if place is None:
            place = self._table.reuse("zeros", (self._B, H))
            self._table.begin(place, None)
        return place

    def _in_one_loop(self, layer: LayerPlaces, direction: str) -> bool:
        """Return True for the loop over all steps, False for the loop of a single step."""
        (w_x, w_h, _), dtype = layer.weights, self._table.dtype
        size, in_order = sum(w.size for w in (*w_x, *w_h)), w_x[0].strides[1] == dtype.itemsize
        whole = _layer.pays(size, self._T * self._B, direction, self._T == 1, in_order)
        if not whole and self._T > 1:
            raise NotInPlace("a step with these matrices is faster")
        return whole

    def _spec(self, vectors: dict[str, Place | None], H: int, entry: str) -> tuple[Spec, list[Any]]:
        """Return the spec of the cell with vectors by name, and the arrays of its formulas."""
        if not self._cell.takes(None, self._table.dtype, entry):
            raise NotInPlace("no loop of the cell is compiled")
        found = {name: place for name, place in vectors.items() if place is not None}
        if "b_more" in found:
            b, more, n = found["b"], found["b_more"], self._cell.both * H
            found |= {"b_end": b.part(n, b.size), "b_more_end": more.part(n, more.size)}
        return self._cell.spec_of(found, H, self._table.dtype)

    def _layer(
        self, layer: LayerPlaces, vectors: dict[str, Place | None], back: tuple[Any, ...] = (),
        grads: Sequence[Place] = (), sums: Sequence[list[Place]] = (),
    ) -> Callable[[Arrays], Any]:  # fmt: skip
        """Return the compiled call of a layer or, with `back`, of its gradient."""
        x, (w_x, w_h, _), saved = self._input_of(layer), layer.weights, layer.saved
        last, output = layer.last, layer.output
        (N, I), H, weights = x.shape, saved[-1].shape[1], (*w_x, *w_h)
        h, *c = [self._first(place, H) for place in layer.first]
        more = None if back else vectors.get("b_more")
        spec, arrays = self._spec(vectors, H, "backward_layer" if back else "forward_layer")
        first_c, (last_h, last_c) = (*c, None)[0], (*last, None)[:2]
        of_steps = dx, _, _, h_grad, c_grad, totals = (*back, *[None] * 6)[:6]
        wide = h_grad if back else output
        there = first_c, last_h, output, dx, h_grad, c_grad, totals
        shapes = Shapes(
            bool(back), False, N, N * sum(w.size for w in weights), I, H, self._starts,
            len(saved), len(saved) + len(arrays), _oriented(weights), _oriented(grads),
            tuple(a is not None for a in there), 0 if totals is None else totals.size // H,
            tuple(map(len, sums)), 0 if more is None else self._cell.both,
            None if wide is None else wide.strides[0], self._is_reversed(layer),
            layer.back and self._in_time,
        )  # fmt: skip
        places = h, first_c, last_h, last_c, output, more, *of_steps
        arrays = [x, *places, *saved, *arrays, *weights, *grads, *chain(*sums)]
        plan_for = functools.partial(Plan, spec, shapes, places=[*map(_at, arrays)])
        if shapes.is_small:
            return plan_for(1).run
        return functools.partial(compute, shapes, functools.cache(plan_for))

    def _step(
        self, layer: LayerPlaces, spec: Spec, vectors: Sequence[Any], x: Place | None,
        back: tuple[Any, ...] = (None, None, None), deltas: Sequence[Place] = (),
    ) -> None:  # fmt: skip
        """
        Add the compiled call of a single step.

        `x` is its input or, backward, the gradient of its input. `back` are the carried
        gradients, and the gradients of peephole weights.
        """
        weights: tuple[Any, ...]
        weights, saved, totals = (*layer.weights.w_x, *layer.weights.w_h), layer.saved, back[2]
        (_, H), (_, P), I = saved[0].shape, saved[-1].shape, 0 if x is None else x.shape[1]
        widths = (P, H)[: len(layer.first)]
        h, *c = map(self._first, layer.first, widths)
        if deltas:
            saved = saved[: len(spec.formulas.saved)]
        lie: tuple[Any, ...] = _oriented(weights)
        if not weights:  # the gradient ends at the deltas
            weights = lie = (None,) * (len(spec.layout.inputs) + 1)
        places = tuple((n % len(deltas), 0) for n in range(len(weights)) if deltas)
        sizes = StepSizes(
            self._B, I, P, len(saved), len(vectors), lie, places, tuple(d.shape[1] for d in deltas),
            bool(deltas) and x is not None, 0 if totals is None else totals.size // H,
        )  # fmt: skip
        arrays = [x, h, (*c, None)[0], *back, *saved, *vectors, *weights, *deltas]
        self.operations.append(CompiledStep(spec, sizes, [*map(_at, arrays)]).run)

    def forward_layer(self, layer: LayerPlaces) -> None:
        """Add the operations of a layer."""
        vectors, saved = layer.weights.vectors, layer.saved
        if self._in_one_loop(layer, "forward"):
            self.operations.append(self._layer(layer, vectors))
            return
        H, b, more = saved[0].shape[1], vectors.get("b"), vectors.get("b_more")
        spec, arrays = self._spec(vectors, H, "forward_step")
        if more is not None and b is not None:
            n = self._cell.both * H
            total = self._table.reuse("b", (n,))
            self._compute(np.add, b.part(0, n), more.part(0, n), total)
            arrays = [total if a is b else a for a in arrays]
        self._step(layer, spec, arrays, self._input_of(layer))
        sources = [saved[-1], saved[-1]]
        if spec.formulas.c:
            sources.append(saved[spec.formulas.saved.index(spec.formulas.c)])
        for place, to in zip(sources, (layer.output, *layer.last), strict=True):
            if to is not None:
                self._copy(place, to, backwards=False)

    def backward_layer(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the operations of the gradient of a layer."""
        if not self._in_one_loop(layer, "backward"):
            self._backward_step(layer, grads)
            return
        for place, last in zip(grads.first, grads.last, strict=True):
            self._table.begin(place, last)
        weights, carried, states = grads.weights, (*grads.first, None), (*grads.states, None)
        totals = weights.vectors.get("terms")
        vectors = {name: layer.weights.vectors.get(name) for name in self._cell.read}
        x = grads.x
        if x is not None and (self._is_reversed(layer) or grads.adds_x):
            x = self._table.reuse("dx", x.shape)
        back = x, *carried[:2], *states[:2], totals
        sums = self._sums(layer, weights.vectors)
        of_weights = *weights.w_x, *weights.w_h
        self.operations.append(self._layer(layer, vectors, back, of_weights, sums))
        if grads.x is not None and x is not None and x is not grads.x:
            self._copy(x, grads.x, backwards=layer.back, adds=grads.adds_x)

    def _sums(self, layer: LayerPlaces, vectors: dict[str, Place | None]) -> list[list[Place]]:
        """Return the places for the sums of each of the deltas."""
        spec, _ = self._cell.spec_of({}, layer.saved[-1].shape[1], self._table.dtype)
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
                self._copy(cotangent, to, backwards=False, adds=last is not None)
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
            self._copy(x, grads.x, backwards=False, adds=True)
        return results

    def _backward_step(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the gradient of a single step: up to its gates, then of its weights."""
        deltas, weights = self.backward_gates(layer, grads), grads.weights
        x, h = self._input_of(layer), self._first(layer.first[0], layer.saved[-1].shape[1])
        lefts = [*(x for _ in weights.w_x), *(h for _ in weights.w_h)]
        if self._cell.reset is not None:
            lefts[-1] = self._table.reuse("operand", h.shape)
            self._compute(np.multiply, layer.saved[self._cell.reset], h, lefts[-1])
        for n, (left, to) in enumerate(zip(lefts, (*weights.w_x, *weights.w_h), strict=True)):
            a, b = left.T, deltas[n % len(deltas)]
            if to.strides[0] < to.strides[1]:
                a, b, to = b.T, a.T, to.T
            self._compute(matmul, a, b, to)
        for delta, places in zip(deltas, self._sums(layer, weights.vectors), strict=True):
            for to in places:
                self._compute(lambda rows, sums: rows.sum(0, out=sums), delta, to)

    def _compute(self, function: Callable[..., Any], *places: Place) -> None:
        """Add a function of arrays that writes to the last one."""
        views = [view_of(place) for place in places]

        def compute(arrays: Arrays) -> None:
            with np.errstate(all="ignore"):
                function(*[view(arrays) for view in views])

        self.operations.append(compute)

    def finish(self, returned: Sequence[Place | None], kind: Any, *more: Any) -> HostCall:
        """Return an object that runs these calls; its result is a `kind` of arrays and `more`."""
        return HostCall(self._table, self.operations, (list(returned), kind, more))


def start(
    arguments: Arguments, cell: HostCell, matrices: set[int], *, back: bool, saves: bool
) -> tuple[HostTable, OnHost]:
    """
    Return the table of a call, and the machine that makes its operations.

    Parameters
    ----------
    cell
        The cell of all layers.
    matrices
        The numbers of the arrays that may be in Fortran order.
    back
        Whether the steps run backwards while their saved arrays are in the order of time.
    saves
        Whether the caller gets all saved arrays.
    """
    (T, B), dtype = arguments.steps, arguments.arrays[0].dtype
    pieces = T > _MOST_STEPS or not (saves or T * B <= _MOST_ROWS)
    if dtype.char not in "fd" or pieces:
        raise NotInPlace("the layers compute it in pieces, or by copies")
    table = HostTable(arguments, matrices)
    if table.sequences is not None:
        raise NotInPlace("sequences differ in length")
    return table, OnHost(table, cell, (table.length, B), in_time=back)


def _at(a: Place | Array | None) -> At | Array | None:
    """Return a place as an `At` of the compiled loops."""
    return At(a.array, a.offset) if isinstance(a, Place) else a


def _oriented(matrices: Sequence[Place]) -> tuple[tuple[bool, int], ...]:
    """Return whether matrices are transposed in memory, and their strides in bytes."""
    found = []
    for w in matrices:
        rows, columns = w.strides
        found.append((False, rows) if columns == w.itemsize else (True, columns))
    return tuple(found)


def view_of(place: Place) -> Callable[[Arrays], Array]:
    """Return a function that makes the view of a place."""
    array, offset, shape, strides, dtype = place
    return lambda arrays: np.ndarray(shape, dtype, arrays[array], offset, strides)


def _key(place: Place, shape: tuple[int, ...]) -> Any:
    """Return the index of a place in its array, of this shape; None for the whole."""
    if place.shape == shape:
        return None
    if place.shape == shape[1:]:
        return place.offset // (place.size * place.itemsize)
    assert len(shape) == len(place.shape) == 1, (place, shape)
    start = place.offset // place.itemsize
    return slice(start, start + place.size)


class HostCall:
    """Runs the calls of a signature."""

    def __init__(
        self, table: HostTable, operations: list[Callable[[Arrays], Any]], results: Any
    ) -> None:
        self._operations, self._copied, self.draws = operations, table.copied, table.draws
        self._new = [_maker(new, table.dtype) for new in table.new]
        returned, self.kind, self.more = results
        first = table.inputs
        # Of each result: its array, and its index there, None for the whole.
        self.returned = [
            None if p is None else (p.array, _key(p, table.new[p.array - first].shape))
            for p in returned
        ]
        self._found = [r or (-1, None) for r in self.returned]

    def __call__(self, arrays: Sequence[Any], _: bytes = b"", keys: Sequence[int] = ()) -> Any:
        """Run a call; `keys` are the two words of the key of its masks."""
        found = self.run(arrays, keys)
        return self.kind._make([*found, *[a.copy() for a in self.more]] if self.more else found)

    def run(self, arrays: Sequence[Any], keys: Sequence[int] = ()) -> list[Any]:
        """Run a call; return the arrays of its results."""
        bound: Any = [*arrays]
        for n in self._copied:
            bound[n] = bound[n].copy()
        for make, shape, dtype in self._new:
            bound.append(make(shape, dtype) if dtype is not None else make(bound[shape]))
        bound.append(keys)
        for operation in self._operations:
            operation(bound)
        bound[-1] = None
        return [bound[n] if key is None else bound[n][key] for n, key in self._found]


def _exchanged(a: Array) -> Array:
    return a.swapaxes(0, 1).copy()


def _maker(new: New, dtype: np.dtype[Any]) -> tuple[Any, Any, np.dtype[Any] | None]:
    """Return a function that makes a new array, from a shape and a dtype or from an array."""
    if new.copied is not None:
        return _exchanged if new.exchanged else np.ndarray.copy, new.copied, None
    return (np.zeros if new.zeros else np.empty), new.shape, dtype
