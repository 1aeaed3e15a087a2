"""Modules made of the functions."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import torch

from .._typing import Save
from ..arithmetic.gates import RecurrentActivation, check_gate
from ..cells.contract import Attributes
from ..cells.lstm import LSTMOutputs
from ..checks.attributes import check_bool, check_dropout, check_integer, misfit, named, type_shown
from ..weights.block_forms import PEEPHOLES, GateOrder
from ..weights.init import init_block_lstm, init_params
from ..weights.params import DEFAULTS, Direction, InputMode, RNNMode, check_net
from .arguments import Lengths, Resets, lstm_attributes, save_of, seeds_of
from .functions import RNNOutputs, block_lstm, cudnn_rnn
from .ops import check_tensor, refuse_torchscript


def parameter_of(
    shape: tuple[int, ...], device: Any, dtype: torch.dtype | None
) -> torch.nn.Parameter:
    """Return a parameter without values."""
    return torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))


def draw(module: torch.nn.Module, drawn: dict[str, Any]) -> None:
    """Set the parameters of a module to values in float64, each rounded once."""
    with torch.no_grad():
        for name, values in drawn.items():
            parameter = getattr(module, name)
            if parameter is not None and not parameter.is_meta:
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))


def drawn_block_lstm(K: int, H: int, gate_order: GateOrder, rng: np.random.Generator) -> Any:
    """Return new weights of an LSTM by name: the biases are zero, and so are the peepholes."""
    w, b = init_block_lstm(
        num_units=H,
        input_size=K,
        gate_order=gate_order,
        forget_bias=0.0,  # which the op itself adds
        seed=rng,
        dtype=np.float64,
    )
    return {"w": w, "b": b, **dict.fromkeys(PEEPHOLES, np.zeros(H))}


def generator() -> np.random.Generator:
    """Return a generator that depends on torch.manual_seed."""
    return np.random.default_rng(int(torch.randint(2**62, (), device="cpu")))


def warn_of_dropout(op: str, dropout: float, num_layers: int, *, stacklevel: int) -> None:
    """Warn of dropout that has no effect, as torch.nn does."""
    if dropout and num_layers == 1:
        warnings.warn(
            f"{op}: dropout is {dropout}, but it acts between layers and num_layers is 1",
            stacklevel=stacklevel,
        )


def check_pair(op: str, name: str, given: Any, what: str) -> None:
    """Check that states are a tuple or list of two: a tensor would come apart along an axis."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        count = f" of {len(given)}" if isinstance(given, (tuple, list)) else ""
        raise TypeError(
            f"{op}: {name} is {type_shown(given)}{count}, expected a pair of tensors, {what}"
        )


class Leaf(torch.nn.Module):
    """What the modules do where PyTorch reads the Python code of a module's call."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Not `named`: PyTorch's tracers read the signature and the code of forward.
        refuse_torchscript(type(self).__name__)
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as error:
            forward = type(self).forward
            if "forward()" not in str(error) or _fits(forward, self, *args, **kwargs):
                raise
            raise misfit(forward, (self, *args), kwargs) from None

    def as_node(self, *args: Any, **kwargs: Any) -> Any:
        """Return a call as a node of torch.fx's graph, as it has one for a module of torch.nn."""
        tracer, name = args[0].tracer, type(self).__name__
        path = tracer.path_of_module(self)
        if not path:
            raise TypeError(f"{name}: torch.fx traces a module that has it, not itself")
        given = {n: value for n, value in kwargs.items() if value is not None}
        return tracer.create_proxy("call_module", path, args, given)

    def __prepare_scriptable__(self) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__}: torch.jit.script cannot compile it, use torch.jit.trace or"
            " torch.export"
        )


def _fits(function: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Return whether a function takes these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _shown(kind: type, sizes: tuple[int, ...], given: dict[str, Any]) -> str:
    """Return the arguments of a module of this kind as its repr has them."""
    parameters = inspect.signature(kind).parameters
    others = [f"{n}={a!r}" for n, a in given.items() if a != parameters[n].default]
    return ", ".join([*map(str, sizes), *others])


class BlockLSTM(Leaf):
    """
    One layer of `block_lstm` with its weights, peepholes included.

    Parameters
    ----------
    input_size, num_units : int
        I and H.
    use_peephole : bool
        Whether to have wci, wcf and wco, which are zero at first.
    forget_bias, cell_clip, gate_order, recurrent_activation, reverse : float, str, bool
        The arguments of `block_lstm`.
    device, dtype : torch.device, torch.dtype
        The device and dtype of the weights; PyTorch's defaults by default.

    Attributes
    ----------
    w, b, wci, wcf, wco
        The weights, by the names of `block_lstm`'s arguments, drawn as in `init_block_lstm`.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import BlockLSTM
    >>> layer = BlockLSTM(2, 3)
    >>> out = layer(torch.ones(4, 1, 2), sequence_lengths=[3])
    >>> out.h.shape
    torch.Size([4, 1, 3])
    """

    @named
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
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        I = check_integer("BlockLSTM", "input_size", input_size, 1)
        H = check_integer("BlockLSTM", "num_units", num_units, 1)
        use_peephole = check_bool("BlockLSTM", "use_peephole", use_peephole)
        given = Attributes(forget_bias, cell_clip, gate_order, recurrent_activation)
        lstm_attributes("BlockLSTM", given)
        self.attributes: dict[str, Any] = given._asdict()
        self.attributes["reverse"] = check_bool("BlockLSTM", "reverse", reverse)
        self.input_size, self.num_units = I, H
        self.w, self.b = (
            parameter_of(shape, device, dtype) for shape in ((I + H, 4 * H), (4 * H,))
        )
        self.wci: torch.nn.Parameter | None
        self.wcf: torch.nn.Parameter | None
        self.wco: torch.nn.Parameter | None
        for name in PEEPHOLES:
            self.register_parameter(
                name, parameter_of((H,), device, dtype) if use_peephole else None
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """
        Draw new weights, as `init_block_lstm` does.

        The biases are zero, as the op adds forget_bias itself, and so are the peepholes.

        Examples
        --------
        >>> from cupyrnn.torch import BlockLSTM
        >>> layer = BlockLSTM(2, 3)
        >>> layer.reset_parameters()
        >>> bool(layer.b.any())
        False
        """
        order = self.attributes["gate_order"]
        draw(self, drawn_block_lstm(self.input_size, self.num_units, order, generator()))

    def extra_repr(self) -> str:
        """
        Return the sizes, and the attributes that are not left out.

        Returns
        -------
        str
            What repr has between the brackets.

        Examples
        --------
        >>> from cupyrnn.torch import BlockLSTM
        >>> BlockLSTM(2, 3, cell_clip=0).extra_repr()
        '2, 3, cell_clip=0'
        """
        shown = {"use_peephole": self.wci is not None, **self.attributes}
        return _shown(BlockLSTM, (self.input_size, self.num_units), shown)

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
            The states before the first step, [B, H] each; zeros by default.
        sequence_lengths : list or tensor of [B] integers on the CPU, optional
            The length of each sequence, in [0, T]; T by default. Outputs are zero past it.
        resets : list or tensor of [T, B] booleans on the CPU, optional
            No state passes between a marked step t and step t-1, in either direction.

        Returns
        -------
        LSTMOutputs
            i, cs, f, o, ci, co and h, [T, B, H] each.

        Raises
        ------
        TypeError, ValueError
            A tensor's device or dtype differs from x's, or a shape does not fit.

        Examples
        --------
        >>> import torch
        >>> from cupyrnn.torch import BlockLSTM
        >>> BlockLSTM(2, 3).forward(torch.ones(4, 1, 2), sequence_lengths=[3]).h[3]
        tensor([[0., 0., 0.]], grad_fn=<SelectBackward0>)
        """
        extent: dict[str, Any] = {"sequence_lengths": sequence_lengths, "resets": resets}
        if isinstance(x, torch.fx.Proxy):
            return self.as_node(x, state=state, **extent)
        if state is not None:
            check_pair("block_lstm", "state", state, "(cs_prev, h_prev)")
        given = {**extent, "wci": self.wci, "wcf": self.wcf, "wco": self.wco, **self.attributes}
        cs_prev, h_prev = (None, None) if state is None else state
        return block_lstm(x, cs_prev, h_prev, self.w, self.b, **given)


class CudnnRNN(Leaf):
    """
    A net of `cudnn_rnn` with its packed parameters.

    Parameters
    ----------
    input_size, num_units, num_layers : int
        I, H and L.
    rnn_mode, input_mode, direction : str
        The arguments of `cudnn_rnn`.
    dropout : float
        The fraction, in [0, 1], of the values between layers that is set to zero in training. With
        one layer it has no effect, and the module warns.
    num_proj, recurrent_activation, time_major, reverse : int, str, bool, bool
        The arguments of `cudnn_rnn`.
    device, dtype : torch.device, torch.dtype
        The device and dtype of the parameters; PyTorch's defaults by default.
    save : {"all", "states"} or int
        The argument of `cudnn_rnn`.

    Attributes
    ----------
    params : [params_size]
        The parameters in the order of `cupyrnn.cudnn_rnn_params_layout`, drawn as in `init_params`.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import CudnnRNN
    >>> net = CudnnRNN(2, 3, 2, rnn_mode="gru", direction="bidirectional")
    >>> net(torch.ones(4, 1, 2)).output.shape
    torch.Size([4, 1, 6])
    """

    @named
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
        reverse: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        save: Save = "all",
    ) -> None:
        super().__init__()
        op = "CudnnRNN"
        given = rnn_mode, input_mode, direction, num_proj
        self._net: dict[str, Any] = dict(zip(DEFAULTS, given, strict=True))
        check_gate(op, recurrent_activation)
        self.input_size, self.num_units, self.num_layers = input_size, num_units, num_layers
        self.dropout = check_dropout(op, dropout)
        self.attributes: dict[str, Any] = self._net | {
            "recurrent_activation": recurrent_activation,
            "time_major": check_bool(op, "time_major", time_major),
            "reverse": check_bool(op, "reverse", reverse),
            "save": save_of(op, save),
        }
        D = 1 + (direction == "bidirectional")
        net = check_net(op, num_layers, num_units, input_size, *self._net.values())
        warn_of_dropout(op, self.dropout, num_layers, stacklevel=4)
        self._states = num_layers * D, num_proj or num_units, num_units
        self.params = parameter_of((net.params_size,), device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """
        Draw new parameters, as `init_params` does.

        Examples
        --------
        >>> from cupyrnn.torch import CudnnRNN
        >>> CudnnRNN(2, 3).reset_parameters()
        """
        sizes = ("num_layers", "num_units", "input_size")
        given: dict[str, Any] = {name: getattr(self, name) for name in sizes} | self._net
        drawn = init_params(**given, seed=generator(), dtype=np.float64)
        draw(self, {"params": drawn.params})

    def extra_repr(self) -> str:
        """
        Return the sizes, and the attributes that are not left out.

        Returns
        -------
        str
            What repr has between the brackets.

        Examples
        --------
        >>> from cupyrnn.torch import CudnnRNN
        >>> CudnnRNN(2, 3, 2, rnn_mode="gru").extra_repr()
        "2, 3, 2, rnn_mode='gru'"
        """
        sizes = self.input_size, self.num_units, self.num_layers
        return _shown(CudnnRNN, sizes, {**self.attributes, "dropout": self.dropout})

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
            The states before the first step; zeros by default.
        sequence_lengths : list or tensor of [B] integers on the CPU, optional
            The length of each sequence, in [0, T]; T by default. Outputs are zero past it.
        resets : list or tensor of [T, B] booleans on the CPU, optional
            No state passes between a marked step t and step t-1, in either direction.

        Returns
        -------
        RNNOutputs
            output, output_h and output_c.

        Raises
        ------
        TypeError, ValueError
            A tensor's device or dtype differs from input's, or a shape does not fit.

        Examples
        --------
        >>> import torch
        >>> from cupyrnn.torch import CudnnRNN
        >>> CudnnRNN(2, 3).forward(torch.ones(4, 1, 2)).output_h.shape
        torch.Size([1, 1, 3])
        """
        extent: dict[str, Any] = {"sequence_lengths": sequence_lengths, "resets": resets}
        if isinstance(input, torch.fx.Proxy):
            return self.as_node(input, state=state, **extent)
        check_tensor("cudnn_rnn", "input", input)
        if state is None:
            places, P, H = self._states
            B = 0  # of other shapes the op refuses input
            if input.ndim == 3:
                B = input.shape[1 if self.attributes["time_major"] else 0]
            order = (places, B) if self.attributes["time_major"] else (B, places)
            c = input.new_zeros((*order, H)) if self.attributes["rnn_mode"] == "lstm" else None
            state = (input.new_zeros((*order, P)), c)
        check_pair("cudnn_rnn", "state", state, "(input_h, input_c)")
        rate = self.dropout if self.training else 0.0
        given = {**extent, "dropout": rate, "seeds": seeds_of(rate), **self.attributes}
        return cudnn_rnn(input, *state, self.params, **given)
