"""One schema per op: its inputs, outputs, attributes and gradient, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ._typing import NamedTuple
from .cells.block_forms import PEEPHOLES
from .cells.gru import GRUOutputs
from .cells.lstm import LSTMOutputs
from .ops.cudnn_rnn import cudnn_rnn, cudnn_rnn_backprop
from .ops.gru import block_gru, block_gru_grad, gru_block_cell, gru_block_cell_backward
from .ops.lstm import block_lstm, block_lstm_grad, lstm_block_cell, lstm_block_cell_backward
from .ops.stacked_rnn import stacked_rnn, stacked_rnn_backprop


class Schema(NamedTuple):
    """An op, by the names of its arguments and results."""

    forward: Callable[..., Any]
    gradient: Callable[..., Any]
    inputs: tuple[str, ...]  # the differentiable ones
    outputs: tuple[str, ...]  # the differentiable ones
    results: tuple[str, ...]  # the results that are arguments of the gradient op
    attributes: str  # types and names, as in a schema of PyTorch
    cotangent: str  # pattern of the gradient op's name for the gradient of an output
    slope: str  # pattern of its name for the gradient of an input
    optional: tuple[str, ...] = ()  # inputs that may be None
    extras: tuple[str, ...] = ("sequence_lengths", "resets")  # arrays without a gradient
    by_example: bool = True  # whether the gradient op has the argument weight_gradients
    reads: tuple[str, ...] | None = None  # results that it reads on a CPU; None for all
    from_states: Callable[..., Any] | None = None  # computes the gradient from saved states (`vjp`)

    @property
    def name(self) -> str:
        """The name of the op."""
        return self.forward.__name__

    @property
    def not_in_gradient(self) -> frozenset[str]:
        """The arguments of the op that its gradient does not have."""
        return _not_in_gradient(self.forward, self.gradient)

    @property
    def cotangents(self) -> tuple[str, ...]:
        """The gradient op's names for the gradients of the outputs."""
        return _written(self.cotangent, self.outputs)

    def gradient_arguments(
        self, arguments: Mapping[str, Any], results: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the gradient op's arguments except the cotangents; a missing result is None."""
        shared = {n: a for n, a in arguments.items() if n not in self.not_in_gradient}
        return shared | {n: results.get(n) for n in self.results}

    def gradient_call(
        self,
        arguments: Mapping[str, Any],
        results: Mapping[str, Any],
        cotangents: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return all arguments of the gradient op; cotangents have the names of the outputs."""
        renamed = dict(zip(self.cotangents, map(cotangents.get, self.outputs), strict=True))
        return self.gradient_arguments(arguments, results) | renamed

    def by_input(self, found: Any) -> dict[str, Any]:
        """Return the results of the gradient op by the names of the inputs."""
        slopes = zip(self.inputs, _written(self.slope, self.inputs), strict=True)
        return {n: getattr(found, slope) for n, slope in slopes}

    def grads(
        self,
        arguments: Mapping[str, Any],
        results: Mapping[str, Any],
        cotangents: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the gradients of the inputs by name."""
        return self.by_input(self.gradient(**self.gradient_call(arguments, results, cotangents)))


@cache
def _not_in_gradient(op: Callable[..., Any], gradient: Callable[..., Any]) -> frozenset[str]:
    """Return the arguments of an op that its gradient does not have."""
    import inspect  # imported here because it is slow

    forward, backward = (inspect.signature(function).parameters for function in (op, gradient))
    takes_all = any(p.kind is p.VAR_KEYWORD for p in backward.values())
    return frozenset(() if takes_all else forward.keys() - backward.keys())


@cache
def _written(pattern: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the gradient op's names for the gradients of these inputs or outputs."""
    return tuple(pattern.format(n) for n in names)


def _of_step(schema: Schema, forward: Callable[..., Any], gradient: Callable[..., Any]) -> Schema:
    """Return the schema of a single-step op. Its gradient does not need the last result, h."""
    attributes = schema.attributes.removesuffix(", bool reverse")
    schema = schema._replace(forward=forward, gradient=gradient, attributes=attributes)
    return schema._replace(results=schema.results[:-1], extras=(), by_example=False)


_LSTM_ATTRIBUTES = "float forget_bias, float cell_clip, str gate_order, str recurrent_activation"
BLOCK_LSTM = Schema(
    block_lstm,
    block_lstm_grad,
    inputs=("x", "cs_prev", "h_prev", "w", "b", *PEEPHOLES),
    outputs=("cs", "h"),
    results=LSTMOutputs._fields,
    attributes=f"{_LSTM_ATTRIBUTES}, bool reverse",
    cotangent="{}_grad",
    slope="{}_grad",
    optional=("cs_prev", "h_prev", *PEEPHOLES),
)
LSTM_BLOCK_CELL = _of_step(BLOCK_LSTM, lstm_block_cell, lstm_block_cell_backward)
BLOCK_GRU = Schema(
    block_gru,
    block_gru_grad,
    inputs=("x", "h_prev", "w_ru", "w_c", "b_ru", "b_c"),
    outputs=("h",),
    results=GRUOutputs._fields,
    attributes="str recurrent_activation, bool reverse",
    cotangent="d_{}",
    slope="d_{}",
    optional=("h_prev",),
)
GRU_BLOCK_CELL = _of_step(BLOCK_GRU, gru_block_cell, gru_block_cell_backward)
CUDNN_RNN = Schema(
    cudnn_rnn,
    cudnn_rnn_backprop,
    inputs=("input", "input_h", "input_c", "params"),
    outputs=("output", "output_h", "output_c"),
    results=("output", "output_h", "output_c", "reserve_space", "host_reserved"),
    attributes="str rnn_mode, str input_mode, str direction, float dropout, int num_proj,"
    " str recurrent_activation, bool time_major, bool reverse",
    cotangent="{}_backprop",
    slope="{}_backprop",
    optional=("input_h", "input_c"),
    reads=("reserve_space",),
)
STACKED_RNN = CUDNN_RNN._replace(
    forward=stacked_rnn,
    gradient=stacked_rnn_backprop,
    inputs=("input", "input_h", "input_c", "weights"),
    results=CUDNN_RNN.results[:-1],
    attributes=f"str direction, float dropout, {_LSTM_ATTRIBUTES}, bool time_major, bool reverse",
)
