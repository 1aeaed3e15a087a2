"""The loops in the machine code of kernels, read by NVIDIA's disassembler, which needs no GPU."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from .nvrtc import Cubin

_WHEEL = "nvidia-cuda-nvdisasm"

# An instruction, without the predicate in front of it, and a jump to a label.
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;")
_LABEL = re.compile(r"(\.L_x_\d+):")
_JUMP = re.compile(r"BRA\b.*`\((\.L_x_\d+)\)")


@functools.cache
def have_nvdisasm() -> str | None:
    """Return None if :func:`loops` can work here, else why not."""
    try:
        _program()
    except importlib.metadata.PackageNotFoundError:
        return f"{_WHEEL} is not installed"
    return None


@functools.cache
def _program() -> Path:
    files = importlib.metadata.files(_WHEEL) or []
    (found,) = (file for file in files if file.name in ("nvdisasm", "nvdisasm.exe"))
    return Path(str(found.locate()))


def loops(cubin: Cubin) -> dict[str, list[Counter[str]]]:
    """
    Return how often each instruction occurs in each loop, by name expression.

    A loop is the code between a jump backwards and its target, inner loops included. The longest is
    the first. Instructions are counted by the first part of their name.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin.code)
        file.flush()
        command = [_program(), "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sections = {}
    for section in re.split(r"^\s*\.section\s+\.text\.", text, flags=re.M)[1:]:
        name, _, body = section.partition(",")
        sections[name.strip()] = _loops(body)
    return {name: sections[lowered] for name, lowered in cubin.lowered.items()}


def _loops(text: str) -> list[Counter[str]]:
    code: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line.strip()):
            labels[label[1]] = len(code)
        elif instruction := _INSTRUCTION.match(line):
            code.append(instruction[1])
    spans = []
    for end, instruction in enumerate(code):
        jump = _JUMP.match(instruction)
        # The last jump of a kernel leads to itself, and is never reached.
        if jump and labels[jump[1]] < end:
            spans.append((labels[jump[1]], end + 1))
    spans.sort(key=lambda span: span[0] - span[1])
    return [Counter(re.split(r"[. ]", i)[0] for i in code[slice(*span)]) for span in spans]
