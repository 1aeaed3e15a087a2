"""
Forms of weights through the public `stacked_rnn`, beside plain loops and complex steps.

The sLSTM and the LSTM with layer normalization are cells that the package does not have: nothing
but their files makes them some. The LSTM with peepholes and a projection is TensorFlow 1's ``LSTMCell(use_peepholes=True, num_proj=P)``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from checks import Ops, assert_close, assert_gradients
from new_cells.cells import slstm
from new_cells.cells.layer_norm_lstm import LayerNormLSTMParams
from new_cells.cells.slstm import SLSTMParams

import cupyrnn
from cupyrnn import PeepholeLSTMParams

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
    c = others[0] if len(others) == 1 else tuple(others)
    return arrays["input"], arrays["state 0"], c, weights


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
    return list(others) if isinstance(others, tuple) else [others]


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
        *(dy, dh, others[0] if len(others) == 1 else tuple(others), out.reserve_space),
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


@pytest.mark.parametrize("state", range(4))
def test_a_planted_error_is_caught(
    state: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sign of one of the gradients that a step passes to the one before."""
    steps = slstm.backward_steps

    def planted(cell: Any, run: Any) -> None:
        steps(cell, run)
        np.negative(run.carried[state], run.carried[state])

    monkeypatch.setattr(slstm, "backward_steps", planted)
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
