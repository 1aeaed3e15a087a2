"""
Weights of ONNX's LSTM, GRU and RNN nodes: conversion to packed parameters and block weights, and
back.

A node is one layer, in D directions: W [D, G*H, I], R [D, G*H, H], B [D, 2*G*H] with the biases of
W and then those of R, and an LSTM's peepholes P [D, 3*H]. The gates are in the orders i, o, f, c;
z, r, h; and the peepholes i, o, f.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .._arrays import (
    check_arrays,
    check_choice,
    check_integer,
    check_list,
    check_real,
    counted,
    expect_rank,
    expect_shape,
    on_device,
    shown,
)
from ..derivatives.traced import traceable
from .forms import (
    BlockGRUParams,
    PeepholeLSTMParams,
    as_arrays,
    by_gate,
    check_block_gru,
    check_block_lstm,
    mode_of,
    own_order,
    refuse,
    side_by_side,
)
from .packed import PackedParams, check_model
from .params import GATES, check_net, layers, zeros

if TYPE_CHECKING:
    from types import ModuleType

    from .._arrays import Array
    from ..arithmetic.gates import RecurrentActivation
    from .params import Direction, RNNMode

# Where ONNX has the gates of the packed orders i, f, ci, o; r, u, c; h.
_ONNX = {"lstm": [0, 2, 3, 1], "gru": [1, 0, 2], "rnn_tanh": [0], "rnn_relu": [0]}
# Where block_lstm has its gates i, ci, f, o, and its peepholes wci, wcf, wco, in ONNX's.
_ICFO, _PEEPHOLES = [0, 3, 2, 1], [0, 2, 1]


class OnnxParams(NamedTuple):
    """
    The weights of an ONNX node of G gates, by the names of its inputs.

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


class _Node(NamedTuple):
    """The weights of a node after their checks, by direction and gate."""

    xp: ModuleType
    H: int
    I: int
    W: Array  # [D, G, H, I]
    R: Array  # [D, G, H, H]
    biases: Array  # [D, 2, G, H]: of W, of R
    P: Array | None = None  # [D, 3, H]


def _node(op: str, G: int, **given: Any) -> _Node:
    """Check the weights of a node with G gates."""
    xp, arrays = as_arrays(op, {n: a for n, a in given.items() if n in "WR" or a is not None})
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
        if "B" not in arrays:
            arrays["B"] = xp.zeros((D, 2 * G * H), arrays["W"].dtype)
        return _Node(
            xp,
            H,
            I,
            arrays["W"].reshape(D, G, H, I),
            arrays["R"].reshape(D, G, H, H),
            arrays["B"].reshape(D, 2, G, H),
            arrays["P"].reshape(D, 3, H) if "P" in arrays else None,
        )


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
        The GRU's attribute of that name; a node without it has 0. A GRU with 0 resets before the
        product, unlike cuDNN's, and is refused.
    activations : sequence of str, optional
        The node's attribute of that name: for a GRU Sigmoid or HardSigmoid, then Tanh; for an LSTM
        the same and another Tanh; for an RNN Tanh or Relu; all of this again for a second
        direction.
    activation_alpha, activation_beta : sequence of float, optional
        The slope of each direction's HardSigmoid, 0.2 (the default) or 1/6, and its offset, 0.5.

    Returns
    -------
    PackedParams
        One layer, whose `recurrent_activation` follows from the activations. A "reverse" node
        becomes a net of one direction, which does not know that its sequences must be reversed:
        reverse them yourself.

    Raises
    ------
    TypeError
        An argument is not an array, or the arrays do not have floating dtypes or are not on one
        device.
    ValueError
        A shape does not fit, linear_before_reset is 0 for a GRU, CudnnRNN does not have the
        activations, or the shapes are those of an RNN whose activation is not given.

    See Also
    --------
    run_onnx_node : A node's outputs, by its attributes; says how a wrong linear_before_reset shows.
    block_lstm_from_onnx, block_gru_from_onnx : Peepholes; a GRU that resets before the product.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.params_from_onnx(np.ones((2, 8, 3)), np.ones((2, 8, 2)))
    >>> packed[1:6]
    (1, 2, 3, 'lstm', 'bidirectional')
    """
    op = "params_from_onnx"
    if rnn_mode is not None:
        check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    _, arrays = as_arrays(op, {"W": W, "R": R})
    D, width, _ = expect_rank(op, "W", arrays["W"], "(D, G*H, I)")
    H = expect_rank(op, "R", arrays["R"], "(D, G*H, H)")[2]
    problem = f"W has shape {arrays['W'].shape}, expected (D, G*H, I)"
    rnn_mode = rnn_mode or _mode_of_rnn(activations, width, H)
    rnn_mode, _ = mode_of(op, rnn_mode, width, H, problem)
    gate = _gate(op, rnn_mode, D, activations, activation_alpha, activation_beta)
    after = check_integer(op, "linear_before_reset", linear_before_reset)
    if after not in (0, 1):
        raise ValueError(f"{op}: linear_before_reset is {shown(after)}, expected 0 or 1")
    if not after and rnn_mode == "gru":
        raise ValueError(
            f"{op}: linear_before_reset is 0, expected 1: a GRU that resets before the product is"
            " not the GRU of cuDNN; block_gru_from_onnx takes it"
        )
    node = _node(op, len(GATES[rnn_mode]), W=W, R=R, B=B)
    direction: Direction = "bidirectional" if len(node.W) == 2 else "unidirectional"
    net = check_net(op, 1, node.H, node.I, rnn_mode, "linear_input", direction, 0)
    params = zeros(op, node.xp, net, node.W)
    order = _ONNX[rnn_mode]
    with on_device(node.xp, params):
        for d, layer in enumerate(layers(params, net)):
            layer.input[...], layer.recurrent[...] = node.W[d, order], node.R[d, order]
            layer.input_bias[...] = node.biases[d, 0, order]
            layer.recurrent_bias[...] = node.biases[d, 1, order]
    packed = PackedParams(params, 1, node.H, node.I, rnn_mode, direction, 0)
    return packed._replace(recurrent_activation=gate)


# The activations of a node by its cell, and the only other one that CudnnRNN has of the first.
_DEFAULTS: dict[str, tuple[str, ...]] = {
    "lstm": ("Sigmoid", "Tanh", "Tanh"),
    "gru": ("Sigmoid", "Tanh"),
    "rnn_tanh": ("Tanh",),
    "rnn_relu": ("Relu",),
}
_SLOPES: dict[RecurrentActivation, float] = {"hard_sigmoid_0.2": 0.2, "hard_sigmoid_1/6": 1 / 6}


def _name(value: object) -> str | None:
    """Return the name of an activation as the standard compares it; the package onnx has bytes."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value.lower() if isinstance(value, str) else None


def _mode_of_rnn(activations: Any, width: int, H: int) -> Any:
    """Return which RNN the first activation is of, None if it or the shapes do not tell one."""
    if width != H or not isinstance(activations, (list, tuple)) or not activations:
        return None
    return {"tanh": "rnn_tanh", "relu": "rnn_relu"}.get(_name(activations[0]) or "")


def _gate(op: str, mode: str, D: int, given: Any, alpha: Any, beta: Any) -> RecurrentActivation:
    """Return what the attributes say of a cell's gates."""
    default, hard = _DEFAULTS[mode], False
    if given is not None:
        check_list(op, "activations", given, "strings")
        if len(given) != len(default) * D:
            raise ValueError(
                f"{op}: activations has {counted(len(given), 'entry')}, expected"
                f" {len(default) * D} for"
                f" {mode} with D = {D}"
            )
        gated = len(default) > 1
        hard = gated and _name(given[0]) == "hardsigmoid"
        for n, (value, expected) in enumerate(zip(given, default * D, strict=True)):
            if hard and expected == "Sigmoid":
                expected = "HardSigmoid"
            if _name(value) != expected.lower():
                either = " or HardSigmoid" * (gated and not n)
                raise ValueError(
                    f"{op}: activations[{n}] is {shown(value)}, expected {expected}{either}:"
                    f" CudnnRNN has no others in {mode}, and all directions alike"
                )
    slopes = _parameters(op, "activation_alpha", alpha, 0.2, D * hard)
    offsets = _parameters(op, "activation_beta", beta, 0.5, D * hard)
    if not hard:
        return "sigmoid"
    for name, slope in _SLOPES.items():
        # The attributes are float32.
        if all(abs(a - slope) < 1e-6 for a in slopes) and all(abs(b - 0.5) < 1e-6 for b in offsets):
            return name
    raise ValueError(
        f"{op}: HardSigmoid has activation_alpha = {shown(slopes)} and activation_beta ="
        f" {shown(offsets)}, expected 0.2 or 1/6, and 0.5"
    )


def _parameters(op: str, name: str, given: Any, default: float, count: int) -> list[float]:
    """Return a parameter of each HardSigmoid; others have none."""
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return [default] * count
    check_list(op, name, given, "real numbers")
    if len(given) != count:
        raise ValueError(
            f"{op}: {name} has {counted(len(given), 'entry')}, expected {count}, one for each"
            " HardSigmoid"
        )
    return [check_real(op, f"{name}[{n}]", value) for n, value in enumerate(given)]


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
    Return the packed parameters of one layer as an ONNX LSTM, GRU or RNN has them.

    Parameters
    ----------
    params : [params_size] or PackedParams
        The packed parameters of one layer without projection, or a gradient of them: ONNX has both
        biases as well. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    num_units, input_size : int, optional
        H and I; a PackedParams determines them and the next two.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell; "lstm" by default.
    direction : {"unidirectional", "bidirectional"}, optional
        D is 1, the default, or 2.

    Returns
    -------
    OnnxParams
        W, R and B. The node of a GRU needs the attribute ``linear_before_reset=1``, that of an
        rnn_relu ``activations=["Relu"]``, once per direction. A net with hard sigmoids needs
        ``activations=["HardSigmoid", "Tanh", "Tanh"]`` (for a GRU without the last),
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
    >>> W, R, B, _ = cupyrnn.params_to_onnx(np.arange(56.0), 2, 3)
    >>> W.shape, R.shape, B.shape
    ((1, 8, 3), (1, 8, 2), (1, 16))
    """
    op = "params_to_onnx"
    num_layers = None if isinstance(params, PackedParams) else 1
    model = check_model(
        op, params, num_layers, num_units, input_size, rnn_mode=rnn_mode, direction=direction
    )
    xp, net, vector = model
    refuse(op, "ONNX", net)
    if net.L > 1:
        raise ValueError(
            f"{op}: params is of a net with L = {net.L}, expected 1: a node is a layer"
        )
    order = own_order(_ONNX[net.rnn_mode])
    D, GH = net.D, len(order) * net.H
    with on_device(xp, vector):
        W = xp.empty((D, GH, net.I), vector.dtype)
        R = xp.empty((D, GH, net.H), vector.dtype)
        B = xp.empty((D, 2 * GH), vector.dtype)
        for d, layer in enumerate(layers(vector, net)):
            W[d] = layer.input[order].reshape(GH, net.I)
            R[d] = layer.recurrent[order].reshape(GH, net.H)
            B[d, :GH] = layer.input_bias[order].reshape(GH)
            B[d, GH:] = layer.recurrent_bias[order].reshape(GH)
        return OnnxParams(W, R, B)


@traceable
def block_lstm_from_onnx(
    W: Array, R: Array, B: Array | None = None, P: Array | None = None
) -> list[PeepholeLSTMParams]:
    """
    Return the weights of an ONNX LSTM, with peepholes or without, as `block_lstm` takes them.

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
        with ``forget_bias=0`` and ``cell_clip=0``, as ONNX has no forget bias and no clip of the
        cell state. If the node's activations begin with HardSigmoid, also pass
        ``recurrent_activation``.

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
    >>> (weights,) = cupyrnn.block_lstm_from_onnx(W, R, P=P)
    >>> x, zeros = np.ones((4, 1, 3)), np.zeros((1, 2))
    >>> out = cupyrnn.block_lstm(x, zeros, zeros, **weights.arguments, forget_bias=0, cell_clip=0)
    >>> out.h.shape
    (4, 1, 2)
    """
    node = _node("block_lstm_from_onnx", 4, W=W, R=R, B=B, P=P)
    with on_device(node.xp, node.W):
        return [
            PeepholeLSTMParams(
                node.xp.concatenate([side_by_side(a[d, _ICFO]) for a in (node.W, node.R)]),
                (node.biases[d, 0] + node.biases[d, 1])[_ICFO].reshape(-1),
                *([] if node.P is None else [node.P[d, gate].copy() for gate in _PEEPHOLES]),
            )
            for d in range(len(node.W))
        ]


@traceable
def block_lstm_to_onnx(weights: Sequence[Sequence[Array | None]]) -> OnnxParams:
    """
    Return the weights of `block_lstm` as an ONNX LSTM has them.

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
    >>> node = cupyrnn.block_lstm_to_onnx([(np.ones((5, 8)), np.ones(8))])
    >>> node.W.shape, node.R.shape, node.B.shape, node.P
    ((1, 8, 3), (1, 8, 2), (1, 16), None)
    """
    op = "block_lstm_to_onnx"
    tuples = _directions(op, weights, (2, 5, 6))
    for d, (*_, last) in enumerate(tuples):
        if len(tuples[d]) == 6 and last is not None:
            raise ValueError(f"{op}: weights[{d}].w_p is given, but ONNX has no projection")
    whole = [(*entry, None, None, None)[:5] for entry in tuples]
    names = PeepholeLSTMParams._fields[:5]
    xp, I, H = check_block_lstm(op, _shown(whole[0], names, 0))
    for d, entry in enumerate(whole):
        given = _shown(entry, names, d)
        if check_block_lstm(op, given)[1:] != (I, H) or (entry[2] is None) != (whole[0][2] is None):
            raise ValueError(f"{op}: weights[{d}] is not of the shapes of weights[0]")
    _one_dtype(op, whole)
    order = own_order(_ICFO)
    with on_device(xp, whole[0][0]):
        W, R, B, P = [], [], [], []
        for w, b, *peepholes in whole:
            gates = by_gate(w, 4)[order]
            W.append(gates[:, :, :I].reshape(1, 4 * H, I))
            R.append(gates[:, :, I:].reshape(1, 4 * H, H))
            B.append(xp.zeros((1, 8 * H), b.dtype))
            B[-1][0, : 4 * H] = b.reshape(4, H)[order].reshape(-1)
            if peepholes[0] is not None:
                P.append(xp.concatenate([peepholes[n] for n in _PEEPHOLES]).reshape(1, 3 * H))
        return OnnxParams(
            xp.concatenate(W),
            xp.concatenate(R),
            xp.concatenate(B),
            xp.concatenate(P) if P else None,
        )


@traceable
def block_gru_from_onnx(W: Array, R: Array, B: Array | None = None) -> list[BlockGRUParams]:
    """
    Return the weights of an ONNX GRU with ``linear_before_reset=0`` as `block_gru` takes them.

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
    params_from_onnx : A GRU with ``linear_before_reset=1``.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> (weights,) = cupyrnn.block_gru_from_onnx(np.ones((1, 6, 3)), np.ones((1, 6, 2)))
    >>> cupyrnn.block_gru(np.ones((4, 1, 3)), np.zeros((1, 2)), *weights).h.shape
    (4, 1, 2)
    """
    node = _node("block_gru_from_onnx", 3, W=W, R=R, B=B)
    ru, c = [1, 0], [2]
    with on_device(node.xp, node.W):

        def rows(d: int, gates: list[int]) -> Array:
            parts = [side_by_side(a[d, gates]) for a in (node.W, node.R)]
            joined: Array = node.xp.concatenate(parts)
            return joined

        def bias(d: int, gates: list[int]) -> Array:
            of_w, of_r = node.biases[d]
            total: Array = of_w[gates] + of_r[gates]
            return total.reshape(-1)

        return [
            BlockGRUParams(rows(d, ru), rows(d, c), bias(d, ru), bias(d, c))
            for d in range(len(node.W))
        ]


@traceable
def block_gru_to_onnx(weights: Sequence[Sequence[Array]]) -> OnnxParams:
    """
    Return the weights of `block_gru` as an ONNX GRU with ``linear_before_reset=0`` has them.

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
    >>> node = cupyrnn.block_gru_to_onnx([weights])
    >>> node.W.shape, node.R.shape, node.B.shape
    ((1, 6, 3), (1, 6, 2), (1, 12))
    """
    op = "block_gru_to_onnx"
    whole = _directions(op, weights, (4,))
    xp, I, H = check_block_gru(op, _shown(whole[0], BlockGRUParams._fields, 0))
    for d, entry in enumerate(whole):
        if check_block_gru(op, _shown(entry, BlockGRUParams._fields, d))[1:] != (I, H):
            raise ValueError(f"{op}: weights[{d}] is not of the shapes of weights[0]")
    _one_dtype(op, whole)
    zrh = [1, 0, 2]
    with on_device(xp, whole[0][0]):
        W, R, B = [], [], []
        for w_ru, w_c, b_ru, b_c in whole:
            gates = by_gate(xp.concatenate([w_ru, w_c], axis=1), 3)[zrh]
            W.append(gates[:, :, :I].reshape(1, 3 * H, I))
            R.append(gates[:, :, I:].reshape(1, 3 * H, H))
            of_w = xp.concatenate([b_ru, b_c]).reshape(3, H)[zrh].reshape(1, 3 * H)
            B.append(xp.concatenate([of_w, xp.zeros_like(of_w)], axis=1))
        return OnnxParams(xp.concatenate(W), xp.concatenate(R), xp.concatenate(B))


def _directions(op: str, weights: Any, lengths: tuple[int, ...]) -> list[Any]:
    """Check that there is a tuple of as many weights for each of one or two directions."""
    check_list(op, "weights", weights)
    if len(weights) not in (1, 2):
        raise ValueError(
            f"{op}: weights has {counted(len(weights), 'entry')}, expected 1 or 2, one for"
            " each direction"
        )
    for d, entry in enumerate(weights):
        check_list(op, f"weights[{d}]", entry)
        if len(entry) not in lengths:
            expected = " or ".join(map(str, lengths))
            raise ValueError(
                f"{op}: weights[{d}] has {counted(len(entry), 'array')}, expected {expected}"
            )
    return list(weights)


def _shown(entry: Sequence[Any], fields: Sequence[str], d: int) -> dict[str, Any]:
    """Return the weights of a direction by the names that errors show."""
    return {f"weights[{d}].{name}": a for name, a in zip(fields, entry, strict=True)}


def _one_dtype(op: str, whole: list[Any]) -> None:
    """Check that both directions are of one module, device and dtype."""
    check_arrays(op, {f"weights[{d}][0]": entry[0] for d, entry in enumerate(whole)})
