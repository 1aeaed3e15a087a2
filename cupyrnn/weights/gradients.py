"""Where the gradients of weights go: summed over the batch, by example, as norms, or nowhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np

from .._typing import Array
from ..arithmetic.norms import norm_of_rows, together
from ..cells.contract import Form, Gradients, each
from ..checks.arrays import cast, compute_dtype
from ..checks.attributes import check_choice
from .block_forms import PEEPHOLES, GRUForm, LSTMForm
from .packed_forms import PackedForm

WeightGradients: TypeAlias = Literal["sum", "examples", "norms", "none"]
_MODES = ("sum", "examples", "norms", "none")
# What returns views that can be written as they lie. Any other's are looked at in every call.
_IN_ORDER = (LSTMForm.gradients, GRUForm.gradients, PackedForm.gradients)


def check_weight_gradients(op: str, weight_gradients: str) -> str:
    """Return the argument of this name after its check."""
    return check_choice(op, "weight_gradients", weight_gradients, _MODES)


def zeros_of(
    xp: ModuleType, weight_gradients: str, dtype: np.dtype[Any], H: int, B: int
) -> Sequence[Any]:
    """Return the gradients of peepholes [H] that are not used."""
    n = len(PEEPHOLES)
    if weight_gradients == "none":
        return [None] * n
    shape = {"sum": (n, H), "examples": (n, B, H), "norms": (n, B)}[weight_gradients]
    return tuple(xp.zeros(shape, compute_dtype(dtype) if weight_gradients == "norms" else dtype))


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
    The gradients of the weights of one cell, while they are made.

    Parameters
    ----------
    xp, form, dtype
        The array module, what makes the cell of the weights, and the dtype of the call.
    weights
        The weights, of which only the shapes are looked at.
    by, B
        The argument `weight_gradients` and the number of examples.
    shared
        What several cells have: memory like the weights or, with norms, a list for those of all
        matrices.
    """

    def __init__(
        self,
        xp: ModuleType,
        form: Form,
        dtype: np.dtype[Any],
        weights: Any,
        weight_gradients: str,
        B: int,
        shared: Any = None,
    ) -> None:
        self._xp, self._form, self._weights, self._weight_gradients = (
            xp,
            form,
            weights,
            weight_gradients,
        )
        self._dtype, compute = dtype, compute_dtype(dtype)
        self._casts = compute is not dtype or type(form).gradients not in _IN_ORDER
        if weight_gradients == "none":
            self.written = Gradients(None, (), (), weight_gradients=weight_gradients)
            return
        axes = () if weight_gradients == "sum" else (B,)

        def memory(a: Array) -> Array:
            # Vectors are added to. Of a matrix whose norms are made nothing is kept.
            if a.ndim == 1:
                return xp.zeros((*axes, *a.shape), compute)
            K = 0 if weight_gradients == "norms" else a.shape[0]
            return xp.empty((*axes, K, a.shape[1]), compute)

        self._memory = shared
        if shared is None or weight_gradients == "norms":
            named = zip(weights._fields, weights, strict=True)
            self._memory = weights._make(
                [a if a is None or name in form.apart else memory(a) for name, a in named]
            )
        self._made = made = form.gradients(xp, self._memory)
        self._moved: list[tuple[Array, Array]] = []
        if type(form).gradients not in _IN_ORDER:
            self._check()
            made = self._in_order(made)
        self.written = (
            made if weight_gradients == "sum" else made._replace(weight_gradients=weight_gradients)
        )
        if weight_gradients == "norms":
            self._norms = [shared or [xp.zeros(B, compute)] for _ in weights]
            # To which of the weights each of a cell's matrices belongs, of which it is a view.
            marks = [
                None if a is None else np.broadcast_to(np.int8(n), a.shape)
                for n, a in enumerate(weights)
            ]
            parts = form.gradients(np, weights._make(marks)).weights
            if any(p is not None and any(p.strides) for p in parts):  # which no view of them has
                raise self._refused("a matrix in memory of its own", " by norms")
            lists = [None if p is None or not p.size else self._norms[p.flat[0]] for p in parts]
            self.written = self.written._replace(weights=lists)

    def _refused(self, what: str, where: str = "") -> ValueError:
        """Return the error of gradients that could not be written."""
        return ValueError(
            f"{type(self._form).__name__}.gradients: returned {what}, expected views of all of"
            f" grads that can be written to{where}"
        )

    def _check(self) -> None:
        """Check that what a form has returned can be written to, and reaches all gradients."""
        weights, sums, vectors = self._made[1:4]
        made = [a for a in (*weights, *(sums or ()), vectors) if a is not None]
        if self._xp is np and not all(a.flags.writeable for a in made):
            raise self._refused("a read-only array")
        if type(self._form).finished is not Form.finished:
            return  # which may take it from memory of the form's own
        share = self._xp.may_share_memory
        memory = {n: a for n, a in self._memory._asdict().items() if a is not None and a.size}
        for a in weights:
            if a is not None and a.size and not any(share(a, b) for b in memory.values()):
                raise self._refused("a matrix in memory of its own")
        for name, a in memory.items():
            if not any(share(a, b) for b in made):
                raise self._refused(f"no view of {name}")

    def _in_order(self, made: Gradients) -> Gradients:
        """
        Return gradients as products and loops write them, in place of other views memory for them.

        That is, rows or columns of matrices are contiguous, and all that is summed is.
        """
        found: dict[int, Array] = {}

        def in_order(a: Array | None, ready: Callable[[Array], bool]) -> Array | None:
            if a is None or ready(a):
                return a
            if id(a) not in found:
                found[id(a)] = self._xp.zeros(a.shape, a.dtype)
                self._moved.append((a, found[id(a)]))
            return found[id(a)]

        return made._replace(
            weights=[in_order(a, _has_lines) for a in made.weights],
            sums=None if made.sums is None else [in_order(a, _is_whole) for a in made.sums],
            vectors=in_order(made.vectors, _is_whole),
        )

    def values(self) -> Any:
        """Return what has been written, in the dtype of the computation and without norms."""
        for to, a in self._moved:
            to[...] = a
        return self._form.finished(self._memory, self._made)

    def finished(self) -> Any:
        """Return what has been written: in the dtype of the call but for norms."""
        xp, kind = self._xp, type(self._weights)
        if self._weight_gradients == "none":
            return kind._make([None] * len(self._weights))
        found = self.values()
        if self._weight_gradients != "norms":
            return each(found, lambda a: cast(a, self._dtype)) if self._casts else found
        with np.errstate(all="ignore"):  # by example a vector has two axes
            return kind._make(
                [
                    a if a is None else norm_of_rows(xp, a) if a.ndim == 2 else together(xp, norms)
                    for a, norms in zip(found, self._norms, strict=True)
                ]
            )
