"""The description of a call for cuDNN."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..cells.packed import Net
from ..driver.reserve import Sizes

Lengths: TypeAlias = NDArray[np.int32] | None

# cudnnRNNAlgo_t by the names of the engines. Each algorithm has a reserve of its own.
ALGORITHMS = {
    "cudnn": 0, "cudnn_persist_static": 1, "cudnn_persist_dynamic": 2, "cudnn_small_h": 3,
}  # fmt: skip

Pair: TypeAlias = tuple[int, int]
Triple: TypeAlias = tuple[int, int, int]


class CudnnCall(NamedTuple):
    """A net and the sizes of a call."""

    net: Net
    sizes: Sizes
    engine: str = "cudnn"  # of ALGORITHMS

    @property
    def drops(self) -> bool:
        """Whether values are dropped between layers."""
        return self.sizes.drops(self.net.L)

    @property
    def in_training(self) -> CudnnCall:
        """The same call in training."""
        return self._replace(sizes=self.sizes._replace(is_training=True))


def all_lengths(sizes: Sizes, lengths: Lengths) -> list[int]:
    """Return the length of every sequence."""
    return [sizes.T] * sizes.B if lengths is None else lengths.tolist()
