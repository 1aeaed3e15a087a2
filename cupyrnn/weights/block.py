"""Parameters of `block_lstm`, packed for CudnnRNN and back, where the math is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._arrays import (
    cast_all,
    check_arrays,
    check_choice,
    check_real,
    expect_rank,
    expect_shape,
    on_device,
)
from ..derivatives.traced import traceable
from .forms import BLOCK, as_block_lstm, by_gate
from .packed import PackedParams, check_model
from .params import check_net, layers, zeros

if TYPE_CHECKING:
    from .._arrays import Array
    from .._block import GateOrder
    from .forms import BlockLSTMParams


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
    xp, dtype = check_arrays(op, {"w": w, "b": b})
    check_choice(op, "gate_order", gate_order, tuple(BLOCK))
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
    net = check_net(op, 1, H, I, "lstm", "linear_input", "unidirectional", 0)
    bias_of_f = check_real(op, "forget_bias", forget_bias)
    order = BLOCK[gate_order]
    with on_device(xp, w):
        w, b = cast_all(dtype, w, b)
        params = zeros(op, xp, net, w)
        (layer,) = layers(params, net)
        layer.input[...] = by_gate(w[:I], 4)[order]
        layer.recurrent[...] = by_gate(w[I:], 4)[order]
        layer.recurrent_bias[...] = b.reshape(4, H)[order]
        layer.recurrent_bias[1] += bias_of_f
    return PackedParams(params, 1, H, I, "lstm", "unidirectional", 0)


@traceable
def params_to_block_lstm(
    params: Array | PackedParams,
    num_units: int | None = None,
    input_size: int | None = None,
    *,
    gate_order: GateOrder = "icfo",
) -> BlockLSTMParams:
    """
    Return the packed parameters of one LSTM layer as `block_lstm` takes them.

    Call it with ``forget_bias=0`` and ``cell_clip=0``: CudnnRNN has neither.

    Parameters
    ----------
    params : [params_size] or PackedParams
        The packed parameters of one unidirectional layer without projection. A gradient of them
        wants ``PackedParams.gradient_to_block_lstm``: here its two equal biases would be added up.
    num_units, input_size : int
        H and I; a PackedParams knows them.
    gate_order : {"icfo", "ifco"}
        The order of the gates in the result.

    Returns
    -------
    BlockLSTMParams
        w [I+H, 4*H] and b [4*H], the sum of the two packed biases.

    Raises
    ------
    TypeError, ValueError
        An argument is of a wrong type or out of range, something given contradicts what a
        PackedParams knows, or params is no array of the right length, or is not of
        one layer of an LSTM in one direction without projection.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> w, b = cupyrnn.params_to_block_lstm(np.arange(56.0), 2, 3)
    >>> w.shape, b.shape
    ((5, 8), (8,))
    """
    op = "params_to_block_lstm"
    one = None if isinstance(params, PackedParams) else 1
    model = check_model(op, params, one, num_units, input_size)
    return as_block_lstm(op, *model, gate_order)
