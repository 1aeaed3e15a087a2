"""TensorFlow's LSTM ops by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from .. import lstm
from ._op import Named, calls

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._typing import AnyArray, ArrayT, LSTMCellGrads, LSTMGrads
    from ..cells.lstm import LSTMOutputs


class _Inputs(Named):
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


class _Forward(_Inputs, _Bias, _Clip):
    """What LSTMBlockCell and BlockLSTM take."""


class _ForwardV2(_Inputs, _Clip):
    """What BlockLSTMV2 takes."""


class _CellGrad(_Inputs, _Saved, _Cotangents):
    """What LSTMBlockCellGrad takes."""


class _Grad(_Inputs, _Saved, _Output, _Cotangents):
    """What BlockLSTMGrad and BlockLSTMGradV2 take."""


@calls(lstm.lstm_block_cell)
def LSTMBlockCell(*, x: ArrayT, **given: Unpack[_Forward]) -> LSTMOutputs[ArrayT]:
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
def LSTMBlockCellGrad(*, x: ArrayT, **given: Unpack[_CellGrad]) -> LSTMCellGrads[ArrayT]:
    """
    The gradient of LSTMBlockCell: see `cupyrnn.lstm_block_cell_grad`.

    The gradient treats a clipped cs as if no clipping had happened, as TensorFlow's does.

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
def BlockLSTM(*, seq_len_max: int, x: ArrayT, **given: Unpack[_Forward]) -> LSTMOutputs[ArrayT]:
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
def BlockLSTMV2(*, seq_len_max: int, x: ArrayT, **given: Unpack[_ForwardV2]) -> LSTMOutputs[ArrayT]:
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
def BlockLSTMGrad(*, seq_len_max: int, x: ArrayT, **given: Unpack[_Grad]) -> LSTMGrads[ArrayT]:
    """
    The gradient of BlockLSTM: `cupyrnn.block_lstm_grad` with ``gate_order="icfo"``.

    The gradient treats a clipped cs as if no clipping had happened, as TensorFlow's does.

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
def BlockLSTMGradV2(*, seq_len_max: int, x: ArrayT, **given: Unpack[_Grad]) -> LSTMGrads[ArrayT]:
    """
    The gradient of BlockLSTMV2: `cupyrnn.block_lstm_grad` with ``gate_order="ifco"``.

    The gradient treats a clipped cs as if no clipping had happened, as TensorFlow's does.

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
