"""A check of a user's cell: each of its gradients, compared with the derivative of its steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from .._typing import NamedTuple
from ..cells.contract import Attributes, columns_of, each
from ..checks.attributes import check_integer, named, type_shown
from ..checks.block import shape_of
from ..checks.cells import check_form, check_gradients, check_parts
from ..derivatives.jvp import jvp
from ..derivatives.tree import leaves_by_name, tree_map
from ..driver import pages
from .stacked_rnn import stacked_rnn, stacked_rnn_backprop

# The largest relative error of a right gradient: rounding, also of cells that divide and normalize.
_MOST = 1e-9

_T, _B = 5, 4
_LENGTHS = np.array([5, 0, 3, 2], np.int32)
_RESETS = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 1]], bool)
_BOTH = {"sequence_lengths": _LENGTHS, "resets": _RESETS}
_BI = {"direction": "bidirectional"}
# Each way of running: steps, layers, and arguments of the op.
_CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "one layer": (_T, 1, {}),
    "a single step": (1, 1, {}),
    "lengths": (_T, 1, {"sequence_lengths": _LENGTHS}),
    "resets": (_T, 1, {"resets": _RESETS}),
    "reverse, lengths, resets": (_T, 1, {**_BOTH, "reverse": True}),
    "2 layers, both directions": (_T, 2, _BI),
    "the same, lengths, resets": (_T, 2, {**_BI, **_BOTH}),
    "the same, save=2": (_T, 2, {**_BI, **_BOTH, "save": 2}),
    "gradients of each example": (_T, 1, {**_BOTH, "weight_gradients": "examples"}),
    "no gradient of the last states": (_T, 1, {"sequence_lengths": _LENGTHS, "last": False}),
}


class CellCheck(NamedTuple):
    """
    The result of `check_cell`. As text it is a table.

    Attributes
    ----------
    cell : str
        The name of the cell.
    errors : dict of str to dict of str to float
        For each way of running the cell and each array the largest relative error of its gradient.
    """

    cell: str
    errors: dict[str, dict[str, float]]

    @property
    def wrong(self) -> list[str]:
        """The arrays whose gradients are wrong somewhere."""
        rows = self.errors.values()
        return [n for n in next(iter(rows)) if not all(row[n] <= _MOST for row in rows)]

    def __repr__(self) -> str:
        names = [*next(iter(self.errors.values()))]
        widths = [max(len(n), 8) for n in names]
        rows = [["", *(n.rjust(w) for n, w in zip(names, widths, strict=True))]]
        for case, errors in self.errors.items():
            shown = (f"{errors[n]:.0e}{' ' if errors[n] <= _MOST else '*'}" for n in names)
            rows.append([case, *(a.rjust(w) for a, w in zip(shown, widths, strict=True))])
        first = max(len(row[0]) for row in rows)
        title = f"{self.cell}: errors of gradients; * is above {_MOST:.0e}"
        return "\n".join([title, *("  ".join([a.ljust(first), *b]).rstrip() for a, *b in rows)])


def _drawn(
    rng: np.random.Generator, weights: Any, T: int, layers: int, D: int, sizes: tuple[int, ...]
) -> tuple[Any, ...]:
    """Return input, input_h, input_c and weights of a net of this cell."""
    (I, H, P), form = sizes, weights.form

    def entry(K: int) -> Any:
        arrays = []
        for name, a in zip(weights._fields, weights, strict=True):
            shape = shape_of(form.shapes[name], K=K, H=H, P=P)
            scale = 0.5 / (max(1, shape[0]) ** 0.5 if len(shape) > 1 else 1)
            arrays.append(None if a is None else scale * rng.standard_normal(shape))
        return type(weights)._make(arrays)

    def state(size: int) -> Any:
        return 0.5 + rng.random((layers * D, _B, size))  # some cells divide by a state

    others = tuple(state(H) for _ in form.States._fields[1:])
    c = others if len(others) > 1 else others[0] if others else None
    net = [entry(K) for K in (I, *[D * P] * (layers - 1)) for _ in range(D)]
    return rng.standard_normal((T, _B, I)), state(P), c, net


def _check_parts(op: str, weights: Any, sizes: tuple[int, int, int]) -> None:
    """Check that what the form and the cell return fits, before anything runs."""
    (_, H, P), form = sizes, weights.form
    (entry,) = _drawn(np.random.default_rng(0), weights, 1, 1, 1, sizes)[3]
    attributes = form.attributes(op, Attributes(), np.dtype(float), forward=True)
    cell = form.cell(np, entry, attributes)
    saved = form.Saved._make([np.zeros((1, width)) for width in columns_of(form.Saved, H, P)])
    check_parts(op, form, cell, saved, np.zeros((1, P)))
    for axes in ((), (_B,)):
        grads = each(entry, lambda a, axes=axes: np.zeros((*axes, *a.shape)))  # type: ignore[misc]
        check_gradients(op, form, cell, grads, axes)
    pages.check_compiled_page(op, cell, entry, attributes)


def _array_of(place: str, fields: tuple[str, ...]) -> str:
    """Return the name of an array by its place: primals[0], primals[2][1] or primals[3][0][1]."""
    first, *rest = (int(n) for n in re.findall(r"[0-9]+", place))
    if first == 3:
        return fields[rest[1]]
    return ("input", "input_h", "input_c")[first] + "".join(f"[{n}]" for n in rest)


def _slopes(
    rng: np.random.Generator, case: tuple[int, int, dict[str, Any]], weights: Any, sizes: Any
) -> Iterator[tuple[str, float]]:
    """Yield the name of each array and the relative error of its gradient along a direction."""
    T, layers, options = case
    run = dict(options)
    last, by_weight = run.pop("last", True), run.pop("weight_gradients", "sum")
    D = 2 if "direction" in run else 1
    primals = _drawn(rng, weights, T, layers, D, sizes)

    def outputs(*given: Any) -> Any:
        return stacked_rnn(*given, **run)[:3]

    out = stacked_rnn(*primals, **run)
    d_out = [tree_map(lambda a: rng.standard_normal(a.shape), a) for a in out[:3]]
    if not last:
        d_out[1:] = [None, None]
    if primals[2] is None:  # there are no states beside h
        d_out[2] = None
    run.pop("save", None)
    call = *primals, *out[:3], *d_out, out.reserve_space
    grads = stacked_rnn_backprop(*call, weight_gradients=by_weight, **run)
    if by_weight == "examples":
        summed = [tree_map(lambda a: a if a is None else a.sum(0), w) for w in grads[3]]
        grads = grads._replace(weights_backprop=summed)
    found = dict(leaves_by_name("primals", tuple(grads)))
    cotangents = dict(leaves_by_name("out", tuple(d_out)))
    for place, primal in leaves_by_name("primals", primals):
        if primal is None:
            continue
        v = rng.standard_normal(primal.shape)
        tangents = tree_map(lambda a, of=primal, v=v: v if a is of else None, primals)
        _, along = jvp(outputs, primals, tangents)
        slopes = dict(leaves_by_name("out", tuple(along)))
        terms = [d * slopes[n] for n, d in cotangents.items() if d is not None]
        terms.append(-found[place] * v)
        scale = sum(np.abs(a).sum() for a in terms) or 1.0
        yield _array_of(place, weights._fields), float(abs(sum(a.sum() for a in terms)) / scale)


@named
def check_cell(
    weights: Any, *, input_size: int = 3, num_units: int = 4, seed: int = 0
) -> CellCheck:
    """
    Compare every gradient of a cell of your own with the derivative of its forward pass.

    The check runs the cell by `stacked_rnn` over few steps of random numbers in float64: one layer
    and two, both directions, lengths, resets, a single step, saved states, gradients of each
    example. For each array it compares the gradient with `jvp`, which is exact to rounding. So the
    cell must compute complex numbers, as for `jvp`.

    Parameters
    ----------
    weights : NamedTuple with a form
        Weights of the cell, of any sizes. Their values are not used. Where one is None, it is None
        in the check.
    input_size, num_units : int
        I and H of the check. With a projection, P is H - 1.
    seed : int
        The seed of the random numbers.

    Returns
    -------
    CellCheck
        The errors by way of running and array; ``print`` shows a table.

    Raises
    ------
    TypeError
        weights is not a NamedTuple with a form, or the form or the cell lacks something.
    ValueError
        What the form and the cell return does not fit together. Or a gradient is wrong: the message
        has the table.

    Examples
    --------
    >>> import cupyrnn
    >>> weights = cupyrnn.init_block_gru(num_units=3, input_size=2)
    >>> cupyrnn.check_cell(weights).wrong
    []
    """
    op = "check_cell"
    if not (isinstance(weights, tuple) and hasattr(weights, "form")):
        raise TypeError(f"{op}: weights is {type_shown(weights)}, expected the weights of a cell")
    sizes = (
        check_integer(op, "input_size", input_size, 1),
        check_integer(op, "num_units", num_units, 2),
    )
    check_form(op, weights)
    I, H = sizes
    projects = getattr(weights, weights.form.projection or " ", None) is not None
    rng = np.random.default_rng(check_integer(op, "seed", seed, 0))
    _check_parts(op, weights, (I, H, H - projects))
    errors: dict[str, dict[str, float]] = {}
    for name, case in _CASES.items():
        of_case: dict[str, float] = {}
        for array, error in _slopes(rng, case, weights, (I, H, H - projects)):
            of_case[array] = float(np.maximum(of_case.get(array, 0.0), error))  # keeps NaN
        errors[name] = of_case
    check = CellCheck(weights.form.name, errors)
    if check.wrong:
        raise ValueError(
            f"{op}: wrong gradients of {', '.join(check.wrong)}\n\n{check}\n\nThe name of an array"
            " is right where its column has no *"
        )
    return check
