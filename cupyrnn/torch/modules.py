"""Modules made of the functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..weights.init import init_block_lstm, init_params
from .definitions import PEEPHOLES
from .functions import RNNOutputs, block_lstm, cudnn_rnn

if TYPE_CHECKING:
    from .._block import GateOrder
    from ..arithmetic.gates import RecurrentActivation
    from ..cells.lstm import LSTMOutputs
    from ..weights.params import Direction, InputMode, RNNMode
    from .functions import Lengths, Resets


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
    forget_bias : float, optional
        Added to the forget gate; left out, 1 for "icfo" and 0 for "ifco".
    cell_clip : float, optional
        Bound of abs(cs); 0 or a negative number means none. Left out, 3 for "icfo" and none for
        "ifco".
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        What gives i, f and o of their sums; `cupyrnn.block_lstm` says whose each is.
    reverse : bool
        Run each sequence from its own last step to its first.
    device, dtype : torch.device, torch.dtype
        Those of the weights.

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
            num_units=num_units,
            input_size=input_size,
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
        sequence_lengths : list or tensor of [B] integers on the CPU, optional
            The length of each sequence, in [0, T]; all T if left out. Outputs are zero past it.
        resets : list or tensor of [T, B] booleans on the CPU, optional
            No state passes from a step t-1 to a step t that is marked, in either direction.

        Returns
        -------
        LSTMOutputs
            i, cs, f, o, ci, co and h, [T, B, H] each.

        Raises
        ------
        TypeError, ValueError
            A tensor is on another device or of another dtype than x, or a shape does not fit.

        Examples
        --------
        >>> import torch
        >>> from cupyrnn.torch import BlockLSTM
        >>> BlockLSTM(2, 3).forward(torch.ones(4, 1, 2), sequence_lengths=[3]).h[3]
        tensor([[0., 0., 0.]], grad_fn=<SelectBackward0>)
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
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: input, of size H, is added to every
        gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The part of the values between layers that is zeroed in training.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        What gives the gates of their sums; `cupyrnn.cudnn_rnn` says whose each is.
    time_major : bool
        Otherwise input and output are [B, T, ·] and the states [B, L*D, ·].
    device, dtype : torch.device, torch.dtype
        Those of the parameters.

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
            num_layers=num_layers,
            num_units=num_units,
            input_size=input_size,
            **net,
            seed=_generator(),
            dtype=np.float64,
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
        sequence_lengths : list or tensor of [B] integers on the CPU, optional
            The length of each sequence, in [0, T]; all T if left out. Outputs are zero past it.
        resets : list or tensor of [T, B] booleans on the CPU, optional
            No state passes from a step t-1 to a step t that is marked, in either direction.

        Returns
        -------
        RNNOutputs
            output, output_h and output_c.

        Raises
        ------
        TypeError, ValueError
            A tensor is on another device or of another dtype than input, or a shape does not fit.

        Examples
        --------
        >>> import torch
        >>> from cupyrnn.torch import CudnnRNN
        >>> CudnnRNN(2, 3).forward(torch.ones(4, 1, 2)).output_h.shape
        torch.Size([1, 1, 3])
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
