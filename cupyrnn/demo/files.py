"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path


class WriteError(Exception):
    """A file can't be written; says which and why."""


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write {str(path)!r}: {error.strerror}") from None


def _is_device(path: Path) -> bool:
    """Whether it is there and no file: written to in place, as renaming would put a file there."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):  # opening one may wait for ever
        raise OSError(errno.ESPIPE, "It is a pipe or a socket, not a file")
    return not stat.S_ISREG(mode)


def _places(path: Path) -> tuple[Path, Path]:
    """Return where a file is and where it is written before it is renamed to be there."""
    # A link is followed, also one to nothing: it stays, and the file is made where it points.
    path = Path(os.path.realpath(path))
    return path, path.with_name(f".{path.name}.part")


def check(path: Path) -> None:
    """Raise WriteError if `write` could not write the file; nothing that is there is touched."""
    with _naming(path):
        if _is_device(path):
            return
        final, part = _places(path)
        if final.exists():
            final.open("ab").close()  # nothing is added
        part.open("ab").close()
        part.unlink()


def write(path: Path, content: bytes) -> None:
    """
    Write a file that a power cut or a kill at any moment leaves as it was or as it is to be.

    It is written beside and renamed; what a killed run has left there is overwritten.
    """
    with _naming(path):
        if _is_device(path):
            path.write_bytes(content)
            return
        final, part = _places(path)
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if final.exists():
                shutil.copymode(final, part)
            part.replace(final)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        with contextlib.suppress(OSError):  # a folder can't be opened on every system
            folder = os.open(final.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
