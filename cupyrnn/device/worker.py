"""
The separate process of the kernels: compares their values with NumPy's, and times them.

A wrong kernel may end the process, or leave the device in a state that refuses all later calls.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np

from .._ops import Record
from ..kernels import timed
from ..kernels.timed import CALLS, ENGINES, MODES
from . import recurrence_kernels
from .problems import Problem, draw, dtype_of
from .timing import DeviceTime, DeviceTimer

FORWARD, BACKWARD = DIRECTIONS = ("forward", "backward")
INFERENCE, TRAINING = CALLS
# The largest error, relative to the largest magnitude: ten times the rounding error here. A wrong
# kernel is off by far more.
TOLERANCES = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 2e-5, "float64": 1e-12}
# The median of up to _MOST calls is taken, if _SECONDS allow; the clocks need _WARM_UP seconds.
_MOST, _SECONDS, _WARM_UP = 9, 0.3, 0.02


@contextmanager
def asked(mode: str) -> Iterator[None]:
    """Force one kernel, or one engine of `cudnn_rnn`, within the context."""
    variable = "CUPYRNN_ENGINE" if mode in ENGINES else "CUPYRNN_PERSISTENT"
    before = os.environ.get(variable)
    os.environ[variable] = mode
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before


class OpOnDevice:
    """
    An op and its gradient on the device, called separately.

    The gradient gets the results of NumPy's forward call or, if its arguments exist on the device
    only, the op's own results there.

    Attributes
    ----------
    expected
        NumPy's results, by direction or call, and by name.
    there
        The op's arguments, on the device.
    """

    def __init__(
        self,
        dtype: str,
        record: Record,
        arguments: dict[str, Any],
        cotangents: dict[str, Any],
        **of_device: Any,
    ) -> None:
        import cupy

        def there(arrays: dict[str, Any]) -> dict[str, Any]:
            of_host = ("sequence_lengths", "resets", "host_reserved")
            moved = {n: isinstance(a, np.ndarray) and n not in of_host for n, a in arrays.items()}
            return {n: cupy.asarray(a) if moved[n] else a for n, a in arrays.items()}

        results = record.forward(**arguments)._asdict()
        self._record, self._tolerance = record, TOLERANCES[dtype]
        self.expected = {
            FORWARD: {n: results[n] for n in record.outputs},
            BACKWARD: record.grads(arguments, results, cotangents),
        }
        self.expected[INFERENCE] = self.expected[FORWARD]
        self.expected[TRAINING] = self.expected[FORWARD] | self.expected[BACKWARD]
        self.there = there(arguments) | of_device
        self._results, self._cotangents = there(results), there(cotangents)
        # On a device the rows of reserve_space are in the order of time, with padding.
        if of_device or "reserve_space" in results:
            self._results = self.run(FORWARD)

    def run(self, direction: str) -> dict[str, Any]:
        """Return the results of a call on the device, by name."""
        if direction == BACKWARD:
            return self._record.grads(self.there, self._results, self._cotangents)
        more = {"is_training": False} if direction == INFERENCE else {}
        found: dict[str, Any] = self._record.forward(**self.there, **more)._asdict()
        if direction == TRAINING:
            found |= self._record.grads(self.there, found, self._cotangents)
        return found

    def wrong(self, direction: str) -> str:
        """Return which results differ from NumPy's or between two calls; empty if none does."""
        import cupy

        found, again = self.run(direction), self.run(direction)
        for name, expected in self.expected[direction].items():
            if expected is None:
                continue
            a, e = cupy.asnumpy(found[name]), expected.astype(np.float64)
            error = np.max(np.abs(a.astype(np.float64) - e))
            if not error <= self._tolerance * np.max(np.abs(e)):  # also where it is NaN
                return f"{name} is off by {error:.2g} of {np.max(np.abs(e)):.2g}"
            if a.tobytes() != cupy.asnumpy(again[name]).tobytes():
                return f"{name} has other bits when it is computed again"
        return ""

    def times(self, direction: str, modes: list[str]) -> list[float]:
        """Return the milliseconds of the device in a call by each kernel, measured in turns."""
        timer, waits = DeviceTimer(), dict.fromkeys(modes, 0.0)

        def one(mode: str) -> DeviceTime:
            with asked(mode):
                found = timer.measure(lambda: self.run(direction), waits[mode])
            waits[mode] = 2 * found.host + 5e-4
            return found

        def rounds(least: int, most: int, seconds: float) -> list[list[DeviceTime]]:
            found: list[list[DeviceTime]] = []
            end = perf_counter() + seconds
            while len(found) < least or (len(found) < most and perf_counter() < end):
                found.append([one(mode) for mode in modes])
            return found

        # The first call compiles. The second one shows the time of the host.
        rounds(2, sys.maxsize, _WARM_UP)
        of_modes = zip(*rounds(1, _MOST, _SECONDS), strict=True)
        return [
            statistics.median([t.ms for t in of if t.all_queued] or [min(t.ms for t in of)])
            for of in of_modes
        ]


@lru_cache(maxsize=4)  # with lengths and without, to compare and to time
def _calls(problem: Problem) -> OpOnDevice:
    return OpOnDevice(problem.dtype, *draw(problem))


def engines_of(problem: Problem) -> dict[str, dict[str, str]]:
    """Return the engines that "auto" chooses from, by call."""
    from ..cudnn.engine import is_exact
    from ..ops.cudnn_rnn import cudnn_rnn_engine

    timed.read_anew()  # the measurements at the start of this process
    found: dict[str, dict[str, str]] = {call: {} for call in CALLS}
    engine: Any
    for call, engine in product(CALLS, ENGINES):
        if is_exact(engine, problem.dtype):
            arguments = _calls(problem).there | {"is_training": call == TRAINING}
            with suppress(RuntimeError):
                found[call][engine] = cudnn_rnn_engine(**arguments, engine=engine)
    return found


def kernels_of(problem: Problem) -> dict[str, dict[str, str]]:
    """Return the kernels that exist, by direction."""
    if problem.net:
        return engines_of(problem)
    sizes = {"batch_size": problem.B, "num_units": problem.H, "num_steps": problem.T}
    cell: Any = problem.cell
    found: dict[str, dict[str, str]] = {direction: {} for direction in DIRECTIONS}
    for mode in MODES:
        with asked(mode):
            choices = recurrence_kernels(cell, **sizes, dtype=dtype_of(problem.dtype))
        for direction, choice in zip(DIRECTIONS, choices, strict=True):
            if mode == "loop" or choice.kernel != "loop":
                found[direction][mode] = choice.kernel
    return found


def _wrong(problem: Problem, direction: str, mode: str) -> str:
    """Return a description of a kernel's wrong values; empty if all are right."""
    calls = _calls(problem)
    try:
        with asked(mode):
            return calls.wrong(direction)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _answer(question: Any) -> Any:
    what, problem, *rest = question
    if what == "kernels":
        return kernels_of(problem)
    return _wrong(problem, *rest) if what == "wrong" else _calls(problem).times(*rest)


def be_strict() -> None:
    """Make this package's kernels compute in strict float32, so that they can equal NumPy's."""
    os.environ |= {"CUPYRNN_ENGINE": "cupy", "CUPY_TF32": "0", "CUPYRNN_NUMBA": "0"}


def begin() -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return the card and the file of its measurements, and a function that answers questions."""
    try:
        import cupy

        number = cupy.cuda.runtime.getDevice()
        name = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError)
        install = '; in a clone: pip install ".[cuda12x]" or ".[cuda13x]"'
        raise ValueError(
            f"no GPU that CuPy can use: {type(error).__name__}: {error}{install * missing}"
        ) from error
    be_strict()
    path = timed.path_of(number)
    return {"card": name, "path": None if path is None else str(path)}, _answer
