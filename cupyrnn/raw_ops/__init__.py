"""TensorFlow's raw ops by their names: the same keyword arguments, defaults and results.

Code that calls ``tf.raw_ops.BlockLSTMGrad(**kw)`` works with ``cupyrnn.raw_ops`` and arrays. Each
op calls the function of the package that its docstring names, with the same arguments. That
function's docstring has the equations, shapes, dtypes and errors; the op's says what differs.
`name` is accepted and ignored. Errors begin with the op's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from .._typing import (
    AnyArray,
    ArrayT,
    CudnnRNNGrads,
    CudnnRNNOutputs,
    CudnnRNNV1Outputs,
    GRUCellGrads,
    Lengths,
    LSTMCellGrads,
    LSTMGrads,
)
from ..cells.gru import GRUOutputs
from ..cells.lstm import LSTMOutputs
from ..checks.arrays import FLOATS
from ..checks.attributes import check_choice, check_dropout, check_integer, shown
from ..ops import gru, lstm

# Not the module: in the package its name stands for the function.
from ..ops.cudnn_rnn import cudnn_rnn, cudnn_rnn_backprop
from ..weights import params as packed
from ._op import Named, NetAttributes, Projected, calls

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack


class _LSTMInputs(Named):
    cs_prev: AnyArray
    h_prev: AnyArray
    w: AnyArray
    wci: AnyArray
    wcf: AnyArray
    wco: AnyArray
    b: AnyArray


class _Saved(TypedDict):
    i: AnyArray
    cs: AnyArray
    f: AnyArray
    o: AnyArray
    ci: AnyArray
    co: AnyArray


class _Output(TypedDict):
    h: AnyArray


class _Cotangents(TypedDict):
    cs_grad: AnyArray
    h_grad: AnyArray
    use_peephole: bool


class _Bias(TypedDict, total=False):
    forget_bias: float


class _Clip(TypedDict, total=False):
    cell_clip: float
    use_peephole: bool | None


class _LSTMForward(_LSTMInputs, _Bias, _Clip):
    """The arguments of LSTMBlockCell and BlockLSTM."""


class _LSTMForwardV2(_LSTMInputs, _Clip):
    """The arguments of BlockLSTMV2."""


class _LSTMCellGrad(_LSTMInputs, _Saved, _Cotangents):
    """The arguments of LSTMBlockCellGrad."""


class _LSTMGrad(_LSTMInputs, _Saved, _Output, _Cotangents):
    """The arguments of BlockLSTMGrad and BlockLSTMGradV2."""


@calls(lstm.lstm_block_cell)
def LSTMBlockCell(*, x: ArrayT, **kwargs: Unpack[_LSTMForward]) -> LSTMOutputs[ArrayT]:
    """
    One step of an LSTM: `cupyrnn.lstm_block_cell` with ``gate_order="icfo"``.

    Parameters
    ----------
    wci, wcf, wco : [H]
        Always required and checked; used only if use_peephole is True.
    use_peephole : bool or None
        None is False.

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


@calls(lstm.lstm_block_cell_grad)
def LSTMBlockCellGrad(*, x: ArrayT, **kwargs: Unpack[_LSTMCellGrad]) -> LSTMCellGrads[ArrayT]:
    """
    The gradient of LSTMBlockCell: see `cupyrnn.lstm_block_cell_grad`.

    The gradient treats a clipped cs as if no clipping had happened, like TensorFlow's.

    Parameters
    ----------
    wci, wcf, wco : [H]
        Always required and checked; used only if use_peephole is True.
    use_peephole : bool
        Whether the forward call used peepholes; None is not accepted.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state, w, b = np.ones((1, 2)), np.zeros((1, 3)), np.full((5, 12), 0.1), np.zeros(12)
    >>> inputs = {"x": x, "cs_prev": state, "h_prev": state, "w": w, "b": b}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), b[:3])
    >>> out = raw_ops.LSTMBlockCell(**inputs)
    >>> saved = {name: a for name, a in out._asdict().items() if name != "h"}
    >>> saved |= {"cs_grad": 0 * out.cs, "h_grad": out.h, "use_peephole": False}
    >>> raw_ops.LSTMBlockCellGrad(**inputs, **saved).cs_prev_grad.round(4)
    array([[0.0248, 0.0248, 0.0248]])
    """


@calls(lstm.block_lstm)
def BlockLSTM(
    *, seq_len_max: int, x: ArrayT, **kwargs: Unpack[_LSTMForward]
) -> LSTMOutputs[ArrayT]:
    """
    An LSTM over a sequence: `cupyrnn.block_lstm` with ``gate_order="icfo"``.

    Parameters
    ----------
    wci, wcf, wco : [H]
        Always required and checked; used only if use_peephole is True.
    use_peephole : bool or None
        None is False.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> inputs = {"seq_len_max": 4, "x": np.ones((4, 1, 2)), "w": np.full((5, 12), 0.1)}
    >>> inputs |= dict.fromkeys(("cs_prev", "h_prev"), np.zeros((1, 3))) | {"b": np.zeros(12)}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(3))
    >>> raw_ops.BlockLSTM(**inputs).h[:, 0, 0].round(4)
    array([0.0594, 0.1108, 0.1547, 0.1921])
    """


@calls(lstm.block_lstm, gate_order="ifco", cell_clip=0)
def BlockLSTMV2(
    *, seq_len_max: int, x: ArrayT, **kwargs: Unpack[_LSTMForwardV2]
) -> LSTMOutputs[ArrayT]:
    """
    An LSTM over a sequence: `cupyrnn.block_lstm` with ``gate_order="ifco"``.

    Parameters
    ----------
    wci, wcf, wco : [H]
        Always required and checked; used only if use_peephole is True.
    use_peephole : bool or None
        None is False.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> inputs = {"seq_len_max": 4, "x": np.ones((4, 1, 2)), "w": np.full((5, 12), 0.1)}
    >>> inputs |= dict.fromkeys(("cs_prev", "h_prev"), np.zeros((1, 3))) | {"b": np.zeros(12)}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(3))
    >>> raw_ops.BlockLSTMV2(**inputs).h[:, 0, 0].round(4)
    array([0.0594, 0.0982, 0.1235, 0.1401])
    """


@calls(lstm.block_lstm_grad)
def BlockLSTMGrad(*, seq_len_max: int, x: ArrayT, **kwargs: Unpack[_LSTMGrad]) -> LSTMGrads[ArrayT]:
    """
    The gradient of BlockLSTM: `cupyrnn.block_lstm_grad` with ``gate_order="icfo"``.

    The gradient treats a clipped cs as if no clipping had happened, like TensorFlow's.

    Parameters
    ----------
    wci, wcf, wco : [H]
        Always required and checked; used only if use_peephole is True.
    use_peephole : bool
        Whether the forward call used peepholes; None is not accepted.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> inputs = {"seq_len_max": 4, "x": np.ones((4, 1, 2)), "w": np.full((5, 12), 0.1)}
    >>> inputs |= dict.fromkeys(("cs_prev", "h_prev"), np.zeros((1, 3))) | {"b": np.zeros(12)}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(3))
    >>> out = raw_ops.BlockLSTM(**inputs)
    >>> inputs |= out._asdict() | {"cs_grad": 0 * out.cs, "h_grad": out.h}
    >>> raw_ops.BlockLSTMGrad(**inputs, use_peephole=False).x_grad[:, 0, 0].round(4)
    array([0.0375, 0.0392, 0.0345, 0.0231])
    """


@calls(lstm.block_lstm_grad, gate_order="ifco")
def BlockLSTMGradV2(
    *, seq_len_max: int, x: ArrayT, **kwargs: Unpack[_LSTMGrad]
) -> LSTMGrads[ArrayT]:
    """
    The gradient of BlockLSTMV2: `cupyrnn.block_lstm_grad` with ``gate_order="ifco"``.

    The gradient treats a clipped cs as if no clipping had happened, like TensorFlow's.

    Parameters
    ----------
    wci, wcf, wco : [H]
        Always required and checked; used only if use_peephole is True.
    use_peephole : bool
        Whether the forward call used peepholes; None is not accepted.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> inputs = {"seq_len_max": 4, "x": np.ones((4, 1, 2)), "w": np.full((5, 12), 0.1)}
    >>> inputs |= dict.fromkeys(("cs_prev", "h_prev"), np.zeros((1, 3))) | {"b": np.zeros(12)}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(3))
    >>> out = raw_ops.BlockLSTMV2(**inputs)
    >>> inputs |= out._asdict() | {"cs_grad": 0 * out.cs, "h_grad": out.h}
    >>> raw_ops.BlockLSTMGradV2(**inputs, use_peephole=False).x_grad[:, 0, 0].round(4)
    array([0.0211, 0.0253, 0.024 , 0.0167])
    """


class _GRUInputs(Named):
    h_prev: AnyArray
    w_ru: AnyArray
    w_c: AnyArray
    b_ru: AnyArray
    b_c: AnyArray


class _GRUGrad(_GRUInputs):
    r: AnyArray
    u: AnyArray
    c: AnyArray
    d_h: AnyArray


@calls(gru.gru_block_cell)
def GRUBlockCell(*, x: ArrayT, **kwargs: Unpack[_GRUInputs]) -> GRUOutputs[ArrayT]:
    """
    One step of a GRU: see `cupyrnn.gru_block_cell`.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, h, w, b = np.ones((1, 2)), np.full((1, 3), 0.5), np.full((5, 9), 0.1), np.zeros(9)
    >>> inputs = {"x": x, "h_prev": h, "w_ru": w[:, :6], "w_c": w[:, 6:]}
    >>> inputs |= {"b_ru": b[:6], "b_c": b[6:]}
    >>> raw_ops.GRUBlockCell(**inputs).h.round(4)
    array([[0.4092, 0.4092, 0.4092]])
    """


@calls(gru.gru_block_cell_grad)
def GRUBlockCellGrad(*, x: ArrayT, **kwargs: Unpack[_GRUGrad]) -> GRUCellGrads[ArrayT]:
    """
    The gradient of GRUBlockCell: see `cupyrnn.gru_block_cell_grad`.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, h, w, b = np.ones((1, 2)), np.full((1, 3), 0.5), np.full((5, 9), 0.1), np.zeros(9)
    >>> inputs = {"x": x, "h_prev": h, "w_ru": w[:, :6], "w_c": w[:, 6:]}
    >>> inputs |= {"b_ru": b[:6], "b_c": b[6:]}
    >>> r, u, c, h = raw_ops.GRUBlockCell(**inputs)
    >>> raw_ops.GRUBlockCellGrad(**inputs, r=r, u=u, c=c, d_h=h).d_h_prev.round(4)
    array([[0.2757, 0.2757, 0.2757]])
    """


class _NetInputs(TypedDict):
    input_h: AnyArray
    input_c: AnyArray
    params: AnyArray


class _Lengths(TypedDict):
    sequence_lengths: Lengths


class _NetResults(TypedDict):
    output: AnyArray
    output_h: AnyArray
    output_c: AnyArray
    output_backprop: AnyArray
    output_h_backprop: AnyArray
    output_c_backprop: AnyArray
    reserve_space: AnyArray


class _Reserved(TypedDict):
    host_reserved: NDArray[np.int8]


class _NetForward(_NetInputs, NetAttributes, total=False):
    """The arguments of CudnnRNN and CudnnRNNV2."""

    is_training: bool


class _NetForwardV3(_NetInputs, _Lengths, Projected, total=False):
    """The arguments of CudnnRNNV3."""

    is_training: bool
    time_major: bool


class _Backprop(_NetInputs, _NetResults, NetAttributes):
    """The arguments of CudnnRNNBackprop."""


class _BackpropV2(_NetInputs, _NetResults, _Reserved, NetAttributes):
    """The arguments of CudnnRNNBackpropV2."""


class _BackpropV3(_NetInputs, _Lengths, _NetResults, _Reserved, Projected, total=False):
    """The arguments of CudnnRNNBackpropV3."""

    time_major: bool


@calls(cudnn_rnn, lambda **kwargs: CudnnRNNV1Outputs(*cudnn_rnn(**kwargs)[:4]))
def CudnnRNN(*, input: ArrayT, **kwargs: Unpack[_NetForward]) -> CudnnRNNV1Outputs[ArrayT]:
    """
    The first version of TensorFlow's op: `cupyrnn.cudnn_rnn` without host_reserved.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> raw_ops.CudnnRNN(**inputs).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.33  ])
    """


@calls(cudnn_rnn)
def CudnnRNNV2(*, input: ArrayT, **kwargs: Unpack[_NetForward]) -> CudnnRNNOutputs[ArrayT]:
    """
    CudnnRNN that also returns host_reserved: see `cupyrnn.cudnn_rnn`.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> raw_ops.CudnnRNNV2(**inputs).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.33  ])
    """


@calls(cudnn_rnn)
def CudnnRNNV3(*, input: ArrayT, **kwargs: Unpack[_NetForwardV3]) -> CudnnRNNOutputs[ArrayT]:
    """
    CudnnRNNV2 with sequence lengths and a projection: see `cupyrnn.cudnn_rnn`.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> inputs["sequence_lengths"] = np.array([3])
    >>> raw_ops.CudnnRNNV3(**inputs).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.    ])
    """


@calls(cudnn_rnn_backprop)
def CudnnRNNBackprop(*, input: ArrayT, **kwargs: Unpack[_Backprop]) -> CudnnRNNGrads[ArrayT]:
    """
    The gradient of CudnnRNN: see `cupyrnn.cudnn_rnn_backprop`.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> out = raw_ops.CudnnRNN(**inputs)
    >>> inputs |= out._asdict() | {"output_backprop": out.output}
    >>> inputs |= {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> raw_ops.CudnnRNNBackprop(**inputs).input_backprop[:, 0, 0].round(4)
    array([0.0686, 0.0846, 0.0878, 0.088 ])
    """


@calls(cudnn_rnn_backprop)
def CudnnRNNBackpropV2(*, input: ArrayT, **kwargs: Unpack[_BackpropV2]) -> CudnnRNNGrads[ArrayT]:
    """
    The gradient of CudnnRNNV2: see `cupyrnn.cudnn_rnn_backprop`.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> out = raw_ops.CudnnRNNV2(**inputs)
    >>> inputs |= out._asdict() | {"output_backprop": out.output}
    >>> inputs |= {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> raw_ops.CudnnRNNBackpropV2(**inputs).input_backprop[:, 0, 0].round(4)
    array([0.0686, 0.0846, 0.0878, 0.088 ])
    """


@calls(cudnn_rnn_backprop)
def CudnnRNNBackpropV3(*, input: ArrayT, **kwargs: Unpack[_BackpropV3]) -> CudnnRNNGrads[ArrayT]:
    """
    The gradient of CudnnRNNV3: see `cupyrnn.cudnn_rnn_backprop`.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> x, state = np.ones((4, 1, 2)), np.zeros((1, 1, 3))
    >>> inputs = {"input": x, "input_h": state, "input_c": state, "params": np.full(84, 0.1)}
    >>> inputs["sequence_lengths"] = np.array([3])
    >>> out = raw_ops.CudnnRNNV3(**inputs)
    >>> inputs |= out._asdict() | {"output_backprop": out.output}
    >>> inputs |= {"output_h_backprop": out.output_h, "output_c_backprop": state}
    >>> raw_ops.CudnnRNNBackpropV3(**inputs).input_backprop[:, 0, 0].round(4)
    array([0.0608, 0.0728, 0.0767, 0.    ])
    """


_SIZE = "cudnn_rnn_params_size"
_TO_CANONICAL = "cudnn_rnn_params_to_canonical"
_TO_PARAMS = "cudnn_rnn_canonical_to_params"


def _of_net(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Check and remove the attributes that parameters do not depend on."""
    check_dropout(op, arguments.pop("dropout"))
    for name in ("seed", "seed2"):
        check_integer(op, name, arguments.pop(name))
    return arguments


def _size(T: Any, S: Any, **net: Any) -> NDArray[Any]:
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
        of_both = name == "num_params"
        for kind in ("weights", "biases") if of_both else (name.rpartition("_")[2],):
            n = len(getattr(parts, kind))
            if check_integer(_TO_CANONICAL, name, count) != n:
                raise ValueError(f"{_TO_CANONICAL}: {name} is {shown(count)}, expected {n}")
    return parts


def _to_params(**net: Any) -> Any:
    return packed.cudnn_rnn_canonical_to_params(**_of_net(_TO_PARAMS, net))


def _dtype_name(dtype: object) -> object:
    """Return the name of a dtype or a scalar type; other objects unchanged."""
    if isinstance(dtype, np.dtype):
        return dtype.name if dtype.isnative else dtype.str
    return dtype.__name__ if isinstance(dtype, type) else dtype


@calls(packed.cudnn_rnn_params_size, _size)
def CudnnRNNParamsSize(
    *, num_layers: int, num_units: int, input_size: int, T: Any, S: Any, **kwargs: Unpack[Projected]
) -> NDArray[Any]:
    """
    The size of the packed vector as an array: see `cupyrnn.cudnn_rnn_params_size`.

    Parameters
    ----------
    T : dtype
        The dtype of the parameters: a NumPy dtype, a scalar type or a name. The size does not
        depend on it.
    S : dtype
        The dtype of the result [1]: int32 or int64. A size that it cannot hold is a ValueError.
    dropout, seed, seed2 : float, int, int
        Checked, but without effect.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> raw_ops.CudnnRNNParamsSize(**net, T=np.float32, S=np.int32)
    array([56], dtype=int32)
    """


@calls(packed.cudnn_rnn_params_to_canonical, _to_canonical)
def CudnnRNNParamsToCanonical(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: ArrayT,
    num_params: int,
    **kwargs: Unpack[NetAttributes],
) -> packed.CanonicalParams[ArrayT]:
    """
    The packed vector as matrices and biases: see `cupyrnn.cudnn_rnn_params_to_canonical`.

    Parameters
    ----------
    num_params : int
        The number of matrices and of biases; it is checked.
    dropout, seed, seed2 : float, int, int
        Checked, but without effect.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> parts = raw_ops.CudnnRNNParamsToCanonical(**net, params=np.arange(56.0), num_params=8)
    >>> parts.weights[0]
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """


@calls(packed.cudnn_rnn_params_to_canonical, _to_canonical)
def CudnnRNNParamsToCanonicalV2(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    params: ArrayT,
    num_params_weights: int,
    num_params_biases: int,
    **kwargs: Unpack[Projected],
) -> packed.CanonicalParams[ArrayT]:
    """
    The packed vector as matrices and biases: see `cupyrnn.cudnn_rnn_params_to_canonical`.

    Parameters
    ----------
    num_params_weights, num_params_biases : int
        The numbers of matrices and of biases; they are checked.
    dropout, seed, seed2 : float, int, int
        Checked, but without effect.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> counts = {"num_params_weights": 8, "num_params_biases": 8}
    >>> parts = raw_ops.CudnnRNNParamsToCanonicalV2(**net, **counts, params=np.arange(56.0))
    >>> parts.biases[0]
    array([40., 41.])
    """


@calls(packed.cudnn_rnn_canonical_to_params, _to_params)
def CudnnRNNCanonicalToParams(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[ArrayT],
    biases: Sequence[AnyArray],
    **kwargs: Unpack[NetAttributes],
) -> ArrayT:
    """
    Matrices and biases as a packed vector: see `cupyrnn.cudnn_rnn_canonical_to_params`.

    Parameters
    ----------
    dropout, seed, seed2 : float, int, int
        Checked, but without effect.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> parts = raw_ops.CudnnRNNParamsToCanonical(**net, params=np.arange(56.0), num_params=8)
    >>> raw_ops.CudnnRNNCanonicalToParams(**net, **parts._asdict())[:5]
    array([0., 1., 2., 3., 4.])
    """


@calls(packed.cudnn_rnn_canonical_to_params, _to_params)
def CudnnRNNCanonicalToParamsV2(
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    weights: Sequence[ArrayT],
    biases: Sequence[AnyArray],
    **kwargs: Unpack[Projected],
) -> ArrayT:
    """
    Matrices and biases as a packed vector: see `cupyrnn.cudnn_rnn_canonical_to_params`.

    Parameters
    ----------
    dropout, seed, seed2 : float, int, int
        Checked, but without effect.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> net = {"num_layers": 1, "num_units": 2, "input_size": 3}
    >>> parts = raw_ops.CudnnRNNParamsToCanonical(**net, params=np.arange(56.0), num_params=8)
    >>> raw_ops.CudnnRNNCanonicalToParamsV2(**net, **parts._asdict(), num_proj=0)[:5]
    array([0., 1., 2., 3., 4.])
    """


__all__ = sorted(n for n, a in globals().items() if n[0].isupper() and hasattr(a, "__wrapped__"))


def __dir__() -> list[str]:
    return __all__
