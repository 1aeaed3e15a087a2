"""A linear function with a transpose, as a primitive of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .host import Leaves, Shapes, Tree, avals_like, varying

Tangents: TypeAlias = "Sequence[jax.Array | ad.Zero]"


class _Linear(NamedTuple):
    """A linear function with residuals, its transpose, and its derivative by the residuals."""

    apply: Callable[[Leaves, Leaves], Leaves]
    transpose: Callable[[Leaves, Leaves], Leaves]
    again: Callable[[Leaves, Leaves, Leaves], Leaves]
    n: int  # the first n arguments are the residuals
    shapes: Shapes  # of the results


_linear_p = Primitive("cupyrnn_linear")
_linear_p.multiple_results = True


def linear(
    apply: Callable[[Tree, Tree], Tree],
    transpose: Callable[[Tree, Tree], Tree],
    residuals: Tree,
    arguments: Tree,
    shapes: Tree,
    again: Callable[[Tree, Tree, Tree], Tree],
) -> Tree:
    """
    Return `apply(residuals, arguments)`, which is linear in the arguments and has these shapes.

    `again(residuals, arguments, tangents)` is its derivative by the first of the residuals.
    """
    res, res_tree = jax.tree.flatten(residuals)
    args, tree = jax.tree.flatten(arguments)
    results, out_tree = jax.tree.flatten(shapes)

    def operands(res: Leaves, *others: Leaves, of: Sequence[jax.tree_util.PyTreeDef]) -> list[Tree]:
        return [jax.tree.unflatten(kind, a) for kind, a in zip(of, (res, *others), strict=True)]

    def flat_apply(res: Leaves, args: Leaves) -> Leaves:
        return jax.tree.leaves(apply(*operands(res, args, of=(res_tree, tree))))

    def flat_transpose(res: Leaves, cts: Leaves) -> Leaves:
        return jax.tree.leaves(transpose(*operands(res, cts, of=(res_tree, out_tree))))

    def flat_again(res: Leaves, args: Leaves, others: Leaves) -> Leaves:
        residuals, arguments, along = operands(res, args, others, of=(res_tree, tree, res_tree))
        # The other residuals follow from the first.
        return jax.tree.leaves(again(residuals, arguments, jax.tree.map(jnp.asarray, along[0])))

    call = _Linear(flat_apply, flat_transpose, flat_again, len(res), tuple(results))
    return jax.tree.unflatten(out_tree, _bind([*res, *args], call))


def _bind(args: Leaves, call: _Linear) -> list[jax.Array]:
    return _linear_p.bind(*varying(args, args), call=call)


def _linear_run(*args: jax.Array, call: _Linear) -> Leaves:
    return call.apply(args[: call.n], args[call.n :])


def _is_zero(tangent: jax.Array | ad.Zero) -> bool:
    return isinstance(tangent, ad.Zero) or tangent.dtype == jax.dtypes.float0


def _linear_jvp(primals: Leaves, tangents: Tangents, *, call: _Linear) -> tuple[Leaves, Leaves]:
    res, args = primals[: call.n], primals[call.n :]
    along: list[Any] = [ad.instantiate_zeros(t) for t in tangents[call.n :]]
    found, moved = (_bind([*res, *a], call) for a in (args, along))
    if not all(map(_is_zero, tangents[: call.n])):
        others: list[Any] = [
            jnp.zeros_like(p) if _is_zero(t) else t for p, t in zip(res, tangents, strict=False)
        ]
        again = call.again(res, args, others)
        moved = [a + b for a, b in zip(moved, again, strict=True)]
    return found, moved


def _linear_transpose(cts: Tangents, *args: jax.Array, call: _Linear) -> list[jax.Array | None]:
    dense = [
        jnp.zeros(a.shape, a.dtype) if isinstance(c, ad.Zero) else c
        for c, a in zip(cts, call.shapes, strict=True)
    ]
    return [*[None] * call.n, *call.transpose(args[: call.n], dense)]


def _linear_batch(
    args: Leaves, dims: Sequence[int | None], *, call: _Linear
) -> tuple[Leaves, list[int]]:
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    res, own = list(dims[: call.n]), list(dims[call.n :])

    def batched(function: Callable[..., Leaves], *axes: Sequence[int | None] | int) -> Tree:
        of_batch = jax.vmap(function, in_axes=axes, axis_size=size)
        return lambda *args: of_batch(*map(list, args))

    def transpose(residuals: Leaves, cts: Leaves) -> Leaves:
        each = batched(call.transpose, res, 0)(residuals, cts)
        return [
            a.sum(0) if d is None else jnp.moveaxis(a, 0, d) for a, d in zip(each, own, strict=True)
        ]

    apply, again = batched(call.apply, res, own), batched(call.again, res, own, res)
    wide = tuple(jax.ShapeDtypeStruct((size, *a.shape), a.dtype) for a in call.shapes)
    found = _bind(list(args), _Linear(apply, transpose, again, call.n, wide))
    return found, [0] * len(found)


_linear_p.def_impl(_linear_run)
_linear_p.def_abstract_eval(lambda *args, call: avals_like(args, call.shapes))
mlir.register_lowering(_linear_p, mlir.lower_fun(_linear_run, multiple_results=True))
# Not an item assignment: the mock of JAX that builds the documentation has none.
ad.primitive_jvps.__setitem__(_linear_p, _linear_jvp)
ad.primitive_transposes.__setitem__(_linear_p, _linear_transpose)
batching.primitive_batchers.__setitem__(_linear_p, _linear_batch)
