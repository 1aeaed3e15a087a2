"""Several threads at once, forked processes and Ctrl-C: calls do not disturb each other."""

from __future__ import annotations

import _thread
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
from checks import run_python
from problems.properties import assert_all_close, numbers_of
from problems.table import TABLE, Case, call_of

import cupyrnn


def run_of(name: str, **fields: Any) -> Callable[[int], list[Any]]:
    """Return a function of a seed that computes every number of a call and its gradient."""
    return lambda seed: numbers_of(name, (30, 33, 5, 33), seed=seed, **fields)


NET: dict[str, Any] = {"extent": "lengths", "direction": "both", "layers": 2, "dropout": 0.4}
RUNS = {"lstm": run_of("block_lstm"), "gru": run_of("block_gru")}
# A single step, and a net whose layers are recorded once.
RUNS |= {"step": run_of("lstm_block_cell"), "planned": run_of("cudnn_rnn-lstm", layers=2)}
RUNS |= {
    f"cudnn_{mode}": run_of(f"cudnn_rnn-{mode}", **NET) for mode in ("lstm", "gru", "rnn_tanh")
}
each_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def same(a: list[Any], b: list[Any]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture(params=["NumPy", "Numba", "two threads"])
def loops(request: pytest.FixtureRequest) -> None:
    """NumPy's loops, or compiled ones with one thread or with two."""
    if request.param != "NumPy":
        request.getfixturevalue("with_threads")(1 + (request.param == "two threads"))


@each_run
def test_calls_at_once(run: Callable[[int], list[Any]], loops: None) -> None:
    """Threads that call at the same time get the same bits as each alone."""
    seeds = range(24)
    alone = [run(seed) for seed in seeds]
    barrier = threading.Barrier(4)

    def work(seed: int) -> list[Any]:
        if seed < barrier.parties:
            barrier.wait(60)
        return run(seed)

    before = threading.active_count()
    with ThreadPoolExecutor(barrier.parties) as pool:
        assert all(map(same, pool.map(work, seeds), alone))
    assert threading.active_count() == before


def test_the_tests_use_one_thread() -> None:
    threadpoolctl = needs.module("threadpoolctl")
    pools = [p for p in threadpoolctl.threadpool_info() if p["internal_api"] == "openblas"]
    asked = int(os.environ["OPENBLAS_NUM_THREADS"])
    assert {pool["num_threads"] for pool in pools} <= {asked}


# The BLAS's threads, in a separate process.
TWO_THREADS = {"OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux to count threads")
def test_no_threads_are_left() -> None:
    """Besides the BLAS's threads there is at most one more, of the compiled layers."""
    code = """
import contextlib, os, threading, numpy as np
from ops import test_process as t
with contextlib.suppress(ImportError):  # Numba loads it, and it brings a BLAS of its own
    import scipy.linalg
a = np.ones((500, 500))
a @ a
before = len(os.listdir("/proc/self/task"))
for run in t.RUNS.values():
    run(0)
assert len(os.listdir("/proc/self/task")) <= before + 1
assert threading.active_count() == 1
"""
    run_python("-c", code, **TWO_THREADS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason=needs.REASONS["fork"])
@pytest.mark.filterwarnings("ignore:.*fork")  # Python's, and another of JAX where it is loaded
@each_run
def test_a_child_computes_the_same(run: Callable[[int], list[Any]], loops: None) -> None:
    """A child has none of its parent's threads, and starts its own."""
    expected = run(0)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # there it would wait for threads that only its parent has
        os._exit(not same(run(0), expected))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_pullbacks_of_another_process(tmp_path: Path, rng: np.random.Generator) -> None:
    """Each op's pullback computes the same there."""
    file, calls, expected = tmp_path / "calls", [], []
    for name in TABLE:
        call = call_of(Case(name), rng)
        out, pullback = cupyrnn.vjp(call.case.op.schema.forward, **call.arguments(cupyrnn))
        calls.append((pullback, call.cotangents(rng, out)))
        expected.append(calls[-1][0](**calls[-1][1]))
    file.write_bytes(pickle.dumps(calls))
    run_python("-c", _SENT, str(file))
    results = pickle.loads(file.read_bytes())
    for name, found, due in zip(TABLE, results, expected, strict=True):
        assert_all_close(found, due, Case(name), name)  # with Numba there, if it is installed


_SENT = """
import pickle, sys
from pathlib import Path
file = Path(sys.argv[1])
calls = pickle.loads(file.read_bytes())
file.write_bytes(pickle.dumps([pullback(**given) for pullback, given in calls]))
"""


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("part", ["forward", "backward"])
def test_an_interrupt(part: str) -> None:
    """Ctrl-C ends a call at once and leaves its arguments unchanged; the next call is right."""
    T, B, I, H = 40_000, 2, 3, 4
    rng = np.random.default_rng(0)
    x, zero, w = rng.normal(size=(T, B, I)), np.zeros((B, H)), rng.normal(size=(I + H, 16))
    b = rng.normal(size=16)
    out = cupyrnn.block_lstm(x, zero, zero, w, b)
    h_grad = rng.normal(size=(T, B, H))
    given = [x, zero, w, b, *out, h_grad]
    copies = [a.copy() for a in given]

    def call() -> list[Any]:
        if part == "forward":
            return [*cupyrnn.block_lstm(x, zero, zero, w, b)]
        return [*cupyrnn.block_lstm_grad(x, zero, zero, w, *out, None, h_grad)]

    expected, error_state = call(), np.geterr()
    timer = threading.Timer(0.05, _thread.interrupt_main)

    def interrupted_call() -> None:
        timer.start()
        call()

    with pytest.raises(KeyboardInterrupt):
        interrupted_call()
    timer.join()
    assert np.geterr() == error_state
    assert same(given, copies)
    assert same(call(), expected)


_TOP = """\
import ctypes, sys
import numpy as np
if sys.argv[1:]:
    import cupyrnn
    cupyrnn.gru_block_cell(*map(np.ones, ((1, 1), (1, 1), (2, 2), (2, 1), 2, 1)))
top = ctypes.CDLL(None).sbrk
top.restype, top.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
np.empty(3 << 20, np.uint8)
arrays = [np.empty(2 << 20, np.uint8) for _ in range(8)]
before = top(0)
del arrays
print(before - top(0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of the GNU C library")
def test_memory_that_was_freed_stays_with_the_process() -> None:
    """A call whose earlier results were freed uses the same memory again."""
    kept = {name: text for name, text in os.environ.items() if "MALLOC_" not in name}

    def given_back(*arguments: str) -> int:
        command = [sys.executable, "-c", _TOP, *arguments]
        return int(subprocess.run(command, env=kept, capture_output=True, check=True).stdout)

    if given_back() == 0:
        pytest.skip("this malloc keeps what is freed")
    assert given_back("cupyrnn") == 0
