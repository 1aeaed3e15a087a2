"""Runs calls of the block ops after their checks: layer by layer, or laid out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._net import block_forward, block_gradient, block_step
from .._typing import Array, GRUCellGrads, GRUGrads, LSTMCellGrads, LSTMGrads
from ..cells.contract import Gradients, States
from ..cells.gru import GRUOutputs
from ..cells.lstm import LSTM, LSTMOutputs, LSTMStates
from ..checks.arrays import cast, compute_dtype, contiguous, on_device, operand_dtype
from ..checks.calls import with_zeros
from ..checks.extent import Steps
from ..driver.by_layers import Padded, backward_step, ready
from ..driver.layer import Layer
from ..driver.signatures import Arguments
from ..weights.block_forms import COLUMNS, GRU_FORM, LSTM_FORM, BlockCall, prepared
from ..weights.forms import BlockGRUParams, PeepholeLSTMParams
from ..weights.gradients import zeros_of


def lstm_gradient(
    padded: Padded, w: Array, cotangents: LSTMStates, call: BlockCall, weight_gradients: str = "sum"
) -> LSTMGrads[Any]:
    """block_lstm_grad after its checks, or without an extent lstm_block_cell_backward."""
    (B, H), dtype, xp = padded.first.h.shape, call.dtype, call.xp
    weights = PeepholeLSTMParams(w, None, *call.peephole)
    like = PeepholeLSTMParams(w, np.empty(4 * H, np.int8), *call.peephole)  # b's shape
    x_grad, first, (w_grad, b_grad, *peephole_grads, _) = block_gradient(
        LSTM_FORM, padded, (weights, like), cotangents, call, weight_gradients
    )
    if call.peephole[0] is None:
        peephole_grads = zeros_of(xp, weight_gradients, dtype, H, B)
    return LSTMGrads._make([x_grad, first.c, first.h, w_grad, *peephole_grads, b_grad])


def _states(arrays: Mapping[str, Any], call: BlockCall) -> LSTMStates:
    """Return the states before the first step, with zeros instead of None."""
    c, h = arrays["cs_prev"], arrays["h_prev"]
    if c is None or h is None:
        c, h = with_zeros(call.xp, arrays["x"], arrays["w"].shape[1] // 4, c, h)
    return LSTMStates(h, c)


def run_lstm_cell(call: BlockCall, arrays: Mapping[str, Any]) -> LSTMOutputs[Any]:
    """lstm_block_cell after its checks."""
    call, (x, w, b), xp = call.of(arrays), [arrays[name] for name in ("x", "w", "b")], call.xp
    with on_device(xp, x):
        first = _states(arrays, call)
        weights = PeepholeLSTMParams(w, b, *call.peephole)
        outputs: LSTMOutputs[Any] = block_step(LSTM_FORM, (x, first), weights, call)
    return outputs


def run_lstm(call: BlockCall, steps: Steps, arrays: Mapping[str, Any]) -> LSTMOutputs[Any]:
    """block_lstm after its checks."""
    call, (x, w, b), xp = call.of(arrays), [arrays[name] for name in ("x", "w", "b")], call.xp
    extent = steps.extent(arrays)
    with on_device(xp, x):
        first = _states(arrays, call)
        weights = PeepholeLSTMParams(w, b, *call.peephole)
        padded = Padded(x, first, None, extent)
        outputs: LSTMOutputs[Any] = block_forward(LSTM_FORM, padded, weights, call)
    return outputs


def run_lstm_grad(
    call: BlockCall, steps: Steps, weight_gradients: str, arrays: Mapping[str, Any]
) -> LSTMGrads[Any]:
    """block_lstm_grad after its checks."""
    call, extent = call.of(arrays), steps.extent(arrays)
    saved = LSTMOutputs._make([arrays[name] for name in LSTMOutputs._fields])
    cotangents = LSTMStates(arrays["h_grad"], arrays["cs_grad"])
    with on_device(call.xp, arrays["x"]):
        padded = Padded(arrays["x"], _states(arrays, call), saved, extent)
        return lstm_gradient(padded, arrays["w"], cotangents, call, weight_gradients)


def run_lstm_cell_backward(call: BlockCall, arrays: Mapping[str, Any]) -> LSTMGrads[Any]:
    """lstm_block_cell_backward after its checks."""
    call = call.of(arrays)
    cotangents = LSTMStates(arrays["h_grad"], arrays["cs_grad"])
    with on_device(call.xp, arrays["x"]):
        first = _states(arrays, call)
        # h is not an argument: the gradient does not depend on the last h.
        saved = LSTMOutputs._make([*(arrays[name] for name in LSTMOutputs._fields[:-1]), first.h])
        return lstm_gradient(Padded(arrays["x"], first, saved), arrays["w"], cotangents, call)


def run_lstm_cell_grad(call: BlockCall, arrays: Mapping[str, Any]) -> LSTMCellGrads[Any]:
    """lstm_block_cell_grad after its checks."""
    call, cs_prev, i = call.of(arrays), arrays["cs_prev"], arrays["i"]
    cotangents = LSTMStates(arrays["h_grad"], arrays["cs_grad"])
    # h is not an argument: the gradient does not depend on it.
    saved: Any = LSTMOutputs._make([*(arrays[n] for n in LSTMOutputs._fields[:-1]), arrays["co"]])
    with on_device(call.xp, i):
        if cs_prev is None:
            (cs_prev,) = with_zeros(call.xp, i, i.shape[1], None)
        return _lstm_gates(saved, cs_prev, cotangents, call)


def lay_out_lstm(
    call: BlockCall, reverse: bool, arguments: Arguments, *, to_gates: bool = False
) -> Any:
    """Lay out block_lstm, a single step, or one of their gradients."""
    from ..driver import layouts  # imported here, because it imports the kernels

    make = layouts.block_lstm_grad if "i" in arguments.by_name else layouts.block_lstm
    if to_gates:
        make = layouts.lstm_block_cell_grad
    columns = COLUMNS[call.attributes.gate_order]
    asked = layouts.BlockLSTM(call.attributes, columns, call.has_peepholes, reverse)
    return layouts.laid_out(make, arguments, asked)


def _lstm_gates(
    saved: LSTMOutputs[Any], cs_prev: Array, cotangents: LSTMStates, call: BlockCall
) -> LSTMCellGrads[Any]:
    """lstm_block_cell_grad without a compiled step: a step up to its gates."""
    H, dtype, xp = cs_prev.shape[1], call.dtype, call.xp
    compute, (clip, order, gate, _) = compute_dtype(dtype), call.attributes
    peephole: Any = None if call.peephole[0] is None else call.peephole
    layer = Layer(cs_prev, LSTMStates(None, cs_prev), None, saved)
    if not call.plain:
        layer, cotangents = ready(xp, dtype, layer, cotangents)
        if peephole is not None:
            peephole = tuple(cast(contiguous(xp, a), compute) for a in peephole)
    cell = LSTM((), (), (4 * H,), None, COLUMNS[order], peephole, clip, gate)
    peephole_grads = xp.zeros((3, H), compute)
    vectors = None if peephole is None else peephole_grads
    dicfo = xp.empty((len(cs_prev), 4 * H), operand_dtype(xp, dtype))
    deltas = Gradients(None, [dicfo], None, vectors, "deltas")
    grads = backward_step(xp, cell, layer, cotangents, deltas).c, dicfo, *peephole_grads
    return LSTMCellGrads._make(grads if call.plain else [cast(g, dtype) for g in grads])


def gru_gradient(
    padded: Padded,
    weights: BlockGRUParams,
    d_h: Array | None,
    call: BlockCall,
    weight_gradients: str = "sum",
) -> GRUGrads[Any]:
    """block_gru_grad after its checks, or without an extent gru_block_cell_backward."""
    H = padded.first.h.shape[1]
    like = BlockGRUParams(*weights[:2], np.empty(2 * H, np.int8), np.empty(H, np.int8))  # shapes
    d_x, first, grads = block_gradient(
        GRU_FORM, padded, (weights, like), States(d_h), call, weight_gradients
    )
    return GRUGrads(d_x, first.h, *grads)


def _state(arrays: Mapping[str, Any], call: BlockCall) -> States:
    """Return the state before the first step, with zeros instead of None."""
    h = arrays["h_prev"]
    if h is None:
        (h,) = with_zeros(call.xp, arrays["x"], arrays["w_c"].shape[1], h)
    return States(h)


def _matrices(arrays: Mapping[str, Any]) -> BlockGRUParams:
    return BlockGRUParams(arrays["w_ru"], arrays["w_c"], None, None)


def run_gru_cell(call: BlockCall, arrays: Mapping[str, Any]) -> GRUOutputs[Any]:
    """gru_block_cell after its checks."""
    x, weights = arrays["x"], BlockGRUParams._make([arrays[n] for n in BlockGRUParams._fields])
    with on_device(call.xp, x):
        first = _state(arrays, call)
        outputs: GRUOutputs[Any] = block_step(GRU_FORM, (x, first), weights, call)
    return outputs


def run_gru(call: BlockCall, steps: Steps, arrays: Mapping[str, Any]) -> GRUOutputs[Any]:
    """block_gru after its checks."""
    x, weights = arrays["x"], BlockGRUParams._make([arrays[n] for n in BlockGRUParams._fields])
    extent = steps.extent(arrays)
    with on_device(call.xp, x):
        padded = Padded(x, _state(arrays, call), None, extent)
        outputs: GRUOutputs[Any] = block_forward(GRU_FORM, padded, weights, call)
    return outputs


def run_gru_cell_grad(call: BlockCall, arrays: Mapping[str, Any]) -> GRUCellGrads[Any]:
    """gru_block_cell_grad after its checks."""
    h_prev, r, u, c, d_h = (arrays[name] for name in ("h_prev", "r", "u", "c", "d_h"))
    # h is not an argument: the gradient does not depend on it.
    saved, weights = GRUOutputs(r, u, c, c), _matrices(arrays)
    with on_device(call.xp, r):
        if h_prev is None:
            (h_prev,) = with_zeros(call.xp, r, r.shape[1], None)
        return _gru_gates(h_prev, weights, saved, d_h, call)


def run_gru_cell_backward(call: BlockCall, arrays: Mapping[str, Any]) -> GRUGrads[Any]:
    """gru_block_cell_backward after its checks."""
    x, r, u, c, d_h = (arrays[name] for name in ("x", "r", "u", "c", "d_h"))
    with on_device(call.xp, x):
        first = _state(arrays, call)
        # h is not an argument: the gradient does not depend on the last h.
        padded = Padded(x, first, GRUOutputs(r, u, c, first.h))
        return gru_gradient(padded, _matrices(arrays), d_h, call)


def run_gru_grad(
    call: BlockCall, steps: Steps, weight_gradients: str, arrays: Mapping[str, Any]
) -> GRUGrads[Any]:
    """block_gru_grad after its checks."""
    x, extent = arrays["x"], steps.extent(arrays)
    saved = GRUOutputs._make([arrays[name] for name in GRUOutputs._fields])
    with on_device(call.xp, x):
        padded = Padded(x, _state(arrays, call), saved, extent)
        return gru_gradient(padded, _matrices(arrays), arrays["d_h"], call, weight_gradients)


def lay_out_gru(
    call: BlockCall, reverse: bool, arguments: Arguments, *, to_gates: bool = False
) -> Any:
    """Lay out block_gru, a single step, or one of their gradients."""
    from ..driver import layouts  # imported here, because it imports the kernels

    if to_gates:
        return layouts.laid_out(layouts.gru_block_cell_grad, arguments, call.attributes)
    make = layouts.block_gru_grad if "r" in arguments.by_name else layouts.block_gru
    return layouts.laid_out(make, arguments, call.attributes, reverse)


def _gru_gates(
    h_prev: Array, weights: BlockGRUParams, saved: GRUOutputs[Any], d_h: Array, call: BlockCall
) -> GRUCellGrads[Any]:
    """gru_block_cell_grad without a compiled step: up to the gates, and through the weights."""
    (B, H), dtype, xp = h_prev.shape, call.dtype, call.xp
    compute = compute_dtype(dtype)
    layer, cotangents = Layer(h_prev, States(h_prev), None, saved), States(d_h)
    if not call.plain:
        layer, cotangents = ready(xp, dtype, layer, cotangents)
        weights = prepared(xp, weights, dtype)
    cell = GRU_FORM.cell(xp, weights, call.attributes)
    d_x = xp.empty((B, len(weights.w_c) - H), compute)
    operand = operand_dtype(xp, dtype)
    d_ru, d_c = [xp.empty((B, width), operand) for width in cell.widths]
    deltas = Gradients(d_x, [d_ru, d_c], None, None, "deltas")
    (dh,) = backward_step(xp, cell, layer, cotangents, deltas)
    grads = d_x, dh, d_c, d_ru
    return GRUCellGrads._make(grads if call.plain else [cast(g, dtype) for g in grads])
