"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


def _is_device(path: Path) -> bool:
    """Whether it is there and no file: written to in place, as renaming would put a file there."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise _error(errno.EISDIR, path)
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):  # opening one may wait for ever
        raise OSError(errno.ESPIPE, "It is a pipe or a socket, not a file", str(path))
    return not stat.S_ISREG(mode)


def _target(path: Path) -> Path:
    """Follow links, also one to nothing: the file is made where it points, and the link stays."""
    return Path(os.path.realpath(path))


def _beside(path: Path) -> Path:
    """Return the name under which a file is written before it gets its own."""
    return path.with_name(f".{path.name}.part")


def check(path: Path) -> None:
    """Raise OSError if `write` could not write the file; nothing that is there is touched."""
    if _is_device(path):
        return
    path = _target(path)
    if path.exists():
        path.open("ab").close()  # nothing is added
    part = _beside(path)
    part.open("ab").close()
    part.unlink()


def write(path: Path, content: bytes) -> None:
    """
    Write a file that a power cut or a kill at any moment leaves as it was or as it is to be.

    It is written beside and renamed; what a killed run has left there is overwritten.
    """
    if _is_device(path):
        path.write_bytes(content)
        return
    path = _target(path)
    part = _beside(path)
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # a folder can't be opened on every system
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
