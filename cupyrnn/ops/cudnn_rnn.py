"""TensorFlow's CudnnRNN, V2 and V3, forward and backward.

Symbols: T time steps, B batch, I input size, H num_units, L layers, D directions, P the size of
the output of one direction: num_proj, or H without a projection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from .._net import CheckedCall, PackedCall, RunArguments, check_packed, with_call_sequences
from .._typing import AnyArray, Array, ArrayT, CudnnRNNGrads, CudnnRNNOutputs, Lengths, Resets, Save
from ..arithmetic.gates import RecurrentActivation
from ..cells.gradients import WeightGradients, check_weight_gradients
from ..cells.packed import Direction, InputMode, Net, RNNMode
from ..checks.arrays import contiguous_all, in_axes_of_caller, on_device, time_major_of
from ..checks.attributes import REQUIRED, check_bool, check_choice, check_integer, named
from ..checks.nets import zero_states
from ..driver.reserve import Note, check_reserve, check_size, make_host_reserved, reserved_engine
from ..driver.signatures import Arguments, ByName, Record, Recorded, by_signature, run_once
from ..weights.packed import NetArguments, PackedParams, ResolvedNet, resolve_net
from .engines import time_at_first_use

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..cudnn.descriptors import CudnnCall

Engine: TypeAlias = Literal[
    "auto", "cudnn", "cupy", "cudnn_small_h", "cudnn_persist_dynamic", "cudnn_persist_static"
]

# The environment variable with the engine that "auto" uses for CuPy arrays.
ENGINE_VARIABLE = "CUPYRNN_ENGINE"
_ENGINES = get_args(Engine)


def _problem(call: PackedCall) -> CudnnCall:
    """Return a call as the cuDNN wrapper takes it, with the algorithm of its engine."""
    from ..cudnn.descriptors import CudnnCall

    return CudnnCall(call.attributes, call.run.sizes, call.engine)


def _engine(op: str, engine: str, call: PackedCall, input: Array) -> Any:
    """Return the engine of a call: "numpy", "cupy", or one of cuDNN's."""
    check_choice(op, "engine", engine, _ENGINES)
    run, xp = call.run, call.run.xp
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
    from ..cudnn import engine as _cudnn

    chosen = "cudnn" if engine == "auto" else engine
    reasons = (
        (run.dtype.kind == "c", "cuDNN does not support complex arrays"),
        (run.resets is not None, "cuDNN does not support resets"),
        (run.reverse, "cuDNN does not run one direction in reverse"),
        (run.every is not None, "cuDNN keeps all that its gradient needs, whatever save is"),
    )
    reason = next((why for so, why in reasons if so), None)
    if reason is None:
        with on_device(xp, input):
            problem = _problem(call._replace(engine=chosen))
            reason = _cudnn.why_not(problem, input.dtype.name, run.lengths)
            if reason is None and engine == "auto":
                time_at_first_use((cudnn_rnn, cudnn_rnn_backprop), problem, run.dtype)
                chosen = _cudnn.fastest(problem, run.dtype, run.lengths)
    if reason is None:
        return chosen
    if engine != "auto":
        raise RuntimeError(f"{op}: {source} is {engine!r}, but {reason}")
    if isinstance(reason, _cudnn.Fault):
        _cudnn.warn_once(op, reason)
    return "cupy"


def _check(
    op: str,
    states: tuple[Any, Any, Any],
    net: ResolvedNet,
    run: RunArguments,
    engine: str,
    backward: dict[str, Any] | None = None,
) -> PackedCall:
    """
    Check every argument of a call and choose the engine.

    `states` are input, input_h and input_c; `backward`, by name, what only the gradient takes.
    """
    of_gradient = dict(backward or {})
    reserved = of_gradient.pop("host_reserved", None)
    checked, found = check_packed(op, states, net, run, of_gradient)
    if backward is not None:
        check_choice(op, "engine", engine, _ENGINES)
    return _call(op, checked, found, (engine, reserved), states[0])


def _call(op: str, run: CheckedCall, net: Net, asked: tuple[str, Any], input: Array) -> PackedCall:
    """Return a call with the engine that was asked for, and what host_reserved says of it."""
    engine, reserved = asked
    call = PackedCall.of(run, net)
    if reserved is not None:
        expected = make_host_reserved("numpy", call.fingerprint(), None)
        engine, every = reserved_engine(op, run.xp, engine, reserved, expected)
        call = call.with_every(every)
    return call._replace(engine=_engine(op, engine, call, input))


def _of_call(
    op: str, call: PackedCall, engine: str, arguments: Mapping[str, Any]
) -> tuple[PackedCall, Array, Any, Any]:
    """Return a call with its own lengths and seeds, its parameters and its states."""
    run, params, input = call.run, arguments["params"], arguments["input"]
    if "seed" in arguments and run.sizes.drops(call.net.L):
        seed, seed2 = (check_integer(op, name, arguments[name]) for name in ("seed", "seed2"))
        run = run._replace(sizes=run.sizes._replace(seed=seed, seed2=seed2))
    run = with_call_sequences(op, run, arguments["sequence_lengths"], arguments["resets"])
    if run is not call.run:
        asked = engine, arguments.get("host_reserved")
        call = _call(op, run, call.attributes, asked, input)
    params = params.params if isinstance(params, PackedParams) else params
    states = [arguments[name] for name in ("input_h", "input_c")[: len(call.form.States._fields)]]
    batch, make = (run.sizes.B, run.time_major), partial(run.xp.zeros, dtype=input.dtype)
    h, *c = zero_states(call.net, states, batch, make)
    return call, params, h, c[0] if c else None


def _run(
    op: str, call: PackedCall, engine: str, arguments: Mapping[str, Any]
) -> CudnnRNNOutputs[Any]:
    """cudnn_rnn after its checks, by cuDNN if it supports the lengths."""
    xp, dtype, major, input = call.run.xp, call.run.dtype, call.run.time_major, arguments["input"]
    with on_device(xp, input):
        call, params, h, c = _of_call(op, call, engine, arguments)
        if not call.by_cudnn:
            once = partial(_describe, call, True)
            return run_once(op, once, arguments)  # type: ignore[no-any-return]
        from ..cudnn import engine as _cudnn

        x, h, c = time_major_of(xp, dtype, major, (input, h, c))
        x, h, c, params = contiguous_all(xp, (x, h, c, params))
        inputs = _cudnn.Inputs(x, h, c, params, call.run.lengths)
        *outputs, reserve_space = _cudnn.forward(_problem(call), inputs)
        is_training = call.run.sizes.is_training
        if not is_training:
            reserve_space = xp.zeros((), dtype)
        host_reserved = call.host_reserved.copy() if is_training else np.zeros((), np.int8)
        returned = [in_axes_of_caller(xp, a, major, dtype) for a in outputs]
        return CudnnRNNOutputs._make([*returned, reserve_space, host_reserved])


def _run_backprop(
    op: str, call: PackedCall, wanted: tuple[str, bool, str], arguments: Mapping[str, Any]
) -> CudnnRNNGrads[Any]:
    """cudnn_rnn_backprop after its checks; `wanted` has the engine and the wanted gradients."""
    xp, dtype, major, input = call.run.xp, call.run.dtype, call.run.time_major, arguments["input"]
    engine, of_input, weight_gradients = wanted
    reserve_space, output = arguments["reserve_space"], arguments["output"]
    dy, dh, dc = (arguments[f"output{name}_backprop"] for name in ("", "_h", "_c"))
    with on_device(xp, input):
        call, params, h, c = _of_call(op, call, engine, arguments)
        _check_by_cudnn(op, call, output, weight_gradients)
        call = _with_reserve(op, call, reserve_space)
        if not call.by_cudnn:
            once = partial(_describe, call, False)
            return run_once(op, once, arguments)  # type: ignore[no-any-return]
        from ..cudnn import engine as _cudnn

        arrays = input, h, c, output, dy, dh, dc if call.attributes.rnn_mode == "lstm" else None
        x, h, c, y, dy, dh, dc = time_major_of(xp, dtype, major, arrays)
        x, h, c, params = contiguous_all(xp, (x, h, c, params))
        inputs = _cudnn.Inputs(x, h, c, params, call.run.lengths)
        y, dy, dh, dc, saved = contiguous_all(xp, (y, dy, dh, dc, reserve_space))
        grads = _cudnn.backward(_problem(call), inputs, y, (dy, dh, dc), saved)
        input_grad = in_axes_of_caller(xp, grads[0], major, dtype) if of_input else None
        of_first: list[Any] = [in_axes_of_caller(xp, g, major, dtype) for g in grads[1:3]]
        return CudnnRNNGrads._make([input_grad, *of_first, grads[3]])


def _check_by_cudnn(op: str, call: PackedCall, output: Any, weight_gradients: str) -> None:
    """Check the conditions that only cuDNN has for a gradient."""
    if call.by_cudnn and weight_gradients != "sum":
        raise ValueError(
            f"{op}: weight_gradients is {weight_gradients!r}, expected 'sum' with a reserve_space"
            " of cuDNN; use engine='cupy' in cudnn_rnn for the others"
        )
    if call.by_cudnn and output is None:
        raise TypeError(f"{op}: output is None, which cuDNN reads, expected a cupy.ndarray")


def _with_reserve(op: str, call: PackedCall, reserve_space: Array) -> PackedCall:
    """Check that reserve_space belongs to a call; return the call with what it keeps."""
    run = call.run
    if not call.by_cudnn:
        note = check_reserve(op, run.xp, reserve_space, call.layout(), call.fingerprint)
        return call if note is None else call.with_every(note.every)
    from ..cudnn import engine as _cudnn

    problem = _problem(call)
    check_size(op, reserve_space, _cudnn.reserve_size(problem, run.dtype.name, run.lengths))
    return call


def _record(call: PackedCall, engine: str, noted: bool, run_by_name: ByName) -> Record:
    """Return what records a call, unless cuDNN computes some calls of its signature."""
    if call.by_cudnn:
        return run_by_name.record

    def recorded(arguments: Arguments) -> Recorded:
        is_of_engine = _is_of_engine(call, engine, arguments)
        return _describe(call, noted, arguments) if is_of_engine else run_by_name

    return recorded


def _describe(call: PackedCall, noted: bool, arguments: Arguments) -> Recorded:
    """Record cudnn_rnn or its gradient; `noted` says whether reserve_space has a note to check."""
    from ..driver import packed_layouts  # imported here, because it imports the kernels
    from ..driver.recording import record

    by_name, of, every = arguments.by_name, call.reserved_of, call.run.every
    note = Note(every, call.number) if noted and every is not None else None
    packed = packed_layouts.PackedNet(call.layout(note), call.attributes, call.has_single)
    if "reserve_space" in by_name:
        args = packed, bool(by_name.get("input_gradient", True))  # tensors' calls omit defaults
        return record(packed_layouts.cudnn_rnn_backprop, arguments, *args, reserved_of=of)
    if not call.run.sizes.is_training:
        return record(packed_layouts.cudnn_rnn, arguments, packed, False, np.zeros((), np.int8))
    of_training = packed, True, call.host_reserved
    return record(packed_layouts.cudnn_rnn, arguments, *of_training, reserved_of=of)


def _is_of_engine(call: PackedCall, engine: str, arguments: Arguments) -> bool:
    """Return whether all calls of this call's signature have its engine."""
    if arguments.length is not None or arguments.by_name.get("host_reserved") is not None:
        return True
    # cuDNN supports some lengths only.
    equal = call._replace(run=call.run._replace(lengths=None))
    chosen = _engine(arguments.op, engine, equal, arguments.by_name["input"])
    return bool(chosen == call.engine)


@by_signature
def cudnn_rnn(
    input: ArrayT,
    input_h: AnyArray | None = None,
    input_c: AnyArray | None = None,
    params: AnyArray | PackedParams = REQUIRED,
    *,
    sequence_lengths: Lengths | None = None,
    resets: Resets | None = None,
    reverse: bool = False,
    rnn_mode: RNNMode | None = None,
    input_mode: InputMode | None = None,
    direction: Direction | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int | None = None,
    recurrent_activation: RecurrentActivation | None = None,
    is_training: bool = True,
    save: Save = "all",
    time_major: bool = True,
    engine: Engine = "auto",
) -> CudnnRNNOutputs[ArrayT]:
    """
    Run a recurrent net of several layers, as TensorFlow's CudnnRNN, CudnnRNNV2 and CudnnRNNV3 do.

    These are the steps of the cells. x is the input of the layer; every product has its own bias::

        lstm      i, f, o = sigmoid(W_i x + R_i h + b_i), ...
                  c = i*tanh(W_c x + R_c h + b_c) + f*c
                  h = o*tanh(c), or W_p (o*tanh(c)) with a projection
        gru       r, u = sigmoid(W_r x + R_r h + b_r), ...
                  h = (1-u)*tanh(W_c x + b_wc + r*(R_c h + b_rc)) + u*h
        rnn_tanh  h = tanh(W x + R h + b)
        rnn_relu  h = max(W x + R h + b, 0)

    input is [T, B, I], input_h [L*D, B, P], input_c [L*D, B, H] and output [T, B, D*P]. States that
    are None are zero, if params is a PackedParams. By default, the net is an LSTM in one direction.
    It has no cell_clip, and no forget_bias but the one in its biases.

    Parameters
    ----------
    input : [T, B, I]
        The sequences, in float16, bfloat16, float32 or float64. All other arrays have the same
        dtype. Half formats are computed in float32. The imaginary parts of a complex64 or
        complex128 array are tangents, see `cupyrnn.jvp`. They must be so small that their squares
        vanish beside 1; other complex data are refused. Real arrays of the same precision beside a
        complex one have no tangents.
    input_h : [L*D, B, P], optional
        h before the first step. Zeros by default if params is a PackedParams. The order is
        layer 0 forward, layer 0 backward, layer 1 forward and so on. P is num_proj, or H without a
        projection. The shape of input_h determines L.
    input_c : [L*D, B, H], optional
        The cell states of an LSTM before the first step. Zeros by default. The other cells
        ignore it.
    params : [params_size] or PackedParams
        All weights and biases, packed as `cudnn_rnn_params_layout` says. `init_params` returns a
        PackedParams, as do the converters of `cupyrnn.weights`. It also determines rnn_mode,
        input_mode, direction, num_proj and recurrent_activation; an argument that contradicts it is
        an error.
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence, from 0 to T, in any order. T by default. Steps past the end of
        a sequence are not read, and output is zero there. The backward direction begins at the end
        of each sequence. A sequence of length 0 returns its initial states.
    resets : [T, B] booleans on the host, optional
        Marks the steps at which an episode or a packed document begins. No state passes between a
        marked step t and step t-1. The forward direction enters step t with zero states, and the
        backward direction enters step t-1 with zero states. [B, T] if time_major is False. cuDNN
        does not have resets.
    reverse : bool
        Whether every layer runs backwards, from the last step of each sequence to its first. Only
        for one direction: it must be False if direction is "bidirectional". cuDNN does not have it.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell; "lstm" by default.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        "linear_input" by default. With "skip_input" the first layer has no W, and x, of size H, is
        added to every gate. "auto_select" means "skip_input" if I equals H, else "linear_input".
    direction : {"unidirectional", "bidirectional"}
        D is 1, the default, or 2.
    dropout : float
        The fraction, from 0 to 1, of the values between layers that is set to zero in training. The
        other values are divided by 1 - dropout. It has no effect on a net of one layer.
    seed, seed2 : int
        The seeds of the dropout masks. The same two integers give the same masks, and so do the
        defaults: change one of them from call to call.
    num_proj : int
        P, the size to which an LSTM projects h. The default is 0: no projection.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        The activation of the gates i, f and o, or r and u. The default is the sigmoid, as in
        TensorFlow. The second is the hard sigmoid of Keras 1 and 2, TensorFlow 1 and ONNX,
        clip(0.2*z + 0.5, 0, 1). The third is Keras 3's and PyTorch's, clip(z/6 + 0.5, 0, 1).
        The configuration of a model says which of them it was trained with; its arrays do not.
        cuDNN has the sigmoid only.
    is_training : bool
        Whether to apply dropout and to keep what the backward pass needs.
    save : {"all", "states"} or int
        What to keep for the gradient. "all" keeps all that the steps compute. "states" keeps their
        states only, h and for LSTMs c. An integer k keeps the states of every k-th step. The
        gradient computes the rest again, in blocks of steps. Layers below the last keep h of every
        step. cuDNN always keeps all.
    time_major : bool
        If False, input and output are [B, T, ·] and the states [B, L*D, ·].
    engine : str
        What computes with CuPy arrays. "cupy" is this package's kernels. "cudnn", "cudnn_small_h",
        "cudnn_persist_static" and "cudnn_persist_dynamic" are algorithms of cuDNN. The last three
        keep the recurrent matrix on the chip, and support few calls: `cudnn_rnn_engine` raises an
        error for a call that they do not support. "auto" is the engine that the environment
        variable CUPYRNN_ENGINE names. If that is not set, it is the engine that was the fastest
        near these sizes. Where none was timed, it is "cupy" if one launch was timed as the fastest
        (see `cupyrnn.device.recurrence_kernels`), else "cudnn" if its library is found and supports
        the call, else "cupy". If the library is found but fails, a RuntimeWarning says so once.
        With NumPy arrays only "auto" is accepted.

    Returns
    -------
    CudnnRNNOutputs
        output [T, B, D*P] is h of the last layer at every step. output_h [L*D, B, P] and output_c
        [L*D, B, H] are the states after the last step of each sequence. reserve_space, a vector,
        and host_reserved, [5] or [13] int8 on the host, are for `cudnn_rnn_backprop`. output_c is a
        scalar zero for cells without it. The last two are scalars if is_training is False.

    Raises
    ------
    TypeError
        An argument is not an array, or its module, device or dtype differs from input's. An
        attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.
    RuntimeError
        engine is one of cuDNN's, but its library is not found or does not support the call.

    See Also
    --------
    cudnn_rnn_backprop : The gradient of every input.
    cupyrnn.weights : Parameters of other frameworks' models.
    init_params : Initial parameters.

    References
    ----------
    .. [1] NVIDIA, cuDNN documentation, cudnnRNNMode_t (the equations).

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> net = cupyrnn.init_params(num_layers=2, num_units=3, input_size=2, dtype="float64")
    >>> x = np.ones((4, 1, 2))
    >>> out = cupyrnn.cudnn_rnn(x, params=net)
    >>> out.output.shape, out.output_h.shape
    ((4, 1, 3), (2, 1, 3))

    The next steps begin with the states after the last one.

    >>> more = cupyrnn.cudnn_rnn(x, out.output_h, out.output_c, net)

    A vector of parameters has no sizes: pass states with it.

    >>> h = c = np.zeros((1, 1, 3))
    >>> params = np.full(cupyrnn.cudnn_rnn_params_size(1, 3, 2), 0.1)
    >>> cupyrnn.cudnn_rnn(x, h, c, params).output[:, 0, 0].round(4)
    array([0.1339, 0.2259, 0.2881, 0.33  ])
    """
    op = "cudnn_rnn"
    attributes = NetArguments(rnn_mode, input_mode, direction, num_proj, recurrent_activation)
    extent = sequence_lengths, resets
    run = RunArguments(*extent, dropout, is_training, time_major, seed, seed2, save, reverse)
    resolved = resolve_net(op, params, attributes)
    call = _check(op, (input, input_h, input_c), resolved, run, engine)
    run_by_name = ByName(partial(_run, op, call, engine))
    return _record(call, engine, True, run_by_name)  # type: ignore[return-value]


@named
def cudnn_rnn_engine(
    input: Array,
    input_h: Array | None = None,
    input_c: Array | None = None,
    params: Array | PackedParams = REQUIRED,
    *,
    sequence_lengths: Lengths | None = None,
    resets: Resets | None = None,
    reverse: bool = False,
    rnn_mode: RNNMode | None = None,
    input_mode: InputMode | None = None,
    direction: Direction | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int | None = None,
    recurrent_activation: RecurrentActivation | None = None,
    is_training: bool = True,
    save: Save = "all",
    time_major: bool = True,
    engine: Engine = "auto",
) -> str:
    """
    Return which engine would compute a call of `cudnn_rnn` with these arguments.

    Parameters
    ----------
    input : [T, B, I]
        The sequences. Of this and the next three arrays only shape, dtype and device count.
    input_h : [L*D, B, P], optional
        h before the first step. Zeros by default if params is a PackedParams.
    input_c : [L*D, B, H], optional
        The cell states of an LSTM before the first step. Zeros by default. The other cells
        ignore it.
    params : [params_size] or PackedParams
        All weights and biases. A PackedParams also determines rnn_mode, input_mode, direction,
        num_proj and recurrent_activation.
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence.
    resets : [T, B] booleans on the host, optional
        Marks the steps at which a sequence begins anew. [B, T] if time_major is False. cuDNN does
        not have resets.
    reverse : bool
        Whether every layer runs backwards. cuDNN does not have it.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell; "lstm" by default.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        "linear_input" by default. With "skip_input" the first layer has no W. "auto_select" means
        "skip_input" if I equals H, else "linear_input".
    direction : {"unidirectional", "bidirectional"}
        D is 1, the default, or 2.
    dropout : float
        The fraction, from 0 to 1, of the values between layers that is set to zero in training.
    seed, seed2 : int
        The seeds of the dropout masks.
    num_proj : int
        P, the size to which an LSTM projects h. The default is 0: no projection.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        The activation of the gates. cuDNN has the sigmoid only.
    is_training : bool
        Whether to apply dropout and to keep what the backward pass needs.
    save : {"all", "states"} or int
        What to keep for the gradient. cuDNN always keeps all.
    time_major : bool
        If False, input is [B, T, I] and the states [B, L*D, ·].
    engine : str
        The argument of `cudnn_rnn`.

    Returns
    -------
    str
        "numpy" for NumPy arrays, else one of the engines of `cudnn_rnn` but "auto".

    Raises
    ------
    TypeError
        An argument is not an array, or its module, device or dtype differs from input's. An
        attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range.
    RuntimeError
        engine is one of cuDNN's, but its library is not found or does not support the call.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> net = cupyrnn.init_params(num_layers=2, num_units=3, input_size=2, dtype="float64")
    >>> cupyrnn.cudnn_rnn_engine(np.ones((4, 1, 2)), params=net)
    'numpy'
    """
    op, extent = "cudnn_rnn_engine", (sequence_lengths, resets)
    attributes = NetArguments(rnn_mode, input_mode, direction, num_proj, recurrent_activation)
    run = RunArguments(*extent, dropout, is_training, time_major, seed, seed2, save, reverse)
    resolved = resolve_net(op, params, attributes)
    chosen: Any = _check(op, (input, input_h, input_c), resolved, run, engine).engine
    return chosen  # type: ignore[no-any-return]


@by_signature
def cudnn_rnn_backprop(
    input: ArrayT,
    input_h: AnyArray | None = None,
    input_c: AnyArray | None = None,
    params: AnyArray | PackedParams = REQUIRED,
    output: AnyArray | None = None,
    output_h: AnyArray | None = None,
    output_c: AnyArray | None = None,
    output_backprop: AnyArray | None = None,
    output_h_backprop: AnyArray | None = None,
    output_c_backprop: AnyArray | None = None,
    reserve_space: AnyArray = REQUIRED,
    *,
    host_reserved: NDArray[np.int8] | None = None,
    sequence_lengths: Lengths | None = None,
    resets: Resets | None = None,
    reverse: bool = False,
    rnn_mode: RNNMode | None = None,
    input_mode: InputMode | None = None,
    direction: Direction | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    seed2: int = 0,
    num_proj: int | None = None,
    recurrent_activation: RecurrentActivation | None = None,
    time_major: bool = True,
    input_gradient: bool = True,
    weight_gradients: WeightGradients = "sum",
    engine: Engine = "auto",
) -> CudnnRNNGrads[ArrayT]:
    """
    Return the gradient of every input of `cudnn_rnn`, as CudnnRNNBackprop, V2 and V3 do.

    ::

        S = sum(output*output_backprop) + sum(output_h*output_h_backprop)
            + sum(output_c*output_c_backprop)
        input_backprop, input_h_backprop, input_c_backprop, params_backprop =
            dS/dinput, dS/dinput_h, dS/dinput_c, dS/dparams

    output_backprop is [T, B, D*P], output_h_backprop [L*D, B, P] and output_c_backprop
    [L*D, B, H]. Each of them that is None is zero, and so is each state if params is a
    PackedParams.

    The call changes none of its arguments, so a second call with them returns the same results.

    Parameters
    ----------
    input : [T, B, I]
        The sequences of the forward call. All other arrays have the same dtype. Complex arrays hold
        values and tangents, see `cupyrnn.jvp`.
    input_h : [L*D, B, P], optional
        h before the first step. Zeros by default if params is a PackedParams.
    input_c : [L*D, B, H], optional
        The cell states of an LSTM before the first step. Zeros by default. The other cells
        ignore it.
    params : [params_size] or PackedParams
        All weights and biases, packed as `cudnn_rnn_params_layout` says. A PackedParams also
        determines rnn_mode, input_mode, direction, num_proj and recurrent_activation.
    output : [T, B, D*P], optional
        The output of the forward call. Only cuDNN reads it; otherwise it may be None.
    output_h, output_c : [L*D, B, P] and [L*D, B, H], optional
        The states that the forward call returned. Their values are not read.
    output_backprop : [T, B, D*P], optional
        The gradient of output. It is not read past the end of a sequence. Zeros by default,
        here and in the next arguments.
    output_h_backprop : [L*D, B, P], optional
        The gradient of output_h.
    output_c_backprop : [L*D, B, H], optional
        The gradient of output_c. The other cells ignore it.
    reserve_space : vector
        The reserve_space of the forward call. It also holds the dropout masks.
    host_reserved : [5] or [13] int8 on the host, optional
        The host_reserved of the forward call. It identifies the engine, sizes, attributes, lengths
        and resets that reserve_space belongs to. All of these are checked. Without it only the size
        of reserve_space is checked, and `engine` must be as in the forward call.
    sequence_lengths : [B] integers on the host, optional
        The length of each sequence in the forward call. T by default. input_backprop is zero past
        the end of a sequence.
    resets : [T, B] booleans on the host, optional
        The marks of the forward call. [B, T] if time_major is False.
    reverse : bool
        Whether the layers of the forward call ran backwards.
    rnn_mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"}
        The cell; "lstm" by default.
    input_mode : {"linear_input", "skip_input", "auto_select"}
        "linear_input" by default. With "skip_input" the first layer has no W. "auto_select" means
        "skip_input" if I equals H, else "linear_input".
    direction : {"unidirectional", "bidirectional"}
        D is 1, the default, or 2.
    dropout : float
        The fraction of the values between layers that the forward call set to zero.
    seed, seed2 : int
        Not used, since reserve_space holds the masks.
    num_proj : int
        P, the size to which an LSTM projects h. The default is 0: no projection.
    recurrent_activation : {"sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"}
        The activation of the gates in the forward call. The slope of a hard sigmoid is 0.2 or 1/6
        where the gate is between 0 and 1, and 0 elsewhere. It replaces i*(1-i) and the like.
    time_major : bool
        If False, input, output and their gradients are [B, T, ·], and the states and their
        gradients [B, L*D, ·].
    input_gradient : bool
        If False, input_backprop is None; a layer that Numba compiles saves its product.
    weight_gradients : {"sum", "examples", "norms", "none"}
        What params_backprop is. "sum" is the gradient of params, [params_size]. "examples" is the
        gradient for each example of the batch, [B, params_size]. "norms" is the Euclidean norm of
        each of these, [B], in float32 for float16 and bfloat16. "none" is None. cuDNN computes the
        sum only.
    engine : str
        What computes with CuPy arrays, as in `cudnn_rnn`. With host_reserved "auto" means the
        engine of the forward call, and another engine is an error.

    Returns
    -------
    CudnnRNNGrads
        input_backprop [T, B, I], input_h_backprop [L*D, B, P], input_c_backprop [L*D, B, H] and
        params_backprop, which `weight_gradients` describes. input_c_backprop is a scalar zero for
        cells without it.

    Raises
    ------
    TypeError
        An argument is not an array, or its module, device or dtype differs from input's. An
        attribute has a wrong type.
    ValueError
        A shape does not fit the others, or an attribute is out of range. reserve_space does not
        have the size that the forward call with these arguments returns.
    RuntimeError
        engine is one of cuDNN's, but its library is not found or does not support the call.

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
    attributes = NetArguments(rnn_mode, input_mode, direction, num_proj, recurrent_activation)
    extent = sequence_lengths, resets
    run = RunArguments(*extent, dropout, True, time_major, seed, seed2, reverse=reverse)
    of_gradient = {"output": output, "output_h": output_h, "output_c": output_c}
    of_gradient |= {"output_backprop": output_backprop, "output_h_backprop": output_h_backprop}
    of_gradient |= {"output_c_backprop": output_c_backprop, "reserve_space": reserve_space}
    resolved = resolve_net(op, params, attributes)
    checked = of_gradient | {"host_reserved": host_reserved}
    call = _check(op, (input, input_h, input_c), resolved, run, engine, checked)
    wanted: Any = engine, check_bool(op, "input_gradient", input_gradient), weight_gradients
    check_weight_gradients(op, weight_gradients)
    _check_by_cudnn(op, call, output, weight_gradients)
    run_by_name, noted = ByName(partial(_run_backprop, op, call, wanted)), call.run.every is None
    if not call.by_cudnn:
        call = _with_reserve(op, call, reserve_space)
    return _record(call, engine, noted, run_by_name)  # type: ignore[return-value]
