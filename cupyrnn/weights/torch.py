"""Parameters of PyTorch's recurrent modules and cells, converted to packed parameters and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from .._typing import Array
from ..cells.packed import DIRECTIONS, Net, RNNMode, layers
from ..checks.arrays import on_device
from ..checks.attributes import check_bool, shown
from ..checks.calls import expect_rank, expect_shape
from ..derivatives.traced import traceable
from .forms import as_arrays, check_names, mode_of, nested, refuse
from .packed import PackedParams, check_packed, refuse_gates
from .params import check_net, zeros

_FIRST = ("weight_ih_l0", "weight_ih", "weight_ih_l0_raw")


@traceable
def params_from_torch(
    state_dict: Mapping[str, object], *, rnn_mode: RNNMode | None = None, prefix: str = ""
) -> PackedParams:
    """
    Pack the parameters of a torch.nn.LSTM, GRU or RNN, or of an LSTMCell, GRUCell or RNNCell.

    Parameters
    ----------
    state_dict : mapping of str to array
        PyTorch's names, ``weight_ih_l0``, ``weight_hh_l0``, ``bias_ih_l0`` and ``bias_hh_l0``, with
        ``_reverse`` for the second direction, and ``weight_hr_l0`` with a projection; the names of
        a cell have no ``_l0``. The values are arrays, or tensors on the host, or anything with
        ``numpy()`` or ``__array__``. PyTorch's bfloat16 becomes float32. Missing biases
        (``bias=False``) are zero. A ``weight_hh_l0_raw`` of weight drop replaces the weight beside
        it. PyTorch's order of the gates is the same. Complex arrays hold values and tangents, see
        `cupyrnn.jvp`.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}, optional
        The cell. The shapes identify LSTMs and GRUs. For an RNN this argument must give the
        nonlinearity.
    prefix : str
        The beginning of the names inside a larger model, such as "encoder.rnn"; a dot at its end is
        optional.

    Returns
    -------
    PackedParams
        The packed vector, in the widest of the dtypes, and the configuration that follows from the
        shapes.

    Raises
    ------
    TypeError
        state_dict is not a mapping of strings to arrays, or the arrays do not have floating dtypes
        or are not on one device.
    ValueError
        A name is missing or unknown, a shape does not fit the others, or rnn_mode is missing and
        the shapes are an RNN's.

    Notes
    -----
    With ``batch_first=True``, PyTorch's input and output are [B, T, ·], but its states are still
    [L*D, B, H]. With ``time_major=False``, the states of `cudnn_rnn` are [B, L*D, H].

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> state = {"weight_ih_l0": np.ones((8, 3)), "weight_hh_l0": np.ones((8, 2))}
    >>> cupyrnn.weights.params_from_torch(state)[1:5]
    (1, 2, 3, 'lstm')
    """
    op = "params_from_torch"
    prefix, tensors = _under(op, state_dict, prefix)
    end = "" if "weight_ih" in tensors else "_l0"  # a cell's names have no layer
    xp, arrays = as_arrays(op, {prefix + name: a for name, a in tensors.items()})

    def entry(name: str, symbols: str) -> tuple[int, ...]:
        full_name = prefix + name + end
        if full_name not in arrays:
            raise _missing(op, full_name, arrays)
        return expect_rank(op, full_name, arrays[full_name], symbols)

    rows, I = entry("weight_ih", "(G*H, K)")
    H, P = entry("weight_hh", "(G*H, P or H)")[1], 0
    if "weight_hr" + end in tensors:
        P, H = entry("weight_hr", "(P, H)")
    problem = f"{prefix}weight_ih{end} has shape {(rows, I)}, expected (G*H, K)"
    rnn_mode, H = mode_of(op, rnn_mode, rows, H, problem)
    L = sum(re.fullmatch(r"weight_ih_l[0-9]+", name) is not None for name in tensors) or 1
    D = 1 + (f"weight_ih{end}_reverse" in tensors)
    net = check_net(op, L, H, I, rnn_mode, "linear_input", DIRECTIONS[D - 1], P)
    biased = any(name.startswith("bias") for name in tensors)
    remaining = dict(arrays)
    without_memory: Array = np.broadcast_to(np.float32(0), net.params_size)
    for name, symbols, place in _places(net, without_memory, end):
        if name in tensors:
            expect_shape(op, prefix + name, remaining.pop(prefix + name), symbols, place.shape)
        elif biased or not name.startswith("bias"):
            raise _missing(op, prefix + name, arrays)
    if remaining:
        name = next(iter(remaining))
        raise ValueError(f"{op}: state_dict has {name}, which does not belong to this module")
    params = zeros(op, xp, net, next(iter(arrays.values())))
    with on_device(xp, params):
        for name, _, place in _places(net, params, end):
            if name in tensors:
                place[...] = arrays[prefix + name]
    return PackedParams(params, *net.known)


def _missing(op: str, name: str, arrays: Mapping[str, object]) -> ValueError:
    """Return the error of a missing weight; a hint if a parametrization replaces it."""
    weight, hint = re.escape(name.rpartition(".")[2]), ""
    parts = re.compile(rf"(.*\.)?{weight}(_g|_v|_raw|_orig|\.original.*)", re.DOTALL)
    for parametrized in filter(parts.fullmatch, arrays):
        hint = f", but {parametrized}: save the weight itself, as after remove_parametrizations"
    return ValueError(f"{op}: state_dict has no {name}{hint or nested('state_dict', arrays)}")


def _under(op: str, state_dict: Mapping[str, object], prefix: str) -> tuple[str, dict[str, object]]:
    """Return the prefix with its dot, and the items whose names have it, without it."""
    check_names(op, "state_dict", state_dict, prefix)
    for whole in (prefix, prefix.removesuffix(".") + "." if prefix else ""):
        if any(whole + first in state_dict for first in _FIRST):
            names = {name[len(whole) :]: name for name in state_dict if name.startswith(whole)}
            # Weight drop keeps a weight as NAME_raw here, or in the module that wraps this one; the
            # weight beside it has zeros of the last training step.
            for above in {whole, whole.removesuffix("module.")}:
                for name in (name for name in state_dict if name.endswith("_raw")):
                    leaf = name.removeprefix(above).removesuffix("_raw")
                    if name == f"{above}{leaf}_raw" and "." not in leaf:
                        names.pop(f"{leaf}_raw", None)
                        names[leaf] = name
            return whole, {leaf: state_dict[name] for leaf, name in names.items()}
    ends = re.compile(r"(.*?)weight_ih(_l0)?", re.DOTALL)
    prefixes = sorted({match[1] for name in state_dict if (match := ends.fullmatch(name))})
    if not prefixes:
        raise _missing(op, f"{whole}weight_ih_l0", state_dict)
    raise ValueError(
        f"{op}: state_dict has no {whole}weight_ih_l0; the prefixes in it are {shown(prefixes)}"
    )


@traceable
def params_to_torch(
    params: PackedParams, *, cell: bool = False, gradient: bool = False
) -> dict[str, Array]:
    """
    Convert packed parameters to the state_dict of a torch.nn.LSTM, GRU or RNN, or of a cell.

    Parameters
    ----------
    params : PackedParams
        The net. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    cell : bool
        Whether to use the names of an LSTMCell, GRUCell or RNNCell. The net must have one layer and
        one direction.
    gradient : bool
        Whether params holds a gradient: ``packed._replace(params=grads.params_backprop)``. PyTorch
        has cuDNN's two biases, so the gradient is converted as the parameters are.

    Returns
    -------
    dict of str to array
        Copies, for ``module.load_state_dict({k: torch.from_numpy(a) ...})``; of a gradient, the
        ``grad`` of each parameter.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type, params is not a PackedParams of the right length, the net has
        skip_input or hard sigmoids (PyTorch has neither), or cell is True and the net is not one
        cell.

    Examples
    --------
    >>> import cupyrnn
    >>> packed = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    >>> state = cupyrnn.weights.params_to_torch(packed)
    >>> {name: a.shape for name, a in state.items() if "weight" in name}
    {'weight_ih_l0': (8, 3), 'weight_hh_l0': (8, 2)}
    """
    op = "params_to_torch"
    xp, net, vector = check_packed(op, params)
    refuse(op, "PyTorch", net, projection=True)
    refuse_gates(op, "PyTorch", params)
    check_bool(op, "gradient", gradient)
    if check_bool(op, "cell", cell) and (net.L > 1 or net.D > 1 or net.num_proj):
        raise ValueError(
            f"{op}: cell is True, but params is of a net with L = {net.L}, D = {net.D} and"
            f" num_proj = {net.num_proj}, expected 1, 1 and 0"
        )
    with on_device(xp, vector):
        places = _places(net, vector, "" if cell else "_l0")
        return {name: place.copy() for name, _, place in places}


def _places(net: Net, params: Array, end: str = "_l0") -> Iterator[tuple[str, str, Array]]:
    """
    Yield PyTorch's name of each array, the symbols of its shape, and its place: a view.

    Names of layers end in "_l0", "_l0_reverse", "_l1", ...; names of a cell (`end` "") do not.
    """
    for pl, layer in enumerate(layers(params, net)):
        if end:
            end = f"_l{pl // net.D}" + "_reverse" * (pl % net.D)
        G, H, K = layer.input.shape
        yield "weight_ih" + end, "(G*H, K)", layer.input.reshape(G * H, K)
        yield "weight_hh" + end, "(G*H, P or H)", layer.recurrent.reshape(G * H, net.P)
        yield "bias_ih" + end, "(G*H,)", layer.input_bias.reshape(G * H)
        yield "bias_hh" + end, "(G*H,)", layer.recurrent_bias.reshape(G * H)
        if layer.projection is not None:
            yield "weight_hr" + end, "(P, H)", layer.projection
