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

from .._ops import Schema
from .._typing import Array
from ..checks.attributes import type_shown
from ..derivatives.duals import along
from ..derivatives.tree import leaves_by_name, tree_map
from . import recording
from .arrays import arrays_of, check_device, host_arrays_of, name_of, on_device_of, tensors_of
from .batching import rule_of, under_vectorize, vectorized
from .rules import OF_INPUTS, RULES

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


def _cast(tensors: Sequence[Any]) -> Sequence[Any]:
    """Return tensors as under autocast: floating ones of its device in its dtype."""
    kind: str = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)

    def cast(t: Any) -> Any:
        narrowed = t is not None and t.is_floating_point() and t.dtype != torch.float64
        return t.to(dtype) if narrowed and t.device.type == kind else t

    return [*map(cast, tensors)]


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

    The weights of a net, its last input, are a tuple of tensors. In the ops all tensors are in one
    list: with n weights after the first one, each group of tensors by input has n more.

    Parameters
    ----------
    schema
        The package's schema of the function.
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
    takes_list = False  # whether the last input is a tuple of tensors

    def __init__(
        self,
        schema: Schema,
        results: tuple[str, ...],
        saved: tuple[str, ...],
        extras: tuple[str, ...],
        attributes: str,
        axes: dict[str, int] | None = None,
    ) -> None:
        self.schema, self.results, self.saved, self.extras = schema, results, saved, extras
        self.name, self.inputs, self.outputs = schema.name, schema.inputs, schema.outputs
        self.axes, self._declared = axes, attributes
        # The number of results of a call that autograd records.
        self.shown = len(results)
        self.attributes = [part.split()[-1] for part in attributes.split(", ")]
        # The tensors of each group, and those that each op takes, before the extras.
        inputs, outputs = self.inputs, self.outputs
        self._named = {"p": inputs, "dp": inputs, "s": saved, "y": outputs, "dy": outputs}
        self._named |= {"F": results, "G": inputs, "dF": outputs, "dG": inputs}
        self.groups: dict[str, tuple[tuple[str, ...], ...]] = {
            op_kind: tuple(self._named[group] for group in rule.takes.split())
            for op_kind, rule in RULES.items()
        }
        self._counts = {
            op_kind: sum(map(len, groups)) + len(extras) for op_kind, groups in self.groups.items()
        }
        self.library = {op_kind: self._define(op_kind) for op_kind in RULES}
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
        found: Named = self.schema.forward(**self.arguments(inputs, rest))._asdict()
        return found

    def grads_of(self, found: Any, inputs: Named, rest: Named) -> list[Any]:
        """Return the results of the gradient by input, None for those that are left out."""
        grads = self.schema.by_input(found)
        return [grads[name] if name in inputs else None for name in self.inputs]

    def gradients(
        self, inputs: Named, results: Named, cotangents: Named, rest: Named
    ) -> list[Array | None]:
        """Compute the gradients of the inputs, None for those that are left out."""
        arguments = self.gradient_arguments(inputs, results, cotangents, rest)
        return self.grads_of(self.schema.gradient(**arguments), inputs, rest)

    def more_of(self, wanted: Sequence[bool]) -> Named:
        """Return arguments that make the gradient skip what is not wanted."""
        return {}

    def shapes(self, inputs: Named, rest: Named) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the results."""
        raise NotImplementedError

    def __call__(self, *args: Any) -> Sequence[torch.Tensor]:
        """
        Return the results.

        If autograd records the call, it is one node: separate nodes that make states of zeros, or
        join weights, would take a large part of a small net's time.
        """
        last, rest = len(self.inputs) - 1, len(self.inputs) + len(self.extras)
        weights = args[last] if self.takes_list else args[last : last + 1]
        tensors = (*args[:last], *weights, *args[last + 1 : rest])
        if (
            torch.compiler.is_compiling()
            or torch._C._is_any_autocast_enabled()
            or not is_plain(tensors)
            or in_a_transform()
        ):
            return self._call_transformed(tensors, args[rest:])
        if _requires_grad(tensors):
            return self._record(args[rest:], *tensors)  # type: ignore[no-any-return]
        found: Sequence[Any] = self._results("forward", tensors, args[rest:])
        return found

    def _call_transformed(self, tensors: Sequence[Any], attributes: Any) -> Sequence[torch.Tensor]:
        """Return the results of a call that is traced or transformed."""
        refuse_torchscript(self.name)
        if any(type(t) is ExpandedWeight for t in tensors):
            raise NotImplementedError(
                f"{self.name}: PyTorch's ExpandedWeights are not supported; for gradients of each"
                " example use torch.func.vmap of torch.func.grad, or cupyrnn.vjp with"
                " weight_gradients='examples'"
            )
        self._check_inputs(tensors)
        if torch._C._is_any_autocast_enabled():
            tensors = _cast(tensors)
        if torch.compiler.is_compiling() or torch._C._is_tracing():
            return self._traced("forward", tensors, attributes)
        return self.functions["forward"].apply(attributes, *tensors)  # type: ignore[no-any-return]

    def _check_inputs(self, tensors: Sequence[Any]) -> None:
        """Check that inputs are tensors; weights after the first have been checked."""
        for name, t in zip(self.inputs, tensors, strict=False):
            if t is not None or name not in self.schema.optional:
                check_tensor(self.name, name, t)

    # Groups of tensors.

    def _more(self, op_kind: str, tensors: Sequence[Any]) -> int:
        """Return how many tensors a group by input has beyond one for each input."""
        more = len(tensors) - self._counts[op_kind]
        return more // sum(group in OF_INPUTS for group in RULES[op_kind].takes.split())

    def _split(self, groups: str, tensors: Sequence[Any], more: int) -> Groups:
        """Return tensors by the letters of their groups; extras under an empty word."""
        found, start = {}, 0
        for group in groups.split():
            end = start + len(self._named[group]) + more * (group in OF_INPUTS)
            found[group], start = tensors[start:end], end
        return {**found, "": tensors[start:]}

    def by_name(self, group: str, tensors: Sequence[Any]) -> Named:
        """Return the tensors of a group by name, weights as a tuple."""
        names = self._named[group]
        if self.takes_list and group in OF_INPUTS:
            n = len(names) - 1
            tensors = *tensors[:n], tuple(tensors[n:])
        return dict(zip(names, tensors, strict=True))

    def call(self, op_kind: str, tensors: Sequence[Any], attributes: Any) -> Sequence[Any]:
        """Call an op inside a derivative, which may be differentiated itself."""
        if torch.compiler.is_compiling():
            return self._traced(op_kind, tensors, attributes)
        if under_vectorize(tensors):
            return vectorized(lambda values: self.call(op_kind, values, attributes), tensors)
        if not is_plain(tensors) or in_a_transform() or _requires_grad(tensors):
            return self.functions[op_kind].apply(attributes, *tensors)  # type: ignore[no-any-return]
        return self._results(op_kind, tensors, attributes)

    def run(self, op_kind: str, attributes: Any, *tensors: Any) -> Sequence[torch.Tensor]:
        """Run an op below autograd."""
        if is_plain(tensors):
            return _whole(tensors[0], self._results(op_kind, tensors, attributes))
        outside = _below_autograd.set(True)
        try:
            return self._traced(op_kind, tensors, attributes)
        finally:
            _below_autograd.reset(outside)

    def _results(self, *call: Any) -> list[torch.Tensor | None]:
        """Return the results of `_computed`, hidden from PyTorch's compiler."""
        # Outside compiled code nothing needs to be hidden, and the wrapper costs 12 µs.
        seen = "torch._dynamo" in sys.modules and _frame_reader() is not None
        return (_untraced(self._computed) if seen else self._computed)(*call)  # type: ignore[no-any-return]

    def _computed(
        self, op_kind: str, tensors: Any, attributes: Any, wanted: Any = (), **more: Any
    ) -> list[torch.Tensor | None]:
        """
        Return the results of an op whose tensors are memory.

        `wanted` selects gradients, and is empty for all; `more` are arguments of the gradient.
        """
        found = None
        if not more:
            found = recording.results_of(self, op_kind, tensors, attributes, wanted)
        if found is not None:
            return found
        if op_kind in ("jvp", "second") and tensors[0].dtype not in _WITH_TANGENTS:
            dtype = name_of(tensors[0].dtype)
            raise TypeError(
                f"{self.name}: {self.inputs[0]} has dtype {dtype}, expected float32"
                " or float64: half formats have no second derivatives and no forward mode"
            )
        with on_device_of(tensors[0]):
            *groups, rest = self.named(op_kind, tensors, attributes)
            if op_kind == "forward":
                results = self.compute(groups[0], rest)
                arrays = [results[name] for name in self.results]
            elif op_kind == "backward":
                inputs, saved, cotangents = groups
                more |= self.more_of(wanted)
                arrays = self.gradients(inputs, saved, cotangents, rest | more)
            else:
                arrays = self._with_tangents(groups, rest)
            if wanted:
                arrays = [a if want else None for a, want in zip(arrays, wanted, strict=True)]
            return tensors_of(arrays, tensors[0])

    # The registration with PyTorch's dispatcher, for the compiler and other tracers.

    def _define(self, op_kind: str) -> Any:
        """
        Return an op of PyTorch's library.

        It takes a list of the tensors that are there, and a text with "1" for each of them and "0"
        for each one that is left out: `torch.jit.trace` has no lists with missing tensors.
        """
        name = self.name + ("" if op_kind == "forward" else f"_{op_kind}")
        schema = f"(Tensor[] tensors, str given, {self._declared}) -> Tensor[]"
        tags = torch.Tag.pt2_compliant_tag
        torch.library.define(f"cupyrnn::{name}", schema, lib=_LIBRARY, tags=tags)

        def traced(compute: Callable[..., Sequence[torch.Tensor]]) -> Callable[..., Any]:
            def call(tensors: Sequence[Any], given: str, *attributes: Any) -> list[torch.Tensor]:
                # Ops in the dispatcher have no forward mode: tangents would be zeros.
                if _in_forward_mode() and not _below_autograd.get():
                    raise NotImplementedError(
                        f"{self.name}: there is no forward mode in torch.compile"
                    )
                return list(compute(all_of(tensors, given), attributes))

            return call

        def run(tensors: Sequence[Any], attributes: Any) -> Sequence[torch.Tensor]:
            return _whole(tensors[0], self._results(op_kind, tensors, attributes))

        def recorded(tensors: Sequence[Any], attributes: Any) -> Sequence[torch.Tensor]:
            if _requires_grad(tensors):
                return self.functions[op_kind].apply(attributes, *tensors)  # type: ignore[no-any-return]
            with torch._C._AutoDispatchBelowAutograd():
                return self._traced(op_kind, tensors, attributes)

        def exported(tensors: Sequence[Any], attributes: Any) -> Sequence[torch.Tensor]:
            if torch.onnx.is_in_onnx_export() and not Op.translated:
                raise NotImplementedError(
                    f"{self.name}: torch.onnx.export needs its translation: pass"
                    " custom_translation_table=cupyrnn.torch.onnx_translations()"
                )
            return self._fake(op_kind, tensors, attributes)

        _LIBRARY.impl(name, traced(run), "CompositeExplicitAutograd")
        _LIBRARY.impl(name, traced(recorded), "Autograd")
        torch.library.register_fake(f"cupyrnn::{name}", traced(exported), lib=_LIBRARY)
        return getattr(torch.ops.cupyrnn, name).default

    def _traced(
        self, op_kind: str, tensors: Sequence[Any], attributes: Any
    ) -> Sequence[torch.Tensor]:
        """Call an op of PyTorch's library."""
        given = "".join(["0" if t is None else "1" for t in tensors])
        present = [t for t in tensors if t is not None]
        return tuple(self.library[op_kind](present, given, *attributes))

    def _fake(self, op_kind: str, tensors: Any, attributes: Any) -> tuple[torch.Tensor, ...]:
        """Return tensors of the shapes of an op's results."""
        rule, first = RULES[op_kind], tensors[0]
        inputs = self._split("p", tensors, self._more(op_kind, tensors))["p"]
        of_inputs = [(0,) if t is None else t.shape for t in inputs]
        shapes = {"G": of_inputs, "dG": of_inputs}
        if "F" in rule.gives:
            by_name = {n: a for n, a in self.by_name("p", inputs).items() if a is not None}
            for name, a in by_name.items():
                for t in a if isinstance(a, tuple) else (a,):
                    check_device(self.name, (name, t), (self.inputs[0], first))
            of = self.shapes(by_name, dict(zip(self.attributes, attributes, strict=True)))
            shapes |= {g: [of[name] for name in self._named[g]] for g in ("F", "dF")}
        return tuple(first.new_empty(s) for group in rule.gives.split() for s in shapes[group])

    # The computations of the ops on tensors; an input that is left out is None.

    def _rest(self, first: torch.Tensor, extras: Sequence[Any], attributes: Any) -> Named:
        """Return the extras and the attributes by name."""
        rest: Named = host_arrays_of(self.name, self.extras, extras)
        rest.update(zip(self.attributes, attributes, strict=True))
        for name in ("cell_clip", "proj_clip") if first.dtype is torch.bfloat16 else ():
            if rest.get(name) is not None:
                # Rounded to the dtype, so that a saved state compares equal to it.
                rest[name] = float(torch.tensor(rest[name], dtype=first.dtype))
        return rest

    def named(self, op_kind: str, tensors: Sequence[Any], attributes: Any) -> list[Named]:
        """Return what an op takes by name, after checks: arrays, group by group, and the rest."""
        self._check_inputs(tensors)
        groups = self._split(RULES[op_kind].takes, tensors, self._more(op_kind, tensors))
        extras = groups.pop("")
        found = [arrays_of(self.name, self.by_name(group, a)) for group, a in groups.items()]
        return [*found, self._rest(tensors[0], extras, attributes)]

    def by_example(self, tensors: Sequence[Any], attributes: Any) -> Sequence[Any] | None:
        """
        Return the gradients by example, which have no derivative; None if one may be requested.

        The gradients of weights have an axis B in front.
        """
        if not is_plain(tensors) or in_a_transform() or _requires_grad(tensors):
            return None
        found = self._computed("backward", tensors, attributes, weight_gradients="examples")
        return _whole(tensors[0], found)

    def _with_tangents(self, groups: Sequence[Named], rest: Named) -> list[Array | None]:
        """Return the results of jvp or second, whose groups are arguments, then their tangents."""
        n, k = len(groups) // 2, len(self.outputs)
        arguments, tangents = groups[:n], groups[n:]
        for cotangents, more in zip(arguments[1:], tangents[1:], strict=True):
            for name, a in more.items():
                if name not in cotangents:
                    cotangents[name] = a * 0

        def function(*values: Any) -> list[Array | None]:
            inputs, *all_cotangents = _like(arguments, values)
            found = self.compute(inputs, rest)
            outputs = [found[name] for name in self.outputs]
            for cotangents in all_cotangents:
                outputs += self.gradients(inputs, found, cotangents, rest)
            return outputs

        pairs = zip(arguments, tangents, strict=True)
        directions = [d for pair in pairs for d in _directions(*pair)]
        values, slopes = along(function, _leaves(arguments), directions)
        return [*slopes[:k], *values[k:], *slopes[k:]]

    # Derivatives.

    def _keep(self, op_kind: str, ctx: Any, inputs: Any, output: Any) -> None:
        """Save the arguments of a call, of the forward op also the results that are needed."""
        ctx.attributes, *tensors = inputs
        if op_kind == "forward":
            n = len(tensors) - len(self.extras)
            tensors[n:n] = output[-len(self.saved) :]
            ctx.mark_non_differentiable(*output[len(self.outputs) :])
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    def _kept(self, op_kind: str, ctx: Any) -> tuple[Groups, int]:
        """Return what was saved of a call by group, and how many more weights there are."""
        kept, is_forward = ctx.saved_tensors, op_kind == "forward"
        more = self._more(op_kind, kept[len(self.saved) :] if is_forward else kept)
        return self._split(RULES[op_kind].takes + " s" * is_forward, kept, more), more

    def _transpose(self, op_kind: str, ctx: Any, grads: Any, needed: Any) -> list[Any]:
        """Return the gradients of an op's tensors that are needed, from those of its results."""
        rule, k = RULES[op_kind], len(self.outputs)
        (kept, more), (by, takes) = self._kept(op_kind, ctx), rule.transposed_by
        w = grads[:k]
        if rule.gives == "G":  # inputs that are left out have no directions
            w = self._even(kept["p"], grads, more)
        extras = kept.pop("")
        kept |= {"w": w, "0": (None,) * k}
        given = itertools.chain(*(kept[group] for group in takes.split()))
        found = self.call(by, [*given, *extras], ctx.attributes)
        results = self._split(RULES[by].gives, found, more)
        of = {**dict.fromkeys(rule.takes.split(), ""), **dict(rule.gradients)}
        grads = []
        for group, result in of.items():
            grads += results[result] if result else [None] * len(kept[group])
        pairs = itertools.zip_longest(grads, needed[: len(grads) + len(extras)])
        return [g if want else None for g, want in pairs]

    def _along(self, op_kind: str, ctx: Any, _: Any, *tangents: Any) -> tuple[Any, ...]:
        """Return the tangents of an op's results, from those of its arguments."""
        rule = RULES[op_kind]
        (kept, more), (by, takes, gives) = self._kept(op_kind, ctx), rule.differentiated_by
        kept = {group: tuple(map(_primal, tensors)) for group, tensors in kept.items()}
        for group, part in self._split(rule.takes, tangents, more).items():
            kept[f"d{group}"] = self._even(kept["p"], part, more) if group == "p" else part
        given = itertools.chain(*(kept[group] for group in [*takes.split(), ""]))
        found = self.call(by, [*given], ctx.attributes)
        found = self._split(RULES[by].gives, found, more)[gives]
        return *found, *[None] * (len(self._named[rule.gives]) - len(found))

    def _even(self, inputs: Sequence[Any], tangents: Sequence[Any], more: int) -> list[Any]:
        """Return the tangents of inputs: none of those left out, of all weights or of none."""
        found = [None if a is None else t for a, t in zip(inputs, tangents, strict=True)]
        n = len(inputs) - more - 1
        if more and any(t is not None for t in found[n:]):
            pairs = zip(inputs[n:], found[n:], strict=True)
            found[n:] = [torch.zeros_like(a) if t is None else t for a, t in pairs]
        return found

    def _vjp_recorded(self, ctx: Any, *grads: Any) -> Sequence[Any]:
        kept, grads = ctx.saved_tensors, grads[: len(self.outputs)]
        e, needed = len(self.extras), ctx.needs_input_grad[1:]
        plain = not torch.is_grad_enabled() and is_plain((kept[0], *grads)) and not in_a_transform()
        if plain and not under_vectorize(grads):
            end = len(kept) - e
            tensors = (*kept[:end], *grads, *kept[end:])
            wanted = needed[: end - len(self.saved)]
            found: Any = self._results("backward", tensors, ctx.attributes, wanted)
            return None, *found, *[None] * e
        return None, *self._transpose("forward", ctx, grads, needed)


def all_of(tensors: Sequence[Any], given: str) -> list[Any]:
    """Return the tensors of a call of PyTorch's library, None for those that are left out."""
    left = iter(tensors)
    return [next(left) if mark == "1" else None for mark in given]


def _whole(like: torch.Tensor, found: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Return a tensor for each result, an empty one for a missing result."""
    return tuple(like.new_empty(0) if t is None else t for t in found)


def _leaves(arrays: Any) -> list[Any]:
    """Return the arrays in tuples and dicts in order."""
    return [a for _, a in leaves_by_name("", arrays)]


def _like(arrays: Any, values: Sequence[Any]) -> Any:
    """Return values in the structure of arrays."""
    left = iter(values)
    return tree_map(lambda _: next(left), arrays)


def _directions(arrays: Named, tangents: Named) -> list[Any]:
    """Return the tangents of arrays in order, None for those without one."""
    return _leaves({n: tangents.get(n, tree_map(lambda _: None, a)) for n, a in arrays.items()})


def _refusal(name: str, why: str) -> Any:
    """Return a function that raises an error for a derivative that is not available."""

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(f"{name}: {why}")

    return refuse


def _function(op: Op, op_kind: str, **parts: Any) -> Any:
    """Return an op of a function for autograd; it takes the attributes, then the tensors."""

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

    def recorded(ctx: Any, attributes: Any, *tensors: Any) -> Any:
        results: Any = tuple(op._results("forward", tensors, attributes))
        end = len(tensors) - e
        ctx.save_for_backward(*tensors[:end], *results[-s:], *tensors[end:])
        ctx.attributes = attributes
        ctx.set_materialize_grads(False)
        if op.shown > k:
            ctx.mark_non_differentiable(*results[k:])
        return results[: op.shown]

    functions = {"recorded": _function(op, "forward", forward=recorded, backward=op._vjp_recorded)}
    again = _refusal(name, "there is no forward mode of forward mode")
    for op_kind, rule in RULES.items():
        parts = {"setup_context": lambda ctx, inputs, output: None, "backward": third, "jvp": third}
        if rule.gradients:

            def backward(ctx: Any, *grads: Any, op_kind: str = op_kind) -> Any:
                return None, *op._transpose(op_kind, ctx, grads, ctx.needs_input_grad[1:])

            parts |= {"setup_context": partial(op._keep, op_kind), "backward": backward}
            parts["jvp"] = again
        if rule.differentiated_by[0]:
            parts["jvp"] = partial(op._along, op_kind)
        functions[op_kind] = _function(op, op_kind, **parts)
    return functions
