"""TensorFlow's GRUBlockCell, forward and gradient, and the same over a sequence.

Symbols: T time steps, B batch, I input size, H hidden size. The gates are r (reset) and u (update);
c is the new value and h the output. The reset comes before the recurrent matmul, so this is not
the GRU of cuDNN, and there is one bias per gate, not two.
"""

from __future__ import annotations

from .._typing import AnyArray, ArrayT, GRUCellGrads, GRUGrads, Lengths, Resets
from ..arithmetic.gates import RecurrentActivation
from ..cells.block_forms import GRU_FORM
from ..cells.contract import Attributes
from ..cells.gradients import WeightGradients
from ..cells.gru import GRUOutputs
from ..checks.attributes import REQUIRED
from ..checks.block import check_block
from ..checks.extent import Steps
from ..driver.signatures import by_signature
from . import block


@by_signature
def gru_block_cell(
    x: ArrayT,
    h_prev: AnyArray | None = None,
    w_ru: AnyArray = REQUIRED,
    w_c: AnyArray = REQUIRED,
    b_ru: AnyArray = REQUIRED,
    b_c: AnyArray = REQUIRED,
    *,
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> GRUOutputs[ArrayT]:
    """
    One step of a GRU, as TensorFlow's GRUBlockCell.

    ::

        r, u = sigmoid(split([x, h_prev] @ w_ru + b_ru))
        c = tanh([x, h_prev*r] @ w_c + b_c)
        h = (1-u)*c + u*h_prev

    x is [B, I], h_prev [B, H], w_ru [I+H, 2*H], w_c [I+H, H], b_ru [2*H] and b_c [H]; all results
    are [B, H]. If h_prev is None, it is zero.

    Parameters
    ----------
    x : [B, I]
        The input; float16, bfloat16, float32 or float64. All other arrays have the same dtype. Half
        formats are computed in float32. A complex64 or complex128 array holds values and, as
        imaginary parts, tangents, whose squares vanish beside 1, see `cupyrnn.jvp`; complex data
        are refused. Real arrays of the same precision beside it have no tangents.
    h_prev : [B, H], optional
        The output of the previous step. Zeros by default.
    w_ru : [I+H, 2*H]
        The weights of r and u, rows for x above rows for h_prev.
    w_c : [I+H, H]
        The weights of c, rows for x above rows for h_prev*r.
    b_ru : [2*H]
        The biases of r and u.
    b_c : [H]
        The bias of c.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates r and u: the sigmoid, as in TensorFlow's op, or a hard sigmoid.
        Keras 1 and 2, TensorFlow 1 and ONNX use clip(0.2*z + 0.5, 0, 1); Keras 3 and PyTorch use
        clip(z/6 + 0.5, 0, 1). A model's configuration says which of the three it was trained with;
        its arrays do not.

    Returns
    -------
    GRUOutputs
        r, u, c and h, each [B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is not a NumPy or CuPy array, its module, device or dtype differs from the first
        one's, or an attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.

    See Also
    --------
    block_gru : The same over a sequence.
    gru_block_cell_backward : The gradient of every input.

    References
    ----------
    .. [1] K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for
       Statistical Machine Translation", arXiv:1406.1078.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, h, w = np.ones((1, 2)), np.full((1, 3), 0.5), np.full((5, 9), 0.1)
    >>> out = cupyrnn.gru_block_cell(x, h, w[:, :6], w[:, 6:], np.zeros(6), np.zeros(3))
    >>> out.h.round(4)
    array([[0.4092, 0.4092, 0.4092]])
    """
    op = "gru_block_cell"
    attributes = Attributes(recurrent_activation=recurrent_activation)
    arrays = {"x": x, "h_prev": h_prev, "w_ru": w_ru, "w_c": w_c, "b_ru": b_ru, "b_c": b_c}
    call = check_block(op, GRU_FORM, arrays, {}, attributes)
    return block.checked(call)  # type: ignore[no-any-return]


@by_signature
def block_gru(
    x: ArrayT,
    h_prev: AnyArray | None = None,
    w_ru: AnyArray = REQUIRED,
    w_c: AnyArray = REQUIRED,
    b_ru: AnyArray = REQUIRED,
    b_c: AnyArray = REQUIRED,
    *,
    seq_len_max: int | None = None,
    sequence_lengths: Lengths | None = None,
    reverse: bool = False,
    resets: Resets | None = None,
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> GRUOutputs[ArrayT]:
    """
    A GRU over a sequence. TensorFlow has no such op.

    Each step is `gru_block_cell` with h of the step before::

        r, u = sigmoid(split([x[t], h] @ w_ru + b_ru))
        c = tanh([x[t], h*r] @ w_c + b_c)
        h = (1-u)*c + u*h

    x is [T, B, I], h_prev [B, H], w_ru [I+H, 2*H], w_c [I+H, H], b_ru [2*H] and b_c [H]; all
    results are [T, B, H]. If h_prev is None, it is zero.

    Parameters
    ----------
    x : [T, B, I]
        The input; float16, bfloat16, float32 or float64. All other arrays have the same dtype. Half
        formats are computed in float32. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    h_prev : [B, H], optional
        The output before the first step. Zeros by default.
    w_ru : [I+H, 2*H]
        The weights of r and u, rows for x above rows for h_prev.
    w_c : [I+H, H]
        The weights of c, rows for x above rows for h_prev*r.
    b_ru : [2*H]
        The biases of r and u.
    b_c : [H]
        The bias of c.
    seq_len_max : int, optional
        Number of steps to compute, within [0, T]; T by default. Later steps are not read, and all
        four outputs are zero there.
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence, in [0, T] and in any order; it replaces seq_len_max. Steps past
        a sequence's end are not read, and all four outputs are zero there.
    reverse : bool
        Run each sequence from its own last step to its first. h_prev is then the state at its end,
        and ``h[t]`` still belongs to ``x[t]``.
    resets : [T, B] booleans on the host, optional
        Marks the steps at which an episode or a packed document begins. No state passes between a
        marked step t and step t-1, in either direction: with ``reverse=False`` the state before a
        marked step is zero.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates r and u: the sigmoid, the hard sigmoid clip(0.2*z + 0.5, 0, 1) of
        Keras 1 and 2, TensorFlow 1 and ONNX, or the hard sigmoid clip(z/6 + 0.5, 0, 1) of Keras 3
        and PyTorch.

    Returns
    -------
    GRUOutputs
        r, u, c and h, each [T, B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is not a NumPy or CuPy array, its module, device or dtype differs from the first
        one's, or an attribute has a wrong type.
    ValueError
        A shape does not fit the others, an attribute is out of range, a length is outside
        [0, T], or both seq_len_max and sequence_lengths are passed.

    See Also
    --------
    block_gru_grad : The gradient of every input.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, h, w = np.ones((4, 1, 2)), np.full((1, 3), 0.5), np.full((5, 9), 0.1)
    >>> out = cupyrnn.block_gru(x, h, w[:, :6], w[:, 6:], np.zeros(6), np.zeros(3))
    >>> out.h[:, 0, 0].round(4)
    array([0.4092, 0.3485, 0.3086, 0.2826])
    """
    op = "block_gru"
    attributes = Attributes(recurrent_activation=recurrent_activation)
    arrays = {"x": x, "h_prev": h_prev, "w_ru": w_ru, "w_c": w_c, "b_ru": b_ru, "b_c": b_c}
    call = check_block(op, GRU_FORM, arrays, {}, attributes)
    steps = Steps(op, seq_len_max, reverse).check(x, sequence_lengths, resets)
    return block.checked(call, steps)  # type: ignore[no-any-return]


@by_signature
def gru_block_cell_grad(
    h_prev: AnyArray | None = None,
    w_ru: AnyArray = REQUIRED,
    w_c: AnyArray = REQUIRED,
    r: ArrayT = REQUIRED,
    u: AnyArray = REQUIRED,
    c: AnyArray = REQUIRED,
    d_h: AnyArray = REQUIRED,
    *,
    x: AnyArray | None = None,
    b_ru: AnyArray | None = None,
    b_c: AnyArray | None = None,
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> GRUCellGrads[ArrayT]:
    """
    The gradient of one GRU step up to its gates, as TensorFlow's GRUBlockCellGrad.

    ::

        d_c_bar = d_h*(1-u) * (1-c²)
        d_u_bar = d_h*(h_prev-c) * u*(1-u)
        d_x2, d_hr = split(d_c_bar @ w_c.T)
        d_r_bar = d_hr*h_prev * r*(1-r)
        d_x1, d_h1 = split([d_r_bar, d_u_bar] @ w_ru.T)
        d_x = d_x1 + d_x2
        d_h_prev = d_h1 + d_hr*r + d_h*u

    d_x is [B, I], and all other gradients are [B, H]. If h_prev is None, it is zero.

    `gru_block_cell_backward` also returns the gradients of the weights and biases.

    Parameters
    ----------
    h_prev : [B, H], optional
        The output of the previous step. Zeros by default.
    w_ru, w_c : [I+H, 2*H], [I+H, H]
        The weights, rows for x above rows for the state.
    r, u, c : [B, H]
        What `gru_block_cell` returned, in float16, bfloat16, float32 or float64. All arrays have
        the same dtype. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    d_h : [B, H]
        The gradient of h.
    x, b_ru, b_c : [B, I], [2*H], [H], optional
        The other inputs of the step. Their values are not used, but checked if not None.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of r and u in the forward call. The slope of a hard sigmoid replaces r*(1-r) and
        u*(1-u): it is 0.2 or 1/6 where the gate is within (0, 1), else 0.

    Returns
    -------
    GRUCellGrads
        d_x [B, I], d_h_prev [B, H], d_c_bar [B, H] and d_r_bar_u_bar [B, 2*H].

    Raises
    ------
    TypeError
        An argument is not a NumPy or CuPy array, its module, device or dtype differs from the first
        one's, or an attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.

    Notes
    -----
    These are the equations that TensorFlow computes. Its documentation of the op has misprints in
    four places.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, h, w = np.ones((1, 2)), np.full((1, 3), 0.5), np.full((5, 9), 0.1)
    >>> r, u, c, _ = cupyrnn.gru_block_cell(x, h, w[:, :6], w[:, 6:], np.zeros(6), np.zeros(3))
    >>> grads = cupyrnn.gru_block_cell_grad(h, w[:, :6], w[:, 6:], r, u, c, np.ones((1, 3)))
    >>> grads.d_h_prev.round(4)
    array([[0.6738, 0.6738, 0.6738]])
    """
    op = "gru_block_cell_grad"
    attributes = Attributes(recurrent_activation=recurrent_activation)
    arrays = {"h_prev": h_prev, "w_ru": w_ru, "w_c": w_c, "r": r, "u": u, "c": c, "d_h": d_h}
    optional = {"x": x, "b_ru": b_ru, "b_c": b_c}
    call = check_block(op, GRU_FORM, arrays, optional, attributes)
    return block.checked(call, to_gates=True)  # type: ignore[no-any-return]


@by_signature
def gru_block_cell_backward(
    x: ArrayT,
    h_prev: AnyArray | None = None,
    w_ru: AnyArray = REQUIRED,
    w_c: AnyArray = REQUIRED,
    r: AnyArray = REQUIRED,
    u: AnyArray = REQUIRED,
    c: AnyArray = REQUIRED,
    d_h: AnyArray = REQUIRED,
    *,
    b_ru: AnyArray | None = None,
    b_c: AnyArray | None = None,
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> GRUGrads[ArrayT]:
    """
    The gradient of every input of one GRU step.

    This is `gru_block_cell_grad` and the products that TensorFlow leaves to the caller::

        d_w_ru = [x, h_prev].T @ d_r_bar_u_bar
        d_w_c = [x, h_prev*r].T @ d_c_bar
        d_b_ru, d_b_c = sum(d_r_bar_u_bar), sum(d_c_bar)

    x is [B, I], d_w_ru [I+H, 2*H] and d_w_c [I+H, H]. If h_prev is None, it is zero.

    Parameters
    ----------
    x : [B, I]
        The input of the step; float16, bfloat16, float32 or float64. All other arrays have the same
        dtype. Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    h_prev : [B, H], optional
        The output of the previous step. Zeros by default.
    w_ru, w_c : [I+H, 2*H], [I+H, H]
        The weights, rows for x above rows for the state.
    r, u, c : [B, H]
        What `gru_block_cell` returned.
    d_h : [B, H]
        The gradient of h.
    b_ru, b_c : [2*H], [H], optional
        Their values are not used, but they are checked if not None.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of r and u in the forward call. The slope of a hard sigmoid replaces r*(1-r) and
        u*(1-u): it is 0.2 or 1/6 where the gate is within (0, 1), else 0.

    Returns
    -------
    GRUGrads
        d_x, d_h_prev, d_w_ru, d_w_c, d_b_ru and d_b_c, each of the shape of its input.

    Raises
    ------
    TypeError
        An argument is not a NumPy or CuPy array, its module, device or dtype differs from the first
        one's, or an attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, h, w = np.ones((1, 2)), np.full((1, 3), 0.5), np.full((5, 9), 0.1)
    >>> r, u, c, _ = cupyrnn.gru_block_cell(x, h, w[:, :6], w[:, 6:], np.zeros(6), np.zeros(3))
    >>> grads = cupyrnn.gru_block_cell_backward(
    ...     x, h, w[:, :6], w[:, 6:], r, u, c, np.ones((1, 3))
    ... )
    >>> grads.d_b_c.round(4)
    array([0.3809, 0.3809, 0.3809])
    """
    op = "gru_block_cell_backward"
    attributes = Attributes(recurrent_activation=recurrent_activation)
    saved, biases = {"r": r, "u": u, "c": c}, {"b_ru": b_ru, "b_c": b_c}
    arrays = {"x": x, "h_prev": h_prev, "w_ru": w_ru, "w_c": w_c, **saved, "d_h": d_h}
    call = check_block(op, GRU_FORM, arrays, biases, attributes)
    return block.checked(call)  # type: ignore[no-any-return]


@by_signature
def block_gru_grad(
    x: ArrayT,
    h_prev: AnyArray | None = None,
    w_ru: AnyArray = REQUIRED,
    w_c: AnyArray = REQUIRED,
    r: AnyArray = REQUIRED,
    u: AnyArray = REQUIRED,
    c: AnyArray = REQUIRED,
    h: AnyArray = REQUIRED,
    d_h: AnyArray = REQUIRED,
    *,
    b_ru: AnyArray | None = None,
    b_c: AnyArray | None = None,
    seq_len_max: int | None = None,
    sequence_lengths: Lengths | None = None,
    reverse: bool = False,
    resets: Resets | None = None,
    recurrent_activation: RecurrentActivation = "sigmoid",
    weight_gradients: WeightGradients = "sum",
) -> GRUGrads[ArrayT]:
    """
    The gradient of every input of `block_gru`.

    Each step, from the last to the first, is `gru_block_cell_backward` with the gradient dh that
    the step after it returns, and h of the step before it::

        dh = dh + d_h[t]
        dc = dh*(1-u) * (1-c²)
        du = dh*(h-c) * u*(1-u)
        d_x2, dhr = split(dc @ w_c.T)
        dr = dhr*h * r*(1-r)
        d_x1, dh1 = split([dr, du] @ w_ru.T)
        d_x[t] = d_x1 + d_x2
        dh = dh1 + dhr*r + dh*u
        d_w_ru = d_w_ru + [x[t], h].T @ [dr, du]
        d_w_c = d_w_c + [x[t], h*r].T @ dc

    x and d_x are [T, B, I]; what `block_gru` returned and d_h are [T, B, H]. If h_prev is None, it
    is zero.

    Parameters
    ----------
    x : [T, B, I]
        The input; float16, bfloat16, float32 or float64. All other arrays have the same dtype.
        Complex arrays hold values and tangents, see `cupyrnn.jvp`.
    h_prev : [B, H], optional
        The output before the first step. Zeros by default.
    w_ru, w_c : [I+H, 2*H], [I+H, H]
        The weights, rows for x above rows for the state.
    r, u, c, h : [T, B, H]
        What `block_gru` returned.
    d_h : [T, B, H]
        The gradient of h of every step.
    b_ru, b_c : [2*H], [H], optional
        Their values are not used, but they are checked if not None.
    seq_len_max : int, optional
        Number of steps that the forward call computed; T by default. Later steps are not read, and
        d_x is zero there.
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence in the forward call; d_x is zero past its end.
    reverse : bool
        Each sequence was run from its own last step to its first.
    resets : [T, B] booleans on the host, optional
        The marks of the forward call. No gradient passes between a marked step and the step before
        it.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of r and u in the forward call. The slope of a hard sigmoid replaces r*(1-r) and
        u*(1-u): it is 0.2 or 1/6 where the gate is within (0, 1), else 0.
    weight_gradients : {"sum", "examples", "norms", "none"}
        What to return for the weights: their gradients; the gradients of each example of the
        batch, with a leading axis B; the Euclidean norms [B] of these, in float32 for half formats;
        or None.

    Returns
    -------
    GRUGrads
        d_x, d_h_prev, d_w_ru, d_w_c, d_b_ru and d_b_c, each of the shape of its input, those
        of weights as `weight_gradients` says.

    Raises
    ------
    TypeError
        An argument is not a NumPy or CuPy array, its module, device or dtype differs from the first
        one's, or an attribute has a wrong type.
    ValueError
        A shape does not fit the others, an attribute is out of range, a length is outside
        [0, T], or both seq_len_max and sequence_lengths are passed.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, h, w = np.ones((4, 1, 2)), np.full((1, 3), 0.5), np.full((5, 9), 0.1)
    >>> out = cupyrnn.block_gru(x, h, w[:, :6], w[:, 6:], np.zeros(6), np.zeros(3))
    >>> grads = cupyrnn.block_gru_grad(x, h, w[:, :6], w[:, 6:], *out, np.ones((4, 1, 3)))
    >>> grads.d_h_prev.round(4)
    array([[1.6008, 1.6008, 1.6008]])
    """
    op = "block_gru_grad"
    attributes = Attributes(recurrent_activation=recurrent_activation)
    saved, biases = {"r": r, "u": u, "c": c, "h": h}, {"b_ru": b_ru, "b_c": b_c}
    arrays = {"x": x, "h_prev": h_prev, "w_ru": w_ru, "w_c": w_c, **saved, "d_h": d_h}
    call = check_block(op, GRU_FORM, arrays, biases, attributes)
    steps = Steps(op, seq_len_max, reverse).check(x, sequence_lengths, resets)
    return block.checked(call, steps, weight_gradients)  # type: ignore[no-any-return]
