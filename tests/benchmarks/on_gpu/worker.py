"""Compare an op and its gradient by a chosen kernel on the device with NumPy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cupyrnn._ops import Schema
from cupyrnn.device import recurrence_kernels
from cupyrnn.device.cli import dtype_of
from cupyrnn.driver.trial import TOLERANCES
from cupyrnn.kernels.timed import ENGINES, MODES

from .cases import Case

FORWARD, BACKWARD = DIRECTIONS = ("forward", "backward")


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
        NumPy's results, by direction and by name.
    there
        The op's arguments, on the device.
    """

    def __init__(
        self,
        dtype: str,
        record: Schema,
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
        self.there = there(arguments) | of_device
        self._results, self._cotangents = there(results), there(cotangents)
        # On a device the rows of reserve_space are in the order of time, with padding.
        if of_device or "reserve_space" in results:
            self._results = self.run(FORWARD)

    def run(self, direction: str) -> dict[str, Any]:
        """Return the results of a call on the device, by name."""
        if direction == BACKWARD:
            return self._record.grads(self.there, self._results, self._cotangents)
        found: dict[str, Any] = self._record.forward(**self.there)._asdict()
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


def kernels_of(case: Case) -> dict[tuple[str, str], list[str]]:
    """Return the directions that there are of each mode and its kernel."""
    sizes = {"batch_size": case.B, "num_units": case.H, "num_steps": case.T}
    cell: Any = case.cell.replace("block_lstm", "lstm")
    found: dict[tuple[str, str], list[str]] = {}
    for mode in MODES:
        with asked(mode):
            choices = recurrence_kernels(cell, **sizes, dtype=dtype_of(case.dtype))
        for direction, choice in zip(DIRECTIONS, choices, strict=True):
            if mode == "loop" or choice.kernel != "loop":
                found.setdefault((mode, choice.kernel), []).append(direction)
    return found


def be_strict() -> None:
    """Make this package's kernels compute in strict float32, so that they can equal NumPy's."""
    os.environ |= {"CUPYRNN_ENGINE": "cupy", "CUPY_TF32": "0", "CUPYRNN_NUMBA": "0"}
