"""
The package's functions as ops for PyTorch's compiler and as functions for its autograd.

`rules.py` says which ops a function becomes, and how they are differentiated.

A call that is not traced skips PyTorch's dispatcher, and skips autograd if no input requires a
gradient: both take longer than a small op.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch.nn.utils._expanded_weights.expanded_weights_impl import ExpandedWeight

from .._ops import Record
from .._typing import Array
from ..checks.attributes import type_shown
from ..derivatives.duals import along
from . import laid_out
from .arrays import (
    arrays_of,
    check_device,
    host_arrays_of,
    joined,
    name_of,
    on_device_of,
    tensors_of,
)
from .batching import rule_of, under_vectorize, vectorized
from .laid_out import Zeros
from .rules import RULES

# Arguments by name, without those that are None.
Named: TypeAlias = dict[str, Any]
Groups: TypeAlias = "dict[str, Sequence[Any]]"

_F = TypeVar("_F", bound=Callable[..., Any])

_LIBRARY = torch.library.Library("cupyrnn", "FRAGMENT")


# The dtypes with second derivatives: those with a complex dtype of the same precision.
_WITH_TANGENTS = (torch.float32, torch.float64)


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})


def check_tensor(op: str, name: str, t: Any) -> None:
    """Check that an argument is a tensor."""
    kind = type(t)
    if kind is torch.Tensor or kind is torch.nn.Parameter or isinstance(t, torch.Tensor):
        return
    raise TypeError(f"{op}: {name} is {type_shown(t)}, expected a torch.Tensor")


def refuse_torchscript(op: str) -> None:
    """Raise an error under the TorchScript exporter, which cannot write the ops as nodes."""
    if torch.compiler.is_compiling():  # the compiler cannot trace the rest
        return
    if torch._C._is_tracing() and torch.onnx.is_in_onnx_export():
        raise NotImplementedError(
            f"{op}: torch.onnx.export with dynamo=False cannot export it; use dynamo=True and"
            " custom_translation_table=cupyrnn.torch.onnx_translations()"
        )


def is_plain(tensors: Sequence[Any]) -> bool:
    """Return whether a call is not traced: PyTorch's tracers have modes or tensor subclasses."""
    first = tensors[0]
    return (
        _PLAIN.issuperset(map(type, tensors))
        and first is not None
        and not (first.is_meta or torch._C._len_torch_dispatch_stack() or torch._C._is_tracing())
    )


def _in_forward_mode() -> bool:
    """Return whether forward mode is active; True if PyTorch does not say."""
    level: int = getattr(torch.autograd.forward_ad, "_current_level", 0)
    return level >= 0


def in_a_transform() -> bool:
    """Return whether forward mode or one of torch.func's transforms is active."""
    return torch._C._are_functorch_transforms_active() or _in_forward_mode()


# Whether this thread is inside one of our autograd functions, which defines the derivatives.
_below_autograd: ContextVar[bool] = ContextVar("below_autograd", default=False)


def _primal(t: Any) -> Any:
    """Return a tensor without its tangent of the active forward mode."""
    return t if t is None else torch.autograd.forward_ad.unpack_dual(t).primal


def _cast(args: Sequence[Any], tensors: int) -> list[Any]:
    """Return arguments as under autocast: floating tensors of its device in its dtype."""
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
        for t in tensors:  # for so few, a loop takes half the time of any()
            if t is not None and t.requires_grad:
                return True
    return False


_untraced: Any = functools.cache(torch.compiler.disable)
# Returns the compiler's callback for frames of this thread: None outside compiled code.
_frame_reader: Any = getattr(
    torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: "unknown"
)


class Op:
    """
    A function of the package as ops of PyTorch; called with tensors and attributes in order.

    Parameters
    ----------
    record
        The package's record of the function.
    results
        The names of the results, those with a gradient first.
    saved
        The results that the gradient takes: the last ones.
    extras
        Tensors without a gradient, all optional.
    attributes
        Types and names, as in a schema of PyTorch.
    axes
        The axis B of the tensors that have one, if a longer B is equivalent to more calls.
    """

    # Whether `onnx_translations` was called: without its table no export to ONNX ends well.
    translated = False
    forward: Any  # the ops, by the names of `RULES`
    backward: Any

    def __init__(
        self,
        record: Record,
        results: tuple[str, ...],
        saved: tuple[str, ...],
        extras: tuple[str, ...],
        attributes: str,
        axes: dict[str, int] | None = None,
    ) -> None:
        self.record, self.results, self.saved, self.extras = record, results, saved, extras
        self.name, self.inputs, self.outputs = record.name, record.inputs, record.outputs
        self.axes, self._declared = axes, attributes
        # The number of results of a call that autograd records.
        self.shown = len(results)
        # Arguments that make the gradient skip the first input.
        self.without_input: Named = {}
        self._attributes = [part.split()[-1] for part in attributes.split(", ")]
        # The tensors of each group, and those that each op takes, before the extras.
        inputs, outputs = self.inputs, self.outputs
        self._named = {"p": inputs, "dp": inputs, "s": saved, "y": outputs, "dy": outputs}
        self._named |= {"F": results, "G": inputs, "dF": outputs, "dG": inputs}
        self.groups: dict[str, tuple[tuple[str, ...], ...]] = {
            op_kind: tuple(self._named[group] for group in rule.takes.split())
            for op_kind, rule in RULES.items()
        }
        self._define()
        self.functions = _functions(self)
        # Skips PyTorch's check for function transforms, which have been ruled out here.
        base: type[Any] = torch.autograd.Function
        self._record: Any = super(base, self.functions["recorded"]).apply  # type: ignore[misc]

    # The methods that differ between kinds of functions; arrays are passed by name.

    def arguments(self, inputs: Named, rest: Named) -> Named:
        """Return the arguments of the function."""
        raise NotImplementedError

    def gradient_arguments(
        self, inputs: Named, results: Named, cotangents: Named, rest: Named
    ) -> Named:
        """Return the arguments of the function's gradient."""
        raise NotImplementedError

    def compute(self, inputs: Named, rest: Named) -> Named:
        """Compute the results from inputs, extras and attributes."""
        found: Named = self.record.forward(**self.arguments(inputs, rest))._asdict()
        return found

    def gradients_of(self, found: Any, inputs: Named, rest: Named) -> Named:
        """Return the results of the function's gradient by the names of the inputs."""
        return self.record.by_input(found)

    def gradients(self, inputs: Named, results: Named, cotangents: Named, rest: Named) -> Named:
        """Return the gradients by the names of the inputs; for pieces, one gradient each."""
        arguments = self.gradient_arguments(inputs, results, cotangents, rest)
        return self.gradients_of(self.record.gradient(**arguments), inputs, rest)

    def shapes(self, inputs: Named, rest: Named) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the results."""
        raise NotImplementedError

    def __call__(self, *args: Any, zeros: Zeros = ()) -> Sequence[torch.Tensor]:
        """
        Return the results.

        The last input may be a tuple of pieces, which are flattened and joined. If autograd records
        the call, it is one node, because separate nodes for joining and splitting would take a
        large part of a small net's time. States of zeros are no tensors for the same reason.
        """
        last, rest = len(self.inputs) - 1, len(self.inputs) + len(self.extras)
        pieces = args[last]
        pieces = pieces if type(pieces) is tuple and pieces else (pieces,)
        tensors = (*args[:last], *pieces, *args[last + 1 : rest])
        if (
            torch.compiler.is_compiling()
            or torch._C._is_any_autocast_enabled()
            or not is_plain(tensors)
            or in_a_transform()
        ):
            return self._call_transformed([*args], pieces, zeros)
        if _requires_grad(tensors):
            return self._record((args[rest:], zeros), *tensors)  # type: ignore[no-any-return]
        found: Sequence[Any] = self._results("forward", tensors, args[rest:], zeros)
        return found

    def _call_transformed(
        self, args: list[Any], pieces: Sequence[Any], zeros: Zeros
    ) -> Sequence[torch.Tensor]:
        """Return the results of a call that is traced or transformed."""
        refuse_torchscript(self.name)
        for t in (*args[: len(self.inputs) - 1], *pieces):
            if type(t) is ExpandedWeight:
                raise NotImplementedError(
                    f"{self.name}: PyTorch's ExpandedWeights are not supported; for"
                    " gradients of each example use torch.func.vmap of torch.func.grad, or"
                    " cupyrnn.vjp with weight_gradients='examples'"
                )
        args = _filled(args, zeros)
        self._check_inputs(args)
        args[len(self.inputs) - 1] = joined(pieces)
        if torch._C._is_any_autocast_enabled():
            args = _cast(args, len(args) - len(self._attributes))
        if torch.compiler.is_compiling() or torch._C._is_tracing():
            return self.forward(*args)  # type: ignore[no-any-return]
        return self.functions["forward"].apply(*args)  # type: ignore[no-any-return]

    def _check_inputs(self, args: Sequence[Any]) -> None:
        """Check that inputs, or the pieces of the last one, are tensors."""
        for name, t in zip(self.inputs, args, strict=False):
            is_joined = type(t) is tuple and t and all(isinstance(p, torch.Tensor) for p in t)
            if not is_joined and (t is not None or name not in self.record.optional):
                check_tensor(self.name, name, t)

    def _split(self, groups: str, values: Sequence[Any]) -> tuple[Groups, Sequence[Any]]:
        """Return tensors by the letters of their groups, and the rest."""
        found, start = {}, 0
        for group in groups.split():
            end = start + len(self._named[group])
            found[group], start = values[start:end], end
        return found, values[start:]

    def grouped(self, op_kind: str, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the arguments of an op group by group, and then the rest."""
        found, rest = self._split(RULES[op_kind].takes, values)
        return [*found.values(), rest]

    def _count(self, op_kind: str) -> int:
        """Return how many of the arguments of an op are tensors."""
        return sum(map(len, self.groups[op_kind])) + len(self.extras)

    def values(self, op_kind: str, tensors: Sequence[Any], zeros: Zeros) -> list[Any]:
        """Return tensors as an op takes them: with a tuple of several pieces, and with zeros."""
        last = len(self.inputs) - 1
        end = last + 1 + len(tensors) - self._count(op_kind)
        pieces: Any = tuple(tensors[last:end])
        pieces = pieces if len(pieces) > 1 else pieces[0]
        return _filled([*tensors[:last], pieces, *tensors[end:]], zeros)

    def call(self, op_kind: str, *args: Any) -> Sequence[Any]:
        """Call an op inside a derivative, which may be differentiated itself."""
        count = self._count(op_kind)
        tensors, attributes = args[:count], args[count:]
        if not is_plain(tensors) or in_a_transform() or _requires_grad(tensors):
            return self.functions[op_kind].apply(*args)  # type: ignore[no-any-return]
        return self._results(op_kind, tensors, attributes)

    def run(self, op_kind: str, *args: Any) -> Sequence[torch.Tensor]:
        """Run an op below autograd."""
        count = self._count(op_kind)
        tensors, attributes = args[:count], args[count:]
        if is_plain(tensors):
            return self._whole(args[0], self._results(op_kind, tensors, attributes))
        outside = _below_autograd.set(True)
        try:
            found = getattr(self, op_kind)(*args)
        finally:
            _below_autograd.reset(outside)
        results: tuple[torch.Tensor, ...] = found if isinstance(found, tuple) else (found,)
        return results

    def _results(self, *call: Any) -> list[torch.Tensor | None]:
        """Return the results of `_computed`, hidden from PyTorch's compiler."""
        # Outside compiled code nothing needs to be hidden, and the wrapper costs 12 µs.
        seen = "torch._dynamo" in sys.modules and _frame_reader() is not None
        return (_untraced(self._computed) if seen else self._computed)(*call)  # type: ignore[no-any-return]

    def _computed(
        self, op_kind: str, tensors: Any, attributes: Any, zeros: Zeros = (), wanted: Any = ()
    ) -> list[torch.Tensor | None]:
        """
        Return the results of an op whose tensors are memory.

        There may be pieces among the tensors; a gradient has one result for each. `wanted` selects
        gradients, and is empty for all.
        """
        found = laid_out.results_of(self, op_kind, tensors, attributes, zeros, wanted)
        if found is not None:
            return found
        values = *self.values(op_kind, tensors, zeros), *attributes
        more = {"wanted": wanted} if wanted else {}
        results: list[torch.Tensor | None] = getattr(self, f"_{op_kind}")(*values, **more)
        return results

    # The registration with PyTorch's dispatcher, for the compiler and other tracers.

    def _define(self) -> None:
        schemas = {
            "p": [f"Tensor{'?' * (n in self.record.optional)} {n}" for n in self.inputs],
            "s": [f"Tensor {name}_" for name in self.saved],
            "y": [f"Tensor? {name}_grad" for name in self.outputs],
            "dp": [f"Tensor? {name}_tangent" for name in self.inputs],
            "dy": [f"Tensor? {name}_grad_tangent" for name in self.outputs],
        }
        last = [f"Tensor? {name}" for name in self.extras] + [self._declared]
        for op_kind, rule in RULES.items():
            arguments = [*itertools.chain(*map(schemas.__getitem__, rule.takes.split())), *last]
            count = sum(len(self._named[group]) for group in rule.gives.split())
            op = self._op(op_kind, arguments, count, partial(self._fake, op_kind))
            setattr(self, op_kind, op)
            vjp, keep = _refusal(self.name, "there are no third derivatives"), None
            if op_kind in ("forward", "backward"):
                vjp, keep = partial(self._transpose, op_kind), partial(self._keep, op_kind)
            torch.library.register_autograd(op, vjp, setup_context=keep, lib=_LIBRARY)

    def _op(self, op_kind: str, arguments: list[str], count: int, fake: Any) -> Any:
        """Return an op of PyTorch."""
        name = self.name + ("" if op_kind == "forward" else f"_{op_kind}")
        schema = f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * count)})"
        torch.library.define(
            f"cupyrnn::{name}", schema, lib=_LIBRARY, tags=torch.Tag.pt2_compliant_tag
        )

        def run(*args: Any) -> Sequence[torch.Tensor]:
            count = self._count(op_kind)
            return self._whole(args[0], self._results(op_kind, args[:count], args[count:]))

        def traced(compute: Callable[..., Sequence[torch.Tensor]]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                # Ops in the dispatcher have no forward mode: tangents would be zeros.
                # PyTorch switches forward mode off in the function that it makes from
                # register_autograd, where the tangents are lost. So its state does not tell.
                if _in_forward_mode() and not _below_autograd.get():
                    raise NotImplementedError(
                        f"{self.name}: there is no forward mode in torch.compile"
                    )
                found = compute(*args)
                return tuple(found) if len(found) > 1 else found[0]  # a single result is no tuple

            return call

        def exported(*args: Any) -> Sequence[torch.Tensor]:
            if torch.onnx.is_in_onnx_export() and not Op.translated:
                raise NotImplementedError(
                    f"{self.name}: torch.onnx.export needs its translation: pass"
                    " custom_translation_table=cupyrnn.torch.onnx_translations()"
                )
            return fake(*args)  # type: ignore[no-any-return]

        _LIBRARY.impl(name, traced(run), "CompositeExplicitAutograd")
        torch.library.register_fake(f"cupyrnn::{name}", traced(exported), lib=_LIBRARY)
        return getattr(torch.ops.cupyrnn, name).default

    def _whole(self, like: torch.Tensor, found: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Return a tensor for each result, an empty one for a missing result."""
        return tuple(like.new_empty(0) if t is None else t for t in found)

    def _fake(self, op_kind: str, *args: Any) -> tuple[torch.Tensor, ...]:
        """Return tensors of the shapes of an op's results."""
        tensors, *_, rest = self.grouped(op_kind, args)
        inputs = dict(zip(self.inputs, tensors, strict=True))
        shapes = {n: torch.Size([0]) if t is None else t.shape for n, t in inputs.items()}
        gives = RULES[op_kind].gives
        if "F" in gives:
            for name, t in inputs.items():
                if t is not None:
                    check_device(self.name, (name, t), (self.inputs[0], args[0]))
            attributes = dict(zip(self._attributes, rest[len(self.extras) :], strict=True))
            shapes |= self.shapes(inputs, attributes)
        names = itertools.chain(*map(self._named.__getitem__, gives.split()))
        return tuple(args[0].new_empty(shapes[name]) for name in names)

    # The computations of the ops on tensors; an input that is left out is None.

    def _rest(self, first: torch.Tensor, values: Sequence[Any]) -> Named:
        """Return the extras and the attributes by name."""
        e = len(self.extras)
        rest: Named = host_arrays_of(self.name, self.extras, values[:e])
        rest.update(zip(self._attributes, values[e:], strict=True))
        for name in ("cell_clip", "proj_clip") if first.dtype is torch.bfloat16 else ():
            if rest.get(name) is not None:
                # Rounded to the dtype, so that a saved state compares equal to it.
                rest[name] = float(torch.tensor(rest[name], dtype=first.dtype))
        return rest

    def named(self, op_kind: str, args: Sequence[Any]) -> list[Named]:
        """Return what an op takes by name, after checks: arrays, group by group, and the rest."""
        self._check_inputs(args)
        *groups, rest = self.grouped(op_kind, args)
        found: list[Named] = [
            arrays_of(self.name, names, tensors)
            for names, tensors in zip(self.groups[op_kind], groups, strict=True)
        ]
        return [*found, self._rest(args[0], rest)]

    def _forward(self, *args: Any) -> list[torch.Tensor | None]:
        """Return the results."""
        with on_device_of(args[0]):
            results = self.compute(*self.named("forward", args))
            return tensors_of([results[name] for name in self.results], args[0])

    def by_example(self, *args: Any) -> Sequence[Any] | None:
        """
        Return the gradients by example, which have no derivative; None if one may be requested.

        The gradients of weights have an axis B in front.
        """
        tensors = args[: self._count("backward")]
        if not is_plain(tensors) or in_a_transform() or _requires_grad(tensors):
            return None
        return self._whole(args[0], self._backward(*args, weight_gradients="examples"))

    def _backward(
        self, *args: Any, wanted: tuple[bool, ...] = (), **more: Any
    ) -> list[torch.Tensor | None]:
        """Return the gradients, for pieces one each; `wanted` selects some, or is empty for all."""
        if wanted and not wanted[0]:
            more |= self.without_input
        with on_device_of(args[0]):
            inputs, results, cotangents, rest = self.named("backward", args)
            grads = self.gradients(inputs, results, cotangents, rest | more)
            *first, last = [grads[name] if name in inputs else None for name in self.inputs]
            arrays = [*first, *(last if isinstance(last, list) else [last])]
            if wanted:
                arrays = [a if want else None for a, want in zip(arrays, wanted, strict=True)]
            return tensors_of(arrays, args[0])

    def _jvp(self, *args: Any) -> list[torch.Tensor | None]:
        self._check_second(args[0])
        with on_device_of(args[0]):
            inputs, tangents, rest = self.named("jvp", args)

            def outputs(*values: Any) -> list[Array]:
                found = self.compute(dict(zip(inputs, values, strict=True)), rest)
                return [found[name] for name in self.outputs]

            directions = [tangents.get(name) for name in inputs]
            return tensors_of(along(outputs, list(inputs.values()), directions)[1], args[0])

    def _second(self, *args: Any) -> list[torch.Tensor | None]:
        self._check_second(args[0])
        with on_device_of(args[0]):
            k = len(self.outputs)
            inputs, cotangents, tangents, more, rest = self.named("second", args)
            for name, a in more.items():
                if name not in cotangents:
                    cotangents[name] = a * 0

            def both(*values: Any) -> list[Array | None]:
                primals = dict(zip(inputs, values, strict=False))
                found = self.compute(primals, rest)
                weights = dict(zip(cotangents, values[len(inputs) :], strict=True))
                grads = self.gradients(primals, found, weights, rest)
                of_inputs = [grads[name] if name in inputs else None for name in self.inputs]
                return [found[name] for name in self.outputs] + of_inputs

            directions = [tangents.get(name) for name in inputs]
            directions += [more.get(name) for name in cotangents]
            values, slopes = along(both, [*inputs.values(), *cotangents.values()], directions)
            return tensors_of([*slopes[:k], *values[k:], *slopes[k:]], args[0])

    def _check_second(self, first: torch.Tensor) -> None:
        if first.dtype not in _WITH_TANGENTS:
            raise TypeError(
                f"{self.name}: {self.inputs[0]} has dtype {name_of(first.dtype)}, expected float32"
                " or float64: half formats have no second derivatives and no forward mode"
            )

    # Derivatives.

    def _keep(self, op_kind: str, ctx: Any, inputs: Any, output: Any) -> None:
        """Save the arguments of a call, of the forward op also the results that are needed."""
        if op_kind == "forward":
            n = len(self.inputs)
            inputs = (*inputs[:n], *output[-len(self.saved) :], *inputs[n:])
            ctx.mark_non_differentiable(*output[len(self.outputs) :])
        tensors = len(inputs) - len(self._attributes)
        ctx.save_for_backward(*inputs[:tensors])
        ctx.save_for_forward(*inputs[:tensors])
        ctx.attributes = inputs[tensors:]
        ctx.set_materialize_grads(False)

    def _kept(self, op_kind: str, ctx: Any) -> tuple[Groups, Sequence[Any]]:
        """Return what was saved of a call: tensors by group, extras and attributes."""
        groups = RULES[op_kind].takes + " s" * (op_kind == "forward")
        return self._split(groups, (*ctx.saved_tensors, *ctx.attributes))

    def _transpose(self, op_kind: str, ctx: Any, *grads: Any) -> Sequence[Any]:
        """Return the gradients of an op's arguments, from those of its results."""
        rule, k = RULES[op_kind], len(self.outputs)
        (kept, rest), (by, takes) = self._kept(op_kind, ctx), rule.transposed_by
        w = grads[:k]
        if rule.gives == "G":  # inputs that are left out have no directions
            w = tuple(None if t is None else g for t, g in zip(kept["p"], grads, strict=True))
        kept |= {"w": w, "0": (None,) * k}
        given = itertools.chain(*(kept[group] for group in takes.split()))
        found, _ = self._split(RULES[by].gives, self._derivative(by, *given, *rest))
        of = {**dict.fromkeys(rule.takes.split(), ""), **dict(rule.gradients)}
        parts = (found.get(g, (None,) * len(self._named[group])) for group, g in of.items())
        return _wanted(ctx, [*itertools.chain(*parts)])

    def _along(self, op_kind: str, ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        """Return the tangents of an op's results, from those of its arguments."""
        rule = RULES[op_kind]
        (kept, rest), (by, takes, gives) = self._kept(op_kind, ctx), rule.differentiated_by
        kept = {group: tuple(map(_primal, tensors)) for group, tensors in kept.items()}
        kept |= {f"d{group}": part for group, part in self._split(rule.takes, tangents)[0].items()}
        given = itertools.chain(*(kept[group] for group in takes.split()))
        found = self._split(RULES[by].gives, self.call(by, *given, *rest))[0][gives]
        return *found, *[None] * (len(self._named[rule.gives]) - len(found))

    def _vjp_recorded(self, ctx: Any, *grads: Any) -> Sequence[Any]:
        kept, (attributes, zeros), grads = ctx.saved_tensors, ctx.rest, grads[: len(self.outputs)]
        count, s, e = len(kept), len(self.saved), len(self.extras)
        tensors = (*kept[: count - e], *grads, *kept[count - e :])
        seen = (kept[0], *grads)
        plain = not torch.is_grad_enabled() and is_plain(seen) and not in_a_transform()
        if plain and not under_vectorize(grads):
            wanted = ctx.needs_input_grad[1 : 1 + count - s - e]
            found: Any = self._results("backward", tensors, attributes, zeros, wanted)
            return None, *found, *[None] * e
        values, last = self.values("backward", tensors, zeros), len(self.inputs) - 1
        pieces = values[last] if isinstance(values[last], tuple) else (values[last],)
        values[last] = joined(pieces)
        found = self._derivative("backward", *values, *attributes)
        if len(pieces) > 1:
            parts = found[last].split([piece.numel() for piece in pieces])
            parts = [p.view(piece.shape) for p, piece in zip(parts, pieces, strict=True)]
            found = [*found[:last], *parts]
        return _wanted(ctx, (None, *found))

    def _derivative(self, op_kind: str, *args: Any) -> Sequence[Any]:
        """Call an op in a derivative, whether the compiler traces it or not."""
        if torch.compiler.is_compiling():
            return getattr(self, op_kind)(*args)  # type: ignore[no-any-return]
        if under_vectorize(args[: self._count(op_kind)]):
            return vectorized(partial(self._derivative, op_kind), args)
        return self.call(op_kind, *args)


def _filled(values: list[Any], zeros: Zeros) -> list[Any]:
    """Return the arguments of a call with tensors for the states that are zeros."""
    for n, shape in zeros:
        values[n] = values[0].new_zeros(shape)
    return values


def _wanted(ctx: Any, grads: Sequence[Any]) -> tuple[Any, ...]:
    """Return the requested gradients, None for the other arguments."""
    return tuple(
        g if want else None for g, want in itertools.zip_longest(grads, ctx.needs_input_grad)
    )


def _refusal(name: str, why: str) -> Any:
    """Return a function that raises an error for a derivative that is not available."""

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(f"{name}: {why}")

    return refuse


def _function(op: Op, op_kind: str, **parts: Any) -> Any:
    """Return an op of a function for autograd."""

    def forward(*args: Any) -> Sequence[torch.Tensor]:
        return op.run(op_kind, *args)

    # PyTorch reads it in every call; computing it takes as long as a small op.
    forward.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    parts = {"forward": forward, "vmap": rule_of(op, op_kind), **parts}
    static = {name: staticmethod(part) for name, part in parts.items()}
    return type(f"{op.name}_{op_kind}", (torch.autograd.Function,), static)


def _functions(op: Op) -> dict[str, type[torch.autograd.Function]]:
    """
    Return the ops of a function for autograd: forward mode and torch.func's transforms included.

    Autograd records the forward op without these, which is faster.
    """
    name, k, s, e = op.name, len(op.outputs), len(op.saved), len(op.extras)
    third = _refusal(name, "there are no third derivatives")

    def recorded(ctx: Any, rest: Any, *tensors: Any) -> Any:
        results: Any = tuple(op._results("forward", tensors, *rest))
        end = len(tensors) - e
        ctx.save_for_backward(*tensors[:end], *results[-s:], *tensors[end:])
        ctx.rest = rest
        ctx.set_materialize_grads(False)
        if op.shown > k:
            ctx.mark_non_differentiable(*results[k:])
        return results[: op.shown]

    functions = {"recorded": _function(op, "forward", forward=recorded, backward=op._vjp_recorded)}
    again = _refusal(name, "there is no forward mode of forward mode")
    for op_kind, rule in RULES.items():
        parts = {"setup_context": lambda ctx, inputs, output: None, "backward": third, "jvp": third}
        if rule.gradients:
            parts["setup_context"] = partial(op._keep, op_kind)
            parts["backward"] = partial(op._transpose, op_kind)
            parts["jvp"] = again
        if rule.differentiated_by[0]:
            parts["jvp"] = partial(op._along, op_kind)
        functions[op_kind] = _function(op, op_kind, **parts)
    return functions
