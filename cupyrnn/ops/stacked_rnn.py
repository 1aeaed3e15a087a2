"""Layers of the block ops' cells in one or both directions, forward and backward.

Symbols: T time steps, B batch, I input size, H hidden size, L layers, D directions, P the size of
h, which is H without a projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from .._net import NetCall, RunArguments, check_run, check_sequences
from .._typing import (
    AnyArray,
    ArrayT,
    Lengths,
    Resets,
    Save,
    StackedRNNGrads,
    StackedRNNOutputs,
)
from ..arithmetic.gates import RecurrentActivation
from ..cells.block_forms import COLUMNS, GRU_FORM, LSTM_FORM, GateOrder
from ..cells.block_weights import BlockGRUParams, BlockLSTMParams, PeepholeLSTMParams
from ..cells.contract import Attributes, Form, FormedWeights
from ..cells.gradients import WeightGradients, check_weight_gradients
from ..cells.packed import DIRECTIONS, Direction
from ..checks.attributes import (
    REQUIRED,
    check_choice,
    check_list,
    counted,
    shown,
    type_shown,
    unless_zero,
)
from ..checks.block import check_one_size, check_projections, check_weights, widths_of
from ..checks.calls import check_arrays, expect_rank
from ..checks.nets import NetSizes, check_shapes
from ..driver import pages
from ..driver.reserve import Note, check_reserve
from ..driver.signatures import Arguments, Recorded, by_signature
from ..weights.packed import PackedParams

BlockParams: TypeAlias = "BlockLSTMParams | PeepholeLSTMParams | BlockGRUParams | FormedWeights"
# A state of layers of different H: an array [D, B, ·] for each.
LayerStates: TypeAlias = "Sequence[AnyArray]"
_KNOWN = ("BlockLSTMParams", "PeepholeLSTMParams", "BlockGRUParams")


def form_of(op: str, weights: object) -> Form:
    """Check that all weights have one form; return it."""
    check_list(op, "weights", weights, "weight tuples")
    packed = isinstance(weights, PackedParams)
    if packed or hasattr(weights, "form"):  # a single entry instead of a list
        hint = "; cudnn_rnn takes it" if packed else ""
        raise TypeError(
            f"{op}: weights is {type_shown(weights)}, expected a list of weight tuples{hint}"
        )
    entries: Any = weights
    if not entries:
        raise ValueError(f"{op}: weights has 0 entries, expected L*D, at least 1")
    forms = [getattr(a, "form", None) if isinstance(a, tuple) else None for a in entries]
    form: Form | None = forms[0]
    for n, entry in enumerate(entries):
        if form is None or forms[n] is not form:
            expected = "a " + " or ".join(_KNOWN)
            if form is not None and n > 0:
                expected = f"the weights of {form.name} like weights[0]"
                if type(forms[n]) is type(form):
                    made = type(form).__name__
                    expected += f", with the same form object: its form is another {made}"
            raise TypeError(f"{op}: weights[{n}] is {type_shown(entry)}, expected {expected}")
    assert form is not None
    return form


def _others(op: str, name: str, form: Form, value: Any, *, may_lack: bool) -> tuple[Any, ...]:
    """Return the states of a cell beside h, or their gradients, of input_c or the like."""
    fields = form.States._fields[1:]
    if len(fields) < 2:
        return (value,) * len(fields)
    if value is None and may_lack:
        return (None,) * len(fields)
    if not isinstance(value, (tuple, list)) or len(value) != len(fields):
        raise TypeError(
            f"{op}: {name} is {shown(value)}, expected a tuple of {len(fields)} arrays:"
            f" {', '.join(fields)}"
        )
    return tuple(value)


def _by_name(name: str, others: tuple[Any, ...]) -> dict[str, Any]:
    """Return the states beside h by the names that errors show."""
    if len(others) == 1:
        return {name: others[0]}
    return {f"{name}[{n}]": a for n, a in enumerate(others)}


def _is_layered(state: object) -> bool:
    """Return whether a state is a list of an array for each layer."""
    return isinstance(state, (list, tuple))


def _one_by_one(states: dict[str, Any]) -> dict[str, Any]:
    """Return arrays by name; the layers of a state have names of their own."""
    arrays: dict[str, Any] = {}
    for name, state in states.items():
        if _is_layered(state) and name not in ("output", "output_backprop"):
            arrays |= {f"{name}[{layer}]": a for layer, a in enumerate(state)}
        else:
            arrays[name] = state
    return arrays


def _check(
    op: str,
    states: tuple[Any, Any, Any],
    weights: Sequence[BlockParams],
    attributes: Attributes,
    direction: object,
    run: RunArguments,
    backward: dict[str, Any] | None = None,
) -> NetCall:
    """
    Check every argument of a call.

    `states` are input, input_h and input_c; `backward`, by name, what only the gradient takes.
    """
    form, (input, input_h, input_c) = form_of(op, weights), states
    entries: Sequence[Any] = weights
    of_weights = {
        f"weights[{n}].{name}": a for n, w in enumerate(entries) for name, a in w._asdict().items()
    }
    known = None
    if input_h is None or (input_c is None and len(form.States._fields) > 1):
        # States that are None are zeros, if the weights have their sizes.
        check_arrays(op, {"input": input}, of_weights)
        D = 1 + (check_choice(op, "direction", direction, DIRECTIONS) == "bidirectional")
        known = widths_of(form, entries[::D])
        for n in () if known is not None else range(0, len(entries), D):
            check_one_size(op, f"weights[{n}]", form, entries[n])
    others = _others(op, "input_c", form, input_c, may_lack=known is not None)
    arrays = {"input_h": input_h, **_by_name("input_c", others)}
    given = {name: a for name, a in arrays.items() if a is not None or known is None}
    required, optional = {"input": input, **_one_by_one(given)}, dict[str, Any]()
    if not others:  # Keras passes a plain 0 for cells with h alone.
        optional |= _one_by_one({"input_c": unless_zero(input_c)})
    may_lack = {*form.together, form.projection}
    for name, a in of_weights.items():
        (optional if name.partition(".")[2] in may_lack else required)[name] = a
    if backward is not None:
        required["reserve_space"] = backward["reserve_space"]
        for name in ("output", "output_h", "output_backprop", "output_h_backprop"):
            arrays[name] = backward[name]
        for name in ("output_c", "output_c_backprop"):
            if others:
                arrays |= _by_name(name, _others(op, name, form, backward[name], may_lack=True))
            else:
                optional |= _one_by_one({name: unless_zero(backward[name])})
        optional |= _one_by_one({n: a for n, a in arrays.items() if n.startswith("output")})
    call = check_run(op, required, optional, run)
    D = 1 + (check_choice(op, "direction", direction, DIRECTIONS) == "bidirectional")
    checked = form.attributes(op, attributes, call.dtype, forward=backward is None)
    if len(entries) % D:
        raise ValueError(
            f"{op}: weights has {counted(len(entries), 'entry')}, expected L*D with D = 2:"
            " bidirectional"
        )
    projects = check_projections(op, form, entries)
    if not projects and getattr(checked, "proj_clip", None) is not None:
        raise ValueError(
            f"{op}: proj_clip is {shown(attributes.proj_clip)}, expected None without a projection:"
            f" weights[0] has no {form.projection}"
        )
    L, symbol, layered = len(entries) // D, "P" if projects else "H", _is_layered(input_h)
    if input_h is None:
        assert known is not None
        widths, layered = known, len({*known}) > 1 or any(map(_is_layered, others))
    else:
        axes = call.shown("D, B, P" if layered else "L*D, B, P", symbol)
        states_h = _one_by_one({"input_h": input_h}).items()
        sizes = [expect_rank(op, name, a, axes)[2] for name, a in states_h]
        sizes = sizes if layered else sizes * L
        widths = [*zip(sizes, sizes, strict=True)]
        if projects:
            names = (f"weights[{n}].{form.projection}" for n in range(0, L * D, D))
            rows = [expect_rank(op, name, of_weights[name], "(H, P)")[0] for name in names]
            widths = [*zip(rows, sizes, strict=False)]
    net = NetSizes(L, D, tuple(widths))
    check_shapes(op, net, input, arrays, call.time_major, symbol)
    call = check_sequences(op, call, run, D)
    check_weights(op, form, entries, call.I, D, widths, layered)
    shapes = [[None if a is None else a.shape for a in entry] for entry in entries]
    named = attributes.gate_order, attributes.recurrent_activation, attributes.proj_clip
    described = (call.sizes[:2], net, shapes), form.name, named
    return NetCall(call, net, form, checked, described)


def _record(call: NetCall, note: Note | None, again: Any, arguments: Arguments) -> Recorded:
    """
    Describe stacked_rnn or its gradient.

    `note` is of kept states, without lengths and resets. `again` are the attributes of the cells
    that kept them.
    """
    from ..driver import net_layouts  # imported here, because it imports the kernels
    from ..driver.layouts import BlockLayer
    from ..driver.recording import record

    form, attributes = call.form, call.attributes
    layer: Any
    if form in (LSTM_FORM, GRU_FORM):
        layer = BlockLayer(
            attributes, COLUMNS[attributes.gate_order] if form is LSTM_FORM else None
        )
    else:
        cell = form.cell(call.run.xp, arguments.by_name["weights"][0], attributes)
        call.check_cell(cell)
        kind: Any = type(cell)
        page = pages.compiled_page(kind) if call.run.xp is np else None
        if page is not None:
            entry = arguments.by_name["weights"][0]
            pages.check_parts_of_page("stacked_rnn", page, cell, entry, attributes)
        layer = net_layouts.FormedLayer(attributes, form, page)
    net = net_layouts.StackedNet(call.layout(note), layer)
    if "reserve_space" in arguments.by_name:
        return record(net_layouts.stacked_rnn_backprop, arguments, net, again)
    return record(net_layouts.stacked_rnn, arguments, net, call.run.sizes.is_training)


@by_signature
def stacked_rnn(
    input: ArrayT,
    input_h: AnyArray | LayerStates | None = None,
    input_c: AnyArray | LayerStates | None = None,
    weights: Sequence[BlockParams] = REQUIRED,
    *,
    sequence_lengths: Lengths | None = None,
    resets: Resets | None = None,
    reverse: bool = False,
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: int = 0,
    seed2: int = 0,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
    is_training: bool = True,
    save: Save = "all",
    time_major: bool = True,
) -> StackedRNNOutputs[ArrayT]:
    """
    Run layers of `block_lstm` or `block_gru` in one or both directions.

    These are the steps of the cells. x is the input of the layer::

        lstm  zi, zci, zf, zo = split([x, h] @ w + b)
              i, f = sigmoid(zi + c*wci), sigmoid(zf + c*wcf + forget_bias)
              c = clip(i*tanh(zci) + f*c, -cell_clip, cell_clip)
              h = sigmoid(zo + c*wco)*tanh(c)
              h = clip(h @ w_p, -proj_clip, proj_clip), if there is a projection
        gru   r, u = sigmoid(split([x, h] @ w_ru + b_ru))
              h = (1-u)*tanh([x, h*r] @ w_c + b_c) + u*h

    input is [T, B, I], input_h [L*D, B, P], input_c [L*D, B, H] and output [T, B, D*P]. P is the
    size of h: the size of the projection, or H without one. States that are None are zero. If
    forget_bias and cell_clip are None, they are 1 and 3 with gate order "icfo", which is the
    default, and 0 and no clip with "ifco".

    A layer reads h of the layer below, with both directions side by side. Layers may have different
    H and P; a state is then a list with an array [D, B, ·] for each layer. TensorFlow has no such
    op: the LSTM is TensorFlow 1's LSTMCell, and the arguments have CudnnRNN's names.

    Parameters
    ----------
    input : [T, B, I]
        The sequences, in float16, bfloat16, float32 or float64. All other arrays have the same
        dtype. Half formats are computed in float32. The imaginary parts of a complex64 or
        complex128 array are tangents, see `cupyrnn.jvp`. They must be so small that their squares
        vanish beside 1; other complex data are refused. Real arrays of the same precision beside a
        complex one have no tangents.
    input_h : [L*D, B, P], optional
        h before the first step; zeros by default. The order is layer 0 forward, layer 0
        backward, layer 1 forward and so on. If the layers have different P, a list with an array
        [D, B, P] for each layer.
    input_c : [L*D, B, H], optional
        The cell states of LSTMs before the first step, or a list with an array [D, B, H] for each
        layer. Zeros by default; GRUs have none. A cell of your own with several states beside
        h takes a tuple of them.
    weights : sequence of BlockLSTMParams, PeepholeLSTMParams or BlockGRUParams
        The weights of each of the L*D layers and directions, in the order of input_h. All are LSTMs
        or all are GRUs. An LSTM has w [K+P, 4*H] and b [4*H]; with peepholes also wci, wcf and wco
        [H]; with a projection also w_p [H, P]. A GRU has w_ru [K+H, 2*H], w_c [K+H, H], b_ru [2*H]
        and b_c [H]. K is I in the first layer; in the others it is D*P of the layer below. Weights
        that have a ``form`` make a cell of your own.
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence, from 0 to T, in any order. T by default. Steps past the end of
        a sequence are not read, and output is zero there. The backward direction begins at the end
        of each sequence. A sequence of length 0 returns its initial states.
    resets : [T, B] booleans on the host, optional
        Marks the steps at which an episode or a packed document begins. No state passes between a
        marked step t and step t-1, in either direction. [B, T] if time_major is False.
    reverse : bool
        Whether every layer runs backwards, from the last step of each sequence to its first. Only
        for one direction: it must be False if direction is "bidirectional".
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The fraction, from 0 to 1, of the values between layers that is set to zero in training. The
        other values are divided by 1 - dropout. It has no effect on a net of one layer.
    seed, seed2 : int
        The seeds of the dropout masks. The same two integers give the same masks, here and in
        `cudnn_rnn`: change one of them from call to call.
    forget_bias : float, optional
        What is added to the forget gates of LSTMs. The default is 1 if gate_order is "icfo", and 0
        if it is "ifco". GRUs have none.
    cell_clip : float, optional
        The bound of abs(cs) of LSTMs. 0, a negative number or NaN mean no bound. The default is 3
        if gate_order is "icfo", and no bound if it is "ifco". GRUs have none.
    proj_clip : float, optional
        The bound of abs(h) of LSTMs with a projection, as in TensorFlow 1's LSTMCell. No bound by
        default.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b of an LSTM.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        The activation of the gates i, f and o, or r and u. The first is the sigmoid. The second is
        the hard sigmoid of Keras 1 and 2, TensorFlow 1 and ONNX, clip(0.2*z + 0.5, 0, 1). The third
        is the hard sigmoid of Keras 3 and PyTorch, clip(z/6 + 0.5, 0, 1).
    is_training : bool
        Whether to apply dropout and to keep what the backward pass needs.
    save : {"all", "states"} or int
        What to keep for the gradient. "all" keeps all that the steps compute. "states" keeps their
        states only, h and for LSTMs c. An integer k keeps the states of every k-th step. The
        gradient computes the rest again, in blocks of steps. Layers below the last keep h of every
        step.
    time_major : bool
        If False, input and output are [B, T, ·] and the states [B, L*D, ·].

    Returns
    -------
    StackedRNNOutputs
        output [T, B, D*P] is h of the last layer at every step. output_h [L*D, B, P] and output_c
        [L*D, B, H] are the states after the last step of each sequence; they are tuples if input_h
        is a list. reserve_space is a vector for `stacked_rnn_backprop`. output_c is a scalar zero
        for GRUs, and reserve_space is one if is_training is False.

    Raises
    ------
    TypeError
        An argument is not an array, or its module, device or dtype differs from input's. An entry
        of weights is of another kind than the first. An attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.

    See Also
    --------
    stacked_rnn_backprop : The gradient of every input.
    block_lstm, block_gru : One layer in one direction, which also returns the gates of every step.
    params_from_keras, block_lstm_from_tf1, block_lstm_from_onnx : Weights of models made
        elsewhere.
    init_block_lstm, init_block_gru : Initial weights.

    Examples
    --------
    Two layers in both directions of GRUs that reset before the product, over sequences of 4 and 2
    steps.

    >>> import numpy as np
    >>> import cupyrnn
    >>> x, rng = np.ones((4, 2, 2)), np.random.default_rng(0)
    >>> sizes = [{"num_units": 3, "input_size": K, "dtype": x.dtype} for K in (2, 2, 6, 6)]
    >>> weights = [cupyrnn.init_block_gru(**size, seed=rng) for size in sizes]
    >>> out = cupyrnn.stacked_rnn(
    ...     x, weights=weights, direction="bidirectional", sequence_lengths=[4, 2]
    ... )
    >>> out.output.shape, bool((out.output[2:, 1] == 0).all())
    ((4, 2, 6), True)

    Layers of different H.

    >>> weights = [
    ...     cupyrnn.init_block_lstm(num_units=H, input_size=K, dtype=x.dtype)
    ...     for K, H in ((2, 5), (5, 3))
    ... ]
    >>> out = cupyrnn.stacked_rnn(x, weights=weights)
    >>> [h.shape for h in out.output_h]
    [(1, 2, 5), (1, 2, 3)]
    """
    op = "stacked_rnn"
    attributes = Attributes(forget_bias, cell_clip, gate_order, recurrent_activation, proj_clip)
    run = RunArguments(sequence_lengths, resets, dropout, is_training, time_major, seed, seed2)
    run = run._replace(save=save, reverse=reverse)
    call = _check(op, (input, input_h, input_c), weights, attributes, direction, run)
    note, every = None, call.run.every
    if every is not None:
        # The gradient op does not get these attributes, but recomputed steps need them.
        bias, clip = attributes.forget_bias, attributes.cell_clip
        known = (None if a is None else float(a) for a in (bias, clip))
        note = Note(every, call.number, *known)
    return partial(_record, call, note, None)  # type: ignore[return-value]


@by_signature
def stacked_rnn_backprop(
    input: ArrayT,
    input_h: AnyArray | LayerStates | None = None,
    input_c: AnyArray | LayerStates | None = None,
    weights: Sequence[BlockParams] = REQUIRED,
    output: AnyArray | None = None,
    output_h: AnyArray | LayerStates | None = None,
    output_c: AnyArray | LayerStates | None = None,
    output_backprop: AnyArray | None = None,
    output_h_backprop: AnyArray | LayerStates | None = None,
    output_c_backprop: AnyArray | LayerStates | None = None,
    reserve_space: AnyArray = REQUIRED,
    *,
    sequence_lengths: Lengths | None = None,
    resets: Resets | None = None,
    reverse: bool = False,
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
    time_major: bool = True,
    weight_gradients: WeightGradients = "sum",
) -> StackedRNNGrads[ArrayT]:
    """
    Return the gradient of every input of `stacked_rnn`.

    ::

        S = sum(output*output_backprop) + sum(output_h*output_h_backprop)
            + sum(output_c*output_c_backprop)
        input_backprop, input_h_backprop, input_c_backprop, weights_backprop =
            dS/dinput, dS/dinput_h, dS/dinput_c, dS/dweights

    output_backprop is [T, B, D*P], output_h_backprop [L*D, B, P] and output_c_backprop
    [L*D, B, H]. Each of them, and each state, that is None is zero. If cell_clip is None, the
    gradient ignores the clip.

    The call changes none of its arguments, so a second call with them returns the same results.

    Parameters
    ----------
    input : [T, B, I]
        The sequences of the forward call. All other arrays have the same dtype. Complex arrays hold
        values and tangents, see `cupyrnn.jvp`.
    input_h : [L*D, B, P], optional
        h before the first step. If it was a list in the forward call, it is a list here too, and so
        are all other states and their gradients. Zeros by default.
    input_c : [L*D, B, H], optional
        The cell states of LSTMs before the first step, as in the forward call.
    weights : sequence of BlockLSTMParams, PeepholeLSTMParams or BlockGRUParams
        The weights of the forward call.
    output, output_h, output_c : [T, B, D*P], [L*D, B, P] and [L*D, B, H], optional
        The results of the forward call, in the places where `cudnn_rnn_backprop` has them. Their
        values are not read, and they may be None.
    output_backprop : [T, B, D*P], optional
        The gradient of output. It is not read past the end of a sequence. Zeros by default,
        here and in the next arguments.
    output_h_backprop, output_c_backprop : [L*D, B, P] and [L*D, B, H], optional
        The gradients of output_h and output_c. For GRUs the second is ignored. It is a tuple where
        output_c is one.
    reserve_space : vector
        The reserve_space of the forward call, on the device of that call: NumPy and CuPy store
        reversed directions differently. It also holds the dropout masks.
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence in the forward call. T by default. input_backprop is zero past
        the end of a sequence.
    resets : [T, B] booleans on the host, optional
        The marks of the forward call. [B, T] if time_major is False.
    reverse : bool
        Whether the layers of the forward call ran backwards.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The fraction of the values between layers that the forward call set to zero.
    cell_clip : float, optional
        With the value of the forward call the gradient is the true one. By default a clipped cell
        state of an LSTM counts as not clipped, as in TensorFlow's gradient.
    proj_clip : float, optional
        The bound of the forward call. The gradient of h is zero where h reached it.
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b of an LSTM, and in their gradients.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        The activation of the gates in the forward call. The slope of a hard sigmoid is 0.2 or 1/6
        where the gate is between 0 and 1, and 0 elsewhere. It replaces i*(1-i) and the like.
    time_major : bool
        If False, input, output_backprop and input_backprop are [B, T, ·], and the states and their
        gradients [B, L*D, ·].
    weight_gradients : {"sum", "examples", "norms", "none"}
        What weights_backprop has. "sum" is the gradient of each weight. "examples" is its gradient
        for each example of the batch, with an axis B in front. "norms" is the Euclidean norm of
        each of these, [B], in float32 for float16 and bfloat16. "none" is None.

    Returns
    -------
    StackedRNNGrads
        input_backprop [T, B, I], input_h_backprop [L*D, B, P] and input_c_backprop [L*D, B, H] are
        the gradients of the arrays. weights_backprop is a list like weights, with None where
        weights has None. input_c_backprop is a scalar zero for GRUs. The gradient of a list of
        states is a tuple.

    Raises
    ------
    TypeError
        An argument is not an array, or its module, device or dtype differs from input's. An entry
        of weights is of another kind than the first. An attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range. reserve_space does not
        have the size that the forward call with these arguments returns.

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
    ...     x, h, c, weights, *out[:3], np.ones((4, 1, 3)), None, None, out.reserve_space
    ... )
    >>> grads.weights_backprop[0].wco.round(4)
    array([0.0091, 0.0091, 0.0091])
    """
    op = "stacked_rnn_backprop"
    attributes = Attributes(None, cell_clip, gate_order, recurrent_activation, proj_clip)
    run = RunArguments(sequence_lengths, resets, dropout, True, time_major, reverse=reverse)
    of_gradient = {"output": output, "output_h": output_h, "output_c": output_c}
    of_gradient |= {"output_backprop": output_backprop, "output_h_backprop": output_h_backprop}
    of_gradient |= {"output_c_backprop": output_c_backprop, "reserve_space": reserve_space}
    call = _check(op, (input, input_h, input_c), weights, attributes, direction, run, of_gradient)
    check_weight_gradients(op, weight_gradients)
    note, again = (
        check_reserve(op, call.run.xp, reserve_space, call.layout(), call.fingerprint),
        None,
    )
    if note is not None:
        again = attributes._replace(forget_bias=note.forget_bias, cell_clip=note.cell_clip)
        again = call.form.attributes(op, again, call.run.dtype, forward=True)
        note, call = note._replace(call=call.number), call.with_every(note.every)
    return partial(_record, call, note, again)  # type: ignore[return-value]
