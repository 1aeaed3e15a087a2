"""`vjp`: call an op and keep what the gradient of the same call needs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, overload
from zlib import crc32

import numpy as np

from . import _ops
from ._ops import Schema
from ._typing import AnyArray, ArrayT, GRUGrads, LSTMGrads, Save
from .cells.block_forms import GRU_FORM, LSTM_FORM, default_clip
from .cells.contract import Attributes, States
from .cells.gradients import WeightGradients, check_weight_gradients
from .cells.gru import GRUOutputs
from .cells.lstm import LSTMOutputs, LSTMStates
from .checks.arrays import module_of, on_device
from .checks.attributes import check_bool, check_save, misfit, shown, type_shown
from .checks.block import check_block
from .checks.extent import Extent, Steps, check_extent
from .derivatives.traced import traceable
from .driver.recompute import keep
from .driver.signatures import by_signature
from .ops import block
from .ops.block import NAMES
from .ops.gru import block_gru_grad
from .ops.lstm import block_lstm_grad
from .ops.stacked_rnn import stacked_rnn

if TYPE_CHECKING:
    from ._typing import CudnnRNNGrads, CudnnRNNOutputs, StackedRNNGrads, StackedRNNOutputs
    from .onnx_node import OnnxGrads, OnnxOutputs

P = ParamSpec("P")
G = TypeVar("G")


# Arrays of at most this many bytes are compared completely.
_WHOLE = 16384
# The number of elements of a larger vector that are compared.
_ELEMENTS = 256


def _arrays_in(values: Any) -> list[Any]:
    """Return the NumPy arrays among arguments, and in their lists and tuples."""
    found = []
    for a in values:
        if isinstance(a, np.ndarray):
            found.append(a)
        elif isinstance(a, (tuple, list)):
            found += _arrays_in(a)
    return found


def _sample(a: Any) -> Any:
    """
    Return the bytes of a small array, or a checksum of some elements of a large one.

    The last element is among them, and at least one of each row, because writes often change whole
    rows.
    """
    if a.nbytes <= _WHOLE:
        return a.tobytes()
    step = a.shape[-1] - 1 if a.ndim > 1 else a.size // _ELEMENTS
    flat = a.reshape(-1) if a.flags.c_contiguous else a.flat
    return crc32(flat[:: -max(step, 1)].tobytes())


def _copy_of_lists(value: Any) -> Any:
    """Return a list and its lists as new lists, anything else as it is."""
    return [_copy_of_lists(a) for a in value] if isinstance(value, list) else value


def _clips(function: Any, arguments: dict[str, Any]) -> bool:
    """Return whether the cells of a call have a cell_clip."""
    return function is not stacked_rnn or arguments["weights"][0].form is LSTM_FORM


@traceable
def _keep(op: str, call: dict[str, Any], outputs: Any, every: int) -> list[Any]:
    """Return the states of every k-th step of a call, h first."""
    x, h = call["x"], outputs.h
    states = LSTMStates(h, outputs.cs) if hasattr(outputs, "cs") else States(h)
    xp = module_of(x)
    with on_device(xp, x):
        kept = keep(xp, states, _extent(op, call), every).states
        return [a for a in kept if a is not None]


def _extent(op: str, call: dict[str, Any]) -> Extent:
    """Return the extent of a call: the steps that it computes. Raw ops have only seq_len_max."""
    lengths = call["seq_len_max"], call.get("sequence_lengths")
    return check_extent(op, call["x"], *lengths, call.get("reverse", False), call.get("resets"))


def _from_states(form: Any, gradient: Any, gate_order: str | None = None) -> Any:
    """
    Return a function that computes a gradient from the saved states of a call.

    `gate_order` is the order of a raw op, which has no argument for it.
    """

    # functools.wraps gives it the name that errors show.
    @by_signature
    @functools.wraps(gradient, ("__name__",), ())
    def from_states(*, every: int, clips: bool, weight_gradients: str = "sum", **call: Any) -> Any:
        attributes = {n: call[n] for n in Attributes._fields if n in call}
        if gate_order is not None:
            attributes["gate_order"] = gate_order
        op, of = gradient.__name__, NAMES[form]
        names = "x", *of.states, *of.weights._fields
        inputs = {n: call[n] for n in names if n in call and n not in form.together}
        optional = {n: call[n] for n in (*form.together, *of.cotangents)}
        attributes_of_call = Attributes(**attributes)
        checked = check_block(
            op, form, inputs, optional, attributes_of_call, call.get("use_peephole")
        )
        steps = Steps(op, call["seq_len_max"], call.get("reverse", False))
        checked, again = checked._replace(steps=steps), checked.attributes
        if form is LSTM_FORM and not clips:
            checked = checked._replace(attributes=again._replace(cell_clip=None))
        return block.checked_from_states(checked, every, again)

    return from_states


def _raw(schema: Schema, forward: Any, gradient: Any, **others: Any) -> Schema:
    return schema._replace(forward=forward, gradient=gradient, by_example=False, **others)


@functools.cache
def _schemas() -> dict[Any, Schema]:
    """
    Return the schema of each op.

    Records with `from_states` let the pullback choose which outputs it keeps.
    """
    from . import raw_ops  # imported here because it is slow
    from .onnx_node import onnx_node_gradients, run_onnx_node

    lstm, icfo, ifco = (
        _from_states(LSTM_FORM, gradient, order)
        for gradient, order in (
            (block_lstm_grad, None),
            (raw_ops.BlockLSTMGrad, "icfo"),
            (raw_ops.BlockLSTMGradV2, "ifco"),
        )
    )
    results_v1 = _ops.CUDNN_RNN.results[:-1]  # without host_reserved
    schemas = (
        _ops.BLOCK_LSTM._replace(from_states=lstm),
        _ops.LSTM_BLOCK_CELL,
        _ops.BLOCK_GRU._replace(from_states=_from_states(GRU_FORM, block_gru_grad)),
        _ops.GRU_BLOCK_CELL,
        _ops.CUDNN_RNN,
        _ops.STACKED_RNN,
        Schema(
            run_onnx_node,
            onnx_node_gradients,
            inputs=("inputs",),
            outputs=("Y", "Y_h", "Y_c"),
            results=(),
            attributes="",
            cotangent="{}_grad",
            slope="{}",
            by_example=False,
        ),
        _raw(_ops.BLOCK_LSTM, raw_ops.BlockLSTM, raw_ops.BlockLSTMGrad, from_states=icfo),
        _raw(_ops.BLOCK_LSTM, raw_ops.BlockLSTMV2, raw_ops.BlockLSTMGradV2, from_states=ifco),
        _raw(_ops.CUDNN_RNN, raw_ops.CudnnRNN, raw_ops.CudnnRNNBackprop, results=results_v1),
        _raw(_ops.CUDNN_RNN, raw_ops.CudnnRNNV2, raw_ops.CudnnRNNBackpropV2),
        _raw(_ops.CUDNN_RNN, raw_ops.CudnnRNNV3, raw_ops.CudnnRNNBackpropV3),
    )
    return {schema.forward: schema for schema in schemas}


@functools.cache
def _defaults(function: Any) -> dict[str, Any]:
    """Return the defaults of an op's arguments, all in order."""
    import inspect  # imported here because it is slow

    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}


class Pullback(Generic[G]):
    """
    The gradient of one call of an op: a function of the gradients of the outputs.

    `vjp` returns it. It may be called several times.

    Attributes
    ----------
    names : tuple of str
        The names of its arguments, which are the gradients of the outputs.
    """

    _read_only: Sequence[Any] = ()  # of one that an error or an interrupt left unfinished

    def __init__(
        self, schema: Schema, arguments: dict[str, Any], outputs: Any, every: int | None = None
    ) -> None:
        self._schema, self.names = schema, schema.cotangents
        self.__name__ = f"pullback of {schema.name}"
        self._read_only = read_only = []
        self._like = self._clip = None
        self._from_states = every is not None
        if "cell_clip" in arguments and "cell_clip" not in schema.not_in_gradient:
            self._clip = arguments["cell_clip"]
            if self._clip is None and _clips(schema.forward, arguments):
                self._clip = default_clip(schema.name, arguments["gate_order"])
        arguments |= {n: _copy_of_lists(a) for n, a in arguments.items() if type(a) is list}
        self._inputs = _arrays_in(arguments.values())
        self._samples = [_sample(a) for a in self._inputs]
        reads: tuple[str, ...] = ()
        if every is not None:
            kept = _keep(schema.gradient.__name__, arguments, outputs, every)
            self._arguments = {**arguments, "kept": kept, "every": every}
            if type(outputs.h) is np.ndarray and np.may_share_memory(kept[0], outputs.h):
                reads = ("h",)  # the rest are copies
        else:
            reads = schema.results if schema.reads is None else schema.reads
            self._arguments = schema.gradient_arguments(arguments, outputs._asdict())
            self._arguments.pop("cell_clip", None)
            self._like = outputs.h if "d_h" in self.names else None
        for name in reads:
            a = getattr(outputs, name)
            if type(a) is np.ndarray:
                a.setflags(write=False)
                read_only.append(a)

    def __del__(self) -> None:
        for a in self._read_only:
            with contextlib.suppress(ValueError):  # an unpickled array in memory of bytes
                a.setflags(write=True)

    def __copy__(self) -> Pullback[G]:
        return self  # the first of two to be freed would make the outputs writable

    def __getstate__(self) -> dict[str, Any]:
        # A schema has functions without a name to pickle; the op itself has one.
        return self.__dict__ | {"_schema": self._schema.forward}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _schema=_schemas()[state["_schema"]])
        for a in self._read_only:
            a.setflags(write=False)

    def __repr__(self) -> str:
        return f"<{self.__name__}, of {', '.join(self.names)}>"

    def __call__(
        self,
        *args: NoReturn,
        through_clip: bool = False,
        weight_gradients: WeightGradients = "sum",
        **gradients: AnyArray | None,
    ) -> G:
        """
        Return the gradient of every input.

        Parameters
        ----------
        args : None
            There are no positional arguments.
        through_clip : bool
            If True, the gradient ignores cell_clip, like TensorFlow's. Otherwise it is the true
            gradient, which is zero where a cell state was clipped.
        weight_gradients : {"sum", "examples", "norms", "none"}
            What to return for the weights: their gradients; the gradients of each example of the
            batch, with a leading axis B; the norms [B] of these; or None. Only for `block_lstm`,
            `block_gru`, `cudnn_rnn` and `stacked_rnn`.
        gradients : array or None
            The gradients of the outputs, by the outputs' names or the gradient op's: ``h=...`` and
            ``h_grad=...`` are the same. A missing one, or None, stands for zeros.

        Returns
        -------
        named tuple
            What the gradient op returns. ``grads["w"]`` is the gradient of the argument w.

        Raises
        ------
        TypeError
            There is no gradient or one by position, a name is unknown, or the op does not have
            through_clip or weight_gradients; also the gradient op's own errors.
        ValueError
            An input of the call has changed since; also the gradient op's own errors.

        Examples
        --------
        >>> import numpy as np
        >>> import cupyrnn
        >>> x, h, params = np.ones((4, 1, 2)), np.zeros((1, 1, 3)), np.full(84, 0.1)
        >>> out, pullback = cupyrnn.vjp(cupyrnn.cudnn_rnn, x, h, h, params)
        >>> pullback.names
        ('output_backprop', 'output_h_backprop', 'output_c_backprop')
        >>> grads = pullback(output=np.ones((4, 1, 3)))  # or output_backprop=...
        >>> grads["input"][:, 0, 0].round(4)  # or grads.input_backprop
        array([0.2748, 0.2561, 0.208 , 0.1334])
        """
        if args:
            raise misfit(self, args, gradients)
        if not gradients or not gradients.keys() <= set(self.names):
            gradients = self._by_names(gradients)
        gradient: Any = self._schema.gradient
        clip: dict[str, Any] = {}
        if through_clip is not False:
            op = self.__name__
            if check_bool(op, "through_clip", through_clip) and self._clip is None:
                raise TypeError(f"{op}: through_clip is True, but the call has no cell_clip")
        if self._clip is not None and not through_clip:
            clip["cell_clip"] = self._clip
        if check_weight_gradients(self.__name__, weight_gradients) != "sum":
            if not self._schema.by_example:
                raise TypeError(
                    f"{self.__name__}: weight_gradients is {shown(weight_gradients)}, expected"
                    f" 'sum', the only one of {gradient.__name__}"
                )
            clip["weight_gradients"] = weight_gradients
        self._check_unchanged()
        wanted = dict.fromkeys(self.names) | gradients
        result: G
        if self._from_states:
            clips = clip.pop("cell_clip", None) is not None
            gradient, clip = self._schema.from_states, {**clip, "clips": clips}
        if self._like is not None and wanted["d_h"] is None:
            with on_device(module_of(self._like), self._like):
                wanted["d_h"] = zeros = self._like.copy()
                zeros.fill(0)
        result = gradient(**self._arguments, **wanted, **clip)
        return result

    @property
    def __signature__(self) -> Any:
        import inspect  # imported here because it is slow

        values = dict.fromkeys((*self.names, *self._schema.outputs))
        values |= {"through_clip": False, "weight_gradients": "sum"}
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Signature(
            [inspect.Parameter(n, kind, default=value) for n, value in values.items()]
        )

    def _by_names(self, gradients: dict[str, Any]) -> dict[str, Any]:
        """Return gradients by the gradient op's names; they may have the outputs' names."""
        outputs = self._schema.outputs
        names = dict(zip((*outputs, *self.names), (*self.names,) * 2, strict=True))
        if not gradients:
            words = ", ".join((*self.names, *outputs))
            raise TypeError(f"{self.__name__}: no gradient was passed, expected some of {words}")
        found: dict[str, Any] = {}
        said: dict[str, str] = {}
        for n, gradient in gradients.items():
            if n not in names:
                raise misfit(self, (), gradients)
            first = said.setdefault(names[n], n)
            if first != n:
                raise TypeError(f"{self.__name__}: {first} and {n} are the same, pass one of them")
            found[names[n]] = gradient
        return found

    def _check_unchanged(self) -> None:
        if [_sample(a) for a in self._inputs] != self._samples:
            raise ValueError(
                f"{self.__name__}: an input of the call has changed since; call pullback before you"
                " write into it, or write into a copy"
            )


@overload
def vjp(
    function: Callable[P, LSTMOutputs[ArrayT]], /, *args: P.args, **kwargs: P.kwargs
) -> tuple[LSTMOutputs[ArrayT], Pullback[LSTMGrads[ArrayT]]]: ...
@overload
def vjp(
    function: Callable[P, GRUOutputs[ArrayT]], /, *args: P.args, **kwargs: P.kwargs
) -> tuple[GRUOutputs[ArrayT], Pullback[GRUGrads[ArrayT]]]: ...
@overload
def vjp(
    function: Callable[..., LSTMOutputs[ArrayT]], x: ArrayT, /, *args: Any, save: Save, **more: Any
) -> tuple[LSTMOutputs[ArrayT], Pullback[LSTMGrads[ArrayT]]]: ...
@overload
def vjp(
    function: Callable[..., GRUOutputs[ArrayT]], x: ArrayT, /, *args: Any, save: Save, **more: Any
) -> tuple[GRUOutputs[ArrayT], Pullback[GRUGrads[ArrayT]]]: ...
@overload
def vjp(
    function: Callable[P, CudnnRNNOutputs[ArrayT]], /, *args: P.args, **kwargs: P.kwargs
) -> tuple[CudnnRNNOutputs[ArrayT], Pullback[CudnnRNNGrads[ArrayT]]]: ...
@overload
def vjp(
    function: Callable[P, StackedRNNOutputs[ArrayT]], /, *args: P.args, **kwargs: P.kwargs
) -> tuple[StackedRNNOutputs[ArrayT], Pullback[StackedRNNGrads[ArrayT]]]: ...
@overload
def vjp(
    function: Callable[P, OnnxOutputs], /, *args: P.args, **kwargs: P.kwargs
) -> tuple[OnnxOutputs, Pullback[OnnxGrads]]: ...
def vjp(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, Pullback[Any]]:
    """
    Return an op's outputs and a function that computes the gradients of its inputs.

    ::

        outputs, pullback = cupyrnn.vjp(cupyrnn.block_lstm, x, cs_prev, h_prev, w, b)
        grads = pullback(h_grad=h_grad)

    `vjp` calls the forward op. The function that it returns calls the op's gradient
    (`block_lstm_grad`, `lstm_block_cell_backward`, `block_gru_grad`, `gru_block_cell_backward`,
    `cudnn_rnn_backprop` or `stacked_rnn_backprop`) with the same arguments. So you cannot forget
    lengths, resets, gate order, clip or dropout in the second call.

    Parameters
    ----------
    function : callable
        One of `block_lstm`, `lstm_block_cell`, `block_gru`, `gru_block_cell`, `cudnn_rnn`,
        `stacked_rnn`, `run_onnx_node` and of `raw_ops` BlockLSTM, BlockLSTMV2, CudnnRNN,
        CudnnRNNV2 and CudnnRNNV3.
    args : tuple
        Its arguments.
    kwargs : dict
        Its keyword arguments. For `block_lstm`, `block_gru`, BlockLSTM and BlockLSTMV2 also `save`,
        as in `cudnn_rnn` and `stacked_rnn`: "all" (the default), "states" or an integer k. The
        pullback keeps all outputs, only h and cs of each step (h of a GRU), or only h and cs of
        every k-th step.

    Returns
    -------
    outputs : named tuple
        What the function returns.
    pullback : callable
        Takes the gradients of the outputs as keyword arguments, by the outputs' names (``h=...``)
        or the gradient op's: cs_grad and h_grad for LSTMs, d_h for GRUs, output_backprop,
        output_h_backprop and output_c_backprop for `cudnn_rnn` and `stacked_rnn`, Y_grad, Y_h_grad
        and Y_c_grad for `run_onnx_node`. A missing one stands for zeros. Returns the gradient op's
        named tuple, whose items can be read by the names of the op's arguments:
        ``grads["w"]``. ``pullback.names`` lists the gradient op's names.

    Raises
    ------
    TypeError
        The function is not one of those above, or save is neither a string nor an integer. For your
        own functions use `jvp`.
    ValueError
        is_training is False, so nothing is kept for the gradient, or save is out of range.

    See Also
    --------
    jvp : The derivative of any function along a direction; the function may call a pullback.

    Notes
    -----
    **Clip.** The gradient is the true one: it is zero where cs reached cell_clip, which is 3 by
    default with the gate order "icfo". ``pullback(h_grad=..., through_clip=True)`` ignores the
    clip. So do TensorFlow, the gradient ops of this package without cell_clip, and the functions of
    `raw_ops`.

    **Memory.** The pullback keeps the arrays of the call and its outputs, without a copy, until it
    is freed. Do not write into them before you call it. NumPy outputs that the gradient reads are
    read-only while the pullback exists: write into a copy, or delete the pullback first. These are
    all outputs of the block ops; `output` and the states of a net stay writable. A changed input
    raises a ValueError: NumPy arrays up to 16 kB are compared completely, larger ones by one
    element of each row. Changes of CuPy arrays are not detected.

    With `save` the pullback does not need the outputs: delete them to free their memory. The
    pullback then recomputes the gates, in blocks of steps; the gradients are equal except for
    rounding. With ``weight_gradients="examples"`` or "norms" it recomputes the gates of all steps
    at once.

    Examples
    --------
    >>> import numpy as np
    >>> import cupyrnn
    >>> x, cs, h = np.ones((4, 2, 2)), np.zeros((2, 3)), np.zeros((2, 3))
    >>> w, b = np.full((5, 12), 0.1), np.zeros(12)
    >>> out, pullback = cupyrnn.vjp(
    ...     cupyrnn.block_lstm, x, cs, h, w, b, sequence_lengths=[4, 1], cell_clip=0
    ... )
    >>> grads = pullback(h_grad=np.ones((4, 2, 3)))
    >>> grads.x_grad[:, 1, 0].round(4)
    array([0.1021, 0.    , 0.    , 0.    ])

    A long sequence in little memory: the pullback keeps the states of every hundredth step.

    >>> x = np.ones((999, 2, 2))
    >>> out, pullback = cupyrnn.vjp(cupyrnn.block_lstm, x, cs, h, w, b, save=100)
    >>> del out
    >>> pullback(h_grad=np.ones((999, 2, 3))).x_grad[::333, 0, 0].round(4)
    array([0.647 , 0.5852, 0.5852])
    """
    op = "vjp"
    try:
        schema = _schemas().get(function)
    except TypeError:  # not hashable
        schema = None
    if isinstance(function, tuple) and hasattr(function, "_fields"):
        raise TypeError(
            f"{op}: function is {type_shown(function)}, the result of a call, expected the function"
            " and its arguments: vjp(cupyrnn.block_lstm, x, ...)"
        )
    if schema is None:
        names = [known.name for known in _schemas().values()]
        raise TypeError(
            f"{op}: function is {shown(function)}, expected one of {', '.join(names)}; for other"
            " functions use jvp"
        )
    every = None
    if schema.from_states is not None:
        every = check_save(op, kwargs.pop("save", "all"))
    outputs = function(*args, **kwargs)
    defaults = _defaults(function)
    arguments = defaults | dict(zip(defaults, args, strict=False)) | kwargs
    if arguments.get("use_peephole", True) is None and "name" in arguments:
        arguments["use_peephole"] = False  # a raw op accepts None, but its gradient does not
    if not arguments.get("is_training", True):
        raise ValueError(
            f"{op}: is_training is {shown(arguments['is_training'])}, expected True: otherwise"
            f" {function.__name__} keeps nothing for its gradient"
        )
    return outputs, Pullback(schema, arguments, outputs, every)
