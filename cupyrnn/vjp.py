"""An op and the gradient of the same call: `vjp`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from . import raw_ops
from ._arrays import check_bool, module_of, on_device, shown
from ._block import default_clip
from .cudnn_rnn import cudnn_rnn, cudnn_rnn_backprop
from .gru import block_gru, block_gru_grad, gru_block_cell, gru_block_cell_backward
from .lstm import block_lstm, block_lstm_grad, lstm_block_cell, lstm_block_cell_backward
from .onnx_node import onnx_node_gradients, run_onnx_node
from .stacked_rnn import stacked_rnn, stacked_rnn_backprop

if TYPE_CHECKING:
    from typing import ParamSpec

    from ._results import CudnnRNNGrads, CudnnRNNOutputs, GRUGrads, LSTMGrads
    from ._typing import AnyArray, ArrayT
    from .cells.gru import GRUOutputs
    from .cells.lstm import LSTMOutputs
    from .onnx_node import OnnxGrads, OnnxOutputs
    from .stacked_rnn import StackedRNNGrads, StackedRNNOutputs

    P = ParamSpec("P")

G = TypeVar("G")
R = TypeVar("R")

# The op that has the gradients of all inputs of another one. Their arguments have the same names,
# and so have the outputs that it is given.
_GRADIENTS: dict[Any, Callable[..., Any]] = {
    block_lstm: block_lstm_grad,
    lstm_block_cell: lstm_block_cell_backward,
    block_gru: block_gru_grad,
    gru_block_cell: gru_block_cell_backward,
    cudnn_rnn: cudnn_rnn_backprop,
    stacked_rnn: stacked_rnn_backprop,
    run_onnx_node: onnx_node_gradients,
    raw_ops.BlockLSTM: raw_ops.BlockLSTMGrad,
    raw_ops.BlockLSTMV2: raw_ops.BlockLSTMGradV2,
    raw_ops.CudnnRNN: raw_ops.CudnnRNNBackprop,
    raw_ops.CudnnRNNV2: raw_ops.CudnnRNNBackpropV2,
    raw_ops.CudnnRNNV3: raw_ops.CudnnRNNBackpropV3,
}


class _Signature(NamedTuple):
    """What a function takes."""

    names: tuple[str, ...]
    defaults: dict[str, Any]
    others: bool  # any more by name


@functools.cache
def _signature(function: Any) -> _Signature:
    # Not above: it takes a while to import.
    import inspect

    given = inspect.signature(function).parameters.values()
    return _Signature(
        tuple(p.name for p in given if p.kind is not p.VAR_KEYWORD),
        {p.name: p.default for p in given if p.default is not p.empty},
        any(p.kind is p.VAR_KEYWORD for p in given),
    )


def _arrays_in(values: Any) -> Iterator[Any]:
    """Yield the NumPy arrays among arguments, also those in lists and tuples of them."""
    for a in values:
        if isinstance(a, np.ndarray):
            if a.size:
                yield a
        elif isinstance(a, (tuple, list)):
            yield from _arrays_in(a)


def _marks(arrays: list[Any]) -> list[Any]:
    """Return a few elements of each array."""
    return [a.item(k) for a in arrays for k in (0, a.size // 3, 2 * a.size // 3, a.size - 1)]


class Pullback(Generic[G]):
    """
    The gradient of one call of an op, as `vjp` returns it: call it with the outputs' gradients.

    It may be called several times.

    Attributes
    ----------
    names : tuple of str
        What it takes: the gradients of the outputs.
    """

    def __init__(self, function: Any, given: Mapping[str, Any], outputs: Any) -> None:
        gradient = _GRADIENTS[function]
        signature, forward = _signature(gradient), _signature(function)
        known = {**forward.defaults, **given}
        saved = {n: a for n, a in outputs._asdict().items() if n in signature.names}
        self._op: str = function.__name__
        self._gradient = gradient
        self._given = {
            n: a for n, a in known.items() if n in signature.names or signature.others
        } | saved
        self.names = tuple(n for n in signature.names if n not in known and n not in saved)
        self._like = None if "d_h" not in self.names else outputs.h
        self._clip = None
        if "cell_clip" in self._given:
            order = known["gate_order"]
            is_gru = self._op == "stacked_rnn" and len(outputs.output_c.shape) == 0
            clip = self._given.pop("cell_clip")
            self._clip = default_clip(order) if clip is None and not is_gru else clip
        self._arrays = list(_arrays_in(self._given.values()))
        self._marks = _marks(self._arrays)

    def __repr__(self) -> str:
        return f"<pullback of {self._op}, of {', '.join(self.names)}>"

    def __call__(self, *, through_clip: bool = False, **gradients: AnyArray | None) -> G:
        """
        Return the gradient of every input.

        Parameters
        ----------
        through_clip : bool
            Have the gradient pass a cell state at the clip as if it had not been clipped, as
            TensorFlow's gradient does. Otherwise it is the true gradient, which is zero there.
        gradients : array or None
            The gradients of the outputs by the names that the gradient op has for them; one that
            is left out or None is zero.

        Returns
        -------
        named tuple
            What the gradient op returns.

        Raises
        ------
        TypeError
            No gradient is given, one of another name, or through_clip for an op without cell_clip;
            and what the gradient op raises.
        ValueError
            An array of the call was written into since; and what the gradient op raises.

        Examples
        --------
        >>> import numpy as np
        >>> import cupyrnn
        >>> x, h, params = np.ones((4, 1, 2)), np.zeros((1, 1, 3)), np.full(84, 0.1)
        >>> out, pullback = cupyrnn.vjp(cupyrnn.cudnn_rnn, x, h, h, params)
        >>> pullback.names
        ('output_backprop', 'output_h_backprop', 'output_c_backprop')
        >>> pullback(output_backprop=np.ones((4, 1, 3))).input_backprop[:, 0, 0].round(4)
        array([0.2748, 0.2561, 0.208 , 0.1334])
        """
        op = f"pullback of {self._op}"
        expected = f"expected {'' if len(self.names) == 1 else 'some of '}{', '.join(self.names)}"
        for name in gradients:
            if name not in self.names:
                raise TypeError(f"{op}: there is no {name}, {expected}")
        if not gradients:
            raise TypeError(f"{op}: no gradient is given, {expected}")
        through_clip = check_bool(op, "through_clip", through_clip)
        clip = {}
        if self._clip is not None and not through_clip:
            clip["cell_clip"] = self._clip
        elif through_clip and self._clip is None:
            raise TypeError(f"{op}: through_clip is True, and the call has no cell_clip to choose")
        self._check_unchanged(op)
        given = dict.fromkeys(self.names) | gradients
        if self._like is not None and given["d_h"] is None:
            with on_device(module_of(self._like), self._like):
                given["d_h"] = zeros = self._like.copy()
                zeros.fill(0)
        result: G = self._gradient(**self._given, **given, **clip)
        return result

    def _check_unchanged(self, op: str) -> None:
        now = _marks(self._arrays)
        # NaN is equal to nothing.
        if now != self._marks and any(
            p != q and not (p != p and q != q) for p, q in zip(now, self._marks, strict=True)
        ):
            raise ValueError(
                f"{op}: an input or output of the call was written into since; call pullback"
                " first, or write into a copy"
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
@overload
def vjp(
    function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> tuple[R, Pullback[Any]]: ...
def vjp(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, Pullback[Any]]:
    """
    An op's outputs, and the function from gradients of these to the gradients of its inputs.

    ::

        outputs, pullback = cupyrnn.vjp(cupyrnn.block_lstm, x, cs_prev, h_prev, w, b)
        grads = pullback(h_grad=h_grad)

    This is the forward op, then its gradient op with the same arguments: `block_lstm_grad`,
    `lstm_block_cell_backward`, `block_gru_grad`, `gru_block_cell_backward`, `cudnn_rnn_backprop`,
    `stacked_rnn_backprop`. The lengths, resets, gate order, clip, dropout and what else the first
    call was given cannot be forgotten in the second.

    Parameters
    ----------
    function : callable
        One of `block_lstm`, `lstm_block_cell`, `block_gru`, `gru_block_cell`, `cudnn_rnn`,
        `stacked_rnn`, `run_onnx_node` and of `raw_ops` BlockLSTM, BlockLSTMV2, CudnnRNN,
        CudnnRNNV2 and CudnnRNNV3.
    args : tuple
        Its arguments.
    kwargs : dict
        Its arguments by name.

    Returns
    -------
    outputs : named tuple
        What the function returns.
    pullback : callable
        Takes the gradients of the outputs by the gradient op's names: cs_grad and h_grad of LSTMs,
        d_h of GRUs, output_backprop, output_h_backprop and output_c_backprop of `cudnn_rnn` and
        `stacked_rnn`, Y_grad, Y_h_grad and Y_c_grad of `run_onnx_node`. One that is left out is
        zero. Returns the gradient op's named tuple. ``pullback.names`` are these names.

    Raises
    ------
    TypeError
        The function is none of those above; use `jvp` of a function of your own.
    ValueError
        is_training is False: what the gradient needs is not kept.

    See Also
    --------
    jvp : Derivatives along a direction, of any function, and of what pullback returns.

    Notes
    -----
    **Clip.** The gradient is the true one: it is zero where cs reached cell_clip, the given one or
    the default of 3 of the gate order "icfo". ``pullback(h_grad=..., through_clip=True)`` passes a
    clipped state as if it had not been clipped, which TensorFlow does, and the gradient ops of this
    package if cell_clip is left out. The functions of `raw_ops` have TensorFlow's gradient.

    **Memory.** The arrays of the call and its outputs are kept, not copied, until the pullback is
    freed. They must not be written into before it is called. Of NumPy arrays a few elements are
    compared, so that an update of all weights is noticed and raises a ValueError, but not that of
    one element; CuPy arrays are not looked at.

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
    """
    op = "vjp"
    try:
        known = function in _GRADIENTS
    except TypeError:  # what has no hash
        known = False
    if not known:
        names = [f.__name__ for f in _GRADIENTS]
        raise TypeError(
            f"{op}: function is {shown(function)}, expected one of {', '.join(names)}; jvp takes"
            " any function"
        )
    outputs = function(*args, **kwargs)
    given = dict(zip(_signature(function).names, args, strict=False)) | kwargs
    if not given.get("is_training", True):
        raise ValueError(
            f"{op}: is_training is {shown(given['is_training'])}, expected True: what the gradient"
            f" of {function.__name__} needs is not kept"
        )
    return outputs, Pullback(function, given, outputs)
