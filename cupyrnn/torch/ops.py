"""
The ops as PyTorch's own: ops for its compiler and functions for its autograd.

Each function of the package becomes four ops, of which PyTorch's first and second derivatives are
made, forward and backward. With F the function of its inputs p, and G(p, y) the gradient of
sum(y*F(p))::

    forward   p -> F, and what G needs
    backward  p, y -> G
    jvp       p, dp -> the tangent of F
    second    p, y, dp, dy -> the tangent of F, G, the tangent of G

The last two are calls with dual numbers. The derivatives of each by its arguments, given gradients
w of what it returns, are among them as the matrix of second derivatives is symmetric::

    forward   G(p, w)
    backward  by p the tangent of G along dp = w, by y that of F
    jvp       by p the tangent of G with y = w, by dp G(p, w)

Where nobody traces a call, it goes past PyTorch's dispatcher, and past autograd where nothing has
a gradient: both take longer than a small op.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch.nn.utils._expanded_weights.expanded_weights_impl import ExpandedWeight
from torch.utils._python_dispatch import _get_current_dispatch_mode

from .._arrays import type_shown
from ..derivatives.duals import along
from .arrays import arrays_of, host_arrays_of, name_of, on_device_of, tensors_of
from .batching import rule_of, under_vectorize, vectorized

if TYPE_CHECKING:
    from .._arrays import Array
    from .._ops import Record

    # Arguments by name, without those that are None.
    Named: TypeAlias = dict[str, Any]

_R = TypeVar("_R")

_LIBRARY = torch.library.Library("cupyrnn", "FRAGMENT")


# Elements of joined pieces up to which the gradient finds them joined: to join them again takes a
# good part of a small net's time.
_KEPT = 1 << 18


class Function(NamedTuple):
    """What PyTorch is told of a function beside its record: shapes, and how it is called."""

    record: Record
    saved: tuple[str, ...]  # what the gradient needs beside
    extras: tuple[str, ...]  # tensors without a gradient, all optional
    attributes: tuple[str, ...]  # types and names
    forward: Callable[[Named, Named], Named]  # arrays, attributes -> arrays
    backward: Callable[[Named, Named, Named, Named], Named]  # and results, cotangents -> by input
    shapes: Callable[[Named, Named], dict[str, tuple[int, ...]]]
    # The axis B of the tensors that have one, where a longer B is the same as more calls.
    axes: dict[str, int] | None = None


# What has second derivatives: those that have a complex dtype beside them.
_WITH_TANGENTS = (torch.float32, torch.float64)


def check_tensor(op: str, name: str, t: Any) -> None:
    """Check that an argument is a tensor."""
    kind = type(t)
    if kind is torch.Tensor or kind is torch.nn.Parameter or isinstance(t, torch.Tensor):
        return
    raise TypeError(f"{op}: {name} is {type_shown(t)}, expected a torch.Tensor")


def _plain(tensors: Sequence[Any]) -> bool:
    """Return whether nobody traces a call: PyTorch's tracers have modes or subclasses."""
    if _get_current_dispatch_mode() is not None or torch._C._is_tracing() or tensors[0].is_meta:
        return False
    for t in tensors:
        kind = type(t)
        if kind is not torch.Tensor and t is not None and kind is not torch.nn.Parameter:
            return False
    return True


def _in_forward_mode() -> bool:
    """Return whether forward mode is under way; True where PyTorch does not say."""
    level: int = getattr(torch.autograd.forward_ad, "_current_level", 0)
    return level >= 0


def _in_a_transform() -> bool:
    """Return whether forward mode or one of torch.func's transforms is under way."""
    return torch._C._are_functorch_transforms_active() or _in_forward_mode()


class _Below(threading.local):
    """Whether this thread is below an autograd function of ours, which has the derivatives."""

    autograd = False


_below = _Below()


@contextmanager
def _below_autograd() -> Iterator[None]:
    before, _below.autograd = _below.autograd, True
    try:
        yield
    finally:
        _below.autograd = before


def _primal(t: Any) -> Any:
    """Return a tensor without the tangent that it may have in the forward mode under way."""
    return t if t is None else torch.autograd.forward_ad.unpack_dual(t).primal


def _cast(args: Sequence[Any], tensors: int) -> list[Any]:
    """Return arguments as autocast has them: floating tensors of its device in its dtype."""
    kind: str = args[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(args)
    dtype = torch.get_autocast_dtype(kind)

    def cast(t: Any) -> Any:
        narrowed = t is not None and t.is_floating_point() and t.dtype != torch.float64
        return t.to(dtype) if narrowed and t.device.type == kind else t

    return [*map(cast, args[:tensors]), *args[tensors:]]


def _requires_grad(tensors: Sequence[Any]) -> bool:
    if torch.is_grad_enabled():
        for t in tensors:  # of so few a loop takes half the time of any()
            if t is not None and t.requires_grad:
                return True
    return False


class Op:
    """A function of the package as ops of PyTorch; called with tensors and attributes in order."""

    def __init__(self, function: Function) -> None:
        self.function = f = function
        self.name, self.inputs, self.outputs = f.record.name, f.record.inputs, f.record.outputs
        n, m, k = len(self.inputs), len(self.outputs) + len(f.saved), len(self.outputs)
        self._sizes = n, m, k
        self._attributes = [part.split()[-1] for part in f.attributes]
        self._results = (*self.outputs, *f.saved)
        # How many of the arguments of each op are tensors.
        e = len(f.extras)
        self._tensors = {
            "forward": n + e,
            "backward": n + m + k + e,
            "jvp": 2 * n + e,
            "second": 2 * (n + k) + e,
        }
        self._define()
        self.functions = _functions(self)
        # Past what looks for a transform in every call: there is none where this is called.
        base: type[Any] = torch.autograd.Function
        self._record: Any = super(base, self.functions.recorded).apply  # type: ignore[misc]
        self._record_pieces: Any = super(base, self.functions.of_pieces).apply  # type: ignore[misc]

    def __call__(self, *args: Any) -> Sequence[torch.Tensor]:
        """Return the outputs and what is saved."""
        count = self._tensors["forward"]
        for name, t in zip(self.inputs, args, strict=False):
            if t is not None or name not in self.function.record.optional:
                check_tensor(self.name, name, t)
        if torch._C._is_any_autocast_enabled():
            args = tuple(_cast(args, count))
        tensors = args[:count]
        if torch.compiler.is_compiling() or torch._C._is_tracing():
            results: Sequence[torch.Tensor] = self.forward(*args)
            return results
        if not _plain(tensors) or _in_a_transform():
            self._check_expanded(tensors)
            return self.functions.forward.apply(*args)  # type: ignore[no-any-return]
        if _requires_grad(tensors):
            return self._record(*args)  # type: ignore[no-any-return]
        found: Sequence[Any] = self._forward(*args)
        return found

    def of_pieces(
        self, inputs: Sequence[Any], pieces: Sequence[torch.Tensor], rest: Sequence[Any]
    ) -> Sequence[torch.Tensor]:
        """
        Call it with the last of its inputs in pieces, which it has flat and joined.

        Where autograd records the call, it is one node, and arrays are joined and split, not
        tensors: to join and split by PyTorch's ops takes a good part of a small net's time.
        """
        self._check_expanded(pieces)
        kind, on_host = pieces[0].dtype, pieces[0].is_cpu
        for n, piece in enumerate(pieces):
            if piece.dtype is not kind or piece.is_cpu is not on_host:
                name = self.inputs[-1]
                found, expected = f"has dtype {name_of(piece.dtype)}", name_of(kind)
                if piece.dtype is kind:
                    found, expected = f"is on device {piece.device}", str(pieces[0].device)
                raise TypeError(
                    f"{self.name}: {name}[{n}] {found}, expected {expected} like {name}[0]"
                )
        tensors = (*inputs, *pieces, *rest[: len(self.function.extras)])
        if (
            torch.compiler.is_compiling()
            or torch._C._is_any_autocast_enabled()
            or not _plain(tensors)
            or _in_a_transform()
        ):
            return self(*inputs, joined(pieces), *rest)
        if _requires_grad(tensors):
            return self._record_pieces(*inputs, *rest, *pieces)  # type: ignore[no-any-return]
        results: Sequence[Any] = self._forward_of_pieces(inputs, pieces, rest)[0]
        return results

    def _check_expanded(self, tensors: Sequence[Any]) -> None:
        for t in tensors:
            if type(t) is ExpandedWeight:
                raise NotImplementedError(
                    f"{self.name}: PyTorch's ExpandedWeights are refused; torch.func.vmap"
                    " of torch.func.grad has the gradients of each example, and so has cupyrnn.vjp"
                    " with weight_gradients='examples'"
                )

    def call(self, op_kind: str, *args: Any) -> Sequence[Any]:
        """Call an op as a part of a derivative, which may have one itself."""
        tensors = args[: self._tensors[op_kind]]
        if not _plain(tensors) or _in_a_transform() or _requires_grad(tensors):
            function = getattr(self.functions, op_kind)
            return function.apply(*args)  # type: ignore[no-any-return]
        return getattr(self, f"_{op_kind}")(*args)  # type: ignore[no-any-return]

    def run(self, op_kind: str, *args: Any) -> Sequence[torch.Tensor]:
        """Run an op below autograd."""
        if _plain(args[: self._tensors[op_kind]]):
            return self._whole(args[0], getattr(self, f"_{op_kind}")(*args))
        with _below_autograd():
            found = getattr(self, op_kind)(*args)
        results: tuple[torch.Tensor, ...] = found if isinstance(found, tuple) else (found,)
        return results

    # What PyTorch's dispatcher is told, for the compiler and all else that traces.

    def _define(self) -> None:
        f, (n, m, k) = self.function, self._sizes
        inputs = [f"Tensor{'?' * (n in f.record.optional)} {n}" for n in self.inputs]
        results = [f"Tensor {name}_" for name in self._results]
        cotangents = [f"Tensor? {name}_grad" for name in self.outputs]
        tangents = [f"Tensor? {name}_tangent" for name in self.inputs]
        more = [f"Tensor? {name}_grad_tangent" for name in self.outputs]
        last = [f"Tensor? {name}" for name in f.extras] + list(f.attributes)
        self.forward = self._op("forward", inputs + last, m, self._fake_forward)
        self.backward = self._op(
            "backward", inputs + results + cotangents + last, n, lambda *a: self._like(a[:n])
        )
        self.jvp = self._op(
            "jvp", inputs + tangents + last, k,
            lambda *a: self._fake_forward(*a[:n], *a[2 * n :])[:k],
        )  # fmt: skip
        self.second = self._op(
            "second", inputs + cotangents + tangents + more + last, k + 2 * n, self._fake_second
        )
        register = torch.library.register_autograd
        register(self.forward, self._vjp_forward, setup_context=self._keep_forward, lib=_LIBRARY)
        register(self.backward, self._vjp_backward, setup_context=self._keep, lib=_LIBRARY)
        for op in (self.jvp, self.second):
            register(op, _refusal(self.name, "there are no third derivatives"), lib=_LIBRARY)

    def _op(self, op_kind: str, arguments: list[str], count: int, fake: Any) -> Any:
        """Return an op of PyTorch."""
        name = self.name + ("" if op_kind == "forward" else f"_{op_kind}")
        schema = f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * count)})"
        torch.library.define(
            f"cupyrnn::{name}", schema, lib=_LIBRARY, tags=torch.Tag.pt2_compliant_tag
        )
        run = getattr(self, f"_{op_kind}")

        def traced(compute: Callable[..., Sequence[torch.Tensor]]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                # An op that the dispatcher is told of has no forward mode: it would be zeros.
                # Whether PyTorch has it switched off here says nothing: it does so in what it
                # makes of register_autograd, where the tangents are lost.
                if _in_forward_mode() and not _below.autograd:
                    raise NotImplementedError(
                        f"{self.name}: there is no forward mode in torch.compile"
                    )
                return _result(compute(*args))

            return call

        _LIBRARY.impl(
            name,
            traced(lambda *args: self._whole(args[0], run(*args))),
            "CompositeExplicitAutograd",
        )
        torch.library.register_fake(f"cupyrnn::{name}", traced(fake), lib=_LIBRARY)
        return getattr(torch.ops.cupyrnn, name).default

    def _whole(self, like: torch.Tensor, found: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Return a tensor for each result, an empty one of what is left out."""
        return tuple(like.new_empty(0) if t is None else t for t in found)

    def _fake_forward(self, *args: Any) -> tuple[torch.Tensor, ...]:
        f, n = self.function, len(self.inputs)
        inputs = dict(zip(self.inputs, args[:n], strict=True))
        rest = dict(zip(self._attributes, args[n + len(f.extras) :], strict=True))
        shapes = f.shapes(inputs, rest)
        return tuple(args[0].new_empty(shapes[name]) for name in self._results)

    def _like(self, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        return tuple(inputs[0].new_empty(0 if t is None else t.shape) for t in inputs)

    def _fake_second(self, *args: Any) -> tuple[torch.Tensor, ...]:
        n, _, k = self._sizes
        outputs = self._fake_forward(*args[:n], *args[2 * (n + k) :])[:k]
        return (*outputs, *self._like(args[:n]), *self._like(args[:n]))

    # What the ops compute: tensors in and out, None where an input is left out.

    def _rest(self, first: torch.Tensor, values: Sequence[Any]) -> Named:
        """Return the extras and the attributes by name."""
        f, e = self.function, len(self.function.extras)
        rest: Named = host_arrays_of(self.name, f.extras, values[:e])
        rest.update(zip(self._attributes, values[e:], strict=True))
        if first.dtype is torch.bfloat16 and "cell_clip" in rest:
            # As the dtype can hold it, so that a saved cs compares equal to it.
            rest["cell_clip"] = float(torch.tensor(rest["cell_clip"], dtype=first.dtype))
        return rest

    def _forward(self, *args: Any) -> list[torch.Tensor | None]:
        f, n = self.function, len(self.inputs)

        def run() -> list[torch.Tensor | None]:
            found = f.forward(
                arrays_of(self.name, self.inputs, args[:n]), self._rest(args[0], args[n:])
            )
            return tensors_of([found[name] for name in self._results], args[0])

        return _where(args[0], run)

    def by_example(self, *args: Any) -> Sequence[Any] | None:
        """
        Return the gradients by example, which have no derivative; None where one may be asked for.

        Those of weights have an axis B in front.
        """
        tensors = args[: self._tensors["backward"]]
        if not _plain(tensors) or _in_a_transform() or _requires_grad(tensors):
            return None
        return self._whole(args[0], self._backward(*args, weight_gradients="examples"))

    def _backward(self, *args: Any, **more: str) -> list[torch.Tensor | None]:
        f, (n, m, k) = self.function, self._sizes

        def run() -> list[torch.Tensor | None]:
            inputs = arrays_of(self.name, self.inputs, args[:n])
            results = arrays_of(self.name, self._results, args[n : n + m])
            cotangents = arrays_of(self.name, self.outputs, args[n + m : n + m + k])
            rest = self._rest(args[0], args[n + m + k :]) | more
            grads = f.backward(inputs, results, cotangents, rest)
            given = [grads[name] if name in inputs else None for name in self.inputs]
            return tensors_of(given, args[0])

        return _where(args[0], run)

    def _forward_of_pieces(
        self, inputs: Sequence[Any], pieces: Sequence[torch.Tensor], rest: Sequence[Any]
    ) -> tuple[list[torch.Tensor | None], Array | None]:
        """Do what `_forward` does, with the last input in pieces; return them joined, if small."""
        f, first = self.function, inputs[0]

        def run() -> tuple[list[torch.Tensor | None], Array | None]:
            arrays = self._with_joined(inputs, pieces)
            found = f.forward(arrays, self._rest(first, rest))
            whole = arrays[self.inputs[-1]]
            keeps = first.is_cpu and len(pieces) > 1 and whole.size <= _KEPT
            results = tensors_of([found[name] for name in self._results], first)
            return results, whole if keeps else None

        return _where(first, run)

    def _backward_of_pieces(
        self, ctx: Any, inputs: Any, pieces: Any, saved: Any, cotangents: Any, rest: Any
    ) -> tuple[list[Any], list[Any]]:
        """Return the gradients of the whole inputs, and of the pieces of the last one."""
        f, first = self.function, inputs[0]

        def run() -> tuple[list[Any], list[Any]]:
            arrays = self._with_joined(inputs, pieces, ctx.joined)
            results = arrays_of(self.name, f.saved, saved)
            given = arrays_of(self.name, self.outputs, cotangents)
            grads = f.backward(arrays, results, given, self._rest(first, rest))
            wanted = zip(self.inputs[:-1], ctx.needs_input_grad, strict=False)
            whole = [grads[name] if want and name in arrays else None for name, want in wanted]
            parts = _split(grads[self.inputs[-1]], pieces)
            return tensors_of(whole, first), tensors_of(parts, first)

        return _where(first, run)

    def _with_joined(
        self, inputs: Any, pieces: Any, whole: Array | None = None
    ) -> dict[str, Array]:
        """Return the inputs as arrays by name, the last one joined of its pieces, if it is not."""
        if whole is None:
            return arrays_of(self.name, self.inputs, (*inputs, joined(pieces)))
        *names, last = self.inputs
        return {**arrays_of(self.name, names, inputs), last: whole}

    def _jvp(self, *args: Any) -> list[torch.Tensor | None]:
        f, n = self.function, len(self.inputs)
        self._check_second(args[0])

        def run() -> list[torch.Tensor | None]:
            inputs, tangents = (
                arrays_of(self.name, self.inputs, a) for a in (args[:n], args[n : 2 * n])
            )
            rest = self._rest(args[0], args[2 * n :])

            def outputs(*values: Any) -> list[Array]:
                found = f.forward(dict(zip(inputs, values, strict=True)), rest)
                return [found[name] for name in self.outputs]

            directions = [tangents.get(name) for name in inputs]
            return tensors_of(along(outputs, list(inputs.values()), directions)[1], args[0])

        return _where(args[0], run)

    def _second(self, *args: Any) -> list[torch.Tensor | None]:
        f, (n, _, k) = self.function, self._sizes
        self._check_second(args[0])

        def run() -> list[torch.Tensor | None]:
            inputs, cotangents, tangents, more = (
                arrays_of(self.name, names, args[i:j])
                for names, i, j in (
                    (self.inputs, 0, n),
                    (self.outputs, n, n + k),
                    (self.inputs, n + k, 2 * n + k),
                    (self.outputs, 2 * n + k, 2 * (n + k)),
                )
            )
            rest = self._rest(args[0], args[2 * (n + k) :])
            for name, a in more.items():
                if name not in cotangents:
                    cotangents[name] = a * 0

            def both(*values: Any) -> list[Array | None]:
                primals = dict(zip(inputs, values, strict=False))
                found = f.forward(primals, rest)
                given = dict(zip(cotangents, values[len(inputs) :], strict=True))
                grads = f.backward(primals, found, given, rest)
                of_inputs = [grads[name] if name in inputs else None for name in self.inputs]
                return [found[name] for name in self.outputs] + of_inputs

            directions = [tangents.get(name) for name in inputs]
            directions += [more.get(name) for name in cotangents]
            values, slopes = along(both, [*inputs.values(), *cotangents.values()], directions)
            return tensors_of([*slopes[:k], *values[k:], *slopes[k:]], args[0])

        return _where(args[0], run)

    def _check_second(self, first: torch.Tensor) -> None:
        if first.dtype not in _WITH_TANGENTS:
            raise TypeError(
                f"{self.name}: {self.inputs[0]} has dtype"
                f" {str(first.dtype).removeprefix('torch.')}, expected float32 or float64: there"
                " are no second derivatives of a half format, nor forward mode"
            )

    # Derivatives.

    def _keep(self, ctx: Any, inputs: Any, output: Any, results: int = 0) -> None:
        """Keep the arguments of a call, and of the forward op the results."""
        tensors = len(inputs) - len(self._attributes)
        kept = (*inputs[:tensors], *output[:results])
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)
        ctx.attributes = inputs[tensors:]
        ctx.set_materialize_grads(False)

    def _keep_forward(self, ctx: Any, inputs: Any, output: Any) -> None:
        _, m, k = self._sizes
        self._keep(ctx, inputs, output, m)
        ctx.mark_non_differentiable(*output[k:])

    def _vjp_forward(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (n, m, k), kept = self._sizes, ctx.saved_tensors
        inputs, extras, results = kept[:n], kept[n:-m], kept[-m:]
        found = self._derivative(
            "backward", *inputs, *results, *grads[:k], *extras, *ctx.attributes
        )
        return *_wanted(ctx, found), *[None] * (len(extras) + len(ctx.attributes))

    def _vjp_of_pieces(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (n, m, k), kept = self._sizes, ctx.saved_tensors
        e = len(self.function.extras)
        inputs, extras = kept[: n - 1], kept[n - 1 : n - 1 + e]
        results, pieces = kept[n - 1 + e : n - 1 + e + m], kept[n - 1 + e + m :]
        rest = (*extras, *ctx.attributes)
        given = (inputs[0], *grads[:k])
        if torch.is_grad_enabled() or not _plain(given) or under_vectorize(given):
            found = self._derivative(
                "backward", *inputs, joined(pieces), *results, *grads[:k], *rest
            )
            of_pieces = _split(found[n - 1], pieces)
        else:
            found, of_pieces = self._backward_of_pieces(
                ctx, inputs, pieces, results[k:], grads[:k], rest
            )
        return *_wanted(ctx, found[: n - 1]), *[None] * len(rest), *of_pieces

    def _vjp_backward(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (n, m, k), kept = self._sizes, ctx.saved_tensors
        inputs, cotangents, extras = kept[:n], kept[n + m : n + m + k], kept[n + m + k :]
        given = [None if t is None else g for t, g in zip(inputs, grads, strict=True)]
        nothing = [None] * k
        found = self._derivative(
            "second", *inputs, *cotangents, *given, *nothing, *extras, *ctx.attributes
        )
        by_cotangent = [None if t is None else a for t, a in zip(cotangents, found, strict=False)]
        by_input = _wanted(ctx, found[k + n :])
        last = len(extras) + len(ctx.attributes)
        return *by_input, *[None] * m, *by_cotangent, *[None] * last

    def _vjp_jvp(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (n, _, k), kept = self._sizes, ctx.saved_tensors
        inputs, tangents, extras = kept[:n], kept[n : 2 * n], kept[2 * n :]
        nothing = [None] * k
        found = self._derivative(
            "second", *inputs, *grads, *tangents, *nothing, *extras, *ctx.attributes
        )
        by_tangent = [
            None if t is None else g for t, g in zip(tangents, found[k : k + n], strict=True)
        ]
        last = len(extras) + len(ctx.attributes)
        return *_wanted(ctx, found[k + n :]), *by_tangent, *[None] * last

    def _derivative(self, op_kind: str, *args: Any) -> Sequence[Any]:
        """Call an op in a derivative, traced by the compiler or not."""
        if torch.compiler.is_compiling():
            return getattr(self, op_kind)(*args)  # type: ignore[no-any-return]
        if under_vectorize(args[: self._tensors[op_kind]]):
            return vectorized(functools.partial(self._derivative, op_kind), args)
        return self.call(op_kind, *args)


def joined(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors flat, one after the other."""
    return torch.cat([piece.reshape(-1) for piece in pieces])


def _split(whole: Any, pieces: Sequence[torch.Tensor]) -> list[Any]:
    """Return the parts of a flat tensor or array that belong to pieces, in their shapes."""
    parts, start = [], 0
    for piece in pieces:
        end = start + piece.numel()
        parts.append(whole[start:end].reshape(tuple(piece.shape)))
        start = end
    return parts


def _where(t: torch.Tensor, run: Callable[[], _R]) -> _R:
    """Run what an op does where a tensor is, unseen by PyTorch's compiler."""
    if "torch._dynamo" in sys.modules:
        return _untraced()(t, run)  # type: ignore[no-any-return]
    return _run(t, run)


def _run(t: torch.Tensor, run: Callable[[], _R]) -> _R:
    if not t.is_cuda:
        return run()
    with on_device_of(t):
        return run()


@functools.cache
def _untraced() -> Any:
    return torch.compiler.disable(_run)


def _wanted(ctx: Any, grads: Sequence[Any]) -> list[Any]:
    """Return the gradients that are asked for."""
    return [g if want else None for g, want in zip(grads, ctx.needs_input_grad, strict=False)]


def _result(tensors: Sequence[torch.Tensor]) -> Any:
    """Return tensors as an op does: one alone is no tuple."""
    return tuple(tensors) if len(tensors) > 1 else tensors[0]


def _refusal(name: str, why: str) -> Any:
    """Return what a function calls that is not available."""

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(f"{name}: {why}")

    return refuse


class _Functions(NamedTuple):
    """The ops of a function for autograd: forward mode and torch.func's transforms included."""

    recorded: type[torch.autograd.Function]  # the forward op without these, which takes less
    of_pieces: type[torch.autograd.Function]  # the same, with the last input in pieces
    forward: type[torch.autograd.Function]
    backward: type[torch.autograd.Function]
    jvp: type[torch.autograd.Function]
    second: type[torch.autograd.Function]


def _function(op: Op, op_kind: str, **parts: Any) -> Any:
    """Return an op of a function for autograd."""

    def forward(*args: Any) -> Sequence[torch.Tensor]:
        return op.run(op_kind, *args)

    # PyTorch asks for it in every call, and to find it out takes as long as a small op.
    forward.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    parts = {"forward": forward, "vmap": rule_of(op, op_kind), **parts}
    static = {name: staticmethod(part) for name, part in parts.items()}
    return type(f"{op.name}_{op_kind}", (torch.autograd.Function,), static)


def _functions(op: Op) -> _Functions:
    """Return the ops of a function for autograd."""
    n, m, k = op._sizes
    name = op.name
    third = _refusal(name, "there are no third derivatives")

    def recorded(ctx: Any, *args: Any) -> Any:
        results: Any = tuple(op._forward(*args))
        tensors = op._tensors["forward"]
        ctx.save_for_backward(*args[:tensors], *results)
        ctx.attributes = args[tensors:]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*results[k:])
        return results

    def of_pieces(ctx: Any, *args: Any) -> Any:
        tensors = n - 1 + len(op.function.extras)
        last = tensors + len(op._attributes)
        pieces = args[last:]
        found, ctx.joined = op._forward_of_pieces(args[: n - 1], pieces, args[n - 1 : last])
        results: Any = tuple(found)
        ctx.save_for_backward(*args[:tensors], *results, *pieces)
        ctx.attributes = args[tensors:last]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*results[k:])
        return results

    def backward_jvp(ctx: Any, *tangents: Any) -> Any:
        kept = [_primal(t) for t in ctx.saved_tensors]
        inputs, cotangents, extras = kept[:n], kept[n + m : n + m + k], kept[n + m + k :]
        along = (*tangents[:n], *tangents[n + m : n + m + k])
        found = op.call("second", *inputs, *cotangents, *along, *extras, *ctx.attributes)
        return tuple(found[k + n :])

    def forward_jvp(ctx: Any, *tangents: Any) -> Any:
        kept = [_primal(t) for t in ctx.saved_tensors]
        found = op.call("jvp", *kept[:n], *tangents[:n], *kept[n:-m], *ctx.attributes)
        return *found, *[None] * (m - k)

    kept = {"setup_context": op._keep}
    nothing = {"setup_context": lambda ctx, inputs, output: None}
    again = _refusal(name, "there is no forward mode of forward mode")
    return _Functions(
        recorded=_function(op, "forward", forward=recorded, backward=op._vjp_forward),
        of_pieces=_function(op, "forward", forward=of_pieces, backward=op._vjp_of_pieces),
        forward=_function(
            op, "forward", setup_context=op._keep_forward, backward=op._vjp_forward, jvp=forward_jvp
        ),
        backward=_function(op, "backward", **kept, backward=op._vjp_backward, jvp=backward_jvp),
        jvp=_function(op, "jvp", **kept, backward=op._vjp_jvp, jvp=again),
        second=_function(op, "second", **nothing, backward=third, jvp=third),
    )
