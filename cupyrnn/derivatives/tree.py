"""Structures of tuples, lists and dicts, as functions take and return arrays in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..checks.attributes import shown

# How deep structures may be: Python's own stack ends somewhat later.
_DEEPEST = 100


def _rebuilt(tree: Any, parts: Any) -> Any:
    """Return a structure of the type of another one with other parts."""
    kind = type(tree)
    if kind in (tuple, list):
        return kind(parts)
    if hasattr(tree, "_make"):
        return tree._make(parts)
    if isinstance(tree, tuple):
        return kind(parts)
    import copy  # not above: most calls do without

    # A subclass may know more than its items, as a defaultdict its factory.
    other = copy.copy(tree)
    if isinstance(tree, dict):
        for key, a in zip(list(tree), parts, strict=True):
            other[key] = a
    else:
        other[:] = parts
    return other


def tree_map(f: Callable[..., Any], tree: Any, *others: Any, depth: int = 0) -> Any:
    """Return a structure of tuples, named tuples, lists and dicts with f of each leaf."""
    if not isinstance(tree, (dict, tuple, list)):
        return f(tree, *others)
    if depth > _DEEPEST:
        raise ValueError(f"jvp: a structure is nested deeper than {_DEEPEST} levels")
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    parts = [tree_map(f, tree[k], *(o[k] for o in others), depth=depth + 1) for k in keys]
    if type(tree) is dict:
        return dict(zip(keys, parts, strict=True))
    return _rebuilt(tree, parts)


def leaves_by_name(name: str, tree: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield what a structure holds, by the name of its place."""
    if depth > _DEEPEST:
        raise ValueError(f"jvp: {name.partition('[')[0]} is nested deeper than {_DEEPEST} levels")
    if isinstance(tree, dict):
        for key, a in tree.items():
            yield from leaves_by_name(f"{name}[{shown(key)}]", a, depth + 1)
    elif isinstance(tree, tuple | list):
        for n, a in enumerate(tree):
            yield from leaves_by_name(f"{name}[{n}]", a, depth + 1)
    else:
        yield name, tree
