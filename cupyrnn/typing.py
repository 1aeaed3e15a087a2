"""The types of the functions' results, for annotations."""

from ._typing import CudnnRNNGrads as CudnnRNNGrads
from ._typing import CudnnRNNOutputs as CudnnRNNOutputs
from ._typing import GRUCellGrads as GRUCellGrads
from ._typing import GRUGrads as GRUGrads
from ._typing import LSTMCellGrads as LSTMCellGrads
from ._typing import LSTMGrads as LSTMGrads
from ._typing import StackedRNNGrads as StackedRNNGrads
from ._typing import StackedRNNOutputs as StackedRNNOutputs
from .cells.gru import GRUOutputs as GRUOutputs
from .cells.lstm import LSTMOutputs as LSTMOutputs
from .onnx_node import OnnxGrads as OnnxGrads
from .onnx_node import OnnxOutputs as OnnxOutputs
from .stream import StepOutputs as StepOutputs
from .weights.packed import InitialState as InitialState
from .weights.params import CanonicalParams as CanonicalParams
from .weights.params import Piece as Piece

__all__ = sorted(name for name, a in globals().items() if callable(a) and name[0] != "_")


def __dir__() -> list[str]:
    return __all__
