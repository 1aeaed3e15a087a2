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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ORDERS = ("forward", "reverse")
"""The orders of threads, warps and blocks that have a name."""

SOURCE_NAME = "kernel.cu"
"""What compiler messages and sanitizer reports call the source string."""

_HERE = Path(__file__).parent
_HEADER = "cuda_on_cpu.h"
_HEADERS = sorted(_HERE.glob("*.h")) + sorted((_HERE / "stubs").glob("*.h"))
_FLAGS = (
    *("-O1", "-w", "-fno-exceptions", "-fno-rtti"),
    *("-ffp-contract=off", "-fno-strict-aliasing"),
    # The fortified longjmp takes going from fiber to fiber for an error.
    "-U_FORTIFY_SOURCE",
)
# Modules must not share the statics of their templates.
_CODE_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fno-gnu-unique")
_LIBRARY_FLAGS = ("-shared", *_CODE_FLAGS)
_SANITIZED_FLAGS = (
    *("-g1", "-fno-omit-frame-pointer"),
    # With address randomization the program could land where the sanitizer allocates.
    *("-no-pie", "-fno-pie"),
)
_SANITIZERS = {
    "address": ("-fsanitize=address,bounds-strict", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}

_DYNAMIC_SHARED = re.compile(
    r"\bextern\s+__shared__\s+(?:(?:__align__|alignas)\s*\([^()]*\)\s*)?"
    r"([\w:<>, ]+?)\s*\b(\w+)\s*\[\s*\]\s*;"
)

_STATIC_SHARED = re.compile(
    r"(?<!extern )\b__shared__\s+(?:(?:__align__|alignas)\s*\([^()]*\)\s*)?"
    r"([\w:<>, ]+?)\s*\b(\w+)\s*((?:\[[^\[\];]+\]\s*)*);"
)

_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_THREADS = 1024
_DEFAULT_SHARED_BYTES = 48 * 1024

_KERNEL_ERROR_CODE = 3  # of sanitized_main.h

# The libraries that were launched last keep their fibers: two mappings each, of the 65,000 or so
# that a process may have.
_MOST_LIBRARIES, _MOST_FIBERS = 8, 1024

_LAUNCH = struct.Struct("@3I3IQi4x")
_REQUEST_HEAD = struct.Struct("@qqqq")
_REQUEST_ARGUMENT = struct.Struct("@qqq")
_REQUEST_PATCH = struct.Struct("@qqqq")


class CompileError(RuntimeError):
    """g++ refused the source; the message is g++'s."""


class KernelError(RuntimeError):
    """A launch went wrong: a barrier or warp operation not reached by all, a trap."""


class SanitizerError(KernelError):
    """A sanitizer stopped the kernel.

    Attributes
    ----------
    report : str
        The sanitizer's whole report.
    line : int or None
        The line of the source string, counted from one.
    """

    def __init__(self, message: str, report: str, line: int | None) -> None:
        super().__init__(message)
        self.report = report
        self.line = line


@dataclass(frozen=True)
class Pointer:
    """The address of an array plus an offset in bytes, like ``cupy.cuda.MemoryPointer``."""

    array: np.ndarray
    offset: int = 0

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.array, self.offset + offset)


@dataclass(frozen=True)
class Structure:
    """A structure that is passed by value: its bytes, and what it has pointers to, by offset."""

    data: bytes
    pointers: dict[int, Pointer]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel, as the compiler sees it.

    Kinds: ``p`` pointer, ``i`` integer, ``f`` floating, ``h`` half, ``b`` bfloat16, ``v`` void,
    ``s`` anything else. For a pointer, the target is what it points to.
    """

    kind: str
    size: int
    target_kind: str
    target_size: int

    def __str__(self) -> str:
        if self.kind == "p":
            return f"pointer to {_type_name(self.target_kind, self.target_size)}"
        return _type_name(self.kind, self.size)


class _CParameter(ctypes.Structure):
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
        ("parameters", ctypes.POINTER(_CParameter)),
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


@functools.cache
def have_sanitizer(sanitize: str = "address") -> str | None:
    """Return None if a sanitizer can work here, else why not."""
    if reason := have_gxx():
        return reason
    for library in {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}[sanitize]:
        command = ["g++", f"-print-file-name={library}"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not os.path.isabs(found):
            return f"g++ has no {library}"
    if sanitize == "thread":
        # Whether it may lay out its memory is a matter of the system, too.
        program = build("__global__ void nothing() {}", ("nothing",), (), sanitize="thread")
        done = subprocess.run([program], capture_output=True, text=True)
        if "ThreadSanitizer" in done.stderr:
            return f"g++'s thread sanitizer does not start: {done.stderr.splitlines()[0]}"
    return None


def compile_module(
    source: str,
    name_expressions: Sequence[str],
    *,
    options: Sequence[str] = (),
    sanitize: str | None = None,
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
        NVRTC options. Definitions, include folders and the language standard are obeyed, options
        about code generation are ignored.
    sanitize : {"address", "thread"}, optional
        Run each launch in a child process under a sanitizer of g++: that of addresses and bounds,
        or that of threads, which finds accesses that no barrier orders, in whatever order they run.
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
    if order not in ORDERS and not (isinstance(order, int) and order >= 0):
        raise ValueError(f"order must be 'forward', 'reverse' or a seed, not {order!r}")
    if reason := have_sanitizer(sanitize) if sanitize else have_gxx():
        raise CompileError(reason)
    names = tuple(name_expressions)
    path = build(source, names, tuple(options), sanitize=sanitize)
    # A sanitized program runs one launch and ends; the signatures are read from the library.
    library = build(source, names, tuple(options)) if sanitize else path
    return Module(_load(library), path if sanitize else None, _number(order), source)


def _number(order: str | int) -> int:
    """Return an order as the C++ side has it: those with a name, then the seeds."""
    return ORDERS.index(order) if isinstance(order, str) else len(ORDERS) + order


class Module:
    """A compiled source string; made by :func:`compile_module`."""

    def __init__(
        self, library: ctypes.PyDLL, program: Path | None, order: int, source: str
    ) -> None:
        self._library = library
        self._program = program
        self._order = order
        self._source = source
        self._parameters = {}
        for number, entry in enumerate(entries(library)):
            parameters = [
                Parameter(p.kind.decode(), p.size, p.target_kind.decode(), p.target_size)
                for p in entry.parameters[: entry.parameter_count]
            ]
            self._parameters[entry.name.decode()] = number, parameters

    def get_function(self, name: str) -> Kernel:
        """Return the kernel with one of the names given to :func:`compile_module`."""
        if name not in self._parameters:
            raise KeyError(f"no kernel {name!r}; compiled were {list(self._parameters)}")
        number, parameters = self._parameters[name]
        return Kernel(name, parameters, self._launcher(number, name), self._order)

    def _launcher(self, number: int, name: str) -> Callable[[bytes, list[_Value]], None]:
        if self._program is None:
            return functools.partial(_launch_here, self._library, number, name)
        return functools.partial(_launch_sanitized, self._program, number, name, self._source)


class Kernel:
    """A kernel that is called as a ``cupy.RawKernel`` is.

    Attributes
    ----------
    name : str
    parameters : list of Parameter
        The signature of the C++ function.
    max_dynamic_shared_size_bytes : int
        The most ``shared_mem`` accepted; settable, as on ``cupy.RawKernel``.
    """

    def __init__(
        self,
        name: str,
        parameters: list[Parameter],
        launch: Callable[[bytes, list[_Value]], None],
        order: int,
    ) -> None:
        self.name = name
        self.parameters = parameters
        self.max_dynamic_shared_size_bytes = _DEFAULT_SHARED_BYTES
        self._launch = launch
        self._order = order

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
    ) -> None:
        """Run the kernel and wait for it.

        Parameters
        ----------
        grid, block : tuple of int
            As for CuPy: up to three numbers, missing ones and zeros count as one.
        args : sequence
            A NumPy array of any size, or a :class:`Pointer`, stands for device memory and passes
            its address; None passes a null pointer. Scalars are passed as CuPy passes them: bool
            as 1 byte, int as 8-byte integer, float as double, NumPy scalars as their dtype.
        shared_mem : int
            Bytes of dynamic shared memory.

        Raises
        ------
        TypeError
            If an argument has not the kind and size of the parameter. CUDA would not notice.
        ValueError
            If a size exceeds CUDA's limits.
        KernelError
            If the kernel waits for threads that never come, or traps.
        SanitizerError
            In a module compiled with ``sanitize``, if a sanitizer stopped the kernel.
        """
        sizes = (*_dimensions("grid", grid, _MAX_GRID), *_dimensions("block", block, _MAX_BLOCK))
        threads = sizes[3] * sizes[4] * sizes[5]
        if threads > _MAX_THREADS:
            raise ValueError(f"a block of {threads} threads; at most {_MAX_THREADS} are possible")
        if not 0 <= shared_mem <= self.max_dynamic_shared_size_bytes:
            raise ValueError(
                f"{shared_mem} bytes of shared memory; at most "
                f"{self.max_dynamic_shared_size_bytes} are possible"
            )
        if len(args) != len(self.parameters):
            raise TypeError(
                f"{self.name} takes {len(self.parameters)} arguments, {len(args)} were given"
            )
        values = []
        for number, (argument, parameter) in enumerate(zip(args, self.parameters, strict=True)):
            try:
                values.append(_convert(argument, parameter))
            except TypeError as error:
                raise TypeError(f"{self.name}, argument {number}: {error}") from None
        self._launch(_LAUNCH.pack(*sizes, shared_mem, self._order), values)


@dataclass(frozen=True)
class _Value:
    """An argument as it goes to the kernel: bytes, or an address in an array (None: null)."""

    data: bytes | None = None
    array: np.ndarray | None = None
    address: int = 0
    inside: tuple[tuple[int, Pointer], ...] = ()
    """The pointers in these bytes, with their offsets."""


def _dimensions(what: str, sizes: tuple[int, ...], limits: tuple[int, ...]) -> tuple[int, ...]:
    if not isinstance(sizes, tuple):
        raise TypeError(f"{what} must be a tuple, not {type(sizes).__name__}")
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{what} {sizes} must have one to three numbers")
    full = tuple(max(1, int(n)) for n in (*sizes, 1, 1)[:3])
    if any(n > limit for n, limit in zip(full, limits, strict=True)):
        raise ValueError(f"{what} {sizes} exceeds CUDA's limits {limits}")
    return full


def _type_name(kind: str, size: int) -> str:
    if kind == "i":
        return f"{8 * size}-bit integer"
    if kind == "f":
        return {4: "float", 8: "double"}.get(size, f"{8 * size}-bit floating number")
    names = {"h": "__half", "b": "__nv_bfloat16", "v": "void", "p": "a pointer"}
    return names.get(kind, f"{size}-byte structure")


@functools.lru_cache(maxsize=64)
def _dtype_kind(dtype: np.dtype) -> str:
    if dtype.name == "bfloat16":
        return "b"
    if dtype == np.float16:
        return "h"
    return {"b": "i", "i": "i", "u": "i", "f": "f"}.get(dtype.kind, "s")


def _convert(argument: Any, parameter: Parameter) -> _Value:
    """Turn an argument into what CuPy would pass, and check it against the parameter."""
    if argument is None or isinstance(argument, (np.ndarray, Pointer)):
        if parameter.kind != "p":
            given = "None" if argument is None else f"a {type(argument).__name__}"
            raise TypeError(f"the parameter is a {parameter}, {given} passes a pointer")
        if argument is None:
            return _Value()
        if isinstance(argument, Pointer):
            address = argument.array.ctypes.data + argument.offset
            return _Value(array=argument.array, address=address)
        if not may_point_to(argument.dtype, parameter):
            raise TypeError(f"the parameter is a {parameter}, the array is {argument.dtype}")
        return _Value(array=argument, address=argument.ctypes.data)

    if isinstance(argument, Structure):
        if (parameter.kind, parameter.size) != ("s", len(argument.data)):
            size = len(argument.data)
            raise TypeError(f"the parameter is a {parameter}, a structure of {size} bytes is given")
        return _Value(data=argument.data, inside=tuple(argument.pointers.items()))
    # CuPy tells Python scalars by their exact type, and makes integers from 2**63 on unsigned.
    if type(argument) is int:
        scalar = np.asarray(argument, np.int64 if argument < 2**63 else np.uint64)
    elif type(argument) in (bool, float, complex) or isinstance(argument, np.generic):
        scalar = np.asarray(argument)
    else:
        raise TypeError(f"CuPy cannot pass a {type(argument).__name__}")
    kind = _dtype_kind(scalar.dtype)
    if (kind, scalar.itemsize) != (parameter.kind, parameter.size):
        given = _type_name(kind, scalar.itemsize)
        raise TypeError(
            f"the parameter is a {parameter}, a {type(argument).__name__} passes a {given}"
        )
    return _Value(data=scalar.tobytes())


def may_point_to(dtype: np.dtype, parameter: Parameter) -> bool:
    """Return whether an array of a dtype may be what a parameter points to."""
    kind, size = parameter.target_kind, parameter.target_size
    # Nothing is known about void, and an array of plain bytes may hold anything.
    if kind == "v" or dtype == np.uint8 or (dtype.kind == "V" and dtype.name != "bfloat16"):
        return True
    if kind == "p":
        return dtype.kind in "iu" and dtype.itemsize == 8
    # NumPy itself has no bfloat16.
    if kind == "b" and dtype == np.uint16:
        return True
    return (_dtype_kind(dtype), dtype.itemsize) == (kind, size)


def _launch_here(
    library: ctypes.PyDLL, number: int, name: str, launch: bytes, values: list[_Value]
) -> None:
    storage: list[Any] = [
        ctypes.c_void_p(value.address)
        if value.data is None
        else ctypes.create_string_buffer(value.data, len(value.data))
        for value in values
    ]
    pointers = (ctypes.c_void_p * len(storage))(*map(ctypes.addressof, storage))
    _keep_fibers(library)
    message = library.cuda_on_cpu_launch(number, launch, pointers)
    if message is not None:
        raise KernelError(f"{name}: {message.decode()}")


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


def _launch_sanitized(
    program: Path, number: int, name: str, source: str, launch: bytes, values: list[_Value]
) -> None:
    inside = [p.array for value in values for _, p in value.inside]
    arrays = inside + [value.array for value in values if value.array is not None]
    extents = _merged([extent(array) for array in arrays])
    buffers = [ctypes.string_at(low, high - low) for low, high in extents]
    arguments, patches = [], []

    def place_of(array: np.ndarray, address: int) -> tuple[int, int]:
        """Return the number of the buffer that has an array, and an offset in it."""
        first, end = extent(array)
        index = next(i for i, (low, high) in enumerate(extents) if low <= first and end <= high)
        return index, address - extents[index][0]

    for value in values:
        if value.data is not None:
            for offset, p in value.inside:
                place = place_of(p.array, p.array.ctypes.data + p.offset)
                patches.append((len(buffers), offset, *place))
            arguments.append((0, len(buffers), 0))
            buffers.append(value.data)
        elif value.array is None:
            arguments.append((1, -1, 0))
        else:
            arguments.append((1, *place_of(value.array, value.address)))

    with tempfile.TemporaryDirectory() as folder:
        request, result = Path(folder, "request"), Path(folder, "result")
        with request.open("wb") as file:
            head = number, len(buffers), len(arguments), len(patches)
            file.write(_REQUEST_HEAD.pack(*head) + launch)
            for buffer in buffers:
                file.write(struct.pack("@Q", len(buffer)))
                file.write(buffer)
            for argument in arguments:
                file.write(_REQUEST_ARGUMENT.pack(*argument))
            for patch in patches:
                file.write(_REQUEST_PATCH.pack(*patch))
        environment = {
            **os.environ,
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:print_legend=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "TSAN_OPTIONS": "halt_on_error=1:report_thread_leaks=0:report_signal_unsafe=0",
        }
        done = subprocess.run(
            [program, request, result],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
        )
        if done.returncode == _KERNEL_ERROR_CODE:
            raise KernelError(f"{name}: {done.stderr}")
        if done.returncode != 0:
            raise _sanitizer_error(name, done.stderr, source)
        data = result.read_bytes()

    offset = 0
    for low, high in extents:
        before, after = ctypes.string_at(low, high - low), data[offset : offset + high - low]
        # Arrays that the kernel only reads may be read-only.
        if before != after:
            ctypes.memmove(low, after, high - low)
        offset += high - low


def _sanitizer_error(name: str, report: str, source: str) -> SanitizerError:
    place = re.search(rf"{re.escape(SOURCE_NAME)}:(\d+)", report)
    if place is None:
        return SanitizerError(f"{name}:\n{report}", report, None)
    line = int(place[1])
    text = source.splitlines()[line - 1].strip()
    return SanitizerError(f"{name}, line {line}: {text}\n{report}", report, line)


def extent(array: np.ndarray) -> tuple[int, int]:
    """Return the first address of an array and the one behind its last byte."""
    low = high = array.ctypes.data
    if array.size == 0:
        return low, high
    for size, stride in zip(array.shape, array.strides, strict=True):
        low += min(0, (size - 1) * stride)
        high += max(0, (size - 1) * stride)
    return low, high + array.itemsize


def _merged(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Unite extents that overlap: views of one array must stay in one buffer."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(set(extents)):
        if result and low < result[-1][1]:
            result[-1] = result[-1][0], max(high, result[-1][1])
        else:
            result.append((low, high))
    return result


def entries(library: ctypes.CDLL) -> Sequence[_CEntry]:
    """Return the kernels of a compiled library and their signatures, as they lie in it."""
    count = ctypes.c_int.in_dll(library, "cuda_on_cpu_entry_count").value
    return (_CEntry * count).in_dll(library, "cuda_on_cpu_entries")


def build(
    source: str,
    names: tuple[str, ...],
    options: tuple[str, ...],
    *,
    sanitize: str | None = None,
    flags: tuple[str, ...] = (),
) -> Path:
    """
    Return the compiled library, or for a sanitized module the program, from the cache.

    `flags` go to g++ as they are, in front of all others.
    """
    text = _translation_unit(source, names, sanitize)
    # The headers of CUDA that the options may lead to are not for g++.
    flags = (
        *flags,
        f"-I{_HERE}",
        f"-I{_HERE / 'stubs'}",
        *_gxx_options(options),
        *_FLAGS,
        *((*_SANITIZERS[sanitize], *_SANITIZED_FLAGS) if sanitize else _LIBRARY_FLAGS),
    )
    key = hashlib.sha256(repr((text, flags, _fingerprint())).encode()).hexdigest()[:32]
    folder = cache_folder()
    path = folder / (key if sanitize else f"{key}.so")
    if path.exists():
        return path
    with locked(path):
        if not path.exists():
            first = () if sanitize else (f"-I{_precompiled_header()}",)
            _compile(["g++", *first, *flags, "-x", "c++", "-"], text, names, path)
    return path


@functools.cache
def _precompiled_header() -> Path:
    """
    Return a folder with the header as g++ has it after parsing, a quarter of the work.

    Where the flags differ in more than definitions, g++ takes the header itself.
    """
    flags = (f"-I{_HERE}", f"-I{_HERE / 'stubs'}", *_gxx_options(()), *_FLAGS, *_CODE_FLAGS)
    key = hashlib.sha256(repr((flags, _fingerprint())).encode()).hexdigest()[:32]
    folder = cache_folder() / f"{key}.header"
    folder.mkdir(exist_ok=True)
    path = folder / f"{_HEADER}.gch"
    with locked(path):
        if not path.exists():
            command = ["g++", *flags, "-x", "c++-header", str(_HERE / _HEADER)]
            _compile(command, "", (_HEADER,), path)
    return folder


def _compile(command: list[str], text: str, names: tuple[str, ...], path: Path) -> None:
    # Built under a name of its own and then renamed: who does not ask for the lock, as one that
    # finds the file, sees all or nothing.
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
        raise CompileError(f"g++ cannot compile {', '.join(names)}:\n{done.stderr}")
    unfinished.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes and threads from building a file of the cache while this one does."""
    with open(f"{path}.lock", "w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _translation_unit(source: str, names: tuple[str, ...], sanitize: str | None) -> str:
    def declare_pointer(match: re.Match[str]) -> str:
        lines = "\n" * match[0].count("\n")  # keep the line numbers
        # At namespace scope the address would be taken before the launch. The first
        # statement is there to make g++ refuse that, with its name as the message.
        return (
            f"cuda_on_cpu::dynamic_shared_is_allowed_in_functions_only; {match[1]}* const "
            f"{match[2]} = static_cast<{match[1]}*>(cuda_on_cpu::dynamic_shared());{lines}"
        )

    def declare_reference(match: re.Match[str]) -> str:
        kind, name, sizes = match.groups()
        lines = "\n" * match[0].count("\n")
        return (
            f"typedef {kind} type_of_{name}{sizes}; static char key_of_{name}; type_of_{name}& "
            f"{name} = *static_cast<type_of_{name}*>("
            f"cuda_on_cpu::static_shared(&key_of_{name}, sizeof(type_of_{name})));{lines}"
        )

    rewritten = _DYNAMIC_SHARED.sub(declare_pointer, source)
    if sanitize == "thread":
        rewritten = _STATIC_SHARED.sub(declare_reference, rewritten)
    entries = "".join(f'  cuda_on_cpu::make_entry("{name}", {name}),\n' for name in names)
    exported = '__attribute__((visibility("default")))'
    text = (
        f'#include "{_HEADER}"\n#line 1 "{SOURCE_NAME}"\n{rewritten}\n#line 1 "entries"\n'
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
    if sanitize:
        text += (
            '#include "sanitized_main.h"\n'
            "int main(int count, char** argv) {\n"
            "  if (count < 3) return 0;\n"
            "  return cuda_on_cpu::run_request(cuda_on_cpu_entries, argv[1], argv[2]);\n"
            "}\n"
        )
    return text


def _gxx_options(options: tuple[str, ...]) -> list[str]:
    """Translate NVRTC's options; raise ValueError for one that is not known here."""
    long_names = {
        "--std": "-std",
        "--define-macro": "-D",
        "--undefine-macro": "-U",
        "--include-path": "-I",
    }
    ignored = (
        "-arch", "--gpu-architecture", "--ptxas-options", "-Xptxas", "--maxrregcount",
        "-maxrregcount", "--use_fast_math", "-use_fast_math", "--fmad", "-fmad", "--ftz", "-ftz",
        "--prec-div", "-prec-div", "--prec-sqrt", "-prec-sqrt", "-lineinfo",
        "--generate-line-info", "--extra-device-vectorization",
        "--device-as-default-execution-space",
    )  # fmt: skip
    result = []
    for option in options:
        name, _, value = option.partition("=")
        if name in ignored:
            continue
        if name in long_names:
            separator = "=" if name == "--std" else ""
            result.append(f"{long_names[name]}{separator}{value}")
        elif option.startswith(("-D", "-U", "-I", "-std=")):
            result.append(option)
        else:
            raise ValueError(f"the CUDA-on-CPU harness does not know the option {option!r}")
    if not any(option.startswith("-std=") for option in result):
        result.append("-std=c++17")
    return result


@functools.cache
def _fingerprint() -> str:
    """Return what a compiled object depends on besides its own text and flags."""
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version)
    for header in _HEADERS:
        digest.update(header.read_bytes())
    return digest.hexdigest()


def cache_folder() -> Path:
    """Return the folder for what is built, which is this user's own."""
    folder = Path(tempfile.gettempdir(), f"cuda_on_cpu-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    # What lies there is loaded into this process: it must be the user's own.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that only this user can write to")
    return folder


@functools.cache
def _load(path: Path) -> ctypes.PyDLL:
    # PyDLL keeps the interpreter locked: the scheduler's state exists once in a module.
    library = ctypes.PyDLL(str(path))
    library.cuda_on_cpu_launch.restype = ctypes.c_char_p
    return library
