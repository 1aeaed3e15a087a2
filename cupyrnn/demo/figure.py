"""The figure: the loss curve, and what the cell does over a line of the held-out text."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from . import files
from .cells import Cell, Parameters
from .model import forward, to_host, zero_state
from .modules import demo_module
from .text import Corpus

if TYPE_CHECKING:
    from .._arrays import Array
    from .training import History


def line_to_draw(corpus: Corpus) -> tuple[int, int]:
    """Return the bounds in the held-out text of a line that is easy to read in a figure."""
    text = "".join(corpus.symbols[k] for k in corpus.held_out)
    # Not indented, not short, and with more than letters in it.
    line = re.search(r'^(?=[!-~])(?=.*".*\()[ -~]{60,72}$', text[1:], re.MULTILINE)
    return (line.start() + 1, line.end() + 1) if line else (1, min(70, len(text)))


def gates_on_line(
    xp: ModuleType, cell: Cell, p: Parameters, corpus: Corpus, units: int = 24
) -> tuple[str, dict[str, Array]]:
    """
    Return a held-out line and, by gate or output, its values [units, T] after each character.

    The units are those whose values vary most over the line, alike ones side by side: they
    are ordered by their first principal component.
    """
    start, end = line_to_draw(corpus)
    tokens = xp.asarray(corpus.held_out[max(0, start - 1000) : end])[:, None]
    _, out, _ = forward(xp, cell, p, tokens, zero_state(xp, cell, p, 1))
    line = "".join(corpus.symbols[k] for k in corpus.held_out[start:end])
    drawn = {}
    for name, values in out.shown.items():
        gate = to_host(xp, values[start - end :, 0].T)
        gate = gate[np.argsort(-gate.std(axis=1))[:units]]
        principal = np.linalg.svd(gate - gate.mean(axis=1, keepdims=True))[0][:, 0]
        drawn[name] = gate[np.argsort(principal)]
    return line, drawn


def draw(
    path: Path,
    cell: Cell,
    history: History,
    rows: dict[str, float],
    line: str,
    gates: dict[str, Array],
) -> None:
    """Write the PNG: the loss curve above, a map of each gate over the line below."""
    Figure = demo_module("matplotlib.figure").Figure
    steps = range(1, len(history.training) + 1)
    figure = Figure(figsize=(12, 4.2 + 2.2 * len(gates)), layout="constrained", dpi=120)
    axes = figure.subplots(
        1 + len(gates), 1, gridspec_kw={"height_ratios": [1.9, *[1.0] * len(gates)]}
    )
    top, *maps = axes

    top.plot(steps, history.training, color="tab:blue", alpha=0.25, lw=0.8)
    top.plot(steps, history.smoothed, color="tab:blue", label="training (smoothed)")
    points = history.held_out | {len(steps): rows["model"]}
    top.plot(
        *zip(*points.items(), strict=True),
        "o",
        color="tab:red",
        label=f"held out: {rows['model']:.2f}",
    )
    for name, color in (("uniform", "0.6"), ("unigram", "0.3")):
        top.axhline(rows[name], color=color, ls="--", lw=1, label=f"{name}: {rows[name]:.2f}")
    top.set(xlabel="step", ylabel="bits per character", xlim=(0, len(steps) * 1.01))
    top.set_title(f"{cell.title}: learning Python's documentation")
    top.legend(ncols=2, frameon=False)
    top.spines[["top", "right"]].set_visible(False)

    for ax, (name, values) in zip(maps, gates.items(), strict=True):
        image = ax.imshow(
            values,
            aspect="auto",
            vmin=cell.limits[0],
            vmax=cell.limits[1],
            cmap="viridis",
            interpolation="nearest",
        )
        ax.set_ylabel(f"{name}\n{len(values)} units")
        ax.set_yticks([])
        labels = list(line.replace(" ", "␣")) if ax is maps[-1] else []
        ax.set_xticks(
            range(len(labels)), labels, fontfamily="monospace", parse_math=False, fontsize=9
        )
        ax.tick_params(length=0)
    maps[0].set_title("What it does after each character of a held-out line", fontsize=11)
    maps[-1].set_xlabel("character read")
    bar = figure.colorbar(image, ax=maps, pad=0.01, aspect=40)
    bar.set_label(cell.legend)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    files.write(path, content.getvalue())
