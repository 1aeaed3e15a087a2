"""Parameters of models made elsewhere: arrays in PyTorch's, Keras's and `block_lstm`'s form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from ._arrays import (
    check_arrays,
    check_choice,
    check_list,
    check_real,
    expect_rank,
    expect_shape,
    on_device,
    shown,
)
from .params import DIRECTIONS, GATES, PackedParams, check_net, check_params, layout, zeros

if TYPE_CHECKING:
    from ._arrays import Array
    from .lstm import GateOrder
    from .params import Direction, Net, RNNMode


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
    if not isinstance(state_dict, Mapping) or not all(isinstance(k, str) for k in state_dict):
        raise TypeError(f"{op}: state_dict is {shown(state_dict)}, expected arrays by their names")
    if not isinstance(prefix, str):
        raise TypeError(f"{op}: prefix is {shown(prefix)}, expected a str")
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
    net = check_net(op, L, H, I, rnn_mode, "linear_input", _direction(D), P)
    arrays = dict(state)
    params = zeros(xp, net, state["weight_ih_l0"])
    biased = any(name.startswith("bias") for name in state)
    for name, symbols, offset, shape in _torch_places(net):
        a = arrays.pop(name, None)
        if a is None and name.startswith("bias") and not biased:
            continue
        if a is None:
            raise ValueError(f"{op}: state_dict has no {prefix}{name}")
        expect_shape(op, prefix + name, a, symbols, shape)
        params[offset : offset + a.size] = a.reshape(a.size)
    if arrays:
        raise ValueError(f"{op}: state_dict has {prefix}{next(iter(arrays))}, which is no part")
    return PackedParams(params, L, H, I, rnn_mode, net.direction, P)


def _torch_places(net: Net) -> Iterator[tuple[str, str, int, tuple[int, ...]]]:
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
    gates = GATES[net.rnn_mode]
    for p in layout(net):
        if p.gate not in ("", gates[0]):
            continue
        kind, symbols = kinds[p.kind]
        name = f"{kind}_l{p.layer}" + "_reverse" * p.direction
        stacked = 1 if p.kind == "projection" else len(gates)
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
    net = check_net(
        op, num_layers, num_units, input_size, rnn_mode, "linear_input", direction, num_proj
    )
    xp, params = check_params(op, params, net)
    state = {}
    with on_device(xp, params):
        for name, _, offset, shape in _torch_places(net):
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
    check_choice(op, "direction", direction, DIRECTIONS)
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
    net = check_net(op, L, H, I, rnn_mode, "linear_input", direction, 0)
    params = zeros(xp, net, weights[0])
    for p in layout(net):
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
    net = check_net(op, num_layers, num_units, input_size, rnn_mode, "linear_input", direction, 0)
    xp, params = check_params(op, params, net)
    pieces, columns = layout(net), _KERAS_COLUMNS[rnn_mode]
    G, H, D = len(columns), net.H, net.D
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
    bias = check_real(op, "forget_bias", forget_bias)
    rows, columns = expect_rank(op, "w", w, "(I+H, 4*H)")
    H = columns // 4
    if columns % 4 or rows <= H:
        raise ValueError(f"{op}: w has shape {w.shape}, expected (I+H, 4*H)")
    expect_shape(op, "b", b, "(4*H,)", (4 * H,))
    I = rows - H
    net = check_net(op, 1, H, I, "lstm", "linear_input", "unidirectional", 0)
    params = zeros(xp, net, w)
    for p in layout(net):
        column = _BLOCK_COLUMNS[gate_order][GATES["lstm"].index(p.gate)]
        gate = slice(column * H, (column + 1) * H)
        target = params[p.offset : p.offset + p.size]
        if len(p.shape) == 2:
            half = w[:I] if p.kind == "input" else w[I:]
            target[...] = half[:, gate].T.reshape(p.size)
        elif p.kind == "recurrent_bias":
            target[...] = b[gate]
            if p.gate == "f":
                with on_device(xp, w):
                    target += bias
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
    net = check_net(op, 1, num_units, input_size, "lstm", "linear_input", "unidirectional", 0)
    xp, params = check_params(op, params, net)
    H, I = net.H, net.I
    with on_device(xp, params):
        w, b = xp.empty((I + H, 4 * H), params.dtype), xp.zeros(4 * H, params.dtype)
        for p in layout(net):
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
