r"""
The tables and figures of README, of the guide and of the benchmarks' pages, from the results.

    python tests/benchmarks/cpu.py --out tests/benchmarks/results/cpu.md
    python tests/benchmarks/tables.py

The first measures in a quarter of an hour; have nothing else run meanwhile. On a processor with
AVX-512, results/cpu_avx2.md is of `cpu.py --avx2 --threads 1` for plain layers: with `--only
'^(BlockLSTM|cudnn_rnn (lstm|gru)) float32 \([0-9, ]*\)$'`. The second changes no word but numbers
and the processor's name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT, RESULTS = HERE.parents[1], HERE / "results"
README, FAQ = ROOT / "README.md", ROOT / "docs/guide/faq.md"
INDEX = ROOT / "docs/benchmarks/index.md"
Row = dict[str, list[str]]  # the cells of a row by the titles of its columns


def rows_of(page: str) -> Iterator[tuple[str, str, Row]]:
    """Yield the rows of all tables of a page, with the chapter and the section they are in."""
    chapter, section, titles = "", "", None
    for line in page.splitlines():
        if line.startswith("## "):
            chapter, section = line[3:], ""
        elif line.startswith("### "):
            section = line[4:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            titles = None
        elif titles is None:
            titles = cells
        elif set(line) - set("|-: "):
            yield chapter, section, _row(titles, cells)


def _row(titles: list[str], cells: list[str]) -> Row:
    row: Row = {}
    for title, cell in zip(titles, cells, strict=True):
        row.setdefault(title, []).append(cell)
    return row


class Results:
    """What a run of cpu.py found."""

    def __init__(self, path: Path) -> None:
        self.page = path.read_text()
        self.tables: dict[
            str, dict[str, list[Row]]
        ] = {}  # in float32 and float64, by threads and op
        for threads, op, row in rows_of(self.page):
            self.tables.setdefault(threads, {}).setdefault(op, []).append(row)
        name = self.page.split("\n\n")[1].partition(",")[0]
        self.processor = re.sub(r"\(R\)|\(TM\)| Processor", "", name)

    def ratios(self, threads: int, op: str, what: str, numba: bool) -> dict[tuple[str, str], str]:
        """Return the ratios of a pass by size and variant; what has no peer or is not there: –."""
        rows = self.tables.get(f"{threads} thread{'s' * (threads > 1)}", {}).get(op, [])
        return {
            (next(iter(row.values()))[0], row[""][0]): row["ratio"][-1 if numba else 0].split()[0]
            for row in rows
            if row["pass"] == [what] and len(row["ratio"]) > numba
        }

    def both(self, op: str, what: str, numba: bool, key: tuple[str, str]) -> str:
        """Return the ratio with one thread and with two."""
        cells = [self.ratios(n, op, what, numba).get(key, "–") for n in (1, 2)]
        return "–" if cells == ["–", "–"] else " / ".join(cells)


def lstm(dtype: str = "float32", mode: str = "lstm") -> str:
    return f"cudnn_rnn and cudnn_rnn_backprop, {mode}, {dtype}"


BLOCK = "BlockLSTM and BlockLSTMGrad, float32"
OPS = BLOCK, lstm(), lstm(mode="gru")
BOTH = "forward+backward"
MODES = ("lstm", "gru", "rnn_tanh")
# Tables of the benchmarks' page by the first cell of their heads: op, pass and variant by column.
Columns = list[tuple[str, str, str]]
TABLES: dict[str, Columns] = {
    "BlockLSTM (T, B, I, H)": [
        *((BLOCK, what, "") for what in ("forward", "backward", BOTH)),
        *((BLOCK, what, "peephole") for what in ("forward", "backward")),
    ],
    "cudnn_rnn": [
        (lstm(mode=mode), what, "") for mode in MODES for what in ("forward", "backward")
    ],
    "one step (B, I, H)": [
        ("LSTMBlockCell and LSTMBlockCellGrad, float32", "forward", ""),
        ("LSTMBlockCell and LSTMBlockCellGrad, float32", "backward", ""),
        ("LSTMBlockCell and LSTMBlockCellGrad, float32", "backward", "peephole"),
        ("GRUBlockCell and GRUBlockCellGrad, float32", "forward", ""),
        ("GRUBlockCell and GRUBlockCellGrad, float32", "backward", ""),
    ],
    "float64": [(lstm("float64", mode), BOTH, "") for mode in MODES],
}


def table(results: Results, columns: Columns, numba: bool, labels: Iterable[str]) -> list[str]:
    """Return the lines of a table: a size and perhaps a variant each."""
    lines = []
    for label in labels:
        size, _, variant = label.partition("), ")
        size = size.rstrip(")") + ")"
        cells = [results.both(op, what, numba, (size, variant or v)) for op, what, v in columns]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {' | '.join([label, *cells])} |")
    return lines


def of_sequences(results: Results, op: str, numba: bool) -> list[str]:
    """Return the ratios of forward and backward of plain sequences, on one thread."""
    found = results.ratios(1, op, BOTH, numba).items()
    return [v for (size, variant), v in found if not variant and not size.startswith("(1, ")]


def replaced(page: str, head: str, which: int, lines: Callable[[list[str]], list[str]]) -> str:
    """Return a page with other lines in the n-th of its tables that begin with such a head."""
    before = -1
    for _ in range(which + 1):
        before = page.index(f"| {head} |", before + 1)
    start = page.index("\n", page.index("\n|--", before) + 1) + 1
    old = list(itertools.takewhile(lambda line: line.startswith("|"), page[start:].split("\n")))
    labels = [line.strip("|").split(" | ")[0].strip() for line in old]
    end = start + sum(len(line) + 1 for line in old)
    return page[:start] + "".join(f"{line}\n" for line in lines(labels)) + page[end:]


def rounded(value: float) -> str:
    """Return two digits after the point below 2, one below 10, else none."""
    return f"{value:.{2 if value < 2 else 1 if value < 10 else 0}f}"


def span(values: Iterable[str]) -> tuple[str, str]:
    """Return the least and the largest ratio."""
    numbers = [float(v) for v in values if v != "–"]
    return rounded(min(numbers)), rounded(max(numbers))


def with_spans(page: str, start: str, spans: list[tuple[str, str]]) -> str:
    """Return a page with other "x to y" in the paragraph that begins so."""
    before, _, rest = page.partition(start)
    prose, gap, behind = rest.partition("\n\n")
    pattern, given = r"\d[\d.]* to \d+(?:\.\d+)?", iter(spans)
    if len(re.findall(pattern, prose)) != len(spans):
        raise ValueError(f"not {len(spans)} ranges: {start}{prose}")
    prose = re.sub(pattern, lambda _: " to ".join(next(given)), prose)
    return before + start + prose + gap + behind


def fill() -> None:
    """Write what is shown of the results."""
    results = Results(RESULTS / "cpu.md")
    readme, index = README.read_text(), INDEX.read_text()
    compiled, plain = (
        [span(of_sequences(results, op, numba)) for op in OPS] for numba in (True, False)
    )
    README.write_text(with_spans(readme, "**Fast on a CPU.**", compiled + plain))
    start = "On a CPU, yes in most cases with Numba"
    FAQ.write_text(with_spans(FAQ.read_text(), start, compiled[1:]))
    name = results.processor
    for title, columns in TABLES.items():
        for which, numba in enumerate((False, True)):

            def lines(labels: list[str], of: Columns = columns, n: bool = numba) -> list[str]:
                return table(results, of, n, labels)

            index = replaced(index, title, which, lines)
    index = re.sub(r"on 2 cores of an? [^,]*,", f"on 2 cores of an {name},", index)
    INDEX.write_text(index)


if __name__ == "__main__":
    fill()
