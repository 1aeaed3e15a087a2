"""The simulator in the place of a GPU: modules and kernels as ``without_a_gpu.ptx`` has them."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from without_a_gpu.kernel import Allocation
from without_a_gpu.ptx.compiler import compile_ptx
from without_a_gpu.ptx.executor import PtxKernel
from without_a_gpu.ptx.parser import parse

from .ptx_text import predicated, readable, scheduled, static_shared, without_warp_barriers

_TO_DEVICE, _TO_HOST = 1, 2
_LEAST = 16
_FIRST = 1 << 16  # module, as the patch numbers them


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["SIMULATOR"], mode=ctypes.RTLD_GLOBAL)


def _checked(status: int) -> None:
    if status:
        raise RuntimeError(f"the simulator returned {status}")


@contextmanager
def _said() -> Iterator[Any]:
    """Give a file that has, behind the context, what was written to standard output meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        os.dup2(file.fileno(), 1)
        try:
            yield file
        finally:
            ctypes.CDLL(None).fflush(None)
            os.dup2(kept, 1)
            os.close(kept)


@dataclass
class Simulator:
    """Where modules are compiled, and what was launched: names and cycles."""

    arch: str = "compute_75"
    in_order: bool = False  # the text as it stands
    cycles: list[tuple[str, int]] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def compile_module(
        self, source: str, names: Sequence[str], *, options: Sequence[str] = (), **_: Any
    ) -> SimulatedModule:
        """Return a module; the signature is that of ``cuda_on_cpu.runner.compile_module``."""
        return SimulatedModule(self, source, tuple(options))


class SimulatedModule:
    """A source, of which a kernel is compiled when it is asked for."""

    def __init__(self, simulator: Simulator, source: str, options: tuple[str, ...]) -> None:
        self._simulator, self._source, self._options = simulator, source, options

    def get_function(self, name: str) -> SimulatedKernel:
        """Return a kernel."""
        ptx = compile_ptx(self._source, (name,), self._simulator.arch, self._options)
        return SimulatedKernel(self._simulator, name, ptx.text, ptx.names[name])


class SimulatedKernel(PtxKernel):
    """One kernel, alone in its module."""

    def __init__(self, simulator: Simulator, name: str, ptx: str, entry: str) -> None:
        self.name, self._simulator = name, simulator
        self.sizes = [p.size for p in parse(ptx)[entry].parameters]
        self._static = static_shared(ptx)
        text = readable(ptx)
        text = without_warp_barriers(text if simulator.in_order else scheduled(predicated(text)))
        Path(f"kernel_{len(simulator.loaded)}.ptx").write_text(text)
        self._text = text.encode()  # read again at every launch
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        # It reads a file of this name first; where there is none, and then closes, standard input.
        Path(f"_{_FIRST + len(simulator.loaded)}.ptx").touch()
        simulator.loaded.append(name)
        _checked(_library().cuModuleLoadData(ctypes.byref(module), self._text))
        _checked(
            _library().cuModuleGetFunction(ctypes.byref(self._function), module, entry.encode())
        )

    def _launch(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: list[bytes],
        meant: list[tuple[tuple[int, int], Allocation]], shared_mem: int,
    ) -> None:  # fmt: skip
        library, places = _library(), {}
        for (number, word), a in meant:
            if a.address not in places:
                place = ctypes.c_void_p()
                size = ctypes.c_size_t(max(a.size, _LEAST))
                _checked(library.cudaMalloc(ctypes.byref(place), size))
                _copy(place, ctypes.c_void_p(a.address), a.size, _TO_DEVICE)
                places[a.address] = place, a.size
            data, (place, _) = arguments[number], places[a.address]
            address = int.from_bytes(data[word : word + 8], "little") - a.address + place.value
            arguments[number] = data[:word] + address.to_bytes(8, "little") + data[word + 8 :]
        buffers = [ctypes.create_string_buffer(data, len(data)) for data in arguments]
        pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        sizes = [ctypes.c_uint(n) for n in (*grid, *block)]
        shared = ctypes.c_uint(shared_mem + (self._static if shared_mem else 0))
        with _said() as file:
            _checked(library.cuLaunchKernel(self._function, *sizes, shared, None, pointers, None))
            _checked(library.cudaDeviceSynchronize())
            ctypes.CDLL(None).fflush(None)
            file.seek(0)
            text = file.read()
        found = re.findall(r"^gpu_sim_cycle = (\d+)", text, re.M)
        self._simulator.cycles.append((self.name, int(found[-1]) if found else 0))
        for address, (place, size) in places.items():
            _copy(ctypes.c_void_p(address), place, size, _TO_HOST)


def _copy(to: ctypes.c_void_p, of: ctypes.c_void_p, size: int, direction: int) -> None:
    _checked(_library().cudaMemcpy(to, of, ctypes.c_size_t(size), direction))
