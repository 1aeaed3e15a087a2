"""Records calls of the block ops after their checks."""

from __future__ import annotations

from functools import partial
from typing import Any

from .._typing import NamedTuple
from ..cells.block_forms import COLUMNS, GRU_FORM, LSTM_FORM
from ..cells.block_weights import BlockGRUParams, PeepholeLSTMParams
from ..cells.contract import columns_of
from ..cells.gradients import check_weight_gradients
from ..checks.block import BlockCall
from ..checks.extent import Steps
from ..driver.net import Kept
from ..driver.signatures import Arguments, Recorded


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
    """Return what records the calls of a signature."""
    if steps is not None:
        weight_gradients = check_weight_gradients(steps.op, weight_gradients)
    call = call._replace(steps=steps, weight_gradients=weight_gradients)
    return partial(_record, call, to_gates)


def checked_from_states(call: BlockCall, every: int, again: Any) -> Any:
    """Return what records gradients from every k-th state, which cells `again` computed."""
    from ..driver import layouts
    from ..driver.recording import record

    kept = Kept(every, columns_of(call.form.Saved, call.H, call.H), again)
    return lambda known: record(layouts.block_grad, known, _layer_of(call), kept)


def _record(call: BlockCall, to_gates: bool, arguments: Arguments) -> Recorded:
    """Describe a block op, a single step, or one of their gradients."""
    from ..driver import layouts  # imported here, because it imports the kernels
    from ..driver.recording import record

    is_lstm, back = call.form is LSTM_FORM, call.form.Saved._fields[0] in arguments.by_name
    make = layouts.block_grad if back else layouts.block
    if to_gates:
        make = layouts.lstm_block_cell_grad if is_lstm else layouts.gru_block_cell_grad
    return record(make, arguments, _layer_of(call))


def _layer_of(call: BlockCall) -> Any:
    """Return the layer of a call as `layouts` describes it."""
    from ..driver.layouts import BlockLayer

    columns = COLUMNS[call.attributes.gate_order] if call.form is LSTM_FORM else None
    reverse = call.steps is not None and bool(call.steps.reverse)
    return BlockLayer(call.attributes, columns, call.has_peepholes, reverse)
