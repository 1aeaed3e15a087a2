"""The table of instructions, and their effects on the lanes of a frame."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import arithmetic as ar
from .arithmetic import Lanes
from .parser import Entry, Instruction, PtxError

if TYPE_CHECKING:
    from .machine import Frame

Step = Callable[["Frame"], None]
Read = Callable[["Frame"], Lanes]

TYPES = {
    **{f"{kind}{8 * size}": np.dtype(f"{code}{size}")
       for kind, code in (("u", "u"), ("b", "u"), ("s", "i")) for size in (1, 2, 4, 8)},
    "f16": np.dtype("u2"), "bf16": np.dtype("u2"),  # their bits
    "f32": np.dtype("f4"), "f64": np.dtype("f8"), "pred": np.dtype("?"),
}  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """An instruction that computes: types of its result and its operands, and the function."""

    result: str
    operands: tuple[str, ...]
    function: Callable[..., Lanes]
    flush: bool = False
    """Subnormal float32 among operands and result count as zeros."""


def _wide(kind: str) -> str:
    return f"{kind[0]}{2 * int(kind[1:])}"


def _table() -> dict[str, Operation]:
    table: dict[str, Operation] = {}

    def add(name: str, result: str, operands: str, function: Any, **how: bool) -> None:
        table[name] = Operation(result, tuple(operands.split()), function, **how)

    for size in ("16", "32", "64"):
        for t in (f"u{size}", f"s{size}"):
            add(f"add.{t}", t, f"{t} {t}", np.add)
            add(f"sub.{t}", t, f"{t} {t}", np.subtract)
            add(f"mul.lo.{t}", t, f"{t} {t}", np.multiply)
            add(f"mad.lo.{t}", t, f"{t} {t} {t}", lambda a, b, c: a * b + c)
            add(f"div.{t}", t, f"{t} {t}", ar.divide)
            add(f"rem.{t}", t, f"{t} {t}", ar.remainder)
            add(f"min.{t}", t, f"{t} {t}", np.minimum)
            add(f"max.{t}", t, f"{t} {t}", np.maximum)
            add(f"shr.{t}", t, f"{t} u32", ar.shift_right)
            if size != "64":
                wide = TYPES[_wide(t)]
                add(f"mul.wide.{t}", _wide(t), f"{t} {t}", _widened(np.multiply, wide))
                add(f"mad.wide.{t}", _wide(t), f"{t} {t} {_wide(t)}", _widened(_mad, wide))
                add(f"mul.hi.{t}", t, f"{t} {t}", _upper_half(wide, TYPES[t]))
            for name, compare in _COMPARISONS.items():
                add(f"setp.{name}.{t}", "pred", f"{t} {t}", compare)
        add(f"neg.s{size}", f"s{size}", f"s{size}", np.negative)
        add(f"abs.s{size}", f"s{size}", f"s{size}", np.abs)
        b = f"b{size}"
        for name, function in _BITWISE.items():
            add(f"{name}.{b}", b, f"{b} {b}", function)
        add(f"not.{b}", b, b, np.invert)
        add(f"shl.{b}", b, f"{b} u32", ar.shift_left)
        for name in ("eq", "ne"):
            add(f"setp.{name}.{b}", "pred", f"{b} {b}", _COMPARISONS[name])
        for t in (f"u{size}", f"s{size}", b):
            add(f"selp.{t}", t, f"{t} {t} pred", lambda a, b, p: np.where(p, a, b))
            add(f"mov.{t}", t, t, _same)
    add("mul.hi.u64", "u64", "u64 u64", ar.high_product)
    for t in ("b32", "b64"):
        add(f"bfi.{t}", t, f"{t} {t} u32 u32", _inserted)
    for t in ("u32", "s32", "u64", "s64"):
        add(f"bfe.{t}", t, f"{t} u32 u32", _extracted)
    add("prmt.b32", "b32", "b32 b32 b32", _permuted)
    add("shf.l.wrap.b32", "b32", "b32 b32 u32", _funnel)
    add("dp2a.lo.u32.u32", "u32", "u32 u32 u32", _dot)
    for name, function in _BITWISE.items():
        add(f"{name}.pred", "pred", "pred pred", function)
    add("not.pred", "pred", "pred", np.invert)
    add("mov.pred", "pred", "pred", _same)
    add("cvta.to.global.u64", "u64", "u64", _same)
    add("cvta.to.shared.u64", "u64", "u64", _same)

    for t, ftz in (("f32", ""), ("f32", ".ftz"), ("f64", "")):
        f, how = f"{ftz}.{t}", {"flush": bool(ftz)}
        for rounding in ("", ".rn"):
            add(f"add{rounding}{f}", t, f"{t} {t}", np.add, **how)
            add(f"sub{rounding}{f}", t, f"{t} {t}", np.subtract, **how)
            add(f"mul{rounding}{f}", t, f"{t} {t}", np.multiply, **how)
        add(f"fma.rn{f}", t, f"{t} {t} {t}", ar.fma, **how)
        add(f"div.rn{f}", t, f"{t} {t}", np.divide, **how)
        add(f"rcp.rn{f}", t, t, np.reciprocal, **how)
        add(f"sqrt.rn{f}", t, t, np.sqrt, **how)
        add(f"neg{f}", t, t, np.negative, **how)
        add(f"abs{f}", t, t, np.abs, **how)
        add(f"min{f}", t, f"{t} {t}", ar.least, **how)
        add(f"max{f}", t, f"{t} {t}", ar.greatest, **how)
        for name, compare in _COMPARISONS.items():
            add(f"setp.{name}{f}", "pred", f"{t} {t}", _ordered(name, compare), **how)
            add(f"setp.{name}u{f}", "pred", f"{t} {t}", _unordered(compare), **how)
        add(f"setp.nan{f}", "pred", f"{t} {t}", lambda a, b: np.isnan(a) | np.isnan(b), **how)
        add(f"setp.num{f}", "pred", f"{t} {t}", lambda a, b: ~(np.isnan(a) | np.isnan(b)), **how)
        if not ftz:
            add(f"selp.{t}", t, f"{t} {t} pred", lambda a, b, p: np.where(p, a, b))
            add(f"mov.{t}", t, t, _same)
            # The sign of the first operand, the rest of the second.
            add(f"copysign.{t}", t, f"{t} {t}", lambda a, b: np.copysign(b, a))
    add("fma.rm.ftz.f32", "f32", "f32 f32 f32", functools.partial(ar.fma, down=True), flush=True)
    add("ex2.approx.ftz.f32", "f32", "f32", ar.exp2, flush=True)
    add("rcp.approx.ftz.f32", "f32", "f32", np.reciprocal, flush=True)
    add("rcp.approx.ftz.f64", "f64", "f64", ar.reciprocal_of_upper_word)

    integers = [f"{kind}{size}" for kind in "us" for size in (8, 16, 32, 64)]
    for to in integers:
        for source in integers:
            add(f"cvt.{to}.{source}", to, source, _cast(TYPES[to]))
    for source in integers:
        add(f"cvt.rn.f32.{source}", "f32", source, _cast(TYPES["f32"]))
        add(f"cvt.rn.f64.{source}", "f64", source, _cast(TYPES["f64"]))
    for ftz in ("", ".ftz"):
        how = {"flush": bool(ftz)}
        add(f"cvt{ftz}.f64.f32", "f64", "f32", _cast(TYPES["f64"]), **how)
        add(f"cvt.rn{ftz}.f32.f64", "f32", "f64", _cast(TYPES["f32"]), **how)
        add(f"cvt{ftz}.sat.f32.f32", "f32", "f32", ar.saturate, **how)
        add(f"cvt.rni{ftz}.f32.f32", "f32", "f32", np.rint, **how)
        add(f"cvt{ftz}.f32.f16", "f32", "f16", ar.from_half)
        add(f"cvt.rn{ftz}.f16.f32", "f16", "f32", ar.to_half, **how)
    add("cvt.f32.bf16", "f32", "bf16", ar.from_bfloat16)
    add("cvt.rn.bf16.f32", "bf16", "f32", ar.to_bfloat16)
    return table


def _same(a: Lanes) -> Lanes:
    return a


def _mad(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    return a * b + c


def _inserted(a: Lanes, b: Lanes, start: Lanes, length: Lanes) -> Lanes:
    """Return b with `length` bits from `start` on replaced by the lowest bits of a."""
    one, bits, byte = np.uint64(1), np.uint64(8 * b.itemsize), np.uint64(255)
    begin = np.minimum(start.astype(np.uint64) & byte, bits)
    count = np.minimum(length.astype(np.uint64) & byte, bits - begin)
    # A shift by all 64 bits is undefined in NumPy, as in C.
    ones = np.where(count == 64, ~np.uint64(0), (one << (count & np.uint64(63))) - one)
    begin = np.where(count == 0, np.uint64(0), begin)
    mask, inserted = ones << begin, a.astype(np.uint64) << begin
    return ((b.astype(np.uint64) & ~mask) | (inserted & mask)).astype(b.dtype)


def _extracted(a: Lanes, start: Lanes, length: Lanes) -> Lanes:
    """Return `length` bits of a from `start` on, continued by their sign where a has one."""
    bits, byte = 8 * a.dtype.itemsize, np.int64(255)
    begin, count = start.astype(np.int64) & byte, length.astype(np.int64) & byte
    whole = a.view(f"u{a.dtype.itemsize}").astype(np.uint64)
    end = np.minimum(begin + count, bits)  # of the bits that a has
    place, one = np.arange(bits), np.uint64(1)
    there = (begin[..., None] + place < end[..., None]) & (place < count[..., None])
    taken = np.minimum(begin[..., None] + place, bits - 1).astype(np.uint64)
    of_a = whole[..., None] >> taken & one
    last = np.clip(end - 1, 0, bits - 1).astype(np.uint64)
    sign = np.where((a.dtype.kind == "i") & (count > 0), whole >> last & one, np.uint64(0))
    result = np.where(there, of_a, sign[..., None]) << place.astype(np.uint64)
    return np.bitwise_or.reduce(result, -1).astype(f"u{a.dtype.itemsize}").view(a.dtype)


def _permuted(a: Lanes, b: Lanes, selector: Lanes) -> Lanes:
    """Return four bytes of a and b, lowest first; four bits select each byte, or only its sign."""
    eight, ones = np.uint64(8), np.uint64(0xFF)
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    chosen, result = selector.astype(np.uint64), np.uint64(0)
    for n in range(4):
        which = chosen >> np.uint64(4 * n)
        byte = both >> eight * (which & np.uint64(7)) & ones
        sign = np.where(byte >> np.uint64(7), ones, np.uint64(0))
        byte = np.where(which & np.uint64(8), sign, byte)
        result = result | byte << np.uint64(8 * n)
    return result.astype(np.uint32)


def _funnel(low: Lanes, high: Lanes, by: Lanes) -> Lanes:
    """Return the upper half of both words, shifted to the left."""
    both = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
    return (both << (by.astype(np.uint64) & np.uint64(31)) >> np.uint64(32)).astype(np.uint32)


def _dot(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Return c and the products of both halves of a with the two lowest bytes of b."""
    low = (a & np.uint32(0xFFFF)) * (b & np.uint32(0xFF))
    return c + low + (a >> np.uint32(16)) * (b >> np.uint32(8) & np.uint32(0xFF))


def _cast(dtype: np.dtype[Any]) -> Callable[[Lanes], Lanes]:
    return lambda a: a.astype(dtype)


def _widened(function: Callable[..., Lanes], wide: np.dtype[Any]) -> Callable[..., Lanes]:
    return lambda *operands: function(*(a.astype(wide) for a in operands))


def _upper_half(wide: np.dtype[Any], narrow: np.dtype[Any]) -> Callable[[Lanes, Lanes], Lanes]:
    bits = wide.type(8 * narrow.itemsize)
    return lambda a, b: ((a.astype(wide) * b.astype(wide)) >> bits).astype(narrow)


def _ordered(name: str, compare: Callable[..., Lanes]) -> Callable[[Lanes, Lanes], Lanes]:
    if name == "ne":
        return lambda a, b: (a != b) & (a == a) & (b == b)
    return compare


def _unordered(compare: Callable[..., Lanes]) -> Callable[[Lanes, Lanes], Lanes]:
    return lambda a, b: compare(a, b) | (a != a) | (b != b)


_COMPARISONS: dict[str, Callable[..., Lanes]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_BITWISE: dict[str, Callable[..., Lanes]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor
}  # fmt: skip

OPERATIONS = _table()

_ADDRESS = re.compile(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\d+)\s*)?\]")
# The distance between the shared memories of two blocks.
OF_A_BLOCK = np.uint64(1 << 20)
_PRODUCT = re.compile(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(f16|bf16)\.\1\.f32")
_STORE_ASYNC = re.compile(
    r"st\.async\.shared::cluster\.mbarrier::complete_tx::bytes(\.v2)?\.(b32|b64)"
)
# Generic addresses, of pointers that NVRTC cannot follow: in this package always global.
_ACCESS = re.compile(
    r"(ld|st)(?:\.relaxed\.(?:gpu|cluster))?(?:\.(global|shared|param)(?:::\w+)?)?(\.nc)?"
    r"(?:\.(v2|v4))?\.(\w+)"
)
# mma.sync.m16n8k16: by the number of an element, its row and column in each lane, from the PTX
# manual.
_GROUP, _IN_GROUP = np.arange(32) // 4, np.arange(32) % 4
_FRAGMENT_OF_A = [
    (_GROUP + 8 * (i % 4 >= 2), 2 * _IN_GROUP + (i & 1) + 8 * (i >= 4)) for i in range(8)
]
_FRAGMENT_OF_B = [(2 * _IN_GROUP + (i & 1) + 8 * (i >= 2), _GROUP) for i in range(4)]
_FRAGMENT_OF_D = [(_GROUP + 8 * (i >= 2), 2 * _IN_GROUP + (i & 1)) for i in range(4)]
SPECIAL = tuple(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz")


class Compiler:
    """Makes steps of the instructions of one kernel."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.offsets: dict[str, tuple[int, int]] = {}
        start = 0
        for parameter in entry.parameters:
            self.offsets[parameter.name] = start, parameter.size
            start += parameter.size
        # Registers with the address of a part of a parameter: its name, and the offset.
        self.parts: dict[str, tuple[str, int]] = {name: (name, 0) for name in self.offsets}
        for i in entry.instructions:
            if i.opcode in ("mov.b64", "add.s64") and i.operands[1] in self.parts:
                name, at = self.parts[i.operands[1]]
                self.parts[i.operands[0]] = name, at + sum(map(int, i.operands[2:]))
        self.flushed = self._flushed()

    def step(self, instruction: Instruction) -> Step:
        """Return a function for the instruction; the machine handles jumps and barriers."""
        try:
            return self._step(instruction)
        except PtxError as error:
            raise PtxError(f"{self.entry.name}, {instruction}: {error}") from None

    def _step(self, instruction: Instruction) -> Step:
        name, operands = instruction.opcode, instruction.operands
        if match := _ACCESS.fullmatch(name):
            return self._access(instruction, *match.groups())
        if operands and operands[0] in self.parts:
            return lambda f: f.__setitem__(operands[0], np.zeros(f.n, np.uint64))  # never read
        if re.fullmatch(r"mov\.b(32|64)", name) and any(o.startswith("{") for o in operands):
            return self._pack(8 * TYPES[name[4:]].itemsize, operands)
        if name == "shfl.sync.bfly.b32":
            return self._exchange(operands)
        if name == "bar.warp.sync" and operands == ("-1",):
            return _expect_whole_warps
        if name.startswith("cp.async."):
            return self._copy(instruction)
        if name == "trap":
            return _trap
        if name.startswith(("mbarrier.", "st.async.")):
            return self._of_barrier(name, operands)
        # The machine waits for all blocks.
        if name in ("barrier.cluster.arrive", "fence.mbarrier_init.release.cluster"):
            return lambda f: None
        if name == "mapa.shared::cluster.u32":
            return self._there(operands)
        if match := _PRODUCT.fullmatch(name):
            return self._product(operands, match[1])
        operation = OPERATIONS.get(name)
        if operation is None:
            raise PtxError("unknown instruction")
        if len(operands) != 1 + len(operation.operands):
            raise PtxError(f"{len(operands)} operands, expected {1 + len(operation.operands)}")
        loose = name.startswith("cvt.")  # may read and write registers that are wider
        reads = [
            self._read(o, kind, loose=loose)
            for o, kind in zip(operands[1:], operation.operands, strict=True)
        ]
        function = operation.function
        if operation.flush:
            reads = [
                _flushing(read) if kind == "f32" and o not in self.flushed else read
                for o, kind, read in zip(operands[1:], operation.operands, reads, strict=True)
            ]
            if operation.result == "f32" and name not in ("neg.ftz.f32", "abs.ftz.f32"):
                function = _flushed_result(function)
        write = self._target(operands[0], operation.result, loose=loose)
        constant = not any(o in self.entry.registers or o in SPECIAL for o in operands[1:])
        return _computation(write, function, reads, constant)

    def _flushed(self) -> set[str]:
        """Return the registers that never hold a subnormal: no operand has to be flushed again."""
        clean: dict[str, bool] = {}
        for instruction in self.entry.instructions:
            operation = OPERATIONS.get(instruction.opcode)
            for target in instruction.operands[:1]:
                good = operation is not None and operation.flush and operation.result == "f32"
                for name in re.findall(r"%\w+", target):
                    clean[name] = clean.get(name, True) and good
        return {name for name, good in clean.items() if good}

    # Operands.

    def _read(self, operand: str, kind: str, *, loose: bool = False) -> Read:
        dtype = TYPES[kind]
        declared = "u32" if operand in SPECIAL else self.entry.registers.get(operand)
        if declared is None:
            value = self._constant(operand, dtype)
            return lambda f: value
        own = TYPES[declared]
        if own.itemsize == dtype.itemsize:

            def read(f: Frame) -> Lanes:
                value = f[operand]
                return value if value.dtype is dtype else value.view(dtype)

            if (declared == "pred") == (kind == "pred"):
                return read
        elif loose and own.itemsize > dtype.itemsize:
            bits = np.dtype(f"u{own.itemsize}")
            narrow = np.dtype(f"u{dtype.itemsize}")
            return lambda f: f[operand].view(bits).astype(narrow).view(dtype)
        raise PtxError(f"{operand} is of type {declared}, the operand is of {kind}")

    def _constant(self, operand: str, dtype: np.dtype[Any]) -> Lanes:
        bits = 8 * dtype.itemsize
        if dtype.kind == "b" and operand in ("0", "1", "-1"):
            return np.bool_(operand != "0")
        if dtype.kind == "f" or operand[:2].lower() in ("0f", "0d"):
            match = re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", operand)
            if match is None or len(match[1] or match[2]) * 4 != bits:
                raise PtxError(f"{operand} is no constant of {bits} bits")
            number = int(match[1] or match[2], 16)
        elif operand in self.entry.shared:
            number = self.entry.shared[operand]
        elif re.fullmatch(r"-?\d+U?|0[xX][0-9a-fA-F]+U?", operand):
            number = int(operand.rstrip("U"), 0)
            if not -(2 ** (bits - 1)) <= number < 2**bits:
                raise PtxError(f"{operand} has more than {bits} bits")
        else:
            raise PtxError(f"unknown operand {operand}")
        return np.array(number % 2**bits, f"u{dtype.itemsize}").view(dtype)[()]

    def _target(
        self, operand: str, kind: str, *, loose: bool = False
    ) -> tuple[str, np.dtype[Any] | None]:
        """Return the register to write, and the type to extend the value to, if it is wider."""
        declared = self.entry.registers.get(operand)
        if declared is None:
            raise PtxError(f"{operand} is no register")
        own, dtype = TYPES[declared], TYPES[kind]
        if (declared == "pred") == (kind == "pred"):
            if own.itemsize == dtype.itemsize:
                return operand, None
            if loose and own.itemsize > dtype.itemsize and dtype.kind in "iu":
                return operand, np.dtype(f"{dtype.kind}{own.itemsize}")
        raise PtxError(f"{operand} is of type {declared}, the result is of {kind}")

    def _address(self, operand: str) -> Read:
        match = _ADDRESS.fullmatch(operand)
        if match is None:
            raise PtxError(f"unknown address {operand}")
        base, offset = match[1], np.uint64(int(match[2] or 0) % 2**64)
        declared = self.entry.registers.get(base)
        if declared is None:
            start = self._constant(base, TYPES["u64"]) + offset
            return lambda f: np.full(f.n, start)
        read = self._read(base, "u64" if declared[1:] == "64" else "u32")
        if declared[1:] == "64":
            return read if offset == 0 else lambda f: read(f) + offset
        return lambda f: read(f).astype(np.uint64) + offset

    # Instructions that are not operations.

    def _access(
        self, instruction: Instruction, what: str, space: str, _nc: str, vector: str, kind: str
    ) -> Step:
        space = space or "global"
        if kind not in TYPES or kind in ("pred", "f16", "bf16"):
            raise PtxError(f"unknown type {kind}")
        count, dtype = int((vector or "v1")[1:]), TYPES[kind]
        place, register = instruction.operands[:: 1 if what == "st" else -1]
        registers = register[1:-1].replace(" ", "").split(",") if vector else [register]
        if len(registers) != count:
            raise PtxError(f"{len(registers)} registers, expected {count}")
        if what == "st":
            if space == "param":
                raise PtxError("unknown instruction")
            reads = [self._read(r, kind, loose=True) for r in registers]
            address = self._address(place)

            def store(f: Frame) -> None:
                values = [np.broadcast_to(read(f), f.n) for read in reads]
                value = values[0] if count == 1 else np.stack(values, axis=1)
                f.store(instruction, space, address(f), dtype, value)

            return store
        targets = [self._target(r, kind, loose=True) for r in registers]
        if space == "param":
            return self._load_parameter(place, targets, dtype)
        address = self._address(place)

        def load(f: Frame) -> None:
            values = f.load(instruction, space, address(f), dtype, count)
            for n, (name, wide) in enumerate(targets):
                value = values if count == 1 else values[:, n]
                f[name] = value if wide is None else value.astype(wide)

        return load

    def _there(self, operands: tuple[str, ...]) -> Step:
        """``mapa``: an address in the shared memory of another block of the cluster."""
        target, _ = self._target(operands[0], "u32")
        address, number = (self._read(operand, "u32") for operand in operands[1:])
        cluster = np.uint64(self.entry.cluster)

        def there(f: Frame) -> None:
            block = f["block"] // cluster * cluster + number(f)
            f[target] = (address(f) + (block + np.uint64(1)) * OF_A_BLOCK).astype(np.uint32)

        return there

    def _copy(self, instruction: Instruction) -> Step:
        """``cp.async``: a copy to shared memory, the end of a group of them, a wait for some."""
        name, operands = instruction.opcode, instruction.operands
        if name == "cp.async.commit_group":
            return lambda f: f.end_copies()
        if name == "cp.async.wait_group":
            groups = int(operands[0])
            return lambda f: f.wait_for_copies(groups)
        if name != "cp.async.ca.shared.global" or operands[2] not in ("4", "8", "16"):
            raise PtxError("unknown instruction")
        to, source = map(self._address, operands[:2])
        dtype = np.dtype("u8") if operands[2] == "8" else np.dtype("u4")
        if operands[2] == "16":
            dtype = np.dtype("V16")
        return lambda f: f.copy(instruction, to(f), source(f), dtype)

    def _of_barrier(self, name: str, operands: tuple[str, ...]) -> Step:
        """Barriers that count the bytes of asynchronous stores, and these stores."""
        if match := _STORE_ASYNC.fullmatch(name):
            to, barrier = self._address(operands[0]), self._address(operands[2])
            words = [self._read(o.strip(), match[2]) for o in operands[1].strip("{}").split(",")]

            def store(f: Frame) -> None:
                values = [np.broadcast_to(read(f), f.n) for read in words]
                f.store_async(to(f), np.stack(values, axis=1), barrier(f))

            return store
        if name == "mbarrier.init.shared::cta.b64" and operands[1] == "1":
            place = self._address(operands[0])
            return lambda f: f.begin_barriers(place(f))
        if name == "mbarrier.arrive.expect_tx.shared::cta.b64" and operands[0] == "_":
            place, number = self._address(operands[1]), self._read(operands[2], "s32")
            return lambda f: f.expect(place(f), np.broadcast_to(number(f), f.n))
        if name == "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64":
            place, number = self._address(operands[1]), self._read(operands[2], "u32")
            target, _ = self._target(operands[0], "pred")
            return lambda f: f.__setitem__(
                target, f.have_come(place(f), np.broadcast_to(number(f), f.n))
            )
        raise PtxError("unknown instruction")

    def _exchange(self, operands: tuple[str, ...]) -> Step:
        """``shfl.sync.bfly``: each lane gets the value of the lane with its number xor a mask."""
        targets, *others = operands
        name, *arrived = targets.split("|")
        target, _ = self._target(name, "b32")
        value, mask, clamp, lanes = (
            self._read(o, kind)
            for o, kind in zip(others, ("b32", "u32", "u32", "b32"), strict=True)
        )

        def exchange(f: Frame) -> None:
            if np.any(clamp(f) != 31):
                raise PtxError("an exchange that is not among the lanes of a warp")
            values = np.broadcast_to(value(f), f.n)
            f[target] = values[_partners(f, mask(f), np.broadcast_to(lanes(f), f.n))]
            for predicate in arrived:
                f[predicate] = np.ones(f.n, bool)

        return exchange

    def _product(self, operands: tuple[str, ...], kind: str) -> Step:
        """``mma.sync``: d = a @ b + c of each warp, summed in float64 and rounded once."""
        d, a, b, c = ([part.strip() for part in o.strip("{}").split(",")] for o in operands)
        if [len(d), len(a), len(b), len(c)] != [4, 4, 2, 4]:
            raise PtxError("fragments that are not of m16n8k16")
        targets = [self._target(name, "f32")[0] for name in d]
        numbers = [self._read(name, "b32") for name in (*a, *b)]
        added = [self._read(name, "f32") for name in c]
        widen = ar.from_bfloat16 if kind == "bf16" else ar.from_half

        def product(f: Frame) -> None:
            places = _whole_warps(f)
            warps = len(places)
            words = [np.broadcast_to(read(f), f.n)[places] for read in numbers]
            halves = [
                np.stack([w & np.uint32(0xFFFF), w >> np.uint32(16)], axis=-1).astype(np.uint16)
                for w in words
            ]
            A, B = np.zeros((warps, 16, 16)), np.zeros((warps, 16, 8))
            D = np.zeros((warps, 16, 8))
            for n, (row, column) in enumerate(_FRAGMENT_OF_A):
                A[:, row, column] = widen(halves[n // 2][..., n % 2])
            for n, (row, column) in enumerate(_FRAGMENT_OF_B):
                B[:, row, column] = widen(halves[4 + n // 2][..., n % 2])
            for n, (row, column) in enumerate(_FRAGMENT_OF_D):
                D[:, row, column] = np.broadcast_to(added[n](f), f.n)[places]
            D = (D + A @ B).astype(np.float32)
            for n, (row, column) in enumerate(_FRAGMENT_OF_D):
                result = np.empty(f.n, np.float32)
                result[places] = D[:, row, column]
                f[targets[n]] = result

        return product

    def _load_parameter(
        self, place: str, targets: list[tuple[str, np.dtype[Any] | None]], dtype: np.dtype[Any]
    ) -> Step:
        match = _ADDRESS.fullmatch(place)
        if match is None or match[1] not in self.parts:
            raise PtxError(f"unknown parameter {place}")
        parameter, offset = self.parts[match[1]]
        start, size = self.offsets[parameter]
        offset += int(match[2] or 0)
        wanted = len(targets) * dtype.itemsize
        if not 0 <= offset <= size - wanted or offset % wanted:
            raise PtxError(f"{wanted} bytes of a parameter of {size} bytes")
        start += offset

        def load(f: Frame) -> None:
            values = np.frombuffer(f.arguments, dtype, len(targets), start)
            for (name, wide), value in zip(targets, values, strict=True):
                f[name] = np.full(f.n, value, wide or dtype)

        return load

    def _pack(self, bits: int, operands: tuple[str, ...]) -> Step:
        """``mov`` between a register and its parts, the lowest first."""
        whole = TYPES[f"b{bits}"]
        packs = operands[1].startswith("{")
        names = [o.strip() for o in operands[packs][1:-1].split(",")]
        size = bits // len(names)
        if f"b{size}" not in TYPES or size * len(names) != bits:
            raise PtxError(f"{len(names)} parts of {bits} bits")
        shifts = [whole.type(size * n) for n in range(len(names))]
        part = TYPES[f"b{size}"]
        if packs:
            reads = [self._read(name, f"b{size}") for name in names]
            target, _ = self._target(operands[0], f"b{bits}")

            def pack(f: Frame) -> None:
                value = np.zeros(f.n, whole)
                for read, shift in zip(reads, shifts, strict=True):
                    value |= read(f).astype(whole) << shift
                f[target] = value

            return pack
        read = self._read(operands[1], f"b{bits}")
        targets = [None if n == "_" else self._target(n, f"b{size}")[0] for n in names]

        def unpack(f: Frame) -> None:
            value = np.broadcast_to(read(f), f.n)
            for name, shift in zip(targets, shifts, strict=True):
                if name is not None:
                    f[name] = (value >> shift).astype(part)

        return unpack


def _expect_whole_warps(f: Frame) -> None:
    """``bar.warp.sync``: it orders what the lanes of a warp do in memory."""
    _whole_warps(f)
    f["syncs"] = f["syncs"] + 1
    f.keep(("syncs",))


def _partners(f: Frame, mask: Lanes, named: Lanes) -> Lanes:
    """Return the place of each lane's partner; all named lanes are here."""
    threads = f["thread"]
    order = np.argsort(threads, kind="stable")
    sorted_threads = threads[order]
    for lane in range(32):
        wanted = (named >> np.uint32(lane) & np.uint32(1)).astype(bool)
        other = threads[wanted] // 32 * 32 + lane
        at = np.minimum(np.searchsorted(sorted_threads, other), f.n - 1)
        if np.any(sorted_threads[at] != other) or np.any(named[order[at]] != named[wanted]):
            raise PtxError("not all lanes that are named are at an exchange")
    partner = threads ^ mask.astype(np.int64)
    if np.any(~named >> (partner % 32).astype(np.uint32) & np.uint32(1)):
        raise PtxError("an exchange with a lane that is not named")
    return order[np.searchsorted(sorted_threads, partner)]


def _trap(_: Frame) -> None:
    raise PtxError("the kernel traps")


def _whole_warps(f: Frame) -> Lanes:
    """Return the places of the frame's lanes by warp, [warps, 32]; each warp is complete."""
    threads = f["thread"]
    order = np.argsort(threads, kind="stable")
    if f.n % 32 == 0:
        places = order.reshape(-1, 32)
        by_warp = threads[places]
        if np.all(by_warp == by_warp[:, :1] // 32 * 32 + np.arange(32)):
            return places
    raise PtxError("not all lanes of a warp are at its exchange")


def _flushing(read: Read) -> Read:
    return lambda f: ar.flush(read(f))


def _flushed_result(function: Callable[..., Lanes]) -> Callable[..., Lanes]:
    return lambda *operands: ar.flush(function(*operands))


def _computation(
    target: tuple[str, np.dtype[Any] | None],
    function: Callable[..., Lanes],
    reads: list[Read],
    constant: bool,
) -> Step:
    name, wide = target

    def step(f: Frame) -> None:
        value = function(*[read(f) for read in reads])
        value = value if wide is None else value.astype(wide)
        f[name] = np.full(f.n, value) if constant else value

    return step
