"""Times of calls on a device, by CUDA events."""

from __future__ import annotations

import functools
import gc
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from cupyrnn.driver.timing import DeviceTimer

ENOUGH = 30  # repetitions; medians of fewer are marked


class Limits(NamedTuple):
    """What bounds a measurement, by repetitions and by seconds."""

    repetitions: int
    seconds: float
    queued_repetitions: int
    queued_seconds: float
    warm_up: float  # seconds
    deadline: float  # of the whole run, as time.perf_counter() tells it

    def over(self) -> bool:
        return time.perf_counter() > self.deadline


FULL = Limits(ENOUGH, 0.2, 10, 0.1, 0.02, math.inf)
ONCE = Limits(1, 0.0, 1, 0.0, 0.0, math.inf)


class Run(NamedTuple):
    """One call to time."""

    call: Callable[[Any], Any]
    before: Callable[[], Any] = lambda: None  # untimed; its result is the argument of the call


class Timer:
    """Times calls that enqueue work on CuPy's current stream, with CUDA events."""

    def __init__(self, cupy: Any, limits: Limits) -> None:
        self.cupy, self.limits = cupy, limits
        self.device = DeviceTimer()
        self.start, self.stop = self.device.start, self.device.stop
        self.synchronize = self.device.synchronize

    def elapsed(self, start: Any, stop: Any) -> float:
        stop.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, stop))

    def warm_up(self, run: Run) -> None:
        """Run until the clocks are up."""
        end = time.perf_counter() + self.limits.warm_up
        run.call(run.before())
        self.synchronize()
        while time.perf_counter() < end:
            run.call(run.before())
            self.synchronize()

    def eager(self, run: Run) -> dict[str, Any]:
        """Return the median of single calls from an idle device, and the host's time for them."""
        times, host = [], []
        end = time.perf_counter() + self.limits.seconds
        for k in range(self.limits.repetitions):
            state = run.before()
            self.synchronize()
            self.start.record()
            begin = time.perf_counter()
            result = run.call(state)
            host.append(1e3 * (time.perf_counter() - begin))
            self.stop.record()
            times.append(self.elapsed(self.start, self.stop))
            del result, state
            if k >= 4 and time.perf_counter() > end:
                break
        found = {"eager_ms": statistics.median(times), "host_ms": statistics.median(host)}
        return found | {"repetitions": len(times)}

    def queued(self, run: Run, host_ms: float) -> dict[str, Any]:
        """Return the median of calls whose launches were all queued before the device began."""
        wait = 1.5e-3 * host_ms + 5e-4
        ahead, behind = [], []
        doublings = 3
        end = time.perf_counter() + self.limits.queued_seconds
        for k in range(self.limits.queued_repetitions):
            found = self.device.measure(functools.partial(run.call, run.before()), wait)
            (ahead if found.all_queued else behind).append(found.ms)
            if not found.all_queued and doublings:
                wait, doublings = 2 * wait, doublings - 1
            if k >= 4 and time.perf_counter() > end:
                break
        return {"queued_ms": statistics.median(ahead or behind), "queued_is_bound": not ahead}

    def measure(self, run: Run) -> dict[str, Any]:
        """Return both times; the queued one may fail and leaves the other."""
        gc.disable()  # a collection in the middle of a call would count as launch time
        try:
            self.warm_up(run)
            row = self.eager(run)
            try:
                row |= self.queued(run, row["host_ms"])
            except Exception as error:
                row["error"] = f"queued: {describe(error)}"
        finally:
            gc.enable()
        return row


def describe(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
