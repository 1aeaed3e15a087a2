"""
Rows in another order, as one compiled call.

Sequences of different lengths are computed without padding, their rows in the order of the steps.
This call copies rows of several arrays between that order and the padded arrays of the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from . import threads
from .addresses import BYTE, Address, At, WordBlock
from .cache import compiled
from .frame import add_rows
from .products import vectors_of
from .simd import VECTOR_BYTES, call_of, copy, fill, read_fields, read_word, size_of


class RowMove(NamedTuple):
    """Rows [·, K] that are copied or added: addresses, and strides in bytes."""

    a: Address
    rs_a: int
    to: Address
    rs_to: int
    K: int
    adds: int
    # int64: the number of rows of `to`, then for each of these the row of `a`, -1 for zeros.
    index: Address


_read_move, _EACH_BYTES = read_fields(RowMove), 8 * len(RowMove._fields)


def move_rows(one: Any, words: int) -> None:
    """Copy or add the rows of all moves: a function for `compiled`."""
    _, _, address = call_of(words)
    for k in range(read_word(address)):
        m = _read_move(address + 8 + k * _EACH_BYTES)
        for r in range(read_word(m.index)):
            row, to = read_word(m.index + 8 + 8 * r), m.to + r * m.rs_to
            if row < 0 and not m.adds:
                fill(to, 0, m.K * size_of(one))
            elif m.adds and row >= 0:
                add_rows(one, (0, vectors_of(one, m.K), m.K, 0, to, m.a + row * m.rs_a, to))
            elif row >= 0:
                copy(to, m.a + row * m.rs_a, m.K * size_of(one))


def are_compiled(dtype: np.dtype[Any]) -> bool:
    """Return whether moves of arrays of this dtype are compiled."""
    return compiled(move_rows, dtype.char) is not None


class RowMoves:
    """Runs moves, whose addresses are places in the arrays of a call, in order."""

    def __init__(self, moves: Sequence[RowMove], dtype: np.dtype[Any]) -> None:
        places: list[At] = []
        words: list[int | At] = [len(moves)]
        for move in moves:
            for word in move:
                if isinstance(word, At):
                    places.append(word)
                    word = At(len(places))
                words.append(word)
        self._block = WordBlock(words, 0, places)
        self._bytes = 8 * len(words) + VECTOR_BYTES
        self._loop, self._double = compiled(move_rows, dtype.char).address, dtype.char == "d"

    def run(self, arrays: Sequence[Any]) -> None:
        """Run the moves on the arrays of a call."""
        all_arrays = np.empty(self._bytes, BYTE), *arrays
        threads.run(1, self._loop, self._double, self._block.words_for(all_arrays))
