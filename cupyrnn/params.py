"""
The packed parameters of TensorFlow's CudnnRNN, which are cuDNN's own, and the ways in and out.

All weights and biases of a recurrent net of L layers and D directions lie in one vector. First
come, for every layer and direction, the G input matrices [H, K], the G recurrent matrices [H, P]
and, for an LSTM with projection, one matrix [P, H]; after all of these, for every layer and
direction, the G input biases and the G recurrent biases [H]. There is no padding.

G is 4 for LSTM (gates i, f, ci, o), 3 for GRU (r, u, c) and 1 for the plain RNNs. K is the size of
what the layer reads: I for the first, 0 there with skip_input, D*P for the others. P is num_proj,
or H without a projection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ._arrays import (
    check_arrays,
    check_choice,
    check_integer,
    check_list,
    check_real,
    contiguous,
    expect_rank,
    expect_shape,
    on_device,
)

if TYPE_CHECKING:
    from ._arrays import Array
    from .lstm import GateOrder

RNNMode: TypeAlias = Literal["rnn_relu", "rnn_tanh", "lstm", "gru"]
InputMode: TypeAlias = Literal["linear_input", "skip_input", "auto_select"]
Direction: TypeAlias = Literal["unidirectional", "bidirectional"]

GATES = {
    "rnn_relu": ("h",),
    "rnn_tanh": ("h",),
    "lstm": ("i", "f", "ci", "o"),
    "gru": ("r", "u", "c"),
}
_INPUT_MODES = ("linear_input", "skip_input", "auto_select")
_DIRECTIONS = ("unidirectional", "bidirectional")


class Piece(NamedTuple):
    """One matrix or bias of the packed vector."""

    kind: Literal["input", "recurrent", "projection", "input_bias", "recurrent_bias"]
    layer: int
    direction: int  # 0 forward in time, 1 backward
    gate: str  # "" for a projection
    offset: int  # of the first element
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        rows, columns = (*self.shape, 1)[:2]
        return rows * columns


def layout(
    op: str,
    num_layers: int,
    num_units: int,
    input_size: int,
    rnn_mode: str,
    input_mode: str,
    direction: str,
    num_proj: int,
) -> list[Piece]:
    """Check the configuration and return all pieces in the order of the packed vector."""
    L = check_integer(op, "num_layers", num_layers, 1)
    H = check_integer(op, "num_units", num_units, 1)
    I = check_integer(op, "input_size", input_size, 1)
    P = check_integer(op, "num_proj", num_proj, 0)
    check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    check_choice(op, "input_mode", input_mode, _INPUT_MODES)
    check_choice(op, "direction", direction, _DIRECTIONS)
    if P and rnn_mode != "lstm":
        raise ValueError(f"{op}: num_proj is {P}, expected 0 for {rnn_mode}: only lstm projects")
    if P > H:
        raise ValueError(f"{op}: num_proj is {P}, expected at most H = num_units = {H}")
    if input_mode == "skip_input" and I != H:
        raise ValueError(
            f"{op}: input_size is {I}, expected H = num_units = {H} with skip_input,"
            " which adds the input to the gates as it is"
        )
    skip = input_mode == "skip_input" or (input_mode == "auto_select" and I == H)
    D, out, gates = 1 + (direction == "bidirectional"), P or H, GATES[rnn_mode]

    def unplaced() -> Iterator[tuple[Any, int, int, str, tuple[int, ...]]]:
        for layer in range(L):
            K = D * out if layer else 0 if skip else I
            for d in range(D):
                yield from (("input", layer, d, gate, (H, K)) for gate in gates)
                yield from (("recurrent", layer, d, gate, (H, out)) for gate in gates)
                if P:
                    yield ("projection", layer, d, "", (P, H))
        for layer in range(L):
            for d in range(D):
                yield from (("input_bias", layer, d, gate, (H,)) for gate in gates)
                yield from (("recurrent_bias", layer, d, gate, (H,)) for gate in gates)

    pieces: list[Piece] = []
    offset = 0
    for kind, layer, d, gate, shape in unplaced():
        pieces.append(Piece(kind, layer, d, gate, offset, shape))
        offset += pieces[-1].size
    return pieces


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
    Return where every matrix and bias lies in the packed parameters.

    Parameters
    ----------
    num_layers, num_units, input_size : int
        L, H and I.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices, and I must equal H; auto_select is
        skip_input if I equals H and linear_input if not.
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
        An argument is no integer, out of range, or does not go with the others.

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
    return layout(
        "cudnn_rnn_params_layout",
        num_layers,
        num_units,
        input_size,
        rnn_mode,
        input_mode,
        direction,
        num_proj,
    )


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
    Return the number of elements of the packed parameters, as TensorFlow's CudnnRNNParamsSize.

    Parameters
    ----------
    num_layers, num_units, input_size, rnn_mode, input_mode, direction, num_proj
        As in `cudnn_rnn_params_layout`.

    Returns
    -------
    int

    Raises
    ------
    TypeError, ValueError
        As `cudnn_rnn_params_layout`.

    Examples
    --------
    >>> import cupyrnn
    >>> cupyrnn.cudnn_rnn_params_size(1, 2, 3)
    56
    """
    last = layout(
        "cudnn_rnn_params_size",
        num_layers,
        num_units,
        input_size,
        rnn_mode,
        input_mode,
        direction,
        num_proj,
    )[-1]
    return last.offset + last.size


class CanonicalParams(NamedTuple):
    """The matrices and biases of packed parameters, in their order there."""

    weights: list[Array]
    biases: list[Array]


def _zeros(xp: ModuleType, pieces: list[Piece], like: Array) -> Array:
    """Return a packed vector of zeros where `like` is, of its dtype."""
    with on_device(xp, like):
        params: Array = xp.zeros(pieces[-1].offset + pieces[-1].size, like.dtype)
    return params


def _check_params(op: str, params: Array, pieces: list[Piece]) -> tuple[ModuleType, Array]:
    """Check the packed vector; return its module and the vector itself, without a subclass."""
    xp, _ = check_arrays(op, {"params": params})
    size = pieces[-1].offset + pieces[-1].size
    expect_shape(op, "params", params, "(params_size,)", (size,))
    return xp, contiguous(xp, params)


def cudnn_rnn_params_to_canonical(
    num_layers: int,
    num_units: int,
    input_size: int,
    params: Array,
    *,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    num_proj: int = 0,
) -> CanonicalParams:
    """
    Take packed parameters apart, as TensorFlow's CudnnRNNParamsToCanonical and V2.

    Parameters
    ----------
    params : [params_size]
        The packed parameters; float16, bfloat16, float32 or float64.
    num_layers, num_units, input_size, rnn_mode, input_mode, direction, num_proj
        As in `cudnn_rnn_params_layout`.

    Returns
    -------
    CanonicalParams
        weights, a list of L*D*(2*G) matrices, one more per layer and direction with a projection,
        and biases, a list of L*D*2*G vectors [H]: copies, in the order of
        `cudnn_rnn_params_layout`. With skip_input the matrices that do not exist are [H, 0].

    Raises
    ------
    TypeError, ValueError
        As `cudnn_rnn_params_layout`; also if params is no array of the right length.

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
    pieces = layout(
        op, num_layers, num_units, input_size, rnn_mode, input_mode, direction, num_proj
    )
    xp, params = _check_params(op, params, pieces)
    with on_device(xp, params):
        taken = [params[p.offset : p.offset + p.size].copy().reshape(p.shape) for p in pieces]
    count = sum(len(p.shape) == 2 for p in pieces)
    return CanonicalParams(taken[:count], taken[count:])


def cudnn_rnn_canonical_to_params(
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[Array],
    biases: Sequence[Array],
    *,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    num_proj: int = 0,
) -> Array:
    """
    Pack matrices and biases, as TensorFlow's CudnnRNNCanonicalToParams and V2.

    Parameters
    ----------
    weights, biases : sequences of arrays
        In the order of `cudnn_rnn_params_layout`, all of one dtype.
    num_layers, num_units, input_size, rnn_mode, input_mode, direction, num_proj
        As in `cudnn_rnn_params_layout`.

    Returns
    -------
    params : [params_size]
        A new array.

    Raises
    ------
    TypeError, ValueError
        As `cudnn_rnn_params_layout`; also if a matrix or bias is missing or has another shape
        than its place.

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
    pieces = layout(
        op, num_layers, num_units, input_size, rnn_mode, input_mode, direction, num_proj
    )
    count = sum(len(p.shape) == 2 for p in pieces)
    for name, given, expected in (
        ("weights", weights, count),
        ("biases", biases, len(pieces) - count),
    ):
        check_list(op, name, given)
        if len(given) != expected:
            raise ValueError(f"{op}: {name} has {len(given)} arrays, expected {expected}")
    names = [f"weights[{n}]" for n in range(count)]
    names += [f"biases[{n}]" for n in range(len(pieces) - count)]
    return _pack(op, pieces, dict(zip(names, (*weights, *biases), strict=True)))


def _pack(op: str, pieces: list[Piece], arrays: Mapping[str, Array]) -> Array:
    """Return the packed vector of arrays that come in the order of the pieces."""
    xp, dtype = check_arrays(op, arrays)
    for (name, a), piece in zip(arrays.items(), pieces, strict=True):
        symbols = {
            "input": "(H, K)",
            "recurrent": "(H, P or H)",
            "projection": "(P, H)",
            "input_bias": "(H,)",
            "recurrent_bias": "(H,)",
        }[piece.kind]
        expect_shape(op, name, a, symbols, piece.shape)
    first = next(iter(arrays.values()))
    with on_device(xp, first):
        params: Array = xp.empty(pieces[-1].offset + pieces[-1].size, dtype)
        for a, piece in zip(arrays.values(), pieces, strict=True):
            params[piece.offset : piece.offset + piece.size] = a.reshape(piece.size)
    return params


class PackedParams(NamedTuple):
    """Packed parameters and the configuration they belong to."""

    params: Array
    num_layers: int
    num_units: int
    input_size: int
    rnn_mode: RNNMode
    direction: Direction
    num_proj: int


def _direction(D: int) -> Direction:
    return "bidirectional" if D == 2 else "unidirectional"


def params_from_torch(
    state_dict: Mapping[str, Array], *, rnn_mode: RNNMode = "lstm", prefix: str = ""
) -> PackedParams:
    """
    Pack the parameters of a torch.nn.LSTM, GRU or RNN.

    Parameters
    ----------
    state_dict : mapping of str to array
        By PyTorch's names, ``weight_ih_l0``, ``weight_hh_l0``, ``bias_ih_l0``, ``bias_hh_l0``,
        with ``_reverse`` for the second direction, and ``weight_hr_l0`` with a projection. Arrays,
        not tensors: ``{k: v.numpy() for k, v in module.state_dict().items()}``. Without biases
        (``bias=False``) they are zero. PyTorch has the gates in the same order.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    prefix : str
        What the names begin with inside a larger model, such as "encoder.rnn.".

    Returns
    -------
    PackedParams
        The packed vector, and the configuration read off the shapes.

    Raises
    ------
    TypeError
        An entry is no array, or the dtypes differ.
    ValueError
        A name is missing or unknown, or a shape does not fit the others.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> state = {"weight_ih_l0": np.ones((8, 3)), "weight_hh_l0": np.ones((8, 2))}
    >>> cupyrnn.params_from_torch(state)[1:4]
    (1, 2, 3)
    """
    op = "params_from_torch"
    check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    state = {k.removeprefix(prefix): a for k, a in state_dict.items() if k.startswith(prefix)}
    for name in ("weight_ih_l0", "weight_hh_l0"):
        if name not in state:
            raise ValueError(f"{op}: state_dict has no {prefix}{name}")
    xp, _ = check_arrays(op, {prefix + name: a for name, a in state.items()})
    G = len(GATES[rnn_mode])
    rows, I = expect_rank(op, f"{prefix}weight_ih_l0", state["weight_ih_l0"], "(G*H, K)")
    if rows % G:
        raise ValueError(
            f"{op}: {prefix}weight_ih_l0 has shape {(rows, I)}, expected (G*H, K) with G = {G}"
            f" for {rnn_mode}"
        )
    H, L = rows // G, sum(k.startswith("weight_ih_l") and k[11:].isdecimal() for k in state)
    D = 1 + ("weight_ih_l0_reverse" in state)
    P = 0
    if "weight_hr_l0" in state:
        P = expect_rank(op, f"{prefix}weight_hr_l0", state["weight_hr_l0"], "(P, H)")[0]
    pieces = layout(op, L, H, I, rnn_mode, "linear_input", _direction(D), P)
    arrays = dict(state)
    params = _zeros(xp, pieces, state["weight_ih_l0"])
    biased = any(name.startswith("bias") for name in state)
    for name, symbols, offset, shape in _torch_places(pieces, G):
        a = arrays.pop(name, None)
        if a is None and name.startswith("bias") and not biased:
            continue
        if a is None:
            raise ValueError(f"{op}: state_dict has no {prefix}{name}")
        expect_shape(op, prefix + name, a, symbols, shape)
        params[offset : offset + a.size] = a.reshape(a.size)
    if arrays:
        raise ValueError(f"{op}: state_dict has {prefix}{next(iter(arrays))}, which is no part")
    return PackedParams(params, L, H, I, rnn_mode, _direction(D), P)


def _torch_places(pieces: list[Piece], G: int) -> Iterator[tuple[str, str, int, tuple[int, ...]]]:
    """
    Yield PyTorch's name, the symbols of the shape, the offset and the shape.

    Its arrays are G pieces above each other.
    """
    kinds = {
        "input": ("weight_ih", "(G*H, K)"),
        "recurrent": ("weight_hh", "(G*H, P or H)"),
        "projection": ("weight_hr", "(P, H)"),
        "input_bias": ("bias_ih", "(G*H,)"),
        "recurrent_bias": ("bias_hh", "(G*H,)"),
    }
    first = [p for p in pieces if p.gate in ("", pieces[0].gate)]
    for p in first:
        kind, symbols = kinds[p.kind]
        name = f"{kind}_l{p.layer}" + "_reverse" * p.direction
        stacked = 1 if p.kind == "projection" else G
        yield name, symbols, p.offset, (stacked * p.shape[0], *p.shape[1:])


def params_to_torch(
    params: Array,
    num_layers: int,
    num_units: int,
    input_size: int,
    *,
    rnn_mode: RNNMode = "lstm",
    direction: Direction = "unidirectional",
    num_proj: int = 0,
) -> dict[str, Array]:
    """
    Return packed parameters as a torch.nn.LSTM, GRU or RNN names them.

    Parameters
    ----------
    params : [params_size]
        The packed parameters.
    num_layers, num_units, input_size, rnn_mode, direction, num_proj
        As in `cudnn_rnn_params_layout`. PyTorch has no skip_input.

    Returns
    -------
    dict of str to array
        Copies, for ``module.load_state_dict({k: torch.from_numpy(a) ...})``.

    Raises
    ------
    TypeError, ValueError
        As `cudnn_rnn_params_to_canonical`.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> state = cupyrnn.params_to_torch(np.arange(56.0), 1, 2, 3)
    >>> {name: a.shape for name, a in state.items() if "weight" in name}
    {'weight_ih_l0': (8, 3), 'weight_hh_l0': (8, 2)}
    """
    op = "params_to_torch"
    pieces = layout(
        op, num_layers, num_units, input_size, rnn_mode, "linear_input", direction, num_proj
    )
    xp, params = _check_params(op, params, pieces)
    state = {}
    with on_device(xp, params):
        for name, _, offset, shape in _torch_places(pieces, len(GATES[rnn_mode])):
            size = shape[0] * (*shape, 1)[1]
            state[name] = params[offset : offset + size].copy().reshape(shape)
    return state


# Where Keras has the gates of the packed order.
_KERAS_COLUMNS = {"lstm": (0, 1, 2, 3), "gru": (1, 0, 2)}


def params_from_keras(
    weights: Sequence[Array],
    *,
    rnn_mode: Literal["lstm", "gru"] = "lstm",
    direction: Direction = "unidirectional",
) -> PackedParams:
    """
    Pack the weights of Keras LSTM layers, or of GRU layers with ``reset_after=True``.

    Parameters
    ----------
    weights : sequence of arrays
        What ``layer.get_weights()`` gives, one layer after the other: kernel [K, G*H], recurrent
        kernel [H, G*H] and bias, [4*H] for an LSTM and [2, 3*H] for a GRU; of a Bidirectional
        layer the forward three and then the backward three.
    rnn_mode : {"lstm", "gru"}
        The cell.
    direction : {"unidirectional", "bidirectional"}
        Whether the layers are Bidirectional, with ``merge_mode="concat"``.

    Returns
    -------
    PackedParams
        The packed vector, and the configuration read off the shapes. An LSTM's one bias becomes
        the recurrent bias; the input bias is zero.

    Raises
    ------
    TypeError
        An entry is no array, or the dtypes differ.
    ValueError
        The arrays are not three per layer and direction, a shape does not fit, or a GRU's bias
        is that of ``reset_after=False``, which resets before the matmul as cuDNN's GRU does not.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.params_from_keras([np.ones((3, 8)), np.ones((2, 8)), np.ones(8)])
    >>> packed.num_units, packed.input_size
    (2, 3)
    """
    op = "params_from_keras"
    check_choice(op, "rnn_mode", rnn_mode, tuple(_KERAS_COLUMNS))
    check_choice(op, "direction", direction, _DIRECTIONS)
    D = 1 + (direction == "bidirectional")
    check_list(op, "weights", weights)
    if not weights or len(weights) % (3 * D):
        raise ValueError(
            f"{op}: weights has {len(weights)} arrays, expected 3 for each of the layers and"
            f" {D} direction(s): kernel, recurrent kernel, bias"
        )
    arrays = {f"weights[{n}]": a for n, a in enumerate(weights)}
    xp, _ = check_arrays(op, arrays)
    columns = _KERAS_COLUMNS[rnn_mode]
    G, L = len(columns), len(weights) // (3 * D)
    I = expect_rank(op, "weights[0]", weights[0], "(K, G*H)")[0]
    H = expect_rank(op, "weights[1]", weights[1], "(H, G*H)")[0]
    pieces = layout(op, L, H, I, rnn_mode, "linear_input", direction, 0)
    params = _zeros(xp, pieces, weights[0])
    for p in pieces:
        base = 3 * (p.layer * D + p.direction)
        column = columns[GATES[rnn_mode].index(p.gate)]
        gate = slice(column * H, (column + 1) * H)
        target = params[p.offset : p.offset + p.size]
        if len(p.shape) == 2:
            n = base + (p.kind == "recurrent")
            symbols = "(H, G*H)" if p.kind == "recurrent" else "(K, G*H)"
            expect_shape(op, f"weights[{n}]", weights[n], symbols, (p.shape[1], G * H))
            target[...] = weights[n][:, gate].T.reshape(p.size)
            continue
        n, bias = base + 2, weights[base + 2]
        if rnn_mode == "lstm":
            expect_shape(op, f"weights[{n}]", bias, "(4*H,)", (4 * H,))
            if p.kind == "recurrent_bias":
                target[...] = bias[gate]
        else:
            if bias.shape == (3 * H,):
                raise ValueError(
                    f"{op}: weights[{n}] has shape {bias.shape}, expected (2, 3*H) = {(2, 3 * H)}:"
                    " a GRU with reset_after=False resets before the matmul, which is not the GRU"
                    " of cuDNN"
                )
            expect_shape(op, f"weights[{n}]", bias, "(2, 3*H)", (2, 3 * H))
            target[...] = bias[int(p.kind == "recurrent_bias"), gate]
    return PackedParams(params, L, H, I, rnn_mode, direction, 0)


def params_to_keras(
    params: Array,
    num_layers: int,
    num_units: int,
    input_size: int,
    *,
    rnn_mode: Literal["lstm", "gru"] = "lstm",
    direction: Direction = "unidirectional",
) -> list[Array]:
    """
    Return packed parameters as Keras LSTM layers, or GRU layers with ``reset_after=True``, do.

    Parameters
    ----------
    params : [params_size]
        The packed parameters.
    num_layers, num_units, input_size : int
        L, H and I.
    rnn_mode : {"lstm", "gru"}
        The cell.
    direction : {"unidirectional", "bidirectional"}
        Whether the layers are Bidirectional.

    Returns
    -------
    list of arrays
        Kernel, recurrent kernel and bias of each layer and direction, for
        ``layer.set_weights(...)``. An LSTM's bias is the sum of the two packed ones.

    Raises
    ------
    TypeError, ValueError
        As `cudnn_rnn_params_to_canonical`.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> [a.shape for a in cupyrnn.params_to_keras(np.arange(56.0), 1, 2, 3)]
    [(3, 8), (2, 8), (8,)]
    """
    op = "params_to_keras"
    check_choice(op, "rnn_mode", rnn_mode, tuple(_KERAS_COLUMNS))
    pieces = layout(op, num_layers, num_units, input_size, rnn_mode, "linear_input", direction, 0)
    xp, params = _check_params(op, params, pieces)
    columns = _KERAS_COLUMNS[rnn_mode]
    G, H, D = len(columns), pieces[0].shape[0], 1 + (direction == "bidirectional")
    arrays: list[Array] = []
    with on_device(xp, params):
        for p in pieces:
            if p.kind == "input" and p.gate == GATES[rnn_mode][0]:
                arrays.append(xp.empty((p.shape[1], G * H), params.dtype))
                arrays.append(xp.empty((H, G * H), params.dtype))
                arrays.append(xp.zeros((2, G * H), params.dtype))
        for p in pieces:
            base = 3 * (p.layer * D + p.direction)
            column = columns[GATES[rnn_mode].index(p.gate)]
            gate = slice(column * H, (column + 1) * H)
            value = params[p.offset : p.offset + p.size].reshape(p.shape)
            if len(p.shape) == 2:
                arrays[base + (p.kind == "recurrent")][:, gate] = value.T
            else:
                arrays[base + 2][int(p.kind == "recurrent_bias"), gate] = value
        if rnn_mode == "lstm":
            arrays = [
                a.sum(axis=0, dtype=a.dtype) if n % 3 == 2 else a for n, a in enumerate(arrays)
            ]
    return arrays


class BlockLSTMParams(NamedTuple):
    """The weights [I+H, 4*H] and the bias [4*H] of `block_lstm`."""

    w: Array
    b: Array


# Where the columns of w have the gates of the packed order.
_BLOCK_COLUMNS = {"icfo": (0, 2, 1, 3), "ifco": (0, 1, 2, 3)}


def params_from_block_lstm(
    w: Array,
    b: Array,
    *,
    forget_bias: float,
    cell_clip: float,
    gate_order: GateOrder = "icfo",
    wci: Array | None = None,
    wcf: Array | None = None,
    wco: Array | None = None,
) -> PackedParams:
    """
    Pack the weights of `block_lstm`, where its math is that of CudnnRNN.

    Parameters
    ----------
    w : [I+H, 4*H]
        The weights.
    b : [4*H]
        The bias; with `forget_bias` it becomes the recurrent bias, the input bias is zero.
    forget_bias, cell_clip : float
        Those of the block op, which have defaults there; here they must be said.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b.
    wci, wcf, wco : optional
        Refused if given: CudnnRNN has no peepholes.

    Returns
    -------
    PackedParams
        One unidirectional layer.

    Raises
    ------
    TypeError
        w or b is no array, or their dtypes differ.
    ValueError
        A shape does not fit, or CudnnRNN cannot do the same: with peepholes or with a clip.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.params_from_block_lstm(
    ...     np.ones((5, 8)), np.ones(8), forget_bias=1.0, cell_clip=0
    ... )
    >>> packed.params.shape
    (56,)
    """
    op = "params_from_block_lstm"
    xp, _ = check_arrays(op, {"w": w, "b": b})
    check_choice(op, "gate_order", gate_order, tuple(_BLOCK_COLUMNS))
    for name, a in (("wci", wci), ("wcf", wcf), ("wco", wco)):
        if a is not None:
            raise ValueError(f"{op}: {name} is given, but CudnnRNN has no peepholes")
    if check_real(op, "cell_clip", cell_clip) > 0:
        raise ValueError(f"{op}: cell_clip is {cell_clip}, but CudnnRNN does not clip")
    rows, columns = expect_rank(op, "w", w, "(I+H, 4*H)")
    H = columns // 4
    if columns % 4 or rows <= H:
        raise ValueError(f"{op}: w has shape {w.shape}, expected (I+H, 4*H)")
    expect_shape(op, "b", b, "(4*H,)", (4 * H,))
    I = rows - H
    pieces = layout(op, 1, H, I, "lstm", "linear_input", "unidirectional", 0)
    params = _zeros(xp, pieces, w)
    for p in pieces:
        column = _BLOCK_COLUMNS[gate_order][GATES["lstm"].index(p.gate)]
        gate = slice(column * H, (column + 1) * H)
        target = params[p.offset : p.offset + p.size]
        if len(p.shape) == 2:
            half = w[:I] if p.kind == "input" else w[I:]
            target[...] = half[:, gate].T.reshape(p.size)
        elif p.kind == "recurrent_bias":
            target[...] = b[gate]
            if p.gate == "f":
                target += check_real(op, "forget_bias", forget_bias)
    return PackedParams(params, 1, H, I, "lstm", "unidirectional", 0)


def params_to_block_lstm(
    params: Array, num_units: int, input_size: int, *, gate_order: GateOrder = "icfo"
) -> BlockLSTMParams:
    """
    Return the packed parameters of one LSTM layer as `block_lstm` takes them.

    Call it with ``forget_bias=0`` and ``cell_clip=0``: CudnnRNN has neither.

    Parameters
    ----------
    params : [params_size]
        The packed parameters of one unidirectional layer without projection.
    num_units, input_size : int
        H and I.
    gate_order : {"icfo", "ifco"}
        The order of the gates in the result.

    Returns
    -------
    BlockLSTMParams
        w [I+H, 4*H] and b [4*H], the sum of the two packed biases.

    Raises
    ------
    TypeError, ValueError
        As `cudnn_rnn_params_to_canonical`.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> w, b = cupyrnn.params_to_block_lstm(np.arange(56.0), 2, 3)
    >>> w.shape, b.shape
    ((5, 8), (8,))
    """
    op = "params_to_block_lstm"
    check_choice(op, "gate_order", gate_order, tuple(_BLOCK_COLUMNS))
    pieces = layout(op, 1, num_units, input_size, "lstm", "linear_input", "unidirectional", 0)
    xp, params = _check_params(op, params, pieces)
    H, I = pieces[0].shape
    with on_device(xp, params):
        w, b = xp.empty((I + H, 4 * H), params.dtype), xp.zeros(4 * H, params.dtype)
        for p in pieces:
            column = _BLOCK_COLUMNS[gate_order][GATES["lstm"].index(p.gate)]
            gate = slice(column * H, (column + 1) * H)
            value = params[p.offset : p.offset + p.size].reshape(p.shape)
            if p.kind == "input":
                w[:I, gate] = value.T
            elif p.kind == "recurrent":
                w[I:, gate] = value.T
            else:
                b[gate] += value
    return BlockLSTMParams(w, b)
