"""TensorFlow's raw ops by their names: the same keyword arguments, defaults and results.

Code that calls ``tf.raw_ops.BlockLSTMGrad(**kw)`` works with ``cupyrnn.raw_ops`` and arrays. Each
op calls the function of the package that its docstring names, with the same arguments. That
function's docstring has the equations, shapes, dtypes and errors. Errors begin with the op's name.

* The LSTM ops require `wci`, `wcf` and `wco` and use them only if `use_peephole` is True. None is
  False in the forward ops. A gradient treats a clipped cs as if no clipping had happened.
* `T` and `S` are a NumPy dtype, a scalar type or a name. The size does not depend on `T`; `S` is
  the dtype of the result: int32 or int64. The numbers of parameters are checked.
* `dropout`, `seed` and `seed2` of the ops of parameters are checked, but have no effect. `name` is
  accepted and ignored.

Examples
--------
>>> import numpy as np
>>> from cupyrnn import raw_ops
>>> x, state, w, b = np.ones((1, 2)), np.zeros((1, 3)), np.full((5, 12), 0.1), np.zeros(12)
>>> inputs = {"x": x, "cs_prev": state, "h_prev": state, "w": w, "b": b}
>>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), b[:3])
>>> raw_ops.LSTMBlockCell(**inputs).h.round(4)
array([[0.0594, 0.0594, 0.0594]])
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from ._typing import CudnnRNNV1Outputs
from .checks.arrays import FLOATS
from .checks.attributes import check_bool, check_choice, check_dropout, check_integer, misfit, shown
from .ops import gru, lstm
from .ops.cudnn_rnn import cudnn_rnn, cudnn_rnn_backprop
from .weights import params as packed

_SIZE = "cudnn_rnn_params_size"
_TO_CANONICAL = "cudnn_rnn_params_to_canonical"


def _v1(**arguments: Any) -> CudnnRNNV1Outputs[Any]:
    return CudnnRNNV1Outputs(*cudnn_rnn(**arguments)[:4])


def _of_net(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Check and remove the attributes that parameters do not depend on."""
    check_dropout(op, arguments.pop("dropout"))
    for name in ("seed", "seed2"):
        check_integer(op, name, arguments.pop(name))
    return arguments


def _dtype_name(dtype: object) -> object:
    """Return the name of a dtype or a scalar type; other objects unchanged."""
    if isinstance(dtype, np.dtype):
        return dtype.name if dtype.isnative else dtype.str
    return dtype.__name__ if isinstance(dtype, type) else dtype


def _size(T: Any, S: Any, **net: Any) -> Any:
    size = packed.cudnn_rnn_params_size(**_of_net(_SIZE, net))
    check_choice(_SIZE, "T", _dtype_name(T), FLOATS)
    dtype = np.dtype(check_choice(_SIZE, "S", _dtype_name(S), ("int32", "int64")))
    if size > np.iinfo(dtype).max:
        raise ValueError(f"{_SIZE}: the size is {shown(size)}, expected one that fits S = {dtype}")
    return np.array([size], dtype)


def _to_canonical(**net: Any) -> Any:
    counts = {name: net.pop(name) for name in tuple(net) if name.startswith("num_params")}
    parts = packed.cudnn_rnn_params_to_canonical(**_of_net(_TO_CANONICAL, net))
    for name, count in counts.items():
        for kind in parts._fields if name == "num_params" else (name.rpartition("_")[2],):
            n = len(getattr(parts, kind))
            if check_integer(_TO_CANONICAL, name, count) != n:
                raise ValueError(f"{_TO_CANONICAL}: {name} is {shown(count)}, expected {n}")
    return parts


def _to_params(**net: Any) -> Any:
    return packed.cudnn_rnn_canonical_to_params(**_of_net("cudnn_rnn_canonical_to_params", net))


# The arguments of the ops, a default behind `=`.
_SETS = {
    "LSTM": "x cs_prev h_prev w wci wcf wco b",
    "SAVED": "i cs f o ci co",
    "GRU": "x h_prev w_ru w_c b_ru b_c",
    "NET": "input input_h input_c params",
    "RESULTS": "output output_h output_c output_backprop output_h_backprop output_c_backprop"
    " reserve_space",
    "SIZES": "num_layers num_units input_size",
    "MODE": "rnn_mode='lstm' input_mode='linear_input' direction='unidirectional' dropout=0 seed=0"
    " seed2=0",
}
_CELL = "LSTM forget_bias=1 cell_clip=3 use_peephole=False"
_GRAD = "cs_grad h_grad use_peephole"
# The function of each op, its arguments, what computes it if not that function, and fixed ones.
_OPS: dict[str, tuple[Any, ...]] = {
    "LSTMBlockCell": (lstm.lstm_block_cell, _CELL),
    "LSTMBlockCellGrad": (lstm.lstm_block_cell_grad, f"LSTM SAVED {_GRAD}"),
    "BlockLSTM": (lstm.block_lstm, f"seq_len_max {_CELL}"),
    "BlockLSTMV2": (
        lstm.block_lstm, "seq_len_max LSTM cell_clip=0 use_peephole=False", None, "ifco",
    ),
    "BlockLSTMGrad": (lstm.block_lstm_grad, f"seq_len_max LSTM SAVED h {_GRAD}"),
    "BlockLSTMGradV2": (
        lstm.block_lstm_grad, f"seq_len_max LSTM SAVED h {_GRAD}", None, "ifco",
    ),
    "GRUBlockCell": (gru.gru_block_cell, "GRU"),
    "GRUBlockCellGrad": (gru.gru_block_cell_grad, "GRU r u c d_h"),
    "CudnnRNN": (cudnn_rnn, "NET MODE is_training=True", _v1),
    "CudnnRNNV2": (cudnn_rnn, "NET MODE is_training=True"),
    "CudnnRNNV3": (
        cudnn_rnn, "NET sequence_lengths MODE num_proj=0 is_training=True time_major=True",
    ),
    "CudnnRNNBackprop": (cudnn_rnn_backprop, "NET RESULTS MODE"),
    "CudnnRNNBackpropV2": (cudnn_rnn_backprop, "NET RESULTS host_reserved MODE"),
    "CudnnRNNBackpropV3": (
        cudnn_rnn_backprop,
        "NET sequence_lengths RESULTS host_reserved MODE num_proj=0 time_major=True",
    ),
    "CudnnRNNParamsSize": (packed.cudnn_rnn_params_size, "SIZES T S MODE num_proj=0", _size),
    "CudnnRNNParamsToCanonical": (
        packed.cudnn_rnn_params_to_canonical, "SIZES params num_params MODE", _to_canonical,
    ),
    "CudnnRNNParamsToCanonicalV2": (
        packed.cudnn_rnn_params_to_canonical,
        "SIZES params num_params_weights num_params_biases MODE num_proj=0", _to_canonical,
    ),
    "CudnnRNNCanonicalToParams": (
        packed.cudnn_rnn_canonical_to_params, "SIZES weights biases MODE", _to_params,
    ),
    "CudnnRNNCanonicalToParamsV2": (
        packed.cudnn_rnn_canonical_to_params, "SIZES weights biases MODE num_proj=0", _to_params,
    ),
}  # fmt: skip


def _op(op: str, function: Any, words: str, run: Any = None, order: str = "") -> Callable[..., Any]:
    """Return the function of an op."""
    items = [item for word in words.split() for item in _SETS.get(word, word).split()]
    named = dict(item.partition("=")[::2] for item in [*items, "name=None"])
    defaults = {n: ast.literal_eval(value) for n, value in named.items() if value}
    fixed, prefix = {"gate_order": order} if order else {}, f"{function.__name__}: "

    def call(*args: Any, **kwargs: Any) -> Any:
        if args or not named.keys() - defaults.keys() <= kwargs.keys() <= named.keys():
            raise misfit(call, args, kwargs)
        arguments = {**defaults, **kwargs, **fixed}
        del arguments["name"]
        try:
            if "use_peephole" in named and arguments["use_peephole"] is None:
                # In TensorFlow None is the default; the gradients have no default.
                arguments["use_peephole"] = defaults.get("use_peephole")
                check_bool(function.__name__, "use_peephole", arguments["use_peephole"])
            return (run or function)(**arguments)
        except Exception as error:
            message, *others = error.args or ("",)
            if isinstance(message, str) and message.startswith(prefix):
                error.args = (f"{op}: {message.removeprefix(prefix)}", *others)
            raise

    kind, empty = Parameter.KEYWORD_ONLY, Parameter.empty
    parameters = [Parameter(n, kind, default=defaults.get(n, empty)) for n in named]
    result = (_v1 if run is _v1 else function).__annotations__["return"]
    call.__annotations__ = {"return": result}
    call.__signature__ = Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=result
    )
    call.__name__ = call.__qualname__ = op
    more = f' with ``gate_order="{order}"``' if order else ""
    call.__doc__ = f"TensorFlow's {op}: `cupyrnn.{function.__name__}`{more}."
    return call


globals().update({op: _op(op, *entry) for op, entry in _OPS.items()})
__all__ = sorted(_OPS)


def __dir__() -> list[str]:
    return __all__
