"""check_cell sees wrong gradients of a user's cell, and no others."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from new_cells import cifg, mgu, slstm

import cupyrnn
from cupyrnn import BlockLSTMParams, PeepholeLSTMParams
from cupyrnn.cells.one_file import layer_norm_lstm

GRU = cupyrnn.init_block_gru(num_units=3, input_size=2)
KINDS = [mgu.MGUParams, slstm.SLSTMParams, cifg.CIFGParams]
KINDS += [cupyrnn.cells.LayerNormLSTMParams, cupyrnn.cells.MultiplicativeLSTMParams]
RIGHT: list[Any] = [*(kind(*kind._fields) for kind in KINDS), GRU, BlockLSTMParams(1, 1)]
RIGHT += [PeepholeLSTMParams(1, 1, 1, 1, 1, None), PeepholeLSTMParams(1, 1, None, None, None, 1)]


@pytest.mark.parametrize("weights", RIGHT, ids=lambda w: type(w).__name__)
def test_right_cells(weights: Any) -> None:
    check = cupyrnn.check_cell(weights)
    assert check.wrong == []
    assert len(check.errors) == 10
    named = {n for n, a in weights._asdict().items() if a is not None}
    assert named < {*check.errors["one layer"]}
    title, head, *rows = str(check).splitlines()
    assert title.startswith(f"{weights.form.name}: errors of gradients")
    assert head.split() == [*check.errors["one layer"]]
    assert [row[:9] for row in rows] == [case[:9].ljust(9) for case in check.errors]


def with_error(right: str, wrong: str, module: Any = mgu) -> Any:
    """Return weights of a cell with a wrong line."""
    source = inspect.getsource(module)
    assert source.count(right) == 1
    names: dict[str, Any] = {"__name__": "wrong", "__package__": module.__package__}
    exec(source.replace(right, wrong), names)
    (kind,) = (a for n, a in names.items() if n.endswith("Params"))
    return kind(*kind._fields)


ALL = "input, input_h, w_f, w_c, b_f, b_c"
WRONG: list[tuple[str, str, str]] = [
    ("+ dfh * f + product", "+ product", ALL),
    ("(dh * (c - h_prev) + dfh * h_prev)", "(dh * (c - h_prev))", ALL),
    ("[h_before, saved.f * h_before]", "[h_before, h_before]", "w_c"),
    ("dh += run.cotangents.h[t]", "dh += run.cotangents.h[0]", ALL),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "arrays"), WRONG)
def test_wrong_cells(right: str, wrong: str, arrays: str) -> None:
    message = rf"^check_cell: wrong gradients of {arrays}\n\nan MGU: "
    with pytest.raises(ValueError, match=message) as raised:
        cupyrnn.check_cell(with_error(right, wrong))
    assert "*" in str(raised.value).partition("\n\n")[2]


def test_an_error_in_one_way_of_running() -> None:
    """The terms of an LSTM with layer normalization are for gradients of each example only."""
    weights = with_error("da * saved.xn, da * saved.hn", "da * saved.xn, da", layer_norm_lstm)
    with pytest.raises(ValueError, match=r"^check_cell: wrong gradients of g_h\n") as raised:
        cupyrnn.check_cell(weights)
    marked = [row for row in str(raised.value).splitlines() if "*" in row][1:]
    assert [row.partition("  ")[0] for row in marked[:1]] == ["gradients of each example"]


# ruff: noqa: E501 - a case a line
# What does not fit together, and the error. No step has run then.
OF_FORM = "name, States, Saved, shapes, cell, gradients"
SYMBOLS = "expected symbols such as 'K+P, 4*H', of K, H and P"
RETURNS = "return Gradients(None, (*inputs, *recurrent), biases)"
PARTS = "(*inputs, *recurrent), biases)"
MADE = "MGUForm.gradients returned"
UNFIT: list[tuple[str, str, str]] = [
    ('name, States, Saved = "an MGU", States, Saved', "pass", f"MGUForm has no name, expected {OF_FORM}"),
    ('"w_f": "K+H, H", ', "", "MGUForm.shapes has no w_f, expected the shape of each of w_f, w_c, b_f, b_c"),
    ('"w_f": "K+H, H"', '"w_f": "I+H, H"', f"MGUForm.shapes['w_f'] is 'I+H, H', {SYMBOLS}"),
    ('"w_f": "K+H, H"', '"w_f": 3', f"MGUForm.shapes['w_f'] is 3, {SYMBOLS}"),
    ("return MGU(inputs", "return None and (inputs", "MGUForm.cell returned None, expected a NamedTuple"),
    ("    Saved = Saved\n", "", "MGU has no Saved, expected inputs, recurrent, widths, Saved, states"),
    ("Weight(w_f[:-H], H)", "Weight(w_f[:-H], 8)", "MGUForm.cell: inputs[0].w has shape (3, 4), expected (·, width) with width = 8"),
    ("(w_c[-H:], H, delta=1)", "(w_c[-H:], H, delta=2)", "MGUForm.cell: recurrent[1].delta is 2, expected less than the number of widths, 2"),
    ("(H, H), b_f", "(H, 2 * H), b_f", "MGUForm.cell: inputs[1].width is 4, expected 8, the number of its columns of deltas[1]"),
    ("States(saved.h)", "saved.h", "MGU.states returned a numpy.ndarray, expected a NamedTuple of h"),
    ("[h_before, saved.f * h_before]", "[h_before]", "MGU.operands returned 1 array, expected 2, one for each of recurrent"),
    ("    Saved = Saved\n", "    Saved = States\n", "MGU.Saved has h, expected f, c, h like MGUForm.Saved"),
    ("    f: Any\n    c: Any\n    h: Any\n", "    h: Any\n    f: Any\n    c: Any\n", "MGU.Saved ends with c, expected h, which MGU.states returns first"),
    ("(H, H), b_f", "(H), b_f", "MGUForm.cell: widths is an int, expected a tuple of integers"),
    ("MGU(inputs,", "MGU(inputs[0],", "MGUForm.cell: inputs is a cupyrnn.Weight, expected a tuple of Weight"),
    ("MGU(inputs,", "MGU((w_f, w_c),", "MGUForm.cell: inputs[0] is a numpy.ndarray, expected a Weight"),
    (PARTS, "None, biases)", f"{MADE} None as weights, expected 4, one for each of inputs and recurrent"),
    (PARTS, f"{PARTS[:-1]}[0])", f"{MADE} a numpy.ndarray as sums, expected 2, one for each of widths"),
    (PARTS, "(*inputs, *recurrent), [biases[0][..., 1:], None])", f"{MADE} sums[0] of shape (3,), expected one number for each of the columns of deltas[0], (4,)"),
    (PARTS, f"{PARTS[:-1]}, np.zeros(3))", f"{MADE} vectors of shape (3,), expected memory with (4,) in front, as grads by example have"),
    (RETURNS, f"{RETURNS}\n\n    def finished(self, grads: Any, written: Any) -> None:\n        grads", "MGUForm.finished returned None, expected gradients of w_f, w_c, b_f, b_c"),
    (RETURNS, "return None", f"{MADE} None, expected Gradients"),
    (PARTS, "inputs, biases)", f"{MADE} 2 arrays as weights, expected 4, one for each of inputs and recurrent"),
    (PARTS, f"{PARTS[:-1]}[:1])", f"{MADE} 1 array as sums, expected 2, one for each of widths"),
    (PARTS, "(*recurrent, *inputs), biases)", f"{MADE} weights[0] of shape (4, 4), expected the matrix's shape, (3, 4)"),
    ("(w_f[..., :K, :],", "(w_f[:K],", f"{MADE} weights[0] of shape (3, 7, 4), expected the matrix's shape, (3, 4) with (4,) in front, as grads by example have"),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "message"), UNFIT)
def test_parts_that_do_not_fit(right: str, wrong: str, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(f'check_cell: {message}')}$"):
        cupyrnn.check_cell(with_error(right, wrong))


PAGE, WEIGHTS_OF = "CIFG.compiled", "a_page.weights_of"
W_PARTS = "(w.part(0, K),), (w.part(K, rows),)"
UNFIT_PAGES: list[tuple[str, str, str]] = [
    ("import numpy as np\n", "import nothing_like_that\n", f"{PAGE} is 'a_page', expected a module or the name of one: No module named 'nothing_like_that'"),
    ("def in_place", "def elsewhere", "a_page, the compiled page of CIFG, has no in_place, expected in_place and weights_of"),
    ('saved=("f", "g",', 'saved=("g", "f",', f"{PAGE}: the formulas have saved = g, f, o, c, h, expected f, g, o, c, h like CIFG.Saved"),
    ('c="c",', "", "the formulas of a_page have c = '', expected the name of c in saved"),
    (W_PARTS, "w.part(0, K), w.part(K, rows)", f"{WEIGHTS_OF} returned a cupyrnn.Place as the matrices of x, expected a tuple of parts of the weights"),
    (W_PARTS, "(w,), (w,)", f"{WEIGHTS_OF} returned matrices of x of shapes (7, 12), expected 3 rows"),
    ("v.c_prev - v.g", "v.c_before - v.g", f"{PAGE}: its formulas cannot be compiled: no vector is named c_before"),
    ('"dc": dc * v.f', '"c_carried": dc * v.f', f"{PAGE}: its formulas cannot be compiled: no vector is named c_carried"),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "message"), UNFIT_PAGES)
def test_compiled_pages_that_do_not_fit(
    right: str, wrong: str, message: str, compiled_loops: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Calls use NumPy where a page cannot be compiled, and only the check says so."""
    source = inspect.getsource(importlib.import_module("new_cells.compiled.cifg"))
    assert source.count(right) == 1
    source = source.replace(right, wrong).replace("from ..cifg import CIFGParams", "")
    (tmp_path / "a_page.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_page", raising=False)
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(f'check_cell: {message}')}$"):
        cupyrnn.check_cell(with_error("new_cells.compiled.cifg", "a_page", cifg))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"weights": 3}, TypeError, "weights is an int, expected the weights of a cell"),
        ({"weights": GRU, "num_units": 1}, ValueError, "num_units is 1, expected at least 2"),
        ({"weights": GRU, "seed": 0.5}, TypeError, "seed is 0.5, expected an integer"),
    ],
)
def test_errors(given: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^check_cell: {message}$"):
        cupyrnn.check_cell(**given)
