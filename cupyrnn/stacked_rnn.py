"""Layers of the block ops' cells in one or both directions, forward and backward.

Symbols: T time steps, B batch, I input size, H hidden size, L layers, D directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from ._arrays import (
    aligned,
    cast,
    check_arrays,
    check_bool,
    check_choice,
    check_dropout,
    check_integer,
    check_lengths,
    check_list,
    check_resets,
    compute_dtype,
    contiguous,
    expect_rank,
    expect_shape,
    on_device,
    operand_dtype,
    shown,
)
from ._block import COLUMNS, LSTMCall, check_clip, check_forget_bias, gru_cell, lstm_cell
from ._typing import ArrayT, NamedTuple
from .arithmetic.gates import check_gate
from .cells.contract import Gradients, States
from .cells.gru import GRUOutputs
from .cells.lstm import LSTMOutputs
from .derivatives.traced import traceable
from .driver import stack as _stack
from .driver.packing import Packing, count_rows
from .driver.stack import Sizes, Stack, as_given, time_major_of
from .weights.forms import BlockGRUParams, BlockLSTMParams, PeepholeLSTMParams
from .weights.params import DIRECTIONS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ._arrays import Array, Lengths, Resets
    from ._block import GateOrder
    from ._typing import AnyArray
    from .arithmetic.gates import RecurrentActivation
    from .cells.contract import Cell
    from .weights.params import Direction

BlockParams: TypeAlias = BlockLSTMParams | PeepholeLSTMParams | BlockGRUParams

_LSTM, _GRU = (BlockLSTMParams, PeepholeLSTMParams), (BlockGRUParams,)

_PEEPHOLES = ("wci", "wcf", "wco")
# How many times H wide a weight is.
_WIDTHS = {"w": 4, "b": 4, "w_ru": 2, "w_c": 1, "b_ru": 2, "b_c": 1} | dict.fromkeys(_PEEPHOLES, 1)


class StackedRNNOutputs(NamedTuple, Generic[ArrayT]):
    """
    What `stacked_rnn` returns, by the names of CudnnRNN's outputs.

    Attributes
    ----------
    output : [T, B, D*H]
        The output of the last layer.
    output_h : [L*D, B, H]
        The outputs after each sequence's last step.
    output_c : [L*D, B, H]
        The cell states after each sequence's last step; a scalar zero for GRUs.
    reserve_space : vector
        What the gradient needs; a scalar zero if is_training was False.
    """

    output: ArrayT
    output_h: ArrayT
    output_c: ArrayT
    reserve_space: ArrayT


class StackedRNNGrads(NamedTuple, Generic[ArrayT]):
    """
    The gradient of every input of `stacked_rnn`, each with the shape of its input.

    Attributes
    ----------
    input_backprop : [T, B, I]
        Of the sequences.
    input_h_backprop : [L*D, B, H]
        Of the outputs before the first step.
    input_c_backprop : [L*D, B, H]
        Of the cell states before the first step; a scalar zero for GRUs.
    weights_backprop : list of BlockLSTMParams, PeepholeLSTMParams or BlockGRUParams
        Of the weights, with None where these have None.
    """

    input_backprop: ArrayT
    input_h_backprop: ArrayT
    input_c_backprop: ArrayT
    weights_backprop: list[BlockParams]


class _Call(NamedTuple):
    """A call after its checks."""

    xp: ModuleType
    dtype: np.dtype[Any]
    sizes: Sizes
    is_lstm: bool
    attributes: LSTMCall  # of all cells, without the peepholes
    forget_bias: float
    lengths: NDArray[np.int32] | None
    resets: NDArray[np.bool_] | None  # [T, B]

    @property
    def packing(self) -> Packing:
        """The sequences without padding."""
        return Packing(self.xp, self.sizes.T, self.sizes.B, self.lengths, self.resets)


def _named(op: str, weights: object) -> dict[str, Any]:
    """Check what `weights` is a list of; return its arrays by the names that errors show."""
    check_list(op, "weights", weights)
    entries: Any = weights
    if not entries:
        raise ValueError(f"{op}: weights has 0 entries, expected L*D")
    kinds = _GRU if isinstance(entries[0], _GRU) else _LSTM
    arrays: dict[str, Any] = {}
    for n, entry in enumerate(entries):
        if not isinstance(entry, kinds):
            expected = " or ".join(kind.__name__ for kind in (kinds if n else _LSTM + _GRU))
            like = " like weights[0]" if n else ""
            kind = type(entry).__name__
            raise TypeError(f"{op}: weights[{n}] is a {kind}, expected a {expected}{like}")
        arrays |= {f"weights[{n}].{name}": a for name, a in entry._asdict().items()}
    return arrays


def _check_weights(op: str, weights: Sequence[BlockParams], I: int, H: int, D: int) -> None:
    """Check the shapes of all weights, and that peepholes are given all or not at all."""
    for n, entry in enumerate(weights):
        K, symbol = (I, "I") if n < D else (D * H, "D*H")
        arrays = entry._asdict()
        for name, a in arrays.items():
            width = _WIDTHS[name]
            columns = f"{width}*H" if width > 1 else "H"
            symbols, shape = f"({columns},)", [width * H]
            if name in ("w", "w_ru", "w_c"):
                symbols, shape = f"({symbol}+H, {columns})", [K + H, width * H]
            expect_shape(op, f"weights[{n}].{name}", a, symbols, tuple(shape))
        given = [name for name in _PEEPHOLES if arrays.get(name) is not None]
        if 0 < len(given) < 3:
            missing = next(name for name in _PEEPHOLES if arrays[name] is None)
            raise TypeError(
                f"{op}: weights[{n}].{missing} is None, expected an array of shape (H,) = ({H},)"
                f" like weights[{n}].{given[0]}"
            )


def _check_attributes(
    op: str, given: Mapping[str, Any], dtype: np.dtype[Any], *, is_lstm: bool, forward: bool
) -> tuple[LSTMCall, float]:
    """Return the attributes of all cells, and forget_bias."""
    order: Any = check_choice(op, "gate_order", given["gate_order"], tuple(COLUMNS))
    gate = check_gate(op, given["recurrent_activation"])
    if is_lstm:
        clip = check_clip(op, given["cell_clip"], order, dtype, forward=forward)
        bias = check_forget_bias(op, given["forget_bias"], order) if forward else 0.0
        return LSTMCall(None, clip, order, gate, dtype), bias
    for name in ("forget_bias", "cell_clip"):
        if given.get(name) is not None:
            raise ValueError(f"{op}: {name} is {shown(given[name])}, expected None for a GRU")
    return LSTMCall(None, None, order, gate, dtype), 0.0


_OUTPUT_GRADS = ("output_backprop", "output_h_backprop", "output_c_backprop")


def _check(op: str, given: Mapping[str, Any]) -> _Call:
    """Check every argument of a call, by name."""
    input, input_h, input_c = given["input"], given["input_h"], given["input_c"]
    weights, backward = given["weights"], "reserve_space" in given
    of_weights = _named(op, weights)
    is_lstm = isinstance(weights[0], _LSTM)
    required = {"input": input, "input_h": input_h}
    optional = {name: given[name] for name in _OUTPUT_GRADS if backward}
    for name, a in of_weights.items():
        (optional if name.endswith(_PEEPHOLES) else required)[name] = a
    if backward:
        required["reserve_space"] = given["reserve_space"]
    unused = not is_lstm and isinstance(input_c, Real)
    (required if is_lstm else optional)["input_c"] = None if unused else input_c
    xp, dtype = check_arrays(op, required, optional)
    D = 1 + (check_choice(op, "direction", given["direction"], DIRECTIONS) == "bidirectional")
    training = check_bool(op, "is_training", given.get("is_training", True))
    major = check_bool(op, "time_major", given["time_major"])
    rate = check_dropout(op, given["dropout"])
    seeds = [check_integer(op, name, given.get(name, 0)) for name in ("seed", "seed2")]
    attributes, bias = _check_attributes(op, given, dtype, is_lstm=is_lstm, forward=not backward)
    if len(weights) % D:
        raise ValueError(
            f"{op}: weights has {len(weights)} entries, expected L*D with D = 2: bidirectional"
        )

    axes, places = ("T, B", "L*D, B") if major else ("B, T", "B, L*D")
    *steps, I = expect_rank(op, "input", input, f"({axes}, I)")
    T, B = steps if major else steps[::-1]
    H = expect_rank(op, "input_h", input_h, f"({places}, H)")[2]
    state = (len(weights), B, H) if major else (B, len(weights), H)
    states = {"input_h": input_h, "output_h_backprop": optional.get("output_h_backprop")}
    if is_lstm:
        states |= {"input_c": input_c, "output_c_backprop": optional.get("output_c_backprop")}
    for name, a in states.items():
        expect_shape(op, name, a, f"({places}, H)", state)
    output = optional.get("output_backprop")
    expect_shape(op, "output_backprop", output, f"({axes}, D*H)", (*steps, D * H))
    _check_weights(op, weights, I, H, D)
    lengths = check_lengths(op, given["sequence_lengths"], T, B)
    resets = check_resets(op, given["resets"], *steps, symbols=f"({axes})")
    if resets is not None and not major:
        resets = resets.T
    sizes = Sizes(T, B, len(weights) // D, D, H, H, training, rate, seeds[0], seeds[1])
    return _Call(xp, dtype, sizes, is_lstm, attributes, bias, lengths, resets)


def _cell_of(call: _Call, weights: BlockParams, dtype: np.dtype[Any], *, forward: bool) -> Cell:
    """Return the cell of one direction of one layer; backwards without its biases."""
    xp, H, compute = call.xp, call.sizes.H, compute_dtype(dtype)
    operand = operand_dtype(xp, dtype)

    def matrix(w: Array) -> Array:
        return cast(contiguous(xp, w), operand)

    def vector(a: Array) -> Array:
        return contiguous(xp, cast(aligned(xp, a), compute))

    if isinstance(weights, BlockGRUParams):
        w_ru, w_c, b_ru, b_c = weights
        biases = (vector(b_ru), vector(b_c)) if forward else (None, None)
        return gru_cell(matrix(w_ru), matrix(w_c), H, call.attributes.gate, biases)
    peephole: Any = weights[2:]
    attributes = call.attributes
    if peephole and peephole[0] is not None:
        wci, wcf, wco = (vector(a) for a in peephole)
        attributes = attributes._replace(peephole=(wci, wcf, wco))
    b = None
    if forward:
        start = COLUMNS[attributes.gate_order][2] * H
        b = vector(weights.b).copy()
        b[start : start + H] += call.forget_bias
    return lstm_cell(matrix(weights.w), b, H, attributes)


def _stack_of(
    call: _Call, weights: Sequence[BlockParams], dtype: np.dtype[Any], *, forward: bool
) -> Stack:
    """Return the cells of all layers and directions."""
    cells = [_cell_of(call, entry, dtype, forward=forward) for entry in weights]
    return Stack(call.sizes, cells, call.packing)


def _zeros_like(xp: ModuleType, weights: Any, compute: np.dtype[Any]) -> Any:
    """Return memory for the gradient of some weights."""
    return weights._make([None if a is None else xp.zeros(a.shape, compute) for a in weights])


def _gradients_of(xp: ModuleType, grads: Any, H: int) -> Gradients:
    """Return where the gradients of a cell go: views of those of its weights."""
    if isinstance(grads, BlockGRUParams):
        w_ru, w_c, *sums = grads
        K = len(w_c) - H
        return Gradients(None, (w_ru[:K], w_c[:K], w_ru[K:], w_c[K:]), sums)
    w, b, *peephole = grads
    K = len(w) - H
    vectors = None if not peephole or peephole[0] is None else xp.zeros((3, H), w.dtype)
    return Gradients(None, (w[:K], w[K:]), (b,), vectors)


def _finished(grads: Any, vectors: Array | None, dtype: np.dtype[Any]) -> BlockParams:
    """Return the gradients of weights, those of the peepholes included, in the dtype asked for."""
    if vectors is not None:
        grads = grads._make([*grads[:2], *vectors])
    result: BlockParams = grads._make([None if a is None else cast(a, dtype) for a in grads])
    return result


@traceable
def stacked_rnn(
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray | None,
    weights: Sequence[BlockParams],
    *,
    sequence_lengths: Lengths | None = None,
    resets: Resets | None = None,
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: int = 0,
    seed2: int = 0,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
    is_training: bool = True,
    time_major: bool = True,
) -> StackedRNNOutputs[ArrayT]:
    """
    Layers of `block_lstm` or `block_gru` in one or both directions, as CudnnRNN has its own.

    What `cudnn_rnn` does for the cells of cuDNN, for those that cuDNN does not have: LSTMs with
    peepholes and a clip, and GRUs that reset before the product. TensorFlow has no such op; the
    names are those of CudnnRNN. A layer reads h of the layer below, of both directions side by
    side.

    Parameters
    ----------
    input : [T, B, I]
        The sequences; float16, bfloat16, float32 or float64, and all other arrays alike. Half
        formats are computed in float32. Arrays may be complex64 or complex128, a value and
        a tangent: see `cupyrnn.jvp`; real ones of the same precision beside them have no tangent.
    input_h : [L*D, B, H]
        The outputs before the first step: of layer 0 forward, layer 0 backward, layer 1 forward
        and so on.
    input_c : [L*D, B, H]
        The cell states before the first step; None for GRUs.
    weights : sequence of BlockLSTMParams, PeepholeLSTMParams or BlockGRUParams
        Those of each of the L*D layers and directions, in the order of input_h, all LSTMs or all
        GRUs. K is I in the first layer and D*H in the others. An LSTM has w [K+H, 4*H], b [4*H]
        and, with peepholes, wci, wcf and wco [H]; a GRU has w_ru [K+H, 2*H], w_c [K+H, H],
        b_ru [2*H] and b_c [H].
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence, in [0, T] and in any order; all T if left out. What lies past
        a sequence's end is not read, and output is zero there. The backward direction begins at
        each sequence's own end. What a length of 0 leaves are the states it was given.
    resets : [T, B] booleans on the host, optional
        No state passes from a step t-1 to a step t that is marked, in either direction. [B, T] if
        time_major is False.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The part, in [0, 1], of the values between layers that is zeroed in training; the others
        are divided by one minus it.
    seed, seed2 : int
        What the dropout masks depend on: the same two integers give the same masks, which are
        those of `cudnn_rnn`.
    forget_bias : float, optional
        Added to the forget gates of LSTMs; left out, 1 for "icfo" and 0 for "ifco". GRUs have
        none.
    cell_clip : float, optional
        Bound of abs(cs) of LSTMs; 0, a negative number or NaN mean none. Left out, 3 for "icfo"
        and none for "ifco". GRUs have none.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b of an LSTM.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        What gives the gates i, f and o or r and u of their sums: the sigmoid, or
        clip(0.2*z + 0.5, 0, 1), the hard sigmoid of Keras 1 and 2, TensorFlow 1 and ONNX, or
        clip(z/6 + 0.5, 0, 1), that of Keras 3 and PyTorch.
    is_training : bool
        Drop values, and keep what the backward pass needs.
    time_major : bool
        Otherwise input and output are [B, T, ·] and the states [B, L*D, ·].

    Returns
    -------
    StackedRNNOutputs
        output [T, B, D*H]; output_h and output_c, the states after each sequence's last step, of
        the shapes of input_h and input_c; reserve_space, a vector for `stacked_rnn_backprop`.
        output_c is a scalar zero for GRUs, and reserve_space if is_training is False.

    Raises
    ------
    TypeError
        An argument is no array or of another module, device or dtype than input, an entry of
        weights is not of the kind of the first, or an attribute is of a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.

    See Also
    --------
    stacked_rnn_backprop : The gradient of every input.
    block_lstm, block_gru : One layer in one direction, with all that its steps leave.
    block_gru_from_keras, block_lstm_from_tf1, block_lstm_from_onnx : Weights of models made
        elsewhere.
    init_block_lstm, init_block_gru : Weights to begin with.

    Examples
    --------
    Two layers in both directions of GRUs that reset before the product, over sequences of 4 and 2
    steps.

    >>> import numpy as np
    >>> import cupyrnn
    >>> x, h = np.ones((4, 2, 2)), np.zeros((4, 2, 3))
    >>> rng = np.random.default_rng(0)
    >>> sizes = [{"num_units": 3, "input_size": K, "dtype": x.dtype} for K in (2, 2, 6, 6)]
    >>> weights = [cupyrnn.init_block_gru(**size, seed=rng) for size in sizes]
    >>> out = cupyrnn.stacked_rnn(
    ...     x, h, None, weights, direction="bidirectional", sequence_lengths=[4, 2]
    ... )
    >>> out.output.shape, bool((out.output[2:, 1] == 0).all())
    ((4, 2, 6), True)
    """
    op = "stacked_rnn"
    call = _check(op, locals())
    xp, dtype = call.xp, call.dtype
    with on_device(xp, input):
        c = input_c if call.is_lstm else None
        x, h, c = time_major_of(xp, dtype, time_major, (input, input_h, c))
        stack = _stack_of(call, weights, dtype, forward=True)
        output, last, reserve_space = _stack.forward(xp, stack, x, States(h, c))
        return StackedRNNOutputs(
            as_given(xp, output, time_major, dtype),
            as_given(xp, last.h, time_major, dtype),
            as_given(xp, last.c, time_major, dtype),
            reserve_space,
        )


@traceable
def stacked_rnn_backprop(
    input: ArrayT,
    input_h: AnyArray,
    input_c: AnyArray | None,
    weights: Sequence[BlockParams],
    output_backprop: AnyArray | None,
    output_h_backprop: AnyArray | None,
    output_c_backprop: AnyArray | None,
    reserve_space: AnyArray,
    *,
    sequence_lengths: Lengths | None = None,
    resets: Resets | None = None,
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
    time_major: bool = True,
) -> StackedRNNGrads[ArrayT]:
    """
    The gradient of every input of `stacked_rnn`.

    Nothing is written but the results: a second call with the same arguments gives the same.

    Parameters
    ----------
    input : [T, B, I]
        The sequences of the forward call; all other arrays are of its dtype.
    input_h : [L*D, B, H]
        The outputs before the first step.
    input_c : [L*D, B, H]
        The cell states before the first step; None for GRUs.
    weights : sequence of BlockLSTMParams, PeepholeLSTMParams or BlockGRUParams
        Those of the forward call, of each of the L*D layers and directions.
    output_backprop : [T, B, D*H] or None
        The gradient of output; None stands for zeros, in the next two as well. It is not read
        past a sequence's end.
    output_h_backprop, output_c_backprop : [L*D, B, H] or None
        The gradients of output_h and output_c; the latter is ignored for GRUs.
    reserve_space : vector
        What the forward call returned. The dropout masks are taken from here.
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence in the forward call; all T if left out. input_backprop is zero
        past a sequence's end.
    resets : [T, B] booleans on the host, optional
        The steps marked in the forward call, into which no state has passed. [B, T] if time_major
        is False.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The part of the values between layers that was zeroed.
    cell_clip : float, optional
        Left out, the gradient passes a clipped cell state of an LSTM as if it had not been
        clipped, as TensorFlow's does. Given the value of the forward call, it is the true
        gradient.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b of an LSTM, and in their gradients.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        What gave the gates of their sums in the forward call. Of a hard sigmoid the slope stands
        in place of i*(1-i) and the like: 0.2 or 1/6 where the gate is within (0, 1), else 0.
    time_major : bool
        Otherwise input, output_backprop and input_backprop are [B, T, ·] and the states and their
        gradients [B, L*D, ·].

    Returns
    -------
    StackedRNNGrads
        input_backprop, input_h_backprop, input_c_backprop, each of the shape of its input, and
        weights_backprop, a list like weights, with None where these have None. input_c_backprop
        is a scalar zero for GRUs.

    Raises
    ------
    TypeError
        An argument is no array or of another module, device or dtype than input, an entry of
        weights is not of the kind of the first, or an attribute is of a wrong type.
    ValueError
        A shape does not fit the others, an attribute is out of range, or reserve_space is not of
        the size that the forward call with these arguments returns.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, h, c = np.ones((4, 1, 2)), np.zeros((2, 1, 3)), np.zeros((2, 1, 3))
    >>> peepholes = np.full((3, 3), 0.1)
    >>> weights = [
    ...     cupyrnn.PeepholeLSTMParams(np.full((K + 3, 12), 0.1), np.zeros(12), *peepholes)
    ...     for K in (2, 3)
    ... ]
    >>> out = cupyrnn.stacked_rnn(x, h, c, weights)
    >>> grads = cupyrnn.stacked_rnn_backprop(
    ...     x, h, c, weights, np.ones((4, 1, 3)), None, None, out.reserve_space
    ... )
    >>> grads.weights_backprop[0].wco.round(4)
    array([0.0091, 0.0091, 0.0091])
    """
    op = "stacked_rnn_backprop"
    call = _check(op, locals())
    xp, sizes, dtype = call.xp, call.sizes, call.dtype
    kind: Any = LSTMOutputs if call.is_lstm else GRUOutputs
    size = _stack.reserve_size(sizes, kind, count_rows(sizes.T, sizes.B, call.lengths))
    if reserve_space.shape != (size,):
        raise ValueError(
            f"{op}: reserve_space has shape {reserve_space.shape}, expected ({size},), as"
            " stacked_rnn returns it for these arguments with is_training=True"
        )
    with on_device(xp, input):
        c, dc = (input_c, output_c_backprop) if call.is_lstm else (None, None)
        arrays = (input, input_h, c, output_backprop, output_h_backprop, dc)
        x, h, c, dy, dh, dc = time_major_of(xp, dtype, time_major, arrays)
        stack = _stack_of(call, weights, dtype, forward=False)
        of_weights = [_zeros_like(xp, entry, compute_dtype(dtype)) for entry in weights]
        grads = [_gradients_of(xp, entry, sizes.H) for entry in of_weights]
        input_grad, first = _stack.backward(
            xp, stack, (x, States(h, c)), dy, States(dh, dc), reserve_space, grads
        )
        return StackedRNNGrads(
            as_given(xp, input_grad, time_major, dtype),
            as_given(xp, first.h, time_major, dtype),
            as_given(xp, first.c, time_major, dtype),
            [
                _finished(entry, of_cell.vectors, dtype)
                for entry, of_cell in zip(of_weights, grads, strict=True)
            ],
        )
