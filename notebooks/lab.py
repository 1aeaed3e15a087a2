"""What the notebooks of this folder share: array module, where they ran, look of plots, data."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import threadpoolctl

import cupyrnn

DATA = Path(__file__).with_name("data")

# Told apart by the color-blind as well (Okabe and Ito).
BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
SKY, PINK, GRAY = "#56b4e9", "#cc79a7", "0.55"

matplotlib.rcParams |= {
    "axes.prop_cycle": matplotlib.cycler(color=[BLUE, ORANGE, GREEN, RED, SKY, PINK]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "figure.dpi": 120,
    "font.size": 10.5,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}


def array_module() -> ModuleType:
    """Return cupy where there is a GPU, else numpy."""
    with contextlib.suppress(ImportError):
        cupy = importlib.import_module("cupy")
        if cupy.is_available():
            return cupy
    return np


def to_host(a: Any) -> Any:
    """Return a NumPy array or scalar of an array of either module."""
    return a.get() if hasattr(a, "get") else a


def device(xp: ModuleType = np) -> str:
    """Return the name of the processor that computes arrays of `xp`."""
    if xp is not np:
        return xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)["name"].decode()
    name, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.exists() and (match := re.search(r"model name\s*: (.*)", info.read_text())):
        name = " ".join(re.sub(r"\((R|TM)\)|\b(CPU|Processor)\b", " ", match[1]).split())
    affinity = getattr(os, "sched_getaffinity", None)
    return f"{name}, {len(affinity(0)) if affinity else os.cpu_count()} cores"


def one_thread() -> None:
    """Let BLAS use one thread, which is the fastest for small matrices on a busy machine."""
    threadpoolctl.threadpool_limits(1)


def report(xp: ModuleType) -> None:
    """Print what a notebook runs with and on."""
    print(f"array module: {xp.__name__} {xp.__version__}")
    print(f"device:       {device(xp)}")
    print(
        f"versions:     cupyrnn {cupyrnn.__version__}, Python {platform.python_version()},", end=""
    )
    print(f" NumPy {np.__version__}, Matplotlib {matplotlib.__version__}")


def caption(figure: Any, xp: ModuleType, *more: str) -> None:
    """Write below a figure where its numbers come from."""
    text = "; ".join([f"{xp.__name__} {xp.__version__} on {device(xp)}", *more])
    figure.supxlabel(text, x=0.99, ha="right", fontsize=8.5, color="0.4")


def legend_below(figure: Any, ax: Any, ncols: int, **options: Any) -> None:
    """Write the legend of a plot below the whole figure, and above its caption."""
    named = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))  # each name once
    height, rows = figure.get_size_inches()[1], -(-len(named) // ncols)
    anchor = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.2 / height), "ncols": ncols}
    figure.legend(named.values(), named.keys(), borderaxespad=0, **anchor, **options)
    room = (0.22 * rows + 0.08) / height
    figure.get_layout_engine().set(rect=(0, room, 1, 1 - room))


def headline(figure: Any, title: str, see: str) -> None:
    """Write above a figure its title and, below that, what there is to see in it."""
    width, height = figure.get_size_inches()
    longest = int(13.2 * width)
    rows = len(textwrap.wrap(see, longest))
    while len(textwrap.wrap(see, longest - 1)) == rows:  # as short as so many rows can be
        longest -= 1
    see = textwrap.fill(see, longest)
    inches = 0.36 + 0.18 * rows
    engine = figure.get_layout_engine()
    _, bottom, _, room = engine.get()["rect"]
    engine.set(rect=(0, bottom, 1, room - inches / height))
    left = 0.08 / width
    figure.text(left, 1 - 0.07 / height, title, va="top", fontsize=12.5, fontweight="bold")
    figure.text(left, 1 - 0.31 / height, see, va="top", fontsize=10.5)


def character_ticks(ax: Any, text: str) -> None:
    """Write a text below a plot, a character at each integer, in red what is no letter or digit."""
    shown = text.replace(" ", "␣")
    ax.set_xticks(range(len(text)), shown, family="monospace", parse_math=False)
    ax.tick_params(axis="x", length=0)
    for label, c in zip(ax.get_xticklabels(), text, strict=True):
        label.set(color="k" if c.isalnum() else RED, fontweight="bold")


def japanese_vowels(part: str) -> tuple[list[Any], Any]:
    """
    Return the utterances of a part of Japanese Vowels, "train" or "test", and who spoke them.

    An utterance is float64 [t, 12], with its own t; the speakers are 0 to 8.
    """
    with np.load(DATA / "japanese_vowels.npz") as stored:
        train, ends = int(stored["train"]), np.cumsum(stored["lengths"], dtype=int)
        utterances = np.split(stored["coefficients"] / 1e6, ends[:-1])
        speakers = stored["speakers"].astype(int) - 1
    chosen = {"train": slice(train), "test": slice(train, None)}[part]
    return utterances[chosen], speakers[chosen]


def pad(utterances: list[Any], T: int = 29) -> Any:
    """Return utterances as one array [T, N, 12] of their dtype, zero past their ends."""
    padded = np.zeros((T, len(utterances), 12), utterances[0].dtype)
    for n, utterance in enumerate(utterances):
        padded[: len(utterance), n] = utterance
    return padded


PEEPHOLES = ("wci", "wcf", "wco")


class Op(NamedTuple):
    """An op and its gradient as functions of a dict of its inputs, of the shapes given."""

    shapes: dict[str, tuple[int, ...]]
    forward: Callable[..., Any]  # of the inputs: the op's outputs, and those that have a gradient
    backward: Callable[..., Any]  # of inputs, outputs and gradients of the latter: of every input


def lstm_shapes(T: int, B: int, I: int, H: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of block_lstm's inputs."""
    shapes = {"x": (T, B, I), "cs_prev": (B, H), "h_prev": (B, H), "w": (I + H, 4 * H)}
    return shapes | {"b": (4 * H,)} | dict.fromkeys(PEEPHOLES, (H,))


def gru_shapes(T: int, B: int, I: int, H: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of block_gru's inputs."""
    shapes = {"x": (T, B, I), "h_prev": (B, H), "w_ru": (I + H, 2 * H), "w_c": (I + H, H)}
    return shapes | {"b_ru": (2 * H,), "b_c": (H,)}


def ops(T: int, B: int, I: int, H: int) -> dict[str, Op]:
    """Return the block ops whose gradients are of every input, by the gradient's name."""

    def lstm(name: str, gradient: str, **options: Any) -> Op:
        cell = name == "lstm_block_cell"

        def forward(p: dict[str, Any]) -> Any:
            out = getattr(cupyrnn, name)(**p, cell_clip=0, **options)
            return out, (out.cs, out.h)

        def backward(p: dict[str, Any], out: Any, cotangents: Any) -> Any:
            first = (p[n] for n in ("x", "cs_prev", "h_prev", "w"))
            more = {n: p[n] for n in PEEPHOLES} | options
            return getattr(cupyrnn, gradient)(*first, *out[: 6 if cell else 7], *cotangents, **more)

        shapes = lstm_shapes(T, B, I, H) | ({"x": (B, I)} if cell else {})
        return Op(shapes, forward, backward)

    def gru(name: str, gradient: str) -> Op:
        cell = name == "gru_block_cell"

        def forward(p: dict[str, Any]) -> Any:
            out = getattr(cupyrnn, name)(**p)
            return out, (out.h,)

        def backward(p: dict[str, Any], out: Any, cotangents: Any) -> Any:
            first = (p[n] for n in ("x", "h_prev", "w_ru", "w_c"))
            return getattr(cupyrnn, gradient)(*first, *out[: 3 if cell else 4], *cotangents)

        shapes = gru_shapes(T, B, I, H) | ({"x": (B, I)} if cell else {})
        return Op(shapes, forward, backward)

    return {
        "lstm_block_cell_backward": lstm("lstm_block_cell", "lstm_block_cell_backward"),
        "block_lstm_grad, icfo": lstm("block_lstm", "block_lstm_grad", gate_order="icfo"),
        "block_lstm_grad, ifco": lstm("block_lstm", "block_lstm_grad", gate_order="ifco"),
        "gru_block_cell_backward": gru("gru_block_cell", "gru_block_cell_backward"),
        "block_gru_grad": gru("block_gru", "block_gru_grad"),
    }
