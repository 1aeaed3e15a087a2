"""
Threads that compute parts of one call: how many, and how they are handed their parts.

As many as the BLAS of NumPy has, so that whoever limits that limits these: threadpoolctl, where it
is installed, says how many it has now; otherwise the environment says how many it began with. A
call that comes while another one has the threads is computed in its own.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# What NumPy's BLAS reads, in its order.
_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


@functools.cache
def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))  # those this process may use
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


@functools.cache
def _blas() -> Callable[[], int | None] | None:
    """Return what tells the threads of NumPy's BLAS, None without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController

        found = ThreadpoolController().select(user_api="blas").lib_controllers
    except Exception:  # It is not installed, or does not work here.
        return None
    # NumPy's is loaded first; SciPy may bring another one.
    chosen = [lib for lib in found if "numpy" in lib.filepath] or found
    get: Callable[[], int | None] | None = chosen[0].get_num_threads if chosen else None
    return get


@functools.cache
def _from_environment() -> int:
    for name in _VARIABLES:
        text = os.environ.get(name, "")
        if text.isdigit() and int(text):
            return min(int(text), _cores())
    return _cores()


def count() -> int:
    """Return how many threads a call may have."""
    get = _blas()
    found = None if get is None else get()
    return max(1, found or _from_environment())


class _Crew:
    """Threads that sleep until there is a part for them, as many as were ever asked for."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self._parts: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]]
        self._parts, self._done = queue.SimpleQueue(), queue.SimpleQueue[bool]()
        self._size = 0

    def run(self, n: int, function: Callable[..., None], meeting: Any, *args: Any) -> None:
        """Call function(k, n, *args) for all k < n at once, this thread that of k = 0."""
        while self._size < n - 1:
            threading.Thread(target=self._work, name="cupyrnn", daemon=True).start()
            self._size += 1
        begun = 0
        try:
            for k in range(1, n):
                self._parts.put((function, (k, n, *args)))
                begun = k
            function(0, n, *args)
        except BaseException:
            # Ctrl-C before this thread's part: the others, who wait for it, are to go on. What they
            # write is lost.
            meeting[...] = 2**62
            raise
        finally:
            error = None
            while begun:
                try:
                    self._done.get()
                    begun -= 1
                except BaseException as interrupt:  # They use the arguments, which are to stay.
                    error = interrupt
            if error is not None:
                raise error

    def _work(self) -> None:
        while True:
            function, args = self._parts.get()
            try:
                function(*args)
            finally:
                self._done.put(True)
            del function, args


_crew = _Crew()


def _after_fork() -> None:
    """A child has no threads but one."""
    global _crew
    _crew = _Crew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def claimed() -> Iterator[int]:
    """Hold the threads, if they are free; gives how many a call may have."""
    crew = _crew
    if not crew.busy.acquire(blocking=False):
        yield 1
        return
    try:
        yield count()
    finally:
        crew.busy.release()


def run(n: int, function: Callable[..., None], meeting: Any, *args: Any) -> None:
    """
    Call function(k, n, *args) for all k < n; more than one thread has to be claimed.

    Parameters
    ----------
    meeting
        The array of integers at which they wait for each other, zeros.
    """
    if n > 1:
        _crew.run(n, function, meeting, *args)
    else:
        function(0, 1, *args)
