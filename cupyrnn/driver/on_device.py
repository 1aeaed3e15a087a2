"""
A call on a device as a list of launches and products, prepared except for addresses.

The operations of a layer are the products with its input, one launch for all steps and, backward,
the products and sums of the gradients of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..arithmetic.dropout import scale, threshold
from ..checks.arrays import FLOATS, NotRecordable, compute_dtype
from ..kernels import copies, dropout, gru, gru_reset_after, lstm, persistent, simple_rnn
from ..kernels.cell import DeviceCell
from ..kernels.compile import kernel
from ..kernels.launch import BLOCK, SUMS, function_of, sum_grid
from ..kernels.products import ROWS
from ..kernels.weight_gradients import LSTM_SUMS, OPERANDS
from . import trial
from .device_call import DeviceCall, Recording
from .device_loop import LayerLoop
from .net import Cells, GradientPlaces, LayerPlaces
from .places import Place, Table
from .signatures import Arguments

CELLS = Cells(
    lstm.in_place, gru.in_place, gru_reset_after.in_place, simple_rnn.in_place, lambda *_: None
)

_MOST_BLOCKS = 4096
_BYTES_OF_ZEROS = 16  # that a launch over all steps writes
# The two words of the key of masks: a call has them behind the addresses of its arrays.
_KEYS = [Place(n, 0, (), (), np.dtype(np.uint64)) for n in (-2, -1)]


def _rows_of(w: Place, x: Sequence[Place]) -> list[Place]:
    """Return the rows of a matrix, or of its gradient, that belong to each part of x."""
    ends = accumulate((part.shape[1] for part in x), initial=0)
    return [w.part(*rows) for rows in pairwise(ends)]


def _grid_of(size: int) -> tuple[int, int]:
    """Return the grid of a kernel with a thread for each number."""
    return min(_MOST_BLOCKS, -(-size // (BLOCK[0] * BLOCK[1]))), 1


class OnDevice(Recording):
    """
    The operations of a call on the current device.

    Parameters
    ----------
    table
        The arrays of the call.
    cell
        The cell of all layers, with its attributes.
    T, B
        The numbers of steps and sequences.
    aligned
        The last four bits of all addresses of arguments together.

    Its methods raise NotRecordable for calls that are not operations over places.
    """

    def __init__(self, table: Table, cell: DeviceCell, T: int, B: int, aligned: int) -> None:
        super().__init__()
        self.table, self.cell, self.T, self.B = table, cell, T, B
        self.dtype, self.compute = table.dtype, compute_dtype(table.dtype)
        if aligned % self.dtype.itemsize:
            raise NotRecordable("arrays are not aligned")
        self.one_launches: list[persistent.OneLaunch] = []
        self._zeros: Place | None = None  # zeros for a state, in a gradient
        self._scalars: Place | None = None  # zeros that no launch has written yet
        self._kept: Sequence[Place] = ()  # the input whose kept values are in memory
        self._columns: int | None = None  # of h in all layers
        places = [place for place in table.sequences or () if place is not None]
        if places:
            self.upload(places[0], sum(place.size for place in places))

    def _launch_one(
        self, source: str, kernels: tuple[str, ...], name: str, grid: tuple[int, int], *args: Any
    ) -> None:
        """Add a launch of a kernel whose arguments are one word each."""
        function = kernel(source, kernels, self.dtype.name, name).kernel.ptr
        self.launch(function, grid, [[value] for value in args])

    def zeros(self, count: int) -> list[Place]:
        """Return the places of up to two scalar zeros, which the next layer writes."""
        if count == 0:
            return []
        self._scalars = self.table.take("zeros", (_BYTES_OF_ZEROS // self.dtype.itemsize,))
        return [self._scalars.at(n) for n in range(count)]

    def round(self, a: Place, to: Place) -> None:
        """Add an operation that converts computed numbers to the storage type."""
        self._copy(0, a, to, a.size)

    def draw(self, mask: Place, layer: int, rate: float, **_: bool) -> None:
        """Add the launch that draws the mask of a layer's input."""
        self.table.draws = True
        self._launch_one(
            dropout.SOURCE, dropout.KERNELS, dropout.KERNELS[0], dropout.grid_of(mask.size),
            mask, mask.size, *_KEYS, layer, threshold(rate),
        )  # fmt: skip

    def drop(self, a: Place, layer: LayerPlaces, to: Place) -> None:
        """Add the launch that writes the gradient of a masked input to `to`."""
        self._keep(a, layer.mask, layer.rate, to)

    def _keep(self, a: Place, mask: Place, rate: float, to: Place) -> None:
        """Add the launch that writes the values that a mask keeps, scaled."""
        name = dropout.KERNELS[1 if a.dtype == self.dtype else 2]
        factor = int(np.float64(scale(rate)).view(np.uint64))
        sizes = a.size, a.shape[1], a.strides[0] // a.itemsize, to.strides[0] // to.itemsize
        source = dropout.SOURCE, dropout.KERNELS, name, _grid_of(a.size)
        self._launch_one(*source, a, to, mask, *sizes, factor)

    def _input_of(self, layer: LayerPlaces) -> tuple[Place, ...]:
        """Return the input of a layer, or the values of it that its mask keeps."""
        x, mask = layer.x, layer.mask
        if mask is None:
            return x
        to = self.table.reuse("kept", mask.shape)
        if x is not self._kept:  # all directions of a layer read the same
            self._kept = x
            for part, of_mask, of_to in zip(x, _rows_of(mask.T, x), _rows_of(to.T, x), strict=True):
                self._keep(part, of_mask.T, layer.rate, of_to.T)
        return (to,)

    def rows_at_once(self, rows: int) -> int:
        """Return for how many of the rows inference needs memory for what its steps save."""
        return rows

    def clear(self, a: Place) -> None:
        """Add that memory of results is zeros."""
        self.fill(a, 0)

    def exchange(self, a: Place, to: Place) -> None:
        """Add an operation that writes `a` with its first two axes exchanged to `to`."""
        self._copy(1, a, to, *a.shape)

    def _copy(self, kernel: int, a: Place, to: Place, *sizes: int) -> None:
        name = copies.COPIES.kernels[kernel]
        self._launch_one(*copies.COPIES, name, _grid_of(a.size), a, to, *sizes)

    def _struct(self, layer: LayerPlaces, cell: DeviceCell) -> tuple[list[Any], bool]:
        """Return the words of a cell's struct, and whether it has nothing optional."""
        pointers = [layer.weights.vectors.get(name) for name in cell.vectors]
        stored = self.dtype != self.compute
        record = cell.pack_struct(self.compute, [int(p is not None) for p in pointers], stored)
        data = record.tobytes()
        words = np.frombuffer(data + bytes(-len(data) % 8), np.uint64).tolist()
        return [*pointers, *words[len(pointers) :]], cell.cell.is_plain(record)

    def _steps(self, direction: int, layer: LayerPlaces, arrays: list[Any]) -> LayerLoop | None:
        """
        Add the launch over all steps, forwards or, in direction 1, the gradient.

        Return None, or the loop if it has to compute the steps.
        """
        kernels, (struct, plain) = self.cell.kernels[direction], self._struct(layer, self.cell)
        shape = self.B, layer.saved[-1].shape[1]
        sequences = self.table.sequences
        plain, padded = plain and sequences is None, sequences is not None
        found = trial.settled(
            persistent.one_launch,
            *(kernels, self.dtype, shape, self.T),
            **{"plain": plain, "padded": padded, "row": arrays[-1]},
        )
        scalars, self._scalars = self._scalars, None
        if found is None:
            if scalars is not None:
                self.fill(scalars, 0)
            if direction == 1 and self.cell.cell is gru_reset_after.CELL:
                # A product needs the columns hc, r, u side by side: not packed.
                gate, _ = self.cell.attributes
                struct, _ = self._struct(layer, self.cell._replace(attributes=(gate, False)))
            return LayerLoop(self, layer, struct)
        function = function_of(
            found.kernel.source, (found.name,), found.name, self.dtype, found.block
        )
        self.one_launches.append(found)
        time, memory = self.time(layer, shape[1], scalars), None
        if found.memory:
            memory = self.table.reuse("exchanged", (found.memory,), np.dtype(np.uint8))
            self.fill(memory, 0xFF)
        for exchanged in found.exchanged:
            more = [[memory, *exchanged]] if exchanged else []
            self.launch(function, found.places, [struct, arrays, time, *more], found.block)
        return None

    def time(self, layer: LayerPlaces, H: int, scalars: Place | None = None) -> list[Any]:
        """Return the words of ``Steps``."""
        sequences = self.table.sequences or (None, None)
        return [None, self.T, self.B, H, int(layer.back), scalars, *sequences]

    def _masked(self, layer: LayerPlaces, *, sums_terms: bool) -> LayerPlaces:
        """
        Return a layer as one step of all rows: zeros past the ends, and the state before each row.

        Numbers past the end of a sequence may be NaN, and a product with zeros would keep the NaN.
        """
        jobs: list[list[Place | int | None]] = []

        def masked(a: Place, first: Place | None = None, *, before: bool = False) -> Place:
            to = self.table.reuse(f"masked{len(jobs)}", a.shape)
            jobs.append([a, first, to, a.shape[1], int(before)])
            return to

        saved, (h, *c), cell = [*layer.saved], layer.first, self.cell.cell
        x = tuple(masked(part) for part in layer.x)
        first = [masked(saved[-1], h, before=True)]
        if cell is lstm.CELL:
            first.append(masked(saved[1], *c, before=True))
            if sums_terms:
                saved[1] = masked(saved[1])
        elif cell is gru.CELL:
            saved[0] = masked(saved[0])
        self._mask(jobs, self.time(layer, saved[-1].shape[1]))
        return layer._replace(x=x, back=False, saved=tuple(saved), first=tuple(first))

    def _mask(self, jobs: list[list[Any]], time: list[Any]) -> None:
        """Add the launch that copies rows, as ``Masked`` says."""
        blocks, _ = _grid_of(time[1] * self.B * max(job[3] for job in jobs))
        rest = [0] * (copies.MOST_WORDS - sum(map(len, jobs)))
        words = [*(word for job in jobs for word in job), *rest]
        function = kernel(*copies.MASKED, self.dtype.name, copies.MASKED.kernels[0])
        self.launch(function.kernel.ptr, (blocks, len(jobs)), [words, time])

    def cut(self, states: Place, to: Place) -> None:
        """Add the copy of states before the first step, zeros where a reset is before it."""
        H, sequences = states.shape[1], self.table.sequences or ()
        self._mask([[None, states, to, H, 2]], [None, 1, self.B, H, 0, None, *sequences])

    def first_state(self, layer: LayerPlaces, k: int) -> Place:
        """Return a state before the first step in memory; zeros if it has none."""
        place: Place | None = layer.first[k]
        if place is not None:
            return place
        shape = self.B, layer.saved[-1].shape[1]
        zeros = self._zeros
        if zeros is None or zeros.shape != shape:
            zeros = self._zeros = self.table.take("work", shape)
            self.fill(zeros, 0)
        return zeros

    def _matrices(self, w_h: Sequence[Place]) -> list[Any]:
        return [v for w in w_h for v in (w, *(n // w.itemsize for n in w.strides))]

    def _check(self, layer: LayerPlaces) -> None:
        """Refuse layers of different sizes, and those whose weights only their form knows."""
        columns, w_x = layer.saved[-1].shape[1], layer.weights.w_x
        if not w_x or len(w_x) < len(layer.weights.w_h) or columns != (self._columns or columns):
            raise NotRecordable("the kernels compute equal layers of known weights")
        self._columns = columns

    def forward_layer(self, layer: LayerPlaces) -> None:
        """Add the operations of one direction of a layer."""
        self._check(layer)
        x, z = self._input_of(layer), []
        _, _, (w_x, w_h, *_), first, saved, last, output, *_ = layer
        for n, w in enumerate(w_x):
            z.append(self.table.reuse(f"z{n}", (x[0].shape[0], w.shape[1]), self.compute))
            for k, (part, rows) in enumerate(zip(x, _rows_of(w, x), strict=True)):
                self.product(part, rows, z[-1], accumulate=k > 0)
        states = [None] * (len(first) + self.cell.cell.within)
        row = 0 if output is None else output.strides[0] // output.itemsize
        arrays = [*self._matrices(w_h), *z, *states, *saved, *first, *last, output, row]
        loop = self._steps(0, layer, arrays)
        if loop is not None:
            loop.forward(z, row)

    def backward_layer(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the operations of the gradient of one direction of a layer."""
        self._check(layer)
        layer = steps = layer._replace(x=self._input_of(layer))
        saved = layer.saved
        if self.table.sequences is not None:
            layer = self._masked(layer, sums_terms=bool(grads.weights.vectors.get("terms")))
        x, _, (w_x, w_h, *_), *_ = layer
        (N, H), cell, reuse = saved[-1].shape, self.cell, self.table.reuse
        is_packed = cell.cell is gru_reset_after.CELL
        widths = [w.shape[1] * 4 // 3 if is_packed else w.shape[1] for w in w_h]
        deltas = [reuse(f"deltas{n}", (N, width)) for n, width in enumerate(widths)]
        read: list[Any] = [saved[k] for k in cell.read]
        before: list[Any] = [None] * len(read)
        if cell.before is not None and layer is not steps:
            read[-1] = layer.first[cell.before]
        elif cell.before is not None:
            before[-1] = self.first_state(layer, cell.before)
        states = grads.states
        row = 0 if states[0] is None else states[0].strides[0] // states[0].itemsize
        nulls = [None] * len(layer.first)
        arrays = [
            *self._matrices(w_h), *read, *states, *nulls, *deltas, *before, *grads.last,
            *grads.first, row,
        ]  # fmt: skip
        loop = self._steps(1, steps, arrays)
        if loop is not None:
            loop.backward(grads, read, deltas, row)
        # The first column of r: the loop writes a GRU's deltas as hc, r, u, c.
        turn = H if is_packed and loop is not None else 0
        dx: Any = grads.x
        if dx is not None and len(w_x) > 1 and dx.dtype != self.compute:
            dx = reuse("sum", dx.shape, self.compute)  # rounded once
        for n, (d, w, dw) in enumerate(zip(deltas, w_x, grads.weights.w_x, strict=True)):
            of_x = d.part(turn, turn + w.shape[1], 1)
            if dx is not None:
                self.product(of_x, w.T, dx, accumulate=grads.adds_x or n > 0)
            if cell.cell is not gru.CELL:
                for part, rows in zip(x, _rows_of(dw, x), strict=True):
                    self.product(part.T, of_x, rows)
        if dx is not None and dx is not grads.x:
            self.round(dx, grads.x)
        if cell.cell is gru.CELL:
            both = self._operands(layer, x, layer.saved[0])
            width = both.shape[1] // 2
            for n, (d, dw) in enumerate(zip(deltas, grads.weights.w_x, strict=True)):
                # One matrix has the rows of x and the rows of h.
                self.product(both.part(n * width, (n + 1) * width, 1).T, d, dw.part(0, width))
        elif is_packed:
            (d,), (dw,), h_prev = deltas, grads.weights.w_h, self._operands(layer)
            self.product(h_prev.T, d.part(turn, turn + 2 * H, 1), dw.part(0, 2 * H, 1))
            of_hc = d.part(3 * H - 3 * turn, 4 * H - 3 * turn, 1)
            self.product(h_prev.T, of_hc, dw.part(2 * H, 3 * H, 1))
        else:
            self._recurrent_gradient(layer, deltas[0], grads.weights.w_h[0])
        self._sums(layer, deltas, grads.weights.vectors, turn)

    def backward_gates(self, *_: Any) -> None:
        """Refuse a gradient that ends at the gates: kernels go on to the state before."""
        raise NotRecordable("no kernel ends at the gates")

    def _of_a_step(self, layer: LayerPlaces) -> int:
        """Return how many rows a step has; a layer from `_masked` has all rows in one step."""
        return self.B if layer.first[0] is None else layer.first[0].shape[0]

    def _recurrent_gradient(self, layer: LayerPlaces, deltas: Place, dw: Place) -> None:
        """Add the gradient of a matrix that multiplies h of the step before."""
        N, B, h = deltas.shape[0], self._of_a_step(layer), layer.saved[-1]
        at_first, others = ((N - B, N), (0, N - B)) if layer.back else ((0, B), (B, N))
        before = (B, N) if layer.back else (0, N - B)
        if N > B:
            self.product(h.part(*before).T, deltas.part(*others), dw)
        if layer.first[0] is not None:
            self.product(layer.first[0].T, deltas.part(*at_first), dw, accumulate=N > B)
        elif N == B:
            self.fill(dw, 0)  # a single step from a zero state has no product

    def _operands(
        self, layer: LayerPlaces, x: Sequence[Place] = (), r: Place | None = None
    ) -> Place:
        """Return, side by side, x and h of the step before; and x and r times that h."""
        h, K = layer.saved[-1], [part.shape[1] for part in x]
        (N, H), (more, *_) = h.shape, (*x[1:], None)
        width = (sum(K) + H) * (1 if r is None else 2)
        found = self.table.reuse("operands", (N, width))
        grid = -(-width // BLOCK[0]), min(-(-N // BLOCK[1]), _MOST_BLOCKS)
        args = (x[0] if x else None), more, r, h, layer.first[0], found
        sizes = N, K[0] if x else 0, sum(K[1:]), H, self._of_a_step(layer), int(layer.back)
        self._launch_one(*OPERANDS, OPERANDS.kernels[0], grid, *args, *sizes)
        return found

    def _sums(
        self, layer: LayerPlaces, deltas: list[Place], to: dict[str, Place | None], turn: int
    ) -> None:
        """Add the gradients of the vectors."""
        cell = self.cell
        if cell.cell is lstm.CELL:
            self._lstm_sums(layer, deltas[0], to)
        elif cell.cell is gru.CELL:
            self._bias_sums(deltas, to["b_ru"], to["b_c"], 0)
        else:
            H = layer.saved[-1].shape[1]
            both = 2 * H if cell.cell is gru_reset_after.CELL else H
            self._bias_sums(deltas, to["b"], to["b_more"], both, turn)

    def _lstm_sums(self, layer: LayerPlaces, deltas: Place, to: dict[str, Place | None]) -> None:
        """Add the gradients of the biases and peephole weights of an LSTM."""
        (N, width), H = deltas.shape, layer.saved[-1].shape[1]
        # The members of the struct say where the gates are.
        at = [int(self.cell.attributes[2][k]) for k in (0, 2, 3)]
        sums, more = to["sums"], to.get("b_more")
        assert sums is not None
        first_c = self.first_state(layer, 1) if to.get("terms") is not None else None
        blocks, S = sum_grid(N, width)
        by_slices, whole = LSTM_SUMS.kernels
        into = (sums, more), whole
        if S > 1:
            into = (self.table.reuse("slices", (S, sums.size), self.compute), None), by_slices
        B, back = self._of_a_step(layer), int(layer.back)
        args = deltas, layer.saved[1], first_c, *into[0], N, H, B, back, sums.size
        self._launch_one(*LSTM_SUMS, into[1], (blocks, S), *args, *at)
        if S > 1:
            self._whole_sums(into[0][:1], sums, more, width)

    def _bias_sums(
        self,
        deltas: Sequence[Place],
        b: Place | None,
        more: Place | None,
        both: int,
        turn: int = 0,
    ) -> None:
        """Add the gradients of two biases, which are the same sums of columns."""
        N, columns = deltas[0].shape[0], sum(d.shape[1] for d in deltas)
        _, S = sum_grid(N, columns)
        if S > 1:
            slices = []
            for n, d in enumerate(deltas):
                slices.append(self.table.reuse(f"slices{n}", (S, d.shape[1]), self.compute))
                grid = sum_grid(*d.shape)[0], S
                sizes = *d.shape, 0, d.shape[1], 0, 0
                self._launch_one("", SUMS, SUMS[0], grid, d, None, slices[-1], None, *sizes)
            deltas = slices
        self._whole_sums(deltas, b, more, both, turn)

    def _whole_sums(
        self,
        parts: Sequence[Place],
        b: Place | None,
        more: Place | None,
        both: int,
        turn: int = 0,
    ) -> None:
        """Add the sums of the columns of rows, or of partial sums, as gradients of biases."""
        assert b is not None
        rows, (others, *_) = parts[0], (*parts[1:], None)
        name = SUMS[2 if rows.dtype == self.compute else 3]
        columns = [part.shape[1] for part in parts]
        sizes = rows.shape[0], columns[0], sum(columns[1:]), b.size, both, turn
        grid = -(-sum(columns) // BLOCK[0]), 1
        self._launch_one("", SUMS, name, grid, rows, others, b, more, *sizes)

    def finish(self, returned: Sequence[Place | None], kind: Any, *more: Any) -> DeviceCall:
        """Return an object that runs these calls; its result is a `kind` of arrays and `more`."""
        return DeviceCall(self.table, self, (list(returned), kind, more), self.one_launches)


def start(
    arguments: Arguments, net: Any, matrices: set[int], *, in_time: bool, saves: str
) -> tuple[Table, OnDevice]:
    """Return the table of a call, and the machine of its operations: see `on_host.start`."""
    arrays, aligned = arguments.arrays, 0
    T, B = arguments.steps
    # More rows are computed in pieces, which bounds the memory.
    if arguments.length == 0 or not all(a.size for a in arrays):
        raise NotRecordable("an array is empty")
    if arrays[0].dtype.name not in FLOATS or T * B > ROWS or saves == "states":
        raise NotRecordable("these rows are computed in pieces")
    for n, a in enumerate(arrays):
        if not (a.flags.c_contiguous or (a.flags.f_contiguous and n in matrices)):
            raise NotRecordable("an array is not in order")
        aligned |= a.data.ptr & 15
    table, cell = Table(arguments), net.cell(CELLS)
    if cell is None:
        raise NotRecordable("no kernel computes the cell")
    return table, OnDevice(table, cell, table.length, B, aligned)
