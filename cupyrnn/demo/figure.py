"""The figure: the loss curve, and the cell's gates over a line of the held-out text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .._typing import Array
from .model import DemoCell, Model, forward, to_host
from .text import Corpus
from .training import History

# A line of text, and the cell's gates or outputs at its characters.
Drawn: TypeAlias = "tuple[str, dict[str, Array]]"

# Distinguishable with color blindness (Okabe and Ito).
BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"


def line_to_draw(corpus: Corpus) -> tuple[int, int]:
    """Return the bounds, in the held-out text, of a part of a line that reads well in a figure."""
    text = "".join(corpus.symbols[k] for k in corpus.held_out[:, 0])
    # It begins a line without indent, ends with a word, is not short, and has not only letters.
    pattern = r'^(?=[!-~])(?=.{,30}".{,10}\()[ -~]{36,47}(?= )'
    line = re.search(pattern, text[1:], re.MULTILINE)
    return (line.start() + 1, line.end() + 1) if line else (1, min(48, len(text)))


def gates_on_line(model: Model, corpus: Corpus, units: int = 8) -> Drawn:
    """
    Return a held-out line and, by gate or output, its values [units, T] after each character.

    The units are those that best separate letters from other characters, by covariance over the
    text before the line. Units that are high within words come first.
    """
    start, end = line_to_draw(corpus)
    begin = max(0, start - 1000)
    tokens = corpus.held_out[begin:end]
    out, *_ = forward(model, model.xp.asarray(tokens)[:, None], model.zero_state(1))
    text = "".join(corpus.symbols[k] for k in tokens[:, 0])
    letters = np.array([c.isalnum() for c in text[: start - begin]], dtype=float)
    drawn = {}
    for name, field in model.cell.shown.items():
        gate = to_host(model.xp, getattr(out, field)[:, 0].T)
        covariance = gate[:, : len(letters)] @ (letters - letters.mean())
        chosen = np.argsort(-abs(covariance))[:units]
        chosen = chosen[np.argsort(-covariance[chosen])]
        drawn[name] = gate[chosen, len(letters) :]
    return text[len(letters) :], drawn


def draw_curve(axes: Any, cell: DemoCell, history: History, rows: dict[str, float]) -> None:
    """Draw the bits per character by step, and the baselines."""
    steps = range(1, len(history.training) + 1)
    points = history.held_out | {len(steps): rows["model"]}
    axes.plot(steps, history.training, color=BLUE, alpha=0.25, lw=0.8)
    axes.plot(steps, history.smoothed, color=BLUE, lw=1.8, label="training, smoothed")
    mark: Any = {"ms": 8, "mfc": "none", "mec": RED, "mew": 1.8}  # the curve shows through
    label = f"held out: {rows['model']:.2f}"
    axes.plot(*zip(*points.items(), strict=True), "o", label=label, **mark)
    styles = {"uniform": ("0.6", "--"), "unigram": ("0.25", "--")}
    styles |= {"lzma": (ORANGE, "-."), "bz2": (GREEN, ":")}
    for name, (color, style) in styles.items():
        if name in rows:
            label = f"{name}: {rows[name]:.2f}"
            axes.axhline(rows[name], color=color, ls=style, lw=1.5, zorder=1, label=label)
    axes.set(xlabel="step", ylabel="bits per character", xlim=(0, len(steps) * 1.01))
    # A log axis, because the interesting differences, of a few tenths, are at its lower end.
    axes.set_yscale("log", base=2)
    shown = (*rows.values(), *history.smoothed)
    low, high = max(min(shown), 1e-3), max(shown)
    axes.set_ylim(0.9 * low, 1.15 * high)
    ticks = [tick for tick in (0.5, 1, 1.2, 1.5, 2, 3, 4, 5, 7) if 0.9 * low < tick < 1.15 * high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_title(f"{cell.title[:1].upper()}{cell.title[1:]}: learning Python's documentation")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = sorted(handles, key=lambda label: -float(label.partition(": ")[2] or "inf"))
    place = {"loc": "upper right", "bbox_to_anchor": (1, 0.72)}  # below the line of unigram
    axes.legend([handles[label] for label in order], order, ncols=2, frameon=False, **place)
    axes.spines[["top", "right"]].set_visible(False)


def draw_maps(figure: Any, maps: Any, cell: DemoCell, drawn: Drawn) -> None:
    """Draw a map of each gate or output, units by characters, over the line below."""
    line, gates = drawn
    low, high = (-1, 1) if cell.layered else (0, 1)
    # If values have a sign, 0 is white.
    colors = {"vmin": low, "vmax": high, "cmap": "RdBu_r" if low < 0 else "viridis"}
    for axes, (name, values) in zip(maps, gates.items(), strict=True):
        image = axes.imshow(values, aspect="auto", interpolation="nearest", **colors)
        axes.set_ylabel(f"{name}\n{len(values)} units")
        axes.set_yticks([])
        axes.set_xticks(
            range(len(line)), line.replace(" ", "␣"), fontfamily="monospace", parse_math=False
        )
        axes.tick_params(length=0)
        for label, c in zip(axes.get_xticklabels(), line, strict=True):
            label.set(color="k" if c.isalnum() else RED, fontweight="bold")
    maps[0].set_title(
        "After each character of held-out text. Rows: the units that best separate letters from\n"
        "other characters. Rows that change above the red characters know where words end."
    )
    maps[-1].set_xlabel("character read")
    bar = figure.colorbar(image, ax=maps, pad=0.01, aspect=40)
    bar.set_label("output" if cell.layered else "activation (0 closed, 1 open)")


def draw(
    path: Path, cell: DemoCell, history: History, rows: dict[str, float], drawn: Drawn
) -> None:
    """Write the PNG: the loss curve above, a map of each gate over the line below."""
    from matplotlib.figure import Figure

    _, gates = drawn
    figure = Figure(figsize=(9, 3.9 + 1.7 * len(gates)), layout="constrained", dpi=130)
    ratios = [1.8, *[1.0] * len(gates)]
    top, *maps = figure.subplots(1 + len(gates), 1, gridspec_kw={"height_ratios": ratios})
    draw_curve(top, cell, history, rows)
    draw_maps(figure, maps, cell, drawn)
    figure.savefig(path, format="png")
