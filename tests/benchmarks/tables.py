"""
The ratios of the benchmarks' page, from the rows of cpu.py.

    python tests/benchmarks/cpu.py --out tests/benchmarks/results/cpu.md
    python tests/benchmarks/tables.py

The first measures in a quarter of an hour; have nothing else run meanwhile. On a processor with
AVX-512, results/cpu_avx2.md is of `cpu.py --avx2 --threads 1` for plain layers: with `--only
'^(BlockLSTM|cudnn_rnn (lstm|gru)) float32 \\([0-9, ]*\\)$'`. The second writes
results/cpu_ratios.md; test_tables.py then says which numbers of other pages are old.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pages

RESULTS = Path(__file__).parent / "results"
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
            row: Row = {}
            for title, cell in zip(titles, cells, strict=True):
                row.setdefault(title, []).append(cell)
            yield chapter, section, row


def ratios(threads: int, op: str, what: str, numba: bool) -> dict[tuple[str, str], str]:
    """Return cpu.py's ratios of a pass by size and variant; what has no peer or is not there: –."""
    wanted = f"{threads} thread{'s' * (threads > 1)}", op
    return {
        (next(iter(row.values()))[0], row[""][0]): row["ratio"][-1 if numba else 0].split()[0]
        for *chapter, row in rows_of((RESULTS / "cpu.md").read_text())
        if (*chapter,) == wanted and row["pass"] == [what] and len(row["ratio"]) > numba
    }


def cudnn(dtype: str = "float32", mode: str = "lstm") -> str:
    return f"cudnn_rnn and cudnn_rnn_backprop, {mode}, {dtype}"


BLOCK = "BlockLSTM and BlockLSTMGrad, float32"
CELL = "LSTMBlockCell and LSTMBlockCellGrad, float32"
GRU_CELL = "GRUBlockCell and GRUBlockCellGrad, float32"
PASSES = FORWARD, BACKWARD = ("forward", "backward")
BOTH = "forward+backward"
MODES = ("lstm", "gru", "rnn_tanh")
# What is said of a table, its titles, and the op, pass and variant of each column.
TABLES: dict[str, tuple[str, list[tuple[str, str, str]]]] = {
    "Compared with TensorFlow's own kernels, eager or in a tf.function, whichever is faster:": (
        "BlockLSTM (T, B, I, H) | forward | backward | forward+backward | peepholes: forward"
        " | backward",
        [(BLOCK, what, "") for what in (*PASSES, BOTH)]
        + [(BLOCK, what, "peephole") for what in PASSES],
    ),
    "Compared with PyTorch. Lengths are T/2 to T, and the projection is to H/2; the last three"
    " rows are single\nsteps:": (
        "cudnn_rnn | LSTM forward | backward | GRU forward | backward | RNN (tanh) forward"
        " | backward",
        [(cudnn(mode=mode), what, "") for mode in MODES for what in PASSES],
    ),
    "Single steps, compared with TensorFlow:": (
        "one step (B, I, H) | LSTMBlockCell | LSTMBlockCellGrad | with peepholes | GRUBlockCell"
        " | GRUBlockCellGrad",
        [(CELL, what, "") for what in PASSES]
        + [(CELL, BACKWARD, "peephole")]
        + [(GRU_CELL, what, "") for what in PASSES],
    ),
    "In float64, compared with PyTorch, forward and backward:": (
        "float64 | LSTM forward+backward | GRU | RNN (tanh)",
        [(cudnn("float64", mode), BOTH, "") for mode in MODES],
    ),
}
TITLES = {
    False: "### NumPy alone",
    True: "### With Numba\n\n[What Numba does](../guide/cpu.md#numba). The same ratios with it:",
}


def page() -> str:
    """Return all tables, NumPy's and Numba's: a row has a size and perhaps a variant."""
    parts = []
    for numba, title in TITLES.items():
        parts.append(title)
        for said, (titles, columns) in TABLES.items():
            found = [[ratios(n, op, what, numba) for n in (1, 2)] for op, what, _ in columns]
            lines = []
            for size, variant in dict.fromkeys(key for one, _ in found for key in one):
                cells = [
                    " / ".join(of.get((size, variant or v), "–") for of in column)
                    for column, (*_, v) in zip(found, columns, strict=True)
                ]
                cells = [cell.replace("– / –", "–") for cell in cells]
                if variant != "peephole" and {*cells} != {"–"}:
                    lines.append([", ".join(filter(None, (size, variant))), *cells])
            parts += [said, pages.markdown(titles.split(" | "), lines)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    (RESULTS / "cpu_ratios.md").write_text(page())
