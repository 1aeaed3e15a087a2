"""Runs calls of the block ops after their checks: layer by layer, or laid out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from .._typing import Array, GRUGrads, LSTMGrads, NamedTuple
from ..cells.block_forms import COLUMNS, GRU_FORM, LSTM_FORM, prepared
from ..cells.block_weights import BlockGRUParams, PeepholeLSTMParams
from ..cells.contract import each
from ..cells.gradients import OfWeights, check_weight_gradients, zeros_of
from ..checks.arrays import cast, on_device
from ..checks.block import BlockCall, shape_of
from ..checks.calls import with_zeros
from ..checks.extent import Extent, Steps
from ..driver import by_layers as _by_layers
from ..driver.by_layers import Padded
from ..driver.recompute import Checkpoints
from ..driver.signatures import Arguments, Checked


class _Names(NamedTuple):
    """The arguments of a form's ops, h first, and its weights."""

    states: tuple[str, ...]
    cotangents: tuple[str, ...]
    weights: Any


NAMES = {
    LSTM_FORM: _Names(("h_prev", "cs_prev"), ("h_grad", "cs_grad"), PeepholeLSTMParams),
    GRU_FORM: _Names(("h_prev",), ("d_h",), BlockGRUParams),
}


def checked(
    call: BlockCall,
    steps: Steps | None = None,
    weight_gradients: str = "sum",
    *,
    to_gates: bool = False,
) -> Any:
    """Return a `Checked` for the calls of a signature."""
    if steps is not None:
        weight_gradients = check_weight_gradients(steps.op, weight_gradients)
    call = call._replace(steps=steps, weight_gradients=weight_gradients)
    return Checked(None, partial(_lay_out, call, to_gates))


def _states(call: BlockCall, arrays: Mapping[str, Any], like: Array) -> Any:
    """Return the states before the first step, with zeros instead of None."""
    states = (arrays[name] for name in NAMES[call.form].states)
    return call.form.States(*with_zeros(call.xp, like, call.H, *states))


def _cotangents(call: BlockCall, arrays: Mapping[str, Any]) -> Any:
    """Return the gradients of the states."""
    return call.form.States(*[arrays[name] for name in NAMES[call.form].cotangents])


def weights_of(call: BlockCall, arrays: Mapping[str, Any], *, biases: Any = None) -> Any:
    """Return the weights of a cell; `biases` returns each of them by name, by default None."""
    kind, get = NAMES[call.form].weights, arrays.get
    unused = () if call.has_peepholes else call.form.together
    found = {name: get(name) for name in kind._fields if name[0] != "b" and name not in unused}
    return kind._make([biases(n) if biases and n[0] == "b" else found.get(n) for n in kind._fields])


def gradient(call: BlockCall, arrays: Mapping[str, Any], saved: Checkpoints, extent: Extent) -> Any:
    """Return the gradients of a block op from its states, and the cell that computed them."""
    xp, form, dtype, x, H = call.xp, call.form, call.dtype, arrays["x"], call.H
    shapes, mode, cotangents = form.shapes, call.weight_gradients, _cotangents(call, arrays)

    def shape(name: str) -> Array:
        return np.empty(shape_of(shapes[name], 0, H, H), np.int8)

    with on_device(xp, x):
        weights, padded = (
            weights_of(call, arrays),
            Padded(x, _states(call, arrays, x), saved, extent),
        )
        like = weights._replace(**{n: shape(n) for n in weights._fields if n.startswith("b")})
        B = len(padded.first.h)
        of_weights = OfWeights(xp, form, dtype, like, mode, B)
        if not call.plain:
            padded, cotangents = _by_layers.ready(xp, dtype, padded, cotangents)
            weights = prepared(xp, weights, dtype)
        cell = form.cell(xp, weights, call.attributes)
        x_grad, of_first = _by_layers.backward(xp, cell, padded, cotangents, of_weights.written)
        if not call.plain:
            of_first = each(of_first, lambda g: cast(g, dtype))
        grads = of_weights.finished()
        if form is GRU_FORM:
            return GRUGrads(x_grad, of_first.h, *grads)
        w_grad, b_grad, *of_peepholes, _ = grads
        if not call.has_peepholes:
            of_peepholes = zeros_of(xp, mode, dtype, H, B)
        return LSTMGrads._make([x_grad, of_first.c, of_first.h, w_grad, *of_peepholes, b_grad])


def _lay_out(call: BlockCall, to_gates: bool, arguments: Arguments) -> Any:
    """Lay out a block op, a single step, or one of their gradients."""
    from ..driver import layouts  # imported here, because it imports the kernels
    from ..driver.laid_out import laid_out

    is_lstm, back = call.form is LSTM_FORM, call.form.Saved._fields[0] in arguments.by_name
    make = layouts.block_grad if back else layouts.block
    if to_gates:
        make = layouts.lstm_block_cell_grad if is_lstm else layouts.gru_block_cell_grad
    columns = COLUMNS[call.attributes.gate_order] if is_lstm else None
    reverse = call.steps is not None and call.steps.reverse
    block = layouts.BlockLayer(call.attributes, columns, call.has_peepholes, reverse)
    return laid_out(make, arguments, block)
