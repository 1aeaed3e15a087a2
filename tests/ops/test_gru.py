"""GRUBlockCell and the GRU over a sequence: outputs, gradients, dtypes, layouts, edge cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems.grus import grads, problem

pytestmark = pytest.mark.compiled

BIASES = ("b_ru", "b_c")


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
