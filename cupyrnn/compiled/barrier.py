"""A barrier for the threads of a compiled loop, on an atomic counter."""

from __future__ import annotations

import sys
from typing import Any

from numba.core import types

from .simd import I64, on_word, part


@on_word
def add_and_get(builder: Any, place: Any, value: Any) -> Any:
    """Add to the integer at an address, atomically; return its old value."""
    return builder.atomic_rmw("add", place, value, "acq_rel")


@on_word
def exchange(builder: Any, place: Any, value: Any) -> Any:
    """Write an integer to an address, atomically; return the old value."""
    return builder.atomic_rmw("xchg", place, value, "acq_rel")


@on_word
def load_acquire(builder: Any, place: Any) -> Any:
    """Return the integer at an address that another thread may change (an acquire load)."""
    return builder.load_atomic(place, "acquire", 8, typ=I64)


# Reads before a thread yields; yields before it sleeps (after 0.1 ms); microseconds of a sleep.
_SPINS, _TURNS, _SLEEP = 4000, 50, 50


@part
def spin_until(address: int, value: int) -> bool:
    """Spin until a counter reaches `value`; return False if it takes too long."""
    for _ in range(_SPINS):
        if load_acquire(address) >= value:
            return True
    return bool(load_acquire(address) >= value)


if sys.platform == "win32":

    @part
    def wait_for(address: int, value: int) -> None:
        """Return at once: a call has one thread."""

else:
    _give_way: Any = types.ExternalFunction("sched_yield", types.int32())
    _sleep: Any = types.ExternalFunction("usleep", types.int32(types.int32))

    @part
    def wait_for(address: int, value: int) -> None:
        """
        Wait until a counter of another thread reaches `value`.

        A long wait sleeps, so that the system can move another thread to this core. The BLAS's
        threads, for example, spin for 0.1 s after a product.
        """
        turns = 0
        while not spin_until(address, value):
            if turns < _TURNS:
                _give_way()
                turns += 1
            else:
                _sleep(_SLEEP)


@part
def arrive_and_wait(counter: int, threads: int, turn: int) -> int:
    """Wait until all threads have arrived for the turn-th time; return the next turn."""
    if threads > 1:
        add_and_get(counter, 1)
        wait_for(counter, threads * turn)
    return turn + 1
