"""The description of a call for cuDNN."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..arithmetic.gates import HardSigmoid

Lengths: TypeAlias = NDArray[np.int32] | None

# cudnnRNNAlgo_t by the names of the engines. Each algorithm has a reserve of its own.
ALGORITHMS = {
    "cudnn": 0, "cudnn_persist_static": 1, "cudnn_persist_dynamic": 2, "cudnn_small_h": 3,
}  # fmt: skip

Pair: TypeAlias = tuple[int, int]
Triple: TypeAlias = tuple[int, int, int]


class CudnnCall(NamedTuple):
    """A net and the sizes of a call."""

    rnn_mode: str
    skip: bool
    L: int
    H: int
    I: int
    D: int
    num_proj: int  # 0 for none
    T: int
    B: int
    gate: HardSigmoid | None = None  # None is the sigmoid
    dropout: float = 0.0
    seed: int = 0
    seed2: int = 0
    is_training: bool = True
    engine: str = "cudnn"  # of ALGORITHMS

    @property
    def P(self) -> int:
        """The size of the output of one direction."""
        return self.num_proj or self.H

    @property
    def drops(self) -> bool:
        """Whether values are dropped between layers."""
        return self.is_training and self.dropout > 0 and self.L > 1


def all_lengths(net: CudnnCall, lengths: Lengths) -> list[int]:
    """Return the length of every sequence."""
    return [net.T] * net.B if lengths is None else lengths.tolist()
