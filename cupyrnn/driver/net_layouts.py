"""The nets as tables: see `layouts`, which has the block ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, cast

import numpy as np

from .._typing import (
    CudnnRNNGrads,
    CudnnRNNOutputs,
    NamedTuple,
    StackedRNNGrads,
    StackedRNNOutputs,
)
from ..arithmetic.gates import HardSigmoid
from ..cells.contract import columns_of, each
from ..cells.entries import OfPacked
from ..cells.packed_forms import PackedLayer
from ..checks.arrays import NotInPlace, compute_dtype
from .laid_out import machine_for
from .layouts import BlockLayer, Entry, clear_after, entries_of, finish_all, rows_of
from .net import (
    NO_WEIGHTS,
    Cells,
    Examples,
    GradientPlaces,
    Kept,
    LayerPlaces,
    Weights,
    backward,
    forward,
    of_form,
)
from .places import Place, Table
from .reserve import Note, ReserveLayout, reserve_size
from .signatures import Arguments


class NetLayout(NamedTuple):
    """The sizes of a net, the parts of its reserve_space, and the axes of the caller's arrays."""

    reserve: ReserveLayout
    reverse: bool = False  # whether all layers run backwards in time
    are_exchanged: bool = False  # whether input, output and states are batch-major
    # The note of kept states, of lengths and resets, by default of those of the call; None if
    # reserve_space has none, or its note is known to be right.
    note_of: Callable[..., Note] | None = None

    @property
    def L(self) -> int:
        """The number of layers."""
        return self.reserve.net.L

    @property
    def D(self) -> int:
        """The number of directions."""
        return self.reserve.net.D

    @property
    def widths(self) -> Sequence[tuple[int, int]]:
        """H and P of each layer."""
        return self.reserve.net.widths

    @property
    def states(self) -> int:
        """The number of states of a layer."""
        return len(self.reserve.states._fields)

    def saves(self, *, is_training: bool = True) -> str:
        """Return what the caller gets of what the steps save: see `on_host.start`."""
        return "h" if not is_training else "all" if self.reserve.every is None else "states"

    @property
    def rate(self) -> float:
        """The fraction of h that masks between layers drop; 0 without masks."""
        sizes = self.reserve.sizes
        return sizes.dropout if sizes.drops(self.reserve.net) else 0.0

    def kept_of(
        self, table: Table, reserve: Place, rows: int, h_of_last: Sequence[Place] | None = ()
    ) -> tuple[list[Place | None], list[tuple[Place, ...]]]:
        """
        Return the places of the masks, and those of the states that the steps keep, with h.

        Without places for it, forward, h of the last layer has new memory. The gradient does not
        read it: then `h_of_last` is None.
        """
        every, left = self.reserve.every, iter([
            reserve.part(s.start, s.stop).reshape(*shape).part(0, min(rows, shape[0]))
            for s, shape in self.reserve.places
        ])  # fmt: skip
        masks, saved = list[Place | None](), list[tuple[Place, ...]]()
        for n, (_, P) in enumerate(self.widths):
            masks.append(next(left) if n and self.rate else None)
            states = [tuple(islice(left, self.states)) for _ in range(self.D)]
            h = [a[0] for a in states]
            if every != 1 and n + 1 < self.L:
                h = [*islice(left, self.D)]
            elif every != 1 and h_of_last is not None:
                new = (table.reuse(f"h{d}", (rows, P)) for d in range(self.D))
                h = [*h_of_last] or [*new]
            saved += [(*a, b) for a, b in zip(states, h, strict=True)]
        return masks, saved

    def kept(self, n: int, attributes: Any = None) -> Kept | None:
        """Return which states are kept by direction n, counted by layer and direction."""
        if self.reserve.every is None:
            return None
        columns = columns_of(self.reserve.saved, *self.widths[n // self.D])
        return Kept(self.reserve.every, columns, attributes)

    def saved_of(
        self, reserve: Place, rows: int
    ) -> tuple[list[Place | None], list[tuple[Place, ...]]]:
        """
        Return the places in these rows of the masks and of the saved arrays.

        The masks are by layer, None for the first, the saved arrays by layer and direction.
        """
        parts = [
            reserve.part(s.start, s.stop).reshape(*shape).part(0, rows)
            for s, shape in self.reserve.places
        ]
        masks: list[Place | None] = [None] * self.L
        if self.rate:
            of_layer = len(parts) // self.L
            masks[1:] = parts[of_layer :: of_layer + 1]
            del parts[of_layer :: of_layer + 1]
        n = len(self.reserve.saved._fields)
        return masks, [tuple(parts[k : k + n]) for k in range(0, len(parts), n)]

    def work_of(self, table: Table, rows: int, most: int) -> list[tuple[Place, ...]]:
        """
        Return places for saved arrays in inference, where only h outlives its direction.

        The others have memory for `most` of the rows.
        """
        found = []
        for H, P in self.widths:
            columns = columns_of(self.reserve.saved, H, P)[:-1]
            others = [table.reuse(f"saved{k}", (most, n)) for k, n in enumerate(columns)]
            found += [(*others, table.take("work", (rows, P))) for _ in range(self.D)]
        return found

    def back(self, n: int) -> bool:
        """Return whether direction n, counted by layer and direction, runs backwards."""
        return self.reverse or n % self.D == 1

    def by_layer(self, parts: list[Any]) -> list[list[Any]]:
        """Return a list by layer and direction as one list for each layer."""
        return [parts[n : n + self.D] for n in range(0, len(parts), self.D)]


# A state of all layers, [L*D, B, ·], or a list of one of each layer, [D, B, ·]; None for zeros.
_State: TypeAlias = "Place | list[Place] | None"


def _states(table: Table, net: NetLayout, names: Sequence[str]) -> list[Any]:
    """Return the states of a call, or their gradients, from the names of h and of the others."""
    h, *others = (table.arguments[name] for name in names[: net.states])
    if net.states > 2:
        others = [None] * (net.states - 1) if others[0] is None else others[0]
    return [[*a] if a is not None and not isinstance(a, Place) else a for a in (h, *others)]


def _by_direction(net: NetLayout, states: Sequence[_State]) -> list[tuple[Place | None, ...]]:
    """Return the states by layer and direction."""
    found: list[Sequence[Place | None]] = []
    for state in states:
        parts = state if isinstance(state, list) else [state]
        found.append(
            [None] * (net.L * net.D)
            if state is None
            else [a.at(n) for a in parts if a is not None for n in range(a.shape[0])]
        )
    return list(zip(*found, strict=True))


class _Axes(NamedTuple):
    """The arrays of a net as time-major places; the caller's may be batch-major."""

    table: Table
    machine: Any
    net: NetLayout

    def read(self, a: Any) -> Any:
        """Return an array of the caller, or a list of arrays, as [T, B, ·] or [L*D, B, ·]."""
        if isinstance(a, list):
            return [self.read(part) for part in a]
        if a is None or not self.net.are_exchanged:
            return a
        M, N, K = a.shape
        if 1 in (M, N):
            return a.reshape(N, M, K)
        to = self.table.take("work", (N, M, K))
        self.machine.exchange(a, to)
        return to

    def take(self, allocation: str, *shape: int) -> Place:
        """Return the place where a result is computed."""
        if not self.net.are_exchanged:
            return self.table.take(allocation, shape)
        M, N, K = shape
        if 1 in (M, N):
            return self.table.take(allocation, (N, M, K)).reshape(M, N, K)
        return self.table.take("work", shape)

    def like(self, states: Sequence[_State], allocations: Sequence[str], B: int) -> list[_State]:
        """Return places for results like the caller's states, and as `zero_states` for None."""
        net = self.net
        found: list[_State] = []
        layered = len({*net.widths}) > 1 or any(isinstance(state, list) for state in states)
        for k, (state, name) in enumerate(zip(states, allocations, strict=True)):
            sizes, new = [width[k == 0] for width in net.widths], partial(self.take, name)
            is_list = layered if state is None else isinstance(state, list)
            found.append(
                [new(net.D, B, size) for size in sizes]
                if is_list
                else new(net.L * net.D, B, sizes[0])
            )
        return found

    def returned(self, allocation: str, a: Any) -> Any:
        """Return the place of a result in the caller's order, or a tuple, from computed places."""
        if isinstance(a, list):
            return tuple([self.returned(allocation, part) for part in a])
        if a is None or not self.net.are_exchanged:
            return a
        M, N, K = a.shape
        if 1 in (M, N):
            return a.reshape(N, M, K)
        to = self.table.take(allocation, (N, M, K))
        self.machine.exchange(a, to)
        return to


class _Nested:
    """Makes a result from its arrays in order; its fields may be lists or tuples of arrays."""

    def __init__(
        self, make: Callable[[Iterable[Any]], Any], parts: Sequence[_Nested | None]
    ) -> None:
        self._of, self._parts = make, parts  # None for an array
        self._is_flat = not any(parts)

    def _take(self, left: Iterator[Any]) -> Any:
        if self._is_flat:
            return self._of(islice(left, len(self._parts)))
        return self._of([next(left) if p is None else p._take(left) for p in self._parts])

    def _make(self, arrays: Iterable[Any]) -> Any:
        return self._take(iter(arrays))


def _finish(machine: Any, results: Sequence[Any], kind: Any, *more: Any) -> Any:
    """Return what `machine.finish` does, for results that may be lists or tuples of places."""
    flat: list[Place | None] = []

    def nested(a: Any) -> _Nested | None:
        if a is None or isinstance(a, Place):
            flat.append(a)
            return None
        return _Nested(getattr(a, "_make", type(a)), [nested(part) for part in a])

    parts = [nested(a) for a in results]
    makes = _Nested(kind._make, parts) if any(parts) else kind
    return machine.finish(flat, makes, *more)


def _joined(states: Sequence[Any], zeros: list[Place]) -> tuple[Any, Any]:
    """Return h and the other states as a result has them: one, a tuple, or a scalar zero."""
    h, *others = states
    return h, tuple(others) if len(others) > 1 else others[0] if others else zeros.pop(0)


def _net_forward(
    table: Table, machine: Any, net: NetLayout, weights: Sequence[Weights], is_training: bool
) -> list[Any]:
    """Lay out a net; return output, two last states and reserve_space, or scalar zeros."""
    axes, states = _Axes(table, machine, net), _states(table, net, _STATES)
    x, *states = map(axes.read, (table.arguments["input"], *states))
    table.arguments["input"] = x
    (T, B, _), (_, P), D, LD = x.shape, net.widths[-1], net.D, net.L * net.D
    output, n = axes.take("output", T, B, D * P), table.length * B
    clear_after(table, machine, output)
    # Each has its own memory, because PyTorch makes a new tensor faster than a view.
    names = [f"state{k}" for k in range(net.states)]
    last = axes.like(states, names, B)
    zeros = machine.zeros((net.states == 1) + (not is_training))
    if is_training:
        reserve = table.take("reserve", (reserve_size(net.reserve),))
        if net.note_of is None:
            masks, all_saved = net.saved_of(reserve, n)
        else:
            # One direction in the order of time writes h to the output.
            is_plain = D == 1 and not net.reverse and table.sequences is None
            h = [rows_of(table, output)] if is_plain else []
            masks, all_saved = net.kept_of(table, reserve, n, h)
            machine.write_note(reserve, net.reserve.size, net.note_of)
        for layer, mask in enumerate(masks):
            if mask is not None:
                machine.draw(mask, layer, net.rate, reverse=net.reverse)
    else:
        masks, all_saved = [None] * net.L, net.work_of(table, n, machine.rows_at_once(n))
    layers, both = [], zip(_by_direction(net, states), _by_direction(net, last), strict=True)
    for n, (entry, saved, (entered, left)) in enumerate(zip(weights, all_saved, both, strict=True)):
        d = n + D - LD
        again = rows_of(table, output).part(d * P, (d + 1) * P, 1) if d >= 0 else None
        again = None if saved[-1] == again else again
        places = (rows_of(table, x),), net.back(n), entry, entered, saved, left, again
        kept = net.kept(n) if is_training else None
        layers.append(LayerPlaces(*places, masks[n // D], net.rate, kept))
    forward(machine, net.by_layer(layers))
    found = axes.returned("output", output), *map(axes.returned, names, last)
    joined = _joined(found[1:], zeros)
    return [found[0], *joined, reserve if is_training else zeros[-1]]


def _net_backward(
    table: Table,
    machine: Any,
    net: NetLayout,
    entries: Sequence[tuple[Weights, Any]],
    input_gradient: bool,
    again: Any = None,
) -> list[Any]:
    """
    Lay out a net's gradient; return the gradients of the input and of two first states.

    `again` are the attributes of the cells that kept their states, if these are not all.
    """
    axes, reserve = _Axes(table, machine, net), table.arguments["reserve_space"]
    x, dy = (axes.read(table.arguments[n]) for n in ("input", "output_backprop"))
    table.arguments["input"] = x
    states, of_states = ([*map(axes.read, _states(table, net, n))] for n in (_STATES, _COTANGENTS))
    B, (_, P) = x.shape[1], net.widths[-1]
    x_grad = axes.take("x", *x.shape) if input_gradient else None
    if x_grad is not None:
        clear_after(table, machine, x_grad)
    first = axes.like(states, ["weights"] * net.states, B)
    zeros = machine.zeros(int(net.states == 1))
    layers, grads = [], []
    nothing: tuple[None, ...] = (None,) * len(states)
    if net.reserve.every is None:
        masks, all_saved = net.saved_of(reserve, table.length * B)
    else:
        masks, all_saved = net.kept_of(table, reserve, table.length * B, None)
    if net.note_of is not None:
        machine.expect_note(reserve, net.note_of)
    by_direction = zip(*(_by_direction(net, a) for a in (states, of_states, first)), strict=True)
    for n, ((entry, of_entry), saved) in enumerate(zip(entries, all_saved, strict=True)):
        (entered, of_last, start), (layer, d) = next(by_direction), divmod(n, net.D)
        places = (rows_of(table, x),), net.back(n), entry, entered, saved, nothing, None
        layers.append(LayerPlaces(*places, masks[layer], net.rate, net.kept(n, again)))
        of_x = rows_of(table, x_grad) if x_grad is not None else None
        of_h = None if dy is None else rows_of(table, dy).part(d * P, (d + 1) * P, 1)
        grads.append(GradientPlaces((of_h, *nothing[1:]), of_last, start, of_x, of_entry))
    backward(machine, table, net.by_layer(layers), net.by_layer(grads))
    of_x = axes.returned("x", x_grad)
    return [of_x, *_joined([axes.returned("weights", a) for a in first], zeros)]


_STATES, _COTANGENTS = ("input_h", "input_c"), ("output_h_backprop", "output_c_backprop")


class PackedNet(NamedTuple):
    """A net of packed parameters."""

    net: NetLayout
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
        sources = matrices, matrices, matrices, params, params
        for places in self.weights:
            entry = PackedLayer._make(
                None if place is None else a.part(place[0].start, place[0].stop).reshape(*place[1])
                for a, place in zip(sources, places, strict=True)
            )
            w_x, w_h, w_p, b, b_more = cast("tuple[Any, ...]", entry)
            if w_x is None or w_p is not None:
                found.append(of_form(entry))
            else:
                vectors = {"b": b, "b_more": b_more, "sums": b}
                found.append(Weights((w_x.T,), (w_h.T,), vectors, entry))
        return found

    @property
    def matrices(self) -> int:
        """The number of parameters that belong to matrices; they come first."""
        ends = [place[0].stop for weights in self.weights for place in weights[:3] if place]
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
    table, machine = machine_for(arguments, net, saves=net.net.saves(is_training=is_training))
    params = _params(table)
    weights = net.weights_of(params, params)
    returned = _net_forward(table, machine, net.net, weights, is_training)
    return machine.finish(returned, CudnnRNNOutputs, host_reserved)


def cudnn_rnn_backprop(arguments: Arguments, net: PackedNet, input_gradient: bool) -> Any:
    """Lay out cudnn_rnn_backprop."""
    table, machine = machine_for(arguments, net, saves=net.net.saves())
    params = _params(table)
    entries, params_grad, end = _packed_gradients(table, machine, net, params)
    weights = net.weights_of(params, params)
    pairs = list(zip(weights, entries, strict=True))
    found = _net_backward(table, machine, net.net, pairs, input_gradient)
    end()
    return machine.finish([*found, params_grad], CudnnRNNGrads)


def _packed_gradients(
    table: Any, machine: Any, net: PackedNet, params: Place | _Pieces
) -> tuple[Sequence[Any], Place | None, Callable[[], None]]:
    """
    Return places for the gradients of layers and of the parameters, and a function.

    The function adds the operation that computes the second from the first.
    """
    mode, compute = table.arguments.get("weight_gradients", "sum"), compute_dtype(table.dtype)
    if mode == "none":
        return [NO_WEIGHTS] * len(net.weights), None, lambda: None
    if mode != "sum":
        like = np.broadcast_to(np.int8(0), params.shape)
        memory = machine.start_examples(OfPacked, like, mode)
        returned = table.hold(1)
        of_layers = [Examples(memory, n) for n in range(len(net.weights))]
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
    found, H = [], net.net.widths[0][0]
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
    B, L, count, (H, P) = x.shape[0], net.net.L, len(saved._fields), net.net.widths[0]
    last = [table.take("states", (L, B, width)) for width in (P, H)[: len(states)]]
    entered = _by_direction(net.net, states)
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


class FormedLayer(NamedTuple):
    """Layers whose weights only their form knows: those of a projection or of a user's cell."""

    attributes: Any
    of: Any  # the form

    def form(self, is_single: bool = False) -> Any:
        """Return the form of the weights."""
        return self.of

    def cell(self, cells: Cells) -> None:
        """Machines have no cell for them."""

    def weights_of(self, entry: Any) -> Weights:
        """Return the weights of a layer."""
        return of_form(entry)

    def read_of(self, entry: Any) -> Weights:
        """Return the weights that a gradient reads."""
        return of_form(entry)

    def like(self, entry: Any) -> Any:
        """Return arrays with the shapes of the weights, of one number of memory."""
        return each(entry, lambda a: np.broadcast_to(np.int8(0), a.shape))

    def gradients_of(self, table: Table, entry: Any, *, zeros: bool) -> Entry:
        """Return the weights of a layer with their gradients."""
        grads = entry._make([a and table.take("weights", a.shape) for a in entry])
        for a in grads:
            if a is not None and len(a.shape) == 1:  # vectors are accumulated
                table.begin(a, None)
        return Entry(of_form(entry), of_form(grads), grads, [])


class StackedNet(NamedTuple):
    """A net of weights of the block ops."""

    net: NetLayout
    layer: BlockLayer | FormedLayer  # each layer

    def entries(self, weights: Sequence[Any]) -> Sequence[Any]:
        """Return the weights as the layer takes them."""
        return weights if isinstance(self.layer, FormedLayer) else [w._asdict() for w in weights]


def stacked_rnn(arguments: Arguments, net: StackedNet, is_training: bool) -> Any:
    """Lay out stacked_rnn."""
    saves = net.net.saves(is_training=is_training)
    table, machine = machine_for(arguments, net.layer, saves=saves)
    weights = [*map(net.layer.weights_of, net.entries(table.arguments["weights"]))]
    returned = _net_forward(table, machine, net.net, weights, is_training)
    return _finish(machine, returned, StackedRNNOutputs)


def stacked_rnn_backprop(arguments: Arguments, net: StackedNet, again: Any) -> Any:
    """Lay out stacked_rnn_backprop; `again` as in `_net_backward`."""
    table, machine = machine_for(arguments, net.layer, saves=net.net.saves())
    weights = table.arguments["weights"]
    entries = entries_of(table, machine, net.layer, net.entries(weights), zeros=False)
    if net.net.reserve.every is not None:  # the forward pass is computed again, with biases
        whole = map(net.layer.weights_of, net.entries(weights))
        entries = [e._replace(weights=w) for e, w in zip(entries, whole, strict=True)]
    of_net = [entry[:2] for entry in entries]
    found = _net_backward(table, machine, net.net, of_net, True, again)
    finish_all(machine, entries)
    of_weights = [
        entry._make((*grads.returned, *[None] * len(entry))[: len(entry)])
        for entry, grads in zip(weights, entries, strict=True)
    ]
    return _finish(machine, [*found, of_weights], StackedRNNGrads)
