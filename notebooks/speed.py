"""What notebook 5 times: an LSTM layer's forward and backward, ours and those of the frameworks.

    python notebooks/speed.py

prints as JSON the times of block_lstm by Numba. Where Numba is installed cupyrnn takes it by
itself; this is how its times come from a process of their own, beside NumPy's from another.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import lab
import numpy as np
from matplotlib.ticker import LogLocator, NullLocator

import cupyrnn

Shape: TypeAlias = tuple[int, int, int]  # T, B, H = I
Implementation: TypeAlias = Callable[
    [dict[str, Any]], tuple[Callable[[], Any], Callable[[Any], Any]]
]
Times: TypeAlias = dict[Shape, dict[str, list[float]]]  # milliseconds, forward and backward

T, B, H = 50, 16, 128
SWEEPS: dict[str, list[Shape]] = {
    "B": [(T, n, H) for n in (1, 4, 16, 64)],
    "H": [(T, B, n) for n in (32, 64, 128, 256)],
    "T": [(n, B, H) for n in (10, 50, 250)],
}
SHAPES = sorted({shape for shapes in SWEEPS.values() for shape in shapes})
FIXED = {"B": f"T={T}, H={H}", "H": f"T={T}, B={B}", "T": f"B={B}, H={H}"}
NUMBA = "block_lstm by Numba"


def block_lstm(a: dict[str, Any]) -> Any:
    first = (a["x"], a["zero"], a["zero"], a["w"])
    return (
        lambda: cupyrnn.block_lstm(*first, a["b"], cell_clip=0),
        lambda out: cupyrnn.block_lstm_grad(*first, *out, None, a["h_grad"]),
    )


def cudnn_rnn(a: dict[str, Any]) -> Any:
    packed = cupyrnn.weights.params_from_block_lstm(a["w"], a["b"], forget_bias=1, cell_clip=0)
    first = (a["x"], a["zero"][None], a["zero"][None], packed)

    def backward(out: Any) -> Any:
        grads, saved = (a["h_grad"], None, None), out.reserve_space
        return cupyrnn.cudnn_rnn_backprop(
            *first, *out[:3], *grads, saved, host_reserved=out.host_reserved
        )

    return lambda: cupyrnn.cudnn_rnn(*first), backward


def pytorch(a: dict[str, Any]) -> Any:
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    module = torch.nn.LSTM(a["x"].shape[2], a["zero"].shape[1])
    x = torch.tensor(a["x"], requires_grad=True)
    h_grad = torch.tensor(a["h_grad"])
    return lambda: module(x)[0], lambda out: out.backward(h_grad)


def tensorflow(a: dict[str, Any]) -> Any:
    # No start-up messages.
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    tf = importlib.import_module("tensorflow")
    with contextlib.suppress(RuntimeError):  # set before
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    H, (T, B, _) = a["zero"].shape[1], a["x"].shape
    named = {"x": a["x"], "cs_prev": a["zero"], "h_prev": a["zero"], "w": a["w"], "b": a["b"]}
    named |= dict.fromkeys(("wci", "wcf", "wco"), np.zeros(H, np.float32))
    named = {name: tf.constant(v) for name, v in named.items()}
    options = {"seq_len_max": tf.constant(T, tf.int64), "use_peephole": False}
    grads = {"cs_grad": tf.zeros((T, B, H)), "h_grad": tf.constant(a["h_grad"])}
    return (
        lambda: tf.raw_ops.BlockLSTM(**named, **options, cell_clip=0.0),
        lambda out: tf.raw_ops.BlockLSTMGrad(**named, **options, **grads, **out._asdict()),
    )


FRAMEWORKS = {"PyTorch": ("torch", pytorch), "TensorFlow": ("tensorflow", tensorflow)}


def frameworks() -> dict[str, Implementation]:
    """Return the frameworks that are installed."""
    there = {name: make for name, (module, make) in FRAMEWORKS.items() if installed(module)}
    for name in FRAMEWORKS:
        what = "timed too" if name in there else "not installed, not timed here"
        print(f"{name + ':':13} {what}")
    return there


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def arrays(T: int, B: int, H: int, xp: ModuleType = np) -> dict[str, Any]:
    """Return what all implementations compute with, I = H."""
    rng = np.random.default_rng(0)
    a = {"x": rng.normal(size=(T, B, H)), "w": rng.normal(size=(2 * H, 4 * H)) / H**0.5}
    a |= {"b": np.zeros(4 * H), "zero": np.zeros((B, H)), "h_grad": rng.normal(size=(T, B, H))}
    return {name: xp.asarray(v, dtype=np.float32) for name, v in a.items()}


def measure(
    implementations: dict[str, Implementation],
    shapes: Sequence[Shape] = SHAPES,
    xp: ModuleType = np,
    repeats: int = 10,
) -> Times:
    """Return the milliseconds of forward and backward, in turn, of each the fastest run."""

    def finished(result: Any) -> Any:
        if xp is not np:
            xp.cuda.Device().synchronize()
        return result

    times: Times = {}
    for shape in shapes:
        a = arrays(*shape, xp)
        host = {name: lab.to_host(v) for name, v in a.items()}
        calls = {n: make(host if n in FRAMEWORKS else a) for n, make in implementations.items()}
        best = {name: [np.inf, np.inf] for name in calls}
        for _ in range(repeats + 1):
            for name, (forward, backward) in calls.items():
                start = time.perf_counter()
                out = finished(forward())
                middle = time.perf_counter()
                finished(backward(out))
                took = middle - start, time.perf_counter() - middle
                best[name] = [min(b, 1e3 * t) for b, t in zip(best[name], took, strict=True)]
        times[shape] = best
    return times


def add_numba(times: Times) -> None:
    """Add block_lstm by Numba, timed in a process of its own, if Numba is installed."""
    if not installed("numba"):
        print("Numba:        not installed, not timed here")
        return
    print("Numba:        timed too, in a process of its own")
    command = [sys.executable, str(Path(__file__).resolve())]
    environment = os.environ | {"CUPYRNN_NUMBA": "1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    for shape, took in json.loads(done.stdout):
        times[tuple(shape)][NUMBA] = took


def print_table(times: Times) -> None:
    """Print the milliseconds of forward and backward together."""
    names = list(next(iter(times.values())))
    titles = [name.removeprefix("block_lstm ") for name in names]
    print(f"{'(T, B, H)':15}" + "".join(f"{title:>18}" for title in titles))
    for shape, best in times.items():
        print(f"{shape!s:15}" + "".join(f"{sum(best[name]):18.2f}" for name in names))


LOOKS = {
    "block_lstm": (lab.BLUE, "-", "o"),
    NUMBA: (lab.BLUE, "--", "s"),
    "cudnn_rnn": (lab.SKY, "-", "^"),
    "one call per step": ("0.5", "-", "v"),
    "PyTorch": (lab.RED, "-", "D"),
    "TensorFlow": (lab.ORANGE, "-", "P"),
}


def draw(figure: Any, times: Times) -> None:
    """Draw times against B, H and T, with all that was timed in a legend below."""
    places = figure.subplot_mosaic("BHT;...", height_ratios=(1, 0.2), sharey=True)
    axes = [places[symbol] for symbol in SWEEPS]
    names = {"B": "batch size B", "H": "units H, inputs I", "T": "steps T"}
    for ax, (symbol, swept) in zip(axes, SWEEPS.items(), strict=True):
        values = [shape["TBH".index(symbol)] for shape in swept]
        for name, (color, line, marker) in LOOKS.items():
            if name in times[swept[0]]:
                took = [sum(times[shape][name]) for shape in swept]
                style = {"color": color, "ls": line, "lw": 3 if name == "block_lstm" else 1.5}
                ax.loglog(values, took, marker=marker, ms=5, label=name, **style)
        ax.set_xticks(values, values)
        ax.set_xticks([], minor=True)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set(xlabel=names[symbol], title=FIXED[symbol])
        ax.grid(lw=0.4)
    axes[0].set_ylabel("forward + backward (ms)")
    anchor = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.045), "ncols": 3}
    figure.legend(*axes[0].get_legend_handles_labels(), **anchor)


if __name__ == "__main__":
    lab.one_thread()
    numba = measure({NUMBA: block_lstm})
    print(json.dumps([[shape, best[NUMBA]] for shape, best in numba.items()]))
