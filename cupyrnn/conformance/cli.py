"""The command line."""

from __future__ import annotations

import argparse
import math
import platform
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import cupyrnn

_OPERATORS = ("LSTM", "GRU", "RNN")
_OPS = ("BlockLSTM", "BlockLSTMV2", "LSTMBlockCell", "GRUBlockCell", "CudnnRNN")
_INTERRUPTED = 130  # the exit status after Ctrl-C


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
        description="Write test cases for ONNX's LSTM, GRU and RNN or for TensorFlow's ops, and"
        " report which of them a runtime computes correctly.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="write | run")
    write = commands.add_parser("write", help="write all cases into a folder")
    write.add_argument("folder", type=Path, help="a folder that is empty or not there yet")
    run = commands.add_parser("run", help="run the cases and report the results by feature")
    run.add_argument(
        "runtime", help="onnxruntime, onnx-reference, tensorflow, cupyrnn, or MODULE:FUNCTION, a"
        " function of the path of model.onnx, or of an op's case.json, and the inputs by name that"
        " returns the list of outputs",
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
        command.add_argument(
            "--op", choices=(*_OPERATORS, *_OPS), help="only the cases of one operator; those of"
            " TensorFlow's ops are written only if this names one",
        )  # fmt: skip
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command; return its exit status.

    It is 1 if `run` finds a wrong result, and 130 after Ctrl-C.
    """
    options = _parser().parse_args(arguments)
    for package in ("onnx", "ml_dtypes", "tqdm"):
        if find_spec(package) is None:
            _fail(f'{package} is not installed; in a clone: pip install ".[conformance]"')
    try:
        return _write(options.folder, options.op) if options.command == "write" else _run(options)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:  # the process of the runtime could not be started
        _fail(str(error))
    except KeyboardInterrupt:
        print("conformance: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _progress(cases: Iterable[Any], total: int) -> Any:
    """Yield the cases, and show the progress on a terminal."""
    return import_module("tqdm").tqdm(cases, total=total, unit=" cases", leave=False, disable=None)


def _write(folder: Path, op_type: str | None) -> int:
    from . import cases, files, tf_ops

    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        _fail(f"{folder} is not empty")
    count = gradients = 0
    write: Any = files.write if op_type not in _OPS else files.write_op
    drawn: Any = cases.cases(op_type) if op_type not in _OPS else tf_ops.cases(op_type)
    plans = [plan for plan in cases.plans() if op_type in (None, plan.op_type)]
    for case in _progress(drawn, len(plans) or len([*tf_ops.plans(op_type or "")])):
        write(case, folder)
        count, gradients = count + 1, gradients + bool(case.gradients)
    print(f"{count} cases in {folder}, {gradients} of them with gradients")
    return 0


def _run(options: argparse.Namespace) -> int:
    import onnx

    from . import files, report, worker

    process = worker.start(options.runtime, options.gradients, options.timeout)
    found: dict[bool, list[report.Outcome]] = {False: []}
    found |= {True: []} if process.facts["gradients"] else {}
    interrupted = ""
    with ExitStack() as stack:
        stack.callback(process.close)
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            _write(folder, options.op)
        everything = [*files.read(folder)]
        stored = [case for case in everything if options.op in (None, case.features[0])]
        if everything and not stored:
            ops = ", ".join(sorted({case.features[0] for case in everything}))
            _fail(f"{folder} has no cases of {options.op}, but of {ops}")
        if not stored:
            which = f"{folder} --op {options.op}" if options.op else folder
            _fail(f"{folder} has no cases: python -m cupyrnn.conformance write {which}")
        try:
            for case in _progress(stored, len(stored)):
                for gradients in [*found][: 1 + bool(case.gradients)]:
                    found[gradients].append(worker.outcome(process, case, gradients=gradients))
        except KeyboardInterrupt:
            interrupted = f", interrupted after {len(found[False])} of {len(stored)} cases"
    about = process.facts["about"] + interrupted
    names = f"cupyrnn {cupyrnn.__version__}, onnx {onnx.__version__}, NumPy {np.__version__}"
    lines = [report.text(about, found[False])]
    lines += [report.text(f"Gradients of {about}", back) for back in [*found.values()][1:] if back]
    lines.append(f"Cases of {names}; Python {platform.python_version()}, {platform.machine()}.\n")
    text = "\n".join(lines)
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    wrong = any(o.verdict != report.RIGHT for outcomes in found.values() for o in outcomes)
    return _INTERRUPTED if interrupted else int(wrong)
