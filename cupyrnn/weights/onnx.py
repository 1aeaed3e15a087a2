"""
Weights of ONNX's LSTM, GRU and RNN nodes, converted to packed parameters and block weights, and
back.

A node is one layer in D directions: W [D, G*H, I], R [D, G*H, H], B [D, 2*G*H] (the biases of W,
then of R), and an LSTM's peepholes P [D, 3*H]. The order of the gates is i, o, f, c in an
LSTM and z, r, h in a GRU; the order of the peepholes is i, o, f.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from .._typing import Array
from ..arithmetic.gates import RecurrentActivation
from ..cells.block_forms import LSTM_FORM
from ..cells.block_weights import BlockGRUParams, PeepholeLSTMParams
from ..cells.packed import DIRECTIONS, GATE_ORDERS, LayerParams, RNNMode, gate_places
from ..checks.arrays import on_device
from ..checks.attributes import (
    check_choice,
    check_count,
    check_integer,
    check_list,
    shown,
    type_shown,
)
from ..checks.calls import check_arrays, expect_rank, expect_shape
from ..derivatives.traced import traceable
from . import forms
from .activations import DEFAULTS, activations_of, check_flag, gate_of, text
from .packed import PackedParams, assembled
from .params import check_net

# ONNX's places of the gates of block_lstm, and of the peepholes i, f and o, in the order i, o, f.
_ICFO, _PEEPHOLES = gate_places("onnx", "lstm", GATE_ORDERS["icfo"]["lstm"]), [0, 2, 1]
_ROUNDING = 1e-6  # attributes are float32, or decimals with few digits


class OnnxParams(NamedTuple):
    """
    The weights of an ONNX node with G gates, by the names of its inputs.

    Attributes
    ----------
    W : [D, G*H, I]
        The matrix of the input.
    R : [D, G*H, H]
        The matrix of the state.
    B : [D, 2*G*H] or None
        The biases of W and of R.
    P : [D, 3*H] or None
        The peephole weights of an LSTM.
    """

    W: Array
    R: Array
    B: Array | None
    P: Array | None = None


def _directions(op: str, order: list[int], **tensors: Any) -> tuple[ModuleType, list[LayerParams]]:
    """Check a node's weights; return their module, and per direction the gates in this order."""
    xp, arrays = forms.as_arrays(
        op, {n: a for n, a in tensors.items() if n in "WR" or a is not None}
    )
    G = len(order)
    gates = "H" if G == 1 else f"{G}*H"
    D, _, I = expect_rank(op, "W", arrays["W"], f"(D, {gates}, I)")
    H = expect_rank(op, "R", arrays["R"], f"(D, {gates}, H)")[2]
    if D not in (1, 2) or not H or not I:
        raise ValueError(
            f"{op}: W has shape {arrays['W'].shape} and R {arrays['R'].shape}, expected"
            f" (D, {gates}, I) and (D, {gates}, H) with D = 1 or 2"
        )
    expect_shape(op, "W", arrays["W"], f"(D, {gates}, I)", (D, G * H, I))
    expect_shape(op, "R", arrays["R"], f"(D, {gates}, H)", (D, G * H, H))
    expect_shape(op, "B", arrays.get("B"), f"(D, {2 * G}*H)", (D, 2 * G * H))
    expect_shape(op, "P", arrays.get("P"), "(D, 3*H)", (D, 3 * H))
    with on_device(xp, arrays["W"]):
        B = arrays["B"] if "B" in arrays else xp.zeros((D, 2 * G * H), arrays["W"].dtype)
        W, R = (arrays[n].reshape(D, G, H, -1)[:, order] for n in "WR")
        biases = B.reshape(D, 2, G, H)[:, :, order].swapaxes(0, 1)
        P = arrays["P"].reshape(D, 3, H)[:, _PEEPHOLES] if "P" in arrays else [None] * D
        entries = zip(W, R, [None] * D, *biases, P, strict=True)
        return xp, [LayerParams(*of_direction) for of_direction in entries]


def _node(xp: ModuleType, places: list[int], directions: Sequence[LayerParams]) -> OnnxParams:
    """Invert `_directions`: join the weights of each direction; `places` are ONNX's."""

    def joined(arrays: Sequence[Array], order: Sequence[int]) -> Array:
        rows: Array = xp.stack([a[order].reshape(-1, *a.shape[2:]) for a in arrays])
        return rows

    order = forms.own_order(places)
    W, R, _, W_bias, R_bias, P = zip(*directions, strict=True)
    if W_bias[0] is None:
        W_bias, R_bias = R_bias, tuple(xp.zeros_like(b) for b in R_bias)
    B = xp.concatenate([joined(b, order) for b in (W_bias, R_bias)], axis=1)
    peepholes = None if P[0] is None else joined(P, _PEEPHOLES)
    return OnnxParams(joined(W, order), joined(R, order), B, peepholes)


@traceable
def params_from_onnx(
    W: Array,
    R: Array,
    B: Array | None = None,
    P: Array | None = None,
    *,
    rnn_mode: RNNMode | None = None,
    linear_before_reset: int | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    input_forget: int = 0,
    direction: str | None = None,
    hidden_size: int | None = None,
    layout: int = 0,
) -> PackedParams | Any:  # a list of BlockGRUParams; a union would need a test in every typed call
    """
    Convert the weights of an ONNX LSTM without peepholes, a GRU or an RNN.

    Pass all attributes of the node: ``params_from_onnx(W, R, B, **attributes)``. What a net cannot
    hold is refused.

    Parameters
    ----------
    W : [D, G*H, I]
        The input matrices, with D = 1 for a node with direction "forward" or "reverse" and 2 for
        "bidirectional". Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    R : [D, G*H, H]
        The recurrent matrices.
    B : [D, 2*G*H], optional
        The biases; zero by default.
    P : optional
        The peepholes. Must be None: CudnnRNN has none.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell. The shapes identify LSTMs and GRUs. For an RNN, this argument or `activations`
        must give the activation: "rnn_tanh" is ONNX's default.
    linear_before_reset : {0, 1}
        The GRU's attribute of that name, required for a GRU; a node without it has 0.
    activations : sequence of str, optional
        The node's attribute of that name, for each direction: for a GRU Sigmoid or HardSigmoid,
        then Tanh; for an LSTM the same and another Tanh; for an RNN Tanh or Relu.
    activation_alpha, activation_beta : sequence of float, optional
        The slope of each direction's HardSigmoid, 0.2 (the default) or 1/6, and its offset, 0.5.
        They are ignored if there is no HardSigmoid: exporters write them anyway.
    clip, input_forget : optional
        Must be None and 0: CudnnRNN has neither.
    direction : {"forward", "bidirectional"}, optional
        Must fit D. "reverse" is refused: leave it out, and call `cudnn_rnn` with ``reverse=True``.
    hidden_size, layout : int, optional
        H, which must fit R; the layout of the inputs and states, which is ignored.

    Returns
    -------
    PackedParams or list of BlockGRUParams
        One layer, whose `recurrent_activation` follows from the activations. A GRU with
        ``linear_before_reset=0`` resets before the product, unlike cuDNN's: it becomes a list of
        weights of `block_gru`, one for each direction, as `stacked_rnn` takes it.

    Raises
    ------
    TypeError
        An argument is not an array, or the arrays do not have floating dtypes or are not on one
        device.
    ValueError
        A shape does not fit, linear_before_reset is missing for a GRU, CudnnRNN cannot compute the
        node, or the shapes are an RNN's and its activation is missing.

    See Also
    --------
    run_onnx_node : Computes a node from its attributes and inputs.
    block_lstm_from_onnx : For an LSTM with peepholes.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.weights.params_from_onnx(np.ones((2, 8, 3)), np.ones((2, 8, 2)))
    >>> packed[1:6]
    (1, 2, 3, 'lstm', 'bidirectional')
    """
    op = "params_from_onnx"
    _, arrays = forms.as_arrays(op, {"W": W, "R": R})
    D, width, _ = expect_rank(op, "W", arrays["W"], "(D, G*H, I)")
    H = expect_rank(op, "R", arrays["R"], "(D, G*H, H)")[2]
    problem = f"W has shape {arrays['W'].shape}, expected (D, G*H, I)"
    rnn_mode = _mode_of_rnn(activations, width, H) if rnn_mode is None else rnn_mode
    rnn_mode, _ = forms.mode_of(op, rnn_mode, width, H, problem)
    xp, directions = _directions(op, gate_places("onnx", rnn_mode), W=W, R=R, B=B)
    gate = _gate(
        op, rnn_mode, D, activations=activations,
        activation_alpha=activation_alpha, activation_beta=activation_beta,
    )  # fmt: skip
    _, H, I = directions[0].input.shape
    if P is not None:
        raise ValueError(
            f"{op}: P is {type_shown(P)}, expected None: CudnnRNN has no peepholes; use"
            " block_lstm_from_onnx"
        )
    check_flag(op, "layout", layout)
    if clip is not None or check_flag(op, "input_forget", input_forget):
        raise ValueError(
            f"{op}: clip is {shown(clip)} and input_forget {shown(input_forget)}, expected None and"
            " 0: CudnnRNN has neither; use run_onnx_node"
        )
    fits = ("forward", "bidirectional")[D - 1]
    if direction is not None:
        given = check_choice(op, "direction", text(direction), (fits, "reverse"))
        if given == "reverse":
            raise ValueError(
                f"{op}: direction is 'reverse', expected {fits!r}: a net does not hold it; leave it"
                " out, and call cudnn_rnn with reverse=True"
            )
    if hidden_size is not None and check_integer(op, "hidden_size", hidden_size) != H:
        raise ValueError(f"{op}: hidden_size is {shown(hidden_size)}, expected H = {H}")
    if rnn_mode == "gru":
        if linear_before_reset is None:
            raise ValueError(
                f"{op}: linear_before_reset is None, expected the node's attribute: 0 if it has"
                " none"
            )
        if not check_flag(op, "linear_before_reset", linear_before_reset):
            if gate != "sigmoid":
                raise ValueError(
                    f"{op}: activations is {shown(activations)}, expected None: weights of"
                    f" block_gru do not hold them; pass recurrent_activation={gate!r} to block_gru"
                    " or stacked_rnn"
                )
            with on_device(xp, directions[0].input):
                return [forms.gru_of(xp, d) for d in directions]
    net = check_net(op, 1, H, I, rnn_mode, "linear_input", DIRECTIONS[D - 1], 0)
    return assembled(op, xp, net, directions[0].input, directions, gate)


def _mode_of_rnn(activations: object, width: int, H: int) -> RNNMode | None:
    """Return the RNN that has the first activation, None if there is none."""
    if width != H or not isinstance(activations, (list, tuple)) or not activations:
        return None
    modes: dict[str, RNNMode] = {"tanh": "rnn_tanh", "relu": "rnn_relu"}
    return modes.get(str(text(activations[0])).lower())


def _gate(op: str, mode: str, D: int, **attributes: Any) -> RecurrentActivation:
    """Return the `recurrent_activation` of a node's attributes."""
    default = ("Relu",) if mode == "rnn_relu" else DEFAULTS.get(mode.upper(), DEFAULTS["RNN"])
    listed = [
        f for functions in activations_of(op, mode, default, D, attributes) for f in functions
    ]
    expected, gated = [*default], len(default) > 1
    if gated and listed[0].name == "hardsigmoid":
        expected[0] = "HardSigmoid"
    for n, (function, name) in enumerate(zip(listed, expected * D, strict=True)):
        if function.name != name.lower():
            either = " or HardSigmoid" * (gated and not n)
            raise ValueError(
                f"{op}: activations[{n}] is {shown(attributes['activations'][n])}, expected"
                f" {name}{either}: {mode} of CudnnRNN has no others, and the same in all directions"
            )
    if not gated:
        return "sigmoid"
    gates = listed[:: len(default)]
    first = gate_of(gates[0], _ROUNDING)
    if first is None or any(gate_of(gate, _ROUNDING) != first for gate in gates):
        _, slopes, offsets = map(list, zip(*gates, strict=True))
        raise ValueError(
            f"{op}: HardSigmoid has activation_alpha = {shown(slopes)} and activation_beta ="
            f" {shown(offsets)}, expected 0.2 or 1/6, and 0.5"
        )
    return first


@traceable
def params_to_onnx(
    params: PackedParams | BlockGRUParams | Sequence[BlockGRUParams], *, gradient: bool = False
) -> OnnxParams:
    """
    Convert the weights of one layer to those of an ONNX LSTM, GRU or RNN.

    Parameters
    ----------
    params : PackedParams, BlockGRUParams or sequence of BlockGRUParams
        What `params_from_onnx` returns: packed parameters of one layer, or for each direction the
        weights of `block_gru`. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    gradient : bool
        Whether params holds a gradient: ``packed._replace(params=grads.params_backprop)``. ONNX has
        cuDNN's two biases, so the gradient is converted as the parameters are.

    Returns
    -------
    OnnxParams
        W, R and B. A GRU of packed parameters needs the attribute ``linear_before_reset=1``, an
        rnn_relu needs ``activations=["Relu"]``, repeated for a second direction. A net with hard
        sigmoids needs ``activations=["HardSigmoid", "Tanh", "Tanh"]`` (a GRU has one Tanh),
        ``activation_alpha=[0.2]`` or ``[1/6]`` and ``activation_beta=[0.5]``. The second half of
        the B of `block_gru` is zero.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type, an array has a wrong shape, or no single ONNX node can hold
        the net.

    Examples
    --------
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    >>> W, R, B, _ = cupyrnn.weights.params_to_onnx(packed)
    >>> W.shape, R.shape, B.shape
    ((1, 8, 3), (1, 8, 2), (1, 16))
    """
    op = "params_to_onnx"
    xp, rnn_mode, net, like, places = forms.opened(op, params, "ONNX", gradient)
    if net is not None and net.L > 1:
        raise ValueError(
            f"{op}: params is of a net with L = {net.L}, expected 1: a node is one layer"
        )
    check_count(op, "params", places, len(places) < 3, "1 or 2, one for each direction")
    if any(place.input.shape != places[0].input.shape for place in places):
        raise ValueError(f"{op}: params[1] has other shapes than params[0]")
    with on_device(xp, like):
        return _node(xp, gate_places("onnx", rnn_mode), places)


@traceable
def block_lstm_from_onnx(
    W: Array, R: Array, B: Array | None = None, P: Array | None = None
) -> list[PeepholeLSTMParams]:
    """
    Convert an ONNX LSTM, with or without peepholes, to weights of `block_lstm`.

    Parameters
    ----------
    W, R : [D, 4*H, I], [D, 4*H, H]
        The input and the recurrent matrices. Complex arrays hold values and tangents, see
        `cupyrnn.jvp`.
    B : [D, 8*H], optional
        The biases; zero by default.
    P : [D, 3*H], optional
        The peepholes; none by default.

    Returns
    -------
    list of PeepholeLSTMParams
        One entry for each direction: w [I+H, 4*H], b [4*H], the sum of the two biases, and wci,
        wcf, wco [H] or None. The gates are in block_lstm's default order, "icfo". Call `block_lstm`
        with ``forget_bias=0`` and ``cell_clip=0``: ONNX has no forget bias and no clip of the cell
        state. If the node's activations begin with HardSigmoid, also pass ``recurrent_activation``.

    Raises
    ------
    TypeError
        An argument is not an array, or the arrays do not have floating dtypes or are not on one
        device.
    ValueError
        A shape does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> W, R, P = np.ones((1, 8, 3)), np.ones((1, 8, 2)), np.ones((1, 6))
    >>> (weights,) = cupyrnn.weights.block_lstm_from_onnx(W, R, P=P)
    >>> x, zeros = np.ones((4, 1, 3)), np.zeros((1, 2))
    >>> out = cupyrnn.block_lstm(x, zeros, zeros, **weights.arguments, forget_bias=0, cell_clip=0)
    >>> out.h.shape
    (4, 1, 2)
    """
    xp, directions = _directions("block_lstm_from_onnx", _ICFO, W=W, R=R, B=B, P=P)
    with on_device(xp, directions[0].input):
        return [forms.lstm_of(xp, d) for d in directions]


@traceable
def block_lstm_to_onnx(weights: Sequence[Sequence[Array | None]]) -> OnnxParams:
    """
    Convert weights of `block_lstm` to the weights of an ONNX LSTM.

    Parameters
    ----------
    weights : sequence of PeepholeLSTMParams, BlockLSTMParams or other tuples
        For each of one or two directions w [I+H, 4*H], b [4*H], gates in the order "icfo", and wci,
        wcf, wco [H] or None. Either all directions have peepholes or none has. Add a
        ``forget_bias`` to b first. Complex arrays hold values and tangents, see `cupyrnn.jvp`.

    Returns
    -------
    OnnxParams
        W, R, B and P. The second half of B is zero; P is None without peepholes.

    Raises
    ------
    TypeError, ValueError
        weights is not a list of one or two such tuples, an entry is not an array, or a shape does
        not fit the others.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> node = cupyrnn.weights.block_lstm_to_onnx([(np.ones((5, 8)), np.ones(8))])
    >>> node.W.shape, node.R.shape, node.B.shape, node.P
    ((1, 8, 3), (1, 8, 2), (1, 16), None)
    """
    op = "block_lstm_to_onnx"
    check_list(op, "weights", weights)
    expected = "1 or 2, one for each direction"
    check_count(op, "weights", weights, len(weights) in (1, 2), expected)
    whole: list[PeepholeLSTMParams] = []
    shapes: list[Any] = []
    for d, entry in enumerate(weights):
        check_list(op, f"weights[{d}]", entry)
        check_count(op, f"weights[{d}]", entry, len(entry) in (2, 5, 6), "2 or 5 or 6", "array")
        arrays: Any = PeepholeLSTMParams(*entry)
        named = {f"weights[{d}].{n}": a for n, a in zip(arrays._fields, arrays, strict=True)}
        name, w_p = named.popitem()
        if w_p is not None:
            raise ValueError(f"{op}: {name} is an array, expected None: ONNX has no projection")
        xp, *sizes = forms.check_block(op, LSTM_FORM, named)
        whole.append(arrays)
        shapes.append((sizes, arrays.wci is None))
        if shapes[d] != shapes[0]:
            raise ValueError(f"{op}: weights[{d}] has other shapes than weights[0]")
    check_arrays(op, {f"weights[{d}].w": arrays.w for d, arrays in enumerate(whole)})
    with on_device(xp, whole[0].w):
        return _node(xp, _ICFO, [forms.layer_of_lstm(xp, *arrays[:5]) for arrays in whole])
