"""The table of places of the arrays of a call, computed from sizes alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from .._typing import NamedTuple
from ..checks.arrays import NotRecordable
from .signatures import Arguments


@functools.lru_cache(maxsize=4096)
def strides_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of an array in C order."""
    strides = []
    for n in reversed(shape):
        strides.append(itemsize)
        itemsize *= n
    return tuple(reversed(strides))


class Place(NamedTuple):
    """A view of one of the arrays of a call."""

    array: int  # the number of the array
    offset: int  # in bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    dtype: np.dtype[Any]

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether the elements are in C order, without gaps."""
        return self.strides == strides_of(self.shape, self.itemsize)

    @property
    def T(self) -> Place:
        """The transpose."""
        array, offset, shape, strides, dtype = self
        return Place(array, offset, shape[::-1], strides[::-1], dtype)

    def part(self, start: int, stop: int, axis: int = 0) -> Place:
        """Return the elements start to stop - 1 of an axis."""
        array, offset, shape, strides, dtype = self  # _replace takes three times as long
        shape = (*shape[:axis], stop - start, *shape[axis + 1 :])
        return Place(array, offset + start * strides[axis], shape, strides, dtype)

    def at(self, n: int) -> Place:
        """Return element n of the first axis."""
        array, offset, shape, strides, dtype = self
        return Place(array, offset + n * strides[0], shape[1:], strides[1:], dtype)

    def reshape(self, *shape: int) -> Place:
        """Return another shape of an array in C order."""
        assert self.is_whole, self
        assert prod(shape) == self.size, (self, shape)
        strides = strides_of(shape, self.itemsize)
        return Place(self.array, self.offset, shape, strides, self.dtype)

    @property
    def rows(self) -> Place:
        """An array [T, B, K] as [T*B, K]; [B, K] of a single step is returned unchanged."""
        if len(self.shape) == 2:
            return self
        array, offset, (T, B, K), strides, dtype = self
        assert strides[0] == B * strides[1], self
        return Place(array, offset, (T * B, K), strides[1:], dtype)


def are_there(by_name: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether a call has lengths, perhaps all of seq_len_max, and whether it has resets."""
    lengths, steps, resets = map(by_name.get, ("sequence_lengths", "seq_len_max", "resets"))
    return not (lengths is steps is None), resets is not None


class Table:
    """
    The arrays of a call: its arguments, and the memory that it allocates.

    That memory is a few allocations. An array keeps its whole allocation alive, so arrays that a
    caller may keep without the others are in different allocations.

    Parameters
    ----------
    arguments
        The arguments of the call, whose arrays are in C or Fortran order.
    dtype
        The dtype of the computation; by default the dtype of the arguments.

    Attributes
    ----------
    arguments : dict
        The arguments by name, with the places of the arrays.
    length : int
        The steps that all sequences have, or T where that differs from call to call.
    has_padding : bool
        Whether some steps may be past the end of a sequence.
    sequences : tuple or None
        Where that differs, the lengths [B], as int32, and the resets [T, B], as bytes, each of
        which may be None: two parts of memory into which every call copies its own.
    draws : bool
        Whether a call draws masks. It then has the two words of their key.
    """

    _ALIGNED = 256

    def __init__(self, arguments: Arguments, dtype: np.dtype[Any] | None = None) -> None:
        self.dtype = dtype or arguments.arrays[0].dtype
        self.inputs, (T, B), length = len(arguments.arrays), arguments.steps, arguments.length
        self.length, self.sequences = T if length is None else length, None
        self.has_padding = length != T
        self.draws = False
        places = [self._argument(n, a) for n, a in enumerate(arguments.arrays)]
        self.arguments = arguments.with_arrays(places)
        self.allocations: dict[str, list[int]] = {}  # by name: number of the array, and bytes
        self._reused: dict[tuple[Any, ...], Place] = {}
        if length is None:
            self.sequences = self._sequences(arguments.by_name, T, B)

    def _sequences(self, by_name: Any, T: int, B: int) -> tuple[Place | None, Place | None]:
        kind, shapes = np.dtype(np.uint8), ((4 * B,), (T, B))
        pairs = zip(shapes, are_there(by_name), strict=True)
        sizes = [prod(shape) * there for shape, there in pairs]
        memory = self.take("work", (sum(sizes),), kind)
        lengths, resets = memory.part(0, sizes[0]), memory.part(sizes[0], sum(sizes))
        return lengths if sizes[0] else None, resets if sizes[1] else None

    @staticmethod
    def _whole(array: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Place:
        return Place(array, 0, shape, strides_of(shape, dtype.itemsize), dtype)

    def _argument(self, n: int, a: Any) -> Place:
        place = self._whole(n, a.shape, self.dtype)
        return place if a.flags.c_contiguous else place._replace(strides=a.strides)

    def begin(self, place: Place, value: Place | None) -> None:
        """Initialize a new array, or a part of one, with an argument or with zeros."""
        raise NotRecordable("the memory of a device is not written beforehand")

    def take(
        self, allocation: str, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None
    ) -> Place:
        """Return the place of a new array in an allocation, of the dtype of the arguments."""
        number = self.inputs + len(self.allocations)
        memory = self.allocations.setdefault(allocation, [number, 0])
        start = -(-memory[1] // self._ALIGNED) * self._ALIGNED
        place = self._whole(memory[0], shape, dtype or self.dtype)._replace(offset=start)
        memory[1] = start + place.size * place.itemsize
        return place

    def reuse(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None) -> Place:
        """Return scratch memory. Layers share it by name and shape, because they run one by one."""
        key = name, shape, dtype
        if key not in self._reused:
            self._reused[key] = self.take("work", shape, dtype)
        return self._reused[key]
