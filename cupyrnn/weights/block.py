"""Conversion between weights of `block_lstm` and packed parameters of CudnnRNN."""

from __future__ import annotations

from types import ModuleType

from .._typing import Array
from ..cells.block_forms import GateOrder
from ..cells.packed import Net, layers
from ..checks.arrays import cast_all, on_device
from ..checks.attributes import check_choice, check_real
from ..checks.calls import check_arrays
from ..derivatives.traced import traceable
from .forms import BLOCK, BlockLSTMParams, check_block_lstm, layer_of, refuse, rows_of
from .packed import PackedParams, assembled, check_model, gradient_model
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
    check_choice(op, "gate_order", gate_order, tuple(BLOCK))
    for name, a in (("wci", wci), ("wcf", wcf), ("wco", wco)):
        if a is not None:
            raise ValueError(f"{op}: {name} is an array, expected None: CudnnRNN has no peepholes")
    if check_real(op, "cell_clip", cell_clip) > 0:
        raise ValueError(f"{op}: cell_clip is {cell_clip}, expected 0: CudnnRNN does not clip")
    _, I, H = check_block_lstm(op, {"w": w, "b": b})
    net = check_net(op, 1, H, I, "lstm", "linear_input", "unidirectional", 0)
    bias_of_f = check_real(op, "forget_bias", forget_bias)
    with on_device(xp, w):
        w, b = cast_all(dtype, w, b)
        layer = layer_of(w, b, BLOCK[gate_order])
        layer.recurrent_bias[1] += bias_of_f
        return assembled(op, xp, net, w, [layer])


@traceable
def params_to_block_lstm(
    params: Array | PackedParams,
    num_units: int | None = None,
    input_size: int | None = None,
    *,
    gate_order: GateOrder = "icfo",
) -> BlockLSTMParams:
    """
    Convert the packed parameters of one LSTM layer to weights of `block_lstm`.

    Call `block_lstm` with ``forget_bias=0`` and ``cell_clip=0``: CudnnRNN has neither. If the net
    has a hard sigmoid, pass its `recurrent_activation` too.

    Parameters
    ----------
    params : [params_size] or PackedParams
        The packed parameters of one unidirectional layer without projection. For their gradient use
        `gradient_to_block_lstm`: this function would add the two equal gradients of the biases.
        Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    num_units, input_size : int
        H and I; a PackedParams determines them.
    gate_order : {"icfo", "ifco"}
        The order of the gates in the result.

    Returns
    -------
    BlockLSTMParams
        w [I+H, 4*H] and b [4*H], the sum of the two packed biases.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or is out of range, an argument contradicts a PackedParams,
        params is not an array of the right length, or the net is not one unidirectional LSTM layer
        without projection.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> w, b = cupyrnn.weights.params_to_block_lstm(np.arange(56.0), 2, 3)
    >>> w.shape, b.shape
    ((5, 8), (8,))
    """
    op = "params_to_block_lstm"
    num_layers = None if isinstance(params, PackedParams) else 1
    model = check_model(op, params, num_layers, num_units, input_size)
    return _as_block_lstm(op, *model, gate_order)


@traceable
def gradient_to_block_lstm(
    params: PackedParams, params_backprop: Array, *, gate_order: GateOrder = "icfo"
) -> BlockLSTMParams:
    """
    Convert the gradient of the packed parameters of one LSTM layer to gradients of w and b.

    The gradients of the two packed biases are equal. The gradient of b is one of them, not their
    sum, as in `gradient_to_keras`.

    Parameters
    ----------
    params : PackedParams
        The net: one unidirectional LSTM layer. Complex arrays hold values and tangents, see
        `cupyrnn.jvp`.
    params_backprop : [params_size]
        The gradient of its parameters, as `cudnn_rnn_backprop` returns it.
    gate_order : {"icfo", "ifco"}
        The order of the gates in the result.

    Returns
    -------
    BlockLSTMParams
        The gradients of w [I+H, 4*H] and b [4*H].

    Raises
    ------
    TypeError, ValueError
        params is not a PackedParams of such a net, or the gradient is not an array of the length of
        the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    >>> w_grad, b_grad = cupyrnn.weights.gradient_to_block_lstm(packed, np.ones(56))
    >>> w_grad.shape, b_grad.shape
    ((5, 8), (8,))
    """
    op = "gradient_to_block_lstm"
    model = gradient_model(op, params, params_backprop)
    return _as_block_lstm(op, *model, gate_order, sum_biases=False)


def _as_block_lstm(
    op: str, xp: ModuleType, net: Net, params: Array, gate_order: object, *, sum_biases: bool = True
) -> BlockLSTMParams:
    """Convert the packed parameters of one LSTM layer to weights of `block_lstm`."""
    order = BLOCK[check_choice(op, "gate_order", gate_order, tuple(BLOCK))]
    refuse(op, "block_lstm", net)
    if net.rnn_mode != "lstm" or net.L > 1 or net.D > 1:
        raise ValueError(
            f"{op}: params is of a net with rnn_mode = {net.rnn_mode}, L = {net.L} and"
            f" D = {net.D}, expected lstm, 1 and 1: block_lstm is one layer in one direction"
        )
    (layer,) = layers(params, net)
    with on_device(xp, params):
        layer = layer if sum_biases else layer._replace(input_bias=None)
        return BlockLSTMParams(*rows_of(xp, layer, order))
