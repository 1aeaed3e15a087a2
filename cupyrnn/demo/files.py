"""
Files that are written completely or not at all, and locks on them.

A file is written under a temporary name in the same folder and then renamed. The writer holds a
lock on the temporary file; the lock ends with its process. So a file of a killed run has no lock,
but a file that another run is writing has one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Flags against following links and waiting for pipes.
_CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


class WriteError(Exception):
    """A file cannot be written; the message names it and the reason."""


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # a null character is a ValueError
        reason = getattr(error, "strerror", None) or str(error)
        raise WriteError(f"cannot write {str(path)!r}: {reason}") from None


def _is_device(path: Path) -> bool:
    """Return whether the path is a device, which is written in place: a rename would replace it."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):  # opening one may block for ever
        raise OSError(errno.ESPIPE, "It is a pipe or a socket, not a file")
    return not stat.S_ISREG(mode)


def _place(path: Path) -> Path:
    """Follow links, so that they are kept; their target may not exist."""
    return Path(os.path.realpath(path))


def _locked(fd: int, *, wait: bool = False) -> bool:
    """Lock an open file; return False if another process has locked it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:  # a file system without locks
        if error.errno not in _UNSUPPORTED:
            raise
    return True


def _is_at(fd: int, path: Path) -> bool:
    """Return whether this path is still the open file: no other process has removed it."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _part(final: Path) -> Iterator[tuple[Path, int]]:
    """Create a file with a unique name beside the final one; yield its path and descriptor."""
    while True:
        path = final.with_name(f".{final.name}.{secrets.token_hex(8)}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY
        fd = os.open(path, flags, 0o666)
        try:
            _locked(fd, wait=True)
            if not _is_at(fd, path):  # removed before it was locked
                continue
            try:
                yield path, fd
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            return
        finally:
            os.close(fd)


def _remove_what_killed_runs_left(final: Path) -> None:
    """Remove unlocked temporary files of this file."""
    if fcntl is None:
        return
    own = re.compile(re.escape(f".{final.name}.") + r"[0-9a-f]{16}\.part")
    for name in os.listdir(final.parent):
        if not own.fullmatch(name):
            continue
        path = final.with_name(name)
        # Errors: it is gone, not a file, or another user's. No other files have such names.
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | _CAREFULLY)
            try:
                if stat.S_ISREG(os.fstat(fd).st_mode) and _locked(fd):
                    path.unlink()
            finally:
                os.close(fd)


def check(path: Path) -> None:
    """Raise WriteError if `write` could not write the file; an existing file is not changed."""
    with _naming(path):
        if _is_device(path):
            return
        final = _place(path)
        if final.exists():
            final.open("ab").close()  # writes nothing
        with _part(final) as (part, _):
            part.unlink()


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """
    Lock a file for this process; raise WriteError if another one has it or it is a device.

    The locked file is an empty one beside it, which is removed at the end.
    """
    with _naming(path):
        if _is_device(path):
            raise OSError(errno.EINVAL, "It is a device, not a file")
        final = _place(path)
        beside = final.with_name(f".{final.name}.lock")
        fd = -1
        while fd < 0 or not _is_at(fd, beside):  # until the locked file was not removed meanwhile
            if fd >= 0:
                os.close(fd)
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | _CAREFULLY, 0o666)
            if not _locked(fd):
                os.close(fd)
                raise OSError(errno.EBUSY, "Another run is using it")
        _remove_what_killed_runs_left(final)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
        os.close(fd)


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: a power cut or a kill leaves the old or the new content."""
    with _naming(path):
        if _is_device(path):
            path.write_bytes(content)
            return
        final = _place(path)
        _remove_what_killed_runs_left(final)
        with _part(final) as (part, fd):
            with open(fd, "wb", closefd=False) as file:
                file.write(content)
            os.fsync(fd)
            if final.exists():
                shutil.copymode(final, part)
            part.replace(final)
        with contextlib.suppress(OSError):  # not every system can open a folder
            folder = os.open(final.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
