"""What both versions of cuDNN are asked for: descriptors of one call, and its calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..params import Net

    Lengths: TypeAlias = NDArray[np.int32] | None

Enter: TypeAlias = "Callable[[AbstractContextManager[int]], int]"
Pair: TypeAlias = tuple[int, int]
Triple: TypeAlias = tuple[int, int, int]
Purpose: TypeAlias = Literal["forward", "backward", "sizes"]


class Descriptors(Protocol):
    """cuDNN's descriptors of one call, and its calls on addresses."""

    params_bytes: int
    work_bytes: int
    reserve_bytes: int  # 0 in inference

    def forward(self, x: int, y: int, h: Pair, c: Pair, w: int, work: int, reserve: int) -> None:
        """`h` and `c` are the first states and the last ones."""

    def backward_data(
        self, y: int, dy: int, dx: int, h: Triple, c: Triple, w: int, work: int, reserve: int
    ) -> None:
        """`h` and `c` are the first states, the gradients of the last ones and of the first."""

    def backward_weights(self, x: int, hx: int, y: int, dw: int, work: int, reserve: int) -> None:
        """Adds to `dw`. Needs what `backward_data` has left in the reserve."""


def address(a: Any) -> int:
    """Return the address of an array, 0 (NULL) where there is none."""
    return 0 if a is None else a.data.ptr


def tf32() -> bool:
    """Return whether the user asks CuPy for TF32, with its own environment variable."""
    return os.environ.get("CUPY_TF32", "0") == "1"


def dropout_seed(net: Net) -> int:
    """Return TensorFlow's seed of cuDNN's generator."""
    return (net.seed << 32 | net.seed2) % 2**64


def all_lengths(net: Net, lengths: Lengths) -> list[int]:
    """Return the length of every sequence."""
    return [net.T] * net.B if lengths is None else lengths.tolist()
