"""stacked_rnn with layers of different H: beside a call for each layer, and by complex step."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import needs
import numpy as np
import pytest
from checks import TOLERANCES, Ops, assert_close, assert_gradients
from new_cells.slstm import SLSTMParams

import cupyrnn
from cupyrnn import BlockGRUParams, BlockLSTMParams, PeepholeLSTMParams

T, B, I = 5, 4, 3
LENGTHS = np.array([5, 2, 0, 4])
RESETS = np.arange(T * B).reshape(T, B) % 5 == 2
STATES = ("output_h", "output_c")


class Case(NamedTuple):
    """The weights of every layer, H and P of each, and what else a call is given."""

    kind: Any
    widths: tuple[tuple[int, int], ...]
    D: int = 1
    more: dict[str, Any] = {}  # noqa: RUF012 - never written to

    @property
    def attributes(self) -> dict[str, Any]:
        return {"direction": ("unidirectional", "bidirectional")[self.D - 1], **self.more}

    @property
    def projects(self) -> bool:
        return any(H != P for H, P in self.widths)


BOTH = {"sequence_lengths": LENGTHS, "resets": RESETS}
CASES = {
    "lstm": Case(BlockLSTMParams, ((7, 7), (1, 1), (33, 33))),
    "gru, both ways": Case(BlockGRUParams, ((2, 2), (5, 5)), 2, BOTH),
    "peepholes, both ways": Case(PeepholeLSTMParams, ((6, 6), (3, 3), (4, 4)), 2, BOTH),
    "projection": Case(PeepholeLSTMParams, ((6, 4), (3, 2)), 2, {"cell_clip": 0.6, **BOTH}),
    "one P": Case(PeepholeLSTMParams, ((6, 2), (3, 2)), 1, {"sequence_lengths": LENGTHS}),
    "dropout": Case(BlockGRUParams, ((5, 5), (2, 2), (4, 4)), 2, {"dropout": 0.4, **BOTH}),
    "an empty layer's input": Case(BlockLSTMParams, ((3, 3), (0, 0), (2, 2)), 1),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def weights_of(rng: np.random.Generator, case: Case, dtype: Any) -> list[Any]:
    K, entries = I, []
    for H, P in case.widths:
        shapes = {"w": (K + P, 4 * H), "b": (4 * H,)}
        if case.kind is BlockGRUParams:
            shapes = {"w_ru": (K + H, 2 * H), "w_c": (K + H, H), "b_ru": (2 * H,), "b_c": (H,)}
        if case.kind is PeepholeLSTMParams:
            shapes |= dict.fromkeys(("wci", "wcf", "wco"), (H,))
        if case.projects:
            shapes["w_p"] = (H, P)
        for _ in range(case.D):
            arrays = {n: 0.4 * rng.standard_normal(s) for n, s in shapes.items()}
            entries.append(case.kind(**{n: a.astype(dtype) for n, a in arrays.items()}))
        K = case.D * P
    return entries


def problem(rng: np.random.Generator, case: Case, dtype: Any = np.float64) -> dict[str, Any]:
    """Return input, input_h and input_c, an array for each layer, and weights."""

    def states(of: int) -> list[Any]:
        shapes = [(case.D, B, width[of]) for width in case.widths]
        return [(0.7 * rng.standard_normal(s)).astype(dtype) for s in shapes]

    c = None if case.kind is BlockGRUParams else states(0)
    x = rng.standard_normal((T, B, I)).astype(dtype)
    return {"input": x, "input_h": states(1), "input_c": c, "weights": weights_of(rng, case, dtype)}


def cotangents_of(rng: np.random.Generator, case: Case, dtype: Any = np.float64) -> dict[str, Any]:
    drawn = problem(rng, case, dtype)
    dy = rng.standard_normal((T, B, case.D * case.widths[-1][1])).astype(dtype)
    given = {"output_backprop": dy, "output_h_backprop": drawn["input_h"]}
    return given | {"output_c_backprop": drawn["input_c"]}


def gradient(ops: Any, case: Case, inputs: Any, out: Any, cotangents: Any) -> Any:
    attributes = {n: a for n, a in case.attributes.items() if n != "seed"}
    given = {n: list(a) if isinstance(a, tuple) else a for n, a in out._asdict().items()}
    return ops.stacked_rnn_backprop(**inputs, **given, **cotangents, **attributes)


@pytest.mark.compiled
@each_case
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_is_a_call_for_each_layer(
    ops: Ops, case: Case, dtype: str, rng: np.random.Generator
) -> None:
    """In every dtype; the gradients too, from the last layer to the first."""
    if dtype == "bfloat16":
        needs.module("ml_dtypes")
    if case.more.get("dropout"):
        case = case._replace(more={**case.more, "dropout": 0.0})
    inputs, cotangents = (f(rng, case, np.dtype(dtype)) for f in (problem, cotangents_of))
    out = ops.stacked_rnn(**inputs, **case.attributes)
    grads = gradient(ops, case, inputs, out, cotangents)
    assert isinstance(out.output_h, tuple)
    below, layers, D = inputs["input"].astype(np.float64), [], case.D
    wide = [e._make(None if a is None else a.astype(float) for a in e) for e in inputs["weights"]]
    for layer in range(len(case.widths)):
        states = [
            None if inputs[n] is None else inputs[n][layer].astype(np.float64)
            for n in ("input_h", "input_c")
        ]
        args = (below, *states, wide[layer * D : (layer + 1) * D])
        one = cupyrnn.stacked_rnn(*args, **case.attributes)
        layers.append((args, one))
        below = one.output
        for name in STATES[: 1 + (inputs["input_c"] is not None)]:
            found = getattr(out, name)[layer]
            assert found.dtype == dtype
            assert_close(found, getattr(one, name), dtype, f"{name} {layer}", at_least=1.0)
    assert_close(out.output, below, dtype, "output", at_least=1.0)
    inference = ops.stacked_rnn(**inputs, **case.attributes, is_training=False)
    assert_close(inference.output, out.output, dtype, "inference", at_least=1.0)
    if np.dtype(dtype).itemsize == 2 and "cell_clip" in case.more:
        return  # a state that is rounded to the clip has another slope
    dy = cotangents["output_backprop"].astype(np.float64)
    for layer, (args, one) in reversed([*enumerate(layers)]):
        of_states = [
            None if cotangents[f"{n}_backprop"] is None
            else cotangents[f"{n}_backprop"][layer].astype(np.float64)
            for n in STATES
        ]  # fmt: skip
        g = cupyrnn.stacked_rnn_backprop(
            *args, *one[:3], dy, *of_states, one.reserve_space, **case.attributes
        )
        for name in ("input_h_backprop", "input_c_backprop"):
            if getattr(g, name).shape:
                found = getattr(grads, name)[layer]
                assert_close(found, getattr(g, name), dtype, f"{name} {layer}", at_least=1.0)
        for n, entry in enumerate(g.weights_backprop):
            for name, a in entry._asdict().items():
                if a is not None:
                    found = getattr(grads.weights_backprop[layer * D + n], name)
                    assert_close(found, a, dtype, f"{name} {layer}", at_least=1.0)
        dy = g.input_backprop
    assert_close(grads.input_backprop, dy, dtype, "input_backprop", at_least=1.0)


def flat(value: Any, name: str) -> dict[str, Any]:
    """Return all arrays of a net by the names of their places."""
    if isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", range(len(value)))
        parts = (flat(a, f"{name} {n}") for n, a in zip(names, value, strict=True))
        return {n: a for part in parts for n, a in part.items()}
    return {} if value is None or not np.shape(value) else {name: value}


def like(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """Return a net with the arrays of these names."""
    if isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", range(len(value)))
        parts = [like(a, f"{name} {n}", arrays) for n, a in zip(names, value, strict=True)]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return arrays.get(name, value)


@each_case
def test_gradient_is_the_derivative(case: Case, rng: np.random.Generator) -> None:
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    out = cupyrnn.stacked_rnn(**inputs, **case.attributes, seed=3)
    g = gradient(cupyrnn, case, inputs, out, cotangents)
    arrays = {n: a for name, value in inputs.items() for n, a in flat(value, name).items()}
    gradients = {
        n: a for name in inputs for n, a in flat(getattr(g, f"{name}_backprop"), name).items()
    }

    def forward(**moved: Any) -> list[Any]:
        given = {name: like(value, name, moved) for name, value in inputs.items()}
        found = cupyrnn.stacked_rnn(**given, **case.attributes, seed=3)
        return [found.output, *flat(found.output_h, "h").values(), *flat(found[2], "c").values()]

    given = [a for name in cotangents for a in flat(cotangents[name], name).values()]
    assert_gradients(forward, arrays, given, gradients, rng)


@pytest.mark.parametrize("kind", [PeepholeLSTMParams, BlockGRUParams])
def test_layers_of_one_size_may_have_lists_too(
    ops: Ops, kind: Any, rng: np.random.Generator
) -> None:
    """With the same bits as arrays have, and each state as it was given."""
    case = Case(kind, ((4, 4), (4, 4)), 2, {"dropout": 0.3, **BOTH})
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    listed = ops.stacked_rnn(**inputs, **case.attributes)
    of_lists = gradient(ops, case, inputs, listed, cotangents)

    def whole(given: dict[str, Any]) -> dict[str, Any]:
        joined = {n: a for n, a in given.items() if isinstance(a, list) and n != "weights"}
        return given | {n: np.concatenate(a) for n, a in joined.items()}

    out = ops.stacked_rnn(**whole(inputs), **case.attributes)
    g = gradient(ops, case, whole(inputs), out, whole(cotangents))
    names = ["h"] if kind is BlockGRUParams else ["h", "c"]
    for n in names:
        assert np.array_equal(
            np.concatenate(getattr(listed, f"output_{n}")), getattr(out, f"output_{n}")
        )
        name = f"input_{n}_backprop"
        assert np.array_equal(np.concatenate(getattr(of_lists, name)), getattr(g, name))
    assert np.array_equal(listed.output, out.output)
    assert np.array_equal(of_lists.input_backprop, g.input_backprop)
    if kind is PeepholeLSTMParams:
        mixed = ops.stacked_rnn(
            **(inputs | {"input_h": whole(inputs)["input_h"]}), **case.attributes
        )
        assert isinstance(mixed.output_c, tuple)
        assert np.array_equal(mixed.output_h, out.output_h)


def test_one_p_and_different_h(ops: Ops, rng: np.random.Generator) -> None:
    """Then h may be an array: with projections to one size."""
    case = CASES["one P"]
    inputs = problem(rng, case)
    out = ops.stacked_rnn(**inputs, **case.attributes)
    h = np.concatenate(inputs["input_h"])
    other = ops.stacked_rnn(**(inputs | {"input_h": h}), **case.attributes)
    assert np.array_equal(other.output_h, np.concatenate(out.output_h))
    assert np.array_equal(other.output, out.output)
    message = (
        "stacked_rnn: input_c is a numpy.ndarray, expected a list of L = 2 arrays (D, B, H), one for"
        " each layer, as H is 3 and 6"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cupyrnn.stacked_rnn(**(inputs | {"input_h": h, "input_c": np.zeros((2, B, 6))}))


@pytest.mark.parametrize("name", ["peepholes, both ways", "gru, both ways"])
def test_batch_first(ops: Ops, name: str, rng: np.random.Generator) -> None:
    case = CASES[name]
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    out = ops.stacked_rnn(**inputs, **case.attributes)
    g = gradient(ops, case, inputs, out, cotangents)

    def turned(a: Any) -> Any:
        if isinstance(a, (list, tuple)) and not hasattr(a[0], "_fields"):
            return type(a)(map(turned, a))
        return a.swapaxes(0, 1) if isinstance(a, np.ndarray) and a.ndim == 3 else a

    first = case._replace(more={**case.more, "resets": RESETS.T, "time_major": False})
    of_batch = {n: turned(a) for n, a in inputs.items()}
    out_b = ops.stacked_rnn(**of_batch, **first.attributes)
    g_b = gradient(ops, first, of_batch, out_b, {n: turned(a) for n, a in cotangents.items()})
    for found, expected in ((out_b[:3], out[:3]), (g_b[:3], g[:3])):
        for a, e in zip(found, expected, strict=True):
            pairs = zip(flat(turned(a), "a").values(), flat(e, "e").values(), strict=True)
            assert all(np.array_equal(p, q) for p, q in pairs)


def test_a_cell_with_several_states(ops: Ops, rng: np.random.Generator) -> None:
    """Each of which is a list of layers, in a tuple."""
    widths, K, weights = (3, 5), I, []
    for H in widths:
        w = 0.5 * rng.standard_normal((K + H, 4 * H))
        weights.append(SLSTMParams(w, rng.standard_normal(4 * H)))
        K = H
    x = rng.standard_normal((T, B, I))
    h, *others = ([0.5 + rng.random((1, B, H)) for H in widths] for _ in range(4))
    out = cupyrnn.stacked_rnn(x, h, tuple(others), weights)
    assert [len(state) for state in out.output_c] == [2, 2, 2]
    below = x
    for layer in range(2):
        states = tuple(state[layer] for state in others)
        one = cupyrnn.stacked_rnn(below, h[layer], states, weights[layer : layer + 1])
        below = one.output
        for found, expected in zip(out.output_c, one.output_c, strict=True):
            assert_close(found[layer], expected, "float64", "output_c")
    assert_close(out.output, below, "float64", "output")
    args = (x, h, tuple(others), weights)
    g = cupyrnn.stacked_rnn_backprop(
        *args, *out[:3], out.output, h, out.output_c, out.reserve_space
    )
    found, pullback = cupyrnn.vjp(cupyrnn.stacked_rnn, *args)
    names = ("output_backprop", "output_h_backprop", "output_c_backprop")
    again = pullback(**dict(zip(names, (found.output, h, found.output_c), strict=True)))
    for n, a in flat(tuple(g), "g").items():
        assert np.array_equal(a, flat(tuple(again), "g")[n]), n


def test_vjp_and_jvp(rng: np.random.Generator) -> None:
    """The default clip of 3 is that of the call; tangents go through lists."""
    case = CASES["lstm"]
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    inputs["input_c"] = [9 * a for a in inputs["input_c"]]
    out, pullback = cupyrnn.vjp(cupyrnn.stacked_rnn, **inputs)
    found = pullback(**cotangents)
    clipped = case._replace(more={"cell_clip": 3.0})
    expected = gradient(cupyrnn, clipped, inputs, out, cotangents)
    for n, a in flat(tuple(expected), "g").items():
        assert np.array_equal(a, flat(tuple(found), "g")[n]), n
    along = problem(rng, case)["input_h"]
    _, slope = cupyrnn.jvp(
        lambda h: cupyrnn.stacked_rnn(**(inputs | {"input_h": h})).output_h,
        (inputs["input_h"],),
        (along,),
    )
    total = sum((s * d).sum() for s, d in zip(slope, cotangents["output_h_backprop"], strict=True))
    none = dict.fromkeys(("output_backprop", "output_c_backprop"))
    g = pullback(**(cotangents | none))
    back = sum((a * d).sum() for a, d in zip(g.input_h_backprop, along, strict=True))
    assert abs(total - back) < 1e-12 * abs(back)


def test_onnx_nodes_of_different_h_are_one_net(rng: np.random.Generator) -> None:
    """By the packed parameters, or as the block op has them where there are peepholes."""
    nodes, K = [], I
    for H in (6, 2):
        shapes = ((1, 4 * H, K), (1, 4 * H, H), (1, 8 * H), (1, 3 * H))
        nodes.append([0.5 * rng.standard_normal(s) for s in shapes])
        K = H
    x = rng.standard_normal((T, B, I))
    states = [np.zeros((1, B, 6)), np.zeros((1, B, 2))]
    ways: list[tuple[int, Any]] = [
        (3, lambda node: [cupyrnn.params_to_block_lstm(cupyrnn.params_from_onnx(*node))]),
        (4, lambda node: cupyrnn.block_lstm_from_onnx(*node)),
    ]
    for count, weights_of_node in ways:
        weights = [entry for node in nodes for entry in weights_of_node(node[:count])]
        same: dict[str, Any] = {"forget_bias": 0, "cell_clip": 0}
        out = cupyrnn.stacked_rnn(x, states, states, weights, **same)
        below = x
        for layer, (W, R, b, P) in enumerate(nodes):
            inputs = [below, W, R, b, None, None, None, P if count == 4 else None]
            node = cupyrnn.run_onnx_node("LSTM", inputs)
            assert_close(out.output_c[layer], node.Y_c, "float64", "Y_c")
            below = node.Y[:, 0]
        assert_close(out.output, below, "float64", "Y")


def small(**changed: Any) -> dict[str, Any]:
    """Two layers with H = 4 and 2 in one direction."""
    case = Case(BlockLSTMParams, ((4, 4), (2, 2)))
    return problem(np.random.default_rng(0), case) | changed


def entry(n: int, **changed: Any) -> list[Any]:
    entries = list(small()["weights"])
    entries[n] = entries[n]._replace(**changed)
    return entries


H_4 = np.zeros((2, B, 4))
ERRORS: list[Any] = [
    ({"input_h": H_4, "input_c": H_4}, ValueError, "input_h is an array, and the layers have H = 2 and 4: pass input_h and input_c as lists of an array (D, B, H) for each layer"),
    ({"input_c": H_4}, ValueError, "input_c is a numpy.ndarray, expected a list of L = 2 arrays (D, B, H), one for each layer, as H is 2 and 4"),
    ({"input_h": small()["input_h"][:1]}, ValueError, "input_h has 1 entry, expected L = 2, an array (D, B, H) for each layer"),
    ({"input_h": []}, ValueError, "input_h has 0 entries, expected L = 2, an array (D, B, H) for each layer"),
    ({"input_c": small()["input_c"] * 2}, ValueError, "input_c has 4 entries, expected L = 2, an array (D, B, H) for each layer"),
    ({"input_c": small()["input_c"][::-1]}, ValueError, "input_c[0] has shape (1, 4, 2), expected (D, B, H) = (1, 4, 4)"),
    ({"input_h": [a[0] for a in small()["input_h"]]}, ValueError, "input_h[0] has shape (4, 4), expected (D, B, H)"),
    ({"input_h": [small()["input_h"][0], None]}, TypeError, "input_h[1] is None, expected a numpy.ndarray like input"),
    ({"input_h": [small()["input_h"][0], np.zeros((1, B, 2), "f4")]}, TypeError, "input_h[1] has dtype float32, expected float64 like input"),
    ({"input_h": [small()["input_h"][0], np.zeros((1, B, 3))], "input_c": [small()["input_c"][0], np.zeros((1, B, 3))]}, ValueError, "weights[1].w has shape (6, 8), expected (K+H, 4*H) = (7, 12) with K = 4, what layer 0 gives, and H = 3"),
    ({"weights": entry(1, w=np.zeros((7, 8)))}, ValueError, "weights[1].w has shape (7, 8), expected (K+H, 4*H) = (6, 8) with K = 4, what layer 0 gives, and H = 2"),
    ({"weights": entry(0, b=np.zeros(8))}, ValueError, "weights[0].b has shape (8,), expected (4*H,) = (16,)"),
]  # fmt: skip
# ruff: noqa: E501 - a case a line


@pytest.mark.parametrize(("changed", "error", "message"), ERRORS)
def test_errors(changed: dict[str, Any], error: Any, message: str) -> None:
    out = cupyrnn.stacked_rnn(**small())
    with pytest.raises(error, match=f"^{re.escape(f'stacked_rnn: {message}')}"):
        cupyrnn.stacked_rnn(**small(**changed))
    given = dict.fromkeys(out._fields) | {"reserve_space": out.reserve_space}
    given |= dict.fromkeys(("output_backprop", "output_h_backprop", "output_c_backprop"))
    with pytest.raises(error, match=f"^{re.escape(f'stacked_rnn_backprop: {message}')}"):
        cupyrnn.stacked_rnn_backprop(**small(**changed), **given)


def test_errors_of_the_gradient() -> None:
    out = cupyrnn.stacked_rnn(**small())
    given = {**small(), **out._asdict(), "output_backprop": out.output}
    given |= {"output_h_backprop": None, "output_c_backprop": None}
    for changed, message in (
        ({"output_backprop": np.zeros((T, B, 4))}, "output_backprop has shape (5, 4, 4), expected (T, B, D*H) = (5, 4, 2)"),
        ({"output": np.zeros((T, B, 4))}, "output has shape (5, 4, 4), expected (T, B, D*H) = (5, 4, 2)"),
        ({"output_c_backprop": out.output_c[:1]}, "output_c_backprop has 1 entry, expected L = 2, an array (D, B, H) for each layer"),
        ({"output_h_backprop": H_4}, "output_h_backprop is a numpy.ndarray, expected a list of L = 2 arrays (D, B, H), one for each layer, as H is 2 and 4"),
        ({"output_h": out.output_h[::-1]}, "output_h[0] has shape (1, 4, 2), expected (D, B, H) = (1, 4, 4)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{re.escape(f'stacked_rnn_backprop: {message}')}$"):
            cupyrnn.stacked_rnn_backprop(**{**given, **changed})


@pytest.mark.parametrize("name", ["output_h", "output_c", "output_h_backprop", "output_c_backprop"])
def test_a_layer_without_its_array(name: str) -> None:
    """Of what may be None as a whole."""
    out = cupyrnn.stacked_rnn(**small())
    given = {**small(), **out._asdict(), "output_backprop": out.output}
    given |= {"output_h_backprop": out.output_h, "output_c_backprop": out.output_c}
    given[name] = [given[name][0], None]
    message = rf"^stacked_rnn_backprop: {name}\[1\] is None, expected a numpy.ndarray like input$"
    with pytest.raises(TypeError, match=message):
        cupyrnn.stacked_rnn_backprop(**given)
