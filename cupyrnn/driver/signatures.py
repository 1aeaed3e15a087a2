"""
The signature of a call, and what all calls of one signature share.

The body of an op contains its checks. They run once for each signature and return a function that
records the call, once for all calls of this signature. A signature contains everything that the
checks read: shapes, dtypes, memory layouts, devices, attributes and environment variables. It
contains only the types of sequence_lengths, resets and seeds, whose values are checked in every
call.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, final

import numpy as np

from .._typing import Array, NamedTuple
from ..checks.arrays import NotRecordable, array_kind, cast_all, module_of, on_device, plain
from ..checks.attributes import lacks, misfit, no_memory, raise_fitting
from ..derivatives.traced import active_jvp, of_traced

_Function = TypeVar("_Function", bound=Callable[..., Any])
Named: TypeAlias = Mapping[str, Any]  # the arguments of a call by name
Key: TypeAlias = tuple[object, ...]  # a signature
Result: TypeAlias = Any  # what an op returns: a named tuple of arrays, or an array

# The bytes of a call's fingerprint in host_reserved, after the first byte.
FINGERPRINT_SIZE = 4

# The types of attributes that are compared by value.
_NUMBERS: tuple[type, ...] = (np.bool_, np.int32, np.int64, np.float32, np.float64)
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, *_NUMBERS})

# Arguments whose values differ from call to call: a signature has only their types.
_SEEDS = frozenset({"seed", "seed2"})
_BY_TYPE = _SEEDS | {"sequence_lengths", "resets"}

# Arguments that are not arrays to compute with.
_NO_ARRAYS = _BY_TYPE | {"host_reserved"}

# The environment variables that a call on a device reads, and as os.environ encodes them.
_VARIABLES = ("CUPYRNN_PERSISTENT", "CUPYRNN_ENGINE", "CUPY_TF32")
_ENCODED = tuple(map(os.environ.encodekey, _VARIABLES))

# Dtypes by the id of their only object, because the hash of a dtype is slow.
CHAR_OF_DTYPE_ID: dict[int, str] = {id(np.dtype(char)): char for char in "efd"}

# NumPy's flags of arrays in C order, in Fortran order, and aligned.
_LAYOUT = 0x0103

# The most arguments with a signature: a list may contain itself.
_MOST_ARGUMENTS = 4096

# The most entries of the cache.
_MOST_ENTRIES = 512


# The entry of a signature for lengths and resets whose values differ from call to call.
_ANY = "any"


def _common_length(lengths: object) -> str | tuple[int, int] | None:
    """Return a signature's entry for sequence_lengths: the common length, if there is one."""
    if lengths is None:
        return None
    if type(lengths) is not np.ndarray or not lengths.flags.c_contiguous:
        return _ANY  # a copy of broadcast lengths may be larger than the memory
    if lengths.dtype.kind in "iu" and lengths.ndim == 1:
        text, B = lengths.tobytes(), lengths.size
        if B and text == text[: lengths.itemsize] * B:  # min and max take ten times as long
            return B, lengths.item(0)
    return _ANY


def _marks(resets: object) -> object:
    """Return a signature's entry for resets: their shape, if none is set."""
    if resets is None:
        return None
    if type(resets) is np.ndarray and resets.dtype.char == "?" and resets.flags.forc:
        text = resets.tobytes()
        if text == bytes(len(text)):
            return resets.shape
    return _ANY


def of_sequences(by_name: Named) -> tuple[str | tuple[int, int] | None, object]:
    """Return a signature's entries for sequence_lengths and resets."""
    return _common_length(by_name.get("sequence_lengths")), _marks(by_name.get("resets"))


def _is_array(a: Any) -> bool:
    """Return whether an argument is an array to compute with, not an attribute."""
    if not hasattr(a, "dtype") or isinstance(a, np.generic):
        return False
    return bool(a.ndim) or a.dtype.kind in "fcV"


class Arguments(NamedTuple):
    """The arguments of a call."""

    by_name: Named
    arrays: Sequence[Any]  # all arrays among them, in the order of the signature
    op: str = ""
    repeats: bool = True  # whether more calls of its signature may follow
    start: Callable[..., Any] | None = None  # starts the machine that records the call

    @property
    def steps(self) -> tuple[int, int]:
        """T and B, the numbers of steps and sequences; T is 1 for the op of a single step."""
        names = (name for name in ("i", "r", "x", "input") if name in self.by_name)
        *lead, _ = self.by_name[next(names)].shape
        T, B = (1, *lead)[-2:]
        return (T, B) if self.by_name.get("time_major", True) else (B, T)

    @property
    def length(self) -> int | None:
        """The steps of every sequence in every call of the signature; None if they differ."""
        (T, _), steps = self.steps, self.by_name.get("seq_len_max")
        common, marks = of_sequences(self.by_name)
        if _ANY in (common, marks):
            return None
        if steps is not None:
            return operator.index(steps)  # int refuses masked arrays
        return T if not isinstance(common, tuple) else common[1]

    def with_arrays(self, others: Sequence[object]) -> dict[str, Any]:
        """Return the arguments by name, with `others` instead of the arrays."""
        found, left = dict(self.by_name), iter(others)
        lists: list[Any] = []
        values: list[Any] = [
            (found, name, a) for name, a in found.items() if name not in _NO_ARRAYS
        ]
        for of, at, a in values:  # the list grows, as in `signature`
            if _is_array(a):
                of[at] = next(left)
            elif (parts := _parts(type(a), a)) is not None:
                lists.append((of, at, a, copied := [*parts]))
                values += [(copied, n, part) for n, part in enumerate(parts)]
        for of, at, a, copied in reversed(lists):
            of[at] = type(a)._make(copied) if hasattr(a, "_make") else copied
        return found


def arrays_of(by_name: Named) -> list[Array]:
    """
    Return the arrays of a call without a signature, in the order of `Arguments.with_arrays`.

    If one has tangents, all are of its dtype.
    """
    values = [a for name, a in by_name.items() if name not in _NO_ARRAYS]
    arrays = []
    for a in values:  # the list grows, as in `signature`
        if _is_array(a):
            arrays.append(plain(a) if array_kind(a) == "numpy" else a)
        elif (parts := _parts(type(a), a)) is not None:
            values.extend(parts)  # += would try the named tuple's own + first
    dtype = next((a.dtype for a in arrays if a.dtype.kind == "c"), None)
    return arrays if dtype is None else cast_all(dtype, *arrays)


@final
class ByValue(NamedTuple):
    """Runs calls of a signature from their arrays in order and their keyword arguments."""

    run: Callable[[Sequence[Array], Named], Result]


@final
class ByName(NamedTuple):
    """Runs calls of a signature from all their arguments by name: those that are not recorded."""

    run: Callable[[Named], Result]

    def record(self, _: Arguments) -> ByName:
        """Return what runs the calls of a signature."""
        return self


# What runs the calls of a signature; the first from their arrays in order.
Recorded: TypeAlias = Callable[[Sequence[Array]], Result] | ByValue | ByName
# The result of an op's body.
Record: TypeAlias = Callable[[Arguments], Recorded]


class CallCache(dict[Key | None, Any]):
    """A bounded cache: what runs the calls of each signature."""

    def keep(self, key: Key | None, found: object) -> None:
        """Remember how to run the calls of a signature; a key of None is ignored."""
        if key is not None:
            if len(self) >= _MOST_ENTRIES:
                self.clear()
            self[key] = found


CALLS = CallCache()


def _reserved(a: object, *, steps_differ: bool) -> bytes | None:
    """Return a signature's entry for host_reserved, None if it cannot have one."""
    if type(a) is not np.ndarray or a.dtype.char != "b" or a.ndim != 1 or not a.flags.c_contiguous:
        return None
    value = a.tobytes()
    return value[:1] + value[1 + FINGERPRINT_SIZE :] if steps_differ else value


def _parts(kind: type, a: Any) -> Sequence[object] | None:
    """Return the elements of a list or of a tuple, also a named one, or None."""
    return a if kind is list or kind is tuple or issubclass(kind, (list, tuple)) else None


@functools.cache
def _changes() -> list[int]:
    """Return the counter of changes to the timed kernels, which only calls on a device need."""
    from ..kernels.timed import CHANGES

    return CHANGES


def _environment() -> Iterable[object]:
    """Return the values of the environment variables that a call on a device reads."""
    environ: Any = os.environ
    try:
        return map(environ._data.get, _ENCODED)  # environ.get takes ten times as long
    except AttributeError:  # somebody replaced os.environ by another mapping
        return map(environ.get, _VARIABLES)


def of_device(device: int, addresses: int) -> Key:
    """Return the end of a signature on a device; `addresses` is the bitwise or of all addresses."""
    return device, addresses & 15, _changes()[0], *_environment()


def signature(op: str, args: Sequence[object], kwargs: Named) -> tuple[Key | None, list[Array]]:
    """Return the signature of a call, or None if it has none, and its arrays in order."""
    key: list[object] = [op, len(args), *kwargs]
    arrays: list[Array] = []
    values: list[Any] = [*args, *kwargs.values()]
    if not _NO_ARRAYS.isdisjoint(kwargs):
        steps, values = None, [*args]
        if "sequence_lengths" in kwargs or "resets" in kwargs:
            steps = of_sequences(kwargs)
        key.append(steps)
        for name, a in kwargs.items():
            if name in _SEEDS and not isinstance(a, (int, np.integer)):
                return None, arrays  # the type does not say whether it is an integer
            if name in _BY_TYPE:
                key.append(type(a))
            elif name == "host_reserved" and a is not None:
                key.append(_reserved(a, steps_differ=steps is not None and _ANY in steps))
                if key[-1] is None:
                    return None, arrays
            else:
                values.append(a)
    append, of_char, ndarray = key.append, CHAR_OF_DTYPE_ID.get, np.ndarray
    cupy: Any = sys.modules.get("cupy")
    on_device = getattr(cupy, "ndarray", None)  # None also while it is being imported
    device, addresses = None, 0
    for a in values:  # the parts of lists are appended
        kind = type(a)
        if kind is ndarray:
            dtype = a.dtype
            char = of_char(id(dtype))
            # The checks read the values of tangents and of attributes.
            if char is None and (dtype.kind == "c" or not (a.ndim or dtype.kind in "fV")):
                return None, arrays
            append((a.shape, char or dtype, a.flags.num & _LAYOUT))
            arrays.append(a)
        elif kind in _PLAIN:
            append(kind)
            append(a)
        elif kind is on_device:
            data, dtype = a.data, a.dtype
            if device is None:
                device = cupy.cuda.runtime.getDevice()
            if data.device_id != device or dtype.kind == "c":
                return None, arrays
            addresses |= data.ptr
            append((a.shape, dtype, a._c_contiguous, a._f_contiguous))
            arrays.append(a)
        elif (parts := _parts(kind, a)) is not None and len(values) + len(parts) <= _MOST_ARGUMENTS:
            append((kind, len(parts)))
            if hasattr(kind, "form") and not kind.__module__.startswith("cupyrnn."):
                append(getattr(a.form, "cell", None))  # a bound method: its form by identity
            values.extend(parts)  # += would try the named tuple's own + first
        else:
            return None, arrays
    if device is not None:
        append(of_device(device, addresses))
    return tuple(key), arrays


def run_once(op: str, record: Record, by_name: Named) -> Result:
    """Record a call, play it and drop the record."""
    arrays: Sequence[Array] = arrays_of(by_name)
    with on_device(module_of(arrays[0]), arrays[0]):
        found = record(Arguments(by_name, arrays, op, repeats=False))
        if type(found) is ByValue:
            return found.run(arrays, by_name)
        return found.run(by_name) if type(found) is ByName else found(arrays)


def by_signature(op: _Function, calls: CallCache | None = None) -> _Function:
    """
    Run the calls of an op, whose body checks their arguments and returns a `Record`.

    The body runs once for each signature, and then the call is recorded. The result is kept in
    `calls`, by default in the cache of all ops. Traced arrays are accepted and returned, as by a
    `traceable` function.
    """
    name, code = op.__name__, op.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional, last = names[: code.co_argcount], op.__defaults__ or ()
    defaults = {**dict.fromkeys(names), **(op.__kwdefaults__ or {})}
    defaults |= zip(positional[len(positional) - len(last) :], last, strict=True)
    lacking = lacks(op)

    def named(args: Sequence[object], kwargs: Named) -> Named:
        """Return the arguments of a call by name, passed ones first."""
        passed = {**dict(zip(names, args, strict=False)), **kwargs}
        return {**passed, **defaults, **passed}

    def check(args: Sequence[object], kwargs: Named) -> Record:
        """Check a call; return what records it."""
        if lacking is not None and lacking(args, kwargs):
            raise misfit(op, args, kwargs)
        try:
            return op(*args, **kwargs)  # type: ignore[no-any-return]
        except TypeError as error:
            raise_fitting(error, op, args, kwargs)

    def once(args: Sequence[object], kwargs: Named) -> Result:
        """Run a call without a signature: it is recorded, played and dropped."""
        return run_once(name, check(args, kwargs), named(args, kwargs))

    @functools.wraps(op)
    def call(*args: object, **kwargs: object) -> Result:
        key, arrays = signature(name, args, kwargs)
        kept = CALLS if calls is None else calls
        found = kept.get(key)
        if found is None or type(found) is ByName:
            active = active_jvp()  # the others have no traced arrays
            if active is not None:
                return of_traced(active, call, args, kwargs)
        try:
            while True:
                try:
                    if key is None:
                        return once(args, kwargs)
                    if found is None:
                        known = Arguments(named(args, kwargs), arrays, name)
                        found = check(args, kwargs)(known)
                        kept.keep(key, found)
                    if type(found) is ByValue:
                        return found.run(arrays, kwargs)
                    return (
                        found.run(named(args, kwargs)) if type(found) is ByName else found(arrays)
                    )
                except NotRecordable:  # a device has refused a launch, or the checks find an error
                    kept.pop(key, None)
                    found = None
        except MemoryError as error:
            passed = {**dict(zip(names, args, strict=False)), **kwargs}
            raise no_memory(name, error, passed) from None

    return call  # type: ignore[return-value]
