"""The arithmetic of the PTX interpreter against exact integers and fractions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from without_a_gpu.ptx import arithmetic, exact
from without_a_gpu.ptx.arithmetic import Approximation
from without_a_gpu.ptx.instructions import OPERATIONS, TYPES

EXACT = {n: f for n, o in OPERATIONS.items() if (f := exact.reference(n, o)) is not None}


def samples(kind: str, rng: np.random.Generator, n: int) -> list[Any]:
    """Return awkward values first, then random ones of all sizes."""
    dtype = TYPES[kind]
    if kind == "pred":
        return [False, True] * (n // 2)
    if kind in ("f32", "f64"):
        info = np.finfo(dtype)
        tiny, least, eps = (float(v) for v in (info.tiny, info.smallest_subnormal, info.eps))
        awkward = [0.0, 1.0, float(info.max), math.inf, tiny, least, tiny - least, 1 + eps, 0.5]
        awkward = [s * v for v in awkward for s in (1, -1)] + [math.nan, 2.5, 0.75]
        bits = rng.integers(0, 2**64, n, dtype=np.uint64).astype(f"u{dtype.itemsize}")
        near_one = rng.standard_normal(n).astype(dtype)
        return awkward + [
            float(v) for v in np.where(rng.random(n) < 0.5, bits.view(dtype), near_one)
        ]
    info = np.iinfo(dtype)
    values = {0, 1, 2, 3, int(info.max), int(info.max) - 1, int(info.min), int(info.min) + 1}
    values |= {8 * dtype.itemsize + d for d in (-1, 0, 1)}
    values |= {info.max & -1 >> 1, int(info.max) // 2, int(info.max) // 2 + 1}
    if info.min < 0:
        values |= {-1, -2, -3}
    return sorted(values) + [int(v) for v in rng.integers(info.min, info.max, n, dtype, True)]


def operands(name: str, rng: np.random.Generator) -> list[tuple[Any, ...]]:
    """Return all combinations of the awkward values of two operands, and random ones."""
    kinds = OPERATIONS[name].operands
    if kinds[0] in ("f16", "bf16"):
        return [(bits,) for bits in range(0, 2**16, 7)] + [(0x7C01,), (0x7F81,)]
    columns = [samples(kind, rng, 64) for kind in kinds]
    count = 24 if len(kinds) == 2 else 9
    rows = list(itertools.product(*(c[:count] for c in columns))) if len(kinds) > 1 else []
    longest = max(map(len, columns))
    rows += list(zip(*(np.resize(np.array(c, object), longest) for c in columns), strict=True))
    if name.startswith("fma"):  # where the sum cancels, but for what the product rounds off
        rows += [(a, b, -(a * b)) for a, b, _ in rows if math.isfinite(a * b)]
    if name.startswith(("div", "rem")) and kinds[0][0] != "f":
        rows = [row for row in rows if row[1] != 0]
    return rows


def same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        if math.isnan(expected):
            return math.isnan(actual)
        return bool(actual == expected and math.copysign(1, actual) == math.copysign(1, expected))
    return bool(actual == expected)


@pytest.mark.parametrize("name", EXACT)
def test_operations_are_exact(name: str, rng: np.random.Generator) -> None:
    operation = OPERATIONS[name]
    rows = operands(name, rng)
    with np.errstate(all="ignore"):
        columns = [
            np.array(c, TYPES[kind])
            for c, kind in zip(zip(*rows, strict=True), operation.operands, strict=True)
        ]
        given = [
            arithmetic.flush(c) if operation.flush and kind == "f32" else c
            for c, kind in zip(columns, operation.operands, strict=True)
        ]
        result = operation.function(*given)
        if operation.flush and operation.result == "f32":
            result = arithmetic.flush(result)
    assert result.dtype.itemsize == TYPES[operation.result].itemsize
    results = result.view(TYPES[operation.result]).tolist()
    for lane, row in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        expected = EXACT[name](*row)
        assert same(results[lane], expected), f"{name} {row}: {results[lane]}, not {expected}"


def test_nothing_in_the_table_is_left_out() -> None:
    assert OPERATIONS.keys() - EXACT.keys() == {
        "ex2.approx.ftz.f32", "rcp.approx.ftz.f32", "rcp.approx.ftz.f64"
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_narrowing_at_every_tie(kind: str) -> None:
    """All numbers of the narrow format, the middles between them, and what lies beside those."""
    info = {"f16": 0x7C00, "bf16": 0x7F80}[kind]
    numbers = np.array([exact.bits_to_float(bits, kind) for bits in range(info)])
    middles = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    assert np.array_equal(middles, (numbers[1:] + numbers[:-1]) / 2)
    function = OPERATIONS[f"cvt.rn.{kind}.f32"].function
    bits = np.arange(info, dtype=np.uint16)
    for sign in (1, -1):
        marked = bits | np.uint16(0x8000 if sign < 0 else 0)
        inputs = [numbers.astype(np.float32), middles]
        inputs += [np.nextafter(middles, np.float32(end)) for end in (0, np.inf)]
        expected = [marked, marked[:-1] + (bits[:-1] & 1), marked[:-1], marked[1:]]
        for a, e in zip(inputs, expected, strict=True):
            np.testing.assert_array_equal(function(np.float32(sign) * a), e)
    largest = np.float32(exact.bits_to_float(info - 1, kind))
    assert function(np.array([largest, np.inf, np.nan], np.float32)).tolist() == [
        info - 1, info, 0x7FFF
    ]  # fmt: skip


def places(result: np.ndarray, exactly: np.ndarray) -> tuple[float, float]:
    """Return the least and the largest error, in units of the last place of the exact value."""
    unit = np.ldexp(np.longdouble(1), np.frexp(exactly)[1] - 24)
    errors = (result - exactly) / unit
    return float(errors.min()), float(errors.max())


def test_ex2_is_within_its_bound(rng: np.random.Generator) -> None:
    """Half a unit in the last place where it rounds once, two more where it is moved."""
    a = np.concatenate([rng.uniform(-126, 127.9, 1000), rng.uniform(-1, 1, 1000), [0, 1, -1]])
    a = a.astype(np.float32)
    exactly = np.exp2(a.astype(np.longdouble))
    below, (low, high), above = (
        places(arithmetic.exp2_approx(a, how), exactly) for how in sorted(Approximation)
    )
    assert -0.50001 < low < -0.4
    assert 0.4 < high < 0.50001
    assert -2.50001 < below[0] < -1.9
    assert 1.9 < above[1] < 2.50001
    integers = np.arange(-126, 128, dtype=np.float32)
    for how in Approximation:
        assert arithmetic.exp2_approx(integers, how).tolist() == [2.0**v for v in range(-126, 128)]
    special = np.array([-np.inf, np.inf, -200, 200], np.float32)
    with np.errstate(over="ignore", under="ignore"):
        found = arithmetic.exp2_approx(special, Approximation.BELOW)
    assert found.tolist() == [0, np.inf, 0, np.inf]


def test_approximate_reciprocals_are_within_their_bounds(rng: np.random.Generator) -> None:
    a = (rng.uniform(1, 2, 2000) * 2.0 ** rng.integers(-100, 100, 2000)).astype(np.float32)
    wide = a.astype(np.float64) * (1 + 2.0**-30)
    within = (-1.51, -0.4), (-0.51, 0.51), (0.4, 1.51)
    for how, bounds in zip(sorted(Approximation), within, strict=True):
        found = places(arithmetic.reciprocal_approx32(a, how), 1 / a.astype(np.longdouble))
        assert bounds[0] < found[0] < found[1] < bounds[1]
        gross = arithmetic.reciprocal_approx64(wide, how)
        assert not (gross.view(np.uint64) & np.uint64(0xFFFFFFFF)).any()
        # 20 bits of fraction: cut off below, and moved by one.
        assert np.abs(gross * wide - 1).max() < 2.0**-18
    special = np.array([0.0, -0.0, np.inf, -np.inf, 5e-324, 1.5e308])
    with np.errstate(all="ignore"):
        result = arithmetic.reciprocal_approx64(special, Approximation.NEAREST)
    assert result.tolist() == [np.inf, -np.inf, 0, 0, np.inf, 0]


def test_division_by_zero_is_an_error() -> None:
    for name in ("div.u32", "rem.s64"):
        dtype = TYPES[OPERATIONS[name].result]
        with pytest.raises(ZeroDivisionError):
            OPERATIONS[name].function(np.ones(2, dtype), np.array([1, 0], dtype))
