"""
What runs the kernels: an executor makes of a program functions of C, one for each kernel.

That is all that the driver knows of it, so that another executor, one that interprets what NVRTC
made, can stand in its place: ``host.install(executor)``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from without_a_gpu.cuda_on_cpu import runner

from .programs import Program

_KERNEL = Path(__file__).parent / "kernel"
_CHECKED = (
    "-fsanitize=kernel-address",
    *("--param", "asan-globals=0", "--param", "asan-stack=0"),
    *("--param", "asan-instrumentation-with-call-threshold=0"),
    # The fibers need to be told about the other address sanitizer alone.
    *("-U__SANITIZE_ADDRESS__", "-g1"),
)


@dataclass(frozen=True)
class HostKernel:
    """
    A kernel that can be called from C.

    Attributes
    ----------
    name
        In the image.
    run
        The address of ``const char* run(int number, const HostLaunch*, void** arguments)``, which
        runs the kernel and returns null, or what went wrong.
    number
        The first argument of that.
    parameters
        The address of the signature, an array of ``HostParameter``; 0 if it is not known.
    parameter_count
        -1 if the signature is not known.
    """

    name: str
    run: int
    number: int = 0
    parameters: int = 0
    parameter_count: int = -1


Executor: TypeAlias = Callable[[Program], list[HostKernel]]


def gxx(program: Program) -> list[HostKernel]:
    """Build the program's source with g++, for fibers, every access to memory checked."""
    library, names = _library(program)
    run = ctypes.cast(library.cuda_on_cpu_launch, ctypes.c_void_p).value or 0
    return [
        HostKernel(
            names[entry.name.decode()],
            run,
            number,
            ctypes.cast(entry.parameters, ctypes.c_void_p).value or 0,
            entry.parameter_count,
        )
        for number, entry in enumerate(runner.entries(library))
    ]


_EXTERN_C = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\s*\('
)


def _library(program: Program) -> tuple[ctypes.PyDLL, dict[str, str]]:
    names = program.names or {n: n for n in _EXTERN_C.findall(program.source)}
    flags = (
        *_CHECKED,
        f"-I{_KERNEL}",
        *("-include", "cuda_on_cpu.h", "-include", "nvrtc.h", "-include", "checked_kernel.h"),
        f"-DCHECKED_KERNEL_VERSION={_version()}",
    )
    # CuPy 13 says C++11, which the header of the fibers is not.
    options = tuple(o for o in program.options if not o.startswith(("-std", "--std")))
    path = runner.build(program.source, tuple(names), options, flags=flags)
    return _load(path), names


@functools.cache
def _version() -> str:
    """Return what changes when a header changes that the kernels are compiled with."""
    headers = [*_KERNEL.rglob("*.*h"), _KERNEL.parent / "native" / "host.h"]
    return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(headers))).hexdigest()[:16]


@functools.cache
def _load(path: Path) -> ctypes.PyDLL:
    return ctypes.PyDLL(str(path))
