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

from ._typing import (
    CudnnRNNGrads,
    CudnnRNNOutputs,
    GRUCellGrads,
    GRUGrads,
    LSTMCellGrads,
    LSTMGrads,
    StackedRNNGrads,
    StackedRNNOutputs,
)
from .cells.gru import GRUOutputs
from .cells.lstm import LSTMOutputs
from .cudnn_rnn import cudnn_rnn, cudnn_rnn_backprop, cudnn_rnn_engine
from .gru import (
    block_gru,
    block_gru_grad,
    gru_block_cell,
    gru_block_cell_backward,
    gru_block_cell_grad,
)
from .lstm import (
    block_lstm,
    block_lstm_grad,
    lstm_block_cell,
    lstm_block_cell_backward,
    lstm_block_cell_grad,
)
from .stacked_rnn import stacked_rnn, stacked_rnn_backprop
from .vjp import Pullback, vjp
from .weights.forms import BlockGRUParams, BlockLSTMParams, LSTMState, PeepholeLSTMParams
from .weights.packed import InitialState, PackedParams
from .weights.params import (
    CanonicalParams,
    Piece,
    cudnn_rnn_canonical_to_params,
    cudnn_rnn_params_layout,
    cudnn_rnn_params_size,
    cudnn_rnn_params_to_canonical,
)

if TYPE_CHECKING:  # what is loaded when it is asked for
    from . import raw_ops
    from .derivatives.jvp import jvp
    from .device import RecurrenceKernels, forget_kernels, recurrence_kernels
    from .onnx_node import OnnxGrads, OnnxOutputs, run_onnx_node
    from .stream import PreparedStep, StepOutputs, prepare_step
    from .weights.block import (
        gradient_to_block_lstm,
        params_from_block_lstm,
        params_to_block_lstm,
    )
    from .weights.dynet import params_from_dynet, params_to_dynet
    from .weights.gates import (
        Gate,
        block_gru_from_gates,
        block_gru_to_gates,
        block_lstm_from_gates,
        block_lstm_to_gates,
        params_from_gates,
        params_to_gates,
    )
    from .weights.init import init_block_gru, init_block_lstm, init_params
    from .weights.keras import (
        block_gru_from_keras,
        block_gru_to_keras,
        gradient_to_keras,
        params_from_keras,
        params_to_keras,
    )
    from .weights.nets import join_params, reverse_update_gate, split_params
    from .weights.onnx import (
        OnnxParams,
        block_gru_from_onnx,
        block_gru_to_onnx,
        block_lstm_from_onnx,
        block_lstm_to_onnx,
        params_from_onnx,
        params_to_onnx,
    )
    from .weights.quantized import dequantize, params_from_quantized_onnx
    from .weights.tf1 import (
        block_gru_from_tf1,
        block_gru_to_tf1,
        block_lstm_from_tf1,
        block_lstm_to_tf1,
        params_from_tf1,
        params_to_tf1,
    )
    from .weights.torch import gradient_to_torch, params_from_torch, params_to_torch

__version__ = "0.1.0"

__all__ = [
    "BlockGRUParams",
    "BlockLSTMParams",
    "CanonicalParams",
    "CudnnRNNGrads",
    "CudnnRNNOutputs",
    "GRUCellGrads",
    "GRUGrads",
    "GRUOutputs",
    "Gate",
    "InitialState",
    "LSTMCellGrads",
    "LSTMGrads",
    "LSTMOutputs",
    "LSTMState",
    "OnnxGrads",
    "OnnxOutputs",
    "OnnxParams",
    "PackedParams",
    "PeepholeLSTMParams",
    "Piece",
    "PreparedStep",
    "Pullback",
    "RecurrenceKernels",
    "StackedRNNGrads",
    "StackedRNNOutputs",
    "StepOutputs",
    "block_gru",
    "block_gru_from_gates",
    "block_gru_from_keras",
    "block_gru_from_onnx",
    "block_gru_from_tf1",
    "block_gru_grad",
    "block_gru_to_gates",
    "block_gru_to_keras",
    "block_gru_to_onnx",
    "block_gru_to_tf1",
    "block_lstm",
    "block_lstm_from_gates",
    "block_lstm_from_onnx",
    "block_lstm_from_tf1",
    "block_lstm_grad",
    "block_lstm_to_gates",
    "block_lstm_to_onnx",
    "block_lstm_to_tf1",
    "cudnn_rnn",
    "cudnn_rnn_backprop",
    "cudnn_rnn_canonical_to_params",
    "cudnn_rnn_engine",
    "cudnn_rnn_params_layout",
    "cudnn_rnn_params_size",
    "cudnn_rnn_params_to_canonical",
    "dequantize",
    "forget_kernels",
    "gradient_to_block_lstm",
    "gradient_to_keras",
    "gradient_to_torch",
    "gru_block_cell",
    "gru_block_cell_backward",
    "gru_block_cell_grad",
    "init_block_gru",
    "init_block_lstm",
    "init_params",
    "join_params",
    "jvp",
    "lstm_block_cell",
    "lstm_block_cell_backward",
    "lstm_block_cell_grad",
    "params_from_block_lstm",
    "params_from_dynet",
    "params_from_gates",
    "params_from_keras",
    "params_from_onnx",
    "params_from_quantized_onnx",
    "params_from_tf1",
    "params_from_torch",
    "params_to_block_lstm",
    "params_to_dynet",
    "params_to_gates",
    "params_to_keras",
    "params_to_onnx",
    "params_to_tf1",
    "params_to_torch",
    "prepare_step",
    "raw_ops",
    "recurrence_kernels",
    "reverse_update_gate",
    "run_onnx_node",
    "split_params",
    "stacked_rnn",
    "stacked_rnn_backprop",
    "vjp",
]


def __dir__() -> list[str]:
    # Without the modules, which nobody is to take for functions: cupyrnn.gru, cupyrnn.lstm.
    return [*__all__, "__version__"]


# Modules of names in __all__ that are loaded, one after the other, when such a name is asked for.
_RARE = (
    "derivatives.jvp",
    "device",
    "onnx_node",
    "stream",
    "weights.block",
    "weights.dynet",
    "weights.gates",
    "weights.init",
    "weights.keras",
    "weights.nets",
    "weights.onnx",
    "weights.quantized",
    "weights.tf1",
    "weights.torch",
)

if TYPE_CHECKING:
    from .cells import reference as reference
else:  # or every name would be one, for a type checker

    def __getattr__(name: str) -> object:
        """Import the modules that are not needed by all when they are first used."""
        import importlib

        if name in ("jax", "parallel", "raw_ops", "torch"):
            try:
                return importlib.import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                raise AttributeError(f"cupyrnn.{name} needs {error.name}: {error}") from error
        if name == "reference":
            from .cells import reference

            return reference
        for module in _RARE if name in __all__ else ():
            found = importlib.import_module(f"{__name__}.{module}")
            if hasattr(found, name):
                globals()[name] = value = getattr(found, name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
