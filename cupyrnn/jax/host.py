"""
Functions of NumPy's arrays as a primitive of JAX.

It does what `jax.pure_callback` does. Where there is one device, a CPU, it hands over the arrays as
they are: `pure_callback` makes arrays of JAX of them first, which takes longer than a small op.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir


def _axes(arrays: Any) -> frozenset[Any]:
    """Return the axes of a `shard_map` along which any of the arrays varies."""
    found: frozenset[Any] = frozenset()
    for a in jax.tree.leaves(arrays):
        aval = a if isinstance(a, jax.core.ShapedArray) else jax.typeof(a)
        kind = getattr(aval, "manual_axis_type", None)  # so called since JAX 0.10
        found |= getattr(aval, "vma", found) if kind is None else kind.varying
    return found


def varying(arrays: Any, along: Any) -> Any:
    """
    Return the arrays as varying along the axes of others.

    JAX's own ops do it to arguments that are the same on all devices, and so does this module to
    those of its ops: the transpose of the cast adds the gradients of all devices.
    """
    axes = _axes(along)

    def cast(a: Any) -> Any:
        missing = tuple(sorted(axes - _axes(a), key=str))
        if not missing:
            return a
        if hasattr(jax.lax, "pcast"):
            return jax.lax.pcast(a, missing, to="varying")
        return jax.lax.pvary(a, missing)

    return jax.tree.map(cast, arrays)


def avals_like(args: Any, shapes: Any) -> Any:
    """Return the types of results of these shapes, which vary along the axes of all arguments."""
    if not _axes(args):
        return [jax.core.ShapedArray(a.shape, a.dtype) for a in shapes]
    like = args[0]  # whose axes are those of all

    def of_shape(a: Any) -> Any:
        spec = jax.sharding.PartitionSpec(*[None] * len(a.shape))
        sharding = jax.sharding.NamedSharding(like.sharding.mesh, spec)
        return like.update(shape=a.shape, dtype=a.dtype, weak_type=False, sharding=sharding)

    return [of_shape(a) for a in shapes]


def on_host(function: Any, shapes: Any, *args: Any) -> Any:
    """
    Return `function(*args)`, of these shapes.

    JAX compiles the call once for all functions that are equal.
    """
    results, out_tree = jax.tree.flatten(shapes)
    flat, tree = jax.tree.flatten(args)
    found = _compiled(function, tree, tuple(results), *varying(flat, flat))
    return jax.tree.unflatten(out_tree, found)


_host_p = Primitive("cupyrnn_host")
_host_p.multiple_results = True


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _compiled(function: Any, tree: Any, shapes: Any, *flat: Any) -> Any:
    return _host_p.bind(*flat, function=function, tree=tree, shapes=shapes)


def _run(*flat: Any, function: Any, tree: Any, shapes: Any) -> Any:
    args = jax.tree.unflatten(tree, map(np.asarray, flat))
    return tuple(jax.tree.leaves(function(*args)))


def _lower(ctx: Any, *args: Any, **of_call: Any) -> Any:
    run, context = functools.partial(_run, **of_call), ctx.module_context
    if (
        getattr(context.axis_context, "num_devices", 0) == 1
        and tuple(context.platforms) == ("cpu",)
        and hasattr(mlir, "emit_python_callback")
    ):
        found, *_ = mlir.emit_python_callback(
            ctx, run, None, list(args), ctx.avals_in, ctx.avals_out, has_side_effect=False
        )
        return found

    def call(*args: Any) -> Any:
        found = jax.pure_callback(run, list(of_call["shapes"]), *args)
        # Of several devices the results are on the first, with a sharding that JAX's other ops do
        # not take. This spreads them.
        return jax.lax.optimization_barrier(found)

    return mlir.lower_fun(call, multiple_results=True)(ctx, *args)


def _batch(args: Any, dims: Any, **of_call: Any) -> Any:
    """Call the function for each entry."""
    whole = {n: jnp.moveaxis(args[n], d, 0) for n, d in enumerate(dims) if d is not None}

    def one(own: Any) -> Any:
        return _host_p.bind(*(own.get(n, a) for n, a in enumerate(args)), **of_call)

    found = jax.lax.map(one, whole)
    return found, [0] * len(found)


_host_p.def_impl(_run)
_host_p.def_abstract_eval(lambda *args, function, tree, shapes: avals_like(args, shapes))
mlir.register_lowering(_host_p, _lower)
# The mock of JAX that builds the documentation has no item assignment.
batching.primitive_batchers.__setitem__(_host_p, _batch)
