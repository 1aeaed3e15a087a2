"""TensorFlow's LSTMBlockCell and BlockLSTM, forward and gradient.

Symbols: T time steps, B batch, I input size, H hidden size. The four gates are i (input), ci (new
cell value), f (forget) and o (output); cs is the cell state, co = tanh(cs), h the output.
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ._arrays import (
    cast,
    check_arrays,
    check_bool,
    check_choice,
    check_real,
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

    Peephole: TypeAlias = tuple[Array, Array, Array] | None

GateOrder: TypeAlias = Literal["icfo", "ifco"]

# Which quarter of the columns of w, b and the gate gradients belongs to i, ci, f and o.
_COLUMNS = {"icfo": (0, 1, 2, 3), "ifco": (0, 2, 1, 3)}

# TensorFlow's defaults of (forget_bias, cell_clip): BlockLSTM's and BlockLSTMV2's.
_DEFAULTS = {"icfo": (1.0, 3.0), "ifco": (0.0, 0.0)}


class LSTMOutputs(NamedTuple):
    """What an LSTM step [B, H] or sequence [T, B, H] returns, in TensorFlow's order."""

    i: Array
    cs: Array
    f: Array
    o: Array
    ci: Array
    co: Array
    h: Array


class LSTMCellGrads(NamedTuple):
    """What LSTMBlockCellGrad returns: [B, H], [B, 4*H] and three times [H]."""

    cs_prev_grad: Array
    dicfo: Array
    wci_grad: Array
    wcf_grad: Array
    wco_grad: Array


class LSTMGrads(NamedTuple):
    """The gradient of every input of an LSTM, each with the shape of its input."""

    x_grad: Array
    cs_prev_grad: Array
    h_prev_grad: Array
    w_grad: Array
    wci_grad: Array
    wcf_grad: Array
    wco_grad: Array
    b_grad: Array


@functools.cache
def _compiled(char: str) -> Any:
    """Return the compiled loops for a dtype of the computation, None where there are none."""
    if char not in "fd" or os.environ.get("CUPYRNN_NUMBA", "1") == "0":
        return None
    try:
        import numba

        from ._numba import Loops

        # Not compiled they would be far slower than NumPy's.
        return None if getattr(numba.config, "DISABLE_JIT", 0) else Loops(char)
    except Exception:  # Numba is not installed, or does not work with this NumPy.
        return None


def forward_steps(
    xw: Array,
    w_h: Array,
    b: Array,
    cs_prev: Array,
    h_prev: Array,
    peephole: Peephole,
    cell_clip: float | None,
    columns: tuple[int, ...],
    outputs: LSTMOutputs,
    w_p: Array | None = None,
) -> tuple[Array, Array]:
    """
    The recurrence over t steps.

    Parameters
    ----------
    xw : [t, B, 4*H]
        x @ w_x; overwritten.
    w_h : [H, 4*H]
        The recurrent weights, C-contiguous; [P, 4*H] with a projection.
    b : [4*H]
        The bias, forget_bias included.
    columns
        Which quarter of the columns belongs to i, ci, f and o; i, f and o in that order.
    outputs : seven times [t, B, H]
        Written; h is [t, B, P] with a projection.
    w_p : [H, P], optional
        The projection of CudnnRNN: h = (o*co) @ w_p. C-contiguous.

    Returns
    -------
    cs, h : [B, H]
        The last states. From block to block cs is carried unrounded where the outputs are of half
        precision, and here h too.
    """
    compute = xw.dtype
    # All pre-activations are held negated: z is -(x @ w_x + h_prev @ w_h + b). The sigmoid is then
    # 1/(1 + exp(z)), which unlike the form with tanh keeps its relative accuracy near 0; exp may
    # overflow, which is right.
    np.subtract(-b, xw, xw)
    wide = outputs
    if outputs.h.dtype != compute:
        wide = LSTMOutputs(*(np.empty(a.shape, compute) for a in outputs))
    cs_prev, h_prev = cs_prev.astype(compute, order="C"), h_prev.astype(compute, order="C")
    loop = (xw, w_h, cs_prev, h_prev, peephole, cell_clip, columns, wide)
    compiled = _compiled(compute.char)
    if compiled is not None and w_p is None:
        compiled.forward(*loop)
    else:
        _forward_loop(*loop, w_p)
    if wide is not outputs:
        for a, value in zip(outputs, wide, strict=True):
            a[...] = value
    return wide.cs[-1], wide.h[-1]


def _forward_loop(
    xw: Array,
    w_h: Array,
    cs_prev: Array,
    h_prev: Array,
    peephole: Peephole,
    cell_clip: float | None,
    columns: tuple[int, ...],
    outputs: LSTMOutputs,
    w_p: Array | None,
) -> None:
    """The time loop of forward_steps, whose xw holds -(x @ w_x + b) now."""
    B = xw.shape[1]
    H, compute = cs_prev.shape[1], xw.dtype
    at_ci, one, exp = columns[1], np.array(1, compute), exp_of(compute)
    z, tmp = np.empty((B, 4 * H), compute), np.empty((B, H), compute)
    # One plane [B, H] per gate: a ufunc over contiguous memory is several times cheaper than one
    # over a quarter of each row. Those of i, f and o are to the left and to the right of ci.
    z_planes = z.reshape(B, 4, H).transpose(1, 0, 2)
    z_i, z_ci, z_f, z_o = (z_planes[column] for column in columns)
    e_i, e_f, e_o = e = np.empty((3, B, H), compute)
    z_left, e_left, z_right, e_right = z_planes[:at_ci], e[:at_ci], z_planes[at_ci + 1 :], e[at_ci:]
    if peephole is not None:
        wci, wcf, wco = (np.broadcast_to(v, (B, H)).copy() for v in peephole)
    if cell_clip is not None:
        # As arrays, which ufuncs take faster than Python's numbers.
        low, high = np.array(-cell_clip, compute), np.array(cell_clip, compute)
    with np.errstate(over="ignore", under="ignore"):
        for xw_t, i, cs, f, o, ci, co, h in zip(xw, *outputs, strict=True):
            np.dot(h_prev, w_h, z)
            np.subtract(xw_t, z, z)
            if peephole is None:
                exp(z_left, e_left)
                exp(z_right, e_right)
                np.add(e, one, e)
            else:
                np.subtract(z_i, np.multiply(cs_prev, wci, tmp), e_i)
                np.subtract(z_f, np.multiply(cs_prev, wcf, tmp), e_f)
                exp(e[:2], e[:2])
                np.add(e[:2], one, e[:2])
            np.reciprocal(e_i, i)  # i = sigmoid(zi + cs_prev*wci)
            np.reciprocal(e_f, f)  # f = sigmoid(zf + cs_prev*wcf)
            np.tanh(z_ci, ci)
            np.negative(ci, ci)
            np.multiply(f, cs_prev, cs)
            np.multiply(i, ci, tmp)
            np.add(cs, tmp, cs)  # cs = i*ci + f*cs_prev
            if cell_clip is not None:
                cs.clip(low, high, cs)
            np.tanh(cs, co)
            if peephole is not None:
                np.subtract(z_o, np.multiply(cs, wco, tmp), e_o)
                exp(e_o, e_o)
                np.add(e_o, one, e_o)
            np.reciprocal(e_o, o)  # o = sigmoid(zo + cs*wco)
            if w_p is None:
                np.multiply(o, co, h)
            else:
                np.dot(np.multiply(o, co, tmp), w_p, h)
            cs_prev, h_prev = cs, h


def zero_past(outputs: LSTMOutputs) -> None:
    """Zero all seven outputs, which are those past seq_len_max."""
    for a in outputs:
        a[...] = 0


class _Factors(NamedTuple):
    """All of a step's gradient that does not depend on the gradients carried through time.

    With dh and dcs the gradients of a step's h and cs, what is left for the time loop is
    do = dh*o, dcs += dh*d, (di, dci, df) = dcs*gates and cs_prev_grad = dcs*next.
    """

    gates: Array  # [t, 3, B, H], in the op's gate order
    o: Array  # [t, B, H], as the next two
    d: Array
    next: Array


def _fill_factors(
    k: _Factors,
    saved: LSTMOutputs,
    cs_prev: Array,
    peephole: Peephole,
    cell_clip: float | None,
    columns: tuple[int, ...],
    tmp: Array,
) -> None:
    """Fill `k` for t steps from the saved outputs and cs_prev, each [t, B, H]."""
    i, cs, f, o, ci, co, _ = saved
    one = np.array(1, i.dtype)  # ufuncs take it faster than Python's number
    k_i, k_ci, k_f = (k.gates[:, column] for column in columns[:3])
    np.subtract(one, i, tmp)
    tmp *= i
    np.multiply(tmp, ci, k_i)  # i*(1-i)*ci
    np.multiply(ci, ci, tmp)
    np.subtract(one, tmp, tmp)
    np.multiply(tmp, i, k_ci)  # (1-ci²)*i
    np.subtract(one, f, tmp)
    tmp *= f
    np.multiply(tmp, cs_prev, k_f)  # f*(1-f)*cs_prev
    np.subtract(one, o, tmp)
    tmp *= o
    np.multiply(tmp, co, k.o)  # o*(1-o)*co
    np.multiply(co, co, tmp)
    np.subtract(one, tmp, tmp)
    np.multiply(tmp, o, k.d)  # (1-co²)*o
    np.copyto(k.next, f)
    if peephole is not None:
        wci, wcf, wco = peephole
        np.add(k.d, np.multiply(k.o, wco, tmp), k.d)
        np.add(k.next, np.multiply(k_i, wci, tmp), k.next)
        np.add(k.next, np.multiply(k_f, wcf, tmp), k.next)
    if cell_clip is not None:
        # The true gradient: where the clip was active, cs does not depend on what it clipped.
        kept = np.less(np.abs(cs, tmp), cell_clip)
        np.multiply(k.gates, kept[:, None], k.gates)
        np.multiply(k.next, kept, k.next)


def backward_steps(
    saved: LSTMOutputs,
    cs_prev: Array,
    cs_grad: Array | None,
    h_grad: Array | None,
    w_h: Array | None,
    peephole: Peephole,
    cell_clip: float | None,
    columns: tuple[int, ...],
    dcs: Array,
    dh: Array,
    dgates: Array,
    lo: int,
    w_p: Array | None = None,
    dh_steps: Array | None = None,
) -> None:
    """
    The recurrence over the t steps from `lo` on, backwards.

    Parameters
    ----------
    saved : seven times [T, B, H]
        The outputs of the forward pass.
    cs_prev : [B, H]
        The cell state before step 0.
    cs_grad, h_grad : [T, B, H] or None
        The gradients of each step's cs and h; h_grad is [T, B, P] with a projection.
    w_h : [4*H, H] or None
        The recurrent weights, as `transposed` returns them; [4*H, P] with a projection. None where
        the gradient of h_prev is not wanted.
    dcs, dh : [B, H]
        The gradients carried into the last of the steps; overwritten with those carried out of
        the first. dh is [B, P] with a projection.
    dgates : [t, B, 4*H]
        Written: the gate gradients in the op's gate order.
    w_p : [P, H], optional
        The weights of the projection, transposed.
    dh_steps : [t, B, P]
        Written with a projection: the gradient of each step's h, that of later steps included.
    """
    t, B, _ = dgates.shape
    H, compute = cs_prev.shape[1], dh.dtype
    compiled, memory = _compiled(compute.char), Scratch(np, compute)
    n = max(1, min(t, CHUNK // max(B * H, 1)))
    for start in range((t - 1) // n * n, -1, -n):
        size = min(n, t - start)
        here, steps = slice(start, start + size), slice(lo + start, lo + start + size)
        loop = (
            LSTMOutputs(*(cast(a[steps], compute) for a in saved)),
            previous(cs_prev, saved.cs, steps.start, steps.stop, compute),
            None if cs_grad is None else cast(cs_grad[steps], compute),
            None if h_grad is None else cast(h_grad[steps], compute),
            w_h,
            peephole,
            cell_clip,
            columns,
            dcs,
            dh,
            dgates[here],
        )
        if compiled is not None and w_p is None:
            compiled.backward(*loop)
        else:
            _backward_loop(*loop, w_p, None if dh_steps is None else dh_steps[here], memory)


def _backward_loop(
    saved: LSTMOutputs,
    cs_prev: Array,
    cs_grad: Array | None,
    h_grad: Array | None,
    w_h: Array | None,
    peephole: Peephole,
    cell_clip: float | None,
    columns: tuple[int, ...],
    dcs: Array,
    dh: Array,
    dgates: Array,
    w_p: Array | None,
    dh_steps: Array | None,
    memory: Scratch,
) -> None:
    """The time loop of backward_steps over some steps; cs_prev is that of each of them."""
    t, B, H = cs_prev.shape
    compute = dh.dtype
    dm = dh if w_p is None else np.empty((B, H), compute)
    planes = memory(7, t * B * H)
    gates, (*others, tmp) = planes[:3].reshape(t, 3, B, H), planes[3:].reshape(4, t, B, H)
    k = _Factors(gates, *others)
    _fill_factors(k, saved, cs_prev, peephole, cell_clip, columns, tmp)
    if cs_grad is not None and not cs_grad.any():
        cs_grad = None
    u = np.empty((B, H), compute)
    by_gate = dgates.reshape(t, B, 4, H).transpose(0, 2, 1, 3)
    # Iterating over arrays makes the views of a step faster than indexing them does.
    arrays = (*k, by_gate[:, :3], by_gate[:, 3], dgates)
    for s, k_gates, k_o, k_d, k_next, di_dci_df, do, dgates_s in zip(
        range(t - 1, -1, -1), *(a[::-1] for a in arrays), strict=True
    ):
        if h_grad is not None:
            np.add(dh, h_grad[s], dh)
        if w_p is not None and dh_steps is not None:
            dh_steps[s] = dh
            np.dot(dh, w_p, dm)  # the gradient of o*co
        np.multiply(dm, k_o, do)
        np.multiply(dm, k_d, u)
        np.add(dcs, u, dcs)
        if cs_grad is not None:
            np.add(dcs, cs_grad[s], dcs)
        np.multiply(dcs, k_gates, di_dci_df)
        np.multiply(dcs, k_next, dcs)
        if w_h is not None:
            np.dot(dgates_s, w_h, dh)


def add_gate_sums(
    dgates: Array,
    saved: LSTMOutputs,
    cs_prev: Array,
    peephole: Peephole,
    columns: tuple[int, ...],
    lo: int,
    b_grad: Array | None,
    peephole_grads: Array,
) -> None:
    """Add the sums over time and batch to b_grad[4*H], if wanted, and peephole_grads[3, H]."""
    t, compute = len(dgates), dgates.dtype
    if b_grad is not None:
        b_grad += column_sums(rows(dgates, compute))
    if peephole is None:
        return
    before = rows(previous(cs_prev, saved.cs, lo, lo + t, compute), compute)
    after = rows(saved.cs[lo : lo + t], compute)
    compiled = _compiled(compute.char)
    add = _add_peephole_sums if compiled is None else compiled.add_peephole_sums
    add(rows(dgates, compute), before, after, columns, peephole_grads)


def _add_peephole_sums(
    dgates: Array, before: Array, after: Array, columns: tuple[int, ...], totals: Array
) -> None:
    """Add the sums over N rows of di*before, df*before and do*after to totals[3, H]."""
    N, H = before.shape
    di, _, df, do = (dgates.reshape(N, 4, H)[:, column] for column in columns)
    # As many rows as the caches hold.
    n = max(1, min(N, CHUNK // max(H, 1)))
    product, ones = np.empty((n, H), totals.dtype), np.ones(n, totals.dtype)
    for start in range(0, N, n):
        part, size = slice(start, start + n), min(n, N - start)
        for total, dgate, cs in zip(totals, (di, df, do), (before, before, after), strict=True):
            np.multiply(dgate[part], cs[part], product[:size])
            # As a matmul the sum is several times more accurate than einsum's.
            total += np.dot(ones[:size], product[:size])


def _room(xp: ModuleType) -> Any:
    """Return where the recurrence is for an array module: here, or in its CUDA twin."""
    if xp is np:
        return sys.modules[__name__]
    from .kernels import lstm

    return lstm


def _forward(
    xp: ModuleType,
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    b: Array,
    peephole: Peephole,
    steps: int,
    forget_bias: float,
    cell_clip: float | None,
    gate_order: GateOrder,
) -> LSTMOutputs:
    """block_lstm after its checks."""
    T, B, I = x.shape
    H = cs_prev.shape[1]
    compute, operand = compute_dtype(x.dtype), operand_dtype(xp, x.dtype)
    columns, room = _COLUMNS[gate_order], _room(xp)
    b = b.astype(compute)
    b[columns[2] * H : (columns[2] + 1) * H] += forget_bias
    w = w.astype(operand, order="C", copy=False)
    # In one piece, fresh memory costs fewer page faults. h is often kept without the others.
    outputs = LSTMOutputs._make([*xp.empty((6, T, B, H), x.dtype), xp.empty((T, B, H), x.dtype)])
    cs, h = cs_prev, h_prev
    xw_memory = Scratch(xp, compute)
    for lo, hi in time_blocks(xp, steps, B):
        xw = xw_memory(hi - lo, B, 4 * H)
        matmul(xp, rows(x[lo:hi], operand), w[:I], rows(xw, compute))
        block = LSTMOutputs(*(a[lo:hi] for a in outputs))
        cs, h = room.forward_steps(xw, w[I:], b, cs, h, peephole, cell_clip, columns, block)
    if steps < T:
        room.zero_past(LSTMOutputs(*(a[steps:] for a in outputs)))
    return outputs


def _backward(
    xp: ModuleType,
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    peephole: Peephole,
    saved: LSTMOutputs,
    cs_grad: Array | None,
    h_grad: Array | None,
    steps: int,
    cell_clip: float | None,
    gate_order: GateOrder,
) -> LSTMGrads:
    """block_lstm_grad after its checks."""
    T, B, I = x.shape
    H = cs_prev.shape[1]
    dtype, compute, operand = x.dtype, compute_dtype(x.dtype), operand_dtype(xp, x.dtype)
    columns, room = _COLUMNS[gate_order], _room(xp)
    w = cast(w, operand)
    w_x, w_h = w[:I].T, transposed(xp, w[I:], steps)
    cs_prev, saved = contiguous(xp, cs_prev), LSTMOutputs(*(contiguous(xp, a) for a in saved))
    cs_grad, h_grad = (None if a is None else contiguous(xp, a) for a in (cs_grad, h_grad))

    x_grad = xp.empty((T, B, I), dtype)
    x_grad[steps:] = 0
    dcs, dh = xp.zeros((B, H), compute), xp.zeros((B, H), compute)
    w_grad, b_grad = xp.zeros((I + H, 4 * H), compute), xp.zeros(4 * H, compute)
    peephole_grads = xp.zeros((3, H), compute)
    dgates_memory, product = Scratch(xp, operand), Scratch(xp, compute)
    for lo, hi in reversed(list(time_blocks(xp, steps, B))):
        dgates = dgates_memory(hi - lo, B, 4 * H)
        room.backward_steps(
            saved, cs_prev, cs_grad, h_grad, w_h, peephole, cell_clip, columns, dcs, dh, dgates, lo
        )
        g = rows(dgates, operand)
        matmul(xp, g, w_x, rows(x_grad[lo:hi], dtype))
        add_matmul(xp, rows(x[lo:hi], operand).T, g, w_grad[:I], product)
        add_state_matmul(xp, h_prev, saved.h, lo, dgates, w_grad[I:], product)
        room.add_gate_sums(dgates, saved, cs_prev, peephole, columns, lo, b_grad, peephole_grads)
    grads = (x_grad, dcs, dh, w_grad, *peephole_grads, b_grad)
    return LSTMGrads(*(cast(g, dtype) for g in grads))


def _cell_grad(
    xp: ModuleType,
    cs_prev: Array,
    saved: LSTMOutputs,
    cs_grad: Array | None,
    h_grad: Array | None,
    peephole: Peephole,
    cell_clip: float | None,
    gate_order: GateOrder,
) -> LSTMCellGrads:
    """lstm_block_cell_grad after its checks: a sequence of one step up to its gates."""
    B, H = cs_prev.shape
    dtype, compute, operand = (
        cs_prev.dtype,
        compute_dtype(cs_prev.dtype),
        operand_dtype(xp, cs_prev.dtype),
    )
    columns, room = _COLUMNS[gate_order], _room(xp)
    cs_prev, saved = contiguous(xp, cs_prev), LSTMOutputs(*(contiguous(xp, a) for a in saved))
    cs_grad, h_grad = (None if a is None else contiguous(xp, a) for a in (cs_grad, h_grad))
    dcs, dh = xp.zeros((B, H), compute), xp.zeros((B, H), compute)
    dicfo = xp.empty((1, B, 4 * H), operand)
    # One row does not depend on another: on a CPU they are taken as many as the caches hold.
    n = max(1, CHUNK // max(H, 1)) if xp is np else max(B, 1)
    for part in (slice(lo, lo + n) for lo in range(0, B, n)):
        room.backward_steps(
            LSTMOutputs(*(a[:, part] for a in saved)),
            cs_prev[part],
            None if cs_grad is None else cs_grad[:, part],
            None if h_grad is None else h_grad[:, part],
            None,
            peephole,
            cell_clip,
            columns,
            dcs[part],
            dh[part],
            dicfo[:, part],
            0,
        )
    peephole_grads = xp.zeros((3, H), compute)
    room.add_gate_sums(dicfo, saved, cs_prev, peephole, columns, 0, None, peephole_grads)
    return LSTMCellGrads(*(cast(g, dtype) for g in (dcs, dicfo[0], *peephole_grads)))


_PEEPHOLES = ("wci", "wcf", "wco")
_INPUTS = ("x", "cs_prev", "h_prev", "w", "b", *_PEEPHOLES)


def _contract(
    op: str,
    lead: str,
    required: dict[str, Array],
    optional: dict[str, Array | None],
    use_peephole: bool | None,
    gate_order: str,
) -> tuple[ModuleType, Peephole]:
    """
    Check every array of an LSTM call; return its module and the peephole vectors to use, if any,
    in the dtype of the computation.

    `lead` names the axes x begins with: "B" for one step, "T, B" for a sequence. What is not an
    input of the forward op is a state of shape (lead, H).
    """
    xp, dtype = check_arrays(op, required, optional, complex_step="i" not in required)
    check_choice(op, "gate_order", gate_order, tuple(_COLUMNS))
    arrays = {**required, **{name: a for name, a in optional.items() if a is not None}}

    x, w, cs_prev = arrays.get("x"), arrays.get("w"), arrays["cs_prev"]
    H = expect_rank(op, "cs_prev", cs_prev, "(B, H)")[1]
    leading, I = cs_prev.shape[:1], 0
    if w is not None:
        I = max(expect_rank(op, "w", w, "(I+H, 4*H)")[0] - H, 0)
    if x is not None:
        *leading_sizes, I = expect_rank(op, "x", x, f"({lead}, I)")
        leading = tuple(leading_sizes)
    expect_shape(op, "cs_prev", cs_prev, "(B, H)", (leading[-1], H))
    expect_shape(op, "h_prev", arrays.get("h_prev"), "(B, H)", (leading[-1], H))
    expect_shape(op, "w", w, "(I+H, 4*H)", (I + H, 4 * H))
    expect_shape(op, "b", arrays.get("b"), "(4*H,)", (4 * H,))
    for name in _PEEPHOLES:
        expect_shape(op, name, arrays.get(name), "(H,)", (H,))
    state, state_shape = f"({lead}, H)", (*leading, H)
    for name, a in arrays.items():
        if name not in _INPUTS:
            expect_shape(op, name, a, state, state_shape)

    given = [name for name in _PEEPHOLES if name in arrays]
    wanted = bool(given)
    if use_peephole is not None:
        wanted = check_bool(op, "use_peephole", use_peephole)
    if (given and len(given) < 3) or (wanted and not given):
        missing = next(name for name in _PEEPHOLES if name not in arrays)
        why = f"like {given[0]}" if given else "as use_peephole is True"
        raise TypeError(f"{op}: {missing} is None, expected an array of shape (H,) = ({H},) {why}")
    if not wanted:
        return xp, None
    compute = compute_dtype(dtype)
    with on_device(xp, cs_prev):
        wci, wcf, wco = (contiguous(xp, cast(arrays[name], compute)) for name in _PEEPHOLES)
    return xp, (wci, wcf, wco)


def _attributes(
    op: str, forget_bias: float | None, cell_clip: float | None, gate_order: str, dtype: Any
) -> tuple[float, float | None]:
    """Return forget_bias and the clip, None where there is none, with TensorFlow's defaults."""
    bias, clip = _DEFAULTS[gate_order]
    if forget_bias is not None:
        bias = check_real(op, "forget_bias", forget_bias)
    return bias, _clip(op, clip if cell_clip is None else cell_clip, dtype)


def _clip(op: str, cell_clip: float | None, dtype: np.dtype[Any]) -> float | None:
    """Return the clip as the dtype can hold it, so that a saved cs compares equal to it."""
    clip = 0.0 if cell_clip is None else check_real(op, "cell_clip", cell_clip)
    with np.errstate(over="ignore", under="ignore"):
        if dtype.itemsize < 8:
            clip = float(np.float32(clip))  # which TensorFlow's attribute is
        return float(dtype.type(clip).real) if clip > 0 else None


def lstm_block_cell(
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    b: Array,
    *,
    wci: Array | None = None,
    wcf: Array | None = None,
    wco: Array | None = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    use_peephole: bool | None = None,
    gate_order: GateOrder = "icfo",
) -> LSTMOutputs:
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

    Parameters
    ----------
    x : [B, I]
        The input; float16, bfloat16, float32 or float64, and all other arrays alike. Half
        formats are computed in float32. complex128 serves differentiation by complex step.
    cs_prev, h_prev : [B, H]
        The cell state and the output of the step before.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in `gate_order`.
    b : [4*H]
        The bias, in the same order.
    wci, wcf, wco : [H], optional
        The peephole weights of i, f and o: all three or none.
    forget_bias : float, optional
        Added to the forget gate. Left out, it is TensorFlow's default for the gate order: 1 for
        "icfo" (LSTMBlockCell, BlockLSTM), 0 for "ifco" (BlockLSTMV2).
    cell_clip : float, optional
        Bound of abs(cs); 0, a negative number or NaN mean none. Left out, it is TensorFlow's
        default for the gate order: 3 for "icfo", none for "ifco".
    use_peephole : bool, optional
        Left out, peepholes are used if they are given. With False they are checked, not used.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, each [B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is no NumPy array, the dtypes differ, or some but not all peepholes are given.
    ValueError
        A shape does not fit the others.

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
    >>> x, cs, h = np.ones((1, 2)), np.zeros((1, 3)), np.zeros((1, 3))
    >>> out = cupyrnn.lstm_block_cell(x, cs, h, np.full((5, 12), 0.1), np.zeros(12))
    >>> out.h.round(4)
    array([[0.0594, 0.0594, 0.0594]])
    """
    op = "lstm_block_cell"
    xp, peephole = _contract(
        op,
        "B",
        {"x": x, "cs_prev": cs_prev, "h_prev": h_prev, "w": w, "b": b},
        {"wci": wci, "wcf": wcf, "wco": wco},
        use_peephole,
        gate_order,
    )
    bias, clip = _attributes(op, forget_bias, cell_clip, gate_order, x.dtype)
    with on_device(xp, x):
        out = _forward(xp, x[None], cs_prev, h_prev, w, b, peephole, 1, bias, clip, gate_order)
    return LSTMOutputs(*(a[0] for a in out))


def block_lstm(
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    b: Array,
    *,
    wci: Array | None = None,
    wcf: Array | None = None,
    wco: Array | None = None,
    seq_len_max: int | None = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    use_peephole: bool | None = None,
    gate_order: GateOrder = "icfo",
) -> LSTMOutputs:
    """
    An LSTM over a sequence, as TensorFlow's BlockLSTM ("icfo") and BlockLSTMV2 ("ifco").

    The equations, and the parameters not listed here, are those of `lstm_block_cell`.

    Parameters
    ----------
    x : [T, B, I]
        The input.
    cs_prev, h_prev : [B, H]
        The cell state and the output before the first step.
    seq_len_max : int, optional
        Number of steps to compute, within [0, T]; all T if left out. What lies past it is not
        read, and all seven outputs are zero there.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, each [T, B, H] and of the dtype of x.

    Raises
    ------
    TypeError
        An argument is no NumPy array, the dtypes differ, or some but not all peepholes are given.
    ValueError
        A shape does not fit the others, or seq_len_max lies outside [0, T].

    See Also
    --------
    block_lstm_grad : The gradient of every input.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, cs, h = np.ones((4, 1, 2)), np.zeros((1, 3)), np.zeros((1, 3))
    >>> out = cupyrnn.block_lstm(x, cs, h, np.full((5, 12), 0.1), np.zeros(12))
    >>> out.h[:, 0, 0].round(4)
    array([0.0594, 0.1108, 0.1547, 0.1921])
    """
    op = "block_lstm"
    xp, peephole = _contract(
        op,
        "T, B",
        {"x": x, "cs_prev": cs_prev, "h_prev": h_prev, "w": w, "b": b},
        {"wci": wci, "wcf": wcf, "wco": wco},
        use_peephole,
        gate_order,
    )
    steps = check_seq_len(op, seq_len_max, x.shape[0])
    bias, clip = _attributes(op, forget_bias, cell_clip, gate_order, x.dtype)
    with on_device(xp, x):
        return _forward(xp, x, cs_prev, h_prev, w, b, peephole, steps, bias, clip, gate_order)


def lstm_block_cell_grad(
    cs_prev: Array,
    i: Array,
    cs: Array,
    f: Array,
    o: Array,
    ci: Array,
    co: Array,
    cs_grad: Array | None,
    h_grad: Array | None,
    *,
    wci: Array | None = None,
    wcf: Array | None = None,
    wco: Array | None = None,
    x: Array | None = None,
    h_prev: Array | None = None,
    w: Array | None = None,
    b: Array | None = None,
    cell_clip: float | None = None,
    use_peephole: bool | None = None,
    gate_order: GateOrder = "icfo",
) -> LSTMCellGrads:
    """
    The gradient of one LSTM step up to its gates, as TensorFlow's LSTMBlockCellGrad.

    ::

        do  = o*(1-o) * h_grad*co
        dcs = (1-co²) * h_grad*o + cs_grad + do*wco
        di  = i*(1-i) * dcs*ci
        df  = f*(1-f) * dcs*cs_prev
        dci = (1-ci²) * dcs*i
        cs_prev_grad = dcs*f + di*wci + df*wcf

    `lstm_block_cell_backward` goes on to the gradients of x, h_prev, w and b.

    Parameters
    ----------
    cs_prev : [B, H]
        The cell state before the step.
    i, cs, f, o, ci, co : [B, H]
        What `lstm_block_cell` returned.
    cs_grad, h_grad : [B, H] or None
        The gradients of cs and h; None stands for zeros.
    wci, wcf, wco : [H], optional
        The peephole weights: all three or none.
    x, h_prev, w, b : optional
        The other inputs of the step. Their values do not enter; they are checked if given.
    cell_clip : float, optional
        Left out, the gradient passes a clipped cs as if it had not been clipped, as TensorFlow's
        does. Given the value of the forward call, it is the true gradient: zero where
        abs(cs) reached the clip.
    use_peephole : bool, optional
        Left out, peepholes are used if they are given.
    gate_order : {"icfo", "ifco"}
        The order of the gates in dicfo.

    Returns
    -------
    LSTMCellGrads
        cs_prev_grad [B, H]; dicfo [B, 4*H], the gate gradients in `gate_order`; wci_grad,
        wcf_grad and wco_grad [H], zeros without peepholes.

    Raises
    ------
    TypeError, ValueError
        As `lstm_block_cell`.

    Notes
    -----
    TensorFlow's own kernel has two defects with peepholes that are not repeated here: on a CPU
    it may overwrite wci, wcf and wco, on a GPU it adds their terms to cs_prev_grad twice.

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
    xp, peephole = _contract(
        op,
        "B",
        {"cs_prev": cs_prev, "i": i, "cs": cs, "f": f, "o": o, "ci": ci, "co": co},
        {
            "cs_grad": cs_grad,
            "h_grad": h_grad,
            "x": x,
            "h_prev": h_prev,
            "w": w,
            "b": b,
            "wci": wci,
            "wcf": wcf,
            "wco": wco,
        },
        use_peephole,
        gate_order,
    )
    clip = _clip(op, cell_clip, cs_prev.dtype)
    # h is not among the arguments: its value does not enter.
    saved = LSTMOutputs(*(a[None] for a in (i, cs, f, o, ci, co, co)))
    given_cs, given_h = (None if a is None else a[None] for a in (cs_grad, h_grad))
    with on_device(xp, cs_prev):
        return _cell_grad(xp, cs_prev, saved, given_cs, given_h, peephole, clip, gate_order)


def lstm_block_cell_backward(
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    i: Array,
    cs: Array,
    f: Array,
    o: Array,
    ci: Array,
    co: Array,
    cs_grad: Array | None,
    h_grad: Array | None,
    *,
    wci: Array | None = None,
    wcf: Array | None = None,
    wco: Array | None = None,
    b: Array | None = None,
    cell_clip: float | None = None,
    use_peephole: bool | None = None,
    gate_order: GateOrder = "icfo",
) -> LSTMGrads:
    """
    The gradient of every input of one LSTM step.

    `lstm_block_cell_grad` and what TensorFlow leaves to the caller::

        x_grad, h_prev_grad = split(dicfo @ w.T)
        w_grad = [x, h_prev].T @ dicfo
        b_grad = sum(dicfo)

    Parameters
    ----------
    x : [B, I]
        The input of the step.
    cs_prev, h_prev : [B, H]
        The states before the step.
    w : [I+H, 4*H]
        The weights.
    i, cs, f, o, ci, co : [B, H]
        What `lstm_block_cell` returned.
    cs_grad, h_grad : [B, H] or None
        The gradients of cs and h; None stands for zeros.
    wci, wcf, wco : [H], optional
        The peephole weights: all three or none.
    b : [4*H], optional
        Its value does not enter; it is checked if given.
    cell_clip, use_peephole, gate_order
        As in `lstm_block_cell_grad`.

    Returns
    -------
    LSTMGrads
        x_grad, cs_prev_grad, h_prev_grad, w_grad, wci_grad, wcf_grad, wco_grad and b_grad, each
        of the shape of its input; the peephole gradients are zeros without peepholes.

    Raises
    ------
    TypeError, ValueError
        As `lstm_block_cell`.

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
    xp, peephole = _contract(
        op,
        "B",
        {"x": x, "cs_prev": cs_prev, "h_prev": h_prev, "w": w, **saved},
        {"cs_grad": cs_grad, "h_grad": h_grad, "wci": wci, "wcf": wcf, "wco": wco, "b": b},
        use_peephole,
        gate_order,
    )
    clip = _clip(op, cell_clip, x.dtype)
    # h is not among the arguments: the value of the last h does not enter.
    steps = LSTMOutputs(*(a[None] for a in (*saved.values(), h_prev)))
    given_cs, given_h = (None if a is None else a[None] for a in (cs_grad, h_grad))
    with on_device(xp, x):
        grads = _backward(
            xp, x[None], cs_prev, h_prev, w, peephole, steps, given_cs, given_h, 1, clip, gate_order
        )
    return grads._replace(x_grad=grads.x_grad[0])


def block_lstm_grad(
    x: Array,
    cs_prev: Array,
    h_prev: Array,
    w: Array,
    i: Array,
    cs: Array,
    f: Array,
    o: Array,
    ci: Array,
    co: Array,
    h: Array,
    cs_grad: Array | None,
    h_grad: Array | None,
    *,
    wci: Array | None = None,
    wcf: Array | None = None,
    wco: Array | None = None,
    b: Array | None = None,
    seq_len_max: int | None = None,
    cell_clip: float | None = None,
    use_peephole: bool | None = None,
    gate_order: GateOrder = "icfo",
) -> LSTMGrads:
    """
    The gradient of every input of `block_lstm`, as TensorFlow's BlockLSTMGrad and V2.

    The equations of `lstm_block_cell_grad` for every step from the last to the first, where each
    step's cs_grad and h_grad are those given plus those that the step after it passes back.

    Parameters
    ----------
    x : [T, B, I]
        The input.
    cs_prev, h_prev : [B, H]
        The states before the first step.
    w : [I+H, 4*H]
        The weights.
    i, cs, f, o, ci, co, h : [T, B, H]
        What `block_lstm` returned.
    cs_grad, h_grad : [T, B, H] or None
        The gradients of cs and h of every step; None stands for zeros.
    wci, wcf, wco : [H], optional
        The peephole weights: all three or none.
    b : [4*H], optional
        Its value does not enter; it is checked if given.
    seq_len_max : int, optional
        As in the forward call. What lies past it is not read, and x_grad is zero there.
    cell_clip : float, optional
        Left out, the gradient passes a clipped cs as if it had not been clipped, as TensorFlow's
        does. Given the value of the forward call, it is the true gradient: zero where
        abs(cs) reached the clip.
    use_peephole : bool, optional
        Left out, peepholes are used if they are given.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w, and in w_grad and b_grad.

    Returns
    -------
    LSTMGrads
        x_grad, cs_prev_grad, h_prev_grad, w_grad, wci_grad, wcf_grad, wco_grad and b_grad, each
        of the shape of its input; the peephole gradients are zeros without peepholes.

    Raises
    ------
    TypeError, ValueError
        As `block_lstm`.

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
    xp, peephole = _contract(
        op,
        "T, B",
        {"x": x, "cs_prev": cs_prev, "h_prev": h_prev, "w": w, **saved},
        {"cs_grad": cs_grad, "h_grad": h_grad, "wci": wci, "wcf": wcf, "wco": wco, "b": b},
        use_peephole,
        gate_order,
    )
    steps = check_seq_len(op, seq_len_max, x.shape[0])
    clip = _clip(op, cell_clip, x.dtype)
    with on_device(xp, x):
        return _backward(
            xp,
            x,
            cs_prev,
            h_prev,
            w,
            peephole,
            LSTMOutputs(**saved),
            cs_grad,
            h_grad,
            steps,
            clip,
            gate_order,
        )
