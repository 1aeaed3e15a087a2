"""What operations give, in exact integers and fractions: what the table is tested against."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

from .instructions import TYPES, Operation

Number = Any
"""A Python int for an integer type, a float or bits for a floating type, a bool."""


class Format(NamedTuple):
    """A binary floating format."""

    precision: int
    largest_exponent: int

    def round(self, x: Fraction, down: bool = False, zero: float = 0.0) -> float:
        """Round once; an exact zero has the sign of `zero`."""
        if x == 0:
            return zero
        size = abs(x)
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent -= size < Fraction(2) ** exponent
        lowest = 2 - self.largest_exponent - self.precision  # that of the smallest subnormal
        quantum = Fraction(2) ** max(exponent - self.precision + 1, lowest)
        count = math.floor(x / quantum) if down else round(x / quantum)  # ties to even
        result = count * quantum
        largest = (2 - Fraction(2) ** (1 - self.precision)) * Fraction(2) ** self.largest_exponent
        if abs(result) > largest:
            return float(largest) if down and x > 0 else math.inf if x > 0 else -math.inf
        return float(result) if result else 0.0 if x > 0 else -0.0


_FORMATS = {
    "f16": Format(11, 15), "bf16": Format(8, 127), "f32": Format(24, 127), "f64": Format(53, 1023)
}  # fmt: skip


def bits_to_float(bits: int, kind: str) -> float:
    """Return the number that the bits of a half or a bfloat16 stand for."""
    code, shift = ("<e", 0) if kind == "f16" else ("<f", 16)
    found: float = struct.unpack(code, (bits << shift).to_bytes(struct.calcsize(code), "little"))[0]
    return found


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
    return math.copysign(0.0, x) if abs(x) < 2.0**-126 else x


def _fused(kind: str, a: float, b: float, c: float, down: bool) -> float:
    """Return a*b + c, rounded once."""
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c if not (math.isfinite(a) and math.isfinite(b)) else c
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    same_zeros = (a == 0 or b == 0) and c == 0 and math.copysign(1.0, c) == sign
    zero = c if same_zeros else -0.0 if down else 0.0
    return _FORMATS[kind].round(Fraction(a) * Fraction(b) + Fraction(c), down, zero)


def _ratio(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return math.copysign(1, b) * math.copysign(math.inf, a) if abs(a) > 0 else math.nan


# Of float32 the result in float64 may be rounded again: that has more than twice the digits.
_IN_FLOAT64: dict[str, Callable[..., float]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": _ratio,
    "rcp": partial(_ratio, 1.0), "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan,
}  # fmt: skip


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
    if op == "setp":
        return lambda a, b: _compare(modifiers[0], a, b)
    if op == "cvt":
        if "sat" in modifiers:
            return _saturated
        if "rni" in modifiers:
            return _nearest_integer
        return lambda a: _converted(a, source, to)
    if op in _IN_FLOAT64:
        return lambda *operands: _converted(_IN_FLOAT64[op](*operands), "f64", to)
    exact: dict[str, Callable[..., Number]] = {
        "fma": lambda a, b, c: _fused(to, a, b, c, "rm" in modifiers),
        "neg": lambda a: -a, "abs": abs, "mov": lambda a: a,
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
