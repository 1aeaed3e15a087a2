"""The nets as tables: see `layouts`, which has the block ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from .._typing import Array, NamedTuple, StackedRNNGrads, StackedRNNOutputs
from ..cells.contract import Form, OfCell, each
from ..checks.nets import shapes_of_states
from .layouts import BlockLayer, Entry, clear_after, entries_of, finish_all, rows_of
from .net import (
    Cells,
    GradientPlaces,
    LayerPlaces,
    Machine,
    RecordedCall,
    Weights,
    backward,
    forward,
    of_form,
)
from .places import Place, Table
from .recording import machine_for
from .reserve import NetLayout, reserve_size
from .signatures import Arguments

# A state of all layers, [L*D, B, ·], or a list of one of each layer, [D, B, ·]; None for zeros.
_State: TypeAlias = "Place | list[Place] | None"


def _states(table: Table, layout: NetLayout, names: Sequence[str]) -> list[Any]:
    """Return the states of a call, or their gradients, from the names of h and of the others."""
    h, *others = (table.arguments[name] for name in names[: layout.states])
    if layout.states > 2:
        others = [None] * (layout.states - 1) if others[0] is None else others[0]
    return [[*a] if a is not None and not isinstance(a, Place) else a for a in (h, *others)]


def by_direction(layout: NetLayout, states: Sequence[_State]) -> list[tuple[Place | None, ...]]:
    """Return the states by layer and direction."""
    found: list[Sequence[Place | None]] = []
    for state in states:
        parts = state if isinstance(state, list) else [state]
        found.append(
            [None] * (layout.net.L * layout.net.D)
            if state is None
            else [a.at(n) for a in parts if a is not None for n in range(a.shape[0])]
        )
    return list(zip(*found, strict=True))


class _Axes(NamedTuple):
    """The arrays of a net as time-major places; the caller's may be batch-major."""

    table: Table
    machine: Machine
    layout: NetLayout

    def read(self, a: _State) -> Any:
        """Return an array of the caller, or a list of arrays, as [T, B, ·] or [L*D, B, ·]."""
        if isinstance(a, list):
            return [self.read(part) for part in a]
        if a is None or not self.layout.are_exchanged:
            return a
        M, N, K = a.shape
        if 1 in (M, N):
            return a.reshape(N, M, K)
        to = self.table.take("work", (N, M, K))
        self.machine.exchange(a, to)
        return to

    def take(self, allocation: str, *shape: int) -> Place:
        """Return the place where a result is computed."""
        if not self.layout.are_exchanged:
            return self.table.take(allocation, shape)
        M, N, K = shape
        if 1 in (M, N):
            return self.table.take(allocation, (N, M, K)).reshape(M, N, K)
        return self.table.take("work", shape)

    def like(self, states: Sequence[_State], allocations: Sequence[str], B: int) -> list[_State]:
        """Return places for results like the caller's states, and as `zero_states` for None."""
        shapes = shapes_of_states(self.layout.net, states, (B, True))
        return [
            [self.take(name, *of_layer) for of_layer in shape]
            if isinstance(shape, list)
            else self.take(name, *shape)
            for shape, name in zip(shapes, allocations, strict=True)
        ]

    def returned(self, allocation: str, a: _State) -> Any:
        """Return the place of a result in the caller's order, or a tuple, from computed places."""
        if isinstance(a, list):
            return tuple([self.returned(allocation, part) for part in a])
        if a is None or not self.layout.are_exchanged:
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
        self, make: Callable[[Iterable[object]], object], parts: Sequence[_Nested | None]
    ) -> None:
        self._of, self._parts = make, parts  # None for an array
        self._is_flat = not any(parts)

    def _take(self, left: Iterator[object]) -> object:
        if self._is_flat:
            return self._of(islice(left, len(self._parts)))
        return self._of([next(left) if p is None else p._take(left) for p in self._parts])

    def _make(self, arrays: Iterable[object]) -> object:
        return self._take(iter(arrays))


def _finish(machine: Machine, results: Sequence[object], kind: Any, *more: Array) -> RecordedCall:
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


def _joined(states: Sequence[object], zeros: list[Place]) -> tuple[object, object]:
    """Return h and the other states as a result has them: one, a tuple, or a scalar zero."""
    h, *others = states
    return h, tuple(others) if len(others) > 1 else others[0] if others else zeros.pop(0)


def net_forward(
    table: Table, machine: Machine, layout: NetLayout, weights: Sequence[Weights], is_training: bool
) -> list[Any]:
    """Describe a net; return output, two last states and reserve_space, or scalar zeros."""
    axes, states = _Axes(table, machine, layout), _states(table, layout, _STATES)
    x, *states = map(axes.read, (table.arguments["input"], *states))
    table.arguments["input"] = x
    (T, B, _), (L, D, widths), LD = x.shape, layout.net, len(weights)
    P = widths[-1][1]
    output, n = axes.take("output", T, B, D * P), table.length * B
    clear_after(table, machine, output)
    # Each has its own memory, because PyTorch makes a new tensor faster than a view.
    names = [f"state{k}" for k in range(layout.states)]
    last = axes.like(states, names, B)
    zeros = machine.zeros((layout.states == 1) + (not is_training))
    if is_training:
        reserve = table.take("reserve", (reserve_size(layout),))
        if layout.note_of is None:
            masks, all_saved = layout.saved_of(reserve, n)
        else:
            # One direction in the order of time writes h to the output.
            is_plain = D == 1 and not layout.reverse and table.sequences is None
            h = [rows_of(table, output)] if is_plain else []
            masks, all_saved = layout.kept_of(table, reserve, n, h)
            machine.write_note(reserve, layout.size, layout.note_of)
        for layer, mask in enumerate(masks):
            if mask is not None:
                machine.draw(mask, layer, layout.rate, reverse=layout.reverse)
    else:
        masks, all_saved = [None] * L, layout.work_of(table, n, machine.rows_at_once(n))
    layers, both = [], zip(by_direction(layout, states), by_direction(layout, last), strict=True)
    for n, (entry, saved, (entered, left)) in enumerate(zip(weights, all_saved, both, strict=True)):
        d = n + D - LD
        again = rows_of(table, output).part(d * P, (d + 1) * P, 1) if d >= 0 else None
        again = None if saved[-1] == again else again
        places = (rows_of(table, x),), layout.back(n), entry, entered, saved, left, again
        kept = layout.kept(n) if is_training else None
        layers.append(LayerPlaces(*places, masks[n // D], layout.rate, kept))
    forward(machine, layout.by_layer(layers))
    found = axes.returned("output", output), *map(axes.returned, names, last)
    joined = _joined(found[1:], zeros)
    return [found[0], *joined, reserve if is_training else zeros[-1]]


def net_backward(
    table: Table,
    machine: Machine,
    layout: NetLayout,
    entries: Sequence[tuple[Weights, Any]],
    input_gradient: bool,
    again: object = None,
) -> list[Any]:
    """
    Describe a net's gradient; return the gradients of the input and of two first states.

    `again` are the attributes of the cells that kept their states, if these are not all.
    """
    axes, reserve = _Axes(table, machine, layout), table.arguments["reserve_space"]
    x, dy = (axes.read(table.arguments[n]) for n in ("input", "output_backprop"))
    table.arguments["input"] = x
    states, of_last = ([*map(axes.read, _states(table, layout, n))] for n in (_STATES, _COTANGENTS))
    B, D, P = x.shape[1], layout.net.D, layout.net.widths[-1][1]
    x_grad = axes.take("x", *x.shape) if input_gradient else None
    if x_grad is not None:
        clear_after(table, machine, x_grad)
    first = axes.like(states, ["weights"] * layout.states, B)
    zeros = machine.zeros(int(layout.states == 1))
    layers, grads = [], []
    nothing: tuple[None, ...] = (None,) * len(states)
    if layout.every is None:
        masks, all_saved = layout.saved_of(reserve, table.length * B)
    else:
        masks, all_saved = layout.kept_of(table, reserve, table.length * B, None)
    if layout.note_of is not None:
        machine.expect_note(reserve, layout.note_of)
    of_states = zip(*(by_direction(layout, a) for a in (states, of_last, first)), strict=True)
    for n, ((entry, of_entry), saved) in enumerate(zip(entries, all_saved, strict=True)):
        (entered, left, start), (layer, d) = next(of_states), divmod(n, D)
        places = (rows_of(table, x),), layout.back(n), entry, entered, saved, nothing, None
        layers.append(LayerPlaces(*places, masks[layer], layout.rate, layout.kept(n, again)))
        of_x = rows_of(table, x_grad) if x_grad is not None else None
        of_h = None if dy is None else rows_of(table, dy).part(d * P, (d + 1) * P, 1)
        grads.append(GradientPlaces((of_h, *nothing[1:]), left, start, of_x, of_entry))
    backward(machine, table, layout.by_layer(layers), layout.by_layer(grads))
    of_x = axes.returned("x", x_grad)
    return [of_x, *_joined([axes.returned("weights", a) for a in first], zeros)]


_STATES, _COTANGENTS = ("input_h", "input_c"), ("output_h_backprop", "output_c_backprop")


class FormedLayer(NamedTuple):
    """
    Layers of a user's cell.

    Only their form knows their weights, unless the cell has a compiled page.
    """

    attributes: object
    of: Form
    page: Any = None  # the compiled page

    def form(self, is_single: bool = False) -> Form:
        """Return the form of the weights."""
        return self.of

    def form_of_loops(self) -> Form:
        """Return the form of the weights for compiled loops."""
        return self.of

    def cell(self, cells: Cells) -> Any:
        """Return the machine's cell for this layer; None if it has none."""
        return cells.of_page(self.page, self.attributes)

    def weights_of(self, entry: OfCell) -> Weights:
        """Return the weights of a layer."""
        if self.page is None:
            return of_form(entry)
        w_x, w_h, vectors = self.page.weights_of(entry)
        return Weights(w_x, w_h, vectors, entry)

    def read_of(self, entry: OfCell) -> Weights:
        """Return the weights that a gradient reads."""
        return self.weights_of(entry)

    def like(self, entry: OfCell) -> OfCell:
        """Return arrays with the shapes of the weights, of one number of memory."""
        return each(entry, lambda a: np.broadcast_to(np.int8(0), a.shape))

    def gradients_of(self, table: Table, entry: OfCell, *, zeros: bool) -> Entry:
        """Return the weights of a layer with their gradients."""
        grads = entry._make([a and table.take("weights", a.shape) for a in entry])
        for a in grads:
            if a is not None and len(a.shape) == 1:  # vectors are accumulated
                table.begin(a, None)
        return Entry(self.weights_of(entry), self.weights_of(grads), grads, [])


class StackedNet(NamedTuple):
    """A net of weights of the block ops."""

    layout: NetLayout
    layer: BlockLayer | FormedLayer  # each layer

    def entries(self, weights: Sequence[Any]) -> Sequence[Any]:
        """Return the weights as the layer takes them."""
        return weights if isinstance(self.layer, FormedLayer) else [w._asdict() for w in weights]


def stacked_rnn(arguments: Arguments, net: StackedNet, is_training: bool) -> RecordedCall:
    """Describe stacked_rnn."""
    saves = net.layout.saves(is_training=is_training)
    table, machine = machine_for(arguments, net.layer, saves=saves)
    weights = [*map(net.layer.weights_of, net.entries(table.arguments["weights"]))]
    returned = net_forward(table, machine, net.layout, weights, is_training)
    return _finish(machine, returned, StackedRNNOutputs)


def stacked_rnn_backprop(arguments: Arguments, net: StackedNet, again: object) -> RecordedCall:
    """Describe stacked_rnn_backprop; `again` as in `net_backward`."""
    table, machine = machine_for(arguments, net.layer, saves=net.layout.saves())
    weights = table.arguments["weights"]
    entries = entries_of(table, machine, net.layer, net.entries(weights), zeros=False)
    if net.layout.every is not None:  # the forward pass is computed again, with biases
        whole = map(net.layer.weights_of, net.entries(weights))
        entries = [e._replace(weights=w) for e, w in zip(entries, whole, strict=True)]
    of_net = [entry[:2] for entry in entries]
    found = net_backward(table, machine, net.layout, of_net, True, again)
    finish_all(machine, entries)
    of_weights = [
        entry._make((*grads.returned, *[None] * len(entry))[: len(entry)])
        for entry, grads in zip(weights, entries, strict=True)
    ]
    return _finish(machine, [*found, of_weights], StackedRNNGrads)
