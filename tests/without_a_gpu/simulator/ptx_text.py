"""What is done to NVRTC's PTX before the simulator reads it, none of which changes a result."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from without_a_gpu.ptx.parser import parse

# The newest version that the ptxas of CUDA 11.8 reads, which the simulator asks for registers.
_VERSION = "7.8"
_WIDE = re.compile(r"^(\s*[a-z][\w.]*64[^,;\n]*(?:, %\w+)*), (-?(?:0x[0-9A-Fa-f]+|\d{10,}));", re.M)


def readable(ptx: str) -> str:
    """
    Return the text in words that the simulator knows.

    It takes the first result of ``%r1|%p1`` for a predicate, reads an immediate as 32 bits, knows
    no ``copysign``, and lays dynamic shared memory over what stands in the source.
    """
    ptx = re.sub(r"^\.version .*", f".version {_VERSION}", ptx, flags=re.M)
    ptx = re.sub(r"(shfl\.sync\.\w+\.b32\s+%r\d+)\|%p\d+", r"\1", ptx)
    ptx = re.sub(
        r"copysign\.f(32|64)(\s+)(%\w+), (%\w+), (%\w+);",
        # Of the second the magnitude, of the first the sign.
        lambda m: (
            f"and.b{m[1]}{m[2]}%sign_{m[1]}, {m[4]}, %top_{m[1]};\n"
            f"\tand.b{m[1]}{m[2]}{m[3]}, {m[5]}, %rest_{m[1]};\n"
            f"\tor.b{m[1]}{m[2]}{m[3]}, {m[3]}, %sign_{m[1]};"
        ),
        ptx,
    )
    ptx = _WIDE.sub(_in_halves, ptx)
    more = ".reg .b64 %wide, %sign_64, %top_64, %rest_64;\n\t.reg .b32 %sign_32, %top_32, %rest_32;"
    ptx = re.sub(r"^(\t\.reg \.pred)", rf"\t{more}\n\1", ptx, flags=re.M)
    for bits in ("32", "64"):
        if f"%top_{bits}" in ptx.replace(more, ""):
            ptx = _with_signs(ptx, bits)
    return _apart(ptx)


def _in_halves(match: re.Match[str]) -> str:
    value = int(match[2], 0)
    if -(2**31) <= value < 2**31:
        return match[0]
    high, low = value >> 32, value & 0xFFFFFFFF
    halves = [
        f"mov.u64 %wide, {high - 2**32 if high >= 2**31 else high};",
        "shl.b64 %wide, %wide, 32;",
    ]
    if low:
        raise ValueError(f"an immediate with two halves: {match[0]}")
    return "\n\t".join([*halves, f"{match[1].strip()}, %wide;"])


def _with_signs(ptx: str, bits: str) -> str:
    lines = [
        f"mov.u{bits} %top_{bits}, 1;",
        f"shl.b{bits} %top_{bits}, %top_{bits}, {int(bits) - 1};",
    ]
    lines.append(f"not.b{bits} %rest_{bits}, %top_{bits};")
    # Behind the declarations, before the first instruction.
    return re.sub(
        r"^((?:\t\.(?:reg|shared)[^\n]*\n|\t//[^\n]*\n|\n)+)(?=\t[a-z@])",
        lambda m: m[1] + "".join(f"\t{line}\n" for line in lines) if ".reg" in m[1] else m[0],
        ptx,
        flags=re.M,
    )


def _apart(ptx: str) -> str:
    """Put the dynamic shared memory of a text with one kernel behind the other."""
    declared = re.search(r"\.extern\s+\.shared[^;]*?(\w+)\[\];", ptx)
    if declared is None:
        return ptx
    (entry,) = parse(ptx).values()
    # Its address has 64 bits or, with NVRTC 13, 32.
    ptx, moved = re.subn(
        rf"^(\tmov\.[bu](32|64)\s+(%\w+), {declared[1]};)",
        rf"\1\n\tadd.s\2 \3, \3, {entry.shared_bytes};",
        ptx,
        flags=re.M,
    )
    if moved + 1 != len(re.findall(rf"\b{declared[1]}\b", ptx)):
        raise ValueError(f"{entry.name} has the address of {declared[1]} in an unknown way")
    return ptx


def without_warp_barriers(ptx: str) -> str:
    """Return the text without ``bar.warp.sync``: its warps take every step together."""
    return re.sub(r"^\s*bar\.warp\.sync.*\n", "", ptx, flags=re.M)


# A branch around a few instructions, at the end of which all threads are where it goes.
_SKIPPED = re.compile(
    r"^\t@(!?)(%p\d+) bra\s+(\S+);\n((?:\n|\t[a-z][^\n]*;\n)+?)(?=(?:\tbra\.uni\s+)?\3[;:])", re.M
)
_MOST_SKIPPED = 4
# A load of a parameter that no lane takes ends the simulator.
_NEVER_SKIPPED = re.compile(r"bra|bar|ret|exit|shfl|setp|\w+\.pred|ld\.param")


def predicated(ptx: str) -> str:
    """
    Return the text with predicates in place of branches around a few instructions.

    ptxas does so, and only then many loads of a thread are on their way at once.
    """

    def without_branch(match: re.Match[str]) -> str:
        lines = [line.strip() for line in match[4].split("\n") if line.strip()]
        if len(lines) > _MOST_SKIPPED or any(_NEVER_SKIPPED.match(line) for line in lines):
            return match[0]
        guard = f"@{'' if match[1] else '!'}{match[2]}"
        return "".join(f"\t{guard} {line}\n" for line in lines)

    ptx = _SKIPPED.sub(without_branch, ptx)
    # Where nobody goes any more a basic block does not end.
    return re.sub(r"^(\$\w+):\n", lambda m: m[0] if f"{m[1]};" in ptx else "", ptx, flags=re.M)


def static_shared(ptx: str) -> int:
    """Return the bytes of shared memory that stand in a text with one kernel."""
    return sum(int(n) for n in re.findall(r"^\s*\.shared .*\[(\d+)\];", ptx, re.M))


# Cycles from an instruction to who needs its result, by how its name begins: roughly.
_LATENCIES = (
    (("ld.global",), 200),
    (("ld.shared", "shfl"), 30),
    (("ex2", "rcp", "lg2", "sqrt", "rsqrt", "div", "tanh"), 25),
    (("ld.param", "ld.const"), 8),
    (("mov", "cvta"), 2),
)
_OTHERS = 6
_REGISTER = re.compile(r"%[a-zA-Z_]+\d*(?:\.\w)?")
_NO_RESULT = ("st.", "bar", "bra", "ret", "red.", "membar", "exit")
# Between which nothing is moved.
_ENDS = ("bra", "bar", "ret", "exit", "call", "membar")


@dataclass
class _Node:
    line: str
    name: str
    written: list[str]
    read: list[str]
    after: dict[int, int] = field(default_factory=dict)  # what comes later, and by how much
    waits: int = 0  # for how many
    height: int = 0  # cycles until the end of the block


def scheduled(ptx: str) -> str:
    """
    Return the text with the instructions of each basic block in an order that hides latency.

    ptxas does so before a GPU sees them; the simulator issues them as they stand.
    """
    lines: list[str] = []
    block: list[str] = []
    inside = False

    def flush() -> None:
        lines.extend(_ordered(block))
        block.clear()

    for line in re.sub(r",\s*\n\s*", ", ", ptx).split("\n"):
        text = line.strip()
        inside = text == "{" or (inside and text != "}")
        name = re.sub(r"^@!?%\w+\s+", "", text)
        instruction = text.endswith(";") and text.count(";") == 1 and text[0] not in "./{}"
        if inside and instruction and not name.startswith(_ENDS):
            block.append(line)
        elif text or not inside:
            flush()
            lines.append(line)
    flush()
    return "\n".join(lines)


def _node(line: str) -> _Node:
    guard, name, operands = re.fullmatch(  # type: ignore[union-attr]
        r"(?:@!?(%\w+)\s+)?(\S+)\s*(.*);", line.strip()
    ).groups()
    registers = [
        r for r in _REGISTER.findall(operands) if not r.startswith(("%tid", "%ctaid", "%n"))
    ]
    if name.startswith(_NO_RESULT) or not registers:
        written = 0
    elif operands.startswith("{"):
        written = operands[: operands.index("}")].count("%")
    else:
        written = 1
    read = registers[written:]
    if guard:  # who does not write leaves what was there
        read = [*read, guard, *registers[:written]]
    return _Node(line, name, registers[:written], read)


def _latency(name: str) -> int:
    return next((cycles for names, cycles in _LATENCIES if name.startswith(names)), _OTHERS)


def _space(name: str) -> str | None:
    if name.startswith("shfl"):
        return "lanes"
    return next((s for s in ("shared", "global", "local") if f".{s}" in name), None)


def _connected(nodes: Sequence[_Node]) -> None:
    """Say what has to stay in front of what."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    loads: dict[str, list[int]] = {}
    stores: dict[str, int] = {}

    def before(first: int, then: int, cycles: int) -> None:
        if first != then:
            known = nodes[first].after
            nodes[then].waits += then not in known
            known[then] = max(cycles, known.get(then, 0))

    for n, node in enumerate(nodes):
        for r in node.read:
            if r in writer:
                before(writer[r], n, _latency(nodes[writer[r]].name))
            readers.setdefault(r, []).append(n)
        for r in node.written:
            for other in [*readers.get(r, ()), *([writer[r]] if r in writer else ())]:
                before(other, n, 1)
            writer[r], readers[r] = n, []
        space = _space(node.name)
        if space is None:
            continue
        if node.name.startswith("ld"):
            # No step reads what it writes to the device's memory.
            if space in stores and space != "global":
                before(stores[space], n, 1)
            loads.setdefault(space, []).append(n)
        else:
            for other in loads.pop(space, ()) if space != "global" else ():
                before(other, n, 1)
            if space in stores:
                before(stores[space], n, 1)
            stores[space] = n


def _ordered(lines: Sequence[str]) -> list[str]:
    """Return a basic block, of what can be issued always what the end waits for the longest."""
    nodes = [_node(line) for line in lines]
    _connected(nodes)
    for node in reversed(nodes):
        rest = (cycles + nodes[n].height for n, cycles in node.after.items())
        node.height = max(rest, default=_latency(node.name))
    ready_at = [0] * len(nodes)
    ready = [n for n, node in enumerate(nodes) if not node.waits]
    waiting = [(0, n) for n in ready]
    heapq.heapify(waiting)
    issuable: list[tuple[int, int]] = []
    result: list[str] = []
    clock = 0
    while waiting or issuable:
        if not issuable:
            clock = max(clock, waiting[0][0])
        while waiting and waiting[0][0] <= clock:
            _, n = heapq.heappop(waiting)
            heapq.heappush(issuable, (-nodes[n].height, n))
        _, n = heapq.heappop(issuable)
        result.append(nodes[n].line)
        for other, cycles in nodes[n].after.items():
            ready_at[other] = max(ready_at[other], clock + cycles)
            nodes[other].waits -= 1
            if not nodes[other].waits:
                heapq.heappush(waiting, (ready_at[other], other))
        clock += 1
    return result
