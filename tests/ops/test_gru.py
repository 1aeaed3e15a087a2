"""GRUBlockCell and the GRU over a sequence: outputs, gradients, dtypes, layouts, edge cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import assert_close, assert_gradients
from problems.grus import by_input, grads, plain_grads, problem

import cupyrnn

pytestmark = pytest.mark.compiled

BIASES = ("b_ru", "b_c")


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
    before = {n: a.copy() for n, a in (one | saved).items()}
    to_gates = ops.gru_block_cell_grad(**one, **saved)
    for n, a in before.items():
        np.testing.assert_array_equal((one | saved)[n], a, n)
        assert not any(np.may_share_memory((one | saved)[n], g) for g in to_gates)
    for name, a in to_gates._asdict().items():
        e = expected[name] if name == "d_h_prev" else expected[name][0]
        assert_close(a, e, "float64", name)


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
