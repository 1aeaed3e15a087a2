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
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from .._typing import Array
from ..cells.block_forms import GRU_FORM, LSTM_FORM
from ..cells.block_weights import BlockGRUParams, PeepholeLSTMParams
from ..cells.packed import DIRECTIONS, GATES, LayerParams, Net, RNNMode, gate_places
from ..checks.arrays import contiguous, on_device
from ..checks.attributes import check_choice, check_count, check_real, shown
from ..checks.calls import expect_rank
from ..derivatives.traced import traceable
from . import forms, tf1_cells
from .packed import PackedParams, assembled, refuse_gates
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
    peepholes = [*tf1_cells.PEEPHOLES.values()]
    peepholes *= bool(cell.names.keys() & {*peepholes})
    _, H = tf1_cells.kernel_sizes(op, cell, 4, P, *peepholes)
    for leaf in peepholes:
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
    like: Mapping[str, object] | None = None,
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
    like : mapping of str to array, optional
        The variables that `block_lstm_from_tf1` read, with the same prefix: the result has the
        names of that cell, such as those from before TensorFlow 1.2.

    Returns
    -------
    dict of str to array
        Copies: kernel, bias, with peepholes w_i_diag, w_f_diag and w_o_diag, and with a projection
        projection/kernel.

    Raises
    ------
    TypeError, ValueError
        An argument is not an array, a shape does not fit, or the cell of `like` is another one.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> list(cupyrnn.weights.block_lstm_to_tf1(np.ones((5, 8)), np.ones(8), prefix="rnn/lstm_cell"))
    ['rnn/lstm_cell/kernel', 'rnn/lstm_cell/bias']
    """
    op = "block_lstm_to_tf1"
    weights = {"w": w, "b": b, "wci": wci, "wcf": wcf, "wco": wco, "w_p": w_p}
    xp, _, _ = forms.check_block(op, LSTM_FORM, weights)
    path, cell = forms.check_prefix(op, prefix), None
    if like is not None:
        _, cell = tf1_cells.one_cell(op, like, prefix)
    with on_device(xp, w):
        present = {name: a for name, a in weights.items() if a is not None}
        taken = {tf1_cells.LSTM[name]: contiguous(xp, a).copy() for name, a in present.items()}
        return _named(op, path, taken, cell)


def _named(op: str, path: str, taken: dict[str, Array], cell: TF1Cell | None) -> dict[str, Array]:
    """Return a cell's variables by their names under a path, or by those of the cell read."""
    if cell is None:
        return {join(path, leaf): a for leaf, a in taken.items()}
    if taken.keys() != cell.names.keys():
        raise ValueError(
            f"{op}: like has {', '.join(cell.names.values())}, expected a cell with"
            f" {', '.join(taken)}"
        )
    for leaf, a in taken.items():
        cell.expect(op, leaf, "the shape of the weights", a.shape)
    return {cell.names[leaf]: a for leaf, a in taken.items()}


@traceable
def params_from_tf1(
    variables: Mapping[str, object],
    *,
    rnn_mode: RNNMode | None = None,
    forget_bias: float | None = None,
    prefix: str = "",
) -> PackedParams | Any:  # a list of BlockGRUParams; a union would need a test in every typed call
    """
    Convert the layers and directions of TensorFlow 1 cells.

    Accepted are LSTM cells without peepholes, with or without a projection,
    CudnnCompatibleLSTMCell, CudnnCompatibleGRUCell and BasicRNNCell, and GRUCell, GRUBlockCell and
    GRUBlockCellV2, which reset before the product. Checkpoints of CudnnLSTM, CudnnGRU, CudnnRNNTanh
    and CudnnRNNRelu are accepted too: TensorFlow saves them as such cells.

    Parameters
    ----------
    variables : mapping of str to array
        The variables by their names in the checkpoint, as in `block_lstm_from_tf1`. "cell_0",
        "cell_1" in the path give the layer, "fw" and "bw" the direction. Complex arrays hold values
        and tangents, see `cupyrnn.jvp`.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell. By default a GRU if the names are a GRU's, else an LSTM. For a basic_rnn_cell
        this argument must give the activation. It must not contradict the names.
    forget_bias : float, optional
        The value that the LSTM cells add at run time. No checkpoint contains it; TensorFlow's
        default is 1. It is required, except for CudnnLSTM and CudnnCompatibleLSTMCell, which add
        nothing: for them it must be 0 or None.
    prefix : str
        The beginning of the paths of all cells.

    Returns
    -------
    PackedParams or list of BlockGRUParams
        The packed vector, in the widest of the dtypes, and the configuration that follows from the
        names and shapes. If the cell has one bias and cuDNN two, it becomes the recurrent bias.
        Cells that reset before the product become a list of weights of `block_gru`, one for each
        layer and direction, as `stacked_rnn` takes it.

    Raises
    ------
    TypeError
        variables is not a mapping of strings to arrays, or the arrays do not have floating dtypes.
    ValueError
        forget_bias is missing, or is not 0 for cells that add none. A cell or variable is missing
        or appears twice, a shape does not fit the others, there are a mask or averages beside the
        weights, or no op computes the same: CudnnRNN has no peepholes, and no two separate stacks
        of layers, one per direction.

    See Also
    --------
    params_to_tf1 : The inverse.
    block_lstm_from_tf1 : For one LSTM with peepholes.

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
    xp, ordered, D = _ordered(op, variables, prefix)
    rnn_mode = _mode(op, rnn_mode, ordered)
    added = _forget_bias(op, rnn_mode, forget_bias, ordered)
    P = ordered[0].projection_size(op)
    before = "candidate/kernel" in ordered[0].names  # the reset, before the product
    sizes = [_sizes(op, cell, rnn_mode, P, before) for cell in ordered]
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
    like = next(iter(ordered[0].arrays.values()))
    if before:
        with on_device(xp, like):
            weights = (cell.only(op, *tf1_cells.OF_GRU_CELL) for cell in ordered)
            return [BlockGRUParams(*(a.copy() for a in arrays)) for arrays in weights]
    return assembled(op, xp, net, like, (_part(xp, cell, net, added) for cell in ordered))


# TensorFlow 1's names of the cells that compute the same as CudnnRNN.
_CELLS = {
    "lstm": "cudnn_compatible_lstm_cell",
    "gru": "cudnn_compatible_gru_cell",
    "rnn_tanh": "basic_rnn_cell",
    "rnn_relu": "basic_rnn_cell",
}


def _ordered(
    op: str, variables: Mapping[str, object], prefix: str
) -> tuple[ModuleType, list[TF1Cell], int]:
    """Return the module, the cells of all layers and directions in their order, and D."""
    xp, cells = tf1_cells.cells_of(op, variables, prefix)
    places = _places(op, cells, prefix)
    D = 1 + any(d == 1 for _, d in places)
    for layer in range(1 + max(layer for layer, _ in places)):
        for d in range(D):
            if (layer, d) not in places:
                name = ("fw", "bw")[d] if D == 2 else "forward"
                raise ValueError(f"{op}: variables has no cell for layer {layer}, {name}")
    return xp, [places[place] for place in sorted(places)], D


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
        expected = cell.named_mode
        if rnn_mode is not None and expected and not rnn_mode.startswith(expected):
            expected = "rnn_tanh or rnn_relu" if expected == "rnn" else expected
            raise ValueError(
                f"{op}: rnn_mode is {shown(rnn_mode)}, expected {expected} for {cell.path}"
            )
    if rnn_mode is None:
        if cells[0].named_mode == "gru":
            return "gru"
        if cells[0].named_mode == "rnn":
            raise forms.unclear_rnn(op, f"{cells[0].path} does")
        return "lstm"
    return rnn_mode


def _sizes(op: str, cell: TF1Cell, rnn_mode: RNNMode, P: int, before: bool) -> tuple[int, int]:
    """Check the variables of a cell; return K and H."""
    if rnn_mode != "gru":
        return tf1_cells.kernel_sizes(op, cell, len(GATES[rnn_mode]), P)
    if before:
        weights = cell.only(op, *tf1_cells.OF_GRU_CELL)
        names = [cell.names[leaf] for leaf in tf1_cells.OF_GRU_CELL]
        return forms.check_block(op, GRU_FORM, dict(zip(names, weights, strict=True)))[1:]
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
    layer = forms.layer_of(a["kernel"], a["bias"], gate_places("tf1", net.rnn_mode), net.P)
    if net.rnn_mode == "lstm":
        layer.recurrent_bias[1] += forget_bias
    return layer._replace(projection=a[PROJECTION].T if net.num_proj else None)


@traceable
def params_to_tf1(
    params: PackedParams | BlockGRUParams | Sequence[BlockGRUParams],
    *,
    like: Mapping[str, object] | None = None,
    forget_bias: float | None = None,
    prefix: str = "",
    gradient: bool = False,
) -> dict[str, Array]:
    """
    Convert weights to the variables of TensorFlow 1's cells, by name.

    Parameters
    ----------
    params : PackedParams, BlockGRUParams or sequence of BlockGRUParams
        What `params_from_tf1` returns: packed parameters, or weights of `block_gru`. Complex arrays
        hold values and tangents, see `cupyrnn.jvp`.
    like : mapping of str to array, optional
        The variables that `params_from_tf1` read: the result has the names of its cells. By
        default, the names are those that TensorFlow 1 saves of a CudnnLSTM, CudnnGRU or CudnnRNN,
        and for one GRU that resets before the product those of a GRUCell.
    forget_bias : float, optional
        The value that the LSTM cells of `like` add at run time, as in `params_from_tf1`. It is
        subtracted from the biases. The cells of a CudnnLSTM add nothing.
    prefix : str
        The beginning of all names, such as "cudnn_lstm"; with `like` the same prefix as in
        `params_from_tf1`.
    gradient : bool
        Whether params holds a gradient: ``packed._replace(params=grads.params_backprop)``. Then the
        result is the gradient of the variables. The gradients of cuDNN's two biases are equal, and
        each is the gradient of the one bias of a cell.

    Returns
    -------
    dict of str to array
        The variables of every layer and direction: copies. A bias is the sum of the two packed
        ones, except for the candidate of a CudnnGRU.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type, an array has a wrong shape, the cells of `like` are others
        than the net's, forget_bias is missing, or the net has skip_input: the cells have none.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    >>> for name, a in cupyrnn.weights.params_to_tf1(packed).items():
    ...     print(name, a.shape)
    rnn/multi_rnn_cell/cell_0/cudnn_compatible_lstm_cell/kernel (5, 8)
    rnn/multi_rnn_cell/cell_0/cudnn_compatible_lstm_cell/bias (8,)
    >>> variables = {"rnn/lstm_cell/kernel": np.ones((5, 8)), "rnn/lstm_cell/bias": np.ones(8)}
    >>> packed = cupyrnn.weights.params_from_tf1(variables, forget_bias=1)
    >>> back = cupyrnn.weights.params_to_tf1(packed, like=variables, forget_bias=1)
    >>> all((back[name] == a).all() for name, a in variables.items())
    True
    """
    op, name = "params_to_tf1", "TensorFlow 1"
    path = forms.check_prefix(op, prefix)
    xp, mode, net, vector, places = forms.opened(op, params, name, gradient, projection=True)
    if net is not None and isinstance(params, PackedParams):
        refuse_gates(op, name, params)
    cells: list[TF1Cell] = []
    if like is not None:
        _, cells, D = _ordered(op, like, prefix)
        if len(cells) != len(places) or (net is not None and net.D != D):
            raise ValueError(
                f"{op}: like has {len(cells)} cells in {D} directions, expected those of params"
            )
    added = _forget_bias(op, mode, forget_bias, cells)
    if not cells and net is None:
        check_count(op, "params", places, len(places) == 1, "1, or the variables read as like")
    arrays: dict[str, Array] = {}
    with on_device(xp, vector):
        if mode != "gru":
            places = forms.with_one_bias(op, places, gradient, added)
        for pl, place in enumerate(places):
            taken, cell = _taken(xp, mode, place, gradient), cells[pl] if cells else None
            where = path
            if net is not None:
                where = join(path, _path_of(mode, net.D, *divmod(pl, net.D)))
            arrays |= _named(op, where, taken, cell)
    return arrays


def _forget_bias(op: str, mode: str, forget_bias: float | None, cells: Sequence[TF1Cell]) -> float:
    """Return the value that cells add at run time; it must be passed for those that do."""
    of_lstm = [cell for cell in cells if mode == "lstm" and cell.named_mode in ("", "lstm")]
    adds = [cell.path for cell in of_lstm if tf1_cells.own_name(cell.path) != _CELLS["lstm"]]
    if forget_bias is None:
        if adds:
            raise ValueError(
                f"{op}: forget_bias is None, expected the forget_bias of {adds[0] or 'the cell'},"
                " which is not in the checkpoint; TensorFlow's default is 1"
            )
        return 0.0
    value = check_real(op, "forget_bias", forget_bias)
    if value != 0 and (not adds or len(adds) < len(cells)):
        name = next((cell.path for cell in cells if cell.path not in adds), "") or "the cell"
        raise ValueError(
            f"{op}: forget_bias is {shown(forget_bias)}, expected 0 or None: {name} adds no"
            " forget_bias at run time"
        )
    return value


def _path_of(mode: RNNMode, D: int, layer: int, d: int) -> str:
    """Return the path of a cell as TensorFlow 1 saves a CudnnRNN."""
    where = f"rnn/multi_rnn_cell/cell_{layer}/"
    if D == 2:
        where = f"stack_bidirectional_rnn/cell_{layer}/bidirectional_rnn/{('fw', 'bw')[d]}/"
    return where + _CELLS[mode]


def _taken(xp: ModuleType, mode: RNNMode, place: LayerParams, gradient: bool) -> dict[str, Array]:
    """Return the variables of one cell."""
    if mode == "gru":
        both = place.input_bias is not None
        weights = forms.gru_of(xp, place._replace(input_bias=None) if gradient else place)
        if not both:
            return dict(zip(tf1_cells.OF_GRU_CELL, weights, strict=True))
        c = (place.input[2].T, place.input_bias[2], place.recurrent[2].T, place.recurrent_bias[2])
        candidate = {leaf: a.copy() for leaf, a in zip(tf1_cells.CUDNN_GRU, c, strict=True)}
        return {"gates/kernel": weights.w_ru, "gates/bias": weights.b_ru, **candidate}
    kernel, bias = forms.rows_of(xp, place, gate_places("tf1", mode))
    taken = {"kernel": kernel, "bias": bias}
    if place.projection is not None:
        taken[PROJECTION] = place.projection.T.copy()
    return taken
