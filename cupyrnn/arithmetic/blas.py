"""
What NumPy's BLAS is: its threads, and whether it has kernels for small products.

threadpoolctl, where it is installed, says how many threads it has now; otherwise the environment
says how many it began with.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable

import numpy as np

# What NumPy's BLAS reads, in its order.
_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


@functools.cache
def cores() -> int:
    """Return how many processors there are for this process."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


@functools.cache
def _blas() -> Callable[[], int | None] | None:
    """Return what tells the threads of NumPy's BLAS, None without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController

        found = ThreadpoolController().select(user_api="blas").lib_controllers
    except Exception:  # It is not installed, or does not work here.
        return None
    # NumPy's is loaded first; SciPy may bring another one.
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
    """Return how many threads a call may have."""
    get = _blas()
    found = None if get is None else get()
    return max(1, found or _from_environment())


@functools.cache
def has_small_kernels() -> bool:
    """Return whether it is an OpenBLAS with kernels for small products, as it has on AVX-512."""
    if os.environ.get("OPENBLAS_CORETYPE", "SkylakeX").lower() != "skylakex":
        return False
    try:
        features = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        version = tuple(int(number) for number in blas["version"].split(".")[:3])
        dynamic = "DYNAMIC_ARCH" in blas.get("openblas configuration", "")
        openblas = "openblas" in blas["name"]
    except (AttributeError, ImportError, KeyError, TypeError, ValueError):
        return False  # not this one
    return bool(openblas and dynamic and version >= (0, 3, 17) and features.get("AVX512_SKX"))
