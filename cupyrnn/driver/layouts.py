"""
The ops as tables: where the arrays of a call on a device are, and what is done with them.

Each function returns what runs the calls of a signature. It raises NotInPlace for those that the
layers run step by step or in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._typing import CudnnRNNGrads, CudnnRNNOutputs, GRUGrads, LSTMGrads, NamedTuple
from ..cells.gru import GRUOutputs
from ..cells.lstm import LSTMOutputs
from ..checks.arrays import FLOATS, compute_dtype
from ..kernels import gru, gru_reset_after, lstm, simple_rnn
from ..kernels.blas import NotInPlace
from ..kernels.cell import CellInPlace
from ..kernels.products import ROWS
from .net import GradientPlaces, LayerPlaces, Weights, backward, forward
from .on_device import Call, OnDevice
from .places import Place, Table
from .signatures import Arguments


def laid_out(make: Callable[..., Call], arguments: Arguments, *args: Any) -> Call | None:
    """Return what runs calls like one, as `make` lays them out; None where nothing does."""
    try:
        return make(arguments, *args)
    except NotInPlace:
        return None


def _machine(arguments: Arguments, cell: CellInPlace) -> tuple[Table, OnDevice]:
    """Return the table of a call, and what runs it."""
    arrays, aligned, by_name = arguments.arrays, 0, arguments.by_name
    T, B, _ = (by_name["x"] if "x" in by_name else by_name["input"]).shape
    # More rows are computed in pieces, which bounds the memory.
    if arrays[0].dtype.name not in FLOATS or not 0 < T * B <= ROWS:
        raise NotInPlace("these rows are computed in pieces")
    for a in arrays:
        if a.size == 0 or not a.flags.c_contiguous:
            raise NotInPlace("an array is empty or not in C order")
        aligned |= a.data.ptr & 15
    table = Table(arguments)
    return table, OnDevice(table, cell, T, B, aligned)


_GRU_INPUTS = "x", "h_prev", "w_ru", "w_c"


def _peepholes(table: Table, are_used: bool) -> dict[str, Place | None]:
    """Return the peephole weights by name, None where they are not used."""
    return {name: table.arguments[name] if are_used else None for name in ("wci", "wcf", "wco")}


def block_lstm(
    arguments: Arguments,
    attributes: Any,
    columns: tuple[int, ...],
    has_peepholes: bool,
    reverse: bool,
) -> Call:
    """Lay out block_lstm."""
    clip, _, gate, forget_bias = attributes
    cell = lstm.in_place(columns, clip, gate, forget_bias)
    table, machine = _machine(arguments, cell)
    x, c, h, w, b = (table.arguments[n] for n in ("x", "cs_prev", "h_prev", "w", "b"))
    (T, B, I), H = x.shape, w.shape[1] // 4
    # h is often kept without the others.
    others = table.take("others", (6, T, B, H))
    saved = [*(others.at(k) for k in range(6)), table.take("h", (T, B, H))]
    vectors = {"b": b, **_peepholes(table, has_peepholes)}
    weights = Weights((w.part(0, I),), (w.part(I, I + H),), vectors)
    rows = tuple(a.rows for a in saved)
    forward(machine, [[LayerPlaces((x.rows,), reverse, weights, (h, c), rows, (None, None))]])
    return machine.finish(saved, LSTMOutputs)


def block_lstm_grad(
    arguments: Arguments,
    attributes: Any,
    columns: tuple[int, ...],
    has_peepholes: bool,
    reverse: bool,
) -> Call:
    """Lay out block_lstm_grad."""
    clip, _, gate, _ = attributes
    cell = lstm.in_place(columns, clip, gate, 0.0)
    table, machine = _machine(arguments, cell)
    x, c, h, w = (table.arguments[n] for n in ("x", "cs_prev", "h_prev", "w"))
    saved = [table.arguments[name] for name in LSTMOutputs._fields]
    (_, B, I), H, vectors = x.shape, w.shape[1] // 4, _peepholes(table, has_peepholes)
    weights = Weights((w.part(0, I),), (w.part(I, I + H),), vectors)
    rows = tuple(a.rows for a in saved)
    layer = LayerPlaces((x.rows,), reverse, weights, (h, c), rows, (None, None))
    x_grad = table.take("x", x.shape)
    first = table.take("weights", (B, H)), table.take("weights", (B, H))
    sums = table.take("weights", (7 * H,))
    into, w_grad = _matrix(table, w)
    terms = None if vectors["wci"] is None else sums.part(4 * H, 7 * H)
    gradients = {"sums": sums, "terms": terms}
    of_weights = Weights((into.part(0, I),), (into.part(I, I + H),), gradients)
    cotangents = (table.arguments[name] for name in ("h_grad", "cs_grad"))
    states = tuple(None if g is None else g.rows for g in cotangents)
    grads = GradientPlaces(states, (None, None), first, x_grad.rows, of_weights)
    backward(machine, table, [[layer]], [[grads]])
    if into is not w_grad:
        machine.round(into, w_grad)
    of_peepholes = [sums.part(k * H, (k + 1) * H) for k in (4, 5, 6)]
    returned = [x_grad, first[1], first[0], w_grad, *of_peepholes, sums.part(0, 4 * H)]
    return machine.finish(returned, LSTMGrads)


def _matrix(table: Table, w: Place) -> tuple[Place, Place]:
    """Return where the gradient of a matrix is computed, and where it is returned."""
    returned, compute = table.take("weights", w.shape), compute_dtype(w.dtype)
    # The sum of two products is rounded once.
    return returned if compute == w.dtype else table.take("work", w.shape, compute), returned


def block_gru(arguments: Arguments, gate: Any, reverse: bool) -> Call:
    """Lay out block_gru."""
    table, machine = _machine(arguments, gru.in_place(gate))
    x, h, w_ru, w_c, b_ru, b_c = (table.arguments[n] for n in (*_GRU_INPUTS, "b_ru", "b_c"))
    (T, B, I), H = x.shape, w_c.shape[1]
    others = table.take("others", (3, T, B, H))
    saved = [*(others.at(k) for k in range(3)), table.take("h", (T, B, H))]
    w_x, w_h = (w_ru.part(0, I), w_c.part(0, I)), (w_ru.part(I, I + H), w_c.part(I, I + H))
    weights, rows = Weights(w_x, w_h, {"b_ru": b_ru, "b_c": b_c}), tuple(a.rows for a in saved)
    forward(machine, [[LayerPlaces((x.rows,), reverse, weights, (h,), rows, (None,))]])
    return machine.finish(saved, GRUOutputs)


def block_gru_grad(arguments: Arguments, gate: Any, reverse: bool) -> Call:
    """Lay out block_gru_grad."""
    table, machine = _machine(arguments, gru.in_place(gate))
    names = (*_GRU_INPUTS, *GRUOutputs._fields, "d_h")
    x, h, w_ru, w_c, *saved, d_h = (table.arguments[name] for name in names)
    (_, B, I), H = x.shape, w_c.shape[1]
    w_x, w_h = (w_ru.part(0, I), w_c.part(0, I)), (w_ru.part(I, I + H), w_c.part(I, I + H))
    rows = tuple(a.rows for a in saved)
    layer = LayerPlaces((x.rows,), reverse, Weights(w_x, w_h, {}), (h,), rows, (None,))
    x_grad, first = table.take("x", x.shape), table.take("weights", (B, H))
    both = [_matrix(table, w) for w in (w_ru, w_c)]
    biases = table.take("weights", (2 * H,)), table.take("weights", (H,))
    of_weights = Weights(
        tuple(into.part(0, I) for into, _ in both),
        tuple(into.part(I, I + H) for into, _ in both),
        {"b_ru": biases[0], "b_c": biases[1]},
    )
    states = (None if d_h is None else d_h.rows,)
    grads = GradientPlaces(states, (None,), (first,), x_grad.rows, of_weights)
    backward(machine, table, [[layer]], [[grads]])
    for into, w_grad in both:
        if into is not w_grad:
            machine.round(into, w_grad)
    return machine.finish([x_grad, first, *(w for _, w in both), *biases], GRUGrads)


class PackedNet(NamedTuple):
    """A net of packed parameters, which drops nothing."""

    D: int
    reverse: bool  # whether all layers run backwards in time
    rnn_mode: str
    gate: Any
    columns: tuple[int, ...]  # of the gates of an LSTM
    # By layer and direction, slices and shapes: of the weights in the parameters,
    weights: Sequence[tuple[Any, ...]]
    # and of what the steps save in reserve_space.
    reserved: Sequence[tuple[slice, tuple[int, int]]]
    reserve_size: int

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states before the first step."""
        return ("input_h", "input_c") if self.rnn_mode == "lstm" else ("input_h",)

    @property
    def cell(self) -> CellInPlace:
        """The cell of all layers."""
        if self.rnn_mode == "lstm":
            return lstm.in_place(self.columns, None, self.gate, 0.0)
        if self.rnn_mode == "gru":
            return gru_reset_after.in_place(self.gate)
        return simple_rnn.in_place(self.rnn_mode == "rnn_relu")

    @property
    def H(self) -> int:
        """The units of a layer."""
        rows, units = self.weights[0][1][1]
        return int(units)

    def weights_of(self, matrices: Place, params: Place) -> list[Weights]:
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
            found.append(Weights((of_x.T,), (of_h.T,), vectors))
        return found

    def saved_of(self, reserve: Place) -> list[tuple[Place, ...]]:
        """Return what the steps save, by layer and direction."""
        parts = [reserve.part(s.start, s.stop).reshape(*shape) for s, shape in self.reserved]
        n = len(parts) // len(self.weights)
        return [tuple(parts[k : k + n]) for k in range(0, len(parts), n)]

    @property
    def matrices(self) -> int:
        """How many of the parameters, the first ones, are those of matrices."""
        ends = [place[0].stop for weights in self.weights for place in weights[:2] if place]
        starts = [place[0].start for weights in self.weights for place in weights[3:]]
        if max(ends) > min(starts):
            raise NotInPlace("a bias is before a matrix")
        return int(max(ends))

    def back(self, n: int) -> bool:
        """Return whether the steps of number n, by layer and direction, run backwards."""
        return self.reverse or n % self.D == 1

    def by_layer(self, parts: list[Any]) -> list[list[Any]]:
        """Return what is in a list by layer and direction as a list for each layer."""
        return [parts[n : n + self.D] for n in range(0, len(parts), self.D)]


def cudnn_rnn(arguments: Arguments, net: PackedNet, is_training: bool, host_reserved: Any) -> Call:
    """Lay out cudnn_rnn."""
    table, machine = _machine(arguments, net.cell)
    x, packed, *states = (table.arguments[n] for n in ("input", "params", *net.states))
    params = packed if isinstance(packed, Place) else packed.params
    (T, B, _), H, D = x.shape, net.H, net.D
    output = table.take("output", (T, B, D * H))
    last = [table.take("states", (len(net.weights), B, H)) for _ in states]
    zeros = machine.zeros(2 - len(last) + (not is_training))
    if is_training:
        reserve = table.take("reserve", (net.reserve_size,))
        all_saved = net.saved_of(reserve)
    else:  # what no gradient reads is there for one direction at a time, but h
        kept = len(net.reserved) // len(net.weights) - 1
        others = [table.reuse(f"saved{k}", (T * B, H)) for k in range(kept)]
        all_saved = [(*others, table.take("work", (T * B, H))) for _ in net.weights]
    layers = []
    weights = net.weights_of(params, params)
    for n, (entry, saved) in enumerate(zip(weights, all_saved, strict=True)):
        entered = tuple(None if s is None else s.at(n) for s in states)
        left = tuple(s.at(n) for s in last)
        again, d = None, n + D - len(weights)
        if d >= 0:
            again = output.rows.part(d * H, (d + 1) * H, 1)
        layers.append(LayerPlaces((x.rows,), net.back(n), entry, entered, saved, left, again))
    forward(machine, net.by_layer(layers))
    returned = [output, *last, *zeros[: 2 - len(last)], reserve if is_training else zeros[-1]]
    return machine.finish(returned, CudnnRNNOutputs, host_reserved)


def cudnn_rnn_backprop(arguments: Arguments, net: PackedNet, input_gradient: bool) -> Call:
    """Lay out cudnn_rnn_backprop."""
    table, machine = _machine(arguments, net.cell)
    names = "input", "params", "reserve_space", "output_backprop", *net.states
    x, packed, reserve, dy, *states = (table.arguments[name] for name in names)
    params = packed if isinstance(packed, Place) else packed.params
    B, H = x.shape[1], net.H
    cotangents = ("output_h_backprop", "output_c_backprop")[: len(states)]
    of_states = [table.arguments[name] for name in cotangents]
    x_grad = table.take("x", x.shape) if input_gradient else None
    first = [table.take("weights", (len(net.weights), B, H)) for _ in states]
    params_grad, matrices = table.take("weights", params.shape), net.matrices
    zeros = machine.zeros(2 - len(first))
    compute = compute_dtype(params.dtype)
    into = params_grad
    if compute != params.dtype:  # the sum of two products is rounded once
        into = table.take("work", (matrices,), compute)
    both = zip(
        net.weights_of(params, params), net.weights_of(into, params_grad), net.saved_of(reserve),
        strict=True,
    )  # fmt: skip
    layers, grads = [], []
    for n, (entry, of_entry, saved) in enumerate(both):
        entered = tuple(None if s is None else s.at(n) for s in states)
        made = tuple(s.at(n) for s in first)
        nothing: tuple[None, ...] = (None,) * len(states)
        layers.append(LayerPlaces((x.rows,), net.back(n), entry, entered, saved, nothing))
        of_last = tuple(None if g is None else g.at(n) for g in of_states)
        of_x = x_grad.rows if x_grad is not None else None
        d = n % net.D
        of_h = None if dy is None else dy.rows.part(d * H, (d + 1) * H, 1)
        grads.append(GradientPlaces((of_h, *nothing[1:]), of_last, made, of_x, of_entry))
    backward(machine, table, net.by_layer(layers), net.by_layer(grads))
    if into is not params_grad:
        machine.round(into, params_grad.part(0, matrices))
    return machine.finish([x_grad, *first, *zeros, params_grad], CudnnRNNGrads)
