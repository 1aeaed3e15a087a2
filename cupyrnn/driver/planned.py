"""
A net whose layers are compiled calls that are laid out once.

In NumPy, where sequences have one length and a net has one direction, drops nothing and saves all,
nothing moves: what its layers read and leave are parts of the arrays of the call, at places that
the sizes decide. These are settled once, with all that lies between the checks and the compiled
loops; a call after that makes its results and runs the loops. The numbers are those of `stack`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..cells.contract import each
from . import layer as _layer

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import Cell, Gradients
    from .reserve import Leaves

# Steps up to which a call is planned: of more, what a plan saves does not count.
_MOST_STEPS = 4096
# Rows up to which inference may have memory for all that the steps save.
_MOST_ROWS = 1024
_READY = 0x0001 | 0x0100  # NumPy's flags of C order and of aligned numbers


class Packed(NamedTuple):
    """A net of one direction whose weights and biases are parts of one vector."""

    size: int  # of the vector
    cells: Callable[[Array], Sequence[Any]]  # of such a vector, by layer
    gradients: Callable[[Array], Sequence[Gradients]]  # views of one, and memory for the sums
    biases: Sequence[tuple[slice, slice]]  # for each cell two, whose sum its b is
    leaves: Leaves
    dtype: np.dtype[Any]


def _ready(arrays: Sequence[Array | None]) -> list[Any]:
    """Return arrays as compiled code reads them, in C order and aligned: copies of some."""
    return [a if a is None or a.flags.num & _READY == _READY else _copy(a) for a in arrays]


def fits(leaves: Leaves) -> bool:
    """Return whether the calls of a net can be laid out once, if it has one direction."""
    rows, sizes = leaves.rows, leaves.sizes
    most = rows.rows if sizes.is_training else _MOST_ROWS
    return (
        rows.alike
        and leaves.every is None
        and not sizes.drops(leaves.net)
        and 1 < rows.steps <= _MOST_STEPS
        and 0 < rows.rows <= most
    )


def compiled_loops() -> Callable[[str], Any]:
    """Return what finds the compiled loops of a cell."""
    return _layer._compiled


def _like(a: Array) -> Array:
    """Return memory in C order for an array of the same shape."""
    return np.empty(a.shape, a.dtype)


def _copy(a: Array) -> Array:
    """Return a copy in C order."""
    return a.copy()


def _of_layer(states: Any, n: int) -> Any:
    """Return the states of a layer, of those of all."""
    return each(states, lambda s: s[n])


def _bound() -> Any:
    """Return the module of calls laid out once, where Numba is installed."""
    from ..compiled import bound

    return bound


class _Layers:
    """What computes the layers of a net, one call each, in one direction."""

    def __init__(self, packed: Packed, cells: Sequence[Cell], way: str) -> None:
        self._rows, self._dtype, self._way = packed.leaves.rows.rows, packed.dtype, way
        self.modules = [self._module(cell) for cell in cells]
        if not all(hasattr(module, "layer_call") for module in self.modules):
            raise LookupError
        # One is enough to ask by, without its matrices.
        self._cell = self._without_matrices(cells[0])

    def _module(self, cell: Cell) -> Any:
        """Return what computes a layer in one call."""
        return _layer.one_call(np, cell, self._rows, self._dtype, self._way)

    def _without_matrices(self, cell: Any) -> Any:
        """Return a cell of the same sizes that holds no matrix."""
        nothing = np.zeros((), self._dtype)
        weights = (
            tuple(
                w if w.w is None else w._replace(w=np.broadcast_to(nothing, w.w.shape))
                for w in given
            )
            for given in (cell.inputs, cell.recurrent)
        )
        return cell._replace(**dict(zip(("inputs", "recurrent"), weights, strict=True)))

    def hold(self) -> bool:
        """Return whether these compute the layers still; nothing else of a plan can change."""
        return self._module(self._cell) is self.modules[0]


class Forward:
    """
    The forward calls of a net.

    Parameters
    ----------
    x, first
        The time-major input and first states of a call like those that follow.

    Raises
    ------
    LookupError
        The layers are not a compiled call each.
    """

    def __init__(self, packed: Packed, x: Array, first: Any) -> None:
        leaves = packed.leaves
        params = np.empty(packed.size, packed.dtype)
        cells = packed.cells(params)
        self._layers = _Layers(packed, cells, "forward")
        self._size, self._training = leaves.size, leaves.sizes.is_training
        # In memory of our own: what is given may be the same array twice.
        x, reserve = _like(x), np.empty(self._size, packed.dtype)
        first = each(first, _like)
        saved = [part.saved[0] for part in leaves.parts(reserve)]
        values, starts = x.reshape(-1, x.shape[2]), leaves.rows.starts
        self._calls = []
        for n, (cell, module) in enumerate(zip(cells, self._layers.modules, strict=True)):
            call = module.layer_call(cell, values, _of_layer(first, n), starts, saved[n])
            self._calls.append(_bound().Bound(call, (x, *first, params, reserve, cell.b)))
            values = saved[n].h
        self._biases = packed.biases
        # h of the last layer is what the last one saves last.
        self._output = slice(self._size - values.size, self._size)
        self._shape = (*x.shape[:2], values.shape[1])

    def __call__(self, x: Array, first: Any, params: Array) -> tuple[Array, Any, Array] | None:
        """Return what `stack.forward` does; None where it has to."""
        if not self._layers.hold():
            return None
        x, params = _ready((x, params))
        last = each(first, _copy)
        reserve = np.empty(self._size, params.dtype)
        for call, (b_x, b_h) in zip(self._calls, self._biases, strict=True):
            call((x, *last, params, reserve, params[b_x] + params[b_h]))
        output = reserve[self._output].reshape(self._shape).copy()
        return output, last, reserve if self._training else np.zeros((), params.dtype)


class Backward:
    """
    The gradients of a net, those of its weights summed.

    Parameters
    ----------
    x, first
        As in `Forward`.
    has_output_grad
        Whether the gradient of the output is given.

    Raises
    ------
    LookupError
        The layers are not a compiled call each.
    """

    def __init__(self, packed: Packed, x: Array, first: Any, has_output_grad: bool) -> None:
        leaves, dtype = packed.leaves, packed.dtype
        params, grads = (np.empty(packed.size, dtype) for _ in range(2))
        cells = packed.cells(params)
        self._layers = _Layers(packed, cells, "backward")
        x, reserve = _like(x), np.empty(leaves.size, dtype)
        first, carried = each(first, _like), each(first, _like)
        saved = [part.saved[0] for part in leaves.parts(reserve)]
        inputs = [x.reshape(-1, x.shape[2]), *(s.h for s in saved[:-1])]
        nothing = [None] * (len(first) - 1)
        calls = []
        for n, (cell, module) in enumerate(zip(cells, self._layers.modules, strict=True)):
            given = None
            if has_output_grad or n < len(cells) - 1:
                given = np.empty_like(saved[n].h)
            into = np.empty_like(inputs[n])
            call = module.layer_call(
                cell,
                inputs[n],
                _of_layer(carried, n),
                leaves.rows.starts,
                saved[n],
                _bound().Back(
                    _of_layer(first, n),
                    first._make([given, *nothing]),
                    packed.gradients(grads)[n]._replace(x=into),
                ),
            )
            others = (x, *first, params, reserve, into, *carried[1:], grads, given)
            calls.append(_bound().Bound(call, others if given is not None else others[:-1]))
        self._calls = [*enumerate(zip(calls, packed.biases, strict=True))][::-1]
        self._widths = [a.shape for a in inputs]

    def __call__(
        self,
        inputs: tuple[Array, Any, Array, Array],
        output_grad: Array | None,
        last_grad: Any,
    ) -> tuple[Array, Any, Array] | None:
        """
        Return the gradients of input, first states and parameters; None where `stack` has to.

        Parameters
        ----------
        inputs
            The input, the first states, the parameters and reserve_space.
        output_grad, last_grad
            Each may be None.
        """
        x, first, params, reserve = inputs
        if not self._layers.hold():
            return None
        x, params, reserve, given, *states = _ready((x, params, reserve, output_grad, *first))
        first = first._make(states)
        input_grad, grads = np.empty_like(x), np.empty_like(params)
        carried = first._make(
            [
                np.zeros_like(s) if g is None else _copy(g)
                for s, g in zip(first, last_grad, strict=True)
            ]
        )
        for n, (call, (b_x, b_h)) in self._calls:
            into = np.empty(self._widths[n], x.dtype) if n else input_grad
            others = (x, *first, params, reserve, into, *carried[1:], grads, given)
            (sums,) = call(others, carried.h[n])
            grads[b_x] = grads[b_h] = sums
            given = into
        return input_grad, carried, grads
