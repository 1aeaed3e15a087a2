"""Finds the twins of functions in NumPy, CUDA and Numba: of cells, products and dropout."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np


@functools.cache
def page_of(cell: type, room: str) -> Any:
    """
    Return the module or class with the functions of a cell; None if there is none.

    Parameters
    ----------
    cell
        The class.
    room
        "cells" for the NumPy functions: methods of the class, or functions of its module. "kernels"
        and "compiled" are attributes of the class: modules, or names of modules. Without them a
        class of a module ``package.cells.name`` has ``package.kernels.name`` and
        ``package.compiled.name``, if these exist.
    """
    if room == "cells":
        found = (cell, sys.modules.get(cell.__module__))
        return next((page for page in found if hasattr(page, "forward_steps")), None)
    own = getattr(cell, room, None)
    if own is not None:
        return importlib.import_module(own) if isinstance(own, str) else own
    package, is_beside, name = cell.__module__.rpartition(".cells.")
    if not is_beside:
        return None
    beside = f"{package}.{room}.{name}"
    try:
        return importlib.import_module(beside)
    except ModuleNotFoundError as error:
        if error.name in (beside, f"{package}.{room}"):
            return None
        raise


@functools.cache
def twin_of(xp: ModuleType, name: str) -> Any:
    """Return a module of `arithmetic`, or its CUDA twin, for the arrays of an array module."""
    room = "arithmetic" if xp is np else "kernels"
    return importlib.import_module(f"..{room}.{name}", __package__)


def products_of(xp: ModuleType) -> Any:
    """Return the module with the products of an array module's arrays."""
    return twin_of(xp, "products")
