"""
Threads that compute parts of one call: how many, and how they are handed their parts.

As many as the BLAS of NumPy has, so that whoever limits that limits these. A call that comes while
another one has the threads is computed in its own.

A thread lives in compiled code, without the interpreter's lock: it sleeps until it is woken, waits
for its part, computes it, says so and sleeps again. It is woken when a call begins, as waking takes
longer than what the call still prepares.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core import types

from ..arithmetic.blas import cores, count
from .cache import compiled_function
from .meeting import add_and_get, came_to, look_at, wait_for
from .simd import OPTIONS, call_loop, part, read_word, write_word

if TYPE_CHECKING:
    from .._arrays import Array

# Words that threads share, where compiled code finds them. Of the job: the loop's address, its
# threads, its argument, whether it is for float64, how many threads are awake for it, and how many
# are done. Each thread has words of its own behind: a lock and a condition of the system's, for
# which 128 bytes are enough everywhere, how often it was woken, and how often it could begin.
_LOOP, _N, _ARGUMENT, _DOUBLE, _AWAKE, _DONE = 0, 8, 16, 24, 32, 128
_SLEEPER, _CONDITION, _WOKEN, _MAY_BEGIN = 512, 128, 256, 320

_int64 = types.int64
_external: Any = types.ExternalFunction
if sys.platform == "win32":
    _lock = _external("AcquireSRWLockExclusive", types.void(_int64))
    _unlock = _external("ReleaseSRWLockExclusive", types.void(_int64))
    _signal = _external("WakeConditionVariable", types.void(_int64))
    _sleep = _external(
        "SleepConditionVariableSRW", types.int32(_int64, _int64, types.int32, types.int32)
    )

    @part
    def _make(own: int) -> None:
        """Make the lock and the condition of a thread: zeros, which they are."""

    @part
    def _wait(own: int) -> None:
        """Sleep until there is a signal, or for no reason."""
        _sleep(own + _CONDITION, own, -1, 0)

else:
    _lock = _external("pthread_mutex_lock", types.int32(_int64))
    _unlock = _external("pthread_mutex_unlock", types.int32(_int64))
    _signal = _external("pthread_cond_signal", types.int32(_int64))
    _sleep = _external("pthread_cond_wait", types.int32(_int64, _int64))
    _make_lock = _external("pthread_mutex_init", types.int32(_int64, _int64))
    _make_condition = _external("pthread_cond_init", types.int32(_int64, _int64))

    @part
    def _make(own: int) -> None:
        """Make the lock and the condition of a thread."""
        _make_lock(own, 0)
        _make_condition(own + _CONDITION, 0)

    @part
    def _wait(own: int) -> None:
        """Sleep until there is a signal, or for no reason."""
        _sleep(own + _CONDITION, own)


@part
def _call(k: int, n: int, loop: int, double: int, argument: int) -> None:
    """Compute a part."""
    if double:
        call_loop(loop, k, n, np.float64(1), argument)
    else:
        call_loop(loop, k, n, np.float32(1), argument)


@part
def _raise(own: int, word: int) -> None:
    """Add 1 to a word that a thread waits for."""
    _lock(own)
    add_and_get(own + word, 1)
    _signal(own + _CONDITION)
    _unlock(own)


@part
def _sleep_until(own: int, word: int, value: int) -> None:
    """Wait until a word has a value, asleep."""
    _lock(own)
    while look_at(own + word) < value:
        _wait(own)
    _unlock(own)


def _prepare(job: int, size: int) -> None:
    """Make the locks and conditions of threads."""
    for k in range(1, size + 1):
        _make(job + k * _SLEEPER)


def _serve(k: int, job: int) -> None:
    """What the k-th thread does for ever."""
    own, turn = job + k * _SLEEPER, 0
    while True:
        turn += 1
        _sleep_until(own, _WOKEN, turn)
        if not came_to(own + _MAY_BEGIN, turn):
            _sleep_until(own, _MAY_BEGIN, turn)
        loop, n = read_word(job + _LOOP), read_word(job + _N)
        if loop and k < n:
            _call(k, n, loop, read_word(job + _DOUBLE), read_word(job + _ARGUMENT))
        add_and_get(job + _DONE, 1)


def _wake(n: int, job: int) -> None:
    """Wake the threads that compute a call with this one, those that are not awake for it."""
    for k in range(max(1, read_word(job + _AWAKE)), n):
        _raise(job + k * _SLEEPER, _WOKEN)
        write_word(job + _AWAKE, k + 1)


def _run(n: int, job: int, loop: int, double: int, argument: int) -> None:
    """Have those who are awake compute their parts, this thread that of 0; without a loop, none."""
    awake = max(1, read_word(job + _AWAKE))
    write_word(job + _LOOP, loop)
    write_word(job + _N, n)
    write_word(job + _ARGUMENT, argument)
    write_word(job + _DOUBLE, double)
    write_word(job + _DONE, 0)
    for k in range(1, awake):
        _raise(job + k * _SLEEPER, _MAY_BEGIN)
    if loop:
        _call(0, n, loop, double, argument)
    wait_for(job + _DONE, awake - 1)
    write_word(job + _AWAKE, 1)


def _alone(loop: int, double: int, argument: int) -> None:
    """Compute a call in this thread."""
    _call(0, 1, loop, double, argument)


_ARGUMENTS = {_prepare: 2, _serve: 2, _wake: 2, _run: 5, _alone: 3}


@functools.cache
def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    compiled: Callable[..., None]
    compiled = compiled_function(function, types.void(*[_int64] * _ARGUMENTS[function]), OPTIONS)
    return compiled


class _Crew:
    """The threads, as many as were ever asked for."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.size, self.job = 0, 0
        self._capacity, self._memory = 0, np.empty(0, np.int64)

    def grow(self, size: int) -> None:
        """Have so many threads besides the caller's."""
        if size > self._capacity:  # Those there are go on sleeping by their own memory.
            self.size, self._capacity = 0, max(size, cores())
            self._memory = np.zeros((self._capacity + 2) * _SLEEPER // 8, np.int64)
            self.job = -(-self._memory.__array_interface__["data"][0] // 64) * 64
            _compiled(_prepare)(self.job, self._capacity)
        try:
            while self.size < size:
                args = (self.size + 1, self.job, self._memory)
                threading.Thread(target=_work, args=args, name="cupyrnn", daemon=True).start()
                self.size += 1
        except BaseException:  # It may have been started all the same: begin anew.
            self.size = self._capacity = 0
            raise


def _work(k: int, job: int, memory: Any) -> None:
    """Be a thread; the memory is held for as long as it looks at it, the interpreter's end too."""
    _compiled(_serve)(k, job)


_crew = _Crew()


def _after_fork() -> None:
    """A child has no threads but one."""
    global _crew
    _crew = _Crew()
    _helpers.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _helpers(n: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n - 1, thread_name_prefix="cupyrnn")


class Claim:
    """The threads for one call, if they are free: a context."""

    def __enter__(self) -> Claim:
        self._crew = _crew
        self._held = self._crew.busy.acquire(blocking=False)
        return self

    def most(self) -> int:
        """Return how many a call may have."""
        return count() if self._held else 1

    def wake(self, n: int) -> bool:
        """Wake as many as will compute a call; return whether there are so many."""
        if n > 1:
            if self._crew.size < n - 1:
                try:
                    self._crew.grow(n - 1)
                except Exception:  # The system has no more of them, or not what wakes them.
                    return False
            _compiled(_wake)(n, self._crew.job)
        return True

    def run(self, n: int, loop: int, double: bool, argument: int) -> None:
        """Call the compiled loop(k, n, 1, argument) for all k < n at once, who are awake."""
        if n > 1:
            _compiled(_run)(n, self._crew.job, loop, double, argument)
        else:
            _compiled(_alone)(loop, double, argument)

    def share(self, n: int, function: Callable[..., None], meeting: Array, *args: Any) -> None:
        """
        Call function(k, n, *args) for all k < n at once, by threads that wait in Python.

        For a compiled function of arrays, which has no address that could be called.

        Parameters
        ----------
        meeting
            The integer at which they wait for each other, zero.
        """
        begun = [_helpers(n).submit(function, k, n, *args) for k in range(1, n)]
        try:
            function(0, n, *args)
        except BaseException:
            # Ctrl-C before this thread's part: the others, who wait for it, are to go on. What they
            # write is lost.
            meeting[...] = 2**62
            raise
        finally:
            wait(begun)

    def __exit__(self, *error: object) -> None:
        if self._held:
            if error[0] is not None and self._crew.job:  # They may be awake for nothing.
                _compiled(_run)(1, self._crew.job, 0, False, 0)
            self._crew.busy.release()
