"""Handles of cuDNN, and the descriptors and generator states that each keeps between calls."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from ..checks.arrays import address
from .descriptors import CudnnCall, Lengths

T = TypeVar("T")
Enter: TypeAlias = Callable[[AbstractContextManager[int]], int]

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


@cache
def handles(library: Any) -> Handles:
    """Return the handles of a library."""
    return Handles(
        lambda: library.create("cudnnCreate"), lambda handle: library.call("cudnnDestroy", handle)
    )


class Descriptors:
    """
    The descriptors of cuDNN for all calls that differ only in addresses and seeds.

    Attributes
    ----------
    params_bytes, work_bytes, reserve_bytes : int
        The sizes of the memory that a call needs; `reserve_bytes` is 0 in inference.
    """

    params_bytes: int
    work_bytes: int
    reserve_bytes: int
    # The calls, which take addresses.
    forward: Callable[..., None]
    backward_data: Callable[..., None]
    backward_weights: Callable[..., None]

    def __init__(
        self, library: Any, handle: Handle, run: CudnnCall, dtype_name: str, lengths: Lengths
    ) -> None:
        self._library, self._call = library, library.call
        self._seeded, self.handle, self._rate = handle.seeded, handle.address, run.sizes.dropout
        with ExitStack() as stack:
            self._dropout = stack.enter_context(self._dropout_of(run))
            self._describe(stack.enter_context, run, dtype_name, lengths)
            self._open = stack.pop_all()

    def _describe(self, enter: Enter, run: CudnnCall, dtype_name: str, lengths: Lengths) -> None:
        """Make all descriptors but that of dropout."""
        raise NotImplementedError

    def close(self) -> None:
        """Destroy the descriptors."""
        self._open.close()

    def _dropout_of(self, run: CudnnCall) -> Any:
        if not run.drops:
            return self._library.dropout(self.handle, 0.0, 0, 0, 0)
        import cupy

        size = self._library.dropout_states_size(self.handle)
        # `begin` fills them. In a backward call nothing reads them: the mask is in the reserve.
        self._states = cupy.empty(size, np.uint8)
        return self._library.dropout(self.handle, self._rate, address(self._states), size, None)

    def begin(self, seed: int | None) -> None:
        """Use the current stream for the next calls, and `seed` for the dropout masks."""
        import cupy

        stream = cupy.cuda.get_current_stream().ptr
        self._call("cudnnSetStream", self.handle, stream)
        if seed is not None:
            # Drawing changes the states, and a copy costs less than new ones.
            self._states[...] = self._seeded.get((stream, seed), lambda: self._initial(seed))

    def _initial(self, seed: int) -> Any:
        """Return the generator's states for a seed before anything is drawn."""
        import cupy

        states = cupy.empty(self._states.size, np.uint8)
        with self._library.dropout(self.handle, self._rate, address(states), states.size, seed):
            return states
