"""README and the documentation: their examples run, and nothing is left out or points nowhere."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import itertools
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

import cupyrnn

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(p for p in sorted(DOCS.rglob("*.md")) if "_build" not in p.relative_to(DOCS).parts),
]
# What a page's examples import beside NumPy, and who brings it.
NEEDS = {"torch.md": "torch", "jax.md": "jax", "onnx.md": "onnx"}
# An example, and what it prints where that is shown.
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^(```+|:::+).*?^\1", re.DOTALL | re.MULTILINE)
_FENCED_CODE = re.compile(r"^```.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Where a page names a file of a folder that it speaks of.
_FOLDERS = ("cupyrnn/cells", "cupyrnn/kernels", "cupyrnn/compiled", "tests/new_cells")


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run(page: str) -> dict[str, Any]:
    """Run the examples of a page one after the other, and compare what they print."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found = _BLOCK.findall(page)
    assert found
    for code, expected in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "<example>", "exec"), names)
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        got = printed.getvalue()
        assert doctest.OutputChecker().check_output(expected, got, options), (
            f"expected\n{expected}\ngot\n{got}"
        )
    return names


@pytest.mark.parametrize("page", [p for p in PAGES if "```python\n" in text(p)], ids=name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in NEEDS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            needs.module(NEEDS[page.name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "tests/new_cells")  # the files that own_cell.md shows
    run(text(page))


def test_the_ten_lines_and_the_five(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """README's example gives gradients, and a PyTorch model's lines serve any of them."""
    names = run(text(ROOT / "README.md"))
    assert names["grads"].w_grad.shape == names["w"].shape
    assert np.isfinite(names["grads"].w_grad).all()

    five, *_ = re.findall(r"^```py\n(.*?)^```", text(DOCS / "guide/weights.md"), re.DOTALL | re.M)
    monkeypatch.chdir(tmp_path)
    (T, B, I), H = names["x"].shape, 5
    for G, ends in ((4, ("_l0",)), (3, ("_l0", "_l0_reverse"))):  # an LSTM, a bidirectional GRU
        shapes = {"weight_ih": (G * H, I), "weight_hh": (G * H, H)}
        shapes |= {"bias_ih": (G * H,), "bias_hh": (G * H,)}
        state = {n + end: rng.standard_normal(s) for end in ends for n, s in shapes.items()}
        np.savez("model.npz", **state)
        names["dy"] = rng.standard_normal((T, B, H * len(ends)))
        exec(five, names)
        assert names["out"].output.shape == (T, B, H * len(ends))
        assert names["g"].params_backprop.shape == names["packed"].params.shape
        assert np.isfinite(names["g"].params_backprop).all()


def test_a_wrong_example_is_noticed() -> None:
    with pytest.raises(AssertionError, match="got"):
        run("```python\nprint(2)\n```\n\n```text\n3\n```\n")
    with pytest.raises(AssertionError, match="got"):
        run("```python\nprint(2)\n```\n\nmore\n")
    with pytest.raises(NameError):
        run("```python\nnothing_of_that_name\n```\n")


def in_reference() -> set[str]:
    """Return the full names of what the reference describes."""
    found = set()
    for page in (DOCS / "reference").glob("*.rst"):
        module = ""
        for directive, argument in re.findall(r"^\.\. (\w+):: *(\S*)$", text(page), re.MULTILINE):
            if directive == "currentmodule":
                module = argument
            elif directive in ("autofunction", "autoclass"):
                full = f"{module}.{argument}"
                assert full not in found, f"{full} is there twice"
                found.add(full)
    return found


def test_the_reference_is_complete() -> None:
    modules = ["cupyrnn.raw_ops", "cupyrnn.parallel", "cupyrnn.cells"]
    public = {f"cupyrnn.{n}" for n in cupyrnn.__all__ if n != "raw_ops"}
    for module in modules:
        public |= {f"{module}.{n}" for n in importlib.import_module(module).__all__}
    public |= {f"cupyrnn.reference.{n}" for n in cupyrnn.reference.__all__}
    # PyTorch and JAX need not be here to know what the modules offer.
    for module, path in (("torch", "torch/__init__.py"), ("jax", "jax/__init__.py")):
        (offered,) = re.findall(r"__all__ = \[(.*?)\]", text(ROOT / "cupyrnn" / path), re.DOTALL)
        public |= {f"cupyrnn.{module}.{n}" for n in re.findall(r'"(\w+)"', offered)}
    assert in_reference() == public


def test_all_environment_variables_are_described() -> None:
    read = set()
    for path in (ROOT / "cupyrnn").rglob("*.py"):
        read |= set(re.findall(r'"(CUPY(?:RNN)?_[A-Z0-9_]+)"', text(path)))
    assert {"CUPYRNN_ENGINE", "CUPYRNN_CUDNN", "CUPYRNN_NUMBA", "CUPY_TF32"} <= read
    described = text(DOCS / "guide" / "environment.md")
    assert [v for v in sorted(read) if f"`{v}`" not in described] == []


def test_readme_is_short_and_its_table_names_what_there_is() -> None:
    readme = text(ROOT / "README.md")
    assert len(readme.splitlines()) <= 130
    table = readme.split("## Which function do I want?")[1].split("\n##")[0]
    named = re.findall(r"`(?:cupyrnn\.)?([a-z_]+)`", table)
    assert len(named) > 15
    attributes = {"sequence_lengths", "resets", "weight_gradients", "save"}
    modules = {"cells", "jax", "parallel", "reference", "torch"}
    assert [n for n in named if n not in {*cupyrnn.__all__, *attributes, *modules}] == []
    for beginning in re.findall(r"`([a-z_]+)…`", table):
        assert any(n.startswith(beginning) for n in cupyrnn.__all__), beginning


@pytest.mark.parametrize(
    "page", [ROOT / "CONTRIBUTING.md", *sorted((DOCS / "how").glob("*.md"))], ids=name
)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    """By their path, or the end of it; not what stands for a name, or is made."""
    code = re.findall(r"`([^`\n]+)`", text(page)) + _FENCED_CODE.findall(text(page))
    named = {word for part in code for word in re.findall(r"[\w.-]+(?:/[\w.-]+)+|\w+\.py\b", part)}
    folders = ("", "cupyrnn", "tests", "tests/ops", "tests/without_a_gpu", *_FOLDERS)
    for path in sorted(named):
        if not re.search(r"NAME|_build|\.html", path):
            assert any((ROOT / folder / path).exists() for folder in folders), path


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    prose = _FENCED.sub("", text(page))
    links = re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r'src="([^"]+)"', prose)
    folders = [page.parent]
    if page.parent == DOCS / "notebooks":  # into which the site's builder copies them
        folders.append(ROOT / "notebooks")
    for link in links:
        if not re.match(r"https?://|#|mailto:", link):
            assert any((folder / link.partition("#")[0]).exists() for folder in folders), link


def test_every_page_of_the_guide_is_in_the_tree() -> None:
    for folder in ("guide", "how", "benchmarks"):
        index = text(DOCS / folder / "index.md")
        for page in (DOCS / folder).glob("*.md"):
            assert page.stem == "index" or re.search(rf"^{page.stem}$", index, re.MULTILINE), page


def columns(page: str, chapter: str, section: str = "") -> list[dict[str, list[str]]]:
    """Return the rows of a table of results, the cells of each by the titles of its columns."""
    part = page.split(f"## {chapter}\n")[1]
    if section:
        part = part.split(f"### {section}, float32\n")[1]
    head, _, *lines = itertools.takewhile(
        lambda line: line.startswith("|"), part.lstrip("\n").splitlines()
    )
    titles, *rows = ([c.strip() for c in line.strip("|").split("|")] for line in (head, *lines))
    found: list[dict[str, list[str]]] = []
    for row in rows:
        found.append({})
        for title, cell in zip(titles, row, strict=True):
            found[-1].setdefault(title, []).append(cell)
    return found


def ratios(rows: list[dict[str, list[str]]]) -> list[list[float]]:
    """Return the ratios of rows, column by column: NumPy alone, and with Numba."""
    columns = zip(*(row["ratio"] for row in rows), strict=True)
    return [[float(cell.split()[0]) for cell in cells if cell != "–"] for cells in columns]


def of_readme(section: str) -> list[dict[str, list[str]]]:
    """Return the rows of results/cpu.md that README shows: plain layers, forward and backward."""
    rows = columns(text(ROOT / "tests/benchmarks/results/cpu.md"), "1 thread", section)
    plain = [row for row in rows if row[""] == [""] and row["pass"] == ["forward+backward"]]
    return [row for row in plain if not row["(T, B, I, H)"][0].startswith("(1, ")]


OPS = (
    "BlockLSTM and BlockLSTMGrad",
    *(f"cudnn_rnn and cudnn_rnn_backprop, {m}" for m in ("lstm", "gru")),
)


def test_the_table_of_readme_is_that_of_the_results() -> None:
    expected: dict[str, list[str]] = {}
    for n, section in enumerate(OPS):
        for row in of_readme(section):
            cells = expected.setdefault(row["(T, B, I, H)"][0], [])
            cells += ["–"] * (2 * n - len(cells)) + [cell.split()[0] for cell in row["ratio"]]
    shown = {}
    for line in text(ROOT / "README.md").split("## Speed on a CPU")[1].splitlines():
        if re.match(r"\| \(\d", line):
            size, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            shown[size] = cells
    assert shown == {size: cells + ["–"] * (6 - len(cells)) for size, cells in expected.items()}


def test_ranges_are_those_of_the_results() -> None:
    """Of README and the questions: the least and the largest ratio, as they round."""
    tables = [ratios(of_readme(section)) for section in OPS]
    numba, numpy = ([table[n] for table in tables] for n in (1, 0))
    results = ROOT / "tests/benchmarks/results"
    cells = [
        ratios(columns(text(results / "cpu.md"), "1 thread", f"{op} and {op}Grad"))
        for op in ("LSTMBlockCell", "GRUBlockCell")
    ]
    steps = [[r for cell in cells for r in cell[n]] for n in (1, 0)]
    nets = [
        ratios(columns(text(results / "nets.md"), f"1 thread, {how}"))[0]
        for how in ("with Numba", "NumPy alone")
    ]
    readme, faq = text(ROOT / "README.md"), text(DOCS / "guide" / "faq.md")
    speed = readme.split("**Speed.**")[1].split("\n\n")[0]
    more = readme.split("Single steps of the block ops")[1].split("\n\n")[0]
    answer = faq.split("On a CPU, yes in most cases with Numba")[1].split("\n\n")[0]
    for prose, measured in (
        (speed, numba + numpy),
        (more, steps + nets),
        (answer, numba[1:]),
    ):
        shown = re.findall(r"(\d[\d.]*) to (\d+(?:\.\d+)?)", prose)
        assert len(shown) == len(measured), prose
        for pair, values in zip(shown, measured, strict=True):
            for number, value in zip(pair, (min(values), max(values)), strict=True):
                digits = len(number.partition(".")[2])
                assert float(number) == round(value, digits), (pair, values)


RESULTS = ROOT / "tests/benchmarks/results"


def tables_of(file: str, head: str) -> list[dict[str, list[str]]]:
    """Return the rows of all tables of results whose heads have these words."""
    found, titles = [], []
    for line in text(RESULTS / file).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            titles = []
        elif not titles:
            titles = cells
        elif head in " ".join(titles) and set(line) - set("|-: "):
            pairs = list(zip(titles, cells, strict=True))
            found.append({t: [cell for title, cell in pairs if title == t] for t in titles})
    return found


def least_and_most(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def of_streaming() -> list[float]:
    rows = [r for r in tables_of("streaming.md", "prepare_step") if r[""][0].find("'") < 0]
    found = []
    for net in ("g2p_en", "silero-vad"):
        found += least_and_most(
            [1 / float(r["original / ours"][0]) for r in rows if r[""][0].startswith(net)]
        )
    return [*of_calls(), *found]


def of_calls() -> list[float]:
    """Of a step: what calls of cudnn_rnn and of run_onnx_node take at T = 1."""
    took = {(r["op"][0], r[""][0]): r for r in tables_of("calls.md", "op T") if r["T"] == ["1"]}

    def of(op: str) -> list[float]:
        cells = ("lstm", "gru")
        return [
            float(took[f"{op}, {c}", ""]["cupyrnn"][0])
            / float(took[f"prepare_step, {c}", ""]["cupyrnn"][0])
            for c in cells
        ]

    cudnn, onnx = of("cudnn_rnn"), of("run_onnx_node")
    assert round(cudnn[0], 1) == round(cudnn[1], 1)
    return [cudnn[0], *least_and_most(onnx)]


def of_second_order() -> list[float]:
    jvp = [float(r["jvp / real"][0]) for r in tables_of("second_order.md", "jvp / real")]
    products = [float(r["ratio"][0]) for r in tables_of("second_order.md", "its way")]
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
    of = {title: [float(c[0]) for c in (r[title] for r in rows)] for title in [*rows[0]][2:]}
    assert all(round(value, 1) == 0.5 for value in of["none / sum"])
    return [
        *least_and_most(of["norms / sum"]),
        *least_and_most(of["less what writing takes"]),
    ]


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
        found += least_and_most([float(r["added"][n]) for r in rows])
    found += least_and_most([float(r["autograd alone"][0]) for r in rows])
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
        page = text(RESULTS / f"conformance_{runtime}.md")
        found += map(int, re.findall(r"cases: (\d+) right, (\d+) wrong, (\d+) ref", page)[0])
    return found


def of_accuracy() -> list[float]:
    notebook = text(ROOT / "notebooks/02_trust_the_gradients.ipynb")
    (found,) = re.findall(
        r"cupyrnn / TensorFlow: ([\d.]+) \(GRUBlockCell\) to ([\d.]+) \(BlockLSTMGradV2\)", notebook
    )
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
        "| ONNX Runtime 1.31.1 | # | # | # | | onnx 1.23.2, ReferenceEvaluator | # | # | # |"
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
    pattern = re.escape(re.sub(r"\s+", " ", phrase)).replace(r"\#", r"([\d.]+)")
    found = re.search(pattern, re.sub(r"\s+", " ", text(ROOT / page)))
    assert found, f"{page} does not say so any more"
    values = measured()
    for number, value in zip(found.groups(), values, strict=True):
        assert float(number) == round(value, len(number.partition(".")[2])), (number, values)


def test_the_number_of_cases_is_that_of_the_results() -> None:
    page = text(RESULTS / "conformance_cupyrnn.md")
    cases, gradients = map(int, re.findall(r"^(\d+) cases", page, re.MULTILINE))
    for path in ("docs/guide/conformance.md", "docs/how/checks.md"):
        assert f"{cases:,}" in text(ROOT / path), path
    for path in ("docs/guide/index.md", "CHANGELOG.md"):
        assert f"{round(cases, -2):,}" in text(ROOT / path), path
    assert f"({gradients} cases)" in text(DOCS / "guide/conformance.md")


def test_the_nets_are_those_of_the_results() -> None:
    expected: dict[str, dict[str, list[str]]] = {}
    page = text(RESULTS / "nets.md")
    for how in ("with Numba", "NumPy alone"):
        for threads in ("1 thread", "2 threads"):
            for row in columns(page, f"{threads}, {how}"):
                ours = expected.setdefault(f"{row['net'][0]} | {row['original in'][0]}", {})
                ours.setdefault(how, []).append(row["ratio"][0].split()[0])
    lines = [
        f"| {net} | {' / '.join(of['with Numba'])} | {' / '.join(of['NumPy alone'])} |"
        for net, of in expected.items()
    ]
    assert "\n".join(["|---|---|--:|--:|", *lines, ""]) in text(DOCS / "benchmarks/index.md")


def test_what_the_questions_say_of_numpy_alone() -> None:
    page = text(RESULTS / "cpu.md")
    rows = {m: columns(page, "1 thread", f"{OPS[1][:-4]}{m}") for m in ("lstm", "gru", "rnn_tanh")}

    def alone(mode: str, variant: str, most: int) -> list[float]:
        return [
            float(row["ratio"][0].split()[0])
            for row in rows[mode]
            if row[""] == [variant] and row["pass"] == ["forward+backward"]
            if int(row["(T, B, I, H)"][0][1:].split(",")[0]) > 1
            if int(row["(T, B, I, H)"][0][:-1].split(",")[-1]) <= most
        ]

    assert max(alone("lstm", "", 10_000)) < 1
    assert min(alone("gru", "", 128) + alone("rnn_tanh", "", 128)) > 1
    assert min(ratio for mode in rows for ratio in alone(mode, "lengths", 10_000)) > 1
    single = [
        float(row["ratio"][1].split()[0])  # with Numba
        for mode in rows
        for row in rows[mode]
        if row["(T, B, I, H)"][0].startswith("(1, 1, ") and row["pass"] == ["forward+backward"]
    ]
    assert len([ratio for ratio in single if ratio > 1]) > 0.7 * len(single) > 4


def test_bits_per_character_are_the_same_everywhere() -> None:
    page = text(DOCS / "guide/main_job.md")
    table = dict(re.findall(r"^\| (.+?) \| (\d\.\d\d) \|$", page, re.MULTILINE))
    (shown,) = re.findall(
        r"(\S+) bits per held-out character with the hints of a context table, (\S+) without,"
        r" bz2 (\S+) ",
        " ".join(text(ROOT / "README.md").split()),
    )
    without = "the LSTM without hints (`CONTEXTS = ()` in `cupyrnn/demo/text.py`)"
    assert shown == (table["the LSTM with hints"], table[without], table["bz2"])


def test_there_are_as_many_planted_errors_as_pages_say() -> None:
    planted = re.findall("^- ", text(ROOT / "tests/mutants/planted.txt"), re.MULTILINE)
    for page in ("CONTRIBUTING.md", "docs/how/checks.md"):
        (said,) = re.findall(r"more than (\d+)", text(ROOT / page))
        assert int(said) < len(planted) < int(said) + 50
