"""Shared by cudnn_rnn and stacked_rnn: check and run a net.

Symbols: T time steps, B batch, I input size, H hidden size, L layers, D directions, P the size of
the output of one direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ._typing import NamedTuple, cached_property
from .cells.contract import Cell, Form
from .cells.packed import DIRECTIONS, GATES, Net
from .cells.packed_forms import PackedForm
from .checks.arrays import compute_dtype, on_device
from .checks.attributes import (
    check_bool,
    check_choice,
    check_count,
    check_dropout,
    check_integer,
    check_save,
    type_shown,
    unless_zero,
)
from .checks.calls import (
    check_arrays,
    check_lengths,
    check_resets,
    expect_memory,
    expect_rank,
    expect_shape,
    zero_view,
)
from .driver.packing import Packing, Rows
from .driver.pages import in_cuda, in_numpy
from .driver.reserve import Layers as Widths
from .driver.reserve import Note, ReserveLayout, Sizes, fingerprint, make_host_reserved
from .driver.reserve import with_sequences as fingerprint_with
from .weights.packed import ResolvedNet, check_activation
from .weights.params import check_net, expect_params_size

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RunArguments(NamedTuple):
    """The unchecked arguments of a call that do not depend on its weights."""

    sequence_lengths: object
    resets: object
    dropout: object
    is_training: object
    time_major: object
    seed: object = 0
    seed2: object = 0
    save: object = "all"
    reverse: object = False


class NetSizes(NamedTuple):
    """The sizes of a net whose layers may differ."""

    L: int
    D: int
    widths: tuple[tuple[int, int], ...]  # H and P of each layer


class CheckedCall(NamedTuple):
    """A call after the checks that `cudnn_rnn` and `stacked_rnn` share."""

    xp: ModuleType
    dtype: np.dtype[Any]
    sizes: Sizes
    I: int
    time_major: bool
    lengths: NDArray[np.int32] | None = None
    resets: NDArray[np.bool_] | None = None  # [T, B]
    every: int | None = None  # k if the steps save every k-th state, None if they save everything
    reverse: bool = False

    @property
    def packing(self) -> Packing:
        """The sequences without padding."""
        T, B, *_ = self.sizes
        return Packing(self.xp, T, B, self.lengths, self.resets)

    def axes(self, first: str) -> str:
        """Return the first axes of the input, or of states, as errors show them."""
        return f"{first}, B" if self.time_major else f"B, {first}"


def check_run(
    op: str, required: Mapping[str, Any], optional: Mapping[str, Any], arguments: RunArguments
) -> CheckedCall:
    """Check all arrays of a call by name, input among them, and its attributes and sizes."""
    xp, dtype = check_arrays(op, required, optional)
    _, _, dropout, training, time_major, seed, seed2, save, _ = arguments
    major = check_bool(op, "time_major", time_major)
    *steps, I = expect_rank(op, "input", required["input"], f"({'T, B' if major else 'B, T'}, I)")
    T, B = steps if major else steps[::-1]
    is_training, rate = check_bool(op, "is_training", training), check_dropout(op, dropout)
    seeds = check_integer(op, "seed", seed), check_integer(op, "seed2", seed2)
    sizes = Sizes(T, B, is_training, rate, *seeds)
    every = check_save(op, save)
    return CheckedCall(xp, dtype, sizes, I, major, every=every if sizes.is_training else None)


def check_sequences(op: str, run: CheckedCall, arguments: RunArguments, D: int) -> CheckedCall:
    """Return the call with its lengths, resets and direction."""
    if check_bool(op, "reverse", arguments.reverse):
        if D > 1:
            raise ValueError(
                f"{op}: reverse is True, expected False with direction = bidirectional"
            )
        run = run._replace(reverse=True)
    return with_sequences(op, run, arguments.sequence_lengths, arguments.resets)


def with_sequences(op: str, run: CheckedCall, lengths: object, resets: object) -> CheckedCall:
    """Check lengths and resets; return the call with them."""
    if lengths is resets is None:
        return run
    T, B, *_ = run.sizes
    steps = (T, B) if run.time_major else (B, T)
    marks = check_resets(op, resets, *steps, symbols=f"({run.axes('T')})")
    if marks is not None and not run.time_major:
        marks = marks.T
    return run._replace(lengths=check_lengths(op, lengths, T, B), resets=marks)


def check_shapes(
    op: str, run: CheckedCall, net: Widths, arrays: Mapping[str, Any], symbol: str = "P"
) -> None:
    """
    Check the shapes of states, outputs and their gradients by name, if they are not None.

    A state is an array of all layers or a list of one for each.
    """
    T, B, *_ = run.sizes
    L, D, widths = net.L, net.D, net.widths
    steps, places = ((T, B), (L * D, B)) if run.time_major else ((B, T), (B, L * D))
    expect_memory(op, "input", (*steps, run.I), T * B * D * max(map(max, widths)))
    for name, a in arrays.items():
        if name.startswith(("input_h", "output_h")):
            at, symbols = 1, symbol
        elif name.startswith(("input_c", "output_c")):
            at, symbols = 0, "H"
        else:
            if a is not None and a.shape != (shape := (*steps, D * widths[-1][1])):
                expect_shape(op, name, a, f"({run.axes('T')}, D*{symbol})", shape)
            continue
        if isinstance(a, (list, tuple)):
            _check_layers(op, run, net, name, a, at, symbols)
        elif a is not None and a.shape != (shape := (*places, widths[0][at])):
            expect_shape(op, name, a, f"({run.axes('L*D')}, {symbols})", shape)
        elif a is not None and len(sizes := sorted({width[at] for width in widths})) > 1:
            raise ValueError(
                f"{op}: {name} is {type_shown(a)}, expected a list of L = {L} arrays"
                f" ({run.axes('D')}, {symbols}), one for each layer, as {symbols} is"
                f" {' and '.join(map(str, sizes))}"
            )


def _check_layers(
    op: str, run: CheckedCall, net: Widths, name: str, states: Sequence[Any], at: int, symbols: str
) -> None:
    """Check the shapes of a state that is a list with an array for each layer."""
    each_layer = f"L = {net.L}, an array ({run.axes('D')}, {symbols}) for each layer"
    check_count(op, name, states, len(states) == net.L, each_layer)
    for layer, (a, width) in enumerate(zip(states, net.widths, strict=True)):
        if a is None:  # the whole of an optional state may be None
            expected = f"a {run.xp.__name__}.ndarray like input"
            raise TypeError(f"{op}: {name}[{layer}] is None, expected {expected}")
        B = run.sizes.B
        shape = (net.D, B, width[at]) if run.time_major else (B, net.D, width[at])
        expect_shape(op, f"{name}[{layer}]", a, f"({run.axes('D')}, {symbols})", shape)


def check_packed(
    op: str,
    states: tuple[Any, Any, Any],
    net: ResolvedNet,
    run: RunArguments,
    of_gradient: Mapping[str, Any],
) -> tuple[CheckedCall, Net]:
    """
    Check a call of packed parameters; return it and its net.

    `states` are input, input_h and input_c; `of_gradient` has the arrays of the gradient alone.
    """
    input, input_h, input_c = states
    attributes, known = net.attributes, net.known
    rnn_mode = check_choice(op, "rnn_mode", attributes.rnn_mode, tuple(GATES))
    direction = check_choice(op, "direction", attributes.direction, DIRECTIONS)
    is_lstm, D = rnn_mode == "lstm", 2 if direction == "bidirectional" else 1
    required = {"input": input, "input_h": input_h, "params": net.params}
    optional = dict(of_gradient)
    if "reserve_space" in optional:
        required["reserve_space"] = optional.pop("reserve_space")
    # Keras passes a plain 0 to cells without it.
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
                    f"{op}: {name} has shape {a.shape}, expected ({call.axes('L*D')}, {symbol}) ="
                    f" {expected}, such as packed.zero_state({B}) returns"
                )
    shape = expect_rank(op, "input_h", input_h, f"({call.axes('L*D')}, P)")
    H = shape[2]
    if is_lstm:
        H = expect_rank(op, "input_c", input_c, f"({call.axes('L*D')}, H)")[2]
    L = shape[0 if call.time_major else 1]
    if known is not None:
        L, H = known.L * D, known.H
        if call.I != known.I:
            raise ValueError(
                f"{op}: input has shape {input.shape}, expected ({call.axes('T')}, I) with I ="
                f" {known.I} as in params"
            )
    if L % D:
        raise ValueError(
            f"{op}: input_h has shape {shape}, expected ({call.axes('L*D')}, P) with D = 2:"
            " bidirectional"
        )
    sizes = L // D, H, call.I
    found = check_net(op, *sizes, rnn_mode, attributes.input_mode, direction, attributes.num_proj)
    found = found._replace(gate=check_activation(op, rnn_mode, attributes.recurrent_activation))
    if net.params.size < found.L:  # huge numbers of layers must not make huge lists
        expect_params_size(op, net.params, found, alone=known is None)
    check_shapes(op, call, found, {"input_h": input_h, **({"input_c": input_c} if is_lstm else {})})
    expect_params_size(op, net.params, found, alone=known is None)
    unchecked = ("input_c",) if is_lstm else ("input_c", "output_c", "output_c_backprop")
    check_shapes(op, call, found, {n: a for n, a in optional.items() if n not in unchecked})
    return check_sequences(op, call, run, D), found


def packed_states(
    op: str, states: tuple[Any, Any, Any], net: ResolvedNet, time_major: object
) -> tuple[Any, Any]:
    """
    Return input_h and input_c, with views of zeros instead of None: for checks.

    Without a PackedParams no size is known. Then input_c may still be None if input_h is not, and
    the checks refuse other calls.
    """
    input, h, c = states
    if h is not None and c is not None:
        return h, c
    is_lstm = check_choice(op, "rnn_mode", net.attributes.rnn_mode, tuple(GATES)) == "lstm"
    if h is not None and not is_lstm:
        return h, c
    known, num_proj = net.known, net.attributes.num_proj
    first = {} if h is None else {"input_h": h}  # it may be a PackedParams in the wrong place
    xp, _ = check_arrays(op, {"input": input, **first, "params": net.params})
    major = check_bool(op, "time_major", time_major)
    if known is not None:
        expect_params_size(op, net.params, known, alone=False)  # before large zeros
        B = expect_rank(op, "input", input, f"({'T, B' if major else 'B, T'}, I)")[int(major)]
        leading = [known.L * known.D, B] if major else [B, known.L * known.D]
        P, H = known.P, known.H
        expect_memory(op, "input", input.shape, B * known.D * max(P, H))
    elif h is not None and (num_proj is None or check_integer(op, "num_proj", num_proj, 0) == 0):
        *leading, P = expect_rank(op, "input_h", h, "(L*D, B, P)")
        H = P
    else:
        return h, c
    with on_device(xp, input):
        h = zero_view(xp, input, *leading, P) if h is None else h
        c = zero_view(xp, input, *leading, H) if c is None and is_lstm else c
    return h, c


def reserve_layout(net: Net, sizes: Sizes, rows: Rows, every: int | None = None) -> ReserveLayout:
    """Return the parts of our reserve_space for these steps of a net of packed parameters."""
    form = PackedForm(net)
    return ReserveLayout(net, sizes, form.Saved, form.States, rows, every)


class NetCall:
    """A checked call of a net, without its arrays. Calls of one signature share one object."""

    def __init__(self, run: CheckedCall, net: Widths, form: Form, attributes: Any = None) -> None:
        self.run, self.net, self.form, self.attributes = run, net, form, attributes

    def run_of(self, op: str, arguments: Mapping[str, Any]) -> CheckedCall:
        """Check lengths, resets and seeds of a call like this; return its run with them."""
        run = self.run
        if "seed" in arguments and run.sizes.drops(self.net):
            seeds: dict[str, Any] = {
                name: check_integer(op, name, arguments[name]) for name in ("seed", "seed2")
            }
            run = run._replace(sizes=run.sizes._replace(**seeds))
        return with_sequences(op, run, arguments["sequence_lengths"], arguments["resets"])

    def of(self, op: str, arguments: Mapping[str, Any]) -> NetCall:
        """Return this for a call with these lengths, resets and seeds."""
        run = self.run_of(op, arguments)
        if run is self.run:
            return self
        return NetCall(run, self.net, self.form, self.attributes)

    @cached_property
    def layout(self) -> ReserveLayout:
        """The parts of reserve_space."""
        run, form = self.run, self.form
        return ReserveLayout(self.net, run.sizes, form.Saved, form.States, run.packing, run.every)

    def in_place(self, note: Note | None = None) -> Any:
        """Return the net as `net_layouts` describes it; `note` is the one in its reserve_space."""
        from .driver.net_layouts import NetLayout  # imported here, because it imports the kernels

        run = self.run

        def note_of(lengths: Any = run.lengths, resets: Any = run.resets) -> Note:
            assert note is not None
            return note._replace(call=fingerprint_with(note.call, run, lengths, resets))

        of_note = None if note is None else note_of
        return NetLayout(self.layout, run.reverse, not run.time_major, of_note)

    def check_cell(self, cell: Cell) -> None:
        """Check that a cell has functions for the arrays. Only stacked_rnn accepts users' own."""
        run, kind = self.run, type(cell)
        if in_numpy(kind) is None:
            raise TypeError(
                f"stacked_rnn: {kind.__qualname__} has no forward_steps, expected a method of the"
                f" class or a function of its module, {kind.__module__}"
            )
        if run.xp is not np and in_cuda(kind) is None:
            raise TypeError(
                f"stacked_rnn: input is a cupy.ndarray, expected a numpy.ndarray: {self.form.name}"
                " has no CUDA functions"
            )


class PackedCall(NetCall):
    """A call with packed parameters."""

    net: Net
    form: PackedForm

    def __init__(self, run: CheckedCall, net: Net, engine: Any) -> None:
        super().__init__(run, net, PackedForm(net))
        self.engine = engine

    def with_every(self, every: int | None) -> PackedCall:
        """Return this with a reserve_space of every k-th state."""
        return PackedCall(self.run._replace(every=every), self.net, self.engine)

    @property
    def is_lstm(self) -> bool:
        """Whether the cells are LSTMs, which have a second state."""
        return self.net.rnn_mode == "lstm"

    @property
    def by_cudnn(self) -> bool:
        """Whether cuDNN computes it, by any of its algorithms."""
        return self.engine not in ("numpy", "cupy")

    @cached_property
    def alike(self) -> int:
        """The fingerprint of this call without lengths and resets."""
        net, run = self.net, self.run._replace(lengths=None, resets=None)
        (*of_net, gate), (T, B, *_) = net, run.sizes
        # NumPy and CuPy have different orders.
        in_time = run.xp is not np and (run.reverse or net.D > 1)
        order = ["in the order of time"] if in_time else []
        return fingerprint(run, run.sizes.drops(net), *of_net, T, B, gate, *order)

    def fingerprint(self) -> int:
        """Return the fingerprint of this call."""
        return fingerprint_with(self.alike, self.run, self.run.lengths, self.run.resets)

    def reserved_of(self, lengths: Any, resets: Any) -> NDArray[np.int8]:
        """Return the host_reserved of a call with lengths and resets."""
        number = fingerprint_with(self.alike, self.run, lengths, resets)
        return make_host_reserved(self.engine, number, self.run.every)

    @cached_property
    def host_reserved(self) -> NDArray[np.int8]:
        """The host_reserved of this call."""
        return self.reserved_of(self.run.lengths, self.run.resets)

    def form_of(self, is_single: bool = False) -> PackedForm:
        """Return the form of the weights. A single step may have its own form."""
        real = self.run.xp is np and compute_dtype(self.run.dtype).kind == "f"
        own = is_single and real and not self.net.skip
        return PackedForm(self.net, single=True) if own else self.form
