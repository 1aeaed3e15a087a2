"""The compiled loops: when they are used; everything works without Numba."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checks import assert_close, run_python
from problems.properties import numbers_of
from problems.table import Case, call_of

import cupyrnn
from cupyrnn.cells import gru, gru_reset_after, lstm, simple_rnn
from cupyrnn.driver import signatures

# Prints how often NumPy's steps of an LSTM are called.
COUNT = """
from cupyrnn.cells import lstm
calls, steps = [], lstm.forward_steps
lstm.forward_steps = lambda *args: (calls.append(args), steps(*args))
cupyrnn.block_lstm(x, x[0], x[0], w, w[0])
print(len(calls))
"""
# The attributes of each cell.
CELLS: dict[str, tuple[Any, ...]] = {
    "lstm": ((0, 1, 2, 3), None, None, 0.0),
    "gru": (None,),
    "gru_reset_after": (None,),
    "simple_rnn": (False,),
}


def process(code: str, **environment: str) -> list[str]:
    """Run code in a new process and return the words that it prints."""
    code = f"import sys, numpy as np, cupyrnn; x, w = np.ones((2, 3, 5)), np.ones((10, 20)); {code}"
    return run_python("-c", code, **environment).split()


OPS = ["block_lstm", "block_gru"]
OPS += [f"cudnn_rnn-{mode}" for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")]


@pytest.fixture
def numpys(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of NumPy's loops that ran."""
    called = set()

    def note(cell: ModuleType, name: str) -> None:
        steps = getattr(cell, name)
        monkeypatch.setattr(cell, name, lambda *args: (called.add(name), steps(*args)))

    for cell in (lstm, gru, gru_reset_after, simple_rnn):
        note(cell, "forward_steps")
        note(cell, "backward_steps")
    return called


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 2, 5, 5), (2, 33, 33, 33)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_loop_is_compiled(
    compiled_loops: ModuleType, numpys: set[str], shape: tuple[int, ...], dtype: str
) -> None:
    for name in (*OPS, "lstm_block_cell", "gru_block_cell"):
        numbers_of(name, shape, dtype)
    assert not numpys


def test_moves_that_do_not_compile_leave_the_call_to_numpy(
    compiled_loops: ModuleType, numpys: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = numbers_of("block_lstm", (3, 2, 5, 5), extent="lengths")
    assert not numpys
    monkeypatch.setattr(
        importlib.import_module("cupyrnn.compiled.rows"), "compiled", lambda *_: None
    )
    monkeypatch.setattr(signatures, "CALLS", signatures.CallCache())
    found = numbers_of("block_lstm", (3, 2, 5, 5), extent="lengths")
    assert numpys == {"forward_steps", "backward_steps"}
    for a, e in zip(found, expected, strict=True):
        assert_close(a, e, "float64", "result", at_least=1.0)


@pytest.mark.parametrize("extent", ["full", "lengths"])
@pytest.mark.parametrize("save", ["all", 2])
@pytest.mark.parametrize("mode", ["linear_input", "skip_input"])
@pytest.mark.parametrize("name", OPS)
def test_gradients_by_example_are_compiled(
    compiled_loops: ModuleType, numpys: set[str], name: str, mode: str, save: Any, extent: str
) -> None:
    """Those of a GRU, too, whose deltas are in another order in NumPy."""
    rng, attributes = np.random.default_rng(0), (("input_mode", mode),)
    case = Case(name, (7, 8, 3, 5), extent=extent, save=save)
    call = call_of(case._replace(attributes=attributes) if case.op.is_net else case, rng)
    out = call.forward(cupyrnn)
    given = call.cotangents(rng, out)
    total = call.gradient(cupyrnn, out, given)
    found = call.gradient(cupyrnn, out, given, weight_gradients="examples")
    assert not numpys
    for name, a in found._asdict().items():
        if name.startswith(("w", "d_w", "params")):
            assert_close(a.sum(0), getattr(total, name), "float64", name, at_least=1.0)


def test_the_complex_step_is_numpys(compiled_loops: ModuleType, numpys: set[str]) -> None:
    numbers_of("cudnn_rnn-lstm", (3, 2, 5, 5), projected=True)
    assert not numpys
    x = np.ones((3, 2, 5), complex)
    cupyrnn.block_lstm(x, x[0], x[0], np.ones((10, 20), complex), np.ones(20, complex))
    assert numpys == {"forward_steps"}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CELLS)
def test_every_loop_of_a_cell_compiles(compiled_loops: ModuleType, name: str, dtype: Any) -> None:
    """A function that does not compile would run in NumPy, and no result would show it."""
    cell = importlib.import_module(f"cupyrnn.compiled.{name}").in_place(*CELLS[name])
    for loop in ("forward_layer", "backward_layer", "forward_step", "backward_step"):
        assert cell.is_compiled(np.dtype(dtype), loop), loop


@pytest.mark.parametrize(
    ("call", "loaded"),
    [
        ("pass", False),
        ("cupyrnn.cudnn_rnn_params_size(1, 2, 3)", False),
        ("cupyrnn.block_gru(x, x[0], w[:, :10], w[:, :5], w[0, :10], w[0, :5])", True),
        ("cupyrnn.block_lstm(x, x[0], x[0], w, w[0])", True),
    ],
)
def test_numba_is_imported_when_it_is_needed(
    compiled_loops: ModuleType, call: str, loaded: bool
) -> None:
    assert process(f"{call}; print('numba' in sys.modules)") == [str(loaded)]


@pytest.mark.parametrize("variable", ["CUPYRNN_NUMBA=0", "NUMBA_DISABLE_JIT=1"])
def test_switched_off(compiled_loops: ModuleType, variable: str) -> None:
    name, value = variable.split("=")
    assert process(COUNT, **{name: value}) == ["1"]


def test_a_numba_that_cannot_be_imported_ends_no_call(tmp_path: Path) -> None:
    """Numba may raise other errors than ImportError if it does not fit this NumPy."""
    (tmp_path / "numba.py").write_text("raise SystemError('another NumPy')")
    root = Path(cupyrnn.__file__).parents[1]
    code = "print(cupyrnn.block_lstm(x, x[0], x[0], w, np.zeros(20)).h.shape)"
    words = process(code, PYTHONPATH=os.pathsep.join([str(tmp_path), str(root)]), CUPYRNN_NUMBA="1")
    assert " ".join(words) == "(2, 3, 5)"
