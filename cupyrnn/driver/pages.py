"""
The pages of each cell: its code in NumPy, in CUDA and in vectors, and when a compiled loop pays.

The pages of the package's cells are imported here by name. A user's cell declares its own as
attributes of its class. The twins of `arithmetic` are imported here too. Only calls import kernels
or compiled pages, because CuPy or Numba may be missing.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np

from ..arithmetic import dropout, products
from ..cells.gru import GRU
from ..cells.gru_reset_after import GRUResetAfter
from ..cells.lstm import LSTM
from ..cells.simple_rnn import SimpleRNN
from ..checks.attributes import shown, type_shown
from ..checks.block import widths_of


def in_numpy(cell: type) -> Any:
    """Return the class or the module with the NumPy functions of a cell; None without any."""
    found = (cell, sys.modules.get(cell.__module__))
    return next((page for page in found if hasattr(page, "forward_steps")), None)


def _own(cell: type, attribute: str) -> Any:
    """Return the page that a user's cell declares, a module or the name of one; or None."""
    page = getattr(cell, attribute, None)
    return importlib.import_module(page) if isinstance(page, str) else page


@functools.cache
def _pages_in_cuda() -> dict[type, ModuleType]:
    from ..kernels import gru, gru_reset_after, lstm, simple_rnn

    return {LSTM: lstm, GRU: gru, GRUResetAfter: gru_reset_after, SimpleRNN: simple_rnn}


@functools.cache
def in_cuda(cell: type) -> Any:
    """Return the page with the CUDA functions of a cell; None without one."""
    return _pages_in_cuda().get(cell) or _own(cell, "kernels")


def drawn_of(struct: Any) -> Any:
    """Return the function that draws a cell for a trial of these kernels; None without one."""
    cells = (cell for cell, page in _pages_in_cuda().items() if page.CELL is struct)
    return next((in_numpy(cell).drawn for cell in cells), None)


@functools.cache
def in_vectors(cell: type) -> Any:
    """Return the page with the compiled functions of a cell; None without one."""
    from ..compiled import gru, gru_reset_after, lstm, simple_rnn

    known = {LSTM: lstm, GRU: gru, GRUResetAfter: gru_reset_after, SimpleRNN: simple_rnn}
    return known.get(cell) or _own(cell, "compiled")


@functools.cache
def compiled_page(cell: type) -> Any:
    """Return the page with the compiled functions of a cell; None also without Numba."""
    if os.environ.get("CUPYRNN_NUMBA", "1") == "0":
        return None
    try:
        return in_vectors(cell)
    except Exception:  # Numba is not installed, or does not work with this NumPy.
        return None


def check_parts_of_page(op: str, page: Any, cell: Any, weights: Any, attributes: object) -> None:
    """
    Check the functions of a user's compiled page, its states, and the matrices that it returns.

    Compiled code would read and write beyond the arrays, and leave other states unwritten.
    """
    from ..compiled.frame import MAKES_H
    from .places import Place, strides_of

    for name in ("in_place", "weights_of"):
        if not hasattr(page, name):
            raise TypeError(
                f"{op}: {page.__name__}, the compiled page of {type(cell).__qualname__}, has no"
                f" {name}, expected in_place and weights_of"
            )
    host, states = page.in_place(attributes), weights.form.States._fields
    formulas = host.code.formulas
    if len(states) > 2:
        raise ValueError(
            f"{op}: {page.__name__} is the compiled page of {weights.form.name}, which has the"
            f" states {', '.join(states)}, expected at most two"
        )
    if bool(formulas.c) != (len(states) == 2):
        expected = f"the name of {states[1]} in saved" if len(states) == 2 else "none"
        raise ValueError(
            f"{op}: the formulas of {page.__name__} have c = {shown(formulas.c)}, expected"
            f" {expected}"
        )
    name = f"{op}: {page.__name__}.weights_of"
    places = [
        a if a is None else Place(0, 0, a.shape, strides_of(a.shape, a.itemsize), a.dtype)
        for a in weights
    ]
    *matrices, vectors = page.weights_of(type(weights)._make(places))
    for of, parts, known in zip("xh", matrices, (cell.inputs, cell.recurrent), strict=True):
        rows = sorted({len(one.w) for one in known})
        if type(parts) not in (tuple, list) or not all(isinstance(a, Place) for a in parts):
            raise TypeError(
                f"{name} returned {type_shown(parts)} as the matrices of {of}, expected a tuple of"
                " parts of the weights"
            )
        shapes = [a.shape for a in parts]
        if not all(shape[0] in rows for shape in shapes):
            raise ValueError(
                f"{name} returned matrices of {of} of shapes {', '.join(map(str, shapes))},"
                f" expected {' or '.join(map(str, rows))} rows"
            )
    for H, P in widths_of(weights.form, [weights]) or ():
        there, dtype = {n: a for n, a in vectors.items() if a is not None}, weights[0].dtype
        layout = host.spec_of(there, H, dtype)[0].layout
        inputs, recurrent = (
            [(starts, H) for starts in layout.inputs],
            [
                (starts, P if to == MAKES_H else H)
                for starts, to in zip(layout.recurrent, layout.adds_to, strict=True)
            ],
        )
        for of, parts, gates in zip("xh", matrices, (inputs, recurrent), strict=True):
            for a, (starts, width) in zip(parts, gates, strict=False):
                least = max(starts) + width
                if a.shape[1] < least:
                    raise ValueError(
                        f"{name} returned a matrix of {of} of shape {a.shape}, expected at least"
                        f" {least} columns, those of the gates in {page.__name__}.in_place"
                    )


def check_compiled_page(op: str, cell: Any, weights: Any, attributes: object) -> None:
    """
    Check that the compiled page of a user's cell can be compiled, and that it fits the cell.

    Calls do not: NumPy computes where a page does not work. Numba may be missing, too.
    """
    kind: Any = type(cell)
    declared = getattr(kind, "compiled", None)
    if declared is None or compiled_page(LSTM) is None:
        return
    name = f"{op}: {kind.__qualname__}.compiled"
    try:
        page = in_vectors(kind)
    except Exception as error:
        raise TypeError(
            f"{name} is {shown(declared)}, expected a module or the name of one: {error}"
        ) from error
    check_parts_of_page(op, page, cell, weights, attributes)
    host, saved = page.in_place(attributes), cell.Saved._fields
    if tuple(host.code.formulas.saved) not in (saved, saved[:-1]):
        raise ValueError(
            f"{name}: the formulas have saved = {', '.join(host.code.formulas.saved)}, expected"
            f" {', '.join(saved)} like {kind.__qualname__}.Saved"
        )
    why = host.error(np.dtype(float))
    if why is not None:
        raise TypeError(f"{name}: its formulas cannot be compiled: {why}") from why


# A whole layer in one call packs its matrices first. Measured: this pays from the first number of
# rows on; with few rows if all matrices together have at most _MEDIUM_MATRICES elements; and always
# up to _SMALL_MATRICES. A single step does not pack otherwise, so its limit is lower.
_LEAST_ROWS_OF_LAYER, _FEW_ROWS_OF_LAYER = {"forward": 12, "backward": 40}, 5
_SMALL_MATRICES, _MEDIUM_MATRICES, _MATRICES_OF_A_STEP = 1 << 16, 1 << 18, 1 << 15


def pays(size: int, rows: int, direction: str, single: bool, in_order: bool) -> bool:
    """
    Return whether a layer of `rows` rows is faster as one compiled call.

    `size` is the number of elements of all matrices. `in_order` says whether the first matrix of x
    is in C order.
    """
    if single:
        return size <= _MATRICES_OF_A_STEP and not (in_order and direction == "forward")
    most = _MEDIUM_MATRICES if rows >= _FEW_ROWS_OF_LAYER else _SMALL_MATRICES
    return always_pays(rows, direction) or size <= most


def always_pays(rows: int, direction: str) -> bool:
    """Return whether many steps of `rows` rows are faster as one compiled call at any size."""
    return rows >= _LEAST_ROWS_OF_LAYER[direction]


@functools.cache
def products_of(xp: ModuleType) -> Any:
    """Return the module with the products of an array module's arrays."""
    if xp is np:
        return products
    from ..kernels import products as on_device

    return on_device


@functools.cache
def dropout_of(xp: ModuleType) -> Any:
    """Return the module with the dropout masks of an array module's arrays."""
    if xp is np:
        return dropout
    from ..kernels import dropout as on_device

    return on_device
