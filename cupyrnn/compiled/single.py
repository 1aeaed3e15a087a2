"""
One step of any cell, forward or backward, as one compiled call that includes the products.

A layer packs its matrices once for many steps. A single step uses each matrix once, so it does not
pack. Like a layer's loop, its loop reads words: the arguments of the formulas, then the products in
order, each with the formula that follows it or, backward, comes before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array
from . import threads
from .addresses import BYTE, MEMORY, OWN_WORDS, Address, At, Memory, WordBlock
from .barrier import arrive_and_wait
from .cache import compiled
from .frame import APART, MAKES_H, add_rows
from .plan import Spec, panels_of
from .products import PRODUCT_BYTES, multiply_in_place, vectors_of
from .simd import SUMMED_ROWS, VECTOR_BYTES, VECTORS, call, call_of, part, read_fields, size_of

# The least multiplications for a second thread: in a virtual machine, waking it costs 0.1 ms or
# more. A step with fewer rows than _LEAST_ROWS costs as much as with _LEAST_ROWS: it waits for the
# matrix.
_LEAST_WORK, _LEAST_ROWS = 30_000_000, 4


class ProductStep(NamedTuple):
    """to[B, gates*H] (+)= a[B, K] @ w, and a formula: addresses, strides in bytes, numbers."""

    a: Address
    rs_a: int
    K: int
    w: Address  # 0 if the product is not wanted
    rs_w: int  # from row to row in memory
    transposed: int
    gates: int
    H: int
    to: Address
    rs_to: int
    adds: int
    waits: int  # whether all threads wait for each other first
    variant: int = -1  # of the formula; -1 for none
    through: Address = 0  # the result of the product before, which the formula reads
    rs_through: int = 0


class Step(NamedTuple):
    """The arguments of a step: addresses, strides in bytes, numbers."""

    met: int  # the counter of the barrier
    B: int
    H: int
    products: int  # the number of products, whose words follow
    backward: int
    memory: Address  # for products
    formulas: Address
    table: Address
    z: Address
    rs_z: int
    zh: Address
    rs_zh: int
    h_prev: Address
    rs_h: int
    c_prev: Address
    operand: Address
    rs_operand: int
    dh: Address
    dc: Address
    terms: Address
    totals: Address
    vectors: int
    sums: Address  # memory for partial sums, which are added to totals


_read_step, _read_product = read_fields(Step), read_fields(ProductStep)
_STEP_BYTES, _EACH_BYTES = 8 * len(Step._fields), 8 * len(ProductStep._fields)


@part
def own_vectors(one: Any, tid: int, n: int, H: int) -> tuple[int, int]:
    """Return the vectors of units that a thread computes: whole panels, except at the end."""
    units = vectors_of(one, H)
    panels = (units + VECTORS - 1) // VECTORS
    return panels * tid // n * VECTORS, min(units, panels * (tid + 1) // n * VECTORS)


@part
def multiply_columns(tid: int, n: int, one: Any, p: ProductStep, B: int, memory: int) -> None:
    """Compute a product for a thread's units of each gate."""
    u0, u1 = own_vectors(one, tid, n, p.H)
    lanes = VECTOR_BYTES // size_of(one)
    for g in range(1 if n == 1 else p.gates):
        first, last = 0, p.gates * p.H
        if n > 1:
            first, last = g * p.H + u0 * lanes, g * p.H + min(p.H, u1 * lanes)
        multiply_in_place(
            one, B, p.a, p.rs_a, p.K, p.w, p.transposed, p.rs_w, first, last, p.to, p.rs_to, p.adds,
            memory,
        )  # fmt: skip


def one_step(one: Any, words: int) -> None:
    """Compute one step for a thread's units: a function for `compiled`."""
    tid, n, address = call_of(words)
    s = _read_step(address)
    row = s.H * size_of(one)
    memory = s.memory + tid * PRODUCT_BYTES
    u0, u1 = own_vectors(one, tid, n, s.H)
    for k in range(s.products):
        p = _read_product(address + _STEP_BYTES + k * _EACH_BYTES)
        if p.waits:
            arrive_and_wait(address, n, 1)
        for now in range(2):
            if now == s.backward:
                if p.w:
                    multiply_columns(tid, n, one, p, s.B, memory)
            elif p.variant >= 0:
                call(s.formulas, one, (
                    s.B, u0, u1, s.H, p.variant,
                    s.table, s.z, s.zh, s.h_prev, s.c_prev, 0, s.operand, s.dh, p.through, s.dc,
                    0, s.rs_z, s.rs_zh, s.rs_h, row, row, s.rs_operand, row, p.rs_through, row,
                ))  # fmt: skip
    for r in range(s.B if s.totals else 0):
        summed = r % SUMMED_ROWS
        call(s.terms, one, (
            0, u1, s.H, min(summed, 1), s.sums, row, s.table, s.z + r * s.rs_z, s.c_prev + r * row,
            r * row,
        ))  # fmt: skip
        if summed == SUMMED_ROWS - 1 or r == s.B - 1:
            for k in range(s.vectors):
                to = s.totals + k * row
                add_rows(one, (0, u1, s.H, 0, s.sums + k * row, to, to))


# The arrays of a step after memory, in this order. The Saved, the cell's vectors, the weights and,
# backward, their deltas follow.
_X, _H_PREV, _C_PREV, _DH, _DC, _TOTALS, _SAVED = range(1, 8)


class StepSizes(NamedTuple):
    """Everything that the words of a step depend on, besides its spec."""

    B: int
    I: int
    P: int
    saved: int  # the number of arrays in the cell's Saved
    vectors: int  # the number of the cell's vectors
    weights: tuple[tuple[bool, int] | None, ...]  # whether transposed, and the stride
    # Backward: for each matrix the number of its deltas and the first column in them, and the width
    # of each of the deltas. Empty forward.
    places: tuple[tuple[int, int], ...] = ()
    deltas: tuple[int, ...] = ()
    wants_x: bool = False
    totals: int = 0


class CompiledStep:
    """
    Runs the calls of a step of one signature.

    `arrays` are the places of a `WordBlock`.
    """

    def __init__(self, spec: Spec, sizes: StepSizes, arrays: Sequence[Any]) -> None:
        self._spec, self._sizes, self._of_x = spec, sizes, len(spec.layout.inputs)
        formulas, char = spec.formulas, spec.dtype.char
        self._columns, self._memory = spec.columns(sizes), Memory()
        self._first, self._size = _SAVED + sizes.saved + sizes.vectors, spec.dtype.itemsize
        row, back = spec.H * self._size, bool(sizes.deltas)
        if back:
            products, z, zh = self._backward()
            operand, rs_operand = self._take(row), 0  # written, but not read
        else:
            operand, rs_operand = At(_SAVED + sizes.saved - 1), sizes.P * self._size
            if len(self._columns) > self._of_x + 1:
                operand, rs_operand = self._take(sizes.B * row), row
            products, z, zh = self._forward(operand, rs_operand)
        sums = self._take(sizes.totals * row)
        table = [At(word.array + _SAVED, word.offset) for word in spec.table(sizes.saved)]
        of_zh = spec.layout.recurrent[-1][: len(formulas.zh)]
        gates = [start * self._size for start in (*spec.layout.inputs[0], *of_zh)]
        of_table = _STEP_BYTES + len(products) * _EACH_BYTES
        place = self._memory.take(of_table + 8 * (len(table) + len(gates)))
        step = Step(
            met=0,
            B=sizes.B,
            H=spec.H,
            products=len(products),
            backward=back,
            memory=At(MEMORY, self._memory.bytes),
            formulas=spec.address("backward_step" if back else "forward_step"),
            table=At(OWN_WORDS, of_table),
            z=z[0],
            rs_z=z[1],
            zh=zh[0],
            rs_zh=zh[1],
            h_prev=At(_H_PREV),
            rs_h=sizes.P * self._size,
            c_prev=At(_C_PREV) if formulas.c else 0,
            operand=operand,
            rs_operand=rs_operand,
            dh=At(_DH) if back else 0,
            dc=At(_DC) if back and formulas.c else 0,
            terms=spec.address("step_terms") if sizes.totals else 0,
            totals=At(_TOTALS) if sizes.totals else 0,
            vectors=sizes.totals,
            sums=sums,
        )
        words = [word for product in products for word in product]
        self._block = WordBlock([*step, *words, *table, *gates], place, arrays)
        self.bytes = self._memory.bytes + VECTOR_BYTES
        self.threads, self.double = 1, int(char == "d")
        work = max(sizes.B, _LEAST_ROWS) * sum(p.K * p.gates * p.H for p in products)
        if not back and work > _LEAST_WORK:
            self.threads = panels_of(spec.H, self._size)
        self.loop = compiled(one_step, char).address

    def _take(self, count: int) -> At:
        return At(MEMORY, self._memory.take(count))

    def _product(
        self, k: int, a: tuple[Any, int], to: tuple[Any, int], back: bool, *more: Any
    ) -> ProductStep:
        """Return a product with a matrix; backward, with its transpose."""
        c, lies = self._columns[k], self._sizes.weights[k]
        transposed, rs_w = lies or (False, 0)
        width = len(c.starts) * c.H
        return ProductStep(
            *a, width if back else c.K, At(self._first + k) if lies else 0, rs_w,
            transposed ^ back, 1 if back else len(c.starts), c.K if back else c.H, *to, *more,
        )  # fmt: skip

    def _forward(self, operand: At, rs_operand: int) -> Any:
        """Return the forward products, and the places of z and zh with their strides."""
        sizes, size, columns = self._sizes, self._size, self._columns
        rows = [len(c.starts) * c.H * size for c in columns]
        z = [(self._take(sizes.B * row), row) for row in rows[: self._of_x]]
        zh = z[max(columns[-1].adds_to, 0)]
        products = []
        for k, (c, row) in enumerate(zip(columns, rows, strict=True)):
            stage, a, to = k - self._of_x, (At(_X), sizes.I * size), z[max(c.adds_to, 0)]
            if stage >= 0:
                a = (operand, rs_operand) if stage else (At(_H_PREV), sizes.P * size)
            if c.adds_to == APART:
                to = zh = self._take(sizes.B * row), row
            elif c.adds_to == MAKES_H:
                to = At(_SAVED + sizes.saved - 1), row
            adds = stage >= 0 and c.adds_to >= 0
            variant = self._spec.variant_of(stage) if stage >= 0 else -1
            products.append(self._product(k, a, to, False, adds, stage > 0, variant))
        return products, z[0], zh

    def _backward(self) -> Any:
        """Return the backward products, and the places of z and zh with their strides."""
        sizes, size, columns = self._sizes, self._size, self._columns
        first = self._first + len(sizes.weights)
        deltas = [
            (At(first + n, start * size), sizes.deltas[n] * size) for n, start in sizes.places
        ]
        dh = At(_DH), sizes.P * size
        work = self._take(sizes.B * self._spec.H * size), self._spec.H * size
        through, products = dh, []
        for k in range(len(columns) - 1, self._of_x - 1, -1):
            stage = k - self._of_x
            to, adds = (work, 0) if stage else (dh, self._spec.formulas.adds_to_dh)
            before = self._spec.variant_of(stage), *through
            products.append(self._product(k, deltas[k], to, True, adds, 0, *before))
            through = work
        for k in range(self._of_x if sizes.wants_x else 0):
            to = At(_X), sizes.I * size
            products.append(self._product(k, deltas[k], to, True, min(k, 1), 0))
        return products, deltas[0], deltas[-1]

    def run(self, arrays: Sequence[Array | None]) -> None:
        """Compute the step in the planned threads; the words refer to memory, then to `arrays`."""
        n = min(threads.most(), self.threads) if self.threads > 1 else 1
        while True:
            all_arrays = np.empty(self.bytes + n * PRODUCT_BYTES, BYTE), *arrays
            if threads.run(n, self.loop, self.double, self._block.words_for(all_arrays)):
                return
            n = 1
