"""
PyTorch's time divided by cupyrnn's on a GPU, from the stored results: numbers and a picture.

    python tests/benchmarks/gpu_picture.py

draws results/gpu-nvidia-h100-80gb-hbm3.png. A row is a cell, a size, a dtype and a variant. Times
are of forward and backward together. The fastest of cupyrnn's own kernels is compared with the
faster of PyTorch's two layouts; cuDNN called by cupyrnn does not count.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
STORED = RESULTS / "gpu-nvidia-h100-80gb-hbm3.json"
OWN = ("loop", "rows", "hybrid", "grid")
PEER = ("PyTorch, arrays", "PyTorch, packed")
TIMES = ("eager_ms", "queued_ms")
TITLES = {
    "eager_ms": "Eager: one call from an idle GPU",
    "queued_ms": "Device time: the GPU is kept busy",
}


Passes = dict[str, dict[str, Any]]  # the rows of a library by pass


def fastest(timed: dict[str, Passes], names: tuple[str, ...], time: str) -> float:
    """Return the least time of forward and backward of those timed in both, or infinity."""
    both = [timed[n].values() for n in names if len(timed.get(n, ())) == 2]
    return min((sum(p.get(time, math.inf) for p in passes) for passes in both), default=math.inf)


def ratios() -> list[dict[str, Any]]:
    """Return, for each row with both libraries, its cell and the two ratios."""
    timed: dict[tuple[str, ...], dict[str, Passes]] = {}
    for row in json.loads(STORED.read_text())["rows"]:
        key = tuple(row[name] for name in ("cell", "shape", "dtype", "variant"))
        timed.setdefault(key, {}).setdefault(row["who"], {})[row["pass"]] = row
    return [
        {"cell": key[0]} | {t: fastest(who, PEER, t) / fastest(who, OWN, t) for t in TIMES}
        for key, who in timed.items()
        if max(fastest(who, names, "eager_ms") for names in (OWN, PEER)) < math.inf
    ]


def draw(path: Path) -> None:
    """Draw a bar for each row, sorted, for both times."""
    import matplotlib.pyplot as plt

    rows = ratios()
    plt.rcParams["font.size"] = 13
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.6), sharey=True, layout="constrained")
    for ax, time in zip(axes, TIMES, strict=True):
        values = sorted(row[time] for row in rows)
        colors = ["#2a7f62" if value > 1 else "#b4b4b4" for value in values]
        ax.bar(range(len(values)), [v - 1 for v in values], bottom=1, color=colors, width=0.8)
        ax.axhline(1, color="black", linewidth=1)
        ax.set_yscale("log")
        ax.set_yticks([0.2, 0.5, 1, 2, 5, 10], ["0.2", "0.5", "1", "2", "5", "10"])
        ax.minorticks_off()
        ax.set_xticks([])
        faster = sum(value > 1 for value in values)
        ax.set_title(
            f"{TITLES[time]}\ncupyrnn is faster in {faster} of {len(values)} rows", fontsize=14
        )
        ax.spines[["top", "right", "bottom"]].set_visible(False)
        ax.grid(axis="y", alpha=0.3)
        ax.set_axisbelow(True)
    axes[0].set_ylabel("PyTorch's time / cupyrnn's time")
    figure.supxlabel(
        f"{len(rows)} rows: LSTM, GRU and simple RNN, sizes and dtypes, sorted in each picture",
        fontsize=12,
    )
    figure.savefig(path, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    draw(STORED.with_suffix(".png"))
