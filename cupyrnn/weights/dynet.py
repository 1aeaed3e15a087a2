"""Weights of DyNet's VanillaLSTMBuilder: packed for CudnnRNN and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._typing import Array
from ..checks.arrays import on_device
from ..checks.attributes import check_list, check_real, shown
from ..checks.calls import expect_rank, expect_shape
from ..derivatives.traced import traceable
from .forms import as_arrays, refuse
from .packed import PackedParams, assembled, check_model, refuse_gates
from .params import LayerParams, check_net, layers

# Where DyNet has the gates of the packed order i, f, ci, o.
_DYNET = [0, 1, 3, 2]


@traceable
def params_from_dynet(
    weights: Sequence[Sequence[Any]], *, forget_bias: float = 1.0
) -> PackedParams:
    """
    Pack the weights of DyNet's VanillaLSTMBuilder.

    Parameters
    ----------
    weights : sequence of [W_x, W_h, b]
        For each layer, as returned by the builder's ``get_parameters()``: [4*H, K], [4*H, H] and
        [4*H], gates in the order i, f, o, g. Complex arrays hold values and tangents, see
        `cupyrnn.jvp`.
    forget_bias : float
        The value that the builder adds to the forget gate when it runs, and does not save; 1 is
        DyNet's default.

    Returns
    -------
    PackedParams
        An LSTM in one direction. The bias becomes the recurrent bias.

    Raises
    ------
    TypeError
        An argument has a wrong type, or a weight is not an array, does not have a floating dtype,
        or is on another device than the first.
    ValueError
        A shape does not fit the others.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> layer = np.ones((8, 3)), np.ones((8, 2)), np.ones(8)
    >>> cupyrnn.params_from_dynet([layer])[1:5]
    (1, 2, 3, 'lstm')
    """
    op = "params_from_dynet"
    added = check_real(op, "forget_bias", forget_bias)
    check_list(op, "weights", weights)
    given: dict[str, Any] = {}
    for n, layer in enumerate(weights):
        if not isinstance(layer, (list, tuple)) or len(layer) != 3:
            raise TypeError(f"{op}: weights[{n}] is {shown(layer)}, expected W_x, W_h and b")
        given |= {f"weights[{n}][{k}]": a for k, a in enumerate(layer)}
    if not given:
        raise ValueError(f"{op}: weights has 0 entries, expected one for each layer")
    xp, arrays = as_arrays(op, given)
    _, I = expect_rank(op, "weights[0][0]", arrays["weights[0][0]"], "(4*H, K)")
    _, H = expect_rank(op, "weights[0][1]", arrays["weights[0][1]"], "(4*H, H)")
    net = check_net(op, len(weights), H, I, "lstm", "linear_input", "unidirectional", 0)
    for n in range(net.L):
        K = H if n else I
        shapes = ("(4*H, K)", (4 * H, K)), ("(4*H, H)", (4 * H, H)), ("(4*H,)", (4 * H,))
        for k, (symbols, shape) in enumerate(shapes):
            expect_shape(op, f"weights[{n}][{k}]", arrays[f"weights[{n}][{k}]"], symbols, shape)

    def part(n: int) -> LayerParams:
        w_x, w_h, b = (arrays[f"weights[{n}][{k}]"] for k in range(3))
        b = b.reshape(4, H)[_DYNET]
        b[1] += added
        w_x, w_h = (a.reshape(4, H, -1)[_DYNET] for a in (w_x, w_h))
        return LayerParams(w_x, w_h, None, None, b)

    return assembled(op, xp, net, arrays["weights[0][0]"], map(part, range(net.L)))


@traceable
def params_to_dynet(params: PackedParams, *, forget_bias: float = 1.0) -> list[list[Array]]:
    """
    Return packed parameters in the form of DyNet's VanillaLSTMBuilder.

    Parameters
    ----------
    params : PackedParams
        An LSTM in one direction without projection. Complex arrays hold values and tangents, see
        `cupyrnn.jvp`.
    forget_bias : float
        The value that the builder will add to the forget gate; it is subtracted here.

    Returns
    -------
    list of [W_x, W_h, b]
        For each layer; b is the sum of the two packed biases.

    Raises
    ------
    TypeError, ValueError
        params is not a PackedParams, or DyNet does not have such a net.

    Examples
    --------
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    >>> [a.shape for a in cupyrnn.params_to_dynet(packed)[0]]
    [(8, 3), (8, 2), (8,)]
    """
    op = "params_to_dynet"
    added = check_real(op, "forget_bias", forget_bias)
    xp, net, vector = check_model(op, params)
    refuse(op, "DyNet", net)
    refuse_gates(op, "DyNet", params)
    if net.rnn_mode != "lstm" or net.D > 1:
        raise ValueError(
            f"{op}: params is of a net with rnn_mode = {net.rnn_mode} and D = {net.D}, expected"
            " lstm and 1"
        )
    result: list[list[Array]] = []
    with on_device(xp, vector):
        for place in layers(vector, net):
            b = place.input_bias + place.recurrent_bias
            b[1] -= added
            matrices = [a[_DYNET].reshape(4 * net.H, -1) for a in (place.input, place.recurrent)]
            result.append([*matrices, b[_DYNET].reshape(-1)])
    return result
