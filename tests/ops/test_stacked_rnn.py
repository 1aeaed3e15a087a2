"""stacked_rnn: beside chains of the block ops and beside cudnn_rnn, gradients, masks, errors."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import needs
import numpy as np
import pytest
import reference
from checks import TOLERANCES, assert_close, assert_gradients, layouts

import cupyrnn
from cupyrnn import BlockGRUParams, BlockLSTMParams, PeepholeLSTMParams
from cupyrnn.cells.contract import each
from cupyrnn.driver.dropout import keep_mask

UNI, BI = "unidirectional", "bidirectional"
SEEDS = {"seed": 5, "seed2": -3}


class Case(NamedTuple):
    """A configuration: the kind of weights, sizes, and what is not left out."""

    kind: Any
    T: int
    B: int
    I: int
    H: int
    L: int = 1
    D: int = 1
    lengths: tuple[int, ...] | None = None
    resets: bool = False
    dropout: float = 0.0
    more: dict[str, Any] = {}  # noqa: RUF012 - never written to

    @property
    def marks(self) -> Any:
        """Some steps that are marked, the first among them."""
        if not self.resets:
            return None
        marks = np.arange(self.T * self.B).reshape(self.T, self.B) % 4 == 1
        marks[:1, ::2] = True
        return marks

    @property
    def attributes(self) -> dict[str, Any]:
        """What both ops take by keyword."""
        return {
            "direction": BI if self.D == 2 else UNI,
            "sequence_lengths": None if self.lengths is None else np.array(self.lengths),
            "resets": self.marks,
            "dropout": self.dropout,
            **self.more,
        }

    @property
    def of_block(self) -> dict[str, Any]:
        """The same for a block op."""
        more = {n: v for n, v in self.more.items() if n != "forget_bias"}
        return {"sequence_lengths": self.lengths, "resets": self.marks, **more}


CASES = [
    Case(BlockLSTMParams, 1, 1, 1, 1),
    Case(BlockGRUParams, 1, 1, 1, 1),
    Case(BlockLSTMParams, 3, 33, 1, 3, 2, 2, more={"gate_order": "ifco"}),
    Case(BlockGRUParams, 3, 33, 1, 3, 2, 2),
    Case(PeepholeLSTMParams, 7, 4, 3, 5, 3, 2, (2, 7, 0, 5), more={"cell_clip": 0.5}),
    Case(BlockGRUParams, 7, 4, 3, 5, 3, 2, (2, 7, 0, 5)),
    Case(PeepholeLSTMParams, 7, 4, 3, 5, 2, 2, (2, 7, 0, 5), True, 0.4, {"forget_bias": 0.3}),
    Case(BlockGRUParams, 7, 4, 3, 5, 2, 2, (2, 7, 0, 5), True, 0.4),
    Case(BlockGRUParams, 6, 3, 33, 33, 2, 1, None, True, 0.5),
    Case(PeepholeLSTMParams, 6, 3, 2, 33, 3, 1, None, False, 1.0, {"cell_clip": 2.0}),
    Case(PeepholeLSTMParams, 5, 2, 3, 4, 2, 2, more={"recurrent_activation": "hard_sigmoid_0.2"}),
    Case(BlockGRUParams, 5, 2, 3, 4, 2, 2, more={"recurrent_activation": "hard_sigmoid_1/6"}),
]
EMPTY = [(0, 2, 3, 4), (5, 0, 3, 4), (5, 2, 0, 4), (5, 2, 3, 0), (1, 0, 3, 4), (0, 0, 0, 0)]


def case_id(case: Case) -> str:
    sizes = "-".join(f"{n}{getattr(case, n)}" for n in "TBIHLD")
    return (
        f"{case.kind.__name__.removesuffix('Params')}-{sizes}"
        + "".join(f"-{n}" for n in ("lengths", "resets", "dropout") if getattr(case, n))
        + "".join(f"-{n}" for n in case.more)
    )


each_case = pytest.mark.parametrize("case", CASES, ids=case_id)


def problem(rng: np.random.Generator, case: Case, dtype: Any = np.float64) -> dict[str, Any]:
    """Return input, input_h, input_c and weights."""
    places = (case.L * case.D, case.B, case.H)

    def draw(*shape: int, scale: float = 0.7) -> Any:
        return (scale * rng.standard_normal(shape)).astype(dtype)

    weights = []
    for pl in range(case.L * case.D):
        K, H = (case.I if pl < case.D else case.D * case.H), case.H
        scale = 1 / max(1, K + H) ** 0.5
        if case.kind is BlockGRUParams:
            arrays = [draw(K + H, 2 * H, scale=scale), draw(K + H, H, scale=scale)]
            arrays += [draw(2 * H), draw(H)]
        else:
            arrays = [draw(K + H, 4 * H, scale=scale), draw(4 * H)]
            if case.kind is PeepholeLSTMParams:
                arrays += [draw(H, scale=0.2) for _ in range(3)]
        weights.append(case.kind(*arrays))
    c = None if case.kind is BlockGRUParams else draw(*places)
    x = draw(case.T, case.B, case.I)
    return {"input": x, "input_h": draw(*places), "input_c": c, "weights": weights}


def cotangents_of(rng: np.random.Generator, case: Case, dtype: Any = np.float64) -> list[Any]:
    """Return the gradients of output, output_h and output_c, off zero, lest the sums cancel."""
    places = (case.L * case.D, case.B, case.H)
    sizes = [(case.T, case.B, case.D * case.H), places, places]
    grads: list[Any] = [(0.5 + rng.standard_normal(s)).astype(dtype) for s in sizes]
    return [*grads[:2], None if case.kind is BlockGRUParams else grads[2]]


def widen(value: Any) -> Any:
    if isinstance(value, dict):
        return {n: widen(v) for n, v in value.items()}
    if isinstance(value, list):
        return [widen(v) for v in value]
    if hasattr(value, "_make"):
        return value._make(map(widen, value))
    return None if value is None else value.astype(np.float64)


def masks_of(case: Case) -> list[Any]:
    """Return what the values that each layer reads are multiplied by."""
    shape = (case.T * case.B, case.D * case.H)
    scale = 1 / (1 - case.dropout) if case.dropout < 1 else 0.0
    masks: list[Any] = [1.0]
    for layer in range(1, case.L):
        kept = keep_mask(np, shape, np.dtype(float), case.dropout, 5, -3, layer)
        masks.append(kept.reshape(case.T, case.B, shape[1]) * scale if case.dropout else 1.0)
    return masks


def last_steps(case: Case, d: int) -> list[int]:
    """Return each sequence's last step in a direction, -1 where it has none."""
    lengths = case.lengths or (case.T,) * case.B
    return [(0 if d else n - 1) if n else -1 for n in lengths]


def of_block(weights: Any) -> dict[str, Any]:
    """Return the weights of one LSTM as `block_lstm` takes them."""
    return {n: a for n, a in weights._asdict().items() if n != "w_p"}


def chain(case: Case, inputs: dict[str, Any], cotangents: list[Any] | None = None) -> Any:
    """
    Return output, output_h and output_c, and their gradients: a block op for every layer.

    All in NumPy; the gradients are input's, those of the states, and those of the weights.
    """
    x, h, c, weights = inputs.values()
    gru, masks = c is None, masks_of(case)
    h_last, layers, kept = h.copy(), [], []
    c_last = None if gru else c.copy()
    for layer in range(case.L):
        x = x * masks[layer]
        outs = []
        for d in range(case.D):
            pl = layer * case.D + d
            attributes = {**case.of_block, "reverse": d == 1}
            if gru:
                out: Any = cupyrnn.block_gru(x, h[pl], *weights[pl], **attributes)
            else:
                bias = case.more.get("forget_bias")
                out = cupyrnn.block_lstm(
                    x, c[pl], h[pl], **of_block(weights[pl]), **attributes, forget_bias=bias
                )
            for b, t in enumerate(last_steps(case, d)):
                if t >= 0:
                    h_last[pl, b] = out.h[t, b]
                    if not gru:
                        c_last[pl, b] = out.cs[t, b]
            outs.append(out)
        kept.append(x)
        layers.append(outs)
        x = np.concatenate([out.h for out in outs], axis=2)
    if cotangents is None:
        return x, h_last, c_last
    dy, dh, dc = cotangents
    h_grad, c_grad = dh.copy(), None if gru else dc.copy()
    of_weights: list[Any] = [None] * len(weights)
    for layer in reversed(range(case.L)):
        x, dx = kept[layer], 0.0
        for d in range(case.D):
            pl, out = layer * case.D + d, layers[layer][d]
            given = dy[..., d * case.H : (d + 1) * case.H].copy()
            given_c = np.zeros_like(given)
            for b, t in enumerate(last_steps(case, d)):
                if t >= 0:
                    given[t, b] += dh[pl, b]
                    if not gru:
                        given_c[t, b] += dc[pl, b]
            attributes = {**case.of_block, "reverse": d == 1}
            if gru:
                w_ru, w_c, *_ = weights[pl]
                g: Any = cupyrnn.block_gru_grad(x, h[pl], w_ru, w_c, *out, given, **attributes)
                of_weights[pl] = BlockGRUParams(*g[2:])
                of_x, of_h = g.d_x, g.d_h_prev
            else:
                w = of_block(weights[pl])
                g = cupyrnn.block_lstm_grad(
                    x, c[pl], h[pl], w["w"], *out, given_c, given,
                    **{n: a for n, a in w.items() if n != "w"}, **attributes,
                )  # fmt: skip
                of_weights[pl] = case.kind(*[getattr(g, f"{n}_grad") for n in w])
                of_x, of_h = g.x_grad, g.h_prev_grad
            for b, t in enumerate(last_steps(case, d)):
                if t >= 0:
                    h_grad[pl, b] = of_h[b]
                    if not gru:
                        c_grad[pl, b] = g.cs_prev_grad[b]
            dx = dx + of_x
        dy = dx * masks[layer]
    return dy, h_grad, c_grad, of_weights


def run(ops: Any, case: Case, inputs: dict[str, Any], cotangents: Any, **more: Any) -> Any:
    """Return what both ops give."""
    attributes = {**case.attributes, **more}
    training = attributes.pop("is_training", True)
    out = ops.stacked_rnn(**inputs, **attributes, **SEEDS, is_training=training)
    if cotangents is None:
        return out
    attributes.pop("forget_bias", None)
    names = ("output_backprop", "output_h_backprop", "output_c_backprop")
    given = dict(zip(names, cotangents, strict=True))
    given |= out._asdict()
    g = ops.stacked_rnn_backprop(**inputs, **given, **attributes)
    return out, g


def assert_same(actual: Any, expected: Any, dtype: str, what: str) -> None:
    """Compare arrays, or weights of layers, that may be None."""
    if isinstance(expected, list):
        for n, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert type(a) is type(e)
            for name, one, other in zip(e._fields, a, e, strict=True):
                assert_same(one, other, dtype, f"{what}[{n}].{name}")
    elif expected is None:
        assert actual is None or (actual.shape == () and actual == 0)
    else:
        assert actual.dtype == dtype
        assert_close(actual, expected, dtype, what, at_least=1.0)


@pytest.mark.compiled
@each_case
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_is_a_chain_of_block_ops(
    ops: Any, case: Case, dtype: str, rng: np.random.Generator
) -> None:
    if dtype == "bfloat16":
        needs.module("ml_dtypes")
    inputs = problem(rng, case, np.dtype(dtype))
    cotangents = cotangents_of(rng, case, np.dtype(dtype))
    out, g = run(ops, case, inputs, cotangents)
    wide = widen(inputs)
    for name, a, e in zip(out._fields, out[:3], chain(case, wide), strict=False):
        assert_same(a, e, dtype, name)
    if np.dtype(dtype).itemsize == 2 and {"recurrent_activation", "cell_clip"} & {*case.more}:
        return  # a gate that is rounded to 0 or 1, or a state to the clip, has another slope
    for name, a, e in zip(g._fields, g, chain(case, wide, widen(cotangents)), strict=True):
        assert_same(a, e, dtype, name)


@each_case
@pytest.mark.parametrize("complex_step", [True, False])
def test_gradient_is_the_derivative(
    case: Case, complex_step: bool, rng: np.random.Generator
) -> None:
    inputs = problem(rng, case)
    cotangents = cotangents_of(rng, case)
    _, g = run(cupyrnn, case, inputs, cotangents)
    flat = {n: a for n, a in inputs.items() if n != "weights" and a is not None}
    gradients = {n: getattr(g, f"{n}_backprop") for n in flat}
    for n, (w, of_w) in enumerate(zip(inputs["weights"], g.weights_backprop, strict=True)):
        flat |= {f"{name} {n}": a for name, a in w._asdict().items() if a is not None}
        gradients |= {f"{name} {n}": a for name, a in of_w._asdict().items() if a is not None}

    def forward(**moved: Any) -> Any:
        weights = [
            case.kind(*[moved.get(f"{name} {n}") for name in w._fields])
            for n, w in enumerate(inputs["weights"])
        ]
        arrays = {n: moved.get(n) for n in inputs if n != "weights"}
        out = run(cupyrnn, case, {**arrays, "weights": weights}, None)
        return [a for a, d in zip(out[:3], cotangents, strict=True) if d is not None]

    given = [d for d in cotangents if d is not None]
    assert_gradients(forward, flat, given, gradients, rng, complex_step=complex_step)


@pytest.mark.parametrize("dropout", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("lengths", [None, (2, 5, 0)])
def test_an_lstm_is_cudnns(
    ops: Any, dropout: float, lengths: Any, rng: np.random.Generator
) -> None:
    """Outputs and gradients, with the same values dropped for the same seeds."""
    T, B, I, H, L, D = 5, 3, 4, 6, 3, 2
    size = cupyrnn.cudnn_rnn_params_size(L, H, I, direction=BI)
    params = rng.standard_normal(size) / H**0.5

    def blocks(packed: Any) -> list[Any]:
        """Return w, and the two biases that b is the sum of, by layer and direction."""
        parts = reference.cudnn_weights(packed, "lstm", L, H, I, bidirectional=True)
        return [(np.vstack([p["W"].T, p["R"].T]), p["bW"], p["bR"]) for p in parts.values()]

    weights = [BlockLSTMParams(w, b_x + b_h) for w, b_x, b_h in blocks(params)]
    x, h, c = (rng.standard_normal(s) for s in ((T, B, I), (L * D, B, H), (L * D, B, H)))
    shared: dict[str, Any] = {"direction": BI, "dropout": dropout, **SEEDS}
    shared |= {"sequence_lengths": None if lengths is None else np.array(lengths)}
    own: dict[str, Any] = {"gate_order": "ifco"}
    theirs = ops.cudnn_rnn(x, h, c, params, **shared)
    out = ops.stacked_rnn(x, h, c, weights, **shared, **own)
    for name in ("output", "output_h", "output_c"):
        assert_close(getattr(out, name), getattr(theirs, name), "float64", name)
    d = [rng.standard_normal(a.shape) for a in out[:3]]
    expected = ops.cudnn_rnn_backprop(
        x, h, c, params, *theirs[:3], *d, theirs.reserve_space, **shared
    )
    shared = {n: v for n, v in shared.items() if n not in SEEDS}
    g = ops.stacked_rnn_backprop(x, h, c, weights, *out[:3], *d, out.reserve_space, **shared, **own)
    for name in ("input_backprop", "input_h_backprop", "input_c_backprop"):
        assert_close(getattr(g, name), getattr(expected, name), "float64", name)
    for n, (w, b, _) in enumerate(blocks(expected.params_backprop)):
        assert_close(g.weights_backprop[n].w, w, "float64", f"w of {n}")
        assert_close(g.weights_backprop[n].b, b, "float64", f"b of {n}")
    if dropout == 0.3:  # Other seeds are seen.
        other = ops.stacked_rnn(x, h, c, weights, **{**shared, "seed": 6}, **own)
        assert np.abs(other.output - out.output).max() > 1e-3


@each_case
def test_inference_keeps_nothing(ops: Any, case: Case, rng: np.random.Generator) -> None:
    inputs = problem(rng, case)
    out = run(ops, case, inputs, None, is_training=False)
    assert out.reserve_space.shape == ()
    expected = run(ops, case._replace(dropout=0.0), inputs, None)
    for name, a, e in zip(out._fields, out[:3], expected[:3], strict=False):
        assert np.array_equal(a, e), name


@pytest.mark.parametrize("kind", [PeepholeLSTMParams, BlockGRUParams])
def test_batch_first(ops: Any, kind: Any, rng: np.random.Generator) -> None:
    case = Case(kind, 5, 3, 4, 6, 2, 2, (2, 5, 0), True, 0.3)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    out, g = run(ops, case, inputs, cotangents)

    def turned(a: Any) -> Any:
        return a if a is None or isinstance(a, list) or not a.ndim else a.swapaxes(0, 1)

    of_batch = {n: turned(a) for n, a in inputs.items()}
    attributes = {"time_major": False, "resets": case.marks.T}
    given = [turned(a) for a in cotangents]
    out_b, g_b = run(ops, case, of_batch, given, **attributes)
    for name, a, e in zip(out._fields, out_b[:3], out[:3], strict=False):
        assert np.array_equal(turned(a), e), name
    for name, a, e in zip(g._fields[:3], g_b[:3], g[:3], strict=True):
        assert np.array_equal(turned(a), e), name
    assert_same(g_b.weights_backprop, g.weights_backprop, "float64", "weights")


@pytest.mark.parametrize("shape", EMPTY)
@pytest.mark.parametrize("kind", [PeepholeLSTMParams, BlockGRUParams])
@pytest.mark.parametrize("D", [1, 2])
def test_nothing_at_all(
    ops: Any, kind: Any, shape: tuple[int, ...], D: int, rng: np.random.Generator
) -> None:
    case = Case(kind, *shape, 2, D, dropout=0.5)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    out, g = run(ops, case, inputs, cotangents)
    for name, a, e in zip(out._fields, out[:3], chain(case, inputs), strict=False):
        assert_same(a, e, "float64", name)
    for name, a, e in zip(g._fields, g, chain(case, inputs, cotangents), strict=True):
        assert_same(a, e, "float64", name)


@pytest.mark.parametrize("kind", [PeepholeLSTMParams, BlockGRUParams])
def test_memory_layouts(ops: Any, kind: Any, rng: np.random.Generator) -> None:
    case = Case(kind, 4, 3, 2, 5, 2, 2, (1, 4, 2), dropout=0.3)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    expected, expected_grads = run(ops, case, inputs, cotangents)
    forms: dict[str, Any] = {name: [] for name, _ in layouts(np.zeros(1))}
    for n, a in inputs.items():
        if n == "weights":
            for form in forms:
                entries = [each(w, lambda p, form=form: dict(layouts(p))[form]) for w in a]
                forms[form].append((n, entries))
        elif a is not None:
            for form, other in layouts(a):
                forms[form].append((n, other))
    for form, changed in forms.items():
        out, g = run(ops, case, {**inputs, **dict(changed)}, cotangents)
        for name, a, e in zip(out._fields[:3], out[:3], expected[:3], strict=True):
            assert_close(a, e, "float64", f"{name}, {form}")
        assert_close(g.input_backprop, expected_grads.input_backprop, "float64", form)
        assert_same(g.weights_backprop, expected_grads.weights_backprop, "float64", form)


def test_peepholes_in_some_of_the_cells(ops: Any, rng: np.random.Generator) -> None:
    """An entry without peepholes may stand beside one with them, and has no gradient of them."""
    case = Case(PeepholeLSTMParams, 4, 3, 2, 5, 2, 1)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    w, b, *_ = inputs["weights"][1]
    inputs["weights"][1] = PeepholeLSTMParams(w, b)
    zeros = {
        **inputs,
        "weights": [inputs["weights"][0], PeepholeLSTMParams(w, b, *np.zeros((3, 5)))],
    }
    out, g = run(ops, case, inputs, cotangents)
    expected, of_zeros = run(ops, case, zeros, cotangents)
    assert_close(out.output, expected.output, "float64", "output")
    assert g.weights_backprop[1][2:] == (None, None, None, None)
    assert_close(g.weights_backprop[0].wco, of_zeros.weights_backprop[0].wco, "float64", "wco")


@pytest.mark.parametrize("gate_order", ["icfo", "ifco"])
def test_the_forget_bias_is_that_of_the_forget_gate(
    gate_order: Any, rng: np.random.Generator
) -> None:
    x, h, c = rng.standard_normal((4, 2, 3)), *rng.standard_normal((2, 1, 2, 5))
    w, b = rng.standard_normal((8, 20)), rng.standard_normal(20)
    options: Any = {"gate_order": gate_order, "forget_bias": 1.5, "cell_clip": 0}
    out = cupyrnn.stacked_rnn(x, h, c, [BlockLSTMParams(w, b)], **options)
    expected = cupyrnn.block_lstm(x, c[0], h[0], w, b, **options)
    assert_close(out.output, expected.h, "float64", "output")


@pytest.mark.parametrize("zero", [None, 0, 0.0])
def test_a_gru_takes_a_plain_zero_for_its_cell_states(zero: Any, rng: np.random.Generator) -> None:
    """That is what its own output_c is."""
    x, h = rng.standard_normal((4, 2, 3)), rng.standard_normal((1, 2, 5))
    one = [cupyrnn.init_block_gru(num_units=5, input_size=3, dtype="float64")]
    out = cupyrnn.stacked_rnn(x, h, zero, one)
    assert out.output_c.shape == ()
    for other in (5.0, True, 1):
        with pytest.raises(TypeError, match=r"^stacked_rnn: input_c is "):
            cupyrnn.stacked_rnn(x, h, other, one)
    dy = out.output
    grads = cupyrnn.stacked_rnn_backprop(
        x, h, zero, one, *out[:3], dy, None, None, out.reserve_space
    )
    assert grads.input_c_backprop.shape == ()


def small(kind: Any = BlockLSTMParams, **changed: Any) -> dict[str, Any]:
    """Return arguments with T, B, I, H, L, D = 2, 1, 3, 4, 2, 1."""
    arguments = problem(np.random.default_rng(0), Case(kind, 2, 1, 3, 4, 2))
    return arguments | changed


def weights(kind: Any = BlockLSTMParams, n: int = 0, **changed: Any) -> list[Any]:
    entries = list(small(kind)["weights"])
    entries[n] = entries[n]._replace(**changed)
    return entries


ERRORS: list[Any] = [
    ({"weights": None}, TypeError, "weights is None, expected a list of weight tuples"),
    ({"weights": []}, ValueError, "weights has 0 entries, expected L*D, at least 1"),
    ({"weights": small()["weights"][0]}, TypeError, "weights is a cupyrnn.BlockLSTMParams, expected a list of weight tuples"),
    ({"weights": [(1, 2)]}, TypeError, "weights[0] is a tuple, expected a BlockLSTMParams or PeepholeLSTMParams or BlockGRUParams"),
    ({"weights": [*small()["weights"], *small(BlockGRUParams)["weights"]]}, TypeError, "weights[2] is a cupyrnn.BlockGRUParams, expected the weights of an LSTM like weights[0]"),
    ({"weights": weights(w=None)}, TypeError, "weights[0].w is None, expected a numpy.ndarray like input"),
    ({"weights": weights(n=1, w=np.zeros((7, 16)))}, ValueError, "weights[1].w has shape (7, 16), expected (D*H+H, 4*H) = (8, 16)"),
    ({"weights": weights(n=0, w=np.zeros((8, 16)))}, ValueError, "weights[0].w has shape (8, 16), expected (I+H, 4*H) = (7, 16)"),
    ({"weights": weights(b=np.zeros(4))}, ValueError, "weights[0].b has shape (4,), expected (4*H,) = (16,)"),
    ({"weights": weights(b=np.zeros(16, "f4"))}, TypeError, "weights[0].b has dtype float32, expected float64 like input"),
    ({"weights": weights(PeepholeLSTMParams, 1, wcf=None)}, TypeError, "weights[1].wcf is None, expected an array of shape (H,) = (4,) like weights[1].wci"),
    ({"weights": weights(PeepholeLSTMParams, 1, wcf=np.zeros(5))}, ValueError, "weights[1].wcf has shape (5,), expected (H,) = (4,)"),
    ({"weights": weights(BlockGRUParams, 1, w_c=np.zeros((8, 5))), "input_c": None}, ValueError, "weights[1].w_c has shape (8, 5), expected (D*H+H, H) = (8, 4)"),
    ({"weights": small()["weights"][:1]}, ValueError, "input_h has shape (2, 1, 4), expected (L*D, B, H) = (1, 1, 4)"),
    ({"weights": small()["weights"] * 2 + small()["weights"][:1], "direction": BI}, ValueError, "weights has 5 entries, expected L*D with D = 2: bidirectional"),
    ({"input": np.zeros((2, 3))}, ValueError, "input has shape (2, 3), expected (T, B, I)"),
    ({"input_h": np.zeros((2, 2, 4))}, ValueError, "input_h has shape (2, 2, 4), expected (L*D, B, H) = (2, 1, 4); input is [T, B, I], time first, unless time_major=False"),
    ({"input_c": None}, TypeError, "input_c is None, expected a numpy.ndarray like input; pass zeros of shape (L*D, B, H)"),
    ({"input_c": np.zeros((2, 1, 5))}, ValueError, "input_c has shape (2, 1, 5), expected (L*D, B, H) = (2, 1, 4)"),
    ({"direction": "both"}, ValueError, "direction is 'both', expected one of unidirectional, bidirectional"),
    ({"dropout": 1.5}, ValueError, "dropout is 1.5, expected in [0, 1]"),
    ({"gate_order": "ifgo"}, ValueError, "gate_order is 'ifgo', expected one of icfo, ifco"),
    ({"cell_clip": "x"}, TypeError, "cell_clip is 'x', expected a real number"),
    ({**small(BlockGRUParams), "cell_clip": 3}, ValueError, "cell_clip is 3, expected None for a GRU"),
    ({"recurrent_activation": "tanh"}, ValueError, "recurrent_activation is 'tanh', expected one of sigmoid, hard_sigmoid_0.2, hard_sigmoid_1/6"),
    ({"sequence_lengths": [3]}, ValueError, "sequence_lengths[0] is 3, expected in [0, T] = [0, 2]"),
    ({"resets": [[True]]}, ValueError, "resets has shape (1, 1), expected (T, B) = (2, 1)"),
    ({"time_major": 1}, TypeError, "time_major is 1, expected a bool"),
]  # fmt: skip
# ruff: noqa: E501 - a case a line


@pytest.mark.parametrize(("changed", "error", "message"), ERRORS)
def test_errors(changed: dict[str, Any], error: Any, message: str) -> None:
    out = cupyrnn.stacked_rnn(**small())
    given = {"output_backprop": out.output, "output_h_backprop": None, "output_c_backprop": None}
    given |= dict.fromkeys(("output", "output_h", "output_c"))
    given |= {"reserve_space": out.reserve_space}
    with pytest.raises(error, match=f"^{re.escape(f'stacked_rnn: {message}')}$"):
        cupyrnn.stacked_rnn(**small(**changed))
    with pytest.raises(error, match=f"^{re.escape(f'stacked_rnn_backprop: {message}')}$"):
        cupyrnn.stacked_rnn_backprop(**{**small(), **given, **changed})


def test_errors_of_one_direction() -> None:
    message = "stacked_rnn: forget_bias is 1.0, expected None for a GRU"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cupyrnn.stacked_rnn(**small(BlockGRUParams), forget_bias=1.0)
    out = cupyrnn.stacked_rnn(**small())
    for space, dy, message in (
        (out.reserve_space[1:], out.output, "reserve_space has shape (111,), expected (112,), as stacked_rnn returns it for these arguments with is_training=True"),
        (out.reserve_space, out.output[1:], "output_backprop has shape (1, 1, 4), expected (T, B, D*H) = (2, 1, 4)"),
        (out.reserve_space, out.output[0], "output_backprop has shape (1, 4), expected (T, B, D*H) = (2, 1, 4)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{re.escape(f'stacked_rnn_backprop: {message}')}$"):
            cupyrnn.stacked_rnn_backprop(
                **small(),
                **dict.fromkeys(("output", "output_h", "output_c")),
                output_backprop=dy,
                output_h_backprop=None,
                output_c_backprop=None,
                reserve_space=space,
            )


@pytest.mark.parametrize("save", ["all", 2])
def test_one_direction_in_reverse(ops: Any, save: Any, rng: np.random.Generator) -> None:
    """Beside a sequence turned round by hand."""
    T, B, I, H = 5, 3, 2, 4
    weights = [
        cupyrnn.init_block_gru(num_units=H, input_size=K, dtype=np.float64, seed=rng)
        for K in (I, H)
    ]
    h, dy = rng.standard_normal((2, B, H)), rng.standard_normal((T, B, H))
    x, found = rng.standard_normal((T, B, I)), []
    for step, reverse in ((1, True), (-1, False)):
        given, due = np.ascontiguousarray(x[::step]), np.ascontiguousarray(dy[::step])
        out = ops.stacked_rnn(given, h, None, weights, reverse=reverse, save=save)
        grads = ops.stacked_rnn_backprop(
            *(given, h, None, weights, *out[:2], None, due, None, None, out.reserve_space),
            reverse=reverse,
        )
        of_weights = [a for entry in grads.weights_backprop for a in entry]
        turned = out.output[::step], grads.input_backprop[::step]
        found.append([*turned, out.output_h, grads.input_h_backprop, *of_weights])
    for n, (a, e) in enumerate(zip(*found, strict=True)):
        assert_close(a, e, "float64", f"{n}")
