"""
Cells, and all that a cell of one's own is made of.

The files of this folder are one cell's equations each, forward and backward, in NumPy. The files of
the same names in ``kernels`` and ``compiled`` hold the same equations in CUDA and in vectors for
Numba, with the same names. ``reference`` has their definitions: plain loops.

A cell that the package does not have needs the names below and NumPy, and may live anywhere: the
guide's page "A cell of your own" says all that is asked of it.
"""

# What is imported as its own name is public to a type checker too.
from ..arithmetic.dual import Arithmetic as Arithmetic
from ..arithmetic.dual import arithmetic_of as arithmetic_of
from .contract import Attributes as Attributes
from .contract import BackwardRun as BackwardRun
from .contract import BackwardStep as BackwardStep
from .contract import Cell as Cell
from .contract import Form as Form
from .contract import ForwardRun as ForwardRun
from .contract import Gradients as Gradients
from .contract import States as States
from .contract import Weight as Weight

__all__ = sorted(name for name, a in globals().items() if callable(a) and name[0] != "_")
