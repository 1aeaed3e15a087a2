"""
What must not stop calls of two threads. Each function here runs in its own process.

    python two_threads.py FUNCTION [ARGUMENT]

It prints `right` for every check that holds. A hanging process must be ended from outside.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from problems.properties import named
from problems.table import Case, call_of

import cupyrnn
from cupyrnn.compiled import plan, single, threads
from cupyrnn.driver import pages

STACK = 1 << 28
threads.count = lambda: 2
plan._LEAST_WORK = single._LEAST_WORK = 0  # in both threads
pages.pays = lambda *_: True  # whole layers in one call


CASES = [
    *(Case(name, (1, 64, 64, 128)) for name in ("lstm_block_cell", "gru_block_cell")),
    *(Case(name, (4, 16, 64, 128)) for name in ("block_lstm", "block_gru")),
    *(Case(f"cudnn_rnn-{mode}", (4, 16, 64, 128), layers=2) for mode in ("lstm", "gru")),
    Case("cudnn_rnn-lstm", (4, 16, 64, 128), layers=2, projected=True),
    Case("stacked_rnn-GRU", (4, 16, 64, 128), layers=2, direction="both"),
]


class _Both(NamedTuple):
    """A call of an op in two threads and, except for single steps, of its gradient."""

    case: Case
    arguments: dict[str, Any]
    gradient_kwargs: dict[str, Any]

    def __call__(self) -> list[Any]:
        record = self.case.op.schema
        found = [record.forward(**self.arguments)]
        return found if self.case.op.is_cell else [*found, record.gradient(**self.gradient_kwargs)]


def _calls(dtype: str) -> list[_Both]:
    """Return calls of single steps, layers, nets, projections."""
    rng, found = np.random.default_rng(0), []
    for case in CASES:
        call = call_of(case._replace(dtype=dtype), rng)
        arguments, out = call.arguments(cupyrnn), call.forward(cupyrnn)
        gradient_kwargs = case.op.schema.gradient_arguments(
            arguments, out._asdict()
        ) | call.cotangents(rng, out)
        found.append(_Both(call.case, arguments, gradient_kwargs))
    return found


def _bits(tree: Any) -> list[bytes]:
    return [a.tobytes() for a in named(tree, "array").values()]


def _both_work(call: Callable[[], Any]) -> bool:
    """Return whether a call uses the second thread and waits for it."""
    before = threads._word(threads._OWN + threads._PARTS)
    call()
    return threads._word(threads._OWN + threads._PARTS) > before


def interrupts(count: str) -> None:
    """
    Interrupt each kind of call this many times, at random moments.

    The arguments are as before, and the next call is right.
    """
    chance, armed = random.Random(0), False

    def interrupt(*_: Any) -> None:
        nonlocal armed
        if armed:
            armed = False  # a late signal of the last timer would end the `except` below
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    for dtype in ("float32", "float64"):
        for call in _calls(dtype):
            expected, before, took, hits = _bits(call()), _bits([*call]), [], 0
            for _ in range(5):
                took.append(-time.perf_counter())
                call()
                took[-1] += time.perf_counter()
            while hits < int(count):
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 + chance.random() * min(took))
                    call()
                    armed = False
                except KeyboardInterrupt:
                    hits += 1
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert threads.most() == 2, (call.case, hits)
                assert _bits([*call]) == before, (call.case, hits)
                assert _bits(call()) == expected, (call.case, hits)
            assert _both_work(call), call.case
    print("right")


def _compare(pairs: Sequence[tuple[Callable[[], Any], list[bytes]]]) -> None:
    """Print whether calls give the same results as before, in two threads."""
    right = all(_bits(call()) == expected for call, expected in pairs)
    print("right" if right and all(_both_work(call) for call, _ in pairs) else "wrong", flush=True)


def late() -> None:
    """The first threads of calls after the main thread's end, and while the interpreter ends."""
    threads.count = lambda: 1
    pairs = [(call, _bits(call())) for call in _calls("float32")]
    threads.count = lambda: 2

    def after_main() -> None:
        threading.main_thread().join()
        _compare(pairs)

    atexit.register(_compare, pairs)
    threading.Thread(target=after_main).start()


def no_threads() -> None:
    """Calls while the system has no memory for a thread or for the words, and after that."""
    import resource

    stack = resource.getrlimit(resource.RLIMIT_STACK)
    if stack[0] != STACK:  # of a thread; a process looks it up when it starts
        resource.setrlimit(resource.RLIMIT_STACK, (STACK, stack[1]))
        os.execv(sys.executable, [sys.executable, *sys.argv])
    threads.count = lambda: 1
    pairs = [(call, _bits(call())) for call in _calls("float32")]
    threads.count = lambda: 2
    threads._serving()
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115
    limits = resource.getrlimit(resource.RLIMIT_AS)
    room = pages * resource.getpagesize() + STACK // 2
    resource.setrlimit(resource.RLIMIT_AS, (room, limits[1]))
    right = all(_bits(call()) == expected for call, expected in pairs)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    print("right" if right and threads.size() == 1 else "wrong")
    _compare(pairs)
    job, threads._job = threads._job, 0
    print("right" if all(_bits(call()) == expected for call, expected in pairs) else "wrong")
    threads._job = job


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
