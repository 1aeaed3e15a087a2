"""
LSTM, GRU and simple RNN, forward and backward, as plain functions of NumPy and CuPy arrays.

They compute what TensorFlow's BlockLSTM, GRUBlockCell and CudnnRNN compute. Which to call::

    an LSTM; peepholes, clip               block_lstm, block_lstm_grad
    TensorFlow's GRU                       block_gru, block_gru_grad
    layers, both directions of these       stacked_rnn, stacked_rnn_backprop
    LSTM, GRU, RNN of PyTorch, Keras       cudnn_rnn, cudnn_rnn_backprop
    lengths, packed documents              the same with sequence_lengths, resets
    masks, lists of sequences              Mask, pad_sequences, unpad_sequences
    one step at a time                     prepare_step; lstm_block_cell, gru_block_cell
    weights of PyTorch, Keras, ONNX, TF    cupyrnn.weights
    run an ONNX node                       run_onnx_node
    initial weights                        init_params, init_block_lstm, init_block_gru
    the gradient of the same call          vjp
    Hessian-vector products                jvp
    the ops in PyTorch, in JAX             cupyrnn.torch, cupyrnn.jax
    a cell of your own                     cupyrnn.cells, check_cell
    the equations as plain loops           cupyrnn.reference
    training on many processes             cupyrnn.parallel
    TensorFlow's own signatures            cupyrnn.raw_ops
    which kernels run on a GPU             cupyrnn.device

The help of each function has its equations, shapes, dtypes, errors and an example, as in
``help(cupyrnn.block_lstm)``. T is the number of time steps, B the batch, I the input size, H the
number of units, L the layers, D the directions, P the size of a projection.
"""

from ._lazy import attach_stub

__version__ = "0.1.0"

# Words of other libraries, and what to use here.
_INSTEAD = {
    "BlockLSTM": "cupyrnn.block_lstm, or cupyrnn.raw_ops.BlockLSTM with TensorFlow's signature",
    "GRU": "cupyrnn.torch.GRU, a PyTorch module, or the function cupyrnn.cudnn_rnn",
    "GRUCell": "cupyrnn.gru_block_cell, or cupyrnn.prepare_step",
    "LSTM": "cupyrnn.torch.LSTM, a PyTorch module, or the functions cudnn_rnn and block_lstm",
    "LSTMCell": "cupyrnn.lstm_block_cell, or cupyrnn.prepare_step",
    "RNN": "cupyrnn.torch.RNN, a PyTorch module, or the function cupyrnn.cudnn_rnn",
    "grad": "cupyrnn.vjp",
    "gru": "cupyrnn.block_gru, or cupyrnn.cudnn_rnn with rnn_mode='gru'",
    "hvp": "cupyrnn.jvp of a function that returns a gradient",
    "lstm": "cupyrnn.block_lstm, or cupyrnn.cudnn_rnn with rnn_mode='lstm'",
    "nn": "cupyrnn.torch",
    "rnn": "cupyrnn.cudnn_rnn",
    "value_and_grad": "cupyrnn.vjp",
}


def _hint_for(name: str) -> str:
    """Return the end of the error for an unknown name: what to use instead, if that is known."""
    if name in _INSTEAD:
        return f"; use {_INSTEAD[name]}"
    for module in ("weights", "typing", "device", "raw_ops", "cells"):
        if name in __getattr__(module).__all__:
            return f"; use cupyrnn.{module}.{name}"
    return ""


__all__, __dir__, __getattr__ = attach_stub(globals(), _hint_for)
