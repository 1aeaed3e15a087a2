"""
Calls of a layer whose arrays are parts of a few others, always at the same places.

What a net reads and leaves are few arrays: its input, its states, its parameters, its
reserve_space. Where the arrays of a layer lie in these is settled once, and a call takes those
alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._typing import Array
from .addresses import address_of
from .call import Back, Laid, LayerCall, compute

__all__ = ["Back", "PlacedCall"]

_OWN = 2  # memory and block, which come first


class PlacedCall:
    """
    The calls like one, of whose arrays every one is a part of one of others, or is constant.

    Parameters
    ----------
    call
        Of it are kept shapes, layout and what is constant.
    others
        In a call of this their like are given, in this order.
    """

    def __init__(self, call: LayerCall, others: Sequence[Array]) -> None:
        self._spec, self._shapes = call.spec, call.shapes
        self._constants: list[Array] = []
        places = [(0, 0) if a is None else self._place(a, others) for a in call.arrays]
        # Of each array the number of the other one, -1 without, and how far behind it begins.
        self._places = np.array([*((n, 0) for n in range(_OWN)), *places])
        self._laid: dict[int, Laid] = {}  # by the number of threads that a call may have

    def _place(self, a: Array, others: Sequence[Array]) -> tuple[int, int]:
        """Return of which of the others an array is a part, and where; or -1 and its address."""
        address = address_of(a)
        for n, other in enumerate(others):
            offset = address - address_of(other)
            if 0 <= offset < other.nbytes:
                return _OWN + n, offset
        self._constants.append(a)
        return -1, address

    def _laid_for(self, most: int) -> Laid:
        """Return a plan with its block and its relocations by the others."""
        laid = self._laid.get(most)
        if laid is None:
            laid = Laid.of(self._spec, self._shapes, most)
            block, (words, arrays) = laid.block.copy(), laid.relocations.T
            others, offsets = self._places[arrays].T
            block[words] += offsets
            relocations = np.stack([words, others], axis=1)[others >= 0]
            self._laid[most] = laid = laid._replace(block=block, relocations=relocations)
        return laid

    def __call__(self, others: Sequence[Array]) -> list[Array]:
        """Do what `compute` does, of the others."""
        return compute(self._shapes, others, self._laid_for)
