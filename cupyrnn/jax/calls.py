"""
An op and its derivatives for JAX, computed on the host.

An op is a ``custom_jvp`` whose tangent is a linear call; the transpose of that call is the op's
gradient. With F the op of inputs p, and G(p, y) the gradient of sum(y*F(p))::

    linear    p; dp -> the tangent of F           transpose  p; y -> G(p, y)
    linear    p, y; dp, dy -> the tangent of G    transpose  p, y; w -> those of G and F along w
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._ops import Record
from ..cells.contract import Form
from ..checks.attributes import check_integer, check_list, misfit, shown, type_shown
from ..checks.calls import check_lengths, check_resets
from ..derivatives.duals import along
from ..weights.block_forms import LSTM_FORM, default_clip, zero_states
from ..weights.packed import PackedParams
from .host import on_host, varying
from .linear import linear

_F = TypeVar("_F", bound=Callable[..., Any])

_SEEDS = ("seed", "seed2")  # arrays of JAX too, which may be traced
_THIRD, _AGAIN = "there are no third derivatives", "there is no forward mode of forward mode"


class _Call(NamedTuple):
    """What of a call JAX does not trace."""

    record: Record
    inputs: Any  # the tree of the inputs by name, which have a gradient
    extras: tuple[str, ...]  # the arrays that have none
    attributes: tuple[tuple[str, Any], ...]
    kinds: tuple[type, ...]  # of the attributes, to tell 1 from True

    def arguments(self, inputs: Sequence[Any], extras: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of the op, by name."""
        rest = dict(zip(self.extras, extras, strict=True))
        rest = {n: int(a) if n.startswith("seed") else np.asarray(a) for n, a in rest.items()}
        nothing = dict.fromkeys(self.record.optional)
        return nothing | jax.tree.unflatten(self.inputs, inputs) | rest | dict(self.attributes)

    def run(
        self, inputs: Sequence[Any], extras: Sequence[Any], **others: Any
    ) -> tuple[dict[str, Any], ...]:
        """Return what the op does: what has a gradient by name, and the rest."""
        found = self.record.forward(**self.arguments(inputs, extras), **others)._asdict()
        found.pop("host_reserved", None)
        named = [n for n in self.record.outputs if isinstance(found[n], tuple) or found[n].ndim]
        outputs = {n: found.pop(n) for n in named}
        return outputs, found

    def gradient(
        self, inputs: Any, extras: Any, outputs: Any, saved: Any, cotangents: Any
    ) -> list[Any]:
        """Return the gradients of the inputs, flat."""
        given = self.arguments(inputs, extras)
        grads = self.record.grads(given, outputs | saved, cotangents)
        return jax.tree.leaves({n: grads[n] for n in self.record.inputs if given[n] is not None})


def _like(arrays: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), arrays)


@functools.lru_cache(maxsize=256)
def _results_of(call: _Call, shapes: tuple[Any, ...]) -> Any:
    """Return the tree of the outputs and what is saved, and their shapes: by a call with zeros."""
    seeds = tuple(n for n in call.extras if n in _SEEDS)
    given = call._replace(extras=seeds)  # without lengths and resets
    return _like(given.run([np.zeros(a.shape, a.dtype) for a in shapes], [0] * len(seeds)))


def _shapes(call: _Call, inputs: Any) -> Any:
    return _results_of(call, tuple(_like(list(inputs))))


class _OfCall(NamedTuple):
    """A function of a call and of arrays, equal to others of its kind."""

    function: Callable[..., Any]
    call: _Call

    def __call__(self, *args: Any) -> Any:
        return self.function(self.call, *args)


def _host(function: Callable[..., Any], call: _Call, shapes: Any, *args: Any) -> Any:
    """Call a function of a call and of arrays on the host."""
    return on_host(_OfCall(function, call), shapes, *args)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _forward(call: _Call, inputs: Any, extras: Any) -> Any:
    """Return the outputs of an op, and what its gradient needs."""
    return _host(_run_forward, call, _shapes(call, inputs), inputs, extras)


def _run_forward(call: _Call, inputs: Any, extras: Any) -> Any:
    outputs, saved = call.run(inputs, extras)
    if "sequence_lengths" in call.extras and "reserve_space" in saved:
        # They do not change its size here.
        shape = _shapes(call, inputs)[1]["reserve_space"].shape
        whole = np.zeros(shape, saved["reserve_space"].dtype)
        whole[: saved["reserve_space"].size] = saved["reserve_space"]
        saved["reserve_space"] = whole
    return outputs, saved


@_forward.defjvp
def _forward_along(call: _Call, primals: Any, tangents: Any) -> Any:
    inputs, extras = primals
    outputs, saved = _forward(call, inputs, extras)

    def tangent(residuals: Any, d_inputs: Any) -> Any:
        _check_wide(call, residuals[0])
        found = _host(_run_tangent, call, _like(outputs), *residuals[:2], d_inputs)
        return found, zeros(residuals)

    def transpose(residuals: Any, cotangents: Any) -> Any:
        return _gradient(call, *residuals, cotangents[0])

    def zeros(residuals: Any) -> Any:
        # What is saved goes nowhere but into the gradient, whose tangents are those of the inputs.
        return varying(jax.tree.map(jnp.zeros_like, residuals[3]), residuals)

    def again(residuals: Any, d_inputs: Any, others: Any) -> Any:
        inputs, extras, *_ = residuals

        def backward(given: Any, cotangents: Any) -> Any:
            nothing = jax.tree.map(jnp.zeros_like, cotangents)
            inputs, extras, d_inputs = given
            return _second(call, (inputs, extras, cotangents, d_inputs, nothing))[0]

        refuse = functools.partial(_refuse, call.record.name, _AGAIN)
        found = linear(refuse, backward, (inputs, extras, d_inputs), others, _like(outputs))
        return found, zeros(residuals)

    residuals = (inputs, extras, outputs, saved)
    found = linear(tangent, transpose, residuals, tangents[0], _like((outputs, saved)), again)
    return (outputs, saved), found


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _outputs(call: _Call, inputs: Any, extras: Any) -> Any:
    """Return the outputs of an op: where nothing is to be differentiated, only these."""
    return _host(_run_outputs, call, _shapes(call, inputs)[0], inputs, extras)


def _run_outputs(call: _Call, inputs: Any, extras: Any) -> Any:
    if dict(call.attributes).get("dropout") == 0:  # else masks are drawn in training alone
        return call.run(inputs, extras, is_training=False)[0]
    return call.run(inputs, extras)[0]


@_outputs.defjvp
def _outputs_along(call: _Call, primals: Any, tangents: Any) -> Any:
    (outputs, _), (moved, _) = _forward_along(call, primals, tangents)
    return outputs, moved


def _check_wide(call: _Call, inputs: Any) -> None:
    """Check that the inputs have a complex dtype beside theirs, for a value and a tangent."""
    for a in inputs:
        if a.dtype.itemsize < 4:
            raise TypeError(
                f"{call.record.name}: an input has dtype {a.dtype}, expected float32 or float64:"
                " half formats have no second derivatives and no forward mode"
            )


def _refuse(name: str, why: str, *_: Any) -> Any:
    raise NotImplementedError(f"{name}: {why}")


def _run_tangent(call: _Call, inputs: Any, extras: Any, d_inputs: Any) -> Any:
    """Return the tangents of the outputs."""
    tree = jax.tree.structure(call.run(inputs, extras)[0])

    def outputs(*inputs: Any) -> Any:
        return jax.tree.leaves(call.run(inputs, extras)[0])

    return jax.tree.unflatten(tree, along(outputs, inputs, d_inputs)[1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradient(call: _Call, inputs: Any, *args: Any) -> Any:
    """Return the gradients of the inputs."""
    return _host(_run_gradient, call, _like(tuple(inputs)), inputs, *args)


def _run_gradient(
    call: _Call, inputs: Any, extras: Any, outputs: Any, saved: Any, cotangents: Any
) -> Any:
    if "reserve_space" in saved and "sequence_lengths" in call.extras:
        lengths = call.arguments(inputs, extras)["sequence_lengths"]
        reserve, major = saved["reserve_space"], dict(call.attributes)["time_major"]
        T = outputs["output"].shape[0 if major else 1]
        size = reserve.size // max(T * len(lengths), 1) * int(lengths.sum())
        saved = saved | {"reserve_space": reserve[:size]}
    return tuple(call.gradient(inputs, extras, outputs, saved, cotangents))


@_gradient.defjvp
def _gradient_along(call: _Call, primals: Any, tangents: Any) -> Any:
    inputs, extras, _, _, cotangents = primals

    def tangent(residuals: Any, along: Any) -> Any:
        return _second(call, (*residuals, *along))[0]

    def transpose(residuals: Any, given: Any) -> Any:
        nothing = jax.tree.map(jnp.zeros_like, residuals[2])
        return _second(call, (*residuals, given, nothing))

    residuals, directions = (inputs, extras, cotangents), (tangents[0], tangents[4])
    third = functools.partial(_refuse, call.record.name, _THIRD)
    found = linear(tangent, transpose, residuals, directions, _like(tuple(inputs)), third)
    return _gradient(call, *primals), found


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _second(call: _Call, args: Any) -> Any:
    """Return the tangents of the gradient and of the outputs."""
    _check_wide(call, args[0])
    shapes = _like(tuple(args[0])), _like(args[2])
    return _host(_run_second, call, shapes, *args)


def _run_second(
    call: _Call, inputs: Any, extras: Any, cotangents: Any, d_inputs: Any, d_cotangents: Any
) -> Any:
    n, tree = len(inputs), jax.tree.structure(cotangents)

    def both(*values: Any) -> Any:
        outputs, saved = call.run(values[:n], extras)
        given = jax.tree.unflatten(tree, values[n:])
        grads = call.gradient(values[:n], extras, outputs, saved, given)
        return [*grads, *jax.tree.leaves(outputs)]

    values = [*inputs, *jax.tree.leaves(cotangents)]
    _, found = along(both, values, [*d_inputs, *jax.tree.leaves(d_cotangents)])
    return tuple(found[:n]), jax.tree.unflatten(tree, found[n:])


@_second.defjvp
def _second_along(call: _Call, primals: Any, tangents: Any) -> Any:
    _refuse(call.record.name, _THIRD)


def _checked(name: str, n: str, given: Any, T: int, B: int, time_major: bool) -> Any:
    """Return a seed, lengths or resets as an array; what is traced may have any values."""
    known = np.zeros(given.shape, given.dtype) if isinstance(given, jax.core.Tracer) else given
    if n == "sequence_lengths":
        made: Any = check_lengths(name, known, T, B)
    elif n == "resets":
        T, B, symbols = (T, B, "(T, B)") if time_major else (B, T, "(B, T)")
        made = check_resets(name, known, T, B, symbols=symbols)
    else:
        number = check_integer(name, n, known)
        is_array = isinstance(known, (np.generic, np.ndarray, jax.Array))
        made = np.zeros((), jax.dtypes.canonicalize_dtype(known.dtype if is_array else np.int64))
        try:
            made[()] = number
        except OverflowError:
            what = f"{n} is {shown(known)}, expected what an {made.dtype}, JAX's here, can hold"
            raise ValueError(f"{name}: {what}") from None
    return jnp.asarray(made if known is given else given)


def _as_jax(name: str, n: str, given: Any) -> Any:
    """Return an input as arrays of JAX: lists, tuples of weights and all."""
    if isinstance(given, PackedParams):
        raise TypeError(
            f"{name}: {n} is a cupyrnn.PackedParams, expected a vector: pass its params, with"
            f" rnn_mode={given.rnn_mode!r} and direction={given.direction!r}"
        )
    nested = name == "stacked_rnn" and n != "input"
    leaves = jax.tree.leaves(given) if nested else [given]
    if not all(hasattr(a, "dtype") for a in leaves):
        expected = "arrays of JAX or NumPy" if nested else "a jax.Array or numpy.ndarray"
        raise TypeError(f"{name}: {n} is {type_shown(given)}, expected {expected}")
    try:
        return jax.tree.map(jnp.asarray, given)
    except (TypeError, ValueError):
        plain = type(given) is np.ndarray
        what = f"has dtype {given.dtype}" if plain else f"is {type_shown(given)}"
        raise TypeError(f"{name}: {n} {what}, expected floating-point arrays") from None


def _fill_states(
    name: str, arrays: dict[str, Any], attributes: dict[str, Any], form: Form | None
) -> None:
    """Set the states that are None to zeros, where their sizes are known."""
    states = [n for n in ("cs_prev", "h_prev", "input_h", "input_c") if n in arrays]
    missing = [n for n in states if arrays[n] is None]
    if not missing:
        return
    n, x = next(iter(arrays.items()))
    x = _as_jax(name, n, x)
    if x.ndim != 3:
        axes = "T, B" if attributes.get("time_major", True) else "B, T"
        raise ValueError(f"{name}: {n} has shape {x.shape}, expected ({axes}, I)")
    if name.startswith("block_"):
        matrix, gates = ("w", 4) if "w" in arrays else ("w_c", 1)
        w = _as_jax(name, matrix, arrays[matrix])
        zeros = jnp.zeros((x.shape[1], w.shape[-1] // gates), x.dtype)
        arrays |= dict.fromkeys(missing, zeros)
    elif form is not None:
        D, major = 1 + (attributes["direction"] == "bidirectional"), attributes["time_major"]
        weights, batch = _as_jax(name, "weights", arrays["weights"]), (x.shape[int(major)], major)
        given = [arrays[n] for n in states[: len(form.States._fields)]]
        make = functools.partial(jnp.zeros, dtype=x.dtype)
        arrays |= zip(states, zero_states(form, weights, D, batch, given, make), strict=False)
    elif missing == ["input_c"] and attributes["rnn_mode"] == "lstm" and not attributes["num_proj"]:
        arrays["input_c"] = jnp.zeros_like(_as_jax(name, "input_h", arrays["input_h"]))


def _outputs_of(record: Record, attributes: dict[str, Any]) -> Any:
    """Return the outputs of an op by name, of all its arguments."""
    name = record.name
    arrays = {n: attributes.pop(n) for n in record.inputs}
    extras = {n: attributes.pop(n) for n in (*_SEEDS, *record.extras) if n in attributes}
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
            what = f"{n} is {shown(value)}, expected what Python knows while JAX traces"
            raise TypeError(f"{name}: {what}") from None
    _fill_states(name, arrays, attributes, form)
    wanted = {n: a for n, a in arrays.items() if a is not None or n not in record.optional}
    given = {n: _as_jax(name, n, a) for n, a in wanted.items()}
    x, major = next(iter(given.values())), attributes.get("time_major", True)
    rest = {}
    if getattr(x, "ndim", 0) == 3:  # else the op refuses it
        T, B = x.shape[:2] if major else x.shape[1::-1]
        rest = {n: _checked(name, n, a, T, B, major) for n, a in extras.items() if a is not None}
    leaves, tree = jax.tree.flatten(given)
    kinds = tuple(map(type, attributes.values()))
    call = _Call(record, tree, tuple(rest), tuple(attributes.items()), kinds)
    inputs, more = varying((tuple(leaves), tuple(rest.values())), (leaves, rest))
    return _outputs(call, inputs, more)


def of_arrays(record: Record, results: Any = None) -> Callable[[_F], _F]:
    """Have a function, which is no more than its signature, do in JAX what an op does."""

    def decorate(declared: _F) -> _F:
        signature = inspect.signature(declared)

        @functools.wraps(declared)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                raise misfit(declared, args, kwargs) from None
            bound.apply_defaults()
            found = _outputs_of(record, bound.arguments)
            return found["h"] if results is None else results(**found)

        return call  # type: ignore[return-value]

    return decorate
