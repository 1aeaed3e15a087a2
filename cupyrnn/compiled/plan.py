"""
The plan of a layer's calls of one signature: threads, memory, and the words of its loop.

========== =================================================== ==============================
Stage      Contents                                            Made
========== =================================================== ==============================
GateLayout the columns of gates and biases in a cell's arrays  with its Spec
Spec       a cell of one size, dtype and variant               once for each of these
Shapes     the signature of a call: shapes, memory order       in each call
Plan       threads, memory, words of the calls of a signature  once for each number of threads
========== =================================================== ==============================
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array
from . import threads
from .addresses import BYTE, MEMORY, OWN_WORDS, At, Memory, WordBlock, address_of
from .cache import compiled
from .formulas import CellCode
from .frame import MAKES_H, Frame, Matrix, all_steps, all_steps_back
from .products import PANEL_BYTES, memory_of_transposed
from .simd import VECTOR_BYTES


class Partition(NamedTuple):
    """The rows or units of each thread."""

    threads: int
    by_units: bool
    splits: list[int]


# The least work for a second thread, in multiplications; the least rows per thread: with fewer,
# threads share the units; the bytes of a matrix that does not fit a core's cache.
_LEAST_WORK, _LEAST_ROWS, _LARGE_MATRIX = 8_000_000, 2, 3 << 20
# Threads that share units wait for each other after each forward step, for 1 to 2 µs. Below this
# size of the matrix, in bytes, a second thread saves less than that.
_SMALL_MATRIX = 1 << 19


def is_small(work: int) -> bool:
    """Return whether so many multiplications are too few for a second thread."""
    return work < _LEAST_WORK


def share(
    batches: Any, H: int, recurrent_bytes: int, size: int, all_units: bool, most: int
) -> Partition:
    """
    Divide the rows or the units of a layer among threads.

    Parameters
    ----------
    batches
        The number of rows of each step.
    recurrent_bytes
        The size of the recurrent matrix.
    all_units
        Whether each thread must compute all units of its rows.
    most
        The number of available threads.
    """
    B, groups = int(batches[0]), -(-H * size // PANEL_BYTES)
    by_rows = min(most, B // _LEAST_ROWS) if B >= 2 * _LEAST_ROWS else 1
    by_units = 1 if all_units else min(most, groups)
    if by_units > 1 and (by_units > by_rows or recurrent_bytes >= _LARGE_MATRIX):
        return Partition(by_units, True, [groups * k // by_units for k in range(by_units + 1)])
    n = max(by_rows, 1)
    if n == 1 or batches[-1] == B:
        return Partition(n, False, [B * k // n for k in range(n + 1)])
    # Row r takes part in every step with more than r rows. All threads get equally many row-steps.
    steps = np.cumsum(np.searchsorted(-np.asarray(batches), -np.arange(B), side="left"))
    splits = np.searchsorted(steps, steps[-1] * np.arange(n + 1) / n, side="left").tolist()
    return Partition(n, False, [0, *splits[1:-1], B])


def panels_of(columns: int, size: int) -> int:
    """Return how many panels a row of `columns` numbers fills."""
    return -(-columns * size // PANEL_BYTES)


class Panels(NamedTuple):
    """The columns of a matrix [K, ·]: each gate has H of them, from its start on."""

    starts: Sequence[int]
    H: int
    K: int
    adds_to: int  # see `Matrix`
    size: int  # of a number

    @property
    def width(self) -> int:
        """The number of numbers in a packed row."""
        lanes = VECTOR_BYTES // self.size
        return len(self.starts) * (-(-self.H // lanes) * lanes)

    @property
    def row(self) -> int:
        """The bytes of a row of its product."""
        return panels_of(self.width, self.size) * PANEL_BYTES


class GateLayout(NamedTuple):
    """The first columns of a cell's gates and biases in its arrays."""

    inputs: Sequence[Sequence[int]]  # of the gates in each matrix of x
    recurrent: Sequence[Sequence[int]]  # in the recurrent ones; the second may be missing
    adds_to: Sequence[int]  # of each recurrent matrix: see `Matrix`
    # For each vector: the number of the cell's array (0 has the numbers), and the place in it.
    vectors: Sequence[tuple[int, int]]
    # For each of the deltas: the matrix, the gate and the first column of each sum.
    sums: Sequence[Sequence[tuple[int, int, int]]]


class Spec:
    """A cell as the frame sees it. Specs compare by identity, so a cell must keep its own."""

    def __init__(
        self, code: CellCode, layout: GateLayout, H: int, dtype: np.dtype[Any], variant: int = 0
    ) -> None:
        self.code, self.formulas, self.layout = code, code.formulas, layout
        self.H, self.dtype, self.variant = H, dtype, variant

    @property
    def widths(self) -> list[int]:
        """How many columns each of the deltas has."""
        return [max(start for *_, start in gates) + self.H for gates in self.layout.sums]

    def address(self, name: str) -> int:
        """Return the address of the compiled code of the cell's rows, by its name in `CellCode`."""
        address: int = compiled(self.code.functions[name], self.dtype.char).address
        return address

    def variant_of(self, stage: int) -> int:
        """Return the variant of a row's code that is the formula of a recurrent matrix."""
        return self.variant + stage * self.formulas.variants

    def columns(self, shapes: Any) -> list[Panels]:
        """Return the columns of the matrices of a call."""
        (inputs, recurrent, adds_to, *_), size = self.layout, self.dtype.itemsize
        depths = [shapes.P, self.H][: max(1, len(shapes.weights) - len(inputs))]
        return [
            *(Panels(starts, self.H, shapes.I, n, size) for n, starts in enumerate(inputs)),
            *(
                Panels(starts, shapes.P if to == MAKES_H else self.H, K, to, size)
                for K, starts, to in zip(depths, recurrent, adds_to, strict=False)
            ),
        ]

    def table(self, saved: int) -> list[At]:
        """Return the table of a row's code, over the arrays of Saved, then the cell's vectors."""
        size = self.dtype.itemsize
        return [
            *map(At, range(len(self.formulas.saved))),
            *(At(saved + array, start * size) for array, start in self.layout.vectors),
            At(saved),
        ]


# The bytes of a part's pre-activations (forward) and of its deltas (backward); the least rows of a
# part backward, where each part ends with sums.
_FORWARD_PART, _BACKWARD_PART, _LEAST_PART = 1 << 19, 1 << 20, 256


class Shapes(NamedTuple):
    """The signature of a call: everything that its plan depends on."""

    backward: bool
    writes_deltas: bool  # instead of the gradients of the weights
    rows: int
    work: int  # in multiplications
    I: int
    P: int
    starts: bytes
    saved: int  # the number of arrays in the cell's Saved
    kept: int  # the same, with the cell's vectors
    weights: tuple[tuple[bool, int] | None, ...]  # whether transposed, and the stride
    grads: tuple[tuple[bool, int] | None, ...]
    present: tuple[bool, ...]  # whether each of the optional arrays exists
    vectors: int  # the number of the cell's own vectors with gradients
    sums: tuple[int, ...] = ()  # how many arrays get the sums of each of the deltas
    biases: int = 0  # the number of gates that add two biases
    # Of output and h_grad: the bytes from row to row, if they are not P numbers, and whether
    # their steps are in reverse order.
    row: int | None = None
    is_reversed: bool = False
    back: bool = False  # whether step 0 has the last rows

    @property
    def is_small(self) -> bool:
        """Whether the work is too little for a second thread."""
        return is_small(self.work)


# The arrays of a call after memory, in order. The Saved, the cell's vectors, the weights, their
# gradients and the sums of deltas follow.
_X, _FIRST_H, _FIRST_C, _LAST_H, _LAST_C, _OUTPUT, _MORE = range(1, 8)
_DX, _DH, _DC, _H_GRAD, _C_GRAD, _TOTALS, _SAVED = range(8, 15)


class Plan:
    """
    Runs the calls of a layer's loop that have the same signature and number of threads.

    Parameters
    ----------
    spec, shapes
        The cell and the signature.
    most
        The most threads of a call.
    places
        The `arrays` of a `WordBlock`.
    starts
        The place of the first row of each step, where that differs from call to call.
    """

    def __init__(
        self, spec: Spec, shapes: Shapes, most: int, places: Sequence[Any],
        starts: At | None = None,
    ) -> None:  # fmt: skip
        self._starts_of_call = starts
        self._spec, self._shapes, self._columns = spec, shapes, spec.columns(shapes)
        self._starts = np.frombuffer(shapes.starts, np.int64)  # the loops read it
        self._share = self._shared(most)
        self._threads, self._double = self._share.threads, spec.dtype.char == "d"
        memory = self._take_memory()
        self._words: list[int | At] = []
        self._write_words()
        self.place = memory.take(8 * len(self._words))
        self.bytes = memory.bytes + VECTOR_BYTES  # one more, because memory may be unaligned
        self._block = WordBlock(self._words, self.place, places)
        loop = all_steps_back if shapes.backward else all_steps
        self._loop = compiled(loop, spec.dtype.char).address

    def run(self, arrays: Sequence[Array | None]) -> bool:
        """Run the loop once; return False if another call has the threads."""
        n = self._threads
        if n > 1:
            threads.wake(n)
        all_arrays = np.empty(self.bytes, BYTE), *arrays
        return threads.run(n, self._loop, self._double, self._block.words_for(all_arrays))

    def _shared(self, most: int) -> Partition:
        """Return the share of each thread, and set the number of rows of a part."""
        backward, rows, batches = self._shapes.backward, self._shapes.rows, np.diff(self._starts)
        of_x, columns = len(self._spec.layout.inputs), self._columns
        B, first = int(batches[0]), columns[of_x]
        recurrent_bytes = first.K * first.width * first.size
        if not backward and B < 2 * _LEAST_ROWS and recurrent_bytes < _SMALL_MATRIX:
            most = 1
        found = share(
            batches, self._spec.H, recurrent_bytes, first.size, columns[-1].adds_to == MAKES_H, most
        )
        part_bytes = sum(c.row for c in columns[:of_x])
        most_rows = _FORWARD_PART * found.threads // part_bytes
        if backward:
            most_rows = max(_BACKWARD_PART // part_bytes, _LEAST_PART)
        self._part = max(B, min(rows, most_rows))
        return found

    def _take_memory(self) -> Memory:
        """Assign the offsets of everything in the memory of a call but its words."""
        shapes, columns, memory = self._shapes, self._columns, Memory()
        H, P, size, n = self._spec.H, shapes.P, columns[0].size, self._threads
        B, part, backward = int(self._starts[1]), self._part, shapes.backward
        depths = [c.K for c in columns]
        self._packed = [
            memory.take(c.width * panels_of(c.K, size) * PANEL_BYTES if backward else c.K * c.row)
            for c in columns
        ]
        work = B * max(H * size, *(c.row for c in columns))
        if backward:
            work = max(work, memory_of_transposed(size, max(depths)))
        self._work_bytes = -(-work // 4096) * 4096 + 128
        self._work = memory.take(n * self._work_bytes)
        # A product that is added to another one has no memory of its own. Forward, a separate
        # product needs the memory of one step only.
        z = [
            part * c.row * (c.adds_to == k or (backward and c.adds_to < 0))
            for k, c in enumerate(columns)
        ]
        self._b = memory.take(shapes.biases * H * size)
        self._before = memory.take(part * P * size * backward)
        several = len(columns) > len(self._spec.layout.inputs) + 1
        self._a = memory.take(part * H * size * (backward and several))
        sums_weights = backward and not shapes.writes_deltas
        self._dw = [memory.take(c.K * c.row * sums_weights) for c in columns]
        self._z = [memory.take(count * (1 if backward else n)) for count in z]
        self._sums = [memory.take(c.row * backward) for c in columns]
        self._zeros = memory.take(max(H, P, shapes.I) * size)
        self._zeroed = self._sums[0]
        # Products read lanes without a unit, also those behind a row. What was in memory there may
        # be denormal numbers, and products with them are slow.
        if any(c.H * size % VECTOR_BYTES or c.width * size < c.row for c in columns):
            self._zeroed = self._z[0]
        self._zeroed_bytes = memory.bytes - self._zeroed if backward else 0
        return memory

    def _places_of_sums(self, k: int) -> int | At:
        """Append the places that the sums of a matrix's gates go to, in two arrays or one."""
        shapes, size = self._shapes, self._columns[k].size
        first = _SAVED + shapes.kept + len(shapes.weights) + len(shapes.grads)
        places: list[int | At] = [0] * (2 * len(self._columns[k].starts))
        for count, gates in zip(shapes.sums, self._spec.layout.sums, strict=True):
            for of, gate, start in gates:
                for n in range(count if of == k else 0):
                    places[2 * gate + n] = At(first + n, start * size)
            first += count
        return self._append(places)

    def _append(self, values: Sequence[int | At]) -> At:
        """Append words; return their place."""
        self._words.extend(values)
        return At(OWN_WORDS, 8 * (len(self._words) - len(values)))

    def _gates(
        self, array: int, oriented: tuple[bool, int] | None, c: Panels
    ) -> tuple[int | At, bool]:
        """Append the place of each gate's columns, and the bytes from row to row."""
        if oriented is None:
            return 0, False
        transposed, stride = oriented
        step, table = stride if transposed else c.size, list[int | At]()
        for start in c.starts:
            table += [At(array, start * step), stride]
        return self._append(table), transposed

    def _write_words(self) -> None:
        """Make the words of the block; words that are addresses are At."""
        # Frame and matrices come first; the words that they refer to follow.
        count = len(Frame._fields) + len(self._columns) * len(Matrix._fields)
        self._words += [0] * count
        matrices = [word for k in range(len(self._columns)) for word in self._matrix(k)]
        self._words[:count] = [*self._frame(), *matrices]

    def _matrix(self, k: int) -> Matrix:
        shapes, c, P = self._shapes, self._columns[k], self._shapes.P
        of_x, first = len(self._spec.layout.inputs), _SAVED + shapes.kept
        weight = shapes.weights[k] if k < len(shapes.weights) else None
        grad = shapes.grads[k] if k < len(shapes.grads) else None
        table, transposed = self._gates(first + k, weight, c)
        dw_table, dw_transposed = self._gates(first + len(shapes.weights) + k, grad, c)
        a, rs_a = At(_X), shapes.I * c.size
        if k == of_x:
            a, rs_a = At(MEMORY, self._before), P * c.size
        elif k > of_x:
            a, rs_a = At(MEMORY, self._a), self._spec.H * c.size
        of_z = max(c.adds_to, 0) if c.adds_to >= 0 else k
        summed = {k for gates in self._spec.layout.sums for k, _, _ in gates}
        return Matrix._make([
            table, len(c.starts), c.H, c.K, transposed, At(MEMORY, self._packed[k]),
            c.row // PANEL_BYTES, At(MEMORY, self._z[of_z]), 0 if shapes.backward else
            self._part * c.row, c.row, c.adds_to, a, rs_a, At(MEMORY, self._dw[k]), dw_table,
            dw_transposed,
            At(MEMORY, self._sums[k]) if shapes.sums and k in summed else 0,
            self._places_of_sums(k) if shapes.sums and k in summed else 0,
            self._spec.variant_of(k - of_x),
        ])  # fmt: skip

    def _frame(self) -> Frame:
        spec, shapes, here = self._spec, self._shapes, functools.partial(At, MEMORY)
        saved, formulas = shapes.saved, spec.formulas
        has_c, has_last, has_output, has_dx, has_h_grad, has_c_grad, has_totals = shapes.present
        size = spec.dtype.itemsize
        row = shapes.P * size if shapes.row is None else shapes.row
        table = [At(word.array + _SAVED, word.offset) for word in spec.table(saved)]
        b_x = 0
        if shapes.biases:
            b_x = saved + spec.layout.vectors[0][0]  # the array of the first bias
            table = [here(self._b + w.offset) if w.array == _SAVED + b_x else w for w in table]
        c = formulas.saved.index(formulas.c) if formulas.c else 0
        of_x = len(spec.layout.inputs)
        return Frame(
            starts=self._starts_of_call or address_of(self._starts),
            T=len(self._starts) - 1,
            rows=self._part,
            splits=self._append(self._share.splits),
            by_units=self._share.by_units,
            barrier=self._append([0]),
            x=At(_X),
            I=shapes.I,
            h=At(_SAVED + saved - 1),
            P=shapes.P,
            H=spec.H,
            first_h=At(_FIRST_H),
            first_c=At(_FIRST_C) if has_c else 0,
            last_h=At(_LAST_H) if has_last else 0,
            last_c=At(_LAST_C) if has_last and has_c else 0,
            biases=shapes.biases,
            b_x=At(_SAVED + b_x) if shapes.biases else 0,
            b_h=At(_MORE) if shapes.biases else 0,
            b=here(self._b),
            output=At(_OUTPUT) if has_output else 0,
            output_row=row,
            is_reversed=shapes.is_reversed,
            back=shapes.back,
            formulas=spec.address("backward_layer" if shapes.backward else "forward_layer"),
            table=self._append(table),
            dx=At(_DX) if has_dx else 0,
            dh=At(_DH) if shapes.backward else 0,
            dc=At(_DC) if shapes.backward and has_c else 0,
            h_grad=At(_H_GRAD) if has_h_grad else here(self._zeros),
            c_grad=At(_C_GRAD) if has_c_grad else here(self._zeros),
            h_grad_row=row if has_h_grad else 0,
            c_grad_row=spec.H * size if has_c_grad else 0,
            before=here(self._before),
            work=here(self._work),
            work_stride=self._work_bytes,
            zeros=here(self._zeros),
            terms=spec.address("layer_terms") if has_totals else 0,
            totals=At(_TOTALS) if has_totals else 0,
            vectors=shapes.vectors,
            writes_deltas=shapes.writes_deltas,
            inputs=of_x,
            stages=len(self._columns) - of_x,
            adds_to_dh=formulas.adds_to_dh,
            c=At(_SAVED + c) if formulas.c else 0,
            zeroed=here(self._zeroed),
            zeroed_bytes=self._zeroed_bytes,
        )


def most_threads(shapes: Shapes) -> int:
    """Return how many threads a call may use: one if its work is small."""
    return 1 if shapes.is_small else threads.most()


def compute(
    shapes: Shapes, plan_for: Callable[[int], Plan], arrays: Sequence[Array | None]
) -> None:
    """
    Run the loop of a layer.

    Parameters
    ----------
    plan_for
        Returns the plan of a call that may use this many threads.
    arrays
        The arrays that the words refer to, after memory. None for an array that no word refers to.
    """
    most = most_threads(shapes)
    while not plan_for(most).run(arrays):
        most = 1
