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
from .cells.contract import Cell
from .cells.packed import DIRECTIONS, GATES, Net
from .cells.packed_forms import PackedForm
from .checks.arrays import compute_dtype
from .checks.attributes import (
    check_bool,
    check_choice,
    check_dropout,
    check_integer,
    check_save,
    unless_zero,
)
from .checks.calls import check_arrays, check_lengths, check_resets, expect_rank
from .checks.nets import SHAPES, NetSizes, check_shapes, in_order, shown_in_order
from .driver.pages import in_cuda, in_numpy
from .driver.reserve import NetLayout, Note, Sizes, fingerprint, make_host_reserved, with_sequences
from .weights.packed import ResolvedNet, check_activation
from .weights.params import check_net, expect_params_size

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self


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

    def shown(self, symbols: str, P: str = "P") -> str:
        """Return symbols such as "L*D, B, P" as errors show them, in the caller's order."""
        return shown_in_order(symbols, self.time_major, P)


def check_run(
    op: str, required: Mapping[str, Any], optional: Mapping[str, Any], arguments: RunArguments
) -> CheckedCall:
    """Check all arrays of a call by name, input among them, and its attributes and sizes."""
    xp, dtype = check_arrays(op, required, optional)
    _, _, dropout, training, time_major, seed, seed2, save, _ = arguments
    major = check_bool(op, "time_major", time_major)
    shown = shown_in_order(SHAPES["input"], major)
    T, B, I = in_order(expect_rank(op, "input", required["input"], shown), major)
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
    return with_call_sequences(op, run, arguments.sequence_lengths, arguments.resets)


def with_call_sequences(op: str, run: CheckedCall, lengths: object, resets: object) -> CheckedCall:
    """Check the lengths and resets of a call; return the call with them."""
    if lengths is resets is None:
        return run
    T, B, *_ = run.sizes
    steps, symbols = ((T, B), "(T, B)") if run.time_major else ((B, T), "(B, T)")
    marks = check_resets(op, resets, *steps, symbols=symbols)
    if marks is not None and not run.time_major:
        marks = marks.T
    return run._replace(lengths=check_lengths(op, lengths, T, B), resets=marks)


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
    if not is_lstm:  # Keras passes a plain 0 to cells without it.
        input_c = unless_zero(input_c)
    # States that are None are zeros, if a PackedParams or the other state has their sizes.
    may_lack: Sequence[str] = ("input_h", "input_c") if known is not None else ()
    if input_h is not None and input_c is None and known is None:
        projects = is_lstm and check_integer(op, "num_proj", attributes.num_proj, 0) > 0
        may_lack = () if projects else ("input_c",)
    required = {"input": input, "input_h": input_h, "params": net.params, "input_c": input_c}
    absent = [name for name in ("input_h", "input_c") if required[name] is None]
    required = {name: a for name, a in required.items() if name not in absent}
    required |= {name: None for name in absent if name not in may_lack}
    optional = dict(of_gradient)
    if "reserve_space" in optional:
        required["reserve_space"] = optional.pop("reserve_space")
    call = check_run(op, required, optional, run)
    T, B, *_ = call.sizes

    if known is not None:
        found = known
        expect_params_size(op, net.params, found)
        for name, a in (("input_h", input_h), ("input_c", input_c)):
            if a is not None and a.ndim != 3:
                shown = call.shown(SHAPES[name], "H" if found.P == found.H else "P")
                shape = in_order(found.sizes.shape(SHAPES[name], 0, T, B), call.time_major)
                raise ValueError(
                    f"{op}: {name} has shape {a.shape}, expected {shown} = {shape}, such as"
                    f" packed.zero_state({B}) returns"
                )
        if call.I != found.I:
            raise ValueError(
                f"{op}: input has shape {input.shape}, expected {call.shown(SHAPES['input'])} with"
                f" I = {found.I} as in params"
            )
    else:
        shape = expect_rank(op, "input_h", input_h, call.shown(SHAPES["input_h"]))
        places, _, H = in_order(shape, call.time_major)
        if is_lstm and input_c is not None:
            H = expect_rank(op, "input_c", input_c, call.shown(SHAPES["input_c"]))[2]
        if places % D:
            raise ValueError(
                f"{op}: input_h has shape {shape}, expected {call.shown(SHAPES['input_h'])} with"
                " D = 2: bidirectional"
            )
        modes = rnn_mode, attributes.input_mode, direction, attributes.num_proj
        found = check_net(op, places // D, H, call.I, *modes)
    found = found._replace(gate=check_activation(op, rnn_mode, attributes.recurrent_activation))
    if net.params.size < found.L:  # huge numbers of layers must not make huge lists
        expect_params_size(op, net.params, found, alone=known is None)
    in_h_and_c = {"input_h": input_h, **({"input_c": input_c} if is_lstm else {})}
    check_shapes(op, found.sizes, input, in_h_and_c, call.time_major)
    expect_params_size(op, net.params, found, alone=known is None)
    unchecked = {"reserve_space"} if is_lstm else {"reserve_space", "output_c", "output_c_backprop"}
    rest = {name: a for name, a in of_gradient.items() if name not in unchecked}
    check_shapes(op, found.sizes, input, rest, call.time_major)
    return check_sequences(op, call, run, D), found


class _Call(NamedTuple):
    """A checked call of a net, without its arrays."""

    run: CheckedCall
    net: NetSizes
    form: Any
    attributes: Any  # of the cells
    described: tuple[object, ...]  # all sizes and attributes that the results depend on
    engine: str = ""  # that of packed parameters


class NetCall(_Call):
    """A checked call of a net. Calls of one signature share one object."""

    def with_every(self, every: int | None) -> Self:
        """Return this with a reserve_space of every k-th state."""
        return self._replace(run=self.run._replace(every=every))

    @cached_property
    def number(self) -> int:
        """The fingerprint of this call without lengths and resets."""
        return fingerprint(self.run, self.run.sizes.drops(self.net.L), *self.described)

    def fingerprint(self) -> int:
        """Return the fingerprint of this call."""
        return with_sequences(self.number, self.run, self.run.lengths, self.run.resets)

    def layout(self, note: Note | None = None) -> NetLayout:
        """Return the parts of reserve_space; `note` is the one in it, without the sequences."""
        run = self.run

        def note_of(lengths: Any = run.lengths, resets: Any = run.resets) -> Note:
            assert note is not None
            return note._replace(call=with_sequences(note.call, run, lengths, resets))

        order = run.reverse, not run.time_major
        of_note = None if note is None else note_of
        return NetLayout(self.net, run.sizes, self.form, run.every, *order, of_note)

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
    """A call with packed parameters. Its attributes are their net."""

    attributes: Net
    form: PackedForm

    @classmethod
    def of(cls, run: CheckedCall, net: Net) -> PackedCall:
        """Return a call of a net, without an engine."""
        # NumPy and CuPy have different orders.
        in_time = run.xp is not np and (run.reverse or net.D > 1)
        order = ["in the order of time"] if in_time else []
        described = *net[:-1], run.sizes.T, run.sizes.B, net.gate, *order
        return cls(run, net.sizes, PackedForm(net), net, described)

    @property
    def by_cudnn(self) -> bool:
        """Whether cuDNN computes it, by any of its algorithms."""
        return self.engine not in ("numpy", "cupy")

    def reserved_of(self, lengths: Any, resets: Any) -> NDArray[np.int8]:
        """Return the host_reserved of a call with lengths and resets."""
        number = with_sequences(self.number, self.run, lengths, resets)
        return make_host_reserved(self.engine, number, self.run.every)

    @property
    def host_reserved(self) -> NDArray[np.int8]:
        """The host_reserved of this call."""
        return self.reserved_of(self.run.lengths, self.run.resets)

    @property
    def has_single(self) -> bool:
        """Whether a single step has a form of its own."""
        real = self.run.xp is np and compute_dtype(self.run.dtype).kind == "f"
        return real and not self.attributes.skip
