"""The time of a call on the device alone, by CUDA events, without the time of the host."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

# clock64 counts cycles of about 2 GHz.
SPIN = r"""
extern "C" __global__ void spin(long long cycles)
{
    const long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""
_CYCLES_PER_SECOND = 2e9
_LONGEST_WAIT = 0.15  # seconds


class DeviceTime(NamedTuple):
    """A measurement."""

    ms: float
    host: float  # seconds that the host needed to queue all launches
    all_queued: bool  # before the device began; else `ms` may contain time of the host


class DeviceTimer:
    """Times calls that queue launches on CuPy's current stream."""

    def __init__(self) -> None:
        import cupy

        self.elapsed = cupy.cuda.get_elapsed_time
        self.synchronize = cupy.cuda.runtime.deviceSynchronize
        self.idle, self.start, self.stop = (cupy.cuda.Event() for _ in range(3))
        self.spin = cupy.RawKernel(SPIN, "spin")

    def measure(self, call: Callable[[], Any], wait: float) -> DeviceTime:
        """
        Time a call behind a kernel that keeps the device busy for `wait` seconds.

        `idle` is recorded before that kernel, on an idle device. If the host needed less time from
        there on than the kernel, every launch of the call was queued before the first one began.
        """
        cycles = min(wait, _LONGEST_WAIT) * _CYCLES_PER_SECOND
        self.synchronize()
        begin = perf_counter()
        self.idle.record()
        self.spin((1,), (1,), (np.int64(cycles),))
        self.start.record()
        called = perf_counter()
        result = call()
        self.stop.record()
        end = perf_counter()
        self.stop.synchronize()
        del result  # not earlier: freeing it would be part of the host's time
        ms = float(self.elapsed(self.start, self.stop))
        queued = 1e3 * (end - begin) < self.elapsed(self.idle, self.start)
        return DeviceTime(ms, end - called, queued)
