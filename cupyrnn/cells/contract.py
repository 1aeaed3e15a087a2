"""What the driver asks of a cell.

T time steps, B batch, I input size, H hidden size, P the size of h, which is H without a
projection; t the steps of one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from .._arrays import Array


class States(NamedTuple):
    """The states of all sequences, or their gradients."""

    h: Any  # [B, P]; None where it is not wanted
    c: Any = None  # [B, H], of cells that have it


class Weight(NamedTuple):
    """A matrix w: `deltas[of][:, columns]` is the gradient of rows @ w."""

    w: Any  # [K, width]; None adds the rows to every gate, as skip_input does
    width: int
    of: int = 0
    columns: slice = slice(None)


class Span(NamedTuple):
    """Some consecutive steps of the forward pass, as the backward pass reads them."""

    saved: Any  # the cell's Saved: [t, B, ·] each; on a device the rows of the steps, [n, ·]
    before: States  # likewise: the states before each step
    batches: Sequence[int]  # the rows of each step, not rising; all alike but on a device


class Cell(Protocol):
    """
    The weights and attributes of one call: a NamedTuple in ``cells/<name>.py``.

    Beside it in that file, and in those of the same name in ``kernels`` and ``compiled``, stand
    the recurrence over t steps, backwards, and the sums of what is the cell's own::

        forward_steps(cell, w, xw, carried, saved, batches)
        backward_steps(cell, w, span, given, carried, deltas, work)
        add_sums(cell, span, deltas, totals)

    ``w`` are the recurrent matrices, backwards transposed; ``xw``, for each of the inputs, x @ w of
    each step, may be overwritten; ``carried``, in the dtype of the computation, the states before
    the first of the steps, overwritten with those after the last, and backwards the gradients of
    the states after the last, overwritten with those before the first; ``saved`` and ``deltas``
    are written; ``given`` are the gradients of each step's states, which may be None; ``work`` is
    memory that one call after the other may have for what it makes.
    """

    @property
    def Saved(self) -> Any:
        """The NamedTuple of what each step leaves: all [·, H] but h, the last, which is [·, P]."""

    @property
    def inputs(self) -> Sequence[Weight]:
        """The matrices that multiply the input, before the loop."""

    @property
    def recurrent(self) -> Sequence[Weight]:
        """The matrices that multiply h of the step before, or what `operands` makes of it."""

    @property
    def widths(self) -> Sequence[int]:
        """The columns of each of the deltas: the gradients of what the products give."""

    def states(self, saved: Any) -> States:
        """Return which of the saved arrays are states."""

    def operands(self, saved: Any, h_before: Array) -> list[Array]:
        """
        Return what each of the recurrent matrices multiplied, [N, ·], of N rows.

        Not asked of a cell with one, which multiplies h.
        """
