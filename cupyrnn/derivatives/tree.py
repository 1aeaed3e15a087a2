"""Nested structures of arrays: tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..checks.attributes import shown

# The deepest structure allowed: Python's stack overflows somewhat later.
_DEEPEST = 100


def _rebuilt(tree: Any, parts: Any) -> Any:
    """Return a structure like `tree` with other parts."""
    kind = type(tree)
    if kind in (tuple, list):
        return kind(parts)
    if hasattr(tree, "_make"):
        return tree._make(parts)
    if isinstance(tree, tuple):
        return kind(parts)
    import copy  # imported here because few calls need it

    # A copy, because a subclass may hold more than its items, such as a defaultdict's factory.
    other = copy.copy(tree)
    if isinstance(tree, dict):
        for key, a in zip(list(tree), parts, strict=True):
            other[key] = a
    else:
        other[:] = parts
    return other


def tree_map(f: Callable[..., Any], tree: Any, *others: Any, depth: int = 0) -> Any:
    """Apply f to each leaf of a structure of tuples, named tuples, lists and dicts."""
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
    """Yield each leaf of a structure with its name, such as "primals[0]['w']"."""
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
