"""
Calls of tensors whose layout is known: run with the tensors' addresses, in PyTorch's memory.

A signature has everything that the checks and the layout of a call depend on. At its first call
the arguments are checked and the call is recorded. Later calls only collect addresses, allocate
and run.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch

from .._typing import Array
from ..arithmetic.dropout import key_words
from ..checks.arrays import NotRecordable
from ..driver.host_call import HostCall
from ..driver.places import strides_of
from ..driver.signatures import (
    CALLS,
    Arguments,
    ByName,
    ByValue,
    of_device,
    of_sequences,
    signature,
)
from .arrays import array_of, current_stream, on_device_of, tensor_on_host
from .batching import Op

if TYPE_CHECKING:
    from ..driver import device_call

Results: TypeAlias = "list[torch.Tensor | None]"
Wanted: TypeAlias = "tuple[bool, ...]"  # which gradients; empty for all

# The number of a tensor, and what `as_strided` takes for a part of it; None for all of it.
_View: TypeAlias = "tuple[int, Any]"

# Without this the parts of a tensor would be views, and autograd forbids writing to them.
_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
# What the cache has for calls that have no layout.
_NOTHING: Any = object()
_without: Any = torch._C._ExcludeDispatchKeyGuard


class _Result:
    """A result of a call, or a part of it, made as of an array."""

    def __init__(self, n: int, start: int = 0, shape: tuple[int, ...] | None = None) -> None:
        self.n, self.start, self.shape = n, start, shape

    def __getitem__(self, part: slice) -> _Result:
        return _Result(self.n, part.start)

    def reshape(self, shape: tuple[int, ...]) -> _Result:
        """Return a part in this shape."""
        return _Result(self.n, self.start, shape)

    def view(self, n: int, shape: tuple[int, ...] | None, start: int) -> _View:
        """Return its view, where the result is in tensor n; shape is None for all of that."""
        shape = shape if self.shape is None else self.shape
        if shape is None:
            return n, None
        return n, (shape, strides_of(tuple([n or 1 for n in shape]), 1), start + self.start)


def results_of(
    op: Op,
    op_kind: str,
    tensors: Sequence[Any],
    attributes: Sequence[Any],
    wanted: Wanted,
) -> Results | None:
    """Return the results of an op or of its gradient, None if calls like it have no layout."""
    key: list[Any] = [op.name, op_kind, attributes, wanted]
    e = len(tensors) - len(op.extras)
    tensors, extras, values = tensors[:e], tensors[e:], {}
    for name, a in zip(op.extras, extras, strict=True):
        if a is not None:
            if not (a.is_cpu and a.layout is torch.strided):
                return None
            key += name, a.shape, a.dtype
            values[name] = array_of(a)
    if values:
        key.append(of_sequences(values))
    addresses: list[int] = []
    together = 0
    try:
        for a in tensors:
            if a is None:
                key.append(None)
                addresses.append(0)
            elif a.is_neg():  # lazily negated: its memory has the other sign
                return None
            else:
                address = a.data_ptr()
                if not address and a.numel():  # zeros without memory
                    return None
                key += a.shape, a.stride(), a.dtype, a.device
                addresses.append(address)
                together |= address
    except RuntimeError:  # it has no strides or no memory
        return None
    first = tensors[0]
    key.append(of_device(first.device.index, together) if first.is_cuda else together & 15)
    signed = tuple(key)
    found = CALLS.get(signed)
    if found is None:
        with on_device_of(first):
            found = _record(op, op_kind, (*tensors, *extras), attributes, wanted) or _NOTHING
        CALLS.keep(signed, found)
    try:
        return None if found is _NOTHING else found.run(tensors, addresses, values)
    except NotRecordable:  # a device has refused a launch
        return None


def _record(
    op: Op, op_kind: str, tensors: Sequence[Any], attributes: Sequence[Any], wanted: Wanted
) -> _OnHost | _OnDevice | None:
    """Check a call; return an object that runs calls of its signature, None if there is none."""
    first, last, back = tensors[0], op.inputs[-1], op_kind == "backward"
    if op_kind not in ("forward", "backward"):
        return None
    if first.is_cpu and first.dtype is torch.bfloat16:  # its arrays are copies
        return None
    copied: list[int] = []
    if first.is_cuda:
        copied = [n for n, t in enumerate(tensors) if _in_order(t) is not t]
        tensors = [*map(_in_order, tensors)]
    *groups, rest = op.named(op_kind, tensors, attributes)
    if back and not groups[2]:
        return None
    function = op.schema.gradient if back else op.schema.forward
    if back:
        inputs, saved, cotangents = groups
        arguments = op.gradient_arguments(inputs, saved, cotangents, rest)
        arguments |= op.more_of(wanted)
    else:
        (inputs,) = groups
        arguments = op.arguments(inputs, rest)
    record = inspect.unwrap(function)(**arguments)
    pieces: Any = inputs.get(last)
    if last == "params":  # the checks read the joined array
        arguments[last] = pieces if len(pieces) > 1 else pieces[0]
    _, arrays = signature(op.name, (), arguments)
    pairs = zip(op.groups[op_kind], groups, strict=True)
    values = [group.get(name) for names, group in pairs for name in names]
    every = itertools.chain(*(a if type(a) is tuple else (a,) for a in values))
    numbers = {id(a): n for n, a in enumerate(every)}
    if not all(id(a) in numbers for a in arrays):
        return None  # some calls convert the tensors to arrays
    known, sequences = Arguments(arguments, arrays, function.__name__), None
    try:
        call: Any = record(known)
    except NotRecordable:
        return None
    if type(call) is ByValue:
        of_values: Any = call.run
        call, sequences = of_values.call, of_values if known.length is None else None
    if type(call) is ByName or isinstance(call, HostCall) is not first.is_cpu:
        return None  # of arrays of a device, which are made of tensors in every call
    results = [None if r is None else _Result(n) for n, r in enumerate(call.returned)]
    found = call.kind._make(results + [None] * len(call.more))
    if any(isinstance(result, tuple) for result in found):
        return None  # of several states, which every call joins in a tensor
    views = (
        [getattr(found, n) for n in op.results] if not back else op.grads_of(found, inputs, rest)
    )
    if wanted:
        views = [view if want else None for view, want in zip(views, wanted, strict=True)]
    order = [numbers[id(a)] for a in arrays]
    if first.is_cpu:
        return _OnHost(call, order, views, sequences)
    return _OnDevice(call, order, views, (first, copied), sequences)


def _in_order(a: Any) -> Any:
    """Return a device's tensor in C order, or a matrix in Fortran order; others unchanged."""
    if a is None or a.is_cpu or a.is_contiguous():
        return a
    return a if a.dim() == 2 and a.t().is_contiguous() else a.contiguous()


def _key_of(values: dict[str, Array]) -> tuple[int, int]:
    """Return the key of the masks of a call."""
    seeds = values.get("seeds")
    return (0, 0) if seeds is None else key_words(*seeds.tolist())


def _data_of(sequences: Any, values: dict[str, Array]) -> bytes:
    """Return the checked lengths and resets of a call, if they differ from call to call."""
    return b"" if sequences is None else sequences.data_of(sequences.checked(values))


class _Runner:
    """Runs the calls of a signature."""

    def __init__(self, order: list[int], views: list[_View | None]) -> None:
        self._order, self._views = order, views
        self._has_parts = any(view is not None and view[1] is not None for view in views)

    def _results(self, memory: Any) -> Results:
        """Return the results: whole tensors, or parts that autograd does not see as views."""
        if not self._has_parts:
            return [None if v is None else memory[v[0]] for v in self._views]
        as_strided: Any = torch.as_strided
        found: Results = []
        with _without(_VIEWS):
            for v in self._views:
                t = None if v is None else memory[v[0]]
                found.append(t if v is None or v[1] is None else as_strided(t, *v[1]))
        return found


class _OnHost(_Runner):
    """Runs calls of tensors on the host, whose results are in NumPy's memory."""

    def __init__(
        self, call: HostCall, order: list[int], results: list[_Result | None], sequences: Any
    ) -> None:
        super().__init__(order, [None if r is None else r.view(r.n, None, 0) for r in results])
        self._call, self._sequences = call, sequences
        self._asked = {r.n for r in results if r is not None}

    def run(
        self, tensors: Sequence[torch.Tensor], _: list[int], values: dict[str, Array]
    ) -> Results:
        """Run a call with these lengths, resets and seeds."""
        data = _data_of(self._sequences, values)
        arrays = self._call.run([array_of(tensors[n]) for n in self._order], _key_of(values), data)
        return self._results({n: tensor_on_host(arrays[n]) for n in self._asked})


class _OnDevice(_Runner):
    """Runs calls of tensors on a device, in memory of PyTorch's allocator."""

    def __init__(
        self,
        call: device_call.DeviceCall,
        order: list[int],
        results: list[_Result | None],
        arguments: tuple[torch.Tensor, list[int]],
        sequences: Any,
    ) -> None:
        first, self._copied = arguments
        self._call, self._index, self._sequences = call, first.device.index, sequences
        sizes = [-(-size // first.itemsize) for size in call.allocations]
        self._shapes: list[Any] = [(size,) for size in sizes]
        views: list[_View | None] = [None] * len(results)
        for n, result in enumerate(results):
            if result is not None:
                m, shape, _, offset = cast("Any", call.returned[result.n])
                views[n] = result.view(m, shape, offset // first.itemsize)
        used = [view[0] for view in views if view is not None]
        for n, view in enumerate(views):
            if view is not None and used.count(view[0]) == 1:
                m, part = view
                if math.prod(part[0]) == sizes[m]:  # a tensor of its own
                    self._shapes[m], views[n] = part[0], (m, None)
        super().__init__(order, views)

    def run(
        self, tensors: Sequence[torch.Tensor], addresses: list[int], values: dict[str, Array]
    ) -> Results:
        """Run a call with these lengths, resets and seeds on PyTorch's current stream."""
        if torch.cuda.current_device() != self._index:
            with torch.cuda.device(self._index):
                return self.run(tensors, addresses, values)
        data = _data_of(self._sequences, values)
        copies = {n: tensors[n].contiguous() for n in self._copied}
        for n, copy in copies.items():
            addresses[n] = copy.data_ptr()
        new_empty = tensors[0].new_empty
        try:
            memory = [new_empty(shape) for shape in self._shapes]
        except torch.cuda.OutOfMemoryError as error:
            self._call.without_exchange(error)
            raise
        used = [addresses[n] for n in self._order]
        used += [m.data_ptr() for m in memory]
        with current_stream(self._index):
            self._call.run([*used, *_key_of(values)], data)
        return self._results(memory)
