"""The gradients of the weights of each example, their norms, and none at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from checks import Ops, assert_close
from new_cells import layer_norm_lstm, slstm
from problems import grus, lstms, nets

import cupyrnn
from cupyrnn.cells.contract import Form, Gradients
from cupyrnn.driver import by_example

SHAPES = [(1, 1, 1, 1), (3, 3, 1, 33), (7, 33, 3, 3), (33, 3, 33, 5)]
EMPTY = [(0, 2, 3, 4), (1, 0, 3, 4), (5, 0, 3, 4), (5, 2, 0, 4), (5, 2, 3, 0)]

# Of one call: the gradient op, and the fields of its results that belong to weights.
Call = tuple[Callable[..., Any], tuple[str, ...]]


def lstm_call(
    ops: Any,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    peephole: bool,
    dtype: str,
    **more: Any,
) -> Call:
    """Return the gradient of block_lstm, of examples or of all of them."""
    inputs = lstms.problem(rng, shape, peephole, dtype)
    out = ops.block_lstm(**inputs, **more)
    given = [(rng.standard_normal(out.h.shape)).astype(dtype) for _ in range(2)]

    def grads(example: int | None = None, **attributes: Any) -> Any:
        return lstms.grads(ops, inputs, out, *alone(given, 1, example), **attributes, **more)

    return grads, ("w_grad", "wci_grad", "wcf_grad", "wco_grad", "b_grad")


def gru_call(
    ops: Any, rng: np.random.Generator, shape: tuple[int, ...], dtype: str, **more: Any
) -> Call:
    inputs = grus.problem(rng, shape, dtype)
    out = ops.block_gru(**inputs, **more)
    given = [rng.standard_normal(out.h.shape).astype(dtype)]

    def grads(example: int | None = None, **attributes: Any) -> Any:
        return grus.grads(ops, inputs, out, *alone(given, 1, example), **attributes, **more)

    return grads, ("d_w_ru", "d_w_c", "d_b_ru", "d_b_c")


def net_call(ops: Any, rng: np.random.Generator, case: nets.Case, dtype: str, **more: Any) -> Call:
    inputs, engine = nets.problem(rng, case, dtype), {"engine": nets.own(ops)}
    out = nets.forward(ops, case, inputs, **more, **engine)
    more.pop("save", None)  # which host_reserved says
    cotangents = nets.cotangents_of(rng, case, dtype)

    def grads(example: int | None = None, **attributes: Any) -> Any:
        given = dict(zip(cotangents, alone(list(cotangents.values()), 1, example), strict=True))
        return nets.backward(ops, case, inputs, out, given, **attributes, **more, **engine)

    return grads, ("params_backprop",)


def alone(given: list[Any], axis: int, example: int | None) -> list[Any]:
    """Return gradients of outputs, zero but for an example: its gradient is that of a sum of it."""
    if example is None:
        return given
    kept = [np.zeros_like(a) for a in given]
    for to, a in zip(kept, given, strict=True):
        place = (slice(None),) * axis + (example,)
        to[place] = a[place]
    return kept


def check(call: Call, B: int, dtype: str) -> None:
    """Compare with a loop over the examples, and what belongs to no weight with the sum's call."""
    grads, names = call
    whole = grads()
    loop = [grads(b) for b in range(B)]
    for way in ("examples", "norms", "none"):
        found = grads(weight_gradients=way)
        for name in whole._fields:
            a, total = getattr(found, name), getattr(whole, name)
            if name not in names:
                assert_close(a, total, dtype, f"{way}: {name}")
                continue
            if way == "none":
                assert a is None
                continue
            each = np.array([getattr(g, name) for g in loop]).reshape(B, *total.shape)
            if way == "examples":
                assert a.dtype == total.dtype
                assert_close(a, each, dtype, f"{way}: {name}", at_least=1.0)
            else:
                wide = each.astype(np.float64).reshape(B, total.size)
                assert a.dtype == (dtype if np.dtype(dtype).itemsize > 2 else np.float32)
                expected = np.sqrt((wide * wide).sum(1))
                assert_close(a, expected, dtype, f"{way}: {name}", at_least=0.1)


each_dtype = pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
each_shape = pytest.mark.parametrize("shape", SHAPES + EMPTY)


def extent_of(rng: np.random.Generator, T: int, B: int, kind: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if "lengths" in kind:
        given["sequence_lengths"] = rng.integers(0, T + 1, B).astype(np.int32)
    if "resets" in kind:
        given["resets"] = rng.random((T, B)) < 0.3
    return given


each_extent = pytest.mark.parametrize("kind", ["full", "lengths", "resets", "lengths+resets"])


@pytest.mark.compiled
@each_shape
@each_dtype
def test_block_lstm(ops: Ops, shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    shape = ops.shape(shape)
    check(lstm_call(ops, rng, shape, bool(shape[0] % 2), dtype), shape[1], dtype)


@each_extent
def test_extents_of_no_units(ops: Ops, kind: str, rng: np.random.Generator) -> None:
    given = extent_of(rng, 3, 2, kind)
    check(lstm_call(ops, rng, (3, 2, 4, 0), False, "float64", **given), 2, "float64")
    check(gru_call(ops, rng, (3, 2, 4, 0), "float64", **given), 2, "float64")


@pytest.mark.compiled
@each_extent
@pytest.mark.parametrize("reverse", [False, True])
def test_extents(ops: Ops, kind: str, reverse: bool, rng: np.random.Generator) -> None:
    T, B, I, H = ops.shape((9, 5, 3, 4))
    given = extent_of(rng, T, B, kind) | {"reverse": reverse}
    check(lstm_call(ops, rng, (T, B, I, H), True, "float64", cell_clip=0.3, **given), B, "float64")
    check(gru_call(ops, rng, (T, B, I, H), "float64", **given), B, "float64")


def test_a_part_of_the_steps(rng: np.random.Generator) -> None:
    call = lstm_call(cupyrnn, rng, (9, 3, 2, 4), True, "float64", seq_len_max=4)
    check(call, 3, "float64")


@pytest.mark.compiled
@each_shape
def test_block_gru(ops: Ops, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    shape = ops.shape(shape)
    check(gru_call(ops, rng, shape, "float64"), shape[1], "float64")


@pytest.mark.compiled
@pytest.mark.parametrize("case", nets.CASES, ids=nets.case_id)
def test_nets(ops: Ops, case: nets.Case, rng: np.random.Generator) -> None:
    case = case.within(ops)
    check(net_call(ops, rng, case, "float64", dropout=0.4), case.B, "float64")


@each_dtype
def test_nets_of_every_dtype(ops: Ops, dtype: str, rng: np.random.Generator) -> None:
    case = nets.Case("lstm", 5, 3, 4, 7, 2, nets.BI, num_proj=3, lengths=(1, 5, 3))
    check(net_call(ops, rng, case, dtype), case.B, dtype)


def weights_of(kind: str, rng: np.random.Generator, K: int, H: int, P: int) -> Any:
    """Return one layer's weights of a kind, and how many states it has."""
    shapes: dict[str, Any] = {
        "GRU": (cupyrnn.BlockGRUParams, [(K + H, 2 * H), (K + H, H), (2 * H,), (H,)]),
        "LSTM": (
            cupyrnn.PeepholeLSTMParams,
            [(K + P, 4 * H), (4 * H,), (H,), (H,), (H,), (H, P)],
        ),
        "sLSTM": (slstm.SLSTMParams, [(K + H, 4 * H), (4 * H,)]),
        "layer-norm LSTM": (
            layer_norm_lstm.LayerNormLSTMParams,
            [(K + H, 4 * H), (4 * H,), (H,), (4 * H,), (4 * H,), (H,)],
        ),
    }
    make, sizes = shapes[kind]
    return make(*(0.5 * rng.standard_normal(s) for s in sizes))


STATES = {"GRU": 1, "LSTM": 2, "sLSTM": 4, "layer-norm LSTM": 2}


@pytest.mark.parametrize(
    "cell",
    # On a device those of the package are much like block_lstm and block_gru.
    [
        *(pytest.param(c, marks=pytest.mark.slow("cuda_on_cpu")) for c in list(STATES)[:2]),
        *list(STATES)[2:],
    ],
)
@each_extent
def test_stacked_rnn(ops: Ops, cell: str, kind: str, rng: np.random.Generator) -> None:
    """Two layers in both directions, with dropout between them."""
    T, B, I, H, L, D = 5, 3, 2, 4, 2, 2
    P = 3 if cell == "LSTM" else H
    x = rng.standard_normal((T, B, I))
    states = [0.5 + rng.random((L * D, B, n)) for n in (P, *[H] * (STATES[cell] - 1))]
    weights = [weights_of(cell, rng, I if n < D else D * P, H, P) for n in range(L * D)]
    given = extent_of(rng, T, B, kind) | {"direction": "bidirectional", "dropout": 0.3}
    x, *states = map(ops.to_device, (x, *states))
    weights = ops.to_device(weights)
    c = tuple(states[1:]) if len(states) > 2 else (*states[1:], None)[0]
    out = cupyrnn.stacked_rnn(x, states[0], c, weights, **given, seed=3)
    dy, dh = rng.standard_normal(out.output.shape), rng.standard_normal(out.output_h.shape)

    def grads(example: int | None = None, **attributes: Any) -> Any:
        found = cupyrnn.stacked_rnn_backprop(
            *(x, states[0], c, weights),
            *out[:3],
            *map(ops.to_device, (*alone([dy], 1, example), *alone([dh], 1, example))),
            *(None, out.reserve_space),
            **given,
            **attributes,
        )
        arrays = {n: a for n, a in found._asdict().items() if n[:5] == "input"}
        del arrays["input_c_backprop"]
        for n, entry in enumerate(found.weights_backprop):
            arrays |= {f"{m} {n}": a for m, a in zip(entry._fields, entry, strict=True)}
        on_host = {
            n: ops.xp.asnumpy(a) if a is not None and ops.xp is not np else a
            for n, a in arrays.items()
        }
        return SimpleNamespace(**on_host, _fields=tuple(on_host))

    names = tuple(f"{name} {n}" for n in range(L * D) for name in weights[0]._fields)
    check((grads, names), B, "float64")


@pytest.mark.parametrize("shape", [(300, 2, 20, 33), (33, 3, 200, 5), (600, 2, 600, 40)])
def test_by_pairs_and_by_products(
    ops: Ops, shape: tuple[int, ...], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways to a norm, of more steps than are paired at once, some examples at a time."""
    T, B, K, M = shape
    xp = ops.xp
    operands = [xp.asarray(rng.standard_normal((T, B, k))) for k in (K, 3)]
    d = xp.asarray(rng.standard_normal((T, B, M)))
    on_host = [a if xp is np else xp.asnumpy(a) for a in (*operands, d)]
    products = [np.einsum("tbk,tbm->bkm", a, on_host[-1]) for a in on_host[:-1]]
    expected = np.sqrt(sum((p * p).sum((1, 2)) for p in products))
    for pairs in (0.0, 1e9):
        for size in (1, 1 << 26):
            monkeypatch.setattr(by_example, "_PAIRS", pairs)
            monkeypatch.setattr(by_example, "_CPU_BYTES", size)
            monkeypatch.setattr(by_example, "_GPU_BYTES", size)
            norms = by_example._norms(xp, operands, d)
            assert_close(norms if xp is np else xp.asnumpy(norms), expected, "float64", f"{pairs}")


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("T", [2, 40])
def test_norms_do_not_overflow(ops: Ops, T: int, scale: float, rng: np.random.Generator) -> None:
    """Whose squares float32 cannot hold."""
    case = nets.Case("gru", T, 3, 5, 4)
    inputs, engine = nets.problem(rng, case, "float32"), {"engine": nets.own(ops)}
    out = nets.forward(ops, case, inputs, **engine)
    given = nets.cotangents_of(rng, case, "float32")
    norms = [
        nets.backward(
            ops,
            case,
            inputs,
            out,
            {n: (a * np.float32(s)) for n, a in given.items()},
            weight_gradients="norms",
            **engine,
        ).params_backprop
        for s in (1, scale)
    ]
    assert_close(norms[1] / np.float32(scale), norms[0], "float32", "norms")


def test_each_operand_has_its_scale(ops: Ops, rng: np.random.Generator) -> None:
    """What one matrix multiplied is large, what another one did is not."""
    inputs = lstms.problem(rng, (2, 3, 6, 5), False, "float32")
    inputs["x"] *= np.float32(1e25)
    inputs["w"][:6] *= np.float32(1e-25)
    out = ops.block_lstm(**inputs)
    given = [None, np.ones_like(out.h)]
    each, norms = (
        lstms.grads(ops, inputs, out, *given, weight_gradients=by).w_grad
        for by in ("examples", "norms")
    )
    expected = np.linalg.norm(each.astype(np.float64).reshape(3, -1), axis=1)
    assert_close(norms, expected, "float32", "norms")


def test_no_gradient_has_norm_zero(rng: np.random.Generator) -> None:
    grads, names = lstm_call(cupyrnn, rng, (4, 3, 2, 5), True, "float64")
    given = grads(1, weight_gradients="norms")
    for name in names:
        norms = getattr(given, name)
        assert norms[1] > 0
        assert not norms[[0, 2]].any()


@pytest.mark.parametrize("way", ["examples", "norms"])
def test_tangents(way: Any, rng: np.random.Generator) -> None:
    """jvp through them, beside central differences."""
    inputs = lstms.problem(rng, (5, 3, 2, 4), True)
    moved = {n: rng.standard_normal(a.shape) for n, a in inputs.items()}
    names = list(inputs)

    def function(*arrays: Any) -> Any:
        given = dict(zip(names, arrays, strict=True))
        out = cupyrnn.block_lstm(**given)
        g = cupyrnn.block_lstm_grad(
            **given, **out._asdict(), cs_grad=None, h_grad=out.h, weight_gradients=way
        )
        return g.w_grad, g.wci_grad, g.b_grad

    _, tangents = cupyrnn.jvp(function, tuple(inputs.values()), tuple(moved.values()))
    step = 1e-6
    ahead, behind = (function(*(inputs[n] + s * moved[n] for n in names)) for s in (step, -step))
    for t, a, b in zip(tangents, ahead, behind, strict=True):
        difference = (a - b) / (2 * step)
        assert np.abs(t - difference).max() < 1e-6 * np.abs(difference).max()


def test_through_vjp(rng: np.random.Generator) -> None:
    case = nets.Case("gru", 4, 3, 2, 5)
    inputs = nets.problem(rng, case)
    _, pullback = cupyrnn.vjp(
        cupyrnn.cudnn_rnn,
        inputs["input"],
        inputs["input_h"],
        None,
        inputs["params"],
        rnn_mode="gru",
    )
    dy = rng.standard_normal((4, 3, 5))
    each = pullback(output_backprop=dy, weight_gradients="examples").params_backprop
    norms = pullback(output_backprop=dy, weight_gradients="norms").params_backprop
    assert each.shape == (3, inputs["params"].size)
    assert_close(norms, np.linalg.norm(each, axis=1), "float64", "norms")
    assert_close(each.sum(0), pullback(output_backprop=dy).params_backprop, "float64", "sum")
    step = cupyrnn.vjp(cupyrnn.gru_block_cell, *(rng.random(s) for s in STEP))[1]
    with pytest.raises(TypeError, match="weight_gradients is 'norms', expected 'sum'"):
        step(d_h=rng.random((2, 4)), weight_gradients="norms")
    for wrong in (np.array([1, 2]), np.array("sum"), None, "mean"):
        for function, given in (
            (pullback, {"output_backprop": dy}),
            (step, {"d_h": dy[0, :2, :4]}),
        ):
            with pytest.raises(
                ValueError, match=r"^pullback of .*: weight_gradients is .*, expected"
            ):
                function(**given, weight_gradients=wrong)


STEP = [(2, 3), (2, 4), (7, 8), (7, 4), (8,), (4,)]


@pytest.mark.parametrize("op", ["block_lstm_grad", "block_gru_grad", "cudnn_rnn_backprop"])
def test_another_word_is_an_error(op: str, rng: np.random.Generator) -> None:
    calls = {
        "block_lstm_grad": lambda: lstm_call(cupyrnn, rng, (2, 2, 2, 2), False, "float64"),
        "block_gru_grad": lambda: gru_call(cupyrnn, rng, (2, 2, 2, 2), "float64"),
        "cudnn_rnn_backprop": lambda: net_call(
            cupyrnn, rng, nets.Case("gru", 2, 2, 2, 2), "float64"
        ),
    }
    grads, _ = calls[op]()
    with pytest.raises(ValueError, match=f"{op}: weight_gradients is 'mean', expected"):
        grads(weight_gradients="mean")


@pytest.mark.parametrize("planted", ["operands", "deltas", "terms"])
def test_planted_errors_are_caught(
    planted: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of one step, of what one of the sums is made of, belong to another example."""
    write = by_example.write

    def wrong(xp: Any, cell: Any, rows: Any, grads: Any) -> None:
        first, *others = getattr(rows, planted)
        first = first.copy()
        first[2] = first[2, ::-1]
        write(xp, cell, rows._replace(**{planted: [first, *others]}), grads)

    monkeypatch.setattr(by_example, "write", wrong)
    with pytest.raises(AssertionError, match="off by"):
        check(lstm_call(cupyrnn, rng, (5, 3, 2, 4), True, "float64"), 3, "float64")


def test_matrices_that_share_deltas_are_not_taken_for_one(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A norm of the sum of the parts is not that of the parts together."""
    together = by_example.together

    def wrong(xp: Any, norms: Any) -> Any:
        return sum(norms) if len(norms) > 1 else together(xp, norms)

    monkeypatch.setattr(by_example, "together", wrong)
    with pytest.raises(AssertionError, match="norms: w_grad: off by"):
        check(lstm_call(cupyrnn, rng, (33, 3, 2, 4), False, "float64"), 3, "float64")


def test_products_on_a_device_are_not_one_per_example(
    cupy_on_cpu: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops, made, counts = Ops(cupy_on_cpu), [], []
    cublas = cupy_on_cpu.cuda.cublas
    for name in ("gemmEx", "gemmStridedBatchedEx"):

        def counted(*args: Any, name: str = name, product: Any = cublas.__dict__[name]) -> None:
            made.append(name)
            product(*args)

        monkeypatch.setattr(cublas, name, counted)
    for B in (2, 9):
        for way in ("examples", "norms"):
            grads, _ = lstm_call(ops, rng, (4, B, 2, 3), True, "float32")
            made.clear()
            grads(weight_gradients=way)
            counts.append(made.count("gemmStridedBatchedEx"))
    assert counts[:2] == counts[2:]
    assert min(counts) > 0


@pytest.mark.compiled
@pytest.mark.parametrize("save", ["states", 3])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_where_states_alone_are_saved(
    ops: Ops, mode: str, save: Any, rng: np.random.Generator
) -> None:
    case = nets.Case(mode, 7, 3, 2, 4, 2, nets.BI, lengths=(7, 0, 4))
    check(net_call(ops, rng, case, "float64", save=save), case.B, "float64")


class OneVector(layer_norm_lstm.LayerNormLSTMForm):
    """Every other number of two arrays: all gradients are views, and none lies in one piece."""

    shapes: ClassVar = {"w": "K+H, 8*H", "v": "28*H"}
    finished = Form.finished  # nothing is left to do
    change: ClassVar[Callable[[Any], Any]] = staticmethod(lambda grads: grads)

    def cell(self, xp: Any, weights: Any, attributes: None) -> Any:
        w, v = (xp.ascontiguousarray(a[..., ::2]) for a in weights)
        H = len(v) // 14
        vectors = [v[n * H : m * H] for n, m in itertools.pairwise((0, 4, 5, 9, 13, 14))]
        return super().cell(xp, (w, *vectors), None)

    def gradients(self, xp: Any, grads: Any) -> Gradients:
        w, v = (a[..., ::2] for a in self.change(grads))
        H = v.shape[-1] // 14
        parts = w[..., :-H, :], w[..., -H:, :]
        sums = None, None, v[..., : 4 * H], v[..., 4 * H : 5 * H]
        return Gradients(None, parts, sums, v[..., 5 * H :])


class TwoArrays(NamedTuple):
    """The weights of a layer-norm LSTM, every other number one of them."""

    w: Any
    v: Any
    form = OneVector()


def stacked_call(ops: Any, T: int, entry: Any, **attributes: Any) -> Any:
    """Return what computes the gradients of the weights of one layer, B = 3, I = 2, H = 4."""
    rng = np.random.default_rng(0)
    shapes = (T, 3, 2), (1, 3, 4), (1, 3, 4), (T, 3, 4)
    x, h, c, dy = (rng.standard_normal(shape) for shape in shapes)
    out = ops.stacked_rnn(x, h, c, [entry], **attributes)

    def grads(by: str) -> Any:
        return ops.stacked_rnn_backprop(
            *(x, h, c, [entry], *out[:3], dy, None, None, out.reserve_space), weight_gradients=by
        ).weights_backprop[0]

    return grads


@pytest.mark.parametrize("save", ["all", "states", 2])
@pytest.mark.parametrize("T", [1, 7])
def test_gradients_may_be_any_views(ops: Ops, save: Any, T: int, rng: np.random.Generator) -> None:
    plain = weights_of("layer-norm LSTM", rng, 2, 4, 4)
    w, v = (np.repeat(a, 2, -1) for a in (plain.w, np.concatenate(plain[1:])))
    expected, found = (stacked_call(ops, T, entry, save=save) for entry in (plain, TwoArrays(w, v)))
    for by in ("sum", "examples"):
        a, e = found(by), expected(by)
        assert_close(a.w[..., ::2], e.w, "float64", f"{by}: w")
        assert_close(a.v[..., ::2], np.concatenate(e[1:], axis=-1), "float64", f"{by}: v")
        assert not a.v[..., 1::2].any()
    a, e = found("norms"), expected("norms")
    assert_close(a.w, e.w, "float64", "norms: w")
    assert_close(a.v, np.sqrt(sum(n * n for n in e[1:])), "float64", "norms: v")


@pytest.mark.parametrize("by", ["sum", "examples", "norms"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda grads: grads._replace(v=grads.v.copy()), "returned no view of v, expected views"),
        (lambda grads: grads._replace(w=grads.w.copy()), "a matrix in memory of its own"),
        (
            lambda grads: grads._replace(v=np.broadcast_to(grads.v, grads.v.shape)),
            "returned a read-only array, expected views of all of grads that can be written to",
        ),
    ],
    ids=["a copy", "a copy of a matrix", "read-only"],
)
def test_gradients_that_cannot_be_written_to(
    by: str, change: Any, message: str, rng: np.random.Generator
) -> None:
    form = type("Changed", (OneVector,), {"change": staticmethod(change)})()
    entry = type("Given", (TwoArrays,), {"form": form})(np.ones((6, 32)), np.ones(112))
    with pytest.raises(ValueError, match=f"Changed.gradients: .*{message}"):
        stacked_call(cupyrnn, 2, entry)(by)


def test_sums_that_are_not_wanted(ops: Ops, rng: np.random.Generator) -> None:
    """A cell without a bias says so: what its gradients has no memory for is not computed."""
    entry = weights_of("GRU", rng, 2, 4, 4)
    expected = stacked_call(ops, 5, entry)

    class Without(type(entry.form)):  # type: ignore[misc]
        finished = Form.finished

        def gradients(self, xp: Any, grads: Any) -> Gradients:
            return super().gradients(xp, grads)._replace(sums=None)

    given = type("Given", (type(entry),), {"form": Without()})(*entry)
    with pytest.raises(ValueError, match="returned no view of b_ru"):
        stacked_call(ops, 5, given)("sum")
    Without.finished = lambda _, grads, made: grads
    for by in ("sum", "examples", "norms"):
        a, e = stacked_call(ops, 5, given)(by), expected(by)
        for name in ("w_ru", "w_c"):
            assert_close(getattr(a, name), getattr(e, name), "float64", f"{by}: {name}")
        assert not a.b_ru.any()
        assert not a.b_c.any()
