"""
Weights of ONNX's LSTM, GRU and RNN nodes, converted to packed parameters and block weights, and
back.

A node is one layer in D directions: W [D, G*H, I], R [D, G*H, H], B [D, 2*G*H] (the biases of W,
then of R), and an LSTM's peepholes P [D, 3*H]. The order of the gates is i, o, f, c in an
LSTM and z, r, h in a GRU; the order of the peepholes is i, o, f.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from .._typing import Array
from ..arithmetic.gates import RecurrentActivation
from ..cells.packed import DIRECTIONS, GATES, Direction, LayerParams, RNNMode, layers
from ..checks.arrays import contiguous, on_device
from ..checks.attributes import check_choice, check_count, check_list, shown
from ..checks.calls import check_arrays, expect_rank, expect_shape
from ..derivatives.traced import traceable
from . import forms
from .activations import DEFAULTS, activations_of, check_flag, gate_of, text
from .forms import BlockGRUParams, PeepholeLSTMParams
from .packed import PackedParams, assembled, check_model
from .params import check_net

# ONNX's places of the packed gates i, f, ci, o; r, u, c; h.
_ONNX = {"lstm": [0, 2, 3, 1], "gru": [1, 0, 2], "rnn_tanh": [0], "rnn_relu": [0]}
# ONNX's places of the gates i, ci, f, o of block_lstm, and of the peepholes of i, f and o.
_ICFO, _PEEPHOLES = [0, 3, 2, 1], [0, 2, 1]
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
    *,
    rnn_mode: RNNMode | None = None,
    linear_before_reset: int = 0,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
) -> PackedParams:
    """
    Pack the weights of an ONNX LSTM without peepholes, a GRU or an RNN.

    Parameters
    ----------
    W : [D, G*H, I]
        The input matrices, with D = 1 for a node with direction "forward" or "reverse" and 2 for
        "bidirectional". Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    R : [D, G*H, H]
        The recurrent matrices.
    B : [D, 2*G*H], optional
        The biases; zero by default.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell. The shapes identify LSTMs and GRUs. For an RNN, this argument or `activations`
        must give the activation: "rnn_tanh" is ONNX's default.
    linear_before_reset : {0, 1}
        The GRU's attribute of that name; a node without it has 0. A GRU with 0 is refused: it
        resets before the product, unlike cuDNN's.
    activations : sequence of str, optional
        The node's attribute of that name, for each direction: for a GRU Sigmoid or HardSigmoid,
        then Tanh; for an LSTM the same and another Tanh; for an RNN Tanh or Relu.
    activation_alpha, activation_beta : sequence of float, optional
        The slope of each direction's HardSigmoid, 0.2 (the default) or 1/6, and its offset, 0.5.
        They are ignored if there is no HardSigmoid: exporters write them anyway.

    Returns
    -------
    PackedParams
        One layer, whose `recurrent_activation` follows from the activations. A "reverse" node
        becomes a net of one forward direction: call `cudnn_rnn` with ``reverse=True``.

    Raises
    ------
    TypeError
        An argument is not an array, or the arrays do not have floating dtypes or are not on one
        device.
    ValueError
        A shape does not fit, linear_before_reset is 0 for a GRU, CudnnRNN does not have the
        activations, or the shapes are an RNN's and its activation is missing.

    See Also
    --------
    run_onnx_node : Computes a node from its attributes and inputs.
    block_lstm_from_onnx, block_gru_from_onnx : For an LSTM with peepholes, and for a GRU that
        resets before the product.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.weights.params_from_onnx(np.ones((2, 8, 3)), np.ones((2, 8, 2)))
    >>> packed[1:6]
    (1, 2, 3, 'lstm', 'bidirectional')
    """
    op = "params_from_onnx"
    if rnn_mode is not None:
        check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    _, arrays = forms.as_arrays(op, {"W": W, "R": R})
    D, width, _ = expect_rank(op, "W", arrays["W"], "(D, G*H, I)")
    H = expect_rank(op, "R", arrays["R"], "(D, G*H, H)")[2]
    problem = f"W has shape {arrays['W'].shape}, expected (D, G*H, I)"
    rnn_mode = rnn_mode or _mode_of_rnn(activations, width, H)
    rnn_mode, _ = forms.mode_of(op, rnn_mode, width, H, problem)
    xp, directions = _directions(op, _ONNX[rnn_mode], W=W, R=R, B=B)
    gate = _gate(
        op, rnn_mode, D, activations=activations,
        activation_alpha=activation_alpha, activation_beta=activation_beta,
    )  # fmt: skip
    after = check_flag(op, "linear_before_reset", linear_before_reset)
    if not after and rnn_mode == "gru":
        raise ValueError(
            f"{op}: linear_before_reset is 0, expected 1: cuDNN's GRU resets after the product; use"
            " block_gru_from_onnx"
        )
    _, H, I = directions[0].input.shape
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
    found = [f for functions in activations_of(op, mode, default, D, attributes) for f in functions]
    expected, gated = [*default], len(default) > 1
    if gated and found[0].name == "hardsigmoid":
        expected[0] = "HardSigmoid"
    for n, (function, name) in enumerate(zip(found, expected * D, strict=True)):
        if function.name != name.lower():
            either = " or HardSigmoid" * (gated and not n)
            raise ValueError(
                f"{op}: activations[{n}] is {shown(attributes['activations'][n])}, expected"
                f" {name}{either}: {mode} of CudnnRNN has no others, and the same in all directions"
            )
    if not gated:
        return "sigmoid"
    gates = found[:: len(default)]
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
    params: Array | PackedParams,
    num_units: int | None = None,
    input_size: int | None = None,
    *,
    rnn_mode: RNNMode | None = None,
    direction: Direction | None = None,
) -> OnnxParams:
    """
    Convert the packed parameters of one layer to the weights of an ONNX LSTM, GRU or RNN.

    Parameters
    ----------
    params : [params_size] or PackedParams
        The packed parameters of one layer without projection, or their gradient: ONNX has both
        biases, too. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    num_units, input_size : int, optional
        H and I; a PackedParams determines them and the next two.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell; "lstm" by default.
    direction : {"unidirectional", "bidirectional"}, optional
        D is 1, the default, or 2.

    Returns
    -------
    OnnxParams
        W, R and B. A GRU node needs the attribute ``linear_before_reset=1``, an rnn_relu needs
        ``activations=["Relu"]``, repeated for a second direction. A net with hard sigmoids needs
        ``activations=["HardSigmoid", "Tanh", "Tanh"]`` (a GRU has one Tanh),
        ``activation_alpha=[0.2]`` or ``[1/6]`` and ``activation_beta=[0.5]``.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or is out of range, an argument contradicts a PackedParams,
        params is not an array of the right length, or no single ONNX node can hold the net.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> W, R, B, _ = cupyrnn.weights.params_to_onnx(np.arange(56.0), 2, 3)
    >>> W.shape, R.shape, B.shape
    ((1, 8, 3), (1, 8, 2), (1, 16))
    """
    op = "params_to_onnx"
    num_layers = None if isinstance(params, PackedParams) else 1
    xp, net, vector = check_model(
        op, params, num_layers, num_units, input_size, rnn_mode=rnn_mode, direction=direction
    )
    forms.refuse(op, "ONNX", net)
    if net.L > 1:
        raise ValueError(
            f"{op}: params is of a net with L = {net.L}, expected 1: a node is one layer"
        )
    with on_device(xp, vector):
        return _node(xp, _ONNX[net.rnn_mode], layers(vector, net))


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
        return [
            PeepholeLSTMParams(
                *forms.rows_of(xp, d, forms.IN_ORDER),
                *([] if d.peepholes is None else [a.copy() for a in d.peepholes]),
            )
            for d in directions
        ]


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

    def check(op: str, arrays: dict[str, Array]) -> tuple[ModuleType, int, int]:
        name, w_p = arrays.popitem()
        if w_p is not None:
            raise ValueError(f"{op}: {name} is an array, expected None: ONNX has no projection")
        return forms.check_block_lstm(op, arrays)

    xp, whole = _checked(op, weights, (2, 5, 6), PeepholeLSTMParams, check)
    directions = []
    with on_device(xp, whole[0].w):
        for w, b, *peepholes, _ in whole:
            layer = forms.layer_of(contiguous(xp, w), contiguous(xp, b), forms.IN_ORDER)
            P = None if peepholes[0] is None else xp.stack(peepholes)
            directions.append(layer._replace(peepholes=P))
        return _node(xp, _ICFO, directions)


@traceable
def block_gru_from_onnx(W: Array, R: Array, B: Array | None = None) -> list[BlockGRUParams]:
    """
    Convert an ONNX GRU with ``linear_before_reset=0`` to weights of `block_gru`.

    Parameters
    ----------
    W, R : [D, 3*H, I], [D, 3*H, H]
        The input and the recurrent matrices. Complex arrays hold values and tangents, see
        `cupyrnn.jvp`.
    B : [D, 6*H], optional
        The biases; zero by default.

    Returns
    -------
    list of BlockGRUParams
        One entry for each direction: w_ru [I+H, 2*H], w_c [I+H, H], and the sums of the two biases,
        b_ru [2*H] and b_c [H]. If the node's activations begin with HardSigmoid, pass
        ``recurrent_activation`` to `block_gru`.

    Raises
    ------
    TypeError
        An argument is not an array, or the arrays do not have floating dtypes or are not on one
        device.
    ValueError
        A shape does not fit.

    See Also
    --------
    params_from_onnx : For a GRU with ``linear_before_reset=1``.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> (weights,) = cupyrnn.weights.block_gru_from_onnx(np.ones((1, 6, 3)), np.ones((1, 6, 2)))
    >>> cupyrnn.block_gru(np.ones((4, 1, 3)), np.zeros((1, 2)), *weights).h.shape
    (4, 1, 2)
    """
    xp, directions = _directions("block_gru_from_onnx", _ONNX["gru"], W=W, R=R, B=B)
    with on_device(xp, directions[0].input):
        return [forms.gru_of(xp, d) for d in directions]


@traceable
def block_gru_to_onnx(weights: Sequence[Sequence[Array]]) -> OnnxParams:
    """
    Convert weights of `block_gru` to the weights of an ONNX GRU with ``linear_before_reset=0``.

    Parameters
    ----------
    weights : sequence of BlockGRUParams or other tuples
        For each of one or two directions w_ru [I+H, 2*H], w_c [I+H, H], b_ru [2*H] and b_c [H].
        Complex arrays hold values and tangents, see `cupyrnn.jvp`.

    Returns
    -------
    OnnxParams
        W, R and B. The second half of B is zero.

    Raises
    ------
    TypeError, ValueError
        weights is not a list of one or two such tuples, an entry is not an array, or a shape does
        not fit the others.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> weights = np.ones((5, 4)), np.ones((5, 2)), np.ones(4), np.ones(2)
    >>> node = cupyrnn.weights.block_gru_to_onnx([weights])
    >>> node.W.shape, node.R.shape, node.B.shape
    ((1, 6, 3), (1, 6, 2), (1, 12))
    """
    op = "block_gru_to_onnx"
    xp, whole = _checked(op, weights, (4,), BlockGRUParams, forms.check_block_gru)
    with on_device(xp, whole[0].w_ru):
        return _node(xp, _ONNX["gru"], [forms.layer_of_gru(xp, entry) for entry in whole])


def _checked(
    op: str, weights: Any, lengths: tuple[int, ...], kind: Any, check: Callable[..., Any]
) -> tuple[ModuleType, list[Any]]:
    """Check the weights of one or two directions, which have the same shapes."""
    check_list(op, "weights", weights)
    expected = "1 or 2, one for each direction"
    check_count(op, "weights", weights, len(weights) in (1, 2), expected)
    found = []
    for d, entry in enumerate(weights):
        check_list(op, f"weights[{d}]", entry)
        expected = " or ".join(map(str, lengths))
        check_count(op, f"weights[{d}]", entry, len(entry) in lengths, expected, "array")
        whole = kind(*entry)
        named = zip(kind._fields, whole, strict=True)
        xp, *sizes = check(op, {f"weights[{d}].{name}": a for name, a in named})
        found.append((whole, sizes, [a is None for a in whole]))
        if found[d][1:] != found[0][1:]:
            raise ValueError(f"{op}: weights[{d}] has other shapes than weights[0]")
    check_arrays(op, {f"weights[{d}][0]": whole[0] for d, (whole, *_) in enumerate(found)})
    return xp, [whole for whole, *_ in found]
