"""
The sequence ops as functions of JAX's arrays, computed on the host by NumPy and Numba.

``jit``, ``vmap``, ``grad``, ``jvp``, ``grad`` of ``grad``, ``jacfwd``, ``jacrev`` and ``hessian``
accept them. An op is a ``custom_jvp`` whose tangent is a linear call; the transpose of that call is
the op's gradient. With F the op of inputs p, and G(p, y) the gradient of sum(y*F(p))::

    linear    p; dp -> the tangent of F           transpose  p; y -> G(p, y)
    linear    p, y; dp, dy -> the tangent of G    transpose  p, y; w -> those of G and F along w

JAX copies each array to and from the host once. ``vmap`` is a call for each entry. Third
derivatives, and forward mode of forward mode, are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ._arrays import check_integer, check_lengths, check_list, check_resets, shown, type_shown
from .cudnn_rnn import cudnn_rnn as _cudnn_rnn
from .cudnn_rnn import cudnn_rnn_backprop
from .derivatives.duals import along
from .gru import block_gru as _block_gru
from .gru import block_gru_grad
from .lstm import block_lstm as _block_lstm
from .lstm import block_lstm_grad
from .stacked_rnn import stacked_rnn as _stacked_rnn
from .stacked_rnn import stacked_rnn_backprop
from .weights.block_forms import LSTM_FORM, default_clip
from .weights.packed import PackedParams

if TYPE_CHECKING:
    from .arithmetic.gates import RecurrentActivation
    from .weights.block_forms import GateOrder
    from .weights.params import Direction, InputMode, RNNMode


__all__ = ["BlockLSTMOutputs", "RNNOutputs", "block_gru", "block_lstm", "cudnn_rnn", "stacked_rnn"]


def __dir__() -> list[str]:
    return __all__


class BlockLSTMOutputs(NamedTuple):
    """
    What `block_lstm` returns.

    Attributes
    ----------
    cs, h : [T, B, H]
        The cell states and the outputs of all steps.
    """

    cs: Any
    h: Any


class RNNOutputs(NamedTuple):
    """
    What `cudnn_rnn` and `stacked_rnn` return.

    Attributes
    ----------
    output : [T, B, D*P]
        The output of the last layer.
    output_h : [L*D, B, P]
        The states after each sequence's last step; a tuple of layers where input_h is a list.
    output_c : [L*D, B, H] or None
        The cell states of an LSTM.
    """

    output: Any
    output_h: Any
    output_c: Any


class _Op(NamedTuple):
    """An op and its gradient."""

    forward: Callable[..., Any]
    gradient: Callable[..., Any]
    outputs: tuple[str, ...]  # that have a gradient
    of_output: str  # what the gradient op calls the gradient of an output
    of_input: str  # and that of an input
    without: tuple[str, ...]  # what it does not take


_EXTRAS = ("seed", "seed2", "sequence_lengths", "resets")  # what has no gradient, and is traced
_THIRD = "there are no third derivatives"
_NETS = ("output", "output_h", "output_c")
_OPS = {
    "block_lstm": _Op(
        _block_lstm, block_lstm_grad, ("cs", "h"), "{}_grad", "{}_grad",
        ("b", "forget_bias"),
    ),
    "block_gru": _Op(
        _block_gru, block_gru_grad, ("h",), "d_{}", "d_{}", ("b_ru", "b_c")
    ),
    "cudnn_rnn": _Op(
        _cudnn_rnn, cudnn_rnn_backprop, _NETS, "{}_backprop", "{}_backprop", ()
    ),
    "stacked_rnn": _Op(
        _stacked_rnn, stacked_rnn_backprop, _NETS,
        "{}_backprop", "{}_backprop", ("seed", "seed2", "forget_bias"),
    ),
}  # fmt: skip


class _Call(NamedTuple):
    """What of a call JAX does not trace."""

    name: str
    inputs: Any  # the tree of the inputs by name, which have a gradient
    extras: tuple[str, ...]  # the arrays that have none
    attributes: tuple[tuple[str, Any], ...]
    kinds: tuple[type, ...]  # of the attributes, to tell 1 from True

    def arguments(self, inputs: Sequence[Any], extras: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of the op, by name."""
        rest = dict(zip(self.extras, extras, strict=True))
        rest = {n: int(a) if n.startswith("seed") else np.asarray(a) for n, a in rest.items()}
        nothing = {"input_c": None} if self.name.endswith("rnn") else {}
        return nothing | jax.tree.unflatten(self.inputs, inputs) | rest | dict(self.attributes)

    def run(self, inputs: Sequence[Any], extras: Sequence[Any]) -> tuple[dict[str, Any], ...]:
        """Return what the op does: what has a gradient by name, and the rest."""
        op = _OPS[self.name]
        found = op.forward(**self.arguments(inputs, extras))._asdict()
        found.pop("host_reserved", None)
        named = [n for n in op.outputs if isinstance(found[n], tuple) or found[n].ndim]
        outputs = {n: found.pop(n) for n in named}
        return outputs, found

    def gradient(
        self, inputs: Any, extras: Any, outputs: Any, saved: Any, cotangents: Any
    ) -> list[Any]:
        """Return the gradients of the inputs, flat."""
        op, given = _OPS[self.name], self.arguments(inputs, extras)
        arguments = {n: a for n, a in given.items() if n not in op.without}
        arguments |= {op.of_output.format(n): cotangents.get(n) for n in op.outputs}
        grads = op.gradient(**(arguments | dict.fromkeys(op.outputs) | outputs | saved))
        names = jax.tree.unflatten(self.inputs, inputs)
        return jax.tree.leaves({n: getattr(grads, op.of_input.format(n)) for n in names})


@functools.lru_cache(maxsize=256)
def _results_of(call: _Call, shapes: tuple[Any, ...], seeds: int) -> Any:
    """Return the tree of the outputs and what is saved, and their shapes: by a call with zeros."""
    given = call._replace(extras=call.extras[:seeds])  # without lengths and resets
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype),
        given.run([np.zeros(a.shape, a.dtype) for a in shapes], [0] * seeds),
    )


def _host(function: Callable[..., Any], shapes: Any, *args: Any) -> Any:
    """Call a function of arrays on the host."""

    def call(*args: Any) -> Any:
        return function(*jax.tree.map(np.asarray, args))

    return jax.pure_callback(call, shapes, *args, vmap_method="sequential")


def _like(arrays: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), arrays)


def _shapes(call: _Call, inputs: Any) -> Any:
    seeds = sum(n.startswith("seed") for n in call.extras)
    return _results_of(call, tuple(_like(list(inputs))), seeds)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _forward(call: _Call, inputs: Any, extras: Any) -> Any:
    """Return the outputs of an op, and what its gradient needs."""
    shapes = _shapes(call, inputs)

    def run(inputs: Any, extras: Any) -> Any:
        outputs, saved = call.run(inputs, extras)
        if "reserve_space" in saved:  # the lengths do not change its size here
            whole = np.zeros(shapes[1]["reserve_space"].shape, saved["reserve_space"].dtype)
            whole[: saved["reserve_space"].size] = saved["reserve_space"]
            saved["reserve_space"] = whole
        return outputs, saved

    return _host(run, shapes, inputs, extras)


@_forward.defjvp
def _forward_along(call: _Call, primals: Any, tangents: Any) -> Any:
    inputs, extras = primals
    outputs, saved = _forward(call, inputs, extras)

    def tangent(residuals: Any, d_inputs: Any) -> Any:
        _check_wide(call, residuals[0])
        return _host(functools.partial(_tangent, call), _like(outputs), *residuals[:2], d_inputs)

    def transpose(residuals: Any, cotangents: Any) -> Any:
        return _gradient(call, *residuals, cotangents)

    def again(residuals: Any, d_inputs: Any, others: Any) -> Any:
        inputs, extras, *_ = residuals

        def backward(residuals: Any, cotangents: Any) -> Any:
            nothing = jax.tree.map(jnp.zeros_like, cotangents)
            inputs, extras, d_inputs = residuals
            return _second(call, (inputs, extras, cotangents, d_inputs, nothing))[0]

        refuse = functools.partial(_refuse, call.name, "there is no forward mode of forward mode")
        return _linear(refuse, backward, (inputs, extras, d_inputs), others, _like(outputs))

    residuals = (inputs, extras, outputs, saved)
    d_outputs = _linear(tangent, transpose, residuals, tangents[0], _like(outputs), again)
    # What is saved goes nowhere but into the gradient, whose tangents are those of the inputs.
    return (outputs, saved), (d_outputs, jax.tree.map(jnp.zeros_like, saved))


def _check_wide(call: _Call, inputs: Any) -> None:
    """Check that the inputs have a complex dtype beside theirs, for a value and a tangent."""
    for a in inputs:
        if a.dtype.itemsize < 4:
            raise TypeError(
                f"{call.name}: an input has dtype {a.dtype}, expected float32 or float64: half"
                " formats have no second derivatives and no forward mode"
            )


def _refuse(name: str, why: str, *_: Any) -> Any:
    raise NotImplementedError(f"{name}: {why}")


def _tangent(call: _Call, inputs: Any, extras: Any, d_inputs: Any) -> Any:
    """Return the tangents of the outputs."""
    tree = jax.tree.structure(call.run(inputs, extras)[0])

    def outputs(*inputs: Any) -> Any:
        return jax.tree.leaves(call.run(inputs, extras)[0])

    return jax.tree.unflatten(tree, along(outputs, inputs, d_inputs)[1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradient(
    call: _Call, inputs: Any, extras: Any, outputs: Any, saved: Any, cotangents: Any
) -> Any:
    """Return the gradients of the inputs."""

    def run(inputs: Any, extras: Any, outputs: Any, saved: Any, cotangents: Any) -> Any:
        lengths = call.arguments(inputs, extras).get("sequence_lengths")
        if "reserve_space" in saved and lengths is not None:
            reserve, major = saved["reserve_space"], dict(call.attributes)["time_major"]
            T = outputs["output"].shape[0 if major else 1]
            size = reserve.size // max(T * len(lengths), 1) * int(lengths.sum())
            saved = saved | {"reserve_space": reserve[:size]}
        return tuple(call.gradient(inputs, extras, outputs, saved, cotangents))

    return _host(run, _like(tuple(inputs)), inputs, extras, outputs, saved, cotangents)


@_gradient.defjvp
def _gradient_along(call: _Call, primals: Any, tangents: Any) -> Any:
    inputs, extras, _, _, cotangents = primals

    def tangent(residuals: Any, along: Any) -> Any:
        return _second(call, (*residuals, *along))[0]

    def transpose(residuals: Any, given: Any) -> Any:
        nothing = jax.tree.map(jnp.zeros_like, residuals[2])
        return _second(call, (*residuals, given, nothing))

    residuals, directions = (inputs, extras, cotangents), (tangents[0], tangents[4])
    third = functools.partial(_refuse, call.name, _THIRD)
    found = _linear(tangent, transpose, residuals, directions, _like(tuple(inputs)), third)
    return _gradient(call, *primals), found


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _second(call: _Call, args: Any) -> Any:
    """Return the tangents of the gradient and of the outputs."""
    _check_wide(call, args[0])

    def run(inputs: Any, extras: Any, cotangents: Any, d_inputs: Any, d_cotangents: Any) -> Any:
        n, tree = len(inputs), jax.tree.structure(cotangents)

        def both(*values: Any) -> Any:
            outputs, saved = call.run(values[:n], extras)
            given = jax.tree.unflatten(tree, values[n:])
            grads = call.gradient(values[:n], extras, outputs, saved, given)
            return [*grads, *jax.tree.leaves(outputs)]

        values = [*inputs, *jax.tree.leaves(cotangents)]
        _, found = along(both, values, [*d_inputs, *jax.tree.leaves(d_cotangents)])
        return tuple(found[:n]), jax.tree.unflatten(tree, found[n:])

    return _host(run, (_like(tuple(args[0])), _like(args[2])), *args)


@_second.defjvp
def _second_along(call: _Call, primals: Any, tangents: Any) -> Any:
    _refuse(call.name, _THIRD)


class _Maps(NamedTuple):
    """A linear function of flat arrays, given others, its transpose, its tangent by the others."""

    apply: Callable[..., Sequence[Any]]
    transpose: Callable[..., Sequence[Any]]
    again: Callable[..., Sequence[Any]]


_linear_p = Primitive("cupyrnn_linear")
_linear_p.multiple_results = True


def _linear(
    apply: Any, transpose: Any, residuals: Any, arguments: Any, shapes: Any, again: Any = None
) -> Any:
    """Return `apply(residuals, arguments)`, linear in its arguments, of these shapes."""
    res, res_tree = jax.tree.flatten(residuals)
    args, tree = jax.tree.flatten(arguments)
    avals, out_tree = jax.tree.flatten(shapes)

    def flat(function: Any, own: Any) -> Any:
        def call(res: Any, args: Any) -> Any:
            given = jax.tree.unflatten(res_tree, res), jax.tree.unflatten(own, args)
            return jax.tree.leaves(function(*given))

        return call

    def of_residuals(res: Any, args: Any, others: Any) -> Any:
        given = jax.tree.unflatten(res_tree, res), jax.tree.unflatten(tree, args)
        of_inputs = jax.tree.unflatten(res_tree, others)[0]  # what else there is follows from them
        if again is None:
            return apply(*given)
        return jax.tree.leaves(again(*given, jax.tree.map(jnp.asarray, of_inputs)))

    maps = _Maps(flat(apply, tree), flat(transpose, out_tree), of_residuals)
    found = _linear_p.bind(*res, *args, maps=maps, n=len(res), avals=tuple(avals))
    return jax.tree.unflatten(out_tree, found)


def _linear_run(*args: Any, maps: _Maps, n: int, avals: Any) -> Any:
    return maps.apply(args[:n], args[n:])


def _linear_jvp(primals: Any, tangents: Any, *, maps: _Maps, n: int, avals: Any) -> Any:
    along = [ad.instantiate_zeros(t) for t in tangents[n:]]
    found, moved = (
        _linear_p.bind(*primals[:n], *a, maps=maps, n=n, avals=avals) for a in (primals[n:], along)
    )
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

    def transpose(given: Any, cts: Any) -> Any:
        each = jax.vmap(maps.transpose, in_axes=(res, 0))(list(given), list(cts))
        return [
            a.sum(0) if d is None else jnp.moveaxis(a, 0, d) for a, d in zip(each, own, strict=True)
        ]

    def apply(given: Any, args: Any) -> Any:
        return jax.vmap(maps.apply, in_axes=(res, own), axis_size=size)(list(given), list(args))

    def again(given: Any, args: Any, others: Any) -> Any:
        return jax.vmap(maps.again, in_axes=(res, own, res), axis_size=size)(
            list(given), list(args), list(others)
        )

    wide = tuple(jax.ShapeDtypeStruct((size, *a.shape), a.dtype) for a in avals)
    found = _linear_p.bind(*args, maps=_Maps(apply, transpose, again), n=n, avals=wide)
    return found, [0] * len(found)


_linear_p.def_impl(_linear_run)
_linear_p.def_abstract_eval(
    lambda *_, maps, n, avals: [jax.core.ShapedArray(a.shape, a.dtype) for a in avals]
)
mlir.register_lowering(_linear_p, mlir.lower_fun(_linear_run, multiple_results=True))
# The mock of JAX that builds the documentation has no item assignment.
ad.primitive_jvps.__setitem__(_linear_p, _linear_jvp)
ad.primitive_transposes.__setitem__(_linear_p, _linear_transpose)
batching.primitive_batchers.__setitem__(_linear_p, _linear_batch)


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
    try:
        return jax.tree.map(jnp.asarray, given)
    except (TypeError, ValueError):
        plain = type(given) is np.ndarray
        what = f"has dtype {given.dtype}" if plain else f"is {type_shown(given)}"
        raise TypeError(f"{name}: {n} {what}, expected floating-point arrays") from None


def _call(name: str, attributes: dict[str, Any], inputs: str) -> Any:
    """Return the outputs of an op by name, of all its arguments; those named inputs are arrays."""
    arrays = {n: attributes.pop(n) for n in inputs.split()}
    extras = {n: attributes.pop(n) for n in _EXTRAS if n in attributes}
    for n, value in attributes.items():
        try:
            hash(value)
        except TypeError:
            what = f"{n} is {shown(value)}, expected what Python knows while JAX traces"
            raise TypeError(f"{name}: {what}") from None
    given = {n: _as_jax(name, n, a) for n, a in arrays.items() if a is not None}
    x, major = next(iter(given.values())), attributes.get("time_major", True)
    rest = {}
    if getattr(x, "ndim", 0) == 3:  # else the op refuses it
        T, B = x.shape[:2] if major else x.shape[1::-1]
        rest = {n: _checked(name, n, a, T, B, major) for n, a in extras.items() if a is not None}
    leaves, tree = jax.tree.flatten(given)
    kinds = tuple(map(type, attributes.values()))
    call = _Call(name, tree, tuple(rest), tuple(attributes.items()), kinds)
    return _forward(call, tuple(leaves), tuple(rest.values()))[0]


def block_lstm(
    x: Any,
    cs_prev: Any,
    h_prev: Any,
    w: Any,
    b: Any,
    *,
    wci: Any = None,
    wcf: Any = None,
    wco: Any = None,
    sequence_lengths: Any = None,
    reverse: bool = False,
    resets: Any = None,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> BlockLSTMOutputs:
    """
    `cupyrnn.block_lstm` of JAX's arrays. Through a clip the gradient is the true one.

    Parameters
    ----------
    x, cs_prev, h_prev, w, b, wci, wcf, wco : arrays
        The inputs, with the shapes of `cupyrnn.block_lstm`.
    sequence_lengths : [B] integers, optional
        The length of each sequence, which may be traced.
    reverse : bool
        The direction, which is static, as are the attributes below.
    resets : [T, B] booleans, optional
        Steps into which no state passes; they may be traced.
    forget_bias, cell_clip, gate_order, recurrent_activation : floats, strings
        Attributes, by default those of TensorFlow.

    Returns
    -------
    BlockLSTMOutputs
        cs and h, [T, B, H] each.

    Raises
    ------
    TypeError, ValueError
        What `cupyrnn.block_lstm` raises, while the call is traced.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import cupyrnn.jax
    >>> x, state, w = jnp.ones((4, 1, 2)), jnp.zeros((1, 3)), jnp.full((5, 12), 0.1)
    >>> def loss(w):
    ...     return cupyrnn.jax.block_lstm(x, state, state, w, jnp.zeros(12)).h.sum()
    >>> jax.grad(loss)(w).shape
    (5, 12)
    """
    given = dict(locals())
    if cell_clip is None:
        given["cell_clip"] = default_clip("block_lstm", gate_order)
    return BlockLSTMOutputs(**_call("block_lstm", given, "x cs_prev h_prev w b wci wcf wco"))


def block_gru(
    x: Any,
    h_prev: Any,
    w_ru: Any,
    w_c: Any,
    b_ru: Any,
    b_c: Any,
    *,
    sequence_lengths: Any = None,
    reverse: bool = False,
    resets: Any = None,
    recurrent_activation: RecurrentActivation = "sigmoid",
) -> Any:
    """
    `cupyrnn.block_gru` of JAX's arrays.

    Parameters
    ----------
    x, h_prev, w_ru, w_c, b_ru, b_c : arrays
        The inputs, with the shapes of `cupyrnn.block_gru`.
    sequence_lengths : [B] integers, optional
        The length of each sequence, which may be traced.
    reverse : bool
        The direction, which is static.
    resets : [T, B] booleans, optional
        Steps into which no state passes; they may be traced.
    recurrent_activation : str
        The activation of r and u, which is static.

    Returns
    -------
    array
        h of all steps, [T, B, H].

    Raises
    ------
    TypeError, ValueError
        What `cupyrnn.block_gru` raises, while the call is traced.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import cupyrnn
    >>> weights = cupyrnn.init_block_gru(num_units=3, input_size=2)
    >>> cupyrnn.jax.block_gru(jnp.ones((4, 1, 2)), jnp.zeros((1, 3)), *weights).shape
    (4, 1, 3)
    """
    return _call("block_gru", dict(locals()), "x h_prev w_ru w_c b_ru b_c")["h"]


def _net(name: str, given: dict[str, Any], inputs: str) -> RNNOutputs:
    return RNNOutputs(**({"output_c": None} | _call(name, given, inputs)))


def cudnn_rnn(
    input: Any,
    input_h: Any,
    input_c: Any,
    params: Any,
    *,
    sequence_lengths: Any = None,
    resets: Any = None,
    rnn_mode: RNNMode = "lstm",
    input_mode: InputMode = "linear_input",
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: Any = 0,
    seed2: Any = 0,
    num_proj: int = 0,
    recurrent_activation: RecurrentActivation = "sigmoid",
    time_major: bool = True,
) -> RNNOutputs:
    """
    `cupyrnn.cudnn_rnn` of JAX's arrays.

    Parameters
    ----------
    input, input_h, input_c, params : arrays
        The inputs, with the shapes of `cupyrnn.cudnn_rnn`; input_c is None but for LSTMs.
    sequence_lengths, resets : [B] integers and [T, B] booleans, optional
        The length of each sequence, and steps into which no state passes; they may be traced.
    rnn_mode, input_mode, direction, dropout : strings, float
        Attributes, which are static.
    seed, seed2 : integers
        What dropout's masks depend on, as large as JAX's integers; they may be traced.
    num_proj, recurrent_activation, time_major : int, str, bool
        Attributes, which are static.

    Returns
    -------
    RNNOutputs
        output, output_h and output_c, which is None but for LSTMs.

    Raises
    ------
    TypeError, ValueError
        What `cupyrnn.cudnn_rnn` raises, while the call is traced.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import cupyrnn
    >>> x, h = jnp.ones((4, 1, 2)), jnp.zeros((1, 1, 3))
    >>> params = jnp.full(cupyrnn.cudnn_rnn_params_size(1, 3, 2), 0.1)
    >>> cupyrnn.jax.cudnn_rnn(x, h, h, params).output.shape
    (4, 1, 3)
    """
    given = dict(locals())
    if isinstance(params, PackedParams):
        raise TypeError(
            "cudnn_rnn: params is a cupyrnn.PackedParams, expected a vector: pass its params, with"
            f" rnn_mode={params.rnn_mode!r} and direction={params.direction!r}"
        )
    return _net("cudnn_rnn", given, "input input_h input_c params")


def stacked_rnn(
    input: Any,
    input_h: Any,
    input_c: Any,
    weights: Any,
    *,
    sequence_lengths: Any = None,
    resets: Any = None,
    direction: Direction = "unidirectional",
    dropout: float = 0.0,
    seed: Any = 0,
    seed2: Any = 0,
    forget_bias: float | None = None,
    cell_clip: float | None = None,
    gate_order: GateOrder = "icfo",
    recurrent_activation: RecurrentActivation = "sigmoid",
    time_major: bool = True,
) -> RNNOutputs:
    """
    `cupyrnn.stacked_rnn` of JAX's arrays. Through a clip the gradient is the true one.

    Parameters
    ----------
    input, input_h, input_c, weights : arrays, lists and tuples of arrays
        The inputs, with the shapes of `cupyrnn.stacked_rnn`; input_c is None for GRUs.
    sequence_lengths, resets : [B] integers and [T, B] booleans, optional
        The length of each sequence, and steps into which no state passes; they may be traced.
    direction, dropout : str, float
        Attributes, which are static.
    seed, seed2 : integers
        What dropout's masks depend on, as large as JAX's integers; they may be traced.
    forget_bias, cell_clip, gate_order, recurrent_activation, time_major : floats, strings, bool
        Attributes, which are static.

    Returns
    -------
    RNNOutputs
        output, output_h and output_c, which is None for GRUs.

    Raises
    ------
    TypeError, ValueError
        What `cupyrnn.stacked_rnn` raises, while the call is traced.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import cupyrnn
    >>> weights = [cupyrnn.init_block_lstm(num_units=3, input_size=K) for K in (2, 3)]
    >>> x, h = jnp.ones((4, 1, 2)), jnp.zeros((2, 1, 3))
    >>> cupyrnn.jax.stacked_rnn(x, h, h, weights).output_h.shape
    (2, 1, 3)
    """
    given = dict(locals())
    check_list("stacked_rnn", "weights", weights, "weight tuples")
    if cell_clip is None and weights and getattr(weights[0], "form", None) is LSTM_FORM:
        given["cell_clip"] = default_clip("stacked_rnn", gate_order)
    return _net("stacked_rnn", given, "input input_h input_c weights")
