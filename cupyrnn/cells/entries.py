"""The weights of a net in a call: the cells of its layers and directions, and the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array
from ..arithmetic.norms import norm_of_rows, together
from ..checks.arrays import cast, compute_dtype, contiguous, operand_dtype
from .block_forms import prepared
from .contract import Cell, Form
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


class NetWeights:
    """
    The weights of a net, in lists an entry for each layer and direction.

    Parameters
    ----------
    form, attributes
        The form, which makes the cell of an entry, and its attributes.
    entries
        The weights, named tuples.
    like
        For a gradient, weights whose shapes say which gradients are wanted.

    Attributes
    ----------
    arrays
        All arrays of the weights.
    """

    def __init__(
        self, form: Form, attributes: Any, entries: Sequence[Any], like: Sequence[Any] | None = None
    ) -> None:
        self.form, self.attributes = form, attributes
        self._entries, self._like = entries, entries if like is None else like
        self.arrays = [a for entry in entries for a in entry if a is not None]

    def cells(self, xp: ModuleType, dtype: np.dtype[Any], attributes: Any) -> list[Cell]:
        """Return the cells for a call of this dtype."""
        return [self.form.cell(xp, prepared(xp, e, dtype), attributes) for e in self._entries]

    def gradients(self, xp: ModuleType, dtype: np.dtype[Any], mode: str, B: int) -> OfNet:
        """Return memory for their gradients: see `OfWeights`."""
        return OfNet([OfWeights(xp, self.form, dtype, entry, mode, B) for entry in self._like])


class PackedWeights(NetWeights):
    """The weights of a net of packed parameters, which are one array."""

    form: PackedForm

    def __init__(self, form: PackedForm, params: Array) -> None:
        self.form, self.attributes, self.arrays = form, None, [params]

    def cells(self, xp: ModuleType, dtype: np.dtype[Any], attributes: Any) -> list[Cell]:
        operands = cast(contiguous(xp, self.arrays[0]), operand_dtype(xp, dtype))
        return [self.form.cell(xp, w) for w in weights_of(operands, self.form.net)]

    def gradients(self, xp: ModuleType, dtype: np.dtype[Any], mode: str, B: int) -> OfNet:
        return OfPacked(xp, self.form, dtype, self.arrays[0], mode, B)
