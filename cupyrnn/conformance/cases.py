"""
The cases: small nodes, each of whose attributes changes the outputs.

Inputs are multiples of 1/64 below 4, so that every dtype can hold them. They are drawn again until
a runtime that ignores any attribute is detected, and until no number is so close to a jump that
rounding decides its side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from . import truth
from .truth import Arrays

# Half the distance from 1 to the next number.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
# The allowed error, in units of rounding times the sensitivity of a case. A runtime rounds in each
# of some tens of operations, and its functions have errors of a few units.
ALLOWED = 8
DRAWS = 40  # attempts to draw a case


class CasePlan(NamedTuple):
    """A case before its numbers are drawn."""

    op_type: str
    attributes: dict[str, Any]
    optional: frozenset[str]  # inputs beyond X, W and R
    sizes: tuple[int, int, int, int] = (4, 3, 3, 5)  # T, B, I, H
    dtype: str = "float32"
    some_of_no_steps: bool = False  # a sequence of length 0
    saturated: bool = False
    gradients: bool = False

    @property
    def D(self) -> int:
        """The number of directions."""
        return 1 + (self.attributes.get("direction") == "bidirectional")


class Case(NamedTuple):
    """A node, or a call of an op of TensorFlow, with its inputs and the right results."""

    name: str
    plan: Any  # a CasePlan, or an OpPlan of `tf_ops`
    features: tuple[str, ...]
    inputs: Arrays  # float64 and integers, by the names of the standard or of TensorFlow
    outputs: Arrays  # float64
    tolerance: dict[str, float]  # the largest error allowed, by output
    cotangents: Arrays  # of each output, empty without gradients
    gradients: Arrays  # of each input
    gradient_tolerance: dict[str, float]


def cases(op_type: str | None = None) -> Iterator[Case]:
    """Yield all cases, or those of one operator. They are the same in every run."""
    for n, plan in enumerate(plans()):
        if op_type in (None, plan.op_type):
            case = draw(n, plan)
            if case is not None:
                yield case


def plans() -> Iterator[CasePlan]:
    """Yield the plans of all cases, group by group."""
    groups = _shared, _activations, _clips, _coupled, _sizes, _saturated, _dtypes, _everything
    return itertools.chain.from_iterable(group() for group in groups)


_Attributes: TypeAlias = dict[str, Any]
_DIRECTIONS: list[_Attributes] = [{}, {"direction": "reverse"}, {"direction": "bidirectional"}]
_LAYOUTS: list[_Attributes] = [{}, {"layout": 1}]
_EITHER = (False, True)
_PLACES = {"LSTM": "fgh", "GRU": "fg", "RNN": "f"}
_STATES = {"LSTM": ("initial_h", "initial_c"), "GRU": ("initial_h",), "RNN": ("initial_h",)}
# Parameters that are not the defaults.
_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "Affine": (0.5, 0.125),
    "LeakyRelu": (0.25, None),
    "ThresholdedRelu": (0.5, None),
    "ScaledTanh": (1.25, 0.75),
    "HardSigmoid": (0.375, 0.625),
    "Elu": (0.5, None),
}
# The standard is ambiguous about their defaults, so no case uses them.
_NO_DEFAULTS = ("Affine", "ScaledTanh")


class _Kind(NamedTuple):
    """An operator, with attributes and inputs that only it has."""

    op_type: str
    own: _Attributes
    more: frozenset[str]

    def plan(
        self, attributes: _Attributes, *, bias: bool = True, states: bool = False,
        lengths: bool = False, **fields: Any,
    ) -> CasePlan:  # fmt: skip
        """Return a plan with these attributes and inputs, besides the kind's own."""
        wanted = {"B": bias, "sequence_lens": lengths}
        wanted |= dict.fromkeys(_STATES[self.op_type], states)
        optional = self.more | {name for name, is_wanted in wanted.items() if is_wanted}
        return CasePlan(self.op_type, self.own | attributes, optional, **fields)

    def activated(
        self, attributes: _Attributes, places: dict[int, str], parameters: bool
    ) -> _Attributes:
        """Return attributes with activations in these places, the same in all directions."""
        names = list(truth.DEFAULTS[self.op_type])
        for place, name in places.items():
            names[place] = name
        names *= 1 + (attributes.get("direction") == "bidirectional")
        return attributes | {"activations": names} | (_parameters(names) if parameters else {})


_KINDS = (
    _Kind("LSTM", {}, frozenset()),
    _Kind("LSTM", {}, frozenset({"P"})),
    _Kind("GRU", {}, frozenset()),
    _Kind("GRU", {"linear_before_reset": 1}, frozenset()),
    _Kind("RNN", {}, frozenset()),
)


def _shared() -> Iterator[CasePlan]:
    """Features of all operators: directions, layouts, lengths, states, biases."""
    for kind, direction, layout in itertools.product(_KINDS, _DIRECTIONS, _LAYOUTS):
        for lengths, states, bias in itertools.product((0, 1, 2), _EITHER, _EITHER):
            plan = kind.plan(direction | layout, bias=bias, states=states, lengths=lengths > 0)
            yield plan._replace(some_of_no_steps=lengths == 2, gradients=lengths == 1 and bias)
    for kind, direction in itertools.product(_KINDS[:2], _DIRECTIONS):
        plan = kind.plan(direction)
        for state in ("initial_h", "initial_c"):
            yield plan._replace(optional=plan.optional | {state})


def _parameters(names: Sequence[str]) -> _Attributes:
    """Return activation_alpha and activation_beta of these activations, other than the defaults."""
    lists = {}
    for n, attribute in enumerate(("activation_alpha", "activation_beta")):
        values = [_PARAMETERS[name][n] for name in names if name in _PARAMETERS]
        if known := [value for value in values if value is not None]:
            lists[attribute] = known
    return lists


def _activations() -> Iterator[CasePlan]:
    """Every activation in every place, with parameters and with defaults; different directions."""
    for kind, direction in itertools.product(_KINDS, _DIRECTIONS[::2]):
        for place, default in enumerate(truth.DEFAULTS[kind.op_type]):
            for name, parameters in itertools.product(truth.ACTIVATIONS, _EITHER):
                exists = name in _PARAMETERS if parameters else name not in _NO_DEFAULTS
                if exists and (name != default or kind.more):
                    attributes = kind.activated(direction, {place: name}, parameters)
                    yield kind.plan(attributes, gradients=not direction)
        # Spelled in lower and in upper case.
        for spelled in (str.lower, str.upper):
            attributes = kind.activated(direction, {0: "HardSigmoid"}, True)
            attributes["activations"] = [spelled(name) for name in attributes["activations"]]
            yield kind.plan(attributes)
    for kind in _KINDS:
        n = len(_PLACES[kind.op_type])
        for first, second in itertools.pairwise(truth.ACTIVATIONS):
            names = [first] * n + [second] * n
            both = {"direction": "bidirectional", "activations": names}
            yield kind.plan(both | _parameters(names))


def _clips() -> Iterator[CasePlan]:
    for kind, direction, layout in itertools.product(_KINDS, _DIRECTIONS, _LAYOUTS):
        for clip, lengths in itertools.product((0.125, 0.375), _EITHER):
            attributes = direction | {"clip": clip} | layout
            yield kind.plan(attributes, lengths=lengths, gradients=not lengths)
    for kind, name in itertools.product(_KINDS, truth.ACTIVATIONS):
        # The clip must exceed the alpha of a ThresholdedRelu, below which it is 0.
        clip = 0.75 if name == "ThresholdedRelu" else 0.25
        yield kind.plan(kind.activated({"clip": clip}, {0: name}, name in _PARAMETERS))


def _coupled() -> Iterator[CasePlan]:
    for direction, layout, kind, clip, lengths, states in itertools.product(
        _DIRECTIONS, _LAYOUTS, _KINDS[:2], ({}, {"clip": 0.25}), _EITHER, _EITHER
    ):
        attributes = {"input_forget": 1} | direction | layout | clip
        gradients = lengths and not layout
        yield kind.plan(attributes, states=states, lengths=lengths, gradients=gradients)


def _sizes() -> Iterator[CasePlan]:
    """Sizes of 1, and sizes that are no multiples of the sizes kernels are made for."""
    sizes = [
        (1, 1, 1, 1), (1, 1, 3, 5), (1, 4, 3, 5), (2, 1, 1, 3), (2, 5, 1, 1), (7, 1, 3, 1),
        (3, 2, 6, 7), (3, 3, 7, 6), (2, 2, 5, 17), (2, 3, 17, 5), (2, 2, 3, 33), (13, 2, 2, 3),
    ]  # fmt: skip
    for kind, direction, size in itertools.product(_KINDS, _DIRECTIONS, sizes):
        yield kind.plan(direction, states=True, sizes=size)


def _saturated() -> Iterator[CasePlan]:
    """Large inputs: exp overflows in float16, and gates are 0 and 1."""
    names = ("Sigmoid", "Tanh", "HardSigmoid", "Softsign", "ScaledTanh")
    for kind, direction, name in itertools.product(_KINDS, _DIRECTIONS, names):
        attributes = kind.activated(direction, {0: name}, name in _PARAMETERS)
        yield kind.plan(attributes, saturated=True)


def _dtypes() -> Iterator[CasePlan]:
    for dtype, kind, direction in itertools.product(
        ("float64", "float16", "bfloat16"), _KINDS, _DIRECTIONS
    ):
        for lengths, states in itertools.product(_EITHER, _EITHER):
            plan = kind.plan(direction, states=states, lengths=lengths)
            yield plan._replace(dtype=dtype, gradients=lengths)
        for name in ("Relu", "HardSigmoid", "Elu", "Softplus"):
            attributes = kind.activated(direction, {0: name}, name in _PARAMETERS)
            # In half formats a clip makes too little difference beside rounding.
            clip = {"clip": 0.25} if dtype == "float64" else {}
            yield kind._replace(more=frozenset()).plan(attributes | clip, dtype=dtype)


def _everything() -> Iterator[CasePlan]:
    """Random combinations of all features."""
    rng = np.random.default_rng(18)
    for _ in range(500):
        kind = _KINDS[rng.integers(len(_KINDS))]
        direction = _DIRECTIONS[rng.integers(3)]
        attributes = direction | ({"layout": 1} if rng.random() < 0.3 else {})
        names: dict[int, str] = {}
        if rng.random() < 0.8:
            places = range(len(_PLACES[kind.op_type]))
            names = {n: truth.ACTIVATIONS[rng.integers(11)] for n in places}
            attributes = kind.activated(attributes, names, True)
        if rng.random() < 0.3:
            attributes["clip"] = 0.75 if "ThresholdedRelu" in names.values() else 0.25
        if kind.op_type == "LSTM" and rng.random() < 0.3:
            attributes["input_forget"] = 1
        bias, states, lengths = (bool(rng.random() < share) for share in (0.7, 0.5, 0.4))
        plan = kind.plan(attributes, bias=bias, states=states, lengths=lengths)
        T, B, I, H = (int(rng.choice(v)) for v in ((2, 3, 5), (2, 3), (2, 3, 5), (3, 5)))
        dtype = str(rng.choice(["float32", "float32", "float64"]))
        gradients = bool(rng.random() < 0.3)
        yield plan._replace(sizes=(T, B, I, H), dtype=dtype, gradients=gradients)


def features(plan: CasePlan) -> tuple[str, ...]:
    """Return the features of a case that a runtime may lack."""
    a, optional, (T, B, _, H) = plan.attributes, plan.optional, plan.sizes
    valued = ("direction", "layout", "linear_before_reset")
    has = {
        plan.op_type: True,
        plan.dtype: plan.dtype != "float32",
        **{f"{name}={a.get(name)}": name in a for name in valued},
        **{name: name in a for name in ("input_forget", "clip")},
        **dict.fromkeys(_of_activations(plan), True),
        "peepholes": "P" in optional,
        "no bias": "B" not in optional,
        **{name: name in optional for name in ("initial_h", "initial_c", "sequence_lens")},
        "sequence_lens with a 0": "sequence_lens" in optional and plan.some_of_no_steps,
        **{"T=1": T == 1, "B=1": B == 1, "H=33": H == 33},
        "saturated": plan.saturated,
    }
    return tuple(feature for feature, present in has.items() if present)


def _of_activations(plan: CasePlan) -> Iterator[str]:
    """Yield the features of a case's activations."""
    a, by_direction = plan.attributes, truth.functions(plan.op_type, plan.D, plan.attributes)
    names = [[function[0] for function in functions] for functions in by_direction]
    places = _PLACES[plan.op_type], zip(*names, strict=True), truth.DEFAULTS[plan.op_type]
    for n, (place, used, default) in enumerate(zip(*places, strict=True)):
        changed = [name for name in dict.fromkeys(used) if name != default]
        yield from ["activations"] * (not n and names != [[*truth.DEFAULTS[plan.op_type]]] * plan.D)
        yield from (f"{place}={name}" for name in changed)
    if not {*a.get("activations", ())} <= {*truth.ACTIVATIONS}:
        yield "spelling of activations"
    for name in sorted({*itertools.chain(*names)} & truth.PARAMETERS.keys()):
        defaults = zip(("alpha", "beta"), truth.PARAMETERS[name], strict=True)
        left_out = [n for n, v in defaults if v is not None and f"activation_{n}" not in a]
        yield from [f"{name} with default {' and '.join(left_out)}"] * bool(left_out)
    if plan.D == 2 and by_direction[0] != by_direction[1]:
        yield "directions with other activations"


def draw(n: int, plan: CasePlan) -> Case | None:
    """Return the n-th case, drawn until every attribute matters; None if that never happens."""
    rounding = ROUNDING[plan.dtype]

    def run(arrays: Arrays) -> Arrays:
        return truth.run(plan.op_type, arrays, plan.attributes).outputs

    for attempt in range(DRAWS):
        rng = np.random.default_rng([n, attempt])
        inputs = _inputs(plan, rng)
        right = truth.outputs_of(plan.op_type, inputs, plan.attributes)
        # Rounding moves inputs of a jump by some units. A bend changes only slopes.
        if right.jump < 64 * rounding or right.largest > (120 if plan.saturated else 30):
            continue
        if plan.gradients and right.bend < 2.0**-10:
            continue
        changes = truth.sensitivity(run, inputs, rng)
        tolerance = tolerances(rounding, right.outputs, changes)
        if matters(right.outputs, tolerance, _ignoring(plan, inputs)):
            break
    else:
        return None
    names = features(plan)
    if plan.op_type == "LSTM" and "clip" in plan.attributes:
        # C rarely reaches the bound, because its terms are bounded too.
        without_it = truth.outputs_of(plan.op_type, inputs, plan.attributes, unclipped=2)
        names += ("clip of C",) * matters(right.outputs, tolerance, [without_it.outputs])
    cotangents, gradients = {}, {}
    if plan.gradients and plan.dtype in ("float32", "float64"):
        cotangents = {name: numbers(rng, 64, *a.shape) for name, a in right.outputs.items()}
        gradients = {
            name: truth.gradient(run, inputs, name, cotangents)
            for name, a in inputs.items()
            if a.dtype.kind != "i"
        }
    allowed = tolerances(4 * rounding * (1 + max(changes.values())), gradients)
    return Case(
        f"{plan.op_type.lower()}_{n:04d}", plan, names, inputs, right.outputs, tolerance,
        cotangents, gradients, allowed,
    )  # fmt: skip


def tolerances(
    rounding: float, right: Arrays, changes: Mapping[str, float] = MappingProxyType({})
) -> dict[str, float]:
    """Return the largest error allowed of each array, from its `sensitivity` and its size."""
    return {
        name: ALLOWED * rounding * (1 + changes.get(name, 0) + float(np.abs(a).max(initial=0)))
        for name, a in right.items()
    }


def matters(right: Arrays, tolerance: dict[str, float], wrong: Iterable[Arrays]) -> bool:
    """Return whether all of these wrong outputs differ clearly from the right ones."""
    return max(tolerance.values()) <= 0.5 and all(
        any(np.abs(a - outputs[name]).max() > 2 * tolerance[name] for name, a in right.items())
        for outputs in wrong
    )


def numbers(rng: np.random.Generator, most: int, *shape: int) -> Any:
    """Return multiples of 1/64 up to most/64 in size, without 0."""
    return rng.integers(1, most + 1, shape) * rng.choice([-1.0, 1.0], shape) / 64


def _inputs(plan: CasePlan, rng: np.random.Generator) -> Arrays:
    (T, B, I, H), D = plan.sizes, plan.D
    G = len(truth.GATES[plan.op_type])
    # So that sums of so many terms have a size of about one.
    of_weights = 255 if plan.saturated else int(96 / math.sqrt(max(I, H) / 4 + 1))
    inputs = {
        "X": numbers(rng, 192 if plan.saturated else 96, T, B, I),
        "W": numbers(rng, of_weights, D, G * H, I),
        "R": numbers(rng, of_weights, D, G * H, H),
        "B": numbers(rng, 64, D, 2 * G * H),
        "initial_h": numbers(rng, 64, D, B, H),
        "initial_c": numbers(rng, 64, D, B, H),
        "P": numbers(rng, 64, D, 3 * H),
    }
    lengths = rng.integers(1, T + 1, B)
    lengths[rng.integers(B)] = T  # some run to the end, and some do not
    if B > 1:
        lengths[(int(lengths.argmax()) + 1) % B] = 0 if plan.some_of_no_steps else max(1, T - 2)
    if plan.attributes.get("layout"):
        for name in ("X", "initial_h", "initial_c"):
            inputs[name] = inputs[name].swapaxes(0, 1).copy()
    order = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
    inputs["sequence_lens"] = lengths.astype(np.int32)
    return {name: inputs[name] for name in order if name in plan.optional or name in "XWR"}


def _ignoring(plan: CasePlan, inputs: Arrays) -> Iterator[Arrays]:
    """Yield the outputs of runtimes that each ignore one thing."""
    a = plan.attributes

    def wrong(inputs: Arrays, attributes: _Attributes, unclipped: int | None = None) -> Arrays:
        return truth.outputs_of(plan.op_type, inputs, attributes, unclipped=unclipped).outputs

    for name in ("clip", "input_forget", "linear_before_reset"):
        if name in a:
            yield wrong(inputs, {n: v for n, v in a.items() if n != name})
    if truth.functions(plan.op_type, plan.D, a) != truth.functions(plan.op_type, plan.D, {}):
        yield wrong(inputs, {n: v for n, v in a.items() if not n.startswith("activation")})
    for name in ("activation_alpha", "activation_beta"):
        if name in a:
            yield wrong(inputs, a | {name: [0.0] * len(a[name])})
    if a.get("direction") == "reverse" and plan.sizes[0] > 1:
        yield wrong(inputs, a | {"direction": "forward"})
    if "clip" in a:
        yield from (wrong(inputs, a, n) for n in range(len(_PLACES[plan.op_type][:2])))
    for name in ("B", "initial_h", "initial_c", "P", "sequence_lens"):
        if name in inputs and not (name == "sequence_lens" and plan.sizes[0] == 1):
            yield wrong({n: array for n, array in inputs.items() if n != name}, a)
