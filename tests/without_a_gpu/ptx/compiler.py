"""The PTX that NVRTC makes of a CUDA source string, with the options that CuPy would give."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from without_a_gpu.cuda_on_cpu import nvrtc

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
    from cuda.bindings import nvrtc as api

    with nvrtc.compiled(source, name_expressions, arch, options) as (program, _):
        text = bytearray(nvrtc._checked(api.nvrtcGetPTXSize(program)))
        nvrtc._checked(api.nvrtcGetPTX(program, text))
        names = nvrtc.lowered_names(program, name_expressions)
    return Ptx(text.rstrip(b"\0").decode(), names)


def have_ptx() -> str | None:
    """Return None if :func:`compile_ptx` can work here, else why not."""
    return nvrtc.have_nvrtc()
