"""What the functions of `cupyrnn.torch` are given and return, as PyTorch's ops have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ._arrays import check_choice
from ._block_cells import COLUMNS, check_forget_bias
from .cells.gru import GRUOutputs
from .cells.lstm import LSTMOutputs

if TYPE_CHECKING:
    from ._block_cells import GateOrder
    from ._gates import RecurrentActivation


class RNNOutputs(NamedTuple):
    """
    What `cudnn_rnn` returns.

    Attributes
    ----------
    output : [T, B, D*P]
        The output of the last layer.
    output_h : [L*D, B, P]
        The states after each sequence's last step.
    output_c : [L*D, B, H]
        The cell states of an LSTM; a scalar zero for cells without them.
    """

    output: torch.Tensor
    output_h: torch.Tensor
    output_c: torch.Tensor


def extras(sequence_lengths: Any, resets: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return what stays on the host as tensors."""
    if sequence_lengths is not None and not isinstance(sequence_lengths, torch.Tensor):
        sequence_lengths = torch.tensor(sequence_lengths, dtype=torch.int64)
    if resets is not None and not isinstance(resets, torch.Tensor):
        resets = torch.tensor(resets, dtype=torch.bool)
    return sequence_lengths, resets


def lstm_attributes(
    op: str,
    forget_bias: float | None,
    cell_clip: float | None,
    gate_order: GateOrder,
    recurrent_activation: RecurrentActivation,
) -> tuple[float, float, str, str]:
    """Return the attributes with TensorFlow's defaults."""
    check_choice(op, "gate_order", gate_order, tuple(COLUMNS))
    if cell_clip is None:
        cell_clip = 3.0 if gate_order == "icfo" else 0.0
    bias = check_forget_bias(op, forget_bias, gate_order)
    return bias, float(cell_clip), gate_order, recurrent_activation


def lstm_outputs(found: Sequence[torch.Tensor]) -> LSTMOutputs:
    cs, h, i, f, o, ci, co = found
    values: Any = (i, cs, f, o, ci, co, h)
    return LSTMOutputs(*values)


def gru_outputs(found: Sequence[torch.Tensor]) -> GRUOutputs:
    h, *gates = found
    values: Any = (*gates, h)
    return GRUOutputs(*values)
