"""TensorFlow's raw ops by their names: the same keyword arguments, defaults and results.

Code that calls ``tf.raw_ops.BlockLSTMGrad(**kw)`` works with ``cupyrnn.raw_ops`` and arrays. Each
op is a face of a function of the package, whose docstring holds the equations, whose arguments
have the same names, and with whose name error messages begin. `name` is accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import gru, lstm
from . import params as packed
from ._arrays import FLOATS, check_bool, check_choice, check_dropout, check_integer, shown
from .cells.gru import GRUOutputs
from .cells.lstm import LSTMOutputs

# Not the module: in the package its name stands for the function.
from .cudnn_rnn import (
    CudnnRNNGrads,
    CudnnRNNOutputs,
    CudnnRNNV1Outputs,
    cudnn_rnn,
    cudnn_rnn_backprop,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._arrays import Lengths
    from ._typing import AnyArray, ArrayT
    from .params import Direction, InputMode, RNNMode

__all__ = [
    "BlockLSTM",
    "BlockLSTMGrad",
    "BlockLSTMGradV2",
    "BlockLSTMV2",
    "CudnnRNN",
    "CudnnRNNBackprop",
    "CudnnRNNBackpropV2",
    "CudnnRNNBackpropV3",
    "CudnnRNNCanonicalToParams",
    "CudnnRNNCanonicalToParamsV2",
    "CudnnRNNParamsSize",
    "CudnnRNNParamsToCanonical",
    "CudnnRNNParamsToCanonicalV2",
    "CudnnRNNV2",
    "CudnnRNNV3",
    "GRUBlockCell",
    "GRUBlockCellGrad",
    "LSTMBlockCell",
    "LSTMBlockCellGrad",
]

_SIZE = "cudnn_rnn_params_size"
_TO_CANONICAL = "cudnn_rnn_params_to_canonical"
_TO_PARAMS = "cudnn_rnn_canonical_to_params"


def __dir__() -> list[str]:
    return __all__


def _named(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return an op's arguments, its locals() at its first line, as the package takes them."""
    del arguments["name"]
    return arguments


def _of_net(op: str, arguments: dict[str, Any], *others: str) -> dict[str, Any]:
    """Check the attributes that say nothing about parameters; return all but them and `others`."""
    check_dropout(op, arguments.pop("dropout"))
    for name in ("seed", "seed2"):
        check_integer(op, name, arguments.pop(name))
    return _named({name: a for name, a in arguments.items() if name not in others})


def _check_count(name: str, count: object, arrays: Sequence[AnyArray]) -> None:
    if check_integer(_TO_CANONICAL, name, count) != len(arrays):
        raise ValueError(f"{_TO_CANONICAL}: {name} is {shown(count)}, expected {len(arrays)}")


def _dtype_name(given: object) -> object:
    """Return the name of a dtype, a scalar type or a name; what is none of them as it is."""
    if isinstance(given, np.dtype):
        return given.name if given.isnative else given.str
    return given.__name__ if isinstance(given, type) else given


def LSTMBlockCell(
    *,
    x: ArrayT,
    cs_prev: AnyArray,
    h_prev: AnyArray,
    w: AnyArray,
    wci: AnyArray,
    wcf: AnyArray,
    wco: AnyArray,
    b: AnyArray,
    forget_bias: float = 1,
    cell_clip: float = 3,
    use_peephole: bool | None = False,
    name: str | None = None,
) -> LSTMOutputs[ArrayT]:
    """One LSTM step, gates in the order icfo: see `cupyrnn.lstm_block_cell`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state, w, b = np.ones((1, 2)), np.zeros((1, 3)), np.full((5, 12), 0.1), np.zeros(12)
    >>> inputs = {"x": x, "cs_prev": state, "h_prev": state, "w": w, "b": b}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), b[:3])
    >>> raw_ops.LSTMBlockCell(**inputs).h.round(4)
    array([[0.0594, 0.0594, 0.0594]])
    """
    use_peephole = False if use_peephole is None else use_peephole
    return lstm.lstm_block_cell(**_named(locals()))


def LSTMBlockCellGrad(
    *,
    x: ArrayT,
    cs_prev: AnyArray,
    h_prev: AnyArray,
    w: AnyArray,
    wci: AnyArray,
    wcf: AnyArray,
    wco: AnyArray,
    b: AnyArray,
    i: AnyArray,
    cs: AnyArray,
    f: AnyArray,
    o: AnyArray,
    ci: AnyArray,
    co: AnyArray,
    cs_grad: AnyArray,
    h_grad: AnyArray,
    use_peephole: bool,
    name: str | None = None,
) -> lstm.LSTMCellGrads[ArrayT]:
    """The gradient of one LSTM step: see `cupyrnn.lstm_block_cell_grad`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state, w, b = np.ones((1, 2)), np.zeros((1, 3)), np.full((5, 12), 0.1), np.zeros(12)
    >>> inputs = {"x": x, "cs_prev": state, "h_prev": state, "w": w, "b": b}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), b[:3])
    >>> out = raw_ops.LSTMBlockCell(**inputs)
    >>> given = {"cs_grad": 0 * out.cs, "h_grad": out.h, "use_peephole": False}
    >>> saved = {name: a for name, a in out._asdict().items() if name != "h"}
    >>> raw_ops.LSTMBlockCellGrad(**inputs, **saved, **given).cs_prev_grad.round(4)
    array([[0.0248, 0.0248, 0.0248]])
    """
    check_bool("lstm_block_cell_grad", "use_peephole", use_peephole)
    return lstm.lstm_block_cell_grad(**_named(locals()))


def BlockLSTM(
    *,
    seq_len_max: int,
    x: ArrayT,
    cs_prev: AnyArray,
    h_prev: AnyArray,
    w: AnyArray,
    wci: AnyArray,
    wcf: AnyArray,
    wco: AnyArray,
    b: AnyArray,
    forget_bias: float = 1,
    cell_clip: float = 3,
    use_peephole: bool | None = False,
    name: str | None = None,
) -> LSTMOutputs[ArrayT]:
    """An LSTM over a sequence, gates in the order icfo: see `cupyrnn.block_lstm`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> inputs = {"x": np.ones((4, 1, 2)), "w": np.full((5, 12), 0.1), "b": np.zeros(12)}
    >>> inputs |= dict.fromkeys(("cs_prev", "h_prev"), np.zeros((1, 3))) | {"seq_len_max": 4}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(3))
    >>> raw_ops.BlockLSTM(**inputs).h[:, 0, 0].round(4)
    array([0.0594, 0.1108, 0.1547, 0.1921])
    """
    use_peephole = False if use_peephole is None else use_peephole
    return lstm.block_lstm(**_named(locals()))


def BlockLSTMV2(
    *,
    seq_len_max: int,
    x: ArrayT,
    cs_prev: AnyArray,
    h_prev: AnyArray,
    w: AnyArray,
    wci: AnyArray,
    wcf: AnyArray,
    wco: AnyArray,
    b: AnyArray,
    cell_clip: float = 0,
    use_peephole: bool | None = False,
    name: str | None = None,
) -> LSTMOutputs[ArrayT]:
    """An LSTM over a sequence, gates in the order ifco: see `cupyrnn.block_lstm`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> inputs = {"x": np.ones((4, 1, 2)), "w": np.full((5, 12), 0.1), "b": np.zeros(12)}
    >>> inputs |= dict.fromkeys(("cs_prev", "h_prev"), np.zeros((1, 3))) | {"seq_len_max": 4}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(3))
    >>> raw_ops.BlockLSTMV2(**inputs).h[:, 0, 0].round(4)
    array([0.0594, 0.0982, 0.1235, 0.1401])
    """
    use_peephole = False if use_peephole is None else use_peephole
    return lstm.block_lstm(**_named(locals()), gate_order="ifco")


def BlockLSTMGrad(
    *,
    seq_len_max: int,
    x: ArrayT,
    cs_prev: AnyArray,
    h_prev: AnyArray,
    w: AnyArray,
    wci: AnyArray,
    wcf: AnyArray,
    wco: AnyArray,
    b: AnyArray,
    i: AnyArray,
    cs: AnyArray,
    f: AnyArray,
    o: AnyArray,
    ci: AnyArray,
    co: AnyArray,
    h: AnyArray,
    cs_grad: AnyArray,
    h_grad: AnyArray,
    use_peephole: bool,
    name: str | None = None,
) -> lstm.LSTMGrads[ArrayT]:
    """The gradient of an LSTM over a sequence, order icfo: see `cupyrnn.block_lstm_grad`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> inputs = {"x": np.ones((4, 1, 2)), "w": np.full((5, 12), 0.1), "b": np.zeros(12)}
    >>> inputs |= dict.fromkeys(("cs_prev", "h_prev"), np.zeros((1, 3))) | {"seq_len_max": 4}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(3))
    >>> out = raw_ops.BlockLSTM(**inputs)
    >>> given = {"cs_grad": 0 * out.cs, "h_grad": out.h, "use_peephole": False}
    >>> raw_ops.BlockLSTMGrad(**inputs, **out._asdict(), **given).x_grad[:, 0, 0].round(4)
    array([0.0375, 0.0392, 0.0345, 0.0231])
    """
    check_bool("block_lstm_grad", "use_peephole", use_peephole)
    return lstm.block_lstm_grad(**_named(locals()))


def BlockLSTMGradV2(
    *,
    seq_len_max: int,
    x: ArrayT,
    cs_prev: AnyArray,
    h_prev: AnyArray,
    w: AnyArray,
    wci: AnyArray,
    wcf: AnyArray,
    wco: AnyArray,
    b: AnyArray,
    i: AnyArray,
    cs: AnyArray,
    f: AnyArray,
    o: AnyArray,
    ci: AnyArray,
    co: AnyArray,
    h: AnyArray,
    cs_grad: AnyArray,
    h_grad: AnyArray,
    use_peephole: bool,
    name: str | None = None,
) -> lstm.LSTMGrads[ArrayT]:
    """The gradient of an LSTM over a sequence, order ifco: see `cupyrnn.block_lstm_grad`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> inputs = {"x": np.ones((4, 1, 2)), "w": np.full((5, 12), 0.1), "b": np.zeros(12)}
    >>> inputs |= dict.fromkeys(("cs_prev", "h_prev"), np.zeros((1, 3))) | {"seq_len_max": 4}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(3))
    >>> out = raw_ops.BlockLSTMV2(**inputs)
    >>> given = {"cs_grad": 0 * out.cs, "h_grad": out.h, "use_peephole": False}
    >>> raw_ops.BlockLSTMGradV2(**inputs, **out._asdict(), **given).x_grad[:, 0, 0].round(4)
    array([0.0211, 0.0253, 0.024 , 0.0167])
    """
    check_bool("block_lstm_grad", "use_peephole", use_peephole)
    return lstm.block_lstm_grad(**_named(locals()), gate_order="ifco")


def GRUBlockCell(
    *,
    x: ArrayT,
    h_prev: AnyArray,
    w_ru: AnyArray,
    w_c: AnyArray,
    b_ru: AnyArray,
    b_c: AnyArray,
    name: str | None = None,
) -> GRUOutputs[ArrayT]:
    """One GRU step: see `cupyrnn.gru_block_cell`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, h, w, b = np.ones((1, 2)), np.full((1, 3), 0.5), np.full((5, 9), 0.1), np.zeros(9)
    >>> inputs = {"x": x, "h_prev": h, "w_ru": w[:, :6], "w_c": w[:, 6:]}
    >>> inputs |= {"b_ru": b[:6], "b_c": b[6:]}
    >>> raw_ops.GRUBlockCell(**inputs).h.round(4)
    array([[0.4092, 0.4092, 0.4092]])
    """
    return gru.gru_block_cell(**_named(locals()))


def GRUBlockCellGrad(
    *,
    x: ArrayT,
    h_prev: AnyArray,
    w_ru: AnyArray,
    w_c: AnyArray,
    b_ru: AnyArray,
    b_c: AnyArray,
    r: AnyArray,
    u: AnyArray,
    c: AnyArray,
    d_h: AnyArray,
    name: str | None = None,
) -> gru.GRUCellGrads[ArrayT]:
    """The gradient of one GRU step: see `cupyrnn.gru_block_cell_grad`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, h, w, b = np.ones((1, 2)), np.full((1, 3), 0.5), np.full((5, 9), 0.1), np.zeros(9)
    >>> inputs = {"x": x, "h_prev": h, "w_ru": w[:, :6], "w_c": w[:, 6:]}
    >>> inputs |= {"b_ru": b[:6], "b_c": b[6:]}
    >>> r, u, c, h = raw_ops.GRUBlockCell(**inputs)
    >>> raw_ops.GRUBlockCellGrad(**inputs, r=r, u=u, c=c, d_h=h).d_h_prev.round(4)
    array([[0.2757, 0.2757, 0.2757]])
    """
    return gru.gru_block_cell_grad(**_named(locals()))


def CudnnRNNParamsSize(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    T: Any,
    S: Any,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    name: str | None = None,
) -> NDArray[Any]:
    """The size, [1] of dtype `S`, of parameters of any dtype `T`: see `cudnn_rnn_params_size`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> raw_ops.CudnnRNNParamsSize(**net, T=np.float32, S=np.int32)
    array([56], dtype=int32)
    """
    size = packed.cudnn_rnn_params_size(**_of_net(_SIZE, locals(), "T", "S"))
    check_choice(_SIZE, "T", _dtype_name(T), FLOATS)
    dtype = np.dtype(check_choice(_SIZE, "S", _dtype_name(S), ("int32", "int64")))
    if size > np.iinfo(dtype).max:
        raise ValueError(f"{_SIZE}: the size is {shown(size)}, expected what S = {dtype} can hold")
    return np.array([size], dtype)


def CudnnRNNParamsToCanonical(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: ArrayT,
    num_params: int,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> packed.CanonicalParams[ArrayT]:
    """Packed parameters as matrices and biases: see `cudnn_rnn_params_to_canonical`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> parts = raw_ops.CudnnRNNParamsToCanonical(**net, params=np.arange(56.0), num_params=8)
    >>> parts.weights[0]
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """
    parts = packed.cudnn_rnn_params_to_canonical(**_of_net(_TO_CANONICAL, locals(), "num_params"))
    for arrays in parts:
        _check_count("num_params", num_params, arrays)
    return parts


def CudnnRNNParamsToCanonicalV2(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: ArrayT,
    num_params_weights: int,
    num_params_biases: int,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    name: str | None = None,
) -> packed.CanonicalParams[ArrayT]:
    """Packed parameters as matrices and biases: see `cudnn_rnn_params_to_canonical`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> counts = {"num_params_weights": 8, "num_params_biases": 8}
    >>> parts = raw_ops.CudnnRNNParamsToCanonicalV2(**net, **counts, params=np.arange(56.0))
    >>> parts.biases[0]
    array([40., 41.])
    """
    parts = packed.cudnn_rnn_params_to_canonical(
        **_of_net(_TO_CANONICAL, locals(), "num_params_weights", "num_params_biases")
    )
    _check_count("num_params_weights", num_params_weights, parts.weights)
    _check_count("num_params_biases", num_params_biases, parts.biases)
    return parts


def CudnnRNNCanonicalToParams(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[ArrayT],
    biases: Sequence[AnyArray],
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> ArrayT:
    """Matrices and biases packed: see `cudnn_rnn_canonical_to_params`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> parts = raw_ops.CudnnRNNParamsToCanonical(**net, params=np.arange(56.0), num_params=8)
    >>> raw_ops.CudnnRNNCanonicalToParams(**net, **parts._asdict())[:5]
    array([0., 1., 2., 3., 4.])
    """
    params: ArrayT = packed.cudnn_rnn_canonical_to_params(**_of_net(_TO_PARAMS, locals()))
    return params


def CudnnRNNCanonicalToParamsV2(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[ArrayT],
    biases: Sequence[AnyArray],
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    name: str | None = None,
) -> ArrayT:
    """Matrices and biases packed: see `cudnn_rnn_canonical_to_params`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> parts = raw_ops.CudnnRNNParamsToCanonical(**net, params=np.arange(56.0), num_params=8)
    >>> raw_ops.CudnnRNNCanonicalToParamsV2(**net, **parts._asdict(), num_proj=0)[:5]
    array([0., 1., 2., 3., 4.])
    """
    params: ArrayT = packed.cudnn_rnn_canonical_to_params(**_of_net(_TO_PARAMS, locals()))
    return params


def CudnnRNN(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    is_training: bool = True,
    name: str | None = None,
) -> CudnnRNNV1Outputs[ArrayT]:
    """A recurrent net of several layers: see `cupyrnn.cudnn_rnn`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> raw_ops.CudnnRNN(**inputs).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.33  ])
    """
    return CudnnRNNV1Outputs(*cudnn_rnn(**_named(locals()))[:4])


def CudnnRNNV2(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    is_training: bool = True,
    name: str | None = None,
) -> CudnnRNNOutputs[ArrayT]:
    """CudnnRNN that also returns what is to know about reserve_space: see `cudnn_rnn`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> raw_ops.CudnnRNNV2(**inputs).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.33  ])
    """
    return cudnn_rnn(**_named(locals()))


def CudnnRNNV3(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
    sequence_lengths: Lengths,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    is_training: bool = True,
    time_major: bool = True,
    name: str | None = None,
) -> CudnnRNNOutputs[ArrayT]:
    """CudnnRNNV2 with sequence lengths and a projection: see `cupyrnn.cudnn_rnn`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> inputs["sequence_lengths"] = np.array([3])
    >>> raw_ops.CudnnRNNV3(**inputs).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.    ])
    """
    return cudnn_rnn(**_named(locals()))


def CudnnRNNBackprop(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
    output: AnyArray,
    output_h: AnyArray,
    output_c: AnyArray,
    output_backprop: AnyArray,
    output_h_backprop: AnyArray,
    output_c_backprop: AnyArray,
    reserve_space: AnyArray,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> CudnnRNNGrads[ArrayT]:
    """The gradient of CudnnRNN: see `cupyrnn.cudnn_rnn_backprop`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> out = raw_ops.CudnnRNN(**inputs)
    >>> given = {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> given |= out._asdict() | {"output_backprop": out.output}
    >>> raw_ops.CudnnRNNBackprop(**inputs, **given).input_backprop[:, 0, 0].round(4)
    array([0.0686, 0.0846, 0.0878, 0.088 ])
    """
    return cudnn_rnn_backprop(**_named(locals()))


def CudnnRNNBackpropV2(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
    output: AnyArray,
    output_h: AnyArray,
    output_c: AnyArray,
    output_backprop: AnyArray,
    output_h_backprop: AnyArray,
    output_c_backprop: AnyArray,
    reserve_space: AnyArray,
    host_reserved: NDArray[np.int8],
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> CudnnRNNGrads[ArrayT]:
    """The gradient of CudnnRNNV2: see `cupyrnn.cudnn_rnn_backprop`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> out = raw_ops.CudnnRNNV2(**inputs)
    >>> given = {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> given |= out._asdict() | {"output_backprop": out.output}
    >>> raw_ops.CudnnRNNBackpropV2(**inputs, **given).input_backprop[:, 0, 0].round(4)
    array([0.0686, 0.0846, 0.0878, 0.088 ])
    """
    return cudnn_rnn_backprop(**_named(locals()))


def CudnnRNNBackpropV3(
    *,
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray,
    params: AnyArray,
    sequence_lengths: Lengths,
    output: AnyArray,
    output_h: AnyArray,
    output_c: AnyArray,
    output_backprop: AnyArray,
    output_h_backprop: AnyArray,
    output_c_backprop: AnyArray,
    reserve_space: AnyArray,
    host_reserved: NDArray[np.int8],
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    time_major: bool = True,
    name: str | None = None,
) -> CudnnRNNGrads[ArrayT]:
    """The gradient of CudnnRNNV3: see `cupyrnn.cudnn_rnn_backprop`.

    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> inputs["sequence_lengths"] = np.array([3])
    >>> out = raw_ops.CudnnRNNV3(**inputs)
    >>> given = {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> given |= out._asdict() | {"output_backprop": out.output}
    >>> raw_ops.CudnnRNNBackpropV3(**inputs, **given).input_backprop[:, 0, 0].round(4)
    array([0.0608, 0.0728, 0.0767, 0.    ])
    """
    return cudnn_rnn_backprop(**_named(locals()))
