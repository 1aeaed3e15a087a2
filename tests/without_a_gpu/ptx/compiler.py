"""The PTX that NVRTC makes of a CUDA source string, with CuPy's options."""

from __future__ import annotations

import functools
import importlib.metadata
import json
from dataclasses import dataclass

from without_a_gpu.cuda_on_cpu import nvrtc, runner

ARCHITECTURES = ("compute_75", "compute_80", "compute_90", "compute_100", "compute_120")


@dataclass(frozen=True)
class Ptx:
    """A PTX text and, per name expression, the name of its entry."""

    text: str
    names: dict[str, str]


@functools.cache
def compile_ptx(
    source: str, name_expressions: tuple[str, ...], arch: str, options: tuple[str, ...] = ()
) -> Ptx:
    """
    Compile kernels to PTX.

    Parameters
    ----------
    source, name_expressions, options
        As for :func:`without_a_gpu.cuda_on_cpu.nvrtc.compile_cubin`.
    arch
        Such as "compute_90".

    Raises
    ------
    NvrtcError
        With the compiler's log.
    """
    # Shared with the other test processes, like the code that g++ compiles.
    path = runner.kept(".ptx.json", source, name_expressions, arch, options, _versions())
    with runner.locked(path):
        if not path.exists():
            unfinished = path.with_suffix(".tmp")
            text, names, _ = nvrtc.compiled(source, name_expressions, arch, options)
            unfinished.write_text(json.dumps((text.rstrip(b"\0").decode(), names)))
            unfinished.replace(path)
    return Ptx(*json.loads(path.read_text()))


@functools.cache
def _versions() -> list[str]:
    """Return the versions that the text depends on besides the source and the options."""
    return [importlib.metadata.version(wheel) for wheel in nvrtc.wheels()]


def have_ptx() -> str | None:
    """Return None if PTX can be compiled, and interpreted, here, else why not."""
    return nvrtc.have_nvrtc() or runner.have_gxx()
