"""
The ops as PyTorch's own: custom ops for its compiler and functions for its autograd.

Each function of the package becomes four custom ops, of which PyTorch's first and second
derivatives are made, forward and backward. With F the function of its inputs p, and G(p, y) the
gradient of sum(y*F(p))::

    forward   p -> F, and what G needs
    backward  p, y -> G
    jvp       p, dp -> the tangent of F
    second    p, y, dp, dy -> the tangent of F, G, the tangent of G

The last two are calls of `cupyrnn.jvp`. The derivatives of each by its arguments, given gradients
w of what it returns, are among them as the matrix of second derivatives is symmetric::

    forward   G(p, w)
    backward  by p the tangent of G along dp = w, by y that of F
    jvp       by p the tangent of G with y = w, by dp G(p, w)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from .derivatives import jvp

if TYPE_CHECKING:
    from ._arrays import Array

    # Arguments by name, without those that are None.
    Named: TypeAlias = dict[str, Any]

# What a call may consist of that nobody traces: PyTorch's tracers have subclasses of tensors.
_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None), bool, int, float, str}

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Function(NamedTuple):
    """What PyTorch is told of a function: names and shapes, and how it is called."""

    name: str
    inputs: tuple[str, ...]  # that have a gradient
    optional: tuple[str, ...]  # of these
    outputs: tuple[str, ...]  # that have a gradient
    saved: tuple[str, ...]  # what the gradient needs beside
    extras: tuple[str, ...]  # tensors without a gradient, all optional
    attributes: tuple[str, ...]  # types and names
    forward: Callable[[Named, Named], Named]  # arrays, attributes -> arrays
    backward: Callable[[Named, Named, Named, Named], Named]  # and results, cotangents -> by input
    shapes: Callable[[Named, Named], dict[str, tuple[int, ...]]]


def array_of(t: torch.Tensor) -> Array:
    """Return the memory of a tensor as an array of NumPy or CuPy."""
    array: Array
    t = t.detach()
    if t.is_cuda:
        import cupy

        array = cupy.from_dlpack(t)
        return array
    t = t.resolve_neg() if t.is_neg() else t
    if t.dtype != torch.bfloat16:
        array = t.numpy()
        return array
    import ml_dtypes

    # NumPy has no bfloat16 of its own.
    bits: Array = t.view(torch.int16).numpy()
    return bits.view(ml_dtypes.bfloat16)


def tensor_of(a: Any, like: torch.Tensor) -> torch.Tensor:
    """Return the memory of an array as a tensor."""
    if like.is_cuda:
        return torch.utils.dlpack.from_dlpack(a)
    a = np.asarray(a, order="C")
    if a.dtype.kind == "V":
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


@contextmanager
def _stream_of(t: torch.Tensor) -> Iterator[None]:
    """Have CuPy work on PyTorch's device and stream."""
    if t.device.type != "cuda":
        yield
        return
    import cupy

    stream = torch.cuda.current_stream(t.device)
    with cupy.cuda.Device(t.device.index), cupy.cuda.ExternalStream(stream.cuda_stream):
        yield


def _check(op: str, tensors: dict[str, torch.Tensor | None], extras: Sequence[str]) -> None:
    """Check what the arrays cannot tell: that all are tensors of one place."""
    given = {n: t for n, t in tensors.items() if t is not None}
    first = next(iter(given))
    device = given[first].device
    if device.type not in ("cpu", "cuda"):
        raise TypeError(f"{op}: {first} is on device {device}, expected cpu or cuda")
    for name, t in given.items():
        expected = torch.device("cpu") if name in extras else device
        if t.device != expected:
            like = "" if name in extras else f" like {first}"
            raise TypeError(f"{op}: {name} is on device {t.device}, expected {expected}{like}")
        if name not in extras and t.dtype not in _DTYPES:
            raise TypeError(
                f"{op}: {name} has dtype {t.dtype}, expected one of float16, bfloat16, float32,"
                " float64"
            )


def _differentiated(args: Sequence[Any]) -> bool:
    """Return whether autograd is to see a call: in doubt it is."""
    if getattr(torch.autograd.forward_ad, "_current_level", 0) >= 0:
        return True
    if not _PLAIN.issuperset(map(type, args)):
        return True
    return torch.is_grad_enabled() and any(
        a.requires_grad for a in args if isinstance(a, torch.Tensor)
    )


class Op:
    """A function of the package as ops of PyTorch; called with tensors and attributes in order."""

    def __init__(self, function: Function) -> None:
        self.function = f = function
        n, m, k = len(f.inputs), len(f.outputs) + len(f.saved), len(f.outputs)
        self._sizes = n, m, k
        self._attributes = [part.split()[-1] for part in f.attributes]
        self._calls: dict[Any, Callable[..., Any]] = {}
        inputs = [("Tensor? " if name in f.optional else "Tensor ") + name for name in f.inputs]
        results = [f"Tensor {name}_" for name in (*f.outputs, *f.saved)]
        cotangents = [f"Tensor? {name}_grad" for name in f.outputs]
        tangents = [f"Tensor? {name}_tangent" for name in f.inputs]
        more = [f"Tensor? {name}_grad_tangent" for name in f.outputs]
        last = [f"Tensor? {name}" for name in f.extras] + list(f.attributes)
        self.forward = self._op("", self._forward, inputs + last, m)
        backward = inputs + results + cotangents + last
        self.backward = self._op("_backward", self._backward, backward, n)
        self.jvp = self._op("_jvp", self._jvp, inputs + tangents + last, k)
        second = inputs + cotangents + tangents + more + last
        self.second = self._op("_second", self._second, second, k + 2 * n)
        self.forward.register_fake(self._fake_forward)
        self.backward.register_fake(lambda *args: self._like(args[:n]))
        self.jvp.register_fake(
            lambda *args: _result(self._fake_forward(*args[:n], *args[2 * n :])[:k])
        )
        self.second.register_fake(self._fake_second)
        # For the compiler, which follows these; without it autograd calls the functions below.
        self.forward.register_autograd(self._vjp_forward, setup_context=self._keep(m))
        self.backward.register_autograd(self._vjp_backward, setup_context=self._keep(0))
        self.functions = _functions(self)

    def __call__(self, *args: Any) -> tuple[torch.Tensor, ...]:
        """Return the outputs and what is saved."""
        f = self.function
        names = (*f.inputs, *f.extras)
        _check(f.name, dict(zip(names, args, strict=False)), f.extras)
        if torch.compiler.is_compiling():
            results: tuple[torch.Tensor, ...] = self.forward(*args)
        elif _differentiated(args):
            results = self.functions.forward.apply(*args)
        else:
            results = self.run(self.forward, *args)
        return results

    def _op(self, suffix: str, run: Any, arguments: list[str], count: int) -> Any:
        name = self.function.name + suffix
        schema = f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * count)})"

        def call(*args: Any) -> Any:
            with _stream_of(args[0]):
                found = run(*args)
            return _result([tensor_of(a, args[0]) for a in found])

        op = torch.library.custom_op(f"cupyrnn::{name}", call, mutates_args=(), schema=schema)
        self._calls[op] = call
        return op

    def run(self, op: Any, *args: Any) -> tuple[torch.Tensor, ...]:
        """Call an op of these, past PyTorch's dispatcher where nothing is there to see it."""
        if _get_current_dispatch_mode() is not None or not _PLAIN.issuperset(map(type, args)):
            return _results(op(*args))
        return _results(self._calls.get(op, op)(*args))

    # What the ops compute, on arrays.

    def _named(self, names: Sequence[str], values: Sequence[Any]) -> Named:
        pairs = zip(names, values, strict=True)
        return {n: array_of(t) for n, t in pairs if t is not None}

    def _rest(self, values: Sequence[Any]) -> Named:
        """Return the extras and the attributes by name."""
        f, extras = self.function, len(self.function.extras)
        attributes = dict(zip(self._attributes, values[extras:], strict=True))
        missing: Named = dict.fromkeys(f.extras)
        return missing | self._named(f.extras, values[:extras]) | attributes

    def _forward(self, *args: Any) -> list[Array]:
        f, n = self.function, len(self.function.inputs)
        found = f.forward(self._named(f.inputs, args[:n]), self._rest(args[n:]))
        return [found[name] for name in (*f.outputs, *f.saved)]

    def _by_input(self, grads: Named, given: Named, like: Array) -> list[Array]:
        """Return a gradient for each input, an empty one for those that are not given."""
        xp: Any = np if isinstance(like, np.ndarray) else __import__("cupy")
        return [
            grads[name] if name in given else xp.empty(0, like.dtype)
            for name in self.function.inputs
        ]

    def _backward(self, *args: Any) -> list[Array]:
        f, (n, m, k) = self.function, self._sizes
        inputs = self._named(f.inputs, args[:n])
        results = self._named((*f.outputs, *f.saved), args[n : n + m])
        cotangents = self._named(f.outputs, args[n + m : n + m + k])
        grads = f.backward(inputs, results, cotangents, self._rest(args[n + m + k :]))
        return self._by_input(grads, inputs, inputs[f.inputs[0]])

    def _jvp(self, *args: Any) -> list[Array]:
        f, n = self.function, len(self.function.inputs)
        inputs, tangents = (self._named(f.inputs, a) for a in (args[:n], args[n : 2 * n]))
        rest = self._rest(args[2 * n :])

        def outputs(inputs: Named) -> list[Any]:
            found = f.forward(inputs, rest)
            return [found[name] for name in f.outputs]

        along: list[Array] = jvp(outputs, (inputs,), (_filled(inputs, tangents),))[1]
        return along

    def _second(self, *args: Any) -> list[Array]:
        f, (n, _, k) = self.function, self._sizes
        parts = [args[i:j] for i, j in ((0, n), (n, n + k), (n + k, 2 * n + k))]
        inputs = self._named(f.inputs, parts[0])
        cotangents = self._named(f.outputs, parts[1])
        tangents = self._named(f.inputs, parts[2])
        more = self._named(f.outputs, args[2 * n + k : 2 * (n + k)])
        rest = self._rest(args[2 * (n + k) :])
        for name, a in more.items():
            if name not in cotangents:
                cotangents[name] = a * 0

        def both(inputs: Named, cotangents: Named) -> Any:
            found = f.forward(inputs, rest)
            grads = f.backward(inputs, found, cotangents, rest)
            like = inputs[f.inputs[0]]
            return [found[name] for name in f.outputs], self._by_input(grads, inputs, like)

        directions = _filled(inputs, tangents), _filled(cotangents, more)
        (_, grads), (along, grads_along) = jvp(both, (inputs, cotangents), directions)
        return [*along, *grads, *grads_along]

    # Shapes alone.

    def _fake_forward(self, *args: Any) -> tuple[torch.Tensor, ...]:
        f, n = self.function, len(self.function.inputs)
        inputs = dict(zip(f.inputs, args[:n], strict=True))
        extras = len(f.extras)
        rest = dict(zip(self._attributes, args[n + extras :], strict=True))
        shapes = f.shapes(inputs, rest)
        return tuple(args[0].new_empty(shapes[name]) for name in (*f.outputs, *f.saved))

    def _like(self, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        return tuple(inputs[0].new_empty(0 if t is None else t.shape) for t in inputs)

    def _fake_second(self, *args: Any) -> tuple[torch.Tensor, ...]:
        n, _, k = self._sizes
        outputs = self._fake_forward(*args[:n], *args[2 * (n + k) :])[:k]
        return (*outputs, *self._like(args[:n]), *self._like(args[:n]))

    # Derivatives. Each is given what it calls: an op, or the function of autograd that has one.

    def _keep(self, outputs: int) -> Callable[..., None]:
        """Return what keeps the tensors and the attributes of a call, and the first outputs."""

        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            kept = [*inputs, *output[:outputs]]
            tensors = [a for a in kept if isinstance(a, torch.Tensor)]
            ctx.others = [None if isinstance(a, torch.Tensor) else (a,) for a in kept]
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)
            ctx.set_materialize_grads(False)
            if outputs:
                ctx.mark_non_differentiable(*output[len(self.function.outputs) :])

        return setup_context

    def _kept(self, ctx: Any) -> list[Any]:
        tensors = iter(ctx.saved_tensors)
        return [next(tensors) if other is None else other[0] for other in ctx.others]

    def _vjp_forward(self, ctx: Any, *grads: Any, call: Any = None) -> tuple[Any, ...]:
        n, m, k = self._sizes
        kept = self._kept(ctx)
        inputs, rest, results = kept[:n], kept[n:-m], kept[-m:]
        found = (call or self.backward)(*inputs, *results, *grads[:k], *rest)
        return *self._wanted(ctx, found), *[None] * len(rest)

    def _wanted(self, ctx: Any, grads: Sequence[Any]) -> list[Any]:
        """Return the gradients that are asked for."""
        wanted = ctx.needs_input_grad[: len(grads)]
        return [g if want else None for g, want in zip(grads, wanted, strict=True)]

    def _vjp_backward(self, ctx: Any, *grads: Any, call: Any = None) -> tuple[Any, ...]:
        n, m, k = self._sizes
        kept = self._kept(ctx)
        inputs, cotangents, rest = kept[:n], kept[n + m : n + m + k], kept[n + m + k :]
        given = [None if t is None else g for t, g in zip(inputs, grads, strict=True)]
        found = (call or self.second)(*inputs, *cotangents, *given, *[None] * k, *rest)
        by_cotangent = [None if t is None else a for t, a in zip(cotangents, found, strict=False)]
        by_input = self._wanted(ctx, found[k + n :])
        return *by_input, *[None] * m, *by_cotangent, *[None] * len(rest)

    def _vjp_jvp(self, ctx: Any, *grads: Any, call: Any) -> tuple[Any, ...]:
        n, _, k = self._sizes
        kept = self._kept(ctx)
        inputs, tangents, rest = kept[:n], kept[n : 2 * n], kept[2 * n :]
        found = call(*inputs, *grads, *tangents, *[None] * k, *rest)
        by_tangent = [
            None if t is None else g for t, g in zip(tangents, found[k : k + n], strict=True)
        ]
        return *self._wanted(ctx, found[k + n :]), *by_tangent, *[None] * len(rest)


def _result(tensors: Sequence[torch.Tensor]) -> Any:
    """Return tensors as an op does: one alone is no tuple."""
    return tuple(tensors) if len(tensors) > 1 else tensors[0]


def _results(result: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors that an op returned."""
    return result if isinstance(result, tuple) else (result,)


def _filled(values: Named, tangents: Named) -> Named:
    """Return a tangent for each array, None for zeros."""
    return {name: tangents.get(name) for name in values}


class _Functions(NamedTuple):
    """The ops of a function for autograd, forward mode included."""

    forward: type[torch.autograd.Function]
    backward: type[torch.autograd.Function]
    jvp: type[torch.autograd.Function]
    second: type[torch.autograd.Function]


def _called(op: Op, which: str) -> Any:
    """Return an op of a function as autograd's forward."""

    def forward(*args: Any) -> tuple[torch.Tensor, ...]:
        return op.run(getattr(op, which), *args)

    # PyTorch asks for it in every call, and to find it out takes as long as a small op.
    forward.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    return staticmethod(forward)


def _functions(op: Op) -> _Functions:
    """Return the ops of a function for autograd."""
    n, m, k = op._sizes
    name = op.function.name

    class Second(torch.autograd.Function):
        forward: Any = _called(op, "second")
        setup_context: Any = staticmethod(lambda ctx, inputs, output: None)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise NotImplementedError(f"{name}: there are no third derivatives")

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise NotImplementedError(f"{name}: there are no third derivatives")

    class Jvp(torch.autograd.Function):
        forward: Any = _called(op, "jvp")
        setup_context: Any = staticmethod(op._keep(0))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return op._vjp_jvp(ctx, *grads, call=Second.apply)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise NotImplementedError(f"{name}: there is no forward mode of forward mode")

    class Backward(torch.autograd.Function):
        forward: Any = _called(op, "backward")
        setup_context: Any = staticmethod(op._keep(0))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return op._vjp_backward(ctx, *grads, call=Second.apply)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            kept = op._kept(ctx)
            inputs, cotangents, rest = kept[:n], kept[n + m : n + m + k], kept[n + m + k :]
            more = tangents[n + m : n + m + k]
            found = Second.apply(*inputs, *cotangents, *tangents[:n], *more, *rest)
            return tuple(found[k + n :])

    class Forward(torch.autograd.Function):
        forward: Any = _called(op, "forward")
        setup_context: Any = staticmethod(op._keep(m))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return op._vjp_forward(ctx, *grads, call=Backward.apply)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            kept = op._kept(ctx)
            found = Jvp.apply(*kept[:n], *tangents[:n], *kept[n:-m])
            return *found, *[None] * (m - k)

    return _Functions(Forward, Backward, Jvp, Second)
