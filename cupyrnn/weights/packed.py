"""Packed parameters with their configuration: `PackedParams` and its checks."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from .._typing import NamedTuple, without_arithmetic
from ..arithmetic.gates import check_gate
from ..cells.packed import layers
from ..checks.arrays import array_kind, on_device
from ..checks.attributes import (
    check_bool,
    check_choice,
    check_integer,
    check_path,
    named,
    shown,
    type_shown,
)
from ..checks.calls import MOST_ELEMENTS
from ..checks.nets import zero_states
from .files import replaced
from .params import DEFAULTS, check_net, check_params, checked_layout, zeros

if TYPE_CHECKING:
    from .._typing import Array
    from ..arithmetic.gates import HardSigmoid, RecurrentActivation
    from ..cells.packed import Direction, InputMode, LayerParams, Net, RNNMode
    from .params import Piece


class InitialState(NamedTuple):
    """
    The states before the first step: arguments of `cudnn_rnn`.

    Attributes
    ----------
    input_h : [L*D, B, P]
        Zeros.
    input_c : [L*D, B, H] or None
        Zeros for an LSTM, else None.
    """

    input_h: Array
    input_c: Array | None


FORMAT = "cupyrnn.PackedParams 1"  # the format of files
DTYPES = ("float16", "bfloat16", "float32", "float64")


@without_arithmetic
class PackedParams(NamedTuple):
    """
    Packed parameters and their configuration.

    Pass it as `params` to `cudnn_rnn`, `cudnn_rnn_backprop` and the ``params_to_...`` functions;
    then leave out the attributes that it holds. ``packed._replace(params=...)`` is the same net
    with other values or on another device: ``packed._replace(params=cupy.asarray(packed.params))``.

    Attributes
    ----------
    params : [params_size]
        All weights and biases, in the order of `cudnn_rnn_params_layout`.
    num_layers, num_units, input_size : int
        L, H and I.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates of an LSTM or GRU: see `cudnn_rnn`.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> sizes = {"num_layers": 1, "num_units": 3, "input_size": 2}
    >>> packed = cupyrnn.init_params(**sizes, rnn_mode="gru", direction="bidirectional")
    >>> h, c = packed.zero_state(4)
    >>> cupyrnn.cudnn_rnn(np.ones((5, 4, 2), np.float32), h, c, packed).output.shape
    (5, 4, 6)
    """

    params: Array
    num_layers: int
    num_units: int
    input_size: int
    rnn_mode: RNNMode = "lstm"
    direction: Direction = "unidirectional"
    num_proj: int = 0
    input_mode: InputMode = "linear_input"
    recurrent_activation: RecurrentActivation = "sigmoid"

    @named
    def zero_state(self, batch_size: int, *, time_major: bool = True) -> InitialState:
        """
        Return states of zeros for `cudnn_rnn`, with the device and dtype of the parameters.

        Parameters
        ----------
        batch_size : int
            B.
        time_major : bool
            If False, the states are [B, L*D, ·].

        Returns
        -------
        InitialState
            input_h [L*D, B, P], and input_c [L*D, B, H], or None for cells without it.

        Raises
        ------
        TypeError, ValueError
            batch_size is not an integer or is negative, or the parameters do not fit this net.

        Examples
        --------
        >>> import cupyrnn
        >>> h, c = cupyrnn.init_params(num_layers=2, num_units=3, input_size=4).zero_state(5)
        >>> h.shape, c.shape
        ((2, 5, 3), (2, 5, 3))
        """
        op = "zero_state"
        xp, net, params = check_model(op, self)
        B = check_integer(op, "batch_size", batch_size, 0)
        batch = B, check_bool(op, "time_major", time_major)
        if net.L * net.D * B * net.H >= MOST_ELEMENTS:
            raise ValueError(
                f"{op}: batch_size is {shown(B)}, expected less, for states [L*D, B, H] of fewer"
                " than 10**12 elements"
            )
        with on_device(xp, params):
            make = functools.partial(xp.zeros, dtype=params.dtype)
            states = [None] * (2 if net.rnn_mode == "lstm" else 1)
            h, *c = zero_states(net.sizes, states, batch, make)
        return InitialState(h, c[0] if c else None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Write the net to a file that `cupyrnn.weights.load_params` reads.

        The file is an .npz file of ``np.savez``, with the vector and a description of the net.

        Parameters
        ----------
        path : str or path-like
            The file. An existing one is replaced when the new one is complete.

        Raises
        ------
        OSError
            The file cannot be written.
        TypeError, ValueError
            path is no path, or the vector is on a device, is complex, or does not fit the net.

        Examples
        --------
        >>> import tempfile
        >>> import cupyrnn
        >>> packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     packed.save(f"{folder}/net.npz")
        """
        op = "save"
        name = check_path(op, path)
        check_model(op, self)
        params = self.params
        if not isinstance(params, np.ndarray):
            raise TypeError(
                f"{op}: params is {type_shown(params)}, expected a numpy.ndarray:"
                " packed._replace(params=packed.params.get())"
            )
        net = dict(zip(self._fields[1:], self[1:], strict=True))
        dtype = check_choice(op, "the dtype of params", str(params.dtype), DTYPES)
        about = json.dumps({"format": FORMAT, "dtype": dtype, **net})
        # .npz files cannot hold bfloat16: its bits are stored, and the description names the dtype.
        params = params.view(np.uint16) if dtype == "bfloat16" else params
        with replaced(name) as file:  # np.savez would append .npz to a path
            np.savez(file, about=np.array(about), params=params)

    def params_layout(self) -> list[Piece]:
        """
        Return the place of every matrix and bias in the vector.

        Returns
        -------
        list of Piece
            kind, layer, direction, gate, offset and shape of each, in order.

        Raises
        ------
        TypeError, ValueError
            An attribute of the net is out of range or contradicts another one.

        Examples
        --------
        >>> import cupyrnn
        >>> packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
        >>> [(piece.gate, piece.offset) for piece in packed.params_layout()][:3]
        [('i', 0), ('f', 6), ('ci', 12)]
        """
        _, L, H, I, mode, direction, P, input_mode, _ = self
        return checked_layout("params_layout", L, H, I, mode, input_mode, direction, P)


class CheckedParams(NamedTuple):
    """A packed vector after its checks."""

    xp: ModuleType
    net: Net
    params: Array


def check_model(
    op: str,
    params: Array | PackedParams,
    num_layers: object = None,
    num_units: object = None,
    input_size: object = None,
    **attributes: object,
) -> CheckedParams:
    """
    Check a packed vector and the attributes of its net, or a PackedParams, which has both.

    `attributes` are rnn_mode, input_mode, direction and num_proj; None for the default.
    """
    sizes = {"num_layers": num_layers, "num_units": num_units, "input_size": input_size}
    passed = {name: value for name, value in (sizes | attributes).items() if value is not None}
    if not isinstance(params, PackedParams):
        missing = [name for name, n in sizes.items() if n is None]  # == would compare arrays
        if missing:
            _refuse_params(op, params, missing[0])
        vector: Array = params
        net = check_net(op, **{**DEFAULTS, **passed})
    else:
        vector, net = params.params, _known_net(op, params, passed)
        check_activation(op, net.rnn_mode, params.recurrent_activation)
    xp, vector = check_params(op, vector, net)
    return CheckedParams(xp, net, vector)


def assembled(
    op: str,
    xp: ModuleType,
    net: Net,
    like: Array,
    parts: Iterable[LayerParams],
    activation: RecurrentActivation = "sigmoid",
) -> PackedParams:
    """
    Pack the parts of all layers and directions on the device of `like`; None is packed as zeros.

    `parts` may be a generator, which then computes on that device, too.
    """
    params = zeros(op, xp, net, like)
    with on_device(xp, params):
        for place, part in zip(layers(params, net), parts, strict=True):
            for target, a in zip(place, part, strict=True):
                if target is not None and a is not None:
                    target[...] = a
    return PackedParams(params, *net.known)._replace(recurrent_activation=activation)


def check_packed(op: str, params: object, others: str = "") -> CheckedParams:
    """Check a PackedParams; `others` are what the op takes instead."""
    if not isinstance(params, PackedParams):
        fields = ", ".join(PackedParams._fields[:6])
        hint = f"; pass cupyrnn.PackedParams({fields})" if array_kind(params) else ""
        raise TypeError(
            f"{op}: params is {type_shown(params)}, expected a PackedParams{others}{hint}"
        )
    return check_model(op, params)


def _refuse_params(op: str, params: object, missing: str) -> NoReturn:
    """Raise the error of `params` that is no PackedParams, in a call without sizes."""
    if array_kind(params) is None:
        hint = ""
        if isinstance(params, tuple) and hasattr(params, "_fields"):
            hint = "; for one step with block weights use lstm_block_cell or gru_block_cell"
        raise TypeError(f"{op}: params is {type_shown(params)}, expected a PackedParams{hint}")
    raise TypeError(
        f"{op}: {missing} is None, expected an integer; or pass a PackedParams as params"
    )


class NetArguments(NamedTuple):
    """The attributes of a net: as a caller passes them, or after `resolve_net`."""

    rnn_mode: object
    input_mode: object
    direction: object
    num_proj: object
    recurrent_activation: object


class ResolvedNet(NamedTuple):
    """The packed vector of a call and the attributes of its net, none of them left out."""

    params: Array
    attributes: NetArguments
    known: Net | None  # the net of a PackedParams


def resolve_net(op: str, params: Array | PackedParams, attributes: NetArguments) -> ResolvedNet:
    """Take attributes that are None from the PackedParams, else from TensorFlow's defaults."""
    given = attributes._asdict()  # no := below: torch.compile cannot trace it
    passed = {name: given[name] for name in DEFAULTS if given[name] is not None}
    activation = activation_of(op, params, attributes.recurrent_activation)
    known, values = None, {**DEFAULTS, **passed}
    if isinstance(params, PackedParams):
        known = _known_net(op, params, passed)
        params, values = params.params, {name: getattr(params, name) for name in DEFAULTS}
    return ResolvedNet(params, NetArguments(**values, recurrent_activation=activation), known)


def activation_of(op: str, params: object, activation: object) -> object:
    """Return the name of the gates' activation: the argument, or the PackedParams's."""
    if not isinstance(params, PackedParams):
        return "sigmoid" if activation is None else activation
    known = params.recurrent_activation
    if activation is not None and check_gate(op, activation) != check_gate(op, known):
        raise ValueError(
            f"{op}: recurrent_activation is {shown(activation)}, but params is of a net with"
            f" {shown(known)}"
        )
    return known


def check_activation(op: str, rnn_mode: str, activation: object) -> HardSigmoid | None:
    """Check the name of the gates' activation; return the activation, None for the sigmoid."""
    gate = check_gate(op, activation)
    if gate is not None and rnn_mode not in ("lstm", "gru"):
        raise ValueError(
            f"{op}: recurrent_activation is {shown(activation)}, expected sigmoid for {rnn_mode},"
            " which has no gates"
        )
    return gate


def refuse_gates(op: str, framework: str, params: PackedParams) -> None:
    """Refuse hard sigmoids, for a framework that does not have them."""
    if params.recurrent_activation != "sigmoid":
        raise ValueError(
            f"{op}: params is of a net with recurrent_activation ="
            f" {shown(params.recurrent_activation)}, which {framework} does not have"
        )


def _known_net(op: str, params: PackedParams, passed: Mapping[str, object]) -> Net:
    """Return the net of a PackedParams; refuse arguments that contradict it."""
    if isinstance(params.rnn_mode, np.ndarray):
        raise TypeError(
            f"{op}: params has arrays as its attributes, as np.load returns them; use packed.save"
            " and cupyrnn.weights.load_params"
        )
    known = dict(zip(params._fields[1:-1], params[1:-1], strict=True))
    net = check_net(op, **known)
    if passed:
        other = check_net(op, **{**known, **passed})
        for name, expected, value in zip(known, net.known, other.known, strict=True):
            if value != expected:
                raise ValueError(
                    f"{op}: {name} is {shown(value)}, but params is of a net with {shown(expected)}"
                )
    return net
