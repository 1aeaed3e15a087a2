"""
Weights with separate arrays for each gate: converted to packed parameters and block weights, and
back.

Core ML, TensorFlow Lite, madmom and Haiku store weights in this form. Use it for weights that have
no converter of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from .._typing import Array
from ..arithmetic.gates import RecurrentActivation
from ..cells.block_forms import LSTM_FORM
from ..cells.block_weights import BlockGRUParams, PeepholeLSTMParams
from ..cells.packed import DIRECTIONS, GATE_ORDERS, GATES, Direction, LayerParams, RNNMode
from ..checks.arrays import on_device
from ..checks.attributes import check_bool, check_choice, check_count, check_list, shown, type_shown
from ..checks.calls import expect_rank, expect_shape
from ..derivatives.traced import traceable
from . import forms
from .packed import PackedParams, assembled, check_activation
from .params import check_net

_PEEPHOLES = ("i", "f", "o")
_ICFO = GATE_ORDERS["icfo"]["lstm"]


class Gate(NamedTuple):
    """
    The weights of one gate.

    Attributes
    ----------
    input : [H, K]
        The matrix of the input.
    recurrent : [H, P]
        The matrix of the state; P is H without a projection.
    bias : [H] or None
        The bias added to the product with the input.
    recurrent_bias : [H] or None
        The bias added to the product with the state. In a GRU's gate c, r multiplies it too.
    peephole : [H] or None
        The peephole weights, which multiply the cell state in i, f and o of an LSTM.
    """

    input: Array
    recurrent: Array
    bias: Array | None = None
    recurrent_bias: Array | None = None
    peephole: Array | None = None


def _named(op: str, gates: object, argument: str, names: Sequence[str]) -> dict[str, object]:
    """Check the gates of a layer and direction; return their arrays by the names in errors."""
    if not isinstance(gates, Mapping):
        raise TypeError(f"{op}: {argument} is {type_shown(gates)}, expected a mapping to Gates")
    if {*gates} != {*names}:
        raise ValueError(
            f"{op}: {argument} has the gates {shown([*gates])}, expected {', '.join(names)}"
        )
    arrays: dict[str, object] = {}
    for name in names:
        gate = gates[name]
        if not isinstance(gate, (tuple, list)) or not 2 <= len(gate) <= 5:
            raise TypeError(f"{op}: {argument}[{name!r}] is {shown(gate)}, expected a Gate")
        for field, a in zip(Gate._fields, gate, strict=False):
            if a is not None or field in ("input", "recurrent"):
                arrays[f"{argument}[{name!r}].{field}"] = a
    return arrays


def _mode(op: str, gates: Sequence[object], rnn_mode: object) -> RNNMode:
    """Return rnn_mode, or the cell whose gates have these names."""
    if rnn_mode is not None:
        return check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    first = gates[0]
    if isinstance(first, Mapping) and {*first} == {"h"}:
        raise forms.unclear_rnn(op, "the gate h does")
    is_gru = isinstance(first, Mapping) and {*first} == {*GATES["gru"]}
    return "gru" if is_gru else "lstm"


def _oriented_arrays(
    op: str, tensors: Mapping[str, object], transposed: bool | None
) -> tuple[ModuleType, dict[str, Array]]:
    """Return the module and the arrays, matrices as [H, K]."""
    if transposed is not None:
        check_bool(op, "transposed", transposed)
    xp, arrays = forms.as_arrays(op, tensors)
    shapes = [a.shape for a in arrays.values() if a.ndim == 2]
    if transposed is None and shapes and all(rows == columns for rows, columns in shapes):
        raise ValueError(
            f"{op}: transposed is None, expected True or False: all matrices are square, which"
            " shows no order of their axes"
        )
    return xp, {name: a.T if transposed and a.ndim == 2 else a for name, a in arrays.items()}


@traceable
def params_from_gates(
    gates: Sequence[Mapping[str, Sequence[object]]],
    *,
    projections: Sequence[object] | None = None,
    rnn_mode: RNNMode | None = None,
    direction: Direction | None = None,
    recurrent_activation: RecurrentActivation = "sigmoid",
    transposed: bool | None = None,
    reset_after: bool | None = None,
) -> PackedParams | Any:  # a list of BlockGRUParams; a union would need a test in every typed call
    """
    Convert weights that have separate arrays for each gate.

    Parameters
    ----------
    gates : sequence of mappings of str to Gate
        One mapping for each of the L*D layers and directions, in the order layer 0 forward, layer 0
        backward, layer 1 forward and so on. Its keys are i, f, ci and o for an LSTM, r, u and c for
        a GRU, h for an RNN. A Gate, or a plain tuple, holds input [H, K], recurrent [H, P], bias
        [H] and recurrent_bias [H]; a missing bias, or None, is zero. K is I in the first layer and
        D*P in the others. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    projections : sequence of [P, H], optional
        The projection of each layer and direction of an LSTM. Without projections, P is H.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell. It follows from the names of the gates, except an RNN's activation.
    direction : {"unidirectional", "bidirectional"}, optional
        D is 1, the default, or 2. It is required where two layers and one bidirectional layer have
        the same shapes.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates: see `cudnn_rnn`.
    transposed : bool, optional
        If True, the matrices are [K, H], [P, H] and [H, P]; by default they are not. It is required
        if all matrices are square.
    reset_after : bool, optional
        For a GRU, where it is required: whether r multiplies the state's product, as in cuDNN's
        GRU, or the state before it.

    Returns
    -------
    PackedParams or list of BlockGRUParams
        The packed vector, in the widest of the dtypes, and the configuration that follows from the
        shapes. GRUs that reset before the product become a list of weights of `block_gru`, one for
        each layer and direction, as `stacked_rnn` takes it; two biases are added.

    Raises
    ------
    TypeError
        An argument has a wrong type, or a weight is not an array, does not have a floating dtype,
        or is on another device than the first.
    ValueError
        A gate is missing or unknown, a shape does not fit the others, there are peepholes, which
        CudnnRNN does not have, or the arrays do not show something that only an argument can say.

    See Also
    --------
    params_to_gates : The inverse.
    block_lstm_from_gates : With peepholes.
    reverse_update_gate : GRUs whose u is the weight of the new value, not of the old state.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> gate = cupyrnn.weights.Gate(np.ones((2, 3)), np.ones((2, 2)), np.zeros(2))
    >>> packed = cupyrnn.weights.params_from_gates(
    ...     [{"r": gate, "u": gate, "c": gate}], reset_after=True
    ... )
    >>> packed[1:5]
    (1, 2, 3, 'gru')
    """
    op = "params_from_gates"
    check_list(op, "gates", gates, "mappings to Gates")
    if direction is not None:
        check_choice(op, "direction", direction, DIRECTIONS)
    D = 1 + (direction == "bidirectional")
    check_count(op, "gates", gates, gates and len(gates) % D == 0, f"L*D with D = {D}")
    mode = _mode(op, gates, rnn_mode)
    check_activation(op, mode, recurrent_activation)
    why = "whether r multiplies the product with the state, or the state"
    before = forms.resets_before(op, mode, reset_after, recurrent_activation, why)
    tensors: dict[str, object] = {}
    for n, layer_gates in enumerate(gates):
        tensors |= _named(op, layer_gates, f"gates[{n}]", GATES[mode])
    if projections is not None:
        check_list(op, "projections", projections)
        LD = len(gates)
        check_count(op, "projections", projections, len(projections) == LD, f"L*D = {LD}")
        tensors |= {f"projections[{n}]": a for n, a in enumerate(projections)}
    xp, arrays = _oriented_arrays(op, tensors, transposed)
    first = f"gates[0][{GATES[mode][0]!r}]"
    H, I = expect_rank(op, f"{first}.input", arrays[f"{first}.input"], "(H, K)")
    P = 0
    if projections is not None:
        P = expect_rank(op, "projections[0]", arrays["projections[0]"], "(P, H)")[0]
    net = check_net(op, len(gates) // D, H, I, mode, "linear_input", DIRECTIONS[D - 1], P)
    checked: list[list[Gate]] = []
    for n in range(len(gates)):
        K = I if n < D else D * net.P
        names = [f"gates[{n}][{name!r}]" for name in GATES[mode]]
        checked.append([_gate(op, name, arrays, ("K", K), H, net.P) for name in names])
        for name, gate in zip(names, checked[n], strict=True):
            if gate.peephole is not None:
                why = "which CudnnRNN does not have; use block_lstm_from_gates"
                raise ValueError(f"{op}: {name} has a peephole, {why}")
        expect_shape(op, f"projections[{n}]", arrays.get(f"projections[{n}]"), "(P, H)", (P, H))

    if direction is None and len(gates) == 2 and net.P == I:
        raise forms.unclear_direction(op, I)
    if before:
        with on_device(xp, arrays[f"{first}.input"]):
            return [forms.gru_of(xp, _stacked(xp, layer_gates)) for layer_gates in checked]
    parts = (
        _stacked(xp, layer_gates)._replace(projection=arrays.get(f"projections[{n}]"))
        for n, layer_gates in enumerate(checked)
    )
    return assembled(op, xp, net, next(iter(arrays.values())), parts, recurrent_activation)


def _gate(
    op: str, name: str, arrays: Mapping[str, Array], inputs: tuple[str, int], H: int, P: int
) -> Gate:
    """Return the gate whose arrays begin with this name, and check their shapes."""
    gate = Gate(*(arrays.get(f"{name}.{field}") for field in Gate._fields))
    symbol, K = inputs
    shapes = {"input": (f"(H, {symbol})", (H, K))}
    shapes["recurrent"] = ("(H, H)" if P == H else "(H, P)", (H, P))
    for field, a in gate._asdict().items():
        expect_shape(op, f"{name}.{field}", a, *shapes.get(field, ("(H,)", (H,))))
    return gate


def _stacked(xp: ModuleType, gates: Sequence[Gate]) -> LayerParams:
    """Stack the arrays of all gates of a layer; None becomes zeros."""
    zero = xp.zeros(len(gates[0].input), gates[0].input.dtype)
    input, recurrent, *biases = (
        xp.stack([zero if a is None else a for a in arrays])
        for arrays in list(zip(*gates, strict=True))[:4]
    )
    return LayerParams(input, recurrent, None, biases[0], biases[1])


@traceable
def params_to_gates(
    params: PackedParams | BlockGRUParams | Sequence[BlockGRUParams], *, gradient: bool = False
) -> list[dict[str, Gate]]:
    """
    Convert weights to separate arrays for each gate.

    Parameters
    ----------
    params : PackedParams, BlockGRUParams or sequence of BlockGRUParams
        What `params_from_gates` returns: packed parameters without projection, or weights of
        `block_gru`. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    gradient : bool
        Whether params holds a gradient: ``packed._replace(params=grads.params_backprop)``. It is
        converted as the parameters are, with both biases.

    Returns
    -------
    list of dict of str to Gate
        The gates of each of the L*D layers and directions by name, with all biases: copies.
        `params_from_gates` inverts this; pass it the net's `recurrent_activation` too.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type, an array has a wrong shape, or the net has a projection or
        skip_input. For such nets use `cudnn_rnn_params_to_canonical`.

    Examples
    --------
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=2, num_units=3, input_size=4)
    >>> for gates in cupyrnn.weights.params_to_gates(packed):
    ...     print(list(gates), gates["f"].input.shape)
    ['i', 'f', 'ci', 'o'] (3, 4)
    ['i', 'f', 'ci', 'o'] (3, 3)
    """
    op = "params_to_gates"
    xp, mode, _, like, places = forms.opened(op, params, "this form", gradient)
    with on_device(xp, like):
        return [_as_gates(GATES[mode], place) for place in places]


def _as_gates(names: Sequence[str], layer: LayerParams) -> dict[str, Gate]:
    """Return copies of a layer's input and recurrent matrices and biases, gate by gate."""
    arrays = [a for a in (*layer[:2], *layer[3:5]) if a is not None]
    return {name: Gate(*(a[g].copy() for a in arrays)) for g, name in enumerate(names)}


@traceable
def block_lstm_from_gates(
    gates: Mapping[str, Sequence[object]], *, transposed: bool | None = None
) -> PeepholeLSTMParams:
    """
    Convert an LSTM with separate arrays for each gate to weights of `block_lstm`.

    Parameters
    ----------
    gates : mapping of str to Gate
        The gates i, ci, f and o. Each holds input [H, I], recurrent [H, H], bias, recurrent_bias
        and peephole [H]; a missing one of the last three, or None, is zero. Either i, f and o all
        have peepholes or none has; ci never has one. Complex arrays hold values and tangents, see
        `cupyrnn.jvp`.
    transposed : bool, optional
        If True, the matrices are transposed, [I, H] and [H, H], as in madmom; by default they are
        not. It is required if I = H.

    Returns
    -------
    PeepholeLSTMParams
        w [I+H, 4*H], b [4*H], the sums of the biases, and wci, wcf, wco [H] or None, in the widest
        of the dtypes; gates in the order "icfo". If the framework adds a forget bias at run time,
        add it to the bias of f. Call `block_lstm` with ``forget_bias=0``, and with ``cell_clip=0``
        if the framework does not clip.

    Raises
    ------
    TypeError
        An argument has a wrong type, or a weight is not an array, does not have a floating dtype,
        or is on another device than the first.
    ValueError
        A gate or a peephole is missing or unknown, or a shape does not fit the others.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> gate = cupyrnn.weights.Gate(np.ones((2, 3)), np.ones((2, 2)), np.zeros(2), None, np.ones(2))
    >>> gates = {"i": gate, "f": gate, "ci": gate._replace(peephole=None), "o": gate}
    >>> weights = cupyrnn.weights.block_lstm_from_gates(gates)
    >>> weights.w.shape, weights.wci.shape
    ((5, 8), (2,))
    """
    op = "block_lstm_from_gates"
    xp, arrays = _oriented_arrays(op, _named(op, gates, "gates", _ICFO), transposed)
    H, I = expect_rank(op, "gates['i'].input", arrays["gates['i'].input"], "(H, I)")
    if not H or not I:
        raise ValueError(
            f"{op}: gates['i'].input has shape {(H, I)}, expected (H, I), neither of them 0"
        )
    four = [_gate(op, f"gates[{name!r}]", arrays, ("I", I), H, H) for name in _ICFO]
    peepholes = {n: gate.peephole for n, gate in zip(_ICFO, four, strict=True)}
    if peepholes.pop("ci") is not None:
        raise ValueError(f"{op}: gates['ci'] has a peephole, expected one in i, f and o only")
    present = [name for name in _PEEPHOLES if peepholes[name] is not None]
    if present and len(present) < 3:
        missing = next(name for name in _PEEPHOLES if name not in present)
        raise ValueError(f"{op}: gates[{missing!r}] has no peephole, but gates[{present[0]!r}] has")
    with on_device(xp, four[0].input):
        diagonals = [peepholes[name] for name in present] or None
        return forms.lstm_of(xp, _stacked(xp, four)._replace(peepholes=diagonals))


@traceable
def block_lstm_to_gates(
    w: Array, b: Array, wci: Array | None = None, wcf: Array | None = None, wco: Array | None = None
) -> dict[str, Gate]:
    """
    Convert weights of `block_lstm` to separate arrays for each gate.

    Parameters
    ----------
    w, b : [I+H, 4*H], [4*H]
        The weights and the bias, gates in the order "icfo". Complex arrays hold values and
        tangents, see `cupyrnn.jvp`.
    wci, wcf, wco : [H], optional
        The peepholes: all or none.

    Returns
    -------
    dict of str to Gate
        i, ci, f and o, with peepholes if there are any. They are copies.

    Raises
    ------
    TypeError, ValueError
        An argument is not an array, or a shape does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> gates = cupyrnn.weights.block_lstm_to_gates(np.ones((5, 8)), np.ones(8))
    >>> gates["ci"].input.shape, gates["ci"].recurrent.shape
    ((2, 3), (2, 2))
    """
    op = "block_lstm_to_gates"
    weights = {"w": w, "b": b, "wci": wci, "wcf": wcf, "wco": wco}
    xp, _, _ = forms.check_block(op, LSTM_FORM, weights)
    with on_device(xp, w):
        layer = forms.layer_of_lstm(xp, w, b, wci, wcf, wco)
        gates = _as_gates(_ICFO, layer)
        for name, a in zip(_PEEPHOLES, () if wci is None else layer.peepholes, strict=False):
            gates[name] = gates[name]._replace(peephole=a.copy())
        return gates
