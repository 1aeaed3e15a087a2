"""Compiled calls whose arrays are parts of the arrays of an op's call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array
from .addresses import MEMORY, At, Block, address_of
from .call import CompiledPlan, compute
from .plan import Shapes, Spec
from .single import CompiledStep, StepSizes


class HostCell(NamedTuple):
    """
    A cell with its attributes, whose arrays are parts of the arrays of an op's call.

    Attributes
    ----------
    takes
        Whether an entry point of the cell is compiled for a dtype.
    spec_of
        Takes vectors by name, H and a dtype. Returns the spec, and the arrays that its formulas
        read: constants, or some of the vectors.
    read
        The names of the vectors that its gradient reads.
    sums
        For each sum of deltas, the names of the gradients that it is written to.
    both
        The number of gates that add two biases, which are summed once. They are the first gates.
    reset
        The number of the saved array that h is multiplied by before the last product, or None.
    """

    takes: Callable[..., bool]
    spec_of: Callable[[dict[str, Any], int, np.dtype[Any]], tuple[Spec, list[Any]]]
    read: tuple[str, ...]
    sums: tuple[tuple[str, ...], ...]
    both: int = 0
    reset: int | None = None


class _Places:
    """The places of a loop's arrays in the arrays of an op's call, and its constants."""

    def __init__(self, arrays: Sequence[At | Array | None]) -> None:
        # For each array of the loop: the number of an array of a call, and an offset or an address.
        self._at = [(MEMORY, 0), *map(_at, arrays)]
        self._constants = [a for a in arrays if isinstance(a, np.ndarray)]  # keeps them alive

    def moved(self, words: Sequence[int | At]) -> list[int | At]:
        """Return words for the arrays of an op's call, which follow memory."""
        found: list[int | At] = []
        for w in words:
            if isinstance(w, At) and w.array != MEMORY:
                array, offset = self._at[w.array]
                offset += w.offset
                w = offset if array == MEMORY else At(array, offset)
            found.append(w)
        return found


class LayerInPlace:
    """
    The calls of a layer whose arrays are parts of the arrays of an op's call.

    Parameters
    ----------
    spec, shapes
        The cell and the signature of the loop.
    arrays
        The arrays of the loop in order: a place in an array of the op's call, a constant, or None.
    """

    def __init__(self, spec: Spec, shapes: Shapes, arrays: Sequence[At | Array | None]) -> None:
        self._spec, self._shapes, self._places = spec, shapes, _Places(arrays)
        self._plans: dict[int, CompiledPlan] = {}  # by the number of threads that a call may have

    def _plan_for(self, most: int) -> CompiledPlan:
        plan = self._plans.get(most)
        if plan is None:
            plan = CompiledPlan.of(self._spec, self._shapes, most, self._places.moved)
            self._plans[most] = plan
        return plan

    def __call__(self, arrays: Sequence[Array]) -> None:
        """Run `call.compute` on the arrays of an op's call."""
        compute(self._shapes, arrays, self._plan_for)


class StepInPlace:
    """The calls of a single step whose arrays are parts of the arrays of an op's call."""

    def __init__(self, spec: Spec, sizes: StepSizes, arrays: Sequence[At | Array | None]) -> None:
        self._step, self._places = CompiledStep(spec, sizes), _Places(arrays)
        self._block = Block(self._places.moved(self._step.words), self._step.place)

    def __call__(self, arrays: Sequence[Array]) -> None:
        """Compute the step on the arrays of an op's call."""
        self._step.run(arrays, self._block)


def _at(a: At | Array | None) -> tuple[int, int]:
    if a is None:
        return MEMORY, 0
    return (1 + a.array, a.offset) if isinstance(a, At) else (MEMORY, address_of(a))
