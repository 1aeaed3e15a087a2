"""What the ops share: one layer of a block op; of nets the checks, cells and reserve_space.

Symbols: T time steps, B batch, I input size, H hidden size, L layers, D directions, P the size of
the output of one direction.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ._arrays import (
    cast,
    cast_all,
    check_arrays,
    check_bool,
    check_choice,
    check_dropout,
    check_integer,
    check_lengths,
    check_resets,
    check_save,
    compute_dtype,
    contiguous,
    counted,
    expect_rank,
    expect_shape,
    module_of,
    operand_dtype,
    type_shown,
    unless_zero,
)
from ._typing import NamedTuple, cached_property
from .arithmetic.norms import norm_of_rows, together
from .cells.contract import Form, Gradients, States, Weight, each
from .cells.gru_reset_after import GRUResetAfter, GRUResetAfterOutputs
from .cells.lstm import LSTM, LSTMOutputs, LSTMStates
from .cells.simple_rnn import SimpleRNN, SimpleRNNOutputs
from .driver import layer as _layer
from .driver import padded as _padded
from .driver import planned
from .driver.packing import Packing
from .driver.padded import Padded
from .driver.planned import Backward, Layers, find, fits, in_reserve_space
from .driver.reserve import (
    EVERY_SIZE,
    FINGERPRINT_SIZE,
    OWN,
    OWNERS,
    Leaves,
    Sizes,
    fingerprint,
)
from .driver.stack import Stack
from .weights.block_forms import prepared
from .weights.gradients import OfWeights
from .weights.packed import Settled, check_activation
from .weights.params import DIRECTIONS, GATES, Net, check_net, expect_params_size, layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._arrays import Array
    from .cells.contract import Cell
    from .driver.packing import Rows
    from .driver.reserve import Layers as Widths
    from .weights.block_forms import LSTMCall


class BlockCall(NamedTuple):
    """What a call of a block op is asked beside its arrays, after its checks."""

    attributes: Any  # as its form has them
    dtype: np.dtype[Any]
    plain: bool = False  # whether all arrays are NumPy's own and of the computation's dtype
    plans: dict[Any, Any] | None = None  # of calls like this, where there was one before


def block_forward(
    xp: ModuleType, form: Form, padded: Padded, weights: Any, call: BlockCall | LSTMCall
) -> Any:
    """Return what the steps of one layer leave, or without an extent what one step does."""
    made = planned.forward(call.plans, form, weights, call.attributes, padded)
    if made is not None:
        return made
    x, first, _, extent = padded
    if not call.plain:
        x, *states = cast_all(call.dtype, x, *first)
        first, weights = first._make(states), prepared(xp, weights, call.dtype)
    cell = form.cell(xp, weights, call.attributes)
    # In one piece, fresh memory costs fewer page faults. h is often kept without the others.
    shape, others = (*x.shape[:-1], first.h.shape[1]), len(form.Saved._fields) - 1
    outputs = form.Saved._make([*xp.empty((others, *shape), x.dtype), xp.empty(shape, x.dtype)])
    if extent is None and call.plain:
        _layer.forward_step(xp, cell, x, first, outputs)
    else:
        _padded.forward(xp, cell, Padded(x, first, outputs, extent))
    return outputs


def block_gradient(
    xp: ModuleType,
    form: Form,
    padded: Padded,
    weights: tuple[Any, Any],
    given: Any,
    call: BlockCall | LSTMCall,
    by: str,
) -> tuple[Array, Any, Any]:
    """
    Return the gradients of x, first states and weights of one layer, or of one step.

    `weights` are those that the cell has, and like those of which there are gradients.
    """
    plans, dtype, first = call.plans if by == "sum" else None, call.dtype, padded.first
    made = planned.backward(plans, form, weights, call.attributes, padded, given)
    if made is None:
        of_weights = OfWeights(xp, form, dtype, weights[1], by, len(first.h))
        padded, given = _padded.of_dtype(dtype, padded), given._make(cast_all(dtype, *given))
        cell = form.cell(xp, prepared(xp, weights[0], dtype), call.attributes)
        found = _padded.backward(xp, cell, padded, given, of_weights.written)
        made = *found, of_weights.finished()
    x_grad, first_grad, grads = made
    return x_grad, each(first_grad, lambda g: cast(g, dtype)), grads


class RunArguments(NamedTuple):
    """The arguments of a call that have nothing to do with its weights, as they are given."""

    sequence_lengths: object
    resets: object
    dropout: object
    is_training: object
    time_major: object
    seed: object = 0
    seed2: object = 0
    save: object = "all"
    reverse: object = False


class Run(NamedTuple):
    """A call after the checks that `cudnn_rnn` and `stacked_rnn` have in common."""

    xp: ModuleType
    dtype: np.dtype[Any]
    sizes: Sizes
    I: int
    time_major: bool
    lengths: NDArray[np.int32] | None = None
    resets: NDArray[np.bool_] | None = None  # [T, B]
    every: int | None = None  # whether the steps leave all or every k-th state
    reverse: bool = False

    @property
    def packing(self) -> Packing:
        """The sequences without padding."""
        T, B, *_ = self.sizes
        return Packing(self.xp, T, B, self.lengths, self.resets, self.reverse)

    @property
    def steps(self) -> str:
        """The first axes of the input, as errors show them."""
        return "T, B" if self.time_major else "B, T"

    @property
    def places(self) -> str:
        """The first axes of the states, as errors show them."""
        return "L*D, B" if self.time_major else "B, L*D"

    @property
    def directions(self) -> str:
        """The first axes of the states of one layer, as errors show them."""
        return "D, B" if self.time_major else "B, D"


def check_run(
    op: str, required: Mapping[str, Any], optional: Mapping[str, Any], arguments: RunArguments
) -> Run:
    """Check all arrays of a call by name, input among them, and its attributes and sizes."""
    xp, dtype = check_arrays(op, required, optional)
    _, _, dropout, training, time_major, seed, seed2, save, _ = arguments
    major = check_bool(op, "time_major", time_major)
    *steps, I = expect_rank(op, "input", required["input"], f"({'T, B' if major else 'B, T'}, I)")
    T, B = steps if major else steps[::-1]
    sizes = Sizes(
        T,
        B,
        check_bool(op, "is_training", training),
        check_dropout(op, dropout),
        check_integer(op, "seed", seed),
        check_integer(op, "seed2", seed2),
    )
    every = check_save(op, save)
    return Run(xp, dtype, sizes, I, major, every=every if sizes.is_training else None)


def check_sequences(op: str, run: Run, arguments: RunArguments, D: int) -> Run:
    """Return the call with its lengths and resets, and the way that one direction runs."""
    (T, B, *_), (lengths, resets, *_) = run.sizes, arguments
    if check_bool(op, "reverse", arguments.reverse):
        if D > 1:
            raise ValueError(
                f"{op}: reverse is True, expected False with direction = bidirectional"
            )
        run = run._replace(reverse=True)
    if lengths is resets is None:
        return run
    steps = (T, B) if run.time_major else (B, T)
    marks = check_resets(op, resets, *steps, symbols=f"({run.steps})")
    if marks is not None and not run.time_major:
        marks = marks.T
    return run._replace(lengths=check_lengths(op, lengths, T, B), resets=marks)


def check_shapes(
    op: str, run: Run, net: Widths, arrays: Mapping[str, Any], symbol: str = "P"
) -> None:
    """
    Check the shapes of states, outputs and their gradients by name, those that are not None.

    A state is an array of all layers or a list of one for each.
    """
    T, B, *_ = run.sizes
    L, D, widths = net.L, net.D, net.widths
    steps, places = ((T, B), (L * D, B)) if run.time_major else ((B, T), (B, L * D))
    for name, a in arrays.items():
        if name.startswith(("input_h", "output_h")):
            at, symbols = 1, symbol
        elif name.startswith(("input_c", "output_c")):
            at, symbols = 0, "H"
        else:
            if a is not None and a.shape != (shape := (*steps, D * widths[-1][1])):
                expect_shape(op, name, a, f"({run.steps}, D*{symbol})", shape)
            continue
        if isinstance(a, (list, tuple)):
            _check_layers(op, run, net, name, a, at, symbols)
        elif a is not None and a.shape != (shape := (*places, widths[0][at])):
            expect_shape(op, name, a, f"({run.places}, {symbols})", shape)
        elif a is not None and len(sizes := sorted({width[at] for width in widths})) > 1:
            raise ValueError(
                f"{op}: {name} is {type_shown(a)}, expected a list of L = {L} arrays"
                f" ({run.directions}, {symbols}), one for each layer, as {symbols} is"
                f" {' and '.join(map(str, sizes))}"
            )


def _check_layers(
    op: str, run: Run, net: Widths, name: str, states: Sequence[Any], at: int, symbols: str
) -> None:
    """Check the shapes of a state that is a list of an array for each layer."""
    if len(states) != net.L:
        raise ValueError(
            f"{op}: {name} has {counted(len(states), 'entry')}, expected L = {net.L}, an array"
            f" ({run.directions}, {symbols}) for each layer"
        )
    for layer, (a, width) in enumerate(zip(states, net.widths, strict=True)):
        if a is None:  # the whole of an optional state may be None
            expected = f"a {run.xp.__name__}.ndarray like input"
            raise TypeError(f"{op}: {name}[{layer}] is None, expected {expected}")
        B = run.sizes.B
        shape = (net.D, B, width[at]) if run.time_major else (B, net.D, width[at])
        expect_shape(op, f"{name}[{layer}]", a, f"({run.directions}, {symbols})", shape)


def check_packed(
    op: str,
    states: tuple[Any, Any, Any],
    net: Settled,
    run: RunArguments,
    given: Mapping[str, Any],
) -> tuple[Run, Net]:
    """
    Check a call of packed parameters; return it and its net.

    `states` are input, input_h and input_c; `given`, by name, the arrays of the gradient alone.
    """
    input, input_h, input_c = states
    said, known = net.said, net.known
    rnn_mode = check_choice(op, "rnn_mode", said.rnn_mode, tuple(GATES))
    direction = check_choice(op, "direction", said.direction, DIRECTIONS)
    is_lstm, D = rnn_mode == "lstm", 2 if direction == "bidirectional" else 1
    required = {"input": input, "input_h": input_h, "params": net.params}
    optional = dict(given)
    if "reserve_space" in optional:
        required["reserve_space"] = optional.pop("reserve_space")
    # Keras gives the cells without it a plain 0.
    if is_lstm:
        required["input_c"] = input_c
    else:
        optional["input_c"] = unless_zero(input_c)
    call = check_run(op, required, optional, run)

    if known is not None:
        for name, a, size in (("input_h", input_h, known.P), ("input_c", input_c, known.H)):
            if getattr(a, "ndim", 0) not in (0, 3):
                B, places = call.sizes.B, known.L * D
                expected = (places, B, size) if call.time_major else (B, places, size)
                symbol = "P" if name == "input_h" and known.P != known.H else "H"
                raise ValueError(
                    f"{op}: {name} has shape {a.shape}, expected ({call.places}, {symbol}) ="
                    f" {expected}, such as packed.zero_state({B}) returns"
                )
    shape = expect_rank(op, "input_h", input_h, f"({call.places}, P)")
    H = shape[2]
    if is_lstm:
        H = expect_rank(op, "input_c", input_c, f"({call.places}, H)")[2]
    L = shape[0 if call.time_major else 1]
    if known is not None:
        L, H = known.L * D, known.H
        if call.I != known.I:
            raise ValueError(
                f"{op}: input has shape {input.shape}, expected ({call.steps}, I) with I ="
                f" {known.I} as params knows it"
            )
    if L % D:
        raise ValueError(
            f"{op}: input_h has shape {shape}, expected ({call.places}, P) with D = 2:"
            " bidirectional"
        )
    sizes = L // D, H, call.I
    made = check_net(op, *sizes, rnn_mode, said.input_mode, direction, said.num_proj)
    made = made._replace(gate=check_activation(op, rnn_mode, said.recurrent_activation))
    if net.params.size < made.L:  # no list may be as long as there are layers
        expect_params_size(op, net.params, made, alone=known is None)
    check_shapes(op, call, made, {"input_h": input_h, **({"input_c": input_c} if is_lstm else {})})
    expect_params_size(op, net.params, made, alone=known is None)
    unchecked = ("input_c",) if is_lstm else ("input_c", "output_c", "output_c_backprop")
    check_shapes(op, call, made, {n: a for n, a in optional.items() if n not in unchecked})
    return check_sequences(op, call, run, D), made


# Which quarter of the rows of the packed LSTM weights belongs to i, ci, f and o.
_LSTM_ORDER = (0, 2, 1, 3)

# What a step of each cell leaves.
_SAVED: dict[str, Any] = {
    "lstm": LSTMOutputs,
    "gru": GRUResetAfterOutputs,
    "rnn_tanh": SimpleRNNOutputs,
    "rnn_relu": SimpleRNNOutputs,
}


class Weights(NamedTuple):
    """The parameters of one direction of one layer, or their gradients: views of the packed."""

    w_x: Array | None  # [G*H, K], None with skip_input
    w_h: Array  # [G*H, P]
    w_p: Array | None  # [P, H]
    b_x: Array  # [G*H]
    b_h: Array  # [G*H]


_Place: TypeAlias = tuple[slice, tuple[int, ...]]


@functools.lru_cache(maxsize=256)
def _places(net: Net) -> list[tuple[Any, ...]]:
    """Return, by layer and direction, where the `Weights` lie in a net's parameters."""
    H, P, rows = net.H, net.P, len(GATES[net.rnn_mode]) * net.H
    starts: dict[tuple[int, int, str], int] = {}
    for p in layout(net):
        starts.setdefault((p.layer, p.direction, p.kind), p.offset)

    def place(layer: int, d: int, kind: str, *shape: int) -> _Place:
        start = starts[layer, d, kind]
        return slice(start, start + math.prod(shape)), shape

    return [
        (
            None
            if net.skip and layer == 0
            else place(layer, d, "input", rows, net.D * P if layer else net.I),
            place(layer, d, "recurrent", rows, P),
            place(layer, d, "projection", P, H) if net.num_proj else None,
            place(layer, d, "input_bias", rows),
            place(layer, d, "recurrent_bias", rows),
        )
        for layer in range(net.L)
        for d in range(net.D)
    ]


def weights_of(params: Array, net: Net) -> list[Weights]:
    """Return the parameters by layer and direction; there may be an axis in front."""
    found, axes = [], params.shape[:-1]
    for places in _places(net):
        w_x, w_h, w_p, b_x, b_h = (
            None if place is None else params[..., place[0]].reshape(*axes, *place[1])
            for place in places
        )
        found.append(Weights(w_x, w_h, w_p, b_x, b_h))
    return found


class PackedForm(Form):
    """
    What makes the cells of a net of packed parameters.

    With `single`, cells for a single step of NumPy's real numbers: see `GRUResetAfter`.
    """

    name, shapes = "a cell of CudnnRNN", MappingProxyType[str, str]({})

    def __init__(self, net: Net, *, single: bool = False) -> None:
        self._net, self._hc_last = net, single and net.rnn_mode == "gru"
        self.States = LSTMStates if net.rnn_mode == "lstm" else States
        self.Saved = _SAVED[net.rnn_mode]

    def made(self, xp: ModuleType, w_h: Array | None, b_x: Array, b_h: Array) -> tuple[Array, ...]:
        """Return what a cell has that is no part of its weights: the bias, and a GRU's w_h."""
        compute = compute_dtype(b_x.dtype)
        b_x, b_h = cast(b_x, compute), cast(b_h, compute)
        if self._net.rnn_mode != "gru":
            return (b_x + b_h,)
        H = len(b_x) // 3
        b = b_x.copy()
        b[: 2 * H] += b_h[: 2 * H]
        if self._hc_last:
            return (b,)
        assert w_h is not None
        reordered = xp.empty(w_h.shape, w_h.dtype)  # hc, r, u in place of r, u, hc
        reordered[:H], reordered[H:] = w_h[2 * H :], w_h[: 2 * H]
        return b, reordered

    def cell(
        self,
        xp: ModuleType,
        weights: Weights,
        attributes: Any = None,
        made: tuple[Array, ...] | None = None,
    ) -> Cell:
        """Return the cell of views of the packed parameters."""
        w_x, w_h, w_p, b_x, b_h = weights
        rnn_mode, gate, rows = self._net.rnn_mode, self._net.gate, len(w_h)
        b, *others = self.made(xp, w_h, b_x, b_h) if made is None else made
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
            return LSTM(inputs, recurrent, (rows,), b, _LSTM_ORDER, gate=gate)
        both = (*recurrent, Weight(w_p.T, len(w_p), delta=1))
        return LSTM(inputs, both, (rows, len(w_p)), b, _LSTM_ORDER, gate=gate)

    def gradients(self, xp: ModuleType, grads: Weights) -> Gradients:
        """Return views of the matrices, and memory for the sums."""
        w_x, w_h, w_p, *_ = grads
        matrices = [None if a is None else a.swapaxes(-1, -2) for a in (w_x, w_h)]
        *axes, rows, _ = w_h.shape
        widths = [rows * 4 // 3 if self._net.rnn_mode == "gru" else rows]
        if self._hc_last:
            widths = [rows, rows]
        if w_p is not None:
            matrices.append(w_p.swapaxes(-1, -2))
            widths.append(w_p.shape[-2])
        return Gradients(None, matrices, [xp.zeros((*axes, width), w_h.dtype) for width in widths])

    def finished(self, grads: Weights, written: Gradients) -> Weights:
        """Write the gradients of the biases, and have a GRU's matrix in the packed order."""
        xp, total = module_of(grads.w_h), written.sums[0]
        if self._hc_last:
            grads.b_x[...], grads.b_h[...] = written.sums
        elif self._net.rnn_mode == "gru":
            H = grads.w_h.shape[-2] // 3
            grads.w_h[...] = xp.roll(grads.w_h, -H, axis=-2)
            grads.b_x[...] = total[..., H:]
            grads.b_h[...] = xp.roll(total[..., : 3 * H], -H, axis=-1)
        else:
            grads.b_x[...] = grads.b_h[...] = total
        return grads


def form_of(net: Net, run: Run, leaves: Leaves) -> PackedForm:
    """Return what makes the cells of a call."""
    rows = leaves.rows
    single = rows.single and rows.rows > 0 and leaves.every is None and not net.skip
    real = run.xp is np and compute_dtype(run.dtype).kind == "f"
    return PackedForm(net, single=single and real)


def stack_of(net: Net, run: Run, params: Array, leaves: Leaves) -> Stack:
    """Return the cells of packed parameters."""
    operands = cast(contiguous(run.xp, params), operand_dtype(run.xp, run.dtype))
    form = form_of(net, run, leaves)
    cells = [form.cell(run.xp, w) for w in weights_of(operands, net)]
    return Stack(cells, leaves, again=cells)


class OfPacked:
    """The gradients of packed parameters, while they are made: as `weights.gradients.OfWeights`."""

    def __init__(self, net: Net, run: Run, params: Array, leaves: Leaves, by: str) -> None:
        xp, dtype, B = run.xp, run.dtype, run.sizes.B
        self._xp, self._form, self._dtype, self._by = xp, form_of(net, run, leaves), dtype, by
        compute = compute_dtype(dtype)
        if by == "none":
            self.written = [Gradients(None, (), (), weight_gradients=by)] * (net.L * net.D)
            return
        if by == "norms":
            self._norms = [xp.zeros(B, compute)]
            # Nothing is kept of a matrix.
            self._weights = [
                each(w, lambda a: xp.zeros((B, len(a), 0)[: a.ndim + 1], compute))
                for w in weights_of(params, net)
            ]
        else:
            axes = () if by == "sum" else (B,)
            self._memory = xp.empty((*axes, *params.shape), compute)
            self._weights = weights_of(self._memory, net)
        made = [self._form.gradients(xp, w)._replace(weight_gradients=by) for w in self._weights]
        if by == "norms":
            made = [
                g._replace(weights=[None if a is None else self._norms for a in g.weights])
                for g in made
            ]
        self.written = made

    def finished(self) -> Any:
        """Return what has been written, packed; or the norms, or None."""
        if self._by == "none":
            return None
        for w, written in zip(self._weights, self.written, strict=True):
            self._form.finished(w, written)
        if self._by != "norms":
            return cast(self._memory, self._dtype)
        with np.errstate(all="ignore"):
            biases = [norm_of_rows(self._xp, b) for w in self._weights for b in (w.b_x, w.b_h)]
            return together(self._xp, [*self._norms, *biases])


def _layers_of(net: Net, leaves: Leaves, dtype: np.dtype[Any], *, backward: bool) -> Layers:
    """Return the layers of packed parameters as calls that are alike have them."""
    if dtype.char not in "fd" or net.I * net.H * net.P == 0 or not fits(leaves):
        raise LookupError
    form, places, is_gru = PackedForm(net), _places(net), net.rnn_mode == "gru"
    params_size = net.params_size

    def made(weights: Sequence[Array]) -> list[tuple[Array, ...]]:
        (params,) = weights
        if backward and not is_gru:  # whose biases are not looked at
            return [()] * len(places)
        found = []
        for _, w_h, _, b_x, b_h in places:
            matrix = params[w_h[0]].reshape(w_h[1]) if is_gru else None
            found.append(form.made(np, matrix, params[b_x[0]], params[b_h[0]]))
        return found

    def grads() -> list[Array]:
        reordered = [np.empty(w_h[1], dtype) for _, w_h, *_ in places] if is_gru else []
        return [np.empty(params_size, dtype), *reordered]

    def written(grads: Sequence[Array]) -> list[Gradients]:
        params, *reordered = grads
        found = [form.gradients(np, w) for w in weights_of(params, net)]
        return [
            g._replace(weights=[g.weights[0], w_h.T])
            for g, w_h in zip(found, reordered, strict=True)
        ] if is_gru else found  # fmt: skip

    return Layers(
        leaves.rows,
        net.D,
        [np.empty(params_size, dtype)],
        made,
        lambda weights, made: [
            form.cell(np, w, None, of_cell or None)
            for w, of_cell in zip(weights_of(weights[0], net), made, strict=True)
        ],
        *in_reserve_space(leaves, dtype),
        grads,
        written,
    )


def packed_gradient(net: Net, grads: Sequence[Array], sums: Sequence[Sequence[Array]]) -> Array:
    """Return the gradient of packed parameters, of what `_layers_of` has written and the sums."""
    params, *reordered = grads
    for n, ((_, w_h, _, b_x, b_h), (total, *_)) in enumerate(zip(_places(net), sums, strict=True)):
        to_x, to_h = params[b_x[0]], params[b_h[0]]
        if not reordered:
            to_x[...] = to_h[...] = total
            continue
        H = len(total) // 4
        matrix = params[w_h[0]].reshape(w_h[1])
        for to, a in ((to_h, total), (matrix, reordered[n])):
            to[: 2 * H], to[2 * H :] = a[H : 3 * H], a[:H]
        to_x[...] = total[H:]
    return params


def leaves_of_rows(net: Net, sizes: Sizes, rows: Rows, every: int | None = None) -> Leaves:
    """Return what these steps of a net of packed parameters leave in our reserve_space."""
    states = LSTMStates if net.rnn_mode == "lstm" else States
    return Leaves(net, sizes, _SAVED[net.rnn_mode], states, rows, every)


def leaves_of(net: Net, run: Run) -> Leaves:
    """Return what the steps of a call leave."""
    return leaves_of_rows(net, run.sizes, run.packing, run.every)


def packed_fingerprint(net: Net, run: Run) -> int:
    """Return the fingerprint of a call with packed parameters."""
    (*of_net, gate), (T, B, *_) = net, run.sizes
    return fingerprint(run, run.sizes.drops(net), *of_net, T, B, gate)


def host_reserved_of(engine: str, net: Net, run: Run) -> NDArray[np.int8]:
    """Return whose reserve_space it is, of what call, and k if it has every k-th state only."""
    owner = OWN if engine == "numpy" else OWNERS.index(engine)
    text = bytes([owner]) + packed_fingerprint(net, run).to_bytes(FINGERPRINT_SIZE, "little")
    if run.every is not None:
        text += run.every.to_bytes(EVERY_SIZE, "little")
    return np.frombuffer(text, np.int8).copy()


class PackedCall:
    """A call after its checks, but for the values of its arrays; there is one for those alike."""

    def __init__(self, run: Run, net: Net, engine: Any) -> None:
        self.run, self.net, self.engine = run, net, engine
        # How the layers lie, which for one call alone is not worth it.
        self.plans: dict[Any, Any] | None = None

    @property
    def by_cudnn(self) -> bool:
        """Whether cuDNN computes it, by whatever algorithm."""
        return self.engine not in ("numpy", "cupy")

    @cached_property
    def leaves(self) -> Leaves:
        """What the steps leave."""
        return leaves_of(self.net, self.run)

    @cached_property
    def size(self) -> int:
        """The size of reserve_space, if all is saved."""
        return self.leaves.size

    @cached_property
    def host_reserved(self) -> NDArray[np.int8]:
        """What belongs to its reserve_space."""
        return host_reserved_of(self.engine, self.net, self.run)

    def returned(self, host_reserved: object) -> bool:
        """Return whether a call like this returned it, and saved all."""
        expected = self.host_reserved
        return (
            type(host_reserved) is np.ndarray
            and host_reserved.dtype == expected.dtype
            and host_reserved.shape == expected.shape
            and host_reserved.tobytes() == expected.tobytes()
        )

    def plan(self, make: Callable[..., Any], x: Array, *rest: Any) -> Any:
        """Return how calls like this lie, None where that is not settled."""
        if self.engine != "numpy":
            return None

        def laid_out() -> Any:
            backward = make is Backward
            layers = _layers_of(self.net, self.leaves, self.run.dtype, backward=backward)
            return make(layers, x, *rest)

        return find(self.plans, (make, *rest[1:]), laid_out)

    def states(self, h: Any, c: Any) -> Any:
        """Return states, or their gradients, as the cells have them."""
        return LSTMStates(h, c) if self.net.rnn_mode == "lstm" else States(h)
