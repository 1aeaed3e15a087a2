"""
vmap rules: merge vmap's axis into B if that is equivalent, else loop.

If no weight is batched, one call computes all examples: forward, in forward mode, and backward of a
block op over sequences with B = 1, with gradients of the weights by example. If weights differ, and
for all other gradients, the op is called once for each example.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

Op: TypeAlias = Any  # an `ops.Op`: that module imports this one
Dims: TypeAlias = "Sequence[int | None]"
Batched: TypeAlias = "tuple[tuple[torch.Tensor, ...], tuple[int, ...]]"


def rule_of(op: Op, op_kind: str) -> Callable[..., Batched]:
    """Return the vmap rule of one of the ops of a function."""

    def rule(info: Any, in_dims: Dims, attributes: Any, *tensors: Any) -> Batched:
        axes, (_, *dims) = _axes(op, op_kind), in_dims

        def call(tensors: Sequence[Any]) -> Sequence[Any]:
            return op.call(op_kind, tensors, attributes)  # type: ignore[no-any-return]

        if axes and all(axes[n] is not None for n, d in enumerate(dims) if d is not None):
            values, B = _as_one_batch(info.batch_size, dims, tensors, axes)
            if op_kind != "backward":
                return _split_batch(op, op_kind, call(values), (info.batch_size, B))
            if B == 1 and info.batch_size:
                grads = op.by_example(values, attributes)
                if grads is not None:
                    return _split_examples(op, grads, info.batch_size, tensors)
        return _one_by_one(call, info.batch_size, dims, tensors)

    return rule


def _axes(op: Op, op_kind: str) -> list[int | None]:
    """Return the axis B of each tensor of a call; nothing if examples cannot share a batch."""
    if op.axes is None or op_kind not in ("forward", "jvp", "backward"):
        return []
    if op_kind == "backward" and not op.schema.by_example:
        return []
    names = [*itertools.chain(*op.groups[op_kind]), *op.extras]
    return [op.axes.get(name) for name in names]


def _as_one_batch(
    N: int, in_dims: Dims, tensors: Sequence[Any], axes: Dims
) -> tuple[list[Any], int]:
    """Return the tensors of a call with N*B instead of B, and B."""
    values, B = list(tensors), 0
    for n, (t, axis, d) in enumerate(zip(tensors, axes, in_dims, strict=True)):
        if t is None or axis is None:
            continue
        if d is None:
            sizes = [*t.shape[:axis], N, *t.shape[axis:]]
            whole = t.unsqueeze(axis).expand(sizes)
        else:
            whole = t.movedim(d, axis)
        B = whole.shape[axis + 1]
        values[n] = whole.flatten(axis, axis + 1)
    return values, B


def _split_batch(op: Op, op_kind: str, found: Sequence[Any], sizes: tuple[int, int]) -> Batched:
    """Return the results of a call with N*B instead of B, and their axes N."""
    dims = [op.axes[name] for name in (op.outputs if op_kind == "jvp" else op.results)]
    results = [t.unflatten(axis, sizes) for t, axis in zip(found, dims, strict=True)]
    return tuple(results), tuple(dims)


def _split_examples(op: Op, grads: Sequence[Any], N: int, tensors: Sequence[Any]) -> Batched:
    """Return gradients by example, and their axes N; with B = 1 vmap's axis becomes the axis B."""
    results, dims = [], []
    for name, t, a in zip(op.inputs, grads, tensors, strict=False):
        axis = op.axes.get(name)
        if a is None:
            t = t.new_empty(N, 0)
        elif axis is not None:
            t = t.unflatten(axis, (N, 1))
        results.append(t)
        dims.append(axis or 0)
    return tuple(results), tuple(dims)


def _one_by_one(
    call: Callable[[Sequence[Any]], Sequence[Any]], N: int, in_dims: Dims, args: Sequence[Any]
) -> Batched:
    """Call an op for each example."""

    def example(n: int) -> Sequence[Any]:
        values = []
        for a, d in zip(args, in_dims, strict=True):
            if d is None:
                values.append(a)
            else:  # without examples, call the op with zeros for the shapes of its results
                values.append(a.select(d, n) if N else a.new_zeros(a.movedim(d, 0).shape[1:]))
        first = next(a for a in values if isinstance(a, torch.Tensor))
        return [first.new_empty(0) if t is None else t for t in call(values)]

    examples = [example(n) for n in range(max(N, 1))]
    results = tuple(torch.stack(parts)[:N] for parts in zip(*examples, strict=True))
    return results, (0,) * len(results)


def under_vectorize(tensors: Sequence[Any]) -> bool:
    """Return whether the older vmap of ``vectorize=True`` and ``is_grads_batched`` is active."""
    is_batched = torch._C._functorch.is_legacy_batchedtensor
    return any(t is not None and is_batched(t) for t in tensors)


def vectorized(
    call: Callable[[Sequence[Any]], Sequence[Any]], args: Sequence[Any]
) -> list[torch.Tensor]:
    """Call an op for each example of that vmap, which does not use vmap rules."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    is_batched: Any = torch._C._functorch.is_legacy_batchedtensor
    add: Any = torch._add_batch_dim
    remove: Any = torch._remove_batch_dim
    values, dims, N = list(args), [None] * len(args), 0
    for n, a in enumerate(args):
        if isinstance(a, torch.Tensor) and is_batched(a):
            values[n] = remove(a, level, 1, 0)
            dims[n], N = 0, len(values[n])  # type: ignore[call-overload]
    results, _ = _one_by_one(call, N, dims, values)
    return [add(t, 0, level) for t in results]
