"""The kernels that take all steps in one launch: values, orders, batches, errors, registers."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from problems import nets
from problems.nets import BI, Case

import cupyrnn
from cupyrnn._arrays import compute_dtype
from cupyrnn.kernels import common, compile, gru, gru_reset_after, lstm, persistent, simple_rnn
from cupyrnn.kernels.rows import common as rows_common
from cupyrnn.kernels.rows import gru as rows_gru
from cupyrnn.kernels.rows.common import template_of, threads_of
from without_a_gpu.agreement import agrees_with_numpy, numpy_dtype, rnn_agrees_with_numpy
from without_a_gpu.cuda_on_cpu import fake_cupy, nvrtc, runner
from without_a_gpu.ptx.compiler import ARCHITECTURES
from without_a_gpu.ptx.executor import Executor
from without_a_gpu.ptx.parser import PtxError

CELLS: dict[str, Any] = {
    "lstm": lstm, "gru": gru, "gru_reset_after": gru_reset_after, "simple_rnn": simple_rnn,
}  # fmt: skip
DIRECTIONS = ("FORWARD_ROWS", "BACKWARD_ROWS")
# By the multiprocessors of a device: one, two or four sequences a block, for B = 9.
PROCESSORS = {1: 100, 2: 5, 4: 1}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[bool]]]:
    """Whether each kernel took the steps it was asked to take, by its name."""
    found: dict[str, list[bool]] = {}
    run = persistent.run

    def counted(kernel: Any, *args: Any) -> bool:
        done = run(kernel, *args)
        found.setdefault(kernel.name, []).append(done)
        return done

    monkeypatch.setattr(persistent, "run", counted)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    return found


def has_processors(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(persistent, "processors_of_device", lambda: count)


EACH_DTYPE = pytest.mark.parametrize(
    ("dtype", "sequences"),
    [("float32", 1), ("float32", 2), ("float32", 4), ("float64", 4), ("float16", 2),
     ("bfloat16", 1), ("complex64", 4), ("complex128", 2)],
)  # fmt: skip


@EACH_DTYPE
@pytest.mark.cuda_on_cpu
def test_rows_agree_with_numpy(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    sequences: int,
) -> None:
    has_processors(monkeypatch, PROCESSORS[sequences])
    rows_agree_with_numpy(cupy_on_cpu, taken, dtype)


@EACH_DTYPE
@pytest.mark.gpu
def test_rows_on_a_gpu_agree_with_numpy(
    cupy_on_gpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    sequences: int,
) -> None:
    has_processors(monkeypatch, PROCESSORS[sequences])
    rows_agree_with_numpy(cupy_on_gpu, taken, dtype)


def rows_agree_with_numpy(cupy: Any, taken: dict[str, list[bool]], dtype: str) -> None:
    """Peepholes, clip, hard gates, both directions, lengths, two layers, dropout."""
    H = 9 if dtype == "complex128" else 33  # what fits
    agrees_with_numpy(cupy, dtype, (4, 9, 3, H), 3)
    for mode in nets.MODES:
        lengths = (4, 1, 0, 2, 3, 4, 2, 1, 4)
        rnn_agrees_with_numpy(cupy, Case(mode, 4, 9, 2, 5, 2, BI, lengths=lengths), dtype)
    assert len(taken) == 2 * len(CELLS)
    # Where a step is alone, the loop has no more launches.
    assert all(any(found) for found in taken.values())


@pytest.mark.cuda_on_cpu
def test_what_does_not_fit_is_the_loops(
    cupy_on_cpu: ModuleType, taken: dict[str, list[bool]]
) -> None:
    """A projection, one step, no sequences, a matrix that is too large."""
    rnn_agrees_with_numpy(cupy_on_cpu, Case("lstm", 3, 4, 2, 9, num_proj=3), "float32")
    agrees_with_numpy(cupy_on_cpu, "float32", (1, 4, 3, 9))
    agrees_with_numpy(cupy_on_cpu, "float32", (3, 0, 3, 9))
    agrees_with_numpy(cupy_on_cpu, "float64", (2, 2, 2, 97))
    assert not any(itertools.chain(*taken.values()))
    assert taken


def calls(
    T: int, B: int, H: int, dtype: str = "float32", lengths: tuple[int, ...] | None = None
) -> dict[str, tuple[Any, Any]]:
    """Return, by cell, an op with its gradient as a function of arrays, and these."""
    rng = np.random.default_rng(3)
    more: dict[str, Any] = {} if lengths is None else {"sequence_lengths": np.array(lengths)}

    def draw(*shape: int) -> np.ndarray:
        values = 0.5 * rng.standard_normal(shape)
        if np.dtype(dtype).kind == "c":
            values = values + 1e-20j * rng.standard_normal(shape)
        return values.astype(dtype)

    def block_lstm(sequences: Any, weights: Any) -> list[Any]:
        x, cs, h, grad = sequences
        w, b, wci, wcf, wco = weights
        peepholes = {"wci": wci, "wcf": wcf, "wco": wco, "cell_clip": 0.6, **more}
        out = cupyrnn.block_lstm(x, cs[0], h[0], w, b, **peepholes)
        g = cupyrnn.block_lstm_grad(x, cs[0], h[0], w, *out, grad, grad, **peepholes)
        return [*out, g.cs_prev_grad[None], g.h_prev_grad[None], g.x_grad]

    def block_gru(sequences: Any, weights: Any) -> list[Any]:
        x, _, h, grad = sequences
        w_ru, w_c, b_ru, b_c = weights
        out = cupyrnn.block_gru(x, h[0], w_ru, w_c, b_ru, b_c, **more)
        g = cupyrnn.block_gru_grad(x, h[0], w_ru, w_c, *out, grad, **more)
        return [*out, g.d_h_prev[None], g.d_x]

    def cudnn_rnn(rnn_mode: str) -> Any:
        def call(sequences: Any, weights: Any) -> list[Any]:
            x, _, h, grad = sequences
            (params,) = weights
            out = cupyrnn.cudnn_rnn(x, h, None, params, rnn_mode=rnn_mode, **more)
            back = cupyrnn.cudnn_rnn_backprop(
                x, h, None, params, *out[:2], None, grad, None, None, out.reserve_space,
                host_reserved=out.host_reserved, rnn_mode=rnn_mode, **more,
            )  # fmt: skip
            return [out.output, out.output_h, back.input_backprop, back.input_h_backprop]

        return call

    I = 3
    sequences = draw(T, B, I), draw(1, B, H), draw(1, B, H), draw(T, B, H)
    lstm_weights = draw(I + H, 4 * H), draw(4 * H), draw(H), draw(H), draw(H)
    size = {m: cupyrnn.cudnn_rnn_params_size(1, H, I, rnn_mode=m) for m in ("gru", "rnn_tanh")}
    gru_weights = draw(I + H, 2 * H), draw(I + H, H), draw(2 * H), draw(H)
    return {
        "lstm": (block_lstm, (sequences, lstm_weights)),
        "gru": (block_gru, (sequences, gru_weights)),
        "gru_reset_after": (cudnn_rnn("gru"), (sequences, (draw(size["gru"]),))),
        "simple_rnn": (cudnn_rnn("rnn_tanh"), (sequences, (draw(size["rnn_tanh"]),))),
    }


def on(cupy: Any, call: Any, order: Any = slice(None)) -> list[np.ndarray]:
    """Return what a call gives for some of its sequences, on the device."""
    function, (sequences, weights) = call
    part = [cupy.asarray(np.ascontiguousarray(a[:, order])) for a in sequences]
    return [cupy.asnumpy(a) for a in function(part, [cupy.asarray(w) for w in weights])]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.cuda_on_cpu
def test_the_bits_of_a_sequence_do_not_depend_on_the_others(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    dtype: str,
) -> None:
    """One, two and four sequences a block, alone, and in another order."""
    function, ((x, *others), weights) = calls(4, 7, 17, dtype)[cell]
    # The product with x is not made by these kernels, and may depend on the batch.
    call = function, ((np.zeros_like(x), *others), weights)
    has_processors(monkeypatch, 100)
    expected = on(cupy_on_cpu, call)
    order = np.array([3, 0, 6, 5, 1, 4, 2])
    for count in (4, 1):
        has_processors(monkeypatch, count)
        for a, e in zip(on(cupy_on_cpu, call), expected, strict=True):
            np.testing.assert_array_equal(a, e)
        for a, e in zip(on(cupy_on_cpu, call, order), expected, strict=True):
            # Of x alone the product over all rows is cuBLAS's.
            if a.shape[2] != 3:
                np.testing.assert_array_equal(a, e[:, order])
    for a, e in zip(on(cupy_on_cpu, call, slice(4, 5)), expected, strict=True):
        if a.shape[2] != 3:
            np.testing.assert_array_equal(a, e[:, 4:5])
    assert all(all(found) for found in taken.values())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_the_order_of_threads_does_not_matter(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
) -> None:
    """In reverse, and in twenty random orders of warps and blocks."""
    call = calls(4, 5, 17)[cell]
    has_processors(monkeypatch, 3)
    expected = on(cupy_on_cpu, call)
    for order in ("reverse", *range(20)):
        use_order(monkeypatch, order)
        for a, e in zip(on(cupy_on_cpu, call), expected, strict=True):
            np.testing.assert_array_equal(a, e)


def use_order(monkeypatch: pytest.MonkeyPatch, order: str | int) -> None:
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return runner.compile_module(*args, **{**kwargs, "order": order})

    monkeypatch.setattr(fake_cupy, "compile_module", compiled)
    forget()


def forget() -> None:
    compile.kernel.cache_clear()
    compile._module.cache_clear()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_as_many_launches_whatever_the_number_of_steps(
    cupy_on_cpu: Any, taken: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    counted: list[str] = []
    for owner, name in (
        (cupy_on_cpu.cuda.driver, "launchKernel"),
        (cupy_on_cpu.cuda.cublas, "gemmEx"),
    ):
        call = getattr(owner, name)

        def noted(*args: Any, call: Any = call, name: str = name) -> Any:
            counted.append(name)
            return call(*args)

        monkeypatch.setattr(owner, name, noted)
    found = []
    for T in (2, 3, 20):
        counted.clear()
        on(cupy_on_cpu, calls(T, 2, 5)[cell])
        found.append(sorted(counted))
    assert found[0] == found[1] == found[2]
    assert "gemmEx" in found[0]


BARRIER = "__syncthreads();"
# The tools, each with what it notices: orders of threads, other values; the interpreter of PTX and
# g++'s thread sanitizer, accesses that no barrier orders.
ORDERS, INTERPRETER, SANITIZER = "orders", "races in the PTX", "thread sanitizer"
ALL = {ORDERS, INTERPRETER, SANITIZER}

# By the name of an error: the cell, the source before it and after, and what catches it. Without a
# new source, the barrier in the old one is left out.
PLANTED: dict[str, tuple[str, str, str | None, set[str]]] = {
    "no barrier between zeros and the first state": (
        "lstm", f"2 * SIZE);\n    {BARRIER}", None, ALL,
    ),
    "no barrier before the first step": (
        "lstm", f"fetch(from + me.row);\n    {BARRIER}", None, ALL,
    ),
    "no barrier after a step": ("lstm", f"(last);\n        }}\n        {BARRIER}", None, ALL),
    "no barrier between zeros and the first deltas": (
        "lstm", f"cell.factors();\n    }}\n    {BARRIER}", None, ALL,
    ),
    "no barrier in a step back": ("lstm", f"if (any) {{\n            {BARRIER}", None, ALL),
    "no barrier between zeros and a GRU's first state": (
        "gru", f"2 * SIZE);\n    {BARRIER}", None, ALL,
    ),
    "no barrier before a GRU's first step": (
        "gru", f"fetch();\n    {BARRIER}\n    for (int s = 0;", None, ALL,
    ),
    "no barrier between zeros and a GRU's first deltas": (
        "gru", f"fetch();\n    {BARRIER}\n    for (int s = int(steps)", None, ALL,
    ),
    "no barrier before the output": (
        "gru", f"(r_ * h_prev);\n        }}\n        {BARRIER}", None, ALL,
    ),
    "no barrier after the output": ("gru", f"(h_prev);\n        }}\n        {BARRIER}", None, ALL),
    "no barrier after the deltas of c": ("gru", f"(!any) continue;\n        {BARRIER}", None, ALL),
    "no barrier after those of the gates": (
        "gru", f"(d_u);\n        }}\n        {BARRIER}", None, ALL,
    ),
    "one place for two states": (
        "lstm", "state[((s + 1) & 1) * SIZE", "state[(s & 1) * SIZE", ALL,
    ),
    "one place for two deltas": ("lstm", "here = deltas + (s & 1) * SIZE", "here = deltas", ALL),
    "a wrong lane": (
        "simple_rnn", "even_item : odd_item, d)", "even_item : odd_item, 1)", {ORDERS},
    ),
    "a wrong slice": (
        "gru_reset_after", "lane * SLICE + k, n /", "lane * SLICE + k + 1, n /", {ORDERS},
    ),
    "another sequence": ("gru_reset_after", "vectors + r * LENGTH", "vectors", {ORDERS}),
    "a step too early": ("simple_rnn", "to = starts[s + 2];", "to = starts[s + 1];", {ORDERS}),
}  # fmt: skip


def planted(monkeypatch: pytest.MonkeyPatch, cell: str, old: str, new: str) -> None:
    for direction in DIRECTIONS:
        kernel = getattr(CELLS[cell], direction)
        assert kernel.source.count(old), old
        changed = kernel._replace(source=kernel.source.replace(old, new))
        monkeypatch.setattr(CELLS[cell], direction, changed)
    forget()


def use_sanitizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what takes all steps run under the thread sanitizer."""

    def compiled(source: str, names: Any, **kwargs: Any) -> Any:
        if any("_rows<" in name for name in names):
            kwargs["sanitize"] = "thread"
        return runner.compile_module(source, names, **kwargs)

    monkeypatch.setattr(fake_cupy, "compile_module", compiled)
    forget()


def use_interpreter(monkeypatch: pytest.MonkeyPatch, arch: str, order: str = "together") -> None:
    monkeypatch.setattr(fake_cupy, "compile_module", Executor(arch, order).compile_module)
    forget()


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, e) for a, e in zip(found, expected, strict=True))


def caught_by(
    tool: str, cupy: Any, monkeypatch: pytest.MonkeyPatch, call: Any, expected: Any
) -> bool:
    """Return whether a tool finds something."""
    if tool == ORDERS:
        for order in ("forward", "reverse", *range(5)):
            use_order(monkeypatch, order)
            if not same(on(cupy, call), expected):
                return True
        return False
    if tool == INTERPRETER:
        use_interpreter(monkeypatch, "compute_90")
        try:
            on(cupy, call)
        except PtxError as error:
            return "race" in str(error)
    else:
        use_sanitizer(monkeypatch)
        try:
            on(cupy, call)
        except runner.SanitizerError as error:
            return "data race" in str(error)
    return False


@pytest.mark.parametrize(
    "tool", [ORDERS, INTERPRETER, pytest.param(SANITIZER, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.cuda_on_cpu
def test_a_planted_error_is_caught(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    tool: str,
) -> None:
    """By each of the tools that stand beside it, and by no other."""
    needs_tool(tool)
    cell, old, new, tools = PLANTED[name]
    has_processors(monkeypatch, 2)
    call = calls(4, 3, 17, lengths=(2, 4, 3))[cell]
    expected = on(cupy_on_cpu, call)
    planted(monkeypatch, cell, old, old.replace(BARRIER, "") if new is None else new)
    assert caught_by(tool, cupy_on_cpu, monkeypatch, call, expected) == (tool in tools)


def test_every_barrier_is_left_out_once() -> None:
    sources = {"lstm": rows_common.SOURCE, "gru": rows_gru.KERNELS}
    for cell, source in sources.items():
        names = [n for n, (c, _, new, _) in PLANTED.items() if c == cell and new is None]
        assert len(names) == source.count(BARRIER)


def needs_tool(tool: str) -> None:
    """Skip a test where a tool is missing."""
    reasons = {
        ORDERS: runner.have_gxx,
        INTERPRETER: nvrtc.have_nvrtc,
        SANITIZER: lambda: runner.have_sanitizer("thread"),
    }
    if reason := reasons[tool]():
        pytest.skip(reason)


@pytest.mark.parametrize(
    "tool", [ORDERS, INTERPRETER, pytest.param(SANITIZER, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_nothing_is_caught_where_nothing_is_wrong(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    tool: str,
) -> None:
    needs_tool(tool)
    has_processors(monkeypatch, 2)
    call = calls(4, 3, 17, lengths=(2, 4, 3))[cell]
    expected = on(cupy_on_cpu, call)
    assert not caught_by(tool, cupy_on_cpu, monkeypatch, call, expected)
    assert all(all(found) for found in taken.values())


def largest(kernel: Any, dtype: str) -> int:
    """Return the largest H that is taken."""
    kind = numpy_dtype(dtype)
    fits = [
        H for H in range(1, 300) if persistent.choose(kernel, kind, (9, H), 2, 1).kernel == "rows"
    ]
    assert fits == [*range(1, len(fits) + 1)]
    return fits[-1]


# The oldest architecture, and the one with most threads; the rest stands in results/registers.md.
@pytest.mark.parametrize(
    ("dtype", "arch"), [("float32", "sm_75"), ("float32", "sm_120"), ("float64", "sm_90")]
)
@pytest.mark.parametrize("cell", CELLS)
def test_what_is_taken_fits_into_the_registers(
    monkeypatch: pytest.MonkeyPatch, cell: str, dtype: str, arch: str
) -> None:
    reason = nvrtc.have_nvrtc()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    for direction in DIRECTIONS:
        kernel = getattr(CELLS[cell], direction)
        H = largest(kernel, dtype)
        assert (96 if dtype == "float32" else 32) <= H
        name = compile.instance(template_of(kernel, H, 4, compute_dtype(numpy_dtype(dtype))), dtype)
        source = common.source(dtype, kernel.source)
        usage = nvrtc.compile_cubin(source, (name,), arch, compile.OPTIONS).kernels[name]
        assert usage.spill_stores == usage.spill_loads == usage.stack == 0
        assert usage.registers * -(-threads_of(kernel.size, H) // 128) * 128 <= 65536


# One of each; what is left is slow.
QUICK = {
    ("lstm", "compute_75"), ("gru", "compute_80"), ("gru_reset_after", "compute_90"),
    ("lstm", "compute_100"), ("simple_rnn", "compute_120"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "arch"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in itertools.product(CELLS, ARCHITECTURES)
    ],
)
@pytest.mark.parametrize("order", ["together", "backward"])
@pytest.mark.cuda_on_cpu
def test_the_ptx_agrees(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    arch: str,
    order: str,
) -> None:
    """NVRTC's code, interpreted, every address and race looked at."""
    reason = nvrtc.have_nvrtc()
    if reason is not None:
        pytest.skip(reason)
    has_processors(monkeypatch, 2)
    call = calls(3, 3, 9, lengths=(1, 3, 2))[cell]
    expected = on(cupy_on_cpu, call)
    use_interpreter(monkeypatch, arch, order)
    for a, e in zip(on(cupy_on_cpu, call), expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)
    assert all(all(found) for found in taken.values())


def test_what_would_be_taken_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"batch_size": 300, "num_steps": 10, "processors": 132}

    def ask(cell: Any, H: int, **changed: Any) -> Any:
        return cupyrnn.recurrence_kernels(cell, num_units=H, **{**sizes, **changed})

    monkeypatch.delenv("CUPYRNN_PERSISTENT", raising=False)
    assert ask("lstm", 64).forward.kernel == "loop"
    assert "timed on a GPU" in ask("lstm", 64).forward.reason
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")
    assert ask("gru", 64).backward == ("loop", 0, "CUPYRNN_PERSISTENT is 'loop'")
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    for cell in ("lstm", "gru", "rnn_tanh", "rnn_relu", "block_gru"):
        assert [choice[:2] for choice in ask(cell, 64)] == [("rows", 4)] * 2
        assert [choice.kernel for choice in ask(cell, 300)] == ["loop"] * 2
    assert ask("lstm", 64, batch_size=132).forward.sequences == 1
    assert ask("lstm", 64, batch_size=133).forward.sequences == 2
    assert "two steps" in ask("lstm", 64, num_steps=1).forward.reason
    assert "registers" in ask("lstm", 128).forward.reason
    assert "threads" in ask("lstm", 257).forward.reason
    assert ask("lstm", 96).forward.kernel == "rows"
    assert ask("lstm", 96, dtype="float64").forward.kernel == "loop"
    assert ask("lstm", 64, dtype="float16").forward.kernel == "rows"
    for changed, message in (
        ({"cell": "sru"}, "recurrence_kernels: cell is 'sru', expected one of lstm, gru, "),
        ({"batch_size": -1}, "recurrence_kernels: batch_size is -1, expected at least 0"),
        ({"processors": 0}, "recurrence_kernels: processors is 0, expected at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            ask(**{"cell": "lstm", "H": 4, **changed})
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ValueError, match="processors is None, expected an integer, as there is no"):
        ask("lstm", 4, processors=None)
    with pytest.raises(TypeError, match="recurrence_kernels: dtype is 'int8', expected one of"):
        ask("lstm", 4, dtype="int8")
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "tile")
    with pytest.raises(ValueError, match="CUPYRNN_PERSISTENT is 'tile', expected one of auto, "):
        ask("lstm", 4)
