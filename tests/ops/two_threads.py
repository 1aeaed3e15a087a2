"""
What must not stop calls of two threads: each function here is run by a process of its own.

    python two_threads.py FUNCTION [ARGUMENT]

It prints `right` for every check that holds; one that hangs has to be ended from outside.
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
from typing import Any

import numpy as np

import cupyrnn
from cupyrnn.compiled import plan, single, threads
from cupyrnn.driver import layer

STACK = 1 << 28
threads.count = lambda: 2
plan._LEAST_WORK = single._LEAST_WORK = 0  # in both threads
layer._pays = lambda *_: True  # whole layers in one call


def _calls(dtype: str) -> dict[str, Callable[[], Sequence[Any]]]:
    """Return calls of two threads: single steps, layers, nets, projections."""
    rng, scale = np.random.default_rng(0), np.dtype(dtype).type(0.2)

    def numbers(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(dtype) * scale

    T, B, I, H = 4, 16, 64, 128
    x, c, h, g = numbers(T, B, I), numbers(B, H), numbers(B, H), numbers(T, B, H)
    w, b, wide = numbers(I + H, 4 * H), numbers(4 * H), numbers(64, I)
    w_ru, w_c, more = w[:, : 2 * H].copy(), w[:, :H].copy(), numbers(64, H)

    def layers() -> list[Any]:
        out = cupyrnn.block_lstm(x, c, h, w, b)
        return [*out, *cupyrnn.block_lstm_grad(x, c, h, w, *out, None, g)]

    def net(**options: Any) -> Callable[[], list[Any]]:
        P = options.get("num_proj", H)
        state, carried = numbers(2, B, P), numbers(2, B, H)
        params = numbers(cupyrnn.cudnn_rnn_params_size(2, H, I, **options))

        def call() -> list[Any]:
            args = (x, state, carried, params)
            out = cupyrnn.cudnn_rnn(*args, **options)
            rest = (g[..., :P], None, None, out.reserve_space)
            return [*out[:3], *cupyrnn.cudnn_rnn_backprop(*args, *out[:3], *rest, **options)]

        return call

    return {
        "lstm cell": lambda: cupyrnn.lstm_block_cell(wide, more, more, w, b),
        "gru cell": lambda: cupyrnn.gru_block_cell(wide, more, w_ru, w_c, b[: 2 * H], b[:H]),
        "layers": layers,
        "net": net(),
        "projections": net(num_proj=32),
    }


def _bits(call: Callable[[], Sequence[Any]]) -> list[bytes]:
    return [np.asarray(a).tobytes() for a in call()]


def _both_work(call: Callable[[], Any]) -> bool:
    """Return whether another thread of this process computes, too."""
    whole, own = time.process_time(), time.thread_time()
    for _ in range(20):
        call()
    own = time.thread_time() - own
    return time.process_time() - whole - own > own / 10


def interrupts(count: str) -> None:
    """So many KeyboardInterrupts of each kind of call, at random moments; the next is right."""
    chance, armed = random.Random(0), False

    def interrupt(*_: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    for dtype in ("float32", "float64"):
        for name, call in _calls(dtype).items():
            expected, took, hits = _bits(call), [], 0
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
                assert _bits(call) == expected, (name, dtype, hits)
            assert _both_work(call), (name, dtype)
    print("right")


def _compare(pairs: Sequence[tuple[Callable[[], Any], list[bytes]]]) -> None:
    """Print whether calls give what they gave, in two threads."""
    right = all(_bits(call) == expected for call, expected in pairs)
    print("right" if right and all(_both_work(call) for call, _ in pairs) else "wrong", flush=True)


def late() -> None:
    """Calls after the main thread's end, and while the interpreter ends: their first threads."""
    threads.count = lambda: 1
    pairs = [(call, _bits(call)) for call in _calls("float32").values()]
    threads.count = lambda: 2

    def after_main() -> None:
        threading.main_thread().join()
        _compare(pairs)

    atexit.register(_compare, pairs)
    threading.Thread(target=after_main).start()


def no_threads() -> None:
    """Calls while the system has no memory for a thread, or for the words; then it has."""
    import resource

    stack = resource.getrlimit(resource.RLIMIT_STACK)
    if stack[0] != STACK:  # of a thread; it is looked up when a process begins
        resource.setrlimit(resource.RLIMIT_STACK, (STACK, stack[1]))
        os.execv(sys.executable, [sys.executable, *sys.argv])
    threads.count = lambda: 1
    pairs = [(call, _bits(call)) for call in _calls("float32").values()]
    threads.count = lambda: 2
    threads._serving()
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115
    limits = resource.getrlimit(resource.RLIMIT_AS)
    room = pages * resource.getpagesize() + STACK // 2
    resource.setrlimit(resource.RLIMIT_AS, (room, limits[1]))
    right = all(_bits(call) == expected for call, expected in pairs)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    print("right" if right and threads.size() == 1 else "wrong")
    _compare(pairs)
    job, threads._job = threads._job, 0
    print("right" if all(_bits(call) == expected for call, expected in pairs) else "wrong")
    threads._job = job


def no_memory() -> None:
    """A call that begins the threads anew, without memory for each thing that Python takes."""
    import _testcapi

    call = _calls("float32")["gru cell"]
    expected, failed, n = _bits(call), True, 0
    while failed:
        threads._after_fork()
        failed = False
        _testcapi.set_nomemory(n, n + 1)
        try:
            call()
        except MemoryError:
            failed = True
        finally:
            _testcapi.remove_mem_hooks()
        assert _bits(call) == expected, n
        n += 1
    print("right" if n > 9 else "wrong")
    _compare([(call, expected)])


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
