"""Single steps have their own code, in NumPy and compiled. The loops give equal results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import assert_close
from problems import lstms
from problems.properties import each, numbers
from problems.table import Case, call_of

import cupyrnn
from cupyrnn.driver import layer, pages, signatures
from cupyrnn.driver.packed_layouts import PackedNet

SIZES = [(1, 1, 1), (3, 5, 7), (2, 33, 31), (7, 0, 3), (2, 3, 0), (20, 300, 65), (1, 128, 130)]
STEPS = ["lstm_block_cell", "gru_block_cell"]
NETS = [f"cudnn_rnn-{mode}" for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")]
ONE: dict[str, Any] = {
    "size": [(1, *size) for size in SIZES],
    "dtype": ["float64", "float32", "float16"],
    "memory": ["C", "fortran", "strided"],
    "direction": ["forward", "both"],
    "save": ["all", "states"],
    "cell_clip": [0.0, 0.25],
    "extent": "full",
    "layers": 2,
    "time_major": True,
    "dropout": 0.0,
    "rows": None,
}


@pytest.fixture(params=["cells", "compiled", "layers"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's single step, the compiled one, or compiled layers even where they are slower."""
    if request.param != "cells":
        request.getfixturevalue("compiled_loops")
    if request.param == "layers":
        monkeypatch.setattr(pages, "pays", lambda *_: True)


class _OverTime:
    """The functions of a cell without those for a single step."""

    def __init__(self, module: Any) -> None:
        self.forward_steps, self.backward_steps = module.forward_steps, module.backward_steps
        self.add_sums = getattr(module, "add_sums", None)


def _have_loops_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make NumPy's loops over time compute single steps too."""
    in_numpy = layer.in_numpy
    monkeypatch.setattr(pages, "compiled_page", lambda _: None)
    signatures.CALLS.clear()
    monkeypatch.setattr(layer, "in_numpy", lambda cell: _OverTime(in_numpy(cell)))
    form = PackedNet.form
    monkeypatch.setattr(PackedNet, "form", lambda net, is_single=False: form(net))


@each(*STEPS, *NETS, **ONE, places=["numpy"])
def test_one_step_is_that_of_the_loops(
    room: None, ops: Any, case: Case, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(case, rng)
    found = numbers(call)
    for a, b in zip(found.values(), numbers(call).values(), strict=True):
        assert a.tobytes() == b.tobytes()  # the same call if it is recorded
    _have_loops_over_time(monkeypatch)
    expected = numbers(call)
    assert found.keys() == expected.keys()
    for n, e in expected.items():
        assert found[n].dtype == e.dtype
        assert_close(found[n], e, case.dtype, n, at_least=1.0, terms=case.terms)


@pytest.mark.parametrize("B", [2, 9])
def test_one_unit_in_float32(B: int, rng: np.random.Generator) -> None:
    """The gate with a peephole: with H = 1 a product's columns are every fourth number."""
    inputs = lstms.problem(rng, (1, B, 3, 1), True, np.dtype(np.float32))
    expected = cupyrnn.block_lstm(**{n: a.astype(np.float64) for n, a in inputs.items()})
    found = cupyrnn.lstm_block_cell(**{**inputs, "x": inputs["x"][0]})
    for a, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, e[0], rtol=1e-5, atol=1e-6)
