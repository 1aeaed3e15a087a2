"""The cells of CudnnRNN, made of the packed parameters of one direction of one layer."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ._arrays import cast, compute_dtype
from .cells.contract import Gradients, Weight
from .cells.gru_reset_after import GRUResetAfter, GRUResetAfterOutputs
from .cells.lstm import LSTM, LSTMOutputs
from .cells.simple_rnn import SimpleRNN, SimpleRNNOutputs
from .weights.params import GATES, Net, layout

if TYPE_CHECKING:
    from ._arrays import Array
    from .cells.contract import Cell

# What a step of each leaves, h the last.
SAVED: dict[str, Any] = {
    "lstm": LSTMOutputs,
    "gru": GRUResetAfterOutputs,
    "rnn_tanh": SimpleRNNOutputs,
    "rnn_relu": SimpleRNNOutputs,
}

# Which quarter of the rows of the packed LSTM weights belongs to i, ci, f and o.
_LSTM_ORDER = (0, 2, 1, 3)


class Weights(NamedTuple):
    """The parameters of one direction of one layer, or their gradients: views of the packed."""

    w_x: Array | None  # [G*H, K], None with skip_input
    w_h: Array  # [G*H, P]
    w_p: Array | None  # [P, H]
    b_x: Array  # [G*H]
    b_h: Array  # [G*H]


def weights_of(params: Array, net: Net) -> list[Weights]:
    """Return the parameters by layer and direction."""
    H, P, rows = net.H, net.P, len(GATES[net.rnn_mode]) * net.H
    starts: dict[tuple[int, int, str], int] = {}
    for p in layout(net):
        starts.setdefault((p.layer, p.direction, p.kind), p.offset)

    def part(layer: int, d: int, kind: str, rows: int, columns: int) -> Array:
        start = starts[layer, d, kind]
        return params[start : start + rows * columns].reshape(rows, columns)

    def one(layer: int, d: int) -> Weights:
        K = net.D * P if layer else net.I
        return Weights(
            None if net.skip and layer == 0 else part(layer, d, "input", rows, K),
            part(layer, d, "recurrent", rows, P),
            part(layer, d, "projection", P, H) if net.num_proj else None,
            part(layer, d, "input_bias", 1, rows)[0],
            part(layer, d, "recurrent_bias", 1, rows)[0],
        )

    return [one(layer, d) for layer in range(net.L) for d in range(net.D)]


def cell_of(xp: ModuleType, net: Net, p: Weights) -> Cell:
    """Return the cell of some parameters."""
    rnn_mode, compute, rows = net.rnn_mode, compute_dtype(p.b_x.dtype), len(p.w_h)
    b_x, b_h = cast(p.b_x, compute), cast(p.b_h, compute)
    w_x = None if p.w_x is None else p.w_x.T
    if rnn_mode == "gru":
        H = rows // 3
        b = b_x.copy()
        b[: 2 * H] += b_h[: 2 * H]
        w_h = xp.roll(p.w_h, H, axis=0).T  # columns hc, r, u in place of r, u, hc
        return GRUResetAfter(
            (Weight(w_x, rows, columns=slice(H, None)),),
            (Weight(w_h, rows, columns=slice(rows)),),
            (4 * H,),
            b,
            b_h[2 * H :],
            net.gate,
        )
    inputs, recurrent = (Weight(w_x, rows),), (Weight(p.w_h.T, rows),)
    if rnn_mode != "lstm":
        return SimpleRNN(inputs, recurrent, (rows,), b_x + b_h, rnn_mode == "rnn_relu")
    if p.w_p is None:
        return LSTM(inputs, recurrent, (rows,), b_x + b_h, _LSTM_ORDER, gate=net.gate)
    P = len(p.w_p)
    projection = Weight(p.w_p.T, P, of=1)
    both = (*recurrent, projection)
    return LSTM(inputs, both, (rows, P), b_x + b_h, _LSTM_ORDER, gate=net.gate)


def gradients_of(xp: ModuleType, cell: Cell, grads: Weights) -> Gradients:
    """Return where the gradients of a cell go, from where `finish` fetches them."""
    given = (grads.w_x, grads.w_h) if grads.w_p is None else (grads.w_x, grads.w_h, grads.w_p)
    sums = [xp.zeros(width, grads.w_h.dtype) for width in cell.widths]
    return Gradients(None, [None if a is None else a.T for a in given], sums)


def finish(xp: ModuleType, rnn_mode: str, grads: Weights, sums: Sequence[Array]) -> None:
    """Write the gradients of the biases, and have those of a GRU's matrix in the packed order."""
    if rnn_mode == "gru":
        H = len(grads.w_h) // 3
        grads.w_h[...] = xp.roll(grads.w_h, -H, axis=0)
        grads.b_x[...] = sums[0][H:]
        grads.b_h[...] = xp.roll(sums[0][: 3 * H], -H)
    else:
        grads.b_x[...] = grads.b_h[...] = sums[0]
