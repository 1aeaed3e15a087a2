"""Files that replace others only when they are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO


@contextmanager
def replaced(path: str) -> Iterator[BinaryIO]:
    """
    Open a file that replaces the one at `path` when it is complete.

    After an error the old file is there, as it was. A link stays a link, and a file keeps its
    permissions.
    """
    path = os.path.realpath(path)
    there = os.path.exists(path)
    if there and not os.path.isfile(path):  # a pipe, or a folder, which is an error
        with open(path, "wb") as file:
            yield file
        return
    if there:
        open(path, "r+b").close()  # an error if the file is read-only
    new = f"{path}.tmp-{os.getpid()}"
    try:
        try:
            file = open(new, "xb")  # noqa: SIM115
        except OSError as e:  # about the file that the caller knows
            raise type(e)(e.errno, e.strerror, path) from None
        with file:
            if there:
                shutil.copymode(path, new)
            yield file
        os.replace(new, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(new)
