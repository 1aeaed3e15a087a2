"""The tables of tests/README.md equal the table of ops."""

from __future__ import annotations

from problems import page
from problems.table import TABLE


def test_its_tables_are_those_of_the_tests() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text, "in the folder tests, run python -m problems.page"


def test_every_op_is_asked_for_its_outputs_and_gradients() -> None:
    found = {name: cases for module in page.PROPERTIES for name, cases in page.tests_of(module)}
    assert len(found) > 10
    for name in ("test_outputs", "test_gradients"):
        assert {case.values[1].name for case in found[name]} == set(TABLE)
