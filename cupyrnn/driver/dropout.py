"""The dropout masks of CudnnRNN, the same bit for bit on every array module."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .._arrays import Array

_WORD = 2**64 - 1


def key_words(seed: int, seed2: int) -> tuple[int, int]:
    """Return the two words of the generator's key."""
    return seed & _WORD, seed2 & _WORD


def threshold(rate: float) -> int:
    """Return the number below which a draw of 32 bits keeps its value."""
    return min(round((1 - rate) * 2**32), 2**32 - 1)


def keep_mask(
    xp: ModuleType,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    rate: float,
    seed: int,
    seed2: int,
    layer: int,
) -> Array:
    """
    Return a mask of ones, and zeros at about `rate` of its places.

    Draw number n of 32 bits is half n % 2 of output n // 2 of Philox4x64-10 with the key
    (seed, seed2) and the counter's third word `layer`, as numpy.random.Philox makes them.

    Parameters
    ----------
    shape
        Rows and columns.
    layer
        The layer whose input is masked.
    """
    if xp is not np:
        from ..kernels.dropout import keep_mask as twin

        return twin(shape, dtype, threshold(rate), key_words(seed, seed2), layer)
    rows, columns = shape
    size = rows * columns
    counter = np.array([0, 0, layer, 0], np.uint64)
    generator = np.random.Philox(counter=counter, key=np.array(key_words(seed, seed2), np.uint64))
    # Little-endian on every machine: the low half of an output comes first.
    draws = generator.random_raw(-(-size // 2)).astype("<u8", copy=False).view("<u4")[:size]
    kept: Array = (draws < np.uint32(threshold(rate))).astype(dtype).reshape(shape)
    return kept
