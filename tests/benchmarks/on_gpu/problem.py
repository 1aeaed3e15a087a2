"""The shapes, dtypes and numbers of all contestants."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from checks import TOLERANCES

# (T, B, I, H)
SHAPES = {
    "A": (100, 1, 256, 256),
    "B": (100, 16, 512, 512),
    "C": (256, 64, 1024, 1024),
    "D": (512, 256, 512, 512),
    "dry": (5, 3, 7, 9),  # to see that everything runs
}
TIMED = ("A", "B", "C", "D")
# What is checked besides A and B: no power of two, more rows than columns, more steps than the
# package takes in one block.
AWKWARD = [(1, 1, 1, 1), (7, 3, 33, 5), (20, 33, 1, 3), (40, 3, 33, 65), (80, 256, 3, 5)]
PEER_SHAPE = (12, 16, 128, 128)
# A mode is a dtype and, for float32, whether products may be computed in TF32.
MODES = ("float16", "bfloat16", "float32", "tf32")
# TF32 has the mantissa of float16.
TOLERANCE_OF = {mode: mode for mode in (*MODES, "float64")} | {"tf32": "float16"}
# Peers round more often than cupyrnn does; they only have to compute the same function.
PEER_FACTOR = 10
PASSES = ("forward", "backward", "forward+backward")
GRADIENTS = ("x", "cs_prev", "h_prev", "w", "b")
PEEPHOLES = ("wci", "wcf", "wco")
# The contestants; cuDNN is PyTorch's.
CUPYRNN, CUDNN, TF_STYLE, GEMMS = "cupyrnn", "cuDNN", "TF-style", "GEMMs"
# The ops, and the variant of the first; those of the second are nets.
OPS = BLOCK_LSTM, CUDNN_RNN = ("block_lstm", "cudnn_rnn")
# What a run does, in this order.
SECTIONS = TESTS, RECURRENCE, *_ = ("tests", "recurrence", *OPS)
PEEPHOLE = "peepholes"
LAUNCHES_A_STEP = 2  # of cupyrnn: the kernel of the step and a matrix product
TF_SAMPLE = 40  # steps: their launches fit into the queue of a stream, which holds about 1000
TORCH_DEVICE = "cuda"


def numpy_dtype(mode: str) -> np.dtype[Any]:
    """Return the dtype of a mode's arrays."""
    if mode == "bfloat16":
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    return np.dtype("float32" if mode == "tf32" else mode)


def input_shapes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all inputs, gradients of the outputs included."""
    T, B, I, H = shape
    sizes = {
        "x": (T, B, I),
        "cs_prev": (B, H),
        "h_prev": (B, H),
        "w": (I + H, 4 * H),
        "b": (4 * H,),
    }
    return sizes | dict.fromkeys(PEEPHOLES, (H,)) | {"h_grad": (T, B, H)}


@functools.cache
def noise() -> Any:
    """Return normal numbers. Drawing all that is needed would take longer than the rest."""
    return np.random.default_rng(0).standard_normal(2**20, np.float32)


def noise_of(rng: np.random.Generator, sizes: tuple[int, ...], scale: float) -> Any:
    """Return another part of the numbers each time, repeated where they are too few."""
    size, start = math.prod(sizes), int(rng.integers(noise().size // 2))
    return np.resize(noise()[start : start + size] * np.float32(scale), sizes)


def host_inputs(shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return one set of inputs in float32, scaled so that the gates neither saturate nor idle."""
    _, _, I, H = shape
    rng = np.random.default_rng(seed)
    inputs = {}
    for name, sizes in input_shapes(shape).items():
        scale = (I + H) ** -0.5 if name == "w" else 0.2 if name in PEEPHOLES else 0.7
        inputs[name] = noise_of(rng, sizes, scale)
    return inputs


def set_count(shape: tuple[int, ...], l2_bytes: int) -> int:
    """Return how many sets of inputs it takes to fill the L2 cache twice, 2 to 24."""
    T, B, _, H = shape
    saved = 7 * T * B * H
    bytes_per_set = 2 * (saved + sum(math.prod(s) for s in input_shapes(shape).values()))
    return max(2, min(24, -(-2 * l2_bytes // bytes_per_set)))


def on_device(cupy: Any, inputs: dict[str, Any], mode: str) -> dict[str, Any]:
    """Return the inputs in the dtype of the mode, on the device."""
    dtype = numpy_dtype(mode)
    return {name: cupy.asarray(a).astype(dtype) for name, a in inputs.items()}


@contextlib.contextmanager
def float32_mode(tf32: bool, torch: Any = None) -> Iterator[None]:
    """Allow TF32 or not: CuPy's variable, which cupyrnn reads in every call, and PyTorch's."""
    before = os.environ.get("CUPY_TF32")
    os.environ["CUPY_TF32"] = "1" if tf32 else "0"
    if torch is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions have a second way to say it
            torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUPY_TF32"]
        else:
            os.environ["CUPY_TF32"] = before


def assert_peer(actual: Any, expected: Any, mode: str, what: str) -> None:
    a, e = (np.asarray(v).astype(np.float64) for v in (actual, expected))
    assert a.shape == e.shape, f"{what}: shape {a.shape}, expected {e.shape}"
    error, scale = np.max(np.abs(a - e), initial=0), np.max(np.abs(e), initial=1)
    tolerance = PEER_FACTOR * TOLERANCES[TOLERANCE_OF[mode]]
    # Not "error > ...", which a NaN would pass.
    assert error <= tolerance * scale, f"{what}: off by {error:.3g} of {scale:.3g}"
