"""Compile a CUDA source string to machine code with NVRTC; needs neither a GPU nor a driver."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The options that cupy.RawModule adds, so that this is the code that CuPy runs.
_CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
_CUPY_STANDARD = "-std=c++17"

# For each wheel, a header that shows its include folder.
_HEADERS = {
    "nvidia-cuda-runtime": "include/cuda_fp16.h",
    "nvidia-cuda-cccl": "include/nv/target",
}
# The endings of the wheels' names, by the CUDA version of cuda-bindings.
_ENDINGS = {"12": "-cu12", "13": ""}


class NvrtcError(RuntimeError):
    """NVRTC or ptxas refused the source; the message is theirs."""


@dataclass(frozen=True)
class KernelUsage:
    """The resources of a kernel, from ptxas's report; all but the registers in bytes per thread."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    """Static shared memory in bytes per block."""


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture."""

    code: bytes
    kernels: dict[str, KernelUsage]
    """Keyed by name expression."""
    lowered: dict[str, str]
    """The names in the code, keyed likewise."""


def have_nvrtc() -> str | None:
    """Return None if :func:`compile_cubin` can work here, else why not."""
    try:
        bindings = importlib.metadata.version("cuda-bindings")
    except importlib.metadata.PackageNotFoundError:
        return "cuda-bindings is not installed"
    major = bindings.partition(".")[0]
    if major not in _ENDINGS:
        return f"cuda-bindings is {bindings}, not of CUDA {' or '.join(_ENDINGS)}"
    for wheel in wheels():
        try:
            version = importlib.metadata.version(wheel)
        except importlib.metadata.PackageNotFoundError:
            return f"{wheel} is not installed"
        # The headers have NVRTC's version; CCCL has its own.
        if "-cccl" not in wheel and not version.startswith(f"{major}."):
            return f"{wheel} is {version}, not of CUDA {major}, as cuda-bindings is"
    return None


def wheels() -> list[str]:
    """Return the names of the wheels with NVRTC, first, and with its headers."""
    major = importlib.metadata.version("cuda-bindings").partition(".")[0]
    return [name + _ENDINGS[major] for name in ("nvidia-cuda-nvrtc", *_HEADERS)]


def version() -> str:
    """Return the version of NVRTC, such as "12.9.86"."""
    return importlib.metadata.version(wheels()[0])


def compile_cubin(
    source: str, name_expressions: Sequence[str], arch: str, options: Sequence[str] = ()
) -> Cubin:
    """Compile kernels to machine code.

    Parameters
    ----------
    source : str
        CUDA C++, as given to ``cupy.RawModule``.
    name_expressions : sequence of str
        Every kernel wanted, such as ``"scale<float>"``; ``extern "C"`` kernels too.
    arch : str
        Such as ``"sm_90"``.
    options : sequence of str
        Further NVRTC options. Those that CuPy adds are added here too.

    Returns
    -------
    Cubin

    Raises
    ------
    NvrtcError
        With the compiler's log.
    """
    more = ["--ptxas-options=-v", *options]
    code, names, log = compiled(source, name_expressions, arch, more)
    usage = _usage(log)
    return Cubin(code, {name: usage[lowered] for name, lowered in names.items()}, names)


def compiled(
    source: str, name_expressions: Sequence[str], arch: str, options: Sequence[str] = ()
) -> tuple[bytes, dict[str, str], str]:
    """
    Compile as CuPy does, to machine code for "sm_90" and the like, to PTX for "compute_90".

    Return the code, the name in it per name expression, and NVRTC's log.
    """
    from cuda.bindings import nvrtc

    arguments = [f"-arch={arch}", *_CUPY_OPTIONS, *options]
    if not any(option.startswith(("-std=", "--std=")) for option in options):
        arguments.append(_CUPY_STANDARD)
    arguments += [f"-I{folder}" for folder in _include_folders()]

    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))

    def given(what: str) -> bytes:
        text = bytearray(_checked(getattr(nvrtc, f"nvrtcGet{what}Size")(program)))
        _checked(getattr(nvrtc, f"nvrtcGet{what}")(program, text))
        return bytes(text)

    try:
        for name in name_expressions:
            _checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
        encoded = [argument.encode() for argument in arguments]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = given("ProgramLog").rstrip(b"\0").decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise NvrtcError(f"{status.name} for {arch}:\n{log}")
        names = {
            name: _checked(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode()
            for name in name_expressions
        }
        return given("PTX" if arch.startswith("compute") else "CUBIN"), names, log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _checked(result: tuple[Any, ...]) -> Any:
    """Split the status off a result of cuda-bindings and raise if it is an error."""
    status, *values = result
    if status.value != 0:
        raise NvrtcError(status.name)
    return values[0] if values else None


@functools.cache
def _include_folders() -> list[Path]:
    folders = []
    for wheel, header in zip(wheels()[1:], _HEADERS.values(), strict=True):
        files = importlib.metadata.files(wheel) or []
        found = [file for file in files if file.as_posix().endswith(header)]
        if not found:
            raise NvrtcError(f"{wheel} has no {header}")
        folder = Path(str(found[0].locate())).parents[header.count("/") - 1]
        folders += [folder, folder / "cccl"]
    return list(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def _usage(log: str) -> dict[str, KernelUsage]:
    """Read ptxas's report; keyed by mangled name."""
    result = {}
    for part in re.split(r"Compiling entry function '", log)[1:]:
        name = part.partition("'")[0]
        # By name, because functions that are not inlined have their own properties.
        frame = re.search(
            rf"Function properties for {re.escape(name)}\n.*?(\d+) bytes stack frame, "
            r"(\d+) bytes spill stores, (\d+) bytes spill loads",
            part,
        )
        registers = re.search(r"Used (\d+) registers.*", part)
        if frame is None or registers is None:
            raise NvrtcError(f"cannot read the report of ptxas on {name}:\n{log}")
        shared = re.search(r"(\d+) bytes smem", registers[0])
        result[name] = KernelUsage(
            registers=int(registers[1]),
            stack=int(frame[1]),
            spill_stores=int(frame[2]),
            spill_loads=int(frame[3]),
            shared=int(shared[1]) if shared else 0,
        )
    return result
