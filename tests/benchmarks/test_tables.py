"""tables.py: what is shown follows the results, and nothing else changes; and what pages say."""

from __future__ import annotations

import math
import re
from ast import literal_eval
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tables
from tables import RESULTS, ROOT, Row


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Copies of the pages and of the results, in place of those of the project."""
    found = {}
    for name in ("README", "FAQ", "INDEX"):
        found[name] = tmp_path / f"{name}.md"
        found[name].write_text(getattr(tables, name).read_text())
        monkeypatch.setattr(tables, name, found[name])
    for name in ("cpu", "nets"):
        found[name] = tmp_path / f"{name}.md"
        found[name].write_text((RESULTS / f"{name}.md").read_text())
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
    (line,) = lines  # of PyTorch's LSTM: the largest ratio with Numba
    assert re.match(r"\| PyTorch's LSTM \| [\d.]+ to 99 \|", line)
    assert "to 99 times" in faq
    assert index == before["INDEX"]  # which has forward and backward apart


def test_other_names_of_a_processor(shown: dict[str, Path]) -> None:
    page = shown["cpu"].read_text()
    name = page.split("\n\n")[1].partition(",")[0]
    shown["cpu"].write_text(page.replace(name, "Some Maker(R) Thing(TM) Processor", 1))
    tables.fill()
    for page in (shown["README"].read_text(), shown["INDEX"].read_text()):
        assert "Some Maker Thing" in page


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


def of_streaming() -> list[float]:
    rows = [r for r in tables_of("streaming.md", "prepare_step") if r[""][0].find("'") < 0]
    found = []
    for net in ("g2p_en", "silero-vad"):
        of_net = numbers([r for r in rows if r[""][0].startswith(net)], "original / ours")
        found += least_and_most([1 / ratio for ratio in of_net])
    return [*of_calls(), *found]


def of_calls() -> list[float]:
    """Of a step: what calls of cudnn_rnn and of run_onnx_node take at T = 1."""
    took = {(r["op"][0], r[""][0]): r for r in tables_of("calls.md", "op T") if r["T"] == ["1"]}

    def of(op: str) -> list[float]:
        mine, step = (
            numbers([took[f"{name}, {cell}", ""] for cell in ("lstm", "gru")], "cupyrnn")
            for name in (op, "prepare_step")
        )
        return [a / b for a, b in zip(mine, step, strict=True)]

    cudnn, onnx = of("cudnn_rnn"), of("run_onnx_node")
    assert round(cudnn[0], 1) == round(cudnn[1], 1)
    return [cudnn[0], *least_and_most(onnx)]


def of_second_order() -> list[float]:
    jvp = numbers(tables_of("second_order.md", "jvp / real"), "jvp / real")
    products = numbers(tables_of("second_order.md", "its way"), "ratio")
    few = sum(value <= 3.5 for value in jvp)
    return [*least_and_most(jvp), few, len(jvp), *least_and_most(products)]


def of_recompute() -> list[float]:
    rows = tables_of("recompute.md", "save")
    at = {(r["T, B, I, H"][0], r["cell"][0]): r for r in rows}
    short, long = "1000, 16, 128, 128", "20000, 8, 128, 128"
    times = [float(at[short, cell]["time"][0]) for cell in ("lstm", "gru")]
    peaks = [float(at[long, cell]["peak"][0].rstrip("%")) for cell in ("lstm", "gru")]
    assert float(at["2000, 64, 256, 256", "lstm"]["time"][0]) <= 1
    return [*times, math.ceil(max(peaks))]


def of_examples() -> list[float]:
    rows = tables_of("by_example.md", "norms / sum")[:4]  # with Numba
    assert all(round(value, 1) == 0.5 for value in numbers(rows, "none / sum"))
    columns = "norms / sum", "less what writing takes"
    return [value for title in columns for value in least_and_most(numbers(rows, title))]


def of_the_host() -> list[float]:
    step = {
        r["op"][0]: float(r["us/step"][0])
        for r in tables_of("host_cost.md", "us/step")
        if re.fullmatch(r"[\d.]+", r["us/step"][0]) and "one launch" not in r["op"][0]
    }
    gru = [step.pop("block_gru"), step.pop("block_gru_grad")]
    return least_and_most([*step.values()]) + gru


def of_lengths_on_the_host() -> list[float]:
    rows = tables_of("host_cost.md", "us/step")
    return [float(c.split()[0]) for r in rows if (c := r["us/step"][0]).endswith("times")]


def of_torch() -> list[float]:
    rows = tables_of("torch_overhead.md", "autograd alone")
    found = []
    for n in range(3):
        found += least_and_most(numbers(rows, "added", n))
    found += least_and_most(numbers(rows, "autograd alone"))
    one = tables_of("torch_overhead.md", "torch.nn's")
    at = {(*r["module, (T, B, I, H)"], r[""][0]): float(r["ratio"][1]) for r in reversed(one)}
    small, large = "(20, 1, 32, 32)", "(50, 16, 128, 128)"
    packed = [at[f"LSTM, {small}", f"packed, {kind}"] for kind in ("one length", "T/2 to T")]
    found += [at[f"LSTM, {small}", "plain"], *least_and_most(packed)]
    found += [at[f"LSTM, {large}", "plain"], *(at[f"GRU, {n}", "plain"] for n in (small, large))]
    return found


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
    "docs/guide/streaming.md": (
        "a call of `cudnn_rnn` takes # times as long as a step, and a call of `run_onnx_node` # to"
        " # times ([all calls](../benchmarks/calls.md)). Beside the code of published models, in"
        " float32 with a batch of one, a step takes # to # times as long as in g2p_en's NumPy"
        " decoder (GRU, H = 256), and # to # times as long as ONNX Runtime's LSTM node in"
        " silero-vad (H = 128).",
        of_streaming,
    ),
    "docs/guide/second_derivatives.md": (
        "takes # to # times as long as the two without `jvp`; in # of # measurements it takes at"
        " most 3.5 times as long. A Hessian-vector product is # to # times as fast as PyTorch's",
        of_second_order,
    ),
    "docs/guide/memory.md": (
        "an LSTM with 128 units takes # times as long over 1,000 steps of 16 sequences, and a GRU #"
        " times. An LSTM with 256 units over 2,000 steps of 64 sequences takes no longer than with"
        ' "all". Over 20,000 steps of 8 sequences, `save=32` needs at most #% of the memory',
        of_recompute,
    ),
    "docs/guide/by_example.md": (
        '`"norms"` takes # to # times as long as the sum at (T, B, I, H) = (50, 16, 128, 128) and'
        ' (100, 32, 256, 256), `"none"` half as long, and `"examples"` # to # times as long plus',
        of_examples,
    ),
    "docs/guide/gpu.md": (
        "take # to # µs per step to queue one kernel and one product, and # to # µs in `block_gru`",
        of_the_host,
    ),
    "docs/benchmarks/host_cost.md": (
        "this run shows # forward and # backward",
        of_lengths_on_the_host,
    ),
    "docs/guide/torch.md": (
        "A call takes # to # µs longer than the same call in NumPy, # to # µs longer if autograd"
        " records it, and # to # µs longer with its gradient. An autograd function that computes"
        " nothing takes # to # µs. For a call and its gradient on one thread, `LSTM` takes # times"
        " as long as torch.nn's at (T, B, I, H) = (20, 1, 32, 32), # to # with a `PackedSequence`,"
        " and # times as long at (50, 16, 128, 128); `GRU` takes # and # times as long",
        of_torch,
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


def test_what_the_questions_say_of_numpy_alone() -> None:
    results = tables.Results(RESULTS / "cpu.md")

    def of(mode: str, numba: bool) -> dict[Any, float]:
        found = results.ratios(1, tables.lstm(mode=mode), tables.BOTH, numba)
        ratios = {key: float(r) for key, r in found.items() if r != "–"}
        return {(*literal_eval(size), variant): r for (size, variant), r in ratios.items()}

    def alone(mode: str, variant: str, most: float = math.inf) -> list[float]:
        ratios = of(mode, numba=False).items()
        return [r for (T, *_, H, v), r in ratios if T > 1 and most >= H and v == variant]

    assert max(alone("lstm", "")) < 1
    assert min(alone("gru", "", 128) + alone("rnn_tanh", "", 128)) > 1
    assert min(ratio for mode in tables.MODES for ratio in alone(mode, "lengths")) > 1
    steps = [r for m in tables.MODES for k, r in of(m, numba=True).items() if k[:2] == (1, 1)]
    assert len([ratio for ratio in steps if ratio > 1]) > 0.7 * len(steps) > 4
