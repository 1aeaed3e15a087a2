"""Handles of cuDNN, and the descriptors and generator states that each keeps between calls."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# The most configurations with descriptors; each may hold a few MB of generator states.
_DESCRIBED = 8
# The most seeds whose initial generator states are kept.
_SEEDED = 2


class RecentlyUsed(Generic[T]):
    """A cache of the most recently used entries, by key."""

    def __init__(self, most: int, drop: Callable[[T], None] = lambda _: None) -> None:
        self._most, self._drop = most, drop
        self._things: dict[Hashable, T] = {}  # the least recently used first

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the entry of a key; make a missing one, and drop the least recently used."""
        thing = self._things.pop(key) if key in self._things else make()
        self._things[key] = thing
        while len(self._things) > self._most:
            self._drop(self._things.pop(next(iter(self._things))))
        return thing

    def clear(self) -> None:
        while self._things:
            self._drop(self._things.popitem()[1])


class Handle:
    """A handle, its descriptors and the states of its generators."""

    def __init__(self, address: int, destroy: Callable[[int], None]) -> None:
        self.address, self._destroy = address, destroy
        self.described: RecentlyUsed[Any] = RecentlyUsed(
            _DESCRIBED, lambda descriptors: descriptors.close()
        )
        self.seeded: RecentlyUsed[Any] = RecentlyUsed(_SEEDED)

    def __del__(self) -> None:
        # When the interpreter ends, CUDA may have ended before.
        if not sys.is_finalizing():
            self.described.clear()
            self._destroy(self.address)


class Handles:
    """A handle for each thread and device, destroyed when the thread ends."""

    def __init__(self, create: Callable[[], int], destroy: Callable[[int], None]) -> None:
        self._create, self._destroy = create, destroy
        self._owned = threading.local()

    def get(self, device: int) -> Handle:
        """Return this thread's handle of a device, which must be the current one."""
        handles: dict[int, Handle] = self._owned.__dict__.setdefault("handles", {})
        if device not in handles:
            handles[device] = Handle(self._create(), self._destroy)
        return handles[device]
