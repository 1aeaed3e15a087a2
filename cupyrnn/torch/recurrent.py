"""`torch.nn`'s recurrent modules, computed by `cudnn_rnn`, with the same interface."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import torch
from torch.nn.utils._expanded_weights.expanded_weights_impl import ExpandedWeight
from torch.nn.utils.rnn import PackedSequence

from .._typing import Save
from ..cells.packed import DIRECTIONS
from ..checks.attributes import (
    check_bool,
    check_dropout,
    check_integer,
    check_save,
    named,
    type_shown,
)
from ..checks.calls import check_lengths
from .arguments import Extras, Lengths, Resets, extras, keeps, save_of, seeds_of
from .definitions import CUDNN_RNN
from .modules import Leaf, check_pair
from .ops import check_tensor

States: TypeAlias = "tuple[torch.Tensor, ...]"
Input: TypeAlias = "torch.Tensor | PackedSequence"

# The cells by the `mode` of torch.nn's modules.
_MODES = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}


def _check_marks(op: str, resets: Any, axes: str, shape: tuple[int, ...]) -> None:
    """Check that resets are None or have the axes of the input without the last one."""
    if resets is not None and resets.shape != shape:
        found = tuple(resets.shape)
        raise ValueError(f"{op}: resets has shape {found}, expected ({axes}) = {tuple(shape)}")


def save_shown(save: Save) -> str:
    """Return `save` for the end of a module's repr."""
    return "" if save == "all" else f", save={save!r}"


class WithStates(Leaf):
    """A recurrent module that takes and returns states as torch.nn's do."""

    _count = 1  # the number of states

    def _checked_states(self, hx: Any) -> States:
        """Return the states of `hx`, one or two."""
        name, count = type(self).__name__, self._count
        states = hx if count > 1 else (hx,)
        if count > 1:
            check_pair(name, "hx", hx, "(h_0, c_0)")
        for n, s in enumerate(states):
            check_tensor(name, f"hx[{n}]" if count > 1 else "hx", s)
        return tuple(states)

    def _returned(self, states: States) -> Any:
        return states if self._count > 1 else states[0]


class Recurrent(WithStates):
    """A recurrent module with the interface of torch.nn's; subclasses run their op."""

    num_layers: int
    hidden_size: int
    proj_size: int
    batch_first: bool
    bidirectional: bool
    # torch.nn's checks of the input, and of the input and the states
    check_input: Callable[..., None]
    check_forward_args: Callable[..., None]

    def run(
        self, x: torch.Tensor, states: States | None, of_steps: Extras
    ) -> tuple[torch.Tensor, States]:
        """Return output and last states of a net over x [T, B, I]; None are zeros."""
        raise NotImplementedError

    def forward(
        self,
        input: Input,
        hx: Any = None,
        *,
        sequence_lengths: Lengths | None = None,
        resets: Resets | None = None,
    ) -> tuple[Any, Any]:
        """
        Run the net.

        Parameters
        ----------
        input : [T, B, I], [B, T, I] with batch_first, [T, I] without a batch, or PackedSequence
            The sequences.
        hx : tensor or pair of tensors, optional
            The states before the first step, [L*D, B, ·] each, or [L*D, ·] if input has no batch:
            for an LSTM the pair of h and c, else h. Zeros by default.
        sequence_lengths : list or tensor of [B] integers on the CPU, optional
            The length of each sequence, in [0, T]; T by default. Outputs are zero past it. A
            PackedSequence has its own lengths, none of them 0.
        resets : list or tensor of booleans, or of 0 and 1, on the CPU, optional
            Of the axes of input without I. No state passes between a marked step t and step t-1,
            in either direction. For a PackedSequence they are [T, B], the batch in the order before
            packing.

        Returns
        -------
        output, h_n or output, (h_n, c_n)
            The output of the last layer, a PackedSequence if input is one, and the states after
            each sequence's last step.

        Raises
        ------
        RuntimeError, TypeError, ValueError
            The errors of torch.nn's module and of the op.

        Examples
        --------
        >>> import torch
        >>> from cupyrnn.torch import GRU
        >>> output, h = GRU(2, 3, bidirectional=True).forward(torch.ones(4, 1, 2))
        >>> output.shape, h.shape
        (torch.Size([4, 1, 6]), torch.Size([2, 1, 3]))
        """
        if isinstance(self._parameters.get("weight_ih_l0"), ExpandedWeight):
            # PyTorch computes gradients by example through its own steps.
            if sequence_lengths is not None or resets is not None:
                name, extra = type(self).__name__, "resets" if resets is not None else "lengths"
                raise NotImplementedError(f"{name}: PyTorch's ExpandedWeights have no {extra}")
            steps: Any = super()
            return steps.forward(input, hx)  # type: ignore[no-any-return]
        if not isinstance(input, torch.Tensor):
            if isinstance(input, torch.fx.Proxy):
                return self.as_node(input, hx=hx, sequence_lengths=sequence_lengths, resets=resets)
            if isinstance(input, PackedSequence):
                return self._forward_packed(input, hx, sequence_lengths, resets)
            check_tensor(type(self).__name__, "input", input)
        if input.is_nested:
            raise TypeError(
                f"{type(self).__name__}: input is a nested tensor, expected a dense tensor:"
                " pad the sequences and pass sequence_lengths"
            )
        batched, axis = input.dim() == 3, 0 if self.batch_first else 1
        if not batched and input.dim() != 2:
            name = type(self).__name__
            raise ValueError(f"{name}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        lengths = marks = None
        if sequence_lengths is not None or resets is not None:
            name, axes = type(self).__name__, "B, T" if self.batch_first else "T, B"
            lengths, marks = extras(name, sequence_lengths, resets)
            _check_marks(name, marks, axes if batched else "T", input.shape[:-1])
        if not batched:
            input = input.unsqueeze(axis)
            marks = None if marks is None else marks.unsqueeze(axis)
        states: States | None = None
        if hx is None:
            self.check_input(input, None)
        else:
            states = self._checked_states(hx)
            self._check_axes(states, batched)
            if not batched:
                states = tuple(s.unsqueeze(1) for s in states)
            self.check_forward_args(input, self._returned(states), None)
        if self.batch_first:
            input = input.transpose(0, 1)
            marks = None if marks is None else marks.t()
        try:
            output, last = self.run(input, states, (lengths, marks))
        except ValueError:
            check_lengths(type(self).__name__, lengths, *input.shape[:2])  # named after the module
            raise
        if self.batch_first:
            output = output.transpose(0, 1)
        if not batched:
            output, last = output.squeeze(axis), tuple(s.squeeze(1) for s in last)
        return output, self._returned(last)

    def _forward_packed(
        self, input: PackedSequence, hx: Any, lengths: Any, resets: Resets | None
    ) -> tuple[Any, Any]:
        data, batch_sizes, order, back = input
        T, B = len(batch_sizes), int(batch_sizes[0])
        name = type(self).__name__
        if lengths is not None:
            raise TypeError(
                f"{name}: sequence_lengths is {type_shown(lengths)}, expected None: a"
                " PackedSequence has its own lengths"
            )
        _, marks = extras(name, None, resets)
        _check_marks(name, marks, "T, B", (T, B))
        states: States | None = None
        if hx is None:
            self.check_input(data, batch_sizes)
        else:
            states = self._checked_states(hx)
            if order is not None:
                states = tuple(s.index_select(1, order) for s in states)
            self.check_forward_args(data, self._returned(states), batch_sizes)
        if order is not None and marks is not None:
            marks = marks.index_select(1, order.cpu())
        traced = torch.compiler.is_compiling() or torch._C._is_tracing()
        if not traced and int(batch_sizes[-1]) == B:  # all sequences are of one length
            output, last = self.run(data.view(T, B, -1), states, (None, marks))
            found = output.flatten(0, 1)
        else:
            found, last = self._run_packed(data, states, batch_sizes, marks)
        if back is not None:
            last = tuple(s.index_select(1, back) for s in last)
        return PackedSequence(found, batch_sizes, order, back), self._returned(last)

    def _run_packed(
        self, data: torch.Tensor, states: States | None, batch_sizes: torch.Tensor, marks: Any
    ) -> tuple[torch.Tensor, States]:
        """Return the outputs of packed steps, packed, and the states after the last ones."""
        T, B = len(batch_sizes), int(batch_sizes[0])
        # The rows of [T, B, ·] that are steps of sequences, which is how PyTorch packs them.
        is_step = torch.arange(B) < batch_sizes.unsqueeze(1)
        rows = is_step.flatten().nonzero().squeeze(1).to(data.device)
        x = data.new_zeros(T * B, data.shape[1]).index_copy(0, rows, data)
        output, last = self.run(x.view(T, B, -1), states, (is_step.sum(0), marks))
        return output.reshape(T * B, -1).index_select(0, rows), last

    def _check_axes(self, states: States, batched: bool) -> None:
        """Check that states have a batch if the input has one; the errors are torch.nn's."""
        axes, kind = (3, "batched 3-D") if batched else (2, "unbatched 2-D")
        if all(s.dim() == axes for s in states):
            return
        actual = ", ".join(f"{s.dim()}-D" for s in states)
        what, tensors = ("hx", "tensor")
        if len(states) > 1:
            what, actual, tensors = "hx and cx", f"({actual})", "tensors"
        raise RuntimeError(
            f"For {kind} input, {what} should also be {axes}-D but got {actual} {tensors}"
        )


class Packed(WithStates):
    """A module with torch.nn's parameters, packed in every call of `cudnn_rnn`."""

    mode: str  # torch.nn's name of the cell
    bias: bool
    input_size: int
    hidden_size: int
    save: Save = "all"  # for modules pickled as torch.nn's, which have no `save`
    # of torch.nn's cells, which have no such attributes
    num_layers, proj_size, dropout, bidirectional = 1, 0, 0.0, False
    _flat_weights_names: list[str] = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]  # noqa: RUF012

    def run(
        self, x: torch.Tensor, states: States | None, of_steps: Extras
    ) -> tuple[torch.Tensor, States]:
        """Return output and last states over x [T, B, I]; None are zeros."""
        if x.shape[0] == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        known = self._parameters  # unless a parametrization or pruning moved one
        names = _in_packed_order(tuple(self._flat_weights_names), self.bias)
        pieces: Any = [known[n] if n in known else getattr(self, n) for n in names]
        if not self.bias:
            rows, D = len(pieces[0]), 1 + self.bidirectional
            pieces.append(pieces[0].new_zeros(2 * rows * self.num_layers * D))
        h, c = (*(states or ()), None, None)[:2]
        rate = 0.0
        if self.training and self.dropout:
            rate = check_dropout(type(self).__name__, self.dropout)
        direction = DIRECTIONS[self.bidirectional]
        every = 0 if self.save == "all" else check_save(type(self).__name__, self.save) or 0
        output, *last = CUDNN_RNN(
            x, h, c, tuple(pieces), *of_steps, seeds_of(rate), _MODES[self.mode], "linear_input",
            direction, rate, self.proj_size, "sigmoid", True, False, self.num_layers,
            self.hidden_size, self.input_size, keeps(rate), every,
        )  # fmt: skip
        return output, tuple(last[: self._count])


class RecurrentNet(Packed, Recurrent, torch.nn.RNNBase):
    """
    Base of LSTM, GRU and RNN.

    It is a subclass of torch.nn's module, with the same parameters, names, reset_parameters, repr,
    state_dict and checks.
    """

    def __init__(self, *args: Any, proj_size: int, save: Save, **kwargs: Any) -> None:
        op = type(self).__name__
        _, _, num_layers, *_, dropout, bidirectional = args
        check_integer(op, "num_layers", num_layers)  # torch.nn refuses too small numbers
        check_dropout(op, dropout)
        if not isinstance(bidirectional, int):  # torch.nn takes 0 and 1, too
            check_bool(op, "bidirectional", bidirectional)
        args = (*args[:-1], bool(bidirectional))
        # torch.nn refuses the name in modules without a projection.
        if check_integer(op, "proj_size", proj_size):
            kwargs["proj_size"] = proj_size
        super().__init__(*args, **kwargs)
        self.save = save_of(op, save)

    def extra_repr(self) -> str:
        """
        Return what torch.nn's modules show, and `save` unless all is kept.

        Returns
        -------
        str
            What repr has between the brackets.

        Examples
        --------
        >>> from cupyrnn.torch import GRU
        >>> GRU(2, 3, save=32).extra_repr()
        '2, 3, save=32'
        """
        return super().extra_repr() + save_shown(self.save)


@cache
def _in_packed_order(names: tuple[str, ...], bias: bool) -> list[str]:
    """Return the names of the parameters as cuDNN packs them: all weights before all biases."""
    return [n for n in names if n[0] == "w"] + [n for n in names if n[0] == "b" and bias]


class LSTMOrGRU(RecurrentNet):
    """Base of LSTM and GRU: their arguments."""

    @named
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        save: Save = "all",
    ) -> None:
        more = {"proj_size": proj_size, "device": device, "dtype": dtype, "save": save}
        flags = (bias, batch_first, dropout, bidirectional)
        super().__init__(input_size, hidden_size, num_layers, *flags, **more)


class LSTM(LSTMOrGRU, torch.nn.LSTM):
    """
    A drop-in `torch.nn.LSTM`, computed by `cudnn_rnn`: the same arguments, parameters and returns.

    It is a torch.nn.LSTM for isinstance, too. It adds ``sequence_lengths`` and ``resets`` in a
    call, ``save``, double backward and forward mode with any arguments. `torch.compile` breaks its
    graph at each torch.nn.LSTM; with ``torch._dynamo.config.allow_rnn = True``, this one is an op
    of the graph. Its dropout masks differ from torch.nn's.

    Parameters
    ----------
    input_size, hidden_size, num_layers : int
        I, H and L.
    bias : bool
        Whether to have bias_ih and bias_hh.
    batch_first : bool
        If True, input and output are [B, T, ·]. The states are [L*D, B, ·] in either case.
    dropout : float
        The fraction of the values between layers that is set to zero in training.
    bidirectional : bool
        If True, each layer has both directions: D is 2.
    proj_size : int
        P, the size to which the output is projected; 0 for none.
    device, dtype : torch.device, torch.dtype
        The device and dtype of the parameters; PyTorch's defaults by default.
    save : {"all", "states"} or int
        What to keep for the gradient: see `cudnn_rnn`.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_hr_l0, weight_ih_l0_reverse, ...
        The parameters of `torch.nn.LSTM`, with its shapes: ``load_state_dict`` works both ways.

    Raises
    ------
    TypeError, ValueError
        What `torch.nn.LSTM` raises.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import LSTM
    >>> net = LSTM(2, 3, batch_first=True)
    >>> net.load_state_dict(torch.nn.LSTM(2, 3).state_dict())
    <All keys matched successfully>
    >>> output, (h, c) = net(torch.ones(1, 4, 2))
    >>> output.shape
    torch.Size([1, 4, 3])
    """

    _count = 2


class GRU(LSTMOrGRU, torch.nn.GRU):
    """
    A drop-in `torch.nn.GRU`, computed by `cudnn_rnn`: the same arguments, parameters and returns.

    Parameters
    ----------
    input_size, hidden_size, num_layers : int
        I, H and L.
    bias : bool
        Whether to have bias_ih and bias_hh.
    batch_first : bool
        If True, input and output are [B, T, ·]. The states are [L*D, B, ·] in either case.
    dropout : float
        The fraction of the values between layers that is set to zero in training.
    bidirectional : bool
        If True, each layer has both directions: D is 2.
    proj_size : int
        Must be 0: only an LSTM has a projection. torch.nn has the argument in this place.
    device, dtype : torch.device, torch.dtype
        The device and dtype of the parameters; PyTorch's defaults by default.
    save : {"all", "states"} or int
        What to keep for the gradient: see `cudnn_rnn`.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ...
        The parameters of `torch.nn.GRU`.

    Raises
    ------
    TypeError, ValueError
        What `torch.nn.GRU` raises.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import GRU
    >>> output, h = GRU(2, 3, num_layers=2)(torch.ones(4, 1, 2))
    >>> output.shape, h.shape
    (torch.Size([4, 1, 3]), torch.Size([2, 1, 3]))
    """


class RNN(RecurrentNet, torch.nn.RNN):
    """
    A drop-in `torch.nn.RNN`, computed by `cudnn_rnn`: the same arguments, parameters and returns.

    Parameters
    ----------
    input_size, hidden_size, num_layers : int
        I, H and L.
    nonlinearity : {"tanh", "relu"}
        The activation of the cell.
    bias : bool
        Whether to have bias_ih and bias_hh.
    batch_first : bool
        If True, input and output are [B, T, ·]. The states are [L*D, B, ·] in either case.
    dropout : float
        The fraction of the values between layers that is set to zero in training.
    bidirectional : bool
        If True, each layer has both directions: D is 2.
    proj_size : int
        Must be 0: only an LSTM has a projection. torch.nn has the argument in this place.
    device, dtype : torch.device, torch.dtype
        The device and dtype of the parameters; PyTorch's defaults by default.
    save : {"all", "states"} or int
        What to keep for the gradient: see `cudnn_rnn`.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ...
        The parameters of `torch.nn.RNN`.

    Raises
    ------
    TypeError, ValueError
        What `torch.nn.RNN` raises.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import RNN
    >>> output, h = RNN(2, 3, nonlinearity="relu")(torch.ones(4, 1, 2))
    >>> output.shape
    torch.Size([4, 1, 3])
    """

    @named
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        save: Save = "all",
    ) -> None:
        more = {"proj_size": proj_size, "device": device, "dtype": dtype, "save": save}
        flags = (nonlinearity, bias, batch_first, dropout, bidirectional)
        super().__init__(input_size, hidden_size, num_layers, *flags, **more)
