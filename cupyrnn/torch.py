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
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from ._arrays import check_choice
from ._torch_arguments import RNNOutputs, extras, gru_outputs, lstm_attributes, lstm_outputs
from ._torch_functions import (
    BLOCK_GRU,
    BLOCK_LSTM,
    CUDNN_RNN,
    GRU_BLOCK_CELL,
    LSTM_BLOCK_CELL,
    PEEPHOLES,
)
from .init import init_block_lstm, init_params
from .params import GATES

if TYPE_CHECKING:
    from ._block_cells import GateOrder
    from ._gates import RecurrentActivation
    from .cells.gru import GRUOutputs
    from .cells.lstm import LSTMOutputs
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
    x : [B, I]
        The input; all tensors are on its device and of its dtype.
    cs_prev, h_prev : [B, H]
        The cell state and the output before the step.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in `gate_order`.
    b : [4*H]
        The bias, in the same order.
    wci, wcf, wco : [H], optional
        The peephole weights of i, f and o: all three or none.
    forget_bias : float, optional
        Added to the forget gate; left out, 1 for "icfo" and 0 for "ifco".
    cell_clip : float, optional
        Bound of abs(cs); 0 or a negative number means none. Left out, 3 for "icfo" and none for
        "ifco".
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        What gives i, f and o of their sums; `cupyrnn.lstm_block_cell` says whose each is.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, [B, H] each. cs and h have gradients: through a clip, the true
        one.

    Raises
    ------
    TypeError, ValueError
        An argument is no tensor or on another device or of another dtype than x, a shape does not
        fit the others, or an attribute is of a wrong type or out of range.

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
    attributes = lstm_attributes(
        "lstm_block_cell", forget_bias, cell_clip, gate_order, recurrent_activation
    )
    return lstm_outputs(LSTM_BLOCK_CELL(x, cs_prev, h_prev, w, b, wci, wcf, wco, *attributes))


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
    x : [T, B, I]
        The input; all tensors are on its device and of its dtype.
    cs_prev, h_prev : [B, H]
        The cell state and the output before the first step.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in `gate_order`.
    b : [4*H]
        The bias, in the same order.
    wci, wcf, wco : [H], optional
        The peephole weights of i, f and o: all three or none.
    sequence_lengths : list or tensor of [B] integers on the CPU, optional
        The length of each sequence, in [0, T]; all T if left out. Outputs are zero past it.
    reverse : bool
        Run each sequence from its own last step to its first.
    resets : list or tensor of [T, B] booleans on the CPU, optional
        No state passes from a step t-1 to a step t that is marked, in either direction.
    forget_bias : float, optional
        Added to the forget gate; left out, 1 for "icfo" and 0 for "ifco".
    cell_clip : float, optional
        Bound of abs(cs); 0 or a negative number means none. Left out, 3 for "icfo" and none for
        "ifco".
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        What gives i, f and o of their sums; `cupyrnn.block_lstm` says whose each is.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, [T, B, H] each. cs and h have gradients: through a clip, the
        true one.

    Raises
    ------
    TypeError, ValueError
        An argument is no tensor or on another device or of another dtype than x, a shape does not
        fit the others, or an attribute is of a wrong type or out of range.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> x, state, w = torch.ones(4, 1, 2), torch.zeros(1, 3), torch.full((5, 12), 0.1)
    >>> out = cupyrnn.torch.block_lstm(x, state, state, w, torch.zeros(12))
    >>> out.h.shape
    torch.Size([4, 1, 3])
    """
    attributes = lstm_attributes(
        "block_lstm", forget_bias, cell_clip, gate_order, recurrent_activation
    )
    of_steps = extras(sequence_lengths, resets)
    inputs = (x, cs_prev, h_prev, w, b, wci, wcf, wco)
    return lstm_outputs(BLOCK_LSTM(*inputs, *of_steps, *attributes, reverse))


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
    x : [B, I]
        The input; all tensors are on its device and of its dtype.
    h_prev : [B, H]
        The output before the step.
    w_ru : [I+H, 2*H]
        The weights of r and u, rows for x above rows for h_prev.
    w_c : [I+H, H]
        The weights of c, rows for x above rows for h_prev*r.
    b_ru, b_c : [2*H] and [H]
        The biases.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        What gives r and u of their sums; `cupyrnn.gru_block_cell` says whose each is.

    Returns
    -------
    GRUOutputs
        r, u, c and h, [B, H] each. h has a gradient.

    Raises
    ------
    TypeError, ValueError
        An argument is no tensor or on another device or of another dtype than x, a shape does not
        fit the others, or an attribute is of a wrong type or out of range.

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
    return gru_outputs(GRU_BLOCK_CELL(x, h_prev, w_ru, w_c, b_ru, b_c, recurrent_activation))


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
    x : [T, B, I]
        The input; all tensors are on its device and of its dtype.
    h_prev : [B, H]
        The output before the first step.
    w_ru : [I+H, 2*H]
        The weights of r and u, rows for x above rows for h_prev.
    w_c : [I+H, H]
        The weights of c, rows for x above rows for h_prev*r.
    b_ru, b_c : [2*H] and [H]
        The biases.
    sequence_lengths : list or tensor of [B] integers on the CPU, optional
        The length of each sequence, in [0, T]; all T if left out. Outputs are zero past it.
    reverse : bool
        Run each sequence from its own last step to its first.
    resets : list or tensor of [T, B] booleans on the CPU, optional
        No state passes from a step t-1 to a step t that is marked, in either direction.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        What gives r and u of their sums; `cupyrnn.block_gru` says whose each is.

    Returns
    -------
    GRUOutputs
        r, u, c and h, [T, B, H] each. h has a gradient.

    Raises
    ------
    TypeError, ValueError
        An argument is no tensor or on another device or of another dtype than x, a shape does not
        fit the others, or an attribute is of a wrong type or out of range.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> x, h, w = torch.ones(4, 1, 2), torch.zeros(1, 3), torch.full((5, 9), 0.1)
    >>> out = cupyrnn.torch.block_gru(x, h, w[:, :6], w[:, 6:], torch.zeros(6), torch.zeros(3))
    >>> out.h.shape
    torch.Size([4, 1, 3])
    """
    of_steps = extras(sequence_lengths, resets)
    inputs = (x, h_prev, w_ru, w_c, b_ru, b_c)
    return gru_outputs(BLOCK_GRU(*inputs, *of_steps, recurrent_activation, reverse))


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
    input : [T, B, I]
        The sequences; all tensors are on its device and of its dtype.
    input_h : [L*D, B, P]
        The states before the first step: of layer 0 forward, layer 0 backward, layer 1 forward
        and so on. The number of layers is taken from here.
    input_c : [L*D, B, H] or None
        The cell states of an LSTM. The other cells ignore it.
    params : [params_size]
        All weights and biases, packed as `cupyrnn.cudnn_rnn_params_layout` says.
    sequence_lengths : list or tensor of [B] integers on the CPU, optional
        The length of each sequence, in [0, T]; all T if left out. Outputs are zero past it.
    resets : list or tensor of [T, B] booleans on the CPU, optional
        No state passes from a step t-1 to a step t that is marked, in either direction.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: input, of size H, is added to every
        gate. auto_select is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The part, in [0, 1], of the values between layers that is zeroed; 0 for none.
    seeds : tensor of two integers on the CPU, optional
        What the masks depend on, for instance ``torch.randint(2**62, (2,))``: new ones in every
        call. Zeros if left out.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        What gives the gates of their sums; `cupyrnn.cudnn_rnn` says whose each is.
    time_major : bool
        Otherwise input and output are [B, T, ·] and the states [B, L*D, ·].

    Returns
    -------
    RNNOutputs
        output, output_h and output_c.

    Raises
    ------
    TypeError, ValueError
        An argument is no tensor or on another device or of another dtype than input, a shape does
        not fit the others, or an attribute is of a wrong type or out of range.

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
    output, h, c, _ = CUDNN_RNN(*inputs, *extras(sequence_lengths, resets), seeds, *attributes)
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
