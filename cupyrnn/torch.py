"""
The ops as functions of PyTorch's tensors, and two modules made of them.

What they compute is that of `cupyrnn`'s functions of the same names: on a CPU with NumPy, in the
memory of the tensors, and on CUDA with CuPy, on PyTorch's current stream and in memory of its
allocator. Gradients, double backward and forward mode are exact, through a clip too;
``torch.func.grad``, ``vjp`` and ``jvp`` take the functions. ``vmap`` and third derivatives are
refused: ``torch.autograd.functional.hessian`` works, ``torch.func.hessian``, which is made of
``vmap``, does not.

``torch.compile(fullgraph=True)`` and ``torch.export`` see each function as one op, whose T and B
may be symbolic; in a compiled graph there are no transforms of ``torch.func``, and no forward mode.

Float16 and bfloat16 have first derivatives only; bfloat16 on a CPU needs ml_dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from ._arrays import check_choice
from ._block_cells import COLUMNS, check_forget_bias
from ._torch_functions import (
    BLOCK_GRU,
    BLOCK_LSTM,
    CUDNN_RNN,
    GRU_BLOCK_CELL,
    LSTM_BLOCK_CELL,
    PEEPHOLES,
)
from .cells.gru import GRUOutputs
from .cells.lstm import LSTMOutputs
from .init import init_block_lstm, init_params
from .params import GATES

if TYPE_CHECKING:
    from ._block_cells import GateOrder
    from ._gates import RecurrentActivation
    from .params import Direction, InputMode, RNNMode

    Lengths: TypeAlias = torch.Tensor | Sequence[int]
    Resets: TypeAlias = torch.Tensor | Sequence[Sequence[bool]]

__all__ = [
    "BlockLSTM",
    "CudnnRNN",
    "RNNOutputs",
    "block_gru",
    "block_lstm",
    "cudnn_rnn",
    "gru_block_cell",
    "lstm_block_cell",
]


class RNNOutputs(NamedTuple):
    """What `cudnn_rnn` returns; output_c is a scalar zero for cells without it."""

    output: torch.Tensor
    output_h: torch.Tensor
    output_c: torch.Tensor


def _extras(sequence_lengths: Any, resets: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return what stays on the host as tensors."""
    if sequence_lengths is not None and not isinstance(sequence_lengths, torch.Tensor):
        sequence_lengths = torch.tensor(sequence_lengths, dtype=torch.int64)
    if resets is not None and not isinstance(resets, torch.Tensor):
        resets = torch.tensor(resets, dtype=torch.bool)
    return sequence_lengths, resets


def _lstm_attributes(
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


def _lstm_outputs(found: Sequence[torch.Tensor]) -> LSTMOutputs:
    cs, h, i, f, o, ci, co = found
    values: Any = (i, cs, f, o, ci, co, h)
    return LSTMOutputs(*values)


def _gru_outputs(found: Sequence[torch.Tensor]) -> GRUOutputs:
    h, *gates = found
    values: Any = (*gates, h)
    return GRUOutputs(*values)


def lstm_block_cell(
    x: torch.Tensor,
    cs_prev: torch.Tensor,
    h_prev: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor,
    *,
    wci: torch.Tensor | None = None,
    wcf: torch.Tensor | None = None,
    wco: torch.Tensor | None = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> LSTMOutputs:
    """
    `cupyrnn.lstm_block_cell` of tensors.

    Parameters
    ----------
    x, cs_prev, h_prev, w, b, wci, wcf, wco, forget_bias, cell_clip, gate_order, \
    recurrent_activation
        As there, of tensors on one device.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, [B, H] each. cs and h have gradients: through a clip, the true
        one.

    Raises
    ------
    TypeError, ValueError
        As there; also if a tensor is on another device than x.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> x, state, w = torch.ones(1, 2), torch.zeros(1, 3), torch.full((5, 12), 0.1)
    >>> out = cupyrnn.torch.lstm_block_cell(x, state, state, w.requires_grad_(), torch.zeros(12))
    >>> out.h.sum().backward()
    >>> w.grad.shape
    torch.Size([5, 12])
    """
    attributes = _lstm_attributes(
        "lstm_block_cell", forget_bias, cell_clip, gate_order, recurrent_activation
    )
    return _lstm_outputs(LSTM_BLOCK_CELL(x, cs_prev, h_prev, w, b, wci, wcf, wco, *attributes))


def block_lstm(
    x: torch.Tensor,
    cs_prev: torch.Tensor,
    h_prev: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor,
    *,
    wci: torch.Tensor | None = None,
    wcf: torch.Tensor | None = None,
    wco: torch.Tensor | None = None,
    sequence_lengths: Lengths | None = None,
    reverse: bool = False,
    resets: Resets | None = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> LSTMOutputs:
    """
    `cupyrnn.block_lstm` of tensors.

    Parameters
    ----------
    x, cs_prev, h_prev, w, b, wci, wcf, wco, reverse, forget_bias, cell_clip, gate_order, \
    recurrent_activation
        As there, of tensors on one device.
    sequence_lengths, resets
        As there: lists, or tensors on the CPU.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, [T, B, H] each. cs and h have gradients: through a clip, the
        true one.

    Raises
    ------
    TypeError, ValueError
        As there; also if a tensor is on another device than x.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> x, state, w = torch.ones(4, 1, 2), torch.zeros(1, 3), torch.full((5, 12), 0.1)
    >>> out = cupyrnn.torch.block_lstm(x, state, state, w, torch.zeros(12))
    >>> out.h.shape
    torch.Size([4, 1, 3])
    """
    attributes = _lstm_attributes(
        "block_lstm", forget_bias, cell_clip, gate_order, recurrent_activation
    )
    extras = _extras(sequence_lengths, resets)
    inputs = (x, cs_prev, h_prev, w, b, wci, wcf, wco)
    return _lstm_outputs(BLOCK_LSTM(*inputs, *extras, *attributes, reverse))


def gru_block_cell(
    x: torch.Tensor,
    h_prev: torch.Tensor,
    w_ru: torch.Tensor,
    w_c: torch.Tensor,
    b_ru: torch.Tensor,
    b_c: torch.Tensor,
    *,
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> GRUOutputs:
    """
    `cupyrnn.gru_block_cell` of tensors.

    Parameters
    ----------
    x, h_prev, w_ru, w_c, b_ru, b_c, recurrent_activation
        As there, of tensors on one device.

    Returns
    -------
    GRUOutputs
        r, u, c and h, [B, H] each. h has a gradient.

    Raises
    ------
    TypeError, ValueError
        As there; also if a tensor is on another device than x.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> x, h, w = torch.ones(1, 2), torch.zeros(1, 3), torch.full((5, 9), 0.1)
    >>> out = cupyrnn.torch.gru_block_cell(
    ...     x, h, w[:, :6], w[:, 6:], torch.zeros(6), torch.zeros(3)
    ... )
    >>> out.h.shape
    torch.Size([1, 3])
    """
    return _gru_outputs(GRU_BLOCK_CELL(x, h_prev, w_ru, w_c, b_ru, b_c, recurrent_activation))


def block_gru(
    x: torch.Tensor,
    h_prev: torch.Tensor,
    w_ru: torch.Tensor,
    w_c: torch.Tensor,
    b_ru: torch.Tensor,
    b_c: torch.Tensor,
    *,
    sequence_lengths: Lengths | None = None,
    reverse: bool = False,
    resets: Resets | None = None,
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> GRUOutputs:
    """
    `cupyrnn.block_gru` of tensors.

    Parameters
    ----------
    x, h_prev, w_ru, w_c, b_ru, b_c, reverse, recurrent_activation
        As there, of tensors on one device.
    sequence_lengths, resets
        As there: lists, or tensors on the CPU.

    Returns
    -------
    GRUOutputs
        r, u, c and h, [T, B, H] each. h has a gradient.

    Raises
    ------
    TypeError, ValueError
        As there; also if a tensor is on another device than x.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> x, h, w = torch.ones(4, 1, 2), torch.zeros(1, 3), torch.full((5, 9), 0.1)
    >>> out = cupyrnn.torch.block_gru(x, h, w[:, :6], w[:, 6:], torch.zeros(6), torch.zeros(3))
    >>> out.h.shape
    torch.Size([4, 1, 3])
    """
    extras = _extras(sequence_lengths, resets)
    inputs = (x, h_prev, w_ru, w_c, b_ru, b_c)
    return _gru_outputs(BLOCK_GRU(*inputs, *extras, recurrent_activation, reverse))


def cudnn_rnn(
    input: torch.Tensor,
    input_h: torch.Tensor,
    input_c: torch.Tensor | None,
    params: torch.Tensor,
    *,
    sequence_lengths: Lengths | None = None,
    resets: Resets | None = None,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seeds: torch.Tensor | None = None,
    num_proj: int = 0,
    recurrent_activation: RecurrentActivation = "sigmoid",
    time_major: bool = True,
) -> RNNOutputs:
    """
    `cupyrnn.cudnn_rnn` of tensors: on CUDA by this package's kernels, not by cuDNN.

    Parameters
    ----------
    input, input_h, input_c, params, rnn_mode, input_mode, direction, num_proj, \
    recurrent_activation, time_major
        As there, of tensors on one device.
    sequence_lengths, resets
        As there: lists, or tensors on the CPU.
    dropout : float
        As there in training; 0 for none.
    seeds : tensor of two integers on the CPU, optional
        What the masks depend on, for instance ``torch.randint(2**62, (2,))``: new ones in every
        call. Zeros if left out.

    Returns
    -------
    RNNOutputs
        output, output_h and output_c.

    Raises
    ------
    TypeError, ValueError
        As there; also if a tensor is on another device than input.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> x, h = torch.ones(4, 1, 2), torch.zeros(1, 1, 3)
    >>> params = torch.full((cupyrnn.cudnn_rnn_params_size(1, 3, 2),), 0.1)
    >>> cupyrnn.torch.cudnn_rnn(x, h, h, params).output.shape
    torch.Size([4, 1, 3])
    """
    op = "cudnn_rnn"
    check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    if rnn_mode == "lstm" and input_c is None:
        raise TypeError(f"{op}: input_c is None, expected a tensor like input")
    is_training = torch.is_grad_enabled() or dropout > 0
    attributes = (
        *(rnn_mode, input_mode, direction, float(dropout), num_proj, recurrent_activation),
        *(time_major, is_training),
    )
    inputs = (input, input_h, input_c if rnn_mode == "lstm" else None, params)
    output, h, c, _ = CUDNN_RNN(*inputs, *_extras(sequence_lengths, resets), seeds, *attributes)
    return RNNOutputs(output, h, c)


def _parameter(a: Any, device: Any, dtype: torch.dtype) -> torch.nn.Parameter:
    """Return a parameter of values in float64, rounded once."""
    return torch.nn.Parameter(torch.from_numpy(a).to(device=device, dtype=dtype))


def _generator() -> np.random.Generator:
    """Return a generator that depends on torch.manual_seed."""
    return np.random.default_rng(int(torch.randint(2**62, ())))


class BlockLSTM(torch.nn.Module):
    """
    One layer of `block_lstm` with its weights, peepholes included.

    Parameters
    ----------
    input_size, num_units : int
        I and H.
    use_peephole : bool
        Have wci, wcf and wco, which are zero at first.
    forget_bias, cell_clip, gate_order, recurrent_activation, reverse
        As in `cupyrnn.block_lstm`.
    device, dtype
        Of the weights.

    Attributes
    ----------
    w, b, wci, wcf, wco
        The weights, by the names of `block_lstm`'s arguments; drawn as `init_block_lstm` does.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import BlockLSTM
    >>> layer = BlockLSTM(2, 3)
    >>> out = layer(torch.ones(4, 1, 2), sequence_lengths=[3])
    >>> out.h.shape
    torch.Size([4, 1, 3])
    """

    def __init__(
        self,
        input_size: int,
        num_units: int,
        *,
        use_peephole: bool = True,
        forget_bias: float | None = None,
        cell_clip: float | None = None,
        gate_order: GateOrder = "icfo",
        recurrent_activation: RecurrentActivation = "sigmoid",
        reverse: bool = False,
        device: Any = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.attributes: dict[str, Any] = {
            "forget_bias": forget_bias,
            "cell_clip": cell_clip,
            "gate_order": gate_order,
            "recurrent_activation": recurrent_activation,
            "reverse": reverse,
        }
        # The op adds forget_bias itself.
        w, b = init_block_lstm(
            num_units,
            input_size,
            gate_order=gate_order,
            forget_bias=0.0,
            seed=_generator(),
            dtype=np.float64,
        )
        self.w, self.b = _parameter(w, device, dtype), _parameter(b, device, dtype)
        self.wci: torch.nn.Parameter | None
        self.wcf: torch.nn.Parameter | None
        self.wco: torch.nn.Parameter | None
        for name in PEEPHOLES:
            zeros = _parameter(np.zeros(num_units), device, dtype) if use_peephole else None
            self.register_parameter(name, zeros)

    def forward(
        self,
        x: torch.Tensor,
        state: tuple[torch.Tensor, torch.Tensor] | None = None,
        *,
        sequence_lengths: Lengths | None = None,
        resets: Resets | None = None,
    ) -> LSTMOutputs:
        """
        Run the layer over x[T, B, I].

        Parameters
        ----------
        x : [T, B, I]
            The input.
        state : (cs_prev, h_prev), optional
            The states before the first step, [B, H] each; zeros if left out.
        sequence_lengths, resets
            As in `block_lstm`.

        Returns
        -------
        LSTMOutputs
            As `block_lstm`.
        """
        if state is None:
            zeros = x.new_zeros((x.shape[1], self.w.shape[1] // 4))
            state = (zeros, zeros)
        return block_lstm(
            x,
            *state,
            self.w,
            self.b,
            wci=self.wci,
            wcf=self.wcf,
            wco=self.wco,
            sequence_lengths=sequence_lengths,
            resets=resets,
            **self.attributes,
        )


class CudnnRNN(torch.nn.Module):
    """
    A net of `cudnn_rnn` with its packed parameters.

    Parameters
    ----------
    input_size, num_units, num_layers : int
        I, H and L.
    rnn_mode, input_mode, direction, num_proj, recurrent_activation, time_major
        As in `cupyrnn.cudnn_rnn`.
    dropout : float
        Between the layers, in training.
    device, dtype
        Of the parameters.

    Attributes
    ----------
    params : [params_size]
        As `cupyrnn.cudnn_rnn_params_layout` says; drawn as `init_params` does.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import CudnnRNN
    >>> net = CudnnRNN(2, 3, 2, rnn_mode="gru", direction="bidirectional")
    >>> net(torch.ones(4, 1, 2)).output.shape
    torch.Size([4, 1, 6])
    """

    def __init__(
        self,
        input_size: int,
        num_units: int,
        num_layers: int = 1,
        *,
        rnn_mode: RNNMode = "lstm",
        input_mode: InputMode = "linear_input",
        direction: Direction = "unidirectional",
        dropout: float = 0.0,
        num_proj: int = 0,
        recurrent_activation: RecurrentActivation = "sigmoid",
        time_major: bool = True,
        device: Any = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        net: dict[str, Any] = {
            "rnn_mode": rnn_mode,
            "input_mode": input_mode,
            "direction": direction,
            "num_proj": num_proj,
        }
        self.dropout = dropout
        self.attributes: dict[str, Any] = net | {
            "recurrent_activation": recurrent_activation,
            "time_major": time_major,
        }
        D = 1 + (direction == "bidirectional")
        self._states = num_layers * D, num_proj or num_units, num_units
        drawn = init_params(
            num_layers, num_units, input_size, **net, seed=_generator(), dtype=np.float64
        )
        self.params = _parameter(drawn.params, device, dtype)

    def forward(
        self,
        input: torch.Tensor,
        state: tuple[torch.Tensor, torch.Tensor | None] | None = None,
        *,
        sequence_lengths: Lengths | None = None,
        resets: Resets | None = None,
    ) -> RNNOutputs:
        """
        Run the net.

        Parameters
        ----------
        input : [T, B, I]
            The input.
        state : (input_h, input_c), optional
            The states before the first step; zeros if left out.
        sequence_lengths, resets
            As in `cudnn_rnn`.

        Returns
        -------
        RNNOutputs
            As `cudnn_rnn`.
        """
        if state is None:
            places, P, H = self._states
            B = input.shape[1 if self.attributes["time_major"] else 0]
            order = (places, B) if self.attributes["time_major"] else (B, places)
            c = input.new_zeros((*order, H)) if self.attributes["rnn_mode"] == "lstm" else None
            state = (input.new_zeros((*order, P)), c)
        dropout = self.dropout if self.training else 0.0
        return cudnn_rnn(
            input,
            *state,
            self.params,
            sequence_lengths=sequence_lengths,
            resets=resets,
            dropout=dropout,
            seeds=torch.randint(2**62, (2,)) if dropout else None,
            **self.attributes,
        )
