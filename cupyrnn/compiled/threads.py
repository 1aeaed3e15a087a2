"""
Threads that compute the parts of one call.

There are as many as NumPy's BLAS has, so a limit of the BLAS also limits these. Only one call can
use the threads at a time; any other call runs in the thread that made it. A caller prepares its
arguments for n threads, and again for one if the threads are taken::

    most = threads.most()
    while True:
        ...                   # lay out for n threads, at most that many
        threads.wake(n)       # optional: waking takes time, so do it before preparing the rest
        ...
        if threads.run(n, loop, double, block.words_for(arrays)):
            break
        most = 1

``loop`` is the address of a compiled loop (``cache.compiled``). `simd.call_of` reads its three
arguments: the number of the thread, the number of threads, and the address of the call's words.

One compiled call takes the threads, runs the parts, waits, and releases the threads. No Python
statement is in between, so an interrupt can neither leave the threads taken nor free memory that
they still write. The threads belong to the system and know nothing of Python. Between their parts
they sleep, on memory that is never freed. So calls also work while the interpreter ends.

On Windows, where this never ran, a call has one thread.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from ..arithmetic.blas import count
from .addresses import Words, relocate
from .barrier import add_and_get, exchange, load_acquire, spin_until, wait_for
from .cache import compiled_callback, compiled_function
from .simd import CALLBACK_OPTIONS, OPTIONS, call, part, read_word, write_word

# The most threads of a call; how many parts a thread computes before it looks for an idle core
# again.
_MOST, _PATIENCE = 256, 7
# Offsets of the words that threads share: whether a call has the threads, and their number; of the
# job, the loop's address, the number of threads, the argument, whether it is float64, and how many
# threads are done; the caller's core, the number of cores, and the name of a file. Behind them each
# thread has its own words: a lock and a condition of the system (128 bytes are enough everywhere),
# how many parts it got, how often it was woken early, its number, the address of the shared words,
# its system handle, and the words of `_leave`.
_TAKEN, _SIZE, _LOOP, _N, _ARGUMENT, _DOUBLE, _DONE = 0, 64, 128, 136, 144, 152, 192
_CPU, _CPUS, _FILE = 256, 264, 320
_OWN, _CONDITION, _PARTS, _WAKE_UPS, _K, _JOB, _NAME = 1024, 128, 256, 320, 384, 392, 400
_STAYS, _LEFT, _TEXT, _MASK = 448, 456, 512, 576

_POSIX = sys.platform != "win32"
_int64 = types.int64
_external: Any = types.ExternalFunction
_lock = _external("pthread_mutex_lock", types.int32(_int64))
_unlock = _external("pthread_mutex_unlock", types.int32(_int64))
_signal = _external("pthread_cond_signal", types.int32(_int64))
_sleep = _external("pthread_cond_wait", types.int32(_int64, _int64))
_make_lock = _external("pthread_mutex_init", types.int32(_int64, _int64))
_make_condition = _external("pthread_cond_init", types.int32(_int64, _int64))
_make_thread = _external("pthread_create", types.int32(_int64, _int64, _int64, _int64))


@part
def _call(k: int, n: int, loop: int, double: int, argument: int) -> None:
    """Compute part k of n."""
    if double:
        call(loop, np.float64(1), (k, n, argument))
    else:
        call(loop, np.float32(1), (k, n, argument))


@part
def _raise(own: int, word: int) -> None:
    """Add 1 to a word that a thread waits for, and wake the thread."""
    _lock(own)
    add_and_get(own + word, 1)
    _signal(own + _CONDITION)
    _unlock(own)


if sys.platform == "linux":
    _core = _external("sched_getcpu", types.int32())
    _get_mask = _external("sched_getaffinity", types.int32(types.int32, _int64, _int64))
    _set_mask = _external("sched_setaffinity", types.int32(types.int32, _int64, _int64))
    _open = _external("open", types.int32(_int64, types.int32))
    _read = _external("read", _int64(types.int32, _int64, _int64))
    _close = _external("close", types.int32(types.int32))
    _next = _external("strchr", _int64(_int64, types.int32))
    _number = _external("strtol", _int64(_int64, _int64, types.int32))

    @part
    def _running(own: int, file: int) -> int:
        """Return the number of runnable threads, from a line 0.00 0.00 0.00 RUNNING/ALL 0."""
        opened, place = _open(file, 0), own + _TEXT
        length = _read(opened, place, 63)  # the byte after it stays zero
        _close(opened)
        for _ in range(3 if length > 0 else 0):
            place = _next(place, 32) + 1
        return _number(place, 0, 10) if length > 0 else 1 << 32

    @part
    def _note_core(job: int) -> None:
        """Store the core of the caller."""
        write_word(job + _CPU, _core())

    @part
    def _leave(own: int, job: int) -> None:
        """
        Leave the caller's core if another one is idle.

        The system wakes a thread on the core of the thread that wakes it. In virtual machines it
        stays there for milliseconds, even if other cores are idle. If two threads share a core, and
        there are at most as many runnable threads as cores, another core is idle.
        """
        core = read_word(job + _CPU)
        if _core() != core or core >= 1024:
            return
        if read_word(own + _STAYS) > 0:
            write_word(own + _STAYS, read_word(own + _STAYS) - 1)
            return
        if _running(own, job + _FILE) > read_word(job + _CPUS):
            write_word(own + _STAYS, _PATIENCE)
            return
        if _get_mask(0, 128, own + _MASK) == 0:
            word = own + _MASK + core // 64 * 8
            allowed = read_word(word)
            write_word(word, allowed & ~(1 << core % 64))
            if _set_mask(0, 128, own + _MASK) == 0:  # this fails if no other core is allowed
                write_word(word, allowed)
                _set_mask(0, 128, own + _MASK)
                write_word(own + _LEFT, read_word(own + _LEFT) + 1)

else:

    @part
    def _note_core(job: int) -> None:
        """Do nothing: this system does not report the core."""

    @part
    def _leave(own: int, job: int) -> None:
        """Do nothing."""


@part
def _wait_for_part(own: int, job: int, turn: int, wake_ups: int) -> int:
    """Wait for the turn-th part: sleep, and spin for a while after an early wake-up."""
    while True:
        _lock(own)
        while load_acquire(own + _PARTS) < turn and load_acquire(own + _WAKE_UPS) == wake_ups:
            _sleep(own + _CONDITION, own)
        _unlock(own)
        _leave(own, job)
        wake_ups = load_acquire(own + _WAKE_UPS)
        if spin_until(own + _PARTS, turn):
            return wake_ups


def _serve(own: int) -> None:
    """Compute parts forever: the body of a thread."""
    k, job, turn, wake_ups = read_word(own + _K), read_word(own + _JOB), 0, 0
    while True:
        turn += 1
        wake_ups = _wait_for_part(own, job, turn, wake_ups)
        n, loop = read_word(job + _N), read_word(job + _LOOP)
        _call(k, n, loop, read_word(job + _DOUBLE), read_word(job + _ARGUMENT))
        add_and_get(job + _DONE, 1)


@part
def _have(job: int, serve: int, size: int) -> bool:
    """Start threads until there are `size` besides the caller; return whether that worked."""
    for k in range(load_acquire(job + _SIZE) + 1, size + 1):
        own = job + k * _OWN
        _make_lock(own, 0)
        _make_condition(own + _CONDITION, 0)
        write_word(own + _K, k)
        write_word(own + _JOB, job)
        if _make_thread(own + _NAME, 0, serve, own) != 0:
            return False
        add_and_get(job + _SIZE, 1)
    return True


def _wake_threads(job: int, n: int) -> None:
    """Wake the first n - 1 threads, if they exist, because they will get parts soon."""
    _note_core(job)
    for k in range(1, min(n, load_acquire(job + _SIZE) + 1)):
        _raise(job + k * _OWN, _WAKE_UPS)


def _run(job: int, serve: int, n: int, loop: int, double: int, block: int, arrays: int) -> bool:
    """Compute part 0 of a call here, the others in n - 1 threads; return whether that worked."""
    argument = relocate(block, arrays)
    if n == 1:
        _call(0, 1, loop, double, argument)
        return True
    if exchange(job + _TAKEN, 1):
        return False
    there = _have(job, serve, n - 1)
    if there:
        write_word(job + _LOOP, loop)
        write_word(job + _N, n)
        write_word(job + _ARGUMENT, argument)
        write_word(job + _DOUBLE, double)
        write_word(job + _DONE, 0)
        _note_core(job)
        for k in range(1, n):
            _raise(job + k * _OWN, _PARTS)
        _call(0, n, loop, double, argument)
        wait_for(job + _DONE, n - 1)
    exchange(job + _TAKEN, 0)
    return there


@functools.cache
def _compiled(function: Callable[..., Any], result: str, arguments: int) -> Callable[..., Any]:
    return compiled_function(function, getattr(types, result)(*[_int64] * arguments), OPTIONS)


@functools.cache
def _serving() -> int:
    """Return the address of `_serve`, compiled; its code is never freed."""
    code = compiled_callback(_serve, types.void(_int64), CALLBACK_OPTIONS)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))
    address: int = code.address
    return address


def _shared_words() -> int:
    """Allocate the words that threads share, all zero; return their address, 0 if that fails."""
    if not _POSIX:
        return 0
    take = ctypes.CDLL(None).calloc
    take.restype, take.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 2
    job = -(-(take(_MOST + 1, _OWN) or 0) // 64) * 64
    if job:
        ctypes.c_int64.from_address(job + _CPUS).value = os.cpu_count() or 1
        ctypes.memmove(job + _FILE, b"/proc/loadavg", 14)
    return job


_job = _shared_words()


def _after_fork() -> None:
    """Start without threads in a child process, which inherits none."""
    global _job
    _job = _shared_words()


if _POSIX:
    os.register_at_fork(after_in_child=_after_fork)


def _word(place: int) -> int:
    return ctypes.c_int64.from_address(_job + place).value if _job else 0


def most() -> int:
    """Return how many threads a call may use: one while another call has them."""
    return 1 if not _job or _word(_TAKEN) else min(count(), _MOST)


def size() -> int:
    """Return how many threads exist, including the caller's."""
    return _word(_SIZE) + 1


def wake(n: int) -> None:
    """Wake the threads of a coming call; they sleep again if it does not come."""
    _compiled(_wake_threads, "void", 2)(_job, n)


@functools.cache
def _compiled_run() -> Callable[..., bool]:
    """Return `_run` compiled; the cache of `_compiled` takes longer."""
    return _compiled(_run, "boolean", 7)


def run(n: int, loop: int, double: int, words: Words) -> bool:
    """
    Run a compiled loop in n threads at once, as thread k of n for each k < n.

    Returns False if it did not run: another call has the threads, or the system has no more.
    """
    serve = _serving() if n > 1 else 0
    return _compiled_run()(_job, serve, n, loop, double, *words)
