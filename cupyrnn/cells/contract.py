"""The interface between the driver and a cell.

T time steps, B batch, I input size, H hidden size, P the size of h (H without a projection); t the
steps of one call, n their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import ModuleType
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np

from .._typing import Array, NamedTuple
from ..arithmetic.scratch import Scratch
from ..checks.attributes import shown

# A NamedTuple of arrays whose type depends on the cell: its States, its Saved, or its weights.
OfCell: TypeAlias = Any


class States(NamedTuple):
    """
    The states of all sequences, or their gradients, of a cell whose only state is h.

    A cell with more states has its own NamedTuple, whose first field is h [B, P]; the others are
    [B, H]. A missing gradient is None.
    """

    h: Any


class Weight(NamedTuple):
    """A matrix w: `deltas[delta][:, columns]` is the gradient of rows @ w."""

    w: Any  # [K, width]; None adds the rows to every gate (skip_input)
    width: int
    delta: int = 0
    columns: slice = slice(None)


class ForwardRun(NamedTuple):
    """
    Some consecutive steps: the argument of `forward_steps`.

    In NumPy all steps have the same number of rows, and arrays are [t, B, ·]. On a device the rows
    of a step follow those of the step before: [n, ·].
    """

    w: Sequence[Any]  # the recurrent matrices
    xw: Sequence[Any]  # for each of the inputs x @ w of every step; may be overwritten
    # The cell's states before the first step, in the dtype of the computation; overwritten with
    # the states after the last step.
    carried: Any
    saved: Any  # the cell's Saved; written
    batches: Sequence[int]  # the rows of each step, non-increasing
    work: Scratch  # memory for intermediate arrays, reused by the next call


class BackwardRun(NamedTuple):
    """Some consecutive steps: the argument of `backward_steps` and `add_sums`."""

    w: Sequence[Any]  # the recurrent matrices, transposed
    saved: Any  # the cell's Saved of the forward pass
    before: Any  # the states before each step
    batches: Sequence[int]  # the rows of each step, non-increasing
    cotangents: Any  # the gradients of each step's states
    # On entry the gradients of the last states, on return the gradients of the first states.
    carried: Any
    deltas: Sequence[Any]  # written
    work: Scratch  # memory for intermediate arrays, reused by the next call


class BackwardStep(NamedTuple):
    """One step: the argument of `backward_step`. Arrays are [B, ·], in the computation's dtype."""

    saved: Any  # the cell's Saved of the forward pass
    before: Any  # the states before the step
    carried: Any  # the gradients of the states after it; overwritten with the gradients before it
    deltas: Sequence[Any]  # written
    totals: Any = None  # the sums of the gradients of the cell's own vectors; accumulated
    x: Any = None  # the gradient of the input; written; None if it is not wanted


class Gradients(NamedTuple):
    """
    Where the driver writes the gradients of a layer.

    With "examples" the arrays of weights have a leading axis B. With "norms" each entry of weights
    is a list, to which norms [B] are appended; the matrices of one weight share a list. With "none"
    there is only x. With "deltas" a single step writes the gradients of the products, [B, ·] each,
    instead of the gradients of the weights.
    """

    x: Any  # [N, K], rounded to its dtype
    weights: Sequence[Any]  # in the order of cell.inputs and cell.recurrent; None if not wanted
    # The column sums of each of the deltas; accumulated; None for one, or for all, if not wanted.
    sums: Any
    vectors: Any = None  # gradients of the cell's own vectors; accumulated
    weight_gradients: str = "sum"
    adds: bool = False  # whether the gradients of the weights are accumulated


class Cell(Protocol):
    """
    The weights and attributes of one call: a NamedTuple in ``cells/<name>.py``, or in any file.

    That file, and the file of the same name in ``kernels``, have functions for the recurrence over
    t steps, forward and backward, and for the sums of the cell's own vectors. In NumPy they may be
    methods of the class. The file of the same name in ``compiled`` has formulas. The attributes
    ``kernels`` and ``compiled`` of the class may name other modules::

        forward_steps(cell, run)
        backward_steps(cell, run)
        add_sums(cell, run, totals)

    Three more are optional: a single step in NumPy, products included, in as few calls as possible,
    and a function that returns a step of one cell that keeps nothing for a gradient::

        forward_step(cell, x, first, saved)
        backward_step(cell, step)
        prepared_step(cell)

    A cell may also have a method ``operands(saved, h_before)``, which returns the left factor
    [N, ·] of each recurrent matrix, for N rows. Without it, or if it is None, each left factor is h
    of the step before. A cell with vectors of its own has a method
    ``terms(saved, before, deltas)``: it returns the arrays [N, ·] that `add_sums` sums, in the
    order of the totals, for N rows.
    """

    @property
    def Saved(self) -> Any:
        """
        The NamedTuple of the results of each step. The last field is h, [·, P].

        The others are [·, H], unless the NamedTuple has a static method ``columns(H, P)``, which
        returns the width of each.
        """

    @property
    def inputs(self) -> Sequence[Weight]:
        """The matrices that multiply the input, before the loop."""

    @property
    def recurrent(self) -> Sequence[Weight]:
        """The matrices that multiply h of the step before, or the result of `operands`."""

    @property
    def widths(self) -> Sequence[int]:
        """The number of columns of each of the deltas, the gradients of the products."""

    def states(self, saved: Any) -> Any:
        """
        Return the saved arrays that are states: a NamedTuple whose first field is h.

        Parameters
        ----------
        saved : NamedTuple
            The cell's `Saved`.
        """


def columns_of(saved: Any, H: int, P: int) -> list[int]:
    """Return the width of each array of a cell's Saved."""
    if hasattr(saved, "columns"):
        columns: list[int] = saved.columns(H, P)
        return columns
    return [H] * (len(saved._fields) - 1) + [P]


class FormedWeights(Protocol):
    """Weights that know their form: a NamedTuple of arrays with this property."""

    @property
    def form(self) -> Form:
        """Makes a cell of the weights."""


_States = TypeVar("_States", bound=tuple[Any, ...])


def each(states: _States, change: Callable[[Array], Any]) -> _States:
    """Apply a function to each of the states that is not None."""
    changed: _States = type(states)._make(  # type: ignore[attr-defined]
        [None if s is None else change(s) for s in states]
    )
    return changed


class Attributes(NamedTuple):
    """The unchecked attributes of a call; `Form.attributes` checks them."""

    forget_bias: Any = None
    cell_clip: Any = None
    gate_order: Any = "icfo"
    recurrent_activation: Any = "sigmoid"
    proj_clip: Any = None


class Form(Protocol):
    """
    One kind of weights (a NamedTuple of arrays): their checks, and the cell made of them.

    The weights have it as the property ``form``. Symbols of `shapes` are K (the width of a layer's
    input), H and P.
    """

    name: ClassVar[str]  # the cell's name in errors: "an LSTM"
    States: Any  # the NamedTuple of the cell's states
    Saved: Any  # the NamedTuple of the results of its steps
    shapes: ClassVar[Mapping[str, str]]  # the shape of each of the weights, such as "K+P, 4*H"
    together: ClassVar[Sequence[str]] = ()  # vectors that must all be there, or none
    apart: ClassVar[Sequence[str]] = ()  # vectors whose gradients `finished` adds: need no memory
    projection: ClassVar[str] = ""  # the name of the optional matrix [H, P] of a projection

    def attributes(
        self, op: str, attributes: Attributes, dtype: np.dtype[Any], *, forward: bool
    ) -> Any:
        """
        Check the attributes of a call. By default every value but the default is refused.

        Parameters
        ----------
        op : str
            The op's name, for errors.
        attributes : Attributes
            The attributes as the caller passed them.
        dtype : numpy.dtype
            The dtype of the weights.
        forward : bool
            Whether this is a forward call.

        Returns
        -------
        object
            The argument `attributes` of `cell`.

        Raises
        ------
        ValueError, TypeError
            An attribute is not supported.
        """
        for attribute, value in attributes._asdict().items():
            expected = Attributes._field_defaults[attribute]
            is_number_or_name = isinstance(value, str | Real)  # an array has no truth value
            if value is not expected and not (is_number_or_name and value == expected):
                raise ValueError(
                    f"{op}: {attribute} is {shown(value)}, expected {expected} for {self.name}"
                )

    def cell(self, xp: ModuleType, weights: Any, attributes: Any) -> Cell:
        """
        Return the cell of a call.

        Parameters
        ----------
        xp : module
            numpy or cupy.
        weights : NamedTuple
            The weights of one layer and direction. Matrices have the dtype of products, vectors
            the dtype of sums.
        attributes : object
            The result of `attributes`.
        """

    def gradients(self, xp: ModuleType, grads: Any) -> Gradients:
        """
        Return memory for the gradients of a cell: views of `grads`.

        Copies do not work: unless `finished` is overridden, each of `grads` needs a view.

        Parameters
        ----------
        xp : module
            numpy or cupy.
        grads : NamedTuple
            Arrays like the weights; vectors are zeros. For gradients by example all have a leading
            axis B, and so must the views.
        """

    def finished(self, grads: Any, written: Gradients) -> Any:
        """
        Return `grads`, with the gradients in it that have no view in `gradients`.

        Parameters
        ----------
        grads : NamedTuple
            The argument of `gradients`.
        written : Gradients
            The result of `gradients`, after the driver has written the gradients.
        """
        return grads
