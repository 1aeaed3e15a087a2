"""
How calls are timed beside each other.

Contestants take turns, one block of calls each a round, so that what slows the machine for a while
slows them all. A ratio is taken within a round; its interval comes from the rounds.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

PASSES = FORWARD, BACKWARD, BOTH = ("forward", "backward", "forward+backward")


class Contestant(NamedTuple):
    """Two calls that are timed, and their results as NumPy arrays by cupyrnn's names."""

    name: str
    forward: Callable[[], Any]
    backward: Callable[[Any], Any]  # of what forward returned
    results: Callable[[Any, Any], dict[str, Any]]  # of what forward and backward returned
    # Left out where that one's calls are long: it has the same kernels, and another way to them.
    unless_long: str = ""


# Threads that wait for more work occupy a processor: those of NumPy's OpenBLAS for 2**28 cycles
# after a product, 0.1 s at 2.6 GHz, OpenMP's and TensorFlow's for a few ms. They sleep when the
# process has used less than a part of a processor for so long.
IDLE_SECONDS, IDLE_PART = 0.01, 0.05
LONGEST_SETTLING = 2.0
BLOCK_SECONDS = 0.03
# What takes this long isn't a few µs faster for being dispatched by tf.function.
LONG_CALL = 0.1


def processors() -> list[int]:
    """Return the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def settle(threads: int) -> None:
    """Wait until the threads of whoever ran last sleep, so that they don't slow the next."""
    begin = time.perf_counter()
    while threads > 1 and time.perf_counter() - begin < LONGEST_SETTLING:
        used, start = time.process_time(), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        if time.process_time() - used < IDLE_PART * (time.perf_counter() - start):
            break


def repetition(c: Contestant) -> tuple[float, float]:
    """Return the seconds of forward and backward."""
    start = time.perf_counter()
    outputs = c.forward()
    middle = time.perf_counter()
    grads = c.backward(outputs)
    end = time.perf_counter()
    del outputs, grads
    return middle - start, end - middle


def block(c: Contestant, repetitions: int, threads: int) -> list[tuple[float, float]]:
    """Return the seconds of some repetitions; short ones get one before that is not timed."""
    settle(threads)
    if repetitions > 1:
        repetition(c)
    return [repetition(c) for _ in range(repetitions)]


def in_turns(
    calls: Sequence[Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Return the median seconds of each call; they take turns, one of each in a round."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    gc.disable()
    for _ in range(rounds):
        for call, of in zip(calls, times, strict=True):
            start = clock()
            call()
            of.append(clock() - start)
    gc.enable()
    return [statistics.median(of) for of in times]


def block_size(seconds: float) -> int:
    """Return how many repetitions of that length are a block."""
    return max(1, min(300, int(BLOCK_SECONDS / seconds)))


def estimate(c: Contestant, first: float) -> float:
    """
    Return the seconds of a repetition, after one that took so many.

    The first one may be long for what libraries make once, so that it does not count.
    """
    again = [sum(repetition(c))]
    if again[0] < LONG_CALL:
        again += [sum(repetition(c)) for _ in range(2)]
    return min(first, *again)


def of_pass(what: str, forward: float, backward: float) -> float:
    return {FORWARD: forward, BACKWARD: backward, BOTH: forward + backward}[what]


def block_medians(times: list[tuple[float, float]]) -> dict[str, float]:
    """Return the median of a block by pass."""
    return {what: statistics.median(of_pass(what, *t) for t in times) for what in PASSES}


class Timing(NamedTuple):
    """What a contestant took: the medians of its blocks by pass, a block for each round."""

    rounds: dict[str, list[float]]  # seconds
    repetitions: int

    def seconds(self, what: str) -> float:
        return statistics.median(self.rounds[what])


class Ratio(NamedTuple):
    """A median of ratios and its 95% interval."""

    value: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"


def ratio(over: Timing, under: Timing, what: str) -> Ratio:
    """Return what one took over what another did, from the rounds that both were in."""
    pairs = zip(over.rounds[what], under.rounds[what], strict=False)
    values = [a / b for a, b in pairs]
    return Ratio(statistics.median(values), *median_interval(values), len(values))


# Values that an interval needs: of fewer than six even the outermost are too near.
ENOUGH = 6


def median_interval(values: list[float]) -> tuple[float, float]:
    """Return a 95% interval of the median: two of the values, by the binomial distribution."""
    ordered, n = sorted(values), len(values)
    below, k = 0.0, 0
    # The most that may be left out at either end.
    while below + math.comb(n, k) / 2**n <= 0.025:
        below += math.comb(n, k) / 2**n
        k += 1
    return ordered[max(0, k - 1)], ordered[n - max(1, k)]


class Limits(NamedTuple):
    """How long a measurement takes: rounds while the seconds last, but so many at least."""

    seconds: float
    rounds: int


# Of seven values, the least and the largest enclose the median in 98% of all cases.
FULL = Limits(0.7, 7)
# Where a round takes over a second: of six values the least and the largest, in 97%.
LONG = Limits(0.0, ENOUGH)
LONG_ROUND = 1.0
QUICK = Limits(0.05, 2)


def measure(contestants: list[Contestant], limits: Limits, threads: int) -> dict[str, Timing]:
    """
    Time the contestants in turn, one block of each a round; who begins changes.

    A block is some repetitions of one contestant, as many as take 30 ms, so that its threads are
    awake and its data in the caches; before it all wait until the others' threads sleep. The first
    repetitions are not timed.
    """
    rounds: dict[str, list[dict[str, float]]] = {}
    estimates: dict[str, float] = {}
    gc.collect()
    gc.disable()
    try:
        for c in contestants:
            if estimates.get(c.unless_long, 0.0) > LONG_CALL:
                continue
            settle(threads)
            first = repetition(c)
            rounds[c.name], estimates[c.name] = [], estimate(c, sum(first))
        running = [c for c in contestants if c.name in rounds]
        sizes = {c.name: block_size(estimates[c.name]) for c in running}
        pause = IDLE_SECONDS if threads > 1 else 0.0
        one_round = sum(pause + (n + (n > 1)) * estimates[name] for name, n in sizes.items())
        if one_round > LONG_ROUND and limits is FULL:
            limits = LONG
        count = max(limits.rounds, min(100, int(limits.seconds / max(one_round, BLOCK_SECONDS))))
        for n in range(count):
            turn = n % len(running)
            for c in running[turn:] + running[:turn]:
                rounds[c.name].append(block_medians(block(c, sizes[c.name], threads)))
    finally:
        gc.enable()
    return {
        name: Timing(
            {what: [entry[what] for entry in found] for what in PASSES},
            len(found) * sizes[name],
        )
        for name, found in rounds.items()
    }
