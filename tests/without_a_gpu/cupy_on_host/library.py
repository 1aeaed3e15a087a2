"""Build the C library for the installed CUDA headers and CuPy."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
from pathlib import Path

from without_a_gpu.cuda_on_cpu import runner

_NATIVE = Path(__file__).parent / "native"
_FLAGS = ("-O2", "-fPIC", "-shared", "-std=gnu11", "-Wall", "-Wno-unknown-pragmas", "-Werror")


def packages() -> list[Path]:
    """Return the folders of NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
    return [folder for root in roots for folder in sorted(root.iterdir()) if folder.is_dir()]


def include_folders() -> list[Path]:
    """Return the folders of CUDA's headers."""
    return [p / "include" for p in packages() if (p / "include").is_dir()]


def preload(*names: str) -> None:
    """Load libraries of NVIDIA's wheels, so that CuPy finds them: before 14 it does not look."""
    for name in names:
        for path in (p for folder in packages() for p in sorted((folder / "lib").glob(f"{name}*"))):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def extension(name: str) -> Path:
    """Return the file of one of CuPy's extensions, without loading it."""
    folder, _, stem = name.rpartition("/")
    spec = importlib.util.find_spec("cupy_backends")
    if spec is None or spec.origin is None:
        raise ImportError("CuPy is not installed: pip install 'cupy-cuda13x[ctk]'")
    return next((Path(spec.origin).parent / folder).glob(f"{stem}.*.so"))


def functions(path: Path, kinds: str, prefix: str, *options: str) -> dict[str, int]:
    """Return the addresses of a file's symbols of some of nm's kinds; 0 for undefined ones."""
    command = ["nm", *options, str(path)]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pattern = rf"^([0-9a-f]*) +[{kinds}] ({prefix}[A-Z]\w*)"
    return {m[2]: int(m[1] or "0", 16) for m in re.finditer(pattern, table, re.MULTILINE)}


def _stubs(wanted: set[str]) -> str:
    """Return C source of weak functions that report that they are missing."""
    lines = (
        f"__attribute__((weak)) int {name}(void) {{\n"
        f'  return host_fail({15 if name.startswith("cublas") else 801}, "no {name} here");\n}}\n'
        for name in sorted(wanted)
    )
    return '#include "host.h"\n' + "".join(lines)


def build() -> Path:
    """Return the library, built if it is not yet."""
    sources = sorted(_NATIVE.glob("*.c"))
    wanted = {plain(n) for n in functions(extension("cuda/api/runtime"), "tT", "cuda")}
    wanted |= functions(extension("cuda/libs/cublas"), "U", "cublas", "-D").keys()
    stubs = _stubs(wanted)
    includes = [f"-I{p}" for p in (_NATIVE, *include_folders())]
    command = ["gcc", *_FLAGS, *includes]
    content = [p.read_text() for p in sorted(_NATIVE.rglob("*.[ch]"))]
    folder = runner.kept("", stubs, command, content)
    folder.mkdir(exist_ok=True)
    # The name that CuPy's extensions look for.
    path = folder / "libcuda.so.1"
    end = ["-Wl,-soname,libcuda.so.1", "-ldl", "-lpthread"]
    return runner.compiled(path, [*command, *map(str, sources), "-x", "c", "-", *end], stubs)


def plain(name: str) -> str:
    """Return a runtime function's name without the mark of its default stream."""
    return name.removesuffix("_ptsz").removesuffix("_ptds")


def cache() -> Path:
    """Return the folder for built files; it must belong to this user."""
    folder = runner.cache_folder() / "cupy_on_host"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder
