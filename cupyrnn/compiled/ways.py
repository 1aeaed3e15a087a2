"""The ways through a cell that are compiled, as the driver asks for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import single
from .call import Back, LayerCall, compiled, run_layer
from .call import layer_call as _layer_call
from .formulas import Formulas, routines
from .frame import all_steps, all_steps_back
from .plan import Loops, Spec
from .single import one_step

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import BackwardStep


# The code of a cell's rows: each cell's loops have globals of their own.
_ROWS: Any = None
_TERMS: Any = None


def _layer(tid: int, n: int, one: Any, address: int) -> None:
    all_steps(_ROWS, tid, n, one, address)


def _layer_back(tid: int, n: int, one: Any, address: int) -> None:
    all_steps_back(_ROWS, _TERMS, tid, n, one, address)


def _step(tid: int, n: int, one: Any, address: int) -> None:
    one_step(_ROWS, _TERMS, tid, n, one, address)


def loops_of(formulas: Formulas, module: str) -> Loops:
    """
    Return the loops of a cell, to be compiled as functions of the module that has its formulas.

    A closure would do the same, but what is compiled of one cannot be kept.
    """
    file, cell = sys.modules[module].__file__, module.rpartition(".")[2]

    def loop(template: Any, name: str, rows: Any, terms: Any) -> Callable[..., None]:
        code = template.__code__.replace(co_filename=file)
        own = {**globals(), "__name__": module, "_ROWS": rows, "_TERMS": terms}
        made = FunctionType(code, own, f"{cell}_{name}")
        made.__qualname__ = made.__name__
        return made

    layer, step = routines(formulas, module), routines(formulas, module, packed=False)
    return Loops(
        formulas,
        loop(_layer, "forward", layer.forward, layer.terms),
        loop(_layer_back, "backward", layer.backward, layer.terms),
        loop(_step, "step", step.forward, step.terms),
        loop(_step, "step_back", step.backward, step.terms),
    )


def ways(
    loops: Loops, spec_of: Callable[[Any, int, np.dtype[Any]], tuple[Spec, list[Array]]]
) -> tuple[Callable[..., Any], ...]:
    """
    Return what a page of a cell has for the driver: takes, layer_call and four ways through it.

    Those are forward_layer, backward_layer, forward_step and backward_step, each of them one
    compiled call with all products.

    Parameters
    ----------
    spec_of
        Returns the spec of a cell of so many units and its arrays, the first of them numbers.
    """

    def takes(cell: Any, dtype: np.dtype[Any], way: str = "") -> bool:
        """Return whether this way through a cell is compiled for a dtype."""
        loop = getattr(loops, way, None)
        return loop is not None and compiled(loop, dtype.char) is not None

    def layer_call(
        cell: Any, x: Array, carried: Any, starts: Array, saved: Any, back: Back | None = None
    ) -> LayerCall:
        """Return the call of a layer: see `call.layer_call`."""
        spec, vectors = spec_of(cell, saved[0].shape[1], x.dtype)
        return _layer_call(spec, vectors, cell, x, carried, starts, saved, back)

    def forward_layer(cell: Any, x: Array, carried: Any, starts: Array, saved: Any) -> None:
        """All steps of a layer: see `call.run_layer`."""
        run_layer(layer_call(cell, x, carried, starts, saved))

    def backward_layer(
        cell: Any, x: Array, first: Any, starts: Array, saved: Any, given: Any, carried: Any,
        grads: Any,
    ) -> None:  # fmt: skip
        """The gradient of a layer: see `call.run_layer`."""
        run_layer(layer_call(cell, x, carried, starts, saved, Back(first, given, grads)))

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

    return takes, layer_call, forward_layer, backward_layer, forward_step, backward_step
