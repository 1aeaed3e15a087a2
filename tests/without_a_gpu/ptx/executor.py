"""
PTX in the place of g++: modules and kernels as ``without_a_gpu.cuda_on_cpu.runner`` has them.

What of the arguments is a pointer shows in its value, an address in one of the allocations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from without_a_gpu.kernel import Allocation, Kernel, Launch

from . import machine
from .compiler import compile_ptx
from .memory import Memory, Region, host_region

# The distance between arrays, so that no wrong index reaches another array.
_APART = 1 << 44
_PAGE = 4096


@dataclass(frozen=True)
class Executor:
    """How modules are compiled and run."""

    arch: str

    def compile_module(
        self, source: str, name_expressions: Sequence[str], *, options: Sequence[str] = (), **_: Any
    ) -> PtxModule:
        """Return a module; the arguments are as in ``cuda_on_cpu.runner.compile_module``."""
        return PtxModule(self, source, tuple(name_expressions), tuple(options))


launched: dict[str, set[machine.Kernel]] = {}
"""The kernels that were launched, by name expression: of several modules, and architectures."""


class PtxModule:
    """A compiled module: kernels by name expression."""

    def __init__(
        self, executor: Executor, source: str, names: tuple[str, ...], options: tuple[str, ...]
    ) -> None:
        ptx = compile_ptx(source, names, executor.arch, options)
        kernels = machine.module(ptx.text).kernels
        self._functions = {
            name: PtxKernel(executor, name, kernels[entry]) for name, entry in ptx.names.items()
        }

    def get_function(self, name: str) -> PtxKernel:
        """Return a kernel."""
        return self._functions[name]


class PtxKernel(Kernel):
    """One kernel of a module, to be launched."""

    def __init__(self, executor: Executor, name: str, kernel: machine.Kernel) -> None:
        self._executor, self._kernel = executor, kernel
        self.name = name
        self.sizes = [p.size for p in kernel.parameters]

    def launch_at(self, launch: Launch) -> None:
        """
        Launch.

        Of the allocations that begin where an argument points, the largest is what it may touch,
        else the smallest that holds it.
        """
        places = (ctypes.c_uint64 * len(self.sizes)).from_address(launch.params)
        arguments = [ctypes.string_at(at, n) for at, n in zip(places, self.sizes, strict=True)]
        known = list(launch.allocations)
        begin: dict[int, Allocation] = {}
        for a in known:
            if a.address not in begin or a.size > begin[a.address].size:
                begin[a.address] = a
        meant = []
        # Any word of a struct may be a pointer.
        words = [(n, at) for n, data in enumerate(arguments) for at in range(0, len(data) - 7, 8)]
        for number, word in words:
            at = int.from_bytes(arguments[number][word : word + 8], "little")
            holding = [a for a in known if a.address < at < a.address + a.size] if at else []
            found = begin.get(at) or min(holding, key=lambda a: a.size, default=None)
            if found is not None:
                where = f"argument {number}, byte {word}" if word else f"argument {number}"
                name = f"{where} ({found.name})"
                meant.append(((number, word), found._replace(name=name)))
        self._launch(launch, arguments, meant)

    def _launch(
        self, launch: Launch, arguments: list[bytes],
        meant: list[tuple[tuple[int, int], Allocation]],
    ) -> None:  # fmt: skip
        launched.setdefault(self.name, set()).add(self._kernel)
        regions: list[Region] = []
        for region, ((number, word), a) in enumerate(meant):
            # On the same byte of a page, and of two views of one array each at its own place: what
            # lies beside a view is not the argument's.
            base = (region + 1) * _APART + a.address % _PAGE
            regions.append(host_region(a.name, a.address, a.size, base))
            data = arguments[number]
            address = int.from_bytes(data[word : word + 8], "little") - a.address + base
            arguments[number] = data[:word] + address.to_bytes(8, "little") + data[word + 8 :]
        self._kernel.launch(
            launch.grid, launch.block, arguments, Memory(regions),
            dynamic_shared_bytes=launch.shared_mem,
        )  # fmt: skip
