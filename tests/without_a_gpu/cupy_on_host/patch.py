"""Redirect the functions of the CUDA runtime inside CuPy's extension to the library."""

from __future__ import annotations

import ctypes
from pathlib import Path

from .library import functions, plain

_READ_WRITE_EXECUTE = 7
_PAGE = 4096


def _loaded_at(path: Path) -> int:
    """Return where a shared library begins in the memory of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[5] == str(path.resolve()) and int(fields[2], 16) == 0:
            return int(fields[0].split("-")[0], 16)
    raise RuntimeError(f"{path} is not loaded")


def runtime(path: Path, library: ctypes.CDLL) -> int:
    """Overwrite the beginning of every function of the runtime; return how many there were."""
    base, libc = _loaded_at(path), ctypes.CDLL(None, use_errno=True)
    found = functions(path, "tT", "cuda")
    for name, offset in found.items():
        target = ctypes.cast(getattr(library, plain(name)), ctypes.c_void_p).value or 0
        jump = b"\x48\xb8" + target.to_bytes(8, "little") + b"\xff\xe0"  # mov rax, target; jmp rax
        page = (base + offset) // _PAGE * _PAGE
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * _PAGE), _READ_WRITE_EXECUTE):
            raise OSError(ctypes.get_errno(), f"{path} cannot be changed")
        ctypes.memmove(base + offset, jump, len(jump))
    return len(found)
