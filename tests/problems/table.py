"""
One record per op: inputs of any size and dtype, the call, its gradient, and a plain loop of it.

The tests of all ops run over this table. A new op or cell needs one more record: its arguments by
name, a function that draws them, and one step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import needs
import numpy as np
import pytest
from checks import layouts
from new_cells.cells.indrnn import IndRNNParams
from new_cells.cifg import CIFGParams
from new_cells.mgu import MGUParams
from new_cells.slstm import SLSTMParams

import cupyrnn
from cupyrnn import (
    BlockGRUParams,
    BlockLSTMParams,
    PackedParams,
    PeepholeLSTMParams,
    _ops,
    reference,
)
from cupyrnn.arithmetic import dropout, products, scratch
from cupyrnn.cells import LayerNormLSTMParams, MultiplicativeLSTMParams
from cupyrnn.derivatives.tree import tree_map
from cupyrnn.driver import layer, on_device, recompute, signatures
from cupyrnn.kernels import products as device_products

from . import grus, lstms, nets

# A step of a cell: (weights, x, states, attributes) -> (new states, saved values).
Step = Callable[..., tuple[list[Any], dict[str, Any]]]

STATES = ("cs_prev", "h_prev", "input_h", "input_c")


class Op(NamedTuple):
    """The record of an op."""

    schema: _ops.Schema  # names of the arguments and the results, and the gradient
    draw: Callable[[Any, Any], dict[str, Any]]  # (generator, case) -> the inputs
    parts: Callable[[Any, dict[str, Any]], Any]  # of inputs: x, each state, weights by position
    step: Step
    factors: dict[str, list[Any]]  # attributes, and other factors of its cases
    places: tuple[str, ...] = ("numpy", "numba", "cuda_on_cpu", "cupy")
    states: int = 1

    @property
    def is_cell(self) -> bool:
        """Whether it is one step."""
        return self.schema.forward.__name__.endswith("_cell")

    @property
    def is_net(self) -> bool:
        """Whether it has layers, directions and last states."""
        return "output" in self.schema.outputs


class Case(NamedTuple):
    """A call without its numbers: the op, sizes, and all other factors."""

    name: str
    size: tuple[int, int, int, int] = (6, 4, 3, 5)  # T, B, I, H
    dtype: str = "float64"
    extent: str = "full"  # lengths, resets, steps, and the values of `corners`
    direction: str = "forward"  # or reverse, both
    layers: int = 1
    time_major: bool = True
    dropout: float = 0.0
    save: Any = "all"
    memory: str = "C"  # or a name of `checks.layouts`, or zero strides
    rows: int | None = None  # of a block, if smaller than the package's
    projected: bool = False
    tapered: bool = False  # whether each layer has another H
    peephole: bool = True
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def op(self) -> Op:
        return TABLE[self.name]

    @property
    def D(self) -> int:
        return 2 if self.direction == "both" else 1

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """T, B, I and H. A step has T = 1, and with skip_input I is H."""
        T, B, I, H = self.size
        T = 1 if self.op.is_cell else T
        return T, B, H if dict(self.attributes).get("input_mode") == "skip_input" else I, H

    @property
    def widths(self) -> list[tuple[int, int]]:
        """H of each layer, and P, the size of its h."""
        H = self.size[3]
        units = [H, max(1, H // 2), H + 2] if self.tapered else [H] * 3
        return [(H, H - 1 if self.projected and H > 1 else H) for H in units[: self.layers]]

    @property
    def P(self) -> int:
        """The size of h of the first layer."""
        return self.widths[0][1]

    @property
    def terms(self) -> int:
        """
        The number of terms of a step's longest sum: over inputs and state, or over the gates.

        Sums of weight gradients over all rows do not count: they are sums of partial sums.
        """
        read = [self.sizes[2], *(self.D * P for _, P in self.widths)]
        return max(max(K + P, 4 * H) for K, (H, P) in zip(read, self.widths, strict=False))

    @property
    def scale(self) -> float:
        """The magnitude of terms that may cancel: each mask scales the values that it keeps."""
        return 1.0 if self.dropout == 1 else (1 - self.dropout) ** (1 - self.layers)

    @property
    def has_kinks(self) -> bool:
        """Whether a slope has jumps. A number that is rounded across a jump has another slope."""
        attributes = dict(self.attributes)
        gate = attributes.get("recurrent_activation", "sigmoid")
        clip = self.projected and attributes.get("proj_clip")
        return bool(attributes.get("cell_clip") or clip) or gate != "sigmoid"

    @property
    def without_kinks(self) -> Case:
        """The same without clip and hard sigmoids."""
        kept = [(n, v) for n, v in self.attributes if n != "recurrent_activation"]
        return self._replace(attributes=tuple((n, 0.0 if "clip" in n else v) for n, v in kept))

    def within(self, ops: Any) -> Case:
        """Return the case with few steps if a CPU stands in for a GPU, which is slow."""
        return self._replace(size=ops.shape(self.size))

    def __str__(self) -> str:
        """Everything that differs from a plain call, for the name of a test."""
        T, B, I, H = self.size
        parts = [f"T{T}-B{B}-I{I}-H{H}"]
        for name, value in self._asdict().items():
            if name in ("name", "size", "dtype", "attributes"):
                continue
            if value != self._field_defaults[name]:
                parts.append(str(value) if isinstance(value, str) else f"{name}={value}")
        return "-".join([*parts, *(f"{n}={v}" for n, v in self.attributes)])


def cases(name: str, chosen: list[dict[str, Any]]) -> list[Case]:
    """Return cases for combinations of factors; factors outside of Case are attributes."""
    found = []
    for one in chosen:
        fields = {n: v for n, v in one.items() if n in Case._fields}
        rest = tuple((n, v) for n, v in one.items() if n not in Case._fields and v is not None)
        found.append(Case(name, **fields, attributes=rest))
    return found


def corners(name: str) -> list[Case]:
    """
    Return special cases: nothing to compute, marks everywhere, other memory.

    One has so many rows that a sum in half precision would stop growing.
    """
    op = TABLE[name]
    first = {n: values[0] for n, values in op.factors.items() if n not in Case._fields}
    chosen: list[dict[str, Any]] = [
        {"memory": memory} for memory in ("negative strides", "zero strides", "read-only")
    ]
    extents = ["no lengths", "lengths+all resets", "equal lengths" if op.is_net else "steps"]
    for extent in extents:
        for direction in ("forward", "both" if op.is_net else "reverse"):
            chosen += [{"extent": extent, "direction": direction}] * (not op.is_cell)
    halves = [dtype for dtype in op.factors["dtype"] if dtype in ("float16", "bfloat16")]
    chosen += [{"size": (1, 16384, 1, 1), "dtype": dtype} for dtype in halves]
    layers = {"layers": 2} if op.is_net else {}
    # A norm of equal numbers is zero, so a cell that divides by it has no such case.
    kept = [one for one in chosen if "norm" not in name or one.get("memory") != "zero strides"]
    return cases(name, [first | layers | one for one in kept])


class Call(NamedTuple):
    """The inputs of a case, its lengths and its resets."""

    case: Case
    inputs: dict[str, Any]
    lengths: Any = None  # [B]
    resets: Any = None  # [T, B]
    steps: int | None = None

    @property
    def padding_mask(self) -> Any:
        """The mask [T, B] of the padding, where nothing is computed."""
        T, B, *_ = self.case.sizes
        ends = np.full(B, T if self.steps is None else self.steps)
        return np.arange(T)[:, None] >= (ends if self.lengths is None else self.lengths)

    @property
    def kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments of the op, without its inputs."""
        case = self.case
        kwargs: dict[str, Any] = {} if case.op.is_net else {"seq_len_max": self.steps}
        kwargs |= {"sequence_lengths": self.lengths, "resets": self.resets}
        kwargs = {n: a for n, a in kwargs.items() if a is not None}
        if case.direction == "reverse":
            kwargs["reverse"] = True
        if case.op.is_net:
            kwargs["direction"] = nets.BI if case.D == 2 else nets.UNI
            if case.dropout:
                kwargs |= {"dropout": case.dropout, "seed": 5, "seed2": -3}
            if case.save != "all":
                kwargs["save"] = case.save
            if not case.time_major:
                kwargs["time_major"] = False
                if self.resets is not None:
                    kwargs["resets"] = self.resets.T
            if case.op.schema.name == "cudnn_rnn":
                kwargs["rnn_mode"] = _net_of(case).rnn_mode
                kwargs["num_proj"] = case.P if case.projected else 0
        attributes = dict(case.attributes)
        if not case.projected:
            attributes.pop("proj_clip", None)
        return kwargs | attributes

    def swap_if_batch_first(self, arrays: Any) -> Any:
        """Exchange the first two axes if the call is batch first. Twice changes nothing."""
        if self.case.time_major:
            return arrays
        return tree_map(lambda a: a.swapaxes(0, 1) if getattr(a, "ndim", 0) == 3 else a, arrays)

    def as_float64(self) -> Call:
        """Return the call with the same numbers in float64."""
        inputs = tree_map(lambda a: None if a is None else a.astype(np.float64), self.inputs)
        return self._replace(case=self.case._replace(dtype="float64"), inputs=inputs)

    def rounded_again(self, half_unit: float, rng: np.random.Generator) -> Call:
        """Return the call with numbers that are off by up to a half unit."""

        def off(a: Any) -> Any:
            return None if a is None else a * (1 + half_unit * rng.uniform(-1, 1, a.shape))

        return self._replace(inputs=tree_map(off, self.inputs))

    def forward(self, ops: Any, **more: Any) -> Any:
        """Return the outputs of the op; the inputs are time first or batch first."""
        return getattr(ops, self.case.op.schema.name)(**{**self.arguments(ops), **more})

    def arguments(self, ops: Any) -> dict[str, Any]:
        """Return all arguments of the op."""
        kwargs = self.kwargs
        name = self.case.op.schema.name
        if name == "cudnn_rnn" and {"dropout", "resets", "reverse", "save"} & {*kwargs}:
            kwargs["engine"] = nets.own(ops)
        return self.swap_if_batch_first(self.inputs) | kwargs

    def without_states(self) -> Call:
        """Return the call with None for its states; a PackedParams determines their sizes."""
        inputs, said, (_, _, I, H) = dict(self.inputs), self.kwargs, self.case.sizes
        if "params" in inputs:
            said = {n: said[n] for n in PackedParams._fields if n in said}
            sizes = {"num_layers": self.case.layers, "num_units": H, "input_size": I}
            inputs["params"] = PackedParams(inputs["params"], **sizes, **said)
        return self._replace(inputs=inputs | dict.fromkeys({*STATES} & {*inputs}))

    def gradient(self, ops: Any, out: Any, cotangents: dict[str, Any], **more: Any) -> Any:
        """Return the results of the op's gradient."""
        record = self.case.op.schema
        gradient_kwargs = record.gradient_arguments(self.arguments(ops), out._asdict())
        return getattr(ops, record.gradient.__name__)(
            **gradient_kwargs | self.swap_if_batch_first(cotangents) | more
        )

    def slopes(self, found: Any) -> dict[str, Any]:
        """Return the gradients by the names of the inputs, time first."""
        record = self.case.op.schema
        named = {n: getattr(found, record.slope.format(n)) for n in self.inputs}
        return self.swap_if_batch_first(
            {n: a for n, a in named.items() if self.inputs[n] is not None}
        )

    def cotangents(self, rng: np.random.Generator, out: Any) -> dict[str, Any]:
        """Return gradients of the outputs, time first, with a mean other than zero."""
        record, found = self.case.op.schema, {}
        padding = self.padding_mask[0] if self.case.op.is_cell else self.padding_mask
        for name in record.outputs:
            like = self.swap_if_batch_first(getattr(out, name))
            drawn = tree_map(lambda a: 0.5 + rng.standard_normal(a.shape), like)
            if name not in ("output_h", "output_c"):
                drawn[padding] = np.nan
            elif not isinstance(drawn, tuple) and not drawn.ndim:
                drawn = None
            found[record.cotangent.format(name)] = tree_map(
                lambda a: (
                    None if a is None else with_layout(self.case, a.astype(kind_of(self.case)))
                ),
                drawn,
            )
        return found


def small_blocks(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks of products, and of recomputed steps, this small; no step is a small one."""
    if case.rows:
        few = 3 * min(case.rows, 7)
        for module, name, many in (
            (products, "ROWS", case.rows),
            (device_products, "ROWS", case.rows),
            (on_device, "ROWS", on_device.ROWS),  # recorded calls have no blocks
            (layer, "CHUNK", few),
            (scratch, "SMALL_STEP", 0),
            (recompute, "_BLOCKS", 1),
            (recompute, "_CHUNK", few),
            (signatures, "CALLS", signatures.CallCache()),  # recorded calls have larger ones
        ):
            monkeypatch.setattr(module, name, many)


def right_calls(name: str, **fields: Any) -> dict[str, dict[str, Any]]:
    """Return right arguments of an op and of its gradient, by their names."""
    rng = np.random.default_rng(0)
    call = call_of(Case(name, **fields), rng)
    out = call.forward(cupyrnn)
    record, arguments = call.case.op.schema, call.arguments(cupyrnn)
    gradient_kwargs = record.gradient_arguments(
        arguments, out._asdict()
    ) | call.swap_if_batch_first(call.cotangents(rng, out))
    return {record.name: arguments, record.gradient.__name__: gradient_kwargs}


def kind_of(case: Case) -> Any:
    return needs.dtype(case.dtype)


def with_layout(case: Case, a: Any) -> Any:
    """Return an array with the memory layout that a case names."""
    if case.memory == "C" or a is None:
        return a
    if case.memory == "zero strides":
        if not a.size:
            return a
        one = a.ravel()[:1]
        return np.broadcast_to(np.where(one == one, one, one.dtype.type(0.5)), a.shape)
    return dict(layouts(a))[case.memory]


def call_of(case: Case, rng: np.random.Generator) -> Call:
    """
    Return a call, with NaN in x where nothing is to be computed.

    One length is 0 and one is T; resets mark the first step and some steps past the end, if there
    is room for them.
    """
    T, B, *_ = case.sizes
    lengths = resets = steps = None
    if "lengths" in case.extent:
        lengths = rng.integers(0, T + 1, B).astype(np.int32)
        lengths[:1], lengths[1:2] = T, 0
        lengths = rng.permutation(lengths) * (case.extent != "no lengths")
    if "equal" in case.extent:
        lengths = np.full(B, (T + 1) // 2, np.int32)
    if "resets" in case.extent:
        resets = rng.random((T, B)) < 0.3
        resets[:1, ::2] = True
        resets |= "all" in case.extent
    if "steps" in case.extent:
        steps = T // 2
    call = Call(case, case.op.draw(rng, case), lengths, resets, steps)
    assert {*call.inputs} == {
        n for n in case.op.schema.inputs if case.peephole or n not in lstms.PEEPHOLES
    }
    if case.has_kinks and np.dtype(kind_of(case)).itemsize > 2 and T < 10:
        # So large that gates reach 0 and 1, and states the clip; smaller over many steps.
        for name, factor in (("w", 4), ("w_ru", 4), ("params", 2)):
            if name in call.inputs:
                call.inputs[name] *= factor
    x = call.inputs[case.op.schema.inputs[0]]
    if call.padding_mask.any():
        x[call.padding_mask] = np.nan
    inputs = tree_map(lambda a: with_layout(case, a), call.inputs)
    return call._replace(inputs=inputs)


def plain(call: Call, inputs: dict[str, Any]) -> dict[str, Any]:
    """
    Return the outputs of an op, computed step by step: each layer, each direction, all sequences.

    A block op has all its outputs, zero in the padding. `inputs` are the inputs of the call or, for
    complex step, complex ones.
    """
    case, op = call.case, call.case.op
    x, states, weights = op.parts(case, inputs)
    T, B, *_ = case.sizes
    padding = np.vstack([call.padding_mask, np.ones((1, B), bool)])
    marks = np.zeros((T + 1, B), bool)
    if call.resets is not None:
        marks[:T] = call.resets
    dtype = np.result_type(*(a for w in weights for a in w if a is not None), x, states[0][0])
    # A row for each layer and direction, also if each layer has its own array.
    each_row = [[*itertools.chain(*s)] if isinstance(s, list) else [*s] for s in states]
    last, saved = [[a.astype(dtype) for a in s] for s in each_row], {}
    for n, (_, P) in enumerate(case.widths):
        x = x * mask_of(case, n)
        y = np.zeros((T, B, case.D * P), dtype)
        for d in range(case.D):
            place = n * case.D + d
            backwards = d == 1 or case.direction == "reverse"
            for t in reversed(range(T)) if backwards else range(T):
                forgets = marks[t + 1] & ~padding[t + 1] if backwards else marks[t]
                before = [np.where(forgets[:, None], 0, s[place]) for s in last]
                after, kept = op.step(weights[place], x[t], before, dict(case.attributes))
                runs = ~padding[t][:, None]
                for s, a, b in zip(last, after, [s[place] for s in last], strict=True):
                    s[place] = np.where(runs, a, b)
                y[t, :, d * P : (d + 1) * P] = np.where(runs, after[0], 0)
                for name, a in () if op.is_net else kept.items():
                    saved.setdefault(name, np.zeros((T, *a.shape), dtype))[t] = np.where(runs, a, 0)
        x = y
    if op.is_net:
        h, *others = (_joined(case, [a[None] for a in s], tuple) for s in last)
        c = {0: np.zeros(()), 1: others[0] if others else None}.get(len(others), tuple(others))
        return {"output": x, "output_h": h, "output_c": c}
    H = case.size[3]
    none = {n: np.zeros((T, B, H), dtype) for n in op.schema.results}
    found = none | saved | {"h": x}
    return {n: a[0] for n, a in found.items()} if op.is_cell else found


def _joined(case: Case, rows: list[Any], kind: Any) -> Any:
    """Return the rows of a state as one array, or in a list or tuple for each layer."""
    parts = [np.concatenate(rows[n : n + case.D]) for n in range(0, len(rows), case.D)]
    return kind(parts) if case.tapered else np.concatenate(parts)


def mask_of(case: Case, layer: int) -> Any:
    """Return the dropout mask of a layer's input."""
    if not (layer and case.dropout):
        return 1.0
    T, B, *_ = case.sizes
    P = case.widths[layer - 1][1]
    shape = (T * B, case.D * P)
    drawn_below, keys = dropout.threshold(case.dropout), dropout.key_words(5, -3)
    kept = dropout.keep_mask(shape, np.dtype(float), drawn_below, keys, layer)
    scale = 1 / (1 - case.dropout) if case.dropout < 1 else 0.0
    return kept.reshape(T, B, case.D * P) * scale


def _draw_lstm(rng: Any, case: Case) -> dict[str, Any]:
    inputs = lstms.problem(rng, case.sizes, case.peephole, kind_of(case))
    return inputs | {"x": inputs["x"][0]} if case.op.is_cell else inputs


def _draw_gru(rng: Any, case: Case) -> dict[str, Any]:
    inputs = grus.problem(rng, case.sizes, kind_of(case))
    return inputs | {"x": inputs["x"][0]} if case.op.is_cell else inputs


def _parts_of_block(case: Case, inputs: dict[str, Any]) -> Any:
    x = inputs["x"][None] if case.op.is_cell else inputs["x"]
    states = [inputs[n][None] for n in ("h_prev", "cs_prev") if n in inputs]
    names = ("w", "b", *lstms.PEEPHOLES, "w_ru", "w_c", "b_ru", "b_c")
    return x, states, [[inputs[n] for n in names if n in inputs]]


def _net_of(case: Case) -> nets.Case:
    attributes = dict(case.attributes)
    return nets.Case(
        case.name.partition("-")[2],
        *case.sizes,
        case.layers,
        nets.BI if case.D == 2 else nets.UNI,
        case.P if case.projected else 0,
        attributes.get("input_mode", nets.LINEAR),
    )


def _draw_packed(rng: Any, case: Case) -> dict[str, Any]:
    return {"input_c": None} | nets.problem(rng, _net_of(case), kind_of(case))


def _parts_of_packed(case: Case, inputs: dict[str, Any]) -> Any:
    net, (_, _, I, H) = _net_of(case), case.sizes
    layout = (net.rnn_mode, case.layers, H, I, case.D == 2, net.skip, net.num_proj)
    weights = nets.weights_of(inputs["params"], *layout)
    states = [a for a in (inputs["input_h"], inputs["input_c"]) if a is not None]
    return inputs["input"], states, [[*w.values()] for w in weights.values()]


def _draw_stack(kind: Any) -> Any:
    """Return a function that draws weights of a kind, with the shapes of its form."""

    def draw(rng: Any, case: Case) -> dict[str, Any]:
        (T, B, I, _), D = case.sizes, case.D

        def number(*shape: int, scale: float = 0.7) -> Any:
            return (scale * rng.standard_normal(shape)).astype(kind_of(case))

        def entry(K: int, H: int, P: int) -> Any:
            sizes = {"K": K, "H": H, "P": P}
            arrays = {}
            for name, shown in _shapes_of(kind).items():
                if not (
                    case.projected
                    if name == "w_p"
                    else case.peephole or name not in lstms.PEEPHOLES
                ):
                    continue
                shape = eval(f"({shown},)", {}, sizes)  # "K+P, 4*H"
                scale = 0.7 if len(shape) == 1 else 1 / max(1, shape[0]) ** 0.5
                if name == "u":  # above 1 the rounding of all steps would add up
                    scale = 0.4
                arrays[name] = number(*shape, scale=scale)
            return _kind_of(kind, arrays)(**arrays)

        read = [I, *(D * P for _, P in case.widths)]
        weights = [
            entry(K, *width) for K, width in zip(read, case.widths, strict=False) for _ in range(D)
        ]

        def state(size: int) -> Any:
            """Return a state of H or P numbers, none zero: an sLSTM divides by a state."""
            shapes = [(1, B, width[size]) for width in case.widths for _ in range(D)]
            rows = [(0.5 + rng.random(shape)).astype(kind_of(case)) for shape in shapes]
            return _joined(case, rows, list)

        first, *others = (state(n == 0) for n in range(case.op.states))
        c = {0: None, 1: others[0] if others else None}.get(len(others), tuple(others))
        return {"input": number(T, B, I), "input_h": first, "input_c": c, "weights": weights}

    return draw


def _kind_of(kind: Any, arrays: dict[str, Any]) -> Any:
    plain_lstm = kind is PeepholeLSTMParams and [*arrays] == ["w", "b"]
    return BlockLSTMParams if plain_lstm else kind


def _shapes_of(kind: Any) -> dict[str, str]:
    return kind(*kind._fields).form.shapes


def _parts_of_stack(case: Case, inputs: dict[str, Any]) -> Any:
    c = inputs["input_c"]
    others = [] if c is None else [*c] if isinstance(c, tuple) else [c]
    return inputs["input"], [inputs["input_h"], *others], inputs["weights"]


def _lstm(w: Any, x: Any, states: list[Any], kwargs: dict[str, Any]) -> Any:
    h, c = states
    w, b, *rest = w
    peephole = dict(zip(("wci", "wcf", "wco", "w_p"), rest, strict=False))
    peephole = {n: a for n, a in peephole.items() if a is not None}
    out = reference.lstm(x[None], c, h, w, b, **peephole, **kwargs)
    saved = {n: a[0] for n, a in out._asdict().items() if n != "h"}
    return [out.h[0], out.cs[0]], saved


def _gru(w: Any, x: Any, states: list[Any], kwargs: dict[str, Any]) -> Any:
    out = reference.gru(x[None], states[0], *w, **kwargs)
    return [out.h[0]], {n: a[0] for n, a in out._asdict().items() if n != "h"}


def _packed(mode: str) -> Step:
    def step(w: Any, x: Any, states: list[Any], kwargs: dict[str, Any]) -> Any:
        W, R, proj, b_x, b_h = w
        h, *c = states
        W = np.tile(np.eye(x.shape[-1]), (len(R) // x.shape[-1], 1)) if W is None else W
        gates = {n: a for n, a in kwargs.items() if n == "recurrent_activation"}
        if mode == "lstm":
            both, w_p = np.concatenate([W, R], 1).T, None if proj is None else proj.T
            gates["gate_order"] = "ifco"
            out: Any = reference.lstm(x[None], c[0], h, both, b_x + b_h, w_p=w_p, **gates)
            return [out.h[0], out.cs[0]], {}
        if mode == "gru":
            out = reference.gru_reset_after(x[None], h, W.T, R.T, b_x, b_h, **gates)
        else:
            relu = mode == "rnn_relu"
            out = reference.simple_rnn(x[None], h, W.T, R.T, b_x + b_h, relu=relu)
        return [out.h[0]], {}

    return step


def _sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def _gates(w: Any, x: Any, h: Any, n: int) -> list[Any]:
    return np.split(np.concatenate([x, h], -1) @ w, n, -1)


def _slstm(w: Any, x: Any, states: list[Any], kwargs: Any) -> Any:
    """The equations of the paper, without its protection against overflow."""
    h, c, n, m = states
    zi, zf, zc, zo = np.split(np.concatenate([x, h], -1) @ w.w + w.b, 4, -1)
    i, f = np.exp(zi), np.exp(zf)
    # The paper's c and n are the states c and n times exp(m).
    wide_c, wide_n = f * c * np.exp(m) + i * np.tanh(zc), f * n * np.exp(m) + i
    m = np.maximum(zi, zf + m)
    return [wide_c / wide_n * _sigmoid(zo), wide_c * np.exp(-m), wide_n * np.exp(-m), m], {}


def _of_reference(definition: Any) -> Step:
    """Return the step of a cell whose definition returns h and c."""

    def step(weights: Any, x: Any, states: list[Any], kwargs: Any) -> Any:
        h, c = states
        return [a[0] for a in definition(x[None], c, h, *weights)], {}

    return step


def _mgu(w: Any, x: Any, states: list[Any], kwargs: Any) -> Any:
    """Equations (5) to (7) of the paper."""
    (h,) = states
    f = _sigmoid(np.concatenate([x, h], -1) @ w.w_f + w.b_f)
    return [(1 - f) * h + f * np.tanh(np.concatenate([x, f * h], -1) @ w.w_c + w.b_c)], {}


def _cifg(w: Any, x: Any, states: list[Any], kwargs: Any) -> Any:
    h, c = states
    f, g, o = _gates(w.w, x, h, 3)
    c = _sigmoid(f) * c + (1 - _sigmoid(f)) * np.tanh(g)
    return [_sigmoid(o) * np.tanh(c), c], {}


def _indrnn(w: Any, x: Any, states: list[Any], kwargs: Any) -> Any:
    """Equation (2) of the paper."""
    return [np.tanh(x @ w.w_x + states[0] * w.u + w.b)], {}


SIZES = [(1, 1, 1, 1), (3, 33, 1, 3), (7, 3, 33, 5)]
LONG = [(33, 4, 2, 33)]
EMPTY = [(0, 2, 3, 4), (5, 0, 3, 4)]
WITHOUT = [(5, 2, 0, 4), (5, 2, 3, 0)]  # without inputs, without units
EXTENTS = ["full", "lengths", "resets", "lengths+resets"]
GATES = ["sigmoid", "hard_sigmoid_0.2", "hard_sigmoid_1/6"]
_STEPS: dict[str, list[Any]] = {
    "size": SIZES + LONG + EMPTY + WITHOUT,
    "dtype": ["float16", "bfloat16", "float32", "float64"],
    "memory": ["C", "fortran", "strided", "unaligned"],
}
# The last one has all rows in a block, but the gradients of few steps at once.
ROWS = [None, 3, 7, 500]
# Also more rows than one block has.
_CELLS = _STEPS | {"size": [*_STEPS["size"], (1, 1200, 3, 33)]}
_SEQUENCES = _STEPS | {
    "extent": [*EXTENTS, "steps+resets"],
    "direction": ["forward", "reverse"],
    "rows": ROWS,
}
_NETS = _STEPS | {
    "size": [*SIZES, (12, 4, 2, 33), *EMPTY, *WITHOUT],
    "extent": EXTENTS,
    "direction": ["forward", "reverse", "both"],
    "layers": [1, 2, 3],
    "time_major": [True, False],
    "dropout": [0.0, 0.4, 1.0],
    "save": ["all", "states", 2, 1000],
    "rows": ROWS,
}
# Cells that are not in the package; they need not support H = 0. The norm of a zero state, or of a
# dropped layer, is rounding only.
_OTHERS = _NETS | {"size": SIZES + EMPTY, "dtype": ["float32", "float64"]}
_OTHERS |= {"dropout": [0.0, 0.4], "layers": [1, 2]}
# 0.25 is a number in every dtype.
_LSTM: dict[str, list[Any]] = {
    "peephole": [False, True],
    "forget_bias": [0.6, 0.0],
    "cell_clip": [0.0, 0.25],
    "gate_order": ["icfo", "ifco"],
    "recurrent_activation": GATES,
}
_OF_H: dict[str, list[Any]] = {"proj_clip": [0.0, 0.125]}
_GRU: dict[str, list[Any]] = {"recurrent_activation": GATES}
_BLOCK_LSTM = Op(_ops.BLOCK_LSTM, _draw_lstm, _parts_of_block, _lstm, _SEQUENCES | _LSTM, states=2)
_BLOCK_GRU = Op(_ops.BLOCK_GRU, _draw_gru, _parts_of_block, _gru, _SEQUENCES | _GRU)
_OF_PACKED: dict[str, dict[str, list[Any]]] = {
    "lstm": {"projected": [False, True], **_GRU},
    "gru": _GRU,
    "rnn_tanh": {},
    "rnn_relu": {},
}
_STACKED: dict[str, tuple[Any, Step, int, dict[str, list[Any]]]] = {
    "LSTM": (PeepholeLSTMParams, _lstm, 2, {"projected": [False, True], **_LSTM, **_OF_H}),
    "GRU": (BlockGRUParams, _gru, 1, _GRU),
    "sLSTM": (SLSTMParams, _slstm, 4, {}),
    "layer-norm LSTM": (
        LayerNormLSTMParams,
        _of_reference(reference.layer_norm_lstm),
        2,
        {"dtype": ["float64"]},
    ),
    "multiplicative LSTM": (
        MultiplicativeLSTMParams,
        _of_reference(reference.multiplicative_lstm),
        2,
        {"dtype": [*_STEPS["dtype"]]},
    ),
    "MGU": (MGUParams, _mgu, 1, {}),
    "CIFG": (CIFGParams, _cifg, 2, {"size": [*SIZES, (12, 4, 2, 33), *EMPTY]}),
    "IndRNN": (IndRNNParams, _indrnn, 1, {}),
}
# The array types of cells without all twins.
_IN_NUMPY = "sLSTM", "MGU", "layer-norm LSTM", "multiplicative LSTM"
_PLACES: dict[str, tuple[str, ...]] = dict.fromkeys(_IN_NUMPY, ("numpy",))
_PLACES |= {"CIFG": ("numpy", "numba"), "IndRNN": ("numpy", "cuda_on_cpu", "cupy")}
_NEW = (SLSTMParams, LayerNormLSTMParams, MultiplicativeLSTMParams, MGUParams, CIFGParams)
TABLE: dict[str, Op] = {
    "block_lstm": _BLOCK_LSTM,
    "lstm_block_cell": _BLOCK_LSTM._replace(schema=_ops.LSTM_BLOCK_CELL, factors=_CELLS | _LSTM),
    "block_gru": _BLOCK_GRU,
    "gru_block_cell": _BLOCK_GRU._replace(schema=_ops.GRU_BLOCK_CELL, factors=_CELLS | _GRU),
}
for _mode, _more in _OF_PACKED.items():
    _factors = {
        **_NETS,
        "size": [*_NETS["size"][:-2]],
        "input_mode": [nets.LINEAR, nets.SKIP, nets.AUTO],
        **_more,
    }
    TABLE[f"cudnn_rnn-{_mode}"] = Op(
        _ops.CUDNN_RNN,
        _draw_packed,
        _parts_of_packed,
        _packed(_mode),
        _factors,
        states=1 + (_mode == "lstm"),
    )
for _name, (_kind, _step, _states, _more) in _STACKED.items():
    TABLE[f"stacked_rnn-{_name}"] = Op(
        _ops.STACKED_RNN,
        _draw_stack(_kind),
        _parts_of_stack,
        _step,
        (_OTHERS if _kind in _NEW else _NETS) | {"tapered": [False, True]} | _more,
        _PLACES.get(_name, Op._field_defaults["places"]),
        _states,
    )
