"""The command line."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import cupyrnn

from . import checkpoint, files, output, text
from .cells import CELLS, Cell
from .figure import draw, gates_on_line
from .model import (
    EMBEDDING,
    EXPECTED_ERROR,
    TEMPERATURE,
    WORST_ERROR,
    gradient_error,
    initial_parameters,
    parameter_count,
    sample,
)
from .modules import array_module, demo_module, versions
from .output import complain, show
from .training import Plan, Training, train

PROMPT = "The "
SAMPLE = 300  # characters
CONFIGURATION = ("cell", "steps", "hidden", "batch", "seq", "seed")  # what the numbers depend on


def positive(text: str) -> int:
    """Parse an option's number."""
    if not text.isdecimal() or len(text) > 10 or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer below 2**31")
    return int(text)


def not_negative(text: str) -> int:
    """Parse a seed."""
    if not text.isdecimal() or len(text) > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0 up, of 100 digits")
    return int(text)


def new_file(text: str) -> Path:
    """Parse the path of a file, so that a wrong one ends the run before it has begun."""
    path = Path(text)
    try:
        files.check(path)
    except files.WriteError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return path


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(
        prog="python -m cupyrnn",
        description="Train a character language model on the text of Python's documentation.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = result.add_argument
    add("--version", action="version", version=f"cupyrnn {cupyrnn.__version__}")
    add("--cell", choices=list(CELLS), default="lstm", help="the recurrent cell")
    add(
        "--backend",
        choices=["auto", "numpy", "cupy"],
        default="auto",
        help="the array module; auto is cupy where there is a GPU",
    )
    add("--steps", type=positive, default=1000, metavar="N", help="training steps")
    add("--hidden", type=positive, default=192, metavar="H", help="units of the cell")
    add("--batch", type=positive, default=32, metavar="B", help="streams of text side by side")
    add("--seq", type=positive, default=64, metavar="T", help="characters of a training window")
    add("--seed", type=not_negative, default=0, metavar="N", help="of all random numbers")
    add(
        "--threads",
        type=positive,
        default=1,
        metavar="N",
        help="threads of NumPy's matmuls; at these sizes more gain little, and lose much where"
        " the machine has other work",
    )
    add("--out", type=new_file, default="cupyrnn.png", metavar="PNG", help="the figure to write")
    add(
        "--checkpoint",
        type=new_file,
        metavar="FILE",
        help="save the training in this .npz; where there is one of these options, go on with it",
    )
    add("--every", type=positive, default=100, metavar="N", help="steps between two checkpoints")
    return result


def print_table(rows: dict[str, float]) -> None:
    """Print the held-out bits per character."""
    show("\nheld-out bits per character")
    for name, bits in rows.items():
        show(f"  {name:8} {bits:7.4f}")


def memory() -> float:
    """Return this machine's memory in bytes, inf where that is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return float("inf")


def least_memory(count: int, states: int) -> int:
    """Return a lower bound of what training takes in bytes: less is sure to fail."""
    # Each parameter, its gradient and its two moments, and a state's gates and gradients.
    return 4 * 4 * count + 10 * 4 * states


def save(path: Path, training: Training, configuration: checkpoint.Configuration) -> None:
    """Write a checkpoint."""
    history = training.history
    about = {"training": history.training, "held_out": list(history.held_out.items())}
    checkpoint.save(path, configuration, about, training.arrays())


def run(options: argparse.Namespace, fail: Callable[[str], Any]) -> int:
    """Do what the options say and return the exit status; `fail` ends with a usage error."""
    begin = time.perf_counter()
    path: Path | None = options.checkpoint
    if path is not None and os.path.realpath(path) == os.path.realpath(options.out):
        fail("--checkpoint and --out are the same file")
    xp = array_module(options.backend)
    cell: Cell = CELLS[options.cell]
    B, T, H, rng = options.batch, options.seq, options.hidden, np.random.default_rng(options.seed)
    for name in ("tqdm", "matplotlib"):
        demo_module(name)
    threadpoolctl = demo_module("threadpoolctl")
    threadpoolctl.threadpool_limits(options.threads, user_api="blas")

    show(f"cupyrnn {cupyrnn.__version__}, Python {platform.python_version()}, {versions(xp)}")
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    counts = [f"{pool['num_threads']} of {pool['internal_api']}" for pool in pools]
    show(f"threads: {', '.join(counts) or 'unknown'}; --threads sets them")
    corpus = text.make_corpus(text.read_text())
    N, V = len(corpus.training), len(corpus.symbols)
    if B * T >= N:
        fail(f"--batch {B} times --seq {T} is {B * T:,}: the training text has {N:,} characters")
    show(
        f"text: {corpus.total:,} characters of pydoc_data.topics, the last"
        f" {len(corpus.held_out) - 1:,} held out;\n"
        f"  {N:,} to train on, after paragraphs that the held-out text repeats are dropped"
    )
    show(
        f"symbols: {V}, one of them for characters seen fewer than {text.RARE} times in training"
        f" ({corpus.escapes} held out)"
    )

    count = parameter_count(cell, V, EMBEDDING, H)
    least = least_memory(count, B * T * H)
    if least > memory():
        fail(
            f"--hidden {H} with --batch {B} and --seq {T} needs {least / 2**30:,.0f} GiB of memory"
            f" or more: this machine has {memory() / 2**30:,.0f}"
        )
    p = initial_parameters(xp, cell, V, EMBEDDING, H, rng, np.float32)
    show(f"model: {cell.title}, {H} units, {count:,} parameters in float32")
    error = gradient_error(xp, cell)
    show(f"gradient: relative error {error:.1e} by complex step, expected up to {EXPECTED_ERROR}")
    if not error <= WORST_ERROR:
        complain("The gradient is wrong: not training.")
        return 1

    training = Training(xp, cell, p, corpus, Plan(options.steps, B, T))
    configuration = {name: getattr(options, name) for name in CONFIGURATION}
    configuration["text"] = checkpoint.fingerprint(corpus)
    if path is not None and path.exists():
        try:
            training.go_on(*checkpoint.load(path, configuration, training.arrays()))
        except checkpoint.CheckpointError as error:
            fail(f"argument --checkpoint: {error}")
        show(f"checkpoint: going on after step {training.done:,} with {path}")
    show(f"training: {options.steps:,} steps of {B} x {T} characters, in bits per character")
    if path is None:
        train(training)
    else:
        train(training, options.every, partial(save, path, training, configuration))
    if training.done < options.steps:
        show(f"stopped by Ctrl-C after {training.done:,} of {options.steps:,} steps")
        if path is not None:
            show(f"  the same command goes on with {path}")
    rows = text.baselines(corpus) | text.compressors(corpus)
    rows["model"] = training.held_out_bits()
    show(f"\nsample at temperature {TEMPERATURE}, after {PROMPT!r}:\n")
    sampled = sample(xp, cell, training.p, corpus, PROMPT, SAMPLE, rng)
    show("\n".join(f"  | {line}".rstrip() for line in sampled.split("\n")))
    print_table(rows)
    draw(options.out, cell, training.history, rows, *gates_on_line(xp, cell, training.p, corpus))
    show(f"\n{time.perf_counter() - begin:.0f} s; figure: {options.out}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    command = parser()
    try:
        output.check()
        try:
            return run(command.parse_args(arguments), command.error)
        finally:  # also of --help
            output.flush()
    except output.OutputError as error:
        output.drop()
        complain(f"{command.prog}: {error}")
        return error.status
    except files.WriteError as error:
        complain(f"{command.prog}: {error}")
        return 1
    except MemoryError as error:
        complain(f"{command.prog}: not enough memory{f': {error}' if str(error) else ''}")
        return 1
