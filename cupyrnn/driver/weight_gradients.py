"""
The gradients of weights: summed over the batch, for each example, or their norms.

B examples, T steps. A matrix w[K, M] multiplies a, and d is the gradient of the product. The
gradient of an example is the sum over its steps of outer(a, d). Its squared norm is also the sum
over all pairs of steps of (a·a')(d·d'). If T is small compared with K and M, this takes less time
and memory than the matrix. Matrices that share d share half of the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from .._typing import Array, NamedTuple
from ..arithmetic.norms import largest, norm_of, together
from ..arithmetic.scratch import Scratch
from ..cells.contract import Cell, Gradients, each
from ..checks.arrays import cast, compute_dtype, operand_dtype
from .pages import products_of

_T = TypeVar("_T")

# The number of steps that are paired at once with earlier ones.
_STEPS = 256
# Cost of a pair of steps relative to a full product: most symmetric products are half computed.
_PAIRS = 0.7


class Factors(NamedTuple):
    """The factors of the gradients of weights for some rows, [n, ·] each."""

    x: Array
    before: Any  # the states before each row
    saved: Any  # the cell's Saved; or [t, B, ·] each
    deltas: Sequence[Any]


class LayerFactors(NamedTuple):
    """The factors of the gradients of a layer's weights, [T, B, ·]; the padding is zero."""

    operands: Sequence[Array]  # what each of the inputs and of the recurrent matrices multiplied
    deltas: Sequence[Array]
    terms: Sequence[Array]  # of the cell's own vectors; of the computation's dtype


def in_rows(arrays: Any, n: int) -> Any:
    """Return arrays that may be [t, B, ·] as [n, ·]."""
    return each(arrays, lambda a: a if a.ndim == 2 else a.reshape(n, -1))


def take_rows(
    xp: ModuleType, cell: Cell, layer: Any, deltas: Sequence[Array], grads: Gradients
) -> None:
    """Write the gradients of the weights by example, from the deltas of all steps."""
    x, first, packing, saved = layer
    compute, after, terms = compute_dtype(x.dtype), cell.states(saved), []
    dtype, wants_terms = operand_dtype(xp, x.dtype), grads.vectors is not None
    before = [
        # Matrices multiply h only; other states are for the cell's own vectors.
        None if a is None or (n and not wants_terms) else packing.before(0, len(x), s, a, dtype)
        for n, (s, a) in enumerate(zip(first, after, strict=True))
    ]
    rows = Factors(x, after._make(before), saved, deltas)
    if wants_terms:
        states = in_rows(rows.saved, len(rows.x)), rows.before
        wide = [each(a, lambda s: cast(s, compute)) for a in states]
        terms = cell.terms(*wide, [cast(d, compute) for d in deltas])  # type: ignore[attr-defined]
    arrays = operands(cell, rows, dtype), deltas, terms
    write(xp, cell, LayerFactors(*([packing.padded(a) for a in some] for some in arrays)), grads)


def operands(cell: Cell, rows: Factors, dtype: np.dtype[Any]) -> list[Array]:
    """Return the operands of the inputs' and the recurrent matrices, of this dtype."""
    h_before, of_cell = cast(rows.before.h, dtype), getattr(cell, "operands", None)
    if of_cell is None:
        of_recurrent = [h_before] * len(cell.recurrent)
    else:
        of_recurrent = of_cell(in_rows(rows.saved, len(rows.x)), h_before)
    return [cast(rows.x, dtype)] * len(cell.inputs) + of_recurrent


def add_rows(
    xp: ModuleType,
    cell: Cell,
    rows: Factors,
    grads: Gradients,
    dtype: np.dtype[Any],
    scratch: Scratch | None = None,
) -> None:
    """
    Write the gradients of matrices and biases from some rows or, given memory, add them.

    `dtype` is the dtype of operands.
    """
    on, multiplied = products_of(xp), operands(cell, rows, dtype)
    weights = (*cell.inputs, *cell.recurrent)
    for weight, left, grad in zip(weights, multiplied, grads.weights, strict=True):
        if grad is None:
            continue
        right = rows.deltas[weight.delta][:, weight.columns]
        if grad.strides[0] < grad.strides[1]:  # a view of a transposed matrix
            left, right, grad = right, left, grad.T
        if scratch is None:
            on.matmul(left.T, right, grad)
        else:
            on.add_matmul(left.T, right, grad, scratch)
    for delta, sums in _wanted(rows.deltas, grads.sums):
        on.add_column_sums(delta, sums)


def _wanted(deltas: Sequence[_T], sums: Sequence[Array | None] | None) -> list[tuple[_T, Array]]:
    """Return pairs: deltas whose column sums are wanted, and the array for these sums."""
    if sums is None:
        return []
    return [(d, a) for d, a in zip(deltas, sums, strict=True) if a is not None]


def write(xp: ModuleType, cell: Cell, rows: LayerFactors, grads: Gradients) -> None:
    """Write the gradients of the weights of a layer: of each example, or their norms."""
    for delta, sums in _wanted(rows.deltas, grads.sums):
        sums += _sums_of_steps(xp, delta, sums.dtype)
    if grads.vectors is not None:
        sums = [_sums_of_steps(xp, term, term.dtype) for term in rows.terms]
        grads.vectors[...] = xp.concatenate(sums, axis=1).reshape(grads.vectors.shape)
    if grads.weight_gradients == "norms":
        with np.errstate(all="ignore"):
            _write_norms(xp, cell, rows, grads)
        return
    weights = (*cell.inputs, *cell.recurrent)
    for weight, a, grad in zip(weights, rows.operands, grads.weights, strict=True):
        if grad is not None:
            _products(xp, a, rows.deltas[weight.delta][:, :, weight.columns], grad)


def _sums_of_steps(xp: ModuleType, a: Array, dtype: np.dtype[Any]) -> Array:
    """Return the sums over the steps of a[T, B, M]."""
    T, B, M = a.shape
    sums: Array = xp.zeros(B * M, dtype)
    products_of(xp).add_column_sums(a.reshape(T, B * M), sums)
    return sums.reshape(B, M)


def _products(xp: ModuleType, a: Array, d: Array, out: Array) -> None:
    """Write out[b] = a[:, b].T @ d[:, b]."""
    if out.shape[1] > 0 and out.shape[2] > 0 and out.strides[1] < out.strides[2]:
        a, d, out = d, a, out.swapaxes(1, 2)  # a view of transposed matrices
    products_of(xp).matmul_each(a.transpose(1, 2, 0), d.transpose(1, 0, 2), out)


def _write_norms(xp: ModuleType, cell: Cell, rows: LayerFactors, grads: Gradients) -> None:
    """Append the norms of the matrices of each weight to its list."""
    alike: dict[Any, list[int]] = {}
    weights = (*cell.inputs, *cell.recurrent)
    for k, weight in enumerate(weights):
        if grads.weights[k] is not None:
            columns = weight.columns.indices(cell.widths[weight.delta])
            alike.setdefault((id(grads.weights[k]), weight.delta, *columns), []).append(k)
    for places in alike.values():
        weight = weights[places[0]]
        d = rows.deltas[weight.delta][:, :, weight.columns]
        grads.weights[places[0]].append(_norms(xp, [rows.operands[k] for k in places], d))


def _examples(xp: ModuleType, B: int, bytes_of_each: int) -> Iterator[slice]:
    """Yield the examples in parts of bounded memory."""
    n = max(1, products_of(xp).BYTES // max(bytes_of_each, 1))
    yield from (slice(b, min(b + n, B)) for b in range(0, B, n))


def _norms(xp: ModuleType, operands: Sequence[Array], d: Array) -> Array:
    """Return the norms [B] of the gradients of matrices that share the deltas d."""
    (T, B, M), K = d.shape, sum(a.shape[2] for a in operands)
    compute = compute_dtype(d.dtype)
    norms = xp.zeros(B, compute)
    if 0 in (T, K, M):
        return norms
    by_pairs = compute.kind != "c" and _PAIRS * T * (K + M) <= K * M
    rows = min(T, _STEPS)
    each = (2 * rows * T if by_pairs else max(a.shape[2] for a in operands) * M) + T * (K + M)
    for part in _examples(xp, B, each * compute.itemsize):
        scale_d, delta = _scaled(xp, d[:, part], compute)
        found = []
        if by_pairs:
            scaled = [_scaled(xp, a[:, part], compute) for a in operands]
            # Matrices of one scale can be added.
            scale = scaled[0][0]
            for s, _ in scaled[1:]:
                scale = xp.maximum(scale, s)
            parts = [a if len(scaled) == 1 else a * (s / scale)[:, None, None] for s, a in scaled]
            found.append(scale * _norm_by_pairs(xp, parts, delta))
        else:
            for a in operands:
                if a.shape[2]:
                    scale, a = _scaled(xp, a[:, part], compute)
                    product = xp.empty((len(a), a.shape[2], M), compute)
                    products_of(xp).matmul_each(a.swapaxes(1, 2), delta, product)
                    found.append(scale * norm_of(xp, product))
        norms[part] = scale_d * together(xp, found)
    return norms


def _scaled(xp: ModuleType, a: Array, compute: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the largest value of each example of a[T, n, K], and [n, T, K] divided by it."""
    a = xp.ascontiguousarray(a.swapaxes(0, 1)).astype(compute, copy=False)
    scale = largest(xp, a)
    return scale, a / scale[:, None, None]


def _norm_by_pairs(xp: ModuleType, operands: Sequence[Array], delta: Array) -> Array:
    """Return the norms [n] of gradients, of operands and deltas [n, T, ·]."""
    (n, T, _), on = delta.shape, products_of(xp)
    total = xp.zeros(n, delta.dtype)
    for start in range(0, T, _STEPS):
        end = min(start + _STEPS, T)
        # The pairs of a step with itself, and with earlier steps, which count twice.
        for first, last, count in ((start, end, 1), (0, start, 2)):
            if last == first:
                continue
            now, then = slice(start, end), slice(first, last)
            pairs, both = (xp.empty((n, end - start, last - first), delta.dtype) for _ in "ab")
            on.matmul_each(delta[:, now], delta[:, then].swapaxes(1, 2), pairs)
            for k, a in enumerate(operands):
                product = both if k == 0 else xp.empty(both.shape, both.dtype)
                on.matmul_each(a[:, now], a[:, then].swapaxes(1, 2), product)
                if k:
                    both += product
            both *= pairs
            total += count * both.sum(axis=(1, 2))
    return xp.maximum(total, 0) ** 0.5
