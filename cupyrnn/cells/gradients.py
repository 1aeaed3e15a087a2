"""Where the gradients of weights go: summed over the batch, by example, as norms, or nowhere."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np

from .._typing import Array
from ..arithmetic.norms import norm_of_rows, together
from ..checks.arrays import cast, compute_dtype
from ..checks.attributes import check_choice
from .block_forms import GRUForm, LSTMForm
from .contract import Form, Gradients, each
from .packed_forms import PackedForm

WeightGradients: TypeAlias = Literal["sum", "examples", "norms", "none"]
_MODES = ("sum", "examples", "norms", "none")
# Methods whose views products and loops can write to. Other views are checked in every call.
_TRUSTED = (LSTMForm.gradients, GRUForm.gradients, PackedForm.gradients)


def check_weight_gradients(op: str, weight_gradients: str) -> str:
    """Check the argument weight_gradients."""
    return check_choice(op, "weight_gradients", weight_gradients, _MODES)


def _is_whole(a: Array) -> bool:
    """Return whether an array is in C order, without gaps."""
    return a.flags.c_contiguous


def _has_lines(a: Array) -> bool:
    """Return whether the rows or the columns of matrices are contiguous."""
    rows, columns = a.strides[-2:]
    M, N = a.shape[-2:]
    size = a.itemsize
    return (columns == size and rows >= N * size) or (rows == size and columns >= M * size)


class OfWeights:
    """
    Memory for the gradients of one cell's weights, and their conversion to results.

    Parameters
    ----------
    xp, form, dtype
        The array module, what makes the cell of the weights, and the dtype of the call.
    weights
        The weights; only their shapes are read.
    mode, B
        The argument `weight_gradients` and the number of examples.
    shared
        Memory like the weights, a view of memory of several cells; with "norms", a list that
        collects the norms of several cells.
    """

    def __init__(
        self,
        xp: ModuleType,
        form: Form,
        dtype: np.dtype[Any],
        weights: Any,
        mode: str,
        B: int,
        shared: Any = None,
    ) -> None:
        self._xp, self._form, self._weights, self._mode = xp, form, weights, mode
        self._dtype, compute = dtype, compute_dtype(dtype)
        self._casts = compute is not dtype or type(form).gradients not in _TRUSTED
        if mode == "none":
            self.written = Gradients(None, (), (), weight_gradients=mode)
            return
        axes = () if mode == "sum" else (B,)

        def memory(a: Array) -> Array:
            # Vectors are accumulated. With "norms" the gradients of matrices are not stored.
            if a.ndim == 1:
                return xp.zeros((*axes, *a.shape), compute)
            K = 0 if mode == "norms" else a.shape[0]
            return xp.empty((*axes, K, a.shape[1]), compute)

        self._memory = shared
        if shared is None or mode == "norms":
            named = zip(weights._fields, weights, strict=True)
            self._memory = weights._make(
                [a if a is None or name in form.apart else memory(a) for name, a in named]
            )
        self._views = views = form.gradients(xp, self._memory)
        self._moved: list[tuple[Array, Array]] = []
        if type(form).gradients not in _TRUSTED:
            self._check()
            views = self._in_order(views)
        self.written = views if mode == "sum" else views._replace(weight_gradients=mode)
        if mode == "norms":
            self._norms = [shared or [xp.zeros(B, compute)] for _ in weights]
            # Find which weight each of the cell's matrices is a view of.
            marks = [
                None if a is None else np.broadcast_to(np.int8(n), a.shape)
                for n, a in enumerate(weights)
            ]
            parts = form.gradients(np, weights._make(marks)).weights
            if any(p is not None and any(p.strides) for p in parts):  # a view of marks has none
                raise self._refused("a matrix in memory of its own", " by norms")
            lists = [None if p is None or not p.size else self._norms[p.flat[0]] for p in parts]
            self.written = self.written._replace(weights=lists)

    def _refused(self, what: str, where: str = "") -> ValueError:
        """Return the error of a form whose gradients cannot be written to."""
        return ValueError(
            f"{type(self._form).__name__}.gradients: returned {what}, expected views of all of"
            f" grads that can be written to{where}"
        )

    def _check(self) -> None:
        """Check that the views of a form are writable and reach all gradients."""
        weights, sums, vectors = self._views[1:4]
        views = [a for a in (*weights, *(sums or ()), vectors) if a is not None]
        if self._xp is np and not all(a.flags.writeable for a in views):
            raise self._refused("a read-only array")
        if type(self._form).finished is not Form.finished:
            return  # `finished` may copy from the form's own memory
        share = self._xp.may_share_memory
        memory = {n: a for n, a in self._memory._asdict().items() if a is not None and a.size}
        for a in weights:
            if a is not None and a.size and not any(share(a, b) for b in memory.values()):
                raise self._refused("a matrix in memory of its own")
        for name, a in memory.items():
            if not any(share(a, b) for b in views):
                raise self._refused(f"no view of {name}")

    def _in_order(self, views: Gradients) -> Gradients:
        """
        Replace views that products and loops cannot write to by new memory.

        They need matrices with contiguous rows or columns, and contiguous sums.
        """
        by_id: dict[int, Array] = {}

        def in_order(a: Array | None, ready: Callable[[Array], bool]) -> Array | None:
            if a is None or ready(a):
                return a
            if id(a) not in by_id:
                by_id[id(a)] = self._xp.zeros(a.shape, a.dtype)
                self._moved.append((a, by_id[id(a)]))
            return by_id[id(a)]

        return views._replace(
            weights=[in_order(a, _has_lines) for a in views.weights],
            sums=None if views.sums is None else [in_order(a, _is_whole) for a in views.sums],
            vectors=in_order(views.vectors, _is_whole),
        )

    def values(self) -> Any:
        """Return the gradients in the dtype of the computation, without norms."""
        for to, a in self._moved:
            to[...] = a
        return self._form.finished(self._memory, self._views)

    def finished(self) -> Any:
        """Return the gradients in the dtype of the call; norms keep the computation's dtype."""
        xp, kind = self._xp, type(self._weights)
        if self._mode == "none":
            return kind._make([None] * len(self._weights))
        values = self.values()
        if self._mode != "norms":
            return each(values, lambda a: cast(a, self._dtype)) if self._casts else values
        with np.errstate(all="ignore"):  # by example a vector has two axes
            return kind._make(
                [
                    a if a is None else norm_of_rows(xp, a) if a.ndim == 2 else together(xp, norms)
                    for a, norms in zip(values, self._norms, strict=True)
                ]
            )
