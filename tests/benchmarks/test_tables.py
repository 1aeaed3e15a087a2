"""tables.py: what is shown follows the results, and nothing else changes; and what pages say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tables
from tables import RESULTS, ROOT, Row


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Replace the project's pages and results by copies."""
    found = {}
    for name in ("README", "FAQ", "INDEX"):
        found[name] = tmp_path / f"{name}.md"
        found[name].write_text(getattr(tables, name).read_text())
        monkeypatch.setattr(tables, name, found[name])
    found["cpu"] = tmp_path / "cpu.md"
    found["cpu"].write_text((RESULTS / "cpu.md").read_text())
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
    assert re.search(r"[\d.]+ to 99 times\s+PyTorch's\s+LSTM", readme)  # with Numba
    assert "to 99 times" in faq
    assert index == before["INDEX"]  # which has forward and backward apart


def said(path: str) -> str:
    """Return a page in one line."""
    return " ".join((ROOT / path).read_text().split())


def tables_of(file: str, head: str) -> list[Row]:
    """Return the rows of all tables of results whose heads have these words."""
    rows = tables.rows_of((RESULTS / file).read_text())
    return [row for *_, row in rows if head in " ".join(row)]


def numbers(rows: list[Row], title: str, n: int = 0) -> list[float]:
    """Return the numbers of a column, of the n-th of that title."""
    return [float(row[title][n]) for row in rows]


def least_and_most(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def of_the_host() -> list[float]:
    step = {
        r["op"][0]: float(r["us/step"][0])
        for r in tables_of("host_cost.md", "us/step")
        if re.fullmatch(r"[\d.]+", r["us/step"][0]) and "one launch" not in r["op"][0]
    }
    gru = max(step.pop("block_gru"), step.pop("block_gru_grad"))
    return [*least_and_most([*step.values()]), gru]


def of_lengths_on_the_host() -> list[float]:
    rows = tables_of("host_cost.md", "us/step")
    return [float(c.split()[0]) for r in rows if (c := r["us/step"][0]).endswith("times")]


def of_conformance() -> list[float]:
    found: list[float] = []
    for runtime in ("onnxruntime", "onnx_reference", "cupyrnn"):
        page = (RESULTS / f"conformance_{runtime}.md").read_text()
        counts = re.findall(r"cases: (\d+) right, (\d+) wrong, (\d+) ref", page)[0]
        found += map(int, counts)
        assert sum(map(int, counts)) >= 2000
    return found


def of_accuracy() -> list[float]:
    line = r"cupyrnn / TensorFlow: ([\d.]+) \(GRUBlockCell\) to ([\d.]+) \(BlockLSTMGradV2\)"
    (found,) = re.findall(line, said("notebooks/02_trust_the_gradients.ipynb"))
    return [float(number) for number in found]


# What a page says of results, a # for each number, and the numbers.
SAID: dict[str, tuple[str, Callable[[], list[float]]]] = {
    "docs/guide/gpu.md": (
        "# to # µs per step to queue one kernel and one product, and at most # µs in `block_gru`",
        of_the_host,
    ),
    "docs/benchmarks/host_cost.md": (
        "this run shows # forward and # backward",
        of_lengths_on_the_host,
    ),
    "docs/guide/conformance.md": (
        "| ONNX Runtime 1.32.0 | # | # | # | | onnx 1.23.2, ReferenceEvaluator | # | # | # |"
        " | `run_onnx_node` | # | # | # |",
        of_conformance,
    ),
    "docs/guide/faq.md": (
        "ours are # (GRUBlockCell) to # (BlockLSTMGradV2) times TensorFlow's",
        of_accuracy,
    ),
    "docs/how/checks.md": (
        "TensorFlow's: # (GRUBlockCell) to # (BlockLSTMGradV2) times as large",
        of_accuracy,
    ),
}


@pytest.mark.parametrize("page", SAID)
def test_figures_are_those_of_the_results(page: str) -> None:
    phrase, measured = SAID[page]
    found = re.search(re.escape(phrase).replace(r"\#", r"([\d.]+)"), said(page))
    assert found, f"{page} does not say so any more"
    values = measured()
    for number, value in zip(found.groups(), values, strict=True):
        assert float(number) == round(value, len(number.partition(".")[2])), (number, values)
