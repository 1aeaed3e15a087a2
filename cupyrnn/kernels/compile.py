"""Compiled kernels, on first use. The only user of cupy.RawModule."""

from __future__ import annotations

from functools import cache
from typing import Any

from .common import ACCUMULATORS, TYPES, source

# C++17 is the default of recent versions of NVRTC and of the tests' host compiler.
OPTIONS = ("-std=c++17",)


def instance(template: str, dtype_name: str) -> str:
    """Return the C++ name of a kernel like "lstm_forward_step<{T}>" for a storage type."""
    return template.format(T=TYPES[dtype_name], A=ACCUMULATORS[dtype_name])


def instances(kernels: tuple[str, ...], dtype_name: str) -> tuple[str, ...]:
    """Return the C++ names of all kernels of a module, each once."""
    return tuple(dict.fromkeys(instance(k, dtype_name) for k in kernels))


@cache
def kernel(cell: str, kernels: tuple[str, ...], dtype_name: str, name: str) -> Any:
    """
    Return one kernel of a cell, compiled for a storage type.

    Parameters
    ----------
    cell
        The CUDA source of the cell.
    kernels
        All kernels of it, as templates: "lstm_forward_step<{T}>".
    dtype_name
        The dtype of the arrays.
    name
        The kernel to return.
    """
    return _module(cell, kernels, dtype_name).get_function(instance(name, dtype_name))


@cache
def _module(cell: str, kernels: tuple[str, ...], dtype_name: str) -> Any:
    import cupy

    return cupy.RawModule(
        code=source(dtype_name, cell),
        options=OPTIONS,
        name_expressions=instances(kernels, dtype_name),
    )
