"""
The loops over the layers and directions of a net: one forward, one backward.

A loop passes each layer, as places by name, to a machine, which turns it into operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

from .._typing import Array, NamedTuple
from ..checks.arrays import compute_dtype
from .places import Place, Table


class Weights(NamedTuple):
    """The weights of a layer, or their gradients."""

    w_x: tuple[Place, ...]  # [K, ·], of each product of a step; none if x is added to every gate
    w_h: tuple[Place, ...]  # [H, ·], the last one of a projection, [H, P]
    vectors: dict[str, Place | None]  # by the names that the cell has for them
    entry: Any = None  # all of them as the form of the weights has them


# The gradients of weights that nobody wants.
NO_WEIGHTS = Weights((), (), {})


def of_form(entry: Any) -> Weights:
    """Return weights that only their form knows; NumPy computes their layer."""
    return Weights((), (), {}, entry)


class Examples(NamedTuple):
    """The gradients of a layer's weights by example, or their norms."""

    memory: Place  # in a call an `OfNet`, the memory for those of all layers
    layer: int  # counted by layer and direction


class Kept(NamedTuple):
    """Which states the steps of a layer keep for a gradient that computes the rest again."""

    every: int  # before every k-th step but the first, or, for 1, after every step
    columns: Sequence[int]  # the width of each array of the cell's Saved
    attributes: Any = None  # backwards, those of the forward pass's cell


class LayerPlaces(NamedTuple):
    """The inputs and outputs of one direction of a layer; N = T*B rows in the order of time."""

    x: tuple[Place, ...]  # [N, K], or the parts of it that are side by side
    back: bool  # whether its steps run backwards in time
    weights: Weights
    # The states before the first step, [B, H], with a projection h [B, P]; None: zeros.
    first: tuple[Place | None, ...]
    saved: Sequence[Place]  # the saved arrays, [N, H]; h is the last, [N, P]
    last: tuple[Place | None, ...]  # the states after the last step, written forwards
    output: Place | None = None  # [N, H], where h is written a second time
    mask: Any = None  # of x, ones and zeros, in the order of the first direction's steps
    rate: float = 0.0  # the fraction that the mask drops
    kept: Kept | None = None  # of steps that keep states; `saved` is then these and h of every step


class GradientPlaces(NamedTuple):
    """The gradients of one direction of a layer."""

    states: tuple[Place | None, ...]  # of each step's states, [N, H], h first
    last: tuple[Place | None, ...]  # of the states after the last step, [B, H]
    first: tuple[Place, ...]  # written: of the states before the first step
    x: Any  # written, [N, K], of all parts of x side by side; None: not wanted
    weights: Any  # written: Weights, or Examples; empty Weights if not wanted
    adds_x: bool = False  # whether the gradient of x is added to its place


class Cells(NamedTuple):
    """The cells of a machine, as functions of their attributes."""

    lstm: Callable[..., Any]  # of columns, cell_clip, gate and forget_bias
    gru: Callable[..., Any]  # of gate
    gru_reset_after: Callable[..., Any]  # of gate
    simple_rnn: Callable[..., Any]  # of relu
    of_page: Callable[..., Any]  # of a compiled page of a user's cell, and its attributes


class RecordedCall(Protocol):
    """Runs the calls of a signature."""

    draws: bool  # whether they draw masks

    def __call__(self, arrays: Sequence[Array], data: bytes = b"", keys: Sequence[int] = ()) -> Any:
        """Run a call; `data` are its lengths and resets, `keys` are of its masks."""


class Machine(Protocol):
    """Makes the operations of a call."""

    def zeros(self, count: int) -> list[Place]:
        """Return the places of scalars that are zero."""

    def clear(self, a: Place) -> None:
        """Initialize the new array of a place with zeros."""

    def exchange(self, a: Place, to: Place) -> None:
        """Add an operation that writes `a` with its first two axes exchanged to `to`."""

    def rows_at_once(self, rows: int) -> int:
        """Return for how many of the rows inference needs memory for what its steps save."""

    def draw(self, mask: Place, layer: int, rate: float, *, reverse: bool) -> None:
        """Add an operation that draws the mask of a layer's input, in the order of steps."""

    def forward_layer(self, layer: LayerPlaces) -> None:
        """Add the operations of one direction of a layer."""

    def backward_layer(self, layer: LayerPlaces, grads: GradientPlaces) -> None:
        """Add the operations of the gradient of one direction of a layer."""

    def backward_gates(
        self, layer: LayerPlaces, grads: GradientPlaces, deltas: Sequence[Place] = ()
    ) -> object:
        """
        Add the gradient of a single step up to its gates, and of x if it is wanted.

        `deltas` are written: the gradients of the products.
        """

    def round(self, a: Place, to: Place) -> None:
        """Add an operation that converts computed numbers to the storage type."""

    def drop(self, a: Place, layer: LayerPlaces, to: Place) -> None:
        """Add an operation that writes the gradient of a masked input to `to`, rounded."""

    def write_note(self, reserve: Place, size: int, note_of: Callable[..., NamedTuple]) -> None:
        """Add an operation that writes the note of kept states behind `size` numbers."""

    def expect_note(self, reserve: Place, note_of: Callable[..., NamedTuple]) -> None:
        """Add an operation that looks for the note of kept states."""

    def start_examples(
        self, make: Callable[..., Any], like: object, weight_gradients: str
    ) -> Place:
        """
        Add an operation that takes memory for gradients by example, or for norms.

        `make` is `OfPacked` or `of_entries`, of parameters or of weights with the shapes of `like`.
        """

    def finish_examples(self, memory: Place, returned: Sequence[Place | None]) -> None:
        """Add an operation that converts gradients by example, or norms, to results."""

    def finish(self, returned: Sequence[Place | None], kind: Any, *more: Array) -> RecordedCall:
        """Return an object that runs these calls; its result is a `kind` of arrays and `more`."""


def forward(machine: Machine, layers: Iterable[Sequence[LayerPlaces]]) -> None:
    """
    Add the operations of a net, by layer and direction.

    Each layer but the first reads h of all directions of the layer below.
    """
    for directions in with_inputs(layers):
        for layer in directions:
            machine.forward_layer(layer)


def with_inputs(layers: Iterable[Sequence[LayerPlaces]]) -> Iterator[Sequence[LayerPlaces]]:
    """Yield the layers, each with its input."""
    below: Sequence[LayerPlaces] = ()
    for directions in layers:
        if below:
            x = tuple(layer.saved[-1] for layer in below)
            directions = [layer._replace(x=x) for layer in directions]
        yield directions
        below = directions


def backward(
    machine: Machine,
    table: Table,
    layers: Sequence[Sequence[LayerPlaces]],
    grads: Sequence[Sequence[GradientPlaces]],
) -> None:
    """
    Add the operations of the gradient of a net, by layer and direction.

    The last layer has gradients of states, the first one a place for the gradient of its input.
    `table` provides the memory between layers. A machine with memory of its own is the table too.
    """
    states = [grad.states for grad in grads[-1]]
    for n, directions in reversed(list(enumerate(with_inputs(layers)))):
        (first, *_), x = directions, grads[n][0].x
        read, mask = first.x, first.mask
        ends = [0, *accumulate(part.shape[1] for part in read)]
        if n:
            x = table.reuse(f"x{n % 2}", (read[0].shape[0], ends[-1]))
        # Sums of directions and scaled gradients are rounded once.
        into, compute, is_wide = x, compute_dtype(table.dtype), len(directions) > 1 or bool(mask)
        if x is not None and is_wide and compute != table.dtype:
            into = table.reuse("sum", x.shape, compute)
        for d, layer in enumerate(directions):
            grad = grads[n][d]._replace(states=states[d], x=into, adds_x=d > 0)
            machine.backward_layer(layer, grad)
        if x is not None and mask is not None:
            machine.drop(into, first, x)
        elif into is not x:
            machine.round(into, x)
        if n and x is not None:
            others = (None,) * (len(directions[0].first) - 1)
            states = [(x.part(*columns, 1), *others) for columns in pairwise(ends)]
