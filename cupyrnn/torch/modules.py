"""`CudnnRNN`, and what all modules share."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import torch

from .._typing import Save
from ..arithmetic.gates import RecurrentActivation, check_gate
from ..cells.packed import Direction, InputMode, RNNMode
from ..checks.attributes import check_bool, check_dropout, misfit, named, type_shown
from ..weights.init import init_params
from ..weights.packed import PackedParams
from ..weights.params import DEFAULTS, check_net
from .arguments import Lengths, Resets, save_of, seeds_of
from .functions import RNNOutputs, cudnn_rnn
from .ops import refuse_torchscript


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


def check_pair(op: str, name: str, pair: Any, what: str) -> None:
    """Check that states are a tuple or list of two; unpacking would split a tensor by an axis."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        count = f" of {len(pair)}" if isinstance(pair, (tuple, list)) else ""
        raise TypeError(
            f"{op}: {name} is {type_shown(pair)}{count}, expected a pair of tensors, {what}"
        )


class Leaf(torch.nn.Module):
    """Base of the modules: how PyTorch's tracers see a module's call."""

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
            raise TypeError(f"{name}: torch.fx cannot trace it alone, only in a module")
        passed = {n: value for n, value in kwargs.items() if value is not None}
        return tracer.create_proxy("call_module", path, args, passed)

    def flatten_parameters(self) -> None:
        """
        Do nothing: torch.nn's modules flatten their weights for cuDNN, these have no need to.

        Examples
        --------
        >>> from cupyrnn.torch import PeepholeLSTM
        >>> PeepholeLSTM(2, 3).flatten_parameters()
        """

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
        of_net = rnn_mode, input_mode, direction, num_proj
        self._net: dict[str, Any] = dict(zip(DEFAULTS, of_net, strict=True))
        check_gate(op, recurrent_activation)
        self.input_size, self.num_units, self.num_layers = input_size, num_units, num_layers
        self.dropout = check_dropout(op, dropout)
        self.attributes: dict[str, Any] = self._net | {
            "recurrent_activation": recurrent_activation,
            "time_major": check_bool(op, "time_major", time_major),
            "reverse": check_bool(op, "reverse", reverse),
            "save": save_of(op, save),
        }
        net = check_net(op, num_layers, num_units, input_size, *self._net.values())
        warn_of_dropout(op, self.dropout, num_layers, stacklevel=4)
        self.params = parameter_of((net.params_size,), device, dtype)
        self.reset_parameters()

    def _packed(self, params: Any) -> PackedParams:
        """Return parameters with the sizes and attributes of the net."""
        sizes = self.num_layers, self.num_units, self.input_size
        gate: Any = self.attributes["recurrent_activation"]
        return PackedParams(params, *sizes, **self._net, recurrent_activation=gate)

    def reset_parameters(self) -> None:
        """
        Draw new parameters, as `init_params` does.

        Examples
        --------
        >>> from cupyrnn.torch import CudnnRNN
        >>> CudnnRNN(2, 3).reset_parameters()
        """
        sizes = ("num_layers", "num_units", "input_size")
        arguments: dict[str, Any] = {name: getattr(self, name) for name in sizes} | self._net
        drawn = init_params(**arguments, seed=generator(), dtype=np.float64)
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
        attributes = {**self.attributes, "dropout": self.dropout}
        defaults = inspect.signature(CudnnRNN).parameters
        others = [f"{n}={a!r}" for n, a in attributes.items() if a != defaults[n].default]
        return ", ".join([*map(str, sizes), *others])

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
        resets : list or tensor of [T, B] booleans, or of 0 and 1, on the CPU, optional
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
        h = c = None
        if state is not None:
            check_pair("cudnn_rnn", "state", state, "(input_h, input_c)")
            h, c = state
        rate = self.dropout if self.training else 0.0
        of_call = {name: self.attributes[name] for name in ("time_major", "reverse", "save")}
        arguments = {**extent, "dropout": rate, "seeds": seeds_of(rate), **of_call}
        return cudnn_rnn(input, h, c, self._packed(self.params), **arguments)
