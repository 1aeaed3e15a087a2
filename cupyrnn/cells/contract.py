"""What the driver asks of a cell.

T time steps, B batch, I input size, H hidden size, P the size of h, which is H without a
projection; t the steps of one call, n their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from .._typing import Array, NamedTuple
from ..arithmetic.scratch import Scratch
from ..checks.attributes import shown


class States(NamedTuple):
    """
    The states of all sequences, or their gradients, of a cell with h alone.

    A cell with others has a NamedTuple of its own, whose first field is h [B, P]; the others
    are [B, H]. A gradient that is not given is None.
    """

    h: Any


class Weight(NamedTuple):
    """A matrix w: `deltas[delta][:, columns]` is the gradient of rows @ w."""

    w: Any  # [K, width]; None adds the rows to every gate, as skip_input does
    width: int
    delta: int = 0
    columns: slice = slice(None)


class ForwardRun(NamedTuple):
    """
    Some consecutive steps, as `forward_steps` takes them.

    In NumPy all have equally many rows, and arrays are [t, B, ·]. On a device the rows of a step
    follow those of the step before: [n, ·].
    """

    w: Sequence[Any]  # the recurrent matrices
    xw: Sequence[Any]  # for each of the inputs x @ w of every step; may be overwritten
    # Before the first step, in the dtype of the computation; overwritten with those after the last.
    carried: Any  # the cell's states
    saved: Any  # the cell's Saved; written
    batches: Sequence[int]  # the rows of each step, not rising


class BackwardRun(NamedTuple):
    """Some consecutive steps, as `backward_steps` and `add_sums` take them."""

    w: Sequence[Any]  # the recurrent matrices, transposed
    saved: Any  # the cell's Saved, as the forward pass left it
    before: Any  # the states before each step
    batches: Sequence[int]  # the rows of each step, not rising
    cotangents: Any  # the gradients of each step's states
    # The gradients of the states after the last step; overwritten with those before the first.
    carried: Any
    deltas: Sequence[Any]  # written
    work: Scratch  # memory that one call after the other may have for what it makes


class BackwardStep(NamedTuple):
    """One step, as `backward_step` takes it: [B, ·] all, in the dtype of the computation."""

    saved: Any  # the cell's Saved, as the forward pass left it
    before: Any  # the states before the step
    carried: Any  # the gradients of the states after it; overwritten with those before it
    deltas: Sequence[Any]  # written
    totals: Any = None  # of the gradients of the cell's own vectors, added to
    x: Any = None  # the gradient of the input, written; None where it is not wanted


class Gradients(NamedTuple):
    """
    Where the driver writes the gradients of a layer.

    With "examples" the arrays of weights have an axis B in front of the others. With "norms" the
    weights are lists, one for all the matrices of a weight, to which norms [B] are appended. With
    "none" there is only x. With "deltas" a compiled layer writes the gradients of the products,
    [N, ·] each, instead of those of the weights.
    """

    x: Any  # [N, K], rounded to its dtype
    weights: Sequence[Any]  # like those of cell.inputs and cell.recurrent; None: not wanted
    # The column sums of each of the deltas, accumulated; None for one, or for all, if not wanted.
    sums: Any
    vectors: Any = None  # gradients of the cell's own vectors, accumulated
    weight_gradients: str = "sum"
    adds: bool = False  # whether the gradients of the weights are accumulated, too


class Cell(Protocol):
    """
    The weights and attributes of one call: a NamedTuple in ``cells/<name>.py``, or anywhere.

    The same file, and those of the same name in ``kernels`` and ``compiled``, contain the
    recurrence over t steps, forward and backward, and the sums for the cell's own vectors. In NumPy
    they may be methods of the class; its attributes ``kernels`` and ``compiled`` may name the other
    modules::

        forward_steps(cell, run)
        backward_steps(cell, run)
        add_sums(cell, run, totals)

    For a single step in NumPy, which is mostly calls, there may be two more, products included::

        forward_step(cell, x, first, saved)
        backward_step(cell, step)

    A cell may also have a method ``operands(saved, h_before)``: what each of the recurrent matrices
    multiplied, [N, ·], of N rows. Without it, or where it is None, this is h of the step before for
    all of them. One with vectors of its own has a method ``terms(saved, before, deltas)``: what
    `add_sums` sums, a list of [N, ·] in the order of the totals, of N rows.
    """

    @property
    def Saved(self) -> Any:
        """
        The NamedTuple of the results of each step. The last one is h, [·, P].

        The others are [·, H], unless it has a static method ``columns(H, P)``, which returns
        how wide each is.
        """

    @property
    def inputs(self) -> Sequence[Weight]:
        """The matrices that multiply the input, before the loop."""

    @property
    def recurrent(self) -> Sequence[Weight]:
        """The matrices that multiply h of the step before, or what `operands` makes of it."""

    @property
    def widths(self) -> Sequence[int]:
        """The columns of each of the deltas, the gradients of the products."""

    def states(self, saved: Any) -> Any:
        """Return which of the saved arrays are states: a NamedTuple whose first field is h."""


def columns_of(saved: Any, H: int, P: int) -> list[int]:
    """Return how wide each of the arrays of a cell's Saved is."""
    if hasattr(saved, "columns"):
        columns: list[int] = saved.columns(H, P)
        return columns
    return [H] * (len(saved._fields) - 1) + [P]


class FormedWeights(Protocol):
    """Weights that know their form: a NamedTuple of arrays with this property."""

    @property
    def form(self) -> Form:
        """What makes a cell of them."""


_States = TypeVar("_States", bound=tuple[Any, ...])


def each(states: _States, change: Callable[[Array], Any]) -> _States:
    """Return states with a change to each of them that is not None."""
    changed: _States = type(states)._make(  # type: ignore[attr-defined]
        [None if s is None else change(s) for s in states]
    )
    return changed


class Attributes(NamedTuple):
    """The attributes of a call as they are given, for a `Form` to check those of its cell."""

    forget_bias: Any = None
    cell_clip: Any = None
    gate_order: Any = "icfo"
    recurrent_activation: Any = "sigmoid"


class Form(Protocol):
    """
    One kind of weights, a NamedTuple of arrays: their requirements, and the cell that they make.

    The ops find it as the property ``form`` of the weights. Symbols of `shapes` are K, the width of
    a layer's input, H and P.
    """

    name: ClassVar[str]  # of the cell, as errors show it: "an LSTM"
    States: Any  # the NamedTuple of the cell's states
    Saved: Any  # and of the results of its steps
    shapes: ClassVar[Mapping[str, str]]  # of each of the weights, such as "K+P, 4*H"
    together: ClassVar[Sequence[str]] = ()  # vectors that are passed all or not at all
    apart: ClassVar[Sequence[str]] = ()  # whose gradients need no memory: `finished` adds them
    projection: ClassVar[str] = ""  # the optional matrix [H, P] of a projection

    def attributes(
        self, op: str, attributes: Attributes, dtype: np.dtype[Any], *, forward: bool
    ) -> Any:
        """Check the attributes of a call; return what `cell` takes."""
        for attribute, value in attributes._asdict().items():
            expected = Attributes._field_defaults[attribute]
            if value != expected:
                raise ValueError(
                    f"{op}: {attribute} is {shown(value)}, expected {expected} for {self.name}"
                )

    def cell(self, xp: ModuleType, weights: Any, attributes: Any) -> Cell:
        """Return the cell of weights: matrices as products take them, vectors as sums do."""

    def gradients(self, xp: ModuleType, grads: Any) -> Gradients:
        """
        Return where the gradients of a cell go: views of `grads`, arrays like its weights.

        Each of `grads` may have an axis in front, the same for all; so has then what is returned.
        Any view will do, but no copy: without `finished`, each of `grads` has to be reached by
        one. Vectors are zeros.
        """

    def finished(self, grads: Any, written: Gradients) -> Any:
        """Return `grads` with what `gradients` could not make a view of them."""
        return grads
