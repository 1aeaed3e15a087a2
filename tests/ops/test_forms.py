"""
Forms of weights through the public `stacked_rnn`, beside plain loops and complex steps.

The sLSTM, the LSTM with layer normalization, the MGU and the CIFG are cells that the package does not
have: nothing but their files makes them some. The LSTM with peepholes and a projection is TensorFlow 1's ``LSTMCell(use_peepholes=True, num_proj=P)``.
"""

from __future__ import annotations

import ast
import importlib
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import needs
import numpy as np
import pytest
from checks import Ops, assert_close, assert_gradients
from new_cells.cifg import CIFG, CIFGParams
from new_cells.layer_norm_lstm import LayerNormLSTMParams
from new_cells.mgu import MGUParams
from new_cells.slstm import SLSTM, SLSTMParams

import cupyrnn
from cupyrnn import PeepholeLSTMParams
from cupyrnn.driver import layer as _layer
from cupyrnn.driver.pages import page_of

# T, B, I, H, L, D
SIZES = (6, 4, 3, 5, 2, 2)
LENGTHS = (6, 2, 0, 5)
P, CLIP = 2, 0.7  # of the LSTM with a projection


def slstm_weights(rng: np.random.Generator, K: int, H: int) -> SLSTMParams:
    return SLSTMParams(0.5 * rng.standard_normal((K + H, 4 * H)), rng.standard_normal(4 * H))


def slstm_step(weights: SLSTMParams, x: Any, states: list[Any]) -> list[Any]:
    """The equations of the paper, without what keeps them from overflowing."""
    h, c, n, m = states
    zi, zf, zc, zo = np.split(np.concatenate([x, h]) @ weights.w + weights.b, 4)
    i, f = np.exp(zi), np.exp(zf)
    # c and n of the paper are those of the states times exp(m).
    wide_c, wide_n = f * c * np.exp(m) + i * np.tanh(zc), f * n * np.exp(m) + i
    m = np.maximum(zi, zf + m)
    return [wide_c / wide_n / (1 + np.exp(-zo)), wide_c * np.exp(-m), wide_n * np.exp(-m), m]


def layer_norm_weights(rng: np.random.Generator, K: int, H: int) -> LayerNormLSTMParams:
    shapes = [(K + H, 4 * H), (4 * H,), (H,), (4 * H,), (4 * H,), (H,)]
    return LayerNormLSTMParams(*(0.5 + 0.5 * rng.standard_normal(s) for s in shapes))


def norm(a: Any) -> Any:
    return (a - a.mean()) / np.sqrt(((a - a.mean()) ** 2).mean() + 1e-5)


def layer_norm_step(weights: LayerNormLSTMParams, x: Any, states: list[Any]) -> list[Any]:
    """Equations (20) to (22) of the paper."""
    h, c = states
    w, b, b_c, g_x, g_h, g_c = weights
    K = len(x)
    a = norm(h @ w[K:]) * g_h + norm(x @ w[:K]) * g_x + b
    i, f, g, o = np.split(a, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(norm(c) * g_c + b_c), c]


def mgu_weights(rng: np.random.Generator, K: int, H: int) -> MGUParams:
    shapes = [(K + H, H), (K + H, H), (H,), (H,)]
    return MGUParams(*(0.7 * rng.standard_normal(s) for s in shapes))


def mgu_step(weights: MGUParams, x: Any, states: list[Any]) -> list[Any]:
    """Equations (5) to (7) of the paper."""
    (h,), (w_f, w_c, b_f, b_c) = states, weights
    f = sigmoid(np.concatenate([x, h]) @ w_f + b_f)
    return [(1 - f) * h + f * np.tanh(np.concatenate([x, f * h]) @ w_c + b_c)]


def cifg_weights(rng: np.random.Generator, K: int, H: int) -> CIFGParams:
    return CIFGParams(0.7 * rng.standard_normal((K + H, 3 * H)))


def cifg_step(weights: CIFGParams, x: Any, states: list[Any]) -> list[Any]:
    h, c = states
    f, g, o = np.split(np.concatenate([x, h]) @ weights.w, 3)
    i = 1 - sigmoid(f)
    c = sigmoid(f) * c + i * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


def lstm_weights(rng: np.random.Generator, K: int, H: int) -> PeepholeLSTMParams:
    shapes = [(K + P, 4 * H), (4 * H,), (H,), (H,), (H,), (H, P)]
    return PeepholeLSTMParams(*(0.5 * rng.standard_normal(s) for s in shapes))


def lstm_step(weights: PeepholeLSTMParams, x: Any, states: list[Any]) -> list[Any]:
    """LSTMCell.call of TensorFlow 1, with its forget_bias of 1 and a clip."""
    m_prev, c_prev = states
    w, b, w_i_diag, w_f_diag, w_o_diag, projection = weights
    i, j, f, o = np.split(np.concatenate([x, m_prev]) @ w + b, 4)
    kept = sigmoid(f + 1 + w_f_diag * c_prev) * c_prev
    c = np.clip(kept + sigmoid(i + w_i_diag * c_prev) * np.tanh(j), -CLIP, CLIP)
    m = sigmoid(o + w_o_diag * c) * np.tanh(c)
    return [m @ projection, c]


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


class Cell(NamedTuple):
    """Its weights, its step, the sizes of its states, and attributes of both calls."""

    weights: Any
    step: Any
    states: tuple[int, ...]
    attributes: dict[str, Any]


CELLS = {
    "sLSTM": Cell(slstm_weights, slstm_step, (SIZES[3],) * 4, {}),
    "layer-norm LSTM": Cell(layer_norm_weights, layer_norm_step, (SIZES[3],) * 2, {}),
    "LSTM, peepholes, projection": Cell(
        lstm_weights, lstm_step, (P, SIZES[3]), {"cell_clip": CLIP}
    ),
    "MGU": Cell(mgu_weights, mgu_step, (SIZES[3],), {}),
    "CIFG": Cell(cifg_weights, cifg_step, (SIZES[3],) * 2, {}),
}
each_cell = pytest.mark.parametrize("cell", CELLS)
each_extent = pytest.mark.parametrize("extent", ["full", "lengths", "resets", "lengths+resets"])


def problem(rng: np.random.Generator, cell: str) -> dict[str, Any]:
    """Return the arguments of a net by name, the weights by name and place."""
    make, _, widths, _ = CELLS[cell]
    T, B, I, H, L, D = SIZES
    arrays: dict[str, Any] = {"input": rng.standard_normal((T, B, I))}
    for n, width in enumerate(widths):
        # Not zero: an sLSTM divides by one of them.
        arrays[f"state {n}"] = 0.5 + rng.random((L * D, B, width))
    for pl in range(L * D):
        entry = make(rng, D * widths[0] if pl >= D else I, H)
        arrays |= {f"{name} {pl}": a for name, a in entry._asdict().items()}
    return arrays


def arguments(cell: str, arrays: dict[str, Any], kind: type) -> tuple[Any, ...]:
    """Return what `stacked_rnn` takes first."""
    others = [arrays[f"state {n}"] for n in range(1, len(CELLS[cell].states))]
    pls = range(SIZES[4] * SIZES[5])
    weights = [kind(*[arrays[f"{n} {pl}"] for n in kind._fields]) for pl in pls]  # type: ignore[attr-defined]
    return arrays["input"], arrays["state 0"], together(others), weights


def together(others: list[Any]) -> Any:
    """Return the states beside h as `stacked_rnn` takes them."""
    return None if not others else others[0] if len(others) == 1 else tuple(others)


def has_no_cuda(ops: Ops, cell: str, arrays: dict[str, Any]) -> bool:
    """Whether a cell is one of NumPy alone on a device, where it is refused before any work."""
    if ops.xp is np or cell not in ("MGU", "CIFG"):
        return False
    on_device = {n: ops.to_device(a) for n, a in arrays.items()}
    with pytest.raises(TypeError, match=f"expected a numpy.ndarray: an? {cell}.* no CUDA"):
        cupyrnn.stacked_rnn(*arguments(cell, on_device, kind_of(cell)), direction="bidirectional")
    return True


def kind_of(cell: str) -> Any:
    return type(CELLS[cell].weights(np.random.default_rng(0), 1, 1))


def on_host(ops: Ops, a: Any) -> Any:
    assert type(a) is ops.xp.ndarray
    return a if ops.xp is np else ops.xp.asnumpy(a)


def extent_of(rng: np.random.Generator, extent: str) -> dict[str, Any]:
    T, B, *_ = SIZES
    return {
        "sequence_lengths": LENGTHS if "lengths" in extent else None,
        "resets": rng.random((T, B)) < 0.3 if "resets" in extent else None,
        "direction": "bidirectional",
    }


def listed(others: Any) -> list[Any]:
    return list(others) if isinstance(others, tuple) else [others] if others.ndim else []


def plain(cell: str, arrays: dict[str, Any], given: dict[str, Any]) -> list[Any]:
    """Return output and the last states, sequence by sequence and step by step."""
    T, B, _, _, L, D = SIZES
    _, step, widths, _ = CELLS[cell]
    lengths = given["sequence_lengths"] or (T,) * B
    marks = np.zeros((T + 1, B), bool)
    if given["resets"] is not None:
        marks[:T] = given["resets"]
    *_, weights = arguments(cell, arrays, kind_of(cell))
    last = [arrays[f"state {n}"].copy() for n in range(len(widths))]
    x = arrays["input"]
    for layer in range(L):
        output = np.zeros((T, B, D * widths[0]), x.dtype)
        for d in range(D):
            pl = layer * D + d
            for b in range(B):
                states = [s[pl, b] for s in last]
                for t in range(lengths[b])[:: -1 if d else 1]:
                    forgets = t + 1 < lengths[b] and marks[t + 1, b] if d else marks[t, b]
                    if forgets:
                        states = [np.zeros_like(s) for s in states]
                    states = step(weights[pl], x[t, b], states)
                    output[t, b, d * widths[0] : (d + 1) * widths[0]] = states[0]
                for to, s in zip(last, states, strict=True):
                    to[pl, b] = s
        x = output
    return [x, *last]


@each_cell
@each_extent
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_is_the_plain_loop(
    ops: Ops, cell: str, extent: str, dtype: str, rng: np.random.Generator
) -> None:
    arrays = {n: a.astype(dtype) for n, a in problem(rng, cell).items()}
    if has_no_cuda(ops, cell, arrays):
        return
    given = extent_of(rng, extent)
    on_device = {n: ops.to_device(a) for n, a in arrays.items()}
    out = cupyrnn.stacked_rnn(
        *arguments(cell, on_device, kind_of(cell)), **given, **CELLS[cell].attributes
    )
    wide = {n: a.astype(float) for n, a in arrays.items()}
    expected = plain(cell, wide, given)
    for n, (a, e) in enumerate(zip([*out[:2], *listed(out.output_c)], expected, strict=True)):
        assert a.dtype == dtype
        assert_close(on_host(ops, a), e, dtype, f"result {n}", at_least=1.0)


@each_cell
@each_extent
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_every_gradient_is_the_derivative(
    ops: Ops, cell: str, extent: str, dropout: float, rng: np.random.Generator
) -> None:
    """Two layers in both directions: of the input, all states and all weights."""
    arrays, kind = problem(rng, cell), kind_of(cell)
    if has_no_cuda(ops, cell, arrays):
        return
    given = extent_of(rng, extent) | {"dropout": dropout} | CELLS[cell].attributes

    def run(given_arrays: dict[str, Any]) -> Any:
        return cupyrnn.stacked_rnn(*arguments(cell, given_arrays, kind), **given, seed=3)

    on_device = {n: ops.to_device(a) for n, a in arrays.items()}
    out = run(on_device)
    results = [*out[:2], *listed(out.output_c)]
    cotangents = [rng.standard_normal(a.shape) for a in results]
    dy, dh, *others = (ops.to_device(a) for a in cotangents)
    g = cupyrnn.stacked_rnn_backprop(
        *arguments(cell, on_device, kind),
        *out[:3],
        *(dy, dh, together(others), out.reserve_space),
        **given,
    )
    found = {"input": g.input_backprop, "state 0": g.input_h_backprop}
    found |= {f"state {n + 1}": a for n, a in enumerate(listed(g.input_c_backprop))}
    for pl, entry in enumerate(g.weights_backprop):
        assert type(entry) is kind
        found |= {f"{n} {pl}": a for n, a in entry._asdict().items()}
    gradients = {n: on_host(ops, a) for n, a in found.items()}

    def forward(**moved: Any) -> list[Any]:
        out = run(moved)
        return [*out[:2], *listed(out.output_c)]

    assert_gradients(forward, arrays, cotangents, gradients, rng)


@each_cell
@pytest.mark.parametrize("T", [1, SIZES[0]])
def test_all_that_an_op_has(cell: str, T: int, rng: np.random.Generator) -> None:
    """save, by example, vjp and jvp, of nets that `test_every_gradient_is_the_derivative` has."""
    arrays, kind, given = problem(rng, cell), kind_of(cell), extent_of(rng, "full")
    given |= CELLS[cell].attributes
    arrays["input"] = arrays["input"][:T]
    first = arguments(cell, arrays, kind)
    dy = rng.standard_normal((T, SIZES[1], 2 * CELLS[cell].states[0]))

    def gradient(save: Any, by: Any) -> Any:
        out = cupyrnn.stacked_rnn(*first, **given, save=save)
        return cupyrnn.stacked_rnn_backprop(
            *first, *out[:3], dy, None, None, out.reserve_space, **given, weight_gradients=by
        )

    def found(g: Any) -> list[Any]:
        return [g[0], g[1], *listed(g[2]), *(a for entry in g[3] for a in entry)]

    expected = found(gradient("all", "sum"))
    for save in ("states", 1, 4):
        for a, e in zip(found(gradient(save, "sum")), expected, strict=True):
            assert_close(a, e, "float64", f"save={save}", at_least=1.0)
    n = len(CELLS[cell].states) + 1
    examples, norms = found(gradient(2, "examples"))[n:], found(gradient("all", "norms"))[n:]
    for a, norm, e in zip(examples, norms, expected[n:], strict=True):
        assert_close(a.sum(0), e, "float64", "sum of the examples", at_least=1.0)
        every = np.sqrt((a * a).sum(tuple(range(1, a.ndim))))
        assert_close(norm, every, "float64", "norms", at_least=1.0)
    _, pullback = cupyrnn.vjp(cupyrnn.stacked_rnn, *first, **given)
    for a, e in zip(found(pullback(output_backprop=dy)), expected, strict=True):
        assert_close(a, e, "float64", "pullback")
    direction = rng.standard_normal(arrays["input"].shape)
    _, along = cupyrnn.jvp(
        lambda x: cupyrnn.stacked_rnn(x, *first[1:], **given).output, (first[0],), (direction,)
    )
    assert_close((along * dy).sum(), (expected[0] * direction).sum(), "float64", "jvp", at_least=9)


@each_extent
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("T", "H"), [(1, 3), (2, 33), (40, 16)])
def test_a_cell_in_vectors(
    T: int, H: int, dtype: str, extent: str, rng: np.random.Generator, monkeypatch: Any
) -> None:
    """With a page of its own for Numba, a layer or a step of a user's cell is one compiled call."""
    needs.module("numba")
    page = importlib.import_module("new_cells.compiled.cifg")
    (B, K), D = (4, 5), 2
    marks = rng.random((T, B)) < 0.3 if "resets" in extent else None
    lengths = [T, 0, T // 2, T] if "lengths" in extent else None
    given: Any = {"direction": "bidirectional", "sequence_lengths": lengths, "resets": marks}
    x, *states = (rng.standard_normal(s).astype(dtype) for s in ((T, B, K), *[(2 * D, B, H)] * 2))
    weights = [
        CIFGParams((rng.standard_normal((n + H, 3 * H)) / n).astype(dtype))
        for n in (K, K, 2 * H, 2 * H)
    ]
    shapes = ((T, B, D * H), *[(2 * D, B, H)] * 2)
    dy, dh, dc = (rng.standard_normal(s).astype(dtype) for s in shapes)
    last = {"output_backprop": dy, "output_h_backprop": dh, "output_c_backprop": dc}

    def run() -> list[Any]:
        found: list[Any] = []
        for by in ("sum", "examples"):
            out, pullback = cupyrnn.vjp(cupyrnn.stacked_rnn, x, *states, weights, **given)
            g = pullback(**last, weight_gradients=by)
            found += [*out[:3], *g[:3], *(entry.w for entry in g[3])]
        return found

    expected, calls = run(), []
    monkeypatch.setattr(_layer, "_compiled", lambda cell: page if cell is CIFG else None)
    for name in ("forward_layer", "backward_layer", "forward_step", "backward_step"):
        function = getattr(page, name)
        monkeypatch.setattr(page, name, lambda *a, f=function: calls.append(f) or f(*a))
    monkeypatch.setattr(_layer, "_pays", lambda *_: True)
    for n, (a, e) in enumerate(zip(run(), expected, strict=True)):
        assert_close(a, e, dtype, f"result {n}", at_least=1.0)
    assert calls
    assert page_of(CIFG, "compiled") is page


FILES = {"mgu": "MGU", "cifg": "CIFG", "slstm": "SLSTM", "layer_norm_lstm": "LayerNormLSTM"}


@pytest.mark.parametrize("name", FILES)
def test_a_cell_is_one_file_anywhere(name: str, rng: np.random.Generator) -> None:
    """As a notebook or a script has it: in a namespace that is no module, and imports one thing."""
    path = Path(__file__).parents[1] / f"new_cells/{name}.py"
    source = path.read_text(encoding="utf-8")
    imported = {n.module for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom)}
    assert {m for m in imported if m and m.startswith("cupyrnn")} == {"cupyrnn.cells"}
    scope = runpy.run_path(str(path))
    kind = scope[f"{FILES[name]}Params"]
    H, I = 3, 2
    sizes = {"K+H": I + H, "H": H, "2*H": 2 * H, "3*H": 3 * H, "4*H": 4 * H}
    shapes = [[sizes[n] for n in s.split(", ")] for s in kind(*kind._fields).form.shapes.values()]
    weights = kind(*(rng.standard_normal(s) for s in shapes))
    h, *others = rng.random((len(weights.form.States._fields), 1, 2, H))
    given = rng.standard_normal((4, 2, I)), h, together(others)
    out, pullback = cupyrnn.vjp(cupyrnn.stacked_rnn, *given, [weights])
    other = getattr(importlib.import_module(f"new_cells.{name}"), kind.__name__)(*weights)
    same, pullback_same = cupyrnn.vjp(cupyrnn.stacked_rnn, *given, [other])
    np.testing.assert_array_equal(out.output, same.output)
    dy = np.ones_like(out.output)
    for a, e in zip(
        *(p(output_backprop=dy).weights_backprop[0] for p in (pullback, pullback_same)), strict=True
    ):
        np.testing.assert_array_equal(a, e)


def test_a_cell_without_functions(rng: np.random.Generator, monkeypatch: Any) -> None:
    arrays = problem(rng, "CIFG")
    monkeypatch.delattr(CIFG, "forward_steps")
    page_of.cache_clear()
    message = "stacked_rnn: CIFG has no forward_steps, expected a method of the class or a function"
    with pytest.raises(TypeError, match=f"^{message} of its module, new_cells.cifg$"):
        cupyrnn.stacked_rnn(*arguments("CIFG", arrays, CIFGParams), direction="bidirectional")
    page_of.cache_clear()


def test_the_functions_beside_a_class_in_a_script() -> None:
    """They need no class around them where a file has one cell."""
    source = (Path(__file__).parents[1] / "new_cells/cells/indrnn.py").read_text(encoding="utf-8")
    source += """
cell = IndRNN((Weight(np.ones((1, 1)), 1),), (1,), np.ones(1), np.zeros(1))
from cupyrnn.driver.layer import implementation
import sys
for xp, module in ((np, sys.modules["__main__"]), (None, None)):
    assert implementation(xp, cell, 1, np.dtype(float), "forward").module is module
"""
    done = subprocess.run([sys.executable, "-"], input=source, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("state", range(4))
def test_a_planted_error_is_caught(
    state: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sign of one of the gradients that a step passes to the one before."""
    steps = SLSTM.backward_steps

    def planted(cell: Any, run: Any) -> None:
        steps(cell, run)
        np.negative(run.carried[state], run.carried[state])

    monkeypatch.setattr(SLSTM, "backward_steps", planted)
    with pytest.raises(AssertionError, match="slope"):
        test_every_gradient_is_the_derivative(Ops(np), "sLSTM", "full", 0.0, rng)


ERRORS: list[Any] = [
    ("sLSTM", {"input_c": np.zeros((4, 4, 5))}, TypeError, "input_c is array("),
    ("sLSTM", {"input_c": (np.zeros((4, 4, 5)),) * 2}, TypeError, "expected a tuple of 3 arrays: c, n, m"),
    ("sLSTM", {"input_c": (np.zeros((4, 4, 5)),) * 2 + (np.zeros((4, 4, 6)),)}, ValueError, "input_c[2] has shape (4, 4, 6), expected (L*D, B, H) = (4, 4, 5)"),
    ("sLSTM", {"forget_bias": 1.0}, ValueError, "forget_bias is 1.0, expected None for an sLSTM"),
    ("sLSTM", {"gate_order": "ifco"}, ValueError, "gate_order is 'ifco', expected icfo for an sLSTM"),
    ("LSTM, peepholes, projection", {"input_h": np.zeros((4, 4, 3))}, ValueError, "weights[0].w has shape (5, 20), expected (I+P, 4*H) = (6, 20)"),
    ("LSTM, peepholes, projection", {"input_c": np.zeros((4, 4, 2))}, ValueError, "input_c has shape (4, 4, 2), expected (L*D, B, H) = (4, 4, 5)"),
    ("LSTM, peepholes, projection", {"w_p": (1, None)}, TypeError, "weights[1].w_p is None, expected an array like weights[0].w_p"),
    ("LSTM, peepholes, projection", {"w": (2, np.zeros((8, 20)))}, ValueError, "weights[2].w has shape (8, 20), expected (D*P+P, 4*H) = (6, 20)"),
]  # fmt: skip
# ruff: noqa: E501 - a case a line


@pytest.mark.parametrize(("cell", "changed", "error", "message"), ERRORS)
def test_errors(
    cell: str, changed: dict[str, Any], error: Any, message: str, rng: np.random.Generator
) -> None:
    names = ("input", "input_h", "input_c", "weights")
    given = dict(
        zip(names, arguments(cell, problem(rng, cell), kind_of(cell)), strict=True),
        direction="bidirectional",
    )
    for name, value in changed.items():
        if name in ("w", "w_p"):
            n, array = value
            given["weights"][n] = given["weights"][n]._replace(**{name: array})
        else:
            given[name] = value
    with pytest.raises(error) as caught:
        cupyrnn.stacked_rnn(**given)
    assert str(caught.value).startswith("stacked_rnn: ")
    assert message in str(caught.value)
