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
    for kind in ("inputs", "recurrent"):
        for n, weight in enumerate(getattr(cell, kind)):
            _check_weight(op, f"{made}: {kind}[{n}]", weight, cell.widths)
    states = cell.states(saved)
    if getattr(states, "_fields", None) != form.States._fields:
        raise TypeError(
            f"{op}: {of_cell}.states returned {type_shown(states)}, expected a NamedTuple of"
            f" {', '.join(form.States._fields)}"
        )
    operands = getattr(cell, "operands", None)
    if operands is not None:
        found, expected = len(operands(saved, h)), len(cell.recurrent)
        if found != expected:
            raise ValueError(
                f"{op}: {of_cell}.operands returned {counted(found, 'array')}, expected"
                f" {expected}, one for each of recurrent"
            )


def _check_weight(op: str, name: str, weight: Any, widths: Sequence[int]) -> None:
    """Check a matrix of a cell, and the columns of the deltas that belong to it."""
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
        if (parts is not None or name == "weights") and len(parts) != expected:
            raise ValueError(
                f"{op}: {made} returned {counted(len(parts), 'array')} as {name}, expected"
                f" {expected}, one for each of {of}"
            )
    for n, (part, weight) in enumerate(zip(found.weights, weights, strict=True)):
        if part is None or weight.w is None or part.shape == (*axes, *weight.w.shape):
            continue
        why = f" with {axes} in front, as grads by example have" if axes else ""
        raise ValueError(
            f"{op}: {made} returned weights[{n}] of shape {part.shape}, expected the matrix's"
            f" shape, {weight.w.shape}{why}"
        )
