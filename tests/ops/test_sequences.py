"""Lengths, direction and resets: every op against each sequence, and each episode of it, alone."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import needs
import numpy as np
import pytest
import reference
from checks import ON_HOST, Ops, assert_close, assert_gradients, layouts
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import grus, lstms, nets
from problems.nets import BI, MODES, UNI, Case

import cupyrnn
from cupyrnn.driver import layer as _layer
from cupyrnn.driver import products as _products

# (T, B, I, H)
SHAPES = [(1, 1, 1, 1), (3, 33, 1, 3), (7, 3, 33, 5), (33, 3, 2, 33)]
CASES = [("float64", shape) for shape in SHAPES]
CASES += [(dtype, SHAPES[2]) for dtype in ("float16", "bfloat16", "float32")]
EMPTY = [(0, 2, 3, 4), (5, 0, 3, 4), (5, 2, 0, 4), (5, 2, 3, 0)]
KINDS = ["none", "lengths", "resets", "lengths+resets", "seq_len_max+resets"]
each_kind = pytest.mark.parametrize("kind", KINDS)
each_direction = pytest.mark.parametrize("reverse", [False, True])


class Sequences(NamedTuple):
    """What of x[T, B] is computed, and how."""

    T: int
    B: int
    seq_len_max: int | None = None
    lengths: Any = None  # [B]
    resets: Any = None  # [T, B]
    reverse: bool = False

    @property
    def attributes(self) -> dict[str, Any]:
        """What the block ops take by keyword; what is left out is not given."""
        given = {"seq_len_max": self.seq_len_max, "sequence_lengths": self.lengths}
        given = {n: a for n, a in (given | {"resets": self.resets}).items() if a is not None}
        return given | ({"reverse": True} if self.reverse else {})

    def length(self, b: int) -> int:
        steps = self.T if self.seq_len_max is None else self.seq_len_max
        return steps if self.lengths is None else int(self.lengths[b])

    @property
    def past(self) -> Any:
        """Return where in [T, B] nothing is computed."""
        lengths = np.array([self.length(b) for b in range(self.B)], int)
        return np.arange(self.T)[:, None] >= lengths

    def episodes(self, b: int) -> list[tuple[int, int, bool]]:
        """Return where each episode of a sequence begins and ends, and whether it is cut off."""
        length = self.length(b)
        marked = np.zeros(self.T, bool) if self.resets is None else self.resets[:, b]
        begins = [0, *(t for t in range(1, length) if marked[t])]
        ends = [*begins[1:], length]
        return [
            (begin, end, bool(begin or (length and marked[0])))
            for begin, end in zip(begins, ends, strict=True)
        ]

    def ways(self, b: int) -> Iterator[tuple[Any, bool]]:
        """Yield the steps of each episode as they are taken, and if it has the states given."""
        episodes = self.episodes(b)
        for begin, end, cut in episodes:
            times = np.arange(begin, end)
            if self.reverse:
                yield times[::-1], end == episodes[-1][1]
            else:
                yield times, not cut


def sequences(rng: np.random.Generator, T: int, B: int, kind: str, reverse: bool) -> Sequences:
    """
    Return sequences of a kind.

    Among lengths is one of 0 and one of T, among resets are marks at the first step and some past
    the end, where there is room for them.
    """
    lengths, resets, most = None, None, None
    if "seq_len_max" in kind:
        most = int(rng.integers(0, T + 1))
    if "lengths" in kind:
        lengths = rng.integers(0, T + 1, B)
        lengths[:1], lengths[1:2] = T, 0
        lengths = rng.permutation(lengths)
    if "resets" in kind:
        resets = rng.random((T, B)) < 0.3
        resets[:1, ::2] = True
    found = Sequences(T, B, most, lengths, resets, reverse)
    if resets is not None:
        resets |= found.past & (rng.random((T, B)) < 0.7)
    return found


class Block(NamedTuple):
    """A block op, its gradient and the same by the reference."""

    name: str
    states: tuple[str, ...]
    cotangents: tuple[str, ...]
    problem: Callable[..., dict[str, Any]]
    steps: Callable[..., tuple[Any, ...]]  # of inputs, attributes
    steps_grad: Callable[..., dict[str, Any]]  # of inputs, saved, cotangents, attributes

    def forward(self, ops: Any, inputs: dict[str, Any], **attributes: Any) -> Any:
        return getattr(ops, self.name)(**inputs, **attributes)

    def backward(
        self, ops: Any, inputs: dict[str, Any], saved: Any, cotangents: Any, **attributes: Any
    ) -> dict[str, Any]:
        """Return the gradients by the names of the inputs."""
        function = getattr(ops, f"{self.name}_grad")
        attributes.pop("forget_bias", None)  # which the gradient does not depend on
        g = function(**inputs, **saved._asdict(), **cotangents, **attributes)._asdict()
        return {self._input(name): a for name, a in g.items() if self._input(name) in inputs}

    @staticmethod
    def _input(name: str) -> str:
        return name.removeprefix("d_").removesuffix("_grad")

    def alone(self, seqs: Sequences, inputs: dict[str, Any], **attributes: Any) -> list[Any]:
        """Return the outputs by the reference, episode by episode."""
        H = inputs["h_prev"].shape[1]
        out: list[Any] = []
        for b in range(seqs.B):
            for times, kept in seqs.ways(b):
                for k, a in enumerate(self.steps(self._one(inputs, b, times, kept), attributes)):
                    if k == len(out):
                        out.append(np.zeros((seqs.T, seqs.B, H), a.dtype))
                    out[k][times, b] = a[:, 0]
        return out

    def alone_grads(
        self,
        seqs: Sequences,
        inputs: dict[str, Any],
        saved: Any,
        cotangents: Any,
        **attributes: Any,
    ) -> dict[str, Any]:
        """Return the gradients by the reference, by the names of the inputs."""
        total = {name: np.zeros(a.shape) for name, a in inputs.items()}
        for b in range(seqs.B):
            for times, kept in seqs.ways(b):
                one = self._one(inputs, b, times, kept)
                steps = tuple(a[times, b : b + 1] for a in saved)
                given = [None if g is None else g[times, b : b + 1] for g in cotangents.values()]
                zeros = np.zeros_like(steps[-1])
                given = [zeros if g is None else g for g in given]
                for name, g in self.steps_grad(one, steps, given, attributes).items():
                    name = self._input(name)
                    if name == "x":
                        total["x"][times, b] = g[:, 0]
                    elif name in self.states and kept:
                        total[name][b] = g[0]
                    elif name in total and name not in self.states:
                        total[name] += g
        return total

    def _one(self, inputs: dict[str, Any], b: int, times: Any, kept: bool) -> dict[str, Any]:
        """Return the inputs of one episode."""
        one = {**inputs, "x": inputs["x"][times, b : b + 1]}
        for name in self.states:
            state = inputs[name][b : b + 1]
            one[name] = state if kept else np.zeros_like(state)
        return one


def _lstm_steps(inputs: dict[str, Any], attributes: dict[str, Any]) -> tuple[Any, ...]:
    return cupyrnn.reference.lstm(**inputs, **attributes)


def _lstm_steps_grad(
    inputs: dict[str, Any], saved: Any, given: Any, attributes: dict[str, Any]
) -> dict[str, Any]:
    four = (inputs[n] for n in ("x", "cs_prev", "h_prev", "w"))
    clip = attributes["cell_clip"] or None
    peephole = lstms.peephole_of(inputs)
    return reference.lstm_grad(*four, saved, *given, peephole, clip, attributes["gate_order"])


def _gru_steps(inputs: dict[str, Any], attributes: dict[str, Any]) -> tuple[Any, ...]:
    return cupyrnn.reference.gru(**inputs)


def _gru_steps_grad(
    inputs: dict[str, Any], saved: Any, given: Any, attributes: dict[str, Any]
) -> dict[str, Any]:
    return grus.plain_grads(inputs, saved, *given)


LSTM = Block(
    "block_lstm",
    ("cs_prev", "h_prev"),
    ("cs_grad", "h_grad"),
    lambda rng, shape, dtype=float: lstms.problem(rng, shape, False, dtype),
    _lstm_steps,
    _lstm_steps_grad,
)
PEEPHOLE = LSTM._replace(
    problem=lambda rng, shape, dtype=float: lstms.problem(rng, shape, True, dtype)
)
GRU = Block("block_gru", ("h_prev",), ("d_h",), grus.problem, _gru_steps, _gru_steps_grad)

# Every op with every attribute it has. 0.25 is a number in every dtype.
PLAIN = {"forget_bias": 0.6, "cell_clip": 0.0, "gate_order": "icfo"}
CLIPPED = {"forget_bias": 0.6, "cell_clip": 0.25, "gate_order": "ifco"}
BLOCKS = {"lstm": (LSTM, PLAIN), "peephole": (PEEPHOLE, CLIPPED), "gru": (GRU, {})}
each_block = pytest.mark.parametrize("block", BLOCKS)


def wide(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: None if a is None else a.astype(np.float64) for name, a in arrays.items()}


def kind_of(dtype: str) -> Any:
    return needs.dtype(dtype)


def check_block(
    ops: Any,
    block: str,
    shape: tuple[int, ...],
    seqs: Sequences,
    rng: np.random.Generator,
    dtype: str = "float64",
) -> None:
    """The op and its gradient against each episode alone, with NaN past every end."""
    op, attributes = BLOCKS[block]
    kind, past = kind_of(dtype), seqs.past
    inputs = op.problem(rng, shape, kind)
    inputs["x"][past] = np.nan
    call = {**attributes, **seqs.attributes}
    out = op.forward(ops, inputs, **call)
    for name, a, e in zip(
        out._fields, out, op.alone(seqs, wide(inputs), **attributes), strict=False
    ):
        assert a.dtype == kind
        assert not a[past].any(), f"{name} is not zero past the end"
        assert_close(a, e, dtype, name, at_least=1.0)

    # Off zero, lest the sums cancel.
    cotangents = {n: (1 + rng.standard_normal(out.h.shape)).astype(kind) for n in op.cotangents}
    saved = type(out)._make([a.copy() for a in out])
    for a in (*saved, *cotangents.values()):
        a[past] = np.nan
    g = op.backward(ops, inputs, saved, cotangents, **call)
    wide_saved = [a.astype(np.float64) for a in saved]
    e = op.alone_grads(seqs, wide(inputs), wide_saved, wide(cotangents), **attributes)
    assert g.keys() == e.keys()
    for name, a in g.items():
        assert a.dtype == kind
        assert_close(a, e[name], dtype, name, at_least=1.0)
    assert not g["x"][past].any()


@pytest.mark.compiled
@each_kind
@each_direction
@pytest.mark.parametrize(("dtype", "shape"), CASES)
@each_block
def test_each_episode_alone_gives_the_same(
    ops: Ops,
    block: str,
    dtype: str,
    shape: tuple[int, ...],
    reverse: bool,
    kind: str,
    rng: np.random.Generator,
) -> None:
    T, B, *_ = shape = ops.shape(shape)
    check_block(ops, block, shape, sequences(rng, T, B, kind, reverse), rng, dtype)


@each_kind
@each_direction
@pytest.mark.parametrize("shape", EMPTY)
@each_block
def test_empty_sizes(
    ops: Ops, block: str, shape: tuple[int, ...], reverse: bool, kind: str, rng: np.random.Generator
) -> None:
    check_block(ops, block, shape, sequences(rng, *shape[:2], kind, reverse), rng)


def small_blocks(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Have whole-sequence products take few rows, and NumPy make few factors at once."""
    monkeypatch.setattr(_products, "_CPU_ROWS", rows)
    monkeypatch.setattr(_products, "_GPU_ROWS", rows)
    monkeypatch.setattr(_layer, "CHUNK", 3 * rows)


@pytest.mark.compiled
@each_kind
@each_direction
@pytest.mark.parametrize(("dtype", "rows"), [("float64", 3), ("float16", 7)])
@each_block
def test_several_blocks_of_rows(
    ops: Ops,
    block: str,
    dtype: str,
    rows: int,
    reverse: bool,
    kind: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_blocks(monkeypatch, rows)
    seqs = sequences(rng, 6, 4, kind, reverse)
    check_block(ops, block, (6, 4, 3, 5), seqs, rng, dtype)


@pytest.mark.parametrize(
    "lengths",
    [(0, 0, 0), (4, 4, 4), (0, 4, 0), (2, 3, 4)],
    ids=str,
)
@pytest.mark.parametrize("marks", ["none", "all", "first", "last"])
@each_direction
@each_block
def test_lengths_and_marks_of_every_kind(
    ops: Ops, block: str, reverse: bool, marks: str, lengths: Any, rng: np.random.Generator
) -> None:
    """No sequence at all, all alike, in order, and marks at every step or at an end."""
    resets = np.full((4, 3), marks == "all")
    if marks in ("first", "last"):
        resets[0 if marks == "first" else -1] = True
    seqs = Sequences(4, 3, None, np.array(lengths), resets, reverse)
    check_block(ops, block, (4, 3, 2, 3), seqs, rng)


@each_direction
def test_resets_take_memory_by_steps(reverse: bool) -> None:
    """One document of 5,000 steps and 5,000 of one step: not the product of the two."""
    T = 10_000
    resets = np.arange(T)[:, None] >= T // 2
    x, h, w = np.zeros((T, 1, 1)), np.zeros((1, 1)), np.zeros((2, 3))
    tracemalloc.start()
    try:
        args = (x, h, w[:, :2], w[:, 2:])
        cupyrnn.block_gru(*args, np.zeros(2), np.zeros(1), resets=resets, reverse=reverse)
        assert tracemalloc.get_traced_memory()[1] < 1000 * T
    finally:
        tracemalloc.stop()


@each_direction
@each_block
def test_lists_of_numbers_and_of_truths(
    ops: Ops, block: str, reverse: bool, rng: np.random.Generator
) -> None:
    op, attributes = BLOCKS[block]
    inputs = op.problem(rng, (4, 2, 3, 5))
    seqs = sequences(rng, 4, 2, "lengths+resets", reverse)
    as_lists = {"sequence_lengths": seqs.lengths.tolist(), "resets": seqs.resets.tolist()}
    expected = op.forward(ops, inputs, **attributes, **seqs.attributes)
    for name, a in (
        op.forward(ops, inputs, **attributes, **{**seqs.attributes, **as_lists})._asdict().items()
    ):
        np.testing.assert_array_equal(a, getattr(expected, name), name)
    turned = np.asfortranarray(seqs.resets)[::-1][::-1]
    attributes = {**attributes, **seqs.attributes, "resets": turned, "reverse": np.bool_(reverse)}
    np.testing.assert_array_equal(op.forward(ops, inputs, **attributes).h, expected.h)


@pytest.mark.parametrize("kind", ["none", "lengths"])
@each_block
def test_reverse_is_running_over_reversed_sequences(
    ops: Ops, block: str, kind: str, rng: np.random.Generator
) -> None:
    op, attributes = BLOCKS[block]
    seqs = sequences(rng, 6, 4, kind, reverse=True)
    inputs = op.problem(rng, (6, 4, 3, 5))
    lengths = np.array([seqs.length(b) for b in range(4)])

    def turned(a: Any) -> Any:
        """Return a[T, B, ·] with the steps of each sequence from its last to its first."""
        result = a.copy()
        for b, n in enumerate(lengths):
            result[:n, b] = a[:n, b][::-1]
        return result

    out = op.forward(ops, inputs, **attributes, **seqs.attributes)
    forwards = {**attributes, **seqs._replace(reverse=False).attributes}
    again = op.forward(ops, {**inputs, "x": turned(inputs["x"])}, **forwards)
    for name, a, e in zip(out._fields, out, again, strict=True):
        assert_close(turned(a), e, "float64", name)
    cotangents = {n: rng.standard_normal(out.h.shape) for n in op.cotangents}
    g = op.backward(ops, inputs, out, cotangents, **attributes, **seqs.attributes)
    e = op.backward(
        ops,
        {**inputs, "x": turned(inputs["x"])},
        again,
        {n: turned(a) for n, a in cotangents.items()},
        **forwards,
    )
    e["x"] = turned(e["x"])
    for name, a in g.items():
        assert_close(a, e[name], "float64", name, at_least=1.0)


@each_direction
@each_block
def test_memory_layout_does_not_matter(
    ops: Ops, block: str, reverse: bool, rng: np.random.Generator
) -> None:
    op, attributes = BLOCKS[block]
    seqs = sequences(rng, 5, 3, "lengths+resets", reverse)
    inputs = op.problem(rng, (5, 3, 2, 4))
    call = {**attributes, **seqs.attributes}
    out = op.forward(ops, inputs, **call)
    cotangents = {n: rng.standard_normal(out.h.shape) for n in op.cotangents}
    expected = op.backward(ops, inputs, out, cotangents, **call)
    arrays = {n: dict(layouts(a)) for n, a in (inputs | out._asdict() | cotangents).items()}
    for layout in arrays["x"]:
        one = {n: a[layout] for n, a in arrays.items()}
        given_inputs, given_cotangents = (
            {n: one[n] for n in names} for names in (inputs, cotangents)
        )
        for name, a in op.forward(ops, given_inputs, **call)._asdict().items():
            assert_close(a, getattr(out, name), "float64", f"{layout} {name}")
        saved = type(out)(**{n: one[n] for n in out._fields})
        g = op.backward(ops, given_inputs, saved, given_cotangents, **call)
        for name, a in g.items():
            assert_close(a, expected[name], "float64", f"{layout} {name}", at_least=1.0)


@pytest.mark.compiled
@pytest.mark.parametrize("kind", ["none", "lengths+resets"])
@each_direction
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@each_block
def test_inputs_are_neither_written_nor_returned(
    ops: Ops, block: str, dtype: str, reverse: bool, kind: str, rng: np.random.Generator
) -> None:
    op, attributes = BLOCKS[block]
    seqs = sequences(rng, 5, 3, kind, reverse)
    inputs = op.problem(rng, (5, 3, 2, 4), np.dtype(dtype))
    call = {**attributes, **seqs.attributes}
    out = op.forward(ops, inputs, **call)
    cotangents = {n: rng.standard_normal(out.h.shape).astype(dtype) for n in op.cotangents}
    given = [*inputs.values(), *out, *cotangents.values()]
    given += [a for a in (seqs.lengths, seqs.resets) if a is not None]
    copies = [a.copy() for a in given]
    results = [*op.forward(ops, inputs, **call)]
    results += op.backward(ops, inputs, out, cotangents, **call).values()
    for a, copy in zip(given, copies, strict=True):
        np.testing.assert_array_equal(a, copy)
        assert not any(np.may_share_memory(a, result) for result in results)


def test_without_a_gradient_of_the_cell_states(ops: Ops, rng: np.random.Generator) -> None:
    """None, zeros, and zeros but past the ends: all the same."""
    seqs = sequences(rng, 6, 4, "lengths+resets", reverse=False)
    inputs = PEEPHOLE.problem(rng, (6, 4, 3, 5))
    call = {**CLIPPED, **seqs.attributes}
    out = PEEPHOLE.forward(ops, inputs, **call)
    h_grad = rng.standard_normal(out.h.shape)
    past = np.where(seqs.past[..., None], np.nan, np.zeros(out.h.shape))
    none, *others = (
        PEEPHOLE.backward(ops, inputs, out, {"cs_grad": cs_grad, "h_grad": h_grad}, **call)
        for cs_grad in (None, np.zeros(out.h.shape), past)
    )
    for other in others:
        for name, a in none.items():
            np.testing.assert_array_equal(other[name], a, name)


@st.composite
def any_sequences(draw: Any) -> Sequences:
    """Every combination, at small sizes."""
    T, B = draw(st.integers(0, 6)), draw(st.integers(0, 4))
    lengths = most = resets = None
    what = draw(st.sampled_from(["all", "seq_len_max", "sequence_lengths"]))
    if what == "seq_len_max":
        most = draw(st.integers(0, T))
    if what == "sequence_lengths":
        lengths = np.array(draw(st.tuples(*[st.integers(0, T)] * B)), int)
    if draw(st.booleans()):
        marks = draw(st.lists(st.booleans(), min_size=T * B, max_size=T * B))
        resets = np.array(marks, bool).reshape(T, B)
    return Sequences(T, B, most, lengths, resets, draw(st.booleans()))


@settings(max_examples=100, deadline=None)
@given(
    block=st.sampled_from(list(BLOCKS)),
    seqs=any_sequences(),
    sizes=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    rows=st.sampled_from([1, 5, 1024]),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_combinations_and_their_derivative(
    block: str, seqs: Sequences, sizes: tuple[int, int], rows: int, seed: int
) -> None:
    rng, (op, attributes) = np.random.default_rng(seed), BLOCKS[block]
    shape = seqs.T, seqs.B, *sizes
    call = {**attributes, **seqs.attributes}
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_blocks(monkeypatch, rows)
        check_block(cupyrnn, block, shape, seqs, rng)
        inputs = op.problem(rng, shape)

        def forward(**moved: Any) -> Any:
            out = op.forward(cupyrnn, moved, **call)
            return (out.cs, out.h) if block != "gru" else (out.h,)

        out = op.forward(cupyrnn, inputs, **call)
        cotangents = {n: rng.standard_normal(out.h.shape) for n in op.cotangents}
        g = op.backward(cupyrnn, inputs, out, cotangents, **call)
        assert_gradients(forward, inputs, list(cotangents.values()), g, rng)


@pytest.mark.compiled
@each_kind
@each_direction
@each_block
def test_gradient_is_the_derivative(
    ops: Ops, block: str, reverse: bool, kind: str, rng: np.random.Generator
) -> None:
    """What each room returns, against the complex step of NumPy's forward pass."""
    op, attributes = BLOCKS[block]
    seqs = sequences(rng, 6, 4, kind, reverse)
    call = {**attributes, **seqs.attributes}
    inputs = op.problem(rng, (6, 4, 3, 5))
    out = op.forward(ops, inputs, **call)
    cotangents = {n: rng.standard_normal(out.h.shape) for n in op.cotangents}
    g = op.backward(ops, inputs, out, cotangents, **call)

    def forward(**moved: Any) -> Any:
        moved_out = op.forward(cupyrnn, moved, **call)
        return (moved_out.cs, moved_out.h) if block != "gru" else (moved_out.h,)

    assert_gradients(forward, inputs, list(cotangents.values()), g, rng)


def test_two_calls_make_a_bidirectional_net(ops: Ops, rng: np.random.Generator) -> None:
    """Without peepholes it is CudnnRNN's, gate by gate, with lengths and resets."""
    T, B, I, H = 6, 4, 3, 5
    seqs = sequences(rng, T, B, "lengths+resets", reverse=False)
    case = Case("lstm", T, B, I, H, 1, BI, lengths=tuple(seqs.lengths))
    inputs = nets.problem(rng, case)
    net = nets.forward(ops, case, inputs, resets=seqs.resets)
    weights = reference.cudnn_weights(inputs["params"], "lstm", 1, H, I, True)
    outs, calls = [], []
    for d, reverse in enumerate((False, True)):
        w = np.hstack([weights[0, d]["W"], weights[0, d]["R"]]).T  # columns i, f, ci, o: "ifco"
        b = weights[0, d]["bW"] + weights[0, d]["bR"]
        first = {"cs_prev": inputs["input_c"][d], "h_prev": inputs["input_h"][d]}
        calls.append({"x": inputs["input"], **first, "w": w, "b": b})
        both = {**seqs._replace(reverse=reverse).attributes, "gate_order": "ifco"}
        outs.append(ops.block_lstm(**calls[-1], **both))
    assert_close(np.concatenate([out.h for out in outs], 2), net.output, "float64", "output")
    # The reverse direction ends at the first step.
    present = seqs.lengths > 0
    assert_close(outs[1].cs[0, present], net.output_c[1, present], "float64", "last cs")

    cotangents = nets.cotangents_of(rng, case)
    cotangents["output_h_backprop"][...] = cotangents["output_c_backprop"][...] = 0
    g = nets.backward(ops, case, inputs, net, cotangents, resets=seqs.resets)
    dy = cotangents["output_backprop"]
    halves = [
        ops.block_lstm_grad(
            **call,
            **out._asdict(),
            cs_grad=None,
            h_grad=dy[..., d * H : (d + 1) * H],
            **seqs._replace(reverse=d == 1).attributes,
            gate_order="ifco",
        )
        for d, (call, out) in enumerate(zip(calls, outs, strict=True))
    ]
    assert_close(halves[0].x_grad + halves[1].x_grad, g.input_backprop, "float64", "x_grad")
    found = reference.cudnn_weights(g.params_backprop, "lstm", 1, H, I, True)
    for d, half in enumerate(halves):
        w_grad = np.hstack([found[0, d]["W"], found[0, d]["R"]]).T
        assert_close(half.w_grad, w_grad, "float64", "w_grad")
        assert_close(half.b_grad, found[0, d]["bR"], "float64", "b_grad")
        assert_close(half.cs_prev_grad, g.input_c_backprop[d], "float64", "cs_prev_grad")


def net_alone(
    case: Case, seqs: Sequences, inputs: dict[str, Any], masks: Any = None
) -> tuple[Any, Any, Any]:
    """Return output, output_h and output_c by the reference, episode by episode."""
    x, h, c, params = nets.with_c(case, inputs)
    out = np.zeros((case.T, case.B, case.D * case.P), x.dtype), h.copy(), c.copy()
    for b, begin, end, first, last in _parts(case, seqs):
        some = None if masks is None else [m[begin:end, b : b + 1] for m in masks]
        states = (np.where(first, s[:, b : b + 1], 0) for s in (h, c))
        one = reference.cudnn_rnn(
            x[begin:end, b : b + 1],
            *states,
            params,
            masks=some,
            **{**case.reference, "lengths": None},
        )
        out[0][begin:end, b] = one[0][:, 0]
        for state, part in zip(out[1:], one[1:], strict=True):
            state[:, b] = np.where(last[:, 0], part[:, 0], state[:, b])
    return out[0], out[1], out[2] if case.rnn_mode == "lstm" else np.zeros(())


def net_alone_grads(
    case: Case,
    seqs: Sequences,
    inputs: dict[str, Any],
    cotangents: dict[str, Any],
    masks: Any = None,
) -> cupyrnn.CudnnRNNGrads:
    """Return the gradients by the reference, episode by episode."""
    x, h, c, params = nets.with_c(case, inputs)
    dy, *d_last = nets.with_c(case, cotangents)
    dx, dh, dc, dparams = (np.zeros_like(a) for a in (x, h, c, params))
    for b, begin, end, first, last in _parts(case, seqs):
        some = None if masks is None else [m[begin:end, b : b + 1] for m in masks]
        one = reference.cudnn_rnn_grad(
            x[begin:end, b : b + 1],
            *(np.where(first, s[:, b : b + 1], 0) for s in (h, c)),
            params,
            dy[begin:end, b : b + 1],
            *(np.where(last, d[:, b : b + 1], 0) for d in d_last),
            masks=some,
            **{**case.reference, "lengths": None},
        )
        dx[begin:end, b] = one[0][:, 0]
        for total, part in zip((dh, dc), one[1:3], strict=True):
            total[:, b] += np.where(first, part, 0)[:, 0]
        dparams += one[3]
    return cupyrnn.CudnnRNNGrads(dx, dh, dc if case.rnn_mode == "lstm" else np.zeros(()), dparams)


def _parts(case: Case, seqs: Sequences) -> Iterator[tuple[int, int, int, Any, Any]]:
    """
    Yield the sequence, begin and end of each episode, and who is at its ends.

    That is, for each of the [L*D, 1, 1] layers and directions, whether it enters the episode with
    the states given, and whether it leaves its last states there.
    """
    backwards = (np.arange(case.L * case.D) % case.D == 1)[:, None, None]
    for b in range(case.B):
        episodes = seqs.episodes(b)
        for begin, end, cut in episodes:
            ends = end == episodes[-1][1]
            first = np.where(backwards, ends, not cut)
            yield b, begin, end, first, np.where(backwards, begin == 0, ends)


def check_net(
    ops: Any,
    case: Case,
    seqs: Sequences,
    rng: np.random.Generator,
    dtype: str = "float64",
    *,
    dropout: float = 0.0,
    time_major: bool = True,
) -> None:
    """cudnn_rnn with resets and its gradient against each episode alone, NaN past every end."""
    inputs = nets.problem(rng, case, kind_of(dtype))
    cotangents = nets.cotangents_of(rng, case, kind_of(dtype))
    inputs["input"][seqs.past] = cotangents["output_backprop"][seqs.past] = np.nan
    drop = {"dropout": dropout, "seed": 3}
    masks = nets.masks_of(ops, case, **drop) if dropout else None
    expected = net_alone(case, seqs, wide(inputs), masks)

    def turned(arrays: dict[str, Any]) -> dict[str, Any]:
        return arrays if time_major else nets.batch_major(arrays)

    resets = seqs.resets if time_major or seqs.resets is None else seqs.resets.T
    more = {"time_major": time_major, "resets": resets, "engine": nets.own(ops), **drop}
    out = nets.forward(ops, case, turned(inputs), **more)
    shown = type(out)(**turned(out._asdict()))
    nets.assert_outputs(shown, expected, dtype)
    assert not shown.output[seqs.past].any()
    inference = nets.forward(
        ops, case, turned(inputs), **{**more, "dropout": 0.0, "is_training": False}
    )
    without = net_alone(case, seqs, wide(inputs)) if dropout else expected
    nets.assert_outputs(type(out)(**turned(inference._asdict())), without, dtype, "inference")
    g = nets.backward(ops, case, turned(inputs), out, turned(cotangents), **more)
    e = net_alone_grads(case, seqs, wide(inputs), wide(cotangents), masks)
    nets.assert_grads(type(g)(**turned(g._asdict())), e, dtype)


NETS = [
    *(Case(mode, 6, 3, 3, 5, 2, BI) for mode in MODES),
    *(Case(mode, 3, 33, 1, 3, 1, UNI) for mode in MODES),
    Case("lstm", 6, 3, 4, 5, 2, BI, 2),
    Case("gru", 5, 3, 4, 4, 1, BI, input_mode="skip_input"),
]
each_net = pytest.mark.parametrize("case", NETS, ids=nets.case_id)
each_net_kind = pytest.mark.parametrize("kind", ["resets", "lengths+resets"])


def with_lengths(case: Case, seqs: Sequences) -> Case:
    return case._replace(lengths=None if seqs.lengths is None else tuple(map(int, seqs.lengths)))


@pytest.mark.compiled
@each_net_kind
@pytest.mark.parametrize(
    ("dtype", "case"),
    [("float64", case) for case in NETS]
    + [(dtype, case) for dtype in ("float16", "bfloat16", "float32") for case in NETS[:4]],
    ids=lambda a: a if isinstance(a, str) else nets.case_id(a),
)
def test_each_episode_of_a_net_alone_gives_the_same(
    ops: Ops, case: Case, dtype: str, kind: str, rng: np.random.Generator
) -> None:
    seqs = sequences(rng, case.T, case.B, kind, reverse=False)
    check_net(ops, with_lengths(case, seqs), seqs, rng, dtype)


@each_net_kind
@each_net
def test_several_blocks_of_rows_of_a_net(
    ops: Ops,
    case: Case,
    kind: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_blocks(monkeypatch, 4)
    case = case._replace(T=min(case.T, 5), B=min(case.B, 4))
    seqs = sequences(rng, case.T, case.B, kind, reverse=False)
    check_net(ops, with_lengths(case, seqs), seqs, rng)


@each_net_kind
@pytest.mark.parametrize("case", NETS[:4], ids=nets.case_id)
def test_resets_and_dropout_batch_major(
    ops: Ops, case: Case, kind: str, rng: np.random.Generator
) -> None:
    """resets is [B, T] as input is, and the masks are those of the call without resets."""
    seqs = sequences(rng, case.T, case.B, kind, reverse=False)
    check_net(ops, with_lengths(case, seqs), seqs, rng, dropout=0.4, time_major=False)


@settings(max_examples=60, deadline=None)
@given(
    case=nets.cases(),
    dropout=st.sampled_from([0.0, 0.4]),
    time_major=st.booleans(),
    rows=st.sampled_from([1, 5, 1024]),
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_nets_and_their_derivative(
    case: Case, dropout: float, time_major: bool, rows: int, data: Any, seed: int
) -> None:
    rng, (T, B) = np.random.default_rng(seed), (case.T, case.B)
    marks = data.draw(st.lists(st.booleans(), min_size=T * B, max_size=T * B), label="resets")
    resets = np.array(marks, bool).reshape(T, B)
    seqs = Sequences(T, B, None, case.lengths, resets)
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_blocks(monkeypatch, rows)
        check_net(cupyrnn, case, seqs, rng, dropout=dropout, time_major=time_major)
        nets.check_derivative(case, rng, resets=resets, dropout=dropout, seed=7)


def _calls() -> dict[str, dict[str, Any]]:
    """Return right arguments of each op that takes sequences, by name."""
    rng = np.random.default_rng(0)
    calls = {}
    for op in (LSTM, GRU):
        inputs = op.problem(rng, (6, 3, 4, 5))
        out = op.forward(cupyrnn, inputs)
        grads = {n: np.ones((6, 3, 5)) for n in op.cotangents}
        calls[op.name] = inputs
        calls[f"{op.name}_grad"] = inputs | out._asdict() | grads
    inputs = {"input_c": None, **nets.problem(rng, Case("gru", 6, 3, 4, 5))}
    out = cupyrnn.cudnn_rnn(**inputs, rnn_mode="gru")
    calls["cudnn_rnn"] = inputs | {"rnn_mode": "gru"}
    calls["cudnn_rnn_backprop"] = calls["cudnn_rnn"] | out._asdict()
    calls["cudnn_rnn_backprop"] |= {**dict.fromkeys(nets.COTANGENTS), "output_c": None}
    return calls


CALLS = _calls()


def raises(op: str, error: type[Exception], message: str, **changed: Any) -> None:
    with pytest.raises(error, match=f"^{op}: {message}"):
        getattr(cupyrnn, op)(**{**CALLS[op], **changed})


@pytest.mark.parametrize("op", CALLS)
def test_resets_must_be_booleans_by_step_and_sequence(op: str) -> None:
    marks = np.zeros((6, 3), bool)
    getattr(cupyrnn, op)(**CALLS[op], resets=marks)
    for wrong in (marks.T, marks[:5], marks[:, 0], marks[..., None], np.bool_(True)):
        message = re.escape(f"resets has shape {np.shape(wrong)}, expected (T, B) = (6, 3)")
        raises(op, ValueError, f"{message}$", resets=wrong)
    for dtype in ("int8", "uint8", "float32", "object"):
        raises(
            op, TypeError, f"resets has dtype {dtype}, expected bool$", resets=marks.astype(dtype)
        )
    ragged = [[True], [True, False]]
    for wrong in (ragged, np.ma.masked_array(marks)):
        raises(op, TypeError, "resets is .*, expected .*booleans", resets=wrong)


def test_resets_of_batch_major_calls_are_batch_major() -> None:
    args = CALLS["cudnn_rnn"] | {"time_major": False}
    args["input"], args["input_h"] = (args[n].swapaxes(0, 1) for n in ("input", "input_h"))
    cupyrnn.cudnn_rnn(**args, resets=np.zeros((3, 6), bool))
    message = re.escape("cudnn_rnn: resets has shape (6, 3), expected (B, T) = (3, 6)")
    with pytest.raises(ValueError, match=f"^{message}$"):
        cupyrnn.cudnn_rnn(**args, resets=np.zeros((6, 3), bool))


BLOCK_CALLS = [op for op in CALLS if op.startswith("block_")]


@pytest.mark.parametrize("op", BLOCK_CALLS)
def test_reverse_must_be_a_bool(op: str) -> None:
    for wrong in (0, 1, None, "True", np.ones(1, bool)):
        shown = re.escape(repr(wrong))
        raises(op, TypeError, f"reverse is {shown}, expected a bool$", reverse=wrong)


@pytest.mark.parametrize("op", BLOCK_CALLS)
def test_one_way_to_say_how_long(op: str) -> None:
    message = "seq_len_max and sequence_lengths are given, expected one of them$"
    raises(op, ValueError, message, seq_len_max=6, sequence_lengths=[6, 6, 6])


@pytest.mark.parametrize("op", BLOCK_CALLS)
def test_sequence_lengths_must_be_integers_by_sequence(op: str) -> None:
    getattr(cupyrnn, op)(**CALLS[op], sequence_lengths=[0, 6, 3])
    for wrong in ([6, 6], [6] * 4, np.full((3, 1), 6)):
        message = re.escape(f"sequence_lengths has shape {np.shape(wrong)}, expected (B,) = (3,)")
        raises(op, ValueError, f"{message}$", sequence_lengths=wrong)
    for wrong in (-1, 7):
        message = re.escape(f"sequence_lengths[1] is {wrong}, expected in [0, T] = [0, 6]")
        raises(op, ValueError, f"{message}$", sequence_lengths=[6, wrong, 6])
    message = "sequence_lengths has dtype float64, expected integers$"
    raises(op, TypeError, message, sequence_lengths=np.ones(3))
    message = "sequence_lengths has dtype bool, expected integers$"
    raises(op, TypeError, message, sequence_lengths=np.ones(3, bool))


def on_device(cupy: Any, op: str) -> dict[str, Any]:
    """Return right arguments in device memory."""
    return {
        n: cupy.asarray(a) if isinstance(a, np.ndarray) and n not in ON_HOST else a
        for n, a in CALLS[op].items()
    }


@pytest.mark.parametrize("op", CALLS)
def test_what_the_host_must_know_is_not_taken_from_a_device(op: str, cupy_on_cpu: Any) -> None:
    args = on_device(cupy_on_cpu, op)
    marks, lengths = np.zeros((6, 3), bool), np.full(3, 6)
    for name, a, what in (("resets", marks, "booleans"), ("sequence_lengths", lengths, "integers")):
        getattr(cupyrnn, op)(**args, **{name: a})
        message = f"^{op}: {name} is a cupy.ndarray, expected {what} on the host: a numpy.ndarray"
        with pytest.raises(TypeError, match=message):
            getattr(cupyrnn, op)(**args, **{name: cupy_on_cpu.asarray(a)})


def test_cudnn_does_not_take_resets(cupy_on_cpu: Any) -> None:
    args = on_device(cupy_on_cpu, "cudnn_rnn")
    message = r"^cudnn_rnn: engine is 'cudnn', but cuDNN does not take resets$"
    with pytest.raises(RuntimeError, match=message):
        cupyrnn.cudnn_rnn(**args, resets=np.zeros((6, 3), bool), engine="cudnn")
