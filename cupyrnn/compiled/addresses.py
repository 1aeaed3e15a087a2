"""
Addresses of arrays, and the words that pass them to compiled code.

A loop reads words: numbers, and addresses of a call's arrays. A `WordBlock` has them without
addresses, for all calls of one signature. Compiled code copies them to the memory of a call and
adds the addresses of its arrays.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .._typing import Array
from .simd import VECTOR_BYTES, copy, part, read_word, write_word


class At(NamedTuple):
    """A place in memory: the number of an array, and an offset into it in bytes."""

    array: int
    offset: int = 0


# The dtype of the memory of a call: NumPy takes longer to allocate from a type than from a dtype.
BYTE = np.dtype(np.uint8)

# The type of fields with an address. Python writes an At or 0; compiled loops read an integer.
Address: TypeAlias = Any

# The arguments of `relocate`: the address of a block, and the address of the items of a tuple of
# arrays. If the second is -1, the first is the address of words that have all addresses already.
Words: TypeAlias = tuple[int, int]

# The numbers of arrays: the memory of a call; its words, which are in the memory; no array of it.
MEMORY, OWN_WORDS, _CONSTANT = 0, -1, -2


def address_of(a: Array) -> int:
    """Return the address of an array."""
    address: int = a.__array_interface__["data"][0]
    return address


class Memory:
    """Offsets of parts in the one piece of memory that a call allocates."""

    def __init__(self) -> None:
        self.bytes = 0

    def take(self, count: int) -> int:
        """Return the offset of `count` new bytes."""
        start = self.bytes
        # One more vector, because copies of whole vectors may write past the last number.
        self.bytes = start + (count + 2 * VECTOR_BYTES - 1) // VECTOR_BYTES * VECTOR_BYTES
        return start


@functools.cache
def _data() -> tuple[int, int] | None:
    """
    Return the offsets of a tuple's items and of an array's data pointer; None if unknown.

    Compiled code reads these fields of the C objects, because asking NumPy for an address costs
    microseconds.
    """
    items, data = tuple.__basicsize__, object.__basicsize__
    if sys.implementation.name != "cpython":
        return None
    read, probe = ctypes.c_ssize_t.from_address, (None, np.arange(3)[1:])
    if read(id(probe) + items + 8).value != id(probe[1]):
        return None
    return (items, data) if read(id(probe[1]) + data).value == address_of(probe[1]) else None


# The words before a block: the place of its words in memory (bytes), their number, the number of
# relocations, and the offset of an array object's data pointer.
_FRONT = 4


@part
def relocate(block: int, arrays: int) -> int:
    """Copy a block of words to memory and add the addresses of arrays; return their address."""
    if arrays < 0:
        return block
    count, data = read_word(block + 8), read_word(block + 24)
    memory = read_word(read_word(arrays) + data)
    memory = (memory + VECTOR_BYTES - 1) // VECTOR_BYTES * VECTOR_BYTES
    words, table = memory + read_word(block), block + 8 * (_FRONT + count)
    copy(words, block + 8 * _FRONT, 8 * count)
    for n in range(read_word(block + 16)):
        place = words + 8 * read_word(table + 16 * n)
        array = read_word(table + 16 * n + 8)
        address = read_word(read_word(arrays + 8 * array) + data) if array else memory
        write_word(place, read_word(place) + address)
    return words


class WordBlock:
    """
    The words of the calls of one signature, and the memory that each call needs.

    Parameters
    ----------
    words
        Numbers, and places in the arrays of a loop. The first array is memory.
    place
        The place of a call's words in memory, in bytes from its first whole vector on.
    arrays
        The other arrays of the loop, if they are parts of the arrays of an op's call: a place in
        one of these, a constant, or None.
    """

    def __init__(
        self, words: Sequence[int | At], place: int, arrays: Sequence[Any] | None = None
    ) -> None:
        self._place, self._arrays = place, arrays  # constants have to live
        moves = [_move(a) for a in arrays or ()]
        numbers: list[int] = []
        relocations: list[int] = []
        for w in words:
            if isinstance(w, At):
                array, w = w
                if array == OWN_WORDS:
                    array, w = MEMORY, place + w
                elif array != MEMORY and moves:
                    array, start = moves[array - 1]
                    w += start
                if array != _CONSTANT:
                    relocations += len(numbers), array
            numbers.append(w)
        self._words, self._relocations = numbers, relocations
        front = place, len(numbers), len(relocations) // 2, (_data() or (0, 0))[1]
        self._block = np.array([*front, *numbers, *relocations], np.int64)
        self._address = address_of(self._block)

    def words_for(self, arrays: tuple[Any, ...]) -> Words:
        """
        Return the arguments of `relocate`, by which compiled code adds the addresses of arrays.

        They contain only integers, so the caller must keep a reference to the tuple.
        """
        places = _data()
        if places is not None:
            return self._address, id(arrays) + places[0]
        # Some are None, and one is the keys of masks, which no loop reads.
        found = [address_of(a) if isinstance(a, np.ndarray) else 0 for a in arrays]
        addresses = np.array(found)
        behind = -addresses[0] % VECTOR_BYTES
        addresses[0] += behind
        start = behind + self._place
        words = arrays[0][start : start + 8 * len(self._words)].view(np.int64)
        words[...] = self._words
        np.add.at(words, self._relocations[::2], addresses[self._relocations[1::2]])
        return address_of(words), -1


def _move(a: At | Array | None) -> tuple[int, int]:
    """Return where an array of a loop is: the number of an array and an offset, or an address."""
    if isinstance(a, At):
        return 1 + a.array, a.offset
    return _CONSTANT, 0 if a is None else address_of(a)
