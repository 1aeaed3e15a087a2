"""Lazy imports: a package takes its names from its stub, and loads each on first use.

The idea is Scientific Python's SPEC 1. A name of the package is written once, in ``__init__.pyi``,
which a type checker reads too.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

_IMPORT = re.compile(r"^from (\.[\w.]*) import (\w+) as \2$", re.MULTILINE)


def attach_stub(
    namespace: dict[str, Any], hint_for: Callable[[str], str]
) -> tuple[list[str], Callable[[], list[str]], Callable[[str], Any]]:
    """
    Return ``__all__``, ``__dir__`` and ``__getattr__`` of the package with these globals.

    `hint_for` returns the end of the error for an unknown name.
    """
    package, spec = namespace["__name__"], namespace["__spec__"]
    stub = f"{spec.submodule_search_locations[0]}/__init__.pyi"
    sources = {name: source for source, name in _IMPORT.findall(_read(spec.loader, stub))}
    public = sorted(name for name, source in sources.items() if source != ".")
    shown = sorted([*sources, *(n for n in ("__version__",) if n in namespace)])

    def load(name: str) -> Any:
        if name not in sources:
            hint = "" if name.startswith("__") else hint_for(name)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        if sources[name] != ".":
            value = getattr(importlib.import_module(sources[name], package), name)
            namespace[name] = value
            return value
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            start, why = f"{package}.{name}", str(error)
            says = why if why.startswith(start) else f"{start} needs {error.name}: {why}"
            raise AttributeError(says) from error

    return public, lambda: shown, load


def _read(loader: Any, path: str) -> str:
    """Return the text of a file of the package, which may be in a zip file."""
    text: bytes = loader.get_data(path)
    return text.decode("utf-8").replace("\r\n", "\n")
