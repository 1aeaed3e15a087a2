"""
Compiled functions, from the disk where they were compiled before.

Before Numba loads a function of its cache, it loads all that it could compile with: 0.3 s for what
takes 0.01 s. Code that was compiled needs it only if it calls it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
from llvmlite import binding
from numba.core import sigutils
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.runtime.nrt import rtsys


def _can_be_linked(data: Any) -> bool:
    """Return whether all is there that compiled code calls; it would end the process otherwise."""
    _, kind, code = data[0]
    module = binding.parse_bitcode(code[1] if kind == "object" else code)
    needed = [
        value.name
        for value in (*module.functions, *module.global_variables)
        if value.is_declaration and not value.name.startswith("llvm.")
    ]
    return all(binding.address_of_symbol(name) is not None for name in needed)


class _Cache(FunctionCache):  # type: ignore[misc, unused-ignore]
    """Numba's cache of a function, which loads no more than the function needs."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for a signature, None if nothing was."""
        with self._guard_against_spurious_io_errors():
            data = self._cache_file.load(self._index_key(sig, target_context.codegen()))
            if data is None:
                return None
            rtsys.initialize(target_context)
            if not _can_be_linked(data):
                target_context.refresh()
            return self._impl.rebuild(target_context, data)
        return None


@functools.cache
def _stamp() -> str:
    """Return what tells these files from those of another version."""
    try:
        return f"{max(p.stat().st_mtime_ns for p in Path(__file__).parent.glob('*.py')):x}"
    except (OSError, ValueError):  # They are in an archive.
        return "0"


def _with_own_name(function: Callable[..., Any], char: str) -> Callable[..., Any]:
    """
    Return a function with a name of its own, for a dtype and for these files.

    Processes that compile for two dtypes at once would mix up their files, and what was compiled
    with other functions of these files is not to be taken.
    """
    name = f"{function.__name__}_{char}_{_stamp()}"
    named = FunctionType(function.__code__, function.__globals__, name)
    named.__qualname__ = name
    return named


def compiled_function(
    function: Callable[..., Any], signature: Any, options: dict[str, Any], char: str = ""
) -> Callable[..., Any]:
    """
    Return a function compiled for arguments of these types, to be called from Python.

    `char` is the dtype, of a function that is compiled for several.
    """
    function = _with_own_name(function, char)
    try:
        compiled: Any = numba.njit(**options)(function)
        compiled._cache = _Cache(function)
        compiled.compile(signature)
        compiled.disable_compile()
    except Exception:  # no folder to keep it in, no room, or what lies there is damaged
        compiled = numba.njit(signature, **options)(function)
    result: Callable[..., Any] = compiled
    return result


def compiled_callback(
    function: Callable[..., Any], signature: Any, options: dict[str, Any], char: str = ""
) -> Any:
    """Return a function compiled for arguments of these types, with an address."""
    function = _with_own_name(function, char)
    try:
        compiled: Any = CFunc(function, sigutils.normalize_signature(signature), {}, dict(options))
        compiled._cache = _Cache(function)
        compiled.compile()
    except Exception:  # as above
        compiled = numba.cfunc(signature, **options)(function)
    return compiled
