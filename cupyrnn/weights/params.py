"""The layout of the packed parameters of CudnnRNN, and their conversion: TensorFlow's ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Generic

from .._typing import AnyArray, Array, ArrayT, NamedTuple
from ..cells.packed import DIRECTIONS, GATES, Direction, InputMode, Net, PieceKind, RNNMode, parts
from ..checks.arrays import contiguous, on_device
from ..checks.attributes import check_choice, check_count, check_integer, check_list, named, shown
from ..checks.calls import MOST_ELEMENTS, check_arrays, expect_shape
from ..derivatives.traced import traceable

_INPUT_MODES = ("linear_input", "skip_input", "auto_select")
# TensorFlow's defaults of the attributes.
DEFAULTS: dict[str, object] = {
    "rnn_mode": "lstm",
    "input_mode": "linear_input",
    "direction": "unidirectional",
    "num_proj": 0,
}


def check_net(
    op: str,
    num_layers: object,
    num_units: object,
    input_size: object,
    rnn_mode: object,
    input_mode: object,
    direction: object,
    num_proj: object,
) -> Net:
    """Return the configuration that TensorFlow's attributes describe."""
    L = check_integer(op, "num_layers", num_layers, 1)
    H = check_integer(op, "num_units", num_units, 1)
    I = check_integer(op, "input_size", input_size, 1)
    P = check_integer(op, "num_proj", num_proj, 0)
    mode = check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    input_mode = check_choice(op, "input_mode", input_mode, _INPUT_MODES)
    direction = check_choice(op, "direction", direction, DIRECTIONS)
    if P and mode != "lstm":
        raise ValueError(f"{op}: num_proj is {P}, expected 0 for {mode}: only lstm projects")
    if P > H:
        raise ValueError(f"{op}: num_proj is {P}, expected at most H = num_units = {H}")
    if input_mode == "skip_input" and I != H:
        raise ValueError(
            f"{op}: input_size is {I}, expected H = num_units = {H} with skip_input,"
            " which adds the input to the gates without a matrix"
        )
    skip = input_mode == "skip_input" or (input_mode == "auto_select" and I == H)
    return Net(mode, skip, L, H, I, 1 + (direction == "bidirectional"), P)


class Piece(NamedTuple):
    """
    One matrix or bias of the packed vector.

    Attributes
    ----------
    kind : {"input", "recurrent", "projection", "input_bias", "recurrent_bias"}
        W, R, Wp, b_W or b_R.
    layer : int
        The number of the layer, from 0.
    direction : int
        0 forward in time, 1 backward.
    gate : str
        The gate, such as "i" or "r"; "" for a projection.
    offset : int
        The index of its first element.
    shape : tuple of int
        [H, K], [H, P], [P, H] or [H].
    """

    kind: PieceKind
    layer: int
    direction: int
    gate: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def layout(net: Net) -> list[Piece]:
    """Return all pieces in the order of the packed vector."""
    pieces: list[Piece] = []
    for kind, layer, d, place, shape in parts(net):
        gates, shape = (("",), shape) if kind == "projection" else (GATES[net.rnn_mode], shape[1:])
        for n, gate in enumerate(gates):
            pieces.append(Piece(kind, layer, d, gate, place.start + n * math.prod(shape), shape))
    return pieces


def checked_layout(op: str, num_layers: object, *net: object) -> list[Piece]:
    """Check a net and return its pieces; refuse a net with too many layers for a list."""
    checked = check_net(op, num_layers, *net)
    if checked.L > _MOST_LAYERS:
        raise ValueError(
            f"{op}: num_layers is {checked.L}, expected at most {_MOST_LAYERS} for a list of pieces"
        )
    return layout(checked)


@named
def cudnn_rnn_params_layout(
    num_layers: int,
    num_units: int,
    input_size: int,
    *,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    num_proj: int = 0,
) -> list[Piece]:
    """
    Return the place of every matrix and bias in the packed parameters.

    Parameters
    ----------
    num_layers, num_units, input_size : int
        L, H and I.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices, and I must equal H. auto_select means
        skip_input if I equals H, else linear_input.
    direction : {"unidirectional", "bidirectional"}
        Bidirectional layers have a second set of everything, for the sequence read backwards.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.

    Returns
    -------
    list of Piece
        kind, layer, direction, gate, offset and shape of each, in order.

    Raises
    ------
    TypeError, ValueError
        An argument is not an integer, is out of range, or contradicts the others.

    Examples
    --------
    >>> import cupyrnn
    >>> pieces = cupyrnn.cudnn_rnn_params_layout(1, 2, 3, rnn_mode="rnn_tanh")
    >>> for p in pieces:
    ...     print(p.kind, p.offset, p.shape)
    input 0 (2, 3)
    recurrent 6 (2, 2)
    input_bias 10 (2,)
    recurrent_bias 12 (2,)
    """
    op = "cudnn_rnn_params_layout"
    return checked_layout(
        op, num_layers, num_units, input_size, rnn_mode, input_mode, direction, num_proj
    )


@named
def cudnn_rnn_params_size(
    num_layers: int,
    num_units: int,
    input_size: int,
    *,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    num_proj: int = 0,
) -> int:
    """
    Return the number of elements of the packed parameters: TensorFlow's CudnnRNNParamsSize.

    Parameters
    ----------
    num_layers, num_units, input_size : int
        L, H and I.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices, and I must equal H. auto_select means
        skip_input if I equals H, else linear_input.
    direction : {"unidirectional", "bidirectional"}
        Bidirectional layers have a second set of everything, for the sequence read backwards.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.

    Returns
    -------
    int
        The length of params of `cudnn_rnn`.

    Raises
    ------
    TypeError, ValueError
        An argument is not an integer, is out of range, or contradicts the others.

    Examples
    --------
    >>> import cupyrnn
    >>> cupyrnn.cudnn_rnn_params_size(1, 2, 3)
    56
    """
    op = "cudnn_rnn_params_size"
    return check_net(
        op, num_layers, num_units, input_size, rnn_mode, input_mode, direction, num_proj
    ).params_size


class CanonicalParams(NamedTuple, Generic[ArrayT]):
    """
    The matrices and biases of packed parameters.

    Attributes
    ----------
    weights : list of matrices
        In the order of the packed vector.
    biases : list of [H]
        In the order of the packed vector.
    """

    weights: list[ArrayT]
    biases: list[ArrayT]


_MOST_LAYERS = 100_000  # a layout is a list with at least 4 entries per layer


def check_elements(op: str, net: Net) -> None:
    """Check that the packed vector of this net is not too large."""
    if net.params_size >= MOST_ELEMENTS:
        raise ValueError(
            f"{op}: num_layers, num_units and input_size are {net.L}, {net.H} and {net.I}: params"
            f" has {shown(net.params_size)} elements, expected fewer than 10**12"
        )


def zeros(op: str, xp: ModuleType, net: Net, like: Array) -> Array:
    """Return a packed vector of zeros with the device and dtype of `like`."""
    check_elements(op, net)
    with on_device(xp, like):
        params: Array = xp.zeros(net.params_size, like.dtype)
    return params


def check_params(op: str, params: Array, net: Net) -> tuple[ModuleType, Array]:
    """Check the packed vector; return its module and the vector as a plain array."""
    xp, _ = check_arrays(op, {"params": params})
    expect_params_size(op, params, net)
    return xp, contiguous(xp, params)


def expect_params_size(op: str, params: Array, net: Net, *, alone: bool = False) -> None:
    """
    Check the length of the packed vector; the error shows the sizes that determine it.

    `alone` says that the vector came without a PackedParams: shapes and attributes of the call
    determine the sizes.
    """
    if params.shape != (net.params_size,):
        I = "0 (skip_input)" if net.skip else str(net.I)
        more = f", P = {net.num_proj}" if net.num_proj else ""
        raise ValueError(
            f"{op}: params has shape {params.shape}, expected (params_size,) ="
            f" {(net.params_size,)} for {net.rnn_mode} with L = {net.L}, D = {net.D}, H = {net.H},"
            f" I = {I}{more}{'; or pass a PackedParams, which has these sizes' if alone else ''}"
        )


@traceable
def cudnn_rnn_params_to_canonical(
    num_layers: int,
    num_units: int,
    input_size: int,
    params: ArrayT,
    *,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    num_proj: int = 0,
) -> CanonicalParams[ArrayT]:
    """
    Split packed parameters into matrices and biases: TensorFlow's CudnnRNNParamsToCanonical and
    V2.

    Parameters
    ----------
    num_layers, num_units, input_size : int
        L, H and I.
    params : [params_size]
        The packed parameters; float16, bfloat16, float32 or float64. Complex arrays hold values and
        tangents, see `cupyrnn.jvp`.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices, and I must equal H. auto_select means
        skip_input if I equals H, else linear_input.
    direction : {"unidirectional", "bidirectional"}
        Bidirectional layers have a second set of everything, for the sequence read backwards.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.

    Returns
    -------
    CanonicalParams
        weights, a list of L*D*(2*G) matrices (with a projection, one more per layer and direction),
        and biases, a list of L*D*2*G vectors [H]. They are copies, in the order of
        `cudnn_rnn_params_layout`. With skip_input the matrices that do not exist are [H, 0].

    Raises
    ------
    TypeError, ValueError
        An argument is not an integer, is out of range or contradicts the others, or params is not
        an array of the right length.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> weights, biases = cupyrnn.cudnn_rnn_params_to_canonical(1, 2, 3, np.arange(56.0))
    >>> len(weights), len(biases)
    (8, 8)
    >>> weights[0]
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """
    op = "cudnn_rnn_params_to_canonical"
    net = check_net(
        op, num_layers, num_units, input_size, rnn_mode, input_mode, direction, num_proj
    )
    xp, vector = check_params(op, params, net)
    weights: list[Any] = []
    biases: list[Any] = []
    with on_device(xp, vector):
        for p in layout(net):
            copies = weights if len(p.shape) == 2 else biases
            copies.append(vector[p.offset : p.offset + p.size].copy().reshape(p.shape))
    return CanonicalParams(weights, biases)


@traceable
def cudnn_rnn_canonical_to_params(
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[ArrayT],
    biases: Sequence[AnyArray],
    *,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    num_proj: int = 0,
) -> ArrayT:
    """
    Pack matrices and biases: TensorFlow's CudnnRNNCanonicalToParams and V2.

    Parameters
    ----------
    num_layers, num_units, input_size : int
        L, H and I.
    weights, biases : sequences of arrays
        In the order of `cudnn_rnn_params_layout`, all of one dtype. Matrices are [H, K] and [H, P],
        a projection is [P, H], and biases are [H]. K is I in the first layer and D*P in the others.
        Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices, and I must equal H. auto_select means
        skip_input if I equals H, else linear_input.
    direction : {"unidirectional", "bidirectional"}
        Bidirectional layers have a second set of everything, for the sequence read backwards.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.

    Returns
    -------
    params : [params_size]
        A new array.

    Raises
    ------
    TypeError, ValueError
        An argument is not an integer, is out of range or contradicts the others, or a matrix or
        bias is missing or has a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> parts = cupyrnn.cudnn_rnn_params_to_canonical(1, 2, 3, np.arange(56.0))
    >>> params = cupyrnn.cudnn_rnn_canonical_to_params(1, 2, 3, *parts)
    >>> bool((params == np.arange(56.0)).all())
    True
    """
    op = "cudnn_rnn_canonical_to_params"
    net = check_net(
        op, num_layers, num_units, input_size, rnn_mode, input_mode, direction, num_proj
    )
    G, places = len(GATES[net.rnn_mode]), net.L * net.D
    arrays: dict[str, Any] = {}
    for name, entries, expected in (
        ("weights", weights, places * (2 * G + bool(net.num_proj))),
        ("biases", biases, places * 2 * G),
    ):
        check_list(op, name, entries)
        check_count(op, name, entries, len(entries) == expected, expected, "array")
        arrays |= {f"{name}[{n}]": a for n, a in enumerate(entries)}
    xp, _ = check_arrays(op, arrays)
    symbols = {"input": "(H, K)", "recurrent": "(H, P or H)", "projection": "(P, H)"}
    for (name, a), piece in zip(arrays.items(), layout(net), strict=True):
        expect_shape(op, name, a, symbols.get(piece.kind, "(H,)"), piece.shape)
    with on_device(xp, weights[0]):
        params: ArrayT = xp.concatenate([a.reshape(-1) for a in arrays.values()])
    return params
