"""What pages say of results is what the results are."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tables
from tables import RESULTS, Row


def test_the_ratios_follow_the_results() -> None:
    assert (RESULTS / "cpu_ratios.md").read_text() == tables.page()
    processor = re.sub(r"\(R\)|\(TM\)| Processor", "", (RESULTS / "cpu.md").read_text())
    (named,) = re.findall("on 2 cores of an? (.*?),", said("docs/benchmarks/index.md"))
    assert processor.split("\n\n")[1].startswith(f"{named},")


ROOT = Path(__file__).parents[2]


def said(path: str | Path) -> str:
    """Return a page in one line."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def tables_of(file: str, head: str) -> list[Row]:
    """Return the rows of all tables of results whose heads have these words."""
    rows = tables.rows_of((RESULTS / file).read_text())
    return [row for *_, row in rows if head in " ".join(row)]


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


def of_speed(*numbas: bool) -> list[float]:
    """The least and the largest ratio of plain sequences, on one thread, by op."""
    found: list[float] = []
    for numba, op in product(numbas, (tables.BLOCK, tables.cudnn(), tables.cudnn(mode="gru"))):
        of = tables.ratios(1, op, tables.BOTH, numba).items()
        plain = [float(a) for (size, v), a in of if not v and not size.startswith("(1, ")]
        found += least_and_most(plain)
    return found


def of_cases() -> list[float]:
    counts = re.findall(r"(\d+) cases:", said(RESULTS / "conformance_cupyrnn.md"))
    return [*map(int, counts)]


def of_the_demo() -> list[float]:
    page = (ROOT / "docs/guide/demo.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| (.+?) \| (\d\.\d\d) \|$", page, re.MULTILINE))
    without = "the LSTM without hints (`CONTEXTS = ()` in `cupyrnn/demo/text.py`)"
    return [float(table[name]) for name in ("the LSTM with hints", "bz2", without)]


CASES = "# ONNX cases with results, # with"
# A page, what it says of results, a # for each number, and the numbers.
SAID: list[tuple[str, str, Callable[[], list[float]]]] = [
    (
        "README.md",
        "with Numba # to # times as fast as TensorFlow's LSTM, # to # times PyTorch's LSTM and # to"
        " # times its GRU; with NumPy alone # to # times, # to # times and # to # times",
        lambda: of_speed(True, False),
    ),
    (
        "docs/guide/faq.md",
        "it is # to # times as fast as PyTorch's float32 LSTM, and # to # times as fast",
        lambda: of_speed(True)[2:],
    ),
    ("README.md", CASES, of_cases),
    ("docs/index.md", CASES, of_cases),
    ("docs/guide/conformance.md", "all # cases and all # gradients are right", of_cases),
    ("docs/how/checks.md", "its text; # [conformance cases]", lambda: of_cases()[:1]),
    (
        "README.md",
        "reaches # bits per held-out character; bz2 needs #. (It also reads n-gram hints; the LSTM"
        " alone reaches #.)",
        of_the_demo,
    ),
    (
        "docs/guide/gpu.md",
        "# to # µs per step to queue one kernel and one product, and at most # µs in `block_gru`",
        of_the_host,
    ),
    (
        "docs/benchmarks/host_cost.md",
        "this run shows # forward and # backward",
        of_lengths_on_the_host,
    ),
    (
        "docs/guide/conformance.md",
        "| ONNX Runtime 1.32.0 | # | # | # | | onnx 1.23.2, ReferenceEvaluator | # | # | # |"
        " | `run_onnx_node` | # | # | # |",
        of_conformance,
    ),
    (
        "docs/guide/faq.md",
        "ours are # (GRUBlockCell) to # (BlockLSTMGradV2) times TensorFlow's",
        of_accuracy,
    ),
    (
        "docs/how/checks.md",
        "TensorFlow's: # (GRUBlockCell) to # (BlockLSTMGradV2) times as large",
        of_accuracy,
    ),
]


@pytest.mark.parametrize(("page", "phrase", "measured"), SAID)
def test_figures_are_those_of_the_results(page: str, phrase: str, measured: Any) -> None:
    found = re.search(re.escape(phrase).replace(r"\#", r"([\d.,]*\d)"), said(page))
    assert found, f"{page} does not say so any more"
    values = measured()
    for text, value in zip(found.groups(), values, strict=True):
        number = text.replace(",", "")
        assert float(number) == round(value, len(number.partition(".")[2])), (number, values)
