"""`torch.nn`'s cells: one step of `cudnn_rnn`, with the same interface."""

from __future__ import annotations

from typing import Any

import torch

from ..checks.attributes import named
from .ops import check_tensor
from .recurrent import Packed, States


class RecurrentCell(Packed):
    """Base of LSTMCell, GRUCell and RNNCell."""

    def forward(self, input: torch.Tensor, hx: Any = None) -> Any:
        """
        Run one step.

        Parameters
        ----------
        input : [B, I], or [I] without a batch
            The input of the step.
        hx : tensor or pair of tensors, optional
            The states before the step, [B, H] each, or [H] without a batch: for an LSTM the pair
            of h and c, else h. Zeros by default.

        Returns
        -------
        h or (h, c)
            The states after the step.

        Raises
        ------
        RuntimeError, TypeError, ValueError
            The errors of torch.nn's module and of the op.

        Examples
        --------
        >>> import torch
        >>> from cupyrnn.torch import LSTMCell
        >>> h, c = LSTMCell(2, 3).forward(torch.ones(1, 2))
        >>> h.shape
        torch.Size([1, 3])
        """
        if isinstance(input, torch.fx.Proxy):
            return self.as_node(input, hx=hx)
        name = type(self).__name__
        check_tensor(name, "input", input)
        if input.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        states = None if hx is None else self._checked_states(hx)
        self._check_shapes(input, states or ())
        batched = input.dim() == 2
        x = input[None] if batched else input[None, None]
        if states is not None:
            states = tuple(s[None] if batched else s[None, None] for s in states)
        last = self.run(x, states, (None, None))[1]
        return self._returned(tuple(s[0] if batched else s[0, 0] for s in last))

    def _check_shapes(self, x: torch.Tensor, states: States) -> None:
        """Check the shapes of a call; the errors are torch.nn's."""
        name, I, H = type(self).__name__, self.input_size, self.hidden_size
        for n, s in enumerate(states):
            if s.dim() not in (1, 2):
                which = f"hx[{n}]" if self._count > 1 else "hidden"
                raise ValueError(f"{name}: Expected {which} to be 1D or 2D, got {s.dim()}D instead")
            if s.dim() != x.dim():
                raise RuntimeError(
                    f"{name}: input is {x.dim()}-D, but hidden{n} is {s.dim()}-D, expected the same"
                )
        if x.shape[-1] != I:
            raise RuntimeError(
                f"{name}: input has inconsistent input_size: got {x.shape[-1]} expected {I}"
            )
        for n, s in enumerate(states):
            if s.shape[-1] != H:
                raise RuntimeError(
                    f"{name}: hidden{n} has inconsistent hidden_size: got {s.shape[-1]}, expected"
                    f" {H}"
                )
            if s.shape[:-1] != x.shape[:-1]:
                raise RuntimeError(
                    f"{name}: Input batch size {x.shape[0]} doesn't match hidden{n} batch size"
                    f" {s.shape[0]}"
                )


class LSTMOrGRUCell(RecurrentCell):
    """Base of LSTMCell and GRUCell: their arguments."""

    @named
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device=device, dtype=dtype)


class LSTMCell(LSTMOrGRUCell, torch.nn.LSTMCell):
    """
    A drop-in `torch.nn.LSTMCell`: one step of an LSTM, computed by `cudnn_rnn`.

    It is a torch.nn.LSTMCell for isinstance, too. It adds double backward and forward mode. Where
    the steps are known beforehand, one call of `LSTM` gives the same numbers in less time.

    Parameters
    ----------
    input_size, hidden_size : int
        I and H.
    bias : bool
        Whether to have bias_ih and bias_hh.
    device, dtype : torch.device, torch.dtype
        The device and dtype of the parameters; PyTorch's defaults by default.

    Attributes
    ----------
    weight_ih, weight_hh, bias_ih, bias_hh
        The parameters of `torch.nn.LSTMCell`: ``load_state_dict`` works both ways.

    Raises
    ------
    TypeError, ValueError
        What `torch.nn.LSTMCell` raises.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import LSTMCell
    >>> cell, x, state = LSTMCell(2, 3), torch.ones(4, 1, 2), None
    >>> for step in x:
    ...     state = cell(step, state)
    >>> h, c = state
    >>> h.shape
    torch.Size([1, 3])
    """

    _count, mode = 2, "LSTM"


class GRUCell(LSTMOrGRUCell, torch.nn.GRUCell):
    """
    A drop-in `torch.nn.GRUCell`: one step of a GRU, computed by `cudnn_rnn`.

    Parameters
    ----------
    input_size, hidden_size : int
        I and H.
    bias : bool
        Whether to have bias_ih and bias_hh.
    device, dtype : torch.device, torch.dtype
        The device and dtype of the parameters; PyTorch's defaults by default.

    Attributes
    ----------
    weight_ih, weight_hh, bias_ih, bias_hh
        The parameters of `torch.nn.GRUCell`.

    Raises
    ------
    TypeError, ValueError
        What `torch.nn.GRUCell` raises.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import GRUCell
    >>> GRUCell(2, 3)(torch.ones(1, 2), torch.zeros(1, 3)).shape
    torch.Size([1, 3])
    """

    mode = "GRU"


class RNNCell(RecurrentCell, torch.nn.RNNCell):
    """
    A drop-in `torch.nn.RNNCell`: one step of a simple RNN, computed by `cudnn_rnn`.

    Parameters
    ----------
    input_size, hidden_size : int
        I and H.
    bias : bool
        Whether to have bias_ih and bias_hh.
    nonlinearity : {"tanh", "relu"}
        The activation of the cell.
    device, dtype : torch.device, torch.dtype
        The device and dtype of the parameters; PyTorch's defaults by default.

    Attributes
    ----------
    weight_ih, weight_hh, bias_ih, bias_hh
        The parameters of `torch.nn.RNNCell`.

    Raises
    ------
    RuntimeError, TypeError, ValueError
        What `torch.nn.RNNCell` raises; it checks nonlinearity at the first call.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import RNNCell
    >>> RNNCell(2, 3, nonlinearity="relu")(torch.ones(1, 2)).shape
    torch.Size([1, 3])
    """

    @named
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, nonlinearity, device=device, dtype=dtype)

    @property
    def mode(self) -> str:  # type: ignore[override]
        """The name of the cell, as the modules of layers have it."""
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"RNNCell: Unknown nonlinearity: {self.nonlinearity}")
        return f"RNN_{self.nonlinearity.upper()}"
