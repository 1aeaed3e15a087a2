"""The ops as functions of tensors: they check arguments, and name the results of PyTorch's ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import torch

from .._typing import Save
from ..arithmetic.gates import RecurrentActivation, check_gate
from ..cells.block_forms import GRU_FORM, LSTM_FORM, GateOrder
from ..cells.contract import Attributes
from ..cells.gru import GRUOutputs
from ..cells.lstm import LSTMOutputs
from ..cells.packed import DIRECTIONS, GATES, Direction, InputMode, RNNMode
from ..checks.attributes import (
    REQUIRED,
    check_bool,
    check_choice,
    check_dropout,
    check_integer,
    check_real,
    check_save,
    counted,
    named,
    type_shown,
)
from ..ops.stacked_rnn import BlockParams, form_of
from ..weights.packed import NetArguments, PackedParams, resolve_net
from .arguments import (
    Lengths,
    Resets,
    check_block_weights,
    check_one_width,
    check_seeds,
    extras,
    keeps,
    lstm_attributes,
)
from .definitions import (
    BLOCK_GRU,
    BLOCK_LSTM,
    CUDNN_RNN,
    GRU_BLOCK_CELL,
    LSTM_BLOCK_CELL,
    STACKED_RNN,
    name_of_kind,
)
from .ops import Op, check_tensor

_MODES, _INPUT_MODES = tuple(GATES), get_args(InputMode)


class RNNOutputs(NamedTuple):
    """
    What `cudnn_rnn` returns.

    Attributes
    ----------
    output : [T, B, D*P]
        The output of the last layer.
    output_h : [L*D, B, P]
        The states after each sequence's last step.
    output_c : [L*D, B, H]
        The cell states of an LSTM; a scalar zero for cells without them.
    """

    output: torch.Tensor
    output_h: torch.Tensor
    output_c: torch.Tensor


# So that exported programs with these tuples can be saved.
for _tuple in (LSTMOutputs, GRUOutputs, RNNOutputs):
    torch.utils._pytree._register_namedtuple(
        _tuple, serialized_type_name=f"cupyrnn.{_tuple.__name__}"
    )


def _lstm(op: Op, inputs: Any, of_cell: Attributes, of_steps: Any = (), way: Any = ()) -> Any:
    """Call a block op of LSTMs."""
    attributes = lstm_attributes(op.name, of_cell)
    cs, h, i, f, o, ci, co = op(*inputs, *of_steps, *attributes, *way)
    return LSTMOutputs(i, cs, f, o, ci, co, h)


def _gru(op: Op, inputs: Any, gate: str, of_steps: Any = (), way: Any = ()) -> Any:
    """Call a block op of GRUs."""
    check_gate(op.name, gate)
    h, *gates = op(*inputs, *of_steps, gate, *way)
    return GRUOutputs._make((*gates, h))


@named
def lstm_block_cell(
    x: torch.Tensor,
    cs_prev: torch.Tensor | None = None,
    h_prev: torch.Tensor | None = None,
    w: torch.Tensor = REQUIRED,
    b: torch.Tensor = REQUIRED,
    *,
    wci: torch.Tensor | None = None,
    wcf: torch.Tensor | None = None,
    wco: torch.Tensor | None = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> LSTMOutputs:
    """
    `cupyrnn.lstm_block_cell` of tensors.

    Parameters
    ----------
    x : [B, I]
        The input. All tensors have its device and dtype.
    cs_prev, h_prev : [B, H], optional
        The cell state and the output before the step. Zeros by default.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in `gate_order`.
    b : [4*H]
        The bias, in the same order.
    wci, wcf, wco : [H], optional
        The peephole weights of i, f and o: all three or none.
    forget_bias : float, optional
        Added to the forget gate. The default is 1 for "icfo" and 0 for "ifco".
    cell_clip : float, optional
        Bound of abs(cs); 0 or a negative number means none. The default is 3 for "icfo" and none
        for "ifco".
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates i, f and o: see `cupyrnn.lstm_block_cell`.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, [B, H] each. cs and h have gradients, through a clip the true
        ones.

    Raises
    ------
    TypeError, ValueError
        An argument is not a tensor, its device or dtype differs from x's, a shape does not fit the
        others, or an attribute has a wrong type or is out of range.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> x, w = torch.ones(1, 2), torch.full((5, 12), 0.1, requires_grad=True)
    >>> out = cupyrnn.torch.lstm_block_cell(x, w=w, b=torch.zeros(12))
    >>> out.h.sum().backward()
    >>> w.grad.shape
    torch.Size([5, 12])
    """
    of_cell = Attributes(forget_bias, cell_clip, gate_order, recurrent_activation)
    return _lstm(LSTM_BLOCK_CELL, (x, cs_prev, h_prev, w, b, wci, wcf, wco), of_cell)


@named
def block_lstm(
    x: torch.Tensor,
    cs_prev: torch.Tensor | None = None,
    h_prev: torch.Tensor | None = None,
    w: torch.Tensor = REQUIRED,
    b: torch.Tensor = REQUIRED,
    *,
    wci: torch.Tensor | None = None,
    wcf: torch.Tensor | None = None,
    wco: torch.Tensor | None = None,
    sequence_lengths: Lengths | None = None,
    reverse: bool = False,
    resets: Resets | None = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> LSTMOutputs:
    """
    `cupyrnn.block_lstm` of tensors.

    Parameters
    ----------
    x : [T, B, I]
        The input. All tensors have its device and dtype.
    cs_prev, h_prev : [B, H], optional
        The cell state and the output before the first step. Zeros by default.
    w : [I+H, 4*H]
        The weights, rows for x above rows for h_prev, columns by gate in `gate_order`.
    b : [4*H]
        The bias, in the same order.
    wci, wcf, wco : [H], optional
        The peephole weights of i, f and o: all three or none.
    sequence_lengths : list or tensor of [B] integers on the CPU, optional
        The length of each sequence, in [0, T]; T by default. Outputs are zero past it.
    reverse : bool
        Run each sequence from its own last step to its first.
    resets : list or tensor of [T, B] booleans, or of 0 and 1, on the CPU, optional
        No state passes between a marked step t and step t-1, in either direction.
    forget_bias : float, optional
        Added to the forget gate. The default is 1 for "icfo" and 0 for "ifco".
    cell_clip : float, optional
        Bound of abs(cs); 0 or a negative number means none. The default is 3 for "icfo" and none
        for "ifco".
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates i, f and o: see `cupyrnn.block_lstm`.

    Returns
    -------
    LSTMOutputs
        i, cs, f, o, ci, co and h, [T, B, H] each. cs and h have gradients, through a clip the true
        ones.

    Raises
    ------
    TypeError, ValueError
        An argument is not a tensor, its device or dtype differs from x's, a shape does not fit the
        others, or an attribute has a wrong type or is out of range.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> x, w = torch.ones(4, 1, 2), torch.full((5, 12), 0.1)
    >>> out = cupyrnn.torch.block_lstm(x, w=w, b=torch.zeros(12))
    >>> out.h.shape
    torch.Size([4, 1, 3])
    """
    of_cell = Attributes(forget_bias, cell_clip, gate_order, recurrent_activation)
    of_steps = extras("block_lstm", sequence_lengths, resets)
    way = (check_bool("block_lstm", "reverse", reverse),)
    return _lstm(BLOCK_LSTM, (x, cs_prev, h_prev, w, b, wci, wcf, wco), of_cell, of_steps, way)


@named
def gru_block_cell(
    x: torch.Tensor,
    h_prev: torch.Tensor | None = None,
    w_ru: torch.Tensor = REQUIRED,
    w_c: torch.Tensor = REQUIRED,
    b_ru: torch.Tensor = REQUIRED,
    b_c: torch.Tensor = REQUIRED,
    *,
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> GRUOutputs:
    """
    `cupyrnn.gru_block_cell` of tensors.

    Parameters
    ----------
    x : [B, I]
        The input. All tensors have its device and dtype.
    h_prev : [B, H], optional
        The output before the step. Zeros by default.
    w_ru : [I+H, 2*H]
        The weights of r and u, rows for x above rows for h_prev.
    w_c : [I+H, H]
        The weights of c, rows for x above rows for h_prev*r.
    b_ru, b_c : [2*H] and [H]
        The biases.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates r and u: see `cupyrnn.gru_block_cell`.

    Returns
    -------
    GRUOutputs
        r, u, c and h, [B, H] each. h has a gradient.

    Raises
    ------
    TypeError, ValueError
        An argument is not a tensor, its device or dtype differs from x's, a shape does not fit the
        others, or an attribute has a wrong type or is out of range.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> x, h, w = torch.ones(1, 2), torch.zeros(1, 3), torch.full((5, 9), 0.1)
    >>> out = cupyrnn.torch.gru_block_cell(
    ...     x, h, w[:, :6], w[:, 6:], torch.zeros(6), torch.zeros(3)
    ... )
    >>> out.h.shape
    torch.Size([1, 3])
    """
    return _gru(GRU_BLOCK_CELL, (x, h_prev, w_ru, w_c, b_ru, b_c), recurrent_activation)


@named
def block_gru(
    x: torch.Tensor,
    h_prev: torch.Tensor | None = None,
    w_ru: torch.Tensor = REQUIRED,
    w_c: torch.Tensor = REQUIRED,
    b_ru: torch.Tensor = REQUIRED,
    b_c: torch.Tensor = REQUIRED,
    *,
    sequence_lengths: Lengths | None = None,
    reverse: bool = False,
    resets: Resets | None = None,
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> GRUOutputs:
    """
    `cupyrnn.block_gru` of tensors.

    Parameters
    ----------
    x : [T, B, I]
        The input. All tensors have its device and dtype.
    h_prev : [B, H], optional
        The output before the first step. Zeros by default.
    w_ru : [I+H, 2*H]
        The weights of r and u, rows for x above rows for h_prev.
    w_c : [I+H, H]
        The weights of c, rows for x above rows for h_prev*r.
    b_ru, b_c : [2*H] and [H]
        The biases.
    sequence_lengths : list or tensor of [B] integers on the CPU, optional
        The length of each sequence, in [0, T]; T by default. Outputs are zero past it.
    reverse : bool
        Run each sequence from its own last step to its first.
    resets : list or tensor of [T, B] booleans, or of 0 and 1, on the CPU, optional
        No state passes between a marked step t and step t-1, in either direction.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates r and u: see `cupyrnn.block_gru`.

    Returns
    -------
    GRUOutputs
        r, u, c and h, [T, B, H] each. h has a gradient.

    Raises
    ------
    TypeError, ValueError
        An argument is not a tensor, its device or dtype differs from x's, a shape does not fit the
        others, or an attribute has a wrong type or is out of range.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> x, h, w = torch.ones(4, 1, 2), torch.zeros(1, 3), torch.full((5, 9), 0.1)
    >>> out = cupyrnn.torch.block_gru(x, h, w[:, :6], w[:, 6:], torch.zeros(6), torch.zeros(3))
    >>> out.h.shape
    torch.Size([4, 1, 3])
    """
    of_steps = extras("block_gru", sequence_lengths, resets)
    way = (check_bool("block_gru", "reverse", reverse),)
    inputs = (x, h_prev, w_ru, w_c, b_ru, b_c)
    return _gru(BLOCK_GRU, inputs, recurrent_activation, of_steps, way)


@named
def cudnn_rnn(
    input: torch.Tensor,
    input_h: torch.Tensor | None = None,
    input_c: torch.Tensor | None = None,
    params: torch.Tensor | PackedParams = REQUIRED,
    *,
    sequence_lengths: Lengths | None = None,
    resets: Resets | None = None,
    reverse: bool = False,
    rnn_mode: RNNMode | None = None,
    input_mode: InputMode | None = None,
    direction: Direction | None = None,
    dropout: float = 0.0,
    seeds: torch.Tensor | None = None,
    num_proj: int | None = None,
    recurrent_activation: RecurrentActivation | None = None,
    time_major: bool = True,
    save: Save = "all",
) -> RNNOutputs:
    """
    `cupyrnn.cudnn_rnn` of tensors; on CUDA computed by this package's kernels, not by cuDNN.

    Parameters
    ----------
    input : [T, B, I]
        The sequences. All tensors have its device and dtype.
    input_h : [L*D, B, P], optional
        The states before the first step, in the order layer 0 forward, layer 0 backward, layer 1
        forward and so on. Zeros by default if params is a PackedParams, else its shape determines
        L.
    input_c : [L*D, B, H], optional
        The cell states of an LSTM, zeros by default. The other cells ignore it. A net with a
        projection needs it, unless params is a PackedParams.
    params : [params_size] or PackedParams
        All weights and biases, packed as `cupyrnn.cudnn_rnn_params_layout` says. Of a PackedParams
        the vector is a tensor: ``packed._replace(params=torch.as_tensor(packed.params))``; it also
        determines rnn_mode, input_mode, direction, num_proj and recurrent_activation.
    sequence_lengths : list or tensor of [B] integers on the CPU, optional
        The length of each sequence, in [0, T]; T by default. Outputs are zero past it.
    resets : list or tensor of [T, B] booleans, or of 0 and 1, on the CPU, optional
        No state passes between a marked step t and step t-1, in either direction.
    reverse : bool
        Run each sequence from its own last step to its first, in a net of one direction.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell. The first value is the default, here and below.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        With skip_input the first layer has no input matrices: input, of size H, is added to every
        gate. auto_select means skip_input if I equals H, else linear_input.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The fraction, in [0, 1], of the values between layers that is set to zero. It has no effect
        on a net of one layer.
    seeds : tensor of two integers on the CPU, optional
        The seeds of the masks; zeros by default. Draw new ones for every call, for instance
        ``torch.randint(2**62, (2,))``.
    num_proj : int
        P, the size to which an LSTM projects its output; 0 for none.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates: see `cupyrnn.cudnn_rnn`.
    time_major : bool
        If False, input and output are [B, T, ·] and the states [B, L*D, ·].
    save : {"all", "states"} or int
        What to keep for the gradient, as in `cupyrnn.cudnn_rnn`: everything, only the states, or
        only the states of every k-th step. The gradient computes the rest again.

    Returns
    -------
    RNNOutputs
        output, output_h and output_c.

    Raises
    ------
    TypeError, ValueError
        An argument is not a tensor, its device or dtype differs from input's, a shape does not fit
        the others, or an attribute has a wrong type or is out of range.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn.torch
    >>> net = cupyrnn.init_params(num_layers=1, num_units=3, input_size=2)
    >>> params = torch.tensor(net.params, requires_grad=True)
    >>> out = cupyrnn.torch.cudnn_rnn(torch.ones(4, 1, 2), params=net._replace(params=params))
    >>> out.output.shape
    torch.Size([4, 1, 3])
    """
    op, known, vector = "cudnn_rnn", None, params
    if isinstance(params, PackedParams):
        passed = NetArguments(rnn_mode, input_mode, direction, num_proj, recurrent_activation)
        vector, net, known = resolve_net(op, params, passed)  # type: ignore[assignment]
        rnn_mode, input_mode, direction, num_proj, recurrent_activation = net  # type: ignore[assignment]
    # The defaults of `resolve_net`, which takes longer.
    mode = "lstm" if rnn_mode is None else check_choice(op, "rnn_mode", rnn_mode, _MODES)
    inputs_are = "linear_input" if input_mode is None else input_mode
    check_choice(op, "input_mode", inputs_are, _INPUT_MODES)
    D = "unidirectional" if direction is None else direction
    check_choice(op, "direction", D, DIRECTIONS)
    gate = "sigmoid" if recurrent_activation is None else recurrent_activation
    check_gate(op, gate)
    P = 0 if num_proj is None else check_integer(op, "num_proj", num_proj)
    major = check_bool(op, "time_major", time_major)
    needs_c = P and mode == "lstm"
    lacking = "input_h" if input_h is None else "input_c" if input_c is None and needs_c else None
    if known is None and lacking is not None:
        raise TypeError(
            f"{op}: {lacking} is None, expected zeros (L*D, B, {'PH'[lacking == 'input_c']}):"
            " params has no sizes, as a PackedParams has"
        )
    check_seeds(op, seeds)
    rate = check_dropout(op, dropout)
    attributes = (
        *(mode, inputs_are, D, rate, P, gate, major),
        check_bool(op, "reverse", reverse),
        *((known.L, known.H, known.I) if known else (0, 0, 0)),
        *(keeps(rate), check_save(op, save) or 0),
    )
    check_tensor(op, "params", vector)
    inputs = (input, input_h, input_c if mode == "lstm" else None, (vector,))
    of_steps = (*extras(op, sequence_lengths, resets), seeds)
    found = CUDNN_RNN(*inputs, *of_steps, *attributes)
    return RNNOutputs._make(found[:3])


@named
def stacked_rnn(
    input: torch.Tensor,
    input_h: torch.Tensor | None = None,
    input_c: torch.Tensor | None = None,
    weights: Sequence[BlockParams] = REQUIRED,
    *,
    sequence_lengths: Lengths | None = None,
    resets: Resets | None = None,
    reverse: bool = False,
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seeds: torch.Tensor | None = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
    proj_clip: float | None = None,
    time_major: bool = True,
    save: Save = "all",
) -> RNNOutputs:
    """
    `cupyrnn.stacked_rnn` of tensors: layers and directions of `block_lstm` or `block_gru`.

    Parameters
    ----------
    input : [T, B, I]
        The sequences. All tensors have its device and dtype.
    input_h : [L*D, B, H], or [L*D, B, P] of LSTMs with a projection
        The outputs before the first step, in the order layer 0 forward, layer 0 backward, layer 1
        forward and so on. Zeros by default, as input_c.
    input_c : [L*D, B, H], optional
        The cell states of LSTMs. GRUs have none. A cell of your own with several states beside h
        takes a tuple of them, and output_c is one.
    weights : sequence of BlockLSTMParams, PeepholeLSTMParams or BlockGRUParams
        The tensors of each of the L*D layers and directions, in the order of input_h, with the
        shapes of `cupyrnn.stacked_rnn`; all have one H and one P. Weights that have a ``form`` make
        a cell of your own.
    sequence_lengths : list or tensor of [B] integers on the CPU, optional
        The length of each sequence, in [0, T]; T by default. Outputs are zero past it.
    resets : list or tensor of [T, B] booleans, or of 0 and 1, on the CPU, optional
        No state passes between a marked step t and step t-1, in either direction.
    reverse : bool
        Run each sequence from its own last step to its first, in a net of one direction.
    direction : {"unidirectional", "bidirectional"}
        D is 1 or 2.
    dropout : float
        The fraction, in [0, 1], of the values between layers that is set to zero. It has no effect
        on a net of one layer.
    seeds : tensor of two integers on the CPU, optional
        The seeds of the masks, as in `cudnn_rnn`; zeros by default.
    forget_bias : float, optional
        Added to the forget gates of LSTMs. The default is 1 for "icfo" and 0 for "ifco".
    cell_clip : float, optional
        Bound of abs(cs) of LSTMs; 0 or a negative number means none. The default is 3 for "icfo"
        and none for "ifco".
    gate_order : {"icfo", "ifco"}
        The order of the gates in w and b of an LSTM.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        Activation of the gates: see `cupyrnn.stacked_rnn`.
    proj_clip : float, optional
        Bound of abs(h) of LSTMs with a projection; none by default.
    time_major : bool
        If False, input and output are [B, T, ·] and the states [B, L*D, ·].
    save : {"all", "states"} or int
        What to keep for the gradient, as in `cupyrnn.cudnn_rnn`: everything, only the states, or
        only the states of every k-th step. The gradient computes the rest again.

    Returns
    -------
    RNNOutputs
        output, output_h and output_c.

    Raises
    ------
    TypeError, ValueError
        An argument is not a tensor, its device or dtype differs from input's, a shape does not fit
        the others, or an attribute has a wrong type or is out of range.

    Examples
    --------
    >>> import torch
    >>> import cupyrnn
    >>> import cupyrnn.torch
    >>> w, b, peephole = torch.full((5, 12), 0.1), torch.zeros(12), torch.full((3,), 0.1)
    >>> weights = [cupyrnn.PeepholeLSTMParams(w, b, peephole, peephole, peephole)]
    >>> cupyrnn.torch.stacked_rnn(torch.ones(4, 1, 2), weights=weights).output.shape
    torch.Size([4, 1, 3])
    """
    op, form = "stacked_rnn", form_of("stacked_rnn", weights)
    D = 1 + (check_choice(op, "direction", direction, DIRECTIONS) == "bidirectional")
    if len(weights) % D:
        raise ValueError(
            f"{op}: weights has {counted(len(weights), 'entry')}, expected L*D with D = {D}"
        )
    several = len(form.States._fields) - 1  # states beside h
    if several > 1 and input_c is not None:
        if not isinstance(input_c, (tuple, list)) or len(input_c) != several:
            kind = type_shown(input_c)
            raise TypeError(f"{op}: input_c is {kind}, expected a tuple of {several} tensors")
        input_c = torch.stack(tuple(input_c))
    flat, names = check_block_weights(op, weights, form, name_of_kind(weights, form))
    check_one_width(op, weights, form)
    of_cell = Attributes(forget_bias, cell_clip, gate_order, recurrent_activation, proj_clip)
    attributes: Any = of_cell
    if form is LSTM_FORM:
        clip = None if proj_clip is None else check_real(op, "proj_clip", proj_clip)
        attributes = *lstm_attributes(op, of_cell)[:4], clip
    elif form is GRU_FORM:
        check_gate(op, recurrent_activation)
    check_seeds(op, seeds)
    rate, reverse = check_dropout(op, dropout), check_bool(op, "reverse", reverse)
    inputs = (input, input_h, input_c if several else None, tuple(flat))
    of_steps = (*extras(op, sequence_lengths, resets), seeds)
    major = check_bool(op, "time_major", time_major)
    attributes = (names, direction, rate, *attributes, major, reverse, keeps(rate))
    attributes = (*attributes, check_save(op, save) or 0)
    output, h, c, *_ = STACKED_RNN(*inputs, *of_steps, *attributes)
    return RNNOutputs(output, h, c.unbind() if several > 1 else c)  # type: ignore[arg-type]
