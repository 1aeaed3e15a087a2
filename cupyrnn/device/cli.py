"""The command line: the trials and times of first uses, for sizes that the user names."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ..driver import trial
from ..kernels import choice, fit, timed
from . import CELLS

CELLS_IN_TURN = ("lstm", "gru", "rnn_tanh", "block_gru")  # "rnn_relu" has kernels of "rnn_tanh"
DTYPES = ("float32", "float16", "bfloat16", "float64")
UNITS, BATCHES = (16, 32, 64, 96, 128, 256, 512), (1, 4, 16, 64, 256)
_BAR = 40  # characters


class Row(NamedTuple):
    """The results for the kernels of a direction at one size."""

    name: str  # with the dtype
    H: int
    B: int
    times: dict[str, float]  # microseconds a step, by kernel
    taken: str
    mode: str  # of `taken`
    wrong: dict[str, str]  # kernels and what was seen

    @property
    def text(self) -> str:
        """The line of the table."""
        values = f"wrong: {', '.join(self.wrong)}" if self.wrong else "right"
        times = "".join(
            f"{f'{self.times[k]:.2f}' if k in self.times else '–':>9}" for k in timed.KERNELS
        )
        return f"{self.name:<33}{self.H:>4}{self.B:>6}{times}  {self.taken:<8}{values}"


TITLES = f"{'device time of a step, in us':<33}{'H':>4}{'B':>6}"
TITLES += "".join(f"{kernel:>9}" for kernel in timed.KERNELS) + f"  {'taken':<8}values"


def dtype_of(name: str) -> np.dtype[Any]:
    """Return a dtype by its name; an ImportError says what bfloat16 needs."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    return np.dtype(name)


def rows(cell: str, dtype: str, H: int, B: int) -> Iterator[Row]:
    """Try and time the kernels of a cell, forward and backward, at one size."""
    page: Any = import_module(f"..kernels.{CELLS[cell]}", __package__)
    for kernels in (page.FORWARD_KERNELS, page.BACKWARD_KERNELS):
        given = kernels, dtype_of(dtype), (B, H), trial.TIMED_STEPS
        of, wrong = fit.Recurrence(*given, choice.current_device(), plain=True), {}
        for mode, (plain, padded) in product(timed.MODES[1:], fit.KINDS):
            one = of._replace(plain=plain, padded=padded, device=choice.current_device())
            candidate = fit.by_mode(mode, one)
            if candidate.layout is not None:
                seen = choice.verdict(one, candidate)
                seen = trial.try_kernel(one, candidate) if seen is None else seen
                if seen:
                    wrong[candidate.choice.kernel] = seen
        by_kernel = {}
        for mode, us in trial.time_kernels(of).items():
            kernel = mode if mode == "loop" else fit.by_mode(mode, of).choice.kernel
            by_kernel[kernel] = us
        of = trial.with_own(of)
        taken = choice.choose(of).kernel
        mode = "rows" if taken == "hybrid" else taken
        yield Row(choice.name_of(of), H, B, by_kernel, taken, mode, wrong)


def _size(text: str) -> int:
    """Return an integer above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer above 0")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m cupyrnn.device",
        description="Do now what first calls do: compare the kernels of the time steps on this GPU"
        " with NumPy, and time them. Calls use the fastest kernel that was right. Exit status: 0,"
        " all kernels are right; 1, some are wrong and will not be used; 2, no GPU or a package is"
        " missing.",
    )
    for name, known, default in (
        ("cells", CELLS_IN_TURN, CELLS_IN_TURN),
        ("dtypes", DTYPES, DTYPES[:2]),
    ):
        text = f"default {' '.join(default)}"
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=default, help=text)
    for name, what, sizes in (("units", "H", UNITS), ("batches", "B", BATCHES)):
        text = f"default {' '.join(map(str, sizes))}"
        how: Any = {"nargs": "+", "type": _size, "metavar": what}
        parser.add_argument(f"--{name}", default=sizes, help=text, **how)
    parser.add_argument("--forget", action="store_true", help="delete what is kept, and exit")
    return parser


def _run(options: argparse.Namespace) -> int:
    try:
        device = choice.current_device()
    except ValueError:  # of an environment variable
        raise
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError)
        install = '; in a clone: pip install ".[cuda12x]" or ".[cuda13x]"'
        raise ValueError(
            f"no GPU that CuPy can use: {type(error).__name__}: {error}{install * missing}"
        ) from error
    assert device.own is not None
    of_all = [*product(options.cells, options.dtypes, options.units, options.batches)]
    found: list[Row] = []
    try:
        for n, of in enumerate(of_all):
            done = _BAR * n // len(of_all)
            bar = f"[{'#' * done:<{_BAR}}] {n} of {len(of_all)}: {of[0]} {of[1]}, H = {of[2]}"
            print(f"\r{bar}, B = {of[3]}\x1b[K", end="", file=sys.stderr, flush=True)
            found += rows(*of)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        print(device.own.card, TITLES, *(row.text for row in found), sep="\n")
        wrong = {(row.name, *seen) for row in found for seen in row.wrong.items()}
        for name, kernel, seen in sorted(wrong):
            print(f"WRONG, never taken: {kernel} of {name}: {seen}")
    own = choice.current_device().own
    is_kept = own is not None and own.is_kept
    print(f"kept in {device.own.path}" if is_kept else "kept nowhere: see CUPYRNN_CACHE_DIR")
    return int(bool(wrong))


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    if options.forget:
        forgotten = [str(path) for path in timed.forget()]
        print("forgotten:", *forgotten if forgotten else ["nothing, as nothing was kept"])
        return 0
    try:
        for dtype in options.dtypes:
            dtype_of(dtype)
        return _run(options)
    except (ValueError, ImportError, OSError) as error:
        print(f"cupyrnn.device: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what is complete is kept", file=sys.stderr)
        return 128 + signal.SIGINT
