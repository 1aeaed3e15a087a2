"""What runs first on a GPU: tests, repeated launches, trials and times, experiments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pages

from cupyrnn.checks.arrays import compute_dtype
from cupyrnn.device import cli
from cupyrnn.driver import trial
from cupyrnn.kernels import choice, compile, fit, gru, gru_reset_after, lstm, persistent, simple_rnn
from cupyrnn.kernels.fit import Candidate, Recurrence
from cupyrnn.kernels.persistent import OneLaunch, Trial, trying

from .experiments import EXPERIMENTS, Experiment
from .log import Log
from .timing import describe

TESTS = Path(__file__).parents[2]
# The parts, and the share of the time that is over when each has to end.
PARTS = {"tests": 0.25, "repeats": 0.55, "times": 0.75, "experiments": 1.0}
REPEATS = 1000
CELLS: dict[str, Any] = {
    "lstm": lstm,
    "gru_reset_after": gru_reset_after,
    "gru": gru,
    "simple_rnn": simple_rnn,
}
# Sizes of real blocks: mode, dtypes, and B and H. First one group of sequences in a row of blocks.
WHOLE = (
    ("grid", ("float16", "bfloat16"), ((8, 512), (24, 512), (3, 320), (17, 640), (16, 512))),
    ("rows", ("float32", "float16"), ((16, 64), (300, 32), (5, 128))),
    ("cluster", ("float32", "float16"), ((16, 256), (9, 200))),
    ("grid", ("float32", "float16"), ((16, 256), (9, 200))),
)
# H and B of times, the most important first.
TIMED = ((64, 16), (256, 16), (512, 16), (128, 64), (1024, 32), (32, 1), (256, 256))
# An experiment is won or lost if its times differ by more than this factor.
LEAST = 1.02


class Bound(NamedTuple):
    """What bounds a run."""

    dry: bool
    begin: float
    seconds: float

    def left(self, part: str) -> float:
        """Return the seconds that are left for a part."""
        return self.begin + PARTS[part] * self.seconds - time.perf_counter()


class Case(NamedTuple):
    """A kernel of one launch, at a size."""

    what: str
    frame: str  # whose small blocks it has; empty for whole ones
    of: Recurrence
    candidate: Candidate
    source: str
    template: str

    def launch(self) -> OneLaunch | None:
        with blocks_of(self.frame):
            launch = persistent.launch_of(self.of, self.candidate)
        return launch and launch._replace(kernel=launch.kernel._replace(source=self.source))


@contextmanager
def blocks_of(frame: str) -> Iterator[None]:
    """Have the small blocks of a frame."""
    import pytest
    from without_a_gpu.all_steps import FRAMES

    with pytest.MonkeyPatch.context() as patch:
        if frame:
            FRAMES[frame].ask(patch)
            patch.setattr(fit, "_BLOCKS", ())
        yield


def case_of(of: Recurrence, mode: str, frame: str = "", why: str = "") -> Case | None:
    """Return a case, None if the kernel does not support it."""
    with blocks_of(frame):
        candidate = fit.by_mode(mode, of)
        if candidate.layout is None:
            return None
        template = compile.instance(fit.template_of(of, candidate), of.dtype.name)
    kernels = of.kernels.rows if mode == "rows" else getattr(of.kernels, mode)
    B, H = of.shape
    kind = "padded" if of.padded else "plain" if of.plain else "general"
    turns = template.startswith("steps_by_turns")
    how = "turns" if turns else candidate.choice.kernel
    what = f"{how}: {of.kernels.name} {of.dtype.name} B = {B}, H = {H}, {kind}{why and f': {why}'}"
    return Case(what, frame, of, candidate, kernels.source, template)


def recurrence(
    cell: str, direction: str, dtype: str, size: tuple[int, int], processors: int = 0
) -> Recurrence:
    """Return a plain recurrence on this device, or on so many of its multiprocessors."""
    device = choice.current_device()
    if processors:
        device = device._replace(processors=min(processors, device.processors))
    kernels = getattr(CELLS[cell], f"{direction.upper()}_KERNELS")
    return Recurrence(kernels, cli.dtype_of(dtype), size, trial.STEPS, device, plain=True)


class Compiler:
    """Compiles kernels in threads, ahead of their launches."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers)
        self._asked: dict[tuple[str, str, str], Future[Any]] = {}

    def ask(self, *kernel: str) -> Future[Any]:
        """Compile a kernel, of its source, template and dtype."""

        def compiled(source: str, template: str, dtype: str) -> Any:
            from cupyrnn.kernels import launch

            launch.make_context_current()
            return compile.kernel(source, (template,), dtype, template)

        if kernel not in self._asked:
            self._asked[kernel] = self._pool.submit(compiled, *kernel)
        return self._asked[kernel]

    def forget(self) -> None:
        """Leave out what has not begun."""
        for future in self._asked.values():
            future.cancel()
        self._asked.clear()

    def end(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def run_tests(log: Log, bound: Bound, _: Compiler) -> None:
    """Run the tests that need a GPU, as far as the time goes."""
    log.begin("tests", ("passed", "failed", "skipped", "remarks"))
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "--color=no"]
    command += [str(TESTS / "without_a_gpu/test_rows.py"), "-k", "no_such_test"] * bound.dry
    output, remark = log.page.with_suffix(".txt"), "all ran"
    with output.open("w", encoding="utf-8") as file:
        limit = None if bound.dry else max(1.0, bound.left("tests"))
        try:
            run = subprocess.run(
                command, stdout=file, stderr=file, cwd=TESTS.parent, timeout=limit, check=False
            )
            if run.returncode not in ((5,) if bound.dry else (0, 1)):
                remark = f"pytest ended with {run.returncode}"
        except subprocess.TimeoutExpired:
            remark = "out of time: not all ran"
    lines = output.read_text(encoding="utf-8").split("short test summary")[0]
    counts = Counter(re.findall(r" (PASSED|FAILED|SKIPPED|ERROR)\b", lines))
    failed = counts["FAILED"] + counts["ERROR"]
    wrong = bool(failed) or remark.startswith("pytest")
    log.add(counts["PASSED"], failed, counts["SKIPPED"], f"{remark}; {output.name}", wrong=wrong)


def repeated(*, dry: bool) -> Iterator[Case]:
    """Yield what is repeated, the most important first."""
    from without_a_gpu.all_steps import FRAMES
    from without_a_gpu.sizes import SIZES

    back = ("backward", "forward")
    for mode, dtypes, sizes in WHOLE[:0] if dry else WHOLE:
        for size, cell, direction, dtype in product(sizes, CELLS, back, dtypes):
            case = case_of(recurrence(cell, direction, dtype, size), mode)
            if case is not None:
                yield case
    # The first size of each frame, then the second of each.
    most = max(map(len, SIZES.values()))
    for cell, number in product([*CELLS][: 1 if dry else None], range(1 if dry else most)):
        for frame, sizes in SIZES.items():
            for direction, padded in product(back, (False, True)):
                if number >= len(sizes) or (dry and padded != (frame == "turns")):
                    continue
                size, of_frame = sizes[number], FRAMES[frame]
                of = recurrence(cell, direction, of_frame.dtype, size.shape, size.processors)
                of = of._replace(plain=not padded, padded=padded)
                case = case_of(of, of_frame.mode, frame, size.what)
                if case is not None:
                    yield case


class OnDevice(NamedTuple):
    """A problem on the device, NumPy's results, and what a wait in vain sets."""

    on_device: Any
    expected: list[np.ndarray]
    over: Any

    @classmethod
    def of(cls, of: Recurrence) -> OnDevice:
        import cupy

        rng, compute = np.random.default_rng([*of.shape]), compute_dtype(of.dtype)

        def some(*shape: int) -> Any:
            return (0.5 * rng.standard_normal(shape)).astype(of.dtype).astype(compute)

        problem = trial._problem(of, of.shape[0], of.steps, some)
        problem = problem._replace(w=[w.astype(of.dtype).astype(compute) for w in problem.w])
        expected, saved, before = trial._by_numpy(problem, of.kernels.name.rpartition("_")[2])
        there = trial._OnDevice(of, problem, saved, before, pads=of.padded)
        return cls(there, expected, cupy.zeros(1, np.uint32))

    def run(self, launch: OneLaunch, *, busy: bool = True) -> list[Any]:
        """Return results on the device, computed beside a kernel that disturbs."""
        trying_this = trying(Trial(launch, self.on_device.lengths, self.over))
        with trying_this, trial._beside(busy=busy):
            results: list[Any] = self.on_device.run()
        if launch.of in persistent._refused:
            raise RuntimeError("the driver refused the launch")
        return results

    def wrong(self, results: list[Any], of: Recurrence) -> str:
        """Return what is wrong with results; empty if nothing is."""
        values = self.on_device.on_host(results)
        if self.over.get()[0]:
            return "a block waits in vain"
        return trial._difference(values, self.expected, trial.TOLERANCES[of.dtype.name])


def differ(before: list[Any], after: list[Any], seen: Any) -> None:
    """Set `seen` if any bit differs, without a wait of the host."""
    for a, b in zip(before, after, strict=True):
        seen |= (a.view(np.uint8) != b.view(np.uint8)).any()


def repeat(log: Log, case: Case, seconds: float, most: int) -> None:
    """Run a case many times behind a kernel that disturbs; compare bits, and values once."""
    import cupy

    launch = case.launch()
    if launch is None:
        log.add(case.what, 0, "its blocks cannot run at once here")
        return
    there, end = OnDevice.of(case.of), time.perf_counter() + seconds
    first = there.run(launch, busy=False)
    wrong, seen, runs = there.wrong(first, case.of), cupy.zeros(1, bool), 0
    while not wrong and runs < most and (runs < 2 or time.perf_counter() < end):
        differ(there.run(launch), first, seen)
        runs += 1
        if runs % 50 == 0 and (seen.get()[0] or there.over.get()[0]):
            break
    if not wrong and (seen.get()[0] or there.over.get()[0]):
        wrong = "WRONG: other bits" if seen.get()[0] else "WRONG: a block waits in vain"
    log.add(case.what, runs, wrong or "same bits", wrong=bool(wrong))


def run_repeats(log: Log, bound: Bound, compiler: Compiler) -> None:
    log.begin("repeats", ("kernel", "runs", "seen"))
    cases = [*repeated(dry=bound.dry)]
    asked = [compiler.ask(case.source, case.template, case.of.dtype.name) for case in cases]
    for n, (case, future) in enumerate(zip(cases, asked, strict=True)):
        left = bound.left("repeats")
        if left < 0:
            log.add(f"and {len(cases) - n} more", 0, "no time was left")
            return
        # Early cases are the most important: they may take more than an even share.
        share = 8 * left / (len(cases) - n)

        def one(case: Case = case, future: Future[Any] = future, share: float = share) -> None:
            future.result(timeout=None if bound.dry else bound.left("repeats"))
            repeat(log, case, share, 3 if bound.dry else REPEATS)

        guarded(log, case.what, one)


def run_times(log: Log, bound: Bound, compiler: Compiler) -> None:
    """Try and time every kernel as ``python -m cupyrnn.device`` does."""
    titles = "us of a step", "H", "B", *cli.timed.KERNELS, "taken", "values"
    log.begin("times", titles)
    dtypes, sizes = ("float32", "float16"), TIMED
    if bound.dry:
        dtypes, sizes = dtypes[:1], ((16, 3),)
    wanted = [*product(sizes, dtypes, cli.CELLS_IN_TURN[: 1 if bound.dry else None])]

    def ask(of: tuple[tuple[int, int], str, str]) -> list[Future[Any]]:
        (H, B), dtype, cell = of
        futures = []
        for direction, mode in product(("forward", "backward"), cli.timed.MODES[1:]):
            one = recurrence(cli.CELLS[cell], direction, dtype, (B, H))
            for plain, padded in fit.KINDS:
                steps = one._replace(plain=plain, padded=padded, steps=trial.TIMED_STEPS)
                if (case := case_of(steps, mode)) is not None:
                    futures.append(compiler.ask(case.source, case.template, dtype))
        return futures

    # One size ahead.
    asked = ask(wanted[0])
    for n, ((H, B), dtype, cell) in enumerate(wanted):
        if bound.left("times") < 0:
            log.add(f"and {len(wanted) - n} more", "no time was left")
            return
        now, asked = asked, ask(wanted[n + 1]) if n + 1 < len(wanted) else []

        def one(H: int = H, B: int = B, dtype: str = dtype, cell: str = cell) -> None:
            for future in now:  # noqa: B023 - called at once
                future.result(timeout=None if bound.dry else max(0, bound.left("times")))
            for row in cli.rows(cell, dtype, H, B):
                times = [None if bound.dry else row.times.get(k) for k in cli.timed.KERNELS]
                values = f"WRONG: {row.wrong}" if row.wrong else "right"
                cells = row.name, row.H, row.B, *map(pages.digits, times), row.taken, values
                log.add(*cells, wrong=bool(row.wrong))

        guarded(log, f"{cell} {dtype} H = {H}, B = {B}", one)


def compared(experiment: Experiment, *, dry: bool) -> Iterator[Case]:
    """Yield the calls by which an experiment is compared."""
    from without_a_gpu.all_steps import FRAMES

    mode = FRAMES[experiment.frame].mode
    if dry:
        B, H, processors = experiment.dry
        cells: tuple[str, ...] = ("lstm",)
        sizes, dtypes = ((B, H),), (FRAMES[experiment.frame].dtype,)
    else:
        processors, cells = 0, ("lstm", "gru_reset_after")
        sizes, dtypes = experiment.sizes, experiment.dtypes
    for size, dtype, cell, what in product(sizes, dtypes, cells, experiment.directions):
        of = recurrence(cell, what, dtype, size, processors)
        case = case_of(of, mode, experiment.frame if dry else "")
        if case is not None:
            yield case


def experiment_at(log: Log, experiment: Experiment, case: Case, *, dry: bool) -> None:
    """Compare values and times of an experiment with those of the kernel as it is."""
    import cupy

    changed = case._replace(source=experiment.changed(case.source))
    default, new = case.launch(), changed.launch()
    if default is None or new is None:
        log.add(experiment.name, case.what, "its blocks cannot run at once here")
        return
    there, seen = OnDevice.of(case.of), cupy.zeros(1, bool)
    before, after = there.run(default), there.run(new)
    wrong = there.wrong(before, case.of) or there.wrong(after, case.of)
    if wrong:
        log.add(experiment.name, case.what, f"WRONG: {wrong}", wrong=True)
        return
    differ(before, after, seen)
    of = case.of._replace(steps=trial.steps_of(case.of._replace(steps=trial.TIMED_STEPS)))
    to_time = {"default": case, "changed": changed}
    times = trial._times(of, {way: c._replace(of=of).launch() for way, c in to_time.items()})
    default_us, new_us = times["default"], times["changed"]
    verdict = "even"
    if max(default_us, new_us) > LEAST * min(default_us, new_us):
        verdict = "won" if new_us < default_us else "lost"
    clock = cupy.cuda.Device().attributes.get("ClockRate") or 0  # kHz
    cycles = f"{(new_us - default_us) * clock / 1e3:+.0f}" if clock and not dry else "–"
    bits = "other bits" if seen.get()[0] else "same bits"
    shown = ("–", "–") if dry else (f"{default_us:.3f}", f"{new_us:.3f}")
    text = "dry" if dry else f"{verdict}: {default_us / new_us:.3f}"
    log.add(experiment.name, case.what, *shown, cycles, f"{text}, {bits}")


def run_experiments(log: Log, bound: Bound, compiler: Compiler) -> None:
    titles = ("change", "kernel", "us of a step", "changed", "cycles", "seen")
    log.begin("experiments", titles)
    # The first call of each experiment, then the second of each.
    of_all = [[(e, case) for case in compared(e, dry=bound.dry)] for e in EXPERIMENTS]
    most = max(map(len, of_all))
    calls = [*chain.from_iterable([of[n] for of in of_all if n < len(of)] for n in range(most))]
    for n, (experiment, case) in enumerate(calls):
        if bound.left("experiments") < 0:
            log.add(f"and {len(calls) - n} more", "no time was left")
            return
        for e, c in calls[n : n + 8]:  # some ahead
            for source in (c.source, e.changed(c.source)):
                compiler.ask(source, c.template, c.of.dtype.name)

        def one(e: Experiment = experiment, c: Case = case) -> None:
            for source in (c.source, e.changed(c.source)):
                future = compiler.ask(source, c.template, c.of.dtype.name)
                future.result(timeout=None if bound.dry else max(0, bound.left("experiments")))
            experiment_at(log, e, c, dry=bound.dry)

        guarded(log, f"{experiment.name}: {case.what}", one)


def guarded(log: Log, what: str, call: Callable[[], Any]) -> None:
    """Call a function; note an error and go on, unless the device is lost."""
    import cupy

    try:
        call()
    except FutureTimeoutError:
        log.add(what, "compiling: no time was left")
    except Exception as error:
        log.add(what, f"FAILED: {describe(error)}"[:400], wrong=True)
        cupy.cuda.runtime.deviceSynchronize()  # raises if the context is lost


RUNS = {
    "tests": run_tests,
    "repeats": run_repeats,
    "times": run_times,
    "experiments": run_experiments,
}


def run(log: Log, parts: Iterable[str], bound: Bound) -> None:
    """Run the parts."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    # Every kernel is tried here, whatever was seen on this machine before.
    os.environ["CUPYRNN_CACHE_DIR"] = str(log.page.with_name(f"{log.page.stem}-kept"))
    cli.timed.forget()
    compiler = Compiler(1 if bound.dry else os.cpu_count() or 1)
    try:
        for part in parts:
            RUNS[part](log, bound, compiler)
            compiler.forget()
    except Exception as error:
        log.add(f"the run ends: {describe(error)}", wrong=True)
    finally:
        compiler.end()
