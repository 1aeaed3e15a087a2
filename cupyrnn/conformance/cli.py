"""The command line."""

from __future__ import annotations

import argparse
import math
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np

import cupyrnn

_OPERATORS = ("LSTM", "GRU", "RNN")


def _fail(message: str) -> NoReturn:
    """End with a line on standard error and status 2."""
    print(f"conformance: {message}", file=sys.stderr)
    raise SystemExit(2)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(f"{message} (see --help)")


def _seconds(text: str) -> float:
    """Parse a positive number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m cupyrnn.conformance",
        description="Write test cases for ONNX's LSTM, GRU and RNN, and report which of them a"
        " runtime computes correctly.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="write | run")
    write = commands.add_parser("write", help="write all cases into a folder")
    write.add_argument("folder", type=Path, help="a folder that is empty or not there yet")
    run = commands.add_parser("run", help="run the cases and report the results by feature")
    run.add_argument(
        "runtime", help="onnxruntime, onnx-reference, cupyrnn, or MODULE:FUNCTION, a function of"
        " the path of model.onnx and the inputs by name that returns the list of outputs",
    )  # fmt: skip
    run.add_argument(
        "folder", type=Path, nargs="?", help="a folder of `write`; by default new cases"
    )
    run.add_argument(
        "--gradients", metavar="MODULE:FUNCTION", help="a function of the path, the inputs and the"
        " gradients of the outputs by name that returns those of the inputs by name",
    )  # fmt: skip
    run.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="SECONDS",
        help="the most seconds for a case, 60 by default; a slower case counts as crashed",
    )  # fmt: skip
    run.add_argument("--out", type=Path, metavar="FILE", help="also write the report to this file")
    for command in (write, run):
        command.add_argument("--op", choices=_OPERATORS, help="only the cases of one operator")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status, which is 1 if `run` finds a wrong result."""
    options = _parser().parse_args(arguments)
    for package in ("onnx", "ml_dtypes"):
        try:
            __import__(package)
        except ImportError:
            _fail(f'{package} is not installed; in a clone: pip install ".[conformance]"')
    try:
        return _write(options.folder, options.op) if options.command == "write" else _run(options)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        _fail("interrupted")


def _write(folder: Path, op_type: str | None) -> int:
    from . import cases, files

    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        _fail(f"{folder} is not empty")
    count = gradients = 0
    for case in cases.cases(op_type):
        files.write(case, folder)
        count, gradients = count + 1, gradients + bool(case.gradients)
    print(f"{count} cases in {folder}, {gradients} of them with gradients")
    return 0


@contextmanager
def _cases(folder: Path | None, op_type: str | None) -> Iterator[Path]:
    """Return the folder of cases, or a temporary one with new cases."""
    if folder is not None:
        if not any(folder.glob("*/case.json")):
            _fail(f"{folder} has no cases: python -m cupyrnn.conformance write {folder}")
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        _write(Path(temporary), op_type)
        yield Path(temporary)


def _run(options: argparse.Namespace) -> int:
    import onnx

    from . import files, report, worker

    forward, backward = [], []
    try:
        process = worker.start(options.runtime, options.gradients, options.timeout)
    except ValueError as error:
        _fail(str(error))
    outputs = worker.judge_in(process, worker.OUTPUTS)
    gradients = worker.judge_in(process, worker.GRADIENTS) if process.facts["gradients"] else None
    try:
        with _cases(options.folder, options.op) as folder:
            chosen = (case for case in files.read(folder) if options.op in (None, case.features[0]))
            for outcome, back in report.run_all(chosen, outputs, gradients):
                forward.append(outcome)
                backward += [] if back is None else [back]
    except ValueError as error:  # the process could not be restarted
        _fail(str(error))
    finally:
        process.close()
    about = process.facts["about"]
    versions = {"cupyrnn": cupyrnn.__version__, "onnx": onnx.__version__, "NumPy": np.__version__}
    versions_text = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [report.text(about, forward)]
    if backward:
        lines.append(report.text(f"Gradients of {about}", backward))
    lines.append(
        f"Cases of {versions_text}; Python {platform.python_version()}, {platform.machine()}.\n"
    )
    text = "\n".join(lines)
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    return int(any(outcome.verdict != report.RIGHT for outcome in forward + backward))
