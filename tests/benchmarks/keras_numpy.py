"""
An LSTM layer of Keras 3 on its NumPy backend beside cudnn_rnn with the layer's weights.

    OPENBLAS_NUM_THREADS=1 python tests/benchmarks/keras_numpy.py

Both compute the whole output [B, T, H] in float32; Keras's NumPy backend has no gradients. The
calls take turns, their results are compared, and a ratio is the median over the rounds of Keras's
time divided by cupyrnn's, with its least and its largest. `CUPYRNN_NUMBA=0` measures NumPy alone.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cupyrnn

# (T, B, I, H)
SHAPES = ((100, 32, 64, 128), (100, 32, 64, 256))
ROUNDS = 9


def calls_of(shape: tuple[int, ...]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return Keras's call and cupyrnn's, of the same numbers."""
    os.environ["KERAS_BACKEND"] = "numpy"
    import keras

    if keras.backend.backend() != "numpy":
        raise SystemExit("keras_numpy: Keras has another backend, expected numpy")
    T, B, I, H = shape
    x = np.random.default_rng(0).standard_normal((B, T, I), np.float32)
    layer = keras.layers.LSTM(H, return_sequences=True)
    layer.build(x.shape)
    packed = cupyrnn.params_from_keras(layer.get_weights())
    zeros = np.zeros((B, 1, H), np.float32)

    def ours() -> Any:
        return cupyrnn.cudnn_rnn(
            x, zeros, zeros, packed, time_major=False, is_training=False
        ).output

    return lambda: np.asarray(layer(x)), ours


def ratios(shape: tuple[int, ...], rounds: int) -> list[float]:
    """Return Keras's time over cupyrnn's in each round."""
    theirs, ours = calls_of(shape)
    np.testing.assert_allclose(theirs(), ours(), rtol=1e-4, atol=1e-5)
    found = []
    for _ in range(rounds):
        taken = []
        for call in (theirs, ours):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
        found.append(taken[0] / taken[1])
    return found


def main() -> None:
    """Print a table."""
    print("| (T, B, I, H) | Keras's time over cupyrnn's |\n|---|--:|")
    for shape in SHAPES:
        found = ratios(shape, ROUNDS)
        middle = f"{statistics.median(found):.1f} ({min(found):.1f}–{max(found):.1f})"
        print(f"| {shape} | {middle} |")


if __name__ == "__main__":
    main()
