"""A linear function with a transpose, as a primitive of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .host import Leaves, Tree, avals_like, varying


class _Maps(NamedTuple):
    """A linear function with residuals, its transpose, and its derivative by the residuals."""

    apply: Callable[..., Leaves]
    transpose: Callable[..., Leaves]
    again: Callable[..., Leaves]


_linear_p = Primitive("cupyrnn_linear")
_linear_p.multiple_results = True


def linear(
    apply: Callable[[Tree, Tree], Tree],
    transpose: Callable[[Tree, Tree], Tree],
    residuals: Tree,
    arguments: Tree,
    shapes: Tree,
    again: Callable[..., Tree] | None = None,
) -> Tree:
    """
    Return `apply(residuals, arguments)`, which is linear in the arguments and has these shapes.

    `again(residuals, arguments, tangents)` is its derivative by the first of the residuals; by
    default `apply` is linear in them, too.
    """
    res, res_tree = jax.tree.flatten(residuals)
    args, tree = jax.tree.flatten(arguments)
    avals, out_tree = jax.tree.flatten(shapes)

    def flat(function: Callable[[Tree, Tree], Tree], own: Any) -> Callable[..., Leaves]:
        def call(res: Leaves, args: Leaves) -> Leaves:
            operands = jax.tree.unflatten(res_tree, res), jax.tree.unflatten(own, args)
            return jax.tree.leaves(function(*operands))

        return call

    def of_residuals(res: Leaves, args: Leaves, others: Leaves) -> Leaves:
        operands = jax.tree.unflatten(res_tree, res), jax.tree.unflatten(tree, args)
        of_inputs = jax.tree.unflatten(res_tree, others)[0]  # the other residuals follow from these
        if again is None:
            return apply(*operands)
        return jax.tree.leaves(again(*operands, jax.tree.map(jnp.asarray, of_inputs)))

    maps = _Maps(flat(apply, tree), flat(transpose, out_tree), of_residuals)
    return jax.tree.unflatten(out_tree, _bind([*res, *args], maps, len(res), tuple(avals)))


def _bind(args: Leaves, maps: _Maps, n: int, avals: Any) -> list[jax.Array]:
    return _linear_p.bind(*varying(args, args), maps=maps, n=n, avals=avals)


def _linear_run(*args: jax.Array, maps: _Maps, n: int, avals: Any) -> Leaves:
    return maps.apply(args[:n], args[n:])


def _linear_jvp(
    primals: Leaves, tangents: Sequence[Any], *, maps: _Maps, n: int, avals: Any
) -> tuple[Leaves, Leaves]:
    along = [ad.instantiate_zeros(t) for t in tangents[n:]]
    found, moved = (_bind([*primals[:n], *a], maps, n, avals) for a in (primals[n:], along))
    if not all(isinstance(t, ad.Zero) or t.dtype == jax.dtypes.float0 for t in tangents[:n]):
        others = [
            jnp.zeros_like(p) if isinstance(t, ad.Zero) or t.dtype == jax.dtypes.float0 else t
            for p, t in zip(primals, tangents[:n], strict=False)
        ]
        again = maps.again(primals[:n], primals[n:], others)
        moved = [a + b for a, b in zip(moved, again, strict=True)]
    return found, moved


def _linear_transpose(
    cts: Sequence[Any], *args: Any, maps: _Maps, n: int, avals: Any
) -> list[jax.Array | None]:
    cts = [
        jnp.zeros(a.shape, a.dtype) if isinstance(c, ad.Zero) else c
        for c, a in zip(cts, avals, strict=True)
    ]
    return [None] * n + [*maps.transpose(args[:n], cts)]


def _linear_batch(
    args: Leaves, dims: Sequence[int | None], *, maps: _Maps, n: int, avals: Any
) -> tuple[Leaves, list[int]]:
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    res, own = list(dims[:n]), list(dims[n:])

    def transpose(residuals: Leaves, cts: Leaves) -> Leaves:
        each = jax.vmap(maps.transpose, in_axes=(res, 0))(list(residuals), list(cts))
        return [
            a.sum(0) if d is None else jnp.moveaxis(a, 0, d) for a, d in zip(each, own, strict=True)
        ]

    def apply(residuals: Leaves, args: Leaves) -> Leaves:
        return jax.vmap(maps.apply, in_axes=(res, own), axis_size=size)(list(residuals), list(args))

    def again(residuals: Leaves, args: Leaves, others: Leaves) -> Leaves:
        return jax.vmap(maps.again, in_axes=(res, own, res), axis_size=size)(
            list(residuals), list(args), list(others)
        )

    wide = tuple(jax.ShapeDtypeStruct((size, *a.shape), a.dtype) for a in avals)
    found = _bind(list(args), _Maps(apply, transpose, again), n, wide)
    return found, [0] * len(found)


_linear_p.def_impl(_linear_run)
_linear_p.def_abstract_eval(lambda *args, maps, n, avals: avals_like(args, avals))
mlir.register_lowering(_linear_p, mlir.lower_fun(_linear_run, multiple_results=True))
# Not an item assignment: the mock of JAX that builds the documentation has none.
ad.primitive_jvps.__setitem__(_linear_p, _linear_jvp)
ad.primitive_transposes.__setitem__(_linear_p, _linear_transpose)
batching.primitive_batchers.__setitem__(_linear_p, _linear_batch)
