"""Euclidean norms without overflow: a norm that the dtype can hold is finite."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from .._typing import Array


def largest(xp: ModuleType, a: Array) -> Array:
    """Return the largest magnitude in each a[n]; 1 if all are zero or one is not finite."""
    axes = tuple(range(1, a.ndim))
    if a.size == 0:
        return xp.zeros(len(a), a.real.dtype) + a.real.dtype.type(1)
    value = a.real
    most = xp.maximum(value.max(axis=axes), -value.min(axis=axes))
    finite = (most > 0) & (most < np.inf)
    return xp.where(finite, most, most.dtype.type(1))


def norm_of(xp: ModuleType, a: Array) -> Array:
    """Return the norms [n] of matrices a[n, K, M] whose elements are scaled to magnitude 1."""
    if a.dtype.kind == "c":
        value, tangent = a.real, a.imag
        norm = (value * value).sum(axis=(1, 2)) ** 0.5
        slope = (value * tangent).sum(axis=(1, 2)) / xp.maximum(norm, np.finfo(norm.dtype).tiny)
        return norm + 1j * slope
    if xp is np:
        # einsum needs no array of the squares.
        return np.einsum("nkm,nkm->nk", a, a).sum(axis=1) ** 0.5
    return (a * a).sum(axis=(1, 2)) ** 0.5


def norm_of_rows(xp: ModuleType, a: Array) -> Array:
    """Return the norms [n] of a[n, M]."""
    scale = largest(xp, a)
    return scale * norm_of(xp, (a / scale[:, None])[:, None])


def together(xp: ModuleType, norms: Sequence[Array]) -> Array:
    """Return the norms [n] of vectors, from the norms of their parts."""
    if len(norms) == 1:
        return norms[0]
    rows = xp.concatenate([n[:, None] for n in norms], axis=1)
    return norm_of_rows(xp, rows)
