"""Times of calls on a device, by CUDA events."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

ENOUGH = 50  # repetitions; medians of fewer are marked


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


FULL = Limits(ENOUGH, 0.8, 20, 0.3, 0.05, math.inf)
QUICK = Limits(15, 0.15, 8, 0.1, 0.01, math.inf)
ONCE = Limits(1, 0.0, 1, 0.0, 0.0, math.inf)


class Run(NamedTuple):
    """One call to time, on one set of inputs."""

    call: Callable[[Any], Any]
    before: Callable[[], Any] = lambda: None  # untimed; its result is the argument of the call


class Job(NamedTuple):
    """What one contestant does in one pass, and what of it is timed with a full queue."""

    runs: list[Run]  # one for each set of inputs
    sample: list[Run] | None = None  # a shorter run for the queue; None: the same
    scale: float = 1.0  # from the time of the sample to that of the run


# clock64 counts cycles of at most 2 GHz on the devices this is for, so it waits long enough.
SPIN = r"""
extern "C" __global__ void spin(long long cycles)
{
    const long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""
_CYCLES_PER_SECOND = 2e9
_LONGEST_SPIN = 0.15  # seconds


class Timer:
    """Times calls that enqueue work on CuPy's current stream, with CUDA events."""

    def __init__(self, cupy: Any, limits: Limits) -> None:
        self.cupy, self.limits = cupy, limits
        self.start, self.stop, self.idle = (cupy.cuda.Event() for _ in range(3))
        self.spin = cupy.RawKernel(SPIN, "spin")

    def synchronize(self) -> None:
        self.cupy.cuda.runtime.deviceSynchronize()

    def keep_busy(self, seconds: float) -> None:
        """Have the device wait, so that what is enqueued next is there before its turn comes."""
        cycles = min(seconds, _LONGEST_SPIN) * _CYCLES_PER_SECOND
        self.spin((1,), (1,), (np.int64(cycles),))

    def elapsed(self, start: Any, stop: Any) -> float:
        stop.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, stop))

    def warm_up(self, runs: list[Run]) -> None:
        """Run every set once, then on until the clocks are up."""
        end = time.perf_counter() + self.limits.warm_up
        for run in runs:
            run.call(run.before())
        self.synchronize()
        while time.perf_counter() < end:
            runs[0].call(runs[0].before())
            self.synchronize()

    def eager(self, runs: list[Run]) -> dict[str, Any]:
        """Return the median of single calls from an idle device, and the host's time for them."""
        times, host = [], []
        end = time.perf_counter() + self.limits.seconds
        for k in range(self.limits.repetitions):
            run = runs[k % len(runs)]
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
        return {
            "eager_ms": statistics.median(times),
            "eager_min_ms": min(times),
            "eager_max_ms": max(times),
            "repetitions": len(times),
            "host_ms": statistics.median(host),
        }

    def queued(self, job: Job, host_ms: float) -> dict[str, Any]:
        """
        Return the median of calls whose launches were all enqueued before the device began.

        A kernel that only waits keeps the device busy meanwhile. `idle` is recorded before it, on
        an idle device; where the host needed less time from there on than the wait took, no launch
        came late.
        """
        runs = job.sample or job.runs
        wait = 1.5e-3 * host_ms / job.scale + 5e-4
        ahead, behind = [], []
        doublings = 3
        end = time.perf_counter() + self.limits.queued_seconds
        for k in range(self.limits.queued_repetitions):
            run = runs[k % len(runs)]
            state = run.before()
            self.synchronize()
            begin = time.perf_counter()
            self.idle.record()
            self.keep_busy(wait)
            self.start.record()
            result = run.call(state)
            self.stop.record()
            host = 1e3 * (time.perf_counter() - begin)
            time_ms = self.elapsed(self.start, self.stop) * job.scale
            if host < self.elapsed(self.idle, self.start):
                ahead.append(time_ms)
            else:
                behind.append(time_ms)
                if doublings:
                    wait, doublings = 2 * wait, doublings - 1
            del result, state
            if k >= 4 and time.perf_counter() > end:
                break
        return {"queued_ms": statistics.median(ahead or behind), "queued_is_bound": not ahead}

    def host_per_step(self, runs_of: Callable[[int], Run], T: int) -> float:
        """Return the microseconds of the host for each step more: what is per call drops out."""
        most = min(T, 64)
        host = []
        for steps in (most // 2, most):
            run, times = runs_of(steps), []
            for _ in range(3 + min(15, self.limits.repetitions)):
                self.synchronize()
                begin = time.perf_counter()
                run.call(run.before())
                times.append(time.perf_counter() - begin)
            host.append(statistics.median(times[3:]))
        self.synchronize()
        return 1e6 * (host[1] - host[0]) / (most - most // 2)

    def memory(self, run: Run) -> dict[str, int]:
        """
        Return the bytes that a call takes from an empty pool.

        A pool keeps what it got from the device, so its total is the peak of the call; what is
        still used at the end are the results.
        """
        pool = self.cupy.cuda.MemoryPool()
        with self.cupy.cuda.using_allocator(pool.malloc):
            result = run.call(run.before())
            self.synchronize()
            sizes = {"peak_bytes": int(pool.total_bytes()), "result_bytes": int(pool.used_bytes())}
            del result
        pool.free_all_blocks()
        return sizes

    def measure(self, job: Job) -> dict[str, Any]:
        """Return both times; the queued one may fail and leaves the other."""
        gc.disable()  # a collection in the middle of a call would count as launch time
        try:
            self.warm_up(job.runs)
            row = self.eager(job.runs)
            try:
                row |= self.queued(job, row["host_ms"])
            except Exception as error:
                row["errors"] = [f"queued: {describe(error)}"]
        finally:
            gc.enable()
        return row


def describe(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
