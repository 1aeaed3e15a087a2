"""The kernels that take all steps by tensor cores: values, orders, batches, errors, registers."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checks import TOLERANCES
from problems import nets
from problems.nets import BI, Case

import cupyrnn
from cupyrnn.kernels import common, compile, persistent, tiles
from cupyrnn.kernels.tiles import MOST_UNITS, template_of, threads_of
from without_a_gpu.agreement import agrees_with_numpy, numpy_dtype, rnn_agrees_with_numpy
from without_a_gpu.all_steps import (
    ALL,
    BARRIER,
    CELLS,
    DIRECTIONS,
    INTERPRETER,
    ORDERS,
    SANITIZER,
    calls,
    caught_by,
    has_device,
    interpreted,
    launches,
    needs_tool,
    on,
    plant,
    taken_by,
    use_order,
)
from without_a_gpu.cuda_on_cpu import nvrtc
from without_a_gpu.cuda_on_cpu.runner import compile_module
from without_a_gpu.ptx.executor import Executor

HALVES = ("float16", "bfloat16")
ARCHITECTURES = ("80", "90", "100", "120")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bool]]:
    """Whether each cell's kernels took the steps they were asked to take."""
    return taken_by(monkeypatch, "tiles")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("B", "H"),
    [
        (9, 33),
        pytest.param(17, 36, marks=pytest.mark.slow),
        (3, 1),
        pytest.param(1, 128, marks=pytest.mark.slow("bfloat16")),
    ],
)
@pytest.mark.cuda_on_cpu
def test_tiles_agree_with_numpy(
    cupy_on_cpu: ModuleType, taken: dict[str, list[bool]], dtype: str, B: int, H: int
) -> None:
    tiles_agree_with_numpy(cupy_on_cpu, taken, dtype, B, H)


@pytest.mark.parametrize(
    ("dtype", "B", "H"), [("float16", 9, 33), ("bfloat16", 3, 36), ("float16", 1, 128)]
)
@pytest.mark.gpu
def test_tiles_on_a_gpu_agree_with_numpy(
    cupy_on_gpu: ModuleType, taken: dict[str, list[bool]], dtype: str, B: int, H: int
) -> None:
    if persistent.current_device().architecture < 80:
        pytest.skip("needs a GPU of sm_80 or later")
    tiles_agree_with_numpy(cupy_on_gpu, taken, dtype, B, H)


def tiles_agree_with_numpy(
    cupy: Any, taken: dict[str, list[bool]], dtype: str, B: int, H: int
) -> None:
    """Peepholes, clip, hard gates, both directions, lengths, two layers, dropout."""
    agrees_with_numpy(cupy, dtype, (3, B, 3, H), 2)
    lengths = tuple(np.resize([3, 1, 0, 2], B).tolist())
    for mode in nets.MODES:
        rnn_agrees_with_numpy(cupy, Case(mode, 3, B, 2, H, 2, BI, lengths=lengths), dtype)
    for cell in CELLS:
        for direction in ("forward", "backward"):
            # Where a step is alone, the loop has no more launches.
            assert any(taken[f"{cell}_{direction}"])


@pytest.mark.cuda_on_cpu
def test_what_does_not_fit_is_the_loops(
    cupy_on_cpu: ModuleType, taken: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projection, one step, float32, a matrix that is too large, an old device."""
    rnn_agrees_with_numpy(cupy_on_cpu, Case("lstm", 3, 4, 2, 9, num_proj=3), "float16")
    agrees_with_numpy(cupy_on_cpu, "float16", (1, 4, 3, 9))
    agrees_with_numpy(cupy_on_cpu, "float32", (3, 4, 3, 9))
    agrees_with_numpy(cupy_on_cpu, "float16", (2, 2, 2, 129))
    has_device(monkeypatch, 40, 75)
    agrees_with_numpy(cupy_on_cpu, "float16", (2, 2, 2, 8))
    assert not any(itertools.chain(*taken.values()))
    assert taken


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.cuda_on_cpu
def test_the_bits_of_a_sequence_do_not_depend_on_the_others(
    cupy_on_cpu: ModuleType, taken: dict[str, list[bool]], cell: str, dtype: str
) -> None:
    """In any place of a block, in another order, alone."""
    function, ((x, *others), weights) = calls(4, 11, 18, dtype)[cell]
    # The product with x is not made by these kernels, and may depend on the batch.
    call = function, ((np.zeros_like(x), *others), weights)
    expected = on(cupy_on_cpu, call)
    for order in (np.array([3, 0, 10, 6, 5, 1, 4, 9, 8, 7, 2]), slice(4, 5), slice(0, 3)):
        for a, e in zip(on(cupy_on_cpu, call, order), expected, strict=True):
            if a.shape[2] != 3:  # the gradient of x is cuBLAS's product
                np.testing.assert_array_equal(a, e[:, order])
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
    call = calls(4, 9, 34, "float16")[cell]
    expected = on(cupy_on_cpu, call)
    for order in ("reverse", *range(20)):
        use_order(monkeypatch, order)
        for a, e in zip(on(cupy_on_cpu, call), expected, strict=True):
            np.testing.assert_array_equal(a, e)
    assert all(all(found) for found in taken.values())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_as_many_launches_whatever_the_number_of_steps(
    cupy_on_cpu: Any, taken: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    found = [launches(cupy_on_cpu, monkeypatch, calls(T, 2, 6, "float16")[cell]) for T in (2, 20)]
    assert found[0] == found[1]
    assert "gemmEx" in found[0]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_arrays_that_begin_anywhere(
    cupy_on_cpu: Any, taken: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    """Two numbers are read at once where they may be, with the same result."""
    function, (sequences, weights) = calls(4, 3, 6, "float16")[cell]
    compiled: list[str] = []
    compile_kernel = compile.kernel

    def noted(*args: Any) -> Any:
        compiled.append(args[3])
        return compile_kernel(*args)

    monkeypatch.setattr("cupyrnn.kernels.launch.kernel", noted)

    def moved(a: np.ndarray) -> Any:
        """Return the array where an odd element begins."""
        memory = cupy_on_cpu.empty(a.size + 1, a.dtype)
        memory[1:] = cupy_on_cpu.asarray(a.ravel())
        return memory[1:].reshape(a.shape)

    expected = on(cupy_on_cpu, (function, (sequences, weights)))
    assert all("true" in name for name in compiled if "_tiles" in name)
    compiled.clear()
    found = function([moved(a) for a in sequences], [moved(w) for w in weights])
    assert any("false" in name for name in compiled if "_tiles" in name)
    for a, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(cupy_on_cpu.asnumpy(a), e)


MMA = r"""
template <typename T> __global__ void one_product(const unsigned* a, const unsigned* b, float* d)
{
    const int lane = threadIdx.x;
    float sums[4];
    unsigned left[4];
    for (int k = 0; k < 4; ++k) sums[k] = d[4 * lane + k], left[k] = a[4 * lane + k];
    mma<T>(sums, left, b[2 * lane], b[2 * lane + 1]);
    for (int k = 0; k < 4; ++k) d[4 * lane + k] = sums[k];
}
"""


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.cuda_on_cpu
def test_the_two_products_of_a_warp_agree(dtype: str) -> None:
    """That of the g++ executor and that of the PTX interpreter, with each other and with NumPy."""
    rng = np.random.default_rng(5)
    kind = numpy_dtype(dtype)
    a, b = (rng.standard_normal(s).astype(kind) for s in ((16, 16), (16, 8)))
    c = rng.standard_normal((16, 8)).astype(np.float32)
    # As the manual of PTX draws them, row by row: which lane has an element, and where.
    group, in_group, second = np.indices((8, 4, 2)).reshape(3, -1)
    lane = 4 * group + in_group
    fragment_a = np.zeros((32, 4, 2), kind)
    fragment_b = np.zeros((32, 2, 2), kind)
    fragment_d = np.zeros((32, 4), np.float32)
    for lower, right in itertools.product((0, 1), (0, 1)):
        rows, columns = group + 8 * lower, 2 * in_group + 8 * right + second
        fragment_a[lane, lower + 2 * right, second] = a[rows, columns]
    for lower in (0, 1):
        fragment_b[lane, lower, second] = b[2 * in_group + 8 * lower + second, group]
        fragment_d[lane, 2 * lower + second] = c[group + 8 * lower, 2 * in_group + second]
    expected = c + a.astype(np.float64) @ b.astype(np.float64)
    name = compile.instance("one_product<{T}>", dtype)
    source = common.source(dtype, tiles.SOURCE + MMA)
    executors = [compile_module]
    if nvrtc.have_nvrtc() is None:
        executors += [Executor(f"compute_{arch}").compile_module for arch in ARCHITECTURES]
    for compiled in executors:
        d = fragment_d.copy()
        kernel = compiled(source, (name,), options=compile.OPTIONS).get_function(name)
        words = (f.reshape(32, -1).view(np.uint32) for f in (fragment_a, fragment_b))
        kernel((1,), (32,), (*words, d))
        result = np.empty((16, 8))
        for lower in (0, 1):
            result[group + 8 * lower, 2 * in_group + second] = d[lane, 2 * lower + second]
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


# By the name of an error: the cell, the source before it and after, and what catches it. Without a
# new source, the barrier in the old one is left out.
PLANTED: dict[str, tuple[str, str, str | None, set[str]]] = {
    "no barrier before the matrix is read": (
        "lstm",
        f"= value(p, u, k);\n                }}\n            {BARRIER}",
        None,
        ALL,
    ),
    "no barrier before more of the matrix": (
        "lstm",
        f"= bits_of(x.v[n]);\n                }}\n            {BARRIER}",
        None,
        ALL,
    ),
    "no barrier between zeros and the first state": (
        "lstm",
        f"2 * SIZE);\n    {BARRIER}",
        None,
        ALL,
    ),
    "no barrier before the first step": ("lstm", f"fetch();\n    {BARRIER}", None, ALL),
    "no barrier after a step": (
        "gru_reset_after",
        f"made[1], both);\n                }}\n            {BARRIER}",
        None,
        ALL,
    ),
    "no barrier between zeros and deltas": ("lstm", f"make_factors();\n    {BARRIER}", None, ALL),
    "no barrier in a step back": (
        "gru_reset_after",
        f"if (any) {{\n            {BARRIER}",
        None,
        ALL,
    ),
    "no barrier between the products of a step back": (
        "gru",
        f"sums[2 * u + r]; }});\n                {BARRIER}",
        None,
        ALL,
    ),
    "one place for two states": ("lstm", "(turn ^ 1) * SIZE", "turn * SIZE", ALL),
    "one place for two deltas": ("lstm", "(s & 1) * SIZE : 0", "0 : 0", ALL),
    "a wrong lane": ("lstm", "(p - first) + 2 * me.g + u", "(p - first) + me.g + 8 * u", {ORDERS}),
    "a wrong half of a fragment": ("gru_reset_after", "n % 2 * 2 + u]", "n % 2 + 2 * u]", {ORDERS}),
    "a wrong slice": ("gru_reset_after", "mine[4 * k], part", "mine[4 * (k / 2)], part", {ORDERS}),
    "another sequence": ("lstm", "return g * STRIDE", "return q * STRIDE", {ORDERS}),
    "a step too early": ("gru_reset_after", "to = at[s + 2];", "to = at[s + 1];", {ORDERS}),
    "a unit that is not there": ("lstm", "both ? second : 0.f", "1.f", {ORDERS}),
}
TOOLS = [ORDERS, INTERPRETER, pytest.param(SANITIZER, marks=pytest.mark.slow)]


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        # Slow: the thread sanitizer, and the interpreter where it is to find nothing.
        pytest.param(name, tool, marks=[pytest.mark.slow] * (tool != ORDERS or tool not in tools))
        for name, (_, _, _, tools) in PLANTED.items()
        for tool in (ORDERS, INTERPRETER, SANITIZER)
    ],
)
@pytest.mark.cuda_on_cpu
def test_a_planted_error_is_caught(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    tool: str,
) -> None:
    """By the tools that are named, and no other."""
    needs_tool(tool)
    cell, old, new, tools = PLANTED[name]
    call = calls(4, 9, 35, "float16", (2, 4, 3, 1, 4, 2, 3, 4, 1))[cell]
    expected = on(cupy_on_cpu, call)
    plant(monkeypatch, cell, "tiles", (old, old.replace(BARRIER, "") if new is None else new))
    assert caught_by(tool, cupy_on_cpu, monkeypatch, call, expected) == (tool in tools)


@pytest.mark.cuda_on_cpu
def test_every_barrier_is_left_out_once() -> None:
    names = [n for n, (_, _, new, _) in PLANTED.items() if new is None]
    assert len(names) == tiles.SOURCE.count(BARRIER)


@pytest.mark.parametrize("tool", TOOLS)
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
    call = calls(4, 9, 35, "float16", (2, 4, 3, 1, 4, 2, 3, 4, 1))[cell]
    expected = on(cupy_on_cpu, call)
    assert not caught_by(tool, cupy_on_cpu, monkeypatch, call, expected)
    assert all(all(found) for found in taken.values())


@pytest.mark.parametrize(
    "arch",
    [ARCHITECTURES[0], *(pytest.param(a, marks=pytest.mark.slow) for a in ARCHITECTURES[1:])],
)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.cuda_on_cpu
def test_what_is_taken_fits_into_the_registers(cell: str, arch: str) -> None:
    """At the largest H, and at one that is odd."""
    reason = nvrtc.have_nvrtc()
    if reason is not None:
        pytest.skip(reason)
    dtype = "bfloat16" if arch == "80" else "float16"
    for direction in DIRECTIONS:
        kernel = getattr(CELLS[cell], direction).tiles
        for H, pairs in ((MOST_UNITS, True), (MOST_UNITS - 1, False)):
            name = compile.instance(template_of(kernel, H, pairs), dtype)
            source = common.source(dtype, kernel.source)
            cubin = nvrtc.compile_cubin(source, (name,), f"sm_{arch}", compile.OPTIONS)
            usage = cubin.kernels[name]
            assert usage.spill_stores == usage.spill_loads == usage.stack == 0
            assert usage.registers * threads_of(H) <= 65536
            assert usage.shared <= 48 * 1024


# Two architectures of each; the rest is slow.
@pytest.mark.parametrize(
    ("cell", "arch", "order", "dtype"),
    [
        ("lstm", "80", "together", "bfloat16"),
        ("gru_reset_after", "90", "backward", "float16"),
        ("lstm", "100", "backward", "float16"),
        ("gru_reset_after", "120", "together", "bfloat16"),
        pytest.param("gru_reset_after", "80", "forward", "float16", marks=pytest.mark.slow),
        pytest.param("lstm", "90", "forward", "float16", marks=pytest.mark.slow),
        pytest.param("gru_reset_after", "100", "together", "float16", marks=pytest.mark.slow),
        pytest.param("lstm", "120", "forward", "bfloat16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.cuda_on_cpu
def test_the_ptx_agrees(
    cupy_on_cpu: ModuleType,
    taken: dict[str, list[bool]],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    arch: str,
    order: str,
    dtype: str,
) -> None:
    """NVRTC's code, interpreted, every address and race looked at; H odd and even."""
    tolerances = TOLERANCES[dtype], TOLERANCES[dtype]
    for H in (17, 34):
        call = calls(3, 9, H, dtype, (1, 3, 2, 3, 3, 1, 2, 3, 3))[cell]
        interpreted(cupy_on_cpu, monkeypatch, call, f"compute_{arch}", order, tolerances)
    assert all(all(found) for found in taken.values())


@pytest.mark.cuda_on_cpu
def test_what_would_be_taken_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "tiles")

    def ask(cell: Any = "lstm", **changed: Any) -> Any:
        sizes = {"batch_size": 300, "num_units": 64, "num_steps": 10, "dtype": "float16"}
        device = {"processors": 132, "architecture": 90}
        return cupyrnn.recurrence_kernels(cell, **{**sizes, **device, **changed})

    for cell in ("lstm", "gru", "block_gru", "rnn_tanh", "rnn_relu"):
        assert [choice[:2] for choice in ask(cell, num_units=128)] == [("tiles", 8)] * 2
    assert ask(dtype=numpy_dtype("bfloat16"), architecture=80).backward.kernel == "tiles"
    assert "256 threads" in ask(num_units=128).forward.reason
    for changed, reason in (
        ({"dtype": "float32"}, "float16 and bfloat16, and the dtype is float32"),
        ({"architecture": 75}, "sm_80 or later, and the GPU is sm_75"),
        ({"num_units": 129}, "H up to 128, and H is 129"),
        ({"num_steps": 1}, "two steps at least"),
    ):
        for choice in ask(**changed):
            assert choice[:2] == ("loop", 0)
            assert reason in choice.reason
    with pytest.raises(ValueError, match="architecture is 0, expected at least 1"):
        ask(architecture=0)
    # Not in place of each other.
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    assert ask().forward.kernel == "rows"
