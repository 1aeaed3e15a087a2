"""The two simulated GPUs: how to get them, and the events on them."""

from __future__ import annotations

import ctypes
import operator
import os
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from without_a_gpu.cuda_on_cpu import runner

from . import library, patch
from .executor import built
from .programs import Program, keep_compiled

_EVENTS = (
    "launches", "products", "memsets", "copies_to_device", "copies_to_host", "copies_on_device",
    "synchronizations", "allocations", "frees", "waits",
)  # fmt: skip

# The environment variable with another folder for CuPy's compiled kernels.
CACHE_VARIABLE = "CUPY_ON_HOST_CACHE_DIR"

_native: Any = None
_alive: list[Any] = []


class Counts(namedtuple("Counts", _EVENTS)):
    """The number of events of each kind. A product does not count as a launch."""

    def __sub__(self, before: Counts) -> Counts:
        return Counts(*map(operator.sub, self, before))


@dataclass(frozen=True)
class Event:
    """
    An event.

    Attributes
    ----------
    kind
        One of the names of the counts.
    name
        Of the kernel, or of the function of CUDA.
    stream
        The address of its stream; 0 is the default one.
    detail
        The size in bytes of what is copied, set or allocated, the number of blocks of a launch,
        and of a product its types: see `Product`.
    """

    kind: str
    name: str
    stream: int
    detail: int

    @property
    def product(self) -> Product:
        d = self.detail
        return Product(d & 255, d >> 8 & 255, d >> 16 & 255, d >> 24)


@dataclass(frozen=True)
class Product:
    """The types of a product, as numbers of cudaDataType, cublasComputeType_t, cublasMath_t."""

    operands: int
    result: int
    compute: int
    math_mode: int


class _Entry(ctypes.Structure):
    _fields_ = [
        ("event", ctypes.c_int),
        ("name", ctypes.c_char * 236),
        ("stream", ctypes.c_void_p),
        ("detail", ctypes.c_size_t),
    ]


def installed() -> bool:
    """Return whether this process has CuPy over memory of the host."""
    return _native is not None


def install(*, pool: bool = False) -> None:
    """
    Import CuPy over memory of the host.

    Parameters
    ----------
    pool
        Keep CuPy's memory pool. Without it each array is a separate allocation, poisoned
        when it is made and gone when it is freed.
    """
    global _native
    if installed():
        return
    if any(name.partition(".")[0] in ("cupy", "cupy_backends") for name in sys.modules):
        raise RuntimeError("CuPy is there already: this needs a process of its own")
    # Compiled code from here would be wrong on a GPU, so it has its own cache.
    default = str(library.cache() / "cupy")
    os.environ["CUPY_CACHE_DIR"] = os.environ.get(CACHE_VARIABLE, default)
    # Only CuPy's own kernels, and no libraries that are missing here.
    os.environ["CUPY_ACCELERATORS"] = ""
    # A real cuDNN has no device here.
    os.environ.setdefault("CUPYRNN_ENGINE", "cupy")
    _native = ctypes.CDLL(str(library.build()), mode=ctypes.RTLD_GLOBAL)
    library.preload("libnvrtc-builtins.so", "libnvrtc.so", "libcublasLt.so", "libcublas.so")
    import cupy_backends.cuda.api.runtime as runtime

    patch.runtime(library.extension("cuda/api/runtime"), _native)
    assert runtime.getDeviceCount() == 2
    _set_loader()
    import cupy
    from cupy.cuda import compiler

    keep_compiled(compiler._NVRTCProgram)
    cupy.random.default_rng = Generator
    if not pool:
        cupy.cuda.set_allocator(None)


class Generator:
    """
    Replaces CuPy's random generator, which needs cuRAND: NumPy draws the numbers.

    It has only the methods of CuPy's generator.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        import cupy

        if name.startswith("_") or not hasattr(cupy.random.Generator, name):
            raise AttributeError(f"'Generator' object has no attribute {name!r}")

        def draw(*args: Any, **kwargs: Any) -> Any:
            return cupy.asarray(getattr(self._rng, name)(*args, **kwargs))

        return draw


def _set_loader() -> None:
    """Make the driver load g++'s code for the source of an image."""

    def load(image: bytes, module: int) -> int:
        try:
            found, names = built(Program.load(image))
            for number, entry in enumerate(runner.entries(found)):
                _native.host_add_kernel(
                    ctypes.c_void_p(module),
                    names[entry.name.decode()].encode(),
                    ctypes.cast(found.cuda_on_cpu_launch, ctypes.c_void_p),
                    number,
                    entry.parameter_count,
                    ctypes.cast(entry.parameters, ctypes.c_void_p),
                )
        except Exception as error:  # no exception crosses C
            print(f"cupy_on_host: {error}", file=sys.stderr)
            return 1
        return 0

    loader = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(load)
    _alive.append(loader)
    _native.host_set_loader(loader)


def counts() -> Counts:
    """Return the number of events of each kind since the beginning."""
    values = (ctypes.c_long * len(_EVENTS))()
    _native.host_counts(values)
    return Counts(*values)


def counted(call: Callable[[], Any]) -> Counts:
    """Return the events of a second call, which compiles nothing."""
    call()
    before = counts()
    kept = call()
    done = counts() - before
    del kept
    return done


@contextmanager
def log() -> Iterator[list[Event]]:
    """Fill a list with the events inside; it is complete when the context ends."""
    events: list[Event] = []
    _native.host_log(1)
    try:
        yield events
    finally:
        entries = ctypes.POINTER(_Entry)()
        _native.host_log_entries.restype = ctypes.c_size_t
        count = _native.host_log_entries(ctypes.byref(entries))
        events += (
            Event(_EVENTS[e.event], e.name.decode(), e.stream or 0, e.detail)
            for e in entries[:count]
        )
        _native.host_log(0)


@contextmanager
def not_executed() -> Iterator[None]:
    """Skip the device's own work; the remaining time is CuPy's and the caller's."""
    switches = [
        ctypes.c_int.in_dll(_native, f"host_executes_{what}") for what in ("kernels", "products")
    ]
    for switch in switches:
        switch.value = 0
    try:
        yield
    finally:
        for switch in switches:
            switch.value = 1


def message() -> str:
    """Return the last refusal in this thread."""
    _native.host_message.restype = ctypes.c_char_p
    text: bytes = _native.host_message()
    return text.decode()
