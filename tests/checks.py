"""Shared by the tests: tolerances, gradient checks, memory layouts, ops of an array module."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import cupyrnn
from cupyrnn.derivatives.tree import tree_map

# The largest allowed error, relative to the largest expected magnitude, for sums of up to TERMS
# terms. One table for all tests.
TERMS = 100
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-6, "float64": 1e-13}
# Half the distance between numbers from 1 to 2.
HALF_UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
# Algorithms of cuDNN whose gates are less exact than float32: off by 2.1e-5 on an H100, cuDNN 9.19.
INEXACT = {"float32 of cuDNN": 5e-5}

# Comparisons with TensorFlow's float16, which multiplies and sums in float16 and is less accurate.
TF_FLOAT16_TOLERANCE = 1e-2

# The real dtype of the values and tangents of a complex dtype.
REAL = {"complex64": "float32", "complex128": "float64"}

# The size of tangents in complex arrays: their square vanishes beside a value.
TANGENT = 2.0**-45

# Complex step has no subtraction, so the step can be so small that only rounding errors remain.
COMPLEX_STEP, COMPLEX_STEP_TOLERANCE = 1e-100, 1e-12
FINITE_DIFFERENCE_STEP, FINITE_DIFFERENCE_TOLERANCE = 1e-6, 1e-7

# For tangents: comparisons with central differences, which lose half of the digits, and of sums
# that are equal except for rounding.
DIFFERENCE_TOLERANCE, SYMMETRY_TOLERANCE = 2e-7, 1e-12


def tolerance(dtype_name: str, terms: int = 1) -> float:
    """
    Return the largest allowed error if the longest sum has this many terms.

    Roundings of a sum have either sign: their effect grows with the square root of the number of
    terms (Higham and Mary, 2019, doi:10.1137/18M1226312). BLAS kernels add in different orders,
    so two right results differ by as much. Halves are summed in float32.
    """
    table = TOLERANCES | INEXACT
    summed_in = "float32" if dtype_name in ("float16", "bfloat16") else dtype_name
    return table[dtype_name] + table[summed_in] * (max(1.0, terms / TERMS) ** 0.5 - 1)


def assert_close(
    actual: Any,
    expected: Any,
    dtype_name: str,
    what: str,
    *,
    at_least: float = 0.0,
    terms: int = 1,
) -> None:
    """
    Compare in float64: shapes equal, no NaN unless expected, errors within `tolerance`.

    `at_least` is the magnitude of the terms of a result, if they may cancel. In complex64 and
    complex128 values and tangents are compared separately, each with its own scale.
    """
    if dtype_name in REAL:
        a, e = np.asarray(actual), np.asarray(expected)
        dtype_name = REAL[dtype_name]
        tangents = a.imag / TANGENT, e.imag / TANGENT
        # The terms of a tangent, one for each argument, may cancel: the scale is 0.1 or more.
        least = max(at_least, 0.1)
        assert_close(*tangents, dtype_name, f"tangent of {what}", at_least=least, terms=terms)
        actual, expected = a.real, e.real
    allowed = tolerance(dtype_name, terms)
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, e = np.asarray(actual).astype(wide), np.asarray(expected).astype(wide)
    assert a.shape == e.shape, f"{what}: shape {a.shape}, expected {e.shape}"
    assert np.array_equal(np.isnan(a), np.isnan(e)), f"{what}: NaN in other places than expected"
    if a.size:
        error = np.nanmax(np.abs(a - e), initial=0)
        scale = np.nanmax(np.abs(e), initial=at_least)
        assert error <= allowed * scale, f"{what}: off by {error:.3g} of {scale:.3g}"


def with_tangents(rng: np.random.Generator, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return arrays by name; complex ones get random tangents instead of their own."""
    return {
        n: (a.real + 1j * TANGENT * rng.standard_normal(a.shape)).astype(a.dtype)
        if getattr(a, "dtype", np.dtype("f")).kind == "c"
        else a
        for n, a in arrays.items()
    }


def poisoned(empty: Callable[..., Any]) -> Callable[..., Any]:
    """Return np.empty filled with NaN, so that memory that an op forgets to write shows up."""

    def full_of_nan(*args: Any, **kwargs: Any) -> Any:
        a = empty(*args, **kwargs)
        if a.dtype.kind in "fcV":
            a.fill(np.nan)
        return a

    return full_of_nan


# Seconds after which a process counts as hanging: more than any needs on a slow, busy machine.
PATIENCE = 900


def run_python(*arguments: str, stdin: str | None = None, **variables: str) -> str:
    """Return what a process of Python prints; it must end by itself, without an error."""
    paths = map(str, (Path(cupyrnn.__file__).parents[1], Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | variables,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{done.returncode}: {done.stderr}"
    return done.stdout


def project(outputs: Sequence[Any], cotangents: Sequence[Any]) -> Any:
    """Return the scalar sum(outputs * cotangents)."""
    return sum((np.sum(o * g) for o, g in zip(outputs, cotangents, strict=True)), 0.0)


def assert_gradients(
    forward: Callable[..., Sequence[Any]],
    inputs: dict[str, Any],
    cotangents: Sequence[Any],
    gradients: dict[str, Any],
    rng: np.random.Generator,
    *,
    complex_step: bool = True,
) -> None:
    """
    Check gradients along random directions.

    `forward(**inputs)` returns the outputs that belong to `cotangents`. `gradients` has, for each
    name of `inputs`, the gradient of the projection on the cotangents.
    """
    assert gradients.keys() == inputs.keys()
    for name, value in inputs.items():
        direction = rng.standard_normal(value.shape)
        terms = gradients[name] * direction
        # A gradient of tanh contains 1 - h*h, which cancels near 1: the error may be as large.
        expected, scale = np.sum(terms), np.sum(np.abs(terms)) + 1e-2
        if complex_step:
            moved = {k: a.astype(np.complex128) for k, a in inputs.items()}
            moved[name] = moved[name] + 1j * COMPLEX_STEP * direction
            slope = np.imag(project(forward(**moved), cotangents)) / COMPLEX_STEP
            tolerance = COMPLEX_STEP_TOLERANCE
        else:
            step = FINITE_DIFFERENCE_STEP
            plus, minus = (
                project(forward(**{**inputs, name: value + s * direction}), cotangents)
                for s in (step, -step)
            )
            slope, tolerance = (plus - minus) / (2 * step), FINITE_DIFFERENCE_TOLERANCE
            scale = scale + abs(plus) + abs(minus)
        assert abs(slope - expected) <= tolerance * scale, (
            f"{name}: slope {slope:.17g}, gradient says {expected:.17g}, of {scale:.3g}"
        )


def layouts(a: np.ndarray[Any, Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield arrays equal to `a` in every memory layout NumPy users make."""
    yield "fortran", np.asfortranarray(a)
    wide = np.full(tuple(2 * n + 1 for n in a.shape), np.nan, a.dtype)
    every_other = wide[tuple(slice(1, 2 * n + 1, 2) for n in a.shape)]
    every_other[...] = a
    yield "strided", every_other
    backwards = (slice(None, None, -1),) * a.ndim
    yield "negative strides", a[backwards].copy()[backwards]
    moved = np.moveaxis(np.moveaxis(a, 0, -1).copy(), -1, 0)
    yield "transposed", moved
    raw = np.zeros(a.nbytes + 1, np.uint8)[1:].view(np.uint8)
    unaligned = np.frombuffer(raw.data, a.dtype, a.size).reshape(a.shape)
    unaligned[...] = a
    yield "unaligned", unaligned
    read_only = a.copy()
    read_only.flags.writeable = False
    yield "read-only", read_only


class Named(np.ndarray[Any, Any]):
    """A plain subclass with an attribute, such as a memory map."""

    name = "any"


class Units(np.ndarray[Any, Any]):
    """A subclass that refuses arithmetic."""

    __array_ufunc__ = None


# Arguments that are NumPy arrays also in calls with CuPy arrays.
ON_HOST = ("sequence_lengths", "resets", "host_reserved")


class Ops:
    """The public functions, over the arrays of one module: arguments and results are NumPy's."""

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return (T, B, I, H) with few steps if a CPU stands in for a GPU."""
        T, *others = shape
        return (min(T, 8) if self.xp.__name__ == "cupy_on_cpu" else T, *others)

    def __getattr__(self, name: str) -> Any:
        function = getattr(cupyrnn, name)
        return function if self.xp is np else lambda *a, **kw: self._call(function, a, kw)

    def to_device(self, a: Any) -> Any:
        """Return arrays, or tuples and lists of them, in the memory of the module."""
        return tree_map(lambda a: self.xp.asarray(a) if isinstance(a, np.ndarray) else a, a)

    def _from_device(self, a: Any) -> Any:
        assert a is None or type(a) is self.xp.ndarray
        return None if a is None else self.xp.asnumpy(a)

    def _call(self, function: Any, args: Any, kwargs: Any) -> Any:
        args = [self.to_device(a) for a in args]
        kwargs = {n: a if n in ON_HOST else self.to_device(a) for n, a in kwargs.items()}
        results = function(*args, **kwargs)
        back = {}
        for name, a in results._asdict().items():
            assert name not in ON_HOST or type(a) is np.ndarray, name
            back[name] = a if name in ON_HOST else tree_map(self._from_device, a)
        return type(results)(**back)
