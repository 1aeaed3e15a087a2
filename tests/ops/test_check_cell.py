"""check_cell sees wrong gradients of a user's cell, and no others."""

from __future__ import annotations

import inspect
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
