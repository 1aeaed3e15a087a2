"""The arithmetic of the PTX interpreter that NumPy does not have, against exact numbers."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import needs
import numpy as np
import pytest

from without_a_gpu.ptx import arithmetic
from without_a_gpu.ptx.instructions import OPERATIONS, TYPES


def inserted(bits: int, a: int, b: int, start: int, length: int) -> int:
    """Return b, bit by bit, with the lowest ones of a from `start` on: PTX reads a byte of each."""
    for n in range(length & 255):
        if (start & 255) + n < bits:
            at = 1 << ((start & 255) + n)
            b = b | at if a >> n & 1 else b & ~at
    return b


def permuted(_: int, a: int, b: int, selector: int) -> int:
    """Return four bytes of both words, or their signs, as four bits each say."""
    chosen = (b << 32 | a).to_bytes(8, "little")
    found = [(chosen[n % 8], n) for n in (selector >> 4 * k & 15 for k in range(4))]
    return int.from_bytes((byte if n < 8 else 255 * (byte > 127) for byte, n in found), "little")


def quotient(_: int, a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# Of bits and operands, by the beginning of the name.
OF_INTEGERS: dict[str, Callable[..., int]] = {
    "mul.hi": lambda bits, a, b: a * b >> bits,
    "mul.wide": lambda bits, a, b: a * b,
    "mad.wide": lambda bits, a, b, c: a * b + c,
    "div": quotient,
    "rem": lambda bits, a, b: a - b * quotient(bits, a, b),
    "shl": lambda bits, a, n: a << min(n, bits),
    "shr": lambda bits, a, n: a >> min(n, bits),
    "bfi": inserted,
    "prmt": permuted,
    "shf": lambda bits, low, high, by: ((high << 32 | low) << by % 32) >> 32,
    "dp2a": lambda bits, a, b, c: c + a % 2**16 * (b % 2**8) + (a >> 16) * (b >> 8 & 255),
}
NAMES = [n for n, o in OPERATIONS.items() if n.startswith((*OF_INTEGERS,)) and o.result[0] != "f"]


def integers(kind: str, rng: np.random.Generator) -> list[int]:
    """Return awkward numbers first, then random ones."""
    info, bits = np.iinfo(TYPES[kind]), 8 * TYPES[kind].itemsize
    awkward = 0, 1, info.max, info.max - 1, info.min, info.min + 1, info.max // 2, bits, bits - 1
    return [*map(int, awkward), *rng.integers(info.min, info.max, 54, info.dtype, True).tolist()]


@pytest.mark.parametrize("name", NAMES)
def test_integers_are_exact(name: str, rng: np.random.Generator) -> None:
    operation = OPERATIONS[name]
    exact = next(f for start, f in OF_INTEGERS.items() if name.startswith(start))
    columns = [integers(kind, rng) for kind in operation.operands]
    rows = [*itertools.product(*(c[:9] for c in columns)), *zip(*columns, strict=True)]
    if name.startswith(("div", "rem")):
        rows = [row for row in rows if row[1]]
    given = [
        np.array(c, TYPES[kind])
        for c, kind in zip(zip(*rows, strict=True), operation.operands, strict=True)
    ]
    with np.errstate(over="ignore"):
        found = operation.function(*given)
    bits, result = 8 * given[0].itemsize, TYPES[operation.result]
    expected = [exact(bits, *row) % 2 ** (8 * result.itemsize) for row in rows]
    np.testing.assert_array_equal(found.view(f"u{result.itemsize}"), np.array(expected, np.uint64))


def test_division_by_zero_is_an_error() -> None:
    for name in ("div.u32", "rem.s64"):
        dtype = TYPES[OPERATIONS[name].result]
        with pytest.raises(ZeroDivisionError):
            OPERATIONS[name].function(np.ones(2, dtype), np.array([1, 0], dtype))


def rounded(x: Fraction, dtype: Any, down: bool) -> float:
    """Return a number other than 0, rounded once."""
    info, size = np.finfo(dtype), abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    quantum = Fraction(2) ** (max(exponent, int(info.minexp)) - info.nmant)
    found = (math.floor(x / quantum) if down else round(x / quantum)) * quantum  # ties to even
    if abs(found) > Fraction(float(info.max)):
        return float(info.max) if down and x > 0 else math.inf if x > 0 else -math.inf
    return float(found) or (0.0 if x > 0 else -0.0)


@pytest.mark.parametrize("name", ["fma.rn.f32", "fma.rm.ftz.f32", "fma.rn.f64"])
def test_fused_products_are_rounded_once(name: str, rng: np.random.Generator) -> None:
    dtype, down = TYPES[OPERATIONS[name].result], ".rm." in name
    info = np.finfo(dtype)
    sizes = [1.0, 0.5, 1 + info.eps, info.max, info.tiny, info.smallest_subnormal]
    bits = rng.integers(0, 2**64, (300, 3), dtype=np.uint64).astype(f"u{dtype.itemsize}")
    drawn = [*itertools.product(*[[s * float(v) for v in sizes for s in (1, -1)]] * 3)]
    drawn += [*bits.view(dtype).tolist(), *rng.standard_normal((300, 3)).astype(dtype).tolist()]
    # Where the sum cancels, but for what the product rounds off.
    drawn += [(a, b, -float(dtype.type(a * b))) for a, b, _ in drawn[-300:]]
    rows, exactly = [], []
    for a, b, c in drawn:
        if all(map(math.isfinite, (a, b, c))):
            exact = Fraction(a) * Fraction(b) + Fraction(c)
            if exact:
                rows.append((a, b, c))
                exactly.append(rounded(exact, dtype, down))
    given = [np.array(c, dtype) for c in zip(*rows, strict=True)]
    found = OPERATIONS[name].function(*given)
    np.testing.assert_array_equal(found, exactly)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(exactly))


AWKWARD = np.array([0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan])
PAIRS = [np.array(c) for c in zip(*itertools.product(AWKWARD, AWKWARD), strict=True)]


@pytest.mark.parametrize("how", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_with_nan(how: str) -> None:
    nan = np.isnan(PAIRS[0]) | np.isnan(PAIRS[1])
    expected = getattr(operator, how)(*PAIRS)
    ordered, unordered = (OPERATIONS[f"setp.{how}{u}.f64"].function(*PAIRS) for u in ("", "u"))
    np.testing.assert_array_equal(ordered, expected & ~nan)
    np.testing.assert_array_equal(unordered, expected | nan)
    for name, found in (("nan", nan), ("num", ~nan)):
        np.testing.assert_array_equal(OPERATIONS[f"setp.{name}.f64"].function(*PAIRS), found)


def test_the_smaller_and_the_larger_of_zeros_and_nan() -> None:
    def key(x: float) -> Any:
        return x, math.copysign(1.0, x)

    for name, choose in (("min.f64", min), ("max.f64", max)):
        numbers = [[x for x in pair if x == x] for pair in zip(*PAIRS, strict=True)]
        expected = [choose(n, key=key) if n else math.nan for n in numbers]
        found = OPERATIONS[name].function(*PAIRS)
        np.testing.assert_array_equal(found, expected)
        numbers_found = ~np.isnan(found)
        np.testing.assert_array_equal(
            np.signbit(found)[numbers_found], np.signbit(expected)[numbers_found]
        )


def test_what_is_clamped_flushed_and_given_a_sign() -> None:
    given = np.array([-1.0, -0.0, 0.25, 2.0, np.inf, np.nan], np.float32)
    assert arithmetic.saturate(given).tolist() == [0, 0, 0.25, 1, 1, 0]
    small = np.array([2.0**-127, -(2.0**-149), 2.0**-126, -1.0], np.float32)
    np.testing.assert_array_equal(arithmetic.flush(small), [0, 0, 2.0**-126, -1])
    assert np.signbit(arithmetic.flush(small)).tolist() == [False, True, False, True]
    signs, sizes = np.array([-1.0, 1.0]), np.array([2.0, -3.0])
    assert OPERATIONS["copysign.f64"].function(signs, sizes).tolist() == [-2, 3]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrowing_at_every_tie(kind: str) -> None:
    """All numbers of the narrow format, the middles between them, and what lies beside those."""
    name, info = {"float16": ("f16", 0x7C00), "bfloat16": ("bf16", 0x7F80)}[kind]
    bits = np.arange(info, dtype=np.uint16)
    numbers = bits.view(needs.dtype(kind)).astype(np.float64)
    np.testing.assert_array_equal(OPERATIONS[f"cvt.f32.{name}"].function(bits), numbers)
    middles = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    assert np.array_equal(middles, (numbers[1:] + numbers[:-1]) / 2)
    function = OPERATIONS[f"cvt.rn.{name}.f32"].function
    for sign in (1, -1):
        marked = bits | np.uint16(0x8000 if sign < 0 else 0)
        inputs = [numbers.astype(np.float32), middles]
        inputs += [np.nextafter(middles, np.float32(end)) for end in (0, np.inf)]
        expected = [marked, marked[:-1] + (bits[:-1] & 1), marked[:-1], marked[1:]]
        for a, e in zip(inputs, expected, strict=True):
            np.testing.assert_array_equal(function(np.float32(sign) * a), e)
    largest = np.array([numbers[-1], np.inf, np.nan], np.float32)
    assert function(largest).tolist() == [info - 1, info, 0x7FFF]


def test_what_a_gpu_gives_roughly(rng: np.random.Generator) -> None:
    a = np.concatenate([rng.uniform(-126, 127.9, 1000), rng.uniform(-1, 1, 1000)])
    a = a.astype(np.float32)
    exactly = np.exp2(a.astype(np.longdouble))
    unit = np.ldexp(np.longdouble(1), np.frexp(exactly)[1] - 24)
    assert np.abs((arithmetic.exp2(a) - exactly) / unit).max() < 0.50001
    wide = rng.uniform(1, 2, 2000) * 2.0 ** rng.integers(-100, 100, 2000)
    gross = arithmetic.reciprocal_of_upper_word(wide)
    assert not (gross.view(np.uint64) & np.uint64(0xFFFFFFFF)).any()
    assert np.abs(gross * wide - 1).max() < 2.0**-18  # 20 bits of fraction
    special = np.array([0.0, -0.0, np.inf, -np.inf, 5e-324, 1.5e308])
    with np.errstate(all="ignore"):
        result = arithmetic.reciprocal_of_upper_word(special)
    assert result.tolist() == [np.inf, -np.inf, 0, 0, np.inf, 0]
