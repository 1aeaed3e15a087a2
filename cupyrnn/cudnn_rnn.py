"""TensorFlow's CudnnRNN, V2 and V3, forward and backward.

Symbols: T time steps, B batch, I input size, H num_units, L layers, D directions, P the size of
the output of one direction: num_proj, or H without a projection.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from numbers import Real
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from . import _rnn_layer
from ._arrays import (
    array_kind,
    cast,
    check_arrays,
    check_bool,
    check_choice,
    check_integer,
    check_lengths,
    check_real,
    compute_dtype,
    contiguous,
    expect_rank,
    expect_shape,
    on_device,
    operand_dtype,
)
from ._dropout import keep_mask
from ._packing import Packing, count_rows
from ._rnn_layer import SAVED, States, Weights
from .params import GATES, Net, check_net, layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._arrays import Array
    from .params import Direction, InputMode, RNNMode

    Lengths: TypeAlias = NDArray[np.integer[Any]] | Sequence[int]

Engine: TypeAlias = Literal["auto", "cudnn", "cupy"]

# The environment variable that says what engine "auto" is for CuPy arrays.
ENGINE_VARIABLE = "CUPYRNN_ENGINE"
_ENGINES = ("auto", "cudnn", "cupy")

# What host_reserved begins with: whose reserve_space it is.
_OWN, _CUDNN = 0, 1


class CudnnRNNV1Outputs(NamedTuple):
    """What the first CudnnRNN returns, in TensorFlow's order."""

    output: Array
    output_h: Array
    output_c: Array
    reserve_space: Array


class CudnnRNNOutputs(NamedTuple):
    """What CudnnRNNV2 and V3 return, in TensorFlow's order."""

    output: Array
    output_h: Array
    output_c: Array
    reserve_space: Array
    host_reserved: NDArray[np.int8]


class CudnnRNNGrads(NamedTuple):
    """The gradient of every input of CudnnRNN, each with the shape of its input."""

    input_backprop: Array
    input_h_backprop: Array
    input_c_backprop: Array
    params_backprop: Array


def _weights(params: Array, net: Net) -> list[Weights]:
    """Return the parameters by layer and direction, as views."""
    H, P, gates = net.H, net.P, len(GATES[net.rnn_mode])
    starts: dict[tuple[int, int, str], int] = {}
    for p in layout(net):
        starts.setdefault((p.layer, p.direction, p.kind), p.offset)

    def part(layer: int, d: int, kind: str, rows: int, columns: int) -> Array:
        start = starts[layer, d, kind]
        return params[start : start + rows * columns].reshape(rows, columns)

    def one(layer: int, d: int) -> Weights:
        skipped = net.skip and layer == 0
        K = net.D * P if layer else net.I
        return Weights(
            None if skipped else part(layer, d, "input", gates * H, K),
            part(layer, d, "recurrent", gates * H, P),
            part(layer, d, "projection", P, H) if net.num_proj else None,
            part(layer, d, "input_bias", 1, gates * H)[0],
            part(layer, d, "recurrent_bias", 1, gates * H)[0],
        )

    return [one(layer, d) for layer in range(net.L) for d in range(net.D)]


class _Reserve(NamedTuple):
    """What a layer leaves for the backward pass: views of reserve_space."""

    mask: Array | None  # [N, D*P], of its input, where there is dropout
    saved: list[list[Array]]  # by direction, as _rnn_layer.forward fills them


def _reserve_layout(net: Net, rows: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the layer and the shape of every part of reserve_space."""
    for layer in range(net.L):
        if layer and net.drops:
            yield layer, (rows, net.D * net.P)
        for _ in range(net.D):
            yield from ((layer, (rows, net.H)) for _ in range(SAVED[net.rnn_mode] - 1))
            yield layer, (rows, net.P)


def _reserve_size(net: Net, rows: int) -> int:
    return sum(n * columns for _, (n, columns) in _reserve_layout(net, rows))


def _reserves(reserve_space: Array, net: Net, rows: int) -> list[_Reserve]:
    """Return the parts of reserve_space by layer."""
    parts: list[list[Array]] = [[] for _ in range(net.L)]
    start = 0
    for layer, shape in _reserve_layout(net, rows):
        end = start + shape[0] * shape[1]
        parts[layer].append(reserve_space[start:end].reshape(shape))
        start = end
    n = SAVED[net.rnn_mode]
    result = []
    for layer, arrays in enumerate(parts):
        mask = arrays.pop(0) if layer and net.drops else None
        result.append(_Reserve(mask, [arrays[d * n : (d + 1) * n] for d in range(net.D)]))
    return result


def _draw_mask(xp: ModuleType, net: Net, packing: Packing, layer: int, mask: Array) -> None:
    """Fill the mask of a layer's input. What it is for a value does not depend on the lengths."""
    columns = mask.shape[1]
    drawn = keep_mask(
        xp,
        (net.T * net.B, columns),
        mask.dtype,
        net.dropout,
        net.seed,
        net.seed2,
        layer,
    )
    mask[...] = packing.pack(drawn.reshape(net.T, net.B, columns))


def _drop(values: Array, mask: Array, net: Net) -> Array:
    """Return the values that the mask keeps, scaled, in the dtype of the mask."""
    scale = 1 / (1 - net.dropout) if net.dropout < 1 else 0.0
    compute = compute_dtype(mask.dtype)
    return cast(cast(values, compute) * cast(mask, compute) * scale, mask.dtype)


def _state(states: tuple[Array, Array | None], pl: int) -> States:
    """Return the states of one pseudo-layer, of h [L*D, B, P] and c [L*D, B, H]."""
    h, c = states
    return States(h[pl], None if c is None else c[pl])


def _ordered(
    xp: ModuleType, packing: Packing, h: Array, c: Array | None
) -> tuple[Array, Array | None]:
    """Return the states of all pseudo-layers in the order of the packed sequences."""
    return (
        contiguous(xp, packing.order(h)),
        None if c is None else contiguous(xp, packing.order(c)),
    )


def _forward(
    xp: ModuleType,
    net: Net,
    input: Array,
    input_h: Array,
    input_c: Array | None,
    params: Array,
    lengths: NDArray[np.int32] | None,
) -> tuple[Array, Array, Array | None, Array]:
    """cudnn_rnn after its checks, time-major and without cuDNN."""
    dtype, D = input.dtype, net.D
    packing = Packing(xp, net.T, net.B, lengths)
    blocks = packing.blocks()
    first = _ordered(xp, packing, input_h, input_c)
    output_h = xp.empty(input_h.shape, dtype)
    output_c = None if input_c is None else xp.empty(input_c.shape, dtype)
    weights = _weights(cast(contiguous(xp, params), operand_dtype(xp, dtype)), net)
    reserves: list[_Reserve] = []
    if net.is_training:
        reserve_space = xp.empty(_reserve_size(net, packing.rows), dtype)
        reserves = _reserves(reserve_space, net, packing.rows)
    else:
        reserve_space = xp.zeros((), dtype)
        most = max((block.end - block.row for block in blocks), default=0)
        scratch = [xp.empty((most, net.H), dtype) for _ in range(SAVED[net.rnn_mode] - 1)]
    values = packing.pack(contiguous(xp, input))
    for layer in range(net.L):
        mask = reserves[layer].mask if reserves else None
        if mask is not None:
            _draw_mask(xp, net, packing, layer, mask)
            values = _drop(values, mask, net)
        outputs = []
        for d in range(D):
            pl = layer * D + d
            if reserves:
                saved = reserves[layer].saved[d]
            else:
                saved = [*scratch, xp.empty((packing.rows, net.P), dtype)]
            _rnn_layer.forward(
                xp,
                net.rnn_mode,
                weights[pl],
                packing.reverse(values) if d else values,
                _state(first, pl),
                blocks,
                saved,
                _state((output_h, output_c), pl),
            )
            outputs.append(packing.reverse(saved[-1]) if d else saved[-1])
        values = outputs[0] if D == 1 else xp.concatenate(outputs, axis=1)
    return (
        packing.unpack(values, dtype),
        packing.restore(output_h),
        None if output_c is None else packing.restore(output_c),
        reserve_space,
    )


def _backward(
    xp: ModuleType,
    net: Net,
    input: Array,
    input_h: Array,
    input_c: Array | None,
    params: Array,
    lengths: NDArray[np.int32] | None,
    output_backprop: Array | None,
    output_h_backprop: Array | None,
    output_c_backprop: Array | None,
    reserve_space: Array,
) -> tuple[Array, Array, Array | None, Array]:
    """cudnn_rnn_backprop after its checks, time-major and without cuDNN."""
    dtype, D, P = input.dtype, net.D, net.P
    compute = compute_dtype(dtype)
    packing = Packing(xp, net.T, net.B, lengths)
    blocks = packing.blocks()
    reserves = _reserves(contiguous(xp, reserve_space), net, packing.rows)
    first = _ordered(xp, packing, input_h, input_c)
    weights = _weights(cast(contiguous(xp, params), operand_dtype(xp, dtype)), net)
    params_grad = xp.zeros(params.shape, compute)
    grads = _weights(params_grad, net)

    def carried(like: Array, given: Array | None) -> Array:
        zeros: Array = xp.zeros(like.shape, compute)
        if given is None:
            return zeros
        return packing.order(contiguous(xp, given)).astype(compute, order="C")

    h_grad = carried(input_h, output_h_backprop)
    c_grad = None if input_c is None else carried(input_c, output_c_backprop)
    values_grad = None
    if output_backprop is not None:
        values_grad = packing.pack(contiguous(xp, output_backprop))
    for layer in reversed(range(net.L)):
        mask = reserves[layer].mask
        if layer:
            below = [saved[-1] for saved in reserves[layer - 1].saved]
            values = below[0]
            if D == 2:
                values = xp.concatenate([values, packing.reverse(below[1])], axis=1)
            if mask is not None:
                values = _drop(values, mask, net)
        else:
            values = packing.pack(contiguous(xp, input))
        parts = []
        for d in range(D):
            pl = layer * D + d
            given = None
            if values_grad is not None:
                given = xp.ascontiguousarray(values_grad[:, d * P : (d + 1) * P])
                given = packing.reverse(given) if d else given
            part = _rnn_layer.backward(
                xp,
                net.rnn_mode,
                weights[pl],
                packing.reverse(values) if d else values,
                _state(first, pl),
                blocks,
                reserves[layer].saved[d],
                given,
                _state((h_grad, c_grad), pl),
                grads[pl],
            )
            parts.append(packing.reverse(part) if d else part)
        total = parts[0] if D == 1 else parts[0] + parts[1]
        values_grad = cast(total if mask is None else _drop(total, mask, net), dtype)
    assert values_grad is not None  # there is a layer
    return (
        packing.unpack(values_grad, dtype),
        cast(packing.restore(h_grad), dtype),
        None if c_grad is None else cast(packing.restore(c_grad), dtype),
        cast(params_grad, dtype),
    )


class _Call(NamedTuple):
    """A call after its checks."""

    xp: ModuleType
    net: Net
    lengths: NDArray[np.int32] | None
    engine: Literal["numpy", "cupy", "cudnn"]


def _engine(
    op: str,
    xp: ModuleType,
    engine: str,
    net: Net,
    input: Array,
    lengths: NDArray[np.int32] | None,
) -> Literal["numpy", "cupy", "cudnn"]:
    """Return the engine of a call."""
    check_choice(op, "engine", engine, _ENGINES)
    if xp is np:
        if engine != "auto":
            raise TypeError(
                f"{op}: engine is {engine!r}, but input is a numpy.ndarray, expected a cupy.ndarray"
            )
        return "numpy"
    source = "engine"
    if engine == "auto":
        source = f"the environment variable {ENGINE_VARIABLE}"
        engine = os.environ.get(ENGINE_VARIABLE, "auto")
        check_choice(op, source, engine, _ENGINES)
    if engine == "cupy":
        return "cupy"
    from . import _cudnn

    with on_device(xp, input):
        reason = _cudnn.why_not(net, input.dtype.name, lengths)
    if reason is None:
        return "cudnn"
    if engine == "cudnn":
        raise RuntimeError(f"{op}: {source} is 'cudnn', but {reason}")
    return "cupy"


def _reserved_engine(op: str, xp: ModuleType, engine: str, host_reserved: object) -> str:
    """Return the engine whose reserve_space it is, or `engine` where host_reserved is None."""
    check_choice(op, "engine", engine, _ENGINES)
    if host_reserved is None:
        return engine
    if (
        array_kind(host_reserved) != "numpy"
        or not isinstance(host_reserved, np.ndarray)
        or host_reserved.dtype != np.int8
    ):
        raise TypeError(f"{op}: host_reserved is {host_reserved!r}, expected a numpy.ndarray, int8")
    if host_reserved.shape != (2,):
        raise ValueError(
            f"{op}: host_reserved has shape {host_reserved.shape}, expected (2,), as a forward"
            " call with is_training=True returns it"
        )
    owner = int(host_reserved[0])
    if owner not in ((_OWN,) if xp is np else (_OWN, _CUDNN)):
        raise ValueError(
            f"{op}: host_reserved begins with {owner}, which no engine for {xp.__name__} arrays has"
        )
    if xp is np:
        return engine
    of = "cudnn" if owner == _CUDNN else "cupy"
    if engine not in ("auto", of):
        raise ValueError(f"{op}: engine is {engine!r}, but reserve_space is of {of!r}")
    return of


def _contract(
    op: str,
    input: Array,
    input_h: Array,
    input_c: Array | None,
    params: Array,
    others: dict[str, Array | None],
    *,
    sequence_lengths: Lengths | None,
    rnn_mode: str,
    input_mode: str,
    direction: str,
    dropout: float,
    seed: int,
    seed2: int,
    num_proj: int,
    is_training: bool,
    time_major: bool,
    engine: str,
    host_reserved: object = None,
) -> _Call:
    """Check every argument and choose the engine.

    `others` has the arrays that only the backward op has.
    """
    check_choice(op, "rnn_mode", rnn_mode, tuple(GATES))
    is_lstm = rnn_mode == "lstm"
    required: dict[str, object] = {"input": input, "input_h": input_h, "params": params}
    optional: dict[str, object] = {**others}
    if others:
        required["reserve_space"] = optional.pop("reserve_space")
    # Keras gives the cells without it a plain 0.
    unused = not is_lstm and isinstance(input_c, Real)
    (required if is_lstm else optional)["input_c"] = None if unused else input_c
    xp, _ = check_arrays(op, required, optional, complex_step=not others)
    training = check_bool(op, "is_training", is_training)
    major = check_bool(op, "time_major", time_major)
    rate = check_real(op, "dropout", dropout)
    if not 0 <= rate <= 1:
        raise ValueError(f"{op}: dropout is {rate}, expected in [0, 1]")
    key = (check_integer(op, "seed", seed), check_integer(op, "seed2", seed2))

    steps, states = ("T, B", "L*D, B") if major else ("B, T", "B, L*D")
    *sizes, I = expect_rank(op, "input", input, f"({steps}, I)")
    T, B = sizes if major else sizes[::-1]
    shape_h = expect_rank(op, "input_h", input_h, f"({states}, P)")
    H = shape_h[2]
    if is_lstm and input_c is not None:
        H = expect_rank(op, "input_c", input_c, f"({states}, H)")[2]
    L, D = shape_h[0 if major else 1], 2 if direction == "bidirectional" else 1
    if L % D:
        raise ValueError(
            f"{op}: input_h has shape {shape_h}, expected ({states}, P) with D = 2: bidirectional"
        )
    L //= D
    net = check_net(op, L, H, I, rnn_mode, input_mode, direction, num_proj)
    P = net.P
    leading_states = (L * D, B) if major else (B, L * D)
    leading_steps = (T, B) if major else (B, T)
    expect_shape(op, "input_h", input_h, f"({states}, P)", (*leading_states, P))
    if is_lstm:
        expect_shape(op, "input_c", input_c, f"({states}, H)", (*leading_states, H))
    expect_shape(op, "params", params, "(params_size,)", (net.params_size,))
    for name in ("output", "output_backprop"):
        shape = (*leading_steps, D * P)
        expect_shape(op, name, others.get(name), f"({steps}, D*P)", shape)
    for name in ("output_h", "output_h_backprop"):
        expect_shape(op, name, others.get(name), f"({states}, P)", (*leading_states, P))
    for name in ("output_c", "output_c_backprop"):
        if is_lstm:
            expect_shape(op, name, others.get(name), f"({states}, H)", (*leading_states, H))

    net = net._replace(T=T, B=B, dropout=rate, seed=key[0], seed2=key[1], is_training=training)
    lengths = check_lengths(op, sequence_lengths, T, B)
    if others:
        engine = _reserved_engine(op, xp, engine, host_reserved)
    return _Call(xp, net, lengths, _engine(op, xp, engine, net, input, lengths))


def _time_major(xp: ModuleType, major: bool, arrays: Sequence[Array | None]) -> list[Any]:
    """Return arrays that are [T, B, ·] or [L*D, B, ·], or have these axes exchanged, as these."""
    return [a if major or a is None else contiguous(xp, a.transpose(1, 0, 2)) for a in arrays]


def _contiguous(xp: ModuleType, arrays: Sequence[Array | None]) -> list[Any]:
    """Return the arrays in C order."""
    return [None if a is None else contiguous(xp, a) for a in arrays]


def _as_given(xp: ModuleType, a: Array | None, major: bool, dtype: np.dtype[Any]) -> Array:
    """Return a time-major result as the caller has its axes; a scalar zero for None."""
    if a is None:
        result: Array = xp.zeros((), dtype)
        return result
    return a if major else xp.ascontiguousarray(a.transpose(1, 0, 2))


def cudnn_rnn(
    input: Array,
    input_h: Array,
    input_c: Array | None,
    params: Array,
    *,
    sequence_lengths: Lengths | None = None,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    is_training: bool = True,
    time_major: bool = True,
    engine: Engine = "auto",
) -> CudnnRNNOutputs:
    """
    A recurrent net of several layers, as TensorFlow's CudnnRNN, CudnnRNNV2 and CudnnRNNV3.

    One step of each cell, where x is the input of the layer and every product has its own bias::

        lstm      i, f, o = sigmoid(W_i x + R_i h + b_i), ...
                  c = i*tanh(W_c x + R_c h + b_c) + f*c
                  h = o*tanh(c), or W_p (o*tanh(c)) with a projection
        gru       r, u = sigmoid(W_r x + R_r h + b_r), ...
                  h = (1-u)*tanh(W_c x + b_wc + r*(R_c h + b_rc)) + u*h
        rnn_tanh  h = tanh(W x + R h + b)
        rnn_relu  h = max(W x + R h + b, 0)

    Parameters
    ----------
    input : [T, B, I]
        The sequences; float16, bfloat16, float32 or float64, and all other arrays alike. Half
        formats are computed in float32. complex128 NumPy arrays serve differentiation by complex
        step.
    input_h : [L*D, B, P]
        The states before the first step: of layer 0 forward, layer 0 backward, layer 1 forward
        and so on. P is num_proj, or H without a projection; the number of layers is taken from
        here.
    input_c : [L*D, B, H] or None
        The cell states of an LSTM. The other cells ignore it.
    params : [params_size]
        All weights and biases, packed as `cudnn_rnn_params_layout` says.
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence, in [0, T] and in any order; all T if left out. What lies
        past a sequence's end is not read, and output is zero there. The backward direction begins
        at each sequence's own end. What a length of 0 leaves are the states it was given.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no W: x, of size H, is added to every gate. auto_select
        is skip_input if I equals H and linear_input if not.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The part, in [0, 1], of the values between layers that is zeroed in training; the others
        are divided by one minus it.
    seed, seed2 : int
        What the dropout masks depend on: the same two integers give the same masks, (0, 0)
        included. Change one of them from call to call.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.
    is_training : bool
        Drop values, and keep what the backward pass needs.
    time_major : bool
        Otherwise input and output are [B, T, ·] and the states [B, L*D, ·].
    engine : {"auto", "cudnn", "cupy"}
        What computes CuPy arrays: cuDNN or this package's kernels. "auto" is cuDNN where its
        library is found and supports the call, unless the environment variable CUPYRNN_ENGINE
        is set to one of the other two. NumPy arrays are computed by NumPy. See
        `cudnn_rnn_engine`.

    Returns
    -------
    CudnnRNNOutputs
        output [T, B, D*P]; output_h and output_c, the states after each sequence's last step, of
        the shapes of input_h and input_c; reserve_space, a vector for `cudnn_rnn_backprop`, and
        host_reserved, two int8 on the host. output_c is a scalar zero for cells without it, and
        the last two are scalars if is_training is False.

    Raises
    ------
    TypeError
        An argument is no array or of another module, device or dtype than input, or an attribute
        is of a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.
    RuntimeError
        engine is "cudnn", and its library is not found or does not support the call.

    See Also
    --------
    cudnn_rnn_backprop : The gradient of every input.
    params_from_torch, params_from_keras : Parameters of models made elsewhere.

    References
    ----------
    .. [1] NVIDIA, cuDNN documentation, cudnnRNNMode_t (the equations).

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, h, c = np.ones((4, 1, 2)), np.zeros((1, 1, 3)), np.zeros((1, 1, 3))
    >>> params = np.full(cupyrnn.cudnn_rnn_params_size(1, 3, 2), 0.1)
    >>> out = cupyrnn.cudnn_rnn(x, h, c, params)
    >>> out.output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.33  ])
    """
    op = "cudnn_rnn"
    xp, net, lengths, chosen = _contract(
        op,
        input,
        input_h,
        input_c,
        params,
        {},
        sequence_lengths=sequence_lengths,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        dropout=dropout,
        seed=seed,
        seed2=seed2,
        num_proj=num_proj,
        is_training=is_training,
        time_major=time_major,
        engine=engine,
    )
    with on_device(xp, input):
        c = input_c if rnn_mode == "lstm" else None
        x, h, c = _time_major(xp, time_major, (input, input_h, c))
        if chosen == "cudnn":
            from . import _cudnn

            x, h, c, packed = _contiguous(xp, (x, h, c, params))
            output, output_h, output_c, reserve_space = _cudnn.forward(
                net, x, h, c, packed, lengths
            )
            if not is_training:
                reserve_space = xp.zeros((), input.dtype)
        else:
            output, output_h, output_c, reserve_space = _forward(xp, net, x, h, c, params, lengths)
        host_reserved = np.array([_CUDNN if chosen == "cudnn" else _OWN, 0], np.int8)
        return CudnnRNNOutputs(
            _as_given(xp, output, time_major, input.dtype),
            _as_given(xp, output_h, time_major, input.dtype),
            _as_given(xp, output_c, time_major, input.dtype),
            reserve_space,
            host_reserved if is_training else np.zeros((), np.int8),
        )


def cudnn_rnn_engine(
    input: Array,
    input_h: Array,
    input_c: Array | None,
    params: Array,
    *,
    sequence_lengths: Lengths | None = None,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    is_training: bool = True,
    time_major: bool = True,
    engine: Engine = "auto",
) -> Literal["numpy", "cupy", "cudnn"]:
    """
    Return what would compute a call of `cudnn_rnn` with these arguments, without computing it.

    Parameters
    ----------
    input, input_h, input_c, params, sequence_lengths, rnn_mode, input_mode, direction, dropout, \
    seed, seed2, num_proj, is_training, time_major, engine
        As in `cudnn_rnn`.

    Returns
    -------
    {"numpy", "cupy", "cudnn"}
        NumPy, this package's kernels on CuPy arrays, or cuDNN.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `cudnn_rnn`.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, h, c = np.ones((4, 1, 2)), np.zeros((1, 1, 3)), np.zeros((1, 1, 3))
    >>> params = np.full(cupyrnn.cudnn_rnn_params_size(1, 3, 2), 0.1)
    >>> cupyrnn.cudnn_rnn_engine(x, h, c, params)
    'numpy'
    """
    return _contract(
        "cudnn_rnn_engine",
        input,
        input_h,
        input_c,
        params,
        {},
        sequence_lengths=sequence_lengths,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        dropout=dropout,
        seed=seed,
        seed2=seed2,
        num_proj=num_proj,
        is_training=is_training,
        time_major=time_major,
        engine=engine,
    ).engine


def _expected_reserve(
    net: Net, engine: str, input: Array, lengths: NDArray[np.int32] | None
) -> int:
    """Return the number of elements of an engine's reserve_space."""
    if engine != "cudnn":
        return _reserve_size(net, count_rows(net.T, net.B, lengths))
    from . import _cudnn

    with on_device(sys.modules["cupy"], input):
        return _cudnn.reserve_size(net, input.dtype.name, lengths)


def cudnn_rnn_backprop(
    input: Array,
    input_h: Array,
    input_c: Array | None,
    params: Array,
    output: Array | None,
    output_h: Array | None,
    output_c: Array | None,
    output_backprop: Array | None,
    output_h_backprop: Array | None,
    output_c_backprop: Array | None,
    reserve_space: Array,
    *,
    host_reserved: NDArray[np.int8] | None = None,
    sequence_lengths: Lengths | None = None,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int = 0,
    time_major: bool = True,
    engine: Engine = "auto",
) -> CudnnRNNGrads:
    """
    The gradient of every input of `cudnn_rnn`, as TensorFlow's CudnnRNNBackprop, V2 and V3.

    Nothing is written but the results: a second call with the same arguments gives the same.

    Parameters
    ----------
    input, input_h, input_c, params
        As in the forward call.
    output, output_h, output_c
        What it returned. Only cuDNN reads the values, of output; otherwise they may be None.
    output_backprop : [T, B, D*P] or None
        The gradient of output; None stands for zeros, in the next two as well. It is not read
        past a sequence's end.
    output_h_backprop : [L*D, B, P] or None
        The gradient of output_h.
    output_c_backprop : [L*D, B, H] or None
        The gradient of output_c; ignored by cells without it.
    reserve_space
        What the forward call returned. The dropout masks are taken from here.
    host_reserved : [2] int8 on the host, optional
        What the forward call returned: which engine reserve_space belongs to. Left out, it is
        the one that `engine` stands for.
    sequence_lengths, rnn_mode, input_mode, direction, dropout, num_proj, time_major, engine
        As in the forward call.
    seed, seed2 : int
        Not used: the masks are in reserve_space.

    Returns
    -------
    CudnnRNNGrads
        input_backprop, input_h_backprop, input_c_backprop and params_backprop, each of the shape
        of its input; input_c_backprop is a scalar zero for cells without it.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `cudnn_rnn`; also if reserve_space is not of the size that the forward call with these
        arguments returns.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, h, c = np.ones((4, 1, 2)), np.zeros((1, 1, 3)), np.zeros((1, 1, 3))
    >>> params = np.full(cupyrnn.cudnn_rnn_params_size(1, 3, 2), 0.1)
    >>> out = cupyrnn.cudnn_rnn(x, h, c, params)
    >>> grads = cupyrnn.cudnn_rnn_backprop(
    ...     x, h, c, params, *out[:3], np.ones((4, 1, 3)), None, None, out.reserve_space
    ... )
    >>> grads.input_backprop[:, 0, 0].round(4)
    array([0.2748, 0.2561, 0.208 , 0.1334])
    """
    op = "cudnn_rnn_backprop"
    xp, net, lengths, chosen = _contract(
        op,
        input,
        input_h,
        input_c,
        params,
        {
            "output": output,
            "output_h": output_h,
            "output_c": output_c,
            "output_backprop": output_backprop,
            "output_h_backprop": output_h_backprop,
            "output_c_backprop": output_c_backprop,
            "reserve_space": reserve_space,
        },
        sequence_lengths=sequence_lengths,
        rnn_mode=rnn_mode,
        input_mode=input_mode,
        direction=direction,
        dropout=dropout,
        seed=seed,
        seed2=seed2,
        num_proj=num_proj,
        is_training=True,
        time_major=time_major,
        engine=engine,
        host_reserved=host_reserved,
    )
    if chosen == "cudnn" and output is None:
        raise TypeError(f"{op}: output is None, which cuDNN reads, expected a cupy.ndarray")
    size = _expected_reserve(net, chosen, input, lengths)
    if reserve_space.shape != (size,):
        raise ValueError(
            f"{op}: reserve_space has shape {reserve_space.shape}, expected ({size},), as"
            " cudnn_rnn returns it for these arguments with is_training=True"
        )
    with on_device(xp, input):
        c, dc = (input_c, output_c_backprop) if rnn_mode == "lstm" else (None, None)
        x, h, c, y, dy, dh, dc = _time_major(
            xp, time_major, (input, input_h, c, output, output_backprop, output_h_backprop, dc)
        )
        if chosen == "cudnn":
            from . import _cudnn

            x, h, c, packed, y, dy, dh, dc, saved = _contiguous(
                xp, (x, h, c, params, y, dy, dh, dc, reserve_space)
            )
            grads = _cudnn.backward(net, x, h, c, packed, lengths, y, dy, dh, dc, saved)
        else:
            grads = _backward(xp, net, x, h, c, params, lengths, dy, dh, dc, reserve_space)
        return CudnnRNNGrads(
            _as_given(xp, grads[0], time_major, input.dtype),
            _as_given(xp, grads[1], time_major, input.dtype),
            _as_given(xp, grads[2], time_major, input.dtype),
            grads[3],
        )
