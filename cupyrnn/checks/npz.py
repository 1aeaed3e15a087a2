"""Read .npz files from untrusted sources: nothing is unpickled or decompressed."""

from __future__ import annotations

import errno
import io
import math
import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

HEADER = 2**14  # the most bytes of a member before its numbers


@contextmanager
def stored(path: Any) -> Iterator[zipfile.ZipFile]:
    """
    Open a file of np.savez. It must be a regular file: a device or a pipe may never end.

    All members must be uncompressed, so that none can be larger than the file. An OSError has the
    path; damage is a ValueError, or an error of zipfile's.
    """
    try:
        with _archive(os.fspath(path)) as archive:
            yield archive
    except OSError as error:
        if error.filename is not None:
            raise
        if error.errno == errno.EINVAL:  # zipfile looks for a place before the first byte
            raise ValueError("its directory of members is damaged") from None
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


@contextmanager
def _archive(path: Any) -> Iterator[zipfile.ZipFile]:
    with open(path, "rb", opener=_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "It is not a regular file", path)
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                    raise ValueError(f"{info.filename} is compressed, expected a file of np.savez")
                if info.header_offset + info.file_size > status.st_size:
                    raise ValueError(
                        f"{info.filename} has {info.file_size:,} bytes, the file {status.st_size:,}"
                    )
            yield archive


def _without_waiting(path: Any, flags: int) -> int:
    """Open a file; a pipe opens at once, whether it has a writer or not."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _member(archive: zipfile.ZipFile, key: str, most: int | None) -> io.BytesIO:
    """Return the content of a member and verify its checksum."""
    try:
        info = archive.getinfo(f"{key}.npy")
    except KeyError:
        raise ValueError(f"{key} is missing, or of another kind") from None
    if most is not None and info.file_size > most:
        raise ValueError(f"{key} has {info.file_size:,} bytes, expected at most {most:,}")
    with archive.open(info) as member:
        return io.BytesIO(member.read())


def _content(
    archive: zipfile.ZipFile, key: str, most: int | None
) -> tuple[tuple[int, ...], str, np.dtype[Any], bytes]:
    """Return the shape, order, dtype and bytes of an array."""
    content = _member(archive, key, most)
    if np.lib.format.read_magic(content) == (1, 0):
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(content)
    else:
        shape, by_columns, dtype = np.lib.format.read_array_header_2_0(content)
    return shape, "F" if by_columns else "C", dtype, content.read()


def read_array(archive: zipfile.ZipFile, key: str, most: int | None = None) -> np.ndarray[Any, Any]:
    """Return a copy of an array of numbers; refuse a member of more than `most` bytes."""
    shape, order, dtype, content = _content(archive, key, most)
    if dtype.hasobject or len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{key} is missing, or of another kind")
    return np.frombuffer(content, dtype).reshape(shape, order=order).copy()  # type: ignore[call-overload,no-any-return]


def read_text(archive: zipfile.ZipFile, key: str, most: int) -> str:
    """Return a text; refuse a member of more than `most` bytes."""
    shape, _, dtype, content = _content(archive, key, most)
    if shape != () or dtype.kind != "U" or len(content) != dtype.itemsize:
        raise ValueError(f"{key} is not a text")
    return str(np.frombuffer(content, dtype)[0])
