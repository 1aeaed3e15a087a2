"""
The first use of a kernel of one launch on a device: it is tried, and the kernels may be timed.

A trial computes the recurrence of a few steps by NumPy, by the loop, by the kernel alone, and by
the kernel beside another one that keeps every second multiprocessor busy. The verdict is kept for
the card, the driver, NVRTC and this state of the kernels, so that a machine tries a kernel once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from .._typing import Array
from ..arithmetic.gates import HardSigmoid
from ..arithmetic.scratch import Scratch
from ..cells.contract import BackwardRun, ForwardRun, each
from ..checks.arrays import compute_dtype, tf32_allowed
from ..kernels import choice, compile, persistent, timed
from ..kernels.choice import FirstUse
from ..kernels.fit import Candidate, Recurrence, by_mode, the_loop
from ..kernels.persistent import OneLaunch, Trial, trying
from .packing import Rows, StepRun
from .pages import drawn_of, in_cuda, in_numpy
from .timing import DeviceTimer

_Result = TypeVar("_Result")
Numbers: TypeAlias = Any  # a cell, or the NamedTuple of its states or of what a step saves

# Steps of a trial: all buffers and parities of barriers come back.
STEPS = 6
# The largest error, relative to the largest magnitude: ten times the rounding error here. A wrong
# kernel is off by far more.
TOLERANCES = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 2e-5, "float64": 1e-12}
# T of timed calls, and their largest B*H*T, for memory.
TIMED_STEPS, LARGEST = 96, 2**23
# A kernel that is faster than the loop by less than this is not chosen.
LEAST_GAIN = 1.03
# The most rounds and seconds of the times at a size, beside compiling.
_ROUNDS, _SECONDS = 7, 1.0
_SKEW = r"""
// Keeps the multiprocessors with odd numbers busy, so that blocks start and run at other speeds.
__global__ void skew(long long cycles)
{
#ifndef CUDA_ON_CPU
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    const long long start = clock64();
    while (sm % 2 && clock64() - start < cycles) { }
#endif
}
"""
_CYCLES = 200_000  # a tenth of a millisecond


def settled(function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    """Call a function; try and time what it uses for the first time, and call it again."""
    while True:
        try:
            return function(*args, **kwargs)
        except FirstUse as first:
            with timed.alone():  # other threads wait for the verdict
                if settle(first.of, first.candidate):
                    continue
            with trying(Trial(None)):
                return function(*args, **kwargs)


def settle(of: Recurrence, candidate: Candidate | None) -> bool:
    """Try a kernel, or time all of them if none is given; return False if this is impossible."""
    import cupy

    stream = cupy.cuda.get_current_stream()
    if drawn_of(of.kernels.cell) is None or stream.is_capturing():
        return False
    if candidate is None:
        time_kernels(of)
    elif choice.verdict(with_own(of), candidate) is None:
        try_kernel(of, candidate)
    return True


def with_own(of: Recurrence) -> Recurrence:
    """Return a recurrence with what is known of its device now."""
    return of._replace(device=choice.current_device())


class _Problem(NamedTuple):
    """A recurrence to compute, by NumPy and on the device; N rows in all."""

    cell: Numbers
    rows: Rows
    w: list[Array]
    z: list[Array]  # [N, ·]
    first: Numbers  # the states before the first step, [B, H]
    cotangents: Numbers  # of each step's states, [N, H]
    last: Numbers  # the gradients of the last states, [B, H]

    @property
    def batches(self) -> list[int]:
        """The rows of each step."""
        batches: list[int] = np.diff(self.rows.starts).tolist()
        return batches


def _problem(of: Recurrence, B: int, T: int, some: Callable[..., Array]) -> _Problem:
    """Return a problem of numbers from `some`, a function of a shape."""
    widths, H = of.kernels.cell.widths, of.shape[1]
    cell = drawn_of(of.kernels.cell)(some, H, None if of.plain else HardSigmoid(0.2, 0.5))
    # Every sequence has a step.
    rows = Rows(np, T, B, None if of.plain else T - np.arange(B) * T // B)
    kind = cell.states(cell.Saved(*[None] * len(cell.Saved._fields)))

    def states(count: int) -> Numbers:
        return type(kind)(*[some(count, H) for _ in kind])

    w = [some(H, n * H) * np.float32(H**-0.5) for n in widths]
    z = [some(rows.rows, n * H) for n in widths]
    return _Problem(cell, rows, w, z, states(B), states(rows.rows), states(B))


def _by_numpy(problem: _Problem, direction: str) -> tuple[list[Array], Numbers, Numbers]:
    """Return the results of a direction, what the steps save, and the states before each step."""
    cell, rows, w, z, first, cotangents, last = problem
    page, (N, H), dtype = in_numpy(type(cell)), cotangents.h.shape, z[0].dtype
    saved = cell.Saved(*[np.empty((N, H), dtype) for _ in cell.Saved._fields])
    runs, work = [run for block in rows.blocks() for run in block.runs], Scratch(np, dtype)

    def part(arrays: Numbers, run: StepRun) -> Numbers:
        return arrays._make(run.of(arrays, 0))

    carried = each(first, np.copy)
    for run in runs:
        given = run.of([a.copy() for a in z], 0), run.running(carried), part(saved, run)
        page.forward_steps(cell, ForwardRun(w, *given, run.batches, work))
    after = cell.states(saved)
    pairs = zip(first, after, strict=True)
    before = after._make([rows.before(0, N, s, a, dtype) for s, a in pairs])
    if direction == "forward":
        return [*saved, *carried[1:]], saved, before  # the last h is in `saved`
    deltas = [np.empty((N, width), dtype) for width in cell.widths]
    back, carried = [a.T.copy() for a in w], each(last, np.copy)
    for run in reversed(runs):
        now, past, dh = (part(arrays, run) for arrays in (saved, before, cotangents))
        into = run.running(carried), run.of(deltas, 0)
        page.backward_steps(cell, BackwardRun(back, now, past, run.batches, dh, *into, work))
    return [*deltas, *carried], saved, before


class _OnDevice:
    """
    A problem on the device.

    With `pads`, every step has the rows of all sequences, and kernels get the lengths.
    """

    def __init__(
        self, of: Recurrence, problem: _Problem, saved: Numbers, before: Numbers, *, pads: bool
    ) -> None:
        import cupy

        self._direction, self._dtype = of.kernels.name.rpartition("_")[2], of.dtype
        self._compute, self._problem = compute_dtype(of.dtype), problem
        B, T = problem.batches[0], len(problem.batches)
        self._rows: Array | None = None
        self.batches, self.lengths = problem.batches, None
        if pads:
            steps = enumerate(problem.batches)
            self._rows = np.concatenate([t * B + np.arange(n) for t, n in steps])
            self.batches = [B] * T
            lengths = (np.array(problem.batches)[:, None] > np.arange(B)).sum(0)
            self.lengths = cupy.asarray(lengths.astype(np.int32))
        self._page = in_cuda(problem.cell.__class__)
        self._saved = each(saved, self._stored)
        self._before = each(before, self._stored)
        self._cotangents = each(problem.cotangents, self._stored)
        w = problem.w if self._direction == "forward" else [a.T for a in problem.w]
        self._w = [cupy.asarray(np.ascontiguousarray(a).astype(of.dtype)) for a in w]
        self._z = [cupy.asarray(self._padded(a)) for a in problem.z]
        is_forward = self._direction == "forward"
        self._carried = each(problem.first if is_forward else problem.last, cupy.asarray)
        self._cell = type(problem.cell)._make(map(self._of_cell, problem.cell))

    def _of_cell(self, value: Any) -> Any:
        import cupy

        if isinstance(value, tuple) and value and isinstance(value[0], np.ndarray):
            return tuple(map(self._of_cell, value))
        return cupy.asarray(value) if isinstance(value, np.ndarray) else value

    def _padded(self, a: Array) -> Array:
        if self._rows is None:
            return a
        found = np.zeros((sum(self.batches), a.shape[1]), a.dtype)
        found[self._rows] = a
        return found

    def _stored(self, a: Array) -> Array:
        import cupy

        found: Array = cupy.asarray(self._padded(a).astype(self._dtype))
        return found

    def run(self) -> list[Array]:
        """Compute the steps on the current stream; return the results on the device."""
        return self._run([a.copy() for a in self._z], each(self._carried, lambda a: a.copy()))

    def run_in_place(self) -> list[Array]:
        """Compute the steps, but overwrite the arguments of other calls: their values differ."""
        return self._run(self._z, self._carried)

    def _run(self, z: list[Array], carried: Numbers) -> list[Array]:
        import cupy

        work = Scratch(cupy, self._compute)
        if self._direction == "forward":
            saved = each(self._saved, lambda a: cupy.empty(a.shape, a.dtype))
            self._page.forward_steps(
                self._cell, ForwardRun(self._w, z, carried, saved, self.batches, work)
            )
            return [*saved, *carried[1:]]
        N, widths = sum(self.batches), self._problem.cell.widths
        deltas = [cupy.empty((N, width), self._dtype) for width in widths]
        given = self._saved, self._before, self.batches, self._cotangents, carried, deltas
        self._page.backward_steps(self._cell, BackwardRun(self._w, *given, work))
        return [*deltas, *carried]

    def on_host(self, found: list[Array]) -> list[Array]:
        """Return results without padding, on the host."""
        import cupy

        arrays = [cupy.asnumpy(a) for a in found]
        if self._rows is None:
            return arrays
        states = len(arrays) - len(self._problem.first) + (self._direction == "forward")
        return [a[self._rows] for a in arrays[:states]] + arrays[states:]


def _few(of: Recurrence, candidate: Candidate) -> tuple[Recurrence, OneLaunch | None]:
    """Return a recurrence of few sequences, and the launch of the same kernel for it."""
    (_, sequences, _), layout = candidate
    # One row of blocks is full, and one is not.
    B = sequences + max(1, sequences // 4)
    few = of._replace(shape=(B, of.shape[1]), steps=STEPS)
    layout_of: Any = layout
    if hasattr(layout_of, "blocks"):
        blocks, groups = layout_of.blocks
        together = min(groups, 2)
        layout_of = layout_of._replace(blocks=(blocks, together), launches=2 // together)
        if candidate.choice.kernel == "cluster":
            layout_of = layout_of._replace(blocks=(blocks, 2), launches=1)
    found = persistent.launch_of(few, candidate._replace(layout=layout_of))
    whole = persistent.launch_of(of, candidate)
    return few, None if found is None or whole is None else found._replace(of=whole.of)


def try_kernel(of: Recurrence, candidate: Candidate) -> str:
    """Try a kernel; keep what is wrong with it, warn of it, and return it: empty if it is right."""
    import cupy

    verdicts = {}
    loop = choice.verdict_name(of, the_loop(""))
    try:
        few, launch = _few(of, candidate)
        if launch is None:
            return ""
        of_loop, seen = _seen(few, launch)
        if launch.of in persistent._refused:  # a warning has said so
            return ""
        verdicts = {loop: of_loop} if of_loop else {}
    except cupy.cuda.memory.OutOfMemoryError as error:
        whole = persistent.launch_of(of, candidate)
        persistent.refuse([whole] if whole else [], error)
        return ""
    except Exception as error:
        seen = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    verdicts[choice.verdict_name(of, candidate)] = seen
    for name, what in verdicts.items():
        keep_verdict(of, name, what)
    return seen


def keep_verdict(of: Recurrence, name: str, seen: str) -> None:
    """Keep what was wrong with a kernel or an engine, and warn of it; empty if it is right."""
    timed.add(of.device.number, {name: seen})
    if seen:
        card = of.device.own.card if of.device.own else "this GPU"
        what = f"{name}: {seen}; please report it"
        timed.warn(f"cupyrnn does not use a kernel that is wrong on {card}: {what}")


def _seen(of: Recurrence, launch: OneLaunch) -> tuple[str, str]:
    """Return what is wrong with the loop, and with a launch; empty if nothing is."""
    import cupy

    rng, compute = np.random.default_rng([*of.shape]), compute_dtype(of.dtype)

    def some(*shape: int) -> Array:
        return (0.5 * rng.standard_normal(shape)).astype(of.dtype).astype(compute)

    problem = _problem(of, of.shape[0], STEPS, some)
    problem = problem._replace(w=[w.astype(of.dtype).astype(compute) for w in problem.w])
    expected, saved, before = _by_numpy(problem, of.kernels.name.rpartition("_")[2])
    tolerance = TOLERANCES[of.dtype.name]
    there = _OnDevice(of, problem, saved, before, pads=False)
    with trying(Trial(None)):
        wrong = difference(there.on_host(there.run()), expected, of.dtype)
    if wrong:  # NumPy and the loop disagree: the kernel is not to blame
        return wrong, ""
    there = _OnDevice(of, problem, saved, before, pads=of.padded)
    over, results = cupy.zeros(1, np.uint32), []
    for busy in (False, True):
        with trying(Trial(launch, there.lengths, over)), _beside(busy=busy):
            results.append(there.on_host(there.run()))
        if launch.of in persistent._refused:
            return "", ""
        if cupy.asnumpy(over)[0]:
            return "", "a block waits in vain"
        if wrong := _difference(results[-1], expected, tolerance):
            return "", wrong
    if any(a.tobytes() != b.tobytes() for a, b in zip(*results, strict=True)):
        return "", "its results have other bits beside a busy kernel"
    return "", ""


def difference(
    found: list[Array], expected: list[Array], dtype: np.dtype[Any], factor: float = 1
) -> str:
    """Return by how much results are off that cuBLAS or cuDNN computed; empty if they are right."""
    by_tf32 = TOLERANCES["float16"] if dtype.name == "float32" and tf32_allowed() else 0
    return _difference(found, expected, factor * max(by_tf32, TOLERANCES[dtype.name]))


def _difference(found: list[Array], expected: list[Array], tolerance: float) -> str:
    """Return by how much results are off; empty if they are right."""
    for a, e in zip(found, expected, strict=True):
        most = np.max(np.abs(e.astype(compute_dtype(e.dtype))))
        wide = compute_dtype(e.dtype)
        error = np.max(np.abs(a.astype(wide) - e.astype(wide)))
        if not error <= tolerance * max(most, 1):  # also where it is NaN
            return f"a result is off by {error:.2g} of {most:.2g}"
    return ""


@contextmanager
def _beside(*, busy: bool) -> Iterator[None]:
    """Keep every second multiprocessor busy, if asked."""
    import cupy

    if busy:
        function = compile.kernel(_SKEW, ("skew",), "float32", "skew").kernel.ptr
        processors = cupy.cuda.Device().attributes["MultiProcessorCount"]
        cycles = np.array([_CYCLES], np.int64)
        arguments = np.array([cycles.ctypes.data], np.uint64)
        aside = cupy.cuda.Stream(non_blocking=True)
        of_grid = processors, 1, 1, 32, 1, 1, 0, aside.ptr, arguments.ctypes.data, 0
        cupy.cuda.driver.launchKernel(function, *of_grid)
    yield


def time_kernels(of: Recurrence) -> dict[str, float]:
    """Time the kernels that are right at this size, keep the fastest, and return microseconds."""
    name, H, B = choice.size_of(of, choice.name_of(of))
    of = of._replace(shape=(B, H))
    of = of._replace(steps=steps_of(of))
    launches: dict[str, OneLaunch | None] = {"loop": None}
    for mode in timed.MODES[1:]:
        candidate = by_mode(mode, of)
        if candidate.layout is None:
            continue
        if choice.verdict(with_own(of), candidate) is None:
            try_kernel(of, candidate)
        launch = persistent.launch_of(of, candidate)
        if launch is not None and choice.verdict(with_own(of), candidate) == "":
            launches[mode] = launch
    own = with_own(of).device.own
    if own is None or not own.is_kept:  # another process could choose differently
        return {}
    times = _times(of, launches)
    keep_fastest(of, (name, H, B), times, usual="loop")
    return times


def steps_of(of: Recurrence) -> int:
    """Return T of the timed calls for a recurrence."""
    (B, H), few = of.shape, of.steps <= choice.FEW_STEPS
    return max(2, min(choice.FEW_STEPS if few else TIMED_STEPS, LARGEST // (B * H)))


def keep_fastest(
    of: Recurrence, size: tuple[str, int, int], times: dict[str, float], usual: str
) -> None:
    """Keep what was the fastest at a size, and report it; `usual` if nothing gains much."""
    (name, H, B), best = size, min(times, key=lambda way: times[way])
    if times[usual] < LEAST_GAIN * times[best]:
        best = usual
    timed.add(of.device.number, fastest={name: timed.Timed(H, B, best)})
    shown = ", ".join(f"{way} {us:.2f}" for way, us in times.items())
    choice.log(f"{name}, H = {H}, B = {B}: {best}; microseconds of a step: {shown}")


def _times(of: Recurrence, launches: dict[str, OneLaunch | None]) -> dict[str, float]:
    """Return the median times of a step, measured in turns."""
    import cupy

    def zeros(*shape: int) -> Array:
        return np.zeros(shape, compute_dtype(of.dtype))

    plain = of._replace(plain=True, padded=False)
    problem = _problem(plain, of.shape[0], of.steps, zeros)
    kind = problem.cell.Saved
    saved = kind(*[zeros(*problem.cotangents.h.shape) for _ in kind._fields])
    there = _OnDevice(of, problem, saved, problem.cotangents, pads=False)
    lengths = cupy.full(of.shape[0], of.steps, np.int32) if of.padded else None

    def call_of(launch: OneLaunch | None) -> Callable[[], object]:
        def call() -> object:
            with trying(Trial(launch, lengths if launch else None)):
                return there.run_in_place()

        return call

    of_all = times_of({mode: call_of(launch) for mode, launch in launches.items()})
    return {mode: 1e3 * ms / of.steps for mode, ms in of_all.items()}


def times_of(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median milliseconds of calls on the device, measured in turns."""
    timer, waits = DeviceTimer(), dict.fromkeys(calls, 0.0)
    found: dict[str, list[tuple[bool, float]]] = {way: [] for way in calls}

    def once(way: str) -> None:
        one = timer.measure(calls[way], waits[way])
        waits[way] = 2 * one.host + 5e-4
        found[way].append((one.all_queued, one.ms))

    for way in calls:  # compiles, and shows the time of the host
        once(way)
        once(way)
        found[way].clear()
    end = perf_counter() + _SECONDS
    for n in range(_ROUNDS):
        if n and perf_counter() > end:
            break
        for way in calls:
            once(way)
    return {
        way: statistics.median([ms for queued, ms in of if queued] or [min(ms for _, ms in of)])
        for way, of in found.items()
    }
