"""The figure: the loss curve, and what the cell does over a line of the held-out text."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

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
    xp: ModuleType, cell: Cell, p: Parameters, corpus: Corpus, units: int = 12
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


def draw_curve(axes: Any, cell: Cell, history: History, rows: dict[str, float]) -> None:
    """Draw the bits per character by step, and what it takes without a model."""
    steps = range(1, len(history.training) + 1)
    points = history.held_out | {len(steps): rows["model"]}
    axes.plot(steps, history.training, color="tab:blue", alpha=0.25, lw=0.8)
    axes.plot(
        *zip(*points.items(), strict=True),
        "o",
        ms=9,
        mfc="none",  # the curve shows through
        mec="tab:red",
        mew=1.6,
        label=f"held out: {rows['model']:.2f}",
    )
    axes.plot(steps, history.smoothed, color="tab:blue", lw=1.8, label="training (smoothed)")
    styles = {"uniform": ("0.7", "--"), "unigram": ("0.4", "--"), "bz2": ("tab:green", ":")}
    for name, (color, style) in (styles | {"lzma": ("tab:olive", ":")}).items():
        if name in rows:
            label = f"{name}: {rows[name]:.2f}"
            axes.axhline(rows[name], color=color, ls=style, lw=1.3, zorder=1, label=label)
    axes.set(xlabel="step", ylabel="bits per character", xlim=(0, len(steps) * 1.01))
    axes.set_ylim(0, None)
    axes.set_title(f"{cell.title}: learning Python's documentation")
    axes.legend(ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def draw_maps(figure: Any, maps: Any, cell: Cell, line: str, gates: dict[str, Array]) -> None:
    """Draw a map of each gate or output, units by characters, over the line below."""
    low, high = cell.limits
    for axes, (name, values) in zip(maps, gates.items(), strict=True):
        image = axes.imshow(
            values,
            aspect="auto",
            vmin=low,
            vmax=high,
            cmap="RdBu_r" if low < 0 else "viridis",  # white is 0 where values have a sign
            interpolation="nearest",
        )
        axes.set_ylabel(f"{name}\n{len(values)} units")
        axes.set_yticks([])
        labels = list(line.replace(" ", "␣")) if axes is maps[-1] else []
        axes.set_xticks(
            range(len(labels)), labels, fontfamily="monospace", parse_math=False, fontsize=10
        )
        axes.tick_params(length=0)
    maps[0].set_title(
        "What it does after each character of a held-out line. Each row is a unit; look down the"
        " columns of spaces\nand quotation marks: where many rows change at once, it has noticed"
        " where a word begins or ends.",
        fontsize=11,
    )
    maps[-1].set_xlabel("character read")
    bar = figure.colorbar(image, ax=maps, pad=0.01, aspect=40)
    bar.set_label(cell.legend)


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
    figure = Figure(figsize=(13, 4.6 + 2.6 * len(gates)), layout="constrained", dpi=120)
    ratios = [1.7, *[1.0] * len(gates)]
    top, *maps = figure.subplots(1 + len(gates), 1, gridspec_kw={"height_ratios": ratios})
    draw_curve(top, cell, history, rows)
    draw_maps(figure, maps, cell, line, gates)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    files.write(path, content.getvalue())
