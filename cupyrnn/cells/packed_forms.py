"""The form of the weights of CudnnRNN's cells: views of packed parameters."""

from __future__ import annotations

import functools
from types import MappingProxyType, ModuleType
from typing import Any, TypeAlias

from .._typing import Array, Arrays, NamedTuple
from ..checks.arrays import cast, compute_dtype, module_of
from .contract import Cell, Form, Gradients, States, Weight
from .gru_reset_after import GRUResetAfter, GRUResetAfterOutputs
from .lstm import LSTM, LSTMOutputs, LSTMStates
from .packed import LayerParams, Net, gate_places, parts
from .simple_rnn import SimpleRNN, SimpleRNNOutputs

# Which quarter of the rows of the packed LSTM weights belongs to i, ci, f and o.
PACKED_COLUMNS = (*gate_places("packed", "lstm", ("i", "ci", "f", "o")),)

# The NamedTuple of the results of each cell's steps.
_SAVED: dict[str, Any] = {
    "lstm": LSTMOutputs,
    "gru": GRUResetAfterOutputs,
    "rnn_tanh": SimpleRNNOutputs,
    "rnn_relu": SimpleRNNOutputs,
}


class PackedLayer(NamedTuple):
    """The parameters of one direction of one layer, or their gradients: views of the vector."""

    w_x: Array | None  # [G*H, K], None with skip_input
    w_h: Array  # [G*H, P]
    w_p: Array | None  # [P, H]
    b_x: Array  # [G*H]
    b_h: Array  # [G*H]


_Place: TypeAlias = tuple[slice, tuple[int, ...]]


@functools.lru_cache(maxsize=256)
def places_of(net: Net) -> list[tuple[Any, ...]]:
    """Return the place and shape of each of the `PackedLayer`, by layer and direction."""
    places: dict[tuple[int, int], dict[str, _Place]] = {}
    for kind, layer, d, place, shape in parts(net):
        if kind != "projection":
            shape = shape[0] * shape[1], *shape[2:]
        if 0 not in shape:  # with skip_input the first layer has no input matrices
            places.setdefault((layer, d), {})[kind] = place, shape
    kinds = LayerParams._fields[:-1]  # all but the peepholes
    return [tuple([found.get(kind) for kind in kinds]) for found in places.values()]


def weights_of(params: Array, net: Net) -> list[PackedLayer]:
    """Return the parameters by layer and direction; `params` may have a leading axis."""
    axes = params.shape[:-1]
    return [
        PackedLayer._make(
            [
                None if place is None else params[..., place[0]].reshape(*axes, *place[1])
                for place in places
            ]
        )
        for places in places_of(net)
    ]


class PackedForm(Form):
    """
    Makes the cells of a net of packed parameters.

    With `single`, the cells are for a single step of real NumPy arrays, or have the deltas of
    compiled loops: see `GRUResetAfter`.
    """

    name, shapes = "a cell of CudnnRNN", MappingProxyType[str, str]({})

    def __init__(self, net: Net, *, single: bool = False) -> None:
        self.net, self._hc_last = net, single and net.rnn_mode == "gru"
        self.States = LSTMStates if net.rnn_mode == "lstm" else States
        self.Saved = _SAVED[net.rnn_mode]

    def _derived_arrays(self, weights: PackedLayer) -> Arrays:
        """Return the sum of the biases and, for a GRU, w_h with its gates reordered."""
        _, w_h, _, b_x, b_h = weights
        compute = compute_dtype(b_x.dtype)
        b_x, b_h = cast(b_x, compute), cast(b_h, compute)
        if self.net.rnn_mode != "gru":
            return (b_x + b_h,)
        H = len(b_x) // 3
        b = b_x.copy()
        b[: 2 * H] += b_h[: 2 * H]
        if self._hc_last:
            return (b,)
        # from r, u, hc to hc, r, u
        reordered = module_of(w_h).empty(w_h.shape, w_h.dtype)
        reordered[:H], reordered[H:] = w_h[2 * H :], w_h[: 2 * H]
        return b, reordered

    def cell(self, xp: ModuleType, weights: PackedLayer, attributes: Any = None) -> Cell:
        """Return the cell; its matrices are views of the packed parameters."""
        w_x, w_h, w_p, _, b_h = weights
        rnn_mode, gate, rows = self.net.rnn_mode, self.net.gate, len(w_h)
        b, *others = self._derived_arrays(weights)
        w_x = None if w_x is None else w_x.T
        if rnn_mode == "gru":
            H = rows // 3
            b_hc = cast(b_h, b.dtype)[2 * H :]
            if self._hc_last:
                x_to, h_to = Weight(w_x, rows), Weight(w_h.T, rows, delta=1)
                return GRUResetAfter((x_to,), (h_to,), (rows, rows), b, b_hc, gate, True)
            x_to = Weight(w_x, rows, columns=slice(H, None))
            h_to = Weight(others[0].T, rows, columns=slice(rows))
            return GRUResetAfter((x_to,), (h_to,), (4 * H,), b, b_hc, gate)
        inputs, recurrent = (Weight(w_x, rows),), (Weight(w_h.T, rows),)
        if rnn_mode != "lstm":
            return SimpleRNN(inputs, recurrent, (rows,), b, rnn_mode == "rnn_relu")
        if w_p is None:
            return LSTM(inputs, recurrent, (rows,), b, PACKED_COLUMNS, gate=gate)
        both = (*recurrent, Weight(w_p.T, len(w_p), delta=1))
        return LSTM(inputs, both, (rows, len(w_p)), b, PACKED_COLUMNS, gate=gate)

    def gradients(self, xp: ModuleType, grads: PackedLayer) -> Gradients:
        """Return views of the matrices, and memory for the sums."""
        w_x, w_h, w_p, b_x, _ = grads
        matrices = [None if a is None else a.swapaxes(-1, -2) for a in (w_x, w_h)]
        *axes, rows = b_x.shape
        widths = [rows * 4 // 3 if self.net.rnn_mode == "gru" else rows]
        if self._hc_last:
            widths = [rows, rows]
        sums: list[Any] = [xp.zeros((*axes, width), b_x.dtype) for width in widths]
        if w_p is not None:
            matrices.append(w_p.swapaxes(-1, -2))
            sums.append(None)  # the sum of the gradients of h is not needed
        return Gradients(None, matrices, sums)

    def finished(self, grads: PackedLayer, written: Gradients) -> PackedLayer:
        """Write the gradients of the biases, and reorder a GRU's matrix to the packed order."""
        (total, *others), (_, w_h, _, b_x, b_h) = written.sums, grads
        if self._hc_last:
            b_x[...], b_h[...] = total, others[0]
        elif self.net.rnn_mode == "gru":
            H = b_x.shape[-1] // 3
            b_x[...] = total[..., H:]
            b_h[..., : 2 * H], b_h[..., 2 * H :] = total[..., H : 3 * H], total[..., :H]
            r_u = w_h[..., H:, :].copy()  # they follow hc
            w_h[..., 2 * H :, :] = w_h[..., :H, :]
            w_h[..., : 2 * H, :] = r_u
        else:
            b_x[...] = b_h[...] = total
        return grads
