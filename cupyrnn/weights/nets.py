"""Joining and splitting nets, and the two conventions of a GRU's update gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..cells.block_weights import BlockGRUParams
from ..cells.packed import Direction, layers
from ..checks.arrays import contiguous, on_device
from ..checks.attributes import check_count, check_list, shown, type_shown
from ..checks.calls import check_arrays
from ..derivatives.traced import traceable
from .forms import check_block, refuse
from .packed import PackedParams, assembled, check_model, check_packed

Weights = TypeVar("Weights", PackedParams, BlockGRUParams)


@traceable
def reverse_update_gate(weights: Weights) -> Weights:
    """
    Convert a GRU's weights between the two conventions of the update gate, exactly.

    In this package, TensorFlow, PyTorch, Keras and ONNX, u is the weight of the old state:
    h = u*h + (1-u)*c. In madmom, Haiku and Paddle, u is the weight of the new value:
    h = (1-u)*h + u*c. This function negates the weights of u, which converts either into the other,
    because 1 - sigmoid(z) = sigmoid(-z) (also for the hard sigmoids). It is its own inverse.

    Parameters
    ----------
    weights : PackedParams or BlockGRUParams
        The weights of a GRU. Complex arrays hold values and tangents, see `cupyrnn.jvp`.

    Returns
    -------
    PackedParams or BlockGRUParams
        A copy with the weights and biases of u negated. A gradient converts in the same way.

    Raises
    ------
    TypeError, ValueError
        weights has another type or another cell, or its shapes do not fit each other.

    Examples
    --------
    >>> import cupyrnn
    >>> weights = cupyrnn.init_block_gru(num_units=2, input_size=3)
    >>> other = cupyrnn.weights.reverse_update_gate(weights)
    >>> bool((other.w_ru[:, :2] == weights.w_ru[:, :2]).all())
    True
    >>> bool((other.w_ru[:, 2:] == -weights.w_ru[:, 2:]).all())
    True
    """
    op = "reverse_update_gate"
    if isinstance(weights, PackedParams):
        xp, net, vector = check_model(op, weights)
        if net.rnn_mode != "gru":
            raise ValueError(f"{op}: weights is of a net with {net.rnn_mode}, expected gru")
        with on_device(xp, vector):
            vector = vector.copy()
            for place in layers(vector, net):
                for part in (place.input, place.recurrent, place.input_bias, place.recurrent_bias):
                    part[1] *= -1
        return weights._replace(params=vector)
    if not isinstance(weights, BlockGRUParams):
        raise TypeError(
            f"{op}: weights is {type_shown(weights)}, expected a PackedParams or a BlockGRUParams"
        )
    named = {f"weights.{n}": a for n, a in weights._asdict().items()}
    xp, _, H = check_block(op, weights.form, named)
    with on_device(xp, weights.w_ru):
        w_ru, w_c, b_ru, b_c = (contiguous(xp, a).copy() for a in weights)
        w_ru[:, H:] *= -1
        b_ru[H:] *= -1
    return BlockGRUParams(w_ru, w_c, b_ru, b_c)


@traceable
def join_params(
    nets: Sequence[PackedParams], *, direction: Direction | None = None
) -> PackedParams:
    """
    Stack nets into one net, for example ONNX nodes or Keras layers that were converted separately.

    Parameters
    ----------
    nets : sequence of PackedParams
        The nets from the lowest layer up. All have the same cell, H, projection and gate
        activation, and the input size of each is the output size of the one below. Complex arrays
        hold values and tangents, see `cupyrnn.jvp`.
    direction : {"bidirectional"}, optional
        Pass it to join nets of one layer and one direction each: layer 0 forward, layer 0 backward,
        layer 1 forward and so on. By default, the nets keep their direction, which all share.

    Returns
    -------
    PackedParams
        The whole net, a new vector.

    Raises
    ------
    TypeError
        nets is not a list of PackedParams, or their arrays differ in module, device or dtype.
    ValueError
        The nets do not fit each other.

    See Also
    --------
    split_params : The inverse.

    Examples
    --------
    >>> import cupyrnn
    >>> below = cupyrnn.init_params(num_layers=1, num_units=3, input_size=5)
    >>> above = cupyrnn.init_params(num_layers=1, num_units=3, input_size=3)
    >>> cupyrnn.weights.join_params([below, above])[1:4]
    (2, 3, 5)
    """
    op = "join_params"
    check_list(op, "nets", nets, "PackedParams")
    if isinstance(nets, PackedParams):  # a tuple, too
        raise TypeError(f"{op}: nets is {type_shown(nets)}, expected a list of PackedParams")
    for n, packed in enumerate(nets):
        if not isinstance(packed, PackedParams):
            raise TypeError(f"{op}: nets[{n}] is {type_shown(packed)}, expected a PackedParams")
    pairs = direction is not None
    if pairs and not (isinstance(direction, str) and direction == "bidirectional"):
        raise ValueError(f"{op}: direction is {shown(direction)}, expected 'bidirectional' or None")
    expected = "two for each layer" if pairs else "one or more"
    check_count(op, "nets", nets, nets and len(nets) % (1 + pairs) == 0, expected)
    models = [check_model(op, packed) for packed in nets]
    xp, _ = check_arrays(op, {f"nets[{n}].params": model.params for n, model in enumerate(models)})
    first = models[0].net
    D = 2 if pairs else first.D
    K = first.I
    for n, (packed, (_, net, _)) in enumerate(zip(nets, models, strict=True)):
        for name in ("rnn_mode", "num_units", "direction", "num_proj", "recurrent_activation"):
            value, expected = getattr(packed, name), getattr(nets[0], name)
            if value != expected:
                raise ValueError(
                    f"{op}: nets[{n}] has {name} = {shown(value)}, expected {shown(expected)} like"
                    " nets[0]"
                )
        if pairs and (net.D > 1 or net.L > 1):
            raise ValueError(
                f"{op}: nets[{n}] has L = {net.L} and D = {net.D}, expected 1 and 1: one direction"
                " of a layer"
            )
        if net.skip:
            raise ValueError(f"{op}: nets[{n}] has skip_input, expected linear_input")
        if n >= 1 + pairs:
            K = D * first.P
        if net.I != K:
            raise ValueError(
                f"{op}: nets[{n}] has input_size = {net.I}, expected {K}, the output size of the"
                " layer below"
            )
    L = len(nets) // 2 if pairs else sum(net.L for _, net, _ in models)
    whole = first._replace(L=L, D=D)
    # The result has tangents if one of the nets has.
    like = next((a for *_, a in models if a.dtype.kind == "c"), models[0].params)
    parts = [place for _, net, vector in models for place in layers(vector, net)]
    return assembled(op, xp, whole, like, parts, nets[0].recurrent_activation)


@traceable
def split_params(params: PackedParams) -> list[PackedParams]:
    """
    Return the layers of a net as nets of one layer each.

    Parameters
    ----------
    params : PackedParams
        A net of any number of layers. Complex arrays hold values and tangents, see `cupyrnn.jvp`.

    Returns
    -------
    list of PackedParams
        One net for each layer, from the lowest up: new vectors.

    Raises
    ------
    TypeError, ValueError
        params is not a PackedParams, or its array does not have the right length.

    Examples
    --------
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=3, num_units=2, input_size=4)
    >>> [layer.input_size for layer in cupyrnn.weights.split_params(packed)]
    [4, 2, 2]
    """
    op = "split_params"
    xp, net, vector = check_packed(op, params)
    refuse(op, "a net of one layer", net, projection=True)
    places = layers(vector, net)
    result: list[PackedParams] = []
    for n in range(net.L):
        # linear_input, not auto_select: a layer with K = H would get no input matrices.
        single = net._replace(L=1, I=net.D * net.P if n else net.I)
        parts = places[n * net.D : (n + 1) * net.D]
        result.append(assembled(op, xp, single, vector, parts, params.recurrent_activation))
    return result
