"""Planted errors are found: in kernels, in products and around them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

SOURCE = r"""
template <typename T>
__global__ void copy_from(const T* from, T* to, long long first, long long count)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        to[i] = from[first + i];
}
template <typename T>
__global__ void copy_to(const T* from, T* to, long long first, long long count)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        T* there = to + first;
        there[i] = from[i];
    }
}
__global__ void through_an_address(unsigned long long address, float* to)
{
    to[threadIdx.x] = *reinterpret_cast<const float*>(address);
}
"""
NAMES = ("copy_from<float>", "copy_to<float>", "copy_from<double>", "through_an_address")


@contextmanager
def refused(host: Any, message: str) -> Iterator[None]:
    """CuPy raises an error with this message of the library."""
    import cupy

    errors = (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError)
    with pytest.raises((*errors, cupy.cuda.cublas.CUBLASError)):
        yield
    assert re.search(message, host.message()), host.message()


@pytest.fixture
def kernels(cupy: Any) -> dict[str, Any]:
    module = cupy.RawModule(code=SOURCE, options=("-std=c++17",), name_expressions=NAMES)
    return {name: module.get_function(name) for name in NAMES}


def launch(kernel: Any, *args: Any) -> None:
    kernel((1,), (32,), args)


@pytest.mark.parametrize("first", [1, -1, 1000, 100_000_000], ids=lambda n: f"from {n}")
@pytest.mark.parametrize("name", ["copy_from<float>", "copy_to<float>"])
def test_out_of_bounds_in_a_kernel(
    host: Any, cupy: Any, kernels: Any, name: str, first: int
) -> None:
    a, b = cupy.zeros(9, "f4"), cupy.zeros(9, "f4")
    thread = 8 if first == 1 else 0
    verb, line = {"copy_from<float>": ("reads", 7), "copy_to<float>": ("writes", 15)}[name]
    where = rf"thread \({thread}, 0, 0\) {verb} 4 bytes at .* \(kernel\.cu:{line}\)"
    with refused(host, where):
        launch(kernels[name], a, b, first, 9)


def test_memory_of_another_array(host: Any, cupy: Any, kernels: Any) -> None:
    """Within an allocation, but not one that the kernel got."""
    a, b, other = (cupy.zeros(9, "f4") for _ in range(3))
    first = (other.data.ptr - a.data.ptr) // 4
    with refused(host, "no argument of the kernel"):
        launch(kernels["copy_from<float>"], a, b, first, 9)
    launch(kernels["copy_from<float>"], a, b, 0, 9)  # the next launch works as before


def test_a_freed_allocation(host: Any, cupy: Any, kernels: Any) -> None:
    a, b = cupy.zeros(9, "f4"), cupy.zeros(9, "f4")
    address = np.uint64(a.data.ptr)
    launch(kernels["copy_from<float>"], address, b, 0, 9)
    del a
    with refused(host, "argument 0: .* is freed memory"):
        launch(kernels["copy_from<float>"], address, b, 0, 9)
    with refused(host, "which is freed memory .*kernel.cu:20"):
        launch(kernels["through_an_address"], address, b)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (np.zeros(9).ctypes.data, "argument 0: .* is no memory of a device"),
        (id(None), "argument 0: .* is no memory of a device"),
        (0, "reads 4 bytes at 0, which is a null pointer"),
    ],
    ids=["the host's", "an object's", "null"],
)
def test_a_pointer_that_is_no_devices(
    host: Any, cupy: Any, kernels: Any, address: int, message: str
) -> None:
    with refused(host, message):
        launch(kernels["copy_from<float>"], np.uint64(address), cupy.zeros(9, "f4"), 0, 9)


def test_a_pointer_that_is_not_aligned(host: Any, cupy: Any, kernels: Any) -> None:
    a, b = cupy.zeros(9, "f4"), cupy.zeros(9, "f4")
    with refused(host, "argument 0: .* is not aligned to 4"):
        launch(kernels["copy_from<float>"], np.uint64(a.data.ptr + 2), b, 0, 8)
    with refused(host, "not aligned.*kernel.cu:20"):
        launch(kernels["through_an_address"], np.uint64(a.data.ptr + 2), b)


def test_an_array_of_another_device(host: Any, cupy: Any, kernels: Any) -> None:
    with cupy.cuda.Device(1):
        there = cupy.zeros(9, "f4")
    address = np.uint64(there.data.ptr)  # CuPy itself refuses the array
    with refused(host, "argument 0: .* is memory of another device"):
        launch(kernels["copy_from<float>"], address, cupy.zeros(9, "f4"), 0, 9)
