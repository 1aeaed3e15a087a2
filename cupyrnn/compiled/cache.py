"""
A cache of compiled functions on disk.

A file has one function for one signature, one processor and one state of all source files here. A
change of any source file leads to other file names. A file begins with a digest of its content. A
damaged file is compiled again and replaced. Writing a file removes files of other sources that
no process has read for MOST_AGE.

Numba's own cache is not used: before it loads a function, Numba loads everything that it could need
for compiling. That takes 0.3 s, and loading a compiled function 0.01 s.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba.core import sigutils
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps
from numba.misc.appdirs import AppDirs

from .simd import CALLBACK_OPTIONS

MOST_AGE = 30 * 24 * 3600.0  # s
# The stamp, the digest of the signature, and the ending: a process number while it is written.
_NAME = re.compile(r".+?-(?:([0-9a-f]{8})-)?[0-9a-f]{32}\.(nbc|[0-9]+)")


def _can_be_linked(data: Any) -> bool:
    """Return whether all symbols of compiled code are defined; a missing one ends the process."""
    _, kind, code = data[0]
    module = binding.parse_bitcode(code[1] if kind == "object" else code)
    needed = [
        value.name
        for value in (*module.functions, *module.global_variables)
        if value.is_declaration and not value.name.startswith("llvm.")
    ]
    return all(binding.address_of_symbol(name) is not None for name in needed)


def _digest(*parts: bytes) -> bytes:
    """Return a digest of parts and of their lengths."""
    found = hashlib.blake2b(digest_size=32)
    for one in parts:
        found.update(b"%d:" % len(one))
        found.update(one)
    return found.digest()


@functools.cache
def _stamp() -> bytes:
    """Return a digest of the source files here and of the compiler's versions."""
    paths = sorted(Path(__file__).parent.glob("*.py"))
    versions = numba.__version__, llvmlite.__version__, sys.version
    return _digest(repr(versions).encode(), *(path.read_bytes() for path in paths))


@functools.cache
def _remove_old(folder: Path) -> None:
    """
    Remove old files of other sources, and files of processes that ended while they wrote.

    Other processes may do the same, or read a file, at the same time. A process whose file is gone
    compiles again.
    """
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            found = _NAME.fullmatch(path.name)
            if found is None or found.groups() == (_stamp().hex()[:8], "nbc"):
                continue
            with contextlib.suppress(OSError):
                about = path.stat()
                if time.time() - max(about.st_atime, about.st_mtime) > MOST_AGE:
                    path.unlink()


def _folders() -> Iterator[Path]:
    """Yield the folders to read; new files go to the first that is writable."""
    chosen = getattr(numba.config, "CACHE_DIR", "")
    if chosen:
        yield Path(chosen, "cupyrnn")
    yield Path(__file__).with_name("__pycache__")
    yield Path(AppDirs(appname="numba", appauthor=False).user_cache_dir, "cupyrnn")


class _Cache:
    """Numba's cache interface: loads and saves the compiled versions of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if function.__closure__ is not None:
            raise ValueError("the key does not cover the variables of a closure")
        source = Path(function.__code__.co_filename)
        self._key = [_stamp(), source.read_bytes(), function.__qualname__.encode()]
        self._name = f"{source.stem}.{function.__name__}"

    def _paths(self, signature: Any, codegen: Any) -> list[Path]:
        what = repr((signature, codegen.magic_tuple())).encode()
        stamp, key = self._key[0].hex()[:8], _digest(*self._key, what).hex()[:32]
        name = f"{self._name}-{stamp}-{key}.nbc"
        return [folder / name for folder in _folders()]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function of a signature; None if it is missing or damaged."""
        for path in self._paths(sig, target_context.codegen()):
            try:
                kept = path.read_bytes()
                if kept[:32] != _digest(kept[32:]):
                    continue
                data = pickle.loads(kept[32:])
            except Exception:
                continue
            rtsys.initialize(target_context)
            if not _can_be_linked(data):
                target_context.refresh()
            return CompileResult._rebuild(target_context, *data)
        return None

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Save the compiled function of a signature, if a folder is writable."""
        if cres.library.has_dynamic_globals:  # addresses of this process
            return
        data = dumps(cres._reduce())
        for path in self._paths(sig, cres.codegen):
            part = path.with_suffix(f".{os.getpid()}")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                part.write_bytes(_digest(data) + data)
                part.replace(path)
                _remove_old(path.parent)
                return
            except OSError:
                continue
            finally:
                with contextlib.suppress(OSError):
                    part.unlink(missing_ok=True)


def compiled_function(
    function: Callable[..., Any], signature: Any, options: dict[str, Any]
) -> Callable[..., Any]:
    """Return a function compiled for arguments of these types, to be called from Python."""
    try:
        compiled: Any = numba.njit(**options)(function)
        compiled._cache = _Cache(function)
        compiled.compile(signature)
        compiled.disable_compile()
    except Exception:  # compile it without the cache
        compiled = numba.njit(signature, **options)(function)
    return compiled


def compiled_callback(function: Callable[..., Any], signature: Any, options: dict[str, Any]) -> Any:
    """Return a function compiled for arguments of these types, with an address."""
    try:
        compiled: Any = CFunc(function, sigutils.normalize_signature(signature), {}, dict(options))
        compiled._cache = _Cache(function)
        compiled.compile()
    except Exception:  # as above
        compiled = numba.cfunc(signature, **options)(function)
    return compiled


def _callback(function: Callable[..., None], char: str) -> Any:
    """Return function(one, words) compiled for a dtype."""
    one = numba.from_dtype(np.dtype(char))
    return compiled_callback(function, numba.void(one, numba.int64), CALLBACK_OPTIONS)


@functools.cache
def compiled(function: Callable[..., None], char: str) -> Any:
    """
    Return function(one, words) compiled for a dtype, with an address for `simd.call`.

    Returns None if Numba does not work.
    """
    if getattr(numba.config, "DISABLE_JIT", False):
        return None
    try:
        return _callback(function, char)
    except Exception:
        return None


def error_of(function: Callable[..., None], char: str) -> Exception | None:
    """Return why `compiled` returns None; None if it does not, or if Numba compiles nothing."""
    if compiled(function, char) is not None or getattr(numba.config, "DISABLE_JIT", False):
        return None
    try:
        _callback(function, char)
    except Exception as error:
        return error
    return None
