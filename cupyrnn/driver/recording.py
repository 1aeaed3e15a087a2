"""What all calls of a signature share: they are recorded once, and run with their own arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .._typing import Array
from ..arithmetic.dropout import key_words
from ..cells.lstm import LSTM
from ..checks.arrays import NotRecordable, module_of
from ..checks.attributes import check_integer
from ..checks.calls import check_lengths, check_resets
from . import on_host, pages
from .net import Machine, RecordedCall
from .places import Table
from .signatures import Arguments, ByValue, Named, Recorded


def record(
    make: Callable[..., RecordedCall],
    arguments: Arguments,
    *args: Any,
    reserved_of: Callable[..., Any] | None = None,
) -> Recorded:
    """
    Return an object that runs calls of this signature, made by `make`.

    `reserved_of` returns the host_reserved of a call from its lengths and resets, if it has one.
    """
    *machines, last = _machines(arguments)
    for start in machines:
        try:
            found = make(arguments._replace(start=start), *args)
            break
        except NotRecordable:
            continue
    else:
        found = make(arguments._replace(start=last), *args)
    if arguments.length is not None and not found.draws:
        return found
    return ByValue(_OfValues(found, arguments, reserved_of))


class _OfValues:
    """Runs the calls of a signature whose lengths, resets or seeds differ."""

    def __init__(
        self, call: RecordedCall, arguments: Arguments, reserved_of: Callable[..., Any] | None
    ) -> None:
        self.call, self._op, (T, B) = call, arguments.op, arguments.steps
        self._lengths_differ = arguments.length is None
        self._is_major = arguments.by_name.get("time_major", True)
        self._steps, self._axes = ((T, B), "(T, B)") if self._is_major else ((B, T), "(B, T)")
        self._T, self._B = T, B
        steps = arguments.by_name.get("seq_len_max")
        self._common = None if steps is None else np.full(B, operator.index(steps), np.int32)
        self._returns_reserved = "host_reserved" not in arguments.by_name
        self._reserved_of = reserved_of

    def checked(self, by_name: Named) -> tuple[Array | None, Array | None]:
        """Check the lengths and the resets of a call; return them, the resets time-major."""
        marks = check_resets(self._op, by_name.get("resets"), *self._steps, symbols=self._axes)
        lengths = self._common
        if lengths is None:
            lengths = check_lengths(self._op, by_name.get("sequence_lengths"), self._T, self._B)
        return lengths, marks if marks is None or self._is_major else marks.T

    @staticmethod
    def data_of(sequences: tuple[Array | None, Array | None]) -> bytes:
        """Return the bytes of checked lengths and resets, as `DeviceCall.run` reads them."""
        return b"".join([a.tobytes() for a in sequences if a is not None])

    def __call__(self, arrays: Sequence[Array], by_name: Named) -> Any:
        """Run a call."""
        keys = (0, 0)
        if self.call.draws:
            names = "seed", "seed2"
            keys = key_words(*[check_integer(self._op, n, by_name.get(n, 0)) for n in names])
        if not self._lengths_differ:
            return self.call(arrays, b"", keys)
        lengths, marks = self.checked(by_name)
        reserved = self._reserved_of and self._reserved_of(lengths, marks)
        if reserved is not None and not self._returns_reserved:
            passed = by_name.get("host_reserved")
            if passed is not None and passed.tobytes()[1:] != reserved.tobytes()[1:]:
                raise NotRecordable("host_reserved belongs to another call")
        found = self.call(arrays, self.data_of((lengths, marks)), keys)
        if reserved is not None and self._returns_reserved:
            return found._replace(host_reserved=reserved)
        return found


def _matrices(arguments: Arguments) -> set[int]:
    """Return the numbers of the matrices, which may be in Fortran order."""
    arrays = arguments.arrays
    numbers = arguments.with_arrays(range(len(arrays)))
    found = [numbers.get(name) for name in ("w", "w_ru", "w_c")]
    found += [n for entry in numbers.get("weights", ()) for n in entry]
    return {n for n in found if n is not None and arrays[n].ndim == 2}


def _machines(arguments: Arguments) -> Iterator[Callable[..., Any]]:
    """Yield what starts the machines for a call, the fastest first."""
    if module_of(arguments.arrays[0]) is not np:
        from . import on_device

        # What is dropped after one call is recorded in the shortest time by the last one.
        if arguments.repeats and arguments.by_name.get("weight_gradients", "sum") == "sum":
            yield on_device.start
    elif pages.compiled_page(LSTM) is not None:
        from . import on_host_compiled

        yield on_host_compiled.start
    yield on_host.start


def machine_for(
    arguments: Arguments, net: object, *, in_time: bool = False, saves: str = "all"
) -> tuple[Table, Machine]:
    """Return the table of a call, and the machine that makes its operations: see `on_host`."""
    matrices = _matrices(arguments)
    assert arguments.start is not None
    made: tuple[Table, Machine] = arguments.start(
        arguments, net, matrices, in_time=in_time, saves=saves
    )
    return made
