"""Weights of Keras's recurrent layers, converted to packed parameters or `block_gru`, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias, get_args

from .._typing import Array
from ..arithmetic.gates import RecurrentActivation, check_gate
from ..cells.packed import DIRECTIONS, GATES, Direction, LayerParams, RNNMode, layers
from ..checks.arrays import on_device
from ..checks.attributes import check_bool, check_choice, check_count, check_integer, check_list
from ..checks.calls import expect_rank, expect_shape
from ..derivatives.traced import traceable
from . import forms
from .forms import BlockGRUParams
from .packed import (
    CheckedParams,
    PackedParams,
    assembled,
    check_activation,
    check_model,
    gradient_model,
    refuse_gates,
)
from .params import check_net

MergeMode: TypeAlias = Literal["concat", "sum", "ave"]

# Keras's places of the packed gates i, f, ci, o; r, u, c; h.
_KERAS = {"lstm": [0, 1, 2, 3], "gru": [1, 0, 2], "rnn_tanh": [0], "rnn_relu": [0]}
_PARTS = ("kernel", "recurrent kernel", "bias")


@traceable
def params_from_keras(
    weights: Sequence[object],
    *,
    rnn_mode: RNNMode | None = None,
    direction: Direction = "unidirectional",
    use_bias: bool = True,
    recurrent_activation: RecurrentActivation = "sigmoid",
    merge_mode: MergeMode = "concat",
) -> PackedParams:
    """
    Pack the weights of Keras LSTM, GRU or SimpleRNN layers, or of CuDNNLSTM and CuDNNGRU.

    Parameters
    ----------
    weights : sequence of arrays
        The result of ``layer.get_weights()`` of each layer, one after the other: kernel [K, G*H],
        recurrent kernel [H, G*H] and bias; for a Bidirectional layer the forward three, then the
        backward three. The bias is [4*H] for an LSTM, [2, 3*H] for a GRU and [H] for a SimpleRNN.
        CuDNNLSTM and CuDNNGRU, as in files of Keras 2 written on a GPU, have biases [8*H] and
        [6*H] and kernels in another order; they are converted. Variables and other objects with
        ``numpy()`` or ``__array__`` are accepted too. Complex arrays hold values and tangents, see
        `cupyrnn.jvp`.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell. The shapes identify LSTMs and GRUs. For a SimpleRNN this argument must give the
        activation: "rnn_tanh" is Keras's default.
    direction : {"unidirectional", "bidirectional"}
        "bidirectional" for Bidirectional layers. If I = H, the arrays of such a layer look like
        the arrays of two layers in one direction.
    use_bias : bool
        Whether the layers have biases. Without biases a layer has two arrays, not three. The arrays
        of a GRU without biases do not show ``reset_after``. If it is False, do not use this
        function: its results would be wrong by tenths, without an error.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        The layers' activation, as in `cudnn_rnn`. Look it up in the layer's configuration; the
        arrays do not show it. The default before Keras 2.3 is ``hard_sigmoid``, here
        "hard_sigmoid_0.2"; the ``hard_sigmoid`` of Keras 3 is "hard_sigmoid_1/6". With a wrong one
        the outputs are wrong by tenths, without an error.
    merge_mode : {"concat", "sum", "ave"}
        The merge_mode of Bidirectional layers. With "sum" and "ave" a Keras layer reads [T, B, H]
        from the layer below, but CudnnRNN reads both directions side by side. To compute the same,
        the packed net has each input matrix twice, halved for "ave". Merge the last layer's output
        yourself: ``output[..., :H] + output[..., H:]``.

    Returns
    -------
    PackedParams
        The packed vector, in the widest of the dtypes, and the configuration that follows from the
        shapes. If Keras has one bias and cuDNN two, it becomes the recurrent bias; the input bias
        is zero.

    Raises
    ------
    TypeError
        weights is not a list, an entry is not an array, or the arrays do not have floating dtypes
        or are not on one device.
    ValueError
        The number of arrays or a shape does not fit, a GRU's bias belongs to
        ``reset_after=False``, or the shapes are a SimpleRNN's and rnn_mode is missing.

    See Also
    --------
    block_gru_from_keras : For a GRU with ``reset_after=False``, the default before TensorFlow 2.0.
        It resets before the product; cuDNN's GRU resets after it.

    Notes
    -----
    CuDNNLSTM and CuDNNGRU always use the sigmoid. ``activation`` must be "tanh", or for a SimpleRNN
    "tanh" or "relu": `cudnn_rnn` has no others.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.weights.params_from_keras([np.ones((3, 8)), np.ones((2, 8)), np.ones(8)])
    >>> packed.rnn_mode, packed.num_units, packed.input_size
    ('lstm', 2, 3)
    """
    op = "params_from_keras"
    if rnn_mode is not None:
        check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    check_choice(op, "direction", direction, DIRECTIONS)
    D = 1 + (direction == "bidirectional")
    each = 2 + check_bool(op, "use_bias", use_bias)
    check_gate(op, recurrent_activation)
    merged = check_choice(op, "merge_mode", merge_mode, get_args(MergeMode)) != "concat"
    check_list(op, "weights", weights)
    expected = f"{each} for each layer and direction with D = {D}: {', '.join(_PARTS[:each])}"
    expected += "; use_bias=False if the layers have none" if use_bias else ""
    fits = weights and len(weights) % (each * D) == 0
    check_count(op, "weights", weights, fits, expected, "array")
    xp, named = forms.as_arrays(op, {f"weights[{n}]": a for n, a in enumerate(weights)})
    arrays = list(named.values())
    I, width = expect_rank(op, "weights[0]", arrays[0], "(K, G*H)")
    H, _ = expect_rank(op, "weights[1]", arrays[1], "(H, G*H)")
    if rnn_mode is None and arrays[1].shape[1] != width:
        raise ValueError(
            f"{op}: weights[0] has shape {(I, width)} and weights[1] {arrays[1].shape}, expected a"
            " kernel (K, G*H) and a recurrent kernel (H, G*H); pass layer.get_weights() of each"
            " recurrent layer, not the weights of a whole model"
        )
    problem = f"weights[0] has shape {(I, width)}, expected (K, G*H)"
    rnn_mode, _ = forms.mode_of(op, rnn_mode, width, H, problem)
    L = len(arrays) // (each * D)
    net = check_net(op, L, H, I, rnn_mode, "linear_input", direction, 0)
    check_activation(op, rnn_mode, recurrent_activation)
    G = len(GATES[rnn_mode])
    # All checks before the layers are allocated and filled.
    for n, a in enumerate(arrays):
        kind, layer = n % each, n // (each * D)
        if kind == 2:
            _check_bias(op, f"weights[{n}]", a, rnn_mode, H)
            if a.shape == (2 * G * H,) and G > 1 and recurrent_activation != "sigmoid":
                raise ValueError(
                    f"{op}: recurrent_activation is {recurrent_activation!r}, expected sigmoid:"
                    f" weights[{n}] has shape {a.shape}, so the layer is CuDNN{rnn_mode.upper()}"
                )
        else:
            K = H if kind or (layer and merged) else D * H if layer else I
            symbols = "(H, G*H)" if kind else "(K, G*H)"
            if n == each and D == 1 and a.shape == (I, G * H) != (K, G * H):
                raise ValueError(
                    f"{op}: weights[{n}] has shape {a.shape}, expected {symbols} = {(K, G * H)} of"
                    " a second layer; for a Bidirectional layer pass direction='bidirectional'"
                )
            expect_shape(op, f"weights[{n}]", a, symbols, (K, G * H))
    columns = _KERAS[rnn_mode]

    def packed() -> Iterator[LayerParams]:
        for n in range(L * D):
            kernel, recurrent, *biases = arrays[each * n : each * (n + 1)]
            as_gates = forms.by_gate
            if biases and biases[0].shape == (2 * G * H,) and G > 1:
                as_gates = _by_gate_of_cudnn
            matrices, recurrent = (as_gates(a, G)[columns] for a in (kernel, recurrent))
            if merged and n >= D and D == 2:
                matrices = xp.concatenate([matrices, matrices], axis=2)
                matrices = matrices * 0.5 if merge_mode == "ave" else matrices
            bias = [b.reshape(-1, G, H)[:, columns] for b in biases]
            of_input = bias[0][0] if bias and len(bias[0]) == 2 else None
            yield LayerParams(matrices, recurrent, None, of_input, bias[0][-1] if bias else None)

    return assembled(op, xp, net, arrays[0], packed(), recurrent_activation)


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


def _check_bias(op: str, name: str, b: Array, rnn_mode: str, H: int) -> None:
    """Check the shape of a bias, which depends on the kind of layer."""
    if rnn_mode == "gru" and b.shape == (3 * H,):
        raise ValueError(
            f"{op}: {name} has shape {b.shape}, expected (2, 3*H) = {(2, 3 * H)}: a GRU with"
            " reset_after=False resets before the matmul, unlike cuDNN's; use block_gru_from_keras"
        )
    symbols, shape, of_cudnn = {
        "gru": ("(2, 3*H)", (2, 3 * H), (6 * H,)),
        "lstm": ("(4*H,)", (4 * H,), (8 * H,)),
    }.get(rnn_mode, ("(H,)", (H,), None))
    if b.shape != of_cudnn:
        expect_shape(op, name, b, symbols, shape)


@traceable
def params_to_keras(
    params: Array | PackedParams,
    num_layers: int | None = None,
    num_units: int | None = None,
    input_size: int | None = None,
    *,
    rnn_mode: RNNMode | None = None,
    direction: Direction | None = None,
    use_bias: bool = True,
    cudnn: bool = False,
    merge_mode: MergeMode = "concat",
) -> list[Array]:
    """
    Convert packed parameters to weights of Keras LSTM, SimpleRNN or GRU(``reset_after=True``).

    Parameters
    ----------
    params : [params_size] or PackedParams
        The packed parameters. For their gradient use `gradient_to_keras`: this function would add
        the gradients of the two biases and return twice the gradient of Keras's bias. Complex
        arrays hold values and tangents, see `cupyrnn.jvp`.
    num_layers, num_units, input_size : int
        L, H and I; a PackedParams determines them and the next two.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    direction : {"unidirectional", "bidirectional"}
        Whether the layers are Bidirectional.
    use_bias : bool
        Whether the layers have biases. If not, all biases in params must be zero.
    cudnn : bool
        Whether to return the weights of CuDNNLSTM or CuDNNGRU layers.
    merge_mode : {"concat", "sum", "ave"}
        The merge_mode of Bidirectional layers. With "sum" and "ave" the input matrices for the two
        directions of the layer below must be equal. `params_from_keras` returns such nets.

    Returns
    -------
    list of arrays
        Kernel, recurrent kernel and bias of each layer and direction, for
        ``layer.set_weights(...)``. The bias of an LSTM or SimpleRNN is the sum of the two packed
        ones. The arrays do not show the net's `recurrent_activation`: pass it to the layer.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or is out of range, an argument contradicts a PackedParams,
        params is not an array of the right length, or Keras cannot have such a net.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> [a.shape for a in cupyrnn.weights.params_to_keras(np.arange(56.0), 1, 2, 3)]
    [(3, 8), (2, 8), (8,)]
    """
    op = "params_to_keras"
    model = check_model(
        op, params, num_layers, num_units, input_size, rnn_mode=rnn_mode, direction=direction
    )
    biased = check_bool(op, "use_bias", use_bias)
    check_choice(op, "merge_mode", merge_mode, get_args(MergeMode))
    in_cudnns = check_bool(op, "cudnn", cudnn)
    net, merged = model.net, merge_mode != "concat" and model.net.D == 2
    if in_cudnns and merged:
        raise ValueError(f"{op}: cudnn is True, expected False with merge_mode = {merge_mode}")
    if in_cudnns:
        if net.rnn_mode not in ("lstm", "gru") or not biased:
            raise ValueError(
                f"{op}: cudnn is True with rnn_mode = {net.rnn_mode} and use_bias = {biased},"
                " expected lstm or gru and True: CuDNNLSTM and CuDNNGRU"
            )
        refuse_gates(op, f"CuDNN{net.rnn_mode.upper()}", params)
        return _as_keras(op, model, cudnn=True)
    arrays = _as_keras(op, model)
    if merged:
        _halve(op, net.H, arrays, merge_mode)
    if biased:
        return arrays
    if any(place.input_bias.any() or place.recurrent_bias.any() for place in layers(*model[:0:-1])):
        raise ValueError(f"{op}: use_bias is False, but params has biases that are not zero")
    return [a for n, a in enumerate(arrays) if n % 3 < 2]


def _halve(op: str, H: int, arrays: list[Array], merge_mode: str) -> None:
    """Convert the arrays to layers that read the sum or the mean of both directions."""
    for n in range(6, len(arrays), 3):  # the kernels of all layers but the first
        below = arrays[n][:H], arrays[n][H:]
        if (below[0] != below[1]).any():
            raise ValueError(
                f"{op}: merge_mode is {merge_mode!r}, but in layer {n // 6} of params the input"
                " matrices for the two directions below differ"
            )
        arrays[n] = below[0] * 2 if merge_mode == "ave" else below[0].copy()


def _as_keras(
    op: str, model: CheckedParams, *, sum_biases: bool = True, cudnn: bool = False
) -> list[Array]:
    """
    Convert packed parameters to the list ``layer.get_weights()``; with cudnn, of CuDNNLSTM's form.

    If Keras has one bias and cuDNN two, it is their sum, or the recurrent one.
    """
    xp, net, params = model
    forms.refuse(op, "Keras", net)
    order = forms.own_order(_KERAS[net.rnn_mode])
    columns = _side_by_side_of_cudnn if cudnn else forms.side_by_side
    arrays: list[Array] = []
    with on_device(xp, params):
        for layer in layers(params, net):
            arrays += [columns(a[order]) for a in (layer.input, layer.recurrent)]
            of_input, recurrent = (
                b[order].reshape(-1) for b in (layer.input_bias, layer.recurrent_bias)
            )
            if cudnn:
                arrays.append(xp.concatenate([of_input, recurrent]))
            elif net.rnn_mode == "gru":
                arrays.append(xp.stack([of_input, recurrent]))
            else:
                arrays.append(of_input + recurrent if sum_biases else recurrent)
    return arrays


@traceable
def gradient_to_keras(params: PackedParams, params_backprop: Array) -> list[Array]:
    """
    Convert the gradient of packed parameters to the gradient of Keras's weights.

    Keras's LSTM and SimpleRNN have one bias, cuDNN has two. The gradients of these two are equal,
    and each is the gradient of Keras's bias. This function returns it once. `params_to_keras` would
    add the two and return twice the gradient.

    Parameters
    ----------
    params : PackedParams
        The net. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    params_backprop : [params_size]
        The gradient of its parameters, as `cudnn_rnn_backprop` returns it.

    Returns
    -------
    list of arrays
        In the order of ``layer.trainable_weights``.

    Raises
    ------
    TypeError, ValueError
        params is not a PackedParams, the net has a projection, or the gradient is not an array of
        the length of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    >>> d_kernel, d_recurrent, d_bias = cupyrnn.weights.gradient_to_keras(packed, np.ones(56))
    >>> d_bias
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """
    op = "gradient_to_keras"
    return _as_keras(op, gradient_model(op, params, params_backprop), sum_biases=False)


@traceable
def block_gru_from_keras(weights: Sequence[object], *, use_bias: bool = True) -> BlockGRUParams:
    """
    Convert a Keras GRU with ``reset_after=False`` to weights of `block_gru`.

    This is the default GRU of Keras 1 and of TensorFlow 1's Keras. Like `block_gru` and unlike
    cuDNN, it resets before the product.

    Parameters
    ----------
    weights : sequence of arrays
        The result of ``layer.get_weights()``: kernel [I, 3*H], recurrent kernel [H, 3*H] and bias
        [3*H]. For a Bidirectional layer call this function for the first half of its weights and
        for the second. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    use_bias : bool
        Whether the layer has a bias. If not, the biases are zero.

    Returns
    -------
    BlockGRUParams
        Copies: w_ru [I+H, 2*H], w_c [I+H, H], b_ru [2*H] and b_c [H].

    Raises
    ------
    TypeError
        An entry of weights cannot be converted to an array, the arrays differ in module or device,
        or use_bias is not a bool.
    ValueError
        The number of arrays or a shape does not fit, or the bias belongs to ``reset_after=True``.

    Notes
    -----
    The default recurrent activation of such old layers is ``hard_sigmoid``. Look for
    ``recurrent_activation`` in the layer's configuration; if it is ``hard_sigmoid``, pass
    ``recurrent_activation="hard_sigmoid_0.2"`` to `block_gru`.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> arrays = [np.ones((3, 6)), np.ones((2, 6)), np.ones(6)]
    >>> weights = cupyrnn.weights.block_gru_from_keras(arrays)
    >>> out = cupyrnn.block_gru(np.ones((4, 1, 3)), np.zeros((1, 2)), *weights)
    >>> out.h.shape
    (4, 1, 2)
    """
    op = "block_gru_from_keras"
    each = 2 + check_bool(op, "use_bias", use_bias)
    check_list(op, "weights", weights)
    expected = f"{each}: {', '.join(_PARTS[:each])} of one layer and direction"
    check_count(op, "weights", weights, len(weights) == each, expected, "array")
    xp, named = forms.as_arrays(op, {f"weights[{n}]": a for n, a in enumerate(weights)})
    kernel, recurrent, *biases = named.values()
    H = expect_rank(op, "weights[1]", recurrent, "(H, 3*H)")[0]
    I = expect_rank(op, "weights[0]", kernel, "(I, 3*H)")[0]
    check_integer(op, "num_units", H, 1)
    check_integer(op, "input_size", I, 1)
    expect_shape(op, "weights[0]", kernel, "(I, 3*H)", (I, 3 * H))
    expect_shape(op, "weights[1]", recurrent, "(H, 3*H)", (H, 3 * H))
    for b in biases:
        if b.shape in ((2, 3 * H), (6 * H,)):
            raise ValueError(
                f"{op}: weights[2] has shape {b.shape}, expected (3*H,) = {(3 * H,)}: a GRU with"
                " reset_after=True is cuDNN's; use params_from_keras"
            )
        expect_shape(op, "weights[2]", b, "(3*H,)", (3 * H,))
    order = _KERAS["gru"]
    with on_device(xp, kernel):
        b = biases[0] if biases else xp.zeros(3 * H, kernel.dtype)
        matrices = [forms.by_gate(a, 3)[order] for a in (kernel, recurrent)]
        bias = b.reshape(3, H)[order]
        return forms.gru_of(xp, LayerParams(matrices[0], matrices[1], None, None, bias))


@traceable
def block_gru_to_keras(
    w_ru: Array, w_c: Array, b_ru: Array, b_c: Array, *, use_bias: bool = True
) -> list[Array]:
    """
    Convert weights of `block_gru` to the weights of a Keras GRU with ``reset_after=False``.

    Parameters
    ----------
    w_ru, w_c, b_ru, b_c : [I+H, 2*H], [I+H, H], [2*H], [H]
        The weights and biases, or their gradients. Complex arrays hold values and tangents, see
        `cupyrnn.jvp`.
    use_bias : bool
        Whether the layer has a bias. If not, b_ru and b_c must be zero.

    Returns
    -------
    list of arrays
        Kernel [I, 3*H], recurrent kernel [H, 3*H] and bias [3*H], for ``layer.set_weights(...)``.

    Raises
    ------
    TypeError, ValueError
        An argument is not an array, a shape does not fit, or a bias would be lost.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> weights = np.ones((5, 4)), np.ones((5, 2)), np.ones(4), np.ones(2)
    >>> [a.shape for a in cupyrnn.weights.block_gru_to_keras(*weights)]
    [(3, 6), (2, 6), (6,)]
    """
    op = "block_gru_to_keras"
    biased = check_bool(op, "use_bias", use_bias)
    weights = BlockGRUParams(w_ru, w_c, b_ru, b_c)
    xp, _, _ = forms.check_block_gru(op, weights._asdict())
    if not biased and (b_ru.any() or b_c.any()):
        raise ValueError(f"{op}: use_bias is False, but b_ru or b_c is not zero")
    order = forms.own_order(_KERAS["gru"])
    with on_device(xp, w_ru):
        input, recurrent, *_, bias, _ = forms.layer_of_gru(xp, weights)
        matrices = [forms.side_by_side(a[order]) for a in (input, recurrent)]
        return matrices + [bias[order].reshape(-1)] * biased
