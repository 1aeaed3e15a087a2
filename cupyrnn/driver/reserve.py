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
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .._typing import Array, NamedTuple, cached_property
from ..arithmetic.dual import real_dtype
from ..cells.contract import columns_of
from ..checks.arrays import array_kind
from ..checks.attributes import shown
from . import recompute
from .packing import Rows
from .signatures import FINGERPRINT_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Layers(Protocol):
    """The sizes of a net: layers and directions, and H and P of each layer."""

    @property
    def L(self) -> int: ...
    @property
    def D(self) -> int: ...
    @property
    def widths(self) -> Sequence[tuple[int, int]]: ...


class Sizes(NamedTuple):
    """The sizes of a call, and what it drops."""

    T: int
    B: int
    is_training: bool
    dropout: float
    seed: int
    seed2: int

    def drops(self, net: Layers) -> bool:
        """Return whether values are dropped between layers."""
        return self.is_training and self.dropout > 0 and net.L > 1


class _Net(NamedTuple):
    """The sizes of a net and of a call, on which the parts of reserve_space depend."""

    net: Layers
    sizes: Sizes
    saved: Any  # the cells' Saved and States
    states: Any
    rows: Any  # Rows; of a call, its Packing, which `parts` alone reads
    every: int | None = None  # None: all that the steps save, else every k-th state


class ReserveLayout(_Net):
    """The parts of the reserve_space of a net."""

    def with_every(self, every: int | None) -> ReserveLayout:
        """Return the parts for the same steps with another `every`."""
        return self._replace(every=every)

    def _shapes(self) -> Iterator[tuple[int, int]]:
        """Yield the shape of every part of reserve_space, in the order of `parts`."""
        net, (T, B, *_), below = self.net, self.sizes, 0
        rows = n = T * B
        if self.every is not None:
            n = recompute.count_kept(Rows(np, T, B), self.every)
        for layer, (H, P) in enumerate(net.widths):
            if layer and self.sizes.drops(net):
                yield rows, net.D * below
            columns = [P] + [H] * (len(self.states._fields) - 1)
            if self.every is None:
                columns = columns_of(self.saved, H, P)
            yield from [(n, width) for width in columns] * net.D
            if self.every not in (None, 1) and layer < net.L - 1:
                yield from [(rows, P)] * net.D
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


class Note(NamedTuple):
    """The note at the end of a reserve_space of states."""

    every: int
    call: int  # a checksum of the sizes, attributes, lengths and resets
    forget_bias: float | None = None
    cell_clip: float | None = None


_FORMAT, _BEGINS = "<2sqI?d?d", b"k="
NOTE_SIZE = struct.calcsize(_FORMAT)  # elements


def reserve_size(layout: ReserveLayout) -> int:
    """Return the number of elements of reserve_space."""
    if layout.every is None:
        return layout.size
    size = layout.size + NOTE_SIZE
    # The size is how a reader tells the two layouts apart, so they must differ.
    return size + (size == layout.with_every(None).size)


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
    layout: ReserveLayout,
    fingerprint: Callable[[], int],
) -> tuple[ReserveLayout, Note | None]:
    """
    Check that reserve_space belongs to a call; return its parts, and its note if it has one.

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
            layout = layout.with_every(note.every)
            check_size(op, reserve_space, reserve_size(layout), f" with save={note.every}")
            if note.call != fingerprint():
                raise ValueError(
                    f"{op}: reserve_space is of a call with save={note.every} and with other"
                    " sizes, attributes, lengths or resets"
                )
            return layout, note
    check_size(op, reserve_space, size)
    return layout, None


# The engine of a reserve_space, by the beginning of host_reserved; the fingerprint of the call
# follows. Each algorithm of cuDNN has its own.
OWNERS = ("cupy", "cudnn", "cudnn_small_h", "cudnn_persist_dynamic", "cudnn_persist_static")
_OWN = OWNERS.index("cupy")
_EVERY_SIZE = 8  # bytes


def fingerprint(run: Any, drops: bool, *net: object) -> int:
    """Return a checksum of the sizes, attributes, lengths and resets of a call."""
    # Without the seeds, as the masks themselves are in reserve_space.
    rate = run.sizes.dropout if drops else 0.0
    described = net, rate, real_dtype(run.dtype).str, None, None, *(["reverse"] * run.reverse)
    return with_sequences(zlib.crc32(repr(described).encode()), run, run.lengths, run.resets)


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
