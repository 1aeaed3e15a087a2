"""
A process of its own for the kernels: their values beside NumPy's, and their times.

A kernel that is wrong may end the process, or leave a device that refuses all that follows.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np

from ..kernels import timed
from ..kernels.persistent import WAYS
from . import recurrence_kernels
from .apart import serve
from .problems import Problem, draw, dtype_of

FORWARD, BACKWARD = DIRECTIONS = ("forward", "backward")
# The largest error, as a part of the largest magnitude: ten times what rounding does here, as a
# kernel that is wrong is off by far more.
_TOLERANCES = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 2e-5, "float64": 1e-12}
# Calls of which the median is taken, as many as there is time for; seconds until the clocks are up.
_MOST, _SECONDS, _WARM_UP = 9, 0.3, 0.02


@contextmanager
def _asked(way: str) -> Iterator[None]:
    """Have the steps taken one way."""
    before = os.environ.get("CUPYRNN_PERSISTENT")
    os.environ["CUPYRNN_PERSISTENT"] = way
    try:
        yield
    finally:
        del os.environ["CUPYRNN_PERSISTENT"]
        if before is not None:
            os.environ["CUPYRNN_PERSISTENT"] = before


class _Calls:
    """An op and its gradient, each on its own: the gradient is given what NumPy found forwards."""

    def __init__(self, problem: Problem) -> None:
        import cupy

        def there(arrays: dict[str, Any]) -> dict[str, Any]:
            of_host = ("sequence_lengths", "host_reserved")
            moved = {n: isinstance(a, np.ndarray) and n not in of_host for n, a in arrays.items()}
            return {n: cupy.asarray(a) if moved[n] else a for n, a in arrays.items()}

        self._record, arguments, cotangents = draw(problem)
        results = self._record.forward(**arguments)._asdict()
        self._expected = {
            FORWARD: {n: results[n] for n in self._record.outputs},
            BACKWARD: self._record.grads(arguments, results, cotangents),
        }
        self._tolerance = _TOLERANCES[problem.dtype]
        self._given = there(arguments), there(results), there(cotangents)

    def run(self, direction: str) -> dict[str, Any]:
        """Return what a call gives on the device, by name."""
        arguments, results, cotangents = self._given
        if direction == BACKWARD:
            return self._record.grads(arguments, results, cotangents)
        found: dict[str, Any] = self._record.forward(**arguments)._asdict()
        return found

    def wrong(self, direction: str) -> str:
        """Return what of a call differs from NumPy's, nothing if it is the same."""
        import cupy

        found = self.run(direction)
        for name, expected in self._expected[direction].items():
            if expected is None:
                continue
            e = expected.astype(np.float64)
            error = np.max(np.abs(cupy.asnumpy(found[name]).astype(np.float64) - e))
            if not error <= self._tolerance * np.max(np.abs(e)):  # also where it is NaN
                return f"{name} is off by {error:.2g} of {np.max(np.abs(e)):.2g}"
        return ""

    def times(self, direction: str, ways: list[str]) -> list[float]:
        """Return the milliseconds of a call by each way, measured in turns."""
        import cupy

        start, stop = cupy.cuda.Event(), cupy.cuda.Event()

        def one(way: str) -> float:
            with _asked(way):
                cupy.cuda.runtime.deviceSynchronize()
                start.record()
                self.run(direction)
                stop.record()
                stop.synchronize()
            return float(cupy.cuda.get_elapsed_time(start, stop))

        end = perf_counter() + _WARM_UP
        while [one(way) for way in ways] and perf_counter() < end:
            pass
        found, end = [[one(way) for way in ways]], perf_counter() + _SECONDS
        while len(found) < _MOST and perf_counter() < end:
            found.append([one(way) for way in ways])
        return [statistics.median(times) for times in zip(*found, strict=True)]


_calls = lru_cache(maxsize=2)(_Calls)


def _kernels(problem: Problem) -> dict[str, dict[str, str]]:
    """Return the kernels of each way that has one, by direction."""
    sizes = {"batch_size": problem.B, "num_units": problem.H, "num_steps": problem.T}
    cell: Any = problem.cell
    found: dict[str, dict[str, str]] = {direction: {} for direction in DIRECTIONS}
    for way in WAYS:
        with _asked(way):
            choices = recurrence_kernels(cell, **sizes, dtype=dtype_of(problem.dtype))
        for direction, choice in zip(DIRECTIONS, choices, strict=True):
            if way == "loop" or choice.kernel != "loop":
                found[direction][way] = choice.kernel
    return found


def _wrong(problem: Problem, direction: str, way: str) -> str:
    """Return what is wrong with the values of a way, nothing if they are right."""
    calls = _calls(problem)
    try:
        with _asked(way):
            return calls.wrong(direction)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _answer(question: Any) -> Any:
    (what, *given), count = question, len(Problem._fields)
    problem, rest = Problem(*given[:count]), given[count:]
    if what == "kernels":
        return _kernels(problem)
    return _wrong(problem, *rest) if what == "wrong" else _calls(problem).times(*rest)


def _begin() -> tuple[dict[str, Any], Callable[[Any], Any]]:
    try:
        import cupy

        number = cupy.cuda.runtime.getDevice()
        name = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
    except Exception as error:
        raise ValueError(f"no GPU that CuPy can use: {type(error).__name__}: {error}") from error
    # Not cuDNN; strict float32; NumPy's values and not Numba's.
    os.environ |= {"CUPYRNN_ENGINE": "cupy", "CUPY_TF32": "0", "CUPYRNN_NUMBA": "0"}
    path = timed.path_of(number)
    return {"card": name, "path": None if path is None else str(path)}, _answer


if __name__ == "__main__":
    serve(_begin)
