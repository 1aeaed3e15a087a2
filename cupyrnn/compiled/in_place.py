"""Compiled calls whose arrays are at places of the arrays of a call of an op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array
from .addresses import At, address_of
from .call import Laid, compute
from .plan import Shapes, Spec
from .single import LaidStep, Sizes

_OWN = 2  # the memory and the words of a loop, which are its first arrays


class CellInPlace(NamedTuple):
    """
    A cell with its attributes, whose arrays are at places of the arrays of a call.

    Attributes
    ----------
    takes
        Whether a way through the cell is compiled for a dtype.
    spec_of
        Returns the spec for vectors by name, H and a dtype, and the arrays that its formulas read:
        constants, or some of the vectors.
    read
        The names of the vectors that its gradient reads.
    sums
        The names of the gradients that each sum of deltas is written to.
    both
        How many gates add two biases, which are summed once: the first ones.
    reset
        Which of the saved arrays h is multiplied with before the last product, None for none.
    """

    takes: Callable[..., bool]
    spec_of: Callable[[dict[str, Any], int, np.dtype[Any]], tuple[Spec, list[Any]]]
    read: tuple[str, ...]
    sums: tuple[tuple[str, ...], ...]
    both: int = 0
    reset: int | None = None


class _Places:
    """Where the arrays of a loop, in its order, are among those of a call: places, constants."""

    def __init__(self, arrays: Sequence[At | Array | None]) -> None:
        # For each array of the loop: the number of an array of the call, or -1, and an offset.
        self._at = np.array([*((n, 0) for n in range(_OWN)), *map(_at, arrays)])
        self._constants = [a for a in arrays if isinstance(a, np.ndarray)]  # kept alive

    def moved(self, block: Array, relocations: Array) -> tuple[Array, Array]:
        """Return the words of a loop, and which of them have addresses, for arrays of a call."""
        block, (words, arrays) = block.copy(), relocations.T
        numbers, offsets = self._at[arrays].T
        block[words] += offsets
        return block, np.stack([words, numbers], axis=1)[numbers >= 0]


class LayerInPlace:
    """
    The calls of a layer whose arrays are at places of the arrays of a call.

    Parameters
    ----------
    spec, shapes
        What the words of the loop depend on.
    arrays
        The arrays of the loop in order: places, constants or None.
    """

    def __init__(self, spec: Spec, shapes: Shapes, arrays: Sequence[At | Array | None]) -> None:
        self._spec, self._shapes, self._places = spec, shapes, _Places(arrays)
        self._laid: dict[int, Laid] = {}  # by the number of threads that a call may have

    def _laid_for(self, most: int) -> Laid:
        laid = self._laid.get(most)
        if laid is None:
            laid = Laid.of(self._spec, self._shapes, most)
            block, relocations = self._places.moved(laid.block, laid.relocations)
            self._laid[most] = laid = laid._replace(block=block, relocations=relocations)
        return laid

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Do what `compute` does, of the arrays of a call."""
        return compute(self._shapes, arrays, self._laid_for)


class StepInPlace:
    """The calls of a single step whose arrays are at places of the arrays of a call."""

    def __init__(self, spec: Spec, sizes: Sizes, arrays: Sequence[At | Array | None]) -> None:
        self._laid, self._places = LaidStep(spec, sizes), _Places(arrays)
        self._words = self._places.moved(self._laid.block, self._laid.relocations)

    def __call__(self, arrays: Sequence[Array]) -> None:
        """Compute the step, of the arrays of a call."""
        self._laid.run(arrays, *self._words)


def _at(a: At | Array | None) -> tuple[int, int]:
    if a is None:
        return 0, 0
    return (_OWN + a.array, a.offset) if isinstance(a, At) else (-1, address_of(a))
