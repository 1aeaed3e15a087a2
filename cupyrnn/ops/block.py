"""Runs calls of the block ops after their checks: layer by layer, or laid out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from .._typing import Array, GRUCellGrads, GRUGrads, LSTMCellGrads, LSTMGrads, NamedTuple
from ..cells.block_forms import COLUMNS, GRU_FORM, LSTM_FORM, prepared
from ..cells.block_weights import BlockGRUParams, PeepholeLSTMParams
from ..cells.contract import Cell, Gradients, States, each
from ..cells.gradients import OfWeights, check_weight_gradients, zeros_of
from ..cells.lstm import LSTM, LSTMStates
from ..checks.arrays import cast, cast_all, compute_dtype, contiguous, on_device, operand_dtype
from ..checks.block import BlockCall, shape_of
from ..checks.calls import with_zeros
from ..checks.extent import Extent, Steps
from ..driver import by_layers as _by_layers
from ..driver import layer as _layer
from ..driver.by_layers import Padded
from ..driver.layer import Layer
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
    run: Any,
    steps: Steps | None = None,
    weight_gradients: str = "sum",
    *,
    to_gates: bool = False,
) -> Any:
    """Return a `Checked` for the calls of a signature, which may lay them out."""
    if steps is not None:
        weight_gradients = check_weight_gradients(steps.op, weight_gradients)
    lays_out = weight_gradients == "sum"
    call = call._replace(steps=steps, weight_gradients=weight_gradients)
    return Checked(partial(run, call), partial(_lay_out, call, to_gates) if lays_out else None)


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


def run(call: BlockCall, arrays: Mapping[str, Any]) -> Any:
    """Run block_lstm or block_gru after its checks or, without steps, a single step."""
    x, xp, dtype, kind, steps = arrays["x"], call.xp, call.dtype, call.form.Saved, call.steps
    extent = None if steps is None else steps.extent(arrays)
    with on_device(xp, x):
        first, weights = _states(call, arrays, x), weights_of(call, arrays, biases=arrays.get)
        if not call.plain:
            x, *states = cast_all(dtype, x, *first)
            first, weights = first._make(states), prepared(xp, weights, dtype)
            if steps is None:
                x, first = contiguous(xp, x), each(first, lambda s: contiguous(xp, s))
        cell = call.form.cell(xp, weights, call.attributes)
        # One large allocation costs fewer page faults. Callers often keep h without the others.
        shape = *x.shape[:-1], call.H
        others = xp.empty((len(kind._fields) - 1, *shape), dtype)
        outputs = kind._make([*others, xp.empty(shape, dtype)])
        if extent is None:
            _layer.forward(xp, cell, Layer(x, first, None, outputs))
        else:
            _by_layers.forward(xp, cell, Padded(x, first, outputs, extent))
    return outputs


def run_grad(call: BlockCall, arrays: Mapping[str, Any]) -> Any:
    """Run block_lstm_grad or block_gru_grad after its checks."""
    saved = call.form.Saved._make([arrays[name] for name in call.form.Saved._fields])
    return gradient(call, arrays, saved, call.steps.extent(arrays))


def run_backward(call: BlockCall, arrays: Mapping[str, Any]) -> Any:
    """Run lstm_block_cell_backward or gru_block_cell_backward after its checks."""
    saved = [arrays[name] for name in call.form.Saved._fields[:-1]]
    # h is not an argument: the gradient does not depend on the last h.
    return gradient(call, arrays, call.form.Saved._make([*saved, saved[0]]))


def gradient(
    call: BlockCall, arrays: Mapping[str, Any], saved: Any, extent: Extent | None = None
) -> Any:
    """
    Return the gradients of a block op or, without an extent, of a single step.

    `saved` has the results of the forward call, or is a Checkpoints with its cell.
    """
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


def _to_gates(call: BlockCall, cell: Cell, step: tuple[Any, ...], d_x: Any, vectors: Any) -> Any:
    """Return the gradients of the first states and of the products, of a layer's single step."""
    layer, cotangents = step
    B, operand = len(layer.saved[0]), operand_dtype(call.xp, call.dtype)
    deltas = [call.xp.empty((B, width), operand) for width in cell.widths]
    grads = Gradients(d_x, deltas, None, vectors, "deltas")
    return _by_layers.backward_step(call.xp, cell, layer, cotangents, grads), deltas


def _results(call: BlockCall, kind: Any, grads: tuple[Array, ...]) -> Any:
    return kind._make(grads if call.plain else [cast(g, call.dtype) for g in grads])


def run_lstm_gates(call: BlockCall, arrays: Mapping[str, Any]) -> Any:
    """lstm_block_cell_grad without a compiled step: a step up to its gates."""
    xp, dtype, H, c = call.xp, call.dtype, call.H, arrays["cs_prev"]
    compute, (clip, order, gate, *_) = compute_dtype(dtype), call.attributes
    peephole: Any = None
    # h is not an argument: the gradient does not depend on it.
    saved = call.form.Saved._make(
        [*(arrays[n] for n in call.form.Saved._fields[:-1]), arrays["co"]]
    )
    with on_device(xp, arrays["i"]):
        c = xp.zeros(arrays["i"].shape, arrays["i"].dtype) if c is None else c
        step: Any = Layer(c, LSTMStates(None, c), None, saved), _cotangents(call, arrays)
        if call.has_peepholes:
            peephole = tuple(arrays[name] for name in call.form.together)
        if not call.plain:
            step = _by_layers.ready(xp, dtype, *step)
            if peephole is not None:
                peephole = tuple(cast(contiguous(xp, a), compute) for a in peephole)
        cell = LSTM((), (), (4 * H,), None, COLUMNS[order], peephole, clip, gate)
        of_peepholes = xp.zeros((3, H), compute)
        vectors = None if peephole is None else of_peepholes
        first, (dicfo,) = _to_gates(call, cell, step, None, vectors)
        return _results(call, LSTMCellGrads, (first.c, dicfo, *of_peepholes))


def run_gru_gates(call: BlockCall, arrays: Mapping[str, Any]) -> Any:
    """gru_block_cell_grad without a compiled step: up to the gates, and through the weights."""
    xp, dtype, weights = call.xp, call.dtype, weights_of(call, arrays)
    r, u, c = (arrays[name] for name in ("r", "u", "c"))
    with on_device(xp, r):
        first: Any = _states(call, arrays, r)
        # h is not an argument: the gradient does not depend on it.
        saved = call.form.Saved(r, u, c, c)
        step: Any = Layer(first.h, first, None, saved), States(arrays["d_h"])
        if not call.plain:
            step, weights = _by_layers.ready(xp, dtype, *step), prepared(xp, weights, dtype)
        cell = call.form.cell(xp, weights, call.attributes)
        d_x = xp.empty((len(r), len(weights.w_c) - call.H), compute_dtype(dtype))
        (dh,), (d_ru, d_c) = _to_gates(call, cell, step, d_x, None)
        return _results(call, GRUCellGrads, (d_x, dh, d_c, d_ru))
