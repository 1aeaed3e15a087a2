"""TensorFlow's raw ops by their names: the same keyword arguments, defaults and results.

Code that calls ``tf.raw_ops.BlockLSTMGrad(**kw)`` works with ``cupyrnn.raw_ops`` and arrays. Each
op is a face of a function of the package, whose docstring holds the equations, whose arguments
have the same names, and with whose name error messages begin. `name` is accepted and ignored.
"""

from ._cudnn_rnn import (
    CudnnRNN,
    CudnnRNNBackprop,
    CudnnRNNBackpropV2,
    CudnnRNNBackpropV3,
    CudnnRNNV2,
    CudnnRNNV3,
)
from ._gru import GRUBlockCell, GRUBlockCellGrad
from ._lstm import (
    BlockLSTM,
    BlockLSTMGrad,
    BlockLSTMGradV2,
    BlockLSTMV2,
    LSTMBlockCell,
    LSTMBlockCellGrad,
)
from ._params import (
    CudnnRNNCanonicalToParams,
    CudnnRNNCanonicalToParamsV2,
    CudnnRNNParamsSize,
    CudnnRNNParamsToCanonical,
    CudnnRNNParamsToCanonicalV2,
)

__all__ = [
    "BlockLSTM",
    "BlockLSTMGrad",
    "BlockLSTMGradV2",
    "BlockLSTMV2",
    "CudnnRNN",
    "CudnnRNNBackprop",
    "CudnnRNNBackpropV2",
    "CudnnRNNBackpropV3",
    "CudnnRNNCanonicalToParams",
    "CudnnRNNCanonicalToParamsV2",
    "CudnnRNNParamsSize",
    "CudnnRNNParamsToCanonical",
    "CudnnRNNParamsToCanonicalV2",
    "CudnnRNNV2",
    "CudnnRNNV3",
    "GRUBlockCell",
    "GRUBlockCellGrad",
    "LSTMBlockCell",
    "LSTMBlockCellGrad",
]


def __dir__() -> list[str]:
    return __all__
