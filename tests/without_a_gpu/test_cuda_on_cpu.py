"""Tests of the harness that checks CUDA source strings without a GPU."""

from __future__ import annotations

import concurrent.futures
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

from cupyrnn.kernels import common, compile
from without_a_gpu.cuda_on_cpu import nvdisasm, nvrtc, runner
from without_a_gpu.cuda_on_cpu.runner import CompileError, KernelError, compile_module
from without_a_gpu.kernel import Kernel

pytestmark = pytest.mark.skipif(runner.have_gxx() is not None, reason=str(runner.have_gxx()))


TOGETHER = r"""
__global__ void read_poison(unsigned* out, int dynamic_words) {
  __shared__ unsigned fixed[4];
  extern __shared__ unsigned dynamic[];
  for (int i = 0; i < 4; ++i) *out++ = fixed[i];
  for (int i = 0; i < dynamic_words; ++i) *out++ = dynamic[i];
  for (int i = 0; i < 4; ++i) fixed[i] = 0;
  for (int i = 0; i < dynamic_words; ++i) dynamic[i] = 0;
}

// each block waits for its right-hand neighbor
__global__ void chain(volatile int* done) {
  if (threadIdx.x == 0) {
    while (blockIdx.x + 1 < gridDim.x && done[blockIdx.x + 1] == 0) __nanosleep(20);
  }
  __syncthreads();
  if (threadIdx.x == blockDim.x - 1) done[blockIdx.x] = 1;
}

__global__ void spin_for_ever() {
  for (;;) __nanosleep(20);
}

__global__ void two_barriers() {
  if (threadIdx.x < 5) __syncthreads();  // low
  else __syncthreads();                  // high
}

__global__ void leave_early() {
  if (threadIdx.x >= 5) return;
  __syncthreads();
}

__global__ void shuffle_apart(float* x) {
  if (threadIdx.x < 20) x[threadIdx.x] = __shfl_xor_sync(0xffffffff, x[threadIdx.x], 1);
}

__global__ void shuffle_unnamed(float* x) {
  x[threadIdx.x] = __shfl_xor_sync(0x0000ffff, x[threadIdx.x], 1);
}

__global__ void two_masks(float* x) {
  x[threadIdx.x] = __shfl_xor_sync(threadIdx.x == 0 ? 0x00000003 : 0xffffffff, x[threadIdx.x], 1);
}

"""
TOGETHER_NAMES = tuple(re.findall(r"__global__ void (\w+)", TOGETHER))

# As the package's kernels read and write numbers of 16 bits.
NARROW = """
template <typename T>
__global__ void convert(const T* x, float* wide_x, const float* y, T* narrow_y, int n, int m) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) wide_x[i] = wide(x[i]);
  if (i < m) store(narrow_y + i, y[i]);
}
"""


def kernel(source: str, names: Sequence[str], name: str, **settings: Any) -> Kernel:
    return compile_module(source, names, **settings).get_function(name)


def together(name: str, **settings: Any) -> Kernel:
    return kernel(TOGETHER, TOGETHER_NAMES, name, **settings)


def line_of(source: str, text: str) -> int:
    (line,) = [i for i, line in enumerate(source.splitlines(), 1) if line.endswith(text)]
    return line


def test_every_block_finds_its_shared_memory_poisoned() -> None:
    out = np.zeros(7, np.uint32)
    together("read_poison")((3,), (1,), (out, np.int32(3)), shared_mem=12)
    np.testing.assert_array_equal(out, np.full(7, 0xFFFFFFFF))


def test_few_libraries_keep_their_fibers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have about 65,000 mappings; each thread at a barrier has a fiber, with two."""

    def mappings_after(n: int) -> int:
        source = f"__global__ void wait(int* out) {{ __syncthreads(); out[threadIdx.x] = {n}; }}"
        out = np.zeros(1024, np.int32)
        kernel(source, ("wait",), "wait")((1,), (1024,), (out,))
        assert np.all(out == n)
        with open("/proc/self/maps") as file:
            return len(file.readlines())

    monkeypatch.setattr(runner, "_MOST_LIBRARIES", 2)
    # Those of earlier tests are forgotten, however many.
    _, two, *others = (mappings_after(n) for n in (1, 2, 3, 4, 3, 4, 1))
    assert two >= 2 * 2 * 1024
    assert max(others) < two + 500


@pytest.mark.parametrize("order", runner.ORDERS)
def test_blocks_that_wait_in_a_spin_loop(order: str) -> None:
    done = np.zeros(9, np.int32)
    together("chain", order=order)((9,), (64,), (done,))
    np.testing.assert_array_equal(done, np.ones(9))


@pytest.mark.parametrize(
    ("name", "grid", "args", "message"),
    [
        ("two_barriers", 1, (), "block barrier in line {low}, .* block barrier in line {high}|"
         "block barrier in line {high}, .* block barrier in line {low}"),
        ("leave_early", 1, (), "waits at the block barrier .* has left the kernel"),
        ("shuffle_apart", 1, (np.zeros(64, np.float32),), "__shfl_xor_sync .* has left"),
        ("shuffle_unnamed", 1, (np.zeros(64, np.float32),), "lane 16 is not in the mask"),
        ("two_masks", 1, (np.zeros(64, np.float32),), "mask 0x00000003 .* mask 0xffffffff"),
        ("spin_for_ever", 2, (), "128 threads spin for ever"),
    ],
)  # fmt: skip
def test_threads_that_never_come_are_reported(
    name: str, grid: int, args: tuple[Any, ...], message: str
) -> None:
    places = {text: line_of(TOGETHER, f"// {text}") for text in ("low", "high")}
    with pytest.raises(KernelError, match=message.format(**places)):
        together(name)((grid,), (64,), args)
    # A failed launch must not harm the next one.
    test_blocks_that_wait_in_a_spin_loop("forward")


def encode_cases(codes: np.ndarray) -> np.ndarray:
    """Return float32 numbers where rounding to a 16-bit format is decided, and random ones.

    ``codes`` are the format's finite values in float32: themselves, the midpoints between
    neighbors, and the float32 neighbors of both.
    """
    values = np.unique(codes).astype(np.float64)
    middle = (values[1:] + values[:-1]) / 2
    near = np.concatenate([values, middle]).astype(np.float32)
    bits = np.random.default_rng(0).integers(0, 2**32, 2**19, dtype=np.uint32)
    edges = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 65519.996, 65520, 65536], np.float32)
    top = np.finfo(np.float32).max
    parts = [
        near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf)),
        bits.view(np.float32), edges, np.array([top, -top], np.float32),
    ]  # fmt: skip
    return np.concatenate(parts)


def assert_same_numbers(result: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit by bit, but for the payload of a NaN."""
    bits = f"u{result.itemsize}"
    with np.errstate(invalid="ignore"):  # signaling NaNs
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(result), nan)
    np.testing.assert_array_equal(result.view(bits)[~nan], expected.view(bits)[~nan])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_narrow_floats_convert_exactly(name: str) -> None:
    dtype = needs.dtype(name)
    codes = np.arange(2**16, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        wide = codes.astype(np.float32)
        y = encode_cases(wide[np.isfinite(wide)])
        narrow = y.astype(dtype)
    found, found_narrow = np.empty_like(wide), np.empty_like(narrow)
    expression = compile.instance("convert<{T}>", name)
    run = kernel(common.source(name, NARROW), [expression], expression)
    sizes = np.int32(codes.size), np.int32(y.size)
    run((-(-y.size // 1024),), (1024,), (codes, found, y, found_narrow, *sizes))
    assert_same_numbers(found, wide)
    assert_same_numbers(found_narrow, narrow)


def test_compile_errors_name_the_line() -> None:
    source = "__global__ void broken(int* x) {\n  x[0] = missing;\n}\n"
    with pytest.raises(CompileError, match=r"kernel\.cu:2:.*'missing' was not declared"):
        compile_module(source, ["broken"])
    # A header that CUDA needs is needed here too.
    with pytest.raises(CompileError, match="__half"):
        compile_module("__global__ void f(__half* x) { }", ["f"])
    with pytest.raises(CompileError, match="allowed_in_functions_only"):
        compile_module("extern __shared__ float x[];\n__global__ void f() { x[0] = 1; }", ["f"])


def test_compiled_objects_are_kept_and_parallel_compiling_is_safe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = f"__global__ void store(int* x) {{ x[0] = 1; }}  // {uuid.uuid4()}"
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        paths = set(pool.map(lambda text: runner.build(text, ("store",), ()), [source] * 3))
    assert len(paths) == 1

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("g++ was called though the object is in the cache")

    monkeypatch.setattr("subprocess.run", refuse)
    assert runner.build(source, ("store",), ()) in paths


def test_nvrtc_errors_name_the_line() -> None:
    needs.tool(nvrtc.have_nvrtc())
    with pytest.raises(nvrtc.NvrtcError, match=r"kernel\.cu\(2\): error: .*missing"):
        nvrtc.compile_cubin(
            "__global__ void broken(int* x) {\n  x[0] = missing;\n}", ["broken"], "sm_90"
        )


# Of 1,024 threads none has the registers for 96 numbers.
SPILLS = r"""
__global__ void __launch_bounds__(1024) spills(float* x, int n) {
  float v[96];
  for (int i = 0; i < 96; ++i) v[i] = x[i];
  for (int s = 0; s < n; ++s)
    for (int i = 0; i < 96; ++i) v[i] = v[i] * v[(i * 7 + 3) % 96] + x[i + s];
  for (int i = 0; i < 96; ++i) x[i] = v[i];
}
"""


def test_the_disassembler_shows_what_a_loop_reloads() -> None:
    needs.tool(nvrtc.have_nvrtc(), nvdisasm.have_nvdisasm())
    for body, reloads in ((SPILLS, True), (SPILLS.replace("96", "6"), False)):
        cubin = nvrtc.compile_cubin(body, ("spills",), "sm_90")
        loop = nvdisasm.loops(cubin)["spills"][0]
        assert loop["FFMA"] > 0
        usage = cubin.kernels["spills"]
        spilled = loop["LDL"], usage.spill_loads, usage.spill_stores, usage.stack
        assert [n > 0 for n in spilled] == [reloads] * 4
        assert usage.registers <= 64


def test_the_limit_of_mappings_is_a_reason_to_skip(tmp_path: Path) -> None:
    limit = tmp_path / "max_map_count"
    limit.write_text("65530\n")
    reason = "needs vm.max_map_count above 65536: it is 65530"
    assert runner.too_few_mappings(1 << 15, str(limit)) == reason
    assert runner.too_few_mappings(1 << 14, str(limit)) is None
    assert runner.too_few_mappings(1 << 15, str(tmp_path / "none")) is None
