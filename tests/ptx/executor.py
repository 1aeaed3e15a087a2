"""PTX in the place of g++: modules and kernels with the interface of ``cuda_on_cpu.runner``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda_on_cpu.runner import Pointer

from .arithmetic import Approximation
from .compiler import compile_ptx
from .machine import Kernel, module
from .memory import Memory, Region, host_region

# Arrays are put this far from each other, so that no wrong index reaches another one.
_APART = 1 << 44
_PAGE = 4096


@dataclass(frozen=True)
class Executor:
    """How modules are compiled and run."""

    arch: str
    order: str = "together"
    approximation: Approximation = Approximation.NEAREST
    races: bool = True

    def compile_module(
        self, source: str, name_expressions: Sequence[str], *, options: Sequence[str] = (), **_: Any
    ) -> PtxModule:
        """Return a module; the signature is that of ``cuda_on_cpu.runner.compile_module``."""
        return PtxModule(self, source, tuple(name_expressions), tuple(options))


launched: dict[str, set[Kernel]] = {}
"""The kernels that were launched, by name expression: of several modules, and architectures."""


class PtxModule:
    """A compiled module: kernels by name expression."""

    def __init__(
        self, executor: Executor, source: str, names: tuple[str, ...], options: tuple[str, ...]
    ) -> None:
        self.executor = executor
        ptx = compile_ptx(source, names, executor.arch, options)
        kernels = module(ptx.text, executor.approximation).kernels
        self.kernels = {name: kernels[entry] for name, entry in ptx.names.items()}

    def get_function(self, name: str) -> Callable[..., None]:
        """Return a kernel; it is called as CuPy's are, with NumPy arrays and scalars."""
        kernel = self.kernels[name]

        def launch(
            grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_mem: int = 0
        ) -> None:
            launched.setdefault(name, set()).add(kernel)
            arguments, regions = _arguments(kernel, args)
            kernel.launch(
                grid, block, arguments, Memory(regions),
                dynamic_shared_bytes=shared_mem, order=self.executor.order,
                races=self.executor.races,
            )  # fmt: skip

        return launch


def _arguments(kernel: Kernel, args: Sequence[Any]) -> tuple[list[bytes], list[Region]]:
    """Return the bytes of the arguments, and a region for each array, or for some that overlap."""
    if len(args) != len(kernel.parameters):
        raise TypeError(
            f"{kernel.name} takes {len(kernel.parameters)} arguments, {len(args)} were given"
        )
    spans = []
    for number, a in enumerate(args):
        if isinstance(a, (np.ndarray, Pointer)):
            array = a.array if isinstance(a, Pointer) else a
            low, high = np.lib.array_utils.byte_bounds(array) if array.size else 2 * (_start(a),)
            spans.append((low, high, number, f"argument {number} ({array.dtype}{[*array.shape]})"))
    regions: list[Region] = []
    moved: dict[int, int] = {}
    for low, high, numbers, name in _united(spans):
        # Far apart, but on the same byte of a page.
        base = (len(regions) + 1) * _APART + low % _PAGE
        regions.append(host_region(name, low, high - low, base))
        moved |= dict.fromkeys(numbers, base - low)
    result = []
    for number, (a, parameter) in enumerate(zip(args, kernel.parameters, strict=True)):
        if number in moved:
            data = (_start(a) + moved[number]).to_bytes(8, "little", signed=False)
        elif a is None:
            data = bytes(8)
        elif type(a) in (bool, int, float) or isinstance(a, np.generic):
            data = np.asarray(a).tobytes()
        else:
            raise TypeError(f"{kernel.name}, argument {number}: cannot pass a {type(a).__name__}")
        if len(data) != parameter.size:
            raise TypeError(
                f"{kernel.name}, argument {number}: {type(a).__name__} passes {len(data)} bytes,"
                f" the parameter has {parameter.size}"
            )
        result.append(data)
    return result, regions


def _start(a: Any) -> int:
    """Return the address that an array or a pointer passes."""
    if isinstance(a, Pointer):
        return int(a.array.ctypes.data) + a.offset
    return int(a.ctypes.data)


def _united(spans: list[tuple[int, int, int, str]]) -> list[tuple[int, int, list[int], str]]:
    """Unite spans that overlap: views of one array must stay together."""
    result: list[tuple[int, int, list[int], str]] = []
    for low, high, number, name in sorted(spans):
        if result and low < result[-1][1]:
            first, last, numbers, names = result[-1]
            result[-1] = first, max(last, high), [*numbers, number], f"{names}, {name}"
        else:
            result.append((low, high, [number], name))
    return result
