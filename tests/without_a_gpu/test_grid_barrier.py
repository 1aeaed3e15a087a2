"""A barrier among blocks, and which tool catches which error in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cupyrnn
from cupyrnn.kernels import compile
from without_a_gpu import grid_barrier
from without_a_gpu.cuda_on_cpu import nvrtc, runner

pytestmark = pytest.mark.skipif(runner.have_gxx() is not None, reason=str(runner.have_gxx()))

T, B, I, H = 4, 5, 2, 10
LENGTHS = np.array([4, 3, 3, 2, 1])


def problem() -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Return the kernel's arrays up to h_grad and starts, and both results as NumPy has them."""
    rng = np.random.default_rng(1)

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    x, cs, h, w = draw(T, B, I), draw(B, H), draw(B, H), draw(I + H, 4 * H, scale=0.4)
    out = cupyrnn.block_lstm(x, cs, h, w, draw(4 * H), sequence_lengths=LENGTHS)
    grads = draw(T, B, H), draw(T, B, H)
    expected = cupyrnn.block_lstm_grad(x, cs, h, w, *out, *grads, sequence_lengths=LENGTHS)
    steps = np.arange(T)[:, None] < LENGTHS
    cs_prev = np.concatenate([cs[None], out.cs[:-1]])
    arrays = [w[I:], *(a[steps] for a in (*out[:6], cs_prev, *grads))]
    arrays.append(np.concatenate([[0], np.cumsum(steps.sum(1))]))
    return arrays, expected.h_prev_grad, expected.cs_prev_grad


ARRAYS, *EXPECTED = problem()


def worst(source: str, order: str | int, sanitize: str | None = None) -> float:
    """Run the kernel; return its largest error, infinite where it is NaN."""
    module = runner.compile_module(
        source, (grid_barrier.NAME,), options=compile.OPTIONS, sanitize=sanitize, order=order
    )
    dz = np.full((LENGTHS.sum(), 4 * H), np.nan, np.float32)
    dh, dcs = np.zeros((2, B, H), np.float32)
    groups = -(-B // grid_barrier.ROWS)
    *arrays, starts = ARRAYS
    args = [*arrays, dh, dcs, dz, np.zeros(groups, np.uint32), starts, *map(np.int64, (T, B, H))]
    grid, block = (-(-H // grid_barrier.UNITS), groups), (32 * grid_barrier.WARPS,)
    module.get_function(grid_barrier.NAME)(
        grid, block, args, shared_mem=4 * H * grid_barrier.UNITS * 4
    )
    errors = [np.abs(a - e).max() for a, e in zip((dh, dcs), EXPECTED, strict=True)]
    return float(np.nan_to_num(np.max(errors), nan=np.inf))


TOLERANCE = 1e-5
SEEDS = range(20)


def caught_by(source: str) -> set[str]:
    """Return the tools that find something in the kernel."""

    def wrong(*how: Any) -> bool:
        try:
            return worst(source, *how) > TOLERANCE
        except runner.KernelError:
            return True

    found = {order for order in runner.ORDERS if wrong(order)}
    if any(wrong(seed) for seed in SEEDS):
        found.add("random")
    if runner.have_sanitizer("thread") is None and wrong("forward", "thread"):
        found.add("thread sanitizer")
    return found


def test_the_barrier_holds() -> None:
    assert not caught_by(grid_barrier.SOURCE)


ALL = {"forward", "reverse", "random", "thread sanitizer"}
# By the name of an error: the source, what stands in its place, and what catches that.
PLANTED: dict[str, tuple[str, str, set[str]]] = {
    "no barrier": ("meet(counter, target);", "", ALL),
    # The sanitizer finds these two only in an order that has a late block, as random ones have.
    "a target too low": ("+= gridDim.x;", "+= gridDim.x - 1;", {"random"}),
    "a target too high": ("+= gridDim.x;", "+= gridDim.x + 1;", ALL),
    "one counter for all groups": (
        "counters + blockIdx.y", "counters", {"random"},
    ),
    "no __syncthreads before the arrival": (
        "__syncthreads();  // before the arrival", "", {"thread sanitizer"},
    ),
    "no __syncthreads after the wait": ("__syncthreads();  // after the wait", "", ALL),
    "no __syncthreads before the last sum": ("__syncthreads();  // before the last sum", "", ALL),
    "an arrival without release": (
        "cuda_on_cpu::add_release(", "atomicAdd(", {"thread sanitizer"},
    ),
    "a wait without acquire": (
        "cuda_on_cpu::load_acquire(", "cuda_on_cpu::load_relaxed(", {"thread sanitizer"},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_caught(name: str) -> None:
    old, new, tools = PLANTED[name]
    assert grid_barrier.SOURCE.count(old) == 1
    if reason := runner.have_sanitizer("thread"):
        pytest.skip(reason)
    assert caught_by(grid_barrier.SOURCE.replace(old, new)) == tools


@pytest.mark.parametrize("arch", ["sm_75", "sm_120"])
def test_nvrtc_compiles_it(arch: str) -> None:
    if reason := nvrtc.have_nvrtc():
        pytest.skip(reason)
    found = nvrtc.compile_cubin(
        grid_barrier.SOURCE, (grid_barrier.NAME,), arch, compile.OPTIONS
    ).kernels[grid_barrier.NAME]
    assert found.spill_stores == found.spill_loads == 0
