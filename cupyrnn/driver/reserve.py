"""
reserve_space: what the forward pass of a net stores for its gradient.

For each layer it contains the dropout mask of its input, then for each direction the arrays that
the steps saved: in NumPy in the order of the steps, on a device all steps in the order of time. The
size does not depend on lengths and resets: each array has a row for every step of every sequence,
and where there are fewer steps, its last rows are not used.
With save="states" it contains only states. With save=k it contains the states of every k-th step
and, for all layers but the last, h of every step, which the layer above reads. A note at the end
tells which states these are, and what recomputing needs to know. It consists of small integers,
which every dtype can represent.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array, NamedTuple, cached_property
from ..arithmetic.dual import real_dtype
from ..cells.contract import Form, columns_of
from ..checks.arrays import array_kind
from ..checks.attributes import shown
from ..checks.nets import NetSizes
from . import recompute
from .net import Kept
from .packing import Rows
from .places import Place, Table
from .signatures import FINGERPRINT_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Sizes(NamedTuple):
    """The sizes of a call, and what it drops."""

    T: int
    B: int
    is_training: bool
    dropout: float
    seed: int
    seed2: int

    def drops(self, L: int) -> bool:
        """Return whether values are dropped between L layers."""
        return self.is_training and self.dropout > 0 and L > 1


class Note(NamedTuple):
    """The note at the end of a reserve_space of states."""

    every: int
    call: int  # a checksum of the sizes, attributes, lengths and resets
    forget_bias: float | None = None
    cell_clip: float | None = None


_FORMAT, _BEGINS = "<2sqI?d?d", b"k="
NOTE_SIZE = struct.calcsize(_FORMAT)  # elements


class _Layout(NamedTuple):
    """A net and a call of it."""

    net: NetSizes
    sizes: Sizes
    form: Form  # of the weights
    every: int | None = None  # None: the steps save everything, else every k-th state
    reverse: bool = False  # whether all layers run backwards in time
    are_exchanged: bool = False  # whether input, output and states are batch-major
    # The note of kept states, of lengths and resets, by default of those of the call; None if
    # reserve_space has none, or its note is known to be right.
    note_of: Callable[..., Note] | None = None


class NetLayout(_Layout):
    """The sizes of a call of a net, and the parts of its reserve_space."""

    @property
    def states(self) -> int:
        """The number of states of a layer."""
        return len(self.form.States._fields)

    @property
    def rate(self) -> float:
        """The fraction of h that masks between layers drop; 0 without masks."""
        return self.sizes.dropout if self.sizes.drops(self.net.L) else 0.0

    def saves(self, *, is_training: bool = True) -> str:
        """Return what the caller gets of what the steps save: see `on_host.start`."""
        return "h" if not is_training else "all" if self.every is None else "states"

    def back(self, n: int) -> bool:
        """Return whether direction n, counted by layer and direction, runs backwards."""
        return self.reverse or n % self.net.D == 1

    def by_layer(self, parts: list[Any]) -> list[list[Any]]:
        """Return a list by layer and direction as one list for each layer."""
        return [parts[n : n + self.net.D] for n in range(0, len(parts), self.net.D)]

    def columns(self, layer: int) -> list[int]:
        """Return the width of each array that the steps of a layer save."""
        return columns_of(self.form.Saved, *self.net.widths[layer])

    def kept(self, n: int, attributes: Any = None) -> Kept | None:
        """Return which states are kept by direction n, counted by layer and direction."""
        if self.every is None:
            return None
        return Kept(self.every, self.columns(n // self.net.D), attributes)

    def _shapes(self) -> Iterator[tuple[int, int]]:
        """Yield the shape of every part of reserve_space, in order."""
        (L, D, widths), (T, B, *_), below = self.net, self.sizes, 0
        rows = n = T * B
        if self.every is not None:
            n = recompute.count_kept(Rows(np, T, B), self.every)
        for layer, (H, P) in enumerate(widths):
            if layer and self.sizes.drops(L):
                yield rows, D * below
            columns = [P] + [H] * (self.states - 1)
            if self.every is None:
                columns = self.columns(layer)
            yield from [(n, width) for width in columns] * D
            if self.every not in (None, 1) and layer < L - 1:
                yield from [(rows, P)] * D
            below = P

    @cached_property
    def places(self) -> list[tuple[slice, tuple[int, int]]]:
        """The elements and the shape of every part of reserve_space."""
        places, start = [], 0
        for shape in self._shapes():
            end = start + shape[0] * shape[1]
            places.append((slice(start, end), shape))
            start = end
        return places

    @cached_property
    def size(self) -> int:
        """The number of elements of reserve_space, without its note."""
        return self.places[-1][0].stop if self.places else 0

    def _parts(self, reserve: Place, rows: int) -> Iterator[Place]:
        """Yield the places of the parts of reserve_space, of each at most these rows."""
        for s, shape in self.places:
            part = reserve.part(s.start, s.stop).reshape(*shape)
            yield part.part(0, min(rows, shape[0]))

    def kept_of(
        self, table: Table, reserve: Place, rows: int, h_of_last: Sequence[Place] | None = ()
    ) -> tuple[list[Place | None], list[tuple[Place, ...]]]:
        """
        Return the places of the masks, and those of the states that the steps keep, with h.

        Without places for it, forward, h of the last layer has new memory. The gradient does not
        read it: then `h_of_last` is None.
        """
        (L, D, widths), every, left = self.net, self.every, self._parts(reserve, rows)
        masks, saved = list[Place | None](), list[tuple[Place, ...]]()
        for n, (_, P) in enumerate(widths):
            masks.append(next(left) if n and self.rate else None)
            states = [tuple(islice(left, self.states)) for _ in range(D)]
            h = [a[0] for a in states]
            if every != 1 and n + 1 < L:
                h = [*islice(left, D)]
            elif every != 1 and h_of_last is not None:
                h = [*h_of_last] or [table.reuse(f"h{d}", (rows, P)) for d in range(D)]
            saved += [(*a, b) for a, b in zip(states, h, strict=True)]
        return masks, saved

    def saved_of(
        self, reserve: Place, rows: int
    ) -> tuple[list[Place | None], list[tuple[Place, ...]]]:
        """
        Return the places in these rows of the masks and of the saved arrays.

        The masks are by layer, None for the first, the saved arrays by layer and direction.
        """
        (L, D, _), count, left = self.net, len(self.form.Saved._fields), self._parts(reserve, rows)
        masks, saved = list[Place | None](), list[tuple[Place, ...]]()
        for n in range(L):
            masks.append(next(left) if n and self.rate else None)
            saved += [tuple(islice(left, count)) for _ in range(D)]
        return masks, saved

    def work_of(self, table: Table, rows: int, most: int) -> list[tuple[Place, ...]]:
        """
        Return places for saved arrays in inference, where only h outlives its direction.

        The others have memory for `most` of the rows.
        """
        found = []
        for layer, (_, P) in enumerate(self.net.widths):
            columns = self.columns(layer)[:-1]
            others = [table.reuse(f"saved{k}", (most, n)) for k, n in enumerate(columns)]
            found += [(*others, table.take("work", (rows, P))) for _ in range(self.net.D)]
        return found


def reserve_size(layout: NetLayout) -> int:
    """Return the number of elements of reserve_space."""
    if layout.every is None:
        return layout.size
    size = layout.size + NOTE_SIZE
    # The size is how a reader tells the two layouts apart, so they must differ.
    return size + (size == layout._replace(every=None).size)


def note_numbers(note: Note) -> NDArray[np.uint8]:
    """Return a note as small numbers."""
    optional = [v for a in note[2:] for v in (a is not None, 0.0 if a is None else a)]
    text = struct.pack(_FORMAT, _BEGINS, note.every, note.call, *optional)
    return np.frombuffer(text, np.uint8)


def _read_note(xp: ModuleType, reserve_space: Array) -> Note | None:
    """Return the note at the end of reserve_space, if there is any."""
    if len(reserve_space) < NOTE_SIZE:
        return None
    end = reserve_space[-NOTE_SIZE:].real
    numbers = (end if xp is np else xp.asnumpy(end)).astype(np.float64)
    if not ((numbers >= 0) & (numbers <= 255)).all():
        return None
    begins, every, call, *optional = struct.unpack(_FORMAT, numbers.astype(np.uint8).tobytes())
    if begins != _BEGINS or every < 1:
        return None
    return Note(every, call, *(optional[k + 1] if optional[k] else None for k in (0, 2)))


def check_size(op: str, reserve_space: Array, size: int, how: str = "") -> None:
    """Check that reserve_space has this number of elements; `how` says what it then contains."""
    if reserve_space.shape != (size,):
        raise ValueError(
            f"{op}: reserve_space has shape {reserve_space.shape}, expected ({size},){how}, as"
            f" {op.removesuffix('_backprop')} returns it for these arguments with is_training=True"
        )


def check_reserve(
    op: str,
    xp: ModuleType,
    reserve_space: Array,
    layout: NetLayout,
    fingerprint: Callable[[], int],
) -> Note | None:
    """
    Check that reserve_space belongs to a call; return its note if it has one that was not known.

    Parameters
    ----------
    layout
        The parts of this call, with `every` if it is known. Otherwise, unless everything was saved,
        the note is read, which on a device means a copy to the host.
    fingerprint
        A checksum of the sizes, attributes, lengths and resets of the call.
    """
    size = reserve_size(layout)
    if layout.every is None and reserve_space.ndim == 1 and len(reserve_space) != size:
        note = _read_note(xp, reserve_space)
        if note is not None:
            kept = reserve_size(layout._replace(every=note.every))
            check_size(op, reserve_space, kept, f" with save={note.every}")
            if note.call != fingerprint():
                raise ValueError(
                    f"{op}: reserve_space is of a call with save={note.every} and with other"
                    " sizes, attributes, lengths or resets"
                )
            return note
    check_size(op, reserve_space, size)
    return None


# The engine of a reserve_space, by the beginning of host_reserved; the fingerprint of the call
# follows. Each algorithm of cuDNN has its own.
OWNERS = ("cupy", "cudnn", "cudnn_small_h", "cudnn_persist_dynamic", "cudnn_persist_static")
_OWN = OWNERS.index("cupy")
_EVERY_SIZE = 8  # bytes


def fingerprint(run: Any, drops: bool, *net: object) -> int:
    """Return a checksum of the sizes and attributes of a call, without lengths and resets."""
    # Without the seeds, as the masks themselves are in reserve_space.
    rate = run.sizes.dropout if drops else 0.0
    described = net, rate, real_dtype(run.dtype).str, None, None, *(["reverse"] * run.reverse)
    return zlib.crc32(repr(described).encode())


def with_sequences(number: int, run: Any, lengths: Any, resets: Any) -> int:
    """Return the fingerprint of a call with lengths and resets, of that without them."""
    # Which rows there are differs from module to module.
    name = run.xp.__name__.encode()
    if lengths is not None and lengths.size and lengths.min() < run.sizes.T:
        number = zlib.crc32(name + b" lengths" + lengths.tobytes(), number)
    if resets is not None and resets.any():
        number = zlib.crc32(name + b" resets" + resets.tobytes(), number)
    return number


def make_host_reserved(engine: str, call: int, every: int | None) -> NDArray[np.int8]:
    """Return host_reserved: the engine, the fingerprint of the call, and k for every k-th state."""
    owner = _OWN if engine == "numpy" else OWNERS.index(engine)
    text = bytes([owner]) + call.to_bytes(FINGERPRINT_SIZE, "little")
    if every is not None:
        text += every.to_bytes(_EVERY_SIZE, "little")
    return np.frombuffer(text, np.int8).copy()


def reserved_engine(
    op: str, xp: ModuleType, engine: str, host_reserved: object, expected: NDArray[np.int8]
) -> tuple[str, int | None]:
    """
    Return the engine of a reserve_space, and k if it has every k-th state.

    `expected` is the host_reserved of this call for any engine, with everything saved.
    """
    if (
        array_kind(host_reserved) != "numpy"
        or not isinstance(host_reserved, np.ndarray)
        or host_reserved.dtype != np.int8
    ):
        raise TypeError(
            f"{op}: host_reserved is {shown(host_reserved)}, expected a numpy.ndarray, int8"
        )
    n, every = len(expected), None
    if host_reserved.shape == (n + _EVERY_SIZE,):
        every = int.from_bytes(host_reserved[n:].tobytes(), "little")
    elif host_reserved.shape != expected.shape:
        raise ValueError(
            f"{op}: host_reserved has shape {host_reserved.shape}, expected {expected.shape}, as a"
            " forward call with is_training=True returns it"
        )
    owner = int(host_reserved[0])
    if owner not in ((_OWN,) if xp is np or every is not None else range(len(OWNERS))):
        raise ValueError(
            f"{op}: host_reserved begins with {owner}, which no engine for {xp.__name__} arrays has"
        )
    if every == 0 or (host_reserved[1:n] != expected[1:]).any():
        raise ValueError(
            f"{op}: host_reserved is {shown(host_reserved)}, expected {expected[1:].tolist()} after"
            " the first: reserve_space is of a call with other sizes, attributes, lengths or resets"
        )
    if xp is np:
        return engine, every
    whose = OWNERS[owner]
    if engine not in ("auto", whose):
        raise ValueError(f"{op}: engine is {engine!r}, but reserve_space is of {whose!r}")
    return whose, every
