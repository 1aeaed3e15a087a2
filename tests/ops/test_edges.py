"""Extreme values and sizes: large numbers, NaN, one draw of 2**32, more rows than one block."""

from __future__ import annotations

import functools
import tracemalloc
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close, assert_gradients
from problems.properties import assert_same_bits
from problems.table import Call, Case, call_of

import cupyrnn
from cupyrnn.arithmetic import dropout as _dropout

# Where tanh is 1, where exp overflows in float32 and in float64, and the largest number.
LARGE = (20.0, 43.9, 44.1, 50.0, 88.0, 90.0, 354.0, 356.0, 709.0, 750.0, 1e30, 3e38, np.inf)


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_tanh_and_sigmoid_of_large_values(ops: Any, dtype: str) -> None:
    with np.errstate(over="ignore"):
        z = np.array([*(-v for v in LARGE), 0.5, *LARGE]).astype(dtype)
    H = len(z)
    x, cs, w = np.zeros((2, 1, 1), dtype), np.zeros((1, H), dtype), np.zeros((1 + H, 4 * H), dtype)
    ones = np.full(H, 0.7, dtype)
    b_i, b_f, b_o = (np.full(H, v, dtype) for v in (0.3, -0.2, 0.4))
    wide = z.astype(np.float64)
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-wide))
    for order in ("icfo", "ifco"):
        gates = {"i": b_i, "c": z, "f": b_f, "o": b_o}
        args = {"forget_bias": 0, "cell_clip": 0, "gate_order": order}
        out = ops.block_lstm(x, cs, cs, w, np.concatenate([gates[g] for g in order]), **args)
        for t in range(2):
            assert_close(out.ci[t, 0], np.tanh(wide), dtype, "ci")
        gates = {"i": z, "c": ones, "f": z, "o": z}
        out = ops.block_lstm(x, cs, cs, w, np.concatenate([gates[g] for g in order]), **args)
        for name in ("i", "f", "o"):
            for t in range(2):
                assert_close(getattr(out, name)[t, 0], sigmoid, dtype, name)
    # The cell's value itself is as large.
    finite = z[np.isfinite(z)]
    H = len(finite)
    cs, h, w = finite[None], np.zeros((1, H), dtype), np.zeros((1 + H, 4 * H), dtype)
    b = np.zeros(4 * H, dtype)
    b[2 * H : 3 * H] = np.inf
    out = ops.block_lstm(x, cs, h, w, b, forget_bias=0, cell_clip=0)
    for t in range(2):
        assert_close(out.cs[t], cs, dtype, "cs")
        assert_close(out.co[t], np.tanh(cs.astype(np.float64)), dtype, "co")
        assert_close(out.h[t], np.tanh(cs.astype(np.float64)) / 2, dtype, "h")


def of(*shape: int, dtype: str = "float32") -> Any:
    """Return zeros of any shape, in the memory of one number."""
    return np.broadcast_to(np.zeros((), dtype), shape)


GRU = {"w_ru": of(8, 10), "w_c": of(8, 5), "b_ru": of(10), "b_c": of(5)}
NET = cupyrnn.init_params(num_layers=1, num_units=5, input_size=3)
X, W, BIAS = of(4, 2, 3), of(8, 20), of(20)
WEIGHTS = [cupyrnn.BlockLSTMParams(W, BIAS)]
MANY = r"\d+ elements, expected fewer than 10\*\*12"
ABSURD: list[tuple[Any, str]] = [
    (lambda n: cupyrnn.block_lstm(of(n, 2, 3), w=W, b=BIAS), MANY),
    (lambda n: cupyrnn.block_lstm(of(4, n, 3), w=W, b=BIAS), MANY),
    (lambda n: cupyrnn.block_lstm(of(0, n, 3), w=W, b=BIAS), MANY),
    (lambda n: cupyrnn.block_lstm(X, w=of(8, n), b=BIAS), r"w has shape \(8, 10+\)"),
    (lambda n: cupyrnn.lstm_block_cell(of(n, 3), w=W, b=BIAS), MANY),
    (lambda n: cupyrnn.block_gru(of(n, 2, 3), **GRU), MANY),
    (lambda n: cupyrnn.gru_block_cell(of(n, 3), **GRU), MANY),
    (lambda n: cupyrnn.cudnn_rnn(of(n, 2, 3), params=NET), MANY),
    (lambda n: cupyrnn.cudnn_rnn(of(4, n, 3), params=NET), MANY),
    (lambda n: cupyrnn.cudnn_rnn(of(0, n, 3), params=NET), MANY),
    (lambda n: cupyrnn.cudnn_rnn(X, params=NET._replace(params=of(n))), r"params has shape \(10"),
    (lambda n: cupyrnn.stacked_rnn(of(n, 2, 3), weights=WEIGHTS), MANY),
    (lambda n: cupyrnn.stacked_rnn(of(4, n, 3), weights=WEIGHTS), MANY),
    (lambda n: cupyrnn.prepare_step(NET)(of(n, 3)), MANY),
    (lambda n: cupyrnn.run_onnx_node("LSTM", [of(n, 2, 3), of(1, 20, 3), of(1, 20, 5)]), MANY),
    *(
        (functools.partial(call, name, of_n, dtype), rf"{name} has shape \(10+")
        for call in (
            lambda *of_n: cupyrnn.block_lstm(X, w=W, b=BIAS, **absurd(*of_n)),
            lambda *of_n: cupyrnn.cudnn_rnn(X, params=NET, **absurd(*of_n)),
            lambda *of_n: cupyrnn.stacked_rnn(X, weights=WEIGHTS, **absurd(*of_n)),
        )
        for name, of_n, dtype in (("sequence_lengths", (), "i8"), ("resets", (2,), "?"))
    ),
]


def absurd(name: str, more: tuple[int, ...], dtype: str, n: int) -> dict[str, Any]:
    return {name: of(n, *more, dtype=dtype)}


@pytest.mark.parametrize(("call", "message"), ABSURD)
def test_absurd_shapes_are_refused_before_memory_is_taken(call: Any, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=rf"^\w+: .*{message}"):
            call(10**12)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_broadcast_lengths_and_resets(rng: np.random.Generator) -> None:
    call = call_of(Case("block_gru"), rng)
    T, B, *_ = call.case.sizes
    for name, a in (("sequence_lengths", np.full(B, 2)), ("resets", np.zeros((T, B), bool))):
        view = np.broadcast_to(a.flat[0], a.shape)
        for _ in range(2):
            given = call.forward(cupyrnn, **{name: view})
            assert_same_bits(given, call.forward(cupyrnn, **{name: a}))


@pytest.mark.parametrize(
    ("op", "name", "call"),
    [
        ("block_lstm", "w", lambda: cupyrnn.block_lstm(X, w=W, b=BIAS)),
        ("cudnn_rnn", "input", lambda: cupyrnn.cudnn_rnn(X, params=NET)),
        ("stacked_rnn", "input", lambda: cupyrnn.stacked_rnn(X, weights=WEIGHTS)),
        ("prepare_step", "x", lambda: cupyrnn.prepare_step(NET)(X[0])),
        ("init_params", "", lambda: cupyrnn.init_params(num_layers=1, num_units=2, input_size=1)),
        ("pad_sequences", "", lambda: cupyrnn.pad_sequences([X[:, 0]])),
    ],
)
def test_what_there_is_no_memory_for_is_named(
    op: str, name: str, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    numpys, large = np.empty, 2**59
    for made in ("empty", "zeros"):
        monkeypatch.setattr(np, made, lambda *shape, **more: numpys(large))
    shape = rf" with {name} of shape \([\d, ]+\)" if name else ""
    message = f"^{op}: there is no memory for a call{shape}: Unable to allocate 4.00 EiB "
    with pytest.raises(MemoryError, match=message):
        call()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_relu_of_nan_is_nan(ops: Any, dtype: str, rng: np.random.Generator) -> None:
    """As in NumPy and cuDNN. Other sequences are not changed."""
    call = call_of(Case("cudnn_rnn-rnn_relu", (5, 3, 2, 4), dtype), rng)
    clean = call.forward(ops)
    x = call.inputs["input"].copy()
    x[2, 1, 0] = np.nan
    out = call._replace(inputs=call.inputs | {"input": x}).forward(ops)
    assert np.isnan(out.output[2:, 1]).all()
    assert np.isnan(out.output_h[0, 1]).all()
    np.testing.assert_array_equal(out.output[:2], clean.output[:2])
    np.testing.assert_array_equal(out.output[:, ::2], clean.output[:, ::2])


@pytest.mark.parametrize("rate", [1e-9, 1e-10, 1e-12, 5e-324])
def test_rates_below_one_draw(ops: Any, rate: float) -> None:
    """Only the largest of 2**32 draws is below the rate: nothing is dropped, all is scaled."""
    assert _dropout.threshold(rate) >= 2**32 - 5
    x = np.random.default_rng(0).standard_normal((4, 3, 2))
    c = np.zeros((3, 3, 5))
    params = np.full(cupyrnn.cudnn_rnn_params_size(3, 5, 2), 0.2)
    without = ops.cudnn_rnn(x, c, c, params)
    out = ops.cudnn_rnn(x, c, c, params, dropout=rate, seed=3)
    assert_close(out.output, without.output, "float32", "output")
    if rate == 1e-12:
        assert_close(out.output, without.output, "float64", "output", at_least=20.0)


@pytest.mark.parametrize("seeds", [(0, 0), (3, 5), (-1, 2**63)])
@pytest.mark.parametrize("layer", [1, 2])
def test_a_mask_is_philoxs(seeds: tuple[int, int], layer: int) -> None:
    """The mask has the documented key and counter; a block has eight draws of 32 bits."""
    mask = _dropout.keep_mask(
        (3, 7),
        np.dtype(np.float32),
        _dropout.threshold(0.25),
        _dropout.key_words(*seeds),
        layer,
    )
    generator = np.random.Philox(
        counter=np.array([0, 0, layer, 0], np.uint64),
        key=np.array([seed % 2**64 for seed in seeds], np.uint64),
    )
    raw = generator.random_raw(11)
    halves = np.stack([raw & np.uint64(2**32 - 1), raw >> np.uint64(32)], axis=1).ravel()
    np.testing.assert_array_equal(mask.ravel(), halves[:21] < 0.75 * 2**32)


def gates_of(call: Call) -> list[tuple[str, int]]:
    """Return the biases of each gate: an argument, and the index where they begin."""
    H, gates = call.case.size[3], {"cudnn_rnn-lstm": 4, "cudnn_rnn-gru": 3}
    found = [(n, g * H) for n in ("b", "b_ru", "b_c") if n in call.inputs
             for g in range(len(call.inputs[n]) // H)]  # fmt: skip
    count = gates.get(call.case.name, 0)
    return found + [("params", (g - 2 * count) * H) for g in range(count)]


@pytest.mark.parametrize("z", [-750.0, -2000.0, 750.0])
@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("name", ["block_lstm", "block_gru", "cudnn_rnn-lstm", "cudnn_rnn-gru"])
def test_complex_step_through_closed_gates(
    name: str, peephole: bool, z: float, rng: np.random.Generator
) -> None:
    """exp overflows there, and a complex reciprocal would be NaN."""
    call = call_of(Case(name, (3, 2, 4, 5), peephole=peephole), rng)
    known, record = {n: a for n, a in call.inputs.items() if a is not None}, call.case.op.schema
    for argument, start in gates_of(call):
        for units in (2, 5):
            closed = known[argument].copy()
            closed[[start + n for n in range(units)]] = z
            inputs = known | {argument: closed}
            at = call._replace(inputs=call.inputs | inputs)
            out = at.forward(cupyrnn)
            given = {n: g for n, g in at.cotangents(rng, out).items() if g is not None}
            names = [n for n in record.outputs if record.cotangent.format(n) in given]

            def forward(at: Call = at, names: Any = names, **moved: Any) -> list[Any]:
                out = at._replace(inputs=at.inputs | moved).forward(cupyrnn)
                return [getattr(out, n) for n in names]

            wide = forward(**{n: a.astype(complex) for n, a in inputs.items()})
            for n, a in zip(names, wide, strict=True):
                assert_close(a.real, getattr(out, n), "float64", n, at_least=1e-290)
            every = dict.fromkeys(record.cotangents) | given
            slopes = at.slopes(at.gradient(cupyrnn, out, every))
            assert_gradients(forward, inputs, [*given.values()], slopes, rng)


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_gru_weights_of_fewer_rows_than_the_state(rows: int) -> None:
    """Without x, I is the rest of the rows. It must not become negative."""
    B, H = 3, 5
    h, w_ru, w_c = np.ones((B, H)), np.ones((rows, 2 * H)), np.ones((rows, H))
    message = rf"w_ru has shape \({rows}, 10\), expected \(I\+H, 2\*H\) = \(5, 10\)$"
    with pytest.raises(ValueError, match=f"^gru_block_cell_grad: {message}"):
        cupyrnn.gru_block_cell_grad(h, w_ru, w_c, h, h, h, h)
    with pytest.raises(ValueError, match=f"^gru_block_cell_backward: {message}"):
        cupyrnn.gru_block_cell_backward(np.ones((B, 0)), h, w_ru, w_c, h, h, h, h)
    # Without rows for x, x has size 0.
    g = cupyrnn.gru_block_cell_grad(h, np.ones((H, 2 * H)), np.ones((H, H)), h, h, h, h)
    assert g.d_x.shape == (B, 0)


# Half the distance between numbers from 1/2 to 1: the error of a result that is rounded once.
HALF_AN_ULP = {"float16": 2.0**-12, "bfloat16": 2.0**-9}


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_slow_gates_move_over_hundreds_of_steps(
    ops: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A state keeps changing even if a step changes it by less than a half format resolves.

    A gate of 0.9998 rounds to 1; a state that was rounded in each step would stop.
    """
    # On an H100 cuDNN's GRU stopped: see docs/benchmarks/gpu.md.
    monkeypatch.setenv("CUPYRNN_ENGINE", "cupy")
    half = needs.dtype(dtype)
    T, H = 500, 3

    def run(dtype: Any) -> list[Any]:
        x, h = np.ones((T, 1, 2), dtype), np.full((1, H), 0.5, dtype)
        w_ru, w_c = np.zeros((2 + H, 2 * H), dtype), np.zeros((2 + H, H), dtype)
        b_ru, b_c = np.repeat(np.array([0, 8.5], dtype), H), np.full(H, 1, dtype)
        block_gru = ops.block_gru(x, h, w_ru, w_c, b_ru, b_c)
        # The input gate is 1/4916, the forget gate 1 - 1/4916.
        w, b = np.zeros((2 + H, 4 * H), dtype), np.repeat(np.array([-8.5, 1, 8.5, 0], dtype), H)
        block_lstm = ops.block_lstm(x, h, h, w, b, forget_bias=0, cell_clip=0)
        size = cupyrnn.cudnn_rnn_params_size(1, H, 2, rnn_mode="gru")
        params = np.zeros(size, dtype)
        params[-6 * H : -3 * H] = np.repeat(np.array([0, 8.5, 1], dtype), H)
        net = {"rnn_mode": "gru", "engine": "auto"}
        cudnn_gru = ops.cudnn_rnn(x, h[None], None, params, **net)
        last = (block_gru.h[-1], block_lstm.cs[-1], cudnn_gru.output[-1])
        return [np.asarray(a).astype(float) for a in last]

    for name, a, e in zip(("gru", "lstm", "cudnn_gru"), run(half), run(np.float64), strict=True):
        assert abs(e - 0.5).max() > 8 * HALF_AN_ULP[dtype], (
            f"{name}: the gates are too slow to tell"
        )
        np.testing.assert_allclose(a, e, rtol=0, atol=1.01 * HALF_AN_ULP[dtype], err_msg=name)
