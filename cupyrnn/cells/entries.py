"""The gradients of a net's weights in a call: in lists an entry each, or in one packed array."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array
from ..arithmetic.norms import norm_of_rows, together
from ..checks.arrays import cast, compute_dtype
from .contract import Form
from .gradients import OfWeights
from .packed_forms import PackedForm, weights_of


class OfNet:
    """The gradients of a net's weights during a call: in lists, an `OfWeights` for each."""

    def __init__(self, parts: Sequence[OfWeights]) -> None:
        self._parts = parts
        self.written = [part.written for part in parts]

    def finished(self) -> Any:
        """Return the written gradients."""
        return [part.finished() for part in self._parts]


class OfPacked(OfNet):
    """The gradients of packed parameters, which are one array; so are their norms."""

    def __init__(
        self,
        xp: ModuleType,
        form: PackedForm,
        dtype: np.dtype[Any],
        params: Array,
        mode: str,
        B: int,
    ) -> None:
        self._xp, self._dtype, self._mode = xp, dtype, mode
        compute = compute_dtype(dtype)
        if mode in ("norms", "none"):
            self._norms = [xp.zeros(B, compute)]
            entries = weights_of(params, form.net)
            shared: Sequence[Any] = [self._norms] * len(entries)
        else:
            axes = () if mode == "sum" else (B,)
            self._memory = xp.empty((*axes, *params.shape), compute)
            entries = shared = weights_of(self._memory, form.net)
        super().__init__(
            [
                OfWeights(xp, form, dtype, entry, mode, B, of_entry)
                for entry, of_entry in zip(entries, shared, strict=True)
            ]
        )

    def finished(self) -> Any:
        """Return the written gradients, packed; or the norms, or None."""
        if self._mode == "none":
            return None
        found = [part.values() for part in self._parts]
        if self._mode != "norms":
            return cast(self._memory, self._dtype)
        with np.errstate(all="ignore"):
            biases = [norm_of_rows(self._xp, b) for w in found for b in (w.b_x, w.b_h)]
            return together(self._xp, [*self._norms, *biases])


def of_entries(
    xp: ModuleType, form: Form, dtype: np.dtype[Any], likes: Sequence[Any], mode: str, B: int
) -> OfNet:
    """Return memory for the gradients of weights like these, an entry each: see `OfWeights`."""
    return OfNet([OfWeights(xp, form, dtype, like, mode, B) for like in likes])
