"""
What else holds for a right call: interrupted, and by two threads.

An interrupt comes at a random moment of the call, as Ctrl-C does; the same call again is right.
"""

from __future__ import annotations

import gc
import importlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from . import Call, Failure, arrays_in, leaves, perform, same_bits

# Two threads.


class _Drawn(threading.local):
    most = threads = 1
    may_have = staticmethod(lambda: _drawn.threads)  # what the package says of a call's


_drawn = _Drawn()


def draw_threads(rng: np.random.Generator) -> None:
    """Have the next calls of this thread computed by one thread or, where work is shared, two."""
    _drawn.threads = int(rng.integers(1, _Drawn.most + 1))


def share_all_work(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have compiled loops ask what was drawn for their threads, however little they compute."""
    plan, single, threads = (
        importlib.import_module(f"cupyrnn.compiled.{n}") for n in ("plan", "single", "threads")
    )
    for module, name in ((plan, "_LEAST_WORK"), (plan, "_SMALL_MATRIX"), (single, "_LEAST_WORK")):
        if not hasattr(module, name):
            raise Failure(f"say in tests/fuzz how {module.__name__} is to share little work")
        patch(module, name, 0)
    patch(threads, "count", lambda: _drawn.threads)
    patch(_Drawn, "may_have", staticmethod(threads.most))
    patch(_Drawn, "most", 2)


# Interrupts.


def can_interrupt() -> bool:
    """Return whether a call of this thread can be interrupted at a chosen moment."""
    main = threading.current_thread() is threading.main_thread()
    return main and sys.platform.startswith("linux")


class _Alarm:
    """Raises KeyboardInterrupt once, as Ctrl-C would, in what runs then."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._armed = max(seconds, 1e-6), True

    def __call__(self, *_: object) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    def interrupts(self, function: Callable[[], object]) -> bool:
        """Call a function, and return whether it was interrupted."""
        before, collects = signal.signal(signal.SIGALRM, self), gc.isenabled()
        gc.disable()  # What others have it call would be interrupted, and lose the interrupt.
        try:
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
            function()
            self._armed = False
        except KeyboardInterrupt:
            return True
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if collects:
                gc.enable()
        return False


def check_interrupted(rng: np.random.Generator, call: Call) -> None:
    """Interrupt a call at random moments: its arguments are as before, and the next is right."""

    def once() -> Any:
        return call.function(**call.arguments)

    inputs, state = arrays_in(call.arguments), np.geterr()
    before = [np.asarray(a).tobytes() for a in inputs]
    begin = time.perf_counter()
    expected = once()
    took = time.perf_counter() - begin
    for _ in range(4):
        try:
            _Alarm(rng.random() * took).interrupts(once)
        except Exception as error:
            raise Failure(f"interrupted, it raised {type(error).__name__}") from error
        np.seterr(**state)  # NumPy's own context manager can be interrupted too
        if any(np.asarray(a).tobytes() != old for a, old in zip(inputs, before, strict=True)):
            raise Failure("an argument was written to before an interrupt")
        if _drawn.may_have() != _drawn.threads:
            raise Failure("calls after an interrupt have one thread")
        again = perform(call)
        if isinstance(again, Exception):
            raise Failure("after an interrupt a right call is refused") from again
        for (n, a), (_, e) in zip(leaves(again), leaves(expected), strict=True):
            if isinstance(a, np.ndarray) and not same_bits(a, e):
                raise Failure(f"{n} is another after an interrupt")


def check_circumstances(rng: np.random.Generator, call: Call) -> None:
    """Check what is drawn of a right call that was checked by itself."""
    if can_interrupt() and rng.random() < 0.3:
        check_interrupted(rng, call)
