"""
The LSTM ops on a GPU: checked against float64 first, then timed beside cuDNN and TensorFlow's way.

    python tests/benchmarks/gpu.py            # all shapes and dtypes, at most about five minutes
    python tests/benchmarks/gpu.py --quick    # the two small shapes, at most a minute

needs CuPy, and for the cuDNN columns PyTorch with CUDA; what is missing is said and left out. The
results are written after every row as gpu-<device>-<date>.json and .md. Exit code: 0 if all went
well, 1 if a check or a row failed, 2 if there is nothing to run on.

The contestants compute the same function of the same numbers, gates in the order ifco, no forget
bias and no clip:

cupyrnn     block_lstm and block_lstm_grad.
cuDNN       torch.nn.LSTM, one layer. It has no peepholes.
TF-style    BlockLSTM and BlockLSTMGrad as TensorFlow launches them on a GPU: see TFStyle.
GEMMs       the matrix products of cupyrnn alone, which no other work per step can undercut.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import gc
import importlib
import json
import math
import os
import platform
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# The checkout that this file lies in is what is measured, whatever else is installed.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from checks import TOLERANCES, assert_close

import cupyrnn

# (T, B, I, H)
SHAPES = {
    "A": (100, 1, 256, 256),
    "B": (100, 16, 512, 512),
    "C": (256, 64, 1024, 1024),
    "D": (512, 256, 512, 512),
}
# What is checked besides A and B: no power of two, more rows than columns, more steps than the
# package takes in one block.
AWKWARD = [(1, 1, 1, 1), (7, 3, 33, 5), (20, 33, 1, 3), (40, 3, 33, 65), (80, 256, 3, 5)]
PEER_SHAPE = (12, 16, 128, 128)
# A mode is a dtype and, for float32, whether products may be computed in TF32.
MODES = ("float16", "bfloat16", "float32", "tf32")
# TF32 has the mantissa of float16.
TOLERANCE_OF = {mode: mode for mode in MODES} | {"tf32": "float16"}
# Peers round more often than cupyrnn does; they only have to compute the same function.
PEER_FACTOR = 10
PASSES = ("forward", "backward", "forward+backward")
GRADIENTS = ("x", "cs_prev", "h_prev", "w", "b")
PEEPHOLES = ("wci", "wcf", "wco")
CUPYRNN, CUDNN, TF_STYLE, GEMMS = "cupyrnn", "cuDNN", "TF-style", "GEMMs"
LAUNCHES_A_STEP = 2  # of cupyrnn: the kernel of the step and a matrix product
ENOUGH = 50  # repetitions; medians of fewer are marked
TF_SAMPLE = 40  # steps: their launches fit into the queue of a stream, which holds about 1000
TORCH_DEVICE = "cuda"

NOTES = """\
* eager: from an idle device, CUDA events around one call; the time Python needs for the launches
  is in it where the device is faster. Medians; `*`: of fewer than 50 repetitions, as the time
  of a row is bounded.
* queued: the same, but the device was kept busy until all launches of the call were in its queue.
  No time of the host is in it, only the device's own, the gaps between its kernels included:
  about what replaying a CUDA graph of the same launches takes. `<=`: the device caught up with
  the host, so that it is an upper bound. TF-style is measured over the first 40 steps and scaled.
* backward: the forward pass, of which it needs the results, is not in it; cuDNN's is run anew,
  untimed, before every repetition. All of x, h_prev, cs_prev, weights and biases get a gradient.
* cuDNN has no peepholes, so rows with peepholes have no time of it.
* TF-style: 3 launches a step forward; 19 backward, or 24 with peepholes (TensorFlow's 17 or 22,
  and two that add the carried gradients). Launched from a list made beforehand, so that Python
  is as little in its way as it can be.
* GEMMs: those of cupyrnn alone, the recurrent ones step by step. A floor for step by step; not
  for a kernel that keeps the recurrent weights on the chip.
* Ratios are of times, peer / cupyrnn: above 1 cupyrnn is ahead. `~`: one of them is a bound.
* float32 is strict (no TF32) on all sides; tf32 allows TF32 on all sides.
* The inputs rotate through sets larger than the L2 cache, as far as 24 sets go.
* memory: what the call took from an empty memory pool at its peak (results, and scratch freed by
  its end); for cuDNN PyTorch's peak above what was allocated before forward and backward.
* host: time of Python's launch loop per step of the sequence, without what a call costs once."""


class Limits(NamedTuple):
    """What bounds a measurement, by repetitions and by seconds."""

    repetitions: int
    seconds: float
    queued_repetitions: int
    queued_seconds: float
    warm_up: float  # seconds
    deadline: float  # of the whole run, as time.perf_counter() tells it

    def over(self) -> bool:
        return time.perf_counter() > self.deadline


FULL = Limits(ENOUGH, 0.8, 20, 0.3, 0.05, math.inf)
QUICK = Limits(15, 0.15, 8, 0.1, 0.01, math.inf)


class Run(NamedTuple):
    """One call to time, on one set of inputs."""

    call: Callable[[Any], Any]
    before: Callable[[], Any] = lambda: None  # untimed; its result is the argument of the call


class Job(NamedTuple):
    """What one contestant does in one pass, and what of it is timed with a full queue."""

    runs: list[Run]  # one for each set of inputs
    sample: list[Run] | None = None  # a shorter run for the queue; None: the same
    scale: float = 1.0  # from the time of the sample to that of the run


# clock64 counts cycles of at most 2 GHz on the devices this is for, so it waits long enough.
SPIN = r"""
extern "C" __global__ void spin(long long cycles)
{
    const long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""
_CYCLES_PER_SECOND = 2e9
_LONGEST_SPIN = 0.15  # seconds


class Timer:
    """Times calls that enqueue work on CuPy's current stream, with CUDA events."""

    def __init__(self, cupy: Any, limits: Limits) -> None:
        self.cupy, self.limits = cupy, limits
        self.start, self.stop, self.idle = (cupy.cuda.Event() for _ in range(3))
        self.spin = cupy.RawKernel(SPIN, "spin")

    def synchronize(self) -> None:
        self.cupy.cuda.runtime.deviceSynchronize()

    def _elapsed(self, start: Any, stop: Any) -> float:
        stop.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, stop))

    def warm_up(self, runs: list[Run]) -> None:
        """Run every set once, then on until the clocks are up."""
        end = time.perf_counter() + self.limits.warm_up
        for run in runs:
            run.call(run.before())
        self.synchronize()
        while time.perf_counter() < end:
            runs[0].call(runs[0].before())
            self.synchronize()

    def eager(self, runs: list[Run]) -> dict[str, Any]:
        """Return the median of single calls from an idle device, and the host's time for them."""
        times, host = [], []
        end = time.perf_counter() + self.limits.seconds
        for k in range(self.limits.repetitions):
            run = runs[k % len(runs)]
            state = run.before()
            self.synchronize()
            self.start.record()
            begin = time.perf_counter()
            result = run.call(state)
            host.append(1e3 * (time.perf_counter() - begin))
            self.stop.record()
            times.append(self._elapsed(self.start, self.stop))
            del result, state
            if k >= 4 and time.perf_counter() > end:
                break
        return {
            "eager_ms": statistics.median(times),
            "eager_min_ms": min(times),
            "eager_max_ms": max(times),
            "repetitions": len(times),
            "host_ms": statistics.median(host),
        }

    def queued(self, job: Job, host_ms: float) -> dict[str, Any]:
        """
        Return the median of calls whose launches were all enqueued before the device began.

        A kernel that only waits keeps the device busy meanwhile. `idle` is recorded before it, on
        an idle device; where the host needed less time from there on than the wait took, no launch
        came late.
        """
        runs = job.sample or job.runs
        wait = 1.5e-3 * host_ms / job.scale + 5e-4
        ahead, behind = [], []
        doublings = 3
        end = time.perf_counter() + self.limits.queued_seconds
        for k in range(self.limits.queued_repetitions):
            run = runs[k % len(runs)]
            state = run.before()
            self.synchronize()
            begin = time.perf_counter()
            self.idle.record()
            self.spin((1,), (1,), (np.int64(min(wait, _LONGEST_SPIN) * _CYCLES_PER_SECOND),))
            self.start.record()
            result = run.call(state)
            self.stop.record()
            host = 1e3 * (time.perf_counter() - begin)
            time_ms = self._elapsed(self.start, self.stop) * job.scale
            if host < self._elapsed(self.idle, self.start):
                ahead.append(time_ms)
            else:
                behind.append(time_ms)
                if doublings:
                    wait, doublings = 2 * wait, doublings - 1
            del result, state
            if k >= 4 and time.perf_counter() > end:
                break
        return {"queued_ms": statistics.median(ahead or behind), "queued_is_bound": not ahead}

    def host_per_step(self, runs_of: Callable[[int], Run], T: int) -> float:
        """Return the microseconds of the host for each step more: what is per call drops out."""
        most = min(T, 64)
        host = []
        for steps in (most // 2, most):
            run, times = runs_of(steps), []
            for _ in range(3 + min(15, self.limits.repetitions)):
                self.synchronize()
                begin = time.perf_counter()
                run.call(run.before())
                times.append(time.perf_counter() - begin)
            host.append(statistics.median(times[3:]))
        self.synchronize()
        return 1e6 * (host[1] - host[0]) / (most - most // 2)

    def memory(self, run: Run) -> dict[str, int]:
        """
        Return the bytes that a call takes from an empty pool.

        A pool keeps what it got from the device, so its total is the peak of the call; what is
        still used at the end are the results.
        """
        pool = self.cupy.cuda.MemoryPool()
        with self.cupy.cuda.using_allocator(pool.malloc):
            result = run.call(run.before())
            self.synchronize()
            sizes = {"peak_bytes": int(pool.total_bytes()), "result_bytes": int(pool.used_bytes())}
            del result
        pool.free_all_blocks()
        return sizes

    def measure(self, job: Job) -> dict[str, Any]:
        """Return both times; the queued one may fail and leaves the other."""
        gc.disable()  # a collection in the middle of a call would count as launch time
        try:
            self.warm_up(job.runs)
            row = self.eager(job.runs)
            try:
                row |= self.queued(job, row["host_ms"])
            except Exception as error:
                row["errors"] = [f"queued: {describe(error)}"]
        finally:
            gc.enable()
        return row


def numpy_dtype(mode: str) -> np.dtype[Any]:
    """Return the dtype of a mode's arrays."""
    if mode == "bfloat16":
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    return np.dtype("float32" if mode == "tf32" else mode)


def input_shapes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all inputs, gradients of the outputs included."""
    T, B, I, H = shape
    sizes = {
        "x": (T, B, I),
        "cs_prev": (B, H),
        "h_prev": (B, H),
        "w": (I + H, 4 * H),
        "b": (4 * H,),
    }
    return sizes | dict.fromkeys(PEEPHOLES, (H,)) | {"h_grad": (T, B, H)}


@functools.cache
def noise() -> Any:
    """Return normal numbers. Drawing all that is needed would take longer than the rest."""
    return np.random.default_rng(0).standard_normal(2**20, np.float32)


def host_inputs(shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return one set of inputs in float32, scaled so that the gates neither saturate nor idle."""
    _, _, I, H = shape
    rng = np.random.default_rng(seed)
    inputs = {}
    for name, sizes in input_shapes(shape).items():
        scale = (I + H) ** -0.5 if name == "w" else 0.2 if name in PEEPHOLES else 0.7
        # Another part of the numbers each time, repeated where they are too few.
        size, start = math.prod(sizes), int(rng.integers(noise().size // 2))
        part = noise()[start : start + size] * np.float32(scale)
        inputs[name] = np.resize(part, sizes)
    return inputs


def set_count(shape: tuple[int, ...], l2_bytes: int) -> int:
    """Return how many sets of inputs it takes to fill the L2 cache twice, 2 to 24."""
    T, B, _, H = shape
    saved = 7 * T * B * H
    bytes_per_set = 2 * (saved + sum(math.prod(s) for s in input_shapes(shape).values()))
    return max(2, min(24, -(-2 * l2_bytes // bytes_per_set)))


def on_device(cupy: Any, inputs: dict[str, Any], mode: str) -> dict[str, Any]:
    """Return the inputs in the dtype of the mode, on the device."""
    dtype = numpy_dtype(mode)
    return {name: cupy.asarray(a).astype(dtype) for name, a in inputs.items()}


@contextlib.contextmanager
def float32_mode(tf32: bool, torch: Any = None) -> Iterator[None]:
    """Allow TF32 or not: CuPy's variable, which cupyrnn reads in every call, and PyTorch's."""
    before = os.environ.get("CUPY_TF32")
    os.environ["CUPY_TF32"] = "1" if tf32 else "0"
    if torch is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions have a second way to say it
            torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUPY_TF32"]
        else:
            os.environ["CUPY_TF32"] = before


class Ours:
    """block_lstm and block_lstm_grad on one set of inputs."""

    def __init__(self, inputs: dict[str, Any], peephole: bool, **attributes: Any) -> None:
        self.inputs, self.attributes = inputs, {"gate_order": "ifco"} | attributes
        self.names = ("x", "cs_prev", "h_prev", "w", *(PEEPHOLES if peephole else ()))
        self.saved: Any = self.forward()

    def forward(self) -> Any:
        named = {name: self.inputs[name] for name in (*self.names, "b")}
        return cupyrnn.block_lstm(**named, **self.attributes)

    def backward(self, saved: Any) -> Any:
        named = {name: self.inputs[name] for name in self.names}
        grads = {"cs_grad": self.inputs.get("cs_grad"), "h_grad": self.inputs["h_grad"]}
        return cupyrnn.block_lstm_grad(**named, **saved._asdict(), **grads, **self.attributes)

    def run(self, what: str) -> Run:
        if what == "forward":
            return Run(lambda _: self.forward())
        if what == "backward":
            return Run(lambda _: self.backward(self.saved))
        return Run(lambda _: self.backward(self.forward()))


def our_jobs(sets: list[dict[str, Any]], peephole: bool) -> dict[str, Job]:
    contestants = [Ours(inputs, peephole) for inputs in sets]
    return {what: Job([c.run(what) for c in contestants]) for what in PASSES}


def our_extras(timer: Timer, inputs: dict[str, Any], peephole: bool, what: str) -> dict[str, Any]:
    """Return the host's time per step and the memory of a pass."""

    def cut(steps: int) -> Run:
        shorter = {n: a[:steps] if n in ("x", "h_grad") else a for n, a in inputs.items()}
        return Ours(shorter, peephole).run(what)

    host = timer.host_per_step(cut, len(inputs["x"]))
    return {"host_us_per_step": host, **timer.memory(Ours(inputs, peephole).run(what))}


class Products:
    """The matrix products of cupyrnn on one set of inputs, the elementwise work left out."""

    def __init__(self, cupy: Any, inputs: dict[str, Any]) -> None:
        from cupyrnn.kernels.blas import prepare

        x, w, h = inputs["x"], inputs["w"], inputs["h_prev"]
        (T, B, I), H = x.shape, h.shape[1]
        compute = np.float32
        z, dh = cupy.zeros((T, B, 4 * H), compute), cupy.zeros((B, H), compute)
        g, dx = z.astype(x.dtype), cupy.empty((T, B, I), x.dtype)
        dw = cupy.zeros((I + H, 4 * H), compute)
        w_h = w[I:].T.astype(x.dtype, order="C")
        x2, z2, g2, dx2 = (a.reshape(T * B, a.shape[2]) for a in (x, z, g, dx))
        # Zeros would be multiplied faster than numbers are.
        n = min(H, I)
        g[:, :, :n] = x[:, :, :n]
        self.T, self.z_step, self.g_step = T, z.strides[0], g.strides[0]
        self.xw = prepare(x2, w[:I], z2, accumulate=False)
        self.hw = prepare(h, w[I:], z[0], accumulate=True)
        self.gw = prepare(g[0], w_h, dh, accumulate=False)
        self.hoisted = [
            prepare(g2, w[:I].T, dx2, accumulate=False),
            prepare(x2.T, g2, dw[:I], accumulate=True),
        ]
        if T > 1 and H:
            # x stands for the states h, of which there are as many rows.
            states = cupy.zeros((T * B, H), x.dtype)
            states[:, :n] = x2[:, :n]
            self.hoisted.append(prepare(states.T, g2, dw[I:], accumulate=True))

    def forward(self) -> None:
        self.xw(0, 0, 0)
        for step in range(self.T):
            self.hw(0, 0, step * self.z_step)

    def backward(self) -> None:
        for step in range(self.T - 1, -1, -1):
            self.gw(step * self.g_step, 0, 0)
        for product in self.hoisted:
            product(0, 0, 0)


def product_jobs(cupy: Any, sets: list[dict[str, Any]]) -> dict[str, Job]:
    contestants = [Products(cupy, inputs) for inputs in sets]
    return {
        "forward": Job([Run(lambda _, c=c: c.forward()) for c in contestants]),
        "backward": Job([Run(lambda _, c=c: c.backward()) for c in contestants]),
    }


def _elementwise(name: str, inputs: str, expression: str, vectors: str = "") -> str:
    """Return a kernel that writes an expression of arrays [rows, H] and vectors [H]."""
    arrays, columns = inputs.split(), vectors.split()
    pointers = "".join(f", const T* {a}_" for a in (*arrays, *columns))
    reads = "".join(f"    const A {a} = wide({a}_[k]);\n" for a in arrays)
    reads += "".join(f"    const A {a} = wide({a}_[k % H]);\n" for a in columns)
    return f"""
template <typename T> __global__ void {name}(T* out{pointers}, long long n, long long H)
{{
    typedef typename Acc<T>::type A;
    const long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= n) return;
{reads}    store(out + k, {expression});
}}
"""


_ELEMENTWISE = {
    "tf_add": ("a b", "a + b"),
    "tf_do": ("o dh co", "o * (A(1) - o) * dh * co"),
    "tf_dcs": ("co dh o dcs", "(A(1) - co * co) * dh * o + dcs"),
    "tf_dcs_peephole": ("dcs d_o", "dcs + d_o * wco", "wco"),
    "tf_dci": ("ci dcs i", "(A(1) - ci * ci) * dcs * i"),
    # di from (i, dcs, ci), df from (f, dcs, cs_prev)
    "tf_dsigmoid": ("s dcs factor", "s * (A(1) - s) * dcs * factor"),
    "tf_cs_prev": ("dcs f", "dcs * f"),
    "tf_cs_prev_peephole": ("dcs di df", "dcs + di * wci + df * wcf", "wci wcf"),
}

_OTHERS = r"""
// Copies [rows, columns] between arrays of other widths.
template <typename T> __global__ void tf_copy(
    T* to, const T* from, long long rows, long long columns,
    long long to_width, long long from_width, long long to_column, long long from_column)
{
    const long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= rows * columns) return;
    const long long row = k / columns, column = k % columns;
    to[row * to_width + to_column + column] = from[row * from_width + from_column + column];
}

// xh[B, I+H] = [x, h]
template <typename T> __global__ void tf_concat(
    T* xh, const T* x, const T* h, long long n, long long I, long long H)
{
    const long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= n) return;
    const long long row = k / (I + H), column = k % (I + H);
    xh[k] = column < I ? x[row * I + column] : h[row * H + column - I];
}

template <typename T> __global__ void tf_gates(
    T* i, T* cs, T* f, T* o, T* ci, T* co, T* h,   // [B, H], written
    const T* gates, const T* b,                    // [B, 4*H], [4*H], read; order ifco
    const T* wci, const T* wcf, const T* wco,      // [H], read; all null: no peepholes
    const T* cs_prev, long long n, long long H)
{
    typedef typename Acc<T>::type A;
    const long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= n) return;
    const long long c = k % H;
    const T* z = gates + k / H * 4 * H + c;
    const A before = wide(cs_prev[k]);
    A zi = wide(z[0]) + wide(b[c]), zf = wide(z[H]) + wide(b[H + c]);
    A zci = wide(z[2 * H]) + wide(b[2 * H + c]), zo = wide(z[3 * H]) + wide(b[3 * H + c]);
    if (wci) {
        zi += before * wide(wci[c]);
        zf += before * wide(wcf[c]);
    }
    const A i_ = sigmoid(zi), f_ = sigmoid(zf), ci_ = tanh_(zci);
    const A cs_ = i_ * ci_ + f_ * before;
    if (wco) zo += cs_ * wide(wco[c]);
    const A o_ = sigmoid(zo), co_ = tanh_(cs_);
    store(i + k, i_);
    store(cs + k, cs_);
    store(f + k, f_);
    store(o + k, o_);
    store(ci + k, ci_);
    store(co + k, co_);
    store(h + k, o_ * co_);
}

// sums[columns] += the sums over the rows of a, or of a * b.
template <typename T> __global__ void tf_add_sums(
    T* sums, const T* a, const T* b, long long rows, long long columns)
{
    typedef typename Acc<T>::type A;
    __shared__ A shared[32][33];
    const long long column = (long long)blockIdx.x * 32 + threadIdx.x;
    A sum = A(0);
    if (column < columns)
        for (long long row = threadIdx.y; row < rows; row += 32) {
            const A v = wide(a[row * columns + column]);
            sum += b ? v * wide(b[row * columns + column]) : v;
        }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        for (int k = 1; k < 32; ++k) sum += shared[k][threadIdx.x];
        store(sums + column, wide(sums[column]) + sum);
    }
}
"""

TF_SOURCE = "".join(_elementwise(name, *parts) for name, parts in _ELEMENTWISE.items()) + _OTHERS
TF_KERNELS = tuple(
    f"{name}<{{T}}>" for name in (*_ELEMENTWISE, "tf_copy", "tf_concat", "tf_gates", "tf_add_sums")
)


class TFStyle:
    """
    TensorFlow's BlockLSTM and BlockLSTMGrad, launch for launch as it runs them on a GPU.

    Forward a step is 3 launches: [x, h] is put together, one product, all gates. Backward nothing
    is hoisted out of the time loop and every expression is a launch of its own, the products for
    the gradients of x and w among them. All intermediates have the dtype of the inputs.

    The launches are lists of functions and arguments, made once and then gone through.
    """

    def __init__(self, cupy: Any, inputs: dict[str, Any], peephole: bool) -> None:
        self.cupy, self.peephole, self.inputs = cupy, peephole, inputs
        self.T, self.B, self.I = inputs["x"].shape
        self.H = inputs["cs_prev"].shape[1]
        self.dtype = inputs["x"].dtype
        self.saved = cupyrnn.LSTMOutputs(
            *(cupy.empty((self.T, self.B, self.H), self.dtype) for _ in range(7))
        )
        self.forward_commands = self._forward()
        self.setup_commands, self.backward_commands = self._backward()

    def _launch(self, name: str, n: int, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        from cupyrnn.kernels.compile import kernel

        launch = kernel(TF_SOURCE, TF_KERNELS, self.dtype.name, f"{name}<{{T}}>")
        return launch, ((-(-n // 256),), (256,), args)

    def _op(self, name: str, *arrays: Any) -> tuple[Any, tuple[Any, ...]]:
        n = self.B * self.H
        return self._launch(name, n, *arrays, np.int64(n), np.int64(self.H))

    def _copy(
        self, to: Any, from_: Any, columns: int, to_column: int, from_column: int
    ) -> tuple[Any, tuple[Any, ...]]:
        sizes = (self.B, columns, to.shape[1], from_.shape[1], to_column, from_column)
        return self._launch("tf_copy", self.B * columns, to, from_, *map(np.int64, sizes))

    def _sums(self, sums: Any, a: Any, b: Any) -> tuple[Any, tuple[Any, ...]]:
        launch, _ = self._launch("tf_add_sums", 1)
        columns = a.shape[1]
        args = (sums, a, b, np.int64(self.B), np.int64(columns))
        return launch, ((-(-columns // 32),), (32, 32), args)

    def _product(self, a: Any, b: Any, out: Any, accumulate: bool) -> tuple[Any, tuple[Any, ...]]:
        from cupyrnn.kernels.blas import prepare

        return prepare(a, b, out, accumulate=accumulate), (0, 0, 0)

    def _forward(self) -> list[list[Any]]:
        """Return the commands of each step."""
        x, w, b = (self.inputs[n] for n in ("x", "w", "b"))
        B, I, H = self.B, self.I, self.H
        xh = self.cupy.empty((B, I + H), self.dtype)
        gates = self.cupy.empty((B, 4 * H), self.dtype)
        vectors = [self.inputs[n] if self.peephole else None for n in PEEPHOLES]
        size, n = B * (I + H), np.int64(B * H)
        product = self._product(xh, w, gates, False)
        steps = []
        for t in range(self.T):
            cs = self.saved.cs[t - 1] if t else self.inputs["cs_prev"]
            h = self.saved.h[t - 1] if t else self.inputs["h_prev"]
            sizes = (np.int64(size), np.int64(I), np.int64(H))
            outputs = [a[t] for a in self.saved]
            steps.append(
                [
                    self._launch("tf_concat", size, xh, x[t], h, *sizes),
                    product,
                    self._launch(
                        "tf_gates", B * H, *outputs, gates, b, *vectors, cs, n, np.int64(H)
                    ),
                ]
            )
        return steps

    def _backward(self) -> tuple[list[Any], list[list[Any]]]:
        """Return the commands that zero the sums, and those of each step, last step first."""
        B, I, H = self.B, self.I, self.H
        given = self.inputs
        wci, wcf, wco = (given[n] for n in PEEPHOLES)

        def empty(*shape: int) -> Any:
            return self.cupy.empty(shape, self.dtype)

        dh, dcs, d_o, di, dci, df = (empty(B, H) for _ in range(6))
        no_cs_grad = self.cupy.zeros((B, H), self.dtype)
        dgates, xh, xh_grad = empty(B, 4 * H), empty(B, I + H), empty(B, I + H)
        g = {"x": empty(self.T, B, I), "cs_prev": empty(B, H), "h_prev": empty(B, H)}
        g |= {"w": empty(I + H, 4 * H), "b": empty(4 * H)} | {n: empty(H) for n in PEEPHOLES}
        self.grads = g
        setup = [(a.fill, (0,)) for name, a in g.items() if name != "x"]
        dx_product = self._product(dgates, given["w"].T, xh_grad, False)
        dw_product = self._product(xh.T, dgates, g["w"], True)
        steps = []
        for t in range(self.T - 1, -1, -1):
            i, cs, f, o, ci, co, _ = (a[t] for a in self.saved)
            cs_prev = self.saved.cs[t - 1] if t else given["cs_prev"]
            h_prev = self.saved.h[t - 1] if t else given["h_prev"]
            step = [
                self._op("tf_add", dh, given["h_grad"][t], g["h_prev"]),
                self._op("tf_add", dcs, no_cs_grad, g["cs_prev"]),
                self._op("tf_do", d_o, o, dh, co),
                self._op("tf_dcs", dcs, co, dh, o, dcs),
            ]
            if self.peephole:
                step.append(self._op("tf_dcs_peephole", dcs, dcs, d_o, wco))
            step += [
                self._op("tf_dci", dci, ci, dcs, i),
                self._op("tf_dsigmoid", df, f, dcs, cs_prev),
                self._op("tf_dsigmoid", di, i, dcs, ci),
                *(self._copy(dgates, d, H, k * H, 0) for k, d in enumerate((di, df, dci, d_o))),
                self._op("tf_cs_prev", g["cs_prev"], dcs, f),
            ]
            if self.peephole:
                out = g["cs_prev"]
                step.append(self._op("tf_cs_prev_peephole", out, out, di, df, wci, wcf))
            step += [
                dx_product,
                self._copy(xh, given["x"][t], I, 0, 0),
                self._copy(xh, h_prev, H, I, 0),
                self._copy(g["x"][t], xh_grad, I, 0, 0),
                self._copy(g["h_prev"], xh_grad, H, 0, I),
                dw_product,
                self._sums(g["b"], dgates, None),
            ]
            if self.peephole:
                step += [
                    self._sums(g["wci"], di, cs_prev),
                    self._sums(g["wcf"], df, cs_prev),
                    self._sums(g["wco"], d_o, cs),
                ]
            steps.append(step)
        return setup, steps

    def run(self, what: str, steps: int) -> Run:
        """Return a run of the forward or backward pass over the first or last so many steps."""
        setup, commands = (
            ([], self.forward_commands)
            if what == "forward"
            else (self.setup_commands, self.backward_commands)
        )
        flat = setup + [command for step in commands[:steps] for command in step]

        def call(_: Any) -> None:
            for launch, args in flat:
                launch(*args)

        return Run(call)


def tf_jobs(cupy: Any, sets: list[dict[str, Any]], peephole: bool) -> dict[str, Job]:
    contestants = [TFStyle(cupy, inputs, peephole) for inputs in sets]
    T = contestants[0].T
    steps = min(T, TF_SAMPLE)
    for c in contestants:
        c.run("forward", T).call(None)  # what the backward pass reads
    return {
        what: Job(
            [c.run(what, T) for c in contestants],
            [c.run(what, steps) for c in contestants],
            T / steps,
        )
        for what in ("forward", "backward")
    }


def import_torch() -> tuple[Any, str | None]:
    """Return PyTorch and None, or None and why not."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None, "torch not installed"
    except Exception as error:
        return None, f"torch: {describe(error)}"
    if not torch.cuda.is_available():
        return None, "torch without CUDA"
    if not torch.backends.cudnn.is_available():
        return None, "torch without cuDNN"
    return torch, None


class TorchLSTM:
    """torch.nn.LSTM with the numbers of one set of inputs."""

    def __init__(self, torch: Any, inputs: dict[str, Any], mode: str) -> None:
        self.torch, self.note = torch, ""
        dtype = getattr(torch, numpy_dtype(mode).name)
        (_, _, I), H = inputs["x"].shape, inputs["cs_prev"].shape[1]

        def tensor(a: Any) -> Any:
            host = torch.from_numpy(np.ascontiguousarray(a))
            return host.to(device=TORCH_DEVICE, dtype=dtype, copy=True)

        self.lstm = torch.nn.LSTM(I, H, device=TORCH_DEVICE, dtype=dtype)
        values = (inputs["w"][:I].T, inputs["w"][I:].T, inputs["b"], np.zeros_like(inputs["b"]))
        with torch.no_grad():
            for parameter, value in zip(self.lstm.parameters(), values, strict=True):
                parameter.copy_(tensor(value))
        self._flatten()
        self.x = tensor(inputs["x"]).requires_grad_()
        self.h = tensor(inputs["h_prev"][None]).requires_grad_()
        self.cs = tensor(inputs["cs_prev"][None]).requires_grad_()
        self.y_grad = tensor(inputs["h_grad"])
        self.wanted = [self.x, self.h, self.cs, *self.lstm.parameters()]

    def _flatten(self) -> None:
        """Lay the weights out as cuDNN wants them, for bfloat16 too, which PyTorch leaves out."""
        try:
            dtypes = self.torch.backends.cudnn.CUDNN_TENSOR_DTYPES
            known = set(dtypes)
            dtypes.add(self.torch.bfloat16)
            try:
                self.lstm.flatten_parameters()
            finally:
                dtypes.intersection_update(known)
        except Exception as error:
            self.note = f"weights not flattened: {describe(error)}"

    def forward(self) -> Any:
        return self.lstm(self.x, (self.h, self.cs))[0]

    def backward(self, y: Any) -> Any:
        return self.torch.autograd.grad(y, self.wanted, self.y_grad)

    def notes(self) -> str:
        """Return what makes this no fair row of cuDNN, if anything does."""
        notes = [self.note]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            name = self.forward().grad_fn.name()
        notes += [str(w.message).split(".")[0] for w in caught]
        if "Cudnn" not in name:
            notes.append(f"not cuDNN but {name}")
        return "; ".join(filter(None, notes))

    def run(self, what: str) -> Run:
        if what == "forward":
            return Run(lambda _: self.forward())
        if what == "backward":
            return Run(self.backward, self.forward)
        return Run(lambda _: self.backward(self.forward()))


def torch_jobs(contestants: list[TorchLSTM]) -> dict[str, Job]:
    return {what: Job([c.run(what) for c in contestants]) for what in PASSES}


def expect_same_stream(cupy: Any, torch: Any) -> None:
    """Check that CuPy's events see PyTorch's work: both use the default stream."""
    ours, theirs = cupy.cuda.get_current_stream().ptr, torch.cuda.current_stream().cuda_stream
    if ours != theirs:
        raise RuntimeError(f"CuPy is on stream {ours}, PyTorch on {theirs}")


def torch_memory(torch: Any, run: Run) -> dict[str, int]:
    """Return PyTorch's peak above what was allocated before, the untimed part included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run.call(run.before())
    torch.cuda.synchronize()
    sizes = {
        "peak_bytes": torch.cuda.max_memory_allocated() - before,
        "result_bytes": torch.cuda.memory_allocated() - before,
    }
    del result
    return sizes


def widen(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(a).astype(np.float64) for name, a in inputs.items()}


def check_ours(
    cupy: Any, mode: str, shape: tuple[int, ...], peephole: bool, **attributes: Any
) -> None:
    """Compare with NumPy in float64 on the same rounded inputs, and twice with itself."""
    tolerance = TOLERANCE_OF[mode]
    inputs = host_inputs(shape, 1)
    # Off zero, lest the sums of the gradients cancel; but over many rows they would leave float16.
    if shape[0] * shape[1] < 1000:
        inputs["h_grad"] = inputs["h_grad"] + np.float32(1)
    inputs["cs_grad"] = inputs["h_grad"][::-1].copy()
    device = on_device(cupy, inputs, mode)
    wide = widen({name: cupy.asnumpy(a) for name, a in device.items()})

    ours = Ours(device, peephole, **attributes)
    expected = Ours(wide, peephole, **attributes)
    for name, a, e in zip(ours.saved._fields, ours.saved, expected.saved, strict=True):
        assert_close(cupy.asnumpy(a), e, tolerance, name, at_least=1.0)
    # The gradient of what the op itself saved, so that both clip at the same places.
    grads = ours.backward(ours.saved)
    saved = type(ours.saved)(**widen({n: cupy.asnumpy(a) for n, a in ours.saved._asdict().items()}))
    wide_grads = expected.backward(saved)
    for name, a, e in zip(grads._fields, grads, wide_grads, strict=True):
        assert_close(cupy.asnumpy(a), e, tolerance, name, at_least=1.0)

    def content(arrays: Any) -> list[bytes]:
        return [cupy.asnumpy(a).tobytes() for a in arrays]

    for _ in range(2):
        assert content(ours.forward()) == content(ours.saved), "forward: other bits in another run"
        assert content(ours.backward(ours.saved)) == content(grads), (
            "backward: other bits in another run"
        )


def assert_peer(actual: Any, expected: Any, mode: str, what: str) -> None:
    a, e = (np.asarray(v).astype(np.float64) for v in (actual, expected))
    assert a.shape == e.shape, f"{what}: shape {a.shape}, expected {e.shape}"
    error, scale = np.max(np.abs(a - e), initial=0), np.max(np.abs(e), initial=1)
    tolerance = PEER_FACTOR * TOLERANCES[TOLERANCE_OF[mode]]
    # Not "error > ...", which a NaN would pass.
    assert error <= tolerance * scale, f"{what}: off by {error:.3g} of {scale:.3g}"


def check_tf(cupy: Any, mode: str, peephole: bool) -> None:
    """Compare the launches of TFStyle with cupyrnn."""
    inputs = on_device(cupy, host_inputs(PEER_SHAPE, 2), mode)
    ours, theirs = Ours(inputs, peephole), TFStyle(cupy, inputs, peephole)
    theirs.run("forward", theirs.T).call(None)
    theirs.run("backward", theirs.T).call(None)
    for name, a, e in zip(ours.saved._fields, theirs.saved, ours.saved, strict=True):
        assert_peer(cupy.asnumpy(a), cupy.asnumpy(e), mode, name)
    grads = ours.backward(ours.saved)
    for name in (*GRADIENTS, *(PEEPHOLES if peephole else ())):
        expected = cupy.asnumpy(getattr(grads, f"{name}_grad"))
        assert_peer(cupy.asnumpy(theirs.grads[name]), expected, mode, f"{name}_grad")


def check_torch(cupy: Any, torch: Any, mode: str) -> None:
    """Compare PyTorch with cupyrnn."""
    inputs = host_inputs(PEER_SHAPE, 3)
    ours, theirs = Ours(on_device(cupy, inputs, mode), False), TorchLSTM(torch, inputs, mode)

    def host(tensor: Any) -> Any:
        return tensor.detach().to(dtype=torch.float32).cpu().numpy()

    y = theirs.forward()
    assert_peer(host(y), cupy.asnumpy(ours.saved.h), mode, "h")
    dx, dh, dcs, w_ih, w_hh, b_ih, b_hh = map(host, theirs.backward(y))
    g = ours.backward(ours.saved)
    w = np.concatenate((w_ih.T, w_hh.T))
    actual = [("x", dx), ("h_prev", dh[0]), ("cs_prev", dcs[0]), ("w", w), ("b", b_ih), ("b", b_hh)]
    for name, a in actual:
        assert_peer(a, cupy.asnumpy(getattr(g, f"{name}_grad")), mode, f"{name}_grad")


def describe(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def mode_title(mode: str) -> str:
    return {"float32": "float32 (strict)", "tf32": "float32 (TF32)"}.get(mode, mode)


class Report:
    """All results so far, printed as they come and written after each."""

    def __init__(self, stem: Path, environment: dict[str, Any]) -> None:
        self.stem = stem
        self.data: dict[str, Any] = {
            "environment": environment,
            "finished": False,
            "checks": [],
            "rows": [],
        }
        self.failed = False

    def check(self, what: str, problem: str | None) -> None:
        self.failed |= problem is not None
        self.data["checks"].append({"what": what, "problem": problem})
        print(f"  {what}: {'ok' if problem is None else f'FAILED: {problem}'}", flush=True)
        self.save()

    def add(self, row: dict[str, Any]) -> None:
        """Take a row: times, or `status` saying why there are none."""
        status = row.get("status")
        self.failed |= status is not None and status.startswith(("failed", "FAILED"))
        self.failed |= "errors" in row
        self.data["rows"].append(row)
        peephole = " peephole" if row["peephole"] else ""
        label = f"  {row['shape']} {row['mode']}{peephole} {row['pass']}, {row['who']}: "
        print(label + (status or one_line(row)), flush=True)
        self.save()

    def save(self) -> None:
        self.stem.parent.mkdir(parents=True, exist_ok=True)
        for suffix, text in (
            (".json", json.dumps(self.data, indent=1)),
            (".md", markdown(self.data)),
        ):
            path = self.stem.with_name(self.stem.name + suffix)
            part = path.with_name(path.name + ".part")
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(path)


def one_line(row: dict[str, Any]) -> str:
    parts = [f"eager {row['eager_ms']:.3f} ms ({row['repetitions']})"]
    parts.append(f"queued {queued_text(row)}")
    if "host_us_per_step" in row:
        parts.append(f"host {row['host_us_per_step']:.1f} us/step")
    parts += [f"note: {row['note']}"] if row.get("note") else []
    parts += [f"failed: {error}" for error in row.get("errors", ())]
    return ", ".join(parts)


def short(text: str) -> str:
    """Return a message as a table can hold it."""
    return (text if len(text) <= 80 else text[:77] + "...").replace("|", "\\|")


def eager_text(row: dict[str, Any]) -> str:
    if "status" in row:
        return short(row["status"])
    return f"{row['eager_ms']:.3f}" + ("*" if row["repetitions"] < ENOUGH else "")


def queued_text(row: dict[str, Any]) -> str:
    if "queued_ms" not in row:
        errors = [e.removeprefix("queued: ") for e in row.get("errors", ())]
        return short(f"failed: {errors[0]}") if errors else "–"
    return ("<= " if row["queued_is_bound"] else "") + f"{row['queued_ms']:.3f}"


def ratio_text(peer: dict[str, Any] | None, ours: dict[str, Any] | None, kind: str) -> str:
    """Return peer / cupyrnn of one kind of time."""
    if not peer or not ours or kind not in peer or not ours.get(kind):
        return "–"
    bound = kind == "queued_ms" and (peer["queued_is_bound"] or ours["queued_is_bound"])
    return ("~" if bound else "") + f"{peer[kind] / ours[kind]:.2f}"


def table(titles: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] * len(titles)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, rule, *lines))


def by_key(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """Return the contestants of each line of the table."""
    lines: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = (row["shape"], row["mode"], row["peephole"], row["pass"])
        lines.setdefault(key, {})[row["who"]] = row
    return lines


def times_table(rows: list[dict[str, Any]]) -> str:
    titles = ["shape", "dtype", "peepholes", "pass"]
    for who in (CUPYRNN, CUDNN, TF_STYLE):
        titles += [f"{who} eager", "queued"]
    titles += ["GEMMs queued", "cuDNN / cupyrnn eager", "queued"]
    titles += ["TF-style / cupyrnn eager", "queued"]
    grouped, lines = by_key(rows), []
    for key, found in grouped.items():
        shape, mode, peephole, what = key
        if CUPYRNN not in found and TF_STYLE not in found and CUDNN not in found:
            continue  # only the products, which do not depend on the peepholes
        cells = [shape, mode_title(mode), "yes" if peephole else "no", what]
        for who in (CUPYRNN, CUDNN, TF_STYLE):
            row = found.get(who)
            cells += [eager_text(row), queued_text(row)] if row else ["–", "–"]
        gemms = grouped.get((shape, mode, False, what), {}).get(GEMMS)
        cells.append("–" if gemms is None else queued_text(gemms))
        for who in (CUDNN, TF_STYLE):
            peer, ours = found.get(who), found.get(CUPYRNN)
            cells += [ratio_text(peer, ours, kind) for kind in ("eager_ms", "queued_ms")]
        lines.append(cells)
    return table(titles, lines)


def costs_table(rows: list[dict[str, Any]]) -> str:
    titles = ["shape", "dtype", "peepholes", "pass", "who", "host us/step", "host us/launch"]
    titles += ["device us/step", "peak MB", "of it results"]
    lines = []
    for row in rows:
        if "peak_bytes" not in row:
            continue
        host, device = row.get("host_us_per_step"), row.get("queued_ms")
        launches = LAUNCHES_A_STEP * (2 if row["pass"] == PASSES[2] else 1)
        lines.append(
            [
                *(row["shape"], mode_title(row["mode"]), "yes" if row["peephole"] else "no"),
                *(row["pass"], row["who"]),
                "–" if host is None else f"{host:.1f}",
                "–" if host is None else f"{host / launches:.1f}",
                "–" if device is None else f"{1e3 * device / max(1, row['T']):.2f}",
                *(f"{row[kind] / 1e6:.1f}" for kind in ("peak_bytes", "result_bytes")),
            ]
        )
    return table(titles, lines)


def markdown(data: dict[str, Any]) -> str:
    """Return the results as a page."""
    failed = [c for c in data["checks"] if c["problem"] is not None]
    lines = [f"# LSTM ops on {data['environment'].get('device', '?')}", ""]
    lines += [f"* {name}: {value}" for name, value in data["environment"].items()]
    lines += ["", f"{len(data['checks'])} checks, {len(failed)} failed."]
    lines += [f"* {c['what']}: FAILED: {c['problem']}" for c in failed]
    if not data["finished"]:
        lines += ["", "The run did not come to its end."]
    lines += ["", "## Times in ms", "", times_table(data["rows"])]
    lines += [
        "",
        "## Costs",
        "",
        costs_table(data["rows"]),
        "",
        "## What the columns are",
        "",
        NOTES,
    ]
    remarks: dict[str, None] = {}  # each once, in order
    for row in data["rows"]:
        who = f"* {row['who']}, {row['shape']} {row['mode']}"
        if row.get("note"):
            remarks[f"{who}: {row['note']}"] = None
        problems = [row["status"]] if row.get("status", "").startswith("failed") else []
        for problem in problems + row.get("errors", []):
            remarks[f"{who} {row['pass']}: {problem}"] = None
    if remarks:
        lines += ["", "## Remarks", "", *remarks]
    return "\n".join(lines)


def import_cupy() -> tuple[Any, str | None]:
    """Return CuPy and None, or None and what is missing."""
    extras = "pip install 'cupyrnn[cuda13x]' (CUDA 13) or 'cupyrnn[cuda12x]' (CUDA 12)"
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        return None, f"CuPy cannot be imported ({describe(error)}): {extras}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return None, f"no GPU that CuPy can use ({describe(error)}); for CuPy itself: {extras}"
    return (cupy, None) if count else (None, f"no GPU; for CuPy itself: {extras}")


def dotted(version: int, factor: int) -> str:
    return f"{version // factor}.{version % factor // (factor // 100)}"


def attempt(get: Callable[[], Any]) -> str:
    """Return what describes the machine; that it cannot be found out stops nothing."""
    try:
        return str(get())
    except Exception as error:
        return f"unknown ({describe(error)})"


def environment(cupy: Any, torch: Any, torch_problem: str | None) -> dict[str, Any]:
    """Return what the numbers depend on."""
    runtime = cupy.cuda.runtime

    def device() -> Any:
        return runtime.getDeviceProperties(runtime.getDevice())

    def cublas() -> int:
        return int(cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle()))

    now = datetime.datetime.now(datetime.timezone.utc)
    found = {
        "device": attempt(lambda: device()["name"].decode()),
        "compute capability": attempt(lambda: f"{device()['major']}.{device()['minor']}"),
        "multiprocessors": attempt(lambda: device()["multiProcessorCount"]),
        "memory": attempt(lambda: f"{device()['totalGlobalMem'] / 2**30:.0f} GiB"),
        "L2 cache": attempt(lambda: f"{device()['l2CacheSize'] / 2**20:.0f} MiB"),
        "CUDA driver": attempt(lambda: dotted(runtime.driverGetVersion(), 1000)),
        "CUDA runtime": attempt(lambda: dotted(runtime.runtimeGetVersion(), 1000)),
        "cuBLAS": attempt(cublas),
        "CuPy": attempt(lambda: cupy.__version__),
        "NumPy": np.__version__,
        "Python": platform.python_version(),
        "PyTorch": torch_problem or attempt(lambda: torch.__version__),
        "cuDNN (PyTorch's)": torch_problem or attempt(torch.backends.cudnn.version),
        "cupyrnn": cupyrnn.__version__,
        "float32": "strict, except in the rows named TF32",
        "date": now.strftime("%Y-%m-%d %H:%M UTC"),
    }
    return found


def check_all(
    report: Report, cupy: Any, torch: Any, modes: list[str], quick: bool
) -> set[tuple[str, bool, str]]:
    """Check every mode; return the (mode, peephole, contestant) that must not be timed."""
    refused: set[tuple[str, bool, str]] = set()

    def check(mode: str, peephole: bool, who: str, what: str, call: Callable[[], None]) -> None:
        try:
            with float32_mode(mode == "tf32", torch):
                call()
        except Exception as error:
            problem = str(error) if isinstance(error, AssertionError) else describe(error)
            refused.add((mode, peephole, who))
        else:
            problem = None
        name = f"{who}, {mode}{' peephole' if peephole else ''}, {what}"
        report.check(name, problem)

    def ours(mode: str, peephole: bool) -> None:
        attributes = ({}, {"gate_order": "icfo", "cell_clip": 0.5, "seq_len_max": None})
        for shape in AWKWARD:
            for given in attributes:
                # One step fewer than there are, so that something lies past the end.
                last = {"seq_len_max": shape[0] - 1} if "seq_len_max" in given else {}
                check_ours(cupy, mode, shape, peephole, **(given | last))

    for mode in modes:
        for peephole in (False, True):
            check(mode, peephole, CUPYRNN, "awkward shapes", lambda m=mode, p=peephole: ours(m, p))
            for name in () if quick else ("A", "B"):
                shape = SHAPES[name]
                check(
                    *(mode, peephole, CUPYRNN, f"shape {name}"),
                    lambda m=mode, p=peephole, s=shape: check_ours(cupy, m, s, p),
                )
            if mode != "tf32":
                check(
                    *(mode, peephole, TF_STYLE, "against cupyrnn"),
                    lambda m=mode, p=peephole: check_tf(cupy, m, p),
                )
        if torch is not None:
            check(
                *(mode, False, CUDNN, "against cupyrnn"),
                lambda m=mode: check_torch(cupy, torch, m),
            )
    return refused


def compete(
    report: Report,
    timer: Timer,
    key: dict[str, Any],
    who: str,
    passes: tuple[str, ...],
    build: Callable[[], dict[str, Job]],
    extras: Callable[[str, Job], dict[str, Any]] = lambda what, job: {},
    refusal: str | None = None,
) -> None:
    """Time all passes of a contestant; what goes wrong is reported in their rows."""

    def add(what: str, result: dict[str, Any]) -> None:
        report.add({**key, "pass": what, "who": who, **result})

    if refusal is None and timer.limits.over():
        refusal = "skipped: out of time"
    jobs: dict[str, Job] = {}
    if refusal is None:
        try:
            jobs = build()
        except Exception as error:
            refusal = f"failed: {describe(error)}"
    for what in passes:
        if refusal is not None:
            add(what, {"status": refusal})
        elif timer.limits.over():
            add(what, {"status": "skipped: out of time"})
        else:
            try:
                row = timer.measure(jobs[what])
                try:
                    row |= extras(what, jobs[what])
                except Exception as error:
                    row.setdefault("errors", []).append(f"costs: {describe(error)}")
                add(what, row)
            except Exception as error:
                add(what, {"status": f"failed: {describe(error)}"})


def free(cupy: Any, torch: Any) -> None:
    """Give the memory of the last contestant back, for the next one's library."""
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    if torch is not None:
        torch.cuda.empty_cache()


def time_on_cupy(
    report: Report,
    timer: Timer,
    key: dict[str, Any],
    host: list[dict[str, Any]],
    refusal: Callable[[str, bool], str | None],
) -> None:
    """Time what runs on CuPy arrays."""
    cupy, mode = timer.cupy, key["mode"]
    sets = [on_device(cupy, inputs, mode) for inputs in host]
    compete(report, timer, key, GEMMS, PASSES[:2], lambda: product_jobs(cupy, sets))
    for peephole in (False, True) if mode != "tf32" else (False,):
        case = key | {"peephole": peephole}
        compete(
            report,
            timer,
            case,
            CUPYRNN,
            PASSES,
            lambda p=peephole: our_jobs(sets, p),
            lambda what, _, p=peephole: our_extras(timer, sets[0], p, what),
            refusal(CUPYRNN, peephole),
        )
        if mode != "tf32":
            compete(
                report,
                timer,
                case,
                TF_STYLE,
                PASSES[:2],
                lambda p=peephole: tf_jobs(cupy, sets, p),
                refusal=refusal(TF_STYLE, peephole),
            )


def time_on_torch(
    report: Report,
    timer: Timer,
    torch: Any,
    key: dict[str, Any],
    host: list[dict[str, Any]],
    refusal: str | None,
) -> None:
    """Time cuDNN."""
    notes: list[str] = []

    def build() -> dict[str, Job]:
        expect_same_stream(timer.cupy, torch)
        contestants = [TorchLSTM(torch, inputs, key["mode"]) for inputs in host]
        notes.append(contestants[0].notes())
        return torch_jobs(contestants)

    def extras(what: str, job: Job) -> dict[str, Any]:
        return {"note": notes[0], **torch_memory(torch, job.runs[0])}

    compete(report, timer, key, CUDNN, PASSES, build, extras, refusal)


def time_mode(
    report: Report,
    timer: Timer,
    torch: Any,
    torch_problem: str | None,
    key: dict[str, Any],
    host: list[dict[str, Any]],
    refused: set[tuple[str, bool, str]],
) -> None:
    """Time all contestants at one shape in one mode."""

    def refusal(who: str, peephole: bool) -> str | None:
        unfit = (key["mode"], peephole, who) in refused
        return "FAILED its check, not timed" if unfit else None

    # The arrays of one library are gone when the other's turn comes.
    try:
        time_on_cupy(report, timer, key, host, refusal)
    finally:
        free(timer.cupy, torch)
    time_on_torch(report, timer, torch, key, host, torch_problem or refusal(CUDNN, False))
    free(timer.cupy, torch)


def time_all(
    report: Report,
    timer: Timer,
    torch: Any,
    torch_problem: str | None,
    shapes: list[str],
    modes: list[str],
    refused: set[tuple[str, bool, str]],
) -> None:
    runtime = timer.cupy.cuda.runtime
    l2 = int(runtime.getDeviceProperties(runtime.getDevice())["l2CacheSize"])
    for name in shapes:
        count = set_count(SHAPES[name], l2)
        print(f"shape {name} (T, B, I, H) = {SHAPES[name]}, {count} sets of inputs", flush=True)
        host = [host_inputs(SHAPES[name], 10 + k) for k in range(count)]
        for mode in modes:
            key = {"shape": name, "T": SHAPES[name][0], "mode": mode, "peephole": False}
            try:
                with float32_mode(mode == "tf32", torch):
                    time_mode(report, timer, torch, torch_problem, key, host, refused)
            except Exception as error:
                # Not even the inputs could be made.
                status = f"failed: {describe(error)}"
                report.add({**key, "pass": "all", "who": CUPYRNN, "status": status})


def available(report: Report, modes: list[str], shapes: list[str]) -> list[str]:
    """Return the modes that can run here; the others get a row that says why not."""
    kept = []
    for mode in modes:
        try:
            numpy_dtype(mode)
        except ImportError:
            for name in shapes:
                key = {"shape": name, "T": SHAPES[name][0], "mode": mode, "peephole": False}
                status = "ml_dtypes not installed"
                report.add({**key, "pass": "all", "who": CUPYRNN, "status": status})
        else:
            kept.append(mode)
    return kept


def names(allowed: Any) -> Callable[[str], list[str]]:
    """Return a parser of names with commas between them."""

    def parse(text: str) -> list[str]:
        chosen = [name for name in text.split(",") if name]
        for name in chosen:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(allowed)}")
        return chosen

    return parse


def arguments(argv: list[str] | None) -> argparse.Namespace:
    title = (__doc__ or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser("gpu.py", description=title)
    parser.add_argument("--quick", action="store_true", help="small shapes, few repetitions")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--shapes", type=names(SHAPES), help=f"of {','.join(SHAPES)}")
    parser.add_argument("--dtypes", type=names(MODES), default=list(MODES), help=",".join(MODES))
    parser.add_argument("--seconds", type=float, help="start no row later; default 270, quick 45")
    parser.add_argument("--force", action="store_true", help="time also what failed its check")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    begin = time.perf_counter()
    args = arguments(argv)
    cupy, problem = import_cupy()
    if cupy is None:
        print(f"gpu.py: nothing to run on: {problem}")
        return 2
    torch, torch_problem = import_torch()
    if args.shapes is None:
        args.shapes = [n for n in SHAPES if n in "AB"] if args.quick else list(SHAPES)
    seconds = args.seconds if args.seconds is not None else 45 if args.quick else 270
    limits = (QUICK if args.quick else FULL)._replace(deadline=begin + seconds)

    found = environment(cupy, torch, torch_problem)
    for name, value in found.items():
        print(f"{name}: {value}")
    device = re.sub(r"[^a-z0-9]+", "-", found["device"].lower()).strip("-")
    date = re.sub(r"[^0-9]+", "-", found["date"].removesuffix(" UTC"))
    stem = args.out / f"gpu-{device}-{date}{'-quick' if args.quick else ''}"
    report = Report(stem, found)

    modes = available(report, args.dtypes, args.shapes)
    print("checks", flush=True)
    refused = check_all(report, cupy, torch, modes, args.quick)
    timer = Timer(cupy, limits)
    chosen = set() if args.force else refused
    time_all(report, timer, torch, torch_problem, args.shapes, modes, chosen)

    found["seconds"] = f"{time.perf_counter() - begin:.0f}"
    report.data["finished"] = True
    report.save()
    print(
        f"\n{times_table(report.data['rows'])}\n\n{costs_table(report.data['rows'])}\n\n{NOTES}\n"
    )
    print(
        f"written: {stem}.json and .md; {'something FAILED' if report.failed else 'all went well'}"
    )
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
