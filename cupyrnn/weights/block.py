"""Conversion between weights of `block_lstm` and packed parameters of CudnnRNN."""

from __future__ import annotations

from .._typing import Array
from ..cells.block_forms import COLUMNS, LSTM_FORM, GateOrder
from ..cells.block_weights import BlockLSTMParams
from ..cells.packed import gate_places, layers
from ..checks.arrays import cast_all, on_device
from ..checks.attributes import check_choice, check_real
from ..checks.calls import check_arrays
from ..derivatives.traced import traceable
from .forms import check_block, layer_of, refuse, rows_of, with_one_bias
from .packed import PackedParams, assembled, check_packed
from .params import check_net


@traceable
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
    Pack the weights of a `block_lstm` without peepholes and clip.

    Such a `block_lstm` computes the same as CudnnRNN.

    Parameters
    ----------
    w : [I+H, 4*H]
        The weights. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    b : [4*H]
        The bias. Together with `forget_bias` it becomes the recurrent bias; the input bias is zero.
    forget_bias, cell_clip : float
        The arguments of `block_lstm`. Here they have no defaults.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b.
    wci, wcf, wco : optional
        Must be None: CudnnRNN has no peepholes.

    Returns
    -------
    PackedParams
        One unidirectional layer.

    Raises
    ------
    TypeError
        w or b is not an array, or their dtypes differ.
    ValueError
        A shape does not fit, or there are peepholes or a clip, which CudnnRNN does not have.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.weights.params_from_block_lstm(
    ...     np.ones((5, 8)), np.ones(8), forget_bias=1.0, cell_clip=0
    ... )
    >>> packed.params.shape
    (56,)
    """
    op = "params_from_block_lstm"
    xp, dtype = check_arrays(op, {"w": w, "b": b})
    check_choice(op, "gate_order", gate_order, tuple(COLUMNS))
    for name, a in (("wci", wci), ("wcf", wcf), ("wco", wco)):
        if a is not None:
            raise ValueError(f"{op}: {name} is an array, expected None: CudnnRNN has no peepholes")
    if check_real(op, "cell_clip", cell_clip) > 0:
        raise ValueError(f"{op}: cell_clip is {cell_clip}, expected 0: CudnnRNN does not clip")
    _, I, H = check_block(op, LSTM_FORM, {"w": w, "b": b})
    net = check_net(op, 1, H, I, "lstm", "linear_input", "unidirectional", 0)
    bias_of_f = check_real(op, "forget_bias", forget_bias)
    with on_device(xp, w):
        w, b = cast_all(dtype, w, b)
        layer = layer_of(w, b, gate_places(gate_order, "lstm"))
        layer.recurrent_bias[1] += bias_of_f
        return assembled(op, xp, net, w, [layer])


@traceable
def params_to_block_lstm(
    params: PackedParams,
    *,
    gate_order: GateOrder = "icfo",
    forget_bias: float = 0.0,
    gradient: bool = False,
) -> BlockLSTMParams:
    """
    Convert the packed parameters of one LSTM layer to weights of `block_lstm`.

    Call `block_lstm` with the same `forget_bias` and with ``cell_clip=0``: CudnnRNN has neither. If
    the net has a hard sigmoid, pass its `recurrent_activation` too.

    Parameters
    ----------
    params : PackedParams
        A net of one unidirectional LSTM layer without projection. Complex arrays hold values and
        tangents, see `cupyrnn.jvp`.
    gate_order : {"icfo", "ifco"}
        The order of the gates in the result.
    forget_bias : float
        The value that `block_lstm` will add to the forget gate. It is subtracted from b.
    gradient : bool
        Whether params holds a gradient: ``packed._replace(params=grads.params_backprop)``. The
        gradients of the two packed biases are equal, and b's is one of them, not their sum.

    Returns
    -------
    BlockLSTMParams
        w [I+H, 4*H] and b [4*H], the sum of the two packed biases.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type, params is not a PackedParams of the right length, or the net
        is not one unidirectional LSTM layer without projection.

    Examples
    --------
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    >>> weights = cupyrnn.weights.params_to_block_lstm(packed)
    >>> weights.w.shape, weights.b.shape
    ((5, 8), (8,))
    """
    op = "params_to_block_lstm"
    order = check_choice(op, "gate_order", gate_order, tuple(COLUMNS))
    xp, net, vector = check_packed(op, params)
    refuse(op, "block_lstm", net)
    if net.rnn_mode != "lstm" or net.L > 1 or net.D > 1:
        raise ValueError(
            f"{op}: params is of a net with rnn_mode = {net.rnn_mode}, L = {net.L} and"
            f" D = {net.D}, expected lstm, 1 and 1: block_lstm is one layer in one direction"
        )
    added = check_real(op, "forget_bias", forget_bias)
    with on_device(xp, vector):
        (layer,) = with_one_bias(op, layers(vector, net), gradient, added)
        return BlockLSTMParams(*rows_of(xp, layer, gate_places(order, "lstm")))
