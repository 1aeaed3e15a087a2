"""Recurrent cells of TensorFlow 1 by the names in its checkpoints: conversion to packed parameters
and block weights, and back.

A cell's variables lie under its path, for instance "rnn/basic_lstm_cell". An LSTM has kernel [I+H,
4*H], with the gates i, ci, f, o as in BlockLSTM, bias, with peepholes w_i_diag, w_f_diag and
w_o_diag, and with a projection projection/kernel. A GRU has gates/kernel, gates/bias,
candidate/kernel and candidate/bias. The path contains the layer, "cell_1", and the direction, "fw"
or "bw".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from .._typing import Array
from ..checks.arrays import contiguous, on_device
from ..checks.attributes import check_bool, check_choice, check_real, shown
from ..checks.calls import expect_rank
from ..derivatives.traced import traceable
from . import forms, tf1_cells
from .forms import BlockGRUParams, PeepholeLSTMParams
from .packed import PackedParams, assembled, check_model, refuse_gates
from .params import DIRECTIONS, GATES, Direction, LayerParams, Net, RNNMode, check_net, layers
from .tf1_cells import PROJECTION, Cell, join


@traceable
def block_lstm_from_tf1(variables: Mapping[str, Any], *, prefix: str = "") -> PeepholeLSTMParams:
    """
    Return the variables of an LSTM cell of TensorFlow 1 as `block_lstm` takes them.

    Accepted are BasicLSTMCell, LSTMCell with or without peepholes and projection, LSTMBlockCell,
    LSTMBlockFusedCell and CudnnCompatibleLSTMCell.

    Parameters
    ----------
    variables : mapping of str to array
        The variables by their names in the checkpoint. With ``reader =
        tf.train.load_checkpoint(path)`` they are ``{n: reader.get_tensor(n) for n in
        reader.get_variable_to_shape_map()}``. Variables of optimizers and of other layers are
        ignored. Names from before TensorFlow 1.2, which end in weights and biases, are accepted
        too. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    prefix : str
        The path of the cell, such as "rnn/basic_lstm_cell", or its beginning, if no other cell lies
        below it.

    Returns
    -------
    PeepholeLSTMParams
        w [I+H, 4*H], b [4*H] and wci, wcf, wco [H] or None, in the widest of the dtypes. The gates
        are in block_lstm's default order, "icfo". With a projection w is [I+P, 4*H] and w_p [H, P];
        use `stacked_rnn` then, as `block_lstm` has no projection.

    Raises
    ------
    TypeError
        variables is not a mapping of strings to arrays, or the arrays do not have floating dtypes.
    ValueError
        There is no cell or more than one, or a variable is missing, appears twice or has a wrong
        shape.

    Notes
    -----
    A checkpoint does not hold ``forget_bias``, which all these cells add when they run (the default
    is 1, but 0 in CudnnCompatibleLSTMCell), ``cell_clip`` (none by default) and ``proj_clip``,
    which this package does not have. `block_lstm` clips at 3 by default: pass ``cell_clip=0`` if
    the cell had no clip.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> variables = {"rnn/lstm_cell/kernel": np.ones((5, 8)), "rnn/lstm_cell/bias": np.ones(8)}
    >>> weights = cupyrnn.weights.block_lstm_from_tf1(variables)
    >>> x, zeros = np.ones((4, 1, 3)), np.zeros((1, 2))
    >>> out = cupyrnn.block_lstm(x, zeros, zeros, **weights.arguments, forget_bias=1, cell_clip=0)
    >>> out.h.shape
    (4, 1, 2)
    """
    op = "block_lstm_from_tf1"
    xp, cell = tf1_cells.one_cell(op, variables, prefix)
    P = cell.projection_size(op)
    _, H = tf1_cells.kernel_sizes(op, cell, 4, P, *tf1_cells.PEEPHOLES.values())
    if set(tf1_cells.PEEPHOLES.values()) & cell.names.keys():
        for leaf in tf1_cells.PEEPHOLES.values():
            cell.need(op, leaf)
            cell.expect(op, leaf, "(H,)", (H,))
    names = {leaf: name for name, leaf in tf1_cells.LSTM.items()}
    with on_device(xp, cell.arrays["kernel"]):
        return PeepholeLSTMParams(**{names[leaf]: a.copy() for leaf, a in cell.arrays.items()})


@traceable
def block_lstm_to_tf1(
    w: Array,
    b: Array,
    wci: Array | None = None,
    wcf: Array | None = None,
    wco: Array | None = None,
    w_p: Array | None = None,
    *,
    prefix: str = "",
    old_names: bool = False,
) -> dict[str, Array]:
    """
    Return the weights of `block_lstm` by the names of TensorFlow 1's LSTM cells.

    Parameters
    ----------
    w, b : [I+H, 4*H], [4*H]
        The weights and the bias, gates in the order "icfo"; with a projection w is [I+P, 4*H].
        Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    wci, wcf, wco : [H], optional
        The peepholes: all or none.
    w_p : [H, P], optional
        The matrix of a projection, as in `stacked_rnn`.
    prefix : str
        The path of the cell.
    old_names : bool
        Whether to use the names from before TensorFlow 1.2: weights and biases in place of kernel
        and bias.

    Returns
    -------
    dict of str to array
        Copies: kernel, bias, with peepholes w_i_diag, w_f_diag and w_o_diag, and with a projection
        projection/kernel.

    Raises
    ------
    TypeError, ValueError
        An argument is not an array, or a shape does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> list(cupyrnn.weights.block_lstm_to_tf1(np.ones((5, 8)), np.ones(8), prefix="rnn/lstm_cell"))
    ['rnn/lstm_cell/kernel', 'rnn/lstm_cell/bias']
    """
    op = "block_lstm_to_tf1"
    given = {"w": w, "b": b, "wci": wci, "wcf": wcf, "wco": wco, "w_p": w_p}
    xp, _, _ = forms.check_block_lstm(op, given)
    arrays = {tf1_cells.LSTM[name]: a for name, a in given.items() if a is not None}
    return _named(op, xp, prefix, arrays, old_names)


def prefix_of(op: str, prefix: object) -> str:
    """Return a path without the slash at its end."""
    if not isinstance(prefix, str):
        raise TypeError(f"{op}: prefix is {shown(prefix)}, expected a string")
    return prefix.removesuffix("/")


def _named(
    op: str, xp: ModuleType, prefix: object, arrays: Mapping[str, Array], old_names: object
) -> dict[str, Array]:
    """Return copies by the names of variables under a path."""
    path = prefix_of(op, prefix)
    name_of = tf1_cells.old_name if check_bool(op, "old_names", old_names) else str
    with on_device(xp, next(iter(arrays.values()))):
        return {join(path, name_of(leaf)): contiguous(xp, a).copy() for leaf, a in arrays.items()}


@traceable
def block_gru_from_tf1(variables: Mapping[str, Any], *, prefix: str = "") -> BlockGRUParams:
    """
    Return the variables of a GRU cell of TensorFlow 1 as `block_gru` takes them.

    Accepted are GRUCell, GRUBlockCell and GRUBlockCellV2.

    Parameters
    ----------
    variables : mapping of str to array
        The variables by their names in the checkpoint, as in `block_lstm_from_tf1`: gates/kernel,
        gates/bias, candidate/kernel and candidate/bias, or GRUBlockCell's w_ru, b_ru, w_c and b_c.
        Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    prefix : str
        The path of the cell, or its beginning, if no other cell lies below it.

    Returns
    -------
    BlockGRUParams
        Copies, in the widest of the dtypes: w_ru [I+H, 2*H], w_c [I+H, H], b_ru [2*H] and b_c [H].

    Raises
    ------
    TypeError
        variables is not a mapping of strings to arrays, or the arrays do not have floating dtypes.
    ValueError
        There is no cell or more than one, a variable is missing, appears twice or has a wrong
        shape, or the cell is a CudnnCompatibleGRUCell, whose math is cuDNN's.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> variables = {"gates/kernel": np.ones((5, 4)), "gates/bias": np.ones(4)}
    >>> variables |= {"candidate/kernel": np.ones((5, 2)), "candidate/bias": np.ones(2)}
    >>> weights = cupyrnn.weights.block_gru_from_tf1(variables)
    >>> cupyrnn.block_gru(np.ones((4, 1, 3)), np.zeros((1, 2)), *weights).h.shape
    (4, 1, 2)
    """
    op = "block_gru_from_tf1"
    xp, cell = tf1_cells.one_cell(op, variables, prefix)
    if set(tf1_cells.CUDNN_GRU) & cell.names.keys():
        raise ValueError(
            f"{op}: {cell.path} is a CudnnCompatibleGRUCell, which resets after the product;"
            " params_from_tf1 takes it"
        )
    leaves = tf1_cells.BLOCK_GRU
    if "w_ru" not in cell.names:
        leaves = ("gates/kernel", "candidate/kernel", "gates/bias", "candidate/bias")
    weights = cell.need(op, *leaves)
    names = [cell.names[leaf] for leaf in leaves]
    forms.check_block_gru(op, dict(zip(names, weights, strict=True)))
    cell.only(op, *leaves)
    with on_device(xp, weights[0]):
        return BlockGRUParams(*(a.copy() for a in weights))


@traceable
def block_gru_to_tf1(
    w_ru: Array, w_c: Array, b_ru: Array, b_c: Array, *, prefix: str = "", old_names: bool = False
) -> dict[str, Array]:
    """
    Return the weights of `block_gru` by the names of TensorFlow 1's GRUCell and GRUBlockCellV2.

    Parameters
    ----------
    w_ru, w_c, b_ru, b_c : [I+H, 2*H], [I+H, H], [2*H], [H]
        The weights and biases. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    prefix : str
        The path of the cell.
    old_names : bool
        Whether to use the names from before TensorFlow 1.2: weights and biases in place of kernel
        and bias.

    Returns
    -------
    dict of str to array
        Copies: gates/kernel, gates/bias, candidate/kernel and candidate/bias.

    Raises
    ------
    TypeError, ValueError
        An argument is not an array, or a shape does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> weights = np.ones((5, 4)), np.ones((5, 2)), np.ones(4), np.ones(2)
    >>> list(cupyrnn.weights.block_gru_to_tf1(*weights))
    ['gates/kernel', 'gates/bias', 'candidate/kernel', 'candidate/bias']
    """
    op = "block_gru_to_tf1"
    xp, _, _ = forms.check_block_gru(op, {"w_ru": w_ru, "w_c": w_c, "b_ru": b_ru, "b_c": b_c})
    arrays = {"gates/kernel": w_ru, "gates/bias": b_ru}
    arrays |= {"candidate/kernel": w_c, "candidate/bias": b_c}
    return _named(op, xp, prefix, arrays, old_names)


@traceable
def params_from_tf1(
    variables: Mapping[str, Any],
    *,
    rnn_mode: RNNMode | None = None,
    forget_bias: float | None = None,
    prefix: str = "",
) -> PackedParams:
    """
    Pack cells of TensorFlow 1 whose math is CudnnRNN's, in layers and directions.

    Accepted are LSTM cells without peepholes, with or without a projection,
    CudnnCompatibleLSTMCell, CudnnCompatibleGRUCell and BasicRNNCell; also checkpoints of CudnnLSTM,
    CudnnGRU, CudnnRNNTanh and CudnnRNNRelu, which TensorFlow saves as such cells.

    Parameters
    ----------
    variables : mapping of str to array
        The variables by their names in the checkpoint, as in `block_lstm_from_tf1`. "cell_0",
        "cell_1" in the path give the layer, "fw" and "bw" the direction. Complex arrays hold values
        and tangents, see `cupyrnn.jvp`.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell. The names identify GRUs; all other cells are taken for LSTMs. For a basic_rnn_cell
        this argument must give the activation.
    forget_bias : float, optional
        The value that the LSTM cells add when they run, which no checkpoint holds; TensorFlow's
        default is 1. It is required, except for CudnnLSTM and CudnnCompatibleLSTMCell: they add
        nothing, and nothing but 0 is accepted for them.
    prefix : str
        The beginning of the paths of all cells.

    Returns
    -------
    PackedParams
        The packed vector, in the widest of the dtypes, and the configuration that follows from the
        names and shapes. Where the cell has one bias and cuDNN two, it becomes the recurrent bias.

    Raises
    ------
    TypeError
        variables is not a mapping of strings to arrays, or the arrays do not have floating dtypes.
    ValueError
        forget_bias is missing, or given for cells that add none. A cell or variable is missing or
        appears twice, a shape does not fit the others, or CudnnRNN cannot compute the same: it has
        no peepholes, no GRUCell, and no stacks of layers that run in one direction each.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> variables = {"rnn/lstm_cell/kernel": np.ones((5, 8)), "rnn/lstm_cell/bias": np.ones(8)}
    >>> cupyrnn.weights.params_from_tf1(variables, forget_bias=1)[1:5]
    (1, 2, 3, 'lstm')
    """
    op = "params_from_tf1"
    if rnn_mode is not None:
        check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    xp, cells = tf1_cells.cells_of(op, variables, prefix)
    places = _places(op, cells, prefix)
    D = 1 + any(d == 1 for _, d in places)
    for layer in range(1 + max(layer for layer, _ in places)):
        for d in range(D):
            if (layer, d) not in places:
                way = ("fw", "bw")[d] if D == 2 else "forward"
                raise ValueError(f"{op}: variables has no cell for layer {layer}, {way}")
    ordered = [places[place] for place in sorted(places)]
    rnn_mode = _mode(op, rnn_mode, ordered)
    added = 0.0
    if forget_bias is not None:
        added = check_real(op, "forget_bias", forget_bias)
        whole = [cell.path for cell in ordered if cell.own_name == _CELLS["lstm"]]
        if whole and added != 0:
            raise ValueError(
                f"{op}: forget_bias is {shown(forget_bias)}, expected 0 or None for {whole[0]}, as"
                " CudnnLSTM saves it: its bias holds all that is added"
            )
    elif rnn_mode == "lstm" and any(cell.own_name != _CELLS["lstm"] for cell in ordered):
        raise ValueError(
            f"{op}: forget_bias is left out, expected what the cells were made with, which is not"
            " in the checkpoint: 1 unless they were told otherwise"
        )
    P = ordered[0].projection_size(op)
    sizes = [_sizes(op, cell, rnn_mode, P) for cell in ordered]
    I, H = sizes[0]
    L = len(ordered) // D
    net = check_net(op, L, H, I, rnn_mode, "linear_input", DIRECTIONS[D - 1], P)
    for pl, (cell, size) in enumerate(zip(ordered, sizes, strict=True)):
        expected = (D * net.P if pl >= D else I, H)
        if size != expected:
            raise ValueError(
                f"{op}: {cell.path} is a cell with I = {size[0]} and H = {size[1]}, expected"
                f" {expected[0]} and {expected[1]}"
            )
    parts = (_part(xp, cell, net, added) for cell in ordered)
    return assembled(op, xp, net, next(iter(ordered[0].arrays.values())), parts)


# Where its cells with one kernel have the gates of the packed order.
_ORDERS = {"lstm": forms.BLOCK["icfo"], "rnn_tanh": [0], "rnn_relu": [0]}
# What TensorFlow 1 calls the cells with CudnnRNN's math.
_CELLS = {
    "lstm": "cudnn_compatible_lstm_cell",
    "gru": "cudnn_compatible_gru_cell",
    "rnn_tanh": "basic_rnn_cell",
    "rnn_relu": "basic_rnn_cell",
}


def _places(op: str, cells: list[Cell], prefix: str) -> dict[tuple[int, int], Cell]:
    """Return the cells by layer and direction, which stand in their paths."""
    places: dict[tuple[int, int], Cell] = {}
    one_way = False
    for cell in cells:
        path = cell.path[len(prefix) :]
        numbers = list(re.finditer(r"(?:^|/)cell_([0-9]{1,9})(?=/|$)", path))
        ways = list(re.finditer(r"(?:^|/)(fw|bw)(?=/|$)", path))
        if numbers and ways and ways[-1].start() < numbers[-1].start():
            raise ValueError(
                f"{op}: {cell.path} is one of the layers of one direction, which CudnnRNN, whose"
                " layers read both directions of the one below, does not have; choose a direction"
                " with prefix"
            )
        place = int(numbers[-1][1]) if numbers else 0, int(bool(ways) and ways[-1][1] == "bw")
        if place in places:
            raise ValueError(
                f"{op}: variables has two cells for layer {place[0]}, {places[place].path} and"
                f" {cell.path}; choose with prefix"
            )
        places[place] = cell
        one_way = one_way or (bool(ways) and ways[-1][1] == "fw")
    if one_way and not any(d for _, d in places):
        layer = min(layer for layer, _ in places)
        raise ValueError(f"{op}: variables has no cell for layer {layer}, bw")
    return places


def _mode(op: str, rnn_mode: Any, cells: list[Cell]) -> Any:
    """Return rnn_mode: the one given, or what the names tell; refuse cells of other math."""
    for cell in cells:
        if set(tf1_cells.PEEPHOLES.values()) & cell.names.keys():
            raise ValueError(
                f"{op}: {cell.path} has peepholes, which CudnnRNN does not have;"
                " block_lstm_from_tf1 takes it"
            )
        if {"candidate/kernel", "w_ru"} & cell.names.keys():
            raise ValueError(
                f"{op}: {cell.path} is a GRUCell, which resets before the product as CudnnRNN does"
                " not; block_gru_from_tf1 takes it"
            )
    if rnn_mode is None:
        if "gates/kernel" in cells[0].names:
            return "gru"
        if cells[0].own_name == "basic_rnn_cell":
            raise forms.untold(op, f"{cells[0].path} does")
        return "lstm"
    return rnn_mode


def _sizes(op: str, cell: Cell, rnn_mode: str, P: int) -> tuple[int, int]:
    """Check the variables of a cell; return K and H."""
    if rnn_mode != "gru":
        return tf1_cells.kernel_sizes(op, cell, len(GATES[rnn_mode]), P)
    cell.need(op, *tf1_cells.GATES, *tf1_cells.CUDNN_GRU)
    cell.only(op, *tf1_cells.GATES, *tf1_cells.CUDNN_GRU)
    leaf = "candidate/input_projection/kernel"
    K, H = expect_rank(op, cell.names[leaf], cell.arrays[leaf], "(I, H)")
    cell.expect(op, "gates/kernel", "(I+H, 2*H)", (K + H, 2 * H))
    cell.expect(op, "gates/bias", "(2*H,)", (2 * H,))
    cell.expect(op, "candidate/hidden_projection/kernel", "(H, H)", (H, H))
    for part in ("input", "hidden"):
        cell.expect(op, f"candidate/{part}_projection/bias", "(H,)", (H,))
    return K, H


def _part(xp: ModuleType, cell: Cell, net: Net, forget_bias: float) -> LayerParams:
    """Return a cell's variables as the packed vector has them."""
    a = cell.arrays
    if net.rnn_mode == "gru":
        w, r, *_, r_u, _ = forms.layer_of(a["gates/kernel"], a["gates/bias"], [0, 1])
        both = w, r, xp.zeros_like(r_u), r_u
        kernel, bias, recurrent, recurrent_bias = (a[leaf].T[None] for leaf in tf1_cells.CUDNN_GRU)
        c = kernel, recurrent, bias, recurrent_bias
        parts = [xp.concatenate(pair) for pair in zip(both, c, strict=True)]
        return LayerParams(parts[0], parts[1], None, parts[2], parts[3])
    order = _ORDERS[net.rnn_mode]
    layer = forms.layer_of(a["kernel"], a["bias"], order, net.P)
    if net.rnn_mode == "lstm":
        layer.recurrent_bias[1] += forget_bias
    return layer._replace(projection=a[PROJECTION].T if net.num_proj else None)


@traceable
def params_to_tf1(
    params: Array | PackedParams,
    num_layers: int | None = None,
    num_units: int | None = None,
    input_size: int | None = None,
    *,
    rnn_mode: RNNMode | None = None,
    direction: Direction | None = None,
    num_proj: int | None = None,
    prefix: str = "",
) -> dict[str, Array]:
    """
    Return packed parameters as TensorFlow 1 saves a CudnnLSTM, CudnnGRU or CudnnRNN.

    Parameters
    ----------
    params : [params_size] or PackedParams
        The packed parameters. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    num_layers, num_units, input_size : int, optional
        L, H and I; a PackedParams determines them and the next three.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell; "lstm" by default.
    direction : {"unidirectional", "bidirectional"}, optional
        D is 1, the default, or 2.
    num_proj : int, optional
        P, the size to which an LSTM projects its output; 0, the default, for none.
    prefix : str
        The beginning of all names, such as "cudnn_lstm".

    Returns
    -------
    dict of str to array
        The variables of CudnnCompatibleLSTMCell, CudnnCompatibleGRUCell or BasicRNNCell, for every
        layer and direction. Their ``forget_bias`` is 0. A bias is the sum of the two packed ones,
        except those of a GRU's candidate.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or is out of range, an argument contradicts a PackedParams,
        params is not an array of the right length, or the net has skip_input, which the cells do
        not have.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> for name, a in cupyrnn.weights.params_to_tf1(np.arange(56.0), 1, 2, 3).items():
    ...     print(name, a.shape)
    rnn/multi_rnn_cell/cell_0/cudnn_compatible_lstm_cell/kernel (5, 8)
    rnn/multi_rnn_cell/cell_0/cudnn_compatible_lstm_cell/bias (8,)
    """
    op = "params_to_tf1"
    path = prefix_of(op, prefix)
    sizes, others = (num_layers, num_units, input_size), {"num_proj": num_proj}
    model = check_model(op, params, *sizes, rnn_mode=rnn_mode, direction=direction, **others)
    xp, net, vector = model
    forms.refuse(op, "TensorFlow 1", net, projection=True)
    refuse_gates(op, "TensorFlow 1", params)
    arrays: dict[str, Array] = {}
    with on_device(xp, vector):
        for pl, place in enumerate(layers(vector, net)):
            layer, d = divmod(pl, net.D)
            where = f"rnn/multi_rnn_cell/cell_{layer}/"
            if net.D == 2:
                where = f"stack_bidirectional_rnn/cell_{layer}/bidirectional_rnn/{('fw', 'bw')[d]}/"
            where = join(path, where + _CELLS[net.rnn_mode])
            arrays |= {join(where, leaf): a for leaf, a in _taken(xp, net, place).items()}
    return arrays


def _taken(xp: ModuleType, net: Net, place: LayerParams) -> dict[str, Array]:
    """Return the variables of one cell."""
    if net.rnn_mode == "gru":
        weights = forms.gru_of(xp, place)
        c = (place.input[2].T, place.input_bias[2], place.recurrent[2].T, place.recurrent_bias[2])
        candidate = {leaf: a.copy() for leaf, a in zip(tf1_cells.CUDNN_GRU, c, strict=True)}
        return {"gates/kernel": weights.w_ru, "gates/bias": weights.b_ru, **candidate}
    kernel, bias = forms.rows_of(xp, place, _ORDERS[net.rnn_mode])
    taken = {"kernel": kernel, "bias": bias}
    if place.projection is not None:
        taken[PROJECTION] = place.projection.T.copy()
    return taken
