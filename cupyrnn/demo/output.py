"""Standard output and standard error, which may be closed, full or limited in encoding."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import textwrap
from typing import Any


class OutputError(Exception):
    """Standard output cannot be written; holds the system's message and the exit status."""

    def __init__(self, error: OSError) -> None:
        # The status in a shell of programs ended by SIGPIPE, a signal that Python ignores.
        self.status = 128 + 13 if isinstance(error, BrokenPipeError) else 1
        super().__init__(f"cannot write to standard output: {error.strerror}")


def check() -> None:
    """Raise OutputError if there is no standard output."""
    if sys.stdout is None:
        raise OutputError(OSError(errno.EBADF, os.strerror(errno.EBADF)))


def show(text: str = "") -> None:
    """
    Print text; characters that the output cannot encode become question marks.

    Lines longer than the width of the terminal are wrapped.
    """
    width = shutil.get_terminal_size((100, 24)).columns
    text = "\n".join(_wrapped(line, width) for line in text.split("\n"))
    encoding = sys.stdout.encoding or "utf-8"
    try:
        # Flushed, because in one file the progress bar's lines would come first.
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except OSError as error:
        raise OutputError(error) from None


def _wrapped(line: str, width: int) -> str:
    """Wrap a line to this width; further lines have its indent, or two spaces."""
    if len(line) <= width:
        return line
    (indent,) = re.findall(r"^(?:  \| | *)", line)
    kept: Any = dict.fromkeys(("replace_whitespace", "break_long_words", "break_on_hyphens"), False)
    return textwrap.fill(line, max(width, 20), subsequent_indent=indent or "  ", **kept)


def silence() -> None:
    """Print nothing from now on: another process does."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def flush() -> None:
    """Flush standard output, or raise OutputError."""
    try:
        sys.stdout.flush()
    except OSError as error:
        raise OutputError(error) from None


def complain(text: str) -> None:
    """Print a line on standard error, if there is one."""
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr.fileno())


def drop() -> None:
    """Discard unprinted text, which Python would try to print again at exit."""
    if sys.stdout is not None:
        _drop(sys.stdout.fileno())


def _drop(fd: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)
