"""
Addresses of arrays, and the words that pass them to compiled code.

A loop reads a block of words: numbers, and addresses of a call's arrays. The block is made once for
calls of one signature. A call copies it and adds the addresses of its own arrays.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .._typing import Array
from .simd import VECTOR_BYTES, part, read_word, write_word


class At(NamedTuple):
    """A place in memory: the number of an array, and an offset into it in bytes."""

    array: int
    offset: int = 0


# A field with an address. Python writes an At or 0; compiled loops read an integer.
Address: TypeAlias = Any

# The arguments of `relocate`. The first four are the id of the block, the id of the relocations,
# their number, and the address of the tuple's items. The last is the offset of an array object's
# data pointer. If it is -1, the addresses are in the block already, and the first is its address.
Words: TypeAlias = tuple[int, int, int, int, int]


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
        # One vector more, because copies in whole vectors may write past the last number.
        self.bytes = start + (count + 2 * VECTOR_BYTES - 1) // VECTOR_BYTES * VECTOR_BYTES
        return start


def words_of(words: Sequence[int | At]) -> tuple[Array, Array]:
    """Return a block of words with offsets only, and the pairs (word, array) to relocate."""
    found = [(k, w.array) for k, w in enumerate(words) if isinstance(w, At)]
    block = np.array([w.offset if isinstance(w, At) else w for w in words], np.int64)
    return block, np.array(found, np.int64)


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


def aligned(count: int, dtype: np.dtype[Any]) -> Array:
    """Return memory for `count` bytes, aligned to a vector."""
    size, places = dtype.itemsize, _data()
    owner = np.empty((count + VECTOR_BYTES) // size, dtype)
    address = (
        address_of(owner)
        if places is None
        else ctypes.c_ssize_t.from_address(id(owner) + places[1]).value
    )
    behind = -address % VECTOR_BYTES // size
    return owner[behind : behind + count // size]


@part
def relocate(block: int, relocations: int, count: int, arrays: int, data: int) -> int:
    """Add the addresses of arrays to a block of words; return the address of the words."""
    if data < 0:
        return block
    words, table = read_word(block + data), read_word(relocations + data)
    for n in range(count):
        place = words + 8 * read_word(table + 16 * n)
        array = read_word(arrays + 8 * read_word(table + 16 * n + 8))
        write_word(place, read_word(place) + read_word(array + data))
    return words


def words_for(block: Array, relocations: Array, arrays: tuple[Any, ...]) -> Words:
    """
    Return the arguments of `relocate`, by which compiled code adds the addresses of arrays.

    The result contains only integers, so the caller must keep references to the three arguments.
    Use each block once, because `relocate` writes into it.

    Parameters
    ----------
    relocations : [·, 2]
        Pairs: the index of a word, and the index of an array.
    """
    places = _data()
    if places is None:
        addresses = np.array([0 if a is None else address_of(a) for a in arrays])
        np.add.at(block, relocations[:, 0], addresses[relocations[:, 1]])
        return address_of(block), 0, 0, 0, -1
    items, data = places
    return id(block), id(relocations), len(relocations), id(arrays) + items, data
