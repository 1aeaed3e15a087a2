"""Whose reserve_space a call of CudnnRNN's gradient is given, and what it must be long."""

from __future__ import annotations

import sys
import zlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _packed_cells
from ._arrays import array_kind, on_device, shown
from .arithmetic.dual import real_dtype
from .driver import stack as _stack
from .driver.packing import count_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._arrays import Array
    from .weights.params import Net

# What host_reserved begins with: whose reserve_space it is. The fingerprint of its call follows.
OWN, CUDNN = 0, 1
_FINGERPRINT = 4  # bytes


def fingerprinted(
    owner: int,
    net: Net,
    dtype: np.dtype[Any],
    lengths: NDArray[np.int32] | None,
    resets: NDArray[np.bool_] | None,
) -> NDArray[np.int8]:
    """Return what says whose reserve_space it is, and of a call with what sizes and attributes."""
    # Without the seeds, as the masks themselves are in reserve_space.
    sizes, rate = net[: net._fields.index("dropout")], net.dropout if net.drops else 0.0
    full = lengths is None or (lengths == net.T).all()
    none = resets is None or not resets.any()
    parts = (sizes, rate, real_dtype(dtype).str, None if full else lengths.tolist())  # type: ignore[union-attr]
    text = repr((*parts, None if none else resets.tobytes()))  # type: ignore[union-attr]
    fingerprint = zlib.crc32(text.encode()).to_bytes(_FINGERPRINT, "little")
    return np.frombuffer(bytes([owner]) + fingerprint, np.int8).copy()


def reserved_engine(
    op: str, xp: ModuleType, engine: str, host_reserved: object, expected: NDArray[np.int8]
) -> str:
    """Return the engine whose reserve_space it is; `expected` is this call's, whoever owns it."""
    if (
        array_kind(host_reserved) != "numpy"
        or not isinstance(host_reserved, np.ndarray)
        or host_reserved.dtype != np.int8
    ):
        raise TypeError(
            f"{op}: host_reserved is {shown(host_reserved)}, expected a numpy.ndarray, int8"
        )
    if host_reserved.shape != expected.shape:
        raise ValueError(
            f"{op}: host_reserved has shape {host_reserved.shape}, expected {expected.shape}, as a"
            " forward call with is_training=True returns it"
        )
    owner = int(host_reserved[0])
    if owner not in ((OWN,) if xp is np else (OWN, CUDNN)):
        raise ValueError(
            f"{op}: host_reserved begins with {owner}, which no engine for {xp.__name__} arrays has"
        )
    if (host_reserved[1:] != expected[1:]).any():
        raise ValueError(
            f"{op}: host_reserved is {shown(host_reserved)}, expected {expected[1:].tolist()} after"
            " the first: reserve_space is of a call with other sizes, attributes, lengths or resets"
        )
    if xp is np:
        return engine
    of = "cudnn" if owner == CUDNN else "cupy"
    if engine not in ("auto", of):
        raise ValueError(f"{op}: engine is {engine!r}, but reserve_space is of {of!r}")
    return of


def expected_size(net: Net, engine: str, input: Array, lengths: NDArray[np.int32] | None) -> int:
    """Return the number of elements of an engine's reserve_space."""
    if engine != "cudnn":
        kind = _packed_cells.SAVED[net.rnn_mode]
        return _stack.reserve_size(net.sizes, kind, count_rows(net.T, net.B, lengths))
    from .cudnn import engine as _cudnn

    with on_device(sys.modules["cupy"], input):
        return _cudnn.reserve_size(net, input.dtype.name, lengths)
