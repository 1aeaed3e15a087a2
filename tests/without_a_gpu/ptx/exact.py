"""What operations give, in exact integers and fractions: what the table is tested against."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

from .instructions import TYPES, Operation

Number = Any
"""A Python int for an integer type, a float or bits for a floating type, a bool."""


class Format:
    """A binary floating format."""

    def __init__(self, code: str, bits: int, precision: int, largest_exponent: int) -> None:
        self.code, self.bits, self.precision = code, bits, precision
        self.largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** largest_exponent
        self.smallest_normal = Fraction(2) ** (1 - largest_exponent)
        self.lowest = 2 - largest_exponent - precision  # exponent of the smallest subnormal

    def round(self, x: Fraction, down: bool = False, zero: float = 0.0) -> float:
        """Round once; an exact zero has the sign of `zero`."""
        if x == 0:
            return zero
        size = abs(x)
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent -= size < Fraction(2) ** exponent
        quantum = Fraction(2) ** max(exponent - self.precision + 1, self.lowest)
        count = math.floor(x / quantum) if down else round(x / quantum)  # ties to even
        result = count * quantum
        if abs(result) > self.largest:
            return float(self.largest) if down and x > 0 else math.inf if x > 0 else -math.inf
        return float(result) if result else 0.0 if x > 0 else -0.0


HALF, BRAIN = Format("e", 16, 11, 15), Format("", 16, 8, 127)
SINGLE, DOUBLE = Format("f", 32, 24, 127), Format("d", 64, 53, 1023)
_FORMATS = {"f16": HALF, "bf16": BRAIN, "f32": SINGLE, "f64": DOUBLE}


def bits_to_float(bits: int, kind: str) -> float:
    """Return the number that the bits of a half or a bfloat16 stand for."""
    sign, precision = -1.0 if bits >> 15 else 1.0, _FORMATS[kind].precision
    fraction_bits = precision - 1
    exponent_bits = 15 - fraction_bits
    fraction, exponent = bits & (2**fraction_bits - 1), (bits & 0x7FFF) >> fraction_bits
    bias = 2 ** (exponent_bits - 1) - 1
    if exponent == 2**exponent_bits - 1:
        return math.nan if fraction else sign * math.inf
    lead = 2**fraction_bits if exponent else 0
    return sign * math.ldexp(fraction + lead, max(exponent, 1) - bias - fraction_bits)


def float_to_bits(x: float, kind: str) -> int:
    """Return the bits of a number that a half or a bfloat16 can hold."""
    if kind == "f16":
        return int.from_bytes(struct.pack("<e", x), "little") if x == x else 0x7FFF
    return int.from_bytes(struct.pack("<f", x), "little") >> 16 if x == x else 0x7FFF


def _integer(kind: str, value: int) -> int:
    """Wrap to the type."""
    bits = 8 * TYPES[kind].itemsize
    value %= 2**bits
    return value - 2**bits if kind[0] == "s" and value >= 2 ** (bits - 1) else value


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def flushed(x: float) -> float:
    """Return a float32, its subnormals zeros."""
    return math.copysign(0.0, x) if abs(x) < float(SINGLE.smallest_normal) else x


def _sum(kind: str, terms: tuple[float, ...], factors: tuple[float, float], down: bool) -> float:
    """Return factors[0]*factors[1] + terms[0], rounded once."""
    a, b, c = *factors, *terms
    if not all(map(math.isfinite, (a, b, c))):
        if not all(map(math.isfinite, (a, b))):
            return a * b + c if not (math.isinf(c) and math.isnan(a * b)) else math.nan
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    zeros = a * b == 0 and c == 0 and Fraction(a) * Fraction(b) == 0
    if zeros and math.copysign(1.0, c) == sign:
        zero = math.copysign(0.0, c)
    else:
        zero = -0.0 if down else 0.0
    return _FORMATS[kind].round(exact, down, zero)


def _product(kind: str, a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    return _FORMATS[kind].round(Fraction(a) * Fraction(b), zero=math.copysign(0.0, sign))


def _ratio(kind: str, a: float, b: float) -> float:
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    if math.isnan(a) or math.isnan(b) or (a == b == 0) or (math.isinf(a) and math.isinf(b)):
        return math.nan
    if math.isinf(a) or b == 0:
        return math.copysign(math.inf, sign)
    if math.isinf(b) or a == 0:
        return math.copysign(0.0, sign)
    return _FORMATS[kind].round(Fraction(a) / Fraction(b))


def _root(kind: str, a: float) -> float:
    if math.isnan(a) or a < 0:
        return math.nan
    if a == 0 or math.isinf(a):
        return a
    # To 2**-200 of it, and never on a tie unless exact.
    scaled = Fraction(a) * 4**1300
    root = math.isqrt(scaled.numerator // scaled.denominator)
    exact = Fraction(root, 2**1300)
    if exact * exact != Fraction(a):
        exact += Fraction(1, 2**1301)
    return _FORMATS[kind].round(exact)


def _least(a: float, b: float, sign: int) -> float:
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    if a == b == 0:
        return min(a, b, key=lambda x: sign * math.copysign(1.0, x))
    return min(a, b) if sign > 0 else max(a, b)


def _nearest_integer(a: float) -> float:
    return math.copysign(float(round(a)), a) if math.isfinite(a) else a


def _saturated(a: float) -> float:
    return min(a, 1.0) if a > 0 else 0.0


_COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def _compare(how: str, a: Number, b: Number) -> bool:
    nan = a != a or b != b
    if how in ("nan", "num"):
        return nan == (how == "nan")
    if how not in _COMPARE:
        return nan or _COMPARE[how[:-1]](a, b)
    return not nan and _COMPARE[how](a, b)


def reference(name: str, operation: Operation) -> Callable[..., Number] | None:
    """Return the exact function of an operation, None for those that are only approximate."""
    op, *modifiers = name.split(".")
    if operation.approximate:
        return None
    floating = operation.result in _FORMATS or operation.operands[0] in _FORMATS
    function = (_of_floats if floating else _of_integers)(op, modifiers, operation)
    if not operation.flush:
        return function

    def with_flush(*operands: Number) -> Number:
        inputs = (
            flushed(a) if k == "f32" else a
            for a, k in zip(operands, operation.operands, strict=True)
        )
        result = function(*inputs)
        return flushed(result) if operation.result == "f32" else result

    return with_flush


def _inserted(bits: int, a: Number, b: Number, start: Number, length: Number) -> Number:
    """Return b, bit by bit, with the lowest ones of a from `start` on: PTX reads a byte of each."""
    start, length = int(start) & 255, int(length) & 255
    for n in range(length):
        if start + n < bits:
            b = int(b) & ~(1 << (start + n)) | (int(a) >> n & 1) << (start + n)
    return b


def _permuted(a: Number, b: Number, selector: Number) -> Number:
    chosen = (int(a) % 2**32).to_bytes(4, "little") + (int(b) % 2**32).to_bytes(4, "little")
    result = bytearray()
    for n in range(4):
        which = int(selector) >> 4 * n & 15
        byte = chosen[which % 8]
        result.append(byte if which < 8 else 255 * (byte > 127))
    return int.from_bytes(result, "little")


def _funnel(low: Number, high: Number, by: Number) -> Number:
    return (int(high) << 32 | int(low)) >> (32 - int(by) % 32) if int(by) % 32 else high


def _dot(a: Number, b: Number, c: Number) -> Number:
    low, high = int(a) % 2**16, int(a) // 2**16
    return int(c) + low * (int(b) % 2**8) + high * (int(b) // 2**8 % 2**8)


def _of_integers(op: str, modifiers: list[str], operation: Operation) -> Callable[..., Number]:
    to, bits = operation.result, 8 * TYPES[operation.operands[0]].itemsize
    if op == "setp":
        return lambda a, b: _compare(modifiers[0], a, b)
    high = bits if "hi" in modifiers else 0
    exact: dict[str, Callable[..., Number]] = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: (a * b) >> high,
        "mad": lambda a, b, c: a * b + c, "neg": lambda a: -a, "abs": abs, "not": lambda a: ~a,
        "div": _quotient, "rem": lambda a, b: a - b * _quotient(a, b), "min": min, "max": max,
        "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
        "shl": lambda a, n: a << min(n, bits), "shr": lambda a, n: a >> min(n, bits),
        "mov": lambda a: a, "cvta": lambda a: a, "cvt": lambda a: a,
        "selp": lambda a, b, p: a if p else b, "bfi": partial(_inserted, bits),
        "prmt": _permuted, "shf": _funnel, "dp2a": _dot,
    }  # fmt: skip
    function = exact[op]
    if to == "pred":
        return (lambda a: not a) if op == "not" else function
    return lambda *operands: _integer(to, function(*operands))


def _of_floats(op: str, modifiers: list[str], operation: Operation) -> Callable[..., Number]:
    to, source = operation.result, operation.operands[0]
    down = "rm" in modifiers
    if op == "setp":
        return lambda a, b: _compare(modifiers[0], a, b)
    if op == "cvt":
        if "sat" in modifiers:
            return _saturated
        if "rni" in modifiers:
            return _nearest_integer
        return lambda a: _converted(a, source, to)
    exact: dict[str, Callable[..., Number]] = {
        "add": lambda a, b: _sum(to, (b,), (a, 1.0), down),
        "sub": lambda a, b: _sum(to, (-b,), (a, 1.0), down),
        "mul": lambda a, b: _product(to, a, b), "div": lambda a, b: _ratio(to, a, b),
        "fma": lambda a, b, c: _sum(to, (c,), (a, b), down), "rcp": lambda a: _ratio(to, 1.0, a),
        "sqrt": lambda a: _root(to, a), "neg": lambda a: -a, "abs": abs, "mov": lambda a: a,
        "min": lambda a, b: _least(a, b, 1), "max": lambda a, b: _least(a, b, -1),
        "copysign": lambda a, b: math.copysign(b, a), "selp": lambda a, b, p: a if p else b,
    }  # fmt: skip
    return exact[op]


def _converted(a: Number, source: str, to: str) -> Number:
    if source in ("f16", "bf16"):
        return bits_to_float(a, source)
    if math.isfinite(a):
        zero = math.copysign(0.0, a)
        a = _FORMATS[to].round(Fraction(a), zero=zero)
    return float_to_bits(a, to) if to in ("f16", "bf16") else a
