"""TensorFlow's fused recurrent ops, forward and backward, as functions over NumPy and CuPy arrays."""

from . import raw_ops
from .gru import (
    GRUCellGrads,
    GRUGrads,
    GRUOutputs,
    block_gru,
    block_gru_grad,
    gru_block_cell,
    gru_block_cell_backward,
    gru_block_cell_grad,
)
from .lstm import (
    LSTMCellGrads,
    LSTMGrads,
    LSTMOutputs,
    block_lstm,
    block_lstm_grad,
    lstm_block_cell,
    lstm_block_cell_backward,
    lstm_block_cell_grad,
)

__version__ = "0.1.0"

__all__ = [
    "GRUCellGrads",
    "GRUGrads",
    "GRUOutputs",
    "LSTMCellGrads",
    "LSTMGrads",
    "LSTMOutputs",
    "block_gru",
    "block_gru_grad",
    "block_lstm",
    "block_lstm_grad",
    "gru_block_cell",
    "gru_block_cell_backward",
    "gru_block_cell_grad",
    "lstm_block_cell",
    "lstm_block_cell_backward",
    "lstm_block_cell_grad",
    "raw_ops",
]
