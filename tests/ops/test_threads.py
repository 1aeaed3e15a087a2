"""Threads of compiled calls: after any interrupted call, the next one can use all threads."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import needs
import numpy as np
import pytest
from checks import run_python


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("interrupts 30", 1),
        pytest.param("interrupts 300", 1, marks=pytest.mark.slow),
        *(("late", 2), ("no_threads", 3)),
    ],
)
def test_what_stops_a_call(compiled_loops: ModuleType, name: str, checks: int) -> None:
    """Interrupts, 300 or 3,000; calls at the end of the process; no memory for a thread."""
    if not hasattr(os, "fork"):
        pytest.skip(needs.REASONS["fork"])
    script = Path(__file__).with_name("two_threads.py")
    assert run_python(str(script), *name.split()).split() == ["right"] * checks


@pytest.fixture
def threads(compiled_loops: ModuleType) -> Any:
    return importlib.import_module("cupyrnn.compiled.threads")


def words(block: int) -> tuple[int, ...]:
    """Return a block of words without arrays, or an integer, as an argument of calls."""
    return block, -1


def test_a_call_ends_when_its_last_thread_has(threads: Any) -> None:
    import numba

    simd = importlib.import_module("cupyrnn.compiled.simd")
    sleep = numba.types.ExternalFunction("usleep", numba.int32(numba.int32))
    write, call_of = simd.write_word, simd.call_of

    @numba.cfunc("void(float32, int64)", nopython=True)  # type: ignore[untyped-decorator]
    def loop(one: float, given: int) -> None:
        tid, n, address = call_of(given)
        sleep(10_000 * tid)
        write(address + 8 * tid, tid * n)

    for n in (4, 3, 1):
        found = np.zeros(4, np.int64)
        assert threads.run(n, loop.address, False, words(found.ctypes.data))
        assert found.tolist() == [n * k if k < n else 0 for k in range(4)]


def test_a_call_within_a_call_is_computed_by_one(threads: Any) -> None:
    import numba

    call_of = importlib.import_module("cupyrnn.compiled.simd").call_of
    found: list[Any] = []

    @ctypes.CFUNCTYPE(None)
    def call() -> None:
        found.extend([threads.most(), threads.run(2, 0, False, words(0))])

    @numba.cfunc("void(float32, int64)", nopython=True)  # type: ignore[untyped-decorator]
    def loop(one: float, given: int) -> None:
        if call_of(given)[0] == 0:
            call()

    assert threads.run(2, loop.address, False, words(0))
    assert found == [1, False]
    assert threads.most() == threads.count()


@pytest.mark.skipif(sys.platform != "linux", reason=needs.REASONS["linux"])
def test_a_thread_leaves_the_core_of_the_caller_for_an_idle_one(threads: Any) -> None:
    import numba

    leave, note = threads._leave, threads._note_core

    @numba.njit
    def call(words: Any) -> None:
        job = np.int64(words.ctypes.data)
        note(job)
        leave(job + threads._OWN, job)

    def left(cores: int, file: bytes = b"/proc/loadavg") -> int:
        words[threads._CPUS // 8] = cores
        words.view("S1")[threads._FILE : threads._FILE + len(file) + 1] = [*map(chr, file), ""]
        before = words[place]
        call(words)
        assert os.sched_getaffinity(0) == allowed
        return int(words[place] - before)

    words, allowed = np.zeros(4 * threads._OWN // 8, np.int64), os.sched_getaffinity(0)
    place = (threads._OWN + threads._LEFT) // 8
    several = int(len(allowed) > 1)
    assert [left(10**6), left(10**6)] == [several] * 2
    assert [left(0), *(left(10**6) for _ in range(threads._PATIENCE + 1))] == (
        [0] * (threads._PATIENCE + 1) + [several]
    )
    assert left(10**6, b"/proc/nothing") == 0
    words[:], whole, allowed = 0, allowed, {min(allowed)}
    os.sched_setaffinity(0, allowed)
    try:
        assert left(10**6) == 0
    finally:
        os.sched_setaffinity(0, whole)


def test_without_threads(compiled_loops: ModuleType) -> None:
    """As on Windows: no function of the system's threads is called."""
    code = """
import sys, numba
sys.platform = "win32"
import numpy as np, cupyrnn
from cupyrnn.compiled import threads
x, w = np.ones((40, 16, 64), "f"), np.ones((128, 256), "f")
print(cupyrnn.block_lstm(x, x[0], x[0], w, w[0]).h.shape, threads.most())
"""
    assert run_python("-c", code) == "(40, 16, 64) 1\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason=needs.REASONS["fork"])
@pytest.mark.filterwarnings("ignore:.*fork")  # Python's, and another of JAX where it is loaded
def test_a_child_waits_for_no_thread_of_its_parent() -> None:
    """A thread of the parent may be computing a cached property: the child must not wait for it."""
    packing = importlib.import_module("cupyrnn.driver.packing")
    kept, begun, ended = packing.cached_property, threading.Event(), threading.Event()

    class Slow:
        @kept
        def value(self) -> int:
            begun.set()
            ended.wait(60)
            return 1

    one = Slow()
    thread = threading.Thread(target=lambda: one.value)
    thread.start()
    begun.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        ended.set()
        os._exit(Slow().value - 1)
    status = os.waitpid(child, 0)[1]
    ended.set()
    thread.join()
    assert (os.waitstatus_to_exitcode(status), one.value, one.value) == (0, 1, 1)
