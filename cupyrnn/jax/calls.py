"""
An op and its derivatives for JAX, computed on the host.

An op is a ``custom_jvp`` whose tangent is a linear call; the transpose of that call is the op's
gradient. With F the op of inputs p, and G(p, y) the gradient of sum(y*F(p))::

    linear    p; dp -> the tangent of F           transpose  p; y -> G(p, y)
    linear    p, y; dp, dy -> the tangent of G    transpose  p, y; w -> tangents of G and F along w
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._ops import Schema
from .._typing import Array
from ..cells.block_forms import LSTM_FORM, default_clip
from ..cells.contract import Form
from ..checks.arrays import FLOATS
from ..checks.attributes import check_integer, check_list, lacks, misfit, shown, type_shown
from ..checks.calls import check_lengths, check_resets
from ..derivatives.duals import along
from ..weights.packed import NetArguments, PackedParams, resolve_net
from .host import Leaves, Tree, Values, on_host, varying
from .linear import linear

_F = TypeVar("_F", bound=Callable[..., Any])
_Named: TypeAlias = dict[str, Tree]  # arrays, or tuples of arrays, by name

_SEEDS = ("seed", "seed2")  # may be traced
_THIRD, _AGAIN = "there are no third derivatives", "there is no forward mode of forward mode"


class _OpCall(NamedTuple):
    """The parts of a call that JAX does not trace."""

    schema: Schema
    inputs: jax.tree_util.PyTreeDef  # the structure of the differentiable inputs by name
    extras: tuple[str, ...]  # the arrays without a gradient
    attributes: tuple[tuple[str, Hashable], ...]
    kinds: tuple[type, ...]  # of the attributes, to tell 1 from True
    packed: PackedParams | None  # without its parameters, which are an input

    def arguments(self, inputs: Values, extras: Values) -> _Named:
        """Return the arguments of the op, by name."""
        named = zip(self.extras, extras, strict=True)
        rest = {n: int(a) if n in _SEEDS else np.asarray(a) for n, a in named}
        found = dict.fromkeys(self.schema.optional) | jax.tree.unflatten(self.inputs, inputs)
        if self.packed is not None:
            found["params"] = self.packed._replace(params=found["params"])
        return found | rest | dict(self.attributes)

    def run(self, inputs: Values, extras: Values, **others: bool) -> tuple[_Named, _Named]:
        """Call the op; return its differentiable outputs, and the other results."""
        found = self.schema.forward(**self.arguments(inputs, extras), **others)._asdict()
        found.pop("host_reserved", None)
        named = [n for n in self.schema.outputs if isinstance(found[n], tuple) or found[n].ndim]
        outputs = {n: found.pop(n) for n in named}
        return outputs, found

    def gradient(
        self, inputs: Values, extras: Values, outputs: _Named, saved: _Named, cotangents: _Named
    ) -> Values:
        """Return the gradients of the inputs, flat."""
        arguments = self.arguments(inputs, extras)
        grads = self.schema.grads(arguments, outputs | saved, cotangents)
        present = [n for n in self.schema.inputs if arguments[n] is not None]
        return jax.tree.leaves({n: grads[n] for n in present})


def _like(arrays: Tree) -> Tree:
    """Return the shapes and dtypes of arrays."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), arrays)


@functools.lru_cache(maxsize=256)
def _results_of(call: _OpCall, shapes: tuple[jax.ShapeDtypeStruct, ...]) -> Tree:
    """Return the shapes of the outputs and of the other results; it calls the op with zeros."""
    seeds = tuple(n for n in call.extras if n in _SEEDS)
    plain = call._replace(extras=seeds)  # without lengths and resets
    return _like(
        plain.run([np.zeros(a.shape, a.dtype) for a in shapes], [np.array(0)] * len(seeds))
    )


def _shapes(call: _OpCall, inputs: Leaves) -> Tree:
    return _results_of(call, tuple(_like(list(inputs))))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _forward(call: _OpCall, inputs: Leaves, extras: Leaves) -> tuple[_Named, _Named]:
    """Return the outputs of an op, and the other results that its gradient needs."""
    return on_host(_run_forward, call, _shapes(call, inputs), inputs, extras)


def _run_forward(call: _OpCall, inputs: Values, extras: Values) -> tuple[_Named, _Named]:
    return call.run(inputs, extras)


@_forward.defjvp
def _forward_along(call: _OpCall, primals: Tree, tangents: Tree) -> Tree:
    inputs, extras = primals
    outputs, saved = _forward(call, inputs, extras)

    def tangent(residuals: Tree, d_inputs: Leaves) -> Tree:
        _check_wide(call, residuals[0])
        found = on_host(_run_tangent, call, _like(outputs), *residuals[:2], d_inputs)
        return found, zeros(residuals)

    def transpose(residuals: Tree, cotangents: Tree) -> Leaves:
        return _gradient(call, *residuals, cotangents[0])

    def zeros(residuals: Tree) -> Tree:
        # Only the gradient reads the saved results; its tangents follow from the inputs'.
        return varying(jax.tree.map(jnp.zeros_like, residuals[3]), residuals)

    def again(residuals: Tree, d_inputs: Leaves, others: Tree) -> Tree:
        inputs, extras, *_ = residuals

        def backward(operands: Tree, cotangents: Tree) -> Leaves:
            nothing = jax.tree.map(jnp.zeros_like, cotangents)
            inputs, extras, d_inputs = operands
            return _second_order(call, (inputs, extras, cotangents, d_inputs, nothing))[0]

        refuse = functools.partial(_refuse, call.schema.name, _AGAIN)
        operands = (inputs, extras, d_inputs)
        found = linear(refuse, backward, operands, others, _like(outputs), refuse)
        return found, zeros(residuals)

    residuals = (inputs, extras, outputs, saved)
    found = linear(tangent, transpose, residuals, tangents[0], _like((outputs, saved)), again)
    return (outputs, saved), found


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _outputs(call: _OpCall, inputs: Leaves, extras: Leaves) -> _Named:
    """Return the outputs of an op only, for calls that are not differentiated."""
    return on_host(_run_outputs, call, _shapes(call, inputs)[0], inputs, extras)


def _run_outputs(call: _OpCall, inputs: Values, extras: Values) -> _Named:
    if dict(call.attributes).get("dropout") == 0:  # with dropout, only training draws masks
        return call.run(inputs, extras, is_training=False)[0]
    return call.run(inputs, extras)[0]


@_outputs.defjvp
def _outputs_along(call: _OpCall, primals: Tree, tangents: Tree) -> Tree:
    (outputs, _), (moved, _) = _forward_along(call, primals, tangents)
    return outputs, moved


def _check_wide(call: _OpCall, inputs: Leaves) -> None:
    """Check that the inputs are no half formats, which have no complex dtype for tangents."""
    for a in inputs:
        if a.dtype.itemsize < 4:
            raise TypeError(
                f"{call.schema.name}: an input has dtype {a.dtype}, expected float32 or float64:"
                " half formats have no second derivatives and no forward mode"
            )


def _refuse(name: str, why: str, *_: Tree) -> NoReturn:
    raise NotImplementedError(f"{name}: {why}")


def _run_tangent(call: _OpCall, inputs: Values, extras: Values, d_inputs: Values) -> _Named:
    """Return the tangents of the outputs."""
    tree = jax.tree.structure(call.run(inputs, extras)[0])

    def outputs(*inputs: Array) -> list[Array]:
        return jax.tree.leaves(call.run(inputs, extras)[0])

    return jax.tree.unflatten(tree, along(outputs, inputs, d_inputs)[1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradient(call: _OpCall, inputs: Leaves, *args: Tree) -> Leaves:
    """Return the gradients of the inputs."""
    return on_host(_run_gradient, call, _like(tuple(inputs)), inputs, *args)


def _run_gradient(call: _OpCall, inputs: Values, extras: Values, *results: _Named) -> Values:
    return tuple(call.gradient(inputs, extras, *results))


@_gradient.defjvp
def _gradient_along(call: _OpCall, primals: Tree, tangents: Tree) -> Tree:
    inputs, extras, _, _, cotangents = primals

    def tangent(residuals: Tree, along: Tree) -> Leaves:
        return _second_order(call, (*residuals, *along))[0]

    def transpose(residuals: Tree, direction: Leaves) -> Tree:
        nothing = jax.tree.map(jnp.zeros_like, residuals[2])
        return _second_order(call, (*residuals, direction, nothing))

    residuals, directions = (inputs, extras, cotangents), (tangents[0], tangents[4])
    third = functools.partial(_refuse, call.schema.name, _THIRD)
    found = linear(tangent, transpose, residuals, directions, _like(tuple(inputs)), third)
    return _gradient(call, *primals), found


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _second_order(call: _OpCall, args: Tree) -> tuple[Leaves, _Named]:
    """Return the tangents of the gradient and of the outputs."""
    _check_wide(call, args[0])
    shapes = _like(tuple(args[0])), _like(args[2])
    return on_host(_run_second_order, call, shapes, *args)


def _run_second_order(
    call: _OpCall, inputs: Values, extras: Values, *others: Tree
) -> tuple[Values, _Named]:
    cotangents, d_inputs, d_cotangents = others
    n, tree = len(inputs), jax.tree.structure(cotangents)

    def both(*values: Array) -> list[Array]:
        outputs, saved = call.run(values[:n], extras)
        grads = call.gradient(
            values[:n], extras, outputs, saved, jax.tree.unflatten(tree, values[n:])
        )
        return [*grads, *jax.tree.leaves(outputs)]

    values = [*inputs, *jax.tree.leaves(cotangents)]
    _, found = along(both, values, [*d_inputs, *jax.tree.leaves(d_cotangents)])
    return tuple(found[:n]), jax.tree.unflatten(tree, found[n:])


@_second_order.defjvp
def _third_order(call: _OpCall, primals: Tree, tangents: Tree) -> NoReturn:
    _refuse(call.schema.name, _THIRD)


def _checked(name: str, n: str, value: object, T: int, B: int, time_major: bool) -> jax.Array:
    """Return a seed, lengths or resets as an array; values of traced arrays are not checked."""
    is_traced = isinstance(value, jax.core.Tracer)
    known = np.zeros(value.shape, value.dtype) if isinstance(value, jax.core.Tracer) else value
    if n == "sequence_lengths":
        checked: Array = check_lengths(name, known, T, B)
    elif n == "resets":
        T, B, symbols = (T, B, "(T, B)") if time_major else (B, T, "(B, T)")
        checked = check_resets(name, known, T, B, symbols=symbols)
    else:
        number = check_integer(name, n, known)
        kind = known.dtype if isinstance(known, (np.generic, np.ndarray, jax.Array)) else np.int64
        dtype = jax.dtypes.canonicalize_dtype(kind)
        checked = np.zeros((), dtype)
        try:
            checked[()] = number
        except OverflowError:
            raise ValueError(
                f"{name}: {n} is {shown(known)}, expected a number that {dtype}, JAX's dtype here,"
                " can hold"
            ) from None
    return jnp.asarray(value if is_traced else checked)


def _as_jax(name: str, n: str, value: object) -> Tree:
    """Convert an input to arrays of JAX, also inside lists and tuples of stacked_rnn."""
    nested = name == "stacked_rnn" and n != "input"
    leaves = jax.tree.leaves(value) if nested else [value]
    if not all(hasattr(a, "dtype") for a in leaves):
        expected = "arrays of JAX or NumPy" if nested else "a jax.Array or numpy.ndarray"
        raise TypeError(f"{name}: {n} is {type_shown(value)}, expected {expected}")
    try:
        arrays = jax.tree.map(jnp.asarray, value)
    except (TypeError, ValueError):
        found = f"is {type_shown(value)}"
        if type(value) is np.ndarray:
            found = f"has dtype {value.dtype}"
        raise TypeError(f"{name}: {n} {found}, expected floating-point arrays") from None
    for a in jax.tree.leaves(arrays):
        if a.dtype.kind == "c":  # JAX has tangents of its own
            floats = ", ".join(FLOATS)
            raise TypeError(f"{name}: {n} has dtype {a.dtype}, expected one of {floats}")
    return arrays


def _outputs_of(schema: Schema, attributes: dict[str, Any]) -> _Named:
    """Check the arguments of an op and call it; return its outputs by name."""
    name = schema.name
    arrays = {n: attributes.pop(n) for n in schema.inputs}
    extras = {n: attributes.pop(n) for n in (*_SEEDS, *schema.extras) if n in attributes}
    packed = None
    if "params" in arrays:
        passed = NetArguments(*(attributes[n] for n in NetArguments._fields))
        params, net, known = resolve_net(name, arrays["params"], passed)
        packed = None if known is None else arrays["params"]._replace(params=None)
        attributes |= net._asdict()
        arrays["params"] = params
    if "weights" in arrays:
        check_list(name, "weights", arrays["weights"], "weight tuples")
    first = next(iter(arrays.get("weights", ())), None)
    form: Form | None = getattr(first, "form", None)
    is_lstm = first is None or form is LSTM_FORM
    if is_lstm and attributes.get("cell_clip", 0) is None:
        attributes["cell_clip"] = default_clip(name, attributes["gate_order"])
    for n, value in attributes.items():
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{name}: {n} is {shown(value)}, expected a Python value: {n} is static"
            ) from None
    wanted = {n: a for n, a in arrays.items() if a is not None or n not in schema.optional}
    inputs_by_name = {n: _as_jax(name, n, a) for n, a in wanted.items()}
    x, major = next(iter(inputs_by_name.values())), attributes.get("time_major", True)
    rest = {}
    if getattr(x, "ndim", 0) == 3:  # else the op refuses it
        T, B = x.shape[:2] if major else x.shape[1::-1]
        rest = {n: _checked(name, n, a, T, B, major) for n, a in extras.items() if a is not None}
    leaves, tree = jax.tree.flatten(inputs_by_name)
    kinds = tuple(map(type, attributes.values()))
    call = _OpCall(schema, tree, tuple(rest), tuple(attributes.items()), kinds, packed)
    inputs, more = varying((tuple(leaves), tuple(rest.values())), (leaves, rest))
    return _outputs(call, inputs, more)


def op_of_jax(
    schema: Schema, results: Callable[..., tuple[Tree, ...]] | None = None
) -> Callable[[_F], _F]:
    """Decorate a function declared by its signature only: implement it by an op."""

    def decorate(declared: _F) -> _F:
        signature, lacking = inspect.signature(declared), lacks(declared)

        @functools.wraps(declared)
        def call(*args: object, **kwargs: object) -> object:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                raise misfit(declared, args, kwargs) from None
            if lacking is not None and lacking(args, kwargs):
                raise misfit(declared, args, kwargs)
            bound.apply_defaults()
            found = _outputs_of(schema, bound.arguments)
            return found["h"] if results is None else results(**found)

        return call  # type: ignore[return-value]

    return decorate
