"""The command ``python -m cupyrnn``: options, and the run from the text to the figure."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import numpy as np

import cupyrnn

from ..parallel import Communicator, communicator, launched_rank
from . import model as _model
from . import text
from .figure import draw, gates_on_line
from .model import CELLS
from .training import Training, show_step, train

PROMPT = "The "
SAMPLE = 300  # characters
# The options that a checkpoint must have in common with the run that continues it.
CONFIGURATION = ("cell", "steps", "hidden", "batch", "seq", "seed")


def number(least: int) -> Callable[[str], int]:
    """Return the type of an option that is an integer of at least `least`."""

    def convert(text: str) -> int:
        if not (text.isdecimal() and len(text) < 100 and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {least} up")
        return int(text)

    return convert


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(
        prog="python -m cupyrnn",
        description="Train a character language model on the text of Python's documentation.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = result.add_argument
    add("--version", action="version", version=f"cupyrnn {cupyrnn.__version__}")
    add("--cell", choices=[*CELLS], default="lstm", help="the recurrent cell")
    backends = ["auto", "numpy", "cupy"]
    add("--backend", choices=backends, default="auto", help="auto is cupy if there is a GPU")
    threads = "threads of NumPy's matmuls; more are slow on a busy machine"
    for name, least, default, meaning in (
        ("steps", 1, 1000, "training steps"),
        ("hidden", 1, 192, "units of the cell"),
        ("batch", 1, 32, "streams of text side by side"),
        ("seq", 1, 64, "characters of a training window"),
        ("seed", 0, 0, "the seed of all random numbers"),
        ("threads", 1, 1, threads),
        ("every", 1, 100, "steps between two checkpoints"),
        ("timeout", 1, 300, "seconds to wait for another process under mpiexec"),
    ):
        add(f"--{name}", type=number(least), default=default, metavar="N", help=meaning)
    add("--out", type=Path, default="cupyrnn.png", metavar="PNG", help="the figure to write")
    meaning = "save the training in this .npz; resume it if the file is there"
    add("--checkpoint", type=Path, metavar="FILE", help=meaning)
    return result


def array_module(backend: str) -> ModuleType:
    """Return numpy or cupy."""
    if backend != "numpy":
        try:
            cupy = importlib.import_module("cupy")
            if cupy.is_available():
                return cupy
            missing = "CuPy finds no GPU; use --backend numpy"
        except Exception as error:  # a broken CuPy may raise any error
            missing = f"CuPy does not work ({error}); in a clone: pip install "
            missing += '".[cuda13x]" or ".[cuda12x]"'
        if backend == "cupy":
            raise SystemExit(f"python -m cupyrnn: {missing}")
    return np


def limit_threads(threads: int) -> str:
    """Set the threads of the BLAS; return what they are."""
    import threadpoolctl

    threadpoolctl.threadpool_limits(threads, user_api="blas")
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    return ", ".join(f"{pool['num_threads']} of {pool['internal_api']}" for pool in pools)


def run(
    comm: Communicator,
    xp: ModuleType,
    options: argparse.Namespace,
    fail: Callable[[str], NoReturn],
) -> int:
    """Train, report and draw; return the exit code, 130 after a Ctrl-C."""
    begin, path, cell = time.perf_counter(), options.checkpoint, CELLS[options.cell]
    B, T, H, rng = options.batch, options.seq, options.hidden, np.random.default_rng(options.seed)
    print(f"cupyrnn {cupyrnn.__version__}, Python {platform.python_version()}, NumPy", end=" ")
    print(f"{np.__version__}; array module: {xp.__name__} {xp.__version__}")
    print(f"threads: {limit_threads(options.threads) or 'unknown'}; --threads changes this")
    if comm.size > 1:
        print(f"processes: {comm.size}, their gradients added by {comm.engine}")
        if comm.size > B:
            fail(f"--batch {B} has fewer streams than there are processes, {comm.size}")
    corpus = text.make_corpus(text.read_text())
    N, V = len(corpus.training), len(corpus.symbols)
    if B * T >= N:
        fail(f"--batch {B} times --seq {T} is {B * T:,}: the training text has {N:,} characters")
    print(f"""task: predict the next character of Python's documentation, pydoc_data.topics
text: {len(corpus.whole):,} characters, the last {len(corpus.held_out) - 1:,} held out;
  {N:,} to train on, without the paragraphs that the held-out text repeats
symbols: {V}, one of them for all characters seen fewer than {text.RARE} times in training
  ({corpus.escapes} in the held-out text)
input: a character, and the characters that came next the last time that the last
  {", ".join(map(str, text.CONTEXTS))} characters occurred""")
    p = _model.initial_parameters(xp, cell, V, _model.EMBEDDING, H, rng, np.float32)
    count = sum(a.size for a in p.values())
    print(f"model: {cell.title}, {H} units, {count:,} parameters in float32")
    error, expected = _model.gradient_error(xp, cell), _model.EXPECTED_ERROR
    print(f"gradient: relative error {error:.1e} by complex step, expected up to {expected}")
    if not error <= _model.WORST_ERROR:
        print("The gradient is wrong: not training.", file=sys.stderr)
        return 1

    training = Training(comm, _model.Model(xp, cell, p), corpus, options.steps, B, T)
    configuration = {name: getattr(options, name) for name in CONFIGURATION}
    configuration["text"] = hashlib.sha256(corpus.whole.encode()).hexdigest()
    if path is not None and comm.share(path.exists()):
        if why := training.load(path, configuration):
            fail(f"argument --checkpoint: {why}")
        print(f"checkpoint: resuming from step {training.done:,} of {path}")
    print(f"training: {options.steps:,} steps of {B} x {T} characters; bits per character:")
    every = 0 if path is None else options.every
    train(training, every, lambda: training.save(path, configuration))
    if training.done < options.steps:
        print(f"stopped by Ctrl-C after {training.done:,} of {options.steps:,} steps")
        if path is not None:
            print(f"  the same command resumes from {path}")
    if comm.rank == 0:
        report(training, rng, options.out)
    comm.barrier()  # without it the others would wait busily
    print(f"\n{time.perf_counter() - begin:.0f} s; figure: {options.out}")
    return 0 if training.done == options.steps else 128 + signal.SIGINT


def report(training: Training, rng: np.random.Generator, out: Path) -> None:
    """Score the held-out text, print a sample and the table, and draw the figure."""
    model, corpus = training.model, training.corpus
    rows = text.baselines(corpus) | text.compressors(corpus)
    rows["model"] = _model.held_out_bits(model, corpus)
    show_step(training.done, training.history, rows["model"])
    print(f"\nsample at temperature {_model.TEMPERATURE}, after {PROMPT!r}:\n")
    for line in _model.sample(model, corpus, PROMPT, SAMPLE, rng).split("\n"):
        print(f"  | {line}".rstrip())
    print("\nheld-out bits per character, lower is better")
    for name, bits in rows.items():
        print(f"  {name:8} {bits:7.4f}")
    alone = text.compressors(corpus, with_training=False)
    without = " and ".join(f"{name} {bits:.4f}" for name, bits in alone.items())
    print(f"""
Both the compressors and the model may look back at the training text and at the held-out text
  already read. Without the training text the compressors need more: {without}.""")
    draw(out, model.cell, training.history, rows, gates_on_line(model, corpus))


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    command, silent = parser(), contextlib.ExitStack()
    if launched_rank():  # rank 0 prints
        nowhere = silent.enter_context(open(os.devnull, "w"))  # noqa: SIM115
        silent.enter_context(contextlib.redirect_stdout(nowhere))

    def fail(message: str) -> NoReturn:
        if launched_rank():
            raise SystemExit(2)
        command.error(message)

    with silent:
        sys.stdout.reconfigure(errors="replace", line_buffering=True)  # type: ignore[union-attr]
        options = command.parse_args(arguments)
        for name in ("tqdm", "matplotlib", "threadpoolctl"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                message = f'{error.name} is missing; in a clone: pip install ".[demo]"'
                raise SystemExit(f"python -m cupyrnn: {message}") from None
        for option, path in (("out", options.out), ("checkpoint", options.checkpoint)):
            if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
                fail(f"argument --{option}: cannot write {str(path)!r}")
        xp = array_module(options.backend)
        with communicator(xp, timeout=options.timeout) as comm:
            return run(comm, xp, options, fail)
