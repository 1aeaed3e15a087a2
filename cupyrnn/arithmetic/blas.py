"""
NumPy's BLAS: its number of threads, and whether it has kernels for small products.

The number of threads comes from threadpoolctl if it is installed, else from environment variables.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable

import numpy as np

# The environment variables that NumPy's BLAS reads, in its order.
_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


@functools.cache
def cores() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


@functools.cache
def _blas() -> Callable[[], int | None] | None:
    """Return a function that returns the threads of NumPy's BLAS; None without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController

        found = ThreadpoolController().select(user_api="blas").lib_controllers
    except Exception:  # it is not installed, or does not work here
        return None
    # NumPy's is loaded first; SciPy may load another one.
    chosen = [lib for lib in found if "numpy" in lib.filepath] or found
    get: Callable[[], int | None] | None = chosen[0].get_num_threads if chosen else None
    return get


@functools.cache
def _from_environment() -> int:
    for name in _VARIABLES:
        text = os.environ.get(name, "")
        if text.isdigit() and int(text):
            return min(int(text), cores())
    return cores()


def count() -> int:
    """Return the number of threads that a call may use."""
    get = _blas()
    found = None if get is None else get()
    return max(1, found or _from_environment())


@functools.cache
def has_small_kernels() -> bool:
    """Return whether the BLAS is an OpenBLAS with kernels for small products (on AVX-512)."""
    if os.environ.get("OPENBLAS_CORETYPE", "SkylakeX").lower() != "skylakex":
        return False
    try:
        features = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        version = tuple(int(number) for number in blas["version"].split(".")[:3])
        dynamic = "DYNAMIC_ARCH" in blas.get("openblas configuration", "")
        openblas = "openblas" in blas["name"]
    except (AttributeError, ImportError, KeyError, TypeError, ValueError):
        return False  # another BLAS
    return bool(openblas and dynamic and version >= (0, 3, 17) and features.get("AVX512_SKX"))
