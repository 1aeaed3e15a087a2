"""The nets as tables: see `layouts`, which has the block ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from .._typing import (
    CudnnRNNGrads,
    CudnnRNNOutputs,
    NamedTuple,
    StackedRNNGrads,
    StackedRNNOutputs,
)
from ..arithmetic.gates import HardSigmoid
from ..cells.packed_forms import PackedLayer
from ..checks.arrays import NotInPlace, compute_dtype
from .laid_out import machine_for
from .layouts import PEEPHOLES, BlockLayer, clear_after, round_all, rows_of
from .net import Cells, GradientPlaces, LayerPlaces, Weights, backward, forward
from .places import Place, Table
from .signatures import Arguments


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
    clear_after(table, machine, output)
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
        most = machine.rows_at_once(n)
        others = [table.reuse(f"saved{k}", (most, H)) for k in range(kept)]
        all_saved = [(*others, table.take("work", (n, H))) for _ in range(net.LD)]
    layers = []
    for n, (entry, saved) in enumerate(zip(weights, all_saved, strict=True)):
        entered, left, d = _at(states, n), _at(last, n), n + D - net.LD
        again = rows_of(table, output).part(d * H, (d + 1) * H, 1) if d >= 0 else None
        places = (rows_of(table, x),), net.back(n), entry, entered, saved, left, again
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
        clear_after(table, machine, x_grad)
    first = [axes.take("weights", net.LD, B, H) for _ in states]
    zeros = machine.zeros(2 - len(first))
    layers, grads = [], []
    nothing: tuple[None, ...] = (None,) * len(states)
    masks, all_saved = net.saved_of(reserve, table.length * B)
    for n, ((entry, of_entry), saved) in enumerate(zip(entries, all_saved, strict=True)):
        entered, (layer, d) = _at(states, n), divmod(n, net.D)
        places = (rows_of(table, x),), net.back(n), entry, entered, saved, nothing, None
        layers.append(LayerPlaces(*places, masks[layer], net.rate))
        of_x = rows_of(table, x_grad) if x_grad is not None else None
        of_h = None if dy is None else rows_of(table, dy).part(d * H, (d + 1) * H, 1)
        start: Any = _at(first, n)
        grads.append(GradientPlaces((of_h, *nothing[1:]), _at(of_states, n), start, of_x, of_entry))
    backward(machine, table, net.by_layer(layers), net.by_layer(grads))
    found = [None if x_grad is None else axes.returned("x", x_grad)]
    return [*found, *(axes.returned("weights", a) for a in first), *zeros]


_STATES, _COTANGENTS = ("input_h", "input_c"), ("output_h_backprop", "output_c_backprop")


class PackedNet(NamedTuple):
    """A net of packed parameters."""

    net: EqualLayers
    form: Callable[..., Any]  # returns the form; a single step may have its own
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
    table, machine = machine_for(arguments, net, saves=is_training)
    params = _params(table)
    weights = net.weights_of(params, params)
    returned = _net_forward(table, machine, net.net, weights, is_training)
    return machine.finish(returned, CudnnRNNOutputs, host_reserved)


def cudnn_rnn_backprop(arguments: Arguments, net: PackedNet, input_gradient: bool) -> Any:
    """Lay out cudnn_rnn_backprop."""
    table, machine = machine_for(arguments, net)
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
    table, machine = machine_for(arguments, net)
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
    found = [dict.fromkeys(PEEPHOLES) | entry._asdict() for entry in entries]
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
    table, machine = machine_for(arguments, net.block, saves=is_training)
    weights = [net.block.weights_of(entry) for entry in _by_name(table.arguments["weights"])]
    returned = _net_forward(table, machine, net.net, weights, is_training)
    return machine.finish(returned, StackedRNNOutputs)


def stacked_rnn_backprop(arguments: Arguments, net: StackedNet) -> Any:
    """Lay out stacked_rnn_backprop."""
    table, machine = machine_for(arguments, net.block)
    weights, of = table.arguments["weights"], net.block.gradients_of
    entries = [of(table, entry, zeros=False) for entry in _by_name(weights)]
    of_net = [entry[:2] for entry in entries]
    found = _net_backward(table, machine, net.net, of_net, True)
    round_all(machine, entries)
    for entry, grads in zip(weights, entries, strict=True):
        found += (*grads.returned, *[None] * len(entry))[: len(entry)]
    return machine.finish(found, _StackedGrads([type(entry) for entry in weights]))
