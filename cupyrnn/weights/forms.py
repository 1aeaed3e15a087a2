"""Shared by the converters: gate orders and layouts, and other frameworks' tensors as arrays.

In the packed vector a gate's matrix is [H, K]. Keras, TensorFlow's cells and ONNX order the gates
of a layer differently and join their matrices in one, side by side or stacked, mostly transposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array, NamedTuple
from ..cells.block_weights import BlockGRUParams, PeepholeLSTMParams
from ..cells.contract import Form
from ..cells.packed import GATES, LayerParams, Net, RNNMode, layers
from ..checks.arrays import array_kind, cast, contiguous, on_device, plain
from ..checks.attributes import check_bool, check_choice, read_first, shown, type_shown
from ..checks.block import shape_of, symbols_shown
from ..checks.calls import check_arrays, expect_rank, expect_shape
from .packed import check_packed


def as_arrays(op: str, tensors: Mapping[str, object]) -> tuple[ModuleType, dict[str, Array]]:
    """
    Return arrays of one module, in the widest of their dtypes.

    Objects that have ``numpy()`` (tensors of PyTorch and TensorFlow) or ``__array__`` are
    converted. Nothing is copied from a device: frameworks refuse to convert a tensor on one.
    """
    arrays: dict[str, Array] = {}
    for name, value in tensors.items():
        arrays[name] = _as_array(op, name, value)
        xp, _ = check_arrays(op, {name: arrays[name]})
        arrays[name] = plain(arrays[name]) if xp is np else arrays[name]
    dtypes = {a.dtype for a in arrays.values()}
    if len(dtypes) > 1:
        widest = max(dtypes, key=lambda dtype: dtype.itemsize)
        if any(dtype.kind == "c" for dtype in dtypes):  # complex arrays hold a tangent
            widest = np.dtype("D" if any(dtype.char in "dD" for dtype in dtypes) else "F")
        elif widest.itemsize == 2:  # float16 and bfloat16: neither holds the other's values
            widest = np.dtype(np.float32)
        with on_device(xp, next(iter(arrays.values()))):
            arrays = {name: cast(a, widest) for name, a in arrays.items()}
    xp, _ = check_arrays(op, arrays)
    return xp, arrays


def _as_array(op: str, name: str, value: Any) -> Array:
    """Return a value as an array if it is one or can be converted, else unchanged."""
    if array_kind(value) is not None or isinstance(value, (np.ndarray, np.generic)):
        return value
    try:
        if callable(getattr(value, "detach", None)):  # a tensor of PyTorch
            value = value.detach()
            if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # its numpy() refuses bfloat16
                value = value.float()
        if callable(getattr(value, "numpy", None)):
            return np.asarray(value.numpy())
        if callable(getattr(value, "__array__", None)):
            return np.asarray(value)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise TypeError(
            f"{op}: {name} is {type_shown(value)} that NumPy cannot read: {reason}"
        ) from error
    return value


def check_names(op: str, argument: str, mapping: object, prefix: object) -> None:
    """Check that an argument is a mapping of strings, and `prefix` a string."""
    if not isinstance(mapping, Mapping):
        has_it = callable(getattr(type(mapping), argument, None))
        hint = f"; pass its {argument}()" if has_it else read_first(mapping)
        raise TypeError(
            f"{op}: {argument} is {type_shown(mapping)}, expected a mapping of names to"
            f" arrays{hint}"
        )
    for name in mapping:
        if not isinstance(name, str):
            raise TypeError(f"{op}: {argument} has the key {shown(name)}, expected strings")
    check_prefix(op, prefix)


def check_prefix(op: str, prefix: object) -> str:
    """Check the beginning of names; return it without a slash at its end."""
    if not isinstance(prefix, str):
        raise TypeError(f"{op}: prefix is {shown(prefix)}, expected a string")
    return prefix.removesuffix("/")


def nested(argument: str, arrays: Mapping[str, object]) -> str:
    """Return the end of an error about missing names: where in a checkpoint they may be."""
    for name, value in arrays.items():
        if isinstance(value, Mapping):
            return f"; {argument}[{name!r}] is a mapping: pass that"
        if "_all_weight_values" in name or name.endswith("_packed_params"):
            return f"; {name} is of quantize_dynamic: save the model before it is quantized"
    return ""


def unclear_rnn(op: str, clue: str) -> ValueError:
    """Return the error of an RNN without rnn_mode, whose activation `clue` does not tell."""
    return ValueError(
        f"{op}: rnn_mode is None, expected 'rnn_tanh' or 'rnn_relu': {clue} not tell them apart"
    )


def mode_of(
    op: str, rnn_mode: RNNMode | None, width: int, H: int, problem: str
) -> tuple[RNNMode, int]:
    """
    Return the cell and H, from `width`, which is G*H.

    If `rnn_mode` is not None, it determines H; else G follows from H, the size of another array.
    `problem` begins the error.
    """
    if rnn_mode is not None:
        G = len(GATES[check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))])
        if width % G:
            raise ValueError(f"{op}: {problem} with G = {G} for {rnn_mode}")
        return rnn_mode, width // G
    for mode, gates in GATES.items():
        if width == len(gates) * H:
            if len(gates) == 1:
                raise unclear_rnn(op, "the shapes do")
            return mode, H
    raise ValueError(
        f"{op}: {problem} with H = {H} and G = 4 for lstm, 3 for gru or 1 for rnn_tanh and rnn_relu"
    )


def by_gate(a: Array, G: int) -> Array:
    """Return [K, G*H], gates side by side, as [G, H, K]."""
    return a.reshape(a.shape[0], G, -1).transpose(1, 2, 0)


def side_by_side(a: Array) -> Array:
    """Return [G, H, K] as [K, G*H], a copy."""
    G, H, K = a.shape
    return a.transpose(2, 0, 1).reshape(K, G * H)


def layer_of(rows: Array, bias: Array, order: Sequence[int], P: int | None = None) -> LayerParams:
    """Convert rows [K+P, G*H] and a bias [G*H], gates in this order, to the packed layout."""
    gates = by_gate(rows, len(order))
    K = gates.shape[2] - (P or gates.shape[1])
    gates = gates if order == sorted(order) else gates[order]
    biases = bias.reshape(len(order), -1)[order]
    return LayerParams(gates[:, :, :K], gates[:, :, K:], None, None, biases)


def rows_of(xp: ModuleType, layer: LayerParams, order: Sequence[int]) -> tuple[Array, Array]:
    """Invert `layer_of`: return copies; two biases are added."""
    gates = own_order(order)
    rows = xp.concatenate([layer.input[gates], layer.recurrent[gates]], axis=2)
    bias = layer.recurrent_bias[gates]
    if layer.input_bias is not None:
        bias = layer.input_bias[gates] + bias
    return side_by_side(rows), bias.flatten()


def layer_of_gru(xp: ModuleType, weights: BlockGRUParams) -> LayerParams:
    """Convert weights of `block_gru` to the packed layout."""
    w_ru, w_c, b_ru, b_c = (contiguous(xp, a) for a in weights)
    rows, bias = xp.concatenate([w_ru, w_c], axis=1), xp.concatenate([b_ru, b_c])
    return layer_of(rows, bias, [0, 1, 2])


def layer_of_lstm(xp: ModuleType, w: Array, b: Array, *peepholes: Array | None) -> LayerParams:
    """Return weights of `block_lstm`, gates in the order "icfo", by gate in this order."""
    layer = layer_of(contiguous(xp, w), contiguous(xp, b), [0, 1, 2, 3])
    return layer._replace(peepholes=None if peepholes[0] is None else xp.stack(peepholes))


def lstm_of(xp: ModuleType, layer: LayerParams) -> PeepholeLSTMParams:
    """Invert `layer_of_lstm`: return copies; two biases are added."""
    peepholes = () if layer.peepholes is None else (a.copy() for a in layer.peepholes)
    return PeepholeLSTMParams(*rows_of(xp, layer, [0, 1, 2, 3]), *peepholes)


def gru_of(xp: ModuleType, layer: LayerParams) -> BlockGRUParams:
    """Invert `layer_of_gru`: return copies; two biases are added."""
    rows, bias = rows_of(xp, layer, [0, 1, 2])
    H = len(bias) // 3
    parts = rows[:, : 2 * H], rows[:, 2 * H :], bias[: 2 * H], bias[2 * H :]
    return BlockGRUParams(*(a.copy() for a in parts))


def resets_before(op: str, mode: RNNMode, reset_after: object, activation: str, why: str) -> bool:
    """
    Return whether weights become those of `block_gru`: GRUs that reset before the product.

    `why` ends the error if reset_after is missing.
    """
    if mode != "gru":
        if reset_after is not None:
            raise ValueError(f"{op}: reset_after is {shown(reset_after)}, expected None for {mode}")
        return False
    if reset_after is None:
        raise ValueError(f"{op}: reset_after is None, expected True or False: {why}")
    before = not check_bool(op, "reset_after", reset_after)
    if before and activation != "sigmoid":
        raise ValueError(
            f"{op}: recurrent_activation is {activation!r}, expected sigmoid: weights of block_gru"
            " do not hold it; pass it to block_gru or stacked_rnn"
        )
    return before


def unclear_direction(op: str, size: int) -> ValueError:
    """Return the error of a missing direction where two readings fit."""
    return ValueError(
        f"{op}: direction is None, expected 'bidirectional' for one layer or 'unidirectional' for"
        f" two: both fit where I = {size} is the size of h"
    )


def with_one_bias(
    op: str, places: Sequence[LayerParams], gradient: object, forget_bias: float = 0.0
) -> list[LayerParams]:
    """
    Return layers for a form whose bias is the sum of the packed ones, less `forget_bias`.

    A gradient has no forget_bias, and the gradients of the two biases are equal: one is left.
    """
    if check_bool(op, "gradient", gradient):
        return [place._replace(input_bias=None) for place in places]
    if not forget_bias:
        return [*places]
    biases = [place.recurrent_bias.copy() for place in places]
    for bias in biases:
        bias[1] -= forget_bias
    return [p._replace(recurrent_bias=b) for p, b in zip(places, biases, strict=True)]


class Opened(NamedTuple):
    """The weights that a converter writes, by layer and direction."""

    xp: ModuleType
    mode: RNNMode
    net: Net | None  # None for GRUs that reset before the product
    like: Array
    places: list[LayerParams]


def opened(
    op: str, params: Any, framework: str, gradient: object, *, projection: bool = False
) -> Opened:
    """
    Check a PackedParams, a BlockGRUParams or a list of these; return their parts.

    A net is refused that the framework does not have.
    """
    check_bool(op, "gradient", gradient)
    entries = {"params": params} if isinstance(params, BlockGRUParams) else {}
    if type(params) in (list, tuple):
        entries = {f"params[{n}]": entry for n, entry in enumerate(params)}
    if entries and all(isinstance(entry, BlockGRUParams) for entry in entries.values()):
        for name, entry in entries.items():
            check_block(op, entry.form, {f"{name}.{n}": a for n, a in entry._asdict().items()})
        xp, _ = check_arrays(op, {f"{name}.w_c": entry.w_c for name, entry in entries.items()})
        like = next(iter(entries.values())).w_c
        with on_device(xp, like):
            places = [layer_of_gru(xp, entry) for entry in entries.values()]
        return Opened(xp, "gru", None, like, places)
    xp, net, vector = check_packed(op, params, " or a list of BlockGRUParams")
    refuse(op, framework, net, projection=projection)
    return Opened(xp, net.rnn_mode, net, vector, layers(vector, net))


def own_order(columns: Sequence[int]) -> list[int]:
    """Return the inverse permutation: where the packed order has each gate of this order."""
    return sorted(range(len(columns)), key=columns.__getitem__)


def refuse(op: str, framework: str, net: Net, *, projection: bool = False) -> None:
    """Refuse a net that the framework does not have."""
    refused = {"skip_input": net.skip, "num_proj": net.num_proj and not projection}
    for name in filter(refused.get, refused):
        raise ValueError(f"{op}: params is of a net with {name}, which {framework} does not have")


def check_block(
    op: str, form: Form, arrays: Mapping[str, Array | None]
) -> tuple[ModuleType, int, int]:
    """
    Check the weights of a block op, in the order of its form; return their module, I and H.

    The keys are their names in errors. Optional weights may be left out at the end.
    """
    weights = dict(zip(form.shapes, arrays.items(), strict=False))
    optional = {*form.together, form.projection}
    required = dict(named for own, named in weights.items() if own not in optional)
    xp, _ = check_arrays(op, required, arrays)
    name_p, w_p = weights.get(form.projection, ("", None))
    P_shown = "H" if w_p is None else "P"
    symbols = {own: symbols_shown(form.shapes[own], P=P_shown) for own in weights}
    own, (name, w) = next(iter(weights.items()))
    assert w is not None
    rows, columns = expect_rank(op, name, w, symbols[own])
    H, rest = divmod(columns, shape_of(form.shapes[own], K=0, H=1, P=1)[1])
    P = H if w_p is None else expect_rank(op, name_p, w_p, "(H, P)")[1]
    if rest or not H or not 0 < P < rows:
        raise ValueError(f"{op}: {name} has shape {w.shape}, expected {symbols[own]}")
    present = {own for own, (_, a) in weights.items() if a is not None}
    for own, (name, a) in weights.items():
        expect_shape(op, name, a, symbols[own], shape_of(form.shapes[own], K=rows - P, H=H, P=P))
        if a is None and own in form.together and present & {*form.together}:
            expected = f"all of {', '.join(form.together)} or none"
            raise ValueError(f"{op}: {name} is None, expected {expected}")
    return xp, rows - P, H
