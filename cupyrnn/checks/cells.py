"""The checks of a user's cell before it runs: what its form and its methods return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .attributes import counted, shown, type_shown
from .block import shape_of

_OF_FORM = ("name", "States", "Saved", "shapes", "cell", "gradients")
_OF_CELL = ("inputs", "recurrent", "widths", "Saved", "states")


def check_form(op: str, weights: Any) -> None:
    """Check that a form has its attributes, and a shape for each of the weights."""
    form = weights.form
    _expect(op, type(form).__name__, form, _OF_FORM)
    of_form, fields = type(form).__name__, weights._fields
    for name in fields:
        if name not in form.shapes:
            raise ValueError(
                f"{op}: {of_form}.shapes has no {name}, expected the shape of each of"
                f" {', '.join(fields)}"
            )
        try:
            shape_of(form.shapes[name], K=1, H=1, P=1)
        except (AttributeError, TypeError, ValueError):
            raise ValueError(
                f"{op}: {of_form}.shapes[{name!r}] is {shown(form.shapes[name])}, expected symbols"
                " such as 'K+P, 4*H', of K, H and P"
            ) from None


def _expect(op: str, where: str, found: Any, names: Sequence[str]) -> None:
    """Check that a form or a cell has these attributes."""
    for name in names:
        if getattr(found, name, None) is None:
            raise TypeError(f"{op}: {where} has no {name}, expected {', '.join(names)}")


def check_parts(op: str, form: Any, cell: Any, saved: Any, h: Any) -> None:
    """
    Check that the matrices, deltas and states of a cell fit each other.

    `saved` and `h` are a row of what its steps save, and of the h before them.
    """
    made = f"{type(form).__name__}.cell"
    if not hasattr(cell, "_fields"):
        raise TypeError(f"{op}: {made} returned {type_shown(cell)}, expected a NamedTuple")
    of_cell = type(cell).__name__
    _expect(op, of_cell, cell, _OF_CELL)
    if cell.Saved._fields != form.Saved._fields:
        raise TypeError(
            f"{op}: {of_cell}.Saved has {', '.join(cell.Saved._fields)}, expected"
            f" {', '.join(form.Saved._fields)} like {type(form).__name__}.Saved"
        )
    _expect_tuple(op, f"{made}: widths", cell.widths, "integers")
    for kind in ("inputs", "recurrent"):
        _expect_tuple(op, f"{made}: {kind}", getattr(cell, kind), "Weight")
        for n, weight in enumerate(getattr(cell, kind)):
            _check_weight(op, f"{made}: {kind}[{n}]", weight, cell.widths)
    states = cell.states(saved)
    if getattr(states, "_fields", None) != form.States._fields:
        raise TypeError(
            f"{op}: {of_cell}.states returned {type_shown(states)}, expected a NamedTuple of"
            f" {', '.join(form.States._fields)}"
        )
    if not np.shares_memory(states[0], saved[-1]):
        raise ValueError(
            f"{op}: {of_cell}.Saved ends with {cell.Saved._fields[-1]}, expected h, which"
            f" {of_cell}.states returns first"
        )
    operands = getattr(cell, "operands", None)
    if operands is not None:
        found, expected = len(operands(saved, h)), len(cell.recurrent)
        if found != expected:
            raise ValueError(
                f"{op}: {of_cell}.operands returned {counted(found, 'array')}, expected"
                f" {expected}, one for each of recurrent"
            )


def _expect_tuple(op: str, name: str, found: Any, entries: str) -> None:
    """Check that something is a tuple. A tuple of one entry may lack its comma."""
    if not isinstance(found, (tuple, list)) or hasattr(found, "_fields"):
        raise TypeError(f"{op}: {name} is {type_shown(found)}, expected a tuple of {entries}")


def _check_weight(op: str, name: str, weight: Any, widths: Sequence[int]) -> None:
    """Check a matrix of a cell, and the columns of the deltas that belong to it."""
    if getattr(weight, "_fields", None) != ("w", "width", "delta", "columns"):
        raise TypeError(f"{op}: {name} is {type_shown(weight)}, expected a Weight")
    w, width, delta, columns = weight
    if w is not None and w.shape[1:] != (width,):
        raise ValueError(f"{op}: {name}.w has shape {w.shape}, expected (·, width) with {width = }")
    if not 0 <= delta < len(widths):
        raise ValueError(
            f"{op}: {name}.delta is {delta}, expected less than the number of widths, {len(widths)}"
        )
    present = len(range(*columns.indices(widths[delta])))
    if present != width:
        raise ValueError(
            f"{op}: {name}.width is {width}, expected {present}, the number of its columns of"
            f" deltas[{delta}]"
        )


def check_gradients(op: str, form: Any, cell: Any, grads: Any, axes: tuple[int, ...]) -> None:
    """
    Check that `gradients` returns a part for each matrix and for each of the deltas.

    `axes` are those that all of `grads` have in front: of gradients by example.
    """
    made, found = f"{type(form).__name__}.gradients", form.gradients(np, grads)
    if not (hasattr(found, "weights") and hasattr(found, "sums")):
        raise TypeError(f"{op}: {made} returned {type_shown(found)}, expected Gradients")
    weights = [*cell.inputs, *cell.recurrent]
    for name, parts, expected, of in (
        ("weights", found.weights, len(weights), "inputs and recurrent"),
        ("sums", found.sums, len(cell.widths), "widths"),
    ):
        if parts is None and name == "sums":
            continue
        count = len(parts) if isinstance(parts, (tuple, list)) else None
        if count != expected:
            returned = type_shown(parts) if count is None else counted(count, "array")
            raise ValueError(
                f"{op}: {made} returned {returned} as {name}, expected {expected}, one for each"
                f" of {of}"
            )
    why = f" with {axes} in front, as grads by example have" if axes else ""
    for n, (part, weight) in enumerate(zip(found.weights, weights, strict=True)):
        if part is None or weight.w is None or part.shape == (*axes, *weight.w.shape):
            continue
        raise ValueError(
            f"{op}: {made} returned weights[{n}] of shape {part.shape}, expected the matrix's"
            f" shape, {weight.w.shape}{why}"
        )
    for n, (part, width) in enumerate(zip(found.sums or (), cell.widths, strict=False)):
        if part is not None and part.shape != (*axes, width):
            raise ValueError(
                f"{op}: {made} returned sums[{n}] of shape {part.shape}, expected one number for"
                f" each of the columns of deltas[{n}], {(width,)}{why}"
            )
    vectors = found.vectors
    if vectors is not None and vectors.shape[: len(axes)] != axes:
        raise ValueError(
            f"{op}: {made} returned vectors of shape {vectors.shape}, expected memory{why}"
        )
    finished = form.finished(grads, found)
    if getattr(finished, "_fields", None) != grads._fields:
        raise TypeError(
            f"{op}: {type(form).__name__}.finished returned {type_shown(finished)}, expected"
            f" gradients of {', '.join(grads._fields)}"
        )
