"""Programs that CuPy compiles: NVRTC compiles them as on a GPU, and their source is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .library import cache

_MARK = b"cupy_on_host:"


@dataclass(frozen=True)
class Program:
    """
    One compilation.

    Attributes
    ----------
    source
        CUDA C++.
    options
        Those of NVRTC.
    names
        The name of each requested kernel in the image, by its C++ name.
    """

    source: str
    options: tuple[str, ...]
    names: dict[str, str]

    def save(self) -> bytes:
        """Keep the program; return a placeholder of its image."""
        text = json.dumps(asdict(self), sort_keys=True)
        path = cache() / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        path.write_text(text)
        return _MARK + str(path).encode() + b"\0"

    @classmethod
    def load(cls, image: bytes) -> Program:
        """Return the program of a placeholder."""
        if not image.startswith(_MARK):
            raise ValueError("an image that was not compiled here")
        fields = json.loads(Path(image.removeprefix(_MARK).decode()).read_text())
        return cls(fields["source"], tuple(fields["options"]), fields["names"])


compiled: list[Program] = []
"""All that NVRTC compiled in this process, in this order."""


def keep_compiled(nvrtc_program: Any) -> None:
    """Make CuPy's class for programs keep its sources."""
    compile_ = nvrtc_program.compile

    def compile_and_keep(self: Any, options: Sequence[str] = (), *args: Any, **kwargs: Any) -> Any:
        image, names = compile_(self, options, *args, **kwargs)
        if not self.src.strip():  # CuPy compiles an empty program once
            return image, names
        program = Program(self.src, tuple(options), names or {})
        compiled.append(program)
        return program.save(), names

    nvrtc_program.compile = compile_and_keep
