"""The steps that a block op computes: checks of its lengths, resets and direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array, NamedTuple
from .attributes import check_bool, check_seq_len
from .calls import check_lengths, check_resets

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Extent(NamedTuple):
    """The steps of [T, B, ·] to compute, and their order."""

    lengths: NDArray[np.int32] | None = None  # also if the caller passes seq_len_max
    resets: NDArray[np.bool_] | None = None
    reverse: bool = False


def check_extent(
    op: str,
    x: Array,
    seq_len_max: object,
    sequence_lengths: object,
    reverse: object,
    resets: object,
) -> Extent:
    """Return the extent of a call with x[T, B, I]."""
    T, B, _ = x.shape
    if seq_len_max is sequence_lengths is resets is None and reverse is False:
        return Extent()
    if seq_len_max is not None and sequence_lengths is not None:
        raise ValueError(f"{op}: seq_len_max and sequence_lengths are passed, expected one of them")
    steps = check_seq_len(op, seq_len_max, T)
    marks, lengths = check_resets(op, resets, T, B), check_lengths(op, sequence_lengths, T, B)
    if steps < T:
        lengths = np.full(B, steps, np.int32)
    return Extent(lengths, marks, check_bool(op, "reverse", reverse))


class Steps(NamedTuple):
    """The attributes of a block op that say which steps it computes."""

    op: str
    seq_len_max: Any
    reverse: Any

    def extent(self, arrays: Mapping[str, Any]) -> Extent:
        """Check these attributes, the lengths and the resets of a call; return its extent."""
        x, lengths, resets = arrays["x"], arrays["sequence_lengths"], arrays["resets"]
        return check_extent(self.op, x, self.seq_len_max, lengths, self.reverse, resets)

    def check(self, x: Array, lengths: object, resets: object) -> Steps:
        """Check them like `extent`; return these attributes."""
        self.extent({"x": x, "sequence_lengths": lengths, "resets": resets})
        return self
