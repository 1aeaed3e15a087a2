"""What every executor of kernels does, g++'s fibers and the interpreter of PTX alike."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import needs
import numpy as np
import pytest

from without_a_gpu.cuda_on_cpu import runner
from without_a_gpu.kernel import Kernel
from without_a_gpu.ptx.compiler import have_ptx
from without_a_gpu.ptx.executor import Executor

SOURCE = r"""
__global__ void indices(int* out) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] += 1 + block * threads + thread;
}

// out[block] = sum of the block's part of x
template <typename T, int threads>
__global__ void __launch_bounds__(threads) reduce(const T* __restrict__ x, T* out, int n) {
  __shared__ alignas(16) T part[threads];
  const int t = threadIdx.x, i = blockIdx.x * threads + t;
  part[t] = i < n ? x[i] : T(0);
  LOAD
  for (int half_way = threads / 2; half_way > 0; half_way /= 2) {
    if (t < half_way) part[t] = part[t] + part[t + half_way];
    ADD
  }
  if (t == 0) out[blockIdx.x] = part[0];
}

// neighbors exchange
__global__ void rotate(const float* x, float* y) {
  __shared__ float part[64];
  const int t = threadIdx.x;
  part[t] = x[blockIdx.x * 64 + t];
  LOAD
  y[blockIdx.x * 64 + t] = part[(t + 1) % 64];
}
"""
NAMES = ("indices", "reduce<float, 256>", "reduce<double, 64>", "rotate")
BARRIERS = {"LOAD": "__syncthreads();", "ADD": "__syncthreads();"}
EXECUTORS = {
    **{f"g++ {order}": functools.partial(runner.compile_module, order=order)
       for order in runner.ORDERS},
    **{arch: Executor(arch).compile_module for arch in ("compute_75", "compute_100")},
}  # fmt: skip


def compiled(executor: str, **barriers: str) -> Any:
    needs.tool(runner.have_gxx() if executor.startswith("g++") else have_ptx())
    options = [f"-D{name}={text}" for name, text in (BARRIERS | barriers).items()]
    return EXECUTORS[executor](SOURCE, NAMES, options=options)


@pytest.fixture(params=EXECUTORS)
def kernel(request: pytest.FixtureRequest) -> Callable[[str], Kernel]:
    """A function that returns a kernel by its name."""
    found: Callable[[str], Kernel] = compiled(request.param).get_function
    return found


def test_threads_and_barriers(kernel: Any, rng: np.random.Generator) -> None:
    grid, block = (3, 2, 2), (5, 4, 3)
    out = np.zeros(12 * 60, np.int32)
    kernel("indices")(grid, block, (out,))
    np.testing.assert_array_equal(out, np.arange(1, out.size + 1))

    n = 1000
    x = rng.integers(1, 9, n).astype(np.float32)
    sums = np.full(5, np.nan, np.float32)
    kernel("reduce<float, 256>")((4,), (256,), (x, sums, np.int32(n)))
    np.testing.assert_array_equal(sums, [*np.add.reduceat(x, np.arange(0, n, 256)), np.nan])
    x64, sums64 = x.astype(np.float64), np.full(16, np.nan)
    kernel("reduce<double, 64>")((16,), (64,), (x64, sums64, np.int32(n)))
    np.testing.assert_array_equal(sums64, np.add.reduceat(x64, np.arange(0, n, 64)))

    data = rng.random(192).astype(np.float32)
    rotated = np.full_like(data, np.nan)
    kernel("rotate")((3,), (64,), (data, rotated))
    np.testing.assert_array_equal(rotated, np.roll(data.reshape(3, 64), -1, 1).ravel())


@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_missing_barrier_changes_the_result(barrier: str, rng: np.random.Generator) -> None:
    """Of g++, where the order of threads shows it."""
    x, sums = rng.integers(1, 9, 1000).astype(np.float32), np.full(4, np.nan, np.float32)
    reduce = compiled("g++ forward", **{barrier: ""}).get_function("reduce<float, 256>")
    reduce((4,), (256,), (x, sums, np.int32(1000)))
    assert not np.any(sums == np.add.reduceat(x, np.arange(0, 1000, 256)))
    # What is only read later on is written first, but in the other order.
    rotated = np.full(64, np.nan, np.float32)
    rotate = compiled("g++ reverse", LOAD="").get_function("rotate")
    rotate((1,), (64,), (x[:64], rotated))
    np.testing.assert_array_equal(rotated, [*x[1:64], np.nan])


@pytest.mark.parametrize("executor", [name for name in EXECUTORS if "g++" not in name])
@pytest.mark.parametrize("name", ["reduce<float, 256>", "rotate"])
def test_a_missing_barrier_is_a_race(executor: str, name: str, rng: np.random.Generator) -> None:
    x = rng.random(192).astype(np.float32)
    run = compiled(executor, LOAD="").get_function(name)
    places = (
        r"a race for 4 bytes of shared memory, at offset \d+:\n"
        r"thread \((\d+), 0, 0\) of block \((\d), 0, 0\) writes in line \d+: st\.shared\S+ .*\n"
        r"thread \((\d+), 0, 0\) of block \((\d), 0, 0\) reads in line \d+: ld\.shared\S+ .*"
    )
    more = (np.int32(192),) if name != "rotate" else ()
    with pytest.raises(RuntimeError, match=places) as raised:
        run((3,), (64 if name == "rotate" else 256,), (x, np.zeros_like(x), *more))
    writer, block, reader, same_block = map(int, re.search(places, str(raised.value)).groups())
    assert block == same_block
    assert writer == ((reader + 1) % 64 if name == "rotate" else reader + 128)
