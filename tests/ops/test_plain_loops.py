"""Every op of the table on every array type: outputs and gradients, compared with a plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import HALF_UNITS
from problems.properties import (
    assert_all_close,
    assert_recorded,
    assert_same_bits,
    assert_slopes,
    each,
    named,
    outputs_with_layout,
)
from problems.table import TABLE, Case, call_of, kind_of, plain, small_blocks

import cupyrnn
from cupyrnn.derivatives.tree import tree_map

LONG: dict[str, Any] = {"size": (100, 2, 8, 16), "dtype": "float64", "memory": "C", "rows": None}
LONG |= {"extent": "full", "layers": 2, "time_major": True}
LONG |= {"dropout": 0.0, "save": "all", "tapered": False, "recurrent_activation": "sigmoid"}
LONG |= {"cell_clip": 0.0, "gate_order": "icfo", "forget_bias": 0.6, "projected": False}


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other case on a device uses one launch for all steps: such calls are recorded."""
    if "-cupy-" in request.node.name and len(request.node.name) % 2:
        monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")


@each(mostly_slow="cuda_on_cpu")
def test_outputs(
    ops: Any, case: Case, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training and inference, with NaN past the end of every sequence."""
    case = case.within(ops)
    small_blocks(case, monkeypatch)
    call = call_of(case, rng)
    out, wide = call.forward(ops), call.as_float64()
    expected = plain(wide, wide.inputs)
    found = call.swap_if_batch_first({n: a for n, a in out._asdict().items() if n in expected})
    assert_all_close(found, expected, case, "out")
    if ops.xp is np and case.layers == 1 and case.dtype in HALF_UNITS:
        # Results are rounded once, at the end: only that rounding and float32's errors remain.
        due = named(expected, "out")
        for n, a in named(found, "out").items():
            wide_a = a.astype(np.float64)
            np.testing.assert_allclose(
                wide_a, due[n], 1.01 * HALF_UNITS[case.dtype], 1e-5, err_msg=n
            )
    if case.op.is_net:
        inference = call.forward(ops, is_training=False)
        assert inference.reserve_space.shape == ()
        assert call.case.name.startswith("stacked") or inference.host_reserved.shape == ()
        if not case.dropout and case.save == "all":  # otherwise training has other pieces
            assert_same_bits(inference[:3], out[:3])
        if case.dropout:
            wide = wide._replace(case=wide.case._replace(dropout=0.0))
            expected = plain(wide, wide.inputs)
        found = call.swap_if_batch_first(
            {n: a for n, a in inference._asdict().items() if n in expected}
        )
        assert_all_close(found, expected, case, "inference")
    assert_recorded(ops, case)


@each(mostly_slow="cuda_on_cpu")
def test_gradients(
    ops: Any, case: Case, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Compare with complex step of the plain loop in float64; other dtypes with float64.

    Past the end of every sequence is NaN, also in the saved results of the forward call.
    """
    case = case.within(ops)
    rounded = np.dtype(kind_of(case)).itemsize == 2
    if rounded and case.op.is_net:  # the saved results are rounded in each step
        case, rounded = case.without_kinks, False
        case = case._replace(size=(min(case.size[0], 5), *case.size[1:]))
    small_blocks(case, monkeypatch)
    call = call_of(case, rng)
    wide, out = call.as_float64(), call.forward(ops)
    cotangents = call.cotangents(rng, out)
    of_wide = tree_map(lambda a: None if a is None else a.astype(np.float64), cotangents)
    saved = wide.forward(cupyrnn)
    expected = wide.slopes(wide.gradient(cupyrnn, saved, of_wide))
    assert_slopes(wide, of_wide, expected, rng)
    if rounded:  # the slopes, also where gates are 0 and 1 and states clipped, are of what is saved
        saved = tree_map(lambda a: a.astype(np.float64), out)
        expected = wide.slopes(wide.gradient(cupyrnn, saved, of_wide))
    if not (case.op.is_net or case.op.is_cell):
        out = out._make(
            np.where(call.padding_mask[..., None], a.dtype.type(np.nan), a) for a in out
        )
    found = call.slopes(call.gradient(ops, outputs_with_layout(call, out), cotangents))
    moved = None
    if case.op.is_net and case.dtype in HALF_UNITS:  # what layers pass on is rounded, too
        near = wide.rounded_again(HALF_UNITS[case.dtype], rng)
        moved = near.slopes(near.gradient(cupyrnn, near.forward(cupyrnn), of_wide))
    assert_all_close(found, expected, case, "gradient", moved)
    if rounded and ops.xp is np:  # computed in float32, rounded once at the end
        for n, a in named(found, "gradient").items():
            due = named(expected, "gradient")[n]
            error = np.abs(a.astype(np.float64) - due).max(initial=0)
            assert error <= 1.01 * HALF_UNITS[case.dtype] * np.abs(due).max(initial=0) + 1e-5, n
    assert_recorded(ops, case)


# Reversed arrays of one sequence may be views with negative strides.
@each(*(n for n, op in TABLE.items() if not op.is_cell), extent="full", rows=None,
      size=[(T, B, 3, 5) for T in (1, 2, 5) for B in (1, 2)],
      mostly_slow="cuda_on_cpu")  # fmt: skip
def test_gradients_of_one_or_two_sequences(
    ops: Any, case: Case, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_gradients(ops, case, rng, monkeypatch)


# Few of the cases above have a projection, its clip and a dtype without rounding of gradients.
@each("stacked_rnn-LSTM", projected=True, proj_clip=0.125, size=(3, 2, 3, 5), memory="C",
      rows=None, layers=2, dropout=0.0, dtype=["float32", "float64"], save=["all", 2],
      recurrent_activation="sigmoid", gate_order="icfo", mostly_slow="cuda_on_cpu")  # fmt: skip
def test_the_clip_of_a_projection(
    ops: Any, case: Case, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_outputs(ops, case, rng, monkeypatch)
    test_gradients(ops, case, rng, monkeypatch)


# What the other cases seldom have together.
WHOLE: dict[str, Any] = {"rows": None}
WHOLE |= {"extent": ["full", "equal lengths", "lengths", "lengths+resets"]}
WHOLE |= {"size": [(5, 3, 4, 6), (1, 3, 4, 6), (1, 2, 3, 128)]}
WHOLE |= {"save": "all", "dtype": ["float16", "float32", "float64"], "memory": "C"}
WHOLE |= {"layers": [1, 2]}


@each("block_lstm", "block_gru", *(n for n in TABLE if n.startswith("cudnn_rnn")),
      **WHOLE, places=["numpy", "numba"])  # fmt: skip
def test_calls_that_are_recorded(
    ops: Any, case: Case, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_outputs(ops, case, rng, monkeypatch)
    test_gradients(ops, case, rng, monkeypatch)


@each(*(n for n, op in TABLE.items() if not op.is_cell and "norm" not in n),
      **LONG, places=["numpy", "numba"])  # fmt: skip
def test_outputs_in_long_double(ops: Any, case: Case, rng: np.random.Generator) -> None:
    """Plain steps in more than double precision show the error of float64 itself."""
    if np.finfo(np.longdouble).eps >= np.finfo(np.float64).eps:
        pytest.skip("long double has no more precision than float64 on this platform")
    call = call_of(case, rng)
    wide = tree_map(lambda a: None if a is None else a.astype(np.longdouble), call.inputs)
    expected = plain(call, wide)
    found = named({n: a for n, a in call.forward(ops)._asdict().items() if n in expected}, "out")
    for n, e in named(expected, "out").items():
        assert np.abs(found[n] - e).max() <= 1e-14 * np.abs(e).max(), n
