"""Tests of the harness that checks CUDA source strings without a GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import needs
import numpy as np
import pytest

from without_a_gpu.cuda_on_cpu import nvdisasm, nvrtc, runner
from without_a_gpu.cuda_on_cpu.runner import KernelError, compile_module
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
