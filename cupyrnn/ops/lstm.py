"""TensorFlow's LSTMBlockCell and BlockLSTM, forward and gradient.

Symbols: T time steps, B batch, I input size, H hidden size. The four gates are i (input), ci (new
cell value), f (forget) and o (output); cs is the cell state, co = tanh(cs), h the output.
"""

from __future__ import annotations

from .._typing import AnyArray, ArrayT, Lengths, LSTMCellGrads, LSTMGrads, Resets
from ..arithmetic.gates import RecurrentActivation
from ..cells.block_forms import LSTM_FORM, GateOrder
from ..cells.contract import Attributes
from ..cells.gradients import WeightGradients
from ..cells.lstm import LSTMOutputs
from ..checks.attributes import REQUIRED
from ..checks.block import check_block
from ..checks.extent import Steps
from ..driver.signatures import by_signature
from . import block


@by_signature
def lstm_block_cell(
    x: ArrayT,
    cs_prev: AnyArray | None = None,
    h_prev: AnyArray | None = None,
    w: AnyArray = REQUIRED,
    b: AnyArray = REQUIRED,
    *,
    wci: AnyArray | None = None,
    wcf: AnyArray | None = None,
    wco: AnyArray | None = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    use_peephole: bool | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> LSTMOutputs[ArrayT]:
    """
    One step of an LSTM, as TensorFlow's LSTMBlockCell.

    ::

        zi, zci, zf, zo = split([x, h_prev] @ w + b)
        i  = sigmoid(zi + cs_prev*wci)
        f  = sigmoid(zf + cs_prev*wcf + forget_bias)
        ci = tanh(zci)
        cs = clip(i*ci + f*cs_prev, -cell_clip, cell_clip)
        co = tanh(cs)
        o  = sigmoid(zo + cs*wco)
        h  = o*co

    x is [B, I], cs_prev and h_prev are [B, H], w [I+H, 4*H] and b [4*H]; all results are [B, H]. A
    state that is None is zero, peepholes that are None are left out. If forget_bias and cell_clip
    are None, they are 1 and 3 with gate order "icfo", which is the default, and 0 and no clip with
    "ifco".

    Parameters
    ----------
    x : [B, I]
        The input; float16, bfloat16, float32 or float64. All other arrays have the same dtype. Half
        formats are computed in float32. A complex64 or complex128 array holds values and, as
        imaginary parts, tangents, whose squares vanish beside 1, see `cupyrnn.jvp`; complex data
        are refused. Real arrays of the same precision beside it have no tangents.
    cs_prev, h_prev : [B, H], optional
        The cell state and the output of the previous step. Zeros by default.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in `gate_order`.
    b : [4*H]
        The bias, in the same order.
    wci, wcf, wco : [H], optional
        The peephole weights of i, f and o: all three or none.
    forget_bias : float, optional
        Added to the forget gate. The default is TensorFlow's for the gate order: 1 for "icfo"
        (LSTMBlockCell, BlockLSTM), 0 for "ifco" (BlockLSTMV2).
    cell_clip : float, optional
        Bound of abs(cs); 0, a negative number or NaN mean none. The default is TensorFlow's for the
        gate order: 3 for "icfo", none for "ifco".
    use_peephole : bool, optional
        By default, peepholes are used if they are passed. With False they are checked but not used.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates i, f and o: the sigmoid, as in TensorFlow's op, or a hard sigmoid.
        Keras 1 and 2, TensorFlow 1 and ONNX use clip(0.2*z + 0.5, 0, 1); Keras 3 and PyTorch use
        clip(z/6 + 0.5, 0, 1). A model's configuration says which of the three it was trained with;
        its arrays do not.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, each [B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is not a NumPy or CuPy array, its module, device or dtype differs from the first
        one's, some but not all peepholes are passed, or an attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.

    See Also
    --------
    block_lstm : The same over a sequence.
    lstm_block_cell_backward : The gradient of every input.

    References
    ----------
    .. [1] F. Gers, N. Schraudolph, J. Schmidhuber, "Learning Precise Timing with LSTM Recurrent
       Networks", JMLR 3, 2002 (peepholes).
    .. [2] W. Zaremba, I. Sutskever, O. Vinyals, "Recurrent Neural Network Regularization",
       arXiv:1409.2329 (the equations TensorFlow follows).

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, w, b = np.ones((1, 2)), np.full((5, 12), 0.1), np.zeros(12)
    >>> out = cupyrnn.lstm_block_cell(x, w=w, b=b)
    >>> out.h.round(4)
    array([[0.0594, 0.0594, 0.0594]])
    """
    op = "lstm_block_cell"
    arrays = {"x": x, "cs_prev": cs_prev, "h_prev": h_prev, "w": w, "b": b}
    peephole = {"wci": wci, "wcf": wcf, "wco": wco}
    attributes = Attributes(forget_bias, cell_clip, gate_order, recurrent_activation)
    call = check_block(op, LSTM_FORM, arrays, peephole, attributes, use_peephole)
    return block.checked(call)  # type: ignore[no-any-return]


@by_signature
def block_lstm(
    x: ArrayT,
    cs_prev: AnyArray | None = None,
    h_prev: AnyArray | None = None,
    w: AnyArray = REQUIRED,
    b: AnyArray = REQUIRED,
    *,
    wci: AnyArray | None = None,
    wcf: AnyArray | None = None,
    wco: AnyArray | None = None,
    seq_len_max: int | None = None,
    sequence_lengths: Lengths | None = None,
    reverse: bool = False,
    resets: Resets | None = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    use_peephole: bool | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> LSTMOutputs[ArrayT]:
    """
    An LSTM over a sequence, as TensorFlow's BlockLSTM ("icfo") and BlockLSTMV2 ("ifco").

    Each step is `lstm_block_cell` with cs and h of the step before::

        zi, zci, zf, zo = split([x[t], h] @ w + b)
        i  = sigmoid(zi + cs*wci)
        f  = sigmoid(zf + cs*wcf + forget_bias)
        ci = tanh(zci)
        cs = clip(i*ci + f*cs, -cell_clip, cell_clip)
        co = tanh(cs)
        o  = sigmoid(zo + cs*wco)
        h  = o*co

    x is [T, B, I], cs_prev and h_prev are [B, H], w [I+H, 4*H] and b [4*H]; all results are
    [T, B, H]. A state that is None is zero, peepholes that are None are left out. If forget_bias
    and cell_clip are None, they are 1 and 3 with gate order "icfo", which is the default, and 0 and
    no clip with "ifco".

    Parameters
    ----------
    x : [T, B, I]
        The input; float16, bfloat16, float32 or float64. All other arrays have the same dtype. Half
        formats are computed in float32. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    cs_prev, h_prev : [B, H], optional
        The cell state and the output before the first step. Zeros by default.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in `gate_order`.
    b : [4*H]
        The bias, in the same order.
    wci, wcf, wco : [H], optional
        The peephole weights of i, f and o: all three or none.
    seq_len_max : int, optional
        Number of steps to compute, within [0, T]; T by default. Later steps are not read, and all
        seven outputs are zero there.
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence, in [0, T] and in any order; it replaces seq_len_max. Steps past
        a sequence's end are not read, and all seven outputs are zero there.
    reverse : bool
        Run each sequence from its own last step to its first. cs_prev and h_prev are then the
        states at its end, and ``h[t]`` still belongs to ``x[t]``.
    resets : [T, B] booleans on the host, optional
        Marks the steps at which an episode or a packed document begins. No state passes between a
        marked step t and step t-1, in either direction: with ``reverse=False`` the state before a
        marked step is zero.
    forget_bias : float, optional
        Added to the forget gate. The default is 1 for "icfo" and 0 for "ifco".
    cell_clip : float, optional
        Bound of abs(cs); 0, a negative number or NaN mean none. The default is 3 for "icfo" and
        none for "ifco".
    use_peephole : bool, optional
        By default, peepholes are used if they are passed. With False they are checked but not used.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates i, f and o: the sigmoid, as in TensorFlow's ops, the hard sigmoid
        clip(0.2*z + 0.5, 0, 1) of Keras 1 and 2, TensorFlow 1 and ONNX, or the hard sigmoid
        clip(z/6 + 0.5, 0, 1) of Keras 3 and PyTorch.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, each [T, B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is not a NumPy or CuPy array, its module, device or dtype differs from the first
        one's, some but not all peepholes are passed, or an attribute has a wrong type.
    ValueError
        A shape does not fit the others, an attribute is out of range, a length is outside
        [0, T], or both seq_len_max and sequence_lengths are passed.

    See Also
    --------
    block_lstm_grad : The gradient of every input.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, w, b = np.ones((4, 1, 2)), np.full((5, 12), 0.1), np.zeros(12)
    >>> out = cupyrnn.block_lstm(x, w=w, b=b)
    >>> out.h[:, 0, 0].round(4)
    array([0.0594, 0.1108, 0.1547, 0.1921])

    An LSTM with peepholes in both directions, over sequences of 4 and 2 steps: two calls and a
    concatenation, and then their gradients.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(4, 2, 3))
    >>> weights = [rng.normal(size=(8, 20)) for _ in range(2)]
    >>> peepholes = dict(zip(["wci", "wcf", "wco"], rng.normal(size=(3, 5))))
    >>> outs, grads = [], []
    >>> for w, reverse in zip(weights, [False, True]):
    ...     outs.append(
    ...         cupyrnn.block_lstm(
    ...             x, w=w, b=np.zeros(20), **peepholes, cell_clip=0,
    ...             sequence_lengths=[4, 2], reverse=reverse,
    ...         )
    ...     )
    >>> y = np.concatenate([out.h for out in outs], axis=2)
    >>> y.shape, bool((y[2:, 1] == 0).all())
    ((4, 2, 10), True)
    >>> dy = np.ones(y.shape)
    >>> for w, out, reverse in zip(weights, outs, [False, True]):
    ...     grads.append(
    ...         cupyrnn.block_lstm_grad(
    ...             x, None, None, w, *out, None, dy[..., 5:] if reverse else dy[..., :5],
    ...             **peepholes, sequence_lengths=[4, 2], reverse=reverse,
    ...         )
    ...     )
    >>> (grads[0].x_grad + grads[1].x_grad).shape
    (4, 2, 3)
    """
    op = "block_lstm"
    arrays = {"x": x, "cs_prev": cs_prev, "h_prev": h_prev, "w": w, "b": b}
    peephole = {"wci": wci, "wcf": wcf, "wco": wco}
    attributes = Attributes(forget_bias, cell_clip, gate_order, recurrent_activation)
    call = check_block(op, LSTM_FORM, arrays, peephole, attributes, use_peephole)
    steps = Steps(op, seq_len_max, reverse).check(x, sequence_lengths, resets)
    return block.checked(call, steps)  # type: ignore[no-any-return]


@by_signature
def lstm_block_cell_grad(
    cs_prev: AnyArray | None = None,
    i: ArrayT = REQUIRED,
    cs: AnyArray = REQUIRED,
    f: AnyArray = REQUIRED,
    o: AnyArray = REQUIRED,
    ci: AnyArray = REQUIRED,
    co: AnyArray = REQUIRED,
    cs_grad: AnyArray | None = None,
    h_grad: AnyArray | None = None,
    *,
    wci: AnyArray | None = None,
    wcf: AnyArray | None = None,
    wco: AnyArray | None = None,
    x: AnyArray | None = None,
    h_prev: AnyArray | None = None,
    w: AnyArray | None = None,
    b: AnyArray | None = None,
    cell_clip: float | None = None,
    use_peephole: bool | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> LSTMCellGrads[ArrayT]:
    """
    The gradient of one LSTM step up to its gates, as TensorFlow's LSTMBlockCellGrad.

    ::

        do  = o*(1-o) * h_grad*co
        dcs = (1-co²) * h_grad*o + cs_grad + do*wco
        di  = i*(1-i) * dcs*ci
        df  = f*(1-f) * dcs*cs_prev
        dci = (1-ci²) * dcs*i
        cs_prev_grad = dcs*f + di*wci + df*wcf

    All arrays are [B, H], but wci, wcf and wco, which are [H], and dicfo = [di, dci, df, do]. A
    state or gradient that is None is zero. If cell_clip is None, the gradient ignores the clip, as
    TensorFlow's does.

    `lstm_block_cell_backward` also returns the gradients of x, h_prev, w and b.

    Parameters
    ----------
    cs_prev : [B, H], optional
        The cell state before the step. Zeros by default.
    i, cs, f, o, ci, co : [B, H]
        What `lstm_block_cell` returned, in float16, bfloat16, float32 or float64. All arrays have
        the same dtype. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    cs_grad, h_grad : [B, H], optional
        The gradients of cs and h; zeros by default.
    wci, wcf, wco : [H], optional
        The peephole weights: all three or none.
    x, h_prev, w, b : [B, I], [B, H], [I+H, 4*H], [4*H], optional
        The other inputs of the step. Their values are not used, but checked if not None.
    cell_clip : float, optional
        With the value of the forward call, the gradient is the true one: zero where abs(cs), in
        half formats after rounding, reached the clip. By default, the gradient treats a clipped cs
        as if no clipping had happened, as TensorFlow's does.
    use_peephole : bool, optional
        By default, peepholes are used if they are passed.
    gate_order : {"icfo", "ifco"}
        The order of the gates in dicfo.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of i, f and o in the forward call. The slope of a hard sigmoid replaces i*(1-i),
        f*(1-f) and o*(1-o): it is 0.2 or 1/6 where the gate is within (0, 1), else 0.

    Returns
    -------
    LSTMCellGrads
        cs_prev_grad [B, H]; dicfo [B, 4*H], the gate gradients in `gate_order`; wci_grad,
        wcf_grad and wco_grad [H], zeros without peepholes.

    Raises
    ------
    TypeError
        An argument is not a NumPy or CuPy array, its module, device or dtype differs from the first
        one's, some but not all peepholes are passed, or an attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.

    Notes
    -----
    TensorFlow's own kernel has two defects with peepholes, which this function does not repeat: on
    a CPU it may overwrite wci, wcf and wco, and on a GPU it adds their terms to cs_prev_grad twice.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, cs, h = np.ones((1, 2)), np.zeros((1, 3)), np.zeros((1, 3))
    >>> out = cupyrnn.lstm_block_cell(x, cs, h, np.full((5, 12), 0.1), np.zeros(12))
    >>> grads = cupyrnn.lstm_block_cell_grad(cs, *out[:6], None, np.ones((1, 3)))
    >>> grads.cs_prev_grad.round(4)
    array([[0.4176, 0.4176, 0.4176]])
    """
    op = "lstm_block_cell_grad"
    arrays = {"cs_prev": cs_prev, "i": i, "cs": cs, "f": f, "o": o, "ci": ci, "co": co}
    optional = {"cs_grad": cs_grad, "h_grad": h_grad, "x": x, "h_prev": h_prev, "w": w, "b": b}
    optional |= {"wci": wci, "wcf": wcf, "wco": wco}
    attributes = Attributes(None, cell_clip, gate_order, recurrent_activation)
    call = check_block(op, LSTM_FORM, arrays, optional, attributes, use_peephole)
    return block.checked(call, to_gates=True)  # type: ignore[no-any-return]


@by_signature
def lstm_block_cell_backward(
    x: ArrayT,
    cs_prev: AnyArray | None = None,
    h_prev: AnyArray | None = None,
    w: AnyArray = REQUIRED,
    i: AnyArray = REQUIRED,
    cs: AnyArray = REQUIRED,
    f: AnyArray = REQUIRED,
    o: AnyArray = REQUIRED,
    ci: AnyArray = REQUIRED,
    co: AnyArray = REQUIRED,
    cs_grad: AnyArray | None = None,
    h_grad: AnyArray | None = None,
    *,
    wci: AnyArray | None = None,
    wcf: AnyArray | None = None,
    wco: AnyArray | None = None,
    b: AnyArray | None = None,
    cell_clip: float | None = None,
    use_peephole: bool | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> LSTMGrads[ArrayT]:
    """
    The gradient of every input of one LSTM step.

    This is `lstm_block_cell_grad` and the products that TensorFlow leaves to the caller::

        x_grad, h_prev_grad = split(dicfo @ w.T)
        w_grad = [x, h_prev].T @ dicfo
        b_grad = sum(dicfo)

    x and x_grad are [B, I], w and w_grad [I+H, 4*H], and dicfo is [B, 4*H]. A state or gradient
    that is None is zero. If cell_clip is None, the gradient ignores the clip, as TensorFlow's does.

    Parameters
    ----------
    x : [B, I]
        The input of the step; float16, bfloat16, float32 or float64. All other arrays have the same
        dtype. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    cs_prev, h_prev : [B, H], optional
        The states before the step. Zeros by default.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in `gate_order`.
    i, cs, f, o, ci, co : [B, H]
        What `lstm_block_cell` returned.
    cs_grad, h_grad : [B, H], optional
        The gradients of cs and h; zeros by default.
    wci, wcf, wco : [H], optional
        The peephole weights: all three or none.
    b : [4*H], optional
        Its value is not used; it is checked if it is not None.
    cell_clip : float, optional
        With the value of the forward call, the gradient is the true one. By default, it treats a
        clipped cs as if no clipping had happened, as TensorFlow's does.
    use_peephole : bool, optional
        By default, peepholes are used if they are passed.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w, and in w_grad and b_grad.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of i, f and o in the forward call. The slope of a hard sigmoid replaces i*(1-i),
        f*(1-f) and o*(1-o): it is 0.2 or 1/6 where the gate is within (0, 1), else 0.

    Returns
    -------
    LSTMGrads
        x_grad, cs_prev_grad, h_prev_grad, w_grad, wci_grad, wcf_grad, wco_grad and b_grad, each
        of the shape of its input; the peephole gradients are zeros without peepholes.

    Raises
    ------
    TypeError
        An argument is not a NumPy or CuPy array, its module, device or dtype differs from the first
        one's, some but not all peepholes are passed, or an attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, cs, h = np.ones((1, 2)), np.zeros((1, 3)), np.zeros((1, 3))
    >>> w = np.full((5, 12), 0.1)
    >>> out = cupyrnn.lstm_block_cell(x, cs, h, w, np.zeros(12))
    >>> grads = cupyrnn.lstm_block_cell_backward(x, cs, h, w, *out[:6], None, np.ones((1, 3)))
    >>> grads.x_grad.round(4)
    array([[0.1021, 0.1021]])
    """
    op = "lstm_block_cell_backward"
    saved = {"i": i, "cs": cs, "f": f, "o": o, "ci": ci, "co": co}
    arrays = {"x": x, "cs_prev": cs_prev, "h_prev": h_prev, "w": w, **saved}
    optional = {"cs_grad": cs_grad, "h_grad": h_grad, "wci": wci, "wcf": wcf, "wco": wco, "b": b}
    attributes = Attributes(None, cell_clip, gate_order, recurrent_activation)
    call = check_block(op, LSTM_FORM, arrays, optional, attributes, use_peephole)
    return block.checked(call)  # type: ignore[no-any-return]


@by_signature
def block_lstm_grad(
    x: ArrayT,
    cs_prev: AnyArray | None = None,
    h_prev: AnyArray | None = None,
    w: AnyArray = REQUIRED,
    i: AnyArray = REQUIRED,
    cs: AnyArray = REQUIRED,
    f: AnyArray = REQUIRED,
    o: AnyArray = REQUIRED,
    ci: AnyArray = REQUIRED,
    co: AnyArray = REQUIRED,
    h: AnyArray = REQUIRED,
    cs_grad: AnyArray | None = None,
    h_grad: AnyArray | None = None,
    *,
    wci: AnyArray | None = None,
    wcf: AnyArray | None = None,
    wco: AnyArray | None = None,
    b: AnyArray | None = None,
    seq_len_max: int | None = None,
    sequence_lengths: Lengths | None = None,
    reverse: bool = False,
    resets: Resets | None = None,
    cell_clip: float | None = None,
    use_peephole: bool | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
    weight_gradients: WeightGradients = "sum",
) -> LSTMGrads[ArrayT]:
    """
    The gradient of every input of `block_lstm`, as TensorFlow's BlockLSTMGrad and V2.

    Each step, from the last to the first, is `lstm_block_cell_backward` with the gradients dcs and
    dh that the step after it returns, and cs and h of the step before it::

        dh  = dh + h_grad[t]
        do  = o*(1-o) * dh*co
        dcs = (1-co²) * dh*o + dcs + cs_grad[t] + do*wco
        di  = i*(1-i) * dcs*ci
        df  = f*(1-f) * dcs*cs
        dci = (1-ci²) * dcs*i
        dz  = [di, dci, df, do], in gate_order
        dcs = dcs*f + di*wci + df*wcf
        x_grad[t], dh = split(dz @ w.T)
        w_grad = w_grad + [x[t], h].T @ dz

    x and x_grad are [T, B, I], what `block_lstm` returned is [T, B, H], and so are cs_grad and
    h_grad. States and gradients that are None are zero. If cell_clip is None, the gradient ignores
    the clip, as TensorFlow's does.

    Parameters
    ----------
    x : [T, B, I]
        The input; float16, bfloat16, float32 or float64. All other arrays have the same dtype.
        Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    cs_prev, h_prev : [B, H], optional
        The states before the first step. Zeros by default.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in `gate_order`.
    i, cs, f, o, ci, co, h : [T, B, H]
        What `block_lstm` returned.
    cs_grad, h_grad : [T, B, H], optional
        The gradients of cs and h of every step; zeros by default.
    wci, wcf, wco : [H], optional
        The peephole weights: all three or none.
    b : [4*H], optional
        Its value is not used; it is checked if it is not None.
    seq_len_max : int, optional
        Number of steps that the forward call computed; T by default. Later steps are not read, and
        x_grad is zero there.
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence in the forward call; x_grad is zero past its end.
    reverse : bool
        Each sequence was run from its own last step to its first.
    resets : [T, B] booleans on the host, optional
        The marks of the forward call. No gradient passes between a marked step and the step before
        it.
    cell_clip : float, optional
        With the value of the forward call, the gradient is the true one: zero where abs(cs), in
        half formats after rounding, reached the clip. By default, the gradient treats a clipped cs
        as if no clipping had happened, as TensorFlow's does.
    use_peephole : bool, optional
        By default, peepholes are used if they are passed.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w, and in w_grad and b_grad.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of i, f and o in the forward call. The slope of a hard sigmoid replaces i*(1-i),
        f*(1-f) and o*(1-o): it is 0.2 or 1/6 where the gate is within (0, 1), else 0.
    weight_gradients : {"sum", "examples", "norms", "none"}
        What to return for the weights: their gradients; the gradients of each example of the
        batch, with a leading axis B; the Euclidean norms [B] of these, in float32 for half formats;
        or None.

    Returns
    -------
    LSTMGrads
        x_grad, cs_prev_grad, h_prev_grad, w_grad, wci_grad, wcf_grad, wco_grad and b_grad, each
        of the shape of its input; `weight_gradients` can change what the weights' are. The peephole
        gradients are zeros without peepholes.

    Raises
    ------
    TypeError
        An argument is not a NumPy or CuPy array, its module, device or dtype differs from the first
        one's, some but not all peepholes are passed, or an attribute has a wrong type.
    ValueError
        A shape does not fit the others, an attribute is out of range, a length is outside
        [0, T], or both seq_len_max and sequence_lengths are passed.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, cs, h = np.ones((4, 1, 2)), np.zeros((1, 3)), np.zeros((1, 3))
    >>> w = np.full((5, 12), 0.1)
    >>> out = cupyrnn.block_lstm(x, cs, h, w, np.zeros(12))
    >>> grads = cupyrnn.block_lstm_grad(x, cs, h, w, *out, None, np.ones((4, 1, 3)))
    >>> grads.x_grad[:, 0, 0].round(4)
    array([0.3145, 0.2674, 0.2021, 0.12  ])
    """
    op = "block_lstm_grad"
    saved = {"i": i, "cs": cs, "f": f, "o": o, "ci": ci, "co": co, "h": h}
    arrays = {"x": x, "cs_prev": cs_prev, "h_prev": h_prev, "w": w, **saved}
    optional = {"cs_grad": cs_grad, "h_grad": h_grad, "wci": wci, "wcf": wcf, "wco": wco, "b": b}
    attributes = Attributes(None, cell_clip, gate_order, recurrent_activation)
    call = check_block(op, LSTM_FORM, arrays, optional, attributes, use_peephole)
    steps = Steps(op, seq_len_max, reverse).check(x, sequence_lengths, resets)
    return block.checked(call, steps, weight_gradients)  # type: ignore[no-any-return]
