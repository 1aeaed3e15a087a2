"""
Where arrays lie, and the words by which compiled code is told.

A loop reads a block of words: numbers, and addresses of a call's arrays. What is the same in every
call is arranged once; a call copies it and puts in the addresses.
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
    """Where something lies: in which of some arrays, and how many bytes behind its first."""

    array: int
    offset: int = 0


# A field that is an address: an At or 0 to who writes it, an integer to the loops that read it.
Address: TypeAlias = Any

# What `relocate` takes: a block, which of its words to add addresses of which arrays to, how many
# these are, a tuple's items, and where an array has its address. It is -1 if nothing is to be
# added, and the block then is an address; all others are those of objects.
Words: TypeAlias = tuple[int, int, int, int, int]


def address_of(a: Array) -> int:
    """Return where an array lies."""
    address: int = a.__array_interface__["data"][0]
    return address


class Memory:
    """Memory of a call, taken in one piece: where each part is."""

    def __init__(self) -> None:
        self.bytes = 0

    def take(self, count: int) -> int:
        """Return where so many bytes will be."""
        start = self.bytes
        # A vector's more: a block that is copied in whole vectors may end behind the last number.
        self.bytes = start + (count + 2 * VECTOR_BYTES - 1) // VECTOR_BYTES * VECTOR_BYTES
        return start


def words_of(words: Sequence[int | At]) -> tuple[Array, Array]:
    """Return words without addresses, and which of them those of which arrays are added to."""
    found = [(k, w.array) for k, w in enumerate(words) if isinstance(w, At)]
    block = np.array([w.offset if isinstance(w, At) else w for w in words], np.int64)
    return block, np.array(found, np.int64)


@functools.cache
def _data() -> tuple[int, int] | None:
    """
    Return where a tuple holds its items, and an array its address; None where it cannot be told.

    In C both begin with what all objects have; to ask NumPy for an address costs microseconds.
    """
    items, data = tuple.__basicsize__, object.__basicsize__
    if sys.implementation.name != "cpython":
        return None
    read, probe = ctypes.c_ssize_t.from_address, (None, np.arange(3)[1:])
    if read(id(probe) + items + 8).value != id(probe[1]):
        return None
    return (items, data) if read(id(probe[1]) + data).value == address_of(probe[1]) else None


def aligned(count: int, dtype: np.dtype[Any]) -> Array:
    """Return memory for so many bytes that begins with a whole vector."""
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
    """Return where words are, with their addresses."""
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
    Return a block of words for compiled code, which adds the addresses of arrays to them once.

    What is returned are integers: variables of the caller have to hold these three.

    Parameters
    ----------
    relocations : [·, 2]
        Which words, and of which of the arrays.
    """
    places = _data()
    if places is None:
        addresses = np.array([0 if a is None else address_of(a) for a in arrays])
        np.add.at(block, relocations[:, 0], addresses[relocations[:, 1]])
        return address_of(block), 0, 0, 0, -1
    items, data = places
    return id(block), id(relocations), len(relocations), id(arrays) + items, data
