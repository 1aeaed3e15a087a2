"""The command line."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

import numpy as np

import cupyrnn

from ..parallel import Communicator, DifferentParameters, communicator, launched_rank
from . import checkpoint, files, output, text
from . import model as _model
from .cells import CELLS, DemoCell
from .figure import draw, gates_on_line
from .modules import array_module, demo_module, versions
from .output import complain, show
from .training import Training, TrainingPlan, show_step, train

PROMPT = "The "
SAMPLE = 300  # characters
Fail: TypeAlias = Callable[[str], NoReturn]
# The options that change the results.
CONFIGURATION = ("cell", "steps", "hidden", "batch", "seq", "seed")


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
        help="the array module; auto is cupy if there is a GPU",
    )
    add("--steps", type=positive, default=1000, metavar="N", help="training steps")
    add("--hidden", type=positive, default=192, metavar="H", help="units of the cell")
    add("--batch", type=positive, default=32, metavar="B", help="streams of text side by side")
    add("--seq", type=positive, default=64, metavar="T", help="characters of a training window")
    add("--seed", type=not_negative, default=0, metavar="N", help="the seed of all random numbers")
    add(
        "--threads",
        type=positive,
        default=1,
        metavar="N",
        help="threads of NumPy's matmuls; at these sizes more threads gain little, and are slow on"
        " a busy machine",
    )
    add("--out", type=Path, default="cupyrnn.png", metavar="PNG", help="the figure to write")
    add(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="save the training in this .npz; resume it if the file has one with the same options",
    )
    add("--every", type=positive, default=100, metavar="N", help="steps between two checkpoints")
    add(
        "--timeout",
        type=positive,
        default=300,
        metavar="S",
        help="seconds to wait for another process under mpiexec",
    )
    return result


def print_table(rows: dict[str, float]) -> None:
    """Print the held-out bits per character."""
    show("\nheld-out bits per character, lower is better")
    for name, bits in rows.items():
        show(f"  {name:8} {bits:7.4f}")


def memory() -> float:
    """Return this machine's memory in bytes, inf if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return float("inf")


def least_memory(count: int, states: int) -> int:
    """Return a lower bound of the bytes that training needs."""
    # Parameters with gradients and two moments; states with gates and gradients.
    return 4 * 4 * count + 10 * 4 * states


def wrong_path(options: argparse.Namespace, stack: contextlib.ExitStack) -> str | None:
    """
    Return the problem with the files to write, None if there is none, before the run begins.

    The checkpoint is locked until `stack` is closed.
    """
    if options.out.suffix.lower() not in ("", ".png"):
        return f"argument --out: {str(options.out)!r} does not end in .png"
    name = "out"
    try:
        files.check(options.out)
        if options.checkpoint is not None:
            name = "checkpoint"
            files.check(options.checkpoint)
            if os.path.realpath(options.out) == os.path.realpath(options.checkpoint):
                return "--checkpoint and --out are the same file"
            stack.enter_context(files.lock(options.checkpoint))
    except files.WriteError as error:
        return f"argument --{name}: {error}"
    return None


def save(path: Path, training: Training, configuration: checkpoint.Configuration) -> None:
    """Write a checkpoint."""
    history = training.history
    about = {"training": history.training, "held_out": list(history.held_out.items())}
    arrays = training.arrays()  # of all ranks
    if training.comm.rank == 0:
        checkpoint.save(path, configuration, about, arrays)


def saved(path: Path, training: Training, configuration: checkpoint.Configuration) -> Any:
    """Load a checkpoint; return None if there is none, or a string if it cannot be used."""
    like = training.arrays()
    result: Any = None
    if training.comm.rank == 0 and path.exists():
        try:
            result = checkpoint.load(path, configuration, like)
        except checkpoint.CheckpointError as error:
            result = f"argument --checkpoint: {error}"
    return training.comm.share(result)


def run(comm: Communicator, xp: ModuleType, options: argparse.Namespace, fail: Fail) -> int:
    """Train with these options and return the exit status. The files can be written."""
    begin = time.perf_counter()
    path: Path | None = options.checkpoint
    cell: DemoCell = CELLS[options.cell]
    B, T, H, rng = options.batch, options.seq, options.hidden, np.random.default_rng(options.seed)
    for name in ("tqdm", "matplotlib"):
        demo_module(name)
    threadpoolctl = demo_module("threadpoolctl")
    threadpoolctl.threadpool_limits(options.threads, user_api="blas")

    show(f"cupyrnn {cupyrnn.__version__}, Python {platform.python_version()}, {versions(xp)}")
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    counts = [f"{pool['num_threads']} of {pool['internal_api']}" for pool in pools]
    show(f"threads: {', '.join(counts) or 'unknown'}; --threads changes this")
    if comm.size > 1:
        show(f"processes: {comm.size}, their gradients added by {comm.engine}")
        if comm.size > B:
            fail(f"--batch {B} has fewer streams than there are processes, {comm.size}")
    corpus = text.make_corpus(text.read_text())
    N, V = len(corpus.training), len(corpus.symbols)
    if B * T >= N:
        fail(f"--batch {B} times --seq {T} is {B * T:,}: the training text has {N:,} characters")
    show("task: predict the next character of Python's documentation, pydoc_data.topics")
    show(
        f"text: {corpus.total:,} characters, the last {len(corpus.held_out) - 1:,} held out;"
        f" {N:,} to train on, without the paragraphs that the held-out text repeats"
    )
    show(
        f"symbols: {V}, one of them for all characters seen fewer than {text.RARE} times in"
        f" training ({corpus.escapes} in the held-out text)"
    )
    if text.CONTEXTS:
        show(
            "input: a character, and the characters that came next the last time that the last"
            f" {', '.join(map(str, text.CONTEXTS))} characters occurred"
        )

    count = _model.parameter_count(cell, V, _model.EMBEDDING, H)
    least = least_memory(count, B * T * H)
    if least > memory():
        fail(
            f"--hidden {H} with --batch {B} and --seq {T} needs {least / 2**30:,.0f} GiB of memory"
            f" or more: this machine has {memory() / 2**30:,.0f}"
        )
    p = _model.initial_parameters(xp, cell, V, _model.EMBEDDING, H, rng, np.float32)
    show(f"model: {cell.title}, {H} units, {count:,} parameters in float32")
    error, expected = _model.gradient_error(xp, cell), _model.EXPECTED_ERROR
    show(f"gradient: relative error {error:.1e} by complex step, expected up to {expected}")
    if not error <= _model.WORST_ERROR:
        complain("The gradient is wrong: not training.")
        return 1

    training = Training(comm, _model.Model(xp, cell, p), corpus, TrainingPlan(options.steps, B, T))
    configuration = {name: getattr(options, name) for name in CONFIGURATION}
    configuration["text"] = checkpoint.fingerprint(corpus)
    found = None if path is None else saved(path, training, configuration)
    if isinstance(found, str):
        fail(found)
    elif found is not None:
        training.resume(*found)
        show(f"checkpoint: resuming from step {training.done:,} of {path}")
    show(f"training: {options.steps:,} steps of {B} x {T} characters; bits per character:")
    if path is None:
        train(training)
    else:
        train(training, options.every, partial(save, path, training, configuration))
    if training.done < options.steps:
        show(f"stopped by Ctrl-C after {training.done:,} of {options.steps:,} steps")
        if path is not None:
            show(f"  the same command resumes from {path}")
    if comm.rank == 0:
        report(training, rng, options.out)
    comm.barrier()  # without it the others would wait busily
    show(f"\n{time.perf_counter() - begin:.0f} s; figure: {options.out}")
    return 0


def report(training: Training, rng: np.random.Generator, out: Path) -> None:
    """Print and draw the results."""
    model, corpus = training.model, training.corpus
    rows = text.baselines(corpus) | text.compressors(corpus)
    rows["model"] = _model.held_out_bits(model, corpus)
    show_step(training.done, training.history, rows["model"])
    show(f"\nsample at temperature {_model.TEMPERATURE}, after {PROMPT!r}:\n")
    sampled = _model.sample(model, corpus, PROMPT, SAMPLE, rng)
    show("\n".join(f"  | {line}".rstrip() for line in sampled.split("\n")))
    print_table(rows)
    alone = text.compressors(corpus, with_training=False)
    if alone:
        without = " and ".join(f"{name} {bits:.4f}" for name, bits in alone.items())
        show(
            "\nBoth the compressors and the model may look back at the training text and at the"
            " held-out text already read. Without the training text the compressors need more:"
            f" {without}."
        )
    draw(out, model.cell, training.history, rows, gates_on_line(model, corpus))


def parsed(arguments: list[str] | None, command: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, which all ranks share; only rank 0 prints errors."""
    if not launched_rank():
        return command.parse_args(arguments)
    output.silence()
    with contextlib.redirect_stderr(sys.stdout):
        return command.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    command = parser()
    comm: Communicator | None = None

    def fail(message: str) -> NoReturn:
        if comm is not None and comm.rank:
            raise SystemExit(2)  # all ranks end here; rank 0 prints the error
        command.error(message)

    def end(message: str, status: int = 1) -> int:
        if comm is None or comm.size == 1:
            complain(f"{command.prog}: {message}")
        else:
            complain(f"{command.prog}: rank {comm.rank}: {message}")
            comm.abort(status)  # the others would wait for this rank
        return status

    try:
        output.check()
        try:
            options = parsed(arguments, command)
            xp = array_module(options.backend)
            try:
                comm = communicator(xp, timeout=options.timeout)
            except (ImportError, ValueError) as error:
                return end(str(error))
            with contextlib.ExitStack() as stack:
                problem = comm.share(wrong_path(options, stack) if comm.rank == 0 else None)
                if problem is not None:
                    fail(problem)
                return run(comm, xp, options, fail)
        finally:  # also of --help
            output.flush()
    except output.OutputError as error:
        output.drop()
        return end(str(error), error.status)
    except (files.WriteError, DifferentParameters, TimeoutError) as error:
        return end(str(error))
    except MemoryError as error:
        return end(f"not enough memory{f': {error}' if str(error) else ''}")
    except BaseException as error:
        if comm is None or comm.size == 1 or isinstance(error, SystemExit):
            raise
        if isinstance(error, KeyboardInterrupt):
            return end("interrupted", 128 + signal.SIGINT)
        return end(traceback.format_exc())
