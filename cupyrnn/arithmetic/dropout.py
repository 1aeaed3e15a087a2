"""The dropout masks of CudnnRNN; ``kernels/dropout.py`` makes the same bits in CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._typing import Array

_WORD = 2**64 - 1


def key_words(seed: int, seed2: int) -> tuple[int, int]:
    """Return the two words of the generator's key."""
    return seed & _WORD, seed2 & _WORD


def threshold(rate: float) -> int:
    """Return the threshold below which a draw of 32 bits means that a value is kept."""
    return min(round((1 - rate) * 2**32), 2**32 - 1)


def scale(rate: float) -> float:
    """Return the factor of the values that are kept."""
    return 1 / (1 - rate) if rate < 1 else 0.0


def keep_mask(
    shape: tuple[int, int], dtype: np.dtype[Any], threshold: int, keys: tuple[int, int], layer: int
) -> Array:
    """
    Return the mask of a layer's input: ones where a draw of 32 bits is below `threshold`.

    Draw number n of 32 bits is half n % 2 of output n // 2 of Philox4x64-10 with the key
    `keys` and the counter's third word `layer`, as numpy.random.Philox makes them.

    Parameters
    ----------
    shape
        Rows and columns.
    """
    rows, columns = shape
    size = rows * columns
    counter = np.array([0, 0, layer, 0], np.uint64)
    generator = np.random.Philox(counter=counter, key=np.array(keys, np.uint64))
    # Little-endian on every machine: the low half of an output comes first.
    draws = generator.random_raw(-(-size // 2)).astype("<u8", copy=False).view("<u4")[:size]
    return (draws < np.uint32(threshold)).astype(dtype).reshape(shape)
