"""
User-defined forms and cells in `stacked_rnn`: how they are found, and what is refused.

The sLSTM, the MGU, the CIFG and the IndRNN are not in the package. Their own files define them. The tests of the table check what they compute.
"""

from __future__ import annotations

import ast
import importlib
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checks import Ops, run_python
from new_cells.cells import indrnn
from new_cells.cifg import CIFG
from new_cells.kernels import indrnn as indrnn_kernels
from problems.properties import numbers
from problems.table import Case, call_of

import cupyrnn
from cupyrnn.driver import layer as _layer
from cupyrnn.driver import pages
from cupyrnn.driver.pages import in_vectors


def arguments(rng: np.random.Generator, cell: str) -> dict[str, Any]:
    """Return the arguments of a net of two layers in both directions, T, B, I, H = 6, 4, 3, 5."""
    name = f"stacked_rnn-{cell}"
    case = Case(name, direction="both", layers=2, projected=cell == "LSTM")
    return call_of(case, rng).arguments(cupyrnn)


def together(others: list[Any]) -> Any:
    """Return the states beside h as arguments of `stacked_rnn`."""
    return None if not others else others[0] if len(others) == 1 else tuple(others)


@pytest.mark.parametrize(("T", "way"), [(3, "layer"), (1, "step")])
def test_a_cell_in_vectors(
    T: int, way: str, compiled_loops: ModuleType, rng: np.random.Generator, monkeypatch: Any
) -> None:
    """A user's cell with a page for Numba: a layer or a step is one compiled call."""
    assert in_vectors(CIFG) is importlib.import_module("new_cells.compiled.cifg")
    calls = list[str]()
    for name, module, kind in (("layer", "plan", "Plan"), ("step", "single", "CompiledStep")):
        loop = getattr(importlib.import_module(f"cupyrnn.compiled.{module}"), kind)
        run = loop.run
        monkeypatch.setattr(loop, "run", lambda *a, n=name, f=run: calls.append(n) or f(*a))
    numbers(call_of(Case("stacked_rnn-CIFG", (T, 4, 5, 3), layers=2), rng))
    assert calls == [way] * 4


FILES = {"mgu": "MGU", "cifg": "CIFG", "slstm": "SLSTM"}


@pytest.mark.parametrize("name", FILES)
def test_a_cell_is_one_file_anywhere(name: str, rng: np.random.Generator) -> None:
    """A cell in a notebook or a script: its namespace is no module, and it imports one thing."""
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
    message = "stacked_rnn: CIFG has no forward_steps, expected a method of the class or a function"
    with pytest.raises(TypeError, match=f"^{message} of its module, new_cells.cifg$"):
        cupyrnn.stacked_rnn(**given)


@pytest.mark.parametrize("name", ["in_place", "weights_of"])
def test_a_compiled_page_without_a_function(
    name: str, compiled_loops: ModuleType, rng: np.random.Generator, monkeypatch: Any
) -> None:
    monkeypatch.delattr(in_vectors(CIFG), name)
    message = f"compiled page of CIFG, has no {name}, expected in_place and weights_of"
    with pytest.raises(
        TypeError, match=rf"^stacked_rnn: new_cells\.compiled\.cifg, the {message}$"
    ):
        cupyrnn.stacked_rnn(**arguments(rng, "CIFG"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda w_x, w_h: (w_h, w_x), r"matrices of x of shapes \(5, 15\), expected 3 rows"),
        (
            lambda w_x, w_h: (w_x, (w_h[0].part(0, 10, 1),)),
            r"a matrix of h of shape \(5, 10\), expected at least 15 columns, those of the gates in"
            r" new_cells\.compiled\.cifg\.in_place",
        ),
    ],
)
def test_a_compiled_page_with_wrong_matrices(
    compiled_loops: ModuleType, wrong: Any, message: str, rng: np.random.Generator, monkeypatch: Any
) -> None:
    """Compiled code would write beyond their ends."""
    page = in_vectors(CIFG)
    right = page.weights_of
    monkeypatch.setattr(page, "weights_of", lambda weights: (*wrong(*right(weights)[:2]), {}))
    with pytest.raises(
        ValueError,
        match=rf"^stacked_rnn: new_cells\.compiled\.cifg\.weights_of returned {message}$",
    ):
        cupyrnn.stacked_rnn(**arguments(rng, "CIFG"))


def test_a_compiled_page_of_a_cell_with_more_states(
    compiled_loops: ModuleType, rng: np.random.Generator, monkeypatch: Any
) -> None:
    """Compiled code would not write n and m."""
    page = in_vectors(CIFG)
    monkeypatch.setattr(pages, "compiled_page", lambda _: page)
    message = "an sLSTM, which has the states h, c, n, m, expected at most two$"
    with pytest.raises(
        ValueError, match=f"^stacked_rnn: {page.__name__} is the compiled page of {message}"
    ):
        cupyrnn.stacked_rnn(**arguments(rng, "sLSTM"))


def test_weights_of_another_form_in_a_second_call(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, run = arguments(rng, "CIFG"), cupyrnn.stacked_rnn
    weights, expected = given["weights"], run(**given)
    form = weights[0].form

    class Doubled(type(form)):  # type: ignore[misc]
        def cell(self, xp: Any, weights: Any, attributes: Any) -> Any:
            return super().cell(xp, weights._replace(w=2 * weights.w), attributes)

    doubled = Doubled()
    of_doubled = run(**given | {"weights": [w._replace(w=2 * w.w) for w in weights]})
    assert not np.array_equal(of_doubled.output, expected.output)
    monkeypatch.setattr(type(weights[0]), "form", property(lambda _: doubled))
    np.testing.assert_array_equal(run(**given).output, of_doubled.output)


def test_a_form_made_anew_for_each_entry(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arguments(rng, "CIFG")
    kind, made = type(given["weights"][0]), type(given["weights"][0].form)
    monkeypatch.setattr(kind, "form", property(lambda _: made()))
    expected = "expected the weights of a CIFG LSTM like weights[0], with the same form object"
    with pytest.raises(TypeError) as caught:
        cupyrnn.stacked_rnn(**given)
    message = str(caught.value)
    assert message.startswith("stacked_rnn: weights[1] is a ")
    assert message.endswith(f"{expected}: its form is another CIFGForm")


@pytest.mark.parametrize("cell", ["MGU", "CIFG"])
def test_a_cell_without_cuda_is_refused_on_a_device(
    cell: str, cupy_on_cpu: Any, rng: np.random.Generator
) -> None:
    given = Ops(cupy_on_cpu).to_device(arguments(rng, cell))
    with pytest.raises(TypeError, match=f"expected a numpy.ndarray: an? {cell}.* no CUDA"):
        cupyrnn.stacked_rnn(**given)


def test_the_pages_of_a_cell_in_a_package(
    cupy_on_cpu: ModuleType, compiled_loops: ModuleType
) -> None:
    """NumPy computes the steps of a cell without compiled functions, also if Numba is installed."""
    cell = indrnn.FORM.cell(np, [np.ones((2, 3)), np.ones(3), np.ones(3)], None)
    for dtype in map(np.dtype, ("float32", "float64", "complex128")):
        for xp, module in ((np, indrnn), (cupy_on_cpu, indrnn_kernels)):
            found = _layer.implementation(xp, cell, 6, dtype, "forward", False)
            assert found == (module, False)


def test_the_functions_beside_a_class_in_a_script() -> None:
    """Functions of the module are found too, if a file has one cell."""
    source = (Path(__file__).parents[1] / "new_cells/cells/indrnn.py").read_text(encoding="utf-8")
    source += """
IndRNN.kernels = None
cell = IndRNN((Weight(np.ones((1, 1)), 1),), (1,), np.ones(1), np.zeros(1))
from cupyrnn.driver.layer import implementation
import sys
for xp, module in ((np, sys.modules["__main__"]), (None, None)):
    assert implementation(xp, cell, 1, np.dtype(float), "forward", False)[0] is module
"""
    run_python("-", stdin=source)


ERRORS: list[Any] = [
    ("sLSTM", {"input_c": np.zeros((4, 4, 5))}, TypeError, "input_c is array("),
    ("sLSTM", {"input_c": (np.zeros((4, 4, 5)),) * 2}, TypeError, "expected a tuple of 3 arrays: c, n, m"),
    ("sLSTM", {"input_c": (np.zeros((4, 4, 5)),) * 2 + (np.zeros((4, 4, 6)),)}, ValueError, "input_c[2] has shape (4, 4, 6), expected (L*D, B, H) = (4, 4, 5)"),
    ("sLSTM", {"input_h": None, "input_c": 3}, TypeError, "input_c is 3, expected a tuple of 3 arrays: c, n, m"),
    ("sLSTM", {"forget_bias": 1.0}, ValueError, "forget_bias is 1.0, expected None for an sLSTM"),
    ("sLSTM", {"gate_order": "ifco"}, ValueError, "gate_order is 'ifco', expected icfo for an sLSTM"),
    ("sLSTM", {"gate_order": np.ones(2)}, ValueError, "gate_order is array([1., 1.]), expected icfo for an sLSTM"),
    ("LSTM", {"input_h": np.zeros((4, 4, 2))}, ValueError, "weights[0].w has shape (7, 20), expected (I+P, 4*H) = (5, 20)"),
    ("LSTM", {"input_h": None, "input_c": None, "w": (2, np.zeros((8, 16)))}, ValueError, "the arrays of weights[2] differ in H: w has shape (8, 16), expected (K+P, 4*H); b has shape (20,), expected (4*H,)"),
    ("sLSTM", {"input_h": None, "w": (0, np.zeros((8, 16)))}, ValueError, "the arrays of weights[0] differ in H: w has shape (8, 16), expected (K+H, 4*H); b has shape (20,), expected (4*H,)"),
    ("LSTM", {"w_p": (1, None)}, TypeError, "weights[1].w_p is None, expected an array like weights[0].w_p"),
    ("LSTM", {"w": (2, np.zeros((8, 20)))}, ValueError, "weights[2].w has shape (8, 20), expected (D*P+P, 4*H) = (12, 20)"),
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
