"""Each error of the list can still be planted."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cupyrnn

from .plant import ON_HOST, ROOT, planted

PACKAGE = Path(cupyrnn.__file__).parent


def test_every_error_can_be_planted_and_names_its_tests() -> None:
    for entry in planted():
        text = (PACKAGE / entry.file).read_text(encoding="utf-8")
        wrong = entry.in_text(text)
        assert wrong != text, entry
        ast.parse(wrong)
        for test in entry.tests:
            path, _, name = test.partition("::")
            if test != ON_HOST:
                assert (ROOT / path).exists(), entry
                assert f"def {name}" in (ROOT / path).read_text() if name else True, entry


def test_there_are_enough_and_the_list_has_no_other_lines() -> None:
    entries = planted()
    assert len(entries) >= 200
    text = Path(__file__).with_name("planted.txt").read_text(encoding="utf-8")
    assert text.count("\n- ") == len(entries) == len({(e.file, e.before, e.after) for e in entries})


def test_a_line_that_is_not_there_once_is_refused() -> None:
    first = planted()[0]
    for text in ("", f"{first.before}\n    {first.before}\n"):
        with pytest.raises(ValueError, match="times, expected once"):
            first.in_text(text)
