"""The executor of kernels: the source that NVRTC compiled, built by g++ for fibers."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from pathlib import Path

from without_a_gpu.cuda_on_cpu import runner

from .programs import Program

_KERNEL = Path(__file__).parent / "kernel"
_CHECKED = (
    "-fsanitize=kernel-address",
    *("--param", "asan-globals=0", "--param", "asan-stack=0"),
    *("--param", "asan-instrumentation-with-call-threshold=0"),
    "-g1",
)
_EXTERN_C = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\s*\('
)


def built(program: Program) -> tuple[ctypes.PyDLL, dict[str, str]]:
    """Return a library that checks every memory access, and the kernels' names in the image."""
    names = program.names or {n: n for n in _EXTERN_C.findall(program.source)}
    flags = (
        *_CHECKED,
        f"-I{_KERNEL}",
        *("-include", "cuda_on_cpu.h", "-include", "nvrtc.h", "-include", "checked_kernel.h"),
        f"-DCHECKED_KERNEL_VERSION={_version()}",
    )
    path = runner.build(program.source, tuple(names), program.options, flags=flags)
    return _load(path), names


@functools.cache
def _version() -> str:
    """Return a value that changes with the headers of the kernels."""
    headers = [*_KERNEL.rglob("*.*h"), _KERNEL.parent / "native" / "host.h"]
    return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(headers))).hexdigest()[:16]


@functools.cache
def _load(path: Path) -> ctypes.PyDLL:
    return ctypes.PyDLL(str(path))
