"""PTX text as a module of kernels: parameters, registers, shared memory, instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


class PtxError(RuntimeError):
    """Unknown PTX, or a forbidden operation of a kernel."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: ``@%p1 bra $L2;`` has the guard ("%p1", True), ``@!%p1`` has False."""

    line: int
    text: str
    opcode: str
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None

    @property
    def atomic(self) -> bool:
        """Whether its read and its write are one access."""
        return self.opcode.startswith("st.relaxed.") or self.waits

    @property
    def waits(self) -> bool:
        """Whether it reads a word that another block may still write."""
        return self.opcode.startswith(("ld.relaxed.", "mbarrier.try_wait."))

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True)
class Parameter:
    """A parameter and its size in bytes."""

    name: str
    size: int


@dataclass
class Entry:
    """A kernel of the text."""

    name: str
    parameters: list[Parameter]
    registers: dict[str, str] = field(default_factory=dict)
    """Type by name: "b32", "pred"."""
    shared: dict[str, int] = field(default_factory=dict)
    """Offset by name."""
    shared_bytes: int = 0
    """Of static shared memory; what is dynamic begins here."""
    instructions: list[Instruction] = field(default_factory=list)
    cluster: int = 1
    """Neighboring blocks that are one."""
    labels: dict[str, int] = field(default_factory=dict)
    """Number of the instruction that a label stands before."""


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{;]*)\{")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)\s+"
    r"(?:\.ptr(?:\s+\.(?:global|shared|const|local))?(?:\s+\.align\s+\d+)?\s+)?"
    r"([\w$]+)(?:\[(\d+)\])?"
)
_SHARED = re.compile(r"(\.extern\s+)?\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d*)\]")
_REGISTERS = re.compile(r"\.reg\s+\.(pred|[busf]\d+)\s+(.*)", re.S)
# Directives that do not change the result: unrolling, the size of a block.
_IGNORED = re.compile(r"\.pragma\b.*|\.loc\b.*", re.S)
_IGNORED_OF_ENTRY = re.compile(
    r"(\s|\.explicitcluster|\.(maxntid|reqntid|minnctapersm|maxnreg|reqnctapercluster)\s+[\d, ]+)*"
)
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(\d+)")
_SPACE = re.compile(r"\s*")
_LABEL = re.compile(r"([\w$%]+):(?!:)")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


def parse(text: str) -> dict[str, Entry]:
    """Return the kernels of a PTX module by name."""
    text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    dynamic = [m for m in _SHARED.finditer(text) if m[1]]
    entries = {}
    for match in _ENTRY.finditer(text):
        if not _IGNORED_OF_ENTRY.fullmatch(match[3]):
            raise PtxError(f"{match[1]}: unknown directive {match[3].strip()}")
        entry = Entry(match[1], [_parameter(p) for p in match[2].split(",") if p.strip()])
        if cluster := _CLUSTER.search(match[3]):
            entry.cluster = int(cluster[1])
        for line, statement in _statements(text, match.end(), entry):
            if statement.startswith("."):
                _declare(entry, line, statement)
            else:
                entry.instructions.append(_instruction(line, statement))
        if dynamic:
            entry.shared_bytes = -(-entry.shared_bytes // 16) * 16
            entry.shared |= {m[3]: entry.shared_bytes for m in dynamic}
        entries[entry.name] = entry
    return entries


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.fullmatch(text.strip())
    if match is None:
        raise PtxError(f"unknown parameter {text.strip()}")
    return Parameter(match[2], int(match[1]) // 8 * int(match[3] or 1))


def _statements(text: str, at: int, entry: Entry) -> Iterator[tuple[int, str]]:
    """Yield the statements of a body with their lines, noting labels; scopes are all one."""
    depth = 1
    line, counted = 1, 0  # the line at this place
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if text[at] in "{}":
            depth += 1 if text[at] == "{" else -1
            at += 1
            if depth == 0:
                return
        elif label := _LABEL.match(text, at):
            entry.labels[label[1]] = len(entry.instructions)
            at = label.end()
        else:
            end = text.index(";", at)
            line, counted = line + text.count("\n", counted, at), at
            yield line, " ".join(text[at:end].split())
            at = end + 1


def _declare(entry: Entry, line: int, statement: str) -> None:
    if match := _REGISTERS.fullmatch(statement):
        for name in (part.strip() for part in match[2].split(",")):
            many = re.fullmatch(r"(.*)<(\d+)>", name)
            names = [f"{many[1]}{n}" for n in range(int(many[2]))] if many else [name]
            for each in names:
                # The scopes of inline assembly declare their temporaries again.
                if entry.registers.setdefault(each, match[1]) != match[1]:
                    raise PtxError(f"line {line}: {each} is declared twice, as different types")
    elif match := _SHARED.fullmatch(statement):
        start = -(-entry.shared_bytes // int(match[2])) * int(match[2])
        entry.shared[match[3]] = start
        entry.shared_bytes = start + int(match[4])
    elif not _IGNORED.fullmatch(statement):
        raise PtxError(f"line {line}: unknown directive {statement}")


def _instruction(line: int, statement: str) -> Instruction:
    match = re.fullmatch(r"(?:@(!?)(%\w+) )?(\S+)(?: (.*))?", statement)
    if match is None:
        raise PtxError(f"line {line}: not an instruction: {statement}")
    guard = None if match[2] is None else (match[2], match[1] != "!")
    operands = tuple(_OPERAND.findall(match[4] or ""))
    return Instruction(line, statement, match[3], operands, guard)
