"""TensorFlow's LSTM ops by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lstm
from .._arrays import check_bool
from ._named import named

if TYPE_CHECKING:
    from .._results import LSTMCellGrads, LSTMGrads
    from .._typing import AnyArray, ArrayT
    from ..cells.lstm import LSTMOutputs


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
    """
    One LSTM step, gates in the order icfo: see `cupyrnn.lstm_block_cell`.

    Parameters
    ----------
    x : [B, I]
        The input; float16, bfloat16, float32 or float64, and all other arrays alike. Half formats
        are computed in float32.
    cs_prev, h_prev : [B, H]
        The cell state and the output before the step.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in the order icfo.
    wci, wcf, wco : [H]
        The peephole weights of i, f and o. They are checked in any case, and used with use_peephole
        only.
    b : [4*H]
        The bias, in the order of w's columns.
    forget_bias : float
        Added to the forget gate.
    cell_clip : float
        Bound of abs(cs); 0, a negative number or NaN mean none.
    use_peephole : bool or None
        Use wci, wcf and wco; None is False.
    name : str, optional
        Ignored.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, each [B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or use_peephole is not a bool.
    ValueError
        A shape does not fit the others.

    See Also
    --------
    cupyrnn.lstm_block_cell : The equations, and more options.

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
    use_peephole = False if use_peephole is None else use_peephole
    return lstm.lstm_block_cell(**named(locals()))


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
) -> LSTMCellGrads[ArrayT]:
    """
    The gradient of one LSTM step: see `cupyrnn.lstm_block_cell_grad`.

    Parameters
    ----------
    x : [B, I]
        The input of the step; float16, bfloat16, float32 or float64, and all other arrays alike.
        Half formats are computed in float32. Its values do not enter.
    cs_prev, h_prev : [B, H]
        The cell state and the output before the step. The values of h_prev do not enter.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in the order icfo. Their
        values do not enter.
    wci, wcf, wco : [H]
        The peephole weights of i, f and o. They are checked in any case, and used with use_peephole
        only.
    b : [4*H]
        The bias, in the order of w's columns. Its values do not enter.
    i, cs, f, o, ci, co : [B, H]
        What LSTMBlockCell returned.
    cs_grad, h_grad : [B, H]
        The gradients of cs and h.
    use_peephole : bool
        Whether the peephole weights were used. Without them their gradients are zeros.
    name : str, optional
        Ignored.

    Returns
    -------
    LSTMCellGrads
        cs_prev_grad [B, H]; dicfo [B, 4*H], the gradients of the gates' sums, in the order icfo;
        wci_grad, wcf_grad and wco_grad [H]. A clipped cs has the gradient of one that was not, as
        in TensorFlow; `cupyrnn.lstm_block_cell_grad` has the true one too.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or use_peephole is not a bool.
    ValueError
        A shape does not fit the others.

    See Also
    --------
    cupyrnn.lstm_block_cell_grad : The equations, and more options.

    Examples
    --------
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
    return lstm.lstm_block_cell_grad(**named(locals()))


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
    """
    An LSTM over a sequence, gates in the order icfo: see `cupyrnn.block_lstm`.

    Parameters
    ----------
    seq_len_max : int
        Number of steps that are computed, within [0, T]. What lies past it is not read, and all
        seven outputs are zero there.
    x : [T, B, I]
        The input; float16, bfloat16, float32 or float64, and all other arrays alike. Half formats
        are computed in float32.
    cs_prev, h_prev : [B, H]
        The cell state and the output before the first step.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in the order icfo.
    wci, wcf, wco : [H]
        The peephole weights of i, f and o. They are checked in any case, and used with use_peephole
        only.
    b : [4*H]
        The bias, in the order of w's columns.
    forget_bias : float
        Added to the forget gate.
    cell_clip : float
        Bound of abs(cs); 0, a negative number or NaN mean none.
    use_peephole : bool or None
        Use wci, wcf and wco; None is False.
    name : str, optional
        Ignored.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, each [T, B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or use_peephole is not a bool.
    ValueError
        A shape does not fit the others, or seq_len_max lies outside [0, T].

    See Also
    --------
    cupyrnn.block_lstm : The equations, and more options.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> inputs = {"x": np.ones((4, 1, 2)), "w": np.full((5, 12), 0.1), "b": np.zeros(12)}
    >>> inputs |= dict.fromkeys(("cs_prev", "h_prev"), np.zeros((1, 3))) | {"seq_len_max": 4}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(3))
    >>> raw_ops.BlockLSTM(**inputs).h[:, 0, 0].round(4)
    array([0.0594, 0.1108, 0.1547, 0.1921])
    """
    use_peephole = False if use_peephole is None else use_peephole
    return lstm.block_lstm(**named(locals()))


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
    """
    An LSTM over a sequence, gates in the order ifco: see `cupyrnn.block_lstm`.

    Parameters
    ----------
    seq_len_max : int
        Number of steps that are computed, within [0, T]. What lies past it is not read, and all
        seven outputs are zero there.
    x : [T, B, I]
        The input; float16, bfloat16, float32 or float64, and all other arrays alike. Half formats
        are computed in float32.
    cs_prev, h_prev : [B, H]
        The cell state and the output before the first step.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in the order ifco.
    wci, wcf, wco : [H]
        The peephole weights of i, f and o. They are checked in any case, and used with use_peephole
        only.
    b : [4*H]
        The bias, in the order of w's columns.
    cell_clip : float
        Bound of abs(cs); 0, a negative number or NaN mean none.
    use_peephole : bool or None
        Use wci, wcf and wco; None is False.
    name : str, optional
        Ignored.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, each [T, B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or use_peephole is not a bool.
    ValueError
        A shape does not fit the others, or seq_len_max lies outside [0, T].

    See Also
    --------
    cupyrnn.block_lstm : The equations, and more options.

    Examples
    --------
    >>> import numpy as np
    >>> from cupyrnn import raw_ops
    >>> inputs = {"x": np.ones((4, 1, 2)), "w": np.full((5, 12), 0.1), "b": np.zeros(12)}
    >>> inputs |= dict.fromkeys(("cs_prev", "h_prev"), np.zeros((1, 3))) | {"seq_len_max": 4}
    >>> inputs |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(3))
    >>> raw_ops.BlockLSTMV2(**inputs).h[:, 0, 0].round(4)
    array([0.0594, 0.0982, 0.1235, 0.1401])
    """
    use_peephole = False if use_peephole is None else use_peephole
    return lstm.block_lstm(**named(locals()), gate_order="ifco")


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
) -> LSTMGrads[ArrayT]:
    """
    The gradient of an LSTM over a sequence, order icfo: see `cupyrnn.block_lstm_grad`.

    Parameters
    ----------
    seq_len_max : int
        Number of steps that are computed, within [0, T]. What lies past it is not read, and x_grad
        is zero there.
    x : [T, B, I]
        The input; float16, bfloat16, float32 or float64, and all other arrays alike. Half formats
        are computed in float32.
    cs_prev, h_prev : [B, H]
        The cell state and the output before the first step.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in the order icfo.
    wci, wcf, wco : [H]
        The peephole weights of i, f and o. They are checked in any case, and used with use_peephole
        only.
    b : [4*H]
        The bias, in the order of w's columns. Its values do not enter.
    i, cs, f, o, ci, co, h : [T, B, H]
        What BlockLSTM returned.
    cs_grad, h_grad : [T, B, H]
        The gradients of cs and h of every step.
    use_peephole : bool
        Whether the peephole weights were used. Without them their gradients are zeros.
    name : str, optional
        Ignored.

    Returns
    -------
    LSTMGrads
        x_grad, cs_prev_grad, h_prev_grad, w_grad, wci_grad, wcf_grad, wco_grad and b_grad, each of
        the shape of its input. A clipped cs has the gradient of one that was not, as in TensorFlow;
        `cupyrnn.block_lstm_grad` has the true one too.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or use_peephole is not a bool.
    ValueError
        A shape does not fit the others, or seq_len_max lies outside [0, T].

    See Also
    --------
    cupyrnn.block_lstm_grad : The equations, and more options.

    Examples
    --------
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
    return lstm.block_lstm_grad(**named(locals()))


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
) -> LSTMGrads[ArrayT]:
    """
    The gradient of an LSTM over a sequence, order ifco: see `cupyrnn.block_lstm_grad`.

    Parameters
    ----------
    seq_len_max : int
        Number of steps that are computed, within [0, T]. What lies past it is not read, and x_grad
        is zero there.
    x : [T, B, I]
        The input; float16, bfloat16, float32 or float64, and all other arrays alike. Half formats
        are computed in float32.
    cs_prev, h_prev : [B, H]
        The cell state and the output before the first step.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in the order ifco.
    wci, wcf, wco : [H]
        The peephole weights of i, f and o. They are checked in any case, and used with use_peephole
        only.
    b : [4*H]
        The bias, in the order of w's columns. Its values do not enter.
    i, cs, f, o, ci, co, h : [T, B, H]
        What BlockLSTMV2 returned.
    cs_grad, h_grad : [T, B, H]
        The gradients of cs and h of every step.
    use_peephole : bool
        Whether the peephole weights were used. Without them their gradients are zeros.
    name : str, optional
        Ignored.

    Returns
    -------
    LSTMGrads
        x_grad, cs_prev_grad, h_prev_grad, w_grad, wci_grad, wcf_grad, wco_grad and b_grad, each of
        the shape of its input. A clipped cs has the gradient of one that was not, as in TensorFlow;
        `cupyrnn.block_lstm_grad` has the true one too.

    Raises
    ------
    TypeError
        An argument is neither a NumPy nor a CuPy array, one is of another module, device or dtype
        than the first, or use_peephole is not a bool.
    ValueError
        A shape does not fit the others, or seq_len_max lies outside [0, T].

    See Also
    --------
    cupyrnn.block_lstm_grad : The equations, and more options.

    Examples
    --------
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
    return lstm.block_lstm_grad(**named(locals()), gate_order="ifco")
