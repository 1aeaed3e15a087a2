"""
Cells, and the parts of a cell of your own.

LayerNormLSTMParams and MultiplicativeLSTMParams are weights of two cells more for `stacked_rnn`.

Each file of this folder has one cell's equations, forward and backward, in NumPy. The files of the
same names in ``kernels`` and ``compiled`` hold the same equations, with the same names, in CUDA and
in vectors for Numba. ``reference`` has their definitions: plain loops.

A cell of your own needs the names below and NumPy, and may live anywhere. The guide's page "A cell
of your own" describes it.
"""

# "import A as A" makes A public for type checkers too.
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
from .one_file.layer_norm_lstm import LayerNormLSTMParams as LayerNormLSTMParams
from .one_file.multiplicative_lstm import MultiplicativeLSTMParams as MultiplicativeLSTMParams

__all__ = sorted(name for name, a in globals().items() if callable(a) and name[0] != "_")
