"""Compile a CUDA source string with g++ and run its kernels on the host."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import needs

from without_a_gpu.kernel import Kernel, Launch, full_size

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ORDERS = ("forward", "reverse")
"""The orders of threads, warps and blocks that have a name."""

_HERE = Path(__file__).parent
_HEADER = "cuda_on_cpu.h"
_HEADERS = sorted(_HERE.glob("*.h")) + sorted((_HERE / "stubs").glob("*.h"))
# g++ needs most of the time, not the code that it makes.
_FLAGS = (
    *("-O0", "-w", "-fno-exceptions", "-fno-rtti"),
    *("-ffp-contract=off", "-fno-strict-aliasing"),
    # The fortified longjmp treats a switch between fibers as an error.
    "-U_FORTIFY_SOURCE",
)
# Without the C++ library, which is a third of the link time; not with other flags, whose code may
# need it.
_LIBRARIES = ("-nodefaultlibs", "-lgcc", "-lm", "-lc")
# Modules must not share the statics of their templates.
_CODE_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fno-gnu-unique")
_DYNAMIC_SHARED = re.compile(
    r"\bextern\s+__shared__\s+(?:(?:__align__|alignas)\s*\([^()]*\)\s*)?"
    r"([\w:<>, ]+?)\s*\b(\w+)\s*\[\s*\]\s*;"
)

# The most recently launched libraries keep their fibers: two mappings each, of about 65,000 that a
# process may have.
_MOST_LIBRARIES, _MOST_FIBERS = 8, 1024

_LAUNCH = struct.Struct("@3I3IQi4x")


class CompileError(RuntimeError):
    """g++ refused the source; the message is g++'s."""


class KernelError(RuntimeError):
    """A launch went wrong: a barrier or warp operation not reached by all, a trap."""


class Parameter(ctypes.Structure):
    """
    A parameter of a kernel, from the compiler.

    Kinds: ``p`` pointer, ``i`` integer, ``f`` floating, ``h`` half, ``b`` bfloat16, ``v`` void,
    ``s`` anything else. For a pointer, the target is what it points to.
    """

    _fields_ = [
        ("kind", ctypes.c_char),
        ("target_kind", ctypes.c_char),
        ("size", ctypes.c_int),
        ("target_size", ctypes.c_int),
    ]


class _CEntry(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("parameter_count", ctypes.c_int),
        ("parameters", ctypes.POINTER(Parameter)),
        ("call", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
    ]


def have_gxx() -> str | None:
    """Return None if kernels can be compiled and run here, else why not."""
    if not sys.platform.startswith("linux"):
        return "the CUDA-on-CPU harness needs Linux"
    if shutil.which("g++") is None:
        return "g++ is not installed"
    return None


def compile_module(
    source: str,
    name_expressions: Sequence[str],
    *,
    options: Sequence[str] = (),
    order: str | int = "forward",
) -> Module:
    """Compile a CUDA source string for the host.

    Parameters
    ----------
    source : str
        CUDA C++, as given to ``cupy.RawModule``. ``CUDA_ON_CPU`` is defined while it is compiled,
        ``__CUDA_ARCH__`` is not.
    name_expressions : sequence of str
        Every kernel wanted, such as ``"scale<float>"``; ``extern "C"`` kernels too.
    options : sequence of str
        NVRTC options. Definitions and include folders are obeyed, the others ignored.
    order : {"forward", "reverse"} or int
        The order in which threads, warps and blocks get their turn: a number is the seed of a
        random one of warps and blocks. A result that depends on it is wrong.

    Returns
    -------
    Module

    Raises
    ------
    CompileError
        With the compiler's message.
    """
    if reason := have_gxx():
        raise CompileError(reason)
    # The named orders, then the seeds.
    number = ORDERS.index(order) if isinstance(order, str) else len(ORDERS) + order
    return Module(_load(build(source, tuple(name_expressions), tuple(options))), number)


class Module:
    """A compiled source string; made by :func:`compile_module`."""

    def __init__(self, library: ctypes.PyDLL, order: int) -> None:
        self._kernels = {
            entry.name.decode(): HostKernel(library, number, entry, order)
            for number, entry in enumerate(entries(library))
        }

    def get_function(self, name: str) -> HostKernel:
        """Return the kernel with one of the names given to :func:`compile_module`."""
        return self._kernels[name]


class HostKernel(Kernel):
    """A kernel on fibers of this thread."""

    def __init__(self, library: ctypes.PyDLL, number: int, entry: _CEntry, order: int) -> None:
        self.name = entry.name.decode()
        self.parameters = entry.parameters[: entry.parameter_count]
        self.sizes = [p.size for p in self.parameters]
        self._library, self._number, self._order = library, number, order

    def launch_at(self, launch: Launch) -> None:
        """
        Launch; the allocations are not used.

        Raises
        ------
        ValueError
            If a size exceeds CUDA's limits.
        KernelError
            If the kernel waits for threads that never come, or traps.
        """
        grid, block, params, _, shared_mem = launch
        packed = _LAUNCH.pack(*full_size(grid, block), shared_mem, self._order)
        _keep_fibers(self._library)
        message = self._library.cuda_on_cpu_launch(self._number, packed, ctypes.c_void_p(params))
        if message is not None:
            if b"too many threads are alive" in message:
                needs.tool(too_few_mappings(prod(grid) * prod(block)))
            raise KernelError(f"{self.name}: {message.decode()}")


def too_few_mappings(threads: int, file: str = "/proc/sys/vm/max_map_count") -> str | None:
    """Return why so many threads cannot be alive at once: each has a stack and a guard page."""
    try:
        most = int(Path(file).read_text())
    except OSError:
        return None
    needed = 2 * threads
    return f"needs vm.max_map_count above {needed}: it is {most}" if most <= needed else None


_launched: dict[ctypes.PyDLL, None] = {}
"""The libraries that keep their fibers, the one launched last at the end."""


def _keep_fibers(library: ctypes.PyDLL) -> None:
    if library in _launched:
        del _launched[library]
    else:
        library.cuda_on_cpu_keep_fibers(_MOST_FIBERS)
    _launched[library] = None
    while len(_launched) > _MOST_LIBRARIES:
        longest_ago = next(iter(_launched))
        del _launched[longest_ago]
        longest_ago.cuda_on_cpu_keep_fibers(0)


def entries(library: ctypes.CDLL) -> Sequence[_CEntry]:
    """Return the kernels of a compiled library and their signatures, in its order."""
    count = ctypes.c_int.in_dll(library, "cuda_on_cpu_entry_count").value
    return (_CEntry * count).in_dll(library, "cuda_on_cpu_entries")


def build(
    source: str, names: tuple[str, ...], options: tuple[str, ...], *, flags: tuple[str, ...] = ()
) -> Path:
    """Return the compiled library, from the cache; `flags` are the first flags of g++."""
    text, libraries = _translation_unit(source, names), () if flags else _LIBRARIES
    # CUDA's headers, to which the options may lead, are not for g++.
    flags = (
        *flags,
        f"-I{_HERE}",
        f"-I{_HERE / 'stubs'}",
        *_gxx_options(options),
        *_FLAGS,
        "-shared",
        *_CODE_FLAGS,
    )
    path = kept(".so", text, flags, _fingerprint())
    if path.exists():
        return path
    command = ["g++", f"-I{_precompiled_header()}", *flags, "-x", "c++", "-", *libraries]
    return compiled(path, command, text)


@functools.cache
def _precompiled_header() -> Path:
    """
    Return a folder with the precompiled header, which saves a quarter of the work.

    If the flags differ in more than definitions, g++ reads the header itself.
    """
    flags = (f"-I{_HERE}", f"-I{_HERE / 'stubs'}", *_gxx_options(()), *_FLAGS, *_CODE_FLAGS)
    folder = kept(".header", flags, _fingerprint())
    folder.mkdir(exist_ok=True)
    compiled(
        folder / f"{_HEADER}.gch", ["g++", *flags, "-x", "c++-header", str(_HERE / _HEADER)], ""
    )
    return folder


def compiled(path: Path, command: Sequence[str], text: str) -> Path:
    """Return the file that a compiler makes of a text, from the cache if possible."""
    with locked(path):
        if path.exists():
            return path
        # Built under a temporary name and then renamed: a process that finds the file without
        # the lock sees it complete or not at all.
        unfinished = path.with_name(f"{uuid.uuid4().hex}.tmp")
        done = subprocess.run(
            [*command, "-o", str(unfinished)],
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},  # messages in plain ASCII
        )
        if done.returncode != 0:
            unfinished.unlink(missing_ok=True)
            raise CompileError(f"{command[0]} cannot compile it:\n{done.stderr}")
        return unfinished.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes and threads from building a file of the cache while this one does."""
    with open(f"{path}.lock", "w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _translation_unit(source: str, names: tuple[str, ...]) -> str:
    def declare_pointer(match: re.Match[str]) -> str:
        lines = "\n" * match[0].count("\n")  # keep the line numbers
        # At namespace scope the address would be taken before the launch. The first
        # statement is there to make g++ refuse that, with its name as the message.
        return (
            f"cuda_on_cpu::dynamic_shared_is_allowed_in_functions_only; {match[1]}* const "
            f"{match[2]} = static_cast<{match[1]}*>(cuda_on_cpu::dynamic_shared());{lines}"
        )

    rewritten = _DYNAMIC_SHARED.sub(declare_pointer, source)
    entries = "".join(f'  cuda_on_cpu::make_entry("{name}", {name}),\n' for name in names)
    exported = '__attribute__((visibility("default")))'
    return (
        f'#include "{_HEADER}"\n#line 1 "kernel.cu"\n{rewritten}\n#line 1 "entries"\n'
        f'extern "C" {{\n'
        f"{exported} cuda_on_cpu::Entry cuda_on_cpu_entries[] = {{\n{entries}}};\n"
        f"{exported} int cuda_on_cpu_entry_count = {len(names)};\n"
        f"{exported} const char* cuda_on_cpu_launch(\n"
        f"    int number, const cuda_on_cpu::Launch* launch, void** arguments) {{\n"
        f"  return cuda_on_cpu::run(cuda_on_cpu_entries[number], *launch, arguments);\n"
        f"}}\n"
        f"{exported} void cuda_on_cpu_keep_fibers(int count) {{\n"
        f"  cuda_on_cpu::most_kept_fibers = count;\n"
        f"  cuda_on_cpu::release_fibers();\n"
        f"}}\n"
        f"}}\n"
    )


def _gxx_options(options: tuple[str, ...]) -> list[str]:
    """Return definitions and include folders; the other options are for NVRTC's code generation."""
    return [*(o for o in options if o.startswith(("-D", "-U", "-I"))), "-std=c++17"]


@functools.cache
def _fingerprint() -> str:
    """Return everything besides text and flags that a compiled object depends on."""
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version)
    for header in _HEADERS:
        digest.update(header.read_bytes())
    return digest.hexdigest()


def kept(suffix: str, *depends_on: object) -> Path:
    """Return the path of a file that depends on nothing else."""
    key = hashlib.sha256(repr(depends_on).encode()).hexdigest()[:32]
    return cache_folder() / f"{key}{suffix}"


def cache_folder() -> Path:
    """Return the folder for built files; it must belong to this user."""
    folder = Path(tempfile.gettempdir(), f"cuda_on_cpu-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    # Its files are loaded into this process, so it must belong to the user.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that only this user can write to")
    return folder


@functools.cache
def _load(path: Path) -> ctypes.PyDLL:
    # PyDLL keeps the GIL: a module has only one scheduler state.
    library = ctypes.PyDLL(str(path))
    library.cuda_on_cpu_launch.restype = ctypes.c_char_p
    return library
