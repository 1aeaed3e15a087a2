"""The arguments of an op, as the function behind it takes them."""

from __future__ import annotations

from typing import Any


def named(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return an op's arguments, its locals() at its first line, as the package takes them."""
    del arguments["name"]
    return arguments
