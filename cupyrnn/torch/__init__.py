"""
The ops as functions of PyTorch's tensors, and modules made of them.

They compute the same as `cupyrnn`'s functions of the same names: on a CPU with NumPy, in the
tensors' own memory; on CUDA with CuPy, on PyTorch's current stream and with memory of its
allocator. Gradients, double backward and forward mode are exact, through a clip too. The transforms
of ``torch.func`` accept the functions, ``vmap``, ``jacrev`` and ``hessian`` included. Third
derivatives are refused.

``torch.compile(fullgraph=True)`` and ``torch.export`` see each function as one op, whose T and B
may be symbolic. At `LSTM`, `GRU` and `RNN` ``torch.compile`` breaks the graph, as at torch.nn's,
unless ``torch._dynamo.config.allow_rnn`` is True. A compiled graph supports neither the transforms
of ``torch.func`` nor forward mode.

Float16 and bfloat16 have first derivatives only. On a CPU, bfloat16 is computed on copies in
float32, because NumPy has no such dtype. Under ``torch.autocast`` the functions use its dtype.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        'cupyrnn.torch: PyTorch is not installed; in a clone: pip install ".[torch]"',
        name="torch",
    )

# "import X as X" makes X public for type checkers too.
from .cells import GRUCell as GRUCell
from .cells import LSTMCell as LSTMCell
from .cells import RNNCell as RNNCell
from .functions import RNNOutputs as RNNOutputs
from .functions import block_gru as block_gru
from .functions import block_lstm as block_lstm
from .functions import cudnn_rnn as cudnn_rnn
from .functions import gru_block_cell as gru_block_cell
from .functions import lstm_block_cell as lstm_block_cell
from .functions import stacked_rnn as stacked_rnn
from .modules import CudnnRNN as CudnnRNN
from .recurrent import GRU as GRU
from .recurrent import LSTM as LSTM
from .recurrent import RNN as RNN
from .replace import from_torch as from_torch
from .stacked import BlockGRU as BlockGRU
from .stacked import PeepholeLSTM as PeepholeLSTM
from .translations import onnx_translations as onnx_translations

if not TYPE_CHECKING:  # this reads the imports above
    __all__ = [n for n, a in globals().items() if getattr(a, "__module__", "").startswith(__name__)]

    def __dir__() -> list[str]:
        return __all__
