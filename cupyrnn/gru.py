"""TensorFlow's GRUBlockCell, forward and gradient, and the same over a sequence.

Symbols: T time steps, B batch, I input size, H hidden size. The gates are r (reset) and u (update);
c is the new value and h the output. The reset comes before the recurrent matmul, so this is not
the GRU of cuDNN, and there is one bias per gate, not two.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._arrays import (
    cast,
    check_arrays,
    check_seq_len,
    compute_dtype,
    contiguous,
    expect_rank,
    expect_shape,
    on_device,
    operand_dtype,
)
from ._products import (
    CHUNK,
    Scratch,
    add_matmul,
    add_state_matmul,
    column_sums,
    exp_of,
    matmul,
    previous,
    rows,
    time_blocks,
    transposed,
)

if TYPE_CHECKING:
    from ._arrays import Array


class GRUOutputs(NamedTuple):
    """What a GRU step [B, H] or sequence [T, B, H] returns, in TensorFlow's order."""

    r: Array
    u: Array
    c: Array
    h: Array


class GRUCellGrads(NamedTuple):
    """What GRUBlockCellGrad returns: [B, I], [B, H], [B, H] and [B, 2*H]."""

    d_x: Array
    d_h_prev: Array
    d_c_bar: Array
    d_r_bar_u_bar: Array


class GRUGrads(NamedTuple):
    """The gradient of every input of a GRU, each with the shape of its input."""

    d_x: Array
    d_h_prev: Array
    d_w_ru: Array
    d_w_c: Array
    d_b_ru: Array
    d_b_c: Array


def forward_steps(
    xw_ru: Array,
    xw_c: Array,
    w_ru: Array,
    w_c: Array,
    b_ru: Array,
    b_c: Array,
    h_prev: Array,
    outputs: GRUOutputs,
) -> Array:
    """
    The recurrence over t steps.

    Parameters
    ----------
    xw_ru, xw_c : [t, B, 2*H], [t, B, H]
        x @ w of the rows of w_ru and w_c that belong to x; overwritten.
    w_ru, w_c : [H, 2*H], [H, H]
        The rows that belong to h, C-contiguous.
    b_ru, b_c : [2*H], [H]
        The biases.
    outputs : four times [t, B, H]
        Written.

    Returns
    -------
    h : [B, H]
        The last state, carried from block to block unrounded where the outputs are of half
        precision.
    """
    B, H = h_prev.shape
    compute = xw_c.dtype
    # The pre-activations of the sigmoids are held negated, as in lstm.py: z is
    # -(x @ w_x + h_prev @ w_h + b).
    np.subtract(-b_ru, xw_ru, xw_ru)
    xw_c += b_c
    wide = outputs
    if outputs.h.dtype != compute:
        wide = GRUOutputs(*(np.empty(outputs.h.shape, compute) for _ in outputs))
    h_prev = h_prev.astype(compute, order="C")
    z, z_c, h_reset = (np.empty((B, n * H), compute) for n in (2, 1, 1))
    # One plane [B, H] per gate: a ufunc over contiguous memory is several times cheaper than
    # one over half of each row.
    z_planes = z.reshape(B, 2, H).transpose(1, 0, 2)
    e_r, e_u = e = np.empty((2, B, H), compute)
    one, exp = np.array(1, compute), exp_of(compute)
    with np.errstate(over="ignore", under="ignore"):
        for xw_ru_t, xw_c_t, r, u, c, h in zip(xw_ru, xw_c, *wide, strict=True):
            np.dot(h_prev, w_ru, z)
            np.subtract(xw_ru_t, z, z)
            exp(z_planes, e)
            np.add(e, one, e)
            np.reciprocal(e_r, r)  # r = sigmoid(zr)
            np.reciprocal(e_u, u)  # u = sigmoid(zu)
            np.dot(np.multiply(h_prev, r, h_reset), w_c, z_c)
            np.add(z_c, xw_c_t, z_c)
            np.tanh(z_c, c)
            np.subtract(h_prev, c, h)
            np.multiply(h, u, h)
            np.add(h, c, h)  # h = u*(h_prev-c) + c
            h_prev = h
    if wide is not outputs:
        for a, value in zip(outputs, wide, strict=True):
            a[...] = value
    return h_prev


def zero_past(outputs: GRUOutputs) -> None:
    """Zero all four outputs, which are those past seq_len_max."""
    for a in outputs:
        a[...] = 0


def backward_steps(
    saved: GRUOutputs,
    h_prev: Array,
    d_h: Array,
    w_ru: Array,
    w_c: Array,
    dh: Array,
    d_ru: Array,
    d_c: Array,
    h_reset: Array,
    lo: int,
) -> None:
    """
    The recurrence over the t steps from `lo` on, backwards.

    Parameters
    ----------
    saved : four times [T, B, H]
        The outputs of the forward pass.
    h_prev : [B, H]
        The state before step 0.
    d_h : [T, B, H]
        The gradient of each step's h.
    w_ru, w_c : [2*H, H], [H, H]
        The recurrent weights, as `transposed` returns them.
    dh : [B, H]
        The gradient carried into the last of the steps; overwritten with the one carried out of
        the first.
    d_ru, d_c : [t, B, 2*H], [t, B, H]
        Written: the gradients of the gates and of the new value before their nonlinearities.
    h_reset : [t, B, H]
        Written: h_prev*r of each step, which the gradient of w_c needs.
    """
    t, B, H = d_c.shape
    compute = dh.dtype
    n = max(1, min(t, CHUNK // max(B * H, 1)))
    factors, tmp = np.empty((3, n, B, H), compute), np.empty((n, B, H), compute)
    d_hr, product = np.empty((B, H), compute), np.empty((B, H), compute)
    one = np.array(1, compute)  # ufuncs take it faster than Python's number
    by_gate = d_ru.reshape(t, B, 2, H)
    for start in range((t - 1) // n * n, -1, -n):
        here = slice(start, min(start + n, t))
        steps = slice(lo + here.start, lo + here.stop)
        r, u, c = (cast(a[steps], compute) for a in saved[:3])
        before = previous(h_prev, saved.h, steps.start, steps.stop, compute)
        # All of a step's gradient that does not depend on the gradient carried through time.
        k_r, k_u, k_c = (k[: len(r)] for k in factors)
        rest = tmp[: len(r)]
        np.subtract(one, u, rest)
        np.multiply(c, c, out=k_c)
        np.subtract(one, k_c, k_c)
        k_c *= rest  # (1-u)*(1-c²)
        rest *= u
        np.subtract(before, c, out=k_u)
        k_u *= rest  # (h_prev-c)*u*(1-u)
        np.multiply(before, r, out=h_reset[here])
        np.subtract(one, r, k_r)
        k_r *= h_reset[here]  # h_prev*r*(1-r)
        # Iterating over arrays makes the views of a step faster than indexing them does.
        arrays = [cast(d_h[steps], compute), k_r, k_u, k_c, r, u, d_ru[here], d_c[here]]
        arrays += by_gate[here, :, 0], by_gate[here, :, 1]
        for given, k_r_s, k_u_s, k_c_s, r_s, u_s, d_ru_s, d_c_s, d_r, d_u in zip(
            *(a[::-1] for a in arrays), strict=True
        ):
            np.add(dh, given, dh)
            np.multiply(dh, k_u_s, d_u)
            np.multiply(dh, k_c_s, d_c_s)
            np.dot(d_c_s, w_c, d_hr)
            np.multiply(d_hr, k_r_s, d_r)
            np.dot(d_ru_s, w_ru, product)
            np.multiply(dh, u_s, dh)
            np.multiply(d_hr, r_s, d_hr)
            np.add(dh, d_hr, dh)
            np.add(dh, product, dh)  # d_ru @ w_ru.T + d_hr*r + dh*u


def add_gate_sums(d_ru: Array, d_c: Array, d_b_ru: Array, d_b_c: Array) -> None:
    """Add the sums over time and batch to d_b_ru[2*H] and d_b_c[H]."""
    d_b_ru += column_sums(rows(d_ru, d_ru.dtype))
    d_b_c += column_sums(rows(d_c, d_c.dtype))


def _room(xp: ModuleType) -> Any:
    """Return where the recurrence is for an array module: here, or in its CUDA twin."""
    if xp is np:
        return sys.modules[__name__]
    from .kernels import gru

    return gru


def _forward(
    xp: ModuleType,
    x: Array,
    h_prev: Array,
    w_ru: Array,
    w_c: Array,
    b_ru: Array,
    b_c: Array,
    steps: int,
) -> GRUOutputs:
    """block_gru after its checks."""
    T, B, I = x.shape
    H = h_prev.shape[1]
    compute, operand = compute_dtype(x.dtype), operand_dtype(xp, x.dtype)
    room = _room(xp)
    w_ru, w_c = (a.astype(operand, order="C", copy=False) for a in (w_ru, w_c))
    b_ru, b_c = (contiguous(xp, cast(a, compute)) for a in (b_ru, b_c))
    # In one piece, fresh memory costs fewer page faults. h is often kept without the others.
    outputs = GRUOutputs._make([*xp.empty((3, T, B, H), x.dtype), xp.empty((T, B, H), x.dtype)])
    h = h_prev
    xw_ru_memory, xw_c_memory = Scratch(xp, compute), Scratch(xp, compute)
    for lo, hi in time_blocks(xp, steps, B):
        x_rows = rows(x[lo:hi], operand)
        xw_ru, xw_c = xw_ru_memory(hi - lo, B, 2 * H), xw_c_memory(hi - lo, B, H)
        matmul(xp, x_rows, w_ru[:I], rows(xw_ru, compute))
        matmul(xp, x_rows, w_c[:I], rows(xw_c, compute))
        block = GRUOutputs(*(a[lo:hi] for a in outputs))
        h = room.forward_steps(xw_ru, xw_c, w_ru[I:], w_c[I:], b_ru, b_c, h, block)
    if steps < T:
        room.zero_past(GRUOutputs(*(a[steps:] for a in outputs)))
    return outputs


def _backward(
    xp: ModuleType,
    x: Array,
    h_prev: Array,
    w_ru: Array,
    w_c: Array,
    saved: GRUOutputs,
    d_h: Array,
    steps: int,
) -> GRUGrads:
    """block_gru_grad after its checks."""
    T, B, I = x.shape
    H = h_prev.shape[1]
    dtype, compute, operand = x.dtype, compute_dtype(x.dtype), operand_dtype(xp, x.dtype)
    room = _room(xp)
    w_ru, w_c = cast(w_ru, operand), cast(w_c, operand)
    w_ru_h, w_c_h = (transposed(xp, a[I:], steps) for a in (w_ru, w_c))
    h_prev, d_h = contiguous(xp, h_prev), contiguous(xp, d_h)
    saved = GRUOutputs(*(contiguous(xp, a) for a in saved))

    d_x = xp.empty((T, B, I), dtype)
    d_x[steps:] = 0
    dh = xp.zeros((B, H), compute)
    d_w_ru, d_w_c = xp.zeros((I + H, 2 * H), compute), xp.zeros((I + H, H), compute)
    d_b_ru, d_b_c = xp.zeros(2 * H, compute), xp.zeros(H, compute)
    d_ru_memory, d_c_memory, h_memory = (Scratch(xp, operand) for _ in range(3))
    d_x_memory, product = Scratch(xp, compute), Scratch(xp, compute)
    for lo, hi in reversed(list(time_blocks(xp, steps, B))):
        d_ru = d_ru_memory(hi - lo, B, 2 * H)
        d_c, h_reset = (memory(hi - lo, B, H) for memory in (d_c_memory, h_memory))
        room.backward_steps(saved, h_prev, d_h, w_ru_h, w_c_h, dh, d_ru, d_c, h_reset, lo)
        g_ru, g_c, x_rows = (rows(a, operand) for a in (d_ru, d_c, x[lo:hi]))
        d_x_block = d_x_memory(len(x_rows), I)
        matmul(xp, g_ru, w_ru[:I].T, d_x_block)
        add_matmul(xp, g_c, w_c[:I].T, d_x_block, product)
        d_x[lo:hi] = d_x_block.reshape(hi - lo, B, I)
        add_matmul(xp, x_rows.T, g_ru, d_w_ru[:I], product)
        add_matmul(xp, x_rows.T, g_c, d_w_c[:I], product)
        add_state_matmul(xp, h_prev, saved.h, lo, d_ru, d_w_ru[I:], product)
        add_matmul(xp, rows(h_reset, operand).T, g_c, d_w_c[I:], product)
        room.add_gate_sums(d_ru, d_c, d_b_ru, d_b_c)
    grads = (d_x, dh, d_w_ru, d_w_c, d_b_ru, d_b_c)
    return GRUGrads(*(cast(g, dtype) for g in grads))


def _cell_grad(
    xp: ModuleType, h_prev: Array, w_ru: Array, w_c: Array, saved: GRUOutputs, d_h: Array
) -> GRUCellGrads:
    """gru_block_cell_grad after its checks: a sequence of one step up to its gates."""
    B, H = h_prev.shape
    I = w_ru.shape[0] - H
    dtype = h_prev.dtype
    compute, operand = compute_dtype(dtype), operand_dtype(xp, dtype)
    w_ru, w_c = cast(w_ru, operand), cast(w_c, operand)
    w_ru_h, w_c_h = (transposed(xp, a[I:], 1) for a in (w_ru, w_c))
    h_prev, d_h = contiguous(xp, h_prev), contiguous(xp, d_h)
    saved = GRUOutputs(*(contiguous(xp, a) for a in saved))
    dh, d_x = xp.zeros((B, H), compute), xp.empty((B, I), compute)
    d_ru = xp.empty((1, B, 2 * H), operand)
    d_c, h_reset = (xp.empty((1, B, H), operand) for _ in range(2))
    _room(xp).backward_steps(saved, h_prev, d_h, w_ru_h, w_c_h, dh, d_ru, d_c, h_reset, 0)
    matmul(xp, d_ru[0], w_ru[:I].T, d_x)
    add_matmul(xp, d_c[0], w_c[:I].T, d_x, Scratch(xp, compute))
    return GRUCellGrads(*(cast(g, dtype) for g in (d_x, dh, d_c[0], d_ru[0])))


_INPUTS = ("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c")


def _contract(
    op: str, lead: str, required: dict[str, Array], optional: dict[str, Array | None]
) -> ModuleType:
    """
    Check every array of a GRU call and return its module.

    `lead` names the axes x begins with: "B" for one step, "T, B" for a sequence. What is not an
    input of the forward op is a state of shape (lead, H).
    """
    xp, _ = check_arrays(op, required, optional, complex_step="r" not in required)
    arrays = {**required, **{name: a for name, a in optional.items() if a is not None}}
    x, h_prev, w_ru = arrays.get("x"), arrays["h_prev"], arrays["w_ru"]
    H = expect_rank(op, "h_prev", h_prev, "(B, H)")[1]
    leading, I = h_prev.shape[:1], max(expect_rank(op, "w_ru", w_ru, "(I+H, 2*H)")[0] - H, 0)
    if x is not None:
        *leading_sizes, I = expect_rank(op, "x", x, f"({lead}, I)")
        leading = tuple(leading_sizes)
    expect_shape(op, "h_prev", h_prev, "(B, H)", (leading[-1], H))
    expect_shape(op, "w_ru", w_ru, "(I+H, 2*H)", (I + H, 2 * H))
    expect_shape(op, "w_c", arrays["w_c"], "(I+H, H)", (I + H, H))
    expect_shape(op, "b_ru", arrays.get("b_ru"), "(2*H,)", (2 * H,))
    expect_shape(op, "b_c", arrays.get("b_c"), "(H,)", (H,))
    state, state_shape = f"({lead}, H)", (*leading, H)
    for name, a in arrays.items():
        if name not in _INPUTS:
            expect_shape(op, name, a, state, state_shape)
    return xp


def gru_block_cell(
    x: Array, h_prev: Array, w_ru: Array, w_c: Array, b_ru: Array, b_c: Array
) -> GRUOutputs:
    """
    One step of a GRU, as TensorFlow's GRUBlockCell.

    ::

        r, u = sigmoid(split([x, h_prev] @ w_ru + b_ru))
        c = tanh([x, h_prev*r] @ w_c + b_c)
        h = (1-u)*c + u*h_prev

    Parameters
    ----------
    x : [B, I]
        The input; float16, bfloat16, float32 or float64, and all other arrays alike. Half
        formats are computed in float32. complex128 serves differentiation by complex step.
    h_prev : [B, H]
        The output of the step before.
    w_ru : [I+H, 2*H]
        The weights of r and u, rows for x above rows for h_prev.
    w_c : [I+H, H]
        The weights of c, rows for x above rows for h_prev*r.
    b_ru : [2*H]
        The biases of r and u.
    b_c : [H]
        The bias of c.

    Returns
    -------
    GRUOutputs
        r, u, c and h, each [B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is no NumPy array, or the dtypes differ.
    ValueError
        A shape does not fit the others.

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
    xp = _contract(
        "gru_block_cell",
        "B",
        {"x": x, "h_prev": h_prev, "w_ru": w_ru, "w_c": w_c, "b_ru": b_ru, "b_c": b_c},
        {},
    )
    with on_device(xp, x):
        out = _forward(xp, x[None], h_prev, w_ru, w_c, b_ru, b_c, 1)
    return GRUOutputs(*(a[0] for a in out))


def block_gru(
    x: Array,
    h_prev: Array,
    w_ru: Array,
    w_c: Array,
    b_ru: Array,
    b_c: Array,
    *,
    seq_len_max: int | None = None,
) -> GRUOutputs:
    """
    A GRU over a sequence, with the equations of `gru_block_cell`.

    TensorFlow has no such op. The parameters not listed here are those of `gru_block_cell`.

    Parameters
    ----------
    x : [T, B, I]
        The input.
    h_prev : [B, H]
        The output before the first step.
    seq_len_max : int, optional
        Number of steps to compute, within [0, T]; all T if left out. What lies past it is not
        read, and all four outputs are zero there.

    Returns
    -------
    GRUOutputs
        r, u, c and h, each [T, B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is no NumPy array, or the dtypes differ.
    ValueError
        A shape does not fit the others, or seq_len_max lies outside [0, T].

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
    xp = _contract(
        op,
        "T, B",
        {"x": x, "h_prev": h_prev, "w_ru": w_ru, "w_c": w_c, "b_ru": b_ru, "b_c": b_c},
        {},
    )
    steps = check_seq_len(op, seq_len_max, x.shape[0])
    with on_device(xp, x):
        return _forward(xp, x, h_prev, w_ru, w_c, b_ru, b_c, steps)


def gru_block_cell_grad(
    h_prev: Array,
    w_ru: Array,
    w_c: Array,
    r: Array,
    u: Array,
    c: Array,
    d_h: Array,
    *,
    x: Array | None = None,
    b_ru: Array | None = None,
    b_c: Array | None = None,
) -> GRUCellGrads:
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

    `gru_block_cell_backward` goes on to the gradients of the weights and biases.

    Parameters
    ----------
    h_prev : [B, H]
        The output of the step before.
    w_ru, w_c : [I+H, 2*H], [I+H, H]
        The weights.
    r, u, c : [B, H]
        What `gru_block_cell` returned.
    d_h : [B, H]
        The gradient of h.
    x, b_ru, b_c : optional
        The other inputs of the step. Their values do not enter; they are checked if given.

    Returns
    -------
    GRUCellGrads
        d_x [B, I], d_h_prev [B, H], d_c_bar [B, H] and d_r_bar_u_bar [B, 2*H].

    Raises
    ------
    TypeError, ValueError
        As `gru_block_cell`.

    Notes
    -----
    These are the equations TensorFlow computes. Its documentation of the op differs from them
    in four places, which are misprints.

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
    xp = _contract(
        "gru_block_cell_grad",
        "B",
        {"h_prev": h_prev, "w_ru": w_ru, "w_c": w_c, "r": r, "u": u, "c": c, "d_h": d_h},
        {"x": x, "b_ru": b_ru, "b_c": b_c},
    )
    # h is not among the arguments: its value does not enter.
    saved = GRUOutputs(*(a[None] for a in (r, u, c, c)))
    with on_device(xp, h_prev):
        return _cell_grad(xp, h_prev, w_ru, w_c, saved, d_h[None])


def gru_block_cell_backward(
    x: Array,
    h_prev: Array,
    w_ru: Array,
    w_c: Array,
    r: Array,
    u: Array,
    c: Array,
    d_h: Array,
    *,
    b_ru: Array | None = None,
    b_c: Array | None = None,
) -> GRUGrads:
    """
    The gradient of every input of one GRU step.

    `gru_block_cell_grad` and what TensorFlow leaves to the caller::

        d_w_ru = [x, h_prev].T @ d_r_bar_u_bar
        d_w_c = [x, h_prev*r].T @ d_c_bar
        d_b_ru, d_b_c = sum(d_r_bar_u_bar), sum(d_c_bar)

    Parameters
    ----------
    x : [B, I]
        The input of the step.
    h_prev : [B, H]
        The output of the step before.
    w_ru, w_c : [I+H, 2*H], [I+H, H]
        The weights.
    r, u, c : [B, H]
        What `gru_block_cell` returned.
    d_h : [B, H]
        The gradient of h.
    b_ru, b_c : [2*H], [H], optional
        Their values do not enter; they are checked if given.

    Returns
    -------
    GRUGrads
        d_x, d_h_prev, d_w_ru, d_w_c, d_b_ru and d_b_c, each of the shape of its input.

    Raises
    ------
    TypeError, ValueError
        As `gru_block_cell`.

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
    xp = _contract(
        "gru_block_cell_backward",
        "B",
        {"x": x, "h_prev": h_prev, "w_ru": w_ru, "w_c": w_c, "r": r, "u": u, "c": c, "d_h": d_h},
        {"b_ru": b_ru, "b_c": b_c},
    )
    # h is not among the arguments: the value of the last h does not enter.
    saved = GRUOutputs(r[None], u[None], c[None], h_prev[None])
    with on_device(xp, x):
        grads = _backward(xp, x[None], h_prev, w_ru, w_c, saved, d_h[None], 1)
    return grads._replace(d_x=grads.d_x[0])


def block_gru_grad(
    x: Array,
    h_prev: Array,
    w_ru: Array,
    w_c: Array,
    r: Array,
    u: Array,
    c: Array,
    h: Array,
    d_h: Array,
    *,
    b_ru: Array | None = None,
    b_c: Array | None = None,
    seq_len_max: int | None = None,
) -> GRUGrads:
    """
    The gradient of every input of `block_gru`.

    The equations of `gru_block_cell_grad` for every step from the last to the first, where each
    step's d_h is the one given plus the one that the step after it passes back.

    Parameters
    ----------
    x : [T, B, I]
        The input.
    h_prev : [B, H]
        The output before the first step.
    w_ru, w_c : [I+H, 2*H], [I+H, H]
        The weights.
    r, u, c, h : [T, B, H]
        What `block_gru` returned.
    d_h : [T, B, H]
        The gradient of h of every step.
    b_ru, b_c : [2*H], [H], optional
        Their values do not enter; they are checked if given.
    seq_len_max : int, optional
        As in the forward call. What lies past it is not read, and d_x is zero there.

    Returns
    -------
    GRUGrads
        d_x, d_h_prev, d_w_ru, d_w_c, d_b_ru and d_b_c, each of the shape of its input.

    Raises
    ------
    TypeError, ValueError
        As `block_gru`.

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
    saved = {"r": r, "u": u, "c": c, "h": h}
    xp = _contract(
        op,
        "T, B",
        {"x": x, "h_prev": h_prev, "w_ru": w_ru, "w_c": w_c, **saved, "d_h": d_h},
        {"b_ru": b_ru, "b_c": b_c},
    )
    steps = check_seq_len(op, seq_len_max, x.shape[0])
    with on_device(xp, x):
        return _backward(xp, x, h_prev, w_ru, w_c, GRUOutputs(**saved), d_h, steps)
