"""
One call of a compiled layer.

The compiled loops read words: addresses, sizes and strides. All but the addresses are the same in
every call with the same shapes, layout and attributes, so a `Plan` is made once for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .._typing import Array
from ..arithmetic.gates import HardSigmoid
from .plan import Plan, Shapes, Spec, most_threads, plan_of


@functools.lru_cache(maxsize=64)
def line_of(gate: HardSigmoid | None, dtype: np.dtype[Any]) -> Array:
    """Return the slope and the offset of a hard sigmoid; zeros for the sigmoid."""
    return np.array(gate or (0, 0), dtype)


def _oriented(w: Array, dtype: np.dtype[Any]) -> tuple[Array, tuple[bool, int]]:
    """Return a matrix, whether it is transposed in memory, and its stride in bytes there."""
    if w.dtype == dtype and w.flags.aligned:
        rows, columns = w.strides
        if (columns == w.itemsize or w.shape[1] == 1) and rows >= 0:
            return w, (False, rows)
        if (rows == w.itemsize or w.shape[0] == 1) and columns >= 0:
            return w, (True, columns)
    copy = np.ascontiguousarray(w, dtype)
    return copy, (False, copy.strides[0])


def c_ordered(arrays: Sequence[Array | None], dtype: np.dtype[Any]) -> list[Any]:
    """Return arrays in C order, aligned and of this dtype."""
    # carray is the fast test of the common case: in C order, aligned and writable.
    return [
        a
        if a is None or (a.dtype is dtype and a.flags.carray)
        else np.require(a, dtype, ("C", "A"))
        for a in arrays
    ]


# Each compiled cell passes such a function to `entry_points`; `run_layer` calls it.
SpecOf: TypeAlias = Callable[[Any, int, np.dtype[Any]], tuple[Spec, list[Array]]]


class Back(NamedTuple):
    """The additional arguments of a layer's gradient."""

    first: Any  # the states before the first step
    cotangents: Any  # the gradients of each step's states
    grads: Any  # a Gradients, to be written; its x has the dtype of the computation


def run_layer(
    spec_of: SpecOf, cell: Any, x: Array, carried: Any, starts: Array, saved: Any,
    back: Back | None = None,
) -> None:  # fmt: skip
    """
    Compute all steps of a layer, or with `back` their gradient.

    Parameters
    ----------
    spec_of
        Returns the spec of a cell for H units and a dtype, and its arrays: numbers, then vectors.
    x : [N, K]
        In C order, like all arrays here.
    carried
        The states before the first step, overwritten with the states after the last step of each
        sequence. With `back`, the gradients of the last states, overwritten with the gradients of
        the first states.
    starts : [T+1]
        The first row of each step.
    saved
        The cell's Saved, [N, ·] each.
    """
    spec, vectors = spec_of(cell, saved[0].shape[1], x.dtype)
    dtype = spec.dtype
    states = carried if back is None else back.first
    first_c = states.c if len(states) > 1 else None
    weights, layout = orientations([w.w for w in (*cell.inputs, *cell.recurrent)], dtype)
    grads: list[Any] = []
    sums: list[Array] = []
    of_gradient: list[Any] = [None] * 6
    grads_layout: tuple[tuple[bool, int] | None, ...] = ()
    writes_deltas = back is not None and back.grads.weight_gradients == "deltas"
    if back is not None:
        grads, grads_layout = orientations(back.grads.weights, dtype)
        of_gradient = [back.grads.x, carried.h, None, back.cotangents.h, None, back.grads.vectors]
        if first_c is not None:
            of_gradient[2], of_gradient[4] = carried.c, back.cotangents.c
        if not writes_deltas:
            sums = [np.empty(width, dtype) for width in spec.widths]
    dx, _, _, h_grad, c_grad, totals = of_gradient
    kept, last = [*saved, *vectors], (None, None)
    if back is None:
        last = states.h, first_c
    N, I = x.shape
    shapes = Shapes(
        back is not None, writes_deltas, N, N * sum([w.size for w in weights if w is not None]), I,
        saved.h.shape[1], starts.tobytes(), len(saved), len(kept), layout,
        grads_layout,
        tuple(a is not None for a in (first_c, last[0], None, dx, h_grad, c_grad, totals)),
        0 if totals is None else len(totals), (1,) * len(sums),
    )  # fmt: skip
    arrays = (
        x, states.h, first_c, *last, None, None, *of_gradient, *kept, *weights, *grads, *sums
    )  # fmt: skip
    compute(shapes, functools.partial(plan_of, spec, shapes), arrays)
    if back is None:
        return
    for grad, written in zip(back.grads.weights, grads, strict=True):
        if written is not grad:
            grad[...] = written
    for total, column_sums in zip(back.grads.sums or (), sums, strict=False):
        if total is not None:
            total += column_sums


def compute(
    shapes: Shapes, plan_for: Callable[[int], Plan], arrays: Sequence[Array | None]
) -> None:
    """
    Run the loop of a layer.

    Parameters
    ----------
    plan_for
        Returns the plan of a call that may use this many threads.
    arrays
        The arrays that the words refer to, after memory. None for an array that no word refers to.
    """
    most = most_threads(shapes)
    while not plan_for(most).run(arrays):
        most = 1


def orientations(
    matrices: Sequence[Array | None], dtype: np.dtype[Any]
) -> tuple[list[Array | None], tuple[tuple[bool, int] | None, ...]]:
    """Return matrices that the loops can read; for each, whether transposed, and its stride."""
    taken: list[Array | None] = []
    lie: list[tuple[bool, int] | None] = []
    for w in matrices:
        lies = None
        if w is not None and w.dtype is dtype and w.flags.carray:
            lies = False, w.strides[0]
        elif w is not None:
            w, lies = _oriented(w, dtype)
        taken.append(w)
        lie.append(lies)
    return taken, tuple(lie)
