"""The functions of a compiled cell that the driver calls, made from the cell's formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array
from . import single
from .cache import compiled
from .call import Back, SpecOf, run_layer
from .formulas import CellCode
from .frame import all_steps, all_steps_back
from .single import one_step

if TYPE_CHECKING:
    from ..cells.contract import BackwardStep


# The loops that run the formulas of a cell.
_LOOPS = {
    "forward_layer": all_steps,
    "backward_layer": all_steps_back,
    "forward_step": one_step,
    "backward_step": one_step,
}


def entry_points(code: CellCode, spec_of: SpecOf) -> tuple[Callable[..., Any], ...]:
    """
    Return the functions of a compiled cell: takes and four entry points.

    The entry points are forward_layer, backward_layer, forward_step and backward_step. Each is one
    compiled call with all products.
    """

    def takes(cell: Any, dtype: np.dtype[Any], entry: str = "") -> bool:
        """Return whether this entry point of a cell is compiled for a dtype."""
        return entry in _LOOPS and all(
            compiled(function, dtype.char) is not None
            for function in (_LOOPS[entry], code.functions[entry])
        )

    def forward_layer(cell: Any, x: Array, carried: Any, starts: Array, saved: Any) -> None:
        """All steps of a layer: see `call.run_layer`."""
        run_layer(spec_of, cell, x, carried, starts, saved)

    def backward_layer(
        cell: Any, x: Array, first: Any, starts: Array, saved: Any, cotangents: Any, carried: Any,
        grads: Any,
    ) -> None:  # fmt: skip
        """The gradient of a layer: see `call.run_layer`."""
        run_layer(spec_of, cell, x, carried, starts, saved, Back(first, cotangents, grads))

    def forward_step(cell: Any, x: Array, first: Any, saved: Any) -> None:
        """One step with all its products."""
        spec, vectors = spec_of(cell, saved[0].shape[1], x.dtype)
        weights = [weight.w for weight in (*cell.inputs, *cell.recurrent)]
        single.forward(spec, x, first, weights, vectors, saved)

    def backward_step(cell: Any, step: BackwardStep) -> None:
        """One step backwards."""
        spec, vectors = spec_of(cell, step.saved[0].shape[1], step.carried.h.dtype)
        weights = (*cell.inputs, *cell.recurrent)
        places = tuple([(w.delta, w.columns.start or 0) for w in weights])
        if len(cell.recurrent) > 1 and spec.projects:
            step.deltas[-1][...] = step.carried.h
        single.backward(spec, step, [w.w for w in weights], places, cell.widths, vectors)

    return takes, forward_layer, backward_layer, forward_step, backward_step
