"""
A primitive of JAX that calls functions of NumPy arrays on the host.

It does what `jax.pure_callback` does. If the only device is a CPU, it passes arrays directly:
`pure_callback` converts them to JAX arrays first, which takes longer than a small op.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .._typing import Array

Tree: TypeAlias = Any  # arrays, or shapes of arrays, in nested dicts, tuples and lists
Leaves: TypeAlias = Sequence[jax.Array]
Values: TypeAlias = Sequence[Array]  # on the host
Shapes: TypeAlias = "tuple[jax.ShapeDtypeStruct, ...]"


def _axes(arrays: Tree) -> frozenset[str]:
    """Return the axes of a `shard_map` along which any of the arrays varies."""
    varying: frozenset[str] = frozenset()
    for a in jax.tree.leaves(arrays):
        aval = a if isinstance(a, jax.core.ShapedArray) else jax.typeof(a)
        kind = getattr(aval, "manual_axis_type", None)  # since JAX 0.10
        varying |= getattr(aval, "vma", varying) if kind is None else kind.varying
    return varying


def varying(arrays: Tree, along: Tree) -> Tree:
    """
    Cast the arrays so that they vary along the axes of `along`.

    Like JAX's own ops, the ops of this module cast arguments that are the same on all devices. The
    transpose of the cast adds the gradients of all devices.
    """
    axes = _axes(along)

    def cast(a: jax.Array) -> jax.Array:
        missing = tuple(sorted(axes - _axes(a), key=str))
        if not missing:
            return a
        lax: Any = jax.lax
        return (
            lax.pcast(a, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(a, missing)
        )

    return jax.tree.map(cast, arrays)


def avals_like(args: Sequence[jax.core.ShapedArray], shapes: Shapes) -> list[jax.core.ShapedArray]:
    """Return the abstract values of results, which vary along the axes of all arguments."""
    if not _axes(args):
        return [jax.core.ShapedArray(a.shape, a.dtype) for a in shapes]
    like = args[0]  # all arguments have the same axes

    def of_shape(a: jax.ShapeDtypeStruct) -> jax.core.ShapedArray:
        spec = jax.sharding.PartitionSpec(*[None] * len(a.shape))
        sharding = jax.sharding.NamedSharding(like.sharding.mesh, spec)
        return like.update(shape=a.shape, dtype=a.dtype, weak_type=False, sharding=sharding)

    return [of_shape(a) for a in shapes]


class _HostCall(NamedTuple):
    """The parts of a call that JAX does not trace."""

    function: Callable[..., Tree]
    static: Hashable  # its first argument
    tree: jax.tree_util.PyTreeDef  # the structure of the others
    shapes: Shapes  # of the results, flat


def on_host(function: Callable[..., Tree], static: Hashable, shapes: Tree, *args: Tree) -> Tree:
    """
    Return `function(static, *args)`, computed on the host; the results have these shapes.

    JAX compiles the call once for all functions and first arguments that compare equal.
    """
    results, out_tree = jax.tree.flatten(shapes)
    flat, tree = jax.tree.flatten(args)
    call = _HostCall(function, static, tree, tuple(results))
    return jax.tree.unflatten(out_tree, _compiled(call, *varying(flat, flat)))


_host_p = Primitive("cupyrnn_host")
_host_p.multiple_results = True


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _compiled(call: _HostCall, *flat: jax.Array) -> Leaves:
    return _host_p.bind(*flat, call=call)


def _run(*flat: jax.Array, call: _HostCall) -> Values:
    args = jax.tree.unflatten(call.tree, map(np.asarray, flat))
    return tuple(jax.tree.leaves(call.function(call.static, *args)))


def _lower(ctx: mlir.LoweringRuleContext, *args: Any, call: _HostCall) -> Sequence[Any]:
    run, context = functools.partial(_run, call=call), ctx.module_context
    if (
        getattr(context.axis_context, "num_devices", 0) == 1
        and tuple(context.platforms) == ("cpu",)
        and hasattr(mlir, "emit_python_callback")
    ):
        emit: Any = mlir.emit_python_callback
        outputs, *_ = emit(
            ctx, run, None, list(args), ctx.avals_in, ctx.avals_out, has_side_effect=False
        )
        return outputs

    def pure(*args: jax.Array) -> Leaves:
        outputs = jax.pure_callback(run, list(call.shapes), *args)
        # With several devices the results are on the first one, in a sharding that JAX's other ops
        # refuse. The barrier spreads them.
        return jax.lax.optimization_barrier(outputs)

    return mlir.lower_fun(pure, multiple_results=True)(ctx, *args)


def _batch(
    args: Leaves, dims: Sequence[int | None], *, call: _HostCall
) -> tuple[Leaves, list[int]]:
    """Call the function once for each entry of the batch."""
    batched = {n: jnp.moveaxis(args[n], d, 0) for n, d in enumerate(dims) if d is not None}

    def one(own: dict[int, jax.Array]) -> Leaves:
        return _host_p.bind(*(own.get(n, a) for n, a in enumerate(args)), call=call)

    outputs = jax.lax.map(one, batched)
    return outputs, [0] * len(outputs)


_host_p.def_impl(_run)
_host_p.def_abstract_eval(lambda *args, call: avals_like(args, call.shapes))
mlir.register_lowering(_host_p, _lower)
# Not an item assignment: the mock of JAX that builds the documentation has none.
batching.primitive_batchers.__setitem__(_host_p, _batch)
