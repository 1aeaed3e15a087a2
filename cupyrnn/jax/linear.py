"""A linear function with a transpose, as a primitive of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .host import avals_like, varying


class _Maps(NamedTuple):
    """A linear function with residuals, its transpose, and its tangent by the residuals."""

    apply: Callable[..., Sequence[Any]]
    transpose: Callable[..., Sequence[Any]]
    again: Callable[..., Sequence[Any]]


_linear_p = Primitive("cupyrnn_linear")
_linear_p.multiple_results = True


def linear(
    apply: Any, transpose: Any, residuals: Any, arguments: Any, shapes: Any, again: Any = None
) -> Any:
    """Return `apply(residuals, arguments)`, linear in its arguments, of these shapes."""
    res, res_tree = jax.tree.flatten(residuals)
    args, tree = jax.tree.flatten(arguments)
    avals, out_tree = jax.tree.flatten(shapes)

    def flat(function: Any, own: Any) -> Any:
        def call(res: Any, args: Any) -> Any:
            operands = jax.tree.unflatten(res_tree, res), jax.tree.unflatten(own, args)
            return jax.tree.leaves(function(*operands))

        return call

    def of_residuals(res: Any, args: Any, others: Any) -> Any:
        operands = jax.tree.unflatten(res_tree, res), jax.tree.unflatten(tree, args)
        of_inputs = jax.tree.unflatten(res_tree, others)[0]  # what else there is follows from them
        if again is None:
            return apply(*operands)
        return jax.tree.leaves(again(*operands, jax.tree.map(jnp.asarray, of_inputs)))

    maps = _Maps(flat(apply, tree), flat(transpose, out_tree), of_residuals)
    return jax.tree.unflatten(out_tree, _bind([*res, *args], maps, len(res), tuple(avals)))


def _bind(args: Any, maps: _Maps, n: int, avals: Any) -> Any:
    return _linear_p.bind(*varying(args, args), maps=maps, n=n, avals=avals)


def _linear_run(*args: Any, maps: _Maps, n: int, avals: Any) -> Any:
    return maps.apply(args[:n], args[n:])


def _linear_jvp(primals: Any, tangents: Any, *, maps: _Maps, n: int, avals: Any) -> Any:
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


def _linear_transpose(cts: Any, *args: Any, maps: _Maps, n: int, avals: Any) -> Any:
    cts = [
        jnp.zeros(a.shape, a.dtype) if isinstance(c, ad.Zero) else c
        for c, a in zip(cts, avals, strict=True)
    ]
    return [None] * n + [*maps.transpose(args[:n], cts)]


def _linear_batch(args: Any, dims: Any, *, maps: _Maps, n: int, avals: Any) -> Any:
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    res, own = list(dims[:n]), list(dims[n:])

    def transpose(residuals: Any, cts: Any) -> Any:
        each = jax.vmap(maps.transpose, in_axes=(res, 0))(list(residuals), list(cts))
        return [
            a.sum(0) if d is None else jnp.moveaxis(a, 0, d) for a, d in zip(each, own, strict=True)
        ]

    def apply(residuals: Any, args: Any) -> Any:
        return jax.vmap(maps.apply, in_axes=(res, own), axis_size=size)(list(residuals), list(args))

    def again(residuals: Any, args: Any, others: Any) -> Any:
        return jax.vmap(maps.again, in_axes=(res, own, res), axis_size=size)(
            list(residuals), list(args), list(others)
        )

    wide = tuple(jax.ShapeDtypeStruct((size, *a.shape), a.dtype) for a in avals)
    found = _bind(list(args), _Maps(apply, transpose, again), n, wide)
    return found, [0] * len(found)


_linear_p.def_impl(_linear_run)
_linear_p.def_abstract_eval(lambda *args, maps, n, avals: avals_like(args, avals))
mlir.register_lowering(_linear_p, mlir.lower_fun(_linear_run, multiple_results=True))
# The mock of JAX that builds the documentation has no item assignment.
ad.primitive_jvps.__setitem__(_linear_p, _linear_jvp)
ad.primitive_transposes.__setitem__(_linear_p, _linear_transpose)
batching.primitive_batchers.__setitem__(_linear_p, _linear_batch)
