"""tables.py: what is shown follows the results, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import tables


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Copies of the pages and of the results, in place of those of the project."""
    found = {}
    for name in ("README", "FAQ", "INDEX"):
        found[name] = tmp_path / f"{name}.md"
        found[name].write_text(getattr(tables, name).read_text())
        monkeypatch.setattr(tables, name, found[name])
    found["cpu"] = tmp_path / "cpu.md"
    found["cpu"].write_text((tables.RESULTS / "cpu.md").read_text())
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    return found


def test_what_is_shown_follows_the_results(shown: dict[str, Path]) -> None:
    before = {name: path.read_text() for name, path in shown.items()}
    tables.fill()
    assert {name: path.read_text() for name, path in shown.items()} == before  # as committed
    result = tables.Results(shown["cpu"])
    value = result.ratios(1, tables.lstm(), tables.BOTH, True)["(50, 16, 128, 128)", ""]
    first, section = before["cpu"].split(f"### {tables.lstm()}\n", 1)
    row = next(
        line
        for line in section.splitlines()
        if line.startswith("| (50, 16, 128, 128) |  | forward+backward")
    )
    at = row.rindex(f" {value} (")  # of the column with Numba
    changed = f"{row[:at]} 99.25{row[at + 1 + len(value) :]}"
    shown["cpu"].write_text(f"{first}### {tables.lstm()}\n" + section.replace(row, changed, 1))
    tables.fill()
    readme, faq, index = (shown[name].read_text() for name in ("README", "FAQ", "INDEX"))
    lines = set(readme.splitlines()) - set(before["README"].splitlines())
    assert any(line.startswith("| (50, 16, 128, 128) |") and "| 99.25 |" in line for line in lines)
    assert len(lines) == 2, lines  # and the line of the largest of all ratios
    assert "to 99 times" in faq
    assert index == before["INDEX"]  # which has forward and backward apart


def test_other_names_of_a_processor(shown: dict[str, Path]) -> None:
    page = shown["cpu"].read_text()
    name = page.split("\n\n")[1].partition(",")[0]
    shown["cpu"].write_text(page.replace(name, "Some Maker(R) Thing(TM) Processor", 1))
    tables.fill()
    for page in (shown["README"].read_text(), shown["INDEX"].read_text()):
        assert "Some Maker Thing" in page
