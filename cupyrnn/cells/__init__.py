"""
Cells, and all that a cell of one's own is made of.

The files of this folder are one cell's equations each, forward and backward, in NumPy. The files of
the same names in ``kernels`` and ``compiled`` hold the same equations in CUDA and in vectors for
Numba, with the same names. ``reference`` has their definitions: plain loops.

A cell that the package does not have needs the names below and NumPy, and may live anywhere: the
guide's page "A cell of your own" says all that is asked of it.
"""

from ..arithmetic.dual import Arithmetic, arithmetic_of
from .contract import (
    Attributes,
    BackwardRun,
    BackwardStep,
    Cell,
    Form,
    ForwardRun,
    Gradients,
    States,
    Weight,
)

__all__ = [
    "Arithmetic",
    "Attributes",
    "BackwardRun",
    "BackwardStep",
    "Cell",
    "Form",
    "ForwardRun",
    "Gradients",
    "States",
    "Weight",
    "arithmetic_of",
]
