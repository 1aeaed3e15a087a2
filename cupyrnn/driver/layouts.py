"""
The ops as tables: the places of the arrays of a call, and the operations on them.

Each function returns an object that runs the calls of one signature. It raises NotInPlace for calls
that the layers run step by step or in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from .._typing import (
    CudnnRNNGrads,
    CudnnRNNOutputs,
    GRUCellGrads,
    GRUGrads,
    LSTMCellGrads,
    LSTMGrads,
    NamedTuple,
    StackedRNNGrads,
    StackedRNNOutputs,
)
from ..arithmetic.dropout import key_words
from ..arithmetic.gates import HardSigmoid
from ..cells.block_forms import GRU_FORM, LSTM_FORM
from ..cells.gru import GRUOutputs
from ..cells.lstm import LSTM, LSTMOutputs
from ..cells.packed_forms import PackedLayer
from ..checks.arrays import NotInPlace, compute_dtype
from ..checks.attributes import check_integer
from ..checks.calls import check_lengths, check_resets
from . import layer as _layer
from .net import Cells, GradientPlaces, LayerPlaces, Machine, Weights, backward, forward
from .places import Place, Table
from .signatures import Arguments, ByValue

_PEEPHOLES = ("wci", "wcf", "wco")


def laid_out(
    make: Callable[..., Any],
    arguments: Arguments,
    *args: Any,
    reserved_of: Any = None,
) -> Any:
    """
    Return an object that runs calls of this signature, made by `make`; None if none can.

    `reserved_of` returns the host_reserved of a call from its lengths and resets, if it has one.
    """
    try:
        found = make(arguments, *args)
    except NotInPlace:
        return None
    if arguments.length is not None and not found.draws:
        return found
    return ByValue(_OfValues(found, arguments, reserved_of))


class _OfValues:
    """Runs the calls of a signature whose lengths, resets or seeds differ."""

    def __init__(self, call: Any, arguments: Arguments, reserved_of: Any) -> None:
        self.call, self._op, (T, B) = call, arguments.op, arguments.steps
        self._lengths_differ = arguments.length is None
        self._is_major = arguments.by_name.get("time_major", True)
        self._steps, self._axes = ((T, B), "(T, B)") if self._is_major else ((B, T), "(B, T)")
        self._T, self._B = T, B
        self._returns_reserved = "host_reserved" not in arguments.by_name
        self._reserved_of = reserved_of

    def checked(self, by_name: Mapping[str, Any]) -> tuple[Any, Any]:
        """Check the lengths and the resets of a call; return them, the resets time-major."""
        marks = check_resets(self._op, by_name.get("resets"), *self._steps, symbols=self._axes)
        lengths = check_lengths(self._op, by_name.get("sequence_lengths"), self._T, self._B)
        return lengths, marks if marks is None or self._is_major else marks.T

    @staticmethod
    def data_of(sequences: tuple[Any, Any]) -> bytes:
        """Return the bytes of checked lengths and resets, as `DeviceCall.run` reads them."""
        return b"".join([a.tobytes() for a in sequences if a is not None])

    def __call__(self, arrays: Sequence[Any], by_name: Mapping[str, Any]) -> Any:
        """Run a call."""
        keys = (0, 0)
        if self.call.draws:
            names = "seed", "seed2"
            keys = key_words(*[check_integer(self._op, n, by_name.get(n, 0)) for n in names])
        if not self._lengths_differ:
            return self.call(arrays, b"", keys)
        lengths, marks = self.checked(by_name)
        reserved = self._reserved_of and self._reserved_of(lengths, marks)
        if reserved is not None and not self._returns_reserved:
            passed = by_name.get("host_reserved")
            if passed is not None and passed.tobytes()[1:] != reserved.tobytes()[1:]:
                raise NotInPlace("this is an error")
        found = self.call(arrays, self.data_of((lengths, marks)), keys)
        if reserved is not None and self._returns_reserved:
            return found._replace(host_reserved=reserved)
        return found


def _matrices(arguments: Arguments) -> set[int]:
    """Return the numbers of the matrices, which may be in Fortran order."""
    arrays = arguments.arrays
    numbers = arguments.with_arrays(range(len(arrays)))
    found = [numbers.get(name) for name in ("w", "w_ru", "w_c")]
    found += [n for entry in numbers.get("weights", ()) for n in entry]
    return {n for n in found if n is not None and arrays[n].ndim == 2}


def _place_of(array: Any) -> Any:
    """Return the module whose machine computes arrays like this one."""
    if type(array) is not np.ndarray:
        from . import on_device

        return on_device
    if _layer.compiled_page(LSTM) is None:
        from . import on_host

        return on_host
    from . import on_host_compiled

    return on_host_compiled


def _machine(
    arguments: Arguments, net: Any, *, in_time: bool = False, saves: bool = True
) -> tuple[Table, Any]:
    """Return the table of a call, and the machine that makes its operations: see `on_host`."""
    if arguments.length == 0 or any(a.size == 0 for a in arguments.arrays):
        raise NotInPlace("an array is empty")
    on = _place_of(arguments.arrays[0])
    matrices = _matrices(arguments)
    table, machine = on.start(arguments, net, matrices, in_time=in_time, saves=saves)
    return table, machine


class LSTMWeights(NamedTuple):
    """The weights of an LSTM of a block op, as its form has them."""

    w: Place | None
    b: Place | None
    wci: Place | None
    wcf: Place | None
    wco: Place | None


class GRUWeights(NamedTuple):
    """The weights of a GRU of a block op, as its form has them."""

    w_ru: Place
    w_c: Place
    b_ru: Place | None
    b_c: Place | None


class Entry(NamedTuple):
    """The weights of a block op's layer, and their gradients."""

    weights: Weights
    gradients: Weights
    returned: tuple[Place | None, ...]  # the gradients, in the order of the arguments
    rounded: list[tuple[Place, Place]]  # unrounded and rounded gradients of matrices


def _lstm_weights(w: Place, b: Place | None, peepholes: Sequence[Place | None]) -> Weights:
    """Return the weights of an LSTM of a block op."""
    (rows, columns), vectors = w.shape, dict(zip(_PEEPHOLES, peepholes, strict=True))
    K, entry = rows - columns // 4, LSTMWeights(w, b, *peepholes)
    return Weights((w.part(0, K),), (w.part(K, rows),), {"b": b, **vectors}, entry)


def _gru_weights(matrices: Sequence[Place], biases: Sequence[Place | None]) -> Weights:
    """Return the weights of a GRU of a block op."""
    rows, H = matrices[1].shape
    parts = ((0, rows - H), (rows - H, rows))
    w_x, w_h = (tuple(w.part(*part) for w in matrices) for part in parts)
    vectors, entry = dict(zip(("b_ru", "b_c"), biases, strict=True)), (*matrices, *biases)
    return Weights(w_x, w_h, vectors, GRUWeights._make(entry))


def _matrix(table: Table, w: Place) -> tuple[Place, Place]:
    """Return the places where the gradient of a matrix is computed and returned."""
    returned, compute = table.take("weights", w.shape), compute_dtype(w.dtype)
    # Two products are added before rounding.
    return returned if compute == w.dtype else table.take("work", w.shape, compute), returned


def _lstm_gradients(
    table: Table, w: Place, peepholes: Sequence[Place | None], *, zeros: bool
) -> Entry:
    """Return an LSTM's weights and gradients; with `zeros`, missing peepholes have zeros."""
    H, has_peepholes = w.shape[1] // 4, peepholes[0] is not None
    into, w_grad = _matrix(table, w)
    sums = table.take("weights", ((7 if has_peepholes or zeros else 4) * H,))
    terms = sums.part(4 * H, 7 * H) if has_peepholes else None
    of_peepholes: list[Place | None] = [None] * 3
    if sums.size > 4 * H:
        of_peepholes = [sums.part(k * H, (k + 1) * H) for k in (4, 5, 6)]
    entry = LSTMWeights(into, sums.part(0, 4 * H), *(of_peepholes if has_peepholes else [None] * 3))
    gradients = _lstm_weights(into, None, (None,) * 3)._replace(
        vectors={"sums": sums, "terms": terms}, entry=entry
    )
    returned = w_grad, sums.part(0, 4 * H), *of_peepholes
    return Entry(_lstm_weights(w, None, peepholes), gradients, returned, [(into, w_grad)])


def _gru_gradients(table: Table, matrices: Sequence[Place]) -> Entry:
    """Return a GRU's weights and gradients."""
    H = matrices[1].shape[1]
    both = [_matrix(table, w) for w in matrices]
    biases = table.take("weights", (2 * H,)), table.take("weights", (H,))
    gradients = _gru_weights([into for into, _ in both], biases)
    returned = (*(w_grad for _, w_grad in both), *biases)
    return Entry(_gru_weights(matrices, (None, None)), gradients, returned, both)


def _saved(table: Table, kind: type[Any]) -> list[Place]:
    """Return the saved arrays, perhaps without h, which the gradient of a single step ignores."""
    found: list[Any] = [table.arguments.get(name) for name in kind._fields]
    return [*found[:-1], found[0] if found[-1] is None else found[-1]]


def _rows(table: Table, a: Place) -> Place:
    """Return the rows of an array that are computed, of [T, B, K] or, of one step, [B, K]."""
    return a.rows if len(a.shape) == 2 else a.part(0, table.length).rows


def _clear(table: Table, machine: Any, a: Place) -> None:
    """Fill an array with zeros after the computed rows."""
    if len(a.shape) > 2 and table.length < a.shape[0]:
        machine.clear(a.part(table.length, a.shape[0]))


def _round(machine: Machine, entries: Sequence[Entry]) -> None:
    """Add the operations that round the gradients of matrices."""
    for into, w_grad in (pair for entry in entries for pair in entry.rounded):
        if into is not w_grad:
            machine.round(into, w_grad)


# Of an LSTM and of a GRU: the states before the first step, the gradients of each step's states, h
# first, and the results.
_LSTM = ("h_prev", "cs_prev"), ("h_grad", "cs_grad"), LSTMOutputs
_GRU = ("h_prev",), ("d_h",), GRUOutputs


class BlockLayer(NamedTuple):
    """The layer of a block op, or each layer of a stacked net."""

    attributes: Any  # of its form
    columns: tuple[int, ...] | None  # of the gates of an LSTM; None for a GRU
    has_peepholes: bool = True  # whether it uses the peepholes that it has
    reverse: bool = False

    def form(self, is_single: bool = False) -> Any:
        """Return the form of the weights."""
        return GRU_FORM if self.columns is None else LSTM_FORM

    def cell_to_gates(self, entry: Any, H: int) -> Any:
        """Return NumPy's cell of a step whose gradient ends at the gates."""
        if self.columns is None:
            return GRU_FORM.cell(np, entry, self.attributes)
        clip, _, gate, *_ = self.attributes
        peephole = entry[2:] if self.has_peepholes else None
        return LSTM((), (), (4 * H,), None, self.columns, peephole, clip, gate)

    def cell(self, cells: Cells) -> Any:
        """Return the machine's cell for this layer."""
        if self.columns is None:
            return cells.gru(self.attributes)
        clip, _, gate, forget_bias, *_ = self.attributes  # backwards 0
        return cells.lstm(self.columns, clip, gate, forget_bias)

    def peepholes(self, entry: Mapping[str, Any]) -> list[Place | None]:
        """Return the peephole weights of an LSTM, None for unused ones."""
        return [entry.get(name) if self.has_peepholes else None for name in _PEEPHOLES]

    def weights_of(self, entry: Mapping[str, Any]) -> Weights:
        """Return the weights of a layer, from arrays by name."""
        if self.columns is None:
            return _gru_weights((entry["w_ru"], entry["w_c"]), (entry["b_ru"], entry["b_c"]))
        return _lstm_weights(entry["w"], entry["b"], self.peepholes(entry))

    def gradients_of(self, table: Table, entry: Mapping[str, Any], *, zeros: bool) -> Entry:
        """Return the weights of a layer with their gradients; `zeros` as in `_lstm_gradients`."""
        if self.columns is None:
            return _gru_gradients(table, (entry["w_ru"], entry["w_c"]))
        return _lstm_gradients(table, entry["w"], self.peepholes(entry), zeros=zeros)


def block(arguments: Arguments, call: BlockLayer) -> Any:
    """Lay out block_lstm, block_gru or a single step."""
    table, machine = _machine(arguments, call, in_time=True)
    names, _, kind = _GRU if call.columns is None else _LSTM
    weights, x = call.weights_of(table.arguments), table.arguments["x"]
    states, count = tuple(table.arguments[name] for name in names), len(kind._fields)
    shape = *x.shape[:-1], weights.w_h[-1].shape[0]
    # Callers often keep h without the others.
    others = table.take("others", (count - 1, *shape))
    saved = [*(others.at(k) for k in range(count - 1)), table.take("h", shape)]
    rows, nothing = tuple(_rows(table, a) for a in saved), (None,) * len(states)
    for a in saved:
        _clear(table, machine, a)
    layer = LayerPlaces((_rows(table, x),), call.reverse, weights, states, rows, nothing)
    forward(machine, [[layer]])
    return machine.finish(saved, kind)


def block_grad(arguments: Arguments, call: BlockLayer) -> Any:
    """Lay out the gradient of block_lstm, of block_gru or of a single step."""
    table, machine = _machine(arguments, call, in_time=True)
    names, of_states, kind = _GRU if call.columns is None else _LSTM
    x, saved = table.arguments["x"], _saved(table, kind)
    entry = call.gradients_of(table, table.arguments, zeros=True)
    first = tuple(table.arguments[name] for name in names)
    cotangents = [table.arguments[name] for name in of_states]
    B, H = x.shape[-2], entry.weights.w_h[-1].shape[0]
    rows, nothing = tuple(_rows(table, a) for a in saved), (None,) * len(first)
    layer = LayerPlaces(
        (_rows(table, x),), call.reverse, entry.weights, tuple(first), rows, nothing
    )
    x_grad = table.take("x", x.shape)
    _clear(table, machine, x_grad)
    of_first = tuple(table.take("weights", (B, H)) for _ in first)
    places = tuple(None if g is None else _rows(table, g) for g in cotangents)
    grads = GradientPlaces(places, nothing, of_first, _rows(table, x_grad), entry.gradients)
    backward(machine, table, [[layer]], [[grads]])
    _round(machine, [entry])
    if call.columns is None:
        return machine.finish([x_grad, *of_first, *entry.returned], GRUGrads)
    w_grad, b_grad, *of_peepholes = entry.returned
    return machine.finish([x_grad, *of_first[::-1], w_grad, *of_peepholes, b_grad], LSTMGrads)


def lstm_block_cell_grad(arguments: Arguments, call: BlockLayer) -> Any:
    """Lay out lstm_block_cell_grad."""
    table, machine = _machine(arguments, call, in_time=True)
    c, *states = (table.arguments[name] for name in ("cs_prev", "h_grad", "cs_grad"))
    saved = *_saved(table, LSTMOutputs)[:-1], table.arguments["co"]
    B, H = saved[0].shape
    dicfo, terms = table.take("x", (B, 4 * H)), table.take("weights", (3, H))
    first = tuple(table.take("states", (B, H)) for _ in states)
    peepholes = dict(zip(_PEEPHOLES, call.peepholes(table.arguments), strict=True))
    entry = Weights((), (), peepholes, LSTMWeights(None, None, *peepholes.values()))
    layer = LayerPlaces((), False, entry, (c, c), saved, (None, None))
    weights = Weights((), (), {"terms": terms if call.has_peepholes else None})
    grads = GradientPlaces(tuple(states), (None, None), first, None, weights)
    machine.backward_gates(layer, grads, [dicfo])
    table.begin(terms, None)
    return machine.finish([first[1], dicfo, *(terms.at(k) for k in range(3))], LSTMCellGrads)


def gru_block_cell_grad(arguments: Arguments, call: BlockLayer) -> Any:
    """Lay out gru_block_cell_grad."""
    table, machine = _machine(arguments, call, in_time=True)
    h, w_ru, w_c, d_h = (table.arguments[name] for name in ("h_prev", "w_ru", "w_c", "d_h"))
    saved, (rows, H) = _saved(table, GRUOutputs), w_c.shape
    B = saved[0].shape[0]
    d_x, first = table.take("x", (B, rows - H)), table.take("states", (B, H))
    d_ru, d_c = table.take("x", (B, 2 * H)), table.take("x", (B, H))
    entry = _gru_weights((w_ru, w_c), (None, None))
    layer = LayerPlaces((), False, entry, (h,), tuple(saved), (None,))
    grads = GradientPlaces((d_h,), (None,), (first,), d_x, Weights((), (), {}))
    machine.backward_gates(layer, grads, [d_ru, d_c])
    return machine.finish([d_x, first, d_c, d_ru], GRUCellGrads)


class EqualLayers(NamedTuple):
    """A net of equal layers."""

    D: int
    reverse: bool  # whether all layers run backwards in time
    are_exchanged: bool  # whether input, output and states are batch-major
    LD: int  # layers times directions
    H: int
    states: int  # the number of states of a layer
    # What the steps save in reserve_space: slices and shapes, by layer and direction.
    reserved: Sequence[tuple[slice, tuple[int, int]]]
    reserve_size: int
    rate: float = 0.0  # the fraction of h that masks between layers drop; 0 without masks

    def saved_of(
        self, reserve: Place, rows: int
    ) -> tuple[list[Place | None], list[tuple[Place, ...]]]:
        """
        Return the places in these rows of the masks and of the saved arrays.

        The masks are by layer, None for the first, the saved arrays by layer and direction.
        """
        parts = [
            reserve.part(s.start, s.stop).reshape(*shape).part(0, rows)
            for s, shape in self.reserved
        ]
        masks: list[Place | None] = [None] * (self.LD // self.D)
        if self.rate:
            of_layer = len(parts) // len(masks)
            masks[1:] = parts[of_layer :: of_layer + 1]
            del parts[of_layer :: of_layer + 1]
        n = len(parts) // self.LD
        return masks, [tuple(parts[k : k + n]) for k in range(0, len(parts), n)]

    def back(self, n: int) -> bool:
        """Return whether direction n, counted by layer and direction, runs backwards."""
        return self.reverse or n % self.D == 1

    def by_layer(self, parts: list[Any]) -> list[list[Any]]:
        """Return a list by layer and direction as one list for each layer."""
        return [parts[n : n + self.D] for n in range(0, len(parts), self.D)]


def _at(states: Sequence[Place | None], n: int) -> tuple[Place | None, ...]:
    """Return the states of layer and direction number n."""
    return tuple(None if s is None else s.at(n) for s in states)


class _Axes(NamedTuple):
    """The arrays of a net as time-major places; the caller's may be batch-major."""

    table: Table
    machine: Any
    are_exchanged: bool

    def read(self, a: Any) -> Any:
        """Return an array of the caller as [T, B, ·] or [L*D, B, ·]."""
        if a is None or not self.are_exchanged:
            return a
        M, N, K = a.shape
        if 1 in (M, N):
            return a.reshape(N, M, K)
        to = self.table.take("work", (N, M, K))
        self.machine.exchange(a, to)
        return to

    def take(self, allocation: str, *shape: int) -> Place:
        """Return the place where a result is computed."""
        if not self.are_exchanged:
            return self.table.take(allocation, shape)
        M, N, K = shape
        if 1 in (M, N):
            return self.table.take(allocation, (N, M, K)).reshape(M, N, K)
        return self.table.take("work", shape)

    def returned(self, allocation: str, a: Place) -> Place:
        """Return the place of a result in the caller's order, from its computed place."""
        if not self.are_exchanged:
            return a
        M, N, K = a.shape
        if 1 in (M, N):
            return a.reshape(N, M, K)
        to = self.table.take(allocation, (N, M, K))
        self.machine.exchange(a, to)
        return to


def _net_forward(
    table: Table, machine: Any, net: EqualLayers, weights: Sequence[Weights], is_training: bool
) -> list[Place | None]:
    """Lay out a net; return output, two last states and reserve_space, or scalar zeros."""
    axes = _Axes(table, machine, net.are_exchanged)
    x, *states = (axes.read(table.arguments[n]) for n in ("input", *_STATES[: net.states]))
    table.arguments["input"] = x
    (T, B, _), H, D = x.shape, net.H, net.D
    output, n = axes.take("output", T, B, D * H), table.length * B
    _clear(table, machine, output)
    # Each has its own memory, because PyTorch makes a new tensor faster than a view.
    last = [axes.take(f"state{k}", net.LD, B, H) for k in range(len(states))]
    zeros = machine.zeros(2 - len(last) + (not is_training))
    if is_training:
        reserve = table.take("reserve", (net.reserve_size,))
        masks, all_saved = net.saved_of(reserve, n)
        for layer, mask in enumerate(masks):
            if mask is not None:
                machine.draw(mask, layer, net.rate, reverse=net.reverse)
    else:  # in inference only h outlives its direction
        masks, kept = [None] * net.LD, len(net.reserved) // net.LD - 1
        others = [table.reuse(f"saved{k}", (n, H)) for k in range(kept)]
        all_saved = [(*others, table.take("work", (n, H))) for _ in range(net.LD)]
    layers = []
    for n, (entry, saved) in enumerate(zip(weights, all_saved, strict=True)):
        entered, left, d = _at(states, n), _at(last, n), n + D - net.LD
        again = _rows(table, output).part(d * H, (d + 1) * H, 1) if d >= 0 else None
        places = (_rows(table, x),), net.back(n), entry, entered, saved, left, again
        layers.append(LayerPlaces(*places, masks[n // D], net.rate))
    forward(machine, net.by_layer(layers))
    found = [axes.returned("output", output)]
    found += [axes.returned(f"state{k}", a) for k, a in enumerate(last)]
    return [*found, *zeros[: 2 - len(last)], reserve if is_training else zeros[-1]]


def _net_backward(
    table: Table,
    machine: Any,
    net: EqualLayers,
    entries: Sequence[tuple[Weights, Weights]],
    input_gradient: bool,
) -> list[Place | None]:
    """Lay out a net's gradient; return the gradients of the input and of two first states."""
    axes, reserve = _Axes(table, machine, net.are_exchanged), table.arguments["reserve_space"]
    x, dy = (axes.read(table.arguments[n]) for n in ("input", "output_backprop"))
    table.arguments["input"] = x
    states, of_states = ([axes.read(table.arguments[n]) for n in names[: net.states]]
                         for names in (_STATES, _COTANGENTS))  # fmt: skip
    B, H = x.shape[1], net.H
    x_grad = axes.take("x", *x.shape) if input_gradient else None
    if x_grad is not None:
        _clear(table, machine, x_grad)
    first = [axes.take("weights", net.LD, B, H) for _ in states]
    zeros = machine.zeros(2 - len(first))
    layers, grads = [], []
    nothing: tuple[None, ...] = (None,) * len(states)
    masks, all_saved = net.saved_of(reserve, table.length * B)
    for n, ((entry, of_entry), saved) in enumerate(zip(entries, all_saved, strict=True)):
        entered, (layer, d) = _at(states, n), divmod(n, net.D)
        places = (_rows(table, x),), net.back(n), entry, entered, saved, nothing, None
        layers.append(LayerPlaces(*places, masks[layer], net.rate))
        of_x = _rows(table, x_grad) if x_grad is not None else None
        of_h = None if dy is None else _rows(table, dy).part(d * H, (d + 1) * H, 1)
        start: Any = _at(first, n)
        grads.append(GradientPlaces((of_h, *nothing[1:]), _at(of_states, n), start, of_x, of_entry))
    backward(machine, table, net.by_layer(layers), net.by_layer(grads))
    found = [None if x_grad is None else axes.returned("x", x_grad)]
    return [*found, *(axes.returned("weights", a) for a in first), *zeros]


_STATES, _COTANGENTS = ("input_h", "input_c"), ("output_h_backprop", "output_c_backprop")


class PackedNet(NamedTuple):
    """A net of packed parameters."""

    net: EqualLayers
    form: Callable[..., Any]  # returns the form, which may be that of a single step
    rnn_mode: str
    gate: HardSigmoid | None
    columns: tuple[int, ...]  # of the gates of an LSTM
    # By layer and direction, slices and shapes of the weights in the parameters.
    weights: Sequence[tuple[Any, ...]]

    @property
    def attributes(self) -> None:
        """What the form needs to make a cell."""

    def cell(self, cells: Cells) -> Any:
        """Return the cell of all layers, of a machine's."""
        if self.rnn_mode == "lstm":
            return cells.lstm(self.columns, None, self.gate, 0.0)
        if self.rnn_mode == "gru":
            return cells.gru_reset_after(self.gate)
        return cells.simple_rnn(self.rnn_mode == "rnn_relu")

    def weights_of(self, matrices: Place | _Pieces, params: Place | _Pieces) -> list[Weights]:
        """Return the weights by layer and direction, of parameters or gradients like them."""
        found = []
        for w_x, w_h, w_p, b_x, b_h in self.weights:
            if w_x is None or w_p is not None:
                raise NotInPlace("a layer has no matrix of its input, or a projection")
            of_x, of_h, b, b_more = (
                a.part(place[0].start, place[0].stop).reshape(*place[1])
                for a, place in ((matrices, w_x), (matrices, w_h), (params, b_x), (params, b_h))
            )
            vectors: dict[str, Place | None] = {"b": b, "b_more": b_more, "sums": b}
            entry = PackedLayer(of_x, of_h, None, b, b_more)
            found.append(Weights((of_x.T,), (of_h.T,), vectors, entry))
        return found

    @property
    def matrices(self) -> int:
        """The number of parameters that belong to matrices; they come first."""
        ends = [place[0].stop for weights in self.weights for place in weights[:2] if place]
        starts = [place[0].start for weights in self.weights for place in weights[3:]]
        if max(ends) > min(starts):
            raise NotInPlace("a bias is before a matrix")
        return int(max(ends))


class _Pieces(NamedTuple):
    """Packed parameters in pieces, one array each."""

    pieces: Sequence[Place]

    @property
    def shape(self) -> tuple[int]:
        """The shape of the whole."""
        return (sum(piece.size for piece in self.pieces),)

    def part(self, start: int, stop: int) -> Place:
        """Return numbers start to stop - 1, which are in one piece."""
        for piece in self.pieces:
            if stop <= piece.size:
                return piece.reshape(piece.size).part(start, stop)
            start, stop = start - piece.size, stop - piece.size
            if start < 0:
                break
        raise NotInPlace("a weight is in two pieces")


def _params(table: Table) -> Place | _Pieces:
    """Return the packed parameters, those of a PackedParams too."""
    params = table.arguments["params"]
    if isinstance(params, list):
        return _Pieces(params)
    return params if isinstance(params, Place) else params.params


def cudnn_rnn(arguments: Arguments, net: PackedNet, is_training: bool, host_reserved: Any) -> Any:
    """Lay out cudnn_rnn."""
    table, machine = _machine(arguments, net, saves=is_training)
    params = _params(table)
    weights = net.weights_of(params, params)
    returned = _net_forward(table, machine, net.net, weights, is_training)
    return machine.finish(returned, CudnnRNNOutputs, host_reserved)


def cudnn_rnn_backprop(arguments: Arguments, net: PackedNet, input_gradient: bool) -> Any:
    """Lay out cudnn_rnn_backprop."""
    table, machine = _machine(arguments, net)
    params, matrices = _params(table), net.matrices
    params_grad, compute = table.take("weights", params.shape), compute_dtype(table.dtype)
    into = params_grad
    if compute != table.dtype:  # the sum of two products is rounded once
        into = table.take("work", (matrices,), compute)
    both = net.weights_of(params, params), net.weights_of(into, params_grad)
    entries = list(zip(*both, strict=True))
    found = _net_backward(table, machine, net.net, entries, input_gradient)
    if into is not params_grad:
        machine.round(into, params_grad.part(0, matrices))
    return machine.finish([*found, params_grad], CudnnRNNGrads)


def _prepared_weights(net: PackedNet, weights: Sequence[Sequence[Place]]) -> list[Weights]:
    """Return the weights of a prepared step, by layer."""
    if len(weights[0]) == 1:
        params = weights[0][0]
        return net.weights_of(params, params)
    found, H = [], net.net.H
    for w_x, w_h, w_p, *biases in weights:
        vectors: dict[str, Place | None] = {"b": biases[0]}
        if len(biases) > 1:
            vectors |= {"b_end": biases[0].part(2 * H, 3 * H), "b_more_end": biases[1]}
        found.append(Weights((w_x,), (w_h,) if w_p is None else (w_h, w_p), vectors))
    return found


def prepared_step(arguments: Arguments, net: PackedNet, saved: Any, kind: Any) -> Any:
    """
    Lay out one step of a net; its result is a `kind` of output and the states after the step.

    On the host the weights of a layer are w_x, w_h, w_p or None, b and, in a GRU, b_hc. On a device
    they are the packed parameters. `saved` is the cell's Saved.
    """
    table, machine = _machine(arguments, net)
    x, names = table.arguments["x"], ("h", "c")[: net.net.states]
    weights = _prepared_weights(net, table.arguments["weights"])
    states = [table.arguments[name] for name in names]
    B, H, L, count = x.shape[0], net.net.H, net.net.LD, len(saved._fields)
    P = weights[0].w_h[0].shape[0]
    last = [table.take("states", (L, B, width)) for width in (P, H)[: len(states)]]
    layers = []
    for n, of_layer in enumerate(weights):
        results = [table.reuse(f"saved{k}", (B, H)) for k in range(count - 1)]
        results.append(last[0].at(n))
        if len(states) > 1:
            results[saved._fields.index("cs")] = last[1].at(n)
        layers.append([LayerPlaces(
            (x,), False, of_layer, _at(states, n), tuple(results), (None,) * len(states)
        )])  # fmt: skip
    forward(machine, layers)
    return machine.finish([last[0].at(L - 1), *last, *[None] * (2 - len(last))], kind)


class StackedNet(NamedTuple):
    """A net of weights of the block ops."""

    net: EqualLayers
    block: BlockLayer  # each layer


def _by_name(entries: Sequence[Any]) -> list[dict[str, Place | None]]:
    """Return the weights of layers by name, None for missing peepholes."""
    found = [dict.fromkeys(_PEEPHOLES) | entry._asdict() for entry in entries]
    if any(entry.get("w_p") is not None for entry in found):
        raise NotInPlace("a layer has a projection")
    return found


class _StackedGrads:
    """Makes the result of stacked_rnn_backprop from its arrays."""

    def __init__(self, kinds: Sequence[Any]) -> None:
        self._kinds = kinds

    def _make(self, arrays: Sequence[Any]) -> StackedRNNGrads[Any]:
        left, weights = iter(arrays[3:]), []
        for kind in self._kinds:
            weights.append(kind._make(islice(left, len(kind._fields))))
        return StackedRNNGrads._make([*arrays[:3], weights])


def stacked_rnn(arguments: Arguments, net: StackedNet, is_training: bool) -> Any:
    """Lay out stacked_rnn."""
    table, machine = _machine(arguments, net.block, saves=is_training)
    weights = [net.block.weights_of(entry) for entry in _by_name(table.arguments["weights"])]
    returned = _net_forward(table, machine, net.net, weights, is_training)
    return machine.finish(returned, StackedRNNOutputs)


def stacked_rnn_backprop(arguments: Arguments, net: StackedNet) -> Any:
    """Lay out stacked_rnn_backprop."""
    table, machine = _machine(arguments, net.block)
    weights, of = table.arguments["weights"], net.block.gradients_of
    entries = [of(table, entry, zeros=False) for entry in _by_name(weights)]
    of_net = [entry[:2] for entry in entries]
    found = _net_backward(table, machine, net.net, of_net, True)
    _round(machine, entries)
    for entry, grads in zip(weights, entries, strict=True):
        found += (*grads.returned, *[None] * len(entry))[: len(entry)]
    return machine.finish(found, _StackedGrads([type(entry) for entry in weights]))
