"""
The compiled calls of layers and of single steps, over the places of a call on the host.

A layer is one call of a compiled loop. Its plan is made when the call is recorded, unless it
depends on the call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from .._typing import Array
from ..checks.arrays import NotRecordable
from ..compiled import gru, gru_reset_after, lstm, simple_rnn
from ..compiled.addresses import At
from ..compiled.host_cell import HostCell
from ..compiled.plan import Plan, Shapes, Spec, compute, is_small
from ..compiled.rows import RowMove, RowMoves, are_compiled
from ..compiled.single import CompiledStep, StepSizes
from . import pages
from .host_call import Bound, HostTable, Operation, order_of
from .net import Cells, Kept, LayerPlaces
from .on_host import OnHost
from .packing import Packing
from .places import Place

# The most steps of a plan that is kept.
_MOST_STEPS = 4096

_CELLS = Cells(
    lstm.in_place, gru.in_place, gru_reset_after.in_place, simple_rnn.in_place,
    lambda page, attributes: page and page.in_place(attributes),
)  # fmt: skip


class Loops(OnHost):
    """Makes compiled calls of layers and of single steps."""

    def __init__(
        self, table: HostTable, net: Any, steps: tuple[int, int], *, in_time: bool, saves: str
    ) -> None:
        super().__init__(table, net, steps, in_time=in_time, saves=saves)
        self._cell: HostCell = net.cell(_CELLS)
        if table.rounds and self._cell is None:
            raise NotRecordable("the cell computes operands in halves")
        if self._packs and not are_compiled(table.dtype):
            raise NotRecordable("no move of rows is compiled")
        # Resets make at most T*B sequences, one row of the first step for each.
        rows = self._T * self._B
        starts = np.arange(self._T + 1, dtype=np.int64) * (rows if self._has_resets else self._B)
        self._starts = np.minimum(starts, rows).tobytes()
        self._rounds = table.rounds
        self._place_of_starts: Place | None = None

    def _in_one_loop(self, layer: LayerPlaces, direction: str) -> bool:
        """Return whether one loop over all steps is faster than NumPy's steps."""
        (w_x, w_h, *_), dtype = layer.weights, self._table.dtype
        if not w_h or (self._rounds and self._is_step):
            return False
        size = sum(w.size for w in (*w_x, *w_h))
        in_order = bool(w_x) and w_x[0].strides[1] == dtype.itemsize
        return pages.pays(size, self._T * self._B, direction, self._T == 1, in_order)

    def _skips(self, layer: LayerPlaces) -> Sequence[None]:
        """Return one None for the matrix of x, where x is added to every gate."""
        return () if layer.weights.w_x else (None,)

    def _spec(
        self, vectors: dict[str, Place | None], H: int, entry: str, kept: Kept | None = None
    ) -> tuple[Spec, list[Any]]:
        """
        Return the spec of the cell with vectors by name, and the arrays of its formulas.

        With `kept` it is the cell whose steps kept states.
        """
        cell = self._cell
        if not cell.is_compiled(self._table.dtype, entry):
            raise NotRecordable("no loop of the cell is compiled")
        if kept is not None and kept.attributes is not None:
            cell = self._net._replace(attributes=kept.attributes).cell(_CELLS)
        found = {name: place for name, place in vectors.items() if place is not None}
        if "b_more" in found:
            b, more, n = found["b"], found["b_more"], cell.both * H
            found |= {"b_end": b.part(n, b.size), "b_more_end": more.part(n, more.size)}
        return cell.spec_of(found, H, self._table.dtype)

    def _layer(
        self, layer: LayerPlaces, vectors: dict[str, Place | None], back: tuple[Any, ...] = (),
        grads: Sequence[Place | None] = (), sums: Sequence[list[Place]] = (),
        *, writes_deltas: bool = False, in_pieces: bool = False,
    ) -> Operation:  # fmt: skip
        """
        Return the compiled call of a layer or, with `back`, of its gradient.

        With `writes_deltas`, `grads` are the gradients of the products. With `in_pieces` every call
        computes some of the steps.
        """
        (x,), (w_x, w_h, *_), saved = layer.x, layer.weights, layer.saved
        last, output = layer.last, layer.output
        (N, I), (_, H), (_, P) = x.shape, saved[0].shape, saved[-1].shape
        h, *c = map(self._first, layer.first, (P, H))
        more = None if back else vectors.get("b_more")
        entry = "backward_layer" if back else "forward_layer"
        spec, arrays = self._spec(vectors, H, entry, None if back else layer.kept)
        first_c, (last_h, last_c) = (*c, None)[0], (*last, None)[:2]
        of_steps = dx, _, _, h_grad, c_grad, totals = (*back, *[None] * 6)[:6]
        wide = h_grad if back else output
        there = first_c, last_h, output, dx, h_grad, c_grad, totals
        in_place = layer.back and not self._packs
        most, T = saved[0].shape[0], N // self._B
        work = N * sum(w.size for w in (*w_x, *w_h))
        weights = (*self._skips(layer), *w_x, *w_h)
        # Whether a plan serves one call only, or a part of its steps.
        by_call = most < N or T > _MOST_STEPS or (self._packs and not is_small(work))
        by_call |= in_pieces
        steps = b"" if by_call else self._starts[: 8 * (T + 1)]
        shapes = Shapes(
            bool(back), writes_deltas, N, work, I, P, steps,
            len(saved), len(saved) + len(arrays), _oriented(weights), _oriented(grads),
            tuple(a is not None for a in there), 0 if totals is None else totals.size // H,
            tuple(map(len, sums)), 0 if more is None else self._cell.both,
            None if wide is None else wide.strides[0],
            in_place and not self._in_time, in_place and self._in_time,
        )  # fmt: skip
        places = h, first_c, last_h, last_c, output, more, *of_steps
        arrays = [x, *places, *saved, *arrays, *weights, *grads, *chain(*sums)]
        if by_call:
            moves = (
                [(x, False), (saved[-1], False), (output, shapes.is_reversed)] if most < N else []
            )
            return _ByCall(spec, shapes, arrays, (T, self._B, most), moves)
        starts = self._first_rows() if self._packs else None
        arrays.append(starts)
        at = None if starts is None else At(len(arrays))
        plan_for = functools.partial(Plan, spec, shapes, places=[*map(_at, arrays)], starts=at)
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

    def _moves_before(self) -> _Moves:
        """Return the last operation, if it moves rows, or a new one that does."""
        if not (self.operations and isinstance(self.operations[-1], _Moves)):
            self.operations.append(_Moves(self._table))
        moves: Any = self.operations[-1]
        return moves  # type: ignore[no-any-return]

    def _move(
        self, a: Place, order: int | None, to: Place, to_order: int | None, *, adds: bool = False
    ) -> None:
        in_rows = all(p.strides[1] == p.itemsize for p in (a, to))
        if self._packs and in_rows and a.dtype == to.dtype == self._table.dtype:
            self._moves_before().add(a, to, (order, to_order), adds=adds)
        else:
            super()._move(a, order, to, to_order, adds=adds)

    def _move_states(self, move: Callable[..., Array], a: Place, back: bool) -> Place:
        moves = self._moves_before()
        to = moves.make(a)
        moves.add(a, to, (back, *_OF_STATES[move]))
        return to

    def _leave(self, move: Callable[..., Array], a: Place, to: Place, back: bool) -> None:
        self._moves_before().add(a, to, (back, *_OF_STATES[move]))

    def _first_rows(self) -> Place:
        """Return the place of the first row of each step, which an operation writes."""
        if self._place_of_starts is None:
            self._place_of_starts = self._table.hold(1)
            self._moves_before().starts = self._place_of_starts.array, self._T
        return self._place_of_starts


# The arguments of `Packing.index` for the moves of states.
_OF_STATES: dict[Any, tuple[bool, bool]] = {
    Packing.enter: (True, False), Packing.enter_grad: (True, True),
    Packing.leave: (False, True), Packing.leave_grad: (False, False),
}  # fmt: skip


class _Moves:
    """Rows and states in another order: consecutive moves are one compiled call."""

    def __init__(self, table: HostTable) -> None:
        self._table = table
        self._moves: list[RowMove] = []
        self._indices: dict[tuple[Any, ...], int] = {}  # arrays of indices, by what they are of
        self._made: list[tuple[int, Place]] = []  # new arrays of states, and what they are like
        self.starts: tuple[int, int] | None = None  # the array of the first rows of T steps, and T

    def add(self, a: Place, to: Place, of: tuple[Any, ...], *, adds: bool = False) -> None:
        """Add a move, also of several arrays [S, K] in one; `of` are those of `Packing.index`."""
        if of not in self._indices:
            self._indices[of] = self._table.hold(1).array
        index, many = At(self._indices[of]), len(a.shape) > 2
        for n in range(a.shape[0] if many else 1):
            source, target = (p.at(n) if many else p for p in (a, to))
            self._moves.append(RowMove(
                _at(source), source.strides[0], _at(target), target.strides[0], source.shape[1],
                adds, index,
            ))  # fmt: skip

    def make(self, a: Place) -> Place:
        """Return the place of states like `a`, [..., S, K], that the call makes."""
        to = self._table.whole(self._table.hold(a.shape[-1]).array, a.shape)
        self._made.append((to.array, a))
        return to

    @functools.cached_property
    def _compiled(self) -> RowMoves:
        return RowMoves(self._moves, self._table.dtype)

    def __call__(self, arrays: Bound) -> None:
        order = order_of(arrays)
        if self.starts is not None:
            number, T = self.starts
            arrays[number] = order.starts_of(T)
        for of, number in self._indices.items():
            arrays[number] = order.index(*of)
        for number, a in self._made:
            arrays[number] = np.empty((*a.shape[:-2], order.sequences, a.shape[-1]), a.dtype)
        if self._moves:
            self._compiled.run(arrays)


class _ByCall:
    """
    Runs the loop of a layer whose plan depends on the call.

    That is so if threads share sequences of different lengths, and in long calls, whose plans are
    large. If only h is saved of all steps, the steps are computed in parts of `most` rows.

    Parameters
    ----------
    spec, shapes, places
        As for a `Plan`; without rows and starts.
    sizes
        T, B and the most rows of a part.
    moves
        The places that have all rows, if there are several parts, and whether these are in reverse
        order.
    """

    def __init__(
        self, spec: Spec, shapes: Shapes, places: Sequence[Any], sizes: tuple[int, int, int],
        moves: Sequence[tuple[Place | None, bool]],
    ) -> None:  # fmt: skip
        self._spec, self._shapes, (self._T, self._B, self._most) = spec, shapes, sizes
        x, first_h, first_c, last_h, last_c, *others = map(_at, places)
        self._places = x, first_h, first_c, last_h, last_c, *others
        # A part after the first one begins with the states that the part before it wrote.
        again = last_h, None if first_c is None else last_c
        self._later = x, *again, last_h, last_c, *others
        self._moves = [(a.array, a.strides[0], back) for a, back in moves if a is not None]
        self._kept_plan = functools.lru_cache(maxsize=8)(self._plan)

    def _plan(self, shapes: Shapes, is_later: bool, most: int) -> Plan:
        places = self._later if is_later else self._places
        return Plan(self._spec, shapes, most, places)

    def __call__(self, arrays: Bound) -> None:
        """Compute the layer."""
        T, order = self._T, order_of(arrays)
        if order is None:
            starts = np.arange(T + 1) * self._B
        else:
            T = max(1, order.steps)
            starts = order.starts_of(T)
        t0, N, of_rows = 0, int(starts[-1]), self._shapes.work // self._shapes.rows
        while t0 < T:
            t1 = T
            if self._moves:
                enough = np.searchsorted(starts, starts[t0] + self._most, side="right")
                t1 = max(t0 + 1, int(enough) - 1)
            row, end = int(starts[t0]), int(starts[t1])
            shapes = self._shapes._replace(
                rows=end - row, work=(end - row) * of_rows,
                starts=(starts[t0 : t1 + 1] - row).tobytes(),
            )  # fmt: skip
            part = [*arrays]
            for n, stride, back in self._moves:
                start = (N - end if back else row) * stride // arrays[n].itemsize
                part[n] = arrays[n].reshape(-1)[start:]
            plan = self._plan if t1 - t0 > _MOST_STEPS else self._kept_plan
            compute(shapes, functools.partial(plan, shapes, t0 > 0), part)
            t0 = t1


def _at(a: Place | Array | None) -> At | Array | None:
    """Return a place as an `At` of the compiled loops."""
    return At(a.array, a.offset) if isinstance(a, Place) else a


def _oriented(matrices: Sequence[Place | None]) -> tuple[tuple[bool, int] | None, ...]:
    """Return whether matrices are transposed in memory, and their strides in bytes."""
    found: list[tuple[bool, int] | None] = []
    for w in matrices:
        if w is None:
            found.append(None)
            continue
        rows, columns = w.strides
        found.append((False, rows) if columns == w.itemsize else (True, columns))
    return tuple(found)
