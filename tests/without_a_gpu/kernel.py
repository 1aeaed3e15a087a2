"""Shared by the kernels of all executors: their arguments and launches."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

_MOST = (2**31 - 1, 65535, 65535, 1024, 1024, 64)
_MOST_THREADS = 1024


class Allocation(NamedTuple):
    """Memory of this process that a kernel may get: `size` bytes from `address` on."""

    address: int
    size: int
    name: str


class Launch(NamedTuple):
    """What a launch is given."""

    grid: tuple[int, ...]  # up to three numbers
    block: tuple[int, ...]
    params: int  # the address of an array of the addresses of the arguments: `kernelParams`
    allocations: Iterable[Allocation]  # all memory of the arguments; parts may overlap
    shared_mem: int  # bytes of dynamic shared memory


class Kernel:
    """
    One kernel of a module.

    Attributes
    ----------
    name : str
    sizes : list of int
        The bytes of each parameter.
    parameters : sequence
        Its signature; empty if the executor does not know it.
    """

    name: str
    sizes: list[int]
    parameters: Sequence[Any] = ()

    def launch_at(self, launch: Launch) -> None:
        """Launch as cuLaunchKernel does, and wait for it."""
        raise NotImplementedError

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        shared_mem: int = 0,
    ) -> None:
        """Launch with arrays, which are all memory of the launch, NumPy scalars and bytes."""
        values = [_bytes_of(a) for a in args]
        if (given := [len(v) for v in values]) != self.sizes:
            raise TypeError(f"{self.name} takes {self.sizes} bytes, {given} were given")
        buffers = [ctypes.create_string_buffer(v, len(v)) for v in values]
        params = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        allocations = (allocation(a) for a in args if isinstance(a, np.ndarray))
        self.launch_at(Launch(grid, block, ctypes.addressof(params), allocations, shared_mem))


def _bytes_of(argument: Any) -> bytes:
    if argument is None or isinstance(argument, np.ndarray):
        address: int = 0 if argument is None else argument.ctypes.data
        return address.to_bytes(8, "little")
    return argument if isinstance(argument, bytes) else np.asarray(argument).tobytes()


def allocation(array: np.ndarray[Any, Any]) -> Allocation:
    """Return the memory of an array, from its first byte to its last."""
    low = high = array.ctypes.data
    if array.size:
        for size, stride in zip(array.shape, array.strides, strict=True):
            low += min(0, (size - 1) * stride)
            high += max(0, (size - 1) * stride)
        high += array.itemsize
    return Allocation(low, high - low, f"{array.dtype}{[*array.shape]}")


def full_size(grid: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    """Return three numbers each, if CUDA accepts them."""
    sizes = *(*grid, 1, 1)[:3], *(*block, 1, 1)[:3]
    within = all(1 <= n <= most for n, most in zip(sizes, _MOST, strict=True))
    if not within or sizes[3] * sizes[4] * sizes[5] > _MOST_THREADS:
        raise ValueError(f"grid {grid}, block {block} exceed CUDA's limits")
    return sizes
