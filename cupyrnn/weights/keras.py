"""Weights of Keras's recurrent layers, converted to packed parameters or `block_gru`, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Literal, TypeAlias, get_args

from .._typing import Array
from ..arithmetic.gates import RecurrentActivation
from ..cells.block_weights import BlockGRUParams
from ..cells.packed import (
    DIRECTIONS,
    GATE_ORDERS,
    GATES,
    Direction,
    LayerParams,
    RNNMode,
    gate_places,
)
from ..checks.arrays import on_device
from ..checks.attributes import check_bool, check_choice, check_count, check_list, shown
from ..checks.calls import expect_rank, expect_shape
from ..derivatives.traced import traceable
from . import forms
from .packed import PackedParams, assembled, check_activation, refuse_gates
from .params import check_net

MergeMode: TypeAlias = Literal["concat", "sum", "ave"]

_PARTS = ("kernel", "recurrent kernel", "bias")
# The number of arrays of a layer of Keras 1: kernel, recurrent kernel and bias of each gate.
_OF_KERAS_1: dict[RNNMode, int] = {"lstm": 12, "gru": 9}


@traceable
def params_from_keras(
    weights: Sequence[object],
    *,
    rnn_mode: RNNMode | None = None,
    direction: Direction | None = None,
    use_bias: bool | None = None,
    reset_after: bool | None = None,
    recurrent_activation: RecurrentActivation | None = None,
    merge_mode: MergeMode = "concat",
) -> PackedParams | Any:  # a list of BlockGRUParams; a union would need a test in every typed call
    """
    Convert the weights of Keras LSTM, GRU or SimpleRNN layers, or of CuDNNLSTM and CuDNNGRU.

    Parameters
    ----------
    weights : sequence of arrays
        The result of ``layer.get_weights()`` of each layer, one after the other: kernel [K, G*H],
        recurrent kernel [H, G*H] and bias; for a Bidirectional layer the forward three, then the
        backward three. The bias is [4*H] for an LSTM, [2, 3*H] for a GRU, [3*H] for a GRU that
        resets before the product, and [H] for a SimpleRNN. CuDNNLSTM and CuDNNGRU, as in files of
        Keras 2 written on a GPU, have biases [8*H] and [6*H] and kernels in another order; they are
        converted. So are the 12 arrays of an LSTM and the 9 of a GRU in files of Keras 1, if
        `rnn_mode` says which. Variables and other objects with ``numpy()`` or ``__array__`` are
        accepted too. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell. The shapes identify LSTMs and GRUs of Keras 2 and 3. For a SimpleRNN this argument
        must give the activation: "rnn_tanh" is Keras's default. For a file of Keras 1 it must be
        "lstm" or "gru": one LSTM has the arrays of four SimpleRNN layers.
    direction : {"unidirectional", "bidirectional"}, optional
        "bidirectional" for Bidirectional layers, by default "unidirectional". It is required where
        two layers and one Bidirectional layer have the same shapes, which is so if I = H.
    use_bias : bool, optional
        Whether the layers have biases, by default True. Without biases a layer has two arrays, not
        three. It is required where both readings fit, for GRUs with H = 2.
    reset_after : bool, optional
        The GRUs' argument of that name. Their biases show it; without biases it is required.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}, optional
        The layers' activation, as in `cudnn_rnn`; "sigmoid" by default, and required for an LSTM of
        Keras 1. Look it up in the layer's configuration; the arrays do not show it. The default
        before Keras 2.3 is ``hard_sigmoid``, here "hard_sigmoid_0.2"; the ``hard_sigmoid`` of Keras
        3 is "hard_sigmoid_1/6". With a wrong one the outputs are wrong by tenths, without an error.
        Weights of `block_gru` do not hold it: pass it to `block_gru` or `stacked_rnn`.
    merge_mode : {"concat", "sum", "ave"}
        The merge_mode of Bidirectional layers. With "sum" and "ave" a Keras layer reads [T, B, H]
        from the layer below, but CudnnRNN reads both directions side by side. To compute the same,
        the packed net has each input matrix twice, halved for "ave". Merge the last layer's output
        yourself: ``output[..., :H] + output[..., H:]``.

    Returns
    -------
    PackedParams or list of BlockGRUParams
        The packed vector, in the widest of the dtypes, and the configuration that follows from the
        shapes. If Keras has one bias and cuDNN two, it becomes the recurrent bias; the input bias
        is zero. GRUs that reset before the product, unlike cuDNN's, become a list of weights of
        `block_gru`, one for each layer and direction, as `stacked_rnn` takes it.

    Raises
    ------
    TypeError
        weights is not a list, an entry is not an array, or the arrays do not have floating dtypes
        or are not on one device.
    ValueError
        The number of arrays or a shape does not fit, or the arrays do not show something that only
        an argument can say.

    Notes
    -----
    CuDNNLSTM and CuDNNGRU always use the sigmoid. ``activation`` must be "tanh", or for a SimpleRNN
    "tanh" or "relu": `cudnn_rnn` has no others. A GRU resets before the product by default before
    TensorFlow 2.0.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.weights.params_from_keras([np.ones((3, 8)), np.ones((2, 8)), np.ones(8)])
    >>> packed.rnn_mode, packed.num_units, packed.input_size
    ('lstm', 2, 3)
    >>> arrays = [np.ones((3, 6)), np.ones((2, 6)), np.ones(6)]  # reset_after=False
    >>> (weights,) = cupyrnn.weights.params_from_keras(arrays)
    >>> cupyrnn.block_gru(np.ones((4, 1, 3)), np.zeros((1, 2)), *weights).h.shape
    (4, 1, 2)
    """
    op = "params_from_keras"
    if rnn_mode is not None:
        check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    if direction is not None:
        check_choice(op, "direction", direction, DIRECTIONS)
    D = 1 + (direction == "bidirectional")
    each = 2 + check_bool(op, "use_bias", True if use_bias is None else use_bias)
    activation = "sigmoid" if recurrent_activation is None else recurrent_activation
    merged = check_choice(op, "merge_mode", merge_mode, get_args(MergeMode)) != "concat"
    if merged and D == 1:
        raise ValueError(
            f"{op}: direction is {shown(direction)}, expected 'bidirectional' with merge_mode ="
            f" {merge_mode!r}"
        )
    check_list(op, "weights", weights)
    expected = f"{each} for each layer and direction with D = {D}: {', '.join(_PARTS[:each])}"
    expected += "; use_bias=False if the layers have none" if each == 3 else ""
    fits = weights and len(weights) % (each * D) == 0
    check_count(op, "weights", weights, fits, expected, "array")
    xp, named = forms.as_arrays(op, {f"weights[{n}]": a for n, a in enumerate(weights)})
    arrays = list(named.values())
    I, width = expect_rank(op, "weights[0]", arrays[0], "(K, G*H)")
    H, _ = expect_rank(op, "weights[1]", arrays[1], "(H, G*H)")
    if each == 3 and width == H and rnn_mode in _OF_KERAS_1:
        arrays = _as_keras_2(op, xp, rnn_mode, arrays, D)
        width = arrays[0].shape[1]
        if rnn_mode == "lstm" and recurrent_activation is None:
            raise ValueError(
                f"{op}: recurrent_activation is None, expected the layer's inner_activation, such"
                " as 'hard_sigmoid_0.2', the default of Keras 1"
            )
    if rnn_mode is None:
        if arrays[1].shape[1] != width:
            raise ValueError(
                f"{op}: weights[0] has shape {(I, width)} and weights[1] {arrays[1].shape},"
                " expected a kernel (K, G*H) and a recurrent kernel (H, G*H); pass"
                " layer.get_weights() of each recurrent layer, not the weights of a whole model"
            )
        if width == H and any(len(arrays) % count == 0 for count in _OF_KERAS_1.values()):
            raise ValueError(
                f"{op}: rnn_mode is None, expected 'rnn_tanh' or 'rnn_relu' for SimpleRNN layers,"
                " or 'lstm' or 'gru' for a file of Keras 1, which has three arrays for each gate"
            )
    problem = f"weights[0] has shape {(I, width)}, expected (K, G*H)"
    rnn_mode, H = forms.mode_of(op, rnn_mode, width, H, problem)
    G = width // H
    L = len(arrays) // (each * D)
    net = check_net(op, L, H, I, rnn_mode, "linear_input", DIRECTIONS[D - 1], 0)
    check_activation(op, rnn_mode, activation)
    if rnn_mode == "gru" and each == 3:
        after = arrays[2].shape != (3 * H,)
        if reset_after is not None and check_bool(op, "reset_after", reset_after) != after:
            raise ValueError(
                f"{op}: reset_after is {reset_after}, expected {after}: weights[2], the bias, has"
                f" shape {arrays[2].shape}"
            )
        reset_after = after
    why = "a GRU without biases does not show it; Keras's default is True, before TensorFlow 2.0"
    before = forms.resets_before(op, rnn_mode, reset_after, activation, f"{why} False")
    # All checks before the layers are allocated and filled.
    for n, a in enumerate(arrays):
        kind, layer = n % each, n // (each * D)
        if kind == 2:
            _check_bias(op, f"weights[{n}]", a, rnn_mode, H, before)
            if a.shape == (2 * G * H,) and G > 1 and activation != "sigmoid":
                raise ValueError(
                    f"{op}: recurrent_activation is {activation!r}, expected sigmoid:"
                    f" weights[{n}] has shape {a.shape}, so the layer is CuDNN{rnn_mode.upper()}"
                )
        else:
            K = H if kind or (layer and merged) else D * H if layer else I
            symbols = "(H, G*H)" if kind else "(K, G*H)"
            if n == each and D == 1 and a.shape == (I, G * H) != (K, G * H):
                raise ValueError(
                    f"{op}: weights[{n}] has shape {a.shape}, expected {symbols} = {(K, G * H)} of"
                    " a second layer; for a Bidirectional layer pass direction='bidirectional'"
                    + ", for a layer of Keras 1 rnn_mode='lstm' or 'gru'"
                    * (G == 1)
                )
            expect_shape(op, f"weights[{n}]", a, symbols, (K, G * H))
    if direction is None and L == 2 and I == H:
        raise forms.unclear_direction(op, I)
    rows = {a.shape[0] if a.ndim == 2 else 0 for a in arrays[1:]}
    if use_bias is None and rnn_mode == "gru" and rows == {2} and len(arrays) % 6 == 0:
        raise ValueError(
            f"{op}: use_bias is None, expected True or False: with H = 2 the arrays of GRUs with"
            " and without biases have the same shapes"
        )
    columns = gate_places("keras", rnn_mode)

    def by_layer() -> Iterator[LayerParams]:
        for n in range(L * D):
            kernel, recurrent, *biases = arrays[each * n : each * (n + 1)]
            as_gates = forms.by_gate
            if biases and biases[0].shape == (2 * G * H,) and G > 1:
                as_gates = _by_gate_of_cudnn
            matrices, recurrent = (as_gates(a, G)[columns] for a in (kernel, recurrent))
            if merged and n >= D:
                matrices = xp.concatenate([matrices, matrices], axis=2)
                matrices = matrices * 0.5 if merge_mode == "ave" else matrices
            bias = xp.zeros((1, G, H), kernel.dtype)
            if biases:
                bias = biases[0].reshape(-1, G, H)[:, columns]
            of_input = bias[0] if len(bias) == 2 else None
            yield LayerParams(matrices, recurrent, None, of_input, bias[-1])

    if not before:
        return assembled(op, xp, net, arrays[0], by_layer(), activation)
    with on_device(xp, arrays[0]):
        return [forms.gru_of(xp, layer) for layer in by_layer()]


def _as_keras_2(
    op: str, xp: ModuleType, rnn_mode: RNNMode, arrays: Sequence[Array], D: int
) -> list[Array]:
    """Join the arrays of each gate in a file of Keras 1, W, U and b, as Keras 2 has them."""
    number, H = _OF_KERAS_1[rnn_mode], len(arrays[1])
    expected = f"{number * D} for each layer of a file of Keras 1"
    check_count(op, "weights", arrays, len(arrays) % (number * D) == 0, expected, "array")
    for n, a in enumerate(arrays):
        K = len(arrays[n - n % number])
        shape = ((K, H), (H, H), (H,))[n % 3]
        expect_shape(op, f"weights[{n}]", a, ("(K, H)", "(H, H)", "(H,)")[n % 3], shape)
    order = gate_places("keras 1", rnn_mode, GATE_ORDERS["keras"][rnn_mode])
    with on_device(xp, arrays[0]):
        return [
            xp.concatenate([arrays[start + 3 * gate + part] for gate in order], axis=-1)
            for start in range(0, len(arrays), number)
            for part in range(3)
        ]


def _by_gate_of_cudnn(a: Array, G: int) -> Array:
    """
    Return a kernel of CuDNNLSTM or CuDNNGRU as [G, H, K].

    It has the shape of any kernel, but a gate's [K, H] holds cuDNN's [H, K] in row-major order.
    """
    K, width = a.shape
    return a.reshape(K, G, width // G).swapaxes(0, 1).reshape(G, width // G, K)


def _side_by_side_of_cudnn(a: Array) -> Array:
    """Invert `_by_gate_of_cudnn`."""
    G, H, K = a.shape
    return a.reshape(G, K, H).swapaxes(0, 1).reshape(K, G * H)


def _check_bias(op: str, name: str, b: Array, rnn_mode: str, H: int, before: bool) -> None:
    """Check the shape of a bias, which depends on the kind of layer."""
    symbols, shape, of_cudnn = {
        "gru": ("(3*H,)", (3 * H,), None) if before else ("(2, 3*H)", (2, 3 * H), (6 * H,)),
        "lstm": ("(4*H,)", (4 * H,), (8 * H,)),
    }.get(rnn_mode, ("(H,)", (H,), None))
    if b.shape != of_cudnn:
        expect_shape(op, name, b, symbols, shape)


@traceable
def params_to_keras(
    params: PackedParams | BlockGRUParams | Sequence[BlockGRUParams],
    *,
    use_bias: bool = True,
    cudnn: bool = False,
    merge_mode: MergeMode = "concat",
    gradient: bool = False,
) -> list[Array]:
    """
    Convert weights to those of Keras LSTM, SimpleRNN or GRU layers.

    Parameters
    ----------
    params : PackedParams, BlockGRUParams or sequence of BlockGRUParams
        What `params_from_keras` returns: packed parameters, or weights of `block_gru` for GRUs with
        ``reset_after=False``. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    use_bias : bool
        Whether the layers have biases. If not, all biases in params must be zero.
    cudnn : bool
        Whether to return the weights of CuDNNLSTM or CuDNNGRU layers.
    merge_mode : {"concat", "sum", "ave"}
        The merge_mode of Bidirectional layers. With "sum" and "ave" the input matrices for the two
        directions of the layer below must be equal. `params_from_keras` returns such nets.
    gradient : bool
        Whether params holds a gradient: ``packed._replace(params=grads.params_backprop)``. Then the
        result is the gradient of Keras's arrays. The gradients of cuDNN's two biases are equal, and
        each is the gradient of the one bias that Keras's LSTM and SimpleRNN have.

    Returns
    -------
    list of arrays
        Kernel, recurrent kernel and bias of each layer and direction, for
        ``layer.set_weights(...)``. The bias of an LSTM or SimpleRNN is the sum of the two packed
        ones. The arrays do not show the net's `recurrent_activation`: pass it to the layer.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type, an array has a wrong shape, or Keras cannot have such a net.

    Examples
    --------
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    >>> [a.shape for a in cupyrnn.weights.params_to_keras(packed)]
    [(3, 8), (2, 8), (8,)]
    """
    op = "params_to_keras"
    xp, rnn_mode, net, like, places = forms.opened(op, params, "Keras", gradient)
    biased = check_bool(op, "use_bias", use_bias)
    check_choice(op, "merge_mode", merge_mode, get_args(MergeMode))
    merged = merge_mode != "concat" and (net is None or net.D == 2)
    in_cudnns = check_bool(op, "cudnn", cudnn)
    if in_cudnns:
        if merged:
            raise ValueError(f"{op}: cudnn is True, expected False with merge_mode = {merge_mode}")
        if not isinstance(params, PackedParams) or rnn_mode not in ("lstm", "gru") or not biased:
            raise ValueError(
                f"{op}: cudnn is True with rnn_mode = {rnn_mode} and use_bias = {biased}, expected"
                " a PackedParams with lstm or gru and True: CuDNNLSTM and CuDNNGRU"
            )
        refuse_gates(op, f"CuDNN{rnn_mode.upper()}", params)
    with on_device(xp, like):
        if not biased and not gradient:
            for of_input, recurrent in (place[3:5] for place in places):
                if recurrent.any() or (of_input is not None and of_input.any()):
                    raise ValueError(
                        f"{op}: use_bias is False, but params has biases that are not zero"
                    )
        if rnn_mode != "gru" and not in_cudnns:
            places = forms.with_one_bias(op, places, gradient)
        columns = _side_by_side_of_cudnn if in_cudnns else forms.side_by_side
        order = forms.own_order(gate_places("keras", rnn_mode))
        arrays: list[Array] = []
        for n, place in enumerate(places):
            kernel, recurrent = (columns(a[order]) for a in place[:2])
            if merged and n > 1:
                kernel = _unmerged(op, kernel, merge_mode, n // 2, gradient)
            biases = [b[order].reshape(-1) for b in place[3:5] if b is not None]
            if in_cudnns:
                biases = [xp.concatenate(biases)]
            elif len(biases) == 2:
                biases = [xp.stack(biases) if rnn_mode == "gru" else biases[0] + biases[1]]
            arrays += [kernel, recurrent, *biases[:biased]]
        return arrays


def _unmerged(op: str, kernel: Array, merge_mode: str, layer: int, gradient: bool) -> Array:
    """Convert a kernel for both directions below to one for their sum or mean."""
    H = len(kernel) // 2
    forward, backward = kernel[:H], kernel[H:]
    if gradient:  # Keras's kernel is in both
        total: Array = forward + backward
        return total * 0.5 if merge_mode == "ave" else total
    if (forward != backward).any():
        raise ValueError(
            f"{op}: merge_mode is {shown(merge_mode)}, but in layer {layer} of params the input"
            " matrices for the two directions below differ"
        )
    return forward * 2 if merge_mode == "ave" else forward.copy()
