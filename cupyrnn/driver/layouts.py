"""
The block ops as tables: the places of the arrays of a call, and the operations on them.

Each function returns an object that runs the calls of one signature. It raises NotRecordable for
calls that a machine cannot record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from .._typing import GRUCellGrads, GRUGrads, LSTMCellGrads, LSTMGrads, NamedTuple
from ..cells.block_forms import GRU_FORM, LSTM_FORM, PEEPHOLES
from ..cells.contract import each
from ..cells.entries import of_entries
from ..cells.gru import GRUOutputs
from ..cells.lstm import LSTM, LSTMOutputs
from ..checks.arrays import compute_dtype
from .net import (
    NO_WEIGHTS,
    Cells,
    Examples,
    GradientPlaces,
    Kept,
    LayerPlaces,
    Machine,
    RecordedCall,
    Weights,
    backward,
    forward,
    of_form,
)
from .places import Place, Table
from .recording import machine_for
from .signatures import Arguments, Named


class LSTMWeights(NamedTuple):
    """The weights of an LSTM of a block op, as its form has them."""

    w: Place | None
    b: Place | None
    wci: Place | None
    wcf: Place | None
    wco: Place | None
    w_p: Place | None = None


class GRUWeights(NamedTuple):
    """The weights of a GRU of a block op, as its form has them."""

    w_ru: Place
    w_c: Place
    b_ru: Place | None
    b_c: Place | None


class Entry(NamedTuple):
    """The weights of a block op's layer, and their gradients."""

    weights: Weights
    gradients: Weights | Examples
    returned: tuple[Place | None, ...]  # the gradients, in the order of the arguments
    rounded: list[tuple[Place, Place]]  # unrounded and rounded gradients of matrices


# The fields of an `Entry` after the weights.
_Gradients: TypeAlias = tuple[Weights, tuple[Place | None, ...], list[tuple[Place, Place]]]


def _lstm_weights(
    w: Place, b: Place | None, peepholes: Sequence[Place | None], w_p: Place | None = None
) -> Weights:
    """Return the weights of an LSTM, with w_p if it has a projection."""
    (rows, columns), vectors = w.shape, dict(zip(PEEPHOLES, peepholes, strict=True))
    K = rows - (columns // 4 if w_p is None else w_p.shape[1])
    w_h = (w.part(K, rows),) if w_p is None else (w.part(K, rows), w_p)
    entry = LSTMWeights._make([w, b, *peepholes, w_p])
    return Weights((w.part(0, K),), w_h, {"b": b, **vectors}, entry)


def _gru_weights(matrices: Sequence[Place], biases: Sequence[Place | None]) -> Weights:
    """Return the weights of a GRU of a block op."""
    rows, H = matrices[1].shape
    parts = ((0, rows - H), (rows - H, rows))
    w_x, w_h = (tuple(w.part(*part) for w in matrices) for part in parts)
    vectors, entry = dict(zip(("b_ru", "b_c"), biases, strict=True)), (*matrices, *biases)
    return Weights(w_x, w_h, vectors, GRUWeights._make(entry))


def _matrix(table: Table, w: Place) -> tuple[Place, Place]:
    """Return the places where the gradient of a matrix is computed and returned."""
    returned, compute = table.take("weights", w.shape), compute_dtype(w.dtype)
    # Two products are added before rounding.
    return returned if compute == w.dtype else table.take("work", w.shape, compute), returned


def _lstm_gradients(
    table: Table, w: Place, peepholes: Sequence[Place | None], w_p: Place | None, *, zeros: bool
) -> _Gradients:
    """Return the gradients of an LSTM; with `zeros`, missing peepholes have zeros."""
    H, has_peepholes = w.shape[1] // 4, peepholes[0] is not None
    both = [_matrix(table, a) for a in (w, w_p) if a is not None]
    (into, w_grad), *of_projection = both
    more = has_peepholes or zeros
    sums = table.take("weights", ((7 if more else 4) * H,))
    terms = sums.part(4 * H, 7 * H) if has_peepholes else None
    of_peepholes: list[Place | None] = [None] * 3
    if more:
        of_peepholes = [sums.part(k * H, (k + 1) * H) for k in (4, 5, 6)]
    into_p = of_projection[0][0] if of_projection else None
    used = of_peepholes if has_peepholes else (None,) * 3
    entry = LSTMWeights._make([into, sums.part(0, 4 * H), *used, into_p])
    gradients = _lstm_weights(into, None, (None,) * 3, into_p)._replace(
        vectors={"sums": sums, "terms": terms}, entry=entry
    )
    returned = w_grad, sums.part(0, 4 * H), *of_peepholes, *(a for _, a in of_projection)
    return gradients, returned, both


def _gru_gradients(table: Table, matrices: Sequence[Place]) -> _Gradients:
    """Return the gradients of a GRU."""
    H = matrices[1].shape[1]
    both = [_matrix(table, w) for w in matrices]
    biases = table.take("weights", (2 * H,)), table.take("weights", (H,))
    gradients = _gru_weights([into for into, _ in both], biases)
    returned = (*(w_grad for _, w_grad in both), *biases)
    return gradients, returned, both


def _saved(table: Table, kind: Any) -> list[Place]:
    """Return the saved arrays, perhaps without h, which the gradient of a single step ignores."""
    found: list[Any] = [table.arguments.get(name) for name in kind._fields]
    return [*found[:-1], found[0] if found[-1] is None else found[-1]]


def rows_of(table: Table, a: Place) -> Place:
    """Return the rows of an array that are computed, of [T, B, K] or, of one step, [B, K]."""
    return a.rows if len(a.shape) == 2 else a.part(0, table.length).rows


def clear_after(table: Table, machine: Machine, a: Place) -> None:
    """Fill an array with zeros after the computed rows."""
    if len(a.shape) > 2 and table.length < a.shape[0]:
        machine.clear(a.part(table.length, a.shape[0]))


# The weights that a gradient does not read.
_BIASES = dict.fromkeys(("b", "b_ru", "b_c"))


def entries_of(
    table: Any,
    machine: Machine,
    layer: Any,
    weights: Sequence[Any],
    *,
    zeros: bool,
) -> list[Entry]:
    """Return the weights of layers with their gradients; `zeros` as in `_lstm_gradients`."""
    mode = table.arguments.get("weight_gradients", "sum")
    if mode == "sum":
        return [layer.gradients_of(table, w, zeros=zeros) for w in weights]
    read, likes = [*map(layer.read_of, weights)], [*map(layer.like, weights)]
    if mode == "none":
        return [Entry(w, NO_WEIGHTS, (None,) * len(likes[0]), []) for w in read]
    memory = machine.start_examples(of_entries, likes, mode)
    entries = []
    for n, like in enumerate(likes):
        returned = [None if a is None else table.hold(1) for a in like]
        if zeros and returned[2] is None:  # unused peepholes
            (B, _), H = table.arguments["x"].shape[-2:], like[0].shape[1] // 4
            norms = mode == "norms"
            shape, dtype = (B,) if norms else (B, H), compute_dtype(table.dtype) if norms else None
            of_peepholes = [table.take("weights", shape, dtype) for _ in PEEPHOLES]
            returned[2:5] = of_peepholes
            for place in of_peepholes:
                table.begin(place, None)
        entries.append(Entry(read[n], Examples(memory, n), tuple(returned), []))
    return entries


def finish_all(machine: Machine, entries: Sequence[Entry]) -> None:
    """Add the operations that round the gradients of matrices, or return those by example."""
    first = entries[0].gradients
    if isinstance(first, Examples):
        machine.finish_examples(first.memory, [a for entry in entries for a in entry.returned])
    for into, w_grad in (pair for entry in entries for pair in entry.rounded):
        if into is not w_grad:
            machine.round(into, w_grad)


# Of an LSTM and of a GRU: the states before the first step, the gradients of each step's states, h
# first, and the results.
_LSTM = ("h_prev", "cs_prev"), ("h_grad", "cs_grad"), LSTMOutputs
_GRU = ("h_prev",), ("d_h",), GRUOutputs


class BlockLayer(NamedTuple):
    """The layer of a block op, or each layer of a stacked net."""

    attributes: Any  # of its form
    columns: tuple[int, ...] | None  # of the gates of an LSTM; None for a GRU
    has_peepholes: bool = True  # whether it uses the peepholes that it has
    reverse: bool = False

    def form(self, is_single: bool = False) -> Any:
        """Return the form of the weights."""
        return GRU_FORM if self.columns is None else LSTM_FORM

    def form_of_loops(self) -> Any:
        """Return the form of the weights for compiled loops."""
        return self.form()

    def cell_to_gates(self, entry: Any, H: int) -> Any:
        """Return NumPy's cell of a step whose gradient ends at the gates."""
        if self.columns is None:
            return GRU_FORM.cell(np, entry, self.attributes)
        clip, _, gate, *_ = self.attributes
        peephole = entry[2:5] if self.has_peepholes else None
        return LSTM((), (), (4 * H,), None, self.columns, peephole, clip, gate)

    def cell(self, cells: Cells) -> Any:
        """Return the machine's cell for this layer."""
        if self.columns is None:
            return cells.gru(self.attributes)
        clip, _, gate, forget_bias, *_ = self.attributes  # backwards 0
        return cells.lstm(self.columns, clip, gate, forget_bias)

    def peepholes(self, entry: Named) -> list[Place | None]:
        """Return the peephole weights of an LSTM, None for unused ones."""
        return [entry.get(name) if self.has_peepholes else None for name in PEEPHOLES]

    def weights_of(self, entry: Named) -> Weights:
        """Return the weights of a layer, from arrays by name."""
        if self.columns is None:
            return _gru_weights((entry["w_ru"], entry["w_c"]), (entry["b_ru"], entry["b_c"]))
        found = _lstm_weights(entry["w"], entry["b"], self.peepholes(entry), entry.get("w_p"))
        is_clipped = self.attributes.proj_clip is not None  # which NumPy computes
        return of_form(found.entry) if is_clipped else found

    def read_of(self, entry: Named) -> Weights:
        """Return the weights that a gradient reads, which are all but the biases."""
        return self.weights_of({**entry, **_BIASES})

    def like(self, entry: Named) -> Any:
        """Return arrays with the shapes of the weights, of one number of memory."""
        arrays: Any
        if self.columns is None:
            matrices = entry["w_ru"], entry["w_c"]
            arrays = GRUWeights(*matrices, *(w.at(0) for w in matrices))
        else:
            w, w_p = entry["w"], entry.get("w_p")
            arrays = LSTMWeights._make([w, w.at(0), *self.peepholes(entry), w_p])
        return each(arrays, lambda a: np.broadcast_to(np.int8(0), a.shape))

    def gradients_of(self, table: Table, entry: Named, *, zeros: bool) -> Entry:
        """Return the weights of a layer with their gradients; `zeros` as in `_lstm_gradients`."""
        if self.columns is None:
            found = _gru_gradients(table, (entry["w_ru"], entry["w_c"]))
        else:
            weights = entry["w"], self.peepholes(entry), entry.get("w_p")
            found = _lstm_gradients(table, *weights, zeros=zeros)
        return Entry(self.read_of(entry), *found)


def block(arguments: Arguments, call: BlockLayer) -> RecordedCall:
    """Describe block_lstm, block_gru or a single step."""
    table, machine = machine_for(arguments, call, in_time=True)
    names, _, kind = _GRU if call.columns is None else _LSTM
    weights, x = call.weights_of(table.arguments), table.arguments["x"]
    states, count = tuple(table.arguments[name] for name in names), len(kind._fields)
    shape = *x.shape[:-1], weights.w_h[-1].shape[0]
    # Callers often keep h without the others.
    others = table.take("others", (count - 1, *shape))
    saved = [*(others.at(k) for k in range(count - 1)), table.take("h", shape)]
    rows, nothing = tuple(rows_of(table, a) for a in saved), (None,) * len(states)
    for a in saved:
        clear_after(table, machine, a)
    layer = LayerPlaces((rows_of(table, x),), call.reverse, weights, states, rows, nothing)
    forward(machine, [[layer]])
    return machine.finish(saved, kind)


def block_grad(arguments: Arguments, call: BlockLayer, kept: Kept | None = None) -> RecordedCall:
    """
    Describe the gradient of block_lstm, of block_gru or of a single step.

    With `kept` the call has, instead of the saved arrays, rows of states by the name "kept".
    """
    whole = kept is None
    saves = "all" if whole else "states"
    table, machine = machine_for(arguments, call, in_time=whole, saves=saves)
    names, of_states, kind = _GRU if call.columns is None else _LSTM
    x = table.arguments["x"]
    (entry,) = entries_of(table, machine, call, [table.arguments], zeros=True)
    if whole:
        saved = _saved(table, kind)
    else:  # the forward pass is computed again, with biases
        entry = entry._replace(weights=call.weights_of(table.arguments))
        states = table.arguments["kept"]
        saved = [*states, states[0]]
    first = tuple(table.arguments[name] for name in names)
    cotangents = [table.arguments[name] for name in of_states]
    B, H = x.shape[-2], entry.weights.w_h[-1].shape[0]
    rows = tuple(rows_of(table, a) for a in saved) if whole else tuple(saved)
    nothing = (None,) * len(first)
    layer = LayerPlaces(
        (rows_of(table, x),), call.reverse, entry.weights, tuple(first), rows, nothing, kept=kept
    )
    x_grad = table.take("x", x.shape)
    clear_after(table, machine, x_grad)
    of_first = tuple(table.take("weights", (B, H)) for _ in first)
    places = tuple(None if g is None else rows_of(table, g) for g in cotangents)
    grads = GradientPlaces(places, nothing, of_first, rows_of(table, x_grad), entry.gradients)
    backward(machine, table, [[layer]], [[grads]])
    finish_all(machine, [entry])
    if call.columns is None:
        return machine.finish([x_grad, *of_first, *entry.returned], GRUGrads)
    w_grad, b_grad, *of_peepholes = entry.returned[:5]
    return machine.finish([x_grad, *of_first[::-1], w_grad, *of_peepholes, b_grad], LSTMGrads)


def lstm_block_cell_grad(arguments: Arguments, call: BlockLayer) -> RecordedCall:
    """Describe lstm_block_cell_grad."""
    table, machine = machine_for(arguments, call, in_time=True)
    c, *states = (table.arguments[name] for name in ("cs_prev", "h_grad", "cs_grad"))
    saved = *_saved(table, LSTMOutputs)[:-1], table.arguments["co"]
    B, H = saved[0].shape
    dicfo, terms = table.take("x", (B, 4 * H)), table.take("weights", (3, H))
    first = tuple(table.take("states", (B, H)) for _ in states)
    peepholes = dict(zip(PEEPHOLES, call.peepholes(table.arguments), strict=True))
    entry = Weights((), (), peepholes, LSTMWeights(None, None, *peepholes.values()))
    layer = LayerPlaces((), False, entry, (c, c), saved, (None, None))
    weights = Weights((), (), {"terms": terms if call.has_peepholes else None})
    grads = GradientPlaces(tuple(states), (None, None), first, None, weights)
    machine.backward_gates(layer, grads, [dicfo])
    table.begin(terms, None)
    return machine.finish([first[1], dicfo, *(terms.at(k) for k in range(3))], LSTMCellGrads)


def gru_block_cell_grad(arguments: Arguments, call: BlockLayer) -> RecordedCall:
    """Describe gru_block_cell_grad."""
    table, machine = machine_for(arguments, call, in_time=True)
    h, w_ru, w_c, d_h = (table.arguments[name] for name in ("h_prev", "w_ru", "w_c", "d_h"))
    saved, (rows, H) = _saved(table, GRUOutputs), w_c.shape
    B = saved[0].shape[0]
    d_x, first = table.take("x", (B, rows - H)), table.take("states", (B, H))
    d_ru, d_c = table.take("x", (B, 2 * H)), table.take("x", (B, H))
    entry = _gru_weights((w_ru, w_c), (None, None))
    layer = LayerPlaces((), False, entry, (h,), tuple(saved), (None,))
    grads = GradientPlaces((d_h,), (None,), (first,), d_x, Weights((), (), {}))
    machine.backward_gates(layer, grads, [d_ru, d_c])
    return machine.finish([d_x, first, d_c, d_ru], GRUCellGrads)
