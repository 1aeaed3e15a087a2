"""Recurrent cells of TensorFlow 1 by the names in its checkpoints, converted to packed parameters
and block weights, and back.

The names of a cell's variables begin with its path, for example "rnn/basic_lstm_cell". The path
contains the layer ("cell_1") and the direction ("fw" or "bw"). An LSTM has kernel [I+H, 4*H], with
the gates i, ci, f, o as in BlockLSTM, and bias; w_i_diag, w_f_diag and w_o_diag if it has
peepholes; and projection/kernel if it has a projection. A GRU has gates/kernel, gates/bias,
candidate/kernel and candidate/bias.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType

from .._typing import Array
from ..cells.packed import DIRECTIONS, GATES, Direction, LayerParams, Net, RNNMode, layers
from ..checks.arrays import contiguous, on_device
from ..checks.attributes import check_bool, check_choice, check_real, shown
from ..checks.calls import expect_rank
from ..derivatives.traced import traceable
from . import forms, tf1_cells
from .forms import BlockGRUParams, PeepholeLSTMParams
from .packed import PackedParams, assembled, check_model, refuse_gates
from .params import check_net
from .tf1_cells import PROJECTION, TF1Cell, join


@traceable
def block_lstm_from_tf1(variables: Mapping[str, object], *, prefix: str = "") -> PeepholeLSTMParams:
    """
    Convert the variables of an LSTM cell of TensorFlow 1 to weights of `block_lstm`.

    Accepted are BasicLSTMCell, LSTMCell with or without peepholes and projection, LSTMBlockCell,
    LSTMBlockFusedCell and CudnnCompatibleLSTMCell.

    Parameters
    ----------
    variables : mapping of str to array
        The variables by their names in the checkpoint, as `read_tf_checkpoint` returns them.
        Variables of optimizers and of other layers are ignored. Names from before TensorFlow 1.2,
        which end in weights and biases or in W_0 and B, are accepted too. Complex arrays hold
        values and tangents, see `cupyrnn.jvp`.
    prefix : str
        The path of the cell, such as "rnn/basic_lstm_cell", or the beginning of the path, if no
        other cell has it.

    Returns
    -------
    PeepholeLSTMParams
        w [I+H, 4*H], b [4*H] and wci, wcf, wco [H] or None, in the widest of the dtypes. The gates
        are in block_lstm's default order, "icfo". With a projection w is [I+P, 4*H] and w_p [H, P].
        Use `stacked_rnn` then: `block_lstm` has no projection.

    Raises
    ------
    TypeError
        variables is not a mapping of strings to arrays, or the arrays do not have floating dtypes.
    ValueError
        There is no cell or more than one, or a variable is missing, appears twice or has a wrong
        shape.

    Notes
    -----
    A checkpoint does not contain ``forget_bias``, which all these cells add at run time (1 by
    default, 0 in CudnnCompatibleLSTMCell). Neither does it contain ``cell_clip`` and ``proj_clip``
    (none by default): pass them to `stacked_rnn`. `block_lstm` and `stacked_rnn` clip cs at 3 by
    default: pass ``cell_clip=0`` if the cell had no clip.

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
    Convert weights of `block_lstm` to variables of TensorFlow 1's LSTM cells, by name.

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
        Whether to use the names from before TensorFlow 1.2: weights and biases instead of kernel
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
    weights = {"w": w, "b": b, "wci": wci, "wcf": wcf, "wco": wco, "w_p": w_p}
    xp, _, _ = forms.check_block_lstm(op, weights)
    arrays = {tf1_cells.LSTM[name]: a for name, a in weights.items() if a is not None}
    return _named(op, xp, prefix, arrays, old_names)


def prefix_of(op: str, prefix: object) -> str:
    """Check a path; return it without a slash at its end."""
    if not isinstance(prefix, str):
        raise TypeError(f"{op}: prefix is {shown(prefix)}, expected a string")
    return prefix.removesuffix("/")


def _named(
    op: str, xp: ModuleType, prefix: object, arrays: Mapping[str, Array], old_names: object
) -> dict[str, Array]:
    """Return copies of the arrays, by the names of variables under a path."""
    path = prefix_of(op, prefix)
    name_of = tf1_cells.old_name if check_bool(op, "old_names", old_names) else str
    with on_device(xp, next(iter(arrays.values()))):
        return {join(path, name_of(leaf)): contiguous(xp, a).copy() for leaf, a in arrays.items()}


@traceable
def block_gru_from_tf1(variables: Mapping[str, object], *, prefix: str = "") -> BlockGRUParams:
    """
    Convert the variables of a GRU cell of TensorFlow 1 to weights of `block_gru`.

    Accepted are GRUCell, GRUBlockCell and GRUBlockCellV2.

    Parameters
    ----------
    variables : mapping of str to array
        The variables by their names in the checkpoint, as in `block_lstm_from_tf1`: gates/kernel,
        gates/bias, candidate/kernel and candidate/bias, or GRUBlockCell's w_ru, b_ru, w_c and b_c.
        Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    prefix : str
        The path of the cell, or its beginning, if no other cell has it.

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
            " use params_from_tf1"
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
    Convert weights of `block_gru` to variables of TensorFlow 1's GRUCell and GRUBlockCellV2.

    Parameters
    ----------
    w_ru, w_c, b_ru, b_c : [I+H, 2*H], [I+H, H], [2*H], [H]
        The weights and biases. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    prefix : str
        The path of the cell.
    old_names : bool
        Whether to use the names from before TensorFlow 1.2: weights and biases instead of kernel
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
    variables: Mapping[str, object],
    *,
    rnn_mode: RNNMode | None = None,
    forget_bias: float | None = None,
    prefix: str = "",
) -> PackedParams:
    """
    Pack the layers and directions of TensorFlow 1 cells that compute the same as CudnnRNN.

    Accepted are LSTM cells without peepholes, with or without a projection,
    CudnnCompatibleLSTMCell, CudnnCompatibleGRUCell and BasicRNNCell. Checkpoints of CudnnLSTM,
    CudnnGRU, CudnnRNNTanh and CudnnRNNRelu are accepted too: TensorFlow saves them as such cells.

    Parameters
    ----------
    variables : mapping of str to array
        The variables by their names in the checkpoint, as in `block_lstm_from_tf1`. "cell_0",
        "cell_1" in the path give the layer, "fw" and "bw" the direction. Complex arrays hold values
        and tangents, see `cupyrnn.jvp`.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell. By default a GRU if the names are a GRU's, else an LSTM. For a basic_rnn_cell
        this argument must give the activation.
    forget_bias : float, optional
        The value that the LSTM cells add at run time. No checkpoint contains it; TensorFlow's
        default is 1. It is required, except for CudnnLSTM and CudnnCompatibleLSTMCell, which add
        nothing: for them it must be 0 or None.
    prefix : str
        The beginning of the paths of all cells.

    Returns
    -------
    PackedParams
        The packed vector, in the widest of the dtypes, and the configuration that follows from the
        names and shapes. If the cell has one bias and cuDNN two, it becomes the recurrent bias.

    Raises
    ------
    TypeError
        variables is not a mapping of strings to arrays, or the arrays do not have floating dtypes.
    ValueError
        forget_bias is missing, or is not 0 for cells that add none. A cell or variable is missing
        or appears twice, a shape does not fit the others, or CudnnRNN cannot compute the same: it
        has no peepholes, no GRUCell, and no two separate stacks of layers, one per direction.

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
                name = ("fw", "bw")[d] if D == 2 else "forward"
                raise ValueError(f"{op}: variables has no cell for layer {layer}, {name}")
    ordered = [places[place] for place in sorted(places)]
    rnn_mode = _mode(op, rnn_mode, ordered)
    added = 0.0
    if forget_bias is not None:
        added = check_real(op, "forget_bias", forget_bias)
        whole = [cell.path for cell in ordered if cell.own_name == _CELLS["lstm"]]
        if whole and added != 0:
            raise ValueError(
                f"{op}: forget_bias is {shown(forget_bias)}, expected 0 or None for {whole[0]}:"
                " CudnnLSTM adds no forget_bias at run time"
            )
    elif rnn_mode == "lstm" and any(cell.own_name != _CELLS["lstm"] for cell in ordered):
        raise ValueError(
            f"{op}: forget_bias is None, expected the cells' forget_bias, which is not in the"
            " checkpoint; TensorFlow's default is 1"
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


# The places of the packed gates in TensorFlow's cells with one kernel.
_ORDERS = {"lstm": forms.BLOCK["icfo"], "rnn_tanh": [0], "rnn_relu": [0]}
# TensorFlow 1's names of the cells that compute the same as CudnnRNN.
_CELLS = {
    "lstm": "cudnn_compatible_lstm_cell",
    "gru": "cudnn_compatible_gru_cell",
    "rnn_tanh": "basic_rnn_cell",
    "rnn_relu": "basic_rnn_cell",
}


def _places(op: str, cells: list[TF1Cell], prefix: str) -> dict[tuple[int, int], TF1Cell]:
    """Return the cells by layer and direction, which are parts of their paths."""
    places: dict[tuple[int, int], TF1Cell] = {}
    has_forward = False
    for cell in cells:
        path = cell.path[len(prefix) :]
        numbers = list(re.finditer(r"(?:^|/)cell_([0-9]{1,9})(?=/|$)", path))
        directions = list(re.finditer(r"(?:^|/)(fw|bw)(?=/|$)", path))
        if numbers and directions and directions[-1].start() < numbers[-1].start():
            raise ValueError(
                f"{op}: {cell.path} belongs to a stack of layers of one direction, but every layer"
                " of CudnnRNN reads both directions of the one below; choose one stack with prefix"
            )
        place = (
            int(numbers[-1][1]) if numbers else 0,
            int(bool(directions) and directions[-1][1] == "bw"),
        )
        if place in places:
            raise ValueError(
                f"{op}: variables has two cells for layer {place[0]}, {places[place].path} and"
                f" {cell.path}; choose with prefix"
            )
        places[place] = cell
        has_forward = has_forward or (bool(directions) and directions[-1][1] == "fw")
    if has_forward and not any(d for _, d in places):
        layer = min(layer for layer, _ in places)
        raise ValueError(f"{op}: variables has no cell for layer {layer}, bw")
    return places


def _mode(op: str, rnn_mode: RNNMode | None, cells: list[TF1Cell]) -> RNNMode:
    """Return rnn_mode, by default from the names; refuse cells that CudnnRNN cannot compute."""
    for cell in cells:
        if set(tf1_cells.PEEPHOLES.values()) & cell.names.keys():
            raise ValueError(
                f"{op}: {cell.path} has peepholes, which CudnnRNN does not have;"
                " use block_lstm_from_tf1"
            )
        if {"candidate/kernel", "w_ru"} & cell.names.keys():
            raise ValueError(
                f"{op}: {cell.path} is a GRUCell, which resets before the product, unlike"
                " CudnnRNN's; use block_gru_from_tf1"
            )
    if rnn_mode is None:
        if "gates/kernel" in cells[0].names:
            return "gru"
        if cells[0].own_name == "basic_rnn_cell":
            raise forms.unclear_rnn(op, f"{cells[0].path} does")
        return "lstm"
    return rnn_mode


def _sizes(op: str, cell: TF1Cell, rnn_mode: RNNMode, P: int) -> tuple[int, int]:
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


def _part(xp: ModuleType, cell: TF1Cell, net: Net, forget_bias: float) -> LayerParams:
    """Convert a cell's variables to the packed layout."""
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
    Convert packed parameters to the variables that TensorFlow 1 saves of a CudnnLSTM, CudnnGRU or
    CudnnRNN.

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
        except for a GRU's candidate.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or is out of range, an argument contradicts a PackedParams,
        params is not an array of the right length, or the net has skip_input: the cells have none.

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
