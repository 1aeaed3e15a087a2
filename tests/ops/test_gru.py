"""GRUBlockCell and the GRU over a sequence: outputs, gradients, dtypes, layouts, edge cases."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close, assert_gradients, layouts
from hypothesis import given, settings
from hypothesis import strategies as st
from problems.grus import by_input, grads, plain_grads, problem

import cupyrnn
from cupyrnn import GRUGrads, GRUOutputs

pytestmark = pytest.mark.compiled

# (T, B, I, H). The last two are longer than a block of steps.
SHAPES = [(1, 1, 1, 1), (3, 33, 1, 3), (7, 3, 33, 5), (100, 11, 3, 33), (70, 33, 7, 64)]
EMPTY = [(0, 2, 3, 4), (5, 0, 3, 4), (5, 2, 0, 4), (5, 2, 3, 0), (0, 0, 0, 0)]
BIASES = ("b_ru", "b_c")


def wider(arrays: Any) -> tuple[Any, ...]:
    return tuple(a.astype(np.float64) for a in arrays)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sequence_agrees_with_plain_loop(
    ops: Any, dtype: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    shape = ops.shape(shape)
    inputs = problem(rng, shape, dtype)
    wide = dict(zip(inputs, wider(inputs.values()), strict=True))
    out, expected = ops.block_gru(**inputs), cupyrnn.reference.gru(**wide)
    for name, a, e in zip(out._fields, out, expected, strict=True):
        assert a.dtype == dtype
        assert_close(a, e, dtype, name, at_least=1.0)
    # Off zero, lest the sums cancel.
    d_h = (1 + rng.standard_normal(out.h.shape)).astype(dtype)
    expected_grads = plain_grads(wide, wider(out), d_h.astype(np.float64))
    for name, a in grads(ops, inputs, out, d_h)._asdict().items():
        assert a.dtype == dtype
        assert_close(a, expected_grads[name], dtype, name, at_least=1.0)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(*(st.integers(0, 6) for _ in range(4))),
    complex_step=st.booleans(),
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
)
def test_gradient_is_the_derivative(
    shape: tuple[int, ...], complex_step: bool, data: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    steps = data.draw(st.integers(0, shape[0]), label="seq_len_max")
    inputs = problem(rng, shape)
    out = cupyrnn.block_gru(**inputs, seq_len_max=steps)
    d_h = rng.standard_normal(out.h.shape)

    def forward(**moved: Any) -> tuple[Any]:
        return (cupyrnn.block_gru(**moved, seq_len_max=steps).h,)

    g = by_input(grads(cupyrnn, inputs, out, d_h, seq_len_max=steps))
    assert_gradients(forward, inputs, (d_h,), g, rng, complex_step=complex_step)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 33), (33, 3, 2), (2, 33, 3), (0, 2, 3)])
def test_cell_is_one_step_of_the_sequence(
    ops: Any, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    inputs = problem(rng, (1, *shape))
    one = {**inputs, "x": inputs["x"][0]}
    out, sequence = ops.gru_block_cell(**one), ops.block_gru(**inputs)
    for name, a, e in zip(out._fields, out, sequence, strict=True):
        assert_close(a, e[0], "float64", name)
    d_h = rng.standard_normal(out.h.shape)
    saved = out._asdict() | {"d_h": d_h}
    del saved["h"]
    expected = plain_grads(inputs, sequence, d_h[None])
    g = ops.gru_block_cell_backward(**one, **saved)
    for name, a in g._asdict().items():
        e = expected[name][0] if name == "d_x" else expected[name]
        assert_close(a, e, "float64", name)
    to_gates = ops.gru_block_cell_grad(**one, **saved)
    for name, a in to_gates._asdict().items():
        e = expected[name] if name == "d_h_prev" else expected[name][0]
        assert_close(a, e, "float64", name)


def test_cell_gradient_is_the_derivative(rng: np.random.Generator) -> None:
    inputs = problem(rng, (1, 3, 4, 5))
    inputs["x"] = inputs["x"][0]
    out = cupyrnn.gru_block_cell(**inputs)
    d_h = rng.standard_normal(out.h.shape)
    args = [inputs[n] for n in inputs if n not in BIASES]
    g = cupyrnn.gru_block_cell_backward(*args, *out[:3], d_h)

    def forward(**moved: Any) -> tuple[Any]:
        return (cupyrnn.gru_block_cell(**moved).h,)

    for complex_step in (True, False):
        assert_gradients(forward, inputs, (d_h,), by_input(g), rng, complex_step=complex_step)


def test_chained_cells_are_the_sequence(ops: Any, rng: np.random.Generator) -> None:
    inputs = problem(rng, (9, 3, 4, 5))
    out = ops.block_gru(**inputs)
    d_h = rng.standard_normal(out.h.shape)
    expected = grads(ops, inputs, out, d_h)
    states = [inputs["h_prev"]]
    steps = []
    for t, x in enumerate(inputs["x"]):
        steps.append(ops.gru_block_cell(**{**inputs, "x": x, "h_prev": states[-1]}))
        states.append(steps[-1].h)
        assert_close(steps[-1].h, out.h[t], "float64", f"h[{t}]")
    carried = np.zeros_like(states[0])
    total = dict.fromkeys(("d_w_ru", "d_w_c", "d_b_ru", "d_b_c"), 0.0)
    for t in reversed(range(9)):
        g = ops.gru_block_cell_backward(
            inputs["x"][t],
            states[t],
            inputs["w_ru"],
            inputs["w_c"],
            *steps[t][:3],
            d_h[t] + carried,
        )
        carried = g.d_h_prev
        assert_close(g.d_x, expected.d_x[t], "float64", f"d_x[{t}]")
        total = {n: v + getattr(g, n) for n, v in total.items()}
    for name, value in (total | {"d_h_prev": carried}).items():
        assert_close(value, getattr(expected, name), "float64", name)


@pytest.mark.parametrize("steps", [0, 1, 4, 9])
def test_nothing_past_seq_len_max_is_read_or_left_unset(
    ops: Any, steps: int, rng: np.random.Generator
) -> None:
    inputs = problem(rng, (9, 3, 2, 4))
    d_h = rng.standard_normal((9, 3, 4))
    cut = {**inputs, "x": inputs["x"][:steps]}
    short = ops.block_gru(**cut)
    expected = grads(ops, cut, short, d_h[:steps])
    inputs["x"][steps:] = np.nan
    out = ops.block_gru(**inputs, seq_len_max=steps)
    for name, a, e in zip(out._fields, out, short, strict=True):
        assert_close(a[:steps], e, "float64", name)
        assert not a[steps:].any(), f"{name} is not zero past seq_len_max"
    saved = GRUOutputs(*(a.copy() for a in out))
    for a in (*saved, d_h):
        a[steps:] = np.nan
    g = grads(ops, inputs, saved, d_h, seq_len_max=steps)
    assert not g.d_x[steps:].any()
    assert_close(g.d_x[:steps], expected.d_x, "float64", "d_x")
    for name in GRUGrads._fields[1:]:
        assert_close(getattr(g, name), getattr(expected, name), "float64", name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", EMPTY)
def test_empty_sizes_give_zeros(
    ops: Any, shape: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> None:
    if dtype == "bfloat16":
        dtype = needs.module("ml_dtypes").bfloat16
    T, B, _, H = shape
    inputs = problem(rng, shape, dtype)
    out = ops.block_gru(**inputs)
    assert all(a.shape == (T, B, H) and a.dtype == dtype for a in out)
    for name, a in by_input(grads(ops, inputs, out, np.ones_like(out.h))).items():
        assert a.shape == inputs[name].shape
        assert a.dtype == dtype
        assert np.isfinite(a.astype(np.float64)).all()
        if 0 in (T, B, H):
            assert not a.any(), name


def test_values_that_never_matter_may_be_nan(ops: Any, rng: np.random.Generator) -> None:
    inputs = problem(rng, (5, 3, 2, 4))
    out = ops.block_gru(**inputs)
    d_h = rng.standard_normal(out.h.shape)
    h = out.h.copy()
    h[-1] = np.nan
    nan_biases = {n: np.full_like(inputs[n], np.nan) for n in BIASES}
    g = grads(ops, {**inputs, **nan_biases}, out._replace(h=h), d_h)
    for name, a, e in zip(g._fields, g, grads(ops, inputs, out, d_h), strict=True):
        np.testing.assert_array_equal(a, e, name)
    x = inputs["x"][0]
    one = ops.gru_block_cell(**{**inputs, "x": x})
    args = (inputs["h_prev"], inputs["w_ru"], inputs["w_c"], *one[:3], d_h[0])
    cell = ops.gru_block_cell_grad(*args)
    with_nan = ops.gru_block_cell_grad(*args, x=np.full_like(x, np.nan), **nan_biases)
    for name, a, e in zip(cell._fields, with_nan, cell, strict=True):
        np.testing.assert_array_equal(a, e, name)


def test_memory_layout_does_not_matter(ops: Any, rng: np.random.Generator) -> None:
    inputs = problem(rng, (4, 3, 2, 5))
    out = ops.block_gru(**inputs)
    given = {**out._asdict(), "d_h": rng.standard_normal(out.h.shape)}
    expected = ops.block_gru_grad(**inputs, **given)
    laid_out = {n: dict(layouts(a)) for n, a in (inputs | given).items()}
    for layout in laid_out["x"]:
        args = {n: laid_out[n][layout] for n in inputs}
        for name, a in ops.block_gru(**args)._asdict().items():
            assert_close(a, getattr(out, name), "float64", f"{layout} {name}")
        g = ops.block_gru_grad(**args, **{n: laid_out[n][layout] for n in given})
        for name, a in g._asdict().items():
            assert_close(a, getattr(expected, name), "float64", f"{layout} {name}")
    spread = {n: np.broadcast_to(a.flat[0], a.shape) for n, a in inputs.items()}
    full = {n: a.copy() for n, a in spread.items()}
    for a, e in zip(ops.block_gru(**spread), ops.block_gru(**full), strict=True):
        assert_close(a, e, "float64", "zero strides")


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 1, 1, 3), (40, 33, 3, 33)])
def test_inputs_are_neither_written_nor_returned(
    ops: Any, shape: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> None:
    inputs = problem(rng, ops.shape(shape), dtype)
    out = ops.block_gru(**inputs)
    d_h = rng.standard_normal(out.h.shape).astype(dtype)
    one = {**inputs, "x": inputs["x"][0].copy()}
    cell = ops.gru_block_cell(**one)
    saved = {**cell._asdict(), "d_h": d_h[0].copy()}
    del saved["h"]
    everything = [*inputs.values(), *out, d_h, *one.values(), *saved.values()]
    copies = [a.copy() for a in everything]
    results = [
        *ops.block_gru(**inputs),
        *grads(ops, inputs, out, d_h),
        *ops.gru_block_cell(**one),
        *ops.gru_block_cell_grad(**one, **saved),
        *ops.gru_block_cell_backward(**one, **saved),
    ]
    for a, copy in zip(everything, copies, strict=True):
        np.testing.assert_array_equal(a, copy)
        assert not any(np.may_share_memory(a, result) for result in results)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_formats_compute_in_float32(ops: Any, dtype: str, rng: np.random.Generator) -> None:
    kind = needs.dtype(dtype)
    inputs = problem(rng, ops.shape((40, 33, 3, 33)), kind)
    wide = dict(zip(inputs, wider(inputs.values()), strict=True))
    out = ops.block_gru(**inputs)
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    for name, a, e in zip(out._fields, out, cupyrnn.reference.gru(**wide), strict=True):
        assert a.dtype == kind
        if ops.xp is not np:
            # On a GPU h is rounded before each product, which is what tensor cores take.
            assert_close(a, e, dtype, name)
            continue
        # Rounded once, at the end: nothing but that rounding and float32's errors.
        np.testing.assert_allclose(a.astype(np.float64), e, rtol=1.01 * unit, atol=1e-5)
    d_h = rng.standard_normal(out.h.shape).astype(kind)
    expected = plain_grads(wide, wider(out), d_h.astype(np.float64))
    for name, a in grads(ops, inputs, out, d_h)._asdict().items():
        assert a.dtype == kind
        assert_close(a, expected[name], dtype, name)


def test_half_sums_do_not_stagnate(ops: Any) -> None:
    B, kind = 16384, np.float16
    half, zeros = np.full((B, 1), 0.5, kind), np.zeros((B, 1), kind)
    # d_c_bar = d_h*(1-u)*(1-c²) = 2**-12 in every row; a half sum stops growing at 0.5.
    g = ops.gru_block_cell_backward(
        np.ones((B, 1), kind),
        zeros,
        np.zeros((2, 2), kind),
        np.zeros((2, 1), kind),
        half,
        half,
        zeros,
        np.full((B, 1), 2.0**-11, kind),
    )
    assert g.d_b_c == 4.0
    assert g.d_w_c[0, 0] == 4.0


@pytest.mark.parametrize("gate", ["r", "u"])
def test_complex_step_through_a_closed_gate(gate: str, rng: np.random.Generator) -> None:
    """Where exp overflows, the sigmoid is 0 and not NaN."""
    inputs = problem(rng, (3, 2, 4, 5))
    column = {"r": 0, "u": 5}[gate]
    inputs["b_ru"][column : column + 2] = -2000.0
    real = cupyrnn.block_gru(**inputs)
    wide = {n: a.astype(complex) for n, a in inputs.items()}
    for a, e in zip(cupyrnn.block_gru(**wide), real, strict=True):
        assert_close(a.real, e, "float64", gate)
    d_h = rng.standard_normal(real.h.shape)
    g = grads(cupyrnn, inputs, real, d_h)

    def forward(**moved: Any) -> Any:
        return (cupyrnn.block_gru(**moved).h,)

    assert_gradients(forward, inputs, (d_h,), by_input(g), rng)
