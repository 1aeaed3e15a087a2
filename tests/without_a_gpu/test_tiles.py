"""Tiles, by tensor cores: what is taken, arrays that begin anywhere, the product of a warp."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from cupyrnn.kernels import common, compile, tiles
from without_a_gpu.agreement import numpy_dtype
from without_a_gpu.all_steps import CELLS, FRAMES, calls, choices, on
from without_a_gpu.cuda_on_cpu import nvrtc
from without_a_gpu.cuda_on_cpu.runner import compile_module
from without_a_gpu.ptx.executor import Executor

HALVES = ("float16", "bfloat16")


@pytest.mark.parametrize("cell", CELLS)
def test_arrays_that_begin_anywhere(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    """Two numbers are read at once where they may be, with the same result."""
    FRAMES["tiles"].ask(monkeypatch)
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
        executors += [
            Executor(f"compute_{arch}").compile_module for arch in ("80", "90", "100", "120")
        ]
    for compiled in executors:
        d = fragment_d.copy()
        kernel = compiled(source, (name,), options=compile.OPTIONS).get_function(name)
        words = (f.reshape(32, -1).view(np.uint32) for f in (fragment_a, fragment_b))
        kernel((1,), (32,), (*words, d))
        result = np.empty((16, 8))
        for lower in (0, 1):
            result[group + 8 * lower, 2 * in_group + second] = d[lane, 2 * lower + second]
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_what_would_be_taken_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "tiles")

    for cell in ("lstm", "gru", "block_gru", "rnn_tanh", "rnn_relu"):
        assert [choice[:2] for choice in choices(cell, num_units=128, dtype="float16")] == [
            ("tiles", 8)
        ] * 2
    assert choices(dtype=numpy_dtype("bfloat16"), architecture=80).backward.kernel == "tiles"
    assert "256 threads" in choices(num_units=128, dtype="float16").forward.reason
    for changed, reason in (
        ({"dtype": "float32"}, "float16 and bfloat16, and the dtype is float32"),
        ({"architecture": 75}, "sm_80 or later, and the GPU is sm_75"),
        ({"num_units": 129}, "H up to 128, and H is 129"),
        ({"num_steps": 1}, "two steps at least"),
    ):
        for choice in choices(**{"dtype": "float16", **changed}):
            assert choice[:2] == ("loop", 0)
            assert reason in choice.reason
    # Not in place of each other.
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "rows")
    assert choices(dtype="float16").forward.kernel == "rows"
