"""
What else holds for a right call: interrupted, by two threads, with tangents and with complex data.

An interrupt comes at a random moment of the call, as Ctrl-C does; the same call again is right.
"""

from __future__ import annotations

import gc
import importlib
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from checks import FINITE_DIFFERENCE_STEP as DIFFERENCE_STEP
from checks import FINITE_DIFFERENCE_TOLERANCE as DIFFERENCE_TOLERANCE
from checks import TANGENT, TOLERANCES

from . import Call, Failure, arrays_in, leaves, perform, same_bits

# What takes no complex arrays: a function's tangents, and integers with their scales.
NO_TANGENTS = ("jvp", "dequantize", "params_from_quantized_onnx")

# What has no tangent: settings, and what says of which call it is.
_WITHOUT = ("host_reserved", "reserve_space")


# Two threads.


class _Drawn(threading.local):
    most = threads = 1
    may_have = staticmethod(lambda: _drawn.threads)  # what the package says of a call's


_drawn = _Drawn()


def draw_threads(rng: np.random.Generator) -> None:
    """Have the next calls of this thread computed by one thread or, where work is shared, two."""
    _drawn.threads = int(rng.integers(1, _Drawn.most + 1))


def share_all_work(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have compiled loops ask what was drawn for their threads, however little they compute."""
    plan, single, threads = (
        importlib.import_module(f"cupyrnn.compiled.{n}") for n in ("plan", "single", "threads")
    )
    for module, name in ((plan, "_LEAST_WORK"), (plan, "_SMALL_MATRIX"), (single, "_LEAST_WORK")):
        if not hasattr(module, name):
            raise Failure(f"say in tests/fuzz how {module.__name__} is to share little work")
        patch(module, name, 0)
    patch(threads, "count", lambda: _drawn.threads)
    patch(_Drawn, "may_have", staticmethod(threads.most))
    patch(_Drawn, "most", 2)


# Interrupts.


def can_interrupt() -> bool:
    """Return whether a call of this thread can be interrupted at a chosen moment."""
    main = threading.current_thread() is threading.main_thread()
    return main and sys.platform.startswith("linux")


class _Alarm:
    """Raises KeyboardInterrupt once, as Ctrl-C would, in what runs then."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._armed = max(seconds, 1e-6), True

    def __call__(self, *_: object) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    def interrupts(self, function: Callable[[], object]) -> bool:
        """Call a function, and return whether it was interrupted."""
        before, collects = signal.signal(signal.SIGALRM, self), gc.isenabled()
        gc.disable()  # What others have it call would be interrupted, and lose the interrupt.
        try:
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
            function()
            self._armed = False
        except KeyboardInterrupt:
            return True
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if collects:
                gc.enable()
        return False


def check_interrupted(rng: np.random.Generator, call: Call) -> None:
    """Interrupt a call at random moments: its arguments are as before, and the next is right."""

    def once() -> Any:
        return call.function(**call.arguments)

    inputs, state = arrays_in(call.arguments), np.geterr()
    before = [np.asarray(a).tobytes() for a in inputs]
    begin = time.perf_counter()
    expected = once()
    took = time.perf_counter() - begin
    for _ in range(4):
        try:
            _Alarm(rng.random() * took).interrupts(once)
        except Exception as error:
            raise Failure(f"interrupted, it raised {type(error).__name__}") from error
        np.seterr(**state)  # NumPy's own context manager can be interrupted too
        if any(np.asarray(a).tobytes() != old for a, old in zip(inputs, before, strict=True)):
            raise Failure("an argument was written to before an interrupt")
        if _drawn.may_have() != _drawn.threads:
            raise Failure("calls after an interrupt have one thread")
        again = perform(call)
        if isinstance(again, Exception):
            raise Failure("after an interrupt a right call is refused") from again
        for (n, a), (_, e) in zip(leaves(again), leaves(expected), strict=True):
            if isinstance(a, np.ndarray) and not same_bits(a, e):
                raise Failure(f"{n} is another after an interrupt")


# Complex numbers.


def _changed(value: Any, dtype: str, change: Callable[[Any], Any], name: str = "") -> Any:
    """Return arguments with a change to each of their arrays of a dtype."""
    if name in _WITHOUT:
        return None if name == "host_reserved" else value
    if isinstance(value, dict):
        return {n: _changed(a, dtype, change, n) for n, a in value.items()}
    if isinstance(value, (list, tuple)):
        made = [_changed(a, dtype, change) for a in value]
        return value._make(made) if hasattr(value, "_make") else type(value)(made)
    is_one = isinstance(value, np.ndarray) and value.dtype.name == dtype
    return np.asarray(change(value)) if is_one else value


def _complex(arguments: Any, dtype: str, imaginary: Callable[[Any], Any]) -> Any:
    """Return arguments with an imaginary part for each of their arrays of a dtype."""

    def change(a: Any) -> Any:
        wide = a.astype(f"c{2 * a.itemsize}")
        wide.imag = imaginary(a)
        return wide

    return _changed(arguments, dtype, change)


def check_tangents(rng: np.random.Generator, call: Call) -> None:
    """
    Values beside tangents are those without, and tangents those of the difference of two calls.

    Gradients, which are told of what was clipped by values, have no difference: their tangents are
    twice as large where they are given twice as large.
    """
    seed = int(rng.integers(2**32))

    def of(size: complex) -> Any:
        draw = np.random.default_rng(seed).standard_normal
        with np.errstate(all="ignore"):
            if size.imag:
                given = _complex(call.arguments, call.dtype, lambda a: size.imag * draw(a.shape))
            else:
                given = _changed(
                    call.arguments,
                    call.dtype,
                    lambda a: a + (size.real * draw(a.shape)).astype(a.dtype),
                )
        found = perform(call._replace(arguments=given))
        if isinstance(found, Exception):
            raise Failure("with tangents a right call is refused") from found
        return list(leaves(found))

    values, tangents, step = of(0), of(TANGENT * 1j), DIFFERENCE_STEP
    more = [of(2j * TANGENT)]
    if call.dtype == "float64" and not re.search("grad|back", call.name.lower()):
        more = [of(step), of(-step)]
    with np.errstate(all="ignore"):
        for (n, e), (_, a), *others in zip(values, tangents, *more, strict=True):
            if n in _WITHOUT or not isinstance(a, np.ndarray) or not a.size or a.dtype.kind in "iu":
                continue
            _close(n, a.real, e, 10 * TOLERANCES[call.dtype])
            found = a.imag / TANGENT
            if len(others) == 1:
                slope = others[0][1].imag / (2 * TANGENT)
                _close(f"the tangent of {n}", found, slope, 10 * TOLERANCES[call.dtype])
                continue
            right, left = (others[0][1] - e) / step, (e - others[1][1]) / step
            bends = np.abs(right - left) > 1e-3 * max(1.0, np.abs(found).max())
            slope = np.where(bends, found, (right + left) / 2)
            _close(f"the tangent of {n}", found, slope, 10 * DIFFERENCE_TOLERANCE)


def _close(what: str, a: Any, e: Any, tolerance: float) -> None:
    error, scale = np.abs(a - e).max(), max(1.0, np.abs(e).max())
    if not error <= tolerance * scale:
        raise Failure(f"{what} is off by {error:.3g} of {scale:.3g} with tangents")


def check_complex_data(rng: np.random.Generator, call: Call) -> None:
    """Imaginary parts that are no tangents are refused."""
    found = 0

    def data(a: Any) -> Any:
        nonlocal found
        found += a.size
        largest = max(1.0, float(np.abs(a).max(initial=0)))
        return largest * (0.1 + rng.random(a.shape))

    with np.errstate(all="ignore"):
        given = _complex(call.arguments, call.dtype, data)
    result = perform(call._replace(arguments=given))
    if found and not isinstance(result, Exception):
        raise Failure("complex data are taken for tangents")


def check_circumstances(rng: np.random.Generator, call: Call) -> None:
    """Check what is drawn of a right call that was checked by itself."""
    if can_interrupt() and rng.random() < 0.3:
        check_interrupted(rng, call)
    takes_complex = call.dtype in ("float32", "float64") and call.name not in NO_TANGENTS
    if call.tame and takes_complex and rng.random() < 0.4:
        (check_tangents, check_complex_data)[rng.integers(2)](rng, call)
