"""Compiled layers: threads, parts of a call, addresses."""

from __future__ import annotations

import ctypes
import functools
import importlib
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close, run_python
from problems.properties import assert_same_bits, beside_numpy, numbers_of
from problems.table import Case, call_of

import cupyrnn
from cupyrnn.driver import signatures

MODES = [f"cudnn_rnn-{mode}" for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")]
MODES.append("block_gru")
CELLS = ("lstm_block_cell", "gru_block_cell")


@pytest.mark.parametrize("mode", [*MODES, *CELLS])
@pytest.mark.parametrize(
    "shape", [(9, 9, 5, 40), (9, 1, 5, 150), (9, 3, 130, 129), (1, 60, 130, 200)]
)
@pytest.mark.parametrize("extent", ["full", "lengths"])
def test_any_number_of_threads_gives_the_same_bits(
    with_threads: Callable[[int], None], mode: str, shape: tuple[int, ...], extent: str
) -> None:
    results = []
    for n in (1, 2, 3, 8):  # more than there are processors, perhaps
        with_threads(n)
        results.append(numbers_of(mode, shape, extent="full" if mode in CELLS else extent))
    for other in results[1:]:
        assert_same_bits(other, results[0])


@pytest.mark.parametrize("T", [1, 64, 65, 1000])
def test_sums_over_many_rows_keep_their_digits(compiled_loops: ModuleType, T: int) -> None:
    """Sums of equal terms for biases and peepholes; one long sum would lose a digit or more."""
    B, H = 8, 5

    def grads(dtype: str) -> Any:
        b, wci, wcf, wco = (np.full(n, 0.3 * (n > H), dtype) for n in (4 * H, H, H, H))
        given: Any = {"x": np.zeros((T, B, 1)), "w": np.zeros((1 + H, 4 * H))}
        given |= {"cs_prev": np.full((B, H), 0.3), "h_prev": np.zeros((B, H))}
        given = {name: a.astype(dtype) for name, a in given.items()}
        given |= {"b": b, "wci": wci, "wcf": wcf, "wco": wco}
        out = cupyrnn.block_lstm(**given)._asdict()
        h_grad = np.full((T, B, H), 0.7).astype(dtype)
        return cupyrnn.block_lstm_grad(**given, **out, h_grad=h_grad, cs_grad=None)._asdict()

    actual, expected = grads("float32"), grads("float64")
    for name in ("b_grad", "wci_grad", "wcf_grad", "wco_grad"):
        assert_close(actual[name], expected[name], "float32", name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(3, 9, 5, 40), (3, 1, 5, 150)])
def test_a_late_thread_finds_what_it_left(
    with_threads: Callable[[int], None],
    mode: str,
    shape: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread may begin when the others have ended or wait for it; they do not touch its rows."""
    expected, counts = numbers_of(mode, shape), list[int]()

    def compute(latest: int, n: int, loop: int, double: int, words: Any) -> bool:
        kind = ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_void_p)(loop)
        assert double
        block, *_, data = words
        assert data == -1  # the block is the address of words that contain the arrays' addresses
        counts.append(n)
        calls = [np.array([k, n, block], np.int64) for k in range(n)]
        with ThreadPoolExecutor(n) as pool:
            for k in [*range(latest), *range(latest + 1, n)]:
                pool.submit(kind, 1.0, calls[k].ctypes.data)
            time.sleep(0.01)
            kind(1.0, calls[latest].ctypes.data)
        return True

    with_threads(3)
    addresses, threads = (
        importlib.import_module(f"cupyrnn.compiled.{n}") for n in ("addresses", "threads")
    )
    monkeypatch.setattr(addresses, "_data", lambda: None)
    for latest in range(3):
        monkeypatch.setattr(threads, "run", functools.partial(compute, latest))
        assert_same_bits(numbers_of(mode, shape), expected)
    assert max(counts) == 3


def noted(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[ModuleType, list[tuple[Any, Any]]]:
    """Fill the memory of calls with 0x55; return the module, and what ran with which memory."""
    module = importlib.import_module(f"cupyrnn.compiled.{name}")
    calls: list[tuple[Any, Any]] = []
    memories: list[Any] = []

    def filled(shape: Any, dtype: Any) -> Any:
        made = np.empty(shape, dtype)
        if dtype is module.BYTE:
            made[...] = 0x55
            memories.append(made)
        return made

    of_kind = getattr(module, kind)
    run = of_kind.run

    def run_and_note(self: Any, arrays: Any) -> Any:
        found = run(self, arrays)
        (memory,) = memories
        memories.clear()
        calls.append((self, memory[-memory.__array_interface__["data"][0] % module.VECTOR_BYTES :]))
        return found

    monkeypatch.setattr(module, "np", SimpleNamespace(**{**vars(np), "empty": filled}))
    monkeypatch.setattr(of_kind, "run", run_and_note)
    monkeypatch.setattr(signatures, "CALLS", signatures.CallCache())
    return module, calls


@pytest.mark.parametrize("mode", MODES)
def test_deltas_of_no_unit_are_zero(
    compiled_loops: ModuleType, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products read them. Numbers that were in memory may be denormal, which is slow."""
    _, calls = noted("plan", "Plan", monkeypatch)
    for H in (3, 8, 20):
        numbers_of(mode, (5, 2, 3, H))
    backward = [(made, memory) for made, memory in calls if made._shapes.backward]
    assert len(backward) == 3
    for made, memory in backward:
        for k, c in enumerate(made._columns):
            if c.adds_to in (k, -1):
                z = memory[made._z[k] :][: 10 * c.row].view(np.float64).reshape(10, -1)
                assert (z[:, c.width :] == 0).all()


@pytest.mark.parametrize("op", CELLS)
def test_a_panel_of_few_columns_has_nothing_that_was_in_memory(
    compiled_loops: ModuleType, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, calls = noted("single", "CompiledStep", monkeypatch)
    I = H = 3
    numbers_of(op, (1, 5, I, H))
    calls = [(made, memory) for made, memory in calls if any(made._sizes.weights)]
    assert calls
    row = importlib.import_module("cupyrnn.compiled.products").PANEL_BYTES
    for made, memory in calls:
        panel = memory[made._memory.bytes :][: H * row].view(np.uint64)
        assert (panel != 0x5555555555555555).all()


# More columns of A than a product computes at once; several parts of a layer.
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(3, 2, 300, 300), (5000, 1, 3, 8)])
def test_parts(
    compiled_loops: ModuleType, mode: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    actual, expected = beside_numpy(lambda: numbers_of(mode, shape), monkeypatch)
    for a, e in zip(actual, expected, strict=True):
        scale = np.abs(e).max(initial=1)
        assert_close(a / scale, e / scale, "float64", mode, at_least=1.0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("B", [1, 3])
def test_where_a_part_ends(
    compiled_loops: ModuleType, mode: str, B: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of up to 8 rows that end at every step; nothing past their memory is written."""
    plan, calls = noted("plan", "Plan", monkeypatch)
    for name, value in {"_FORWARD_PART": 2048, "_BACKWARD_PART": 0, "_LEAST_PART": 8}.items():
        monkeypatch.setattr(plan, name, value)
    for T in range(1, 19):
        actual, expected = beside_numpy(lambda T=T: numbers_of(mode, (T, B, 3, 8)), monkeypatch)
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e, "float64", mode, at_least=1.0)
    assert calls
    for made, memory in calls:
        if not made._shapes.backward:
            assert (memory[made._sums[0] : made.place] == 0x55).all()
        assert (memory[made.place + 8 * len(made._words) :] == 0x55).all()


def test_addresses_without_looking_into_objects(
    compiled_loops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The addresses are as in the array interface, for views too."""
    import numba

    addresses, simd, threads = (
        importlib.import_module(f"cupyrnn.compiled.{n}") for n in ("addresses", "simd", "threads")
    )
    write, call_of, At = simd.write_word, simd.call_of, addresses.At

    @numba.cfunc("void(float32, int64)", nopython=True)  # type: ignore[untyped-decorator]
    def loop(one: float, words: int) -> None:
        _, _, address = call_of(words)
        write(address + 8, address)

    assert addresses._data() is not None or sys.implementation.name != "cpython"
    memory = np.zeros(300, np.uint8)[1:]
    arrays = memory, None, np.arange(12).reshape(3, 4)[1:, 2:], np.float32([1])
    own, _, part, one = (a if a is None else a.__array_interface__["data"][0] for a in arrays)
    first = -(-own // simd.VECTOR_BYTES) * simd.VECTOR_BYTES
    block = addresses.WordBlock([At(0, 1), 2, At(2, 3), At(3, 4)], 128)
    for found in (addresses._data(), None):
        monkeypatch.setattr(addresses, "_data", lambda found=found: found)
        memory[...] = 0
        assert threads.run(1, loop.address, False, block.words_for(arrays))
        words = memory[first + 128 - own :][:32].view(np.int64)
        assert words.tolist() == [1 + first, first + 128, 3 + part, 4 + one]


OF_NARROW_VECTORS = """
import numpy as np
from cupyrnn.compiled import simd
assert simd.VECTOR_BYTES == 16
simd.ROWS = 6
from cupyrnn.driver import layer, pages, signatures
from problems.properties import numbers
from problems.table import Case, call_of
pages.pays = lambda *_: True
call = call_of(Case("cudnn_rnn-rnn_tanh", (3, 7, 7, 7)), np.random.default_rng(0))
compiled = numbers(call)
pages.compiled_page = lambda _: None
signatures.CALLS.clear()
for n, e in numbers(call).items():
    np.testing.assert_allclose(compiled[n], e, rtol=1e-12, atol=1e-12)
"""


@pytest.mark.slow  # to compile
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason=needs.REASONS["x86"])
def test_narrow_vectors(compiled_loops: ModuleType, tmp_path: Path) -> None:
    """SSE's vectors with NEON's tiles, which have more rows than a vector has lanes."""
    names = "sse sse2 sse3 ssse3 sse4.1 sse4.2 popcnt cx16"
    features = ",".join(f"+{name}" for name in names.split())
    variables = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": features}
    run_python("-c", OF_NARROW_VECTORS, **variables, NUMBA_CACHE_DIR=str(tmp_path))


def test_the_interpreter_ends_while_threads_wait(compiled_loops: ModuleType) -> None:
    code = (
        "import threading, numpy as np, cupyrnn; from cupyrnn.compiled import threads;"
        "threads.count = lambda: 2; x = np.ones((100, 16, 64), 'f');"
        "n = cupyrnn.cudnn_rnn_params_size(1, 64, 64, rnn_mode='rnn_tanh');"
        "out = cupyrnn.cudnn_rnn(x, x[:1], None, np.ones(n, 'f'), rnn_mode='rnn_tanh');"
        "print(threads.size(), threading.active_count())"
    )
    assert run_python("-c", code) == "2 1\n"


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize(("T", "B"), [(700, 2), (5000, 1)])
@pytest.mark.parametrize("extent", ["full", "lengths", "resets"])
def test_inference_computes_many_steps_in_parts(
    compiled_loops: ModuleType, mode: str, T: int, B: int, extent: str
) -> None:
    case = Case(f"cudnn_rnn-{mode}", (T, B, 3, 5), "float32", extent=extent, direction="both")
    call, ops = call_of(case, np.random.default_rng(0)), SimpleNamespace(xp=np, **vars(cupyrnn))
    ops.cudnn_rnn = cupyrnn.cudnn_rnn
    saved, parts = (call.forward(ops, is_training=training) for training in (True, False))
    for name in ("output", "output_h", "output_c"):
        assert_same_bits(getattr(parts, name), getattr(saved, name))


def test_layers_by_steps_and_by_loops_share_the_states(
    compiled_loops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With skip_input NumPy computes the first layer, and a loop the second one."""
    attributes = {"rnn_mode": "lstm", "input_mode": "skip_input"}
    size = cupyrnn.cudnn_rnn_params_size(2, 6, 6, **attributes)
    rng = np.random.default_rng(0)
    shapes = (7, 3, 6), (2, 3, 6), (2, 3, 6), (size,)
    x, h, c, params = (rng.standard_normal(shape) / 2 for shape in shapes)

    def run() -> list[Any]:
        lengths = np.array([7, 2, 4], np.int32)
        return [*cupyrnn.cudnn_rnn(x, h, c, params, sequence_lengths=lengths, **attributes)[:3]]

    found, expected = beside_numpy(run, monkeypatch)
    for a, e in zip(found, expected, strict=True):
        assert_close(a, e, "float64", "result")


AT_THE_END_OF_MEMORY = """
import ctypes
import mmap

import numpy as np

import cupyrnn

kept = []


def at_end(a):
    page = mmap.PAGESIZE
    size = -(-a.nbytes // page) * page
    kept.append(mmap.mmap(-1, size + page))
    start = ctypes.addressof(ctypes.c_char.from_buffer(kept[-1]))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + size), page, 0) == 0
    to = np.frombuffer(kept[-1], a.dtype, a.size, size - a.nbytes).reshape(a.shape)
    to[...] = a
    return to


def run(op, **arguments):
    out, pullback = cupyrnn.vjp(op, **{n: at_end(a) for n, a in arguments.items()})
    name = "h_grad" if op is cupyrnn.lstm_block_cell else "d_h"
    pullback(**{name: at_end(np.ones_like(out.h))})


for dtype in (np.float32, np.float64):
    for T, B, I, H in ((1, 1, 3, 5), (1, 4, 20, 20), (1, 9, 7, 33), (1, 40, 3, 8), (9, 3, 7, 5)):
        some = np.random.default_rng(0).standard_normal

        def f(*shape):
            return some(shape).astype(dtype)

        if T == 1:
            run(cupyrnn.lstm_block_cell, x=f(B, I), cs_prev=f(B, H), h_prev=f(B, H),
                w=f(I + H, 4 * H), b=f(4 * H))
            run(cupyrnn.gru_block_cell, x=f(B, I), h_prev=f(B, H), w_ru=f(I + H, 2 * H),
                w_c=f(I + H, H), b_ru=f(2 * H), b_c=f(H))
        for mode in ("lstm", "gru", "rnn_tanh"):
            net = cupyrnn.init_params(num_layers=1, num_units=H, input_size=I, rnn_mode=mode,
                                      dtype=dtype)
            net = net._replace(params=at_end(net.params))
            out, pullback = cupyrnn.vjp(cupyrnn.cudnn_rnn, at_end(f(T, B, I)), params=net)
            pullback(output=at_end(np.ones_like(out.output)))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_nothing_past_the_end_of_an_array_is_read() -> None:
    """Behind each array is a page that ends the process if it is read."""
    run_python("-c", AT_THE_END_OF_MEMORY)
