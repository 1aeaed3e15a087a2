"""
Weights with separate arrays for each gate: conversion to packed parameters and block weights, and
back.

Core ML, TensorFlow Lite, madmom and Haiku store them in this form. Weights for which there is no
converter can be brought into it by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .._arrays import (
    check_bool,
    check_choice,
    check_list,
    contiguous,
    counted,
    expect_rank,
    expect_shape,
    on_device,
    shown,
    type_shown,
)
from ..arithmetic.gates import check_gate
from ..derivatives.traced import traceable
from .forms import (
    BlockGRUParams,
    PeepholeLSTMParams,
    as_arrays,
    by_gate,
    check_block_gru,
    check_block_lstm,
    refuse,
    side_by_side,
)
from .packed import PackedParams, check_activation, check_model
from .params import DIRECTIONS, GATES, check_net, layers, zeros

if TYPE_CHECKING:
    from types import ModuleType

    from .._arrays import Array
    from ..arithmetic.gates import RecurrentActivation
    from .params import Direction, RNNMode

_PEEPHOLES = {"i": "wci", "f": "wcf", "o": "wco"}
_ICFO = ("i", "ci", "f", "o")


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
        The bias of the input's product.
    recurrent_bias : [H] or None
        The bias of the state's product. In a GRU's gate c, r multiplies it too.
    peephole : [H] or None
        The peephole weights: they multiply the cell state in i, f and o of an LSTM.
    """

    input: Array
    recurrent: Array
    bias: Array | None = None
    recurrent_bias: Array | None = None
    peephole: Array | None = None


def _named(op: str, gates: Any, n: int, names: Sequence[str]) -> dict[str, Any]:
    """Check the gates of a layer and direction; return their arrays by the names in errors."""
    what = f"gates[{n}]" if n >= 0 else "gates"
    if not isinstance(gates, Mapping):
        raise TypeError(f"{op}: {what} is {type_shown(gates)}, expected a mapping to Gates")
    if {*gates} != {*names}:
        raise ValueError(
            f"{op}: {what} has the gates {shown([*gates])}, expected {', '.join(names)}"
        )
    arrays: dict[str, Any] = {}
    for name in names:
        gate = gates[name]
        if not isinstance(gate, (tuple, list)) or not 2 <= len(gate) <= 5:
            raise TypeError(f"{op}: {what}[{name!r}] is {shown(gate)}, expected a Gate")
        for field, a in zip(Gate._fields, gate, strict=False):
            if a is not None or field in ("input", "recurrent"):
                arrays[f"{what}[{name!r}].{field}"] = a
    return arrays


def _mode(op: str, gates: Any, rnn_mode: Any) -> Any:
    """Return the cell that has gates of these names."""
    if rnn_mode is not None:
        return check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    first = gates[0]
    if isinstance(first, Mapping) and {*first} == {"h"}:
        raise ValueError(
            f"{op}: rnn_mode is left out, and the gate h does not tell rnn_tanh from rnn_relu: say"
            " which"
        )
    is_gru = isinstance(first, Mapping) and {*first} == {*GATES["gru"]}
    return "gru" if is_gru else "lstm"


def _matrices(a: Array, transposed: bool) -> Array:
    return a.T if transposed and a.ndim == 2 else a


@traceable
def params_from_gates(
    gates: Sequence[Mapping[str, Sequence[Any]]],
    *,
    projections: Sequence[Any] | None = None,
    rnn_mode: RNNMode | None = None,
    direction: Direction = "unidirectional",
    recurrent_activation: RecurrentActivation = "sigmoid",
    transposed: bool = False,
) -> PackedParams:
    """
    Pack weights that have separate arrays for each gate.

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
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates: see `cudnn_rnn`.
    transposed : bool
        If True, the matrices are [K, H], [P, H] and [H, P].

    Returns
    -------
    PackedParams
        The packed vector, in the widest of the dtypes, and the configuration that follows from the
        shapes.

    Raises
    ------
    TypeError
        An argument has a wrong type, or an array is not an array, does not have a floating dtype,
        or is on another device than the first.
    ValueError
        A gate is missing or unknown, a shape does not fit the others, or there are peepholes, which
        CudnnRNN does not have.

    See Also
    --------
    params_to_gates : The inverse.
    block_lstm_from_gates : With peepholes.
    reverse_update_gate : GRUs whose u says how much of the new value is taken.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> gate = cupyrnn.Gate(np.ones((2, 3)), np.ones((2, 2)), np.zeros(2))
    >>> packed = cupyrnn.params_from_gates([{"r": gate, "u": gate, "c": gate}])
    >>> packed[1:5]
    (1, 2, 3, 'gru')
    """
    op = "params_from_gates"
    check_list(op, "gates", gates, "mappings to Gates")
    D = 1 + (check_choice(op, "direction", direction, DIRECTIONS) == "bidirectional")
    turned = check_bool(op, "transposed", transposed)
    check_gate(op, recurrent_activation)
    if not gates or len(gates) % D:
        raise ValueError(
            f"{op}: gates has {counted(len(gates), 'entry')}, expected L*D with D = {D}"
        )
    mode = _mode(op, gates, rnn_mode)
    check_activation(op, mode, recurrent_activation)
    given: dict[str, Any] = {}
    for n, of_layer in enumerate(gates):
        given |= _named(op, of_layer, n, GATES[mode])
    if projections is not None:
        check_list(op, "projections", projections)
        if len(projections) != len(gates):
            raise ValueError(
                f"{op}: projections has {counted(len(projections), 'entry')}, expected L*D ="
                f" {len(gates)}"
            )
        given |= {f"projections[{n}]": a for n, a in enumerate(projections)}
    xp, arrays = as_arrays(op, given)
    arrays = {name: _matrices(a, turned) for name, a in arrays.items()}
    first = f"gates[0][{GATES[mode][0]!r}]"
    H, I = expect_rank(op, f"{first}.input", arrays[f"{first}.input"], "(H, K)")
    P = 0
    if projections is not None:
        P = expect_rank(op, "projections[0]", arrays["projections[0]"], "(P, H)")[0]
    net = check_net(op, len(gates) // D, H, I, mode, "linear_input", direction, P)
    for n in range(len(gates)):
        K = I if n < D else D * net.P
        for name in GATES[mode]:
            _check_gate(op, f"gates[{n}][{name!r}]", arrays, H, K, net.P)
        if P:
            expect_shape(op, f"projections[{n}]", arrays[f"projections[{n}]"], "(P, H)", (P, H))
    params = zeros(op, xp, net, next(iter(arrays.values())))
    with on_device(xp, params):
        for n, place in enumerate(layers(params, net)):
            for g, name in enumerate(GATES[mode]):
                whole = f"gates[{n}][{name!r}]"
                place.input[g] = arrays[f"{whole}.input"]
                place.recurrent[g] = arrays[f"{whole}.recurrent"]
                for field, bias in (
                    ("bias", place.input_bias),
                    ("recurrent_bias", place.recurrent_bias),
                ):
                    if f"{whole}.{field}" in arrays:
                        bias[g] = arrays[f"{whole}.{field}"]
            if place.projection is not None:
                place.projection[...] = arrays[f"projections[{n}]"]
    return PackedParams(
        params, net.L, H, I, mode, direction, P, recurrent_activation=recurrent_activation
    )


def _check_gate(op: str, name: str, arrays: Mapping[str, Array], H: int, K: int, P: int) -> None:
    """Check the shapes of a gate without peepholes."""
    expect_shape(op, f"{name}.input", arrays[f"{name}.input"], "(H, K)", (H, K))
    symbols = "(H, H)" if P == H else "(H, P)"
    expect_shape(op, f"{name}.recurrent", arrays[f"{name}.recurrent"], symbols, (H, P))
    for field in ("bias", "recurrent_bias"):
        expect_shape(op, f"{name}.{field}", arrays.get(f"{name}.{field}"), "(H,)", (H,))
    if f"{name}.peephole" in arrays:
        raise ValueError(
            f"{op}: {name} has a peephole, which CudnnRNN does not have; block_lstm_from_gates"
            " takes it"
        )


@traceable
def params_to_gates(
    params: Array | PackedParams,
    num_layers: int | None = None,
    num_units: int | None = None,
    input_size: int | None = None,
    *,
    rnn_mode: RNNMode | None = None,
    direction: Direction | None = None,
) -> list[dict[str, Gate]]:
    """
    Return packed parameters as separate arrays for each gate.

    Parameters
    ----------
    params : [params_size] or PackedParams
        The packed parameters of a net without projection, or a gradient of them. Complex arrays
        hold values and tangents, see `cupyrnn.jvp`.
    num_layers, num_units, input_size : int, optional
        L, H and I; a PackedParams determines them and the next two.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell; "lstm" by default.
    direction : {"unidirectional", "bidirectional"}, optional
        D is 1, the default, or 2.

    Returns
    -------
    list of dict of str to Gate
        The gates of each of the L*D layers and directions by name, with both biases. They are
        copies, in the form that `params_from_gates` takes, beside the net's `recurrent_activation`.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or is out of range, an argument contradicts a PackedParams,
        params is not an array of the right length, or the net has a projection or skip_input; for
        these use `cudnn_rnn_params_to_canonical`.

    Examples
    --------
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=2, num_units=3, input_size=4)
    >>> for gates in cupyrnn.params_to_gates(packed):
    ...     print(list(gates), gates["f"].input.shape)
    ['i', 'f', 'ci', 'o'] (3, 4)
    ['i', 'f', 'ci', 'o'] (3, 3)
    """
    op = "params_to_gates"
    xp, net, vector = check_model(
        op, params, num_layers, num_units, input_size, rnn_mode=rnn_mode, direction=direction
    )
    refuse(op, "this form", net)
    with on_device(xp, vector):
        return [
            {
                name: Gate(
                    place.input[g].copy(),
                    place.recurrent[g].copy(),
                    place.input_bias[g].copy(),
                    place.recurrent_bias[g].copy(),
                )
                for g, name in enumerate(GATES[net.rnn_mode])
            }
            for place in layers(vector, net)
        ]


def _one_cell(
    op: str, gates: Any, names: Sequence[str], transposed: object
) -> tuple[ModuleType, dict[str, Gate], int]:
    """Check the gates of one cell of the block ops; return module, gates and H."""
    turned = check_bool(op, "transposed", transposed)
    xp, arrays = as_arrays(op, _named(op, gates, -1, names))
    arrays = {name: _matrices(a, turned) for name, a in arrays.items()}
    first = f"gates[{names[0]!r}].input"
    H, I = expect_rank(op, first, arrays[first], "(H, I)")
    if not H or not I:
        raise ValueError(f"{op}: {first} has shape {(H, I)}, expected (H, I), neither of them 0")
    found: dict[str, Gate] = {}
    for name in names:
        whole = f"gates[{name!r}]"
        values = {field: arrays.get(f"{whole}.{field}") for field in Gate._fields}
        for field, symbols, shape in (
            ("input", "(H, I)", (H, I)),
            ("recurrent", "(H, H)", (H, H)),
            *((vector, "(H,)", (H,)) for vector in Gate._fields[2:]),
        ):
            expect_shape(op, f"{whole}.{field}", values[field], symbols, shape)
        found[name] = Gate(**values)
    return xp, found, H


def _bias(xp: ModuleType, gate: Gate, H: int) -> Array:
    """Return the sum of a gate's biases."""
    total: Array = xp.zeros(H, gate.input.dtype)
    for b in (gate.bias, gate.recurrent_bias):
        total = total if b is None else total + b
    return total


def _rows(xp: ModuleType, gates: Sequence[Gate]) -> Array:
    """Return the matrices of gates as the block ops have them: [I+H, G*H]."""
    parts = [
        side_by_side(xp.stack([getattr(gate, n) for gate in gates])) for n in ("input", "recurrent")
    ]
    joined: Array = xp.concatenate(parts)
    return joined


@traceable
def block_lstm_from_gates(
    gates: Mapping[str, Sequence[Any]], *, transposed: bool = False
) -> PeepholeLSTMParams:
    """
    Return the weights of an LSTM, given as separate arrays for each gate, as `block_lstm` takes
    them.

    Parameters
    ----------
    gates : mapping of str to Gate
        The gates i, ci, f and o. Each holds input [H, I], recurrent [H, H], bias, recurrent_bias
        and peephole [H]; a missing one of the last three, or None, is zero. Either i, f and o all
        have peepholes or none has; ci never has one. Complex arrays hold values and tangents, see
        `cupyrnn.jvp`.
    transposed : bool
        If True, the matrices are transposed, [I, H] and [H, H], as in madmom.

    Returns
    -------
    PeepholeLSTMParams
        w [I+H, 4*H], b [4*H], the sums of the biases, and wci, wcf, wco [H] or None, in the widest
        of the dtypes; gates in the order "icfo". If the framework adds a forget bias when it runs,
        add it to a bias. Call `block_lstm` with ``forget_bias=0``, and with ``cell_clip=0`` if the
        framework does not clip.

    Raises
    ------
    TypeError
        An argument has a wrong type, or an array is not an array, does not have a floating dtype,
        or is on another device than the first.
    ValueError
        A gate or a peephole is missing or unknown, or a shape does not fit the others.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> gate = cupyrnn.Gate(np.ones((2, 3)), np.ones((2, 2)), np.zeros(2), None, np.ones(2))
    >>> gates = {"i": gate, "f": gate, "ci": gate._replace(peephole=None), "o": gate}
    >>> weights = cupyrnn.block_lstm_from_gates(gates)
    >>> weights.w.shape, weights.wci.shape
    ((5, 8), (2,))
    """
    op = "block_lstm_from_gates"
    xp, found, H = _one_cell(op, gates, _ICFO, transposed)
    if found["ci"].peephole is not None:
        raise ValueError(f"{op}: gates['ci'] has a peephole, expected one in i, f and o alone")
    given = [name for name in _PEEPHOLES if found[name].peephole is not None]
    if given and len(given) < 3:
        missing = next(name for name in _PEEPHOLES if name not in given)
        raise ValueError(f"{op}: gates[{missing!r}] has no peephole, but gates[{given[0]!r}] has")
    ordered = [found[name] for name in _ICFO]
    with on_device(xp, ordered[0].input):
        peepholes = {_PEEPHOLES[name]: xp.array(found[name].peephole) for name in given}
        b = xp.concatenate([_bias(xp, gate, H) for gate in ordered])
        return PeepholeLSTMParams(_rows(xp, ordered), b, **peepholes)


@traceable
def block_lstm_to_gates(
    w: Array,
    b: Array,
    wci: Array | None = None,
    wcf: Array | None = None,
    wco: Array | None = None,
) -> dict[str, Gate]:
    """
    Return the weights of `block_lstm` as separate arrays for each gate.

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
    >>> gates = cupyrnn.block_lstm_to_gates(np.ones((5, 8)), np.ones(8))
    >>> gates["ci"].input.shape, gates["ci"].recurrent.shape
    ((2, 3), (2, 2))
    """
    op = "block_lstm_to_gates"
    diagonals = {"wci": wci, "wcf": wcf, "wco": wco}
    xp, I, H = check_block_lstm(op, {"w": w, "b": b, **diagonals})
    with on_device(xp, w):
        w, b = contiguous(xp, w), contiguous(xp, b)
        matrices, biases = by_gate(w, 4), b.reshape(4, H)
        return {
            name: Gate(
                matrices[g, :, :I].copy(),
                matrices[g, :, I:].copy(),
                biases[g].copy(),
                None,
                None if a is None else contiguous(xp, a).copy(),
            )
            for g, name in enumerate(_ICFO)
            for a in [diagonals.get(_PEEPHOLES.get(name, ""))]
        }


@traceable
def block_gru_from_gates(
    gates: Mapping[str, Sequence[Any]], *, transposed: bool = False
) -> BlockGRUParams:
    """
    Return the weights of a GRU, given as separate arrays for each gate, as `block_gru` takes them.

    This GRU resets before the product. For one that resets after it, use `params_from_gates`.

    Parameters
    ----------
    gates : mapping of str to Gate
        The gates r, u and c. Each holds input [H, I], recurrent [H, H], bias and recurrent_bias
        [H]; a missing bias, or None, is zero. Complex arrays hold values and tangents, see
        `cupyrnn.jvp`.
    transposed : bool
        If True, the matrices are transposed, [I, H] and [H, H].

    Returns
    -------
    BlockGRUParams
        w_ru [I+H, 2*H], w_c [I+H, H], b_ru [2*H] and b_c [H], sums of the biases.

    Raises
    ------
    TypeError
        An argument has a wrong type, or an array is not an array, does not have a floating dtype,
        or is on another device than the first.
    ValueError
        A gate is missing or unknown, has a peephole, or a shape does not fit the others.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> gate = cupyrnn.Gate(np.ones((2, 3)), np.ones((2, 2)))
    >>> [a.shape for a in cupyrnn.block_gru_from_gates({"r": gate, "u": gate, "c": gate})]
    [(5, 4), (5, 2), (4,), (2,)]
    """
    op = "block_gru_from_gates"
    xp, found, H = _one_cell(op, gates, GATES["gru"], transposed)
    for name, gate in found.items():
        if gate.peephole is not None:
            raise ValueError(f"{op}: gates[{name!r}] has a peephole, which a GRU does not have")
    r, u, c = (found[name] for name in GATES["gru"])
    with on_device(xp, r.input):
        b_ru = xp.concatenate([_bias(xp, gate, H) for gate in (r, u)])
        return BlockGRUParams(_rows(xp, [r, u]), _rows(xp, [c]), b_ru, _bias(xp, c, H))


@traceable
def block_gru_to_gates(w_ru: Array, w_c: Array, b_ru: Array, b_c: Array) -> dict[str, Gate]:
    """
    Return the weights of `block_gru` as separate arrays for each gate.

    Parameters
    ----------
    w_ru, w_c, b_ru, b_c : [I+H, 2*H], [I+H, H], [2*H], [H]
        The weights and biases. Complex arrays hold values and tangents, see `cupyrnn.jvp`.

    Returns
    -------
    dict of str to Gate
        r, u and c, each with one bias. They are copies.

    Raises
    ------
    TypeError, ValueError
        An argument is not an array, or a shape does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> weights = np.ones((5, 4)), np.ones((5, 2)), np.ones(4), np.ones(2)
    >>> cupyrnn.block_gru_to_gates(*weights)["u"].recurrent.shape
    (2, 2)
    """
    op = "block_gru_to_gates"
    xp, I, H = check_block_gru(op, {"w_ru": w_ru, "w_c": w_c, "b_ru": b_ru, "b_c": b_c})
    with on_device(xp, w_ru):
        w_ru, w_c, b_ru, b_c = (contiguous(xp, a) for a in (w_ru, w_c, b_ru, b_c))
        matrices = by_gate(xp.concatenate([w_ru, w_c], axis=1), 3)
        biases = xp.concatenate([b_ru, b_c]).reshape(3, H)
        return {
            name: Gate(matrices[g, :, :I].copy(), matrices[g, :, I:].copy(), biases[g].copy())
            for g, name in enumerate(GATES["gru"])
        }
