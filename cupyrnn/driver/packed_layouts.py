"""The nets of packed parameters as tables: see `net_layouts`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from .._typing import Array, CudnnRNNGrads, CudnnRNNOutputs, NamedTuple
from ..cells.entries import OfPacked
from ..cells.packed import Net
from ..cells.packed_forms import PACKED_COLUMNS, PackedForm, PackedLayer, places_of
from ..checks.arrays import NotRecordable, compute_dtype
from .net import (
    NO_WEIGHTS,
    Cells,
    Examples,
    LayerPlaces,
    Machine,
    RecordedCall,
    Weights,
    forward,
)
from .net_layouts import by_direction, net_backward, net_forward
from .places import Place, Table
from .recording import machine_for
from .reserve import NetLayout
from .signatures import Arguments


class PackedNet(NamedTuple):
    """A net of packed parameters."""

    layout: NetLayout
    of: Net
    has_single: bool = False  # whether a single step has a form of its own

    @property
    def attributes(self) -> None:
        """What the form needs to make a cell."""

    def form(self, is_single: bool = False) -> PackedForm:
        """Return the form of the weights."""
        return PackedForm(self.of, single=is_single and self.has_single)

    def form_of_loops(self) -> PackedForm:
        """Return the form of the weights for compiled loops: each matrix has its own deltas."""
        return PackedForm(self.of, single=True)

    def cell(self, cells: Cells) -> Any:
        """Return the cell of all layers, of a machine's."""
        rnn_mode, gate = self.of.rnn_mode, self.of.gate
        if rnn_mode == "lstm":
            return cells.lstm(PACKED_COLUMNS, None, gate, 0.0)
        if rnn_mode == "gru":
            return cells.gru_reset_after(gate)
        return cells.simple_rnn(rnn_mode == "rnn_relu")

    def weights_of(self, matrices: Place | _Pieces, params: Place | _Pieces) -> list[Weights]:
        """Return the weights by layer and direction, of parameters or gradients like them."""
        found = []
        sources = matrices, matrices, matrices, params, params
        for places in places_of(self.of):
            entry = PackedLayer._make(
                None if place is None else a.part(place[0].start, place[0].stop).reshape(*place[1])
                for a, place in zip(sources, places, strict=True)
            )
            w_x, w_h, w_p, b, b_more = cast("tuple[Any, ...]", entry)
            vectors = {"b": b, "b_more": b_more, "sums": b}
            of_x, of_h = ([a.T for a in w if a is not None] for w in ((w_x,), (w_h, w_p)))
            found.append(Weights((*of_x,), (*of_h,), vectors, entry))
        return found

    @property
    def matrices(self) -> int:
        """The number of parameters that belong to matrices; they come first."""
        first_bias, _ = places_of(self.of)[0][3]
        return int(first_bias.start)


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
        raise NotRecordable("a weight is in two pieces")


def _params(table: Table) -> Place | _Pieces:
    """Return the packed parameters, those of a PackedParams too."""
    params = table.arguments["params"]
    if isinstance(params, list):
        return _Pieces(params)
    return params if isinstance(params, Place) else params.params


def cudnn_rnn(
    arguments: Arguments, net: PackedNet, is_training: bool, host_reserved: Array
) -> RecordedCall:
    """Describe cudnn_rnn."""
    table, machine = machine_for(arguments, net, saves=net.layout.saves(is_training=is_training))
    params = _params(table)
    weights = net.weights_of(params, params)
    returned = net_forward(table, machine, net.layout, weights, is_training)
    return machine.finish(returned, CudnnRNNOutputs, host_reserved)


def cudnn_rnn_backprop(arguments: Arguments, net: PackedNet, input_gradient: bool) -> RecordedCall:
    """Describe cudnn_rnn_backprop."""
    table, machine = machine_for(arguments, net, saves=net.layout.saves())
    params = _params(table)
    entries, params_grad, end = _packed_gradients(table, machine, net, params)
    weights = net.weights_of(params, params)
    pairs = list(zip(weights, entries, strict=True))
    found = net_backward(table, machine, net.layout, pairs, input_gradient)
    end()
    return machine.finish([*found, params_grad], CudnnRNNGrads)


def _packed_gradients(
    table: Any, machine: Machine, net: PackedNet, params: Place | _Pieces
) -> tuple[Sequence[Any], Place | None, Callable[[], None]]:
    """
    Return places for the gradients of layers and of the parameters, and a function.

    The function adds the operation that computes the second from the first.
    """
    mode, compute = table.arguments.get("weight_gradients", "sum"), compute_dtype(table.dtype)
    count = net.of.L * net.of.D
    if mode == "none":
        return [NO_WEIGHTS] * count, None, lambda: None
    if mode != "sum":
        like = np.broadcast_to(np.int8(0), params.shape)
        memory = machine.start_examples(OfPacked, like, mode)
        returned = table.hold(1)
        of_layers = [Examples(memory, n) for n in range(count)]
        return of_layers, returned, lambda: machine.finish_examples(memory, [returned])
    returned = table.take("weights", params.shape)
    if compute == table.dtype:
        return net.weights_of(returned, returned), returned, lambda: None
    # The sum of two products is rounded once.
    matrices = returned.part(0, net.matrices)
    into = table.take("work", matrices.shape, compute)
    return net.weights_of(into, returned), returned, lambda: machine.round(into, matrices)


def _prepared_weights(net: PackedNet, weights: Sequence[Sequence[Place]]) -> list[Weights]:
    """Return the weights of a prepared step, by layer."""
    if len(weights[0]) == 1:
        params = weights[0][0]
        return net.weights_of(params, params)
    found, H = [], net.of.H
    for w_x, w_h, w_p, *biases in weights:
        vectors: dict[str, Place | None] = {"b": biases[0]}
        if len(biases) > 1:
            vectors |= {"b_end": biases[0].part(2 * H, 3 * H), "b_more_end": biases[1]}
        found.append(Weights((w_x,), (w_h,) if w_p is None else (w_h, w_p), vectors))
    return found


def prepared_step(arguments: Arguments, net: PackedNet, kind: Any) -> RecordedCall:
    """
    Describe one step of a net; its result is a `kind` of output and the states after the step.

    On the host the weights of a layer are w_x, w_h, w_p or None, b and, in a GRU, b_hc. On a device
    they are the packed parameters.
    """
    table, machine = machine_for(arguments, net)
    layout, saved = net.layout, net.layout.form.Saved
    x, names = table.arguments["x"], ("h", "c")[: layout.states]
    weights = _prepared_weights(net, table.arguments["weights"])
    states = [table.arguments[name] for name in names]
    B, L, count, (H, P) = x.shape[0], net.of.L, len(saved._fields), (net.of.H, net.of.P)
    last = [table.take("states", (L, B, width)) for width in (P, H)[: len(states)]]
    entered = by_direction(layout, states)
    layers = []
    for n, of_layer in enumerate(weights):
        results = [table.reuse(f"saved{k}", (B, H)) for k in range(count - 1)]
        results.append(last[0].at(n))
        if len(states) > 1:
            results[saved._fields.index("cs")] = last[1].at(n)
        layers.append([LayerPlaces(
            (x,), False, of_layer, entered[n], tuple(results), (None,) * len(states)
        )])  # fmt: skip
    forward(machine, layers)
    return machine.finish([last[0].at(L - 1), *last, *[None] * (2 - len(last))], kind)
