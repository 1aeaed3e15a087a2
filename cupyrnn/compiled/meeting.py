"""
How threads in compiled loops wait for each other: words that they add to and look at.
"""

from __future__ import annotations

import sys
from typing import Any

from numba.core import types

from .simd import I64, on_word, part


@on_word
def add_and_get(builder: Any, place: Any, value: Any) -> Any:
    """Add to the integer at an address at once; return what it was."""
    return builder.atomic_rmw("add", place, value, "acq_rel")


@on_word
def exchange(builder: Any, place: Any, value: Any) -> Any:
    """Write an integer to an address; return at once what it was."""
    return builder.atomic_rmw("xchg", place, value, "acq_rel")


@on_word
def look_at(builder: Any, place: Any) -> Any:
    """Return the integer at an address, which another thread may change."""
    return builder.load_atomic(place, "acquire", 8, typ=I64)


# How often a thread looks before it gives way, how often it gives way before it sleeps, 0.1 ms in
# all, and for how many microseconds.
_SPINS, _TURNS, _SLEEP = 4000, 50, 50


@part
def came_to(address: int, value: int) -> bool:
    """Wait for an integer that another thread raises; return whether it did so soon."""
    for _ in range(_SPINS):
        if look_at(address) >= value:
            return True
    return bool(look_at(address) >= value)


if sys.platform == "win32":

    @part
    def wait_for(address: int, value: int) -> None:
        """Wait for nobody: a call has one thread."""

else:
    _give_way: Any = types.ExternalFunction("sched_yield", types.int32())
    _sleep: Any = types.ExternalFunction("usleep", types.int32(types.int32))

    @part
    def wait_for(address: int, value: int) -> None:
        """
        Wait until another thread has raised an integer so far.

        Who waits for long sleeps: a processor that nobody wants is given to a thread that has to
        share another one, the BLAS's threads for example, which spin for 0.1 s after a product.
        """
        turns = 0
        while not came_to(address, value):
            if turns < _TURNS:
                _give_way()
                turns += 1
            else:
                _sleep(_SLEEP)


@part
def meet(counter: int, threads: int, turn: int) -> int:
    """Wait until so many threads are here for the turn-th time; return the next turn."""
    if threads > 1:
        add_and_get(counter, 1)
        wait_for(counter, threads * turn)
    return turn + 1
