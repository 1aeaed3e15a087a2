"""The PTX interpreter itself: threads, barriers, memory, and errors planted to be caught."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest

from without_a_gpu.ptx.compiler import have_ptx
from without_a_gpu.ptx.executor import Executor
from without_a_gpu.ptx.parser import PtxError

SOURCE = r"""
__global__ void copy(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}

__global__ void at(float* x, long long i) { x[i] = 1.0f; }

__global__ void copy_four(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }

__global__ void shared_at(float* x, int i) {
  __shared__ float part[8];
  part[i] = x[0];
  __syncthreads();
  x[1] = part[i];
}

// neighbors exchange: BARRIER is what must be there
__global__ void rotate(const float* x, float* y) {
  __shared__ float part[64];
  const int t = threadIdx.x;
  part[t] = x[blockIdx.x * 64 + t];
  BARRIER
  y[blockIdx.x * 64 + t] = part[(t + 1) % 64];
}

__global__ void sum_in_place(float* x, int n) {
  for (int half_way = n / 2; half_way > 0; half_way /= 2) {
    if (threadIdx.x < half_way) x[threadIdx.x] += x[threadIdx.x + half_way];
    BARRIER
  }
}

__global__ void all_write(float* x) { x[threadIdx.x / 2] = threadIdx.x; }

__global__ void all_read(const float* x, float* y) { y[threadIdx.x] = x[0]; }

// between blocks nothing helps
__global__ void next_block(float* x) {
  x[blockIdx.x] = 1.0f;
  __syncthreads();
  if (blockIdx.x == 0) x[2] = x[1];
}

__global__ void two_barriers(float* x) {
  if (threadIdx.x < 5) { x[0] = 1.0f; __syncthreads(); x[1] = 2.0f; }
  else { __syncthreads(); if (threadIdx.x == 6) x[2] = 3.0f; }
}

__global__ void quotient(const int* x, int* y) { y[0] = x[0] / x[1]; }

__global__ void half_bytes(const unsigned short* x, unsigned* y) {
  y[threadIdx.x] = x[2 * threadIdx.x];
}
"""


def kernel(
    name: str, source: str = SOURCE, arch: str = "compute_75", barrier: str = "__syncthreads();"
) -> Any:
    """Return one kernel, alone in its module."""
    needs.tool(have_ptx())
    options = [f"-DBARRIER={barrier}"]
    return Executor(arch).compile_module(source, [name], options=options).get_function(name)


def ones(n: int, dtype: Any = np.float32) -> Any:
    return np.ones(n, dtype)


def off_by(a: Any, offset: int) -> Any:
    """Return a copy that begins `offset` bytes beyond a multiple of 64."""
    raw = np.zeros(a.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    moved = raw[start : start + a.nbytes].view(a.dtype)
    moved[...] = a
    return moved


OUTSIDE = {
    "one past the end": ("copy", (ones(9), ones(10), np.int32(10)),
                         r"thread \(9, 0, 0\) of block \(0, 0, 0\): 4 bytes at offset 36 of"
                         r" argument 0 \(float32\[9\]\), which has 36 bytes"),
    "a write past the end": ("copy", (ones(10), ones(9), np.int32(10)),
                             "st.global.*\n.*argument 1"),
    "before the beginning": ("at", (ones(4), np.int64(-1)), "offset -4 of argument 0"),
    "null": ("at", (None, np.int64(0)), "though no array was passed"),
    "shared": ("shared_at", (ones(2), np.int32(8)), "offset 32 of the block's shared memory"),
    "misaligned": ("copy", (off_by(ones(9), 2), ones(9), np.int32(9)),
                   "4 bytes at offset 0 of argument 0 .*: the address is not a multiple of 4"),
    "misaligned to be written": ("copy", (ones(9), off_by(ones(9), 1), np.int32(9)),
                                 "st.global.*\n.*argument 1.*not a multiple of 4"),
    "a misaligned vector": ("copy_four", (off_by(ones(128), 8), off_by(ones(128), 0)),
                            "16 bytes at offset 0 of argument 0.*not a multiple of 16"),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("arch", ["compute_75", "compute_100"])
def test_an_access_that_is_not_allowed_is_caught(arch: str, name: str) -> None:
    entry, args, message = OUTSIDE[name]
    with pytest.raises(PtxError, match=message):
        kernel(entry, arch=arch)((1,), (32,), args)


def test_what_is_aligned_is_allowed(rng: np.random.Generator) -> None:
    x = rng.random(128).astype(np.float32)
    y = off_by(np.zeros_like(x), 16)
    kernel("copy_four")((1,), (32,), (off_by(x, 48), y))
    np.testing.assert_array_equal(y, x)
    odd = off_by(np.arange(64, dtype=np.uint16), 2)
    wide = np.zeros(32, np.uint32)
    kernel("half_bytes")((1,), (32,), (odd, wide))
    np.testing.assert_array_equal(wide, odd[::2])
    # Two views of one array.
    both = x.copy()
    kernel("copy")((1,), (32,), (both[32:], both[:64], np.int32(32)))
    np.testing.assert_array_equal(both[:32], x[32:64])
    with pytest.raises(PtxError, match=r"a race for 4 bytes of argument 1 .*argument 0 .* offset"):
        kernel("copy")((1,), (32,), (both[1:], both, np.int32(32)))


def test_races_for_global_memory() -> None:
    x = np.arange(64, dtype=np.float32)
    kernel("sum_in_place")((1,), (32,), (x, np.int32(64)))
    assert x[0] == 63 * 32
    with pytest.raises(PtxError, match=r"a race for 4 bytes of argument 0 .*(.*\n)*.*reads"):
        kernel("sum_in_place", barrier="")((1,), (32,), (ones(64), np.int32(64)))
    message = (
        r"argument 0 .*, at offset 0:\nthread \(0, 0, 0\).*writes.*\nthread \(1, 0, 0\).*writes"
    )
    with pytest.raises(PtxError, match=message):
        kernel("all_write")((1,), (32,), (ones(16),))
    with pytest.raises(
        PtxError, match=r"offset 4:\n.*block \(1, 0, 0\) writes.*\n.*\(0, 0, 0\) reads"
    ):
        kernel("next_block")((2,), (1,), (ones(3),))
    # Many may read, and every block its own.
    kernel("all_read")((1,), (32,), (ones(1), ones(32)))
    kernel("rotate")((2,), (64,), (ones(128), ones(128)))


def field(name: str, a: int, b: int, start: int, length: int) -> int:
    """Return what the PTX manual says of ``bfe`` and ``bfi``, bit by bit."""
    bits = int(name[5:])
    place, count = start & 255, length & 255
    of = [a >> n & 1 for n in range(bits)]
    if name.startswith("bfi"):
        result = [b >> n & 1 for n in range(bits)]
        for n in range(min(count, max(0, bits - place))):
            result[place + n] = of[n]
    else:
        sign = of[min(place + count - 1, bits - 1)] if name[4] == "s" and count else 0
        result = [of[place + n] if n < count and place + n < bits else sign for n in range(bits)]
    return sum(bit << n for n, bit in enumerate(result))


@pytest.mark.parametrize("name", ["bfe.u32", "bfe.s32", "bfe.u64", "bfe.s64", "bfi.b32", "bfi.b64"])
def test_fields_of_bits(name: str, rng: np.random.Generator) -> None:
    """Also of no bits, beyond the last one, and with more in the operands than their bytes."""
    kind, letter = ("unsigned", "r") if name.endswith("32") else ("unsigned long long", "l")
    other = f', "{letter}"(y[i])' if name.startswith("bfi") else ""
    operands = ", ".join(f"%{n}" for n in range(4 + bool(other)))
    source = f"""__global__ void take({kind}* x, const {kind}* y, const unsigned* at) {{
      const int i = threadIdx.x;
      asm volatile("{name} {operands};" : "={letter}"(x[i])
                   : "{letter}"(x[i]){other}, "r"(at[2 * i]), "r"(at[2 * i + 1]));
    }}"""
    dtype = np.dtype("u4" if letter == "r" else "u8")
    n = 512
    x, y = (rng.integers(0, 2 ** (8 * dtype.itemsize), n, dtype, endpoint=False) for _ in "xy")
    at = rng.choice([0, 1, 5, 31, 32, 33, 63, 64, 200, 256, 300], 2 * n).astype(np.uint32)
    expected = [field(name, *map(int, one)) for one in zip(x, y, at[::2], at[1::2], strict=True)]
    kernel("take", source)((1,), (n,), (x, y, at))
    assert x.tolist() == expected


@pytest.mark.parametrize("threads", [64, 33])
def test_lanes_that_are_to_be_in_step(threads: int) -> None:
    source = """__global__ void in_step(float* x) {
      __syncwarp();
      x[threadIdx.x] = 1;
    }"""
    in_step, x = kernel("in_step", source), np.zeros(threads, np.float32)
    if threads % 32 == 0:
        in_step((1,), (threads,), (x,))
        assert x.all()
    else:
        with pytest.raises(PtxError, match="not all lanes of a warp are at its exchange"):
            in_step((1,), (threads,), (x,))


def test_barriers_that_do_not_meet() -> None:
    with pytest.raises(PtxError, match=r"wait at line \d+: bar.sync 0, others at line \d+: bar"):
        kernel("two_barriers")((2,), (32,), (ones(3),))
