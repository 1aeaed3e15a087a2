"""A compiled cell as the driver sees it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._typing import Array
from .cache import compiled, error_of
from .formulas import CellCode
from .frame import all_steps, all_steps_back
from .plan import Spec
from .single import one_step

if TYPE_CHECKING:
    from ..arithmetic.gates import HardSigmoid

# The loops that run the formulas of a cell.
_LOOPS = {
    "forward_layer": all_steps,
    "backward_layer": all_steps_back,
    "forward_step": one_step,
    "backward_step": one_step,
}


class HostCell(NamedTuple):
    """
    A cell with its attributes, whose arrays are parts of the arrays of an op's call.

    Attributes
    ----------
    code
        The code of its rows.
    spec_of
        Takes vectors by name, H and a dtype. Returns the spec, and the arrays that its formulas
        read: constants, or some of the vectors.
    read
        The names of the vectors that its gradient reads.
    sums
        For each sum of deltas, the names of the gradients that it is written to. The gradients of
        the cell's own vectors, the sums of its terms, are one array by the name "terms".
    both
        The number of gates that add two biases, which are summed once. They are the first gates.
    reset
        The number of the saved array that h is multiplied by before the last product, or None.
    """

    code: CellCode
    spec_of: Callable[[dict[str, Any], int, np.dtype[Any]], tuple[Spec, list[Any]]]
    read: tuple[str, ...] = ()
    sums: tuple[tuple[str, ...], ...] = ()
    both: int = 0
    reset: int | None = None

    def is_compiled(self, dtype: np.dtype[Any], loop: str) -> bool:
        """Return whether the loop of a layer or of a step, and its formulas, are compiled."""
        functions = _LOOPS[loop], self.code.functions[loop]
        return all(compiled(function, dtype.char) is not None for function in functions)

    def error(self, dtype: np.dtype[Any]) -> Exception | None:
        """Return why formulas are not compiled; None if they are, or if no loop is."""
        for loop, function in _LOOPS.items():
            if compiled(function, dtype.char) is not None:
                error = error_of(self.code.functions[loop], dtype.char)
                if error is not None:
                    return error
        return None


@functools.lru_cache(maxsize=64)
def line_of(gate: HardSigmoid | None, dtype: np.dtype[Any]) -> Array:
    """Return the slope and the offset of a hard sigmoid; zeros for the sigmoid."""
    return np.array(gate or (0, 0), dtype)
