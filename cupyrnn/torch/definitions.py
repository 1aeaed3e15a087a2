"""The functions of `cupyrnn.torch` as PyTorch is told of them: names, shapes, what they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _packed_cells
from ..cells.gru import GRUOutputs
from ..cells.lstm import LSTMOutputs
from ..cudnn_rnn import cudnn_rnn, cudnn_rnn_backprop
from ..driver import stack as _stack
from ..gru import block_gru, block_gru_grad, gru_block_cell, gru_block_cell_backward
from ..lstm import block_lstm, block_lstm_grad, lstm_block_cell, lstm_block_cell_backward
from .arrays import module_of
from .ops import Function, Op

if TYPE_CHECKING:
    from .ops import Named

PEEPHOLES = ("wci", "wcf", "wco")
_LSTM_INPUTS = ("x", "cs_prev", "h_prev", "w", "b", *PEEPHOLES)
_GRU_INPUTS = ("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c")
_EXTENT = ("sequence_lengths", "resets")
_LSTM_ATTRIBUTES = (
    "float forget_bias",
    "float cell_clip",
    "str gate_order",
    "str recurrent_activation",
)


def _axes_of(*names: str, steps: bool) -> dict[str, int]:
    """Return the axis B of what an op is given and returns; with steps it is one after T."""
    axes = dict.fromkeys(names, int(steps)) | dict.fromkeys(("cs_prev", "h_prev"), 0)
    return axes | {"x": int(steps), "sequence_lengths": 0, "resets": 1}


def _states(inputs: Named, attributes: Named) -> tuple[Any, ...]:
    """Return (T, B, H), or of a cell (B, H)."""
    return *inputs["x"].shape[:-1], inputs["h_prev"].shape[-1]


def _lstm_of(name: str, forward: Any, backward: Any, *attributes: str) -> Op:
    """Return the op of an LSTM, whose gradient is told the clip and not forget_bias."""

    def gradient(inputs: Named, results: Named, cotangents: Named, rest: Named) -> Named:
        saved = {n: results[n] for n in LSTMOutputs._fields if n != "h" or attributes}
        given = {f"{n}_grad": cotangents.get(n) for n in ("cs", "h")}
        rest = {n: a for n, a in rest.items() if n != "forget_bias"}
        grads = backward(**inputs, **saved, **given, **rest)
        return {n: getattr(grads, f"{n}_grad") for n in _LSTM_INPUTS}

    return Op(
        Function(
            name,
            inputs=_LSTM_INPUTS,
            optional=PEEPHOLES,
            outputs=("cs", "h"),
            saved=("i", "f", "o", "ci", "co"),
            extras=_EXTENT if attributes else (),
            attributes=(*_LSTM_ATTRIBUTES, *attributes),
            forward=lambda inputs, rest: forward(**inputs, **rest)._asdict(),
            backward=gradient,
            shapes=lambda *args: dict.fromkeys(LSTMOutputs._fields, _states(*args)),
            axes=_axes_of(*LSTMOutputs._fields, steps=bool(attributes)),
        )
    )


def _gru_of(name: str, forward: Any, backward: Any, *attributes: str) -> Op:
    """Return the op of a GRU."""

    def gradient(inputs: Named, results: Named, cotangents: Named, rest: Named) -> Named:
        saved = {n: results[n] for n in GRUOutputs._fields if n != "h" or attributes}
        d_h = cotangents["h"] if cotangents else results["h"] * 0
        grads = backward(**inputs, **saved, d_h=d_h, **rest)
        return {n: getattr(grads, f"d_{n}") for n in _GRU_INPUTS}

    return Op(
        Function(
            name,
            inputs=_GRU_INPUTS,
            optional=(),
            outputs=("h",),
            saved=("r", "u", "c"),
            extras=_EXTENT if attributes else (),
            attributes=("str recurrent_activation", *attributes),
            forward=lambda inputs, rest: forward(**inputs, **rest)._asdict(),
            backward=gradient,
            shapes=lambda *args: dict.fromkeys(GRUOutputs._fields, _states(*args)),
            axes=_axes_of(*GRUOutputs._fields, steps=bool(attributes)),
        )
    )


LSTM_BLOCK_CELL = _lstm_of("lstm_block_cell", lstm_block_cell, lstm_block_cell_backward)
BLOCK_LSTM = _lstm_of("block_lstm", block_lstm, block_lstm_grad, "bool reverse")
GRU_BLOCK_CELL = _gru_of("gru_block_cell", gru_block_cell, gru_block_cell_backward)
BLOCK_GRU = _gru_of("block_gru", block_gru, block_gru_grad, "bool reverse")


def _net_of(rest: Named, array: Any) -> Named:
    """Return the attributes of cudnn_rnn; on a device those of the kernels, never of cuDNN."""
    seed, seed2 = (0, 0) if rest["seeds"] is None else rest["seeds"].tolist()
    net = {n: a for n, a in rest.items() if n not in ("seeds", "is_training")}
    engine = "auto" if isinstance(array, np.ndarray) else "cupy"
    return net | {"seed": seed, "seed2": seed2, "engine": engine}


def _reserve_size(inputs: Named, rest: Named) -> Any:
    """Return the size of reserve_space without lengths, which may be symbolic."""
    major = rest["time_major"]
    T, B = (inputs["input"].shape[n] for n in ((0, 1) if major else (1, 0)))
    D = 1 + (rest["direction"] == "bidirectional")
    state = inputs["input_h"].shape
    H = inputs["input_c"].shape[2] if rest["rnn_mode"] == "lstm" else state[2]
    L = state[0 if major else 1] // D
    sizes = _stack.Sizes(T, B, L, D, H, state[2], True, rest["dropout"], 0, 0)
    return _stack.reserve_size(sizes, _packed_cells.SAVED[rest["rnn_mode"]], T * B)


def _net_forward(inputs: Named, rest: Named) -> Named:
    net = _net_of(rest, inputs["input"])
    given = {"input_c": None, **inputs}
    found = cudnn_rnn(**given, **net, is_training=rest["is_training"])._asdict()
    if rest["is_training"] and rest["sequence_lengths"] is not None:
        # The size is not to depend on the lengths.
        reserve = found["reserve_space"]
        whole = module_of(reserve).zeros(_reserve_size(inputs, rest), reserve.dtype)
        whole[: reserve.size] = reserve
        found["reserve_space"] = whole
    return found


def _net_backward(inputs: Named, results: Named, cotangents: Named, rest: Named) -> Named:
    net, given = _net_of(rest, inputs["input"]), {"input_c": None, **inputs}
    names = ("output", "output_h", "output_c")
    grads = {f"{n}_backprop": cotangents.get(n) for n in names}
    if rest["rnn_mode"] != "lstm":
        grads["output_c_backprop"] = None
    reserve, lengths = results["reserve_space"], rest["sequence_lengths"]
    if lengths is not None:
        T = inputs["input"].shape[0 if rest["time_major"] else 1]
        rows = max(T * len(lengths), 1)
        reserve = reserve[: reserve.size // rows * int(lengths.sum())]
    # What the forward call returned, of which the kernels read reserve_space alone.
    arguments: Named = {**given, **dict.fromkeys(names), **grads, "reserve_space": reserve}
    found = cudnn_rnn_backprop(**arguments, **net)
    return {n: getattr(found, f"{n}_backprop") for n in _NET_INPUTS}


def _net_shapes(inputs: Named, rest: Named) -> dict[str, tuple[Any, ...]]:
    x, h = inputs["input"].shape, inputs["input_h"].shape
    D = 1 + (rest["direction"] == "bidirectional")
    c = inputs["input_c"].shape if rest["rnn_mode"] == "lstm" else ()
    size = (_reserve_size(inputs, rest),) if rest["is_training"] else ()
    return {
        "output": (*x[:2], D * h[2]),
        "output_h": tuple(h),
        "output_c": tuple(c),
        "reserve_space": size,
    }


_NET_INPUTS = ("input", "input_h", "input_c", "params")
CUDNN_RNN = Op(
    Function(
        "cudnn_rnn",
        inputs=_NET_INPUTS,
        optional=("input_c",),
        outputs=("output", "output_h", "output_c"),
        saved=("reserve_space",),
        extras=(*_EXTENT, "seeds"),
        attributes=(
            "str rnn_mode",
            "str input_mode",
            "str direction",
            "float dropout",
            "int num_proj",
            "str recurrent_activation",
            "bool time_major",
            "bool is_training",
        ),
        forward=_net_forward,
        backward=_net_backward,
        shapes=_net_shapes,
    )
)
