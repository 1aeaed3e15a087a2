"""
LSTM, GRU and simple RNN, forward and backward, as plain functions of NumPy and CuPy arrays.

They compute what TensorFlow's BlockLSTM, GRUBlockCell and CudnnRNN compute. Which to call::

    an LSTM; peepholes, clip               block_lstm, block_lstm_grad
    TensorFlow's GRU                       block_gru, block_gru_grad
    layers, both directions of these       stacked_rnn, stacked_rnn_backprop
    LSTM, GRU, RNN of PyTorch, Keras       cudnn_rnn, cudnn_rnn_backprop
    lengths, packed documents              the same with sequence_lengths, resets
    one step at a time                     prepare_step; lstm_block_cell, gru_block_cell
    weights of PyTorch, Keras, ONNX, TF    params_from_..., block_lstm_from_..., block_gru_from_...
    run an ONNX node                       run_onnx_node
    initial weights                        init_params, init_block_lstm, init_block_gru
    the gradient of the same call          vjp
    Hessian-vector products                jvp
    the ops in PyTorch, in JAX             cupyrnn.torch, cupyrnn.jax
    a cell of your own                     cupyrnn.cells
    the equations as plain loops           cupyrnn.reference
    training on many processes             cupyrnn.parallel
    TensorFlow's own signatures            cupyrnn.raw_ops

The help of each function has its equations, shapes, dtypes, errors and an example, as in
``help(cupyrnn.block_lstm)``. T is the number of time steps, B the batch, I the input size, H the
number of units, L the layers, D the directions, P the size of a projection.
"""

from typing import TYPE_CHECKING

# What is imported as its own name is public to a type checker too.
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
from .cudnn_rnn import cudnn_rnn as cudnn_rnn
from .cudnn_rnn import cudnn_rnn_backprop as cudnn_rnn_backprop
from .cudnn_rnn import cudnn_rnn_engine as cudnn_rnn_engine
from .gru import block_gru as block_gru
from .gru import block_gru_grad as block_gru_grad
from .gru import gru_block_cell as gru_block_cell
from .gru import gru_block_cell_backward as gru_block_cell_backward
from .gru import gru_block_cell_grad as gru_block_cell_grad
from .lstm import block_lstm as block_lstm
from .lstm import block_lstm_grad as block_lstm_grad
from .lstm import lstm_block_cell as lstm_block_cell
from .lstm import lstm_block_cell_backward as lstm_block_cell_backward
from .lstm import lstm_block_cell_grad as lstm_block_cell_grad
from .stacked_rnn import stacked_rnn as stacked_rnn
from .stacked_rnn import stacked_rnn_backprop as stacked_rnn_backprop
from .vjp import Pullback as Pullback
from .vjp import vjp as vjp
from .weights.forms import BlockGRUParams as BlockGRUParams
from .weights.forms import BlockLSTMParams as BlockLSTMParams
from .weights.forms import LSTMState as LSTMState
from .weights.forms import PeepholeLSTMParams as PeepholeLSTMParams
from .weights.packed import InitialState as InitialState
from .weights.packed import PackedParams as PackedParams
from .weights.params import CanonicalParams as CanonicalParams
from .weights.params import Piece as Piece
from .weights.params import cudnn_rnn_canonical_to_params as cudnn_rnn_canonical_to_params
from .weights.params import cudnn_rnn_params_layout as cudnn_rnn_params_layout
from .weights.params import cudnn_rnn_params_size as cudnn_rnn_params_size
from .weights.params import cudnn_rnn_params_to_canonical as cudnn_rnn_params_to_canonical

if TYPE_CHECKING:  # what __getattr__ loads
    from . import raw_ops as raw_ops
    from .cells import reference as reference
    from .derivatives.jvp import jvp as jvp
    from .device import RecurrenceKernels as RecurrenceKernels
    from .device import forget_kernels as forget_kernels
    from .device import recurrence_kernels as recurrence_kernels
    from .onnx_node import OnnxGrads as OnnxGrads
    from .onnx_node import OnnxOutputs as OnnxOutputs
    from .onnx_node import run_onnx_node as run_onnx_node
    from .stream import PreparedStep as PreparedStep
    from .stream import StepOutputs as StepOutputs
    from .stream import prepare_step as prepare_step
    from .weights.block import gradient_to_block_lstm as gradient_to_block_lstm
    from .weights.block import params_from_block_lstm as params_from_block_lstm
    from .weights.block import params_to_block_lstm as params_to_block_lstm
    from .weights.dynet import params_from_dynet as params_from_dynet
    from .weights.dynet import params_to_dynet as params_to_dynet
    from .weights.gates import Gate as Gate
    from .weights.gates import block_gru_from_gates as block_gru_from_gates
    from .weights.gates import block_gru_to_gates as block_gru_to_gates
    from .weights.gates import block_lstm_from_gates as block_lstm_from_gates
    from .weights.gates import block_lstm_to_gates as block_lstm_to_gates
    from .weights.gates import params_from_gates as params_from_gates
    from .weights.gates import params_to_gates as params_to_gates
    from .weights.init import init_block_gru as init_block_gru
    from .weights.init import init_block_lstm as init_block_lstm
    from .weights.init import init_params as init_params
    from .weights.keras import block_gru_from_keras as block_gru_from_keras
    from .weights.keras import block_gru_to_keras as block_gru_to_keras
    from .weights.keras import gradient_to_keras as gradient_to_keras
    from .weights.keras import params_from_keras as params_from_keras
    from .weights.keras import params_to_keras as params_to_keras
    from .weights.nets import join_params as join_params
    from .weights.nets import reverse_update_gate as reverse_update_gate
    from .weights.nets import split_params as split_params
    from .weights.onnx import OnnxParams as OnnxParams
    from .weights.onnx import block_gru_from_onnx as block_gru_from_onnx
    from .weights.onnx import block_gru_to_onnx as block_gru_to_onnx
    from .weights.onnx import block_lstm_from_onnx as block_lstm_from_onnx
    from .weights.onnx import block_lstm_to_onnx as block_lstm_to_onnx
    from .weights.onnx import params_from_onnx as params_from_onnx
    from .weights.onnx import params_to_onnx as params_to_onnx
    from .weights.quantized import dequantize as dequantize
    from .weights.quantized import params_from_quantized_onnx as params_from_quantized_onnx
    from .weights.tf1 import block_gru_from_tf1 as block_gru_from_tf1
    from .weights.tf1 import block_gru_to_tf1 as block_gru_to_tf1
    from .weights.tf1 import block_lstm_from_tf1 as block_lstm_from_tf1
    from .weights.tf1 import block_lstm_to_tf1 as block_lstm_to_tf1
    from .weights.tf1 import params_from_tf1 as params_from_tf1
    from .weights.tf1 import params_to_tf1 as params_to_tf1
    from .weights.torch import gradient_to_torch as gradient_to_torch
    from .weights.torch import params_from_torch as params_from_torch
    from .weights.torch import params_to_torch as params_to_torch

__version__ = "0.1.0"

# The public names of modules that are loaded when one of them is asked for.
_LATER = {
    "derivatives.jvp": "jvp",
    "device": "RecurrenceKernels forget_kernels recurrence_kernels",
    "onnx_node": "OnnxGrads OnnxOutputs run_onnx_node",
    "stream": "PreparedStep StepOutputs prepare_step",
    "weights.block": "gradient_to_block_lstm params_from_block_lstm params_to_block_lstm",
    "weights.dynet": "params_from_dynet params_to_dynet",
    "weights.gates": "Gate block_gru_from_gates block_gru_to_gates block_lstm_from_gates"
    " block_lstm_to_gates params_from_gates params_to_gates",
    "weights.init": "init_block_gru init_block_lstm init_params",
    "weights.keras": "block_gru_from_keras block_gru_to_keras gradient_to_keras params_from_keras"
    " params_to_keras",
    "weights.nets": "join_params reverse_update_gate split_params",
    "weights.onnx": "OnnxParams block_gru_from_onnx block_gru_to_onnx block_lstm_from_onnx"
    " block_lstm_to_onnx params_from_onnx params_to_onnx",
    "weights.quantized": "dequantize params_from_quantized_onnx",
    "weights.tf1": "block_gru_from_tf1 block_gru_to_tf1 block_lstm_from_tf1 block_lstm_to_tf1"
    " params_from_tf1 params_to_tf1",
    "weights.torch": "gradient_to_torch params_from_torch params_to_torch",
}

if not TYPE_CHECKING:  # a type checker reads the imports above
    _MODULES = {name: module for module, names in _LATER.items() for name in names.split()}
    # The functions and types that are here now, those that come later, and a module.
    __all__ = [name for name, a in globals().items() if callable(a) and name[0] != "_"]
    __all__ = sorted([*__all__, *_MODULES, "raw_ops"])

    def __dir__() -> list[str]:
        # Without the modules, which nobody is to take for functions: cupyrnn.gru, cupyrnn.lstm.
        return [*__all__, "__version__"]

    def __getattr__(name: str) -> object:
        """Import the modules that are not needed by all when they are first used."""
        import importlib

        if name in _MODULES:
            module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
            globals()[name] = value = getattr(module, name)
            return value
        if name == "reference":
            return importlib.import_module(f"{__name__}.cells.reference")
        if name in ("jax", "parallel", "raw_ops", "torch"):
            try:
                return importlib.import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                raise AttributeError(f"cupyrnn.{name} needs {error.name}: {error}") from error
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
