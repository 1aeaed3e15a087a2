"""
Forms of weights and cells of one's own in `stacked_rnn`: where they are found, and what is refused.

The sLSTM, the LSTM with layer normalization, the MGU, the CIFG and the IndRNN are cells that the package
does not have: nothing but their files makes them some. What they compute, the table of the ops tests.
"""

from __future__ import annotations

import ast
import importlib
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest
from checks import Ops, assert_close, run_python
from new_cells.cells import indrnn
from new_cells.cifg import CIFG, CIFGParams
from new_cells.kernels import indrnn as indrnn_kernels
from new_cells.slstm import SLSTM
from problems.properties import assert_slopes
from problems.table import Case, call_of

import cupyrnn
from cupyrnn.driver import layer as _layer
from cupyrnn.driver.pages import page_of


def arguments(rng: np.random.Generator, cell: str) -> dict[str, Any]:
    """Return the arguments of a net of two layers in both directions, T, B, I, H = 6, 4, 3, 5."""
    name = f"stacked_rnn-{cell}"
    case = Case(name, direction="both", layers=2, projected=cell == "LSTM")
    return call_of(case, rng).arguments(cupyrnn)


def together(others: list[Any]) -> Any:
    """Return the states beside h as `stacked_rnn` takes them."""
    return None if not others else others[0] if len(others) == 1 else tuple(others)


@pytest.mark.parametrize("extent", ["full", "lengths", "resets", "lengths+resets"])
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
    given = arguments(rng, "CIFG")
    monkeypatch.delattr(CIFG, "forward_steps")
    page_of.cache_clear()
    message = "stacked_rnn: CIFG has no forward_steps, expected a method of the class or a function"
    with pytest.raises(TypeError, match=f"^{message} of its module, new_cells.cifg$"):
        cupyrnn.stacked_rnn(**given)
    page_of.cache_clear()


@pytest.mark.parametrize("cell", ["MGU", "CIFG"])
def test_a_cell_without_cuda_is_refused_on_a_device(
    cell: str, cupy_on_cpu: Any, rng: np.random.Generator
) -> None:
    given = Ops(cupy_on_cpu).to_device(arguments(rng, cell))
    with pytest.raises(TypeError, match=f"expected a numpy.ndarray: an? {cell}.* no CUDA"):
        cupyrnn.stacked_rnn(**given)


def test_rooms_are_found_by_the_name_of_the_cells_file(
    cupy_on_cpu: ModuleType, compiled_loops: ModuleType
) -> None:
    """Of a cell that is not compiled, NumPy's steps run, also where Numba is installed."""
    cell = indrnn.FORM.cell(np, [np.ones((2, 3)), np.ones(3), np.ones(3)], None)
    for dtype in map(np.dtype, ("float32", "float64", "complex128")):
        for xp, module in ((np, indrnn), (cupy_on_cpu, indrnn_kernels)):
            found = _layer.implementation(xp, cell, 6, dtype, "forward")
            assert found == (module, "steps")


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
    run_python("-", stdin=source)


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
    case = Case("stacked_rnn-sLSTM", extent="lengths+resets", direction="both", layers=2)
    call = call_of(case, rng)
    out = call.forward(cupyrnn)
    given = call.cotangents(rng, out)
    with pytest.raises(AssertionError, match="gradients are not those of the plain loop"):
        assert_slopes(call, given, call.slopes(call.gradient(cupyrnn, out, given)), rng)


ERRORS: list[Any] = [
    ("sLSTM", {"input_c": np.zeros((4, 4, 5))}, TypeError, "input_c is array("),
    ("sLSTM", {"input_c": (np.zeros((4, 4, 5)),) * 2}, TypeError, "expected a tuple of 3 arrays: c, n, m"),
    ("sLSTM", {"input_c": (np.zeros((4, 4, 5)),) * 2 + (np.zeros((4, 4, 6)),)}, ValueError, "input_c[2] has shape (4, 4, 6), expected (L*D, B, H) = (4, 4, 5)"),
    ("sLSTM", {"forget_bias": 1.0}, ValueError, "forget_bias is 1.0, expected None for an sLSTM"),
    ("sLSTM", {"gate_order": "ifco"}, ValueError, "gate_order is 'ifco', expected icfo for an sLSTM"),
    ("LSTM", {"input_h": np.zeros((4, 4, 2))}, ValueError, "weights[0].w has shape (6, 20), expected (I+P, 4*H) = (5, 20)"),
    ("LSTM", {"input_c": np.zeros((4, 4, 2))}, ValueError, "input_c has shape (4, 4, 2), expected (L*D, B, H) = (4, 4, 5)"),
    ("LSTM", {"w_p": (1, None)}, TypeError, "weights[1].w_p is None, expected an array like weights[0].w_p"),
    ("LSTM", {"w": (2, np.zeros((8, 20)))}, ValueError, "weights[2].w has shape (8, 20), expected (D*P+P, 4*H) = (9, 20)"),
]  # fmt: skip
# ruff: noqa: E501 - a case a line


@pytest.mark.parametrize(("cell", "changed", "error", "message"), ERRORS)
def test_errors(
    cell: str, changed: dict[str, Any], error: Any, message: str, rng: np.random.Generator
) -> None:
    given = arguments(rng, cell)
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
