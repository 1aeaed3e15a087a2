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
float32, as NumPy has no such dtype. Under ``torch.autocast`` the functions take its dtype.
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        'cupyrnn.torch: PyTorch is not installed, install it with pip install "cupyrnn[torch]"',
        name="torch",
    )

from .functions import (
    RNNOutputs,
    block_gru,
    block_lstm,
    cudnn_rnn,
    gru_block_cell,
    lstm_block_cell,
    stacked_rnn,
)
from .modules import BlockLSTM, CudnnRNN
from .recurrent import GRU, LSTM, RNN, from_torch
from .stacked import BlockGRU, PeepholeLSTM
from .translations import onnx_translations

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BlockGRU",
    "BlockLSTM",
    "CudnnRNN",
    "PeepholeLSTM",
    "RNNOutputs",
    "block_gru",
    "block_lstm",
    "cudnn_rnn",
    "from_torch",
    "gru_block_cell",
    "lstm_block_cell",
    "onnx_translations",
    "stacked_rnn",
]


def __dir__() -> list[str]:
    return __all__
