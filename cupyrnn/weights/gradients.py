"""Where the gradients of weights go: summed over the batch, by example, as norms, or nowhere."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from .._arrays import cast, check_choice, compute_dtype
from ..arithmetic.norms import norm_of_rows, together
from ..cells.contract import Gradients, each

if TYPE_CHECKING:
    from .._arrays import Array
    from ..cells.contract import Form

WeightGradients: TypeAlias = Literal["sum", "examples", "norms", "none"]
_WAYS = ("sum", "examples", "norms", "none")


def check_weight_gradients(op: str, weight_gradients: str) -> str:
    """Return the argument of this name after its check."""
    return check_choice(op, "weight_gradients", weight_gradients, _WAYS)


class OfWeights:
    """
    The gradients of the weights of one cell, while they are made.

    Parameters
    ----------
    xp, form, dtype
        The array module, what makes the cell of the weights, and the dtype of the call.
    weights
        The weights, of which only the shapes are looked at.
    by, B
        The argument `weight_gradients` and the number of examples.
    """

    def __init__(
        self, xp: ModuleType, form: Form, dtype: np.dtype[Any], weights: Any, by: str, B: int
    ) -> None:
        self._xp, self._form, self._weights, self._by = xp, form, weights, by
        self._dtype, compute = dtype, compute_dtype(dtype)
        if by == "none":
            self.written = Gradients(None, (), (), by=by)
            return
        axes = () if by == "sum" else (B,)

        def memory(a: Array) -> Array:
            # Vectors are added to. Of a matrix whose norms are made nothing is kept.
            if a.ndim == 1:
                return xp.zeros((*axes, *a.shape), compute)
            K = 0 if by == "norms" else a.shape[0]
            return xp.empty((*axes, K, a.shape[1]), compute)

        named = zip(weights._fields, weights, strict=True)
        self._memory = weights._make(
            [a if a is None or name in form.apart else memory(a) for name, a in named]
        )
        self.written = form.gradients(xp, self._memory)._replace(by=by)
        if by == "norms":
            self._norms = [[xp.zeros(B, compute)] for _ in weights]
            # To which of the weights each of a cell's matrices belongs, of which it is a view.
            marks = [
                None if a is None else np.broadcast_to(np.int8(n), a.shape)
                for n, a in enumerate(weights)
            ]
            parts = form.gradients(np, weights._make(marks)).weights
            lists = [None if p is None or not p.size else self._norms[p.flat[0]] for p in parts]
            self.written = self.written._replace(weights=lists)

    def zeros(self, n: int, B: int) -> Any:
        """Return the gradient of a vector of n weights that are not used."""
        shape = {"sum": (n,), "examples": (B, n), "norms": (B,), "none": None}[self._by]
        dtype = compute_dtype(self._dtype) if self._by == "norms" else self._dtype
        return None if shape is None else self._xp.zeros(shape, dtype)

    def finished(self) -> Any:
        """Return what has been written: in the dtype of the call but for norms."""
        xp, kind = self._xp, type(self._weights)
        if self._by == "none":
            return kind._make([None] * len(self._weights))
        found = self._form.finished(self._memory, self.written)
        if self._by != "norms":
            return each(found, lambda a: cast(a, self._dtype))
        with np.errstate(all="ignore"):
            return kind._make(
                [
                    None
                    if a is None
                    else norm_of_rows(xp, a)
                    if weight.ndim == 1
                    else together(xp, norms)
                    for a, norms, weight in zip(found, self._norms, self._weights, strict=True)
                ]
            )
