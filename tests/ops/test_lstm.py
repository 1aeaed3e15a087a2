"""LSTMBlockCell and BlockLSTM: outputs, gradients, dtypes, layouts, lengths and edge cases."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest
from checks import (
    assert_close,
    assert_gradients,
    layouts,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from problems.lstms import GRADIENT_NAMES, PEEPHOLES, by_input, grads, peephole_of, plain, problem
from reference import lstm_grad

import cupyrnn
from cupyrnn import LSTMOutputs

pytestmark = pytest.mark.compiled

# (T, B, I, H). The last two are longer than a block of steps and a chunk of factors.
SHAPES = [(1, 1, 1, 1), (3, 33, 1, 3), (7, 3, 33, 5), (100, 11, 3, 33), (70, 33, 7, 64)]
EMPTY = [(0, 2, 3, 4), (5, 0, 3, 4), (5, 2, 0, 4), (5, 2, 3, 0), (0, 0, 0, 0)]


@pytest.mark.parametrize("gate_order", ["icfo", "ifco"])
@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sequence_agrees_with_plain_loop(
    ops: Any,
    dtype: str,
    shape: tuple[int, ...],
    peephole: bool,
    clip: float | None,
    gate_order: Any,
    rng: np.random.Generator,
) -> None:
    shape = ops.shape(shape)
    inputs = problem(rng, shape, peephole, dtype)
    wide = {n: a.astype(np.float64) for n, a in inputs.items()}
    out = ops.block_lstm(**inputs, forget_bias=0.6, cell_clip=clip or 0, gate_order=gate_order)
    expected = plain(wide, forget_bias=0.6, cell_clip=clip, gate_order=gate_order)
    assert clip is None or shape == SHAPES[0] or np.any(np.abs(expected.cs) == clip)
    for name, a, e in zip(out._fields, out, expected, strict=True):
        assert a.dtype == dtype
        assert_close(a, e, dtype, name, at_least=1.0)

    # The gradient of what the op itself saved, so that the mask of the clip is the same.
    saved = LSTMOutputs(*(a.astype(np.float64) for a in out))
    # Off zero, lest the sums cancel.
    cs_grad, h_grad = ((1 + rng.standard_normal(out.h.shape)).astype(dtype) for _ in range(2))
    rounded = None if clip is None else float(np.dtype(dtype).type(clip))
    for given_clip, true_clip in ((None, None), (clip, rounded)):
        g = grads(ops, inputs, out, cs_grad, h_grad, cell_clip=given_clip, gate_order=gate_order)
        e = lstm_grad(
            *(wide[n] for n in ("x", "cs_prev", "h_prev", "w")),
            saved,
            cs_grad.astype(np.float64),
            h_grad.astype(np.float64),
            peephole_of(wide),
            true_clip,
            gate_order,
        )
        for name, a in g._asdict().items():
            assert a.dtype == dtype
            assert_close(a, e[name], dtype, name, at_least=1.0)


@pytest.mark.parametrize("complex_step", [True, False])
@pytest.mark.parametrize("gate_order", ["icfo", "ifco"])
@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("peephole", [False, True])
def test_gradient_is_the_derivative(
    peephole: bool, clip: float, gate_order: Any, complex_step: bool, rng: np.random.Generator
) -> None:
    attributes: dict[str, Any] = {"cell_clip": clip, "gate_order": gate_order}
    inputs = problem(rng, (6, 3, 2, 5), peephole)

    def forward(**moved: Any) -> tuple[Any, Any]:
        out = cupyrnn.block_lstm(**moved, forget_bias=0.4, **attributes)
        return out.cs, out.h

    out = cupyrnn.block_lstm(**inputs, forget_bias=0.4, **attributes)
    assert (np.abs(out.cs) == clip).any() == (clip > 0)
    cs_grad, h_grad = rng.standard_normal((2, *out.h.shape))
    g = by_input(grads(cupyrnn, inputs, out, cs_grad, h_grad, **attributes), inputs)
    assert_gradients(forward, inputs, (cs_grad, h_grad), g, rng, complex_step=complex_step)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(*(st.integers(0, 6) for _ in range(4))),
    peephole=st.booleans(),
    clip=st.sampled_from([0.0, 0.25, 3.0]),
    gate_order=st.sampled_from(["icfo", "ifco"]),
    forget_bias=st.floats(-2, 2),
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
)
def test_gradient_at_random_shapes(
    shape: tuple[int, ...],
    peephole: bool,
    clip: float,
    gate_order: Any,
    forget_bias: float,
    data: Any,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    steps = data.draw(st.integers(0, shape[0]), label="seq_len_max")
    attributes: dict[str, Any] = {
        "cell_clip": clip,
        "gate_order": gate_order,
        "seq_len_max": steps,
    }
    inputs = problem(rng, shape, peephole)

    def forward(**moved: Any) -> tuple[Any, Any]:
        out = cupyrnn.block_lstm(**moved, forget_bias=forget_bias, **attributes)
        return out.cs, out.h

    out = cupyrnn.block_lstm(**inputs, forget_bias=forget_bias, **attributes)
    cs_grad, h_grad = rng.standard_normal((2, *out.h.shape))
    g = by_input(grads(cupyrnn, inputs, out, cs_grad, h_grad, **attributes), inputs)
    assert_gradients(forward, inputs, (cs_grad, h_grad), g, rng)


@pytest.mark.parametrize("gate_order", ["icfo", "ifco"])
@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 33), (33, 3, 2), (2, 33, 3)])
def test_cell_is_one_step_of_the_sequence(
    ops: Any, shape: tuple[int, ...], peephole: bool, gate_order: Any, rng: np.random.Generator
) -> None:
    B, I, H = shape
    attributes: dict[str, Any] = {"cell_clip": 0.3, "gate_order": gate_order}
    inputs = problem(rng, (1, B, I, H), peephole)
    one = {**inputs, "x": inputs["x"][0]}
    out = ops.lstm_block_cell(**one, forget_bias=0.5, **attributes)
    sequence = ops.block_lstm(**inputs, forget_bias=0.5, **attributes)
    for name, a, e in zip(out._fields, out, sequence, strict=True):
        assert a.shape == (B, H)
        assert_close(a, e[0], "float64", name)

    cs_grad, h_grad = rng.standard_normal((2, B, H))
    saved = {n: a for n, a in out._asdict().items() if n != "h"}
    given = {"cs_grad": cs_grad, "h_grad": h_grad, **attributes}
    g = ops.lstm_block_cell_backward(**one, **saved, **given)
    e = grads(ops, inputs, sequence, cs_grad[None], h_grad[None], **attributes)
    assert_close(g.x_grad, e.x_grad[0], "float64", "x_grad")
    for name in GRADIENT_NAMES[1:]:
        assert_close(getattr(g, name), getattr(e, name), "float64", name)

    to_gates = ops.lstm_block_cell_grad(**one, **saved, **given)
    for name in ("cs_prev_grad", "wci_grad", "wcf_grad", "wco_grad"):
        assert_close(getattr(to_gates, name), getattr(e, name), "float64", name)
    dicfo = lstm_grad(
        *(inputs[n] for n in ("x", "cs_prev", "h_prev", "w")),
        sequence,
        cs_grad[None],
        h_grad[None],
        peephole_of(inputs),
        0.3,
        gate_order,
    )["dgates"][0]
    assert_close(to_gates.dicfo, dicfo, "float64", "dicfo")
    assert_close(to_gates.dicfo @ inputs["w"].T[:, :I], g.x_grad, "float64", "dicfo @ w.T")


@pytest.mark.parametrize("peephole", [False, True])
def test_chained_cells_are_the_sequence(ops: Any, peephole: bool, rng: np.random.Generator) -> None:
    inputs = problem(rng, (9, 3, 4, 5), peephole)
    out = ops.block_lstm(**inputs)
    one = dict(inputs)
    steps = []
    for t, x in enumerate(inputs["x"]):
        one["x"] = x
        steps.append(ops.lstm_block_cell(**one))
        for name, a in steps[-1]._asdict().items():
            assert_close(a, getattr(out, name)[t], "float64", f"{name}[{t}]")
        one |= {"cs_prev": steps[-1].cs, "h_prev": steps[-1].h}

    cs_grad, h_grad = rng.standard_normal((2, 9, 3, 5))
    total = dict.fromkeys(("w_grad", "b_grad", "wci_grad", "wcf_grad", "wco_grad"), 0.0)
    dcs, dh = np.zeros((3, 5)), np.zeros((3, 5))
    expected = grads(ops, inputs, out, cs_grad, h_grad)
    for t in reversed(range(9)):
        before = steps[t - 1] if t else None
        one["x"] = inputs["x"][t]
        one["cs_prev"], one["h_prev"] = (
            (before.cs, before.h) if before else (inputs["cs_prev"], inputs["h_prev"])
        )
        g = ops.lstm_block_cell_backward(
            one["x"],
            one["cs_prev"],
            one["h_prev"],
            inputs["w"],
            *steps[t][:6],
            cs_grad[t] + dcs,
            h_grad[t] + dh,
            **{n: inputs[n] for n in PEEPHOLES if peephole},
        )
        dcs, dh = g.cs_prev_grad, g.h_prev_grad
        assert_close(g.x_grad, expected.x_grad[t], "float64", f"x_grad[{t}]")
        total = {n: v + getattr(g, n) for n, v in total.items()}
    for name, value in (total | {"cs_prev_grad": dcs, "h_prev_grad": dh}).items():
        assert_close(value, getattr(expected, name), "float64", name)


def test_lengths_per_example(ops: Any, rng: np.random.Generator) -> None:
    """Sequences of 3, 4 and 5 in a batch of 6 steps, each alone against all masked together."""
    inputs = problem(rng, (6, 3, 2, 4), True)
    lengths = np.array([3, 4, 5])
    out = ops.block_lstm(**inputs, seq_len_max=5)
    cs_grad, h_grad = rng.standard_normal((2, 6, 3, 4))
    valid = (np.arange(6)[:, None] < lengths)[..., None]
    g = grads(ops, inputs, out, cs_grad * valid, h_grad * valid, seq_len_max=5)
    w_grad = np.zeros_like(inputs["w"])
    for n, length in enumerate(lengths):
        alone = {k: a[:, n : n + 1] if k == "x" else a for k, a in inputs.items()}
        alone |= {k: inputs[k][n : n + 1] for k in ("cs_prev", "h_prev")}
        alone["x"] = alone["x"][:length]
        single = ops.block_lstm(**alone)
        assert_close(out.h[:length, n : n + 1], single.h, "float64", "h")
        one = grads(
            ops,
            alone,
            single,
            cs_grad[:length, n : n + 1].copy(),
            h_grad[:length, n : n + 1].copy(),
        )
        assert_close(g.x_grad[:length, n : n + 1], one.x_grad, "float64", "x_grad")
        assert not g.x_grad[length:, n].any()
        assert_close(g.h_prev_grad[n : n + 1], one.h_prev_grad, "float64", "h_prev_grad")
        w_grad += one.w_grad
    assert_close(g.w_grad, w_grad, "float64", "w_grad")


def test_gate_orders_agree_after_permuting_the_columns(ops: Any, rng: np.random.Generator) -> None:
    H = 5
    icfo = problem(rng, (8, 3, 2, H), True)
    columns = np.arange(4 * H).reshape(4, H)[[0, 2, 1, 3]].ravel()
    ifco = {**icfo, "w": icfo["w"][:, columns], "b": icfo["b"][columns]}
    attributes = {"forget_bias": 0.3, "cell_clip": 0.5}
    v1 = ops.block_lstm(**icfo, **attributes, gate_order="icfo")
    v2 = ops.block_lstm(**ifco, **attributes, gate_order="ifco")
    for name, a, e in zip(v1._fields, v1, v2, strict=True):
        assert_close(a, e, "float64", name)
    cs_grad, h_grad = rng.standard_normal((2, *v1.h.shape))
    g1 = grads(ops, icfo, v1, cs_grad, h_grad, gate_order="icfo")
    g2 = grads(ops, ifco, v2, cs_grad, h_grad, gate_order="ifco")
    assert_close(g1.w_grad[:, columns], g2.w_grad, "float64", "w_grad")
    assert_close(g1.b_grad[columns], g2.b_grad, "float64", "b_grad")
    assert np.abs(g1.w_grad - g2.w_grad).max() > 0.01
    for name in set(GRADIENT_NAMES) - {"w_grad", "b_grad"}:
        assert_close(getattr(g1, name), getattr(g2, name), "float64", name)


def test_defaults_are_those_of_the_op_with_that_gate_order(
    ops: Any, rng: np.random.Generator
) -> None:
    inputs = problem(rng, (4, 3, 2, 5), False)
    inputs["cs_prev"] *= 10
    for gate_order, forget_bias, clip in (("icfo", 1.0, 3.0), ("ifco", 0.0, None)):
        out = ops.block_lstm(**inputs, gate_order=gate_order)  # type: ignore[arg-type]
        expected = plain(inputs, forget_bias=forget_bias, cell_clip=clip, gate_order=gate_order)
        assert_close(out.cs, expected.cs, "float64", gate_order)
        assert (np.abs(out.cs).max() > 3) == (clip is None)


@pytest.mark.parametrize("steps", [0, 1, 4, 9])
def test_nothing_past_seq_len_max_is_read_or_left_unset(
    ops: Any, steps: int, rng: np.random.Generator
) -> None:
    inputs = problem(rng, (9, 3, 2, 4), True)
    cs_grad, h_grad = rng.standard_normal((2, 9, 3, 4))
    short = ops.block_lstm(**{**inputs, "x": inputs["x"][:steps]})
    expected = grads(
        ops, {**inputs, "x": inputs["x"][:steps]}, short, cs_grad[:steps], h_grad[:steps]
    )
    inputs["x"][steps:] = np.nan
    out = ops.block_lstm(**inputs, seq_len_max=np.int64(steps))  # type: ignore[arg-type]
    for name, a, e in zip(out._fields, out, short, strict=True):
        assert_close(a[:steps], e, "float64", name)
        assert not a[steps:].any(), f"{name} is not zero past seq_len_max"
    saved = LSTMOutputs(*(a.copy() for a in out))
    for a in (*saved, cs_grad, h_grad):
        a[steps:] = np.nan
    g = grads(ops, inputs, saved, cs_grad, h_grad, seq_len_max=steps)
    assert not g.x_grad[steps:].any()
    assert_close(g.x_grad[:steps], expected.x_grad, "float64", "x_grad")
    for name in GRADIENT_NAMES[1:]:
        assert_close(getattr(g, name), getattr(expected, name), "float64", name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", EMPTY)
def test_empty_sizes_give_zeros(
    ops: Any, shape: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> None:
    if dtype == "bfloat16":
        dtype = needs.module("ml_dtypes").bfloat16
    T, B, _, H = shape
    inputs = problem(rng, shape, True, dtype)
    out = ops.block_lstm(**inputs)
    assert all(a.shape == (T, B, H) and a.dtype == dtype for a in out)
    g = grads(ops, inputs, out, np.ones_like(out.cs), np.ones_like(out.h))
    for name in inputs:
        a = getattr(g, f"{name}_grad")
        assert a.shape == inputs[name].shape
        assert a.dtype == dtype
        if 0 in (T, B, H):
            assert not a.any(), name
    if T:
        one = {**inputs, "x": inputs["x"][0]}
        cell = ops.lstm_block_cell(**one)
        assert all(a.shape == (B, H) for a in cell)
        g2 = ops.lstm_block_cell_grad(**one, **_without_h(cell), cs_grad=None, h_grad=None)
        assert g2.dicfo.shape == (B, 4 * H)
        assert not any(a.any() for a in g2)


def _without_h(out: LSTMOutputs) -> dict[str, Any]:
    return {n: a for n, a in out._asdict().items() if n != "h"}


def test_values_that_never_matter_may_be_nan(ops: Any, rng: np.random.Generator) -> None:
    inputs = problem(rng, (5, 3, 2, 4), False)
    out = ops.block_lstm(**inputs)
    cs_grad, h_grad = rng.standard_normal((2, 5, 3, 4))
    expected = grads(ops, inputs, out, cs_grad, h_grad)
    h = out.h.copy()
    h[-1] = np.nan
    nan = np.full(4, np.nan)
    g = grads(
        ops,
        {**inputs, "b": np.full(16, np.nan)},
        out._replace(h=h),
        cs_grad,
        h_grad,
        use_peephole=False,
        wci=nan,
        wcf=nan,
        wco=nan,
    )
    for name, a, e in zip(g._fields, g, expected, strict=True):
        np.testing.assert_array_equal(a, e, name)

    one = {**inputs, "x": inputs["x"][0]}
    saved = _without_h(ops.lstm_block_cell(**one))
    given = {"cs_grad": cs_grad[0], "h_grad": h_grad[0]}
    expected_cell = ops.lstm_block_cell_grad(inputs["cs_prev"], **saved, **given)
    saved["cs"] = np.full_like(saved["cs"], np.nan)
    unused = {n: np.full_like(one[n], np.nan) for n in ("x", "h_prev", "w", "b")}
    g_cell = ops.lstm_block_cell_grad(inputs["cs_prev"], **saved, **given, **unused)
    for name, a, e in zip(g_cell._fields, g_cell, expected_cell, strict=True):
        np.testing.assert_array_equal(a, e, name)


@pytest.mark.parametrize("which", ["cs_grad", "h_grad"])
def test_none_stands_for_a_zero_gradient(ops: Any, which: str, rng: np.random.Generator) -> None:
    inputs = problem(rng, ops.shape((40, 33, 2, 33)), True)
    out = ops.block_lstm(**inputs)
    g = dict(zip(("cs_grad", "h_grad"), rng.standard_normal((2, *out.h.shape)), strict=True))
    left_out = grads(ops, inputs, out, **{**g, which: None})  # type: ignore[arg-type]
    zero = grads(ops, inputs, out, **{**g, which: np.zeros_like(out.h)})
    for name, a, e in zip(zero._fields, left_out, zero, strict=True):
        np.testing.assert_array_equal(a, e, name)


def test_memory_layout_does_not_matter(ops: Any, rng: np.random.Generator) -> None:
    inputs = problem(rng, (4, 3, 2, 5), True)
    out = ops.block_lstm(**inputs)
    cs_grad, h_grad = rng.standard_normal((2, 4, 3, 5))
    given = {**out._asdict(), "cs_grad": cs_grad, "h_grad": h_grad}
    expected = ops.block_lstm_grad(**inputs, **given)
    laid_out = {n: dict(layouts(a)) for n, a in (inputs | given).items()}
    for layout in laid_out["x"]:
        args = {n: laid_out[n][layout] for n in inputs}
        for name, a in ops.block_lstm(**args)._asdict().items():
            assert_close(a, getattr(out, name), "float64", f"{layout} {name}")
        g = ops.block_lstm_grad(**args, **{n: laid_out[n][layout] for n in given})
        for name, a in g._asdict().items():
            assert_close(a, getattr(expected, name), "float64", f"{layout} {name}")


def test_zero_strides(ops: Any, rng: np.random.Generator) -> None:
    inputs = problem(rng, (4, 3, 2, 5), True)
    spread = {n: np.broadcast_to(a.flat[0], a.shape) for n, a in inputs.items()}
    full = {n: a.copy() for n, a in spread.items()}
    out, expected = ops.block_lstm(**spread), ops.block_lstm(**full)
    one = np.broadcast_to(1.0, out.h.shape)
    g, e = grads(ops, spread, out, one, one), grads(ops, full, expected, one.copy(), one.copy())
    for name, a in (out._asdict() | g._asdict()).items():
        b = getattr(expected, name) if name in out._fields else getattr(e, name)
        assert_close(a, b, "float64", name)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 1, 1, 3), (40, 33, 3, 33)])
def test_inputs_are_neither_written_nor_returned(
    ops: Any, shape: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> None:
    inputs = problem(rng, ops.shape(shape), True, dtype)
    out = ops.block_lstm(**inputs)
    cs_grad, h_grad = (rng.standard_normal(out.h.shape).astype(dtype) for _ in range(2))
    one = {**inputs, "x": inputs["x"][0].copy()}
    saved = {n: a.copy() for n, a in _without_h(ops.lstm_block_cell(**one)).items()}
    step = {"cs_grad": cs_grad[0].copy(), "h_grad": h_grad[0].copy(), "cell_clip": 0.2}
    everything = [*inputs.values(), *out, cs_grad, h_grad, *one.values(), *saved.values()]
    everything += [step["cs_grad"], step["h_grad"]]
    copies = [a.copy() for a in everything]
    results = [
        *ops.block_lstm(**inputs),
        *grads(ops, inputs, out, cs_grad, h_grad, cell_clip=0.2),
        *ops.lstm_block_cell(**one),
        *ops.lstm_block_cell_grad(**one, **saved, **step),
        *ops.lstm_block_cell_backward(**one, **saved, **step),
    ]
    for a, copy in zip(everything, copies, strict=True):
        np.testing.assert_array_equal(a, copy)
        assert not any(np.may_share_memory(a, result) for result in results)


@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_formats_compute_in_float32(
    ops: Any, dtype: str, peephole: bool, rng: np.random.Generator
) -> None:
    kind = needs.dtype(dtype)
    inputs = problem(rng, ops.shape((40, 33, 3, 33)), peephole, kind)
    wide = {n: a.astype(np.float64) for n, a in inputs.items()}
    out = ops.block_lstm(**inputs)
    expected = plain(wide, forget_bias=1.0, cell_clip=3.0)
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    for name, a, e in zip(out._fields, out, expected, strict=True):
        assert a.dtype == kind
        if ops.xp is not np:
            # On a GPU h is rounded before each product, which is what tensor cores take.
            assert_close(a, e, dtype, name)
            continue
        # Rounded once, at the end: nothing but that rounding and float32's errors.
        np.testing.assert_allclose(a.astype(np.float64), e, rtol=1.01 * unit, atol=1e-5)
    cs_grad, h_grad = (rng.standard_normal(out.h.shape).astype(kind) for _ in range(2))
    g = grads(ops, inputs, out, cs_grad, h_grad)
    e = lstm_grad(
        *(wide[n] for n in ("x", "cs_prev", "h_prev", "w")),
        tuple(a.astype(np.float64) for a in out),
        cs_grad.astype(np.float64),
        h_grad.astype(np.float64),
        peephole_of(wide),
    )
    for name, a in g._asdict().items():
        assert a.dtype == kind
        assert_close(a, e[name], dtype, name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_sums_do_not_stagnate(ops: Any, dtype: str) -> None:
    kind = needs.dtype(dtype)
    B = 16384
    zeros, halves = np.zeros((B, 1), kind), np.full((B, 1), 0.5, kind)
    # di = i*(1-i) * cs_grad*ci = 2**-12 in every row; a half sum stops growing at 0.5.
    g = ops.lstm_block_cell_backward(
        np.ones((B, 1), kind),
        np.ones((B, 1), kind),
        zeros,
        np.zeros((2, 4), kind),
        i=halves,
        cs=zeros,
        f=halves,
        o=halves,
        ci=np.full((B, 1), 2.0**-10, kind),
        co=zeros,
        cs_grad=np.ones((B, 1), kind),
        h_grad=None,
        **{n: np.zeros(1, kind) for n in PEEPHOLES},  # type: ignore[arg-type]
    )
    assert float(g.b_grad[0]) == 4.0
    assert float(g.w_grad[0, 0]) == 4.0
    assert float(g.wci_grad[0]) == 4.0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_mask_of_the_true_gradient_at_a_clip_the_dtype_cannot_hold(ops: Any, dtype: str) -> None:
    """0.1 is no binary number: a saved cs at the clip must still count as clipped."""
    one = np.ones((1, 1), dtype)
    w, b = np.zeros((2, 4), dtype), np.zeros(4, dtype)
    for sign in (1, -1):
        out = ops.lstm_block_cell(one, sign * 5 * one, one, w, b, cell_clip=0.1)
        assert abs(out.cs.item()) == np.dtype(dtype).type(0.1)
        args = (sign * 5 * one, *out[:6], one, one)
        assert ops.lstm_block_cell_grad(*args, cell_clip=0.1).cs_prev_grad == 0
        assert ops.lstm_block_cell_grad(*args).cs_prev_grad != 0
        assert ops.lstm_block_cell_grad(*args, cell_clip=0.0).cs_prev_grad != 0


def test_a_clip_below_the_smallest_half_still_clips(ops: Any) -> None:
    one = np.ones((1, 1), np.float16)
    w, b = np.zeros((2, 4), np.float16), np.zeros(4, np.float16)
    assert ops.lstm_block_cell(one, one, one, w, b, cell_clip=1e-9).cs == 0
    assert ops.lstm_block_cell(one, one, one, w, b, cell_clip=1e9).cs > 0.5


@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan])
def test_no_clip(ops: Any, clip: float, rng: np.random.Generator) -> None:
    inputs = problem(rng, (3, 2, 2, 3), False)
    inputs["cs_prev"] *= 100
    out = ops.block_lstm(**inputs, cell_clip=clip, forget_bias=0)
    assert_close(out.cs, plain(inputs).cs, "float64", "cs")


def test_clip_bounds_infinities_and_keeps_nan(ops: Any) -> None:
    w, b = np.zeros((2, 4)), np.zeros(4)
    cs_prev = np.array([[np.inf], [-np.inf], [np.nan]])
    x = np.zeros((3, 1))
    out = ops.lstm_block_cell(x, cs_prev, x, w, b, cell_clip=2.0)
    np.testing.assert_array_equal(out.cs, [[2.0], [-2.0], [np.nan]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gates_keep_relative_accuracy_in_the_tails(ops: Any, dtype: str) -> None:
    x = np.zeros((1, 0), dtype)
    zero, w = np.zeros((1, 1), dtype), np.zeros((1, 4), dtype)
    for z in (-80.0, -30.0, -5.0, 0.0, 5.0, 80.0):
        b = np.full(4, z, dtype)
        out = ops.lstm_block_cell(x, zero, zero, w, b, forget_bias=0)
        expected = 1 / (1 + np.exp(-np.longdouble(z)))
        for gate in (out.i, out.f, out.o):
            assert abs(gate.item() / expected - 1) < 4 * np.finfo(dtype).eps
    extreme = ops.lstm_block_cell(x, zero, zero, w, np.array([-1e9, 0, 1e9, 0], dtype))
    assert extreme.i == 0
    assert extreme.f == 1


def test_long_double_reference_agrees(rng: np.random.Generator) -> None:
    """The plain loop in more than double precision: how far off is float64 itself?"""
    if np.finfo(np.longdouble).eps >= np.finfo(np.float64).eps:
        pytest.skip("long double has no more precision than float64 on this platform")
    inputs = problem(rng, (200, 4, 8, 16), True)
    wide = {n: a.astype(np.longdouble) for n, a in inputs.items()}
    out = cupyrnn.block_lstm(**inputs)
    expected = plain(wide, forget_bias=1.0, cell_clip=3.0)
    for name, a, e in zip(out._fields, out, expected, strict=True):
        assert np.abs(a - e).max() <= 1e-14 * np.abs(e).max(), name


@pytest.mark.parametrize("gate", ["i", "f", "o"])
@pytest.mark.parametrize("peephole", [False, True])
def test_complex_step_through_a_closed_gate(
    gate: str, peephole: bool, rng: np.random.Generator
) -> None:
    """Where exp overflows, the sigmoid is 0 and not NaN."""
    inputs = problem(rng, (3, 2, 4, 5), peephole)
    column = {"i": 0, "f": 2, "o": 3}[gate]
    inputs["b"][column * 5 : column * 5 + 2] = -2000.0
    real = cupyrnn.block_lstm(**inputs)
    wide = {n: a.astype(complex) for n, a in inputs.items()}
    for a, e in zip(cupyrnn.block_lstm(**wide), real, strict=True):
        assert_close(a.real, e, "float64", gate)
    cotangents = [np.zeros_like(real.h)] * 6 + [rng.standard_normal(real.h.shape)]
    g = cupyrnn.block_lstm_grad(
        **inputs, **real._asdict(), cs_grad=None, h_grad=cotangents[-1], cell_clip=3.0
    )

    def forward(**moved: Any) -> Any:
        return cupyrnn.block_lstm(**moved)

    assert_gradients(forward, inputs, cotangents, by_input(g, inputs), rng)


def test_a_clip_that_tensorflows_float_cannot_hold_is_none(ops: Any) -> None:
    one, w, b = np.ones((1, 1), np.float32), np.zeros((2, 4), np.float32), np.zeros(4, np.float32)
    clipped = ops.lstm_block_cell(one, one, one, w, b, cell_clip=1e-60)
    np.testing.assert_array_equal(clipped.cs, ops.lstm_block_cell(one, one, one, w, b).cs)


def test_zeros_for_cs_grad_are_as_none(rng: np.random.Generator) -> None:
    """They need not be added; anything else has to be."""
    inputs = problem(rng, (6, 3, 4, 5), True)
    out = cupyrnn.block_lstm(**inputs)
    h_grad, none = rng.standard_normal(out.h.shape), np.zeros(out.h.shape)
    expected = grads(cupyrnn, inputs, out, None, h_grad)
    for a, e in zip(grads(cupyrnn, inputs, out, none, h_grad), expected, strict=True):
        np.testing.assert_array_equal(a, e)
    for value in (1e-300, np.nan, np.inf):
        some = none.copy()
        some[4, 1, 2] = value
        found = grads(cupyrnn, inputs, out, some, h_grad)
        reached = np.zeros((6, 3), bool)
        reached[:5, 1] = True  # by it, of the gradient of x
        finite = np.isfinite(found.x_grad).all(-1)
        np.testing.assert_array_equal(finite, ~reached | bool(np.isfinite(value)))
    doubled = grads(cupyrnn, inputs, out, np.full(out.h.shape, 0.5), 0 * h_grad)
    assert all(np.abs(a).max() > 0 for a in doubled[:3])
