"""
One call of a compiled layer: what is settled once for calls of the same sizes, and what is not.

The compiled loops read a block of words: addresses, sizes and distances. All but the addresses are
the same in every call with the same shapes, layout and attributes, so that a `Plan` of them is
made once and kept. A call copies its block, puts in the addresses, and runs the loop.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np

from . import threads
from .cache import compiled_callback, compiled_function
from .frame import Frame, Matrix
from .products import PANEL_BYTES, memory_of_transposed
from .simd import OPTIONS, VECTOR_BYTES, VECTORS, read_word, write_word

if TYPE_CHECKING:
    from .._arrays import Array
    from ..arithmetic.gates import HardSigmoid


_FUNCTION_OPTIONS = {name: value for name, value in OPTIONS.items() if name != "nogil"}


@functools.cache
def compiled(loop: Callable[..., None], char: str) -> Any:
    """
    Return loop(tid, n, one, address) compiled for a dtype, a function with an address.

    None where Numba does not work.
    """
    if getattr(numba.config, "DISABLE_JIT", False):  # Not compiled it would be of no use.
        return None
    one = numba.from_dtype(np.dtype(char))
    try:
        signature = numba.void(numba.int64, numba.int64, one, numba.int64)
        return compiled_callback(loop, signature, _FUNCTION_OPTIONS, char)
    except Exception:
        return None


def address_of(a: Array) -> int:
    """Return where an array lies."""
    address: int = a.__array_interface__["data"][0]
    return address


class Memory:
    """Memory of a call, taken in one piece: where each part is."""

    def __init__(self) -> None:
        self.bytes = 0

    def take(self, count: int) -> int:
        """Return where so many bytes will be."""
        start = self.bytes
        # A vector's more: a block that is copied in whole vectors may end behind the last number.
        self.bytes = start + (count + 2 * VECTOR_BYTES - 1) // VECTOR_BYTES * VECTOR_BYTES
        return start


@functools.lru_cache(maxsize=64)
def line_of(gate: HardSigmoid | None, dtype: np.dtype[Any]) -> Array:
    """Return the slope and the offset of a hard sigmoid, zeros for another one."""
    return np.array(gate or (0, 0), dtype)


@functools.cache
def _data() -> tuple[int, int] | None:
    """
    Return where a tuple holds its items, and an array its address; None where it cannot be told.

    In C both begin with what all objects have; to ask NumPy for an address costs microseconds.
    """
    items, data = tuple.__basicsize__, object.__basicsize__
    if sys.implementation.name != "cpython":
        return None
    read, probe = ctypes.c_ssize_t.from_address, (None, np.arange(3)[1:])
    if read(id(probe) + items + 8).value != id(probe[1]):
        return None
    return (items, data) if read(id(probe[1]) + data).value == address_of(probe[1]) else None


def _aligned(count: int, dtype: np.dtype[Any]) -> Array:
    """Return memory for so many bytes that begins with a whole vector."""
    owner, places = np.empty(count + VECTOR_BYTES, np.uint8), _data()
    address = (
        address_of(owner)
        if places is None
        else ctypes.c_ssize_t.from_address(id(owner) + places[1]).value
    )
    behind = -address % VECTOR_BYTES
    return owner[behind : behind + count].view(dtype)


def _relocate(block: int, relocations: int, count: int, arrays: int, data: int) -> int:
    """Add to words of a block the addresses of arrays; return the block's own."""
    words, table = read_word(block + data), read_word(relocations + data)
    for n in range(count):
        place = words + 8 * read_word(table + 16 * n)
        array = read_word(arrays + 8 * read_word(table + 16 * n + 8))
        write_word(place, read_word(place) + read_word(array + data))
    return words


@functools.cache
def _relocation() -> Any:
    """Return `_relocate` compiled."""
    integer = numba.int64
    return compiled_function(_relocate, integer(*[integer] * 5), OPTIONS)


def relocated(block: Array, relocations: Array, arrays: tuple[Any, ...]) -> int:
    """
    Add to words of a block the addresses of arrays; return that of the block.

    Parameters
    ----------
    relocations : [·, 2]
        Which words, and of which of the arrays.
    """
    places = _data()
    if places is None:
        addresses = np.array([0 if a is None else address_of(a) for a in arrays])
        np.add.at(block, relocations[:, 0], addresses[relocations[:, 1]])
        return address_of(block)
    items, data = places
    address: int = _relocation()(
        id(block), id(relocations), len(relocations), id(arrays) + items, data
    )
    return address


class Share(NamedTuple):
    """What each thread computes."""

    threads: int
    by_units: bool
    splits: list[int]


# A call of less work, in multiplications, is not worth a second thread; with fewer rows than this
# for each, units are shared instead; a matrix of so many bytes does not fit the cache of a core.
_LEAST_WORK, _LEAST_ROWS, _LARGE_MATRIX = 2_000_000, 2, 3 << 20
# Forward, threads that share units meet after each step, which takes 1 to 2 µs: as long as a second
# one saves of a step with a matrix of so many bytes.
_SMALL_MATRIX = 1 << 19


def share(
    batches: Any, H: int, recurrent_bytes: int, work: int, size: int, whole: bool, most: int
) -> Share:
    """
    Return how the rows or the units of a layer are shared among threads.

    Parameters
    ----------
    batches
        The rows of each step.
    recurrent_bytes, work
        Of the matrix of each step; in all, in multiplications.
    whole
        Whether each thread has to have all units of its rows.
    most
        The threads there are.
    """
    B, groups = int(batches[0]), -(-H * size // PANEL_BYTES)
    n = most if work >= _LEAST_WORK else 1
    by_rows = min(n, B // _LEAST_ROWS) if B >= 2 * _LEAST_ROWS else 1
    by_units = 1 if whole else min(n, groups)
    if by_units > 1 and (by_units > by_rows or recurrent_bytes >= _LARGE_MATRIX):
        return Share(by_units, True, [groups * k // by_units for k in range(by_units + 1)])
    n = max(by_rows, 1)
    if n == 1 or batches[-1] == B:
        return Share(n, False, [B * k // n for k in range(n + 1)])
    # Row r has a step wherever a batch is larger: as many of these for each.
    steps = np.cumsum(np.searchsorted(-np.asarray(batches), -np.arange(B), side="left"))
    splits = np.searchsorted(steps, steps[-1] * np.arange(n + 1) / n, side="left").tolist()
    return Share(n, False, [0, *splits[1:-1], B])


def oriented(w: Array, dtype: np.dtype[Any]) -> tuple[Array, bool, int]:
    """Return a matrix, whether it is transposed in memory, and the bytes from row to row there."""
    if w.dtype == dtype and w.flags.aligned:
        rows, columns = w.strides
        if (columns == w.itemsize or w.shape[1] == 1) and rows >= 0:
            return w, False, rows
        if (rows == w.itemsize or w.shape[0] == 1) and columns >= 0:
            return w, True, columns
    copy = np.ascontiguousarray(w, dtype)
    return copy, False, copy.strides[0]


def plain(a: Array, dtype: np.dtype[Any]) -> Array:
    """Return an array in C order, aligned and of this dtype."""
    a = np.asarray(a, dtype)
    flags = a.flags
    return a if flags.c_contiguous and flags.aligned else a.copy()


def panels_of(columns: int, size: int) -> int:
    """Return how many panels so many numbers fill."""
    return -(-columns * size // PANEL_BYTES)


def padded(H: int, size: int) -> int:
    """Return H, filled up to whole vectors."""
    lanes = VECTOR_BYTES // size
    return -(-H // lanes) * lanes


class Columns(NamedTuple):
    """The columns of a matrix: those of each gate are H from where it starts."""

    starts: Sequence[int]
    H: int
    of: int = -1  # the input whose deltas are this matrix's too; -1 for none


class At(NamedTuple):
    """Where something lies: in which of some arrays, and how many bytes behind its first."""

    array: int
    offset: int = 0


class Spec:
    """What the frame has to know of a cell. Two are never alike: a cell's has to be kept."""

    def __init__(
        self,
        loops: tuple[Callable[..., None], Callable[..., None]],
        dtype: np.dtype[Any],
        H: int,
        inputs: Sequence[Columns],
        recurrent: Sequence[Columns],
        variant: int,
        table: Sequence[int | At],
        sums: Sequence[Sequence[tuple[int, int, int]]],
        *,
        whole: bool = False,
        clips: bool = False,
    ) -> None:
        self.loops = loops  # forward and backward
        self.dtype, self.H = dtype, H
        self.inputs = inputs
        self.recurrent = recurrent  # as many as the loops read, whether the cell has them or not
        self.variant = variant
        # What the formulas look up; arrays are those of Saved, then the cell's vectors.
        self.table = table
        # For each of the deltas the matrix, the gate and the first column of what is summed.
        self.sums = sums
        self.whole = whole  # whether each thread has to have all units of its rows
        self.clips = clips


class Back(NamedTuple):
    """What the gradient of a layer takes besides."""

    first: Any  # the states before the first step
    given: Any  # the gradients of each step's states
    grads: Any  # a Gradients: written, but x, which is here of the dtype of the computation


# Bytes of what the products of a part leave for its steps, forward and backwards; rows that sums
# over a part have at least.
_FORWARD_PART, _BACKWARD_PART, _LEAST_PART = 1 << 19, 1 << 20, 256


class _Shapes(NamedTuple):
    """What a plan is made for: all that can be compared of a call."""

    backward: bool
    keeps: bool  # whether the deltas are written in place of the gradients of the weights
    rows: int
    I: int
    P: int
    sequences: int
    starts: bytes
    saved: int  # how many arrays are the cell's Saved, and with its vectors
    kept: int
    weights: tuple[tuple[bool, int] | None, ...]  # how they are oriented
    grads: tuple[tuple[bool, int] | None, ...]
    given: tuple[bool, ...]  # which of the arrays that may be missing are there


# The arrays of a call, in this order; then come what is saved, the cell's vectors, the weights and
# their gradients.
_MEMORY, _BLOCK, _X, _FIRST_H, _FIRST_C, _DX, _DC, _GIVEN_H, _GIVEN_C, _TOTALS, _SAVED = range(11)


class Plan:
    """What is the same in all calls of a cell with the same shapes, layout and threads."""

    def __init__(self, spec: Spec, shapes: _Shapes, most: int) -> None:
        backward, keeps, rows, I, P, sequences, starts, saved, kept, weights, grads, given = shapes
        self._starts = np.frombuffer(starts, np.int64)  # the loops read it
        H, size = spec.H, spec.dtype.itemsize
        T, B = len(self._starts) - 1, int(self._starts[1] - self._starts[0])
        columns = [*spec.inputs, *spec.recurrent]
        depths = [I] * len(spec.inputs) + [P, *([H] * (len(spec.recurrent) - 1))]
        gated = [len(c.starts) * padded(c.H, size) for c in columns]
        panels = [panels_of(width, size) for width in gated]
        row_bytes = [n * PANEL_BYTES for n in panels]
        work = sum(rows * K * width for K, width in zip(depths, gated, strict=True))
        recurrent = len(spec.inputs)
        batches = self._starts[1:] - self._starts[:-1]
        recurrent_bytes = P * gated[recurrent] * size
        if not backward and B < 2 * _LEAST_ROWS and recurrent_bytes < _SMALL_MATRIX:
            most = 1
        parts = share(batches, H, recurrent_bytes, work, size, spec.whole, most)
        n = self.threads = parts.threads
        part_bytes = sum(row_bytes[:recurrent])
        if backward:
            part = max(B, min(rows, max(_BACKWARD_PART // part_bytes, _LEAST_PART)))
        else:
            part = max(B, min(rows, _FORWARD_PART * n // part_bytes))

        memory = Memory()
        at_packed = [
            memory.take(
                width * panels_of(K, size) * VECTORS * VECTOR_BYTES if backward else K * across
            )
            for K, width, across in zip(depths, gated, row_bytes, strict=True)
        ]
        work_bytes = B * max(row_bytes)
        if backward:
            work_bytes = max(work_bytes, memory_of_transposed(size, max(depths)))
        work_bytes = -(-work_bytes // 4096) * 4096 + 128
        at_work = memory.take(n * work_bytes)
        z_bytes = [part * across for across in row_bytes]
        at_z = [memory.take(count * (1 if backward else n)) for count in z_bytes]
        at_before = memory.take(part * P * size if backward else 0)
        at_a = [memory.take(part * H * size if backward else 0) for _ in spec.recurrent[1:]]
        at_dw = [
            memory.take(K * across if backward and not keeps else 0)
            for K, across in zip(depths, row_bytes, strict=True)
        ]
        zeroed = memory.bytes
        at_sums = [memory.take(across if backward else 0) for across in row_bytes]
        at_zeros = memory.take(max(H, P, I) * size)
        dh_row = panels_of(padded(P, size), size) * PANEL_BYTES
        at_dh = memory.take(sequences * dh_row if backward else 0)
        self.bytes = memory.bytes
        self.zeroed = [slice(zeroed // size, None)]
        if backward and any(c.H * size % VECTOR_BYTES for c in columns):  # what no unit writes
            self.zeroed += [
                slice(place // size, (place + count) // size)
                for place, count in zip(at_z, z_bytes, strict=True)
            ]
        self.dh = slice(at_dh // size, (at_dh + sequences * dh_row) // size)
        self.dh_shape = sequences, dh_row // size

        words: list[int | At] = []

        def put(values: Sequence[int | At]) -> At:
            """Put words behind all others; return where they are."""
            words.extend(values)
            return At(_BLOCK, 8 * (len(words) - len(values)))

        def here(offset: int) -> At:
            return At(_MEMORY, offset)

        # Frame and matrices stand first: what they refer to comes after them.
        words.extend([0] * (len(Frame._fields) + len(columns) * len(Matrix._fields)))
        matrices: list[int | At] = []
        summed = {k for gates in spec.sums for k, _, _ in gates}
        first_weight = _SAVED + kept
        first_grad = first_weight + len(weights)
        for k, (c, K) in enumerate(zip(columns, depths, strict=True)):

            def gates(
                array: int, oriented: tuple[bool, int] | None, c: Columns = c
            ) -> tuple[int | At, bool]:
                """Put where each gate's columns begin, and the bytes from row to row."""
                if oriented is None:
                    return 0, False
                transposed, stride = oriented
                step = stride if transposed else size
                table: list[int | At] = []
                for start in c.starts:
                    table += [At(array, start * step), stride]
                return put(table), transposed

            table, transposed = gates(first_weight + k, weights[k] if k < len(weights) else None)
            dw_table, dw_transposed = gates(first_grad + k, grads[k] if k < len(grads) else None)
            a, rs_a = At(_X), I * size
            if k == recurrent:
                a, rs_a = here(at_before), P * size
            elif k > recurrent:
                a, rs_a = here(at_a[k - recurrent - 1]), H * size
            matrices += Matrix._make([
                table, len(c.starts), c.H, K, transposed, here(at_packed[k]), panels[k],
                here(at_z[c.of if c.of >= 0 else k]), 0 if backward else z_bytes[k], a, rs_a,
                here(at_dw[k]), dw_table, dw_transposed,
                here(at_sums[k]) if backward and k in summed else 0,
            ])  # fmt: skip
        has_c, has_h_grad, has_c_grad, has_totals = given
        table = put([
            At(word.array + _SAVED, word.offset) if isinstance(word, At) else word
            for word in spec.table
        ])  # fmt: skip
        frame = Frame._make([
            self._starts.__array_interface__["data"][0], T, part, 1, 1, 0, put(parts.splits),
            parts.by_units, put([0]), At(_X), I, At(_SAVED + saved - 1), P, H, At(_FIRST_H),
            At(_FIRST_C) if has_c else 0, table, At(_DX) if backward else 0, here(at_dh), dh_row,
            At(_DC) if backward and has_c else 0,
            At(_GIVEN_H) if has_h_grad else here(at_zeros),
            At(_GIVEN_C) if has_c_grad else here(at_zeros),
            P * size if has_h_grad else 0, H * size if has_c_grad else 0,
            here(at_before), here(at_work), work_bytes, here(at_zeros), spec.variant, spec.clips,
            At(_TOTALS) if has_totals else 0, keeps,
        ])  # fmt: skip
        words[: len(frame) + len(matrices)] = [*frame, *matrices]
        self.block = np.array([w.offset if isinstance(w, At) else w for w in words], np.int64)
        found = [(k, w.array) for k, w in enumerate(words) if isinstance(w, At)]
        self.relocations = np.array(found, np.int64)
        self.sums = []
        lanes = VECTOR_BYTES // size
        for gates_of_delta in spec.sums if backward else ():
            # Of each column that is summed, its place in the memory.
            width = max(start + columns[k].H for k, _, start in gates_of_delta)
            places = np.empty(width, np.intp)
            for k, gate, start in gates_of_delta:
                c = columns[k]
                unit = np.arange(c.H)
                inside = (unit // lanes * len(c.starts) + gate) * lanes + unit % lanes
                places[start : start + c.H] = at_sums[k] // size + inside
            self.sums.append(places)


_kept_plan = functools.lru_cache(maxsize=64)(Plan)
_MANY_STEPS = 4096


def plan_of(spec: Spec, shapes: _Shapes, most: int) -> Plan:
    """Return the plan of a call; those of long sequences, where it costs little, are not kept."""
    small = len(shapes.starts) <= 8 * _MANY_STEPS
    return _kept_plan(spec, shapes, most) if small else Plan(spec, shapes, most)


class LayerCall(NamedTuple):
    """A call of a layer's loop: its arrays, and what their shapes and layout decide."""

    spec: Spec
    shapes: _Shapes
    arrays: tuple[Array | None, ...]  # all but memory and block
    carried: Any
    back: Back | None
    written: Sequence[Array | None]  # the gradients of the weights, as the loop takes them


def layer_call(
    spec: Spec,
    vectors: Sequence[Array],
    cell: Any,
    x: Array,
    carried: Any,
    starts: Array,
    saved: Any,
    back: Back | None = None,
) -> LayerCall:
    """
    Return a call of all steps of a layer, or with `back` of their gradient.

    Parameters
    ----------
    vectors
        What the spec's table refers to besides what is saved.
    x : [N, K]
        In C order, as everything here.
    carried
        The states before the first step, overwritten with those after the last of each sequence;
        or the gradients of these, overwritten with those of the first.
    starts : [T+1]
        The first row of each step.
    saved
        The cell's Saved, [N, ·] each.
    """
    dtype = spec.dtype
    states = carried if back is None else back.first
    first_c = states.c if len(states) > 1 else None
    weights, layout = _oriented([w.w for w in (*cell.inputs, *cell.recurrent)], dtype)
    grads: list[Any] = []
    given: list[Any] = [None] * 5
    grads_layout: tuple[tuple[bool, int] | None, ...] = ()
    keeps = back is not None and back.grads.by == "deltas"
    if back is not None:
        grads, grads_layout = _oriented(back.grads.weights, dtype)
        given = [back.grads.x, None, back.given.h, None, back.grads.vectors]
        if first_c is not None:
            given[1], given[3] = carried.c, back.given.c
    dx, dc, given_h, given_c, totals = given
    kept = [*saved, *vectors]
    N, I = x.shape
    shapes = _Shapes(
        back is not None, keeps, N, I, saved.h.shape[1], len(carried.h), starts.tobytes(),
        len(saved), len(kept), layout, grads_layout,
        (first_c is not None, given_h is not None, given_c is not None, totals is not None),
    )  # fmt: skip
    arrays = (x, states.h, first_c, dx, dc, given_h, given_c, totals, *kept, *weights, *grads)
    return LayerCall(spec, shapes, arrays, carried, back, grads)


def run_layer(call: LayerCall) -> None:
    """Compute all steps of a layer, or their gradient."""
    spec, shapes, arrays, carried, back, grads = call
    if back is None:
        compute(spec, shapes, arrays)
        return
    sums = compute(spec, shapes, arrays, carried.h)
    for grad, written in zip(back.grads.weights, grads, strict=True):
        if written is not grad:
            grad[...] = written
    for total, made in zip(back.grads.sums or (), sums, strict=False):
        if total is not None:
            total += made


def _as_planned(plan: Plan) -> tuple[Array, Array]:
    """Return the block of a plan, and which of its words are addresses of which arrays."""
    return plan.block, plan.relocations


def compute(
    spec: Spec,
    shapes: _Shapes,
    arrays: Sequence[Array | None],
    dh: Array | None = None,
    words: Callable[[Plan], tuple[Array, Array]] = _as_planned,
) -> list[Array]:
    """
    Run the loop of a layer; return, backwards, the sums of the columns of each of its deltas.

    Parameters
    ----------
    arrays
        What the words refer to, but for memory and block, which come first. What is None is not
        looked up.
    dh : [S, P]
        Backwards the gradients of the last h, overwritten with those of the first.
    words
        Returns the block and the relocations of a plan.
    """
    dtype = spec.dtype
    loop = compiled(spec.loops[shapes.backward], dtype.char).address
    most = threads.most()
    while True:
        plan = plan_of(spec, shapes, most)
        threads.wake(plan.threads)
        memory = _aligned(plan.bytes, dtype)
        block, relocations = words(plan)
        block = block.copy()
        argument = relocated(block, relocations, (memory, block, *arrays))
        for zeroed in plan.zeroed:
            memory[zeroed] = 0
        if dh is not None:
            carried = memory[plan.dh].reshape(plan.dh_shape)[:, : dh.shape[1]]
            carried[...] = dh
        if threads.run(plan.threads, loop, dtype.char == "d", argument):
            break
        most = 1
    if dh is None:
        return []
    dh[...] = carried
    return [memory.take(places) for places in plan.sums]


def _oriented(
    matrices: Sequence[Array | None], dtype: np.dtype[Any]
) -> tuple[list[Array | None], tuple[tuple[bool, int] | None, ...]]:
    """Return matrices as the loops take them, and how they lie."""
    found: list[Array | None] = []
    layout: list[tuple[bool, int] | None] = []
    for w in matrices:
        if w is None:
            found.append(None)
            layout.append(None)
        else:
            a, transposed, stride = oriented(w, dtype)
            found.append(a)
            layout.append((transposed, stride))
    return found, tuple(layout)
