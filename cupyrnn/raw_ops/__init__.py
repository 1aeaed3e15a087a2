"""TensorFlow's raw ops by their names: the same keyword arguments, defaults and results.

Code that calls ``tf.raw_ops.BlockLSTMGrad(**kw)`` works with ``cupyrnn.raw_ops`` and arrays. Each
op calls the function of the package that its docstring names, with the same arguments. That
function's docstring has the equations, shapes, dtypes and errors; the op's says what differs.
`name` is accepted and ignored. Errors begin with the op's name.
"""

from ._cudnn_rnn import CudnnRNN as CudnnRNN
from ._cudnn_rnn import CudnnRNNBackprop as CudnnRNNBackprop
from ._cudnn_rnn import CudnnRNNBackpropV2 as CudnnRNNBackpropV2
from ._cudnn_rnn import CudnnRNNBackpropV3 as CudnnRNNBackpropV3
from ._cudnn_rnn import CudnnRNNV2 as CudnnRNNV2
from ._cudnn_rnn import CudnnRNNV3 as CudnnRNNV3
from ._gru import GRUBlockCell as GRUBlockCell
from ._gru import GRUBlockCellGrad as GRUBlockCellGrad
from ._lstm import BlockLSTM as BlockLSTM
from ._lstm import BlockLSTMGrad as BlockLSTMGrad
from ._lstm import BlockLSTMGradV2 as BlockLSTMGradV2
from ._lstm import BlockLSTMV2 as BlockLSTMV2
from ._lstm import LSTMBlockCell as LSTMBlockCell
from ._lstm import LSTMBlockCellGrad as LSTMBlockCellGrad
from ._params import CudnnRNNCanonicalToParams as CudnnRNNCanonicalToParams
from ._params import CudnnRNNCanonicalToParamsV2 as CudnnRNNCanonicalToParamsV2
from ._params import CudnnRNNParamsSize as CudnnRNNParamsSize
from ._params import CudnnRNNParamsToCanonical as CudnnRNNParamsToCanonical
from ._params import CudnnRNNParamsToCanonicalV2 as CudnnRNNParamsToCanonicalV2

__all__ = sorted(name for name in globals() if name[0].isupper())


def __dir__() -> list[str]:
    return __all__
