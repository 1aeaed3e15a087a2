"""Modules of the block ops' cells in layers and directions, over `stacked_rnn`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .._typing import Save
from ..arithmetic.gates import RecurrentActivation
from ..cells.block_forms import GRU_FORM, LSTM_FORM, PEEPHOLES, GateOrder
from ..cells.block_weights import BlockGRUParams, PeepholeLSTMParams
from ..cells.contract import Attributes
from ..checks.attributes import check_bool, check_dropout, check_integer, named
from ..weights.init import init_block_gru, init_block_lstm
from .arguments import Extras, lstm_attributes, save_of, seeds_of
from .definitions import shapes_of
from .functions import stacked_rnn
from .modules import draw, generator, parameter_of, warn_of_dropout
from .recurrent import Recurrent, States, save_shown


class StackedModule(Recurrent):
    """Base of PeepholeLSTM and BlockGRU."""

    bias = True
    _form: Any = GRU_FORM

    # torch.nn's checks of the input and the states, and its repr.
    check_input = torch.nn.RNNBase.check_input
    check_hidden_size = torch.nn.RNNBase.check_hidden_size
    check_forward_args = torch.nn.RNNBase.check_forward_args
    get_expected_hidden_size = torch.nn.RNNBase.get_expected_hidden_size

    def __init__(
        self,
        sizes: tuple[int, int, int],
        flags: tuple[bool, float, bool, int],
        names: tuple[str, ...],
        attributes: dict[str, Any],
        place: dict[str, Any],
        save: Save,
    ) -> None:
        super().__init__()
        op = type(self).__name__
        self.save = save_of(op, save)
        words = ("input_size", "hidden_size", "num_layers")
        self.input_size, self.hidden_size, self.num_layers = (
            check_integer(op, name, size, 1) for name, size in zip(words, sizes, strict=True)
        )
        self.batch_first = check_bool(op, "batch_first", flags[0])
        self.dropout = check_dropout(op, flags[1])
        warn_of_dropout(op, self.dropout, self.num_layers, stacklevel=5)
        self.bidirectional = check_bool(op, "bidirectional", flags[2])
        if check_bool(op, "reverse", attributes["reverse"]) and self.bidirectional:
            raise ValueError(f"{op}: reverse is True, expected False with bidirectional=True")
        self.proj_size = check_integer(op, "proj_size", flags[3], 0)
        if self.proj_size >= self.hidden_size:
            raise ValueError(
                f"{op}: proj_size is {self.proj_size}, expected less than hidden_size ="
                f" {self.hidden_size}"
            )
        self.attributes, self._names = attributes, names
        H, P = self.hidden_size, self.proj_size or self.hidden_size
        for K, end in self._places():
            for name, shape in shapes_of(self._form, names, K, H, P).items():
                self.register_parameter(name + end, parameter_of(shape, **place))
        self.reset_parameters()

    def _places(self) -> list[tuple[int, str]]:
        """Return the input width of each layer and direction, and the suffix of its names."""
        D, P = 1 + self.bidirectional, self.proj_size or self.hidden_size
        return [
            (D * P if n >= D else self.input_size, f"_l{n // D}" + "_reverse" * (n % D))
            for n in range(self.num_layers * D)
        ]

    @property
    def _flat_weights(self) -> list[torch.nn.Parameter]:
        return list(self.parameters())

    def reset_parameters(self) -> None:
        """
        Draw new weights.

        Examples
        --------
        >>> from cupyrnn.torch import BlockGRU
        >>> BlockGRU(2, 3).reset_parameters()
        """
        rng = generator()
        for K, end in self._places():
            draw(self, {name + end: a for name, a in self._drawn(K, rng).items()})

    def _drawn(self, K: int, rng: np.random.Generator) -> dict[str, Any]:
        """Return new values of the weights of a layer and direction."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """
        Return the sizes, and the arguments that are not left out.

        Returns
        -------
        str
            What repr has between the brackets.

        Examples
        --------
        >>> from cupyrnn.torch import PeepholeLSTM
        >>> PeepholeLSTM(2, 3, num_layers=2, cell_clip=0).extra_repr()
        '2, 3, num_layers=2, forget_bias=1.0, cell_clip=0.0'
        """
        defaults = {"gate_order": "icfo", "recurrent_activation": "sigmoid", "reverse": False}
        if self.attributes.get("gate_order") == "ifco":
            defaults |= {"forget_bias": 0, "cell_clip": 0}
        without = self._count > 1 and "wci" not in self._names
        others = [", use_peephole=False"] * without
        others += [f", {n}={a!r}" for n, a in self.attributes.items() if a != defaults.get(n)]
        shown: str = torch.nn.RNNBase.extra_repr(self)  # type: ignore[arg-type]
        return shown + "".join(others) + save_shown(self.save)

    def run(
        self, x: torch.Tensor, states: States | None, of_steps: Extras
    ) -> tuple[torch.Tensor, States]:
        kind: Any = PeepholeLSTMParams if self._count > 1 else BlockGRUParams
        weights = [
            kind(**{name: getattr(self, name + end) for name in self._names})
            for _, end in self._places()
        ]
        rate = self.dropout if self.training else 0.0
        arguments: Any = {"dropout": rate, "seeds": seeds_of(rate), "save": self.save}
        arguments["sequence_lengths"], arguments["resets"] = of_steps
        arguments["direction"] = "bidirectional" if self.bidirectional else "unidirectional"
        h, c = (*(states or ()), None, None)[:2]
        out = stacked_rnn(x, h, c, weights, **arguments, **self.attributes)
        return out.output, (out.output_h, out.output_c)[: self._count]


class PeepholeNet(StackedModule):
    """A net with a cell state beside h, and torch.nn's checks of both."""

    _count, _form = 2, LSTM_FORM
    check_forward_args = torch.nn.LSTM.check_forward_args  # type: ignore[assignment]
    get_expected_cell_size = torch.nn.LSTM.get_expected_cell_size


class PeepholeLSTM(PeepholeNet):
    """
    LSTMs with peepholes and a clip, in layers and directions; called like `torch.nn.LSTM`.

    By default they are TensorFlow's: the cell state is clipped at 3, and 1 is added to the forget
    gate. `torch.nn.LSTM` has neither: pass ``gate_order="ifco"``, or ``cell_clip=0`` and
    ``forget_bias=0``.

    Parameters
    ----------
    input_size, hidden_size, num_layers : int
        I, H and L.
    batch_first, dropout, bidirectional, proj_size : bool, float, bool, int
        The arguments of `torch.nn.LSTM`.
    use_peephole : bool
        Whether to have wci, wcf and wco.
    forget_bias : float, optional
        Added to the forget gates. The default is 1 for "icfo" and 0 for "ifco".
    cell_clip : float, optional
        Bound of abs(c); 0 means none. The default is 3 for "icfo" and none for "ifco".
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b.
    recurrent_activation : str
        The argument of `stacked_rnn`.
    reverse : bool
        Run each sequence from its own last step to its first. Not with `bidirectional`.
    device, dtype : torch.device, torch.dtype
        The device and dtype of the weights; PyTorch's defaults by default.
    save : {"all", "states"} or int
        The argument of `stacked_rnn`.

    Attributes
    ----------
    w_l0, b_l0, wci_l0, wcf_l0, wco_l0, w_p_l0, w_l0_reverse, ...
        The weights of each layer and direction, by the names of `PeepholeLSTMParams`. w is drawn as
        in `init_block_lstm`, w_p uniformly within sqrt(6 / (H+P)) of zero. Peepholes are zero at
        first, and so are biases, because the op itself adds forget_bias.

    Raises
    ------
    TypeError, ValueError
        An argument is of a wrong type or out of range.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import PeepholeLSTM
    >>> PeepholeLSTM(2, 3)
    PeepholeLSTM(2, 3, forget_bias=1.0, cell_clip=3.0)
    >>> net = PeepholeLSTM(2, 3, num_layers=2, gate_order="ifco")  # neither, as torch.nn.LSTM
    >>> output, (h, c) = net(torch.ones(4, 1, 2))
    >>> output.shape, c.shape
    (torch.Size([4, 1, 3]), torch.Size([2, 1, 3]))
    """

    @named
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        use_peephole: bool = True,
        forget_bias: float | None = None,
        cell_clip: float | None = None,
        gate_order: GateOrder = "icfo",
        recurrent_activation: RecurrentActivation = "sigmoid",
        reverse: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        save: Save = "all",
    ) -> None:
        of_cell = Attributes(forget_bias, cell_clip, gate_order, recurrent_activation)
        values = lstm_attributes("PeepholeLSTM", of_cell)  # all that `stacked_rnn` of tensors has
        check_bool("PeepholeLSTM", "use_peephole", use_peephole)
        super().__init__(
            (input_size, hidden_size, num_layers),
            (batch_first, dropout, bidirectional, proj_size),
            ("w", "b", *PEEPHOLES * use_peephole, *("w_p",) * bool(proj_size)),
            {**dict(zip(Attributes._fields, values, strict=False)), "reverse": reverse},
            {"device": device, "dtype": dtype},
            save,
        )

    def _drawn(self, K: int, rng: np.random.Generator) -> dict[str, Any]:
        H, P = self.hidden_size, self.proj_size
        w, b = init_block_lstm(
            num_units=H,
            input_size=K,
            gate_order=self.attributes["gate_order"],
            forget_bias=0.0,  # the op itself adds it
            seed=rng,
            dtype=np.float64,
        )
        drawn = {"w": w, "b": b, **dict.fromkeys(PEEPHOLES, np.zeros(H))}
        if P:  # the first rows of an orthogonal matrix are orthonormal too
            bound = (6 / (H + P)) ** 0.5
            drawn |= {"w": w[: K + P], "w_p": rng.uniform(-bound, bound, (H, P))}
        return {name: drawn[name] for name in self._names}


class BlockGRU(StackedModule):
    """
    GRUs that reset before the product, TensorFlow's, in layers and directions.

    Called like `torch.nn.GRU`, whose own GRU resets after the product.

    Parameters
    ----------
    input_size, hidden_size, num_layers : int
        I, H and L.
    batch_first, dropout, bidirectional : bool, float, bool
        The arguments of `torch.nn.GRU`.
    recurrent_activation : str
        The argument of `stacked_rnn`.
    reverse : bool
        Run each sequence from its own last step to its first. Not with `bidirectional`.
    device, dtype : torch.device, torch.dtype
        The device and dtype of the weights; PyTorch's defaults by default.
    save : {"all", "states"} or int
        The argument of `stacked_rnn`.

    Attributes
    ----------
    w_ru_l0, w_c_l0, b_ru_l0, b_c_l0, w_ru_l0_reverse, ...
        The weights of each layer and direction, by the names of `block_gru`'s arguments, drawn as
        in `init_block_gru`.

    Raises
    ------
    TypeError, ValueError
        An argument is of a wrong type or out of range.

    Examples
    --------
    >>> import torch
    >>> from cupyrnn.torch import BlockGRU
    >>> output, h = BlockGRU(2, 3, num_layers=2)(torch.ones(4, 1, 2))
    >>> output.shape, h.shape
    (torch.Size([4, 1, 3]), torch.Size([2, 1, 3]))
    """

    @named
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        recurrent_activation: RecurrentActivation = "sigmoid",
        reverse: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        save: Save = "all",
    ) -> None:
        lstm_attributes("BlockGRU", Attributes(recurrent_activation=recurrent_activation))
        super().__init__(
            (input_size, hidden_size, num_layers),
            (batch_first, dropout, bidirectional, 0),
            BlockGRUParams._fields,
            {"recurrent_activation": recurrent_activation, "reverse": reverse},
            {"device": device, "dtype": dtype},
            save,
        )

    def _drawn(self, K: int, rng: np.random.Generator) -> dict[str, Any]:
        drawn = init_block_gru(num_units=self.hidden_size, input_size=K, seed=rng, dtype=np.float64)
        return drawn._asdict()
