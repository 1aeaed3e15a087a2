"""Tests of the harness that checks CUDA source strings without a GPU."""

from __future__ import annotations

import concurrent.futures
import re
import uuid
from collections.abc import Sequence
from typing import Any

import needs
import numpy as np
import pytest

from without_a_gpu.cuda_on_cpu import nvdisasm, nvrtc, runner
from without_a_gpu.cuda_on_cpu.nvrtc import compile_cubin
from without_a_gpu.cuda_on_cpu.runner import (
    CompileError,
    Kernel,
    KernelError,
    Parameter,
    Pointer,
    SanitizerError,
    compile_module,
)
from without_a_gpu.cuda_on_cpu.samples import PLAIN, REDUCE

pytestmark = pytest.mark.skipif(runner.have_gxx() is not None, reason=str(runner.have_gxx()))
needs_sanitizer = pytest.mark.skipif(
    runner.have_sanitizer() is not None, reason=str(runner.have_sanitizer())
)
needs_nvrtc = pytest.mark.skipif(nvrtc.have_nvrtc() is not None, reason=str(nvrtc.have_nvrtc()))

ORDERS = ("forward", "reverse")
HALVES = ("__half", "__nv_bfloat16")
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")


def names_of(source: str, *instances: str) -> tuple[str, ...]:
    """Return instances of the templates in a source, and its kernels that are none."""
    return *instances, *re.findall(r'(?<!>\n)^(?:extern "C" )?__global__ void (\w+)', source, re.M)


REDUCE_NAMES = names_of(
    REDUCE,
    *("reduce<float, 256>", "reduce<double, 64>", "reduce<__half, 32>"),
    "reduce<__nv_bfloat16, 32>",
)
PLAIN_NAMES = names_of(PLAIN, "scale<float>")

TOGETHER = r"""
__global__ void from_left(const float* x, float* out) {
  __shared__ float part[64];
  const int t = threadIdx.x;
  part[t] = x[t];
  out[t] = t ? part[t - 1] : 0.0f;
}

template <typename T>
__global__ void neighbors(const T* x, T* out) {
  const int lane = threadIdx.x;
  out[lane] = __shfl_xor_sync(0xffffffff, x[lane], 5);
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
TOGETHER_NAMES = names_of(TOGETHER, "neighbors<float>", "neighbors<double>")

NARROW = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>

template <typename From, typename To>
__global__ void convert(const From* x, To* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = To(x[i]);
}

template <typename T>
__global__ void arithmetic(const T* a, const T* b, T* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i] = a[i] + b[i];
  out[n + i] = a[i] - b[i];
  out[2 * n + i] = a[i] * b[i];
  out[3 * n + i] = a[i] / b[i];
  out[4 * n + i] = -a[i];
}

__global__ void by_name(const float* x, __half* h, __nv_bfloat16* b, float* back, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  h[i] = __float2half(x[i]);
  b[i] = __float2bfloat16(x[i]);
  back[i] = __half2float(h[i]);
  back[n + i] = __bfloat162float(b[i]);
}
"""
NARROW_NAMES = names_of(
    NARROW,
    *(f"convert<{wide}, {narrow}>" for wide in ("float", "double") for narrow in HALVES),
    *(f"convert<{narrow}, float>" for narrow in HALVES),
    *(f"arithmetic<{narrow}>" for narrow in HALVES),
)


def kernel(source: str, names: Sequence[str], name: str, **settings: Any) -> Kernel:
    return compile_module(source, names, **settings).get_function(name)


def plain(name: str, **settings: Any) -> Kernel:
    return kernel(PLAIN, PLAIN_NAMES, name, **settings)


def together(name: str, **settings: Any) -> Kernel:
    return kernel(TOGETHER, TOGETHER_NAMES, name, **settings)


def line_of(source: str, text: str) -> int:
    (line,) = [i for i, line in enumerate(source.splitlines(), 1) if line.endswith(text)]
    return line


def reduce_blocks(source: str, order: str = "forward") -> tuple[np.ndarray, np.ndarray]:
    """Return sums of blocks of 256 as the kernel gives them and as they are."""
    n = 1000
    x = np.random.default_rng(0).integers(1, 9, n).astype(np.float32)
    out = np.full(-(-n // 256), np.nan, np.float32)
    run = kernel(source, REDUCE_NAMES, "reduce<float, 256>", order=order)
    run((out.size,), (256,), (x, out, np.int32(n)))
    return out, np.add.reduceat(x, np.arange(0, n, 256))


@pytest.mark.parametrize("order", ORDERS)
def test_reduction_with_barriers_is_right(order: str) -> None:
    result, expected = reduce_blocks(REDUCE, order)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("barrier", ["load", "add"])
def test_reduction_without_a_barrier_is_wrong(barrier: str) -> None:
    source = REDUCE.replace(f"__syncthreads();  // {barrier}", "")
    assert source != REDUCE
    result, expected = reduce_blocks(source)
    assert not np.any(result == expected)
    # The other order gives another result, which shows the dependence as well.
    assert not np.array_equal(reduce_blocks(source, "reverse")[0], result, equal_nan=True)


def test_reverse_order_shows_what_forward_hides() -> None:
    x = np.arange(1, 65, dtype=np.float32)
    results = {order: np.empty_like(x) for order in ORDERS}
    for order, out in results.items():
        together("from_left", order=order)((1,), (64,), (x, out))
    np.testing.assert_array_equal(results["forward"][1:], x[:-1])
    assert np.isnan(results["reverse"][1:]).all()


@pytest.mark.parametrize(
    ("name", "threads", "one", "total"),
    [
        ("reduce<double, 64>", 64, np.float64(1), 64),
        ("reduce<__half, 32>", 32, np.float16(1), 32),
        # NumPy knows bfloat16 only as bits: one, and thirty-two.
        ("reduce<__nv_bfloat16, 32>", 32, np.uint16(0x3F80), 0x4200),
    ],
)
def test_template_by_name_expression(name: str, threads: int, one: Any, total: int) -> None:
    x = np.full(threads, one)
    out = np.zeros_like(x[:1])
    kernel(REDUCE, REDUCE_NAMES, name)((1,), (threads,), (x, out, np.int32(threads)))
    assert out[0] == total


@pytest.mark.parametrize("order", ORDERS)
def test_dynamic_shared_memory(order: str) -> None:
    x = np.random.default_rng(0).integers(0, 9, 100).astype(np.float64)
    out = np.full(4, np.nan)
    run = kernel(REDUCE, REDUCE_NAMES, "reduce_dynamic", order=order)
    run((4,), (32,), (x, out, np.int32(100)), shared_mem=32 * 8)
    np.testing.assert_array_equal(out, np.add.reduceat(x, [0, 32, 64, 96]))
    with pytest.raises(KernelError, match="past the end of its 248 bytes"):
        run((4,), (32,), (x, out, np.int32(100)), shared_mem=31 * 8)


def test_every_block_finds_its_shared_memory_poisoned() -> None:
    out = np.zeros(7, np.uint32)
    plain("read_poison")((3,), (1,), (out, np.int32(3)), shared_mem=12)
    np.testing.assert_array_equal(out, np.full(7, 0xFFFFFFFF))


@pytest.mark.parametrize("order", ORDERS)
def test_every_thread_of_every_block_runs_once(order: str) -> None:
    grid, block = (3, 2, 2), (5, 4, 3)
    out = np.zeros(12 * 60, np.int32)
    plain("indices", order=order)(grid, block, (out,))
    np.testing.assert_array_equal(out, np.arange(1, out.size + 1))


def test_too_small_a_grid_leaves_the_rest_poisoned() -> None:
    x = np.ones(1000, np.float32)
    out = np.full(4, np.nan, np.float32)
    run = kernel(REDUCE, REDUCE_NAMES, "reduce<float, 256>")
    run((3,), (256,), (x, out, np.int32(1000)))
    np.testing.assert_array_equal(out, [256, 256, 256, np.nan])


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


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("ctype", "dtype"), [("float", np.float32), ("double", np.float64)])
def test_shuffles(ctype: str, dtype: type, order: str) -> None:
    x, out = np.arange(100, 132, dtype=dtype), np.full(32, np.nan, dtype)
    together(f"neighbors<{ctype}>", order=order)((1,), (32,), (x, out))
    np.testing.assert_array_equal(out, x[np.arange(32) ^ 5])


@pytest.mark.parametrize("order", ORDERS)
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


def test_scalars_are_passed_as_cupy_passes_them() -> None:
    out = np.full(9, np.nan)
    args = (True, np.int8(-3), np.uint16(65535), np.int32(-7), -(2**40), 2**63, np.float32(0.5),
            1e300, None, out)  # fmt: skip
    plain("take_all")((1,), (1,), args)
    np.testing.assert_array_equal(out, [1, -3, 65535, -7, -(2**40), 2**63, 0.5, 1e300, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: np.float64(2)}, "argument 1: the parameter is a float, a float64 passes a double"),
        ({1: 2.0}, "argument 1: the parameter is a float, a float passes a double"),
        ({2: 3}, "argument 2: the parameter is a 32-bit integer, a int passes a 64-bit integer"),
        ({2: np.int64(3)}, "argument 2: .* a int64 passes a 64-bit integer"),
        ({2: np.float32(3)}, "argument 2: the parameter is a 32-bit integer, a float32 passes"),
        ({0: np.float32(2), 1: np.ones(3, np.float32)}, "argument 0: the parameter is a pointer"),
        ({1: np.ones(3, np.float32)}, "argument 1: the parameter is a float, a ndarray passes"),
        ({1: None}, "argument 1: the parameter is a float, None passes a pointer"),
        ({0: 12345}, "argument 0: the parameter is a pointer"),
        ({0: np.ones(3, np.float64)}, "argument 0: .* pointer to float, the array is float64"),
        ({0: np.ones(3, np.int32)}, "argument 0: .* pointer to float, the array is int32"),
        ({1: "2"}, "argument 1: CuPy cannot pass a str"),
        ({3: np.int32(1)}, "takes 3 arguments, 4 were given"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(change: dict[int, Any], message: str) -> None:
    x = np.ones(3, np.float32)
    args = {0: x, 1: np.float32(2), 2: np.int32(3), **change}
    with pytest.raises(TypeError, match=message):
        plain("scale<float>")((1,), (3,), tuple(args.values()))
    np.testing.assert_array_equal(x, np.ones(3))


@pytest.mark.parametrize(
    ("grid", "block", "shared_mem"),
    [
        ((1,), (1025,), 0),
        ((1,), (32, 33), 0),
        ((1,), (1, 1, 65), 0),
        ((2**31,), (1,), 0),
        ((1, 65536), (1,), 0),
        ((1, 1, 65536), (1,), 0),
        ((1, 1, 1, 1), (1,), 0),
        ((1,), (1,), 48 * 1024 + 1),
    ],
)
def test_sizes_beyond_cuda_s_limits_are_refused(
    grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int
) -> None:
    with pytest.raises(ValueError, match=r"exceeds|possible|one to three"):
        plain("write_dynamic")(grid, block, (np.int32(1),), shared_mem=shared_mem)


def test_larger_shared_memory_can_be_asked_for() -> None:
    run = plain("write_dynamic")
    run.max_dynamic_shared_size_bytes = 100_000
    run((1,), (1,), (np.int32(25_000),), shared_mem=100_000)


def test_a_zero_size_counts_as_one_and_a_list_is_refused() -> None:
    x = np.ones(1, np.float32)
    plain("scale<float>")((0,), (1,), (x, np.float32(3), np.int32(1)))
    assert x[0] == 3
    with pytest.raises(TypeError, match="grid must be a tuple"):
        plain("scale<float>")([1], (1,), ())  # type: ignore[arg-type]


@pytest.mark.parametrize("sanitize", [None, pytest.param("address", marks=needs_sanitizer)])
def test_views_and_offsets(sanitize: str | None) -> None:
    x = np.ones(10, np.float32)
    run = plain("scale<float>", sanitize=sanitize)
    run((1,), (32,), (x[2:5], np.float32(3), np.int32(3)))
    run((1,), (32,), (Pointer(x) + 7 * 4, np.float32(5), np.int32(3)))
    np.testing.assert_array_equal(x, [1, 1, 3, 3, 3, 1, 1, 5, 5, 5])


@needs_sanitizer
def test_sanitizer_names_the_line_of_a_write_out_of_bounds() -> None:
    run = plain("write_at", sanitize="address")
    x = np.zeros(7, np.float32)
    run((1,), (1,), (x, 6))
    np.testing.assert_array_equal(x, [0] * 6 + [1])
    for index in (7, -1):
        with pytest.raises(SanitizerError, match="heap-buffer-overflow") as caught:
            run((1,), (1,), (x, index))
        assert caught.value.line == line_of(PLAIN, "// write_at")
        assert "WRITE of size 4" in caught.value.report
    with pytest.raises(SanitizerError):
        plain("write_byte_at", sanitize="address")((1,), (1,), (np.zeros(7, np.uint8), 7))
    # A view is as long as it says, whatever lies behind it.
    with pytest.raises(SanitizerError):
        run((1,), (1,), (x[:3], 3))


@needs_sanitizer
def test_sanitizer_watches_shared_memory() -> None:
    x = np.zeros(1, np.float32)
    with pytest.raises(SanitizerError, match="index 8 out of bounds") as caught:
        plain("write_shared_at", sanitize="address")((1,), (1,), (x, np.int32(8)))
    assert caught.value.line == line_of(PLAIN, "// write_shared_at")
    run = plain("write_dynamic", sanitize="address")
    run((1,), (1,), (np.int32(5),), shared_mem=20)
    with pytest.raises(SanitizerError, match="heap-buffer-overflow"):
        run((1,), (1,), (np.int32(6),), shared_mem=20)


@needs_sanitizer
def test_sanitized_launch_keeps_what_arrays_share() -> None:
    base = np.arange(12, dtype=np.float32)
    expected = base.copy()
    for i in range(8):
        expected[4 + i] += expected[i]
    run = plain("add_into", sanitize="address")
    run((1,), (1,), (base[:8], base[4:], np.int32(8)))
    np.testing.assert_array_equal(base, expected)
    # Views that only touch are apart.
    run((1,), (1,), (base[:6], base[6:], np.int32(6)))
    np.testing.assert_array_equal(base, np.append(expected[:6], expected[:6] + expected[6:]))
    with pytest.raises(SanitizerError):
        run((1,), (1,), (base[:5], base[5:], np.int32(6)))


@needs_sanitizer
@pytest.mark.parametrize("order", ORDERS)
def test_sanitized_threads_wait_for_one_another(order: str) -> None:
    done = np.zeros(5, np.int32)
    together("chain", sanitize="address", order=order)((5,), (40,), (done,))
    np.testing.assert_array_equal(done, np.ones(5))
    with pytest.raises(KernelError, match="has left the kernel") as caught:
        together("leave_early", sanitize="address", order=order)((1,), (64,), ())
    assert not isinstance(caught.value, SanitizerError)


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


def convert(name: str, x: np.ndarray, dtype: Any) -> np.ndarray:
    out = np.empty(x.size, dtype)
    run = kernel(NARROW, NARROW_NAMES, name)
    run((-(-x.size // 1024),), (1024,), (x, out, np.int32(x.size)))
    return out


def assert_same_numbers(result: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit by bit, but for the payload of a NaN."""
    bits = f"u{result.itemsize}"
    with np.errstate(invalid="ignore"):  # signaling NaNs
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(result), nan)
    np.testing.assert_array_equal(result.view(bits)[~nan], expected.view(bits)[~nan])


def narrow_dtype(name: str) -> np.dtype:
    if name == "__half":
        return np.dtype(np.float16)
    return np.dtype(needs.module("ml_dtypes").bfloat16)


@pytest.mark.parametrize("name", HALVES)
def test_narrow_floats_convert_exactly(name: str) -> None:
    dtype = narrow_dtype(name)
    codes = np.arange(2**16, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        wide = codes.astype(np.float32)
        assert_same_numbers(convert(f"convert<{name}, float>", codes, np.float32), wide)
        x = encode_cases(wide[np.isfinite(wide)])
        assert_same_numbers(convert(f"convert<float, {name}>", x, dtype), x.astype(dtype))


@pytest.mark.parametrize("name", HALVES)
def test_double_to_narrow_rounds_once(name: str) -> None:
    dtype = narrow_dtype(name)
    codes = np.arange(2**16, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        wide = codes.astype(np.float64)
    values = np.unique(wide[np.isfinite(wide)]) + 0.0  # of the two zeros the positive one
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    # By less than float32 can see to either side of the midpoint.
    gap = (high - low) * 2.0**-30
    assert_same_numbers(convert(f"convert<double, {name}>", middle - gap, dtype), low.astype(dtype))
    above = convert(f"convert<double, {name}>", middle + gap, dtype)
    # From below, the numbers next to zero round to minus zero.
    np.testing.assert_array_equal(above.astype(np.float64), high)


@pytest.mark.parametrize("name", HALVES)
def test_narrow_arithmetic_rounds_every_result(name: str) -> None:
    dtype = narrow_dtype(name)
    codes = np.random.default_rng(0).integers(0, 2**16, (2, 2**18), dtype=np.uint16)
    a, b = codes.view(dtype)
    out = np.empty((5, a.size), dtype)
    run = kernel(NARROW, NARROW_NAMES, f"arithmetic<{name}>")
    run((a.size // 256,), (256,), (a, b, out, np.int32(a.size)))
    with np.errstate(all="ignore"):
        expected = np.stack([a + b, a - b, a * b, a / b, -a])
    assert_same_numbers(out, expected)


def test_conversion_functions_by_name() -> None:
    bfloat16 = needs.module("ml_dtypes").bfloat16
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    half, brain = np.empty(1000, np.float16), np.empty(1000, bfloat16)
    back = np.empty((2, 1000), np.float32)
    run = kernel(NARROW, NARROW_NAMES, "by_name")
    run((4,), (256,), (x, half, brain, back, np.int32(1000)))
    np.testing.assert_array_equal(half, x.astype(np.float16))
    np.testing.assert_array_equal(brain, x.astype(bfloat16))
    np.testing.assert_array_equal(back, [half.astype(np.float32), brain.astype(np.float32)])
    with pytest.raises(TypeError, match="pointer to __nv_bfloat16, the array is float16"):
        run((4,), (256,), (x, half, half, back, np.int32(1000)))


def test_high_half_of_a_product() -> None:
    source = "typedef unsigned long long u64;\n__global__ void high(u64 a, u64 b, u64* out) {"
    source += " out[0] = __umul64hi(a, b); out[1] = a * b; }"
    run = kernel(source, ["high"], "high")
    for a, b in ((2**64 - 1, 2**64 - 1), (2**32, 2**32), (0xD2E7470EE14C6C93, 12345), (0, 7)):
        out = np.full(2, 99, np.uint64)
        run((1,), (1,), (np.uint64(a), np.uint64(b), out))
        assert [int(n) for n in out] == [a * b >> 64, a * b % 2**64]


def test_compile_errors_name_the_line() -> None:
    source = "__global__ void broken(int* x) {\n  x[0] = missing;\n}\n"
    with pytest.raises(CompileError, match=r"kernel\.cu:2:.*'missing' was not declared"):
        compile_module(source, ["broken"])
    # A header that CUDA needs is needed here too.
    with pytest.raises(CompileError, match="__half"):
        compile_module("__global__ void f(__half* x) { }", ["f"])
    with pytest.raises(CompileError, match="allowed_in_functions_only"):
        compile_module("extern __shared__ float x[];\n__global__ void f() { x[0] = 1; }", ["f"])


def test_options() -> None:
    source = "__global__ void store(int* x) { x[0] = VALUE; }"
    x = np.zeros(1, np.int32)
    options = ("--std=c++17", "-DVALUE=5", "--use_fast_math")
    kernel(source, ["store"], "store", options=options)((1,), (1,), (x,))
    assert x[0] == 5
    with pytest.raises(ValueError, match="does not know the option '--unheard-of'"):
        compile_module(source, ["store"], options=("--unheard-of",))
    with pytest.raises(KeyError, match="no kernel 'other'"):
        compile_module(source, ["store"], options=options).get_function("other")


def parameters_of_store(source: str) -> list[Parameter]:
    return kernel(source, ["store"], "store").parameters


def test_compiled_objects_are_kept_and_parallel_compiling_is_safe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = f"__global__ void store(int* x) {{ x[0] = 1; }}  // {uuid.uuid4()}"
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = list(pool.map(parameters_of_store, [source] * 3))
    assert [str(p) for p in results[0]] == ["pointer to 32-bit integer"]
    assert results[1:] == results[:-1]

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("g++ was called though the object is in the cache")

    monkeypatch.setattr("subprocess.run", refuse)
    parameters_of_store(source)


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nvrtc_makes_machine_code_without_spills(arch: str) -> None:
    cubin = compile_cubin(REDUCE, REDUCE_NAMES, arch)
    assert cubin.arch == arch
    assert cubin.size > 1000
    assert set(cubin.kernels) == set(REDUCE_NAMES)
    for usage in cubin.kernels.values():
        assert 0 < usage.registers <= 64
        assert (usage.spill_stores, usage.spill_loads, usage.stack) == (0, 0, 0)
    assert cubin.kernels["reduce<double, 64>"].shared == 64 * 8
    assert cubin.kernels["reduce_dynamic"].shared == 0


@needs_nvrtc
def test_nvrtc_reports_spills() -> None:
    source = r"""
    __global__ void hoard(const float* x, float* out) {
      float kept[96];
      #pragma unroll
      for (int i = 0; i < 96; ++i) kept[i] = x[i * 32 + threadIdx.x];
      __syncthreads();
      #pragma unroll
      for (int i = 0; i < 96; ++i) out[i * 32 + threadIdx.x] = kept[i] * kept[(7 * i + 3) % 96];
    }
    """
    free = compile_cubin(source, ["hoard"], "sm_80").kernels["hoard"]
    tight = compile_cubin(source, ["hoard"], "sm_80", ["--maxrregcount=32"]).kernels["hoard"]
    assert free.spill_stores == free.spill_loads == 0
    assert free.registers > 96
    assert tight.registers <= 32
    assert tight.spill_stores > 0
    assert tight.spill_loads > 0
    assert tight.stack > 0


@needs_nvrtc
def test_nvrtc_agrees_on_the_other_sources() -> None:
    assert set(compile_cubin(TOGETHER, TOGETHER_NAMES, "sm_90").kernels) == set(TOGETHER_NAMES)
    assert set(compile_cubin(PLAIN, PLAIN_NAMES, "sm_90").kernels) == set(PLAIN_NAMES)
    assert set(compile_cubin(NARROW, NARROW_NAMES, "sm_90").kernels) == set(NARROW_NAMES)


@needs_nvrtc
def test_nvrtc_errors_name_the_line() -> None:
    with pytest.raises(nvrtc.NvrtcError, match=r"kernel\.cu\(2\): error: .*missing"):
        compile_cubin("__global__ void broken(int* x) {\n  x[0] = missing;\n}", ["broken"], "sm_90")


needs_thread_sanitizer = pytest.mark.skipif(
    runner.have_sanitizer("thread") is not None, reason=str(runner.have_sanitizer("thread"))
)
RACES = r"""
enum Barrier { none, warp, block };

template <Barrier barrier, int distance>
__global__ void exchange(float* x) {
  __shared__ float part[64];
  part[threadIdx.x] = x[threadIdx.x];
  if (barrier == warp) __syncwarp();
  if (barrier == block) __syncthreads();
  x[blockIdx.x * 64 + threadIdx.x] = part[threadIdx.x ^ distance];
}

__global__ void count(int* sum) {
  if (blockIdx.x < 2) atomicAdd(sum, 1);
  else *sum += 1;
}
"""


EXCHANGES = {
    name: f"exchange<{name}>" for name in ("none, 0", "none, 1", "warp, 1", "warp, 32", "block, 32")
}


def races(name: str) -> Any:
    """Return a kernel under the thread sanitizer; all are compiled at once."""
    names = ("count", *EXCHANGES.values())
    return runner.compile_module(RACES, names, sanitize="thread").get_function(name)


@needs_thread_sanitizer
def test_thread_sanitizer_knows_barriers() -> None:
    x = np.arange(64, dtype=np.float32)
    for name, distance in (("none, 0", 0), ("warp, 1", 1), ("block, 32", 32)):
        changed = x.copy()
        races(EXCHANGES[name])((1,), (64,), (changed,))
        np.testing.assert_array_equal(changed, np.arange(64) ^ distance)
    for name in ("none, 1", "warp, 32"):
        with pytest.raises(runner.SanitizerError, match="data race"):
            races(EXCHANGES[name])((1,), (64,), (x.copy(),))


@needs_thread_sanitizer
def test_thread_sanitizer_knows_blocks_and_atomic_operations() -> None:
    total = np.zeros(1, np.int32)
    races("count")((2,), (3,), (total,))
    assert total[0] == 6
    with pytest.raises(runner.SanitizerError, match="data race"):
        races("count")((3,), (1,), (total,))
    # What the second block reads, the first one writes.
    with pytest.raises(runner.SanitizerError, match="data race"):
        races("exchange<none, 0>")((2,), (64,), (np.zeros(128, np.float32),))


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
        assert (loop["LDL"] > 0) == reloads == (cubin.kernels["spills"].spill_loads > 0)
